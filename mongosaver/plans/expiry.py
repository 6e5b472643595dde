"""When threads expire, and how their expiry is moved.

`expires_at` on a checkpoint is a promise: until then, all that it needs is there. MongoDB's TTL
monitor removes expired documents in no order at all, so three rules keep the promise.

- Blobs and pending writes expire a quantum after the checkpoints that need them.
- A checkpoint whose date has passed is not read, whether it was removed or not.
- A thread's expiry is moved in the order of needs. Later: blobs, writes, checkpoints from the
  oldest on, and the new checkpoint last. Sooner: the other way round. Wherever that breaks off, no
  checkpoint outlives what it needs, and no checkpoint outlives an ancestor.

Dates are multiples of the quantum, a tenth of the ttl. Most puts find that their parent's date will
do. In the quantum before it no longer does, each put of the thread moves one slice; only a thread
that was left alone for longer is moved at once. Somebody else's put that runs beside a move in
slices may leave blobs a quantum behind, which is what the first rule has to spare.

The saver that saves last decides. One with a ttl lets a thread expire that did not so far, one
without lifts the expiry of a thread that it goes on with. `apply_ttl` does the same to threads that
nobody uses.

This file is pure: it imports only `ops`, `schema`, `identifiers` and other plans, and does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from mongosaver import codec, identifiers, segments
from mongosaver.cache import Known, Move
from mongosaver.errors import ConfigurationError
from mongosaver.identifiers import Address
from mongosaver.ops import Find, Plan, Update, UpdateMany, Updates
from mongosaver.plans import filters, threads
from mongosaver.plans.context import Context, Ttl, duration
from mongosaver.plans.runs import several
from mongosaver.schema import CHECKPOINT_KEY, LEAST_QUANTUM, Document, Name

logger = logging.getLogger("mongosaver")

PER_CALL: Final = "mongosaver_ttl"
"""Key of `config["configurable"]` that gives one call another ttl than the saver's."""

SLICE: Final = 1000
"""About how many documents a put moves along."""

_OLDEST: Final = (("checkpoint_ns", -1), ("checkpoint_id", 1))
_NEEDED: Final = (Name.BLOBS, Name.WRITES)


@dataclass(frozen=True, slots=True)
class Dates:
    """When what is written now expires; None for never."""

    checkpoint: datetime | None
    needed: datetime | None

    def stamp(self, name: Name) -> Document:
        """The field of a new document."""
        date = self.checkpoint if name is Name.CHECKPOINTS else self.needed
        return {} if date is None else {"expires_at": date}


NEVER: Final = Dates(None, None)


def ttl_of(ctx: Context, config: Mapping[str, Any]) -> Ttl | None:
    """The ttl of one call.

    Raises:
        ConfigurationError: The config's is none, or the saver has none.
    """
    own = (config.get("configurable") or {}).get(PER_CALL)
    if own is None:
        return ctx.ttl
    if ctx.ttl is None:
        raise ConfigurationError(
            f'config["configurable"][{PER_CALL!r}] needs a saver with a ttl of its own, which makes'
            " the indexes that expired threads are removed by. Give the saver one: ttl=..."
        )
    return replace(ctx.ttl, duration=duration(own, PER_CALL))


def fresh(ctx: Context, ttl: Ttl | None) -> Dates:
    """Dates of a new thread, or of a copy of one."""
    return NEVER if ttl is None else _dates(ttl.fresh(ctx.now), ttl.quantum)


def _dates(until: datetime | None, quantum: timedelta) -> Dates:
    return Dates(until, None if until is None else until + quantum)


# --- what a put does ---------------------------------------------------------------------------


def before_put(ctx: Context, ttl: Ttl | None, thread_id: str, parent: Known | None) -> Plan[Dates]:
    """Move the thread's expiry where that is due; the dates of what is put then.

    Args:
        ctx: The call's surroundings.
        ttl: The call's ttl.
        thread_id: The thread.
        parent: What is known of the parent; None where there is none.
    """
    if parent is None:
        return fresh(ctx, ttl)
    until = parent.expires_at
    if ttl is None:
        if until is not None:
            logger.info("thread %r was to expire; a saver without a ttl goes on with it", thread_id)
            yield from align(ctx, thread_id, NEVER)
        return NEVER
    if _is_due(ctx, ttl, until) or until is None or until > _latest(ctx, ttl):
        dates = fresh(ctx, ttl)
        yield from align(ctx, thread_id, dates)
        return dates
    return (yield from _in_time(ctx, ttl, thread_id, until))


def after_read(ctx: Context, thread_id: str, until: datetime | None) -> Plan[None]:
    """The same for a read of a saver that refreshes on reading, but never sooner than it was."""
    ttl = ctx.ttl
    if ttl is None or not ttl.refresh_on_read or until is None:
        return
    if _is_due(ctx, ttl, until):
        yield from align(ctx, thread_id, fresh(ctx, ttl))
    else:
        yield from _in_time(ctx, ttl, thread_id, until)


def for_writes(ctx: Context, ttl: Ttl | None, at: Address) -> Dates:
    """Dates of pending writes: as late as their checkpoint's, so far as that is known."""
    known = ctx.shared.cache.known(at)
    if known is None:
        return fresh(ctx, ttl)
    if known.expires_at is None:
        return NEVER
    quantum = ttl.quantum if ttl else LEAST_QUANTUM
    return _dates(max(known.expires_at, ttl.fresh(ctx.now) if ttl else known.expires_at), quantum)


def _is_due(ctx: Context, ttl: Ttl, until: datetime | None) -> bool:
    return until is not None and until < ctx.now + ttl.duration


def _latest(ctx: Context, ttl: Ttl) -> datetime:
    # One quantum more than this saver would give: clocks differ.
    return ttl.fresh(ctx.now) + ttl.quantum


def _in_time(ctx: Context, ttl: Ttl, thread_id: str, until: datetime) -> Plan[Dates]:
    if until >= ctx.now + ttl.duration + ttl.quantum:
        return _dates(until, ttl.quantum)
    moves = ctx.shared.moves
    move = moves.take(thread_id)
    if move is None or not until < move.until <= until + ttl.quantum:
        move = Move(until + ttl.quantum)
    move = yield from _slice(ctx, ttl, thread_id, move)
    if move.stage == len(_NEEDED) + 1:
        return _dates(move.until, ttl.quantum)
    moves.keep(thread_id, move)
    return Dates(until, move.until + ttl.quantum)


def _slice(ctx: Context, ttl: Ttl, thread_id: str, move: Move) -> Plan[Move]:
    """One more slice, of about the same number of documents whatever the thread's size."""
    if move.stage == len(_NEEDED):
        rows = yield from _checkpoints(
            thread_id, {"expires_at": {"$gt": ctx.now, "$lt": move.until}}, SLICE
        )
        yield from _move(ctx, rows, move.until)
        return move if len(rows) == SLICE else replace(move, stage=move.stage + 1)
    stage, first = move.stage, move.at == 0
    move, count = yield from _next_part(ttl, thread_id, move)
    if first and move.stage == stage and 2 * count <= SLICE * move.at:
        move, _ = yield from _next_part(ttl, thread_id, replace(move, width=1 - move.at))
    return move


def _next_part(ttl: Ttl, thread_id: str, move: Move) -> Plan[tuple[Move, int]]:
    name = _NEEDED[move.stage]
    end = move.at + move.width
    date = move.until + ttl.quantum
    where = {"thread_id": thread_id, **_part(name, move.at, end), "expires_at": {"$lt": date}}
    count = yield UpdateMany(name, where, {"$set": {"expires_at": date}})
    if end >= 1:
        return Move(move.until, move.stage + 1), count
    # Keys of blobs and ids of tasks are digests: a part of them is that part of the documents.
    # A few of them tell little of the rest, so the next part does not grow by more than that.
    width = min(1 - end, move.width * min(SLICE / max(count, 1), 4))
    return replace(move, at=end, width=width), count


def _part(name: Name, start: float, end: float) -> Document:
    """Condition on the part of a collection's keys that lies between two fractions."""
    field = "key" if name is Name.BLOBS else "task_id"
    bounds: Document = {}
    if start > 0:
        bounds["$gte"] = _bound(name, start)
    if end < 1:
        bounds["$lt"] = _bound(name, end)
    return {field: bounds} if bounds else {}


def _bound(name: Name, fraction: float) -> bytes | str:
    number = int(fraction * 2**32).to_bytes(4, "big")
    # MongoDB compares binaries by their length first.
    return number.ljust(segments.KEY_BYTES, b"\0") if name is Name.BLOBS else number.hex()


# --- moving a whole thread ---------------------------------------------------------------------


def align(ctx: Context, thread_id: str, dates: Dates, *, thorough: bool = False) -> Plan[int]:
    """Let everything in a thread that has not expired expire at these dates.

    Args:
        ctx: The call's surroundings.
        thread_id: The thread.
        dates: The dates.
        thorough: Whether to look for blobs and writes that an earlier call has left behind.

    Returns:
        How many checkpoints got another date.
    """
    # Which ones is read before anything is moved: what they need is there by then.
    rows = yield from _checkpoints(thread_id, filters.alive(ctx.now), 0)
    sooner: list[Document] = []
    later: list[Document] = []
    for row in rows:
        until = row.get("expires_at")
        if until != dates.checkpoint:
            (later if _is_before(until, dates.checkpoint) else sooner).append(row)
    if later:
        yield from _needed(ctx, thread_id, dates.needed, sooner=False)
    yield from _move(ctx, later, dates.checkpoint)
    yield from _move(ctx, sooner[::-1], dates.checkpoint)
    if dates.needed is not None and (sooner or thorough):
        yield from _needed(ctx, thread_id, dates.needed, sooner=True)
    return len(later) + len(sooner)


def _is_before(one: datetime | None, other: datetime | None) -> bool:
    return one is not None and (other is None or one < other)


def _needed(ctx: Context, thread_id: str, date: datetime | None, *, sooner: bool) -> Plan[None]:
    """Move blobs and writes to a date, those that expire after it or those before it."""
    change: Document = {"$unset": {"expires_at": ""}}
    where: Document = {"thread_id": thread_id, "expires_at": {"$gt": ctx.now}}
    if date is not None:
        change = {"$set": {"expires_at": date}}
        where = {"thread_id": thread_id, "expires_at": {"$lt": date}}
        if sooner:
            where = {"thread_id": thread_id, "expires_at": {"$not": {"$lte": date}}}
    for name in reversed(_NEEDED) if sooner else _NEEDED:
        yield UpdateMany(name, where, change)


def _checkpoints(thread_id: str, condition: Document, limit: int) -> Plan[list[Document]]:
    """Checkpoints from the oldest on, within each namespace."""
    fields = {"_id": 0, "format": 1, "expires_at": 1, **dict.fromkeys(CHECKPOINT_KEY, 1)}
    rows: list[Document] = yield Find(
        Name.CHECKPOINTS, {"thread_id": thread_id, **condition}, fields, _OLDEST, limit
    )
    for row in rows:
        codec.check_format(row, "checkpoints collection")
    return rows


def _move(ctx: Context, rows: Sequence[Document], date: datetime | None) -> Plan[None]:
    """Move checkpoints, one after another."""
    for start in range(0, len(rows), SLICE):
        some = rows[start : start + SLICE]
        change = {"$unset": {"expires_at": ""}} if date is None else {"$set": {"expires_at": date}}
        updates = [
            Update({field: row[field] for field in CHECKPOINT_KEY}, change, upsert=False)
            for row in some
        ]
        yield Updates(Name.CHECKPOINTS, updates, ordered=True)
        ctx.shared.cache.moved([codec.address_of(row) for row in some], date)


# --- threads that nobody uses ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TtlProgress:
    """How far a walk through all threads has come.

    Attributes:
        threads: Threads that were looked at.
        changed: Those of them of which something was changed, or would be in a dry run.
        checkpoints: Checkpoints that were changed, or would be.
        expired: Threads that were idle for longer than the ttl, so that they expire at once.
        last_thread_id: The last thread that was looked at: what `after` takes to go on from here.
        done: Whether that was the last one of all.
    """

    threads: int = 0
    changed: int = 0
    checkpoints: int = 0
    expired: int = 0
    last_thread_id: str | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Walk:
    """What `apply_ttl` is to do, and how far it has come."""

    thread_ids: Sequence[str] | None
    dry_run: bool
    progress: TtlProgress


def walk(thread_ids: Iterable[object] | None, after: str | None, *, dry_run: bool) -> Walk:
    """Check what `apply_ttl` was given.

    Raises:
        IdentifierTypeError: It is one string instead of several, or an id is no text.
    """
    ids = None if thread_ids is None else several(thread_ids, "thread_ids", identifiers.thread)
    start = None if after is None else identifiers.thread(after)
    if ids is not None:
        ids = [each for each in sorted(ids) if start is None or each > start]
    return Walk(ids, dry_run, TtlProgress(last_thread_id=start))


def apply(ctx: Context, walk: Walk) -> Plan[Walk]:
    """Let the next threads expire as the saver's ttl says, counted from their last save."""
    progress = walk.progress
    page = yield from threads.page(walk.thread_ids, progress.last_thread_id)
    outlines = yield from threads.outlines(page)
    newest = yield from threads.newest(outlines)
    for thread_id in page:
        progress = replace(progress, threads=progress.threads + 1, last_thread_id=thread_id)
        saved = newest.get(thread_id, {}).get("created_at")
        if saved is None:
            continue
        ttl = ctx.ttl
        dates = NEVER if ttl is None else _dates(ttl.fresh(saved), ttl.quantum)
        if walk.dry_run:
            rows = yield from _checkpoints(thread_id, filters.alive(ctx.now), 0)
            count = sum(row.get("expires_at") != dates.checkpoint for row in rows)
        else:
            count = yield from align(ctx, thread_id, dates, thorough=True)
        over = dates.checkpoint is not None and dates.checkpoint <= ctx.now
        progress = replace(
            progress,
            changed=progress.changed + (count > 0),
            checkpoints=progress.checkpoints + count,
            expired=progress.expired + over,
        )
    return replace(walk, progress=replace(progress, done=not page))
