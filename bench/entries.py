"""The savers that are compared, each behind the same blocking interface.

An *entry* is one line of a table: a saver, used in one way. Opening it gives a *session*: the saver
on an empty database of its own, with what the benchmark wants to know of that database (bytes
stored, bytes that crossed the network, commands sent), counted so that timed operations pay
nothing for it. An operation is returned, not run: what a user would not wait for is done before.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import sqlite3
import struct
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import bson
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pymongo import AsyncMongoClient, MongoClient
from pymongo.monitoring import CommandListener

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from bench.servers import Servers


@dataclass(frozen=True)
class Stored:
    """Bytes that a database holds: as written, on disk after a flush, and its indexes on disk.

    A figure that a database does not tell is None; SQLite's indexes are within `disk`.
    """

    documents: int
    logical: int
    disk: int | None
    indexes: int | None


Maker: TypeAlias = "Callable[[], Any]"
"""Makes a saver on connections that are open."""


@dataclass
class Record:
    """What went over the wire while it was kept."""

    commands: list[str] = field(default_factory=list)
    sent: int = 0
    received: int = 0
    seconds: float = 0.0


class Session:
    """A saver on a database of its own; here for a saver that is used by its plain methods."""

    blocking = True
    connect: Callable[[Recorder | None, bool], contextlib.AbstractContextManager[Maker]]

    def __init__(self, saver: Any) -> None:
        self.saver = saver
        self.record = Record()
        self.make: Maker | None = None

    @contextlib.contextmanager
    def connected(self, recorder: Recorder | None = None, *, hasty: bool = False) -> Iterator[None]:
        """Uses a new saver, on connections of its own, inside the block.

        Args:
            recorder: What records its commands, if they are to be recorded.
            hasty: Whether writes may be lost when the server dies: for filling threads.
        """
        before = self.make, self.saver, self.record
        with self.connect(recorder, hasty) as make:
            self.make = make
            self.forget()
            if recorder is not None:
                self.record = recorder.record
            try:
                yield
            finally:
                self.make, self.saver, self.record = before

    def forget(self) -> None:
        """Uses a new saver from here on, on the connections there are: it remembers nothing."""
        if self.make is not None:
            self.saver = self.make()

    # Operations: each is prepared, and run by calling what is returned.

    def put(self, *arguments: Any) -> Callable[[], Any]:
        """The saver's `put`."""
        return self._operation("put", *arguments)

    def put_writes(self, *arguments: Any) -> Callable[[], Any]:
        """The saver's `put_writes`."""
        return self._operation("put_writes", *arguments)

    def get_tuple(self, config: Any) -> Callable[[], Any]:
        """The saver's `get_tuple`."""
        return self._operation("get_tuple", config)

    def delete_thread(self, thread_id: str) -> Callable[[], Any]:
        """The saver's `delete_thread`."""
        return self._operation("delete_thread", thread_id)

    def list(self, config: Any, limit: int) -> Callable[[], list[Any]]:
        """The saver's `list`, to its end."""
        if self.blocking:
            return lambda: list(self.saver.list(config, limit=limit))

        async def rows() -> list[Any]:
            return [row async for row in self.saver.alist(config, limit=limit)]

        return lambda: self.run(rows())

    def copy_thread(self, source: str, target: str) -> Callable[[], Any]:
        """The saver's `copy_thread`."""
        return self._operation("copy_thread", source, target)

    def prune(self, thread_id: str) -> Callable[[], Any]:
        """The saver's `prune` of one thread to its latest checkpoints."""
        return self._operation("prune", [thread_id])

    def get_state(self, graph: Any, config: Any) -> Callable[[], Any]:
        """The state of a thread, as a graph that has this saver loads it."""
        if self.blocking:
            return functools.partial(graph.get_state, config)
        return lambda: self.run(graph.aget_state(config))

    def invoke(self, graph: Any, values: Any, config: Any) -> Callable[[], Any]:
        """A run of a graph that has this saver."""
        if self.blocking:
            return functools.partial(graph.invoke, values, config)
        return lambda: self.run(graph.ainvoke(values, config))

    def _operation(self, method: str, *arguments: Any) -> Callable[[], Any]:
        if self.blocking:
            return functools.partial(getattr(self.saver, method), *arguments)
        coroutine_function = getattr(self.saver, f"a{method}")
        return lambda: self.run(coroutine_function(*arguments))

    def next_version(self, current: Any) -> Any:
        """A channel's next version."""
        return self.saver.get_next_version(current, None)

    # Coroutines run on one event loop of the session's own.

    @functools.cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The session's event loop."""
        return asyncio.new_event_loop()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine to its end."""
        return self.loop.run_until_complete(coroutine)

    def close(self) -> None:
        """Gives back what the session opened."""
        if "loop" in self.__dict__:
            self.run(self.loop.shutdown_asyncgens())
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()

    # What the database knows.

    def stored(self) -> Stored | None:
        """What the database holds now, flushed."""
        return None

    def traffic(self) -> tuple[int, int] | None:
        """Bytes sent to and received from the server so far; differences mean something."""
        return None


# ------------------------------------------------------------------------------------- MongoDB


class Recorder(CommandListener):
    """Keeps a record of a session's commands.

    Args:
        sizes: Whether to count bytes, by encoding again: never in a session that is timed.
    """

    def __init__(self, *, sizes: bool = True) -> None:
        self.record = Record()
        self.sizes = sizes

    def started(self, event: Any) -> None:
        """A command goes out."""
        self.record.commands.append(event.command_name)
        if self.sizes:
            self.record.sent += len(bson.encode(event.command))

    def succeeded(self, event: Any) -> None:
        """A reply came back."""
        self._ended(event, event.reply)

    def failed(self, event: Any) -> None:
        """An error came back."""
        self._ended(event, event.failure)

    def _ended(self, event: Any, reply: Any) -> None:
        self.record.seconds += event.duration_micros / 1e6
        if self.sizes:
            self.record.received += len(bson.encode(reply))


class MongoSession(Session):
    """A saver on a MongoDB database."""

    def __init__(self, uri: str, database: str, saver: Any, recorder: Recorder | None) -> None:
        super().__init__(saver)
        self.client: MongoClient[dict[str, Any]] = MongoClient(uri)
        self.database = self.client[database]
        if recorder is not None:
            self.record = recorder.record
        self._unwanted: dict[str, int] | None = None
        self._own = (0, 0)
        self._asked = 0

    def stored(self) -> Stored:
        """Sums `collStats` over the collections, after `fsync` has written a checkpoint."""
        self.client.admin.command("fsync")
        stats = [
            self.database.command("collStats", name)
            for name in self.database.list_collection_names()
        ]
        return Stored(
            documents=sum(each["count"] for each in stats),
            logical=sum(each["size"] for each in stats),
            disk=sum(each["storageSize"] for each in stats),
            indexes=sum(each["totalIndexSize"] for each in stats),
        )

    def traffic(self) -> tuple[int, int]:
        """What the server has counted, less what asking for it costs."""
        if self._unwanted is None:
            sections = self.client.admin.command("serverStatus")
            self._unwanted = {name: 0 for name in sections if name not in {"network", "ok"}}
            before = self._network()
            after = self._network()
            self._own = (after[0] - before[0], after[1] - before[1])
        sent, received = self._network()
        # Each call is counted by the one after it: once between two readings.
        self._asked += 1
        return sent - self._asked * self._own[0], received - self._asked * self._own[1]

    def _network(self) -> tuple[int, int]:
        status = self.client.admin.command("serverStatus", 1, **(self._unwanted or {}))
        return status["network"]["bytesIn"], status["network"]["bytesOut"]

    def close(self) -> None:
        """Drops the database."""
        super().close()
        self.client.drop_database(self.database.name)
        self.client.close()


class RawSession(MongoSession):
    """PyMongo alone: the same bytes inserted and found, with an index as the savers have it.

    The floor for any saver that keeps whole states. With `serde` the operation also makes the bytes
    and reads them; without, that is done before, or not at all.
    """

    def __init__(self, uri: str, database: str, *, serde: bool) -> None:
        super().__init__(uri, database, None, None)
        self.serde = JsonPlusSerializer()
        self.timed_serde = serde
        self.checkpoints = self.database["checkpoints"]
        self.writes = self.database["writes"]
        key = [("thread_id", 1), ("checkpoint_ns", 1), ("checkpoint_id", -1)]
        self.checkpoints.create_index(key, unique=True)
        self.writes.create_index([*key, ("task_id", 1), ("idx", 1)], unique=True)

    def next_version(self, current: Any) -> Any:
        """Whole numbers are enough here."""
        return (current or 0) + 1

    def put(
        self,
        config: Any,
        checkpoint: Any,
        metadata: Any,
        versions: Any,
    ) -> Callable[[], Any]:
        """One insert."""
        place = config["configurable"]

        def document() -> dict[str, Any]:
            kind, payload = self.serde.dumps_typed(checkpoint)
            return {
                "thread_id": place["thread_id"],
                "checkpoint_ns": place["checkpoint_ns"],
                "checkpoint_id": checkpoint["id"],
                "parent_checkpoint_id": place.get("checkpoint_id"),
                "type": kind,
                "checkpoint": payload,
                "metadata": self.serde.dumps_typed(metadata)[1],
            }

        return self._insert(document, self.checkpoints.insert_one)

    def put_writes(self, config: Any, writes: Sequence[Any], task_id: str) -> Callable[[], Any]:
        """One insert of all the writes."""
        place = config["configurable"]

        def documents() -> list[dict[str, Any]]:
            typed = [(channel, *self.serde.dumps_typed(value)) for channel, value in writes]
            return [
                {**place, "task_id": task_id, "idx": i, "channel": c, "type": kind, "value": value}
                for i, (c, kind, value) in enumerate(typed)
            ]

        return self._insert(documents, self.writes.insert_many)

    def _insert(self, make: Callable[[], Any], insert: Callable[[Any], Any]) -> Callable[[], Any]:
        if self.timed_serde:
            return lambda: insert(make())
        made = make()
        return lambda: insert(made)

    def get_tuple(self, config: Any) -> Callable[[], Any]:
        """One find."""
        place = config["configurable"]

        def find() -> Any:
            found = self.checkpoints.find_one(place, sort=[("checkpoint_id", -1)])
            if found is not None and self.timed_serde:
                return self.serde.loads_typed((found["type"], found["checkpoint"]))
            return found

        return find


# ---------------------------------------------------------------------------------- PostgreSQL

# Linux, include/uapi/linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received.
_TCP_INFO_BYTES = struct.Struct("=120xQQ")


class PostgresSession(Session):
    """A saver on a PostgreSQL database, with a pool of connections as applications have it."""

    def __init__(self, dsn: str, database: str) -> None:
        super().__init__(None)
        self.psycopg = import_module("psycopg")
        self.name = database
        self.server = dsn
        self.dsn = f"{dsn} dbname={database}"
        self.sockets: list[socket.socket] = []
        with self._connection("postgres") as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {database}")

    def _connection(self, database: str) -> Any:
        return self.psycopg.connect(f"{self.server} dbname={database}", autocommit=True)

    def pool_arguments(
        self, cursor: Any, recorder: Recorder | None, *, hasty: bool = False
    ) -> dict[str, Any]:
        """What `from_conn_string` gives a connection, for each connection of a pool.

        Args:
            cursor: The cursor class that the saver would use.
            recorder: What counts the statements, if they are to be counted.
            hasty: Whether a commit need not wait for the disk.
        """
        connection = {
            "autocommit": True,
            "prepare_threshold": 0,
            "row_factory": import_module("psycopg.rows").dict_row,
        }
        if hasty:
            connection["options"] = "-c synchronous_commit=off"
        if recorder is not None:
            self.record = recorder.record
            connection["cursor_factory"] = _counting(cursor, recorder.record)
        return {"min_size": 4, "max_size": 20, "kwargs": connection}

    def watch(self, connection: Any) -> None:
        """Notes a connection's socket: the kernel counts its bytes."""
        if sys.platform == "linux":
            self.sockets.append(socket.socket(fileno=os.dup(connection.fileno())))

    def traffic(self) -> tuple[int, int] | None:
        """Sums what the kernel has counted for the connections."""
        if sys.platform != "linux":
            return None
        size = _TCP_INFO_BYTES.size
        counts = [
            _TCP_INFO_BYTES.unpack(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size))
            for each in self.sockets
        ]
        return sum(sent for sent, _ in counts), sum(received for _, received in counts)

    def stored(self) -> Stored:
        """Sums sizes over the tables, after a checkpoint."""
        documents = logical = disk = indexes = 0
        with self._connection(self.name) as connection:
            connection.execute("CHECKPOINT")
            tables = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            ).fetchall()
            for (table,) in tables:
                columns = connection.execute(
                    "SELECT column_name, data_type FROM information_schema.columns"
                    " WHERE table_name = %s",
                    [table],
                ).fetchall()
                sizes = " + ".join(
                    f"coalesce(octet_length({name}{'' if kind == 'bytea' else '::text'}), 0)"
                    for name, kind in columns
                )
                count, size, total, index = connection.execute(
                    f"SELECT count(*), coalesce(sum({sizes}), 0),"
                    f" pg_total_relation_size('{table}'), pg_indexes_size('{table}') FROM {table}"
                ).fetchone()
                documents += count
                logical += int(size)
                disk += total - index
                indexes += index
        return Stored(documents, logical, disk, indexes)

    def copy_rows(self, source: str, target: str) -> None:
        """Copies a thread's rows by SQL, for a saver that cannot."""
        with self._connection(self.name) as connection:
            for table in ("checkpoint_blobs", "checkpoint_writes", "checkpoints"):
                found = connection.execute(
                    "SELECT column_name FROM information_schema.columns"
                    " WHERE table_name = %s AND column_name <> 'thread_id'",
                    [table],
                ).fetchall()
                columns = ", ".join(column for (column,) in found)
                connection.execute(
                    f"INSERT INTO {table} (thread_id, {columns})"
                    f" SELECT %s, {columns} FROM {table} WHERE thread_id = %s",
                    [target, source],
                )

    def close(self) -> None:
        """Drops the database."""
        super().close()
        for each in self.sockets:
            each.close()
        with self._connection("postgres") as connection:
            connection.execute(f"DROP DATABASE {self.name} WITH (FORCE)")


def _counting(base: Any, record: Record) -> Any:
    """A cursor class that notes each statement's first word."""
    note = record.commands.append

    if issubclass(base, import_module("psycopg").AsyncCursor):

        class AsyncCounting(base):
            async def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
                note(_verb(query))
                return await super().execute(query, *arguments, **options)

            async def executemany(self, query: Any, rows: Any, **options: Any) -> Any:
                rows = list(rows)
                record.commands.extend([_verb(query)] * len(rows))
                return await super().executemany(query, rows, **options)

        return AsyncCounting

    class Counting(base):
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            note(_verb(query))
            return super().execute(query, *arguments, **options)

        def executemany(self, query: Any, rows: Any, **options: Any) -> Any:
            rows = list(rows)
            record.commands.extend([_verb(query)] * len(rows))
            return super().executemany(query, rows, **options)

    return Counting


def _verb(query: Any) -> str:
    words = str(query).split(None, 1)
    return words[0].lower() if words else ""


# -------------------------------------------------------------------------- SQLite and in memory


class SqliteSession(Session):
    """A saver on an SQLite file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None)
        self.path = folder / "checkpoints.sqlite"

    def stored(self) -> Stored:
        """Sums the columns' lengths; the file's size after the log was folded in."""
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            documents = logical = 0
            for (table,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall():
                columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
                sizes = " + ".join(f"coalesce(length(cast({name} AS BLOB)), 0)" for name in columns)
                count, size = connection.execute(
                    f"SELECT count(*), coalesce(sum({sizes}), 0) FROM {table}"
                ).fetchone()
                documents += count
                logical += size
        return Stored(documents, logical, self.path.stat().st_size, None)


class MemorySession(Session):
    """The saver that keeps everything in the process: what LangGraph itself costs."""

    def stored(self) -> Stored:
        """Sums the payloads that the saver's dictionaries hold."""
        checkpoints = [
            each
            for namespaces in self.saver.storage.values()
            for rows in namespaces.values()
            for each in rows.values()
        ]
        writes = [each for rows in self.saver.writes.values() for each in rows.values()]
        blobs = list(self.saver.blobs.values())
        logical = sum(len(row[0][1]) + len(row[1][1]) for row in checkpoints)
        logical += sum(len(write[2][1]) for write in writes)
        logical += sum(len(blob[1]) for blob in blobs)
        return Stored(len(checkpoints) + len(writes) + len(blobs), logical, None, None)


# -------------------------------------------------------------------------------------- entries


@contextlib.contextmanager
def _mongo_session(
    servers: Servers,
    database: str,
    recorder: Recorder | None,
    make: Callable[[Any], Any],
    *,
    blocking: bool = True,
) -> Iterator[Session]:
    """A session whose savers are made of a client."""

    @contextlib.contextmanager
    def connect(recorder: Recorder | None, hasty: bool) -> Iterator[Maker]:
        kind: Any = MongoClient if blocking else AsyncMongoClient
        options = {"w": 1} if hasty else {}
        client = kind(servers.mongodb, event_listeners=[recorder] if recorder else [], **options)
        try:
            yield lambda: make(client)
        finally:
            closed = client.close()
            if closed is not None:
                session.run(closed)

    session = MongoSession(servers.mongodb or "", database, None, recorder)
    session.blocking = blocking
    session.connect = connect
    with contextlib.closing(session), session.connected(recorder):
        yield session


@contextlib.contextmanager
def _mongosaver(servers: Servers, database: str, recorder: Recorder | None) -> Iterator[Session]:
    saver_class = import_module("mongosaver").MongoSaver

    def make(client: Any) -> Any:
        return saver_class(client[database]["checkpoints"])

    with _mongo_session(servers, database, recorder, make) as session:
        session.saver.setup()
        yield session


@contextlib.contextmanager
def _mongosaver_cold(
    servers: Servers, database: str, recorder: Recorder | None
) -> Iterator[Session]:
    """Each operation by a new saver, as where another process has the thread's next turn."""
    with _mongosaver(servers, database, recorder) as session:
        warm = session.saver
        session.saver = _Forgetful(lambda: type(warm)(warm._collection))  # noqa: SLF001
        yield session


class _Forgetful:
    """A saver of which a new one is made whenever a method is asked for, and before it is timed."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        saver = self._make()
        # It has checked the schema: that is once in the life of a process.
        saver._shared.ready = True  # noqa: SLF001
        return getattr(saver, name)


@contextlib.contextmanager
def _mongosaver_async(
    servers: Servers, database: str, recorder: Recorder | None
) -> Iterator[Session]:
    saver_class = import_module("mongosaver").AsyncMongoSaver

    def make(client: Any) -> Any:
        return saver_class(client[database]["checkpoints"])

    with _mongo_session(servers, database, recorder, make, blocking=False) as session:
        session.run(session.saver.setup())
        yield session


@contextlib.contextmanager
def _official(servers: Servers, database: str, recorder: Recorder | None) -> Iterator[Session]:
    saver_class = import_module("langgraph.checkpoint.mongodb").MongoDBSaver

    def make(client: Any) -> Any:
        return saver_class(client, db_name=database)

    with _mongo_session(servers, database, recorder, make) as session:
        yield session


@contextlib.contextmanager
def _raw(
    servers: Servers, database: str, recorder: Recorder | None, *, serde: bool
) -> Iterator[Session]:
    del recorder
    with contextlib.closing(RawSession(servers.mongodb or "", database, serde=serde)) as session:
        yield session


@contextlib.contextmanager
def _postgres(servers: Servers, database: str, recorder: Recorder | None) -> Iterator[Session]:
    saver_class = import_module("langgraph.checkpoint.postgres").PostgresSaver

    @contextlib.contextmanager
    def connect(recorder: Recorder | None, hasty: bool) -> Iterator[Maker]:
        arguments = session.pool_arguments(session.psycopg.Cursor, recorder, hasty=hasty)
        with import_module("psycopg_pool").ConnectionPool(
            session.dsn, configure=session.watch, open=True, **arguments
        ) as pool:
            pool.wait()
            yield lambda: saver_class(pool)

    session = PostgresSession(servers.postgres or "", database)
    session.connect = connect
    with contextlib.closing(session), session.connected(recorder):
        session.saver.setup()
        yield session


@contextlib.contextmanager
def _postgres_async(
    servers: Servers, database: str, recorder: Recorder | None
) -> Iterator[Session]:
    saver_class = import_module("langgraph.checkpoint.postgres.aio").AsyncPostgresSaver

    async def watch(connection: Any) -> None:
        session.watch(connection)

    @contextlib.contextmanager
    def connect(recorder: Recorder | None, hasty: bool) -> Iterator[Maker]:
        arguments = session.pool_arguments(session.psycopg.AsyncCursor, recorder, hasty=hasty)

        async def open_pool() -> Any:
            pool = import_module("psycopg_pool").AsyncConnectionPool(
                session.dsn, configure=watch, open=False, **arguments
            )
            await pool.open(wait=True)
            return pool

        async def make() -> Any:  # its constructor looks for the loop that runs
            return saver_class(pool)

        pool = session.run(open_pool())
        try:
            yield lambda: session.run(make())
        finally:
            session.run(pool.close())

    session = PostgresSession(servers.postgres or "", database)
    session.blocking = False
    session.connect = connect
    with contextlib.closing(session), session.connected(recorder):
        session.run(session.saver.setup())
        yield session


@contextlib.contextmanager
def _sqlite(servers: Servers, database: str, recorder: Recorder | None) -> Iterator[Session]:
    del servers
    saver_class = import_module("langgraph.checkpoint.sqlite").SqliteSaver
    with (
        tempfile.TemporaryDirectory(prefix=f"mongosaver-{database}-") as folder,
        contextlib.closing(SqliteSession(Path(folder))) as session,
        saver_class.from_conn_string(str(session.path)) as saver,
    ):
        saver.setup()
        session.saver = saver
        if recorder is not None:
            saver.conn.set_trace_callback(lambda text: session.record.commands.append(_verb(text)))
        yield session


@contextlib.contextmanager
def _sqlite_async(servers: Servers, database: str, recorder: Recorder | None) -> Iterator[Session]:
    del servers, recorder
    saver_class = import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver
    with (
        tempfile.TemporaryDirectory(prefix=f"mongosaver-{database}-") as folder,
        contextlib.closing(SqliteSession(Path(folder))) as session,
    ):
        session.blocking = False
        opened = saver_class.from_conn_string(str(session.path))
        session.saver = session.run(opened.__aenter__())
        session.run(session.saver.setup())
        try:
            yield session
        finally:
            session.run(opened.__aexit__(None, None, None))


@contextlib.contextmanager
def _memory(servers: Servers, database: str, recorder: Recorder | None) -> Iterator[Session]:
    del servers, database, recorder
    with contextlib.closing(MemorySession(InMemorySaver())) as session:
        yield session


@dataclass(frozen=True)
class Entry:
    """One line of the tables: a saver and how it is used."""

    name: str
    label: str
    peer: str
    open_session: Callable[
        [Servers, str, Recorder | None], contextlib.AbstractContextManager[Session]
    ]
    server: str | None = None
    modules: tuple[str, ...] = ()

    def absence(self, servers: Servers) -> str | None:
        """Why this entry cannot be measured here, if so."""
        for module in self.modules:
            try:
                import_module(module)
            except ImportError as error:
                return f"{module} cannot be imported: {error}"
        if self.server is not None and self.server in servers.missing:
            return f"no {self.server}: {servers.missing[self.server]}"
        return None

    @contextlib.contextmanager
    def session(
        self, servers: Servers, purpose: str, recorder: Recorder | None = None
    ) -> Iterator[Session]:
        """Opens the saver on an empty database of its own.

        Args:
            servers: The servers of this run.
            purpose: Part of the database's name.
            recorder: What records the commands, if they are to be recorded.
        """
        database = f"bench_{purpose}_{self.name}".replace("-", "_")
        with self.open_session(servers, database, recorder) as session:
            yield session


OURS = "mongosaver"

ENTRIES = {
    entry.name: entry
    for entry in (
        Entry("mongosaver", "mongosaver", OURS, _mongosaver, "MongoDB", ("mongosaver.saver",)),
        Entry(
            "mongosaver-cold",
            "mongosaver, remembering nothing",
            OURS,
            _mongosaver_cold,
            "MongoDB",
            ("mongosaver.saver",),
        ),
        Entry(
            "mongosaver-async",
            "mongosaver, async",
            OURS,
            _mongosaver_async,
            "MongoDB",
            ("mongosaver.aio",),
        ),
        Entry(
            "official",
            "official MongoDB",
            "official",
            _official,
            "MongoDB",
            ("langgraph.checkpoint.mongodb",),
        ),
        Entry(
            "official-again",
            "official MongoDB, entered twice",
            "official",
            _official,
            "MongoDB",
            ("langgraph.checkpoint.mongodb",),
        ),
        Entry(
            "postgres",
            "Postgres",
            "postgres",
            _postgres,
            "PostgreSQL",
            ("langgraph.checkpoint.postgres", "psycopg_pool"),
        ),
        Entry(
            "postgres-async",
            "Postgres, async",
            "postgres",
            _postgres_async,
            "PostgreSQL",
            ("langgraph.checkpoint.postgres.aio", "psycopg_pool"),
        ),
        Entry("sqlite", "SQLite", "sqlite", _sqlite, modules=("langgraph.checkpoint.sqlite",)),
        Entry(
            "sqlite-async",
            "SQLite, async",
            "sqlite",
            _sqlite_async,
            modules=("langgraph.checkpoint.sqlite.aio",),
        ),
        Entry("memory", "in memory", "memory", _memory),
        Entry("raw", "raw PyMongo", "raw", functools.partial(_raw, serde=False), "MongoDB"),
        Entry(
            "raw-serde",
            "raw + (de)serialisation",
            "raw",
            functools.partial(_raw, serde=True),
            "MongoDB",
        ),
    )
}
PEERS = list(dict.fromkeys(entry.peer for entry in ENTRIES.values() if entry.peer != OURS))
