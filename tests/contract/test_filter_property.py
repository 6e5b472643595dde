"""Filters of `list`, drawn at random: the same rows as InMemorySaver, in whatever MongoDB differs.

The database only narrows; what it may not do is to leave out a row that matches. Every metadata
value that was stored is also asked for, so that each filter meets rows that it must find.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests import strategies
from tests.contract.samples import checkpoint, config, ids
from tests.oracle import Oracle

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointMetadata

    from tests.faces import Face

names = st.one_of(strategies.metadata_keys, st.text(max_size=3))
values = st.one_of(strategies.metadata_values, strategies.values)
_threads = itertools.count()


def twins(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns filters that should find it, key by key, also by what Python holds for equal."""
    found: list[dict[str, Any]] = []
    for key, value in metadata.items():
        found.append({key: value})
        if isinstance(value, (bool, int, float)):
            equal = [n for n in (0, 0.0, False, 1, 1.0, True) if n == value]
            found += [{key: other} for other in equal]
    return found


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.dictionaries(names, values, max_size=3), min_size=1, max_size=4),
    st.lists(st.dictionaries(names, values, max_size=2), max_size=4),
)
@example([{"a": True}, {"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": [1]}, {}], [{"a": None}])
@example([{"a": 2**63}, {"a": float(2**63)}, {"a": 2**53 + 1}], [{"a": float(2**53)}])
@example([{"a.b": 1}, {"a": {"b": 1}}, {"$where": "1"}], [{"a.b": 1}, {"$where": "1"}])
@example([{f"k{n}": "x" * 500 for n in range(30)}], [{"missing": None}, {"k29": "x" * 500}])
@example([{"a": "\ud800"}, {"\ud800": 1}], [{"a": "\ud800"}, {"\ud800": 1}, {"\ud800": None}])
def test_filters_find_what_the_oracle_finds(
    mongo_face: Face, metadata: list[dict[str, Any]], filters: list[dict[str, Any]]
) -> None:
    """For any metadata and any filter, the rows are InMemorySaver's, with and without a limit."""
    thread = str(next(_threads))
    oracle = Oracle()
    for number, each in enumerate(metadata):
        put = (
            config(thread),
            checkpoint(checkpoint_id=f"{number:02}"),
            cast("CheckpointMetadata", each),
            {},
        )
        try:
            oracle.put(*put)
        except Exception as refused:
            with pytest.raises(type(refused)):
                mongo_face.put(*put)
        else:
            mongo_face.put(*put)
    asked = [*filters, *(twin for each in metadata for twin in twins(each))]
    for wanted in asked:
        expected = ids(oracle.list(config(thread), filter=wanted))
        assert ids(mongo_face.list(config(thread), filter=wanted)) == expected, wanted
        first = mongo_face.list(config(thread), filter=wanted, limit=1)
        assert ids(first) == expected[:1], wanted
