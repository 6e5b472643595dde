"""Group commit: inserts that wait at the same time on one event loop go as one command.

A command costs an event loop more than the small document that it carries, and while commands wait
for each other, graphs that run ahead of their saves pile up in memory. So while inserts into a
collection are on their way, later ones queue up, and whatever has queued goes together. An idle
saver sends at once, alone, as if there were no groups.

A caller is told what became of its own documents and of no others, in PyMongo's words for an insert
of just these: it cannot see whether it was in a group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final

import bson
import pymongo
from bson.codec_options import CodecOptions
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.errors import (
    BulkWriteError,
    DuplicateKeyError,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)

from mongosaver.schema import Document, Name

READS_AT_ONCE: Final = 8
"""Reads that one saver waits for at once on an event loop. After a reply a graph goes on, with all
its work; a burst of a hundred would hold the loop up for as long as they take together, and hold a
hundred states in memory."""

OTHERS_AT_ONCE: Final = 32
"""Other commands of one saver at once, beside the groups: so many connections at most."""

IN_FLIGHT: Final = 2
"""Groups of one collection that are on their way at once. More of them shorten the wait of a
document that comes a moment late, and make groups smaller."""

MAX_DOCUMENTS: Final = 100
MAX_BYTES: Final = 1024 * 1024
"""What a group takes, in documents and in bytes of BSON."""

MAX_EACH: Final = 64 * 1024
"""An insert of more bytes goes alone: it would make others wait longer than it saves."""

WOKEN: Final = 8
"""Callers that go on in one turn of the loop after a group has arrived. All together they would
hold the loop up for as long as they take together."""

_CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(tz_aware=True)


async def insert(collection: Any, documents: Sequence[Document], session: Any = None) -> None:
    """One command, awaited: with the documents of one caller only."""
    own = [dict(document) for document in documents]  # PyMongo adds an `_id` to what it is given
    if len(own) == 1:
        await collection.insert_one(own[0], session=session)
    else:
        await collection.insert_many(own, ordered=False, session=session)


class _Waiter:
    """An insert that waits for its turn and its outcome."""

    __slots__ = ("documents", "done", "encoded", "sending", "size")

    def __init__(self, documents: Sequence[Document], encoded: list[RawBSONDocument]) -> None:
        self.documents = documents
        self.encoded = encoded
        self.size = sum(len(each.raw) for each in encoded)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sending: _Sending | None = None


class _Sending:
    """A group that is on its way, and how many still wait for it."""

    __slots__ = ("task", "wanted")

    def __init__(self, task: asyncio.Task[Any], wanted: int) -> None:
        self.task = task
        self.wanted = wanted


class Group:
    """The inserts into one collection on one event loop."""

    def __init__(self, collection: Any, turns: asyncio.Semaphore) -> None:
        self._collection = collection
        self._turns = turns
        self._in_flight = 0
        self._queue: deque[_Waiter] = deque()

    async def insert(self, documents: Sequence[Document]) -> None:
        """Insert documents, with those of others where that saves a command.

        Cancelling it takes nothing from the others. As with any write that is cancelled, the
        documents may or may not be stored.
        """
        small = _is_small(documents)
        if small and self._in_flight < IN_FLIGHT and not self._queue:
            self._in_flight += 1
            try:
                await insert(self._collection, documents)
            finally:
                self._arrived()
            return
        encoded = _encoded(documents) if small else None
        if encoded is None:
            async with self._turns:
                await insert(self._collection, documents)
            return
        waiter = _Waiter(documents, encoded)
        self._queue.append(waiter)
        try:
            await waiter.done
        except asyncio.CancelledError:
            if waiter.sending is not None:
                waiter.sending.wanted -= 1
                if not waiter.sending.wanted:
                    waiter.sending.task.cancel()
            raise

    def _arrived(self) -> None:
        self._in_flight -= 1
        while self._in_flight < IN_FLIGHT and (waiters := self._next()):
            loop = waiters[0].done.get_loop()
            if loop.is_closed():
                return
            self._in_flight += 1
            # The caller's context ends here: its deadline (`pymongo.timeout`) is not the others'.
            task = Context().run(loop.create_task, self._send(waiters))
            task.add_done_callback(partial(self._landed, waiters))
            sending = _Sending(task, len(waiters))
            for waiter in waiters:
                waiter.sending = sending

    def _landed(
        self, waiters: Sequence[_Waiter], task: asyncio.Task[list[BaseException | None]]
    ) -> None:
        # Not in a `finally` of the task: one that is cancelled before its first step has none.
        self._arrived()
        if not task.cancelled():
            _wake(deque(zip(waiters, task.result(), strict=True)))
            return
        for waiter in waiters:
            waiter.done.cancel()

    def _next(self) -> list[_Waiter]:
        waiters: list[_Waiter] = []
        count = size = 0
        while self._queue:
            waiter = self._queue[0]
            if not waiter.done.done():  # else it was cancelled
                count += len(waiter.encoded)
                size += waiter.size
                if waiters and (count > MAX_DOCUMENTS or size > MAX_BYTES):
                    break
                waiters.append(waiter)
            self._queue.popleft()
        return waiters

    async def _send(self, waiters: Sequence[_Waiter]) -> list[BaseException | None]:
        together = [each for waiter in waiters for each in waiter.encoded]
        try:
            await self._collection.insert_many(together, ordered=False)
        except BulkWriteError as error:
            return _apart(error, waiters)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            return [_twin(error) for _ in waiters]
        return [None] * len(waiters)


def _is_small(documents: Sequence[Document]) -> bool:
    payloads = (
        len(value)
        for document in documents
        for value in document.values()
        if isinstance(value, bytes)
    )
    return len(documents) <= MAX_DOCUMENTS and sum(payloads) <= MAX_EACH


def _encoded(documents: Sequence[Document]) -> list[RawBSONDocument] | None:
    """The documents as they will be sent; None where they have to go alone.

    An insert with a deadline (`pymongo.timeout`) does: PyMongo keeps it for the caller that set it.
    What cannot be encoded raises here, what PyMongo would raise, and so reaches its owner only.
    """
    if _has_deadline():
        return None
    encoded = [
        RawBSONDocument(bson.encode({"_id": ObjectId(), **each}, codec_options=_CODEC))
        for each in documents
    ]
    return encoded if sum(len(each.raw) for each in encoded) <= MAX_EACH else None


def _has_deadline() -> bool:
    # There is no public way to ask. A release without the module has no deadline to respect here:
    # a group then runs without one, as the rest of it does.
    deadlines = getattr(pymongo, "_csot", None)
    return deadlines is not None and deadlines.get_timeout() is not None


def _wake(arrived: deque[tuple[_Waiter, BaseException | None]]) -> None:
    """Let the callers go on, a few in each turn of the event loop."""
    for _ in range(min(WOKEN, len(arrived))):
        waiter, outcome = arrived.popleft()
        if waiter.done.done():  # cancelled
            continue
        if outcome is None:
            waiter.done.set_result(None)
        else:
            waiter.done.set_exception(outcome)
    if arrived:
        asyncio.get_running_loop().call_soon(_wake, arrived)


def _apart(error: BulkWriteError, waiters: Sequence[_Waiter]) -> list[BaseException | None]:
    """The outcome of each insert, as if it had been the only one."""
    failures: dict[int, Mapping[str, Any]] = {
        failure["index"]: failure for failure in error.details["writeErrors"]
    }
    concerns: list[Mapping[str, Any]] = error.details["writeConcernErrors"]
    outcomes: list[BaseException | None] = []
    start = 0
    for waiter in waiters:
        failed = [
            {**failures[start + index], "index": index, "op": document}
            for index, document in enumerate(waiter.documents)
            if start + index in failures
        ]
        outcomes.append(_own(failed, concerns, len(waiter.documents)))
        start += len(waiter.documents)
    return outcomes


def _own(
    failed: list[dict[str, Any]], concerns: list[Mapping[str, Any]], count: int
) -> BaseException | None:
    if not failed and not concerns:
        return None
    if count > 1:
        details = {
            "writeErrors": failed,
            "writeConcernErrors": [dict(concern) for concern in concerns],
            "nInserted": count - len(failed),
            "nUpserted": 0,
            "nMatched": 0,
            "nModified": 0,
            "nRemoved": 0,
            "upserted": [],
        }
        return BulkWriteError(details)
    if failed:
        failure = {field: value for field, value in failed[0].items() if field != "op"}
        if failure["code"] == 11000:
            return DuplicateKeyError(failure["errmsg"], 11000, failure)
        return WriteError(failure["errmsg"], failure["code"], failure)
    concern = dict(concerns[-1])
    timed_out = concern.get("code") == 50 or concern.get("errInfo", {}).get("wtimeout")
    kind = WTimeoutError if timed_out else WriteConcernError
    return kind(concern.get("errmsg", ""), concern.get("code"), concern)


def _twin(error: Exception) -> Exception:
    """An error for one of several callers: raising it leaves the others' tracebacks alone."""
    twin = type(error).__new__(type(error), *error.args)
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    twin.__cause__ = error
    return twin


class OnLoop:
    """What a driver has on each event loop: turns for its commands, and groups of inserts."""

    def __init__(self, collections: Mapping[Name, Any]) -> None:
        self.reads = asyncio.Semaphore(READS_AT_ONCE)
        self.others = asyncio.Semaphore(OTHERS_AT_ONCE)
        self.groups = {
            name: Group(collection, self.others) for name, collection in collections.items()
        }


class Loops:
    """The event loops that a driver is used on. None is kept that was closed."""

    def __init__(self, collections: Mapping[Name, Any]) -> None:
        self._collections = collections
        self._known: dict[asyncio.AbstractEventLoop, OnLoop] = {}

    def here(self) -> OnLoop:
        """What belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        here = self._known.get(loop)
        if here is None:
            for other in [each for each in list(self._known) if each.is_closed()]:
                self._known.pop(other, None)
            here = self._known[loop] = OnLoop(self._collections)
        return here
