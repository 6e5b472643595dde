"""Values of 1 to 100 MB: whether they are taken, how long it takes, and the memory it needs.

Memory is the peak of the resident set above what the process held before the call, measured in a
process of its own per saver and size. A put's own value is held before, and so not in its figure.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from bench.entries import ENTRIES
from bench.memory import ENVIRONMENT, peak
from bench.report import Table, label, number
from bench.servers import Servers
from bench.states import FORMAT, config_of

if TYPE_CHECKING:
    from bench.workloads import Run

NAME = "large"
SAVERS = ("mongosaver", "mongosaver-async", "official", "postgres", "sqlite")
MEGABYTES = (1, 8, 15, 16, 17, 40, 100)
QUICK_MEGABYTES = (1, 17)
MEGABYTE = 1024 * 1024


def measure(run: Run) -> dict[str, Any]:
    """Puts and gets one value per size, each in a new process."""
    sizes = QUICK_MEGABYTES if run.quick else MEGABYTES
    entries: dict[str, dict[str, Any]] = {}
    for name in run.names(SAVERS):
        run.say(name)
        entries[name] = {str(size): _in_child(run.servers, name, size) for size in sizes}
    return {"megabytes": list(sizes), "entries": entries}


def _in_child(servers: Servers, name: str, size: int) -> dict[str, Any]:
    child = subprocess.run(
        [sys.executable, "-m", "bench.workloads.large", name, str(size)],
        env={**servers.environment(), **ENVIRONMENT},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        return {"refused": child.stderr.strip().splitlines()[-1][:200]}
    return json.loads(child.stdout)


def _child(name: str, size: int) -> dict[str, Any]:
    """What one process measures."""
    value = random.Random(size).randbytes(size * MEGABYTE)
    with ENTRIES[name].session(Servers.handed_over(), f"{NAME}_{size}") as session:
        warm = _put(session, "warm", b"small")
        warm()
        session.get_tuple(config_of("warm"))()
        put = _put(session, "large", value)
        result: dict[str, Any] = {}
        try:
            result["put_ms"], result["put_peak"] = peak(put)
        except Exception as error:  # noqa: BLE001 - what a saver says of a value is a result
            return {"refused": type(error).__name__}
        del put
        found: list[Any] = []
        get = session.get_tuple(config_of("large"))
        result["get_ms"], result["get_peak"] = peak(lambda: found.append(get()))
        result["equal"] = found[0].checkpoint["channel_values"]["document"] == value
        return result


def _put(session: Any, thread_id: str, value: bytes) -> Any:
    checkpoint = empty_checkpoint()
    checkpoint["v"] = FORMAT
    checkpoint["id"] = str(uuid6())
    checkpoint["channel_values"] = {"document": value}
    version = session.next_version(None)
    checkpoint["channel_versions"] = {"document": version}
    metadata = {"source": "loop", "step": 1, "parents": {}}
    return session.put(config_of(thread_id), checkpoint, metadata, {"document": version})


def tables(result: dict[str, Any]) -> list[Table]:
    """Time and memory by size."""
    rows = []
    for name, entry in result["entries"].items():
        for size, each in entry.items():
            if "refused" in each:
                rows.append([label(name), size, "-", "-", "-", "-", each["refused"]])
                continue
            value = int(size) * MEGABYTE
            rows.append(
                [
                    label(name),
                    size,
                    number(each["put_ms"]),
                    number(each["put_peak"] / value),
                    number(each["get_ms"]),
                    number(each["get_peak"] / value),
                    "equal" if each["equal"] else "DIFFERENT",
                ]
            )
    return [
        Table(
            "Large values",
            ("saver", "MB", "put ms", "put memory x", "get ms", "get memory x", "came back"),
            rows,
            "Random bytes in one channel. Memory: the peak above what was held before the call, as "
            "a multiple of the value; MongoDB takes no document above 16 MB.",
        )
    ]


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], int(sys.argv[2]))))
