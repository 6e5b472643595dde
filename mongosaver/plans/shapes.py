"""What a document must look like, so that whoever reads it need not fear it.

Readers take for granted that a document has its fields. Whoever looks for damage cannot: here the
format, the fields and their types are looked at, and whatever else may stand in a list is passed
over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mongosaver import codec
from mongosaver.errors import StateError
from mongosaver.plans.context import Context
from mongosaver.schema import CHECKPOINT_KEY, Document


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with something.

    Attributes:
        kind: The kind of finding that it makes.
        text: What was found.
        channel: The channel, if it is about a value.
        key: Key of the blob; of a pending write, its task.
    """

    kind: str
    text: str
    channel: str | None = None
    key: bytes | str | None = None


At = tuple[Document, Problem]
"""What is wrong with a checkpoint, and its document."""


def shape(
    row: Document, fields: Mapping[str, type | tuple[type, ...]], collection: str
) -> Problem | None:
    """Whether a document has the format, and its fields are there and of their types."""
    try:
        codec.check_format(row, collection)
    except StateError as error:
        return Problem("format", str(error))
    for name, kind in fields.items():
        if not isinstance(row.get(name), kind):
            found = type(row[name]).__name__ if name in row else "missing"
            return Problem("shape", f"the field {name!r} is {found}")
    return None


# --- checkpoints -------------------------------------------------------------------------------

OUTLINE: Final = {
    "format": 1,
    **dict.fromkeys(CHECKPOINT_KEY, 1),
    "parent_checkpoint_id": 1,
    "created_at": 1,
    "deleted_at": 1,
    "expires_at": 1,
    "copied_from": 1,
    "bytes": 1,
    "inline.c": 1,
    "blobs.c": 1,
    "blobs.k": 1,
    "blobs.size": 1,
}
_CHECKPOINT_SHAPE: Final[Mapping[str, type | tuple[type, ...]]] = {
    "checkpoint_ns": str,
    "checkpoint_id": str,
    "parent_checkpoint_id": (str, type(None)),
    "created_at": datetime,
    "bytes": int,
    "inline": list,
    "blobs": list,
}


def outline_problem(row: Document) -> Problem | None:
    """What is wrong with a checkpoint's document, as far as its outline tells."""
    problem = shape(row, _CHECKPOINT_SHAPE, "checkpoints collection")
    if problem is not None:
        return problem
    for entry in row["inline"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("c"), str):
            return Problem("shape", "an entry of 'inline' names no channel")
    for entry in row["blobs"]:
        kinds = {"c": str, "k": bytes, "size": int}
        if not isinstance(entry, dict) or any(
            not isinstance(entry.get(name), kind) for name, kind in kinds.items()
        ):
            return Problem("shape", "an entry of 'blobs' lacks channel, key or size")
    channels = [entry["c"] for entry in (*row["inline"], *row["blobs"])]
    if len(set(channels)) < len(channels):
        twice = next(c for c in channels if channels.count(c) > 1)
        return Problem("lists", "the channel has two values", channel=twice)
    return None


def is_hidden(ctx: Context, row: Document) -> bool:
    """Whether readers do not see a checkpoint, so that it need not be whole."""
    expires = row.get("expires_at")
    return row.get("deleted_at") is not None or (
        isinstance(expires, datetime) and expires <= ctx.now
    )


# --- blobs and writes --------------------------------------------------------------------------


def chain_of(row: Document) -> Iterator[bytes]:
    """Keys in a blob's chain, whatever else may stand there."""
    chain = row.get("chain")
    return (key for key in (chain if isinstance(chain, list) else ()) if isinstance(key, bytes))


def has_slot(row: Document) -> bool:
    names = {"checkpoint_id": str, "task_id": str, "idx": int, "part": int}
    return all(isinstance(row.get(name), kind) for name, kind in names.items())


def parts_of(first: Document) -> list[int]:
    """Numbers of a slot's further parts, in order, as its part 0 has them."""
    numbers = first.get("parts")
    return [n for n in (numbers if isinstance(numbers, list) else ()) if isinstance(n, int)]


def unnamed(group: Sequence[Document]) -> list[Any]:
    """`_id` of the parts that the slot's part 0 does not name, or all where there is none."""
    first = next((row for row in group if row["part"] == 0), None)
    named = {0, *parts_of(first)} if first else set()
    return [row["_id"] for row in group if row["part"] not in named]


def age_of(row: Document, unknown: datetime) -> datetime:
    """When somebody last needed or made a document."""
    dates = [row.get("created_at"), row.get("touched_at")]
    return max((date for date in dates if isinstance(date, datetime)), default=unknown)
