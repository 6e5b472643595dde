"""Whether what is stored is whole, and tidying up: `verify` and `gc`.

Both walk through threads in the order of their ids, one at a time, beside graphs that run. A walk
can be interrupted at any time; it says then how to go on after the last thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import Console

from mongosaver.cli.plain import PlainSerializer, safe, size
from mongosaver.cli.session import (
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
from mongosaver.plans import gc, pages
from mongosaver.plans.verify import walk
from mongosaver.plans.verify.report import Finding, Options, Report

_Threads = Annotated[
    list[str] | None,
    typer.Argument(metavar="THREAD", help="The threads; all of them by default."),
]
_After = Annotated[
    str | None,
    option("--after", metavar="THREAD", help="Go on after this thread, in the order of ids."),
]


# What is shown in the help; the parser makes the duration of it.
_DAY: Any = brief(gc.OLDER_THAN)


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @command(app, "verify")
    def _verify(
        session: Session,
        threads: _Threads = None,
        after: _After = None,
        no_data: Annotated[
            bool,
            option(
                "--no-data",
                help="Read no data: check only that everything is there and goes together.",
            ),
        ] = False,
        findings: Annotated[
            int, option("--findings", min=0, help="How many findings are shown.")
        ] = 100,
    ) -> None:
        """Check whether every checkpoint is whole, and count what nobody needs.

        Reads every value once and computes its digests. Safe beside running graphs: what looks
        wrong is looked at twice. Ends with code 3 if something is wrong; leftovers, which `gc`
        removes, are only counted.
        """
        run_verify(session, threads, after, data=not no_data, findings=findings)

    @command(app, "gc", writes=True)
    def _gc(
        session: Session,
        threads: _Threads = None,
        after: _After = None,
        older_than: Annotated[
            timedelta,
            option(
                "--older-than",
                parser=duration,
                metavar="DURATION",
                help="Only what is older than this; at least 10m.",
            ),
        ] = _DAY,
    ) -> None:
        """Remove what interrupted work has left behind and nobody needs.

        Blobs that no checkpoint names, pending writes without a checkpoint, checkpoints that are
        no state because their thread was deleted under a running graph, the rest of removals and
        of copies that broke off. Safe beside running graphs.
        """
        run_gc(session, threads, after, older_than)


# --- walking -----------------------------------------------------------------------------------


def _walk(
    session: Session, words: list[str], threads: list[str] | None, after: str | None
) -> Iterator[str]:
    """The threads in order; the command that goes on after each of them is noted.

    Args:
        session: The session.
        words: The command and its options.
        threads: Those that are wanted; None for all.
        after: Where to begin.
    """

    def passed(thread_id: str | None) -> None:
        more = [] if thread_id is None else ["--after", thread_id]
        session.way_on = f"Go on with: {session.again(*words, *more, ids=threads or ())}"

    passed(after)
    if threads is not None:
        for each in threads:
            if after is None or each > after:
                yield each
                passed(each)
        return
    while page := session.run(pages.threads(after)):
        for after in page:
            yield after
            passed(after)


def _there(session: Session, threads: list[str] | None) -> tuple[list[str] | None, list[str]]:
    """The threads that exist, None for all; and those of which nothing is stored."""
    chosen = pages.wanted(threads or None)
    if chosen is None:
        return None, []
    there = [each for each in chosen if session.exists(each)]
    return there, [each for each in chosen if each not in there]


def _total(session: Session, threads: list[str] | None, after: str | None) -> int | None:
    """How many checkpoints there are to look at, where that is cheap to know."""
    if threads is not None:
        return session.collection.count_documents({"thread_id": {"$in": threads}})
    return None if after is not None else session.collection.estimated_document_count()


# --- verify ------------------------------------------------------------------------------------


def run_verify(
    session: Session, threads: list[str] | None, after: str | None, *, data: bool, findings: int
) -> None:
    """Look at threads, and say what was found.

    Raises:
        Stop: Something is wrong, or there is nothing of that name.
    """
    if not session.is_there():
        where = f"{session.database.name}.{session.options.collection}"
        raise Stop(Code.FAILED, f"there is no collection {where!r}; see --db and --collection")
    chosen, missing = _there(session, threads)
    words = ["verify", *(["--no-data"] if not data else [])]
    serde = session.saver.serde
    opens = not isinstance(serde, PlainSerializer) or serde.cipher is not None
    options = Options(data=data, opens=opens, most=findings)
    report = Report(last_thread_id=after)
    finished = interrupted = False
    try:
        with session.progress("checkpoints", _total(session, chosen, after)) as bar:

            def tell() -> None:
                seen = report.checkpoints + report.marked + report.expired
                bar.update(completed=seen, text=_so_far(report))

            for thread_id in _walk(session, words, chosen, after):
                plan = walk.thread(session.context(), thread_id, report, options)
                session.run(observed(plan, lambda *_: tell()))
            tell()
        finished = True
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        end = "" if finished else "interrupted, not finished" if interrupted else "not finished"
        if finished or interrupted or report.threads:
            session.emit(
                {**_data(report, finished=finished), "not_found": missing},
                lambda console: None if chosen == [] else _show(console, report, end),
            )
    for each in missing:
        session.error(f"there is no thread {each!r}")
    if report.wrong or missing:
        raise Stop(Code.FOUND if report.wrong else Code.FAILED)


def _data(report: Report, *, finished: bool) -> dict[str, Any]:
    names = [name for name in Report.__slots__ if name != "findings"]
    counts = {name: getattr(report, name) for name in names}
    return {"finished": finished, **counts, "findings": report.findings}


def _so_far(report: Report) -> str:
    found = f", {report.wrong:,} wrong" if report.wrong else ""
    return f"checkpoints ({report.threads:,} threads, {size(report.bytes)} read{found})"


_LEFT: tuple[tuple[str, str], ...] = (
    ("orphan_blobs", "blobs that no checkpoint names"),
    ("orphan_writes", "pending writes without a checkpoint"),
    ("unfinished_writes", "parts of large pending writes that were not completed"),
    ("stateless", "checkpoints that are no state: the thread was deleted under a running graph"),
    ("marked", "checkpoints out of sight: being removed, or needed by a DeltaChannel"),
    ("half_copies", "threads that are a copy which broke off"),
    ("parents_gone", "checkpoints whose parent is gone"),
    ("expired", "checkpoints that have expired"),
    ("recent", "blobs and writes that may belong to what is being saved"),
    ("sealed", "payloads that could not be looked into"),
)


def _show(console: Console, report: Report, end: str) -> None:
    for finding in report.findings:
        _show_finding(console, finding)
    if report.wrong > len(report.findings):
        console.print(f"... and {report.wrong - len(report.findings):,} more findings\n")
    console.print(
        f"{many(report.threads, 'thread')}: {many(report.checkpoints, 'checkpoint')},"
        f" {many(report.writes, 'pending write')}, {many(report.blobs, 'blob')};"
        f" {size(report.bytes)} read",
        soft_wrap=True,
    )
    for name, text in _LEFT:
        if getattr(report, name):
            console.print(f"{getattr(report, name):>9,}  {text}", soft_wrap=True)
    if report.wrong:
        console.print(
            f"{many(report.wrong, 'finding')}; not whole: {many(report.damaged, 'checkpoint')}"
            + (f"; {end}" if end else ""),
            style="bold red",
        )
    elif end:
        console.print(
            f"Of the {many(report.threads, 'thread')} looked at nothing is wrong so far; {end}.",
            style="yellow",
        )
    else:
        console.print("Every checkpoint is whole.", style="green")


def _show_finding(console: Console, finding: Finding) -> None:
    where = [f"thread {finding.thread_id!r}"]
    if finding.checkpoint_ns:
        where.append(f"namespace {finding.checkpoint_ns!r}")
    if finding.checkpoint_id is not None:
        where.append(f"checkpoint {finding.checkpoint_id!r}")
    if finding.checkpoints > 1:
        where[-1] += f" and {finding.checkpoints - 1:,} more"
    if finding.channel is not None:
        where.append(f"channel {finding.channel!r}")
    if finding.key is not None:
        where.append(f"{'task' if finding.kind == 'write' else 'blob'} {finding.key}")
    console.print(f"{finding.kind}: {safe(finding.text)}", style="bold", soft_wrap=True)
    console.print(f"  {safe(', '.join(where))}", soft_wrap=True)
    console.print(f"  {finding.remedy}\n", soft_wrap=True)


# --- gc ----------------------------------------------------------------------------------------


def run_gc(
    session: Session, threads: list[str] | None, after: str | None, older_than: timedelta
) -> None:
    """Tidy threads up, and say what went."""
    rule = gc.rule(older_than, dry_run=session.dry_run)
    where = f"{session.database.name}.{session.options.collection}"
    chosen, missing = _there(session, threads)
    for each in missing:
        session.note(f"there is no thread {each!r}")
    which = "" if chosen is None else f" of {many(len(chosen), 'thread')}"
    if chosen != []:
        session.confirm(f"Remove leftovers{which} older than {brief(older_than)} from {where}?")
    words = ["gc", *(["--older-than", brief(older_than)] if older_than != gc.OLDER_THAN else [])]
    collected = gc.Collected(last_thread_id=after)
    finished = interrupted = False
    try:
        with session.progress("threads") as bar:
            for thread_id in _walk(session, words, chosen, after):
                plan = gc.thread(session.context(), thread_id, collected, rule)
                session.run(observed(plan, lambda *_: bar.update(completed=collected.threads)))
            bar.update(completed=collected.threads)
        finished = True
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        end = "" if finished else "interrupted, not finished" if interrupted else "not finished"
        if finished or interrupted or collected.threads:
            counts = {name: getattr(collected, name) for name in _names(collected)}
            session.emit(
                {"finished": finished, **counts},
                lambda console: _show_collected(session, console, collected, end),
            )


def _names(collected: gc.Collected) -> Iterable[str]:
    return type(collected).__slots__


def _show_collected(session: Session, console: Console, collected: gc.Collected, end: str) -> None:
    for thread_id, why in collected.left.items():
        console.print(safe(f"left alone: thread {thread_id!r}: {why}"), soft_wrap=True)
    if session.quiet and not end and not collected.changed:
        return
    word = "would remove" if session.dry_run else "removed"
    console.print(
        f"{word} {many(collected.checkpoints, 'checkpoint')},"
        f" {many(collected.writes, 'pending write')} and {many(collected.blobs, 'blob')}"
        f" from {collected.changed:,} of {many(collected.threads, 'thread')}"
        + (f"; {end}" if end else ""),
        soft_wrap=True,
    )
