"""A face is one way to use a saver; every contract test runs on each of them.

| face | saver | how it is called |
| --- | --- | --- |
| `sync` | MongoSaver | its blocking methods |
| `async` | AsyncMongoSaver on a collection of PyMongo's async API | awaited |
| `motor` | AsyncMongoSaver on a collection of Motor | awaited |
| `threads` | MongoSaver | its async methods, awaited |
| `memory` | the oracle: no server, for trying the tests themselves | its blocking methods |

A face offers the saver's methods as blocking ones, so that a test is written once; what must be
awaited runs on one event loop in a thread of its own. Beside the saver a face has a plain PyMongo
collection on the same data, for what a test wants to see or spoil behind the saver's back, and a
record of the commands that the saver sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, MongoClient, monitoring

from mongosaver import AsyncMongoSaver, MongoSaver
from tests.oracle import Oracle

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
    )
    from pymongo.collection import Collection

T = TypeVar("T")

STORED = ("", ".writes", ".blobs")
"""What follows the name of the user's collection in the names of those that hold threads."""

SUFFIXES = (*STORED, ".migrations")
"""The same for all its siblings."""

_PATIENCE = 60
"""Seconds after which a call on the event loop counts as hanging."""


@dataclass(frozen=True)
class Sent:
    """One command as it was sent: its name, the collection it names, its text and its thread."""

    name: str
    collection: str
    command: dict[str, Any]
    thread: int


class Commands(monitoring.CommandListener):
    """A record of the commands that a client sends."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Notes a command; sessions that end are the driver's own affair."""
        if event.command_name == "endSessions":
            return
        target = event.command.get(event.command_name)
        self.sent.append(
            Sent(
                event.command_name,
                target if isinstance(target, str) else "",
                dict(event.command),
                threading.get_ident(),
            )
        )

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Replies are not recorded."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Failures reach the test as errors."""

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[Sent]]:
        """Gives the list of what is sent inside the block; it is complete when the block ends."""
        start, seen = len(self.sent), list[Sent]()
        try:
            yield seen
        finally:
            seen.extend(self.sent[start:])


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self.thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop and waits for what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(_PATIENCE)

    def close(self) -> None:
        """Ends the loop and its thread."""
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_PATIENCE)
        self.loop.close()


@dataclass
class Stage:
    """What all tests of a session share: the server, its database, the loop, one client each."""

    uri: str
    database: str
    loop: Loop
    plain: MongoClient[dict[str, Any]]
    topology: str
    by_finds: bool = False
    clients: dict[str, tuple[Any, Commands]] = field(default_factory=dict)

    def close(self) -> None:
        """Drops the database and closes every client."""
        self.plain.drop_database(self.database)
        self.plain.close()
        for client, _ in self.clients.values():
            closed = client.close()
            if closed is not None:
                self.loop.run(closed)
        self.loop.close()


def read_by_finds(saver: Any) -> None:
    """Makes a saver read as it does on servers that lack a stage of its aggregate."""
    saver._shared.read_by_finds = True


class Graph:
    """A compiled graph whose methods block, whichever way its saver is called."""

    def __init__(self, face: Face, graph: Any) -> None:
        self.face, self.graph = face, graph

    def invoke(self, given: Any, config: RunnableConfig, **options: Any) -> Any:
        """Runs the graph."""
        if self.face.awaited:
            return self.face.run(self.graph.ainvoke(given, config, **options))
        return self.graph.invoke(given, config, **options)

    def state(self, config: RunnableConfig, **options: Any) -> Any:
        """Returns the state snapshot."""
        if self.face.awaited:
            return self.face.run(self.graph.aget_state(config, **options))
        return self.graph.get_state(config, **options)

    def history(self, config: RunnableConfig, **options: Any) -> list[Any]:
        """Returns the snapshots of the history, newest first."""
        if self.face.awaited:
            return self.face.run(_gather(self.graph.aget_state_history(config, **options)))
        return list(self.graph.get_state_history(config, **options))

    def update(self, config: RunnableConfig, values: Any, **options: Any) -> RunnableConfig:
        """Updates the state and returns the config of the new checkpoint."""
        if self.face.awaited:
            updated = self.face.run(self.graph.aupdate_state(config, values, **options))
        else:
            updated = self.graph.update_state(config, values, **options)
        return updated  # type: ignore[no-any-return]


class Face:
    """One saver on one collection, with blocking methods.

    Attributes:
        name: Name of the face, as in the table above.
        awaited: Whether the saver's methods are awaited.
        stage: What the session shares.
        native: The collection in the kind that this face's saver takes.
        collection: A plain PyMongo collection on the same data.
        commands: What was sent by the client that the saver uses.
        saver: The saver.
        saver_type: Its class.
        client_type: The class of the clients that its collections belong to.
    """

    name: ClassVar[str]
    awaited: ClassVar[bool]
    saver_type: ClassVar[Any]
    client_type: ClassVar[Any]

    def __init__(self, stage: Stage, collection: str, **options: Any) -> None:
        self.stage = stage
        if self.name not in stage.clients:
            commands = Commands()
            stage.clients[self.name] = (
                self.client(stage.uri, event_listeners=[commands]),
                commands,
            )
        client, self.commands = stage.clients[self.name]
        self.native = client[stage.database][collection]
        self.collection: Collection[dict[str, Any]] = stage.plain[stage.database][collection]
        self.saver: BaseCheckpointSaver[Any] = self.saver_type(self.native, **options)
        if stage.by_finds:
            read_by_finds(self.saver)

    def client(self, uri: str, **options: Any) -> Any:
        """Returns a new client of the kind that this face uses."""
        return self.client_type(uri, **options)

    def close(self, client: Any) -> None:
        """Closes a client that `client` returned."""
        closed = client.close()
        if closed is not None:
            self.run(closed)

    def another(self, **options: Any) -> Face:
        """Returns a face with a new saver on the same data: it remembers nothing."""
        return type(self)(self.stage, self.collection.name, **options)

    def sibling(self, suffix: str) -> Collection[dict[str, Any]]:
        """Returns the collection that ends in `suffix`, such as `.writes`."""
        return self.collection.database[self.collection.name + suffix]

    def drop(self) -> None:
        """Drops the collection and its siblings."""
        for suffix in SUFFIXES:
            self.sibling(suffix).drop()

    def empty(self) -> None:
        """Removes all checkpoints, writes and blobs; the indexes stay."""
        for suffix in STORED:
            self.sibling(suffix).delete_many({})

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the session's loop."""
        return self.stage.loop.run(coroutine)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Calls a method of the saver by its name without the `a`, and waits for the result."""
        if self.awaited:
            return self.run(getattr(self.saver, "a" + method)(*args, **options))
        return getattr(self.saver, method)(*args, **options)

    def setup(self) -> None:
        """Makes the indexes."""
        done = self.saver.setup()  # type: ignore[attr-defined]
        if done is not None:
            self.run(done)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint."""
        return self.call("put", config, checkpoint, metadata, new_versions)  # type: ignore[no-any-return]

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores pending writes."""
        self.call("put_writes", config, writes, task_id, task_path)

    def get(self, config: RunnableConfig) -> Checkpoint | None:
        """Reads a checkpoint."""
        return self.call("get", config)  # type: ignore[no-any-return]

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Reads a checkpoint with its metadata and pending writes."""
        return self.call("get_tuple", config)  # type: ignore[no-any-return]

    def list(self, config: RunnableConfig | None, **options: Any) -> list[CheckpointTuple]:
        """Lists checkpoints."""
        if self.awaited:
            return self.run(_gather(self.saver.alist(config, **options)))
        return list(self.saver.list(config, **options))

    def delete_thread(self, thread_id: Any) -> None:
        """Deletes a thread."""
        self.call("delete_thread", thread_id)

    def graph(self, builder: Any, **options: Any) -> Graph:
        """Compiles a graph on the saver."""
        return Graph(self, builder.compile(checkpointer=self.saver, **options))


class SyncFace(Face):
    """MongoSaver through its blocking methods."""

    name = "sync"
    awaited = False
    saver_type = MongoSaver
    client_type = MongoClient


class ThreadsFace(SyncFace):
    """MongoSaver through its async methods."""

    name = "threads"
    awaited = True


class AsyncFace(Face):
    """AsyncMongoSaver on PyMongo's async API."""

    name = "async"
    awaited = True
    saver_type = AsyncMongoSaver
    client_type = AsyncMongoClient


class MotorFace(AsyncFace):
    """AsyncMongoSaver on Motor."""

    name = "motor"
    client_type = AsyncIOMotorClient

    def client(self, uri: str, **options: Any) -> Any:
        """Returns a Motor client that belongs to the session's loop."""
        return super().client(uri, io_loop=self.stage.loop.loop, **options)


class MemoryFace(Face):
    """The oracle, without a server."""

    name = "memory"
    awaited = False
    saver_type = Oracle

    def __init__(
        self, stage: Stage, collection: str, *, saver: Oracle | None = None, **options: Any
    ):
        self.stage = stage
        self.commands = Commands()
        self.saver = saver or Oracle(**options)

    def another(self, **options: Any) -> Face:
        if options:
            clone = Oracle(**options)
            clone.storage, clone.writes = self.saver.storage, self.saver.writes  # type: ignore[attr-defined]
            clone.blobs, clone.handed = self.saver.blobs, self.saver.handed  # type: ignore[attr-defined]
            return type(self)(self.stage, "", saver=clone)
        return type(self)(self.stage, "", saver=self.saver)  # type: ignore[arg-type]

    def setup(self) -> None:
        """There are no indexes."""

    def empty(self) -> None:
        """The next test has an oracle of its own."""

    def drop(self) -> None:
        """There are no collections."""


ON_MONGODB: dict[str, type[Face]] = {
    face.name: face for face in (SyncFace, AsyncFace, MotorFace, ThreadsFace)
}
FACES: dict[str, type[Face]] = {**ON_MONGODB, "memory": MemoryFace}


async def _gather(items: Any) -> list[Any]:
    return [item async for item in items]
