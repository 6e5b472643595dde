"""A thread as the documents that its puts store: replies for tables that read it or go on with it.

Nothing here stands for a server: the tables say which operation gets which of the documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from mongosaver import codec
from mongosaver.codec import Facts
from mongosaver.plans import write
from mongosaver.plans.context import Context
from tests.contract.samples import checkpoint, config, metadata
from tests.unit.tables import NOW, context

Document = dict[str, Any]

SERDE = context().serde


def items(count: int) -> list[str]:
    """Returns a list of 100 bytes an item; from 164 items on it is a blob."""
    return [f"{number:098}" for number in range(count)]


LONG = items(300)
"""A list that is stored in two segments."""


def putting(
    ctx: Context,
    checkpoint_id: str,
    values: Mapping[str, Any],
    parent: str | None = None,
    *,
    versions: Mapping[str, Any] | None = None,
    changed: Mapping[str, Any] | None = None,
    v: int = 4,
    **keys: Any,
) -> Any:
    """Returns the plan of a put; by default every channel is new, with the id as its version."""
    versions = dict.fromkeys(values, checkpoint_id) if versions is None else dict(versions)
    made = checkpoint(values, versions, checkpoint_id=checkpoint_id, v=v)
    new = versions if changed is None else dict(changed)
    return write.put(ctx, config("t", "n", parent), made, metadata(**keys), new)


class Thread:
    """A thread's documents.

    Attributes:
        checkpoints: Its checkpoints by id.
        blobs: Its blobs by key.
        writes: Its pending writes.
        facts: How each checkpoint is stored, as the saver that put it remembers it.
    """

    def __init__(self) -> None:
        self.checkpoints: dict[str, Document] = {}
        self.blobs: dict[bytes, Document] = {}
        self.writes: list[Document] = []
        self.facts: dict[str, Facts] = {}

    def put(
        self,
        checkpoint_id: str,
        values: Mapping[str, Any],
        parent: str | None = None,
        *,
        v: int = 4,
        ns: str = "n",
        thread: str = "t",
        **keys: Any,
    ) -> Document:
        """Stores a checkpoint, all of whose channels are new; returns its document."""
        versions = dict.fromkeys(values, checkpoint_id)
        made = checkpoint(values, versions, checkpoint_id=checkpoint_id, v=v)
        facts = self.facts[parent] if parent else {}
        draft = codec.draft(
            SERDE, config(thread, ns, parent), made, metadata(**keys), versions, facts
        )
        bases = {
            channel: entry.stored
            for channel, entry in facts.items()
            if isinstance(entry, codec.Blob) and entry.stored is not None
        }
        encoded = codec.encode(draft, codec.place(draft, facts), bases, NOW)
        self.checkpoints[checkpoint_id] = encoded.document
        self.facts[checkpoint_id] = encoded.facts
        self.blobs.update((blob["key"], blob) for blob in encoded.blobs)
        return encoded.document

    def write(
        self, checkpoint_id: str, writes: Sequence[tuple[str, Any]], task: str = "task"
    ) -> list[Document]:
        """Stores pending writes; returns their documents."""
        at = config("t", "n", checkpoint_id)
        documents = codec.encode_writes(codec.draft_writes(SERDE, at, writes, task, "", NOW))
        self.writes += documents
        return documents

    def heads(self, *ids: str) -> list[Document]:
        """The head blobs that checkpoints name."""
        keys = [key for i in ids for key in codec.blob_keys(self.checkpoints[i])]
        return self._found(keys)

    def chains(self, *ids: str) -> list[Document]:
        """The segments before those."""
        return self._found([key for head in self.heads(*ids) for key in head["chain"]])

    def _found(self, keys: Iterable[bytes]) -> list[Document]:
        return [self.blobs[key] for key in dict.fromkeys(keys)]

    def row(self, checkpoint_id: str, *, lookups: bool = True, **changes: Any) -> Document:
        """What the aggregate returns for a checkpoint.

        Args:
            checkpoint_id: The checkpoint.
            lookups: Whether blobs were looked up, which a saver that expects none does not do.
            changes: Fields that are otherwise.
        """
        document = dict(self.checkpoints[checkpoint_id])
        ids = [checkpoint_id]
        if lookups and codec.is_early(document.get("v")):
            ids.append(document["parent_checkpoint_id"])
        document["writes"] = [
            write for write in self.writes if write["checkpoint_id"] in ids and write["part"] == 0
        ]
        if lookups:
            document["keys"] = codec.blob_keys(document)
            document["writers"] = ids
            document["heads"] = self.heads(checkpoint_id)
            document["segments"] = self.chains(checkpoint_id)
        return {**document, **changes}


def values(row: CheckpointTuple | None) -> dict[str, Any]:
    """Returns the channel values of a checkpoint that must be there."""
    assert row is not None
    return row.checkpoint["channel_values"]
