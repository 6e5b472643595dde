"""The schema: `status`, `check`, `migrate`, `indexes` and `shard`.

`migrate` runs the plan that `setup()` of a saver runs, and shows how far the server is. All of this
can be repeated, and broken off anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

import typer
from pymongo.errors import OperationFailure, PyMongoError
from rich.console import Console
from rich.table import Table

from mongosaver import migrations
from mongosaver._base import runner
from mongosaver.cli.plain import safe
from mongosaver.cli.session import Code, Session, Stop, command, option
from mongosaver.migrations import MIGRATIONS, PATIENCE, Found, Progress, Status
from mongosaver.ops import ListIndexes, Plan
from mongosaver.schema import INDEXES, SHARD_KEY, Document, Name

_NO_SUCH_STAGE: Final = frozenset({13, 26, 40324})
"""Unauthorized, no such collection, unknown stage."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "status")(status)
    command(app, "check")(check)
    command(app, "migrate", writes=True, asks=False, checks=False)(migrate)
    command(app, "indexes")(indexes)
    command(app, "shard")(shard)


# --- status and check --------------------------------------------------------------------------


def status(session: Session) -> None:
    """Show which migrations were applied, and what is pending.

    An index that a migration made and that was removed or changed since is shown as well.
    """
    found = session.run(migrations.status())
    session.emit(_data(session, found), lambda console: _show(session, found, console))


def check(session: Session) -> None:
    """Check whether something is pending; exit code 3 if so.

    That is a migration that was not applied, or an index that was removed or changed since. For a
    pipeline, before new code is deployed.
    """
    found = session.run(migrations.status())

    def human(console: Console) -> None:
        for line in _open(session, found):
            console.print(safe(line), soft_wrap=True)
        if not _open(session, found):
            console.print(safe(f"{_place(session)}: nothing is pending"), soft_wrap=True)

    session.emit(_data(session, found), human)
    if _open(session, found):
        raise Stop(Code.FOUND)


def _place(session: Session) -> str:
    return f"{session.database.name}.{session.collection.name}"


def _real(session: Session, name: Name) -> str:
    return session.collection.name + name.value


def _open(session: Session, found: Status) -> list[str]:
    """What is to be done, in a line each."""
    lines = [
        f"pending: {migration} ({migration.phase})"
        + ("" if migration.phase == "expand" else f"; asked for by --to {migration.number}")
        for migration in found.pending
    ]
    for each in found.amiss:
        line = f"{_real(session, each.collection)}: index {each.index.name} is {each.state}"
        lines.append(f"{line}: {each.detail}" if each.detail else line)
    return lines


def _data(session: Session, found: Status) -> dict[str, Any]:
    newer = {each.number for each in found.newer}
    return {
        "database": session.database.name,
        "collection": session.collection.name,
        "applied": [each for each in found.applied if each.number not in newer],
        "pending": [
            {"number": each.number, "name": each.name, "phase": each.phase}
            for each in found.pending
        ],
        "newer": found.newer,
        "indexes": [_index(session, each) for each in found.amiss],
        "lock": found.holder,
    }


def _index(session: Session, found: Found) -> dict[str, Any]:
    return {
        "collection": _real(session, found.collection),
        "index": found.name or found.index.name,
        "keys": dict(found.index.keys),
        "state": found.state,
        "detail": found.detail,
    }


def _show(session: Session, found: Status, console: Console) -> None:
    if found.applied or found.pending:
        table = _table("", "migration", "phase", "applied", "took", "by")
        known = {each.number for each in MIGRATIONS}
        for each in found.applied:
            table.add_row(
                str(each.number),
                safe(each.name),
                safe(each.phase) + ("" if each.number in known else ", newer"),
                f"{each.at:%Y-%m-%d %H:%M:%S}",
                _took(each.milliseconds),
                safe(each.version),
            )
        for migration in found.pending:
            table.add_row(str(migration.number), migration.name, migration.phase, "pending")
        console.print(table)
    for each in found.applied:
        for note in each.notes:
            console.print(safe(note), soft_wrap=True)
    for line in _open(session, found)[len(found.pending) :]:
        console.print(safe(line), soft_wrap=True)
    if found.holder is not None:
        holder = found.holder
        text = f"process {holder.pid} on {holder.host} has the lock, since {holder.since:%H:%M:%S}"
        console.print(safe(f"{text}, until {holder.until:%H:%M:%S} UTC"), soft_wrap=True)


def _took(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in ("", "took", "size", "uses") else "left")
    return table


# --- migrate -----------------------------------------------------------------------------------


def migrate(
    session: Session,
    to: Annotated[
        int | None,
        option(
            "--to",
            min=1,
            help="The last migration to apply, of either phase. By default all that only add"
            " something are applied; one that takes something away has to be asked for.",
        ),
    ] = None,
    wait: Annotated[
        float,
        option("--wait", metavar="SECONDS", min=0, help="How long to wait for another runner."),
    ] = PATIENCE,
    shard: Annotated[
        bool,
        option(
            "--shard",
            help="Shard collections that are made now by thread. Where the server refuses they are"
            " made all the same, and a note says so. For those that exist see the command shard.",
        ),
    ] = False,
) -> None:
    """Apply pending migrations, and rebuild indexes that were removed.

    Graphs may run meanwhile. Running it again changes nothing, and what was interrupted is finished
    by the next run. One runner works at a time; the others wait.
    """
    last = MIGRATIONS[-1].number
    if to is not None and to > last:
        raise Stop(Code.REFUSED, f"there is no migration {to}; the last is {last}")
    me = runner(session.collection)
    session.way_on = "What was done is recorded; run the same command again to go on."
    said = ""
    with session.progress("migrating") as bar, _breaking_off(session, me):

        def tell(at: Progress) -> None:
            nonlocal said
            if at.text != said:
                said = at.text
                session.note(at.text)
            if at.step:
                text = f"{at.migration}: {at.step}"
                bar.update(completed=at.done or 0, total=at.total, text=text)

        plan = (
            migrations.migrate(me, to=to, shard=shard, rehearse=True)
            if session.dry_run
            else migrations.migrate(me, to=to, wait=wait, tell=tell, shard=shard)
        )
        done = session.run(plan)
    applied = [{"number": each.number, "name": each.name, "phase": each.phase} for each in done]
    after = Status((), (), ()) if session.dry_run else session.run(migrations.status())
    left = after.pending
    numbers = {each.number for each in done}
    notes = [note for each in after.applied if each.number in numbers for note in each.notes]

    def human(console: Console) -> None:
        word = "would apply" if session.dry_run else "applied"
        for each in done:
            console.print(f"{word} {each} ({each.phase})")
        if not done:
            mended = "; indexes that were missing or changed are repaired" if said else ""
            console.print(f"nothing to apply{mended}")
        for note in notes:
            console.print(safe(note), soft_wrap=True)
        for each in left:
            when = "" if each.phase == "expand" else ", when every process runs this version"
            line = f"still pending: {each} ({each.phase}){when}"
            console.print(f"{line}: mongosaver migrate --to {each.number}", soft_wrap=True)

    pending = [each.number for each in left]
    session.emit({"applied": applied, "pending": pending, "notes": notes}, human)


@contextlib.contextmanager
def _breaking_off(session: Session, me: migrations.Runner) -> Iterator[None]:
    """Gives the lock back when somebody breaks the run off."""
    try:
        yield
    except KeyboardInterrupt:
        if not session.dry_run:
            with contextlib.suppress(PyMongoError):
                session.run(migrations.release(me))
        raise


# --- indexes -----------------------------------------------------------------------------------


def indexes(session: Session) -> None:
    """Show the indexes, beside those that this version needs.

    `there`: as it should be; `missing` and `otherwise`: `migrate` mends it; `in the way`: somebody
    has to drop it; `other`: not of mongosaver's. Size and number of uses since the server started
    are shown where the user may see them.
    """
    there = session.run(_listing())
    rows = []
    for name, found in there.items():
        sizes, uses = _sizes(session, name), _uses(session, name)
        wanted = [migrations.compare(name, index, found) for index in INDEXES[name]]
        ours = {each.name for each in wanted}
        rows += [{**_index(session, each), "reader": each.index.reader} for each in wanted]
        rows += [
            {
                "collection": _real(session, name),
                "index": each["name"],
                "keys": dict(each["key"]),
                "state": "other",
                "detail": "",
                "reader": "",
            }
            for each in found
            if each["name"] not in {*ours, "_id_"}
        ]
        for row in rows:
            if row["collection"] == _real(session, name):
                row["bytes"], row["uses"] = sizes.get(row["index"]), uses.get(row["index"])

    def human(console: Console) -> None:
        table = _table("collection", "index", "state", "size", "uses", "read by")
        for row in rows:
            state = f"{row['state']}: {row['detail']}" if row["detail"] else row["state"]
            uses = "" if row["uses"] is None else f"{row['uses']:,}"
            shown = (row["collection"], row["index"], state)
            table.add_row(*map(safe, shown), _size(row["bytes"]), uses, safe(row["reader"]))
        console.print(table)
        bad = [row for row in rows if row["state"] not in ("there", "other")]
        if bad:
            console.print(f"{len(bad)} of {len(rows)} are not as they should be; see migrate")

    session.emit({"indexes": rows}, human)


def _listing() -> Plan[dict[Name, list[Document]]]:
    there = {}
    for name in INDEXES:
        there[name] = yield ListIndexes(name)
    return there


def _sizes(session: Session, name: Name) -> dict[str, int]:
    stages: list[Document] = [
        {"$collStats": {"storageStats": {}}},
        {"$project": {"sizes": "$storageStats.indexSizes"}},
    ]
    return _sum(row.get("sizes", {}) for row in _asked(session, name, stages))


def _uses(session: Session, name: Name) -> dict[str, int]:
    rows = _asked(session, name, [{"$indexStats": {}}])
    return _sum({row["name"]: row["accesses"]["ops"]} for row in rows)


def _asked(session: Session, name: Name, stages: Sequence[Document]) -> list[Document]:
    """Rows of statistics, one per shard; none where this user may not see them."""
    try:
        return session.database[_real(session, name)].aggregate(list(stages)).to_list()
    except OperationFailure as error:
        if error.code in _NO_SUCH_STAGE:
            return []
        raise


def _sum(rows: Iterable[Document]) -> dict[str, int]:
    total: dict[str, int] = {}
    for row in rows:
        for name, count in row.items():
            total[name] = total.get(name, 0) + int(count)
    return total


def _size(count: int | None) -> str:
    if count is None:
        return ""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:,.1f} TB"


# --- shard -------------------------------------------------------------------------------------


def shard(
    session: Session,
    apply: Annotated[
        bool, option("--apply", help="Run the commands instead of printing them.")
    ] = False,
) -> None:
    """Print the commands that shard the collections by thread, or run them.

    Best after `migrate` and before there is much data: each thread is on one shard then, and every
    command about one thread goes to that shard. With --apply it needs a connection to a mongos.
    """
    names = [f"{session.database.name}.{_real(session, name)}" for name in INDEXES]
    commands: list[Document] = [{"enableSharding": session.database.name}]
    commands += [{"shardCollection": name, "key": SHARD_KEY} for name in names]
    if apply:
        if session.client.admin.command("hello").get("msg") != "isdbgrid":
            raise Stop(
                Code.FAILED,
                "this is not a sharded cluster: --apply needs the address of a mongos. Without it"
                " the commands are printed.",
            )
        for each in commands:
            session.client.admin.command(each)

    def human(console: Console) -> None:
        if apply:
            for name in names:
                console.print(safe(f"{name} is sharded by thread_id"), soft_wrap=True)
            return
        console.print(safe(f'sh.enableSharding("{session.database.name}")'), soft_wrap=True)
        for name in names:
            text = f'sh.shardCollection("{name}", {{ thread_id: 1 }})'
            console.print(safe(text), soft_wrap=True)

    session.emit({"commands": commands, "applied": apply}, human)
