"""Contract, `prune`: what stays is whole, what goes is gone, repeating finishes it."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from mongosaver.errors import UsageError
from mongosaver.plans import sweep
from tests.contract.interrupted import at_each_operation, between_operations
from tests.contract.samples import LARGE, Line, checkpoint, config, id_of, ids, metadata, values_of
from tests.contract.test_delta_history import delta_graph
from tests.contract.trees import Tree, assert_exact, counts, marked, pending, states

if TYPE_CHECKING:
    from tests.faces import Face

OLD = datetime(2020, 1, 1, tzinfo=timezone.utc)


def prune(face: Face, *threads: Any, **options: Any) -> Any:
    """Prunes threads."""
    return face.call("prune", list(threads), **options)


def chat(face: Face, thread: Any, steps: int = 20, ns: str = "") -> Line:
    """Puts a line of checkpoints with a list that grows, a large constant, and pending writes."""
    line = Line(face, thread, ns)
    for n in range(steps):
        at = line.put({"chat": [f"{i} " * 900 for i in range(n + 1)], "n": n, "own": LARGE + ns})
        face.put_writes(at, [("x", n), ("y", LARGE)], "task")
    return line


def test_keep_latest_keeps_the_newest_of_each_namespace(mongo_face: Face, thread: str) -> None:
    """Its values and pending writes stay as they were, it has no parent, nothing else is left."""
    lines = [chat(mongo_face, thread, ns=ns) for ns in ("", "inner", "call:1")]
    before = {line.ns: mongo_face.get_tuple(config(thread, line.ns)) for line in lines}
    pruned = prune(mongo_face, thread)
    assert (pruned.threads, pruned.skipped, pruned.checkpoints) == (1, 0, 57)
    for line in lines:
        [row] = mongo_face.list(config(thread, line.ns))
        was = before[line.ns]
        assert was is not None
        assert row == was._replace(parent_config=None)
        assert mongo_face.another().get_tuple(config(thread, line.ns)) == row
        assert mongo_face.get_tuple(line.at(0)) is None
    # A slot of 30 KB: the write itself may be in parts.
    each = mongo_face.sibling(".writes").count_documents({"checkpoint_ns": ""})
    assert counts(mongo_face, thread)[:2] == (3, 3 * each)
    assert_exact(mongo_face, thread)
    assert pruned.writes == 57 * each
    assert marked(mongo_face, thread) == set()


def test_thread_goes_on_after_a_prune(mongo_face: Face, thread: str) -> None:
    """The next put finds its parent's segments, and only adds to them."""
    line = chat(mongo_face, thread)
    prune(mongo_face, thread)
    for n in range(20, 40):
        line.put({"chat": [f"{i} " * 900 for i in range(n + 1)], "n": n})
        if n == 30:
            prune(mongo_face, thread)
    line.expected = {i: line.expected[i] for i in line.ids[30:]}
    line.check()
    line.check(mongo_face.another())
    prune(mongo_face, thread)
    assert values_of(mongo_face.another(), config(thread)) == line.values
    assert_exact(mongo_face, thread)


def test_keep_last(mongo_face: Face, thread: str) -> None:
    """So many of each namespace stay, with the parents that stay as well."""
    line = chat(mongo_face, thread)
    other = chat(mongo_face, thread, 2, "inner")
    pruned = prune(mongo_face, thread, keep_last=3)
    assert pruned.checkpoints == 17
    rows = mongo_face.list(config(thread, ""))
    assert ids(rows) == line.ids[:16:-1]
    assert [row.parent_config and id_of(row.parent_config) for row in rows] == [
        *line.ids[18:16:-1],
        None,
    ]
    line.expected = {i: line.expected[i] for i in line.ids[17:]}
    line.check()
    other.check()
    assert_exact(mongo_face, thread)
    assert prune(mongo_face, thread, keep_last=3).checkpoints == 0


def test_older_than(mongo_face: Face, thread: str) -> None:
    """Of those that are not among the newest, only the ones put before that time go."""
    line = chat(mongo_face, thread)
    mongo_face.collection.update_many(
        {"checkpoint_id": {"$in": line.ids[:15]}}, {"$set": {"created_at": OLD}}
    )
    assert prune(mongo_face, thread, older_than=OLD).checkpoints == 0
    assert prune(mongo_face, thread, older_than=timedelta(hours=1)).checkpoints == 15
    assert ids(mongo_face.list(config(thread))) == line.ids[:14:-1]
    assert_exact(mongo_face, thread)
    mongo_face.collection.update_many({}, {"$set": {"created_at": OLD}})
    assert (
        prune(mongo_face, thread, keep_last=2, older_than=datetime.now(timezone.utc)).threads == 1
    )
    assert ids(mongo_face.list(config(thread))) == line.ids[:17:-1]


def test_delete_removes_threads(mongo_face: Face, thread: str) -> None:
    """Everything of these threads goes, and nothing of others."""
    chat(mongo_face, thread)
    mongo_face.put_writes(config(thread, "early", "9"), [("x", 1)], "task")
    chat(mongo_face, thread + "2", 2)
    stays = chat(mongo_face, thread + "3", 2)
    before = counts(mongo_face)
    pruned = prune(mongo_face, thread, thread + "2", "unknown", strategy="delete")
    after = counts(mongo_face)
    assert after == counts(mongo_face, stays.thread)
    assert (pruned.checkpoints, pruned.writes, pruned.blobs) == tuple(
        b - a for b, a in zip(before, after, strict=True)
    )
    assert pruned.threads == 2
    stays.check()


def test_delete_of_idle_threads(mongo_face: Face, thread: str) -> None:
    """With an age, only threads that rest since then are deleted, as a whole."""
    idle, busy = chat(mongo_face, thread, 3), chat(mongo_face, thread + "2", 3)
    mongo_face.collection.update_many(
        {"$or": [{"thread_id": thread}, {"checkpoint_id": busy.ids[0]}]},
        {"$set": {"created_at": OLD}},
    )
    options = {"strategy": "delete", "older_than": timedelta(days=1)}
    assert prune(mongo_face, idle.thread, busy.thread, **options).threads == 1
    assert counts(mongo_face, thread) == (0, 0, 0)
    busy.check()


@pytest.mark.parametrize(
    "options", [{}, {"keep_last": 3}, {"strategy": "delete"}, {"older_than": timedelta(0)}], ids=str
)
def test_dry_run_counts_and_changes_nothing(
    mongo_face: Face, thread: str, options: dict[str, Any]
) -> None:
    """What a dry run says is what the prune then does."""
    lines = [chat(mongo_face, thread, 6, ns) for ns in ("", "inner")]
    tree = Tree(mongo_face, thread, "delta")
    for n in range(6):
        tree.put({"chat": [LARGE] * n}, wrote={"d": n}, snapshots=["d"] if n == 3 else ())
    before = counts(mongo_face)
    said = prune(mongo_face, thread, dry_run=True, **options)
    assert counts(mongo_face) == before
    assert marked(mongo_face, thread) == set()
    for line in lines:
        line.check()
    assert said == prune(mongo_face, thread, **options)
    after = counts(mongo_face)
    assert (said.checkpoints, said.writes, said.blobs) == tuple(
        b - a for b, a in zip(before, after, strict=True)
    )


def test_unknown_and_empty(mongo_face: Face, thread: str) -> None:
    """Nothing to prune is no error; a thread of one checkpoint stays as it is."""
    assert prune(mongo_face).threads == 0
    assert prune(mongo_face, thread, thread).threads == 0
    line = chat(mongo_face, thread, 1)
    before = counts(mongo_face)
    assert prune(mongo_face, thread).threads == 0
    assert counts(mongo_face) == before
    line.check()
    chat(mongo_face, "7", 3)
    assert prune(mongo_face, 7, uuid.UUID(int=1)).checkpoints == 2


@pytest.mark.parametrize(
    ("threads", "options", "kind"),
    [
        ("thread", {}, TypeError),
        (b"thread", {}, TypeError),
        (None, {}, TypeError),
        ([None], {}, TypeError),
        ([{"$ne": 1}], {}, TypeError),
        ([""], {}, ValueError),
        (["t"], {"strategy": "keep_none"}, ValueError),
        (["t"], {"strategy": None}, ValueError),
        (["t"], {"keep_last": 0}, ValueError),
        (["t"], {"keep_last": True}, ValueError),
        (["t"], {"keep_last": 2, "strategy": "delete"}, ValueError),
        (["t"], {"older_than": datetime(2026, 1, 1)}, ValueError),  # noqa: DTZ001 - that is wrong
        (["t"], {"older_than": timedelta(-1)}, ValueError),
        (["t"], {"older_than": 7}, ValueError),
    ],
)
def test_bad_arguments(
    mongo_face: Face, threads: Any, options: dict[str, Any], kind: type[Exception]
) -> None:
    """What cannot be meant is refused before anything is sent."""
    with mongo_face.commands.recorded() as sent, pytest.raises(UsageError) as refused:
        mongo_face.call("prune", threads, **options)
    assert isinstance(refused.value, kind)
    assert sent == []


def test_calls_of_subgraphs_go_with_the_checkpoint_they_started_from(
    mongo_face: Face, thread: str
) -> None:
    """A finished call's namespace goes; one of the newest, or of one not saved yet, stays."""
    line = Line(mongo_face, thread)
    for n in range(3):
        line.put({"n": n})
    unsaved = "ffff"
    for name, root in (
        ("a:1", line.ids[0]),
        ("a:2", line.ids[2]),
        ("a:3", unsaved),
        ("own", line.ids[0]),
    ):
        inner = Line(mongo_face, thread, name)
        for n in range(2):
            inner.put({"large": LARGE, "n": n}, metadata=metadata(parents={"": root}))
    prune(mongo_face, thread)
    left = {
        row.config["configurable"]["checkpoint_ns"] for row in mongo_face.list(config(thread, None))
    }
    assert left == {"", "a:2", "a:3", "own"}
    assert counts(mongo_face, thread)[0] == 4
    assert_exact(mongo_face, thread)


def test_early_checkpoint_keeps_its_sends(mongo_face: Face, thread: str) -> None:
    """What a checkpoint from before version 4 finds among its parent's writes stays there."""
    for n, v in enumerate((3, 3, 3)):
        at = config(thread, "", f"{n - 1}" if n else None)
        mongo_face.put(at, checkpoint(checkpoint_id=f"{n}", v=v), metadata(), {})
        mongo_face.put_writes(config(thread, "", f"{n}"), [(TASKS, f"send {n}"), ("x", n)], "task")
    before = mongo_face.get_tuple(config(thread))
    assert before is not None
    assert before.checkpoint["channel_values"][TASKS] == ["send 1"]
    for _ in range(2):
        prune(mongo_face, thread)
        after = mongo_face.another().get_tuple(config(thread))
        assert after is not None
        assert after.checkpoint["channel_values"] == before.checkpoint["channel_values"]
        assert after.pending_writes == before.pending_writes
        assert len(mongo_face.list(config(thread))) == 1
        assert counts(mongo_face, thread)[:2] == (2, 3)


# --- DeltaChannels -----------------------------------------------------------------------------


def test_ancestors_stay_for_a_delta_channel(mongo_face: Face, thread: str) -> None:
    """Back to the nearest stored value, and no further; they remain whole checkpoints."""
    tree = Tree(mongo_face, thread)
    for n in range(12):
        tree.put({"chat": [LARGE] * n}, wrote={"d": n}, snapshots=["d"] if n in (4, 8) else ())
    before = states(mongo_face, thread)
    assert prune(mongo_face, thread).checkpoints == 8
    after = states(mongo_face.another(), thread)
    assert set(after) == {("", i) for i in tree.ids[8:]}
    assert after == {key: before[key] for key in after}
    assert_exact(mongo_face, thread)
    assert prune(mongo_face, thread).checkpoints == 0
    tree.put(wrote={"d": 12}, snapshots=["d"])
    assert prune(mongo_face, thread).checkpoints == 4
    assert counts(mongo_face, thread)[0] == 1


def test_ancestors_that_are_not_whole_stay_out_of_sight(mongo_face: Face, thread: str) -> None:
    """Where channels have snapshots at different places, no older state is half there."""
    tree = Tree(mongo_face, thread, delta=("d", "e"))
    for n in range(12):
        snapshots = {"d": (3, 7, 11), "e": (1, 5, 9)}
        tree.put(
            {"own": LARGE},
            wrote={"d": f"d{n}", "e": f"e{n}"},
            snapshots=[c for c, at in snapshots.items() if n in at],
        )
    tree.put(wrote={"d": "last", "e": "last"})
    before = states(mongo_face, thread)
    prune(mongo_face, thread)
    after = states(mongo_face.another(), thread)
    assert after == {key: before[key] for key in after}
    assert set(after) == {("", i) for i in tree.ids[11:]}
    assert marked(mongo_face, thread) == set(tree.ids[9:11])
    assert_exact(mongo_face, thread)
    tree.put(snapshots=["d", "e"])
    prune(mongo_face, thread)
    assert counts(mongo_face, thread) == (1, 0, counts(mongo_face, thread)[2])
    assert_exact(mongo_face, thread)


def test_channel_that_was_never_written_needs_nothing(mongo_face: Face, thread: str) -> None:
    """LangGraph counts steps of such a channel too; the thread is pruned all the same."""
    tree = Tree(mongo_face, thread, delta=("d", "never"))
    for n in range(5):
        tree.put(wrote={"d": n}, snapshots=["d"] if n == 4 else ())
    prune(mongo_face, thread)
    assert counts(mongo_face, thread)[0] == 1


def test_snapshot_tells_of_a_delta_channel_without_counters(mongo_face: Face, thread: str) -> None:
    """A stored snapshot among the ancestors is enough to keep what is rebuilt from it."""
    tree = Tree(mongo_face, thread)
    tree.put()
    tree.put(wrote={"d": 1}, snapshots=["d"])
    for n in range(2, 5):
        tree.put(wrote={"d": n})
    mongo_face.collection.update_many({}, {"$unset": {"search_rest": 1}})
    before = states(mongo_face, thread)
    prune(mongo_face, thread)
    after = states(mongo_face, thread)
    assert after == {key: before[key] for key in after}
    assert counts(mongo_face, thread)[0] == 4


steps = st.lists(
    st.fixed_dictionaries(
        {
            "on": st.one_of(st.none(), st.integers(0, 15)),
            "root": st.sampled_from([False] * 9 + [True]),
            "chat": st.booleans(),
            "wrote": st.dictionaries(st.sampled_from(["d", "e"]), st.integers(0, 99)),
            "snapshots": st.sets(st.sampled_from(["d", "e"]), max_size=1),
            "run": st.sampled_from(["r", "s", "t", None]),
        }
    ),
    min_size=2,
    max_size=14,
)


def grow(face: Face, thread: str, steps: list[dict[str, Any]]) -> Tree:
    """Puts a tree as the steps say."""
    tree = Tree(face, thread, delta=("d", "e"))
    for n, step in enumerate(steps):
        on = step["on"]
        tree.put(
            {"chat": [f"{i} " * 900 for i in range(n)]} if step["chat"] else {},
            on=tree.ids[on] if on is not None and on < n else None,
            root=step["root"],
            wrote=step["wrote"],
            snapshots=step["snapshots"],
            run=step["run"],
        )
    return tree


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=steps, keep_last=st.integers(1, 4), again=st.integers(1, 2))
def test_what_remains_reads_as_before(
    mongo_face: Face, steps: list[dict[str, Any]], keep_last: int, again: int
) -> None:
    """On any tree, each remaining checkpoint has its state and writes, and nothing is too much."""
    thread = str(uuid.uuid4())
    tree = grow(mongo_face, thread, steps)
    before, writes = states(mongo_face, thread), pending(mongo_face, thread)
    for keep in (keep_last, min(keep_last, again)):
        prune(mongo_face, thread, keep_last=keep)
        after = states(mongo_face.another(), thread)
        assert after == {key: before[key] for key in after}
        assert {("", i) for i in tree.ids[-keep:]} <= set(after)
        assert pending(mongo_face, thread) == {key: writes[key] for key in after}
        assert_exact(mongo_face, thread)


def test_real_graphs_keep_their_delta_channels(mongo_face: Face, thread: str) -> None:
    """A graph's state after a prune is the same, and so is what it does next."""
    twin = thread + " twin"
    graphs = {t: mongo_face.graph(delta_graph()) for t in (thread, twin)}
    for turn in range(6):
        for each, graph in graphs.items():
            graph.invoke({"chat": [f"question {turn}"]}, config(each))
        before = values_by_id(graphs[thread].history(config(thread)))
        prune(mongo_face, thread)
        cold = mongo_face.another().graph(delta_graph())
        after = values_by_id(cold.history(config(thread)))
        assert after == {each: before[each] for each in after}
        assert max(after) == max(before)
        assert_exact(mongo_face, thread)
    assert graphs[thread].state(config(thread)).values == graphs[twin].state(config(twin)).values


def values_by_id(snapshots: list[Any]) -> dict[str, Any]:
    """Returns the state of each snapshot of a history."""
    return {id_of(each.config): each.values for each in snapshots}


# --- interrupts and subgraphs ------------------------------------------------------------------


class State(TypedDict):
    done: Annotated[list[str], lambda old, new: sorted(old + new)]


def asking() -> StateGraph[Any]:
    """Returns the builder of a graph whose two parallel branches each ask, one in a subgraph."""

    def ask(name: str) -> Any:
        return lambda state: {"done": [f"{name} {interrupt(name)}"]}

    inner = StateGraph(State)
    inner.add_node("ask", ask("inner"))
    inner.add_edge(START, "ask")
    builder = StateGraph(State)
    builder.add_node("left", ask("left"))
    builder.add_node("right", inner.compile())
    builder.add_node("end", lambda state: {"done": ["end"]})
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_edge(["left", "right"], "end")
    builder.add_edge("end", END)
    return builder


def test_interrupts_are_answered_one_by_one_around_a_prune(mongo_face: Face, thread: str) -> None:
    """What waits for an answer goes on after a prune as it would have without one."""
    graph, twin = mongo_face.graph(asking()), config(thread + " twin")
    for _ in range(2):
        graph.invoke({"done": []}, config(thread))
        graph.invoke({"done": []}, twin)
        for _ in range(2):
            state = graph.state(config(thread), subgraphs=True)
            assert prune(mongo_face, thread, keep_last=1).skipped == 1
            assert prune(mongo_face, thread, keep_last=1, dry_run=True).skipped == 1
            prune(mongo_face, thread)
            now = graph.state(config(thread), subgraphs=True)
            assert (now.values, now.next, now.interrupts) == (
                state.values,
                state.next,
                state.interrupts,
            )
            assert [task.state and task.state.values for task in now.tasks] == [
                task.state and task.state.values for task in state.tasks
            ]
            assert_exact(mongo_face, thread)
            asked = state.interrupts[0]
            graph.invoke(Command(resume={asked.id: "yes"}), config(thread))
            asked = graph.state(twin).interrupts[0]
            graph.invoke(Command(resume={asked.id: "yes"}), twin)
        state = graph.state(config(thread))
        assert state.next == ()
        assert prune(mongo_face, thread, keep_last=1).skipped == 0
        [row] = mongo_face.list(config(thread, None))
        assert row.checkpoint["id"] == id_of(state.config)
        assert state.values == graph.state(twin).values
        assert {"left yes", "inner yes", "end"} <= set(state.values["done"])


def test_interrupted_threads_are_skipped_unless_told(mongo_face: Face, thread: str) -> None:
    """Retention leaves threads alone that wait for somebody; a plain prune keeps what they need."""
    graph = mongo_face.graph(asking())
    graph.invoke({"done": []}, config(thread))
    before = counts(mongo_face)
    for options in (
        {"keep_last": 1},
        {"older_than": timedelta(0)},
        {"older_than": timedelta(0), "strategy": "delete"},
        {"skip_interrupted": True},
        {"skip_interrupted": True, "strategy": "delete"},
    ):
        assert prune(mongo_face, thread, **options).skipped == 1
        assert counts(mongo_face) == before
    assert prune(mongo_face, thread, keep_last=1, skip_interrupted=False).threads == 1
    assert prune(mongo_face, thread, strategy="delete").threads == 1
    assert counts(mongo_face) == (0, 0, 0)


# --- beside others, and in spite of failures ---------------------------------------------------


def test_prune_can_break_off_anywhere(mongo_face: Face, thread: str) -> None:
    """After a failure at any operation readers find what stays, and repeating ends it exactly."""

    def fill(thread: str) -> None:
        chat(mongo_face, thread, 8)
        chat(mongo_face, thread, 3, "inner")
        tree = Tree(mongo_face, thread, "delta", delta=("d", "e"))
        for n in range(8):
            snapshots = [c for c, at in {"d": (4, 6), "e": (3, 5)}.items() if n in at]
            tree.put({"chat": [LARGE] * n}, wrote={"d": n, "e": n}, snapshots=snapshots)

    fill(thread)
    before = states(mongo_face, thread)
    prune(mongo_face, thread, keep_last=2)
    expected, size = set(states(mongo_face, thread)), counts(mongo_face, thread)
    mongo_face.delete_thread(thread)

    broken = 0
    for name in at_each_operation(
        mongo_face, thread, fill, lambda t: prune(mongo_face, t, keep_last=2)
    ):
        broken += 1
        kept = {key[0]: [] for key in before}
        for ns, values in ((key[0], values) for key, values in states(mongo_face, name).items()):
            kept[ns].append(values)
        assert all(len(each) >= 2 for each in kept.values())
        prune(mongo_face, name, keep_last=2)
        after = states(mongo_face.another(), name)
        assert len(after) == len(expected)
        assert counts(mongo_face, name) == size
        assert_exact(mongo_face, name)
        mongo_face.delete_thread(name)
    assert broken >= 10


def test_blob_found_by_a_put_meanwhile_stays(mongo_face: Face, thread: str) -> None:
    """A put that needs what is being freed has touched it; the marks stay until the next prune."""
    line = Line(mongo_face, thread)
    line.put({"large": LARGE}, checkpoint_id="1")
    line.put({"large": "other" + LARGE}, checkpoint_id="2")
    now, size = datetime.now(timezone.utc), counts(mongo_face)[2]
    mongo_face.sibling(".blobs").update_many({}, {"$set": {"touched_at": now}})
    pruned = prune(mongo_face, thread)
    assert (pruned.checkpoints, pruned.blobs) == (0, 0)
    assert marked(mongo_face, thread) == {"1"}
    assert ids(mongo_face.list(config(thread))) == ["2"]
    mongo_face.sibling(".blobs").update_many({}, {"$set": {"touched_at": now - 2 * sweep.MARGIN}})
    pruned = prune(mongo_face, thread)
    assert (pruned.checkpoints, pruned.blobs) == (1, size // 2)
    assert_exact(mongo_face, thread)


def test_put_touches_what_is_stored_already(mongo_face: Face, thread: str) -> None:
    """A value that two branches have in common is stored once, and the second put says so."""
    for n in range(2):
        mongo_face.another().put(
            config(thread),
            checkpoint({"large": LARGE}, {"large": "1"}, checkpoint_id=str(n)),
            metadata(),
            {"large": "1"},
        )
    blobs = list(mongo_face.sibling(".blobs").find({}))
    assert blobs
    assert all(blob["touched_at"] >= blob["created_at"] for blob in blobs)


def test_put_of_what_is_being_freed(mongo_face: Face, thread: str) -> None:
    """Wherever a prune comes in between a put's operations, the checkpoint is whole afterwards."""
    pruner = mongo_face.another()

    def put(face: Face, n: int, value: str) -> None:
        made = checkpoint({"large": value}, {"large": value[:1]}, checkpoint_id=f"{n}")
        new = {"large": value[:1]}
        face.put(config(thread, "", f"{n - 1}" if n else None), made, metadata(), new)

    for at in range(8):
        operations = iter(range(99))

        def meddle(_: Any, at: int = at, operations: Any = operations) -> None:
            if next(operations) == at:
                prune(pruner, thread)

        for n, value in enumerate(("a" + LARGE, "b" + LARGE)):
            put(mongo_face, n, value)
        with between_operations(mongo_face, meddle):
            put(mongo_face, 2, "a" + LARGE)
        assert values_of(pruner.another(), config(thread)) == {"large": "a" + LARGE}
        mongo_face.sibling(".blobs").update_many({}, {"$unset": {"touched_at": 1}})
        prune(pruner, thread)
        assert values_of(pruner.another(), config(thread)) == {"large": "a" + LARGE}
        assert_exact(mongo_face, thread)
        mongo_face.delete_thread(thread)


def test_prune_beside_a_running_graph(mongo_face: Face, thread: str) -> None:
    """A run that appends between any two commands of a prune loses nothing."""
    line = chat(mongo_face, thread, 6)
    more = Line(mongo_face.another(), thread)
    more.ids, more.versions, more.values = [line.ids[-1]], dict(line.versions), dict(line.values)

    def put(_: Any) -> None:
        n = len(more.ids)
        more.put({"chat": [f"{i} " * 900 for i in range(6 + n)], "n": -n})

    for _ in range(3):
        with between_operations(mongo_face, put):
            prune(mongo_face, thread)
    more.expected.pop(line.ids[-1], None)
    kept = {id_of(row) for row in mongo_face.list(config(thread))}
    assert more.ids[-1] in kept
    more.expected = {i: v for i, v in more.expected.items() if i in kept}
    more.check(mongo_face.another())
    prune(mongo_face, thread)
    assert values_of(mongo_face.another(), config(thread)) == more.values
    assert_exact(mongo_face, thread)


def test_documents_of_others_are_refused(mongo_face: Face, thread: str) -> None:
    """A checkpoint in a format that is not known is not pruned on a guess."""
    chat(mongo_face, thread, 3)
    mongo_face.collection.update_one({}, {"$set": {"format": 2}})
    before = counts(mongo_face)
    with pytest.raises(Exception, match="format 2"):
        prune(mongo_face, thread)
    assert counts(mongo_face) == before


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=steps, keep_last=st.integers(1, 3))
def test_small_batches_come_to_the_same(
    mongo_face: Face, steps: list[dict[str, Any]], keep_last: int
) -> None:
    """However many commands a prune takes, what it leaves is exact."""
    thread = str(uuid.uuid4())
    tree = grow(mongo_face, thread, steps)
    for n in range(7):
        line = Line(mongo_face, thread, f"inner {n}")
        for large in (LARGE, LARGE + "2", f"{n}" + LARGE):
            line.put({"large": large})
    before = states(mongo_face, thread)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "BATCH", 3)
        patch.setattr(sweep, "SCOPES", 2)
        patch.setattr(sweep, "LOADED", 2)
        said = prune(mongo_face, thread, keep_last=keep_last, dry_run=True)
        assert prune(mongo_face, thread, keep_last=keep_last) == said
    after = states(mongo_face.another(), thread)
    assert after == {key: before[key] for key in after}
    assert {("", i) for i in tree.ids[-keep_last:]} <= set(after)
    assert_exact(mongo_face, thread)


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("last", [0, 1])
def test_snapshots_are_recognised_without_counters(
    mongo_face: Face, thread: str, encrypted: bool, last: int
) -> None:
    """Also where a snapshot has grown, or is encrypted; values of other kinds keep nothing."""
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 32) if encrypted else None
    face = mongo_face.another(serde=serde)
    at = config(thread)
    for n in range(5):
        new = {"d": f"{n}", "large": f"{n}"}
        values = {"d": _DeltaSnapshot([LARGE, *range(n)]), "large": LARGE} if n <= last else {}
        at = face.put(at, checkpoint(values, new, checkpoint_id=f"{n}"), metadata(), new)
        face.put_writes(at, [("d", n)], "task")
    before = face.call("get_delta_channel_history", config=at, channels=["d"])
    assert before["d"]["seed"] == _DeltaSnapshot([LARGE, *range(last)])
    prune(face, thread)
    assert face.call("get_delta_channel_history", config=at, channels=["d"]) == before
    assert counts(face, thread)[:2] == (5 - last, 5 - last)
    other = Line(face, "other")
    other.put({"large": LARGE})
    other.put({"n": 1}, emptied=["large"])
    prune(face, other.thread)
    assert counts(face, other.thread) == (1, 0, 0)
