"""Where the time of one operation goes: cProfile over many runs of it.

The profiler slows Python's own calls down more than C's: shares are hints, not measurements.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from typing import TYPE_CHECKING

from bench.entries import ENTRIES
from bench.states import Chat, Writer, chat_graph, chat_turn, config_of
from bench.timing import milliseconds, summary
from bench.workloads import history

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.entries import Session
    from bench.servers import Servers

OPERATIONS = ("put", "put_writes", "get_tuple", "list", "turn")
_SECONDS = 3.0
_LINES = 35


def profile(servers: Servers, wanted: str, seconds: float = _SECONDS) -> str:
    """Profiles an operation and tells where its time goes.

    Args:
        servers: The servers of this run.
        wanted: `operation:length` or `operation:length:saver`, such as `put:1000`. The length is
            in messages, for `list` in checkpoints.
        seconds: How long the operation is repeated.
    """
    operation, length, name = (*wanted.split(":"), "", "")[:3]
    name = name or "mongosaver"
    if operation not in OPERATIONS or name not in ENTRIES or not (length or "100").isdigit():
        raise ValueError(
            f"{wanted!r} is not operation:length:saver, with an operation of "
            f"{', '.join(OPERATIONS)} and a saver of {', '.join(ENTRIES)}"
        )
    if why := ENTRIES[name].absence(servers):
        raise ValueError(f"{name} is absent: {why}")
    with ENTRIES[name].session(servers, "profile") as session:
        prepare = _prepare(session, operation, int(length or 100))
        prepare()()
        plain = [milliseconds(prepare()) for _ in range(20)]
        profiler = cProfile.Profile()
        runs = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            prepared = prepare()
            profiler.runcall(prepared)
            runs += 1
    out = io.StringIO()
    statistics = pstats.Stats(profiler, stream=out).strip_dirs()
    statistics.sort_stats("cumulative").print_stats(_LINES)
    statistics.sort_stats("tottime").print_stats(_LINES // 2)
    body = out.getvalue().strip()
    return (
        f"{operation} at {length or 100} with {name}: median {summary(plain)['median']:.2f} ms"
        f" without the profiler; {runs} runs with it\n\n{body}"
    )


def _prepare(session: Session, operation: str, length: int) -> Callable[[], Callable[[], object]]:
    if operation == "list":
        history.chat(session, length)
        return lambda: session.list(config_of(history.NAME), length)
    if operation == "turn":
        writer = Writer()
        graph = chat_graph(session.saver, writer)
        for _ in range(length // 2):
            chat_turn(session, graph, "profile", writer)()
        return lambda: chat_turn(session, graph, "profile", writer)
    chat = Chat(session, "profile")
    chat.grow_to(length)
    chat.writes(chat.tip)()
    return {"put": chat.sibling, "put_writes": chat.writes, "get_tuple": chat.latest}[operation]
