"""`status`, `check`, `migrate`, `indexes` and `shard`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

import mongosaver as package
from mongosaver import migrations
from mongosaver.cli import schema
from mongosaver.migrations import MIGRATIONS, Migration
from mongosaver.schema import INDEXES, NEWEST, Name
from tests.cli.conftest import COMMAND, environment, in_terminal
from tests.faces import SUFFIXES

if TYPE_CHECKING:
    from tests.cli.conftest import Place, Run
    from tests.faces import Commands


@pytest.fixture
def empty(place: Place) -> Place:
    """A place without collections."""
    for suffix in SUFFIXES:
        place.database.drop_collection(place.name + suffix)
    return place


def numbers(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Returns the numbers of migrations."""
    return [row["number"] for row in rows]


# --- status, check -----------------------------------------------------------------------------


def test_status_of_a_current_schema(place: Place, mongosaver: Run) -> None:
    """Each migration with its phase, its time, how long it took and who did it."""
    done = mongosaver("status", "--json")
    assert (done.code, done.err) == (0, "")
    found = done.json
    assert (found["database"], found["collection"]) == (place.database.name, place.name)
    assert numbers(found["applied"]) == [m.number for m in MIGRATIONS]
    first = found["applied"][0]
    assert first["name"] == "collections"
    assert first["version"] == package.__version__
    age = datetime.now(timezone.utc) - datetime.fromisoformat(first["at"])
    assert timedelta(0) <= age < timedelta(minutes=1)
    assert found["pending"] == found["newer"] == found["indexes"] == []
    assert found["lock"] is None
    done = mongosaver("status")
    assert done.code == 0
    for migration in MIGRATIONS:
        assert f"{migration.number}  {migration.name}" in done.out
    assert "pending" not in done.out


def test_status_before_anything_was_done(empty: Place, mongosaver: Run) -> None:
    """Everything is pending; looking makes nothing."""
    done = mongosaver("status")
    assert done.code == 0
    assert done.out.count("pending") == len(MIGRATIONS)
    assert numbers(mongosaver("status", "--json").json["pending"]) == [m.number for m in MIGRATIONS]
    assert empty.database.list_collection_names() == []


def test_status_shows_who_has_the_lock(place: Place, mongosaver: Run) -> None:
    """Machine, process and time, as the server's clock has them."""
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    lock = {"_id": "lock", "owner": "x", "host": "there", "pid": 77, "since": now, "until": now}
    place.database[place.name + ".migrations"].insert_one(lock)
    done = mongosaver("status")
    assert "process 77 on there has the lock, since 03:04:05, until 03:04:05 UTC" in done.out
    assert mongosaver("status", "--json").json["lock"]["pid"] == 77


def test_status_shows_newer_migrations_and_notes(place: Place, mongosaver: Run) -> None:
    """What this version does not know is marked, and what went otherwise is told."""
    records = place.database[place.name + ".migrations"]
    known = records.find_one({"_id": 1})
    assert known is not None
    records.insert_one({**known, "_id": 99, "name": "future", "notes": ["odd\x1b[31m"]})
    done = mongosaver("status")
    assert "99  future       expand, newer" in done.out
    assert "odd\\x1b[31m" in done.out
    assert numbers(mongosaver("status", "--json").json["newer"]) == [99]


def test_check_says_nothing_is_pending(place: Place, mongosaver: Run) -> None:
    """Exit code 0, and one line."""
    done = mongosaver("check")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{place.database.name}.{place.name}: nothing is pending\n"


def test_check_exits_with_3_when_migrations_are_pending(empty: Place, mongosaver: Run) -> None:
    """Each one is named, for people and as JSON."""
    mongosaver("migrate", "--to", "3")
    done = mongosaver("check")
    assert (done.code, done.err) == (3, "")
    assert done.out.splitlines() == ["pending: 4 runs (expand)", "pending: 5 expiry (expand)"]
    done = mongosaver("check", "--json")
    assert done.code == 3
    assert numbers(done.json["pending"]) == [4, 5]


def test_check_exits_with_3_when_an_index_is_amiss(place: Place, mongosaver: Run) -> None:
    """An index that was removed or changed since is as bad as one that was never made."""
    place.collection.drop_index(NEWEST.name)
    place.database.command(
        "collMod", place.name, index={"name": "expires_at_1", "expireAfterSeconds": 60}
    )
    done = mongosaver("check")
    assert done.code == 3
    assert done.out.splitlines() == [
        f"{place.name}: index {NEWEST.name} is missing",
        f"{place.name}: index expires_at_1 is otherwise: expireAfterSeconds is 60, not 0",
    ]
    assert [row["state"] for row in mongosaver("check", "--json").json["indexes"]] == [
        *["missing", "otherwise"],
    ]
    assert "is missing" in mongosaver("status").out
    assert mongosaver("migrate").code == 0
    assert mongosaver("check").code == 0


# --- migrate -----------------------------------------------------------------------------------


def test_migrate_makes_everything(empty: Place, mongosaver: Run) -> None:
    """What was applied is on standard output, and what is going on on standard error."""
    done = mongosaver("migrate")
    assert done.code == 0
    assert done.out.splitlines() == [f"applied {m} ({m.phase})" for m in MIGRATIONS]
    assert "migration 2 keys" in done.err
    assert f"{empty.name}: building {INDEXES[Name.CHECKPOINTS][0].name}" in done.err
    for name, indexes in INDEXES.items():
        there = empty.database[empty.name + name.value].index_information()
        assert set(there) == {"_id_", *(index.name for index in indexes)}
    done = mongosaver("migrate")
    assert (done.code, done.err) == (0, "")
    assert done.out == "nothing to apply\n"


def test_migrate_as_json(empty: Place, mongosaver: Run) -> None:
    """Numbers, names and phases of what was applied, and what is left."""
    done = mongosaver("migrate", "--json", "--to", "2", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert numbers(done.json["applied"]) == [1, 2]
    assert done.json["pending"] == [3, 4, 5]


def test_migrate_to_says_what_is_left(empty: Place, mongosaver: Run) -> None:
    """`--to` is the last one that is applied; its variable works as well."""
    done = mongosaver("migrate", env={"MONGOSAVER_TO": "3"})
    assert done.out.splitlines() == [
        *(f"applied {m} (expand)" for m in MIGRATIONS[:3]),
        "still pending: 4 runs (expand): mongosaver migrate --to 4",
        "still pending: 5 expiry (expand): mongosaver migrate --to 5",
    ]


def test_migrate_to_what_does_not_exist(empty: Place, mongosaver: Run) -> None:
    """A number behind the last migration is refused, and nothing is done."""
    last = MIGRATIONS[-1].number
    for extra in ([], ["--dry-run"]):
        done = mongosaver("migrate", "--to", str(last + 1), *extra)
        assert (done.code, done.out) == (2, "")
        assert done.err == f"mongosaver: there is no migration {last + 1}; the last is {last}\n"
    assert empty.database.list_collection_names(filter={"name": empty.name}) == []


def test_migrate_mends_indexes(place: Place, mongosaver: Run) -> None:
    """An index that was dropped is made again, and that is said."""
    place.collection.drop_index(NEWEST.name)
    done = mongosaver("migrate")
    assert done.out == "nothing to apply; indexes that were missing or changed are repaired\n"
    assert f"building {NEWEST.name}" in done.err
    assert NEWEST.name in place.collection.index_information()


def test_a_dry_run_sends_no_write(empty: Place, mongosaver: Run, recorded: Commands) -> None:
    """What would be made is printed, for people and as JSON; nothing is made, not even a lock."""
    done = mongosaver("migrate", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("would create in") == 3
    assert done.out.count("would createIndexes in") == 9
    assert done.out.splitlines()[-5:] == [f"would apply {m} (expand)" for m in MIGRATIONS]
    found = mongosaver("migrate", "--dry-run", "--json", "--to", "2").json
    assert found["dry_run"] is True
    assert numbers(found["applied"]) == [1, 2]
    assert [each["command"] for each in found["commands"]] == ["create"] * 3 + ["createIndexes"] * 3
    assert {one.name for one in recorded.sent} <= {"find", "listCollections", "listIndexes"}
    assert empty.database.list_collection_names() == []


def test_migrate_says_who_else_is_at_it(place: Place, mongosaver: Run) -> None:
    """After `--wait` the command fails with the holder's machine, process and time."""
    until = place.client.admin.command("hello")["localTime"] + timedelta(seconds=20)
    lock = {"_id": "lock", "owner": "x", "host": "there", "pid": 77, "since": until, "until": until}
    place.database[place.name + ".migrations"].insert_one(lock)
    done = mongosaver("migrate", "--wait", "0.3")
    assert (done.code, done.out) == (1, "")
    assert done.err.count("waiting for process 77 on there") == 1
    assert "process 77 on there has been migrating these collections since" in done.err
    assert "Traceback" not in done.err


def test_migrate_names_what_is_in_the_way(empty: Place, mongosaver: Run) -> None:
    """One line with the index and the remedy, and exit code 1."""
    empty.collection.create_index(list(INDEXES[Name.CHECKPOINTS][0].keys), name="theirs")
    done = mongosaver("migrate")
    assert done.code == 1
    [line] = [line for line in done.err.splitlines() if "in the way" in line]
    assert "index 'theirs' of" in line
    assert "dropIndex('theirs')" in line


LATER = (
    *MIGRATIONS,
    Migration(6, "retire", "contract", migrations.hide, hides={Name.CHECKPOINTS: (NEWEST,)}),
)


def test_what_takes_away_has_to_be_asked_for(
    place: Place, mongosaver: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contract migration waits for `--to`; `check` says that it is pending."""
    for function in (migrations.migrate, migrations.status):
        monkeypatch.setitem(function.__kwdefaults__ or {}, "migrations", LATER)
    monkeypatch.setattr(migrations.status, "__defaults__", (LATER,))
    monkeypatch.setattr(schema, "MIGRATIONS", LATER)
    done = mongosaver("check")
    assert done.code == 3
    assert done.out == "pending: 6 retire (contract); asked for by --to 6\n"
    done = mongosaver("migrate")
    first, second = done.out.splitlines()
    assert first == "nothing to apply"
    assert second.startswith("still pending: 6 retire (contract), when every process runs this ver")
    assert second.endswith("sion: mongosaver migrate --to 6")
    assert "hidden" not in str(place.collection.index_information())
    done = mongosaver("migrate", "--to", "6")
    assert done.out == "applied 6 retire (contract)\n"
    assert mongosaver("check").code == 0


def fill(place: Place, count: int) -> None:
    """Inserts checkpoint documents."""
    rows = [
        {"format": 1, "thread_id": f"t{n % 997}", "checkpoint_ns": "", "checkpoint_id": f"{n:09}"}
        for n in range(count)
    ]
    for at in range(0, count, 25_000):
        place.collection.insert_many(rows[at : at + 25_000])


def test_a_terminal_shows_a_bar(empty: Place) -> None:
    """While an index is built a bar has the server's numbers, a rate and the remaining time."""
    fill(empty, 100_000)
    often = "from mongosaver import migrations as m; m.RENEW = 0.02; import mongosaver.cli as c; "
    command = [sys.executable, "-c", often + "raise SystemExit(c.main())"]
    shown = in_terminal("migrate", env=empty.environment, columns=120, command=command)
    assert shown.code == 0, shown.screen
    assert "2 keys: scanning collection" in shown.screen
    assert "/100000" in shown.screen
    assert "/s" in shown.screen
    assert "applied 5 expiry (expand)" in shown.screen


def test_an_interrupted_run_gives_the_lock_back(empty: Place) -> None:
    """Ctrl-C ends with 130 and says how to go on; the next run need not wait."""
    admin = empty.client.admin
    fill(empty, 10)
    point = "hangAfterStartingIndexBuild"
    admin.command("configureFailPoint", point, mode="alwaysOn")
    try:
        process = subprocess.Popen(
            [*COMMAND, "migrate"],
            env=environment(empty.environment),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        with process:
            for line in process.stderr:
                if "building" in line:
                    break
            time.sleep(0.5)
            os.kill(process.pid, signal.SIGINT)
            rest = process.stderr.read()
    finally:
        admin.command("configureFailPoint", point, mode="off")
    assert process.returncode == 130
    assert "interrupted. What was done is recorded; run the same command again to go on" in rest
    records = empty.database[empty.name + ".migrations"]
    assert [each["_id"] for each in records.find()] == [1]


def test_sharding_falls_back_where_it_is_refused(empty: Place, mongosaver: Run) -> None:
    """A server that is no cluster makes the collections all the same, and says why."""
    done = mongosaver("migrate", "--shard")
    assert (done.code, done.out.count("not sharded")) == (0, 3)
    assert numbers(mongosaver("status", "--json").json["applied"]) == [m.number for m in MIGRATIONS]
    assert mongosaver("status").out.count("not sharded") == 3
    assert mongosaver("migrate", "--shard", "--json").json["notes"] == []


def test_what_writes_needs_the_schema(empty: Place, mongosaver: Run, recorded: Commands) -> None:
    """Where a migration is pending nothing is removed or moved, and the command to run is named."""
    for command in (
        ("delete-thread", "thread", "--yes"),
        ("copy-thread", "a", "b"),
        ("prune", "thread", "--yes"),
        ("gc", "--yes"),
        ("ttl", "set", "30d", "--yes"),
        ("ttl", "off", "--yes"),
    ):
        with recorded.recorded() as sent:
            done = mongosaver(*command)
        assert done.code == 1, command
        assert "mongosaver migrate" in done.err
        assert {one.name for one in sent} <= {"hello", "find", "ping", "endSessions"}, command


# --- indexes -----------------------------------------------------------------------------------


def test_indexes_are_shown_with_their_reader(place: Place, mongosaver: Run) -> None:
    """Each one that is needed, its state, size and uses; and those of somebody else."""
    place.thread("t")
    place.collection.create_index("theirs")
    rows = mongosaver("indexes", "--json").json["indexes"]
    wanted = [
        (place.name + name.value, index.name) for name, made in INDEXES.items() for index in made
    ]
    ours = [row for row in rows if row["state"] == "there"]
    assert [(row["collection"], row["index"]) for row in ours] == wanted
    assert all(row["reader"] and row["bytes"] > 0 and row["uses"] >= 0 for row in ours)
    assert ours[0]["keys"] == {"thread_id": 1, "checkpoint_ns": 1, "checkpoint_id": -1}
    assert [row["index"] for row in rows if row["state"] == "other"] == ["theirs_1"]
    done = mongosaver("indexes")
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) == len(rows) + 1
    assert "get_tuple and list of one thread" in done.out


def test_indexes_that_are_amiss_are_counted(place: Place, mongosaver: Run) -> None:
    """What is missing, otherwise or in the way is said, with the command that mends it."""
    place.collection.drop_index(NEWEST.name)
    place.collection.drop_index("run_id_1")
    place.collection.create_index("run_id", unique=True, sparse=True)
    rows = {row["index"]: row for row in mongosaver("indexes", "--json").json["indexes"][:5]}
    assert rows[NEWEST.name]["state"] == "missing"
    assert rows[NEWEST.name]["bytes"] is None
    assert rows["run_id_1"]["state"] == "in the way"
    assert rows["run_id_1"]["detail"] == "it is unique; it is sparse"
    done = mongosaver("indexes")
    assert done.out.splitlines()[-1] == "2 of 10 are not as they should be; see migrate"


def test_indexes_of_nothing(empty: Place, mongosaver: Run) -> None:
    """Where there are no collections all are missing."""
    rows = mongosaver("indexes", "--json").json["indexes"]
    assert {row["state"] for row in rows} == {"missing"}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, ""),
        (0, "0 B"),
        (999, "999 B"),
        (4096, "4 KB"),
        (5 << 20, "5 MB"),
        (3 << 40, "3.0 TB"),
    ],
)
def test_sizes_are_readable(count: int | None, text: str) -> None:
    """Three digits and a unit."""
    assert schema._size(count) == text


# --- shard -------------------------------------------------------------------------------------


def test_shard_prints_the_commands(place: Place, mongosaver: Run) -> None:
    """All three collections by thread, in the shell's words, and as JSON; nothing is run."""
    names = [f"{place.database.name}.{place.name}{suffix}" for suffix in ("", ".writes", ".blobs")]
    done = mongosaver("shard")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f'sh.enableSharding("{place.database.name}")',
        *(f'sh.shardCollection("{name}", {{ thread_id: 1 }})' for name in names),
    ]
    assert mongosaver("shard", "--json").json == {
        "commands": [
            {"enableSharding": place.database.name},
            *({"shardCollection": name, "key": {"thread_id": 1}} for name in names),
        ],
        "applied": False,
    }


def test_shard_applies_on_a_sharded_cluster_only(place: Place, mongosaver: Run) -> None:
    """Anywhere else the error says what is needed."""
    done = mongosaver("shard", "--apply")
    assert (done.code, done.out) == (1, "")
    assert "needs the address of a mongos" in done.err
