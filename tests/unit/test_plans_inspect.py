"""Looking as tables: which documents are asked for, and what is made of them."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pymongo.errors import OperationFailure

from mongosaver.cli.plain import PlainSerializer
from mongosaver.errors import ForeignDocument, IdentifierValueError, StateError, UsageError
from mongosaver.plans.inspect import contents, entries, nodes, sizes
from mongosaver.plans.inspect.changes import Change, compare
from mongosaver.plans.inspect.contents import Value
from mongosaver.plans.inspect.entries import Task
from mongosaver.schema import Document, Name
from tests.unit.tables import NOW, Row, broken_off, context, play, refusal

SERDE = JsonPlusSerializer()
CTX = context(PlainSerializer(show=True))


def key(id_: str, ns: str = "") -> Document:
    """A row of the index."""
    return {"ns": ns, "id": id_}


def row(id_: str, parent: str | None = None, ns: str = "", **more: Any) -> Document:
    """A checkpoint's document as a history reads it."""
    return {
        "format": 1,
        "thread_id": "t",
        "checkpoint_ns": ns,
        "checkpoint_id": id_,
        "parent_checkpoint_id": parent,
        "created_at": NOW,
        "search": {"source": "loop", "step": 1},
        "inline": [{"c": "log"}],
        "blobs": [],
        **more,
    }


def write(
    id_: str, task: str, idx: int = 0, channel: str = "log", path: str = "", **more: Any
) -> Document:
    """A pending write's document as a history reads it."""
    return {
        "checkpoint_ns": "",
        "checkpoint_id": id_,
        "task_id": task,
        "task_path": path,
        "idx": idx,
        "channel": channel,
        **more,
    }


HISTORY: list[Row] = [
    ("aggregate checkpoints", [key("2"), key("1")]),
    ("find checkpoints", [row("1"), row("2", "1")]),
    ("find writes", [write("1", "a", path="~__pregel_pull, plan")]),
]


def test_a_history_is_three_commands() -> None:
    """Keys, the documents without payloads, and slots of writes."""
    played = play(entries.history(CTX, "t", None, 5), *HISTORY)
    newest, oldest = played.result.entries
    assert (newest.key, newest.parent_key, newest.tasks) == (("", "2"), ("", "1"), ())
    assert (oldest.parent_key, oldest.tasks) == (None, (Task("a", "plan", "wrote", 1),))
    assert not played.result.more
    broken_off(lambda: entries.history(CTX, "t", None, 5), HISTORY)


def test_a_history_is_filled_from_older_ones() -> None:
    """Where some of the keys belong to checkpoints that are gone for readers."""
    played = play(
        entries.history(CTX, "t", "", 2),
        ("aggregate checkpoints", [key("5"), key("4"), key("3")]),
        ("find checkpoints", [row("4")]),
        ("aggregate checkpoints", [key("2"), key("1")]),
        ("find checkpoints", [row("2"), row("1")]),
        ("find writes", []),
    )
    assert [entry.key[1] for entry in played.result.entries] == ["4", "2"]
    assert played.result.more
    asked: Any = played.ops[2]
    rest = asked.pipeline[1]["$project"]["rest"]
    assert rest["$or"][0] == {"$lt": ["$checkpoint_id", {"$literal": "3"}]}


def test_a_full_page_does_not_tell_whether_there_are_older_ones() -> None:
    """Where a key belongs to one that is gone, the next keys are looked at as well."""
    first: list[Row] = [
        ("aggregate checkpoints", [key("5"), key("4"), key("3")]),
        ("find checkpoints", [row("4"), row("3")]),
    ]
    older: list[Row] = [("aggregate checkpoints", [key("2")]), ("find checkpoints", [row("2")])]
    writes: Row = ("find writes", [])
    assert play(entries.history(CTX, "t", "", 2), *first, *older, writes).result.more
    none: Row = ("aggregate checkpoints", [])
    assert not play(entries.history(CTX, "t", "", 2), *first, none, writes).result.more


def test_a_history_of_all_reads_keys_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And documents in batches of checkpoints and of namespaces."""
    monkeypatch.setattr(entries, "KEYS", 3)
    monkeypatch.setattr(entries, "BATCH", 2)
    played = play(
        entries.history(CTX, "t", None, None),
        ("aggregate checkpoints", [key("4"), key("3"), key("2")]),
        ("find checkpoints", [row("4"), row("3")]),
        ("find checkpoints", [row("2")]),
        ("aggregate checkpoints", [key("1")]),
        ("find checkpoints", [row("1")]),
        ("find writes", []),
        ("find writes", []),
    )
    assert [entry.key[1] for entry in played.result.entries] == ["4", "3", "2", "1"]
    monkeypatch.setattr(entries, "SCOPES", 2)
    spread = list(entries._conditions("t", [("a", "1"), ("b", "1"), ("c", "1")]))
    assert spread[0]["$or"][1]["checkpoint_ns"] == "b"
    assert spread[1]["checkpoint_ns"] == "c"


def test_a_history_of_nothing_is_an_error() -> None:
    """As is a limit or an id that is none, before anything is asked for."""
    with pytest.raises(StateError, match="thread 't': no checkpoint"):
        play(entries.history(CTX, "t", None, 1), ("aggregate checkpoints", []))
    with pytest.raises(StateError, match=r"namespace 'a': .*`mongosaver history 't'`"):
        play(entries.history(CTX, "t", "a", 1), ("aggregate checkpoints", []))
    with pytest.raises(UsageError, match="limit"):
        play(entries.history(CTX, "t", None, 0))
    with pytest.raises(IdentifierValueError):
        play(entries.history(CTX, "", None, 1))
    foreign = {"checkpoint_ns": "", "checkpoint_id": "1"}
    with pytest.raises(ForeignDocument):
        play(
            entries.history(CTX, "t", None, 1),
            ("aggregate checkpoints", [key("1")]),
            ("find checkpoints", [foreign]),
        )


def test_states_of_tasks() -> None:
    """An error is a failure; an interrupt without a write of its own waits."""
    slots = [
        write("1", "a", -1, "__error__"),
        write("1", "b", -3, "__interrupt__"),
        write("1", "c", -3, "__interrupt__"),
        write("1", "c", 0),
        write("1", nodes.NO_TASK, -4, "__resume__"),
    ]
    played = play(
        entries.history(CTX, "t", None, 1),
        ("aggregate checkpoints", [key("1")]),
        ("find checkpoints", [row("1")]),
        ("find writes", slots),
    )
    [entry] = played.result.entries
    assert [(task.id, task.state) for task in entry.tasks] == [
        ("a", "failed"),
        ("b", "waits"),
        ("c", "wrote"),
    ]
    assert entry.writes == 5


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("~__pregel_pull, plan, two", "plan, two"),
        ("~__pregel_push, 0000000001, 0000000000", "work"),
        ("~__pregel_push, 0000000009, 0000000000", ""),
        ("~__pregel_push, ~__pregel_pull, a", ""),
        ("~__pregel_push", ""),
        ("something else", ""),
        ("", ""),
    ],
)
def test_nodes_of_tasks(path: str, name: str) -> None:
    """The path has the node, or the number of a send that has it."""
    assert nodes.name_of(path, ["first", "work"]) == name


def test_nodes_of_sends_are_read_from_their_channel() -> None:
    """Only of checkpoints that have it, and only that channel."""
    sends = ormsgpack_sends("work", "rest")
    played = play(
        entries.history(CTX, "t", None, 2),
        ("aggregate checkpoints", [key("2"), key("1")]),
        ("find checkpoints", [row("2", inline=[{"c": "__pregel_tasks"}]), row("1")]),
        ("find checkpoints", [row("2", inline=[{"c": "__pregel_tasks", **sends}])]),
        ("find writes", [write("2", "a", path="~__pregel_push, 0000000001, 0000000000")]),
    )
    newest, oldest = played.result.entries
    assert (newest.sends, newest.tasks[0].name) == (("work", "rest"), "rest")
    assert oldest.sends == ()


def ormsgpack_sends(*nodes: str) -> Document:
    """The payload of queued sends."""
    from langgraph.types import Send

    type_, data = SERDE.dumps_typed(["odd", *(Send(node, 1) for node in nodes)])
    return {"t": type_, "d": data}


@pytest.mark.parametrize(
    ("metadata", "started_by"),
    [
        ({"parents": {"": "1"}}, ("", "1")),
        ({"parents": {"other": "1"}}, ("", "2")),
        ({}, ("", "2")),
        (None, ("", "2")),
    ],
)
def test_who_started_a_subgraph(metadata: Any, started_by: Any) -> None:
    """Its metadata tells; where that is silent or encrypted, the task in the namespace's name."""
    type_, data = ("x+aes", b"secret") if metadata is None else SERDE.dumps_typed(metadata)
    told = {
        "checkpoint_ns": "sub:a",
        "checkpoint_id": "3",
        "metadata_type": type_,
        "metadata": data,
    }
    played = play(
        entries.history(CTX, "t", None, None),
        ("aggregate checkpoints", [key("3", "sub:a"), key("2"), key("1")]),
        ("find checkpoints", [row("3", ns="sub:a"), row("2"), row("1")]),
        ("find writes", [write("2", "a")]),
        ("find checkpoints", [told]),
    )
    assert played.result.entries[0].started_by == started_by


# --- one checkpoint


def test_the_newest_is_the_root_graphs() -> None:
    """Or of all namespaces, where there is no root graph."""
    root: Row = ("find checkpoints", [row("2")])
    assert play(entries.find(CTX, "t", None, None), root).result == ("", "2")
    elsewhere: list[Row] = [
        ("find checkpoints", []),
        ("aggregate checkpoints", [key("1", "sub")]),
        ("find checkpoints", [row("1", "0", ns="sub")]),
        ("find writes", []),
    ]
    assert play(entries.find(CTX, "t", None, None), *elsewhere).result == ("sub", "1")
    broken_off(lambda: entries.find(CTX, "t", None, None), elsewhere)
    with pytest.raises(StateError, match="namespace 'sub'"):
        play(entries.find(CTX, "t", "sub", None), ("find checkpoints", []))


def test_an_id_is_found_exactly_or_by_its_beginning() -> None:
    """Exactly first; several are an error that names some."""
    exact: Row = ("find checkpoints", [row("12", ns="sub"), row("12")])
    assert play(entries.find(CTX, "t", None, "12"), exact).result == ("", "12")
    none: Row = ("find checkpoints", [])
    begins: Row = ("find checkpoints", [row("12", ns="sub")])
    assert play(entries.find(CTX, "t", "sub", "1"), none, begins).result == ("sub", "12")
    with pytest.raises(StateError, match="begins with, '1'"):
        play(entries.find(CTX, "t", None, "1"), none, none)
    many: Row = ("find checkpoints", [row(f"1{n}") for n in range(6)])
    with pytest.raises(UsageError, match=r"'14' of namespace '' and others\. Give more"):
        play(entries.find(CTX, "t", None, "1"), none, many)


def whole(id_: str = "1", versions: Any = None, seen: Any = None, **more: Any) -> Document:
    """A checkpoint's whole document."""
    checkpoint = {"channel_versions": versions or {}, "versions_seen": seen or {}}
    type_, data = SERDE.dumps_typed(checkpoint)
    metadata_type, metadata = SERDE.dumps_typed({"step": 1})
    fields = {"type": type_, "checkpoint": data}
    fields |= {"metadata_type": metadata_type, "metadata": metadata, "bytes": 1}
    return {**row(id_), "inline": [], **fields, **more}


def inline(channel: str, value: Any = None) -> Document:
    """A value in the checkpoint's document."""
    type_, data = SERDE.dumps_typed(value)
    return {"c": channel, "t": type_, "d": data}


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([2, 3], "rebuilt from the writes of 2 checkpoints since"),
        ([1, 1], "rebuilt from the writes of 1 checkpoint since"),
        ([0, 2], "rebuilt from the writes of 0 checkpoints since"),
        ("odd", "rebuilt from writes"),
    ],
)
def test_a_channel_that_is_rebuilt_is_there(counts: Any, told: str) -> None:
    """Where LangGraph counts its writes and no value is stored; not where it was never written."""
    counters = {"items": counts, "stored": [1, 1], "never": [0, 5]}
    type_, data = SERDE.dumps_typed({"counters_since_delta_snapshot": counters})
    document = whole(
        versions={"items": "3", "stored": "2", "trigger": "1"},
        inline=[inline("stored", 1)],
        metadata_type=type_,
        metadata=data,
    )
    rows: list[Row] = [("find checkpoints", [document]), ("find writes", [])]
    values = play(contents.show(CTX, "t", ("", "1")), *rows).result.values
    assert [(each.channel, each.form) for each in values.values()] == [
        ("items", "rebuilt"),
        ("stored", "inline"),
    ]
    assert values["items"].version == "3"
    assert told in str(values["items"].problem)
    assert compare(values, values) == []


def nexts(document: Document, *writes: Document) -> list[tuple[str, str, str]]:
    """What is to run on a checkpoint."""
    rows = [("find checkpoints", [document]), ("find writes", list(writes))]
    shown = play(contents.show(CTX, "t", ("", "1")), *rows).result
    return [(each.node, each.because, each.state) for each in shown.next]


def full_write(task: str, idx: int, channel: str, path: str) -> Document:
    """A pending write's whole document."""
    type_, data = SERDE.dumps_typed("x")
    about = {"format": 1, "part": 0, "type": type_, "data": data}
    return write("1", task, idx, channel, path, **about)


def test_what_comes_next() -> None:
    """What has a value and a version that its node has not seen; with what its task has written."""
    channels = ["branch:to:new", "branch:to:old", "branch:to:again", "own", "log"]
    document = whole(
        versions=dict.fromkeys(channels, "2") | {"__start__": "2"},
        seen={
            "old": {"branch:to:old": "2"},
            "again": {"branch:to:again": "1"},
            "pregel": {"own": "1", "gone": "1"},
            "numbers": {"log": 1},
            "__interrupt__": {"log": "1"},
            "odd": None,
        },
        inline=[inline(channel) for channel in channels],
    )
    assert nexts(
        document,
        full_write("a", 0, "log", "~__pregel_pull, again"),
        full_write("b", -3, "__interrupt__", "~__pregel_pull, new"),
    ) == [
        ("again", "branch:to:again", "wrote"),
        ("new", "branch:to:new", "waits"),
        ("pregel", "own", "to run"),
    ]


def test_a_node_that_waits_for_several_others() -> None:
    """It is to run when all of them have come."""
    versions = {"join:a+b:end": "2"}
    for come, expected in (({"a"}, []), ({"a", "b"}, [("end", "join:a+b:end", "to run")])):
        assert nexts(whole(versions=versions, inline=[inline("join:a+b:end", come)])) == expected


def test_sends_of_an_early_checkpoint_are_with_its_parent() -> None:
    """As LangGraph left them before version 4."""
    from langgraph.types import Send

    type_, data = SERDE.dumps_typed(Send("work", 1))
    queued = write("0", "a", 0, "__pregel_tasks", format=1, part=0, type=type_, data=data)
    shown = play(
        contents.show(CTX, "t", ("", "1")),
        ("find checkpoints", [whole(v=2, parent_checkpoint_id="0")]),
        ("find writes", [queued]),
        ("find writes", []),
    ).result
    assert [(each.node, each.because) for each in shown.next] == [("work", "a send")]


def test_an_encrypted_checkpoint_does_not_tell_what_comes_next() -> None:
    """And what is not known is not empty."""
    document = whole(type="msgpack+aes", checkpoint=b"secret", inline=[inline("branch:to:a")])
    rows: list[Row] = [("find checkpoints", [document]), ("find writes", [])]
    shown = play(contents.show(CTX, "t", ("", "1")), *rows).result
    assert (shown.next, shown.complete) == ((), False)
    broken_off(lambda: contents.show(CTX, "t", ("", "1")), rows)


def test_a_write_without_all_its_parts() -> None:
    """One that is still being written is left out, one with a missing part says so."""
    first = full_write("a", 0, "log", "")
    rows = [{**first, "parts": [7]}, {**first, "task_id": "b", "part": 7}]
    shown = play(
        contents.show(CTX, "t", ("", "1")),
        ("find checkpoints", [whole()]),
        ("find writes", rows),
    ).result
    assert [(each.task_id, each.problem) for each in shown.writes] == [("a", "a part is missing")]


def test_missing_blobs_are_told() -> None:
    """A head, a segment of a chain, and a large one that would not be read anyway."""
    head = {"key": b"h", "chain": [b"s"], "format": 1, "type": "msgpack"}
    blobs = [
        {"c": "head", "k": b"x", "size": 9},
        {"c": "segment", "k": b"h", "size": 9},
        {"c": "large", "k": b"l", "size": 2**40},
    ]
    shown = play(
        contents.show(CTX, "t", ("", "1")),
        ("find checkpoints", [whole(blobs=blobs)]),
        ("find blobs", [head]),
        ("find blobs", []),
        ("find blobs", []),
        ("find writes", []),
    ).result
    assert {name: value.problem for name, value in shown.values.items()} == {
        "head": "blob 78 is missing",
        "large": "blob is missing",
        "segment": "blob 73 is missing",
    }
    with pytest.raises(StateError, match="no checkpoint"):
        play(contents.show(CTX, "t", ("", "1")), ("find checkpoints", []))


# --- two checkpoints


def value(of: Any, problem: str | None = None, identity: object = None) -> Value:
    """A channel's value."""
    return Value("c", "1", "msgpack", 1, 0, 0, of, problem, identity or object())


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (1, 1, None),
        (1, 2, Change("c", "changed", 1, 2)),
        ([1], [1, 2], Change("c", "list", [], [2], 1, 1)),
        ([1, 2], [1], Change("c", "list", [2], [], 1, 1)),
        ([1, 2, 3], [1, 9, 3], Change("c", "list", [2], [9], 1, 2)),
        ([1, 2, 3], [3, 4], Change("c", "list", [1, 2], [4], 3, 1)),
        ([1, 2], [3], Change("c", "list", [1, 2], [3], 0, 0)),
        ([1, 2], [], Change("c", "list", [1, 2], [], 0, 0)),
        ([2], [1, 2], Change("c", "list", [], [1], 0, 1)),
        ([1, 1], [1], Change("c", "list", [1], [], 1, 1)),
        ({"a": 1, "b": 1}, {"a": 2, "b": 1}, Change("c", "map", {"a": 1}, {"a": 2}, kept=1)),
        ({"a": 1}, [1], Change("c", "changed", {"a": 1}, [1])),
    ],
)
def test_changes(old: Any, new: Any, expected: Change | None) -> None:
    """Parts of a list and of a map, or the whole value."""
    assert compare({"c": value(old)}, {"c": value(new)}) == ([expected] if expected else [])


def test_changes_of_channels() -> None:
    """One that came or went, and ones of which a value is not known."""
    same = object()
    old = {"a": value(1), "c": value(None, "too large"), "d": value(None, "too large", same)}
    new = {"b": value(2), "c": value(1), "d": value(None, "too large", same)}
    assert compare(old, new) == [
        Change("a", "removed", old=1),
        Change("b", "added", new=2),
        Change("c", "changed", "too large", 1),
    ]


# --- sizes

STATS: list[Document] = [
    {"storageStats": {"count": 2, "size": 20, "storageSize": 8, "totalIndexSize": 4}},
    {"storageStats": {"count": 1, "size": 10, "storageSize": 8, "totalIndexSize": 4}},
]


def test_an_overview_reads_no_document() -> None:
    """Shards are added up; a collection that is not there is empty."""
    rows: list[Row] = [
        *[(f"aggregate {name.name.lower()}", STATS) for name in list(Name)[:-1]],
        (f"aggregate {list(Name)[-1].name.lower()}", refusal(26)),
        ("aggregate checkpoints", [{"threads": 2}]),
        ("aggregate checkpoints", [{"_id": "t", "count": 2}]),
    ]
    told = play(sizes.overview(), *rows).result
    assert told.collections[Name.CHECKPOINTS] == sizes.CollectionSize(3, 30, 16, 8)
    assert told.collections[list(Name)[-1]] == sizes.CollectionSize()
    assert (told.threads, told.longest) == (2, (("t", 2),))
    with pytest.raises(OperationFailure):
        play(sizes.overview(), ("aggregate checkpoints", refusal(13)))
    broken_off(sizes.overview, [row for row in rows if not isinstance(row[1], Exception)][:2])


def test_a_sample_is_read_by_keys() -> None:
    """Or all, where there are no more; of one value there is no deviation."""
    keys = [{"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": str(n)} for n in range(150)]
    rows: list[Row] = [
        ("aggregate checkpoints", keys),
        ("find checkpoints", [{"bytes": 1}]),
        ("find checkpoints", [{"bytes": 3}]),
    ]
    taken = play(sizes.sample(100, 1_000), *rows).result
    assert (taken.count, taken.mean, taken.error) == (2, 2, 1)
    broken_off(lambda: sizes.sample(100, 1_000), rows)
    one: Row = ("find checkpoints", [{"bytes": 5}])
    assert play(sizes.sample(100, 1), one).result == sizes.Sample(1, 5, 0)
    assert play(sizes.sample(1, 9), ("aggregate checkpoints", [])).result == sizes.Sample()


def test_sizes_are_added_up_in_ranges_of_threads() -> None:
    """Each ends with a whole thread; the largest are kept."""
    first: list[Row] = [
        ("aggregate checkpoints", [{"thread_id": "b"}]),
        ("aggregate checkpoints", [{"_id": n, "stored": 5, "count": 1, "whole": 9} for n in "ab"]),
        ("aggregate writes", [{"_id": "b", "stored": 1}]),
        ("aggregate blobs", []),
    ]
    walk = play(sizes.add_up(sizes.Walk(top=1)), *first).result
    assert (walk.after, walk.done, walk.threads, walk.stored, walk.whole) == ("b", False, 2, 11, 18)
    assert walk.largest == (sizes.ThreadSize("b", 1, 6, 9),)
    played = play(
        sizes.add_up(walk),
        ("aggregate checkpoints", []),
        ("aggregate checkpoints", []),
        ("aggregate writes", [{"_id": "c", "stored": 100}]),
        ("aggregate blobs", []),
    )
    assert (played.result.done, played.result.largest[0].thread_id) == (True, "c")
    asked: Any = played.ops[1]
    assert asked.pipeline[0] == {"$match": {"thread_id": {"$gt": "b"}}}
    broken_off(lambda: sizes.add_up(sizes.Walk()), first)


def test_what_expires_is_alive_until_then() -> None:
    """The condition is the one that a saver reads by."""
    played = play(entries.find(CTX, "t", None, None), ("find checkpoints", [row("1")]))
    asked: Any = played.ops[0]
    assert asked.filter["expires_at"] == {"$not": {"$lte": NOW}}
    assert asked.filter["deleted_at"] is None
