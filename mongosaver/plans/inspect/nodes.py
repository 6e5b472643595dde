"""Nodes and tasks, as far as names that are stored tell of them.

LangGraph calls a node by giving its channel `branch:to:<node>` a value for one super-step. A task
has its node, or the number of the send that it is of, in its path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from mongosaver.schema import Document

_PULL: Final = "~__pregel_pull"
_PUSH: Final = "~__pregel_push"
_BRANCH: Final = "branch:to:"
JOIN: Final = "join:"
_START: Final = "__start__"
INTERRUPT: Final = "__interrupt__"
_ERROR: Final = "__error__"
_INTERRUPT_SLOT: Final = -3
NO_TASK: Final = "00000000-0000-0000-0000-000000000000"
"""Task id of what the caller of a graph writes, such as the answer to an interrupt."""


def called(channel: str) -> str | None:
    """The node that a channel calls by having a value."""
    if channel.startswith(_BRANCH):
        return channel.removeprefix(_BRANCH)
    return _START if channel == _START else None


def joined(channel: str, value: Any) -> str | None:
    """The node that waits for several others, if all of them have come."""
    if not channel.startswith(JOIN):
        return None
    before, _, node = channel.removeprefix(JOIN).rpartition(":")
    come = getattr(value, "value", None)
    complete = isinstance(come, (list, tuple)) and set(before.split("+")) <= set(map(str, come))
    return node if complete else None


def nodes_of(sends: Any) -> Iterator[str]:
    """The nodes of queued sends: each is made of a node and what it is given."""
    for send in sends if isinstance(sends, (list, tuple)) else ():
        made_of = getattr(send, "value", None)
        if isinstance(made_of, (list, tuple)) and made_of:
            yield str(made_of[0])


def name_of(task_path: str, sends: Sequence[str] = ()) -> str:
    """The node of a task, from its path: `~__pregel_pull, agent`, or the number of its send.

    Empty where neither the path nor the queued sends tell.
    """
    kind, _, name = task_path.partition(", ")
    if kind == _PULL:
        return name
    number = number_of(task_path)
    return "" if number is None or number >= len(sends) else sends[number]


def number_of(task_path: str) -> int | None:
    """Which of the queued sends a task is of: `~__pregel_push, 0000000003, 0000000000`."""
    kind, *parts = task_path.split(", ")
    return int(parts[0]) if kind == _PUSH and parts and parts[0].isdecimal() else None


def state_of(slots: Sequence[Document]) -> str:
    """`wrote`, `failed` or `waits`, as the slots of a task's pending writes tell."""
    if any(row["channel"] == _ERROR for row in slots):
        return "failed"
    taken = {row["idx"] for row in slots}
    return "waits" if _INTERRUPT_SLOT in taken and max(taken) < 0 else "wrote"
