"""Contract, "Identifiers": any text, and nothing but text, names a thread or a checkpoint."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from bson import ObjectId, Regex

from tests.contract.samples import LARGE, checkpoint, config, metadata, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faces import Face

ODD = {
    "space": " ",
    "separators": "a:b|c/d\\e;f,g\nh\ti",
    "dots": "..a.b.",
    "dollar": "$",
    "operator": "$where",
    "variable": "$$ROOT",
    "expression": "$thread_id",
    "regex": "^.*$",
    "json": '{"$ne": ""}',
    "quotes": "'\"`",
    "null": "null",
    "number": "1e3",
    "composed": "caf\u00e9",
    "decomposed": "cafe\u0301",
    "astral": "\U0001f600\U0010ffff",
    "control": "\x01\x7f\u200b\ufeff",
    "2,000 characters": "x" * 2_000,
    "2,000 wide characters": "\U0001f600" * 2_000,
}


class Shouting(str):
    """Text of another class, that prints otherwise."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


@pytest.mark.parametrize("name", ODD)
def test_any_text_is_an_identifier(face: Face, name: str) -> None:
    """Thread, namespace, checkpoint and task ids may be any text, and are found by exactly it."""
    odd = ODD[name]
    parent = checkpoint({"a": LARGE}, {"a": "1"}, checkpoint_id=odd)
    at = face.put(config(odd, odd), parent, metadata(), {"a": "1"})
    assert at["configurable"] == {"thread_id": odd, "checkpoint_ns": odd, "checkpoint_id": odd}
    face.put_writes(at, [("x", 1)], odd, odd)
    then = face.put(
        at, checkpoint({"a": LARGE}, {"a": "1"}, checkpoint_id=odd + "2"), metadata(), {}
    )
    for reader in (face, face.another()):
        found = reader.get_tuple(config(odd, odd, odd))
        assert found is not None
        assert found.config == at
        assert found.checkpoint["channel_values"] == {"a": LARGE}
        assert found.pending_writes == [(odd, "x", 1)]
        assert [place(row) for row in reader.list(config(odd, odd))] == [
            (odd, odd, odd + "2"),
            (odd, odd, odd),
        ]
        latest = reader.get_tuple(config(odd, odd))
        assert latest is not None
        assert latest.config == then
        assert latest.parent_config == at
        assert [place(row) for row in reader.list(None, before=then)] == [(odd, odd, odd)]
    face.delete_thread(odd)
    assert face.list(None) == []


def test_odd_identifiers_are_all_different(face: Face) -> None:
    """No two texts are the same thread, also where Unicode has two forms of one."""
    for odd in ODD.values():
        face.put(config(odd), checkpoint({"a": odd}, {"a": "1"}), metadata(), {"a": "1"})
    assert len({place(row)[0] for row in face.list(None)}) == len(ODD)
    for odd in ODD.values():
        found = face.get(config(odd))
        assert found is not None
        assert found["channel_values"] == {"a": odd}


@pytest.mark.parametrize("identifier", [0, 42, -(2**70), uuid.UUID(int=42)], ids=str)
def test_int_and_uuid_thread_ids_are_their_text(face: Face, identifier: Any) -> None:
    """A thread may be named by an integer or a UUID; it is the thread of that text, everywhere."""
    text = str(identifier)
    at = face.put(config(identifier), checkpoint({"a": 1}, {"a": "1"}), metadata(), {"a": "1"})
    assert at["configurable"]["thread_id"] == text
    assert type(at["configurable"]["thread_id"]) is str
    at["configurable"]["thread_id"] = identifier
    face.put_writes(at, [("x", 1)], "task")
    for name in (identifier, text):
        found = face.get_tuple(config(name))
        assert found is not None
        assert found.config["configurable"]["thread_id"] == text
        assert found.pending_writes == [("task", "x", 1)]
        by_id = face.get_tuple({"configurable": {**at["configurable"], "thread_id": name}})
        assert by_id is not None
        assert by_id.checkpoint == found.checkpoint
        [row] = face.list(config(name))
        assert place(row)[0] == text
        assert face.get(config(name)) == found.checkpoint
    face.delete_thread(identifier)
    assert face.get_tuple(config(text)) is None


def test_text_of_another_class_becomes_plain(face: Face, thread: str) -> None:
    """A subclass of `str` means its characters, whatever its `__str__` says, and is not kept."""
    s = Shouting
    made = checkpoint({"a": 1}, {"a": "1"}, checkpoint_id=s("id"))
    at = face.put(config(s(thread), s("ns")), made, metadata(), {"a": "1"})
    face.put_writes(config(s(thread), s("ns"), s("id")), [("x", 1)], s("task"), s("path"))
    found = face.get_tuple(config(thread, "ns", "id"))
    assert found is not None
    assert found.pending_writes == [("task", "x", 1)]
    for config_ in (at, found.config):
        assert config_["configurable"] == config(thread, "ns", "id")["configurable"]
        assert {type(v) for v in config_["configurable"].values()} == {str}
    face.delete_thread(s(thread))
    assert face.list(None) == []


REFUSED_KINDS = {
    "map": {"$ne": ""},
    "list": ["a"],
    "tuple": ("a",),
    "bytes": b"a",
    "pattern": re.compile("."),
    "BSON regex": Regex("."),
    "ObjectId": ObjectId(),
    "float": 1.5,
    "object": object(),
}
REFUSED_TEXTS = {"NUL": "a\x00b", "lone surrogate": "\ud800", "surrogate inside": "a\udfffb"}

AT = config("t", "ns", "id")
CALLS: dict[str, Callable[[Face, dict[str, Any]], object]] = {
    "put": lambda face, at: face.put({"configurable": at}, checkpoint(), metadata(), {}),
    "put_writes": lambda face, at: face.put_writes({"configurable": at}, [("x", 1)], "task"),
    "get_tuple": lambda face, at: face.get_tuple({"configurable": at}),
    "get": lambda face, at: face.get({"configurable": at}),
    "list": lambda face, at: face.list({"configurable": at}),
}


def refuse(face: Face, error: type[Exception], calls: dict[str, Callable[[], object]]) -> None:
    """Asserts that each call raises before a command is sent."""
    for name, call in calls.items():
        with face.commands.recorded() as sent:
            try:
                call()
            except error:
                pass
            else:
                pytest.fail(f"{name} took it")
        assert [command.name for command in sent] == []


def calls_with(face: Face, value: Any) -> dict[str, Callable[[], object]]:
    """Returns every call that takes an identifier, with `value` for one of them."""
    calls: dict[str, Callable[[], object]] = {}
    for key in ("thread_id", "checkpoint_ns", "checkpoint_id"):
        for name, call in CALLS.items():
            at = {**AT["configurable"], key: value}
            calls[f"{name} {key}"] = lambda call=call, at=at: call(face, at)
    calls["delete_thread"] = lambda: face.delete_thread(value)
    calls["task_id"] = lambda: face.put_writes(AT, [("x", 1)], value)
    calls["id of the checkpoint"] = lambda: face.put(
        config("t"), {**checkpoint(), "id": value}, metadata(), {}
    )
    calls["before"] = lambda: face.list(
        config("t"), before={"configurable": {"checkpoint_id": value}}
    )
    return calls


@pytest.mark.parametrize("name", REFUSED_KINDS)
def test_what_is_no_text_is_refused(face: Face, name: str) -> None:
    """An identifier of another kind is a TypeError before a command is sent, in every call."""
    refuse(face, TypeError, calls_with(face, REFUSED_KINDS[name]))


@pytest.mark.parametrize("name", REFUSED_TEXTS)
def test_text_that_cannot_be_stored_is_refused(face: Face, name: str) -> None:
    """NUL and lone surrogates are a ValueError before a command is sent, in every call."""
    refuse(face, ValueError, calls_with(face, REFUSED_TEXTS[name]))


def test_no_thread_is_refused(face: Face) -> None:
    """None is no thread (TypeError), and neither is the empty text (ValueError)."""
    for value, error in ((None, TypeError), ("", ValueError)):
        at = {**AT["configurable"], "thread_id": value}
        calls = {name: lambda call=call, at=at: call(face, at) for name, call in CALLS.items()}
        calls["delete_thread"] = lambda value=value: face.delete_thread(value)
        refuse(face, error, calls)  # type: ignore[arg-type]
