"""DeltaChannel: state that is rebuilt from pending writes, through the saver's history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from tests.contract.samples import LARGE, Line, config
from tests.faces import Graph

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from tests.faces import Face

# The channel is in beta and says so by a warning.
pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")


def extend(state: list[Any], writes: list[list[Any]]) -> list[Any]:
    """Reduces writes into a list."""
    return [*state, *(item for write in writes for item in write)]


def history(face: Face, at: RunnableConfig, channels: list[str]) -> dict[str, Any]:
    """Reads the history of channels as LangGraph does when it loads a state."""
    saver: Any = face.saver
    if face.awaited:
        found = face.run(saver.aget_delta_channel_history(config=at, channels=channels))
    else:
        found = saver.get_delta_channel_history(config=at, channels=channels)
    return dict(found)


def builder_with(frequency: int) -> StateGraph[Any, Any, Any, Any]:
    """Builds a graph whose list is a DeltaChannel, written by two tasks at once."""
    items = Annotated[list[Any], DeltaChannel(extend, list, snapshot_frequency=frequency)]
    # Names in the annotations of a class would be looked up in the module, where `items` is not.
    state = TypedDict("State", {"items": items, "other": str}, total=False)  # type: ignore[valid-type]  # noqa: UP013
    builder = StateGraph(state)
    builder.add_node("b", lambda s: {"items": [f"b{len(s['items'])}" + LARGE[:2_000]]})
    builder.add_node("a", lambda s: {"items": [f"a{len(s['items'])}", None]})
    builder.add_node("ask", lambda _: {"items": [interrupt("?")], "other": "asked"})
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge(["a", "b"], "ask")
    return builder


def drive(compiled: Any, thread: str) -> Iterator[Any]:
    """Runs turns with an interrupt each, forks, and yields every state on the way."""
    at: RunnableConfig = {"configurable": {"thread_id": thread}}
    for n in range(3):
        compiled().invoke({"items": [f"turn {n}"]}, at)
        yield compiled().state(at).values
        compiled().invoke(Command(resume=f"answer {n}"), at)
        yield compiled().state(at).values
    snapshots = compiled().history(at)
    yield [(s.next, s.values) for s in snapshots]
    middle = next(s for s in snapshots if s.next == ("ask",))
    forked = compiled().update(middle.config, {"items": ["forked"]}, as_node="a")
    yield compiled().state(forked).values
    compiled().invoke(None, middle.config)
    yield compiled().state(at).values
    yield [compiled().state(s.config).values for s in snapshots]


@pytest.mark.parametrize("frequency", [1, 2, 3, 100])
def test_delta_channel_graph(face: Face, thread: str, frequency: int) -> None:
    """A graph with a DeltaChannel has the same states as on InMemorySaver, on each branch."""
    memory = InMemorySaver()
    builder = builder_with(frequency)
    found = list(drive(lambda: face.another().graph(builder), thread))
    expected = list(drive(lambda: Graph(face, builder.compile(checkpointer=memory)), thread))
    assert found == expected
    assert found[-2]["items"]


def test_history_follows_the_parents(face: Face, thread: str) -> None:
    """A fork does not inherit its sibling's writes; the target's own writes do not count."""
    line = Line(face, thread)
    root = line.put({"n": 0})
    face.put_writes(root, [("d", "of the root"), ("other", 1)], "task")
    fork = line.fork()
    left = line.put({"n": 1})
    face.put_writes(left, [("d", "left")], "task")
    right = fork.put({"n": 2})
    face.put_writes(right, [("d", "right 2")], "task 2", "path 1")
    face.put_writes(right, [("d", "right 1")], "task 3", "path 0")
    last = fork.put({"n": 3})
    face.put_writes(last, [("d", "pending")], "task")
    found = history(face, last, ["d", "nothing"])
    assert found == {
        "d": {
            "writes": [
                ("task", "d", "of the root"),
                ("task 3", "d", "right 1"),
                ("task 2", "d", "right 2"),
            ]
        },
        "nothing": {"writes": []},
    }
    assert history(face, left, ["d"]) == {"d": {"writes": [("task", "d", "of the root")]}}
    assert history(face, config(thread), ["d"])["d"] == found["d"]
    assert history(face, root, ["d"]) == {"d": {"writes": []}}
    assert history(face, last, []) == {}


@pytest.mark.parametrize(
    "seed", [[], None, 0, "", ["a"], _DeltaSnapshot([]), _DeltaSnapshot([LARGE])], ids=repr
)
def test_seed_is_the_nearest_stored_value(face: Face, thread: str, seed: Any) -> None:
    """The walk ends at a stored value, falsy or not; writes stored there still count."""
    line = Line(face, thread)
    face.put_writes(line.put({"n": 0}), [("d", "older")], "task")
    face.put_writes(line.put({"d": seed, "n": 1}), [("d", "at the seed")], "task")
    # From here on the channel has a version and its value is not handed over.
    del line.values["d"]
    line.put({"n": 2}, emptied=())
    del line.versions["d"]
    face.put_writes(line.put({"n": 3}), [("d", "newer")], "task")
    at = line.put({"n": 4})
    found = history(face.another(), at, ["d"])["d"]
    # The checkpoint after the seed has the channel unchanged, so that it is found there first.
    assert found["writes"] == [("task", "d", "newer")]
    assert found["seed"] == seed
    assert type(found["seed"]) is type(seed)
    older = history(face, line.at(2), ["d"])["d"]
    assert older["writes"] == [("task", "d", "at the seed")]
    assert older["seed"] == seed


def test_snapshots_round_trip(face: Face, thread: str) -> None:
    """A `_DeltaSnapshot` is read as one, small or large, with the channel unchanged after it."""
    line = Line(face, thread)
    line.put({"small": _DeltaSnapshot([1]), "large": _DeltaSnapshot([LARGE])})
    line.put({"n": 1}, hand_over=["n"])
    for reader in (face, face.another()):
        line.check(reader)
        found = reader.get(line.at(1))
        assert found is not None
        assert isinstance(found["channel_values"]["small"], _DeltaSnapshot)
