"""The history of a chat, 200 checkpoints, listed to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.report import Table, label, number, ratio
from bench.states import Writer, chat_graph, chat_turn, config_of
from bench.timing import summary, take_turns

if TYPE_CHECKING:
    from bench.entries import Session
    from bench.workloads import Run

NAME = "history"
SAVERS = (
    "mongosaver",
    "mongosaver-async",
    "official",
    "official-again",
    "postgres",
    "postgres-async",
    "sqlite",
    "memory",
)
CHECKPOINTS = 200
QUICK_CHECKPOINTS = 40
BASE = "official"


def measure(run: Run) -> dict[str, Any]:
    """Times `list` over the whole thread."""
    checkpoints = QUICK_CHECKPOINTS if run.quick else CHECKPOINTS
    with run.sessions(SAVERS, NAME) as sessions:
        for session in sessions.values():
            chat(session, checkpoints)
        jobs = {
            name: (lambda session=session: session.list(config_of(NAME), checkpoints))
            for name, session in sessions.items()
        }
        for name, prepare in jobs.items():
            rows = len(prepare()())
            if rows != checkpoints:
                raise RuntimeError(f"{name} listed {rows} checkpoints of {checkpoints}")
        samples = take_turns(jobs, rounds=max(2, run.rounds // 2), block=1, shuffle=run.shuffle)
    return {
        "checkpoints": checkpoints,
        "entries": {name: summary(each) for name, each in samples.items()},
    }


def chat(session: Session, checkpoints: int) -> None:
    """Runs a chat until its thread has so many checkpoints, or up to two more."""
    writer = Writer(3)
    graph = chat_graph(session.saver, writer)
    for _ in range(-(-checkpoints // 3)):
        chat_turn(session, graph, NAME, writer)()


def tables(result: dict[str, Any]) -> list[Table]:
    """Median, low percentile and best."""
    entries = result["entries"]
    base = entries.get(BASE, {})
    return [
        Table(
            f"list of {result['checkpoints']} checkpoints, milliseconds",
            ("saver", "median", "p10", "best", "ratio of medians", "of best"),
            [
                [
                    label(name),
                    number(each["median"]),
                    number(each["p10"]),
                    number(each["best"]),
                    number(ratio(each["median"], base.get("median"))),
                    number(ratio(each["best"], base.get("best"))),
                ]
                for name, each in entries.items()
            ],
            "Ratios to the official saver, which is entered twice: its second ratio is noise. "
            "Commands and bytes are in the table of commands.",
        )
    ]
