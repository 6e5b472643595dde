"""A state that lies in pending writes: a `DeltaChannel`, loaded cold after many updates.

LangGraph stores such a channel's value every so many updates only; a process that has not seen the
thread rebuilds it from what was written since. So the time of the first load grows with the writes
that lie between, and how a saver finds those is what is measured: one page after the other, or one
ancestor after the other.

A load is a graph's `get_state` by a saver that remembers nothing, on connections that are open. One
thread is as long as the default frequency lets the walk become (99 updates since a stored value),
the other never had a value stored.
"""

from __future__ import annotations

import gc
import uuid
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph

from bench.entries import Recorder
from bench.report import Table, label, number, ratio
from bench.states import FORMAT, Writer, config_of
from bench.timing import milliseconds, shuffled, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.entries import Session
    from bench.workloads import Run

NAME = "delta"
SAVERS = (
    "mongosaver",
    "mongosaver-async",
    "official",
    "postgres",
    "postgres-async",
)
# One less than a multiple of the default frequency: the longest walk that it allows.
UPDATES = (299, 2_999)
QUICK_UPDATES = (99,)
DEFAULT = 100
NEVER = 10_000
BASE = "official"


def measure(run: Run) -> dict[str, Any]:
    """Fills one thread per frequency, and loads it at each length."""
    lengths = QUICK_UPDATES if run.quick else UPDATES
    cases: dict[str, Any] = {}
    with run.sessions(SAVERS, NAME) as sessions:
        threads = {
            name: {frequency: Thread(session, frequency) for frequency in (DEFAULT, NEVER)}
            for name, session in sessions.items()
        }
        for length in lengths:
            for name, session in sessions.items():
                run.say(f"{name}: {length:,} updates")
                with session.connected(hasty=True):
                    for thread in threads[name].values():
                        thread.grow_to(length)
            for frequency in (DEFAULT, NEVER):
                chosen = {name: each[frequency] for name, each in threads.items()}
                case = {"updates": length, "frequency": frequency}
                cases[f"{length} {frequency}"] = {**case, "entries": _loads(run, chosen)}
    return {"cases": cases}


def _loads(run: Run, threads: dict[str, Thread]) -> dict[str, Any]:
    samples: dict[str, list[float]] = {name: [] for name in threads}
    counted = {name: _counted(thread) for name, thread in threads.items()}
    for _ in range(max(2, run.rounds // 4)):
        for name in shuffled(threads, run.shuffle):
            load = threads[name].cold()
            gc.collect()
            samples[name].append(milliseconds(load))
    return {name: {**summary(samples[name]), "commands": counted[name]} for name in threads}


def _counted(thread: Thread) -> list[str]:
    """The commands of one load that is not timed, on connections of its own."""
    recorder = Recorder(sizes=False)
    with thread.session.connected(recorder):
        thread.check(thread.cold()())  # connections introduce themselves now
        load = thread.cold()
        start = len(recorder.record.commands)
        load()
        return recorder.record.commands[start:]


class Thread:
    """A thread with a `DeltaChannel`, put as LangGraph puts one: writes, then a checkpoint."""

    def __init__(self, session: Session, frequency: int) -> None:
        self.session = session
        self.frequency = frequency
        self.thread_id = f"every {frequency}"
        self.messages: list[AnyMessage] = []
        self.writer = Writer(frequency)
        self.tip: str | None = None
        self.since = 0
        self.version = session.next_version(None)

    def grow_to(self, updates: int) -> None:
        """Adds one message per super-step until there were so many updates."""
        if self.tip is None:
            self._put({}, {"__start__": self.version})
        while len(self.messages) < updates:
            message = self.writer.message()
            at = config_of(self.thread_id, self.tip)
            task = str(uuid.UUID(int=self.writer.draw.getrandbits(128), version=4))
            self.session.put_writes(at, [("messages", [message])], task)()
            self.messages.append(message)
            self.version = self.session.next_version(self.version)
            self.since += 1
            values: dict[str, Any] = {}
            if self.since == self.frequency:
                values["messages"] = _DeltaSnapshot(list(self.messages))
                self.since = 0
            self._put(values, {"messages": self.version})

    def _put(self, values: dict[str, Any], new: dict[str, Any]) -> None:
        checkpoint = empty_checkpoint()
        checkpoint["v"] = FORMAT
        checkpoint["id"] = str(uuid6())
        checkpoint["channel_values"] = values
        checkpoint["channel_versions"] = {"__start__": self.session.next_version(None), **new}
        checkpoint["versions_seen"] = {"__input__": {}, "agent": new}
        metadata: dict[str, Any] = {"source": "loop", "step": len(self.messages), "parents": {}}
        if self.since:
            metadata["counters_since_delta_snapshot"] = {"messages": (self.since, self.since)}
        at = config_of(self.thread_id, self.tip)
        self.session.put(at, checkpoint, metadata, new)()
        self.tip = checkpoint["id"]

    def cold(self) -> Callable[[], Any]:
        """The get_state of the thread by a new saver."""
        self.session.forget()
        graph = delta_graph(self.session.saver, self.frequency)
        return self.session.get_state(graph, config_of(self.thread_id))

    def check(self, state: Any) -> None:
        """Compares a state that was loaded with what was put."""
        loaded = [message.id for message in state.values["messages"]]
        if loaded != [message.id for message in self.messages]:
            raise RuntimeError(f"{len(loaded)} messages loaded of {len(self.messages)}")


def _extend(state: list[AnyMessage], writes: Sequence[list[AnyMessage]]) -> list[AnyMessage]:
    return [*state, *(message for write in writes for message in write)]


def delta_graph(saver: Any, frequency: int) -> Any:
    """A graph whose messages are a `DeltaChannel`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the channel is in beta, and says so
        channel = DeltaChannel(_extend, list, snapshot_frequency=frequency)
    messages = Annotated[list[AnyMessage], channel]
    # A class would look its annotations up in the module, where `messages` is not.
    builder = StateGraph(TypedDict("State", {"messages": messages}))  # type: ignore[misc]
    builder.add_node("agent", lambda state: {"messages": state["messages"][:1]})
    builder.add_edge(START, "agent")
    builder.add_edge("agent", END)
    return builder.compile(checkpointer=saver)


def tables(result: dict[str, Any]) -> list[Table]:
    """One table: a row per saver, length and frequency."""
    rows = []
    for case in result["cases"].values():
        base = case["entries"].get(BASE, {}).get("median")
        since = case["updates"] % case["frequency"]
        for name, each in case["entries"].items():
            rows.append(
                [
                    label(name),
                    number(case["updates"]),
                    number(since),
                    number(each["median"]),
                    number(each["best"]),
                    number(ratio(each["median"], base)),
                    number(len(each["commands"])),
                    _which(each["commands"]),
                ]
            )
    columns = (
        "saver",
        "updates",
        "since stored",
        "median ms",
        "best ms",
        "ratio to official",
        "commands",
        "which",
    )
    return [
        Table(
            "DeltaChannel: cold load",
            columns,
            rows,
            "A graph's get_state by a saver that remembers nothing, on open connections. Since "
            "stored: updates after the last stored value (LangGraph's default frequency stores "
            "one every 100), which the state is rebuilt from.",
        )
    ]


def _which(commands: Sequence[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in Counter(commands).items())
