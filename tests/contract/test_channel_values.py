"""Contract, "Channel values": what changed is stored, what did not change is found again."""

from __future__ import annotations

import copy
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send

from tests.contract.samples import LARGE, Line, checkpoint, config, metadata, values_of
from tests.strategies import channel_values

if TYPE_CHECKING:
    from tests.faces import Face

SERDE = JsonPlusSerializer()

FALSY = {"none": None, "zero": 0, "text": "", "list": [], "no": False, "bytes": b"", "map": {}}

KINDS = {
    "int": -(2**63),
    "large int": 2**64 - 1,
    "float": 0.1,
    "infinity": float("-inf"),
    "text": "naïve \U0001f600 \x00 \ud800",
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"\x00\xff"),
    "list": [1, [2, ["3"]]],
    "tuple": (1, 2),
    "map": {"a": {"b": [None]}, "": 0, "a.b": 1, "$c": 2, "\x00": 3},
    "map with int keys": {1: "a", 2: "b"},
    "set": {1, 2, 3},
    "frozenset": frozenset({"a"}),
    "decimal": Decimal("1.10"),
    "uuid": UUID(int=7),
    "datetime": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=5.5))),
    "naive datetime": datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - states do hold such
    "date": date(1, 1, 1),
    "time": time(23, 59, 59, 999999),
    "timedelta": timedelta(days=-1, microseconds=1),
    "address": ip_address("::1"),
    "path": Path("/a/b"),
    "pattern": re.compile("a+", re.IGNORECASE),
    "messages": [HumanMessage("hi", id="1"), AIMessage("there", id="2")],
    "send": Send("node", {"x": 1}),
}


def through(value: Any) -> Any:
    """Returns what the serializer makes of a value."""
    return SERDE.loads_typed(SERDE.dumps_typed(value))


def readers(face: Face) -> tuple[Face, Face]:
    """The face itself, which may remember what it stored, and one that cannot."""
    return face, face.another()


def test_only_new_versions_are_stored(face: Face, thread: str) -> None:
    """A value that changed without a new version reads as it was."""
    line = Line(face, thread)
    line.put({"a": 1, "b": LARGE, "c": [1]})
    line.values.update(a=2, b=LARGE + "!", c=[1, 2])
    line.put({"c": [3]})
    for reader in readers(face):
        assert values_of(reader, line.at(1)) == {"a": 1, "b": LARGE, "c": [3]}


@pytest.mark.parametrize("cold", [False, True], ids=["same saver", "another saver"])
def test_unchanged_channels_are_rebuilt_by_version(face: Face, thread: str, cold: bool) -> None:
    """What is not new comes from the checkpoint that had it, also when it is not handed over."""
    line = Line(face, thread)
    line.put({"small": 1, "large": LARGE, "list": [LARGE]})
    for n in range(3):
        if cold:
            line.face = face.another()
        line.put({"counter": n}, hand_over=["counter"])
    line.put({"list": [LARGE, LARGE]}, hand_over=["list"])
    line.put({"small": 2})
    for reader in readers(face):
        line.check(reader)


def test_unchanged_channels_survive_many_checkpoints(face: Face, thread: str) -> None:
    """A value stays readable however long it is unchanged, whatever its size."""
    line = Line(face, thread)
    line.put({f"{size} bytes": "x" * size for size in (10, 255, 300, 1_500, 9_000, 20_000)})
    for n in range(12):
        line.put({"counter": n})
    for reader in readers(face):
        line.check(reader)


def test_removed_channel_does_not_come_back(face: Face, thread: str) -> None:
    """A channel without a version is gone, then and later, and still there before."""
    line = Line(face, thread)
    line.put({"a": 1, "small": 1, "large": LARGE})
    line.put({"a": 2}, removed=["small", "large"])
    line.put({"a": 3})
    assert list(line.expected[line.ids[2]]) == ["a"]
    for reader in readers(face):
        line.check(reader)


def test_new_version_without_value_is_absent(face: Face, thread: str) -> None:
    """A channel with a new version and no value is absent, not None; it may get a value again."""
    line = Line(face, thread)
    line.put({"a": 1, "small": 1, "large": LARGE})
    line.put({"a": 2}, emptied=["small", "large"])
    line.put({"a": 3})
    line.put({"small": 4, "large": LARGE + "again"})
    assert "small" in line.versions
    for reader in readers(face):
        assert values_of(reader, line.at(1)) == {"a": 2}
        line.check(reader)


def test_falsy_values_are_values(face: Face, thread: str) -> None:
    """None, 0, "", [], False and b"" are kept as what they are."""
    line = Line(face, thread)
    line.put(FALSY)
    line.put({"other": 1})
    for reader in readers(face):
        for index in (0, 1):
            found = values_of(reader, line.at(index))
            for name, value in FALSY.items():
                assert found[name] == value
                assert type(found[name]) is type(value)


def test_value_equals_what_the_serializer_makes_of_it(face: Face, thread: str) -> None:
    """A value reads as `serde.loads_typed(serde.dumps_typed(value))`, with its type, everywhere."""
    given = {**KINDS, **{f"{name} and more": [value, LARGE] for name, value in KINDS.items()}}
    at = Line(face, thread).put(given)
    face.put_writes(at, list(given.items()), "task")
    found = face.another().get_tuple(at)
    assert found is not None
    assert found.pending_writes is not None
    written = {channel: value for _, channel, value in found.pending_writes}
    wrong = {}
    for name, value in given.items():
        expected = through(value)
        for seen in (found.checkpoint["channel_values"][name], written[name]):
            if seen != expected or type(seen) is not type(expected):
                wrong[name] = seen
    assert wrong == {}


@settings(
    max_examples=settings().max_examples // 5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(states=channel_values())
def test_any_sequence_of_states_reads_back(face: Face, states: list[dict[str, Any]]) -> None:
    """Whatever a channel goes through, each checkpoint reads as it was put."""
    import uuid

    line = Line(face, str(uuid.uuid4()))
    for state in states:
        line.put({channel: through(value) for channel, value in state.items()})
    for reader in readers(face):
        line.check(reader)


@pytest.mark.parametrize("versions", [{}, {"a": 1, "b": "7"}], ids=["no versions", "versions"])
def test_hand_made_checkpoint_keeps_its_values(
    face: Face, thread: str, versions: dict[str, Any]
) -> None:
    """`put(config, checkpoint, {}, {})` loses nothing that was handed over."""
    given = checkpoint({"a": [1], "b": LARGE}, versions)
    at = face.put(config(thread), given, {}, {})
    for reader in readers(face):
        assert values_of(reader, at) == {"a": [1], "b": LARGE}
        assert [r.checkpoint["channel_values"] for r in reader.list(at)] == [{"a": [1], "b": LARGE}]


def test_hand_made_checkpoint_on_a_parent_keeps_its_values(face: Face, thread: str) -> None:
    """Values whose versions the parent does not have are stored, new version or not."""
    line = Line(face, thread)
    parent = line.put({"a": "of the parent", "b": LARGE})
    given = checkpoint({"a": "handed", "b": LARGE + "handed", "c": 3}, {"a": 98, "b": 99})
    at = face.put(parent, given, {}, {})
    for reader in readers(face):
        assert values_of(reader, at) == {"a": "handed", "b": LARGE + "handed", "c": 3}


def test_fork_onto_the_grandparent_keeps_its_values(face: Face, thread: str) -> None:
    """A copy of a checkpoint beside it, as `update_state(as_node="__copy__")` puts it."""
    line = Line(face, thread)
    line.put({"a": 1, "b": LARGE, "c": "same"})
    line.put({"a": 2, "b": LARGE + "2"})
    twin = checkpoint(line.values, line.versions)
    at = face.put(line.at(0), twin, metadata(source="fork"), {})
    for reader in readers(face):
        assert values_of(reader, at) == line.values
        line.check(reader)


def test_second_put_without_new_versions_keeps_the_values(face: Face, thread: str) -> None:
    """Putting the same checkpoint again with nothing new changes no value."""
    line = Line(face, thread)
    line.put({"a": 1, "b": LARGE})
    line.put({"a": 2, "b": LARGE + "2", "c": 3})
    again = checkpoint(line.values, line.versions, checkpoint_id=line.ids[1])
    face.put(line.at(0), again, metadata(), {})
    for reader in readers(face):
        line.check(reader)


def test_second_put_replaces_values_and_metadata(face: Face, thread: str) -> None:
    """Putting a checkpoint again replaces payload, metadata and values."""
    line = Line(face, thread)
    line.put({"a": 1, "b": LARGE})
    first = line.fork()
    first.put({"a": 2, "b": LARGE + "2", "gone": 1}, checkpoint_id="~1", metadata=metadata(try_=1))
    line.put({"a": 3, "b": "small now"}, checkpoint_id="~1", metadata=metadata(try_=2))
    for reader in readers(face):
        line.check(reader)
        found = reader.get_tuple(config(thread))
        assert found is not None
        assert cast("dict[str, Any]", found.metadata)["try_"] == 2
        assert len(reader.list(config(thread))) == 2


def test_forks_do_not_see_each_other(face: Face, thread: str) -> None:
    """Two lines that grow from one checkpoint read their own values."""
    line = Line(face, thread)
    line.put({"list": [LARGE], "a": 1})
    other = line.fork()
    for n in range(4):
        line.put({"list": [*line.values["list"], f"left {n}" * 500]})
        other.put({"list": [*other.values["list"], f"right {n}" * 500], "a": n})
    for reader in readers(face):
        line.check(reader)
        other.check(reader)


def test_equal_integer_versions_of_forks_do_not_collide(mongo_face: Face, thread: str) -> None:
    """Versions are counted per line; with integers two forks have the same one for other values."""
    root = checkpoint({"a": [1], "b": LARGE}, {"a": 1, "b": 1})
    at = mongo_face.put(config(thread), root, metadata(), {"a": 1, "b": 1})
    forks = []
    for name in ("left", "right"):
        versions = {"a": 2, "b": 2}
        fork = checkpoint({"a": [1, name], "b": name * 5_000}, versions)
        forks.append((mongo_face.put(at, fork, metadata(), versions), name))
    for reader in readers(mongo_face):
        for where, name in forks:
            assert values_of(reader, where) == {"a": [1, name], "b": name * 5_000}
        assert values_of(reader, at) == {"a": [1], "b": LARGE}


def test_version_1_is_not_version_text_1(face: Face, thread: str) -> None:
    """A number and the text that looks like it are two versions."""
    root = checkpoint({"a": LARGE}, {"a": 1})
    first = face.put(config(thread), root, metadata(), {"a": 1})
    second = checkpoint({"a": LARGE[::-1]}, {"a": "1"})
    then = face.put(first, second, metadata(), {"a": "1"})
    for reader in readers(face):
        assert values_of(reader, first) == {"a": LARGE}
        assert values_of(reader, then) == {"a": LARGE[::-1]}
        found = reader.get(then)
        assert found is not None
        assert found["channel_versions"] == {"a": "1"}


@pytest.mark.parametrize(
    "channel", ["a.b", "$set", "", "$", "__proto__", "a\x00b", "\U0001f600" * 500]
)
def test_any_channel_name_is_a_name(face: Face, thread: str, channel: str) -> None:
    """Channel names with dots, dollars, NUL, or nothing in them hold values and writes."""
    line = Line(face, thread)
    at = line.put({channel: 1, "large " + channel: LARGE})
    line.put({"other": 1})
    face.put_writes(at, [(channel, 1)], "task")
    for reader in readers(face):
        line.check(reader)
        found = reader.get_tuple(at)
        assert found is not None
        assert found.pending_writes == [("task", channel, 1)]


def test_same_channels_of_namespaces_and_threads_do_not_mix(face: Face, thread: str) -> None:
    """Same ids, channels and versions in another namespace or thread are other values."""
    lines = [Line(face, t, ns) for t in (thread, thread + "2") for ns in ("", "inner", "inner:2")]
    for number, line in enumerate(lines):
        for n in range(2):
            versions = {"a": n + 1}
            made = checkpoint({"a": f"{number} {n}" * 500}, versions, checkpoint_id=f"id {n}")
            parent = f"id {n - 1}" if n else None
            face.put(config(line.thread, line.ns, parent), made, metadata(), versions)
            line.expected[f"id {n}"] = made["channel_values"]
    for reader in readers(face):
        for line in lines:
            line.check(reader)


def test_callers_objects_are_never_changed(face: Face, thread: str) -> None:
    """Checkpoint, metadata, configs, writes and filters are as before after each call."""
    line = Line(face, thread)
    parent = line.put({"a": 1, "large": LARGE})
    made = checkpoint(
        {"a": 2, "large": LARGE, "list": [{"x": [1]}]}, {**line.versions, "list": "1"}
    )
    extended = {
        **parent,
        "metadata": {"user": "u", "writes": 1},
        "configurable": {**parent["configurable"], "thread_ts": "x", "__private": 1, "plain": 2},
    }
    given: dict[str, Any] = {
        "config": extended,
        "checkpoint": made,
        "metadata": {"source": "loop", "writes": {"n": 1}, "nul": "a\x00b", "deep": {"x": [1]}},
        "new_versions": {"a": line.versions["a"], "list": "1"},
        "writes": [("a", [1]), ("__resume__", {"x": 1})],
        "filter": {"source": "loop", "deep": {"x": [1]}},
        "before": {"configurable": {"checkpoint_id": "~"}},
    }
    kept = copy.deepcopy(given)
    done = face.put(extended, made, given["metadata"], given["new_versions"])  # type: ignore[arg-type]
    face.put_writes(extended, given["writes"], "task")  # type: ignore[arg-type]
    face.put_writes(done, given["writes"], "task")
    face.get_tuple(extended)  # type: ignore[arg-type]
    face.list(extended, filter=given["filter"], before=given["before"], limit=5)  # type: ignore[arg-type]
    assert given == kept
    assert list(given["checkpoint"]) == list(kept["checkpoint"])


def test_what_is_read_is_the_readers_own(face: Face, thread: str) -> None:
    """Changing what a read returned changes no later read and no later put."""
    line = Line(face, thread)
    at = line.put({"list": [1], "large": [LARGE]})
    face.put_writes(at, [("list", [2])], "task")
    expected = copy.deepcopy(line.expected)
    found = face.get_tuple(at)
    assert found is not None
    found.checkpoint["channel_values"]["list"].append("spoilt")
    found.checkpoint["channel_values"]["large"].clear()
    found.checkpoint["channel_versions"].clear()
    found.pending_writes.clear()  # type: ignore[union-attr]
    cast("dict[str, Any]", found.metadata).clear()
    found.config["configurable"].clear()
    line.expected = expected
    line.put({"other": 1}, hand_over=["other"])
    line.check()


@pytest.mark.parametrize("v", [1, 2, 3])
def test_queued_sends_of_old_checkpoints_are_migrated(face: Face, thread: str, v: int) -> None:
    """Before version 4 a checkpoint's sends are the writes to `__pregel_tasks` on its parent."""
    parent = face.put(config(thread), checkpoint({"a": 1}, {"a": "1"}, v=v), metadata(), {"a": "1"})
    late, early = Send("node", {"n": 2}), Send("node", {"n": 1})
    face.put_writes(parent, [("a", 0), ("__pregel_tasks", late)], "task 1", "path 2")
    face.put_writes(parent, [("__pregel_tasks", early), ("b", 0)], "task 2", "path 1")
    versions = {"a": "1", "b": "3", "c": "2"}
    child = checkpoint({"a": 1, "b": 2, "c": 3}, versions, v=v)
    at = face.put(parent, child, metadata(), {"b": "3", "c": "2"})
    for reader in readers(face):
        found = reader.get_tuple(at)
        assert found is not None
        listed = reader.list(config(thread))
        assert listed[0].checkpoint == found.checkpoint
        values, seen = found.checkpoint["channel_values"], found.checkpoint["channel_versions"]
        assert values == {"a": 1, "b": 2, "c": 3, "__pregel_tasks": [early, late]}
        assert seen == {**versions, "__pregel_tasks": "3"}
        assert "__pregel_tasks" not in listed[1].checkpoint["channel_values"]


def test_migrated_sends_get_a_first_version(face: Face, thread: str) -> None:
    """Where no channel has a version the sends get the saver's first one."""
    parent = face.put(config(thread), checkpoint(v=1), metadata(), {})
    face.put_writes(parent, [("__pregel_tasks", Send("node", 1))], "task")
    at = face.put(parent, checkpoint(v=1), metadata(), {})
    found = face.get_tuple(at)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"__pregel_tasks": [Send("node", 1)]}
    version = found.checkpoint["channel_versions"]["__pregel_tasks"]
    assert str(version).partition(".")[0] == f"{1:032}"


def test_sends_of_new_checkpoints_are_not_migrated(face: Face, thread: str) -> None:
    """From version 4 on, and without a parent, values are what was put."""
    parent = face.put(config(thread), checkpoint({"a": 1}, {"a": "1"}), metadata(), {"a": "1"})
    face.put_writes(parent, [("__pregel_tasks", Send("node", 1))], "task")
    at = face.put(parent, checkpoint({"a": 1}, {"a": "1"}, v=4), metadata(), {})
    assert values_of(face, at) == {"a": 1}
    old = face.put(
        config(thread + "2"), checkpoint({"a": 1}, {"a": "1"}, v=1), metadata(), {"a": "1"}
    )
    assert values_of(face, old) == {"a": 1}


def test_next_version_counts_and_has_a_random_part(face: Face) -> None:
    """Versions are `f"{counter:032}.{random:016}"`: they sort as text and never repeat."""
    saver = face.saver
    first = saver.get_next_version(None, None)
    assert re.fullmatch(r"\d{32}\.\d*\.?[\de-]+", first)
    assert first.startswith(f"{1:032}.")
    assert len({saver.get_next_version(first, None) for _ in range(200)}) == 200
    version = first
    for n in range(2, 120):
        version, previous = saver.get_next_version(version, None), version
        assert version > previous
        assert int(version.split(".")[0]) == n


@pytest.mark.parametrize(
    ("found", "counter"),
    [(1, 2), (41, 42), (f"{7:032}.0.123", 8), ("00000000000000000000000000000009", 10)],
)
def test_threads_of_other_savers_go_on(face: Face, thread: str, found: Any, counter: int) -> None:
    """`get_next_version` goes on from what it finds, text or integer, and so does the thread."""
    at = face.put(
        config(thread),
        checkpoint({"a": 1, "b": LARGE}, {"a": found, "b": found}),
        metadata(),
        {"a": found, "b": found},
    )
    version = face.saver.get_next_version(found, None)
    assert version.startswith(f"{counter:032}.")
    then = face.put(
        at, checkpoint({"a": 2, "b": LARGE}, {"a": version, "b": found}), metadata(), {"a": version}
    )
    for reader in readers(face):
        assert values_of(reader, at) == {"a": 1, "b": LARGE}
        assert values_of(reader, then) == {"a": 2, "b": LARGE}


@pytest.mark.parametrize(
    "value", [object(), 2**64, [1, {"a": object()}]], ids=["object", "2**64", "nested"]
)
def test_value_that_the_serializer_refuses_raises(face: Face, thread: str, value: Any) -> None:
    """The error is the serializer's own, as with InMemorySaver; nothing is pickled or stored."""
    model, made = InMemorySaver(), checkpoint({"ok": 1, "refused": value}, {"ok": 1, "refused": 1})
    with pytest.raises(Exception) as expected:  # noqa: PT011 - which one is what we ask
        model.put(config(thread), made, metadata(), {"ok": 1, "refused": 1})
    with pytest.raises(type(expected.value)):
        face.put(config(thread), made, metadata(), {"ok": 1, "refused": 1})
    assert face.get_tuple(config(thread)) is None
    at = Line(face, thread).put({"a": 1})
    with pytest.raises(type(expected.value)):
        face.put_writes(at, [("ok", 1), ("refused", value)], "task")
    if face.name != "memory":
        assert face.get_tuple(at).pending_writes == []  # type: ignore[union-attr]


def test_large_values_round_trip(face: Face, thread: str) -> None:
    """A list of 2 MB grows, shrinks and is replaced, and each version reads back."""
    line = Line(face, thread)
    messages = [f"message {n} " * 200 for n in range(1000)]
    for upto in (900, 950, 1000, 10):
        line.put({"messages": messages[:upto]})
    line.put({"messages": "x" * 1_000_000})
    for reader in readers(face):
        line.check(reader)


def test_one_saver_serves_many_threads_at_once(face: Face) -> None:
    """Threads of Python that write their own threads through one saver do not disturb another."""

    def write(n: int) -> Line:
        line = Line(face, f"thread {n}")
        for k in range(4):
            line.put({"list": [n, k, LARGE[: 3_000 + k]], "n": n})
        return line

    with ThreadPoolExecutor(8) as pool:
        lines = list(pool.map(write, range(8)))
    for line in lines:
        line.check(face.another())
