"""Interruptions: whatever breaks off, the latest checkpoint is the previous or the new one, whole.

Every command of every operation is interrupted: refused before it is carried out, its connection
closed before and after, its task cancelled while it waits, its process killed. What the commands
are is not written down here: each operation is first carried out undisturbed to see.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import PyMongoError

from mongosaver.testing import MongoServer
from tests.contract.samples import config
from tests.faces import FACES, Face, Stage, SyncFace
from tests.server.conftest import DRIVERS
from tests.server.faults import Client, Wire, failing, nothing_is_open, wait_for
from tests.server.scenes import (
    SCENES,
    DeleteThread,
    PutAgain,
    PutWrites,
    Scene,
    interrupted,
    undisturbed,
)

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("leaves_nothing_open")

every_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)


# --- commands that fail


def _interrupt_each(
    scene: type[Scene], face: Face, **how: Any
) -> dict[tuple[str, str], BaseException | None]:
    outcomes = {}
    targets = dict.fromkeys((sent.name, sent.collection) for sent in undisturbed(scene, face))
    for name, collection in targets:
        played = scene(face.another())
        played.prepare()
        where = {"namespace": f"{face.stage.database}.{collection}"} if collection else {}
        with failing(face.stage.plain, [name], **where, **how) as hits:
            outcomes[name, collection] = interrupted(played)
        assert hits.count == 1, (name, collection)
        played.finish()
    return outcomes


@every_scene
def test_a_command_that_is_refused_leaves_old_or_new(scene: type[Scene], victim: Face) -> None:
    """An error of the server before each command surfaces, and repeating the operation succeeds."""
    outcomes = _interrupt_each(scene, victim, errorCode=8000)
    # Aborting is only a courtesy: the server ends a transaction in the end by itself.
    assert outcomes.pop(("abortTransaction", ""), None) is None
    assert {getattr(error, "code", error) for error in outcomes.values()} == {8000}


@every_scene
def test_a_connection_that_closes_before_a_command_leaves_old_or_new(
    scene: type[Scene], victim: Face
) -> None:
    """Without the driver's retries a lost connection surfaces or is mended, and all is whole."""
    _interrupt_each(scene, victim, closeConnection=True)


@every_scene
def test_drivers_retries_mend_a_lost_connection(scene: type[Scene], retrying: Face) -> None:
    """With the driver's defaults one lost connection is hardly noticed, and never does harm.

    A put of several documents and a delete of many are no retryable writes, so they may fail.
    """
    _interrupt_each(scene, retrying, closeConnection=True)


@every_scene
def test_a_connection_that_closes_after_a_command_leaves_old_or_new(
    scene: type[Scene], wired: Face, wire: Wire
) -> None:
    """Each command is carried out, and its reply is lost with the connection."""
    undisturbed(scene, wired)
    for at in itertools.count():
        played = scene(wired.another())
        played.prepare()
        wire.cut(at, "after")
        before = wire.cuts
        outcome = interrupted(played)
        if wire.cuts == before:
            wire.cut(-1, "")
            assert outcome is None
            assert at > 0
            break
        played.finish()


def test_a_write_concern_that_is_not_met_surfaces(victim: Face) -> None:
    """A write that was carried out and not acknowledged as asked is an error, not a duplicate."""
    scene = Scene(victim.another())
    concern = {"code": 64, "errmsg": "waiting for replication timed out"}
    where = f"{victim.stage.database}.checkpoints"
    failed = "commitTransaction" if victim.stage.topology == "replica set" else "insert"
    scope = {} if failed == "commitTransaction" else {"namespace": where}
    with failing(
        victim.stage.plain, [failed], times=None, writeConcernError=concern, **scope
    ) as hits:
        outcome = interrupted(scene)
    assert hits.count >= 1
    assert outcome is None or isinstance(outcome, PyMongoError)
    scene.finish()


# --- cancelled tasks


class Begun(threading.Event):
    """Is set when a command is sent."""

    def __init__(self, face: Face, name: str, collection: str) -> None:
        super().__init__()
        self.face, self.name, self.collection = face, name, collection
        self.start = len(face.commands.sent)

    def wait_for_it(self) -> None:
        """Waits until the command is sent."""
        wait_for(
            lambda: any(
                (sent.name, sent.collection) == (self.name, self.collection)
                for sent in self.face.commands.sent[self.start :]
            )
        )


@pytest.mark.parametrize("driver", ["async", "motor"])
@pytest.mark.parametrize("scene", [Scene, PutAgain, PutWrites, DeleteThread])
def test_a_cancelled_task_leaves_old_or_new(
    scene: type[Scene], driver: str, retrying_stage: Stage
) -> None:
    """A task that is cancelled while a command waits ends soon; retrying it succeeds at once."""
    face = FACES[driver](retrying_stage, "checkpoints")
    targets = dict.fromkeys((sent.name, sent.collection) for sent in undisturbed(scene, face))
    for name, collection in targets:
        played = scene(face.another())
        played.prepare()
        where = {"namespace": f"{face.stage.database}.{collection}"} if collection else {}
        begun = Begun(face, name, collection)
        with (
            ThreadPoolExecutor(1) as pool,
            failing(face.stage.plain, [name], blockConnection=True, blockTimeMS=250, **where),
        ):
            tasks: list[asyncio.Task[Any]] = []

            def run(coroutine: Any, tasks: list[Any] = tasks) -> Any:
                async def noted() -> Any:
                    tasks.append(asyncio.current_task())
                    return await coroutine

                return face.stage.loop.run(noted())

            played.face.run = run  # type: ignore[method-assign]
            running = pool.submit(played.act)
            begun.wait_for_it()
            face.stage.loop.loop.call_soon_threadsafe(tasks[0].cancel)
            started = time.monotonic()
            with pytest.raises(BaseException) as ended:  # noqa: PT011 - two classes, one name
                running.result(20)
            assert type(ended.value).__name__ == "CancelledError"
            assert time.monotonic() - started < 5
            del played.face.run
        played.check(done=False)
        time.sleep(0.3)  # what was on its way may still be carried out
        played.check(done=False)
        started = time.monotonic()
        played.finish()
        assert time.monotonic() - started < 5, (name, collection)


# --- killed processes

_WRITER = """
import asyncio, itertools, sys
from tests.contract.samples import checkpoint, config, metadata
from mongosaver import AsyncMongoSaver, MongoSaver

kind, uri, database, thread = sys.argv[1:]

def steps():
    chat = []
    for number in itertools.count(1):
        chat = [*chat, f"message {number} " * 30]
        values = {"chat": chat, "number": number, "file": b"%d " % number * 9_000}
        versions = {name: f"{number:032}.0" for name in values}
        made = checkpoint(values, versions, checkpoint_id=f"{number:06}")
        at = config(thread, "", f"{number - 1:06}" if number > 1 else None)
        yield number, (at, made, metadata(step=number), versions)

def told(number):
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()

async def amain(client):
    saver = AsyncMongoSaver(client[database]["checkpoints"])
    for number, put in steps():
        await saver.aput(*put)
        told(number)

if kind == "sync":
    from pymongo import MongoClient
    saver = MongoSaver(MongoClient(uri)[database]["checkpoints"])
    for number, put in steps():
        saver.put(*put)
        told(number)
elif kind == "async":
    from pymongo import AsyncMongoClient
    asyncio.run(amain(AsyncMongoClient(uri)))
else:
    from motor.motor_asyncio import AsyncIOMotorClient
    asyncio.run(amain(AsyncIOMotorClient(uri)))
"""


@pytest.fixture
def short_transactions(client: Client) -> Iterator[None]:
    """A killed process's transaction stays open for a second, instead of MongoDB's minute."""
    parameter = "transactionLifetimeLimitSeconds"
    before = client.admin.command("getParameter", 1, **{parameter: 1})[parameter]
    client.admin.command("setParameter", 1, **{parameter: 1})
    yield
    nothing_is_open(client)
    client.admin.command("setParameter", 1, **{parameter: before})


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_killed_process_leaves_whole_checkpoints(
    driver: str, server: MongoServer, database: str, stage: Stage, short_transactions: None
) -> None:
    """A process killed at any moment of its puts leaves what it reported, and nothing in halves.

    Another process may then write the very same, as soon as the server gives up the transaction
    that was open when the first one was killed.
    """
    chance = random.Random(driver)
    arguments = [sys.executable, "-c", _WRITER, driver, server.uri, database]
    for _ in range(3):
        thread = f"killed {uuid.uuid4()}"
        for kill_after in (chance.randint(2, 12), 14):
            with subprocess.Popen([*arguments, thread], stdout=subprocess.PIPE, cwd=ROOT) as writer:
                assert writer.stdout is not None
                for _line in range(kill_after):
                    assert writer.stdout.readline()
                time.sleep(chance.random() * 0.01)
                os.kill(writer.pid, signal.SIGKILL)
                reported = kill_after + len(writer.stdout.read().splitlines())
            assert _check_killed(stage, thread) >= reported


def _check_killed(stage: Stage, thread: str) -> int:
    scene = Scene.__new__(Scene)
    scene.face = SyncFace(stage, "checkpoints")
    rows = scene.past().list(config(thread))
    numbers = [row.checkpoint["channel_values"]["number"] for row in rows]
    assert numbers == list(range(len(rows), 0, -1))
    for row in rows:
        values = row.checkpoint["channel_values"]
        assert values["chat"] == [f"message {n} " * 30 for n in range(1, values["number"] + 1)]
        assert values["file"] == b"%d " % values["number"] * 9_000
    return len(rows)
