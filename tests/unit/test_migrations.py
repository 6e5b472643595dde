"""Migrations as tables: what is looked at, made and recorded, and what refusals are turned into."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from mongosaver import migrations
from mongosaver.cache import Shared
from mongosaver.errors import (
    CollationRefused,
    ForeignDocument,
    FormatTooNew,
    MigrationLocked,
    SchemaOutOfDate,
    SchemaTooNew,
    SetupRefused,
)
from mongosaver.migrations import (
    MIGRATIONS,
    Found,
    Migration,
    Progress,
    Runner,
    compare,
    drop,
    expected,
    first_use,
    hide,
    make,
    migrate,
    status,
)
from mongosaver.ops import (
    CollMod,
    CreateCollection,
    CreateIndexes,
    Delete,
    DropIndex,
    FindOneAndUpdate,
    Plan,
    Replace,
    ShardCollection,
    Sleep,
)
from mongosaver.schema import (
    BY_RUN,
    CHECKPOINT_KEY,
    COMPRESSED,
    EXPIRY,
    INDEXES,
    NEWEST,
    NEWEST_OF_THREAD,
    VALUES,
    Index,
    Name,
)
from tests.unit.tables import (
    NOW,
    Played,
    Row,
    attempt,
    broken_off,
    context,
    duplicate,
    failure,
    play,
    refusal,
)

ME = Runner("me", "here", 7, "1.2.3", "app", "c")
LATER_ON = NOW + timedelta(seconds=30)
MINE = {"_id": "lock", "owner": "me", "host": "here", "pid": 7, "since": NOW, "until": LATER_ON}
MINE["renewed"] = NOW
THEIRS = {**MINE, "owner": "they", "host": "there", "pid": 9, "until": NOW}
PLAIN = {
    name: {"name": f"c{name.value}", "type": "collection", "options": {}}
    for name in (Name.CHECKPOINTS, Name.WRITES, Name.BLOBS)
}
LEASE: Row = ("upsert migrations", MINE)
RECORD: Row = ("upsert migrations", {"applied_at": NOW})
RELEASE: Row = ("delete migrations", 1)
ID = {"v": 2, "key": {"_id": 1}, "name": "_id_"}


def entry(number: int, name: str = "", phase: str = "expand", **more: Any) -> dict[str, Any]:
    """Returns the record of a migration."""
    rest = {"applied_at": NOW, "milliseconds": 5, "version": "9.8.7", "format": 1, **more}
    return {"_id": number, "name": name or f"m{number}", "phase": phase, **rest}


ALL = [entry(migration.number, migration.name) for migration in MIGRATIONS]


def stored(index: Index, **changes: Any) -> dict[str, Any]:
    """Returns an index as `listIndexes` tells of it."""
    found: dict[str, Any] = {"v": 2, "key": dict(index.keys), "name": index.name}
    if index.unique:
        found["unique"] = True
    if index.partial is not None:
        found["partialFilterExpression"] = index.partial
    if index.expires:
        found["expireAfterSeconds"] = 0
    found.update(changes)
    return {key: value for key, value in found.items() if value is not None}


def listed(name: Name, indexes: Sequence[Index] | None = None) -> Row:
    """Returns the row of a look at a collection's indexes; by default all are there."""
    there = INDEXES[name] if indexes is None else indexes
    return f"indexes {name.name.lower()}", [ID, *map(stored, there)]


LISTED = [listed(name) for name in INDEXES]
LOOK: list[Row] = [("collections", {}), ("find checkpoints", [])]


def making(migration: Migration) -> list[Row]:
    """Returns the rows of a migration's steps where nothing is there yet."""
    if migration.number == 1:
        names = [name.name.lower() for name in PLAIN]
        return [("collections", {}), *((f"create {name}", None) for name in names)]
    rows: list[Row] = []
    for name in migration.makes:
        rows += [listed(name, ()), (f"index {name.name.lower()}", None)]
    return rows


FRESH: list[Row] = [
    *LOOK,
    LEASE,
    ("find migrations", []),
    *(row for migration in MIGRATIONS for row in [*making(migration), RECORD]),
    RELEASE,
]
"""The table of a database in which there is nothing yet."""


# --- the history -------------------------------------------------------------------------------


def test_history_is_what_it_was() -> None:
    """Numbers and names are given once and for ever; a new migration is a line more here."""
    assert [(m.number, m.name, m.phase) for m in MIGRATIONS] == [
        (1, "collections", "expand"),
        (2, "keys", "expand"),
        (3, "listing", "expand"),
        (4, "runs", "expand"),
        (5, "expiry", "expand"),
    ]
    assert str(MIGRATIONS[2]) == "3 listing"


def test_all_migrations_in_order_come_to_the_schema() -> None:
    """What the migrations make, one after another, is what `INDEXES` says."""
    assert expected(MIGRATIONS) == dict(INDEXES)
    made = [(name, index) for m in MIGRATIONS for name, each in m.makes.items() for index in each]
    assert len(made) == len(set(map(str, made)))


def test_every_unique_index_begins_with_the_thread() -> None:
    """So `{thread_id: 1}` can be a shard key; each index says who reads it, none is there twice."""
    for name, indexes in INDEXES.items():
        assert len({index.keys for index in indexes}) == len(indexes), name
        assert len({index.name for index in indexes}) == len(indexes), name
        for index in indexes:
            assert index.reader
            assert not index.unique or index.fields[0] == "thread_id"
    assert INDEXES[Name.CHECKPOINTS][0].fields == CHECKPOINT_KEY
    assert INDEXES[Name.CHECKPOINTS][0].name == "thread_id_1_checkpoint_ns_1_checkpoint_id_-1"


# --- first use ---------------------------------------------------------------------------------


def use(auto: bool = True, shared: Shared | None = None) -> Plan[None]:
    """A first use by a saver."""
    return first_use(context(shared=shared), ME, auto=auto)


def test_a_fresh_database_gets_everything_in_order() -> None:
    """Collections, indexes and records, one migration after another, and that is remembered."""
    shared = Shared()
    played = play(use(shared=shared), ("find migrations", []), *FRESH)
    assert [op.options for op in played.ops if isinstance(op, CreateCollection)] == [COMPRESSED] * 3
    made: dict[Name, list[Index]] = {name: [] for name in INDEXES}
    for op in played.ops:
        if isinstance(op, CreateIndexes):
            made[op.collection] += op.indexes
    assert made == {name: list(each) for name, each in INDEXES.items()}
    records = [op for op in played.ops if isinstance(op, FindOneAndUpdate)]
    numbers = [op.filter["_id"] for op in records if op.filter["_id"] != "lock"]
    assert numbers == [1, 2, 3, 4, 5]
    [change] = [op.pipeline[0]["$set"] for op in records if op.filter == {"_id": 4}]
    assert change == {
        "format": 1,
        "name": "runs",
        "phase": "expand",
        "applied_at": "$$NOW",
        "milliseconds": {"$subtract": ["$$NOW", NOW]},
        "version": {"$literal": "1.2.3"},
    }
    assert shared.ready


def test_a_current_schema_is_looked_at_and_left_alone() -> None:
    """Four reads, whether the lock document of an earlier run is there or not."""
    for records in (ALL, [*ALL, THEIRS]):
        shared = Shared()
        play(use(shared=shared), ("find migrations", records), *LISTED)
        assert shared.ready


def test_without_auto_setup_the_record_is_enough() -> None:
    """One read, and no look at indexes, which this user may not have the right to."""
    shared = Shared()
    play(use(auto=False, shared=shared), ("find migrations", ALL))
    assert shared.ready


def test_who_may_not_see_indexes_trusts_the_record() -> None:
    """With a current schema a user with the least rights needs no option."""
    shared = Shared()
    play(use(shared=shared), ("find migrations", ALL), ("indexes checkpoints", refusal(13)))
    assert shared.ready
    other = refusal(8000)
    played = attempt(use(), ("find migrations", ALL), ("indexes checkpoints", other))
    assert played.error is other


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([], "'c' of database 'app' is not set up; .* needs: 1 collections, 2 keys, 3 listing"),
        (ALL[:3], "is at migration 3; .* needs: 4 runs, 5 expiry. Run `mongosaver migrate --db"),
        ([*ALL[:2], ALL[4]], "needs: 3 listing, 4 runs. Run"),
    ],
)
def test_without_auto_setup_what_is_pending_is_an_error(
    records: list[dict[str, Any]], says: str
) -> None:
    """The error names the collection, what it lacks, and the command to run."""
    shared = Shared()
    rows: list[Row] = [("find migrations", records), ("find checkpoints", [])]
    with pytest.raises(SchemaOutOfDate, match=says):
        play(use(auto=False, shared=shared), *rows)
    assert not shared.ready


@pytest.mark.parametrize("auto", [True, False])
def test_newer_migrations_that_only_add_are_no_obstacle(auto: bool) -> None:
    """An older saver goes on beside code that has expanded the schema."""
    newer = [*ALL, entry(6), entry(7)]
    rows = LISTED if auto else []
    play(use(auto=auto), ("find migrations", newer), *rows)


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("phase", ["contract", "something new"])
def test_newer_migrations_that_take_away_are_refused(auto: bool, phase: str) -> None:
    """An older saver must not write once the schema was contracted; the version is named."""
    newer = [*ALL, entry(6), entry(7, "purge", phase), entry(8)]
    with pytest.raises(SchemaTooNew, match=r"7 'purge' of mongosaver 9\.8\.7 .*or later"):
        play(use(auto=auto), ("find migrations", newer))
    rows: list[Row] = [*LOOK, LEASE, ("find migrations", newer), RELEASE]
    with pytest.raises(SchemaTooNew):
        play(migrate(ME), *rows)


@pytest.mark.parametrize("gone", [EXPIRY, NEWEST_OF_THREAD])
def test_an_index_that_was_removed_is_made_again(gone: Index) -> None:
    """Whoever may make indexes notices, at the first write, that one is missing."""
    rest = [index for index in INDEXES[Name.CHECKPOINTS] if index != gone]
    there = listed(Name.CHECKPOINTS, rest)
    played = play(
        use(),
        ("find migrations", ALL),
        there,
        *LISTED[1:],
        ("collections", PLAIN),
        ("find checkpoints", []),
        LEASE,
        ("find migrations", ALL),
        there,
        ("index checkpoints", None),
        *LISTED[1:],
        RELEASE,
    )
    [op] = [op for op in played.ops if isinstance(op, CreateIndexes)]
    assert op.indexes == [gone]


# --- migrating ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", range(1, len(MIGRATIONS) + 1))
def test_what_is_pending_is_applied_from_every_prefix(prefix: int) -> None:
    """What was applied is checked, and only what follows is done."""
    there = expected(MIGRATIONS[:prefix])
    played = play(
        migrate(ME),
        ("collections", PLAIN),
        ("find checkpoints", [{"format": 1}]),
        LEASE,
        ("find migrations", ALL[:prefix]),
        *(listed(name, indexes) for name, indexes in there.items()),
        *([LEASE] if prefix < len(MIGRATIONS) else []),
        *(row for m in MIGRATIONS[prefix:] for row in [*making(m), RECORD]),
        RELEASE,
    )
    assert played.result == MIGRATIONS[prefix:]


def test_migrating_stops_where_it_is_told() -> None:
    """`to` is the last number that is applied."""
    rows = [row for m in MIGRATIONS[:2] for row in [*making(m), RECORD]]
    played = play(migrate(ME, to=2), *LOOK, LEASE, ("find migrations", []), *rows, RELEASE)
    assert played.result == MIGRATIONS[:2]


def test_a_database_without_a_record_is_taken_on() -> None:
    """Where the indexes are there already nothing is made; only the records are."""
    rows: list[Row] = []
    for m in MIGRATIONS:
        looks = [listed(name) for name in m.makes] or [("collections", PLAIN)]
        rows += [*looks, RECORD]
    play(
        migrate(ME),
        ("collections", {**PLAIN, Name.BLOBS: {"name": "c.blobs"}}),
        ("find checkpoints", [{"format": 1, "thread_id": "t"}]),
        LEASE,
        ("find migrations", []),
        *rows,
        RELEASE,
    )


def test_what_is_going_on_is_told() -> None:
    """Each migration and each build is announced, with the index by name."""
    told: list[Progress] = []
    play(migrate(ME, tell=told.append), *FRESH)
    assert [each.text for each in told][:3] == [
        "migration 1 collections",
        "migration 2 keys",
        "c: building thread_id_1_checkpoint_ns_1_checkpoint_id_-1",
    ]
    assert [m for m in MIGRATIONS if any(each.migration is m for each in told)] == [*MIGRATIONS]


@pytest.mark.parametrize("code", [2, 72, 115])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_server_without_the_compression_gets_plain_collections(at: int, code: int) -> None:
    """Where options are refused the collection is made without, and the record says so."""
    names = [name.name.lower() for name in PLAIN]
    rows: list[Row] = [(f"create {name}", None) for name in names]
    rows[at : at + 1] = [(rows[at][0], refusal(code, "no zstd")), rows[at]]
    played = play(
        migrate(ME, to=1),
        *LOOK,
        LEASE,
        ("find migrations", []),
        ("collections", {}),
        *rows,
        RECORD,
        RELEASE,
    )
    options = [op.options for op in played.ops if isinstance(op, CreateCollection)]
    assert options[at : at + 2] == [COMPRESSED, {}]
    record = played.ops[-2]
    assert isinstance(record, FindOneAndUpdate)
    [note] = record.pipeline[0]["$set"]["notes"]["$literal"]
    assert "refuses zstd (no zstd)" in note


@pytest.mark.parametrize("code", [9, 14, 40, 303, 17276])
def test_a_server_without_update_pipelines_is_migrated_without_a_lock(code: int) -> None:
    """Everything is made and recorded all the same, with a note."""
    refused: Row = ("upsert migrations", refusal(code))
    rows: list[Row] = [(f"create {name.name.lower()}", None) for name in PLAIN]
    begin: list[Row] = [*LOOK, refused, ("find migrations", []), ("collections", {})]
    played = play(migrate(ME, to=1), *begin, *rows, ("replace migrations", None))
    assert played.result == MIGRATIONS[:1]
    record = played.ops[-1]
    assert isinstance(record, Replace)
    [applied] = migrations.recorded([record.document], MIGRATIONS).applied
    assert (applied.number, applied.name, applied.version) == (1, "collections", ME.version)
    assert "without a lock" in applied.notes[0]


def test_collections_are_sharded_if_asked_for() -> None:
    """Each as soon as it is made, by thread; a server that is no cluster is noted and goes on."""
    rows: list[Row] = []
    for name in PLAIN:
        rows += [(f"create {name.name.lower()}", None), (f"shard {name.name.lower()}", refusal(59))]
    begin: list[Row] = [*LOOK, LEASE, ("find migrations", []), ("collections", {})]
    played = play(migrate(ME, to=1, shard=True), *begin, *rows, RECORD, RELEASE)
    keys = [op.key for op in played.ops if isinstance(op, ShardCollection)]
    assert keys == [{"thread_id": 1}] * 3
    record = played.ops[-2]
    assert isinstance(record, FindOneAndUpdate)
    notes = record.pipeline[0]["$set"]["notes"]["$literal"]
    assert len(notes) == 3
    assert all("not sharded" in note for note in notes)


def test_a_collection_that_somebody_else_made_meanwhile_is_fine() -> None:
    """A writer without setup may be first: the collection is there, and that is all."""
    rows: list[Row] = [(f"create {name.name.lower()}", refusal(48)) for name in PLAIN]
    begin: list[Row] = [*LOOK, LEASE, ("find migrations", []), ("collections", {})]
    played = play(migrate(ME, to=1), *begin, *rows, RECORD, RELEASE)
    record = played.ops[-2]
    assert isinstance(record, FindOneAndUpdate)
    assert "notes" not in record.pipeline[0]["$set"]


def test_a_rehearsal_takes_no_lock_and_records_nothing() -> None:
    """A driver that writes nothing is given the same steps, and nothing else."""
    rows = [row for migration in MIGRATIONS for row in making(migration)]
    played = play(migrate(ME, rehearse=True), *LOOK, ("find migrations", []), *rows)
    assert played.result == MIGRATIONS


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "error", "says"),
    [
        ({"type": "view"}, SetupRefused, r"'c\.blobs' is a view"),
        ({"type": "timeseries"}, SetupRefused, r"'c\.blobs' is a timeseries"),
        (
            {"type": "collection", "options": {"collation": {"locale": "en", "strength": 2}}},
            CollationRefused,
            r"'c\.blobs' has the default collation 'en'.*Use a collection without one",
        ),
    ],
)
def test_collections_that_cannot_work_are_refused(
    found: dict[str, Any], error: type[Exception], says: str
) -> None:
    """A view, a time series or a collation is named, and nothing is written, not even the lock."""
    there = {**PLAIN, Name.BLOBS: {"name": "c.blobs", **found}}
    with pytest.raises(error, match=says):
        play(migrate(ME), ("collections", there))


FOREIGN = [
    (
        {"thread_id": "t", "checkpoint": b"", "metadata": {}, "type": "x"},
        ForeignDocument,
        "MongoDBSaver.*have to be imported",
    ),
    ({"_id": 1, "title": "a book"}, ForeignDocument, "Its fields: _id, title"),
    ({"format": 2, "thread_id": "t"}, FormatTooNew, "storage format 2"),
]


@pytest.mark.parametrize(("document", "error", "says"), FOREIGN)
def test_a_collection_of_something_else_is_refused(
    document: dict[str, Any], error: type[Exception], says: str
) -> None:
    """Documents that are not ours are found before anything is made, with or without auto_setup."""
    row: Row = ("find checkpoints", [document])
    with pytest.raises(error, match=says):
        play(migrate(ME), LOOK[0], row)
    with pytest.raises(error, match=says):
        play(use(auto=False), ("find migrations", []), row)


REFUSALS = [
    (13, "lacks a privilege .not allowed.*role readWrite run `mongosaver migrate --db app"),
    (85, "in the way .not allowed.*Drop that index, then run"),
    (86, "in the way"),
    (67, "in the way"),
]


@pytest.mark.parametrize(
    ("at", "code", "says"),
    [
        (at, code, says)
        for at, (words, _) in enumerate(FRESH[:-1])
        for code, says in REFUSALS
        # Options of a collection that are refused are left out.
        if code == 13 or not words.startswith("create ")
    ],
)
def test_refusals_are_explained_with_a_remedy(at: int, code: int, says: str) -> None:
    """Wherever the server refuses, the error says why and what helps; the lock is given back."""
    refused = refusal(code, "not allowed")
    locked: list[Row] = [RELEASE] if at > 2 else []
    played = attempt(migrate(ME), *FRESH[:at], (FRESH[at][0], refused), *locked)
    with pytest.raises(SetupRefused, match=says):
        raise played.error or AssertionError
    assert played.error.__cause__ is refused


def test_a_record_that_may_not_be_read_is_explained() -> None:
    """Who may not even find says so at the first write."""
    for auto in (True, False):
        refused = refusal(13, "not allowed")
        played = attempt(use(auto), ("find migrations", refused))
        with pytest.raises(SetupRefused, match=r"grant this one .* find on 'c\.migrations'"):
            raise played.error or AssertionError


@pytest.mark.parametrize("details", [None, {}])
def test_a_refusal_without_details_is_explained_too(details: dict[str, Any] | None) -> None:
    """The error's own text is quoted where the server's message is not at hand."""
    played = attempt(migrate(ME), ("collections", OperationFailure("no!", 13, details)))
    assert isinstance(played.error, SetupRefused)
    assert "(no!" in str(played.error)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 8, 10])
def test_what_cannot_be_explained_passes_through(at: int) -> None:
    """A refusal without a remedy is raised as it is, after the lock was given back."""
    refused = refusal(8000, "quota")
    locked: list[Row] = [RELEASE] if at > 2 else []
    played = attempt(migrate(ME), *FRESH[:at], (FRESH[at][0], refused), *locked)
    assert played.error is refused


def test_a_lock_that_cannot_be_given_back_hides_no_error() -> None:
    """What went wrong first is what is raised."""
    refused = refusal(8000, "quota")
    rows = [*FRESH[:3], ("find migrations", refused), ("delete migrations", refusal(13))]
    assert attempt(migrate(ME), *rows).error is refused


@pytest.mark.parametrize(
    "rows", [[("find migrations", []), *FRESH], [("find migrations", ALL), *LISTED]]
)
def test_setup_can_break_off_anywhere(rows: list[Row]) -> None:
    """A lost connection passes through at each step, and a closed plan ends."""
    broken_off(use, rows)


def test_setup_is_repeatable_after_a_failure() -> None:
    """A second run does the same again: nothing is remembered of the first."""
    shared = Shared()
    attempt(use(shared=shared), ("find migrations", []), *FRESH[:8], (FRESH[8][0], failure()))
    assert not shared.ready
    play(use(shared=shared), ("find migrations", []), *FRESH)
    assert shared.ready


# --- indexes that are there --------------------------------------------------------------------

UNIQUE = NEWEST_OF_THREAD
OTHER = {"key": {"other": 1}, "name": "x"}


@pytest.mark.parametrize(
    ("index", "there", "state", "says"),
    [
        (UNIQUE, [], "missing", ""),
        (UNIQUE, [ID, OTHER], "missing", ""),
        (UNIQUE, [stored(UNIQUE)], "there", ""),
        (UNIQUE, [stored(UNIQUE, name="ours")], "there", ""),
        (UNIQUE, [stored(UNIQUE, key={k: float(v) for k, v in UNIQUE.keys})], "there", ""),
        (UNIQUE, [stored(UNIQUE, key=dict(reversed(UNIQUE.keys)), name="x")], "missing", ""),
        (UNIQUE, [stored(UNIQUE, unique=None)], "in the way", "it is not unique"),
        (UNIQUE, [stored(UNIQUE, unique=None, name="x"), stored(UNIQUE)], "there", ""),
        (UNIQUE, [stored(UNIQUE, sparse=True)], "in the way", "it is sparse"),
        (UNIQUE, [stored(UNIQUE, collation={"locale": "de"})], "in the way", "collation 'de'"),
        (UNIQUE, [stored(UNIQUE, partialFilterExpression={"a": 1})], "in the way", '{"a": 1}'),
        (UNIQUE, [stored(UNIQUE, hidden=True)], "otherwise", "it is hidden"),
        (UNIQUE, [stored(UNIQUE, hidden=True), stored(UNIQUE, name="x")], "there", ""),
        (UNIQUE, [stored(UNIQUE, key={"other": 1})], "in the way", "its keys are other: 1"),
        (NEWEST, [stored(NEWEST, unique=True)], "in the way", "it is unique"),
        (NEWEST, [stored(NEWEST, expireAfterSeconds=5)], "in the way", "after 5 s"),
        (BY_RUN, [stored(BY_RUN, partialFilterExpression=None)], "there", ""),
        (BY_RUN, [stored(BY_RUN, partialFilterExpression={"a": 1})], "in the way", '{"a": 1}'),
        (EXPIRY, [stored(EXPIRY)], "there", ""),
        (EXPIRY, [stored(EXPIRY, partialFilterExpression=None)], "there", ""),
        (EXPIRY, [stored(EXPIRY, expireAfterSeconds=60)], "otherwise", "is 60, not 0"),
        (EXPIRY, [stored(EXPIRY, expireAfterSeconds=None)], "otherwise", "is None, not 0"),
    ],
)
def test_an_index_that_is_there_is_judged_by_what_it_does(
    index: Index, there: list[dict[str, Any]], state: str, says: str
) -> None:
    """Keys decide, not names; an option that matters is named; a wider index will do."""
    found = compare(Name.CHECKPOINTS, index, there)
    assert found.state == state
    assert (says in found.detail) if says else not found.detail
    assert bool(found.mend) == (state == "otherwise")


def ensure(name: Name, *indexes: Index, tell: Any = None) -> Plan[None]:
    """The plan of a migration that makes indexes."""
    migration = Migration(9, "test", "expand", make, makes={name: indexes})
    return make(migrations.Work(migration, ME, tell))


def test_an_index_that_is_otherwise_is_changed_in_place() -> None:
    """A hidden index is shown, an expiry moved, and only what is missing is built."""
    there = [ID, stored(EXPIRY, name="mine", expireAfterSeconds=60, hidden=True)]
    played = play(
        ensure(Name.BLOBS, VALUES, EXPIRY),
        ("indexes blobs", there),
        ("modify blobs", None),
        ("index blobs", None),
    )
    change = {"name": "mine", "expireAfterSeconds": 0, "hidden": False}
    assert played.ops[1] == CollMod(Name.BLOBS, change)
    assert isinstance(played.ops[2], CreateIndexes)
    assert played.ops[2].indexes == [VALUES]


def test_a_change_that_the_server_refuses_is_an_index_in_the_way() -> None:
    """Before MongoDB 5.1 an index cannot become one that removes documents: a person drops it."""
    there = [stored(EXPIRY, expireAfterSeconds=None)]
    rows: list[Row] = [("indexes blobs", there), ("modify blobs", refusal(72, "no"))]
    with pytest.raises(SetupRefused, match=r"'expires_at_1' of 'c\.blobs' is in the way"):
        play(ensure(Name.BLOBS, EXPIRY), *rows)
    refused = refusal(13)
    assert attempt(ensure(Name.BLOBS, EXPIRY), rows[0], ("modify blobs", refused)).error is refused


def test_an_index_in_the_way_is_named_before_anything_is_made() -> None:
    """The error has the index, what is wrong with it, the keys and the command that drops it."""
    there = [stored(UNIQUE, unique=None, name="mine"), stored(EXPIRY, hidden=True)]
    with pytest.raises(SetupRefused) as error:
        play(ensure(Name.CHECKPOINTS, EXPIRY, UNIQUE), ("indexes checkpoints", there))
    assert str(error.value) == (
        "index 'mine' of 'c' is in the way of the one that is needed on {thread_id: 1,"
        " checkpoint_ns: 1, checkpoint_id: -1} (unique): it is not unique. Drop it, if nothing"
        " else needs it: db.getSiblingDB('app').getCollection('c').dropIndex('mine'); then run"
        " `mongosaver migrate --db app --collection c` or call setup() again."
    )


def test_documents_with_equal_keys_are_named() -> None:
    """The error has the index and up to ten of the keys, most frequent first."""
    rows: list[Row] = [
        ("indexes blobs", [ID]),
        ("index blobs", duplicate(["thread_id"], "E11000 dup key")),
        ("aggregate blobs", [{"_id": {"thread_id": "t", "key": 1}, "n": 3}]),
    ]
    played = attempt(ensure(Name.BLOBS, EXPIRY, VALUES), *rows)
    with pytest.raises(SetupRefused, match=r"\{'thread_id': 't', 'key': 1\} 3 times.*remove the"):
        raise played.error or AssertionError
    assert "'thread_id_1_checkpoint_ns_1_key_1' of 'c.blobs'" in str(played.error)
    pipeline: Any = played.ops[-1]
    assert list(pipeline.pipeline[0]["$group"]["_id"]) == list(VALUES.fields)
    assert pipeline.pipeline[-1] == {"$limit": 10}


def test_who_may_not_read_gets_the_servers_example() -> None:
    """The server's own message names one key."""
    refused = duplicate(["thread_id"], "E11000 dup key: t")
    rows: list[Row] = [("indexes blobs", []), ("index blobs", refused)]
    played = attempt(ensure(Name.BLOBS, VALUES), *rows, ("aggregate blobs", refusal(13)))
    with pytest.raises(SetupRefused, match="E11000 dup key: t"):
        raise played.error or AssertionError
    assert played.error.__cause__ is refused


# --- the lock ----------------------------------------------------------------------------------


def test_the_lock_is_judged_and_taken_by_the_servers_clock() -> None:
    """One command takes, keeps or leaves the lock; no clock of ours is in it."""
    played = play(migrate(ME, to=0), *LOOK, LEASE, ("find migrations", []), RELEASE)
    lease = played.ops[2]
    assert isinstance(lease, FindOneAndUpdate)
    assert lease.filter == {"_id": "lock"}
    assert "$$NOW" in str(lease.pipeline)
    assert played.ops[-1] == Delete(Name.MIGRATIONS, {"_id": "lock", "owner": "me"})


def test_a_runner_waits_for_another_one() -> None:
    """It asks again, ever less often, and goes on when the other is done."""
    told: list[Progress] = []
    busy: list[Row] = [("upsert migrations", THEIRS), ("sleep", None)]
    begin: list[Row] = [*LOOK, *busy * 7, LEASE, ("find migrations", [])]
    played = play(migrate(ME, to=0, tell=told.append), *begin, RELEASE)
    pauses = [op.seconds for op in played.ops if isinstance(op, Sleep)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5]
    assert told[0].text == "waiting for process 9 on there"


@pytest.mark.parametrize(("wait", "sleeps"), [(0, []), (0.2, [0.05, 0.1, 0.05])])
def test_a_runner_that_has_waited_says_who_holds_the_lock(wait: float, sleeps: list[float]) -> None:
    """After the stated time the error names machine, process and time."""
    rows: list[Row] = [("upsert migrations", THEIRS)]
    for _ in sleeps:
        rows += [("sleep", None), rows[0]]
    played = attempt(migrate(ME, wait=wait), *LOOK, *rows)
    assert [op.seconds for op in played.ops if isinstance(op, Sleep)] == pytest.approx(sleeps)
    assert isinstance(played.error, MigrationLocked)
    assert (played.error.host, played.error.pid) == ("there", 9)
    assert played.error.since == "2026-02-03 04:05:06+00:00"
    assert str(played.error).startswith(
        "process 9 on there has been migrating these collections since 2026-02-03 04:05:06+00:00."
    )


def test_two_first_locks_at_the_same_moment() -> None:
    """The server may tell one of them of a duplicate key: it asks again."""
    both: Row = ("upsert migrations", duplicate(["_id"]))
    play(migrate(ME, to=0), *LOOK, both, LEASE, ("find migrations", []), RELEASE)


@pytest.mark.parametrize(("seconds", "renews"), [(0, False), (14, False), (16, True), (99, True)])
def test_a_lock_is_renewed_when_half_of_its_time_is_over(seconds: int, renews: bool) -> None:
    """Times are the server's: of the lock, and of each record."""
    late: Row = ("upsert migrations", {"applied_at": NOW + timedelta(seconds=seconds)})
    begin: list[Row] = [*LOOK, LEASE, ("find migrations", []), *making(MIGRATIONS[0]), late]
    rest: list[Row] = [*making(MIGRATIONS[1]), RECORD, RELEASE]
    play(migrate(ME, to=2), *begin, *([LEASE] if renews else []), *rest)


def test_a_lock_that_was_lost_ends_the_run() -> None:
    """Nothing is done any more once somebody else has the lock, which stays theirs."""
    late: Row = ("upsert migrations", {"applied_at": LATER_ON})
    begin: list[Row] = [*LOOK, LEASE, ("find migrations", []), *making(MIGRATIONS[0]), late]
    with pytest.raises(MigrationLocked, match=r"It took over from here.*30 seconds"):
        play(migrate(ME), *begin, ("upsert migrations", THEIRS), RELEASE)


def meanwhile(tell: Any, *rows: Row) -> Played:
    """Plays what is done while an index is built."""
    played = play(
        ensure(Name.BLOBS, VALUES, tell=tell), ("indexes blobs", []), ("index blobs", None)
    )
    [build] = [op for op in played.ops if isinstance(op, CreateIndexes)]
    assert build.every < migrations.LEASE / 10
    return attempt(build.meanwhile(), *rows)


def test_while_an_index_is_built_the_lock_is_kept() -> None:
    """Nobody is told anything where nobody asked."""
    assert meanwhile(None, LEASE).error is None
    assert isinstance(meanwhile(None, ("upsert migrations", THEIRS)).error, MigrationLocked)


@pytest.mark.parametrize(
    ("build", "step", "done"),
    [
        (
            {
                "msg": "Index Build: scanning collection Index Build: scanning collection: 1/4 25%",
                "done": 1,
                "total": 4,
            },
            "scanning collection",
            (1, 4),
        ),
        (
            {"msg": "Index Build: draining writes"},
            "draining writes",
            (None, None),
        ),
    ],
)
def test_while_an_index_is_built_its_progress_is_told(
    build: dict[str, Any], step: str, done: tuple[Any, Any]
) -> None:
    """The server's words and numbers reach whoever asked for them."""
    told: list[Progress] = []
    assert meanwhile(told.append, LEASE, ("progress blobs", build)).error is None
    assert told[-1].text == told[0].text == "c.blobs: building thread_id_1_checkpoint_ns_1_key_1"
    assert (told[-1].step, (told[-1].done, told[-1].total)) == (step, done)


@pytest.mark.parametrize("reply", [None, refusal(13), refusal(40324)])
def test_who_may_not_see_the_progress_is_told_none(reply: Any) -> None:
    """The right to see what a server does is no condition."""
    told: list[Progress] = []
    assert meanwhile(told.append, LEASE, ("progress blobs", reply)).error is None
    assert len(told) == 1


# --- taking away -------------------------------------------------------------------------------

LATER = (
    *MIGRATIONS,
    Migration(6, "retire", "contract", hide, hides={Name.CHECKPOINTS: (BY_RUN,)}),
    Migration(7, "more", "expand", make, makes={Name.BLOBS: (BY_RUN,)}),
    Migration(9, "remove", "contract", drop, drops={Name.CHECKPOINTS: (BY_RUN,)}),
)
"""A history that takes an index away."""

LAST = [*ALL, entry(6, phase="contract"), entry(7), entry(9, phase="contract")]


def test_what_takes_away_waits_until_it_is_asked_for() -> None:
    """By default what only adds is applied; savers do not wait for the rest."""
    begin: list[Row] = [("collections", PLAIN), ("find checkpoints", []), LEASE]
    more: list[Row] = [LEASE, listed(Name.BLOBS), ("index blobs", None), RECORD]
    played = play(
        migrate(ME, migrations=LATER), *begin, ("find migrations", ALL), *LISTED, *more, RELEASE
    )
    assert played.result == (LATER[6],)
    plan = first_use(context(), ME, auto=False, migrations=LATER)
    play(plan, ("find migrations", [*ALL, entry(7)]))


def test_what_takes_away_is_done_when_it_is_asked_for() -> None:
    """`to` covers both phases: the index is hidden by the one and dropped by the other."""
    begin: list[Row] = [("collections", PLAIN), ("find checkpoints", []), LEASE]
    hidden: Row = ("indexes checkpoints", [stored(BY_RUN, hidden=True, name="mine")])
    played = play(
        migrate(ME, to=9, migrations=LATER),
        *begin,
        ("find migrations", ALL),
        *[*LISTED, LEASE],
        *[listed(Name.CHECKPOINTS), ("modify checkpoints", None), RECORD],
        *[listed(Name.BLOBS), ("index blobs", None), RECORD],
        *[hidden, ("drop checkpoints", None), RECORD],
        RELEASE,
    )
    assert CollMod(Name.CHECKPOINTS, {"name": "run_id_1", "hidden": True}) in played.ops
    assert DropIndex(Name.CHECKPOINTS, "mine") in played.ops
    assert played.result == LATER[5:]


def test_an_index_that_is_hidden_already_stays_so() -> None:
    """Repeating a migration that hides sends no change, and one that is gone is no error."""
    for there in ([stored(BY_RUN, hidden=True)], []):
        work = migrations.Work(LATER[5], ME, None)
        play(hide(work), ("indexes checkpoints", there))
    play(drop(migrations.Work(LATER[7], ME, None)), ("indexes checkpoints", [ID]))


def test_an_index_that_somebody_needs_is_not_dropped() -> None:
    """Who made a hidden index visible again had a reason: it stays, and the error says so."""
    work = migrations.Work(LATER[7], ME, None)
    with pytest.raises(SetupRefused, match=r"somebody needs it.*hideIndex\('run_id_1'\)"):
        play(drop(work), ("indexes checkpoints", [stored(BY_RUN)]))


def test_new_collections_take_the_whole_history() -> None:
    """Where there is nothing that older code could use, nothing waits."""
    rows = [row for m in MIGRATIONS for row in [*making(m), RECORD]]
    played = play(
        migrate(ME, migrations=LATER),
        *LOOK,
        LEASE,
        ("find migrations", []),
        *rows,
        *[listed(Name.CHECKPOINTS), ("modify checkpoints", None), RECORD],
        *[listed(Name.BLOBS), ("index blobs", None), RECORD],
        *[listed(Name.CHECKPOINTS, ()), RECORD],
        RELEASE,
    )
    assert played.result == LATER


def test_what_was_taken_away_is_not_mended() -> None:
    """An index that was hidden or dropped on purpose is not expected any more."""
    assert BY_RUN in expected(LATER[:5])[Name.CHECKPOINTS]
    for upto in (6, 7, 8):
        assert BY_RUN not in expected(LATER[:upto])[Name.CHECKPOINTS]
    assert BY_RUN in expected(LATER)[Name.BLOBS]


# --- status ------------------------------------------------------------------------------------


def test_status_tells_what_is_recorded_and_what_is_there() -> None:
    """Applied, pending and newer migrations, the lock's holder, and each index."""
    until = {"until": NOW + timedelta(seconds=30)}
    records = [{**THEIRS, **until}, *reversed(ALL[:3]), entry(8, notes=["odd"]), {"_id": "x"}]
    there = [
        listed(Name.CHECKPOINTS, [NEWEST_OF_THREAD]),
        listed(Name.WRITES),
        ("indexes blobs", [stored(VALUES, hidden=True)]),
    ]
    found = play(status(), ("find migrations", records), *there).result
    assert [each.number for each in found.applied] == [1, 2, 3, 8]
    assert found.applied[-1].notes == ("odd",)
    assert (found.applied[0].milliseconds, found.applied[0].version) == (5, "9.8.7")
    assert found.pending == MIGRATIONS[3:] == found.needed
    assert [each.number for each in found.newer] == [8]
    assert (found.holder.host, found.holder.pid, found.holder.until) == ("there", 9, until["until"])
    assert [each.state for each in found.indexes] == [
        *["there", "missing", "missing"],
        "there",
        "otherwise",
    ]
    assert [each.state for each in found.amiss] == ["missing", "missing", "otherwise"]
    assert isinstance(found.amiss[0], Found)


def test_status_of_nothing() -> None:
    """Where nothing was applied everything is pending, and no index is looked for."""
    found = play(status(), ("find migrations", [])).result
    assert (found.applied, found.pending, found.holder, found.indexes) == ((), MIGRATIONS, None, ())
