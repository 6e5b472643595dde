"""Setup, and collections that are not ours: indexes, races, foreign and newer documents."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bson import json_util

from mongosaver import (
    CollationRefused,
    ForeignDocument,
    FormatTooNew,
    SchemaOutOfDate,
    StateError,
)
from mongosaver.schema import INDEXES
from tests.contract.samples import LARGE, Line, checkpoint, config, metadata, values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faces import Face, Sent

pytestmark = pytest.mark.new_collection

OFFICIAL = Path(__file__).with_name("official_saver.json")
"""A thread as MongoDBSaver of langgraph-checkpoint-mongodb wrote it, with an open interrupt."""

UNIQUE = {
    "": [("thread_id", 1), ("checkpoint_ns", 1), ("checkpoint_id", -1)],
    ".writes": [
        ("thread_id", 1),
        ("checkpoint_ns", 1),
        ("checkpoint_id", 1),
        ("task_id", 1),
        ("idx", 1),
        ("part", 1),
    ],
    ".blobs": [("thread_id", 1), ("checkpoint_ns", 1), ("key", 1)],
}


def indexes(face: Face) -> dict[str, Any]:
    """Returns the indexes of each collection."""
    return {suffix: face.sibling(suffix).index_information() for suffix in UNIQUE}


ALL = sorted((name.value, index.name) for name, made in INDEXES.items() for index in made)
"""Every index that mongosaver makes: suffix and name."""


def made_by(face: Face, sent: Sequence[Sent]) -> list[tuple[str, str]]:
    """Returns suffix and name of each index that commands ask for, in order."""
    return sorted(
        (one.collection.removeprefix(face.collection.name), index["name"])
        for one in sent
        if one.name == "createIndexes"
        for index in one.command["indexes"]
    )


def put_one(face: Face, thread: str) -> None:
    """Puts a checkpoint with a small and a large value, and a pending write."""
    at = Line(face, thread).put({"a": 1, "large": LARGE})
    face.put_writes(at, [("x", 1)], "task")


def test_setup_makes_unique_indexes_that_begin_with_the_thread(mongo_face: Face) -> None:
    """Each collection has its unique compound index, and no other unique one."""
    mongo_face.setup()
    for suffix, keys in UNIQUE.items():
        unique = [
            i["key"]
            for i in mongo_face.sibling(suffix).index_information().values()
            if i.get("unique")
        ]
        assert unique == [keys]


def test_setup_is_idempotent(mongo_face: Face, thread: str) -> None:
    """A second setup, before or after data are there, changes nothing."""
    mongo_face.setup()
    first = indexes(mongo_face)
    mongo_face.setup()
    put_one(mongo_face, thread)
    mongo_face.setup()
    mongo_face.another().setup()
    assert indexes(mongo_face) == first
    assert values_of(mongo_face, config(thread)) == {"a": 1, "large": LARGE}


def test_setup_by_eight_threads_at_once(mongo_face: Face, thread: str) -> None:
    """Savers that set up the same new collections at the same moment all succeed."""
    savers = [mongo_face.another() for _ in range(8)]
    barrier = threading.Barrier(8)

    def setup(face: Face) -> None:
        barrier.wait(10)
        face.setup()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(setup, savers))
    for suffix, keys in UNIQUE.items():
        found = mongo_face.sibling(suffix).index_information().values()
        assert [i["key"] for i in found if i.get("unique")] == [keys]


PROCESSES = """
import os, sys
from mongosaver import MongoSaver

uri, database, collection = sys.argv[1:]
go, start = os.pipe()
children = []
for n in range(8):
    child = os.fork()
    if child == 0:
        os.close(start)
        os.read(go, 1)  # ends when the parent closes its side: all children start at once
        with MongoSaver.from_conn_string(
            uri, db_name=database, collection_name=collection
        ) as saver:
            saver.setup()
            checkpoint = {
                "v": 4, "id": f"id {n}", "ts": "", "versions_seen": {},
                "channel_values": {"n": str(n) * 20_000}, "channel_versions": {"n": "1"},
            }
            at = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
            saver.put(at, checkpoint, {"source": "input"}, {"n": "1"})
        os._exit(0)
    children.append(child)
os.close(start)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.mark.only_faces("sync")
def test_setup_by_eight_processes_at_once(mongo_face: Face) -> None:
    """Eight processes that start with an empty database set it up together and write at once."""
    names = (mongo_face.stage.uri, mongo_face.stage.database, mongo_face.collection.name)
    done = subprocess.run(
        [sys.executable, "-c", PROCESSES, *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [row.checkpoint["channel_values"] for row in mongo_face.list(config("t"))] == [
        {"n": str(n) * 20_000} for n in range(7, -1, -1)
    ]


def test_auto_setup_runs_once_at_the_first_write(mongo_face: Face, thread: str) -> None:
    """Reading sets nothing up; the first write makes the indexes, no later one asks for them."""
    with mongo_face.commands.recorded() as sent:
        mongo_face.get_tuple(config(thread))
        mongo_face.list(config(thread))
        mongo_face.list(None)
    assert not any("ndexes" in command.name for command in sent)
    with mongo_face.commands.recorded() as sent:
        put_one(mongo_face, thread)
    assert made_by(mongo_face, sent) == ALL
    last = max(n for n, command in enumerate(sent) if command.name == "createIndexes")
    assert all(c.name not in ("insert", "update") for c in sent[:last])
    with mongo_face.commands.recorded() as sent:
        put_one(mongo_face, thread + "2")
        mongo_face.delete_thread(thread)
    assert not any("ndexes" in command.name for command in sent)
    assert set(UNIQUE) == {
        suffix for suffix, found in indexes(mongo_face).items() if len(found) > 1
    }


def test_auto_setup_at_the_first_pending_write(mongo_face: Face, thread: str) -> None:
    """`put_writes` may be the first write, and sets up as well."""
    mongo_face.put_writes(config(thread, "", "id"), [("x", 1)], "task")
    assert all(len(found) > 1 for found in indexes(mongo_face).values())


def test_auto_setup_runs_once_for_first_writes_at_once(mongo_face: Face) -> None:
    """First writes that come together wait for one setup."""
    saver, n = mongo_face.saver, 8
    made = [checkpoint({"a": n}, {"a": "1"}) for n in range(n)]

    async def write() -> None:
        await asyncio.gather(
            *(saver.aput(config(f"thread {k}"), made[k], metadata(), {"a": "1"}) for k in range(n))
        )

    with mongo_face.commands.recorded() as sent:
        if mongo_face.awaited:
            mongo_face.run(write())
        else:
            with ThreadPoolExecutor(n) as pool:
                list(
                    pool.map(
                        lambda k: mongo_face.put(
                            config(f"thread {k}"), made[k], metadata(), {"a": "1"}
                        ),
                        range(n),
                    )
                )
    assert made_by(mongo_face, sent) == ALL


def test_setup_before_the_first_write_is_enough(mongo_face: Face, thread: str) -> None:
    """After an explicit setup the first write sends no index command."""
    mongo_face.setup()
    with mongo_face.commands.recorded() as sent:
        put_one(mongo_face, thread)
    assert not any("ndexes" in command.name for command in sent)


def test_without_auto_setup_no_index_command_is_sent(mongo_face: Face, thread: str) -> None:
    """`auto_setup=False` writes and reads without looking at indexes or collections."""
    mongo_face.setup()
    mongo_face.saver = mongo_face.another(auto_setup=False).saver
    with mongo_face.commands.recorded() as sent:
        put_one(mongo_face, thread)
        mongo_face.get_tuple(config(thread))
        mongo_face.list(config(thread))
        mongo_face.delete_thread(thread)
    names = {command.name for command in sent}
    assert names <= {
        "insert",
        "update",
        "delete",
        "find",
        "aggregate",
        "commitTransaction",
        "abortTransaction",
    }


def test_without_auto_setup_a_collection_that_nobody_set_up_is_refused(
    mongo_face: Face, thread: str
) -> None:
    """The first write looks whether somebody has migrated, and says what to run if nobody has."""
    careful = mongo_face.another(auto_setup=False)
    with pytest.raises(SchemaOutOfDate, match=r"not set up.*mongosaver migrate --db .* --coll"):
        put_one(careful, thread)
    names = mongo_face.collection.database.list_collection_names()
    assert not any(name.startswith(mongo_face.collection.name) for name in names)
    mongo_face.setup()
    put_one(careful, thread)


@pytest.mark.parametrize("suffix", ["", ".writes", ".blobs"])
def test_collection_with_a_collation_is_refused(mongo_face: Face, thread: str, suffix: str) -> None:
    """Under a collation different ids can be equal: setup refuses, and nothing is written."""
    name = mongo_face.collection.name + suffix
    mongo_face.collection.database.create_collection(
        name, collation={"locale": "en", "strength": 1}
    )
    for attempt in (mongo_face.setup, lambda: put_one(mongo_face, thread)):
        with pytest.raises(CollationRefused, match="collation") as error:
            attempt()
        assert isinstance(error.value, StateError)
        assert name in str(error.value)
    assert [mongo_face.sibling(s).count_documents({}) for s in UNIQUE] == [0, 0, 0]


def test_simple_collation_is_no_collation(mongo_face: Face, thread: str) -> None:
    """A collection that was created beforehand, without a language, is fine."""
    mongo_face.collection.database.create_collection(mongo_face.collection.name)
    put_one(mongo_face, thread)
    assert values_of(mongo_face, config(thread)) == {"a": 1, "large": LARGE}


def official_documents() -> dict[str, Any]:
    """Returns documents of the official saver, by the names of its collections."""
    return json_util.loads(OFFICIAL.read_text())  # type: ignore[no-any-return]


def test_official_savers_documents_are_refused(mongo_face: Face) -> None:
    """A collection of langgraph-checkpoint-mongodb is recognised, named, and not guessed at."""
    documents = official_documents()
    mongo_face.collection.insert_many(documents["checkpoints"])
    mongo_face.sibling(".writes").insert_many(documents["checkpoint_writes"])
    at = config("old thread")
    [root, *_] = sorted(document["checkpoint_id"] for document in documents["checkpoints"])
    attempts: dict[str, Any] = {
        "latest": lambda: mongo_face.get_tuple(at),
        "by id": lambda: mongo_face.get_tuple(config("old thread", "", root)),
        "list": lambda: mongo_face.list(at),
        "list all": lambda: mongo_face.list(None),
        "list filtered": lambda: mongo_face.list(at, filter={"source": "input"}),
        "setup": mongo_face.setup,
        "put": lambda: mongo_face.put(at, checkpoint(), metadata(), {}),
    }
    for name, attempt in attempts.items():
        with pytest.raises(ForeignDocument, match="langgraph-checkpoint-mongodb") as error:
            pytest.fail(f"{name}: {attempt()!r}")
        assert ("have to be imported" in str(error.value)) == (name in ("setup", "put")), name
    assert mongo_face.collection.count_documents({}) == 2


def test_other_documents_are_refused(mongo_face: Face, thread: str) -> None:
    """Documents of anything else are refused as well, where they would be read."""
    mongo_face.collection.insert_one(
        {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": "id", "hello": "world"}
    )
    for attempt in (
        lambda: mongo_face.get_tuple(config(thread)),
        lambda: mongo_face.list(config(thread)),
        mongo_face.setup,
    ):
        with pytest.raises(ForeignDocument):
            attempt()


@pytest.mark.parametrize("suffix", ["", ".writes", ".blobs"])
@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"$set": {"format": 2}}, FormatTooNew, "2"),
        ({"$unset": {"format": 1}}, ForeignDocument, "format"),
        ({"$set": {"format": "1"}}, StateError, "format"),
    ],
    ids=["newer", "without", "text"],
)
def test_other_formats_are_refused(
    mongo_face: Face, thread: str, suffix: str, change: Any, error: Any, says: str
) -> None:
    """A document without `format: 1`, in any collection, is an error that says what was found."""
    put_one(mongo_face, thread)
    assert mongo_face.sibling(suffix).update_many({}, change).modified_count
    reader = mongo_face.another()
    for attempt in (
        lambda: reader.get_tuple(config(thread)),
        lambda: reader.list(config(thread)),
        lambda: reader.list(None),
    ):
        with pytest.raises(error, match=says):
            attempt()


def test_every_document_has_the_format(mongo_face: Face, thread: str) -> None:
    """What is written carries `format: 1`, in each collection."""
    put_one(mongo_face, thread)
    for suffix in UNIQUE:
        assert {d["format"] for d in mongo_face.sibling(suffix).find()} == {1}


def test_the_first_write_takes_no_random_uuid(
    mongo_face: Face, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests of graphs replace `uuid4` by a sequence of their own, which nobody else may use up."""
    mongo_face.get_tuple(config(thread))  # PyMongo takes one for each of its sessions
    line = Line(mongo_face.another(), thread)

    def taken() -> None:
        raise AssertionError("uuid4 was called")

    monkeypatch.setattr("uuid.uuid4", taken)
    line.put({"n": 1})
    assert mongo_face.another().get_tuple(config(thread)) is not None
