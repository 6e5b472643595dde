"""What each process of the demo does, as ``python steps.py NAME``.

Nothing is handed from one process to the next but a MongoDB, a thread id and the ledger. A step
states each claim beside the facts that it checks; the first one that is false ends the process
with an exit code that `demo.py` passes on.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent import PRICE, World, build, short
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import MessagesState
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, StateSnapshot

from mongosaver import MongoSaver, MongoSaverError

CONFIG: RunnableConfig = {"configurable": {"thread_id": "trip-1"}}


@dataclass
class Desk:
    """An agent on the demo's thread, in the state in which the database has it."""

    graph: CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]
    world: World

    def run(self, given: Any, config: RunnableConfig = CONFIG) -> None:
        """Run the graph until it ends or waits, and show the messages as they come."""
        for update in self.graph.stream(given, config, stream_mode="updates"):
            # LangGraph marks so what it took from pending writes and did not run.
            stored = update.pop("__metadata__", {}).get("cached", False)
            for node, change in update.items():
                if node == "__interrupt__":
                    show(f"waits for a person: {change[0].value}")
                    continue
                for message in change["messages"]:
                    show(short(message) + ("   (already in the database)" if stored else ""))

    def state(self, config: RunnableConfig = CONFIG) -> StateSnapshot:
        """Return the state at a checkpoint, by default the thread's latest."""
        return self.graph.get_state(config)

    def history(self) -> list[StateSnapshot]:
        """Return all checkpoints of the thread, oldest first."""
        return list(self.graph.get_state_history(CONFIG))[::-1]

    def last_message(self, config: RunnableConfig = CONFIG) -> str:
        """Return the newest message at a checkpoint in a few words."""
        messages: list[BaseMessage] = self.state(config).values.get("messages", [])
        return short(messages[-1]) if messages else ""


@contextmanager
def open_desk(*, hotel_is_closed: bool = False) -> Iterator[Desk]:
    """Compile the graph with the saver, as any program that uses mongosaver does."""
    uri, database = os.environ["DEMO_URI"], os.environ["DEMO_DATABASE"]
    with MongoSaver.from_conn_string(uri, db_name=database) as saver:
        world = World(Path(os.environ["DEMO_LEDGER"]))
        if hotel_is_closed:
            world.hotel_refuses_when = lambda: is_saved(saver, "book_flight")
        yield Desk(build(saver, world), world)


def is_saved(saver: MongoSaver, tool: str) -> bool:
    """Tell whether a tool's answer is among the thread's pending writes."""
    saved = saver.get_tuple(CONFIG)
    writes = (saved and saved.pending_writes) or []
    return any(
        getattr(message, "name", None) == tool
        for _, channel, messages in writes
        if channel == "messages"
        for message in messages
    )


def show(line: str) -> None:
    """Print a line at once: the conductor reads along."""
    print(line, flush=True)


def check(holds: bool, claim: str, found: object = "") -> None:
    """Print a claim that holds; end the process at one that does not."""
    if not holds:
        show(f"✗ does not hold: {claim}")
        sys.exit(f"found: {found}" if found != "" else 1)
    show(f"✓ {claim}")


def key(config: RunnableConfig | None) -> str | None:
    """Return the checkpoint id that a config names."""
    return None if config is None else config["configurable"]["checkpoint_id"]


def crash() -> None:
    """Chat, then fail in one of two tasks, then hang until killed."""
    with open_desk(hotel_is_closed=True) as desk:
        ask = "What is there to see in Lisbon?"
        show(f"user: {ask}")
        desk.run({"messages": [("user", ask)]})
        check(
            len(desk.world.done("read_guide Lisbon")) == 1
            and desk.last_message() == "model: The guide says: Lisbon: 400 walks.",
            "a chat with a tool call: the tool ran once, and the model's answer is saved",
            desk.last_message(),
        )
        ask = "Book a trip to Lisbon."
        show(f"user: {ask}")
        try:
            desk.run({"messages": [("user", ask)]})
        except ConnectionError as error:
            show(f"book_hotel failed: {error}")
        state = desk.state()
        check(
            [(bool(task.result), bool(task.error)) for task in state.tasks]
            == [(True, False), (False, True)],
            "two tasks in one super-step: one finished, one failed",
            state.tasks,
        )
        show(os.environ["DEMO_LAST_WORDS"])
        time.sleep(60)


def resume() -> None:
    """Finish in a second process what the first one left, up to the approval."""
    with open_desk() as desk:
        state = desk.state()
        check(
            [(task.name, bool(task.result), bool(task.error)) for task in state.tasks]
            == [("tool", True, False), ("tool", False, True)],
            "the database knows which task finished and which one failed",
            state.tasks,
        )
        desk.run(None)
        flights, asked = desk.world.done("book_flight"), desk.world.done("book_hotel asked")
        check(
            len(flights) == 1 and flights[0] != os.getpid(),
            "the finished task was not run again: one flight, booked by the killed process",
            f"flights booked by the processes {flights}",
        )
        check(
            len(asked) == 2 and desk.world.done("book_hotel") == [os.getpid()],
            "the failed task was: the hotel was asked twice and booked by this process",
            f"hotel asked by {asked}, booked by {desk.world.done('book_hotel')}",
        )
        check(
            [each.value for each in desk.state().interrupts] == [f"Pay {PRICE} euros?"]
            and not desk.world.done("pay"),
            "the graph waits for an approval, and nothing is paid",
            desk.state().interrupts,
        )


def approve() -> None:
    """Answer in a third process what the second one asked."""
    with open_desk() as desk:
        questions = [each.value for each in desk.state().interrupts]
        check(
            questions == [f"Pay {PRICE} euros?"],
            f"the question is in the database: {questions[0] if questions else ''}",
            questions,
        )
        show("person: yes")
        desk.run(Command(resume="yes"))
        check(
            desk.world.done("pay") == [os.getpid()],
            "paid once, by this process",
            desk.world.done("pay"),
        )
        check(
            len(desk.world.done("book_flight")) == len(desk.world.done("book_hotel")) == 1
            and desk.state().next == (),
            "nothing was booked twice, and the run is at its end",
            desk.state().next,
        )


def travel() -> None:
    """Go back to before the first tool call: once as it was, once with another question."""
    with open_desk() as desk:
        old = desk.history()
        before = next((each for each in old if each.next == ("tool",)), None)
        check(before is not None, "the history has the checkpoint before the first tool call")
        assert before is not None

        show("replay from there:")
        models = len(desk.world.done("model"))
        desk.run(None, before.config)
        check(
            len(desk.world.done("read_guide Lisbon")) == 2
            and len(desk.world.done("model")) == models + 1,
            "only what comes after that checkpoint ran again: the tool and the answer",
            f"{len(desk.world.done('model')) - models} calls of the model",
        )
        replayed = desk.history()[-1]
        check(
            replayed.config == desk.state().config != old[-1].config
            and desk.last_message().endswith("Lisbon: 400 walks."),
            "the replay ended in a new checkpoint with the same answer",
            desk.last_message(),
        )

        settled = [*old, *desk.history()[len(old) :]]
        show("fork from there, to Porto instead:")
        asked = before.values["messages"][-1]
        assert isinstance(asked, AIMessage)
        call = {**asked.tool_calls[0], "args": {"city": "Porto"}}
        edited = asked.model_copy(update={"tool_calls": [call]})
        fork = desk.graph.update_state(before.config, {"messages": [edited]}, as_node="model")
        desk.run(None, fork)
        check(
            desk.world.done("read_guide Porto") == [os.getpid()]
            and desk.last_message().endswith("Porto: 400 walks."),
            "the fork went its own way",
            desk.last_message(),
        )

        now = {key(each.config): each for each in desk.history()}
        check(
            all(_facts(now.get(key(each.config))) == _facts(each) for each in settled),
            f"the old branches are intact: all {len(settled)} checkpoints are as they were",
            [key(each.config) for each in settled if key(each.config) not in now] or "other values",
        )
        check(
            desk.last_message(old[-1].config).endswith("Have a good trip!"),
            "the old branch still ends in the paid trip",
            desk.last_message(old[-1].config),
        )


def _facts(state: StateSnapshot | None) -> object:
    if state is None:
        return None
    tasks = [(task.id, task.result, str(task.error)) for task in state.tasks]
    parent = key(state.parent_config)
    return state.values, state.next, state.metadata, state.created_at, parent, tasks


def tree() -> None:
    """Print the thread's history; the forks stand beside each other."""
    with open_desk() as desk:
        history = desk.history()
        children: dict[str | None, list[StateSnapshot]] = defaultdict(list)
        for state in history:
            children[key(state.parent_config)].append(state)
        rows = list(_rows(children))
        width = max((len(left) for left, _, _ in rows), default=0) + 2
        show(f"{'step':{width}}{'source':8}{'next':14}what it added")
        for left, state, parent in rows:
            goes_to = "+".join(state.next) if state.next else "END"
            source = (state.metadata or {}).get("source", "")
            here = "   <- the thread is here" if state is history[-1] else ""
            show(f"{left:{width}}{source:8}{goes_to:14}{_added(state, parent)}{here}".rstrip())
        check(
            len(rows) == len(history) and len(children[None]) == 1,
            f"one tree: {len(history)} checkpoints, each with its parent, from one root",
            f"{len(rows)} of {len(history)} hang together, {len(children[None])} roots",
        )
        forks = [each for parent, each in children.items() if len(each) > 1]
        check(
            [len(each) for each in forks] == [3],
            "one fork of three branches: the trip, its replay, and Porto",
            [len(each) for each in forks],
        )


Row = tuple[str, StateSnapshot, "StateSnapshot | None"]


def _rows(
    children: dict[str | None, list[StateSnapshot]],
    parent: StateSnapshot | None = None,
    first: str = "",
    rest: str = "",
) -> Iterator[Row]:
    """Walk one branch; where it forks, walk each branch with a rail of its own.

    Only forks recurse: a long conversation is one branch, and would exceed Python's stack.
    """
    following = children[key(parent.config) if parent else None]
    while following:
        if len(following) > 1:
            *others, last = following
            for each in others:
                yield from _branch(children, each, parent, rest + "   ├─", rest + "   │ ")
            yield from _branch(children, last, parent, rest + "   └─", rest + "     ")
            return
        (state,) = following
        yield f"{first or rest}{_step(state)}", state, parent
        parent, following, first = state, children[key(state.config)], ""


def _branch(
    children: dict[str | None, list[StateSnapshot]],
    state: StateSnapshot,
    parent: StateSnapshot | None,
    first: str,
    rest: str,
) -> Iterator[Row]:
    yield f"{first}{_step(state)}", state, parent
    yield from _rows(children, state, rest=rest)


def _step(state: StateSnapshot) -> str:
    return f"{(state.metadata or {}).get('step', '?'):>3}"


def _added(state: StateSnapshot, parent: StateSnapshot | None) -> str:
    before = parent.values.get("messages", []) if parent else []
    added = [each for each in state.values.get("messages", []) if each not in before]
    if len(added) > 1 and all(isinstance(each, ToolMessage) for each in added):
        return "; ".join(short(each) for each in added)
    if (state.metadata or {}).get("source") == "fork":
        return "(as its parent, to go on from here)"
    return short(added[-1]) if added else ""


if __name__ == "__main__":
    steps = {each.__name__: each for each in (crash, resume, approve, travel, tree)}
    try:
        steps[sys.argv[1]]()
    except MongoSaverError as error:
        show("✗ does not hold: the state can be read")
        sys.exit(f"{type(error).__name__}: {error}")
