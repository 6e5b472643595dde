"""Options, and the fixtures that give a test its face.

`face` is any face that was asked for, also the oracle; `mongo_face` only those on MongoDB, for
tests that look at what is stored or sent. Each has a new saver on an empty collection. Where a test
is marked so the collection is new as well; else it is emptied after each test, because making
indexes takes longer than most tests. The server is `mongo_uri` of mongosaver's own pytest plugin,
one for the session, whatever its topology.
"""

from __future__ import annotations

import gc
import os
import uuid
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from pymongo import MongoClient

from tests.faces import FACES, ON_MONGODB, Loop, Stage

if TYPE_CHECKING:
    from tests.faces import Face


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what narrows or varies the contract suite."""
    group = parser.getgroup("mongosaver contract")
    group.addoption(
        "--face",
        action="append",
        choices=list(FACES),
        help="run the contract tests on this face only; may be repeated",
    )
    group.addoption(
        "--read-mode",
        choices=["default", "finds"],
        default=os.environ.get("MONGOSAVER_TEST_READ_MODE", "default"),
        help="finds: savers read as on servers that lack a stage of the aggregate"
        " (environment: MONGOSAVER_TEST_READ_MODE)",
    )


def _asked(config: pytest.Config) -> list[str]:
    return config.getoption("--face") or list(ON_MONGODB)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test that takes a face on all those asked for."""
    asked = _asked(metafunc.config)
    if "face" in metafunc.fixturenames:
        metafunc.parametrize("face", asked, indirect=True)
    if "mongo_face" in metafunc.fixturenames:
        on_mongodb = [name for name in asked if name in ON_MONGODB]
        metafunc.parametrize("mongo_face", on_mongodb or ["memory"], indirect=True)


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marks, and a thorough profile of Hypothesis."""
    config.addinivalue_line("markers", "only_faces(*names): the test is about these faces only")
    config.addinivalue_line("markers", "new_collection: no index, and no collection, is there yet")
    settings.register_profile("long", max_examples=3_000)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out other faces of a marked test, and what needs a server if only the oracle runs."""
    oracle_only = _asked(config) == ["memory"]
    chosen = [
        item
        for item in items
        if _is_for(item) and (not oracle_only or "face" in getattr(item, "fixturenames", ()))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _is_for(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("only_faces")
    if mark is None:
        return True
    parameters = item.callspec.params  # type: ignore[attr-defined]
    return parameters.get("face", parameters.get("mongo_face")) in mark.args


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """What all tests share: clients, an event loop, a database that is dropped at the end."""
    oracle_only = _asked(request.config) == ["memory"]
    uri = "mongodb://127.0.0.1:1" if oracle_only else request.getfixturevalue("mongo_uri")
    plain: MongoClient[dict[str, Any]] = MongoClient(uri, connect=False)
    topology = "none"
    if not oracle_only:
        topology = "replica set" if "setName" in plain.admin.command("hello") else "standalone"
    shared = Stage(
        uri=uri,
        database=f"contract_{uuid.uuid4().hex[:12]}",
        loop=Loop(),
        plain=plain,
        topology=topology,
        by_finds=request.config.getoption("--read-mode") == "finds",
    )
    yield shared
    if oracle_only:
        shared.plain.close()
        shared.loop.close()
    else:
        shared.close()


def _face(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Face]:
    new = request.node.get_closest_marker("new_collection") is not None
    name = f"checkpoints_{uuid.uuid4().hex[:12] if new else request.param}"
    face = FACES[request.param](stage, name)
    yield face
    if new:
        face.drop()
    else:
        face.empty()


@pytest.fixture
def face(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Face]:
    """One face, with a new saver on an empty collection."""
    yield from _face(request, stage)


@pytest.fixture
def mongo_face(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Face]:
    """One face on MongoDB, with a new saver on an empty collection."""
    yield from _face(request, stage)


@pytest.fixture
def lost_client(mongo_face: Face) -> Iterator[Any]:
    """A client of the face's kind whose server is away, with a name and a password in its URI."""
    uri = "mongodb://ada:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=100"
    client = mongo_face.client(uri, connect=False)
    yield client
    mongo_face.close(client)
    del client
    # PyMongo leaves a socket open when it is closed while it connects. Better now than in a test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def thread() -> str:
    """A thread id that no other test has."""
    return f"thread {uuid.uuid4()}"
