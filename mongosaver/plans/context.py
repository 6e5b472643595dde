"""What every plan is given: the saver's serializer and memory, and the time.

A plan captures none of these for longer than one call: LangGraph copies a saver and swaps its
`serde`, and a test passes whatever time it likes.

This file is pure: it does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from langgraph.checkpoint.serde.base import SerializerProtocol

from mongosaver.cache import Shared
from mongosaver.errors import ConfigurationError
from mongosaver.schema import LEAST_QUANTUM

_LONGEST: Final = timedelta(days=36_525)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Ttl:
    """How long a thread is kept after its last save.

    Attributes:
        duration: At least so long.
        refresh_on_read: Whether reading its latest state counts like a save.
        least: The least distance of two expiry dates.
    """

    duration: timedelta
    refresh_on_read: bool = False
    least: timedelta = LEAST_QUANTUM

    @property
    def quantum(self) -> timedelta:
        """The distance of two expiry dates: a thread is moved at most once in such a time."""
        return max(self.duration / 10, self.least)

    def fresh(self, saved: datetime) -> datetime:
        """When a thread expires that was last saved at this time and has just been moved.

        That is one to two quanta more than the ttl: the first one is for moving it in slices.
        """
        step = max(self.quantum // _MILLISECOND, 1)
        at = -(-(saved + self.duration - _EPOCH) // _MILLISECOND)
        return _EPOCH + (-(-at // step) + 1) * step * _MILLISECOND


def duration(ttl: object, what: str = "ttl") -> timedelta:
    """A ttl as a duration.

    Raises:
        ConfigurationError: It is neither a timedelta nor a number of seconds, or not positive, or
            longer than a century.
    """
    if isinstance(ttl, (int, float)) and not isinstance(ttl, bool):
        if not 0 < ttl <= _LONGEST.total_seconds():  # also what is no number
            raise ConfigurationError(
                f"{what} must be more than 0 seconds and at most a century, got {ttl!r}"
            )
        ttl = timedelta(seconds=ttl)
    if not isinstance(ttl, timedelta):
        raise ConfigurationError(
            f"{what} must be a timedelta or a number of seconds, got {type(ttl).__name__}"
        )
    if not _MILLISECOND <= ttl <= _LONGEST:
        raise ConfigurationError(
            f"{what} must be at least a millisecond and at most a century, got {ttl}"
        )
    return ttl


@dataclass(frozen=True, slots=True)
class Context:
    """One call's surroundings.

    Attributes:
        serde: The saver's serializer at the time of the call.
        shared: What the saver remembers.
        now: The time of the call, with its zone.
        next_version: The saver's `get_next_version`.
        ttl: How long the saver keeps threads; None for ever.
    """

    serde: SerializerProtocol
    shared: Shared
    now: datetime
    next_version: Callable[[Any, None], Any]
    ttl: Ttl | None = None
