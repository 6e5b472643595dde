"""mongosaver: a LangGraph checkpointer that keeps state in MongoDB and stores what was added.

    from mongosaver import MongoSaver
    graph = builder.compile(checkpointer=MongoSaver(client["app"]["checkpoints"]))

`MongoSaver` takes a PyMongo collection, `AsyncMongoSaver` one of PyMongo's async API or of Motor.
`mongosaver.errors` has what they raise, `mongosaver.testing` a throwaway server for tests.
"""

from __future__ import annotations

from importlib.metadata import version

from mongosaver.aio import AsyncMongoSaver
from mongosaver.errors import (
    CollationRefused,
    CollectionTypeError,
    ConfigurationError,
    EventLoopError,
    ForeignDocument,
    FormatTooNew,
    IdentifierTypeError,
    IdentifierValueError,
    IncompleteCheckpoint,
    MigrationLocked,
    MongoSaverError,
    PayloadTooLarge,
    SchemaOutOfDate,
    SchemaTooNew,
    SetupRefused,
    StateError,
    ThreadExists,
    UsageError,
)
from mongosaver.plans.expiry import TtlProgress
from mongosaver.plans.idle import IdleProgress
from mongosaver.plans.threads import ThreadInfo
from mongosaver.saver import MongoSaver

__version__ = version("mongosaver")

__all__ = [
    "AsyncMongoSaver",
    "CollationRefused",
    "CollectionTypeError",
    "ConfigurationError",
    "EventLoopError",
    "ForeignDocument",
    "FormatTooNew",
    "IdentifierTypeError",
    "IdentifierValueError",
    "IdleProgress",
    "IncompleteCheckpoint",
    "MigrationLocked",
    "MongoSaver",
    "MongoSaverError",
    "PayloadTooLarge",
    "SchemaOutOfDate",
    "SchemaTooNew",
    "SetupRefused",
    "StateError",
    "ThreadExists",
    "ThreadInfo",
    "TtlProgress",
    "UsageError",
    "__version__",
]
