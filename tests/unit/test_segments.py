"""How a value is cut, matched, merged and put together again: tables, then any sequence of values.

The sequences also run in a layout of a few bytes, in which short values cut and merge too.
"""

from __future__ import annotations

import operator
import tracemalloc
from collections import deque
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import ormsgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from mongosaver.segments import (
    LAYOUT,
    Layout,
    Piece,
    Segment,
    Stored,
    _cuts,
    _merge,
    join,
    plan,
    split,
    stored,
    tail,
)

SMALL = Layout(pieces=(2, 4), largest=8, tiers=(2, 4), fan=2, fresh=1, longest=2)
"""Cuts and merges as the real layout does, within a dozen bytes."""

SERDE = JsonPlusSerializer()


class Database:
    """The blobs of one thread, as a dictionary; checks what must hold whenever one is stored."""

    def __init__(self, layout: Layout = LAYOUT) -> None:
        self.layout = layout
        self.blobs: dict[bytes, Piece] = {}
        self.bytes = 0

    def put(
        self,
        version: str | float | None,
        type_: str,
        payload: bytes,
        base: Stored | None = None,
        channel: str = "messages",
    ) -> Stored:
        """Plans and stores one version."""
        pieces, result = plan(channel, version, type_, payload, base, layout=self.layout)
        assert (pieces, result) == plan(channel, version, type_, payload, base, layout=self.layout)
        assert [piece.is_head for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert result.key == pieces[-1].key
        reachable = {piece.key for piece in pieces[:-1]}
        if base:
            reachable |= {segment.key for segment in base.segments}
        assert reachable.issuperset(pieces[-1].chain)
        for piece in pieces:
            assert self.blobs.setdefault(piece.key, piece) == piece
            assert type(piece.data) is bytes
            assert len(piece.data) <= self.layout.largest * 9 // 8
            assert piece.is_head or piece.data
            assert piece.is_head or (piece.head, piece.chain) == (b"", ())
            self.bytes += len(piece.head) + len(piece.data)
        return result

    def get(self, key: bytes) -> bytes:
        """Reads one version, as a reader does, from its head and its chain."""
        head = self.blobs[key]
        return join(head.head, [*(self.blobs[key].data for key in head.chain), head.data])

    def facts(self, type_: str, key: bytes) -> Stored:
        """What a process with a cold cache learns of a version."""
        head = self.blobs[key]
        chain = [self.blobs[key] for key in head.chain]
        return stored(
            type_,
            [(piece.key, piece.end, piece.digest) for piece in chain],
            (head.key, head.end, head.digest),
        )


def lengths(value: Stored) -> list[int]:
    """Lengths of a value's segments."""
    ends = [0, *(segment.end for segment in value.segments)]
    return list(map(operator.sub, ends[1:], ends))


def digest(body: bytes) -> bytes:
    """What a segment's digest is said to be."""
    return blake2b(body, digest_size=16).digest()


def array(count: int, item: bytes = b"\x01") -> bytes:
    """A msgpack array of equal items."""
    header: bytes = ormsgpack.packb([None] * count)[: -count or None]
    return header + item * count


# --- split --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "width"),
    [
        ([], 1),
        ([1] * 15, 1),
        ([1] * 16, 3),
        ([1] * 65_535, 3),
        ([1] * 65_536, 5),
        ({}, 1),
        ({str(n): n for n in range(15)}, 1),
        ({str(n): n for n in range(16)}, 3),
        ({str(n): None for n in range(65_535)}, 3),
        ({str(n): None for n in range(65_536)}, 5),
        ("", 1),
        ("x" * 31, 1),
        ("x" * 32, 2),
        ("x" * 255, 2),
        ("x" * 256, 3),
        ("x" * 65_536, 5),
        (b"", 2),
        (b"x" * 255, 2),
        (b"x" * 256, 3),
        (b"x" * 65_536, 5),
        (ormsgpack.Ext(5, b"\xc0"), 2),
        (ormsgpack.Ext(5, b"\xc0" * 16), 2),
        (ormsgpack.Ext(5, b"\xc0" * 3), 3),
        (ormsgpack.Ext(5, b"\xc0" * 256), 4),
        (ormsgpack.Ext(5, b"\xc0" * 65_536), 6),
        (ormsgpack.Ext(5, ormsgpack.packb([1])), 2 + 1),
        (ormsgpack.Ext(5, ormsgpack.packb([1] * 70_000)), 6 + 5),
        (ormsgpack.Ext(5, ormsgpack.packb(ormsgpack.Ext(5, b"\x91\x01"))), 2 + 2),
        (None, 0),
        (1, 0),
        (70_000, 0),
        (1.5, 0),
    ],
    ids=lambda value: None if isinstance(value, int) else type(value).__name__,
)
def test_the_header_of_the_outermost_container_is_split_off(value: object, width: int) -> None:
    """What changes when a container grows is the head, whatever its kind and size."""
    payload = ormsgpack.packb(value)
    head, body = split("msgpack", payload)
    assert len(head) == width
    assert head + bytes(body) == payload


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x92\x01",  # two items in one byte
        b"\xa2x",  # a string of two bytes in one
        b"\xa1xx",  # more behind a string
        b"\xd4\x05",  # an extension without its byte
        b"\xc7\x02\x05x",  # an extension of two bytes in one
        b"\xc4\x02x",
        b"\xdc\x00\x02\x01",
        b"\xdc\x00",  # a header cut short
        b"\xdf\x00\x00\x00",
        b"\xc1",  # no msgpack code
    ],
)
def test_a_payload_that_contradicts_its_header_is_not_split(payload: bytes) -> None:
    """Where the length does not agree, the payload is all body."""
    assert split("msgpack", payload) == (b"", payload)


@pytest.mark.parametrize("type_", ["bytes", "bytearray", "json", "msgpack+aes", "null", ""])
def test_only_msgpack_is_split(type_: str) -> None:
    """Bytes of other types may look like msgpack and are left whole."""
    assert split(type_, b"\x92\x01\x02") == (b"", b"\x92\x01\x02")


def test_splitting_copies_no_body() -> None:
    """The body is a view on the payload."""
    payload = array(100)
    _, body = split("msgpack", payload)
    assert body.obj is payload


# --- cut ----------------------------------------------------------------------------------------

K, M = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (0, [0]),
        (1, [1]),
        (8 * K, [8 * K]),
        (8 * K + 1, [4 * K + 1, 4 * K]),
        (68 * K, [64 * K, 4 * K]),
        (68 * K + 1, [32 * K + 1, 32 * K, 4 * K]),
        (1 * M, [1 * M - 292 * K, 256 * K, 32 * K, 4 * K]),
        (9 * M, [7 * M - 292 * K, 2 * M, 256 * K, 32 * K, 4 * K]),
        (20 * M, [2 * M - 292 * K, 8 * M, 8 * M, 2 * M, 256 * K, 32 * K, 4 * K]),
    ],
)
def test_pieces_are_cut_from_the_end(size: int, pieces: list[int]) -> None:
    """The last piece is the smallest, and none is a sliver or too large for a document."""
    ends = [0, *_cuts(0, size, LAYOUT)]
    assert list(map(operator.sub, ends[1:], ends)) == pieces


@given(
    start=st.integers(0, 50 * M),
    size=st.integers(0, 50 * M),
    layout=st.sampled_from([LAYOUT, SMALL]),
)
@settings(max_examples=50)
def test_cuts_behind_a_prefix_are_among_those_of_the_whole(
    start: int, size: int, layout: Layout
) -> None:
    """That is what allows hashing once, before it is known what is kept."""
    if layout is SMALL:
        start, size = start % 100, size % 100
    cuts = _cuts(start, start + size, layout)
    assert set(cuts) <= set(_cuts(0, start + size, layout))
    assert cuts == sorted(set(cuts))


# --- merge --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([700] * 7, [1] * 7),
        ([700] * 8, [8]),
        ([700] * 9, [8, 1]),
        ([5_000] + [700] * 7, [1] * 8),
        ([5_000] + [700] * 8, [1, 8]),
        # Eight of a tier rise together with those merged before.
        ([6_000] * 7 + [700] * 8, [15]),
        # Below the lowest tier the count decides.
        ([1] * 8, [8]),
        ([8] + [1] * 7, [8]),
        # Small segments between large ones rise with these.
        ([600, 5_000] * 7, [12, 1, 1]),
        ([600, 5_000] * 3, [1] * 6),
        # What they have together is too little for the next tier.
        ([4_000] + [513] * 6, [1] * 7),
        # Not above 8 MB.
        ([1 * M] * 4, [4]),
        ([2 * M - 1] * 4, [4]),
        ([2 * M] * 20, [1] * 20),
    ],
)
def test_neighbours_of_a_tier_are_merged(sizes: list[int], groups: list[int]) -> None:
    """Eight neighbours become one when that takes them into the next tier."""
    assert _merge(sizes, LAYOUT) == groups


def test_a_chain_too_long_for_tiers_is_squeezed_where_it_costs_least() -> None:
    """Sizes that no tier brings together are merged all the same once there are too many."""
    sizes = [3 * M, 600, 600] * 25
    groups = _merge(sizes, LAYOUT)
    assert sum(groups) == len(sizes)
    limit = LAYOUT.longest + 2 * sum(sizes) // LAYOUT.largest
    assert len(groups) <= limit
    assert max(groups) == 2


sizes_of_appends = st.one_of(
    st.lists(st.integers(1, 4 * M), min_size=1, max_size=150),
    st.lists(st.sampled_from([1, 600, 5_000, 40_000, 3 * M, 20 * M]), min_size=1, max_size=300),
    st.lists(st.integers(0, 23).map(lambda n: 1 << n), min_size=1, max_size=300),
    # Each larger than all after it, over and again.
    st.integers(2, 9).map(
        lambda base: [511 * base ** ((n & -n).bit_length() % 6) for n in range(1, 600)]
    ),
)


@given(sizes=sizes_of_appends)
@settings(max_examples=60, deadline=None)
def test_chains_are_bounded_for_appends_of_any_sizes(sizes: list[int]) -> None:
    """The bound of the module's docstring holds, and merging makes nothing larger than 8 MB."""
    segments: list[int] = []
    total = written = 0
    for size in sizes:
        ends = [0, *_cuts(0, size, LAYOUT)]
        pieces = list(map(operator.sub, ends[1:], ends))
        old = max(0, len(segments) - max(0, LAYOUT.fresh - len(pieces)))
        merged = []
        rest = iter(segments[:old])
        for count in _merge(segments[:old], LAYOUT):
            merged.append(sum(next(rest) for _ in range(count)))
            if count > 1:
                assert merged[-1] <= LAYOUT.largest
                written += merged[-1]
        segments = merged + segments[old:] + pieces
        total += size
        written += size
        assert sum(segments) == total
        bound = LAYOUT.longest + 2 * total // LAYOUT.largest + max(LAYOUT.fresh, len(pieces))
        assert len(segments) <= bound
    assert written <= 6 * total + 73 * len(sizes)


# --- plan ---------------------------------------------------------------------------------------


def test_a_short_value_is_one_blob() -> None:
    """A value without a base is a head that holds all of it."""
    (head,), result = plan("messages", "1", "msgpack", b"\x92\x01\x02", None)
    assert (head.head, head.chain, head.data) == (b"\x92", (), b"\x01\x02")
    assert (head.end, head.digest, head.is_head) == (2, digest(b"\x01\x02"), True)
    assert result == Stored("msgpack", (Segment(head.key, 2, head.digest),))


@pytest.mark.parametrize(
    ("before", "after", "kept", "new"),
    [
        pytest.param(array(3), array(4), [3], 1, id="appended"),
        pytest.param(array(15), array(16), [15], 1, id="header of 1 and 3 bytes"),
        pytest.param(array(65_535), array(65_536), [61_439, 4_096], 1, id="of 3 and 5 bytes"),
        pytest.param(array(3), array(3), [3], 0, id="unchanged"),
        pytest.param(array(3), b"\x91\x02", [], 1, id="replaced"),
        pytest.param(array(3), array(2), [], 2, id="trimmed at its end"),
        pytest.param(array(3), b"\x90", [], 0, id="emptied"),
        pytest.param(b"\x90", array(2), [], 2, id="begun"),
        pytest.param(b"\x82\x01\x01\x02\x02", b"\x83\x01\x01\x02\x02\x03\x03", [4], 2, id="map"),
        pytest.param(b"\x81\x01\x01", b"\x92\x01\x01", [2], 0, id="map, then list of its bytes"),
        pytest.param(b"\xa3abc", b"\xa4abcd", [3], 1, id="string"),
        pytest.param(b"\xc4\x01a", b"\xc4\x02ab", [1], 1, id="binary"),
        pytest.param(b"\xd5\x07\x91\x01", b"\xc7\x03\x07\x92\x01\x02", [1], 1, id="delta snapshot"),
    ],
)
def test_a_successor_keeps_what_is_still_a_prefix(
    before: bytes, after: bytes, kept: list[int], new: int
) -> None:
    """Segments of the base that the body begins with are named, the rest is stored."""
    database = Database()
    base = database.put("1", "msgpack", before)
    database.bytes = 0
    result = database.put("2", "msgpack", after, base)
    assert lengths(result) == [*kept, new]
    assert [segment.key for segment in result.segments[:-1]] == [
        segment.key for segment in base.segments[: len(kept)]
    ]
    assert database.bytes == len(split("msgpack", after)[0]) + new
    assert database.get(result.key) == after
    assert database.get(base.key) == before


def test_a_value_trimmed_at_a_segments_end_stores_nothing_but_a_head() -> None:
    """Taking back what was added last costs no bytes of the body."""
    database = Database()
    first = database.put("1", "msgpack", array(3))
    second = database.put("2", "msgpack", array(5), first)
    third = database.put("3", "msgpack", array(3), second)
    assert lengths(third) == [3, 0]
    assert database.blobs[third.key].chain == (first.key,)
    assert database.get(third.key) == array(3)


def test_an_empty_segment_is_no_link_of_a_chain() -> None:
    """A value saved again and again under new versions does not grow a chain of empty segments."""
    database = Database()
    first = result = database.put("1", "msgpack", array(3))
    for version in range(2, 50):
        result = database.put(str(version), "msgpack", array(3), result)
        assert database.blobs[result.key].chain == (first.key,)
    result = database.put("50", "msgpack", array(4), result)
    assert database.blobs[result.key].chain == (first.key,)
    emptied = database.put("51", "msgpack", b"\x90", result)
    assert database.blobs[database.put("52", "msgpack", b"\x90", emptied).key].chain == ()


@pytest.mark.parametrize("type_", ["bytes", "bytearray"])
def test_raw_bytes_share_their_prefix(type_: str) -> None:
    """A growing value of plain bytes is stored as what was added, also from a mutable payload."""
    database = Database()
    base = database.put("1", type_, bytearray(b"\x92abc"))
    result = database.put("2", type_, bytearray(b"\x92abcd"), base)
    assert lengths(result) == [4, 1]
    assert database.get(result.key) == b"\x92abcd"


@pytest.mark.parametrize("type_", ["json", "pickle", "msgpack+aes", "null", "custom"])
def test_other_types_share_nothing(type_: str) -> None:
    """What an encrypting or unknown serializer made is stored in pieces and never matched."""
    database = Database()
    base = database.put("1", type_, b"x" * 20_000)
    result = database.put("2", type_, b"x" * 20_001, base)
    assert lengths(base) == [20_000 - 4 * K, 4 * K]
    assert not {s.key for s in base.segments} & {s.key for s in result.segments}
    assert database.get(result.key) == b"x" * 20_001


def test_a_base_of_another_type_is_none() -> None:
    """Equal bytes under different tags are different values."""
    database = Database()
    base = database.put("1", "bytes", b"abc")
    result = database.put("2", "bytearray", b"abcd", base)
    assert lengths(result) == [4]


@pytest.mark.parametrize(
    ("segments", "kept"),
    [
        pytest.param([Segment(b"a", 2, b"wrong")], [], id="wrong digest"),
        pytest.param([Segment(b"a", 9, digest(b"abc"))], [], id="beyond the body"),
        pytest.param(
            [Segment(b"a", 2, digest(b"ab")), Segment(b"b", 1, digest(b"a"))], [b"a"], id="disorder"
        ),
        pytest.param(
            [Segment(b"a", 1, b"wrong"), Segment(b"b", 2, digest(b"ab"))],
            [],
            id="behind a wrong one",
        ),
        pytest.param(
            [Segment(b"a", 2, digest(b"ab")), Segment(b"b", 2, digest(b"ab"))], [b"a"], id="empty"
        ),
        pytest.param([Segment(b"a", 0, digest(b""))], [], id="empty and alone"),
        pytest.param([], [], id="none"),
    ],
)
def test_only_what_digests_confirm_is_kept(segments: list[Segment], kept: list[bytes]) -> None:
    """Wrong facts about a base cost space and nothing else."""
    pieces, _ = plan("messages", "2", "bytes", b"abc", Stored("bytes", tuple(segments)))
    assert list(pieces[-1].chain) == kept


def packed(items: list[str]) -> bytes:
    """Returns a list as the serializer stores it."""
    return SERDE.dumps_typed(items)[1]


@pytest.mark.parametrize(
    "items",
    [
        ["a", "b", "c"],
        ["a", "b"],
        ["a", "x", "c"],
        ["a"],
        ["a", "b", "c" * 200],
        ["a", "b", *"c" * 15],
    ],
)
@pytest.mark.parametrize("former", [["a", "b"], ["a", "b", "other"], ["a", "b", *"d" * 20]])
def test_a_tail_is_told_by_bytes_as_it_is_by_digests(items: list[str], former: list[str]) -> None:
    """Any payload that begins with the stored one serves, whatever it goes on with."""
    _, base = plan("messages", "1", "msgpack", packed(["a", "b"]), None)
    by_digest = tail("msgpack", packed(items), base, 100)
    assert tail("msgpack", packed(items), base, 100, packed(former)) == by_digest
    assert (by_digest is None) == (items[:2] != ["a", "b"] or len(items[-1]) > 100)


def test_a_merged_segment_is_stored_beside_the_new_piece() -> None:
    """Eight old neighbours become one blob; what they were stays for the versions that name it."""
    database = Database()
    item = b"\xc5\x02\xbc" + b"x" * 700
    results: list[Stored] = []
    for count in range(1, 17):
        results.append(
            database.put(count, "msgpack", array(count, item), results[-1] if results else None)
        )
    assert lengths(results[-2]) == [703] * 15
    assert lengths(results[-1]) == [703 * 8] + [703] * 8
    assert results[-1].segments[1:-1] == results[-2].segments[8:]
    for count, result in enumerate(results, start=1):
        assert database.get(result.key) == array(count, item)


def test_stored_is_rebuilt_from_what_was_read() -> None:
    """A process with a cold cache plans as the one that wrote the base."""
    database = Database()
    result = database.put("1", "msgpack", array(30_000))
    result = database.put("2", "msgpack", array(30_010), result)
    assert database.facts("msgpack", result.key) == result


# --- keys ---------------------------------------------------------------------------------------


def test_keys_differ_in_whatever_a_blob_depends_on() -> None:
    """Channel, type, version and its type, header, own bytes and the bytes before make the key."""
    base = plan("a", "1", "msgpack", b"\x91\x01", None)[1]
    keys = [
        plan(*arguments)[1].key
        for arguments in [
            ("a", "1", "msgpack", b"\x91\x01", None),
            ("a", "1", "msgpack", b"\xa1\x01", None),
            ("a", "1", "msgpack", b"\x91\x02", None),
            ("a", "1", "msgpack", b"\x91\x01", base),
            ("a", 1, "msgpack", b"\x91\x01", None),
            ("a", 1.0, "msgpack", b"\x91\x01", None),
            ("a", "i1", "msgpack", b"\x91\x01", None),
            ("a", None, "msgpack", b"\x91\x01", None),
            ("a", "", "msgpack", b"\x91\x01", None),
            ("a", "n", "msgpack", b"\x91\x01", None),
            ("a", -1, "msgpack", b"\x91\x01", None),
            ("a", 10**5_000, "msgpack", b"\x91\x01", None),
            ("a", float("nan"), "msgpack", b"\x91\x01", None),
            ("b", "1", "msgpack", b"\x91\x01", None),
            ("am", "1", "sgpack", b"\x91\x01", None),
            ("a\ud800", "\ud800", "msgpack", b"\x91\x01", None),
            ("a", "1", "bytes", b"\x91\x01", None),
            ("a", "1", "bytearray", b"\x91\x01", None),
            ("a", "1", "bytes", b"\x01", None),
        ]
    ]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {16}


def test_heads_of_one_version_with_other_chains_are_two() -> None:
    """A head names the segments its writer knows, even where another one has the same bytes."""
    database = Database()
    whole = database.put(1, "msgpack", array(4))
    parts = database.put(1, "msgpack", array(4), database.put(0, "msgpack", array(2)))
    first = database.put(2, "msgpack", array(5), whole)
    second = database.put(2, "msgpack", array(5), parts)
    assert first.key != second.key
    assert database.get(first.key) == database.get(second.key) == array(5)


def test_plain_segments_are_shared_between_versions() -> None:
    """The key of a segment that is no head knows no version, so that two writers store it once."""
    one, _ = plan("a", "1", "msgpack", array(20_000), None)
    two, _ = plan("a", "2", "msgpack", array(20_000), None)
    assert one[:-1] == two[:-1]
    assert one[-1].key != two[-1].key


def test_keys_do_not_change_between_releases() -> None:
    """A key is an address in the database: the same arguments give it in every release."""
    pieces, _ = plan("messages", "1", "msgpack", array(20_000), None)
    assert [piece.key.hex() for piece in pieces] == [
        "c247fa1fd07ef8b084ab89711bff27f0",
        "52a9e95f52f29afa22f5255d44e7e759",
    ]


@pytest.mark.parametrize("version", [b"1", ("1",), object()])
def test_a_version_of_another_type_is_refused(version: Any) -> None:
    """The message names what was found."""
    with pytest.raises(TypeError, match=type(version).__name__):
        plan("messages", version, "msgpack", b"\x90", None)


# --- size ---------------------------------------------------------------------------------------


def test_a_large_value_is_cut_and_copied_once() -> None:
    """Planning 40 MB takes no memory beyond the pieces themselves, none above 9 MB."""
    payload = bytes(40 * M)
    tracemalloc.start()
    pieces, result = plan("file", "1", "bytes", payload, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.01 * len(payload)
    assert max(len(piece.data) for piece in pieces) <= 9 * M
    assert lengths(result)[-4:] == [2 * M, 256 * K, 32 * K, 4 * K]
    assert sum(lengths(result)) == len(payload)


def test_ten_thousand_appends_keep_a_short_chain() -> None:
    """Many tiny appends cost a bounded chain and a bounded number of bytes each."""
    payload = b""
    base: Stored | None = None
    written = 0
    for version in range(10_000):
        payload += b"0123456789"
        pieces, base = plan("log", version, "bytes", payload, base)
        written += sum(len(piece.data) for piece in pieces)
        assert len(base.segments) <= LAYOUT.longest + LAYOUT.fresh
    assert written <= 4 * len(payload) + 73 * 10_000


def message(number: int) -> bytes:
    """A msgpack binary of 765 bytes unlike any other."""
    return b"\xc5\x02\xfa" + number.to_bytes(762, "big")


@pytest.mark.parametrize(
    ("edited", "bound"),
    [
        pytest.param(0, 4.0, id="append"),
        pytest.param(1, 4.5, id="regenerate the last"),
        pytest.param(10, 14.0, id="edit one of the last ten"),
    ],
)
def test_stored_bytes_are_a_multiple_of_the_final_value(edited: int, bound: float) -> None:
    """A chat that grows, also one whose end is edited, costs its length and not its square."""
    steps = 500
    messages: list[bytes] = []
    base: Stored | None = None
    written = longest = 0
    for step in range(steps):
        messages.append(message(step))
        variants = [list(messages)]
        if edited:
            messages[-1 - step * 7 % min(edited, len(messages))] = message(steps + step)
            variants.append(list(messages))
        for variant in variants:
            payload = array(len(variant), b"")[:3] + b"".join(variant)
            pieces, base = plan("messages", written, "msgpack", payload, base)
            written += sum(len(piece.head) + len(piece.data) for piece in pieces)
            longest = max(longest, len(base.segments))
    assert written <= bound * len(payload)
    assert longest <= 32


# --- LangGraph's serializer ---------------------------------------------------------------------


def test_a_chat_is_stored_as_what_was_added() -> None:
    """Messages as LangGraph serializes them keep their bytes when others follow."""
    database = Database()
    messages: list[HumanMessage | AIMessage] = []
    base: Stored | None = None
    versions: list[tuple[Stored, bytes]] = []
    for turn in range(40):
        for kind in (HumanMessage, AIMessage):
            messages.append(kind(content=f"{turn} " * 100, id=f"{kind.__name__}-{turn}"))
            type_, payload = SERDE.dumps_typed(messages)
            base = database.put(f"{len(messages):032}.5", type_, payload, base)
            versions.append((base, payload))
    for version, payload in versions:
        assert database.get(version.key) == payload
        assert database.facts("msgpack", version.key) == version
    assert SERDE.loads_typed(("msgpack", database.get(versions[-1][0].key))) == messages
    assert database.bytes < 4 * len(versions[-1][1])


def test_a_delta_snapshot_grows_like_the_list_in_it() -> None:
    """The extension's header and the count in it are the head, the messages are the body."""
    database = Database()
    base: Stored | None = None
    for count in range(10, 40):
        value = [HumanMessage(content=f"message {n}", id=str(n)) for n in range(count)]
        type_, payload = SERDE.dumps_typed(_DeltaSnapshot(value))
        base = database.put(count, type_, payload, base)
        assert database.get(base.key) == payload
    assert database.bytes < 4 * len(payload)


# --- any sequence of values ---------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=40),
)
nested = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
containers = st.sampled_from(
    [
        lambda items: items,
        lambda items: {str(index): item for index, item in enumerate(items)},
        lambda items: "".join(map(repr, items)),
        lambda items: "".join(map(repr, items)).encode(),
        lambda items: bytearray("".join(map(repr, items)).encode()),
        _DeltaSnapshot,
        deque,
        lambda items: {"messages": items, "count": len(items)},
        lambda items: items[0] if items else None,
    ]
)


@st.composite
def edits(draw: st.DrawFn) -> Any:
    """One change of a list."""
    kind = draw(
        st.sampled_from(
            ["append", "append", "append", "front", "back", "edit", "replace", "empty", "grow"]
        )
    )
    if kind == "append":
        new = draw(st.lists(nested, max_size=5))
        return lambda items: items + new
    if kind == "front":
        count = draw(st.integers(1, 4))
        return lambda items: items[count:]
    if kind == "back":
        count = draw(st.integers(1, 4))
        return lambda items: items[:-count]
    if kind == "edit":
        position, item = draw(st.integers(0, 100)), draw(nested)
        return lambda items: [
            item if index == position % len(items) else old for index, old in enumerate(items)
        ]
    if kind == "replace":
        new = draw(st.lists(nested, max_size=20))
        return lambda items: new
    if kind == "empty":
        return lambda items: []
    size = draw(st.sampled_from([14, 15, 16, 17, 40]))
    return lambda items: (items + [0] * size)[:size]


@given(
    steps=st.lists(
        st.tuples(
            edits(),
            containers,
            st.integers(0, 3),  # which earlier version is the parent; mostly the last
            st.booleans(),  # whether the parent's facts come from the database
            st.booleans(),  # whether the version number is one that a fork has too
        ),
        max_size=25,
    ),
    layout=st.sampled_from([SMALL, replace(SMALL, fan=3, fresh=3, longest=6), LAYOUT]),
)
@settings(max_examples=150, deadline=None)
def test_every_version_reads_back(steps: list[Any], layout: Layout) -> None:
    """Values of any kind, changed in any way, planned on any earlier version, are as they were."""
    database = Database(layout)
    versions: list[tuple[list[Any], str, bytes, Stored]] = []
    for number, (edit, container, back, is_cold, is_equal_number) in enumerate(steps):
        items, base = [], None
        if versions:
            items, type_, _, base = versions[-1 - back % len(versions)]
            if is_cold:
                assert database.facts(type_, base.key) == base
                base = database.facts(type_, base.key)
        items = edit(items)
        type_, payload = SERDE.dumps_typed(container(items))
        version = 1 if is_equal_number else number
        versions.append((items, type_, payload, database.put(version, type_, payload, base)))
        longest = layout.longest + 2 * len(payload) // layout.largest
        newest = max(layout.fresh, len(_cuts(0, len(payload), layout)))
        assert len(versions[-1][3].segments) <= longest + newest
    for _, _, payload, result in versions:
        assert database.get(result.key) == payload


@given(
    payloads=st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.builds(
                operator.add,
                st.integers(0x80, 0xDF).map(lambda n: bytes([n])),
                st.binary(max_size=20),
            ),
            st.integers(0, 60).map(bytes),
        ),
        max_size=12,
    ),
    types=st.lists(
        st.sampled_from(["msgpack", "msgpack", "bytes", "bytearray", "msgpack+aes", ""]), min_size=1
    ),
)
@example(payloads=[b"\xdd\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff\x00"], types=["msgpack"])
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_under_any_tag_read_back(payloads: list[bytes], types: list[str]) -> None:
    """Nothing depends on a payload being what its tag says."""
    database = Database(SMALL)
    base: Stored | None = None
    results = []
    for number, payload in enumerate(payloads):
        base = database.put(number % 3, types[number % len(types)], payload, base)
        results.append((base, payload))
    for result, payload in results:
        assert database.get(result.key) == payload


@pytest.mark.parametrize("boundary", [16, 65_536])
@pytest.mark.parametrize("kind", ["list", "map", "string", "bytes", "snapshot"])
def test_a_header_that_gets_wider_moves_no_segment(boundary: int, kind: str) -> None:
    """Over each boundary of header sizes, up and down again, the body keeps its segments."""
    make: Any = {
        "list": lambda count: [1] * count,
        "map": lambda count: dict.fromkeys(range(count)),
        "string": lambda count: "x" * count,
        "bytes": lambda count: b"x" * count,
        "snapshot": lambda count: _DeltaSnapshot([1] * count),
    }[kind]
    database = Database()
    base: Stored | None = None
    results = []
    for count in [boundary - 2, boundary - 1, boundary, boundary + 1, boundary, boundary - 1]:
        type_, payload = SERDE.dumps_typed(make(count))
        base = database.put(count, type_, payload, base)
        results.append((base, payload))
    assert results[0][0].segments == results[-1][0].segments[: len(results[0][0].segments)]
    assert lengths(results[-1][0])[-1] == 0
    for result, payload in results:
        assert database.get(result.key) == payload
