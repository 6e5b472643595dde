"""What a saver remembers of expiry: dates of checkpoints, and moves that are under way."""

from __future__ import annotations

from datetime import timedelta

from mongosaver.cache import Cache, Move, Moves
from mongosaver.identifiers import Address
from tests.unit.tables import NOW

LATER = NOW + timedelta(hours=1)


def at(checkpoint_id: str) -> Address:
    """Returns an address."""
    return Address("t", "", checkpoint_id)


def test_what_has_expired_is_not_known() -> None:
    """From the date on; without a time to compare it with, and without a date, it is."""
    cache = Cache()
    cache.put(at("1"), {}, LATER)
    cache.put(at("2"), {})
    for now, known in ((NOW, True), (LATER, False), (LATER + timedelta(1), False), (None, True)):
        assert (cache.known(at("1"), now) is not None) is known
        assert cache.known(at("2"), now) is not None


def test_moved_checkpoints_have_the_new_date() -> None:
    """Those that are remembered, and no others become so."""
    cache = Cache()
    cache.put(at("1"), {}, NOW)
    cache.put(at("2"), {}, NOW)
    cache.moved([at("1"), at("3")], LATER)
    found = [cache.known(at(name)) for name in "123"]
    assert [each and each.expires_at for each in found] == [LATER, NOW, None]
    cache.moved([at("1")], None)
    known = cache.known(at("1"))
    assert known is not None
    assert known.expires_at is None


def test_a_move_is_taken_by_one() -> None:
    """Whoever goes on with a move has it alone, until it is kept again."""
    moves = Moves()
    assert moves.take("t") is None
    moves.keep("t", Move(LATER, 1))
    assert moves.take("t") == Move(LATER, 1)
    assert moves.take("t") is None


def test_moves_are_bounded() -> None:
    """The one that was kept for longest is begun again."""
    moves = Moves(size=2)
    for name in "abc":
        moves.keep(name, Move(LATER))
    assert [moves.take(name) is not None for name in "abc"] == [False, True, True]
