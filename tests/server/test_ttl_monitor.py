"""MongoDB's own TTL monitor at work on threads that are in use and on threads that are not."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

from mongosaver.testing import mongo_server
from tests.contract.samples import LARGE, Line, config
from tests.faces import FACES
from tests.server.faults import staged

if TYPE_CHECKING:
    from tests.faces import Face, Stage

SUFFIXES = ("", ".writes", ".blobs")


@pytest.fixture(scope="module")
def monitored(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A server whose TTL monitor runs every second, and not every minute."""
    topology = request.config.getoption("--mongo-topology")
    with (
        mongo_server(topology, parameters={"ttlMonitorSleepSecs": 1}) as server,
        MongoClient[dict[str, Any]](server.uri) as client,
        staged(server, client, f"ttl_{uuid.uuid4().hex[:8]}") as stage,
    ):
        yield stage


@pytest.fixture(params=["sync", "async", "motor"])
def short(request: pytest.FixtureRequest, monitored: Stage) -> Iterator[Face]:
    """A face whose saver has a ttl of a few seconds, in steps of one."""
    made = FACES[request.param](monitored, f"checkpoints_{uuid.uuid4().hex[:8]}", ttl=3)
    saver: Any = made.saver
    saver._ttl = replace(saver._ttl, least=timedelta(seconds=1))
    yield made
    made.drop()


def chat(short: Face, thread: str, n: int) -> Line:
    """Puts a line of checkpoints with a large list and pending writes."""
    line = Line(short, thread)
    for step in range(n):
        at = line.put({"n": step, "chat": [f"{i} " * 900 for i in range(step + 9)], "own": LARGE})
        short.put_writes(at, [("x", step)], "task")
    return line


def left(short: Face, thread: str) -> list[int]:
    """Returns how many documents of a thread there are."""
    return [short.sibling(s).count_documents({"thread_id": thread}) for s in SUFFIXES]


def wait_until(what: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for something that is about to be."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def test_an_idle_thread_goes_and_is_read_whole_until_then(short: Face) -> None:
    """A reader sees one of the thread's states or nothing at any moment, and in the end no document
    of it is left.
    """
    line = chat(short, "idle", 12)
    gone = False
    end = time.monotonic() + 30
    while any(left(short, "idle")):
        assert time.monotonic() < end
        for reader in (short, short.another()):
            row = reader.get_tuple(config("idle"))
            assert not (gone and row)
            gone = row is None
            if row is not None:
                own = row.config["configurable"]["checkpoint_id"]
                assert row.checkpoint["channel_values"] == line.expected[own]
                assert row.pending_writes
            for row in reader.list(config("idle")):
                own = row.config["configurable"]["checkpoint_id"]
                assert row.checkpoint["channel_values"] == line.expected[own]
    assert gone


def test_a_thread_in_use_stays_whole(short: Face) -> None:
    """For several times its ttl, while an idle one beside it goes; then it goes as well."""
    idle, busy = chat(short, "idle", 3), chat(short, "busy", 12)
    end = time.monotonic() + 9
    n = 0
    while time.monotonic() < end:
        busy.put({"n": n, "chat": [f"{i} " * 900 for i in range(9 + n % 20)]})
        n += 1
        busy.check(short.another())
        time.sleep(0.2)
    assert not any(left(short, "idle"))
    assert len(idle.ids) == 3
    assert left(short, "busy")[0] == len(busy.ids)
    wait_until(lambda: not any(left(short, "busy")))


def test_a_thread_that_comes_back_late(short: Face) -> None:
    """A put shortly before a thread would expire keeps all of it."""
    line = chat(short, "late", 6)
    time.sleep(2.5)
    line.put({"n": 9})
    time.sleep(2.5)
    line.put({"n": 10})
    time.sleep(1)
    line.check(short.another())


def test_a_ttl_that_is_turned_off(short: Face) -> None:
    """What never expires any more is not removed, index or not."""
    line = chat(short, "kept", 3)
    short.another().call("apply_ttl")
    time.sleep(8)
    line.check(short.another())
