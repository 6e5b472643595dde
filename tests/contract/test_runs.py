"""Contract, `delete_for_runs`: what runs saved goes, and what remains is as it was."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from mongosaver.errors import UsageError
from tests.contract.interrupted import at_each_operation
from tests.contract.samples import LARGE, checkpoint, config, id_of, ids, metadata
from tests.contract.test_delta_history import delta_graph
from tests.contract.test_prune import grow, steps
from tests.contract.trees import Tree, assert_exact, counts, marked, pending, states

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from tests.faces import Face


def delete(face: Face, *runs: Any) -> None:
    """Deletes runs."""
    assert face.call("delete_for_runs", list(runs)) is None


def of_run(at: RunnableConfig, run: Any) -> RunnableConfig:
    """Returns the config as a run has it."""
    return {**at, "metadata": {"run_id": run}}


def runs_of(face: Face, thread: str) -> set[Any]:
    """Returns the runs of the checkpoints of a thread that can be read."""
    return {row.metadata.get("run_id") for row in face.list(config(thread, None))}


def three_runs(face: Face, thread: str) -> Tree:
    """Puts three runs of three checkpoints with a list that grows, and pending writes."""
    tree = Tree(face, thread, delta=())
    for n in range(9):
        run = "abc"[n // 3]
        at = tree.put({"chat": [f"{i} " * 900 for i in range(n + 1)], "own": LARGE}, run=run)
        face.put_writes(of_run(tree.at(at), run), [("x", n), ("y", LARGE)], "task")
    return tree


@pytest.mark.parametrize("gone", ["a", "b", "c", "ab", "ac", "abc"])
def test_runs_go_and_others_stay(mongo_face: Face, thread: str, gone: str) -> None:
    """Checkpoints, writes and blobs of a run go; what others share with it stays."""
    tree = three_runs(mongo_face, thread)
    other = three_runs(mongo_face, thread + "2")
    before, writes = states(mongo_face, thread), pending(mongo_face, thread)
    rows = {id_of(row): row for row in mongo_face.list(config(thread))}
    delete(mongo_face, *gone)
    stay = [i for n, i in enumerate(tree.ids) if "abc"[n // 3] not in gone]
    after = mongo_face.list(config(thread))
    assert ids(after) == stay[::-1]
    reader = mongo_face.another()
    assert states(reader, thread) == {("", i): before["", i] for i in stay}
    assert pending(reader, thread) == {("", i): writes["", i] for i in stay}
    for row in after:
        was = rows[id_of(row)]
        parent = was.parent_config and id_of(was.parent_config)
        assert row.parent_config == (was.parent_config if parent in stay else None)
    assert_exact(mongo_face, thread)
    assert counts(mongo_face, thread)[0] == len(stay)
    assert runs_of(mongo_face, other.thread) == set("abc") - set(gone)
    if gone == "abc":
        assert counts(mongo_face) == (0, 0, 0)


def test_all_namespaces_and_early_writes_go(mongo_face: Face, thread: str) -> None:
    """Also in subgraphs' namespaces, and writes whose checkpoint never came."""
    for ns in ("", "inner", "call:1"):
        tree = Tree(mongo_face, thread, ns)
        tree.put({"own": LARGE}, run="kept")
        tree.put({"own": LARGE + "2"}, run="gone")
        mongo_face.put_writes(of_run(tree.at("9"), "gone"), [("x", LARGE)], "task")
    delete(mongo_face, "gone")
    assert len(mongo_face.list(config(thread, None))) == 3
    assert counts(mongo_face, thread)[:2] == (3, 0)
    assert_exact(mongo_face, thread)


def test_writes_on_other_runs_checkpoints_go(mongo_face: Face, thread: str) -> None:
    """A run's writes leave the checkpoint that it went on from; those of its own run stay there."""
    tree = Tree(mongo_face, thread)
    first = tree.put(run="a")
    mongo_face.put_writes(of_run(tree.at(first), "a"), [("x", "a")], "task a")
    mongo_face.put_writes(of_run(tree.at(first), "b"), [("x", "b")], "task b")
    tree.put(run="b")
    delete(mongo_face, "b")
    assert pending(mongo_face, thread) == {("", first): [("task a", "x", "a")]}
    delete(mongo_face, "b")
    delete(mongo_face, "a")
    assert counts(mongo_face, thread) == (0, 0, 0)


def test_late_writes_go_with_the_next_call(mongo_face: Face, thread: str) -> None:
    """What a cancelled run saves while it is deleted is gone after the second call."""
    tree = Tree(mongo_face, thread)
    tree.put(run="a")
    last = tree.put({"own": LARGE}, run="b")
    delete(mongo_face, "b")
    mongo_face.put_writes(of_run(tree.at(last), "b"), [("x", 1)], "task")
    late = checkpoint({"own": LARGE}, {"own": "9"}, checkpoint_id="9")
    mongo_face.another().put(of_run(tree.at(last), "b"), late, metadata(), {"own": "9"})
    delete(mongo_face, "b")
    assert counts(mongo_face, thread) == (1, 0, 0)
    assert ids(mongo_face.list(config(thread))) == tree.ids[:1]


def test_thread_goes_on_after_a_rollback(mongo_face: Face, thread: str) -> None:
    """The next run begins at the last checkpoint that is left, with the same ids and contents."""
    tree = three_runs(mongo_face, thread)
    expected = states(mongo_face, thread)
    size = counts(mongo_face, thread)
    for _ in range(2):
        delete(mongo_face, "c")
        assert len(states(mongo_face, thread)) == 6
        del tree.ids[6:]
        for n in range(6, 9):
            at = tree.put({"chat": [f"{i} " * 900 for i in range(n + 1)], "own": LARGE}, run="c")
            mongo_face.put_writes(of_run(tree.at(at), "c"), [("x", n), ("y", LARGE)], "task")
        assert states(mongo_face.another(), thread) == expected
        assert counts(mongo_face, thread)[:2] == size[:2]
        assert_exact(mongo_face, thread)


def test_unknown_and_empty(mongo_face: Face, thread: str) -> None:
    """No runs, and runs that nobody knows, are no error; ids may be UUIDs."""
    tree = Tree(mongo_face, thread)
    tree.put(run="a")
    tree.put(run=str(uuid.UUID(int=7)))
    delete(mongo_face)
    delete(mongo_face, "", "$a", "b")
    assert len(mongo_face.list(config(thread))) == 2
    delete(mongo_face, uuid.UUID(int=7))
    assert ids(mongo_face.list(config(thread))) == tree.ids[:1]


@pytest.mark.parametrize(
    "runs", ["a", b"a", {"a": 1}, None, 1, [None], [{"$ne": 1}], [["a"]]], ids=repr
)
def test_bad_arguments(mongo_face: Face, runs: Any) -> None:
    """What is no list of ids is refused before anything is sent."""
    with mongo_face.commands.recorded() as sent, pytest.raises(UsageError) as refused:
        mongo_face.call("delete_for_runs", runs)
    assert isinstance(refused.value, TypeError)
    assert sent == []


def test_runs_are_found_by_an_index(mongo_face: Face, thread: str) -> None:
    """Finding a run's documents looks at no others."""
    three_runs(mongo_face, thread)
    for suffix in ("", ".writes"):
        plan = mongo_face.sibling(suffix).find({"run_id": {"$in": ["a", "c"]}}).explain()
        stats = plan["executionStats"]
        assert stats["totalDocsExamined"] == stats["nReturned"] > 0


# --- DeltaChannels -----------------------------------------------------------------------------


def test_later_run_keeps_what_its_delta_channel_is_rebuilt_from(
    mongo_face: Face, thread: str
) -> None:
    """A deleted run is out of sight; its writes stay while a later checkpoint needs them."""
    tree = Tree(mongo_face, thread)
    for n in range(9):
        tree.put({"own": LARGE}, wrote={"d": n, "x": n}, run="abc"[n // 3])
    before = states(mongo_face, thread)
    for _ in range(2):
        delete(mongo_face, "b")
        assert runs_of(mongo_face, thread) == {"a", "c"}
        after = states(mongo_face.another(), thread)
        assert after == {key: before[key] for key in after}
        assert marked(mongo_face, thread) == set(tree.ids[3:6])
        assert_exact(mongo_face, thread)
    last = tree.put(snapshots=["d"], run="d")
    delete(mongo_face, "a", "c")
    assert counts(mongo_face, thread)[:2] == (1, 0)
    assert ids(mongo_face.list(config(thread))) == [last]
    assert_exact(mongo_face, thread)


def test_parallel_branches_resumed_by_two_runs(mongo_face: Face, thread: str) -> None:
    """A run's writes stay where another run's checkpoint was made of both."""
    tree = Tree(mongo_face, thread)
    first = tree.put(run="a")
    mongo_face.put_writes(of_run(tree.at(first), "b"), [("d", "b"), ("__resume__", 1)], "task b")
    tree.put(wrote={"d": "c"}, run="c")
    before = states(mongo_face, thread)
    delete(mongo_face, "b")
    assert states(mongo_face, thread) == before
    assert [write[1:] for write in pending(mongo_face, thread)["", first]] == [
        ("d", "b"),
        ("d", "c"),
    ]
    delete(mongo_face, "b", "c")
    assert pending(mongo_face, thread) == {("", first): []}


def test_hidden_ancestor_is_nobodys_parent(mongo_face: Face, thread: str) -> None:
    """Where a parent stays only for its child's DeltaChannel, the child has none to follow."""
    tree = Tree(mongo_face, thread)
    for n in range(4):
        tree.put(wrote={"d": n}, run="abcd"[n])
    before = states(mongo_face, thread)
    for gone, left in (("b", ["0003", "0002", "0000"]), ("c", ["0003", "0000"])):
        delete(mongo_face, gone)
        rows = mongo_face.another().list(config(thread))
        assert ids(rows) == left
        parents = [row.parent_config and id_of(row.parent_config) for row in rows]
        assert set(filter(None, parents)) <= set(left)
        for row in rows:
            alone = mongo_face.another().get_tuple(row.config)
            assert alone is not None
            assert alone.parent_config == row.parent_config
    assert parents == [None, None]
    after = states(mongo_face, thread)
    assert after == {key: before[key] for key in after}
    assert len(mongo_face.graph(delta_graph()).history(config(thread))) == 2


@pytest.mark.parametrize("how", ["run", "prune"])
def test_branch_keeps_what_it_learned_of_late(mongo_face: Face, thread: str, how: str) -> None:
    """A descendant may need writes of an ancestor that its own parent has never known of."""
    tree = Tree(mongo_face, thread)
    shared = tree.put(run="a")
    older = tree.put(on=shared, run="b")
    tree.put(on=shared, wrote={"d": "other branch"}, run="a")
    inner = tree.put(on=older, run="b")
    late = tree.put(on=inner, wrote={"d": "own"}, run="b")
    tree.put({"own": LARGE}, on=late, run="b")
    before = states(mongo_face, thread)
    assert before["", late]["d"] == ["other branch", "own"]
    if how == "run":
        delete(mongo_face, "a")
    else:
        mongo_face.call("prune", [thread], keep_last=3)
    after = states(mongo_face.another(), thread)
    assert after == {key: before[key] for key in after}
    assert ("", late) in after
    assert_exact(mongo_face, thread)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=steps)
def test_what_remains_reads_as_before(mongo_face: Face, steps: list[dict[str, Any]]) -> None:
    """On any tree, deleting one run after the other leaves the others' states as they were."""
    thread = str(uuid.uuid4())
    tree = grow(mongo_face, thread, steps)
    before = states(mongo_face, thread)
    gone: set[str] = set()
    for run in ("r", "t", "s"):
        delete(mongo_face, run)
        gone.add(run)
        stay = {i for i, step in zip(tree.ids, steps, strict=True) if step["run"] not in gone}
        after = states(mongo_face.another(), thread)
        assert after == {key: values for key, values in before.items() if key[1] in stay}
        assert_exact(mongo_face, thread)
    if not stay:
        assert counts(mongo_face, thread) == (0, 0, 0)


def test_real_graphs_keep_their_delta_channels(mongo_face: Face, thread: str) -> None:
    """Runs of a graph that uses DeltaChannels are deleted from the middle and from the end."""
    graph = mongo_face.graph(delta_graph())
    for turn in range(6):
        at = {"configurable": {"thread_id": thread}, "metadata": {"run_id": f"run {turn}"}}
        graph.invoke({"chat": [f"question {turn}"]}, at)
    before = {id_of(s.config): s.values for s in graph.history(config(thread))}
    for run in ("run 2", "run 4", "run 0", "run 5"):
        delete(mongo_face, run)
        cold = mongo_face.another().graph(delta_graph())
        after = {id_of(s.config): s.values for s in cold.history(config(thread))}
        assert after == {each: before[each] for each in after}
        assert run not in runs_of(mongo_face, thread)
        assert_exact(mongo_face, thread)
    graph.invoke({"chat": ["last"]}, config(thread))
    assert graph.state(config(thread)).values["chat"][-2:] == ["last", "answer 5"]
    delete(mongo_face, "run 1", "run 3")
    assert graph.state(config(thread)).values["chat"][-2:] == ["last", "answer 5"]
    mongo_face.call("prune", [thread], strategy="delete")
    assert counts(mongo_face) == (0, 0, 0)


# --- interrupts --------------------------------------------------------------------------------


class State(TypedDict):
    said: Annotated[list[str], lambda old, new: [*old, *new]]


def asking() -> StateGraph[Any]:
    """Returns the builder of a graph that asks twice."""
    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"said": [f"first {interrupt('first?')}"]})
    builder.add_node("second", lambda state: {"said": [f"second {interrupt('second?')}"]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder


def test_resumed_run_is_deleted_and_the_thread_still_runs(mongo_face: Face, thread: str) -> None:
    """What the resuming run wrote on the earlier one's checkpoint goes; it can be asked again."""
    graph = mongo_face.graph(asking())

    def run(given: Any, name: str) -> Any:
        at = {"configurable": {"thread_id": thread}, "metadata": {"run_id": name}}
        return graph.invoke(given, at)

    run({"said": []}, "asks")
    run(Command(resume="yes"), "answers")
    assert graph.state(config(thread)).values["said"] == ["first yes"]
    delete(mongo_face, "answers")
    state = graph.state(config(thread))
    assert (state.values["said"], state.next) == ([], ("first",))
    assert runs_of(mongo_face, thread) == {"asks"}
    run(None, "asks again")
    assert [each.value for each in graph.state(config(thread)).interrupts] == ["first?"]
    run(Command(resume="no"), "answers again")
    run(Command(resume="no"), "ends")
    assert graph.state(config(thread)).values["said"] == ["first no", "second no"]
    assert_exact(mongo_face, thread)


# --- failures ----------------------------------------------------------------------------------


def test_deleting_can_break_off_anywhere(mongo_face: Face, thread: str) -> None:
    """After a failure at any operation the runs are out of sight; repeating ends it exactly."""

    def fill(name: str) -> None:
        tree = three_runs(mongo_face, name)
        mongo_face.put_writes(of_run(tree.at("0001"), "b"), [("z", 1)], "other")
        delta = Tree(mongo_face, name, "delta")
        for n in range(9):
            delta.put({"own": LARGE}, wrote={"d": n}, snapshots=["d"] * (n == 5), run="abc"[n // 3])

    def act(_: str) -> None:
        delete(mongo_face, "a", "b")

    fill(thread)
    before = states(mongo_face, thread)
    act(thread)
    expected, size = states(mongo_face, thread), counts(mongo_face, thread)
    assert {key: before[key] for key in expected} == expected
    mongo_face.delete_thread(thread)
    broken = 0
    for name in at_each_operation(mongo_face, thread, fill, act):
        assert len(states(mongo_face, name)) == len(expected)
        assert runs_of(mongo_face, name) == {"c"}
        act(name)
        assert len(states(mongo_face.another(), name)) == len(expected)
        assert counts(mongo_face, name) == size
        assert_exact(mongo_face, name)
        mongo_face.delete_thread(name)
        broken += 1
    assert broken >= 10
