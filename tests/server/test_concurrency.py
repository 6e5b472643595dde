"""Many writers at once: threads and processes on one slot, one checkpoint, one thread's forks.

What they write is compared with what is there afterwards: exactly one document where all write the
same, everything where each writes its own, and no error anywhere.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

from mongosaver import AsyncMongoSaver, MongoSaver
from mongosaver.schema import INDEXES
from tests.contract.samples import checkpoint, config, id_of, metadata

if TYPE_CHECKING:
    from pymongo.collection import Collection

    from tests.faces import Face

ROOT = Path(__file__).parents[2]
MANY = 32
PROCESSES = 8

Stored = dict[str, Any]


@pytest.fixture
def collection(mongo_uri: str) -> Iterator[Collection[Stored]]:
    """A collection in a database of its own."""
    with MongoClient[Stored](mongo_uri) as client:
        name = f"concurrency_{uuid.uuid4().hex[:8]}"
        yield client[name]["checkpoints"]
        client.drop_database(name)


def at_once(work: Callable[[int], Any], many: int = MANY) -> list[Any]:
    """Runs work in many threads that begin together; the first error is raised."""
    barrier = threading.Barrier(many)

    def one(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(many) as pool:
        return list(pool.map(one, range(many)))


def chat(length: int) -> list[str]:
    """Returns a list that is stored in several segments."""
    return [f"message {number} " * 20 for number in range(length)]


def put_parent(saver: Any, thread: str) -> None:
    """Puts the checkpoint that the others are put on."""
    values = {"chat": chat(150)}
    made = checkpoint(values, {"chat": "1"}, checkpoint_id="1")
    saver.put(config(thread), made, metadata(), {"chat": "1"})


def fork(number: int, values: Stored) -> tuple[Any, ...]:
    """Returns what puts a checkpoint with an id and versions of its own on the first one."""
    versions = dict.fromkeys(values, f"2.{number}")
    made = checkpoint(values, versions, checkpoint_id=f"2.{number:03}")
    return made, metadata(number=number), versions


def count(collection: Collection[Stored], suffix: str, thread: str) -> int:
    """Returns how many documents of a thread there are."""
    return collection.database[collection.name + suffix].count_documents({"thread_id": thread})


@pytest.mark.parametrize("shared", [True, False], ids=["one saver", "a saver each"])
@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "in parts"])
def test_many_threads_write_one_ordinary_slot(
    collection: Collection[Stored], shared: bool, size: int
) -> None:
    """Nobody fails, one value is stored, and it is the value of one of them, whole."""
    saver = MongoSaver(collection)
    put_parent(saver, "t")
    savers = [saver if shared else MongoSaver(collection) for _ in range(MANY)]
    values = [bytes([number]) * size for number in range(MANY)]
    at = config("t", "", "1")
    at_once(lambda n: savers[n].put_writes(at, [("a", values[n])], "task"))
    found = saver.get_tuple(at)
    assert found is not None
    ((task, channel, value),) = found.pending_writes or ()
    assert (task, channel) == ("task", "a")
    assert value in values
    slots = collection.database["checkpoints.writes"]
    assert slots.count_documents({"thread_id": "t", "part": 0}) == 1


def test_many_threads_write_one_special_slot(collection: Collection[Stored]) -> None:
    """Upserts of one slot at a time are one value without an error, and the last one wins."""
    savers = [MongoSaver(collection) for _ in range(MANY)]
    put_parent(savers[0], "t")
    for saver in savers:
        saver.setup()
    at = config("t", "", "1")
    for step in range(10):

        def write(number: int, task: str = f"task {step}") -> None:
            savers[number].put_writes(at, [("__interrupt__", number), ("a", number)], task)

        at_once(write)
        write(1)
        write(0)
    found = savers[0].get_tuple(at)
    assert found is not None
    pending = {(task, channel): value for task, channel, value in found.pending_writes or ()}
    assert len(pending) == len(found.pending_writes or ()) == 20
    assert {pending[f"task {step}", "__interrupt__"] for step in range(10)} == {0}
    assert count(collection, ".writes", "t") == 20


@pytest.mark.parametrize("shared", [True, False], ids=["one saver", "a saver each"])
def test_many_threads_put_the_same_checkpoint(collection: Collection[Stored], shared: bool) -> None:
    """The same put from 32 threads is one checkpoint with one set of blobs."""
    saver = MongoSaver(collection)
    put_parent(saver, "t")
    savers = [saver if shared else MongoSaver(collection) for _ in range(MANY)]
    values = {"chat": chat(200), "file": b"x" * 50_000, "note": "n"}
    versions = dict.fromkeys(values, "2")

    def put(number: int) -> None:
        made = checkpoint(values, versions, checkpoint_id="2")
        savers[number].put(config("t", "", "1"), made, metadata(), versions)

    at_once(put)
    rows = list(MongoSaver(collection).list(config("t")))
    assert [id_of(row) for row in rows] == ["2", "1"]
    assert rows[0].checkpoint["channel_values"] == values
    assert count(collection, "", "t") == 2
    keys = collection.database["checkpoints.blobs"].distinct("key", {"thread_id": "t"})
    assert len(keys) == count(collection, ".blobs", "t")


@pytest.mark.parametrize("shared", [True, False], ids=["one saver", "a saver each"])
def test_many_threads_fork_one_checkpoint(collection: Collection[Stored], shared: bool) -> None:
    """Forks that share most of their values, and the very blobs of some, each read as written."""
    saver = MongoSaver(collection)
    put_parent(saver, "t")
    savers = [saver if shared else MongoSaver(collection) for _ in range(MANY)]
    expected = {
        f"2.{n:03}": {"chat": [*chat(150 + n % 4 * 40), f"fork {n}"], "own": chat(60 + n % 2)}
        for n in range(MANY)
    }
    at_once(
        lambda n: savers[n].put(config("t", "", "1"), *fork(n, expected[f"2.{n:03}"]))  # type: ignore[arg-type]
    )
    rows = {id_of(row): row for row in MongoSaver(collection).list(config("t"))}
    assert rows.keys() == {"1", *expected}
    for checkpoint_id, values in expected.items():
        assert rows[checkpoint_id].checkpoint["channel_values"] == values
        found = MongoSaver(collection).get_tuple(config("t", "", checkpoint_id))
        assert found is not None
        assert found.checkpoint["channel_values"] == values


def test_many_threads_delete_and_put_one_thread(collection: Collection[Stored]) -> None:
    """Whoever comes last, what can be read is whole, and one more deletion leaves nothing."""
    saver = MongoSaver(collection)
    put_parent(saver, "t")
    values = {"chat": chat(200)}

    def work(number: int) -> None:
        for _ in range(3):
            if number % 4 == 0:
                saver.delete_thread("t")
            else:
                saver.put(config("t", "", "1"), *fork(number, values))
            found = MongoSaver(collection).get_tuple(config("t", "", f"2.{number:03}"))
            assert found is None or found.checkpoint["channel_values"] == values

    at_once(work, 8)
    for row in MongoSaver(collection).list(config("t")):
        assert row.checkpoint["channel_values"] in (values, {"chat": chat(150)})
    saver.delete_thread("t")
    assert [count(collection, suffix, "t") for suffix in ("", ".writes", ".blobs")] == [0, 0, 0]


def test_many_tasks_use_one_async_saver(mongo_face: Face) -> None:
    """Tasks of one event loop, or threads of a sync saver, write one thread's forks at once."""
    saver = mongo_face.saver
    values = {"chat": chat(150)}

    async def work(number: int) -> None:
        at = config("t", "", f"2.{number:03}")
        await saver.aput(config("t", "", "1"), *fork(number, values))
        await saver.aput_writes(at, [("a", number), ("__error__", number)], "task")
        found = await saver.aget_tuple(at)
        assert found is not None
        assert found.checkpoint["channel_values"] == values
        assert [write[2] for write in found.pending_writes or ()] == [number, number]

    async def main() -> None:
        await asyncio.gather(*map(work, range(MANY)))

    if mongo_face.awaited or isinstance(saver, AsyncMongoSaver):
        mongo_face.run(main())
    else:
        asyncio.run(main())
    assert len(mongo_face.list(config("t"))) == MANY


# --- processes

_SAME = """
import sys, time
from pymongo import MongoClient
from mongosaver import MongoSaver
from tests.server.test_concurrency import chat, checkpoint, config, fork, metadata

uri, database, start, number = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
with MongoClient(uri) as client:
    saver = MongoSaver(client[database]["checkpoints"])
    time.sleep(max(0, start - time.time()))
    saver.setup()
    values = {"chat": chat(150)}
    for step in range(12):
        made = checkpoint(values, {"chat": "1"}, checkpoint_id=f"1.{step:03}")
        saver.put(config("same"), made, metadata(), {"chat": "1"})
        at = config("same", "", f"1.{step:03}")
        saver.put_writes(at, [("a", number), ("__interrupt__", number)], "task")
        saver.put_writes(at, [("a", number)], f"task {number}")
        saver.put(at, *fork(1000 * step + number, {"chat": [*values["chat"], f"{step} {number}"]}))
"""


def test_processes_set_up_and_write_at_once(collection: Collection[Stored], mongo_uri: str) -> None:
    """Eight processes set up an empty database together and write the same slots: all succeed."""
    start = time.time() + 3
    arguments = [mongo_uri, collection.database.name, str(start)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _SAME, *arguments, str(number)],
            stderr=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    failures = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, "\n".join(failures)
    for name, indexes in INDEXES.items():
        made = collection.database[collection.name + name.value].index_information()
        assert len(made) == len(indexes) + 1
    rows = list(MongoSaver(collection).list(config("same")))
    assert len(rows) == 12 + 12 * PROCESSES
    for row in rows:
        values, writes = row.checkpoint["channel_values"]["chat"], row.pending_writes or []
        assert values[:150] == chat(150)
        if id_of(row).startswith("2."):
            step, number = divmod(int(id_of(row)[2:]), 1000)
            assert values[150:] == [f"{step} {number}"]
            assert writes == []
        else:
            assert len(writes) == 2 + PROCESSES
            assert {write[2] for write in writes} <= set(range(PROCESSES))


@pytest.mark.new_collection
def test_many_threads_share_the_first_setup(mongo_face: Face) -> None:
    """However many first writes come at once, the indexes are made by one of them."""
    saver = mongo_face.saver

    async def main() -> None:
        work = [saver.aput(config(f"t{n}"), *fork(n, {"a": n})) for n in range(MANY)]
        await asyncio.gather(*work)

    with mongo_face.commands.recorded() as sent:
        if isinstance(saver, AsyncMongoSaver):
            mongo_face.run(main())
        else:
            at_once(lambda n: saver.put(config(f"t{n}"), *fork(n, {"a": n})))
    made = [index for each in sent for index in each.command.get("indexes", ())]
    assert len(made) == sum(map(len, INDEXES.values()))
    assert len(mongo_face.list(None)) == MANY
