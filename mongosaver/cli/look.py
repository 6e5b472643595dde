"""Looking: `threads`, `history`, `show` and `stats`. Nothing here writes.

A history is drawn as `git log --graph` draws one, newest first: a line of checkpoints stays in its
column however long it is, and a column more means a fork, or a subgraph beside the checkpoint that
runs it. One line is one checkpoint, so what is drawn can be counted, cut and searched.

Whatever comes from the database goes through `plain.safe` or `plain.brief`, and to the console as
`Text`, which is never taken for markup.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Annotated, Any, Final

import typer
from pymongo.errors import OperationFailure
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from mongosaver.cli.plain import PlainSerializer, Sealed, Typed, brief, jsonable, label, safe, size
from mongosaver.cli.session import Session, command, many, option
from mongosaver.errors import ConfigurationError, UsageError
from mongosaver.identifiers import Key
from mongosaver.ops import Collections, Plan
from mongosaver.plans.context import Context
from mongosaver.plans.inspect import contents, entries, sizes
from mongosaver.plans.inspect.changes import Change, compare
from mongosaver.plans.inspect.contents import Shown, Value
from mongosaver.plans.inspect.entries import Entry, History
from mongosaver.plans.inspect.sizes import Overview, ThreadSize
from mongosaver.plans.threads import ThreadInfo
from mongosaver.schema import Name

_ALL: Final = "0 for all."


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "threads")(threads)
    command(app, "history")(history)
    command(app, "show")(show)
    command(app, "stats")(stats)


def threads(
    session: Session,
    filter: Annotated[
        list[str] | None,
        option(
            "--filter",
            metavar="KEY=VALUE",
            help="Only threads whose latest checkpoint has this metadata. The value is JSON, or"
            " else text. May be repeated.",
        ),
    ] = None,
    limit: Annotated[int, option("--limit", min=0, help=f"At most so many; {_ALL}")] = 20,
    after: Annotated[
        str | None,
        option("--after", metavar="CURSOR", help="Go on after this one: the last line's cursor."),
    ] = None,
) -> None:
    """List the threads, the latest active first."""
    wanted = None if limit == 0 else limit + 1
    conditions = _filter(filter)
    try:
        found = list(session.saver.list_threads(filter=conditions, limit=wanted, after=after))
    except ConfigurationError:
        if after is None:
            raise
        # It speaks of the arguments of a method.
        raise UsageError(
            f"--after takes the cursor that the last row of --json has, got {after!r}"
        ) from None
    more = limit > 0 and len(found) > limit
    rows = found[:limit] if limit else found
    cursor = rows[-1].cursor if more else None
    session.emit(
        {"threads": rows, "after": cursor},
        lambda console: (
            _print_threads(console, rows, cursor)
            if rows
            else _line(console, _no_threads(session, conditions, after))
        ),
    )


def history(
    session: Session,
    thread: Annotated[str, typer.Argument(help="The thread.")],
    ns: Annotated[
        str | None,
        option("--ns", metavar="NAMESPACE", help='Only this namespace; "" is the root graph\'s.'),
    ] = None,
    limit: Annotated[int, option("--limit", min=0, help=f"At most so many; {_ALL}")] = 20,
) -> None:
    """Draw the checkpoints of a thread: forks, replays and subgraphs, newest first.

    A full dot is on the newest branch, an empty one on another, a diamond in a subgraph. The last
    column has the tasks that ran on a checkpoint, or are to; `end` where a branch ends and nothing
    is left to run. As much of each id is shown as `show` needs.
    """
    found = session.run(entries.history(_showing(session), thread, ns, limit or None))
    drawing = draw(found.entries)
    is_whole = ns is None and not found.more
    session.emit(
        {
            "thread_id": thread,
            "checkpoints": [_node(row) for row in drawing],
            "more": found.more,
        },
        lambda console: _print_history(console, found, drawing, is_whole=is_whole),
    )


def show(
    session: Session,
    thread: Annotated[str, typer.Argument(help="The thread.")],
    checkpoint: Annotated[
        str | None,
        typer.Argument(help="Its id, or the beginning of it; by default the newest."),
    ] = None,
    ns: Annotated[
        str | None,
        option(
            "--ns",
            metavar="NAMESPACE",
            help="The namespace; by default the root graph's, or the one that has the id.",
        ),
    ] = None,
    diff: Annotated[
        str | None,
        option("--diff", metavar="OTHER", help="Show only what changed since this checkpoint."),
    ] = None,
    items: Annotated[
        int, option("--items", min=0, help=f"So many of the last items of a list; {_ALL}")
    ] = 3,
) -> None:
    """Show a checkpoint: state, next tasks, pending writes, and how it is stored.

    Objects are shown by the names of their types; nothing of them is imported or run. What is
    encrypted says so, unless LANGGRAPH_AES_KEY is set. Large values are cut, and told by their
    size; with --json they are whole, up to 16 MB.
    """
    ctx = _showing(session)
    key = session.run(entries.find(ctx, thread, ns, checkpoint))
    shown = session.run(contents.show(ctx, thread, key))
    if diff is None:
        session.emit(
            _checkpoint(thread, shown),
            lambda console: _print_checkpoint(console, thread, shown, items, ctx.now),
        )
        return
    other_key = session.run(entries.find(ctx, thread, key[0] if ns is None else ns, diff))
    other = session.run(contents.show(ctx, thread, other_key))
    changes = compare(other.values, shown.values)
    session.emit(
        {
            "thread_id": thread,
            "from": _name_of(other_key),
            "to": _name_of(key),
            "changes": [_change(change) for change in changes],
        },
        lambda console: _print_changes(console, (other, shown), changes, items),
    )


def stats(
    session: Session,
    sample: Annotated[
        int,
        option("--sample", min=1, help="Checkpoints to estimate from what whole values take."),
    ] = 1_000,
    exact: Annotated[
        bool,
        option(
            "--exact/--estimate",
            help="Whether to read every document instead; the largest threads are then those with"
            " the most bytes, else those with the most checkpoints.",
        ),
    ] = False,
    top: Annotated[int, option("--top", min=0, help="So many of the largest threads.")] = 10,
) -> None:
    """Tell how many threads and checkpoints there are, and what they take.

    The numbers of the collections are the server's own. What whole values would take is estimated
    from a random sample of checkpoints, or added up with --exact, which reads every document once.
    """
    overview = session.run(sizes.overview(max(top, 1)))
    checkpoints = overview.collections[Name.CHECKPOINTS].documents
    if exact:
        largest, whole = _added_up(session, checkpoints, top)
        sampled = None
    else:
        sampled = session.run(sizes.sample(sample, checkpoints))
        whole = round(sampled.mean * checkpoints)
        some = [thread_id for thread_id, _ in overview.longest[:top]]
        listed = session.run(sizes.sizes_of(some)) if some else []
        largest = sorted(listed, key=lambda each: (-each.stored, each.thread_id))
    base = session.collection.name
    report = _Report(base, overview, largest, whole, sampled)
    session.emit(report.data(), report.print)


def _added_up(session: Session, checkpoints: int, top: int) -> tuple[list[ThreadSize], int]:
    walk = sizes.Walk(top)
    with session.progress("checkpoints", checkpoints) as bar:
        while not walk.done:
            walk = session.run(sizes.add_up(walk))
            bar.update(completed=walk.checkpoints, total=max(checkpoints, walk.checkpoints))
    return list(walk.largest), walk.whole


def _showing(session: Session) -> Context:
    """Surroundings under which what cannot be read is shown as such."""
    ctx = session.context()
    assert isinstance(ctx.serde, PlainSerializer)
    return replace(ctx, serde=ctx.serde.showing())


def _filter(given: Iterable[str] | None) -> dict[str, Any] | None:
    """What `key=value` says, with values as JSON where they are."""
    wanted = {}
    for each in given or ():
        key, equals, text = each.partition("=")
        if not equals:
            raise UsageError(f"a filter is KEY=VALUE, got {each!r}")
        try:
            wanted[key] = json.loads(text)
        except ValueError:
            wanted[key] = text
    return wanted or None


# --- words -------------------------------------------------------------------------------------


def age(span: timedelta) -> str:
    """How long ago something was, in one unit."""
    seconds = max(span.total_seconds(), 0)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _moment(at: datetime) -> str:
    return at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _place(ns: str) -> str:
    """A namespace by its nodes: without the ids of tasks, which nobody reads."""
    return " > ".join(part.partition(":")[0] for part in ns.split("|")) if ns else ""


def _name_of(key: Key) -> dict[str, str]:
    return {"checkpoint_ns": key[0], "checkpoint_id": key[1]}


def kind(value: Any) -> str:
    """What a value is, in a few words."""
    if isinstance(value, Typed):
        return safe(value.name)
    if isinstance(value, list):
        return f"list of {len(value):,}"
    if isinstance(value, dict):
        return f"map of {len(value):,}"
    if isinstance(value, str):
        return many(len(value), "character")
    if isinstance(value, (bytes, bytearray)):
        return "binary"
    return {type(None): "null", bool: "boolean", int: "number", float: "number"}.get(
        type(value), "not read" if isinstance(value, Sealed) else type(value).__name__.strip("_")
    )


def _cut(text: str) -> str:
    """An id for a table: of one that would fill lines, the beginning and how long it is."""
    if len(text) <= _LONGEST:
        return safe(text)
    length = f"… ({len(text):,} characters)"
    return safe(text[: _LONGEST - len(length)]) + length


_LONGEST: Final = 60
"""Characters of an id in a table."""


def _line(console: Console, *parts: str | tuple[str, str | Style]) -> None:
    """One line, cut at the edge of a terminal: (text, style) pairs and plain texts."""
    text = Text.assemble(*parts)
    text.rstrip()
    console.print(_plain(console, text), no_wrap=True, overflow="ellipsis")


def _print_table(console: Console, table: Table) -> None:
    """A table without the blanks that fill the last column of its lines."""
    for segments in console.render_lines(table, pad=False):
        _line(console, *((each.text, each.style or "") for each in segments))


_ASCII: Final = str.maketrans(
    {"●": "*", "○": "o", "◇": "+", "│": "|", "─": "-", "╯": "'", "┴": "^", "┼": "+"}
    | {"→": ">", "←": "<", "…": "~", "⋮": ":"}
)


def _plain(console: Console, text: Text) -> Text:
    """The same in ASCII where the terminal knows no more."""
    if console.options.ascii_only:
        text.plain = text.plain.translate(_ASCII)
    return text


# --- threads -----------------------------------------------------------------------------------


def _no_threads(session: Session, conditions: Mapping[str, Any] | None, after: str | None) -> str:
    """What there is none of, and where."""
    text = f"no {'more ' if after else ''}threads in {_place_of(session)}"
    if conditions:
        told = " and ".join(f"{label(key)} = {brief(value)}" for key, value in conditions.items())
        text = f"no {'further ' if after else ''}thread whose latest metadata has {told}"
    try:
        exists = session.run(_exists())
    except OperationFailure:  # who may read a collection need not be allowed to list it
        exists = True
    return text if exists else f"{text} (the collection does not exist)"


def _place_of(session: Session) -> str:
    return safe(session.collection.full_name)


def _exists() -> Plan[bool]:
    found = yield Collections()
    return Name.CHECKPOINTS in found


def _print_threads(console: Console, rows: Sequence[ThreadInfo], cursor: str | None) -> None:
    now = datetime.now(timezone.utc)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("thread", overflow="fold")
    table.add_column("checkpoints", justify="right")
    table.add_column("namespaces", justify="right")
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        table.add_row(
            Text(_cut(row.thread_id)),
            f"{row.checkpoints:,}",
            f"{len(row.namespaces):,}",
            age(now - row.last_activity),
            Text("waits", "yellow") if row.pending_interrupt else "",
        )
    _print_table(console, table)
    if cursor is not None:
        console.print(
            Text(f"There are more: --after {safe(shlex.quote(cursor))}", "dim"), soft_wrap=True
        )


# --- history -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drawn:
    """One line of a history.

    Attributes:
        entry: The checkpoint.
        graph: Its part of the drawing.
        is_newest: Whether the root graph goes on from it, or would.
        is_on_branch: Whether it is that one's ancestor, or itself.
        is_tip: Whether nothing in the drawing goes on from it.
    """

    entry: Entry
    graph: str
    is_newest: bool
    is_on_branch: bool
    is_tip: bool


_MOST_LANES: Final = 16


def draw(entries: Sequence[Entry]) -> list[Drawn]:
    """The lines of a history, newest first, with one column for each branch that is open there."""
    order = {entry.key: at for at, entry in enumerate(entries)}
    # Where only one subgraph is looked at, its newest checkpoint is the one that counts.
    root = min((entry.key[0] for entry in entries), default="")
    newest = next((entry.key for entry in entries if entry.key[0] == root), None)
    branch: set[Key] = set()
    at: Key | None = newest
    while at is not None and at in order and at not in branch:
        branch.add(at)
        at = entries[order[at]].parent_key
    followed = {entry.parent_key for entry in entries if entry.parent is not None}
    # The newest branch has the first column, also where subgraphs have come later than it.
    lanes: list[Key | None] = [newest]
    begun: set[Key | None] = set()
    drawn = []
    for index, entry in enumerate(entries):
        here = [lane for lane, key in enumerate(lanes) if key == entry.key]
        if not here:
            free = next((n for n, key in enumerate(lanes) if n and key is None), len(lanes))
            lanes[free : free + 1] = [entry.key]
            here = [free]
        is_tip = entry.key not in followed
        is_on_branch = entry.key in branch
        glyph = "◇" if entry.key[0] != root else "●" if is_on_branch else "○"
        cells = _cells(lanes, begun, here, glyph)
        drawn.append(Drawn(entry, cells, entry.key == newest, is_on_branch, is_tip))
        for lane in here:
            lanes[lane] = None
        parent = entry.parent_key
        # Hand-made ids need not be in the order of time: such a line is not drawn.
        if parent is not None and order.get(parent, -1) > index:
            lanes[here[0]] = parent
            begun.add(parent)
        while len(lanes) > 1 and lanes[-1] is None:
            lanes.pop()
    return drawn


def _cells(
    lanes: Sequence[Key | None], begun: set[Key | None], here: Sequence[int], glyph: str
) -> str:
    """One line of the drawing: the branches that are open, and those that meet here."""
    first, last = here[0], here[-1]
    cells = []
    for lane, key in enumerate(lanes):
        is_between = first < lane < last
        if lane == first:
            mark = glyph
        elif lane in here:
            mark = "╯" if lane == last else "┴"
        elif key is not None and key in begun:
            mark = "┼" if is_between else "│"
        else:
            mark = "─" if is_between else " "
        cells.append(mark + ("─" if first <= lane < last else " "))
    if len(cells) > _MOST_LANES:
        cells[_MOST_LANES:] = ["…" + (glyph if first >= _MOST_LANES else "")]
    return "".join(cells).rstrip()


def _node(row: Drawn) -> dict[str, Any]:
    entry = row.entry
    parent = entry.parent_key
    return {
        **_name_of(entry.key),
        "parent": None if parent is None else _name_of(parent),
        "created_at": entry.created_at,
        "source": entry.source,
        "step": entry.step,
        "run_id": entry.run_id,
        "next": list(entry.next),
        "sends": list(entry.sends),
        "tasks": entry.tasks,
        "writes": entry.writes,
        "newest": row.is_newest,
        "newest_branch": row.is_on_branch,
    }


def short_length(ids: Sequence[str], *, is_whole: bool = True) -> int:
    """How many characters of ids tell each from all others of its thread.

    Args:
        ids: Ids that are to be shown.
        is_whole: Whether these are all ids of the thread.
    """
    longest = max(map(len, ids))
    ordered = sorted(set(ids))
    if len(ordered) < len(ids):
        return longest  # one of two namespaces is found by the whole of it alone
    needed = 13
    if not is_whole:
        # What LangGraph makes begins with the time, to 100 ns; of other ids nothing is known.
        needed = 18 if all(map(_BY_TIME.match, ids)) else longest
    for one, other in pairwise(ordered):
        same = 0
        while same < min(len(one), len(other)) and one[same] == other[same]:
            same += 1
        needed = max(needed, same + 1)
    # An id that ends in a dash reads as if something was missing.
    return next((n for n in (13, 18, 23) if n >= needed), needed)


_BY_TIME: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-")
"""The time in a UUID of version 6 (RFC 9562)."""


def _print_history(
    console: Console, found: History, drawing: Sequence[Drawn], *, is_whole: bool
) -> None:
    now = datetime.now(timezone.utc)
    length = short_length([entry.key[1] for entry in found.entries], is_whole=is_whole)
    width = max(len(row.graph) for row in drawing) + 1
    rows = [_columns(row, length, now) for row in drawing]
    head = ("checkpoint", "step", "source", "age", "writes")
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
    _line(console, (" " * width + _joined(head, widths) + "tasks", "dim"))
    for row, columns in zip(drawing, rows, strict=True):
        is_main = row.is_on_branch
        _line(
            console,
            (row.graph.ljust(width), "bold" if is_main else "cyan"),
            (columns[0].ljust(widths[0]), "yellow" if is_main else ""),
            _joined(("", *columns[1:]), [0, *widths[1:]]),
            *_tasks(row),
        )
    kinds = {row.graph.strip("│┼┴╯─… ") for row in drawing}
    if len(kinds) > 1:
        told = ", ".join(f"{glyph} {text}" for glyph, text in _LEGEND.items() if glyph in kinds)
        _line(console, (" " * width + told, "dim"))
    if found.more:
        _line(console, ("⋮ ".ljust(width) + "more: --limit 0 shows all", "dim"))


_LEGEND: Final = {"●": "newest branch", "○": "another branch", "◇": "subgraph"}


def _columns(row: Drawn, length: int, now: datetime) -> tuple[str, ...]:
    entry = row.entry
    return (
        _cut(entry.key[1][:length]),
        brief("" if entry.step is None else entry.step, 8).strip('"'),
        brief("" if entry.source is None else entry.source, 16).strip('"'),
        age(now - entry.created_at),
        str(entry.writes or ""),
    )


def _joined(columns: Sequence[str], widths: Sequence[int]) -> str:
    """Columns side by side: numbers to the right, texts to the left."""
    left = (0, 2)
    cells = [
        text.ljust(width) if n in left else text.rjust(width)
        for n, (text, width) in enumerate(zip(columns, widths, strict=True))
    ]
    return "  ".join(cells) + "  "


_STATES: Final = {"waits": "yellow", "failed": "red", "to run": "green"}


def _tasks(row: Drawn) -> Iterator[tuple[str, str]]:
    """The last column: the subgraph, the tasks with what is special about them, the newest."""
    entry = row.entry
    if entry.key[0]:
        yield f"[{safe(_place(entry.key[0]))}] ", "magenta"
    ran = [(task.name or "task", task.state) for task in entry.tasks]
    named = {task.name for task in entry.tasks}
    ran += [(node, "to run") for node in (*entry.next, *entry.sends) if node not in named]
    if not row.is_tip:
        # It went on from here, so that tasks without a trace of their own ran as well.
        ran = [(name, "wrote" if state == "to run" else state) for name, state in ran]
    for at, (name, state) in enumerate(_counted(ran)):
        yield ("→ " if at == 0 else ", ") + safe(name), ""
        if state != "wrote":
            yield f" {state}", _STATES[state]
    if not ran and row.is_tip:
        yield "end", "dim"
    if row.is_newest:
        yield "  ← newest", "bold"


def _counted(tasks: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Tasks of one node in one state as one, with their number."""
    counts: dict[tuple[str, str], int] = {}
    for each in tasks:
        counts[each] = counts.get(each, 0) + 1
    return [
        (name if number == 1 else f"{number} x {name}", state)
        for (name, state), number in counts.items()
    ]


# --- one checkpoint ----------------------------------------------------------------------------


def _storage(value: Value) -> dict[str, Any]:
    return {
        "form": value.form,
        "segments": value.segments,
        "tail": value.tail,
        "bytes": value.size,
    }


def _checkpoint(thread: str, shown: Shown) -> dict[str, Any]:
    document = shown.document
    return {
        "thread_id": thread,
        **_name_of(shown.key),
        "parent_checkpoint_id": document.get("parent_checkpoint_id"),
        "created_at": document.get("created_at"),
        "expires_at": document.get("expires_at"),
        "run_id": document.get("run_id"),
        "metadata": jsonable(shown.metadata),
        "next": list(shown.next) if shown.complete else None,
        "values": {
            channel: {
                "type": value.type,
                "version": value.version,
                "value": jsonable(value.value),
                **({"problem": value.problem} if value.problem else {}),
                "stored": _storage(value),
            }
            for channel, value in shown.values.items()
        },
        "pending_writes": [
            {
                "task_id": write.task_id,
                "task": write.task,
                "idx": write.idx,
                "channel": write.channel,
                "value": jsonable(write.value),
                **({"problem": write.problem} if write.problem else {}),
                "bytes": write.size,
            }
            for write in shown.writes
        ],
        "bytes": document.get("bytes"),
        "checkpoint": jsonable(shown.checkpoint),
    }


def _print_checkpoint(
    console: Console, thread: str, shown: Shown, items: int, now: datetime
) -> None:
    document, room = shown.document, _room(console)
    _line(console, ("checkpoint ", "bold"), (safe(shown.key[1]), "yellow"))
    told: list[tuple[str, Any]] = [
        ("thread", safe(thread)),
        ("namespace", safe(shown.key[0])),
        ("parent", safe(document.get("parent_checkpoint_id") or "")),
        ("put", f"{_moment(document['created_at'])} ({age(now - document['created_at'])} ago)"),
        ("expires", _moment(document["expires_at"]) if document.get("expires_at") else ""),
        ("run", safe(document.get("run_id") or "")),
        ("copied from", safe(document.get("copied_from") or "")),
    ]
    for name, text in told:
        if text:
            _line(console, (f"  {name:<12}", "dim"), text)
    metadata = shown.metadata if isinstance(shown.metadata, dict) else {"all": shown.metadata}
    for at, (name, value) in enumerate(metadata.items()):
        title = "metadata" if at == 0 else ""
        _line(console, (f"  {title:<12}", "dim"), f"{label(name)}: {brief(value, room)}")
    _print_next(console, shown)
    _print_values(console, shown, items)
    _print_writes(console, shown)


def _room(console: Console) -> int:
    """Characters of a value that are shown on a line."""
    return max(40, min(console.width, 400) - 4)


def _title(console: Console, text: str, more: str = "") -> None:
    console.print()
    _line(console, (text, "bold"), (f"  {more}" if more else "", "dim"))


def _print_next(console: Console, shown: Shown) -> None:
    if not shown.complete:
        _title(console, "next", f"not known: the checkpoint is {shown.checkpoint}")
        return
    _title(console, "next", "" if shown.next else "nothing, as far as the checkpoint tells")
    wide = max((len(safe(each.node)) for each in shown.next), default=0)
    for each in shown.next:
        task = f", task {safe(each.task_id)[:8]}" if each.task_id else ""
        _line(
            console,
            f"  {safe(each.node).ljust(wide)}  ",
            (each.state, _STATES.get(each.state, "")),
            (f"  called by {safe(each.because)}{task}", "dim"),
        )


def _print_values(console: Console, shown: Shown, items: int) -> None:
    total = shown.document.get("bytes", 0)
    _title(console, "state", f"{many(len(shown.values), 'channel')}, {size(total)} with metadata")
    wide = max((len(safe(channel)) for channel in shown.values), default=0)
    for channel, value in shown.values.items():
        if value.form == "rebuilt":
            name = f"  {safe(channel).ljust(wide)}  "
            _line(console, (name, "cyan"), (value.problem or "", "dim"))
            continue
        stored = "inline"
        if value.segments:
            stored = f"blob of {many(value.segments, 'segment')}"
            stored += f", {size(value.tail)} of it inline" if value.tail else ""
        what = value.problem or kind(value.value)
        _line(
            console,
            (f"  {safe(channel).ljust(wide)}  ", "cyan"),
            (what, "red" if value.problem else ""),
            (f"  {size(value.size)}, {stored}", "dim"),
        )
        if not value.problem:
            _print_value(console, value.value, items)


def _print_value(console: Console, value: Any, items: int) -> None:
    """A value on a line, or a few for a list and a map."""
    room = _room(console)
    if isinstance(value, list) and value:
        left = max(len(value) - items, 0) if items else 0
        if left:
            _line(console, (f"    … {left:,} before", "dim"))
        for item in value[left:]:
            _line(console, f"    {brief(item, room)}")
    elif isinstance(value, dict) and value:
        names = list(value)
        shown = names[:items] if items else names
        for name in shown:
            _line(console, f"    {label(name)}: {brief(value[name], room)}")
        if len(names) > len(shown):
            _line(console, (f"    … {len(names) - len(shown):,} more", "dim"))
    elif value is not None:
        _line(console, f"    {brief(value, room)}")


def _print_writes(console: Console, shown: Shown) -> None:
    _title(console, "pending writes", "" if shown.writes else "none")
    last = None
    for write in shown.writes:
        if write.task_id != last:
            last = write.task_id
            name = safe(write.task) or ("the caller" if not last.strip("0-") else "task")
            _line(console, (f"  {name} ", "cyan"), (safe(last), "dim"))
        told = f"<{write.problem}>" if write.problem else brief(write.value, _room(console))
        _line(console, (f"    {safe(write.channel)}: ", "dim"), told)


# --- two checkpoints ---------------------------------------------------------------------------


def _change(change: Change) -> dict[str, Any]:
    data: dict[str, Any] = {"channel": change.channel, "kind": change.kind}
    if change.kind in ("list", "map"):
        data |= {"removed": jsonable(change.old), "added": jsonable(change.new)}
        data |= {"kept": change.kept}
        return data | ({"at": change.at} if change.kind == "list" else {})
    if change.kind != "added":
        data["old"] = jsonable(change.old)
    if change.kind != "removed":
        data["new"] = jsonable(change.new)
    return data


def _print_changes(
    console: Console, pair: tuple[Shown, Shown], changes: Sequence[Change], items: int
) -> None:
    for sign, style, shown in (("---", "red", pair[0]), ("+++", "green", pair[1])):
        ns = f" in {safe(shown.key[0])}" if shown.key[0] else ""
        _line(console, (f"{sign} {safe(shown.key[1])}{ns}", style))
    if not changes:
        _line(console, "no channel changed")
    for change in changes:
        console.print()
        _line(console, (safe(change.channel), "bold"), (f"  {what_changed(change)}", "dim"))
        for sign, style, parts in (("-", "red", change.old), ("+", "green", change.new)):
            for text in parts_of(change, parts, sign, items, _room(console)):
                _line(console, (f"  {sign} {text}", style))


def what_changed(change: Change) -> str:
    """A change in a few words."""
    if change.kind == "map":
        return f"{many(change.kept, 'key')} kept"
    if change.kind != "list":
        return change.kind
    went, came = len(change.old), len(change.new)
    kept = f"{many(change.kept, 'item')} kept"
    if not went:
        where = "appended" if change.at == change.kept else f"inserted at {change.at:,}"
        return f"{came:,} {where}, {kept}"
    if not came:
        return f"{went:,} removed, {kept}"
    return f"{went:,} removed, {came:,} added, {kept}"


def parts_of(change: Change, parts: Any, sign: str, items: int, room: int) -> Iterator[str]:
    """Lines of what went or came; of many, the ends where they meet."""
    if (change.kind == "added" and sign == "-") or (change.kind == "removed" and sign == "+"):
        return
    if change.kind == "map":
        for name, value in parts.items():
            yield f"{label(name)}: {brief(value, room)}"
    elif change.kind == "list":
        few = max(2 * items, 6)
        some = parts if not items or len(parts) <= few else parts[:few]
        for item in some:
            yield brief(item, room)
        if len(parts) > len(some):
            yield f"… {len(parts) - len(some):,} more"
    else:
        yield brief(parts, room)


# --- sizes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Report:
    """What `stats` tells.

    Attributes:
        base: Name of the checkpoints collection.
        overview: What the server's statistics and an index say.
        largest: Sizes of the largest threads.
        whole: Bytes that all checkpoints would take with their whole values.
        sampled: What that is estimated from; None where it is added up.
    """

    base: str
    overview: Overview
    largest: Sequence[ThreadSize]
    whole: int
    sampled: sizes.Sample | None

    @property
    def stored(self) -> int:
        """Bytes of checkpoints and their values. Pending writes are the same either way."""
        of = self.overview.collections
        return of[Name.CHECKPOINTS].bytes + of[Name.BLOBS].bytes

    @property
    def error(self) -> int:
        """Standard error of the estimate, in bytes; 0 where every checkpoint was looked at."""
        checkpoints = self.overview.collections[Name.CHECKPOINTS].documents
        if self.sampled is None or self.sampled.count >= checkpoints:
            return 0
        return round(self.sampled.error * checkpoints)

    def data(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "threads": self.overview.threads,
            "checkpoints": self.overview.collections[Name.CHECKPOINTS].documents,
            "collections": {
                self.base + name.value: of for name, of in self.overview.collections.items()
            },
            "whole_values": {
                "bytes": self.whole,
                "stored": self.stored,
                "estimated_from": self.sampled.count if self.sampled else None,
                "standard_error": self.error,
            },
            "largest": {
                "by": "checkpoints" if self.sampled is not None else "bytes",
                "threads": self.largest,
            },
        }

    def print(self, console: Console) -> None:
        """The same for people."""
        checkpoints = self.overview.collections[Name.CHECKPOINTS].documents
        _line(
            console,
            f"{many(self.overview.threads, 'thread')}, {many(checkpoints, 'checkpoint')}",
        )
        console.print()
        self._print_collections(console)
        if checkpoints:
            console.print()
            self._print_whole(console)
        if self.largest:
            console.print()
            self._print_largest(console)

    def _print_collections(self, console: Console) -> None:
        table = _table("collection", "documents", "bytes", "on disk", "indexes on disk")
        rows: Mapping[Name, sizes.CollectionSize] = self.overview.collections
        for name, of in rows.items():
            table.add_row(
                Text(safe(self.base + name.value)),
                f"{of.documents:,}",
                *map(size, (of.bytes, of.storage, of.indexes)),
            )
        totals = [sum(getattr(of, field) for of in rows.values()) for field in _SIZES]
        table.add_row("together", f"{totals[0]:,}", *map(size, totals[1:]), style="bold")
        _print_table(console, table)

    def _print_whole(self, console: Console) -> None:
        checkpoints = self.overview.collections[Name.CHECKPOINTS].documents
        how = "added up"
        if self.sampled is not None and self.sampled.count < checkpoints:
            how = f"estimated from {many(self.sampled.count, 'checkpoint')}"
            how += f", +- {size(self.error)}"
        times = self.whole / self.stored if self.stored else 0
        less = f", {times:,.1f} times less" if times > 1 else ""
        console.print(
            f"Whole values in each checkpoint would take {size(self.whole)} ({how})."
            f" Checkpoints and blobs take {size(self.stored)}{less}."
        )

    def _print_largest(self, console: Console) -> None:
        by = "bytes" if self.sampled is None else "checkpoints"
        table = _table(f"threads with the most {by}", "checkpoints", "bytes", "whole values")
        for each in self.largest:
            table.add_row(
                Text(_cut(each.thread_id)),
                f"{each.checkpoints:,}",
                size(each.stored),
                size(each.whole),
            )
        _print_table(console, table)


_SIZES: Final = ("documents", "bytes", "storage", "indexes")


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, overflow="fold")
    for each in numbers:
        table.add_column(each, justify="right", no_wrap=True)
    return table
