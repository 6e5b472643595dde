"""Removing what was left behind where something broke off, and nothing else.

What goes, once it is older than a stated age:

- blobs that no checkpoint names, neither as a value nor in a value's chain: a put that broke off
  before its checkpoint, a checkpoint that was put again with other values;
- pending writes whose checkpoint does not exist, and parts of large ones that their slot does not
  name;
- checkpoints that are no state (a value is missing and an ancestor is gone): their thread was
  deleted while a graph ran on it;
- what is left of removals that broke off: marked checkpoints are swept;
- copies that broke off.

Why nobody loses anything
- Keys of blobs are listed *before* the checkpoints are read, so a checkpoint that was saved in
  between counts with all that it names.
- A put that comes later names what it brings along, which is young; what it finds stored, which it
  touches (`touched_at`); and what its parent names, which is named already. The deletion itself
  asks for both dates, so it matters not how much later it comes. Where the parent goes itself,
  being no state, its blobs stay for the next time as long as the thread is in use.
- A copy brings its checkpoints last of all. So a thread that has none, or only copied ones, is left
  alone as a whole as long as anything in it is young. Documents of a copy carry the time at which
  it began; their `_id` tells when they came.
- Where a checkpoint that is state lacks a value, its namespace keeps its blobs: whoever restores
  that value from a backup needs the rest.

The age must be longer than any put, copy or deletion takes, and than clocks differ.

This file is pure: it imports only `codec`, `errors`, `identifiers`, `ops`, `schema` and other
plans, no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from bson import ObjectId

from mongosaver import codec
from mongosaver.errors import ConfigurationError, StateError
from mongosaver.identifiers import Key
from mongosaver.ops import Count, Delete, Find, Plan
from mongosaver.plans import pages
from mongosaver.plans.context import Context
from mongosaver.plans.outline import Outline, existing, is_half_copy
from mongosaver.plans.shapes import (
    OUTLINE,
    age_of,
    chain_of,
    has_slot,
    is_hidden,
    outline_problem,
    parts_of,
)
from mongosaver.plans.sweep import sweep
from mongosaver.schema import FORMAT, WRITE_KEY, Document, Name

OLDER_THAN: Final = timedelta(days=1)
"""The age by default."""

LEAST: Final = timedelta(minutes=10)
"""The least age that is taken: longer than a put takes, than clocks may differ."""


@dataclass(slots=True)
class Collected:
    """What a walk has removed so far, or would remove; it is filled as the walk goes on.

    Attributes:
        threads: Threads that were looked at.
        changed: Those of which something went.
        checkpoints: Checkpoints that went: no state, marked, or of half a copy.
        writes: Documents of pending writes that went.
        blobs: Blobs that went.
        left: Threads of which something was left alone that may be needless, and why.
        last_thread_id: The last thread that was looked at: what `after` takes to go on from here.
    """

    threads: int = 0
    changed: int = 0
    checkpoints: int = 0
    writes: int = 0
    blobs: int = 0
    left: dict[str, str] = field(default_factory=dict)
    last_thread_id: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """What may go: what is older than this, and whether it is counted only."""

    older_than: timedelta
    dry_run: bool = False


def rule(older_than: timedelta = OLDER_THAN, *, dry_run: bool = False) -> Rule:
    """Check an age.

    Raises:
        ConfigurationError: It is too young.
    """
    if older_than < LEAST:
        raise ConfigurationError(
            f"older_than must be at least {LEAST // timedelta(minutes=1)} minutes, got"
            f" {older_than}: what is younger may be part of what is being saved at this moment"
        )
    return Rule(older_than, dry_run)


def thread(ctx: Context, thread_id: str, collected: Collected, rule: Rule) -> Plan[None]:
    """Remove what nobody needs of one thread.

    Args:
        ctx: The call's surroundings.
        thread_id: The thread.
        collected: Is filled, also while the plan runs.
        rule: What may go.
    """
    work = _Work(ctx, thread_id, collected, rule)
    before = (collected.checkpoints, collected.writes, collected.blobs)
    try:
        yield from work.do()
    except StateError as error:
        # A foreign document, say, or a payload that must be known and cannot be opened.
        collected.left[thread_id] = str(error)
    if (collected.checkpoints, collected.writes, collected.blobs) != before:
        collected.changed += 1
        if not rule.dry_run:
            ctx.shared.cache.forget_threads([thread_id])
    collected.threads += 1
    collected.last_thread_id = thread_id


_Blob = tuple[str, bytes]


class _Work:
    """What is known of one thread while it is tidied."""

    def __init__(self, ctx: Context, thread_id: str, collected: Collected, rule: Rule) -> None:
        self.ctx, self.thread_id, self.collected, self.rule = ctx, thread_id, collected, rule
        self.cutoff = ctx.now - rule.older_than
        self.outline = Outline()
        self.rows: dict[Key, _Row] = {}
        self.is_active = False

    def do(self) -> Plan[None]:
        old = {"thread_id": self.thread_id, "deleted_at": {"$lte": self.cutoff}}
        if (yield Find(Name.CHECKPOINTS, old, {"_id": 1}, limit=1)):
            # A sweep takes for granted that documents have their fields.
            yield from self._read()
            removed = yield from sweep(self.ctx, self.thread_id, dry_run=self.rule.dry_run)
            self.collected.checkpoints += removed.checkpoints
            self.collected.writes += removed.writes
            self.collected.blobs += removed.blobs
        stored = yield from self._stored()
        # From here on: what is stored was listed before the checkpoints are read.
        yield from self._read()
        yield from self._half_copy()
        named, holes, unknown = yield from self._named(stored)
        gone = yield from self._stateless(holes)
        # What a checkpoint needs cannot be told where a head is missing.
        unknown -= gone
        spared = {ns for ns, _ in unknown}
        stored = {blob for blob in stored if blob[0] not in spared}
        if unknown and (yield from existing(self.thread_id, unknown)):
            self.collected.left[self.thread_id] = (
                "a value of a checkpoint is missing, so the blobs beside it stay; see verify"
            )
        if gone and not self.is_active:
            named = yield from self._named_by(key for key in self.rows if key not in gone)
        yield from self._blobs(stored - named)
        yield from self._writes()

    # --- reading

    def _read(self) -> Plan[None]:
        """Read the outline of all checkpoints."""
        self.outline, self.rows = Outline(), {}
        found = pages.Pages(
            Name.CHECKPOINTS, self.thread_id, OUTLINE, pages.CHECKPOINTS, pages.BATCH
        )
        while found.more:
            for row in (yield from found.next()):
                problem = outline_problem(row)
                if problem is not None:
                    raise StateError(
                        f"checkpoint {row.get('checkpoint_id')!r} of thread {self.thread_id!r}:"
                        f" {problem.text}. The thread is left alone; see verify."
                    )
                hidden = is_hidden(self.ctx, row)
                self.outline.add(row, hidden=hidden)
                made = _came(row, row["created_at"])
                self.is_active = self.is_active or made > self.cutoff
                heads = tuple(entry["k"] for entry in row["blobs"])
                key = (row["checkpoint_ns"], row["checkpoint_id"])
                self.rows[key] = _Row(row["_id"], row["created_at"], heads)

    def _stored(self) -> Plan[set[_Blob]]:
        """Keys of all blobs."""
        stored: set[_Blob] = set()
        fields = {"_id": 0, "checkpoint_ns": 1, "key": 1}
        keys = pages.Pages(Name.BLOBS, self.thread_id, fields, pages.BLOBS, pages.BATCH)
        while keys.more:
            rows = yield from keys.next()
            found = ((row["checkpoint_ns"], row.get("key")) for row in rows)
            stored.update((ns, key) for ns, key in found if isinstance(key, bytes))
        return stored

    def _named(
        self, stored: Collection[_Blob]
    ) -> Plan[tuple[set[_Blob], dict[Key, _Blob], set[Key]]]:
        """What checkpoints name; those that lack something; those of which a head is missing."""
        chains = yield from self._chains(self.rows)
        named = set(chains)
        for (ns, _), chain in chains.items():
            named.update((ns, key) for key in chain or ())
        # What was stored since the keys were listed is there, too.
        absent = {blob for blob in named if blob not in stored}
        absent -= yield from self._there(absent)
        holes: dict[Key, _Blob] = {}
        unknown: set[Key] = set()
        for at, row in self.rows.items() if absent else ():
            for head in row.heads:
                chain = chains[at[0], head]
                missing = [key for key in (*(chain or ()), head) if (at[0], key) in absent]
                if missing and at not in self.outline.hidden:
                    holes[at] = (at[0], missing[0])
                    if chain is None:
                        unknown.add(at)
        return named, holes, unknown

    def _named_by(self, keys: Iterable[Key]) -> Plan[set[_Blob]]:
        """What some checkpoints name."""
        chains = yield from self._chains(keys)
        named = set(chains)
        for (ns, _), chain in chains.items():
            named.update((ns, key) for key in chain or ())
        return named

    def _chains(self, keys: Iterable[Key]) -> Plan[dict[_Blob, tuple[bytes, ...] | None]]:
        """The chain of each head that checkpoints name; None for one that is missing."""
        chains: dict[_Blob, tuple[bytes, ...] | None] = {}
        for at in keys:
            chains.update(((at[0], head), None) for head in self.rows[at].heads)
        same: dict[bytes, bytes] = {}
        fields = {"_id": 0, "format": 1, "checkpoint_ns": 1, "key": 1, "chain": 1}
        for ns, heads in pages.grouped(chains).items():
            for some in pages.batches(heads):
                for row in (yield Find(Name.BLOBS, self._keys(ns, some), fields)):
                    codec.check_format(row, "blobs collection")
                    chain = tuple(same.setdefault(key, key) for key in chain_of(row))
                    chains[row["checkpoint_ns"], row["key"]] = chain
        return chains

    def _there(self, blobs: Iterable[_Blob]) -> Plan[set[_Blob]]:
        there: set[_Blob] = set()
        fields = {"_id": 0, "checkpoint_ns": 1, "key": 1}
        for ns, keys in pages.grouped(blobs).items():
            for some in pages.batches(keys):
                for row in (yield Find(Name.BLOBS, self._keys(ns, some), fields)):
                    there.add((row["checkpoint_ns"], row["key"]))
        return there

    def _keys(self, ns: str, keys: Sequence[bytes]) -> Document:
        return {"thread_id": self.thread_id, "checkpoint_ns": ns, "key": {"$in": list(keys)}}

    # --- removing

    def _remove(self, name: Name, where: Document) -> Plan[int]:
        """Remove what is old enough, by the deletion's own condition."""
        old = {
            "format": FORMAT,
            "created_at": {"$lte": self.cutoff},
            "touched_at": {"$not": {"$gt": self.cutoff}},
        }
        op = Count if self.rule.dry_run else Delete
        count: int = yield op(name, {"thread_id": self.thread_id, **where, **old})
        return count

    def _half_copy(self) -> Plan[None]:
        """Remove the checkpoints of a copy that broke off; what they leave are orphans."""
        outline = self.outline
        source = next(iter(outline.sources), None)
        if source is None or len(outline.sources) > 1 or self.is_active:
            return
        until = outline.copied_at
        if until is None or not (yield from is_half_copy(self.ctx, self.thread_id, source, until)):
            return
        where: Document = {"copied_from": source}
        self.collected.checkpoints += yield from self._remove(Name.CHECKPOINTS, where)
        if self.rule.dry_run:
            self.outline, self.rows = Outline(), {}
        else:
            # Somebody may have gone on from one of them meanwhile.
            yield from self._read()

    def _stateless(self, holes: dict[Key, _Blob]) -> Plan[set[Key]]:
        """Remove checkpoints that lack a value and have lost an ancestor."""
        old = {
            key: blob
            for key, blob in holes.items()
            if self.outline.is_lost(key) and self.rows[key].created_at <= self.cutoff
        }
        if not old:
            return set()
        # Once more: a put may have stored again what was missing.
        there = yield from self._there(old.values())
        lost = [key for key, blob in old.items() if blob not in there]
        for some in pages.batches(lost):
            where = {"_id": {"$in": [self.rows[key].oid for key in some]}}
            # Their children keep their parent: that it is gone tells what they are.
            self.collected.checkpoints += yield from self._remove(Name.CHECKPOINTS, where)
        for key in lost:
            self.outline.parents.pop(key, None)
        return set(lost)

    def _blobs(self, orphans: Collection[_Blob]) -> Plan[None]:
        if orphans and (yield from self._may_be_a_copy(Name.BLOBS, orphans)):
            return
        for ns, keys in pages.grouped(sorted(orphans)).items():
            for some in pages.batches(keys):
                where = {"checkpoint_ns": ns, "key": {"$in": list(some)}}
                self.collected.blobs += yield from self._remove(Name.BLOBS, where)

    def _may_be_a_copy(self, name: Name, orphans: Iterable[_Blob]) -> Plan[bool]:
        """Whether checkpoints may be on their way that name all this."""
        if None in self.outline.sources:
            return False
        if self.is_active:
            return True
        fields = {"_id": 1, "created_at": 1, "touched_at": 1}
        for ns, keys in pages.grouped(orphans).items():
            for some in pages.batches(keys):
                for row in (yield Find(name, self._keys(ns, some), fields)):
                    if _came(row, self.cutoff) > self.cutoff:
                        self.is_active = True
                        return True
        return False

    def _writes(self) -> Plan[None]:
        """Remove writes without a checkpoint, and parts that their slot does not name."""
        fields = dict.fromkeys(WRITE_KEY[1:], 1)
        orphans: dict[Key, None] = {}
        parts: list[Document] = []
        newest = self.cutoff
        found = pages.Pages(Name.WRITES, self.thread_id, fields, pages.WRITES, pages.BATCH)
        while found.more:
            for row in (yield from found.next()):
                if not has_slot(row):
                    continue  # no identifier of ours
                at = (row["checkpoint_ns"], row["checkpoint_id"])
                if at not in self.outline.parents:
                    orphans[at] = None
                    newest = max(newest, _came(row, self.cutoff))
                elif row["part"] != 0:
                    parts.append(row)
        yield from self._parts(parts)
        if (self.is_active or newest > self.cutoff) and None not in self.outline.sources:
            return  # a copy may be on its way
        there = set() if self.rule.dry_run else (yield from existing(self.thread_id, orphans))
        for ns, ids in pages.grouped(key for key in orphans if key not in there).items():
            for some in pages.batches(ids):
                where = {"checkpoint_ns": ns, "checkpoint_id": {"$in": list(some)}}
                self.collected.writes += yield from self._remove(Name.WRITES, where)

    def _parts(self, parts: Sequence[Document]) -> Plan[None]:
        """Remove parts of slots that have another content.

        A slot whose part 0 is not there may still be written, and is left alone.
        """
        names = WRITE_KEY[1:5]
        for some in pages.batches(parts, pages.LOADED):
            slots = {tuple(row[name] for name in names): None for row in some}
            where = {
                "thread_id": self.thread_id,
                "$or": [dict(zip(names, slot, strict=True), part=0) for slot in slots],
            }
            named: dict[Any, Collection[int]] = {}
            for row in (yield Find(Name.WRITES, where, {**dict.fromkeys(names, 1), "parts": 1})):
                named[tuple(row[name] for name in names)] = set(parts_of(row))
            dead = []
            for row in some:
                slot = tuple(row[name] for name in names)
                if slot in named and row["part"] not in named[slot]:
                    dead.append(row["_id"])
            if dead:
                self.collected.writes += yield from self._remove(
                    Name.WRITES, {"_id": {"$in": dead}}
                )


@dataclass(frozen=True, slots=True)
class _Row:
    """What is needed of a checkpoint: its `_id`, when it was put, and its heads."""

    oid: Any
    created_at: datetime
    heads: tuple[bytes, ...]


def _came(row: Document, unknown: datetime) -> datetime:
    """When a document came here or was needed, whatever else it says."""
    oid = row.get("_id")
    dates = [unknown, age_of(row, unknown)]
    if isinstance(oid, ObjectId):
        dates.append(oid.generation_time)
    return max(dates)
