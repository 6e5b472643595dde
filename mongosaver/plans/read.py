"""Reading checkpoints: one in one round trip, and lists in four per page.

Both ways of reading, one aggregate or several finds, give the same documents to the same code. A
checkpoint whose values are large is told by its own field `bytes` and read by finds, because a
row of an aggregate ends at 16 MB.

A read never returns a checkpoint without one of its values. Blobs are written before the document
that names them and deleted after it, so a missing one means that the checkpoint was deleted in
between (it is read once more), that its thread was deleted while a graph still ran on it (it is no
state, and is skipped), or that something else removed it (an error says what).

This file is pure: it imports only `codec`, `ops`, `schema`, `identifiers` and `errors`, no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from pymongo.errors import OperationFailure

from mongosaver import codec, identifiers
from mongosaver.cache import Expected
from mongosaver.codec import Decoded, Hole, Value
from mongosaver.errors import IncompleteCheckpoint
from mongosaver.identifiers import Address
from mongosaver.ops import Aggregate, Compute, Find, Plan
from mongosaver.plans import expiry, filters
from mongosaver.plans.context import Context
from mongosaver.schema import (
    MANY_WRITES,
    MAX_AGGREGATE,
    OFF_LOOP,
    PAGE,
    Document,
    Name,
)

logger = logging.getLogger("mongosaver")

REFUSALS: Final = frozenset({9, 40, 59, 115, 238, 303, 304, 28769, 40321, 40324, 51047})
"""Codes by which a server says that it does not know or allow a stage: FailedToParse,
ConflictingUpdateOperators (Cosmos DB), CommandNotFound, CommandNotSupported, NotImplemented, two of
DocumentDB's, `$lookup` into a sharded collection, and unknown fields or stages."""

_TOO_LARGE: Final = frozenset({4568, 10334})
"""Codes for a row above 16 MB: metadata of many megabytes beside many writes, say. This one
checkpoint is then read by finds."""

_ONLY_KEY: Final = {"_id": 0, "key": 1}

MANY_KEYS: Final = 200
"""Of so many blobs at most it is asked whether they are there, instead of fetching them."""

_NEWEST: Final = (("checkpoint_id", -1),)


# --- one checkpoint ----------------------------------------------------------------------------


def get_tuple(ctx: Context, config: RunnableConfig) -> Plan[CheckpointTuple | None]:
    """The checkpoint that a config names, or the latest of its namespace."""
    return _get_tuple(ctx, identifiers.address(config))


def _get_tuple(ctx: Context, at: Address) -> Plan[CheckpointTuple | None]:
    below: str | None = None
    while True:
        found = yield from _read(ctx, at, below)
        if found is None:
            return None
        try:
            decoded = yield from _decode(ctx, found)
        except Hole as hole:
            if (yield from _changed_meanwhile(found.checkpoint, hole)):
                continue
            if at.checkpoint_id is not None:
                return None
            below = found.checkpoint["checkpoint_id"]
            continue
        here, until = codec.address_of(found.checkpoint), found.checkpoint.get("expires_at")
        is_latest = at.checkpoint_id is None
        ctx.shared.cache.put(here, decoded.facts, until, is_latest=is_latest)
        for value in decoded.values:
            ctx.shared.cache.values.put(value)
        yield from expiry.after_read(ctx, at.thread_id, until)
        return decoded.row


@dataclass(frozen=True, slots=True)
class _Found:
    """Documents of one checkpoint: itself, its blobs by key, its writes, its parent's sends.

    `recalled` are those of its values that are in memory already, by the key of their head.
    """

    checkpoint: Document
    blobs: Mapping[bytes, Document]
    writes: Sequence[Document]
    sends: Sequence[Document]
    recalled: Mapping[bytes, Value] = field(default_factory=dict)


def _read(ctx: Context, at: Address, below: str | None) -> Plan[_Found | None]:
    where: Document = {**filters.readable(at), **filters.alive(ctx.now)}
    if at.checkpoint_id is not None:
        where["checkpoint_id"] = at.checkpoint_id
    elif below is not None:
        where["checkpoint_id"] = {"$lt": below}
    if not ctx.shared.read_by_finds:
        expected = None if below else _expected(ctx, at)
        try:
            rows = yield Aggregate(Name.CHECKPOINTS, pipeline(at, where, expected))
        except OperationFailure as error:
            if error.code in REFUSALS:
                ctx.shared.read_by_finds = True
            elif error.code not in _TOO_LARGE:
                raise
        else:
            return (yield from _complete(rows[0], expected)) if rows else None
    rows = yield Find(Name.CHECKPOINTS, where, sort=_NEWEST, limit=1)
    if not rows:
        return None
    codec.check_format(rows[0], "checkpoints collection")
    blobs = yield from _blobs(codec.address_of(rows[0]), codec.blob_keys(rows[0]), {})
    return (yield from _with_writes(rows[0], blobs, {}))


def _expected(ctx: Context, at: Address) -> Expected | None:
    """The values that a read will probably find in memory: none where all were inline.

    That is said of a thread only whose last checkpoint this saver has put itself. Where another
    one puts, threads that are read here grow at any time.
    """
    if ctx.shared.cache.is_inline(at):
        return Expected({}, [])
    expected = ctx.shared.cache.expected(at, ctx.now)
    return expected if expected is not None and 0 < len(expected.keys) <= MANY_KEYS else None


def pipeline(at: Address, where: Document, expected: Expected | None) -> list[Document]:
    """One checkpoint with the blobs it names, their chains and its pending writes.

    Of expected blobs it is only asked whether they are there. The index alone decides that: their
    bytes are neither read nor sent.

    Args:
        at: Thread and namespace.
        where: Conditions on the checkpoint.
        expected: The values that it will probably have, beside inline ones, and then no writes
            of its parent's either: a small thread is charged more for a stage than for its data.
            Where none are expected, blobs are not looked for: `_complete` reads what there is
            after all.
    """
    scope = {"thread_id": at.thread_id, "checkpoint_ns": at.checkpoint_ns}
    large = {"$gt": ["$bytes", MAX_AGGREGATE]}
    wanted: Any = "$blobs.k"
    own, there = "checkpoint_id", []
    fields: Document = {}
    if expected is None:
        early = {"$gt": ["$v", None]}
        both = ["$checkpoint_id", "$parent_checkpoint_id"]
        fields["writers"] = {"$cond": [early, both, "$checkpoint_id"]}
        own = "writers"
    elif expected.values:
        wanted = {"$setDifference": [wanted, list(expected.values)]}
        found = [{"$match": {**scope, "key": {"$in": expected.keys}}}, {"$project": _ONLY_KEY}]
        there = [{"$lookup": {"from": Name.BLOBS, "pipeline": found, "as": "there"}}]
    if expected is not None and not expected.values:
        return [*_one(at, where), _writes(at, own)]
    return [
        *_one(at, where),
        {"$set": {"keys": {"$cond": [large, [], wanted]}, **fields}},
        _lookup(Name.BLOBS, "keys", "key", [{"$match": scope}], "heads"),
        _lookup(Name.BLOBS, "heads.chain", "key", [{"$match": scope}], "segments"),
        *there,
        _writes(at, own),
    ]


def _writes(at: Address, own: str) -> Document:
    scope = {"thread_id": at.thread_id, "checkpoint_ns": at.checkpoint_ns}
    first: list[Document] = [{"$match": {**scope, "part": 0}}, {"$limit": MANY_WRITES}]
    return _lookup(Name.WRITES, own, "checkpoint_id", first, "writes")


def _one(at: Address, where: Document) -> list[Document]:
    newest: list[Document] = [{"$sort": {"checkpoint_id": -1}}, {"$limit": 1}]
    return [{"$match": where}, *([] if at.checkpoint_id else newest)]


def _lookup(
    collection: Name, local: str, foreign: str, pipeline: list[Document], name: str
) -> Document:
    return {
        "$lookup": {
            "from": collection,
            "localField": local,
            "foreignField": foreign,
            "pipeline": pipeline,
            "as": name,
        }
    }


def _complete(row: Document, expected: Expected | None) -> Plan[_Found]:
    """What an aggregate returned, and by finds what it left out."""
    codec.check_format(row, "checkpoints collection")
    blobs: dict[bytes, Document] = {
        blob["key"]: blob for blob in (*row.pop("segments", ()), *row.pop("heads", ()))
    }
    recalled = _recalled(row, expected) if expected else {}
    keys = [key for key in codec.blob_keys(row) if key not in recalled]
    if row["bytes"] > MAX_AGGREGATE or (expected and not blobs.keys() >= set(keys)):
        blobs = yield from _blobs(codec.address_of(row), keys, {})
    writes: list[Document] = row.pop("writes")
    early = row["parent_checkpoint_id"] and codec.is_early(row.get("v"))
    partial = len(writes) == MANY_WRITES or any("parts" in write for write in writes)
    if partial or (early and "writers" not in row):
        return (yield from _with_writes(row, blobs, recalled))
    own, sends = _by_checkpoint(row, writes)
    return _Found(row, blobs, own, sends, recalled)


def _recalled(row: Document, expected: Expected) -> dict[bytes, Value]:
    """Those of a checkpoint's values that are in memory and whose blobs are all there."""
    there = {blob["key"] for blob in row.pop("there", ())}
    return {
        key: value
        for entry in row["blobs"]
        if (value := expected.values.get(key := entry["k"]))
        and value.gives(codec.tail_of(entry))
        and all(segment.key in there for segment in value.stored.segments)
    }


def _with_writes(
    row: Document, blobs: Mapping[bytes, Document], recalled: Mapping[bytes, Value]
) -> Plan[_Found]:
    """The same with all pending writes, by a find."""
    at = codec.address_of(row)
    wanted = filters.checkpoint(at)
    if row["parent_checkpoint_id"] and codec.is_early(row.get("v")):
        wanted["checkpoint_id"] = {"$in": [at.checkpoint_id, row["parent_checkpoint_id"]]}
    own, sends = _by_checkpoint(row, (yield Find(Name.WRITES, wanted)))
    return _Found(row, blobs, own, sends, recalled)


def _by_checkpoint(
    row: Document, writes: Sequence[Document]
) -> tuple[list[Document], list[Document]]:
    """A checkpoint's own pending writes, and the sends among its parent's."""
    own = [write for write in writes if write["checkpoint_id"] == row["checkpoint_id"]]
    return own, codec.sends_among(writes, row["parent_checkpoint_id"])


def _blobs(
    at: Address, keys: Sequence[bytes], known: Mapping[bytes, Document]
) -> Plan[dict[bytes, Document]]:
    """Blobs by key: the heads named and their chains; what is known is not read again."""
    blobs = {key: known[key] for key in keys if key in known}
    missing = [key for key in dict.fromkeys(keys) if key not in blobs]
    if missing:
        for head in (yield Find(Name.BLOBS, filters.blobs(at, missing))):
            blobs[head["key"]] = head
    chains = dict.fromkeys(key for head in blobs.values() for key in head.get("chain", ()))
    blobs.update((key, known[key]) for key in chains if key in known)
    missing = [key for key in chains if key not in blobs]
    if missing:
        for segment in (yield Find(Name.BLOBS, filters.blobs(at, missing))):
            blobs[segment["key"]] = segment
    return blobs


def _decode(ctx: Context, found: _Found, metadata: dict[str, Any] | None = None) -> Plan[Decoded]:
    """LangGraph's objects, off the event loop where they are large.

    Rows of lists, whose metadata were loaded before, are not remembered.
    """

    def decode() -> Decoded:
        return codec.decode(
            ctx.serde,
            found.checkpoint,
            found.blobs,
            found.writes,
            found.sends,
            metadata=metadata,
            next_version=ctx.next_version,
            recalled=found.recalled,
            remember=metadata is None,
        )

    size = found.checkpoint["bytes"] + sum(len(write["data"]) for write in found.writes)
    if size <= OFF_LOOP:
        return decode()
    decoded: Decoded = yield Compute(decode, size)
    return decoded


def _changed_meanwhile(document: Document, hole: Hole) -> Plan[bool]:
    """Look again at a checkpoint with a hole.

    Returns:
        True where it is gone or was put again meanwhile, so that reading again makes sense; False
        where one of its ancestors is gone: its thread was deleted while a graph still ran on it.

    Raises:
        IncompleteCheckpoint: Neither: something else removed what it needs.
    """
    at = codec.address_of(document)
    again = yield Find(
        Name.CHECKPOINTS,
        {**filters.checkpoint(at), "deleted_at": None},
        {"blobs": 1, "created_at": 1},
        limit=1,
    )
    if not again:
        return True
    if (again[0]["blobs"], again[0]["created_at"]) != (document["blobs"], document["created_at"]):
        return True
    rows = yield Find(
        Name.CHECKPOINTS,
        {"thread_id": at.thread_id, "checkpoint_ns": at.checkpoint_ns},
        dict.fromkeys(("checkpoint_id", "parent_checkpoint_id", "parent_hidden", "deleted_at"), 1),
    )
    there = {row["checkpoint_id"]: row for row in rows}
    child, ancestor = document, document["parent_checkpoint_id"]
    seen = {at.checkpoint_id}
    while ancestor in there and ancestor not in seen:
        if there[ancestor].get("deleted_at") and not child.get("parent_hidden"):
            break  # it is being removed at this moment
        seen.add(ancestor)
        child = there[ancestor]
        ancestor = child.get("parent_checkpoint_id")
    if ancestor and ancestor not in seen:
        logger.warning(
            "checkpoint %r of thread %r is skipped: its ancestor %r and values were deleted while"
            " a graph was running on the thread",
            at.checkpoint_id,
            at.thread_id,
            ancestor,
        )
        return False
    raise IncompleteCheckpoint(
        at.thread_id, at.checkpoint_ns, str(at.checkpoint_id), hole.channel, hole.key
    )


# --- lists -------------------------------------------------------------------------------------


_Row = tuple[Document, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Query:
    """What is still to be listed; `page` turns one into rows and the next one.

    Attributes:
        where: Conditions on checkpoints, the same for each page.
        thread_id: The thread, or None for all threads.
        checkpoint_ns: The namespace, or None for all.
        filter: What metadata must equal, compared in Python.
        limit: Rows still wanted; None for all.
        after: Key of the last checkpoint seen: (thread, namespace, checkpoint id).
        more: Whether there may be checkpoints after that one.
        pending: Checkpoints that were found, with their metadata, and are still to be read whole:
            a page of large ones is read in several steps.
        known: Blobs of the rows read last, which the next ones mostly share.
    """

    where: Document
    thread_id: str | None
    checkpoint_ns: str | None
    filter: Mapping[str, Any]
    limit: int | None
    after: tuple[str, str, str] | None = None
    more: bool = True
    pending: Sequence[_Row] = ()
    known: Mapping[Address, Mapping[bytes, Document]] = field(default_factory=dict)


def query(
    config: RunnableConfig | None,
    filter: Mapping[str, Any] | None,
    before: RunnableConfig | None,
    limit: int | None,
) -> Query:
    """Check what `list` was given.

    Raises:
        UsageError: An identifier is none.
        ValueError: The limit is negative.
        TypeError: The filter is no mapping, or the limit no number.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
        raise TypeError(f"limit must be an int or None, got {type(limit).__name__}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative, got {limit}")
    if filter is not None and not isinstance(filter, Mapping):
        raise TypeError(f"filter must be a mapping, got {type(filter).__name__}")
    where: Document = {"deleted_at": None}
    thread_id = checkpoint_ns = None
    if config:
        thread_id = where["thread_id"] = identifiers.thread_of(config)
        checkpoint_ns = identifiers.namespace(config)
        if checkpoint_ns is not None:
            where["checkpoint_ns"] = checkpoint_ns
        checkpoint_id = identifiers.optional(config, "checkpoint_id")
        if checkpoint_id is not None:
            where["checkpoint_id"] = checkpoint_id
    conditions = codec.narrowing(filter or {})
    if before and (before_id := identifiers.optional(before, "checkpoint_id")):
        conditions.append({"checkpoint_id": {"$lt": before_id}})
    if conditions:
        where["$and"] = conditions
    return Query(where, thread_id, checkpoint_ns, dict(filter or {}), limit)


def page(ctx: Context, query: Query) -> Plan[tuple[list[CheckpointTuple], Query | None]]:
    """The next rows, and what is left after them (None: nothing)."""
    if query.limit == 0:
        return [], None
    pending, after, more = query.pending, query.after, query.more
    if not pending:
        wanted = PAGE if query.filter or query.limit is None else min(PAGE, query.limit)
        alive = replace(query, where={**query.where, **filters.alive(ctx.now)})
        documents = yield from _next_checkpoints(alive, wanted)
        pending = _matching(ctx, documents, query.filter)
        more = len(documents) == wanted
        if documents:
            last = codec.address_of(documents[-1])
            after = (last.thread_id, last.checkpoint_ns, str(last.checkpoint_id))
    group = _first_group(pending[: query.limit])
    known, rows = (yield from _group(ctx, group, query.known)) if group else (query.known, [])
    pending = pending[len(group) :]
    limit = None if query.limit is None else query.limit - len(rows)
    if limit == 0 or not (pending or more):
        return rows, None
    return rows, replace(query, limit=limit, after=after, more=more, pending=pending, known=known)


def _matching(ctx: Context, documents: Sequence[Document], filter: Mapping[str, Any]) -> list[_Row]:
    """Checkpoints that a filter matches, with their metadata."""
    rows = []
    for document in documents:
        codec.check_format(document, "checkpoints collection")
        metadata = codec.load_metadata(ctx.serde, document)
        if codec.matches(metadata, filter):
            rows.append((document, metadata))
    return rows


def _next_checkpoints(query: Query, wanted: int) -> Plan[list[Document]]:
    """The next checkpoints in the order of an index, from the last one's complete key."""
    if query.thread_id is None:
        newest = (("checkpoint_id", -1), ("thread_id", 1), ("checkpoint_ns", 1))
        where = query.where
        if query.after is not None:
            thread_id, checkpoint_ns, checkpoint_id = query.after
            # Copies of a thread repeat ids, so the rest of the key decides between equal ones.
            where = _also(
                where,
                {"checkpoint_id": {"$lte": checkpoint_id}},
                {
                    "$or": [
                        {"checkpoint_id": {"$lt": checkpoint_id}},
                        {"thread_id": {"$gt": thread_id}},
                        {"thread_id": thread_id, "checkpoint_ns": {"$gt": checkpoint_ns}},
                    ]
                },
            )
        documents: list[Document] = yield Find(Name.CHECKPOINTS, where, None, newest, wanted)
        return documents
    order = (("checkpoint_ns", 1), ("checkpoint_id", -1))
    if query.after is None:
        documents = yield Find(Name.CHECKPOINTS, query.where, None, order, wanted)
        return documents
    _, checkpoint_ns, checkpoint_id = query.after
    # Two finds, each a range of the index, rather than an $or that walks it from its start.
    rest = _also(
        query.where, {"checkpoint_ns": checkpoint_ns}, {"checkpoint_id": {"$lt": checkpoint_id}}
    )
    documents = yield Find(Name.CHECKPOINTS, rest, None, order, wanted)
    if query.checkpoint_ns is None and len(documents) < wanted:
        other = _also(query.where, {"checkpoint_ns": {"$gt": checkpoint_ns}})
        found = yield Find(Name.CHECKPOINTS, other, None, order, wanted - len(documents))
        documents = documents + found
    return documents


def _also(where: Document, *conditions: Document) -> Document:
    return {**where, "$and": [*where.get("$and", ()), *conditions]}


def _first_group(rows: Sequence[_Row]) -> Sequence[_Row]:
    """The first rows, as many as their payloads leave room for; at least one if there is any."""
    room = 4 * MAX_AGGREGATE
    for index, (document, _) in enumerate(rows):
        room -= document["bytes"]
        if room < 0:
            return rows[: max(index, 1)]
    return rows


def _group(
    ctx: Context, rows: Sequence[_Row], known: Mapping[Address, Mapping[bytes, Document]]
) -> Plan[tuple[dict[Address, dict[bytes, Document]], list[CheckpointTuple]]]:
    """Rows of one group, and the blobs that the next group may share with them."""
    scopes: dict[Address, list[Document]] = {}
    for document, _ in rows:
        scopes.setdefault(replace(codec.address_of(document), checkpoint_id=None), []).append(
            document
        )
    writes: dict[Address, list[Document]] = {}
    for write in (yield Find(Name.WRITES, _any_of(scopes, "checkpoint_id", _writers))):
        writes.setdefault(codec.address_of(write), []).append(write)
    blobs = yield from _blobs_of(scopes, known)
    tuples = []
    for document, metadata in rows:
        at = codec.address_of(document)
        parent = document["parent_checkpoint_id"]
        found = _Found(
            document,
            blobs[replace(at, checkpoint_id=None)],
            writes.get(at, []),
            codec.sends_among(writes.get(at.at(parent), []), parent)
            if parent and codec.is_early(document.get("v"))
            else [],
        )
        try:
            decoded = yield from _decode(ctx, found, metadata)
        except Hole as hole:
            if (yield from _changed_meanwhile(document, hole)):
                row = yield from _get_tuple(ctx, at)
                if row is not None:
                    tuples.append(row)
            continue
        tuples.append(decoded.row)
    return blobs, tuples


def _writers(documents: Sequence[Document]) -> list[Any]:
    """Checkpoints whose writes are read with these: they themselves, and parents with sends."""
    ids = dict.fromkeys(document["checkpoint_id"] for document in documents)
    parents = dict.fromkeys(
        document["parent_checkpoint_id"]
        for document in documents
        if document["parent_checkpoint_id"] and codec.is_early(document.get("v"))
    )
    return list(ids | parents)


def _keys(documents: Sequence[Document]) -> list[Any]:
    return list(dict.fromkeys(key for d in documents for key in codec.blob_keys(d)))


def _any_of(scopes: Mapping[Address, Any], field: str, values: Any) -> Document:
    """Any of the values of a field, each in the thread and namespace that it belongs to."""
    parts = [
        {
            "thread_id": at.thread_id,
            "checkpoint_ns": at.checkpoint_ns,
            field: {"$in": values(documents)},
        }
        for at, documents in scopes.items()
    ]
    return parts[0] if len(parts) == 1 else {"$or": parts}


def _blobs_of(
    scopes: Mapping[Address, list[Document]], known: Mapping[Address, Mapping[bytes, Document]]
) -> Plan[dict[Address, dict[bytes, Document]]]:
    """Blobs of several checkpoints: heads, then chains; each one crosses the network once."""
    blobs: dict[Address, dict[bytes, Document]] = {}
    wanted = {at: _keys(documents) for at, documents in scopes.items()}
    for step in ("heads", "chains"):
        missing: dict[Address, list[bytes]] = {}
        for at, keys in wanted.items():
            have, old = blobs.setdefault(at, {}), known.get(at, {})
            chains = [key for head in have.values() for key in head.get("chain", ())]
            for key in dict.fromkeys(keys if step == "heads" else chains):
                if key in old:
                    have[key] = old[key]
                elif key not in have:
                    missing.setdefault(at, []).append(key)
        if missing:
            for blob in (yield Find(Name.BLOBS, _any_of(missing, "key", list))):
                at = Address(blob["thread_id"], blob["checkpoint_ns"], None)
                blobs[at][blob["key"]] = blob
    return blobs
