"""`delete-thread`, `copy-thread`, `prune` and `ttl`; and that a dry run writes nothing."""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
import typer
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pymongo.errors import OperationFailure

from mongosaver import MongoSaver
from mongosaver.cli import dry_run, retain
from mongosaver.cli import session as session_module
from mongosaver.cli.app import app
from mongosaver.cli.session import Code
from mongosaver.ops import (
    Aggregate,
    Collections,
    CollMod,
    CreateCollection,
    CreateIndexes,
    Delete,
    Find,
    Insert,
    Merge,
    Op,
    Plan,
    Replace,
    Together,
    Update,
    UpdateMany,
    Updates,
)
from mongosaver.plans import threads
from mongosaver.schema import INDEXES, Name
from tests.cli.conftest import CTRL_C, in_terminal
from tests.contract.samples import checkpoint, config, metadata

if TYPE_CHECKING:
    from tests.cli.conftest import Place, Run
    from tests.faces import Commands

LONG_AGO = timedelta(days=40)


# --- nothing is written under --dry-run --------------------------------------------------------

READING = {
    "aggregate",
    "buildInfo",
    "collStats",
    "count",
    "currentOp",
    "dbStats",
    "explain",
    "find",
    "getMore",
    "hello",
    "killCursors",
    "listCollections",
    "listIndexes",
    "ping",
    "serverStatus",
}

SAMPLES: dict[str, list[list[str]]] = {
    "delete-thread": [["a", "b", "nobody"]],
    "copy-thread": [["a", "new"]],
    "prune": [
        ["a", "b"],
        ["a", "--strategy", "delete", "--include-interrupted"],
        ["a", "--keep-last", "2", "--older-than", "0"],
        ["--idle", "1s"],
        ["--idle", "1s", "--strategy", "delete"],
    ],
    "ttl set": [["30d"], ["1s"]],
    "ttl off": [[]],
    "migrate": [[]],
    "gc": [[]],
    "shard": [[], ["--apply"]],
}
"""Calls of every command that has `--dry-run`."""


def dry_commands() -> list[str]:
    """Returns the names of the commands that have `--dry-run`."""
    found = []

    def look(group: Any, path: str) -> None:
        for name, each in group.commands.items():
            if hasattr(each, "commands"):
                look(each, f"{path}{name} ")
            elif any("--dry-run" in option.opts for option in each.params):
                found.append(f"{path}{name}")

    look(typer.main.get_command(app), "")
    return found


def assert_only_reads(commands: Commands) -> None:
    """Asserts that nothing was sent that could change anything."""
    for sent in commands.sent:
        assert sent.name in READING, sent
        for stage in sent.command.get("pipeline", ()):
            assert not {"$merge", "$out"} & stage.keys(), sent


@pytest.mark.parametrize("name", dry_commands())
def test_a_dry_run_sends_no_write(
    name: str, mongosaver: Run, place: Place, recorded: Commands
) -> None:
    """No command writes anything under `--dry-run`, whatever it is given."""
    place.thread("a", 6, idle=LONG_AGO)
    place.thread("b", 3, interrupted=True)
    place.collection.update_many(
        {"thread_id": "a"}, {"$set": {"expires_at": datetime.now(timezone.utc) + LONG_AGO}}
    )
    before = place.contents()
    for arguments in SAMPLES[name]:
        for form in ([], ["--json"]):
            done = mongosaver(*name.split(), *arguments, "--dry-run", *form)
            assert done.code in (Code.DONE, Code.FAILED, Code.REFUSED, Code.FOUND), done.err
    assert recorded.sent
    assert_only_reads(recorded)
    assert place.contents() == before


def test_every_command_that_destroys_has_a_dry_run() -> None:
    """Whatever asks for confirmation can be tried before."""

    def look(group: Any) -> None:
        for each in group.commands.values():
            if hasattr(each, "commands"):
                look(each)
                continue
            options = {opt for option in each.params for opt in option.opts}
            assert "--yes" not in options or "--dry-run" in options

    look(typer.main.get_command(app))


def test_a_saver_of_a_dry_run_is_dry_too(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that calls the saver's methods instead of running plans does not write either."""
    place.thread("a", 2)
    before = place.contents()

    def body(session: session_module.Session, threads: Any) -> None:
        for saver in (session.saver, session.saver_with(ttl=60)):
            saver.delete_thread("a")
            saver.apply_ttl()

    with monkeypatch.context() as patch:
        patch.setattr(retain, "delete_thread", body)
        patch.setattr(app, "registered_commands", [])
        body.__annotations__ = {"session": session_module.Session, "threads": retain._Threads}
        session_module.command(app, "delete-thread", writes=True)(body)
        done = mongosaver("delete-thread", "a", "--dry-run")
        assert done.code == 0, done.err
        assert "would delete 2 documents" in done.out
    assert place.contents() == before


def steps(*ops: Op) -> Plan[list[Any]]:
    """A plan that does these, and returns their results."""
    results = []
    for op in ops:
        results.append((yield op))
    return results


TOLD = """\
would insert 1 documents in C.blobs: [{"data": "<1,000 bytes>", "key": "<1 bytes>"}]
would insert 9 documents in C.writes: [{"n": 1}, {"n": 1}, {"n": 1}, {"n": 1}, {"n": 1}, "... 4 more"]
would replace in C where {"thread_id": "a"}: {"text": "Y... <500 characters>"}
would update 2 documents in C: {"first": {"filter": {"thread_id": "a"}, "update": {"$set": {"a": 1}}}}
would update 0 documents in C
would delete 3 documents in C where {"thread_id": "a"}
would update 3 documents in C where {"thread_id": "a"}: {"$set": {"a": 1}}
would delete in C where {"a": 1}
would copy 3 documents in C.writes where {"thread_id": "a"}: [{"$project": {"_id": 0}}]
would copy in C.writes: []
would aggregate in C: {"pipeline": [{"$match": {}}, {"$merge": {"into": "elsewhere"}}]}
would create in C.blobs
would createIndexes in C.blobs: [{"thread_id": 1, "checkpoint_ns": 1, "key": 1}]
would collMod in C.blobs: {"index": {"name": "x", "hidden": true}}"""  # noqa: E501 - lines as they are


def test_what_a_dry_run_tells(place: Place, recorded: Commands) -> None:
    """Each write is told once, with its collection, filter, count and sizes instead of payloads."""
    place.thread("a", 3)
    told: list[dry_run.Write] = []
    collection = MongoSaver(
        session_module.MongoClient(place.uri)[place.database.name][place.name]
    )._driver.bound[Name.CHECKPOINTS]
    driver = dry_run.DryRun(collection, told.append)
    where = {"thread_id": "a"}
    into = [{"$match": {}}, {"$merge": {"into": "elsewhere"}}]
    results = driver.run(
        steps(
            Find(Name.CHECKPOINTS, where, {"_id": 1}),
            Insert(Name.BLOBS, [{"data": b"x" * 1000, "key": b"k"}]),
            Together([Insert(Name.WRITES, [{"n": 1}] * 9)]),
            Replace(Name.CHECKPOINTS, where, {"text": "y" * 500}),
            Updates(Name.CHECKPOINTS, [Update(where, {"$set": {"a": 1}})] * 2),
            Updates(Name.CHECKPOINTS, []),
            Delete(Name.CHECKPOINTS, where),
            Delete(Name.CHECKPOINTS, where),
            UpdateMany(Name.CHECKPOINTS, where, {"$set": {"a": 1}}),
            Delete(Name.CHECKPOINTS, {"a": 1}),
            Merge(Name.WRITES, [{"$match": where}, {"$project": {"_id": 0}}], ("n",), {"n": 1}),
            Merge(Name.WRITES, [], ("n",), {"n": 1}),
            Aggregate(Name.CHECKPOINTS, into),
            CreateCollection(Name.BLOBS, {}),
            CreateIndexes(Name.BLOBS, INDEXES[Name.BLOBS][:1], lambda: steps(), 1.0),
            CollMod(Name.BLOBS, {"name": "x", "hidden": True}),
        )
    )
    collection.database.client.close()
    assert_only_reads(recorded)
    assert "\n".join(map(str, told)).replace(place.name, "C").replace("y" * 200, "Y") == TOLD
    assert len(results[0]) == 3
    assert results[1:] == [
        *(None, True, None, None, None, 3, 0, 3, 0),
        *(None, None, None, None, None, None),
    ]


def test_an_operation_that_is_not_known_is_not_sent(place: Place) -> None:
    """What a dry run does not know to be a read is told, with its name; also without collection."""
    told: list[dry_run.Write] = []
    driver = dry_run.DryRun(place.collection, told.append)

    import dataclasses

    @dataclasses.dataclass(frozen=True)
    class DropEverything:
        when: datetime
        which: Name

    op: Any = DropEverything(datetime(2026, 2, 3, tzinfo=timezone.utc), Name.BLOBS)
    assert driver.run(steps(op)) == [None]
    assert str(told[0]) == (
        f"would dropEverything in {place.database.name}:"
        ' {"when": "2026-02-03T00:00:00+00:00", "which": "blobs"}'
    )


def test_debug_tells_operations_and_no_payloads(mongosaver: Run, place: Place) -> None:
    """`--debug` has a line with the time of each operation, also of those that fail."""
    place.thread("a", 2)
    done = mongosaver("delete-thread", "a", "--yes", "--debug")
    lines = done.err.splitlines()
    assert re.fullmatch(rf" +\d+\.\d ms  Find {place.name}\.migrations {{}}", lines[0])
    assert re.fullmatch(rf' +\d+\.\d ms  Count {place.name} {{"thread_id": "a"}}', lines[1])
    assert any(" Delete " in line for line in lines)
    times: list[str] = []
    driver = dry_run.Telling(place.collection, lambda text, seconds: times.append(text))
    with pytest.raises(OperationFailure):
        driver.run(steps(Find(Name.CHECKPOINTS, {"$no": 1})))
    driver.run(steps(Collections()))
    assert times == [f'Find {place.name} {{"$no": 1}}', "Collections"]


# --- delete-thread -----------------------------------------------------------------------------


def test_threads_are_deleted(mongosaver: Run, place: Place) -> None:
    """`delete-thread` removes all of the threads that were named, and nothing of others."""
    for name in ("a", "b", "c"):
        place.thread(name, 4)
    other = place.counts("c")
    counts = place.counts("a")
    done = mongosaver("delete-thread", "a", "b", "a", "--yes", "--json")
    row = dict(zip(("checkpoints", "writes", "blobs"), counts, strict=True))
    assert counts[0] == counts[1] == 4
    assert counts[2] > 0
    rows = [{"thread_id": "a", **row}, {"thread_id": "b", **row}]
    assert done.json == {"threads": rows, "finished": True}
    assert place.counts() == other


def test_a_deletion_is_shown_to_people(mongosaver: Run, place: Place) -> None:
    """The table names each thread with what went; an id cannot steer the terminal."""
    place.thread("x\x1b[31my", 2)
    done = mongosaver("delete-thread", "x\x1b[31my", "--yes")
    assert done.out.splitlines()[0].split() == ["thread", "checkpoints", "writes", "blobs"]
    assert done.out.splitlines()[1].split()[:3] == ["x\\x1b[31my", "2", "2"]


def test_unknown_threads_are_named(mongosaver: Run, place: Place) -> None:
    """A thread that is not there is said so, and is no failure; nobody is asked then."""
    done = mongosaver("delete-thread", "nobody")
    assert (done.code, done.out) == (0, "")
    assert done.err == "mongosaver: there is no thread 'nobody'\n"


@pytest.mark.parametrize("thread", ["", "a\0b"])
def test_what_is_no_id_is_refused(mongosaver: Run, thread: str) -> None:
    """A text that is no thread id is a wrong call."""
    assert mongosaver("delete-thread", thread, "--yes").code == Code.REFUSED


def test_a_deletion_asks_first(mongosaver: Run, place: Place) -> None:
    """Without `--yes` and without a terminal nothing is deleted, and the question is told."""
    for number in range(7):
        place.thread(f"t{number}", 1)
    before = place.contents()
    done = mongosaver("delete-thread", *(f"t{number}" for number in range(7)))
    assert done.code == Code.REFUSED
    assert "Delete 7 threads ('t0', 't1', 't2', 't3', 't4', ...), 7 checkpoints in all?" in done.err
    assert place.contents() == before


def test_a_deletion_at_a_terminal(place: Place) -> None:
    """At a terminal the answer decides, and Ctrl-C at the question ends with 130."""
    place.thread("a", 2)
    ask = {"[y/N] ": "n\n"}
    assert in_terminal("delete-thread", "a", env=place.environment, typed=ask).code == 2
    ask = {"[y/N] ": CTRL_C}
    done = in_terminal("delete-thread", "a", env=place.environment, typed=ask)
    assert (done.code, "interrupted" in done.screen) == (130, True)
    assert place.counts("a")[0] == 2
    ask = {"Delete thread 'a', 2 checkpoints in all? [y/N] ": "y\n"}
    done = in_terminal("delete-thread", "a", env=place.environment, typed=ask)
    assert done.code == 0, done.screen
    assert place.counts("a") == (0, 0, 0)


# --- copy-thread -------------------------------------------------------------------------------


@pytest.mark.parametrize("by_finds", [False, True])
def test_a_thread_is_copied(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch, by_finds: bool
) -> None:
    """`copy-thread` makes a whole copy, also where the server does not do it by itself."""
    place.thread("a", 5)
    if by_finds:
        original = session_module.Session.saver_with

        def saver_with(self: Any, **options: Any) -> MongoSaver:
            saver = original(self, **options)
            saver._shared.read_by_finds = True
            return saver

        monkeypatch.setattr(session_module.Session, "saver_with", saver_with)
    done = mongosaver("copy-thread", "a", "b", "--json")
    assert done.code == 0, done.err
    assert place.counts("b") == place.counts("a")
    assert done.json["thread_id"] == "b"
    assert done.json["checkpoints"] == 5
    one, other = (place.saver.get_tuple(config(each)) for each in ("a", "b"))
    assert one is not None
    assert other is not None
    assert one.checkpoint == other.checkpoint
    assert mongosaver("copy-thread", "a", "c").out.split()[-4:-3] == ["c"]


def test_what_cannot_be_copied(mongosaver: Run, place: Place) -> None:
    """An unknown source and a target that exists are failures; nothing is written."""
    place.thread("a", 2)
    place.thread("b", 2)
    before = place.contents()
    for arguments, says in [
        (("nobody", "x"), "there is no thread 'nobody'"),
        (("a", "b"), "cannot be copied to thread 'b', which exists"),
        (("a", "a"), "cannot be copied to itself"),
    ]:
        done = mongosaver("copy-thread", *arguments)
        assert (done.code, done.out) == (Code.FAILED, "")
        assert says in done.err
    assert place.contents() == before


def test_a_copy_that_was_interrupted_is_completed(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a copy says that the same command completes it, and so it does."""
    place.thread("a", 5)
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "_Lines", interrupting(at=1))
        done = mongosaver("copy-thread", "a", "b")
    assert done.code == Code.INTERRUPTED
    assert "The same command completes the copy" in done.err
    assert place.counts("b") != place.counts("a")
    assert mongosaver("copy-thread", "a", "b").code == 0
    assert place.counts("b") == place.counts("a")


def interrupting(at: float) -> type:
    """A progress display at which somebody presses Ctrl-C as soon as so much is done."""

    class Interrupting(session_module._Lines):
        def update(
            self,
            completed: float | None = None,
            total: float | None = None,
            text: str | None = None,
        ) -> None:
            if completed is not None and completed >= at:
                raise KeyboardInterrupt

    return Interrupting


# --- prune -------------------------------------------------------------------------------------


def test_named_threads_are_pruned(mongosaver: Run, place: Place) -> None:
    """`prune THREAD...` keeps the newest checkpoint, which reads as before."""
    ids = place.thread("a", 6)
    place.thread("b", 3)
    before = place.saver.get_tuple(config("a"))
    assert before is not None
    tried = mongosaver("prune", "a", "--dry-run", "--json").json
    done = mongosaver("prune", "a", "--yes", "--json").json
    assert done["threads"] == 1
    assert done["checkpoints"] == 5
    assert done["blobs"] > 0
    assert {name: tried[name] for name in done} == done
    assert [each["checkpoint_id"] for each in place.collection.find({"thread_id": "a"})] == [
        ids[-1]
    ]
    after = MongoSaver(place.collection).get_tuple(config("a"))
    assert after is not None
    assert after.checkpoint == before.checkpoint
    assert place.counts("b")[0] == 3


def test_what_is_kept_can_be_said(mongosaver: Run, place: Place) -> None:
    """`--keep-last`, `--older-than` and `--strategy` mean what they mean in Python."""
    for name in ("a", "b", "c", "d"):
        place.thread(name, 5)
    assert mongosaver("prune", "a", "--keep-last", "3", "--yes").code == 0
    assert place.counts("a")[0] == 3
    assert mongosaver("prune", "b", "--older-than", "1h", "--yes").code == 0
    assert place.counts("b")[0] == 5
    assert mongosaver("prune", "c", "--strategy", "delete", "--yes").code == 0
    assert place.counts("c") == (0, 0, 0)
    out = mongosaver("prune", "d", "nobody", "--yes").out
    assert out.startswith("1 thread pruned: 4 checkpoints, 4 writes, ")


def test_threads_that_wait_for_an_answer_are_left_alone(mongosaver: Run, place: Place) -> None:
    """An interrupted thread is counted and stays as it is, unless it is to go as well."""
    place.thread("a", 4, interrupted=True)
    done = mongosaver("prune", "a", "--yes")
    assert done.out.splitlines()[-1] == "1 thread left alone, waiting for an answer"
    assert place.counts("a")[0] == 4
    assert mongosaver("prune", "a", "--yes", "--include-interrupted").code == 0
    assert place.counts("a")[0] == 1


def test_idle_threads_are_pruned(mongosaver: Run, place: Place) -> None:
    """`prune --idle` finds the threads that nobody saved for so long."""
    place.thread("old", 4, idle=LONG_AGO)
    place.thread("waits", 4, idle=LONG_AGO, interrupted=True)
    place.thread("young", 4)
    tried = mongosaver("prune", "--idle", "30d", "--dry-run", "--json").json
    done = mongosaver("prune", "--idle", "30d", "--yes", "--json").json
    assert (done["threads"], done["idle"], done["finished"]) == (3, 2, True)
    assert (done["pruned"]["checkpoints"], done["pruned"]["skipped"]) == (3, 1)
    assert {name: tried[name] for name in done} == done
    assert [place.counts(each)[0] for each in ("old", "waits", "young")] == [1, 4, 4]
    out = mongosaver("prune", "--idle", "30d", "--yes", "--strategy", "delete").out
    assert out.startswith("3 threads, 2 of them idle\n1 thread pruned: 1 checkpoint, ")
    assert place.counts("old") == (0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "which threads?"),
        (["a", "--idle", "30d"], "not both"),
        (["a", "--after", "x"], "--after goes with --idle"),
        (["--idle", "30d", "--older-than", "1d"], "--older-than goes with ids"),
        (["a", "--keep-last", "0"], "--keep-last must be"),
        (["a", "--keep-last", "2", "--strategy", "delete"], "keep_last"),
        (["--idle", "30d", "--keep-last", "2", "--strategy", "delete"], "keep_last"),
        (["--idle", "30d", "--after", ""], "thread"),
    ],
)
def test_options_that_do_not_go_together(
    mongosaver: Run, place: Place, arguments: list[str], says: str
) -> None:
    """A prune that makes no sense is refused before anybody is asked."""
    place.thread("a", 2, idle=LONG_AGO)
    before = place.contents()
    done = mongosaver("prune", *arguments, "--yes")
    assert (done.code, done.out) == (Code.REFUSED, "")
    assert says in done.err
    assert place.contents() == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a"], "keeping the newest checkpoint of each namespace and what it needs?"),
        (["a", "--keep-last", "3"], "the 3 newest checkpoints of each namespace"),
        (["a", "--older-than", "36h"], "and what is not older than 1d12h?"),
        (["a", "--strategy", "delete"], "Prune thread 'a', keeping nothing of it?"),
        (["a", "--include-interrupted"], "also where an interrupt waits?"),
        (["--idle", "30d"], "Prune all threads not saved for 30d, keeping the newest"),
    ],
)
def test_a_prune_says_what_stays_before_it_is_confirmed(
    mongosaver: Run, place: Place, arguments: list[str], says: str
) -> None:
    """The question names what goes and what stays."""
    place.thread("a", 1)
    done = mongosaver("prune", *arguments)
    assert done.code == Code.REFUSED
    assert says in done.err


@pytest.mark.parametrize(
    "call",
    [
        ["prune", "--idle", "30d"],
        ["prune", "--idle", "30d", "--strategy", "delete"],
        ["prune", "--idle", "30d", "--keep-last", "2", "--include-interrupted"],
        ["ttl", "set", "90d"],
        ["ttl", "off"],
    ],
)
def test_long_work_that_was_interrupted_goes_on(
    mongosaver: Run,
    run: Run,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    call: list[str],
) -> None:
    """After Ctrl-C the command that was printed does the rest, and all is as without it."""
    monkeypatch.setattr(threads, "WINDOW", 2)  # a thread at a time
    for name in ("a", "b's", "c", "d"):
        place.thread(name, 3, idle=LONG_AGO)
    if call[1] == "off":
        assert mongosaver("ttl", "set", "80d", "--yes").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "_Lines", interrupting(at=3))
        done = mongosaver(*call, "--yes")
    assert done.code == Code.INTERRUPTED
    assert "2 threads done. Go on with: mongosaver " in done.err
    words = shlex.split(done.err.partition("Go on with: mongosaver ")[2])
    assert words[: len(call)] == call
    assert words[len(call) : len(call) + 2] == ["--after", "b's"]
    # The connection string is not among them, but everything else is.
    done = run(*words, "--yes", "--json", env={"MONGOSAVER_URI": place.uri})
    assert done.code == 0, done.err
    # The third thread was done already, but that had not been said yet.
    assert done.json["threads"] == (1 if "delete" in call else 2)
    if call[0] == "ttl":
        assert place.collection.count_documents({"expires_at": {"$exists": call[1] == "set"}}) == 12
    else:
        kept = {"delete": 0, "2": 2}.get(call[4] if len(call) > 4 else "", 1)
        assert [place.counts(each)[0] for each in ("a", "b's", "c", "d")] == [kept] * 4


@pytest.mark.parametrize(
    "call", [["delete-thread", "a", "b", "c"], ["prune", "a", "b", "c"], ["ttl", "set", "90d"]]
)
def test_short_work_that_was_interrupted_is_repeated(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch, call: list[str]
) -> None:
    """Where little is lost, Ctrl-C says that the same command does the rest, and so it does."""
    for name in ("a", "b", "c"):
        place.thread(name, 3)
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "_Lines", interrupting(at=2))
        done = mongosaver(*call, "--yes")
    assert done.code == Code.INTERRUPTED
    says, _, again = done.err.partition("The same command does the rest: mongosaver ")
    assert says == "mongosaver: interrupted. "
    assert done.out.splitlines()[-1] == "interrupted, not finished"
    # What was printed is the whole command, but for the connection string.
    assert mongosaver(*shlex.split(again), "--yes").code == 0
    left = {"delete-thread": 0, "prune": 3, "ttl": 9}[call[0]]
    assert place.counts()[0] == left


@pytest.mark.parametrize(
    "call", [["prune", "--idle", "30d"], ["prune", "a", "b", "c"], ["delete-thread", "a", "b", "c"]]
)
def test_interrupted_removal_says_what_was_removed(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch, call: list[str]
) -> None:
    """Ctrl-C on the first page: what is gone by then is on standard output, also as JSON."""
    for name in ("a", "b", "c"):
        place.thread(name, 3, idle=LONG_AGO)
    before = place.counts()
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "_Lines", interrupting(at=2))
        done = mongosaver(*call, "--yes", "--json")
    assert done.code == Code.INTERRUPTED
    assert done.json["finished"] is False
    gone = [had - has for had, has in zip(before, place.counts(), strict=True)]
    assert gone[0] > 0
    told = done.json.get("threads") if call[0] == "delete-thread" else None
    told = told or [done.json.get("pruned", done.json)]
    assert [sum(row[name] for row in told) for name in ("checkpoints", "writes", "blobs")] == gone


def test_interrupted_ttl_says_what_was_changed(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C on the first page: how many checkpoints have another date is on standard output."""
    for name in ("a", "b", "c"):
        place.thread(name, 3)
    assert mongosaver("ttl", "set", "80d", "--yes").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(session_module, "_Lines", interrupting(at=2))
        done = mongosaver("ttl", "off", "--yes", "--json")
    assert done.code == Code.INTERRUPTED
    lifted = place.collection.count_documents({"expires_at": {"$exists": False}})
    assert lifted > 0
    assert (done.json["finished"], done.json["checkpoints"]) == (False, lifted)


def test_prune_of_a_thread_that_does_not_exist(mongosaver: Run, place: Place) -> None:
    """That is said and no failure; the others are pruned."""
    place.thread("a", 3)
    done = mongosaver("prune", "nobody", "a", "--yes")
    assert (done.code, done.err) == (Code.DONE, "mongosaver: there is no thread 'nobody'\n")
    assert place.counts("a")[0] == 1
    assert mongosaver("prune", "nobody").code == Code.DONE  # there is nothing to ask about


def test_a_dry_run_prints_ids_as_they_are(mongosaver: Run, place: Place) -> None:
    """What is no ASCII is no escape, and what steers a terminal is one."""
    place.thread("é日\x1b\x9b", 2)
    done = mongosaver("prune", "é日\x1b\x9b", "--dry-run")
    assert '"é日' in done.out
    assert not {"\x1b", "\x9b"} & set(done.out)


def test_progress_of_a_prune(
    mongosaver: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of long work has how many threads there are, the rate, and what has gone so far."""
    monkeypatch.setattr(threads, "WINDOW", 2)
    monkeypatch.setattr(session_module._Lines, "EVERY", 0.0)
    for name in ("a", "b", "c"):
        place.thread(name, 3, idle=LONG_AGO)
    lines = mongosaver("prune", "--idle", "30d", "--yes").err.splitlines()
    wanted = r"mongosaver: pruning \(4 checkpoints\): 2 of 3, [\d,]+/s, \ds left"
    assert any(re.fullmatch(wanted, line) for line in lines), lines


KEY = "0123456789abcdef"


def encrypted(place: Place) -> MongoSaver:
    """A saver that encrypts."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY.encode())
    return MongoSaver(place.collection, serde=serde)


def test_encrypted_threads_are_pruned_with_the_key_only(mongosaver: Run, place: Place) -> None:
    """Where state is encrypted and matters, a prune without the key fails and changes nothing."""
    saver = encrypted(place)
    # A channel that is rebuilt from writes back to a snapshot, which is in an encrypted value.
    versions: dict[str, Any] = {}
    ids: list[str] = []
    for step in range(4):
        versions["d"] = saver.get_next_version(versions.get("d"), None)
        values = {"d": _DeltaSnapshot(["seed" * 3000])} if step == 0 else {}
        made = checkpoint(values, versions)
        counts = {"counters_since_delta_snapshot": {"d": (step, step)}}
        at = config("a", "", ids[-1] if ids else None)
        if ids:
            saver.put_writes(at, [("d", [f"write {step}"])], f"task-{step}")
        saver.put(at, made, metadata(step=step, **counts), {"d": versions["d"]})
        ids.append(made["id"])

    def history() -> Any:
        return encrypted(place).get_delta_channel_history(config=config("a"), channels=["d"])

    before, contents = history(), place.contents()
    assert before["d"]["seed"].value == ["seed" * 3000]
    done = mongosaver("prune", "a", "--yes")
    assert (done.code, done.out) == (Code.FAILED, "")
    assert "encrypted" in done.err
    assert "LANGGRAPH_AES_KEY" in done.err
    assert place.contents() == contents
    done = mongosaver("prune", "a", "--yes", env={"LANGGRAPH_AES_KEY": KEY})
    assert done.code == 0, done.err
    assert history() == before
    assert mongosaver("delete-thread", "a", "--yes").code == 0  # needs no key
    assert place.counts() == (0, 0, 0)


# --- ttl ---------------------------------------------------------------------------------------


def test_a_ttl_is_set_shown_and_lifted(mongosaver: Run, place: Place) -> None:
    """`ttl set` dates all threads from their last save, `ttl show` counts, `ttl off` lifts it."""
    place.thread("a", 3)
    place.thread("old", 2, idle=LONG_AGO)
    assert mongosaver("ttl", "show").out == "0 of about 5 checkpoints expire.\n"
    tried = mongosaver("ttl", "set", "50d", "--dry-run", "--json").json
    assert (tried["threads"], tried["changed"], tried["checkpoints"]) == (2, 2, 5)
    done = mongosaver("ttl", "set", "50d", "--yes")
    assert done.out == "2 threads, 2 of them changed (5 checkpoints)\n"
    shown = mongosaver("ttl", "show", "--json").json
    assert shown["indexes"] == {place.name + name.value: True for name in retain._PARTS}
    assert (shown["checkpoints"], shown["expiring"]) == (5, 5)
    assert shown["due"] == {"now": 0, "1d": 0, "7d": 0, "30d": 2}
    first = datetime.fromisoformat(shown["first"]) - datetime.now(timezone.utc)
    # Dates lie on a grid of five days, so that when it is today makes a difference.
    assert timedelta(days=14) < first < timedelta(days=21)
    lines = mongosaver("ttl", "show").out.splitlines()
    assert lines[0] == "5 of about 5 checkpoints expire."
    assert re.fullmatch(r"First \d{4}-\d\d-\d\d \d\d:\d\d, last .* UTC\.", lines[1])
    assert lines[2:] == ["Expired already: 0", "Within 1d: 0", "Within 7d: 0", "Within 30d: 2"]
    assert mongosaver("ttl", "off", "--yes").code == 0
    assert place.collection.count_documents({"expires_at": {"$exists": True}}) == 0


def test_a_short_ttl_says_what_expires_at_once(mongosaver: Run, place: Place) -> None:
    """Threads that were idle for longer than the ttl are counted."""
    place.thread("old", 2, idle=LONG_AGO)
    place.thread("young", 2)
    out = mongosaver("ttl", "set", "7d", "--dry-run").out
    assert out.splitlines()[-2:] == [
        "2 threads, 2 of them would be changed (4 checkpoints)",
        "1 thread expires at once",
    ]


def test_without_its_index_nothing_expires(mongosaver: Run, place: Place) -> None:
    """Where MongoDB has no index to remove by, `ttl set` refuses and `ttl show` says so."""
    place.thread("a", 2)
    place.database[place.name + ".blobs"].drop_index("expires_at_1")
    done = mongosaver("ttl", "set", "30d", "--yes")
    assert (done.code, done.out) == (Code.FAILED, "")
    assert f"{place.name}.blobs: nothing would expire" in done.err
    assert "mongosaver migrate" in done.err
    out = mongosaver("ttl", "show").out
    assert out.startswith(f"An index that MongoDB removes by is missing: {place.name}.blobs\n")
    place.collection.drop_index("expires_at_1")
    assert mongosaver("ttl", "show").out.startswith("Nothing expires")
    assert mongosaver("ttl", "show", "--json").json["expiring"] is None


def test_a_ttl_is_a_positive_duration(mongosaver: Run, place: Place) -> None:
    """A ttl of nothing is refused, and so is none at all."""
    done = mongosaver("ttl", "set", "0s")
    assert (done.code, "at least a millisecond" in done.err) == (Code.REFUSED, True)
    assert mongosaver("ttl", "set", "--yes").code == Code.REFUSED
