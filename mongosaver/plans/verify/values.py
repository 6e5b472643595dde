"""Whether values are what was stored: their segments are there, and keys and digests are right.

Of a value's segments the digests are computed as they were when it was written, each from where the
one before it ends; segments that versions share are read once. A blob's key is the address of its
content, so a right key and a right digest prove every byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, TypeVar

from mongosaver.ops import Compute, Find, Plan
from mongosaver.plans import pages
from mongosaver.plans.shapes import Problem, chain_of, shape
from mongosaver.plans.verify.report import Report
from mongosaver.schema import OFF_LOOP, Document, Name
from mongosaver.segments import KEY_BYTES, address, version_field

T = TypeVar("T")


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


def compute(function: Callable[[], T], size: int) -> Plan[T]:
    """What a function makes of so many bytes, off the event loop where that takes long."""
    if size <= OFF_LOOP:
        return function()
    result: T = yield Compute(function, size)
    return result


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
    problem: Problem | None = None

    @property
    def facts(self) -> tuple[int, bytes]:
        assert self.row is not None
        return self.row["end"], self.row["digest"]


def _address_of(row: Document, start: bytes, *, head: bool) -> bytes | None:
    """The key that a blob must have, given the digest of what comes before it."""
    scope = [row[name].encode("utf-8", "surrogatepass") for name in ("channel", "type")]
    if not head:
        return address(b"segment", *scope, start, row["digest"])
    try:
        version = version_field(row.get("version"))
    except TypeError:
        return None
    chain = b"".join(row["chain"])
    return address(b"head", *scope, version, row["head"], chain, start, row["digest"])


class Blobs:
    """Blobs of one thread, each read once."""

    def __init__(self, thread_id: str, report: Report, *, data: bool) -> None:
        self.thread_id, self.report, self.data = thread_id, report, data
        self.pieces: dict[tuple[str, bytes], _Piece] = {}
        self.checked: dict[tuple[str, bytes], Problem | None] = {}
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
        for ns, keys in pages.grouped(self._unfollowed).items():
            for some in pages.batches(keys):
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
        for some in pages.batches(keys):
            data.update((yield from self._read(ns, list(some))))
        return [data[each] for each in keys] if all(each in data for each in keys) else None

    def _chain(self, ns: str, key: bytes) -> Sequence[bytes]:
        piece = self.pieces[ns, key]
        return piece.row["chain"] if piece.row and piece.problem is None else ()

    def _outline(self, ns: str, keys: Iterable[bytes]) -> Plan[None]:
        unknown = [key for key in dict.fromkeys(keys) if (ns, key) not in self.pieces]
        for some in pages.batches(unknown):
            where = {
                "thread_id": self.thread_id,
                "checkpoint_ns": ns,
                "key": {"$in": list(some)},
            }
            for row in (yield Find(Name.BLOBS, where, _PIECE)):
                piece = _Piece(row, problem=shape(row, _PIECE_SHAPE, "blobs collection"))
                if piece.problem is None and not all(isinstance(k, bytes) for k in row["chain"]):
                    piece.problem = Problem("shape", "its chain names what is no key")
                if piece.problem is None:
                    # Chains have nearly everything in common.
                    row["chain"] = tuple(self._same.setdefault(k, k) for k in row["chain"])
                    self.report.blobs += 1
                self.pieces[ns, self._same.setdefault(row["key"], row["key"])] = piece
        for key in unknown:
            self.pieces.setdefault((ns, key), _Piece(None))

    def _structure(self, ns: str, key: bytes) -> Problem | None:
        """What is wrong with a value, as far as its segments' own facts tell."""
        keys = [key, *self._chain(ns, key)]
        for each in keys:
            piece = self.pieces[ns, each]
            if piece.row is None:
                return Problem("missing", "a blob that it needs is not stored", key=each)
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
            return Problem("key", text, key=key)
        head.start, head.is_head = before, True
        return None

    def _follows(self, key: bytes, piece: _Piece, before: tuple[int, bytes]) -> Problem | None:
        """Whether a segment goes on where the one before it ends."""
        assert piece.row is not None
        if piece.start is None and _is_at(key, piece.row, before[1]):
            piece.start = before
        if piece.start != before or piece.facts[0] < before[0]:
            text = "its key is not the address of what it says of itself, in this place of a value"
            return Problem("key", text, key=key)
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

        for some in pages.by_bytes(todo, size):
            data = yield from self._read(ns, some)

            def hash_all(some: list[bytes] = some, data: dict[bytes, bytes] = data) -> None:
                for key in some:
                    self._hash(ns, key, todo[key], data.get(key))

            yield from compute(hash_all, sum(map(len, data.values())))

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
            piece.problem = Problem("missing", "its data is not stored", key=key)
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
            piece.problem = Problem("digest", text, key=key)
        elif state.digest() != digest:
            piece.problem = Problem("digest", "its data is not what was stored", key=key)
        else:
            piece.state = state

    def _first_problem(self, ns: str, key: bytes) -> Problem | None:
        for each in (*self._chain(ns, key), key):
            problem = self.pieces[ns, each].problem
            if problem is not None:
                return _blamed(problem, each)
        return None


def _is_at(key: bytes, row: Document | None, start: bytes) -> bool:
    """Whether a segment's key is right if what comes before it has this digest."""
    return row is not None and key in (
        _address_of(row, start, head=False),
        _address_of(row, start, head=True),
    )


def _blamed(problem: Problem, key: bytes) -> Problem:
    return Problem(problem.kind, problem.text, key=key)
