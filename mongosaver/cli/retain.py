"""Keeping and removing threads: `delete-thread`, `copy-thread`, `prune` and `ttl`.

Long work goes through threads in the order of their ids and remembers the last one, so that it can
be interrupted at any time; what is said then is the command that goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from mongosaver import identifiers
from mongosaver.cli.help import Group
from mongosaver.cli.plain import safe
from mongosaver.cli.session import (
    Bar,
    Code,
    Session,
    Stop,
    brief,
    command,
    duration,
    many,
    observed,
    option,
)
from mongosaver.ops import Aggregate, Count, Delete, Find, Insert, Merge, Op, Plan, Updates
from mongosaver.plans import copy, expiry, idle, prune
from mongosaver.plans.context import duration as checked
from mongosaver.plans.prune import Pruned
from mongosaver.saver import MongoSaver
from mongosaver.schema import Name

T = TypeVar("T")

_ASKED: Final = 5
"""This many threads are named in a question."""

_PARTS: Final = (Name.CHECKPOINTS, Name.WRITES, Name.BLOBS)


class Strategy(str, Enum):
    """What stays of a thread that is pruned."""

    keep_latest = "keep_latest"
    delete = "delete"


_Threads = Annotated[list[str], typer.Argument(help="Ids of threads.")]
_After = Annotated[
    str | None,
    option("--after", help="Only threads whose id sorts after this one: go on from there."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "delete-thread", writes=True)(delete_thread)
    command(app, "copy-thread", writes=True, asks=False)(copy_thread)
    command(app, "prune", writes=True)(prune_threads)
    ttl = typer.Typer(cls=Group, rich_markup_mode=None)
    command(ttl, "show")(show_ttl)
    command(ttl, "set", writes=True)(set_ttl)
    command(ttl, "off", writes=True)(turn_off_ttl)
    app.add_typer(ttl, name="ttl", help="Show, set or lift the date at which threads expire.")


# --- delete-thread -----------------------------------------------------------------------------


def delete_thread(session: Session, threads: _Threads) -> None:
    """Delete threads with all their checkpoints, pending writes and values."""
    ids = list(dict.fromkeys(map(identifiers.thread, threads)))
    ctx = session.context()
    found = {}
    for each in ids:
        found[each] = session.run(prune.prune(ctx, [each], strategy="delete", dry_run=True))
        if found[each] == Pruned():
            session.note(f"there is no thread {each!r}")
    there = [each for each in ids if found[each] != Pruned()]
    if there:
        total = _sum([found[each] for each in there])
        session.confirm(f"Delete {_named(there)}, {many(total.checkpoints, 'checkpoint')} in all?")
    session.way_on = _repeat(session, "delete-thread", ids=ids)
    rows: list[dict[str, Any]] = []

    def human(console: Console) -> None:
        if rows:
            console.print(_table(rows, "thread"))

    with (
        _telling(session, lambda: {"threads": rows}, human),
        session.progress("deleting", len(there)) as bar,
    ):
        for number, each in enumerate(there):
            done = session.run(prune.prune(ctx, [each], strategy="delete"))
            rows.append({"thread_id": each, **_counts(found[each] if session.dry_run else done)})
            bar.update(completed=number + 1)


@contextlib.contextmanager
def _telling(
    session: Session, data: Callable[[], dict[str, Any]], human: Callable[[Console], object]
) -> Iterator[None]:
    """Prints what was done at the end, also at that of an interruption."""

    def emit(finished: bool) -> None:
        session.emit({**data(), "finished": finished}, human)

    try:
        yield
    except KeyboardInterrupt:
        emit(finished=False)
        if not session.json:
            session.out.print("interrupted, not finished")
        raise
    emit(finished=True)


def _repeat(session: Session, *words: str, ids: Sequence[str] = ()) -> str:
    return f"The same command does the rest: {session.again(*words, ids=ids)}"


def _named(ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return f"thread {ids[0]!r}"
    names = ", ".join(map(repr, ids[:_ASKED]))
    return f"{len(ids):,} threads ({names}{', ...' if len(ids) > _ASKED else ''})"


def _counts(pruned: Pruned) -> dict[str, int]:
    return {
        "checkpoints": pruned.checkpoints,
        "writes": pruned.writes,
        "blobs": pruned.blobs,
    }


def _table(rows: Sequence[dict[str, Any]], first: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    names = list(rows[0])
    for name in names[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(safe(row[names[0]]), *(f"{row[name]:,}" for name in names[1:]))
    return table


def _sum(some: Sequence[Pruned]) -> Pruned:
    names = [each.name for each in dataclasses.fields(Pruned)]
    return Pruned(*(sum(getattr(each, name) for each in some) for name in names))


# --- copy-thread -------------------------------------------------------------------------------


def copy_thread(
    session: Session,
    source: Annotated[str, typer.Argument(help="Id of the thread to copy.")],
    target: Annotated[str, typer.Argument(help="Id of the new thread.")],
) -> None:
    """Copy a thread to a new one, on the server.

    A copy that broke off is completed by the same command. The copy has no expiry; see `ttl`.
    """
    plan = copy.copy_thread(session.context(), source, target)
    counts = {name: session.run(_count(name, source)) for name in _PARTS}
    if not counts[Name.CHECKPOINTS]:
        raise Stop(Code.FAILED, f"there is no thread {source!r}")
    again = session.again("copy-thread", ids=[source, target])
    session.way_on = f"The same command completes the copy: {again}"
    with session.progress("copying", sum(counts.values())) as bar:
        session.run(_watched(plan, bar, counts))
    if not session.dry_run:
        counts = {name: session.run(_count(name, target)) for name in _PARTS}
    row = {"thread_id": target, **{name.name.lower(): counts[name] for name in _PARTS}}
    session.emit({"source": source, **row}, lambda console: console.print(_table([row], "thread")))


def _count(name: Name, thread_id: str) -> Plan[int]:
    count: int = yield Count(name, {"thread_id": thread_id})
    return count


def _watched(plan: Plan[None], bar: Bar, counts: dict[Name, int]) -> Plan[None]:
    """A copy that tells how far it is."""
    done = 0

    def before(op: Op) -> None:
        if isinstance(op, (Merge, Insert)):
            bar.update(text=f"copying {op.collection.name.lower()}")

    def after(op: Op, _: Any) -> None:
        nonlocal done
        if isinstance(op, (Merge, Insert)):
            done += len(op.documents) if isinstance(op, Insert) else counts[op.collection]
            bar.update(completed=done)

    return observed(plan, before, after)


class _Page:
    """What was done since the last whole page: a plan tells it at its end only.

    Attributes:
        threads: Threads of which something was changed or removed.
        counts: Documents that were removed, or moved to another date.
    """

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self.counts: dict[Name, int] = dict.fromkeys(_PARTS, 0)

    def add(self, op: Op, result: Any) -> None:
        """An operation that was carried out."""
        if isinstance(op, Delete) and op.collection in self.counts and result:
            self.counts[op.collection] += result
            self.threads.add(str(op.filter.get("thread_id")))
        elif isinstance(op, Updates) and op.collection is Name.CHECKPOINTS:
            self.counts[op.collection] += len(op.updates)
            self.threads |= {str(each.filter.get("thread_id")) for each in op.updates}


def _each_thread(plan: Plan[T], bar: Bar, start: int, page: _Page) -> Plan[T]:
    """A page of threads that tells about each thread, as far as it works on it."""
    seen: set[str] = set()

    def before(op: Op) -> None:
        where = getattr(op, "filter", None)
        thread = where.get("thread_id") if isinstance(where, dict) else None
        if isinstance(thread, str) and thread not in seen:
            seen.add(thread)
            bar.update(completed=start + len(seen) - 1)

    return observed(plan, before, page.add)


# --- prune -------------------------------------------------------------------------------------


def prune_threads(
    session: Session,
    threads: Annotated[
        list[str] | None, typer.Argument(help="Ids of threads; or give --idle.")
    ] = None,
    inactive: Annotated[
        timedelta | None,
        option(
            "--idle",
            parser=duration,
            metavar="DURATION",
            help="All threads that were not saved for this long: 30d, 12h, 90m or seconds.",
        ),
    ] = None,
    strategy: Annotated[
        Strategy,
        option(
            "--strategy",
            help="Keep the newest checkpoint of each namespace and what it needs, or nothing.",
        ),
    ] = Strategy.keep_latest,
    keep_last: Annotated[
        int | None,
        option(
            "--keep-last", help="With keep_latest: how many stay of each namespace, instead of 1."
        ),
    ] = None,
    older_than: Annotated[
        timedelta | None,
        option(
            "--older-than",
            parser=duration,
            metavar="DURATION",
            help="With ids: only checkpoints (with delete: threads) that are older than this.",
        ),
    ] = None,
    include_interrupted: Annotated[
        bool,
        option(
            "--include-interrupted",
            help="Also threads that wait for the answer to an interrupt; else they are left alone.",
        ),
    ] = False,
    after: _After = None,
) -> None:
    """Remove old checkpoints of some threads, or of all that are idle.

    What a kept checkpoint needs stays, also of its ancestors, so that the graph goes on as before.
    An interrupted prune leaves nothing unreadable; the next one of the thread finishes it.
    """
    ids = list(dict.fromkeys(threads or ()))
    if bool(ids) == (inactive is not None):
        raise Stop(Code.REFUSED, "which threads? Give their ids, or --idle, and not both.")
    if inactive is None and after is not None:
        raise Stop(Code.REFUSED, "--after goes with --idle")
    if inactive is not None and older_than is not None:
        raise Stop(Code.REFUSED, "--older-than goes with ids of threads; --idle has its own age")
    options: dict[str, Any] = {
        "strategy": strategy.value,
        "keep_last": keep_last,
        "skip_interrupted": not include_interrupted,
    }
    if inactive is not None:
        _prune_idle(session, inactive, options, after)
    else:
        _prune_ids(session, ids, {**options, "older_than": older_than})


def _prune_ids(session: Session, ids: Sequence[str], options: dict[str, Any]) -> None:
    ctx = session.context()
    prune.prune(ctx, ids, **options).close()  # all is checked before anything is asked
    there = [each for each in ids if session.exists(each)]
    for each in ids:
        if each not in there:
            session.note(f"there is no thread {each!r}")
    if there:
        session.confirm(f"Prune {_named(there)}{_kept(options, len(there))}?")
    words = _options_of(options)
    session.way_on = _repeat(session, "prune", *words, ids=ids)
    done = Pruned()
    with (
        _telling(
            session,
            lambda: dataclasses.asdict(done),
            lambda console: _say_pruned(session, console, done),
        ),
        session.progress("pruning", len(there)) as bar,
    ):
        for number, each in enumerate(there):
            pruned = session.run(prune.prune(ctx, [each], **options))
            if session.dry_run:
                # What would go is told; how much that is in all, the plan counts by itself.
                pruned = session.run(prune.prune(ctx, [each], **options, dry_run=True))
            done = _sum([done, pruned])
            bar.update(completed=number + 1)


def _options_of(options: dict[str, Any]) -> list[str]:
    """Options of a prune, as they are given."""
    words = ["--strategy", options["strategy"]] if options["strategy"] != "keep_latest" else []
    words += ["--keep-last", str(options["keep_last"])] if options["keep_last"] else []
    age = options.get("older_than")
    words += [] if age is None else ["--older-than", brief(age)]
    return words + ([] if options["skip_interrupted"] else ["--include-interrupted"])


def _prune_idle(
    session: Session, older_than: timedelta, options: dict[str, Any], after: str | None
) -> None:
    ctx = session.context()
    walk = idle.walk(ctx, older_than, **options, after=after, dry_run=False)
    counted = idle.walk(ctx, older_than, **options, after=after, dry_run=True)
    session.confirm(f"Prune all threads not saved for {brief(older_than)}{_kept(options)}?")
    words = ["prune", "--idle", brief(older_than), *_options_of(options)]
    progress = walk.progress
    _remember(session, words, 0, after)
    page = _Page()

    def pruned() -> Pruned:
        begun = Pruned(len(page.threads), 0, *(page.counts[name] for name in _PARTS))
        return _sum([progress.pruned, begun])

    def data() -> dict[str, Any]:
        values = dataclasses.asdict(progress)
        del values["done"]
        return {**values, "pruned": dataclasses.asdict(pruned())}

    def human(console: Console) -> None:
        console.print(f"{many(progress.threads, 'thread')}, {progress.idle:,} of them idle")
        _say_pruned(session, console, pruned())

    with _telling(session, data, human), session.progress("pruning") as bar:
        bar.update(total=session.run(_threads_after(after)))
        while not progress.done:
            plan = idle.step(session.context(), walk)
            walk = session.run(_each_thread(plan, bar, walk.progress.threads, page))
            page = _Page()
            if session.dry_run:
                counted = session.run(idle.step(session.context(), counted))
            progress = counted.progress if session.dry_run else walk.progress
            bar.update(
                completed=progress.threads,
                text=f"pruning ({many(progress.pruned.checkpoints, 'checkpoint')})",
            )
            _remember(session, words, progress.threads, progress.last_thread_id)


def _remember(session: Session, words: list[str], count: int, last: str | None) -> None:
    """What is said when the command is interrupted from here on."""
    if last is None:
        session.way_on = _repeat(session, *words)
    else:
        again = session.again(*words, "--after", last)
        session.way_on = f"{many(count, 'thread')} done. Go on with: {again}"


def _kept(options: dict[str, Any], threads: int = 2) -> str:
    if options["strategy"] == "delete":
        kept = f", keeping nothing of {'it' if threads == 1 else 'them'}"
    else:
        count = options["keep_last"] or 1
        newest = "newest checkpoint" if count == 1 else f"{count:,} newest checkpoints"
        kept = f", keeping the {newest} of each namespace and what it needs"
    age = options.get("older_than")
    if age is not None:
        kept += f", and what is not older than {brief(age)}"
    return kept if options["skip_interrupted"] else f"{kept}; also where an interrupt waits"


def _say_pruned(session: Session, console: Console, pruned: Pruned) -> None:
    would = "would be " if session.dry_run else ""
    console.print(
        f"{many(pruned.threads, 'thread')} {would}pruned: {many(pruned.checkpoints, 'checkpoint')},"
        f" {many(pruned.writes, 'write')}, {many(pruned.blobs, 'blob')}"
    )
    if pruned.skipped:
        console.print(f"{many(pruned.skipped, 'thread')} left alone, waiting for an answer")


def _threads_after(after: str | None) -> Plan[int]:
    """How many threads there are; the server jumps from one to the next in an index."""
    where = {"thread_id": {"$gt": "" if after is None else after}}
    rows = yield Aggregate(
        Name.CHECKPOINTS,
        [{"$match": where}, {"$group": {"_id": "$thread_id"}}, {"$count": "threads"}],
    )
    return rows[0]["threads"] if rows else 0


# --- ttl ---------------------------------------------------------------------------------------

_DUE: Final = (timedelta(0), timedelta(days=1), timedelta(days=7), timedelta(days=30))


def show_ttl(session: Session) -> None:
    """Show when stored checkpoints expire.

    How long a thread is kept is an option of the application's savers and is stored nowhere; what
    is stored is the date of each checkpoint.
    """
    now = datetime.now(timezone.utc)
    there = {name: _has_index(session, name) for name in _PARTS}
    data: dict[str, Any] = {
        "indexes": {session.collection.name + name.value: has for name, has in there.items()},
        "checkpoints": session.collection.estimated_document_count(),
        "expiring": None,
        "first": None,
        "last": None,
        "due": {},
    }
    # Without the index nothing expires, and counting would read the whole collection.
    if there[Name.CHECKPOINTS]:
        dated: dict[str, Any] = {"expires_at": {"$gt": datetime.fromtimestamp(0, timezone.utc)}}
        data["expiring"] = session.run(_dated(dated))
        for key, direction in (("first", 1), ("last", -1)):
            rows = session.run(_end_of(dated, direction))
            data[key] = rows[0]["expires_at"] if rows else None
        for age in _DUE:
            label = "now" if not age else brief(age)
            data["due"][label] = session.run(_dated({"expires_at": {"$lte": now + age}}))
    session.emit(data, lambda console: _say_ttl(console, data))


def _has_index(session: Session, name: Name) -> bool:
    indexes = session.driver.bound[name].index_information()
    return any(
        "expireAfterSeconds" in each and each["key"] == [("expires_at", 1)]
        for each in indexes.values()
    )


def _dated(where: dict[str, Any]) -> Plan[int]:
    count: int = yield Count(Name.CHECKPOINTS, where)
    return count


def _end_of(where: dict[str, Any], direction: int) -> Plan[list[dict[str, Any]]]:
    fields = {"_id": 0, "expires_at": 1}
    rows: list[dict[str, Any]] = yield Find(
        Name.CHECKPOINTS, where, fields, (("expires_at", direction),), 1
    )
    return rows


def _say_ttl(console: Console, data: dict[str, Any]) -> None:
    missing = [name for name, has in data["indexes"].items() if not has]
    if data["expiring"] is None:
        console.print("Nothing expires: there is no index that MongoDB removes by.")
        return
    if missing:
        console.print(f"An index that MongoDB removes by is missing: {', '.join(missing)}")
    console.print(
        f"{data['expiring']:,} of about {many(data['checkpoints'], 'checkpoint')} expire."
    )
    if data["expiring"]:
        console.print(
            f"First {data['first']:%Y-%m-%d %H:%M}, last {data['last']:%Y-%m-%d %H:%M} UTC."
        )
        for label, count in data["due"].items():
            within = "Expired already" if label == "now" else f"Within {label}"
            console.print(f"{within}: {count:,}")


def set_ttl(
    session: Session,
    age: Annotated[
        timedelta,
        typer.Argument(
            metavar="DURATION",
            parser=duration,
            help="How long a thread is kept after its last save: 30d, 12h, 90m or seconds.",
        ),
    ],
    after: _After = None,
) -> None:
    """Let all threads expire this long after their last save.

    Give the application's savers the same ttl first, since the saver that saves last decides.
    Threads that were idle for longer are removed soon after. Safe to interrupt and to repeat.
    """
    span = checked(age)
    missing = [name for name in _PARTS if not _has_index(session, name)]
    if missing:
        full = ", ".join(session.collection.name + name.value for name in missing)
        raise Stop(
            Code.FAILED,
            f"{full}: nothing would expire without the index that MongoDB removes by. Run:"
            " mongosaver migrate",
        )
    session.confirm(
        f"Let all threads expire {brief(span)} after their last save? Those that have been idle for"
        " longer will be removed soon."
    )
    saver = session.saver_with(ttl=span)
    _walk(session, saver, ["ttl", "set", brief(span)], after)


def turn_off_ttl(session: Session, after: _After = None) -> None:
    """Lift the date of all threads: they are kept for ever.

    Take the ttl from the application's savers first, since the saver that saves last decides.
    """
    session.confirm("Keep all threads for ever, unless a saver with a ttl goes on with them?")
    _walk(session, session.saver, ["ttl", "off"], after)


def _walk(session: Session, saver: MongoSaver, words: list[str], after: str | None) -> None:
    walk = expiry.walk(None, after, dry_run=False)
    counted = expiry.walk(None, after, dry_run=True)
    progress = walk.progress
    _remember(session, words, 0, after)
    page = _Page()

    def data() -> dict[str, Any]:
        values = dataclasses.asdict(progress)
        del values["done"]
        values["changed"] += len(page.threads)
        values["checkpoints"] += page.counts[Name.CHECKPOINTS]
        return values

    def human(console: Console) -> None:
        counts = data()
        would = "would be " if session.dry_run else ""
        console.print(
            f"{many(progress.threads, 'thread')}, {counts['changed']:,} of them {would}changed"
            f" ({many(counts['checkpoints'], 'checkpoint')})"
        )
        if progress.expired:
            expire = "expires" if progress.expired == 1 else "expire"
            console.print(f"{many(progress.expired, 'thread')} {expire} at once")

    with _telling(session, data, human), session.progress("setting dates") as bar:
        bar.update(total=session.run(_threads_after(after)))
        while not progress.done:
            plan = expiry.apply(session.context_of(saver), walk)
            walk = session.run(_each_thread(plan, bar, walk.progress.threads, page))
            page = _Page()
            if session.dry_run:
                counted = session.run(expiry.apply(session.context_of(saver), counted))
            progress = counted.progress if session.dry_run else walk.progress
            bar.update(completed=progress.threads)
            _remember(session, words, progress.threads, progress.last_thread_id)
