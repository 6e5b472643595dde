"""Looking whether everything that is stored is whole, and counting what nobody needs.

A thread is read once, in pages: its checkpoints, the blobs that they name, its pending writes. Of
a value's segments the digests are computed as they were when it was written, each from where the
one before it ends; segments that versions share are read once. A blob's key is the address of its
content, so a right key and a right digest prove every byte. What lies in a checkpoint's own
document has no digest: its size must be right, and it must load.

Graphs may run meanwhile. A put may be between its blobs and its checkpoint, a thread may be deleted
while it is looked at. So whatever looks wrong is looked at once more, from the start and with
nothing remembered, before it is reported; and what looks needless is counted only once it is older
than a put can take.

*Findings* are what a reader would stumble over. Everything else is counted only: what
was left behind where something broke off (`gc` removes it), and what is no state because its
thread was deleted while a graph ran on it.

This file is pure: it imports only `codec`, `segments`, `identifiers`, `ops`, `schema` and other
plans, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Final, TypeVar

from mongosaver import codec, identifiers, segments
from mongosaver.errors import StateError
from mongosaver.ops import Aggregate, Compute, Find, Plan, Sleep
from mongosaver.plans import filters
from mongosaver.plans.context import Context
from mongosaver.plans.runs import several
from mongosaver.plans.sweep import MARGIN
from mongosaver.plans.threads import WINDOW
from mongosaver.schema import CHECKPOINT_KEY, OFF_LOOP, WRITE_KEY, Document, Name
from mongosaver.segments import KEY_BYTES, _version_field

# The one place beside `segments` where keys are made: to see whether they are right.
from mongosaver.segments import _key as _address

T = TypeVar("T")

BATCH: Final = 1000
"""Keys or outlines that one command is about."""

LOADED: Final = 200
"""Checkpoints, or pending writes, that are looked at together."""

BYTES: Final = 8 * 1024 * 1024
"""Bytes of data that are read together, if no single document is larger."""

LARGEST: Final = 64 * 1024 * 1024
"""Values above are not put together to be loaded; their digests prove them."""

SETTLED: Final = timedelta(minutes=10)
"""What is younger may still be named by a checkpoint, or finished by whoever writes it."""

PATIENCE: Final = 0.2
"""Seconds before the second look."""

Key = tuple[str, str]
"""Namespace and checkpoint id."""

Order = tuple[tuple[str, int], ...]

CHECKPOINTS: Final[Order] = (("checkpoint_ns", 1), ("checkpoint_id", -1))
WRITES: Final[Order] = tuple((name, 1) for name in WRITE_KEY[1:])
BLOBS: Final[Order] = (("checkpoint_ns", 1), ("key", 1))


# --- what comes of it --------------------------------------------------------------------------

REMEDIES: Final = {
    "format": "Look who writes to this collection; give each saver, and each version of mongosaver"
    " that cannot read the others' format, a collection of its own.",
    "shape": "Restore the document from a backup, or delete the thread.",
    "missing": "Restore the blobs collection from a backup, resume from another checkpoint of the"
    " thread, or delete the thread.",
    "digest": "Restore the blob from a backup, resume from a checkpoint that does not need it, or"
    " delete the thread. Check the server's disk.",
    "key": "Restore the blob from a backup, resume from a checkpoint that does not need it, or"
    " delete the thread.",
    "size": "Restore the checkpoint from a backup, or resume from another one.",
    "lists": "Restore the checkpoint from a backup, or resume from another one.",
    "payload": "Restore the checkpoint from a backup, or resume from another one. If payloads are"
    " encrypted, look first whether the key is the right one.",
    "write": "Restore the writes collection from a backup, resume from another checkpoint, or"
    " delete the writes of this task, which then runs again.",
}
"""What mends each kind of finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong.

    Attributes:
        kind: One of `REMEDIES`: `format` and `shape` of a document; `missing`, `digest` and `key`
            of a blob; `size`, `lists` and `payload` of a checkpoint; `write`.
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: A checkpoint that is not whole because of it: the newest one.
        channel: The channel, if it is about a value.
        key: Key of the blob in hexadecimal digits; of a pending write, its task.
        text: What was found.
        remedy: What mends it.
        checkpoints: How many checkpoints are not whole because of it.
    """

    kind: str
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None
    channel: str | None
    key: str | None
    text: str
    remedy: str
    checkpoints: int = 1


@dataclass(slots=True)
class Report:
    """What a walk through threads has seen so far; it is filled as the walk goes on.

    Attributes:
        threads: Threads, also those of which only remains are left.
        checkpoints: Checkpoints that readers can see.
        writes: Documents of pending writes.
        blobs: Blobs that checkpoints need.
        bytes: Bytes of data that were read.
        wrong: How many findings there are.
        damaged: Checkpoints that are not whole because of them.
        findings: The first of them.
        orphan_blobs: Blobs that nobody names.
        orphan_writes: Documents of pending writes whose checkpoint does not exist.
        unfinished_writes: Parts of large pending writes that were never completed.
        stateless: Checkpoints that are no state: their thread was deleted under a running graph.
        marked: Checkpoints that are being removed, or from which a `DeltaChannel` is rebuilt.
        parents_gone: Whole checkpoints whose parent does not exist.
        half_copies: Threads that are a copy which broke off.
        recent: Blobs and writes that nobody names yet, and that may belong to what is being saved.
        expired: Checkpoints that have expired and were not removed yet.
        sealed: Payloads that could not be looked into (encrypted, or another serializer's).
        last_thread_id: The last thread that was looked at: what `after` takes to go on from here.
    """

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    blobs: int = 0
    bytes: int = 0
    wrong: int = 0
    damaged: int = 0
    orphan_blobs: int = 0
    orphan_writes: int = 0
    unfinished_writes: int = 0
    stateless: int = 0
    marked: int = 0
    parents_gone: int = 0
    half_copies: int = 0
    recent: int = 0
    expired: int = 0
    sealed: int = 0
    findings: list[Finding] = field(default_factory=list)
    last_thread_id: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How to look.

    Attributes:
        data: Whether data is read; else only what names what, and whether it is there.
        opens: Whether encrypted payloads can be opened here.
        most: How many findings are kept; the others are counted.
        settled: What is older, and named by nobody, is an orphan.
    """

    data: bool = True
    opens: bool = True
    most: int = 100
    settled: timedelta = SETTLED


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


def page(
    name: Name, thread_id: str, fields: Document, order: Order, last: Document | None, limit: int
) -> Plan[list[Document]]:
    """The next documents of a thread in the order of an index, after the last one seen."""
    ranges: list[Document] = []
    if last is None:
        # Only text is an identifier; what else may be there is not ours.
        ranges.append({order[0][0]: {"$gte": ""}})
    else:
        for at in range(len(order) - 1, -1, -1):
            field_, direction = order[at]
            equal = {each: last.get(each) for each, _ in order[:at]}
            ranges.append({**equal, field_: {"$gt" if direction > 0 else "$lt": last.get(field_)}})
    rows: list[Document] = []
    for where in ranges:
        if len(rows) < limit:
            found = yield Find(
                name, {"thread_id": thread_id, **where}, fields, order, limit - len(rows)
            )
            rows += found
    return rows


def batches(items: Sequence[T], size: int | None = None) -> Iterator[Sequence[T]]:
    size = size or BATCH
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _by_bytes(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
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


def _compute(function: Callable[[], T], size: int) -> Plan[T]:
    if size <= OFF_LOOP:
        return function()
    result: T = yield Compute(function, size)
    return result


# --- blobs -------------------------------------------------------------------------------------

_START: Final = (0, blake2b(digest_size=KEY_BYTES).digest())
_PIECE: Final = {
    "_id": 0,
    "format": 1,
    "checkpoint_ns": 1,
    "key": 1,
    "channel": 1,
    "version": 1,
    "type": 1,
    "head": 1,
    "chain": 1,
    "end": 1,
    "digest": 1,
}
_PIECE_SHAPE: Final[Mapping[str, type | tuple[type, ...]]] = {
    "channel": str,
    "type": str,
    "head": bytes,
    "chain": list,
    "end": int,
    "digest": bytes,
}


@dataclass(frozen=True, slots=True)
class _Problem:
    kind: str
    text: str
    channel: str | None = None
    key: bytes | str | None = None


@dataclass(slots=True)
class _Piece:
    """What is known of one blob.

    Attributes:
        row: Its document without data; None where there is none.
        start: End and digest of what comes before it, once it was met in a chain.
        is_head: Whether its key is a version's, and not only a segment's.
        state: The hash of the body up to its end, once its data was found to be right.
        problem: What is wrong with it.
    """

    row: Document | None
    start: tuple[int, bytes] | None = None
    is_head: bool = False
    state: Any = None
    problem: _Problem | None = None

    @property
    def facts(self) -> tuple[int, bytes]:
        assert self.row is not None
        return self.row["end"], self.row["digest"]


def _address_of(row: Document, start: bytes, *, head: bool) -> bytes | None:
    """The key that a blob must have, given the digest of what comes before it."""
    scope = [row[name].encode("utf-8", "surrogatepass") for name in ("channel", "type")]
    if not head:
        return _address(b"segment", *scope, start, row["digest"])
    try:
        version = _version_field(row.get("version"))
    except TypeError:
        return None
    chain = b"".join(row["chain"])
    return _address(b"head", *scope, version, row["head"], chain, start, row["digest"])


class _Blobs:
    """Blobs of one thread, each read once."""

    def __init__(self, thread_id: str, report: Report, *, data: bool) -> None:
        self.thread_id, self.report, self.data = thread_id, report, data
        self.pieces: dict[tuple[str, bytes], _Piece] = {}
        self.checked: dict[tuple[str, bytes], _Problem | None] = {}
        self.named: set[tuple[str, bytes]] = set()
        self._unfollowed: dict[tuple[str, bytes], None] = {}
        self._same: dict[bytes, bytes] = {}

    def check(self, ns: str, keys: Iterable[bytes]) -> Plan[None]:
        """Look at values by the keys of their heads; `checked` has what is wrong with each."""
        heads = [key for key in dict.fromkeys(keys) if (ns, key) not in self.checked]
        yield from self._outline(ns, heads)
        chains = [key for head in heads for key in self._chain(ns, head)]
        yield from self._outline(ns, chains)
        self.named.update((ns, key) for key in (*heads, *chains))
        sound = []
        for key in heads:
            problem = self.checked[ns, key] = self._structure(ns, key)
            if problem is None:
                sound.append(key)
        if self.data:
            yield from self._digests(ns, sound)
            for key in sound:
                self.checked[ns, key] = self._first_problem(ns, key)

    def name(self, ns: str, keys: Iterable[bytes]) -> None:
        """Note that heads are needed, without looking at them."""
        for key in keys:
            if (ns, key) not in self.named:
                self.named.add((ns, key))
                self._unfollowed[ns, key] = None

    def follow_named(self) -> Plan[None]:
        """Note that the chains of those are needed, too."""
        for ns, keys in grouped(self._unfollowed).items():
            for some in batches(keys):
                where = {
                    "thread_id": self.thread_id,
                    "checkpoint_ns": ns,
                    "key": {"$in": list(some)},
                }
                for row in (yield Find(Name.BLOBS, where, {"_id": 0, "key": 1, "chain": 1})):
                    self.named.update((ns, key) for key in chain_of(row))
        self._unfollowed.clear()

    def head(self, ns: str, key: bytes) -> Document | None:
        piece = self.pieces.get((ns, key))
        return piece.row if piece else None

    def whole(self, ns: str, key: bytes) -> Plan[list[bytes] | None]:
        """All data of one value in order; None where some of it has gone meanwhile."""
        keys = [*self._chain(ns, key), key]
        data: dict[bytes, bytes] = {}
        for some in batches(keys):
            data.update((yield from self._read(ns, list(some))))
        return [data[each] for each in keys] if all(each in data for each in keys) else None

    def _chain(self, ns: str, key: bytes) -> Sequence[bytes]:
        piece = self.pieces[ns, key]
        return piece.row["chain"] if piece.row and piece.problem is None else ()

    def _outline(self, ns: str, keys: Iterable[bytes]) -> Plan[None]:
        unknown = [key for key in dict.fromkeys(keys) if (ns, key) not in self.pieces]
        for some in batches(unknown):
            where = {
                "thread_id": self.thread_id,
                "checkpoint_ns": ns,
                "key": {"$in": list(some)},
            }
            for row in (yield Find(Name.BLOBS, where, _PIECE)):
                piece = _Piece(row, problem=_shape(row, _PIECE_SHAPE, "blobs collection"))
                if piece.problem is None and not all(isinstance(k, bytes) for k in row["chain"]):
                    piece.problem = _Problem("shape", "its chain names what is no key")
                if piece.problem is None:
                    # Chains have nearly everything in common.
                    row["chain"] = tuple(self._same.setdefault(k, k) for k in row["chain"])
                    self.report.blobs += 1
                self.pieces[ns, self._same.setdefault(row["key"], row["key"])] = piece
        for key in unknown:
            self.pieces.setdefault((ns, key), _Piece(None))

    def _structure(self, ns: str, key: bytes) -> _Problem | None:
        """What is wrong with a value, as far as its segments' own facts tell."""
        keys = [key, *self._chain(ns, key)]
        for each in keys:
            piece = self.pieces[ns, each]
            if piece.row is None:
                return _Problem("missing", "a blob that it needs is not stored", key=each)
            if piece.problem is not None:
                return _blamed(piece.problem, each)
        head = self.pieces[ns, key]
        assert head.row is not None
        line = [*(self.pieces[ns, each] for each in keys[1:])]
        before = line[-1].facts if line else _START
        is_right = key == _address_of(head.row, before[1], head=True)
        previous = _START
        for each, piece in zip(keys[1:], line, strict=True):
            problem = self._follows(each, piece, previous)
            if problem is not None:
                starts = {_START[1], *(other.facts[1] for other in line)}
                if not is_right and any(_is_at(each, piece.row, start) for start in starts):
                    break  # it is right in another place: the chain is not
                piece.problem = problem
                return problem
            previous = piece.facts
        if not is_right or head.facts[0] < before[0]:
            text = "its key is not the address of what it says of itself"
            if not line and key == _address_of(head.row, _START[1], head=False):
                text = "it is a segment of a value and no value"
            return _Problem("key", text, key=key)
        head.start, head.is_head = before, True
        return None

    def _follows(self, key: bytes, piece: _Piece, before: tuple[int, bytes]) -> _Problem | None:
        """Whether a segment goes on where the one before it ends."""
        assert piece.row is not None
        if piece.start is None and _is_at(key, piece.row, before[1]):
            piece.start = before
        if piece.start != before or piece.facts[0] < before[0]:
            text = "its key is not the address of what it says of itself, in this place of a value"
            return _Problem("key", text, key=key)
        return None

    def _digests(self, ns: str, heads: Sequence[bytes]) -> Plan[None]:
        """Read what was not read yet, and compute its digests."""
        todo: dict[bytes, bytes | None] = {}
        for head in heads:
            before = None
            for key in (*self._chain(ns, head), head):
                piece = self.pieces[ns, key]
                if piece.state is None and piece.problem is None:
                    todo.setdefault(key, before)
                before = key

        def size(key: bytes) -> int:
            piece = self.pieces[ns, key]
            return piece.facts[0] - (piece.start or _START)[0]

        for some in _by_bytes(todo, size):
            data = yield from self._read(ns, some)

            def hash_all(some: list[bytes] = some, data: dict[bytes, bytes] = data) -> None:
                for key in some:
                    self._hash(ns, key, todo[key], data.get(key))

            yield from _compute(hash_all, sum(map(len, data.values())))

    def _read(self, ns: str, keys: list[bytes]) -> Plan[dict[bytes, bytes]]:
        where = {"thread_id": self.thread_id, "checkpoint_ns": ns, "key": {"$in": keys}}
        rows = yield Find(Name.BLOBS, where, {"_id": 0, "key": 1, "data": 1})
        data = {row["key"]: row.get("data") for row in rows}
        found = {key: each for key, each in data.items() if isinstance(each, bytes)}
        self.report.bytes += sum(map(len, found.values()))
        return found

    def _hash(self, ns: str, key: bytes, before: bytes | None, data: bytes | None) -> None:
        piece = self.pieces[ns, key]
        if data is None:
            piece.problem = _Problem("missing", "its data is not stored", key=key)
            return
        state = None if before is None else self.pieces[ns, before].state
        if before is not None and state is None:
            return  # what comes before it is damaged, so there is nothing to go on from
        state = blake2b(digest_size=KEY_BYTES) if state is None else state.copy()
        state.update(data)
        end, digest = piece.facts
        length = end - (piece.start or _START)[0]
        if len(data) != length:
            text = f"it holds {len(data):,} bytes where {length:,} were stored"
            piece.problem = _Problem("digest", text, key=key)
        elif state.digest() != digest:
            piece.problem = _Problem("digest", "its data is not what was stored", key=key)
        else:
            piece.state = state

    def _first_problem(self, ns: str, key: bytes) -> _Problem | None:
        for each in (*self._chain(ns, key), key):
            problem = self.pieces[ns, each].problem
            if problem is not None:
                return _blamed(problem, each)
        return None


def chain_of(row: Document) -> Iterator[bytes]:
    """Keys in a blob's chain, whatever else may stand there."""
    chain = row.get("chain")
    return (key for key in (chain if isinstance(chain, list) else ()) if isinstance(key, bytes))


def _is_at(key: bytes, row: Document | None, start: bytes) -> bool:
    """Whether a segment's key is right if what comes before it has this digest."""
    return row is not None and key in (
        _address_of(row, start, head=False),
        _address_of(row, start, head=True),
    )


def _blamed(problem: _Problem, key: bytes) -> _Problem:
    return _Problem(problem.kind, problem.text, key=key)


def _shape(
    row: Document, fields: Mapping[str, type | tuple[type, ...]], collection: str
) -> _Problem | None:
    """Whether a document has the format, and its fields are there and of their types."""
    try:
        codec.check_format(row, collection)
    except StateError as error:
        return _Problem("format", str(error))
    for name, kind in fields.items():
        if not isinstance(row.get(name), kind):
            found = type(row[name]).__name__ if name in row else "missing"
            return _Problem("shape", f"the field {name!r} is {found}")
    return None


# --- checkpoints -------------------------------------------------------------------------------

_OUTLINE: Final = {
    "format": 1,
    **dict.fromkeys(CHECKPOINT_KEY, 1),
    "parent_checkpoint_id": 1,
    "created_at": 1,
    "deleted_at": 1,
    "expires_at": 1,
    "copied_from": 1,
    "bytes": 1,
    "inline.c": 1,
    "blobs.c": 1,
    "blobs.k": 1,
    "blobs.size": 1,
    "blobs.h": 1,
}
_CHECKPOINT_SHAPE: Final[Mapping[str, type | tuple[type, ...]]] = {
    "checkpoint_ns": str,
    "checkpoint_id": str,
    "parent_checkpoint_id": (str, type(None)),
    "created_at": datetime,
    "bytes": int,
    "inline": list,
    "blobs": list,
}
_PAYLOAD_SHAPE: Final[Mapping[str, type | tuple[type, ...]]] = {
    "type": str,
    "checkpoint": bytes,
    "metadata_type": str,
    "metadata": bytes,
    "search": dict,
}
_READABLE: Final = frozenset({"null", "bytes", "bytearray", "json", "msgpack"})


def outline_problem(row: Document) -> _Problem | None:
    """What is wrong with a checkpoint's document, as far as its outline tells."""
    problem = _shape(row, _CHECKPOINT_SHAPE, "checkpoints collection")
    if problem is not None:
        return problem
    for entry in row["inline"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("c"), str):
            return _Problem("shape", "an entry of 'inline' names no channel")
    for entry in row["blobs"]:
        kinds = {"c": str, "k": bytes, "size": int}
        if not isinstance(entry, dict) or any(
            not isinstance(entry.get(name), kind) for name, kind in kinds.items()
        ):
            return _Problem("shape", "an entry of 'blobs' lacks channel, key or size")
    channels = [entry["c"] for entry in (*row["inline"], *row["blobs"])]
    if len(set(channels)) < len(channels):
        twice = next(c for c in channels if channels.count(c) > 1)
        return _Problem("lists", "the channel has two values", channel=twice)
    return None


_At = tuple[Document, _Problem]


class _Look:
    """One look at checkpoints and writes of a thread, with nothing remembered before."""

    def __init__(self, ctx: Context, thread_id: str, report: Report, options: Options) -> None:
        self.ctx, self.thread_id, self.report, self.options = ctx, thread_id, report, options
        self.blobs = _Blobs(thread_id, report, data=options.data)
        self._seen: set[str] = set()

    def checkpoints(self, rows: Sequence[Document]) -> Plan[list[_At]]:
        """What is wrong with checkpoints that readers can see, given their outlines."""
        problems: list[_At] = []
        sound: list[Document] = []
        for row in rows:
            problem = outline_problem(row)
            if problem is None:
                sound.append(row)
            else:
                problems.append((row, problem))
        for ns in dict.fromkeys(row["checkpoint_ns"] for row in sound):
            here = [row for row in sound if row["checkpoint_ns"] == ns]
            keys = [entry["k"] for row in here for entry in row["blobs"]]
            yield from self.blobs.check(ns, keys)
        for row in sound:
            problems += [(row, problem) for problem in self._values(row)]
        if self.options.data:
            problems += yield from self._documents(sound)
        return problems

    def _values(self, row: Document) -> Iterator[_Problem]:
        """What is wrong with the values that a checkpoint names."""
        ns = row["checkpoint_ns"]
        for entry in row["blobs"]:
            channel, key = entry["c"], entry["k"]
            problem = self.blobs.checked[ns, key]
            if problem is not None:
                yield _Problem(problem.kind, problem.text, channel, problem.key)
                continue
            head = self.blobs.head(ns, key)
            assert head is not None
            if head["channel"] != channel:
                text = f"it names a value of channel {head['channel']!r}"
                yield _Problem("lists", text, channel, key)
            elif "h" not in entry and entry["size"] != len(head["head"]) + head["end"]:
                text = f"it says {entry['size']:,} bytes of a value of another size"
                yield _Problem("size", text, channel, key)

    def _documents(self, rows: Sequence[Document]) -> Plan[list[_At]]:
        """What is wrong with checkpoints' own payloads."""
        problems: list[_At] = []

        def size(row: Document) -> int:
            values: int = sum(entry["size"] for entry in row["blobs"])
            own: int = row["bytes"] - values
            return 1024 + max(0, own)

        for some in _by_bytes(rows, size):
            where = {"thread_id": self.thread_id, "_id": {"$in": [row["_id"] for row in some]}}
            for document in (yield Find(Name.CHECKPOINTS, where)):
                found: list[_Problem] = []
                shape = outline_problem(document) or _shape(
                    document, _PAYLOAD_SHAPE, "checkpoints collection"
                )
                if shape is not None:
                    found.append(shape)
                else:

                    def look(document: Document = document) -> list[_Problem]:
                        return list(self._document(document))

                    found += yield from _compute(look, size(document))
                    found += yield from self._whole_values(document)
                problems += [(document, problem) for problem in found]
        return problems

    def _document(self, document: Document) -> Iterator[_Problem]:
        own = len(document["checkpoint"]) + len(document["metadata"])
        inline = sum(len(entry.get("d", b"")) for entry in document["inline"])
        tails = sum(len(entry.get("d", b"")) for entry in document["blobs"])
        values = sum(entry["size"] for entry in document["blobs"])
        self.report.bytes += own + inline + tails
        total = own + inline + tails + values
        if document["bytes"] != total:
            text = f"'bytes' is {document['bytes']:,}, and there are {total:,}"
            yield _Problem("size", text)
        for entry in document["inline"]:
            if not isinstance(entry.get("t"), str) or not isinstance(entry.get("d"), bytes):
                yield _Problem("shape", "its entry in 'inline' has no value", entry["c"])
            elif (why := self._fails(entry["t"], entry["d"])) is not None:
                yield _Problem("payload", f"the value does not load ({why})", entry["c"])
        yield from self._lists(document)
        yield from self._metadata(document)

    def _lists(self, document: Document) -> Iterator[_Problem]:
        """Whether the lists of values go with the payload."""
        loaded, why = self._load(document["type"], document["checkpoint"])
        if why is not None:
            yield _Problem("payload", f"the checkpoint does not load ({why})")
        if not isinstance(loaded, Mapping):
            if why is None and loaded is not _SEALED:
                yield _Problem("payload", "the payload is no checkpoint")
            return
        if loaded.get("id") != document["checkpoint_id"]:
            yield _Problem("payload", f"the payload is checkpoint {loaded.get('id')!r}")
        versions = loaded.get("channel_versions") or {}
        ns = document["checkpoint_ns"]
        for entry in document["blobs"]:
            head = self.blobs.head(ns, entry["k"])
            if "d" in entry or head is None or not self._is_sound(ns, entry, head):
                continue
            if isinstance(versions, Mapping) and head.get("version") != versions.get(entry["c"]):
                text = f"it names version {head.get('version')!r} of the value and not its own"
                yield _Problem("lists", text, entry["c"], entry["k"])

    def _is_sound(self, ns: str, entry: Document, head: Document) -> bool:
        """Whether nothing was said of a value before."""
        sound = self.blobs.checked.get((ns, entry["k"])) is None
        return sound and head["channel"] == entry["c"]

    def _metadata(self, document: Document) -> Iterator[_Problem]:
        metadata, why = self._load(document["metadata_type"], document["metadata"])
        if why is not None:
            yield _Problem("payload", f"the metadata does not load ({why})")
        if isinstance(metadata, Mapping):
            for name, value in document["search"].items():
                # What is no number does not equal itself.
                if name not in metadata or (metadata[name] != value and value == value):
                    yield _Problem("lists", f"'search' and the metadata differ in {name!r}")
        elif why is None and metadata is not _SEALED:
            yield _Problem("payload", "the metadata is none")

    def _whole_values(self, document: Document) -> Plan[list[_Problem]]:
        """Load values as readers do: those with a tail, and all of each namespace's newest."""
        problems: list[_Problem] = []
        ns = document["checkpoint_ns"]
        is_newest = ns not in self._seen
        self._seen.add(ns)
        for entry in document["blobs"]:
            head = self.blobs.head(ns, entry["k"])
            if head is None or not self._is_sound(ns, entry, head):
                continue
            has_tail = "d" in entry or "h" in entry
            if has_tail:
                problem = self._tail(entry, head)
                if problem is not None:
                    problems.append(problem)
                    continue
            settled = has_tail and self._goes_on(entry, head)
            if (
                entry["size"] > LARGEST
                or (settled and not is_newest)
                or not (has_tail or is_newest)
            ):
                continue
            parts = yield from self.blobs.whole(ns, entry["k"])
            if parts is None:
                continue  # the second look tells what that means
            begin = entry["h"] if has_tail else head["head"]
            data = segments.join(begin, [*parts, *([entry["d"]] if has_tail else [])])

            def load(type_: str = head["type"], data: bytes = data) -> str | None:
                return self._fails(type_, data)

            why = yield from _compute(load, len(data))
            if why is not None:
                text = f"the value does not load ({why})"
                problems.append(_Problem("payload", text, entry["c"], entry["k"]))
        return problems

    def _tail(self, entry: Document, head: Document) -> _Problem | None:
        if not isinstance(entry.get("h"), bytes) or not isinstance(entry.get("d"), bytes):
            return _Problem("shape", "its entry in 'blobs' has half a tail", entry["c"], entry["k"])
        size = len(entry["h"]) + head["end"] + len(entry["d"])
        if entry["size"] != size:
            text = f"it says {entry['size']:,} bytes of a value of {size:,}"
            return _Problem("size", text, entry["c"], entry["k"])
        return None

    def _goes_on(self, entry: Document, head: Document) -> bool:
        """Whether a tail is the items by which its value has more than the stored one.

        Only of lists and maps; else the whole value tells.
        """
        items, before = _items(entry["h"]), _items(head["head"])
        if head["type"] != "msgpack" or items is None or before is None or items < before:
            return False
        as_list = b"\xdd" + (items - before).to_bytes(4, "big") + entry["d"]
        return self._fails("msgpack", as_list) is None

    def _fails(self, type_: str, data: bytes) -> str | None:
        return self._load(type_, data)[1]

    def _load(self, type_: str, data: bytes) -> tuple[Any, str | None]:
        """What a payload is, or why it does not load."""
        try:
            return self.ctx.serde.loads_typed((type_, data)), None
        except Exception as error:  # noqa: BLE001 - whatever a serializer raises
            base, plus, _ = type_.partition("+")
            if base not in _READABLE or (plus and not self.options.opens):
                self.report.sealed += 1
                return _SEALED, None
            if plus:
                return None, "it is encrypted, and not with the key that is at hand"
            return None, type(error).__name__

    # --- writes

    def slot(self, rows: Sequence[Document]) -> Plan[_Problem | None]:
        """What is wrong with one pending write, given its documents without data."""
        first = next((row for row in rows if row["part"] == 0), None)
        if first is None:
            return None  # readers pass over it
        task = first["task_id"]
        problem = _shape(
            first, {"channel": str, "type": str, "task_path": str}, "writes collection"
        )
        if problem is not None:
            return _Problem(problem.kind, problem.text, key=task)
        channel = first["channel"]
        by_number = {row["part"]: row for row in rows}
        numbers = parts_of(first)
        missing = [number for number in numbers if number not in by_number]
        if missing:
            text = f"{len(missing)} of {len(numbers)} parts of task {task!r} are not stored"
            return _Problem("write", text, channel, task)
        if not self.options.data:
            return None
        if not numbers:
            data = yield from self._part(first)
            why = "there is no data" if data is None else self._fails(first["type"], data)
            text = f"what task {task!r} wrote does not load ({why})"
            return None if why is None else _Problem("write", text, channel, task)
        return (yield from self._parts(channel, task, [by_number[n] for n in numbers]))

    def _parts(self, channel: str, task: str, rows: Sequence[Document]) -> Plan[_Problem | None]:
        """Whether the parts' numbers are the addresses of what they hold."""
        hasher, starts, at = blake2b(digest_size=KEY_BYTES), [], 0
        for row in rows:
            data = yield from self._part(row)
            if data is None:
                return _Problem("write", f"a part of task {task!r} has no data", channel, task)
            starts.append(at)
            at += len(data)
            hasher.update(data)
        digest = hasher.digest()
        if [row["part"] for row in rows] != [_part_number(digest, at) for at in starts]:
            text = f"the data of task {task!r} is not what was stored"
            return _Problem("write", text, channel, task)
        return None

    def _part(self, row: Document) -> Plan[bytes | None]:
        if "data" in row:
            data = row["data"]
        else:
            where = {"thread_id": self.thread_id, "_id": row["_id"]}
            found = yield Find(Name.WRITES, where, {"_id": 0, "data": 1}, limit=1)
            data = found[0].get("data") if found else None
        if not isinstance(data, bytes):
            return None
        self.report.bytes += len(data)
        return data


def parts_of(first: Document) -> list[int]:
    """Numbers of a slot's further parts, in order, as its part 0 has them."""
    numbers = first.get("parts")
    return [n for n in (numbers if isinstance(numbers, list) else ()) if isinstance(n, int)]


def _part_number(digest: bytes, at: int) -> int:
    """The number of a part of a large pending write, as `codec` makes it of the content."""
    number = blake2b(digest + at.to_bytes(8, "big"), digest_size=8).digest()
    return 1 + int.from_bytes(number, "big") % 2**62


_EXTENSIONS: Final = {**dict.fromkeys(range(0xD4, 0xD9), 2), 0xC7: 3, 0xC8: 4, 0xC9: 6}
_COUNTS: Final = {0xDC: (3, 1), 0xDD: (5, 1), 0xDE: (3, 2), 0xDF: (5, 2)}
"""Codes of the msgpack specification: width of an extension's header; of a container's, and how
many objects each of its items is."""


def _items(head: bytes) -> int | None:
    """How many objects the container holds that a payload begins with; None where it is none."""
    head = head[_EXTENSIONS.get(head[0], 0) :] if head else head
    if not head:
        return None
    if 0x80 <= head[0] <= 0x9F:
        return (head[0] & 0x0F) * (2 if head[0] < 0x90 else 1)
    width, each = _COUNTS.get(head[0], (0, 0))
    return int.from_bytes(head[1:width], "big") * each if width == len(head) else None


class _Sealed:
    """A payload that cannot be looked into."""


_SEALED: Final = _Sealed()


# --- one thread --------------------------------------------------------------------------------

_SLOT: Final = {
    "format": 1,
    **dict.fromkeys(WRITE_KEY, 1),
    "parts": 1,
    "channel": 1,
    "type": 1,
    "task_path": 1,
    "created_at": 1,
}
_AGE: Final = {"created_at": 1, "touched_at": 1}

_SlotKey = tuple[str, str, str, int]
"""Namespace, checkpoint, task and position."""


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


def thread(ctx: Context, thread_id: str, report: Report, options: Options) -> Plan[None]:
    """Look at one thread.

    Args:
        ctx: The call's surroundings; of the serializer only `loads_typed` is used.
        thread_id: The thread.
        report: Is filled, also while the plan runs, so that somebody can watch.
        options: How to look.
    """
    outline = Outline()
    look = _Look(ctx, thread_id, report, options)
    suspects, is_hurried = yield from _checkpoints(ctx, look, outline)
    slots = yield from _writes(look, outline)
    orphans = yield from _orphans(thread_id, look.blobs.named)
    adrift = _adrift(outline)
    if suspects or slots.broken or orphans or adrift or slots.orphans or slots.unfinished:
        found = _Look(ctx, thread_id, Report(), options)
        if is_hurried or slots.broken:
            yield Sleep(PATIENCE)
        if suspects or slots.broken:
            yield from _again(found, report, suspects, slots.broken)
        yield from _count(found, report, slots, orphans, adrift)
    source = next(iter(outline.sources), None)
    if source is not None and len(outline.sources) == 1 and outline.copied_at is not None:
        report.half_copies += yield from is_half_copy(ctx, thread_id, source, outline.copied_at)
    report.threads += 1
    report.last_thread_id = thread_id


def is_hidden(ctx: Context, row: Document) -> bool:
    """Whether readers do not see a checkpoint, so that it need not be whole."""
    expires = row.get("expires_at")
    return row.get("deleted_at") is not None or (
        isinstance(expires, datetime) and expires <= ctx.now
    )


def _checkpoints(ctx: Context, look: _Look, outline: Outline) -> Plan[tuple[list[Any], bool]]:
    """Look at all checkpoints.

    Returns:
        `_id` of those that do not look right; whether something is missing that may yet come.
    """
    report, suspects, is_hurried = look.report, dict[Any, None](), False
    last = None
    while True:
        rows = yield from page(
            Name.CHECKPOINTS, look.thread_id, _OUTLINE, CHECKPOINTS, last, LOADED
        )
        visible = []
        for row in rows:
            hidden = is_hidden(ctx, row)
            if isinstance(row.get("checkpoint_id"), str):
                outline.add(row, hidden=hidden)
            if not hidden:
                visible.append(row)
            elif row.get("deleted_at") is not None:
                report.marked += 1
            else:
                report.expired += 1
            if hidden and outline_problem(row) is None:
                look.blobs.name(row["checkpoint_ns"], [entry["k"] for entry in row["blobs"]])
        for row, problem in (yield from look.checkpoints(visible)):
            suspects[row["_id"]] = None
            is_hurried = is_hurried or problem.kind == "missing"
        report.checkpoints += len(visible)
        if len(rows) < LOADED:
            yield from look.blobs.follow_named()
            return list(suspects), is_hurried
        last = rows[-1]


def _adrift(outline: Outline) -> list[Key]:
    """Checkpoints whose parent is not there."""
    return [
        key
        for key, parent in outline.parents.items()
        if parent and (key[0], parent) not in outline.parents and key not in outline.hidden
    ]


@dataclass(slots=True)
class _Slots:
    """What did not look right among pending writes.

    Attributes:
        broken: Slots of visible checkpoints that are not whole.
        unfinished: `_id` of parts that no slot names.
        orphans: Checkpoints that do not exist and have writes.
    """

    broken: list[_SlotKey] = field(default_factory=list)
    unfinished: list[Any] = field(default_factory=list)
    orphans: dict[Key, None] = field(default_factory=dict)


def _writes(look: _Look, outline: Outline) -> Plan[_Slots]:
    slots = _Slots()
    last: Document | None = None
    carried: list[Document] = []
    most = look.options.most
    while True:
        rows = yield from page(Name.WRITES, look.thread_id, _SLOT, WRITES, last, LOADED)
        groups: dict[_SlotKey, list[Document]] = {}
        odd = [row for row in rows if not has_slot(row)]
        text = "a pending write lacks a part of its key"
        _tell(look.thread_id, look.report, [(r, _Problem("shape", text)) for r in odd], most)
        for row in (*carried, *(row for row in rows if row not in odd)):
            groups.setdefault(_slot_key(row), []).append(row)
        is_last = len(rows) < LOADED
        # The documents of the last slot may go on on the next page.
        carried = [] if is_last or not groups else groups.pop(list(groups)[-1])
        whole = {}
        for key, group in groups.items():
            at = key[:2]
            if at not in outline.parents:
                slots.orphans[at] = None
            elif at not in outline.hidden:
                whole[key] = group
            slots.unfinished += unnamed(group) if at in outline.parents else []
        slots.broken += [key for key, _ in (yield from _look_at(look, whole))]
        look.report.writes += len(rows)
        if is_last:
            return slots
        last = rows[-1]


def has_slot(row: Document) -> bool:
    names = {"checkpoint_id": str, "task_id": str, "idx": int, "part": int}
    return all(isinstance(row.get(name), kind) for name, kind in names.items())


def _slot_key(row: Document) -> _SlotKey:
    return row["checkpoint_ns"], row["checkpoint_id"], row["task_id"], row["idx"]


def unnamed(group: Sequence[Document]) -> list[Any]:
    """`_id` of the parts that the slot's part 0 does not name, or all where there is none."""
    first = next((row for row in group if row["part"] == 0), None)
    named = {0, *parts_of(first)} if first else set()
    return [row["_id"] for row in group if row["part"] not in named]


def _look_at(
    look: _Look, groups: Mapping[_SlotKey, list[Document]]
) -> Plan[list[tuple[_SlotKey, _Problem]]]:
    problems = []
    if look.options.data:
        # Small ones together; the parts of large ones are read one by one.
        small = {
            row["_id"]: row
            for group in groups.values()
            for row in group
            if row["part"] == 0 and not parts_of(row)
        }
        where = {"thread_id": look.thread_id, "_id": {"$in": list(small)}}
        for row in (yield Find(Name.WRITES, where, {"data": 1})) if small else ():
            small[row["_id"]]["data"] = row.get("data")
    for key, group in groups.items():
        problem = yield from look.slot(group)
        if problem is not None:
            problems.append((key, problem))
    return problems


def _orphans(thread_id: str, named: set[tuple[str, bytes]]) -> Plan[dict[str, list[bytes]]]:
    """Keys of blobs that nobody names, by namespace."""
    orphans: dict[str, list[bytes]] = {}
    last = None
    while True:
        fields = {"_id": 0, "checkpoint_ns": 1, "key": 1}
        rows = yield from page(Name.BLOBS, thread_id, fields, BLOBS, last, BATCH)
        for row in rows:
            ns, key = row["checkpoint_ns"], row.get("key")
            if isinstance(key, bytes) and (ns, key) not in named:
                orphans.setdefault(ns, []).append(key)
        if len(rows) < BATCH:
            return orphans
        last = rows[-1]


# --- the second look ---------------------------------------------------------------------------


def _again(
    look: _Look, report: Report, oids: Sequence[Any], slots: Sequence[_SlotKey]
) -> Plan[None]:
    """Look once more at what did not look right, and report it."""
    problems: list[_At] = []
    for some in batches(oids, LOADED):
        where = {"thread_id": look.thread_id, "_id": {"$in": list(some)}}
        rows = yield Find(Name.CHECKPOINTS, where, _OUTLINE, CHECKPOINTS)
        visible = [row for row in rows if not is_hidden(look.ctx, row)]
        problems += yield from look.checkpoints(visible)
    holes = {row["_id"]: row for row, problem in problems if problem.kind in ("missing", "size")}
    lost = (yield from _lost(look, holes.values())) if holes else set()
    report.stateless += len(lost)
    told = [(row, problem) for row, problem in problems if row["_id"] not in lost]
    for some_slots in batches(slots, LOADED):
        told += yield from _slots_again(look, some_slots)
    report.damaged += len({(row.get("checkpoint_ns"), row.get("checkpoint_id")) for row, _ in told})
    _tell(look.thread_id, report, told, look.options.most)


def _lost(look: _Look, holes: Iterable[Document]) -> Plan[set[Any]]:
    """Those of which an ancestor is gone, and that still are there after that was seen."""
    holes = list(holes)
    outline = Outline()
    for ns in dict.fromkeys(row["checkpoint_ns"] for row in holes):
        fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1, "parent_checkpoint_id": 1}
        where = {"thread_id": look.thread_id, "checkpoint_ns": ns}
        for row in (yield Find(Name.CHECKPOINTS, where, fields)):
            outline.add(row, hidden=False)
    return {
        row["_id"] for row in holes if outline.is_lost((row["checkpoint_ns"], row["checkpoint_id"]))
    }


def _slots_again(look: _Look, slots: Sequence[_SlotKey]) -> Plan[list[_At]]:
    names = WRITE_KEY[1:5]
    parts = [dict(zip(names, slot, strict=True)) for slot in slots]
    where = {"thread_id": look.thread_id, "$or": parts}
    groups: dict[_SlotKey, list[Document]] = {}
    for row in (yield Find(Name.WRITES, where, _SLOT)):
        groups.setdefault(_slot_key(row), []).append(row)
    found = yield from _look_at(look, groups)
    keys = {key[:2] for key, _ in found}
    there = (yield from existing(look.thread_id, keys)) if keys else set()
    return [
        ({"checkpoint_ns": key[0], "checkpoint_id": key[1]}, problem)
        for key, problem in found
        if key[:2] in there
    ]


def existing(thread_id: str, keys: Iterable[Key]) -> Plan[set[Key]]:
    """Those of some checkpoints that are there, also where no reader sees them."""
    there: set[Key] = set()
    fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1}
    for ns, ids in grouped(keys).items():
        for some in batches(ids):
            where = {
                "thread_id": thread_id,
                "checkpoint_ns": ns,
                "checkpoint_id": {"$in": list(some)},
            }
            for row in (yield Find(Name.CHECKPOINTS, where, fields)):
                there.add((row["checkpoint_ns"], row["checkpoint_id"]))
    return there


def grouped(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Second elements by the first ones."""
    groups: dict[str, list[T]] = {}
    for ns, value in pairs:
        groups.setdefault(ns, []).append(value)
    return groups


_OF_BLOBS: Final = frozenset({"format", "shape", "missing", "digest", "key"})


def _tell(thread_id: str, report: Report, told: Sequence[_At], most: int) -> None:
    """Make findings: one for each thing that is wrong, however many checkpoints need it."""
    groups: dict[tuple[Any, ...], list[Document]] = {}
    problems: dict[tuple[Any, ...], _Problem] = {}
    for row, problem in told:
        about: tuple[Any, ...] = (row.get("checkpoint_ns"), problem.kind, problem.key)
        if not (problem.kind in _OF_BLOBS and isinstance(problem.key, bytes)):
            about = (*about, row.get("checkpoint_id"), problem.channel, problem.text)
        groups.setdefault(about, []).append(row)
        problems.setdefault(about, problem)
    for about, rows in groups.items():
        report.wrong += 1
        if len(report.findings) < most:
            problem = problems[about]
            key = problem.key.hex() if isinstance(problem.key, bytes) else problem.key
            newest = max(rows, key=lambda row: str(row.get("checkpoint_id")))
            finding = Finding(
                problem.kind,
                thread_id,
                str(about[0]),
                newest.get("checkpoint_id"),
                problem.channel,
                key,
                problem.text,
                REMEDIES[problem.kind],
                len({row.get("checkpoint_id") for row in rows}),
            )
            report.findings.append(finding)


def _count(
    look: _Look,
    report: Report,
    slots: _Slots,
    orphans: Mapping[str, Sequence[bytes]],
    adrift: Sequence[Key],
) -> Plan[None]:
    """Count what nobody needs, after a second look at who names it."""
    until = look.ctx.now - look.options.settled
    thread_id = look.thread_id
    named = (yield from closure(thread_id, look.blobs)) if orphans else set()
    for ns, keys in orphans.items():
        for some in batches([key for key in keys if (ns, key) not in named]):
            where = {"checkpoint_ns": ns, "key": {"$in": list(some)}}
            old, recent = yield from _ages(Name.BLOBS, {"thread_id": thread_id, **where}, until)
            report.orphan_blobs += old
            report.recent += recent
    there = yield from existing(thread_id, slots.orphans)
    for ns, ids in grouped(key for key in slots.orphans if key not in there).items():
        for some_ids in batches(ids):
            where = {"checkpoint_ns": ns, "checkpoint_id": {"$in": list(some_ids)}}
            old, recent = yield from _ages(Name.WRITES, {"thread_id": thread_id, **where}, until)
            report.orphan_writes += old
            report.recent += recent
    for some_parts in batches(slots.unfinished):
        where = {"thread_id": thread_id, "_id": {"$in": list(some_parts)}}
        old, _ = yield from _ages(Name.WRITES, where, until)
        report.unfinished_writes += old
    for ns, ids in grouped(adrift).items():
        for some_ids in batches(ids):
            report.parents_gone += yield from _still_adrift(look, ns, list(some_ids))


def _ages(name: Name, where: Document, until: datetime) -> Plan[tuple[int, int]]:
    """How many of some documents are older than a date, and how many are not."""
    rows = yield Find(name, where, {"_id": 0, **_AGE})
    old = sum(age_of(row, until) <= until for row in rows)
    return old, len(rows) - old


def _still_adrift(look: _Look, ns: str, ids: list[str]) -> Plan[int]:
    where = {"thread_id": look.thread_id, "checkpoint_ns": ns, "checkpoint_id": {"$in": ids}}
    fields = {"_id": 0, "parent_checkpoint_id": 1}
    rows = yield Find(Name.CHECKPOINTS, where, fields)
    parents = [row["parent_checkpoint_id"] for row in rows if row.get("parent_checkpoint_id")]
    there = yield from existing(look.thread_id, {(ns, parent) for parent in parents})
    return sum((ns, parent) not in there for parent in parents)


def age_of(row: Document, unknown: datetime) -> datetime:
    """When somebody last needed or made a document."""
    dates = [row.get("created_at"), row.get("touched_at")]
    return max((date for date in dates if isinstance(date, datetime)), default=unknown)


def closure(thread_id: str, blobs: _Blobs) -> Plan[set[tuple[str, bytes]]]:
    """All blobs that a thread's checkpoints name, in one way or another, at this moment."""
    last = None
    fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1, "blobs.k": 1}
    while True:
        rows = yield from page(Name.CHECKPOINTS, thread_id, fields, CHECKPOINTS, last, BATCH)
        for row in rows:
            entries = row.get("blobs")
            keys = [e.get("k") for e in entries if isinstance(e, dict)] if entries else []
            blobs.name(row["checkpoint_ns"], [key for key in keys if isinstance(key, bytes)])
        if len(rows) < BATCH:
            yield from blobs.follow_named()
            return blobs.named
        last = rows[-1]


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
    for row in (yield Find(Name.CHECKPOINTS, where, fields, CHECKPOINTS, 1)):
        key = (row["checkpoint_ns"], row["checkpoint_id"])
        return key not in (yield from existing(thread_id, [key]))
    return False
