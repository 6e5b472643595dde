"""Reads as tables: one round trip where it can be, finds where not, and never a hole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple

from mongosaver import codec
from mongosaver.cache import Shared
from mongosaver.errors import (
    ForeignDocument,
    FormatTooNew,
    IdentifierTypeError,
    IdentifierValueError,
    IncompleteCheckpoint,
)
from mongosaver.identifiers import Address
from mongosaver.ops import Aggregate, Find, Plan
from mongosaver.plans import read
from mongosaver.schema import MANY_WRITES, MAX_AGGREGATE, OFF_LOOP, PAGE, Name
from tests.contract.samples import before, config, ids
from tests.unit.stored import LONG, Thread, items, values
from tests.unit.tables import RUN, Played, Row, attempt, broken_off, context, play, refusal

LATEST = config("t", "n")


@pytest.fixture
def thread() -> Thread:
    """A thread of two checkpoints with a value in segments, and a write on the second."""
    made = Thread()
    made.put("1", {"chat": LONG, "note": "first"})
    made.put("2", {"chat": [*LONG, "x" * 5_000], "note": "second"}, "1")
    made.write("2", [("a", 1)])
    return made


def reading(shared: Shared | None = None, at: Any = LATEST) -> Plan[Any]:
    """Returns the plan of a read."""
    return read.get_tuple(context(shared=shared), at)


def by_finds() -> Shared:
    """Returns the memory of a saver whose server refuses the aggregate."""
    shared = Shared()
    shared.read_by_finds = True
    return shared


# --- one round trip


def test_nothing_is_none() -> None:
    """A thread that has no checkpoint is read as None, whichever way."""
    assert play(reading(), ("aggregate checkpoints", [])).result is None
    assert play(reading(by_finds()), ("find checkpoints", [])).result is None


def test_a_checkpoint_comes_in_one_round_trip(thread: Thread) -> None:
    """Values, metadata, writes and the parent's config are there, and the facts are remembered."""
    shared = Shared()
    played = play(reading(shared), ("aggregate checkpoints", [thread.row("2")]))
    row = played.result
    assert values(row) == {"chat": [*LONG, "x" * 5_000], "note": "second"}
    assert row.config == config("t", "n", "2")
    assert row.parent_config == config("t", "n", "1")
    assert row.pending_writes == [("task", "a", 1)]
    assert shared.cache.get(Address("t", "n", "2")) == thread.facts["2"]


def stages(played: Played) -> list[str]:
    """Returns the stages of the aggregate, and for lookups what they are for."""
    (op,) = [op for op in played.ops if isinstance(op, Aggregate)]
    return [next(iter(stage)) for stage in op.pipeline]


def test_identifiers_are_matched_by_equality(thread: Thread) -> None:
    """The match names thread, namespace and checkpoint; every lookup names thread and namespace."""
    played = play(reading(at=config("t", "n", "2")), ("aggregate checkpoints", [thread.row("2")]))
    (op,) = played.ops
    assert isinstance(op, Aggregate)
    match = op.pipeline[0]["$match"]
    assert (match["thread_id"], match["checkpoint_ns"], match["checkpoint_id"]) == ("t", "n", "2")
    lookups = [stage["$lookup"] for stage in op.pipeline if "$lookup" in stage]
    assert [lookup["from"] for lookup in lookups] == [Name.BLOBS, Name.BLOBS, Name.WRITES]
    for lookup in lookups:
        scope = lookup["pipeline"][0]["$match"]
        assert (scope["thread_id"], scope["checkpoint_ns"]) == ("t", "n")
    assert "$sort" not in stages(played)
    assert "$sort" in stages(play(reading(), ("aggregate checkpoints", [])))


def inline_thread() -> tuple[Thread, Shared]:
    """Returns a thread without blobs, and the memory of a saver that has seen it."""
    small = Thread()
    small.put("1", {"note": "first"})
    shared = Shared()
    shared.cache.put(Address("t", "n", "1"), small.facts["1"], written=True)
    return small, shared


def test_a_small_thread_of_its_own_is_read_without_looking_for_blobs() -> None:
    """Where the last checkpoint had its values inside, only writes are looked up."""
    small, shared = inline_thread()
    row = small.row("1", lookups=False)
    for _ in range(2):
        played = play(reading(shared), ("aggregate checkpoints", [row]))
        assert values(played.result) == {"note": "first"}
        assert stages(played).count("$lookup") == 1


def test_a_small_thread_that_grew_is_completed_by_finds(thread: Thread) -> None:
    """What the saver did not expect is read after all, and comes at once the next time."""
    _, shared = inline_thread()
    played = play(
        reading(shared),
        ("aggregate checkpoints", [thread.row("2", lookups=False)]),
        ("find blobs", thread.heads("2")),
        ("find blobs", thread.chains("2")),
    )
    assert values(played.result)["chat"] == [*LONG, "x" * 5_000]
    again = play(reading(shared), ("aggregate checkpoints", [thread.row("2")]))
    assert stages(again).count("$lookup") == 3


# --- values in memory


def read_before(thread: Thread) -> Shared:
    """Returns the memory of a saver that has read the thread's latest checkpoint."""
    shared = Shared()
    play(reading(shared), ("aggregate checkpoints", [thread.row("2")]))
    return shared


def there(thread: Thread, *ids: str) -> list[dict[str, bytes]]:
    """Returns keys of the blobs of checkpoints, as an index has them."""
    return [{"key": blob["key"]} for blob in (*thread.heads(*ids), *thread.chains(*ids))]


def expected_row(thread: Thread, checkpoint_id: str, keys: list[dict[str, bytes]]) -> Any:
    """Returns the row of a checkpoint of which blobs were expected."""
    return {**thread.row(checkpoint_id, lookups=False), "there": keys}


def test_values_in_memory_are_not_fetched(thread: Thread) -> None:
    """Of the blobs that hold them it is asked whether they are there, by the index alone."""
    shared = read_before(thread)
    row = expected_row(thread, "2", there(thread, "2"))
    played = play(reading(shared), ("aggregate checkpoints", [row]))
    assert values(played.result) == {"chat": [*LONG, "x" * 5_000], "note": "second"}
    assert played.result.pending_writes == [("task", "a", 1)]
    (op,) = played.ops
    assert isinstance(op, Aggregate)
    lookup = op.pipeline[-2]["$lookup"]
    match, project = lookup["pipeline"]
    assert lookup["from"] is Name.BLOBS
    assert match["$match"]["thread_id"] == "t"
    assert match["$match"]["checkpoint_ns"] == "n"
    assert sorted(match["$match"]["key"]["$in"]) == sorted(b["key"] for b in there(thread, "2"))
    assert project == {"$project": {"_id": 0, "key": 1}}


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_value_in_memory_does_not_hide_a_hole(thread: Thread, gone: int) -> None:
    """Where one of its blobs is gone, a value counts as gone, though its bytes are at hand."""
    shared = read_before(thread)
    keys = there(thread, "2")
    row = expected_row(thread, "2", [key for n, key in enumerate(keys) if n != gone])
    lost = keys[gone]["key"]
    checkpoint = thread.checkpoints["2"]
    finds: list[Row] = [
        ("find blobs", [blob for blob in thread.heads("2") if blob["key"] != lost]),
    ]
    if gone:
        finds.append(("find blobs", [b for b in thread.chains("2") if b["key"] != lost]))
    played = attempt(
        reading(shared),
        ("aggregate checkpoints", [row]),
        *finds,
        ("find checkpoints", [checkpoint]),
        ("find checkpoints", list(thread.checkpoints.values())),
    )
    assert isinstance(played.error, IncompleteCheckpoint)


def test_a_later_checkpoint_takes_from_memory_what_it_shares(thread: Thread) -> None:
    """Somebody else added a few bytes: they come with the checkpoint, and the rest is at hand."""
    shared = read_before(thread)
    thread.put("3", {"chat": [*LONG, "x" * 5_000, "more"], "note": "third"}, "2")
    row = expected_row(thread, "3", there(thread, "2"))
    played = play(reading(shared), ("aggregate checkpoints", [row]))
    assert values(played.result)["chat"] == [*LONG, "x" * 5_000, "more"]
    again = play(reading(shared), ("aggregate checkpoints", [thread.row("3")]))
    assert stages(again).count("$lookup") == 3


def test_many_blobs_are_fetched(thread: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command does not grow with the number of blobs for ever."""
    monkeypatch.setattr(read, "MANY_KEYS", len(there(thread, "2")) - 1)
    shared = read_before(thread)
    played = play(reading(shared), ("aggregate checkpoints", [thread.row("2")]))
    assert stages(played).count("$lookup") == 3


def test_large_values_come_by_finds(thread: Thread) -> None:
    """A checkpoint that says that it is large has no blobs in its row."""
    row = thread.row("2", heads=[], segments=[], bytes=MAX_AGGREGATE + 1)
    played = play(
        reading(),
        ("aggregate checkpoints", [row]),
        ("find blobs", thread.heads("2")),
        ("find blobs", thread.chains("2")),
        ("compute", RUN),
    )
    assert values(played.result)["chat"] == [*LONG, "x" * 5_000]


def test_much_is_loaded_off_the_event_loop() -> None:
    """Joining and loading many bytes is an operation of its own."""
    large = Thread()
    large.put("1", {"file": b"x" * OFF_LOOP})
    played = play(reading(), ("aggregate checkpoints", [large.row("1")]), ("compute", RUN))
    assert values(played.result) == {"file": b"x" * OFF_LOOP}


def test_many_writes_come_by_a_find() -> None:
    """A row holds so many writes at most; where it has that many, all are read."""
    busy = Thread()
    busy.put("1", {"note": "n"})
    for number in range(MANY_WRITES + 1):
        busy.write("1", [("a", number)], f"task {number:03}")
    row = busy.row("1")
    row["writes"] = row["writes"][:MANY_WRITES]
    played = play(reading(), ("aggregate checkpoints", [row]), ("find writes", busy.writes))
    assert [write[2] for write in played.result.pending_writes] == list(range(MANY_WRITES + 1))


def test_large_writes_come_by_a_find() -> None:
    """A write in parts has only its part 0 in the row."""
    busy = Thread()
    busy.put("1", {"note": "n"})
    busy.write("1", [("a", "x" * 100_000), ("b", 1)])
    played = play(
        reading(), ("aggregate checkpoints", [busy.row("1")]), ("find writes", busy.writes)
    )
    assert [write[2] for write in played.result.pending_writes] == ["x" * 100_000, 1]


# --- checkpoints from before version 4


@pytest.fixture
def early() -> Thread:
    """A thread of an early version, whose first checkpoint left sends."""
    made = Thread()
    made.put("1", {"note": "first"}, v=3)
    made.put("2", {"note": "second"}, "1", v=3)
    made.write("1", [(codec.TASKS, "send"), ("other", 1)])
    made.write("2", [("own", 2)])
    return made


def test_sends_come_in_the_same_round_trip(early: Thread) -> None:
    """An early checkpoint's row has its parent's writes too; only its own are its own."""
    played = play(reading(), ("aggregate checkpoints", [early.row("2")]))
    assert values(played.result) == {"note": "second", codec.TASKS: ["send"]}
    assert played.result.pending_writes == [("task", "own", 2)]


def test_sends_come_by_a_find_where_they_were_not_expected(early: Thread) -> None:
    """A saver that looked up a small thread's own writes only, reads the parent's as well."""
    _, shared = inline_thread()
    played = play(
        reading(shared),
        ("aggregate checkpoints", [early.row("2", lookups=False)]),
        ("find writes", early.writes),
    )
    assert values(played.result)[codec.TASKS] == ["send"]
    assert played.result.pending_writes == [("task", "own", 2)]
    (_, op) = played.ops
    assert isinstance(op, Find)
    assert op.filter["checkpoint_id"] == {"$in": ["2", "1"]}


def test_an_early_checkpoint_without_a_parent_has_no_sends(early: Thread) -> None:
    """Nobody's writes are asked for."""
    _, shared = inline_thread()
    row = early.row("1", lookups=False)
    played = play(reading(shared), ("aggregate checkpoints", [row]))
    assert values(played.result) == {"note": "first"}


# --- finds


def test_the_same_comes_by_finds(thread: Thread, early: Thread) -> None:
    """A saver whose server refuses the aggregate reads the same by finds."""
    played = play(
        reading(by_finds()),
        ("find checkpoints", [thread.checkpoints["2"]]),
        ("find blobs", thread.heads("2")),
        ("find blobs", thread.chains("2")),
        ("find writes", thread.writes),
    )
    (whole,) = (play(reading(), ("aggregate checkpoints", [thread.row("2")])).result,)
    assert played.result == whole
    assert all(op.filter["thread_id"] == "t" for op in played.ops)  # type: ignore[union-attr]
    played = play(
        reading(by_finds()),
        ("find checkpoints", [early.checkpoints["2"]]),
        ("find writes", early.writes),
    )
    assert values(played.result)[codec.TASKS] == ["send"]


@pytest.mark.parametrize("code", sorted(read.REFUSALS))
def test_a_server_that_does_not_know_a_stage_is_read_by_finds(thread: Thread, code: int) -> None:
    """The refusal is understood, and the next read does not ask again."""
    shared = Shared()
    finds: list[Row] = [
        ("find checkpoints", [thread.checkpoints["2"]]),
        ("find blobs", thread.heads("2")),
        ("find blobs", thread.chains("2")),
        ("find writes", []),
    ]
    play(reading(shared), ("aggregate checkpoints", refusal(code)), *finds)
    assert shared.read_by_finds
    play(reading(shared), *finds)


@pytest.mark.parametrize("code", [4568, 10334])
def test_a_row_that_is_too_large_is_read_by_finds_this_once(thread: Thread, code: int) -> None:
    """The server can do it, only not for this checkpoint."""
    shared = Shared()
    play(
        reading(shared),
        ("aggregate checkpoints", refusal(code)),
        ("find checkpoints", [thread.checkpoints["2"]]),
        ("find blobs", thread.heads("2")),
        ("find blobs", thread.chains("2")),
        ("find writes", []),
    )
    assert not shared.read_by_finds


@pytest.mark.parametrize("code", [13, 50, 8000, 11600])
def test_other_refusals_pass_through(code: int) -> None:
    """A missing privilege or a timeout is no reason to try it in another way."""
    shared = Shared()
    error = refusal(code)
    assert attempt(reading(shared), ("aggregate checkpoints", error)).error is error
    assert not shared.read_by_finds


def test_reads_can_break_off_anywhere(thread: Thread) -> None:
    """A lost connection passes through at each operation of each way, and a closed plan ends."""
    finds: list[Row] = [
        ("find checkpoints", [thread.checkpoints["2"]]),
        ("find blobs", thread.heads("2")),
        ("find blobs", thread.chains("2")),
        ("find writes", []),
    ]
    broken_off(reading, [("aggregate checkpoints", refusal(40324)), *finds])
    broken_off(lambda: reading(by_finds()), finds)


def test_a_large_read_can_break_off_anywhere(thread: Thread) -> None:
    """The same where a row leaves out what is large."""
    thread.write("1", [("a", "x" * 100_000)])
    row = thread.row("2", heads=[], segments=[], bytes=MAX_AGGREGATE + 1)
    row["writes"] = [{**write, "checkpoint_id": "2"} for write in thread.writes]
    rows: list[Row] = [
        ("aggregate checkpoints", [row]),
        ("find blobs", thread.heads("2")),
        ("find blobs", thread.chains("2")),
        ("find writes", row["writes"]),
        ("compute", RUN),
    ]

    broken_off(reading, rows)


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"format": 2}, FormatTooNew), ({"format": None}, ForeignDocument)],
)
def test_documents_of_others_are_refused(
    thread: Thread, changes: dict[str, Any], error: type[Exception]
) -> None:
    """Neither a row nor a found document is guessed at."""
    row = thread.row("2", **changes)
    assert isinstance(attempt(reading(), ("aggregate checkpoints", [row])).error, error)
    found = {**thread.checkpoints["2"], **changes}
    assert isinstance(attempt(reading(by_finds()), ("find checkpoints", [found])).error, error)
    query = read.query(LATEST, None, None, None)
    played = attempt(read.page(context(), query), ("find checkpoints", [found]))
    assert isinstance(played.error, error)


def test_a_config_is_checked_before_the_plan_begins() -> None:
    """What names no thread is the caller's error, at once."""
    with pytest.raises(IdentifierTypeError):
        reading(at=config({"$ne": 1}))
    with pytest.raises(IdentifierValueError):
        reading(at={"configurable": {}})


# --- holes


def look(document: dict[str, Any], **changes: Any) -> Row:
    """Returns the row of the second look at a checkpoint with a hole."""
    fields = {"blobs": document["blobs"], "created_at": document["created_at"], **changes}
    return ("find checkpoints", [fields])


def lineage(*pairs: tuple[str, str | None]) -> Row:
    """Returns the row of the look at all checkpoints' parents."""
    return (
        "find checkpoints",
        [{"checkpoint_id": own, "parent_checkpoint_id": parent} for own, parent in pairs],
    )


def holed(thread: Thread, checkpoint_id: str = "2") -> Row:
    """Returns the row of a read whose blobs are gone."""
    return ("aggregate checkpoints", [thread.row(checkpoint_id, heads=[], segments=[])])


def test_a_checkpoint_that_is_deleted_meanwhile_is_read_once_more(thread: Thread) -> None:
    """A hole in what is gone by now is none: what is there then counts."""
    played = play(reading(), holed(thread), ("find checkpoints", []), ("aggregate checkpoints", []))
    assert played.result is None


@pytest.mark.parametrize("changed", [{"blobs": []}, {"created_at": None}])
def test_a_checkpoint_that_is_put_again_meanwhile_is_read_once_more(
    thread: Thread, changed: dict[str, Any]
) -> None:
    """A hole in what was replaced is none."""
    played = play(
        reading(),
        holed(thread),
        look(thread.checkpoints["2"], **changed),
        ("aggregate checkpoints", [thread.row("2")]),
    )
    assert values(played.result)["note"] == "second"


@pytest.mark.parametrize("missing", ["heads", "segments"])
def test_what_something_else_removed_is_an_error(thread: Thread, missing: str) -> None:
    """Nothing explains the hole: the error names where it is."""
    played = attempt(
        reading(),
        ("aggregate checkpoints", [thread.row("2", **{missing: []})]),
        look(thread.checkpoints["2"]),
        lineage(("2", "1"), ("1", None)),
    )
    error = played.error
    assert isinstance(error, IncompleteCheckpoint)
    place = (error.thread_id, error.checkpoint_ns, error.checkpoint_id, error.channel)
    assert place == ("t", "n", "2", "chat")
    (head,) = thread.heads("2")
    assert error.key in (head["key"].hex(), *(key.hex() for key in head["chain"]))


def test_parents_in_a_circle_end_the_look(thread: Thread) -> None:
    """Whatever the stored parents are, looking at them ends."""
    played = attempt(
        reading(),
        holed(thread),
        look(thread.checkpoints["2"]),
        lineage(("2", "1"), ("1", "0"), ("0", "2")),
    )
    assert isinstance(played.error, IncompleteCheckpoint)


@pytest.mark.parametrize(
    "ancestors", [[("2", "1")], [("2", "1"), ("1", "0")]], ids=["parent", "grandparent"]
)
def test_a_checkpoint_of_a_deleted_thread_is_skipped(
    thread: Thread, ancestors: list[tuple[str, str | None]], caplog: pytest.LogCaptureFixture
) -> None:
    """Where an ancestor is gone the thread was deleted under a running graph: it is no state."""
    rows: list[Row] = [holed(thread), look(thread.checkpoints["2"]), lineage(*ancestors)]
    with caplog.at_level(logging.WARNING):
        played = play(reading(), *rows, ("aggregate checkpoints", [thread.row("1")]))
    assert values(played.result)["note"] == "first"
    assert played.ops[-1].pipeline[0]["$match"]["checkpoint_id"] == {"$lt": "2"}  # type: ignore[union-attr]
    assert "'2' of thread 't' is skipped" in caplog.text
    # Asked for by its id, it is not there.
    assert play(reading(at=config("t", "n", "2")), *rows).result is None


def test_a_hole_can_break_off_anywhere(thread: Thread) -> None:
    """A failure while a hole is looked into passes through."""
    rows: list[Row] = [look(thread.checkpoints["2"]), lineage(("2", "1"))]
    for at, (expected, _) in enumerate(rows):
        error = refusal(8000)
        played = attempt(reading(), holed(thread), *rows[:at], (expected, error))
        assert played.error is error


# --- lists


def listing(
    config: Any = LATEST,
    filter: Any = None,
    before: Any = None,
    limit: int | None = None,
) -> read.Query:
    """Returns a query."""
    return read.query(config, filter, before, limit)


def page(query: read.Query, *rows: Row) -> tuple[list[CheckpointTuple], read.Query | None, Played]:
    """Returns the rows of a page, the query for the next one, and what was asked for."""
    played = play(read.page(context(), query), *rows)
    found, following = played.result
    return found, following, played


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit": -1}, ValueError),
        ({"limit": 1.0}, TypeError),
        ({"limit": True}, TypeError),
        ({"filter": [("a", 1)]}, TypeError),
        ({"config": config({"$ne": 1})}, TypeError),
        ({"config": {"configurable": {"checkpoint_ns": ""}}}, ValueError),
        ({"config": config("t", None, {"$gt": ""})}, TypeError),
        ({"before": before({"$gt": ""})}, TypeError),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_query_is_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    """Wrong arguments are the caller's errors, before anything is sent."""
    with pytest.raises(error):
        listing(**arguments)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"config": None}, {}),
        ({"config": {}}, {}),
        ({"config": {"configurable": {"thread_id": 5}}}, {"thread_id": "5"}),
        ({}, {"thread_id": "t", "checkpoint_ns": "n"}),
        (
            {"config": config("t", "", "2")},
            {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "2"},
        ),
    ],
)
def test_a_query_is_conditions(arguments: dict[str, Any], where: dict[str, Any]) -> None:
    """A config narrows by what it names, and by nothing else."""
    found = listing(**arguments).where
    named = {"thread_id", "checkpoint_ns", "checkpoint_id"}
    assert {key: value for key, value in found.items() if key in named} == where


def test_before_and_filters_are_further_conditions() -> None:
    """They stand beside the config's own id; an empty `before` is none."""
    query = listing(config("t", "n", "2"), {"a": 1, "b.c": 2}, before("3"))
    assert {"checkpoint_id": {"$lt": "3"}} in query.where["$and"]
    assert query.filter == {"a": 1, "b.c": 2}
    assert len(query.where["$and"]) == 2
    for nothing in (None, {}, {"configurable": {}}):
        assert "$and" not in listing(before=nothing).where


def test_no_rows_are_no_more_commands() -> None:
    """A limit of 0 sends nothing; an empty page is followed by none."""
    assert play(read.page(context(), listing(limit=0))).result == ([], None)
    rows, following, _ = page(listing(), ("find checkpoints", []))
    assert (rows, following) == ([], None)


def test_a_page_takes_four_finds(thread: Thread) -> None:
    """Checkpoints, writes, heads, chains: each blob once, however many checkpoints name it."""
    rows, following, played = page(
        listing(),
        ("find checkpoints", [thread.checkpoints["2"], thread.checkpoints["1"]]),
        ("find writes", thread.writes),
        ("find blobs", thread.heads("2", "1")),
        ("find blobs", [b for b in thread.chains("2", "1") if b not in thread.heads("2", "1")]),
    )
    assert ids(rows) == ["2", "1"]
    assert [values(row)["note"] for row in rows] == ["second", "first"]
    assert [row.pending_writes for row in rows] == [[("task", "a", 1)], []]
    assert following is None
    asked = [key for op in played.ops[2:] for key in op.filter["key"]["$in"]]  # type: ignore[union-attr]
    assert len(asked) == len(set(asked))


def test_a_page_without_blobs_takes_two() -> None:
    """Nothing is looked for that no checkpoint names."""
    small, _ = inline_thread()
    rows, _, _ = page(
        listing(), ("find checkpoints", [small.checkpoints["1"]]), ("find writes", [])
    )
    assert [values(row) for row in rows] == [{"note": "first"}]


def many(count: int, **keys: Any) -> Thread:
    """Returns a thread of so many small checkpoints."""
    made = Thread()
    for number in range(count):
        made.put(f"{number:03}", {"n": number}, number=number, **keys)
    return made


def newest(thread: Thread) -> list[dict[str, Any]]:
    """Returns a thread's checkpoints, newest first."""
    return list(thread.checkpoints.values())[::-1]


def test_pages_go_on_after_the_last_key() -> None:
    """A full page is followed by another; in all namespaces also by what comes after its own."""
    thread = many(PAGE)
    for at, follows in ((LATEST, 1), ({"configurable": {"thread_id": "t"}}, 2)):
        rows, following, _ = page(
            listing(at), ("find checkpoints", newest(thread)), ("find writes", [])
        )
        assert len(rows) == PAGE
        assert following is not None
        assert following.after == ("t", "n", "000")
        finds: list[Row] = [("find checkpoints", [])] * follows
        rows, following, played = page(following, *finds)
        assert (rows, following) == ([], None)
        bounds = [op.filter["$and"] for op in played.ops]  # type: ignore[union-attr]
        assert bounds[0] == [{"checkpoint_ns": "n"}, {"checkpoint_id": {"$lt": "000"}}]
        assert bounds[1:] == [[{"checkpoint_ns": {"$gt": "n"}}]] * (follows - 1)


def test_the_next_namespace_fills_a_page(thread: Thread) -> None:
    """Rows of the next namespace follow those of the former on one page."""
    other = Thread()
    other.put("9", {"n": 9}, ns="o")
    query = replace(
        listing({"configurable": {"thread_id": "t"}}), after=("t", "n", "2"), limit=None
    )
    rows, following, played = page(
        query,
        ("find checkpoints", [thread.checkpoints["1"]]),
        ("find checkpoints", [other.checkpoints["9"]]),
        ("find writes", []),
        ("find blobs", thread.heads("1")),
        ("find blobs", thread.chains("1")),
    )
    assert ids(rows) == ["1", "9"]
    assert following is None
    assert played.ops[1].limit == PAGE - 1  # type: ignore[union-attr]
    assert {"$or"} == played.ops[2].filter.keys()  # type: ignore[union-attr]


def test_all_threads_go_on_after_the_whole_key() -> None:
    """Copies repeat ids: thread and namespace decide which of them come after."""
    thread = many(PAGE)
    _, following, _ = page(listing(None), ("find checkpoints", newest(thread)), ("find writes", []))
    assert following is not None
    _, _, played = page(following, ("find checkpoints", []))
    (op,) = played.ops
    assert isinstance(op, Find)
    at_most, rest = op.filter["$and"]
    assert at_most == {"checkpoint_id": {"$lte": "000"}}
    assert {"checkpoint_id": {"$lt": "000"}} in rest["$or"]
    assert {"thread_id": {"$gt": "t"}} in rest["$or"]
    assert [field for field, _ in op.sort] == ["checkpoint_id", "thread_id", "checkpoint_ns"]


@pytest.mark.parametrize("limit", [1, 2, PAGE + 1])
def test_a_limit_is_asked_for_and_kept(limit: int) -> None:
    """A page asks for no more rows than are wanted, and the rest of the limit goes on."""
    thread = many(min(limit, PAGE))
    rows, following, played = page(
        listing(limit=limit), ("find checkpoints", newest(thread)), ("find writes", [])
    )
    assert played.ops[0].limit == min(limit, PAGE)  # type: ignore[union-attr]
    assert len(rows) == min(limit, PAGE)
    assert (following and following.limit) == (1 if limit > PAGE else None)


def test_the_limit_counts_what_the_filter_left() -> None:
    """Narrowed rows are compared exactly, then counted; a page of none goes on."""
    thread = many(PAGE)
    query = listing(filter={"number": 50}, limit=1)
    rows, following, played = page(query, ("find checkpoints", newest(thread)), ("find writes", []))
    assert played.ops[0].limit == PAGE  # type: ignore[union-attr]
    assert ids(rows) == ["050"]
    assert following is None
    rows, following, _ = page(
        listing(filter={"number": -1}, limit=1), ("find checkpoints", newest(thread))
    )
    assert rows == []
    assert following is not None
    assert following.limit == 1
    rows, following, _ = page(
        listing(filter={"source": "loop"}, limit=2),
        ("find checkpoints", newest(thread)),
        ("find writes", []),
    )
    assert ids(rows) == ["099", "098"]
    assert following is None


def test_large_checkpoints_are_read_in_groups() -> None:
    """Large checkpoints come a few at a time, each found once, and shared blobs only once."""
    large = Thread()
    large.put("1", {"chat": LONG})
    large.put("2", {"chat": items(310)}, "1")
    for document in large.checkpoints.values():
        document["bytes"] = 3 * MAX_AGGREGATE
    rows, following, _ = page(
        listing(),
        ("find checkpoints", newest(large)),
        ("find writes", []),
        ("find blobs", large.heads("2")),
        ("find blobs", large.chains("2")),
        ("compute", RUN),
    )
    assert [len(values(row)["chat"]) for row in rows] == [310]
    assert following is not None
    rows, following, _ = page(following, ("find writes", []), ("compute", RUN))
    assert [len(values(row)["chat"]) for row in rows] == [300]
    assert following is None


def test_the_next_page_knows_the_blobs_of_the_last_one() -> None:
    """Neighbours share most of their blobs: those are not read again."""
    thread = Thread()
    for number in range(PAGE + 1):
        thread.put(
            f"{number:03}",
            {"chat": items(300 + number // 40)},
            f"{number - 1:03}" if number else None,
        )
    first, last = newest(thread)[:PAGE], newest(thread)[PAGE:]
    shown = [d["checkpoint_id"] for d in first]
    heads = thread.heads(*shown)
    chains = [blob for blob in thread.chains(*shown) if blob not in heads]
    table: list[Row] = [("find checkpoints", first), ("find writes", []), ("find blobs", heads)]
    _, following, _ = page(listing(), *table, *([("find blobs", chains)] if chains else []))
    assert following is not None
    rows, _, played = page(following, ("find checkpoints", last), ("find writes", []))
    assert values(rows[0])["chat"] == items(300)
    assert "find blobs" not in played.words


def test_early_checkpoints_of_a_page_find_their_sends(early: Thread) -> None:
    """Parents' writes are read with the page, whether the parent is on it or not."""
    rows, _, played = page(
        listing(), ("find checkpoints", newest(early)), ("find writes", early.writes)
    )
    assert values(rows[0])[codec.TASKS] == ["send"]
    assert [write[1] for write in rows[0].pending_writes or ()] == ["own"]
    assert [write[1] for write in rows[1].pending_writes or ()] == [codec.TASKS, "other"]
    query = listing(config("t", "n", "2"))
    _, _, played = page(
        query, ("find checkpoints", newest(early)[:1]), ("find writes", early.writes)
    )
    assert played.ops[1].filter["checkpoint_id"]["$in"] == ["2", "1"]  # type: ignore[union-attr]


def holed_page(thread: Thread, *more: Row) -> tuple[list[CheckpointTuple], Any, Played]:
    """Returns a page on which the second checkpoint's blobs are gone."""
    (head,) = thread.heads("2")
    return page(
        listing(),
        ("find checkpoints", newest(thread)),
        ("find writes", []),
        ("find blobs", thread.heads("1")),
        ("find blobs", [blob for blob in thread.chains("1") if blob["key"] != head["key"]]),
        *more,
    )


def test_a_row_with_a_hole_is_read_again_or_left_out(
    thread: Thread, caplog: pytest.LogCaptureFixture
) -> None:
    """Changed meanwhile: as it is now. Gone: left out. Without its ancestor: no state."""
    document = thread.checkpoints["2"]
    gone: Row = ("find checkpoints", [])
    rows, _, _ = holed_page(thread, gone, ("aggregate checkpoints", [thread.row("2")]))
    assert ids(rows) == ["2", "1"]
    rows, _, _ = holed_page(thread, gone, ("aggregate checkpoints", []))
    assert ids(rows) == ["1"]
    with caplog.at_level(logging.WARNING):
        rows, _, _ = holed_page(thread, look(document), lineage(("2", "1"), ("1", "0")))
    assert ids(rows) == ["1"]
    with pytest.raises(IncompleteCheckpoint):
        holed_page(thread, look(document), lineage(("2", "1"), ("1", None)))


def test_lists_can_break_off_anywhere(thread: Thread) -> None:
    """A lost connection passes through at each operation, and a closed plan ends."""
    query = listing()
    rows: list[Row] = [
        ("find checkpoints", newest(thread)),
        ("find writes", thread.writes),
        ("find blobs", thread.heads("2", "1")),
        ("find blobs", thread.chains("2", "1")),
    ]
    make: Callable[[], Plan[Any]] = lambda: read.page(context(), query)  # noqa: E731 - a thunk
    broken_off(make, rows)
    following = replace(listing({"configurable": {"thread_id": "t"}}), after=("t", "n", "2"))
    pages: Sequence[Row] = [("find checkpoints", []), ("find checkpoints", [])]
    broken_off(lambda: read.page(context(), following), pages)
