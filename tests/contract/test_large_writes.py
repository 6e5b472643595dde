"""Contract, "Pending writes": values in several parts, replaced and replacing, are never mixed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.contract.samples import checkpoint, config, metadata, writes_of

if TYPE_CHECKING:
    from tests.faces import Face

SIZES = {"small": 5, "one part": 100_000, "three parts": 17 * 1024 * 1024}


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(SIZES, 2)))
def test_a_special_slot_takes_a_value_of_another_size(
    face: Face, thread: str, before: str, after: str
) -> None:
    """Nothing of a large value stays behind in the small one that replaces it, nor the reverse."""
    at = config(thread, "", "1")
    face.put(config(thread), checkpoint(checkpoint_id="1"), metadata(), {})
    for letter, name in ((b"b", before), (b"a", after)):
        face.put_writes(at, [("__interrupt__", letter * SIZES[name])], "task")
    ((task, channel, value),) = writes_of(face, at)
    assert (task, channel) == ("task", "__interrupt__")
    assert value == b"a" * SIZES[after]
    (row,) = face.list(at)
    assert row.pending_writes == [("task", "__interrupt__", value)]


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(SIZES, 2)))
def test_an_ordinary_slot_keeps_its_value_whole(
    face: Face, thread: str, first: str, second: str
) -> None:
    """A second value of another size changes nothing of the first."""
    at = config(thread, "", "1")
    face.put(config(thread), checkpoint(checkpoint_id="1"), metadata(), {})
    for letter, name in ((b"a", first), (b"b", second)):
        face.put_writes(at, [("a", letter * SIZES[name])], "task")
    ((_, _, value),) = writes_of(face, at)
    assert value == b"a" * SIZES[first]
