"""What every plan is given: the saver's serializer and memory, and the time.

A plan captures none of these for longer than one call: LangGraph copies a saver and swaps its
`serde`, and a test passes whatever time it likes.

This file is pure: it does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from mongosaver.cache import Shared


@dataclass(frozen=True, slots=True)
class Context:
    """One call's surroundings.

    Attributes:
        serde: The saver's serializer at the time of the call.
        shared: What the saver remembers.
        now: The time of the call, with its zone.
        next_version: The saver's `get_next_version`.
    """

    serde: SerializerProtocol
    shared: Shared
    now: datetime
    next_version: Callable[[Any, None], Any]
