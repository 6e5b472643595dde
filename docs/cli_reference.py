"""Makes `docs/reference/cli.md` from the command itself: `python docs/cli_reference.py`.

The help texts are what the command declares, at a fixed width; a test compares them with the file.
The sample output is what the readers print on a small database with made-up ids, on a throwaway
server. So nothing in the reference is written by hand but the words around it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import typer
from pymongo import MongoClient

from mongosaver import MongoSaver
from mongosaver.cli import main
from mongosaver.cli.app import app
from mongosaver.cli.help import render
from mongosaver.testing import mongo_server

PAGE = Path(__file__).parent / "reference" / "cli.md"
WIDTH = 80

INTRO = """\
<!-- Made by `python docs/cli_reference.py`. Edit that file, or the command itself. -->

# The command

`mongosaver` comes with the extra `cli`: `pip install 'mongosaver[cli]'`. How it is used is told in
[Operate from the shell](../how-to/operate.md); here is every command with its options and, for
those that read, what they print.

- Data goes to standard output; questions, progress and errors go to standard error.
- Every option can be given as the environment variable that its help names.
- `--json` prints the same data for programs: times as ISO 8601, binary values as their size.
- `--dry-run` reads and prints what would be written. No write is sent to the server.
- What destroys asks first; without a terminal it needs `--yes`.
- A password is never printed, also not in errors and with `--debug`.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | failed: the server, or what is stored in it, does not allow it |
| 2 | refused: the call was wrong or was not confirmed; nothing was done |
| 3 | something is pending or was found (`check`, `verify`) |
| 130 | interrupted by Ctrl-C or SIGTERM; the last line says how to go on |
| 141 | whoever read the output did not want more of it (`| head`) |
"""

SAMPLES: dict[str, list[str]] = {
    "status": ["status"],
    "check": ["check"],
    "indexes": ["indexes"],
    "migrate": ["migrate --dry-run"],
    "threads": ["threads", "threads --limit 1 --json"],
    "history": ["history order-4711"],
    "show": ["show order-4711"],
    "stats": ["stats"],
    "delete-thread": ["delete-thread order-4712 --dry-run"],
    "prune": ["prune order-4711 --keep-last 2 --dry-run"],
    "ttl show": ["ttl show"],
    "verify": ["verify"],
    "gc": ["gc --dry-run"],
    "shard": ["shard"],
}


# --- help --------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its name, the first one for the whole."""
    yield from _below(typer.main.get_command(app), "")


def _below(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, group
    for name, each in group.commands.items():
        full = f"{path} {name}".strip()
        if hasattr(each, "commands"):
            yield from _below(each, full)
        else:
            yield full, each


def section(name: str, command: Any) -> str:
    """A command's heading and help."""
    path = f"mongosaver {name}".strip()
    return f"## {path}\n\n```text\n{render(command, path, WIDTH)}```\n"


# --- samples -----------------------------------------------------------------------------------

START = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(days=2)


class Sample:
    """A thread of an application that takes orders."""

    def __init__(self, saver: MongoSaver, thread: str, number: int) -> None:
        self.saver, self.thread, self.number = saver, thread, number
        self.count = 0
        self.times: dict[str, datetime] = {}
        self.states: dict[str | None, tuple[dict[str, Any], dict[str, Any]]] = {None: ({}, {})}

    def put(self, parent: str | None, source: str, step: int, **values: Any) -> str:
        """A checkpoint on a parent; its id."""
        self.count += 1
        checkpoint_id = f"1f11644{self.number}-{self.count:04x}-6a00-bfff-5eed00000000"
        state, versions = (dict(each) for each in self.states[parent])
        new = {each: self.saver.get_next_version(versions.get(each), None) for each in values}
        state |= values
        versions |= new
        at = {"thread_id": self.thread, "checkpoint_ns": "", "checkpoint_id": parent}
        time = START + timedelta(hours=self.number, seconds=7 * self.count)
        self.times[checkpoint_id] = time
        self.saver.put(
            {"configurable": at},
            {
                "v": 4,
                "id": checkpoint_id,
                "ts": time.isoformat(),
                "channel_values": state,
                "channel_versions": versions,
                "versions_seen": {},
                "updated_channels": sorted(values),
            },
            {"source": source, "step": step, "parents": {}},
            new,
        )
        self.states[checkpoint_id] = state, versions
        return checkpoint_id

    def write(self, checkpoint_id: str, task: str, *writes: tuple[str, Any]) -> None:
        """What a task wrote."""
        at = {"thread_id": self.thread, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
        self.saver.put_writes({"configurable": at}, writes, task)


def fill(saver: MongoSaver, collection: Any) -> None:
    """Put the sample threads."""
    for number, thread in enumerate(("order-4711", "order-4712"), 1):
        sample = Sample(saver, thread, number)
        asked = [{"role": "user", "content": "Two of the green ones, please."}]
        first = sample.put(None, "input", -1, messages=asked)
        second = sample.put(first, "loop", 0, messages=asked, basket=[])
        sample.write(second, "choose", ("basket", [{"item": "green", "count": 2}]))
        basket = [{"item": "green", "count": 2}]
        third = sample.put(second, "loop", 1, basket=basket, note="a long note " * 3000)
        if number == 1:
            told = [*asked, {"role": "assistant", "content": "Ordered."}]
            sample.put(third, "loop", 2, messages=told)
            fork = sample.put(second, "fork", 1, basket=[{"item": "blue", "count": 1}])
            sample.put(fork, "loop", 2, messages=told)
        else:
            sample.write(third, "approve", ("__interrupt__", [{"value": "Order 2 green ones?"}]))
        for checkpoint_id, time in sample.times.items():
            where = {"thread_id": thread, "checkpoint_id": checkpoint_id}
            collection.update_one(where, {"$set": {"created_at": time}})


def printed(line: str, environment: dict[str, str]) -> str:
    """What a call prints, as at a prompt."""
    out, err = io.StringIO(), io.StringIO()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MONGOSAVER_")}
    with (
        mock.patch.dict(os.environ, {**kept, **environment}, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(shlex.split(line))
    text = f"$ mongosaver {line}\n{out.getvalue()}{err.getvalue()}"
    text = "\n".join(each.rstrip() for each in text.splitlines())
    return text if code == 0 else f"{text}\n$ echo $?\n{code}"


def samples() -> dict[str, str]:
    """The sample output of each command that has some."""
    with mongo_server("replica", source=None) as server, MongoClient(server.uri) as client:
        collection = client["app"]["checkpoints"]
        saver = MongoSaver(collection)
        saver.setup()
        fill(saver, collection)
        environment = {"MONGOSAVER_URI": server.uri, "MONGOSAVER_DB": "app"}
        there = [name for name, _ in commands()]
        return {
            name: "\n\n".join(steady(printed(line, environment), server.uri) for line in lines)
            for name, lines in SAMPLES.items()
            if name in there
        }


def steady(text: str, uri: str) -> str:
    """Without what differs from run to run."""
    address = uri.partition("://")[2].partition("/")[0]
    text = text.replace(address, "localhost:27017")
    return re.sub(r"\b[0-9a-f]{24}\b", "69a5...", text)


def page() -> str:
    """The whole page."""
    shown = samples()
    parts = [INTRO]
    for name, command in commands():
        parts.append(section(name, command))
        if name in shown:
            parts.append(f"```console\n{shown[name]}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
