"""Real graphs around what removes or copies checkpoints, seen as their users see them.

Before and after each operation, `get_state` and `get_state_history` must say the same of whatever
is left, down to the tasks and the states of their subgraphs; only a parent that went is no parent
any more. Then the graph goes on, and ends as it does on a thread that was left alone.

The graphs have a node, a subgraph that starts anew at each call, and a subgraph with a memory of
its own (`checkpointer=True`), one after the other or side by side. Each of the three asks somebody
where the text that it gets begins with "ask".
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from tests.contract.samples import LARGE, config, id_of
from tests.contract.test_delta_history import delta_graph
from tests.contract.trees import assert_exact, counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from langchain_core.runnables import RunnableConfig

    from tests.faces import Face, Graph

pytestmark = pytest.mark.only_faces("sync", "async")

PARTS = ("plain", "called", "remembered")
"""Channels that the three parts write, named for them."""


class State(TypedDict):
    text: str
    plain: str
    called: str
    remembered: str
    log: Annotated[list[str], operator.add]


class Call(TypedDict):
    text: str
    called: str


class Called(TypedDict):
    called: str


class Memory(TypedDict):
    text: str
    heard: Annotated[list[str], operator.add]
    remembered: str


class Remembered(TypedDict):
    remembered: str


def asked(name: str, state: Any) -> str:
    """Returns the text, followed by the answer where it asks for one."""
    text: str = state["text"]
    return f"{text} {interrupt(name)}" if text.startswith("ask") else text


def remember(state: Memory) -> dict[str, Any]:
    """Adds to what was heard in earlier calls, and tells how often there was one."""
    text = asked("remembered", state)
    count = len(state.get("heard", [])) + 1
    return {"heard": [f"{text} {LARGE[:3_000]}"], "remembered": f"{text} #{count}"}


def conversation(*, parallel: bool = False) -> StateGraph[Any, Any, Any, Any]:
    """Returns a graph with both kinds of subgraphs."""
    call = StateGraph(Call, output_schema=Called)
    call.add_node("answer", lambda state: {"called": asked("called", state)})
    call.add_edge(START, "answer")
    memory = StateGraph(Memory, output_schema=Remembered)
    memory.add_node("answer", remember)
    memory.add_edge(START, "answer")
    builder = StateGraph(State)
    builder.add_node("plain_part", lambda state: {"plain": asked("plain", state)})
    builder.add_node("call_part", call.compile())
    builder.add_node("memory_part", memory.compile(checkpointer=True))
    builder.add_node("end", lambda state: {"log": [" | ".join(state[part] for part in PARTS)]})
    parts = ["plain_part", "call_part", "memory_part"]
    if parallel:
        for part in parts:
            builder.add_edge(START, part)
        builder.add_edge(parts, "end")
    else:
        for before, after in zip([START, *parts], [*parts, "end"], strict=True):
            builder.add_edge(before, after)
    builder.add_edge("end", END)
    return builder


def of_run(thread: str, run: str) -> RunnableConfig:
    """Returns the config with which a run is started."""
    return {"configurable": {"thread_id": thread}, "metadata": {"run_id": run}}


# --- what is compared --------------------------------------------------------------------------


def said(snapshot: Any) -> Any:
    """Returns all that a snapshot says but its parent, and of its subgraphs' states the same."""
    if not hasattr(snapshot, "tasks"):
        return snapshot
    tasks = tuple(task._replace(state=said(task.state)) for task in snapshot.tasks)
    return snapshot._replace(parent_config=None, tasks=tasks)


def history(graph: Graph, thread: str, ns: str = "") -> dict[str, Any]:
    """Returns snapshots by checkpoint id, newest first; the newest with its subgraphs' states."""
    found = {id_of(each.config): each for each in graph.history(config(thread, ns))}
    if not ns and found:
        newest = graph.state(config(thread), subgraphs=True)
        found[id_of(newest.config)] = newest
    return found


def memory(graph: Graph, thread: str) -> dict[str, Any]:
    """Returns the history of the subgraph that has a memory."""
    return history(graph, thread, "memory_part")


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Asserts that what is left of a history says what it said, and where parents went, so much.

    Args:
        before: The history as it was.
        after: The history now.
    """
    assert after
    assert list(after) == [each for each in before if each in after]
    for checkpoint_id, snapshot in after.items():
        was = before[checkpoint_id]
        assert said(snapshot) == said(was)
        left = was.parent_config and id_of(was.parent_config) in after
        assert snapshot.parent_config == (was.parent_config if left else None)


def values(graph: Graph, thread: str) -> list[Any]:
    """Returns the states of the graph, and of the subgraph with a memory."""
    return [graph.state(config(thread, ns)).values for ns in ("", "memory_part")]


def talk(graph: Graph, thread: str, turns: range) -> None:
    """Runs a turn for each number, in a run of that number."""
    for turn in turns:
        graph.invoke({"text": f"turn {turn}"}, of_run(thread, f"run {turn}"))


def prune(face: Face, thread: str, **options: Any) -> Any:
    """Prunes a thread, whether or not somebody has yet to answer."""
    return face.call("prune", [thread], skip_interrupted=False, **options)


pruning = pytest.mark.parametrize("options", [{}, {"keep_last": 3}], ids=["latest", "last"])


# --- prune -------------------------------------------------------------------------------------


@pruning
@pytest.mark.parametrize("parallel", [False, True], ids=["row", "parallel"])
def test_subgraphs_remember_after_a_prune(
    mongo_face: Face, thread: str, options: dict[str, Any], parallel: bool
) -> None:
    """What is left of both histories reads as before, and the memory goes on from where it was."""
    builder, twin = conversation(parallel=parallel), thread + " twin"
    graph = mongo_face.graph(builder)
    talk(graph, twin, range(6))
    for turn in (0, 2, 4):
        talk(graph, thread, range(turn, turn + 2))
        before, remembered = history(graph, thread), memory(graph, thread)
        prune(mongo_face, thread, **options)
        cold = mongo_face.another().graph(builder)
        assert len(history(cold, thread)) == options.get("keep_last", 1)
        assert len(memory(cold, thread)) == options.get("keep_last", 1)
        assert_same(before, history(cold, thread))
        assert_same(remembered, memory(cold, thread))
        assert_exact(mongo_face, thread)
    assert values(graph, thread) == values(graph, twin)
    assert values(graph, thread)[0]["remembered"] == "turn 5 #6"


@pruning
@pytest.mark.parametrize("parallel", [False, True], ids=["row", "parallel"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_questions_in_all_parts_are_answered_around_prunes(
    mongo_face: Face, thread: str, options: dict[str, Any], parallel: bool, last: bool
) -> None:
    """Between any two answers, in whichever order, the questions and subgraphs are as before."""
    builder, twin = conversation(parallel=parallel), thread + " twin"
    graph = mongo_face.graph(builder)
    for each in (thread, twin):
        talk(graph, each, range(2))
    for turn in range(2):
        for each in (thread, twin):
            graph.invoke({"text": f"ask {turn}"}, config(each))
        for _ in PARTS:
            before, remembered = history(graph, thread), memory(graph, thread)
            prune(mongo_face, thread, **options)
            cold = mongo_face.another().graph(builder)
            assert_same(before, history(cold, thread))
            assert_same(remembered, memory(cold, thread))
            assert_exact(mongo_face, thread)
            asking = sorted(cold.state(config(thread)).interrupts, key=lambda each: each.value)
            question = asking[-last]
            cold.invoke(Command(resume={question.id: f"to {question.value}"}), config(thread))
            # The twin's questions have other ids.
            [same] = [
                each
                for each in graph.state(config(twin)).interrupts
                if each.value == question.value
            ]
            graph.invoke(Command(resume={same.id: f"to {same.value}"}), config(twin))
        assert graph.state(config(thread)).next == ()
        assert values(graph, thread) == values(graph, twin)
    answers = [f"ask 1 to {part}" for part in PARTS]
    assert values(graph, thread)[0]["log"][-1] == " | ".join(answers) + " #4"


@pruning
def test_prune_amid_a_turn(mongo_face: Face, thread: str, options: dict[str, Any]) -> None:
    """A graph that stops before nodes goes on there as if nothing had gone."""
    stops = ["call_part", "memory_part", "end"]
    graph = mongo_face.graph(conversation(), interrupt_before=stops)
    twin = thread + " twin"
    for turn in range(2):
        for each in (thread, twin):
            graph.invoke({"text": f"turn {turn}"}, config(each))
        for following in stops:
            before, remembered = history(graph, thread), memory(graph, thread)
            prune(mongo_face, thread, **options)
            assert graph.state(config(thread)).next == (following,)
            assert_same(before, history(graph, thread))
            if remembered:
                assert_same(remembered, memory(graph, thread))
            for each in (thread, twin):
                graph.invoke(None, config(each))
        assert values(graph, thread) == values(graph, twin)
    assert len(values(graph, thread)[0]["log"]) == 2


# --- forks -------------------------------------------------------------------------------------


def fork_conversation(graph: Graph, thread: str) -> Iterator[str]:
    """Talks, edits an earlier state, goes on from there, and replays an old one as it was.

    Yields:
        The name of each run that makes a branch, before it begins.
    """
    talk(graph, thread, range(3))
    past = [each for each in graph.history(config(thread)) if each.next == ("end",)]
    edited = graph.update(past[1].config, {"remembered": "edited"}, as_node="memory_part")
    yield "fork"
    graph.invoke(None, {**edited, "metadata": {"run_id": "fork"}})
    yield "replay"
    graph.invoke(None, {**past[0].config, "metadata": {"run_id": "replay"}})


def fork_delta(graph: Graph, thread: str) -> Iterator[str]:
    """Does the same with channels that are rebuilt from writes."""
    for turn in range(3):
        graph.invoke({"chat": [f"question {turn}"]}, of_run(thread, f"run {turn}"))
    past = [each for each in graph.history(config(thread)) if each.next == ("node",)]
    edited = graph.update(past[1].config, {"chat": ["edited"]}, as_node="__start__")
    yield "fork"
    graph.invoke(None, {**edited, "metadata": {"run_id": "fork"}})
    yield "replay"
    graph.invoke(None, {**past[0].config, "metadata": {"run_id": "replay"}})


FORKED: dict[str, tuple[Callable[[], Any], Callable[[Graph, str], Iterator[str]], Any]] = {
    "subgraphs": (conversation, fork_conversation, {"text": "more"}),
    "delta": (delta_graph, fork_delta, {"chat": ["more"]}),
}
forks = pytest.mark.parametrize("name", FORKED)


@forks
@pytest.mark.parametrize("keep_last", [1, 3, 8])
def test_forks_are_pruned(mongo_face: Face, thread: str, name: str, keep_last: int) -> None:
    """Of all branches the newest checkpoints stay, each as it was, and each can be gone on from."""
    builder, play, given = FORKED[name]
    graph, twin = mongo_face.graph(builder()), thread + " twin"
    assert list(play(graph, thread)) == ["fork", "replay"]
    mongo_face.call("copy_thread", thread, twin)
    before = history(graph, thread)
    prune(mongo_face, thread, keep_last=keep_last)
    cold = mongo_face.another().graph(builder())
    after = history(cold, thread)
    assert list(before)[:keep_last] == list(after)[:keep_last]
    assert_same(before, after)
    assert_exact(mongo_face, thread)
    if name == "delta":
        for checkpoint_id in after:
            cold.invoke(given, config(thread, "", checkpoint_id))
            graph.invoke(given, config(twin, "", checkpoint_id))
            assert values(cold, thread)[0] == values(graph, twin)[0]
    cold.invoke(given, config(thread))
    graph.invoke(given, config(twin))
    assert values(cold, thread) == values(graph, twin)


@forks
def test_runs_of_forks_are_deleted(mongo_face: Face, thread: str, name: str) -> None:
    """All branches are as before the run, and the latest checkpoint is the one that was."""
    builder, play, given = FORKED[name]
    graph = mongo_face.graph(builder())
    branches = [(run, history(graph, thread)) for run in play(graph, thread)]
    for run, before in reversed(branches):
        mongo_face.call("delete_for_runs", [run])
        cold = mongo_face.another().graph(builder())
        assert history(cold, thread) == before
        assert_exact(mongo_face, thread)
    assert graph.invoke(given, config(thread))


# --- delete_for_runs ---------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [False, True], ids=["row", "parallel"])
def test_last_run_is_rolled_back(mongo_face: Face, thread: str, parallel: bool) -> None:
    """Both kinds of subgraphs forget it; the next run is like one on a thread that never had it."""
    builder, twin = conversation(parallel=parallel), thread + " twin"
    graph = mongo_face.graph(builder)
    talk(graph, thread, range(3))
    talk(graph, twin, range(3))
    before, remembered = history(graph, thread), memory(graph, thread)
    size = counts(mongo_face, thread)
    talk(graph, thread, range(3, 4))
    mongo_face.call("delete_for_runs", ["run 3"])
    cold = mongo_face.another().graph(builder)
    assert history(cold, thread) == before
    assert memory(cold, thread) == remembered
    assert counts(mongo_face, thread) == size
    for each in (thread, twin):
        cold.invoke({"text": "instead"}, config(each))
    assert values(cold, thread) == values(cold, twin)
    assert values(cold, thread)[0]["remembered"] == "instead #4"


def test_middle_run_is_deleted(mongo_face: Face, thread: str) -> None:
    """The states of the runs around it are as they were; only a parent is missing."""
    graph = mongo_face.graph(conversation())
    talk(graph, thread, range(4))
    before, remembered = history(graph, thread), memory(graph, thread)
    mongo_face.call("delete_for_runs", ["run 1"])
    cold = mongo_face.another().graph(conversation())
    for was, now in (
        (before, history(cold, thread)),
        (remembered, memory(cold, thread)),
    ):
        assert_same(was, now)
        left = [each for each, s in was.items() if s.metadata["run_id"] != "run 1"]
        assert list(now) == left
    assert_exact(mongo_face, thread)
    talk(cold, thread, range(4, 5))
    assert values(cold, thread)[0]["remembered"] == "turn 4 #5"


def test_answers_of_other_runs_stay(mongo_face: Face, thread: str) -> None:
    """Of three answers, each given by a run of its own, one is taken back and given anew."""
    graph = mongo_face.graph(conversation(parallel=True))

    def answer(name: str, answer: str, run: str) -> None:
        [question] = [e for e in graph.state(config(thread)).interrupts if e.value == name]
        graph.invoke(Command(resume={question.id: answer}), of_run(thread, run))

    graph.invoke({"text": "ask"}, of_run(thread, "asks"))
    answer("plain", "first", "one")
    before = graph.state(config(thread))
    answer("called", "wrong", "two")
    mongo_face.call("delete_for_runs", ["two"])
    assert_exact(mongo_face, thread)
    now = graph.state(config(thread))
    assert (id_of(now.config), now.values, now.next) == (
        id_of(before.config),
        before.values,
        before.next,
    )
    # What still waited was asked again by the run that went, and took that question along.
    assert [each.value for each in now.interrupts] == ["called"]
    graph.invoke(None, of_run(thread, "three"))
    now = graph.state(config(thread))
    assert {each.value for each in now.interrupts} == {"called", "remembered"}
    answer("called", "second", "four")
    answer("remembered", "third", "five")
    done = graph.state(config(thread))
    assert done.values["log"] == ["ask first | ask second | ask third #1"]
    mongo_face.call("delete_for_runs", ["asks", "one", "three", "four", "five"])
    assert counts(mongo_face) == (0, 0, 0)


# --- copy_thread -------------------------------------------------------------------------------


def moved(found: Any, thread: str) -> Any:
    """Returns snapshots as they are if their thread has another id."""
    if isinstance(found, dict):
        return {
            key: thread if key == "thread_id" else moved(value, thread)
            for key, value in found.items()
        }
    if hasattr(found, "_replace"):
        return found._replace(
            **{name: moved(getattr(found, name), thread) for name in found._fields}
        )
    return type(found)(moved(each, thread) for each in found) if type(found) is tuple else found


@forks
def test_copy_has_the_history_of_all_branches(mongo_face: Face, thread: str, name: str) -> None:
    """Ids, parents, metadata and states are the source's, also of what the subgraph remembers."""
    builder, play, given = FORKED[name]
    graph = mongo_face.graph(builder())
    assert list(play(graph, thread)) == ["fork", "replay"]
    before = history(graph, thread)
    mongo_face.call("copy_thread", thread, "copy")
    cold = mongo_face.another().graph(builder())
    assert history(cold, "copy") == moved(before, "copy")
    assert history(cold, thread) == before
    if name == "subgraphs":
        remembered = memory(cold, thread)
        assert remembered
        assert memory(cold, "copy") == moved(remembered, "copy")
    # Each goes on alone.
    cold.invoke(given, config("copy"))
    assert history(cold, thread) == before
    mongo_face.delete_thread(thread)
    assert_same(history(cold, "copy"), history(mongo_face.another().graph(builder()), "copy"))
    assert_exact(mongo_face, "copy")


@pytest.mark.parametrize("parallel", [False, True], ids=["row", "parallel"])
def test_copy_is_answered_otherwise(mongo_face: Face, thread: str, parallel: bool) -> None:
    """A thread is copied between two answers; the copies' other answers do not reach the source."""
    builder = conversation(parallel=parallel)
    graph = mongo_face.graph(builder)
    talk(graph, thread, range(1))
    graph.invoke({"text": "ask"}, config(thread))

    def answer(thread: str, answer: str) -> None:
        asking = sorted(graph.state(config(thread)).interrupts, key=lambda each: each.value)
        graph.invoke(Command(resume={asking[0].id: answer}), config(thread))

    names = [thread]
    for step in range(3):
        before = history(graph, thread)
        name = f"copy {step}"
        mongo_face.call("copy_thread", thread, name)
        assert history(mongo_face.another().graph(builder), name) == moved(before, name)
        for _ in range(3 - step):
            answer(name, f"of {name}")
        assert history(graph, thread) == before
        answer(thread, "of the source")
        names.append(name)
    mongo_face.delete_thread(thread)
    for step, name in enumerate(names[1:]):
        told = graph.state(config(name)).values["log"][-1]
        assert graph.state(config(name)).next == ()
        assert (told.count("of the source"), told.count(f"of {name}")) == (step, 3 - step)
        assert told.endswith("#2")
        assert_exact(mongo_face, name)
