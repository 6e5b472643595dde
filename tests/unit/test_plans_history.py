"""DeltaChannel history as tables: how it reads, on servers that refuse a stage too."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from mongosaver.cache import Shared
from mongosaver.codec import dump
from mongosaver.errors import IncompleteCheckpoint
from mongosaver.ops import Find
from mongosaver.plans import history
from mongosaver.plans.history import get_delta_channel_history
from mongosaver.schema import MAX_AGGREGATE, OFF_LOOP, Name
from tests.contract.samples import config
from tests.unit.tables import NOW, RUN, Row, attempt, broken_off, context, play, refusal

SERDE = JsonPlusSerializer()
SEED = dump(SERDE, ["seed"])


def checkpoint(n: int, *, parent: int | None = None, **fields: Any) -> dict[str, Any]:
    """Returns what a page has of a checkpoint."""
    return {
        "format": 1,
        "thread_id": "t",
        "checkpoint_id": str(n),
        "parent_checkpoint_id": None if parent is None else str(parent),
        "inline": [],
        "blobs": [],
        **fields,
    }


def write(n: int, value: Any, channel: str = "d") -> dict[str, Any]:
    """Returns a pending write of a checkpoint."""
    payload = dump(SERDE, value)
    own = {"task_id": "task", "task_path": "", "idx": 0, "part": 0, "format": 1}
    return {
        **own,
        "checkpoint_id": str(n),
        "channel": channel,
        "type": payload.type,
        "data": payload.data,
    }


def head(**fields: Any) -> dict[str, Any]:
    """Returns the blob of the seed, whose last bytes are its own."""
    own = {"format": 1, "key": b"h", "chain": [b"s"], "head": SEED.data[:1], "type": SEED.type}
    return {**own, "data": SEED.data[3:], **fields}


SEGMENT = {"key": b"s", "data": SEED.data[1:3], "chain": []}
STORED = {"blobs": [{"c": "d", "k": b"h", "size": len(SEED.data)}]}
PAGE = [checkpoint(2, parent=1), checkpoint(1, parent=0), checkpoint(0, **STORED)]
EXPECTED = {"d": {"writes": [("task", "d", 0), ("task", "d", 1)], "seed": ["seed"]}}
WRITES: Row = ("find writes", [write(1, 1), write(0, 0)])
WHOLE: list[Row] = [
    ("aggregate checkpoints", PAGE),
    WRITES,
    ("aggregate blobs", [head(segments=[SEGMENT])]),
]


def plan(at: str | None = "2", *, channels: Any = ("d",), shared: Shared | None = None) -> Any:
    """Returns the plan for a target."""
    return get_delta_channel_history(context(shared=shared), config("t", "", at), channels)


def by_finds() -> Shared:
    """Returns the memory of a saver on a server that refused something."""
    shared = Shared()
    shared.read_by_finds = True
    return shared


def test_a_page_then_writes_then_seeds() -> None:
    """Three commands where the seed is a blob."""
    assert play(plan(), *WHOLE).result == EXPECTED


def test_servers_that_refuse_a_stage_are_read_by_finds() -> None:
    """The refusal is remembered, whichever stage it was for."""
    shared = Shared()
    finds: list[Row] = [("find blobs", [head()]), ("find blobs", [SEGMENT])]
    rows: list[Row] = [("aggregate checkpoints", refusal(40324)), ("find checkpoints", PAGE)]
    assert play(plan(shared=shared), *rows, WRITES, *finds).result == EXPECTED
    assert play(plan(shared=shared), rows[1], WRITES, *finds).result == EXPECTED
    late: list[Row] = [*WHOLE[:2], ("aggregate blobs", refusal(28769)), *finds]
    assert play(plan(), *late).result == EXPECTED


@pytest.mark.parametrize("at", range(3))
def test_other_failures_surface(at: int) -> None:
    """A refusal that says nothing about a stage is raised as it is."""
    other = refusal(13)
    assert attempt(plan(), *WHOLE[:at], (WHOLE[at][0], other)).error is other


def test_a_large_seed_does_not_come_as_one_row() -> None:
    """A row of an aggregate ends at 16 MB, so its pieces are found one by one."""
    stored = {"blobs": [{"c": "d", "k": b"h", "size": MAX_AGGREGATE + 1}]}
    rows: list[Row] = [
        ("aggregate checkpoints", [checkpoint(1, parent=0), checkpoint(0, **stored)]),
        ("find writes", []),
        ("find blobs", [head(chain=[])]),
        ("compute", ({"d": {"writes": []}})),
    ]
    assert play(plan("1"), *rows).result == {"d": {"writes": []}}


def test_large_values_are_loaded_off_the_loop() -> None:
    """Writes count like seeds."""
    rows: list[Row] = [
        ("aggregate checkpoints", [checkpoint(1, parent=0), checkpoint(0)]),
        ("find writes", [write(0, "x" * OFF_LOOP)]),
        ("compute", RUN),
    ]
    assert play(plan("1"), *rows).result["d"]["writes"][0][2] == "x" * OFF_LOOP


def test_what_is_deleted_meanwhile_is_looked_for_again() -> None:
    """A hole is read anew; one that stays is an error with what and where."""
    hole: list[Row] = [*WHOLE[:2], ("aggregate blobs", [])]
    assert play(plan(), *hole, *WHOLE).result == EXPECTED
    error = attempt(plan(), *hole, *hole, *hole).error
    assert isinstance(error, IncompleteCheckpoint)
    assert (error.thread_id, error.channel, error.key) == ("t", "d", b"h".hex())


def test_a_marked_target_is_none() -> None:
    """It is gone for readers; the latest is the newest that is not marked."""
    marked = checkpoint(2, parent=1, deleted_at=NOW)
    empty = {"d": {"writes": []}}
    assert play(plan(), ("aggregate checkpoints", [marked, *PAGE[1:]])).result == empty
    rows: list[Row] = [("aggregate checkpoints", [marked, checkpoint(1, parent=0), checkpoint(0)])]
    played = play(plan(None), *rows, ("find writes", [write(0, 7)]))
    assert played.result == {"d": {"writes": [("task", "d", 7)]}}


def test_many_marked_ones_are_passed_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest is looked for until there is one, or nothing more."""
    monkeypatch.setattr(history, "ANCESTORS", 0)
    rows: list[Row] = [("find checkpoints", [checkpoint(n, deleted_at=NOW)]) for n in (3, 2)]
    played = play(plan(None, shared=by_finds()), *rows, ("find checkpoints", [checkpoint(1)]))
    finds = [op for op in played.ops if isinstance(op, Find)]
    assert [find.filter.get("checkpoint_id") for find in finds] == [
        None,
        {"$lt": "3"},
        {"$lt": "2"},
    ]
    monkeypatch.setattr(history, "ANCESTORS", 5)
    assert play(plan(None, shared=by_finds()), rows[0]).result == {"d": {"writes": []}}


def test_many_ids_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One command for the writes, unless there are more ids than one should hold."""
    monkeypatch.setattr(history, "_IDS", 2)
    line = [checkpoint(n, parent=n - 1 if n else None) for n in range(5, -1, -1)]
    line[2] = checkpoint(3, parent=2, inline=[{"c": "e", "t": SEED.type, "d": SEED.data}])
    played = play(
        plan("5", channels=["d", "e"]),
        ("aggregate checkpoints", line),
        *[("find writes", [])] * 4,
    )
    finds = [op for op in played.ops if isinstance(op, Find) and op.collection is Name.WRITES]
    asked = [(f.filter["checkpoint_id"]["$in"], f.filter["channel"]["$in"]) for f in finds]
    assert asked == [
        (["4", "3"], ["d"]),
        (["2", "1"], ["d"]),
        (["0"], ["d"]),
        (["4", "3"], ["e"]),
    ]
    monkeypatch.setattr(history, "_IDS", 10)
    rows: list[Row] = [("aggregate checkpoints", line), ("find writes", [write(4, 1, "e")])]
    played = play(plan("5", channels=["d", "e"]), *rows)
    assert played.result == {
        "d": {"writes": []},
        "e": {"writes": [("task", "e", 1)], "seed": ["seed"]},
    }


def test_reading_can_break_off_anywhere() -> None:
    """A failure passes through at each operation, and a closed plan ends."""
    broken_off(plan, WHOLE)
