"""Copying a thread as tables: in which order, what is refused, and how to do without `$merge`."""

from __future__ import annotations

from typing import Any

import pytest

from mongosaver.cache import Shared
from mongosaver.errors import IdentifierTypeError, ThreadExists
from mongosaver.ops import Find, Insert, Merge, UpdateMany
from mongosaver.plans import copy
from mongosaver.plans.copy import copy_thread
from mongosaver.schema import BLOB_KEY, CHECKPOINT_KEY, WRITE_KEY, Name
from tests.unit.tables import (
    NOW,
    Row,
    attempt,
    broken_off,
    bulk,
    context,
    in_the_way,
    play,
    refusal,
)

NEWEST = {"format": 1, "thread_id": "a", "checkpoint_ns": "", "checkpoint_id": "2"}
FREE: Row = ("find checkpoints", [])
LOOK: list[Row] = [("find checkpoints", [NEWEST]), FREE, ("find checkpoints", [{"_id": 1}])]
MERGED: list[Row] = [("merge blobs", None), ("merge writes", None), ("merge checkpoints", None)]


def by_finds() -> Shared:
    """Returns the memory of a saver on a server that refused something."""
    shared = Shared()
    shared.read_by_finds = True
    return shared


def document(name: Name, n: int, **fields: Any) -> dict[str, Any]:
    """Returns a document with the fields of its collection's key."""
    keys = {Name.BLOBS: BLOB_KEY, Name.WRITES: WRITE_KEY, Name.CHECKPOINTS: CHECKPOINT_KEY}
    own = {"checkpoint_ns": "", "checkpoint_id": "2", "task_id": "t", "idx": n, "part": 0}
    own |= {"key": bytes([n])}
    return {"_id": n, "thread_id": "a", **{k: own[k] for k in keys[name][1:]}, **fields}


def test_checkpoints_go_last() -> None:
    """Which ones are copied is known before the first blob is."""
    played = play(copy_thread(context(), "a", "$b"), *LOOK, *MERGED)
    merges = [op for op in played.ops if isinstance(op, Merge)]
    assert [merge.key for merge in merges] == [BLOB_KEY, WRITE_KEY, CHECKPOINT_KEY]
    assert merges[2].pipeline[0] == {"$match": {"thread_id": "a", "_id": {"$in": [1]}}}
    assert merges[2].pipeline[1] == {
        "$sort": {"thread_id": -1, "checkpoint_ns": -1, "checkpoint_id": 1}
    }
    own = merges[2].pipeline[-1]["$addFields"]
    assert own["thread_id"] == {"$literal": "$b"}
    assert own["copied_from"] == {"$literal": "a"}
    assert own["created_at"] == {"$literal": NOW}


def test_nothing_comes_of_nothing() -> None:
    """A source without checkpoints is not copied."""
    play(copy_thread(context(), "a", "b"), ("find checkpoints", []))


@pytest.mark.parametrize("found", [{}, {"copied_from": "c"}, {"copied_from": "a"}], ids=str)
def test_a_target_that_exists_is_refused(found: dict[str, Any]) -> None:
    """Whether it is another thread, another's copy, or this one's and complete."""
    rows = [LOOK[0], ("find checkpoints", [found])]
    assert isinstance(attempt(copy_thread(context(), "a", "b"), *rows).error, ThreadExists)


def test_identifiers_are_checked_at_once() -> None:
    """Before the plan is begun."""
    with pytest.raises(ThreadExists):
        copy_thread(context(), "7", 7)
    with pytest.raises(IdentifierTypeError):
        copy_thread(context(), "a", None)


@pytest.mark.parametrize("code", [9, 40, 59, 115, 303, 304, 40324, 51188])
def test_a_server_without_merge_gets_pages(code: int) -> None:
    """Once refused it is not tried again; what is there already stays."""
    blob = document(Name.BLOBS, 1, data=b"x", touched_at=NOW)
    write = document(Name.WRITES, 1, data=b"x", run_id="r")
    checkpoint = document(Name.CHECKPOINTS, 1, inline=[{"d": b"x"}], blobs=[{"k": b"1"}])
    played = play(
        copy_thread(context(), "a", "b"),
        *LOOK,
        ("merge blobs", refusal(code)),
        ("find blobs", [blob]),
        ("insert blobs", bulk(in_the_way(BLOB_KEY))),
        ("updatemany blobs", 1),
        ("find writes", [write]),
        ("insert writes", None),
        ("find checkpoints", [checkpoint]),
        ("insert checkpoints", None),
    )
    [touch] = [op for op in played.ops if isinstance(op, UpdateMany)]
    key = {"thread_id": "b", "checkpoint_ns": "", "key": blob["key"]}
    assert touch.filter == {"thread_id": "b", "$or": [key]}
    assert touch.update == {"$set": {"touched_at": NOW}}
    inserted = [op.documents[0] for op in played.ops if isinstance(op, Insert)]
    assert all(each["thread_id"] == "b" and each["created_at"] == NOW for each in inserted)
    assert not any({"_id", "run_id", "touched_at"} & each.keys() for each in inserted)
    assert [each.get("copied_from") for each in inserted] == [None, None, "a"]


def test_pages_follow_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page begins behind the last document's whole key, in ranges of the index."""
    monkeypatch.setattr(copy, "_STEP", 2)
    monkeypatch.setattr(copy, "_SMALLEST", 2)
    rows = [document(Name.BLOBS, n, data=b"x") for n in range(3)]
    played = play(
        copy_thread(context(shared=by_finds()), "a", "b"),
        *LOOK,
        ("find blobs", rows[:2]),
        ("insert blobs", None),
        ("find blobs", rows[2:]),
        ("find blobs", []),
        ("insert blobs", None),
        ("find writes", []),
        ("find checkpoints", []),
    )
    finds = [op for op in played.ops if isinstance(op, Find) and op.collection is Name.BLOBS]
    assert [find.filter for find in finds] == [
        {"thread_id": "a"},
        {"thread_id": "a", "checkpoint_ns": "", "key": {"$gt": b"\1"}},
        {"thread_id": "a", "checkpoint_ns": {"$gt": ""}},
    ]
    assert [find.limit for find in finds] == [2, 2, 1]


def test_large_documents_come_in_small_pages() -> None:
    """A page's size follows from the sizes of the one before."""
    large = [document(Name.BLOBS, n, data=bytes(8 << 20)) for n in range(4)]
    small = [document(Name.BLOBS, 4 + n, data=b"") for n in range(4)]
    played = play(
        copy_thread(context(shared=by_finds()), "a", "b"),
        *LOOK,
        ("find blobs", large),
        ("insert blobs", None),
        ("find blobs", small),
        ("insert blobs", None),
        ("find blobs", []),
        ("find blobs", []),
        ("find writes", []),
        ("find checkpoints", []),
    )
    finds = [op for op in played.ops if isinstance(op, Find) and op.collection is Name.BLOBS]
    assert [find.limit for find in finds] == [4, 4, 500, 500]


def test_foreign_duplicates_and_refusals_surface() -> None:
    """What is not understood is raised, whichever way it is copied."""
    other = refusal(13)
    assert attempt(copy_thread(context(), "a", "b"), *LOOK, ("merge blobs", other)).error is other
    foreign = bulk(in_the_way(["somebody", "else"]))
    rows: list[Row] = [("find blobs", [document(Name.BLOBS, 1)]), ("insert blobs", foreign)]
    plan = copy_thread(context(shared=by_finds()), "a", "b")
    assert attempt(plan, *LOOK, *rows).error is foreign


def test_copying_can_break_off_anywhere() -> None:
    """A failure passes through at each operation, and a closed plan ends."""
    broken_off(lambda: copy_thread(context(), "a", "b"), [*LOOK, *MERGED])
