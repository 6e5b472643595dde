"""Graphs of LangGraph on each face, compared with the same run on InMemorySaver.

A scenario is a function that drives a graph and returns what was seen. It runs on the face and on
InMemorySaver; what it returned, and the histories of its threads, must be the same but for ids.
"""

from __future__ import annotations

import operator
import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Interrupt, Send, interrupt

from tests.contract.samples import LARGE, id_of
from tests.faces import Graph

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from tests.faces import Face

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")


def plain(value: Any) -> Any:
    """Returns a value as it can be compared: ids that differ from run to run are left out."""
    if isinstance(value, dict):
        return {plain(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, Interrupt):
        return ["interrupt", plain(value.value)]
    if isinstance(value, BaseException):
        return repr(value)
    return UUID.sub("id", value) if isinstance(value, str) else value


def snapshot(state: Any) -> dict[str, Any]:
    """Returns what a state snapshot says, without ids and times."""
    metadata = {k: v for k, v in state.metadata.items() if k != "run_id"} if state.metadata else {}
    return {
        "values": plain(state.values),
        "next": state.next,
        "metadata": plain(metadata),
        "has parent": state.parent_config is not None,
        "tasks": [
            (t.name, plain(t.path), plain(t.error), plain(t.interrupts), plain(t.result))
            for t in state.tasks
        ],
        "interrupts": plain(state.interrupts),
    }


class World:
    """What a scenario gets: graphs on one saver, and a record of what its nodes did."""

    def __init__(self, thread: str, compiled: Callable[..., Graph]) -> None:
        self.compiled = compiled
        self.at: RunnableConfig = {"configurable": {"thread_id": thread}}
        self.ran: list[str] = []
        self.failing = True


Scenario = Callable[[World], Any]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Adds a scenario under its name."""
    SCENARIOS[function.__name__.replace("_", " ")] = function
    return function


class Chat(TypedDict):
    """State of a chat."""

    messages: Annotated[list[AnyMessage], add_messages]


class Log(TypedDict, total=False):
    """State that collects what nodes add."""

    log: Annotated[list[Any], operator.add]
    topic: str
    count: int


def chat(world: World) -> StateGraph[Any, Any, Any, Any]:
    """Builds a chat that calls a tool when asked for the time."""

    def answer(state: Chat) -> Chat:
        last = state["messages"][-1]
        n = len(state["messages"])
        world.ran.append(f"answer {n}")
        if last.content == "time?":
            call = {"name": "clock", "args": {}, "id": f"call {n}"}
            return {"messages": [AIMessage("", tool_calls=[call], id=f"m{n}")]}
        return {"messages": [AIMessage(f"{last.content}! " * 300, id=f"m{n}")]}

    def clock(state: Chat) -> Chat:
        world.ran.append("clock")
        call = state["messages"][-1].tool_calls[0]  # type: ignore[union-attr]
        n = len(state["messages"])
        return {"messages": [ToolMessage("noon", tool_call_id=call["id"], id=f"m{n}")]}

    def route(state: Chat) -> str:
        return "clock" if state["messages"][-1].tool_calls else END  # type: ignore[union-attr]

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_node("clock", clock)
    builder.add_edge(START, "answer")
    builder.add_conditional_edges("answer", route, ["clock", END])
    builder.add_edge("clock", "answer")
    return builder


def say(text: str, n: int) -> Chat:
    """Returns the input of a turn."""
    return {"messages": [HumanMessage(text, id=f"h{n}")]}


@scenario
def chat_is_resumed_by_another_saver(world: World) -> Any:
    """A chat of several turns, each on a graph and a saver of its own."""
    seen = []
    for n, text in enumerate(["hello", "time?", LARGE[:3_000], "bye"]):
        graph = world.compiled(chat(world))
        seen.append(graph.invoke(say(text, n), world.at))
    return seen


@scenario
def interrupt_is_answered(world: World) -> Any:
    """A node asks; the answer comes later, by another saver; other nodes do not run again."""

    def before(_: Log) -> Log:
        world.ran.append("before")
        return {"log": ["before"]}

    def ask(_: Log) -> Log:
        world.ran.append("ask")
        first = interrupt({"question": "first?"})
        second = interrupt("second?")
        return {"log": [first, second]}

    builder = StateGraph(Log)
    builder.add_node("before", before)
    builder.add_node("ask", ask)
    builder.add_edge(START, "before")
    builder.add_edge("before", "ask")
    seen = [plain(world.compiled(builder).invoke({"log": ["start"]}, world.at))]
    seen.append(snapshot(world.compiled(builder).state(world.at)))
    seen.append(plain(world.compiled(builder).invoke(Command(resume="one"), world.at)))
    seen.append(snapshot(world.compiled(builder).state(world.at)))
    seen.append(plain(world.compiled(builder).invoke(Command(resume=["two"]), world.at)))
    return seen


@scenario
def interrupt_before_a_node(world: World) -> Any:
    """A graph that stops before and after nodes is driven on with None."""
    builder = StateGraph(Log)
    for name in "abc":
        builder.add_node(name, lambda _, name=name: (world.ran.append(name), {"log": [name]})[1])
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    options: dict[str, Any] = {"interrupt_before": ["b"], "interrupt_after": ["b"]}
    seen = [world.compiled(builder, **options).invoke({"log": []}, world.at)]
    for _ in range(3):
        seen.append(snapshot(world.compiled(builder, **options).state(world.at)))
        seen.append(world.compiled(builder, **options).invoke(None, world.at))
    return seen


def parallel(world: World) -> StateGraph[Any, Any, Any, Any]:
    """Builds two nodes in one super-step, of which one fails while `world.failing`."""
    finished = threading.Event()

    def good(_: Log) -> Log:
        world.ran.append("good")
        finished.set()
        return {"log": ["good", LARGE]}

    def bad(_: Log) -> Log:
        world.ran.append("bad")
        # The other task is to be finished, and what it wrote on its way to the saver.
        assert finished.wait(10)
        time.sleep(0.05)
        if world.failing:
            raise ValueError("not yet")
        return {"log": ["bad"]}

    builder = StateGraph(Log)
    builder.add_node("good", good)
    builder.add_node("bad", bad)
    builder.add_node("end", lambda state: {"count": len(state["log"])})
    builder.add_edge(START, "good")
    builder.add_edge(START, "bad")
    builder.add_edge(["good", "bad"], "end")
    return builder


@scenario
def failed_task_is_resumed_without_the_finished_one(world: World) -> Any:
    """Of two tasks one fails; another saver resumes, and the finished task does not run again."""
    builder = parallel(world)
    with pytest.raises(ValueError, match="not yet"):
        world.compiled(builder).invoke({"log": ["start"]}, world.at)
    state = world.compiled(builder).state(world.at)
    world.failing = False
    done = world.compiled(builder).invoke(None, world.at)
    assert world.ran.count("good") == 1
    assert world.ran.count("bad") == 2
    return [sorted(snapshot(state)["next"]), done]


@scenario
def time_travel_replays_and_forks(world: World) -> Any:
    """A run is replayed from the middle, forked by `update_state`, and the old branch stays."""
    graph = world.compiled(chat(world))
    graph.invoke(say("hello", 0), world.at)
    graph.invoke(say("time?", 1), world.at)
    history = graph.history(world.at)
    before_tool = next(s for s in history if s.next == ("clock",))
    old = [snapshot(s) for s in history]
    again = world.compiled(chat(world)).invoke(None, before_tool.config)
    forked = graph.update(before_tool.config, say("never mind", 7), as_node="__start__")
    fork = graph.state(forked)
    after = world.compiled(chat(world)).invoke(None, forked)
    [*_, first] = history
    by_id = [snapshot(world.compiled(chat(world)).state(s.config)) for s in history]
    assert by_id == old
    return [again, snapshot(fork), after, snapshot(graph.state(first.config)), old]


@scenario
def copy_of_a_checkpoint(world: World) -> Any:
    """`update_state` with `__copy__` puts the same values beside the checkpoint and goes on."""
    graph = world.compiled(chat(world))
    graph.invoke(say("hello", 0), world.at)
    graph.invoke(say("time?", 1), world.at)
    middle = next(s for s in graph.history(world.at) if s.next == ("clock",))
    copied = graph.update(middle.config, None, as_node="__copy__")
    seen = snapshot(world.compiled(chat(world)).state(copied))
    assert seen["values"] == plain(middle.values)
    return [seen, world.compiled(chat(world)).invoke(None, copied)]


@scenario
def state_is_updated_by_hand(world: World) -> Any:
    """Updates as a node, without one, and clearing what is next."""
    graph = world.compiled(chat(world))
    seen = [graph.update(world.at, say("by hand", 0)) is not None]
    seen.append(snapshot(graph.state(world.at)))
    graph.invoke(None, world.at)
    graph.update(world.at, {"messages": [AIMessage("as a node", id="x")]}, as_node="answer")
    seen.append(snapshot(graph.state(world.at)))
    graph.update(world.at, None, as_node=END)
    seen.append(snapshot(graph.state(world.at)))
    return seen


def with_subgraph(world: World, checkpointer: Any) -> StateGraph[Any, Any, Any, Any]:
    """Builds a graph with a subgraph that asks a question."""

    def ask(state: Log) -> Log:
        world.ran.append("ask")
        return {"log": [interrupt(f"{len(state['log'])}?"), LARGE]}

    inner = StateGraph(Log)
    inner.add_node("count", lambda state: {"count": state.get("count", 0) + 1})
    inner.add_node("ask", ask)
    inner.add_edge(START, "count")
    inner.add_edge("count", "ask")
    builder = StateGraph(Log)
    builder.add_node("before", lambda _: {"log": ["before"]})
    builder.add_node("inner", inner.compile(checkpointer=checkpointer))
    builder.add_node("after", lambda _: {"topic": "done"})
    builder.add_edge(START, "before")
    builder.add_edge("before", "inner")
    builder.add_edge("inner", "after")
    return builder


def drive_subgraph(world: World, checkpointer: Any) -> Any:
    """Runs two rounds of a graph with a subgraph, and looks into it while it waits."""
    seen: list[Any] = []
    for n in range(2):
        builder = with_subgraph(world, checkpointer)
        seen.append(plain(world.compiled(builder).invoke({"log": [n]}, world.at)))
        state = world.compiled(builder).state(world.at, subgraphs=True)
        seen.append([snapshot(task.state) for task in state.tasks])
        seen.append(plain(world.compiled(builder).invoke(Command(resume=f"yes {n}"), world.at)))
    return seen


@scenario
def subgraph_per_call(world: World) -> Any:
    """A subgraph that begins anew at each call keeps its state in a namespace of the call."""
    return drive_subgraph(world, None)


@scenario
def subgraph_that_remembers(world: World) -> Any:
    """A subgraph with `checkpointer=True` goes on where it ended, in one namespace."""
    return drive_subgraph(world, True)


@scenario
def sends_are_mapped_and_reduced(world: World) -> Any:
    """`Send` makes tasks of a list; one of them fails and is resumed alone."""

    def work(state: Any) -> Log:
        world.ran.append(f"work {state['n']}")
        if state["n"] == 3 and world.failing:
            raise ValueError("not yet")
        return {"log": [state["n"] * 10]}

    def fan_out(state: Log) -> list[Send]:
        return [Send("work", {"n": n, "text": LARGE}) for n in range(state["count"])]

    builder = StateGraph(Log)
    builder.add_node("plan", lambda _: {"count": 4})
    builder.add_node("work", work)
    builder.add_node("sum", lambda state: {"topic": str(sum(state["log"]))})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", fan_out, ["work"])
    builder.add_edge("work", "sum")
    one_by_one: RunnableConfig = {**world.at, "max_concurrency": 1}
    with pytest.raises(ValueError, match="not yet"):
        world.compiled(builder).invoke({"log": []}, one_by_one)
    world.failing = False
    done = world.compiled(builder).invoke(None, one_by_one)
    assert [world.ran.count(f"work {n}") for n in range(4)] == [1, 1, 1, 2]
    return done


def run_durably(world: World, durability: str) -> Any:
    """Runs a graph of several steps, with a failure in the middle, in one durability mode."""

    def step(state: Log) -> Log:
        n = len(state["log"])
        world.ran.append(f"step {n}")
        if n == 3 and world.failing:
            raise ValueError("not yet")
        return {"log": [f"{n}" * 400]}

    builder = StateGraph(Log)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges(
        "step", lambda s: "step" if len(s["log"]) < 6 else END, ["step", END]
    )
    with pytest.raises(ValueError, match="not yet"):
        world.compiled(builder).invoke({"log": ["in"]}, world.at, durability=durability)
    broken = snapshot(world.compiled(builder).state(world.at))
    world.failing = False
    done = world.compiled(builder).invoke(None, world.at, durability=durability)
    return [broken, done]


@scenario
def durability_sync(world: World) -> Any:
    """Each step is saved before the next begins."""
    return run_durably(world, "sync")


@scenario
def durability_async(world: World) -> Any:
    """Each step is saved while the next one runs."""
    return run_durably(world, "async")


@scenario
def durability_exit(world: World) -> Any:
    """Only the end of a run is saved."""
    return run_durably(world, "exit")


@scenario
def values_that_appear_and_vanish(world: World) -> Any:
    """Channels that are None, empty or absent in turn, beside a large one that stays."""

    class State(TypedDict, total=False):
        keep: Any
        vary: Any
        n: int

    values = [None, "", [], False, 0, b"", {}, LARGE]
    builder = StateGraph(State)
    builder.add_node("vary", lambda s: {"vary": values[s["n"]], "n": s["n"] + 1})
    builder.add_edge(START, "vary")
    seen = [world.compiled(builder).invoke({"keep": LARGE, "n": 0}, world.at)]
    seen += [world.compiled(builder).invoke({}, world.at) for _ in values[1:]]
    return seen


def play(face: Face, name: str, thread: str, saver: Any = None) -> list[Any]:
    """Plays a scenario and returns what it saw, what its nodes did, and the thread's history."""

    def compiled(builder: Any, **options: Any) -> Graph:
        if saver is not None:
            return Graph(face, builder.compile(checkpointer=saver, **options))
        return face.another().graph(builder, **options)

    world = World(thread, compiled)
    seen = SCENARIOS[name](world)
    if saver is None:
        rows = face.list({"configurable": {"thread_id": thread}})
    else:
        rows = list(saver.list({"configurable": {"thread_id": thread}}))
    # InMemorySaver lists namespaces as they came; the order within one is what counts.
    rows = sorted(rows, key=lambda row: row.config["configurable"]["checkpoint_ns"])
    by_namespace: dict[str, list[Any]] = {}
    for row in rows:
        namespace = row.config["configurable"]["checkpoint_ns"]
        by_namespace.setdefault(namespace, []).append(row)
    return [
        plain(seen),
        sorted(world.ran),
        sorted(
            (
                (
                    plain(namespace),
                    [
                        (
                            plain(row.checkpoint["channel_values"]),
                            sorted(row.checkpoint["channel_versions"]),
                            row.metadata["source"],
                            row.metadata["step"],
                            sorted(plain([w[1:] for w in row.pending_writes or []]), key=repr),
                            row.parent_config is not None,
                        )
                        for row in found
                    ],
                )
                for namespace, found in by_namespace.items()
            ),
            key=repr,
        ),
    ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_graph_runs_as_on_in_memory_saver(face: Face, thread: str, name: str) -> None:
    """A scenario sees the same, runs the same nodes and leaves the same history."""
    found = play(face, name, thread)
    expected = play(face, name, thread, InMemorySaver())
    assert found == expected
    assert found[2]


def test_old_branch_is_intact_after_a_fork(face: Face, thread: str) -> None:
    """Every checkpoint of the first run reads as before when a fork has grown beside it."""
    world = World(thread, lambda builder, **options: face.graph(builder, **options))
    graph = face.graph(chat(world))
    graph.invoke(say("hello", 0), world.at)
    graph.invoke(say("time?", 1), world.at)
    before = face.list(world.at)
    middle = graph.history(world.at)[3]
    forked = graph.update(middle.config, say("other", 9), as_node="__start__")
    graph.invoke(None, forked)
    graph.invoke(say("more", 10), world.at)
    for reader in (face, face.another()):
        after = {id_of(row): row for row in reader.list(world.at)}
        assert len(after) > len(before)
        for row in before:
            assert after[id_of(row)] == row
