"""Pruning the threads that nobody uses any more: a walk through all of them, a page at a time.

A thread is idle since the time at which its newest checkpoint was put. Each page finds the idle
ones by an index and hands them to `prune`. A walk that broke off goes on after the last thread
that it reported; what it had begun is finished by the next prune of that thread.

This file is pure: it imports only `identifiers`, `ops` and other plans, and does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from mongosaver import identifiers
from mongosaver.ops import Plan
from mongosaver.plans import prune, threads
from mongosaver.plans.context import Context
from mongosaver.plans.prune import Pruned


@dataclass(frozen=True, slots=True)
class IdleProgress:
    """How far a walk through all threads has come.

    Attributes:
        threads: Threads that were looked at.
        idle: Those of them that were idle.
        pruned: What was pruned so far, or would be in a dry run.
        last_thread_id: The last thread that was looked at: what `after` takes to go on from here.
        done: Whether that was the last one of all.
    """

    threads: int = 0
    idle: int = 0
    pruned: Pruned = field(default_factory=Pruned)
    last_thread_id: str | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Walk:
    """What `prune_idle` is to do, and how far it has come."""

    cutoff: datetime
    options: dict[str, Any]
    progress: IdleProgress


def walk(
    ctx: Context,
    older_than: datetime | timedelta,
    *,
    strategy: str,
    keep_last: int | None,
    skip_interrupted: bool,
    dry_run: bool,
    after: str | None,
) -> Walk:
    """Check what `prune_idle` was given.

    Raises:
        IdentifierTypeError: `after` is no text.
        ConfigurationError: An option is unknown, or does not go with another.
    """
    options: dict[str, Any] = {
        "strategy": strategy,
        "keep_last": keep_last,
        "skip_interrupted": skip_interrupted,
        "dry_run": dry_run,
    }
    # Nothing is sent for no threads, but all is checked.
    prune.prune(ctx, [], **options, older_than=older_than).close()
    cutoff = ctx.now - older_than if isinstance(older_than, timedelta) else older_than
    if strategy == "delete":
        options["older_than"] = cutoff  # looked at again when the thread is deleted
    start = None if after is None else identifiers.thread(after)
    return Walk(cutoff, options, IdleProgress(last_thread_id=start))


def step(ctx: Context, walk: Walk) -> Plan[Walk]:
    """Prune the idle ones of the next threads."""
    progress = walk.progress
    page = yield from threads.page(None, progress.last_thread_id)
    outlines = yield from threads.outlines(page)
    newest = yield from threads.newest(outlines)
    idle = [each for each in page if each in newest and newest[each]["created_at"] < walk.cutoff]
    some = [each for each in idle if _is_more(outlines[each], walk.options)]
    pruned = yield from prune.prune(ctx, some, **walk.options)
    progress = IdleProgress(
        progress.threads + len(page),
        progress.idle + len(idle),
        _sum(progress.pruned, pruned),
        page[-1] if page else progress.last_thread_id,
        done=not page,
    )
    return replace(walk, progress=progress)


def _is_more(outline: threads.Outline, options: dict[str, Any]) -> bool:
    """Whether a thread has more than what stays of it."""
    keep = 0 if options["strategy"] == "delete" else options["keep_last"] or 1
    return any(count > keep or ":" in ns for ns, (count, _) in outline.items())


def _sum(one: Pruned, other: Pruned) -> Pruned:
    return Pruned(*(getattr(one, f.name) + getattr(other, f.name) for f in fields(Pruned)))
