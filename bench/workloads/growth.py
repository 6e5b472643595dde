"""A real chat graph over hundreds of turns: what it stores, what it sends, how slow it gets.

The savers take turns within each turn of the chat, so that all of them see the same machine. At the
milestones every database is flushed and asked how much it holds.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from bench.report import Table, label, number, ratio, size
from bench.states import Writer, chat_graph, chat_turn, config_of, payload_bytes
from bench.timing import milliseconds, shuffled

if TYPE_CHECKING:
    from bench.entries import Session
    from bench.workloads import Run

NAME = "growth"
SAVERS = ("mongosaver", "official", "postgres", "sqlite", "memory")
MILESTONES = (50, 200, 500, 1000)
QUICK_MILESTONES = (10, 30)
# The turn whose time is compared with the first milestone's: the last that every saver reaches.
COMPARED = 500
# It keeps every version in this process: two gigabytes at 1,000 turns.
LAST_TURN = {"memory": 500}
# Turns over which a time is averaged: single ones are noise.
WINDOW = 20


def measure(run: Run) -> dict[str, Any]:
    """Runs the chat on every saver, turn by turn."""
    milestones = QUICK_MILESTONES if run.quick else MILESTONES
    with run.sessions(SAVERS, NAME) as sessions:
        chats = {name: _Growth(session) for name, session in sessions.items()}
        for turn in range(1, milestones[-1] + 1):
            going = [name for name in chats if turn <= LAST_TURN.get(name, turn)]
            for name in shuffled(going, run.shuffle):
                chats[name].turn()
            if turn in milestones:
                run.say(f"{turn} turns")
                for name in going:
                    chats[name].look(turn)
        return {
            "milestones": list(milestones),
            "entries": {name: chat.result() for name, chat in chats.items()},
        }


class _Growth:
    """One saver's chat."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.writer = Writer()
        self.graph = chat_graph(session.saver, self.writer)
        self.times: list[float] = []
        self.sent = self.received = 0
        self.looks: dict[str, dict[str, Any]] = {}

    def turn(self) -> None:
        operation = chat_turn(self.session, self.graph, "growth", self.writer)
        before = self.session.traffic()
        self.times.append(milliseconds(operation))
        after = self.session.traffic()
        if before is not None and after is not None:
            self.sent += after[0] - before[0]
            self.received += after[1] - before[1]

    def look(self, turn: int) -> None:
        stored = self.session.stored()
        found = self.session.get_tuple(config_of("growth"))()
        messages = found.checkpoint["channel_values"]["messages"]
        if len(messages) != 2 * turn:
            raise RuntimeError(f"{len(messages)} messages came back after {turn} turns")
        counted = self.session.traffic() is not None
        self.looks[str(turn)] = {
            "state": payload_bytes(found.checkpoint["channel_values"]),
            "documents": stored.documents if stored else None,
            "logical": stored.logical if stored else None,
            "disk": stored.disk if stored else None,
            "indexes": stored.indexes if stored else None,
            "sent": self.sent if counted else None,
            "received": self.received if counted else None,
            "turn_ms": statistics.median(self.times[-WINDOW:]),
        }

    def result(self) -> dict[str, Any]:
        return {"milestones": self.looks, "turns_ms": [round(each, 3) for each in self.times]}


def around(times: list[float], turn: int) -> float | None:
    """The median time of a turn over the window that is centred on it, or ends with the chat."""
    if len(times) < turn:
        return None
    start = max(0, min(turn - WINDOW // 2, len(times) - WINDOW))
    return statistics.median(times[start : start + WINDOW])


def tables(result: dict[str, Any]) -> list[Table]:
    """Bytes stored, bytes sent, time per turn."""
    milestones = result["milestones"]
    entries = result["entries"]
    stored = []
    for turn in milestones:
        for name, entry in entries.items():
            look = entry["milestones"].get(str(turn))
            if look is not None:
                stored.append(_stored_row(turn, name, look))
    first = milestones[0]
    last = COMPARED if COMPARED in milestones else milestones[-1]
    times = [
        [
            label(name),
            *(number(around(entry["turns_ms"], turn)) for turn in milestones),
            number(ratio(around(entry["turns_ms"], last), around(entry["turns_ms"], first))),
        ]
        for name, entry in entries.items()
    ]
    return [
        Table(
            "A chat that grows: bytes stored",
            (
                "turns",
                "saver",
                "documents",
                "data",
                "on disk",
                "indexes",
                "logical x",
                "disk x",
                "sent",
                "received",
            ),
            stored,
            "Data is as written, on disk after a flush, indexes on disk. `x`: data or disk, each "
            "with indexes, as a multiple of the state's msgpack bytes. SQLite's indexes are within "
            "its file. Sent and received: bytes between client and server for the whole chat.",
        ),
        Table(
            "A chat that grows: milliseconds per turn",
            ("saver", *(f"turn {turn}" for turn in milestones), f"turn {last} / {first}"),
            times,
            f"Three checkpoints a turn. Medians of {WINDOW} turns, with LangGraph's own work in "
            "them: the saver in memory shows how much that is.",
        ),
    ]


def multiples(look: dict[str, Any]) -> tuple[float | None, float | None]:
    """Everything stored as multiples of the state: logical and on disk, both with indexes."""
    indexes = look["indexes"] or 0
    logical = None if look["logical"] is None else look["logical"] + indexes
    disk = None if look["disk"] is None else look["disk"] + indexes
    return ratio(logical, look["state"]), ratio(disk, look["state"])


def _stored_row(turn: int, name: str, look: dict[str, Any]) -> list[str]:
    logical, disk = multiples(look)
    return [
        f"{turn:,}",
        label(name),
        f"{look['documents']:,}",
        size(look["logical"]),
        size(look["disk"]),
        size(look["indexes"]),
        number(logical),
        number(disk),
        size(look["sent"]),
        size(look["received"]),
    ]
