"""`mongosaver local`: a server for development, with data that go or stay."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from mongosaver.cli import local
from mongosaver.cli.session import Code
from mongosaver.testing import NoServerError, mongo_server
from tests.cli.conftest import COMMAND, Run, environment


class Local:
    """A running `mongosaver local`."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "local", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        assert self.process.stdout is not None
        ready = select.select([self.process.stdout], [], [], 60)[0]
        assert ready, "no line within a minute"
        self.line = self.process.stdout.readline().strip()

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Stops it; the exit code and what it said on standard error."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture
def any_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container keeps no data in a directory, so that Docker alone will not do."""
    monkeypatch.delenv("MONGOSAVER_TEST_SOURCE", raising=False)


@contextmanager
def running(*arguments: str) -> Iterator[Local]:
    """Runs `mongosaver local`, and stops it if the test has not."""
    server = Local(*arguments)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end()
        for stream in (server.process.stdout, server.process.stderr):
            assert stream is not None
            stream.close()


def saved(uri: str) -> int:
    """Saves a document, and returns how many there are now."""
    with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=10_000) as client:
        client["app"]["things"].insert_one({})
        return client["app"]["things"].count_documents({})


def is_away(uri: str) -> bool:
    """Whether nothing listens any more."""
    import socket

    host, _, port = uri.partition("://")[2].partition("/")[0].rpartition(":")
    with socket.socket() as tried:
        tried.settimeout(2)
        return tried.connect_ex((host, int(port))) != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_throwaway_server(number: int) -> None:
    """The URI is the one line on standard output; Ctrl-C or SIGTERM ends the server."""
    with running() as server:
        assert saved(server.line) == 1
        code, said = server.end(number)
        assert code == Code.DONE
        assert "nothing is kept" in said
        assert is_away(server.line)


@pytest.mark.usefixtures("any_source")
def test_a_server_that_keeps_its_data(tmp_path: Path) -> None:
    """With a directory the data and the port stay, also as another topology or at another port."""
    kept = tmp_path / "some" / "data"
    with running("--data-dir", str(kept), "--json") as first:
        # The rest of the object follows the brace.
        assert first.line == "{"
        assert first.process.stdout is not None
        text = "{" + "".join(first.process.stdout.readline() for _ in range(4))
        told = json.loads(text)
        assert told["topology"] == "replica set"
        assert saved(told["uri"]) == 1
        code, said = first.end()
        assert (code, str(kept) in said) == (0, True)
    with running("--data-dir", str(kept)) as second:
        assert second.line == told["uri"]
        assert saved(second.line) == 2
    with running("--data-dir", str(kept), "--port", str(free_port())) as third:
        assert third.line != second.line
        assert saved(third.line) == 3
    with running("--data-dir", str(kept), "--topology", "standalone") as fourth:
        assert fourth.line.startswith(third.line.partition("?")[0])
        assert saved(fourth.line) == 4


def free_port() -> int:
    """Returns a port that nobody listens at."""
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


@pytest.mark.usefixtures("any_source")
def test_a_directory_or_a_port_in_use(tmp_path: Path, run: Run) -> None:
    """A second server in the same place is a failure that says which place."""
    with running("--data-dir", str(tmp_path)) as first:
        port = first.line.partition("/?")[0].rpartition(":")[2]
        done = run("local", "--data-dir", str(tmp_path), "--port", str(free_port()))
        assert (done.code, done.out) == (Code.FAILED, "")
        assert f"cannot use {tmp_path}: another mongod does" in done.err
        done = run("local", "--port", port)
        assert (done.code, done.err) == (Code.FAILED, f"mongosaver: port {port} is taken\n")


@pytest.mark.usefixtures("any_source")
def test_a_server_that_was_killed_loses_nothing(tmp_path: Path) -> None:
    """Also where the command was killed outright, the data are there the next time."""
    with running("--data-dir", str(tmp_path)) as first:
        assert saved(first.line) == 1
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(30)
        deadline = time.monotonic() + 60
        while not is_away(first.line) and time.monotonic() < deadline:
            time.sleep(0.1)
    with running("--data-dir", str(tmp_path)) as second:
        assert saved(second.line) == 2


def test_what_the_server_says_when_it_starts_is_passed_on(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where no server can be had, the reason of each source is named and nothing is printed."""
    monkeypatch.setenv("MONGOSAVER_TEST_SOURCE", "docker")
    done = run("local", "--data-dir", str(tmp_path))
    assert (done.code, done.out) == (Code.FAILED, "")
    assert "a container keeps no data in a directory" in done.err


def test_a_server_for_tests_is_not_offered(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server that tests are given is not what `local` hands out."""
    monkeypatch.setenv("MONGOSAVER_TEST_URI", "mongodb://127.0.0.1:1")
    monkeypatch.setattr(local, "_wait", lambda: None)
    done = run("local", "--topology", "standalone")
    assert "127.0.0.1:1/" not in done.out
    # A machine may have no other.
    assert done.code == Code.DONE or "no MongoDB to be had" in done.err


@pytest.mark.parametrize("content", ["", "no number", None])
def test_a_directory_without_a_port(tmp_path: Path, content: str | None) -> None:
    """A directory whose note of the port is lost gets a free port."""
    note = tmp_path / "mongosaver-port"
    if content is not None:
        note.write_text(content)
    assert local._read(note) is None
    note.write_text("4711\n")
    assert local._read(note) == 4711


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"nodes": 2, "port": 4711}, "for a single node"),
        ({"nodes": 2, "data_dir": "x"}, "for a single node"),
        ({"data_dir": "x", "auth": True}, "keep nothing"),
    ],
)
def test_what_cannot_be_kept(arguments: dict[str, Any], says: str) -> None:
    """A port and a directory are for one server without users."""
    with pytest.raises(ValueError, match=says), mongo_server(**arguments):
        raise AssertionError


def test_a_port_that_is_taken_is_not_tried_elsewhere() -> None:
    """A port that was asked for is used or refused."""
    with mongo_server("standalone", port=0) as server:
        port = int(server.uri.rpartition(":")[2].rstrip("/"))
        with pytest.raises(NoServerError, match=f"port {port} is taken"), mongo_server(port=port):
            raise AssertionError
