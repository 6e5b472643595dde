"""`local`: a MongoDB on this machine for development, for a while or for longer.

It is the throwaway server of `mongosaver.testing`. With a directory it is no throwaway: the data
stay there, and the server comes back at the port that it had.
"""

from __future__ import annotations

import contextlib
import threading
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from mongosaver.cli.session import Code, Session, Stop, command, option
from mongosaver.testing import NoServerError, mongo_server

_PORT = "mongosaver-port"
"""File in the directory that keeps the port."""


class Topology(str, Enum):
    """What is started."""

    replica = "replica"
    standalone = "standalone"


class Source(str, Enum):
    """Where the server comes from."""

    docker = "docker"
    path = "path"
    wheel = "wheel"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "local", connects=False)(local)


def local(
    session: Session,
    data_dir: Annotated[
        Path | None,
        option("--data-dir", help="Keep the data in this directory; by default nothing is kept."),
    ] = None,
    port: Annotated[
        int | None,
        option(
            "--port",
            min=1,
            max=65_535,
            help="Where to listen; by default a free port, or the one that the directory had.",
        ),
    ] = None,
    topology: Annotated[
        Topology,
        option(
            "--topology",
            help="A replica set of one member, which has transactions, or a standalone server.",
        ),
    ] = Topology.replica,
    source: Annotated[
        Source | None,
        option("--source", help="Where the server comes from; by default the first that works."),
    ] = None,
) -> None:
    """Run a local MongoDB for development until Ctrl-C; its URI is printed.

    It listens on this machine only and has no users. It comes from Docker (the extra `docker`), a
    mongod on the PATH, or the extra `local`. With --data-dir it is one of the latter two.
    """
    kept = None if data_dir is None else data_dir / _PORT
    known = None if kept is None or port else _read(kept)
    with contextlib.ExitStack() as running:
        try:
            server = running.enter_context(
                mongo_server(
                    topology.value,
                    source=None if source is None else source.value,
                    # Even 0, any port, says that a server which tests are given will not do.
                    port=port or known or 0,
                    data_dir=data_dir,
                )
            )
        except NoServerError as error:
            raise Stop(Code.FAILED, str(error)) from None
        address = server.uri.partition("://")[2].partition("/")[0]
        if kept is not None:
            kept.write_text(f"{address.rpartition(':')[2]}\n")
        data = {"uri": server.uri, "version": server.version, "topology": server.topology}
        session.emit(data, lambda console: console.print(server.uri, soft_wrap=True))
        session.out.file.flush()
        for note in server.notes:
            session.note(note)
        where = "nothing is kept" if data_dir is None else f"the data stay in {data_dir}"
        session.note(f"{server}; Ctrl-C ends it, {where}")
        _wait()


def _wait() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


def _read(kept: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(kept.read_text())
    return None
