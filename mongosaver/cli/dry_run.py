"""The third driver: reads are sent, writes are told.

A plan cannot know which driver runs it, so what is told is exactly what would be sent. It goes on
as if each write had been done; what it reads after that is the old state. A plan that looks whether
its writes were done and repeats them has each told once.

An operation that is not known to read is taken as a write.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final, TypeVar

from mongosaver.drivers import Driver
from mongosaver.ops import (
    Aggregate,
    BuildProgress,
    Collections,
    Compute,
    Count,
    CreateCollection,
    CreateIndexes,
    Delete,
    Find,
    Insert,
    ListIndexes,
    Merge,
    Op,
    Plan,
    Replace,
    Sleep,
    Together,
    UpdateMany,
    Updates,
)
from mongosaver.schema import Document, Name

T = TypeVar("T")

READS: Final[frozenset[type]] = frozenset(
    {Find, Aggregate, Count, Collections, ListIndexes, BuildProgress, Sleep, Compute}
)
"""Operations that change nothing. One that is missing here is told and not sent."""

_LONGEST: Final = 5
_TEXT: Final = 200


@dataclasses.dataclass(frozen=True)
class Write:
    """A write that was not sent.

    Attributes:
        collection: The real name of the collection.
        command: What would be done, in one word of MongoDB's.
        filter: Which documents it is about; None for new ones.
        documents: How many those are, where that is known.
        detail: What else there is to say.
    """

    collection: str
    command: str
    filter: Any = None
    documents: int | None = None
    detail: Any = None

    @property
    def data(self) -> dict[str, Any]:
        """What there is to say, with payloads as sizes."""
        parts = {each.name: short(getattr(self, each.name)) for each in dataclasses.fields(self)}
        return {name: value for name, value in parts.items() if value is not None}

    def __str__(self) -> str:
        many = "" if self.documents is None else f" {self.documents:,} documents"
        line = f"would {self.command}{many} in {self.collection}"
        if self.filter is not None:
            line += f" where {_json(self.filter)}"
        if self.detail is not None:
            line += f": {_json(self.detail)}"
        return line


def _json(value: Any) -> str:
    return json.dumps(short(value), ensure_ascii=False)


def short(value: Any) -> Any:
    """A value to look at: payloads as sizes, and a few items of a long list."""
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value):,} bytes>"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _TEXT else f"{value[:_TEXT]}... <{len(value):,} characters>"
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Name):
        return value.name.lower()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {each.name: short(getattr(value, each.name)) for each in fields}
    if isinstance(value, Mapping):
        return {str(key): short(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        items = [short(each) for each in value[:_LONGEST]]
        if len(value) > _LONGEST:
            items.append(f"... {len(value) - _LONGEST:,} more")
        return items
    return str(value)


Tell = Callable[[str, float], None]


class Telling(Driver):
    """A driver that tells how long each operation took."""

    def __init__(self, collection: Any, tell: Tell | None = None) -> None:
        super().__init__(collection)
        self._tell = tell

    def _do(self, op: Op) -> Any:
        if self._tell is None:
            return super()._do(op)
        start = time.perf_counter()
        try:
            return super()._do(op)
        finally:
            self._tell(self._text(op), time.perf_counter() - start)

    def _text(self, op: Op) -> str:
        name = getattr(op, "collection", None)
        where = f" {self.bound[name].name}" if isinstance(name, Name) else ""
        about = getattr(op, "filter", None)
        return f"{type(op).__name__}{where}" + ("" if about is None else f" {_json(about)}")


class DryRun(Telling):
    """A driver that sends no write.

    Args:
        collection: As for `Driver`.
        write: Called with each write.
        tell: Called with each operation that was sent, and its seconds.
    """

    def __init__(
        self, collection: Any, write: Callable[[Write], None], tell: Tell | None = None
    ) -> None:
        super().__init__(collection, tell)
        self._write = write
        self._told: set[str] = set()
        self._updated: set[Name] = set()

    def run(self, plan: Plan[T]) -> T:
        """As a driver does; numbers of documents are told as long as they are known."""
        self._updated.clear()
        return super().run(plan)

    def _do(self, op: Op) -> Any:
        if type(op) in READS and not _is_writing(op):
            return super()._do(op)
        key = repr(op)
        if key in self._told:
            return 0 if isinstance(op, (Delete, UpdateMany)) else None
        self._told.add(key)
        tell = self._WRITES.get(type(op))
        return self._tell_unknown(op) if tell is None else tell(self, op)

    def _count_of(self, name: Name, where: Document) -> int:
        return int(self.bound[name].count_documents(where))

    def _sure(self, name: Name, count: int) -> int | None:
        # An update that was not sent may be what the filter asks for.
        return None if name in self._updated else count

    def _tell_delete(self, op: Delete) -> int:
        count = self._count_of(op.collection, op.filter)
        told = self._sure(op.collection, count)
        self._write(Write(self.bound[op.collection].name, "delete", op.filter, told))
        return count

    def _tell_update_many(self, op: UpdateMany) -> int:
        count = self._count_of(op.collection, op.filter)
        told = self._sure(op.collection, count)
        self._updated.add(op.collection)
        self._write(Write(self.bound[op.collection].name, "update", op.filter, told, op.update))
        return count

    def _tell_updates(self, op: Updates) -> None:
        name = self.bound[op.collection].name
        first = [{"filter": each.filter, "update": each.update} for each in op.updates[:1]]
        detail = {"first": first[0]} if first else None
        self._write(Write(name, "update", None, len(op.updates), detail))

    def _tell_replace(self, op: Replace) -> None:
        name = self.bound[op.collection].name
        self._write(Write(name, "replace", op.filter, detail=op.document))

    def _tell_insert(self, op: Insert) -> None:
        name = self.bound[op.collection].name
        documents = list(op.documents)
        self._write(Write(name, "insert", None, len(documents), documents))

    def _tell_together(self, op: Together) -> bool:
        for each in op.writes:
            self._tell_insert(each)
        return True

    def _tell_merge(self, op: Merge) -> None:
        match = op.pipeline[0].get("$match") if op.pipeline else None
        count = None if match is None else self._count_of(op.collection, match)
        name = self.bound[op.collection].name
        self._write(Write(name, "copy", match, count, list(op.pipeline[1:])))

    def _tell_create_collection(self, op: CreateCollection) -> None:
        self._write(Write(self.bound[op.collection].name, "create", detail=op.options or None))

    def _tell_create_indexes(self, op: CreateIndexes) -> None:
        keys = [dict(index.keys) for index in op.indexes]
        name = self.bound[op.collection].name
        self._write(Write(name, "createIndexes", None, detail=keys))

    def _tell_unknown(self, op: Any) -> None:
        parts = {each.name: getattr(op, each.name) for each in dataclasses.fields(op)}
        name = parts.pop("collection", None)
        collection = self.bound[name].name if isinstance(name, Name) else self.bound.database.name
        word = type(op).__name__
        self._write(
            Write(collection, word[0].lower() + word[1:], parts.pop("filter", None), detail=parts)
        )

    _WRITES: Mapping[type, Callable[[Any, Any], Any]] = {
        Delete: _tell_delete,
        UpdateMany: _tell_update_many,
        Updates: _tell_updates,
        Replace: _tell_replace,
        Insert: _tell_insert,
        Together: _tell_together,
        Merge: _tell_merge,
        CreateCollection: _tell_create_collection,
        CreateIndexes: _tell_create_indexes,
    }


def _is_writing(op: Any) -> bool:
    """Whether a pipeline ends in a collection."""
    stages = op.pipeline if isinstance(op, Aggregate) else ()
    return any("$merge" in stage or "$out" in stage for stage in stages)
