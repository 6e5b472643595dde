"""Commands and bytes per operation: counts, so the same on every machine.

Commands are counted by PyMongo's command listener, statements by the cursor class that psycopg is
given and by SQLite's trace; bytes are BSON bytes, or what the kernel counted for the connections.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from bench.entries import ENTRIES
from bench.report import Table, label, size
from bench.states import Chat, Writer, chat_graph, chat_turn, config_of
from bench.workloads import history

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.entries import Session
    from bench.workloads import Run

NAME = "commands"
SAVERS = ("mongosaver", "mongosaver-async", "official", "postgres", "postgres-async", "sqlite")
CHECKPOINTS = 200
QUICK_CHECKPOINTS = 40


def measure(run: Run) -> dict[str, Any]:
    """Counts each operation once."""
    checkpoints = QUICK_CHECKPOINTS if run.quick else CHECKPOINTS
    length = 10 if run.quick else 100
    with run.sessions(SAVERS, NAME, counted=True) as sessions:
        entries = {}
        for name, session in sessions.items():
            run.say(name)
            entries[name] = _count_all(session, checkpoints, length)
    return {"checkpoints": checkpoints, "entries": entries}


def _count_all(session: Session, checkpoints: int, length: int) -> dict[str, Any]:
    counted = {}

    def count(name: str, operation: Callable[[], Any]) -> None:
        counted[name] = _count(session, operation)

    # The history comes first: what is stored is then stored for this one thread.
    history.chat(session, checkpoints)
    stored = session.stored()
    count(
        f"list of {checkpoints} checkpoints",
        session.list(config_of(history.NAME), limit=checkpoints),
    )
    counted["thread"] = {"stored": stored.logical if stored else None}

    writer = Writer(4)
    graph = chat_graph(session.saver, writer)
    chat_turn(session, graph, "turn", writer)()
    count("turn of a chat (3 checkpoints)", chat_turn(session, graph, "turn", writer))

    for messages in (2, length):
        chat = Chat(session, f"thread of {messages}")
        chat.grow_to(messages)
        count(f"put at {messages} messages", chat.sibling())
    count(f"put at {length} messages, none added", chat.unchanged())
    count("put_writes", chat.writes(chat.tip))
    count(f"get_tuple, latest of {length} messages", chat.latest())
    count(
        f"get_tuple by id of {length} messages",
        session.get_tuple(config_of(chat.thread_id, chat.tip)),
    )
    count("delete_thread", session.delete_thread(chat.thread_id))
    return counted


def _count(session: Session, operation: Callable[[], Any]) -> dict[str, Any]:
    record = session.record
    commands, sent, received = len(record.commands), record.sent, record.received
    before = session.traffic() if record.sent == 0 else None
    operation()
    after = session.traffic() if before is not None else None
    result = {
        "commands": record.commands[commands:],
        "sent": record.sent - sent or None,
        "received": record.received - received or None,
    }
    if before is not None and after is not None:
        result["sent"], result["received"] = after[0] - before[0], after[1] - before[1]
    return result


def tables(result: dict[str, Any]) -> list[Table]:
    """Commands and bytes per operation, and which commands mongosaver sends."""
    entries = result["entries"]
    names = list(entries)
    operations = [each for each in next(iter(entries.values()), {}) if each != "thread"]
    counts = [
        [operation, *(str(len(entries[name][operation]["commands"])) for name in names)]
        for operation in operations
    ]
    sizes = [
        [operation, *(_bytes(entries[name][operation]) for name in names)]
        for operation in operations
    ]
    sizes.append(
        [
            "stored for the thread that was listed",
            *(size(entries[name]["thread"]["stored"]) for name in names),
        ]
    )
    columns = ["operation", *map(label, names)]
    found = [
        Table(
            "Commands per operation",
            columns,
            counts,
            "For Postgres and SQLite: statements; Postgres sends several of them in one pipeline.",
        ),
        Table("Bytes per operation, sent / received", columns, sizes),
    ]
    for name in names:
        if ENTRIES[name].server == "MongoDB":
            rows = [
                [operation, _spelled(entries[name][operation]["commands"])]
                for operation in operations
            ]
            found.append(Table(f"Commands of {label(name)}", ("operation", "commands"), rows))
    return found


def _bytes(counted: dict[str, Any]) -> str:
    if counted["sent"] is None:
        return "-"
    return f"{size(counted['sent'])} / {size(counted['received'])}"


def _spelled(commands: list[str]) -> str:
    return ", ".join(
        each if times == 1 else f"{times} {each}" for each, times in Counter(commands).items()
    )
