"""The official conformance suite of LangGraph's checkpointers, on each face."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import DetectedCapabilities

if TYPE_CHECKING:
    from tests.faces import Face

BASE = {"put", "put_writes", "get_tuple", "list", "delete_thread"}
OPTIONAL = {"delete_for_runs", "copy_thread", "prune"}


def awaited(saver: Any) -> BaseCheckpointSaver[Any]:
    """Returns a saver whose async methods call the blocking ones of `saver`.

    The suite only awaits; so it tries the blocking methods too. What the saver does not override
    is not overridden here either, because the suite counts an override as a promise.
    """

    def calling(method: str) -> Any:
        async def call(self: Any, *args: Any, **options: Any) -> Any:
            return getattr(saver, method)(*args, **options)

        return call

    async def alist(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        for row in saver.list(*args, **options):
            yield row

    methods: dict[str, Any] = {"alist": alist}
    for name in (BASE | OPTIONAL) - {"list"}:
        if getattr(type(saver), name) is not getattr(BaseCheckpointSaver, name):
            methods["a" + name] = calling(name)
    return type("Awaited", (BaseCheckpointSaver,), methods)(serde=saver.serde)  # type: ignore[no-any-return]


def test_conformance(face: Face) -> None:
    """All base capabilities pass, and so does each other one that a saver overrides."""

    @checkpointer_test(name=face.name)
    async def fresh() -> AsyncIterator[BaseCheckpointSaver[Any]]:
        # Some cases list all threads, so that each capability begins with nothing stored.
        other = face.another()
        if face.name == "memory":
            other.saver = type(face.saver)()
        face.empty()
        yield other.saver if face.awaited else awaited(other.saver)

    report = face.run(validate(fresh))
    failures = {name: found.failures for name, found in report.results.items() if found.failures}
    assert failures == {}
    assert report.passed_all_base()
    assert report.passed_all()
    ran = {name for name, found in report.results.items() if found.passed}
    assert ran >= BASE
    assert all(report.results[name].tests_passed > 3 for name in BASE)
    assert ran == {
        capability.value
        for capability in DetectedCapabilities.from_instance(
            face.saver if face.awaited else awaited(face.saver)
        ).detected
    }
