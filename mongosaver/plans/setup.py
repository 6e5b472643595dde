"""Making the indexes: what `setup()` does, and what the first write does by itself.

Every step may be run any number of times and by any number of processes at once.

This file is pure: it imports only `ops`, `schema`, `codec` and `errors`, and does no I/O.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from pymongo.errors import OperationFailure

from mongosaver import codec
from mongosaver.errors import CollationRefused, SetupRefused
from mongosaver.ops import Collections, CreateCollection, CreateIndexes, Find, Plan
from mongosaver.plans.context import Context
from mongosaver.schema import COMPRESSED, EXPIRY_INDEX, INDEXES, Name

_UNAUTHORIZED: Final = 13
_DUPLICATE_KEY: Final = 11000
_CONFLICTS: Final = frozenset({67, 85, 86})


def setup(ctx: Context) -> Plan[None]:
    """Look at the collections and make the indexes that are missing.

    Raises:
        CollationRefused: A collection has a default collation.
        ForeignDocument: The collection holds documents of something else.
        SetupRefused: The server refuses the indexes; the message says why and what helps.
    """
    try:
        there = yield Collections()
        for found in there.values():
            if found.get("type", "collection") != "collection":
                raise SetupRefused(
                    f"{found['name']!r} is a {found['type']}; checkpoints need a plain collection."
                )
            collation = found.get("options", {}).get("collation")
            if collation:
                raise CollationRefused(
                    f"collection {found['name']!r} has the default collation"
                    f" {collation.get('locale')!r}, under which different thread ids can be equal."
                    " Use a collection without one."
                )
        for document in (yield Find(Name.CHECKPOINTS, {}, limit=1)):
            codec.check_format(document, "checkpoints collection")
        for collection, indexes in INDEXES.items():
            if collection not in there:
                # Another process may be first, and a server may not know the options. Where
                # collections cannot be made at all, the next command says so.
                with suppress(OperationFailure):
                    yield CreateCollection(collection, COMPRESSED)
            more = (EXPIRY_INDEX,) if ctx.ttl else ()
            yield CreateIndexes(collection, (*indexes, *more))
    except OperationFailure as error:
        explained = _explained(error)
        if explained is None:
            raise
        raise explained from error
    ctx.shared.ready = True


def _explained(error: OperationFailure) -> SetupRefused | None:
    """The error with its remedy, where there is one."""
    if error.code == _UNAUTHORIZED:
        return SetupRefused(
            "the indexes could not be made: this user lacks a privilege"
            f" ({_reason(error)}). Let a user with the role readWrite call setup() once, and give"
            " this saver auto_setup=False."
        )
    if error.code == _DUPLICATE_KEY:
        return SetupRefused(
            "a unique index could not be made, because the collection holds documents with equal"
            f" keys ({_reason(error)}). They were written without the index; remove the"
            " duplicates, then call setup() again."
        )
    if error.code in _CONFLICTS:
        return SetupRefused(
            "an index with the same keys or the same name but other options is in the way"
            f" ({_reason(error)}). Drop that index, then call setup() again."
        )
    return None


def _reason(error: OperationFailure) -> str:
    return str((error.details or {}).get("errmsg") or error)
