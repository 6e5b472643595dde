"""A hundred graphs at once on one event loop: how long all take, and how long the loop is held up.

Each graph has ten steps and a thread of its own. A watcher sleeps beside them; how much too late it
wakes is the event loop's lag, which every other request of such a process would feel.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
import uuid
from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage

from bench.report import Table, label, number, ratio
from bench.states import config_of, steps_graph
from bench.timing import shuffled, summary

if TYPE_CHECKING:
    from bench.entries import Session
    from bench.workloads import Run

NAME = "concurrent"
SAVERS = (
    "mongosaver-async",
    "official",
    "official-again",
    "postgres-async",
    "sqlite-async",
    "memory",
)
GRAPHS = 100
QUICK_GRAPHS = 10
STEPS = 10
TICK = 0.005
BASE = "official"


def measure(run: Run) -> dict[str, Any]:
    """Runs the graphs on one saver after the other, in rounds."""
    graphs = QUICK_GRAPHS if run.quick else GRAPHS
    walls: dict[str, list[float]] = {}
    lags: dict[str, list[list[float]]] = {}
    with run.sessions(SAVERS, NAME) as sessions:
        compiled = {name: steps_graph(each.saver, STEPS) for name, each in sessions.items()}
        for name, session in sessions.items():  # connections and threads are made here
            session.run(_together(compiled[name], 2 if run.quick else 20))
        rounds = 2 if run.quick else max(3, run.rounds // 3)
        for turn in range(rounds):
            run.say(f"round {turn + 1} of {rounds}")
            for name in shuffled(sessions, run.shuffle):
                wall, lag = _one_round(sessions[name], compiled[name], graphs)
                walls.setdefault(name, []).append(wall)
                lags.setdefault(name, []).append(lag)
    return {
        "graphs": graphs,
        "steps": STEPS,
        "entries": {
            name: {
                "wall_s": summary(walls[name]),
                "lag_ms": {
                    "largest": max(max(each) for each in lags[name]),
                    "largest_median": statistics.median(max(each) for each in lags[name]),
                    "p99": statistics.median(summary_p99(each) for each in lags[name]),
                },
            }
            for name in compiled
        },
    }


def summary_p99(samples: list[float]) -> float:
    """The 99th percentile."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def _one_round(session: Session, graph: Any, graphs: int) -> tuple[float, list[float]]:
    gc.collect()

    async def watched() -> tuple[float, list[float]]:
        lag: list[float] = []
        watcher = asyncio.ensure_future(_watch(lag))
        start = time.perf_counter()
        await _together(graph, graphs)
        wall = time.perf_counter() - start
        watcher.cancel()
        return wall, lag or [0.0]

    return session.run(watched())


async def _together(graph: Any, graphs: int) -> None:
    states = await asyncio.gather(
        *(
            graph.ainvoke({"messages": [HumanMessage("go")]}, config_of(str(uuid.uuid4())))
            for _ in range(graphs)
        )
    )
    if any(len(state["messages"]) != STEPS + 1 for state in states):
        raise RuntimeError("a graph did not take all its steps")


async def _watch(lag: list[float]) -> None:
    while True:
        start = time.perf_counter()
        await asyncio.sleep(TICK)
        lag.append((time.perf_counter() - start - TICK) * 1000)


def tables(result: dict[str, Any]) -> list[Table]:
    """Wall time and lag."""
    entries = result["entries"]
    base = entries.get(BASE, {}).get("wall_s", {})
    return [
        Table(
            f"{result['graphs']} graphs of {result['steps']} steps at once, on one event loop",
            (
                "saver",
                "wall s, median",
                "best",
                "ratio",
                "lag ms, largest",
                "median of largest",
                "p99",
            ),
            [
                [
                    label(name),
                    number(each["wall_s"]["median"]),
                    number(each["wall_s"]["best"]),
                    number(ratio(each["wall_s"]["median"], base.get("median"))),
                    number(each["lag_ms"]["largest"]),
                    number(each["lag_ms"]["largest_median"]),
                    number(each["lag_ms"]["p99"]),
                ]
                for name, each in entries.items()
            ],
            "Ratio of medians to the official saver's async methods. The lag in memory is "
            "LangGraph's own work.",
        )
    ]
