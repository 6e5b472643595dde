"""Migrations on a real server: from every prefix, at once, broken off, and what is in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from mongosaver import (
    MigrationLocked,
    SchemaOutOfDate,
    SchemaTooNew,
    SetupRefused,
    __version__,
    migrations,
)
from mongosaver._base import runner
from mongosaver.migrations import MIGRATIONS, Migration, Progress, migrate, status
from mongosaver.ops import FindOneAndUpdate
from mongosaver.schema import INDEXES, NEWEST, NEWEST_OF_THREAD, Name
from tests.contract.interrupted import Interrupted, between_operations
from tests.contract.samples import Line, checkpoint, config, metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faces import Face

pytestmark = pytest.mark.new_collection

STORED = ("", ".writes", ".blobs")


def run(face: Face, plan: Any) -> Any:
    """Runs a plan by the driver of the face's saver."""
    done = face.saver._driver.run(plan)  # type: ignore[attr-defined]
    return face.run(done) if hasattr(done, "__await__") else done


def migrated(face: Face, **options: Any) -> Any:
    """Migrates, and returns what was applied."""
    return run(face, migrate(runner(face.collection), **options))


def indexes(face: Face) -> dict[str, dict[str, Any]]:
    """Returns what the server says of each index, without what depends on its name or order."""
    found = {}
    for suffix in STORED:
        there = face.sibling(suffix).list_indexes()
        found[suffix] = {each["name"]: dict(each, key=list(each["key"].items())) for each in there}
    return found


def records(face: Face) -> list[dict[str, Any]]:
    """Returns the recorded migrations, in order."""
    return list(face.sibling(".migrations").find({"_id": {"$type": "number"}}).sort("_id"))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> float:
    """A lease that a test can wait for."""
    monkeypatch.setattr(migrations, "LEASE", 0.2)
    return 0.2


def test_a_fresh_schema_is_all_migrations_in_order(mongo_face: Face) -> None:
    """`setup` leaves what `INDEXES` says, made step by step, and a record of each migration."""
    assert migrated(mongo_face) == MIGRATIONS
    step_by_step = indexes(mongo_face)
    assert {name: {index.name for index in made} | {"_id_"} for name, made in INDEXES.items()} == {
        Name(suffix): set(found) for suffix, found in step_by_step.items()
    }
    mongo_face.drop()
    mongo_face.setup()
    assert indexes(mongo_face) == step_by_step
    found = records(mongo_face)
    assert [(one["_id"], one["name"], one["phase"]) for one in found] == [
        (m.number, m.name, m.phase) for m in MIGRATIONS
    ]
    for one in found:
        assert set(one) - {"_id"} == {
            *("format", "name", "phase", "applied_at", "milliseconds", "version"),
        }
        assert (one["version"], one["format"]) == (__version__, 1)
        assert 0 <= one["milliseconds"] < 60_000
    dates = [one["applied_at"] for one in found]
    assert dates == sorted(dates)
    assert mongo_face.sibling(".migrations").count_documents({"_id": "lock"}) == 0


def test_collections_are_compressed(mongo_face: Face) -> None:
    """All that hold threads are made with zstd, which this server takes."""
    mongo_face.setup()
    for suffix in STORED:
        options = mongo_face.sibling(suffix).options()
        assert "zstd" in str(options), suffix


@pytest.mark.parametrize("prefix", range(len(MIGRATIONS) + 1))
def test_every_prefix_leads_to_the_same_schema(mongo_face: Face, thread: str, prefix: int) -> None:
    """From wherever an earlier version left it, with or without threads, it comes to the same."""
    assert migrated(mongo_face, to=prefix) == MIGRATIONS[:prefix]
    assert len(records(mongo_face)) == prefix
    if prefix >= 2:
        line = Line(mongo_face.another(), thread)
        line.face.saver._shared.ready = True  # type: ignore[attr-defined]
        line.put({"a": 1})
    if prefix < len(MIGRATIONS):
        with pytest.raises(SchemaOutOfDate, match=MIGRATIONS[-1].name):
            Line(mongo_face.another(auto_setup=False), thread + "2").put({"a": 1})
    Line(mongo_face.another(), thread + "2").put({"a": 1})
    found = indexes(mongo_face)
    assert len(records(mongo_face)) == len(MIGRATIONS)
    mongo_face.drop()
    mongo_face.setup()
    assert found == indexes(mongo_face)


def test_migrating_twice_changes_nothing(mongo_face: Face) -> None:
    """The second run finds nothing to do and sends no index command; the record stays as it was."""
    migrated(mongo_face)
    before = indexes(mongo_face), records(mongo_face)
    with mongo_face.commands.recorded() as sent:
        assert migrated(mongo_face) == ()
    assert {one.name for one in sent} == {
        *("listCollections", "listIndexes", "find", "findAndModify", "delete"),
    }
    assert (indexes(mongo_face), records(mongo_face)) == before


def test_a_database_without_a_record_is_taken_on(mongo_face: Face, thread: str) -> None:
    """One that an earlier version set up gets the record, and no index is built again.

    Its expiry indexes held every document, which does as well.
    """
    for name, made in INDEXES.items():
        for index in made:
            options: dict[str, Any] = {"unique": True} if index.unique else {}
            if index.expires:
                options["expireAfterSeconds"] = 0
            elif index.partial is not None:
                options["partialFilterExpression"] = index.partial
            mongo_face.sibling(name.value).create_index(list(index.keys), **options)
    Line(mongo_face.another(), thread)
    before = indexes(mongo_face)
    with mongo_face.commands.recorded() as sent:
        Line(mongo_face, thread).put({"a": 1})
    assert not any(one.name in ("createIndexes", "collMod", "create") for one in sent)
    assert indexes(mongo_face) == before
    assert len(records(mongo_face)) == len(MIGRATIONS)


def test_eight_runners_at_once(mongo_face: Face) -> None:
    """Each migration is applied by exactly one of them, and all of them return."""
    faces = [mongo_face.another() for _ in range(8)]
    barrier = threading.Barrier(8)

    def one(face: Face) -> Any:
        barrier.wait(10)
        return migrated(face)

    with mongo_face.commands.recorded() as sent, ThreadPoolExecutor(8) as pool:
        done = list(pool.map(one, faces))
    assert sorted(m.number for each in done for m in each) == [m.number for m in MIGRATIONS]
    made = [index["name"] for each in sent for index in each.command.get("indexes", ())]
    assert len(made) == sum(map(len, INDEXES.values()))


PROCESSES = """
import os, sys
from pymongo import MongoClient
from mongosaver import MongoSaver
from mongosaver._base import runner
from mongosaver.migrations import migrate

uri, database, collection = sys.argv[1:]
go, start = os.pipe()
children = []
for n in range(8):
    child = os.fork()
    if child == 0:
        os.close(start)
        os.read(go, 1)  # ends when the parent closes its side: all children start at once
        with MongoClient(uri) as client:
            saver = MongoSaver(client[database][collection])
            done = saver._driver.run(migrate(runner(saver._collection)))
            os.write(1, b"".join(b"%d\\n" % m.number for m in done))
        os._exit(0)
    children.append(child)
os.close(start)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.mark.only_faces("sync")
def test_eight_processes_at_once(mongo_face: Face) -> None:
    """The lock holds between processes: each migration is applied once."""
    names = (mongo_face.stage.uri, mongo_face.stage.database, mongo_face.collection.name)
    arguments = [sys.executable, "-c", PROCESSES, *names]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(map(int, done.stdout.split())) == [m.number for m in MIGRATIONS]


# --- broken off --------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_died_at_any_command_is_finished_by_the_next(
    mongo_face: Face, short: float, when: str
) -> None:
    """However far it came, the next runner takes over when the lease has run out, and finishes."""
    mongo_face.setup()
    wanted = indexes(mongo_face)
    at, broken = 0, 0
    # Each of the two drivers goes through all of them, in one of the two ways.
    step = 1 if (mongo_face.name, when) in (("sync", "after"), ("async", "before")) else 7
    while True:
        mongo_face.drop()
        left = at

        def count(_: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted

        try:
            with between_operations(mongo_face, **{when: count}):
                migrated(mongo_face)
        except Interrupted:
            broken += 1
        else:
            break
        migrated(mongo_face.another(), wait=5)
        assert indexes(mongo_face) == wanted, at
        assert len(records(mongo_face)) == len(MIGRATIONS)
        at += step
    assert broken > (30 if step == 1 else 4)


KILLED = """
import sys, time
from pymongo import MongoClient
from mongosaver import MongoSaver, migrations
from mongosaver._base import runner

uri, database, collection = sys.argv[1:]
migrations.LEASE = 1.0
def steps(work):
    print("at work", flush=True)
    time.sleep(600)
    yield
with MongoClient(uri) as client:
    saver = MongoSaver(client[database][collection])
    history = (migrations.Migration(1, "collections", "expand", steps),)
    saver._driver.run(migrations.migrate(runner(saver._collection), migrations=history))
"""


@pytest.mark.only_faces("sync", "async")
def test_a_runner_that_was_killed_is_taken_over(mongo_face: Face) -> None:
    """Until its lease runs out the others say who it is; then the next one goes on."""
    names = (mongo_face.stage.uri, mongo_face.stage.database, mongo_face.collection.name)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, *names], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "at work\n"
        with pytest.raises(MigrationLocked) as error:
            migrated(mongo_face, wait=0)
        assert error.value.pid == process.pid
        assert str(process.pid) in str(error.value)
        os.kill(process.pid, signal.SIGKILL)
    assert migrated(mongo_face, wait=10) == MIGRATIONS


def slow(seconds: float) -> Any:
    """Returns steps that take a time, in small parts, and renew nothing."""

    def steps(work: Any) -> Any:
        from mongosaver.ops import Sleep

        yield Sleep(seconds)

    return steps


def test_the_others_wait_while_one_works(mongo_face: Face) -> None:
    """A second runner waits, is told for whom, and finds everything done."""
    history = (Migration(1, "slow", "expand", slow(1.0)),)
    told: list[Progress] = []
    other = mongo_face.another()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(migrated, mongo_face, migrations=history)
        until(lambda: mongo_face.sibling(".migrations").find_one({"_id": "lock"}) is not None)
        with pytest.raises(MigrationLocked, match=f"process {os.getpid()} on "):
            migrated(other, migrations=history, wait=0.1)
        assert migrated(other, migrations=history, tell=told.append) == ()
        assert first.result() == history
    assert f"waiting for process {os.getpid()} on" in told[0].text


def test_a_runner_that_was_taken_over_stops(mongo_face: Face, short: float) -> None:
    """One that was not heard of for a lease does not work beside the next one."""
    history = (Migration(1, "slow", "expand", slow(1.0)), *MIGRATIONS[1:])
    with ThreadPoolExecutor(1) as pool:
        told: list[Progress] = []
        first = pool.submit(migrated, mongo_face, migrations=history, tell=told.append)
        until(lambda: told)
        second = (Migration(2, "slow", "expand", slow(2.0)),)
        other = mongo_face.another()
        # Its lease is long: the first one meets it.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migrations, "LEASE", 30.0)
            assert migrated(other, migrations=second, wait=5) == second
            with pytest.raises(MigrationLocked, match="took over"):
                first.result()


def until(holds: Any, seconds: float = 10) -> None:
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- in the way --------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", STORED)
def test_an_index_under_another_name_is_accepted(mongo_face: Face, suffix: str) -> None:
    """Same keys and options are the same index, whatever it is called; no second one is made."""
    for index in INDEXES[Name(suffix)]:
        options: dict[str, Any] = {"unique": True} if index.unique else {}
        if index.partial is not None:
            options["partialFilterExpression"] = index.partial
        if index.expires:
            options["expireAfterSeconds"] = 0
        name = f"by {index.fields[-1]} {len(index.fields)}"
        mongo_face.sibling(suffix).create_index(list(index.keys), name=name, **options)
    before = indexes(mongo_face)[suffix]
    migrated(mongo_face)
    assert indexes(mongo_face)[suffix] == before
    found = run(mongo_face, status())
    assert found.pending == found.amiss == ()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "it is not unique"),
        ({"unique": True, "collation": {"locale": "de"}}, "it has the collation 'de'"),
        ({"unique": True, "partialFilterExpression": {"a": 1}}, 'match {"a": 1}'),
        ({"unique": True, "sparse": True}, "it is sparse"),
    ],
    ids=["unique", "collation", "partial", "sparse"],
)
def test_an_index_with_other_options_is_an_error_that_says_what_to_do(
    mongo_face: Face, options: dict[str, Any], says: str
) -> None:
    """The index and the option are named; after what the error says is done, it works."""
    keys = list(NEWEST_OF_THREAD.keys)
    mongo_face.collection.create_index(keys, name="theirs", **options)
    with pytest.raises(SetupRefused, match=r"index 'theirs' of .*Drop it.*dropIndex.'theirs'") as e:
        mongo_face.setup()
    assert says in str(e.value)
    assert mongo_face.sibling(".migrations").find_one({"_id": "lock"}) is None
    mongo_face.collection.drop_index("theirs")
    mongo_face.setup()


def test_a_unique_index_where_none_may_be_is_an_error(mongo_face: Face) -> None:
    """An index that would refuse our own documents is in the way as well."""
    mongo_face.collection.create_index(list(NEWEST.keys), unique=True)
    with pytest.raises(SetupRefused, match="it is unique"):
        mongo_face.setup()


def test_documents_with_equal_keys_are_named(mongo_face: Face) -> None:
    """Ten of the keys, most frequent first; once they are gone, the same call works."""
    rows = [
        {"format": 1, "thread_id": f"t{n:02}", "checkpoint_ns": "", "key": b"k", "data": b""}
        for n in range(12)
        for _ in range(2 + n)
    ]
    mongo_face.sibling(".blobs").insert_many(rows)
    with pytest.raises(SetupRefused, match=r"unique index .*\.blobs' cannot be made") as error:
        mongo_face.setup()
    assert "'t11', 'checkpoint_ns': '', 'key': b'k'} 13 times" in str(error.value)
    assert str(error.value).count(" times") == 10
    assert "remove the others" in str(error.value)
    for n in range(12):
        keep = mongo_face.sibling(".blobs").find_one({"thread_id": f"t{n:02}"})
        assert keep is not None
        mongo_face.sibling(".blobs").delete_many(
            {"thread_id": keep["thread_id"], "_id": {"$ne": keep["_id"]}}
        )
    mongo_face.setup()
    assert len(records(mongo_face)) == len(MIGRATIONS)


@pytest.mark.parametrize(
    "options",
    [{"expireAfterSeconds": 86_400}, {}, {"expireAfterSeconds": 0, "hidden": True}],
    ids=["later", "never", "hidden"],
)
def test_an_expiry_index_is_changed_in_place(mongo_face: Face, options: dict[str, Any]) -> None:
    """What `collMod` can mend is mended, and no index is built for it."""
    blobs = mongo_face.sibling(".blobs")
    blobs.create_index([("expires_at", 1)], name="theirs", **options)
    with mongo_face.commands.recorded() as sent:
        mongo_face.setup()
    assert [one.command["index"]["name"] for one in sent if one.name == "collMod"] == ["theirs"]
    found = blobs.index_information()
    assert found["theirs"]["expireAfterSeconds"] == 0
    assert "hidden" not in found["theirs"]
    assert "expires_at_1" not in found


def test_an_index_that_was_dropped_is_made_again(mongo_face: Face, thread: str) -> None:
    """The first write of a saver that may make indexes notices that one is missing."""
    mongo_face.setup()
    wanted = indexes(mongo_face)
    mongo_face.collection.drop_index(NEWEST_OF_THREAD.name)
    mongo_face.sibling(".blobs").drop()
    found = run(mongo_face, status())
    assert [each.index.name for each in found.amiss] == [
        NEWEST_OF_THREAD.name,
        *(index.name for index in INDEXES[Name.BLOBS]),
    ]
    Line(mongo_face.another(), thread).put({"a": 1})
    assert indexes(mongo_face) == wanted


# --- newer and taking away ---------------------------------------------------------------------


def record(face: Face, number: int, phase: str) -> None:
    """Records a migration that this version does not know."""
    known = records(face)[-1]
    face.sibling(".migrations").insert_one(
        {**known, "_id": number, "name": "future", "phase": phase, "version": "99.1"}
    )


@pytest.mark.parametrize("options", [{}, {"auto_setup": False}])
def test_a_newer_schema_that_only_adds_is_no_obstacle(
    mongo_face: Face, thread: str, options: dict[str, Any]
) -> None:
    """While a newer version is rolled out the older one goes on."""
    mongo_face.setup()
    record(mongo_face, 100, "expand")
    Line(mongo_face.another(**options), thread).put({"a": 1})


@pytest.mark.parametrize("options", [{}, {"auto_setup": False}])
def test_a_newer_schema_that_takes_away_is_refused(
    mongo_face: Face, thread: str, options: dict[str, Any]
) -> None:
    """An older saver writes nothing, and names the version that is needed."""
    mongo_face.setup()
    record(mongo_face, 100, "contract")
    late = mongo_face.another(**options)
    with pytest.raises(SchemaTooNew, match=r"100 'future' of mongosaver 99\.1.*Install mongosaver"):
        late.put(config(thread), checkpoint({}, {}), metadata(), {})
    removals: dict[str, Any] = {
        "delete_thread": lambda: late.delete_thread(thread),
        "delete_for_runs": lambda: late.call("delete_for_runs", ["run"]),
        "prune": lambda: late.call("prune", [thread]),
        "prune_idle": lambda: late.call("prune_idle", older_than=timedelta(days=1)),
        "apply_ttl": lambda: late.call("apply_ttl"),
        "copy_thread": lambda: late.call("copy_thread", thread, thread + "2"),
        "setup": mongo_face.another().setup,
    }
    for name, remove in removals.items():
        with pytest.raises(SchemaTooNew):
            pytest.fail(f"{name}: {remove()!r}")
    assert late.get_tuple(config(thread)) is None
    late.call("prune", [thread], dry_run=True)
    assert mongo_face.collection.count_documents({}) == 0


def test_an_index_is_hidden_before_it_is_dropped(mongo_face: Face) -> None:
    """Two contract migrations: between them the index is back at once, and then it stays."""
    gone = {Name.CHECKPOINTS: (NEWEST,)}
    later: Sequence[Migration] = (
        *MIGRATIONS,
        Migration(6, "retire", "contract", migrations.hide, hides=gone),
        Migration(7, "remove", "contract", migrations.drop, drops=gone),
    )
    migrated(mongo_face)
    assert migrated(mongo_face, migrations=later) == ()
    assert migrated(mongo_face, migrations=later, to=6) == later[5:6]
    assert indexes(mongo_face)[""][NEWEST.name]["hidden"] is True
    assert migrated(mongo_face, migrations=later) == ()
    database, name = mongo_face.collection.database, mongo_face.collection.name
    database.command("collMod", name, index={"name": NEWEST.name, "hidden": False})
    with pytest.raises(SetupRefused, match="somebody needs it"):
        migrated(mongo_face, migrations=later, to=7)
    database.command("collMod", name, index={"name": NEWEST.name, "hidden": True})
    assert migrated(mongo_face, migrations=later, to=7) == later[6:]
    assert NEWEST.name not in indexes(mongo_face)[""]


# --- the lock is judged by the server's clock --------------------------------------------------


def test_a_lease_runs_by_the_servers_clock(mongo_face: Face) -> None:
    """A lock is free when the server says that its time is over, whatever the date here."""
    locks = mongo_face.sibling(".migrations")
    now = mongo_face.stage.plain.admin.command("hello")["localTime"]
    lock = {"_id": "lock", "owner": "x", "host": "there", "pid": 1, "since": now}
    locks.insert_one({**lock, "until": now + timedelta(seconds=3)})
    with pytest.raises(MigrationLocked, match="process 1 on there"):
        migrated(mongo_face, wait=0)
    assert migrated(mongo_face, wait=10) == MIGRATIONS


def test_renewing_a_lease_makes_it_longer(mongo_face: Face) -> None:
    """Its holder moves the end and not the beginning; nobody else moves anything."""
    me, other = runner(mongo_face.collection), runner(mongo_face.collection)
    first = run(mongo_face, migrations._lease(me))
    time.sleep(0.02)
    assert run(mongo_face, migrations._lease(other)) == first
    second = run(mongo_face, migrations._lease(me))
    assert first["owner"] == second["owner"] == me.id
    assert second["since"] == first["since"] == first["renewed"]
    assert second["until"] > first["until"]
    run(mongo_face, migrations.release(other))
    assert run(mongo_face, migrations._lease(other)) == second
    run(mongo_face, migrations.release(me))
    assert run(mongo_face, migrations._lease(other))["owner"] == other.id


def test_the_holder_of_the_lock_is_shown(mongo_face: Face) -> None:
    """`status` names who is at it, until when."""
    seen = []
    with between_operations(
        mongo_face,
        after=lambda op: (
            seen.append(mongo_face.sibling(".migrations").find_one({"_id": "lock"}))
            if isinstance(op, FindOneAndUpdate) and not seen
            else None
        ),
    ):
        migrated(mongo_face)
    [lock] = seen
    mongo_face.sibling(".migrations").insert_one(lock)
    found = run(mongo_face, status())
    assert found.holder.pid == os.getpid()
    assert found.holder.until - found.holder.since == timedelta(seconds=migrations.LEASE)
