"""The two drivers side by side, without a server: how a plan is run, thrown into, and closed.

What they send is the contract suite's affair, and what they do when a server fails that of
tests/server/test_interruptions.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient, WriteConcern
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from mongosaver import drivers
from mongosaver.drivers import AsyncDriver, Driver
from mongosaver.errors import ConfigurationError
from mongosaver.ops import Compute, Plan
from mongosaver.schema import OFF_LOOP

Running = Callable[[Plan[Any]], Any]


def sync_driver() -> Driver:
    """Returns a driver on a client that never connects."""
    with MongoClient("mongodb://127.0.0.1:1", connect=False) as client:
        return Driver(client["d"]["c"])


def async_driver() -> AsyncDriver:
    """Returns an async driver on a client that never connects."""
    return AsyncDriver(AsyncMongoClient("mongodb://127.0.0.1:1", connect=False)["d"]["c"])


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Iterator[Running]:
    """Runs a plan by either driver."""
    if request.param == "sync":
        yield sync_driver().run
    else:
        yield lambda plan: asyncio.run(async_driver().run(plan))


def fails(error: Exception) -> Any:
    """Returns a function that raises."""

    def function() -> None:
        raise error

    return function


def test_results_go_in_and_the_last_one_comes_out(run: Running) -> None:
    """A plan gets each result where it asked for it, and what it returns is returned."""

    def plan() -> Plan[int]:
        one = yield Compute(lambda: 1, 0)
        two = yield Compute(lambda: one + 1, OFF_LOOP + 1)
        return one + two  # type: ignore[no-any-return]

    assert run(plan()) == 3


def test_a_plan_that_asks_for_nothing_just_returns(run: Running) -> None:
    """There need not be an operation."""

    def plan() -> Plan[str]:
        return "done"
        yield

    assert run(plan()) == "done"


@pytest.mark.parametrize("size", [0, OFF_LOOP + 1], ids=["on the loop", "off the loop"])
def test_a_failure_is_thrown_into_the_plan(run: Running, size: int) -> None:
    """A plan may answer a failure with another operation; others are raised as they are."""
    error, other = KeyError("known"), KeyError("unknown")
    caught = []

    def plan() -> Plan[int]:
        try:
            yield Compute(fails(error), size)
        except KeyError as thrown:
            caught.append(thrown)
        result: int = yield Compute(lambda: 1, size)
        yield Compute(fails(other), size)
        return result

    with pytest.raises(KeyError) as raised:
        run(plan())
    assert caught[0] is error
    assert raised.value is other


def test_a_failure_of_the_plan_itself_is_raised(run: Running) -> None:
    """What a plan raises is what the caller sees."""

    def plan() -> Plan[None]:
        yield Compute(int, 0)
        raise LookupError("of the plan")

    with pytest.raises(LookupError, match="of the plan"):
        run(plan())


class Closed:
    """A plan that computes, and notes that it was closed."""

    def __init__(self, function: Callable[[], Any], size: int) -> None:
        self.function, self.size = function, size
        self.closed = False
        self.later = False

    def plan(self) -> Plan[None]:
        """Returns the plan."""
        try:
            yield Compute(self.function, self.size)
            self.later = True
            yield Compute(self.function, self.size)
        except GeneratorExit:
            self.closed = True
            raise


def test_a_keyboard_interrupt_closes_the_plan(run: Running) -> None:
    """What is no failure of the operation ends the plan at once, without being thrown into it."""
    noted = Closed(fails(KeyboardInterrupt()), 0)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        run(noted.plan())
    assert (noted.closed, noted.later) == (True, False)


def test_cancelling_closes_the_plan() -> None:
    """A cancelled task's plan is closed where it stands and asks for nothing more."""
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go.wait(20)

    noted = Closed(wait, OFF_LOOP + 1)

    async def main() -> None:
        task = asyncio.create_task(async_driver().run(noted.plan()))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (noted.closed, noted.later) == (True, False)
        go.set()

    asyncio.run(main())


def test_heavy_work_leaves_the_event_loop_and_light_work_stays() -> None:
    """Above a size another thread computes, so that other tasks go on; below, this one does."""
    threads = []

    def plan() -> Generator[Any, Any, None]:
        for size in (OFF_LOOP, OFF_LOOP + 1):
            threads.append((yield Compute(threading.get_ident, size)))

    asyncio.run(async_driver().run(plan()))
    assert threads[0] == threading.get_ident() != threads[1]


TRANSIENT, UNKNOWN = "TransientTransactionError", "UnknownTransactionCommitResult"


@pytest.mark.parametrize(
    ("error", "transient", "unknown"),
    [
        (OperationFailure("conflict", 112, {"errorLabels": [TRANSIENT]}), True, False),
        (OperationFailure("timed out", 50, {"errorLabels": [UNKNOWN]}), False, True),
        (AutoReconnect("gone", {"errorLabels": [TRANSIENT, UNKNOWN]}), True, True),
        (OperationFailure("quota", 8000, {}), False, False),
        (DuplicateKeyError("there", 11000, {"errorLabels": [TRANSIENT, UNKNOWN]}), False, False),
        (BulkWriteError({"writeErrors": [], "errorLabels": [TRANSIENT]}), False, False),
        (ServerSelectionTimeoutError("x", {"errorLabels": [TRANSIENT, UNKNOWN]}), False, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_be_tried_again(error: PyMongoError, transient: bool, unknown: bool) -> None:
    """Labels say it, but a duplicate never goes away, and for a server it was waited already."""
    assert (drivers._is_transient(error), drivers._is_unknown(error)) == (transient, unknown)


@pytest.mark.parametrize("make", [Driver, AsyncDriver])
def test_unacknowledged_writes_are_refused(make: Any) -> None:
    """A collection with w=0 would lose checkpoints unnoticed; the error names it and the remedy."""
    with MongoClient("mongodb://127.0.0.1:1", connect=False) as client:
        collection = client["d"].get_collection("c", write_concern=WriteConcern(w=0))
        with pytest.raises(ConfigurationError, match=r"'d\.c'.*w=0.*majority"):
            make(collection)
