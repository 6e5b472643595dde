"""Append-only storage through the savers: what is read is, byte for byte, what was written.

A history of checkpoints is drawn: values that grow, shrink, change their kind and cross the sizes
at which a msgpack header widens, put by savers that know the parent and by ones that do not, on the
newest checkpoint and on older ones, with puts in between that never arrived. Then every checkpoint
is read back by savers of every kind, and the bytes that reached the serializer are compared.

The same is done with storage that cuts and merges within a few bytes, where short values go through
what takes long ones otherwise.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from mongosaver import codec, segments
from mongosaver.ops import Compute, Find, Insert, Together
from mongosaver.plans import write
from mongosaver.schema import Name
from mongosaver.segments import Layout
from tests.contract.samples import Line, checkpoint, config, id_of, metadata
from tests.faces import ON_MONGODB, read_by_finds

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import Checkpoint

    from tests.faces import Face, Stage

ROOT = Path(__file__).parents[2]
SMALL = Layout(pieces=(2, 4), largest=8, tiers=(2, 4), fan=2, fresh=1, longest=2)
"""Cuts and merges as the real layout does, within a dozen bytes."""


class Recorder(JsonPlusSerializer):
    """The plain serializer; `loaded` are the typed payloads that it was given to load."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[tuple[str, bytes]] = []

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Notes the payload."""
        self.loaded.append((data[0], bytes(data[1])))
        return super().loads_typed(data)

    def payload(self, value: Any) -> tuple[str, bytes]:
        """Returns what is stored for a value."""
        type_, data = self.dumps_typed(value)
        return type_, bytes(data)


# --- values ------------------------------------------------------------------------------------


def item(seed: int, size: int) -> str:
    """A message: text that depends on its seed everywhere."""
    return (f"{seed:06} " * (1 + size // 7))[:size]


@dataclass(frozen=True)
class Scale:
    """How large values are, in units of the layout in use.

    Attributes:
        sizes: Sizes of items.
        counts: How many items come or go at a time.
        starts: How many items of a middling size a first value may have.
        edges: Lengths around which msgpack's headers widen, and values are cut or leave.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    starts: tuple[int, ...]
    edges: tuple[int, ...]


REAL = Scale(
    sizes=(10, 765, 765, 3000, 9000),
    counts=(1, 1, 2, 8, 30),
    starts=(30, 60, 200),
    edges=(31, 256, 4096, 8192, 16 * 1024 - 3, 16 * 1024 + 1, 65_535, 65_536, 300_000),
)
TINY = Scale(
    sizes=(0, 1, 3, 9), counts=(1, 1, 2, 5), starts=(3, 9), edges=(15, 16, 31, 32, 255, 256)
)


def start(kind: str, count: int, size: int) -> Any:
    """A first value: so many items, or characters of as many."""
    if kind == "list":
        return [item(n, size) for n in range(count)]
    if kind == "map":
        return {f"key {n}": item(n, size) for n in range(count)}
    characters = "".join(item(n, size) for n in range(count))
    kinds = {"str": characters, "bytes": characters.encode()}
    return kinds.get(kind, bytearray(characters, "ascii"))


@st.composite
def successor(draw: st.DrawFn, value: Any, scale: Scale) -> Any:
    """A value after one step: grown, trimmed, edited, emptied, or another one altogether."""
    seed = draw(st.integers(0, 999))
    size = draw(st.sampled_from(scale.sizes))
    count = draw(st.sampled_from(scale.counts))
    how = draw(
        st.sampled_from(["grow"] * 5 + ["tail", "head", "edit", "edge", "empty", "wrap", "other"])
    )
    if how == "other":
        kinds: list[Any] = [[item(seed, size)], {"k": item(seed, size)}, item(seed, size)]
        kinds += [item(seed, size).encode(), bytearray(item(seed, size), "ascii"), None, seed]
        return draw(st.sampled_from(kinds))
    if how == "wrap":
        return [value, seed]
    if not isinstance(value, (list, dict, str, bytes, bytearray)):
        return [item(seed, size)]
    if how == "empty":
        return type(value)()
    if how == "edge":
        return _of_length(value, seed, draw(st.sampled_from(scale.edges)))
    if isinstance(value, dict):
        return _next_map(value, how, seed, size, count)
    part: Any = {
        list: [item(seed + n, size) for n in range(count)],
        str: item(seed, size * count),
        bytes: item(seed, size * count).encode(),
        bytearray: bytearray(item(seed, size * count), "ascii"),
    }[type(value)]
    if how == "tail":
        return value[: max(0, len(value) - count)]
    if how == "head":
        return value[count:]
    if how == "edit":
        at = draw(st.integers(0, len(value)))
        return value[:at] + part[:1] + value[at + 1 :]
    return value + part


def _next_map(value: dict[Any, Any], how: str, seed: int, size: int, count: int) -> dict[Any, Any]:
    keys = list(value)
    if how == "tail":
        return {key: value[key] for key in keys[: max(0, len(keys) - count)]}
    if how == "head":
        return {key: value[key] for key in keys[count:]}
    if how == "edit" and keys:
        return {**value, keys[seed % len(keys)]: item(seed, size)}
    return {**value, **{f"{seed} {n}": item(seed + n, size) for n in range(count)}}


def _of_length(value: Any, seed: int, length: int) -> Any:
    """The value cut or filled up to a length at which its header has another width."""
    if isinstance(value, dict):
        kept = dict(list(value.items())[:length])
        return {**kept, **dict.fromkeys(range(length - len(kept)), seed)}
    if isinstance(value, list):
        return value[:length] + [seed] * (length - len(value))
    filler = item(seed, max(0, length - len(value)))
    return value[:length] + (filler if isinstance(value, str) else type(value)(filler.encode()))


WRITERS = ("warm", "warm", "warm", "cold", "process", "second")


@dataclass(frozen=True)
class Step:
    """One put: its value, who puts it, on which of the checkpoints so far, and how it ends.

    Attributes:
        value: The value of the channel; the same object as before where it did not change.
        changed: Whether the channel has a new version.
        writer: Which saver puts.
        parent: Index of the parent among the checkpoints so far.
        arrives: False where only the blobs are stored, as of a process that ends in between.
    """

    value: Any
    changed: bool
    writer: str
    parent: int
    arrives: bool


@st.composite
def histories(draw: st.DrawFn, scale: Scale, longest: int) -> list[Step]:
    """Steps from an empty thread on; about one in four begins a fork."""
    steps: list[Step] = []
    kind = draw(st.sampled_from(["list", "list", "map", "str", "bytes", "bytearray"]))
    values: list[Any] = [start(kind, draw(st.sampled_from((0, *scale.starts))), scale.sizes[2])]
    for _ in range(draw(st.integers(2, longest))):
        newest = len(values) - 1
        parent = draw(st.sampled_from([newest] * 3 + [draw(st.integers(0, newest))]))
        changed = draw(st.sampled_from([True] * 4 + [False])) or parent == 0
        value = draw(successor(values[parent], scale)) if changed else values[parent]
        arrives = draw(st.sampled_from([True] * 5 + [False]))
        steps.append(Step(value, changed, draw(st.sampled_from(WRITERS)), parent - 1, arrives))
        if arrives:
            values.append(value)
    return steps


# --- another process ---------------------------------------------------------------------------

_PROCESS = """
import base64, json, pickle, sys
from pymongo import MongoClient
from mongosaver import MongoSaver

with MongoClient(sys.argv[1]) as client:
    for line in sys.stdin:
        database, collection, name, arguments = json.loads(line)
        saver = MongoSaver(client[database][collection], auto_setup=False)
        done = getattr(saver, name)(*pickle.loads(base64.b64decode(arguments)))
        print(base64.b64encode(pickle.dumps(done)).decode(), flush=True)
"""


class Process:
    """A second process with savers of its own; it remembers nothing from one call to the next."""

    def __init__(self, uri: str) -> None:
        self.running = subprocess.Popen(
            [sys.executable, "-c", _PROCESS, uri],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def call(self, face: Face, name: str, *arguments: Any) -> Any:
        """Calls a method of a saver there."""
        assert self.running.stdin is not None
        assert self.running.stdout is not None
        given = base64.b64encode(pickle.dumps(arguments)).decode()
        where = [face.stage.database, face.collection.name]
        print(json.dumps([*where, name, given]), file=self.running.stdin, flush=True)
        return pickle.loads(base64.b64decode(self.running.stdout.readline()))

    def close(self) -> None:
        """Ends it."""
        self.running.communicate(timeout=30)


@pytest.fixture(scope="module")
def process(stage: Stage) -> Iterator[Process]:
    """One process for all tests of this file."""
    other = Process(stage.uri)
    yield other
    other.close()


@pytest.fixture
def make(stage: Stage) -> Iterator[Callable[..., Face]]:
    """Makes faces by name, each on a collection of its own, which is dropped afterwards."""
    made: list[Face] = []

    def one(name: str, **options: Any) -> Face:
        made.append(ON_MONGODB[name](stage, f"segments_{uuid.uuid4().hex[:12]}", **options))
        made[-1].setup()
        return made[-1]

    yield one
    for face in made:
        face.drop()


@pytest.fixture
def tiny_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values leave the checkpoint document and are cut and merged within a few bytes."""
    monkeypatch.setitem(segments.plan.__kwdefaults__, "layout", SMALL)
    monkeypatch.setattr(codec, "INLINE_ALWAYS", 4)
    monkeypatch.setattr(codec, "INLINE_BUDGET", 12)


# --- playing a history -------------------------------------------------------------------------


def lose(face: Face, at: RunnableConfig, made: Checkpoint, versions: dict[str, Any]) -> None:
    """Does what a put does until its blobs are stored, and not what comes after."""
    driver = ON_MONGODB["sync"](face.stage, face.collection.name).saver._driver  # type: ignore[attr-defined]
    plan = write.put(face.saver._context(), at, made, metadata(), versions)  # type: ignore[attr-defined]
    op = next(plan)
    while isinstance(op, (Find, Compute)):
        op = plan.send(driver._do(op))
    inserts = op.writes if isinstance(op, Together) else (op,)
    for insert in inserts:
        if isinstance(insert, Insert) and insert.collection is Name.BLOBS:
            fresh = [
                blob
                for blob in insert.documents
                if not face.sibling(".blobs").find_one({k: blob[k] for k in ("thread_id", "key")})
            ]
            if fresh:
                driver._do(Insert(Name.BLOBS, fresh))
    plan.close()


@dataclass
class Played:
    """A thread that was written by a history: which value each of its checkpoints must have."""

    thread: str
    ids: list[str] = field(default_factory=list)
    versions: list[dict[str, Any]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    steady: str = ""


def play(steps: list[Step], face: Face, process: Process) -> tuple[Played, Face]:
    """Writes a history, each put by the saver that its step names."""
    thread = f"thread {uuid.uuid4()}"
    played = Played(thread, steady=f"{thread} " * 40)
    second = face.another(auto_setup=False)
    for step in steps:
        at = config(thread, "", played.ids[step.parent] if step.parent >= 0 else None)
        before = played.versions[step.parent] if step.parent >= 0 else {}
        versions, new = dict(before), {}
        for channel in ("value", "steady") if step.parent < 0 else ("value",) * step.changed:
            version = face.saver.get_next_version(before.get(channel), None)
            versions[channel] = new[channel] = version
        made = checkpoint(
            {"value": step.value, "steady": played.steady}, versions, checkpoint_id=str(uuid6())
        )
        if not step.arrives:
            lose(second if step.writer == "second" else face, at, made, new)
            continue
        if step.writer == "process":
            process.call(face, "put", at, made, metadata(), new)
        else:
            writers = {"warm": face, "second": second}
            (writers.get(step.writer) or face.another(auto_setup=False)).put(
                at, made, metadata(), new
            )
        played.ids.append(made["id"])
        played.versions.append(versions)
        played.values.append(step.value)
    return played, second


def check(played: Played, face: Face, *, listed: bool = False) -> None:
    """Asserts that every checkpoint gives the payloads of its values, byte for byte."""
    serde = Recorder()
    face.saver.serde = serde
    expected = {
        checkpoint_id: [serde.payload(value), serde.payload(played.steady)]
        for checkpoint_id, value in zip(played.ids, played.values, strict=True)
    }
    if listed:
        rows = face.list(config(played.thread))
        assert [id_of(row) for row in rows] == sorted(expected, reverse=True)
        for row in rows:
            value = row.checkpoint["channel_values"]["value"]
            assert serde.payload(value) == expected[id_of(row)][0]
        assert {typed for each in expected.values() for typed in each} <= set(serde.loaded)
        return
    for checkpoint_id, payloads in expected.items():
        serde.loaded.clear()
        row = face.get_tuple(config(played.thread, "", checkpoint_id))
        assert row is not None
        values = row.checkpoint["channel_values"]
        assert [serde.payload(values[c]) for c in ("value", "steady")] == payloads
        assert all(payload in serde.loaded for payload in payloads)


def check_everywhere(played: Played, face: Face, second: Face, process: Process) -> None:
    """Reads all of it by savers that know it, that know some of it and that know nothing."""
    check(played, face)
    check(played, second, listed=True)
    check(played, face.another())
    finds = face.another()
    read_by_finds(finds.saver)
    check(played, finds)
    if played.ids:
        row = process.call(face, "get_tuple", config(played.thread))
        newest = played.ids.index(max(played.ids))
        dumps = face.saver.serde.dumps_typed
        assert dumps(row.checkpoint["channel_values"]["value"]) == dumps(played.values[newest])


LIVE = settings(
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("name", ["sync", "async"])
def test_every_version_reads_back(make: Callable[..., Face], process: Process, name: str) -> None:
    """Whoever put it, on whatever parent, each version reads back byte for byte for everybody."""
    face = make(name)

    @settings(LIVE, max_examples=30 if name == "sync" else 10)
    @given(histories(REAL, 10))
    def run(steps: list[Step]) -> None:
        played, second = play(steps, face, process)
        check_everywhere(played, face, second, process)

    run()
    assert face.sibling(".blobs").count_documents({"chain.1": {"$exists": True}}) > 0


def test_every_version_reads_back_from_tiny_segments(
    make: Callable[..., Face], process: Process, tiny_storage: None
) -> None:
    """The same where everything is cut and merged, and the other process stores in another way."""
    face = make("sync")

    @settings(LIVE, max_examples=40)
    @given(histories(TINY, 10))
    def run(steps: list[Step]) -> None:
        played, second = play(steps, face, process)
        check_everywhere(played, face, second, process)

    run()
    assert face.sibling(".blobs").count_documents({"chain.2": {"$exists": True}}) > 0


# --- single properties -------------------------------------------------------------------------


def ones(length: int) -> list[int]:
    """Returns a list."""
    return [1] * length


def numbers(length: int) -> dict[int, int]:
    """Returns a map."""
    return dict.fromkeys(range(length), 1)


def letters(length: int) -> str:
    """Returns a string."""
    return "x" * length


def zeros(length: int) -> list[bytes]:
    """Returns bytes that have a header."""
    return [bytes(length)]


@pytest.mark.parametrize("name", ["sync", "async"])
@pytest.mark.parametrize(
    ("value", "lengths"),
    [
        (ones, (0, 1, 14, 15, 16, 17)),
        (numbers, (0, 1, 14, 15, 16, 17)),
        (letters, (0, 30, 31, 32, 33, 255, 256, 257)),
        (zeros, (0, 254, 255, 256)),
        (bytes, (0, 1, 8, 9)),
        (bytearray, (0, 1, 8, 9)),
    ],
)
def test_short_values_grow_and_shrink_across_header_sizes(
    make: Callable[..., Face],
    thread: str,
    tiny_storage: None,
    name: str,
    value: Callable[[int], Any],
    lengths: tuple[int, ...],
) -> None:
    """A short value whose header takes another width reads back from tiny segments."""
    cross(Line(make(name), thread), value, lengths)


@pytest.mark.parametrize(
    ("value", "lengths"),
    [
        (ones, (65_534, 65_535, 65_536, 65_537)),
        (numbers, (65_535, 65_536)),
        (letters, (65_534, 65_535, 65_536, 65_537)),
        (zeros, (65_535, 65_536)),
        (bytes, (65_535, 65_536)),
    ],
)
def test_long_values_grow_and_shrink_across_header_sizes(
    make: Callable[..., Face], thread: str, value: Callable[[int], Any], lengths: tuple[int, ...]
) -> None:
    """A long value whose header takes another width reads back."""
    cross(Line(make("sync"), thread), value, lengths)


def cross(line: Line, value: Callable[[int], Any], lengths: tuple[int, ...]) -> None:
    """Puts values of these lengths and back again, and reads all of them."""
    for length in (*lengths, *reversed(lengths)):
        line.put({"value": value(length)})
    line.check()
    line.check(line.face.another())


@pytest.mark.parametrize("name", ["sync", "async"])
def test_header_of_a_large_list_widens_beside_its_segments(
    make: Callable[..., Face], thread: str, name: str
) -> None:
    """The 65,536th item changes the header from 3 to 5 bytes, and costs one small blob at most."""
    face = make(name)
    line = Line(face, thread)
    value = [f"{number:06}" for number in range(65_535)]
    line.put({"value": value})
    before = stored_bytes(face)
    line.put({"value": [*value, "last"]})
    assert stored_bytes(face) - before < 100
    line.check(face.another())


@pytest.mark.parametrize("name", ["sync", "async"])
def test_value_leaves_the_document_and_comes_back(
    make: Callable[..., Face], thread: str, name: str
) -> None:
    """A value that outgrows the checkpoint document, shrinks into it and outgrows it again."""
    face = make(name)
    line = Line(face, thread)
    sizes = [1, 10, 25, 40, 25, 3, 0, 3, 40, 41, 0, 60]
    for size in sizes:
        line.put({"value": [item(n, 765) for n in range(size)]})
    inline = [
        any(entry["c"] == "value" for entry in row["inline"])
        for row in face.collection.find({"thread_id": thread}).sort("checkpoint_id", 1)
    ]
    assert {inline[index] for index, size in enumerate(sizes) if size <= 10} == {True}
    assert {inline[index] for index, size in enumerate(sizes) if size >= 25} == {False}
    line.check()
    line.check(face.another())


def stored_bytes(face: Face) -> int:
    """Returns the bytes of values in the blobs collection."""
    group = {"_id": None, "bytes": {"$sum": {"$binarySize": "$data"}}}
    rows = list(face.sibling(".blobs").aggregate([{"$group": group}]))
    return int(rows[0]["bytes"]) if rows else 0


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_chat_is_stored_linearly(make: Callable[..., Face], thread: str, cold: bool) -> None:
    """500 messages, put one by one, take at most 4.5 times their final size in blobs.

    With what waits in the checkpoint documents it is at most 6 times. It makes no difference
    whether the saver knows the parent or has to look it up.
    """
    face = make("sync")
    line = Line(face, thread)
    value: list[str] = []
    for number in range(500):
        value = [*value, item(number, 765)]
        if cold and number % 5 == 0:
            line.face = face.another(auto_setup=False)
        line.put({"messages": value})
    final = len(face.saver.serde.dumps_typed(value)[1])
    waiting = sum(
        len(entry.get("d", b""))
        for row in face.collection.find({}, {"inline.d": 1, "blobs.d": 1})
        for entry in (*row["inline"], *row["blobs"])
    )
    assert final < stored_bytes(face) + 20_000
    assert stored_bytes(face) <= 4.5 * final
    assert stored_bytes(face) + waiting <= 6 * final
    for index in (0, 19, 20, 21, 100, 499):
        row = face.another().get_tuple(line.at(index))
        assert row is not None
        assert row.checkpoint["channel_values"]["messages"] == value[: index + 1]


def test_forks_share_what_they_have_in_common(make: Callable[..., Face], thread: str) -> None:
    """Ten forks of one long list cost ten additions, not ten lists, and keep apart."""
    face = make("sync")
    line = Line(face, thread)
    value = [item(number, 765) for number in range(200)]
    line.put({"messages": value})
    before = stored_bytes(face)
    forks = [line.fork() for _ in range(10)]
    for number, fork in enumerate(forks):
        fork.face = face.another() if number % 2 else face
        for turn in range(3):
            value_of_fork = [*value, *(item(1000 * number + n, 765) for n in range(turn + 1))]
            fork.put({"messages": value_of_fork})
    assert stored_bytes(face) - before < 10 * 3 * 3 * 800
    for fork in forks:
        fork.check(face.another())


def test_equal_values_put_at_once_share_their_blobs(make: Callable[..., Face], thread: str) -> None:
    """Two savers that put the same version of a value leave one copy, and both are content."""
    face = make("sync")
    line = Line(face, thread)
    value = [item(number, 765) for number in range(100)]
    line.put({"messages": value})
    version = face.saver.get_next_version(line.versions["messages"], None)
    grown = [*value, *(item(number, 765) for number in range(900, 960))]
    before = face.sibling(".blobs").count_documents({})
    counts = []
    for saver in (face, face.another(), face.another()):
        made = checkpoint({"messages": grown}, {"messages": version})
        at = saver.put(line.at(0), made, metadata(), {"messages": version})
        counts.append(face.sibling(".blobs").count_documents({}))
        row = face.another().get_tuple(at)
        assert row is not None
        assert row.checkpoint["channel_values"] == {"messages": grown}
    assert before < counts[0] == counts[1] == counts[2]


def test_same_version_number_with_another_value_is_another_value(
    make: Callable[..., Face], thread: str
) -> None:
    """Savers that number versions by integers may give one number to two values of two forks."""
    face = make("sync")
    base = [item(number, 765) for number in range(50)]
    root = face.put(config(thread), checkpoint({"m": base}, {"m": 1}), metadata(), {"m": 1})
    values = {letter: [*base, letter * 5000, item(5, 9000)] for letter in "ab"}
    at = {
        letter: face.another().put(root, checkpoint({"m": value}, {"m": 2}), metadata(), {"m": 2})
        for letter, value in values.items()
    }
    for letter, value in values.items():
        for reader in (face, face.another()):
            row = reader.get_tuple(at[letter])
            assert row is not None
            assert row.checkpoint["channel_values"] == {"m": value}
