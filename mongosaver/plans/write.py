"""Storing checkpoints and pending writes.

The order of writes is the commit point: blobs first, the checkpoint document last. Whatever breaks
off in between leaves blobs that nobody names, never a checkpoint without its values. A transaction
is an optimisation of that sequence (one durable wait instead of two) and nothing more; wherever it
does not work out, the sequence does, because each of its commands can be repeated.

This file is pure: it imports only `codec`, `segments`, `ops`, `schema` and `errors`, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from pymongo.errors import BulkWriteError, DuplicateKeyError

from mongosaver import codec, identifiers
from mongosaver.codec import Blob, Draft, Facts, Hole, Placement
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
    Updates,
)
from mongosaver.plans import filters
from mongosaver.plans.context import Context
from mongosaver.schema import (
    BLOB_KEY,
    CHECKPOINT_KEY,
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
    facts = ctx.shared.cache.get(parent) if parent.checkpoint_id else {}
    drafted = codec.draft(ctx.serde, config, checkpoint, metadata, new_versions, facts)
    return _put(ctx, drafted, facts)


def _put(ctx: Context, draft: Draft, facts: Facts | None) -> Plan[RunnableConfig]:
    if facts is None:
        assert draft.parent is not None
        facts = yield from _facts(ctx, draft.address.at(draft.parent))
    placement = codec.place(draft, facts)
    bases = yield from _bases(draft.address, facts, placement)

    def encode() -> codec.Encoded:
        return codec.encode(draft, placement, bases, ctx.now)

    encoded = (yield Compute(encode, draft.size)) if draft.size > OFF_LOOP else encode()
    yield from _store(encoded)
    ctx.shared.cache.put(draft.address, encoded.facts)
    return codec.config_of(draft.address)


def _facts(ctx: Context, at: Address) -> Plan[Facts]:
    """How a checkpoint is stored, read without its values; nothing where it is gone."""
    found = yield Find(
        Name.CHECKPOINTS,
        filters.checkpoint(at),
        {"format": 1, "thread_id": 1, "type": 1, "checkpoint": 1, "inline": 1, "blobs": 1},
        limit=1,
    )
    if not found:
        return {}
    codec.check_format(found[0], "checkpoints collection")
    loaded = codec.load_checkpoint(ctx.serde, found[0])
    return codec.facts_of(found[0], loaded.get("channel_versions") or {}, {})


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
            if (yield from _unless_duplicate(both, Name.BLOBS, Name.CHECKPOINTS)):
                return
        yield from _unless_duplicate(blobs, Name.BLOBS)
    if (yield from _unless_duplicate(checkpoint, Name.CHECKPOINTS)) is False:
        # It was put before: payload, metadata and values are replaced, its writes stay.
        key = {field: encoded.document[field] for field in CHECKPOINT_KEY}
        yield Replace(Name.CHECKPOINTS, key, encoded.document)


def _unless_duplicate(op: Op, *own: Name) -> Plan[Any]:
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
    encoded = codec.encode_writes(ctx.serde, config, writes, task_id, task_path, ctx.now)
    return _put_writes(encoded)


def _put_writes(encoded: codec.EncodedWrites) -> Plan[None]:
    if not encoded.documents:
        return
    if encoded.first_stays:
        yield from _unless_duplicate(Insert(Name.WRITES, encoded.documents), Name.WRITES)
        return
    updates = Updates(
        Name.WRITES,
        [
            Update(
                codec.write_key(document),
                _first_stays(document) if document["idx"] >= 0 else _last_wins(document),
            )
            for document in encoded.documents
        ],
    )
    # Two upserts of one slot at the same moment can collide; the second try finds it there.
    if (yield from _unless_duplicate(updates, Name.WRITES)) is False:
        yield updates


def _first_stays(document: Document) -> Document:
    return {"$setOnInsert": _values(document)}


def _last_wins(document: Document) -> Document:
    stale = {field: "" for field in ("parts", "run_id") if field not in document}
    return {"$set": _values(document), **({"$unset": stale} if stale else {})}


def _values(document: Document) -> Document:
    """What is not in the filter, from which an upsert takes the rest."""
    return {field: value for field, value in document.items() if field not in WRITE_KEY}
