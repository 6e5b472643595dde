"""Storing checkpoints and pending writes.

The order of writes is the commit point: blobs first, the checkpoint document last. Whatever breaks
off in between leaves blobs that nobody names, never a checkpoint without its values. A transaction
is an optimisation of that sequence (one durable wait instead of two) and nothing more; wherever it
does not work out, the sequence does, because each of its commands can be repeated.

This file is pure: it imports only `codec`, `segments`, `ops`, `schema` and `errors`, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from pymongo.errors import BulkWriteError, DuplicateKeyError

from mongosaver import codec, identifiers
from mongosaver.cache import Known
from mongosaver.codec import Blob, Draft, Facts, Hole, Placement, Value
from mongosaver.identifiers import Address
from mongosaver.ops import (
    Compute,
    Find,
    Insert,
    Op,
    Plan,
    Replace,
    Together,
    Update,
    UpdateMany,
    Updates,
)
from mongosaver.plans import expiry, filters
from mongosaver.plans.context import Context, Ttl
from mongosaver.schema import (
    BLOB_KEY,
    CHECKPOINT_KEY,
    MAX_BATCH,
    MAX_TRANSACTION,
    OFF_LOOP,
    WRITE_KEY,
    Document,
    Name,
)
from mongosaver.segments import Stored

T = TypeVar("T")

_UNIQUE = {Name.CHECKPOINTS: CHECKPOINT_KEY, Name.WRITES: WRITE_KEY, Name.BLOBS: BLOB_KEY}


def put(
    ctx: Context,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> Plan[RunnableConfig]:
    """Store a checkpoint; checks and serializes at once, and returns the plan for the rest.

    Raises:
        UsageError: An identifier is none, or the checkpoint cannot be stored.
    """
    parent = identifiers.address(config)
    known = ctx.shared.cache.known(parent, ctx.now) if parent.checkpoint_id else None
    facts = known.facts if known else None if parent.checkpoint_id else {}
    drafted = codec.draft(ctx.serde, config, checkpoint, metadata, new_versions, facts)
    return _put(ctx, expiry.ttl_of(ctx, config), drafted, known)


def _put(ctx: Context, ttl: Ttl | None, draft: Draft, known: Known | None) -> Plan[RunnableConfig]:
    if known is None and draft.parent is not None:
        known = yield from _facts(ctx, draft.address.at(draft.parent))
    facts = known.facts if known else {}
    placement = codec.place(draft, facts)
    bases = yield from _bases(draft.address, facts, placement)
    values = ctx.shared.cache.values
    recalled = {base.key: value for base in bases.values() if (value := values.get(base.key))}

    def encode() -> codec.Encoded:
        return codec.encode(draft, placement, bases, ctx.now, recalled)

    encoded = (yield Compute(encode, draft.size)) if draft.size > OFF_LOOP else encode()
    dates = yield from expiry.before_put(ctx, ttl, draft.address.thread_id, known)
    encoded.document.update(dates.stamp(Name.CHECKPOINTS))
    for blob in encoded.blobs:
        blob.update(dates.stamp(Name.BLOBS))
    yield from _store(encoded)
    ctx.shared.cache.put(draft.address, encoded.facts, dates.checkpoint, written=True)
    for channel, payload in placement.blobs.items():
        entry = encoded.facts[channel]
        if isinstance(entry, Blob) and entry.stored is not None:
            values.put(Value(entry.stored, entry.tail, payload.data))
    return codec.config_of(draft.address)


def _facts(ctx: Context, at: Address) -> Plan[Known | None]:
    """How a checkpoint is stored, read without its values; None where it is gone."""
    fields = ("format", "thread_id", "type", "checkpoint", "inline", "blobs", "expires_at")
    found = yield Find(
        Name.CHECKPOINTS,
        {**filters.checkpoint(at), "deleted_at": None, **filters.alive(ctx.now)},
        dict.fromkeys(fields, 1),
        limit=1,
    )
    if not found:
        return None
    codec.check_format(found[0], "checkpoints collection")
    loaded = codec.load_checkpoint(ctx.serde, found[0])
    facts = codec.facts_of(found[0], loaded.get("channel_versions") or {}, {})
    return Known(facts, found[0].get("expires_at"))


def _bases(at: Address, facts: Facts, placement: Placement) -> Plan[dict[str, Stored]]:
    """How the parent's values of the channels that get a new blob are stored."""
    bases: dict[str, Stored] = {}
    unknown: dict[str, Blob] = {}
    for channel in placement.blobs:
        entry = facts.get(channel)
        if isinstance(entry, Blob):
            if entry.stored is None:
                unknown[channel] = entry
            else:
                bases[channel] = entry.stored
    if not unknown:
        return bases
    fields = {"format": 1, "key": 1, "type": 1, "chain": 1, "end": 1, "digest": 1}
    heads = yield Find(
        Name.BLOBS, filters.blobs(at, [entry.key for entry in unknown.values()]), fields
    )
    blobs = {head["key"]: head for head in heads}
    chains = {key for head in heads for key in head["chain"]} - blobs.keys()
    if chains:
        segments = yield Find(Name.BLOBS, filters.blobs(at, sorted(chains)), fields)
        blobs.update((segment["key"], segment) for segment in segments)
    for channel, entry in unknown.items():
        head = blobs.get(entry.key)
        if head is not None:
            try:
                bases[channel] = codec.stored_of(head, channel, blobs)
            except Hole:
                continue  # what is not there is no base; the value is stored whole
    return bases


def _store(encoded: codec.Encoded) -> Plan[None]:
    checkpoint = Insert(Name.CHECKPOINTS, (encoded.document,))
    if encoded.blobs:
        blobs = Insert(Name.BLOBS, encoded.blobs)
        if encoded.blob_bytes <= MAX_TRANSACTION:
            both = Together((blobs, checkpoint))
            if (yield from unless_duplicate(both, Name.BLOBS, Name.CHECKPOINTS)):
                return
        for batch in _batches(encoded.blobs):
            if (yield from unless_duplicate(Insert(Name.BLOBS, batch), Name.BLOBS)) is False:
                yield from _touch(encoded, batch)
    if (yield from unless_duplicate(checkpoint, Name.CHECKPOINTS)) is False:
        # It was put before: payload, metadata and values are replaced, its writes stay.
        key = {field: encoded.document[field] for field in CHECKPOINT_KEY}
        yield Replace(Name.CHECKPOINTS, key, encoded.document)
    if encoded.blobs and encoded.document["parent_checkpoint_id"] is None:
        yield from _restore(encoded)


def _batches(documents: Sequence[Document]) -> Iterator[Sequence[Document]]:
    """Documents in order, so many at a time that a command does not double the memory in use."""
    start = size = 0
    for index, document in enumerate(documents):
        size += len(document["data"])
        if size > MAX_BATCH and index > start:
            yield documents[start:index]
            start, size = index, len(document["data"])
    if start < len(documents):
        yield documents[start:]


def _restore(encoded: codec.Encoded) -> Plan[None]:
    """Look whether a removal of the thread came between the blobs and their checkpoint.

    A later checkpoint of a removed thread is known by its missing parent; a first one would be a
    hole that nothing explains. A removal that comes after this sees the checkpoint.
    """
    at = codec.address_of(encoded.document)
    keys = [blob["key"] for blob in encoded.blobs]
    found = yield Find(Name.BLOBS, filters.blobs(at, keys), {"_id": 0, "key": 1})
    if len(found) < len(keys):
        for batch in _batches(encoded.blobs):
            yield from unless_duplicate(Insert(Name.BLOBS, batch), Name.BLOBS)


def _touch(encoded: codec.Encoded, blobs: Sequence[Document]) -> Plan[None]:
    """Keep what was found already stored from being freed before the checkpoint names it.

    A sweep that deletes old checkpoints leaves alone what was touched a short time ago; what it
    freed just before is stored again. The same holds for what was about to expire.
    """
    now = encoded.document["created_at"]
    date = blobs[0].get("expires_at")
    where = filters.blobs(codec.address_of(encoded.document), [blob["key"] for blob in blobs])
    touch: Document = {"$set": {"touched_at": now}}
    if date is None:
        touch["$unset"] = {"expires_at": ""}
    else:
        early = {**where, "expires_at": {"$lt": date}}
        yield UpdateMany(Name.BLOBS, early, {"$set": {"expires_at": date}})
    touched = yield UpdateMany(Name.BLOBS, where, touch)
    if touched < len(blobs):
        again = Insert(Name.BLOBS, [{**blob, "touched_at": now} for blob in blobs])
        yield from unless_duplicate(again, Name.BLOBS)


def unless_duplicate(op: Op, *own: Name) -> Plan[Any]:
    """Result of an insert; False where all that went wrong is that something is there already."""
    try:
        return (yield op)
    except (DuplicateKeyError, BulkWriteError) as error:
        if not is_own_duplicate(error, *own):
            raise
        return False


def is_own_duplicate(error: DuplicateKeyError | BulkWriteError, *own: Name) -> bool:
    """Whether nothing happened but that documents with these keys exist in our own indexes.

    A duplicate on an index that somebody else made is a real failure, and so is a write concern
    that was not met.
    """
    details: Document = dict(error.details or {})
    failed = details.get("writeErrors", [details])
    if details.get("writeConcernErrors") or details.get("writeConcernError"):
        return False
    keys = [{"_id"}, *(set(_UNIQUE[name]) for name in own)]
    # Servers before 4.4 do not say which keys; the index's name holds them.
    names = ["_id_", *("_1_".join(_UNIQUE[name][:2]) for name in own)]
    return all(
        failure.get("code") == 11000
        and (
            set(failure["keyPattern"]) in keys
            if "keyPattern" in failure
            else any(name in failure.get("errmsg", "") for name in names)
        )
        for failure in failed
    )


def put_writes(
    ctx: Context,
    config: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
) -> Plan[None]:
    """Store pending writes; checks and serializes at once, and returns the plan for the rest."""
    draft = codec.draft_writes(ctx.serde, config, writes, task_id, task_path, ctx.now)
    dates = expiry.for_writes(ctx, expiry.ttl_of(ctx, config), identifiers.address(config))
    return _put_writes(draft, dates.stamp(Name.WRITES))


def _put_writes(draft: codec.DraftWrites, stamp: Document) -> Plan[None]:
    def encode() -> list[Document]:
        return codec.encode_writes(draft)

    documents = (yield Compute(encode, draft.size)) if draft.size > OFF_LOOP else encode()
    for document in documents if stamp else ():
        document.update(stamp)
    for batch in _batches(documents):
        if draft.first_stays:
            inserted = yield from unless_duplicate(Insert(Name.WRITES, batch), Name.WRITES)
            if inserted is False and stamp:
                fields = (*CHECKPOINT_KEY, "task_id")
                early = {"expires_at": {"$lt": stamp["expires_at"]}}
                where = {**{field: batch[0][field] for field in fields}, **early}
                yield UpdateMany(Name.WRITES, where, {"$set": stamp})
            continue
        updates = Updates(
            Name.WRITES,
            [
                Update(
                    codec.write_key(document),
                    _first_stays(document) if document["idx"] >= 0 else _last_wins(document),
                )
                for document in batch
            ],
        )
        # Two upserts of one slot at the same moment can collide; a second try finds it there.
        if (yield from unless_duplicate(updates, Name.WRITES)) is False:
            yield updates


def _first_stays(document: Document) -> Document:
    values = _values(document)
    date = values.pop("expires_at", None)
    return {"$setOnInsert": values, **({"$max": {"expires_at": date}} if date else {})}


def _last_wins(document: Document) -> Document:
    stale = {field: "" for field in ("parts", "run_id", "expires_at") if field not in document}
    return {"$set": _values(document), **({"$unset": stale} if stale else {})}


def _values(document: Document) -> Document:
    """What is not in the filter, from which an upsert takes the rest."""
    return {field: value for field, value in document.items() if field not in WRITE_KEY}
