"""Least privilege: what an application and an operator may do at least, as the guide says it.

On a server that asks for credentials, with the roles of docs/how-to/deploy.md themselves.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from pymongo import MongoClient

from mongosaver import SchemaOutOfDate, SetupRefused
from mongosaver.cli import main
from mongosaver.migrations import MIGRATIONS, Progress, status
from mongosaver.schema import EXPIRY, Name
from mongosaver.testing import MongoServer, mongo_server
from tests.contract.samples import LARGE, Line, config
from tests.faces import FACES, Loop, Stage
from tests.server.conftest import DRIVERS
from tests.server.test_index_builds import migrated

if TYPE_CHECKING:
    from tests.faces import Face
    from tests.server.faults import Client

GUIDE = Path(__file__).parents[2] / "docs/how-to/deploy.md"

Privileges = list[dict[str, Any]]


def documented(role: str) -> Privileges:
    """Returns the privileges of a role as the guide has them, which is text of the shell."""
    [text] = re.findall(
        rf'role: "{role}",\n  privileges: (\[.*?\n  \]),', GUIDE.read_text(), re.DOTALL
    )
    return json.loads(re.sub(r"(\w+): ", r'"\1": ', re.sub(r" *//.*", "", text)))  # type: ignore[no-any-return]


APPLICATION, OPERATOR = documented("mongosaver_app"), documented("mongosaver_operator")
COMMAND = documented("mongosaver_command")

ACTIONS = [
    (number, action) for number, privilege in enumerate(OPERATOR) for action in privilege["actions"]
]
"""Each action that the operator's role has, by the number of its privilege."""


def without(privileges: Privileges, number: int, action: str) -> Privileges:
    """Returns privileges without one action."""
    return [
        {**each, "actions": [a for a in each["actions"] if (at, a) != (number, action)]}
        for at, each in enumerate(privileges)
    ]


@pytest.fixture(scope="module")
def strict(request: pytest.FixtureRequest) -> Iterator[MongoServer]:
    """A server on which clients log in."""
    topology = request.config.getoption("--mongo-topology")
    with mongo_server(topology, auth=True) as running:
        yield running


@pytest.fixture(scope="module")
def root(strict: MongoServer) -> Iterator[Client]:
    """A client that may do everything."""
    with MongoClient(strict.uri) as client:
        yield client


@pytest.fixture
def database(root: Client) -> Iterator[str]:
    """The database that the guide names, empty, without users and roles."""
    yield "app"
    root["app"].command("dropAllUsersFromDatabase")
    root["app"].command("dropAllRolesFromDatabase")
    root.drop_database("app")


@pytest.fixture(params=DRIVERS)
def login(
    request: pytest.FixtureRequest, strict: MongoServer, root: Client, database: str
) -> Iterator[Callable[..., Face]]:
    """Makes a user with given privileges, and a face whose saver logs in as that user."""
    loop = Loop()
    opened: list[Stage] = []

    def make(privileges: Privileges, **options: Any) -> Face:
        name = f"u{uuid.uuid4().hex[:8]}"
        granted = [
            {**each, "resource": {**each["resource"], "db": database}}
            for each in privileges
            if each["actions"]
        ]
        root[database].command("createRole", name, privileges=granted, roles=[])
        root[database].command("createUser", name, pwd="pwd", roles=[name])
        _, _, rest = strict.uri.rpartition("@")
        uri = re.sub(r"authSource=\w+", "authSource=" + quote(database), rest)
        if "authSource" not in uri:
            uri += ("&" if "?" in uri else "/?") + f"authSource={database}"
        stage = Stage(f"mongodb://{name}:pwd@{uri}", database, loop, root, strict.topology)
        opened.append(stage)
        return FACES[request.param](stage, "checkpoints", **options)

    yield make
    for stage in opened:
        for client, _ in stage.clients.values():
            closed = client.close()
            if closed is not None:
                loop.run(closed)
    loop.close()


def works(face: Face) -> None:
    """Uses every part of a saver that an application uses."""
    line = Line(face, "thread")
    at = line.put({"large": LARGE, "n": 0})
    face.put_writes(at, [("x", 1), ("__resume__", 1)], "task")
    line.put({"large": LARGE * 2, "n": 1})
    line.check()
    assert len(face.list(config("thread"))) == 2
    assert len(face.list(None)) == 2
    face.call("copy_thread", "thread", "copy")
    face.call("prune", ["copy"])
    face.call("delete_for_runs", ["run"])
    face.call("get_delta_channel_history", config=config("thread"), channels=["n"])
    face.call("apply_ttl")
    face.call("prune_idle", older_than=timedelta(days=1))
    face.delete_thread("thread")
    assert face.get_tuple(config("thread")) is None


@pytest.mark.parametrize("options", [{}, {"auto_setup": False}])
def test_the_applications_role_is_enough_once_an_operator_has_migrated(
    login: Callable[..., Face], options: dict[str, Any]
) -> None:
    """find, insert, update and remove, with or without `auto_setup`."""
    migrated(login(OPERATOR))
    works(login(APPLICATION, **options))


def test_the_applications_role_may_not_migrate(login: Callable[..., Face]) -> None:
    """Before an operator has migrated, the first write says who has to do what."""
    app = login(APPLICATION)
    with pytest.raises(SetupRefused, match=r"lacks a privilege .*`mongosaver migrate --db app"):
        Line(app, "thread").put({"n": 1})
    app = login(APPLICATION, auto_setup=False)
    with pytest.raises(SchemaOutOfDate, match="not set up"):
        Line(app, "thread").put({"n": 1})


def test_an_application_that_may_not_read_the_record_is_told(login: Callable[..., Face]) -> None:
    """Without `find` on the migrations nobody knows what there is, so nothing is written."""
    migrated(login(OPERATOR))
    blind = [p for p in APPLICATION if not p["resource"]["collection"].endswith(".migrations")]
    assert len(blind) == len(APPLICATION) - 1
    for options in ({}, {"auto_setup": False}):
        with pytest.raises(SetupRefused, match=r"find on 'checkpoints\.migrations'"):
            Line(login(blind, **options), "thread").put({"n": 1})


def everything(face: Face, root: Client) -> None:
    """Migrates in each of the ways in which an operator's rights are used."""
    root.drop_database("app")
    assert migrated(face) == MIGRATIONS
    database = root["app"]
    # An index that somebody has hidden, an expiry that somebody has changed.
    blobs = face.sibling(".blobs")
    blobs.drop_index(EXPIRY.name)
    blobs.create_index([("expires_at", 1)], expireAfterSeconds=60)
    for name in (Name.CHECKPOINTS, Name.WRITES):
        index = {"name": EXPIRY.name, "hidden": True}
        database.command("collMod", face.sibling(name.value).name, index=index)
    assert migrated(face) == ()
    assert blobs.index_information()["expires_at_1"]["expireAfterSeconds"] == 0
    found = face.saver._driver.run(status())  # type: ignore[attr-defined]
    found = face.run(found) if face.awaited else found
    assert found.pending == found.amiss == ()


def test_the_operators_role_is_enough(login: Callable[..., Face], root: Client) -> None:
    """It migrates from nothing, mends what was changed, and reads the status."""
    everything(login(OPERATOR), root)


@pytest.mark.parametrize(("number", "action"), ACTIONS)
def test_the_operators_role_is_the_least(
    login: Callable[..., Face], root: Client, number: int, action: str
) -> None:
    """Without any one of its actions something cannot be done, and the error says so."""
    face = login(without(OPERATOR, number, action))
    with pytest.raises(SetupRefused, match="lacks a privilege"):
        everything(face, root)


def test_progress_is_for_those_who_may_see_it(login: Callable[..., Face], root: Client) -> None:
    """Who may not see what the server does migrates all the same, and is told no numbers."""
    told: list[Progress] = []
    face = login(OPERATOR)
    assert migrated(face, tell=told.append) == MIGRATIONS
    assert told
    assert not any(each.total for each in told)


COMMANDS = [
    "status",
    "check",
    "indexes",
    "threads",
    "history thread",
    "show thread",
    "stats",
    "stats --exact",
    "ttl show",
    "ttl set 30d --yes",
    "ttl off --yes",
    "copy-thread thread copy",
    "prune copy --yes",
    "prune --idle 30d --yes",
    "verify",
    "gc --yes",
    "delete-thread copy --yes",
]


def test_the_commands_role_is_enough_for_all_but_migrating(
    login: Callable[..., Face], capfd: pytest.CaptureFixture[str]
) -> None:
    """With it each command of those that read, move or remove does what it should."""
    migrated(login(OPERATOR))
    line = Line(login(APPLICATION), "thread")
    for n in range(3):
        line.face.put_writes(line.put({"large": LARGE * n, "n": n}), [("x", n)], "task")
    where = ["--uri", login(COMMAND).stage.uri, "--db", "app", "--collection", "checkpoints"]
    for command in COMMANDS:
        code = main([*command.split(), *where])
        assert code == 0, (command, capfd.readouterr().err)
    assert [row.config["configurable"]["thread_id"] for row in line.face.list(None)] == [
        "thread"
    ] * 3
