"""Verifying as tables: what is read, what is made of it, and that nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mongosaver import IdentifierTypeError
from mongosaver.ops import Aggregate, Compute, Find, Sleep
from mongosaver.plans import pages, shapes
from mongosaver.plans.outline import Outline
from mongosaver.plans.verify import walk
from mongosaver.plans.verify.looks import items_of
from mongosaver.plans.verify.report import Options, Report
from tests.unit.stored import LONG, Thread, items
from tests.unit.tables import NOW, RUN, Row, broken_off, context, play, words

Document = dict[str, Any]


def grown() -> Thread:
    """A thread of two checkpoints, the second of which has one more segment."""
    thread = Thread()
    thread.put("1", {"list": LONG, "n": 1})
    thread.put("2", {"list": [*LONG, *items(60)], "n": 2}, "1")
    for number, row in enumerate(thread.checkpoints.values()):
        row["_id"] = number
    return thread


def looks(thread: Thread) -> list[Row]:
    """The table of one look at a thread that is whole."""
    newest = sorted(thread.checkpoints, reverse=True)
    blobs = list(thread.blobs.values())
    heads = thread.heads(*newest)
    chains = [blob for blob in thread.chains(*newest) if blob not in heads]
    rows: list[Row] = [
        ("find checkpoints", [thread.checkpoints[i] for i in newest]),
        ("find blobs", heads),
        ("find blobs", chains),
        ("find blobs", blobs),
        ("find checkpoints", [thread.checkpoints[i] for i in newest]),
        ("find blobs", [*thread.heads("2"), *thread.chains("2")]),
        ("find writes", thread.writes),
        ("find blobs", blobs),
    ]
    return rows


def looking(report: Report, **options: Any) -> Any:
    """Returns the plan."""
    return walk.thread(context(), "t", report, Options(**options))


def test_whole_thread_is_read_once() -> None:
    """Checkpoints, what they name, payloads, data and writes: each once, and nothing is found."""
    thread, report = grown(), Report()
    played = play(looking(report), *looks(thread))
    assert all(isinstance(op, Find) for op in played.ops)
    assert (report.wrong, report.checkpoints, report.blobs) == (0, 2, len(thread.blobs))
    assert (report.threads, report.last_thread_id) == (1, "t")


def test_without_data_no_data_is_asked_for() -> None:
    """Neither payloads nor segments are read where only names are looked at."""
    thread, report = grown(), Report()
    rows = looks(thread)
    played = play(looking(report, data=False), *rows[:3], *rows[6:])
    for op in played.ops:
        assert isinstance(op, Find)
        assert op.projection is not None
        assert not {"data", "checkpoint", "metadata", "inline", "blobs"} & op.projection.keys()
    assert report.bytes == 0


def test_broken_off() -> None:
    """What the plan cannot understand passes through it, at each operation."""
    thread = grown()
    broken_off(lambda: looking(Report()), looks(thread))


def test_blob_that_comes_between_two_looks_is_no_finding() -> None:
    """What is missing is waited for and looked at once more, from the start."""
    thread, report = grown(), Report()
    first = looks(thread)
    late = thread.heads("2")[0]
    heads = [head for head in thread.heads("2", "1") if head is not late]
    chains = [blob for blob in thread.chains("1") if blob not in heads]
    whole = [thread.checkpoints["2"]]
    second_chain = [blob for blob in thread.chains("2") if blob is not late]
    played = play(
        looking(report),
        ("find checkpoints", first[0][1]),
        ("find blobs", heads),
        ("find blobs", chains),
        ("find blobs", [*heads, *chains]),
        ("find checkpoints", first[4][1]),
        ("find writes", []),
        ("find blobs", list(thread.blobs.values())),
        ("sleep", None),
        ("find checkpoints", whole),
        ("find blobs", [late]),
        ("find blobs", second_chain),
        ("find blobs", [*second_chain, late]),
        ("find checkpoints", whole),
        ("find blobs", [*second_chain, late]),
    )
    assert isinstance(played.ops[7], Sleep)
    assert report.wrong == 0
    assert report.damaged == 0


@pytest.mark.parametrize("how", ["gone", "marked", "expired"])
def test_checkpoint_that_goes_between_two_looks_is_no_finding(how: str) -> None:
    """A thread that is deleted while it is looked at is not taken for damaged."""
    thread, report = grown(), Report()
    first = looks(thread)
    change = {"marked": {"deleted_at": NOW}, "expired": {"expires_at": NOW}}.get(how)
    again = [{**row, **change} for row in first[0][1]] if change else []
    play(
        looking(report, data=False),
        first[0],
        ("find blobs", []),
        ("find writes", []),
        ("find blobs", []),
        ("sleep", None),
        ("find checkpoints", again),
    )
    assert report.wrong == report.stateless == 0


def test_value_that_goes_before_it_is_loaded_is_no_finding() -> None:
    """What was whole, and is gone when it is to be loaded, was deleted meanwhile."""
    thread, report = grown(), Report()
    rows = looks(thread)
    rows[5] = ("find blobs", [])
    play(looking(report), *rows)
    assert report.wrong == 0


def test_large_values_are_hashed_and_loaded_off_the_loop() -> None:
    """What is large is computed by an operation of its own."""
    thread, report = Thread(), Report()
    thread.put("1", {"list": items(4_000)})
    thread.checkpoints["1"]["_id"] = 1
    heads, chains = thread.heads("1"), thread.chains("1")
    row = [thread.checkpoints["1"]]
    played = play(
        looking(report),
        ("find checkpoints", row),
        ("find blobs", heads),
        ("find blobs", chains),
        ("find blobs", [*heads, *chains]),
        ("compute", RUN),
        ("find checkpoints", row),
        ("find blobs", [*heads, *chains]),
        ("compute", RUN),
        ("find writes", []),
        ("find blobs", [*heads, *chains]),
    )
    sizes = [op.size for op in played.ops if isinstance(op, Compute)]
    assert min(sizes) >= 400_000
    assert report.wrong == 0


# --- threads -----------------------------------------------------------------------------------


def test_threads_after_the_end_of_a_full_window_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection whose window is full may have more of what the others do not reach."""
    monkeypatch.setattr(pages, "WINDOW", 3)
    played = play(
        pages.threads("a"),
        ("aggregate checkpoints", [{"_id": "b", "count": 1}, {"_id": "c", "count": 2}]),
        ("aggregate writes", [{"_id": "d", "count": 1}]),
        ("aggregate blobs", [{"_id": "b", "count": 2}]),
    )
    assert played.result == ["b", "c"]
    for op in played.ops:
        assert isinstance(op, Aggregate)
        assert op.pipeline[0] == {"$match": {"thread_id": {"$gt": "a"}}}


def test_threads_that_are_wanted_are_checked_and_sorted() -> None:
    """Ids are text, in order, each once; None means all."""
    assert pages.wanted(None) is None
    assert pages.wanted(["b", 1, "b"]) == ["1", "b"]
    with pytest.raises(IdentifierTypeError):
        pages.wanted("thread")
    with pytest.raises(IdentifierTypeError):
        pages.wanted([None])


# --- shapes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda row: row.pop("format"), "format", "did not write"),
        (lambda row: row.update(format=2), "format", "format 2"),
        (lambda row: row.pop("created_at"), "shape", "'created_at' is missing"),
        (lambda row: row.update(bytes="1"), "shape", "'bytes' is str"),
        (lambda row: row.update(parent_checkpoint_id=1), "shape", "'parent_checkpoint_id' is int"),
        (lambda row: row["inline"].append({"n": 1}), "shape", "'inline' names no channel"),
        (lambda row: row["inline"].append("text"), "shape", "'inline' names no channel"),
        (lambda row: row["blobs"][0].pop("k"), "shape", "lacks channel, key or size"),
        (lambda row: row["blobs"].append(None), "shape", "lacks channel, key or size"),
        (lambda row: row["inline"].append(row["inline"][0]), "lists", "two values"),
    ],
)
def test_shape_of_a_checkpoint(change: Callable[[Document], Any], kind: str, text: str) -> None:
    """What a checkpoint's document must have is looked at before it is used."""
    row = grown().checkpoints["2"]
    assert shapes.outline_problem(row) is None
    change(row)
    problem = shapes.outline_problem(row)
    assert problem is not None
    assert problem.kind == kind
    assert text in problem.text


@pytest.mark.parametrize(
    ("head", "count"),
    [
        (b"", None),
        (b"\x93", 3),
        (b"\x83", 6),
        (b"\xdc\x01\x00", 256),
        (b"\xdd\x00\x01\x00\x00", 65_536),
        (b"\xde\x00\x10", 32),
        (b"\xdf\x00\x00\x00\x10", 32),
        (b"\xd9\x10", None),
        (b"\xa3", None),
        (b"\xc7\x10\x05\x93", 3),
        (b"\xc8\x00\x10\x05\xdc\x00\x10", 16),
        (b"\xc9\x00\x00\x00\x10\x05\x82", 4),
        (b"\xc7\x10\x05", None),
        (b"\xdc\x01", None),
    ],
)
def test_items_of_a_container(head: bytes, count: int | None) -> None:
    """A container's header tells how many objects follow it."""
    assert items_of(head) == count


def test_numbers_and_keys_that_are_none_are_passed_over() -> None:
    """Lists in documents hold what they may hold, or it does not count."""
    assert shapes.parts_of({"parts": [1, "2", None, 3]}) == [1, 3]
    assert shapes.parts_of({"parts": 1}) == shapes.parts_of({}) == []
    assert list(shapes.chain_of({"chain": [b"a", "b", {}]})) == [b"a"]
    assert list(shapes.chain_of({"chain": b"a"})) == []


def test_outline_tells_who_has_lost_an_ancestor() -> None:
    """Lost is who comes to a gap on the way to the root; a circle is none."""
    outline = Outline()
    for name, parent in (("1", None), ("2", "1"), ("4", "3"), ("5", "4"), ("8", "9"), ("9", "8")):
        row = {"checkpoint_ns": "", "checkpoint_id": name, "parent_checkpoint_id": parent}
        outline.add({**row, "created_at": NOW}, hidden=name == "2")
    assert [k for k in "124589" if outline.is_lost(("", k))] == ["4", "5"]
    assert outline.hidden == {("", "2")}
    assert outline.copied_at == NOW


def test_age_is_the_later_of_two_dates() -> None:
    """A document is as young as it was needed last; without a date it is as old as is said."""
    hour = timedelta(hours=1)
    assert shapes.age_of({"created_at": NOW - hour, "touched_at": NOW}, NOW - 2 * hour) == NOW
    assert shapes.age_of({"created_at": NOW}, NOW - hour) == NOW
    assert shapes.age_of({}, NOW - hour) == NOW - hour
    assert words(Sleep(1)) == "sleep"
