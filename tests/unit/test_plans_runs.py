"""Deleting runs as tables, and the sweep that does it: in which order, and what it leaves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from mongosaver.cache import Shared
from mongosaver.codec import dump
from mongosaver.errors import FormatTooNew, IdentifierTypeError, IdentifierValueError
from mongosaver.identifiers import Address
from mongosaver.ops import Delete, Find, UpdateMany
from mongosaver.plans.runs import delete_for_runs
from mongosaver.plans.sweep import MARGIN, Removed
from mongosaver.schema import Name
from tests.unit.tables import NOW, Row, attempt, broken_off, context, play

SERDE = JsonPlusSerializer()


def checkpoint(n: int, *, parent: int | None = None, **fields: Any) -> dict[str, Any]:
    """Returns what a scan has of a checkpoint."""
    return {
        "_id": n,
        "format": 1,
        "thread_id": "t",
        "checkpoint_ns": "",
        "checkpoint_id": str(n),
        "parent_checkpoint_id": None if parent is None else str(parent),
        "created_at": NOW,
        "inline": [],
        "blobs": [],
        **fields,
    }


def payload(n: int, **versions: str) -> dict[str, Any]:
    """Returns what is loaded of a checkpoint."""
    dumped = dump(SERDE, {"channel_versions": versions})
    return {
        "checkpoint_ns": "",
        "checkpoint_id": str(n),
        "type": dumped.type,
        "checkpoint": dumped.data,
    }


def head(key: bytes, *chain: bytes) -> dict[str, Any]:
    """Returns a head blob's facts."""
    return {"checkpoint_ns": "", "key": key, "chain": list(chain)}


def named(*keys: bytes) -> list[dict[str, Any]]:
    """Returns the values of a checkpoint that are blobs, of one channel."""
    return [{"c": "chat", "k": key} for key in keys]


GONE = {"deleted_at": NOW}
FOUND: list[Row] = [
    ("updatemany checkpoints", 1),
    ("find checkpoints", [{"thread_id": "t"}]),
    ("find writes", []),
]
LINE = [
    checkpoint(3, parent=2, blobs=named(b"c")),
    checkpoint(2, parent=1, blobs=named(b"b"), **GONE),
    checkpoint(1, blobs=named(b"a")),
]
SWEPT: list[Row] = [
    ("find checkpoints", LINE),
    ("find checkpoints", [payload(3)]),
    ("updatemany checkpoints", 1),
    ("delete writes", 2),
    ("delete writes", 0),
    ("find blobs", [head(b"b", b"1", b"2", b"a")]),
    ("find blobs", [head(b"a", b"1"), head(b"c", b"1")]),
    ("delete blobs", 1),
    ("delete blobs", 1),
    ("delete checkpoints", 1),
]


def test_marks_first_and_marked_ones_last() -> None:
    """In between: children unlinked, then writes, then what only chains name, then heads."""
    shared = Shared()
    shared.cache.put(Address("t", "", "2"), {})
    played = play(delete_for_runs(context(shared=shared), ["r", "r"]), *FOUND, *SWEPT)
    assert played.result == Removed(1, 2, 2)
    assert shared.cache.get(Address("t", "", "2")) is None
    mark, unlink = (op for op in played.ops if isinstance(op, UpdateMany))
    assert mark.filter == {"run_id": {"$in": ["r"]}, "deleted_at": None}
    assert mark.update == {"$set": {"deleted_at": NOW}}
    assert unlink.filter == {"thread_id": "t", "_id": {"$in": [3]}}
    assert unlink.update == {"$set": {"parent_checkpoint_id": None}}
    deletes = [op for op in played.ops if isinstance(op, Delete)]
    blobs = [op.filter for op in deletes if op.collection is Name.BLOBS]
    assert [each["key"] for each in blobs] == [{"$in": [b"2"]}, {"$in": [b"b"]}]
    assert blobs[0]["created_at"] == {"$lte": NOW}
    assert blobs[0]["touched_at"] == {"$not": {"$gte": NOW - MARGIN}}
    assert deletes[-1].filter == {
        "thread_id": "t",
        "_id": {"$in": [2]},
        "deleted_at": {"$ne": None},
    }


def test_what_had_to_stay_keeps_its_marks() -> None:
    """A segment that somebody touched leaves its heads and their checkpoints for the next time."""
    rows = [*SWEPT[:7], ("delete blobs", 0), ("find blobs", [{"_id": 1}])]
    played = play(delete_for_runs(context(), ["r"]), *FOUND, *rows)
    assert played.result == Removed(0, 2, 0)
    rows = [*SWEPT[:8], ("delete blobs", 0), ("find blobs", [{"_id": 1}])]
    played = play(delete_for_runs(context(), ["r"]), *FOUND, *rows)
    assert played.result == Removed(0, 2, 1)


def test_what_is_gone_already_holds_nothing_up() -> None:
    """When a deletion is repeated, fewer blobs are there than were named."""
    rows = [*SWEPT[:7], ("delete blobs", 0), ("find blobs", []), *SWEPT[8:]]
    assert play(delete_for_runs(context(), ["r"]), *FOUND, *rows).result == Removed(1, 2, 1)


def test_each_blob_is_judged_by_the_mark_of_what_named_it() -> None:
    """A blob may be younger than the oldest mark that is still there."""
    older = NOW - timedelta(days=1)
    line = [
        checkpoint(2, blobs=named(b"b"), **GONE),
        checkpoint(1, blobs=named(b"a"), deleted_at=older),
    ]
    played = play(
        delete_for_runs(context(), ["r"]),
        *FOUND,
        ("find checkpoints", line),
        ("delete writes", 0),
        ("delete writes", 0),
        ("find blobs", [head(b"b", b"a", b"1"), head(b"a", b"0", b"1")]),
        ("delete blobs", 1),
        ("delete blobs", 1),
        ("delete blobs", 2),
        ("delete checkpoints", 2),
    )
    freed = [
        op.filter for op in played.ops if isinstance(op, Delete) and op.collection is Name.BLOBS
    ]
    cutoffs = {key: each["created_at"]["$lte"] for each in freed for key in each["key"]["$in"]}
    assert cutoffs == {b"a": NOW, b"b": NOW, b"1": NOW, b"0": older}


def test_writes_of_runs_without_checkpoints_go() -> None:
    """A thread in which a run only wrote to others' checkpoints is looked at all the same."""
    played = play(
        delete_for_runs(context(), ["r"]),
        ("updatemany checkpoints", 0),
        ("find checkpoints", []),
        ("find writes", [{"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}]),
        ("find checkpoints", [checkpoint(2, parent=1), checkpoint(1)]),
        ("find checkpoints", [payload(2)]),
        ("delete writes", 3),
    )
    assert played.result == Removed(0, 3, 0)
    assert played.ops[-1] == Delete(Name.WRITES, {"thread_id": "t", "run_id": {"$in": ["r"]}})


def test_nothing_is_asked_for_without_runs() -> None:
    """An empty list of runs sends nothing; many go in batches."""
    assert play(delete_for_runs(context(), [])).result == Removed()
    nothing: list[Row] = [
        ("updatemany checkpoints", 0),
        ("find checkpoints", []),
        ("find writes", []),
    ]
    played = play(delete_for_runs(context(), [str(n) for n in range(1500)]), *nothing, *nothing)
    sizes = [len(op.filter["run_id"]["$in"]) for op in played.ops if isinstance(op, Find)]
    assert sizes == [1000, 1000, 500, 500]


def test_bad_arguments_are_refused_at_once() -> None:
    """Before the plan is begun."""
    for bad in ("run", None, [None], [1.5], {"r": 1}):
        with pytest.raises(IdentifierTypeError):
            delete_for_runs(context(), bad)  # type: ignore[arg-type]
    with pytest.raises(IdentifierValueError):
        delete_for_runs(context(), ["\0"])


def test_other_formats_are_refused() -> None:
    """Nothing is removed from a thread that a newer version wrote to."""
    rows: list[Row] = [*FOUND, ("find checkpoints", [checkpoint(1, format=2, **GONE)])]
    assert isinstance(attempt(delete_for_runs(context(), ["r"]), *rows).error, FormatTooNew)


def test_deleting_can_break_off_anywhere() -> None:
    """A failure passes through at each operation, and a closed plan ends."""
    broken_off(lambda: delete_for_runs(context(), ["r"]), [*FOUND, *SWEPT])
