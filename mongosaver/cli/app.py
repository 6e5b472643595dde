"""The Typer app: all commands, and what happens around them.

Each command module has `register(app)`; see `session` for what a command looks like.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

import mongosaver
from mongosaver.cli import health, local, look, redact, retain, schema
from mongosaver.cli.help import Group
from mongosaver.cli.plain import safe
from mongosaver.cli.session import EXIT_CODES, Code

app = typer.Typer(
    name="mongosaver",
    cls=Group,
    help=(
        "Look into, tidy and migrate the MongoDB collections of mongosaver's checkpointers."
        "\n\n"
        "Every option can be given as an environment variable, which the help of each command"
        " names. Data goes to standard output, everything else to standard error."
    ),
    epilog=EXIT_CODES,
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"mongosaver {mongosaver.__version__}\n")
        raise typer.Exit(Code.DONE)


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    pass


for _module in (schema, look, retain, health, local):
    _module.register(app)


def run(arguments: Sequence[str]) -> int:
    """Run the command; the exit code."""
    hide = redact.for_process(arguments, os.environ)
    _take_any_text()
    try:
        with _terminating():
            command = typer.main.get_command(app)
            code = command.main(list(arguments), prog_name="mongosaver", standalone_mode=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _end("interrupted", Code.INTERRUPTED)
    except (BrokenPipeError, SystemExit):
        # The parser ends the process by itself where nobody reads a help text, and only there.
        _let_go(sys.stdout)
        return Code.UNREAD
    except Exception as error:  # noqa: BLE001 - also what nobody expected is shown without secrets
        # The parser's complaints have no public class, see session.py.
        if not hasattr(error, "format_message"):
            sys.stderr.write(hide(traceback.format_exc()))
            return Code.FAILED
        context: Any = getattr(error, "ctx", None)
        path = context.command_path if context else "mongosaver"
        message = safe(hide(" ".join(error.format_message().split()))).rstrip(".")
        if not message.endswith("?"):
            message += "."
        return _end(
            f"{message}{hide(_dashed(arguments, error, path))} See {path} --help.", Code.REFUSED
        )
    return int(code or Code.DONE)


_IDS = frozenset({"thread", "threads", "source", "target"})
"""Arguments that are ids."""


def _dashed(arguments: Sequence[str], error: Any, path: str) -> str:
    """How to give an id that was taken for an option."""
    unknown = getattr(error, "option_name", None)
    takes_ids = any(each.name in _IDS for each in _parameters(error))
    if unknown is None or not takes_ids:
        return ""
    given = next((each for each in arguments if each.startswith(unknown)), unknown)
    if given.startswith("--") and getattr(error, "possibilities", None):
        return ""
    return f" For an id that begins with a dash: {path} -- {safe(shlex.quote(given))}."


def _parameters(error: Any) -> Sequence[Any]:
    context = getattr(error, "ctx", None)
    return context.command.params if context else ()


def _end(message: str, code: Code) -> int:
    sys.stderr.write(f"mongosaver: {message}\n")
    return code


def _let_go(stream: Any) -> None:
    """Write nowhere from now on: what is still in the buffer would fail again at the end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _take_any_text() -> None:
    """An output in another encoding shows what it lacks as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _terminating() -> Iterator[None]:
    """Whoever stops a job by SIGTERM gets the same clean end as by Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
