"""The public interface as users write it: type-checked, never run.

A change that breaks the type of something users call, breaks `make check` here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, MongoClient

import mongosaver
from mongosaver import (
    AsyncMongoSaver,
    IdleProgress,
    MongoSaver,
    MongoSaverError,
    StateError,
    ThreadInfo,
    TtlProgress,
    UsageError,
)
from mongosaver.testing import mongo_server

URI = "mongodb://localhost:27017"
CONFIG: RunnableConfig = {"configurable": {"thread_id": "1"}}


def constructs() -> None:
    """From a collection of the user's own client."""
    client: MongoClient[dict[str, Any]] = MongoClient(URI)
    saver: BaseCheckpointSaver[str] = MongoSaver(client["app"]["checkpoints"])
    saver = MongoSaver(client["app"]["checkpoints"], serde=JsonPlusSerializer(), auto_setup=False)

    builder = StateGraph(MessagesState)
    builder.add_edge(START, "agent")
    builder.compile(checkpointer=saver)


async def constructs_async() -> None:
    """From a collection of PyMongo's async API, and from one of Motor's."""
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(URI)
    AsyncMongoSaver(client["app"]["checkpoints"])
    AsyncMongoSaver(client["app"]["checkpoints"], serde=JsonPlusSerializer(), auto_setup=False)

    motor: AsyncIOMotorClient[dict[str, Any]] = AsyncIOMotorClient(URI)
    saver: BaseCheckpointSaver[str] = AsyncMongoSaver(motor["app"]["checkpoints"])
    StateGraph(MessagesState).compile(checkpointer=saver)


def uses(saver: MongoSaver, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> None:
    """Every blocking method, with the types that LangGraph's base class promises."""
    saver.setup()
    config: RunnableConfig = saver.put(CONFIG, checkpoint, metadata, {"messages": "1"})
    saver.put_writes(config, [("messages", object())], task_id="1")
    saver.put_writes(config, (("messages", object()),), task_id="1", task_path="~a")
    found: CheckpointTuple | None = saver.get_tuple(config)
    plain: Checkpoint | None = saver.get(config)
    rows: Iterator[CheckpointTuple] = saver.list(
        CONFIG, filter={"source": "loop"}, before=config, limit=10
    )
    everything: Iterator[CheckpointTuple] = saver.list(None)
    version: str = saver.get_next_version(None, None)
    version = saver.get_next_version(version, None)
    narrowed: BaseCheckpointSaver[str] = saver.with_allowlist([("app.state", "Order")])
    saver.delete_thread("1")
    saver.delete_for_runs(["1"])
    saver.copy_thread("1", "2")
    pruned: int = saver.prune(["1"], strategy="keep_latest").checkpoints
    pruned += saver.prune(["1"], keep_last=2, older_than=timedelta(days=1), dry_run=True).threads
    print(pruned)
    print(found, plain, list(rows), list(everything), version, narrowed)


async def uses_async(
    saver: AsyncMongoSaver, checkpoint: Checkpoint, metadata: CheckpointMetadata
) -> None:
    """Every coroutine."""
    await saver.setup()
    config: RunnableConfig = await saver.aput(CONFIG, checkpoint, metadata, {"messages": "1"})
    writes: Sequence[tuple[str, Any]] = [("messages", object())]
    await saver.aput_writes(config, writes, task_id="1", task_path="~a")
    found: CheckpointTuple | None = await saver.aget_tuple(config)
    plain: Checkpoint | None = await saver.aget(config)
    rows: AsyncIterator[CheckpointTuple] = saver.alist(CONFIG, filter={"step": 1}, limit=None)
    await saver.adelete_thread("1")
    await saver.adelete_for_runs(["1"])
    await saver.acopy_thread("1", "2")
    pruned: int = (await saver.aprune(["1"], strategy="delete", skip_interrupted=True)).skipped
    print(pruned)
    print(found, plain, [row async for row in rows])


def keeps(saver: MongoSaver, collection: AsyncMongoSaver) -> None:
    """Retention and the list of threads, through either saver."""
    for either in (saver, collection):
        row: ThreadInfo
        for row in either.list_threads(filter={"user": "x"}, limit=3, after=None):
            text: tuple[str, str, str] = (row.thread_id, row.last_checkpoint_id, row.cursor)
            print(text, row.last_activity, row.pending_interrupt, row.checkpoints, row.namespaces)
        applied: TtlProgress = either.apply_ttl(thread_ids=["1"], dry_run=True, progress=print)
        idle: IdleProgress = either.prune_idle(older_than=timedelta(days=1), keep_last=2)
        print(applied.expired, idle.pruned.checkpoints)


async def keeps_async(saver: AsyncMongoSaver) -> None:
    """The same, awaited."""
    async for row in saver.alist_threads(limit=3):
        info: ThreadInfo = row
        print(info)
    applied: TtlProgress = await saver.aapply_ttl(after="1")
    idle: IdleProgress = await saver.aprune_idle(older_than=timedelta(days=1), strategy="delete")
    print(applied.done, idle.done)


async def opens() -> None:
    """From a connection string: the saver opens the client and closes it."""
    with MongoSaver.from_conn_string(URI) as saver:
        sync_saver: MongoSaver = saver
    with MongoSaver.from_conn_string(
        URI, db_name="app", collection_name="checkpoints", serde=JsonPlusSerializer()
    ) as saver:
        sync_saver = saver
    async with AsyncMongoSaver.from_conn_string(
        URI, db_name="app", collection_name="checkpoints", auto_setup=False, ttl=3600.0
    ) as opened:
        async_saver: AsyncMongoSaver = opened
    print(sync_saver, async_saver)


def catches() -> type[MongoSaverError]:
    """One root, two branches: the caller's fault and the database's state."""
    try:
        uses_nothing: str = mongosaver.__name__
    except UsageError as error:
        return type(error)
    except StateError as error:
        return type(error)
    else:
        print(uses_nothing)
        return MongoSaverError


def tests_a_graph() -> None:
    """A throwaway server for the tests of a user's graph."""
    with mongo_server() as server:
        text: tuple[str, str, str, str] = (
            server.uri,
            server.version,
            server.topology,
            server.source,
        )
    with mongo_server(topology="standalone", auth=True) as server:
        print(server.uri, text)
