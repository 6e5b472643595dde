"""Identifiers: text goes through as plain text, the rest is refused before anything is sent."""

from __future__ import annotations

import enum
import re
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mongosaver import identifiers
from mongosaver.errors import IdentifierTypeError, IdentifierValueError
from mongosaver.identifiers import Address

legal = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


class Loud(str):
    """Text that says something else of itself."""

    def __str__(self) -> str:
        return "something else"


class Colour(str, enum.Enum):
    """Text as an enum has it."""

    RED = "red"


NO_TEXT: list[Any] = [
    {"$ne": None},
    {},
    ["a"],
    ("a",),
    b"a",
    bytearray(b"a"),
    re.compile("a"),
    1.0,
    object(),
]


def config(**configurable: Any) -> dict[str, Any]:
    """Returns a config."""
    return {"configurable": configurable}


@given(legal)
def test_any_text_goes_through_unchanged(value: str) -> None:
    """Whatever text is neither NUL nor half a character is the identifier, letter by letter."""
    assert identifiers.text(value, "thread_id") == value


@given(st.text())
def test_what_comes_out_is_fit_for_a_query_or_it_does_not_come_out(value: str) -> None:
    """Text comes out as plain `str` that has a UTF-8 form, or is refused as a value."""
    try:
        plain = identifiers.text(value, "thread_id")
    except IdentifierValueError:
        assert "\0" in value or re.search("[\ud800-\udfff]", value)
    else:
        assert type(plain) is str
        assert plain.encode().decode() == value


@pytest.mark.parametrize(("given", "plain"), [(Loud("kept"), "kept"), (Colour.RED, "red")])
def test_a_subclass_of_str_becomes_plain(given: str, plain: str) -> None:
    """Only the text of a subclass counts, not what its own methods make of it."""
    found = identifiers.text(given, "task_id")
    assert (found, type(found)) == (plain, str)


@pytest.mark.parametrize(
    ("given", "plain"), [(7, "7"), (-1, "-1"), (UUID(int=1), str(UUID(int=1)))]
)
def test_numbers_are_text_where_they_may_be(given: Any, plain: str) -> None:
    """An int or a UUID is its text as a thread or run id, and refused as any other identifier."""
    assert identifiers.thread(given) == identifiers.run(given) == plain
    with pytest.raises(IdentifierTypeError, match=r"task_id must be text, got .*str\(\)"):
        identifiers.text(given, "task_id")


@pytest.mark.parametrize("value", NO_TEXT, ids=lambda value: type(value).__name__)
def test_what_is_no_text_is_refused(value: Any) -> None:
    """Anything that a query could read as an operator, or that is no text, is a type error."""
    for what in (identifiers.thread, identifiers.run):
        with pytest.raises(IdentifierTypeError, match="must be text, an int or a UUID, got"):
            what(value)
    for key in ("checkpoint_ns", "checkpoint_id", "thread_id"):
        with pytest.raises(TypeError, match=key):
            identifiers.address(config(**{"thread_id": "t", key: value}))


def test_booleans_are_no_numbers_here() -> None:
    """`True` is no thread id, although Python calls it an int."""
    with pytest.raises(IdentifierTypeError, match="got bool"):
        identifiers.thread(True)


@pytest.mark.parametrize("value", ["a\0b", "\0", "\ud800", "a\udfff", "é\udc80"])
def test_nul_and_lone_surrogates_are_refused(value: str) -> None:
    """Text that tools cut off or that has no UTF-8 form is a value error which shows it."""
    with pytest.raises(IdentifierValueError, match=r"NUL|surrogate") as refused:
        identifiers.thread(value)
    assert repr(value) in str(refused.value)
    assert isinstance(refused.value, ValueError)


def test_nul_is_legal_in_names_that_are_never_searched_for() -> None:
    """A channel's name may hold NUL: it is only stored."""
    assert identifiers.text("a\0b", "a channel's name", nul=True) == "a\0b"


def test_long_text_is_cut_in_messages_only() -> None:
    """An error shows the beginning of a long identifier; 2,000 characters are legal."""
    assert identifiers.thread("é" * 2_000) == "é" * 2_000
    with pytest.raises(IdentifierValueError) as refused:
        identifiers.thread("a" * 2_000 + "\0")
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("empty", ["", Loud("")])
def test_an_empty_thread_id_is_refused(empty: str) -> None:
    """Threads need a name."""
    with pytest.raises(IdentifierValueError, match="thread_id is empty"):
        identifiers.thread(empty)


def test_no_run_is_none() -> None:
    """A config without a run has none."""
    assert identifiers.run(None) is None


@pytest.mark.parametrize(
    ("configurable", "address"),
    [
        ({"thread_id": "t"}, Address("t", "", None)),
        ({"thread_id": "t", "checkpoint_ns": None, "checkpoint_id": None}, Address("t", "", None)),
        ({"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": ""}, Address("t", "", None)),
        ({"thread_id": 5, "checkpoint_ns": "n"}, Address("5", "n", None)),
        (
            {"thread_id": "t", "checkpoint_ns": "n|m:1", "checkpoint_id": "c"},
            Address("t", "n|m:1", "c"),
        ),
        ({"thread_id": "$t.u", "checkpoint_id": "c", "other": object()}, Address("$t.u", "", "c")),
    ],
)
def test_a_config_is_an_address(configurable: dict[str, Any], address: Address) -> None:
    """Missing, None and empty mean the root graph's namespace, and the latest checkpoint."""
    assert identifiers.address({"configurable": configurable}) == address


def test_a_missing_namespace_is_told_from_an_empty_one() -> None:
    """`list` takes a missing namespace for all of them, and an empty one for the root graph's."""
    assert identifiers.namespace(config(thread_id="t")) is None
    assert identifiers.namespace(config(thread_id="t", checkpoint_ns="")) == ""


def test_an_address_names_its_neighbours() -> None:
    """Another checkpoint of the same thread and namespace has the same address but for its id."""
    assert Address("t", "n", None).at("c") == Address("t", "n", "c")


@pytest.mark.parametrize("value", [None, {}, {"configurable": None}, {"configurable": []}, "t", 1])
def test_what_is_no_config_is_refused(value: Any) -> None:
    """A config without a mapping `configurable` is a type error that shows one."""
    with pytest.raises(IdentifierTypeError, match='"configurable"'):
        identifiers.address(value)


def test_a_config_without_a_thread_is_refused() -> None:
    """The error for a missing thread id shows where it goes."""
    with pytest.raises(IdentifierValueError, match=r'has no "thread_id".*\{"configurable"'):
        identifiers.address(config(checkpoint_id="c"))
