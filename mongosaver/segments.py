"""Append-only storage of one channel's value: split, match, cut, merge, join.

The idea: the msgpack bytes of a list are an array header followed by the bytes of its items. A list
that has grown at its end therefore has the old value's bytes, less the header, as a prefix; so have
maps, strings and bytes. A version of a value is stored as its header and a chain of *segments* of
the rest (the *body*), and a successor keeps every segment of its parent that is still a prefix:

    payload = head + data(chain[0]) + data(chain[1]) + ... + data(own)

Where a body may be reused is decided by digests of its prefixes alone, so nothing here depends on a
payload being what its type says: whatever bytes go in come out again.

What may live here: functions of their arguments. No I/O, no clock, no randomness, nothing of
PyMongo. A layout is free to change between releases, since no reader depends on it.

How long a chain gets: at most `Layout.longest` segments, two more for each 8 MB of the body, and
8 more or the pieces of the put itself (5, and one for each further 8 MB), whichever is greater.
A chat of messages of 765 bytes stays below 40 for its first 10,000 messages.
What merging costs: a byte is stored again only when it moves into a segment of a higher size tier,
of which there are five; below the lowest tier, at most 73 bytes a put. The bound on the length
costs more only where sizes are chosen to defeat the tiers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, repeat
from itertools import chain as concat

__all__ = [
    "LAYOUT",
    "Layout",
    "Piece",
    "Segment",
    "Stored",
    "address",
    "join",
    "plan",
    "split",
    "stored",
    "tail",
    "version_field",
]

KEY_BYTES = 16
"""Length of keys and digests: 128 bits of BLAKE2b."""

Version = str | float | None
"""What LangGraph and its savers number versions with; None where a channel has a value only."""

Facts = tuple[bytes, int, bytes]
"""Key, end and digest of a segment, as its document has them."""

SHARED_TYPES = frozenset({"msgpack", "bytes", "bytearray"})
"""Serializer tags whose bytes show growth as growth. Others (encrypted, compressed) never match."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes, in bytes, and counts by which bodies are cut and segments merged.

    Attributes:
        pieces: Sizes of new pieces, counted from the body's end; those before are `largest`.
        largest: The most that merging makes of neighbours. A piece may be an eighth larger.
        tiers: Upper ends of the size tiers within which neighbours are merged.
        fan: How many neighbours become one.
        fresh: How many of the newest segments are left alone, since the last items of a value are
            the ones that are edited and taken back.
        longest: How many older segments there may be before tiers no longer matter.
    """

    pieces: tuple[int, ...] = (4 << 10, 32 << 10, 256 << 10, 2 << 20)
    largest: int = 8 << 20
    tiers: tuple[int, ...] = (512, 4 << 10, 32 << 10, 256 << 10, 2 << 20)
    fan: int = 8
    fresh: int = 8
    longest: int = 48


LAYOUT = Layout()


@dataclass(frozen=True, slots=True)
class Segment:
    """What is known of one stored segment of one value, without its bytes.

    Attributes:
        key: The blob that holds it.
        end: Length of the body up to the segment's end.
        digest: Digest of the body up to the segment's end.
    """

    key: bytes
    end: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """How one version of a value lies in the database: all that a successor needs to know.

    Attributes:
        type: The serializer's tag.
        segments: The chain, then the head's own segment, which is empty where it ends where the one
            before it does.
    """

    type: str
    segments: tuple[Segment, ...]

    @property
    def key(self) -> bytes:
        """Key of the head, by which a checkpoint names the value."""
        return self.segments[-1].key


@dataclass(frozen=True, slots=True)
class Piece:
    """One blob to be stored.

    Attributes:
        key: Its content address within the thread and namespace.
        head: The container's header; empty where the payload has none, and in a plain segment.
        chain: Keys of the segments before its own; empty in a plain segment.
        data: The bytes of its own segment.
        end: Length of the body up to the end of `data`.
        digest: Digest of the body up to the end of `data`.
        is_head: Whether it stands for a version of a value; a plain segment is only part of others.
    """

    key: bytes
    head: bytes
    chain: tuple[bytes, ...]
    data: bytes
    end: int
    digest: bytes
    is_head: bool

    @property
    def segment(self) -> Segment:
        """The facts of its own segment."""
        return Segment(self.key, self.end, self.digest)


def split(type_: str, payload: bytes) -> tuple[bytes, memoryview]:
    """Split a payload into its container's header and the body, without copying the body.

    Args:
        type_: The serializer's tag. Only `msgpack` payloads have a header.
        payload: The serializer's bytes.

    Returns:
        The header of the outermost array, map, string, binary or extension (of an extension also
        the header of what it holds), 1 to 11 bytes, and the rest. The header is empty where the
        payload is none of these or contradicts its own header's length.
    """
    view = memoryview(payload)
    width = _header_width(view) if type_ == "msgpack" else 0
    return bytes(view[:width]), view[width:]


def plan(
    channel: str,
    version: Version,
    type_: str,
    payload: bytes,
    base: Stored | None,
    *,
    layout: Layout = LAYOUT,
) -> tuple[list[Piece], Stored]:
    """Decide what is to be stored for a new version of a value.

    The body is hashed once. The segments of `base` that are a prefix of it are kept, the rest is
    cut into pieces, and kept segments may be merged into larger ones.

    Args:
        channel: Name of the channel.
        version: The channel's version.
        type_: The serializer's tag.
        payload: The serializer's bytes.
        base: How the parent's value of this channel is stored, or None. Which version it is does
            not matter for correctness, only for what is saved.
        layout: Sizes and counts.

    Returns:
        The new blobs, the head last, and how the version is stored once they are. Equal arguments
        give equal blobs, and a key is never given to two different blobs.

    Raises:
        TypeError: `version` is none of the types that versions have.
    """
    version_bytes = version_field(version)
    head, body = split(type_, payload)
    size = len(body)
    ends = _ends(base, size) if base and base.type == type_ and type_ in SHARED_TYPES else {}

    # Cuts are counted from the body's end, so that those after a kept prefix are among those of the
    # whole: all places where a digest may be needed are known before hashing.
    digests = {0: blake2b(digest_size=KEY_BYTES).digest()}
    hasher = blake2b(digest_size=KEY_BYTES)
    kept: list[Segment] = []
    matching = True
    position = 0
    for mark in sorted({*ends, *_cuts(0, size, layout)}):
        hasher.update(body[position:mark])
        digests[mark] = hasher.digest()
        position = mark
        if matching and mark in ends:
            matching = ends[mark].digest == digests[mark]
            if matching:
                kept.append(ends[mark])

    scope = (channel.encode("utf-8", "surrogatepass"), type_.encode("utf-8", "surrogatepass"))

    def plain(start: int, end: int) -> Piece:
        key = address(b"segment", *scope, digests[start], digests[end])
        return Piece(key, b"", (), bytes(body[start:end]), end, digests[end], is_head=False)

    pieces: list[Piece] = []
    segments: list[Segment] = []
    start = kept[-1].end if kept else 0
    cuts = _cuts(start, size, layout)

    old = max(0, len(kept) - max(0, layout.fresh - len(cuts)))
    index = merged = 0
    for count in _merge(_sizes(kept[:old]), layout):
        index += count
        end = kept[index - 1].end
        if count == 1:
            segments.append(kept[index - 1])
        else:
            pieces.append(plain(merged, end))
            segments.append(pieces[-1].segment)
        merged = end
    segments += kept[old:]

    for end in cuts[:-1]:
        pieces.append(plain(start, end))
        segments.append(pieces[-1].segment)
        start = end

    # The chain is part of the address: a head that is "already there" must name the same segments,
    # or one writer would rely on segments that no stored head keeps alive.
    chain = tuple(segment.key for segment in segments)
    key = address(
        b"head", *scope, version_bytes, head, b"".join(chain), digests[start], digests[size]
    )
    own = Piece(key, head, chain, bytes(body[start:]), size, digests[size], is_head=True)
    pieces.append(own)
    return pieces, Stored(type_, (*segments, own.segment))


def tail(
    type_: str, payload: bytes, base: Stored, limit: int, former: bytes | None = None
) -> tuple[bytes, bytes] | None:
    """What a payload adds to the end of a stored one.

    Args:
        type_: The serializer's tag.
        payload: The serializer's bytes.
        base: How the former value is stored.
        limit: The most bytes that are wanted.
        former: A payload of the same type whose body begins with all of the stored one, if there
            is one at hand: bytes are compared several times as fast as they are hashed.

    Returns:
        The payload's header and the bytes of its body behind the stored one's; None where its body
        does not begin with all of that, or goes on for longer than `limit`.
    """
    if base.type != type_ or type_ not in SHARED_TYPES:
        return None
    head, body = split(type_, payload)
    own = base.segments[-1]
    if own.end == 0 or not 0 <= len(body) - own.end <= limit:
        return None
    if former is not None:
        _, known = split(type_, former)
        if not payload.startswith(known[: own.end], len(head)):
            return None
    elif blake2b(body[: own.end], digest_size=KEY_BYTES).digest() != own.digest:
        return None
    return head, bytes(body[own.end :])


def join(head: bytes, parts: Sequence[bytes]) -> bytes:
    """Put a payload together again.

    Args:
        head: The head's container header.
        parts: The data of the chain's segments in order, then of the head's own.

    Returns:
        The payload as it was given to `plan`.
    """
    return b"".join((head, *parts))


def stored(type_: str, chain: Iterable[Facts], own: Facts) -> Stored:
    """Rebuild, from what was read, how a version of a value is stored.

    The chain has to be complete. Otherwise wrong facts do no harm: a successor keeps what its
    digests confirm, up to the first segment that they do not.

    Args:
        type_: The serializer's tag.
        chain: Key, end and digest of the chain's segments, in order.
        own: Key, end and digest of the head's own segment.

    Returns:
        The same as `plan` returned for that version.
    """
    return Stored(type_, tuple(Segment(*facts) for facts in (*chain, own)))


_LENGTH_BYTES = {
    # Binary 8, 16, 32.
    0xC4: 1,
    0xC5: 2,
    0xC6: 4,
    # Extension 8, 16, 32; a type byte follows the length.
    0xC7: 1,
    0xC8: 2,
    0xC9: 4,
    # String 8, 16, 32.
    0xD9: 1,
    0xDA: 2,
    0xDB: 4,
    # Array 16, 32.
    0xDC: 2,
    0xDD: 4,
    # Map 16, 32.
    0xDE: 2,
    0xDF: 4,
}
"""Codes of the msgpack specification and how many bytes of length follow each."""


def _header_width(payload: memoryview) -> int:
    """Bytes of the header that changes when a msgpack container grows; 0 where there is none."""
    outer, is_extension = _container(payload)
    if is_extension:
        inner, _ = _container(payload[outer:])
        return outer + inner
    return outer


def _container(payload: memoryview) -> tuple[int, bool]:
    """Width of the header that a msgpack value begins with, and whether it is an extension's.

    The widths and codes are those of the msgpack specification. Items are not parsed: a wrong guess
    is harmless, it only moves the place where the payload is split.
    """
    size = len(payload)
    if not size:
        return 0, False
    code = payload[0]
    if 0x80 <= code <= 0x9F:
        count = code & 0x0F
        return (1 if 1 + count <= size else 0), False
    if 0xA0 <= code <= 0xBF:
        return (1 if 1 + (code & 0x1F) == size else 0), False
    if 0xD4 <= code <= 0xD8:
        is_whole = 2 + (1 << code - 0xD4) == size
        return (2 if is_whole else 0), is_whole
    if code not in _LENGTH_BYTES:
        return 0, False
    width = 1 + _LENGTH_BYTES[code]
    length = int.from_bytes(payload[1:width], "big")
    if code >= 0xDC:
        return (width if width + length <= size else 0), False
    is_extension = 0xC7 <= code <= 0xC9
    width += is_extension
    return (width, is_extension) if width + length == size else (0, False)


def _ends(base: Stored, size: int) -> dict[int, Segment]:
    """The base's segments by where they end, as far as the new body reaches; no empty ones."""
    ends: dict[int, Segment] = {}
    start = 0
    for segment in base.segments:
        if not start <= segment.end <= size:
            break
        if segment.end > start:
            ends[segment.end] = segment
            start = segment.end
    return ends


def _cuts(start: int, end: int, layout: Layout) -> list[int]:
    """Where the pieces of a stretch end, ascending: the smallest piece is the last.

    A piece takes the rest where that is at most twice its size, so that no sliver remains.
    """
    cuts = [end]
    steps = concat(layout.pieces, repeat(layout.largest))
    most = layout.largest + layout.largest // 8
    while end - start > min(2 * (step := next(steps)), most):
        end -= step
        cuts.append(end)
    return cuts[::-1]


def _sizes(segments: Sequence[Segment]) -> Iterator[int]:
    start = 0
    for segment in segments:
        yield segment.end - start
        start = segment.end


def _merge(sizes: Iterable[int], layout: Layout) -> list[int]:
    """How many neighbours become one segment, from the oldest on; 1 where one stays as it is."""
    groups = [(size, 1) for size in sizes]
    total = sum(size for size, _ in groups)
    for ceiling in layout.tiers:
        # Eight of the second highest tier may be more than one document should hold.
        fan = min(layout.fan, layout.largest // ceiling)
        if len(groups) >= fan:
            groups = _lift(groups, ceiling, fan, at_any_size=ceiling == layout.tiers[0])
    while len(groups) > layout.longest + 2 * total // layout.largest:
        groups = _squeeze(groups, layout)
    return [count for _, count in groups]


def _lift(
    groups: list[tuple[int, int]], ceiling: int, fan: int, *, at_any_size: bool
) -> list[tuple[int, int]]:
    """Merge neighbours below a tier's ceiling which together rise above it.

    Neighbours may be of lower tiers too: were they required to be of one, small segments between
    large ones would stay for ever. In the lowest tier the count alone decides: there, documents
    cost more than bytes.
    """
    result: list[tuple[int, int]] = []
    pending: list[tuple[int, int]] = []
    size = 0
    for group in groups:
        if group[0] >= ceiling:
            result += pending
            result.append(group)
            pending, size = [], 0
            continue
        pending.append(group)
        size += group[0]
        if len(pending) >= fan and (at_any_size or size >= ceiling):
            result.append((size, sum(count for _, count in pending)))
            pending, size = [], 0
    return result + pending


def _squeeze(groups: list[tuple[int, int]], layout: Layout) -> list[tuple[int, int]]:
    """Merge the neighbours that cost the fewest bytes for each segment saved.

    With more groups than twice the total in units of `largest`, two neighbours fit into one.
    """
    ends = list(accumulate((size for size, _ in groups), initial=0))
    _, first, stop = min(
        ((ends[stop] - ends[first]) / (stop - first - 1), first, stop)
        for first in range(len(groups) - 1)
        for stop in range(first + 2, min(first + layout.fan, len(groups)) + 1)
        if ends[stop] - ends[first] <= layout.largest
    )
    count = sum(count for _, count in groups[first:stop])
    return [*groups[:first], (ends[stop] - ends[first], count), *groups[stop:]]


def version_field(version: object) -> bytes:
    """A version as bytes which no version of another type or value has.

    Raises:
        TypeError: It is none of the types that versions have.
    """
    if isinstance(version, str):
        return b"s" + version.encode("utf-8", "surrogatepass")
    if isinstance(version, int):
        return b"i%x" % version
    if isinstance(version, float):
        return b"f" + version.hex().encode()
    if version is None:
        return b"n"
    raise TypeError(
        f"a channel version must be a str, int, float or None; found {type(version).__name__}"
    )


def address(*fields: bytes) -> bytes:
    """The content address over fields, each with its length, so that no two splits are alike.

    A key is the address of a word for its kind and of all that its blob says. Whoever makes keys
    here, or looks whether they are right, names the same fields.
    """
    hasher = blake2b(digest_size=KEY_BYTES, person=b"mongosaver")
    for field in fields:
        hasher.update(len(field).to_bytes(8, "big"))
        hasher.update(field)
    return hasher.digest()
