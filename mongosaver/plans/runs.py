"""Deleting runs: what they saved, in whichever thread.

A run's checkpoints go with all their writes, and so do its writes on other runs' checkpoints. That
includes what it did to an earlier run's checkpoint by resuming it: `__resume__`, and an
`__interrupt__` that it wrote over the earlier one. A thread that is rolled back so to a checkpoint
which waited for an answer runs that task again when it is invoked.

Where a later run's `DeltaChannel` is rebuilt from what a deleted run wrote, that stays, out of
every reader's sight, until it is not needed any more (see `sweep`).

This file is pure: it imports only `identifiers`, `ops`, `schema` and `sweep`, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mongosaver import identifiers
from mongosaver.errors import IdentifierTypeError
from mongosaver.identifiers import Key
from mongosaver.ops import Find, Plan, UpdateMany
from mongosaver.plans.context import Context
from mongosaver.plans.sweep import BATCH, Removed, sweep
from mongosaver.schema import Name


def delete_for_runs(ctx: Context, run_ids: Iterable[object]) -> Plan[Removed]:
    """Remove the checkpoints and writes of runs; unknown runs are no error.

    Raises:
        IdentifierTypeError: It is one string instead of several, or an id is no text.
    """
    return _delete_for_runs(ctx, several(run_ids, "run_ids", _run))


def several(ids: object, what: str, one: Callable[[object], str]) -> list[str]:
    """Plain text of several identifiers, each once.

    A string is refused: it would be taken for a list of ids of one letter.
    """
    if isinstance(ids, (str, bytes, dict)) or not isinstance(ids, Iterable):
        raise IdentifierTypeError(
            f"{what} must be a list of ids, got {type(ids).__name__}. For one, pass [id]."
        )
    return list(dict.fromkeys(one(each) for each in ids))


def _run(value: object) -> str:
    return identifiers.text(value, "run_id", numbers=True)


def _delete_for_runs(ctx: Context, run_ids: Sequence[str]) -> Plan[Removed]:
    removed = Removed()
    for start in range(0, len(run_ids), BATCH):
        runs = run_ids[start : start + BATCH]
        theirs = {"run_id": {"$in": runs}}
        yield UpdateMany(
            Name.CHECKPOINTS,
            {**theirs, "deleted_at": None},
            {"$set": {"deleted_at": ctx.now}},
        )
        threads: dict[str, set[Key]] = {}
        for row in (yield Find(Name.CHECKPOINTS, theirs, {"_id": 0, "thread_id": 1})):
            threads.setdefault(row["thread_id"], set())
        fields = {"_id": 0, "thread_id": 1, "checkpoint_ns": 1, "checkpoint_id": 1}
        for row in (yield Find(Name.WRITES, theirs, fields)):
            at = (row["checkpoint_ns"], row["checkpoint_id"])
            threads.setdefault(row["thread_id"], set()).add(at)
        for thread_id, writers in threads.items():
            removed += yield from sweep(ctx, thread_id, runs=runs, writers=writers)
    return removed
