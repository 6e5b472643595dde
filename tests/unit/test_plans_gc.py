"""Tidying up as tables: what is asked before something is removed, and by which condition."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from mongosaver import ConfigurationError
from mongosaver.cache import Shared
from mongosaver.identifiers import Address
from mongosaver.ops import Delete, Find, Op
from mongosaver.plans import gc
from mongosaver.schema import Name
from tests.unit.stored import LONG, Thread, items
from tests.unit.tables import NOW, Row, broken_off, context, play

HOUR = timedelta(hours=1)
OLD = NOW - 2 * HOUR
RULE = gc.rule(HOUR)


def old_thread(*, copied_from: str | None = None) -> Thread:
    """A thread of two checkpoints, two hours old."""
    thread = Thread()
    thread.put("1", {"list": LONG, "n": 1})
    thread.put("2", {"list": [*LONG, *items(60)], "n": 2}, "1")
    for row in (*thread.checkpoints.values(), *thread.blobs.values()):
        row["_id"] = ObjectId.from_datetime(OLD)
        row["created_at"] = OLD
        if copied_from is not None:
            row["copied_from"] = copied_from
    return thread


def newest_first(thread: Thread) -> list[dict[str, Any]]:
    """The checkpoints as they are read."""
    return [thread.checkpoints[key] for key in sorted(thread.checkpoints, reverse=True)]


def tidy(collected: gc.Collected, rule: gc.Rule = RULE, **options: Any) -> Any:
    """Returns the plan."""
    return gc.thread(context(**options), "t", collected, rule)


def whole(thread: Thread, *orphans: bytes, writes: Any = ()) -> list[Row]:
    """The table for a thread that is whole, with blobs that nobody names besides."""
    stored = [{"checkpoint_ns": "n", "key": key} for key in (*thread.blobs, *orphans)]
    return [
        ("find checkpoints", []),
        ("find blobs", stored),
        ("find checkpoints", newest_first(thread)),
        ("find blobs", thread.heads("2", "1")),
        *([("delete blobs", len(orphans))] if orphans else []),
        ("find writes", list(writes)),
    ]


def test_whole_thread_is_looked_at_and_left() -> None:
    """Four finds, and nothing is removed."""
    collected = gc.Collected()
    play(tidy(collected), *whole(old_thread()))
    assert collected == gc.Collected(threads=1, last_thread_id="t")


def test_blobs_are_listed_before_checkpoints_are_read() -> None:
    """What is saved in between is named by a checkpoint that is read after it."""
    played = play(tidy(gc.Collected()), *whole(old_thread()))
    names = [op.collection for op in played.ops if isinstance(op, Find)]
    assert names[1:3] == [Name.BLOBS, Name.CHECKPOINTS]


def assert_is_careful(op: Op) -> None:
    """Asserts that a deletion's own condition spares what is young, or of another format."""
    assert isinstance(op, Delete)
    assert op.filter["thread_id"] == "t"
    assert op.filter["format"] == 1
    assert op.filter["created_at"] == {"$lte": NOW - HOUR}
    assert op.filter["touched_at"] == {"$not": {"$gt": NOW - HOUR}}


def test_orphans_are_removed_by_a_condition_on_their_age() -> None:
    """The deletion itself asks for both dates."""
    collected, shared = gc.Collected(), Shared()
    shared.cache.put(Address("t", "n", "2"), {})
    played = play(tidy(collected, shared=shared), *whole(old_thread(), b"orphan"))
    assert_is_careful(played.ops[4])
    assert isinstance(played.ops[4], Delete)
    assert played.ops[4].filter["key"] == {"$in": [b"orphan"]}
    assert (collected.blobs, collected.changed) == (1, 1)
    assert shared.cache.get(Address("t", "n", "2")) is None


def test_writes_without_a_checkpoint_are_looked_up_again() -> None:
    """Their checkpoint may have come meanwhile."""
    key = {"checkpoint_ns": "n", "task_id": "a", "idx": 0, "part": 0}
    writes = [{**key, "checkpoint_id": i, "_id": ObjectId.from_datetime(OLD)} for i in "1378"]
    collected = gc.Collected()
    played = play(
        tidy(collected),
        *whole(old_thread(), writes=writes),
        ("find checkpoints", [{"checkpoint_ns": "n", "checkpoint_id": "7"}]),
        ("delete writes", 2),
    )
    assert_is_careful(played.ops[-1])
    assert isinstance(played.ops[-1], Delete)
    assert played.ops[-1].filter["checkpoint_id"] == {"$in": ["3", "8"]}
    assert collected.writes == 2


def test_what_may_be_a_copy_on_its_way_is_left_alone() -> None:
    """A thread without checkpoints keeps everything while one document has just come."""
    blobs = [{"checkpoint_ns": "n", "key": bytes([n])} for n in range(3)]
    recent = ObjectId.from_datetime(NOW - timedelta(minutes=5))
    key = {"checkpoint_ns": "n", "checkpoint_id": "1", "task_id": "a", "idx": 0, "part": 0}
    collected = gc.Collected()
    play(
        tidy(collected),
        ("find checkpoints", []),
        ("find blobs", blobs),
        ("find checkpoints", []),
        ("find blobs", [{"_id": recent, "created_at": OLD}]),
        ("find writes", [{**key, "_id": ObjectId.from_datetime(OLD)}]),
    )
    assert collected.changed == 0


def test_copy_whose_checkpoints_arrive_is_left_alone() -> None:
    """As long as a checkpoint of it is young, those that name the rest may follow."""
    thread = old_thread(copied_from="s")
    thread.checkpoints["1"]["_id"] = ObjectId.from_datetime(NOW)
    rows = whole(thread)
    rows[1][1].append({"checkpoint_ns": "n", "key": b"of one that follows"})
    collected = gc.Collected()
    play(tidy(collected), *rows)
    assert collected.changed == 0


@pytest.mark.parametrize("there", [True, False])
def test_checkpoint_that_is_no_state_is_looked_at_again(there: bool) -> None:
    """What lacked a value and has lost its parent goes, unless the value has come back."""
    thread = old_thread()
    lone = thread.checkpoints["2"]
    head = thread.heads("2")[0]
    missing = {"checkpoint_ns": "n", "key": head["chain"][0]}
    stored = [{"checkpoint_ns": "n", "key": k} for k in thread.blobs if k != missing["key"]]
    collected = gc.Collected()
    rows: list[Row] = [
        ("find checkpoints", []),
        ("find blobs", stored),
        ("find checkpoints", [lone]),
        ("find blobs", [head]),
        ("find blobs", []),
        ("find blobs", [missing] if there else []),
    ]
    rest = len({row["key"] for row in stored} - {head["key"], *head["chain"]})
    if there:
        rows += [("delete blobs", rest)] if rest else []
    else:
        rows += [("delete checkpoints", 1), ("delete blobs", len(stored))]
    played = play(tidy(collected), *rows, ("find writes", []))
    for op in played.ops:
        if isinstance(op, Delete):
            assert_is_careful(op)
    assert collected.checkpoints == (not there)


def test_later_format_is_not_guessed_at() -> None:
    """A blob that a newer version wrote may name what this one does not know."""
    thread, collected = old_thread(), gc.Collected()
    heads = [{**head, "format": 2} for head in thread.heads("2", "1")]
    rows = whole(thread, b"orphan")[:3]
    play(tidy(collected), *rows, ("find blobs", heads))
    assert "format 2" in collected.left["t"]


def test_broken_off() -> None:
    """What the plan cannot understand passes through it, at each operation."""
    broken_off(lambda: tidy(gc.Collected()), whole(old_thread(), b"orphan"))


@pytest.mark.parametrize("age", [timedelta(0), timedelta(minutes=10) - timedelta(microseconds=1)])
def test_age_that_is_too_young_is_refused(age: timedelta) -> None:
    """Ten minutes are the least."""
    with pytest.raises(ConfigurationError, match="at least 10 minutes"):
        gc.rule(age)
    assert gc.rule(gc.LEAST).older_than == gc.LEAST
    assert gc.rule().older_than == timedelta(days=1)


def test_document_came_when_its_id_was_made_unless_it_was_needed_later() -> None:
    """An `_id` of another kind tells nothing."""
    made = ObjectId.from_datetime(NOW.replace(microsecond=0))
    assert gc._came({"_id": made, "created_at": OLD}, OLD - HOUR) == made.generation_time
    assert gc._came({"_id": made, "touched_at": NOW + HOUR}, OLD) == NOW + HOUR
    assert gc._came({"_id": "text", "created_at": OLD}, OLD - HOUR) == OLD
