"""`verify` and `gc` as commands: output, exit codes, going on, and that they run nothing."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from pymongo.errors import OperationFailure

from mongosaver import MongoSaver
from mongosaver.cli import health
from mongosaver.cli.session import Code
from mongosaver.ops import Aggregate, Count
from mongosaver.schema import Name
from tests.cli.conftest import CTRL_C, in_terminal
from tests.contract.samples import checkpoint, config, metadata

if TYPE_CHECKING:
    from tests.cli.conftest import Place, Run

DAYS = timedelta(days=3)
KEY = "a key of thirty-two bytes, no less"[:32]


def blobs(place: Place) -> Any:
    """The blobs of a place."""
    return place.database[place.name + ".blobs"]


def orphan(place: Place, thread: str, *, age: timedelta = DAYS) -> None:
    """Leave a thread of two checkpoints, and two blobs and a write that nobody needs."""
    ids = place.thread(thread, 3, idle=age)
    place.collection.delete_one({"thread_id": thread, "checkpoint_id": ids[-1]})


# --- verify ------------------------------------------------------------------------------------


def test_whole_collection(mongosaver: Run, place: Place) -> None:
    """Where all is whole that is said, with what was looked at, and the code is 0."""
    for name in "abc":
        place.thread(name)
    done = mongosaver("verify")
    assert done.code == Code.DONE
    assert done.out == (
        "3 threads: 9 checkpoints, 9 pending writes, 18 blobs; 307.4 KB read\n"
        "Every checkpoint is whole.\n"
    )
    assert "checkpoints" not in done.err or "mongosaver:" in done.err
    data = mongosaver("verify", "--json").json
    assert data["finished"] is True
    assert (data["threads"], data["checkpoints"], data["wrong"]) == (3, 9, 0)
    assert data["findings"] == []
    assert mongosaver("verify", "--no-data").out.startswith(
        "3 threads: 9 checkpoints, 9 pending writes, 18 blobs; 0 bytes read"
    )


def test_empty_collection(mongosaver: Run) -> None:
    """Nothing stored is nothing wrong."""
    done = mongosaver("verify", "--json")
    assert (done.code, done.json["threads"]) == (Code.DONE, 0)


def test_finding_names_its_place_and_the_remedy(mongosaver: Run, place: Place) -> None:
    """Something wrong is code 3, and says where it is and what mends it."""
    ids = place.thread("a\x1b[31m")
    blob = blobs(place).find_one({"channel": "notes"}, sort=[("_id", -1)])
    blobs(place).delete_one({"_id": blob["_id"]})
    done = mongosaver("verify")
    assert done.code == Code.FOUND
    lines = done.out.splitlines()
    assert lines[0] == "missing: a blob that it needs is not stored"
    assert lines[1] == (
        f"  thread 'a\\x1b[31m', checkpoint '{ids[-1]}', channel 'notes', blob {blob['key'].hex()}"
    )
    assert lines[2].startswith("  Restore the blobs collection from a backup")
    assert lines[-1] == "1 finding; not whole: 1 checkpoint"
    data = mongosaver("verify", "--json")
    assert data.code == Code.FOUND
    assert data.json["findings"] == [
        {
            "kind": "missing",
            "thread_id": "a\x1b[31m",
            "checkpoint_ns": "",
            "checkpoint_id": ids[-1],
            "channel": "notes",
            "key": blob["key"].hex(),
            "text": "a blob that it needs is not stored",
            "remedy": lines[2].strip(),
            "checkpoints": 1,
        }
    ]


def test_finding_in_a_namespace_says_how_many_checkpoints_it_is_about(
    mongosaver: Run, place: Place
) -> None:
    """A blob that several checkpoints of a subgraph need is one finding."""
    values = {"notes": "n" * 40_000, "step": 0}
    parent = None
    for step in range(3):
        versions = {"notes": "1", "step": str(step)}
        made = checkpoint({**values, "step": step}, versions)
        new = versions if step == 0 else {"step": str(step)}
        done = place.saver.put(config("a", "inner", parent), made, metadata(), new)
        parent = done["configurable"]["checkpoint_id"]
    place.saver.put_writes(config("a", "inner", parent), [("notes", 1)], "task")
    blobs(place).delete_one({"channel": "notes"})
    writes = place.database[place.name + ".writes"]
    writes.update_one({}, {"$set": {"data": b"\xc1"}})
    found = mongosaver("verify")
    assert found.code == Code.FOUND
    assert f"thread 'a', namespace 'inner', checkpoint '{parent}' and 2 more" in found.out
    assert "task task" in found.out
    assert found.out.endswith("2 findings; not whole: 3 checkpoints\n")


def test_failure_of_the_server_ends_the_walk(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error is one line and code 1; before the first thread there is nothing to tell."""
    place.thread("a")
    plan = health.pages.threads

    def failing(after: str | None) -> Any:
        yield from plan(after)
        yield Aggregate(Name.CHECKPOINTS, [{"$unknown": 1}])

    monkeypatch.setattr(health.pages, "threads", failing)
    for arguments in (["verify"], ["gc", "--yes"]):
        done = mongosaver(*arguments)
        assert (done.code, done.out) == (Code.FAILED, "")
        assert "$unknown" in done.err


def test_failure_in_a_thread_reaches_its_plan(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a plan understands of an error it may go on from."""
    place.thread("a")
    seen = []

    def failing(*_: Any) -> Any:
        try:
            yield Aggregate(Name.CHECKPOINTS, [{"$unknown": 1}])
        except OperationFailure as error:
            seen.append(error.code)
        yield Count(Name.CHECKPOINTS, {})

    monkeypatch.setattr(health.walk, "thread", failing)
    assert mongosaver("verify").code == Code.DONE
    assert len(seen) == 1


def test_findings_are_cut_and_counted(mongosaver: Run, place: Place) -> None:
    """`--findings` limits what is shown, not what is counted."""
    place.thread("a", 5)
    place.collection.update_many({}, {"$inc": {"bytes": 1}})
    done = mongosaver("verify", "--findings", "2")
    assert done.code == Code.FOUND
    assert done.out.count("size: 'bytes' is") == 2
    assert "... and 3 more findings" in done.out
    data = mongosaver("verify", "--json", env={"MONGOSAVER_FINDINGS": "0"}).json
    assert (data["wrong"], data["findings"]) == (5, [])


def test_orphans_alone_are_nothing_wrong(mongosaver: Run, place: Place) -> None:
    """Leftovers are counted, and the code is 0; young ones are told apart."""
    place.thread("a")
    orphan(place, "b")
    orphan(place, "c", age=timedelta(0))
    done = mongosaver("verify")
    assert done.code == Code.DONE
    assert "2  blobs that no checkpoint names" in done.out
    assert "1  pending writes without a checkpoint" in done.out
    assert "3  blobs and writes that may belong to what is being saved" in done.out


def test_some_threads(mongosaver: Run, place: Place) -> None:
    """Threads are chosen by their ids, and `--after` goes on behind one."""
    for name in "abcd":
        place.thread(name, 2)
    assert mongosaver("verify", "b", "d", "--json").json["threads"] == 2
    assert mongosaver("verify", "b", "d", "--after", "b", "--json").json["threads"] == 1
    data = mongosaver("verify", "--after", "b", "--json").json
    assert (data["threads"], data["checkpoints"], data["last_thread_id"]) == (2, 4, "d")


def test_what_does_not_exist_is_a_failure_of_verify(mongosaver: Run, place: Place) -> None:
    """A thread or a collection of another name is not whole: the code is 1, and it is named."""
    place.thread("a", 2)
    done = mongosaver("verify", "nobody")
    assert (done.code, done.out) == (Code.FAILED, "")
    assert done.err == "mongosaver: there is no thread 'nobody'\n"
    done = mongosaver("verify", "nobody", "a", "--json")
    assert (done.code, done.json["threads"], done.json["not_found"]) == (1, 1, ["nobody"])
    for option, value in (("--db", "typo"), ("--collection", "typo")):
        done = mongosaver("verify", option, value)
        assert (done.code, done.out) == (Code.FAILED, "")
        assert "there is no collection '" in done.err
    place.collection.update_many({}, {"$inc": {"bytes": 1}})
    assert mongosaver("verify", "nobody", "a").code == Code.FOUND


def test_what_is_left_of_a_thread_can_be_verified(mongosaver: Run, place: Place) -> None:
    """Where checkpoints are gone, even as a collection, the rest is there to be looked at."""
    place.thread("a", 2)
    place.collection.drop()
    assert mongosaver("verify", "a", "--json").json["threads"] == 1


def test_gc_of_a_thread_that_does_not_exist(mongosaver: Run, place: Place) -> None:
    """That is said and no failure, and nobody is asked."""
    done = mongosaver("gc", "nobody")
    assert done.code == Code.DONE
    assert done.err.startswith("mongosaver: there is no thread 'nobody'\n")


def test_a_quiet_gc_that_removes_nothing_prints_nothing(mongosaver: Run, place: Place) -> None:
    """For a job at night: with `--quiet` there is a line only if something went."""
    place.thread("a", 2)
    done = mongosaver("gc", "--yes", "--quiet")
    assert (done.code, done.out, done.err) == (Code.DONE, "", "")
    assert mongosaver("gc", "--yes", "--quiet", "--json").json["changed"] == 0
    orphan(place, "b")
    assert mongosaver("gc", "--yes", "--quiet").out.startswith("removed 0 checkpoints, 1 pending")


def test_interrupted_walk_says_how_to_go_on(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends with 130; what was found is told, and the thread to go on after."""
    for name in ("a", "b c", "d"):
        place.thread(name, 2)
    plan = health.walk.thread

    def interrupted(ctx: Any, thread_id: str, *rest: Any) -> Any:
        if thread_id == "d":
            raise KeyboardInterrupt
        return plan(ctx, thread_id, *rest)

    monkeypatch.setattr(health.walk, "thread", interrupted)
    done = mongosaver("verify", "--json")
    assert done.code == Code.INTERRUPTED
    assert done.json["finished"] is False
    assert (done.json["threads"], done.json["last_thread_id"]) == (2, "b c")
    again = f"--after 'b c' --db {place.database.name} --collection {place.name}\n"
    assert done.err.endswith(f"interrupted. Go on with: mongosaver verify {again}")
    done = mongosaver("verify", "--no-data")
    assert done.out.splitlines()[-1] == (
        "Of the 2 threads looked at nothing is wrong so far; interrupted, not finished."
    )
    assert "whole" not in done.out
    assert done.err.endswith(f"interrupted. Go on with: mongosaver verify --no-data {again}")
    done = mongosaver("verify", "d")
    assert (done.code, "Of the 0 threads" in done.out) == (Code.INTERRUPTED, True)
    assert done.err.endswith(f"--collection {place.name} d\n")
    place.collection.update_many({}, {"$inc": {"bytes": 1}})
    done = mongosaver("verify")
    assert done.code == Code.INTERRUPTED
    assert done.out.endswith("4 findings; not whole: 4 checkpoints; interrupted, not finished\n")


def test_interrupted_gc_says_what_was_done(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends with 130, the counts so far, and the command to go on with."""
    for name in ("a", "-b", "d"):
        orphan(place, name)
    plan = health.gc.thread

    def interrupted(ctx: Any, thread_id: str, *rest: Any) -> Any:
        if thread_id == "d":
            raise KeyboardInterrupt
        return plan(ctx, thread_id, *rest)

    monkeypatch.setattr(health.gc, "thread", interrupted)
    done = mongosaver("gc", "--yes", "--older-than", "2h", "--", "-b", "d", "a")
    assert done.code == Code.INTERRUPTED
    assert done.out.endswith("from 2 of 2 threads; interrupted, not finished\n")
    assert "Go on with: mongosaver gc --older-than 2h --after a --db" in done.err
    assert done.err.endswith(" -- -b a d\n")
    assert mongosaver("gc", "--yes", "--json").json["finished"] is False


def test_progress_at_a_terminal(place: Place) -> None:
    """A bar shows checkpoints, rate and threads; Ctrl-C at the bar is code 130."""
    for number in range(40):
        place.thread(f"thread {number}", 5)
    done = in_terminal("verify", env=place.environment)
    assert done.code == Code.DONE, done.screen
    assert "200/200" in done.screen
    assert "40 threads" in done.screen
    place.thread("more", 20)
    broken = in_terminal("verify", env=place.environment, typed={"checkpoints": CTRL_C})
    assert broken.code in (Code.INTERRUPTED, Code.DONE), broken.screen


def test_encrypted_state_without_a_key_is_said_to_be_sealed(mongosaver: Run, place: Place) -> None:
    """What cannot be opened here is counted and no finding; with the key it is looked into."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY.encode())
    place.thread("a", saver=MongoSaver(place.collection, serde=serde))
    done = mongosaver("verify")
    assert done.code == Code.DONE, done.out
    assert "payloads that could not be looked into" in done.out
    opened = mongosaver("verify", "--json", env={"LANGGRAPH_AES_KEY": KEY})
    assert opened.code == Code.DONE, opened.out
    assert opened.json["sealed"] == 0
    wrong = mongosaver("verify", "--json", env={"LANGGRAPH_AES_KEY": KEY[::-1]})
    assert wrong.code == Code.FOUND
    assert {each["kind"] for each in wrong.json["findings"]} == {"payload", "write"}
    assert all("not with the key" in each["text"] for each in wrong.json["findings"])


class Mine:
    """A type that only the application knows."""

    def __init__(self, text: str) -> None:
        raise AssertionError("it was made from what is stored")


def test_nothing_that_a_payload_names_is_imported_or_run(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types stay names: their module is not imported, and no object is made."""
    made = Mine.__new__(Mine)
    made.__dict__["text"] = "x" * 40_000
    name = "a_module_that_is_not_there"
    saver = place.saver
    import ormsgpack

    payload = ormsgpack.packb(
        ormsgpack.Ext(0, ormsgpack.packb((name, "Mine", "x" * 40_000))),
        option=ormsgpack.OPT_PASSTHROUGH_SUBCLASS,
    )
    dump = saver.serde.dumps_typed

    def dumped(value: Any) -> tuple[str, bytes]:
        return ("msgpack", payload) if value == "mine" else dump(value)

    monkeypatch.setattr(saver.serde, "dumps_typed", dumped)
    for thread in ("a", "b"):
        saver.put(
            config(thread),
            checkpoint({"mine": "mine", "small": 1}, {"mine": "1", "small": "1"}),
            metadata(),
            {"mine": "1", "small": "1"},
        )
    assert blobs(place).count_documents({}) > 0
    done = mongosaver("verify")
    assert done.code == Code.DONE, done.out
    assert name not in sys.modules
    assert mongosaver("gc", "--yes").code == Code.DONE


# --- gc ----------------------------------------------------------------------------------------


def test_gc_removes_orphans_that_are_old(mongosaver: Run, place: Place) -> None:
    """What is older than a day goes, what is younger stays, and a dry run only counts."""
    place.thread("a")
    orphan(place, "b")
    orphan(place, "c", age=timedelta(hours=2))
    before = place.contents()
    dry = mongosaver("gc", "--dry-run")
    assert dry.code == Code.DONE, dry.err
    text = "0 checkpoints, 1 pending write and 2 blobs from 1 of 3 threads\n"
    assert dry.out == f"would remove {text}"
    assert place.contents() == before
    done = mongosaver("gc", "--yes")
    assert (done.code, done.out) == (Code.DONE, f"removed {text}")
    assert place.counts("a") == (3, 3, 6)
    assert place.counts("b") == (2, 2, 4)
    assert place.counts("c") == (2, 3, 6)
    data = mongosaver("gc", "--older-than", "1h", "--yes", "--json").json
    assert {name: data[name] for name in ("finished", "threads", "changed", "writes", "blobs")} == {
        "finished": True,
        "threads": 3,
        "changed": 1,
        "writes": 1,
        "blobs": 2,
    }
    assert place.counts("c") == (2, 2, 4)


def test_gc_asks_before_it_removes(mongosaver: Run, place: Place) -> None:
    """Without a terminal and without `--yes` nothing is done, and the code is 2."""
    orphan(place, "b")
    before = place.contents()
    done = mongosaver("gc")
    assert done.code == Code.REFUSED
    assert f"{place.database.name}.{place.name}" in done.err
    assert "older than 1d" in done.err
    assert place.contents() == before


@pytest.mark.parametrize("age", ["0", "9m", "599s"])
def test_gc_refuses_an_age_that_is_too_young(mongosaver: Run, place: Place, age: str) -> None:
    """What is younger than ten minutes may be part of what is being saved."""
    orphan(place, "b")
    before = place.contents()
    done = mongosaver("gc", "--older-than", age, "--yes")
    assert done.code == Code.REFUSED
    assert "at least 10 minutes" in done.err
    assert place.contents() == before


def test_gc_of_some_threads(mongosaver: Run, place: Place) -> None:
    """Only the threads that are named, or that come after one, are tidied up."""
    for name in "abc":
        orphan(place, name)
    assert mongosaver("gc", "a", "--yes", "--json").json["changed"] == 1
    assert mongosaver("gc", "--after", "b", "--yes", "--json").json["changed"] == 1
    assert [place.counts(name)[2] for name in "abc"] == [4, 6, 4]


def test_gc_says_what_it_left_alone(mongosaver: Run, place: Place) -> None:
    """A thread that is not understood is named with the reason, and the others are tidied."""
    place.thread("a")
    orphan(place, "b")
    place.collection.update_one({"thread_id": "a"}, {"$unset": {"format": 1}})
    done = mongosaver("gc", "--yes")
    assert done.code == Code.DONE
    assert "left alone: thread 'a': " in done.out
    assert "2 blobs from 1 of 2 threads" in done.out
    left = mongosaver("gc", "--yes", "--json").json["left"]
    assert list(left) == ["a"]


def test_gc_of_encrypted_threads(mongosaver: Run, place: Place) -> None:
    """Orphans need no key; a removal that has to know what is stored is left alone without one."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY.encode())
    saver = MongoSaver(place.collection, serde=serde)
    ids = place.thread("a", 3, saver=saver, idle=DAYS)
    place.thread("b", 3, saver=saver, idle=DAYS)
    place.collection.delete_one({"thread_id": "b"})
    where = {"thread_id": "a", "checkpoint_id": {"$ne": ids[-1]}}
    marked = {"$set": {"deleted_at": datetime.now(timezone.utc) - DAYS}}
    place.collection.update_many(where, marked)
    done = mongosaver("gc", "--yes", "--json")
    assert done.code == Code.DONE
    assert "LANGGRAPH_AES_KEY" in done.json["left"]["a"]
    assert place.counts("a")[0] == 3
    opened = mongosaver("gc", "--yes", "--json", env={"LANGGRAPH_AES_KEY": KEY})
    assert opened.json["left"] == {}
    assert place.counts("a") == (1, 1, 2)


def test_checkpoint_without_an_id_is_shown_without_one(mongosaver: Run, place: Place) -> None:
    """What a finding does not know it does not say."""
    place.thread("a", 1)
    place.collection.update_one({}, {"$set": {"checkpoint_id": None}})
    done = mongosaver("verify", "a")
    assert done.code == Code.FOUND
    assert done.out.splitlines()[:2] == [
        "shape: the field 'checkpoint_id' is NoneType",
        "  thread 'a'",
    ]
