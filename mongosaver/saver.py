"""MongoSaver: the checkpointer on PyMongo's blocking API.

Each method is one plan run by one driver. The async methods run the same plans in worker threads,
so that one saver also serves graphs that are awaited.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from pymongo import MongoClient
from pymongo.collection import Collection

from mongosaver._base import (
    COLLECTION_NAME,
    DB_NAME,
    BaseSaver,
    open_options,
    runner,
    wrong_collection,
)
from mongosaver.drivers import Driver
from mongosaver.migrations import first_use
from mongosaver.ops import Plan
from mongosaver.plans import (
    copy,
    delete,
    expiry,
    history,
    idle,
    prune,
    read,
    runs,
    threads,
    write,
)
from mongosaver.plans.expiry import TtlProgress
from mongosaver.plans.idle import IdleProgress
from mongosaver.plans.prune import Pruned
from mongosaver.plans.threads import ThreadInfo

T = TypeVar("T")


class MongoSaver(BaseSaver):
    """Stores LangGraph checkpoints in MongoDB, through PyMongo.

    The collection given is used, and its siblings `<name>.writes`, `<name>.blobs` and
    `<name>.migrations`. Threads may be used by any number of savers and processes at once.

    Args:
        collection: A PyMongo collection. Its client stays the caller's: it is never closed here.
        serde: Serializer of state, writes and metadata; LangGraph's own by default.
        auto_setup: Whether the first write applies pending migrations (see `setup`). Where it is
            off, that is somebody else's work, and the first write only looks whether it was done.
        ttl: How long a thread is kept after its last save, as a `timedelta` or in seconds; for
            ever by default. MongoDB removes it one to three tenths of the ttl later (at least 10
            minutes each). Give all savers of a collection the same, and see `apply_ttl`.
        refresh_on_read: Whether reading a thread's state keeps it like a save.

    Raises:
        CollectionTypeError: It is no PyMongo collection.
        ConfigurationError: Its write concern is `w=0`, or the ttl is none.

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
        ttl: timedelta | float | None = None,
        refresh_on_read: bool = False,
    ) -> None:
        if not isinstance(collection, Collection):
            raise wrong_collection(collection, "MongoSaver", "pymongo.collection.Collection")
        super().__init__(
            serde=serde, auto_setup=auto_setup, ttl=ttl, refresh_on_read=refresh_on_read
        )
        self._collection = collection
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
        ttl: timedelta | float | None = None,
        refresh_on_read: bool = False,
    ) -> Iterator[MongoSaver]:
        """A saver on a client of its own, which is closed at the end of the `with` block.

        Args:
            conn_string: A MongoDB connection string (MongoDB manual, "Connection Strings").
            db_name: The database; by default the one that the connection string names, else
                `langgraph`.
            collection_name: The collection for checkpoints, and the stem of its siblings' names.
            serde: As in the constructor.
            auto_setup: As in the constructor.
            ttl: As in the constructor.
            refresh_on_read: As in the constructor.
        """
        client: MongoClient[Any] = MongoClient(conn_string, **open_options())
        with client:
            database = client.get_default_database(default=DB_NAME).name
            yield cls(
                client[db_name or database][collection_name],
                serde=serde,
                auto_setup=auto_setup,
                ttl=ttl,
                refresh_on_read=refresh_on_read,
            )

    # --- blocking

    def setup(self) -> None:
        """Apply pending migrations: collections and indexes. Safe to repeat, and from many at once.

        Needs the role `readWrite`, or less: see "Deploy with least privilege". Without a call the
        first write does it, unless `auto_setup` is off. On a large collection use the command
        `mongosaver migrate` beforehand, which shows how far it is.

        Raises:
            CollationRefused: A collection has a default collation.
            ForeignDocument: The collection holds documents that mongosaver did not write.
            MigrationLocked: Another process has been at it for more than a minute.
            SchemaTooNew: A newer mongosaver has changed the schema in a way that this one breaks.
            SetupRefused: The server refuses; the message says why and what helps.
        """
        self._driver.run(self._first_use(auto=True))

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
        self._write(delete.delete_thread(self._context(), thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints and writes of runs, in any thread. Unknown runs are no error.

        That includes what a run wrote to an earlier run's checkpoint by resuming it. Where a later
        run's `DeltaChannel` is rebuilt from what a deleted run wrote, that stays out of sight.

        Raises:
            TypeError: It is one string instead of several, or an id is no text.
        """
        self._write(runs.delete_for_runs(self._context(), run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of one thread to a new one, on the server; no such source is no error.

        A copy that broke off is completed by repeating the call.

        Raises:
            ThreadExists: The target is the source, or has checkpoints of its own; a ValueError.
        """
        self._write(copy.copy_thread(self._context(), source_thread_id, target_thread_id))

    def prune(  # type: ignore[override]  # counts instead of None
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: datetime | timedelta | None = None,
        skip_interrupted: bool | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Remove old checkpoints of threads; see `mongosaver.plans.prune.prune`."""
        plan = prune.prune(
            self._context(),
            thread_ids,
            strategy=strategy,
            keep_last=keep_last,
            older_than=older_than,
            skip_interrupted=skip_interrupted,
            dry_run=dry_run,
        )
        return self._driver.run(plan) if dry_run else self._write(plan)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """For each channel the writes since its last stored value, and that value."""
        plan = history.get_delta_channel_history(self._context(), config, channels)
        return self._driver.run(plan)

    def list_threads(
        self,
        *,
        filter: dict[str, Any] | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Iterator[ThreadInfo]:
        """Threads, the latest active first; read in pages as they are consumed.

        An index tells which threads there are and what they consist of. Of each only its newest
        checkpoint is looked at, without state. About five round trips per 100 threads.

        Args:
            filter: What the latest checkpoint's metadata must equal, by top-level key, compared
                as `list` does. The latest is the root graph's newest, if there is one.
            limit: At most so many rows; None is all, 0 none.
            after: The `cursor` of a row: the list goes on after that one.

        Raises:
            ConfigurationError: `after` is no cursor.
            ValueError: The limit is negative.
        """
        return self._rows(threads.listing(filter, limit, after))

    def _rows(self, listing: threads.Listing | None) -> Iterator[ThreadInfo]:
        while listing is not None:
            rows, listing = self._driver.run(threads.rows(self._context(), listing))
            yield from rows

    def apply_ttl(
        self,
        *,
        thread_ids: Iterable[str] | None = None,
        after: str | None = None,
        dry_run: bool = False,
        progress: Callable[[TtlProgress], object] | None = None,
    ) -> TtlProgress:
        """Let the threads that are stored expire as this saver's ttl says.

        That is how a ttl is turned on or changed for existing threads, and how it is turned off:
        by a saver without one. It counts from each thread's last save. Threads in use are moved
        by their next save anyway. Safe to repeat; give all other savers the new ttl first.

        Args:
            thread_ids: Only these threads; by default all.
            after: Only threads whose id sorts after this one: where an earlier call broke off.
            dry_run: Whether to count only.
            progress: Called after each page of threads.

        Raises:
            TypeError: `thread_ids` is one string instead of several, or an id is no text.
        """
        walk = expiry.walk(thread_ids, after, dry_run=dry_run)
        while not walk.progress.done:
            plan = expiry.apply(self._context(), walk)
            walk = self._driver.run(plan) if dry_run else self._write(plan)
            if progress is not None:
                progress(walk.progress)
        return walk.progress

    def prune_idle(
        self,
        *,
        older_than: datetime | timedelta,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        skip_interrupted: bool = True,
        dry_run: bool = False,
        after: str | None = None,
        progress: Callable[[IdleProgress], object] | None = None,
    ) -> IdleProgress:
        """Prune all threads that were not saved since a time; a page of threads after another.

        Args:
            older_than: The time of a thread's newest checkpoint must be before this time, or its
                age above this age.
            strategy: `keep_latest` keeps the newest checkpoint of each namespace, and what it
                needs; `delete` keeps nothing.
            keep_last: With `keep_latest`: how many of each namespace stay; 1 by default.
            skip_interrupted: Whether threads that wait for an answer to an interrupt stay.
            dry_run: Whether to count only.
            after: Only threads whose id sorts after this one: where an earlier call broke off.
            progress: Called after each page of threads.

        Raises:
            ConfigurationError: An option is unknown, or does not go with another.
        """
        walk = idle.walk(
            self._context(),
            older_than,
            strategy=strategy,
            keep_last=keep_last,
            skip_interrupted=skip_interrupted,
            dry_run=dry_run,
            after=after,
        )
        while not walk.progress.done:
            plan = idle.step(self._context(), walk)
            walk = self._driver.run(plan) if dry_run else self._write(plan)
            if progress is not None:
                progress(walk.progress)
        return walk.progress

    def _first_use(self, *, auto: bool) -> Plan[None]:
        return first_use(self._context(), runner(self._collection), auto=auto)

    def _write(self, plan: Plan[T]) -> T:
        if not self._shared.ready:
            with self._setup_lock:
                if not self._shared.ready:
                    self._driver.run(self._first_use(auto=self._auto_setup))
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

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, in a worker thread."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, in a worker thread."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(  # type: ignore[override]  # counts instead of None
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: datetime | timedelta | None = None,
        skip_interrupted: bool | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """`prune`, in a worker thread."""
        return await asyncio.to_thread(
            self.prune,
            thread_ids,
            strategy=strategy,
            keep_last=keep_last,
            older_than=older_than,
            skip_interrupted=skip_interrupted,
            dry_run=dry_run,
        )

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, in a worker thread."""
        return await asyncio.to_thread(
            self.get_delta_channel_history, config=config, channels=channels
        )

    async def alist_threads(
        self,
        *,
        filter: dict[str, Any] | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> AsyncIterator[ThreadInfo]:
        """`list_threads`, each page in a worker thread."""
        listing: threads.Listing | None = threads.listing(filter, limit, after)
        while listing is not None:
            plan = threads.rows(self._context(), listing)
            rows, listing = await asyncio.to_thread(self._driver.run, plan)
            for row in rows:
                yield row

    async def aapply_ttl(
        self,
        *,
        thread_ids: Iterable[str] | None = None,
        after: str | None = None,
        dry_run: bool = False,
        progress: Callable[[TtlProgress], object] | None = None,
    ) -> TtlProgress:
        """`apply_ttl`, in a worker thread."""
        return await asyncio.to_thread(
            self.apply_ttl,
            thread_ids=thread_ids,
            after=after,
            dry_run=dry_run,
            progress=progress,
        )

    async def aprune_idle(
        self,
        *,
        older_than: datetime | timedelta,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        skip_interrupted: bool = True,
        dry_run: bool = False,
        after: str | None = None,
        progress: Callable[[IdleProgress], object] | None = None,
    ) -> IdleProgress:
        """`prune_idle`, in a worker thread."""
        return await asyncio.to_thread(
            self.prune_idle,
            older_than=older_than,
            strategy=strategy,
            keep_last=keep_last,
            skip_interrupted=skip_interrupted,
            dry_run=dry_run,
            after=after,
            progress=progress,
        )
