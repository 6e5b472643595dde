"""What a saver remembers: bounded, in the order of use, and safe between threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from mongosaver.cache import Cache, Shared
from mongosaver.codec import Blob, Inline, Payload
from mongosaver.identifiers import Address


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
        cache.put(at("1", name), facts("a"))
    assert [cache.is_inline(at("9", name)) for name in "123"] == [False, True, True]
    cache.put(at("2", "3"), {"b": Blob("1", b"k", 9, None)})
    assert not cache.is_inline(at("1", "3"))
    assert not cache.is_inline(at("1", "2", "other"))


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
