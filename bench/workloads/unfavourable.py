"""What append-only storage likes least, as real graphs: so that nobody has to find out.

Each case is a graph of one node. Counted is what all its turns store, as a multiple of the state at
the end, which is what an application would keep that stores nothing but the latest state.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from bench.report import Table, label, number, ratio, size
from bench.states import Writer, config_of, payload_bytes
from bench.timing import milliseconds, shuffled

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.workloads import Run

NAME = "unfavourable"
SAVERS = ("mongosaver", "official", "postgres", "sqlite")
TURNS = 500
QUICK_TURNS = 20
WINDOW = 50
LAST = 10
DOCUMENT = 100_000


def _last_messages(left: list[AnyMessage] | None, right: list[AnyMessage]) -> list[AnyMessage]:
    return ((left or []) + right)[-WINDOW:]


class _Window(TypedDict):
    messages: Annotated[list[AnyMessage], _last_messages]


class _Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class _Document(TypedDict):
    text: str
    edit: str


class _Map(TypedDict):
    notes: dict[str, str]
    note: str


_Constants = TypedDict(
    "_Constants",
    {
        "messages": Annotated[list[AnyMessage], add_messages],
        **{f"constant_{i}": dict[str, str] for i in range(10)},
    },
)


def _window(writer: Writer) -> tuple[Any, Any, Any]:
    def answer(state: _Window) -> Any:  # noqa: ARG001
        return {"messages": [writer.message()]}

    return _Window, answer, lambda turn: {"messages": [writer.message()]}  # noqa: ARG005


def _edit(writer: Writer) -> tuple[Any, Any, Any]:
    def answer(state: _Chat) -> Any:
        edited = writer.draw.choice(state["messages"][-LAST:])
        return {"messages": [writer.message(), type(edited)(writer.text(), id=edited.id)]}

    return _Chat, answer, lambda turn: {"messages": [writer.message()]}  # noqa: ARG005


def _document(writer: Writer) -> tuple[Any, Any, Any]:
    def insert(state: _Document) -> Any:
        text = state["text"]
        # Somewhere in the middle half.
        place = writer.draw.randrange(len(text) // 4, 3 * len(text) // 4)
        return {"text": text[:place] + state["edit"] + text[place:]}

    def values(turn: int) -> Any:
        first = {"text": writer.text(DOCUMENT)} if turn == 0 else {}
        return {**first, "edit": writer.text(100)}

    return _Document, insert, values


def _map(writer: Writer) -> tuple[Any, Any, Any]:
    def note(state: _Map) -> Any:
        notes = state.get("notes") or {}
        return {"notes": {**notes, f"note {len(notes)}": state["note"]}}

    return _Map, note, lambda turn: {"note": writer.text(765)}  # noqa: ARG005


def _constants(writer: Writer) -> tuple[Any, Any, Any]:
    def answer(state: Any) -> Any:  # noqa: ARG001
        return {"messages": [writer.message()]}

    def values(turn: int) -> Any:
        constants = {f"constant_{i}": {"profile": writer.text(1500)} for i in range(10)}
        return {"messages": [writer.message()], **(constants if turn == 0 else {})}

    return _Constants, answer, values


CASES: dict[str, Callable[[Writer], tuple[Any, Any, Any]]] = {
    f"chat trimmed to its last {WINDOW} messages": _window,
    f"append, and edit one of the last {LAST} messages": _edit,
    f"text of {DOCUMENT // 1000} KB, edited in its middle": _document,
    "map that grows by a key": _map,
    "chat with ten constant channels of 1.5 KB": _constants,
}


def measure(run: Run) -> dict[str, Any]:
    """Runs every case on every saver."""
    turns = QUICK_TURNS if run.quick else TURNS
    cases: dict[str, Any] = {}
    for number_, (case, make) in enumerate(CASES.items()):
        run.say(case)
        with run.sessions(SAVERS, f"{NAME}_{number_}") as sessions:
            done = {
                name: _run_case(sessions[name], make, turns)
                for name in shuffled(sessions, run.shuffle)
            }
            cases[case] = {name: done[name] for name in sessions}
    return {"turns": turns, "cases": cases}


def _run_case(session: Any, make: Any, turns: int) -> dict[str, Any]:
    state, node, values = make(Writer(9))
    builder = StateGraph(state)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    graph = builder.compile(checkpointer=session.saver)
    config = config_of("case")
    times = [milliseconds(session.invoke(graph, values(turn), config)) for turn in range(turns)]
    final = session.get_tuple(config)().checkpoint["channel_values"]
    stored = session.stored()
    return {
        "state": payload_bytes(final),
        "documents": stored.documents,
        "logical": stored.logical,
        "disk": stored.disk,
        "indexes": stored.indexes,
        "turn_ms": statistics.median(times[-20:]),
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """Bytes and multiples per case."""
    rows = []
    for case, entries in result["cases"].items():
        for name, each in entries.items():
            indexes = each["indexes"] or 0
            rows.append(
                [
                    case,
                    label(name),
                    size(each["state"]),
                    size(each["logical"]),
                    size(each["disk"]),
                    size(each["indexes"]),
                    number(ratio(each["logical"] + indexes, each["state"])),
                    number(ratio(each["disk"] + indexes, each["state"])),
                    number(each["turn_ms"]),
                ]
            )
    return [
        Table(
            f"Unfavourable cases, {result['turns']} turns of three checkpoints",
            (
                "case",
                "saver",
                "final state",
                "data",
                "on disk",
                "indexes",
                "logical x",
                "disk x",
                "last turns, ms",
            ),
            rows,
            "`x`: data or disk, each with indexes, as a multiple of the final state.",
        )
    ]
