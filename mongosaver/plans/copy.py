"""Copying a thread, on the server.

Blobs are copied first, then pending writes, then the checkpoints: at each moment, what a reader
of the copy finds is complete. The checkpoints go in ascending order, the root graph's last of all.
Which ones is read before the first blob, so that a run which appends meanwhile does not get a
checkpoint into the copy whose blobs are not there.

A copy that broke off is completed by repeating the call. It is recognised by its checkpoints: all
carry this source, and the source's newest is missing. What it has copied already stays and is
*touched* (`touched_at`), so that nobody takes it for something that was left over. Any other
thread with checkpoints is nobody's place for a copy. Keys of blobs are addresses of their contents
and stay as they are.

A copy does not belong to its source's runs (`run_id` is left out, the metadata keep it), so
deleting those does not empty it. Its documents have their own `created_at`, and its checkpoints say
where they come from in `copied_from`.

Servers that lack `$merge`, or do not let it write to the collection it reads, get pages of
documents read and inserted, in the same order.

This file is pure: it imports only `identifiers`, `errors`, `ops`, `schema` and `write`, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pymongo.errors import OperationFailure

from mongosaver import codec, identifiers
from mongosaver.errors import ThreadExists
from mongosaver.ops import Find, Insert, Merge, Plan, UpdateMany
from mongosaver.plans import expiry, filters
from mongosaver.plans.context import Context
from mongosaver.plans.write import unless_duplicate
from mongosaver.schema import BLOB_KEY, CHECKPOINT_KEY, WRITE_KEY, Document, Name

_REFUSALS: Final = frozenset({9, 40, 59, 115, 238, 303, 304, 16436, 40324, 51188, 51190})
"""Codes by which a server says that it does not know or allow `$merge`: FailedToParse,
ConflictingUpdateOperators (Cosmos DB), CommandNotFound, CommandNotSupported, NotImplemented, two of
DocumentDB's, two for unknown stages, one for the same collection (before 4.4), and one for a shard
key that is not among the fields."""

_STEP: Final = 500
_BYTES: Final = 8 * 1024 * 1024
_SMALLEST: Final = 4

_PARTS: Final = (
    (Name.BLOBS, BLOB_KEY, {"checkpoint_ns": 1, "key": 1}),
    (Name.WRITES, WRITE_KEY, dict.fromkeys(WRITE_KEY[1:], 1)),
    # Backwards through the index: the root graph's namespace, the empty one, is the last.
    (Name.CHECKPOINTS, CHECKPOINT_KEY, {"checkpoint_ns": -1, "checkpoint_id": 1}),
)
_HINTS: Final = {
    Name.BLOBS: dict.fromkeys(BLOB_KEY, 1),
    Name.WRITES: dict.fromkeys(WRITE_KEY, 1),
    Name.CHECKPOINTS: {"thread_id": 1, "checkpoint_ns": 1, "checkpoint_id": -1},
}
_LEFT_OUT: Final = ("_id", "run_id", "touched_at", "expires_at")


def copy_thread(ctx: Context, source_thread_id: object, target_thread_id: object) -> Plan[None]:
    """Copy everything of one thread to a new one; an unknown source is no error.

    Raises:
        IdentifierTypeError: An id is no text.
        ThreadExists: The target is the source, or has checkpoints of its own.
    """
    source = identifiers.thread(source_thread_id)
    target = identifiers.thread(target_thread_id)
    if source == target:
        raise ThreadExists(f"thread {source!r} cannot be copied to itself")
    return _copy_thread(ctx, source, target)


def _copy_thread(ctx: Context, source: str, target: str) -> Plan[None]:
    order = (("checkpoint_ns", 1), ("checkpoint_id", -1))
    fields = {"format": 1, "thread_id": 1, "checkpoint_ns": 1, "checkpoint_id": 1}
    # What has expired may have lost its values already; a fresh expiry must not revive it.
    alive: Document = {"thread_id": source, **filters.alive(ctx.now)}
    newest = yield Find(Name.CHECKPOINTS, alive, fields, order, 1)
    if not newest:
        return
    codec.check_format(newest[0], "checkpoints collection")
    yield from _check_target(source, target, newest[0])
    rows = yield Find(Name.CHECKPOINTS, alive, {"_id": 1})
    oids = [row["_id"] for row in rows]
    by_server = not ctx.shared.read_by_finds
    for name, key, steps in _PARTS:
        where: Document = {"thread_id": source}
        if name is Name.CHECKPOINTS:
            where["_id"] = {"$in": oids}
        own: Document = {"thread_id": target, "created_at": ctx.now}
        own.update(expiry.fresh(ctx, ctx.ttl).stamp(name))
        if name is Name.CHECKPOINTS:
            own["copied_from"] = source
        if by_server:
            by_server = yield from _by_server(name, where, key, steps, own)
        if not by_server:
            yield from _by_pages(name, where, key, steps, own)


def _check_target(source: str, target: str, newest: Document) -> Plan[None]:
    """Refuse a thread that is no half-done copy."""
    complete = {field: newest[field] for field in ("checkpoint_ns", "checkpoint_id")}
    where = {"thread_id": target, "$or": [{"copied_from": {"$ne": source}}, complete]}
    fields = {"_id": 0, "copied_from": 1}
    for row in (yield Find(Name.CHECKPOINTS, where, fields, limit=1)):
        what = "is a copy of it already" if row.get("copied_from") == source else "exists"
        raise ThreadExists(
            f"thread {source!r} cannot be copied to thread {target!r}, which {what}. Copy it to"
            " another thread id, or delete the target first."
        )


def _by_server(
    name: Name, where: Document, key: tuple[str, ...], steps: Document, own: Document
) -> Plan[bool]:
    """Copy on the server; False where it cannot."""
    literal = {field: {"$literal": value} for field, value in own.items()}
    pipeline: list[Document] = [
        {"$match": where},
        {"$sort": {"thread_id": next(iter(steps.values())), **steps}},
        {"$project": dict.fromkeys(_LEFT_OUT, 0)},
        {"$addFields": literal},
    ]
    try:
        yield Merge(name, pipeline, key, _HINTS[name])
    except OperationFailure as error:
        if error.code not in _REFUSALS:
            raise
        return False
    return True


def _by_pages(
    name: Name, where: Document, key: tuple[str, ...], steps: Document, own: Document
) -> Plan[None]:
    """Copy through this process, in pages of a few megabytes."""
    order = tuple(steps.items())
    limit = _SMALLEST
    last: Document | None = None
    while True:
        rows: list[Document] = []
        for after in _after(last, order):
            if len(rows) < limit:
                rows += yield Find(name, {**where, **after}, None, order, limit - len(rows))
        if rows:
            yield from _insert(name, key, [_copied(row, own) for row in rows])
        if len(rows) < limit:
            return
        last = rows[-1]
        size = sum(_size(row) for row in rows)
        limit = min(_STEP, max(_SMALLEST, len(rows) * _BYTES // size))


def _after(last: Document | None, order: Sequence[tuple[str, int]]) -> list[Document]:
    """Ranges of the index that follow a document, nearest first."""
    if last is None:
        return [{}]
    ranges = []
    for at in range(len(order) - 1, -1, -1):
        field, direction = order[at]
        equal = {name: last[name] for name, _ in order[:at]}
        ranges.append({**equal, field: {"$gt" if direction > 0 else "$lt": last[field]}})
    return ranges


def _size(row: Document) -> int:
    """About how many bytes a document takes: its binary fields, and something for the rest."""
    size = 256 + sum(len(value) for value in row.values() if isinstance(value, bytes))
    entries = (*row.get("inline", ()), *row.get("blobs", ()))
    return size + sum(len(entry.get("d", b"")) for entry in entries)


def _copied(row: Document, own: Document) -> Document:
    return {**{field: value for field, value in row.items() if field not in _LEFT_OUT}, **own}


def _insert(name: Name, key: tuple[str, ...], documents: Sequence[Document]) -> Plan[None]:
    if (yield from unless_duplicate(Insert(name, documents), name)) is False:
        # As `Merge` does: what an earlier copy has left is in use again, and must not be taken for
        # something left over. What was taken for that just before is stored again.
        found = [{field: document[field] for field in key} for document in documents]
        where = {"thread_id": found[0]["thread_id"], "$or": found}
        touch = {"$set": {"touched_at": documents[0]["created_at"]}}
        if (yield UpdateMany(name, where, touch)) < len(documents):
            yield from unless_duplicate(Insert(name, documents), name)
