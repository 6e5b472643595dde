"""Going through what is stored without holding it: threads, a thread's documents, batches of keys.

A page is read in the order of an index and goes on after the last key of the one before it, so that
nothing is sorted or skipped, and what is stored meanwhile does no harm. A batch is as much as one
command is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from mongosaver import identifiers
from mongosaver.ops import Aggregate, Find, Plan
from mongosaver.plans.runs import several
from mongosaver.plans.threads import WINDOW
from mongosaver.schema import WRITE_KEY, Document, Name

T = TypeVar("T")

BATCH: Final = 1000
"""Keys or outlines that one command is about."""

LOADED: Final = 200
"""Checkpoints, or pending writes, that are looked at together."""

BYTES: Final = 8 * 1024 * 1024
"""Bytes of data that are read together, if no single document is larger."""

Order = tuple[tuple[str, int], ...]

CHECKPOINTS: Final[Order] = (("checkpoint_ns", 1), ("checkpoint_id", -1))
WRITES: Final[Order] = tuple((name, 1) for name in WRITE_KEY[1:])
BLOBS: Final[Order] = (("checkpoint_ns", 1), ("key", 1))


# --- which threads -----------------------------------------------------------------------------


def wanted(thread_ids: Iterable[object] | None) -> list[str] | None:
    """Check ids that were given; sorted, and None for all.

    Raises:
        IdentifierTypeError: It is one string instead of several, or an id is no text.
    """
    if thread_ids is None:
        return None
    return sorted(several(thread_ids, "thread_ids", identifiers.thread))


def threads(after: str | None) -> Plan[list[str]]:
    """The next threads in the order of their ids, also those that have no checkpoint (left)."""
    found: set[str] = set()
    until: list[str] = []
    where: Document = {} if after is None else {"thread_id": {"$gt": after}}
    for name, order in (
        (Name.CHECKPOINTS, CHECKPOINTS),
        (Name.WRITES, WRITES),
        (Name.BLOBS, BLOBS),
    ):
        pipeline: list[Document] = [
            {"$match": where},
            {"$sort": {"thread_id": 1, **dict(order)}},
            {"$limit": WINDOW},
            {"$group": {"_id": "$thread_id", "count": {"$sum": 1}}},
        ]
        groups = yield Aggregate(name, pipeline)
        here = {group["_id"] for group in groups}
        found |= here
        if here and sum(group["count"] for group in groups) == WINDOW:
            until.append(max(here))
    # What comes after the end of a window may have been missed in the others.
    return sorted(each for each in found if not until or each <= min(until))


# --- pages and batches -------------------------------------------------------------------------


class Pages:
    """A thread's documents in the order of an index, page by page.

    Attributes:
        more: Whether there may be another page.
    """

    def __init__(
        self, name: Name, thread_id: str, fields: Document, order: Order, size: int
    ) -> None:
        self.name, self.thread_id, self.fields = name, thread_id, fields
        self.order, self.size = order, size
        self.more = True
        self._last: Document | None = None

    def next(self) -> Plan[list[Document]]:
        """The documents after the last one seen."""
        rows: list[Document] = []
        for range_ in self._ranges():
            left = self.size - len(rows)
            if left:
                where = {"thread_id": self.thread_id, **range_}
                rows += yield Find(self.name, where, self.fields, self.order, left)
        self.more = len(rows) == self.size
        self._last = rows[-1] if rows else None
        return rows

    def _ranges(self) -> Iterator[Document]:
        """What comes after the last one, from what has most of its key in common with it."""
        last, order = self._last, self.order
        if last is None:
            # Only text is an identifier; what else may be there is not ours.
            yield {order[0][0]: {"$gte": ""}}
            return
        for at in range(len(order) - 1, -1, -1):
            field, direction = order[at]
            equal = {each: last.get(each) for each, _ in order[:at]}
            yield {**equal, field: {"$gt" if direction > 0 else "$lt": last.get(field)}}


def batches(items: Sequence[T], size: int | None = None) -> Iterator[Sequence[T]]:
    """As many as one command is about, or `size`, at a time."""
    size = size or BATCH
    for start in range(0, len(items), size):
        yield items[start : start + size]


def by_bytes(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """As many at a time as may be read together, given the bytes of each."""
    some: list[T] = []
    total = 0
    for item in items:
        if some and (total + size(item) > BYTES or len(some) == LOADED):
            yield some
            some, total = [], 0
        some.append(item)
        total += size(item)
    if some:
        yield some


def grouped(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Second elements by the first ones."""
    groups: dict[str, list[T]] = {}
    for ns, value in pairs:
        groups.setdefault(ns, []).append(value)
    return groups
