"""Stored payloads as plain data: read by anybody, running nothing.

LangGraph's serializer writes an object as msgpack's extension of a module's name, a class's name
and arguments, and reads it by importing the one and calling the other. That is not for a command
that an operator points at a production database. Here a name stays a name: an object becomes
`Typed`, its type in words beside its arguments, and nothing that a payload names is ever imported,
looked up or called. Neither is pickle read, which can run anything at all.

Plans read checkpoints and metadata through the same serializer, to decide what may be removed.
Where a payload cannot be read (encrypted and no key is at hand, pickle, a serializer of somebody's
own), a plan must not take that for an empty one. So the default is to raise; only who merely shows
what there is asks for a `Sealed` in its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import ormsgpack
from langgraph.checkpoint.serde import types as serde_types
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from mongosaver.errors import ConfigurationError, StateError, UsageError

KEY_VARIABLE: Final = "LANGGRAPH_AES_KEY"
"""Environment variable from which LangGraph's encrypting serializer takes its key."""

_DEEPEST: Final = 100
"""Objects within objects that are taken apart. What is deeper is told by its size."""

# LangGraph's extension codes (langgraph.checkpoint.serde.jsonplus, `EXT_*`), by number: an older
# LangGraph does not name them all, and what is stored may come from a newer one.
_ARRAY: Final = 6
_SNAPSHOT: Final = 7
_OBJECTS: Final = range(6)
"""One argument, several, by name, a method's, and Pydantic's two: each a module, a name, and what
the object is made of."""

_Snapshot: Final[Any] = getattr(serde_types, "_DeltaSnapshot", None)


_NOT_KNOWN: Final = "It is damaged, or a later LangGraph wrote it."


@dataclass(frozen=True, slots=True)
class Typed:
    """A value of a type, of which only the name is known here.

    Attributes:
        name: The type with its module, such as `langchain_core.messages.human.HumanMessage`.
        value: What it is made of: an argument, a list of them, or a dict by name.
    """

    name: str
    value: Any

    def __hash__(self) -> int:
        # It may be the key of a dict, whatever it is made of.
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A payload that was not read, and why.

    Attributes:
        reason: In words, such as `encrypted with aes`.
        size: Bytes of the payload.
    """

    reason: str
    size: int

    def __str__(self) -> str:
        return f"{self.reason}, {size(self.size)}"


class PlainSerializer:
    """Reads what LangGraph's serializers write as plain data; it writes nothing.

    Args:
        cipher: Decrypts what is encrypted.
        show: Whether what cannot be read becomes a `Sealed`; else it raises `StateError`.
    """

    def __init__(self, cipher: CipherProtocol | None = None, *, show: bool = False) -> None:
        self.cipher = cipher
        self.show = show

    def showing(self) -> PlainSerializer:
        """The same for who merely shows what there is."""
        return PlainSerializer(self.cipher, show=True)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Refuse: an object that has become plain would be stored as another one."""
        raise UsageError(
            f"a {type(obj).__name__} was to be stored, but the command reads state and does not"
            " write it. Use a saver in Python for that."
        )

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Plain data of one payload.

        Raises:
            StateError: It cannot be read, and a `Sealed` was not asked for.
        """
        type_, payload = data
        length = len(payload)
        if "+" in type_:
            type_, cipher = type_.split("+", 1)
            if self.cipher is None:
                return self._sealed(
                    f"encrypted with {cipher}",
                    length,
                    f"Set {KEY_VARIABLE} to the key that the application has.",
                )
            try:
                payload = self.cipher.decrypt(cipher, payload)
            except Exception as error:  # noqa: BLE001 - a cipher may raise anything
                return self._sealed(
                    f"encrypted with {cipher}, and not with the key in {KEY_VARIABLE}"
                    f" ({type(error).__name__})",
                    length,
                    f"Set {KEY_VARIABLE} to the key that the application has.",
                )
        read = _READERS.get(type_)
        if read is None:
            return self._sealed(
                type_, length, "Only the application's own serializer reads it; use a saver there."
            )
        try:
            value = read(payload)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with bytes of anybody
            return self._sealed(
                f"{type_} that cannot be read ({type(error).__name__})",
                length,
                _NOT_KNOWN,
            )
        if isinstance(value, Sealed):
            return self._sealed(value.reason, value.size, _NOT_KNOWN)
        return value

    def _sealed(self, reason: str, length: int, remedy: str) -> Sealed:
        if self.show:
            return Sealed(reason, length)
        raise StateError(
            f"a stored payload is {reason} ({size(length)}), and what it holds must be known here."
            f" Nothing was changed because of it. {remedy}"
        )


def serializer(environ: Mapping[str, str] | None = None) -> PlainSerializer:
    """The plain serializer, which decrypts where the environment has LangGraph's key.

    Raises:
        ConfigurationError: The key has a wrong length, or pycryptodome is not installed.
    """
    key = (os.environ if environ is None else environ).get(KEY_VARIABLE)
    if not key:
        return PlainSerializer()
    if len(key.encode()) not in (16, 24, 32):
        raise ConfigurationError(
            f"{KEY_VARIABLE} has {len(key.encode())} bytes; an AES key has 16, 24 or 32"
        )
    try:
        return PlainSerializer(EncryptedSerializer.from_pycryptodome_aes(key=key.encode()).cipher)
    except ImportError:
        raise ConfigurationError(
            f"{KEY_VARIABLE} is set, but decrypting needs: pip install pycryptodome"
        ) from None


# --- taking payloads apart ---------------------------------------------------------------------


def _unpack(payload: bytes, depth: int = 0) -> Any:
    def hook(code: int, data: bytes) -> Any:
        if depth >= _DEEPEST:
            return Sealed(f"more than {_DEEPEST} objects deep", len(data))
        if code == _SNAPSHOT and _Snapshot is not None:
            # A plan asks for this one: it ends the way back to what a DeltaChannel is made of.
            return _Snapshot(_unpack(data, depth + 1))
        try:
            parts = _unpack(data, depth + 1)
            if code == _ARRAY:
                return Typed("numpy.ndarray", _array(parts))
            if code in _OBJECTS:
                return _typed(*parts[:3])
        except Exception:  # noqa: BLE001 - whatever is wrong with bytes of anybody
            return Sealed(f"extension {code} that cannot be read", len(data))
        return Sealed(f"extension {code}, which is not known", len(data))

    return ormsgpack.unpackb(payload, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)


_TEXTS: Final = frozenset(
    {
        ("datetime", "datetime"),
        ("decimal", "Decimal"),
        ("zoneinfo", "ZoneInfo"),
        *(("ipaddress", f"IPv{n}{kind}") for n in "46" for kind in ("Address", "Interface")),
        *(("ipaddress", f"IPv{n}Network") for n in "46"),
    }
)
"""Types whose one argument says it all."""


def _typed(module: Any, name: Any, value: Any) -> Typed:
    """An object by the names of its type; those everybody knows without a module, and readable."""
    if module in ("builtins", "collections"):
        return Typed(str(name), value)
    known = (module, name)
    if known == ("uuid", "UUID") and isinstance(value, str) and len(value) == 32:
        at = (0, 8, 12, 16, 20, 32)
        text = "-".join(value[a:b] for a, b in pairwise(at))
        return Typed("UUID", text)
    if known in _TEXTS:
        return Typed(str(name), value)
    if module == "datetime" and (text_of := _TIMES.get(name)) is not None:
        try:
            return Typed(name, text_of(value))
        except Exception:  # noqa: BLE001 - an argument that no such type has
            return Typed(f"datetime.{name}", value)
    if str(module).startswith("pathlib") and isinstance(value, (list, tuple)):
        parts = [str(part) for part in value]
        root = parts.pop(0) if parts and parts[0] in ("/", "\\") else ""
        return Typed(str(name), root + "/".join(parts))
    return Typed(f"{module}.{name}", value)


def _date(value: Any) -> str:
    year, month, day = value
    return f"{year:04}-{month:02}-{day:02}"


def _duration(value: Any) -> str:
    days, seconds, microseconds = value
    total = days * 86_400 + seconds
    sign = "-" if total < 0 else ""
    if sign and microseconds:
        total, microseconds = -total - 1, 10**6 - microseconds
    elif sign:
        total = -total
    text = f"{sign}{total // 3600}:{total // 60 % 60:02}:{total % 60:02}"
    return text + (f".{microseconds:06}" if microseconds else "")


def _time(value: Any) -> str:
    text = f"{value['hour']:02}:{value['minute']:02}:{value['second']:02}"
    text += f".{value['microsecond']:06}" if value["microsecond"] else ""
    zone = value["tzinfo"]
    return text if zone is None else f"{text} {zone.value if isinstance(zone, Typed) else zone}"


def _zone(value: Any) -> str:
    offset = value[0].value.removesuffix(":00")
    return "UTC" if offset == "0:00" else f"UTC{'' if offset[0] == '-' else '+'}{offset}"


_TIMES: Final[Mapping[Any, Callable[[Any], str]]] = {
    "date": _date,
    "time": _time,
    "timedelta": _duration,
    "timezone": _zone,
}


def _array(parts: Any) -> str:
    dtype, shape, _order, data = parts
    return f"dtype {dtype}, shape {tuple(shape)}, {size(len(data))}"


def _json(payload: bytes) -> Any:
    return json.loads(payload, object_hook=_constructor)


def _constructor(value: dict[str, Any]) -> Any:
    """LangChain's and LangGraph's envelopes of an object in JSON."""
    names = value.get("id")
    if (
        value.get("lc") in (1, 2)
        and value.get("type") == "constructor"
        and isinstance(names, list)
        and names
    ):
        made = {**(value.get("kwargs") or {})}
        if value.get("args"):
            made["args"] = value["args"]
        return Typed(".".join(map(str, names)), made)
    return value


_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "null": lambda _: None,
    "bytes": bytes,
    "bytearray": bytes,
    "json": _json,
    "msgpack": _unpack,
}


# --- showing it --------------------------------------------------------------------------------


def size(length: float) -> str:
    """A number of bytes for people, in units of 1,024."""
    if length < 1024:
        return f"{length:.0f} byte{'' if length == 1 else 's'}"
    for unit in ("KB", "MB", "GB"):
        length /= 1024
        if length < 1024:
            return f"{length:.1f} {unit}"
    return f"{length / 1024:.1f} TB"


_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(text: str) -> str:
    """Text on one line that a terminal shows and does not obey.

    What Python calls not printable becomes an escape: controls, marks that turn the direction of
    the text, surrogates, separators of lines, and spaces that look like another one.
    """
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def brief(value: Any, room: int = 200) -> str:
    """A value on one line of about so many characters, as text that a terminal may be given.

    What is left out is told by its size, and of a long value only the beginning is looked at.
    """
    out: list[str] = []
    left = room
    for piece in _pieces(value, room):
        if left < len(piece):
            out.append(piece[: max(left - 1, 0)] + "…")
            break
        out.append(piece)
        left -= len(piece)
    return "".join(out)


_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})


def _pieces(value: Any, room: int) -> Iterator[str]:
    if isinstance(value, str):
        yield _quoted(value, room)
    elif isinstance(value, (bytes, bytearray)):
        yield f"binary, {size(len(value))}"
    elif isinstance(value, Sealed):
        yield f"<{safe(str(value))}>"
    elif _Snapshot is not None and isinstance(value, _Snapshot):
        yield "DeltaSnapshot("
        yield from _pieces(value.value, room)
        yield ")"
    elif isinstance(value, Typed):
        name = value.name.rpartition(".")[2]
        yield safe(name)
        yield from _made_of(name, value.value, room)
    elif isinstance(value, Mapping):
        yield "{"
        yield from _joined(
            ([f"{label(key)}: "], _pieces(item, room)) for key, item in value.items()
        )
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        yield from _joined(([], _pieces(item, room)) for item in value)
        yield "]"
    elif value is None or isinstance(value, bool):
        yield {None: "null", True: "true", False: "false"}[value]
    else:
        yield safe(repr(value))


def _made_of(name: str, value: Any, room: int) -> Iterator[str]:
    """What is in an object's brackets; arguments that are empty say nothing and are left out."""
    yield "("
    if isinstance(value, Mapping):
        # A message's own words are what is looked for, and its class says what type it is.
        names = sorted(value, key=lambda each: (each != "content") + (each == "id"))
        told = (
            (each, value[each])
            for each in names
            if not _is_empty(value[each]) and not (each == "type" and _is_said(name, value[each]))
        )
        # Room for saying how long a text is that takes all of the line.
        left = max(room - len(name) - 16, 16)
        yield from _joined(([f"{label(each)}="], _pieces(item, left)) for each, item in told)
    elif isinstance(value, (list, tuple)):
        yield from _joined(([], _pieces(item, room)) for item in value)
    else:
        yield from _pieces(value, room)
    yield ")"


def _is_empty(value: Any) -> bool:
    return any(value is each or (type(value) is type(each) and value == each) for each in _EMPTY)


def _is_said(name: str, value: Any) -> bool:
    return isinstance(value, str) and name.lower().startswith(value.lower())


def _joined(items: Any) -> Iterator[str]:
    first = True
    for before, pieces in items:
        if not first:
            yield ", "
        first = False
        yield from before
        yield from pieces


def label(key: Any) -> str:
    """The key of a map, without quotes where it is text that can be seen."""
    if not key or not isinstance(key, str):
        return brief(key, 40)
    return safe(key if len(key) <= 80 else f"{key[:79]}…")


def _quoted(text: str, room: int) -> str:
    if len(text) <= room - 2:
        return f'"{safe(text)}"'
    length = f" ({len(text):,} characters)"
    return f'"{safe(text[: max(room - len(length) - 3, 8)])}…"{length}'


def jsonable(value: Any, longest: int | None = None) -> Any:
    """A value as JSON has it: an object is `{"__type__": name, "value": ...}`, binary its size.

    Args:
        value: Plain data.
        longest: Longer texts are cut to so many characters; None leaves them whole.
    """
    if isinstance(value, str):
        return value if longest is None or len(value) <= longest else value[:longest] + "…"
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        # JSON has no numbers for what is none.
        return value if value - value == 0 else repr(value)
    if isinstance(value, (bytes, bytearray)):
        return {"__type__": "bytes", "size": len(value)}
    if isinstance(value, Sealed):
        return {"__type__": "sealed", "reason": value.reason, "size": value.size}
    if _Snapshot is not None and isinstance(value, _Snapshot):
        return {"__type__": "_DeltaSnapshot", "value": jsonable(value.value, longest)}
    if isinstance(value, Typed):
        return {"__type__": value.name, "value": jsonable(value.value, longest)}
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else brief(key, 200): jsonable(item, longest)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [jsonable(item, longest) for item in value]
    return repr(value)
