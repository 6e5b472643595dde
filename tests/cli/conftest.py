"""The command in this process, on a collection of its own.

`place` is a collection with the indexes that savers need; `mongosaver` runs the command on it, as
its entry point does, and returns the exit code and both outputs. `in_terminal` runs it as a process
at a terminal. Every run has an environment without options, except those that name the place.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

import mongosaver.cli
from mongosaver import MongoSaver
from tests.contract.samples import checkpoint, config, metadata
from tests.faces import STORED, SUFFIXES, Commands

if TYPE_CHECKING:
    from pymongo.collection import Collection
    from pymongo.database import Database

Document = dict[str, Any]

CTRL_C = "\x03"
COMMAND = [sys.executable, "-m", "mongosaver.cli"]


@dataclass
class Place:
    """A collection for one test.

    Attributes:
        uri: Where the server is.
        client: A client that is not the command's.
        database: The database.
        name: The name of the checkpoints collection.
        saver: A saver on it.
    """

    uri: str
    client: MongoClient[Document]
    database: Database[Document]
    name: str
    saver: MongoSaver = field(init=False)

    def __post_init__(self) -> None:
        self.saver = MongoSaver(self.collection)

    @property
    def collection(self) -> Collection[Document]:
        """The checkpoints."""
        return self.database[self.name]

    @property
    def environment(self) -> dict[str, str]:
        """What tells the command of this place."""
        return {
            "MONGOSAVER_URI": self.uri,
            "MONGOSAVER_DB": self.database.name,
            "MONGOSAVER_COLLECTION": self.name,
        }

    def counts(self, thread: str | None = None) -> tuple[int, ...]:
        """How many checkpoints, writes and blobs there are, of a thread or in all."""
        where = {} if thread is None else {"thread_id": thread}
        return tuple(self.database[self.name + s].count_documents(where) for s in STORED)

    def contents(self) -> list[list[Document]]:
        """All documents."""
        return [list(self.database[self.name + s].find(sort=[("_id", 1)])) for s in SUFFIXES]

    def thread(
        self,
        thread: str,
        count: int = 3,
        *,
        idle: timedelta | None = None,
        interrupted: bool = False,
        saver: Any = None,
    ) -> list[str]:
        """Put a line of checkpoints, each with a pending write; the ids, oldest first.

        Args:
            thread: The thread.
            count: How many checkpoints.
            idle: How long ago they were put.
            interrupted: Whether the last one waits for an answer.
            saver: By whom; the place's own by default.
        """
        by = saver or self.saver
        ids: list[str] = []
        values: Document = {}
        versions: Document = {}
        for step in range(count):
            for channel in ("log", "notes"):
                versions[channel] = by.get_next_version(versions.get(channel), None)
            values["log"] = [*values.get("log", []), f"entry {step} of {thread}"]
            # Too much to be kept in the checkpoint's document.
            values["notes"] = f"notes {step} of {thread} " * 2000
            made = checkpoint(values, versions)
            at = config(thread, "", ids[-1] if ids else None)
            put = by.put(at, made, metadata(step=step), dict(versions))
            by.put_writes(put, [("log", f"write {step}")], f"task-{step}")
            ids.append(made["id"])
        if interrupted:
            by.put_writes(config(thread, "", ids[-1]), [("__interrupt__", "well?")], "asks")
        if idle is not None:
            # As old as its documents say that it is.
            change = {"$set": {"created_at": datetime.now(timezone.utc) - idle}}
            for suffix in STORED:
                self.database[self.name + suffix].update_many({"thread_id": thread}, change)
        return ids


@dataclass(frozen=True)
class Done:
    """What a run of the command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, read as JSON."""
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture(scope="session")
def cli_database(mongo_uri: str) -> Iterator[Database[Document]]:
    """A database for all tests of the command."""
    with MongoClient[Document](mongo_uri) as client:
        database = client[f"cli_{uuid.uuid4().hex[:12]}"]
        yield database
        client.drop_database(database.name)


@pytest.fixture
def place(mongo_uri: str, cli_database: Database[Document]) -> Iterator[Place]:
    """A new collection with indexes."""
    name = f"cp_{uuid.uuid4().hex[:8]}"
    made = Place(mongo_uri, cli_database.client, cli_database, name)
    made.saver.setup()
    yield made
    for suffix in SUFFIXES:
        cli_database.drop_collection(name + suffix)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without options of the command, and without wishes about colours."""
    for name in list(os.environ):
        ours = name.startswith("MONGOSAVER_") and not name.startswith("MONGOSAVER_TEST_")
        if ours or name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LANGGRAPH_AES_KEY"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def run(bare: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command without a place: `run(*arguments, env=..., stdin=...)`."""

    def call(*arguments: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
        with bare.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            capsys.readouterr()
            code = mongosaver.cli.main(list(arguments))
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


@pytest.fixture(name="mongosaver")
def mongosaver_command(run: Run, place: Place) -> Run:
    """The command on the place."""

    def call(*arguments: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
        return run(*arguments, env={**place.environment, **(env or {})}, stdin=stdin)

    return call


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """What the command's own clients send."""
    from mongosaver.cli import session

    commands = Commands()

    def client(*arguments: Any, **options: Any) -> MongoClient[Document]:
        return MongoClient(*arguments, event_listeners=[commands], **options)

    monkeypatch.setattr(session, "MongoClient", client)
    return commands


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment for another one, without options of the command."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MONGOSAVER_") or name.startswith("MONGOSAVER_TEST_")
    }
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        kept.pop(name, None)
    return {**kept, **(more or {})}


@dataclass(frozen=True)
class AtTerminal:
    """What a run at a terminal came to: both outputs on one screen."""

    code: int
    screen: str


def in_terminal(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    typed: Mapping[str, str] | None = None,
    columns: int = 100,
    command: list[str] | None = None,
) -> AtTerminal:
    """Run the command as a process at a terminal.

    Args:
        arguments: Its arguments.
        env: Environment variables beside this process's.
        typed: What is typed once a text appears on the screen.
        columns: The terminal's width.
        command: What is run instead of the command.
    """
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [*(command or COMMAND), *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment({"TERM": "xterm-256color", **(env or {})}),
        start_new_session=True,
    )
    os.close(theirs)
    waiting = dict(typed or {})
    screen = ""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 0.1)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            read = os.read(ours, 65536)
        except OSError:  # Linux's way of saying that nobody has the other end any more
            break
        if not read:
            break
        screen += read.decode(errors="replace")
        for text in [text for text in waiting if text in screen]:
            answer = waiting.pop(text)
            if answer == CTRL_C:
                # The terminal is not the process's controlling one, so it makes no signal of it.
                process.send_signal(signal.SIGINT)
            else:
                os.write(ours, answer.encode())
    os.close(ours)
    return AtTerminal(process.wait(30), screen)
