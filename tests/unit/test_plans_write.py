"""Puts and pending writes as tables: which commands, in which order, what each failure means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from mongosaver import codec
from mongosaver.cache import Shared
from mongosaver.codec import Blob
from mongosaver.errors import FormatTooNew, IdentifierTypeError, IdentifierValueError
from mongosaver.identifiers import Address
from mongosaver.ops import Find, Insert, Plan, Replace, Together, Update, UpdateMany, Updates
from mongosaver.plans import write
from mongosaver.schema import (
    BLOB_KEY,
    CHECKPOINT_KEY,
    MAX_BATCH,
    MAX_TRANSACTION,
    OFF_LOOP,
    WRITE_KEY,
    Name,
)
from tests.contract.samples import config
from tests.unit.stored import LONG, Thread, items, putting
from tests.unit.tables import (
    NOW,
    RUN,
    Row,
    attempt,
    broken_off,
    bulk,
    context,
    duplicate,
    in_the_way,
    play,
    refusal,
)

AT = Address("t", "n", "2")
BOTH = "together blobs + checkpoints"
OWN_BLOB, OWN_CHECKPOINT, OWN_WRITE = BLOB_KEY, CHECKPOINT_KEY, WRITE_KEY


@pytest.fixture
def thread() -> Thread:
    """A thread of one checkpoint, with a value in segments and one in the document."""
    made = Thread()
    made.put("1", {"chat": LONG, "note": "n"})
    return made


def knowing(thread: Thread) -> Shared:
    """Returns the memory of the saver that put the thread."""
    shared = Shared()
    for checkpoint_id, facts in thread.facts.items():
        shared.cache.put(Address("t", "n", checkpoint_id), facts)
    return shared


def keys(thread: Thread) -> list[dict[str, Any]]:
    """Returns what a look at all blobs finds."""
    return [{"key": key} for key in thread.blobs]


# --- one checkpoint


def test_a_small_first_checkpoint_is_one_insert() -> None:
    """Nothing is looked at, nothing else is written, and the checkpoint's config comes back."""
    shared = Shared()
    played = play(
        putting(context(shared=shared), "2", {"a": 1, "b": None}), ("insert checkpoints", None)
    )
    assert played.result == config("t", "n", "2")
    (document,) = played.documents(Name.CHECKPOINTS)
    assert document["parent_checkpoint_id"] is None
    assert (shared.cache.get(AT) or {}).keys() == {"a", "b"}


def test_new_blobs_go_with_their_checkpoint_and_before_it() -> None:
    """Where there are transactions one is enough; the checkpoint is its last insert."""
    played = play(putting(context(), "2", {"chat": LONG}), (BOTH, True))
    (together,) = played.ops
    assert isinstance(together, Together)
    assert [insert.collection for insert in together.writes] == [Name.BLOBS, Name.CHECKPOINTS]
    assert len(together.writes[1].documents) == 1


def test_without_transactions_the_checkpoint_comes_last(thread: Thread) -> None:
    """The sequence is the same inserts, blobs first."""
    plan = putting(context(shared=knowing(thread)), "2", {"chat": LONG[::-1]}, "1")
    played = play(plan, (BOTH, False), ("insert blobs", None), ("insert checkpoints", None))
    together, *sequence = played.ops
    assert isinstance(together, Together)
    assert list(together.writes) == sequence


def test_a_first_checkpoint_in_sequence_looks_whether_its_thread_was_removed(
    thread: Thread,
) -> None:
    """A removal between blobs and checkpoint would leave a hole; what is gone is stored again."""
    rows: list[Row] = [(BOTH, False), ("insert blobs", None), ("insert checkpoints", None)]
    there = keys(thread)
    first = {"chat": LONG, "note": "n"}
    play(putting(context(), "1", first), *rows, ("find blobs", there))
    played = play(
        putting(context(), "1", first), *rows, ("find blobs", there[1:]), ("insert blobs", None)
    )
    inserted, again = played.ops[1], played.ops[-1]
    assert isinstance(inserted, Insert)
    assert isinstance(again, Insert)
    assert again.documents == inserted.documents


def test_what_is_too_much_for_a_transaction_goes_in_sequence_and_in_batches() -> None:
    """Above 16 MB no transaction is tried; a command holds no more than a batch of blobs."""
    large = {f"file {n}": bytes([n]) * (MAX_BATCH // 2 + 1) for n in range(5)}
    assert sum(map(len, large.values())) > MAX_TRANSACTION
    plan = putting(context(), "2", large, "1")
    played = attempt(
        plan,
        ("find checkpoints", []),
        ("compute", RUN),
        *[("insert blobs", None)] * 3,
        ("insert checkpoints", None),
    )
    assert played.error is None
    for op in played.ops[2:-1]:
        assert isinstance(op, Insert)
        assert sum(len(blob["data"]) for blob in op.documents) <= MAX_BATCH


def test_large_values_are_encoded_off_the_event_loop() -> None:
    """Hashing and cutting of much data is an operation of its own."""
    played = play(
        putting(context(), "2", {"file": b"x" * (OFF_LOOP + 1)}), ("compute", RUN), (BOTH, True)
    )
    assert played.ops[0].size > OFF_LOOP  # type: ignore[union-attr]


# --- what the parent is asked for


def test_a_parent_that_is_remembered_is_not_read(thread: Thread) -> None:
    """The saver that put the parent needs one insert for a small addition."""
    shared = knowing(thread)
    values = {"chat": items(310), "note": "m"}
    played = play(putting(context(shared=shared), "2", values, "1"), ("insert checkpoints", None))
    (document,) = played.documents(Name.CHECKPOINTS)
    assert "d" in document["blobs"][0]
    assert (shared.cache.get(AT) or {}).keys() == {"chat", "note"}


def test_an_unknown_parent_is_read_without_its_values(thread: Thread) -> None:
    """One look at the parent, one at heads, one at chains; never at data or metadata."""
    played = play(
        putting(context(), "2", {"chat": [*LONG, "x" * 5_000], "note": "m"}, "1"),
        ("find checkpoints", [thread.checkpoints["1"]]),
        ("find blobs", thread.heads("1")),
        ("find blobs", thread.chains("1")),
        (BOTH, True),
    )
    for op in played.ops[:3]:
        assert isinstance(op, Find)
        assert not {"data", "metadata"} & (op.projection or {"data": 1}).keys()
        assert op.filter["thread_id"] == "t"
    # Nearly all of the former value is kept.
    assert sum(len(blob["data"]) for blob in played.documents(Name.BLOBS)) < 20_000


def test_an_unchanged_channel_keeps_its_entry_without_a_look_at_blobs(thread: Thread) -> None:
    """What did not change is neither read nor written."""
    played = play(
        putting(
            context(),
            "2",
            {"note": "m"},
            "1",
            versions={"chat": "1", "note": "2"},
            changed={"note": "2"},
        ),
        ("find checkpoints", [thread.checkpoints["1"]]),
        ("insert checkpoints", None),
    )
    (document,) = played.documents(Name.CHECKPOINTS)
    assert document["blobs"] == thread.checkpoints["1"]["blobs"]


def test_a_value_of_one_segment_needs_no_look_at_a_chain() -> None:
    """Where no head has a chain, nobody asks for it."""
    short = Thread()
    short.put("1", {"file": b"x" * 20_000})
    for head in short.blobs.values():
        head["chain"] = []
    play(
        putting(context(), "2", {"file": b"y" * 20_000}, "1"),
        ("find checkpoints", [short.checkpoints["1"]]),
        ("find blobs", short.heads("1")),
        (BOTH, True),
    )


@pytest.mark.parametrize("missing", ["heads", "chains"])
def test_a_base_with_a_hole_is_no_base(thread: Thread, missing: str) -> None:
    """What is not there cannot be shared: the value is stored whole."""
    values = {"chat": [*LONG, "x" * 5_000]}
    found = {"heads": thread.heads("1"), "chains": thread.chains("1"), missing: []}
    asked: list[Row] = [("find checkpoints", [thread.checkpoints["1"]])]
    asked += [("find blobs", found["heads"])]
    asked += [("find blobs", found["chains"])] if found["heads"] else []
    played = play(putting(context(), "2", values, "1"), *asked, (BOTH, True))
    assert sum(len(blob["data"]) for blob in played.documents(Name.BLOBS)) > 30_000


def test_a_base_that_is_remembered_in_part_is_read_in_part(thread: Thread) -> None:
    """Only channels whose segments are not known are looked up."""
    thread.put("1", {"chat": LONG, "log": LONG[::-1]})
    shared = knowing(thread)
    facts = dict(thread.facts["1"])
    log = facts["log"]
    assert isinstance(log, Blob)
    facts["log"] = Blob(log.version, log.key, log.size, None)
    shared.cache.put(Address("t", "n", "1"), facts)
    values = {"chat": [*LONG, "x" * 5_000], "log": [*LONG[::-1], "x" * 5_000]}
    (head,) = [blob for blob in thread.heads("1") if blob["channel"] == "log"]
    played = play(
        putting(context(shared=shared), "2", values, "1"),
        ("find blobs", [head]),
        ("find blobs", [thread.blobs[key] for key in head["chain"]]),
        (BOTH, True),
    )
    (first, *_) = played.ops
    assert isinstance(first, Find)
    assert first.filter["key"] == {"$in": [log.key]}
    assert sum(len(blob["data"]) for blob in played.documents(Name.BLOBS)) < 40_000


def test_a_parent_that_is_gone_is_none() -> None:
    """A put on a parent that is not there stores all that was handed over."""
    played = play(
        putting(context(), "2", {"chat": LONG}, "1", changed={}),
        ("find checkpoints", []),
        (BOTH, True),
    )
    (document,) = played.documents(Name.CHECKPOINTS)
    assert [entry["c"] for entry in document["blobs"]] == ["chat"]
    assert document["parent_checkpoint_id"] == "1"


def test_a_parent_of_a_later_format_is_refused(thread: Thread) -> None:
    """Nothing is written on a parent that this version cannot read."""
    plan = putting(context(), "2", {"a": 1}, "1")
    played = attempt(plan, ("find checkpoints", [{**thread.checkpoints["1"], "format": 2}]))
    assert isinstance(played.error, FormatTooNew)


# --- what is in the way


def test_a_duplicate_ends_the_transaction_and_not_the_put(thread: Thread) -> None:
    """Blobs that are there already are touched, so that no sweep frees them: they are stored."""
    for way in (duplicate(OWN_BLOB), bulk(in_the_way(OWN_BLOB), in_the_way(OWN_BLOB, 1))):
        plan = putting(context(shared=knowing(thread)), "2", {"chat": LONG[::-1]}, "1")
        count = len(Thread().put("2", {"chat": LONG[::-1]})["blobs"]) + 1
        played = play(
            plan,
            (BOTH, duplicate(OWN_CHECKPOINT)),
            ("insert blobs", way),
            ("updatemany blobs", count),
            ("insert checkpoints", None),
        )
        assert played.result == config("t", "n", "2")


def test_a_blob_that_was_freed_meanwhile_is_stored_again(thread: Thread) -> None:
    """A blob that was in the way and is gone when it is touched is inserted once more."""
    plan = putting(context(shared=knowing(thread)), "2", {"chat": LONG[::-1]}, "1")
    played = play(
        plan,
        (BOTH, False),
        ("insert blobs", duplicate(OWN_BLOB)),
        ("updatemany blobs", 0),
        ("insert blobs", None),
        ("insert checkpoints", None),
    )
    again = played.ops[3]
    assert isinstance(again, Insert)
    assert all("touched_at" in blob for blob in again.documents)


def test_a_checkpoint_that_is_there_is_replaced(thread: Thread) -> None:
    """A put repeated replaces document and values in one command, whether it had blobs or not."""
    plan = putting(context(shared=knowing(thread)), "2", {"note": "m"}, "1")
    played = play(
        plan, ("insert checkpoints", duplicate(OWN_CHECKPOINT)), ("replace checkpoints", None)
    )
    insert, replace = played.ops
    assert isinstance(insert, Insert)
    assert isinstance(replace, Replace)
    assert [replace.document] == list(insert.documents)
    assert replace.filter == {field: replace.document[field] for field in CHECKPOINT_KEY}
    plan = putting(context(shared=knowing(thread)), "2", {"chat": LONG[::-1]}, "1")
    play(
        plan,
        (BOTH, duplicate(OWN_CHECKPOINT)),
        ("insert blobs", None),
        ("insert checkpoints", duplicate(OWN_CHECKPOINT)),
        ("replace checkpoints", None),
    )


MINE = [*CHECKPOINT_KEY]


@pytest.mark.parametrize(
    ("error", "own"),
    [
        (duplicate(MINE), True),
        (duplicate(MINE[::-1]), True),
        (duplicate(["_id"]), True),
        (
            duplicate(None, "E11000 ... index: thread_id_1_checkpoint_ns_1_checkpoint_id_-1 dup"),
            True,
        ),
        (duplicate(None, "E11000 ... index: _id_ dup key"), True),
        (duplicate(None, "E11000 ... index: theirs_1 dup key"), False),
        (duplicate(["theirs"]), False),
        (duplicate([*MINE, "theirs"]), False),
        (duplicate(OWN_BLOB), False),
        (duplicate(MINE, writeConcernError={"code": 64}), False),
        (bulk(in_the_way(MINE)), True),
        (bulk(in_the_way(MINE), in_the_way(["_id"], 1)), True),
        (bulk(in_the_way(MINE), in_the_way(["theirs"], 1)), False),
        (bulk(in_the_way(MINE), {"index": 1, "code": 8000, "errmsg": "quota"}), False),
        (bulk(in_the_way(MINE), concerns=[{"code": 64}]), False),
    ],
)
def test_only_our_own_duplicates_are_understood(error: Any, own: bool) -> None:
    """A duplicate on somebody else's index, another failure or an unmet concern is a real one."""
    assert write.is_own_duplicate(error, Name.CHECKPOINTS) is own


def foreign() -> list[Exception]:
    """Returns failures that are like duplicates and are none of ours."""
    return [
        duplicate(["theirs"]),
        bulk(in_the_way(["theirs"])),
        bulk({"index": 0, "code": 8000, "errmsg": "quota"}),
        bulk(in_the_way(OWN_BLOB), concerns=[{"code": 64}]),
        refusal(8000),
    ]


def put_table(thread: Thread) -> tuple[Callable[[], Plan[Any]], list[Row]]:
    """Returns a put that goes through everything that can happen to one, and its table."""

    def make() -> Plan[Any]:
        return putting(context(), "2", {"chat": LONG[::-1], "note": "m"}, "1")

    rows: list[Row] = [
        ("find checkpoints", [thread.checkpoints["1"]]),
        ("find blobs", thread.heads("1")),
        ("find blobs", thread.chains("1")),
        (BOTH, duplicate(OWN_BLOB)),
        ("insert blobs", bulk(in_the_way(OWN_BLOB))),
        ("updatemany blobs", 0),
        ("insert blobs", bulk(in_the_way(OWN_BLOB))),
        ("insert checkpoints", duplicate(OWN_CHECKPOINT)),
        ("replace checkpoints", None),
    ]
    return make, rows


def test_foreign_duplicates_surface_wherever_they_happen(thread: Thread) -> None:
    """At every write of a put, what is not understood is raised as it is, and nothing follows."""
    make, rows = put_table(thread)
    play(make(), *rows)
    for at, (expected, _) in enumerate(rows):
        for error in foreign():
            played = attempt(make(), *rows[:at], (expected, error))
            assert played.error is error, (expected, error)


def test_a_put_can_break_off_anywhere(thread: Thread) -> None:
    """A lost connection passes through at each operation of each way, and a closed plan ends."""
    make, rows = put_table(thread)
    broken_off(make, rows)
    broken_off(lambda: putting(context(), "2", {"a": 1}), [("insert checkpoints", None)])
    first = {"chat": LONG, "note": "n"}
    broken_off(
        lambda: putting(context(), "1", first),
        [
            (BOTH, False),
            ("insert blobs", None),
            ("insert checkpoints", None),
            ("find blobs", []),
            ("insert blobs", None),
        ],
    )


def test_only_a_put_that_succeeded_is_remembered(thread: Thread) -> None:
    """Facts of what may not be stored would make the next put rely on it."""
    make_rows: list[Sequence[Row]] = [
        [(BOTH, refusal(8000))],
        [(BOTH, False), ("insert blobs", refusal(8000))],
        [(BOTH, False), ("insert blobs", None), ("insert checkpoints", refusal(8000))],
    ]
    for rows in make_rows:
        shared = knowing(thread)
        plan = putting(context(shared=shared), "2", {"chat": LONG[::-1]}, "1")
        assert attempt(plan, *rows).error is not None
        assert shared.cache.get(AT) is None


def test_a_put_is_checked_and_serialized_before_the_plan_begins() -> None:
    """Errors of the caller come from the call itself, and later changes of a value do not count."""
    with pytest.raises(IdentifierTypeError):
        write.put(context(), config({"$ne": 1}), {"id": "2"}, {}, {})  # type: ignore[typeddict-item]
    with pytest.raises(IdentifierValueError):
        write.put(context(), config("t"), {"id": ""}, {}, {})  # type: ignore[typeddict-item]
    mutable = [1]
    plan = putting(context(), "2", {"a": mutable})
    mutable.append(2)
    played = play(plan, ("insert checkpoints", None))
    (document,) = played.documents(Name.CHECKPOINTS)
    ctx = context()
    assert codec.decode(ctx.serde, document, {}, []).row.checkpoint["channel_values"] == {"a": [1]}


# --- pending writes


def writing(writes: Sequence[tuple[str, Any]], task: str = "task", path: str = "") -> Plan[Any]:
    """Returns the plan of writes on checkpoint 2."""
    return write.put_writes(context(), config("t", "n", "2"), writes, task, path)


def test_no_writes_are_no_command() -> None:
    """An empty list asks for nothing."""
    assert play(writing([])).ops == []


def test_ordinary_writes_are_one_insert() -> None:
    """All slots of a task go in one command."""
    played = play(writing([("a", 1), ("b", 2)]), ("insert writes", None))
    assert [document["idx"] for document in played.documents(Name.WRITES)] == [0, 1]


@pytest.mark.parametrize("way", [duplicate(OWN_WRITE), bulk(in_the_way(OWN_WRITE))], ids=repr)
def test_an_ordinary_slot_that_is_taken_stays(way: Exception) -> None:
    """Slots that were written before are left alone."""
    play(writing([("a", 1), ("b", 2)]), ("insert writes", way))


SPECIAL = [("a", 1), ("__interrupt__", "why?")]


def test_special_slots_are_upserts() -> None:
    """In a mixed call each slot has its own rule: the first value stays, or the last one wins."""
    played = play(writing(SPECIAL), ("update writes", None))
    (op,) = played.ops
    assert isinstance(op, Updates)
    by_idx = {update.filter["idx"]: update for update in op.updates}
    assert by_idx.keys() == {0, -3}
    assert by_idx[0].update.keys() == {"$setOnInsert"}
    assert "$set" in by_idx[-3].update
    assert "$setOnInsert" not in by_idx[-3].update
    for update in op.updates:
        assert update.filter.keys() == set(WRITE_KEY)
        assert not any(update.filter.keys() & fields.keys() for fields in update.update.values())


def test_two_upserts_of_one_slot_may_collide_once() -> None:
    """A duplicate key of an upsert goes away when it is tried again: the slot is there then."""
    for way in (duplicate(OWN_WRITE), bulk(in_the_way(OWN_WRITE))):
        played = play(writing(SPECIAL), ("update writes", way), ("update writes", None))
        assert played.ops[0] == played.ops[1]
        again = duplicate(OWN_WRITE)
        rows: list[Row] = [("update writes", way), ("update writes", again)]
        assert attempt(writing(SPECIAL), *rows).error is again


@pytest.mark.parametrize("old", ["parts", "run_id"])
def test_a_new_value_of_a_special_slot_leaves_nothing_of_the_old_one(old: str) -> None:
    """Fields that the former value had and the new one has not are removed."""
    played = play(writing(SPECIAL), ("update writes", None))
    (op,) = played.ops
    assert isinstance(op, Updates)
    (update,) = [each for each in op.updates if each.filter["idx"] == -3]
    assert isinstance(update, Update)
    assert old in update.update["$unset"]


def test_a_field_is_never_set_and_removed_at_once() -> None:
    """A large value with a run sets the fields that a small one without removes."""
    at = config("t", "n", "2")
    at["configurable"]["run_id"] = "r"
    large = [("__interrupt__", "x" * 100_000)]
    played = play(write.put_writes(context(), at, large, "task", ""), ("update writes", None))
    (op,) = played.ops
    assert isinstance(op, Updates)
    for update in op.updates:
        sets, removes = update.update["$set"], update.update.get("$unset", {})
        assert not sets.keys() & removes.keys()
    assert "parts" in op.updates[-1].update["$set"]


def test_large_writes_are_cut_off_the_event_loop_and_go_in_batches() -> None:
    """Much data is cut by an operation of its own, and a command holds no more than a batch."""
    writes = [("a", b"x" * (2 * MAX_BATCH)), ("b", 1)]
    played = attempt(writing(writes), ("compute", RUN), *[("insert writes", None)] * 3)
    for op in played.ops[1:]:
        assert isinstance(op, Insert)
        assert sum(len(d["data"]) for d in op.documents) <= MAX_BATCH
    assert [d["part"] for d in played.documents(Name.WRITES)][-2:] == [0, 0]


@pytest.mark.parametrize("writes", [[("a", 1)], SPECIAL], ids=["ordinary", "special"])
def test_foreign_failures_of_writes_surface(writes: list[tuple[str, Any]]) -> None:
    """What is not our own duplicate is raised as it is."""
    (expected,) = play_words(writes)
    for error in [*foreign()[:3], bulk(in_the_way(OWN_WRITE), concerns=[{"code": 64}])]:
        assert attempt(writing(writes), (expected, error)).error is error


def play_words(writes: list[tuple[str, Any]]) -> list[str]:
    """Returns the operations of undisturbed writes."""
    special = any(channel.startswith("__") for channel, _ in writes)
    row: Row = ("update writes" if special else "insert writes", None)
    return play(writing(writes), row).words


def test_writes_can_break_off_anywhere() -> None:
    """A lost connection passes through, and a closed plan ends."""
    broken_off(lambda: writing([("a", 1)]), [("insert writes", None)])
    collided: list[Row] = [("update writes", duplicate(OWN_WRITE)), ("update writes", None)]
    broken_off(lambda: writing(SPECIAL), collided)


def test_writes_are_checked_and_serialized_before_the_plan_begins() -> None:
    """Errors of the caller come from the call itself, and later changes of a value do not count."""
    with pytest.raises(IdentifierValueError, match="checkpoint_id"):
        write.put_writes(context(), config("t"), [("a", 1)], "task", "")
    mutable = [1]
    plan = writing([("a", mutable)])
    mutable.append(2)
    (document,) = play(plan, ("insert writes", None)).documents(Name.WRITES)
    assert codec.load(context().serde, codec.Payload(document["type"], document["data"])) == [1]


# --- with a ttl; how a thread's expiry is moved is for expiry's own tests

DAY = timedelta(days=1)


def test_what_is_written_has_a_date_and_blobs_a_later_one() -> None:
    """A checkpoint expires after the ttl, and what it needs not before it."""
    played = play(putting(context(ttl=DAY), "2", {"chat": LONG}), (BOTH, True))
    (document,) = played.documents(Name.CHECKPOINTS)
    assert document["expires_at"] >= NOW + DAY
    for blob in played.documents(Name.BLOBS):
        assert blob["expires_at"] > document["expires_at"]


def test_a_blob_that_is_there_expires_no_sooner_than_its_new_checkpoint() -> None:
    """Of what was in the way only the early ones are moved, before all are touched."""
    played = play(
        putting(context(ttl=DAY), "2", {"chat": LONG}),
        (BOTH, False),
        ("insert blobs", duplicate(OWN_BLOB)),
        ("updatemany blobs", 1),
        ("updatemany blobs", 2),
        ("insert checkpoints", None),
        ("find blobs", [{"key": b"1"}, {"key": b"2"}]),
    )
    date = played.documents(Name.BLOBS)[0]["expires_at"]
    early, touch = played.ops[2:4]
    assert isinstance(early, UpdateMany)
    assert isinstance(touch, UpdateMany)
    assert early.filter == {**touch.filter, "expires_at": {"$lt": date}}
    assert early.update == {"$set": {"expires_at": date}}
    assert touch.update == {"$set": {"touched_at": NOW}}


@pytest.mark.parametrize("taken", [False, True])
def test_an_ordinary_slot_that_is_taken_gets_the_later_date(taken: bool) -> None:
    """The value stays, and so does a date that is later; an earlier one is moved."""
    rows: list[Row] = [("insert writes", duplicate(OWN_WRITE) if taken else None)]
    rows += [("updatemany writes", 1)] if taken else []
    plan = write.put_writes(context(ttl=DAY), config("t", "n", "2"), [("a", 1)], "task", "")
    played = play(plan, *rows)
    (document,) = played.documents(Name.WRITES)
    assert document["expires_at"] > NOW + DAY
    for op in played.ops[1:]:
        assert isinstance(op, UpdateMany)
        assert op.filter == {
            **{field: document[field] for field in (*CHECKPOINT_KEY, "task_id")},
            "expires_at": {"$lt": document["expires_at"]},
        }
        assert op.update == {"$set": {"expires_at": document["expires_at"]}}


def test_upserts_take_dates_along() -> None:
    """A special slot gets the new date with its value, an ordinary one the later of two."""
    plan = write.put_writes(context(ttl=DAY), config("t", "n", "2"), SPECIAL, "task", "")
    (op,) = play(plan, ("update writes", None)).ops
    assert isinstance(op, Updates)
    by_idx = {update.filter["idx"]: update.update for update in op.updates}
    date = by_idx[-3]["$set"]["expires_at"]
    assert "expires_at" not in by_idx[-3].get("$unset", {})
    assert by_idx[0]["$max"] == {"expires_at": date}
    assert "expires_at" not in by_idx[0]["$setOnInsert"]
