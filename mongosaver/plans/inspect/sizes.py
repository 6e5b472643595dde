"""What threads take.

Sizes of threads need each document once. They are added up on the server, in ranges of threads,
so that the walk shows progress and can be broken off; without it, what an index and the
collections' own statistics tell is exact as well, and the rest is estimated from a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pymongo.errors import OperationFailure

from mongosaver.ops import Aggregate, Find, Plan
from mongosaver.schema import CHECKPOINT_KEY, Document, Name

KEYS: Final = 100
"""Checkpoints of a sample that one command is about."""

STORED: Final = (Name.CHECKPOINTS, Name.WRITES, Name.BLOBS)
"""The collections that hold threads."""

RANGE: Final = 20_000
"""Checkpoints whose documents are added up together, and a thread more."""

_NO_COLLECTION: Final = 26
_BY_THREAD: Final = {"thread_id": 1, "checkpoint_ns": 1, "checkpoint_id": -1}


@dataclass(frozen=True, slots=True)
class CollectionSize:
    """One collection: documents, their bytes, what they and the indexes take on disk."""

    documents: int = 0
    bytes: int = 0
    storage: int = 0
    indexes: int = 0


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """What a thread has.

    Attributes:
        thread_id: The thread.
        checkpoints: Its checkpoints in all namespaces.
        stored: Bytes of its documents in the three collections.
        whole: Bytes that its checkpoints would take, if each held all its values.
    """

    thread_id: str
    checkpoints: int
    stored: int
    whole: int


@dataclass(frozen=True, slots=True)
class Overview:
    """What the server's own statistics and an index tell.

    Attributes:
        threads: How many there are.
        collections: Sizes by collection.
        longest: The threads with the most checkpoints.
    """

    threads: int
    collections: Mapping[Name, CollectionSize]
    longest: tuple[tuple[str, int], ...]


def overview(top: int = 10) -> Plan[Overview]:
    """Sizes of the collections, and how many threads there are; no document is read."""
    sizes = {}
    for name in Name:
        sizes[name] = yield from _collection(name)
    # With nothing to count in a group, the server steps from one thread to the next.
    counted = yield Aggregate(
        Name.CHECKPOINTS,
        [
            {"$sort": _BY_THREAD},
            {"$group": {"_id": "$thread_id"}},
            {"$group": {"_id": None, "threads": {"$sum": 1}}},
        ],
    )
    longest = yield Aggregate(
        Name.CHECKPOINTS,
        [
            {"$sort": _BY_THREAD},
            {"$group": {"_id": "$thread_id", "count": {"$sum": 1}}},
            {"$sort": {"count": -1, "_id": 1}},
            {"$limit": top},
        ],
    )
    return Overview(
        counted[0]["threads"] if counted else 0,
        sizes,
        tuple((row["_id"], row["count"]) for row in longest),
    )


def _collection(name: Name) -> Plan[CollectionSize]:
    try:
        rows = yield Aggregate(name, [{"$collStats": {"storageStats": {}}}])
    except OperationFailure as error:
        if error.code != _NO_COLLECTION:
            raise
        rows = []
    found = [row["storageStats"] for row in rows]  # one of each shard

    def total(field_: str) -> int:
        return int(sum(each.get(field_, 0) for each in found))

    return CollectionSize(
        total("count"), total("size"), total("storageSize"), total("totalIndexSize")
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """What a random sample of checkpoints says of whole values.

    Attributes:
        count: Checkpoints in it.
        mean: Bytes of one checkpoint's whole values.
        error: Standard error of that.
    """

    count: int = 0
    mean: float = 0
    error: float = 0


def sample(size: int, total: int) -> Plan[Sample]:
    """Estimate what a checkpoint takes with its whole values, from about so many of them.

    The server's own `$sample` is quick and prefers some parts of a collection to others. So chance
    picks keys while the index is read, and the documents of those are read.

    Args:
        size: How many to look at; all are, where there are no more.
        total: How many there are.
    """
    if total <= size:
        where: list[Document] = [{}]
    else:
        rows = yield Aggregate(
            Name.CHECKPOINTS,
            [
                {"$sort": _BY_THREAD},
                {
                    "$project": {
                        "_id": 0,
                        **dict.fromkeys(CHECKPOINT_KEY, 1),
                        "chance": {"$rand": {}},
                    }
                },
                {"$match": {"chance": {"$lt": size / total}}},
                {"$project": {"chance": 0}},
            ],
        )
        where = [{"$or": rows[at : at + KEYS]} for at in range(0, len(rows), KEYS)]
    taken: list[int] = []
    for some in where:
        found = yield Find(Name.CHECKPOINTS, some, {"_id": 0, "bytes": 1})
        taken += (row["bytes"] for row in found)
    if not taken:
        return Sample()
    mean = sum(taken) / len(taken)
    spread = sum((each - mean) ** 2 for each in taken) / max(len(taken) - 1, 1)
    return Sample(len(taken), mean, (spread / len(taken)) ** 0.5)


def sizes_of(thread_ids: Sequence[str]) -> Plan[list[ThreadSize]]:
    """Exact sizes of some threads."""
    return (yield from _added_up({"thread_id": {"$in": list(thread_ids)}}))


@dataclass(frozen=True, slots=True)
class Walk:
    """Sizes of all threads, as far as they are added up.

    Attributes:
        top: How many of the largest threads are kept.
        largest: Those, the largest first.
        threads: Threads added up.
        checkpoints: Their checkpoints.
        stored: Bytes of their documents.
        whole: Bytes of their checkpoints' whole values.
        after: The last thread of them.
        done: Whether that is all.
    """

    top: int = 10
    largest: tuple[ThreadSize, ...] = ()
    threads: int = 0
    checkpoints: int = 0
    stored: int = 0
    whole: int = 0
    after: str | None = None
    done: bool = False


def add_up(walk: Walk) -> Plan[Walk]:
    """The sizes of the next range of threads, added."""
    where: Document = {} if walk.after is None else {"thread_id": {"$gt": walk.after}}
    # Where the range ends, the index tells: in the thread of the checkpoint that is so many on.
    border = yield Aggregate(
        Name.CHECKPOINTS,
        [
            {"$match": where},
            {"$sort": _BY_THREAD},
            {"$skip": RANGE},
            {"$limit": 1},
            {"$project": {"_id": 0, "thread_id": 1}},
        ],
    )
    if border:
        where = {"thread_id": {**where.get("thread_id", {}), "$lte": border[0]["thread_id"]}}
    some = yield from _added_up(where)
    largest = sorted((*walk.largest, *some), key=lambda each: (-each.stored, each.thread_id))
    return replace(
        walk,
        largest=tuple(largest[: walk.top]),
        threads=walk.threads + len(some),
        checkpoints=walk.checkpoints + sum(each.checkpoints for each in some),
        stored=walk.stored + sum(each.stored for each in some),
        whole=walk.whole + sum(each.whole for each in some),
        after=border[0]["thread_id"] if border else walk.after,
        done=not border,
    )


def _added_up(where: Document) -> Plan[list[ThreadSize]]:
    totals: dict[str, ThreadSize] = {}
    for name in STORED:
        group: Document = {"_id": "$thread_id", "stored": {"$sum": {"$bsonSize": "$$ROOT"}}}
        if name is Name.CHECKPOINTS:
            group |= {"count": {"$sum": 1}, "whole": {"$sum": "$bytes"}}
        for row in (yield Aggregate(name, [{"$match": where}, {"$group": group}])):
            known = totals.get(row["_id"], ThreadSize(row["_id"], 0, 0, 0))
            totals[row["_id"]] = ThreadSize(
                known.thread_id,
                known.checkpoints + row.get("count", 0),
                known.stored + row["stored"],
                known.whole + row.get("whole", 0),
            )
    return list(totals.values())
