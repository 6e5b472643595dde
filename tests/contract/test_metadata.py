"""Contract, "Metadata": a faithful copy of what the serializer keeps, whatever BSON can hold."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import bson
import pytest
from langgraph.checkpoint.base import get_serializable_checkpoint_metadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from tests.contract.samples import checkpoint, config, id_of, ids, metadata
from tests.faces import STORED

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from tests.faces import Face

SERDE = JsonPlusSerializer()


def nested(depth: int) -> dict[str, Any]:
    """Returns maps in maps, deeper than BSON allows."""
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"in": inner}
    return inner


EXACT: dict[str, Any] = {
    "decimal": Decimal("1.100"),
    "set": {1, "2"},
    "frozenset": frozenset({1}),
    "uuid": UUID(int=5),
    "microseconds": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc),
    "zone": datetime(2026, 1, 2, 3, 4, 5, 1, tzinfo=timezone(timedelta(hours=-9.5))),
    "named zone": ZoneInfo("Europe/Paris"),
    "naive": datetime(2026, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001 - states do hold such
    "year 1": datetime(1, 1, 1, tzinfo=timezone.utc),
    "timedelta": timedelta(microseconds=1),
    "tuple": (1, (2, 3)),
    "bytes": b"\x00\xff",
    "int above BSON": 2**63,
    "largest int": 2**64 - 1,
    "smallest int": -(2**63),
    "float": 0.1 + 0.2,
    "infinity": float("inf"),
    "whole float": 1.0,
    "true": True,
    "pattern": re.compile("a", re.IGNORECASE),
    "deep": nested(150),
    "text with NUL inside": ["a\x00b"],
    "surrogate": "\ud800",
    "surrogate inside": ["\ud800"],
    "many keys": {f"key {n}": n for n in range(3_000)},
    "dots inside": {"a.b": {"c.d": 1}},
    "dollars inside": {"$set": {"$ne": 1}, "$": 2},
    "NUL in a key inside": {"\x00": 1, "a\x00b": 2},
    "empty key inside": {"": {"": 1}},
    "int keys": {1: "a"},
    "a.b": "dot",
    "$set": "dollar",
    "$where": {"$gt": ""},
    "a\x00b": "NUL",
    "": "empty",
    "_id": "id",
    "__proto__": "proto",
    "format": 99,
    "long": "long " * 5_000,
}


def test_metadata_are_kept_exactly(face: Face, thread: str) -> None:
    """What the serializer keeps comes back equal and of the same type, under the same key."""
    for name, value in EXACT.items():
        given = metadata(**{name: value})
        face.put(config(thread), checkpoint(checkpoint_id=f"id {name!a}"), given, {})
    listed = {id_of(row): cast("dict[str, Any]", row.metadata) for row in face.list(config(thread))}
    reader = face.another()
    wrong = {}
    for name, value in EXACT.items():
        expected = SERDE.loads_typed(SERDE.dumps_typed(dict(metadata(**{name: value}))))
        found = reader.get_tuple(config(thread, "", f"id {name!a}"))
        assert found is not None
        for seen in (cast("dict[str, Any]", found.metadata), listed[f"id {name!a}"]):
            if seen != expected or type(seen[name]) is not type(expected[name]):
                wrong[name] = seen
    assert wrong == {}


def test_metadata_are_kept_all_at_once(face: Face, thread: str) -> None:
    """Metadata with every odd key and value together are kept, and filters find each."""
    given = metadata(**EXACT)
    at = face.put(config(thread), checkpoint(), given, {})
    found = face.get_tuple(at)
    assert found is not None
    kept = SERDE.loads_typed(SERDE.dumps_typed(dict(given)))
    assert found.metadata == kept
    missed = [key for key in kept if ids(face.list(config(thread), filter={key: kept[key]})) == []]
    assert missed == []


def test_metadata_are_the_serializable_ones(face: Face, thread: str) -> None:
    """`get_serializable_checkpoint_metadata`: keys of the config are added, `writes` left out."""
    at: RunnableConfig = {
        "configurable": {
            "thread_id": thread,
            "checkpoint_ns": "",
            "checkpoint_map": {"": "x"},
            "__pregel_read": lambda: None,
            "tenant": "te\x00nant",
            "count": 3,
            "flag": True,
            "ratio": 0.5,
            "function": print,
            "object": object(),
            "step": 77,
        },
        "metadata": {"run_id": "r1", "langgraph_step": 4, "list": [1], "tenant": "first"},
    }
    given = cast("Any", {"source": "update", "step": 3, "writes": {"n": 1}, "note": "a\x00b"})
    done = face.put(at, checkpoint(), given, {})
    expected = get_serializable_checkpoint_metadata(at, given)
    assert expected == {
        "source": "update",
        "step": 3,
        "note": "ab",
        "run_id": "r1",
        "tenant": "first",
        "count": 3,
        "flag": True,
        "ratio": 0.5,
    }
    found = face.get_tuple(done)
    assert found is not None
    assert found.metadata == expected


def test_empty_metadata_are_legal(face: Face, thread: str) -> None:
    """Without metadata a checkpoint has none, and a filter for None finds it."""
    at = face.put(config(thread), checkpoint(), {}, {})
    found = face.get_tuple(at)
    assert found is not None
    assert found.metadata == {}
    assert ids(face.list(config(thread), filter={"source": None})) == [id_of(at)]


REFUSED: dict[str, Any] = {
    "too large int": 2**64,
    "too small int": -(2**63) - 1,
    "object": object(),
    "in a list": [1, [object()]],
    "in a map": {"x": {"y": 2**64}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_serializer_refuses_raises_with_the_key(
    face: Face, thread: str, name: str
) -> None:
    """The error is of the type that InMemorySaver raises, and says which key it is about."""
    given = metadata(good="x", **{name: REFUSED[name]}, better="y")
    with pytest.raises(Exception) as expected:  # noqa: PT011 - which one is what we ask
        InMemorySaver().put(config(thread), checkpoint(), given, {})
    with pytest.raises(type(expected.value), match=re.escape(name)) as raised:
        face.put(config(thread), checkpoint(), given, {})
    assert "good" not in str(raised.value)
    assert face.get_tuple(config(thread)) is None


def test_large_metadata_are_not_stored_twice(mongo_face: Face, thread: str) -> None:
    """2 MB of metadata take 2 MB: the fields for searching leave large values out."""
    size = 2_000_000
    given = metadata(text="t" * (size // 2), parts=["p" * 1_000] * (size // 2_000), small="s")
    at = mongo_face.put(config(thread), checkpoint(), given, {})
    stored = sum(
        len(bson.encode(document))
        for suffix in STORED
        for document in mongo_face.sibling(suffix).find()
    )
    assert stored < size * 1.1
    found = mongo_face.get_tuple(at)
    assert found is not None
    assert found.metadata == given
    for key in ("text", "parts", "small"):
        wanted = {key: cast("dict[str, Any]", given)[key]}
        assert ids(mongo_face.list(config(thread), filter=wanted)) == [id_of(at)]


def test_metadata_can_be_read_in_a_shell(mongo_face: Face, thread: str) -> None:
    """What BSON holds exactly is searchable by people, under `search`."""
    given = metadata(user="ada", score=0.5, **{"a.b": 1})
    mongo_face.put(config(thread), checkpoint(), given, {})
    found = mongo_face.collection.find_one({"search.user": "ada", "search.step": 1})
    assert found is not None
    assert found["search"]["source"] == "loop"
    assert found["format"] == 1
