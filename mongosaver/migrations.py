"""Migrations: how the collections come to have the indexes that this version needs.

The schema has a history: numbered steps, each applied once and recorded in `<name>.migrations`,
so that whoever looks there knows what a database can do. A number is given once and for ever; it
is no position in a list. Each migration belongs to one of two phases:

- `expand` adds something. Older code does not mind, so it runs *before* new code is deployed.
- `contract` takes something away, or makes it stricter. Only code that does without it may be
  running, so it runs *after* the new code is everywhere. An index is hidden by one contract
  migration and dropped by a later one: until then it is back at once.

Whatever a step finds done already stays as it is, so a migration that broke off anywhere is
finished by running it again, and a database that was made without a record is taken on without
building anything.

One runner works at a time. Its lock is a lease by the server's clock, renewed while the server
builds an index; the lease of a runner that died runs out, and the next one takes over. If its
build is still going on, the server lets the two share it.

What savers need is the expanded schema, and that is what their first write looks for. What is to
be contracted they can live with, however long it stays.

This file is pure: it imports only `ops`, `schema`, `codec`, `errors` and `plans.context`, and does
no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final, Literal

from pymongo.errors import DuplicateKeyError, OperationFailure

from mongosaver import codec
from mongosaver.errors import (
    CollationRefused,
    ForeignDocument,
    MigrationLocked,
    MongoSaverError,
    SchemaOutOfDate,
    SchemaTooNew,
    SetupRefused,
)
from mongosaver.ops import (
    Aggregate,
    BuildProgress,
    Collections,
    CollMod,
    CreateCollection,
    CreateIndexes,
    Delete,
    DropIndex,
    Find,
    FindOneAndUpdate,
    ListIndexes,
    Plan,
    Replace,
    ShardCollection,
    Sleep,
)
from mongosaver.plans.context import Context
from mongosaver.schema import (
    BEING_REMOVED,
    BY_RUN,
    COMPRESSED,
    EXPIRY,
    FORMAT,
    NEWEST,
    NEWEST_OF_THREAD,
    SHARD_KEY,
    SLOTS,
    VALUES,
    Document,
    Index,
    Name,
)

LEASE: Final = 30.0
"""Seconds after which the lock of a runner that is not heard of is anybody's."""

RENEW: Final = 1.0
"""Seconds between two renewals while an index is built; as often its progress is told."""

PATIENCE: Final = 60.0
"""Seconds to wait for another runner; longer than its lease, so that a dead one is no obstacle."""

_LOCK: Final = "lock"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_STORED: Final = (Name.CHECKPOINTS, Name.WRITES, Name.BLOBS)

_UNAUTHORIZED: Final = 13
_EXISTS: Final = 48
_DUPLICATE_KEY: Final = 11000
_CONFLICTS: Final = frozenset({67, 85, 86})
_NO_PIPELINES: Final = frozenset({9, 14, 40, 59, 72, 115, 238, 303, 304, 17276, 40324})
"""Codes by which a server says that it knows no pipelines in updates, or not `$$NOW`:
FailedToParse, TypeMismatch (before 4.2), ConflictingUpdateOperators (Cosmos DB), CommandNotFound,
InvalidOptions, CommandNotSupported, NotImplemented, two of DocumentDB's, unknown variables and
stages."""

Phase = Literal["expand", "contract"]
Indexes = Mapping[Name, Sequence[Index]]


@dataclass(frozen=True, slots=True)
class Runner:
    """Who migrates what: facts that a plan cannot know by itself.

    Attributes:
        id: Unlike that of any other run.
        host: The machine.
        pid: The process.
        version: The package's version.
        database: The database's name.
        collection: The name of the user's collection.
        now: When it began, by its own clock; used where the server's cannot be.
    """

    id: str
    host: str
    pid: int
    version: str
    database: str
    collection: str
    now: datetime = _EPOCH

    @property
    def command(self) -> str:
        """The command that migrates."""
        return f"mongosaver migrate --db {self.database} --collection {self.collection}"

    def full_name(self, name: Name) -> str:
        """The name of one of the collections."""
        return self.collection + name.value


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema's history.

    Attributes:
        number: Its number, for ever.
        name: What it is about, in one word.
        phase: Whether it is safe before the new code (`expand`) or only after it (`contract`).
        steps: The plan that does it.
        makes: The indexes that it makes.
        hides: The indexes that queries do without from now on.
        drops: The indexes that it drops; an earlier migration has hidden them.
    """

    number: int
    name: str
    phase: Phase
    steps: Callable[[Work], Plan[None]]
    makes: Indexes = field(default_factory=dict)
    hides: Indexes = field(default_factory=dict)
    drops: Indexes = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


@dataclass(frozen=True, slots=True)
class Applied:
    """A migration as it is recorded.

    Attributes:
        number: Its number.
        name: Its name.
        phase: Its phase, which tells older code whether it may go on.
        at: When it was done, by the server's clock.
        milliseconds: How long it took.
        version: The mongosaver that did it.
        notes: What went otherwise than planned.
    """

    number: int
    name: str
    phase: str
    at: datetime
    milliseconds: int
    version: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the lock: a process, since and until when, by the server's clock."""

    host: str
    pid: int
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run is doing.

    Attributes:
        text: In words.
        migration: The migration, once there is one.
        step: What a build is at, in the server's words.
        done: Of what the server counts: how much is done,
        total: and of how much.
    """

    text: str
    migration: Migration | None = None
    step: str = ""
    done: int | None = None
    total: int | None = None


Tell = Callable[[Progress], object]


@dataclass(slots=True)
class Work:
    """A migration at work: what its steps are given, and what they have to remark.

    Attributes:
        migration: The migration.
        runner: Who does it.
        tell: Is told what is going on.
        shard: Whether collections that are made are to be sharded.
        locked: Whether its runner has the lock, which it has to keep.
        notes: What went otherwise than planned.
    """

    migration: Migration
    runner: Runner
    tell: Tell | None
    shard: bool = False
    locked: bool = True
    notes: list[str] = field(default_factory=list)


# --- the history -------------------------------------------------------------------------------


def _collections(work: Work) -> Plan[None]:
    """Make the collections, compressed, and sharded if asked for, where the server can do that."""
    there = yield Collections()
    for name in [each for each in _STORED if each not in there]:
        yield from _create(work, name)
        if work.shard:
            try:
                yield ShardCollection(name, SHARD_KEY)
            except OperationFailure as error:
                work.notes.append(
                    f"{work.runner.full_name(name)}: not sharded, because the server refuses it"
                    f" ({_reason(error)})"
                )


def _create(work: Work, name: Name) -> Plan[None]:
    try:
        yield CreateCollection(name, COMPRESSED)
    except OperationFailure as error:
        if error.code == _UNAUTHORIZED:
            raise
        if error.code != _EXISTS:
            work.notes.append(
                f"{work.runner.full_name(name)}: compressed by the server's default, because it"
                f" refuses zstd ({_reason(error)})"
            )
            yield CreateCollection(name, {})


def make(work: Work) -> Plan[None]:
    """Make the indexes of `makes` that are missing."""
    for name, indexes in work.migration.makes.items():
        yield from _ensure(work, name, indexes)


def hide(work: Work) -> Plan[None]:
    """Hide the indexes of `hides` from queries. MongoDB keeps them up to date meanwhile."""
    for name, indexes in work.migration.hides.items():
        there = yield ListIndexes(name)
        for index in indexes:
            for found in _twins(index, there):
                if not found.get("hidden"):
                    yield CollMod(name, {"name": found["name"], "hidden": True})


def drop(work: Work) -> Plan[None]:
    """Drop the indexes of `drops`.

    Raises:
        SetupRefused: One is not hidden: somebody needed it.
    """
    for name, indexes in work.migration.drops.items():
        there = yield ListIndexes(name)
        for index in indexes:
            for found in _twins(index, there):
                if not found.get("hidden"):
                    raise SetupRefused(
                        f"index {found['name']!r} of {work.runner.full_name(name)!r} was to be"
                        " dropped and is not hidden any more, so somebody needs it."
                        f" {_in_shell(work.runner, name)}.hideIndex({found['name']!r}) when that"
                        " is over, then run this again."
                    )
                yield DropIndex(name, found["name"])


MIGRATIONS: Final = (
    Migration(1, "collections", "expand", _collections),
    Migration(
        2,
        "keys",
        "expand",
        make,
        makes={
            Name.CHECKPOINTS: (NEWEST_OF_THREAD,),
            Name.WRITES: (SLOTS,),
            Name.BLOBS: (VALUES,),
        },
    ),
    Migration(3, "listing", "expand", make, makes={Name.CHECKPOINTS: (NEWEST, BEING_REMOVED)}),
    Migration(
        4, "runs", "expand", make, makes={Name.CHECKPOINTS: (BY_RUN,), Name.WRITES: (BY_RUN,)}
    ),
    Migration(5, "expiry", "expand", make, makes=dict.fromkeys(_STORED, (EXPIRY,))),
)
"""Every migration there ever was, in order. To add one: the next number, never an old one anew."""


# --- indexes as they are -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """An index of ours beside what the server has.

    Attributes:
        collection: Where.
        index: What is wanted.
        state: `there`; `missing`; `otherwise`, which `collMod` mends; or `in the way`, which
            nobody but a person can.
        name: The name of the index that is there.
        detail: What is otherwise.
        mend: How, in the words of `collMod`.
    """

    collection: Name
    index: Index
    state: Literal["there", "missing", "otherwise", "in the way"]
    name: str = ""
    detail: str = ""
    mend: Document = field(default_factory=dict)


def _twins(index: Index, there: Iterable[Document]) -> list[Document]:
    """The indexes with the same keys in the same order, whatever their names."""
    return [found for found in there if tuple(found["key"].items()) == index.keys]


def compare(name: Name, index: Index, there: Sequence[Document]) -> Found:
    """How an index that is wanted compares to those that are there."""
    twins = [_compared(name, index, found) for found in _twins(index, there)]
    for state in ("there", "otherwise", "in the way"):
        for twin in twins:
            if twin.state == state:
                return twin
    for found in there:
        if found["name"] == index.name:
            keys = ", ".join(f"{field}: {way}" for field, way in found["key"].items())
            return Found(name, index, "in the way", index.name, f"its keys are {keys}")
    return Found(name, index, "missing")


def _compared(name: Name, index: Index, found: Document) -> Found:
    other, mend = list[str](), dict[str, Any]()
    if bool(found.get("unique")) != index.unique:
        other.append("it is unique" if found.get("unique") else "it is not unique")
    partial = found.get("partialFilterExpression")
    # One without a filter has all that one with a filter has.
    if partial is not None and partial != index.partial:
        other.append(f"it holds only documents that match {json.dumps(partial, default=str)}")
    if found.get("sparse"):
        other.append("it is sparse")
    if found.get("collation"):
        other.append(f"it has the collation {found['collation'].get('locale')!r}")
    if (found.get("expireAfterSeconds") is not None) and not index.expires:
        other.append(f"it removes documents after {found['expireAfterSeconds']} s")
    changes = []
    if index.expires and found.get("expireAfterSeconds") != 0:
        mend["expireAfterSeconds"] = 0
        changes.append(f"expireAfterSeconds is {found.get('expireAfterSeconds')}, not 0")
    if found.get("hidden"):
        mend["hidden"] = False
        changes.append("it is hidden")
    if other:
        return Found(name, index, "in the way", found["name"], "; ".join(other))
    if mend:
        mend = {"name": found["name"], **mend}
        return Found(name, index, "otherwise", found["name"], "; ".join(changes), mend)
    return Found(name, index, "there", found["name"])


def _ensure(work: Work, name: Name, indexes: Sequence[Index]) -> Plan[None]:
    """Make indexes that are missing, and mend what can be mended.

    Raises:
        SetupRefused: Another index is in the way, or documents have equal keys.
        MigrationLocked: The lock was lost meanwhile.
    """
    there = yield ListIndexes(name)
    found = [compare(name, index, there) for index in indexes]
    for each in found:
        if each.state == "in the way":
            raise _in_the_way(work.runner, each)
    for each in found:
        if each.state == "otherwise":
            _tell(work, f"{work.runner.full_name(name)}: changing index {each.name}")
            try:
                yield CollMod(name, each.mend)
            except OperationFailure as error:
                if error.code == _UNAUTHORIZED:
                    raise
                raise _in_the_way(work.runner, each) from error
    missing = [each.index for each in found if each.state == "missing"]
    if not missing:
        return
    what = f"{work.runner.full_name(name)}: building {', '.join(index.name for index in missing)}"
    _tell(work, what)
    try:
        yield CreateIndexes(name, missing, lambda: _meanwhile(work, name, what), RENEW)
    except OperationFailure as error:
        if error.code == _DUPLICATE_KEY:
            raise (yield from _duplicates(work.runner, name, missing, error)) from error
        raise


def _meanwhile(work: Work, name: Name, what: str) -> Plan[None]:
    """What is to be done again and again while the server builds an index."""
    if work.locked:
        yield from _renew(work.runner)
    if work.tell is None:
        return
    try:
        build = yield BuildProgress(name)
    except OperationFailure:  # not everybody may see it
        return
    if build is not None:
        step = build["msg"].removeprefix("Index Build: ").partition(" Index Build:")[0]
        work.tell(Progress(what, work.migration, step, build.get("done"), build.get("total")))


def _tell(work: Work, text: str) -> None:
    if work.tell is not None:
        work.tell(Progress(text, work.migration))


# --- the lock ----------------------------------------------------------------------------------


def _lease(runner: Runner) -> Plan[Document]:
    """The lock after an attempt to take or to renew it: whoever holds it is its `owner`."""
    me = {"$literal": runner.id}
    free = {
        "$or": [
            {"$lte": [{"$ifNull": ["$until", _EPOCH]}, "$$NOW"]},
            {"$eq": ["$owner", me]},
        ]
    }

    def mine(new: object, field: str) -> Document:
        return {"$cond": ["$mine", new, f"${field}"]}

    mine_already = {"$eq": ["$owner", me]}
    lock: Document = yield FindOneAndUpdate(
        Name.MIGRATIONS,
        {"_id": _LOCK},
        [
            {"$set": {"mine": free, "format": FORMAT}},
            {
                "$set": {
                    "since": {"$cond": [mine_already, "$since", mine("$$NOW", "since")]},
                    "host": mine({"$literal": runner.host}, "host"),
                    "pid": mine({"$literal": runner.pid}, "pid"),
                    "version": mine({"$literal": runner.version}, "version"),
                    "renewed": mine("$$NOW", "renewed"),
                    "until": mine({"$add": ["$$NOW", int(LEASE * 1000)]}, "until"),
                    "owner": mine(me, "owner"),
                }
            },
            {"$unset": "mine"},
        ],
    )
    return lock


def _acquire(runner: Runner, wait: float, tell: Tell | None) -> Plan[Document]:
    waited, pause = 0.0, 0.05
    while True:
        try:
            lock = yield from _lease(runner)
        except DuplicateKeyError:  # two came first at the same moment
            continue
        if lock["owner"] == runner.id:
            return lock
        if waited >= wait:
            raise _locked(lock, "Wait until it is done, and try again.")
        if tell is not None:
            tell(Progress(f"waiting for process {lock['pid']} on {lock['host']}"))
        pause = min(pause, wait - waited)
        yield Sleep(pause)
        waited, pause = waited + pause, min(pause * 2, 0.5)


def _renew(runner: Runner) -> Plan[Document]:
    """Keep the lock; somebody may have thought that this runner was dead."""
    lock = yield from _lease(runner)
    if lock["owner"] != runner.id:
        raise _locked(
            lock,
            f"It took over from here, because this process was not heard of for {LEASE:.0f}"
            " seconds. Run this again when it is done.",
        )
    return lock


def release(runner: Runner) -> Plan[None]:
    """Give the lock back, if this runner has it: what whoever breaks a run off does last."""
    yield Delete(Name.MIGRATIONS, {"_id": _LOCK, "owner": runner.id})


def _locked(lock: Document, remedy: str) -> MigrationLocked:
    since = lock["since"].isoformat(sep=" ", timespec="seconds")
    return MigrationLocked(lock["host"], lock["pid"], since, remedy)


# --- the record --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """What is recorded, beside what this version knows.

    Attributes:
        applied: The migrations that were applied, by number.
        pending: Those that this version knows and that were not.
        newer: Those of `applied` that this version does not know.
        holder: Who holds the lock, or held it when it broke off.
        indexes: The indexes that the applied migrations come to, beside what there is.
    """

    applied: tuple[Applied, ...]
    pending: tuple[Migration, ...]
    newer: tuple[Applied, ...]
    holder: Holder | None = None
    indexes: tuple[Found, ...] = ()

    @property
    def needed(self) -> tuple[Migration, ...]:
        """What is pending and savers of this version need."""
        return tuple(migration for migration in self.pending if migration.phase == "expand")

    @property
    def amiss(self) -> tuple[Found, ...]:
        """Indexes that an applied migration made and that are not as it made them."""
        return tuple(found for found in self.indexes if found.state != "there")


def recorded(documents: Iterable[Document], migrations: Sequence[Migration]) -> Status:
    """The status as far as the migrations collection tells it."""
    applied, holder = [], None
    for document in documents:
        if document["_id"] == _LOCK:
            holder = Holder(*(document[key] for key in ("host", "pid", "since", "until")))
        elif type(document["_id"]) is int:
            applied.append(
                Applied(
                    document["_id"],
                    document["name"],
                    document["phase"],
                    document["applied_at"],
                    int(document["milliseconds"]),
                    document["version"],
                    tuple(document.get("notes", ())),
                )
            )
    applied.sort(key=lambda each: each.number)
    done = {each.number for each in applied}
    known = {migration.number for migration in migrations}
    return Status(
        applied=tuple(applied),
        pending=tuple(m for m in migrations if m.number not in done),
        newer=tuple(each for each in applied if each.number not in known),
        holder=holder,
    )


def status(migrations: Sequence[Migration] = MIGRATIONS) -> Plan[Status]:
    """What was applied, what is pending, who is at it, and whether the indexes are as recorded."""
    found = recorded((yield Find(Name.MIGRATIONS, {})), migrations)
    done = {each.number for each in found.applied}
    indexes = yield from _look([m for m in migrations if m.number in done])
    return Status(found.applied, found.pending, found.newer, found.holder, tuple(indexes))


def _look(applied: Sequence[Migration]) -> Plan[list[Found]]:
    """The indexes that migrations come to, beside what there is."""
    found = []
    for name, indexes in expected(applied).items():
        there = yield ListIndexes(name)
        found += [compare(name, index, there) for index in indexes]
    return found


def expected(applied: Iterable[Migration]) -> dict[Name, tuple[Index, ...]]:
    """The indexes that these migrations come to, in order."""
    indexes: dict[Name, list[Index]] = {}
    for migration in applied:
        for name, made in migration.makes.items():
            indexes.setdefault(name, []).extend(made)
        for gone in (migration.hides, migration.drops):
            for name, dropped in gone.items():
                indexes[name] = [i for i in indexes.get(name, ()) if i not in dropped]
    return {name: tuple(each) for name, each in indexes.items()}


def _record(work: Work, began: datetime) -> Plan[datetime]:
    """Record that a migration is applied, and return when, by the server's clock."""
    migration = work.migration
    record = yield FindOneAndUpdate(
        Name.MIGRATIONS,
        {"_id": migration.number},
        [
            {
                "$set": {
                    "format": FORMAT,
                    "name": migration.name,
                    "phase": migration.phase,
                    "applied_at": "$$NOW",
                    "milliseconds": {"$subtract": ["$$NOW", began]},
                    "version": {"$literal": work.runner.version},
                    **({"notes": {"$literal": work.notes}} if work.notes else {}),
                }
            }
        ],
    )
    applied: datetime = record["applied_at"]
    return applied


def _record_plainly(work: Work) -> Plan[None]:
    """The same by this process's clock, on a server that computes nothing in an update."""
    migration = work.migration
    yield Replace(
        Name.MIGRATIONS,
        {"_id": migration.number},
        {
            "_id": migration.number,
            "format": FORMAT,
            "name": migration.name,
            "phase": migration.phase,
            "applied_at": work.runner.now,
            "milliseconds": 0,
            "version": work.runner.version,
            "notes": [*work.notes, "applied without a lock, which the server cannot keep"],
        },
    )


# --- running -----------------------------------------------------------------------------------


def first_use(
    ctx: Context,
    runner: Runner,
    *,
    auto: bool,
    migrations: Sequence[Migration] = MIGRATIONS,
) -> Plan[None]:
    """See to it that the schema is the one that this version needs; what a first write does.

    Args:
        ctx: The saver's surroundings, which remember that it is.
        runner: Who asks.
        auto: Whether to migrate if it is not, and to mend indexes.
        migrations: The history.

    Raises:
        SchemaOutOfDate: Migrations are pending, and not `auto`.
        SchemaTooNew: A newer version has taken something away.
        CollationRefused, ForeignDocument, MigrationLocked, SetupRefused: See `migrate`.
    """
    try:
        found = recorded((yield Find(Name.MIGRATIONS, {})), migrations)
    except OperationFailure as error:
        raise _explained(runner, error) from error
    _refuse_newer(found)
    if not auto and found.needed:
        for document in (yield Find(Name.CHECKPOINTS, {}, limit=1)):
            _check_ours(document)
        raise _out_of_date(runner, found)
    if auto and (found.needed or (yield from _is_amiss(found, migrations))):
        yield from migrate(runner, migrations=migrations)
    ctx.shared.ready = True


def _is_amiss(found: Status, migrations: Sequence[Migration]) -> Plan[bool]:
    """Whether an index was removed or changed since; as far as this user may see that."""
    done = {each.number for each in found.applied}
    try:
        indexes = yield from _look([m for m in migrations if m.number in done])
    except OperationFailure as error:
        if error.code == _UNAUTHORIZED:
            return False
        raise
    return any(each.state != "there" for each in indexes)


def migrate(
    runner: Runner,
    *,
    to: int | None = None,
    wait: float = PATIENCE,
    tell: Tell | None = None,
    shard: bool = False,
    rehearse: bool = False,
    migrations: Sequence[Migration] = MIGRATIONS,
) -> Plan[tuple[Migration, ...]]:
    """Apply what is pending, in order, and mend what was removed since.

    Args:
        runner: Who does it.
        to: The last number to apply, of either phase. By default all that only add something;
            what takes something away waits until it is asked for, unless the collections are new.
        wait: Seconds to wait for another runner.
        tell: Called with what is going on.
        shard: Whether collections that are made now are sharded by thread, where that is possible.
        rehearse: Whether to do without lock and record, for a driver that writes nothing.
        migrations: The history.

    Returns:
        The migrations that were applied now.

    Raises:
        CollationRefused: A collection has a default collation.
        ForeignDocument: The collection holds documents of something else.
        MigrationLocked: Another runner is still at it.
        SchemaTooNew: A newer version has taken something away.
        SetupRefused: The server refuses; the message says why and what helps.
    """
    try:
        new = yield from _check_collections()
        if rehearse:
            return (yield from _apply(_Run(runner, to, None, shard, migrations, new)))
        run = _Run(runner, to, tell, shard, migrations, new, records=True)
        try:
            run.lock = yield from _acquire(runner, wait, tell)
        except OperationFailure as error:
            if error.code not in _NO_PIPELINES:
                raise
            # Without a clock of the server's there is no lease. Steps can be repeated, and the
            # server itself lets two that build one index share it.
            return (yield from _apply(run))
        try:
            done = yield from _apply(run)
        except (OperationFailure, MongoSaverError):
            # Nobody needs to wait for a lease to run out that nobody uses.
            with suppress(OperationFailure):
                yield from release(runner)
            raise
        yield from release(runner)
    except OperationFailure as error:
        explained = _explained(runner, error)
        if explained is error:
            raise
        raise explained from error
    return done


def _check_collections() -> Plan[bool]:
    """Whether there are none yet; those that are there are looked at."""
    there = yield Collections()
    for found in there.values():
        if found.get("type", "collection") != "collection":
            raise SetupRefused(
                f"{found['name']!r} is a {found['type']}; checkpoints need a plain collection."
            )
        collation = found.get("options", {}).get("collation")
        if collation:
            raise CollationRefused(
                f"collection {found['name']!r} has the default collation"
                f" {collation.get('locale')!r}, under which different thread ids can be equal."
                " Use a collection without one."
            )
    for document in (yield Find(Name.CHECKPOINTS, {}, limit=1)):
        _check_ours(document)
    return not any(name in there for name in _STORED)


@dataclass(slots=True)
class _Run:
    """One call of `migrate`: its options, whether the collections are new, and the lock it has."""

    runner: Runner
    to: int | None
    tell: Tell | None
    shard: bool
    migrations: Sequence[Migration]
    new: bool
    records: bool = False
    lock: Document | None = None

    def work(self, migration: Migration) -> Work:
        locked = self.lock is not None
        return Work(migration, self.runner, self.tell, self.shard, locked)


def _apply(run: _Run) -> Plan[tuple[Migration, ...]]:
    found = recorded((yield Find(Name.MIGRATIONS, {})), run.migrations)
    _refuse_newer(found)
    done = {each.number for each in found.applied}
    yield from _mend(run, [m for m in run.migrations if m.number in done])
    if run.to is not None:
        chosen = [m for m in found.pending if m.number <= run.to]
    else:
        chosen = list(found.pending if run.new else found.needed)
    if done and chosen and run.lock is not None:
        run.lock = yield from _renew(run.runner)
    began: Any = run.lock and run.lock["renewed"]
    for migration in chosen:
        work = run.work(migration)
        _tell(work, f"migration {migration}")
        yield from migration.steps(work)
        if run.lock is None:
            if run.records:
                yield from _record_plainly(work)
            continue
        began = yield from _record(work, began)
        # As long as there is time left nobody else can have taken the lock.
        if (run.lock["until"] - began).total_seconds() < LEASE / 2:
            run.lock = yield from _renew(run.runner)
    return tuple(chosen)


def _mend(run: _Run, applied: Sequence[Migration]) -> Plan[None]:
    """Make indexes again that an applied migration made and that are gone."""
    for name, indexes in expected(applied).items():
        yield from _ensure(run.work(applied[-1]), name, indexes)


# --- what is said when it cannot go on ---------------------------------------------------------


def _refuse_newer(found: Status) -> None:
    breaking = [each for each in found.newer if each.phase != "expand"]
    if breaking:
        last = breaking[-1]
        raise SchemaTooNew(
            f"migration {last.number} {last.name!r} of mongosaver {last.version} was applied to"
            f" these collections at {last.at.isoformat(sep=' ', timespec='seconds')}, which"
            " older versions such as this one cannot do without. Install mongosaver"
            f" {last.version} or later."
        )


def _out_of_date(runner: Runner, found: Status) -> SchemaOutOfDate:
    pending = ", ".join(str(migration) for migration in found.needed)
    last = f"at migration {found.applied[-1].number}" if found.applied else "not set up"
    return SchemaOutOfDate(
        f"collection {runner.collection!r} of database {runner.database!r} is {last}; this version"
        f" also needs: {pending}. Run `{runner.command}` as a user who may make indexes (or"
        " setup() of a saver), or use auto_setup=True."
    )


def _check_ours(document: Document) -> None:
    try:
        codec.check_format(document, "checkpoints collection")
    except ForeignDocument as error:
        raise ForeignDocument(
            f"{error} The threads in it have to be imported before mongosaver can go on with them."
        ) from None


def _in_shell(runner: Runner, name: Name) -> str:
    return f"db.getSiblingDB({runner.database!r}).getCollection({runner.full_name(name)!r})"


def _in_the_way(runner: Runner, found: Found) -> SetupRefused:
    keys = ", ".join(f"{field}: {way}" for field, way in found.index.keys)
    return SetupRefused(
        f"index {found.name!r} of {runner.full_name(found.collection)!r} is in the way of the one"
        f" that is needed on {{{keys}}}{' (unique)' if found.index.unique else ''}:"
        f" {found.detail}. Drop it, if nothing else needs it:"
        f" {_in_shell(runner, found.collection)}.dropIndex({found.name!r}); then run"
        f" `{runner.command}` or call setup() again."
    )


def _duplicates(
    runner: Runner, name: Name, missing: Sequence[Index], error: OperationFailure
) -> Plan[SetupRefused]:
    """The error for documents with equal keys, with ten of them as examples."""
    index = next(index for index in missing if index.unique)
    pipeline: list[Document] = [
        {"$group": {"_id": {key: f"${key}" for key in index.fields}, "n": {"$sum": 1}}},
        {"$match": {"n": {"$gt": 1}}},
        {"$sort": {"n": -1, "_id": 1}},
        {"$limit": 10},
    ]
    try:
        rows = yield Aggregate(name, pipeline)
    except OperationFailure:  # not everybody may read, and a sort may be too large
        rows = []
    examples = "; ".join(f"{row['_id']} {row['n']} times" for row in rows) or _reason(error)
    return SetupRefused(
        f"the unique index {index.name!r} of {runner.full_name(name)!r} cannot be made, because"
        f" documents have equal keys: {examples}. They were written while there was no index, or"
        " by something else. Of each of these keys keep one document, and remove the others; then"
        f" run `{runner.command}` or call setup() again."
    )


def _explained(runner: Runner, error: OperationFailure) -> Exception:
    """The error with its remedy, where there is one; else itself."""
    if error.code == _UNAUTHORIZED:
        return SetupRefused(
            "the schema cannot be looked at or set up: this user lacks a privilege"
            f" ({_reason(error)}). Let a user with the role readWrite run `{runner.command}` or"
            " call setup() once, and grant this one find, insert, update and remove on the three"
            f" collections and find on {runner.full_name(Name.MIGRATIONS)!r}."
        )
    if error.code in _CONFLICTS:
        return SetupRefused(
            "an index with the same keys or the same name but other options is in the way"
            f" ({_reason(error)}). Drop that index, then run `{runner.command}` or call setup()"
            " again."
        )
    return error


def _reason(error: OperationFailure) -> str:
    return str((error.details or {}).get("errmsg") or error)
