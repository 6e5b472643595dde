"""Names: the collections, their indexes as data, the storage format's number and its limits.

Given the collection `checkpoints` there are siblings, named the way GridFS names its own:
`checkpoints.writes` and `checkpoints.blobs`, and `checkpoints.migrations` for what `migrations`
keeps. Every unique index begins with `thread_id`, so that `{thread_id: 1}` can be a shard key and
each command about one thread goes to one shard.

This file is pure: it imports nothing of mongosaver but `errors`, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final

Document = dict[str, Any]

FORMAT: Final = 1
"""Number of the storage format, in each document. A reader refuses what is missing or higher."""


class Name(Enum):
    """The collections, by the suffix that follows the name of the user's collection."""

    CHECKPOINTS = ""
    WRITES = ".writes"
    BLOBS = ".blobs"
    MIGRATIONS = ".migrations"


@dataclass(frozen=True, slots=True)
class Index:
    """One index: `keys` are (field, 1 or -1), and `reader` says which query needs it.

    `partial` limits it to documents that match, so that the others cost nothing. Where `expires`
    is set, MongoDB removes documents once the date in the field has passed.
    """

    keys: tuple[tuple[str, int], ...]
    reader: str
    unique: bool = False
    partial: Document | None = None
    expires: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(field for field, _ in self.keys)

    @property
    def name(self) -> str:
        """The name that MongoDB gives an index that is made without one."""
        return "_".join(f"{field}_{direction}" for field, direction in self.keys)


COMPRESSED: Final = {"storageEngine": {"wiredTiger": {"configString": "block_compressor=zstd"}}}
"""Options of collections that are made here: consecutive checkpoints are much alike, and zstd takes
a third off what MongoDB's default leaves of them (see the benchmark)."""

CHECKPOINT_KEY: Final = ("thread_id", "checkpoint_ns", "checkpoint_id")
WRITE_KEY: Final = (*CHECKPOINT_KEY, "task_id", "idx", "part")
BLOB_KEY: Final = ("thread_id", "checkpoint_ns", "key")

NEWEST_OF_THREAD: Final = Index(
    (("thread_id", 1), ("checkpoint_ns", 1), ("checkpoint_id", -1)),
    "get_tuple and list of one thread, newest first",
    unique=True,
)

NEWEST: Final = Index(
    (("checkpoint_id", -1), ("thread_id", 1), ("checkpoint_ns", 1)),
    "list(None): all threads, newest first; list_threads",
)

BEING_REMOVED: Final = Index(
    (("thread_id", 1), ("deleted_at", 1)),
    "list_threads: checkpoints that are being removed do not count",
    partial={"deleted_at": {"$exists": True}},
)

BY_RUN: Final = Index(
    (("run_id", 1),),
    "delete_for_runs",
    # The planner uses an index that is partial by $exists, not one by $type.
    partial={"run_id": {"$exists": True}},
)

SLOTS: Final = Index(
    tuple((field, 1) for field in WRITE_KEY),
    "pending writes of a checkpoint; one document per slot",
    unique=True,
)

VALUES: Final = Index(
    tuple((field, 1) for field in BLOB_KEY),
    "values of a checkpoint; one document per key",
    unique=True,
)

EXPIRY: Final = Index(
    (("expires_at", 1),),
    "MongoDB's TTL monitor",
    # What does not expire costs nothing, so every collection can have it.
    partial={"expires_at": {"$exists": True}},
    expires=True,
)

INDEXES: Final[Mapping[Name, tuple[Index, ...]]] = {
    Name.CHECKPOINTS: (NEWEST_OF_THREAD, NEWEST, BEING_REMOVED, BY_RUN, EXPIRY),
    Name.WRITES: (SLOTS, BY_RUN, EXPIRY),
    Name.BLOBS: (VALUES, EXPIRY),
}
"""What all migrations together come to."""

SHARD_KEY: Final = {"thread_id": 1}
"""Each thread on one shard: all unique indexes begin with it, and so do all commands of graphs."""

MAX_DOCUMENT: Final = 16 * 1024 * 1024
"""MongoDB's limit for one document, in bytes (MongoDB manual, "BSON document size")."""

MAX_PAYLOAD: Final = MAX_DOCUMENT - 256 * 1024
"""What payloads may take of a document: the rest is for field names, ids and lists."""

MAX_TRANSACTION: Final = 16 * 1024 * 1024
"""Above this many bytes of new blobs a put goes in sequence (oplog entries, cache pressure)."""

MAX_BATCH: Final = 8 * 1024 * 1024
"""Bytes of data that one insert carries where a sequence writes: the driver encodes a command as a
whole, beside the value and its payload that are in memory already."""

MAX_AGGREGATE: Final = 8 * 1024 * 1024
"""Checkpoints with more payload bytes are read by finds: an aggregate's row ends at 16 MB."""

SMALL_WRITE: Final = 32 * 1024
"""Pending writes up to this size are one document; larger ones leave their data to further parts,
so that an aggregate that reads part 0 of each stays far below its limit."""

WRITE_PART: Final = 8 * 1024 * 1024
"""Bytes of one further part of a large pending write."""

MANY_WRITES: Final = 100
"""At most so many pending writes come with the aggregate, for the same reason."""

INLINE_ALWAYS: Final = 256
"""Values up to this many bytes live in the checkpoint document."""

INLINE_BUDGET: Final = 16 * 1024
"""Bytes that the larger ones may take there, all together."""

TAIL: Final = 3584
"""What a value has added since it was stored as a blob may wait in the checkpoint documents up to
this many bytes, so that most puts of a growing value are one insert."""

INLINE_REPEATS: Final = 8
"""After so many checkpoints unchanged a larger value leaves for a blob."""

LEAST_QUANTUM: Final = timedelta(minutes=10)
"""Expiry dates are at least so far apart, so that a thread is moved now and then only."""

PAGE: Final = 100
"""Checkpoints read together by `list`."""

OFF_LOOP: Final = 256 * 1024
"""Above this many bytes, hashing, joining and loading are run off the event loop."""
