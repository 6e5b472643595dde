"""Pruning, copying and deleting a thread of 10,000 checkpoints: in bounded memory, few commands.

`python -m tests.server.test_long_threads` prints times, memory and commands.
"""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pymongo import MongoClient

from mongosaver import MongoSaver
from mongosaver.ops import Compute, Insert, Plan, Together
from mongosaver.plans import write
from mongosaver.schema import Name
from mongosaver.testing import mongo_server
from tests.contract.samples import checkpoint, config, metadata
from tests.faces import Commands

LENGTH = 10_000
RUNS = 20


@dataclass
class Measured:
    """What one call took."""

    seconds: float
    megabytes: float
    commands: Counter[str]


def collect(plan: Plan[Any], documents: dict[Name, dict[Any, dict[str, Any]]]) -> None:
    """Runs a plan that only writes, and keeps its documents instead of storing them."""
    reply: Any = None
    with contextlib.suppress(StopIteration):
        while True:
            op = plan.send(reply)
            reply = None
            if isinstance(op, Compute):
                reply = op.function()
                continue
            inserts = op.writes if isinstance(op, Together) else [op]
            for insert in inserts:
                assert isinstance(insert, Insert), op
                for each in insert.documents:
                    key = (each.get("checkpoint_id"), each.get("idx"), each.get("key"))
                    documents[insert.collection].setdefault(key, dict(each))
            reply = True if isinstance(op, Together) else None


class Long:
    """A saver on a server, and long threads made for it."""

    def __init__(self, uri: str) -> None:
        self.commands = Commands()
        self.client: MongoClient[dict[str, Any]] = MongoClient(uri, event_listeners=[self.commands])
        self.collection = self.client["long_threads"]["checkpoints"]
        self.saver = MongoSaver(self.collection)
        self.saver.setup()

    def close(self) -> None:
        """Drops the database."""
        self.client.drop_database("long_threads")
        self.client.close()

    def fill(self, thread: str, *, delta: bool = False) -> None:
        """Makes the documents as puts would make them, and inserts them many at a time.

        Each checkpoint adds a message of 100 bytes, changes two small channels, keeps five large
        ones, and has two pending writes; a run is 500 checkpoints.
        """
        documents: dict[Name, dict[Any, dict[str, Any]]] = {name: {} for name in Name}
        chat: list[str] = []
        own = {f"own {n}": f"{n}" * 1000 for n in range(5)}
        versions = dict.fromkeys(own, "1")
        for n in range(LENGTH):
            chat.append(f"message {n} " + "x" * 85)
            at = config(thread, "", f"{n - 1:06}" if n else None)
            run = {"run_id": f"{thread} run {n * RUNS // LENGTH}"}
            values: dict[str, Any] = {**own, "n": n, "m": "m" * 30}
            keys: dict[str, Any] = {"step": n, **run}
            if not delta:
                values["chat"] = chat
            elif n % 100 == 0:
                values["chat"] = _DeltaSnapshot(chat)
            else:
                keys["counters_since_delta_snapshot"] = {"chat": (n % 100, n % 100)}
            new: Any = {channel: f"{n}" for channel in (*values, "chat") if channel not in own}
            versions = {**versions, **new}
            made = checkpoint(values, versions, checkpoint_id=f"{n:06}")
            context = self.saver._context()
            collect(write.put(context, at, made, metadata(**keys), new), documents)
            mine: Any = {**config(thread, "", f"{n:06}"), "metadata": run}
            writes = [("chat", [chat[-1]]), ("n", n)]
            collect(write.put_writes(context, mine, writes, "task", ""), documents)
            if n % 500 == 499:
                for name, some in documents.items():
                    if some:
                        self.sibling(name.value).insert_many(some.values(), ordered=False)
                        some.clear()

    def sibling(self, suffix: str) -> Any:
        """Returns one of the three collections."""
        return self.collection.database[self.collection.name + suffix]

    def counts(self, thread: str) -> tuple[int, ...]:
        """Returns the numbers of checkpoints, writes and blobs of a thread."""
        return tuple(
            self.sibling(s).count_documents({"thread_id": thread})
            for s in ("", ".writes", ".blobs")
        )

    def measure(self, *calls: Callable[[], object]) -> Measured:
        """Measures the first call's time, and the last one's memory: tracing takes its time."""
        with self.commands.recorded() as sent:
            start = time.perf_counter()
            calls[0]()
            seconds = time.perf_counter() - start
        tracemalloc.start()
        calls[-1]()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return Measured(seconds, peak / 2**20, Counter(each.name for each in sent))


@contextlib.contextmanager
def long_threads() -> Iterator[Long]:
    """Starts a server, for these threads only."""
    with mongo_server() as server:
        long = Long(server.uri)
        try:
            yield long
        finally:
            long.close()


@pytest.fixture(scope="module")
def long() -> Iterator[Long]:
    """A server for long threads."""
    with long_threads() as made:
        yield made


def all_of(long: Long) -> Iterator[tuple[str, Measured]]:
    """Does everything to two long threads of each kind, and checks the state that it leaves."""
    saver = long.saver
    long.fill("chat")
    long.fill("delta", delta=True)
    chat = saver.get_tuple(config("chat"))
    assert chat is not None
    assert len(chat.checkpoint["channel_values"]["chat"]) == LENGTH
    history = saver.get_delta_channel_history(config=config("delta"), channels=["chat"])
    yield "copy", long.measure(*[partial(saver.copy_thread, "chat", f"copy {n}") for n in range(2)])
    for n in range(2):
        assert long.counts(f"copy {n}") == long.counts("chat")
    saver.copy_thread("delta", "delta 0")
    saver.copy_thread("delta", "delta 1")

    def delete(run: int) -> Callable[[], None]:
        return partial(saver.delete_for_runs, [f"chat run {run}"])

    yield "delete the last run", long.measure(delete(19), delete(18))
    yield "delete a run in the middle", long.measure(delete(10), delete(5))
    assert long.counts("chat")[0] == LENGTH - 4 * LENGTH // RUNS

    def prune(thread: str, **options: Any) -> list[Callable[[], object]]:
        return [partial(saver.prune, [f"{thread} {n}"], **options) for n in range(2)]

    yield "prune, dry run", long.measure(*prune("copy", dry_run=True))
    yield "prune to 1,000", long.measure(*prune("copy", keep_last=1000))
    assert long.counts("copy 0")[:2] == (1000, 2000)
    for n in range(2):
        saver.prune([f"copy {n}"], strategy="delete")
        saver.copy_thread("chat", f"copy {n}")
    size = long.counts("chat")[0]
    latest = saver.get_tuple(config("chat"))
    assert latest is not None
    yield f"prune {size:,} to the latest", long.measure(*prune("copy"))
    assert long.counts("copy 0")[:2] == (1, 2)
    left = saver.get_tuple(config("copy 0"))
    assert left is not None
    assert left.checkpoint == latest.checkpoint
    yield "prune with a DeltaChannel", long.measure(*prune("delta"))
    assert long.counts("delta 0")[0] == 100
    again = saver.get_delta_channel_history(config=config("delta 0"), channels=["chat"])
    assert again == history
    longest = partial(saver.get_delta_channel_history, config=config("delta"), channels=["none"])
    yield "history of 10,000 ancestors", long.measure(longest)
    yield "delete", long.measure(*[partial(saver.delete_thread, t) for t in ("chat", "delta")])
    assert long.counts("chat") == (0, 0, 0)


def test_long_threads(long: Long) -> None:
    """No call holds more than a few kilobytes a checkpoint, nor sends a command for each."""
    done = dict(all_of(long))
    assert sum(done["copy"].commands.values()) == 6
    for name, measured in done.items():
        assert measured.megabytes < 40, name
        assert sum(measured.commands.values()) < 150, name
        assert measured.seconds < 60, name


def main() -> None:
    """Prints a line for each call."""
    with long_threads() as long:
        for name, measured in all_of(long):
            commands = ", ".join(f"{count} {each}" for each, count in measured.commands.items())
            print(f"{name:28} {measured.seconds:6.2f} s {measured.megabytes:6.1f} MB  {commands}")  # noqa: T201 - what it is for


if __name__ == "__main__":
    main()
