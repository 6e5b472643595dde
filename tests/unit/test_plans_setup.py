"""Setup as tables: what it looks at, what it makes, and what each refusal is turned into."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.errors import OperationFailure

from mongosaver.cache import Shared
from mongosaver.errors import CollationRefused, ForeignDocument, FormatTooNew, SetupRefused
from mongosaver.ops import Collections, CreateIndexes, Find
from mongosaver.plans.setup import setup
from mongosaver.schema import CHECKPOINT_KEY, INDEXES, Name
from tests.unit.tables import Row, attempt, broken_off, context, failure, play, refusal

NOTHING: dict[Name, dict[str, Any]] = {}
PLAIN = {name: {"name": f"c{name.value}", "type": "collection", "options": {}} for name in Name}
LOOK: list[Row] = [("collections", PLAIN), ("find checkpoints", [])]
INDEX: list[Row] = [("index checkpoints", None), ("index writes", None), ("index blobs", None)]
MAKE: list[Row] = [("create checkpoints", None), ("create writes", None), ("create blobs", None)]
FRESH: list[Row] = [
    ("collections", NOTHING),
    ("find checkpoints", []),
    *(row for pair in zip(MAKE, INDEX, strict=True) for row in pair),
]
"""The table of a database in which there is nothing yet."""


def test_indexes_are_made_where_nothing_is_yet() -> None:
    """A fresh database is looked at, each collection gets its indexes, and that is remembered."""
    shared = Shared()
    played = play(setup(context(shared=shared)), *FRESH)
    assert played.ops[:2] == [Collections(), Find(Name.CHECKPOINTS, {}, limit=1)]
    assert played.ops[3::2] == [CreateIndexes(name, indexes) for name, indexes in INDEXES.items()]
    assert played.result is None
    assert shared.ready


def test_existing_collections_of_ours_are_fine() -> None:
    """Collections without options, old servers' answers without a type, a document of ours."""
    play(
        setup(context()),
        ("collections", {**PLAIN, Name.BLOBS: {"name": "c.blobs"}}),
        ("find checkpoints", [{"format": 1, "thread_id": "t"}]),
        *INDEX,
    )


@pytest.mark.parametrize(
    ("found", "error", "says"),
    [
        ({"type": "view"}, SetupRefused, r"'c\.blobs' is a view"),
        ({"type": "timeseries"}, SetupRefused, r"'c\.blobs' is a timeseries"),
        (
            {"type": "collection", "options": {"collation": {"locale": "en", "strength": 2}}},
            CollationRefused,
            r"'c\.blobs' has the default collation 'en'.*Use a collection without one",
        ),
    ],
)
def test_collections_that_cannot_work_are_refused(
    found: dict[str, Any], error: type[Exception], says: str
) -> None:
    """A view, a time series or a collation is named, and no index is made."""
    shared = Shared()
    played = attempt(
        setup(context(shared=shared)),
        ("collections", {**PLAIN, Name.BLOBS: {"name": "c.blobs", **found}}),
    )
    with pytest.raises(error, match=says):
        raise played.error or AssertionError
    assert not shared.ready


@pytest.mark.parametrize(
    ("document", "error", "says"),
    [
        (
            {"thread_id": "t", "checkpoint": b"", "metadata": {}, "type": "x"},
            ForeignDocument,
            "MongoDBSaver",
        ),
        ({"_id": 1, "title": "a book"}, ForeignDocument, "Its fields: _id, title"),
        ({"format": 2, "thread_id": "t"}, FormatTooNew, "storage format 2"),
    ],
)
def test_a_collection_of_something_else_gets_no_indexes(
    document: dict[str, Any], error: type[Exception], says: str
) -> None:
    """Documents that are not ours are found before an index is made on them."""
    played = attempt(setup(context()), LOOK[0], ("find checkpoints", [document]))
    with pytest.raises(error, match=says):
        raise played.error or AssertionError


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize(
    ("code", "says"),
    [
        (13, "lacks a privilege .not allowed.*role readWrite call setup.*auto_setup=False"),
        (11000, "equal keys .not allowed.*remove the duplicates, then call setup"),
        (85, "in the way .not allowed.*Drop that index, then call setup"),
        (86, "in the way"),
        (67, "in the way"),
    ],
)
def test_refusals_are_explained_with_a_remedy(at: int, code: int, says: str) -> None:
    """Wherever the server refuses, the error says why and what helps; the cause stays visible."""
    refused = refusal(code, "not allowed")
    rows = [*LOOK, *INDEX]
    shared = Shared()
    played = attempt(setup(context(shared=shared)), *rows[:at], (rows[at][0], refused))
    with pytest.raises(SetupRefused, match=says):
        raise played.error or AssertionError
    assert played.error.__cause__ is refused
    assert not shared.ready


@pytest.mark.parametrize("details", [None, {}])
def test_a_refusal_without_details_is_explained_too(details: dict[str, Any] | None) -> None:
    """The error's own text is quoted where the server's message is not at hand."""
    played = attempt(setup(context()), ("collections", OperationFailure("no!", 13, details)))
    assert isinstance(played.error, SetupRefused)
    assert "(no!" in str(played.error)


@pytest.mark.parametrize("at", range(5))
def test_what_setup_cannot_explain_passes_through(at: int) -> None:
    """A refusal without a remedy is raised as it is, and setup counts as not done."""
    refused = refusal(8000, "quota")
    rows = [*LOOK, *INDEX]
    shared = Shared()
    played = attempt(setup(context(shared=shared)), *rows[:at], (rows[at][0], refused))
    assert played.error is refused
    assert played.error.__cause__ is not played.error
    assert not shared.ready


@pytest.mark.parametrize("rows", [[*LOOK, *INDEX], FRESH], ids=["made", "fresh"])
def test_setup_can_break_off_anywhere(rows: list[Row]) -> None:
    """A lost connection passes through at each step, and a closed plan ends."""
    broken_off(lambda: setup(context()), rows)


@pytest.mark.parametrize("code", [48, 13, 72, 115])
@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_collection_that_cannot_be_made_is_left_to_the_next_command(at: int, code: int) -> None:
    """Another process may have been first, or the server does not know the options: all is well."""
    rows = [*FRESH[:at], (FRESH[at][0], refusal(code)), *FRESH[at + 1 :]]
    shared = Shared()
    play(setup(context(shared=shared)), *rows)
    assert shared.ready


def test_setup_is_repeatable_after_a_failure() -> None:
    """A second run does the same again: nothing is remembered of the first."""
    shared = Shared()
    ctx = context(shared=shared)
    attempt(setup(ctx), *LOOK, INDEX[0], ("index writes", failure()))
    play(setup(ctx), *LOOK, *INDEX)
    assert shared.ready


def test_every_unique_index_begins_with_the_thread() -> None:
    """So `{thread_id: 1}` can be a shard key; each index says who reads it, none is there twice."""
    for name, indexes in INDEXES.items():
        assert len({index.keys for index in indexes}) == len(indexes), name
        for index in indexes:
            assert index.reader
            assert not index.unique or index.fields[0] == "thread_id"
    assert INDEXES[Name.CHECKPOINTS][0].fields == CHECKPOINT_KEY
