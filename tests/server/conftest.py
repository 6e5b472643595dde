"""A server with fail points, the savers that they are for, and a client that they are not for.

Fail points are the whole server's, so these tests have a server of their own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pymongo import MongoClient

from mongosaver.testing import MongoServer, mongo_server
from tests.faces import FACES
from tests.server.faults import Client, Wire, nothing_is_open, staged

if TYPE_CHECKING:
    from tests.faces import Face, Stage

DRIVERS = ["sync", "async", "motor"]


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[MongoServer]:
    """A server with fail points, of the topology that is asked for."""
    topology = request.config.getoption("--mongo-topology")
    with mongo_server(topology, parameters={"enableTestCommands": 1}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: MongoServer) -> Iterator[Client]:
    """A client that no fail point is for."""
    with MongoClient(server.uri) as plain:
        yield plain


@pytest.fixture(scope="module")
def database() -> str:
    """The name of the database."""
    return f"interruptions_{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def stage(server: MongoServer, client: Client, database: str) -> Iterator[Stage]:
    """Victims whose drivers do not retry by themselves, so that each failure is the plan's."""
    with staged(server, client, database, retryWrites="false", retryReads="false") as shared:
        yield shared


@pytest.fixture(scope="module")
def retrying_stage(server: MongoServer, client: Client, database: str) -> Iterator[Stage]:
    """Victims with the drivers' defaults."""
    with staged(server, client, database) as shared:
        yield shared


@pytest.fixture(scope="module")
def wire(server: MongoServer, client: Client) -> Iterator[Wire]:
    """A wire to the server."""
    host, port = client.address or ("", 0)
    laid = Wire(host, port)
    yield laid
    laid.close()


@pytest.fixture(scope="module")
def wired_stage(wire: Wire, server: MongoServer, client: Client, database: str) -> Iterator[Stage]:
    """Victims at the far end of the wire."""
    uri = f"mongodb://127.0.0.1:{wire.port}/?directConnection=true"
    there = replace(server, uri=uri)
    with staged(there, client, database, retryWrites="false", retryReads="false") as shared:
        yield shared


@pytest.fixture(params=DRIVERS)
def victim(request: pytest.FixtureRequest, stage: Stage) -> Face:
    """A victim."""
    return FACES[request.param](stage, "checkpoints")


@pytest.fixture(params=DRIVERS)
def retrying(request: pytest.FixtureRequest, retrying_stage: Stage) -> Face:
    """A victim with its driver's defaults."""
    return FACES[request.param](retrying_stage, "checkpoints")


@pytest.fixture(params=DRIVERS)
def wired(request: pytest.FixtureRequest, wired_stage: Stage) -> Face:
    """A victim at the far end of the wire."""
    return FACES[request.param](wired_stage, "checkpoints")


@pytest.fixture
def leaves_nothing_open(client: Client) -> Iterator[None]:
    """Every test ends without an open transaction or cursor on the server."""
    yield
    nothing_is_open(client)
