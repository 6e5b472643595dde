"""Removing checkpoints from a thread that lives on, and with them what nobody else needs.

Whoever wants checkpoints gone *marks* them first (`deleted_at`); for every reader they are gone
from then on. A sweep does the rest: it unlinks their children, deletes their writes, then their
blobs, and the marked documents last. So the marks are a list of what is left to do, and whatever
breaks off is finished by the next sweep of the thread.

What stays
- A blob that a remaining checkpoint names, or the chain of one that it names. The remaining ones
  are read after the marking, so that a run which appends meanwhile loses nothing.
- The ancestors from which a remaining checkpoint rebuilds a `DeltaChannel`, back to the nearest
  stored value, and their writes of that channel. They keep their mark: no reader lists them, only
  the channel's history passes through them, and a later sweep looks again whether they are needed.
  Their children say so (`parent_hidden`), since no reader could follow such a parent.
- A blob that somebody else found already stored, a short time ago (`touched_at`): it may be about
  to be named by a checkpoint that is not there yet. Keys are addresses of contents, so this is how
  a put can need what is being freed. The marked checkpoints that name it stay too, for the next
  sweep. A put touches what it finds and then stores again what has vanished.

Two clocks are compared in that: the one of whoever puts with the one of whoever sweeps. They may
differ by up to `MARGIN`, less the time that a put takes. A blob that looks newer than the mark
of the checkpoint that names it stays for the next sweep, too.

This file is pure: it imports only `codec`, `ops`, `schema` and `filters`, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde import types as serde_types

from mongosaver import codec, segments
from mongosaver.identifiers import Key
from mongosaver.ops import Count, Delete, Find, Plan, UpdateMany
from mongosaver.plans.context import Context
from mongosaver.schema import Document, Name

BATCH: Final = 1000
"""Checkpoints or keys that one command is about."""

SCOPES: Final = 100
"""Namespaces that one command is about."""

LOADED: Final = 200
"""Checkpoints whose payload and metadata are read together."""

MARGIN: Final = timedelta(minutes=1)
"""How long a blob that somebody found already stored is left alone."""

COUNTERS: Final = "counters_since_delta_snapshot"
"""Where LangGraph keeps, in metadata, which channels are rebuilt from writes."""

_SNAPSHOT: Final = getattr(serde_types, "_DeltaSnapshot", ())
_SNAPSHOT_CODE: Final = getattr(jsonplus, "EXT_DELTA_SNAPSHOT", None)


_Named = tuple[str, bytes, bool | None]


@dataclass(frozen=True, slots=True)
class Node:
    """What is known of one checkpoint without its payload.

    Attributes:
        oid: `_id` of its document.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        parent: Id of its parent, if any.
        created_at: When it was put.
        deleted_at: When it was marked; None for one that is to stay.
        stored: Channels that have a value.
        blobs: Channel and key of each value that is a blob, and whether it is a snapshot; None
            where the blob itself tells.
        counts: Whether its metadata may hold counters of DeltaChannels.
        early: Whether it looks for sends among its parent's writes.
        parent_hidden: Whether readers are told that it has no parent.
    """

    oid: Any
    checkpoint_ns: str
    checkpoint_id: str
    parent: str | None
    created_at: datetime
    deleted_at: datetime | None
    stored: frozenset[str]
    blobs: tuple[_Named, ...]
    counts: bool
    early: bool
    parent_hidden: bool

    @property
    def key(self) -> Key:
        return self.checkpoint_ns, self.checkpoint_id

    @property
    def parent_key(self) -> Key | None:
        return None if self.parent is None else (self.checkpoint_ns, self.parent)


Nodes = Mapping[Key, Node]
Needs = Mapping[Key, Collection[str]]
"""Channels whose writes, and whose values if stored, are needed from a checkpoint."""


@dataclass(frozen=True, slots=True)
class Removed:
    """How many documents went.

    Attributes:
        checkpoints: Checkpoints.
        writes: Pending writes (and parts of large ones).
        blobs: Values and segments of values.
    """

    checkpoints: int = 0
    writes: int = 0
    blobs: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(
            self.checkpoints + other.checkpoints,
            self.writes + other.writes,
            self.blobs + other.blobs,
        )


# --- looking -----------------------------------------------------------------------------------

_OUTLINE: Final = {
    "format": 1,
    "thread_id": 1,
    "checkpoint_ns": 1,
    "checkpoint_id": 1,
    "parent_checkpoint_id": 1,
    "created_at": 1,
    "deleted_at": 1,
    "v": 1,
    "parent_hidden": 1,
    "search_rest": 1,
    "inline.c": 1,
    "blobs.c": 1,
    "blobs.k": 1,
    "blobs.h": 1,
}


def scan(thread_id: str) -> Plan[dict[Key, Node]]:
    """All checkpoints of a thread, marked ones too: newest first within each namespace."""
    nodes: dict[Key, Node] = {}
    names: dict[frozenset[str], frozenset[str]] = {}
    values: dict[_Named, _Named] = {}
    last: Key | None = None
    while True:
        rows = yield from _page(thread_id, last)
        for row in rows:
            codec.check_format(row, "checkpoints collection")
            # Neighbours have nearly everything in common; kept once, a long thread stays small.
            blobs = [(e["c"], e["k"], _tells_snapshot(e)) for e in row["blobs"]]
            stored = frozenset(entry["c"] for entry in (*row["inline"], *row["blobs"]))
            node = Node(
                row["_id"],
                row["checkpoint_ns"],
                row["checkpoint_id"],
                row["parent_checkpoint_id"],
                row["created_at"],
                row.get("deleted_at"),
                names.setdefault(stored, stored),
                tuple(values.setdefault(blob, blob) for blob in blobs),
                not {COUNTERS, "*"}.isdisjoint(row.get("search_rest", ())),
                codec.is_early(row.get("v")),
                bool(row.get("parent_hidden")),
            )
            nodes[node.key] = node
        if len(rows) < BATCH:
            return nodes
        last = (rows[-1]["checkpoint_ns"], rows[-1]["checkpoint_id"])


def _tells_snapshot(entry: Document) -> bool | None:
    """Whether a value with a tail of its own is a snapshot."""
    return _is_snapshot(entry["h"]) if "h" in entry else None


def _page(thread_id: str, last: Key | None) -> Plan[list[Document]]:
    """The next checkpoints in the order of the index, by at most two of its ranges."""
    order = (("checkpoint_ns", 1), ("checkpoint_id", -1))
    where: Document = {"thread_id": thread_id}
    if last is None:
        first: list[Document] = yield Find(Name.CHECKPOINTS, where, _OUTLINE, order, BATCH)
        return first
    rest = {**where, "checkpoint_ns": last[0], "checkpoint_id": {"$lt": last[1]}}
    rows: list[Document] = yield Find(Name.CHECKPOINTS, rest, _OUTLINE, order, BATCH)
    if len(rows) < BATCH:
        others = {**where, "checkpoint_ns": {"$gt": last[0]}}
        found = yield Find(Name.CHECKPOINTS, others, _OUTLINE, order, BATCH - len(rows))
        rows = rows + found
    return rows


def stateless(thread_id: str, nodes: Nodes, some: Iterable[Node]) -> Plan[set[Key]]:
    """Those of some checkpoints that are no state: values are missing, and an ancestor is gone.

    So it is with what a graph has put on a thread that was deleted meanwhile. Nothing is asked of
    the server unless an ancestor is gone.
    """
    adrift: set[Key | None] = set()
    for node in _downwards(nodes):
        parent = node.parent_key
        if parent is not None and (parent not in nodes or parent in adrift):
            adrift.add(node.key)
    suspects = [node for node in some if node.key in adrift]
    wanted = [(node.checkpoint_ns, key) for node in suspects for _, key, _ in node.blobs]
    chains: dict[tuple[str, bytes], Sequence[bytes]] = {}

    def add(ns: str, head: bytes, chain: Sequence[bytes]) -> None:
        chains[ns, head] = chain

    yield from _chains(thread_id, _by_namespace(wanted), add)
    inner = [(ns, key) for (ns, _), chain in chains.items() for key in chain]
    there = set(chains)
    for where in _commands(thread_id, _by_namespace(inner), "key"):
        for row in (yield Find(Name.BLOBS, where, {"_id": 0, "checkpoint_ns": 1, "key": 1})):
            there.add((row["checkpoint_ns"], row["key"]))

    def is_whole(node: Node) -> bool:
        ns = node.checkpoint_ns
        heads = [key for _, key, _ in node.blobs]
        return all(
            (ns, head) in there and all((ns, key) in there for key in chains.get((ns, head), ()))
            for head in heads
        )

    return {node.key for node in suspects if not is_whole(node)}


# --- what remaining checkpoints need of their ancestors ----------------------------------------


@dataclass(slots=True)
class _Delta:
    """What one checkpoint says about DeltaChannels.

    Attributes:
        versions: Channels that were ever written.
        counters: Channels that are rebuilt from writes, and whether there are any since the last
            stored value.
    """

    versions: frozenset[str] = frozenset()
    counters: dict[str, bool] = field(default_factory=dict)


def needs(
    ctx: Context,
    thread_id: str,
    nodes: Nodes,
    gone: Collection[Key],
    writers: Collection[Key] = (),
) -> Plan[dict[Key, set[str]]]:
    """What the checkpoints that remain need of those that go.

    The children of what goes are looked at. What they need, their descendants need of nothing
    else; unless a descendant was the first of its line to write a channel that another branch has
    written further up (see `_beyond`).

    Args:
        ctx: The call's surroundings.
        thread_id: The thread.
        nodes: Its checkpoints.
        gone: Those that go; all others must remain as they are.
        writers: Those that lose writes.

    Returns:
        By ancestor, the channels whose writes are needed; of the last one for a channel also the
        value that it has stored.
    """
    losing = {*gone, *writers}
    starts = [node for node in nodes.values() if node.key not in gone and node.parent_key in losing]
    starts = [start for start in starts if start.parent_key in nodes]
    found: dict[Key, set[str]] = {}
    for key in (yield from _senders(thread_id, [start for start in starts if start.early])):
        found[key] = {codec.TASKS}
    channels = yield from rebuilt(ctx, thread_id, nodes, starts)
    others = yield from _beyond(thread_id, nodes, losing, gone, channels)
    channels |= yield from rebuilt(ctx, thread_id, nodes, others)
    for start in (*starts, *others):
        missing = set(channels[start.key])
        key_: Key | None = start.parent_key
        while missing and key_ is not None and key_ in nodes:
            here = found.setdefault(key_, set())
            if missing <= here:
                break  # somebody else went on from here; this also ends a circle
            here |= missing
            missing -= nodes[key_].stored
            key_ = nodes[key_].parent_key
    return found


def _beyond(
    thread_id: str,
    nodes: Nodes,
    losing: Collection[Key],
    gone: Collection[Key],
    known: Mapping[Key, Collection[str]],
) -> Plan[list[Node]]:
    """Further checkpoints that may be rebuilt from what goes, because a channel is still open.

    A channel is open from a checkpoint that goes, and has a write or a blob of it, down to where a
    value is stored or a checkpoint is `known` to need it.
    """
    order = list(_downwards(nodes))
    below: dict[Key, Node] = {}
    for node in order:
        is_below = node.parent_key in known or node.parent_key in below
        if is_below and node.key not in gone and node.key not in known:
            below[node.key] = node
    above: set[Key | None] = set()
    for node in reversed(order):
        if node.key in below or node.key in above:
            above.add(node.parent_key)
    if not below:
        return []
    sources = yield from _sources(thread_id, nodes, [key for key in losing if key in above])
    opened: dict[Key | None, set[str]] = {}
    nothing: set[str] = set()
    for node in order:
        before = opened.get(node.parent_key, nothing)
        if node.parent_key in sources:
            before = before | sources[node.parent_key]
        opened[node.key] = before - node.stored - set(known.get(node.key, ())) if before else before
    return [node for node in below.values() if opened[node.key]]


def _downwards(nodes: Nodes) -> Iterator[Node]:
    """Each checkpoint after its parent; once each, however they are linked."""
    done: set[Key] = set()
    for node in nodes.values():
        line: list[Node] = []
        key: Key | None = node.key
        while key is not None and key in nodes and key not in done:
            done.add(key)
            line.append(nodes[key])
            key = nodes[key].parent_key
        yield from reversed(line)


def _sources(thread_id: str, nodes: Nodes, keys: Iterable[Key]) -> Plan[dict[Key, set[str]]]:
    """Channels of which checkpoints have writes, or blobs that may be snapshots."""
    sources = {
        key: {channel for channel, _, snapshot in nodes[key].blobs if snapshot is not False}
        for key in keys
    }
    fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1, "channel": 1}
    for where in _commands(thread_id, _by_namespace(sources), "checkpoint_id"):
        for row in (yield Find(Name.WRITES, {**where, "idx": {"$gte": 0}}, fields)):
            sources[row["checkpoint_ns"], row["checkpoint_id"]].add(row["channel"])
    return sources


def _senders(thread_id: str, early: Sequence[Node]) -> Plan[set[Key]]:
    """Parents of early checkpoints that have sends queued among their writes."""
    senders: set[Key] = set()
    parents = _by_namespace((start.checkpoint_ns, start.parent) for start in early)
    for where in _commands(thread_id, parents, "checkpoint_id"):
        fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1}
        for row in (yield Find(Name.WRITES, {**where, "channel": codec.TASKS}, fields)):
            senders.add((row["checkpoint_ns"], row["checkpoint_id"]))
    return senders


def rebuilt(
    ctx: Context, thread_id: str, nodes: Nodes, starts: Sequence[Node]
) -> Plan[dict[Key, set[str]]]:
    """Channels of each checkpoint that have no value there and are rebuilt from ancestors.

    LangGraph counts in metadata what has happened to such a channel since its last snapshot. A
    snapshot among the ancestors tells, too, where there is no counter.
    """
    markers = {start.key: _marker(nodes, start) for start in starts}
    delta = yield from _load(ctx, thread_id, starts, [m for m in markers.values() if m])
    found: dict[Key, set[str]] = {}
    suspects: dict[Key, dict[str, bytes]] = {}
    for start in starts:
        own, marker = delta[start.key], markers[start.key]
        counters = {**(delta[marker.key].counters if marker else {}), **own.counters}
        found[start.key] = {
            channel
            for channel in counters.keys() - start.stored
            if channel in own.versions or own.counters.get(channel)
        }
        unknown = own.versions - start.stored - counters.keys()
        told, suspects[start.key] = _nearest_blobs(nodes, start, set(unknown))
        found[start.key] |= told
    wanted = {(key[0], blob) for key, each in suspects.items() for blob in each.values()}
    snapshots = yield from _snapshots(ctx, thread_id, wanted)
    for key, each in suspects.items():
        found[key] |= {channel for channel, blob in each.items() if (key[0], blob) in snapshots}
    return found


def _line(nodes: Nodes, start: Node) -> Iterator[Node]:
    """A checkpoint's ancestors, nearest first; each once, however they are linked."""
    seen = {start.key}
    key = start.parent_key
    while key is not None and key in nodes and key not in seen:
        seen.add(key)
        yield nodes[key]
        key = nodes[key].parent_key


def _marker(nodes: Nodes, start: Node) -> Node | None:
    """The nearest checkpoint, from this one back, whose metadata may have counters."""
    if start.counts:
        return start
    return next((node for node in _line(nodes, start) if node.counts), None)


def _nearest_blobs(
    nodes: Nodes, start: Node, unknown: set[str]
) -> tuple[set[str], dict[str, bytes]]:
    """Channels whose nearest stored value is a snapshot; blobs of those that may be one.

    A snapshot is never stored in the checkpoint document.
    """
    told: set[str] = set()
    blobs: dict[str, bytes] = {}
    for node in _line(nodes, start) if unknown else ():
        here = unknown & node.stored
        for channel, key, is_snapshot in node.blobs if here else ():
            if channel in here and is_snapshot is None:
                blobs[channel] = key
            elif channel in here and is_snapshot:
                told.add(channel)
        unknown -= here
        if not unknown:
            break
    return told, blobs


def _load(
    ctx: Context, thread_id: str, starts: Iterable[Node], markers: Iterable[Node]
) -> Plan[dict[Key, _Delta]]:
    wanted = {node.key: node for node in (*starts, *markers)}
    delta = {key: _Delta() for key in wanted}
    for counts in (False, True):
        fields = {"checkpoint_ns": 1, "checkpoint_id": 1, "type": 1, "checkpoint": 1}
        if counts:
            fields |= {"metadata_type": 1, "metadata": 1}
        some = [node.oid for node in wanted.values() if node.counts is counts]
        for oids in _batches(some, LOADED):
            where = {"thread_id": thread_id, "_id": {"$in": oids}}
            for row in (yield Find(Name.CHECKPOINTS, where, fields)):
                loaded = codec.load_checkpoint(ctx.serde, row)
                delta[row["checkpoint_ns"], row["checkpoint_id"]] = _Delta(
                    frozenset(loaded.get("channel_versions") or ()),
                    _counters(codec.load_metadata(ctx.serde, row)) if counts else {},
                )
    return delta


def _counters(metadata: Mapping[str, Any]) -> dict[str, bool]:
    counters = metadata.get(COUNTERS)
    if not isinstance(counters, Mapping):
        return {}
    return {
        channel: bool(counts[0]) if isinstance(counts, (list, tuple)) and counts else True
        for channel, counts in counters.items()
    }


def _snapshots(
    ctx: Context, thread_id: str, wanted: Iterable[tuple[str, bytes]]
) -> Plan[set[tuple[str, bytes]]]:
    """Which blobs hold a `_DeltaSnapshot`: their first bytes tell, unless they are encrypted."""
    found: set[tuple[str, bytes]] = set()
    closed: list[Document] = []
    fields = {"_id": 0, "checkpoint_ns": 1, "key": 1, "type": 1, "head": 1, "chain": 1}
    for where in _commands(thread_id, _by_namespace(wanted), "key"):
        for row in (yield Find(Name.BLOBS, where, fields)):
            if row["type"] != "msgpack":
                closed.append(row)
            elif _is_snapshot(row["head"]):
                found.add((row["checkpoint_ns"], row["key"]))
    for row in closed:
        keys = [*row["chain"], row["key"]]
        where = {
            "thread_id": thread_id,
            "checkpoint_ns": row["checkpoint_ns"],
            "key": {"$in": keys},
        }
        rows = yield Find(Name.BLOBS, where, {"_id": 0, "key": 1, "data": 1})
        data = {each["key"]: each["data"] for each in rows}
        if all(key in data for key in keys):
            payload = segments.join(row["head"], [data[key] for key in keys])
            value = codec.load(ctx.serde, codec.Payload(row["type"], payload))
            if isinstance(value, _SNAPSHOT):
                found.add((row["checkpoint_ns"], row["key"]))
    return found


def _is_snapshot(head: bytes) -> bool:
    """Whether a payload begins as msgpack's extension that LangGraph gives to snapshots.

    The code follows the length, whose width the first byte tells (msgpack specification, "ext").
    """
    first = head[0] if head else 0
    at = 1 if 0xD4 <= first <= 0xD8 else {0xC7: 2, 0xC8: 3, 0xC9: 5}.get(first)
    return at is not None and len(head) > at and head[at] == _SNAPSHOT_CODE


# --- removing ----------------------------------------------------------------------------------


def mark(thread_id: str, nodes: Iterable[Node], now: datetime) -> Plan[None]:
    """Mark checkpoints; from here on they are gone for readers, and a sweep removes them."""
    for oids in _batches([node.oid for node in nodes], BATCH):
        yield UpdateMany(
            Name.CHECKPOINTS,
            {"thread_id": thread_id, "_id": {"$in": oids}, "deleted_at": None},
            {"$set": {"deleted_at": now}},
        )


def sweep(
    ctx: Context,
    thread_id: str,
    *,
    runs: Sequence[str] = (),
    writers: Collection[Key] = (),
    doomed: Collection[Key] = (),
    dry_run: bool = False,
) -> Plan[Removed]:
    """Remove what is marked in a thread, and what only it needed.

    Args:
        ctx: The call's surroundings.
        thread_id: The thread.
        runs: Runs whose writes go, on whichever checkpoint they are.
        writers: The checkpoints that have writes of these runs.
        doomed: Checkpoints to take as marked in a dry run.
        dry_run: Whether to count only.

    Returns:
        How many documents went, or would go.
    """
    if not dry_run:
        ctx.shared.cache.forget_threads([thread_id])
    nodes = yield from scan(thread_id)
    gone = {key for key, node in nodes.items() if node.deleted_at or key in doomed}
    needed = yield from needs(ctx, thread_id, nodes, gone, writers)
    freed = [nodes[key] for key in nodes if key in gone and key not in needed]
    kept = [nodes[key] for key in nodes if key not in gone or key in needed]
    bases = [node for node in kept if node.key in gone]
    if not dry_run:
        yield from _unlink(thread_id, nodes, kept, {node.key for node in freed})
        yield from _hide_parents(thread_id, kept, {node.key for node in bases})
    writes = yield from _writes(thread_id, freed, bases, needed, runs, writers, dry_run=dry_run)
    blobs, stuck = yield from _blobs(ctx, thread_id, freed, kept, dry_run=dry_run)
    removed = len(freed)
    if not dry_run:
        removed = 0
        oids = [node.oid for node in freed if node.checkpoint_ns not in stuck]
        for some in _batches(oids, BATCH):
            # One that was put again meanwhile has lost its mark, and stays.
            where = {"thread_id": thread_id, "_id": {"$in": some}, "deleted_at": {"$ne": None}}
            removed += yield Delete(Name.CHECKPOINTS, where)
        ctx.shared.cache.forget_threads([thread_id])
    return Removed(removed, writes, blobs)


def _unlink(
    thread_id: str, nodes: Nodes, kept: Iterable[Node], freed: Collection[Key]
) -> Plan[None]:
    """A checkpoint that stays, and whose parent goes, has no parent.

    One that is no state keeps it: that the parent is gone is how readers tell it from damage.
    """
    some = [node for node in kept if node.parent_key in freed]
    no_states = yield from stateless(thread_id, nodes, some)
    for oids in _batches([node.oid for node in some if node.key not in no_states], BATCH):
        yield UpdateMany(
            Name.CHECKPOINTS,
            {"thread_id": thread_id, "_id": {"$in": oids}},
            {"$set": {"parent_checkpoint_id": None}},
        )


def _hide_parents(thread_id: str, kept: Iterable[Node], hidden: Collection[Key]) -> Plan[None]:
    """A checkpoint whose parent stays out of sight has no parent either, as far as readers go."""
    some = [node for node in kept if node.parent_key in hidden and not node.parent_hidden]
    for oids in _batches([node.oid for node in some], BATCH):
        yield UpdateMany(
            Name.CHECKPOINTS,
            {"thread_id": thread_id, "_id": {"$in": oids}},
            {"$set": {"parent_hidden": True}},
        )


def _writes(
    thread_id: str,
    freed: Iterable[Node],
    bases: Iterable[Node],
    needed: Needs,
    runs: Sequence[str],
    writers: Collection[Key],
    *,
    dry_run: bool,
) -> Plan[int]:
    conditions = _commands(thread_id, _by_namespace(node.key for node in freed), "checkpoint_id")
    for channels, keys in _alike(needed, (node.key for node in bases)):
        for where in _commands(thread_id, _by_namespace(keys), "checkpoint_id"):
            conditions.append({**where, "channel": {"$nin": channels}})
    if runs:
        where = {"thread_id": thread_id, "run_id": {"$in": list(runs)}}
        stay = [
            {"checkpoint_ns": ns, "checkpoint_id": {"$in": ids}, "channel": {"$in": channels}}
            for channels, keys in _alike(needed, (key for key in writers if key in needed))
            for ns, ids in _by_namespace(keys).items()
        ]
        conditions.append({**where, "$nor": stay} if stay else where)
    count = 0
    for where in conditions:
        count += yield (Count if dry_run else Delete)(Name.WRITES, where)
    return count


def _alike(needed: Needs, keys: Iterable[Key]) -> list[tuple[list[str], list[Key]]]:
    """Checkpoints of which the same channels are needed."""
    groups: dict[tuple[str, ...], list[Key]] = {}
    for key in keys:
        groups.setdefault(tuple(sorted(needed[key])), []).append(key)
    return [(list(channels), some) for channels, some in groups.items()]


_Cutoffs = dict[str, dict[bytes, datetime]]
"""Keys by namespace, and when the last checkpoint that names each was marked."""


def _blobs(
    ctx: Context, thread_id: str, freed: Sequence[Node], kept: Iterable[Node], *, dry_run: bool
) -> Plan[tuple[int, set[str]]]:
    """Free the blobs that only freed checkpoints name; also, where something had to stay."""
    heads: _Cutoffs = {}
    for node in freed:
        for _, key, _ in node.blobs:
            _latest(heads.setdefault(node.checkpoint_ns, {}), key, node.deleted_at or ctx.now)
    remaining: dict[str, dict[bytes, str]] = {}
    for node in kept:
        if node.checkpoint_ns in heads:
            remaining.setdefault(node.checkpoint_ns, {}).update(
                (key, c) for c, key, _ in node.blobs
            )
    for ns, keys in remaining.items():
        for key in keys.keys() & heads[ns].keys():
            del heads[ns][key]
    inner = yield from _inner(thread_id, heads)
    if any(heads.values()):
        yield from _spare(thread_id, heads, inner, remaining, _channels(freed, heads))
    if dry_run:
        return sum(len(keys) for each in (heads, inner) for keys in each.values()), set()
    # What only chains name goes first: as long as a head is there, its chain can be found again.
    count, stuck = yield from _free(ctx, thread_id, inner)
    more, still = yield from _free(
        ctx, thread_id, {ns: keys for ns, keys in heads.items() if ns not in stuck}
    )
    return count + more, stuck | still


def _latest(cutoffs: dict[bytes, datetime], key: bytes, at: datetime) -> None:
    if key not in cutoffs or cutoffs[key] < at:
        cutoffs[key] = at


def _channels(freed: Iterable[Node], heads: _Cutoffs) -> dict[str, set[str]]:
    """Channels of the heads: a key tells its channel, so no other channel's value shares them."""
    channels: dict[str, set[str]] = {}
    for node in freed:
        keys = heads.get(node.checkpoint_ns, {})
        here = channels.setdefault(node.checkpoint_ns, set())
        here.update(channel for channel, key, _ in node.blobs if key in keys)
    return channels


def _inner(thread_id: str, heads: _Cutoffs) -> Plan[_Cutoffs]:
    """What the chains of heads name, except heads."""
    inner: _Cutoffs = {}
    marks = {ns: dict(keys) for ns, keys in heads.items()}

    def add(ns: str, head: bytes, chain: Iterable[bytes]) -> None:
        for key in chain:
            where = heads if key in heads[ns] else inner
            _latest(where.setdefault(ns, {}), key, marks[ns][head])

    yield from _chains(thread_id, heads, add)
    return inner


def _spare(
    thread_id: str,
    heads: _Cutoffs,
    inner: _Cutoffs,
    remaining: Mapping[str, Mapping[bytes, str]],
    channels: Mapping[str, Collection[str]],
) -> Plan[None]:
    """Take out what remaining checkpoints name."""

    def spare(ns: str, _head: bytes, chain: Iterable[bytes]) -> None:
        for key in chain:
            heads[ns].pop(key, None)
            inner.get(ns, {}).pop(key, None)

    for ns, keys in remaining.items():
        spare(ns, b"", keys)
    alike = {
        ns: [key for key, channel in keys.items() if channel in channels.get(ns, ())]
        for ns, keys in remaining.items()
    }
    yield from _chains(thread_id, alike, spare)


def _chains(
    thread_id: str,
    heads: Mapping[str, Collection[bytes]],
    visit: Callable[[str, bytes, Sequence[bytes]], None],
) -> Plan[None]:
    """Show the chain of each head that is there; no more than a batch of them is held."""
    fields = {"_id": 0, "checkpoint_ns": 1, "key": 1, "chain": 1}
    for where in _commands(thread_id, {ns: list(keys) for ns, keys in heads.items()}, "key"):
        for row in (yield Find(Name.BLOBS, where, fields)):
            visit(row["checkpoint_ns"], row["key"], row["chain"])


def _free(ctx: Context, thread_id: str, keys: _Cutoffs) -> Plan[tuple[int, set[str]]]:
    """Delete blobs that nobody has found in use; also, where one had to stay."""
    count = 0
    stuck: set[str] = set()
    by_time: dict[datetime, list[tuple[str, bytes]]] = {}
    for ns, cutoffs in keys.items():
        for key, cutoff in cutoffs.items():
            by_time.setdefault(cutoff, []).append((ns, key))
    for cutoff, some in by_time.items():
        for where, size, scopes in _sized(thread_id, _by_namespace(some), "key"):
            untouched = {
                "created_at": {"$lte": cutoff},
                "touched_at": {"$not": {"$gte": ctx.now - MARGIN}},
            }
            deleted = yield Delete(Name.BLOBS, {**where, **untouched})
            count += deleted
            if deleted < size and (yield Find(Name.BLOBS, where, {"_id": 1}, limit=1)):
                stuck |= scopes
    return count, stuck


# --- commands of a bounded size ----------------------------------------------------------------


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


def _by_namespace(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    groups: dict[str, dict[Any, None]] = {}
    for ns, value in pairs:
        groups.setdefault(ns, {})[value] = None
    return {ns: list(values) for ns, values in groups.items()}


def _commands(thread_id: str, groups: Mapping[str, Sequence[Any]], field_: str) -> list[Document]:
    return [where for where, _, _ in _sized(thread_id, groups, field_)]


def _sized(
    thread_id: str, groups: Mapping[str, Sequence[Any]], field_: str
) -> Iterator[tuple[Document, int, set[str]]]:
    """Conditions that a field has one of the values of its namespace; sizes; the namespaces."""
    parts: list[Document] = []
    scopes: set[str] = set()
    room = BATCH
    for ns, values in groups.items():
        at = 0
        while at < len(values):
            some = list(values[at : at + room])
            parts.append({"checkpoint_ns": ns, field_: {"$in": some}})
            scopes.add(ns)
            at += len(some)
            room -= len(some)
            if not room or len(parts) == SCOPES:
                yield _any_of(thread_id, parts), BATCH - room, scopes
                parts, scopes, room = [], set(), BATCH
    if parts:
        yield _any_of(thread_id, parts), BATCH - room, scopes


def _any_of(thread_id: str, parts: Sequence[Document]) -> Document:
    if len(parts) == 1:
        return {"thread_id": thread_id, **parts[0]}
    # Each part names the thread too, so that the planner takes each as a range of the index.
    return {"thread_id": thread_id, "$or": [{"thread_id": thread_id, **part} for part in parts]}
