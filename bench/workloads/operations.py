"""Single operations at 10, 100 and 1,000 messages, against a raw insert and find of the same bytes.

Each thread was written put by put, so that its storage has the shape that a life gives it. The
timed puts all go on its tip, so that it keeps its length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.report import Table, label, number, ratio
from bench.states import Chat
from bench.timing import summary, take_turns

if TYPE_CHECKING:
    from bench.workloads import Run

NAMES = ("put", "put_writes", "get_tuple")
SAVERS = (
    "mongosaver",
    "mongosaver-cold",
    "mongosaver-async",
    "official",
    "official-again",
    "postgres",
    "postgres-async",
    "sqlite",
    "memory",
    "raw",
    "raw-serde",
)
LENGTHS = (10, 100, 1000)
QUICK_LENGTHS = (10, 100)
BLOCK = 10
BASE = "official"


def measure(run: Run, operations: tuple[str, ...] = NAMES) -> dict[str, Any]:
    """Times the operations at each length."""
    result: dict[str, Any] = {operation: {} for operation in operations}
    for length in QUICK_LENGTHS if run.quick else LENGTHS:
        with run.sessions(SAVERS, f"operations_{length}") as sessions:
            run.say(f"threads of {length} messages")
            chats = {}
            for name, session in sessions.items():
                chats[name] = Chat(session, "operations")
                chats[name].grow_to(length)
                chats[name].writes(chats[name].tip)()
            # Reading first: puts make other checkpoints the latest.
            for operation in ("get_tuple", "put_writes", "put"):
                if operation not in operations:
                    continue
                prepare = {"get_tuple": Chat.latest, "put_writes": Chat.writes, "put": Chat.sibling}
                jobs = {
                    name: (lambda chat=chat, make=prepare[operation]: make(chat))
                    for name, chat in chats.items()
                }
                samples = take_turns(
                    jobs, rounds=run.rounds, block=2 if run.quick else BLOCK, shuffle=run.shuffle
                )
                result[operation][str(length)] = {
                    name: summary(each) for name, each in samples.items()
                }
    return result


def tables(result: dict[str, Any]) -> list[Table]:
    """Medians and low percentiles per operation, with the ratio to the official saver."""
    return [_table(operation, result[operation]) for operation in NAMES if operation in result]


def _table(operation: str, lengths: dict[str, dict[str, Any]]) -> Table:
    names = list(next(iter(lengths.values()), {}))
    rows = []
    for name in names:
        row = [label(name)]
        for entries in lengths.values():
            base = entries.get(BASE, {}).get("median")
            row += [
                number(entries[name]["median"]),
                number(entries[name]["p10"]),
                number(ratio(entries[name]["median"], base)),
            ]
        rows.append(row)
    columns = ["saver"]
    for length in lengths:
        columns += [f"{int(length):,}: median", "p10", "ratio"]
    return Table(
        f"{operation}, milliseconds by number of messages",
        columns,
        rows,
        "Ratio of medians to the official saver; it is entered twice: its second ratio is noise.",
    )
