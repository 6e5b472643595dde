"""Looking at many threads: walking through all of them, and listing them by their last activity.

Both go along an index in windows of a few thousand keys, without reading a document: by thread id
through the unique index, or from the newest checkpoint on through the index of `list(None)`. There,
the first key of a thread that comes along is its last activity. What a thread consists of is told
by the unique index; documents are read of its newest checkpoint only, and no value of them.

A listing goes on from a *cursor*, the key of the last thread seen. A thread that was active since
stands before it and does not come again.

This file is pure: it imports only `codec`, `ops`, `schema`, `identifiers` and `errors`, no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Final

from mongosaver import codec
from mongosaver.errors import ConfigurationError
from mongosaver.ops import Aggregate, Find, Plan
from mongosaver.plans import filters
from mongosaver.plans.context import Context
from mongosaver.schema import CHECKPOINT_KEY, PAGE, Document, Name

WINDOW: Final = 2_000
"""Keys of an index that are looked at together at first, and the least."""

WIDEST: Final = 32_000
"""The same where few of them belong to threads that were not seen yet."""

_INTERRUPT_SLOT: Final = -3
_ALWAYS: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_BY_THREAD: Final = {"thread_id": 1, "checkpoint_ns": 1, "checkpoint_id": -1}
_BY_ACTIVITY: Final = {"checkpoint_id": -1, "thread_id": 1, "checkpoint_ns": 1}
_NEWEST_FIELDS: Final = {
    "_id": 0,
    "format": 1,
    "created_at": 1,
    "expires_at": 1,
    **dict.fromkeys(CHECKPOINT_KEY, 1),
}
_METADATA_FIELDS: Final = {"metadata_type": 1, "metadata": 1}


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """One thread, as `list_threads` shows it.

    Attributes:
        thread_id: The thread.
        namespaces: Its namespaces in order; the root graph's is empty.
        checkpoints: How many checkpoints it has in all of them.
        last_activity: When the newest of them was put.
        last_checkpoint_id: The root graph's newest; the newest of all where it has none.
        pending_interrupt: Whether a task of that checkpoint waits for an answer.
        cursor: What `after` takes to go on after this thread.
    """

    thread_id: str
    namespaces: tuple[str, ...]
    checkpoints: int
    last_activity: datetime
    last_checkpoint_id: str
    pending_interrupt: bool
    cursor: str


# --- what an index tells of threads ------------------------------------------------------------

Outline = dict[str, tuple[int, str]]
"""By namespace, the number of checkpoints and the newest one."""


def page(thread_ids: Sequence[str] | None, after: str | None) -> Plan[list[str]]:
    """The next threads in the order of their ids; of these, or of all."""
    if thread_ids is not None:
        return [each for each in thread_ids if after is None or each > after][:PAGE]
    where: Document = {} if after is None else {"thread_id": {"$gt": after}}
    rows = yield Aggregate(
        Name.CHECKPOINTS,
        [
            {"$match": where},
            {"$sort": _BY_THREAD},
            {"$limit": WINDOW},
            {"$group": {"_id": "$thread_id"}},
        ],
    )
    return sorted(row["_id"] for row in rows)


def outlines(thread_ids: Sequence[str]) -> Plan[dict[str, Outline]]:
    """What threads consist of, also what is being removed."""
    found: dict[str, Outline] = {}
    for start in range(0, len(thread_ids), PAGE):
        ids = list(thread_ids[start : start + PAGE])
        group = {
            "_id": {"thread": "$thread_id", "ns": "$checkpoint_ns"},
            "count": {"$sum": 1},
            "last": {"$max": "$checkpoint_id"},
        }
        pipeline: list[Document] = [{"$match": {"thread_id": {"$in": ids}}}, {"$group": group}]
        for row in (yield Aggregate(Name.CHECKPOINTS, pipeline)):
            outline = found.setdefault(row["_id"]["thread"], {})
            outline[row["_id"]["ns"]] = row["count"], row["last"]
    return found


def last(outline: Outline) -> tuple[str, str]:
    """Id and namespace of a thread's newest checkpoint."""
    return max((newest, ns) for ns, (_, newest) in outline.items())


def newest(outlines: Mapping[str, Outline]) -> Plan[dict[str, Document]]:
    """The newest checkpoint of each thread, without its payload."""
    keys = [(thread_id, *last(outline)) for thread_id, outline in outlines.items()]
    found = yield from _documents(keys, _NEWEST_FIELDS)
    return {thread_id: row for (thread_id, _, _), row in found.items()}


_Key = tuple[str, str, str]


def _documents(keys: Iterable[_Key], fields: Document) -> Plan[dict[_Key, Document]]:
    """Checkpoints by thread, id and namespace."""
    wanted = list(dict.fromkeys(keys))
    found: dict[_Key, Document] = {}
    for start in range(0, len(wanted), 2 * PAGE):
        parts = [
            {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
            for thread_id, checkpoint_id, ns in wanted[start : start + 2 * PAGE]
        ]
        for row in (yield Find(Name.CHECKPOINTS, {"$or": parts}, fields)):
            codec.check_format(row, "checkpoints collection")
            found[row["thread_id"], row["checkpoint_id"], row["checkpoint_ns"]] = row
    return found


# --- listing -----------------------------------------------------------------------------------

_Position = tuple[str, str]
"""A checkpoint id and a thread: the order is descending, then ascending."""


def _stands_before(one: _Position, other: _Position) -> bool:
    return one[0] > other[0] or (one[0] == other[0] and one[1] < other[1])


@dataclass(frozen=True, slots=True)
class Listing:
    """What is still to be listed; `rows` turns one into rows and the next one.

    Attributes:
        filter: What the latest checkpoint's metadata must equal, compared in Python.
        limit: Rows still wanted; None for all.
        start: Where the listing began; threads that stand before it do not come.
        below: Id of the last checkpoint looked at. It is looked at again: copies repeat ids.
        width: Keys to look at next.
        pending: Threads that were found but not looked at yet.
        seen: Threads that were.
    """

    filter: Mapping[str, Any]
    limit: int | None
    start: _Position | None
    below: str | None
    width: int
    pending: Sequence[_Position] = ()
    seen: set[str] = field(default_factory=set)
    is_last: bool = False


def listing(filter: Mapping[str, Any] | None, limit: int | None, after: str | None) -> Listing:
    """Check what `list_threads` was given.

    Raises:
        ConfigurationError: `after` is no cursor.
        ValueError: The limit is negative.
        TypeError: The filter is no mapping, or the limit no number.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
        raise TypeError(f"limit must be an int or None, got {type(limit).__name__}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit must not be negative, got {limit}")
    if filter is not None and not isinstance(filter, Mapping):
        raise TypeError(f"filter must be a mapping, got {type(filter).__name__}")
    start = None if after is None else _position(after)
    return Listing(dict(filter or {}), limit, start, start and start[0], WINDOW)


def _position(cursor: object) -> _Position:
    try:
        parts = json.loads(cursor) if isinstance(cursor, str) else None
    except ValueError:
        parts = None
    if isinstance(parts, list) and len(parts) == 2:
        checkpoint_id, thread_id = parts
        if isinstance(checkpoint_id, str) and isinstance(thread_id, str):
            return checkpoint_id, thread_id
    raise ConfigurationError(
        f"after takes the cursor of a ThreadInfo from list_threads, got {cursor!r}"
    )


def rows(ctx: Context, listing: Listing) -> Plan[tuple[list[ThreadInfo], Listing | None]]:
    """The next rows, and what is left after them (None: nothing)."""
    if listing.limit == 0:
        return [], None
    is_exact = listing.start is None and not listing.filter
    size = min(PAGE, listing.limit) if is_exact and listing.limit is not None else PAGE
    while len(listing.pending) < size and not listing.is_last:
        listing = yield from _window(listing)
    some, rest = listing.pending[:size], listing.pending[size:]
    found = yield from _infos(ctx, listing, some)
    if listing.limit is not None:
        found = found[: listing.limit]
        listing = replace(listing, limit=listing.limit - len(found))
    if (not rest and listing.is_last) or listing.limit == 0:
        return found, None
    return found, replace(listing, pending=rest)


def _window(listing: Listing) -> Plan[Listing]:
    """Find the next threads in the order of their last activity."""
    # One range: with a condition on the rest of the key, documents would be read for it.
    where: Document = {} if listing.below is None else {"checkpoint_id": {"$lte": listing.below}}
    groups = yield Aggregate(
        Name.CHECKPOINTS,
        [
            {"$match": where},
            {"$sort": _BY_ACTIVITY},
            {"$limit": listing.width},
            {
                "$group": {
                    "_id": "$thread_id",
                    "first": {"$first": "$checkpoint_id"},
                    "last": {"$last": "$checkpoint_id"},
                    "count": {"$sum": 1},
                }
            },
        ],
    )
    is_last = sum(group["count"] for group in groups) < listing.width
    fresh = [(g["first"], g["_id"]) for g in groups if g["_id"] not in listing.seen]
    fresh.sort(key=lambda position: position[1])
    fresh.sort(key=lambda position: position[0], reverse=True)
    listing.seen.update(thread_id for _, thread_id in fresh)
    below = min((group["last"] for group in groups), default=listing.below)
    width = listing.width
    if below == listing.below:
        width *= 2  # so many copies of one checkpoint
    elif len(fresh) < min(PAGE, width // 20):
        width = min(WIDEST, width * 2)
    else:
        width = max(WINDOW, width // 2)
    pending = (*listing.pending, *fresh)
    return replace(listing, below=below, width=width, pending=pending, is_last=is_last)


def _infos(ctx: Context, listing: Listing, some: Sequence[_Position]) -> Plan[list[ThreadInfo]]:
    """Rows of these threads, as far as they match."""
    positions = {thread_id: (checkpoint_id, thread_id) for checkpoint_id, thread_id in some}
    known = yield from outlines(list(positions))
    if listing.start is not None:
        # What stands before the cursor is met again by its older checkpoints.
        for thread_id in list(known):
            if not _stands_before(listing.start, (last(known[thread_id])[0], thread_id)):
                del known[thread_id]
    for thread_id in (yield from _with_marks(list(known))):
        known[thread_id] = yield from _exactly(ctx, thread_id)
    documents = (yield from _latest(known, listing)) if known else {}
    for thread_id, found in documents.items():
        if any(_has_expired(ctx, row) for row in found):
            known[thread_id] = yield from _exactly(ctx, thread_id)
            again = yield from _latest({thread_id: known[thread_id]}, listing)
            documents = {**documents, **again}
    matching: dict[str, tuple[Document, Document]] = {}
    for thread_id, found in documents.items():
        if len(found) < 2 or not known[thread_id]:
            continue  # it was deleted meanwhile
        active, latest = found
        if not listing.filter or codec.matches(
            codec.load_metadata(ctx.serde, latest), listing.filter
        ):
            matching[thread_id] = active, latest
    waiting = yield from _waiting([latest for _, latest in matching.values()])
    return [
        ThreadInfo(
            thread_id,
            tuple(sorted(known[thread_id])),
            sum(count for count, _ in known[thread_id].values()),
            matching[thread_id][0]["created_at"],
            matching[thread_id][1]["checkpoint_id"],
            thread_id in waiting,
            json.dumps(positions[thread_id]),
        )
        for thread_id in positions
        if thread_id in matching
    ]


def _latest(
    known: Mapping[str, Outline], listing: Listing
) -> Plan[dict[str, tuple[Document, ...]]]:
    """Of each thread the newest checkpoint, and the root graph's newest."""
    keys = {
        thread_id: ((thread_id, *last(outline)), _root(thread_id, outline))
        for thread_id, outline in known.items()
        if outline
    }
    fields = {**_NEWEST_FIELDS, **(_METADATA_FIELDS if listing.filter else {})}
    found = yield from _documents([key for pair in keys.values() for key in pair], fields)
    return {
        thread_id: tuple(found[key] for key in pair if key in found)
        for thread_id, pair in keys.items()
    }


def _root(thread_id: str, outline: Outline) -> _Key:
    if "" in outline:
        return thread_id, outline[""][1], ""
    return (thread_id, *last(outline))


def _has_expired(ctx: Context, row: Document) -> bool:
    return "expires_at" in row and row["expires_at"] is not None and row["expires_at"] <= ctx.now


def _with_marks(thread_ids: Sequence[str]) -> Plan[list[str]]:
    """Threads with checkpoints that are being removed."""
    if not thread_ids:
        return []
    where = {"thread_id": {"$in": list(thread_ids)}, "deleted_at": {"$gt": _ALWAYS}}
    pipeline: list[Document] = [{"$match": where}, {"$group": {"_id": "$thread_id"}}]
    marked = yield Aggregate(Name.CHECKPOINTS, pipeline)
    return [row["_id"] for row in marked]


def _exactly(ctx: Context, thread_id: str) -> Plan[Outline]:
    """A thread's outline without what expired or is being removed."""
    where = {"thread_id": thread_id, "deleted_at": None, **filters.alive(ctx.now)}
    outline: Outline = {}
    fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1}
    for row in (yield Find(Name.CHECKPOINTS, where, fields)):
        count, newest = outline.get(row["checkpoint_ns"], (0, ""))
        outline[row["checkpoint_ns"]] = count + 1, max(newest, row["checkpoint_id"])
    return outline


def _waiting(latest: Sequence[Document]) -> Plan[set[str]]:
    """Threads of which a task waits for an answer: it has an interrupt and no write of its own."""
    if not latest:
        return set()
    parts = [{name: row[name] for name in CHECKPOINT_KEY} for row in latest]
    fields = {"_id": 0, "thread_id": 1, "task_id": 1, "idx": 1}
    slots: dict[tuple[str, str], set[int]] = {}
    for row in (yield Find(Name.WRITES, {"$or": parts}, fields)):
        slots.setdefault((row["thread_id"], row["task_id"]), set()).add(row["idx"])
    return {
        thread_id
        for (thread_id, _), taken in slots.items()
        if _INTERRUPT_SLOT in taken and max(taken) < 0
    }
