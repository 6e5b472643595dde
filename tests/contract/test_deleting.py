"""Contract, `delete_thread`: everything of that thread, and nothing else."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.samples import LARGE, Line, config, values_of
from tests.faces import STORED

if TYPE_CHECKING:
    from tests.faces import Face


def filled(face: Face, thread: Any) -> list[Line]:
    """Puts checkpoints, writes and large values in two namespaces of a thread."""
    lines = [Line(face, thread, ns) for ns in ("", "inner")]
    for line in lines:
        for n in range(3):
            at = line.put({"n": n, "large": LARGE + line.ns}, checkpoint_id=f"id {n}")
            face.put_writes(at, [("x", n), ("__interrupt__", LARGE)], "task")
    return lines


def test_delete_thread_removes_all_of_it(mongo_face: Face, thread: str) -> None:
    """Checkpoints, writes and blobs of all namespaces go, also writes that came early."""
    filled(mongo_face, thread)
    mongo_face.put_writes(config(thread, "early", "id 9"), [("x", 1)], "task")
    counts = [mongo_face.sibling(c).count_documents({"thread_id": thread}) for c in STORED]
    assert all(counts)
    mongo_face.delete_thread(thread)
    counts = [mongo_face.sibling(c).count_documents({}) for c in STORED]
    assert counts == [0, 0, 0]


def test_deleted_thread_reads_as_unknown(face: Face, thread: str) -> None:
    """After `delete_thread` nothing of the thread is found, by any way of reading."""
    filled(face, thread)
    face.delete_thread(thread)
    for ns in ("", "inner"):
        assert face.get_tuple(config(thread, ns)) is None
        assert face.get_tuple(config(thread, ns, "id 1")) is None
    assert face.list({"configurable": {"thread_id": thread}}) == []
    assert face.list(None) == []


def test_delete_thread_is_exact(face: Face, thread: str) -> None:
    """Threads whose ids begin with it, look like it, or match it as a pattern stay complete."""
    others = [thread[:-1], thread + "0", thread + ".", thread.upper(), ".*", thread + "\u0301", " "]
    lines = [line for other in others for line in filled(face, other)]
    filled(face, thread)
    face.delete_thread(thread)
    assert face.get_tuple(config(thread)) is None
    for line in lines:
        line.check()
        found = face.get_tuple(line.at(0))
        assert found is not None
        assert found.pending_writes == [("task", "__interrupt__", LARGE), ("task", "x", 0)]


def test_delete_thread_of_an_unknown_thread_is_nothing(face: Face, thread: str) -> None:
    """Deleting what is not there, or twice, is no error and changes nothing."""
    face.delete_thread(thread)
    [line, _] = filled(face, thread)
    face.delete_thread(thread + "2")
    line.check()
    face.delete_thread(thread)
    face.delete_thread(thread)
    assert face.list(None) == []


@pytest.mark.parametrize("identifier", [42, uuid.UUID(int=42)], ids=["int", "uuid"])
def test_delete_thread_takes_ids_that_are_no_text(face: Face, identifier: Any) -> None:
    """Integers and UUIDs mean the thread of their text."""
    filled(face, str(identifier))
    face.delete_thread(identifier)
    assert face.list(None) == []


def test_thread_may_begin_again(face: Face, thread: str) -> None:
    """A thread that was deleted takes the same checkpoints again: nothing is taken for stored."""
    for _ in range(2):
        lines = filled(face, thread)
        for line in lines:
            line.check()
            line.check(face.another())
        face.delete_thread(thread)
    old = lines[0]
    # A run that did not notice goes on from a checkpoint that is gone.
    old.put({"n": 9}, checkpoint_id="id 9")
    for reader in (face, face.another()):
        assert values_of(reader, config(thread)) == {"n": 9, "large": LARGE}
