"""Values, pending writes and metadata of any size, on every kind of saver.

Nothing of a state meets MongoDB's 16 MB: values are stored in pieces and pending writes in parts.
What is missing of either is an error and never a hole. Memory is measured in processes of their
own, by the greatest resident size; the event loop by how late a ticking task wakes up.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from mongosaver import IncompleteCheckpoint, PayloadTooLarge, codec
from mongosaver.schema import (
    MANY_WRITES,
    MAX_AGGREGATE,
    MAX_DOCUMENT,
    MAX_PAYLOAD,
    OFF_LOOP,
    SMALL_WRITE,
)
from tests.contract.samples import (
    Line,
    checkpoint,
    config,
    ids,
    metadata,
    values_of,
    writes_of,
)
from tests.faces import ON_MONGODB, read_by_finds

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from tests.faces import Face, Stage

ROOT = Path(__file__).parents[2]
MB = 1024 * 1024
_NOISE = random.Random(7).randbytes(4 * MB).hex()  # text that no compression makes small


def text(size: int, start: int = 0) -> str:
    """Returns `size` characters; another `start` gives others."""
    at = start % 1000
    found = _NOISE[at : at + size]
    return found if len(found) == size else (_NOISE[at:] * (2 + size // len(_NOISE)))[:size]


def messages(size: int, start: int = 0) -> list[dict[str, Any]]:
    """Returns a list like a chat's, whose payload takes about `size` bytes."""
    each = 4000
    return [
        {"id": number, "text": text(each, start + number)} for number in range(size // (each + 18))
    ]


@pytest.fixture
def make(stage: Stage) -> Iterator[Callable[..., Face]]:
    """Makes faces by name, each on a collection of its own, which is dropped afterwards."""
    made: list[Face] = []

    def one(name: str, **options: Any) -> Face:
        made.append(ON_MONGODB[name](stage, f"sizes_{uuid.uuid4().hex[:12]}", **options))
        return made[-1]

    yield one
    for face in made:
        face.drop()


def by_finds(face: Face) -> Face:
    """Returns a face on the same data that reads as where the aggregate is refused."""
    other = face.another()
    read_by_finds(other.saver)
    return other


def put(face: Face, values: dict[str, Any], **extra: Any) -> RunnableConfig:
    """Puts a checkpoint of a new thread and returns its config."""
    line = Line(face, f"thread {uuid.uuid4()}")
    return line.put(values, metadata=metadata(**extra))


def largest_document(face: Face) -> int:
    """Returns the size of the largest document of the face's collections."""
    sizes = [
        row["size"]
        for suffix in ("", ".writes", ".blobs")
        for row in face.sibling(suffix).aggregate([{"$project": {"size": {"$bsonSize": "$$ROOT"}}}])
    ]
    return max(sizes)


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sync", "async"])
@pytest.mark.parametrize("size", [1, 8, 15, 16, 17, 40, 100])
def test_values_of_any_size_read_back(
    make: Callable[..., Face], thread: str, name: str, size: int
) -> None:
    """A value of 1 to 100 MB reads back equal, and in its successor only what was added is new."""
    face = make(name)
    line = Line(face, thread)
    value = messages(size * MB)
    line.put({"messages": value})
    first = face.sibling(".blobs").count_documents({})
    if size < 100:
        grown = [*value, {"id": -1, "text": "added"}]
        line.put({"messages": grown})
        assert face.sibling(".blobs").count_documents({}) <= first + 3
        assert values_of(face.another(), line.at(1)) == {"messages": grown}
    assert values_of(face.another(), line.at(0)) == {"messages": value}
    assert largest_document(face) < 10 * MB


@pytest.mark.parametrize(
    ("name", "size"), [("motor", 17), ("motor", 40), ("threads", 17), ("threads", 40)]
)
def test_other_faces_take_large_values(
    make: Callable[..., Face], thread: str, name: str, size: int
) -> None:
    """Values above the limit of a document go through Motor and through worker threads as well."""
    face = make(name)
    value = messages(size * MB)
    at = put(face, {"messages": value})
    assert values_of(face.another(), at) == {"messages": value}


@pytest.mark.parametrize("name", ["sync", "async"])
@pytest.mark.parametrize(
    "value",
    [text(17 * MB), text(9 * MB).encode(), bytearray(text(9 * MB), "ascii")],
    ids=["str", "bytes", "bytearray"],
)
def test_large_values_keep_their_type(make: Callable[..., Face], name: str, value: Any) -> None:
    """One large string or stretch of bytes is cut into pieces and comes back as what it was."""
    face = make(name)
    at = put(face, {"value": value})
    found = values_of(face.another(), at)["value"]
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize("name", ["sync", "async"])
def test_large_values_are_listed(make: Callable[..., Face], thread: str, name: str) -> None:
    """`list` gives states that together pass every limit of a reply, one way and the other."""
    face = make(name)
    line = Line(face, thread)
    value: list[Any] = []
    for number in range(4):
        value = [*value, *messages(5 * MB, number)]
        line.put({"messages": value, "other": text(5 * MB, number)})
    line.check(face.another())
    line.check(by_finds(face))


@pytest.mark.parametrize("excess", [0, 1])
def test_aggregate_gives_states_up_to_its_limit(make: Callable[..., Face], excess: int) -> None:
    """A state of the size up to which one aggregate reads it comes with it, a larger one by finds.

    Beside it are as many pending writes as come with it too, as large as they may be.
    """
    face = make("sync")
    versions = {"value": "1.1"}

    def put_bytes(value: bytes) -> tuple[RunnableConfig, int]:
        made = checkpoint({"value": value}, versions)
        at = face.put(config("thread"), made, metadata(), versions)
        stored = face.collection.find_one({"checkpoint_id": made["id"]}, {"bytes": 1})
        assert stored is not None
        return at, stored["bytes"]

    _, fixed = put_bytes(b"")
    value = text(MAX_AGGREGATE - fixed + excess).encode()
    at, size = put_bytes(value)
    assert size == MAX_AGGREGATE + excess
    writes = [("channel", text(SMALL_WRITE, n).encode()) for n in range(MANY_WRITES - 1)]
    face.put_writes(at, writes, "task")
    with face.commands.recorded() as sent:
        found = face.get_tuple(at)
    assert found is not None
    assert found.checkpoint["channel_values"]["value"] == value
    assert [write[1:] for write in found.pending_writes or ()] == writes
    if not face.stage.by_finds:
        assert (len(sent) == 1) is not bool(excess), [each.name for each in sent]


# --- pending writes ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sync", "async", "motor", "threads"])
def test_write_of_40_mb_reads_back(make: Callable[..., Face], name: str) -> None:
    """A pending write of 40 MB is stored in parts and reads back equal, also in a list."""
    face = make(name)
    at = put(face, {"value": 1})
    value = messages(40 * MB)
    face.put_writes(at, [("large", value), ("small", 1)], "task")
    expected = [("task", "large", value), ("task", "small", 1)]
    assert writes_of(face, at) == expected
    assert face.list(at)[0].pending_writes == expected
    assert largest_document(face) < 10 * MB


@pytest.mark.parametrize(("name", "special"), [("sync", True), ("async", False)])
def test_40_writes_of_2_mb_in_one_call(make: Callable[..., Face], name: str, special: bool) -> None:
    """Writes that together pass every limit of a command are stored by one call."""
    face = make(name)
    at = put(face, {"value": 1})
    writes = [("channel", text(2 * MB, number)) for number in range(40)]
    if special:
        writes[20] = ("__error__", text(2 * MB, 20))
    face.put_writes(at, writes, "task")
    expected = sorted(writes, key=lambda write: write[0] != "__error__")
    assert [write[1:] for write in writes_of(face, at)] == expected
    assert [write[1:] for write in face.list(at)[0].pending_writes or ()] == expected


@pytest.mark.parametrize("name", ["sync", "async"])
@pytest.mark.parametrize("count", [MANY_WRITES - 1, MANY_WRITES, MANY_WRITES + 1, 350])
def test_any_number_of_writes_reads_back(make: Callable[..., Face], name: str, count: int) -> None:
    """No pending write is lost where there are more than come with the aggregate."""
    face = make(name)
    at = put(face, {"value": 1})
    other = put(face, {"value": 1})
    face.put_writes(other, [("channel", -1)], "task")
    for task in range(0, count, 50):
        here = range(task, min(task + 50, count))
        face.put_writes(at, [("channel", n) for n in here], f"task {task:03}")
    assert [value for _, _, value in writes_of(face, at)] == list(range(count))
    assert [value for _, _, value in writes_of(by_finds(face), at)] == list(range(count))


def test_writes_around_the_aggregates_limit(make: Callable[..., Face]) -> None:
    """Writes just small enough to come with the aggregate, just too large, and empty ones mix."""
    face = make("sync")
    at = put(face, {"value": 1})
    writes = [("c", text(size, size).encode()) for size in (SMALL_WRITE, SMALL_WRITE + 1, 0, 1)]
    face.put_writes(at, writes, "task")
    assert [write[1:] for write in writes_of(face, at)] == writes
    face.put_writes(at, [("c", b"")] * 2 + [("c", text(9 * MB).encode())] * 3, "task 2")
    sizes = [len(value) for task, _, value in writes_of(face, at) if task == "task 2"]
    assert sizes == [0, 0, 9 * MB, 9 * MB, 9 * MB]


@pytest.mark.parametrize("name", ["sync", "async"])
@pytest.mark.parametrize(
    ("first", "second"),
    [(9 * MB, 5), (5, 9 * MB), (17 * MB, 9 * MB), (40_000, 39_000), (40_000, 5)],
)
def test_special_slot_takes_a_value_of_any_other_size(
    make: Callable[..., Face], name: str, first: int, second: int
) -> None:
    """A special channel's slot keeps nothing of the value it held, however many parts that had."""
    face = make(name)
    at = put(face, {"value": 1})
    face.put_writes(at, [("__resume__", text(first, 1).encode())], "task")
    face.put_writes(at, [("__resume__", text(second, 2).encode())], "task")
    expected = [("task", "__resume__", text(second, 2).encode())]
    assert writes_of(face, at) == expected
    assert writes_of(by_finds(face), at) == expected


@pytest.mark.parametrize("mixed", [False, True])
def test_large_write_in_a_taken_slot_changes_nothing(
    make: Callable[..., Face], mixed: bool
) -> None:
    """An ordinary slot keeps its first value, although parts of a second one are stored beside."""
    face = make("sync")
    at = put(face, {"value": 1})
    special = [("__interrupt__", 1)] if mixed else []
    for start in (1, 2):
        face.put_writes(at, [("c", text(9 * MB, start)), *special], "task")
    assert ("task", "c", text(9 * MB, 1)) in writes_of(face, at)


# --- metadata ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sync", "async"])
def test_metadata_of_2_mb_is_stored_once(make: Callable[..., Face], name: str) -> None:
    """Large metadata reads back equal, can be filtered by, and takes its size once."""
    face = make(name)
    large = {"text": text(2 * MB), "user": "alice"}
    at = put(face, {"value": 1}, **large)
    put(face, {"value": 2}, user="bob")
    found = face.another().get_tuple(at)
    assert found is not None
    assert {key: found.metadata[key] for key in large} == large  # type: ignore[literal-required]
    for wanted in ({"text": text(2 * MB)}, {"user": "alice"}):
        assert ids(face.list(None, filter=wanted)) == [at["configurable"]["checkpoint_id"]]
    document = face.collection.find_one({"thread_id": at["configurable"]["thread_id"]})
    assert document is not None
    assert len(bson.encode(document)) < 2.1 * MB


@pytest.mark.parametrize("name", ["sync", "async"])
def test_metadata_near_the_limit_leaves_room_for_writes(
    make: Callable[..., Face], name: str
) -> None:
    """The largest metadata possible can still be read beside many pending writes and a state."""
    face = make(name)
    at = put(face, {"value": text(3 * MB)}, text=text(MAX_PAYLOAD - 4096))
    writes = [("channel", text(SMALL_WRITE - 8, number)) for number in range(MANY_WRITES - 1)]
    face.put_writes(at, writes, "task")
    assert [write[1:] for write in writes_of(by_finds(face), at)] == writes
    assert [write[1:] for write in writes_of(face, at)] == writes


@pytest.mark.parametrize("name", ["sync", "async"])
@pytest.mark.parametrize("parent", ["none", "known", "unknown"])
def test_metadata_above_the_limit_are_refused(
    make: Callable[..., Face], thread: str, name: str, parent: str
) -> None:
    """17 MB of metadata are refused by name before any command is sent, and nothing is stored."""
    face = make(name)
    face.setup()
    at = config(thread)
    if parent != "none":
        at = Line(face, thread).put({"value": text(MB)})
    before = face.collection.count_documents({}), face.sibling(".blobs").count_documents({})
    face = face if parent == "known" else face.another()
    values = {"messages": messages(MB)}
    versions = dict.fromkeys(values, face.saver.get_next_version(None, None))
    with (
        face.commands.recorded() as sent,
        pytest.raises(PayloadTooLarge, match="metadata takes 17,") as refused,
    ):
        face.put(at, checkpoint(values, versions), metadata(text=text(17_000_000)), versions)
    assert refused.value.what == "metadata"
    assert refused.value.limit == MAX_PAYLOAD
    assert [each.name for each in sent] == []
    after = face.collection.count_documents({}), face.sibling(".blobs").count_documents({})
    assert after == before


def test_checkpoint_without_values_above_the_limit_is_refused(
    make: Callable[..., Face], thread: str
) -> None:
    """What LangGraph keeps beside the values has the limit of a document too, and is named."""
    face = make("sync")
    made = checkpoint()
    made["versions_seen"] = {"node": {"channel": text(17_000_000)}}
    with pytest.raises(PayloadTooLarge, match="checkpoint without its channel values") as refused:
        face.put(config(thread), made, metadata(), {})
    assert refused.value.size > 17_000_000
    assert face.collection.count_documents({}) == 0


def test_limit_leaves_room_for_what_is_no_payload(make: Callable[..., Face]) -> None:
    """Metadata just below the limit are stored with 2,000-character ids and hundreds of blobs."""
    face = make("sync")
    values = {f"{'c' * 200}{number}": text(1000) for number in range(300)}
    line = Line(face, "t" * 2000, "n" * 2000)
    at = line.put(values, metadata=metadata(text=text(MAX_PAYLOAD - 150_000)))
    assert values_of(face.another(), at) == values
    assert largest_document(face) < MAX_DOCUMENT


# --- missing parts -----------------------------------------------------------------------------


def _remove_segment(face: Face) -> None:
    removed = face.sibling(".blobs").find_one_and_delete({"head": b"", "chain": []})
    assert removed is not None


def _remove_head(face: Face) -> None:
    assert face.sibling(".blobs").delete_one({"chain.0": {"$exists": True}}).deleted_count


def _shorten_segment(face: Face) -> None:
    blob = face.sibling(".blobs").find_one({"head": b"", "chain": []})
    assert blob is not None
    face.sibling(".blobs").update_one({"_id": blob["_id"]}, {"$set": {"data": blob["data"][:-1]}})


def _remove_part(face: Face) -> None:
    assert face.sibling(".writes").delete_one({"part": {"$gt": 0}}).deleted_count


@pytest.mark.parametrize(("name", "size"), [("sync", 2), ("async", 20)])
@pytest.mark.parametrize(
    ("damage", "channel"),
    [
        (_remove_segment, "messages"),
        (_remove_head, "messages"),
        (_shorten_segment, "messages"),
        (_remove_part, "write"),
    ],
)
def test_missing_parts_are_an_error(
    make: Callable[..., Face],
    thread: str,
    name: str,
    size: int,
    damage: Callable[[Face], None],
    channel: str,
) -> None:
    """Where something else removed a part of a value or a write, every read says which and where.

    This holds for states that come with the aggregate and for those that come by finds.
    """
    face = make(name)
    at = Line(face, thread).put({"messages": messages(size * MB), "whole": 1})
    face.put_writes(at, [("write", messages(10 * MB))], "task")
    damage(face)
    reads: list[Callable[[], Any]] = [
        lambda: face.get_tuple(at),
        lambda: face.get_tuple(config(thread)),
        lambda: by_finds(face).get_tuple(at),
        lambda: face.list(config(thread)),
        lambda: face.list(None),
    ]
    for read in reads:
        with pytest.raises(IncompleteCheckpoint) as raised:
            read()
        error = raised.value
        assert (error.thread_id, error.channel) == (thread, channel)
        assert error.checkpoint_id == at["configurable"]["checkpoint_id"]
        assert error.checkpoint_id in str(error)
        assert error.key in str(error)


def test_write_counts_when_its_first_part_is_there(make: Callable[..., Face]) -> None:
    """Parts without their part 0 are a write that is still on its way: it is not there yet."""
    face = make("sync")
    at = put(face, {"value": 1})
    face.put_writes(at, [("large", messages(20 * MB)), ("small", 1)], "task")
    face.sibling(".writes").delete_one({"part": 0, "channel": "large"})
    assert writes_of(face, at) == [("task", "small", 1)]
    assert writes_of(by_finds(face), at) == [("task", "small", 1)]


# --- memory ------------------------------------------------------------------------------------

_MEASURED = """
import asyncio, inspect, resource, sys
from pathlib import Path

from pymongo import AsyncMongoClient, MongoClient

from mongosaver import AsyncMongoSaver, MongoSaver
from tests.contract.samples import checkpoint, config, metadata

uri, database, collection, kind, what, size = sys.argv[1:]


def peak():
    # On Linux ru_maxrss begins with the greatest size of the process that started this one.
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def value(size):
    return [{"id": n, "text": "%08d" % n * 500} for n in range(size // 4018)]


async def done(result):
    return await result if inspect.isawaitable(result) else result


async def measure():
    if kind == "sync":
        client = MongoClient(uri)
        saver = MongoSaver(client[database][collection])
        put, get = saver.put, saver.get_tuple
    else:
        client = AsyncMongoClient(uri)
        saver = AsyncMongoSaver(client[database][collection])
        put, get = saver.aput, saver.aget_tuple
    versions = {"messages": "1.1"}
    small = checkpoint({"messages": value(40_000)}, versions)
    await done(get(await done(put(config("small"), small, metadata(), versions))))
    before = peak()
    if what == "put":
        large = checkpoint({"messages": value(int(size))}, versions)
        await done(put(config("large"), large, metadata(), versions))
    else:
        found = await done(get(config("large")))
        assert len(found.checkpoint["channel_values"]["messages"]) == int(size) // 4018
    print(peak() - before)
    await done(client.close())


asyncio.run(measure())
"""


@pytest.mark.parametrize("name", ["sync", "async"])
def test_memory_of_a_put_and_of_a_get_is_bounded(make: Callable[..., Face], name: str) -> None:
    """Saving a value of 40 MB and loading it takes less than four times that, itself included."""
    face = make(name)
    size = 40 * MB
    for what in ("put", "get"):
        arguments = [face.stage.uri, face.stage.database, face.collection.name, name, what]
        run = subprocess.run(
            [sys.executable, "-c", _MEASURED, *arguments, str(size)],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        growth = int(run.stdout)
        assert size < growth < 4 * size, f"{what}: {growth / size:.2f} x"


# --- the event loop ----------------------------------------------------------------------------


class Recorder(JsonPlusSerializer):
    """The plain serializer, and on which threads it was used for what is large."""

    def __init__(self) -> None:
        super().__init__()
        self.dumped: list[int] = []
        self.loaded: list[int] = []

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Notes the thread, and how long it took."""
        typed = super().dumps_typed(obj)
        if len(typed[1]) > OFF_LOOP:
            self.dumped.append(threading.get_ident())
        return typed

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Notes the thread."""
        if len(data[1]) > OFF_LOOP:
            self.loaded.append(threading.get_ident())
        return super().loads_typed(data)


@pytest.fixture
def large_work(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What hashes and joins large payloads, and on which thread, as it happens."""
    seen: list[tuple[str, int]] = []

    def hashing(data: bytes = b"", **options: Any) -> Any:
        if len(data) > OFF_LOOP:
            seen.append(("hash", threading.get_ident()))
        return hashlib.blake2b(data, **options)

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            seen.append((name, threading.get_ident()))
            return function(*args, **options)

        return call

    monkeypatch.setattr(codec, "blake2b", hashing)
    monkeypatch.setattr(codec, "encode", noted("encode", codec.encode))
    monkeypatch.setattr(codec, "decode", noted("decode", codec.decode))
    return seen


@pytest.mark.parametrize("name", ["async", "motor"])
def test_large_work_is_done_off_the_event_loop(
    make: Callable[..., Face], thread: str, name: str, large_work: list[tuple[str, int]]
) -> None:
    """The loop serializes (the caller may change its objects right after), and does no more.

    Cutting, hashing, joining and loading of large values and writes are done in other threads.
    """
    serde = Recorder()
    face = make(name, serde=serde)
    line = Line(face, thread)
    at = line.put({"messages": messages(2 * MB)})
    face.put_writes(at, [("write", messages(2 * MB))], "task")
    values_of(face, at)
    face.list(config(thread))
    loop = face.stage.loop.thread.ident
    assert len(serde.dumped) == 2
    assert set(serde.dumped) == {loop}
    assert len(serde.loaded) == 4
    assert loop not in serde.loaded
    coded = [(name, thread) for name, thread in large_work if name != "hash"]
    assert sorted(name for name, _ in coded) == ["decode", "decode", "encode"]
    assert [name for name, thread in coded if thread == loop] == []


@pytest.mark.parametrize("name", ["async", "motor"])
def test_parts_of_a_large_write_are_hashed_off_the_event_loop(
    make: Callable[..., Face], name: str, large_work: list[tuple[str, int]]
) -> None:
    """A pending write that has to be cut is serialized on the loop, and cut elsewhere."""
    face = make(name)
    at = put(face, {"value": 1})
    face.put_writes(at, [("write", text(20 * MB))], "task")
    loop = face.stage.loop.thread.ident
    assert "hash" in {name for name, _ in large_work}
    assert ("hash", loop) not in large_work


STALL = 0.25
"""Seconds for which a save or load of 40 MB may keep the loop busy, beside serializing it.

Measured are 20 to 80 ms: the driver encodes and decodes BSON on the loop, and the serializer holds
the interpreter's lock while it loads. The rest is room for a busy machine.
"""


@pytest.mark.parametrize("name", ["async", "motor"])
def test_event_loop_goes_on_while_40_mb_are_saved_and_loaded(
    make: Callable[..., Face], name: str
) -> None:
    """A task that ticks every millisecond is never late for long, and goes on all the while."""
    face = make(name)
    face.setup()
    value = messages(40 * MB)
    versions = {"messages": "1.1"}

    async def stall(work: Any) -> float:
        """Returns the longest stretch without a tick while `work` is awaited."""
        ticks = [time.perf_counter()]

        async def tick() -> None:
            while True:
                await asyncio.sleep(0.001)
                ticks.append(time.perf_counter())

        ticking = asyncio.ensure_future(tick())
        await asyncio.sleep(0)
        await work
        ticks.append(time.perf_counter())
        ticking.cancel()
        return max(later - earlier for earlier, later in pairwise(ticks))

    async def serializing() -> float:
        start = time.perf_counter()
        face.saver.serde.dumps_typed(value)
        return time.perf_counter() - start

    stalls: dict[str, list[float]] = {"put": [], "put_writes": [], "get": []}
    for number in range(3):
        made = checkpoint({"messages": value}, versions, checkpoint_id=str(number))
        at = config("thread", "", str(number))
        dump = face.run(serializing())
        work = face.saver.aput(config("thread"), made, metadata(), versions)
        stalls["put"].append(face.run(stall(work)) - dump)
        stalls["get"].append(face.run(stall(face.another().saver.aget_tuple(at))))
        work = face.saver.aput_writes(at, [("write", value)], "task")
        stalls["put_writes"].append(face.run(stall(work)) - dump)
    least = {what: min(times) for what, times in stalls.items()}
    assert all(seconds < STALL for seconds in least.values()), least
