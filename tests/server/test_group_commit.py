"""Group commit: inserts that go together, and what each caller is told, on a real server.

The first few inserts of a burst go alone, as there is nothing to wait for; whatever comes before
they have arrived goes together. So each test here begins with a burst.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import uuid
from collections.abc import Sequence
from typing import Any

import pymongo
import pytest
from bson.errors import InvalidDocument
from pymongo import AsyncMongoClient
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    DocumentTooLarge,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)

from mongosaver import AsyncMongoSaver, grouping
from mongosaver.grouping import IN_FLIGHT, MAX_BYTES, MAX_DOCUMENTS, MAX_EACH
from mongosaver.ops import Insert, Plan
from mongosaver.plans.write import is_own_duplicate
from mongosaver.schema import Document, Name
from mongosaver.testing import MongoServer
from tests.contract.samples import checkpoint, config, metadata
from tests.faces import FACES, Face, Sent, Stage
from tests.server.faults import failing, wait_for

DRIVERS = ["async", "motor"]
MANY = 30


@pytest.fixture(params=DRIVERS)
def grouped(request: pytest.FixtureRequest, stage: Stage) -> Face:
    """A victim whose driver does not retry."""
    return _ready(request.param, stage)


@pytest.fixture(params=DRIVERS)
def retrying_grouped(request: pytest.FixtureRequest, retrying_stage: Stage) -> Face:
    """A victim with its driver's defaults."""
    return _ready(request.param, retrying_stage)


def _ready(driver: str, stage: Stage) -> Face:
    grouped = FACES[driver](stage, f"groups_{uuid.uuid4().hex[:8]}")
    grouped.setup()
    return grouped


def write(idx: int, value: bytes = b"x", thread: str = "t", **fields: Any) -> Document:
    """Returns a document with a slot of its own."""
    key = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": "1", "task_id": "task"}
    return {**key, "idx": idx, "part": 0, "value": value, **fields}


async def inserted(grouped: Face, *documents: Document) -> None:
    """Inserts documents, as a plan does."""

    def plan() -> Plan[None]:
        yield Insert(Name.WRITES, documents)

    await grouped.saver._driver.run(plan())  # type: ignore[attr-defined]


def burst(grouped: Face, *inserts: Sequence[Document]) -> list[BaseException | None]:
    """Returns what became of inserts that are made at once, after some that go alone."""

    async def main() -> list[BaseException | None]:
        alone = [write(-n, thread="alone " + uuid.uuid4().hex) for n in range(1, IN_FLIGHT + 1)]
        return await asyncio.gather(
            *(inserted(grouped, document) for document in alone),
            *(inserted(grouped, *documents) for documents in inserts),
            return_exceptions=True,
        )

    return grouped.run(main())[IN_FLIGHT:]


def stored(grouped: Face) -> dict[int, Document]:
    """Returns the documents of the thread `t` by their slot."""
    return {each["idx"]: each for each in grouped.sibling(".writes").find({"thread_id": "t"})}


def inserts(sent: Sequence[Sent]) -> list[int]:
    """Returns how many documents each insert carried."""
    return [len(each.command["documents"]) for each in sent if each.name == "insert"]


# --- what goes together


def test_a_burst_is_few_commands(grouped: Face) -> None:
    """Puts of a hundred threads at once are a handful of commands, and all are stored."""

    async def main() -> None:
        await asyncio.gather(
            *(
                grouped.saver.aput(config(f"t{n}"), checkpoint({"a": n}), metadata(), {"a": "1"})
                for n in range(100)
            )
        )

    with grouped.commands.recorded() as sent:
        grouped.run(main())
    counts = inserts(sent)
    assert len(counts) == IN_FLIGHT + 1
    assert sum(counts) == 100
    for n in range(100):
        found = grouped.another().get_tuple(config(f"t{n}"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": n}


def test_one_after_another_are_commands_of_their_own(grouped: Face) -> None:
    """Who is alone waits for nobody and is told apart by nothing."""
    with grouped.commands.recorded() as sent:
        for n in range(3):
            grouped.run(inserted(grouped, write(n)))
        grouped.run(inserted(grouped, write(3), write(4)))
    assert inserts(sent) == [1, 1, 1, 2]
    assert len(stored(grouped)) == 5


def test_groups_have_limits(grouped: Face) -> None:
    """No command takes more than so many documents, nor more than so many bytes."""
    many = MAX_DOCUMENTS * 2 + 50
    with grouped.commands.recorded() as sent:
        burst(grouped, *[[write(n)] for n in range(many)])
        counts = len(sent)
        burst(grouped, *[[write(n, b"x" * 60_000)] for n in range(many, many + 40)])
    assert max(inserts(sent)) <= MAX_DOCUMENTS
    assert len(inserts(sent[:counts])) <= IN_FLIGHT + 3
    for each in sent[counts:]:
        assert sum(len(document["value"]) for document in each.command["documents"]) <= MAX_BYTES
    assert len(stored(grouped)) == many + 40


def test_what_is_large_goes_alone(grouped: Face) -> None:
    """A large document does not make small ones wait for it, nor does a pile of documents."""
    large = [[write(n, b"x" * (MAX_EACH + 1))] for n in range(4)]
    text = [[write(4, b"", text="x" * (MAX_EACH + 1))]]
    pile = [[write(n) for n in range(100, 101 + MAX_DOCUMENTS)]]
    with grouped.commands.recorded() as sent:
        assert burst(grouped, *large, *text, *pile) == [None] * 6
    assert sorted(inserts(sent)) == [1] * (IN_FLIGHT + 5) + [MAX_DOCUMENTS + 1]
    assert len(stored(grouped)) == 5 + MAX_DOCUMENTS + 1


def test_what_is_large_makes_nobody_wait(grouped: Face) -> None:
    """A large document that is on its way is none that small ones queue up behind."""

    async def main() -> None:
        large = [inserted(grouped, write(n, b"x" * (MAX_EACH + 1))) for n in range(IN_FLIGHT)]
        small = [inserted(grouped, write(n)) for n in range(100, 100 + IN_FLIGHT)]
        await asyncio.gather(*large, *small)

    with grouped.commands.recorded() as sent:
        grouped.run(main())
    assert inserts(sent) == [1] * IN_FLIGHT * 2


@pytest.mark.parametrize("deadlines_first", [False, True])
def test_what_has_a_deadline_goes_alone(stage: Stage, deadlines_first: bool) -> None:
    """A timeout that is set around a call holds for its own command, and for nobody else's."""
    grouped = _ready("async", stage)

    async def soon(n: int) -> None:
        with pymongo.timeout(20):
            await inserted(grouped, write(n))

    async def main() -> None:
        others = [inserted(grouped, write(n)) for n in range(10, 20)]
        pressed = [soon(n) for n in range(4)]
        await asyncio.gather(*(pressed + others if deadlines_first else others + pressed))

    with grouped.commands.recorded() as sent:
        grouped.run(main())
    alone = IN_FLIGHT if not deadlines_first else 0
    assert sorted(inserts(sent)) == [1] * (alone + 4) + [10 - alone]
    pressed = ["maxTimeMS" in each.command for each in sent]
    assert pressed.count(True) == 4
    assert not any("maxTimeMS" in each.command for each in sent if inserts([each]) != [1])
    assert len(stored(grouped)) == 14


# --- what each is told


def test_everybody_is_told_of_their_own(grouped: Face) -> None:
    """Whoever was not refused has all their documents stored; who was is told which are not."""
    chance = random.Random(grouped.name)
    for _ in range(20):
        grouped.sibling(".writes").delete_many({})
        slots = [chance.sample(range(40), chance.choice([1, 1, 1, 2, 5])) for _ in range(MANY)]
        outcomes = burst(
            grouped, *[[write(idx, who=who) for idx in own] for who, own in enumerate(slots)]
        )
        owners = {idx: each["who"] for idx, each in stored(grouped).items()}
        assert owners.keys() == {idx for own in slots for idx in own}
        for who, (own, outcome) in enumerate(zip(slots, outcomes, strict=True)):
            lost = [n for n, idx in enumerate(own) if owners[idx] != who]
            if not lost:
                assert outcome is None
                continue
            assert isinstance(outcome, DuplicateKeyError if len(own) == 1 else BulkWriteError)
            assert is_own_duplicate(outcome, Name.WRITES)
            details: Any = outcome.details
            failed = details.get("writeErrors", [details])
            assert [failure["index"] for failure in failed] == lost
            for failure in failed:
                assert failure["keyValue"]["idx"] == own[failure["index"]]
        assert len({id(outcome) for outcome in outcomes if outcome}) == sum(map(bool, outcomes))


def _described(error: BaseException | None) -> Any:
    assert isinstance(error, OperationFailure)
    details: Any = dict(error.details or {})
    for failure in details.get("writeErrors", ()):
        failure["op"] = {k: v for k, v in failure["op"].items() if k != "_id"}
    # What a command's own reply says besides, such as times, differs from one to the next.
    return type(error), error.code, error.timeout, details


def _alone(grouped: Face, documents: Sequence[Document]) -> BaseException | None:
    async def main() -> BaseException | None:
        try:
            await grouping.insert(
                grouped.native.database[grouped.native.name + ".writes"], documents
            )
        except PyMongoError as error:
            return error
        return None

    return grouped.run(main())


CASES = [[write(1)], [write(2)], [write(3), write(1)], [write(2), write(4), write(1)]]


def test_a_duplicate_is_told_as_by_pymongo(grouped: Face) -> None:
    """Class, code, details and text are those of an insert that nobody else was in."""
    burst(grouped, [write(1), write(2)])
    outcomes = burst(grouped, *CASES)
    assert sorted(stored(grouped)) == [1, 2, 3, 4]
    grouped.sibling(".writes").delete_many({"idx": {"$gt": 2}, "thread_id": "t"})
    for outcome, documents in zip(outcomes, CASES, strict=True):
        expected = _alone(grouped, documents)
        assert _described(outcome) == _described(expected)
        assert str(outcome).split(", full error")[0] == str(expected).split(", full error")[0]


def _details(error: BaseException | None) -> Any:
    assert isinstance(error, OperationFailure)
    details: Any = error.details
    details["errInfo"]["failingDocumentId"] = None  # each document has an id of its own
    return details


def test_a_refused_document_is_told_as_by_pymongo(grouped: Face) -> None:
    """A validator that somebody set refuses one document, and the others are stored."""
    rule = {"value": {"$ne": b"bad"}}
    grouped.collection.database.command(
        "collMod", grouped.collection.name + ".writes", validator=rule
    )
    first, *others = burst(grouped, [write(1, b"bad")], [write(2)], [write(3)])
    assert others == [None, None]
    assert type(first) is WriteError
    assert first.code == 121
    assert _details(first) == _details(_alone(grouped, [write(1, b"bad")]))


@pytest.mark.parametrize("timed_out", [True, False])
def test_a_write_concern_that_is_not_met_is_told_to_everybody(
    grouped: Face, timed_out: bool
) -> None:
    """It holds for the whole command, and nobody takes it for a duplicate of their own."""
    burst(grouped, [write(1), write(2)])
    concern: dict[str, Any] = {"code": 64, "errmsg": "waiting for replication timed out"}
    if timed_out:
        concern["errInfo"] = {"wtimeout": True}
    with failing(grouped.stage.plain, ["insert"], times=None, writeConcernError=concern):
        outcomes = burst(grouped, [write(8)], [write(9), write(10)], *CASES)
        grouped.sibling(".writes").delete_many({"idx": {"$gt": 2}, "thread_id": "t"})
        expected = [_alone(grouped, each) for each in ([write(8)], [write(9), write(10)], *CASES)]
    assert [_described(each) for each in outcomes] == [_described(each) for each in expected]
    assert type(outcomes[0]) is (WTimeoutError if timed_out else WriteConcernError)
    # As with an insert of its own, PyMongo prefers a duplicate where there is one document.
    told = [is_own_duplicate(each, Name.WRITES) for each in outcomes[2:]]  # type: ignore[arg-type]
    assert told == [True, True, False, False]


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (write(5, what=object()), InvalidDocument),
        (write(5, what=1 << 70), OverflowError),
        (write(5, b"x" * 17_000_000), DocumentTooLarge),
        (write(5, text="x" * 17_000_000), DocumentTooLarge),
    ],
    ids=["no BSON", "no int64", "too large", "too large a text"],
)
def test_what_cannot_be_sent_is_told_to_its_owner(
    grouped: Face, document: Document, kind: type[Exception]
) -> None:
    """The error is the one of an insert of its own, and reaches nobody else."""
    outcomes = burst(grouped, *[[write(n)] for n in range(5)], [document], [write(6)])
    outcome = outcomes.pop(5)
    assert type(outcome) is kind
    with pytest.raises(kind) as raised:
        _alone(grouped, [document])
    assert str(outcome).split(" 0x")[0] == str(raised.value).split(" 0x")[0]
    assert outcomes == [None] * 6
    assert sorted(stored(grouped)) == [0, 1, 2, 3, 4, 6]


def test_a_refused_command_is_told_to_everybody(grouped: Face) -> None:
    """Each gets an error object of its own, so that tracebacks are not mixed."""
    with failing(grouped.stage.plain, ["insert"], times=None, errorCode=8000):
        outcomes = burst(grouped, *[[write(n)] for n in range(MANY)])
    assert {type(each) for each in outcomes} == {OperationFailure}
    assert {each.code for each in outcomes} == {8000}  # type: ignore[union-attr]
    assert len({str(each) for each in outcomes}) == 1
    assert len({id(each) for each in outcomes}) == MANY
    assert len({id(each.__traceback__) for each in outcomes if each}) == MANY
    assert stored(grouped) == {}
    assert burst(grouped, *[[write(n)] for n in range(MANY)]) == [None] * MANY


def test_a_lost_connection_is_told_to_everybody(grouped: Face) -> None:
    """Nobody hangs, and the next burst finds the groups in order."""
    with failing(grouped.stage.plain, ["insert"], times=None, closeConnection=True):
        outcomes = burst(grouped, *[[write(n)] for n in range(MANY)])
    assert all(isinstance(each, AutoReconnect) for each in outcomes)
    assert len({id(each) for each in outcomes}) == MANY
    wait_for(lambda: burst(grouped, [write(100)])[0] is None)
    assert burst(grouped, *[[write(n)] for n in range(MANY)]) == [None] * MANY


def test_a_lost_connection_is_mended_by_retries(retrying_grouped: Face) -> None:
    """A group is a retryable write as its inserts are: nothing is lost and nothing told."""
    for times in range(1, IN_FLIGHT + 2):
        retrying_grouped.sibling(".writes").delete_many({"thread_id": "t"})
        with failing(retrying_grouped.stage.plain, ["insert"], times=times, closeConnection=True):
            outcomes = burst(retrying_grouped, *[[write(n)] for n in range(MANY)])
        lost = [n for n, outcome in enumerate(outcomes) if outcome]
        # Only where one command is met twice in a row its retry fails too.
        assert times > 1 or not lost
        assert all(isinstance(outcomes[n], AutoReconnect) for n in lost)
        assert stored(retrying_grouped).keys() >= set(range(MANY)) - set(lost)


# --- cancelling


def test_a_cancelled_caller_takes_nothing_from_the_others(grouped: Face) -> None:
    """Cancelled alone, queued or on its way, it ends soon, and all others are stored and told."""

    async def main() -> list[Any]:
        tasks = [asyncio.ensure_future(inserted(grouped, write(n))) for n in range(MANY)]
        await asyncio.sleep(0.02)
        for n in (0, 5, 6, MANY - 1):
            tasks[n].cancel()
        await asyncio.sleep(0.05)
        assert tasks[5].done()
        assert not tasks[7].done()  # the first one's place is free, so its group is on its way
        tasks[7].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    where = f"{grouped.stage.database}.{grouped.collection.name}.writes"
    with failing(
        grouped.stage.plain,
        ["insert"],
        times=None,
        blockConnection=True,
        blockTimeMS=500,
        namespace=where,
    ):
        outcomes = grouped.run(main())
    gone = {n for n, outcome in enumerate(outcomes) if outcome is not None}
    assert {type(outcomes[n]).__name__ for n in gone} == {"CancelledError"}
    assert gone == {0, 5, 6, 7, MANY - 1}
    assert stored(grouped).keys() >= set(range(MANY)) - gone
    assert not stored(grouped).keys() & {5, 6, MANY - 1}  # they were in no command yet
    assert burst(grouped, [write(100)]) == [None]


def test_cancelling_all_leaves_no_task_behind(grouped: Face) -> None:
    """A group that nobody waits for any more is given up, and so is what it was to send."""

    def sending() -> int:
        coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
        return sum("Group._send" in each.__qualname__ for each in coroutines)

    async def main() -> None:
        tasks = [asyncio.ensure_future(inserted(grouped, write(n))) for n in range(MANY)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.05)
        assert sending() == 1
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0.05)
        assert sending() == 0

    where = f"{grouped.stage.database}.{grouped.collection.name}.writes"
    with failing(
        grouped.stage.plain,
        ["insert"],
        times=None,
        blockConnection=True,
        blockTimeMS=200,
        namespace=where,
    ):
        grouped.run(main())
    assert burst(grouped, [write(100)]) == [None]


@pytest.mark.parametrize("begun", [True, False])
def test_a_group_that_is_cancelled_keeps_nobody_waiting(grouped: Face, begun: bool) -> None:
    """Where a program cancels every task callers do not hang, and later ones find their place."""

    async def alone(n: int) -> None:
        await inserted(grouped, write(n))
        if begun:
            await asyncio.sleep(0.05)
        for task in asyncio.all_tasks():
            coroutine: Any = task.get_coro()
            if "Group._send" in coroutine.__qualname__:
                task.cancel()

    async def main() -> list[Any]:
        others = [inserted(grouped, write(n)) for n in range(IN_FLIGHT, MANY)]
        first = map(alone, range(IN_FLIGHT))
        together = asyncio.gather(*first, *others, return_exceptions=True)
        return await asyncio.wait_for(together, 20)

    where = f"{grouped.stage.database}.{grouped.collection.name}.writes"
    with failing(
        grouped.stage.plain,
        ["insert"],
        times=None,
        blockConnection=True,
        blockTimeMS=200,
        namespace=where,
    ):
        for _ in range(IN_FLIGHT):
            outcomes = grouped.run(main())
            assert outcomes[:IN_FLIGHT] == [None] * IN_FLIGHT
            assert {type(each).__name__ for each in outcomes[IN_FLIGHT:]} == {"CancelledError"}
            grouped.sibling(".writes").delete_many({"thread_id": "t"})
    assert burst(grouped, [write(100)], [write(101)]) == [None, None]


@pytest.mark.parametrize("after", [0, 0.001, 0.01])
def test_a_loop_may_end_in_the_middle(
    server: MongoServer, database: str, caplog: pytest.LogCaptureFixture, after: float
) -> None:
    """An event loop that ends while groups are on their way leaves no complaint behind."""

    async def closed_at_the_end(client: Any) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await client.close()

    async def main() -> None:
        client: AsyncMongoClient[Any] = AsyncMongoClient(server.uri)
        saver = AsyncMongoSaver(client[database]["ended"])
        await saver.setup()
        puts = [
            asyncio.ensure_future(
                saver.aput(config(f"t{n}"), checkpoint({"a": n}), metadata(), {"a": "1"})
            )
            for n in range(100)
        ]
        closing = asyncio.ensure_future(closed_at_the_end(client))
        await asyncio.sleep(after)
        del puts, closing

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
        gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []
