"""The history of a thread: its checkpoints as lines, and which of them is meant.

A saver's `list` hands over whole checkpoints. Whoever looks for the one that went wrong wants to
see ten thousand of them as lines, so a history reads keys from an index, and of the checkpoints it
shows only what lies beside their payloads: source and step from `search`, the names of the channels
that have a value, the slots of the pending writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from mongosaver import codec, identifiers
from mongosaver.codec import Payload
from mongosaver.errors import StateError, UsageError
from mongosaver.identifiers import Key
from mongosaver.ops import Aggregate, Find, Plan
from mongosaver.plans import filters
from mongosaver.plans.context import Context
from mongosaver.plans.inspect import nodes
from mongosaver.schema import CHECKPOINT_KEY, Document, Name

BATCH: Final = 1_000
"""Checkpoints that one command is about."""

SCOPES: Final = 100
"""Namespaces that one command is about."""

KEYS: Final = 20_000
"""Keys of the index that are read together where all checkpoints are wanted."""

_NEWEST: Final = (("checkpoint_id", -1),)


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
        raise nothing(thread_id, ns)
    more = limit is not None and len(rows) > limit
    entries = {key_of(row): _entry(row) for row in rows[:limit]}
    senders = [key_of(row) for row in rows[:limit] if _has_sends(row)]
    yield from _add_sends(ctx, thread_id, entries, senders)
    yield from _add_tasks(thread_id, entries)
    yield from _add_starts(ctx, thread_id, entries)
    return History(tuple(entries.values()), more)


def _text(value: str | None, what: str) -> str | None:
    return None if value is None else identifiers.text(value, what)


def nothing(thread_id: str, ns: str | None) -> StateError:
    if ns is None:
        return StateError(
            f"thread {thread_id!r}: no checkpoint is stored."
            " `mongosaver threads` lists the threads there are."
        )
    return StateError(
        f"thread {thread_id!r}, namespace {ns!r}: no checkpoint is stored."
        f" `mongosaver history {thread_id!r}` shows those of all namespaces,"
        " and with --json the namespaces in full."
    )


def key_of(row: Document) -> Key:
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
        key_of(row),
        row["parent_checkpoint_id"],
        row["created_at"],
        search.get("source"),
        search.get("step"),
        row.get("run_id"),
        tuple(sorted(filter(None, map(nodes.called, channels)))),
    )


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
                key = key_of(row)
                entries[key] = replace(entries[key], sends=tuple(nodes.nodes_of(sends)))


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
            slots.setdefault(key_of(row), {}).setdefault(row["task_id"], []).append(row)
    for key, by_task in slots.items():
        rows = {id_: each for id_, each in by_task.items() if id_ != nodes.NO_TASK}
        entries[key] = replace(
            entries[key],
            tasks=tuple(
                Task(
                    id_,
                    nodes.name_of(each[0]["task_path"], entries[key].sends),
                    nodes.state_of(each),
                    len(each),
                )
                for id_, each in sorted(rows.items(), key=lambda item: item[1][0]["task_path"])
            ),
            writes=sum(map(len, by_task.values())),
        )


def _add_starts(ctx: Context, thread_id: str, entries: dict[Key, Entry]) -> Plan[None]:
    """The checkpoint that started each subgraph: its metadata tells, or the task in its name."""
    first = [key for key, entry in entries.items() if key[0] and entry.parent is None]
    fields = {"_id": 0, **dict.fromkeys(CHECKPOINT_KEY, 1), "metadata_type": 1, "metadata": 1}
    parents: dict[Key, Any] = {}
    for where in _conditions(thread_id, first):
        for row in (yield Find(Name.CHECKPOINTS, where, fields)):
            metadata = codec.load_metadata(ctx.serde, row)
            if isinstance(metadata, Mapping):  # else it is encrypted
                parents[key_of(row)] = metadata.get("parents")
    by_task = {(key[0], task.id): key for key, entry in entries.items() for task in entry.tasks}
    for key in first:
        outer, _, call = key[0].rpartition("|")
        told = parents.get(key)
        started_by = by_task.get((outer, call.partition(":")[2]))
        if isinstance(told, Mapping) and isinstance(told.get(outer), str):
            started_by = outer, told[outer]
        entries[key] = replace(entries[key], started_by=started_by)


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
            raise nothing(thread_id, ns)
        return key_of(rows[0])
    if ns is not None:
        where["checkpoint_ns"] = ns
    exact = yield Find(Name.CHECKPOINTS, {**where, "checkpoint_id": checkpoint_id}, fields)
    if exact:
        rows = exact
    else:
        within = {"$gte": checkpoint_id, "$lt": checkpoint_id + "\U0010ffff"}
        rows = yield Find(Name.CHECKPOINTS, {**where, "checkpoint_id": within}, fields, limit=6)
    keys = [key_of(row) for row in rows]
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
            f"{' and others' if len(keys) > 5 else ''}. Give more of the id, or --ns."
        )
    return (root or keys)[0]
