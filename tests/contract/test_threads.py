"""Listing threads and pruning idle ones: what is told, in which order, and by which index."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from mongosaver import ConfigurationError, IdleProgress, ThreadInfo
from mongosaver.plans import threads as plans
from tests.contract.interrupted import Interrupted, at_each_operation, between_operations
from tests.contract.samples import LARGE, Line, checkpoint, config, id_of, metadata
from tests.contract.test_commands import names
from tests.contract.trees import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.faces import Face

OLD = datetime(2020, 1, 1, tzinfo=timezone.utc)


def listed(face: Face, **options: Any) -> list[ThreadInfo]:
    """Lists threads."""
    if not face.awaited:
        return list(face.saver.list_threads(**options))  # type: ignore[attr-defined]

    async def gather() -> list[ThreadInfo]:
        return [row async for row in face.saver.alist_threads(**options)]  # type: ignore[attr-defined]

    return face.run(gather())


def thread_ids(rows: Iterable[ThreadInfo]) -> list[str]:
    """Returns the thread ids of rows."""
    return [row.thread_id for row in rows]


def put(face: Face, thread: str, checkpoint_id: str, ns: str = "", **keys: Any) -> None:
    """Puts a checkpoint with an id and metadata."""
    made = checkpoint({"n": 1}, {"n": "1"}, checkpoint_id=checkpoint_id)
    face.put(config(thread, ns), made, metadata(**keys), {"n": "1"})


def filled(face: Face, count: int, each: int = 3) -> list[str]:
    """Puts threads in turns, so that their checkpoints mix; returns them, latest active first."""
    order = [f"thread {n:03}" for n in range(count) for _ in range(each)]
    random.Random(7).shuffle(order)
    latest: dict[str, int] = {}
    for at, thread in enumerate(order):
        put(face, thread, f"{at:06}", user=thread[-1])
        latest[thread] = at
    return sorted(latest, key=lambda thread: -latest[thread])


def test_a_thread_is_told_in_one_row(mongo_face: Face, thread: str) -> None:
    """Its namespaces, checkpoints, last activity and latest checkpoint, and that nobody waits."""
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    lines = [Line(mongo_face, thread, ns) for ns in ("", "inner", "call:1")]
    for line in lines:
        for n in range(3):
            line.put({"n": n, "own": LARGE})
    [row] = listed(mongo_face)
    assert (row.thread_id, row.namespaces) == (thread, ("", "call:1", "inner"))
    assert (row.checkpoints, row.pending_interrupt) == (9, False)
    assert row.last_checkpoint_id == lines[0].ids[-1]
    assert before < row.last_activity <= datetime.now(timezone.utc)
    with pytest.raises(AttributeError):
        row.checkpoints = 1  # type: ignore[misc]


def test_threads_without_a_root_graph(mongo_face: Face, thread: str) -> None:
    """A thread whose checkpoints are all in other namespaces has its newest one as the latest."""
    put(mongo_face, thread, "2", "a")
    put(mongo_face, thread, "1", "b")
    mongo_face.put_writes(config(thread, "a", "2"), [("__interrupt__", 1)], "task")
    [row] = listed(mongo_face)
    assert (row.last_checkpoint_id, row.namespaces, row.checkpoints) == ("2", ("a", "b"), 2)
    assert row.pending_interrupt


def test_nothing_to_list(mongo_face: Face, thread: str) -> None:
    """No threads are no rows, and writes without a checkpoint are no thread."""
    assert listed(mongo_face) == []
    mongo_face.put_writes(config(thread, "", "1"), [("x", 1)], "task")
    assert listed(mongo_face) == []


def test_the_latest_active_first(mongo_face: Face) -> None:
    """Order and completeness hold across windows and pages; a limit reads no more than it needs."""
    expected = filled(mongo_face, 130)
    rows = listed(mongo_face)
    assert thread_ids(rows) == expected
    assert {row.checkpoints for row in rows} == {3}
    assert thread_ids(listed(mongo_face, limit=7)) == expected[:7]
    assert listed(mongo_face, limit=0) == []


@pytest.mark.parametrize("window", [2, 5, 40])
def test_small_windows(mongo_face: Face, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """However the walk is cut, each thread comes once and in order."""
    monkeypatch.setattr(plans, "WINDOW", window)
    monkeypatch.setattr(plans, "WIDEST", window * 2)
    expected = filled(mongo_face, 20, 5)
    for name in expected[:3]:  # a copy of a thread repeats its ids
        for row in mongo_face.list(config(name)):
            put(mongo_face, name + " copy", id_of(row))
    rows = thread_ids(listed(mongo_face))
    assert [name for name in rows if "copy" not in name] == expected
    assert len(rows) == len(set(rows)) == 23
    assert rows.index(expected[0] + " copy") == 1


@pytest.mark.parametrize("size", [1, 3, 50])
def test_paging_with_a_cursor(mongo_face: Face, size: int) -> None:
    """A page that goes on after a row's cursor has the next rows, and none comes twice."""
    expected = filled(mongo_face, 24)
    seen: list[str] = []
    after = None
    while rows := listed(mongo_face.another(), limit=size, after=after):
        seen += thread_ids(rows)
        after = rows[-1].cursor
    assert seen == expected


def test_a_thread_that_was_active_meanwhile(mongo_face: Face) -> None:
    """It stands before the cursor now, so the rest of the list does not have it."""
    expected = filled(mongo_face, 9)
    rows = listed(mongo_face, limit=4)
    put(mongo_face, expected[6], "900000")
    put(mongo_face, expected[0], "900001")
    put(mongo_face, "new", "900002")
    rest = thread_ids(listed(mongo_face, after=rows[-1].cursor))
    assert rest == [name for name in expected[4:] if name != expected[6]]


@pytest.mark.parametrize("after", ["", "x", "[]", '["a"]', '["a", 1]', '{"a": 1}', 3, ["a", "b"]])
def test_what_is_no_cursor(mongo_face: Face, after: Any) -> None:
    """It is refused at once, as are limits and filters that are none."""
    with pytest.raises(ConfigurationError, match="cursor"):
        listed(mongo_face, after=after)
    with pytest.raises(ValueError, match="limit"):
        listed(mongo_face, limit=-1)
    for options in ({"limit": "1"}, {"limit": True}, {"filter": "x"}):
        with pytest.raises(TypeError):
            listed(mongo_face, **options)


def test_filters(mongo_face: Face, thread: str) -> None:
    """The latest checkpoint's metadata are compared as `list` compares them."""
    put(mongo_face, "a", "1", user="x", tags=["t"], **{"a.b": 1})
    put(mongo_face, "b", "2", user="x")
    put(mongo_face, "b", "3", user="y")
    put(mongo_face, "b", "4", "inner", user="x")
    put(mongo_face, "c", "5", n=1)
    for wanted, expected in [
        ({}, "cba"),
        ({"user": "x"}, "a"),
        ({"user": "y"}, "b"),
        ({"user": None}, "c"),
        ({"tags": "t"}, ""),
        ({"tags": ["t"]}, "a"),
        ({"a.b": 1}, "a"),
        ({"n": True}, "c"),
        ({"n": {"$gt": 0}}, ""),
    ]:
        assert thread_ids(listed(mongo_face, filter=wanted)) == list(expected)
    assert thread_ids(listed(mongo_face, filter={"step": 1}, limit=2)) == ["c", "b"]
    expected_rows = filled(mongo_face, 40)
    some = [name for name in expected_rows if name.endswith("3")]
    assert thread_ids(listed(mongo_face, filter={"user": "3"}, limit=3)) == some[:3]


def test_pending_interrupts(mongo_face: Face, thread: str) -> None:
    """A task of the latest checkpoint waits if it has an interrupt and no write of its own."""
    line = Line(mongo_face, thread)
    at = line.put({"n": 1})
    for writes, task, waits in [
        ([("x", 1)], "a", False),
        ([("__interrupt__", 1)], "b", True),
        ([("__resume__", 1)], "b", True),
        ([("x", 1)], "b", False),
        ([("__interrupt__", 1)], "c", True),
    ]:
        mongo_face.put_writes(at, writes, task)
        [row] = listed(mongo_face)
        assert row.pending_interrupt is waits
    line.put({"n": 2})
    [row] = listed(mongo_face)
    assert not row.pending_interrupt


def test_what_is_being_removed_does_not_count(mongo_face: Face, thread: str) -> None:
    """Checkpoints that a prune has marked are not told, nor threads that have no other."""
    for n in range(4):
        put(mongo_face, thread, f"1{n}")
        put(mongo_face, "other", f"0{n}")
    mark = {"$set": {"deleted_at": OLD}}
    mongo_face.collection.update_many({"checkpoint_id": {"$in": ["13", "10"]}}, mark)
    rows = listed(mongo_face)
    assert [(r.thread_id, r.checkpoints, r.last_checkpoint_id) for r in rows] == [
        (thread, 2, "12"),
        ("other", 4, "03"),
    ]
    mongo_face.collection.update_many({"thread_id": thread}, mark)
    assert thread_ids(listed(mongo_face)) == ["other"]


def explained(face: Face, command: dict[str, Any]) -> str:
    """Returns the plans of a command as text."""
    bare = {k: v for k, v in command.items() if k[0] != "$" and k not in ("lsid", "txnNumber")}
    if "aggregate" in bare:
        bare["cursor"] = {}
    database = face.collection.database
    return str(database.command({"explain": bare, "verbosity": "queryPlanner"}))


def test_no_listing_scans_a_collection(mongo_face: Face) -> None:
    """Every command goes along an index; the ones that find threads read no document."""
    filled(mongo_face, 30)
    page = listed(mongo_face, limit=10)
    with mongo_face.commands.recorded() as sent:
        listed(mongo_face, filter={"user": "1"})
        listed(mongo_face, limit=10, after=page[-1].cursor)
        prune_idle(mongo_face, older_than=OLD, dry_run=True)
    assert len(sent) >= 10
    for one in sent:
        assert one.name in ("find", "aggregate")
        plan = explained(mongo_face, one.command)
        assert "IXSCAN" in plan or "DISTINCT_SCAN" in plan
        assert "COLLSCAN" not in plan
        marks = "deleted_at" in str(one.command)
        if (one.name == "aggregate" and not marks) or one.collection.endswith(".writes"):
            assert "FETCH" not in plan, one
        else:
            assert "checkpoint'" not in str(one.command.get("projection"))


def test_many_copies_of_one_checkpoint(mongo_face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads than a window holds keys, all with the same ids, are all listed."""
    monkeypatch.setattr(plans, "WINDOW", 2)
    for n in range(9):
        put(mongo_face, f"copy {n}", "1")
        put(mongo_face, f"copy {n}", "2")
    expected = [f"copy {n}" for n in range(9)]
    assert thread_ids(listed(mongo_face)) == expected
    rows = listed(mongo_face, limit=4)
    assert thread_ids(rows) == expected[:4]
    assert thread_ids(listed(mongo_face, after=rows[-1].cursor)) == expected[4:]


def test_commands_of_a_listing(mongo_face: Face) -> None:
    """A page is at most five commands, whatever it has."""
    filled(mongo_face, 60)
    assert len(names(mongo_face, lambda: listed(mongo_face, limit=20))) == 5
    assert len(names(mongo_face, lambda: listed(mongo_face, limit=60))) == 5
    assert len(names(mongo_face, lambda: listed(mongo_face))) == 5
    assert len(names(mongo_face, lambda: listed(mongo_face, filter={"user": "nobody"}))) == 4


# --- idle threads ------------------------------------------------------------------------------


def prune_idle(face: Face, **options: Any) -> IdleProgress:
    """Prunes idle threads."""
    return face.call("prune_idle", **options)  # type: ignore[no-any-return]


def idle_and_busy(face: Face, stem: str, count: int = 5) -> dict[str, Line]:
    """Puts threads of four checkpoints; the odd ones were put long ago."""
    lines = {}
    for n in range(count):
        name = f"{stem} {n}"
        line = lines[name] = Line(face, name)
        for step in range(4):
            at = line.put({"n": step, "own": LARGE + str(step)})
            face.put_writes(at, [("x", step)], "task")
        if n % 2:
            face.collection.update_many({"thread_id": name}, {"$set": {"created_at": OLD}})
    return lines


def left(face: Face, thread: str) -> tuple[int, ...]:
    """Returns how many checkpoints, writes and blobs of a thread there are."""
    return tuple(
        face.sibling(suffix).count_documents({"thread_id": thread, "part": {"$in": [0, None]}})
        for suffix in ("", ".writes", ".blobs")
    )


def test_idle_threads_are_pruned(mongo_face: Face, thread: str) -> None:
    """Those whose newest checkpoint is older keep what they are told to, and the others all."""
    lines = idle_and_busy(mongo_face, thread)
    full = left(mongo_face, f"{thread} 0")
    seen: list[IdleProgress] = []
    dry = prune_idle(mongo_face, older_than=timedelta(hours=1), dry_run=True)
    assert (dry.threads, dry.idle, dry.pruned.checkpoints, dry.done) == (5, 2, 6, True)
    assert {left(mongo_face, name) for name in lines} == {full}
    done = prune_idle(mongo_face, older_than=timedelta(hours=1), progress=seen.append)
    assert done == seen[-1]
    assert (done.threads, done.idle, done.last_thread_id) == (5, 2, f"{thread} 4")
    assert done.pruned == dry.pruned
    for n, (name, line) in enumerate(lines.items()):
        assert left(mongo_face, name)[:2] == ((1, 1) if n % 2 else (4, 4))
        line.expected = {i: line.expected[i] for i in line.ids[3 if n % 2 else 0 :]}
        line.check()
    again = prune_idle(mongo_face, older_than=timedelta(hours=1))
    assert (again.idle, again.pruned.threads) == (2, 0)


def test_idle_threads_are_deleted_or_keep_more(mongo_face: Face, thread: str) -> None:
    """The options are those of `prune`; before a time that is older nothing is idle."""
    lines = idle_and_busy(mongo_face, thread)
    assert prune_idle(mongo_face, older_than=OLD, strategy="delete").idle == 0
    some = OLD + timedelta(days=1)
    assert prune_idle(mongo_face, older_than=some, keep_last=3).pruned.checkpoints == 2
    assert prune_idle(mongo_face, older_than=some, strategy="delete").pruned.checkpoints == 6
    for n, name in enumerate(lines):
        assert (left(mongo_face, name) == (0, 0, 0)) is bool(n % 2)
    for options in ({"strategy": "x"}, {"keep_last": 0}, {"strategy": "delete", "keep_last": 1}):
        with pytest.raises(ConfigurationError):
            prune_idle(mongo_face, older_than=some, **options)
    with pytest.raises(ConfigurationError, match="zone"):
        prune_idle(mongo_face, older_than=datetime(2020, 1, 1))  # noqa: DTZ001 - that is the point
    with pytest.raises(ConfigurationError, match="older_than"):
        prune_idle(mongo_face, older_than=3)


def test_threads_that_wait_for_an_answer_are_skipped(mongo_face: Face, thread: str) -> None:
    """Unless told: an answer may come after any time."""
    lines = idle_and_busy(mongo_face, thread, 2)
    mongo_face.put_writes(lines[f"{thread} 1"].at(-1), [("__interrupt__", 1)], "waits")
    some = OLD + timedelta(days=1)
    for strategy in ("keep_latest", "delete"):
        done = prune_idle(mongo_face, older_than=some, strategy=strategy)
        assert (done.idle, done.pruned.skipped, done.pruned.checkpoints) == (1, 1, 0)
    done = prune_idle(mongo_face, older_than=some, strategy="delete", skip_interrupted=False)
    assert done.pruned.checkpoints == 4


def test_a_walk_that_broke_off_goes_on(mongo_face: Face, thread: str) -> None:
    """After any operation, a call after the last thread that was told finishes the walk."""
    some = OLD + timedelta(days=1)
    done: dict[str, str | None] = {}

    def fill(name: str) -> None:
        for line in idle_and_busy(mongo_face, name, 2).values():
            line.put({"n": 9})
        mongo_face.collection.update_many({}, {"$set": {"created_at": OLD}})

    def act(name: str) -> None:
        def note(progress: IdleProgress) -> None:
            done[name] = progress.last_thread_id

        prune_idle(mongo_face, older_than=some, progress=note)

    for name in at_each_operation(mongo_face, thread, fill, act):
        prune_idle(mongo_face, older_than=some, after=done.get(name))
        for n in range(2):
            assert left(mongo_face, f"{name} {n}")[0] == 1


def test_every_thread_is_walked_once(mongo_face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the walk ends where it ends, also within a long thread."""
    monkeypatch.setattr(plans, "WINDOW", 4)
    filled(mongo_face, 12, 3)
    Tree(mongo_face, "thread 005")
    for n in range(20):
        put(mongo_face, "thread 005", f"9{n:05}")
    done = prune_idle(mongo_face, older_than=timedelta(0), dry_run=True)
    assert (done.threads, done.idle) == (12, 12)


def test_a_thread_that_is_active_again_is_not_deleted(mongo_face: Face, thread: str) -> None:
    """A checkpoint that is put after the walk has found its thread idle keeps the thread."""
    idle_and_busy(mongo_face, thread, 2)
    name, fresh = f"{thread} 1", []

    def put_once(op: Any) -> None:
        if not fresh and getattr(op, "projection", None) and "created_at" in op.projection:
            fresh.append(op)
            put(mongo_face.another(), name, "~")

    with between_operations(mongo_face, after=put_once):
        prune_idle(mongo_face, older_than=OLD + timedelta(days=1), strategy="delete")
    assert fresh
    assert left(mongo_face, name)[0] == 5


def test_breaking_off_is_raised(mongo_face: Face, thread: str) -> None:
    """What a progress callback raises ends the walk."""
    idle_and_busy(mongo_face, thread, 2)

    def stop(_: IdleProgress) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        prune_idle(mongo_face, older_than=timedelta(0), progress=stop)
