"""Running plans: one driver blocks, the other awaits; side by side, so that each line has its twin.

A driver gives each operation of a plan to the server and sends the result back, or throws the
error in. It knows what a plan does not want to know: which real collections the names mean, how
to call PyMongo, its async API or Motor, and what the topology can do.

A transaction here is "these inserts together, in this order" and takes at most five tries.
`with_transaction` is not used: it goes on for two minutes, and it runs again on errors that follow
a duplicate key, where the plan's own sequence is the answer.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from bson.codec_options import CodecOptions
from pymongo import IndexModel, ReadPreference, ReturnDocument, UpdateOne
from pymongo.errors import (
    BulkWriteError,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from mongosaver import grouping
from mongosaver.errors import ConfigurationError
from mongosaver.grouping import Loops
from mongosaver.ops import (
    Aggregate,
    BuildProgress,
    Collections,
    CollMod,
    Compute,
    Count,
    CreateCollection,
    CreateIndexes,
    Delete,
    DropIndex,
    Find,
    FindOneAndUpdate,
    Insert,
    ListIndexes,
    Merge,
    Op,
    Plan,
    Replace,
    ShardCollection,
    Sleep,
    Together,
    UpdateMany,
    Updates,
)
from mongosaver.schema import OFF_LOOP, Document, Index, Name

T = TypeVar("T")

_TRIES: Final = 5
_NO_TRANSACTIONS: Final = frozenset({20, 50, 115, 238, 263, 303, 304})
"""Codes of servers without transactions: IllegalOperation (a standalone), CommandNotSupported and
the like, OperationNotSupportedInTransaction (a collection that does not exist yet, before 4.4)."""
_ALL_AT_ONCE: Final = 100_000


class _Bound:
    """The collections of one saver, and what both drivers do the same way with them."""

    def __init__(self, collection: Any) -> None:
        if not collection.write_concern.acknowledged:
            raise ConfigurationError(
                f"collection {collection.full_name!r} has the write concern w=0, under which a"
                ' lost checkpoint goes unnoticed. Use w=1 or higher, or "majority".'
            )
        database = collection.database
        options: dict[str, Any] = {
            # Ids are text and payloads bytes: no option of the user's client may change that.
            "codec_options": CodecOptions(tz_aware=True),
            # What was just written must be seen, whatever the client prefers.
            "read_preference": ReadPreference.PRIMARY,
            "write_concern": collection.write_concern,
            "read_concern": collection.read_concern,
        }
        self.client = database.client
        self.database = database
        self.collections: dict[Name, Any] = {
            name: database.get_collection(collection.name + name.value, **options) for name in Name
        }
        self.refuses_transactions = False

    def __getitem__(self, name: Name) -> Any:
        return self.collections[name]

    def pipeline(self, stages: Sequence[Document]) -> list[Document]:
        """Stages with the real collections' names."""
        return [
            {"$lookup": {**stage["$lookup"], "from": self[stage["$lookup"]["from"]].name}}
            if "$lookup" in stage
            else stage
            for stage in stages
        ]

    def collection_filter(self) -> Document:
        """Condition of `listCollections` on ours."""
        return {"name": {"$in": [collection.name for collection in self.collections.values()]}}

    def by_name(self, found: Sequence[Document]) -> dict[Name, Document]:
        """What `listCollections` said of each of ours."""
        names = {collection.name: name for name, collection in self.collections.items()}
        return {names[document["name"]]: document for document in found}

    def builds(self, name: Name) -> list[Document]:
        """Pipeline for the index builds of one collection, whoever began them."""
        match = {"ns": self[name].full_name, "msg": {"$regex": "^Index Build"}}
        return [{"$currentOp": {"allUsers": True}}, {"$match": match}]

    def has_transactions(self) -> bool:
        """Whether to try one: on a replica set, or where nothing is known yet."""
        if self.refuses_transactions:
            return False
        topology = self.client.topology_description
        if topology.topology_type_name == "Single":
            servers = topology.server_descriptions().values()
            return any(server.server_type_name == "RSPrimary" for server in servers)
        return topology.topology_type_name not in ("Sharded", "LoadBalanced")

    def transaction_options(self) -> dict[str, Any]:
        """A transaction does not take its collections' write concern by itself."""
        concern = self[Name.CHECKPOINTS].write_concern
        return {} if concern.is_server_default else {"write_concern": concern}

    def gives_up(self, error: PyMongoError) -> bool:
        """Whether the error says that there are no transactions here; remembered if so."""
        if isinstance(error, OperationFailure) and error.code in _NO_TRANSACTIONS:
            self.refuses_transactions = True
        return self.refuses_transactions


def _find_options(op: Find) -> dict[str, Any]:
    options: dict[str, Any] = {"limit": op.limit, "batch_size": op.limit or _ALL_AT_ONCE}
    if op.projection is not None:
        options["projection"] = op.projection
    if op.sort:
        options["sort"] = list(op.sort)
    return options


def _merging(bound: _Bound, op: Merge) -> list[Document]:
    into = {
        "into": bound[op.collection].name,
        "on": list(op.key),
        "whenMatched": [{"$set": {"touched_at": "$$new.created_at"}}],
        "whenNotMatched": "insert",
    }
    return [*op.pipeline, {"$merge": into}]


def _updates(op: Updates) -> list[UpdateOne]:
    return [UpdateOne(each.filter, each.update, upsert=each.upsert) for each in op.updates]


def _progress(builds: Sequence[Document]) -> Document | None:
    """One of several builds: each shard has its own, and the one that counts tells most."""
    for build in sorted(builds, key=lambda build: "progress" not in build):
        return {"msg": build["msg"], **build.get("progress", {})}
    return None


def _indexes(op: CreateIndexes) -> list[IndexModel]:
    return [IndexModel(list(index.keys), **_index_options(index)) for index in op.indexes]


def _index_options(index: Index) -> dict[str, Any]:
    options: dict[str, Any] = {"unique": index.unique}
    if index.partial is not None:
        options["partialFilterExpression"] = dict(index.partial)
    if index.expires:
        # The field holds the date itself, so a change of the ttl needs no change of the index.
        options["expireAfterSeconds"] = 0
    return options


_LASTING: Final = (DuplicateKeyError, BulkWriteError, ServerSelectionTimeoutError)


def _is_transient(error: PyMongoError) -> bool:
    """Whether the whole transaction may be tried again.

    A duplicate key never goes away, and a server that could not be found has been waited for.
    """
    return not isinstance(error, _LASTING) and error.has_error_label("TransientTransactionError")


def _is_unknown(error: PyMongoError) -> bool:
    """Whether a commit may be tried again, since it is not known what became of it."""
    return not isinstance(error, _LASTING) and error.has_error_label(
        "UnknownTransactionCommitResult"
    )


# --- blocking ----------------------------------------------------------------------------------


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Work in a thread that nobody waits for when the program ends."""
    done: Future[T] = Future()
    # The caller's deadline (`pymongo.timeout`) is in the context.
    context = contextvars.copy_context()

    def run() -> None:
        try:
            done.set_result(context.run(work))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="mongosaver index build", daemon=True).start()
    return done


class Driver:
    """Runs plans on a PyMongo collection; safe between threads."""

    def __init__(self, collection: Any) -> None:
        self.bound = _Bound(collection)

    def run(self, plan: Plan[T]) -> T:
        """What the plan returns; whatever it does not catch is raised."""
        try:
            op = next(plan)
            while True:
                try:
                    result = self._do(op)
                except Exception as error:
                    op = plan.throw(error)
                else:
                    op = plan.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            plan.close()

    def _do(self, op: Op) -> Any:
        return self._HOW[type(op)](self, op)

    def _find(self, op: Find) -> list[Document]:
        cursor = self.bound[op.collection].find(op.filter, **_find_options(op))
        found: list[Document] = cursor.to_list()
        return found

    def _aggregate(self, op: Aggregate) -> list[Document]:
        pipeline = self.bound.pipeline(op.pipeline)
        cursor = self.bound[op.collection].aggregate(pipeline, batchSize=_ALL_AT_ONCE)
        found: list[Document] = cursor.to_list()
        return found

    def _insert(self, op: Insert, session: Any = None) -> None:
        documents = [dict(document) for document in op.documents]
        collection = self.bound[op.collection]
        if len(documents) == 1:
            collection.insert_one(documents[0], session=session)
        else:
            collection.insert_many(documents, ordered=False, session=session)

    def _replace(self, op: Replace) -> None:
        self.bound[op.collection].replace_one(op.filter, op.document, upsert=True)

    def _update(self, op: Updates) -> None:
        self.bound[op.collection].bulk_write(_updates(op), ordered=op.ordered)

    def _update_many(self, op: UpdateMany) -> int:
        return int(self.bound[op.collection].update_many(op.filter, op.update).matched_count)

    def _merge(self, op: Merge) -> None:
        stages = _merging(self.bound, op)
        self.bound[op.collection].aggregate(stages, hint=op.hint).to_list()

    def _count(self, op: Count) -> int:
        return int(self.bound[op.collection].count_documents(op.filter))

    def _delete(self, op: Delete) -> int:
        return int(self.bound[op.collection].delete_many(op.filter).deleted_count)

    def _collections(self, op: Collections) -> dict[Name, Document]:
        cursor = self.bound.database.list_collections(filter=self.bound.collection_filter())
        return self.bound.by_name(list(cursor))

    def _create_collection(self, op: CreateCollection) -> None:
        self.bound.database.command({"create": self.bound[op.collection].name, **op.options})

    def _shard_collection(self, op: ShardCollection) -> None:
        admin, collection = self.bound.client.admin, self.bound[op.collection]
        admin.command("enableSharding", self.bound.database.name)
        admin.command("shardCollection", collection.full_name, key=dict(op.key))

    def _list_indexes(self, op: ListIndexes) -> list[Document]:
        return [dict(index) for index in self.bound[op.collection].list_indexes()]

    def _create_indexes(self, op: CreateIndexes) -> None:
        built = _in_thread(partial(self.bound[op.collection].create_indexes, _indexes(op)))
        while not wait([built], op.every).done:
            self.run(op.meanwhile())
        built.result()

    def _build_progress(self, op: BuildProgress) -> Document | None:
        stages = self.bound.builds(op.collection)
        return _progress(self.bound.client.admin.aggregate(stages).to_list())

    def _coll_mod(self, op: CollMod) -> None:
        self.bound.database.command("collMod", self.bound[op.collection].name, index=op.index)

    def _drop_index(self, op: DropIndex) -> None:
        self.bound[op.collection].drop_index(op.index)

    def _find_one_and_update(self, op: FindOneAndUpdate) -> Document:
        found: Document = self.bound[op.collection].find_one_and_update(
            op.filter, list(op.pipeline), upsert=True, return_document=ReturnDocument.AFTER
        )
        return found

    def _sleep(self, op: Sleep) -> None:
        time.sleep(op.seconds)

    def _compute(self, op: Compute) -> Any:
        return op.function()

    def _together(self, op: Together) -> bool:
        if not self.bound.has_transactions():
            return False
        with self.bound.client.start_session() as session:
            for _ in range(_TRIES):
                session.start_transaction(**self.bound.transaction_options())
                try:
                    for write in op.writes:
                        self._insert(write, session)
                except PyMongoError as error:
                    self._abort(session)
                    if self.bound.gives_up(error):
                        return False
                    if not _is_transient(error):
                        raise
                    continue
                committed = self._commit(session)
                if committed is not None:
                    return committed
        return False

    def _abort(self, session: Any) -> None:
        # The server ends it by itself in the end; the first error is the one that counts.
        with suppress(PyMongoError):
            session.abort_transaction()

    def _commit(self, session: Any) -> bool | None:
        """Whether it was committed; None where it has to be begun anew."""
        for _ in range(_TRIES):
            try:
                session.commit_transaction()
            except OperationFailure as error:
                if _is_transient(error):
                    return None
                if not _is_unknown(error):
                    self._supersede(session)
                    raise
            except PyMongoError as error:
                if not _is_unknown(error):
                    raise
            else:
                return True
        self._supersede(session)
        return False

    def _supersede(self, session: Any) -> None:
        # Without an answer the transaction may still be open, holding what the sequence is about
        # to write. The first command of a newer one of the same session ends it.
        with suppress(PyMongoError):
            session.start_transaction()
            self.bound[Name.CHECKPOINTS].find_one({"thread_id": ""}, session=session)
            session.abort_transaction()

    _HOW: Mapping[type, Callable[[Any, Any], Any]] = {
        Find: _find,
        Aggregate: _aggregate,
        Insert: _insert,
        Replace: _replace,
        Updates: _update,
        UpdateMany: _update_many,
        Merge: _merge,
        Count: _count,
        Delete: _delete,
        Together: _together,
        Collections: _collections,
        CreateCollection: _create_collection,
        ShardCollection: _shard_collection,
        ListIndexes: _list_indexes,
        CreateIndexes: _create_indexes,
        BuildProgress: _build_progress,
        CollMod: _coll_mod,
        DropIndex: _drop_index,
        FindOneAndUpdate: _find_one_and_update,
        Sleep: _sleep,
        Compute: _compute,
    }


# --- awaiting ----------------------------------------------------------------------------------


async def _awaited(value: Any) -> Any:
    """The value, awaited where it has to be: PyMongo and Motor differ in which calls are."""
    return await value if inspect.isawaitable(value) else value


class AsyncDriver:
    """Runs plans on a PyMongo async collection or a Motor collection."""

    def __init__(self, collection: Any) -> None:
        self.bound = _Bound(collection)
        self._loops = Loops(self.bound.collections)

    def own_loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that a Motor client belongs to; PyMongo's is told by its first use."""
        client = self.bound.client
        if not type(client).__module__.startswith("motor."):
            return None
        try:
            loop = client.get_io_loop()
        except RuntimeError:  # it has none yet, and this thread neither
            return None
        return loop if isinstance(loop, asyncio.AbstractEventLoop) else None

    async def run(self, plan: Plan[T]) -> T:
        """What the plan returns; whatever it does not catch is raised. Cancelling closes it."""
        try:
            op = next(plan)
            while True:
                try:
                    result = await self._do(op)
                except Exception as error:
                    op = plan.throw(error)
                else:
                    op = plan.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            plan.close()

    async def _do(self, op: Op) -> Any:
        how = self._HOW[type(op)]
        if type(op) in self._TAKES_NO_TURN:
            return await how(self, op)
        here = self._loops.here()
        async with here.reads if type(op) in self._READS else here.others:
            return await how(self, op)

    async def _find(self, op: Find) -> list[Document]:
        cursor = self.bound[op.collection].find(op.filter, **_find_options(op))
        found: list[Document] = await cursor.to_list(None)
        return found

    async def _aggregate(self, op: Aggregate) -> list[Document]:
        pipeline = self.bound.pipeline(op.pipeline)
        cursor = await _awaited(
            self.bound[op.collection].aggregate(pipeline, batchSize=_ALL_AT_ONCE)
        )
        found: list[Document] = await cursor.to_list(None)
        return found

    async def _insert(self, op: Insert, session: Any = None) -> None:
        if session is None:
            await self._loops.here().groups[op.collection].insert(op.documents)
        else:
            await grouping.insert(self.bound[op.collection], op.documents, session)

    async def _replace(self, op: Replace) -> None:
        await self.bound[op.collection].replace_one(op.filter, op.document, upsert=True)

    async def _update(self, op: Updates) -> None:
        await self.bound[op.collection].bulk_write(_updates(op), ordered=op.ordered)

    async def _update_many(self, op: UpdateMany) -> int:
        done = await self.bound[op.collection].update_many(op.filter, op.update)
        return int(done.matched_count)

    async def _merge(self, op: Merge) -> None:
        stages = _merging(self.bound, op)
        cursor = await _awaited(self.bound[op.collection].aggregate(stages, hint=op.hint))
        await cursor.to_list(None)

    async def _count(self, op: Count) -> int:
        return int(await self.bound[op.collection].count_documents(op.filter))

    async def _delete(self, op: Delete) -> int:
        return int((await self.bound[op.collection].delete_many(op.filter)).deleted_count)

    async def _collections(self, op: Collections) -> dict[Name, Document]:
        cursor = await _awaited(
            self.bound.database.list_collections(filter=self.bound.collection_filter())
        )
        return self.bound.by_name(await cursor.to_list(None))

    async def _create_collection(self, op: CreateCollection) -> None:
        await self.bound.database.command({"create": self.bound[op.collection].name, **op.options})

    async def _shard_collection(self, op: ShardCollection) -> None:
        admin, collection = self.bound.client.admin, self.bound[op.collection]
        await admin.command("enableSharding", self.bound.database.name)
        await admin.command("shardCollection", collection.full_name, key=dict(op.key))

    async def _list_indexes(self, op: ListIndexes) -> list[Document]:
        cursor = await _awaited(self.bound[op.collection].list_indexes())
        return [dict(index) for index in await cursor.to_list(None)]

    async def _create_indexes(self, op: CreateIndexes) -> None:
        built = asyncio.ensure_future(self.bound[op.collection].create_indexes(_indexes(op)))
        try:
            while not (await asyncio.wait([built], timeout=op.every))[0]:
                await self.run(op.meanwhile())
            await built
        finally:
            built.cancel()

    async def _build_progress(self, op: BuildProgress) -> Document | None:
        stages = self.bound.builds(op.collection)
        cursor = await _awaited(self.bound.client.admin.aggregate(stages))
        return _progress(await cursor.to_list(None))

    async def _coll_mod(self, op: CollMod) -> None:
        name = self.bound[op.collection].name
        await self.bound.database.command("collMod", name, index=op.index)

    async def _drop_index(self, op: DropIndex) -> None:
        await self.bound[op.collection].drop_index(op.index)

    async def _find_one_and_update(self, op: FindOneAndUpdate) -> Document:
        found: Document = await self.bound[op.collection].find_one_and_update(
            op.filter, list(op.pipeline), upsert=True, return_document=ReturnDocument.AFTER
        )
        return found

    async def _sleep(self, op: Sleep) -> None:
        await asyncio.sleep(op.seconds)

    async def _compute(self, op: Compute) -> Any:
        if op.size <= OFF_LOOP:
            return op.function()
        return await asyncio.to_thread(op.function)

    async def _together(self, op: Together) -> bool:
        if not self.bound.has_transactions():
            return False
        async with await _awaited(self.bound.client.start_session()) as session:
            for _ in range(_TRIES):
                await _awaited(session.start_transaction(**self.bound.transaction_options()))
                try:
                    for write in op.writes:
                        await self._insert(write, session)
                except PyMongoError as error:
                    await self._abort(session)
                    if self.bound.gives_up(error):
                        return False
                    if not _is_transient(error):
                        raise
                    continue
                committed = await self._commit(session)
                if committed is not None:
                    return committed
        return False

    async def _abort(self, session: Any) -> None:
        # The server ends it by itself in the end; the first error is the one that counts.
        with suppress(PyMongoError):
            await session.abort_transaction()

    async def _commit(self, session: Any) -> bool | None:
        """Whether it was committed; None where it has to be begun anew."""
        for _ in range(_TRIES):
            try:
                await session.commit_transaction()
            except OperationFailure as error:
                if _is_transient(error):
                    return None
                if not _is_unknown(error):
                    await self._supersede(session)
                    raise
            except PyMongoError as error:
                if not _is_unknown(error):
                    raise
            else:
                return True
        await self._supersede(session)
        return False

    async def _supersede(self, session: Any) -> None:
        # Without an answer the transaction may still be open, holding what the sequence is about
        # to write. The first command of a newer one of the same session ends it.
        with suppress(PyMongoError):
            await _awaited(session.start_transaction())
            await self.bound[Name.CHECKPOINTS].find_one({"thread_id": ""}, session=session)
            await session.abort_transaction()

    _HOW: Mapping[type, Callable[[Any, Any], Any]] = {
        Find: _find,
        Aggregate: _aggregate,
        Insert: _insert,
        Replace: _replace,
        Updates: _update,
        UpdateMany: _update_many,
        Merge: _merge,
        Count: _count,
        Delete: _delete,
        Together: _together,
        Collections: _collections,
        CreateCollection: _create_collection,
        ShardCollection: _shard_collection,
        ListIndexes: _list_indexes,
        CreateIndexes: _create_indexes,
        BuildProgress: _build_progress,
        CollMod: _coll_mod,
        DropIndex: _drop_index,
        FindOneAndUpdate: _find_one_and_update,
        Sleep: _sleep,
        Compute: _compute,
    }
    _READS = frozenset({Find, Aggregate})
    # Inserts see to it themselves. The others send nothing, or run plans while they wait.
    _TAKES_NO_TURN = frozenset({Insert, Compute, CreateIndexes, Sleep})
