"""Payloads as plain data: whatever is stored is read, and nothing of it is imported or run."""

from __future__ import annotations

import collections
import dataclasses
import enum
import ipaddress
import json
import pathlib
import pickle
import re
import sys
import uuid
import zoneinfo
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Send

from mongosaver import MongoSaver
from mongosaver.cli.plain import (
    PlainSerializer,
    Sealed,
    Typed,
    brief,
    jsonable,
    safe,
    serializer,
    size,
)
from mongosaver.errors import ConfigurationError, StateError, UsageError
from tests import strategies

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Place

SERDE = JsonPlusSerializer()
STRICT = PlainSerializer()
SHOWING = PlainSerializer(show=True)
KEY = b"sixteen letters."
ENCRYPTING = EncryptedSerializer.from_pycryptodome_aes(key=KEY)


class Colour(enum.Enum):
    """An enumeration of the application's."""

    RED = "red"


@dataclasses.dataclass(frozen=True)
class Point:
    """A class of the application's."""

    x: int
    y: Any


def plain(value: Any) -> Any:
    """A value as the command sees it."""
    return STRICT.loads_typed(SERDE.dumps_typed(value))


objects = st.one_of(
    st.datetimes(timezones=st.sampled_from([None, timezone.utc, timezone(timedelta(hours=-5))])),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.ip_addresses(),
    st.sampled_from(
        [
            Colour.RED,
            Point(1, Colour.RED),
            pathlib.Path("/a/b"),
            pathlib.Path("c"),
            re.compile("a.*", re.IGNORECASE),
            zoneinfo.ZoneInfo("Europe/Berlin"),
            time(1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
            ipaddress.ip_network("10.0.0.0/8"),
            frozenset({1, "a"}),
            collections.deque([1, Colour.RED]),
            HumanMessage("hi", id="1"),
            AIMessage("", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "x"}]),
            ToolMessage("out", tool_call_id="x"),
            Send("node", {"a": HumanMessage("deep")}),
            Interrupt("well?", id="i"),
            Command(resume=1),
            _DeltaSnapshot([1, HumanMessage("kept")]),
            ValueError("wrong"),
        ]
    ),
)
keys = st.one_of(st.text(max_size=4), st.integers(-9, 9), st.uuids(), st.dates(), st.none())
values = st.recursive(
    st.one_of(strategies.scalars, objects),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(Point, st.integers(0, 9), inner),
    ),
    max_leaves=8,
)


@given(values)
def test_whatever_langgraph_stores_is_read_without_importing_anything(value: Any) -> None:
    """It becomes plain data, which is printable text on one line, and JSON."""
    dumped = SERDE.dumps_typed(value)
    before = set(sys.modules)
    loaded = STRICT.loads_typed(dumped)
    text, data = brief(loaded, 100), json.dumps(jsonable(loaded))
    assert set(sys.modules) == before
    assert text.isprintable()
    assert len(text) <= 101
    assert "\n" not in data


@given(strategies.values)
def test_plain_values_stay_what_they_are(value: Any) -> None:
    """What has no type of its own is read as LangGraph's serializer reads it."""
    assert plain(value) == SERDE.loads_typed(SERDE.dumps_typed(value))


@given(st.sampled_from(["msgpack", "json", "pickle", "", "x+y", "msgpack+aes"]), st.binary())
def test_any_bytes_at_all_are_shown(type_: str, payload: bytes) -> None:
    """Who shows gets a value for everything; who decides gets a value or a `StateError`."""
    shown = SHOWING.loads_typed((type_, payload))
    assert brief(shown).isprintable()
    try:
        assert STRICT.loads_typed((type_, payload)) == shown or shown != shown
    except StateError:
        assert isinstance(shown, Sealed)


def ext(code: int, *parts: Any) -> bytes:
    """A payload as LangGraph would write it for an object."""
    return ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(parts)))


@pytest.mark.parametrize("code", range(10))
def test_a_module_that_a_payload_names_is_not_imported(
    code: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that is there nor one that is not, nor is a function of it called."""
    ran = tmp_path / "ran"
    (tmp_path / "trap_for_readers.py").write_text(f"open({str(ran)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for parts in (
        ("trap_for_readers", "Trap", ["x"], "fromisoformat"),
        ("no_such_module_at_all", "Trap", {"a": 1}, "f"),
        ("os", "system", f"touch {ran}", "f"),
        ("pathlib", "Path", [str(ran)], "touch"),
    ):
        shown = SHOWING.loads_typed(("msgpack", ext(code, *parts)))
        assert brief(shown).isprintable()
        nested = SHOWING.loads_typed(("msgpack", ext(code, "a", "b", [ext(code, *parts)])))
        assert brief(nested).isprintable()
    assert "trap_for_readers" not in sys.modules
    assert not ran.exists()


def test_pickle_is_never_loaded(tmp_path: pathlib.Path) -> None:
    """It is told by its size; where something depends on it, that is an error."""

    class Trap:
        def __reduce__(self) -> Any:
            return pathlib.Path.touch, (tmp_path / "ran",)

    payload = pickle.dumps(Trap())
    assert str(SHOWING.loads_typed(("pickle", payload))) == f"pickle, {len(payload)} bytes"
    with pytest.raises(StateError, match="pickle"):
        STRICT.loads_typed(("pickle", payload))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (b"x" * 2048, "binary, 2.0 KB"),
        (bytearray(b"x"), "binary, 1 byte"),
        ({"a": [1, 2.5, "b"]}, '{a: [1, 2.5, "b"]}'),
        (datetime(2026, 1, 2, 3, tzinfo=timezone.utc), 'datetime("2026-01-02T03:00:00+00:00")'),
        (date(26, 1, 2), 'date("0026-01-02")'),
        (time(1, 2, 3, 4), 'time("01:02:03.000004")'),
        (time(1, tzinfo=timezone(timedelta(hours=-5))), 'time("01:00:00 UTC-5:00")'),
        (time(1, tzinfo=timezone.utc), 'time("01:00:00 UTC")'),
        (timezone(timedelta(hours=5, minutes=30)), 'timezone("UTC+5:30")'),
        (timedelta(days=2, seconds=1), 'timedelta("48:00:01")'),
        (-timedelta(seconds=1), 'timedelta("-0:00:01")'),
        (-timedelta(milliseconds=1), 'timedelta("-0:00:00.001000")'),
        (uuid.UUID(int=1), 'UUID("00000000-0000-0000-0000-000000000001")'),
        (Decimal("1.50"), 'Decimal("1.50")'),
        ({1}, "set(1)"),
        (collections.deque("ab"), 'deque("a", "b")'),
        (pathlib.Path("/a/b"), f'{type(pathlib.Path()).__name__}("/a/b")'),
        (Colour.RED, 'Colour("red")'),
        (Point(1, None), "Point(x=1)"),
        (HumanMessage("hi", id="7"), 'HumanMessage(content="hi", id="7")'),
        (Send("node", {"a": 1}), 'Send("node", {a: 1})'),
        (_DeltaSnapshot([1]), "DeltaSnapshot([1])"),
        ({1: 1, (1, 2): 2, date(2026, 1, 2): 3}, "{1: 1, [1, 2]: 2, 2026-01-02: 3}"),
        ("x" * 500, f'"{"x" * 80}…" (500 characters)'),
        ({"k" * 90: 1}, f"{{{'k' * 79}…: 1}}"),
        (["x" * 90, 1], f'["{"x" * 90}", 1]'),
    ],
)
def test_values_are_readable(value: Any, text: str) -> None:
    """A line says the type's name and what the value is made of, and how long it is if cut."""
    assert brief(plain(value), 100) == text


def test_types_are_named_with_their_modules() -> None:
    """JSON has the whole name of a type beside its value, and sizes for what is binary."""
    message = jsonable(plain(HumanMessage("hi")))
    assert message["__type__"] == "langchain_core.messages.human.HumanMessage"
    assert message["value"]["content"] == "hi"
    assert jsonable(plain([b"xyz", float("inf")])) == [{"__type__": "bytes", "size": 3}, "inf"]
    assert jsonable(plain(_DeltaSnapshot([1])))["value"] == [1]
    assert jsonable(plain({1: "x" * 9}), longest=4) == {"1": "xxxx…"}
    assert jsonable(Sealed("pickle", 9))["size"] == 9


def test_arrays_are_told_by_their_shape() -> None:
    """Their module is not needed for it."""
    payload = ext(6, "<f8", [3, 4], "C", b"\0" * 96)
    assert brief(STRICT.loads_typed(("msgpack", payload))) == (
        'ndarray("dtype <f8, shape (3, 4), 96 bytes")'
    )


def test_objects_in_json_are_taken_apart() -> None:
    """LangChain's envelopes, also LangGraph's former ones, name a type as well."""
    envelope = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["ls"]}
    loaded = STRICT.loads_typed(("json", json.dumps([envelope, {"id": 1}]).encode()))
    assert loaded == [Typed("os.system", {"args": ["ls"]}), {"id": 1}]
    envelope |= {"args": None, "kwargs": {"a": 1}}
    loaded = STRICT.loads_typed(("json", json.dumps(envelope).encode()))
    assert loaded == Typed("os.system", {"a": 1})


def test_arguments_that_a_type_cannot_have_are_shown() -> None:
    """As they are, under the type's whole name; an object may also be the key of a map."""
    odd = STRICT.loads_typed(("msgpack", ext(1, "datetime", "date", ["x"])))
    assert odd == Typed("datetime.date", ["x"])
    assert {odd: 1}[Typed("datetime.date", ["x"])] == 1
    assert jsonable({1, 2}) == "{1, 2}"


def test_an_extension_that_is_not_known_is_told() -> None:
    """Alone it is a payload that cannot be read; within another value it is that part of it."""
    later = ormsgpack.Ext(99, b"abc")
    alone = ormsgpack.packb(later)
    told = "extension 99, which is not known, 3 bytes"
    assert str(SHOWING.loads_typed(("msgpack", alone))) == told
    with pytest.raises(StateError, match="a later LangGraph"):
        STRICT.loads_typed(("msgpack", alone))
    within = STRICT.loads_typed(("msgpack", ormsgpack.packb({"a": later})))
    assert brief(within) == f"{{a: <{told}>}}"


def test_objects_far_too_deep_are_told_by_their_size() -> None:
    """Nesting ends where no state has any."""
    payload = ormsgpack.packb(1)
    for _ in range(3_000):
        payload = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(["m", "n"])[:-2] + payload))
    assert brief(SHOWING.loads_typed(("msgpack", payload))).isprintable()
    snapshots = ormsgpack.packb(1)
    for _ in range(200):
        snapshots = ormsgpack.packb(ormsgpack.Ext(7, snapshots))
    assert "objects deep" in brief(SHOWING.loads_typed(("msgpack", snapshots)), 5_000)


def test_a_terminal_is_given_nothing_that_it_obeys() -> None:
    """Controls, marks that turn the text around and lone surrogates are shown as escapes."""
    text = safe("a\x1b[31m\n\t\x9b\u202e\u2028\ud800\U000e0001 é [red]x[/] 日本")
    assert text == (r"a\x1b[31m\n\t\x9b\u202e\u2028\ud800\U000e0001" + " é [red]x[/] 日本")
    assert brief({"\x1b": Typed("a\x1b.b\x07", {"\n": "\r"})}) == r'{\x1b: b\x07(\n="\r")}'


def test_sizes_are_in_units_of_1024() -> None:
    """From bytes to terabytes."""
    assert [size(n) for n in (1, 1023, 1024, 3 * 2**20, 2**30, 2**50)] == [
        "1 byte",
        "1023 bytes",
        "1.0 KB",
        "3.0 MB",
        "1.0 GB",
        "1024.0 TB",
    ]


def test_nothing_is_written() -> None:
    """What has become plain would be stored as something else."""
    with pytest.raises(UsageError, match="HumanMessage"):
        STRICT.dumps_typed(HumanMessage("hi"))


# --- encryption


def test_what_is_encrypted_says_so() -> None:
    """Shown by cipher and size; where something depends on it, an error names the variable."""
    type_, payload = ENCRYPTING.dumps_typed({"a": 1})
    assert str(SHOWING.loads_typed((type_, payload))) == f"encrypted with aes, {len(payload)} bytes"
    with pytest.raises(StateError, match="LANGGRAPH_AES_KEY"):
        STRICT.loads_typed((type_, payload))


def test_the_key_in_the_environment_decrypts() -> None:
    """What was encrypted is then plain data like any other, snapshots too."""
    reading = serializer({"LANGGRAPH_AES_KEY": KEY.decode()})
    assert reading.loads_typed(ENCRYPTING.dumps_typed({"a": Colour.RED})) == plain(
        {"a": Colour.RED}
    )
    assert reading.loads_typed(ENCRYPTING.dumps_typed(_DeltaSnapshot([1]))) == _DeltaSnapshot([1])
    assert reading.loads_typed(SERDE.dumps_typed([1])) == [1]
    assert serializer({}).cipher is None


def test_another_key_is_told() -> None:
    """It is an error of its own, and not a value."""
    reading = serializer({"LANGGRAPH_AES_KEY": "another 16 bytes"})
    with pytest.raises(StateError, match="not with the key"):
        reading.loads_typed(ENCRYPTING.dumps_typed({"a": 1}))
    shown = reading.showing().loads_typed(ENCRYPTING.dumps_typed({"a": 1}))
    assert "not with the key" in str(shown)


def test_a_key_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong length, or nothing installed to decrypt with, is told at once."""
    with pytest.raises(ConfigurationError, match="5 bytes") as caught:
        serializer({"LANGGRAPH_AES_KEY": "short"})
    assert "short" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "Crypto.Cipher", None)
    with pytest.raises(ConfigurationError, match="pip install pycryptodome"):
        serializer({"LANGGRAPH_AES_KEY": KEY.decode()})


@pytest.mark.parametrize(
    "call",
    [
        lambda saver: saver.prune(["t"]),
        lambda saver: list(saver.list_threads(filter={"user": "ada"})),
    ],
)
def test_what_depends_on_an_encrypted_checkpoint_is_refused(
    place: Place, call: Callable[[MongoSaver], Any]
) -> None:
    """Without the key nothing is removed and nothing is left out; with it, it works."""
    encrypting = MongoSaver(place.collection, serde=ENCRYPTING)
    place.thread("t", 4, saver=encrypting)
    before = place.contents()
    with pytest.raises(StateError, match="LANGGRAPH_AES_KEY"):
        call(MongoSaver(place.collection, serde=PlainSerializer(), auto_setup=False))
    assert place.contents() == before
    reading = serializer({"LANGGRAPH_AES_KEY": KEY.decode()})
    call(MongoSaver(place.collection, serde=reading, auto_setup=False))
    assert encrypting.get_tuple({"configurable": {"thread_id": "t"}}) is not None
