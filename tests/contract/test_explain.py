"""No query without an index: what the savers send is explained by the server itself.

MongoDB never fails for a missing index, it scans; so each command that a public method sends is
recorded, and the server is asked how it would carry it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.samples import LARGE, Line, checkpoint, config, metadata
from tests.faces import read_by_finds

if TYPE_CHECKING:
    from tests.faces import Face, Sent

HUGE = "x" * 9_000_000
"""Above what an aggregate reads together."""

NO_QUERY = {
    "insert",
    "commitTransaction",
    "abortTransaction",
    "getMore",
    "killCursors",
    "create",
    "createIndexes",
    "listCollections",
    "listIndexes",
}
"""Commands that look for nothing."""

OF_THE_CONNECTION = {
    "lsid",
    "txnNumber",
    "autocommit",
    "startTransaction",
    "readConcern",
    "writeConcern",
    "cursor",
    "maxTimeMS",
}

EXEMPT: dict[str, Callable[[Sent], bool]] = {
    # One document is enough to see whose collection it is.
    "setup looks at any one document": lambda sent: (
        sent.name == "find" and sent.command["filter"] == {} and sent.command.get("limit") == 1
    ),
    # A handful of documents, all of which are wanted.
    "the record is read as a whole": lambda sent: (
        sent.name == "find" and sent.collection.endswith(".migrations")
    ),
    # Without $merge a copy goes through the network in pages of at most 500 ids, oldest first.
    "a page of a copy is sorted": lambda sent: (
        sent.name == "find"
        and "sort" in sent.command
        and "$in" in sent.command["filter"].get("_id", ())
    ),
}
"""What may scan or sort, and why."""

ONLY_BY_FINDS = {"a page of a copy is sorted"}


def filled(face: Face, thread: str) -> Line:
    """Puts a thread with runs, blobs of several segments, writes of every kind and a fork."""
    line = Line(face, thread)
    for n in range(12):
        meta = metadata(run_id=f"run {n // 4} of {thread}", step=n)
        values = {"n": n, "list": [LARGE + str(k) for k in range(n + 1)], "same": LARGE}
        at = line.put(values, metadata=meta)
        face.put_writes(at, [("x", n), ("large", LARGE * 9)], f"task {n}")
        face.put_writes(at, [("__resume__", n)], f"task {n}")
    return line


def every_method(face: Face, thread: str) -> None:
    """Calls every public method, with each option that makes it send something else."""
    line, at = filled(face, thread), config(thread)
    others = [f"{thread} {n}" for n in range(6)]
    for other in others:
        filled(face, other)
    face.put_writes(line.at(3), [("x", 1), ("y", 2)], "task 3")

    old = face.put(config(thread, "old"), checkpoint(v=1), metadata(), {})
    face.put_writes(old, [("__pregel_tasks", 1)], "task")
    face.get_tuple(face.put(old, checkpoint(v=1), metadata(), {}))
    huge = Line(face, f"{thread} huge")
    huge.put({"huge": HUGE})
    face.put_writes(huge.put({"n": 1}), [("huge", HUGE)], "task")

    for reader in (face, face.another(), face.another(ttl=3600, refresh_on_read=True)):
        reader.get_tuple(at)
        reader.get_tuple(line.at(4))
        reader.get_tuple(config(f"{thread} huge"))
        reader.list(at)
        reader.list(at, filter={"step": 3}, limit=2)
        reader.list(at, before=line.at(5))
        reader.list(config(thread, "", line.ids[3]))
        reader.list(config(f"{thread} huge"))
        reader.list(None, limit=30)
        reader.list(None, filter={"step": 3})
        reader.list(None, before=line.at(5))
        rows = threads_of(reader)
        threads_of(reader, limit=2, after=rows[1].cursor)
        threads_of(reader, filter={"step": 11})
        reader.call("get_delta_channel_history", config=at, channels=["list", "none"])
        fresh = Line(reader, thread)
        fresh.ids, fresh.values = line.ids, line.values
        reader.put(line.at(11), *put_on(line))

    expiring = face.another(ttl=3600)
    expiring.call("apply_ttl", dry_run=True)
    expiring.call("apply_ttl")
    expiring.call("apply_ttl", thread_ids=[thread], after="a")
    filled(expiring, f"{thread} expiring")
    face.call("apply_ttl")
    face.call("copy_thread", thread, f"{thread} copy")
    expiring.call("copy_thread", thread, f"{thread} other copy")
    face.call("delete_for_runs", [f"run 1 of {others[0]}", "unknown"])
    face.call("prune", [others[1]], keep_last=3)
    face.call("prune", [others[2]], older_than=timedelta(0), skip_interrupted=True)
    face.call("prune", [others[3]], strategy="delete")
    face.call("prune_idle", older_than=timedelta(days=1), dry_run=True)
    face.call("prune_idle", older_than=timedelta(0), keep_last=2)
    face.call("prune_idle", older_than=timedelta(0), strategy="delete", after=thread)
    face.delete_thread(thread)


def put_on(line: Line) -> tuple[Any, Any, Any]:
    """Returns what `put` takes for one more checkpoint with another value."""
    versions = {"list": line.face.saver.get_next_version("1", None), "n": "1"}
    made = checkpoint({"n": 1, "list": [LARGE + "0", "other"]}, versions)
    return made, metadata(), versions


def threads_of(face: Face, **options: Any) -> list[Any]:
    """Lists threads."""
    if face.awaited:

        async def gather() -> list[Any]:
            return [row async for row in face.saver.alist_threads(**options)]  # type: ignore[attr-defined]

        return face.run(gather())
    return list(face.saver.list_threads(**options))  # type: ignore[attr-defined]


def queries(sent: Sent) -> Iterator[dict[str, Any]]:
    """Yields the commands to explain: one for each statement of a command."""
    kept = {
        key: value
        for key, value in sent.command.items()
        if not key.startswith("$") and key not in OF_THE_CONNECTION
    }
    if sent.name == "aggregate":
        kept["cursor"] = {}
    several = {"update": "updates", "delete": "deletes"}.get(sent.name)
    if several is None:
        yield kept
    else:
        yield from ({**kept, several: [one]} for one in kept[several])


def plans_of(face: Face, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields each part of the server's explanation."""
    merges = any("$merge" in stage for stage in query.get("pipeline", ()))
    how = "queryPlanner" if merges else "executionStats"
    found = face.collection.database.command("explain", query, verbosity=how)
    left: list[Any] = [{key: value for key, value in found.items() if key != "command"}]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left += part.values()
        elif isinstance(part, list):
            left += part


def scans(face: Face, query: dict[str, Any]) -> list[str]:
    """Returns what an explanation shows of scans and of sorting in memory."""
    found = []
    for part in plans_of(face, query):
        if part.get("stage") in ("COLLSCAN", "SORT"):
            found.append(part["stage"])
        if "$sort" in part:
            found.append("$sort")
        if int(part.get("collectionScans", 0)):
            found.append("$lookup scans")
    return found


@pytest.mark.new_collection
@pytest.mark.only_faces("sync", "async")
@pytest.mark.parametrize("mode", ["aggregates", "finds"])
def test_every_query_has_an_index(mongo_face: Face, thread: str, mode: str) -> None:
    """No command of any public method scans a collection or sorts in memory."""
    if mode == "finds":
        read_by_finds(mongo_face.saver)
    with mongo_face.commands.recorded() as sent:
        every_method(mongo_face, thread)
    filled(mongo_face, thread)
    assert {"find", "aggregate", "update", "delete"} <= {one.name for one in sent}
    wrong, seen, used = [], set(), set()
    for one in sent:
        if one.name in NO_QUERY:
            continue
        exempt = [why for why, holds in EXEMPT.items() if holds(one)]
        used.update(exempt)
        if exempt:
            continue
        for query in queries(one):
            shape = str(shape_of(query))
            if shape in seen:
                continue
            seen.add(shape)
            found = scans(mongo_face, query)
            if found:
                wrong.append((found, one.name, one.collection, str(query)[:1000]))
    assert wrong == []
    assert len(seen) > 20
    by_finds = mode == "finds" or mongo_face.stage.by_finds
    assert used == set(EXEMPT) - (set() if by_finds else ONLY_BY_FINDS)


def shape_of(value: Any) -> Any:
    """Returns a command without its values."""
    if isinstance(value, dict):
        return {key: shape_of(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape_of(each) for each in value[:3]]
    return type(value).__name__


@pytest.mark.new_collection
@pytest.mark.only_faces("sync")
def test_a_missing_index_is_noticed(mongo_face: Face, thread: str) -> None:
    """The test above sees what it looks for: without the indexes the same commands scan."""
    filled(mongo_face, thread)
    with mongo_face.commands.recorded() as sent:
        mongo_face.another().get_tuple(config(thread))
    asked = [query for one in sent for query in queries(one)]
    assert [scans(mongo_face, query) for query in asked] == [[] for _ in asked]
    for suffix in ("", ".writes", ".blobs"):
        mongo_face.sibling(suffix).drop_indexes()
    seen = {scan for query in asked for scan in scans(mongo_face, query)}
    assert seen >= ({"COLLSCAN"} if mongo_face.stage.by_finds else {"COLLSCAN", "$lookup scans"})
