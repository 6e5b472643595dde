"""Between LangGraph's objects and MongoDB's documents, and nothing else.

A checkpoint document holds the checkpoint's own payload without its channel values, a list
`inline` of the values that are small or change often, and a list `blobs` of where the others
are. What neither list names has no value. Each value is a typed payload of its own, byte for byte
what the serializer made of it, whichever way it is stored: nested in a larger payload it need not
read back the same (a `bytearray` comes back as `bytes`).

*Facts* say how one checkpoint's values are stored. A put needs its parent's: a channel that did
not change keeps its entry, one that changed may share bytes with its former value.

This file is pure: it imports nothing of mongosaver but `segments`, `schema`, `identifiers` and
`errors`, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde import types as serde_types
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from mongosaver import identifiers, segments
from mongosaver.errors import (
    ForeignDocument,
    FormatTooNew,
    IdentifierValueError,
    PayloadTooLarge,
)
from mongosaver.identifiers import Address
from mongosaver.schema import (
    FORMAT,
    INLINE_ALWAYS,
    INLINE_BUDGET,
    INLINE_REPEATS,
    MAX_PAYLOAD,
    SMALL_WRITE,
    TAIL,
    WRITE_KEY,
    WRITE_PART,
    Document,
)
from mongosaver.segments import Stored

TASKS: Final = "__pregel_tasks"
_Snapshot: Final = getattr(serde_types, "_DeltaSnapshot", ())
SENDS_VERSION: Final = 4
"""Checkpoints of an earlier version leave queued sends among their parent's writes."""
_ALWAYS_SEARCHABLE: Final = frozenset({"source", "step", "run_id"})
_SEARCH_VALUE: Final = 512
_SEARCH_BUDGET: Final = 8 * 1024
_ANY_KEY: Final = "*"
RECALLED: Final = 1024 * 1024
"""Values up to this many bytes may be kept in memory."""

Version = str | int | float | None


@dataclass(frozen=True, slots=True)
class Payload:
    """What the serializer made of one object: its type tag and its bytes."""

    type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Inline:
    """A value that lies in the checkpoint document, for `repeats` checkpoints unchanged."""

    version: Version
    payload: Payload
    repeats: int

    @property
    def size(self) -> int:
        return len(self.payload.data)


@dataclass(frozen=True, slots=True)
class Blob:
    """A value that lies in the blobs collection, maybe with a tail in the checkpoint document.

    Attributes:
        version: The channel's version.
        key: The head blob.
        size: Bytes of the whole value.
        stored: How the blobs hold it, where that is known.
        tail: The value's own header, and the bytes that follow those in the blobs.
        repeats: For how many checkpoints a tail has been repeated unchanged.
    """

    version: Version
    key: bytes
    size: int
    stored: Stored | None
    tail: tuple[bytes, bytes] | None = None
    repeats: int = 0

    @property
    def inline_size(self) -> int:
        """Bytes of it in the checkpoint document."""
        return len(self.tail[1]) if self.tail else 0

    @property
    def is_stale(self) -> bool:
        """Whether its tail has been repeated for long enough."""
        return self.repeats >= INLINE_REPEATS and self.inline_size > INLINE_ALWAYS


Facts = Mapping[str, Inline | Blob]


@dataclass(frozen=True, slots=True)
class Value:
    """One version of a value with its bytes at hand, which lie in blobs and maybe a tail.

    Attributes:
        stored: How the blobs hold it.
        tail: As in `Blob`.
        data: The payload.
    """

    stored: Stored
    tail: tuple[bytes, bytes] | None
    data: bytes

    def gives(self, tail: tuple[bytes, bytes] | None) -> bool:
        """Whether this is enough to make the version of the same blobs with that tail."""
        return tail is not None or self.tail is None

    def version(self, tail: tuple[bytes, bytes] | None) -> bytes:
        """The payload of that version."""
        if tail == self.tail:
            return self.data
        head, rest = tail or (b"", b"")
        _, body = segments.split(self.stored.type, self.data)
        return b"".join((head, body[: self.stored.segments[-1].end], rest))


class Hole(Exception):
    """Something that a document names was not among what was read."""

    def __init__(self, channel: str, key: bytes) -> None:
        self.channel, self.key = channel, key
        super().__init__(channel, key.hex())


# --- serializing -------------------------------------------------------------------------------


def dump(serde: SerializerProtocol, value: object) -> Payload:
    type_, data = serde.dumps_typed(value)
    return Payload(type_, data if type(data) is bytes else bytes(data))


def load(serde: SerializerProtocol, payload: Payload) -> Any:
    return serde.loads_typed((payload.type, payload.data))


def _named(error: Exception, what: str) -> None:
    """Say in the error which part the serializer refused; type and cause stay the caller's."""
    first, *rest = error.args or ("",)
    error.args = (f"{first} (in {what})", *rest)


def _name(channel: object) -> str:
    return identifiers.text(channel, "a channel's name", nul=True)


def _dump_value(serde: SerializerProtocol, channel: str, value: object) -> Payload:
    try:
        return dump(serde, value)
    except Exception as error:
        _named(error, f"channel {channel!r}")
        raise


def _dump_metadata(serde: SerializerProtocol, metadata: Mapping[str, Any]) -> Payload:
    try:
        return dump(serde, metadata)
    except Exception as error:
        for key, value in metadata.items():
            try:
                serde.dumps_typed({key: value})
            except Exception:  # noqa: BLE001 - whatever a serializer raises
                _named(error, f"metadata key {key!r}")
                break
        raise


def plain(serde: SerializerProtocol) -> bool:
    """Whether payloads are LangGraph's own plain ones, so that metadata is no secret in a field."""
    return getattr(type(serde), "dumps_typed", None) is JsonPlusSerializer.dumps_typed


# --- searching metadata ------------------------------------------------------------------------


def _is_text(value: object) -> bool:
    """Whether the value is a string that BSON can hold: one without lone surrogates."""
    return isinstance(value, str) and (
        value.isascii() or value == value.encode(errors="ignore").decode()
    )


def _is_path(key: object) -> bool:
    """Whether MongoDB takes the key as the name of one field, and nothing else."""
    return (
        isinstance(key, str)
        and _is_text(key)
        and bool(key)
        and "." not in key
        and "\0" not in key
        and not key.startswith("$")
    )


def _is_exact(value: object) -> bool:
    """Whether BSON holds the value exactly, in a few bytes."""
    if value is None or type(value) in (bool, float):
        return True
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is str and len(value) <= _SEARCH_VALUE and _is_text(value)


def searchable(metadata: Mapping[str, Any], *, everything: bool) -> tuple[Document, list[str]]:
    """Fields of the metadata for narrowing filters, and names of those that are left out.

    Args:
        metadata: The metadata as it will be stored.
        everything: False (payloads are encrypted, say) keeps to source, step and run id; whatever
            else there is must then be decided from the payload, which the name `*` tells.
    """
    search: Document = {}
    rest: list[str] = []
    budget = _SEARCH_BUDGET
    for key, value in metadata.items():
        if not everything and key not in _ALWAYS_SEARCHABLE:
            rest = [_ANY_KEY]
        elif _is_path(key) and _is_exact(value) and budget > 0:
            search[key] = value
            budget -= len(key) + (len(value) if isinstance(value, str) else 8)
        elif rest != [_ANY_KEY]:
            budget -= len(key)
            rest = [*rest, key] if budget > 0 and _is_text(key) else [_ANY_KEY]
    return search, rest


def narrowing(filter: Mapping[str, Any]) -> list[Document]:
    """Conditions that every checkpoint matches which the filter matches, and some others do."""
    conditions: list[Document] = []
    for key, value in filter.items():
        if not _is_path(key):
            continue
        wanted: list[Any]
        if value is None:
            wanted = [None]
        elif isinstance(value, str):
            if not _is_text(value):
                continue
            wanted = [str.__str__(value)]
        elif isinstance(value, (int, float)) and _is_exact(value) and value == value:
            # Python holds 1, 1.0 and True for equal; MongoDB knows this of numbers only.
            wanted = [value] if type(value) is not bool else [int(value)]
            if value in (0, 1):
                wanted.append(bool(value))
        else:
            continue
        conditions.append(
            {
                "$or": [
                    {f"search.{key}": {"$in": wanted}},
                    {"search_rest": {"$in": [key, _ANY_KEY]}},
                    # What something else wrote is found too, and refused when it is read.
                    {"format": {"$ne": FORMAT}},
                ]
            }
        )
    return conditions


def matches(metadata: Mapping[str, Any], filter: Mapping[str, Any]) -> bool:
    """Whether metadata matches a filter: the same comparison as InMemorySaver's."""
    return all(value == metadata.get(key) for key, value in filter.items())


# --- writing a checkpoint ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draft:
    """A put, serialized on the calling thread, before it is known how its parent is stored."""

    address: Address
    parent: str | None
    run_id: str | None
    v: Any
    versions: ChannelVersions
    changed: frozenset[str]
    checkpoint: Payload
    values: dict[str, Payload]
    snapshots: frozenset[str]
    metadata: Payload
    search: Document
    search_rest: list[str]

    @property
    def size(self) -> int:
        """Bytes of all payloads, to decide whether the event loop should be spared the work."""
        return (
            len(self.checkpoint.data)
            + len(self.metadata.data)
            + sum(len(payload.data) for payload in self.values.values())
        )


def _keeps(
    channel: str, entry: Inline | Blob, versions: ChannelVersions, changed: Collection[str]
) -> bool:
    """Whether a channel's value is the parent's.

    Versions tell: a copy of a checkpoint is put beside it, on its parent, with nothing declared
    new and with values that the parent does not have.
    """
    return channel not in changed and channel in versions and versions[channel] == entry.version


def draft(
    serde: SerializerProtocol,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
    parent_facts: Facts | None,
) -> Draft:
    """Check and serialize what a put was given.

    Args:
        serde: The saver's serializer of this moment.
        config: Names thread, namespace and parent.
        checkpoint: The checkpoint to store.
        metadata: Its metadata.
        new_versions: Channels that changed.
        parent_facts: How the parent is stored, where that is known; values that need not be
            serialized for it are left out. None: everything handed over is serialized.
    """
    at = identifiers.address(config)
    checkpoint_id = identifiers.text(checkpoint["id"], "checkpoint id")
    if not checkpoint_id:
        raise IdentifierValueError("the checkpoint's id is empty")
    versions = dict(checkpoint.get("channel_versions") or {})
    changed = frozenset(new_versions)
    kept = {
        channel
        for channel, entry in (parent_facts or {}).items()
        if _keeps(channel, entry, versions, changed)
        and not (isinstance(entry, Blob) and entry.is_stale)
    }
    handed = {
        _name(channel): value
        for channel, value in (checkpoint.get("channel_values") or {}).items()
        if channel not in kept
    }
    stored_metadata = get_serializable_checkpoint_metadata(config, metadata)
    search, rest = searchable(cast("Mapping[str, Any]", stored_metadata), everything=plain(serde))
    own = {key: value for key, value in checkpoint.items() if key != "channel_values"}
    drafted = Draft(
        address=at.at(checkpoint_id),
        parent=at.checkpoint_id,
        run_id=identifiers.run(cast("Mapping[str, Any]", stored_metadata).get("run_id")),
        v=checkpoint.get("v"),
        versions=versions,
        changed=changed,
        checkpoint=_dump_value(serde, "(the checkpoint itself)", own),
        values={channel: _dump_value(serde, channel, value) for channel, value in handed.items()},
        snapshots=frozenset(
            channel for channel, value in handed.items() if isinstance(value, _Snapshot)
        ),
        metadata=_dump_metadata(serde, cast("Mapping[str, Any]", stored_metadata)),
        search=search,
        search_rest=rest,
    )
    _check_size(drafted, 0)
    return drafted


def _check_size(draft: Draft, inline_bytes: int) -> None:
    """Refuse what one document cannot hold.

    Raises:
        PayloadTooLarge: The checkpoint's own document would pass MongoDB's limit.
    """
    metadata, checkpoint = len(draft.metadata.data), len(draft.checkpoint.data)
    if metadata + checkpoint + inline_bytes <= MAX_PAYLOAD:
        return
    what, size = (
        ("metadata", metadata)
        if metadata >= checkpoint
        else ("the checkpoint without its channel values", checkpoint)
    )
    raise PayloadTooLarge(
        what, size, MAX_PAYLOAD, "Keep large data in a channel: channel values have no limit."
    )


def is_early(v: object) -> bool:
    """Whether checkpoints of this version look for sends among their parent's writes."""
    return isinstance(v, int) and v < SENDS_VERSION


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each value of a put goes: into the document, where it is already, or a new blob.

    `whole` names those new blobs that take all of the value and leave no tail in the document.
    """

    inline: dict[str, Inline]
    kept: dict[str, Blob]
    blobs: dict[str, Payload]
    whole: frozenset[str]


def place(draft: Draft, parent: Facts) -> Placement:
    """Decide where each value goes.

    Small values live in the checkpoint document. Larger ones do while they change often, up to a
    budget: a young thread's put is then one insert. One that stays unchanged leaves for a blob,
    because each checkpoint would repeat it.
    """
    inline: dict[str, Inline] = {}
    kept: dict[str, Blob] = {}
    blobs: dict[str, Payload] = {}
    for channel, entry in parent.items():
        if not _keeps(channel, entry, draft.versions, draft.changed):
            continue
        if isinstance(entry, Inline):
            inline[channel] = Inline(entry.version, entry.payload, entry.repeats + 1)
        elif entry.is_stale and channel in draft.values:
            blobs[channel] = draft.values[channel]
        else:
            kept[channel] = replace(entry, repeats=entry.repeats + 1) if entry.tail else entry
    whole = frozenset(blobs)
    for channel, payload in draft.values.items():
        if channel in kept or channel in inline or channel in blobs:
            continue
        if channel in draft.snapshots or len(payload.data) > INLINE_BUDGET:
            blobs[channel] = payload
            continue
        former = parent.get(channel)
        same = isinstance(former, Inline) and former.payload == payload
        repeats = former.repeats + 1 if same and isinstance(former, Inline) else 0
        inline[channel] = Inline(draft.versions.get(channel), payload, repeats)
    larger = sorted(
        (entry.size, channel) for channel, entry in inline.items() if entry.size > INLINE_ALWAYS
    )
    total = sum(size for size, _ in larger)
    for size, channel in reversed(larger):
        if total > INLINE_BUDGET or inline[channel].repeats > INLINE_REPEATS:
            blobs[channel] = inline.pop(channel).payload
            total -= size
    return Placement(inline, kept, blobs, whole)


def _tail_fields(entry: Blob) -> Document:
    if entry.tail is None:
        return {}
    head, data = entry.tail
    return {"h": head, "d": data, **({"n": entry.repeats} if entry.repeats else {})}


@dataclass(frozen=True, slots=True)
class Encoded:
    """Documents of one put, and the facts that the next one will ask for."""

    document: Document
    blobs: list[Document]
    blob_bytes: int
    facts: Facts


def encode(
    draft: Draft,
    placement: Placement,
    bases: Mapping[str, Stored],
    now: datetime,
    recalled: Mapping[bytes, Value] | None = None,
) -> Encoded:
    """Documents of a put.

    Args:
        draft: What was serialized.
        placement: Where each value goes.
        bases: How the parent's value of a channel is stored, for channels that get a new blob.
        now: Written as `created_at`.
        recalled: Values with their bytes, by the key of their head, which need not be hashed.

    Raises:
        PayloadTooLarge: The checkpoint's own document would pass MongoDB's limit.
    """
    at = draft.address
    facts: dict[str, Inline | Blob] = {**placement.inline, **placement.kept}
    pieces: list[Document] = []
    blob_bytes = 0
    room = INLINE_BUDGET - sum(entry.inline_size for entry in placement.kept.values())
    for channel, payload in placement.blobs.items():
        version = draft.versions.get(channel)
        base = bases.get(channel)
        if base is not None and channel not in placement.whole:
            former = recalled.get(base.key) if recalled else None
            data = former.data if former else None
            tail = segments.tail(payload.type, payload.data, base, min(TAIL, room), data)
            if tail is not None:
                facts[channel] = Blob(version, base.key, len(payload.data), base, tail)
                room -= len(tail[1])
                continue
        new, stored = segments.plan(channel, version, payload.type, payload.data, base)
        facts[channel] = Blob(version, stored.key, len(payload.data), stored)
        for piece in new:
            blob_bytes += len(piece.data)
            pieces.append(
                {
                    "format": FORMAT,
                    "thread_id": at.thread_id,
                    "checkpoint_ns": at.checkpoint_ns,
                    "key": piece.key,
                    "channel": channel,
                    "version": version,
                    "type": payload.type,
                    "head": piece.head,
                    "chain": list(piece.chain),
                    "data": piece.data,
                    "end": piece.end,
                    "digest": piece.digest,
                    "created_at": now,
                }
            )
    inline_bytes = sum(
        entry.size if isinstance(entry, Inline) else entry.inline_size for entry in facts.values()
    )
    _check_size(draft, inline_bytes)
    fixed = len(draft.checkpoint.data) + len(draft.metadata.data) + inline_bytes
    document: Document = {
        "format": FORMAT,
        "thread_id": at.thread_id,
        "checkpoint_ns": at.checkpoint_ns,
        "checkpoint_id": at.checkpoint_id,
        "parent_checkpoint_id": draft.parent,
        **({"v": draft.v} if is_early(draft.v) else {}),
        **({} if draft.run_id is None else {"run_id": draft.run_id}),
        "type": draft.checkpoint.type,
        "checkpoint": draft.checkpoint.data,
        "inline": [
            {
                "c": channel,
                **({"n": entry.repeats} if entry.repeats else {}),
                "t": entry.payload.type,
                "d": entry.payload.data,
            }
            for channel, entry in placement.inline.items()
        ],
        "blobs": [
            {"c": channel, "k": entry.key, "size": entry.size, **_tail_fields(entry)}
            for channel, entry in facts.items()
            if isinstance(entry, Blob)
        ],
        "bytes": fixed + sum(e.size for e in facts.values() if isinstance(e, Blob)),
        "metadata_type": draft.metadata.type,
        "metadata": draft.metadata.data,
        "search": draft.search,
        **({"search_rest": draft.search_rest} if draft.search_rest else {}),
        "created_at": now,
    }
    return Encoded(document, pieces, blob_bytes, facts)


# --- pending writes ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DraftWrites:
    """What one `put_writes` was given, serialized on the calling thread.

    `slots` has a channel and its payload by position; `fields` is what all documents share.
    """

    fields: Document
    slots: dict[int, tuple[str, Payload]]

    @property
    def size(self) -> int:
        """Bytes of all payloads."""
        return sum(len(payload.data) for _, payload in self.slots.values())

    @property
    def first_stays(self) -> bool:
        """Whether all slots are ordinary ones: what is in the way is left alone."""
        return all(idx >= 0 for idx in self.slots)


def _parts(payload: Payload) -> list[tuple[int, bytes]]:
    """A payload's parts with their numbers: 0, and for further ones a number made from the content.

    So two payloads that are written to one slot at a time do not mix.
    """
    data = payload.data
    if len(data) <= SMALL_WRITE:
        return [(0, data)]
    digest = blake2b(data, digest_size=16).digest()
    rest = [
        (part_number(digest, at), data[at : at + WRITE_PART])
        for at in range(0, len(data), WRITE_PART)
    ]
    return [(0, b""), *rest]


def part_number(digest: bytes, at: int) -> int:
    """The number of a further part: made from the whole content's digest and where it begins."""
    number = blake2b(digest + at.to_bytes(8, "big"), digest_size=8).digest()
    return 1 + int.from_bytes(number, "big") % 2**62


def draft_writes(
    serde: SerializerProtocol,
    config: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    now: datetime,
) -> DraftWrites:
    """Check and serialize pending writes.

    The last one wins where a call names a special slot twice.
    """
    at = identifiers.address(config)
    if at.checkpoint_id is None:
        raise IdentifierValueError(
            'put_writes needs the "checkpoint_id" of the checkpoint that the writes belong to'
        )
    run_id = identifiers.run(
        (config.get("configurable") or {}).get("run_id")
        or (config.get("metadata") or {}).get("run_id")
    )
    fields: Document = {
        "format": FORMAT,
        "thread_id": at.thread_id,
        "checkpoint_ns": at.checkpoint_ns,
        "checkpoint_id": at.checkpoint_id,
        "task_id": identifiers.text(task_id, "task_id"),
        "task_path": identifiers.text(task_path, "task_path", nul=True),
        **({} if run_id is None else {"run_id": run_id}),
        "created_at": now,
    }
    slots = {
        WRITES_IDX_MAP.get(channel, position): (
            _name(channel),
            _dump_value(serde, channel, value),
        )
        for position, (channel, value) in enumerate(writes)
    }
    return DraftWrites(fields, slots)


def encode_writes(draft: DraftWrites) -> list[Document]:
    """Documents of pending writes, in the order in which they have to be stored."""
    documents: list[Document] = []
    for idx, (channel, payload) in draft.slots.items():
        parts = _parts(payload)
        documents += (
            {
                **draft.fields,
                "idx": idx,
                "part": number,
                **({"parts": [n for n, _ in parts[1:]]} if number == 0 and parts[1:] else {}),
                "channel": channel,
                "type": payload.type,
                "data": data,
            }
            for number, data in parts
        )
    # A slot counts as written when its part 0 is there, so that one comes last.
    documents.sort(key=lambda document: document["part"] == 0)
    return documents


def write_key(document: Document) -> Document:
    """The slot and part of a pending write, as a filter."""
    return {field: document[field] for field in WRITE_KEY}


# --- reading -----------------------------------------------------------------------------------


def check_format(document: Document, collection: str) -> None:
    """Refuse what this version did not define.

    Raises:
        ForeignDocument: The document has no format number.
        FormatTooNew: Its format is a later one.
    """
    found = document.get("format")
    if found == FORMAT and type(found) is int:
        return
    if type(found) is int and found > FORMAT:
        raise FormatTooNew(
            f"{collection} of thread {document.get('thread_id')!r}: a document of storage format"
            f" {found}; this mongosaver reads format {FORMAT}. Install the version that wrote it."
        )
    official = {"checkpoint", "metadata", "type", "thread_id"} <= document.keys()
    whose = (
        "It looks like one of langgraph-checkpoint-mongodb (MongoDBSaver)."
        if official
        else f"Its fields: {', '.join(sorted(document)[:12])}."
    )
    raise ForeignDocument(
        f"{collection} holds a document that mongosaver did not write"
        f" (thread {document.get('thread_id')!r}, no storage format). {whose}"
        " Give mongosaver a collection of its own; both savers can live in one database."
    )


def config_of(at: Address) -> RunnableConfig:
    """The config that names one checkpoint, as LangGraph hands it around."""
    return {
        "configurable": {
            "thread_id": at.thread_id,
            "checkpoint_ns": at.checkpoint_ns,
            "checkpoint_id": at.checkpoint_id,
        }
    }


def address_of(document: Document) -> Address:
    return Address(document["thread_id"], document["checkpoint_ns"], document["checkpoint_id"])


def blob_keys(document: Document) -> list[bytes]:
    """Keys of the head blobs that a checkpoint names."""
    return [entry["k"] for entry in document["blobs"]]


def load_metadata(serde: SerializerProtocol, document: Document) -> dict[str, Any]:
    payload = Payload(document["metadata_type"], document["metadata"])
    return cast("dict[str, Any]", load(serde, payload))


def load_checkpoint(serde: SerializerProtocol, document: Document) -> dict[str, Any]:
    """A checkpoint's payload, still without channel values."""
    payload = Payload(document["type"], document["checkpoint"])
    return cast("dict[str, Any]", load(serde, payload))


def facts_of(document: Document, versions: ChannelVersions, stored: Mapping[str, Stored]) -> Facts:
    """How a checkpoint that was read is stored; `stored` has the blobs whose segments are known."""
    facts: dict[str, Inline | Blob] = {
        entry["c"]: Inline(
            versions.get(entry["c"]), Payload(entry["t"], entry["d"]), entry.get("n", 0)
        )
        for entry in document["inline"]
    }
    for entry in document["blobs"]:
        channel = entry["c"]
        facts[channel] = Blob(
            versions.get(channel),
            entry["k"],
            entry["size"],
            stored.get(channel),
            tail_of(entry),
            entry.get("n", 0),
        )
    return facts


def tail_of(entry: Document) -> tuple[bytes, bytes] | None:
    """The tail of a value that a checkpoint names as a blob."""
    return (entry["h"], entry["d"]) if "d" in entry else None


def stored_of(head: Document, channel: str, blobs: Mapping[bytes, Document]) -> Stored:
    """How a value lies in the database, from its head and the segments before.

    Raises:
        Hole: A segment is missing.
    """
    chain = []
    for key in head["chain"]:
        segment = blobs.get(key)
        if segment is None:
            raise Hole(channel, key)
        chain.append((segment["key"], segment["end"], segment["digest"]))
    return segments.stored(head["type"], chain, (head["key"], head["end"], head["digest"]))


def value_of(entry: Document, blobs: Mapping[bytes, Document]) -> Payload:
    """The payload of a value that a checkpoint names as a blob.

    Raises:
        Hole: The head or a segment of its chain is missing.
    """
    head = blobs.get(entry["k"])
    if head is None:
        raise Hole(entry["c"], entry["k"])
    check_format(head, "blobs collection")
    parts = []
    for key in head["chain"]:
        segment = blobs.get(key)
        if segment is None:
            raise Hole(entry["c"], key)
        parts.append(segment["data"])
    parts.append(head["data"])
    if "d" in entry:
        parts.append(entry["d"])
    data = segments.join(entry["h"] if "d" in entry else head["head"], parts)
    if len(data) != entry["size"]:
        raise Hole(entry["c"], entry["k"])
    return Payload(head["type"], data)


def sends_among(writes: Iterable[Document], parent: str | None) -> list[Document]:
    """The sends that a parent left queued, among documents of pending writes."""
    return [
        write for write in writes if write["checkpoint_id"] == parent and write["channel"] == TASKS
    ]


def load_writes(serde: SerializerProtocol, documents: Iterable[Document]) -> list[PendingWrite]:
    """Pending writes of one checkpoint in `writes_sort_key` order.

    Raises:
        Hole: A part of a large write is missing.
    """
    slots: dict[tuple[str, int], dict[int, Document]] = {}
    for document in documents:
        check_format(document, "writes collection")
        slots.setdefault((document["task_id"], document["idx"]), {})[document["part"]] = document
    rows = []
    for (task_id, idx), parts in slots.items():
        first = parts.get(0)
        if first is None:
            continue  # still being written
        numbers = first.get("parts", ())
        missing = [number for number in numbers if number not in parts]
        if missing:
            raise Hole(first["channel"], missing[0].to_bytes(8, "big"))
        data = b"".join([first["data"], *(parts[n]["data"] for n in numbers)])
        payload = Payload(first["type"], data)
        rows.append(((first["task_path"], task_id, idx), first["channel"], payload))
    rows.sort(key=lambda row: row[0])
    return [(key[1], channel, load(serde, payload)) for key, channel, payload in rows]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A checkpoint as LangGraph takes it, how it is stored, and its values that are in blobs."""

    row: CheckpointTuple
    facts: Facts
    values: list[Value]


def decode(
    serde: SerializerProtocol,
    document: Document,
    blobs: Mapping[bytes, Document],
    writes: Iterable[Document],
    sends: Iterable[Document] = (),
    *,
    metadata: dict[str, Any] | None = None,
    next_version: Callable[[Any, None], Any] | None = None,
    recalled: Mapping[bytes, Value] | None = None,
    remember: bool = True,
) -> Decoded:
    """A checkpoint tuple from documents.

    Args:
        serde: The saver's serializer.
        document: The checkpoint document.
        blobs: Blob documents by key: its heads and their chains, and maybe others.
        writes: Documents of its pending writes, in any order.
        sends: Documents of the sends that its parent left queued, for an early checkpoint, which
            gets them as a channel value.
        metadata: Its metadata, where that was loaded before.
        next_version: Makes that channel's version where the checkpoint has no versions.
        recalled: Values that need no blobs, by the key of their head.
        remember: Whether its facts and values are wanted beside the row.

    Raises:
        Hole: A blob or a part of a write is missing.
    """
    loaded = load_checkpoint(serde, document)
    values: dict[str, Any] = {
        entry["c"]: load(serde, Payload(entry["t"], entry["d"])) for entry in document["inline"]
    }
    stored: dict[str, Stored] = {}
    found: list[Value] = []
    for entry in document["blobs"]:
        channel, key, tail = entry["c"], entry["k"], tail_of(entry)
        known = recalled.get(key) if recalled else None
        if known is None:
            payload = value_of(entry, blobs)
        else:
            payload = Payload(known.stored.type, known.version(tail))
            if len(payload.data) != entry["size"]:
                raise Hole(channel, key)
        values[channel] = load(serde, payload)
        if remember:
            stored[channel] = known.stored if known else stored_of(blobs[key], channel, blobs)
            if len(payload.data) <= RECALLED:
                found.append(Value(stored[channel], tail, payload.data))
    versions: ChannelVersions = loaded.get("channel_versions") or {}
    facts = facts_of(document, dict(versions), stored) if remember else {}
    queued = [write[2] for write in load_writes(serde, sends)]
    if queued:
        values[TASKS] = queued
        versions[TASKS] = (
            max(versions.values()) if versions or next_version is None else next_version(None, None)
        )
        loaded["channel_versions"] = versions
    at = address_of(document)
    parent = None if document.get("parent_hidden") else document["parent_checkpoint_id"]
    row = CheckpointTuple(
        config=config_of(at),
        checkpoint=cast("Checkpoint", {**loaded, "channel_values": values}),
        metadata=cast(
            "CheckpointMetadata", load_metadata(serde, document) if metadata is None else metadata
        ),
        parent_config=config_of(at.at(parent)) if parent else None,
        pending_writes=load_writes(serde, writes),
    )
    return Decoded(row, facts, found)
