"""Between objects and documents: where values go, what is searchable, and what is refused.

What the documents look like in the whole is the contract suite's affair, on a real server; here are
the decisions that no caller can see, and the documents that no mongosaver writes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import bson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from mongosaver import codec, segments
from mongosaver.codec import Blob, Draft, Facts, Hole, Inline, Payload
from mongosaver.errors import (
    ForeignDocument,
    FormatTooNew,
    IdentifierTypeError,
    IdentifierValueError,
    PayloadTooLarge,
)
from mongosaver.schema import (
    INLINE_ALWAYS,
    INLINE_BUDGET,
    INLINE_REPEATS,
    MAX_PAYLOAD,
    SMALL_WRITE,
    TAIL,
)
from tests import strategies
from tests.contract.samples import checkpoint, config, metadata
from tests.unit.tables import NOW

SERDE = JsonPlusSerializer()
AT = config("t", "n", "1")


def draft(
    values: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
    changed: Mapping[str, Any] | None = None,
    facts: Facts | None = None,
    **options: Any,
) -> Draft:
    """Returns the draft of checkpoint 2 on checkpoint 1; by default every channel is new."""
    made = checkpoint(values, versions, checkpoint_id="2")
    return codec.draft(
        options.get("serde", SERDE),
        options.get("at", AT),
        made,
        options.get("metadata", metadata()),
        dict((versions or {}) if changed is None else changed),
        {} if facts is None else facts,
    )


def encode(drafted: Draft, parent: Facts | None = None) -> codec.Encoded:
    """Returns the documents of a draft whose parent has these facts."""
    return codec.encode(drafted, codec.place(drafted, parent or {}), {}, NOW)


def sized(size: int) -> bytes:
    """Returns a value whose payload has exactly that many bytes: bytes are stored as they are."""
    assert SERDE.dumps_typed(b"a" * size) == ("bytes", b"a" * size)
    return b"a" * size


def inline(size: int, version: Any = "1", repeats: int = 0) -> Inline:
    """Returns the facts of a value of that many bytes in the parent's document."""
    return Inline(version, Payload("bytes", sized(size)), repeats)


def blob(version: Any = "1") -> Blob:
    """Returns the facts of a value in the blobs collection."""
    return Blob(version, b"k" * 16, 99_999, None)


# --- payloads


def test_payloads_are_plain_bytes() -> None:
    """A serializer that returns a bytearray, as some do, still makes a payload of bytes."""

    class Sloppy(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            type_, data = super().dumps_typed(obj)
            return type_, bytearray(data)  # type: ignore[return-value]

    payload = codec.dump(Sloppy(), [1])
    assert (payload.type, type(payload.data)) == ("msgpack", bytes)
    assert codec.load(SERDE, payload) == [1]


@pytest.mark.parametrize(
    ("serde", "plain"),
    [
        (JsonPlusSerializer(), True),
        (JsonPlusSerializer(pickle_fallback=True), True),
        (EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16), False),
        (
            type("Own", (JsonPlusSerializer,), {"dumps_typed": lambda self, o: ("own", b"")})(),
            False,
        ),
    ],
    ids=["plain", "with pickle", "encrypted", "own"],
)
def test_a_serializer_is_plain_or_it_is_not(serde: Any, plain: bool) -> None:
    """Only LangGraph's own bytes show what metadata says anyway."""
    assert codec.plain(serde) is plain


class Refusing(JsonPlusSerializer):
    """Refuses one value, wherever it is, with whatever error it was made with."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Serializes, or raises."""
        if obj == "no" or (isinstance(obj, dict) and "no" in obj.values()):
            raise self.error
        return super().dumps_typed(obj)


@pytest.mark.parametrize(
    ("error", "says"),
    [(ValueError("bad", 7), r"bad \(in {}\).*, 7\)$"), (KeyError(), r"\(in {}\)")],
    ids=["with a message", "without"],
)
def test_what_a_serializer_refuses_is_named(error: Exception, says: str) -> None:
    """The error stays the serializer's own, type and arguments, and names the part."""
    serde = Refusing(copy.copy(error))
    with pytest.raises(type(error), match=says.format("channel 'b'")):
        draft({"a": 1, "b": "no"}, {"a": "1", "b": "1"}, serde=serde)
    serde = Refusing(copy.copy(error))
    with pytest.raises(type(error), match=says.format("metadata key 'b'")):
        draft(metadata={"a": 1, "b": "no"}, serde=serde)
    serde = Refusing(copy.copy(error))
    with pytest.raises(type(error), match=says.format("channel 'b'")):
        write([("b", "no")], serde=serde)


def test_metadata_that_only_fails_as_a_whole_still_fails() -> None:
    """Where no single key is to blame, the error says what the serializer said."""

    class Whole(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            if isinstance(obj, dict) and {"a", "b"} <= obj.keys():
                raise ValueError("too much together")
            return super().dumps_typed(obj)

    with pytest.raises(ValueError, match=r"^too much together$"):
        draft(metadata={"a": 1, "b": 2}, serde=Whole())


# --- searching metadata


@pytest.mark.parametrize(
    ("given", "search", "rest"),
    [
        ({}, {}, []),
        ({"a": 1, "b": None, "c": True, "d": 0.5, "e": "x"}, ..., []),
        ({"a": 2**63 - 1, "b": -(2**63)}, ..., []),
        ({"a": 2**63}, {}, ["a"]),
        ({"a": [1], "b": {"x": 1}, "c": b"x", "d": 1}, {"d": 1}, ["a", "b", "c"]),
        ({"a": "x" * 512, "b": "x" * 513}, {"a": "x" * 512}, ["b"]),
        ({"a.b": 1, "$a": 1, "": 1, "a\0": 1}, {}, ["a.b", "$a", "", "a\0"]),
        ({"a": "\ud800"}, {}, ["a"]),
        ({"\ud800": 1, "a": 1}, {"a": 1}, ["*"]),
        ({"a$": 1, "é": 1}, ..., []),
    ],
)
def test_what_bson_holds_exactly_is_searchable(given: Any, search: Any, rest: list[str]) -> None:
    """Scalars under plain names are fields; the rest is named, so that a filter cannot miss it."""
    expected = given if search is ... else search
    assert codec.searchable(given, everything=True) == (expected, rest)


def test_searchable_fields_are_what_bson_gives_back() -> None:
    """A field reads as what it was, type and all."""
    given = {"a": 1, "b": 2**40, "c": 1.0, "d": True, "e": None, "f": "\u0301é", "g": -(2**63)}
    search, _ = codec.searchable(given, everything=True)
    read = bson.decode(bson.encode(search))
    assert {key: (value, isinstance(value, float)) for key, value in read.items()} == {
        key: (value, isinstance(value, float)) for key, value in given.items()
    }


def test_much_metadata_is_not_stored_twice() -> None:
    """Fields end at a budget; names of others go to the rest, where a star stands for too many."""
    search, rest = codec.searchable({f"k{n:03}": "x" * 500 for n in range(40)}, everything=True)
    assert len(search) < 20
    assert rest == ["*"]
    search, rest = codec.searchable({f"k{n:03}": [n] for n in range(40)}, everything=True)
    assert (search, rest) == ({}, [f"k{n:03}" for n in range(40)])
    search, rest = codec.searchable({"k" * 9_000: [], "small": 1, "list": []}, everything=True)
    assert (search, rest) == ({}, ["*"])


def test_secret_metadata_is_searchable_by_three_keys_only() -> None:
    """With an encrypting serializer fields are source, step and run; a star hides other names."""
    given = {"source": "loop", "step": 1, "run_id": "r", "user": "Ada", "name": [1]}
    assert codec.searchable(given, everything=False) == (
        {"source": "loop", "step": 1, "run_id": "r"},
        ["*"],
    )
    assert codec.searchable({"source": "loop"}, everything=False) == ({"source": "loop"}, [])
    assert codec.searchable({"user": "Ada", "source": ["x"]}, everything=False) == ({}, ["*"])


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        ({"a": "x"}, ["x"]),
        ({"a": None}, [None]),
        ({"a": 2}, [2]),
        ({"a": 1.5}, [1.5]),
        ({"a": 1}, [1, True]),
        ({"a": 0.0}, [0.0, False]),
        ({"a": True}, [1, True]),
        ({"a": False}, [0, False]),
        ({"a": float("inf")}, [float("inf")]),
    ],
)
def test_a_filter_narrows_by_what_python_holds_for_equal(filter: Any, wanted: list[Any]) -> None:
    """A number also finds the boolean that it equals, and whatever has no field stays in."""
    (condition,) = codec.narrowing(filter)
    here, elsewhere, foreign = condition["$or"]
    found = here["search.a"]["$in"]
    assert [(type(value), value) for value in found] == [(type(value), value) for value in wanted]
    assert elsewhere == {"search_rest": {"$in": ["a", "*"]}}
    assert foreign == {"format": {"$ne": 1}}


@pytest.mark.parametrize(
    "filter",
    [
        {},
        {"a": [1]},
        {"a": {"$ne": 1}},
        {"a": b"x"},
        {"a": float("nan")},
        {"a": 2**63},
        {"a": "\ud800"},
        {"a.b": 1},
        {"$where": "1"},
        {"": 1},
        {"a\0b": 1},
        {"\ud800": 1},
        {1: 1},
    ],
    ids=repr,
)
def test_what_mongodb_would_take_otherwise_does_not_reach_it(filter: dict[Any, Any]) -> None:
    """Operators, paths, containers and values that BSON lacks are compared in Python only."""
    assert codec.narrowing(filter) == []


def test_narrowing_takes_plain_text_only() -> None:
    """The text of a str subclass is sent, not what its class makes of it."""

    class Loud(str):
        def __str__(self) -> str:
            return "something else"

    (condition,) = codec.narrowing({"a": Loud("x")})
    (wanted,) = condition["$or"][0]["search.a"]["$in"]
    assert (type(wanted), wanted) == (str, "x")


@pytest.mark.parametrize(
    ("metadata", "filter", "equal"),
    [
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": True}, True),
        ({}, {"a": None}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": [1]}, {"a": 1}, False),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, True),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, False),
        ({"a": {"b": 1}}, {"a.b": 1}, False),
        ({"a.b": 1}, {"a.b": 1}, True),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
        ({"a": 1}, {}, True),
    ],
)
def test_filters_match_as_python_compares(
    metadata: dict[str, Any], filter: dict[str, Any], equal: bool
) -> None:
    """Whole values are compared, by keys of the top level."""
    assert codec.matches(metadata, filter) is equal


def _same(stored: Any, wanted: Any) -> bool:
    """MongoDB's equality for the few types that narrowing sends: numbers are no booleans."""
    if isinstance(stored, bool) or isinstance(wanted, bool):
        return stored is wanted
    return stored == wanted


def _selects(condition: dict[str, Any], search: dict[str, Any], rest: list[str]) -> bool:
    here, elsewhere, _ = condition["$or"]
    ((path, choice),) = here.items()
    value = search.get(path.removeprefix("search."))
    return any(_same(value, wanted) for wanted in choice["$in"]) or bool(
        set(rest) & set(elsewhere["search_rest"]["$in"])
    )


anything = st.one_of(strategies.metadata_values, strategies.values)
names = st.one_of(strategies.metadata_keys, st.text(max_size=3))


@given(
    st.dictionaries(names, anything, max_size=4),
    st.dictionaries(names, anything, max_size=2),
    st.booleans(),
)
@example({"a": True}, {"a": 1}, True)
@example({"a": 1}, {"a": True}, True)
@example({"a": [None]}, {"a": None}, True)
@example({"user": 0.0}, {"user": False}, False)
@example({"a": 2**63}, {"a": float(2**63)}, True)
def test_narrowing_never_excludes_what_matches(
    metadata: dict[str, Any], filter: dict[str, Any], everything: bool
) -> None:
    """Whatever the filter matches, the conditions select; a real server has the last word on it.

    The twin of this test on a server is in tests/contract/test_filter_property.py.
    """
    search, rest = codec.searchable(metadata, everything=everything)
    for wanted in (filter, *({key: value} for key, value in metadata.items())):
        if codec.matches(metadata, wanted):
            for condition in codec.narrowing(wanted):
                assert _selects(condition, search, rest)


@given(st.dictionaries(names, anything, max_size=4), st.booleans())
def test_searchable_metadata_are_bson_and_complete(
    metadata: dict[str, Any], everything: bool
) -> None:
    """Every key is a field or in the rest, and a document of the fields can be sent."""
    search, rest = codec.searchable(metadata, everything=everything)
    assert bson.encode({"search": search})
    assert all(search[key] == metadata[key] for key in search)
    assert "*" in rest or search.keys() | set(rest) == metadata.keys()


# --- where values go


def test_a_checkpoint_is_drafted_without_touching_it() -> None:
    """What the caller handed over is the same afterwards, and so is a fresh draft of it."""
    made = checkpoint({"a": [1]}, {"a": "1"}, checkpoint_id="2")
    told = metadata(user="Ada")
    before = copy.deepcopy((AT, made, told))
    for _ in range(2):
        drafted = codec.draft(SERDE, AT, made, told, {"a": "1"}, None)
        assert drafted.parent == "1"
        assert drafted.address == codec.Address("t", "n", "2")
        assert codec.load(SERDE, drafted.checkpoint) == {
            key: value for key, value in made.items() if key != "channel_values"
        }
    assert (AT, made, told) == before


def test_a_checkpoint_may_lack_versions_and_values() -> None:
    """A hand-made checkpoint without them is one without values."""
    drafted = codec.draft(
        SERDE, AT, cast("Any", {"id": "2", "channel_versions": None}), metadata(), {}, None
    )
    assert (drafted.versions, drafted.values) == ({}, {})


@pytest.mark.parametrize(
    ("checkpoint_id", "error"),
    [("", IdentifierValueError), (None, IdentifierTypeError), ({"$gt": ""}, IdentifierTypeError)],
)
def test_a_checkpoint_needs_an_id(checkpoint_id: Any, error: type[Exception]) -> None:
    """The new checkpoint's id is an identifier like any other."""
    with pytest.raises(error, match="checkpoint"):
        codec.draft(SERDE, AT, cast("Any", {"id": checkpoint_id}), metadata(), {}, None)


def test_the_run_is_taken_from_the_metadata() -> None:
    """A checkpoint carries the run's id, so that it can be deleted with it."""
    at = {"configurable": {**AT["configurable"], "run_id": "r"}}
    assert encode(draft(at=at)).document["run_id"] == "r"
    assert "run_id" not in encode(draft()).document


def test_unchanged_values_are_not_serialized_again() -> None:
    """A channel that keeps its parent's value costs nothing, and one with a new version does."""
    facts = {"same": inline(5, "1"), "newer": inline(5, "1"), "gone": inline(5, "1")}
    drafted = draft(
        {"same": sized(5), "newer": sized(6), "own": 1},
        {"same": "1", "newer": "2", "own": "1"},
        {"newer": "2", "own": "1"},
        facts,
    )
    assert drafted.values.keys() == {"newer", "own"}
    placed = codec.place(drafted, facts)
    assert placed.inline.keys() == {"same", "newer", "own"}
    assert placed.inline["same"].repeats == 1
    assert placed.inline["newer"].payload.data == sized(6)


def test_a_value_handed_over_without_facts_of_the_parent_is_kept_from_the_parent() -> None:
    """A draft from before the parent was read has the value twice; the parent's entry is taken."""
    versions = {"b": "1", "i": "1"}
    drafted = draft({"b": sized(20_000), "i": 1}, versions, {}, {})
    assert drafted.values.keys() == {"b", "i"}
    placed = codec.place(drafted, {"b": blob(), "i": inline(3)})
    assert (placed.kept, placed.blobs) == ({"b": blob()}, {})
    assert placed.inline == {"i": inline(3, repeats=1)}


@pytest.mark.parametrize(
    ("versions", "changed"),
    [
        ({"a": "2"}, {}),
        ({}, {}),
        ({"a": "1"}, {"a": "1"}),
    ],
    ids=["another version", "no version", "declared new"],
)
def test_only_the_same_version_keeps_the_parents_value(
    versions: dict[str, str], changed: dict[str, str]
) -> None:
    """A channel whose version differs, is gone or is declared new does not keep what it had."""
    drafted = draft({}, versions, changed, {"a": inline(5)})
    placed = codec.place(drafted, {"a": inline(5), "b": blob()})
    assert (placed.inline, placed.kept, placed.blobs) == ({}, {}, {})


@pytest.mark.parametrize(
    ("sizes", "blobs"),
    [
        ({"a": INLINE_BUDGET + 1}, {"a"}),
        ({"a": INLINE_BUDGET}, set()),
        ({"a": INLINE_BUDGET, "b": INLINE_ALWAYS}, set()),
        ({"a": INLINE_BUDGET, "b": INLINE_ALWAYS + 1}, {"a"}),
        ({"a": 7_000, "b": 6_000, "c": 5_000, "d": 4_000}, {"a"}),
        ({"a": 9_000, "b": 8_500, "c": 8_000, "d": 100}, {"a", "b"}),
        ({f"small {n}": INLINE_ALWAYS for n in range(200)}, set()),
    ],
)
def test_the_largest_leave_first(sizes: dict[str, int], blobs: set[str]) -> None:
    """Small values stay in the document in any number; larger ones up to a budget."""
    values = {name: sized(size) for name, size in sizes.items()}
    placed = codec.place(draft(values, dict.fromkeys(values, "1")), {})
    assert placed.blobs.keys() == blobs
    assert placed.inline.keys() == values.keys() - blobs


@pytest.mark.parametrize(
    ("size", "repeats", "leaves"),
    [
        (INLINE_ALWAYS + 1, INLINE_REPEATS, True),
        (INLINE_ALWAYS + 1, INLINE_REPEATS - 1, False),
        (INLINE_ALWAYS, 1_000, False),
    ],
)
def test_a_larger_value_that_stays_unchanged_leaves(size: int, repeats: int, leaves: bool) -> None:
    """After so many checkpoints unchanged a value goes to a blob, where it is stored once."""
    parent = {"a": inline(size, repeats=repeats)}
    placed = codec.place(draft({}, {"a": "1"}, {}, parent), parent)
    assert ("a" in placed.blobs) is leaves
    assert leaves or placed.inline["a"].repeats == repeats + 1


def test_the_same_bytes_in_a_new_version_count_as_unchanged() -> None:
    """A channel that is written again with the same value still leaves the document in the end."""
    parent = {"a": inline(5, "1", 3), "b": inline(5, "1", 3), "c": blob("1")}
    values = {"a": sized(5), "b": sized(6), "c": sized(7)}
    placed = codec.place(draft(values, dict.fromkeys(values, "2"), facts=parent), parent)
    assert {name: entry.repeats for name, entry in placed.inline.items()} == {
        "a": 4,
        "b": 0,
        "c": 0,
    }
    assert {entry.version for entry in placed.inline.values()} == {"2"}


def test_a_snapshot_is_always_a_blob() -> None:
    """A DeltaChannel's history looks for snapshots among the blobs, so a small one is there too."""
    drafted = draft({"a": _DeltaSnapshot([1]), "b": [1]}, {"a": "1", "b": "1"})
    placed = codec.place(drafted, {})
    assert (placed.blobs.keys(), placed.inline.keys()) == ({"a"}, {"b"})


@pytest.mark.parametrize("name", [None, 1, b"a"])
def test_a_channel_is_named_by_text(name: Any) -> None:
    """A channel or a write whose name is no text is refused."""
    with pytest.raises(IdentifierTypeError, match="channel's name"):
        draft({name: 1})
    with pytest.raises(IdentifierTypeError, match="channel's name"):
        write([(name, 1)])


# --- documents of a put


def test_a_draft_knows_its_size() -> None:
    """The size counts all payloads."""
    small, large = draft({"a": sized(10)}), draft({"a": sized(10), "b": sized(1_000)})
    assert large.size - small.size == 1_000


def test_a_put_says_where_everything_is() -> None:
    """The document lists what it holds, what blobs hold, and how much that is; so do the facts."""
    drafted = draft({"a": sized(10), "b": sized(20_000), "c": 1}, {"a": "1", "b": "7", "k": "1"})
    encoded = encode(drafted, {"k": blob()})
    document = encoded.document
    assert (document["thread_id"], document["checkpoint_ns"]) == ("t", "n")
    assert (document["checkpoint_id"], document["parent_checkpoint_id"]) == ("2", "1")
    assert (document["format"], document["created_at"]) == (1, NOW)
    assert {entry["c"] for entry in document["inline"]} == {"a", "c"}
    assert {entry["c"] for entry in document["blobs"]} == {"b"}
    assert document["bytes"] >= 20_010
    assert encoded.blob_bytes == 20_000
    assert [piece["channel"] for piece in encoded.blobs] == ["b"] * len(encoded.blobs)
    assert encoded.blobs[-1]["key"] == document["blobs"][0]["k"]
    assert encoded.facts.keys() == {"a", "b", "c"}
    assert encoded.facts["b"].version == "7"


def test_what_is_too_large_for_a_document_is_named() -> None:
    """Metadata or a checkpoint's own data above the limit is refused by name and size."""
    drafted = draft({"a": 1}, {"a": "1"})
    large = Payload("msgpack", b"\xc0" * (MAX_PAYLOAD + 1))
    for part, what in (("metadata", "metadata"), ("checkpoint", "the checkpoint without")):
        with pytest.raises(PayloadTooLarge, match=f"^{what}.* takes 16,.*no limit") as refused:
            encode(replace(drafted, **{part: large}))
        assert (refused.value.size, refused.value.limit) == (MAX_PAYLOAD + 1, MAX_PAYLOAD)


def test_a_put_is_read_as_it_was_written() -> None:
    """Documents and blobs make the same values, the same facts, and a config with its parent's."""
    values = {"a": sized(10), "b": ["x" * 200] * 100, "c": None, "d": bytearray(b"x")}
    drafted = draft(values, dict.fromkeys(values, "1"))
    encoded = encode(drafted)
    blobs = {piece["key"]: piece for piece in encoded.blobs}
    decoded = codec.decode(SERDE, encoded.document, blobs, [])
    assert decoded.row.checkpoint["channel_values"] == values
    assert decoded.row.config == config("t", "n", "2")
    assert decoded.row.parent_config == config("t", "n", "1")
    assert decoded.row.pending_writes == []
    assert decoded.row.metadata == metadata()
    assert decoded.facts == encoded.facts


def test_a_first_checkpoint_has_no_parent() -> None:
    """Without a parent there is no parent's config."""
    document = encode(draft(at=config("t"))).document
    assert codec.decode(SERDE, document, {}, []).row.parent_config is None


def test_a_value_in_memory_makes_all_versions_of_its_blobs() -> None:
    """Any tail is put behind what the blobs hold; the header without a tail comes with no tail."""
    long = ["x" * 200] * 100
    first = encode(draft({"b": long}, {"b": "1"}))
    (entry,) = (e for e in first.facts.values() if isinstance(e, codec.Blob))
    assert entry.stored is not None
    payloads = [SERDE.dumps_typed([*long, *more])[1] for more in ([], ["y"], ["z", "zz"])]
    tails = [
        None,
        *(segments.tail("msgpack", payload, entry.stored, 100) for payload in payloads[1:]),
    ]
    for tail, payload in zip(tails, payloads, strict=True):
        value = codec.Value(entry.stored, tail, payload)
        for other, wanted in zip(tails, payloads, strict=True):
            assert value.gives(other) == (other is not None or tail is None)
            if value.gives(other):
                assert value.version(other) == wanted


def test_a_value_in_memory_of_another_size_is_a_hole() -> None:
    """Bytes that are not those that the checkpoint counts are not taken for them."""
    encoded = encode(draft({"b": ["x" * 200] * 100}, {"b": "1"}))
    blobs = {piece["key"]: piece for piece in encoded.blobs}
    (value,) = codec.decode(SERDE, encoded.document, blobs, []).values
    recalled = {value.stored.key: value}
    whole = codec.decode(SERDE, encoded.document, {}, [], recalled=recalled)
    assert whole.row.checkpoint["channel_values"] == {"b": ["x" * 200] * 100}
    assert whole.facts == encoded.facts
    short = {value.stored.key: replace(value, data=value.data[:-1])}
    with pytest.raises(Hole):
        codec.decode(SERDE, encoded.document, {}, [], recalled=short)


# --- holes


def spoiled(**changes: Any) -> tuple[dict[str, Any], dict[bytes, dict[str, Any]]]:
    """Returns document and blobs of a put with one value in several segments."""
    encoded = encode(draft({"b": ["x" * 200] * 200}, {"b": "1"}))
    assert len(encoded.blobs) > 1
    return encoded.document, {piece["key"]: {**piece, **changes} for piece in encoded.blobs}


def test_a_missing_head_is_a_hole() -> None:
    """A checkpoint without one of its heads is not read."""
    document, blobs = spoiled()
    key = document["blobs"][0]["k"]
    del blobs[key]
    with pytest.raises(Hole) as hole:
        codec.decode(SERDE, document, blobs, [])
    assert (hole.value.channel, hole.value.key) == ("b", key)


def test_a_missing_segment_is_a_hole() -> None:
    """A value without one of its segments is not read, and is no base for a later one."""
    document, blobs = spoiled()
    head = blobs[document["blobs"][0]["k"]]
    del blobs[head["chain"][0]]
    with pytest.raises(Hole) as hole:
        codec.decode(SERDE, document, blobs, [])
    assert (hole.value.channel, hole.value.key) == ("b", head["chain"][0])
    with pytest.raises(Hole):
        codec.stored_of(head, "b", blobs)


def test_a_value_of_another_length_is_a_hole() -> None:
    """What is put together must be as long as the checkpoint says."""
    document, blobs = spoiled(data=b"cut")
    with pytest.raises(Hole):
        codec.decode(SERDE, document, blobs, [])


def test_a_blob_of_a_later_format_is_not_guessed_at() -> None:
    """Blobs and writes are checked as checkpoints are."""
    document, blobs = spoiled(format=2)
    with pytest.raises(FormatTooNew, match="blobs collection"):
        codec.decode(SERDE, document, blobs, [])
    (written,) = write([("a", 1)])
    with pytest.raises(FormatTooNew, match="writes collection"):
        codec.load_writes(SERDE, [{**written, "format": 2}])


@pytest.mark.parametrize(
    ("document", "error", "says"),
    [
        ({"format": 2}, FormatTooNew, "format 2; this mongosaver reads format 1. Install"),
        ({"format": 1.0}, ForeignDocument, "c holds a document"),
        ({"format": True}, ForeignDocument, "Its fields: format"),
        ({"format": 0}, ForeignDocument, "Its fields"),
        ({"format": "1"}, ForeignDocument, "Its fields"),
        ({}, ForeignDocument, "thread None"),
        (
            dict.fromkeys(["checkpoint", "metadata", "type", "thread_id"], "x"),
            ForeignDocument,
            "MongoDBSaver",
        ),
    ],
    ids=repr,
)
def test_documents_of_others_are_told(
    document: dict[str, Any], error: type[Exception], says: str
) -> None:
    """A missing, wrong or later format number is an error that says whose the document may be."""
    codec.check_format({"format": 1}, "c")
    with pytest.raises(error, match=says):
        codec.check_format(document, "c")


# --- pending writes


def write(
    writes: list[tuple[str, Any]],
    task_id: str = "task",
    task_path: str = "",
    *,
    at: Any = AT,
    serde: Any = SERDE,
) -> list[dict[str, Any]]:
    """Returns the documents of pending writes."""
    return codec.encode_writes(codec.draft_writes(serde, at, writes, task_id, task_path, NOW))


def test_writes_go_to_slots() -> None:
    """A special channel has its slot, whatever its position; in one call the last one wins."""
    special = "__error__"
    calls = [("a", 1), (special, "first"), ("b", 2), (special, "last"), ("a", 3)]
    drafted = codec.draft_writes(SERDE, AT, calls, "task", "path", NOW)
    slots = {
        d["idx"]: (d["channel"], codec.load(SERDE, Payload(d["type"], d["data"])))
        for d in codec.encode_writes(drafted)
    }
    assert slots == {
        0: ("a", 1),
        WRITES_IDX_MAP[special]: (special, "last"),
        2: ("b", 2),
        4: ("a", 3),
    }
    assert not drafted.first_stays
    assert codec.draft_writes(SERDE, AT, [("a", 1)], "task", "", NOW).first_stays


def test_a_draft_of_writes_knows_its_size() -> None:
    """The size counts all payloads, to decide whether the event loop should be spared the work."""
    drafted = codec.draft_writes(SERDE, AT, [("a", sized(10)), ("b", sized(1_000))], "t", "", NOW)
    assert drafted.size == 1_010


@pytest.mark.parametrize(
    ("where", "run"),
    [
        ({}, None),
        ({"metadata": {"run_id": "m"}}, "m"),
        ({"configurable": {"run_id": "c"}, "metadata": {"run_id": "m"}}, "c"),
        ({"metadata": None}, None),
    ],
)
def test_writes_carry_their_run(where: dict[str, Any], run: str | None) -> None:
    """The run's id comes from the config, so that its writes can go with it."""
    configurable = {**AT["configurable"], **where.get("configurable", {})}
    at = {**where, "configurable": configurable}
    (document,) = write([("a", 1)], at=at)
    assert document.get("run_id") == run
    assert ("run_id" in document) is (run is not None)


def test_writes_need_a_checkpoint() -> None:
    """Writes belong to a checkpoint; the error says so."""
    with pytest.raises(IdentifierValueError, match='put_writes needs the "checkpoint_id"'):
        write([("a", 1)], at=config("t"))


@pytest.mark.parametrize(
    ("task_id", "task_path", "error"),
    [(1, "", TypeError), ({"$ne": 1}, "", TypeError), ("a\0", "", ValueError), ("a", 1, TypeError)],
)
def test_task_ids_are_identifiers(task_id: Any, task_path: Any, error: type[Exception]) -> None:
    """Task ids and paths are text."""
    with pytest.raises(error, match="task_"):
        write([("a", 1)], task_id, task_path)


LARGE = bytes(range(256)) * (80 * 1024)  # 20 MB


def test_a_large_write_comes_in_parts_the_first_of_them_last() -> None:
    """A slot counts as written with its part 0, so that one is stored when the others are there."""
    documents = write([("a", LARGE), ("b", 1)])
    first, *others = sorted((d for d in documents if d["idx"] == 0), key=lambda d: d["part"])
    assert documents.index(first) > max(map(documents.index, others))
    assert sum(len(d["data"]) for d in others) == len(LARGE)
    assert (first["data"], sorted(first["parts"])) == (b"", [d["part"] for d in others])
    assert all(0 < d["part"] < 2**63 for d in others)
    assert all(len(bson.encode(d)) < 16 * 1024 * 1024 for d in documents)
    ((task, channel, value), second) = codec.load_writes(SERDE, reversed(documents))
    assert (task, channel, value == LARGE) == ("task", "a", True)
    assert second == ("task", "b", 1)


@pytest.mark.parametrize(("size", "parts"), [(SMALL_WRITE, 1), (SMALL_WRITE + 1, 2)])
def test_a_small_write_is_one_document(size: int, parts: int) -> None:
    """What a read takes along in one round trip is small; above a limit data lies in parts."""
    documents = write([("a", sized(size))])
    assert len(documents) == parts
    assert len(documents[-1]["data"]) <= SMALL_WRITE


def test_parts_of_two_payloads_do_not_mix() -> None:
    """Two values written to one slot have other part numbers; equal values have the same."""

    def numbers(value: bytes) -> list[int]:
        return [document["part"] for document in write([("a", value)])]

    other = b"\1" + LARGE[1:]
    assert numbers(LARGE) == numbers(LARGE)
    assert set(numbers(LARGE)) & set(numbers(other)) == {0}


def test_a_write_that_is_still_being_written_is_not_there_yet() -> None:
    """Parts without part 0 do not show; a part 0 without the others is a hole."""
    documents = write([("a", LARGE)])
    assert codec.load_writes(SERDE, documents[:-1]) == []
    with pytest.raises(Hole) as hole:
        codec.load_writes(SERDE, documents[1:])
    assert (hole.value.channel, hole.value.key) == ("a", documents[0]["part"].to_bytes(8, "big"))


def test_pending_writes_come_in_the_order_of_tasks() -> None:
    """Task path first, then task, then slot."""
    documents = [
        d
        for task, path in (("b", "2"), ("a", "2"), ("z", "1"))
        for d in write([("c", 1), ("d", 2)], task, path)
    ]
    rows = [found[:2] for found in codec.load_writes(SERDE, documents)]
    assert rows == [(task, channel) for task in ("z", "a", "b") for channel in ("c", "d")]


# --- checkpoints from before version 4


@pytest.mark.parametrize(
    ("v", "early"), [(1, True), (3, True), (4, False), (5, False), (None, False), ("1", False)]
)
def test_early_checkpoints_are_told_by_their_version(v: Any, early: bool) -> None:
    """Only checkpoints of a version below 4 say so in their document."""
    assert codec.is_early(v) is early
    document = encode(replace(draft(), v=v)).document
    assert document.get("v") == (v if early else None)


@pytest.mark.parametrize(
    ("versions", "version"),
    [({"a": "3", "b": "5"}, "5"), ({}, "made")],
)
def test_sends_of_the_parent_are_a_value(versions: dict[str, str], version: str) -> None:
    """Queued sends become a channel, with the greatest version or a first one."""
    document = encode(draft({}, versions)).document
    parents = write([(codec.TASKS, "send"), ("a", 1), (codec.TASKS, "second")])
    sends = codec.sends_among(parents, "1")
    assert codec.sends_among(parents, "2") == []
    row = codec.decode(SERDE, document, {}, [], sends, next_version=lambda *_: "made").row
    assert row.checkpoint["channel_values"] == {codec.TASKS: ["send", "second"]}
    assert row.checkpoint["channel_versions"] == {**versions, codec.TASKS: version}


def test_metadata_that_were_loaded_before_are_not_loaded_again() -> None:
    """Metadata that the caller has are taken as they are."""
    document = {**encode(draft()).document, "metadata": b"\xc1"}
    assert codec.decode(SERDE, document, {}, [], metadata={"a": 1}).row.metadata == {"a": 1}


# --- tails: what a stored value has added waits in the checkpoint documents


def grown(items: int) -> list[str]:
    """Returns a list that is stored as a blob, and grows by 100 bytes an item."""
    return [f"{number:098}" for number in range(items)]


def put(values: Mapping[str, Any], version: str, parent: Facts, **changed: Any) -> codec.Encoded:
    """Returns the documents of a put of these values, on a parent whose blobs are known."""
    versions = dict.fromkeys(values, version)
    drafted = draft(values, versions, changed or versions, parent)
    placed = codec.place(drafted, parent)
    bases = {
        name: entry.stored
        for name, entry in parent.items()
        if isinstance(entry, Blob) and entry.stored is not None and name in placed.blobs
    }
    return codec.encode(drafted, placed, bases, NOW)


def test_a_small_addition_waits_in_the_document() -> None:
    """A value that grew a little needs no new blob: its tail is in the checkpoint, and is read."""
    first = put({"chat": grown(300)}, "1", {})
    second = put({"chat": grown(310)}, "2", first.facts)
    third = put({"chat": grown(320)}, "3", second.facts)
    assert len(first.blobs) > 1
    assert second.blobs == third.blobs == []
    blobs = {blob["key"]: blob for blob in first.blobs}
    for encoded, items in ((second, 310), (third, 320)):
        (entry,) = encoded.document["blobs"]
        assert entry["k"] == first.document["blobs"][0]["k"]
        assert len(entry["d"]) == 100 * (items - 300)
        decoded = codec.decode(SERDE, encoded.document, blobs, [])
        assert decoded.row.checkpoint["channel_values"] == {"chat": grown(items)}
        assert decoded.facts == encoded.facts
        assert encoded.document["bytes"] > entry["size"] + len(entry["d"])


def test_a_large_addition_or_another_value_is_a_new_blob() -> None:
    """A tail has a limit, and only what continues a value has one."""
    first = put({"chat": grown(300)}, "1", {})
    assert put({"chat": grown(300 + TAIL // 100 + 1)}, "2", first.facts).blobs
    assert put({"chat": [*grown(299), "edited"]}, "2", first.facts).blobs
    assert put({"chat": grown(250)}, "2", first.facts).blobs
    assert put({"chat": sized(20_000)}, "2", first.facts).blobs


def test_tails_share_the_room_of_inline_values() -> None:
    """Where many values grow at once, those that find no more room become blobs."""
    values = {f"chat {n}": grown(300) for n in range(8)}
    first = put(values, "1", {})
    second = put({name: grown(328) for name in values}, "2", first.facts)
    tails = [entry for entry in second.document["blobs"] if "d" in entry]
    assert 0 < len(tails) < len(values)
    assert sum(len(entry["d"]) for entry in tails) <= INLINE_BUDGET
    assert {blob["channel"] for blob in second.blobs} == {
        entry["c"] for entry in second.document["blobs"] if "d" not in entry
    }


def test_a_tail_that_stays_unchanged_becomes_a_blob() -> None:
    """A tail is repeated in so many checkpoints; then it is stored with its value, once."""
    first = put({"chat": grown(300)}, "1", {})
    encoded = put({"chat": grown(310)}, "2", first.facts)
    for repeats in range(1, INLINE_REPEATS + 1):
        encoded = put({"chat": grown(310)}, "2", encoded.facts, other="1")
        assert encoded.document["blobs"][0]["n"] == repeats
    encoded = put({"chat": grown(310)}, "2", encoded.facts, other="1")
    assert {blob["channel"] for blob in encoded.blobs} == {"chat"}
    assert "d" not in encoded.document["blobs"][0]


def test_a_tail_that_stays_unchanged_is_kept_where_its_value_is_not_handed_over() -> None:
    """Nothing is lost of a value that LangGraph does not hand over again."""
    first = put({"chat": grown(300)}, "1", {})
    facts: Facts = put({"chat": grown(310)}, "2", first.facts).facts
    for _ in range(INLINE_REPEATS + 3):
        drafted = draft({}, {"chat": "2"}, {"other": "1"}, facts)
        encoded = codec.encode(drafted, codec.place(drafted, facts), {}, NOW)
        facts = encoded.facts
    assert len(encoded.document["blobs"][0]["d"]) == 1_000
    assert encoded.blobs == []


def test_a_small_tail_may_stay_for_ever() -> None:
    """A tail of a few bytes costs less than a blob."""
    first = put({"chat": grown(300)}, "1", {})
    encoded = put({"chat": grown(302)}, "2", first.facts)
    for _ in range(INLINE_REPEATS + 3):
        encoded = put({"chat": grown(302)}, "2", encoded.facts, other="1")
    assert encoded.blobs == []
