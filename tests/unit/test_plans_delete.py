"""Deleting a thread as tables: in which order, how often it looks again, what it forgets."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from mongosaver.cache import Shared
from mongosaver.errors import IdentifierTypeError, IdentifierValueError
from mongosaver.identifiers import Address
from mongosaver.ops import Delete
from mongosaver.plans.delete import delete_thread
from mongosaver.schema import Name
from tests.unit.tables import Row, attempt, broken_off, context, failure, play

ROUND: list[Row] = [("delete checkpoints", 3), ("delete writes", 2), ("delete blobs", 0)]
GONE: Row = ("find checkpoints", [])
AGAIN: Row = ("find checkpoints", [{"_id": 1}])


def remembering(*threads: str) -> Shared:
    """Returns a saver's memory of one checkpoint of each thread."""
    shared = Shared()
    for thread in threads:
        shared.cache.put(Address(thread, "", "1"), {})
    return shared


def test_checkpoints_go_first_and_blobs_last() -> None:
    """A reader never meets a checkpoint without its values; one more look shows that it is done."""
    shared = remembering("t", "u")
    played = play(delete_thread(context(shared=shared), "t"), *ROUND, GONE)
    where = {"thread_id": "t"}
    assert played.ops[:3] == [
        Delete(name, where) for name in (Name.CHECKPOINTS, Name.WRITES, Name.BLOBS)
    ]
    assert played.result is None
    assert shared.cache.get(Address("t", "", "1")) is None
    assert shared.cache.get(Address("u", "", "1")) == {}


def test_a_checkpoint_that_was_put_meanwhile_is_removed_too() -> None:
    """A graph that still ran when its thread was deleted is cleaned up after."""
    play(delete_thread(context(), "t"), *ROUND, AGAIN, *ROUND, GONE)


def test_a_graph_that_keeps_running_is_not_waited_for() -> None:
    """After three rounds deleting ends, whatever is there."""
    play(delete_thread(context(), "t"), *ROUND, AGAIN, *ROUND, AGAIN, *ROUND, AGAIN)


def test_deleting_can_break_off_anywhere() -> None:
    """A failure passes through at each operation of both rounds, and a closed plan ends."""
    broken_off(lambda: delete_thread(context(), "t"), [*ROUND, AGAIN, *ROUND, GONE])


def test_a_deletion_that_broke_off_is_finished_by_repeating_it() -> None:
    """The second time asks for the same again, and forgets the thread."""
    shared = remembering("t")
    ctx = context(shared=shared)
    attempt(delete_thread(ctx, "t"), *ROUND[:2], ("delete blobs", failure()))
    play(delete_thread(ctx, "t"), *ROUND, GONE)
    assert shared.cache.get(Address("t", "", "1")) is None


@pytest.mark.parametrize(("given", "text"), [(7, "7"), (UUID(int=1), str(UUID(int=1)))])
def test_numbers_are_taken_as_their_text(given: Any, text: str) -> None:
    """A thread is the same whether it is named by a number or by its text."""
    played = play(delete_thread(context(), given), *ROUND, GONE)
    assert all(op.filter == {"thread_id": text} for op in played.ops)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "error"),
    [({"$ne": ""}, IdentifierTypeError), (None, IdentifierTypeError), ("", IdentifierValueError)],
)
def test_what_names_no_thread_is_refused_before_there_is_a_plan(
    given: Any, error: type[Exception]
) -> None:
    """An operator, None and empty text delete nothing."""
    with pytest.raises(error):
        delete_thread(context(), given)
