"""Where the time of an operation goes: serialisation, commands, and the rest.

Serialisation is measured around the serializer's calls, commands as PyMongo reports them (from
sending to the reply's arrival: the server, the disk and the network). The rest is Python: BSON, the
driver, hashing, and the saver's own code. `--profile` shows the functions.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import TYPE_CHECKING, Any

from bench.entries import ENTRIES, Recorder
from bench.report import Table, label, number
from bench.states import Chat
from bench.timing import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.entries import Session
    from bench.workloads import Run

NAME = "breakdown"
SAVERS = ("mongosaver", "official")
LENGTHS = (10, 100, 1000)
QUICK_LENGTHS = (10,)
RUNS = 40
QUICK_RUNS = 5


class _TimedSerializer:
    """A serializer that adds up the time spent in it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.seconds = 0.0

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        start = time.perf_counter()
        try:
            return self.inner.dumps_typed(value)
        finally:
            self.seconds += time.perf_counter() - start

    def loads_typed(self, typed: tuple[str, bytes]) -> Any:
        start = time.perf_counter()
        try:
            return self.inner.loads_typed(typed)
        finally:
            self.seconds += time.perf_counter() - start


def measure(run: Run) -> dict[str, Any]:
    """Splits put, put_writes and get_tuple at each length."""
    entries: dict[str, Any] = {}
    for name in run.names(SAVERS):
        run.say(name)
        for length in QUICK_LENGTHS if run.quick else LENGTHS:
            recorder = Recorder(sizes=False)
            with ENTRIES[name].session(run.servers, f"{NAME}_{length}", recorder) as session:
                chat = Chat(session, NAME)
                chat.grow_to(length)
                chat.writes(chat.tip)()
                serializer = session.saver.serde = _TimedSerializer(session.saver.serde)
                runs = QUICK_RUNS if run.quick else RUNS
                for operation, prepare in (
                    ("get_tuple", chat.latest),
                    ("put_writes", chat.writes),
                    ("put", chat.sibling),
                ):
                    split = _split(session, serializer, prepare, runs)
                    entries.setdefault(name, {}).setdefault(operation, {})[str(length)] = split
    return {"entries": entries}


def _split(
    session: Session,
    serializer: _TimedSerializer,
    prepare: Callable[[], Callable[[], Any]],
    runs: int,
) -> dict[str, float]:
    parts: dict[str, list[float]] = {"total": [], "serialisation": [], "commands": [], "rest": []}
    gc.collect()
    for _ in range(runs + 1):
        operation = prepare()
        before = serializer.seconds, session.record.seconds
        total = milliseconds(operation)
        serialisation = (serializer.seconds - before[0]) * 1000
        commands = (session.record.seconds - before[1]) * 1000
        parts["total"].append(total)
        parts["serialisation"].append(serialisation)
        parts["commands"].append(commands)
        parts["rest"].append(total - serialisation - commands)
    return {part: statistics.median(samples[1:]) for part, samples in parts.items()}


def tables(result: dict[str, Any]) -> list[Table]:
    """The medians of the parts."""
    rows = []
    for operation in ("put", "put_writes", "get_tuple"):
        for name, operations in result["entries"].items():
            for length, parts in operations[operation].items():
                shown = [number(parts[part]) for part in parts]
                rows.append([operation, f"{int(length):,}", label(name), *shown])
    return [
        Table(
            "Where the time goes, milliseconds",
            ("operation", "messages", "saver", "total", "serialisation", "commands", "the rest"),
            rows,
            "Medians of each part alone. Commands: the server, its disk and the network.",
        )
    ]
