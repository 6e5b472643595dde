"""What a saver remembers: bounded, in the order of use, and safe between threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

from mongosaver.cache import Cache, Shared, Values
from mongosaver.codec import RECALLED, Blob, Inline, Payload, Value
from mongosaver.identifiers import Address
from mongosaver.segments import Segment, Stored

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


def at(checkpoint_id: str, thread_id: str = "t", checkpoint_ns: str = "") -> Address:
    """Returns an address."""
    return Address(thread_id, checkpoint_ns, checkpoint_id)


def facts(name: str) -> dict[str, Inline]:
    """Returns facts that are like no others."""
    return {name: Inline("1", Payload("msgpack", name.encode()), 0)}


def test_what_was_put_is_found() -> None:
    """Facts are found under the whole address, and None stands for what is not known."""
    cache = Cache()
    cache.put(at("1"), facts("a"))
    assert cache.get(at("1")) == facts("a")
    assert cache.get(at("1", "u")) is None
    assert cache.get(at("1", "t", "n")) is None
    assert cache.get(at("2")) is None


def test_no_facts_are_known_facts() -> None:
    """A checkpoint without values is known to have none."""
    cache = Cache()
    cache.put(at("1"), {})
    assert cache.get(at("1")) == {}


def test_a_checkpoint_put_again_has_the_new_facts() -> None:
    """The last put counts."""
    cache = Cache()
    cache.put(at("1"), facts("a"))
    cache.put(at("1"), facts("b"))
    assert cache.get(at("1")) == facts("b")


def test_what_was_not_used_for_longest_goes_first() -> None:
    """A full cache forgets one that was neither read nor written for longest."""
    cache = Cache(size=3)
    for name in "123":
        cache.put(at(name), facts(name))
    cache.get(at("1"))
    cache.put(at("2"), facts("2"))
    cache.put(at("4"), facts("4"))
    assert [name for name in "1234" if cache.get(at(name)) is not None] == ["1", "2", "4"]


def test_a_deleted_thread_is_forgotten_and_no_other() -> None:
    """All namespaces of the named threads go; a thread with a similar name stays."""
    cache = Cache()
    for address in (at("1"), at("2", "t", "n"), at("1", "tt"), at("1", "u")):
        cache.put(address, facts("a"))
    cache.forget_threads(["t", "u", "unknown"])
    left = [a for a in (at("1"), at("2", "t", "n"), at("1", "tt"), at("1", "u")) if cache.get(a)]
    assert left == [at("1", "tt")]


def test_threads_without_blobs_are_told() -> None:
    """The last checkpoint of a thread and namespace decides, for as many as there is room."""
    cache = Cache(size=2)
    for name in "123":
        cache.put(at("1", name), facts("a"), written=True)
    assert [cache.is_inline(at("9", name)) for name in "123"] == [False, True, True]
    cache.put(at("2", "3"), {"b": Blob("1", b"k", 9, None)}, written=True)
    assert not cache.is_inline(at("1", "3"))
    assert not cache.is_inline(at("1", "2", "other"))


# --- values with their bytes


def value(name: str, size: int = 10, tail: tuple[bytes, bytes] | None = None) -> Value:
    """Returns a value whose head has that name for a key."""
    return Value(Stored("msgpack", (Segment(name.encode(), size, b"digest"),)), tail, bytes(size))


def blob(name: str, tail: tuple[bytes, bytes] | None = None) -> Blob:
    """Returns the entry of such a value."""
    return Blob("1", name.encode(), 10, None, tail)


def test_values_are_bounded_by_their_bytes() -> None:
    """What was not used for longest goes, until the rest has room; one put again counts once."""
    values = Values(size=30)
    for name in "abc":
        values.put(value(name))
    values.put(value("b"))
    assert values.get(b"a") is not None
    values.put(value("d", 15))
    assert [name for name in "abcd" if values.get(name.encode())] == ["a", "d"]
    values.put(value("d", 30))
    assert [name for name in "abcd" if values.get(name.encode())] == ["d"]


def test_no_large_value_is_kept() -> None:
    """One value may not take the place of all others."""
    values = Values()
    values.put(value("a", RECALLED))
    values.put(value("b", RECALLED + 1))
    assert values.get(b"a") is not None
    assert values.get(b"b") is None


def test_the_latest_is_expected_with_its_values() -> None:
    """All values have to be at hand, and keys name each blob once."""
    cache = Cache()
    assert cache.expected(Address("t", "", None), NOW) is None
    cache.put(at("1"), {"a": blob("a"), "b": blob("a"), **facts("c")})
    assert cache.expected(Address("t", "", None), NOW) is None
    cache.values.put(value("a"))
    for address in (Address("t", "", None), at("1")):
        expected = cache.expected(address, NOW)
        assert expected is not None
        assert expected.keys == [b"a"]
    assert cache.expected(at("2"), NOW) is None
    assert cache.expected(Address("u", "", None), NOW) is None


def test_an_older_checkpoint_put_later_is_not_expected() -> None:
    """The greatest id is the latest."""
    cache = Cache()
    cache.put(at("2"), {"a": blob("a")})
    cache.put(at("1"), facts("c"))
    assert not cache.is_inline(Address("t", "", None))


def test_a_value_without_its_header_is_not_expected() -> None:
    """Of a version with a tail, the header of the one without is not known."""
    cache = Cache()
    cache.values.put(value("a", tail=(b"h", b"rest")))
    cache.put(at("1"), {"a": blob("a")})
    assert cache.expected(at("1"), NOW) is None
    cache.put(at("1"), {"a": blob("a", (b"h", b"other"))})
    assert cache.expected(at("1"), NOW) is not None


def test_nothing_is_expected_of_the_expired() -> None:
    """A checkpoint whose date has passed is not there for a reader."""
    cache = Cache()
    cache.put(at("1"), facts("a"), NOW)
    assert cache.expected(at("1"), NOW - timedelta(seconds=1)) is not None
    assert cache.expected(at("1"), NOW) is None


def test_where_somebody_else_puts_nothing_is_expected_until_it_comes_true_again() -> None:
    """A wrong guess costs commands, so it is made once; a right one is made again."""
    cache, latest = Cache(), Address("t", "", None)
    cache.put(at("1"), facts("a"))
    assert cache.expected(latest, NOW) is not None
    cache.put(at("2"), facts("b"), is_latest=True)
    assert cache.expected(latest, NOW) is None
    cache.put(at("3"), facts("c"))
    assert cache.expected(latest, NOW) is None
    cache.put(at("3"), facts("c"), is_latest=True)
    assert cache.expected(latest, NOW) is not None
    cache.forget_threads(["t"])
    assert cache.expected(latest, NOW) is None


def test_threads_may_share_it() -> None:
    """Eight threads that put, get and forget leave a cache of the right size."""
    cache = Cache(size=16)

    def work(number: int) -> None:
        for step in range(200):
            address = at(str(step), str(number))
            cache.put(address, facts(str(step)))
            found = cache.get(address)
            assert found is None or found == facts(str(step))
            if step % 50 == 49:
                cache.forget_threads([str(number)])
                assert cache.get(address) is None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(cache._facts) <= 16


def test_a_new_saver_knows_nothing() -> None:
    """The indexes may be missing and the server may do everything, until the saver learns more."""
    shared = Shared()
    assert (shared.ready, shared.read_by_finds) == (False, False)
    assert shared.cache.get(at("1")) is None
