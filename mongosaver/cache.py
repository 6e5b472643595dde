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

from mongosaver.codec import Facts, Inline
from mongosaver.identifiers import Address


class Cache:
    """The stored form of recent checkpoints, bounded by their number and safe between threads."""

    def __init__(self, size: int = 1024) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._facts: OrderedDict[Address, Facts] = OrderedDict()
        self._inline: OrderedDict[tuple[str, str], None] = OrderedDict()

    def is_inline(self, at: Address) -> bool:
        """Whether the last checkpoint seen of a thread and namespace had all its values inline."""
        with self._lock:
            return (at.thread_id, at.checkpoint_ns) in self._inline

    def get(self, address: Address) -> Facts | None:
        with self._lock:
            facts = self._facts.get(address)
            if facts is not None:
                self._facts.move_to_end(address)
            return facts

    def put(self, address: Address, facts: Facts) -> None:
        with self._lock:
            self._facts[address] = facts
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
        ready: Whether the indexes are known to be there.
        read_by_finds: Whether the server is known to refuse the aggregate that reads a checkpoint
            in one round trip; finds read the same then.
    """

    def __init__(self) -> None:
        self.cache = Cache()
        self.ready = False
        self.read_by_finds = False
