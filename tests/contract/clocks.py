"""Savers whose time is the test's, and what a ttl promises, looked up in the documents."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.faces import Face

START = datetime(2031, 5, 6, 7, 8, 9, 123000, tzinfo=timezone.utc)
"""Far enough ahead that the server's own TTL monitor removes nothing."""

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Clock:
    """A time that savers take for now."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def set(self, face: Face) -> Face:
        """Lets the face's saver go by this clock."""
        saver: Any = face.saver
        context = saver._context
        saver._context = lambda: replace(context(), now=self.now)
        return face

    def saver(self, face: Face, **options: Any) -> Face:
        """Returns a face with a new saver on the same data that goes by this clock."""
        return self.set(face.another(**options))

    def later(self, time: timedelta) -> None:
        """Lets time pass."""
        self.now += time


def stored(face: Face, suffix: str, thread: str) -> list[dict[str, Any]]:
    """Returns documents of a thread, with dates that have a zone."""
    rows = list(face.sibling(suffix).find({"thread_id": thread}))
    for row in rows:
        if row.get("expires_at") is not None:
            row["expires_at"] = row["expires_at"].replace(tzinfo=timezone.utc)
    return rows


def expiries(face: Face, suffix: str, thread: str) -> set[datetime | None]:
    """Returns when the documents of a thread expire."""
    return {row.get("expires_at") for row in stored(face, suffix, thread)}


def assert_promise(face: Face, thread: str, now: datetime | None = None) -> None:
    """Asserts that no checkpoint outlives an ancestor, a blob or a write that it needs.

    With a time, what has expired by then does not matter.
    """

    def until(row: dict[str, Any]) -> datetime:
        forever = datetime.max.replace(tzinfo=timezone.utc)
        return row.get("expires_at") or forever

    blobs = {(row["checkpoint_ns"], row["key"]): row for row in stored(face, ".blobs", thread)}
    checkpoints = stored(face, "", thread)
    by_id = {(row["checkpoint_ns"], row["checkpoint_id"]): row for row in checkpoints}
    for row in checkpoints:
        if now is not None and until(row) <= now:
            continue
        ns = row["checkpoint_ns"]
        needed = [blobs[ns, entry["k"]] for entry in row["blobs"]]
        needed += [blobs[ns, key] for head in list(needed) for key in head["chain"]]
        needed += [
            write
            for write in stored(face, ".writes", thread)
            if (write["checkpoint_ns"], write["checkpoint_id"]) == (ns, row["checkpoint_id"])
        ]
        parent = by_id.get((ns, row["parent_checkpoint_id"]))
        if parent is not None:
            needed.append(parent)
        for each in needed:
            assert until(row) <= until(each), (row["checkpoint_id"], each)
