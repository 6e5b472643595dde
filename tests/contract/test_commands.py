"""Commands per operation: the table of round trips, counted by a CommandListener."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.samples import LARGE, Line, checkpoint, config, metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.faces import Face

SMALL: dict[str, Any] = {"n": 1, "none": None, "text": "short", "list": ["message " * 100] * 4}
"""Values that stay inside the checkpoint document."""


@pytest.fixture
def ready(mongo_face: Face) -> Face:
    """A face whose indexes are made and whose connection is open."""
    mongo_face.setup()
    mongo_face.get_tuple(config("nobody"))
    return mongo_face


def newcomer(face: Face) -> Face:
    """Returns a face with a new saver that knows nothing but that the schema is there."""
    other = face.another()
    other.setup()
    return other


def sent_by(face: Face, call: Callable[[], object]) -> list[tuple[str, str]]:
    """Returns name and collection suffix of each command that a call sends."""
    with face.commands.recorded() as sent:
        call()
    return [(one.name, one.collection.removeprefix(face.collection.name)) for one in sent]


def names(face: Face, call: Callable[[], object]) -> list[str]:
    """Returns the name of each command that a call sends."""
    return [name for name, _ in sent_by(face, call)]


def test_put_of_small_values_is_one_command(ready: Face, thread: str) -> None:
    """A checkpoint whose values need no blob is one insert, on a parent or not."""
    line = Line(ready, thread)
    for n in range(4):
        sent = sent_by(ready, lambda n=n: line.put({**SMALL, "n": n}))
        assert sent == [("insert", "")]
    line.check()


def test_put_of_large_values_is_one_transaction_or_two_commands(ready: Face, thread: str) -> None:
    """New blobs go first: in one transaction where there are such, else in sequence."""
    line = Line(ready, thread)
    line.put({"n": 0})
    with ready.commands.recorded() as sent:
        line.put({"list": [LARGE] * 3, "other": LARGE + "other", "n": 1})
    commands = [(c.name, c.collection.removeprefix(ready.collection.name)) for c in sent]
    if ready.stage.topology == "replica set":
        assert commands == [("insert", ".blobs"), ("insert", ""), ("commitTransaction", "")]
        assert [c.command.get("autocommit") for c in sent] == [False] * 3
        assert len({c.command["txnNumber"] for c in sent}) == 1
    else:
        assert [collection for _, collection in commands] == [".blobs", ""]
        assert not any("autocommit" in c.command for c in sent)
    line.check()


def test_put_that_changes_no_large_value_is_one_command(ready: Face, thread: str) -> None:
    """A blob that is stored is not sent again, and its parent is not asked for."""
    line = Line(ready, thread)
    line.put({"large": LARGE, "n": 0})
    for n in range(1, 4):
        with ready.commands.recorded() as sent:
            line.put({"n": n})
        assert [c.name for c in sent] == ["insert"]
        assert len(str(sent[0].command)) < len(LARGE) / 4
    line.check()


def test_put_of_another_saver_reads_the_parent_once(ready: Face, thread: str) -> None:
    """A saver that does not know the parent asks once, and knows it from then on."""
    line = Line(ready, thread)
    line.put({"large": LARGE, "n": 0})
    line.face = newcomer(ready)
    first = names(ready, lambda: line.put({"n": 1}))
    assert first in (["find", "insert"], ["aggregate", "insert"])
    assert names(ready, lambda: line.put({"n": 2})) == ["insert"]
    line.check()


def test_put_after_a_read_does_not_read(ready: Face, thread: str) -> None:
    """What a read has seen is known: a resumed graph puts with one command."""
    line = Line(ready, thread)
    line.put({"large": LARGE, "n": 0})
    line.face = newcomer(ready)
    line.face.get_tuple(line.at(0))
    assert names(ready, lambda: line.put({"n": 1})) == ["insert"]
    line.check()


def test_second_put_of_a_checkpoint_is_one_command_more(ready: Face, thread: str) -> None:
    """A checkpoint that is there already is replaced, after its insert has met it."""
    line = Line(ready, thread)
    line.put({"n": 0})
    made, versions = checkpoint({"n": 1}, {"n": "2"}, checkpoint_id="~"), {"n": "2"}
    ready.put(line.at(0), made, metadata(), versions)
    sent = sent_by(ready, lambda: ready.put(line.at(0), made, metadata(), versions))
    assert sent == [("insert", ""), ("update", "")]
    assert [row.checkpoint["id"] for row in ready.list(config(thread))] == ["~", line.ids[0]]


def test_second_put_of_large_values_goes_on_in_sequence(ready: Face, thread: str) -> None:
    """Where blobs and checkpoint are there already a few commands find out, and one is left."""
    line = Line(ready, thread)
    line.put({"large": LARGE, "n": 0})
    made = checkpoint({"large": LARGE[::-1]}, {"large": "2"}, checkpoint_id="~")
    for _ in range(2):
        sent = names(ready, lambda: ready.put(line.at(0), made, metadata(), {"large": "2"}))
    assert len(sent) <= 7
    assert [row.checkpoint["id"] for row in ready.list(config(thread))] == ["~", line.ids[0]]
    line.check()


def test_the_first_write_of_a_saver_looks_at_the_schema_once(ready: Face, thread: str) -> None:
    """What was applied is one find, and the indexes are looked at unless that is turned off."""
    look = [("find", ".migrations")]
    for options, expected in (
        ({"auto_setup": False}, look),
        ({}, look + [("listIndexes", suffix) for suffix in ("", ".writes", ".blobs")]),
    ):
        line = Line(ready.another(**options), f"{thread} {options}")
        assert sent_by(ready, lambda line=line: line.put(SMALL)) == [*expected, ("insert", "")]
        assert sent_by(ready, lambda line=line: line.put(SMALL)) == [("insert", "")]


@pytest.mark.parametrize("n", [1, 2, 40])
def test_put_writes_is_one_command(ready: Face, thread: str, n: int) -> None:
    """However many writes a call has, ordinary, special or both, it is one command."""
    at = Line(ready, thread).put({"a": 1})
    ordinary = [(f"channel {k}", k) for k in range(n)]
    mixed = [("__interrupt__", 1), *ordinary, ("__error__", "e")]
    for task, writes in (("a", ordinary), ("b", mixed), ("c", [("__resume__", LARGE)])):
        for attempt in range(2):
            sent = sent_by(ready, lambda w=writes, t=task: ready.put_writes(at, w, t, "path"))
            assert [collection for _, collection in sent] == [".writes"], (task, attempt)
            assert sent[0][0] in ("insert", "update")


def test_put_writes_again_is_one_command(ready: Face, thread: str) -> None:
    """Slots that are taken, all or some of them, cost no further command and are no error."""
    at = Line(ready, thread).put({"a": 1})
    ready.put_writes(at, [("x", 1), ("y", 2)], "task")
    for writes in ([("x", 9)], [("x", 9), ("y", 9), ("z", 3)]):
        assert len(sent_by(ready, lambda w=writes: ready.put_writes(at, w, "task"))) == 1
    found = ready.get_tuple(at)
    assert found is not None
    assert found.pending_writes == [("task", "x", 1), ("task", "y", 2), ("task", "z", 3)]


def filled(face: Face, thread: str, n: int, large: bool = True) -> Line:
    """Puts `n` checkpoints with a pending write each."""
    line = Line(face, thread)
    for k in range(n):
        values = {"n": k, "list": [LARGE if large else "small", k // 10]}
        face.put_writes(line.put(values, checkpoint_id=f"id {k:04}"), [("x", k)], "task")
    return line


def test_get_tuple_is_one_command(ready: Face, thread: str) -> None:
    """Checkpoint, values, their segments and pending writes come in one round trip."""
    line = filled(ready, thread, 12)
    for reader in (ready, ready.another()):
        for at in (config(thread), line.at(5), config(thread + "2"), config(thread, "", "no id")):
            sent = names(ready, lambda r=reader, at=at: r.get_tuple(at))
            if ready.stage.by_finds:
                assert set(sent) == {"find"}
                assert len(sent) <= 4
            else:
                assert sent == ["aggregate"]


def test_get_tuple_after_another_saver_has_put_is_one_command(ready: Face, thread: str) -> None:
    """What a saver remembers of a thread may be outdated; it still needs no second round trip."""
    line = Line(ready, thread)
    reader = newcomer(ready)
    chat = ["small"]
    for turn in range(6):
        chat = [*chat, f"{turn} " * (900 if turn % 2 else 2)]
        own = {"own": LARGE} if turn == 3 else {}
        at = line.put({"chat": chat, "n": turn, **own})
        for wanted in (config(thread), at, config(thread)):
            sent = names(reader, lambda wanted=wanted: reader.get_tuple(wanted))
            if ready.stage.by_finds:
                assert set(sent) == {"find"}
            else:
                assert sent == ["aggregate"]
            row = reader.get_tuple(wanted)
            assert row is not None
            assert row.checkpoint["channel_values"] == line.expected[row.checkpoint["id"]]


def test_get_tuple_of_an_old_checkpoint_is_two_commands(ready: Face, thread: str) -> None:
    """Queued sends of a checkpoint before version 4 are one command more."""
    parent = ready.put(config(thread), checkpoint(v=1), metadata(), {})
    ready.put_writes(parent, [("__pregel_tasks", 1)], "task")
    at = ready.put(parent, checkpoint(v=1), metadata(), {})
    assert len(names(ready, lambda: ready.get_tuple(at))) <= (5 if ready.stage.by_finds else 2)


@pytest.mark.parametrize("n", [1, 10, 99])
def test_list_is_at_most_four_commands(ready: Face, thread: str, n: int) -> None:
    """A page costs the same whether it has one row or many."""
    filled(ready, thread, n)
    sent = names(ready, lambda: ready.another().list(config(thread)))
    assert len(sent) <= 4
    assert set(sent) <= {"find", "aggregate"}


def test_list_without_blobs_needs_no_blobs(ready: Face, thread: str) -> None:
    """Where all values are inside the checkpoint documents two commands are enough."""
    filled(ready, thread, 20, large=False)
    assert len(names(ready, lambda: ready.list(config(thread)))) <= 2


def test_long_list_is_at_most_four_commands_per_page(ready: Face, thread: str) -> None:
    """250 rows are three pages, and a limit reads no more than it needs."""
    filled(ready, thread, 250)
    assert len(names(ready, lambda: ready.list(config(thread)))) <= 12
    assert len(names(ready, lambda: ready.list(None))) <= 12
    assert len(names(ready, lambda: ready.list(config(thread), limit=100))) <= 4
    assert len(names(ready, lambda: ready.list(config(thread), limit=5))) <= 4
    assert len(names(ready, lambda: ready.list(config(thread), filter={"step": 3}))) <= 4
    assert names(ready, lambda: ready.list(config(thread), limit=0)) == []


def test_list_reads_each_distinct_segment_once(ready: Face, thread: str) -> None:
    """Values that rows share cross the network once per page."""
    line = Line(ready, thread)
    for n in range(20):
        line.put({"n": n, "large": LARGE} if n == 0 else {"n": n})
    with ready.commands.recorded() as sent:
        rows = ready.another().list(config(thread))
    assert [row.checkpoint["channel_values"]["large"] for row in rows] == [LARGE] * 20
    wanted = [
        key
        for one in sent
        if one.collection.endswith(".blobs")
        for key in keys_in(one.command["filter"])
    ]
    assert wanted
    assert len(wanted) == len(set(wanted))


def keys_in(condition: Any) -> Iterator[bytes]:
    """Yields the blob keys that a condition names."""
    if isinstance(condition, bytes):
        yield condition
    elif isinstance(condition, (dict, list)):
        for inner in condition.values() if isinstance(condition, dict) else condition:
            yield from keys_in(inner)


def test_delete_thread_is_three_commands_or_four(ready: Face, thread: str) -> None:
    """Checkpoints go first, then writes, then blobs; then a second look at the checkpoints."""
    filled(ready, thread, 5)
    sent = sent_by(ready, lambda: ready.delete_thread(thread))
    deletes = [collection for name, collection in sent if name == "delete"]
    assert deletes[:3] == ["", ".writes", ".blobs"]
    assert len(sent) in (3, 4)
    assert len(sent_by(ready, lambda: ready.delete_thread(thread))) in (3, 4)


def test_commands_name_the_thread_by_equality(ready: Face, thread: str) -> None:
    """Each command of the hot path has `thread_id` as one text, so that it goes to one shard."""
    line = Line(ready, thread)
    readers = (ready, newcomer(ready))
    with ready.commands.recorded() as sent:
        for reader in readers:
            line.face = reader
            at = line.put({"large": LARGE + str(len(line.ids)), "n": 1})
            reader.put_writes(at, [("x", 1), ("__resume__", 1)], "task")
            reader.get_tuple(at)
            reader.get_tuple(config(thread))
            reader.list(config(thread))
        ready.delete_thread(thread)
    for one in sent:
        command = one.command
        conditions = [command["filter"]] if "filter" in command else []
        conditions += [s["$match"] for s in command.get("pipeline", [])[:1]]
        conditions += [u["q"] for u in command.get("updates", ())]
        conditions += [d["q"] for d in command.get("deletes", ())]
        conditions += command.get("documents", ())
        assert conditions or one.name == "commitTransaction", one
        assert {c["thread_id"] for c in conditions} <= {thread}
        for stage in command.get("pipeline", ()):
            if "$lookup" in stage:
                inner = stage["$lookup"]["pipeline"][0]["$match"]
                assert inner["thread_id"] == thread
