"""The oracle: InMemorySaver, and what is asked of a checkpointer beyond it.

The contract tests compare with InMemorySaver. Where it says less than the contract does, the
difference is written down here, once, so that the tests themselves can be tried without a server
(`pytest --face=memory`) and the state machine knows which differences are intended:

- identifiers are text: `str`, and thread ids also `int` and `UUID`; anything else is refused;
- `checkpoint_ns` may be missing in `put`, and the metadata are the serializable ones;
- a value handed over in a hand-made checkpoint is kept, with or without a version, and passed on to
  checkpoints on it in which the channel is unchanged;
- `list` is ordered: one thread by namespace, then newest first; all threads newest first; a
  negative limit is refused;
- checkpoints of before version 4 find their queued sends on their parent's pending writes;
- what the serializer refuses in metadata is raised with the key's name.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import TASKS

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

_NO_IDENTIFIER = re.compile("[\x00\ud800-\udfff]")


def _text(what: str, value: object, *also: type) -> str:
    if not isinstance(value, (str, *also)):
        raise TypeError(f"{what} must be text, not {type(value).__name__}")
    # A subclass of str may have a __str__ of its own.
    text = "".join(value) if isinstance(value, str) else str(value)
    if _NO_IDENTIFIER.search(text):
        raise ValueError(f"{what} holds a NUL or a lone surrogate")
    return text


def _thread(value: object) -> str:
    text = _text("thread_id", value, int, uuid.UUID)
    if not text:
        raise ValueError("thread_id is empty")
    return text


def _plain(config: RunnableConfig) -> dict[str, str]:
    given = config["configurable"]
    plain = {"thread_id": _thread(given["thread_id"])}
    for key in ("checkpoint_ns", "checkpoint_id"):
        if given.get(key) is not None:
            plain[key] = _text(key, given[key])
    return plain


class Oracle(InMemorySaver):
    """InMemorySaver with the contract's additions, see the module's docstring."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.handed: dict[tuple[str, str, str], dict[str, tuple[str, bytes]]] = {}

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        where = {"checkpoint_ns": "", **_plain(config)}
        checkpoint = {**checkpoint, "id": _text("id", checkpoint["id"])}
        key = (where["thread_id"], where["checkpoint_ns"], checkpoint["id"])
        serializable = get_serializable_checkpoint_metadata(config, metadata)
        for name, value in serializable.items():
            try:
                self.serde.dumps_typed({name: value})
            except Exception as refused:
                raise type(refused)(f"metadata {name!r}: {refused}") from refused
        parent = where.get("checkpoint_id", "")
        above = self.storage[key[0]][key[1]].get(parent)
        versions = self.serde.loads_typed(above[0])["channel_versions"] if above else {}
        inherited = {
            channel: value
            for channel, value in self.handed.get((*key[:2], parent), {}).items()
            if channel not in new_versions
            and channel in versions
            and versions[channel] == checkpoint["channel_versions"].get(channel)
        }
        done = super().put({"configurable": where}, checkpoint, serializable, new_versions)
        self.handed[key] = inherited | {
            channel: self.serde.dumps_typed(value)
            for channel, value in checkpoint["channel_values"].items()
            if (*key[:2], channel, checkpoint["channel_versions"].get(channel)) not in self.blobs
        }
        return done

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        super().put_writes(
            {"configurable": _plain(config)}, writes, _text("task_id", task_id), task_path
        )

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = super().get_tuple({"configurable": {"checkpoint_ns": "", **_plain(config)}})
        return found and self._complete(found)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        if limit is not None and limit < 0:
            raise ValueError("limit is negative")
        if before is not None and before["configurable"].get("checkpoint_id") is not None:
            _text("checkpoint_id", before["configurable"]["checkpoint_id"])
        one = config and cast("RunnableConfig", {"configurable": _plain(config)})
        rows = list(super().list(one, filter=filter, before=before))
        # Python sorts stably, so the least significant key comes first.
        rows.sort(key=lambda row: row.config["configurable"]["checkpoint_ns"])
        if config is None:
            rows.sort(key=lambda row: row.config["configurable"]["thread_id"])
            rows.sort(key=lambda row: row.config["configurable"]["checkpoint_id"], reverse=True)
        for row in rows[:limit]:
            yield self._complete(row)

    def delete_thread(self, thread_id: str) -> None:
        thread = _thread(thread_id)
        super().delete_thread(thread)
        for key in [key for key in self.handed if key[0] == thread]:
            del self.handed[key]

    def _complete(self, row: CheckpointTuple) -> CheckpointTuple:
        at = row.config["configurable"]
        values, versions = row.checkpoint["channel_values"], row.checkpoint["channel_versions"]
        key = (at["thread_id"], at["checkpoint_ns"], at["checkpoint_id"])
        for channel, payload in self.handed.get(key, {}).items():
            values[channel] = self.serde.loads_typed(payload)
        if row.checkpoint["v"] < 4 and row.parent_config:
            parent = row.parent_config["configurable"]["checkpoint_id"]
            writes = self._ordered_writes(at["thread_id"], at["checkpoint_ns"], parent)
            sends = [self.serde.loads_typed(value) for _, c, value, _ in writes if c == TASKS]
            if sends:
                values[TASKS] = sends
                versions[TASKS] = (
                    max(versions.values())  # type: ignore[type-var]
                    if versions
                    else self.get_next_version(None, None)
                )
        return row
