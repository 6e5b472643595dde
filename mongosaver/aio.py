"""AsyncMongoSaver: the checkpointer on PyMongo's async API, or on Motor.

Each method is one plan run by one driver, awaited. The blocking methods hand the same plans to the
event loop that the saver is used on, for code that runs in another thread of the same program.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection

from mongosaver._base import (
    COLLECTION_NAME,
    DB_NAME,
    BaseSaver,
    open_options,
    runner,
    wrong_collection,
)
from mongosaver.drivers import AsyncDriver
from mongosaver.errors import EventLoopError
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

if TYPE_CHECKING:
    from motor.motor_asyncio import AsyncIOMotorCollection

T = TypeVar("T")


def _is_motor(collection: object) -> bool:
    # Motor is an extra: where it was never imported, nothing can be an object of it.
    motor = sys.modules.get("motor.motor_asyncio")
    return motor is not None and isinstance(collection, motor.AsyncIOMotorCollection)


class _Loops:
    """Which event loop a saver is used on, and the lock for its first setup there."""

    def __init__(self) -> None:
        self.used: asyncio.AbstractEventLoop | None = None
        self._setup: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._setup = WeakKeyDictionary()

    def enter(self) -> asyncio.Lock:
        self.used = asyncio.get_running_loop()
        if self.used not in self._setup:
            self._setup[self.used] = asyncio.Lock()
        return self._setup[self.used]


class AsyncMongoSaver(BaseSaver):
    """Stores LangGraph checkpoints in MongoDB, through PyMongo's async API or Motor.

    The collection given is used, and its siblings `<name>.writes`, `<name>.blobs` and
    `<name>.migrations`. Threads may be used by any number of savers and processes at once.

    The methods without an `a` work from other threads than the event loop's own; called on the
    loop they raise at once, because they would wait for the loop that they block.

    Args:
        collection: A collection of PyMongo's `AsyncMongoClient`, or an `AsyncIOMotorCollection`
            (Motor's maintainers recommend the former). Its client stays the caller's: it is
            never closed here.
        serde: Serializer of state, writes and metadata; LangGraph's own by default.
        auto_setup: Whether the first write applies pending migrations (see `setup`). Where it is
            off, that is somebody else's work, and the first write only looks whether it was done.
        ttl: How long a thread is kept after its last save, as a `timedelta` or in seconds; for
            ever by default. MongoDB removes it one to three tenths of the ttl later (at least 10
            minutes each). Give all savers of a collection the same, and see `apply_ttl`.
        refresh_on_read: Whether reading a thread's state keeps it like a save.

    Raises:
        CollectionTypeError: It is neither kind of collection.
        ConfigurationError: Its write concern is `w=0`, or the ttl is none.

    Example:
        ```python
        from pymongo import AsyncMongoClient
        from mongosaver import AsyncMongoSaver

        client = AsyncMongoClient("mongodb://localhost:27017")
        graph = builder.compile(checkpointer=AsyncMongoSaver(client["app"]["checkpoints"]))
        ```
    """

    def __init__(
        self,
        collection: AsyncCollection[Any] | AsyncIOMotorCollection[Any],
        *,
        serde: SerializerProtocol | None = None,
        auto_setup: bool = True,
        ttl: timedelta | float | None = None,
        refresh_on_read: bool = False,
    ) -> None:
        if not isinstance(collection, AsyncCollection) and not _is_motor(collection):
            raise wrong_collection(
                collection,
                "AsyncMongoSaver",
                "pymongo.asynchronous.collection.AsyncCollection (or Motor's"
                " AsyncIOMotorCollection)",
            )
        super().__init__(
            serde=serde, auto_setup=auto_setup, ttl=ttl, refresh_on_read=refresh_on_read
        )
        self._collection = collection
        self._driver = AsyncDriver(collection)
        self._loops = _Loops()

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls,
        conn_string: str,
        *,
        db_name: str | None = None,
        collection_name: str = COLLECTION_NAME,
        serde: SerializerProtocol | None = None,
        auto_setup: bool = True,
        ttl: timedelta | float | None = None,
        refresh_on_read: bool = False,
    ) -> AsyncIterator[AsyncMongoSaver]:
        """A saver on a client of its own, which is closed at the end of the `async with` block.

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
        client: AsyncMongoClient[Any] = AsyncMongoClient(conn_string, **open_options())
        async with client:
            database = client.get_default_database(default=DB_NAME).name
            saver = cls(
                client[db_name or database][collection_name],
                serde=serde,
                auto_setup=auto_setup,
                ttl=ttl,
                refresh_on_read=refresh_on_read,
            )
            saver._loops.enter()
            yield saver

    # --- awaiting

    async def setup(self) -> None:
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
        await self._run(self._first_use(auto=True))

    asetup = setup

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the latest of its thread and namespace.

        One round trip, unless the checkpoint's values take more than 8 MB.

        Raises:
            UsageError: An identifier is none.
            IncompleteCheckpoint: Something other than mongosaver removed one of its values.
        """
        return await self._run(read.get_tuple(self._context(), config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
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
        query: read.Query | None = read.query(config, filter, before, limit)
        while query is not None:
            rows, query = await self._run(read.page(self._context(), query))
            for row in rows:
                yield row

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint on the parent that `config` names; a second time replaces it.

        What is given is serialized before the first await: the caller may change it afterwards.

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
        return await self._write(
            write.put(self._context(), config, checkpoint, metadata, new_versions)
        )

    async def aput_writes(
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
        await self._write(write.put_writes(self._context(), config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove everything of one thread, in all namespaces. An unknown thread is no error."""
        await self._write(delete.delete_thread(self._context(), thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints and writes of runs, in any thread. Unknown runs are no error.

        That includes what a run wrote to an earlier run's checkpoint by resuming it. Where a later
        run's `DeltaChannel` is rebuilt from what a deleted run wrote, that stays out of sight.

        Raises:
            TypeError: It is one string instead of several, or an id is no text.
        """
        await self._write(runs.delete_for_runs(self._context(), run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of one thread to a new one, on the server; no such source is no error.

        A copy that broke off is completed by repeating the call.

        Raises:
            ThreadExists: The target is the source, or has checkpoints of its own; a ValueError.
        """
        await self._write(copy.copy_thread(self._context(), source_thread_id, target_thread_id))

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
        return await (self._run(plan) if dry_run else self._write(plan))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """For each channel the writes since its last stored value, and that value."""
        plan = history.get_delta_channel_history(self._context(), config, channels)
        return await self._run(plan)

    async def alist_threads(
        self,
        *,
        filter: dict[str, Any] | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> AsyncIterator[ThreadInfo]:
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
        listing: threads.Listing | None = threads.listing(filter, limit, after)
        while listing is not None:
            rows, listing = await self._run(threads.rows(self._context(), listing))
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
            walk = await (self._run(plan) if dry_run else self._write(plan))
            if progress is not None:
                progress(walk.progress)
        return walk.progress

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
            walk = await (self._run(plan) if dry_run else self._write(plan))
            if progress is not None:
                progress(walk.progress)
        return walk.progress

    async def _run(self, plan: Plan[T]) -> T:
        self._loops.enter()
        return await self._driver.run(plan)

    def _first_use(self, *, auto: bool) -> Plan[None]:
        return first_use(self._context(), runner(self._collection), auto=auto)

    async def _write(self, plan: Plan[T]) -> T:
        if not self._shared.ready:
            async with self._loops.enter():
                if not self._shared.ready:
                    await self._run(self._first_use(auto=self._auto_setup))
        return await self._run(plan)

    # --- blocking, from other threads than the loop's own

    def _loop(self) -> asyncio.AbstractEventLoop:
        """The event loop to hand work to.

        Raises:
            EventLoopError: There is none, it has ended, or this is its own thread.
        """
        loop = self._loops.used or self._driver.own_loop()
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not None and (loop is None or here is loop):
            raise EventLoopError(
                "a blocking method of AsyncMongoSaver was called on its own event loop, which it"
                " would wait for forever. Await the method of the same name with an a before it"
                " (graph.ainvoke instead of graph.invoke), or use MongoSaver."
            )
        if loop is None or not loop.is_running():
            raise EventLoopError(
                "a blocking method of AsyncMongoSaver needs the event loop that the saver is used"
                " on to be running in another thread, and there is none. Use MongoSaver in code"
                " without an event loop."
            )
        return loop

    def _blocking(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = self._loop()
        return asyncio.run_coroutine_threadsafe(call(), loop).result()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`aget_tuple`, from another thread."""
        return self._blocking(lambda: self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """`alist`, from another thread."""
        self._loop()
        return self._pages(read.query(config, filter, before, limit))

    def _pages(self, query: read.Query | None) -> Iterator[CheckpointTuple]:
        while query is not None:
            plan = read.page(self._context(), query)
            rows, query = self._blocking(partial(self._run, plan))
            yield from rows

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`aput`, from another thread."""
        return self._blocking(lambda: self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`aput_writes`, from another thread."""
        self._blocking(lambda: self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """`adelete_thread`, from another thread."""
        self._blocking(lambda: self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`adelete_for_runs`, from another thread."""
        self._blocking(lambda: self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`acopy_thread`, from another thread."""
        self._blocking(lambda: self.acopy_thread(source_thread_id, target_thread_id))

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
        """`aprune`, from another thread."""
        return self._blocking(
            lambda: self.aprune(
                thread_ids,
                strategy=strategy,
                keep_last=keep_last,
                older_than=older_than,
                skip_interrupted=skip_interrupted,
                dry_run=dry_run,
            )
        )

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`aget_delta_channel_history`, from another thread."""
        return self._blocking(
            lambda: self.aget_delta_channel_history(config=config, channels=channels)
        )

    def list_threads(
        self,
        *,
        filter: dict[str, Any] | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Iterator[ThreadInfo]:
        """`alist_threads`, from another thread."""
        self._loop()
        return self._rows(threads.listing(filter, limit, after))

    def _rows(self, listing: threads.Listing | None) -> Iterator[ThreadInfo]:
        while listing is not None:
            plan = threads.rows(self._context(), listing)
            rows, listing = self._blocking(partial(self._run, plan))
            yield from rows

    def apply_ttl(
        self,
        *,
        thread_ids: Iterable[str] | None = None,
        after: str | None = None,
        dry_run: bool = False,
        progress: Callable[[TtlProgress], object] | None = None,
    ) -> TtlProgress:
        """`aapply_ttl`, from another thread."""
        return self._blocking(
            lambda: self.aapply_ttl(
                thread_ids=thread_ids,
                after=after,
                dry_run=dry_run,
                progress=progress,
            )
        )

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
        """`aprune_idle`, from another thread."""
        return self._blocking(
            lambda: self.aprune_idle(
                older_than=older_than,
                strategy=strategy,
                keep_last=keep_last,
                skip_interrupted=skip_interrupted,
                dry_run=dry_run,
                after=after,
                progress=progress,
            )
        )
