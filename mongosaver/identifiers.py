"""Identifiers: from what callers hand over to plain text, or an error before a command is sent.

MongoDB reads a dict in a query as operators, so only plain `str` may reach one where an identifier
is meant. `int` and `uuid.UUID` are taken as their text, because threads are often named so; every
other type is refused. Any text is legal but for NUL, which MongoDB's own tools cut off, and lone
surrogates, which have no UTF-8 form.

This file is pure: it imports nothing of mongosaver but `errors`, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from mongosaver.errors import IdentifierTypeError, IdentifierValueError


@dataclass(frozen=True, slots=True)
class Address:
    """Where a checkpoint is; `checkpoint_id` None means the latest (or, for a put, no parent)."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None

    def at(self, checkpoint_id: str) -> Address:
        return Address(self.thread_id, self.checkpoint_ns, checkpoint_id)


Key = tuple[str, str]
"""Namespace and checkpoint id: a checkpoint within its thread."""


def text(value: object, what: str, *, numbers: bool = False, nul: bool = False) -> str:
    """Plain text of an identifier.

    Args:
        value: What the caller gave.
        what: Its name in error messages.
        numbers: Whether `int` and `uuid.UUID` are taken as their text.
        nul: Whether NUL is legal: in names that are stored and never searched for.

    Raises:
        IdentifierTypeError: It is of another type.
        IdentifierValueError: It holds NUL or a lone surrogate.
    """
    if isinstance(value, str):
        # A str subclass (an enum, say) can carry its own __str__ and BSON encoding.
        plain = value if type(value) is str else str.__str__(value)
    elif numbers and (isinstance(value, UUID) or type(value) is int):
        return str(value)
    else:
        kinds = "text, an int or a UUID" if numbers else "text"
        raise IdentifierTypeError(
            f"{what} must be {kinds}, got {type(value).__name__}. Convert it with str()."
        )
    if "\0" in plain and not nul:
        raise IdentifierValueError(f"{what} holds a NUL character: {plain[:80]!r}")
    if not plain.isascii():
        try:
            plain.encode()
        except UnicodeEncodeError:
            raise IdentifierValueError(
                f"{what} holds a lone surrogate, which has no UTF-8 form: {plain[:80]!r}"
            ) from None
    return plain


def thread(value: object) -> str:
    """Plain text of a thread id, which may not be empty."""
    plain = text(value, "thread_id", numbers=True)
    if not plain:
        raise IdentifierValueError("thread_id is empty. Give each conversation an id of its own.")
    return plain


def run(value: object) -> str | None:
    """Plain text of a run id as configs carry it; None where there is none."""
    return None if value is None else text(value, "run_id", numbers=True)


def _configurable(config: Mapping[str, Any]) -> Mapping[str, Any]:
    # A dict is told by its type first: to ask an abstract class costs as much as all the rest.
    if type(config) is dict and type(config.get("configurable")) is dict:
        own: dict[str, Any] = config["configurable"]
        return own
    if not isinstance(config, Mapping) or not isinstance(config.get("configurable"), Mapping):
        raise IdentifierTypeError(
            'a config needs a mapping "configurable", such as {"configurable": {"thread_id": "1"}}'
        )
    configurable: Mapping[str, Any] = config["configurable"]
    return configurable


def optional(config: Mapping[str, Any], what: str) -> str | None:
    """Text of an id that a config may leave out, hold as None or as an empty string."""
    return _optional(_configurable(config), what) or None


def namespace(config: Mapping[str, Any]) -> str | None:
    """A config's namespace; None where it names none."""
    return _optional(_configurable(config), "checkpoint_ns")


def _optional(configurable: Mapping[str, Any], what: str) -> str | None:
    value = configurable.get(what)
    return None if value is None else text(value, what)


def thread_of(config: Mapping[str, Any]) -> str:
    """A config's thread id."""
    return _thread_of(_configurable(config))


def _thread_of(configurable: Mapping[str, Any]) -> str:
    if "thread_id" not in configurable:
        raise IdentifierValueError(
            'config["configurable"] has no "thread_id". A graph with a checkpointer needs one for'
            ' each conversation: {"configurable": {"thread_id": "1"}}'
        )
    return thread(configurable["thread_id"])


def address(config: Mapping[str, Any]) -> Address:
    """Where a config points; a missing namespace is the root graph's."""
    configurable = _configurable(config)
    return Address(
        _thread_of(configurable),
        _optional(configurable, "checkpoint_ns") or "",
        _optional(configurable, "checkpoint_id") or None,
    )
