"""Pruning as tables: what is looked at, what is marked, and when a thread is left alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from mongosaver.codec import dump
from mongosaver.errors import ConfigurationError
from mongosaver.ops import UpdateMany
from mongosaver.plans import sweep
from mongosaver.plans.prune import Pruned, prune
from mongosaver.segments import split
from tests.unit.tables import NOW, Row, broken_off, context, play
from tests.unit.test_plans_runs import checkpoint, payload

SERDE = JsonPlusSerializer()
LINE = [checkpoint(2, parent=1), checkpoint(1)]
MARKED = [LINE[0], {**LINE[1], "deleted_at": NOW}]
PRUNED: list[Row] = [
    ("find checkpoints", LINE),
    ("find checkpoints", [payload(2)]),
    ("updatemany checkpoints", 1),
    ("find checkpoints", MARKED),
    ("find checkpoints", [payload(2)]),
    ("updatemany checkpoints", 1),
    ("delete writes", 3),
    ("delete checkpoints", 1),
]


def test_what_is_not_kept_is_marked_and_swept() -> None:
    """The remaining checkpoints are read again after the marking."""
    played = play(prune(context(), ["t"]), *PRUNED)
    assert played.result == Pruned(threads=1, checkpoints=1, writes=3)
    marks = [op for op in played.ops if isinstance(op, UpdateMany)]
    assert marks[0].filter == {"thread_id": "t", "_id": {"$in": [1]}, "deleted_at": None}


def test_a_thread_with_nothing_to_remove_is_only_looked_at() -> None:
    """One scan, and no command that changes anything."""
    assert play(prune(context(), ["t"]), ("find checkpoints", [LINE[1]])).result == Pruned()
    assert play(prune(context(), ["t"]), ("find checkpoints", [])).result == Pruned()


def test_marks_that_are_left_are_swept() -> None:
    """A prune that broke off is finished even where there is nothing more to mark."""
    rows: list[Row] = [("find checkpoints", MARKED), ("find checkpoints", [payload(2)])]
    played = play(prune(context(), ["t"]), *rows, *PRUNED[3:])
    assert played.result == Pruned(threads=1, checkpoints=1, writes=3)


def test_a_dry_run_changes_nothing() -> None:
    """It takes what would be marked for marked, and counts."""
    played = play(
        prune(context(), ["t"], dry_run=True),
        ("find checkpoints", LINE),
        ("find checkpoints", [payload(2)]),
        ("find checkpoints", LINE),
        ("find checkpoints", [payload(2)]),
        ("count writes", 3),
    )
    assert played.result == Pruned(threads=1, checkpoints=1, writes=3)


def test_whole_threads_go_as_delete_thread_removes_them() -> None:
    """Checkpoints, writes, blobs, and a second look; counted."""
    rows: list[Row] = [("delete checkpoints", 1), ("delete writes", 2), ("delete blobs", 3)]
    played = play(
        prune(context(), ["t"], strategy="delete"),
        *rows,
        ("find checkpoints", [{"_id": 1}]),
        *rows,
        ("find checkpoints", []),
    )
    assert played.result == Pruned(threads=1, checkpoints=2, writes=4, blobs=6)
    counts: list[Row] = [("count checkpoints", 1), ("count writes", 2), ("count blobs", 3)]
    played = play(prune(context(), ["t"], strategy="delete", dry_run=True), *counts)
    assert played.result == Pruned(threads=1, checkpoints=1, writes=2, blobs=3)


@pytest.mark.parametrize(
    ("slots", "skipped"),
    [
        ([], False),
        ([("a", 0)], False),
        ([("a", -3)], True),
        ([("a", -3), ("a", -4)], True),
        ([("a", -3), ("a", 0)], False),
        ([("a", -3), ("b", 0)], True),
    ],
    ids=str,
)
def test_an_answered_interrupt_has_ordinary_writes_beside_it(
    slots: list[tuple[str, int]], skipped: bool
) -> None:
    """A task that was resumed and has not ended waits still."""
    found: list[Row] = [
        ("find checkpoints", [LINE[1]]),
        ("find writes", [{"task_id": task, "idx": idx} for task, idx in slots]),
    ]
    played = play(prune(context(), ["t"], skip_interrupted=True), *found)
    assert played.result == Pruned(skipped=int(skipped))


def test_retention_skips_interrupted_threads_by_default() -> None:
    """Options for many threads at once look for interrupts; a plain prune does not."""
    look: list[Row] = [("find checkpoints", [LINE[1]]), ("find writes", [])]
    for options in ({"keep_last": 1}, {"older_than": NOW}, {"older_than": timedelta(1)}):
        play(prune(context(), ["t"], **options), *look)  # type: ignore[arg-type]
    play(prune(context(), ["t"], keep_last=1, skip_interrupted=False), look[0])
    inner = checkpoint(1, checkpoint_ns="inner")
    play(prune(context(), ["t"], keep_last=1), ("find checkpoints", [inner]))


@pytest.mark.parametrize("value", [[], ["x"], "x", {"x": 1}, list(range(99)), ["x" * 999] * 99])
def test_snapshots_are_told_by_their_first_bytes(value: Any) -> None:
    """Whatever is in them; the same value by itself is none."""
    for each, is_snapshot in ((_DeltaSnapshot(value), True), (value, False)):
        head, _ = split("msgpack", dump(SERDE, each).data)
        assert sweep._is_snapshot(head) is is_snapshot


def test_other_extensions_are_no_snapshots() -> None:
    """The code tells, wherever the length puts it."""
    code = jsonplus.EXT_DELTA_SNAPSHOT
    for head in (bytes([0xD4, code]), bytes([0xC8, 0, 1, code]), bytes([0xC9, 0, 0, 0, 1, code])):
        assert sweep._is_snapshot(head)
        assert not sweep._is_snapshot(head[:-1] + bytes([code + 1]))
        assert not sweep._is_snapshot(head[:-1])


def test_counters_of_any_shape_are_read() -> None:
    """The field is in beta: what is no pair still says that the channel is rebuilt."""
    counters = {"a": (0, 3), "b": [2, 3], "c": (), "d": None}
    found = sweep._counters({sweep.COUNTERS: counters})
    assert found == {"a": False, "b": True, "c": True, "d": True}
    assert sweep._counters({sweep.COUNTERS: 1}) == sweep._counters({}) == {}


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "all"},
        {"keep_last": 0},
        {"keep_last": "2"},
        {"keep_last": 1, "strategy": "delete"},
        {"older_than": NOW.replace(tzinfo=None)},
        {"older_than": -timedelta(1)},
        {"older_than": "2026"},
    ],
    ids=str,
)
def test_options_are_checked_at_once(options: dict[str, Any]) -> None:
    """Before the plan is begun."""
    with pytest.raises(ConfigurationError):
        prune(context(), ["t"], **options)


def test_pruning_can_break_off_anywhere() -> None:
    """A failure passes through at each operation, and a closed plan ends."""
    broken_off(lambda: prune(context(), ["t"]), PRUNED)
