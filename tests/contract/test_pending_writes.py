"""Contract, "Pending writes": slots, their order, and writes that arrive early or twice."""

from __future__ import annotations

import inspect
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.checkpoint.base import WRITES_IDX_MAP

from tests.contract.samples import LARGE, Line, config, ids, values_of, writes_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from tests.faces import Face

SPECIAL = ("__error__", "__scheduled__", "__interrupt__", "__resume__")


@pytest.fixture
def at(face: Face, thread: str) -> RunnableConfig:
    """Config of a checkpoint that waits for writes."""
    return Line(face, thread).put({"a": 1})


def test_special_channels_have_their_fixed_slots(mongo_face: Face, thread: str) -> None:
    """Special writes are stored under -1 to -4, ordinary ones under their position in the call."""
    at = Line(mongo_face, thread).put({"a": 1})
    mongo_face.put_writes(at, [("x", 0), *((c, c) for c in SPECIAL), ("y", 5)], "task")
    stored = {w["channel"]: w["idx"] for w in mongo_face.sibling(".writes").find()}
    assert stored == {"x": 0, "y": 5, **WRITES_IDX_MAP}
    assert stored == {
        "x": 0,
        "__error__": -1,
        "__scheduled__": -2,
        "__interrupt__": -3,
        "__resume__": -4,
        "y": 5,
    }


def test_special_slots_sort_before_ordinary_ones(face: Face, at: RunnableConfig) -> None:
    """Within a task the writes come by slot: resume, interrupt, scheduled, error, then the rest."""
    face.put_writes(at, [("x", 0), *((c, c) for c in SPECIAL), ("y", 5)], "task")
    channels = [channel for _, channel, _ in writes_of(face, at)]
    assert channels == [*reversed(SPECIAL), "x", "y"]


def test_ordinary_write_takes_its_position_in_the_call(face: Face, at: RunnableConfig) -> None:
    """Positions count over the whole call, special writes included."""
    face.put_writes(at, [("__resume__", "r"), ("second", 1)], "task")
    face.put_writes(at, [("first", 0), ("late", 1), ("third", 2)], "task")
    assert writes_of(face, at) == [
        ("task", "__resume__", "r"),
        ("task", "first", 0),
        ("task", "second", 1),
        ("task", "third", 2),
    ]


def test_slot_is_neither_the_channel_nor_the_task_path(face: Face, at: RunnableConfig) -> None:
    """A second ordinary write of a slot is ignored even with another channel and path."""
    face.put_writes(at, [("x", "first")], "task", "path 2")
    face.put_writes(at, [("y", "second")], "task", "path 9")
    face.put_writes(at, [("z", "other")], "another task", "path 5")
    assert writes_of(face, at) == [("task", "x", "first"), ("another task", "z", "other")]


def test_slots_of_different_tasks_do_not_meet(face: Face, at: RunnableConfig) -> None:
    """The same position in two tasks is two slots."""
    face.put_writes(at, [("x", 1), ("__interrupt__", "1")], "task 1")
    face.put_writes(at, [("x", 2), ("__interrupt__", "2")], "task 2")
    assert writes_of(face, at) == [
        ("task 1", "__interrupt__", "1"),
        ("task 1", "x", 1),
        ("task 2", "__interrupt__", "2"),
        ("task 2", "x", 2),
    ]


@pytest.mark.parametrize("value", ["first", None, LARGE], ids=["text", "None", "large"])
def test_ordinary_slot_written_twice_keeps_the_first_value(
    face: Face, at: RunnableConfig, value: Any
) -> None:
    """An ordinary slot written again stays as it was."""
    face.put_writes(at, [("x", value)], "task")
    face.put_writes(at, [("x", "second")], "task")
    face.put_writes(at, [("x", "third")], "task")
    assert writes_of(face, at) == [("task", "x", value)]


@pytest.mark.parametrize("channel", SPECIAL)
def test_special_slot_written_twice_has_the_last_value(
    face: Face, at: RunnableConfig, channel: str
) -> None:
    """A special slot written again holds the last value, in the place of its last path."""
    face.put_writes(at, [("x", "between")], "other", "path 5")
    face.put_writes(at, [(channel, ["first", LARGE])], "task", "path 1")
    face.put_writes(at, [(channel, "second")], "task", "path 9")
    face.put_writes(at, [(channel, None)], "task", "path 9")
    assert writes_of(face, at) == [("other", "x", "between"), ("task", channel, None)]


def test_special_slot_twice_in_one_call_has_the_last_value(face: Face, at: RunnableConfig) -> None:
    """The last value wins also within one call."""
    face.put_writes(at, [("__interrupt__", 1), ("__interrupt__", 2), ("x", 3)], "task")
    assert writes_of(face, at) == [("task", "__interrupt__", 2), ("task", "x", 3)]


def test_mixed_call_is_decided_write_by_write(face: Face, at: RunnableConfig) -> None:
    """In one call the special write replaces, the known ordinary one stays, the new one comes."""
    face.put_writes(at, [("x", "first"), ("__interrupt__", "first")], "task")
    face.put_writes(at, [("x", "second"), ("__interrupt__", "second"), ("y", "new")], "task")
    assert writes_of(face, at) == [
        ("task", "__interrupt__", "second"),
        ("task", "x", "first"),
        ("task", "y", "new"),
    ]


# In the order of `writes_sort_key`; neither path nor task alone gives it.
ORDERED = [
    ("", "task 9"),
    ("path 1", "task 5"),
    ("path 1", "task 6"),
    ("path 10", "task 2"),
    ("path 2", "task 1"),
    ("path Z", "task 0"),
    ("path a", "task 00"),
    ("path é", "task 7"),
    ("path \uffee", "task 8"),
    ("path \U0001f600", "task 4"),
    ("~path", "task 3"),
]


def test_pending_writes_come_sorted_by_path_task_and_position(
    face: Face, at: RunnableConfig
) -> None:
    """`get_tuple` and each row of `list` give the writes in the order of `writes_sort_key`."""
    for path, task in [*ORDERED[1::2], *reversed(ORDERED[0::2])]:
        face.put_writes(at, [*(("x", n) for n in range(12)), ("__resume__", -4)], task, path)
    expected = [
        (task, "x" if position >= 0 else "__resume__", position)
        for _, task in ORDERED
        for position in (-4, *range(12))
    ]
    assert writes_of(face, at) == expected
    assert [row.pending_writes for row in face.list(at)] == [expected]


def test_no_pending_writes_is_an_empty_list(face: Face, at: RunnableConfig) -> None:
    """A checkpoint without writes has `[]`, not None, in `get_tuple` and in `list`."""
    assert writes_of(face, at) == []
    assert [row.pending_writes for row in face.list(at)] == [[]]


def test_each_row_of_list_has_its_own_writes(face: Face, thread: str) -> None:
    """Writes belong to one checkpoint of one namespace of one thread."""
    line, other = Line(face, thread), Line(face, thread + "2")
    inner = Line(face, thread, "inner")
    for n in range(3):
        at = line.put({"a": n}, checkpoint_id=f"id {n}")
        face.put_writes(at, [("x", n)], "task")
        face.put_writes(inner.put({"a": n}, checkpoint_id=f"id {n}"), [("x", n * 10)], "task")
    other.put({"a": 0}, checkpoint_id="id 1")
    rows = face.list({"configurable": {"thread_id": thread}})
    assert [row.pending_writes for row in rows] == [
        [("task", "x", n)] for n in (2, 1, 0, 20, 10, 0)
    ]
    assert [row.pending_writes for row in face.list(config(other.thread))] == [[]]


def test_empty_list_of_writes_is_no_error_and_no_document(mongo_face: Face, thread: str) -> None:
    """Nothing is stored, and nothing is sent, for no writes."""
    mongo_face.setup()
    with mongo_face.commands.recorded() as sent:
        mongo_face.put_writes(config(thread, "", "id"), [], "task")
    assert [command.name for command in sent] == []
    assert mongo_face.sibling(".writes").count_documents({}) == 0


def test_empty_list_of_writes_changes_nothing(face: Face, at: RunnableConfig) -> None:
    """No writes are no error."""
    face.put_writes(at, [], "task")
    assert writes_of(face, at) == []


def test_writes_may_arrive_before_their_checkpoint(face: Face, thread: str) -> None:
    """The thread reads as empty until the checkpoint is put; then its early writes show."""
    at = config(thread, "", "1")
    face.put_writes(at, [("x", 1), ("__interrupt__", "i")], "task")
    assert face.get_tuple(config(thread)) is None
    assert face.get_tuple(at) is None
    assert face.get(at) is None
    assert face.list(config(thread)) == []
    Line(face, thread).put({"a": 1}, checkpoint_id="1")
    assert writes_of(face, at) == [("task", "__interrupt__", "i"), ("task", "x", 1)]
    assert ids(face.list(config(thread))) == ["1"]


def test_early_writes_keep_their_slots(face: Face, thread: str) -> None:
    """The rule of the first value holds for a slot that was written before the checkpoint."""
    at = config(thread, "", "1")
    face.put_writes(at, [("x", "early")], "task")
    Line(face, thread).put({"a": 1}, checkpoint_id="1")
    face.put_writes(at, [("x", "late")], "task")
    assert writes_of(face, at) == [("task", "x", "early")]


def test_putting_a_checkpoint_again_keeps_its_writes(face: Face, thread: str) -> None:
    """A second put of a checkpoint replaces its values and leaves the writes."""
    at = Line(face, thread).put({"a": 1}, checkpoint_id="1")
    face.put_writes(at, [("x", 1)], "task")
    Line(face, thread).put({"a": 2}, checkpoint_id="1")
    assert values_of(face, at) == {"a": 2}
    assert writes_of(face, at) == [("task", "x", 1)]


@pytest.mark.parametrize("method", ["put_writes", "aput_writes"])
def test_put_writes_names_the_task_path(face: Face, method: str) -> None:
    """LangGraph looks for `task_path` in the signature and drops the path otherwise."""
    parameters = inspect.signature(getattr(face.saver, method)).parameters
    assert list(parameters) == ["config", "writes", "task_id", "task_path"]
    assert parameters["task_path"].default == ""


@pytest.mark.parametrize("kind", [deque, tuple, list])
def test_writes_may_be_any_sequence(face: Face, at: RunnableConfig, kind: Any) -> None:
    """LangGraph's server hands over a deque."""
    face.put_writes(at, kind([("x", 1), ("y", [2])]), "task")
    assert writes_of(face, at) == [("task", "x", 1), ("task", "y", [2])]


def test_writes_need_the_id_of_their_checkpoint(face: Face, thread: str) -> None:
    """Writes for no checkpoint in particular are refused."""
    with pytest.raises((KeyError, ValueError, TypeError)):
        face.put_writes(config(thread), [("x", 1)], "task")


def test_32_threads_write_the_same_slots(mongo_face: Face, thread: str) -> None:
    """Racing writers of one slot raise nothing, and one document per slot is there."""
    at = Line(mongo_face, thread).put({"a": 1})
    faces = [mongo_face.another() for _ in range(4)]
    for face in faces:
        face.put_writes(at, [("__scheduled__", None)], "first")  # makes the indexes
    barrier = threading.Barrier(32)

    def write(n: int) -> None:
        barrier.wait(10)
        faces[n % 4].put_writes(at, [("x", n)], "ordinary")
        faces[n % 4].put_writes(at, [("x", n), ("__interrupt__", n)], "mixed")

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(write, range(32)))
    assert mongo_face.sibling(".writes").count_documents({}) == 4
    written = writes_of(mongo_face, at)
    assert [(task, channel) for task, channel, _ in written] == [
        ("first", "__scheduled__"),
        ("mixed", "__interrupt__"),
        ("mixed", "x"),
        ("ordinary", "x"),
    ]
    assert all(value in range(32) for _, _, value in written[1:])
