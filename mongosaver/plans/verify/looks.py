"""One look at checkpoints and pending writes: do sizes and lists go together, and does all load?

What lies in a checkpoint's own document has no digest: its size must be right, and it must load.
The parts of a large pending write are numbered by their content, which proves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from mongosaver import codec, segments
from mongosaver.ops import Find, Plan
from mongosaver.plans import pages
from mongosaver.plans.context import Context
from mongosaver.plans.shapes import At, Problem, outline_problem, parts_of, shape
from mongosaver.plans.verify.report import Options, Report
from mongosaver.plans.verify.values import Blobs, compute
from mongosaver.schema import Document, Name
from mongosaver.segments import KEY_BYTES

LARGEST: Final = 64 * 1024 * 1024
"""Values above are not put together to be loaded; their digests prove them."""

_PAYLOAD_SHAPE: Final[Mapping[str, type | tuple[type, ...]]] = {
    "type": str,
    "checkpoint": bytes,
    "metadata_type": str,
    "metadata": bytes,
    "search": dict,
}
_READABLE: Final = frozenset({"null", "bytes", "bytearray", "json", "msgpack"})


class Look:
    """One look at checkpoints and writes of a thread, with nothing remembered before."""

    def __init__(self, ctx: Context, thread_id: str, report: Report, options: Options) -> None:
        self.ctx, self.thread_id, self.report, self.options = ctx, thread_id, report, options
        self.blobs = Blobs(thread_id, report, data=options.data)
        self._seen: set[str] = set()

    def checkpoints(self, rows: Sequence[Document]) -> Plan[list[At]]:
        """What is wrong with checkpoints that readers can see, given their outlines."""
        problems: list[At] = []
        sound: list[Document] = []
        for row in rows:
            problem = outline_problem(row)
            if problem is None:
                sound.append(row)
            else:
                problems.append((row, problem))
        for ns in dict.fromkeys(row["checkpoint_ns"] for row in sound):
            here = [row for row in sound if row["checkpoint_ns"] == ns]
            keys = [entry["k"] for row in here for entry in row["blobs"]]
            yield from self.blobs.check(ns, keys)
        for row in sound:
            problems += [(row, problem) for problem in self._values(row)]
        if self.options.data:
            problems += yield from self._documents(sound)
        return problems

    def _values(self, row: Document) -> Iterator[Problem]:
        """What is wrong with the values that a checkpoint names."""
        ns = row["checkpoint_ns"]
        for entry in row["blobs"]:
            channel, key = entry["c"], entry["k"]
            problem = self.blobs.checked[ns, key]
            if problem is not None:
                yield Problem(problem.kind, problem.text, channel, problem.key)
                continue
            head = self.blobs.head(ns, key)
            assert head is not None
            if head["channel"] != channel:
                text = f"it names a value of channel {head['channel']!r}"
                yield Problem("lists", text, channel, key)
            elif "h" not in entry and entry["size"] != len(head["head"]) + head["end"]:
                text = f"it says {entry['size']:,} bytes of a value of another size"
                yield Problem("size", text, channel, key)

    def _documents(self, rows: Sequence[Document]) -> Plan[list[At]]:
        """What is wrong with checkpoints' own payloads."""
        problems: list[At] = []

        def size(row: Document) -> int:
            values: int = sum(entry["size"] for entry in row["blobs"])
            own: int = row["bytes"] - values
            return 1024 + max(0, own)

        for some in pages.by_bytes(rows, size):
            where = {"thread_id": self.thread_id, "_id": {"$in": [row["_id"] for row in some]}}
            for document in (yield Find(Name.CHECKPOINTS, where)):
                found: list[Problem] = []
                problem = outline_problem(document) or shape(
                    document, _PAYLOAD_SHAPE, "checkpoints collection"
                )
                if problem is not None:
                    found.append(problem)
                else:

                    def look(document: Document = document) -> list[Problem]:
                        return list(self._document(document))

                    found += yield from compute(look, size(document))
                    found += yield from self._whole_values(document)
                problems += [(document, problem) for problem in found]
        return problems

    def _document(self, document: Document) -> Iterator[Problem]:
        own = len(document["checkpoint"]) + len(document["metadata"])
        inline = sum(len(entry.get("d", b"")) for entry in document["inline"])
        tails = sum(len(entry.get("d", b"")) for entry in document["blobs"])
        values = sum(entry["size"] for entry in document["blobs"])
        self.report.bytes += own + inline + tails
        total = own + inline + tails + values
        if document["bytes"] != total:
            text = f"'bytes' is {document['bytes']:,}, and there are {total:,}"
            yield Problem("size", text)
        for entry in document["inline"]:
            if not isinstance(entry.get("t"), str) or not isinstance(entry.get("d"), bytes):
                yield Problem("shape", "its entry in 'inline' has no value", entry["c"])
            elif (why := self._fails(entry["t"], entry["d"])) is not None:
                yield Problem("payload", f"the value does not load ({why})", entry["c"])
        yield from self._lists(document)
        yield from self._metadata(document)

    def _lists(self, document: Document) -> Iterator[Problem]:
        """Whether the lists of values go with the payload."""
        loaded, why = self._load(document["type"], document["checkpoint"])
        if why is not None:
            yield Problem("payload", f"the checkpoint does not load ({why})")
        if not isinstance(loaded, Mapping):
            if why is None and loaded is not _SEALED:
                yield Problem("payload", "the payload is no checkpoint")
            return
        if loaded.get("id") != document["checkpoint_id"]:
            yield Problem("payload", f"the payload is checkpoint {loaded.get('id')!r}")
        versions = loaded.get("channel_versions") or {}
        ns = document["checkpoint_ns"]
        for entry in document["blobs"]:
            head = self.blobs.head(ns, entry["k"])
            if "d" in entry or head is None or not self._is_sound(ns, entry, head):
                continue
            if isinstance(versions, Mapping) and head.get("version") != versions.get(entry["c"]):
                text = f"it names version {head.get('version')!r} of the value and not its own"
                yield Problem("lists", text, entry["c"], entry["k"])

    def _is_sound(self, ns: str, entry: Document, head: Document) -> bool:
        """Whether nothing was said of a value before."""
        sound = self.blobs.checked.get((ns, entry["k"])) is None
        return sound and head["channel"] == entry["c"]

    def _metadata(self, document: Document) -> Iterator[Problem]:
        metadata, why = self._load(document["metadata_type"], document["metadata"])
        if why is not None:
            yield Problem("payload", f"the metadata does not load ({why})")
        if isinstance(metadata, Mapping):
            for name, value in document["search"].items():
                # What is no number does not equal itself.
                if name not in metadata or (metadata[name] != value and value == value):
                    yield Problem("lists", f"'search' and the metadata differ in {name!r}")
        elif why is None and metadata is not _SEALED:
            yield Problem("payload", "the metadata is none")

    def _whole_values(self, document: Document) -> Plan[list[Problem]]:
        """Load values as readers do: those with a tail, and all of each namespace's newest."""
        problems: list[Problem] = []
        ns = document["checkpoint_ns"]
        is_newest = ns not in self._seen
        self._seen.add(ns)
        for entry in document["blobs"]:
            head = self.blobs.head(ns, entry["k"])
            if head is None or not self._is_sound(ns, entry, head):
                continue
            has_tail = "d" in entry or "h" in entry
            if has_tail:
                problem = self._tail(entry, head)
                if problem is not None:
                    problems.append(problem)
                    continue
            settled = has_tail and self._goes_on(entry, head)
            if (
                entry["size"] > LARGEST
                or (settled and not is_newest)
                or not (has_tail or is_newest)
            ):
                continue
            parts = yield from self.blobs.whole(ns, entry["k"])
            if parts is None:
                continue  # the second look tells what that means
            begin = entry["h"] if has_tail else head["head"]
            data = segments.join(begin, [*parts, *([entry["d"]] if has_tail else [])])

            def load(type_: str = head["type"], data: bytes = data) -> str | None:
                return self._fails(type_, data)

            why = yield from compute(load, len(data))
            if why is not None:
                text = f"the value does not load ({why})"
                problems.append(Problem("payload", text, entry["c"], entry["k"]))
        return problems

    def _tail(self, entry: Document, head: Document) -> Problem | None:
        if not isinstance(entry.get("h"), bytes) or not isinstance(entry.get("d"), bytes):
            return Problem("shape", "its entry in 'blobs' has half a tail", entry["c"], entry["k"])
        size = len(entry["h"]) + head["end"] + len(entry["d"])
        if entry["size"] != size:
            text = f"it says {entry['size']:,} bytes of a value of {size:,}"
            return Problem("size", text, entry["c"], entry["k"])
        return None

    def _goes_on(self, entry: Document, head: Document) -> bool:
        """Whether a tail is the items by which its value has more than the stored one.

        Only of lists and maps; else the whole value tells.
        """
        items, before = items_of(entry["h"]), items_of(head["head"])
        if head["type"] != "msgpack" or items is None or before is None or items < before:
            return False
        as_list = b"\xdd" + (items - before).to_bytes(4, "big") + entry["d"]
        return self._fails("msgpack", as_list) is None

    def _fails(self, type_: str, data: bytes) -> str | None:
        return self._load(type_, data)[1]

    def _load(self, type_: str, data: bytes) -> tuple[Any, str | None]:
        """What a payload is, or why it does not load."""
        try:
            return self.ctx.serde.loads_typed((type_, data)), None
        except Exception as error:  # noqa: BLE001 - whatever a serializer raises
            base, plus, _ = type_.partition("+")
            if base not in _READABLE or (plus and not self.options.opens):
                self.report.sealed += 1
                return _SEALED, None
            if plus:
                return None, "it is encrypted, and not with the key that is at hand"
            return None, type(error).__name__

    # --- writes

    def slot(self, rows: Sequence[Document]) -> Plan[Problem | None]:
        """What is wrong with one pending write, given its documents without data."""
        first = next((row for row in rows if row["part"] == 0), None)
        if first is None:
            return None  # readers pass over it
        task = first["task_id"]
        problem = shape(first, {"channel": str, "type": str, "task_path": str}, "writes collection")
        if problem is not None:
            return Problem(problem.kind, problem.text, key=task)
        channel = first["channel"]
        by_number = {row["part"]: row for row in rows}
        numbers = parts_of(first)
        missing = [number for number in numbers if number not in by_number]
        if missing:
            text = f"{len(missing)} of {len(numbers)} parts of task {task!r} are not stored"
            return Problem("write", text, channel, task)
        if not self.options.data:
            return None
        if not numbers:
            data = yield from self._part(first)
            why = "there is no data" if data is None else self._fails(first["type"], data)
            text = f"what task {task!r} wrote does not load ({why})"
            return None if why is None else Problem("write", text, channel, task)
        return (yield from self._parts(channel, task, [by_number[n] for n in numbers]))

    def _parts(self, channel: str, task: str, rows: Sequence[Document]) -> Plan[Problem | None]:
        """Whether the parts' numbers are the addresses of what they hold."""
        hasher, starts, at = blake2b(digest_size=KEY_BYTES), [], 0
        for row in rows:
            data = yield from self._part(row)
            if data is None:
                return Problem("write", f"a part of task {task!r} has no data", channel, task)
            starts.append(at)
            at += len(data)
            hasher.update(data)
        digest = hasher.digest()
        if [row["part"] for row in rows] != [codec.part_number(digest, at) for at in starts]:
            text = f"the data of task {task!r} is not what was stored"
            return Problem("write", text, channel, task)
        return None

    def _part(self, row: Document) -> Plan[bytes | None]:
        if "data" in row:
            data = row["data"]
        else:
            where = {"thread_id": self.thread_id, "_id": row["_id"]}
            found = yield Find(Name.WRITES, where, {"_id": 0, "data": 1}, limit=1)
            data = found[0].get("data") if found else None
        if not isinstance(data, bytes):
            return None
        self.report.bytes += len(data)
        return data


_EXTENSIONS: Final = {**dict.fromkeys(range(0xD4, 0xD9), 2), 0xC7: 3, 0xC8: 4, 0xC9: 6}
_COUNTS: Final = {0xDC: (3, 1), 0xDD: (5, 1), 0xDE: (3, 2), 0xDF: (5, 2)}
"""Codes of the msgpack specification: width of an extension's header; of a container's, and how
many objects each of its items is."""


def items_of(head: bytes) -> int | None:
    """How many objects the container holds that a payload begins with; None where it is none."""
    head = head[_EXTENSIONS.get(head[0], 0) :] if head else head
    if not head:
        return None
    if 0x80 <= head[0] <= 0x9F:
        return (head[0] & 0x0F) * (2 if head[0] < 0x90 else 1)
    width, each = _COUNTS.get(head[0], (0, 0))
    return int.from_bytes(head[1:width], "big") * each if width == len(head) else None


class _Sealed:
    """A payload that cannot be looked into."""


_SEALED: Final = _Sealed()
