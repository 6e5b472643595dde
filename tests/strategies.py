"""Hypothesis strategies: the values, states, metadata and filters that tests draw."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
)
"""Values that are no containers; NaN is left out because it does not equal itself."""

values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
"""Values of channels and writes, nested."""

messages = st.lists(
    st.builds(lambda letter, size: letter * size, st.sampled_from("abc"), st.integers(0, 1500)),
    max_size=24,
)
"""Lists as chats have them: long enough to leave the checkpoint document now and then."""


@st.composite
def edited(draw: st.DrawFn, before: list[Any]) -> list[Any]:
    """A list after one step: grown, trimmed at either end, edited inside, or another one."""
    how = draw(st.sampled_from(["append", "append", "append", "head", "tail", "edit", "new"]))
    if how == "append":
        return [*before, *draw(messages)[:4]]
    if how == "head":
        return before[draw(st.integers(0, 3)) :]
    if how == "tail":
        return before[: max(0, len(before) - draw(st.integers(0, 3)))]
    if how == "edit" and before:
        at = draw(st.integers(0, len(before) - 1))
        return [*before[:at], "edited", *before[at + 1 :]]
    return draw(messages)


@st.composite
def channel_values(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The new values of a line of checkpoints: a list that grows or not, and anything at all."""
    states: list[dict[str, Any]] = []
    chat: list[Any] = []
    for _ in range(draw(st.integers(1, 6))):
        chat = draw(edited(chat))
        states.append({"chat": chat})
        if draw(st.booleans()):
            states[-1]["any"] = draw(values)
    return states


metadata_keys = st.sampled_from(["source", "step", "user", "a.b", "$where", "", "nested", "flag"])
"""Few keys, so that filters meet what was stored; some of them are traps for MongoDB."""

metadata_values = st.one_of(
    st.sampled_from(
        [None, 0, 1, 1.0, True, False, "1", "", "loop", "input", "$ne", [1], ["1"], []]
    ),
    st.sampled_from([{}, {"x": 1}, {"x": 1, "y": 2}, {"y": 2, "x": 1}, {"$ne": 1}, {"x": [1]}]),
    st.sampled_from([2**63, -(2**63), 2**53, float(2**53), 0.5, b"1", "é", "e\u0301"]),
)
"""Values that are equal to each other, or not, in ways that MongoDB and Python see differently."""

metadata = st.dictionaries(metadata_keys, metadata_values, max_size=3)
"""Metadata of a checkpoint, besides what a graph writes."""

filters = st.one_of(st.none(), st.dictionaries(metadata_keys, metadata_values, max_size=2))
"""Filters of `list`."""
