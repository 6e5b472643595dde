"""What all commands have in common: the connection, the output, and how a command ends.

A command is a function of a `Session` and of its own options. `command` makes a Typer command of
it: it adds the options that all have, opens the session, and turns whatever happens into one line
on standard error and an exit code. Data goes to standard output and everything else to standard
error, so that a pipe carries data only.

    def register(app: typer.Typer) -> None:
        @command(app, "history")
        def history(
            session: Session,
            thread: Annotated[str, typer.Argument(help="The thread.")],
            limit: Annotated[int, option("--limit", help="At most this many.")] = 20,
        ) -> None:
            \"\"\"Show the checkpoints of a thread.\"\"\"
            rows = session.run(plan(session.context(), thread, limit))
            session.emit(rows, lambda console: console.print(table(rows)))
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import re
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import Enum, IntEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import typer
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    InvalidName,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from typer.models import OptionInfo
from typing_extensions import Self

from mongosaver._base import COLLECTION_NAME, DB_NAME, open_options, runner
from mongosaver.cli import dry_run as dry
from mongosaver.cli import plain, redact
from mongosaver.cli.help import Command
from mongosaver.cli.plain import safe
from mongosaver.drivers import Driver
from mongosaver.errors import MongoSaverError, UsageError
from mongosaver.migrations import first_use
from mongosaver.ops import Op, Plan
from mongosaver.plans.context import Context
from mongosaver.saver import MongoSaver
from mongosaver.schema import Name

T = TypeVar("T")

PREFIX: Final = "MONGOSAVER_"
WAIT: Final = 10.0
"""Seconds to look for a server."""

_WIDE: Final = 100_000
"""Columns of an output that nobody looks at directly: nothing is cut or wrapped."""


_PIECE: Final = 32 * 1024

_STORED: Final = (Name.CHECKPOINTS, Name.WRITES, Name.BLOBS)


class Code(IntEnum):
    """Exit codes."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    FOUND = 3
    INTERRUPTED = 130
    UNREAD = 141


EXIT_CODES: Final = """
Exit codes:

- 0: done.
- 1: failed; the server or what is stored in it does not allow it.
- 2: refused; the call was wrong or not confirmed, and nothing was done.
- 3: something is pending or was found (`check`, `verify`).
- 130: interrupted; the last line says how to go on.
- 141: whoever read the output did not want more of it.
"""


class Stop(Exception):
    """Ends a command with a code, and with one line on standard error if there is a message."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


# --- options -----------------------------------------------------------------------------------


def variable(name: str) -> str:
    """The environment variable of an option: `--dry-run` is `MONGOSAVER_DRY_RUN`."""
    return PREFIX + name.partition("/")[0].lstrip("-").upper().replace("-", "_")


def option(*names: str, **settings: Any) -> Any:
    """`typer.Option` with its environment variable; for use in `Annotated`.

    Args:
        names: Such as `--limit`; the first long one names the variable.
        settings: Those of `typer.Option`.
    """
    long = next(name for name in names if name.startswith("--"))
    settings.setdefault("envvar", variable(long))
    settings.setdefault("show_default", True)
    return typer.Option(*names, **settings)


_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def duration(text: str | timedelta) -> timedelta:
    """A duration such as `30d`, `12h`, `90m`, `1d12h`, or a number of seconds."""
    if isinstance(text, timedelta):
        return text
    text = text.strip().lower()
    with contextlib.suppress(ValueError, OverflowError):
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return timedelta(seconds=float(text))
        parts = _PART.findall(text)
        if parts and "".join(map("".join, parts)) == text:
            return timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in parts))
    raise typer.BadParameter(f"{text!r} is not a duration; say 30d, 12h, 90m, 45s or seconds")


def many(count: int, what: str) -> str:
    """A number of things: `1 thread`, `2,000 threads`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def brief(span: timedelta) -> str:
    """A duration as `duration` reads it."""
    seconds = int(span.total_seconds())
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


@dataclasses.dataclass(frozen=True)
class Options:
    """What every command is given."""

    uri: str | None = dataclasses.field(default=None, repr=False)
    db: str | None = None
    collection: str = COLLECTION_NAME
    timeout: float | None = None
    json: bool = False
    quiet: bool = False
    no_color: bool = False
    debug: bool = False
    dry_run: bool = False
    yes: bool = False


_CONNECTION: Final = {
    "uri": Annotated[
        str | None,
        option(
            "--uri",
            metavar="URI",
            help="MongoDB connection string. Prefer the variable: a command line can be seen by"
            " others on the machine.",
            rich_help_panel="Connection",
        ),
    ],
    "db": Annotated[
        str | None,
        option(
            "--db",
            metavar="NAME",
            help=f"Database; by default the one that the connection string names, else {DB_NAME}.",
            rich_help_panel="Connection",
        ),
    ],
    "collection": Annotated[
        str,
        option(
            "--collection",
            metavar="NAME",
            help="Collection of the checkpoints.",
            rich_help_panel="Connection",
        ),
    ],
    "timeout": Annotated[
        float | None,
        option(
            "--timeout",
            metavar="SECONDS",
            min=0.001,
            help=f"How long to look for the server; by default what the connection string says,"
            f" else {WAIT:.0f}.",
            rich_help_panel="Connection",
        ),
    ],
}
_OUTPUT: Final = {
    "json": Annotated[
        bool, option("--json", help="Print JSON on standard output.", rich_help_panel="Output")
    ],
    "quiet": Annotated[
        bool,
        option(
            "--quiet",
            help="Nothing but errors on standard error.",
            rich_help_panel="Output",
        ),
    ],
    "no_color": Annotated[
        bool,
        option(
            "--no-color",
            help="No colours; NO_COLOR means the same.",
            rich_help_panel="Output",
        ),
    ],
    "debug": Annotated[
        bool,
        option(
            "--debug",
            help="Each operation with its time, and the traceback of an error. No payload and no"
            " password is shown.",
            rich_help_panel="Output",
        ),
    ],
}
_WRITING: Final = {
    "dry_run": Annotated[
        bool,
        option("--dry-run", help="Print what would be written, and write nothing."),
    ],
}
_ASKING: Final = {
    "yes": Annotated[bool, option("--yes", help="Do not ask for confirmation.")],
}


def command(
    app: typer.Typer,
    name: str,
    *,
    writes: bool = False,
    asks: bool = True,
    connects: bool = True,
    checks: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a command of a function that takes a `Session` and options.

    Args:
        app: Where the command goes.
        name: Its name.
        writes: Whether to add `--dry-run`.
        asks: Whether to add `--yes` to a command that writes.
        connects: Whether to add the options of the connection.
        checks: Whether a command that writes needs the schema of this version.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        shared = {
            **(_WRITING if writes else {}),
            **(_ASKING if writes and asks else {}),
            **(_CONNECTION if connects else {}),
            **_OUTPUT,
        }
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def wrapper(**values: Any) -> None:
            options = Options(**{each: values.pop(_hidden(each)) for each in shared})
            with _ending(options) as session:
                if writes and connects and checks:
                    session.check_schema()
                function(session, **values)

        defaults = {each.name: each.default for each in dataclasses.fields(Options)}
        parameters = [each.replace(annotation=_filled(each), kind=_KEYWORD) for each in own]
        parameters += [
            inspect.Parameter(_hidden(each), _KEYWORD, default=defaults[each], annotation=about)
            for each, about in shared.items()
        ]
        wrapper.__name__, wrapper.__doc__ = function.__name__, function.__doc__
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name, cls=Command)(wrapper)
        return function

    return decorate


_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY


def _hidden(name: str) -> str:
    """A parameter's name that no command has for its own."""
    return f"session_{name}"


def _filled(parameter: inspect.Parameter) -> Any:
    """The annotation with a word for the value, which the help shows."""
    if get_origin(parameter.annotation) is not Annotated:
        return parameter.annotation
    kind, about, *more = get_args(parameter.annotation)
    if about.metavar is None:
        about.metavar = _word(kind, parameter.name, is_option=isinstance(about, OptionInfo))
    filled = (kind, about, *more)
    return Annotated[filled]


def _word(kind: Any, name: str, *, is_option: bool) -> str:
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    is_list = get_origin(kind) is list
    kind = get_args(kind)[0] if is_list else kind
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(each.value) for each in kind)
    if not is_option:
        return (name.removesuffix("s") if is_list else name).upper()
    words = {int: "N", float: "N", Path: "PATH", timedelta: "DURATION"}
    return words.get(kind, "TEXT")


# --- how a command ends ------------------------------------------------------------------------


@contextlib.contextmanager
def _ending(options: Options) -> Iterator[Session]:
    """A session, and the exit code of whatever happens in it."""
    session = Session(options)
    try:
        with session:
            yield session
        sys.stdout.flush()
    except typer.Exit:
        raise
    except Stop as stop:
        if str(stop):
            session.error(str(stop))
        raise typer.Exit(stop.code) from None
    except BrokenPipeError:
        # Before Typer sees it, which has another code for it.
        raise typer.Exit(Code.UNREAD) from None
    except KeyboardInterrupt:
        session.error(f"interrupted. {session.way_on}".strip().rstrip("."))
        raise typer.Exit(Code.INTERRUPTED) from None
    except (MongoSaverError, PyMongoError, ValueError, OSError, RuntimeError) as error:
        if _is_of_typer(error):
            raise
        if options.debug:
            session.error(traceback.format_exc().rstrip())
        session.error(explained(error))
        raise typer.Exit(code_of(error)) from None


def _is_of_typer(error: BaseException) -> bool:
    # Whose classes have no public names: some releases carry their own copy of Click.
    return hasattr(error, "format_message")


_CALLERS: Final = (UsageError, InvalidURI, ConfigurationError, InvalidName)


def code_of(error: BaseException) -> Code:
    """The exit code of an error: whether the call was wrong, or something else."""
    return Code.REFUSED if isinstance(error, _CALLERS) else Code.FAILED


_UNAUTHORIZED: Final = 13
_DENIED: Final = re.compile(
    r"not authorized on (\S+) to execute command \{ ?\"?(\w+)\"?(?:: ?\"([^\"]+)\")?"
)
_LOGIN_FAILED: Final = 18
_DEPLOY: Final = "docs/how-to/deploy.md"
_OF_CALLS: Final = re.compile(r"^(keep_last|older_than) must be ")
"""What a plan says of an argument that is an option here."""


def explained(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ServerSelectionTimeoutError):
        cause = text.partition(", Timeout:")[0].partition(" (configured timeouts")[0]
        return (
            f"no server answers: {cause}. Is the address right, and the server up and reachable"
            " from here? --timeout says how long to look for it."
        )
    if isinstance(error, BulkWriteError):
        errors = (error.details or {}).get("writeErrors") or [{}]
        return f"the server refuses a write: {errors[0].get('errmsg') or text}"
    if isinstance(error, OperationFailure):
        text = " ".join(str((error.details or {}).get("errmsg") or text).split())
        denied = _DENIED.search(text)
        if error.code == _UNAUTHORIZED and denied:
            where = f"on {denied[1]}.{denied[3]}" if denied[3] else f"in database {denied[1]}"
            return (
                f"the user of this connection may not run {denied[2]!r} {where}; {_DEPLOY} has the"
                " role that an operator needs"
            )
        if error.code == _LOGIN_FAILED:
            return (
                f"the server refuses: {text.rstrip('.')}; check user, password and authSource in"
                " the connection string"
            )
        name = (error.details or {}).get("codeName")
        return f"the server refuses: {text.rstrip('.')} ({name or error.code})"
    if isinstance(error, (InvalidURI, ConfigurationError)):
        return f"the connection string does not work: {text}"
    return _OF_CALLS.sub(lambda found: f"--{found[1].replace('_', '-')} must be ", text)


_ESCAPING: Final = (
    "the connection string does not work: '/', ':' and '@' in the user's name or password have to"
    " be percent-escaped, as %2F, %3A and %40"
)


def _is_unescaped(uri: str, text: str = "") -> bool:
    """Whether the login has characters that end it, or the hosts, too early.

    Args:
        uri: The connection string.
        text: What PyMongo says of it, if it does.
    """
    login, at, _ = uri.partition("://")[2].partition("?")[0].rpartition("@")
    return bool(at) and ("/" in login or "must be escaped" in text)


# --- the session -------------------------------------------------------------------------------


class Session:
    """One run of a command: its connection and its output.

    Attributes:
        json: Whether `emit` prints JSON.
        dry_run: Whether nothing may be written.
        quiet: Whether standard error is for errors only.
        way_on: What is said when the command is interrupted: how to go on.
        errors: Standard error; for notes use `note`.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.json, self.dry_run, self.quiet = options.json, options.dry_run, options.quiet
        self.way_on = ""
        self.redact = redact.for_process([*sys.argv[1:], options.uri or ""], os.environ)
        self.errors = self.console(sys.stderr)
        self._closing = contextlib.ExitStack()
        self._writes: list[dry.Write] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    # --- connection

    @functools.cached_property
    def client(self) -> MongoClient[dict[str, Any]]:
        """The client, opened when it is first needed."""
        uri = self.options.uri
        if not uri:
            raise Stop(
                Code.REFUSED,
                f"which MongoDB? Set {variable('uri')} to its connection string, or give --uri.",
            )
        settings: dict[str, Any] = {"appname": "mongosaver", **open_options()}
        for name in ("serverSelectionTimeoutMS", "connectTimeoutMS"):
            if self.options.timeout is not None or name.lower() not in uri.lower():
                settings[name] = int(1000 * (self.options.timeout or WAIT))
        if _is_unescaped(uri):
            # PyMongo may take a part of the password for the port, and look for that server.
            raise Stop(Code.REFUSED, _ESCAPING)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                client = MongoClient(uri, **settings)
            except (PyMongoError, ValueError) as error:
                if _is_unescaped(uri, str(error)):
                    raise Stop(Code.REFUSED, _ESCAPING) from None
                raise
        about = [each for each in told if issubclass(each.category, UserWarning)]
        for text in dict.fromkeys(str(each.message) for each in about):
            self.note(f"connection string: {' '.join(text.split())}")
        return self._closing.enter_context(client)

    @functools.cached_property
    def database(self) -> Database[dict[str, Any]]:
        """The database that the options name."""
        default = self.client.get_default_database(default=DB_NAME).name
        return self.client[self.options.db or default]

    @functools.cached_property
    def collection(self) -> Collection[dict[str, Any]]:
        """The checkpoints collection; its siblings are `<name>.writes` and `<name>.blobs`."""
        return self.database[self.options.collection]

    @functools.cached_property
    def saver(self) -> MongoSaver:
        """A saver that reads what is stored without importing or running anything of it."""
        return self.saver_with()

    def saver_with(self, **options: Any) -> MongoSaver:
        """A saver on the same collection, with other options."""
        options.setdefault("serde", plain.serializer())
        saver = MongoSaver(self.collection, auto_setup=False, **options)
        # Also what is called as a method is not sent under --dry-run.
        saver._driver = self.driver  # noqa: SLF001 - of one house
        return saver

    def context(self) -> Context:
        """What plans are given."""
        return self.context_of(self.saver)

    def context_of(self, saver: MongoSaver) -> Context:
        """The same for another saver."""
        return saver._context()  # noqa: SLF001 - of one house

    def check_schema(self) -> None:
        """Refuse what would write where migrations are pending: queries may have no index there.

        Raises:
            SchemaOutOfDate, SchemaTooNew: This version has another schema.
        """
        self.run(first_use(self.context(), runner(self.collection), auto=False))

    def exists(self, thread_id: str) -> bool:
        """Whether anything of a thread is stored."""
        where = {"thread_id": thread_id}
        bound = self.driver.bound
        return any(bound[name].find_one(where, {"_id": 1}) is not None for name in _STORED)

    def is_there(self) -> bool:
        """Whether there is a collection of checkpoints, of pending writes or of blobs."""
        names = [self.options.collection + name.value for name in _STORED]
        # Also for a user who may list no others than those.
        found = self.database.list_collection_names(
            filter={"name": {"$in": names}}, authorizedCollections=True
        )
        return bool(found)

    def again(self, *words: str, ids: Sequence[str] = ()) -> str:
        """A whole command to go on with, except the connection string.

        Args:
            words: The command and its own options.
            ids: Threads.
        """
        given = ["--db", self.options.db] if self.options.db else []
        if self.options.collection != COLLECTION_NAME:
            given += ["--collection", self.options.collection]
        dashes = ["--"] if any(each.startswith("-") for each in ids) else []
        return shlex.join(["mongosaver", *words, *given, *dashes, *ids])

    def run(self, plan: Plan[T]) -> T:
        """Run a plan; under `--dry-run` its reads only."""
        return self.driver.run(plan)

    @functools.cached_property
    def driver(self) -> Driver:
        """What runs plans."""
        tell = self._operation if self.options.debug else None
        if self.dry_run:
            return dry.DryRun(self.collection, self._write, tell)
        return dry.Telling(self.collection, tell)

    def _operation(self, text: str, seconds: float) -> None:
        self.error(f"{seconds * 1000:8.1f} ms  {text}")

    def _write(self, write: dry.Write) -> None:
        if self.json:
            self._writes.append(write)
        elif not self.quiet:
            self.out.print(safe(str(write)), soft_wrap=True)

    # --- output

    def console(self, file: Any) -> Console:
        """A console that takes texts literally: they come from a database."""
        looked_at = file.isatty()
        colourless = self.options.no_color or bool(os.environ.get("NO_COLOR"))
        return _Console(
            file=file,
            width=None if looked_at else _WIDE,
            color_system=None if colourless else "auto",
            markup=False,
            emoji=False,
            highlight=False,
        )

    @functools.cached_property
    def out(self) -> Console:
        """Standard output."""
        return self.console(sys.stdout)

    def emit(self, data: Any, human: Callable[[Console], object]) -> None:
        """Print a result: as JSON, or as `human` prints it."""
        if self.json:
            value = jsonable(data)
            if self.dry_run and isinstance(value, dict):
                commands = [jsonable(each.data) for each in self._writes]
                value = {**value, "dry_run": True, "commands": commands}
            unicode = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
            text = json.dumps(value, indent=2, ensure_ascii=not unicode) + "\n"
            # In pieces: with PYTHONUNBUFFERED a single write does not tell that nobody reads on.
            for at in range(0, len(text), _PIECE):
                sys.stdout.write(text[at : at + _PIECE])
        else:
            human(self.out)

    def note(self, text: str) -> None:
        """A line for people, on standard error."""
        if not self.quiet:
            self.error(text)

    def error(self, text: str) -> None:
        """A line on standard error, whatever the options."""
        name = "" if text.startswith((" ", "Traceback")) else "mongosaver: "
        lines = "\n".join(safe(line) for line in self.redact(text).split("\n"))
        self.errors.print(f"{name}{lines}", soft_wrap=True)

    def confirm(self, question: str) -> None:
        """Ask before something is destroyed.

        Raises:
            Stop: It was not confirmed, or there is nobody to ask.
        """
        if self.options.yes or self.dry_run:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Stop(
                Code.REFUSED,
                f"{question} There is no terminal to answer at: give --yes, or try it with"
                " --dry-run. Nothing was done.",
            )
        self.errors.print(f"{safe(question)} [y/N] ", end="")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise Stop(Code.REFUSED, "not confirmed; nothing was done")

    @contextlib.contextmanager
    def progress(self, text: str, total: float | None = None) -> Iterator[Bar]:
        """A progress bar on standard error, or lines now and then where that is no terminal."""
        if self.quiet:
            yield Bar()
        elif not self.errors.is_terminal:
            yield _Lines(self.note, text, total)
        else:
            columns = [
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                _Rate(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("left"),
            ]
            with Progress(*columns, console=self.errors) as progress:
                yield _Bar(progress, progress.add_task(safe(text), total=total))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to whoever called the command: Rich would end the process with code 1."""
        raise  # noqa: PLE0704 - Rich calls this while it handles the error


def observed(
    plan: Plan[T],
    before: Callable[[Op], object],
    after: Callable[[Op, Any], object] = lambda *_: None,
) -> Plan[T]:
    """A plan, with what is to be done before and after each of its operations.

    Args:
        plan: The plan.
        before: Is told each operation before it is carried out.
        after: Is told each one that succeeded, with its result, before the plan goes on.
    """
    try:
        op = next(plan)
        while True:
            before(op)
            try:
                result = yield op
            except Exception as error:  # noqa: BLE001 - the plan decides what becomes of it
                op = plan.throw(error)
            else:
                after(op, result)
                op = plan.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        plan.close()


class Bar:
    """Progress that nobody wants to see."""

    def update(
        self,
        completed: float | None = None,
        total: float | None = None,
        text: str | None = None,
    ) -> None:
        """Tell how far it has come.

        Args:
            completed: How much is done, in all.
            total: How much there is to do, where that has become known.
            text: What is being done now.
        """


class _Bar(Bar):
    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress, self._task = progress, task

    def update(
        self,
        completed: float | None = None,
        total: float | None = None,
        text: str | None = None,
    ) -> None:
        self._progress.update(
            self._task,
            completed=completed,
            total=total,
            description=None if text is None else safe(text),
        )


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")


class _Lines(Bar):
    """Lines in a log."""

    EVERY: float = 5.0

    def __init__(self, note: Callable[[str], None], text: str, total: float | None) -> None:
        self._note, self._text, self._total = note, text, total
        self._start = self._told = time.monotonic()

    def update(
        self,
        completed: float | None = None,
        total: float | None = None,
        text: str | None = None,
    ) -> None:
        self._total = self._total if total is None else total
        self._text = text or self._text
        now = time.monotonic()
        if completed is None or now - self._told < self.EVERY:
            return
        self._told = now
        rate = completed / max(now - self._start, 1e-9)
        line = f"{self._text}: {completed:,.0f}"
        if self._total is not None:
            line += f" of {self._total:,.0f}"
        line += f", {rate:,.0f}/s"
        if self._total is not None and rate > 0:
            left = max(self._total - completed, 0) / rate
            line += f", {brief(timedelta(seconds=round(left)))} left"
        self._note(line)


# --- plain values ------------------------------------------------------------------------------


def jsonable(value: Any) -> Any:
    """A value that JSON has: times as ISO 8601, bytes as their number, keys as text."""
    if isinstance(value, Enum):
        return jsonable(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else str(value)
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": len(bytes(value))}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(each) for each in value]
    return str(value)
