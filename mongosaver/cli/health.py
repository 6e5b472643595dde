"""Whether what is stored is whole, and tidying up: `verify` and `gc`.

Both walk through threads in the order of their ids, one at a time, beside graphs that run. A walk
can be interrupted at any time; it says then how to go on after the last thread.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Annotated, Any, TypeVar

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
    option,
)
from mongosaver.ops import Plan
from mongosaver.plans import gc, verify

T = TypeVar("T")

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
                help="Read no data: look only whether everything is there and goes together.",
            ),
        ] = False,
        findings: Annotated[
            int, option("--findings", min=0, help="How many findings are shown.")
        ] = 100,
    ) -> None:
        """Look whether every checkpoint is whole, and count what nobody needs.

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
                help="What is younger stays; at least 10m.",
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


def _walk(session: Session, threads: list[str] | None, after: str | None) -> Iterator[str]:
    """The threads in order; what goes on after each of them is noted."""
    chosen = verify.wanted(threads or None)
    if after is not None:
        session.way_on = _way_on(after)
    if chosen is not None:
        for each in chosen:
            if after is None or each > after:
                yield each
                session.way_on = _way_on(each)
        return
    while page := session.run(verify.threads(after)):
        for after in page:
            yield after
            session.way_on = _way_on(after)


def _way_on(thread_id: str) -> str:
    return f"Go on with --after {shlex.quote(thread_id)}."


def _total(session: Session, threads: list[str] | None, after: str | None) -> int | None:
    """How many checkpoints there are to look at, where that is cheap to know."""
    if threads:
        return session.collection.count_documents({"thread_id": {"$in": threads}})
    return None if after is not None else session.collection.estimated_document_count()


def _watched(plan: Plan[T], tell: Callable[[], object]) -> Plan[T]:
    """The same plan; somebody is told after each operation."""
    try:
        op = next(plan)
        while True:
            try:
                result = yield op
            except Exception as error:  # noqa: BLE001 - the plan decides
                op = plan.throw(error)
            else:
                op = plan.send(result)
            tell()
    except StopIteration as stop:
        done: T = stop.value
        return done


# --- verify ------------------------------------------------------------------------------------


def run_verify(
    session: Session, threads: list[str] | None, after: str | None, *, data: bool, findings: int
) -> None:
    """Look at threads, and say what was found.

    Raises:
        Stop: Something is wrong.
    """
    serde = session.saver.serde
    opens = not isinstance(serde, PlainSerializer) or serde.cipher is not None
    options = verify.Options(data=data, opens=opens, most=findings)
    report = verify.Report(last_thread_id=after)
    done = False
    try:
        with session.progress("checkpoints", _total(session, threads, after)) as bar:

            def tell() -> None:
                seen = report.checkpoints + report.marked + report.expired
                bar.update(completed=seen, text=_so_far(report))

            for thread_id in _walk(session, threads, after):
                plan = verify.thread(session.context(), thread_id, report, options)
                session.run(_watched(plan, tell))
            tell()
        done = True
    finally:
        if done or report.threads:
            session.emit(_data(report, done=done), lambda console: _show(console, report))
    if report.wrong:
        raise Stop(Code.FOUND)


def _data(report: verify.Report, *, done: bool) -> dict[str, Any]:
    names = [name for name in verify.Report.__slots__ if name != "findings"]
    counts = {name: getattr(report, name) for name in names}
    return {"done": done, **counts, "findings": report.findings}


def _so_far(report: verify.Report) -> str:
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


def _show(console: Console, report: verify.Report) -> None:
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
            f"{many(report.wrong, 'finding')}; not whole: {many(report.damaged, 'checkpoint')}",
            style="bold red",
        )
    else:
        console.print("Every checkpoint is whole.", style="green")


def _show_finding(console: Console, finding: verify.Finding) -> None:
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
    which = f" of {many(len(threads), 'thread')}" if threads else ""
    session.confirm(
        f"Remove what nobody needs{which} in {where} and is older than {brief(older_than)}?"
    )
    collected = gc.Collected(last_thread_id=after)
    done = False
    try:
        with session.progress("threads") as bar:
            for thread_id in _walk(session, threads, after):
                plan = gc.thread(session.context(), thread_id, collected, rule)
                session.run(_watched(plan, lambda: bar.update(completed=collected.threads)))
            bar.update(completed=collected.threads)
        done = True
    finally:
        if done or collected.threads:
            session.emit(
                {"done": done, **{name: getattr(collected, name) for name in _names(collected)}},
                lambda console: _show_collected(console, collected, dry_run=session.dry_run),
            )


def _names(collected: gc.Collected) -> Iterable[str]:
    return type(collected).__slots__


def _show_collected(console: Console, collected: gc.Collected, *, dry_run: bool) -> None:
    for thread_id, why in collected.left.items():
        console.print(safe(f"left alone: thread {thread_id!r}: {why}"), soft_wrap=True)
    console.print(
        f"{'would remove' if dry_run else 'removed'} {many(collected.checkpoints, 'checkpoint')},"
        f" {many(collected.writes, 'pending write')} and {many(collected.blobs, 'blob')}"
        f" from {collected.changed:,} of {many(collected.threads, 'thread')}",
        soft_wrap=True,
    )
