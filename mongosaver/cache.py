"""What one saver remembers between calls: how checkpoints are stored, and what the server can do.

How a checkpoint's values are stored never changes once it is written, so these facts may be kept
as long as there is room: they save the next put a look at its parent. Nothing here is needed for
correctness. A fact that is not here is read from the database; a thread that somebody else deleted
is noticed by whoever reads, not here.

Clones of a saver (LangGraph's `with_allowlist` copies it) share one `Shared`.

Nothing is imported from mongosaver but `codec`'s and `identifiers`' types; no I/O is done.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from mongosaver.codec import RECALLED, Blob, Facts, Inline, Value
from mongosaver.identifiers import Address


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one checkpoint: how it is stored, and when it expires (None: never)."""

    facts: Facts
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """How far a thread's expiry has been moved, from one put to the next.

    Attributes:
        until: The new expiry.
        stage: Which collection it is at: 0 blobs, 1 writes, 2 checkpoints.
        at: The part of the stage that is done, from 0 to 1.
        width: The part that is next.
    """

    until: datetime
    stage: int = 0
    at: float = 0.0
    width: float = 1 / 16


class Moves:
    """The moves that are under way, bounded. One that is forgotten is begun again."""

    def __init__(self, size: int = 1024) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._moves: OrderedDict[str, Move] = OrderedDict()

    def take(self, thread_id: str) -> Move | None:
        """The thread's move, which nobody else goes on with until it is kept again."""
        with self._lock:
            return self._moves.pop(thread_id, None)

    def keep(self, thread_id: str, move: Move) -> None:
        with self._lock:
            self._moves[thread_id] = move
            if len(self._moves) > self._size:
                self._moves.popitem(last=False)


class Values:
    """Recent values with their bytes, by the key of their head, bounded by their sum.

    A key stands for the same bytes for ever. With them a put compares what it would have to hash,
    and a read asks whether the blobs are there instead of fetching them.
    """

    def __init__(self, size: int = 16 * RECALLED) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._values: OrderedDict[bytes, Value] = OrderedDict()

    def get(self, key: bytes) -> Value | None:
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, value: Value) -> None:
        if len(value.data) > RECALLED:
            return
        with self._lock:
            former = self._values.pop(value.stored.key, None)
            self._values[value.stored.key] = value
            self._size -= len(value.data) - (len(former.data) if former else 0)
            while self._size < 0:
                _, oldest = self._values.popitem(last=False)
                self._size += len(oldest.data)


@dataclass(frozen=True, slots=True)
class Expected:
    """Values that a read will probably find, by the key of their head, and keys of their blobs."""

    values: Mapping[bytes, Value]
    keys: list[bytes]


class _Latest(NamedTuple):
    """The latest checkpoint seen of a thread and namespace.

    Attributes:
        checkpoint_id: Its id.
        trusted: Whether the last read of the latest found what was seen before it.
        inline: Whether it had all its values inline.
        written: Whether this saver has put it.
    """

    checkpoint_id: str
    trusted: bool
    inline: bool
    written: bool


class Cache:
    """The stored form of recent checkpoints, bounded by their number and safe between threads."""

    def __init__(self, size: int = 1024) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._facts: OrderedDict[Address, Known] = OrderedDict()
        self._latest: OrderedDict[tuple[str, str], _Latest] = OrderedDict()
        self.values = Values()

    def is_inline(self, at: Address) -> bool:
        """Whether the latest checkpoint of a namespace is our own and had all its values inline."""
        with self._lock:
            latest = self._latest.get((at.thread_id, at.checkpoint_ns))
        return latest is not None and latest.inline and latest.written

    def expected(self, at: Address, now: datetime) -> Expected | None:
        """What a read at this address will find, if that is known with all its values.

        None for the latest of a thread where somebody else had put a later one the last time.
        """
        if at.checkpoint_id is None:
            with self._lock:
                latest = self._latest.get((at.thread_id, at.checkpoint_ns))
            if latest is None or not latest.trusted:
                return None
            at = at.at(latest.checkpoint_id)
        known = self.known(at, now)
        if known is None:
            return None
        values: dict[bytes, Value] = {}
        for entry in known.facts.values():
            if isinstance(entry, Blob):
                value = self.values.get(entry.key)
                if value is None or not value.gives(entry.tail):
                    return None
                values[entry.key] = value
        keys = [segment.key for value in values.values() for segment in value.stored.segments]
        return Expected(values, list(dict.fromkeys(keys)))

    def get(self, address: Address) -> Facts | None:
        known = self.known(address)
        return None if known is None else known.facts

    def known(self, address: Address, now: datetime | None = None) -> Known | None:
        """What is known of a checkpoint; nothing of one that has expired by now."""
        with self._lock:
            known = self._facts.get(address)
            if known is None:
                return None
            if now is not None and known.expires_at is not None and known.expires_at <= now:
                return None
            self._facts.move_to_end(address)
            return known

    def moved(self, addresses: Iterable[Address], expires_at: datetime | None) -> None:
        """Note that these checkpoints expire at another time now."""
        with self._lock:
            for address in addresses:
                known = self._facts.get(address)
                if known is not None:
                    self._facts[address] = replace(known, expires_at=expires_at)

    def put(
        self,
        address: Address,
        facts: Facts,
        expires_at: datetime | None = None,
        *,
        is_latest: bool = False,
        written: bool = False,
    ) -> None:
        """Remember a checkpoint.

        Args:
            address: The checkpoint.
            facts: How it is stored.
            expires_at: When it expires.
            is_latest: Whether a read of the latest one has found it.
            written: Whether it has just been put.
        """
        own = str(address.checkpoint_id)
        scope = (address.thread_id, address.checkpoint_ns)
        inline = all(isinstance(entry, Inline) for entry in facts.values())
        with self._lock:
            self._facts[address] = Known(facts, expires_at)
            self._facts.move_to_end(address)
            if len(self._facts) > self._size:
                self._facts.popitem(last=False)
            former = self._latest.pop(scope, None)
            if former is None:
                latest = _Latest(own, True, inline, written)
            elif is_latest:
                same = former.checkpoint_id == own
                latest = _Latest(own, same, inline, same and former.written)
            elif own < former.checkpoint_id:
                latest = former
            else:
                latest = _Latest(own, former.trusted, inline, written)
            self._latest[scope] = latest
            if len(self._latest) > self._size:
                self._latest.popitem(last=False)

    def forget_threads(self, thread_ids: Iterable[str]) -> None:
        gone = set(thread_ids)
        with self._lock:
            for address in [a for a in self._facts if a.thread_id in gone]:
                del self._facts[address]
            for scope in [s for s in self._latest if s[0] in gone]:
                del self._latest[scope]


class Shared:
    """What a saver and its clones have in common.

    Attributes:
        cache: How recent checkpoints are stored.
        moves: Threads whose expiry is being moved.
        ready: Whether the indexes are known to be there.
        read_by_finds: Whether the server is known to refuse the aggregate that reads a checkpoint
            in one round trip; finds read the same then.
    """

    def __init__(self) -> None:
        self.cache = Cache()
        self.moves = Moves()
        self.ready = False
        self.read_by_finds = False
