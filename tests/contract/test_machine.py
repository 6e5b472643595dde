"""A state machine: random calls on a saver and on the oracle, compared after each step.

The oracle is InMemorySaver with the additions that `tests/oracle.py` states. Versions come from the
saver's `get_next_version`, whose random part keeps forks apart: with integer versions InMemorySaver
would mix the values of forks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests import strategies
from tests.contract.samples import checkpoint, config
from tests.oracle import Oracle

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple

    from tests.faces import Face

THREADS = ["t", "t2", "$t"]
NAMESPACES = ["", "inner"]

# Few ids, so that calls meet: puts again, writes that come first, filters by what is there.
threads = st.sampled_from(THREADS)
namespaces = st.sampled_from(NAMESPACES)
checkpoint_ids = st.integers(0, 12).map("{:02}".format)
channels = st.sampled_from(["chat", "a", "b.c", "$d"])
indexes = st.integers(0, 1_000)
tasks = st.sampled_from(["task 1", "task 2"])
paths = st.sampled_from(["", "path 1", "path 2"])
writes = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "__error__", "__interrupt__", "__resume__", "__scheduled__"]),
        strategies.values,
    ),
    max_size=4,
)


@dataclass(frozen=True)
class Point:
    """A checkpoint that was put, with the state that a graph would go on from."""

    thread: str
    ns: str
    checkpoint_id: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> RunnableConfig:
        """The config that names it."""
        return config(self.thread, self.ns, self.checkpoint_id)


def normal(row: CheckpointTuple | None) -> Any:
    """Returns all that a row says, as it can be compared."""
    return row and (
        row.config["configurable"],
        row.checkpoint,
        row.metadata,
        row.parent_config,
        row.pending_writes,
    )


# Making a failure smaller takes minutes on a real server: MONGOSAVER_TEST_SHRINK=1 asks for it.
PHASES = [
    phase
    for phase in Phase
    if phase is not Phase.shrink or os.environ.get("MONGOSAVER_TEST_SHRINK")
]


class Machine(RuleBasedStateMachine):
    """The calls; `face` is set by the test."""

    face: ClassVar[Face]

    def __init__(self) -> None:
        super().__init__()
        self.points = [Point(thread, ns) for thread in THREADS for ns in NAMESPACES]
        self.touched: str | None = None

    @initialize()
    def begin(self) -> None:
        """Begins with nothing stored."""
        self.model = Oracle()
        if self.face.name == "memory":
            self.saver = type(self.face)(self.face.stage, "")
        else:
            self.saver = self.face.another()
            self.face.empty()

    @rule()
    def forget(self) -> None:
        """Goes on with a saver that remembers nothing."""
        self.saver = self.saver.another()

    @rule(
        parent=indexes,
        checkpoint_id=checkpoint_ids,
        new=st.dictionaries(channels, strategies.values, max_size=3),
        edit=st.one_of(st.none(), st.data()),
        emptied=st.sets(channels, max_size=1),
        removed=st.sets(channels, max_size=1),
        only_new=st.booleans(),
        metadata=strategies.metadata,
    )
    def put(
        self,
        parent: int,
        checkpoint_id: str,
        new: dict[str, Any],
        edit: st.DataObject | None,
        emptied: set[str],
        removed: set[str],
        only_new: bool,
        metadata: dict[str, Any],
    ) -> None:
        """Puts a checkpoint on any other, or on none; known ids are put again."""
        base = self.points[parent % len(self.points)]
        values, versions = dict(base.values), dict(base.versions)
        if edit is not None:
            chat = base.values.get("chat")
            before = chat if isinstance(chat, list) else []
            new = {**new, "chat": edit.draw(strategies.edited(before))}
        emptied = (emptied & set(values)) - set(new)
        removed = (removed & set(values)) - set(new) - emptied
        new_versions = {
            channel: self.saver.saver.get_next_version(versions.get(channel), None)
            for channel in sorted({*new, *emptied})
        }
        versions.update(new_versions)
        values.update(new)
        for channel in (*emptied, *removed):
            del values[channel]
        for channel in removed:
            del versions[channel]
        parent_is_there = base.checkpoint_id and self.model.get_tuple(base.config)
        # What is not handed over must be found by its version, so that its checkpoint must exist.
        handed = (
            new if only_new and parent_is_there and checkpoint_id != base.checkpoint_id else values
        )
        made = checkpoint(handed, versions, checkpoint_id=checkpoint_id)
        meta = cast("CheckpointMetadata", metadata)
        expected = self.model.put(base.config, made, meta, new_versions)
        found = self.saver.put(base.config, made, meta, new_versions)
        assert found == expected
        self.points = [
            p
            for p in self.points
            if (p.thread, p.ns, p.checkpoint_id) != (base.thread, base.ns, checkpoint_id)
        ]
        self.points.append(Point(base.thread, base.ns, checkpoint_id, values, versions))
        self.touched = base.thread

    @rule(point=indexes, task=tasks, path=paths, writes=writes, twice=st.booleans())
    def put_writes(
        self, point: int, task: str, path: str, writes: list[tuple[str, Any]], twice: bool
    ) -> None:
        """Stores writes on a checkpoint, now and then the same again."""
        at = self.points[point % len(self.points)]
        if at.checkpoint_id is None:
            return
        self.write(at.config, writes, task, path)
        if twice:
            self.write(at.config, [(c, "again") for c, _ in writes], task, path + "2")

    @rule(thread=threads, ns=namespaces, checkpoint_id=checkpoint_ids, task=tasks, writes=writes)
    def put_writes_early(
        self, thread: str, ns: str, checkpoint_id: str, task: str, writes: list[tuple[str, Any]]
    ) -> None:
        """Stores writes on an id, whether or not its checkpoint is there."""
        self.write(config(thread, ns, checkpoint_id), writes, task, "early")

    def write(
        self, at: RunnableConfig, writes: list[tuple[str, Any]], task: str, path: str
    ) -> None:
        """Stores writes on both sides."""
        self.model.put_writes(at, writes, task, path)
        self.saver.put_writes(at, writes, task, path)
        self.touched = at["configurable"]["thread_id"]

    @rule(
        thread=st.one_of(st.none(), threads),
        ns=st.one_of(st.none(), namespaces),
        checkpoint_id=st.one_of(st.none(), st.none(), checkpoint_ids),
        filter_=strategies.filters,
        before=st.one_of(st.none(), checkpoint_ids),
        limit=st.one_of(st.none(), st.integers(0, 8)),
    )
    def list_rows(
        self,
        thread: str | None,
        ns: str | None,
        checkpoint_id: str | None,
        filter_: dict[str, Any] | None,
        before: str | None,
        limit: int | None,
    ) -> None:
        """Lists a thread or all of them, with any filter, `before` and limit."""
        at = None
        if thread is not None:
            names = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
            configurable = {name: value for name, value in names.items() if value is not None}
            at = cast("RunnableConfig", {"configurable": configurable})
        options: dict[str, Any] = {"filter": filter_, "limit": limit}
        if before is not None:
            options["before"] = {"configurable": {"checkpoint_id": before}}
        expected = [normal(row) for row in self.model.list(at, **options)]
        assert [normal(row) for row in self.saver.list(at, **options)] == expected

    @rule(thread=threads, ns=namespaces, checkpoint_id=st.one_of(st.none(), checkpoint_ids))
    def get(self, thread: str, ns: str, checkpoint_id: str | None) -> None:
        """Reads one checkpoint, by its id or the latest."""
        at = config(thread, ns, checkpoint_id)
        assert normal(self.saver.get_tuple(at)) == normal(self.model.get_tuple(at))

    @precondition(lambda self: len(self.points) > len(THREADS) * len(NAMESPACES) + 3)
    @rule(thread=threads)
    def delete_thread(self, thread: str) -> None:
        """Deletes a thread; its checkpoints may still be named as parents."""
        self.model.delete_thread(thread)
        self.saver.delete_thread(thread)
        self.touched = thread

    @invariant()
    def same_rows(self) -> None:
        """The thread of the last step reads the same on both sides, whole and latest."""
        if self.touched is None:
            return
        thread, self.touched = self.touched, None
        at: RunnableConfig = {"configurable": {"thread_id": thread}}
        expected = [normal(row) for row in self.model.list(at)]
        assert [normal(row) for row in self.saver.list(at)] == expected
        for ns in NAMESPACES:
            latest = config(thread, ns)
            assert normal(self.saver.get_tuple(latest)) == normal(self.model.get_tuple(latest))


@pytest.mark.only_faces("sync", "async", "memory")
def test_saver_behaves_like_the_oracle(face: Face) -> None:
    """Whatever is called, in whatever order, saver and oracle answer the same."""
    machine = type("MachineOnFace", (Machine,), {"face": face})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=settings().max_examples // 2,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
        ),
    )
