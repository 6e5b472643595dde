"""The transaction is an optimisation of the sequence: when it does not work out, the sequence does.

What a server may answer inside a transaction is done to real ones by fail points, with the labels
that servers give; every test ends with a check that nothing stays open.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pymongo import WriteConcern
from pymongo.errors import ConnectionFailure, OperationFailure

from mongosaver.testing import MongoServer, mongo_server
from tests.faces import FACES, Face, Sent
from tests.server.faults import Client, Wire, failing, staged, wait_for
from tests.server.scenes import Scene, chat, interrupted

pytestmark = pytest.mark.usefixtures("leaves_nothing_open")


@pytest.fixture(scope="module")
def server() -> Iterator[MongoServer]:
    """A replica set, whichever topology the session's server has."""
    with mongo_server("replica", parameters={"enableTestCommands": 1}) as running:
        yield running


def inserts(sent: list[Sent], suffix: str = ".blobs") -> list[dict[str, Any]]:
    """Returns the inserts into one of the collections."""
    name = f"checkpoints{suffix}"
    return [each.command for each in sent if (each.name, each.collection) == ("insert", name)]


def in_transaction(commands: list[dict[str, Any]]) -> list[bool]:
    """Returns which of the commands are in a transaction."""
    return ["autocommit" in command for command in commands]


@pytest.fixture
def played(victim: Face) -> Scene:
    """A put of new blobs on a replica set, by a saver that has set up."""
    scene = Scene(victim.another())
    scene.face.setup()
    return scene


def test_an_undisturbed_put_is_one_transaction(played: Scene, victim: Face) -> None:
    """Blobs first, the checkpoint after them, one commit."""
    with victim.commands.recorded() as sent:
        played.act()
    assert in_transaction(inserts(sent)) == in_transaction(inserts(sent, "")) == [True]
    assert [each.name for each in sent][-3:] == ["insert", "insert", "commitTransaction"]
    played.check(done=True)


@pytest.mark.parametrize("suffix", [".blobs", ""])
@pytest.mark.parametrize(("times", "tries"), [(1, 2), (4, 5), (5, 5)])
def test_a_transient_error_is_tried_five_times_at_most(
    played: Scene, victim: Face, suffix: str, times: int, tries: int
) -> None:
    """A transaction that fails with that label is begun anew; after five, the sequence is used."""
    where = f"{victim.stage.database}.checkpoints{suffix}"
    labels = ["TransientTransactionError"]
    with (
        victim.commands.recorded() as sent,
        failing(
            victim.stage.plain,
            ["insert"],
            times=times,
            namespace=where,
            errorCode=112,
            errorLabels=labels,
        ) as hits,
    ):
        assert interrupted(played) is None
    assert hits.count == times
    expected = [True] * tries + [False] * (times == 5)
    assert in_transaction(inserts(sent, suffix)) == expected
    assert [each.name for each in sent].count("commitTransaction") == (0 if times == 5 else 1)
    assert len({command["txnNumber"] for command in inserts(sent)[:tries]}) == tries
    played.finish()


@pytest.mark.parametrize(
    "code", [251, 112, 225], ids=["NoSuchTransaction", "WriteConflict", "TooOld"]
)
def test_a_commit_that_finds_no_transaction_begins_anew(
    played: Scene, victim: Face, code: int
) -> None:
    """A transaction that the server has ended meanwhile is written again from its first insert."""
    labels = ["TransientTransactionError"]
    with (
        victim.commands.recorded() as sent,
        failing(
            victim.stage.plain, ["commitTransaction"], errorCode=code, errorLabels=labels
        ) as hits,
    ):
        assert interrupted(played) is None
    assert hits.count == 1
    names = [each.name for each in sent if each.name in ("insert", "commitTransaction")]
    assert len(names) <= 5 * 3 + 2
    played.finish()


@pytest.mark.parametrize("times", [1, 2, 4])
def test_an_unknown_commit_is_committed_again(played: Scene, victim: Face, times: int) -> None:
    """Committing may be repeated until the answer is known: the inserts are not."""
    labels = ["UnknownTransactionCommitResult"]
    with (
        victim.commands.recorded() as sent,
        failing(
            victim.stage.plain, ["commitTransaction"], times=times, errorCode=50, errorLabels=labels
        ) as hits,
    ):
        assert interrupted(played) is None
    assert hits.count == times
    assert in_transaction(inserts(sent)) == [True]
    assert [each.name for each in sent].count("commitTransaction") == times + 1
    played.finish()


def test_a_commit_that_stays_unknown_is_followed_by_the_sequence(
    played: Scene, victim: Face
) -> None:
    """After five commits without an answer the sequence is written, without waiting for the server.

    The transaction may still be open then, holding the very documents that the sequence writes.
    """
    labels = ["UnknownTransactionCommitResult"]
    started = time.monotonic()
    with (
        victim.commands.recorded() as sent,
        failing(
            victim.stage.plain, ["commitTransaction"], times=None, errorCode=50, errorLabels=labels
        ),
    ):
        assert interrupted(played) is None
    assert time.monotonic() - started < 10
    assert [each.name for each in sent].count("commitTransaction") == 5
    assert in_transaction(inserts(sent)) == [True, False]
    played.finish()


def test_a_commit_whose_connections_all_break_is_followed_by_the_sequence(
    played: Scene, victim: Face
) -> None:
    """A lost connection at each commit ends in the sequence just so."""
    started = time.monotonic()
    with (
        victim.commands.recorded() as sent,
        failing(victim.stage.plain, ["commitTransaction"], times=None, closeConnection=True),
    ):
        assert interrupted(played) is None
    assert time.monotonic() - started < 10
    assert in_transaction(inserts(sent)) == [True, False]
    played.finish()


def test_a_commit_that_fails_for_good_surfaces(played: Scene, victim: Face) -> None:
    """An error without a label is the caller's to see, and leaves nothing behind."""
    with failing(victim.stage.plain, ["commitTransaction"], errorCode=8000):
        outcome = interrupted(played)
    assert isinstance(outcome, OperationFailure)
    assert outcome.code == 8000
    started = time.monotonic()
    played.finish()
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("driver", ["sync", "async", "motor"])
def test_an_outage_at_the_commit_is_waited_for_once(
    driver: str, server: MongoServer, client: Client, database: str
) -> None:
    """When the server is gone the put fails after the time that the client waits for servers."""
    wire = Wire(*(client.address or ("", 0)))
    uri = f"mongodb://127.0.0.1:{wire.port}/?directConnection=true"
    there = replace(server, uri=uri)
    with staged(there, client, database, serverSelectionTimeoutMS="1000") as stage:
        scene = Scene(FACES[driver](stage, "checkpoints"))
        scene.face.setup()
        wire.cut("commitTransaction", "for good")
        started = time.monotonic()
        assert isinstance(interrupted(scene), ConnectionFailure)
        assert time.monotonic() - started < 3
    assert wire.cuts == 1
    # The server ends what is left open only when the session's next command comes.
    client.admin.command("killAllSessions", [])


@pytest.mark.parametrize("code", [20, 263])
def test_a_server_without_transactions_is_remembered(
    played: Scene, victim: Face, code: int
) -> None:
    """Where the server refuses transactions the sequence is used, from then on without asking."""
    where = f"{victim.stage.database}.checkpoints.blobs"
    with (
        victim.commands.recorded() as sent,
        failing(victim.stage.plain, ["insert"], namespace=where, errorCode=code),
    ):
        assert interrupted(played) is None
    assert in_transaction(inserts(sent)) == [True, False]
    assert in_transaction(inserts(sent, "")) == [False]
    with victim.commands.recorded() as sent:
        played.values = {"chat": chat(250)}
        played.act()
    assert in_transaction(inserts(sent)) == [False]


def test_a_duplicate_key_inside_ends_the_transaction_and_not_the_put(
    played: Scene, victim: Face
) -> None:
    """Blobs that are there already are found by the transaction, and ignored by the sequence."""
    played.act()
    victim.collection.delete_one({"thread_id": played.thread, "checkpoint_id": played.new})
    again = victim.another()
    again.setup()
    played.face = again
    with victim.commands.recorded() as sent:
        played.act()
    assert in_transaction(inserts(sent)) == [True, False]
    assert in_transaction(inserts(sent, "")) == [False]
    assert [each.name for each in sent].count("abortTransaction") <= 1
    played.finish()


def test_a_foreign_transaction_in_the_way_is_waited_for_by_the_sequence(
    played: Scene, victim: Face, client: Client
) -> None:
    """A conflict with somebody's open transaction is tried five times, then the server waits."""
    twin = Scene(victim.another())
    twin.act()
    blobs = victim.sibling(".blobs")
    copies = [
        {**{k: v for k, v in blob.items() if k != "_id"}, "thread_id": played.thread}
        for blob in blobs.find({"thread_id": twin.thread})
    ]
    blobs.delete_many({"thread_id": played.thread})
    played.known.clear()
    victim.collection.delete_many({"thread_id": played.thread})
    played.new = "1"
    with client.start_session() as session, ThreadPoolExecutor(1) as pool:
        session.start_transaction()
        played.values = twin.known["1"]
        blobs.insert_many(copies, session=session)
        with victim.commands.recorded() as sent:
            running = pool.submit(played.act)
            with contextlib.suppress(AssertionError):
                wait_for(lambda: in_transaction(inserts(victim.commands.sent))[-1:] == [False], 3)
            assert not running.done()
            session.commit_transaction()
            running.result(20)
    assert in_transaction(inserts(sent)) == [True] * 5 + [False]
    played.check(done=True)


@pytest.mark.parametrize(
    ("concern", "sent_as"),
    [
        (None, None),
        (WriteConcern("majority", wtimeout=7_000), {"w": "majority", "wtimeout": 7_000}),
        (WriteConcern(1), {"w": 1}),
        (WriteConcern(j=True), {"j": True}),
    ],
    ids=["default", "majority", "one", "journal"],
)
def test_the_transaction_takes_the_collections_write_concern(
    played: Scene, victim: Face, concern: WriteConcern | None, sent_as: dict[str, Any] | None
) -> None:
    """What the user asks of writes is asked of the commit, and of no insert in it."""
    acknowledged = played.face.native.with_options(write_concern=concern)
    played.face.saver = type(played.face).saver_type(acknowledged)
    with victim.commands.recorded() as sent:
        played.act()
    (commit,) = [each.command for each in sent if each.name == "commitTransaction"]
    assert commit.get("writeConcern") == sent_as
    assert not any("writeConcern" in command for command in inserts(sent))
    played.check(done=True)


def test_the_sequence_takes_the_collections_write_concern(victim: Face) -> None:
    """Where there is no transaction each insert asks for it."""
    scene = Scene(victim.another())
    acknowledged = scene.face.native.with_options(write_concern=WriteConcern("majority"))
    scene.face.saver = type(victim).saver_type(acknowledged)
    scene.face.saver._driver.bound.refuses_transactions = True  # type: ignore[attr-defined]
    with victim.commands.recorded() as sent:
        scene.act()
    concerns = [c.get("writeConcern") for c in (*inserts(sent), *inserts(sent, ""))]
    assert concerns == [{"w": "majority"}] * 2
    scene.check(done=True)


def test_sessions_are_given_back(played: Scene, victim: Face) -> None:
    """Twenty puts, half of them failing, use one session after the other, not twenty."""
    where = f"{victim.stage.database}.checkpoints"
    with victim.commands.recorded() as sent:
        for number in range(20):
            played.values = {"file": os.urandom(20_000)}
            if number % 2:
                with (
                    failing(victim.stage.plain, ["insert"], namespace=where, errorCode=8000),
                    pytest.raises(OperationFailure),
                ):
                    played.act()
            else:
                played.act()
    sessions = {str(command["lsid"]) for command in inserts(sent)}
    assert len(sessions) <= 3
