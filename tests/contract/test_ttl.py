"""A ttl: threads expire as one, and whatever the monitor has removed, a reader sees full states."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from mongosaver import ConfigurationError, TtlProgress
from mongosaver.plans import expiry
from mongosaver.plans.context import Ttl
from tests.contract.clocks import (
    HOUR,
    MINUTE,
    START,
    Clock,
    assert_promise,
    expiries,
    stored,
)
from tests.contract.interrupted import Interrupted, at_each_operation, between_operations
from tests.contract.samples import (
    LARGE,
    Line,
    checkpoint,
    config,
    ids,
    metadata,
    values_of,
    writes_of,
)
from tests.contract.test_commands import names, sent_by
from tests.contract.trees import Tree

if TYPE_CHECKING:
    from tests.faces import Face

TTL = 10 * HOUR
QUANTUM = HOUR
SUFFIXES = ("", ".writes", ".blobs")


@pytest.fixture
def clock() -> Clock:
    """The time of the test."""
    return Clock()


@pytest.fixture
def ready(mongo_face: Face, clock: Clock) -> Face:
    """A face whose saver has a ttl of ten hours, with indexes and an open connection."""
    face = clock.saver(mongo_face, ttl=TTL)
    face.setup()
    return face


@pytest.fixture
def plain(mongo_face: Face, clock: Clock) -> Face:
    """A face whose saver has no ttl, on the same data."""
    return clock.saver(mongo_face)


def chat(face: Face, thread: str, n: int = 3, ns: str = "") -> Line:
    """Puts a line of checkpoints with small values, a large list and pending writes."""
    line = Line(face, thread, ns)
    for step in range(n):
        at = line.put({"n": step, "chat": [f"{i} " * 900 for i in range(step + 9)], "own": LARGE})
        face.put_writes(at, [("x", step), ("__interrupt__", step)], "task")
    return line


# --- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ttl",
    [0, -1, float("nan"), float("inf"), True, "1h", timedelta(0), -HOUR, timedelta.max, 1e300, []],
)
def test_ttls_that_are_none_are_refused(mongo_face: Face, ttl: Any) -> None:
    """A ttl is a positive timedelta or number of seconds."""
    with pytest.raises(ConfigurationError, match="ttl"):
        mongo_face.another(ttl=ttl)


def test_refreshing_needs_a_ttl(mongo_face: Face) -> None:
    """Without a ttl there is nothing to refresh."""
    with pytest.raises(ConfigurationError, match="refresh_on_read"):
        mongo_face.another(refresh_on_read=True)


@pytest.mark.parametrize("ttl", [timedelta(days=30), 60, 0.5, 3 * HOUR])
def test_dates_of_a_new_thread(ttl: Any) -> None:
    """They are one to two quanta after the ttl, and multiples of the quantum."""
    duration = ttl if isinstance(ttl, timedelta) else timedelta(seconds=ttl)
    own = Ttl(duration)
    assert own.quantum == max(duration / 10, timedelta(minutes=10))
    for seconds in (0, 1, 599.999, 86_399):
        now = START + timedelta(seconds=seconds)
        rest = own.fresh(now) - now - duration
        assert own.quantum <= rest <= 2 * own.quantum
        assert own.fresh(own.fresh(now) - duration) == own.fresh(now) + own.quantum


@pytest.mark.new_collection
def test_setup_makes_the_index_whatever_the_ttl(mongo_face: Face) -> None:
    """Each collection has an index by which MongoDB removes what has expired, at the date.

    It holds what expires and nothing else, so a saver without a ttl need not care.
    """

    def made() -> list[Any]:
        found = [mongo_face.sibling(suffix).index_information().values() for suffix in SUFFIXES]
        fields = ("expireAfterSeconds", "partialFilterExpression")
        return [
            [tuple(i.get(f) for f in fields) for i in each if "expires" in str(i)] for each in found
        ]

    for options in ({}, {"ttl": 60}, {"ttl": 90}, {}):
        mongo_face.another(**options).setup()
        assert made() == [[(0, {"expires_at": {"$exists": True}})]] * 3


# --- what is written ---------------------------------------------------------------------------


def test_a_thread_expires_and_its_blobs_and_writes_a_quantum_later(
    ready: Face, thread: str
) -> None:
    """Every document of a thread has its date, the same for each checkpoint."""
    line = chat(ready, thread)
    assert expiries(ready, "", thread) == {datetime(2031, 5, 6, 19, tzinfo=START.tzinfo)}
    assert expiries(ready, ".writes", thread) == expiries(ready, ".blobs", thread)
    assert expiries(ready, ".blobs", thread) == {datetime(2031, 5, 6, 20, tzinfo=START.tzinfo)}
    line.check()


def test_without_a_ttl_nothing_expires(plain: Face, thread: str) -> None:
    """No document has the field."""
    chat(plain, thread)
    for suffix in SUFFIXES:
        assert not any("expires_at" in row for row in stored(plain, suffix, thread))


def test_puts_within_a_quantum_are_one_command_each(ready: Face, thread: str) -> None:
    """As long as the parent's date will do, a ttl costs nothing."""
    line = chat(ready, thread)
    for n in range(20, 24):
        assert sent_by(ready, lambda n=n: line.put({"n": n})) == [("insert", "")]
        at = line.at(-1)
        assert names(ready, lambda at=at: ready.put_writes(at, [("x", 1)], "t")) == ["insert"]
        assert len(names(ready, lambda at=at: ready.get_tuple(at))) == (
            4 if ready.stage.by_finds else 1
        )


def test_a_thread_is_moved_in_steps_while_it_is_used(
    ready: Face, thread: str, clock: Clock
) -> None:
    """In forty hours of use it always has its ttl, a put sends at most two commands more, and that
    for at most three puts of a quantum.
    """
    line = chat(ready, thread)
    dates = set()
    more = moving = 0
    for n in range(160):
        clock.later(15 * MINUTE)
        sent = names(ready, lambda n=n: line.put({"n": n}))
        extra = sum(name in ("find", "update") for name in sent)
        assert extra <= 2
        more += extra
        newest = stored(ready, "", thread)[-1]["expires_at"]
        dates.add(newest)
        moving += extra > 0
        assert newest >= clock.now + TTL
        assert newest <= clock.now + TTL + 2 * QUANTUM
        if n % 10 == 0:
            assert_promise(ready, thread)
    assert len(dates) <= 42
    assert moving <= 42 * 3
    assert more <= 42 * 6
    assert expiries(ready, "", thread) <= {newest, newest - QUANTUM}
    line.check()


def test_a_thread_that_was_idle_is_moved_at_once(ready: Face, thread: str, clock: Clock) -> None:
    """The first put after a pause moves everything, and the next ones nothing."""
    line = chat(ready, thread)
    chat(ready, thread, ns="inner")
    clock.later(8 * HOUR)
    sent = sent_by(ready, lambda: line.put({"n": 9}))
    assert sent == [
        ("find", ""),
        ("update", ".blobs"),
        ("update", ".writes"),
        ("update", ""),
        ("insert", ""),
    ]
    for suffix in SUFFIXES:
        assert len(expiries(ready, suffix, thread)) == 1
    [date] = expiries(ready, "", thread)
    assert date == Ttl(TTL).fresh(clock.now)
    assert names(ready, lambda: line.put({"n": 10})) == ["insert"]
    line.check()


def test_a_large_thread_is_moved_in_slices(
    ready: Face, thread: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No put in time moves many more documents than a slice, and all get there."""
    monkeypatch.setattr(expiry, "SLICE", 20)
    # Keys of blobs depend on versions, which have a random part.
    monkeypatch.setattr("mongosaver._base.random.random", random.Random(3).random)
    line = Line(ready, thread)
    for n in range(100):
        at = line.put({"n": n, "own": LARGE + str(n)})
        for task in range(3):
            ready.put_writes(at, [("x", n)], f"{random.Random(n * 3 + task).randrange(2**32):08x}")
    [old] = expiries(ready, "", thread)
    clock.later(1.5 * QUANTUM)
    counts: dict[str, int] = {}
    puts = 0
    while len(expiries(ready, "", thread)) > 1 or old in expiries(ready, "", thread):
        before = {s: dates_at(ready, s, thread) for s in SUFFIXES}
        line.put({"n": puts})
        puts += 1
        for suffix in SUFFIXES:
            moved = dates_at(ready, suffix, thread)
            changed = sum(moved[key] != date for key, date in before[suffix].items())
            assert changed <= 45  # the parts that are guessed are not all of one size
            counts[suffix] = counts.get(suffix, 0) + changed
        assert_promise(ready, thread) if puts % 5 == 0 else None
    assert 15 <= puts <= 60
    assert counts[""] >= 100
    assert counts[".writes"] == 300
    assert counts[".blobs"] >= 100
    for suffix in SUFFIXES:
        assert old not in expiries(ready, suffix, thread)
    assert_promise(ready, thread)
    line.check()


def dates_at(face: Face, suffix: str, thread: str) -> dict[Any, Any]:
    """Returns each document's date by its `_id`."""
    return {row["_id"]: row["expires_at"] for row in stored(face, suffix, thread)}


def test_another_process_moves_the_thread(ready: Face, thread: str, clock: Clock) -> None:
    """Savers that take turns on a thread keep its promise, whoever has moved it."""
    line = chat(ready, thread)
    others = [ready, clock.saver(ready, ttl=TTL), clock.saver(ready, ttl=TTL)]
    rng = random.Random(5)
    for n in range(60):
        clock.later(timedelta(minutes=rng.choice([1, 5, 20, 60, 300])))
        line.face = rng.choice(others)
        if rng.random() < 0.5:
            line.face.get_tuple(config(thread))
        line.put({"n": n, "chat": [f"{i} " * 900 for i in range(n + 12)]})
        assert_promise(ready, thread)
        assert stored(ready, "", thread)[-1]["expires_at"] >= clock.now + TTL
    line.check()


# --- what is read ------------------------------------------------------------------------------


def test_what_has_expired_is_not_read(ready: Face, plain: Face, thread: str, clock: Clock) -> None:
    """By no way of reading and by no saver, though the documents are still there."""
    line = chat(ready, thread)
    [date] = expiries(ready, "", thread)
    for reader in (ready, plain, clock.saver(ready, ttl=TTL)):
        clock.now = date - timedelta(milliseconds=1)
        line.check(reader)
        clock.now = date
        assert reader.get_tuple(config(thread)) is None
        assert reader.get_tuple(line.at(1)) is None
        assert reader.list(config(thread)) == []
        assert reader.list(line.at(1)) == []
        assert reader.list(None) == []
        assert list_threads(reader) == []


def list_threads(face: Face) -> list[Any]:
    """Lists threads."""
    if not face.awaited:
        return list(face.saver.list_threads())  # type: ignore[attr-defined]

    async def gather() -> list[Any]:
        return [row async for row in face.saver.alist_threads()]  # type: ignore[attr-defined]

    return face.run(gather())


@pytest.mark.parametrize("forgets", [False, True])
def test_a_put_on_an_expired_parent_stores_everything(
    ready: Face, thread: str, clock: Clock, forgets: bool
) -> None:
    """It takes nothing from the parent, neither from the cache nor from its document."""
    line = chat(ready, thread)
    [date] = expiries(ready, "", thread)
    clock.now = date + MINUTE
    line.face = clock.saver(ready, ttl=TTL) if forgets else ready
    line.put({"n": 9})
    for suffix in SUFFIXES:
        ready.sibling(suffix).delete_many({"expires_at": {"$lte": clock.now + QUANTUM}})
    assert ids(line.face.list(config(thread))) == line.ids[-1:]
    assert values_of(clock.saver(ready, ttl=TTL), config(thread)) == line.values


def test_a_copy_has_a_fresh_expiry(ready: Face, thread: str, clock: Clock) -> None:
    """A copy lives a whole ttl from its own beginning, and what has expired is not copied."""
    line = Line(ready, thread)
    line.put({"chat": LARGE})
    clock.later(TTL / 2)
    target = f"{thread} copy"
    ready.call("copy_thread", thread, target)
    assert_promise(ready, target)
    [date] = expiries(ready, "", target)
    assert date is not None
    assert clock.now + TTL <= date <= clock.now + TTL + 2 * QUANTUM
    clock.later(2 * TTL)
    ready.call("copy_thread", thread, f"{thread} late")
    assert stored(ready, "", f"{thread} late") == []


def test_an_expired_thread_does_not_come_back(ready: Face, thread: str, clock: Clock) -> None:
    """A thread of the same name that begins anew does not move what has expired."""
    line = chat(ready, thread)
    old = set(line.ids)
    clock.later(TTL + 2 * QUANTUM + MINUTE)
    fresh = chat(ready, thread)
    clock.later(8 * HOUR)
    fresh.put({"n": 9})
    assert {row["checkpoint_id"] for row in stored(ready, "", thread)} == {*old, *fresh.ids}
    assert ids(ready.list(config(thread))) == fresh.ids[::-1]
    fresh.check()


# --- what is in the way ------------------------------------------------------------------------


def test_blobs_that_are_there_live_on(ready: Face, thread: str, clock: Clock) -> None:
    """A put that finds a blob stored moves its date; one that never expires stays so."""
    made = checkpoint({"own": LARGE}, {"own": 1}, checkpoint_id="1")
    ready.put(config(thread), made, metadata(), {"own": 1})
    [date] = expiries(ready, ".blobs", thread)
    clock.later(TTL)
    made = checkpoint({"own": LARGE}, {"own": 1}, checkpoint_id="2")
    sent = names(ready, lambda: ready.put(config(thread), made, metadata(), {"own": 1}))
    assert len(sent) <= 7
    assert expiries(ready, ".blobs", thread) == {date + TTL}
    assert_promise(ready, thread)
    ready.sibling(".blobs").update_many({}, {"$unset": {"expires_at": ""}})
    made = checkpoint({"own": LARGE}, {"own": 1}, checkpoint_id="3")
    ready.put(config(thread), made, metadata(), {"own": 1})
    assert expiries(ready, ".blobs", thread) == {None}


def test_a_saver_without_a_ttl_keeps_the_blobs_that_it_finds(
    ready: Face, plain: Face, thread: str
) -> None:
    """A checkpoint that never expires does not rely on a blob that does."""
    for face, checkpoint_id in ((ready, "1"), (plain, "2")):
        made = checkpoint({"own": LARGE}, {"own": 1}, checkpoint_id=checkpoint_id)
        face.put(config(thread), made, metadata(), {"own": 1})
    assert expiries(ready, ".blobs", thread) == {None}


def test_a_blob_that_vanishes_while_it_is_in_the_way_is_stored_again(
    ready: Face, thread: str
) -> None:
    """The monitor may remove it between any two commands of the put."""
    for at in itertools.count():
        name, left = f"{thread} {at}", at
        made = checkpoint({"own": LARGE}, {"own": 1}, checkpoint_id="1")
        ready.put(config(name), made, metadata(), {"own": 1})
        ready.collection.delete_many({"thread_id": name})
        soon = {"$set": {"expires_at": START + timedelta(milliseconds=1)}}
        ready.sibling(".blobs").update_many({"thread_id": name}, soon)

        def vanish(_: Any, name: str = name) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                expired = {"thread_id": name, "expires_at": {"$lte": START + MINUTE}}
                ready.sibling(".blobs").delete_many(expired)

        with between_operations(ready, after=vanish):
            ready.put(config(name), made, metadata(), {"own": 1})
        assert values_of(ready.another(), config(name)) == {"own": LARGE}
        if left >= 0:
            break


def test_a_slot_written_twice_is_no_error_and_is_refreshed(
    ready: Face, thread: str, clock: Clock
) -> None:
    """Ordinary slots keep their value, special ones take the new one, and both live longer."""
    line = chat(ready, thread, 1)
    first, second = [("x", 1), ("y", 2)], [("x", 3), ("y", 4), ("z", 5)]
    ready.put_writes(line.at(0), first, "twice")
    ready.put_writes(line.at(0), [("__error__", 1), *first], "mixed")
    clock.later(5 * HOUR)
    before = expiries(ready, ".writes", thread)
    ready.put_writes(line.at(0), second, "twice")
    ready.put_writes(line.at(0), [("__error__", 2), *second], "mixed")
    found = [write for write in writes_of(ready, line.at(0)) if write[0] != "task"]
    assert sorted(found) == [
        ("mixed", "__error__", 2),
        ("mixed", "x", 1),
        ("mixed", "y", 2),
        ("mixed", "z", 5),
        ("twice", "x", 1),
        ("twice", "y", 2),
        ("twice", "z", 5),
    ]
    dates = {
        row["expires_at"] for row in stored(ready, ".writes", thread) if row["task_id"] != "task"
    }
    assert dates == {date + 5 * HOUR for date in before if date}
    assert_promise(ready, thread)


def test_a_checkpoint_put_twice(ready: Face, thread: str, clock: Clock) -> None:
    """The second put gives it the new date, and what it needs as well."""
    for _ in range(2):
        made = checkpoint({"own": LARGE, "n": 1}, {"own": "1", "n": "1"}, checkpoint_id="1")
        ready.put(config(thread), made, metadata(), {"own": "1", "n": "1"})
        assert expiries(ready, "", thread) == {Ttl(TTL).fresh(clock.now)}
        assert_promise(ready, thread)
        clock.later(5 * HOUR)


# --- whatever has been removed -----------------------------------------------------------------


def moments(face: Face, thread: str) -> list[datetime]:
    """Returns the times at which something of a thread expires."""
    return sorted({d for s in SUFFIXES for d in expiries(face, s, thread) if d is not None})


def assert_full_or_nothing(face: Face, clock: Clock, line: Line) -> None:
    """Asserts that whatever is read of a thread is one of its states, and whole."""
    reader = clock.saver(face, ttl=TTL)
    for at in (config(line.thread, line.ns), *(line.at(n) for n in range(len(line.ids)))):
        row = reader.get_tuple(at)
        if row is not None:
            own = row.config["configurable"]["checkpoint_id"]
            assert row.checkpoint["channel_values"] == line.expected[own]
            assert row.pending_writes, own
    for row in reader.list(config(line.thread, line.ns)):
        own = row.config["configurable"]["checkpoint_id"]
        assert row.checkpoint["channel_values"] == line.expected[own]


def small(face: Face, thread: str) -> Line:
    """Puts two checkpoints that share a blob, with a write each."""
    line = Line(face, thread)
    for n in range(2):
        at = line.put({"own": LARGE} if n == 0 else {"n": n}, checkpoint_id=f"{n}")
        face.put_writes(at, [("x", n)], "task")
    return line


def test_every_subset_of_expired_documents(ready: Face, thread: str, clock: Clock) -> None:
    """After a move that broke off anywhere, whatever the monitor has removed at whatever time, a
    reader sees a full state, an older full state or nothing.
    """
    lines: dict[str, Line] = {}

    def fill(name: str) -> None:
        clock.now = START
        lines[name] = small(ready, name)

    def act(name: str) -> None:
        clock.now = START + 8 * HOUR
        lines[name].put({"own": LARGE + "2", "n": 2}, checkpoint_id="2")

    broken = list(at_each_operation(ready, thread, fill, act))
    assert len(broken) >= 5
    for name in (*broken, f"{thread} {len(broken)}"):
        line = lines[name]
        if len(line.ids) == 2:  # it broke off, and may still have been stored
            line.expected["2"] = {"own": LARGE + "2", "n": 2}
        clock.now = START + 8 * HOUR
        # What it has written goes with the newest checkpoint, if that is there.
        for row in stored(ready, "", name):
            ready.put_writes(config(name, "", row["checkpoint_id"]), [("x", 0)], "task")
        assert_promise(ready, name)
        every_subset(ready, clock, line)


def every_subset(face: Face, clock: Clock, line: Line) -> None:
    """Removes each subset of what has expired at each time, and looks at what is read.

    From one subset to the next a single document goes or comes back.
    """
    for now in moments(face, line.thread):
        clock.now = now
        expired = [
            (suffix, row)
            for suffix in SUFFIXES
            for row in face.sibling(suffix).find({"thread_id": line.thread})
            if row.get("expires_at") and row["expires_at"].replace(tzinfo=timezone.utc) <= now
        ]
        gone: set[int] = set()
        for step in range(1, 2 ** len(expired)):
            at = (step & -step).bit_length() - 1  # of the Gray code, the digit that changes
            suffix, row = expired[at]
            if at in gone:
                face.sibling(suffix).insert_one(row)
            else:
                face.sibling(suffix).delete_one({"_id": row["_id"]})
            gone ^= {at}
            assert_full_or_nothing(face, clock, line)
        for at in gone:
            face.sibling(expired[at][0]).insert_one(expired[at][1])


def test_history_of_what_has_expired(ready: Face, thread: str, clock: Clock) -> None:
    """The latest is never an expired checkpoint; who has just read one still gets its history."""
    tree = Tree(ready, thread)
    for n in range(3):
        tree.put(wrote={"d": n} if n else {}, snapshots=["d"] if n == 0 else [])
    [expiry] = expiries(ready, "", thread)
    assert expiry is not None

    def history(checkpoint_id: str | None) -> Any:
        at = config(thread, "", checkpoint_id)
        return ready.call("get_delta_channel_history", config=at, channels=["d"]).get("d")

    full = history(None)
    assert full == history("0002")
    assert [value for _, _, value in full["writes"]] == [1, 2]
    clock.now = expiry + timedelta(minutes=1)
    assert history("0002") == full
    assert history(None) in (None, {"writes": []})
    clock.now = expiry + timedelta(minutes=10)
    assert history("0002") in (None, {"writes": []})


def test_delta_channels_do_not_outlive_their_ancestors(
    ready: Face, thread: str, clock: Clock
) -> None:
    """A move that breaks off between any two checkpoints leaves no channel without its writes."""
    for broken_after in range(7):
        clock.now = START
        name = f"{thread} {broken_after}"
        tree = Tree(ready, name)
        for n in range(6):
            tree.put({"d": [n]}, snapshots=["d"] if n == 0 else [])
        states = {
            i: ready.call("get_delta_channel_history", config=config(name, "", i), channels=["d"])
            for i in tree.ids
        }
        clock.now = START + 8 * HOUR
        half(ready, broken_after, lambda tree=tree: tree.put({"d": [9]}))
        assert_promise(ready, name)
        for now in moments(ready, name):
            clock.now = now
            for suffix in SUFFIXES:
                ready.sibling(suffix).delete_many({"thread_id": name, "expires_at": {"$lte": now}})
            reader = clock.saver(ready, ttl=TTL)
            for row in reader.list(config(name)):
                own = row.config["configurable"]["checkpoint_id"]
                found = reader.call("get_delta_channel_history", config=row.config, channels=["d"])
                assert own not in states or found == states[own]


def half(face: Face, count: int, act: Any) -> None:
    """Lets the first update of checkpoints end after so many of them."""

    def cut(op: Any) -> None:
        if isinstance(op, expiry.Updates):
            for each in op.updates[:count]:
                face.collection.update_one(each.filter, each.update)
            raise Interrupted

    with between_operations(face, before=cut), pytest.raises(Interrupted):
        act()


# --- reading counts ----------------------------------------------------------------------------


def test_reading_refreshes_only_if_told(ready: Face, thread: str, clock: Clock) -> None:
    """With `refresh_on_read` a read keeps the thread like a save, in as few commands."""
    line = chat(ready, thread)
    [old] = expiries(ready, "", thread)
    reader = clock.saver(ready, ttl=TTL, refresh_on_read=True)
    usual = names(reader, lambda: reader.get_tuple(config(thread)))
    clock.later(8 * HOUR)
    ready.get_tuple(config(thread))
    assert expiries(ready, "", thread) == {old}
    assert len(names(reader, lambda: reader.get_tuple(config(thread)))) == len(usual) + 4
    assert expiries(ready, "", thread) == {Ttl(TTL).fresh(clock.now)}
    assert names(reader, lambda: reader.get_tuple(config(thread))) == usual
    clock.later(QUANTUM + MINUTE)
    for _ in range(3):
        assert len(names(reader, lambda: reader.get_tuple(line.at(0)))) == len(usual) + 2
    assert expiries(ready, "", thread) == {Ttl(TTL).fresh(clock.now)}
    assert names(reader, lambda: reader.get_tuple(config(thread))) == usual
    assert_promise(ready, thread)
    line.check()


def test_reading_never_shortens_nor_begins_a_ttl(
    plain: Face, ready: Face, thread: str, clock: Clock
) -> None:
    """A read of a thread that never expires, or later than the reader's ttl, changes nothing."""
    chat(plain, thread)
    chat(ready, thread + "2")
    dates = expiries(ready, "", thread + "2")
    reader = clock.saver(ready, ttl=HOUR, refresh_on_read=True)
    for name in (thread, thread + "2"):
        reader.get_tuple(config(name))
    assert expiries(plain, "", thread) == {None}
    assert expiries(plain, "", thread + "2") == dates


# --- savers that differ ------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("old", [None, 2 * HOUR, 500 * HOUR])
@pytest.mark.parametrize("new", [None, 2 * HOUR, 500 * HOUR])
def test_the_saver_that_saves_last_decides(
    plain: Face, thread: str, clock: Clock, old: Any, new: Any, reads: bool
) -> None:
    """A saver with another ttl, or none, moves a thread that it goes on with as a whole."""
    line = chat(clock.saver(plain, ttl=old), thread)
    line.face = clock.saver(plain, ttl=new)
    if reads:
        line.face.get_tuple(config(thread))
    line.put({"n": 9})
    expected = None if new is None else Ttl(new).fresh(clock.now)
    assert expiries(plain, "", thread) == {expected}
    for suffix in (".blobs", ".writes"):
        assert expiries(plain, suffix, thread) == {expected and expected + Ttl(new or HOUR).quantum}
    assert_promise(plain, thread)
    line.check()


@pytest.mark.parametrize("old", [None, 500 * HOUR])
def test_a_move_to_an_earlier_date_breaks_off(
    plain: Face, thread: str, clock: Clock, old: Any
) -> None:
    """Checkpoints go first then, so that none outlives what it needs, and a second try ends it."""
    lines: dict[str, Line] = {}

    def fill(name: str) -> None:
        lines[name] = chat(clock.saver(plain, ttl=old), name)

    saver = clock.saver(plain, ttl=TTL)

    def act(name: str) -> None:
        lines[name].face = saver
        lines[name].put({"n": 9})

    broken = list(at_each_operation(saver, thread, fill, act))
    assert len(broken) >= 5
    for name in broken:
        assert_promise(plain, name)
        line = lines[name]
        line.face = clock.saver(plain, ttl=TTL)
        line.ids = [row["checkpoint_id"] for row in stored(plain, "", name)]
        line.put({"n": 10})
        line.check()
        assert_promise(plain, name)
        assert expiries(plain, "", name) == {Ttl(TTL).fresh(clock.now)}


def test_a_call_with_its_own_ttl(ready: Face, thread: str, clock: Clock) -> None:
    """`mongosaver_ttl` in the config decides for that call; metadata keep it like other scalars."""
    at: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "", "mongosaver_ttl": 3600}}
    made = checkpoint({"own": LARGE}, {"own": "1"}, checkpoint_id="1")
    done = ready.put(at, made, metadata(), {"own": "1"})
    date = Ttl(HOUR).fresh(clock.now)
    assert expiries(ready, "", thread) == {date}
    at["configurable"]["checkpoint_id"] = "1"
    ready.put_writes(at, [("x", 1)], "task")
    assert expiries(ready, ".writes", thread) == {date + 10 * MINUTE}
    row = ready.get_tuple(done)
    assert row is not None
    assert row.metadata["mongosaver_ttl"] == 3600  # type: ignore[typeddict-item]
    at["configurable"]["mongosaver_ttl"] = 100 * HOUR
    ready.put(at, checkpoint({}, {}, checkpoint_id="2"), metadata(), {})
    assert expiries(ready, "", thread) == {Ttl(100 * HOUR).fresh(clock.now)}
    assert_promise(ready, thread)
    at["configurable"]["mongosaver_ttl"] = None
    ready.put(at, checkpoint({}, {}, checkpoint_id="3"), metadata(), {})
    assert expiries(ready, "", thread) == {Ttl(TTL).fresh(clock.now)}


def test_a_ttl_of_a_call_that_is_none(ready: Face, plain: Face, thread: str) -> None:
    """It is refused before anything is sent, as it is where the saver has no ttl."""
    for face, ttl in ((ready, "soon"), (ready, 0), (plain, 60)):
        at: Any = {"configurable": {"thread_id": thread, "mongosaver_ttl": ttl}}
        with face.commands.recorded() as sent:
            with pytest.raises(ConfigurationError, match="mongosaver_ttl"):
                face.put(at, checkpoint(), metadata(), {})
            at["configurable"]["checkpoint_id"] = "1"
            with pytest.raises(ConfigurationError, match="mongosaver_ttl"):
                face.put_writes(at, [("x", 1)], "task")
        assert sent == []


# --- threads that nobody uses ------------------------------------------------------------------


@pytest.fixture
def threads(plain: Face, thread: str, clock: Clock) -> dict[str, Line]:
    """Five threads that never expire, each saved an hour after the one before."""
    lines = {}
    for n in range(5):
        clock.now = START + n * HOUR
        lines[f"{thread} {n}"] = chat(plain, f"{thread} {n}")
    return lines


def assert_applied(face: Face, lines: dict[str, Line], ttl: timedelta | None) -> None:
    """Asserts that each thread expires so long after it was last saved."""
    for n, name in enumerate(lines):
        date = None if ttl is None else Ttl(ttl).fresh(START + n * HOUR)
        later = date and date + Ttl(ttl or HOUR).quantum
        assert expiries(face, "", name) == {date}
        assert expiries(face, ".blobs", name) == expiries(face, ".writes", name) == {later}
        assert_promise(face, name)
        for line in lines.values():
            line.check(face.another())


def test_turning_a_ttl_on_changing_it_and_turning_it_off(
    plain: Face, threads: dict[str, Line], clock: Clock
) -> None:
    """`apply_ttl` of a saver lets what is stored expire as the saver's ttl says, or never."""
    for ttl in (500 * HOUR, 100 * HOUR, 900 * HOUR, None):
        saver = clock.saver(plain, ttl=ttl)
        seen: list[TtlProgress] = []
        done = saver.call("apply_ttl", progress=seen.append)
        assert done == seen[-1]
        assert done.done
        assert (done.threads, done.changed, done.checkpoints, done.expired) == (5, 5, 15, 0)
        assert_applied(plain, threads, ttl)
        again = saver.call("apply_ttl")
        assert (again.threads, again.changed) == (5, 0)


def test_applying_a_ttl_without_doing_it(
    plain: Face, threads: dict[str, Line], clock: Clock
) -> None:
    """A dry run counts, also what would expire at once, and changes nothing."""
    saver = clock.saver(plain, ttl=2 * HOUR)
    done = saver.call("apply_ttl", dry_run=True)
    # Two hours, and a quantum of twelve minutes twice at most.
    assert (done.threads, done.changed, done.checkpoints, done.expired) == (5, 5, 15, 2)
    assert_applied(plain, threads, None)
    assert saver.call("apply_ttl").expired == 2
    assert [row.thread_id for row in list_threads(saver)] == list(threads)[:1:-1]


def test_applying_a_ttl_breaks_off(plain: Face, threads: dict[str, Line], clock: Clock) -> None:
    """After whichever operation: promises hold, and the next call finishes it from where it was."""
    some = {name: threads[name] for name in list(threads)[:2]}
    for at in itertools.count():
        ttl = 500 * HOUR if at % 2 else None
        saver, left = clock.saver(plain, ttl=ttl), at
        seen: list[TtlProgress] = []

        def count(_: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted

        try:
            with between_operations(saver, after=count):
                saver.call("apply_ttl", thread_ids=list(some), progress=seen.append)
        except Interrupted:
            for name in some:
                assert_promise(plain, name)
            start = seen[-1].last_thread_id if seen else None
            saver.call("apply_ttl", thread_ids=list(some), after=start)
            assert_applied(plain, some, ttl)
        else:
            break
    assert at > 8


def test_applying_a_ttl_to_some_threads(
    plain: Face, threads: dict[str, Line], clock: Clock, thread: str
) -> None:
    """Named threads only; and a call goes on after the thread that it is told."""
    saver = clock.saver(plain, ttl=TTL)
    some = [f"{thread} {n}" for n in (3, 1)]
    done = saver.call("apply_ttl", thread_ids=[*some, "nobody"])
    assert (done.threads, done.changed) == (3, 2)
    finite = [name for name in threads if expiries(plain, "", name) != {None}]
    assert finite == sorted(some)
    done = saver.call("apply_ttl", after=f"{thread} 2")
    assert (done.threads, done.changed, done.last_thread_id) == (2, 1, f"{thread} 4")
    with pytest.raises(TypeError):
        saver.call("apply_ttl", thread_ids=thread)


def test_applying_a_ttl_beside_a_saver_that_remembers(
    plain: Face, thread: str, clock: Clock
) -> None:
    """A saver that knows the thread from before goes on with it, and nothing it needs expires."""
    for old in (None, 900 * HOUR, HOUR):
        name = f"{thread} {old}"
        saver = clock.saver(plain, ttl=TTL)
        line = chat(clock.saver(plain, ttl=old), name)
        saver.get_tuple(config(name))
        clock.saver(plain, ttl=TTL).call("apply_ttl")
        line.face = saver
        line.put({"n": 9})
        assert_promise(plain, name)
        line.check()


def test_the_least_distance_of_dates_is_an_option_of_tests(ready: Face, thread: str) -> None:
    """Ten minutes are the least, which a test of the real monitor makes shorter."""
    saver: Any = ready.saver
    saver._ttl = replace(saver._ttl, duration=timedelta(seconds=5), least=timedelta(seconds=1))
    chat(ready, thread, 1)
    [date] = expiries(ready, "", thread)
    assert date is not None
    assert timedelta(seconds=6) <= date - START <= timedelta(seconds=7)


@pytest.mark.parametrize("seed", range(3))
def test_anything_may_break_off_and_be_removed(
    ready: Face, thread: str, clock: Clock, seed: int
) -> None:
    """Savers take turns, break off, come late, begin anew; the monitor removes what it likes."""
    rng = random.Random(seed)
    savers = [clock.saver(ready, ttl=TTL, refresh_on_read=n == 2) for n in range(3)]
    line = Line(ready, thread)
    states: dict[str, dict[str, Any]] = {}
    for step in range(70):
        clock.later(timedelta(minutes=rng.choice([1, 10, 20, 40, 90, 400, 700, 900])))
        for suffix in SUFFIXES:
            for row in stored(ready, suffix, thread):
                if row["expires_at"] <= clock.now and rng.random() < 0.5:
                    ready.sibling(suffix).delete_one({"_id": row["_id"]})
        face = line.face = rng.choice(savers)
        found = face.get_tuple(config(thread))
        if found is None:
            line = Line(face, thread)
        else:
            own = found.config["configurable"]["checkpoint_id"]
            assert found.checkpoint["channel_values"] == states[own]
            line.ids, line.values = [own], dict(states[own])
            line.versions = dict(found.checkpoint["channel_versions"])
        left = rng.choice([0, 1, 2, 3, 4, 99, 99, 99])

        def count(_: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted

        values = {"n": step, "chat": [f"{i} " * 900 for i in range(9 + step % 7)]}
        own = f"{step:04}"
        states[own] = {**line.values, **values}
        try:
            with between_operations(face, after=count):
                at = line.put(values, checkpoint_id=own)
                face.put_writes(at, [("x", step), ("__error__", step)], "task")
        except Interrupted:
            line = Line(face, thread)
        assert_promise(ready, thread, clock.now)
        for row in clock.saver(ready, ttl=TTL).list(config(thread)):
            own = row.config["configurable"]["checkpoint_id"]
            assert row.checkpoint["channel_values"] == states[own]
