"""A thread's checkpoints as others need to know them: which there are, and who is whose parent.

From that it can be told whether a checkpoint has lost an ancestor, whether what belongs to a
checkpoint belongs to nobody, and whether a thread is a copy that broke off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from mongosaver.identifiers import Key
from mongosaver.ops import Find, Plan
from mongosaver.plans import filters, pages
from mongosaver.plans.context import Context
from mongosaver.plans.sweep import MARGIN
from mongosaver.schema import Document, Name


@dataclass(slots=True)
class Outline:
    """A thread's checkpoints, as far as they matter to others.

    Attributes:
        parents: The parent of each, by namespace and id.
        hidden: Those that no reader sees: marked, expired, or not of this format.
        sources: Threads that they were copied from; None for one that was put here.
        copied_at: When the last one was copied or put.
    """

    parents: dict[Key, str | None] = field(default_factory=dict)
    hidden: set[Key] = field(default_factory=set)
    sources: set[str | None] = field(default_factory=set)
    copied_at: datetime | None = None

    def add(self, row: Document, *, hidden: bool) -> None:
        key = (row["checkpoint_ns"], row["checkpoint_id"])
        self.parents[key] = row.get("parent_checkpoint_id")
        if hidden:
            self.hidden.add(key)
        self.sources.add(row.get("copied_from"))
        made = row.get("created_at")
        if isinstance(made, datetime) and (self.copied_at is None or made > self.copied_at):
            self.copied_at = made

    def is_lost(self, key: Key) -> bool:
        """Whether an ancestor is gone: then a checkpoint that is not whole is no state."""
        seen: set[Key] = set()
        while key in self.parents and key not in seen:
            seen.add(key)
            parent = self.parents[key]
            if not parent:
                return False
            key = (key[0], parent)
        return key not in self.parents


def existing(thread_id: str, keys: Iterable[Key]) -> Plan[set[Key]]:
    """Those of some checkpoints that are there, also where no reader sees them."""
    there: set[Key] = set()
    fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1}
    for ns, ids in pages.grouped(keys).items():
        for some in pages.batches(ids):
            where = {
                "thread_id": thread_id,
                "checkpoint_ns": ns,
                "checkpoint_id": {"$in": list(some)},
            }
            for row in (yield Find(Name.CHECKPOINTS, where, fields)):
                there.add((row["checkpoint_ns"], row["checkpoint_id"]))
    return there


def is_half_copy(ctx: Context, thread_id: str, source: str, until: datetime) -> Plan[bool]:
    """Whether a thread that consists of copied checkpoints only is a copy that broke off.

    The source's newest checkpoint is copied last. What the source has got since then does not
    count, nor what it got just before: clocks differ.
    """
    where: Document = {
        "thread_id": source,
        "deleted_at": None,
        "created_at": {"$lt": until - MARGIN},
        **filters.alive(ctx.now),
    }
    fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1}
    for row in (yield Find(Name.CHECKPOINTS, where, fields, pages.CHECKPOINTS, 1)):
        key = (row["checkpoint_ns"], row["checkpoint_id"])
        return key not in (yield from existing(thread_id, [key]))
    return False
