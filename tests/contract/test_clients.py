"""Contract, "Clients and processes": constructors, collections, clients, loops and threads."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from bson import SON, CodecOptions
from bson.raw_bson import RawBSONDocument
from langgraph.checkpoint.base import BaseCheckpointSaver
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.errors import InvalidOperation

from mongosaver import AsyncMongoSaver, MongoSaver, MongoSaverError, UsageError
from tests.contract.samples import LARGE, Line, checkpoint, config, metadata, values_of, writes_of
from tests.faces import SUFFIXES, read_by_finds

if TYPE_CHECKING:
    from tests.faces import Face

AWAY: dict[str, Any] = {"serverSelectionTimeoutMS": 100, "connect": False}


def test_constructor_sends_nothing(mongo_face: Face) -> None:
    """Constructing a saver, printing it and copying it send no command."""
    with mongo_face.commands.recorded() as sent:
        saver = mongo_face.saver_type(mongo_face.native)
        repr(saver)
        saver.with_allowlist([("a", "B")])
        saver.get_next_version(None, None)
    assert [command.name for command in sent] == []


def test_constructor_needs_no_server(mongo_face: Face, lost_client: Any) -> None:
    """A saver may be made while the server is away."""
    saver = mongo_face.saver_type(lost_client["db"]["checkpoints"])
    assert saver.get_next_version(None, None)


def test_constructor_needs_no_running_loop(mongo_face: Face, thread: str) -> None:
    """A saver made where no loop runs serves one that runs later."""
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    line = Line(mongo_face, thread)
    line.put({"a": 1})
    line.check()


def collections_of_all_kinds() -> dict[str, Any]:
    """Returns a collection of each driver, none of them connected."""
    return {
        "sync": MongoClient("mongodb://127.0.0.1:1", **AWAY)["db"]["c"],
        "async": AsyncMongoClient("mongodb://127.0.0.1:1", **AWAY)["db"]["c"],
        "motor": AsyncIOMotorClient("mongodb://127.0.0.1:1", **AWAY)["db"]["c"],
    }


def test_wrong_kind_of_collection_names_the_right_class() -> None:
    """Each saver refuses the other's collections with a TypeError that says which class to use."""
    made = collections_of_all_kinds()
    for kind in ("async", "motor"):
        with pytest.raises(TypeError, match="AsyncMongoSaver"):
            MongoSaver(made[kind])
        AsyncMongoSaver(made[kind])
    with pytest.raises(TypeError, match=r"Use MongoSaver\b"):
        AsyncMongoSaver(made["sync"])
    MongoSaver(made["sync"])
    made["sync"].database.client.close()


@pytest.mark.parametrize("saver_type", [MongoSaver, AsyncMongoSaver])
def test_what_is_no_collection_is_refused(saver_type: Any) -> None:
    """Clients, databases, URIs and other things are a TypeError that names a collection."""
    client: MongoClient[Any] = MongoClient("mongodb://127.0.0.1:1", **AWAY)
    others = [client, client["db"], "mongodb://127.0.0.1", None, {}, object(), MongoSaver]
    for other in others:
        with pytest.raises(TypeError, match=r"[cC]ollection"):
            saver_type(other)
    with pytest.raises(TypeError, match="from_conn_string"):
        saver_type("mongodb://127.0.0.1")
    client.close()


@pytest.mark.parametrize(
    "options", [{"time_to_live": 3}, {"Serde": None}, {"checkpoint_collection_name": "x"}]
)
def test_unknown_options_are_refused(mongo_face: Face, options: dict[str, Any]) -> None:
    """An option that does not exist is a TypeError, in the constructor and in from_conn_string."""
    with pytest.raises(TypeError):
        mongo_face.saver_type(mongo_face.native, **options)
    with pytest.raises(TypeError):
        mongo_face.saver_type.from_conn_string("mongodb://127.0.0.1:1", **options)


def test_options_are_the_same_on_both_savers() -> None:
    """Both savers take the same options, as keywords only, with the same defaults."""
    signatures = [
        {
            name: (parameter.kind, parameter.default)
            for name, parameter in inspect.signature(saver_type).parameters.items()
        }
        for saver_type in (MongoSaver, AsyncMongoSaver)
    ]
    assert signatures[0] == signatures[1]
    _, *options = signatures[0].values()
    assert {kind for kind, _ in options} == {inspect.Parameter.KEYWORD_ONLY}
    assert signatures[0]["auto_setup"][1] is True


@pytest.mark.parametrize("saver_type", [MongoSaver, AsyncMongoSaver])
def test_each_method_has_its_twin(saver_type: Any) -> None:
    """Every method has an async twin with the same parameters."""
    for name in ("get", "get_tuple", "list", "put", "put_writes", "delete_thread"):
        plain, twin = getattr(saver_type, name), getattr(saver_type, "a" + name)
        assert list(inspect.signature(plain).parameters) == list(inspect.signature(twin).parameters)
        assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin)
        # LangGraph's `get` calls `get_tuple`; everything else only raises there.
        for method in (plain, twin) if name != "get" else ():
            assert method is not getattr(BaseCheckpointSaver, method.__name__)


def test_unacknowledged_writes_are_refused(mongo_face: Face) -> None:
    """A collection with `w=0`, of its own or from its client, is refused by the constructor."""
    database = mongo_face.native.database
    deaf = database.get_collection("c", write_concern=WriteConcern(w=0))
    client = mongo_face.client("mongodb://127.0.0.1:1/?w=0", **AWAY)
    try:
        for collection in (deaf, client["db"]["c"]):
            with pytest.raises(ValueError, match="w=0") as error:
                mongo_face.saver_type(collection)
            assert isinstance(error.value, UsageError)
    finally:
        mongo_face.close(client)


@pytest.mark.parametrize("w", [1, "majority"])
def test_write_concern_of_the_collection_is_used(mongo_face: Face, thread: str, w: Any) -> None:
    """Writes, also those of a transaction, are acknowledged as the collection asks."""
    concern = WriteConcern(w=w, j=True)
    mongo_face.setup()
    mongo_face.saver = mongo_face.saver_type(
        mongo_face.native.with_options(write_concern=concern), auto_setup=False
    )
    with mongo_face.commands.recorded() as sent:
        at = Line(mongo_face, thread).put({"large": LARGE})
        mongo_face.put_writes(at, [("x", 1), ("__resume__", 1)], "task")
    writing = [
        command.command.get("writeConcern")
        for command in sent
        # Inside a transaction the commit alone has a write concern.
        if command.name == "commitTransaction"
        or (command.name in ("insert", "update") and "autocommit" not in command.command)
    ]
    assert len(writing) >= 2
    assert all(concern_ == {"w": w, "j": True} for concern_ in writing)


def test_reads_go_to_the_primary(mongo_face: Face, thread: str) -> None:
    """What was just written is read from the primary, whatever the collection prefers."""
    distant = mongo_face.native.with_options(read_preference=ReadPreference.SECONDARY)
    mongo_face.saver = mongo_face.saver_type(distant)
    if mongo_face.stage.by_finds:
        read_by_finds(mongo_face.saver)
    line = Line(mongo_face, thread)
    with mongo_face.commands.recorded() as sent:
        line.put({"a": 1, "large": LARGE})
        line.put({"a": 2})
        line.check()
        mongo_face.list(None)
    modes = {c.command.get("$readPreference", {}).get("mode", "primary") for c in sent}
    # A single server is asked with `primaryPreferred` by drivers, because it may be a secondary.
    assert modes <= {"primary", "primaryPreferred"}
    assert any(command.name in ("aggregate", "find") for command in sent)


@pytest.mark.parametrize("document_class", [SON, RawBSONDocument])
def test_client_codec_options_do_not_matter(
    mongo_face: Face, thread: str, document_class: Any
) -> None:
    """A collection with a document class and dates of its own is read the same."""
    strange: Any = CodecOptions(document_class=document_class, tz_aware=False)
    mongo_face.saver = mongo_face.saver_type(mongo_face.native.with_options(codec_options=strange))
    line = Line(mongo_face, thread)
    line.put({"map": {"b": 1, "a": 2}, "large": LARGE}, metadata=metadata(x={"y": 1}))
    line.check()
    found = mongo_face.get_tuple(line.at(0))
    assert found is not None
    assert type(found.checkpoint["channel_values"]["map"]) is dict
    assert type(found.metadata) is dict


@pytest.mark.parametrize("options", ["retryWrites=false", "retryWrites=false&retryReads=false"])
def test_works_without_retried_writes(mongo_face: Face, thread: str, options: str) -> None:
    """Nothing needs `retryWrites`, and a client's setting stays what it is."""
    uri = mongo_face.stage.uri
    separator = "&" if "?" in uri else "?" if uri.endswith("/") else "/?"
    client = mongo_face.client(uri + separator + options)
    try:
        collection = client[mongo_face.stage.database][mongo_face.collection.name]
        mongo_face.saver = mongo_face.saver_type(collection)
        line = Line(mongo_face, thread)
        for n in range(3):
            at = line.put({"n": n, "list": [LARGE, n]})
            mongo_face.put_writes(at, [("x", n), ("__resume__", n)], "task")
        line.check()
        mongo_face.delete_thread(thread)
        assert mongo_face.list(None) == []
        assert client.options.retry_writes is False
    finally:
        mongo_face.close(client)


def test_given_client_is_never_closed(mongo_face: Face, thread: str) -> None:
    """A client outlives the savers that used it."""
    client = mongo_face.client(mongo_face.stage.uri)
    try:
        collection = client[mongo_face.stage.database][mongo_face.collection.name]
        face = mongo_face.another()
        for n in range(2):
            face.saver = mongo_face.saver_type(collection)
            face.put(config(thread), checkpoint({"n": n}, {"n": 1}), metadata(), {"n": 1})
            del face.saver
            gc.collect()
        face.saver = mongo_face.saver_type(collection)
        assert values_of(face, config(thread)) == {"n": 1}
    finally:
        mongo_face.close(client)


@pytest.mark.parametrize("fails", [False, True], ids=["leaves", "raises"])
def test_own_client_is_closed_once(
    mongo_face: Face, thread: str, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """`from_conn_string` closes the client that it opened at the end of the block, and no other."""
    client_type = MongoClient if mongo_face.saver_type is MongoSaver else AsyncMongoClient
    closed: list[Any] = []
    close = client_type.close

    def counted(self: Any) -> Any:
        closed.append(self)
        return close(self)

    monkeypatch.setattr(client_type, "close", counted)
    names = {"db_name": mongo_face.stage.database, "collection_name": mongo_face.collection.name}
    used: list[Any] = []
    made, versions = checkpoint({"a": 1}, {"a": "1"}), {"a": "1"}
    opened = mongo_face.saver_type.from_conn_string(mongo_face.stage.uri, **names)

    async def use_async() -> None:
        async with opened as saver:
            used.append(saver)
            await saver.aput(config(thread), made, metadata(), versions)
            assert closed == []
            if fails:
                raise KeyError("in the block")

    def use() -> None:
        with opened as saver:
            used.append(saver)
            saver.put(config(thread), made, metadata(), versions)
            assert closed == []
            if fails:
                raise KeyError("in the block")

    def block() -> None:
        if client_type is MongoClient:
            use()
        else:
            mongo_face.run(use_async())

    if fails:
        with pytest.raises(KeyError, match="in the block"):
            block()
    else:
        block()
    assert len(closed) == 1
    assert values_of(mongo_face, config(thread)) == {"a": 1}
    mongo_face.saver = used[0]
    with pytest.raises(InvalidOperation):
        mongo_face.get_tuple(config(thread))
    assert len(closed) == 1


def test_own_client_is_closed_when_the_saver_cannot_be_made(
    mongo_face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the constructor refuses, the client that was opened for it is closed."""
    client_type = MongoClient if mongo_face.saver_type is MongoSaver else AsyncMongoClient
    closed: list[Any] = []
    close = client_type.close
    monkeypatch.setattr(client_type, "close", lambda self: (closed.append(self), close(self))[1])
    opened = mongo_face.saver_type.from_conn_string("mongodb://127.0.0.1:1/?w=0")

    async def enter_async() -> None:
        async with opened:
            pass

    def enter() -> None:
        if client_type is MongoClient:
            opened.__enter__()
        else:
            mongo_face.run(enter_async())

    with pytest.raises(ValueError, match="w=0"):
        enter()
    assert len(closed) == 1


def test_names_of_from_conn_string_default_to_the_uri(mongo_face: Face, thread: str) -> None:
    """The database is the one that the URI names, and the collection is `checkpoints`."""
    database = mongo_face.stage.database + "_named"
    parts = urlsplit(mongo_face.stage.uri)
    query = parts.query + ("&" if parts.query else "")
    if "@" in parts.netloc and "authSource" not in query:
        query += "authSource=admin&"
    uri = parts._replace(path="/" + database, query=query.rstrip("&")).geturl()
    opened = mongo_face.saver_type.from_conn_string(uri)
    made = checkpoint({"a": 1}, {"a": "1"})

    async def use() -> None:
        async with opened as saver:
            await saver.aput(config(thread), made, metadata(), {"a": "1"})

    try:
        if mongo_face.saver_type is MongoSaver:
            with opened as saver:
                saver.put(config(thread), made, metadata(), {"a": "1"})
        else:
            mongo_face.run(use())
        names = mongo_face.stage.plain[database].list_collection_names()
        assert sorted(names) == ["checkpoints" + suffix for suffix in sorted(SUFFIXES)]
    finally:
        mongo_face.stage.plain.drop_database(database)


@pytest.mark.only_faces("sync", "threads")
def test_async_methods_of_the_sync_saver_run_in_worker_threads(
    mongo_face: Face, thread: str
) -> None:
    """A MongoSaver that is awaited sends nothing from the loop's own thread."""
    loops = mongo_face.stage.loop
    saver = mongo_face.saver

    async def use() -> None:
        at = await saver.aput(
            config(thread), checkpoint({"a": 1}, {"a": "1"}), metadata(), {"a": "1"}
        )
        await saver.aput_writes(at, [("x", 1)], "task")
        await saver.aget_tuple(at)
        await saver.aget(at)
        assert len([row async for row in saver.alist(config(thread))]) == 1
        await saver.adelete_thread(thread)

    with mongo_face.commands.recorded() as sent:
        loops.run(use())
    assert len(sent) >= 8
    assert loops.thread.ident not in {command.thread for command in sent}


@pytest.mark.only_faces("sync", "threads")
def test_async_methods_of_the_sync_saver_leave_the_loop_free(
    mongo_face: Face, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a MongoSaver waits for the server the event loop goes on."""
    saver: Any = mongo_face.saver
    mongo_face.setup()
    released = threading.Event()
    run = saver._driver.run

    def slow(plan: Any) -> Any:
        assert released.wait(10)
        return run(plan)

    monkeypatch.setattr(saver._driver, "run", slow)

    async def use() -> None:
        reading = asyncio.ensure_future(saver.aget_tuple(config(thread)))
        await asyncio.sleep(0.02)
        # The loop comes here while the read waits, and lets it go on.
        assert not reading.done()
        released.set()
        assert await reading is None

    mongo_face.run(use())


@pytest.mark.only_faces("async", "motor")
def test_sync_methods_of_the_async_saver_work_from_another_thread(
    mongo_face: Face, thread: str
) -> None:
    """An AsyncMongoSaver that is used on a loop can be called without awaiting from elsewhere."""
    saver = mongo_face.saver
    line = Line(mongo_face, thread)
    at = line.put({"a": 1, "large": LARGE})
    then = saver.put(at, checkpoint({"a": 2}, {"a": "2"}), metadata(), {"a": "2"})
    saver.put_writes(then, [("x", 1)], "task")
    found = saver.get_tuple(then)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": 2}
    assert found.pending_writes == [("task", "x", 1)]
    assert saver.get(then) == found.checkpoint
    assert [row.config for row in saver.list(config(thread))] == [then, at]
    assert list(saver.list(config(thread), limit=1)) == [found]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: saver.get_tuple(then), range(8))) == [found] * 8
    saver.delete_thread(thread)
    assert saver.get_tuple(then) is None


@pytest.mark.only_faces("async", "motor")
def test_sync_methods_of_the_async_saver_raise_on_the_loop(mongo_face: Face, thread: str) -> None:
    """On the loop's own thread they would wait forever: they raise at once, and send nothing."""
    saver = mongo_face.saver
    at = Line(mongo_face, thread).put({"a": 1})
    calls = {
        "get": lambda: saver.get(at),
        "get_tuple": lambda: saver.get_tuple(at),
        "list": lambda: list(saver.list(at)),
        "put": lambda: saver.put(at, checkpoint(), metadata(), {}),
        "put_writes": lambda: saver.put_writes(at, [("x", 1)], "task"),
        "delete_thread": lambda: saver.delete_thread(thread),
    }

    async def call_on_the_loop() -> dict[str, BaseException | None]:
        raised: dict[str, BaseException | None] = {}
        for name, call in calls.items():
            raised[name] = None
            try:
                call()
            except Exception as error:
                raised[name] = error
        return raised

    with mongo_face.commands.recorded() as sent:
        raised = mongo_face.run(call_on_the_loop())
    assert [command.name for command in sent] == []
    for name, error in raised.items():
        assert isinstance(error, MongoSaverError), name
        assert isinstance(error, RuntimeError), name
        assert "ainvoke" in str(error) or f"a{name}" in str(error)


@pytest.mark.only_faces("async")
def test_async_saver_serves_one_loop_after_another(mongo_face: Face, thread: str) -> None:
    """Nothing of a loop is kept: a second saver on a second loop and client reads what was put."""
    line = Line(mongo_face, thread)
    line.put({"a": 1})

    async def read() -> Any:
        async with AsyncMongoSaver.from_conn_string(
            mongo_face.stage.uri,
            db_name=mongo_face.stage.database,
            collection_name=mongo_face.collection.name,
        ) as saver:
            return await saver.aget(config(thread))

    for _ in range(2):
        assert asyncio.run(read())["channel_values"] == {"a": 1}


@pytest.mark.only_faces("async", "motor", "threads")
def test_values_may_be_changed_right_after_a_put(mongo_face: Face, thread: str) -> None:
    """Awaited savers serialise what they are given before they first wait."""
    saver = mongo_face.saver
    mongo_face.setup()
    made = checkpoint({"list": [1], "large": [LARGE]}, {"list": "1", "large": "1"})
    given: dict[str, Any] = {"source": "loop", "tags": [1]}
    written = [1]

    async def use() -> Any:
        putting = saver.aput(config(thread), made, given, {"list": "1", "large": "1"})  # type: ignore[arg-type]
        task = asyncio.ensure_future(putting)
        await asyncio.sleep(0)
        made["channel_values"]["list"].append("late")
        made["channel_values"]["large"].append("late")
        given["tags"].append("late")
        at = await task
        task = asyncio.ensure_future(saver.aput_writes(at, [("x", written)], "task"))
        await asyncio.sleep(0)
        written.append("late")  # type: ignore[arg-type]
        await task
        return at

    at = mongo_face.run(use())
    assert values_of(mongo_face, at) == {"list": [1], "large": [LARGE]}
    assert mongo_face.get_tuple(at).metadata["tags"] == [1]  # type: ignore[union-attr,typeddict-item]
    assert writes_of(mongo_face, at) == [("task", "x", [1])]


@pytest.mark.only_faces("async", "motor", "threads")
def test_many_awaited_calls_at_once(mongo_face: Face) -> None:
    """Hundred graphs on one loop put, write and read through one saver."""
    saver = mongo_face.saver

    async def one(n: int) -> Any:
        at = config(f"thread {n}")
        for k in range(3):
            made = checkpoint({"n": [n, k], "large": [LARGE, n, k]}, {"n": k + 1, "large": k + 1})
            at = await saver.aput(at, made, metadata(), {"n": k + 1, "large": k + 1})
            await saver.aput_writes(at, [("x", k)], "task")
        return await saver.aget_tuple(config(f"thread {n}"))

    async def many() -> list[Any]:
        return await asyncio.gather(*(one(n) for n in range(40)))

    for n, found in enumerate(mongo_face.run(many())):
        assert found.checkpoint["channel_values"] == {"n": [n, 2], "large": [LARGE, n, 2]}
        assert found.pending_writes == [("task", "x", 2)]
