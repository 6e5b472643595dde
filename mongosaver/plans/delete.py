"""Deleting a thread: checkpoints first, then writes, then blobs.

That is the opposite of the order of writing, so that a reader never meets a checkpoint without its
values; and a deletion that breaks off is finished by repeating it.

This file is pure: it imports only `ops`, `schema` and `identifiers`, and does no I/O.
"""

from __future__ import annotations

from mongosaver import identifiers
from mongosaver.ops import Delete, Find, Plan
from mongosaver.plans.context import Context
from mongosaver.schema import Name

_LOOKS = 3


def delete_thread(ctx: Context, thread_id: object) -> Plan[None]:
    """Remove all namespaces, writes and blobs of one thread; an unknown thread is no error."""
    return _delete_thread(ctx, identifiers.thread(thread_id))


def _delete_thread(ctx: Context, thread_id: str) -> Plan[None]:
    where = {"thread_id": thread_id}
    for _ in range(_LOOKS):
        for collection in (Name.CHECKPOINTS, Name.WRITES, Name.BLOBS):
            yield Delete(collection, where)
        ctx.shared.cache.forget_threads([thread_id])
        # A graph that still runs may have put a checkpoint between the first command and the
        # last, whose values are gone now. One that keeps running is not waited for.
        if not (yield Find(Name.CHECKPOINTS, where, {"_id": 1}, limit=1)):
            return
