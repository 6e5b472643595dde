"""The servers that the benchmark needs, started for the run and gone after it.

MongoDB comes from `mongosaver.testing`, PostgreSQL from the machine's own binaries (Debian's
package, installed when that is possible). Both are real, on the real disk, and durable: journal
and fsync on, as they come. A server that cannot be had is no error: the savers that need it are
absent, and the report names them with the reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymongo import MongoClient

if TYPE_CHECKING:
    from collections.abc import Iterator

# Loaded here: little is safe between fork and exec.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PREFIX = "mongosaver-bench-pg-"
_HANDED_OVER = "MONGOSAVER_BENCH_SERVERS"


@dataclass
class Servers:
    """Where the servers are, what they are, and why one is missing."""

    mongodb: str | None = None
    postgres: str | None = None
    about: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The environment in which a child process finds the same servers."""
        return {**os.environ, _HANDED_OVER: json.dumps(asdict(self))}

    @classmethod
    def handed_over(cls) -> Servers:
        """The servers of the parent process."""
        return cls(**json.loads(os.environ[_HANDED_OVER]))


@contextlib.contextmanager
def start_servers(*, mongodb: bool, postgres: bool, install: bool) -> Iterator[Servers]:
    """Starts what is wanted; what cannot be started is listed in `missing`.

    Args:
        mongodb: Whether a MongoDB is wanted.
        postgres: Whether a PostgreSQL is wanted.
        install: Whether Debian's PostgreSQL may be installed where it is missing.
    """
    servers = Servers()
    with contextlib.ExitStack() as stack:
        if mongodb:
            try:
                _start_mongodb(servers, stack)
            except Exception as error:  # noqa: BLE001 - whatever it is, the report names it
                servers.missing["MongoDB"] = _one_line(error)
        if postgres:
            try:
                servers.postgres = stack.enter_context(_postgres(servers, install=install))
            except Exception as error:  # noqa: BLE001 - whatever it is, the report names it
                servers.missing["PostgreSQL"] = _one_line(error)
        yield servers


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


# ------------------------------------------------------------------------------------- MongoDB


def _mongo_server(stack: contextlib.ExitStack) -> Any:
    """A server of the environment, else one beside PostgreSQL on this machine, else in Docker."""
    testing = import_module("mongosaver.testing")
    if not {"MONGOSAVER_TEST_URI", "MONGOSAVER_TEST_SOURCE"} & os.environ.keys():
        for source in ("path", "wheel"):
            with contextlib.suppress(testing.NoServerError):
                return stack.enter_context(testing.mongo_server("replica", source=source))
    return stack.enter_context(testing.mongo_server("replica"))


def _start_mongodb(servers: Servers, stack: contextlib.ExitStack) -> None:
    server = _mongo_server(stack)
    servers.mongodb = server.uri
    with MongoClient(server.uri) as client:
        engine = client.admin.command("serverStatus").get("storageEngine", {}).get("name")
        servers.about["MongoDB"] = (
            f"{client.server_info()['version']}, {server.topology}, {engine}, journaled, "
            f"source: {server.source}"
        )


# ---------------------------------------------------------------------------------- PostgreSQL


@contextlib.contextmanager
def _postgres(servers: Servers, *, install: bool) -> Iterator[str]:
    """A PostgreSQL with its default settings: fsync and synchronous commits are on."""
    import_module("psycopg")  # no server without a driver to reach it
    binaries = _postgres_binaries() or (_install_postgres() if install else None)
    if binaries is None:
        raise RuntimeError("no PostgreSQL binaries were found; apt-get install postgresql")
    user = _unprivileged_user()
    _remove_left_behind()
    home = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        if user is not None:
            os.chown(home, user.pw_uid, user.pw_gid)
        data = home / "data"
        initdb = [binaries / "initdb", "-D", data, "-U", "bench", "-A", "trust"]
        _as(user, [*initdb, "-E", "UTF8", "--locale=C"], home).wait_for_success()
        port = _free_port()
        command = [binaries / "postgres", "-D", data, "-p", port]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={home}"]
        process = _as(user, command, home)
        try:
            dsn = f"host=127.0.0.1 port={port} user=bench"
            version = _wait_for_postgres(f"{dsn} dbname=postgres", process)
            pq = import_module("psycopg").pq
            servers.about["PostgreSQL"] = (
                f"{version}, default settings (fsync on), psycopg's {pq.__impl__} implementation"
            )
            yield dsn
        finally:
            process.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _remove_left_behind() -> None:
    """Removes the data of runs that were killed; their servers ended with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        try:
            os.kill(int(folder.name.removeprefix(_PREFIX).split("-")[0]), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except (OSError, ValueError):
            continue


def _postgres_binaries() -> Path | None:
    packaged = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda path: [int(part) for part in path.parent.name.split(".") if part.isdigit()],
    )
    on_path = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    for folder in [*on_path, *reversed(packaged)]:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


def _install_postgres() -> Path | None:
    apt = shutil.which("apt-get")
    if os.geteuid() != 0 or apt is None:
        return None
    print("PostgreSQL is missing: installing Debian's package", file=sys.stderr)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", "postgresql"]):
        subprocess.run([apt, "--quiet", *arguments], env=quiet, check=True, capture_output=True)
    return _postgres_binaries()


def _unprivileged_user() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("root needs a user `postgres` or `nobody` to run PostgreSQL as")


class _Process:
    """A child that ends with this process, with its output kept for the error message."""

    def __init__(self, command: list[str], user: pwd.struct_passwd | None, home: Path) -> None:
        identity = {}
        if user is not None:
            identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            command,
            cwd=home,
            env={"PATH": os.environ.get("PATH", ""), "HOME": str(home), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            **identity,
        )

    def output(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-500:]

    def wait_for_success(self) -> None:
        if self.process.wait(timeout=120):
            raise RuntimeError(f"{self.process.args[0]} failed: {self.output()}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def _as(user: pwd.struct_passwd | None, command: list[object], home: Path) -> _Process:
    return _Process([str(part) for part in command], user, home)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for_postgres(dsn: str, process: _Process) -> str:
    psycopg = import_module("psycopg")
    deadline = time.monotonic() + 60
    while True:
        try:
            with psycopg.connect(dsn, connect_timeout=5) as connection:
                row = connection.execute("SHOW server_version").fetchone()
                return str(row[0])
        except psycopg.OperationalError:
            if process.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {process.output()}") from None
            time.sleep(0.1)
