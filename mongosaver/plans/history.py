"""The history of DeltaChannels: what LangGraph rebuilds a channel from.

LangGraph stores such a channel's value now and then only. In between, its value is the nearest
stored one, the *seed*, and the pending writes of each checkpoint from there on. The base class
walks the ancestors one by one; here a page is read from where the walk stands, newest first, and
holds the next thousand ancestors unless the thread has other branches or gaps. Then come the
writes, in one command, and the seeds that are blobs, in one.

Pages show where values are, not the values themselves; only values that lie in the checkpoint and
belong to the channels asked for come along. Checkpoints that are marked as deleted count as
ancestors: they are there for as long as a channel is rebuilt from them (see `sweep`).

This file is pure: it imports only `codec`, `ops`, `schema`, `identifiers` and `errors`, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import DeltaChannelHistory
from pymongo.errors import OperationFailure

from mongosaver import codec, identifiers
from mongosaver.codec import Hole
from mongosaver.errors import IncompleteCheckpoint
from mongosaver.identifiers import Address
from mongosaver.ops import Aggregate, Compute, Find, Plan
from mongosaver.plans import filters
from mongosaver.plans.context import Context
from mongosaver.plans.read import REFUSALS
from mongosaver.plans.runs import several
from mongosaver.schema import LEAST_QUANTUM, MAX_AGGREGATE, OFF_LOOP, Document, Name

ANCESTORS: Final = 1000
"""Checkpoints of one page, besides the one that the history is for."""

_IDS: Final = 100_000
"""Checkpoints whose writes one command asks for."""

_LOOKS: Final = 3

Histories = dict[str, DeltaChannelHistory]


@dataclass(slots=True)
class _Walk:
    """What is known of one channel: its ancestors, nearest first, and where its value was found."""

    line: list[str] = field(default_factory=list)
    seed: Document | None = None


def get_delta_channel_history(
    ctx: Context, config: RunnableConfig, channels: Iterable[str]
) -> Plan[Histories]:
    """For each channel the writes since its last stored value, and that value.

    Args:
        ctx: The call's surroundings.
        config: Names the checkpoint, or the latest; its own writes are not part of its history.
        channels: Names of channels.

    Raises:
        UsageError: An identifier is none, or the channels are one string.
        IncompleteCheckpoint: Something other than mongosaver removed a value.
    """
    at = identifiers.address(config)
    return _history(ctx, at, several(channels, "channels", _name))


def _name(channel: object) -> str:
    return identifiers.text(channel, "a channel's name", nul=True)


def _history(ctx: Context, at: Address, channels: Sequence[str]) -> Plan[Histories]:
    if not channels:
        return {}
    looks = 0
    while True:
        looks += 1
        walks = yield from _walks(ctx, at, channels)
        try:
            return (yield from _collect(ctx, at, walks))
        except Hole as hole:
            if looks < _LOOKS:
                continue  # what was deleted while it was read is not found again
            target = at.checkpoint_id or "(the latest)"
            raise IncompleteCheckpoint(
                at.thread_id, at.checkpoint_ns, target, hole.channel, hole.key
            ) from None


# --- the walk ----------------------------------------------------------------------------------


def _walks(ctx: Context, at: Address, channels: Sequence[str]) -> Plan[dict[str, _Walk]]:
    walks = {channel: _Walk() for channel in channels}
    known: dict[str, Document] = {}
    target = yield from _target(ctx, at, channels, known)
    waiting = set(channels) if target else set()
    position = target and target["parent_checkpoint_id"]
    seen: set[str] = set()
    while waiting and position and position not in seen:
        if position not in known:
            for row in (yield from _page(ctx, at, channels, {"$lte": position})):
                known[row["checkpoint_id"]] = row
            if position not in known:
                break  # the ancestor is gone, and whatever was before it
        seen.add(position)
        row = known[position]
        stored = {entry["c"]: entry for entry in (*row["inline"], *row["blobs"])}
        for channel in sorted(waiting):
            walks[channel].line.append(position)
            if channel in stored:
                walks[channel].seed = {**stored[channel], "at": position}
                waiting.discard(channel)
        position = row["parent_checkpoint_id"]
    return walks


def _target(
    ctx: Context, at: Address, channels: Sequence[str], known: dict[str, Document]
) -> Plan[Document | None]:
    """The checkpoint whose history is asked for; its page becomes known too."""
    condition = {} if at.checkpoint_id is None else {"$lte": at.checkpoint_id}
    while True:
        rows = yield from _page(ctx, at, channels, condition)
        known.update((row["checkpoint_id"], row) for row in rows)
        if at.checkpoint_id is not None:
            found = known.get(at.checkpoint_id)
            return found if found and _is_there(found, ctx.now - _grace(ctx)) else None
        for row in rows:
            if _is_there(row, ctx.now):
                target: Document = row
                return target
        if len(rows) <= ANCESTORS:
            return None
        condition = {"$lt": rows[-1]["checkpoint_id"]}


def _is_there(row: Document, now: datetime) -> bool:
    """Whether readers see the checkpoint: it is not being removed and has not expired."""
    expires_at = row.get("expires_at")
    return not row.get("deleted_at") and (expires_at is None or expires_at > now)


def _grace(ctx: Context) -> timedelta:
    """How long a checkpoint that somebody has just read still has its history.

    What it is rebuilt from expires later than itself, so that nobody who read it at the last moment
    gets it without that.
    """
    return min(ctx.ttl.quantum if ctx.ttl else LEAST_QUANTUM, LEAST_QUANTUM) / 2


def _page(
    ctx: Context, at: Address, channels: Sequence[str], condition: Document
) -> Plan[list[Document]]:
    """Checkpoints from one on, newest first, with where their values of the channels are."""
    where: Document = {"thread_id": at.thread_id, "checkpoint_ns": at.checkpoint_ns}
    if condition:
        where["checkpoint_id"] = condition
    fields = dict.fromkeys(
        (
            "format",
            "thread_id",
            "checkpoint_id",
            "parent_checkpoint_id",
            "deleted_at",
            "expires_at",
        ),
        1,
    )
    rows: list[Document] | None = None
    if not ctx.shared.read_by_finds:
        try:
            rows = yield Aggregate(
                Name.CHECKPOINTS,
                [
                    {"$match": where},
                    {"$sort": {"checkpoint_id": -1}},
                    {"$limit": ANCESTORS + 1},
                    {
                        "$project": {
                            **fields,
                            "inline": _only("$inline", channels),
                            "blobs": _only("$blobs", channels),
                        }
                    },
                ],
            )
        except OperationFailure as error:
            if error.code not in REFUSALS:
                raise
            ctx.shared.read_by_finds = True
    if rows is None:
        fields |= {"inline": 1, "blobs": 1}
        order = (("checkpoint_id", -1),)
        rows = yield Find(Name.CHECKPOINTS, where, fields, order, ANCESTORS + 1)
    for row in rows:
        codec.check_format(row, "checkpoints collection")
    return rows


def _only(entries: str, channels: Sequence[str]) -> Document:
    """The entries of some channels, whose names may look like expressions."""
    named = {"$in": ["$$entry.c", {"$literal": list(channels)}]}
    return {"$filter": {"input": entries, "as": "entry", "cond": named}}


# --- writes and seeds --------------------------------------------------------------------------


def _collect(ctx: Context, at: Address, walks: Mapping[str, _Walk]) -> Plan[Histories]:
    writes = yield from _writes(at, walks)
    keys = {
        walk.seed["k"]: walk.seed["size"]
        for walk in walks.values()
        if walk.seed and "k" in walk.seed
    }
    blobs = yield from _seeds(ctx, at, keys)

    def decode() -> Histories:
        return {
            channel: _decode(ctx, channel, walk, writes, blobs) for channel, walk in walks.items()
        }

    size = sum(keys.values()) + sum(len(w["data"]) for each in writes.values() for w in each)
    if size <= OFF_LOOP:
        return decode()
    decoded: Histories = yield Compute(decode, size)
    return decoded


def _decode(
    ctx: Context,
    channel: str,
    walk: _Walk,
    writes: Mapping[tuple[str, str], list[Document]],
    blobs: Mapping[bytes, Document],
) -> DeltaChannelHistory:
    history: DeltaChannelHistory = {"writes": []}
    for checkpoint_id in reversed(walk.line):
        documents = writes.get((channel, checkpoint_id), ())
        history["writes"] += codec.load_writes(ctx.serde, documents)
    if walk.seed is not None:
        if "k" in walk.seed:
            payload = codec.value_of(walk.seed, blobs)
        else:
            payload = codec.Payload(walk.seed["t"], walk.seed["d"])
        history["seed"] = codec.load(ctx.serde, payload)
    return history


def _writes(at: Address, walks: Mapping[str, _Walk]) -> Plan[dict[tuple[str, str], list[Document]]]:
    """Documents of pending writes by channel and checkpoint."""
    lines: dict[tuple[int, str], list[str]] = {}
    for channel, walk in walks.items():
        if walk.line:
            # All lines begin at the same checkpoint, so two of one length are the same.
            lines.setdefault((len(walk.line), walk.line[-1]), []).append(channel)
    parts = []
    for channels in lines.values():
        line = walks[channels[0]].line
        for start in range(0, len(line), _IDS):
            ids = {"$in": line[start : start + _IDS]}
            parts.append({"checkpoint_id": ids, "channel": {"$in": channels}})
    scope: Document = {"thread_id": at.thread_id, "checkpoint_ns": at.checkpoint_ns}
    found: dict[tuple[str, str], list[Document]] = {}
    for where in _conditions(scope, parts):
        for write in (yield Find(Name.WRITES, where)):
            found.setdefault((write["channel"], write["checkpoint_id"]), []).append(write)
    return found


def _conditions(scope: Document, parts: Sequence[Document]) -> list[Document]:
    """The parts as one condition, or one each where they are large."""
    if len(parts) > 1 and sum(len(part["checkpoint_id"]["$in"]) for part in parts) <= _IDS:
        return [{**scope, "$or": [{**scope, **part} for part in parts]}]
    return [{**scope, **part} for part in parts]


def _seeds(ctx: Context, at: Address, keys: Mapping[bytes, int]) -> Plan[dict[bytes, Document]]:
    """Blobs of seeds, heads and chains; in one round trip where they are not large."""
    blobs: dict[bytes, Document] = {}
    if not keys:
        return blobs
    where = filters.blobs(at, list(keys))
    if not ctx.shared.read_by_finds and max(keys.values()) <= MAX_AGGREGATE:
        scope = {"thread_id": at.thread_id, "checkpoint_ns": at.checkpoint_ns}
        chains = {
            "from": Name.BLOBS,
            "localField": "chain",
            "foreignField": "key",
            "pipeline": [{"$match": scope}],
            "as": "segments",
        }
        try:
            heads = yield Aggregate(Name.BLOBS, [{"$match": where}, {"$lookup": chains}])
        except OperationFailure as error:
            if error.code not in REFUSALS:
                raise
            ctx.shared.read_by_finds = True
        else:
            for head in heads:
                blobs.update((segment["key"], segment) for segment in head["segments"])
                blobs[head["key"]] = head
            return blobs
    blobs.update((head["key"], head) for head in (yield Find(Name.BLOBS, where)))
    missing = {key for head in blobs.values() for key in head["chain"]} - blobs.keys()
    if missing:
        chained = yield Find(Name.BLOBS, filters.blobs(at, sorted(missing)))
        blobs.update((segment["key"], segment) for segment in chained)
    return blobs
