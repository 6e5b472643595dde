"""Removing a thread while a graph runs on it: every interleaving of the commands of two plans.

Plans do no I/O, so a test can hold two of them and decide, operation by operation, which one goes
on: every order in which a server can see the commands is tried, on a real server. After each
operation somebody who knows nothing reads the thread, in each way that there is. What must hold:

- a reader sees a full state or none: never a part of one, never an error (but see below);
- what a graph puts on a removed checkpoint is skipped with a warning where it is not full;
- a removal that ends early can be repeated, and then nothing is left.

A checkpoint without a parent that is put in the middle of a removal is the exception: nothing tells
it from one that was damaged, so a reader may get the error for damage while the removal lasts.

What removes is a table, see `REMOVALS`: another way of removing a thread is one more line in it.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from mongosaver import IncompleteCheckpoint
from mongosaver.ops import Aggregate, Compute, Count, Delete, Find, Op, Plan
from mongosaver.plans import delete, prune, read, runs, write
from mongosaver.plans.context import Context
from mongosaver.schema import Name
from tests.contract.clocks import Clock
from tests.contract.samples import checkpoint, config, id_of, metadata
from tests.faces import ON_MONGODB, read_by_finds

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import Checkpoint, CheckpointTuple

    from tests.faces import Face, Stage


# --- what removes, what runs -------------------------------------------------------------------


@dataclass(frozen=True)
class Removal:
    """One way of removing a thread.

    Attributes:
        name: What it is called in the tests' names.
        plan: Makes its plan, given a saver's surroundings and the thread.
        empties: Whether nothing of the thread is left where nobody disturbs it.
    """

    name: str
    plan: Callable[[Context, str], Plan[Any]]
    empties: bool = True


REMOVALS = [
    Removal("delete_thread", delete.delete_thread),
    Removal("prune", lambda ctx, thread: prune.prune(ctx, [thread], strategy="delete")),
]
ROLLBACK = Removal("rollback", lambda ctx, thread: runs.delete_for_runs(ctx, [run_of(thread)]))

removals = pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: removal.name)


@dataclass(frozen=True)
class Put:
    """What a running graph does meanwhile.

    Attributes:
        warm: Whether its saver knows how the parent is stored.
        in_transaction: Whether blobs and checkpoint are written in one transaction, where the
            server has any; else in sequence.
        parent: Index of the parent among the checkpoints of the thread; None for none, as where a
            subgraph begins or a thread begins again.
        ns: The namespace.
        adds: Characters by which the list grows; a few of them wait in the checkpoint document.
    """

    warm: bool
    in_transaction: bool
    parent: int | None = -1
    ns: str = ""
    adds: int = 20_000

    def __str__(self) -> str:
        where = "root" if self.parent is None else "fork" if self.parent != -1 else "next"
        how = "transaction" if self.in_transaction else "sequence"
        what = "" if self.adds > 10_000 else "-small"
        return f"{where}-{'warm' if self.warm else 'cold'}-{how}{what}"


def run_of(thread_id: str) -> str:
    """The run that puts all of a thread."""
    return f"run of {thread_id}"


def big(seed: int, size: int = 20_000) -> str:
    """Text that, where it is long, is never kept inside a checkpoint document."""
    return f"{seed:07} " * (size // 8)


@dataclass
class Thread:
    """A thread, and what each checkpoint that was ever put on it must read.

    Attributes:
        face: The saver of the graph that runs.
        id: The thread's id.
        expected: Channel values by (namespace, checkpoint id).
        order: Ids of the checkpoints of the root namespace, oldest first.
        versions: Channel versions by checkpoint id.
    """

    face: Face
    id: str = field(default_factory=lambda: f"thread {uuid.uuid4()}")
    expected: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    versions: dict[str, dict[str, Any]] = field(default_factory=dict)

    def next(self, put: Put) -> tuple[RunnableConfig, Checkpoint, dict[str, Any]]:
        """Makes a checkpoint with a list that grows, a large value that stays, and a small one."""
        parent = None if put.parent is None else self.order[put.parent]
        number = len(self.order)
        if parent is None:
            values: dict[str, Any] = {"messages": [], "file": big(-1), "step": 0}
            versions: dict[str, Any] = {}
        else:
            values, versions = dict(self.expected["", parent]), dict(self.versions[parent])
        values |= {"messages": [*values["messages"], big(number, put.adds)], "step": number}
        changed = values if parent is None else ("messages", "step")
        for channel in changed:
            versions[channel] = self.face.saver.get_next_version(versions.get(channel), None)
        made = checkpoint(values, versions)
        self.expected[put.ns, made["id"]] = values
        self.versions[made["id"]] = versions
        if not put.ns:
            self.order.append(made["id"])
        at = config(self.id, put.ns, parent)
        at["metadata"] = {"run_id": run_of(self.id)}
        return at, made, {channel: versions[channel] for channel in changed}

    def put(self, put: Put) -> RunnableConfig:
        """Puts one more checkpoint."""
        at, made, new = self.next(put)
        return self.face.put(at, made, metadata(), new)

    def putting(self, put: Put, cold: Callable[[], Face] | None = None) -> Stepped:
        """Returns the same as a plan that has not begun; `cold` makes savers that know nothing."""
        face = self.face if put.warm else (cold or self.face.another)()
        face.saver._driver.bound.refuses_transactions = not put.in_transaction  # type: ignore[attr-defined]
        at, made, new = self.next(put)
        return Stepped(face, write.put(surroundings(face), at, made, metadata(), new))


def surroundings(face: Face) -> Context:
    """Returns what a face's saver gives its plans."""
    context: Context = face.saver._context()  # type: ignore[attr-defined]
    return context


class Stepped:
    """A plan that goes on when it is told to, by a saver's own driver.

    Attributes:
        face: The saver.
        op: The operation that comes next.
        done: Whether the plan has come to its end.
        result: What it returned.
    """

    def __init__(self, face: Face, plan: Plan[Any]) -> None:
        self.face, self.plan = face, plan
        self.done, self.result = False, None
        self.op: Op | None = None
        self._go_on(lambda: next(plan))

    def step(self) -> None:
        """Does the next operation, and what follows from it without asking the server."""
        assert self.op is not None
        try:
            result = self._do(self.op)
        except Exception as error:
            raised = error
            self._go_on(lambda: self.plan.throw(raised))
        else:
            self._go_on(lambda: self.plan.send(result))

    def finish(self) -> Any:
        """Does all that is left and returns the plan's result."""
        while not self.done:
            self.step()
        return self.result

    def crash(self) -> None:
        """Ends the plan where it is."""
        self.plan.close()
        self.done = True

    def _go_on(self, move: Callable[[], Op]) -> None:
        try:
            self.op = move()
            while isinstance(self.op, Compute):
                self.op = self.plan.send(self.op.function())
        except StopIteration as stop:
            self.done, self.op, self.result = True, None, stop.value

    def _do(self, op: Op) -> Any:
        done = self.face.saver._driver._do(op)  # type: ignore[attr-defined]
        return self.face.run(done) if inspect.iscoroutine(done) else done


# --- every interleaving ------------------------------------------------------------------------


class Choices:
    """Decisions of one run: a given beginning, then always the first alternative."""

    def __init__(self, beginning: Sequence[int]) -> None:
        self.beginning = beginning
        self.taken: list[int] = []
        self.alternatives: list[int] = []

    @property
    def is_new(self) -> bool:
        """Whether no earlier run came to this point."""
        return len(self.taken) >= len(self.beginning)

    def __call__(self, alternatives: int) -> int:
        at = len(self.taken)
        choice = self.beginning[at] if at < len(self.beginning) else 0
        self.taken.append(choice)
        self.alternatives.append(alternatives)
        return choice


def explore(play: Callable[[Choices], None]) -> int:
    """Runs `play` once for each way to decide; returns how many there were."""
    waiting: list[list[int]] = [[]]
    runs = 0
    while waiting:
        choices = Choices(waiting.pop())
        play(choices)
        runs += 1
        for at in range(len(choices.beginning), len(choices.taken)):
            for other in range(1, choices.alternatives[at]):
                waiting.append([*choices.taken[:at], other])
    return runs


def interleave(
    plans: Sequence[Stepped], choices: Choices, after_each: Callable[[], None] | None = None
) -> None:
    """Steps plans in the order that is chosen.

    Calls `after_each` after each operation that writes, where no run has been yet. Of two orders in
    which nobody can see a difference, because a find changes places with what it does not look at,
    one is left out.
    """
    last: tuple[int, Op] | None = None
    while alive := [at for at, plan in enumerate(plans) if not plan.done]:
        fresh = [
            at for at in alive if not (last and at < last[0] and commute(plans[at].op, last[1]))
        ]
        open_ = fresh or alive
        at = open_[choices(len(open_)) if len(open_) > 1 else 0]
        op = plans[at].op
        assert op is not None
        plans[at].step()
        last = at, op
        if after_each and is_write(op) and choices.is_new:
            after_each()


def is_write(op: Op) -> bool:
    """Whether an operation may change what is stored."""
    return not isinstance(op, (Find, Aggregate, Count))


def commute(one: Op | None, other: Op) -> bool:
    """Whether one of the two is a find that does not look at what the other changes."""
    if isinstance(other, Find):
        one, other = other, one  # type: ignore[assignment]
    if not isinstance(one, Find):
        return False
    where = getattr(other, "collection", None)
    return not is_write(other) or (where is not None and where is not one.collection)


# --- who reads ---------------------------------------------------------------------------------


def readers(face: Face) -> list[Face]:
    """Returns savers on the same data that know nothing, one for each way of reading."""
    found = [face.another(), face.another()]
    read_by_finds(found[1].saver)
    return found


def is_full(thread: Thread, row: CheckpointTuple) -> bool:
    """Whether a row has exactly what was put."""
    ns = row.config["configurable"]["checkpoint_ns"]
    return row.checkpoint["channel_values"] == thread.expected[ns, id_of(row)]


def look(thread: Thread, reader: Face) -> list[str]:
    """Asserts that all one can read of a thread is full; returns the ids that can be read."""
    seen = []
    for ns, checkpoint_id in thread.expected:
        row = reader.get_tuple(config(thread.id, ns, checkpoint_id))
        if row is not None:
            assert is_full(thread, row), "a hole"
            seen.append(checkpoint_id)
    for ns in {ns for ns, _ in thread.expected}:
        latest = reader.get_tuple(config(thread.id, ns))
        ids = [i for n, i in thread.expected if n == ns and i in seen]
        assert (id_of(latest) if latest else None) == max(ids, default=None)
    listed = reader.list({"configurable": {"thread_id": thread.id}})
    assert all(is_full(thread, row) for row in listed)
    assert sorted(id_of(row) for row in listed) == sorted(seen)
    return seen


def glance(thread: Thread, by_aggregate: Face, by_finds: Face, ns: str = "") -> None:
    """The same of one namespace in three calls: the latest checkpoint in two ways, and a list."""
    listed = by_finds.list(config(thread.id, ns))
    assert all(is_full(thread, row) for row in listed), "a hole"
    for reader in (by_aggregate, by_finds):
        latest = reader.get_tuple(config(thread.id, ns))
        assert [latest and latest.config] == [listed[0].config if listed else None]
        assert latest is None or is_full(thread, latest), "a hole"


def counts(face: Face, thread_id: str) -> list[int]:
    """Returns how many checkpoints, writes and blobs there are of a thread."""
    return [
        face.sibling(suffix).count_documents({"thread_id": thread_id})
        for suffix in ("", ".writes", ".blobs")
    ]


@pytest.fixture
def make(stage: Stage) -> Iterator[Callable[..., Face]]:
    """Makes faces by name, all on one collection, which is dropped afterwards."""
    collection = f"races_{uuid.uuid4().hex[:12]}"
    made: list[Face] = []

    def one(name: str) -> Face:
        made.append(ON_MONGODB[name](stage, collection))
        made[-1].setup()
        return made[-1]

    yield one
    made[0].drop()


def begun(face: Face) -> Thread:
    """Returns a thread of three checkpoints, with pending writes on the last one."""
    thread = Thread(face)
    thread.put(Put(warm=True, in_transaction=True, parent=None))
    for _ in range(2):
        at = thread.put(Put(warm=True, in_transaction=True))
    at["metadata"] = {"run_id": run_of(thread.id)}
    face.put_writes(at, [("messages", big(9)), ("step", 9)], "task")
    return thread


def removing(face: Face, removal: Removal, thread: Thread) -> Stepped:
    """Returns the plan of a removal by another saver."""
    other = face.another()
    return Stepped(other, removal.plan(surroundings(other), thread.id))


def remove(face: Face, removal: Removal, thread: Thread) -> None:
    """Removes a thread without disturbance."""
    removing(face, removal, thread).finish()
    if removal.empties:
        assert counts(face, thread.id) == [0, 0, 0]


# --- a put beside a removal --------------------------------------------------------------------

ON_A_PARENT = [
    Put(warm=True, in_transaction=True),
    Put(warm=True, in_transaction=False),
    Put(warm=False, in_transaction=False),
    Put(warm=True, in_transaction=False, parent=-2),
    Put(warm=True, in_transaction=False, adds=800),
]
ROOTS = [
    Put(warm=False, in_transaction=True, parent=None, ns="subgraph"),
    Put(warm=False, in_transaction=False, parent=None, ns="subgraph"),
]


@removals
@pytest.mark.parametrize("put", ON_A_PARENT, ids=str)
def test_put_and_removal_in_every_order(
    make: Callable[..., Face], removal: Removal, put: Put
) -> None:
    """Between any two commands a reader finds full states only, and repeating removes all.

    The graph goes on afterwards: its next checkpoints are full, or skipped like their parent.
    """
    face = make("sync")
    by_aggregate, by_finds = readers(face)

    def play(choices: Choices) -> None:
        thread = begun(face)
        plans = [thread.putting(put), removing(face, removal, thread)]
        interleave(plans, choices, lambda: glance(thread, by_aggregate, by_finds))
        look(thread, by_finds)
        thread.put(Put(warm=True, in_transaction=put.in_transaction))
        look(thread, by_aggregate)
        remove(face, removal, thread)
        glance(thread, by_aggregate, by_finds)

    assert explore(play) > 1


@removals
@pytest.mark.parametrize("put", ROOTS, ids=str)
def test_first_checkpoint_and_removal_in_every_order(
    make: Callable[..., Face], removal: Removal, put: Put
) -> None:
    """A checkpoint without a parent is full or none when both have ended, and never a hole."""
    face = make("sync")
    by_aggregate, by_finds = readers(face)

    def play(choices: Choices) -> None:
        thread = begun(face)
        plans = [thread.putting(put), removing(face, removal, thread)]

        def check() -> None:
            glance(thread, by_aggregate, by_finds)
            with contextlib.suppress(IncompleteCheckpoint):
                glance(thread, by_aggregate, by_finds, put.ns)

        interleave(plans, choices, check)
        glance(thread, by_aggregate, by_finds, put.ns)
        remove(face, removal, thread)
        glance(thread, by_aggregate, by_finds, put.ns)

    assert explore(play) > 1


@pytest.mark.parametrize("put", [ON_A_PARENT[0], ON_A_PARENT[1]], ids=str)
def test_put_and_rollback_in_every_order(make: Callable[..., Face], put: Put) -> None:
    """A late checkpoint of a run that is rolled back is full, or skipped, and goes with the next
    call; rolling back looks more often than the others, so it does so beside two puts only.
    """
    face = make("sync")
    by_aggregate, by_finds = readers(face)

    def play(choices: Choices) -> None:
        thread = begun(face)
        plans = [thread.putting(put), removing(face, ROLLBACK, thread)]
        interleave(plans, choices, lambda: glance(thread, by_aggregate, by_finds))
        look(thread, by_finds)
        removing(face, ROLLBACK, thread).finish()
        assert counts(face, thread.id)[:2] == [0, 0]
        glance(thread, by_aggregate, by_finds)

    assert explore(play) > 10


@pytest.mark.parametrize("put", ON_A_PARENT, ids=str)
def test_put_and_expiry_in_every_order(make: Callable[..., Face], put: Put) -> None:
    """A thread that expires while it is put to lives on whole, or a reader finds none of it.

    The put begins a minute before the thread expires, and the monitor comes a minute after: it
    removes what has expired by then, in an order that is the worst one for readers.
    """
    clock = Clock(datetime.now(timezone.utc))
    plain = make("sync")
    face = clock.saver(plain, ttl=timedelta(hours=10))
    read_by = [clock.saver(plain), clock.saver(plain)]
    read_by_finds(read_by[1].saver)

    def monitor() -> Plan[None]:
        for name in (Name.BLOBS, Name.WRITES, Name.CHECKPOINTS):
            yield Delete(name, {"expires_at": {"$lte": clock.now}})

    def play(choices: Choices) -> None:
        clock.now = datetime.now(timezone.utc)
        thread = begun(face)
        [expiry] = face.collection.distinct("expires_at", {"thread_id": thread.id})
        clock.now = expiry.replace(tzinfo=timezone.utc) - timedelta(minutes=1)
        if put.warm:
            assert face.get_tuple(config(thread.id)) is not None
        putting = thread.putting(put, lambda: clock.saver(plain, ttl=timedelta(hours=10)))
        clock.later(timedelta(minutes=2))
        plans = [putting, Stepped(plain, monitor())]
        interleave(plans, choices, lambda: glance(thread, *read_by))
        look(thread, read_by[1])
        thread.put(Put(warm=True, in_transaction=put.in_transaction))
        assert look(thread, read_by[0])[-1:] == thread.order[-1:]
        face.delete_thread(thread.id)

    assert explore(play) > 1


@removals
@pytest.mark.parametrize("name", ["async", "motor"])
def test_put_and_removal_in_every_order_awaited(
    make: Callable[..., Face], removal: Removal, name: str
) -> None:
    """The same through the drivers that are awaited."""
    face = make(name)
    by_aggregate, by_finds = readers(face)

    def play(choices: Choices) -> None:
        thread = begun(face)
        plans = [thread.putting(ON_A_PARENT[1]), removing(face, removal, thread)]
        interleave(plans, choices)
        glance(thread, by_aggregate, by_finds)
        remove(face, removal, thread)

    assert explore(play) > 1


@removals
def test_writes_and_removal_in_every_order(make: Callable[..., Face], removal: Removal) -> None:
    """Pending writes that arrive beside a removal are no state, and repeating removes them."""
    face = make("sync")
    by_aggregate, by_finds = readers(face)

    def play(choices: Choices) -> None:
        thread = begun(face)
        at = config(thread.id, "", thread.order[-1])
        at["metadata"] = {"run_id": run_of(thread.id)}
        writes = write.put_writes(surroundings(face), at, [("step", 1), ("m", big(1))], "t2", "")
        interleave(
            [Stepped(face, writes), removing(face, removal, thread)],
            choices,
            lambda: glance(thread, by_aggregate, by_finds),
        )
        assert look(thread, by_aggregate) == []
        remove(face, removal, thread)

    assert explore(play) > 1


@removals
def test_two_removals_in_every_order(make: Callable[..., Face], removal: Removal) -> None:
    """Two savers may remove one thread at a time."""
    face = make("sync")
    by_aggregate, by_finds = readers(face)

    def play(choices: Choices) -> None:
        thread = begun(face)
        plans = [removing(face, removal, thread) for _ in range(2)]
        interleave(plans, choices, lambda: glance(thread, by_aggregate, by_finds))
        if removal.empties:
            assert counts(face, thread.id) == [0, 0, 0]

    assert explore(play) > 1


# --- a reader in the middle --------------------------------------------------------------------


def one_reading(thread: Thread, face: Face, how: str) -> Stepped:
    """Returns a plan that reads: the latest checkpoint, one by its id, or a list."""
    reader = face.another()
    if how.endswith("finds"):
        read_by_finds(reader.saver)
    if how.startswith("list"):
        query = read.query({"configurable": {"thread_id": thread.id}}, None, None, None)
        assert query is not None
        return Stepped(reader, read.page(surroundings(reader), query))
    checkpoint_id = thread.order[1] if how.startswith("one") else None
    at = config(thread.id, "", checkpoint_id)
    return Stepped(reader, read.get_tuple(surroundings(reader), at))


def rows_of(reading: Stepped) -> list[CheckpointTuple]:
    """Returns what a reading came to."""
    if isinstance(reading.result, tuple) and isinstance(reading.result[0], list):
        return list(reading.result[0])
    return [] if reading.result is None else [reading.result]  # type: ignore[list-item]


READINGS = ["latest by aggregate", "latest by finds", "one by finds", "list by finds"]


@removals
@pytest.mark.parametrize("how", READINGS)
def test_reading_and_removal_in_every_order(
    make: Callable[..., Face], removal: Removal, how: str
) -> None:
    """A reading that a removal overtakes gives full states, or nothing, and no error."""
    face = make("sync")

    def play(choices: Choices) -> None:
        thread = begun(face)
        reading = one_reading(thread, face, how)
        interleave([reading, removing(face, removal, thread)], choices)
        assert all(is_full(thread, row) for row in rows_of(reading))

    assert explore(play) > 1


@pytest.mark.parametrize("how", READINGS)
@pytest.mark.parametrize("again", [False, True], ids=["next", "again"])
def test_reading_and_put_in_every_order(make: Callable[..., Face], how: str, again: bool) -> None:
    """A reading beside a put gives the state before or after, also of a checkpoint put again."""
    face = make("sync")

    def play(choices: Choices) -> None:
        thread = begun(face)
        put = Put(warm=True, in_transaction=False)
        expected = [thread.expected["", thread.order[-1]]]
        if again:
            at, made, new = thread.next(put)
            made["id"] = thread.order[-2]
            expected.append(made["channel_values"])
            at["configurable"]["checkpoint_id"] = thread.order[-3]
            face.saver._driver.bound.refuses_transactions = True  # type: ignore[attr-defined]
            putting = Stepped(face, write.put(surroundings(face), at, made, metadata(), new))
        else:
            putting = thread.putting(put)
            expected.append(thread.expected["", thread.order[-1]])
        reading = one_reading(thread, face, how)
        interleave([reading, putting], choices)
        rows = rows_of(reading)
        assert rows
        if how.startswith("latest"):
            assert rows[0].checkpoint["channel_values"] in expected
        for row in rows:
            values = row.checkpoint["channel_values"]
            assert is_full(thread, row) or (again and values in expected)

    assert explore(play) > 1


@removals
@pytest.mark.parametrize("how", READINGS)
@pytest.mark.parametrize("put", [ON_A_PARENT[1], ON_A_PARENT[2]], ids=str)
def test_reading_put_and_removal_in_random_orders(
    make: Callable[..., Face], removal: Removal, put: Put, how: str
) -> None:
    """Three at a time, in 20 of their many orders: the reader sees full states or none."""
    face = make("sync")
    chance = random.Random(str((how, put)))
    for _ in range(20):
        thread = begun(face)
        plans = [
            thread.putting(put),
            one_reading(thread, face, how),
            removing(face, removal, thread),
        ]
        while alive := [plan for plan in plans if not plan.done]:
            chance.choice(alive).step()
        assert all(is_full(thread, row) for row in rows_of(plans[1]))


# --- after a removal ---------------------------------------------------------------------------


@removals
@pytest.mark.parametrize("name", ["sync", "async", "motor", "threads"])
def test_chain_put_after_a_removal_is_skipped_with_a_warning(
    make: Callable[..., Face], removal: Removal, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A graph that goes on without noticing makes no state, does not fail, and is told of."""
    face = make(name)
    thread = begun(face)
    remove(face, removal, thread)
    for _ in range(3):
        thread.put(Put(warm=True, in_transaction=True))
    assert counts(face, thread.id)[0] == 3
    for reader in (face, *readers(face)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "mongosaver"):
            assert reader.get_tuple(config(thread.id)) is None
            assert reader.list({"configurable": {"thread_id": thread.id}}) == []
        skipped = [r.getMessage() for r in caplog.records if "is skipped" in r.getMessage()]
        assert len(skipped) == 6
        assert all(repr(thread.id) in message for message in skipped)
        assert {i for i in thread.order[3:] if any(i in m for m in skipped)} == {*thread.order[3:]}
    remove(face, removal, thread)


@removals
def test_checkpoint_that_needs_nothing_of_a_removed_thread_is_read(
    make: Callable[..., Face], removal: Removal
) -> None:
    """What is put on a removed parent by a saver that does not know it is stored whole, and full.

    Those that are not full, before and after it, do not hide it.
    """
    face = make("sync")
    thread = begun(face)
    remove(face, removal, thread)
    thread.put(Put(warm=True, in_transaction=True))
    thread.face = face.another()
    thread.put(Put(warm=False, in_transaction=True, parent=2))
    assert look(thread, face.another()) == [thread.order[4]]
    thread.put(Put(warm=True, in_transaction=True))
    thread.face = face
    thread.put(Put(warm=True, in_transaction=True, parent=3))
    for reader in readers(face):
        assert look(thread, reader) == thread.order[4:6]
    remove(face, removal, thread)


@removals
def test_thread_begins_again_after_a_removal(make: Callable[..., Face], removal: Removal) -> None:
    """A new line of checkpoints under the old id is complete beside what a late graph left."""
    face = make("sync")
    thread = begun(face)
    remove(face, removal, thread)
    thread.put(Put(warm=True, in_transaction=True))
    skipped = set(thread.order)
    thread.face = face.another()
    thread.put(Put(warm=False, in_transaction=False, parent=None))
    thread.put(Put(warm=True, in_transaction=False))
    for reader in readers(face):
        assert set(look(thread, reader)) == set(thread.order) - skipped
    remove(face, removal, thread)


def late(face: Face) -> Thread:
    """Returns a removed thread that began again, and on whose old line a graph has put since."""
    thread = begun(face)
    face.another().delete_thread(thread.id)
    thread.face = face.another()
    thread.put(Put(warm=False, in_transaction=True, parent=None))
    thread.face = face
    for parent in (2, 4):
        thread.put(Put(warm=True, in_transaction=True, parent=parent))
    assert look(thread, face.another()) == [thread.order[3]]
    return thread


@pytest.mark.parametrize("options", [{}, {"keep_last": 1}, {"keep_last": 2}], ids=str)
def test_prune_keeps_the_newest_that_is_a_state(
    make: Callable[..., Face], options: dict[str, Any]
) -> None:
    """What a late graph has put on a removed thread is the newest of nothing, and goes."""
    face = make("sync")
    thread = late(face)
    face.another().call("prune", [thread.id], **options)
    assert look(thread, face.another()) == [thread.order[3]]
    assert counts(face, thread.id)[0] == 1


def test_rollback_leaves_what_is_no_state_as_it_was(make: Callable[..., Face]) -> None:
    """A late checkpoint whose late parent is rolled back is skipped as before, not damaged."""
    face = make("sync")
    thread = late(face)
    ids = {"thread_id": thread.id, "checkpoint_id": thread.order[4]}
    face.collection.update_one(ids, {"$set": {"run_id": "late"}})
    face.another().call("delete_for_runs", ["late"])
    assert counts(face, thread.id)[0] == 2
    assert look(thread, face.another()) == [thread.order[3]]


# --- a removal that ends early -----------------------------------------------------------------


def _half(face: Face, op: Delete, newer: bool) -> None:
    """What a deletion has done when the server ends in the middle of it."""
    collection = face.sibling(op.collection.value)
    ids = [row["_id"] for row in collection.find(op.filter, {"_id": 1}).sort("_id", 1)]
    half = ids[len(ids) // 2 :] if newer else ids[: (len(ids) + 1) // 2]
    collection.delete_many({"_id": {"$in": half}})


@removals
@pytest.mark.parametrize("graph", ["ended", "goes on"])
@pytest.mark.parametrize("within", ["between commands", "oldest half", "newest half"])
def test_removal_that_ends_early_is_finished_by_repeating_it(
    make: Callable[..., Face], removal: Removal, graph: str, within: str
) -> None:
    """Wherever it ends, readers see full states or none, and once repeated nothing is left."""
    face = make("sync")
    ends = 0
    while True:
        thread = begun(face)
        first = removing(face, removal, thread)
        for _ in range(ends):
            if not first.done:
                first.step()
        if first.done:
            break
        if within != "between commands" and isinstance(first.op, Delete):
            _half(face, first.op, within == "newest half")
        first.crash()
        for reader in readers(face):
            look(thread, reader)
        if graph == "goes on":
            for _ in range(2):
                thread.put(Put(warm=True, in_transaction=False))
                look(thread, face.another())
        remove(face, removal, thread)
        assert look(thread, face.another()) == []
        ends += 1
    assert ends >= 3


@removals
def test_removal_leaves_other_threads_alone(make: Callable[..., Face], removal: Removal) -> None:
    """Threads beside the one that is removed keep every document."""
    face = make("sync")
    kept, gone = begun(face), begun(face)
    before = counts(face, kept.id)
    remove(face, removal, gone)
    assert counts(face, kept.id) == before
    assert look(kept, face.another()) == kept.order
