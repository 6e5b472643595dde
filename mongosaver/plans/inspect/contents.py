"""One checkpoint, taken apart: values, pending writes, and what is to run next.

Everything is read, except values too large to be looked at; a value of which a blob is missing is
shown as such, where a saver has to refuse the whole checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mongosaver import codec
from mongosaver.codec import Hole, Payload
from mongosaver.identifiers import Address, Key
from mongosaver.ops import Find, Plan
from mongosaver.plans import filters
from mongosaver.plans.context import Context
from mongosaver.plans.inspect import nodes
from mongosaver.plans.inspect.entries import nothing
from mongosaver.plans.sweep import COUNTERS
from mongosaver.schema import MAX_DOCUMENT, Document, Name

LARGEST: Final = MAX_DOCUMENT
"""Values above so many bytes are told by their size and not read."""


@dataclass(frozen=True, slots=True)
class Value:
    """A channel's value, and how it is stored.

    Attributes:
        channel: The channel.
        version: Its version.
        type: The serializer's type tag; None where the value is not read.
        size: Bytes of the value; 0 where none is stored.
        segments: Blobs that hold it; 0 for a value in the checkpoint document.
        tail: Bytes of a value with blobs that are in the checkpoint document.
        value: The value.
        problem: Why there is no value here: it is too large to show, a blob is missing, or the
            graph rebuilds it from writes.
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

    @property
    def form(self) -> str:
        """Where it is: `inline`, in a `blob`, or nowhere, because it is `rebuilt` from writes."""
        if self.segments:
            return "blob"
        return "rebuilt" if self.type is None else "inline"


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
        raise nothing(thread_id, key[0])
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
    metadata = codec.load_metadata(ctx.serde, row)
    values = dict(sorted({**_rebuilt(metadata, versions or {}), **values}.items()))
    sends: Any = values[codec.TASKS].value if codec.TASKS in values else None
    parent = row["parent_checkpoint_id"]
    if parent and codec.is_early(row.get("v")):
        queued = {**filters.checkpoint(at.at(parent)), "channel": codec.TASKS}
        early = codec.load_writes(ctx.serde, (yield Find(Name.WRITES, queued)))
        sends = [value for _, _, value in early]
    called = tuple(nodes.nodes_of(sends))
    writes = tuple(_writes(ctx, (yield Find(Name.WRITES, filters.checkpoint(at))), called))
    payloads = ("_id", "checkpoint", "metadata", "inline", "blobs")
    return Shown(
        key,
        {name: value for name, value in row.items() if name not in payloads},
        checkpoint,
        metadata,
        values,
        writes,
        tuple(_next(checkpoint, values, called, writes)),
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
    return values


def _rebuilt(metadata: Any, versions: Mapping[str, Any]) -> dict[str, Value]:
    """Channels that LangGraph rebuilds from writes: it counts those since the last value."""
    counters = metadata.get(COUNTERS) if isinstance(metadata, Mapping) else None
    values = {}
    for channel, counts in counters.items() if isinstance(counters, Mapping) else ():
        number = counts[0] if isinstance(counts, (list, tuple)) and counts else None
        if channel not in versions and not number:
            continue  # never written
        version, how = versions.get(channel), "writes"
        if isinstance(number, int):
            some = f"{number:,} checkpoint{'' if number == 1 else 's'}"
            how = f"the writes of {some} since the last stored value"
        problem = f"DeltaChannel, rebuilt from {how}"
        values[channel] = Value(channel, version, None, 0, 0, 0, None, problem, (COUNTERS, version))
    return values


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
            nodes.name_of(path, sends),
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
        node = nodes.called(channel) or nodes.joined(channel, values[channel].value)
        if node is not None and _is_newer(versions.get(channel), _seen(seen, node, channel)):
            called.setdefault(node, channel)
    for node, triggers in seen.items() if isinstance(seen, Mapping) else ():
        for channel, version in triggers.items() if isinstance(triggers, Mapping) else ():
            known = not channel.startswith(nodes.JOIN) and not node.startswith(nodes.INTERRUPT)
            if known and channel in values and _is_newer(versions.get(channel), version):
                called.setdefault(node, channel)
    slots: dict[tuple[str, str], list[Document]] = {}
    for write in writes:
        row = {"channel": write.channel, "idx": write.idx}
        slots.setdefault((write.path, write.task_id), []).append(row)
    tasks: dict[object, tuple[str | None, str]] = {}
    for (path, task), rows in slots.items():
        number = nodes.number_of(path)
        tasks[nodes.name_of(path) if number is None else number] = task, nodes.state_of(rows)
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
