"""Group commit without a server: waking callers, errors for several, event loops that end.

What goes together and what each caller is told are tests/server/test_group_commit.py's affair.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque

import pytest
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from mongosaver.grouping import WOKEN, Loops, _twin, _Waiter, _wake


def test_callers_go_on_a_few_at_a_time() -> None:
    """In one turn of the loop a few are woken, in order; cancelled ones cost nobody's place."""

    async def main() -> None:
        waiters = [_Waiter((), []) for _ in range(WOKEN * 3 + 2)]
        failure = KeyError()
        waiters[1].done.cancel()
        outcomes = [failure if n == 2 else None for n in range(len(waiters))]
        _wake(deque(zip(waiters, outcomes, strict=True)))
        for turn in range(1, 5):
            woken = [n for n, waiter in enumerate(waiters) if waiter.done.done()]
            assert woken == list(range(min(len(waiters), WOKEN * turn)))
            await asyncio.sleep(0)
        assert waiters[2].done.exception() is failure
        assert waiters[1].done.cancelled()
        assert waiters[3].done.exception() is None

    asyncio.run(main())


@pytest.mark.parametrize(
    "error",
    [
        AutoReconnect("gone", {"errorLabels": ["RetryableWriteError"], "a": 1}),
        NetworkTimeout("late", {"errorLabels": ["NetworkError"]}),
        NotPrimaryError("no primary", {"code": 10107}),
        ServerSelectionTimeoutError("nobody", [1, 2]),
        OperationFailure("refused", 13, {"code": 13, "errorLabels": ["A", "B"]}, 17),
        ConfigurationError("wrong"),
        PyMongoError("any", ["A"]),
        RuntimeError("closed", 7),
        OSError(5, "disk"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_twin_says_the_same_and_is_another(error: Exception) -> None:
    """Class, text, arguments, code and labels are the same; its traceback is its own."""
    twin = _twin(error)
    assert twin is not error
    assert type(twin) is type(error)
    assert (str(twin), twin.args) == (str(error), error.args)
    assert vars(twin) == vars(error)
    assert twin.__cause__ is error
    for label in ("RetryableWriteError", "NetworkError", "A", "B"):
        if isinstance(error, PyMongoError) and isinstance(twin, PyMongoError):
            assert twin.has_error_label(label) == error.has_error_label(label)
    with pytest.raises(type(error)) as raised:
        raise twin
    assert raised.value is twin
    assert traceback.extract_tb(error.__traceback__) == []


def test_each_event_loop_has_its_own_and_ended_ones_are_forgotten() -> None:
    """Turns and groups belong to one loop; of loops that were closed nothing is kept."""
    loops = Loops({})

    async def here() -> object:
        assert loops.here() is loops.here()
        return loops.here()

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    mine, others = first.run_until_complete(here()), second.run_until_complete(here())
    assert mine is not others
    assert first.run_until_complete(here()) is mine
    first.close()
    third = asyncio.new_event_loop()
    third.run_until_complete(here())
    assert set(loops._known) == {second, third}
    second.close()
    third.close()
