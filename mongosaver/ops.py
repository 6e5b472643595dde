"""Operations: what a plan asks of the database, as plain values.

A *plan* is a generator without I/O. It yields operations, gets their results sent back (or their
errors thrown in) and returns what the caller wants. It neither knows nor cares whether somebody
blocks or awaits between two yields: `drivers` has one loop for each. So what a saver does is
written once, and a test can run it as a table of replies in, operations and result out.

Rules for plans
- No clock, no client, no randomness, nothing captured: arguments only.
- Never yield in `finally`: a cancelled plan is closed, not continued.
- Only what a plan understands is caught; every other error passes through.

This file is pure: it imports nothing of mongosaver but `schema`, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mongosaver.schema import Document, Index, Name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Find:
    """Documents that match, in the order of `sort`; `limit` 0 is all. Result: a list."""

    collection: Name
    filter: Document
    projection: Document | None = None
    sort: tuple[tuple[str, int], ...] = ()
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A pipeline. Result: a list of documents."""

    collection: Name
    pipeline: Sequence[Document]


@dataclass(frozen=True, slots=True)
class Insert:
    """New documents in one unordered command; those that are in the way stay. Result: None.

    Raises PyMongo's `DuplicateKeyError` or `BulkWriteError` into the plan.
    """

    collection: Name
    documents: Sequence[Document]


@dataclass(frozen=True, slots=True)
class Replace:
    """The document at `filter` becomes `document`, whether it was there or not. Result: None."""

    collection: Name
    filter: Document
    document: Document


@dataclass(frozen=True, slots=True)
class Update:
    """One update of the document at `filter`; part of `Updates`.

    `upsert` makes the document where there is none.
    """

    filter: Document
    update: Document
    upsert: bool = True


@dataclass(frozen=True, slots=True)
class Updates:
    """Several updates in one command: one after another if `ordered`. Result: None."""

    collection: Name
    updates: Sequence[Update]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class UpdateMany:
    """One update of all documents that match; none is made. Result: how many matched."""

    collection: Name
    filter: Document
    update: Document


@dataclass(frozen=True, slots=True)
class Merge:
    """What a pipeline gives becomes new documents of the same collection, on the server.

    A document that is there already, by the unique index `key`, stays, with the new one's
    `created_at` as its `touched_at`. `hint` are the keys of the index to read by. Result: None.
    """

    collection: Name
    pipeline: Sequence[Document]
    key: tuple[str, ...]
    hint: Document


@dataclass(frozen=True, slots=True)
class Count:
    """How many documents match."""

    collection: Name
    filter: Document


@dataclass(frozen=True, slots=True)
class Delete:
    """All documents that match. Result: how many were there."""

    collection: Name
    filter: Document


@dataclass(frozen=True, slots=True)
class Together:
    """These inserts as one transaction, in this order. Result: whether that was done.

    False means that nothing was written and the plan is to write in sequence: the topology has
    no transactions, or the tries were used up.
    """

    writes: Sequence[Insert]


@dataclass(frozen=True, slots=True)
class FindOneAndUpdate:
    """The document at `filter`, made where there is none, updated by a pipeline.

    Atomic, and the pipeline has the server's clock (`$$NOW`). Result: the document afterwards.
    """

    collection: Name
    filter: Document
    pipeline: Sequence[Document]


@dataclass(frozen=True, slots=True)
class Collections:
    """Which of the collections exist. Result: their `listCollections` documents by `Name`."""


@dataclass(frozen=True, slots=True)
class CreateCollection:
    """One of the collections, with options of the `create` command. Result: None."""

    collection: Name
    options: Document


@dataclass(frozen=True, slots=True)
class ShardCollection:
    """One of the collections is spread over the shards of a cluster, by `key`. Result: None."""

    collection: Name
    key: Document


@dataclass(frozen=True, slots=True)
class ListIndexes:
    """Indexes of one collection. Result: their `listIndexes` documents; none without collection."""

    collection: Name


@dataclass(frozen=True, slots=True)
class CreateIndexes:
    """Indexes of one collection, made where they are missing. Result: None.

    That may take hours. Each time that `every` seconds have passed the driver runs the plan that
    `meanwhile` makes; what it raises is raised here, and the server builds on.
    """

    collection: Name
    indexes: Sequence[Index]
    meanwhile: Callable[[], Plan[None]]
    every: float


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far the server is with building indexes of one collection.

    Result: a document with `msg`, and `done` and `total` where it counts; None if it builds none.
    """

    collection: Name


@dataclass(frozen=True, slots=True)
class CollMod:
    """A change of one index, in the words of `collMod`. Result: None."""

    collection: Name
    index: Document


@dataclass(frozen=True, slots=True)
class DropIndex:
    """One index less. Result: None."""

    collection: Name
    index: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait. Result: None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Compute:
    """CPU work on `size` bytes, which an async driver keeps off its event loop above a size.

    Result: what `function` returns.
    """

    function: Callable[[], Any]
    size: int


Op = (
    Find
    | Aggregate
    | Insert
    | Replace
    | Updates
    | UpdateMany
    | Merge
    | Count
    | Delete
    | Together
    | FindOneAndUpdate
    | Collections
    | CreateCollection
    | ShardCollection
    | ListIndexes
    | CreateIndexes
    | BuildProgress
    | CollMod
    | DropIndex
    | Sleep
    | Compute
)

Plan = Generator[Op, Any, T]
