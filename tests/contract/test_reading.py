"""Contract, "Reading, listing, filtering": which checkpoints are found, and in which order."""

from __future__ import annotations

import random
import re
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from mongosaver.errors import IncompleteCheckpoint
from tests.contract.samples import (
    LARGE,
    Line,
    before,
    checkpoint,
    config,
    id_of,
    ids,
    metadata,
    place,
    values_of,
)

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from tests.faces import Face

# Ascending by code point; UTF-16 order and collations order them otherwise.
BY_CODE_POINT = [
    "!",
    "1",
    "10",
    "9",
    "A",
    "Z",
    "a",
    "a\u0301",
    "z",
    "é",
    "ﬀ",
    "\uffee",
    "\U0001f600",
]


def whole_thread(thread: Any) -> RunnableConfig:
    """Returns a config that names the thread and nothing else."""
    return {"configurable": {"thread_id": thread}}


def filled(face: Face, thread: Any, ns: str = "", n: int = 5) -> list[str]:
    """Puts checkpoints `id 0`, `id 1`... and returns their ids, newest first."""
    line = Line(face, thread, ns)
    for k in range(n):
        line.put({"a": k}, checkpoint_id=f"id {k}", metadata=metadata(step=k, odd=bool(k % 2)))
    return line.ids[::-1]


def test_latest_is_the_greatest_id_by_code_point(face: Face, thread: str) -> None:
    """Neither the time of writing nor a language's alphabet decides what is latest."""
    shuffled = random.Random(1).sample(BY_CODE_POINT, len(BY_CODE_POINT))
    for n, checkpoint_id in enumerate(shuffled):
        face.put(config(thread), checkpoint(checkpoint_id=checkpoint_id), metadata(), {})
        found = face.get_tuple(config(thread))
        assert found is not None
        assert id_of(found) == max(shuffled[: n + 1])
    assert ids(face.list(config(thread))) == BY_CODE_POINT[::-1]


def test_values_in_memory_follow_what_others_do(mongo_face: Face, thread: str) -> None:
    """Two savers that read and go on in turns see each other's values, and holes alike."""
    faces = mongo_face, mongo_face.another()
    line = Line(mongo_face, thread)
    text = [LARGE]
    for n in range(12):
        line.face = faces[n % 2 if n < 6 else 0]
        text = [*text, f"{n}" * 700]
        line.put({"text": text, "n": n})
        for face in (*faces, *faces):
            assert values_of(face, config(thread)) == {"text": text, "n": n}
    blobs = mongo_face.sibling(".blobs")
    assert blobs.delete_one({"head": {"$ne": b""}}).deleted_count
    assert blobs.delete_many({}).deleted_count
    for face in faces:
        with pytest.raises(IncompleteCheckpoint):
            face.get_tuple(config(thread))


def test_unknown_is_none_or_nothing(face: Face, thread: str) -> None:
    """An unknown thread, namespace or checkpoint reads as None, and lists as nothing."""
    filled(face, thread, n=1)
    unknown = [config(thread + "2"), config(thread, "other"), config(thread, "", "id 7")]
    for at in unknown:
        assert face.get_tuple(at) is None
        assert face.get(at) is None
        assert face.list(at) == []


def test_get_tuple_gives_everything(face: Face, thread: str) -> None:
    """A read gives config, checkpoint, metadata, parent and writes of the checkpoint asked for."""
    line = Line(face, thread, "inner")
    for n in range(3):
        at = line.put({"a": n}, metadata=metadata(step=n))
        face.put_writes(at, [("x", n)], "task")
    for n in range(3):
        found = face.get_tuple(line.at(n))
        assert found is not None
        assert found.config["configurable"] == line.at(n)["configurable"]
        assert found.checkpoint["channel_values"] == {"a": n}
        assert found.metadata["step"] == n
        assert found.parent_config == (line.at(n - 1) if n else None)
        assert found.pending_writes == [("task", "x", n)]
        assert face.get(line.at(n)) == found.checkpoint
        assert face.list(line.at(n)) == [found]


def test_checkpoint_keeps_every_field(face: Face, thread: str) -> None:
    """What is not a channel value is part of the checkpoint as it was put, unknown fields too."""
    made = cast("Any", checkpoint({"a": 1}, {"a": "1"}))
    made.update(
        versions_seen={"node": {"a": "1", "b.c": "2"}, "__input__": {}},
        updated_channels=["a"],
        pending_sends=[],
        of_the_future={"x": (1, 2)},
    )
    at = face.put(config(thread), made, metadata(), {"a": "1"})
    assert face.get(at) == {**made, "of_the_future": {"x": [1, 2]}}


def test_missing_namespace_is_the_root_for_get_and_put(face: Face, thread: str) -> None:
    """`get` and `put` without `checkpoint_ns` mean the namespace ""."""
    done = face.put(whole_thread(thread), checkpoint({"a": 1}, {"a": "1"}), metadata(), {"a": "1"})
    assert done["configurable"]["checkpoint_ns"] == ""
    Line(face, thread, "inner").put({"a": 2}, checkpoint_id="~")
    assert values_of(face, whole_thread(thread)) == {"a": 1}
    assert values_of(face, config(thread)) == {"a": 1}
    face.put_writes(
        {"configurable": {"thread_id": thread, "checkpoint_id": id_of(done)}}, [("x", 1)], "task"
    )
    assert face.list(config(thread))[0].pending_writes == [("task", "x", 1)]


def test_checkpoint_id_none_means_the_latest(face: Face, thread: str) -> None:
    """LangGraph's server gives `checkpoint_id: None` as an explicit key, in get, put and list."""
    none: RunnableConfig = {
        "configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": None}
    }
    done = face.put(none, checkpoint({"a": 1}, {"a": "1"}), metadata(), {"a": "1"})
    found = face.get_tuple(none)
    assert found is not None
    assert found.parent_config is None
    assert id_of(found) == id_of(done)
    filled(face, thread)
    assert len(face.list(none)) == 6
    assert len(face.list(none, before=none)) == 6


def test_list_of_a_thread_is_newest_first_within_each_namespace(face: Face, thread: str) -> None:
    """Without a namespace all are listed, one after another, by namespace and then newest first."""
    namespaces = ["inner:2", "", "Inner", "inner"]
    for ns in namespaces:
        filled(face, thread, ns, 3)
    filled(face, thread + "2", "", 2)
    listed = [place(row) for row in face.list(whole_thread(thread))]
    assert listed == [(thread, ns, f"id {n}") for ns in sorted(namespaces) for n in (2, 1, 0)]


def test_list_of_a_namespace_is_that_namespace(face: Face, thread: str) -> None:
    """With a namespace only that one is listed, also the root; a prefix is another namespace."""
    for ns in ("", "inner", "inner:2"):
        filled(face, thread, ns, 2)
    for ns in ("", "inner"):
        assert [place(r) for r in face.list(config(thread, ns))] == [
            (thread, ns, "id 1"),
            (thread, ns, "id 0"),
        ]


def test_list_none_is_all_threads(face: Face, thread: str) -> None:
    """`list(None)` gives every thread, newest first, then by thread and namespace."""
    expected = []
    for t in (thread + "b", thread + "a"):
        for ns in ("", "inner"):
            filled(face, t, ns, 3)
            expected += [(-n, t, ns) for n in range(3)]
    rows = [place(row) for row in face.list(None)]
    assert rows == [(t, ns, f"id {-n}") for n, t, ns in sorted(expected)]
    assert [place(row) for row in face.list(None, limit=5)] == rows[:5]


def test_list_with_a_checkpoint_id_is_that_checkpoint(face: Face, thread: str) -> None:
    """A `checkpoint_id` in the config lists just that one: in its namespace, or in each."""
    for ns in ("", "inner"):
        filled(face, thread, ns)
    assert [place(row) for row in face.list(config(thread, "inner", "id 2"))] == [
        (thread, "inner", "id 2")
    ]
    at: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_id": "id 2"}}
    assert [place(row) for row in face.list(at)] == [
        (thread, "", "id 2"),
        (thread, "inner", "id 2"),
    ]
    assert face.list(at, filter={"step": 3}) == []
    assert face.list(at, before=before("id 2")) == []
    assert face.list(at, limit=0) == []


def test_copies_of_an_id_are_listed_each(face: Face, thread: str) -> None:
    """The same checkpoint ids in several threads and namespaces are rows of their own."""
    places = [(thread + t, ns) for t in "abc" for ns in ("", "inner")]
    for t, ns in places:
        filled(face, t, ns, 3)
    rows = [place(row) for row in face.list(None)]
    assert rows == [(t, ns, f"id {n}") for n in (2, 1, 0) for t, ns in places]
    limited = [[place(row) for row in face.list(None, limit=n)] for n in range(len(rows) + 2)]
    assert limited == [rows[:n] for n in range(len(rows) + 2)]


def test_before_is_strictly_smaller(face: Face, thread: str) -> None:
    """`before` leaves out its own checkpoint and what is newer."""
    line = filled(face, thread)
    assert ids(face.list(config(thread), before=before("id 2"))) == line[3:]
    assert ids(face.list(config(thread), before=before("id 0"))) == []
    assert ids(face.list(config(thread), before=before("~"))) == line
    assert ids(face.list(config(thread), before=config(thread, "", "id 2"), limit=1)) == ["id 1"]


def test_before_need_not_exist(face: Face, thread: str) -> None:
    """`before` compares by value: with an id that is nowhere, or of another thread or namespace."""
    line = filled(face, thread)
    filled(face, thread, "inner")
    assert ids(face.list(config(thread), before=before("id 1!"))) == line[3:]
    elsewhere = config("no such thread", "no such namespace", "id 2")
    assert ids(face.list(config(thread), before=elsewhere)) == line[3:]
    assert [place(row)[1:] for row in face.list(whole_thread(thread), before=before("id 1"))] == [
        ("", "id 0"),
        ("inner", "id 0"),
    ]
    assert ids(face.list(None, before=before("id 1"))) == ["id 0", "id 0"]


def test_before_without_an_id_is_no_restriction(face: Face, thread: str) -> None:
    """A `before` that names no checkpoint leaves nothing out."""
    assert ids(face.list(config(thread), before=config(thread))) == []
    line = filled(face, thread)
    assert ids(face.list(config(thread), before=config(thread))) == line


def test_limit(face: Face, thread: str) -> None:
    """None is all, 0 nothing, and more than there are is all; it counts over namespaces."""
    line = filled(face, thread)
    assert ids(face.list(config(thread), limit=None)) == line
    assert ids(face.list(config(thread), limit=0)) == []
    assert ids(face.list(None, limit=0)) == []
    assert ids(face.list(config(thread), limit=1)) == line[:1]
    assert ids(face.list(config(thread), limit=99)) == line
    filled(face, thread, "inner")
    assert [place(row)[1:] for row in face.list(whole_thread(thread), limit=6)] == [
        *(("", i) for i in line),
        ("inner", "id 4"),
    ]


@pytest.mark.parametrize("limit", [-1, -100])
def test_negative_limit_is_refused(face: Face, thread: str, limit: int) -> None:
    """A negative limit is a ValueError."""
    filled(face, thread, n=1)
    with pytest.raises(ValueError, match="limit"):
        face.list(config(thread), limit=limit)


def test_limit_counts_rows_after_the_filter(face: Face, thread: str) -> None:
    """The limit is the number of rows that match, however many do not."""
    filled(face, thread, n=8)
    assert ids(face.list(config(thread), filter={"odd": True}, limit=3)) == ["id 7", "id 5", "id 3"]
    assert ids(face.list(config(thread), filter={"odd": False}, limit=9)) == [
        "id 6",
        "id 4",
        "id 2",
        "id 0",
    ]
    assert ids(face.list(config(thread), filter={"odd": True}, limit=1, before=before("id 5"))) == [
        "id 3"
    ]


def test_long_lists_have_no_gap_and_no_double(face: Face, thread: str) -> None:
    """A list longer than a page is complete, for each way to list, and values are right."""
    line = Line(face, thread)
    for n in range(215):
        line.put(
            {"n": n, "list": [LARGE[:2_000], n // 10]},
            metadata=metadata(step=n, even=n % 2 == 0),
            checkpoint_id=f"id {n:04}",
        )
    filled(face, thread, "inner", 3)
    filled(face, thread + "2", "", 3)
    newest_first = line.ids[::-1]
    rows = face.list(config(thread))
    assert ids(rows) == newest_first
    assert [row.checkpoint["channel_values"] for row in rows] == [
        line.expected[i] for i in newest_first
    ]
    assert ids(face.list(config(thread), limit=150)) == newest_first[:150]
    assert (
        ids(face.list(config(thread), filter={"even": True}, limit=104)) == newest_first[::2][:104]
    )
    assert ids(face.list(config(thread), filter={"step": 3.0})) == ["id 0003"]
    assert len(face.list(whole_thread(thread))) == 218
    everything = [place(row) for row in face.list(None)]
    assert len(everything) == len(set(everything)) == 221
    assert everything == sorted(sorted(everything), key=lambda p: p[2], reverse=True)


class Colour(str, Enum):
    """An enum that is text."""

    RED = "red"


class Shouting(str):
    """Text of another class."""

    __slots__ = ()


STORED: dict[str, dict[str, Any]] = {
    "list": {"k": ["a", "b"]},
    "element": {"k": "a"},
    "map xy": {"k": {"x": 1, "y": 2}},
    "map x": {"k": {"x": 1}},
    "nested path": {"a": {"b": 1}},
    "dotted key": {"a.b": 1},
    "dollar key": {"$where": 1, "$or": "x", "k$": 1},
    "operator value": {"k": {"$ne": 1}, "x": {"$gt": ""}},
    "empty key": {"": "k", "k": ""},
    "nul key": {"a\x00b": 1},
    "none": {"k": None},
    "zero": {"k": 0},
    "false": {"k": False},
    "one": {"k": 1},
    "one as float": {"k": 1.0},
    "true": {"k": True},
    "one as decimal": {"k": Decimal(1)},
    "text 1": {"k": "1"},
    "half": {"k": 0.5},
    "decimal half": {"k": Decimal("0.5")},
    "2**53": {"k": 2**53},
    "2**53 + 1": {"k": 2**53 + 1},
    "float 2**53": {"k": float(2**53)},
    "2**63": {"k": 2**63},
    "float 2**63": {"k": float(2**63)},
    "2**64 - 1": {"k": 2**64 - 1},
    "-2**63": {"k": -(2**63)},
    "infinity": {"k": float("inf")},
    "bytes": {"k": b"a"},
    "empty list": {"k": []},
    "empty map": {"k": {}},
    "uuid": {"k": UUID(int=1)},
    "uuid text": {"k": str(UUID(int=1))},
    "set": {"k": {1, 2}},
    "date": {"k": datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=timezone.utc)},
    "composed": {"k": "\u00e9"},
    "decomposed": {"k": "e\u0301"},
    "upper": {"k": "A"},
    "red": {"k": "red"},
    "long": {"k": "long " * 1000},
    "regex text": {"k": "a.*"},
    "pattern": {"k": re.compile("a.*")},
    "two keys": {"k": "a", "l": 2},
}

FILTERS: dict[str, dict[str, Any]] = {
    **{f"same as {name}": stored for name, stored in STORED.items()},
    "list in another order": {"k": ["b", "a"]},
    "list of the element": {"k": ["a"]},
    "tuple": {"k": ("a", "b")},
    "map in another order": {"k": {"y": 2, "x": 1}},
    "map with other numbers": {"k": {"x": True, "y": 2.0}},
    "path into a map": {"a.b": 1},
    "map with a path": {"a": {"b": 1}},
    "operator $ne": {"k": {"$ne": "nothing"}},
    "operator $gt": {"k": {"$gt": ""}},
    "operator $exists": {"k": {"$exists": True}},
    "operator $in": {"k": {"$in": ["a", 1, None]}},
    "operator $regex": {"k": {"$regex": ".*"}},
    "operator $or": {"$or": [{"k": 1}, {"k": {"$exists": True}}]},
    "operator $where": {"$where": "true"},
    "operator $expr": {"$expr": True},
    "compiled pattern": {"k": re.compile(".*")},
    "unknown key": {"no such key": 1},
    "unknown key is none": {"no such key": None},
    "known and unknown key": {"k": "a", "no such key": 1},
    "known key and none": {"k": "a", "l": None},
    "two keys in another order": {"l": 2, "k": "a"},
    "surrogate": {"k": "\ud800"},
    "surrogate key": {"\udc00": 1},
    "minus zero": {"k": -0.0},
    "2**200": {"k": 2**200},
    "not a number": {"k": float("nan")},
    "enum": {"k": Colour.RED},
    "text of another class": {"k": Shouting("a")},
    "other class": {"k": object()},
    "type": {"k": str},
    "key of another class": {Shouting("k"): "a"},
    "field of the document": {"thread_id": "x"},
    "other field of the document": {"search": None, "format": 1},
    "source": {"source": "loop"},
    "source and step": {"source": "loop", "step": 1, "parents": {}},
    "parents": {"parents": {}},
}


def test_filters_compare_as_python_does(face: Face, thread: str) -> None:
    """Each filter finds what InMemorySaver finds: equality of whole top-level values, in Python.

    A list never matches its element, maps are equal in any order and never by a part, a key with a
    dot is no path, a missing key equals None, 1 equals 1.0 and True, an operator is a value.
    """
    for name, stored in STORED.items():
        face.put(config(thread), checkpoint(checkpoint_id=name), metadata(**stored), {})
    everything = face.list(config(thread))
    assert len(everything) == len(STORED)
    wrong = {}
    for name, given in FILTERS.items():
        expected = [
            id_of(row)
            for row in everything
            if all(value == row.metadata.get(key) for key, value in given.items())
        ]
        found = ids(face.list(config(thread), filter=given))
        if found != expected:
            wrong[name] = (found, expected)
    assert wrong == {}


SAMPLES: list[tuple[dict[str, Any], list[str]]] = [
    ({"k": "a"}, ["element", "two keys"]),
    ({"k": ["a", "b"]}, ["list"]),
    ({"k": {"y": 2, "x": 1}}, ["map xy"]),
    ({"k": {"x": 1}}, ["map x"]),
    ({"a.b": 1}, ["dotted key"]),
    ({"k": 1}, ["one", "one as decimal", "one as float", "true"]),
    ({"k": True}, ["one", "one as decimal", "one as float", "true"]),
    ({"k": 0}, ["false", "zero"]),
    ({"k": 2**63}, ["2**63", "float 2**63"]),
    ({"k": {"$ne": 1}}, ["operator value"]),
    ({"k": "a", "l": None}, ["element"]),
    ({"no such key": 1}, []),
]


def test_filter_samples(face: Face, thread: str) -> None:
    """The traps of the contract, spelled out: MongoDB's own equality differs in each."""
    for name, stored in STORED.items():
        face.put(config(thread), checkpoint(checkpoint_id=name), metadata(**stored), {})
    for where in (config(thread), None):
        found = [(given, sorted(ids(face.list(where, filter=given)))) for given, _ in SAMPLES]
        assert found == SAMPLES


@pytest.mark.parametrize("none", [None, {}], ids=["None", "empty"])
def test_no_filter_is_everything(face: Face, thread: str, none: Any) -> None:
    """None and an empty filter leave nothing out."""
    line = filled(face, thread)
    assert ids(face.list(config(thread), filter=none)) == line


def test_filter_finds_what_the_config_added(face: Face, thread: str) -> None:
    """Metadata that came from the config, such as the run's id, are filtered like any."""
    at: RunnableConfig = {
        "configurable": {"thread_id": thread, "checkpoint_ns": "", "tenant": "t"},
        "metadata": {"run_id": "r1"},
    }
    done = face.put(at, checkpoint(), metadata(), {})
    face.put(config(thread), checkpoint(), metadata(), {})
    assert ids(face.list(config(thread), filter={"run_id": "r1", "tenant": "t"})) == [id_of(done)]


def test_list_may_be_broken_off(mongo_face: Face, thread: str) -> None:
    """Whoever breaks off a list leaves nothing open on the server, nor between two items."""
    line = Line(mongo_face, thread)
    for n in range(130):
        line.put({"n": n}, checkpoint_id=f"id {n:04}")
    admin = mongo_face.stage.plain.admin

    def open_cursors() -> int:
        status = admin.command("serverStatus")
        return status["metrics"]["cursor"]["open"]["total"]  # type: ignore[no-any-return]

    start = open_cursors()
    seen = []
    if mongo_face.awaited:

        async def broken_off() -> None:
            rows = mongo_face.saver.alist(config(thread))
            async for row in rows:
                seen.append((id_of(row), open_cursors()))
                if len(seen) == 2:
                    break
            await rows.aclose()  # type: ignore[attr-defined]

        mongo_face.run(broken_off())
    else:
        rows = mongo_face.saver.list(config(thread))
        for row in rows:
            seen.append((id_of(row), open_cursors()))
            if len(seen) == 2:
                break
        rows.close()  # type: ignore[attr-defined]
    assert seen == [("id 0129", start), ("id 0128", start)]
    assert open_cursors() == start
    assert len(mongo_face.list(config(thread))) == 130


def test_thread_may_change_while_it_is_listed(mongo_face: Face, thread: str) -> None:
    """Checkpoints put during a list neither disturb nor repeat the rows that follow."""
    line = Line(mongo_face, thread)
    for n in range(120):
        line.put({"n": n}, checkpoint_id=f"id {n:04}")
    if mongo_face.awaited:

        async def listed() -> list[str]:
            seen = []
            async for row in mongo_face.saver.alist(config(thread)):
                if not seen:
                    made = checkpoint(checkpoint_id="id 9999")
                    await mongo_face.saver.aput(config(thread), made, metadata(), {})
                seen.append(id_of(row))
            return seen

        seen = mongo_face.run(listed())
    else:
        seen = []
        for row in mongo_face.saver.list(config(thread)):
            if not seen:
                mongo_face.put(config(thread), checkpoint(checkpoint_id="id 9999"), metadata(), {})
            seen.append(id_of(row))
    assert seen == line.ids[::-1]
