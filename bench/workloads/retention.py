"""A long thread is copied, the copy deleted, and the thread pruned to its latest checkpoint.

The thread is that of a chat which is summarised every 40 messages, so that no saver stores a state
that grows with the thread: what is measured is the number of checkpoints. Each has one pending
write. Every operation runs once per saver, in a process of its own: time, peak memory above what
the process held when the thread was there, and commands. Their names are noted while time is taken,
which is nothing beside operations of this size.

Postgres has no `copy_thread`: the thread that it deletes was copied by SQL.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.entries import ENTRIES, PostgresSession, Recorder
from bench.memory import ENVIRONMENT, peak, resident
from bench.report import Table, label, number, size
from bench.servers import Servers
from bench.states import Chat, config_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.entries import Session
    from bench.workloads import Run

NAME = "retention"
SAVERS = ("mongosaver", "mongosaver-async", "postgres")
CHECKPOINTS = 10_000
QUICK_CHECKPOINTS = 500
SUMMARY = 40
THREAD, COPY = "thread", "copy"


def measure(run: Run) -> dict[str, Any]:
    """Runs each saver in a new process."""
    checkpoints = QUICK_CHECKPOINTS if run.quick else CHECKPOINTS
    entries: dict[str, Any] = {}
    for name in run.names(SAVERS):
        run.say(name)
        child = subprocess.run(
            [sys.executable, "-m", "bench.workloads.retention", name, str(checkpoints)],
            env={**run.servers.environment(), **ENVIRONMENT},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        entries[name] = json.loads(child.stdout)
    return {"checkpoints": checkpoints, "entries": entries}


def _child(name: str, checkpoints: int) -> dict[str, Any]:
    """What one process measures."""
    with ENTRIES[name].session(Servers.handed_over(), NAME) as session:
        with session.connected(hasty=True):
            fill(session, checkpoints)
        recorder = Recorder(sizes=False)
        with session.connected(recorder):
            Chat(session, "another").grow_to(1)  # a saver's first write makes sure of its indexes
            before = resident()

            def measured(operation: Callable[[], Any]) -> dict[str, Any]:
                start = len(recorder.record.commands)
                taken, highest = peak(operation, above=before)
                sent = recorder.record.commands[start:]
                return {"seconds": taken / 1000, "peak": highest, "commands": sent}

            result = {}
            if isinstance(session, PostgresSession):
                session.copy_rows(THREAD, COPY)
            else:
                result["copy_thread"] = measured(session.copy_thread(THREAD, COPY))
            _expect(session, COPY, checkpoints)
            result["delete_thread"] = measured(session.delete_thread(COPY))
            _expect(session, COPY, 0)
            # Last, because what it has held in memory would count for whatever came after it.
            result["prune, keep_latest"] = measured(session.prune(THREAD))
            _expect(session, THREAD, 1)
            return result


def fill(session: Session, checkpoints: int) -> None:
    """Puts the thread, which starts again from one message after each summary."""
    chat = Chat(session, THREAD)
    for number_ in range(checkpoints):
        if number_ and number_ % SUMMARY == 0:
            chat.messages = []
        chat.grow_to(len(chat.messages) + 1)
        chat.writes(chat.tip)()


def _expect(session: Session, thread_id: str, checkpoints: int) -> None:
    """Looks whether a thread has as many checkpoints as it should, by its ends."""
    rows = session.list(config_of(thread_id), limit=2)()
    if len(rows) != min(checkpoints, 2):
        raise RuntimeError(f"{thread_id} has {len(rows)} checkpoints or more, not {checkpoints}")


def tables(result: dict[str, Any]) -> list[Table]:
    """One table: a row per operation and saver."""
    rows = []
    operations = dict.fromkeys(name for each in result["entries"].values() for name in each)
    for operation in operations:
        for name, each in result["entries"].items():
            if operation not in each:
                rows.append([label(name), operation, "-", "-", "-", "has none"])
                continue
            found = each[operation]
            counts = Counter(found["commands"])
            rows.append(
                [
                    label(name),
                    operation,
                    number(found["seconds"]),
                    size(found["peak"]),
                    number(len(found["commands"])),
                    ", ".join(f"{count} {command}" for command, count in counts.items()),
                ]
            )
    return [
        Table(
            f"A thread of {result['checkpoints']:,} checkpoints, copied, deleted and pruned",
            ("saver", "operation", "seconds", "peak memory", "commands", "which"),
            rows,
            "Peak memory: what the client's process held at most above what it held before, with "
            "the thread stored and nothing of it read. Each operation ran once.",
        )
    ]


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], int(sys.argv[2]))))
