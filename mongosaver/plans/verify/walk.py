"""Looking whether everything that is stored is whole, and counting what nobody needs.

A thread is read once, in pages: its checkpoints, the blobs that they name, its pending writes.

Graphs may run meanwhile. A put may be between its blobs and its checkpoint, a thread may be deleted
while it is looked at. So whatever looks wrong is looked at once more, from the start and with
nothing remembered, before it is reported; and what looks needless is counted only once it is older
than a put can take.

*Findings* are what a reader would stumble over. Everything else is counted only: what
was left behind where something broke off (`gc` removes it), and what is no state because its
thread was deleted while a graph ran on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from mongosaver.identifiers import Key
from mongosaver.ops import Find, Plan, Sleep
from mongosaver.plans import pages
from mongosaver.plans.context import Context
from mongosaver.plans.outline import Outline, existing, is_half_copy
from mongosaver.plans.shapes import (
    OUTLINE,
    At,
    Problem,
    age_of,
    has_slot,
    is_hidden,
    outline_problem,
    parts_of,
    unnamed,
)
from mongosaver.plans.verify.looks import Look
from mongosaver.plans.verify.report import Options, Report, tell
from mongosaver.plans.verify.values import Blobs
from mongosaver.schema import WRITE_KEY, Document, Name

PATIENCE: Final = 0.2
"""Seconds before the second look."""

_OUTLINE: Final = {**OUTLINE, "blobs.h": 1}

_SLOT: Final = {
    "format": 1,
    **dict.fromkeys(WRITE_KEY, 1),
    "parts": 1,
    "channel": 1,
    "type": 1,
    "task_path": 1,
    "created_at": 1,
}
_AGE: Final = {"created_at": 1, "touched_at": 1}

_SlotKey = tuple[str, str, str, int]
"""Namespace, checkpoint, task and position."""


def thread(ctx: Context, thread_id: str, report: Report, options: Options) -> Plan[None]:
    """Look at one thread.

    Args:
        ctx: The call's surroundings; of the serializer only `loads_typed` is used.
        thread_id: The thread.
        report: Is filled, also while the plan runs, so that somebody can watch.
        options: How to look.
    """
    outline = Outline()
    look = Look(ctx, thread_id, report, options)
    suspects, is_hurried = yield from _checkpoints(ctx, look, outline)
    slots = yield from _writes(look, outline)
    orphans = yield from _orphans(thread_id, look.blobs.named)
    adrift = _adrift(outline)
    if suspects or slots.broken or orphans or adrift or slots.orphans or slots.unfinished:
        found = Look(ctx, thread_id, Report(), options)
        if is_hurried or slots.broken:
            yield Sleep(PATIENCE)
        if suspects or slots.broken:
            yield from _again(found, report, suspects, slots.broken)
        yield from _count(found, report, slots, orphans, adrift)
    source = next(iter(outline.sources), None)
    if source is not None and len(outline.sources) == 1 and outline.copied_at is not None:
        report.half_copies += yield from is_half_copy(ctx, thread_id, source, outline.copied_at)
    report.threads += 1
    report.last_thread_id = thread_id


def _checkpoints(ctx: Context, look: Look, outline: Outline) -> Plan[tuple[list[Any], bool]]:
    """Look at all checkpoints.

    Returns:
        `_id` of those that do not look right; whether something is missing that may yet come.
    """
    report, suspects, is_hurried = look.report, dict[Any, None](), False
    found = pages.Pages(Name.CHECKPOINTS, look.thread_id, _OUTLINE, pages.CHECKPOINTS, pages.LOADED)
    while found.more:
        visible = []
        for row in (yield from found.next()):
            hidden = is_hidden(ctx, row)
            if isinstance(row.get("checkpoint_id"), str):
                outline.add(row, hidden=hidden)
            if not hidden:
                visible.append(row)
            elif row.get("deleted_at") is not None:
                report.marked += 1
            else:
                report.expired += 1
            if hidden and outline_problem(row) is None:
                look.blobs.name(row["checkpoint_ns"], [entry["k"] for entry in row["blobs"]])
        for row, problem in (yield from look.checkpoints(visible)):
            suspects[row["_id"]] = None
            is_hurried = is_hurried or problem.kind == "missing"
        report.checkpoints += len(visible)
    yield from look.blobs.follow_named()
    return list(suspects), is_hurried


def _adrift(outline: Outline) -> list[Key]:
    """Checkpoints whose parent is not there."""
    return [
        key
        for key, parent in outline.parents.items()
        if parent and (key[0], parent) not in outline.parents and key not in outline.hidden
    ]


@dataclass(slots=True)
class _Slots:
    """What did not look right among pending writes.

    Attributes:
        broken: Slots of visible checkpoints that are not whole.
        unfinished: `_id` of parts that no slot names.
        orphans: Checkpoints that do not exist and have writes.
    """

    broken: list[_SlotKey] = field(default_factory=list)
    unfinished: list[Any] = field(default_factory=list)
    orphans: dict[Key, None] = field(default_factory=dict)


def _writes(look: Look, outline: Outline) -> Plan[_Slots]:
    slots = _Slots()
    found = pages.Pages(Name.WRITES, look.thread_id, _SLOT, pages.WRITES, pages.LOADED)
    carried: list[Document] = []
    most = look.options.most
    while found.more:
        rows = yield from found.next()
        groups: dict[_SlotKey, list[Document]] = {}
        odd = [row for row in rows if not has_slot(row)]
        text = "a pending write lacks a part of its key"
        tell(look.thread_id, look.report, [(r, Problem("shape", text)) for r in odd], most)
        for row in (*carried, *(row for row in rows if row not in odd)):
            groups.setdefault(_slot_key(row), []).append(row)
        # The documents of the last slot may go on on the next page.
        carried = groups.pop(list(groups)[-1]) if found.more and groups else []
        whole = {}
        for key, group in groups.items():
            at = key[:2]
            if at not in outline.parents:
                slots.orphans[at] = None
            elif at not in outline.hidden:
                whole[key] = group
            slots.unfinished += unnamed(group) if at in outline.parents else []
        slots.broken += [key for key, _ in (yield from _look_at(look, whole))]
        look.report.writes += len(rows)
    return slots


def _slot_key(row: Document) -> _SlotKey:
    return row["checkpoint_ns"], row["checkpoint_id"], row["task_id"], row["idx"]


def _look_at(
    look: Look, groups: Mapping[_SlotKey, list[Document]]
) -> Plan[list[tuple[_SlotKey, Problem]]]:
    problems = []
    if look.options.data:
        # Small ones together; the parts of large ones are read one by one.
        small = {
            row["_id"]: row
            for group in groups.values()
            for row in group
            if row["part"] == 0 and not parts_of(row)
        }
        where = {"thread_id": look.thread_id, "_id": {"$in": list(small)}}
        for row in (yield Find(Name.WRITES, where, {"data": 1})) if small else ():
            small[row["_id"]]["data"] = row.get("data")
    for key, group in groups.items():
        problem = yield from look.slot(group)
        if problem is not None:
            problems.append((key, problem))
    return problems


def _orphans(thread_id: str, named: set[tuple[str, bytes]]) -> Plan[dict[str, list[bytes]]]:
    """Keys of blobs that nobody names, by namespace."""
    orphans: dict[str, list[bytes]] = {}
    fields = {"_id": 0, "checkpoint_ns": 1, "key": 1}
    found = pages.Pages(Name.BLOBS, thread_id, fields, pages.BLOBS, pages.BATCH)
    while found.more:
        for row in (yield from found.next()):
            ns, key = row["checkpoint_ns"], row.get("key")
            if isinstance(key, bytes) and (ns, key) not in named:
                orphans.setdefault(ns, []).append(key)
    return orphans


# --- the second look ---------------------------------------------------------------------------


def _again(
    look: Look, report: Report, oids: Sequence[Any], slots: Sequence[_SlotKey]
) -> Plan[None]:
    """Look once more at what did not look right, and report it."""
    problems: list[At] = []
    for some in pages.batches(oids, pages.LOADED):
        where = {"thread_id": look.thread_id, "_id": {"$in": list(some)}}
        rows = yield Find(Name.CHECKPOINTS, where, _OUTLINE, pages.CHECKPOINTS)
        visible = [row for row in rows if not is_hidden(look.ctx, row)]
        problems += yield from look.checkpoints(visible)
    holes = {row["_id"]: row for row, problem in problems if problem.kind in ("missing", "size")}
    lost = (yield from _lost(look, holes.values())) if holes else set()
    report.stateless += len(lost)
    told = [(row, problem) for row, problem in problems if row["_id"] not in lost]
    for some_slots in pages.batches(slots, pages.LOADED):
        told += yield from _slots_again(look, some_slots)
    report.damaged += len({(row.get("checkpoint_ns"), row.get("checkpoint_id")) for row, _ in told})
    tell(look.thread_id, report, told, look.options.most)


def _lost(look: Look, holes: Iterable[Document]) -> Plan[set[Any]]:
    """Those of which an ancestor is gone, and that still are there after that was seen."""
    holes = list(holes)
    outline = Outline()
    for ns in dict.fromkeys(row["checkpoint_ns"] for row in holes):
        fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1, "parent_checkpoint_id": 1}
        where = {"thread_id": look.thread_id, "checkpoint_ns": ns}
        for row in (yield Find(Name.CHECKPOINTS, where, fields)):
            outline.add(row, hidden=False)
    return {
        row["_id"] for row in holes if outline.is_lost((row["checkpoint_ns"], row["checkpoint_id"]))
    }


def _slots_again(look: Look, slots: Sequence[_SlotKey]) -> Plan[list[At]]:
    names = WRITE_KEY[1:5]
    parts = [dict(zip(names, slot, strict=True)) for slot in slots]
    where = {"thread_id": look.thread_id, "$or": parts}
    groups: dict[_SlotKey, list[Document]] = {}
    for row in (yield Find(Name.WRITES, where, _SLOT)):
        groups.setdefault(_slot_key(row), []).append(row)
    found = yield from _look_at(look, groups)
    keys = {key[:2] for key, _ in found}
    there = (yield from existing(look.thread_id, keys)) if keys else set()
    return [
        ({"checkpoint_ns": key[0], "checkpoint_id": key[1]}, problem)
        for key, problem in found
        if key[:2] in there
    ]


def _count(
    look: Look,
    report: Report,
    slots: _Slots,
    orphans: Mapping[str, Sequence[bytes]],
    adrift: Sequence[Key],
) -> Plan[None]:
    """Count what nobody needs, after a second look at who names it."""
    until = look.ctx.now - look.options.settled
    thread_id = look.thread_id
    named = (yield from closure(thread_id, look.blobs)) if orphans else set()
    for ns, keys in orphans.items():
        for some in pages.batches([key for key in keys if (ns, key) not in named]):
            where = {"checkpoint_ns": ns, "key": {"$in": list(some)}}
            old, recent = yield from _ages(Name.BLOBS, {"thread_id": thread_id, **where}, until)
            report.orphan_blobs += old
            report.recent += recent
    there = yield from existing(thread_id, slots.orphans)
    for ns, ids in pages.grouped(key for key in slots.orphans if key not in there).items():
        for some_ids in pages.batches(ids):
            where = {"checkpoint_ns": ns, "checkpoint_id": {"$in": list(some_ids)}}
            old, recent = yield from _ages(Name.WRITES, {"thread_id": thread_id, **where}, until)
            report.orphan_writes += old
            report.recent += recent
    for some_parts in pages.batches(slots.unfinished):
        where = {"thread_id": thread_id, "_id": {"$in": list(some_parts)}}
        old, _ = yield from _ages(Name.WRITES, where, until)
        report.unfinished_writes += old
    for ns, ids in pages.grouped(adrift).items():
        for some_ids in pages.batches(ids):
            report.parents_gone += yield from _still_adrift(look, ns, list(some_ids))


def _ages(name: Name, where: Document, until: datetime) -> Plan[tuple[int, int]]:
    """How many of some documents are older than a date, and how many are not."""
    rows = yield Find(name, where, {"_id": 0, **_AGE})
    old = sum(age_of(row, until) <= until for row in rows)
    return old, len(rows) - old


def _still_adrift(look: Look, ns: str, ids: list[str]) -> Plan[int]:
    where = {"thread_id": look.thread_id, "checkpoint_ns": ns, "checkpoint_id": {"$in": ids}}
    fields = {"_id": 0, "parent_checkpoint_id": 1}
    rows = yield Find(Name.CHECKPOINTS, where, fields)
    parents = [row["parent_checkpoint_id"] for row in rows if row.get("parent_checkpoint_id")]
    there = yield from existing(look.thread_id, {(ns, parent) for parent in parents})
    return sum((ns, parent) not in there for parent in parents)


def closure(thread_id: str, blobs: Blobs) -> Plan[set[tuple[str, bytes]]]:
    """All blobs that a thread's checkpoints name, in one way or another, at this moment."""
    fields = {"_id": 0, "checkpoint_ns": 1, "checkpoint_id": 1, "blobs.k": 1}
    found = pages.Pages(Name.CHECKPOINTS, thread_id, fields, pages.CHECKPOINTS, pages.BATCH)
    while found.more:
        for row in (yield from found.next()):
            entries = row.get("blobs")
            keys = [e.get("k") for e in entries if isinstance(e, dict)] if entries else []
            blobs.name(row["checkpoint_ns"], [key for key in keys if isinstance(key, bytes)])
    yield from blobs.follow_named()
    return blobs.named
