"""Everything mongosaver raises by itself, drawn as one tree.

    MongoSaverError
    ├── UsageError                  the caller's fault; nothing was sent
    │   ├── CollectionTypeError     TypeError: not the kind of collection this saver takes
    │   ├── ConfigurationError      ValueError: an option that cannot work, such as w=0
    │   ├── IdentifierTypeError     TypeError: an identifier that is no text
    │   ├── IdentifierValueError    ValueError: text that is no identifier
    │   ├── PayloadTooLarge         ValueError: more than one MongoDB document can hold
    │   └── EventLoopError          RuntimeError: a blocking call that would block its own loop
    └── StateError                  what is in the database is not what is needed
        ├── ForeignDocument         written by something else
        ├── FormatTooNew            written by a newer mongosaver
        ├── SchemaOutOfDate         migrations are pending that the code needs
        ├── SchemaTooNew            migrated by a newer mongosaver, in a way that older code breaks
        ├── MigrationLocked         somebody else is migrating
        ├── SetupRefused            indexes could not be made
        ├── CollationRefused        the collection compares text by a collation
        ├── ThreadExists            ValueError: a copy would mix with what is there
        └── IncompleteCheckpoint    a stored value that a checkpoint needs is not there

Each message says what was found, where, and what mends it. PyMongo's own errors pass through
unwrapped wherever mongosaver has nothing to add: callers rely on their codes and labels.

This file imports nothing.
"""

from __future__ import annotations


class MongoSaverError(Exception):
    """Root of every error that mongosaver raises by itself."""


class UsageError(MongoSaverError):
    """The call cannot work as it was made. Nothing was sent to the server."""


class CollectionTypeError(UsageError, TypeError):
    """The object given is not a collection of the kind this saver takes."""


class ConfigurationError(UsageError, ValueError):
    """An option, alone or with another one, cannot work."""


class IdentifierTypeError(UsageError, TypeError):
    """An identifier (thread, namespace, checkpoint, task or run id) is not text."""


class IdentifierValueError(UsageError, ValueError):
    """An identifier is text that MongoDB or LangGraph cannot take as one."""


class PayloadTooLarge(UsageError, ValueError):
    """Something that has to fit into one MongoDB document (16 MB) does not.

    Attributes:
        what: What is too large, such as `metadata` or `channel 'messages'`.
        size: Its serialized size in bytes.
        limit: The largest size possible, in bytes.
    """

    def __init__(self, what: str, size: int, limit: int, remedy: str) -> None:
        self.what, self.size, self.limit, self.remedy = what, size, limit, remedy
        super().__init__(
            f"{what} takes {size:,} bytes serialized; at most {limit:,} fit into one MongoDB"
            f" document. Nothing was written. {remedy}"
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        # A process pool hands errors over by pickling them.
        return type(self), (self.what, self.size, self.limit, self.remedy)


class EventLoopError(UsageError, RuntimeError):
    """A blocking method of the async saver was called where it cannot work."""


class StateError(MongoSaverError):
    """What is stored is not what mongosaver needs or knows."""


class ForeignDocument(StateError):
    """The collection holds documents that mongosaver did not write."""


class FormatTooNew(StateError):
    """The collection holds documents of a later storage format."""


class SchemaOutOfDate(StateError):
    """The collections were made, or last migrated, by an older version than this one."""


class SchemaTooNew(StateError):
    """A newer mongosaver has taken something away from the schema that this version relies on."""


class MigrationLocked(StateError):
    """Another process is migrating the collections, or has taken the migration over.

    Attributes:
        host: The machine that it runs on.
        pid: Its process id there.
        since: Since when, by the server's clock; ISO 8601.
    """

    def __init__(self, host: str, pid: int, since: str, remedy: str) -> None:
        self.host, self.pid, self.since, self.remedy = host, pid, since, remedy
        super().__init__(
            f"process {pid} on {host} has been migrating these collections since {since}. {remedy}"
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.host, self.pid, self.since, self.remedy)


class SetupRefused(StateError):
    """The server did not let the indexes be made."""


class CollationRefused(StateError):
    """The collection has a default collation, under which different ids can be equal."""


class ThreadExists(StateError, ValueError):
    """The thread that a copy was to become is the source itself, or has checkpoints already."""


class IncompleteCheckpoint(StateError):
    """A checkpoint names a stored value that is not there.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        channel: The channel whose value is incomplete.
        key: Key of the missing blob, in hexadecimal digits.
    """

    def __init__(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, channel: str, key: bytes
    ) -> None:
        self.thread_id, self.checkpoint_ns, self.checkpoint_id = (
            thread_id,
            checkpoint_ns,
            checkpoint_id,
        )
        self.channel, self.key = channel, key.hex()
        super().__init__(
            f"checkpoint {checkpoint_id!r} of thread {thread_id!r}, namespace {checkpoint_ns!r}:"
            f" the value of channel {channel!r} needs blob {self.key}, which is not stored."
            " Something other than mongosaver removed it. Resume from another checkpoint of the"
            " thread, restore the blobs collection from a backup, or delete the thread."
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        where = (self.thread_id, self.checkpoint_ns, self.checkpoint_id)
        return type(self), (*where, self.channel, bytes.fromhex(self.key))
