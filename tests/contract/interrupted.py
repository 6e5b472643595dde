"""Plans that break off, and what happens between their operations, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.faces import Face


class Interrupted(Exception):
    """A failure that no plan understands."""


@contextlib.contextmanager
def between_operations(
    face: Face,
    before: Callable[[Any], None] | None = None,
    after: Callable[[Any], None] | None = None,
) -> Iterator[None]:
    """Calls something before and after each operation that the face's saver carries out."""
    driver: Any = face.saver._driver  # type: ignore[attr-defined]
    do = driver._do

    def call(what: Callable[[Any], None] | None, op: Any) -> None:
        if what is not None:
            what(op)

    def blocking(op: Any) -> Any:
        call(before, op)
        result = do(op)
        call(after, op)
        return result

    async def awaited(op: Any) -> Any:
        # In a thread, so that what is called may wait for the loop.
        await asyncio.to_thread(call, before, op)
        result = await do(op)
        await asyncio.to_thread(call, after, op)
        return result

    driver._do = awaited if asyncio.iscoroutinefunction(do) else blocking
    try:
        yield
    finally:
        del driver._do


def at_each_operation(
    face: Face, thread: str, fill: Callable[[str], None], act: Callable[[str], object]
) -> Iterator[str]:
    """Breaks an action off after each of its operations, each time on a new thread.

    Args:
        face: The face that acts.
        thread: The stem of the threads' names.
        fill: Fills a thread.
        act: What is broken off; it ends when it is left alone.

    Yields:
        The name of each thread that it was broken off on.
    """
    at = 0
    while True:
        name, left = f"{thread} {at}", at

        def count(_: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Interrupted

        fill(name)
        try:
            with between_operations(face, after=count):
                act(name)
        except Interrupted:
            yield name
        else:
            return
        at += 1
