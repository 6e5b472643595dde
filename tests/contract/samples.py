"""Configs, checkpoints and lines of checkpoints for the contract tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.checkpoint.base.id import uuid6

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import CheckpointTuple

    from tests.faces import Face

TIME = "2026-02-03T04:05:06.789012+00:00"
"""What hand-made checkpoints have for `ts`."""

LARGE = "large " * 5_000
"""30 KB: more than is ever kept inside a checkpoint document."""


def config(thread: Any, ns: Any = "", checkpoint_id: Any = None) -> RunnableConfig:
    """Returns a config; without `checkpoint_id` it means the latest checkpoint."""
    configurable = {"thread_id": thread, "checkpoint_ns": ns}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def before(checkpoint_id: str) -> RunnableConfig:
    """Returns a config for `before` that holds nothing else."""
    return {"configurable": {"checkpoint_id": checkpoint_id}}


def checkpoint(
    values: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
    *,
    checkpoint_id: str | None = None,
    v: int = 4,
) -> Checkpoint:
    """Returns a checkpoint made by hand, with a new id unless one is given."""
    return Checkpoint(
        v=v,
        id=checkpoint_id or str(uuid6()),
        ts=TIME,
        channel_values=dict(values or {}),
        channel_versions=dict(versions or {}),
        versions_seen={},
        updated_channels=None,
    )


def metadata(**keys: Any) -> CheckpointMetadata:
    """Returns metadata as a graph makes them, with `keys` besides."""
    return cast("CheckpointMetadata", {"source": "loop", "step": 1, "parents": {}, **keys})


def id_of(row: CheckpointTuple | RunnableConfig) -> str:
    """Returns the checkpoint id that a config, or a row's config, names."""
    at = row.config if hasattr(row, "config") else row
    return at["configurable"]["checkpoint_id"]  # type: ignore[no-any-return]


def ids(rows: Iterable[CheckpointTuple]) -> list[str]:
    """Returns the checkpoint ids of rows."""
    return [id_of(row) for row in rows]


def place(row: CheckpointTuple) -> tuple[str, str, str]:
    """Returns thread, namespace and checkpoint id of a row."""
    at = row.config["configurable"]
    return at["thread_id"], at["checkpoint_ns"], at["checkpoint_id"]


def values_of(face: Face, at: RunnableConfig) -> dict[str, Any]:
    """Reads the channel values of a checkpoint that must exist."""
    found = face.get_tuple(at)
    assert found is not None
    return found.checkpoint["channel_values"]


def writes_of(face: Face, at: RunnableConfig) -> list[tuple[str, str, Any]]:
    """Reads the pending writes of a checkpoint that must exist."""
    found = face.get_tuple(at)
    assert found is not None
    assert found.pending_writes is not None
    return found.pending_writes


class Line:
    """A line of checkpoints, each put on the one before it, as a graph does.

    Attributes:
        face: The face that puts.
        thread: The thread.
        ns: The namespace.
        values: Values of the channels now.
        versions: Versions of the channels now.
        expected: The values that each checkpoint id must read.
        ids: Ids of the checkpoints, oldest first.
    """

    def __init__(self, face: Face, thread: Any, ns: str = "") -> None:
        self.face, self.thread, self.ns = face, thread, ns
        self.values: dict[str, Any] = {}
        self.versions: dict[str, Any] = {}
        self.expected: dict[str, dict[str, Any]] = {}
        self.ids: list[str] = []

    def put(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        emptied: Iterable[str] = (),
        removed: Iterable[str] = (),
        hand_over: Iterable[str] | None = None,
        metadata: CheckpointMetadata | None = None,
        checkpoint_id: str | None = None,
    ) -> RunnableConfig:
        """Puts a checkpoint and returns its config.

        Args:
            values: Channels with new values.
            emptied: Channels with a new version and no value.
            removed: Channels that are gone, version and all.
            hand_over: The channels whose values are handed over; all by default.
            metadata: The metadata.
            checkpoint_id: The id; a new one by default.
        """
        new_versions = {}
        for channel in (*(values or {}), *emptied):
            version = self.face.saver.get_next_version(self.versions.get(channel), None)
            self.versions[channel] = new_versions[channel] = version
        self.values.update(values or {})
        for channel in emptied:
            del self.values[channel]
        for channel in removed:
            del self.values[channel], self.versions[channel]
        handed = self.values if hand_over is None else {c: self.values[c] for c in hand_over}
        made = checkpoint(handed, self.versions, checkpoint_id=checkpoint_id)
        at = config(self.thread, self.ns, self.ids[-1] if self.ids else None)
        done = self.face.put(
            at, made, metadata or cast("CheckpointMetadata", {"source": "loop"}), new_versions
        )
        self.ids.append(made["id"])
        self.expected[made["id"]] = dict(self.values)
        return done

    def fork(self) -> Line:
        """Returns a second line that goes on from the newest checkpoint."""
        twin = Line(self.face, self.thread, self.ns)
        twin.values, twin.versions = dict(self.values), dict(self.versions)
        twin.expected, twin.ids = dict(self.expected), list(self.ids)
        return twin

    def at(self, index: int) -> RunnableConfig:
        """Returns the config of the checkpoint with that index."""
        return config(self.thread, self.ns, self.ids[index])

    def check(self, face: Face | None = None) -> None:
        """Asserts that each checkpoint reads what it must, singly and listed."""
        reader = face or self.face
        for checkpoint_id, expected in self.expected.items():
            assert values_of(reader, config(self.thread, self.ns, checkpoint_id)) == expected
        listed = {
            id_of(row): row.checkpoint["channel_values"]
            for row in reader.list(config(self.thread, self.ns))
        }
        assert {i: listed[i] for i in self.expected} == self.expected
