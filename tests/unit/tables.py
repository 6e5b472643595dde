"""Runs a plan without a server: replies go in as a table, operations and the result come out.

A table's rows are pairs of an operation, in a few words, and the reply to it:

    play(plan, ("find checkpoints", [parent]), ("together blobs + checkpoints", True))

A reply that is an exception is thrown into the plan, as the drivers do. `RUN` computes what a
`Compute` asks for. The words say which collections an operation is about; what else it holds is
looked at in `Played.ops`, so that a table need not change when a projection does.

`broken_off` breaks a table off at each of its rows, with a failure that no plan can understand and
by closing the plan, as a cancelled task does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Final

import pytest
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pymongo.errors import AutoReconnect, BulkWriteError, DuplicateKeyError, OperationFailure

from mongosaver.cache import Shared
from mongosaver.ops import Collections, Compute, Insert, Op, Plan, Sleep, Together
from mongosaver.plans.context import Context, Ttl
from mongosaver.schema import Name

NOW: Final = datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=timezone.utc)
"""The time that plans are given."""

Row = tuple[str, Any]


class Run:
    """The reply to a `Compute`: what its function returns."""


RUN: Final = Run()


def context(
    serde: SerializerProtocol | None = None,
    *,
    shared: Shared | None = None,
    now: datetime = NOW,
    ttl: timedelta | None = None,
) -> Context:
    """Returns surroundings of one call: a saver that remembers nothing, unless it is given."""
    return Context(
        serde or JsonPlusSerializer(),
        Shared() if shared is None else shared,
        now,
        lambda current, _: "1" if current is None else str(int(current) + 1),
        None if ttl is None else Ttl(ttl),
    )


def words(op: Op) -> str:
    """An operation in a few words, such as `find blobs` or `together blobs + checkpoints`."""
    if isinstance(op, Together):
        return "together " + " + ".join(_plural(write.collection) for write in op.writes)
    if isinstance(op, (Compute, Collections, Sleep)):
        return type(op).__name__.lower()
    kind = {
        "CreateCollection": "create",
        "ShardCollection": "shard",
        "CreateIndexes": "index",
        "ListIndexes": "indexes",
        "CollMod": "modify",
        "DropIndex": "drop",
        "FindOneAndUpdate": "upsert",
        "BuildProgress": "progress",
        "Updates": "update",
    }.get(type(op).__name__)
    return f"{kind or type(op).__name__.lower()} {_plural(op.collection)}"


def _plural(name: Name) -> str:
    return name.name.lower()


def _answer(plan: Plan[Any], op: Op, reply: Any) -> Op:
    """Answers an operation, and returns the next one."""
    if isinstance(reply, Exception):
        return plan.throw(reply)
    if isinstance(op, Compute) and reply is RUN:
        reply = op.function()
    elif isinstance(reply, list):
        # A plan may take a document apart, and the table may be used once more.
        reply = [dict(document) for document in reply]
    return plan.send(reply)


@dataclass
class Played:
    """What came of a plan.

    Attributes:
        ops: The operations that it yielded.
        result: What it returned.
        error: What it raised.
    """

    ops: list[Op] = field(default_factory=list)
    result: Any = None
    error: Exception | None = None

    @property
    def words(self) -> list[str]:
        """The operations in a few words each."""
        return [words(op) for op in self.ops]

    def documents(self, name: Name) -> list[dict[str, Any]]:
        """The documents that were to be inserted into a collection, each one once."""
        inserts: list[Insert] = []
        for op in self.ops:
            if isinstance(op, Together):
                inserts += op.writes
            elif isinstance(op, Insert):
                inserts.append(op)
        found = [d for insert in inserts if insert.collection is name for d in insert.documents]
        return [d for at, d in enumerate(found) if d not in found[:at]]


def play(plan: Plan[Any], *rows: Row) -> Played:
    """Runs a plan on a table, and asserts that it asks for what the rows say, to the last one."""
    played = attempt(plan, *rows)
    if played.error is not None:
        raise played.error
    return played


def attempt(plan: Plan[Any], *rows: Row) -> Played:
    """Runs a plan on a table as `play` does; what the plan raises is noted."""
    played = Played()
    try:
        op = next(plan)
        for expected, reply in rows:
            played.ops.append(op)
            assert words(op) == expected, f"{played.words}, after which {expected!r} was expected"
            op = _answer(plan, op, reply)
    except StopIteration as stop:
        played.result = stop.value
    except AssertionError:
        raise
    except Exception as error:
        played.error = error
    else:
        raise AssertionError(f"{played.words}, after which came {words(op)!r}, which is too much")
    asked = [expected for expected, _ in rows]
    assert played.words == asked, f"{played.words}, and then it ended; expected were {asked}"
    return played


def failure() -> AutoReconnect:
    """Returns an error that no plan understands: a lost connection, with labels of its own."""
    return AutoReconnect("connection closed", {"errorLabels": ["RetryableWriteError"]})


def broken_off(make: Callable[[], Plan[Any]], rows: Sequence[Row]) -> None:
    """Asserts what holds for every plan, whatever it does, at each row of a table.

    A failure that the plan cannot understand is raised as it is, and nothing more is asked for;
    a plan that is closed asks for nothing more, either.
    """
    for at, (expected, _) in enumerate(rows):
        lost = failure()
        played = attempt(make(), *rows[:at], (expected, lost))
        assert played.error is lost, f"{expected!r}, row {at}: {played.error!r}"
        assert played.error.__cause__ is None

        plan = make()
        op = next(plan)
        for _, reply in rows[:at]:
            op = _answer(plan, op, reply)
        plan.close()  # a generator that yields while it is closed makes this a RuntimeError
        with pytest.raises(StopIteration):
            next(plan)


def refusal(code: int, message: str = "refused", **details: Any) -> OperationFailure:
    """Returns a server's refusal."""
    return OperationFailure(message, code, {"code": code, "errmsg": message, **details})


def duplicate(
    keys: Sequence[str] | None, message: str = "E11000", **more: Any
) -> DuplicateKeyError:
    """Returns the error of one insert that met a document with the same `keys`."""
    pattern = {} if keys is None else {"keyPattern": dict.fromkeys(keys, 1)}
    details = {"index": 0, "code": 11000, "errmsg": message, **pattern, **more}
    return DuplicateKeyError(message, 11000, details)


def bulk(*failures: dict[str, Any], concerns: Sequence[dict[str, Any]] = ()) -> BulkWriteError:
    """Returns the error of an unordered insert of several documents."""
    return BulkWriteError({"writeErrors": list(failures), "writeConcernErrors": list(concerns)})


def in_the_way(keys: Sequence[str], index: int = 0) -> dict[str, Any]:
    """Returns the part of a bulk error that says that a document with the same `keys` exists."""
    return {"index": index, "code": 11000, "keyPattern": dict.fromkeys(keys, 1), "errmsg": "E11000"}
