"""Migrations that take long or break off: the lock is kept, progress is seen, graphs go on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.errors import ConnectionFailure, OperationFailure

from mongosaver import MigrationLocked, migrations
from mongosaver._base import runner
from mongosaver.migrations import MIGRATIONS, Progress, migrate
from mongosaver.schema import INDEXES, Name
from tests.contract.samples import Line, config
from tests.server.faults import failing

if TYPE_CHECKING:
    from tests.faces import Face
    from tests.server.faults import Client, Wire


def migrated(face: Face, **options: Any) -> Any:
    """Migrates, and returns what was applied."""
    done = face.saver._driver.run(migrate(runner(face.collection), **options))  # type: ignore[attr-defined]
    return face.run(done) if hasattr(done, "__await__") else done


def fill(face: Face, count: int) -> None:
    """Inserts checkpoint documents."""
    rows = [
        {"format": 1, "thread_id": f"t{n % 997}", "checkpoint_ns": "", "checkpoint_id": f"{n:09}"}
        for n in range(count)
    ]
    for at in range(0, count, 20_000):
        face.collection.insert_many(rows[at : at + 20_000])


@contextlib.contextmanager
def held(client: Client, fail_point: str = "hangAfterStartingIndexBuild") -> Iterator[None]:
    """Makes index builds stop inside the block."""
    client.admin.command("configureFailPoint", fail_point, mode="alwaysOn")
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", fail_point, mode="off")


def until(holds: Callable[[], object], seconds: float = 20) -> None:
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def quick(victim: Face, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    """A victim with a short lease and no collections."""
    monkeypatch.setattr(migrations, "LEASE", 1.0)
    monkeypatch.setattr(migrations, "RENEW", 0.1)
    victim.drop()
    yield victim
    victim.drop()


def test_the_lock_is_kept_while_an_index_is_built(quick: Face, client: Client) -> None:
    """A build of many leases' length keeps its lock, and the server's progress is told."""
    fill(quick, 100)
    told: list[Progress] = []
    other = quick.another()
    with ThreadPoolExecutor(1) as pool:
        with held(client):
            building = pool.submit(migrated, quick, tell=told.append)
            until(lambda: any("building" in each.text for each in told))
            with pytest.raises(MigrationLocked):
                migrated(other, wait=2.5)
            assert not building.done()
            until(lambda: any(each.step for each in told))
        assert building.result() == MIGRATIONS
    [step, *_] = [each for each in told if each.step]
    assert step.migration is MIGRATIONS[1]
    assert step.text == f"checkpoints: building {INDEXES[Name.CHECKPOINTS][0].name}"


def test_progress_has_numbers(quick: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the collection is scanned the server counts its documents."""
    monkeypatch.setattr(migrations, "RENEW", 0.01)
    fill(quick, 120_000)
    told: list[Progress] = []
    migrated(quick, to=2, tell=told.append)
    [counted, *_] = [each for each in told if each.total]
    assert counted.total == 120_000
    assert counted.done is not None
    assert 0 < counted.done <= 120_000
    assert counted.step == "scanning collection"


def test_a_lock_that_is_lost_during_a_build_ends_the_run(quick: Face, client: Client) -> None:
    """The run stops; the server builds on, and the next run finds the index there."""
    fill(quick, 100)
    locks = quick.sibling(".migrations")
    with ThreadPoolExecutor(1) as pool:
        with held(client):
            told: list[Progress] = []
            building = pool.submit(migrated, quick, tell=told.append)
            until(lambda: any(each.step for each in told))
            locks.update_one({"_id": "lock"}, {"$set": {"owner": "other", "host": "there"}})
            with pytest.raises(MigrationLocked, match=r"on there.*took over"):
                building.result(20)
        assert migrated(quick.another(), wait=10) == MIGRATIONS[1:]
    complete(quick)


@pytest.mark.parametrize("victim", ["async", "motor"], indirect=True)
def test_a_cancelled_setup_is_finished_by_the_next(quick: Face, client: Client) -> None:
    """A setup that is cancelled while the server builds leaves a lock that runs out."""
    fill(quick, 100)

    building = asyncio.Event()

    def tell(at: Progress) -> None:
        if "building" in at.text:
            building.set()

    async def cancelled() -> None:
        plan = migrate(runner(quick.collection), tell=tell)
        task = asyncio.ensure_future(quick.saver._driver.run(plan))  # type: ignore[attr-defined]
        await building.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with held(client):
        quick.run(cancelled())
    assert migrated(quick.another(), wait=10) == MIGRATIONS[1:]


NAMES = ["listCollections", "find", "findAndModify", "create", "listIndexes", "createIndexes"]


@pytest.mark.parametrize("name", [*NAMES, "delete"])
def test_a_refused_command_ends_a_run_and_the_next_one_need_not_wait(
    quick: Face, client: Client, name: str
) -> None:
    """The server's error surfaces and the lock is given back; the same again does all of it."""
    with failing(client, [name], errorCode=8000) as hits:
        if name == "create":  # is taken for a refusal of the compression
            assert migrated(quick) == MIGRATIONS
        else:
            with pytest.raises(OperationFailure) as error:
                migrated(quick)
            assert error.value.code == 8000
    assert hits.count == 1
    started = time.monotonic()
    migrated(quick.another())
    # Where giving it back is what failed, its time has to run out.
    assert time.monotonic() - started < (20 if name == "delete" else 1)
    complete(quick)
    notes = quick.sibling(".migrations").count_documents({"notes": {"$exists": True}})
    assert notes == (name == "create")


@pytest.mark.parametrize(("wired", "step"), [("sync", 1), ("async", 3)], indirect=["wired"])
def test_a_run_whose_connection_breaks_is_finished_by_the_next(
    wired: Face, wire: Wire, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Each command is carried out and its reply is lost; the next runner does the rest."""
    monkeypatch.setattr(migrations, "LEASE", 0.2)
    for at in itertools.count(0, step):
        wired.drop()
        wire.cut(at, "after")
        before = wire.cuts
        with contextlib.suppress(ConnectionFailure):
            migrated(wired)
        if wire.cuts == before:
            wire.cut(-1, "")
            break
        migrated(wired.another(), wait=10)
        complete(wired)
    assert at > 25
    wired.drop()


def complete(face: Face) -> None:
    """Asserts that all indexes are there, and all records, and no lock."""
    for name, indexes in INDEXES.items():
        there = face.sibling(name.value).index_information()
        assert set(there) == {"_id_", *(index.name for index in indexes)}
    records = face.sibling(".migrations").find({}, {"_id": 1}).sort("_id", 1)
    assert [each["_id"] for each in records] == [m.number for m in MIGRATIONS]


def test_graphs_go_on_while_indexes_are_built(victim: Face, client: Client) -> None:
    """Puts and reads beside a migration never fail, and what was put is there."""
    victim.drop()
    migrated(victim, to=2)
    fill(victim, 60_000)
    writer = victim.another()
    writer.saver._shared.ready = True  # type: ignore[attr-defined]
    line = Line(writer, "beside")
    line.put({"n": 0})
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(migrated, victim)
        while not building.done():
            line.put({"n": len(line.ids)})
            assert writer.get_tuple(config("beside")) is not None
        assert building.result() == MIGRATIONS[2:]
    line.check()
    assert len(line.ids) > 3
    there = victim.collection.index_information()
    assert {index.name for index in INDEXES[Name.CHECKPOINTS]} < set(there)
    victim.drop()
