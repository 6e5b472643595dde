"""What can happen to a saver on its way to the server, done to a real server.

Commands fail, connections break and replies are late by the server's own fail points; they reach
clients with the application name `victim` only. What fail points cannot do, a reply that is lost
after its command was carried out, is done by a `Wire` between client and server.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import bson
from pymongo import MongoClient, common

from tests.faces import Loop, Stage

if TYPE_CHECKING:
    from mongosaver.testing import MongoServer

VICTIM = "victim"
"""Application name of the clients that fail points are for."""

Client = MongoClient[dict[str, Any]]


@contextlib.contextmanager
def staged(server: MongoServer, client: Client, database: str, **options: str) -> Iterator[Stage]:
    """Gives what faces need for clients that fail points reach; `options` are of the URI.

    A client that lost a connection looks for the server again after half a second, for two reasons.
    There is nothing to be seen in that time, and so both are turned off.
    """
    stage = Stage(
        uri=with_options(server.uri, appName=VICTIM, serverMonitoringMode="poll", **options),
        database=database,
        loop=Loop(),
        plain=client,
        topology=server.topology,
    )
    with mock.patch.object(common, "MIN_HEARTBEAT_INTERVAL", 0.01):
        yield stage
        for opened, _ in stage.clients.values():
            closed = opened.close()
            if closed is not None:
                stage.loop.run(closed)
        stage.loop.close()


def with_options(uri: str, **options: str) -> str:
    """Returns a connection string with more options."""
    if "?" not in uri:
        uri += "/?" if uri.count("/") == 2 else "?"
    given = "&".join(f"{name}={value}" for name, value in options.items())
    return uri + ("" if uri.endswith("?") else "&") + given


@dataclass
class Hits:
    """How often a fail point was met; known when it is off again."""

    count: int = 0


@contextlib.contextmanager
def failing(
    client: Client, commands: Sequence[str], *, times: int | None = 1, **data: Any
) -> Iterator[Hits]:
    """Makes the victims' commands fail inside the block.

    Args:
        client: A client of the server.
        commands: Names of the commands.
        times: How often; None is always.
        data: What happens, in the words of the fail point `failCommand`.
    """
    mode: Any = "alwaysOn" if times is None else {"times": times}
    data = {"failCommands": list(commands), "appName": VICTIM, **data}
    hits = Hits()
    first = client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
    try:
        yield hits
    finally:
        last = client.admin.command("configureFailPoint", "failCommand", mode="off")
        hits.count = last["count"] - first["count"]


def nothing_is_open(client: Client, seconds: float = 10) -> None:
    """Asserts that neither a transaction nor a cursor stays open on the server."""

    def open_things() -> dict[str, int]:
        status = client.admin.command("serverStatus")
        return {
            "transactions": status.get("transactions", {}).get("currentOpen", 0),
            "cursors": status["metrics"]["cursor"]["open"]["total"],
            "pinned": status["metrics"]["cursor"]["open"]["pinned"],
        }

    wait_for(lambda: not any(open_things().values()), seconds, open_things)


def wait_for(
    holds: Callable[[], bool], seconds: float = 10, describe: Callable[[], object] = str
) -> None:
    """Waits until something holds, and fails with a description when it does not."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, describe()
        time.sleep(0.02)


class Wire:
    """A wire between client and server that is cut at one command.

    Attributes:
        seen: Names and collections of the commands that were sent through it, without those of
            the client's own housekeeping.
        cuts: How often it was cut.
    """

    _OWN = frozenset({"hello", "ismaster", "isMaster", "ping", "endSessions", "buildInfo"})

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.seen: list[tuple[str, str]] = []
        self.cuts = 0
        self._at: tuple[int | str, str] | None = None
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, at: int | str, when: str) -> None:
        """Cuts once, at a command.

        Args:
            at: Its number, counted from this call on, or its name.
            when: `before` or `after` the server carries it out, or `for good`: nobody gets through
                from then on.
        """
        with self._lock:
            self.seen.clear()
            self._at = at, when

    def close(self) -> None:
        """Closes every connection, and takes no more."""
        _close(self.listener)
        with self._lock:
            for each in self._sockets:
                _close(each)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.target)
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            swallow = threading.Event()
            with self._lock:
                self._sockets |= {near, far}
            for work in (self._up, self._down):
                threading.Thread(target=work, args=(near, far, swallow), daemon=True).start()

    def _up(self, near: socket.socket, far: socket.socket, swallow: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while message := _message(near):
                when = self._decide(message)
                if when == "for good":
                    self.close()
                if when in ("before", "for good"):
                    break
                if when == "after":
                    swallow.set()
                far.sendall(message)
        if not swallow.is_set():
            _close(near)
            _close(far)

    def _down(self, near: socket.socket, far: socket.socket, swallow: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while message := _message(far):
                if swallow.is_set():
                    break
                near.sendall(message)
        _close(near)
        _close(far)

    def _decide(self, message: bytes) -> str:
        named = _command(message)
        if named is None or named[0] in self._OWN:
            return ""
        with self._lock:
            self.seen.append(named)
            if self._at is None or self._at[0] not in (len(self.seen) - 1, named[0]):
                return ""
            when, self._at = self._at[1], None
            self.cuts += 1
            return when


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


def _message(source: socket.socket) -> bytes:
    """The next message of MongoDB's wire protocol; empty at the end."""
    head = _exactly(source, 4)
    return head and head + _exactly(source, struct.unpack("<i", head)[0] - 4)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = source.recv(size - len(data))
        if not chunk:
            return b""
        data += chunk
    return bytes(data)


def _command(message: bytes) -> tuple[str, str] | None:
    """Name and collection of the command in an OP_MSG whose body comes first."""
    opcode, kind = struct.unpack("<i", message[12:16])[0], message[20]
    if opcode != 2013:
        return None
    assert kind == 0
    size = struct.unpack("<i", message[21:25])[0]
    body = bson.decode(message[21 : 21 + size])
    name, target = next(iter(body.items()))
    return name, target if isinstance(target, str) else ""
