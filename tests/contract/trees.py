"""Trees of checkpoints with DeltaChannels, what they read as, and what must be stored for them.

A tree is put as LangGraph puts one: a super-step's writes go to the parent before the child is put,
a channel that is rebuilt from writes has no value in between its snapshots and is counted in the
metadata, and a branch that begins where another one has written takes a snapshot of what it wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from tests.contract.samples import checkpoint, config

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import CheckpointMetadata

    from tests.faces import Face

COLLECTIONS = ("", ".writes", ".blobs")


@dataclass
class Branch:
    """What is known at one checkpoint: its channels' versions and values, and the counters."""

    versions: dict[str, Any]
    values: dict[str, Any]
    counters: dict[str, tuple[int, int]]


class Tree:
    """Checkpoints of one namespace of a thread; ids ascend in the order in which they are put.

    Attributes:
        ids: Ids of all checkpoints, oldest first.
    """

    def __init__(
        self, face: Face, thread: str, ns: str = "", *, delta: Collection[str] = ("d",)
    ) -> None:
        self.face, self.thread, self.ns = face, thread, ns
        self.delta = tuple(delta)
        self.ids: list[str] = []
        self.branches: dict[str | None, Branch] = {None: Branch({}, {}, {})}
        self.written: dict[tuple[str, str], int] = {}

    def put(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        on: str | None = None,
        root: bool = False,
        wrote: Mapping[str, Any] | None = None,
        snapshots: Iterable[str] = (),
        run: str | None = None,
        **keys: Any,
    ) -> str:
        """Puts a checkpoint and returns its id.

        Args:
            values: New values of ordinary channels.
            on: The parent; the newest checkpoint by default.
            root: Whether it has no parent.
            wrote: What the super-step before it wrote to DeltaChannels, by channel.
            snapshots: DeltaChannels whose value is stored with it.
            run: The run.
            keys: Further metadata.
        """
        n = len(self.ids)
        parent = None if root else on or (self.ids[-1] if self.ids else None)
        before = self.branches[parent]
        at = config(self.thread, self.ns, parent)
        if run is not None:
            at["configurable"]["run_id"] = run
            at["metadata"] = {"run_id": run}
        forced = {c for c in self.delta if parent and (parent, c) in self.written}
        wrote = dict(wrote or {}) if parent else {}
        for channel, value in wrote.items():
            self.face.put_writes(at, [(channel, value)], f"task {n}", f"path {n}")
            self.written[cast("str", parent), channel] = n
        versions, kept = dict(before.versions), dict(before.values)
        new = {}
        snapshots = {*snapshots, *forced}
        for channel in (*(values or {}), *wrote, *snapshots):
            if channel not in new:
                version = self.face.saver.get_next_version(versions.get(channel), None)
                versions[channel] = new[channel] = version
        kept.update(values or {})
        counters = {}
        for channel in self.delta:
            updates, steps = before.counters.get(channel, (0, 0))
            if channel not in snapshots:
                counters[channel] = (updates + (channel in wrote), steps + 1)
        made = checkpoint(
            {**kept, **{c: _DeltaSnapshot([f"snapshot {n} {c}"] * 3) for c in snapshots}},
            versions,
            checkpoint_id=f"{n:04}",
        )
        metadata: dict[str, Any] = {"source": "loop", "step": n, "parents": {}, **keys}
        if counters:
            metadata["counters_since_delta_snapshot"] = counters
        self.face.put(at, made, cast("CheckpointMetadata", metadata), new)
        self.ids.append(made["id"])
        self.branches[made["id"]] = Branch(versions, kept, counters)
        return made["id"]

    def at(self, checkpoint_id: str | None = None) -> RunnableConfig:
        """Returns the config of a checkpoint, or of the latest."""
        return config(self.thread, self.ns, checkpoint_id)


def state_of(face: Face, row: Any) -> dict[str, Any]:
    """Returns the values of a checkpoint's channels, those that are rebuilt from writes as well."""
    values = dict(row.checkpoint["channel_values"])
    missing = [c for c in row.checkpoint["channel_versions"] if c not in values]
    found = face.call("get_delta_channel_history", config=row.config, channels=missing)
    for channel, history in found.items():
        seed = history.get("seed", _DeltaSnapshot([]))
        values[channel] = [*seed.value, *(value for _, _, value in history["writes"])]
    return values


def states(face: Face, thread: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the state of each checkpoint of a thread, by namespace and id."""
    rows = face.list({"configurable": {"thread_id": thread}})
    return {
        (at["checkpoint_ns"], at["checkpoint_id"]): state_of(face, row)
        for row in rows
        for at in [row.config["configurable"]]
    }


def pending(face: Face, thread: str) -> dict[tuple[str, str], list[Any]]:
    """Returns the pending writes of each checkpoint of a thread."""
    rows = face.list({"configurable": {"thread_id": thread}})
    return {
        (at["checkpoint_ns"], at["checkpoint_id"]): row.pending_writes or []
        for row in rows
        for at in [row.config["configurable"]]
    }


def counts(face: Face, thread: str | None = None) -> tuple[int, int, int]:
    """Returns the numbers of documents: checkpoints, pending writes, blobs."""
    where = {} if thread is None else {"thread_id": thread}
    found = [face.sibling(c).count_documents(where) for c in COLLECTIONS]
    return found[0], found[1], found[2]


def marked(face: Face, thread: str) -> set[str]:
    """Returns the ids of checkpoints that are marked as deleted and still there."""
    where = {"thread_id": thread, "deleted_at": {"$ne": None}}
    return {row["checkpoint_id"] for row in face.collection.find(where)}


def assert_exact(face: Face, thread: str) -> None:
    """Asserts that a thread's writes and blobs are those that its checkpoints name, and no more."""
    where = {"thread_id": thread}
    checkpoints = list(face.collection.find(where))
    there = {(row["checkpoint_ns"], row["checkpoint_id"]) for row in checkpoints}
    for row in checkpoints:
        if row["parent_checkpoint_id"] is not None:
            assert (row["checkpoint_ns"], row["parent_checkpoint_id"]) in there
    for row in face.sibling(".writes").find(where):
        assert (row["checkpoint_ns"], row["checkpoint_id"]) in there
    blobs = {
        (blob["checkpoint_ns"], blob["key"]): blob for blob in face.sibling(".blobs").find(where)
    }
    named = {(row["checkpoint_ns"], each["k"]) for row in checkpoints for each in row["blobs"]}
    assert named <= blobs.keys()
    named |= {(ns, key) for ns, head in named for key in blobs[ns, head]["chain"]}
    assert named == blobs.keys()
