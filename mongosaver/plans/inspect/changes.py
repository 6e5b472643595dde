"""What changed between two checkpoints, channel by channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mongosaver.plans.inspect.contents import Value


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one channel between two checkpoints.

    Attributes:
        channel: The channel.
        kind: `added`, `removed`, `changed`, or `list` or `map` for what was done to parts of it.
        old: The value before, or the parts that went.
        new: The value after, or the parts that came.
        at: Where in a list.
        kept: How many parts stayed.
    """

    channel: str
    kind: str
    old: Any = None
    new: Any = None
    at: int = 0
    kept: int = 0


def compare(old: Mapping[str, Value], new: Mapping[str, Value]) -> list[Change]:
    """What changed in the channels of one checkpoint to make those of the other."""
    changes = []
    for channel in sorted(old.keys() | new.keys()):
        before, after = old.get(channel), new.get(channel)
        if before is None:
            changes.append(Change(channel, "added", new=_told(new[channel])))
        elif after is None:
            changes.append(Change(channel, "removed", old=_told(before)))
        elif before.identity != after.identity:
            if before.problem or after.problem:
                changes.append(Change(channel, "changed", _told(before), _told(after)))
            elif before.value != after.value:
                changes.append(_change(channel, before.value, after.value))
    return changes


def _told(value: Value) -> Any:
    return value.problem or value.value


def _change(channel: str, old: Any, new: Any) -> Change:
    if isinstance(old, list) and isinstance(new, list):
        return _list_change(channel, old, new)
    if isinstance(old, dict) and isinstance(new, dict):
        went = {key: old[key] for key in old if key not in new or new[key] != old[key]}
        came = {key: new[key] for key in new if key not in old or new[key] != old[key]}
        return Change(channel, "map", went, came, kept=len(old) - len(went))
    return Change(channel, "changed", old, new)


def _list_change(channel: str, old: list[Any], new: list[Any]) -> Change:
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    if not start and new:
        # A history that is trimmed at its beginning while it grows at its end.
        for cut in range(1, len(old)):
            kept = len(old) - cut
            if old[cut] == new[0] and old[cut:] == new[:kept]:
                return Change(channel, "list", old[:cut], new[kept:], len(old), kept)
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return Change(
        channel,
        "list",
        old[start : len(old) - end],
        new[start : len(new) - end],
        start,
        start + end,
    )
