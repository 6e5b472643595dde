"""Pruning threads: keeping the newest checkpoints, or nothing.

What stays of a thread: the newest checkpoints of each namespace with their pending writes, what is
not older than wanted, and the ancestors from which a kept checkpoint rebuilds a `DeltaChannel`.
Such an ancestor remains a checkpoint like others where its own state is whole; where it would not
be, it stays out of sight. A kept checkpoint whose parent went has no parent.

The namespace of a subgraph's call (it ends in the task's id, after a colon) goes with the root
checkpoint that the call started from, because nothing leads to it any more; only once that root
checkpoint is there, since a call can be saved before it. The namespace of a subgraph that has a
memory of its own has no colon, and keeps its newest.

This file is pure: it imports only `codec`, `identifiers`, `ops`, `schema` and other plans, no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from mongosaver import codec, identifiers
from mongosaver.errors import ConfigurationError
from mongosaver.identifiers import Key
from mongosaver.ops import Count, Delete, Find, Plan
from mongosaver.plans import delete
from mongosaver.plans.context import Context
from mongosaver.plans.runs import several
from mongosaver.plans.sweep import (
    LOADED,
    Node,
    Nodes,
    Removed,
    mark,
    needs,
    rebuilt,
    scan,
    stateless,
    sweep,
)
from mongosaver.schema import Document, Name

STRATEGIES: Final = ("keep_latest", "delete")
_INTERRUPT_SLOT: Final = -3


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune did, or would do in a dry run.

    Attributes:
        threads: Threads of which something went.
        skipped: Threads left alone, because somebody has yet to answer an interrupt.
        checkpoints: Checkpoints that went.
        writes: Pending writes (and parts of large ones) that went.
        blobs: Values and segments of values that went.
    """

    threads: int = 0
    skipped: int = 0
    checkpoints: int = 0
    writes: int = 0
    blobs: int = 0

    def _and(self, removed: Removed) -> Pruned:
        return Pruned(
            self.threads + (removed != Removed()),
            self.skipped,
            self.checkpoints + removed.checkpoints,
            self.writes + removed.writes,
            self.blobs + removed.blobs,
        )


@dataclass(frozen=True, slots=True)
class _Rule:
    delete: bool
    keep_last: int
    older_than: datetime | None
    skip_interrupted: bool
    dry_run: bool


def prune(
    ctx: Context,
    thread_ids: Iterable[object],
    *,
    strategy: str = "keep_latest",
    keep_last: int | None = None,
    older_than: datetime | timedelta | None = None,
    skip_interrupted: bool | None = None,
    dry_run: bool = False,
) -> Plan[Pruned]:
    """Remove old checkpoints of threads; unknown threads are no error.

    Args:
        ctx: The call's surroundings.
        thread_ids: The threads.
        strategy: `keep_latest` keeps the newest checkpoint of each namespace, and what it needs;
            `delete` keeps nothing.
        keep_last: With `keep_latest`: how many of each namespace stay; 1 by default.
        older_than: A time, or an age. With `keep_latest` only checkpoints put before it go, with
            `delete` only threads whose last checkpoint was put before it.
        skip_interrupted: Whether threads that wait for an answer to an interrupt are left alone.
            By default those options do, which are for retention in bulk (`keep_last` and
            `older_than`), while a plain prune leaves nothing undone that it was asked for; it
            keeps what the answer needs.
        dry_run: Whether to count only.

    Raises:
        IdentifierTypeError: It is one string instead of several, or an id is no text.
        ConfigurationError: An option is unknown, or does not go with another.
    """
    threads = several(thread_ids, "thread_ids", identifiers.thread)
    if strategy not in STRATEGIES:
        raise ConfigurationError(
            f"unknown strategy {strategy!r}; there are {' and '.join(STRATEGIES)}"
        )
    if keep_last is not None:
        if not isinstance(keep_last, int) or isinstance(keep_last, bool) or keep_last < 1:
            raise ConfigurationError(f"keep_last must be a number from 1 on, got {keep_last!r}")
        if strategy == "delete":
            raise ConfigurationError('keep_last goes with the strategy "keep_latest" only')
    cutoff = _cutoff(older_than, ctx.now)
    if skip_interrupted is None:
        skip_interrupted = keep_last is not None or cutoff is not None
    rule = _Rule(strategy == "delete", keep_last or 1, cutoff, skip_interrupted, dry_run)
    return _prune(ctx, threads, rule)


def _cutoff(older_than: object, now: datetime) -> datetime | None:
    if older_than is None:
        return None
    if isinstance(older_than, timedelta):
        if older_than < timedelta(0):
            raise ConfigurationError(f"older_than is an age and not negative, got {older_than}")
        return now - older_than
    if not isinstance(older_than, datetime):
        raise ConfigurationError(
            f"older_than must be a datetime or a timedelta, got {type(older_than).__name__}"
        )
    if older_than.tzinfo is None:
        raise ConfigurationError(
            f"older_than has no time zone: {older_than}. Use datetime.now(timezone.utc) and such."
        )
    return older_than


def _prune(ctx: Context, thread_ids: Sequence[str], rule: _Rule) -> Plan[Pruned]:
    pruned = Pruned()
    for thread_id in thread_ids:
        if rule.delete and rule.older_than is None and not rule.skip_interrupted:
            removed = yield from _everything(ctx, thread_id, rule)
        else:
            found = yield from _thread(ctx, thread_id, rule)
            if found is None:
                pruned = replace(pruned, skipped=pruned.skipped + 1)
                continue
            removed = found
        pruned = pruned._and(removed)  # noqa: SLF001 - its own class
    return pruned


def _everything(ctx: Context, thread_id: str, rule: _Rule) -> Plan[Removed]:
    """A thread as `delete_thread` removes it, counted."""
    names = (Name.CHECKPOINTS, Name.WRITES, Name.BLOBS)
    counts = dict.fromkeys(names, 0)
    if rule.dry_run:
        for name in names:
            counts[name] = yield Count(name, {"thread_id": thread_id})
    else:
        plan = delete.delete_thread(ctx, thread_id)
        op = next(plan)
        try:
            while True:
                result = yield op
                if isinstance(op, Delete):
                    counts[op.collection] += result
                op = plan.send(result)
        except StopIteration:
            pass
    return Removed(*counts.values())


def _thread(ctx: Context, thread_id: str, rule: _Rule) -> Plan[Removed | None]:
    """What went of one thread; None where it is left alone."""
    nodes = yield from scan(thread_id)
    there = [node for node in nodes.values() if node.deleted_at is None]
    # What a graph has put on a thread that was deleted is the newest of nothing.
    no_states = yield from stateless(thread_id, nodes, there)
    states = [node for node in there if node.key not in no_states]
    if rule.skip_interrupted and (yield from is_interrupted(thread_id, states)):
        return None
    if rule.delete:
        doomed = there if _is_idle(there, rule.older_than) else []
    else:
        kept = yield from _kept(ctx, thread_id, nodes, _chosen(states, rule))
        doomed = [node for node in there if node.key not in kept]
    if not doomed and len(there) == len(nodes):
        return Removed()
    if not rule.dry_run:
        yield from mark(thread_id, doomed, ctx.now)
    keys = {node.key for node in doomed}
    return (yield from sweep(ctx, thread_id, doomed=keys, dry_run=rule.dry_run))


def _is_idle(there: Collection[Node], since: datetime | None) -> bool:
    return since is None or all(node.created_at < since for node in there)


def is_interrupted(thread_id: str, there: Iterable[Node]) -> Plan[bool]:
    """Whether a task of the root graph's newest checkpoint waits for an answer.

    A task that was answered has ordinary writes beside its interrupt, or a newer checkpoint
    follows. Subgraphs' interrupts are also their calling tasks', so the root graph's are enough.
    """
    newest = next((node for node in there if node.checkpoint_ns == ""), None)
    if newest is None:
        return False
    where = {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": newest.checkpoint_id}
    slots: dict[str, set[int]] = {}
    for row in (yield Find(Name.WRITES, where, {"_id": 0, "task_id": 1, "idx": 1})):
        slots.setdefault(row["task_id"], set()).add(row["idx"])
    return any(_INTERRUPT_SLOT in taken and max(taken) < 0 for taken in slots.values())


def _chosen(there: Iterable[Node], rule: _Rule) -> dict[Key, Node]:
    """The newest of each namespace, and what is not old enough to go."""
    chosen: dict[Key, Node] = {}
    counts: dict[str, int] = {}
    for node in there:
        count = counts[node.checkpoint_ns] = counts.get(node.checkpoint_ns, 0) + 1
        if count <= rule.keep_last or (rule.older_than and node.created_at >= rule.older_than):
            chosen[node.key] = node
    return chosen


def _kept(ctx: Context, thread_id: str, nodes: Nodes, chosen: Mapping[Key, Node]) -> Plan[set[Key]]:
    """The chosen checkpoints, and those of their ancestors that remain checkpoints."""
    needed = yield from needs(ctx, thread_id, nodes, nodes.keys() - chosen.keys())
    whole = yield from _whole(ctx, thread_id, nodes, chosen, needed)
    kept = {*chosen, *whole}
    newest: dict[str, Node] = {}
    for node in nodes.values():
        newest.setdefault(node.checkpoint_ns, node)
    calls = [node for ns, node in newest.items() if ":" in ns]
    roots = yield from _roots(ctx, thread_id, calls)
    over = {ns for ns, root in roots.items() if ("", root) in nodes and ("", root) not in kept}
    return {key for key in kept if key[0] not in over}


def _whole(
    ctx: Context,
    thread_id: str,
    nodes: Nodes,
    chosen: Mapping[Key, Node],
    needed: Mapping[Key, Collection[str]],
) -> Plan[list[Key]]:
    """Needed ancestors whose own state is whole: all that it is rebuilt from is needed as well."""
    some = [
        nodes[key]
        for key, channels in needed.items()
        if key not in chosen and nodes[key].deleted_at is None and set(channels) - {codec.TASKS}
    ]
    own = yield from rebuilt(ctx, thread_id, nodes, some)
    return [
        node.key
        for node in some
        if node.parent_key is None
        or node.parent_key not in nodes
        or own[node.key] <= set(needed.get(node.parent_key, ()))
    ]


def _roots(ctx: Context, thread_id: str, calls: Sequence[Node]) -> Plan[dict[str, Any]]:
    """The root checkpoint that each call's newest checkpoint says it was started from."""
    roots: dict[str, Any] = {}
    fields = {"_id": 0, "checkpoint_ns": 1, "metadata_type": 1, "metadata": 1}
    for start in range(0, len(calls), LOADED):
        oids = [node.oid for node in calls[start : start + LOADED]]
        where: Document = {"thread_id": thread_id, "_id": {"$in": oids}}
        for row in (yield Find(Name.CHECKPOINTS, where, fields)):
            parents = codec.load_metadata(ctx.serde, row).get("parents")
            if isinstance(parents, Mapping):
                roots[row["checkpoint_ns"]] = parents.get("")
    return roots
