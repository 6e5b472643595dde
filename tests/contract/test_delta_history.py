"""Contract, DeltaChannel history: what the base class finds by walking, in a few commands."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from mongosaver.errors import IdentifierTypeError, IncompleteCheckpoint
from mongosaver.plans import history
from tests.contract.samples import LARGE, checkpoint, config, metadata
from tests.contract.trees import Tree

if TYPE_CHECKING:
    from tests.faces import Face

CHANNELS = ["a", "b", "$c.", "never"]


def found(face: Face, at: Any, channels: Sequence[str] = ("d",)) -> Any:
    """Returns the history that the saver finds."""
    return face.call("get_delta_channel_history", config=at, channels=channels)


def walked(face: Face, at: Any, channels: Sequence[str] = ("d",)) -> Any:
    """Returns the history that the base class finds by reading each ancestor."""
    if face.awaited:
        return face.run(
            BaseCheckpointSaver.aget_delta_channel_history(face.saver, config=at, channels=channels)
        )
    return BaseCheckpointSaver.get_delta_channel_history(face.saver, config=at, channels=channels)


seeds = st.sampled_from([None, 0, "", [], False, "inline", LARGE, _DeltaSnapshot([LARGE, 1])])
steps = st.lists(
    st.fixed_dictionaries(
        {
            # Any other checkpoint, itself or one that is not there: broken and cyclic lines.
            "parent": st.integers(-1, 12),
            "near": st.booleans(),
            "seeds": st.dictionaries(st.sampled_from(CHANNELS[:3]), seeds, max_size=1),
            "writes": st.lists(
                st.tuples(st.sampled_from(CHANNELS[:3]), st.integers(0, 9)), max_size=3
            ),
            "task": st.sampled_from("xyz"),
        }
    ),
    min_size=1,
    max_size=10,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=steps, data=st.data())
def test_history_is_what_the_base_class_walks(
    mongo_face: Face, steps: list[dict[str, Any]], data: st.DataObject
) -> None:
    """On any tree, for any target and several channels at once, also where a line is broken."""
    thread = str(uuid.uuid4())
    for n, step in enumerate(steps):
        parent = f"{n - 1 if step['near'] else step['parent']:03}"
        at = config(thread, "", parent if parent != f"{n:03}" and "-" not in parent else None)
        versions = dict.fromkeys(step["seeds"], f"{n}")
        made = checkpoint(step["seeds"], versions, checkpoint_id=f"{n:03}")
        mongo_face.put(at, made, metadata(), versions)
        for value, write in enumerate(step["writes"]):
            mongo_face.put_writes(
                config(thread, "", f"{n:03}"), [write], f"{step['task']} {value}", step["task"]
            )
    parents = {
        row.config["configurable"]["checkpoint_id"]: (row.parent_config or {})
        .get("configurable", {})
        .get("checkpoint_id")
        for row in mongo_face.list(config(thread))
    }
    for target in data.draw(st.sets(st.sampled_from([*parents, "999"]), max_size=4)) | {None}:
        at = config(thread, "", target)
        history_ = found(mongo_face, at, CHANNELS)
        start = target or max(parents)
        if start in parents and is_circle(parents, start):
            # There the base class walks for ever, unless each channel has a seed.
            assert set(history_) == set(CHANNELS)
            continue
        assert history_ == walked(mongo_face, at, CHANNELS)
        assert list(history_) == CHANNELS


def is_circle(parents: dict[str, Any], start: str) -> bool:
    """Whether the line of ancestors comes back to where it was."""
    seen, here = set(), parents[start]
    while here in parents and here not in seen:
        seen.add(here)
        here = parents[here]
    return here in seen


def test_circle_ends(mongo_face: Face, thread: str) -> None:
    """Ancestors in a circle count once each."""
    for n in range(3):
        at = config(thread, "", f"{(n - 1) % 3}")
        mongo_face.put(at, checkpoint(checkpoint_id=str(n)), metadata(), {})
        mongo_face.put_writes(config(thread, "", str(n)), [("d", n)], "task")
    writes = found(mongo_face, config(thread, "", "1"))["d"]["writes"]
    assert [value for _, _, value in writes] == [1, 2, 0]


def test_other_branches_do_not_count(mongo_face: Face, thread: str) -> None:
    """A fork has what is on its line, not what its sibling wrote; own writes are pending."""
    tree = Tree(mongo_face, thread)
    start = tree.put()
    left = tree.put(on=start, wrote={"d": "left"})
    mongo_face.put_writes(tree.at(left), [("d", "later")], "task")
    right = tree.put(on=start)
    tree.put(on=right, wrote={"d": "right"})
    assert found(mongo_face, tree.at(left))["d"]["writes"] == [("task 1", "d", "left")]
    last = found(mongo_face, tree.at())["d"]
    assert last["writes"] == [("task 3", "d", "right")]
    assert last["seed"] == _DeltaSnapshot(["snapshot 2 d"] * 3)


@pytest.mark.parametrize("seed", [None, 0, "", [], False, {}], ids=repr)
def test_falsy_seeds_are_seeds(mongo_face: Face, thread: str, seed: Any) -> None:
    """The nearest stored value ends the walk, whatever it is."""
    mongo_face.put(
        config(thread),
        checkpoint({"d": seed}, {"d": "1"}, checkpoint_id="1"),
        metadata(),
        {"d": "1"},
    )
    mongo_face.put(config(thread, "", "1"), checkpoint(checkpoint_id="2"), metadata(), {})
    assert found(mongo_face, config(thread)) == {"d": {"writes": [], "seed": seed}}


def test_no_seed_is_no_key(mongo_face: Face, thread: str) -> None:
    """A walk that ends at the beginning has no seed; an unknown target has nothing at all."""
    assert found(mongo_face, config(thread), ["a", "b"]) == {
        "a": {"writes": []},
        "b": {"writes": []},
    }
    tree = Tree(mongo_face, thread)
    tree.put()
    tree.put(wrote={"d": 1})
    assert found(mongo_face, tree.at()) == {"d": {"writes": [("task 1", "d", 1)]}}
    assert found(mongo_face, tree.at("9")) == {"d": {"writes": []}}
    assert found(mongo_face, tree.at(), []) == {}


def test_parallel_tasks_are_in_the_order_of_their_paths(mongo_face: Face, thread: str) -> None:
    """Writes of one super-step come as LangGraph applied them, whatever their tasks' ids."""
    tree = Tree(mongo_face, thread)
    first = tree.put()
    for task, path in (("z", "1"), ("a", "2"), ("m", "")):
        mongo_face.put_writes(tree.at(first), [("d", path), ("other", 0), ("d", -1)], task, path)
    tree.put()
    assert found(mongo_face, tree.at())["d"]["writes"] == [
        ("m", "d", ""),
        ("m", "d", -1),
        ("z", "d", "1"),
        ("z", "d", -1),
        ("a", "d", "2"),
        ("a", "d", -1),
    ]


def test_large_writes_and_seeds(mongo_face: Face, thread: str) -> None:
    """A write of many parts and a seed of many segments come back whole."""
    large = ["x" * 100_000] * 200
    tree = Tree(mongo_face, thread)
    mongo_face.put(
        config(thread),
        checkpoint({"d": _DeltaSnapshot(large)}, {"d": "1"}, checkpoint_id="0000"),
        metadata(),
        {"d": "1"},
    )
    mongo_face.put_writes(tree.at("0000"), [("d", large)], "task")
    mongo_face.put(tree.at("0000"), checkpoint(checkpoint_id="0001"), metadata(), {})
    assert found(mongo_face, tree.at()) == {
        "d": {"writes": [("task", "d", large)], "seed": _DeltaSnapshot(large)}
    }


def test_commands(mongo_face: Face, thread: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands, one more for seeds that are blobs, one more for each further page."""
    monkeypatch.setattr(history, "ANCESTORS", 10)
    tree = Tree(mongo_face, thread, delta=("d", "e"))
    tree.put(snapshots=["d"])
    for n in range(30):
        tree.put(wrote={"d": n, "e": n})

    def commands(at: Any, channels: list[str]) -> list[str]:
        with mongo_face.commands.recorded() as sent:
            found(mongo_face, at, channels)
        return [each.collection.removeprefix(mongo_face.collection.name) for each in sent]

    assert commands(tree.at("0010"), ["e"]) == ["", ".writes"]
    assert commands(tree.at("0009"), ["d", "e"])[:2] == ["", ".writes"]
    assert len(commands(tree.at("0009"), ["d", "e"])) <= 3 + mongo_face.stage.by_finds
    assert commands(tree.at("0011"), ["e"]) == ["", "", ".writes"]
    assert commands(tree.at(), ["e"]) == ["", "", "", ".writes"]


def test_pages_follow_the_line_and_not_the_order(
    mongo_face: Face, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parents with greater ids, and lines that are far apart, are found across pages."""
    monkeypatch.setattr(history, "ANCESTORS", 3)
    order = ["05", "20", "03", "19", "04", "18"]
    for n, each in enumerate(order):
        at = config(thread, "", order[n - 1] if n else None)
        mongo_face.put(at, checkpoint(checkpoint_id=each), metadata(), {})
        mongo_face.put_writes(config(thread, "", each), [("d", n)], "task")
    for n in range(6, 18):
        mongo_face.put(config(thread), checkpoint(checkpoint_id=f"{n:02}"), metadata(), {})
    assert found(mongo_face, config(thread, "", "18")) == walked(
        mongo_face, config(thread, "", "18")
    )
    assert len(found(mongo_face, config(thread, "", "18"))["d"]["writes"]) == 5


def test_missing_blob_is_an_error(mongo_face: Face, thread: str) -> None:
    """A seed that something else removed is never taken for an empty one."""
    tree = Tree(mongo_face, thread)
    mongo_face.put(
        config(thread),
        checkpoint({"d": LARGE}, {"d": "1"}, checkpoint_id="0000"),
        metadata(),
        {"d": "1"},
    )
    mongo_face.put(tree.at("0000"), checkpoint(checkpoint_id="0001"), metadata(), {})
    mongo_face.sibling(".blobs").delete_many({})
    with pytest.raises(IncompleteCheckpoint, match="'d'"):
        found(mongo_face, tree.at())


@pytest.mark.parametrize("channels", ["d", b"d", {"d": 1}, None, [1], [["d"]]], ids=repr)
def test_channels_are_a_list_of_names(mongo_face: Face, thread: str, channels: Any) -> None:
    """A single string is no list of channels, and nothing is sent."""
    with mongo_face.commands.recorded() as sent, pytest.raises(IdentifierTypeError):
        found(mongo_face, config(thread), channels)
    assert sent == []


def extend(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    """Reduces writes into a list."""
    return [*state, *(item for write in writes for item in write)]


class State(TypedDict):
    chat: Annotated[list[str], DeltaChannel(extend)]
    rare: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=3)]
    count: int


def delta_graph() -> StateGraph[Any]:
    """Returns the builder of a graph with two DeltaChannels, one of which has snapshots often."""

    def node(state: State) -> dict[str, Any]:
        count = state.get("count", 0) + 1
        added: dict[str, Any] = {"chat": [f"answer {count}"], "count": count}
        if count % 2:
            added["rare"] = [f"rare {count}"]
        return added

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder


def test_graphs_rebuild_their_channels(mongo_face: Face, thread: str) -> None:
    """Real graphs find the state of each checkpoint, from a cold start and after a fork."""
    graph = mongo_face.graph(delta_graph())
    for turn in range(8):
        graph.invoke({"chat": [f"question {turn}"]}, config(thread))
    expected = [each for n in range(8) for each in (f"question {n}", f"answer {n + 1}")]
    cold = mongo_face.another().graph(delta_graph())
    assert cold.state(config(thread)).values["chat"] == expected
    assert cold.state(config(thread)).values["rare"] == [f"rare {n}" for n in (1, 3, 5, 7)]
    past = cold.history(config(thread))
    assert past[9].values["chat"] == expected[: len(past[9].values["chat"])]
    forked = cold.invoke({"chat": ["other"]}, past[9].config)
    assert forked["chat"][:-2] == past[9].values["chat"]
    assert cold.state(config(thread)).values == forked
