"""Contract, `copy_thread`: a copy reads as its source, lives without it, is never half there."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from mongosaver.errors import MongoSaverError, ThreadExists
from tests.contract.interrupted import at_each_operation, between_operations
from tests.contract.samples import LARGE, Line, config, id_of, ids
from tests.contract.test_delta_history import delta_graph
from tests.contract.test_prune import asking
from tests.contract.trees import Tree, assert_exact, counts, marked, pending, states

if TYPE_CHECKING:
    from tests.faces import Face

OLD = datetime(2020, 1, 1, tzinfo=timezone.utc)
LATE = datetime(2500, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(params=["server", "pages"], autouse=True)
def way(request: pytest.FixtureRequest, mongo_face: Face) -> str:
    """Copies on the server, and through pages as on servers without `$merge`."""
    shared = mongo_face.saver._shared  # type: ignore[attr-defined]
    shared.read_by_finds = request.param == "pages"
    return request.param  # type: ignore[no-any-return]


def copy(face: Face, source: Any, target: Any) -> None:
    """Copies a thread."""
    assert face.call("copy_thread", source, target) is None


def fill(face: Face, thread: str) -> None:
    """Puts lines, a tree with a DeltaChannel, and pending writes of every size."""
    for ns in ("", "inner", "$ns.:1"):
        line = Line(face, thread, ns)
        for n in range(6):
            at = line.put(
                {"chat": [f"{i} " * 900 for i in range(n + 1)], "n": n, "own": LARGE + ns}
            )
            face.put_writes(at, [("x", n), ("y", LARGE)], "task")
    tree = Tree(face, thread, "delta")
    for n in range(6):
        tree.put(
            {"own": LARGE}, wrote={"d": n}, snapshots=["d"] if n == 3 else (), run=f"run {n % 2}"
        )


def rows_of(face: Face, thread: str) -> list[Any]:
    """Returns the rows of a thread with another thread id in their configs."""

    def moved(at: Any) -> Any:
        return at and {"configurable": {**at["configurable"], "thread_id": "?"}}

    return [
        row._replace(config=moved(row.config), parent_config=moved(row.parent_config))
        for row in face.list(config(thread, None))
    ]


def test_copy_reads_as_its_source(mongo_face: Face, thread: str) -> None:
    """Checkpoints, metadata, parents, pending writes and histories of all namespaces."""
    fill(mongo_face, thread)
    target = "$copy. of " + thread
    copy(mongo_face, thread, target)
    assert rows_of(mongo_face, target) == rows_of(mongo_face, thread)
    assert states(mongo_face.another(), target) == states(mongo_face, thread)
    assert pending(mongo_face, target) == pending(mongo_face, thread)
    assert counts(mongo_face, target) == counts(mongo_face, thread)
    assert_exact(mongo_face, target)


def test_copy_lives_without_its_source(mongo_face: Face, thread: str) -> None:
    """Whatever happens to one of them does not reach the other."""
    fill(mongo_face, thread)
    target = thread + "2"
    before = states(mongo_face, thread)
    copy(mongo_face, thread, target)
    mongo_face.call("delete_for_runs", ["run 0", "run 1"])
    assert states(mongo_face, target) == before
    mongo_face.call("prune", [thread])
    mongo_face.delete_thread(thread)
    reader = mongo_face.another()
    assert states(reader, target) == before
    copy(mongo_face, target, thread)
    reader.call("prune", [target], strategy="delete")
    assert states(mongo_face, thread) == before
    assert counts(mongo_face) == counts(mongo_face, thread)


def test_documents_of_a_copy(mongo_face: Face, thread: str) -> None:
    """They say where they come from, are new, and belong to no run; metadata stay complete."""
    fill(mongo_face, thread)
    for suffix in ("", ".writes", ".blobs"):
        dates = {"created_at": OLD, "expires_at": LATE}
        mongo_face.sibling(suffix).update_many({}, {"$set": dates})
    start = datetime.now(timezone.utc).replace(microsecond=0)
    copy(mongo_face, thread, "copy")
    for suffix in ("", ".writes", ".blobs"):
        for document in mongo_face.sibling(suffix).find({"thread_id": "copy"}):
            assert document["created_at"].replace(tzinfo=timezone.utc) >= start
            assert not {"run_id", "expires_at", "touched_at"} & document.keys()
            assert document.get("copied_from") == (None if suffix else thread)
    filtered = mongo_face.list(config("copy", None), filter={"run_id": "run 0"})
    assert {row.metadata["run_id"] for row in filtered} == {"run 0"}


def test_copy_goes_on_by_itself(mongo_face: Face, thread: str) -> None:
    """Both go on from the same checkpoint, with the same ids, and share no blob."""
    line = Line(mongo_face, thread)
    for n in range(8):
        line.put({"chat": [f"{i} " * 900 for i in range(n + 1)]}, checkpoint_id=f"{n}")
    copy(mongo_face, thread, "copy")
    twin = line.fork()
    twin.thread = "copy"
    for each, word in ((line, "one"), (twin, "two")):
        each.put({"chat": [*each.values["chat"], word * 900]}, checkpoint_id="8")
    for each in (line, twin):
        each.check()
        each.check(mongo_face.another())
        assert_exact(mongo_face, each.thread)


def test_existing_target_is_refused(mongo_face: Face, thread: str) -> None:
    """Nothing is mixed with a thread that has checkpoints, nor copied to itself."""
    fill(mongo_face, thread)
    other = Line(mongo_face, "other")
    other.put({"n": 1})
    before = counts(mongo_face)
    for target in (thread, "other"):
        with pytest.raises(ThreadExists) as refused:
            copy(mongo_face, thread, target)
        assert isinstance(refused.value, ValueError)
    assert counts(mongo_face) == before
    copy(mongo_face, thread, "copy")
    before = counts(mongo_face)
    with pytest.raises(ThreadExists, match="already"):
        copy(mongo_face, thread, "copy")
    copy(mongo_face, "other", "other copy")
    with pytest.raises(ThreadExists):
        copy(mongo_face, thread, "other copy")
    assert counts(mongo_face, "copy") == counts(mongo_face, thread)


def test_copy_that_was_used_is_refused(mongo_face: Face, thread: str) -> None:
    """A copy with checkpoints of its own is a thread like others, whatever its source did since."""
    line = Line(mongo_face, thread)
    line.put({"n": 1})
    copy(mongo_face, thread, "copy")
    twin = line.fork()
    twin.thread = "copy"
    twin.put({"n": 2})
    line.put({"n": 3})
    with pytest.raises(ThreadExists):
        copy(mongo_face, thread, "copy")
    assert ids(mongo_face.list(config("copy"))) == twin.ids[::-1]


def test_unknown_source_is_nothing(mongo_face: Face, thread: str) -> None:
    """There is nothing to copy, so nothing comes of it; numbers and UUIDs name threads too."""
    copy(mongo_face, thread, "copy")
    assert counts(mongo_face) == (0, 0, 0)
    Line(mongo_face, "7").put({"n": 1})
    copy(mongo_face, 7, uuid.UUID(int=7))
    assert counts(mongo_face, str(uuid.UUID(int=7))) == (1, 0, 0)


@pytest.mark.parametrize("bad", [None, b"a", "", "\0", ["a"], {"$ne": 1}], ids=repr)
def test_bad_arguments(mongo_face: Face, bad: Any) -> None:
    """What is no thread id is refused before anything is sent."""
    for source, target in ((bad, "a"), ("a", bad)):
        with mongo_face.commands.recorded() as sent, pytest.raises(MongoSaverError):
            copy(mongo_face, source, target)
        assert sent == []


def test_commands(mongo_face: Face, thread: str, way: str) -> None:
    """On the server a copy takes the same few commands however long the thread is."""
    line = Line(mongo_face, thread)
    seen = []
    for n in range(2):
        for i in range(30):
            line.put({"n": i})
        with mongo_face.commands.recorded() as sent:
            copy(mongo_face, thread, f"copy {n}")
        seen.append([each.name for each in sent])
    if way == "server":
        assert seen[0] == seen[1] == ["find", "find", "find", *["aggregate"] * 3]
        merge = sent[-1].command["pipeline"]
        assert [next(iter(stage)) for stage in merge][-1] == "$merge"
    else:
        assert "aggregate" not in seen[0]


def test_checkpoints_are_read_by_their_index(mongo_face: Face, thread: str) -> None:
    """Their order costs no sort, however many there are."""
    line = Line(mongo_face, thread)
    for n in range(3):
        line.put({"n": n})
    with mongo_face.commands.recorded() as sent:
        copy(mongo_face, thread, "copy")
    for each in sent:
        if each.name != "aggregate":
            continue
        command = {k: each.command[k] for k in ("aggregate", "pipeline", "hint", "cursor")}
        command["pipeline"] = command["pipeline"][:-1]
        plan = mongo_face.collection.database.command("explain", command)
        assert "'SORT'" not in str(plan)


def test_real_graphs_go_on_in_a_copy(mongo_face: Face, thread: str) -> None:
    """State, history, DeltaChannels and interrupts with their subgraphs are those of the source."""
    graph = mongo_face.graph(delta_graph())
    for turn in range(5):
        graph.invoke({"chat": [f"question {turn}"]}, config(thread))
    copy(mongo_face, thread, "copy")
    before = [s.values for s in graph.history(config(thread))]
    mongo_face.delete_thread(thread)
    cold = mongo_face.another().graph(delta_graph())
    assert [s.values for s in cold.history(config("copy"))] == before
    cold.invoke({"chat": ["more"]}, config("copy"))
    assert cold.state(config("copy")).values["chat"][:-2] == before[0]["chat"]

    graph = mongo_face.graph(asking())
    graph.invoke({"done": []}, config("asking"))
    copy(mongo_face, "asking", "asked")
    states_ = [graph.state(config(t), subgraphs=True) for t in ("asking", "asked")]
    assert states_[0].interrupts == states_[1].interrupts
    assert [t.state and t.state.values for t in states_[0].tasks] == [
        t.state and t.state.values for t in states_[1].tasks
    ]


# --- failures, and others at work --------------------------------------------------------------


def test_copy_can_break_off_anywhere(mongo_face: Face, thread: str) -> None:
    """What a reader finds of a half-done copy is whole, and repeating the call completes it."""
    fill(mongo_face, thread)
    expected = states(mongo_face, thread)
    size = counts(mongo_face, thread)
    broken = 0
    for name in at_each_operation(
        mongo_face, "copy", lambda name: None, lambda name: copy(mongo_face, thread, name)
    ):
        there = states(mongo_face.another(), name)
        assert there == {key: expected[key] for key in there}
        if there != expected:
            copy(mongo_face, thread, name)
        assert states(mongo_face.another(), name) == expected
        assert counts(mongo_face, name) == size
        assert_exact(mongo_face, name)
        broken += 1
    assert broken >= 6


def test_half_done_copy_is_completed(mongo_face: Face, thread: str) -> None:
    """A copy without its source's newest checkpoint is half done, whatever else is missing."""
    fill(mongo_face, thread)
    expected, size = states(mongo_face, thread), counts(mongo_face, thread)
    for missing in (1, 3, 6):
        copy(mongo_face, thread, "copy")
        there = mongo_face.list(config("copy", ""))[:missing]
        mongo_face.collection.delete_many(
            {"thread_id": "copy", "checkpoint_ns": "", "checkpoint_id": {"$in": ids(there)}}
        )
        copy(mongo_face, thread, "copy")
        assert states(mongo_face.another(), "copy") == expected
        assert counts(mongo_face, "copy") == size
        mongo_face.delete_thread("copy")


def test_checkpoints_come_in_ascending_order(mongo_face: Face, thread: str) -> None:
    """The root graph's newest is the very last, so the copy is complete once it is there."""
    fill(mongo_face, thread)
    copy(mongo_face, thread, "copy")
    rows = list(mongo_face.collection.find({"thread_id": "copy"}).sort("$natural", 1))
    order = [(row["checkpoint_ns"], row["checkpoint_id"]) for row in rows]
    assert order[-1] == ("", id_of(mongo_face.list(config(thread, ""))[0]))
    for ns in ("", "inner", "delta"):
        of_ns = [checkpoint_id for each, checkpoint_id in order if each == ns]
        assert of_ns == sorted(of_ns)


def test_copy_beside_a_running_graph(mongo_face: Face, thread: str) -> None:
    """What a run appends between any two commands of a copy is in it as a whole, or not at all."""
    line = Line(mongo_face.another(), thread)
    for n in range(4):
        line.put({"chat": [f"{i} " * 900 for i in range(n + 1)]})

    def put(_: Any) -> None:
        line.put({"chat": [*line.values["chat"], f"{len(line.ids)} " * 900]})

    with between_operations(mongo_face, put):
        copy(mongo_face, thread, "copy")
    there = mongo_face.another().list(config("copy"))
    assert len(there) >= 4
    for row in there:
        assert row.checkpoint["channel_values"] == line.expected[id_of(row)]


def test_deleted_checkpoints_are_not_copied_into_sight(mongo_face: Face, thread: str) -> None:
    """What is only kept for a DeltaChannel is kept for it in the copy too."""
    tree = Tree(mongo_face, thread)
    for n in range(6):
        tree.put({"own": LARGE}, wrote={"d": n}, run="ab"[n in (2, 3)])
    mongo_face.call("delete_for_runs", ["b"])
    copy(mongo_face, thread, "copy")
    assert states(mongo_face.another(), "copy") == states(mongo_face, thread)
    assert marked(mongo_face, "copy") == marked(mongo_face, thread) == set(tree.ids[2:4])
    mongo_face.call("prune", ["copy"], strategy="delete")
    assert counts(mongo_face, "copy") == (0, 0, 0)
