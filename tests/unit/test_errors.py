"""The tree of errors: as it is drawn, with messages that say what was found and what helps."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

import mongosaver
from mongosaver import errors
from mongosaver.errors import (
    IncompleteCheckpoint,
    MigrationLocked,
    MongoSaverError,
    PayloadTooLarge,
    StateError,
    UsageError,
)

CLASSES = {
    name: found
    for name, found in vars(errors).items()
    if inspect.isclass(found) and issubclass(found, Exception)
}


def drawn() -> list[tuple[str, str, str | None]]:
    """The tree in the module's docstring: class, parent, and the builtin that it also is."""
    rows, path = [], list[str]()
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([ │├└─]*)(\w+)(?: {2,}(?:(\w+Error): )?.*)?$", line)
        if found is None or found[2] not in CLASSES:
            continue
        path[len(found[1]) // 4 :] = [found[2]]
        rows.append((found[2], path[-2] if path[1:] else "Exception", found[3]))
    return rows


def test_the_tree_is_complete() -> None:
    """Each class is in the picture, once."""
    assert sorted(name for name, _, _ in drawn()) == sorted(CLASSES)


@pytest.mark.parametrize(("name", "parent", "builtin"), drawn())
def test_classes_are_as_they_are_drawn(name: str, parent: str, builtin: str | None) -> None:
    """A class has the parent that the picture shows, and is the builtin error that it names."""
    bases = tuple(base.__name__ for base in CLASSES[name].__bases__)
    assert bases == (parent, *([builtin] if builtin else ()))


def test_every_error_is_a_public_name() -> None:
    """What mongosaver raises can be imported from `mongosaver` itself."""
    assert set(CLASSES) <= set(mongosaver.__all__)
    assert all(getattr(mongosaver, name) is found for name, found in CLASSES.items())


def test_the_callers_fault_and_the_databases_state_are_apart() -> None:
    """No error is both, and each one but the three at the top is one of them."""
    for found in set(CLASSES.values()) - {MongoSaverError, UsageError, StateError}:
        assert issubclass(found, UsageError) != issubclass(found, StateError)


def test_a_payload_that_is_too_large_says_which_and_how_much() -> None:
    """Message and attributes name the part, its size, the limit, and what helps."""
    error = PayloadTooLarge("metadata", 17_000_000, 16_000_000, "Make it smaller.")
    assert (error.what, error.size, error.limit) == ("metadata", 17_000_000, 16_000_000)
    assert str(error) == (
        "metadata takes 17,000,000 bytes serialized; at most 16,000,000 fit into one MongoDB"
        " document. Nothing was written. Make it smaller."
    )


def test_an_incomplete_checkpoint_says_where_the_hole_is() -> None:
    """Message and attributes name thread, namespace, checkpoint, channel and key."""
    error = IncompleteCheckpoint("t", "n", "c", "messages", b"\xab\xcd")
    found = (error.thread_id, error.checkpoint_ns, error.checkpoint_id, error.channel, error.key)
    assert found == ("t", "n", "c", "messages", "abcd")
    assert all(part in str(error) for part in ("'t'", "'n'", "'c'", "'messages'", "abcd", "backup"))


def test_a_lock_that_is_held_says_by_whom() -> None:
    """Message and attributes name the machine, the process and the time."""
    error = MigrationLocked("host", 7, "2026-02-03", "Wait.")
    assert (error.host, error.pid, error.since) == ("host", 7, "2026-02-03")
    assert str(error) == (
        "process 7 on host has been migrating these collections since 2026-02-03. Wait."
    )


EXAMPLES: list[MongoSaverError] = [
    PayloadTooLarge("metadata", 17_000_000, 16_000_000, "Make it smaller."),
    IncompleteCheckpoint("t", "n", "c", "messages", b"\xab\xcd"),
    MigrationLocked("host", 7, "2026-02-03", "Wait."),
    *(
        found("what, where, remedy")
        for found in CLASSES.values()
        if found not in (PayloadTooLarge, IncompleteCheckpoint, MigrationLocked)
    ),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_a_process_border(error: MongoSaverError) -> None:
    """An error is the same after pickling: what a pool of processes hands back is still it."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
