"""Looking at what is stored without changing it: the history of a thread, one checkpoint, sizes.

A saver's `list` hands over whole checkpoints. Whoever looks for the one that went wrong wants to
see ten thousand of them as lines, so a history reads keys from an index, and of the checkpoints it
shows only what lies beside their payloads: source and step from `search`, the names of the channels
that have a value, the slots of the pending writes. Names of channels tell what comes next:
LangGraph calls a node by giving its channel `branch:to:<node>` a value for one super-step.

Of one checkpoint everything is read, except values too large to be looked at; a value of which a
blob is missing is shown as such, where a saver has to refuse the whole checkpoint.

Sizes of threads need each document once. They are added up on the server, in ranges of threads,
so that the walk shows progress and can be broken off; without it, what an index and the
collections' own statistics tell is exact as well, and the rest is estimated from a sample.

This file is pure: it imports only `codec`, `ops`, `schema`, `identifiers` and `errors`, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from pymongo.errors import OperationFailure

from mongosaver import codec, identifiers
from mongosaver.codec import Hole, Payload
from mongosaver.errors import StateError, UsageError
from mongosaver.identifiers import Address
from mongosaver.ops import Aggregate, Find, Plan
from mongosaver.plans import filters
from mongosaver.plans.context import Context
from mongosaver.schema import CHECKPOINT_KEY, MAX_DOCUMENT, Document, Name

BATCH: Final = 1_000
"""Checkpoints that one command is about."""

SCOPES: Final = 100
"""Namespaces that one command is about."""

KEYS: Final = 20_000
"""Keys of the index that are read together where all checkpoints are wanted."""

STORED: Final = (Name.CHECKPOINTS, Name.WRITES, Name.BLOBS)
"""The collections that hold threads."""

LARGEST: Final = MAX_DOCUMENT
"""Values above so many bytes are told by their size and not read."""

RANGE: Final = 20_000
"""Checkpoints whose documents are added up together, and a thread more."""

_PULL: Final = "~__pregel_pull"
_PUSH: Final = "~__pregel_push"
_BRANCH: Final = "branch:to:"
_JOIN: Final = "join:"
_START: Final = "__start__"
_INTERRUPT: Final = "__interrupt__"
_ERROR: Final = "__error__"
_INTERRUPT_SLOT: Final = -3
_NO_TASK: Final = "00000000-0000-0000-0000-000000000000"
"""Task id of what the caller of a graph writes, such as the answer to an interrupt."""
_NO_COLLECTION: Final = 26
_BY_THREAD: Final = {"thread_id": 1, "checkpoint_ns": 1, "checkpoint_id": -1}
_NEWEST: Final = (("checkpoint_id", -1),)

Key = tuple[str, str]
"""Namespace and checkpoint id: a checkpoint within its thread."""


# --- a thread's history ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """A task that has written something pending on a checkpoint.

    Attributes:
        id: The task.
        name: Its node, where the path of the task tells.
        state: `wrote`, `failed`, or `waits` for an answer to its interrupt.
        writes: How many slots it has taken.
    """

    id: str
    name: str
    state: str
    writes: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint, as a history shows it.

    Attributes:
        key: Namespace and id.
        parent: The parent's id in the same namespace, if any.
        created_at: When it was put.
        source: What made it: `input`, `loop`, `update` or `fork`.
        step: The super-step.
        run_id: The run that made it.
        next: Nodes that its channels call for, and `__start__` for an input.
        sends: The nodes of sends that are queued for it.
        tasks: Tasks that have written something pending.
        writes: Pending writes, also those that are no task's.
        started_by: The checkpoint that ran the subgraph, for the first one of a namespace.
    """

    key: Key
    parent: str | None
    created_at: datetime
    source: Any
    step: Any
    run_id: str | None
    next: tuple[str, ...]
    sends: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    writes: int = 0
    started_by: Key | None = None

    @property
    def parent_key(self) -> Key | None:
        """The checkpoint before it, or the one that started its subgraph."""
        return self.started_by if self.parent is None else (self.key[0], self.parent)


@dataclass(frozen=True, slots=True)
class History:
    """Checkpoints of a thread, the newest first, and whether there are older ones."""

    entries: tuple[Entry, ...]
    more: bool


_ENTRY: Final = {
    "_id": 0,
    "format": 1,
    "thread_id": 1,
    "checkpoint_ns": 1,
    "checkpoint_id": 1,
    "parent_checkpoint_id": 1,
    "created_at": 1,
    "run_id": 1,
    "search.source": 1,
    "search.step": 1,
    "inline.c": 1,
    "blobs.c": 1,
}


def history(ctx: Context, thread_id: str, ns: str | None, limit: int | None) -> Plan[History]:
    """The newest checkpoints of a thread, or of one namespace of it.

    Raises:
        UsageError: The limit is not positive.
        StateError: The thread has none.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be 1 or more, got {limit}")
    thread_id, ns = identifiers.thread(thread_id), _text(ns, "checkpoint_ns")
    rows: list[Document] = []
    last: Key | None = None
    done = False
    while not done and (limit is None or len(rows) <= limit):
        wanted = KEYS if limit is None else limit + 1 - len(rows)
        keys = yield from _keys(thread_id, ns, last, wanted)
        done = len(keys) < wanted
        found: dict[Key, Document] = {}
        for where in _conditions(thread_id, keys):
            living = {**where, "deleted_at": None, **filters.alive(ctx.now)}
            for row in (yield Find(Name.CHECKPOINTS, living, _ENTRY)):
                codec.check_format(row, "checkpoints collection")
                found[row["checkpoint_ns"], row["checkpoint_id"]] = row
        rows += (found[key] for key in keys if key in found)
        last = keys[-1] if keys else None
    if not rows:
        raise _nothing(thread_id, ns)
    more = limit is not None and len(rows) > limit
    entries = {_key_of(row): _entry(row) for row in rows[:limit]}
    senders = [_key_of(row) for row in rows[:limit] if _has_sends(row)]
    yield from _add_sends(ctx, thread_id, entries, senders)
    yield from _add_tasks(thread_id, entries)
    yield from _add_starts(ctx, thread_id, entries)
    return History(tuple(entries.values()), more)


def _text(value: str | None, what: str) -> str | None:
    return None if value is None else identifiers.text(value, what)


def _nothing(thread_id: str, ns: str | None) -> StateError:
    where = f"thread {thread_id!r}" + ("" if ns is None else f", namespace {ns!r}")
    return StateError(
        f"{where}: no checkpoint is stored. `mongosaver threads` lists the threads there are."
    )


def _key_of(row: Document) -> Key:
    return row["checkpoint_ns"], row["checkpoint_id"]


def _keys(thread_id: str, ns: str | None, last: Key | None, wanted: int) -> Plan[list[Key]]:
    """The next keys, newest first through all namespaces; read from the index alone."""
    where: Document = {"thread_id": thread_id}
    if ns is not None:
        where["checkpoint_ns"] = ns
    # Under other names, so that no other index offers itself for the order; and computed, because
    # as a condition the rest of the key would make the server read documents.
    fields: Document = {"_id": 0, "ns": "$checkpoint_ns", "id": "$checkpoint_id"}
    rest: list[Document] = []
    if last is not None:
        ns_, id_ = {"$literal": last[0]}, {"$literal": last[1]}
        same = {"$and": [{"$eq": ["$checkpoint_id", id_]}, {"$gt": ["$checkpoint_ns", ns_]}]}
        fields["rest"] = {"$or": [{"$lt": ["$checkpoint_id", id_]}, same]}
        rest = [{"$match": {"rest": True}}]
    rows = yield Aggregate(
        Name.CHECKPOINTS,
        [
            {"$match": where},
            {"$project": fields},
            *rest,
            {"$sort": {"id": -1, "ns": 1}},
            {"$limit": wanted},
        ],
    )
    return [(row["ns"], row["id"]) for row in rows]


def _conditions(thread_id: str, keys: Iterable[Key]) -> Iterator[Document]:
    """Conditions on these checkpoints, or on what belongs to them; of a bounded size each."""
    groups: dict[str, list[str]] = {}
    count = 0
    for ns, checkpoint_id in keys:
        groups.setdefault(ns, []).append(checkpoint_id)
        count += 1
        if count == BATCH or len(groups) == SCOPES:
            yield _any_of(thread_id, groups)
            groups, count = {}, 0
    if groups:
        yield _any_of(thread_id, groups)


def _any_of(thread_id: str, groups: Mapping[str, Sequence[str]]) -> Document:
    parts = [
        {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": {"$in": list(ids)}}
        for ns, ids in groups.items()
    ]
    return parts[0] if len(parts) == 1 else {"thread_id": thread_id, "$or": parts}


def _entry(row: Document) -> Entry:
    channels = [each["c"] for each in (*row["inline"], *row["blobs"])]
    search = row.get("search") or {}
    return Entry(
        _key_of(row),
        row["parent_checkpoint_id"],
        row["created_at"],
        search.get("source"),
        search.get("step"),
        row.get("run_id"),
        tuple(sorted(filter(None, map(_called, channels)))),
    )


def _called(channel: str) -> str | None:
    """The node that a channel calls by having a value."""
    return channel.removeprefix(_BRANCH) if channel.startswith(_BRANCH) else _only_start(channel)


def _only_start(channel: str) -> str | None:
    return _START if channel == _START else None


def _has_sends(row: Document) -> bool:
    return any(entry["c"] == codec.TASKS for entry in row["inline"])


def _add_sends(
    ctx: Context, thread_id: str, entries: dict[Key, Entry], senders: Sequence[Key]
) -> Plan[None]:
    """The nodes that sends call for, of whose channel the payload tells; it is a list, or empty."""
    fields = {
        "_id": 0,
        "checkpoint_ns": 1,
        "checkpoint_id": 1,
        "inline": {"$elemMatch": {"c": codec.TASKS}},
    }
    for where in _conditions(thread_id, senders):
        for row in (yield Find(Name.CHECKPOINTS, where, fields)):
            for entry in row.get("inline", ()):
                sends = codec.load(ctx.serde, Payload(entry["t"], entry["d"]))
                key = _key_of(row)
                entries[key] = replace(entries[key], sends=tuple(_nodes(sends)))


def _nodes(sends: Any) -> Iterator[str]:
    """The nodes of queued sends: each is made of a node and what it is given."""
    for send in sends if isinstance(sends, (list, tuple)) else ():
        made_of = getattr(send, "value", None)
        if isinstance(made_of, (list, tuple)) and made_of:
            yield str(made_of[0])


def _add_tasks(thread_id: str, entries: dict[Key, Entry]) -> Plan[None]:
    """Tasks and counts from the slots of pending writes, whose values are not read."""
    slots: dict[Key, dict[str, list[Document]]] = {}
    fields = {
        "_id": 0,
        "checkpoint_ns": 1,
        "checkpoint_id": 1,
        "task_id": 1,
        "task_path": 1,
        "idx": 1,
        "channel": 1,
    }
    for where in _conditions(thread_id, entries):
        for row in (yield Find(Name.WRITES, {**where, "part": 0}, fields)):
            slots.setdefault(_key_of(row), {}).setdefault(row["task_id"], []).append(row)
    for key, by_task in slots.items():
        rows = {id_: each for id_, each in by_task.items() if id_ != _NO_TASK}
        entries[key] = replace(
            entries[key],
            tasks=tuple(
                Task(
                    id_, name_of(each[0]["task_path"], entries[key].sends), _state(each), len(each)
                )
                for id_, each in sorted(rows.items(), key=lambda item: item[1][0]["task_path"])
            ),
            writes=sum(map(len, by_task.values())),
        )


def name_of(task_path: str, sends: Sequence[str] = ()) -> str:
    """The node of a task, from its path: `~__pregel_pull, agent`, or the number of its send.

    Empty where neither the path nor the queued sends tell.
    """
    kind, _, name = task_path.partition(", ")
    if kind == _PULL:
        return name
    number = _number_of(task_path)
    return "" if number is None or number >= len(sends) else sends[number]


def _number_of(task_path: str) -> int | None:
    """Which of the queued sends a task is of: `~__pregel_push, 0000000003, 0000000000`."""
    kind, *parts = task_path.split(", ")
    return int(parts[0]) if kind == _PUSH and parts and parts[0].isdecimal() else None


def _state(slots: Sequence[Document]) -> str:
    if any(row["channel"] == _ERROR for row in slots):
        return "failed"
    taken = {row["idx"] for row in slots}
    return "waits" if _INTERRUPT_SLOT in taken and max(taken) < 0 else "wrote"


def _add_starts(ctx: Context, thread_id: str, entries: dict[Key, Entry]) -> Plan[None]:
    """The checkpoint that started each subgraph: its metadata tells, or the task in its name."""
    first = [key for key, entry in entries.items() if key[0] and entry.parent is None]
    fields = {"_id": 0, **dict.fromkeys(CHECKPOINT_KEY, 1), "metadata_type": 1, "metadata": 1}
    parents: dict[Key, Any] = {}
    for where in _conditions(thread_id, first):
        for row in (yield Find(Name.CHECKPOINTS, where, fields)):
            metadata = codec.load_metadata(ctx.serde, row)
            if isinstance(metadata, Mapping):  # else it is encrypted
                parents[_key_of(row)] = metadata.get("parents")
    by_task = {(key[0], task.id): key for key, entry in entries.items() for task in entry.tasks}
    for key in first:
        outer, _, call = key[0].rpartition("|")
        told = parents.get(key)
        started_by = by_task.get((outer, call.partition(":")[2]))
        if isinstance(told, Mapping) and isinstance(told.get(outer), str):
            started_by = outer, told[outer]
        entries[key] = replace(entries[key], started_by=started_by)


# --- one checkpoint ----------------------------------------------------------------------------


def find(ctx: Context, thread_id: str, ns: str | None, checkpoint_id: str | None) -> Plan[Key]:
    """The checkpoint that is meant: by its id or the beginning of it, or else the newest.

    Args:
        ctx: The call's surroundings.
        thread_id: The thread.
        ns: The namespace. None: wherever the id is; the root graph's newest without an id.
        checkpoint_id: Id or beginning of it; None for the newest.

    Raises:
        StateError: There is none.
        UsageError: There are several.
    """
    thread_id, ns = identifiers.thread(thread_id), _text(ns, "checkpoint_ns")
    checkpoint_id = _text(checkpoint_id, "checkpoint_id")
    where: Document = {"thread_id": thread_id, "deleted_at": None, **filters.alive(ctx.now)}
    fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1}
    if checkpoint_id is None:
        newest = {**where, "checkpoint_ns": ns or ""}
        rows = yield Find(Name.CHECKPOINTS, newest, fields, _NEWEST, 1)
        if not rows and ns is None:
            found = yield from history(ctx, thread_id, None, 1)
            return found.entries[0].key
        if not rows:
            raise _nothing(thread_id, ns)
        return _key_of(rows[0])
    if ns is not None:
        where["checkpoint_ns"] = ns
    exact = yield Find(Name.CHECKPOINTS, {**where, "checkpoint_id": checkpoint_id}, fields)
    if exact:
        rows = exact
    else:
        within = {"$gte": checkpoint_id, "$lt": checkpoint_id + "\U0010ffff"}
        rows = yield Find(Name.CHECKPOINTS, {**where, "checkpoint_id": within}, fields, limit=6)
    keys = [_key_of(row) for row in rows]
    if not keys:
        raise StateError(
            f"thread {thread_id!r} has no checkpoint whose id is, or begins with,"
            f" {checkpoint_id!r}. `mongosaver history` lists them."
        )
    root = [key for key in keys if not key[0]]
    if len(keys) > 1 and not (exact and root):
        some = ", ".join(f"{id_!r} of namespace {space!r}" for space, id_ in keys[:5])
        raise UsageError(
            f"{checkpoint_id!r} fits several checkpoints of thread {thread_id!r}: {some}"
            f"{', ...' if len(keys) > 5 else ''}. Give more of the id, or --ns."
        )
    return (root or keys)[0]


@dataclass(frozen=True, slots=True)
class Value:
    """A channel's value, and how it is stored.

    Attributes:
        channel: The channel.
        version: Its version.
        type: The serializer's type tag; None where the value is not read.
        size: Bytes of the value.
        segments: Blobs that hold it; 0 for a value in the checkpoint document.
        tail: Bytes of a value with blobs that are in the checkpoint document.
        value: The value.
        problem: Why there is no value here: it is too large to show, or a blob is missing.
        identity: What two values have in common that are the same bytes.
    """

    channel: str
    version: Any
    type: str | None
    size: int
    segments: int
    tail: int
    value: Any
    problem: str | None
    identity: object = field(compare=False)


@dataclass(frozen=True, slots=True)
class Write:
    """A pending write: its slot, its channel and its value (or why there is none)."""

    path: str
    task_id: str
    task: str
    idx: int
    channel: str
    type: str
    size: int
    value: Any
    problem: str | None


@dataclass(frozen=True, slots=True)
class Next:
    """A node that is to run on a checkpoint.

    Attributes:
        node: The node.
        because: The channel that calls for it.
        state: `waits`, `failed` or `wrote` where a task of the node says so; else `to run`.
        task_id: That task.
    """

    node: str
    because: str
    state: str
    task_id: str | None


@dataclass(frozen=True, slots=True)
class Shown:
    """One checkpoint, taken apart.

    Attributes:
        key: Namespace and id.
        document: Fields of its document that are no payload.
        checkpoint: What LangGraph stores beside values, or what is to be said of it.
        metadata: Its metadata, likewise.
        values: By channel.
        writes: Pending writes in the order in which LangGraph applies them.
        next: What is known of the tasks that run on it.
        complete: Whether that could be told from the checkpoint: it is not encrypted.
    """

    key: Key
    document: Document
    checkpoint: Any
    metadata: Any
    values: Mapping[str, Value]
    writes: tuple[Write, ...]
    next: tuple[Next, ...]
    complete: bool


def show(ctx: Context, thread_id: str, key: Key) -> Plan[Shown]:
    """All there is of one checkpoint; the context's serializer should show what it cannot read.

    Raises:
        StateError: It is gone.
    """
    at = Address(thread_id, *key)
    where = {**filters.checkpoint(at), "deleted_at": None, **filters.alive(ctx.now)}
    rows = yield Find(Name.CHECKPOINTS, where, limit=1)
    if not rows:
        raise _nothing(thread_id, key[0])
    row = rows[0]
    codec.check_format(row, "checkpoints collection")
    checkpoint = codec.load_checkpoint(ctx.serde, row)
    versions = checkpoint.get("channel_versions") if isinstance(checkpoint, Mapping) else None
    blobs = yield from _blobs(at, [each["k"] for each in row["blobs"] if each["size"] <= LARGEST])
    large = [each["k"] for each in row["blobs"] if each["size"] > LARGEST]
    fields = {"_id": 0, "key": 1, "type": 1, "chain": 1}
    heads: dict[bytes, Document] = {}
    for head in (yield Find(Name.BLOBS, filters.blobs(at, large), fields)) if large else ():
        heads[head["key"]] = head
    values = _values(ctx, row, versions or {}, blobs, heads)
    sends: Any = values[codec.TASKS].value if codec.TASKS in values else None
    parent = row["parent_checkpoint_id"]
    if parent and codec.is_early(row.get("v")):
        queued = {**filters.checkpoint(at.at(parent)), "channel": codec.TASKS}
        early = codec.load_writes(ctx.serde, (yield Find(Name.WRITES, queued)))
        sends = [value for _, _, value in early]
    nodes = tuple(_nodes(sends))
    writes = tuple(_writes(ctx, (yield Find(Name.WRITES, filters.checkpoint(at))), nodes))
    payloads = ("_id", "checkpoint", "metadata", "inline", "blobs")
    return Shown(
        key,
        {name: value for name, value in row.items() if name not in payloads},
        checkpoint,
        codec.load_metadata(ctx.serde, row),
        values,
        writes,
        tuple(_next(checkpoint, values, nodes, writes)),
        isinstance(checkpoint, Mapping),
    )


def _blobs(at: Address, keys: Sequence[bytes]) -> Plan[dict[bytes, Document]]:
    """Heads and their chains."""
    found: dict[bytes, Document] = {}
    wanted = list(keys)
    while wanted:
        rows = yield Find(Name.BLOBS, filters.blobs(at, wanted))
        found.update((row["key"], row) for row in rows)
        chains = dict.fromkeys(key for row in rows for key in row["chain"])
        wanted = [key for key in chains if key not in found]
        if not rows:
            break
    return found


def _values(
    ctx: Context,
    row: Document,
    versions: Mapping[str, Any],
    blobs: Mapping[bytes, Document],
    heads: Mapping[bytes, Document],
) -> dict[str, Value]:
    values = {}
    for entry in row["inline"]:
        channel, payload = entry["c"], Payload(entry["t"], entry["d"])
        values[channel] = Value(
            channel,
            versions.get(channel),
            payload.type,
            len(payload.data),
            0,
            0,
            codec.load(ctx.serde, payload),
            None,
            payload,
        )
    for entry in row["blobs"]:
        channel, key, length = entry["c"], entry["k"], entry["size"]
        head = blobs.get(key) or heads.get(key)
        value = problem = None
        if length > LARGEST:
            problem = "too large to show" if head else "blob is missing"
        else:
            try:
                value = codec.load(ctx.serde, codec.value_of(entry, blobs))
            except Hole as hole:
                problem = f"blob {hole.key.hex()} is missing"
        values[channel] = Value(
            channel,
            versions.get(channel),
            head["type"] if head else None,
            length,
            1 + len(head["chain"]) if head else 1,
            len(entry.get("d", b"")),
            value,
            problem,
            (key, entry.get("d")),
        )
    return dict(sorted(values.items()))


def _writes(ctx: Context, rows: Iterable[Document], sends: Sequence[str]) -> list[Write]:
    slots: dict[tuple[str, int], list[Document]] = {}
    for row in rows:
        slots.setdefault((row["task_id"], row["idx"]), []).append(row)
    order: list[tuple[tuple[str, str, int], Write]] = []
    for (task_id, idx), documents in slots.items():
        first = next((each for each in documents if each["part"] == 0), None)
        if first is None:
            continue  # still being written
        length = sum(len(each["data"]) for each in documents)
        value = problem = None
        if length > LARGEST:
            problem = "too large to show"
        else:
            try:
                [(_, _, value)] = codec.load_writes(ctx.serde, documents)
            except Hole:
                problem = "a part is missing"
        path = first["task_path"]
        write = Write(
            path,
            task_id,
            name_of(path, sends),
            idx,
            first["channel"],
            first["type"],
            length,
            value,
            problem,
        )
        order.append(((path, task_id, idx), write))
    return [write for _, write in sorted(order, key=lambda pair: pair[0])]


def _next(
    checkpoint: Any, values: Mapping[str, Value], sends: Sequence[str], writes: Sequence[Write]
) -> Iterator[Next]:
    """Nodes that are to run, as far as a checkpoint tells without its graph.

    LangGraph runs a node when one of its triggers has a value and a version that the node has not
    seen. The triggers of a compiled graph carry the node's name; of others one knows those that
    the node has seen before.
    """
    if not isinstance(checkpoint, Mapping):
        return
    versions = checkpoint.get("channel_versions") or {}
    seen = checkpoint.get("versions_seen") or {}
    called: dict[str, str] = {}
    for channel in values:
        node = _called(channel) or _joined(channel, values[channel].value)
        if node is not None and _is_newer(versions.get(channel), _seen(seen, node, channel)):
            called.setdefault(node, channel)
    for node, triggers in seen.items() if isinstance(seen, Mapping) else ():
        for channel, version in triggers.items() if isinstance(triggers, Mapping) else ():
            known = not channel.startswith(_JOIN) and not node.startswith(_INTERRUPT)
            if known and channel in values and _is_newer(versions.get(channel), version):
                called.setdefault(node, channel)
    slots: dict[tuple[str, str], list[Document]] = {}
    for write in writes:
        row = {"channel": write.channel, "idx": write.idx}
        slots.setdefault((write.path, write.task_id), []).append(row)
    tasks: dict[object, tuple[str | None, str]] = {}
    for (path, task), rows in slots.items():
        number = _number_of(path)
        tasks[name_of(path) if number is None else number] = task, _state(rows)
    for node, channel in sorted(called.items()):
        task_id, state = tasks.get(node, (None, "to run"))
        yield Next(node, channel, state, task_id)
    for number, node in enumerate(sends):
        task_id, state = tasks.get(number, (None, "to run"))
        yield Next(node, "a send", state, task_id)


def _seen(seen: Any, node: str, channel: str) -> Any:
    triggers = seen.get(node) if isinstance(seen, Mapping) else None
    return triggers.get(channel) if isinstance(triggers, Mapping) else None


def _is_newer(version: Any, seen: Any) -> bool:
    if version is None or seen is None:
        return version is not None
    return type(version) is type(seen) and version > seen


def _joined(channel: str, value: Any) -> str | None:
    """The node that waits for several others, if all of them have come."""
    if not channel.startswith(_JOIN):
        return None
    before, _, node = channel.removeprefix(_JOIN).rpartition(":")
    come = getattr(value, "value", None)
    complete = isinstance(come, (list, tuple)) and set(before.split("+")) <= set(map(str, come))
    return node if complete else None


# --- two checkpoints ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one channel between two checkpoints.

    Attributes:
        channel: The channel.
        kind: `added`, `removed`, `changed`, or `list` or `map` for what was done to parts of it.
        old: The value before, or the parts that went.
        new: The value after, or the parts that came.
        at: Where in a list.
        kept: How many parts stayed.
    """

    channel: str
    kind: str
    old: Any = None
    new: Any = None
    at: int = 0
    kept: int = 0


def compare(old: Mapping[str, Value], new: Mapping[str, Value]) -> list[Change]:
    """What changed in the channels of one checkpoint to make those of the other."""
    changes = []
    for channel in sorted(old.keys() | new.keys()):
        before, after = old.get(channel), new.get(channel)
        if before is None:
            changes.append(Change(channel, "added", new=_told(new[channel])))
        elif after is None:
            changes.append(Change(channel, "removed", old=_told(before)))
        elif before.identity != after.identity:
            if before.problem or after.problem:
                changes.append(Change(channel, "changed", _told(before), _told(after)))
            elif before.value != after.value:
                changes.append(_change(channel, before.value, after.value))
    return changes


def _told(value: Value) -> Any:
    return value.problem or value.value


def _change(channel: str, old: Any, new: Any) -> Change:
    if isinstance(old, list) and isinstance(new, list):
        return _list_change(channel, old, new)
    if isinstance(old, dict) and isinstance(new, dict):
        went = {key: old[key] for key in old if key not in new or new[key] != old[key]}
        came = {key: new[key] for key in new if key not in old or new[key] != old[key]}
        return Change(channel, "map", went, came, kept=len(old) - len(went))
    return Change(channel, "changed", old, new)


def _list_change(channel: str, old: list[Any], new: list[Any]) -> Change:
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    if not start and new:
        # A history that is trimmed at its beginning while it grows at its end.
        for cut in range(1, len(old)):
            kept = len(old) - cut
            if old[cut] == new[0] and old[cut:] == new[:kept]:
                return Change(channel, "list", old[:cut], new[kept:], len(old), kept)
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return Change(
        channel,
        "list",
        old[start : len(old) - end],
        new[start : len(new) - end],
        start,
        start + end,
    )


# --- sizes -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CollectionSize:
    """One collection: documents, their bytes, what they and the indexes take on disk."""

    documents: int = 0
    bytes: int = 0
    storage: int = 0
    indexes: int = 0


@dataclass(frozen=True, slots=True)
class ThreadSize:
    """What a thread has.

    Attributes:
        thread_id: The thread.
        checkpoints: Its checkpoints in all namespaces.
        stored: Bytes of its documents in the three collections.
        whole: Bytes that its checkpoints would take, if each held all its values.
    """

    thread_id: str
    checkpoints: int
    stored: int
    whole: int


@dataclass(frozen=True, slots=True)
class Overview:
    """What the server's own statistics and an index tell.

    Attributes:
        threads: How many there are.
        collections: Sizes by collection.
        longest: The threads with the most checkpoints.
    """

    threads: int
    collections: Mapping[Name, CollectionSize]
    longest: tuple[tuple[str, int], ...]


def overview(top: int = 10) -> Plan[Overview]:
    """Sizes of the collections, and how many threads there are; no document is read."""
    sizes = {}
    for name in Name:
        sizes[name] = yield from _collection(name)
    # With nothing to count in a group, the server steps from one thread to the next.
    counted = yield Aggregate(
        Name.CHECKPOINTS,
        [
            {"$sort": _BY_THREAD},
            {"$group": {"_id": "$thread_id"}},
            {"$group": {"_id": None, "threads": {"$sum": 1}}},
        ],
    )
    longest = yield Aggregate(
        Name.CHECKPOINTS,
        [
            {"$sort": _BY_THREAD},
            {"$group": {"_id": "$thread_id", "count": {"$sum": 1}}},
            {"$sort": {"count": -1, "_id": 1}},
            {"$limit": top},
        ],
    )
    return Overview(
        counted[0]["threads"] if counted else 0,
        sizes,
        tuple((row["_id"], row["count"]) for row in longest),
    )


def _collection(name: Name) -> Plan[CollectionSize]:
    try:
        rows = yield Aggregate(name, [{"$collStats": {"storageStats": {}}}])
    except OperationFailure as error:
        if error.code != _NO_COLLECTION:
            raise
        rows = []
    found = [row["storageStats"] for row in rows]  # one of each shard

    def total(field_: str) -> int:
        return int(sum(each.get(field_, 0) for each in found))

    return CollectionSize(
        total("count"), total("size"), total("storageSize"), total("totalIndexSize")
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """What a random sample of checkpoints says of whole values.

    Attributes:
        count: Checkpoints in it.
        mean: Bytes of one checkpoint's whole values.
        error: Standard error of that.
    """

    count: int = 0
    mean: float = 0
    error: float = 0


def sample(size: int, total: int) -> Plan[Sample]:
    """Estimate what a checkpoint takes with its whole values, from about so many of them.

    The server's own `$sample` is quick and prefers some parts of a collection to others. So chance
    picks keys while the index is read, and the documents of those are read.

    Args:
        size: How many to look at; all are, where there are no more.
        total: How many there are.
    """
    if total <= size:
        where: list[Document] = [{}]
    else:
        rows = yield Aggregate(
            Name.CHECKPOINTS,
            [
                {"$sort": _BY_THREAD},
                {
                    "$project": {
                        "_id": 0,
                        **dict.fromkeys(CHECKPOINT_KEY, 1),
                        "chance": {"$rand": {}},
                    }
                },
                {"$match": {"chance": {"$lt": size / total}}},
                {"$project": {"chance": 0}},
            ],
        )
        where = [{"$or": rows[at : at + SCOPES]} for at in range(0, len(rows), SCOPES)]
    taken: list[int] = []
    for some in where:
        found = yield Find(Name.CHECKPOINTS, some, {"_id": 0, "bytes": 1})
        taken += (row["bytes"] for row in found)
    if not taken:
        return Sample()
    mean = sum(taken) / len(taken)
    spread = sum((each - mean) ** 2 for each in taken) / max(len(taken) - 1, 1)
    return Sample(len(taken), mean, (spread / len(taken)) ** 0.5)


def sizes_of(thread_ids: Sequence[str]) -> Plan[list[ThreadSize]]:
    """Exact sizes of some threads."""
    return (yield from _added_up({"thread_id": {"$in": list(thread_ids)}}))


@dataclass(frozen=True, slots=True)
class Walk:
    """Sizes of all threads, as far as they are added up.

    Attributes:
        top: How many of the largest threads are kept.
        largest: Those, the largest first.
        threads: Threads added up.
        checkpoints: Their checkpoints.
        stored: Bytes of their documents.
        whole: Bytes of their checkpoints' whole values.
        after: The last thread of them.
        done: Whether that is all.
    """

    top: int = 10
    largest: tuple[ThreadSize, ...] = ()
    threads: int = 0
    checkpoints: int = 0
    stored: int = 0
    whole: int = 0
    after: str | None = None
    done: bool = False


def add_up(walk: Walk) -> Plan[Walk]:
    """The sizes of the next range of threads, added."""
    where: Document = {} if walk.after is None else {"thread_id": {"$gt": walk.after}}
    # Where the range ends, the index tells: in the thread of the checkpoint that is so many on.
    border = yield Aggregate(
        Name.CHECKPOINTS,
        [
            {"$match": where},
            {"$sort": _BY_THREAD},
            {"$skip": RANGE},
            {"$limit": 1},
            {"$project": {"_id": 0, "thread_id": 1}},
        ],
    )
    if border:
        where = {"thread_id": {**where.get("thread_id", {}), "$lte": border[0]["thread_id"]}}
    some = yield from _added_up(where)
    largest = sorted((*walk.largest, *some), key=lambda each: (-each.stored, each.thread_id))
    return replace(
        walk,
        largest=tuple(largest[: walk.top]),
        threads=walk.threads + len(some),
        checkpoints=walk.checkpoints + sum(each.checkpoints for each in some),
        stored=walk.stored + sum(each.stored for each in some),
        whole=walk.whole + sum(each.whole for each in some),
        after=border[0]["thread_id"] if border else walk.after,
        done=not border,
    )


def _added_up(where: Document) -> Plan[list[ThreadSize]]:
    totals: dict[str, ThreadSize] = {}
    for name in STORED:
        group: Document = {"_id": "$thread_id", "stored": {"$sum": {"$bsonSize": "$$ROOT"}}}
        if name is Name.CHECKPOINTS:
            group |= {"count": {"$sum": 1}, "whole": {"$sum": "$bytes"}}
        for row in (yield Aggregate(name, [{"$match": where}, {"$group": group}])):
            known = totals.get(row["_id"], ThreadSize(row["_id"], 0, 0, 0))
            totals[row["_id"]] = ThreadSize(
                known.thread_id,
                known.checkpoints + row.get("count", 0),
                known.stored + row["stored"],
                known.whole + row.get("whole", 0),
            )
    return list(totals.values())
