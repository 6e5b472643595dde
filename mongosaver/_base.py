"""What both savers have in common: options, versions, and the parts that do no I/O."""

from __future__ import annotations

import os
import random
import socket
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from pymongo.driver_info import DriverInfo

from mongosaver.cache import Shared
from mongosaver.errors import CollectionTypeError, ConfigurationError
from mongosaver.migrations import Runner
from mongosaver.plans.context import Context, Ttl, duration

DB_NAME = "langgraph"
COLLECTION_NAME = "checkpoints"


class BaseSaver(BaseCheckpointSaver[str]):
    """State and helpers of a saver. Copies of one (`with_allowlist`) share `_shared`."""

    def __init__(
        self,
        *,
        serde: SerializerProtocol | None,
        auto_setup: bool,
        ttl: timedelta | float | None,
        refresh_on_read: bool,
    ) -> None:
        super().__init__(serde=serde)
        self._auto_setup = auto_setup
        if refresh_on_read and ttl is None:
            raise ConfigurationError("refresh_on_read needs a ttl to refresh: give ttl=...")
        self._ttl = None if ttl is None else Ttl(duration(ttl), bool(refresh_on_read))
        self._shared = Shared()

    def _context(self) -> Context:
        now = datetime.now(timezone.utc)
        return Context(self.serde, self._shared, now, self.get_next_version, self._ttl)

    def get_next_version(self, current: Any, channel: None) -> str:  # noqa: ARG002 - LangGraph's signature
        """The version after `current`: a counter, and a random part that keeps forks apart.

        Args:
            current: The channel's version so far, also a number as other savers make them, or
                None for a channel that has none.
            channel: Not used; LangGraph passes it for compatibility.
        """
        if current is None:
            counter = 0
        elif isinstance(current, str):
            counter = int(current.split(".")[0])
        else:
            counter = int(current)
        return f"{counter + 1:032}.{random.random():016}"  # noqa: S311 - no secret


def runner(collection: Any) -> Runner:
    """This process, as one that may migrate a collection and its siblings."""
    return Runner(
        # Not uuid4: tests of graphs replace that by a sequence of their own.
        os.urandom(16).hex(),
        socket.gethostname(),
        os.getpid(),
        version("mongosaver"),
        collection.database.name,
        collection.name,
        datetime.now(timezone.utc),
    )


def open_options() -> dict[str, Any]:
    """Options of a client that a saver opens: how it introduces itself to the server."""
    return {"driver": DriverInfo("mongosaver", version("mongosaver"))}


_CLASSES = {
    "Collection": "MongoSaver",
    "AsyncCollection": "AsyncMongoSaver",
    "AsyncIOMotorCollection": "AsyncMongoSaver",
}


def wrong_collection(given: object, saver: str, needed: str) -> CollectionTypeError:
    """The error for a collection of another kind, naming the saver that takes it."""
    kind = type(given)
    other = _CLASSES.get(kind.__name__)
    if other is not None and other != saver:
        remedy = f"Use {other} for it."
    elif kind.__name__ in ("MongoClient", "AsyncMongoClient", "AsyncIOMotorClient"):
        remedy = 'Pass a collection of it: client["app"]["checkpoints"].'
    elif kind.__name__ in ("Database", "AsyncDatabase", "AsyncIOMotorDatabase"):
        remedy = 'Pass a collection of it: database["checkpoints"].'
    elif kind is str:
        remedy = f"For a connection string there is {saver}.from_conn_string(...)."
    else:
        remedy = 'Pass client["app"]["checkpoints"].'
    return CollectionTypeError(
        f"{saver} needs a {needed}, got a {kind.__module__}.{kind.__qualname__}. {remedy}"
    )
