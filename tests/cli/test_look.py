"""`threads`, `history`, `show` and `stats` on what real graphs leave, and on what is hostile."""

from __future__ import annotations

import operator
import re
import sys
import warnings
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from mongosaver import MongoSaver
from mongosaver.cli.look import age, draw, kind, parts_of, short_length, what_changed
from mongosaver.cli.plain import Sealed, Typed
from mongosaver.identifiers import Key
from mongosaver.plans.inspect.changes import Change
from mongosaver.plans.inspect.entries import Entry
from tests.cli.conftest import in_terminal
from tests.contract.samples import checkpoint, config, metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.cli.conftest import Place, Run
    from tests.faces import Commands

LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)
HOSTILE = "[red]x[/] \x1b[31m\u202eevil:smile:"
ESCAPED = r"[red]x[/] \x1b[31m\u202eevil:smile:"


class State(TypedDict):
    """State of the test's graphs."""

    log: Annotated[list[Any], operator.add]


def asks(state: State) -> Any:
    """Waits for an answer."""
    return {"log": [interrupt("well?")]}


def trip(saver: MongoSaver) -> Any:
    """A graph with a subgraph that interrupts."""
    inner: Any = StateGraph(State)
    inner.add_node("think", lambda state: {"log": ["think"]}).add_node("ask", asks)
    inner.add_edge(START, "think").add_edge("think", "ask")
    outer: Any = StateGraph(State)
    outer.add_node("plan", lambda state: {"log": [HumanMessage("plan")]})
    outer.add_node("sub", inner.compile())
    outer.add_node("book", lambda state: {"log": ["book"]})
    outer.add_edge(START, "plan").add_edge("plan", "sub").add_edge("sub", "book")
    return outer.compile(checkpointer=saver)


def fan(saver: MongoSaver, *, failing: bool = True) -> Any:
    """A graph whose sends are followed by a node that fails."""

    def fail(state: State) -> Any:
        if failing:
            raise ValueError("no \x1b[31mred")
        return {}

    built: Any = StateGraph(State)
    built.add_node("plan", lambda state: {}).add_node("work", lambda n: {"log": [n]})
    built.add_node("fail", fail).add_edge(START, "plan").add_edge("work", "fail")
    built.add_conditional_edges("plan", lambda state: [Send("work", n) for n in range(3)])
    return built.compile(checkpointer=saver)


@pytest.fixture
def journey(place: Place) -> Place:
    """A thread with a replay, a fork by an update, and a subgraph that waits."""
    graph, at = trip(place.saver), {"configurable": {"thread_id": "journey"}}
    graph.invoke({"log": ["go"]}, at)
    graph.invoke(Command(resume="yes"), at)
    states = list(graph.get_state_history(at))
    [before] = [state for state in states if state.next == ("sub",)]
    graph.invoke(None, before.config)  # a replay, which waits again
    graph.invoke(Command(resume="again"), at)
    [start] = [state for state in states if state.next == ("plan",)]
    graph.update_state(start.config, {"log": ["edited"]}, as_node="plan")
    graph.invoke(None, at)
    return place


def conversation(place: Place, thread: str, count: int) -> list[str]:
    """Puts a line of checkpoints whose list grows; the ids, oldest first."""
    ids: list[str] = []
    log: list[str] = []
    for step in range(count):
        log.append(f"entry {step} " * 300)
        made = checkpoint({"log": log}, {"log": str(step)})
        at = config(thread, "", ids[-1] if ids else None)
        place.saver.put(at, made, metadata(step=step), {"log": str(step)})
        ids.append(made["id"])
    return ids


def mark(place: Place, field: str, *ids: str) -> None:
    """Lets checkpoints be expired or marked as deleted."""
    where = {"checkpoint_id": {"$in": list(ids)}}
    place.collection.update_many(where, {"$set": {field: LONG_AGO}})


# --- threads


def test_threads_are_listed_with_what_they_have(place: Place, mongosaver: Run) -> None:
    """The latest active first, with the number of checkpoints and whether an answer is awaited."""
    place.thread("quiet", 2)
    place.thread("asks", 3, interrupted=True)
    first, second = mongosaver("threads", "--json").json["threads"]
    assert (first["thread_id"], first["checkpoints"], first["namespaces"]) == ("asks", 3, [""])
    assert (first["pending_interrupt"], second["pending_interrupt"]) == (True, False)
    lines = mongosaver("threads").out.splitlines()
    assert lines[0].split() == ["thread", "checkpoints", "namespaces", "age"]
    assert lines[1].split()[:3] == ["asks", "3", "1"]
    assert lines[1].split()[-1] == "waits"
    assert mongosaver("threads", "--limit", "0").out.splitlines()[0] == lines[0]


def test_a_list_of_threads_goes_on_after_its_cursor(place: Place, mongosaver: Run) -> None:
    """What the last line says is what the next call takes; the last page has no such line."""
    for name in "abcde":
        place.thread(name, 1)
    page = mongosaver("threads", "--limit", "2", "--json").json
    rest = mongosaver("threads", "--limit", "3", "--after", page["after"], "--json").json
    assert [row["thread_id"] for row in page["threads"] + rest["threads"]] == list("edcba")
    assert rest["after"] is None
    assert page["after"] in mongosaver("threads", "--limit", "2").out
    refused = mongosaver("threads", "--after", "nonsense")
    assert refused.code == 2
    assert "--after takes the cursor that the last row of --json has" in refused.err


def test_threads_are_filtered_by_metadata(place: Place, mongosaver: Run) -> None:
    """Values are JSON, or text where they are none; what is no pair is refused."""
    place.thread("two", 3)
    place.thread("zero", 1)
    listed = mongosaver("threads", "--filter", "step=2", "--filter", "source=loop", "--json")
    assert [row["thread_id"] for row in listed.json["threads"]] == ["two"]
    assert mongosaver("threads", "--filter", "step").code == 2


def test_no_threads_are_none_of_something(place: Place, mongosaver: Run) -> None:
    """The line says where there are none, or of what; to have none is no failure."""

    def told(*arguments: str, **env: str) -> str:
        done = mongosaver("threads", *arguments, env=env)
        assert done.code == 0
        return done.out

    name = f"{place.database.name}.{place.name}"
    assert told() == f"no threads in {name}\n"
    other = told(MONGOSAVER_COLLECTION="other")
    assert other == f"no threads in {place.database.name}.other (the collection does not exist)\n"
    place.thread("t", 1)
    none = "no thread whose latest metadata has "
    assert told("--filter", 'step="2"') == none + 'step = "2"\n'
    assert told("--filter", "a.b=1", "--filter", "c=x") == none + 'a.b = 1 and c = "x"\n'
    [row] = mongosaver("threads", "--json").json["threads"]
    assert told("--after", row["cursor"]) == f"no more threads in {name}\n"


def test_a_long_id_does_not_widen_a_table(place: Place, mongosaver: Run) -> None:
    """It is cut, with its length, except in JSON; and no line ends in blanks."""
    long = "0123456789" * 100
    place.thread(long, 2, interrupted=True)
    place.thread("short", 1)
    for arguments in (("threads",), ("stats",), ("history", long), ("show", "short")):
        out = mongosaver(*arguments).out
        printed = out.splitlines()
        assert [line for line in printed if line != line.rstrip()] == [], arguments
        if "thread" in printed[0]:
            assert max(map(len, printed)) < 120
            assert "0123456789… (1,000 characters) " in out
    rows = mongosaver("threads", "--json").json["threads"]
    assert [row["thread_id"] for row in rows] == ["short", long]
    screen = in_terminal("threads", env=place.environment, columns=100).screen
    assert "0123456789… (1,000 characters) " in screen
    for id_ in (long, long[:-1]):
        made = checkpoint({"n": 1}, {"n": "1"}, checkpoint_id=id_)
        place.saver.put(config("ids"), made, metadata(), {"n": "1"})
    line, _ = lines(mongosaver("history", "ids"))
    assert "… (1,000 characters) " in line
    assert len(line) < 120


# --- history


def lines(done: Any) -> list[str]:
    """The lines of a drawing without the head, each without its age."""
    assert done.code == 0, done.err
    found = done.out.splitlines()[1:]
    return [line for line in found if set(line) & set("●○◇") and "newest branch" not in line]


def test_a_history_shows_forks_replays_and_subgraphs(journey: Place, mongosaver: Run) -> None:
    """One line for a checkpoint; a branch has a column, a subgraph ends where it was started."""
    drawn = lines(mongosaver("history", "journey", "--limit", "0"))
    assert [line[:8].rstrip() for line in drawn] == [
        "  ◇",
        "  ◇",
        "  ◇",
        "●─╯",
        "│ ○",
        "│ ○",
        "│ │ ◇",
        "│ │ ◇",
        "│ │ ◇",
        "│ │ ◇",
        "│ ○─╯",
        "│ │ ○",
        "│ │ ○",
        "│ │ │ ◇",
        "│ │ │ ◇",
        "│ │ │ ◇",
        "│ │ │ ◇",
        "│ ○─┴─╯",
        "●─╯",
        "●",
    ]
    assert [line for line in drawn if "newest" in line] == [drawn[3]]
    assert "[sub] → ask waits" in drawn[0]
    assert "→ sub waits" in drawn[3]
    assert " fork " in drawn[10]  # LangGraph's word for a replay
    assert drawn[-1].endswith("→ __start__")
    assert "○ another branch, ◇ subgraph" in mongosaver("history", "journey", "--limit", "0").out


def test_a_history_in_json_has_each_checkpoint_with_its_parent(
    journey: Place, mongosaver: Run
) -> None:
    """The first of a subgraph has the checkpoint that ran it; the newest branch is marked."""
    told = mongosaver("history", "journey", "--limit", "0", "--json").json
    nodes = {(node["checkpoint_ns"], node["checkpoint_id"]): node for node in told["checkpoints"]}
    rows = list(journey.saver.list({"configurable": {"thread_id": "journey"}}))
    assert len(nodes) == len(rows)
    assert not told["more"]
    for row in rows:
        here = row.config["configurable"]
        node = nodes[here["checkpoint_ns"], here["checkpoint_id"]]
        assert (node["step"], node["source"]) == (row.metadata["step"], row.metadata["source"])
        assert node["writes"] == len(row.pending_writes or ())
        parent = node["parent"] and (
            node["parent"]["checkpoint_ns"],
            node["parent"]["checkpoint_id"],
        )
        if row.parent_config:
            at = row.parent_config["configurable"]
            assert parent == (at["checkpoint_ns"], at["checkpoint_id"])
        elif here["checkpoint_ns"]:
            assert parent == ("", row.metadata["parents"][""])
        else:
            assert parent is None
    newest = [node for node in nodes.values() if node["newest"]]
    latest = journey.saver.get_tuple({"configurable": {"thread_id": "journey"}})
    assert latest is not None
    assert [node["checkpoint_id"] for node in newest] == [latest.checkpoint["id"]]
    branch = [node for node in nodes.values() if node["newest_branch"]]
    assert [node["step"] for node in branch] == [1, 0, -1]


def test_the_next_nodes_are_those_of_the_graph(journey: Place, mongosaver: Run) -> None:
    """Without the graph, at each checkpoint, for the history and for one checkpoint."""
    graph, at = trip(journey.saver), {"configurable": {"thread_id": "journey"}}
    told = mongosaver("history", "journey", "--ns", "", "--limit", "0", "--json").json
    nodes = {node["checkpoint_id"]: node for node in told["checkpoints"]}
    for state in graph.get_state_history(at):
        id_ = state.config["configurable"]["checkpoint_id"]
        assert tuple(nodes[id_]["next"]) == state.next
        shown = mongosaver("show", "journey", id_, "--json").json
        assert tuple(each["node"] for each in shown["next"]) == state.next
        if state.next == ("sub",):
            task = state.tasks[0]
            assert shown["next"][0]["task_id"] == task.id
            waits = "waits" if not task.result else "wrote"
            assert shown["next"][0]["state"] == waits


def test_sends_and_failures_are_named(place: Place, mongosaver: Run) -> None:
    """Tasks of sends have their node's name, and one that failed says so."""
    with pytest.raises(ValueError, match="no"):
        fan(place.saver).invoke({"log": []}, {"configurable": {"thread_id": "fan"}})
    last, sent, *_ = lines(mongosaver("history", "fan"))
    assert last.endswith("→ fail failed  ← newest")
    assert sent.endswith("→ 3 x work")
    shown = mongosaver("show", "fan").out
    assert "  fail  failed  called by branch:to:fail, task " in shown
    assert r'__error__: "ValueError(' in shown
    assert r"no \x1b[31mred" in shown
    id_ = mongosaver("history", "fan", "--json").json["checkpoints"][1]["checkpoint_id"]
    sends = mongosaver("show", "fan", id_, "--json").json["next"]
    assert [(each["node"], each["state"]) for each in sends] == [("work", "wrote")] * 3


def test_a_history_can_be_cut_and_narrowed(journey: Place, mongosaver: Run) -> None:
    """The newest so many, with a line that there are more; or one namespace alone."""
    whole = mongosaver("history", "journey", "--limit", "0", "--json").json["checkpoints"]
    told = mongosaver("history", "journey", "--limit", "5", "--json").json
    assert (told["checkpoints"], told["more"]) == (whole[:5], True)
    cut = mongosaver("history", "journey", "--limit", "5").out
    assert cut.splitlines()[-1].startswith("⋮")
    ns = whole[0]["checkpoint_ns"]
    inner = mongosaver("history", "journey", "--ns", ns, "--json").json["checkpoints"]
    assert [node["checkpoint_ns"] for node in inner] == [ns] * 3
    assert [line[0] for line in lines(mongosaver("history", "journey", "--ns", ns))] == ["●"] * 3


def test_a_straight_line_stays_in_its_column(place: Place, mongosaver: Run) -> None:
    """However long it is, and with as many commands as a short one."""
    put = {"configurable": {"thread_id": "long"}}
    for n in range(1_000):
        made = checkpoint({"n": n}, {"n": str(n)}, checkpoint_id=f"{n:06}")
        at = put["configurable"] | {"checkpoint_ns": ""}
        put = place.saver.put({"configurable": at}, made, metadata(step=n), {"n": str(n)})  # type: ignore[assignment]
    drawn = lines(mongosaver("history", "long", "--limit", "0"))
    assert len(drawn) == 1_000
    assert {line[:2] for line in drawn} == {"● "}
    assert drawn[-1].split()[1] == "000000"


def test_a_history_reads_no_state(place: Place, mongosaver: Run, recorded: Commands) -> None:
    """Keys come from the index, and payloads are left where they are; three commands in all."""
    place.thread("t", 30)
    with recorded.recorded() as sent:
        assert mongosaver("history", "t", "--limit", "10").code == 0
    assert [(each.name, each.collection) for each in sent] == [
        ("aggregate", place.name),
        ("find", place.name),
        ("find", place.name + ".writes"),
    ]
    for each in sent[1:]:
        fields = set(each.command["projection"])
        assert not fields & {"checkpoint", "metadata", "inline", "blobs", "data"}


def test_what_expired_or_is_being_removed_is_not_shown(place: Place, mongosaver: Run) -> None:
    """Neither in a history nor by its id; the page is filled from what is alive."""
    ids = place.thread("t", 8)
    mark(place, "deleted_at", ids[7], ids[3])
    mark(place, "expires_at", ids[5], ids[4])
    told = mongosaver("history", "t", "--limit", "3", "--json").json
    assert [node["checkpoint_id"] for node in told["checkpoints"]] == [ids[6], ids[2], ids[1]]
    assert told["more"]
    assert mongosaver("show", "t", "--json").json["checkpoint_id"] == ids[6]
    for id_ in (ids[7], ids[5]):
        gone = mongosaver("show", "t", id_)
        assert (gone.code, "no checkpoint whose id is" in gone.err) == (1, True)
    mark(place, "deleted_at", *ids)
    assert mongosaver("history", "t").code == 1
    assert "no checkpoint is stored" in mongosaver("history", "unknown").err


def entry(
    id_: str, parent: str | None = None, ns: str = "", started_by: Key | None = None
) -> Entry:
    """A checkpoint to draw."""
    return Entry((ns, id_), parent, LONG_AGO, "loop", 1, None, (), started_by=started_by)


@pytest.mark.parametrize(
    ("entries", "graph"),
    [
        ([], []),
        ([entry("1")], ["●"]),
        ([entry("3", "2"), entry("2", "1"), entry("1")], ["●", "●", "●"]),
        ([entry("3", "1"), entry("2", "1"), entry("1")], ["●", "│ ○", "●─╯"]),
        ([entry("4", "1"), entry("3", "1"), entry("2", "1"), entry("1")],
         ["●", "│ ○", "│ │ ○", "●─┴─╯"]),
        ([entry("5", "3"), entry("4", "2"), entry("3", "1"), entry("2", "1"), entry("1")],
         ["●", "│ ○", "● │", "│ ○", "●─╯"]),
        # A fork of an older checkpoint crosses the column of another one.
        ([entry("6", "1"), entry("5", "2"), entry("4", "3"), entry("3", "2"), entry("2", "1"),
          entry("1")],
         ["●", "│ ○", "│ │ ○", "│ │ ○", "│ ○─╯", "●─╯"]),
        # The parent was pruned, or is older than what is shown.
        ([entry("3", "0"), entry("2", "1"), entry("1")], ["●", "  ○", "  ○"]),
        # Hand-made ids that are not in the order of time.
        ([entry("2"), entry("1", "2")], ["●", "  ○"]),
        ([entry("3", "3")], ["●"]),
        ([entry("3"), entry("2", "3"), entry("1", "0")], ["●", "  ○", "  ○"]),
        # A branch that is open between two that meet.
        ([entry("7", "1"), entry("6", "3"), entry("5", "2"), entry("4", "3"), entry("3", "1"),
          entry("2", "1"), entry("1")],
         ["●", "│ ○", "│ │ ○", "│ │ │ ○", "│ ○─┼─╯", "│ │ ○", "●─┴─╯"]),
        # A subgraph that came later than the root graph's newest.
        ([entry("3", "2", "a:1"), entry("2", None, "a:1", ("", "1")), entry("1")],
         ["  ◇", "  ◇", "●─╯"]),
        # Nobody knows who started it.
        ([entry("3", None, "a:1"), entry("2", "1"), entry("1")], ["  ◇", "●", "●"]),
    ],
)  # fmt: skip
def test_drawings(entries: Sequence[Entry], graph: Sequence[str]) -> None:
    """Columns are taken where a branch begins, and given back where it meets another one."""
    assert [row.graph for row in draw(entries)] == graph


def test_very_many_branches_are_cut() -> None:
    """A checkpoint with a hundred children does not fill the line."""
    children = [entry(f"{n:03}", "000") for n in range(100, 0, -1)]
    assert max(len(row.graph) for row in draw([*children, entry("000")])) < 36


def test_ids_are_as_long_as_it_takes() -> None:
    """The beginning tells them apart, and ends with a part of a UUID."""
    one = "1f1ed0c2-b060-6001-8000-8eec82dcfeea"
    assert short_length([one]) == 13
    assert short_length([one, "1f1ed0c2-b061-6001-8000-8eec82dcfeea"]) == 13
    assert short_length([one, one[:-1] + "b"]) == 36
    # Two namespaces have it.
    assert short_length([one, one]) == 36


def test_ids_are_longer_where_others_are_not_known() -> None:
    """The time in them is enough where they have one; else nothing but all of them is."""
    one = "1f1ed0c2-b060-6001-8000-8eec82dcfeea"
    assert short_length([one], is_whole=False) == 18
    assert short_length([one, one[:-1] + "b"], is_whole=False) == 36
    assert short_length([one, "step 17"], is_whole=False) == 36
    assert short_length(["graph step 17", "graph step 1800"], is_whole=False) >= 15


def test_an_id_of_a_history_is_one_for_show(journey: Place, mongosaver: Run) -> None:
    """However few lines are shown, and in whichever namespace; the last line says how to go on."""
    for arguments in ((), ("--limit", "1"), ("--limit", "9"), ("--ns", "")):
        told = mongosaver("history", "journey", *arguments, "--json").json["checkpoints"]
        for node, line in zip(
            told, lines(mongosaver("history", "journey", *arguments)), strict=True
        ):
            [id_] = re.findall("[0-9a-f]{8}-[0-9a-f-]+", line)
            shown = mongosaver("show", "journey", id_, "--json").json
            assert shown["checkpoint_id"] == node["checkpoint_id"]
    more = mongosaver("history", "journey", "--limit", "1").out.splitlines()[-1]
    assert more.endswith("more: --limit 0 shows all")
    near = ["1f1ed0c2-b060-6001-8000-8eec82dcfeea", "1f1ed0c2-b060-6002-8000-8eec82dcfeea"]
    for id_ in near:
        made = checkpoint({"n": 1}, {"n": "1"}, checkpoint_id=id_)
        journey.saver.put(config("near"), made, metadata(), {"n": "1"})
    [line] = lines(mongosaver("history", "near", "--limit", "1"))
    assert line.split()[1] == near[1][:18]
    assert mongosaver("show", "near", near[1][:18], "--json").json["checkpoint_id"] == near[1]


def test_a_terminal_without_unicode_gets_a_drawing(journey: Place) -> None:
    """In ASCII, and nothing is lost of it."""
    env = {**journey.environment, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = in_terminal("history", "journey", "--no-color", env=env)
    assert done.code == 0
    assert "| o-^-'" in done.screen
    assert "< newest" in done.screen
    assert done.screen.isascii()


# --- show


def test_a_checkpoint_is_shown_with_state_writes_and_storage(
    journey: Place, mongosaver: Run
) -> None:
    """Objects by their types' names, and how each value lies in the database."""
    out = mongosaver("show", "journey").out
    assert "namespace" not in out
    assert '__interrupt__: [Interrupt(value="well?"' in out
    [ns] = [n for n in journey.collection.distinct("checkpoint_ns") if n][-1:]
    inner = mongosaver("show", "journey", "--ns", ns).out
    assert f"namespace   {ns}" in inner
    assert re.search("^  log  +list of 2  [0-9.]+ .*, inline$", out, re.MULTILINE)
    conversation(journey, "stored", 12)
    told = mongosaver("show", "stored", "--json").json
    log = told["values"]["log"]
    row = journey.collection.find_one({"thread_id": "stored"}, sort=[("checkpoint_id", -1)])
    assert row is not None
    [blob] = row["blobs"]
    head = journey.database[journey.name + ".blobs"].find_one({"key": blob["k"]})
    assert head is not None
    assert log["stored"] == {
        "form": "blob",
        "segments": len(head["chain"]) + 1,
        "tail": len(blob.get("d", b"")),
        "bytes": blob["size"],
    }
    assert len(log["value"]) == 12
    text = mongosaver("show", "stored").out
    assert f"blob of {len(head['chain']) + 1} segment" in text
    assert "… 9 before" in text
    assert "entry 0" in mongosaver("show", "stored", "--items", "0").out


def test_a_checkpoint_is_found_by_the_beginning_of_its_id(place: Place, mongosaver: Run) -> None:
    """As the history prints it; what fits several is refused, with the candidates."""
    for ns, id_ in (("", "abc1"), ("", "abc2"), ("sub:1", "abc3"), ("", "abc"), ("sub:1", "abc1")):
        made = checkpoint({"n": 1}, {"n": "1"}, checkpoint_id=id_)
        place.saver.put(config("t", ns), made, metadata(), {"n": "1"})

    def found(*arguments: str) -> Any:
        told = mongosaver("show", "t", *arguments, "--json").json
        return told["checkpoint_ns"], told["checkpoint_id"]

    assert found() == ("", "abc2")
    assert found("abc3") == ("sub:1", "abc3")
    assert found("abc1") == ("", "abc1")
    assert found("abc1", "--ns", "sub:1") == ("sub:1", "abc1")
    assert found("--ns", "sub:1") == ("sub:1", "abc3")
    assert found("abc") == ("", "abc")
    several = mongosaver("show", "t", "ab")
    assert (several.code, "fits several" in several.err, "'abc3'" in several.err) == (2, True, True)
    assert mongosaver("show", "t", "b").code == 1
    missing = mongosaver("show", "t", "--ns", "other")
    assert (missing.code, "`mongosaver history 't'`" in missing.err) == (1, True)
    assert mongosaver("show", "nobody").code == 1


def test_a_channel_that_is_rebuilt_from_writes_is_shown(place: Place, mongosaver: Run) -> None:
    """Its value is stored nowhere, and it is part of the state all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the channel is in beta and says so
        items = Annotated[list[Any], DeltaChannel(gather, list, snapshot_frequency=4)]
        state = TypedDict("state", {"items": items})  # type: ignore[valid-type]  # noqa: UP013
        built: Any = StateGraph(state)
        built.add_node("add", lambda s: {"items": [len(s["items"])]}).add_edge(START, "add")
        graph = built.compile(checkpointer=place.saver)
        at = {"configurable": {"thread_id": "t"}}
        graph.invoke({"items": ["go"]}, at)
    out = mongosaver("show", "t").out
    told = "DeltaChannel, rebuilt from the writes of 2 checkpoints since the last stored value"
    assert f"\n  items  {told}\n" in out
    assert "state  1 channel, " in out
    value = mongosaver("show", "t", "--json").json["values"]["items"]
    assert (value["value"], value["problem"], value["stored"]["form"]) == (None, told, "rebuilt")
    graph.invoke({"items": ["on"]}, at)
    assert "  items  DeltaSnapshot" in mongosaver("show", "t").out


def gather(state: list[Any], writes: list[list[Any]]) -> list[Any]:
    """Reduces writes into a list."""
    return [*state, *(item for write in writes for item in write)]


def test_the_root_namespace_is_quoted(journey: Place, mongosaver: Run) -> None:
    """Where it is the key of a map, an empty text would not be seen."""
    [ns] = [n for n in journey.collection.distinct("checkpoint_ns") if n][-1:]
    assert 'parents: {"": "1f' in mongosaver("show", "journey", "--ns", ns).out


def test_a_thread_without_a_root_graph_is_shown(place: Place, mongosaver: Run) -> None:
    """Its newest checkpoint of all is the one."""
    made = checkpoint({"n": 1}, {"n": "1"}, checkpoint_id="1")
    place.saver.put(config("t", "sub:1"), made, metadata(), {"n": "1"})
    assert mongosaver("show", "t", "--json").json["checkpoint_ns"] == "sub:1"
    assert "namespace   sub:1" in mongosaver("show", "t").out


def test_changes_between_two_checkpoints(place: Place, mongosaver: Run) -> None:
    """What was appended to a list and trimmed from it, keys of a map, and whole values."""
    old = {"list": list(range(20)), "map": {"a": 1, "b": 2}, "gone": 1, "same": [1], "text": "x"}
    new = {"list": list(range(5, 23)), "map": {"a": 1, "c": 3}, "came": None, "same": [1]}
    for id_, values in (("1", old), ("2", {**new, "text": "y"})):
        versions = dict.fromkeys(values, id_)
        made = checkpoint(values, versions, checkpoint_id=id_)
        place.saver.put(config("t"), made, metadata(), versions)
    told = {each["channel"]: each for each in mongosaver(
        "show", "t", "--diff", "1", "--json").json["changes"]}  # fmt: skip
    assert sorted(told) == ["came", "gone", "list", "map", "text"]
    assert told["list"]["removed"] == [0, 1, 2, 3, 4]
    assert told["list"]["added"] == [20, 21, 22]
    assert told["map"] | {"kind": ""} == {
        "channel": "map", "kind": "", "removed": {"b": 2}, "added": {"c": 3}, "kept": 1,
    }  # fmt: skip
    assert (told["text"]["old"], told["text"]["new"]) == ("x", "y")
    out = mongosaver("show", "t", "--diff", "1").out
    assert "--- 1\n+++ 2\n" in out
    assert "list  5 removed, 3 added, 15 items kept" in out
    assert "  - 0\n" in out
    assert "  + 22\n" in out
    assert "came  added\n  + null\n" in out
    back = mongosaver("show", "t", "1", "--diff", "2").out
    assert "gone  added\n  + 1\n" in back
    maps = mongosaver("show", "t", "--items", "1").out
    assert "map of 2" in maps
    assert "    a: 1\n    … 1 more\n" in maps
    assert "    a: 1\n    c: 3\n" in mongosaver("show", "t", "--items", "0").out
    assert mongosaver("show", "t", "1", "--diff", "1").out.endswith("no channel changed\n")


def test_a_large_value_is_told_by_its_size(
    place: Place, mongosaver: Run, monkeypatch: pytest.MonkeyPatch, recorded: Commands
) -> None:
    """It is not read, and of two such values one only knows whether they are the same."""
    monkeypatch.setattr("mongosaver.plans.inspect.contents.LARGEST", 20_000)
    ids = conversation(place, "t", 10)
    with recorded.recorded() as sent:
        told = mongosaver("show", "t", "--json").json["values"]["log"]
    assert (told["problem"], told["value"]) == ("too large to show", None)
    blobs = [each for each in sent if each.collection.endswith(".blobs")]
    assert all("data" not in each.command["projection"] for each in blobs if each.command["filter"])
    assert "too large to show" in mongosaver("show", "t").out
    assert "log  changed" in mongosaver("show", "t", "--diff", ids[-2]).out
    place.saver.put_writes(config("t", "", ids[-1]), [("log", "x" * 40_000)], "big")
    assert "<too large to show>" in mongosaver("show", "t").out


def test_a_missing_blob_is_shown_where_it_is_missing(place: Place, mongosaver: Run) -> None:
    """The rest of the checkpoint is there to be looked at."""
    conversation(place, "t", 12)
    place.database[place.name + ".blobs"].delete_many({})
    done = mongosaver("show", "t")
    assert done.code == 0
    assert "is missing" in done.out
    assert "step: 11" in done.out


def test_an_encrypted_checkpoint_says_so(place: Place, mongosaver: Run) -> None:
    """Without the key each payload is told by cipher and size; with it, it is read."""
    key = "sixteen letters."
    serde = EncryptedSerializer.from_pycryptodome_aes(key=key.encode())
    ids = place.thread("t", 3, saver=MongoSaver(place.collection, serde=serde))
    done = mongosaver("show", "t")
    assert done.code == 0
    assert "not known: the checkpoint is encrypted with aes, " in done.out
    assert "metadata    all: <encrypted with aes, " in done.out
    assert "entry" not in done.out
    assert mongosaver("show", "t", "--json").json["next"] is None
    assert lines(mongosaver("history", "t"))[0].split()[2:4] == ["2", "loop"]
    opened = mongosaver("show", "t", env={"LANGGRAPH_AES_KEY": key}).out
    assert "entry 2" in opened
    assert "step: 2" in opened
    wrong = mongosaver("show", "t", ids[0], env={"LANGGRAPH_AES_KEY": "another 16 bytes"}).out
    assert "not with the key in LANGGRAPH_AES_KEY" in wrong


def test_nothing_that_is_stored_reaches_the_terminal_as_it_is(
    place: Place, mongosaver: Run
) -> None:
    """Markup is printed as it stands; what a terminal would obey is escaped, in every command."""
    saver = MongoSaver(place.collection)
    for id_, value in (("1", HOSTILE), ("2", [HOSTILE, {HOSTILE: HOSTILE}])):
        made = checkpoint({HOSTILE: value}, {HOSTILE: id_}, checkpoint_id=HOSTILE + id_)
        about = metadata(source=HOSTILE, step=HOSTILE, run_id=HOSTILE, **{HOSTILE: HOSTILE})
        at = config(HOSTILE, HOSTILE, HOSTILE + "1" if id_ == "2" else None)
        put = saver.put(at, made, about, {HOSTILE: id_})
        saver.put_writes(put, [(HOSTILE, HOSTILE)], HOSTILE, f"~__pregel_pull, {HOSTILE}")
    for arguments in (
        ("threads",),
        ("history", HOSTILE),
        ("show", HOSTILE),
        ("show", HOSTILE, HOSTILE + "1"),
        ("show", HOSTILE, HOSTILE),
        ("show", HOSTILE, "--diff", HOSTILE + "1"),
        ("stats",),
    ):
        done = mongosaver(*arguments)
        text = (done.out + done.err).replace("\n", "")
        assert text.isprintable(), arguments
        assert ESCAPED[:9] in text, arguments
    screen = in_terminal("show", HOSTILE, env=place.environment, columns=200).screen
    assert ESCAPED in screen
    assert "\u202e" not in screen


def test_a_module_that_state_names_is_not_imported(place: Place, mongosaver: Run) -> None:
    """Also not by `show`: here one that the application has and this process does not."""
    import ormsgpack

    payload = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(("antigravity", "geohash", [1]))))
    place.thread("t", 1)
    place.collection.update_one(
        {}, {"$push": {"inline": {"c": "trap", "t": "msgpack", "d": payload}}}
    )
    assert "geohash(1)" in mongosaver("show", "t").out
    assert "antigravity" not in sys.modules


# --- stats


def test_sizes_are_those_of_the_server(place: Place, mongosaver: Run) -> None:
    """Estimated or added up, of few checkpoints it is the same; the largest threads come first."""
    conversation(place, "small", 2)
    conversation(place, "large", 40)
    told = mongosaver("stats", "--json").json
    exact = mongosaver("stats", "--exact", "--json").json
    assert (told["threads"], told["checkpoints"]) == (2, 42)
    documents = [each["documents"] for each in told["collections"].values()]
    assert documents[:3] == list(place.counts())
    whole = sum(row["bytes"] for row in place.collection.find())
    assert told["whole_values"]["bytes"] == exact["whole_values"]["bytes"] == whole
    assert exact["whole_values"]["estimated_from"] is None
    assert told["largest"]["threads"] == exact["largest"]["threads"]
    assert [each["thread_id"] for each in told["largest"]["threads"]] == ["large", "small"]
    names = [place.name, place.name + ".writes", place.name + ".blobs"]
    stored = sum(told["collections"][name]["bytes"] for name in names)
    assert sum(each["stored"] for each in told["largest"]["threads"]) == stored
    out = mongosaver("stats").out
    assert out.startswith("2 threads, 42 checkpoints\n")
    assert " times less." in out
    assert "threads with the most checkpoints" in out
    assert "threads with the most bytes" in mongosaver("stats", "--exact").out


def test_sizes_are_estimated_from_a_sample(place: Place, mongosaver: Run) -> None:
    """Which is told with its error; the true value is within five of it."""
    for n in range(8):
        conversation(place, f"t{n}", 40)
    told = mongosaver("stats", "--sample", "80", "--top", "3", "--json").json
    whole = sum(row["bytes"] for row in place.collection.find())
    about = told["whole_values"]
    assert 40 < about["estimated_from"] < 130
    assert abs(about["bytes"] - whole) < 5 * about["standard_error"]
    assert len(told["largest"]["threads"]) == 3
    assert ", +- " in mongosaver("stats", "--sample", "80").out


def test_a_walk_through_all_documents_goes_in_ranges(
    place: Place, mongosaver: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread is in one of them, however small they are, and they come to the same."""
    for n in range(7):
        conversation(place, f"t{n}", n + 1)
    at_once = mongosaver("stats", "--exact", "--json").json
    monkeypatch.setattr("mongosaver.plans.inspect.sizes.RANGE", 4)
    assert mongosaver("stats", "--exact", "--json").json == at_once
    assert (
        len(mongosaver("stats", "--exact", "--top", "2", "--json").json["largest"]["threads"]) == 2
    )


def test_an_empty_collection_has_no_sizes(place: Place, mongosaver: Run) -> None:
    """Nor has one that is not there."""
    for name in (place.name, "nowhere"):
        for more in ([], ["--exact"]):
            done = mongosaver("stats", *more, env={"MONGOSAVER_COLLECTION": name})
            assert (done.code, done.out.splitlines()[0]) == (0, "0 threads, 0 checkpoints")


def test_documents_of_another_saver_are_refused(place: Place, mongosaver: Run) -> None:
    """And not taken for an empty history."""
    place.collection.insert_one(
        {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1", "type": "", "metadata": {}}
    )
    for arguments in (("history", "t"), ("show", "t")):
        done = mongosaver(*arguments)
        assert (done.code, "did not write" in done.err) == (1, True)


# --- words


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (Change("c", "list", [], [1], 2, 2), "1 appended, 2 items kept"),
        (Change("c", "list", [], [1], 0, 2), "1 inserted at 0, 2 items kept"),
        (Change("c", "list", [1], [], 0, 1), "1 removed, 1 item kept"),
        (Change("c", "list", [1], [2], 0, 0), "1 removed, 1 added, 0 items kept"),
        (Change("c", "map", {}, {"a": 1}, kept=1), "1 key kept"),
        (Change("c", "changed", 1, 2), "changed"),
    ],
)
def test_what_changed(change: Change, text: str) -> None:
    """A change in a few words."""
    assert what_changed(change) == text


@pytest.mark.parametrize(("number", "lines"), [(6, 6), (7, 7), (20, 7)])
def test_many_changed_parts_are_cut(number: int, lines: int) -> None:
    """To a few of them, and a line that says how many more."""
    change = Change("c", "list", [], list(range(number)))
    assert len(list(parts_of(change, change.new, "+", 3, 80))) == lines
    assert len(list(parts_of(change, change.new, "+", 0, 80))) == number


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(seconds=-5), "0 s"),
        (timedelta(seconds=119), "119 s"),
        (timedelta(minutes=3), "3 min"),
        (timedelta(hours=5), "5 h"),
        (timedelta(days=400), "400 d"),
    ],
)
def test_ages(span: timedelta, text: str) -> None:
    """In one unit, and never negative: clocks differ."""
    assert age(span) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1], "list of 1"),
        ({"a": 1}, "map of 1"),
        ("x", "1 character"),
        (b"x", "binary"),
        (None, "null"),
        (True, "boolean"),
        (1.5, "number"),
        (Typed("a.B", 1), "a.B"),
        (Sealed("pickle", 1), "not read"),
    ],
)
def test_kinds(value: Any, text: str) -> None:
    """What a value is, in a few words."""
    assert kind(value) == text
