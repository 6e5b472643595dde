"""MongoSaver: the checkpointer on PyMongo's blocking API.

Each method is one plan run by one driver. The async methods run the same plans in worker threads,
so that one saver also serves graphs that are awaited.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from pymongo import MongoClient
from pymongo.collection import Collection

from mongosaver._base import COLLECTION_NAME, DB_NAME, BaseSaver, open_options, wrong_collection
from mongosaver.drivers import Driver
from mongosaver.ops import Plan
from mongosaver.plans import delete, read, setup, write

T = TypeVar("T")


class MongoSaver(BaseSaver):
    """Stores LangGraph checkpoints in MongoDB, through PyMongo.

    Three collections are used: the one given, and its siblings `<name>.writes` and
    `<name>.blobs`. Threads may be used by any number of savers and processes at once.

    Args:
        collection: A PyMongo collection. Its client stays the caller's: it is never closed here.
        serde: Serializer of state, writes and metadata; LangGraph's own by default.
        auto_setup: Whether the first write makes the indexes (see `setup`). Turn it off where the
            user of the database may not make any, and let somebody else call `setup`.

    Raises:
        CollectionTypeError: It is no PyMongo collection.
        ConfigurationError: Its write concern is `w=0`.

    Example:
        ```python
        from pymongo import MongoClient
        from mongosaver import MongoSaver

        client = MongoClient("mongodb://localhost:27017")
        graph = builder.compile(checkpointer=MongoSaver(client["app"]["checkpoints"]))
        ```
    """

    def __init__(
        self,
        collection: Collection[Any],
        *,
        serde: SerializerProtocol | None = None,
        auto_setup: bool = True,
    ) -> None:
        if not isinstance(collection, Collection):
            raise wrong_collection(collection, "MongoSaver", "pymongo.collection.Collection")
        super().__init__(serde=serde, auto_setup=auto_setup)
        self._driver = Driver(collection)
        self._setup_lock = threading.Lock()

    @classmethod
    @contextmanager
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        db_name: str | None = None,
        collection_name: str = COLLECTION_NAME,
        serde: SerializerProtocol | None = None,
        auto_setup: bool = True,
    ) -> Iterator[MongoSaver]:
        """A saver on a client of its own, which is closed at the end of the `with` block.

        Args:
            conn_string: A MongoDB connection string (MongoDB manual, "Connection Strings").
            db_name: The database; by default the one that the connection string names, else
                `langgraph`.
            collection_name: The collection for checkpoints, and the stem of its siblings' names.
            serde: As in the constructor.
            auto_setup: As in the constructor.
        """
        client: MongoClient[Any] = MongoClient(conn_string, **open_options())
        with client:
            database = client.get_default_database(default=DB_NAME).name
            yield cls(
                client[db_name or database][collection_name], serde=serde, auto_setup=auto_setup
            )

    # --- blocking

    def setup(self) -> None:
        """Make the indexes that are missing. Safe to repeat, and from many processes at once.

        Needs the privileges to list collections and to create indexes (role `readWrite`). Without
        a call the first write does it, unless `auto_setup` is off.

        Raises:
            CollationRefused: A collection has a default collation.
            ForeignDocument: The collection holds documents that mongosaver did not write.
            SetupRefused: The server refuses; the message says why and what helps.
        """
        self._driver.run(setup.setup(self._context()))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the latest of its thread and namespace.

        One round trip, unless the checkpoint's values take more than 8 MB.

        Raises:
            UsageError: An identifier is none.
            IncompleteCheckpoint: Something other than mongosaver removed one of its values.
        """
        return self._driver.run(read.get_tuple(self._context(), config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first within each namespace; read in pages as they are consumed.

        Args:
            config: Names the thread; a namespace or checkpoint id narrows further. None lists all
                threads, newest checkpoint first.
            filter: Metadata that must be equal, by top-level key.
            before: A config whose `checkpoint_id` all rows must be smaller than.
            limit: At most so many rows; None is all, 0 none.

        Raises:
            UsageError: An identifier is none.
            ValueError: The limit is negative.
        """
        return self._pages(read.query(config, filter, before, limit))

    def _pages(self, query: read.Query | None) -> Iterator[CheckpointTuple]:
        while query is not None:
            rows, query = self._driver.run(read.page(self._context(), query))
            yield from rows

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint on the parent that `config` names; a second time replaces it.

        Args:
            config: Thread, namespace, and the parent's id as `checkpoint_id`.
            checkpoint: The checkpoint with all values of its channels.
            metadata: Its metadata; scalars of the config's are added, as LangGraph defines it.
            new_versions: The channels that changed, with their new versions.

        Returns:
            The config that names the stored checkpoint.

        Raises:
            UsageError: An identifier is none, or a part is larger than MongoDB takes.
        """
        return self._write(write.put(self._context(), config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote, pending until the next checkpoint.

        A slot is a task and the position in `writes`. A slot that is taken keeps its value; the
        special channels' slots (error, interrupt, resume, scheduled) take the new one.

        Args:
            config: Names the checkpoint that the task ran on.
            writes: Pairs of channel and value.
            task_id: The task.
            task_path: Where the task stands in its super-step; decides the order on reading.
        """
        self._write(write.put_writes(self._context(), config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Remove everything of one thread, in all namespaces. An unknown thread is no error."""
        self._driver.run(delete.delete_thread(self._context(), thread_id))

    def _write(self, plan: Plan[T]) -> T:
        if self._auto_setup and not self._shared.ready:
            with self._setup_lock:
                if not self._shared.ready:
                    self.setup()
        return self._driver.run(plan)

    # --- awaiting, in worker threads

    async def asetup(self) -> None:
        """`setup`, in a worker thread."""
        await asyncio.to_thread(self.setup)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, in a worker thread."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, each page in a worker thread."""
        query: read.Query | None = read.query(config, filter, before, limit)
        while query is not None:
            plan = read.page(self._context(), query)
            rows, query = await asyncio.to_thread(self._driver.run, plan)
            for row in rows:
                yield row

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, in a worker thread; what is given is serialized before the first await."""
        plan = write.put(self._context(), config, checkpoint, metadata, new_versions)
        return await asyncio.to_thread(self._write, plan)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`put_writes`, in a worker thread; serialized before the first await."""
        plan = write.put_writes(self._context(), config, writes, task_id, task_path)
        await asyncio.to_thread(self._write, plan)

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, in a worker thread."""
        await asyncio.to_thread(self.delete_thread, thread_id)
