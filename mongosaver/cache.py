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
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from mongosaver.codec import Facts, Inline
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


class Cache:
    """The stored form of recent checkpoints, bounded by their number and safe between threads."""

    def __init__(self, size: int = 1024) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._facts: OrderedDict[Address, Known] = OrderedDict()
        self._inline: OrderedDict[tuple[str, str], None] = OrderedDict()

    def is_inline(self, at: Address) -> bool:
        """Whether the last checkpoint seen of a thread and namespace had all its values inline."""
        with self._lock:
            return (at.thread_id, at.checkpoint_ns) in self._inline

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

    def put(self, address: Address, facts: Facts, expires_at: datetime | None = None) -> None:
        with self._lock:
            self._facts[address] = Known(facts, expires_at)
            self._facts.move_to_end(address)
            if len(self._facts) > self._size:
                self._facts.popitem(last=False)
            scope = (address.thread_id, address.checkpoint_ns)
            self._inline.pop(scope, None)
            if all(isinstance(entry, Inline) for entry in facts.values()):
                self._inline[scope] = None
                if len(self._inline) > self._size:
                    self._inline.popitem(last=False)

    def forget_threads(self, thread_ids: Iterable[str]) -> None:
        gone = set(thread_ids)
        with self._lock:
            for address in [a for a in self._facts if a.thread_id in gone]:
                del self._facts[address]


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
