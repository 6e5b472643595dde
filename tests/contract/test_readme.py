"""The README and the docs are run as they stand.

The Python blocks of a page are run in order, as one program, against the session's server. A
`print(...)  # text` must print that text, and a `text` block must be what the Python block before
it printed.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import sys
import types
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import MongoClient

from mongosaver import MongoSaver

ROOT = Path(__file__).parents[2]
LOCAL = "mongodb://localhost:27017"

# Pages that are whole programs, and those that show pieces of one, with the names they assume.
PROGRAMS = ["README.md", "docs/tutorial/first-agent.md"]
PIECES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs/how-to").glob("*.md"))

BLOCK = re.compile(
    r"^```(python|text)(?: title=\"(\w+)\.py\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
PRINTED = re.compile(r"^\s*print\(.*\)  # (.+)$", re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """A page's blocks: language, name of the module that it is (or nothing), source."""
    found = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return [(language, module, source) for language, module, source in found]


@pytest.fixture
def databases(mongo_uri: str) -> Iterator[dict[str, str]]:
    """Names of databases of the page -> names of its own on the session's server."""
    names = {name: f"{name}_{uuid.uuid4().hex[:12]}" for name in ("app", "test", "tutorial")}
    yield names
    with MongoClient(mongo_uri) as client:
        for name in names.values():
            client.drop_database(name)


def run(page: str, namespace: dict[str, object], uri: str, databases: dict[str, str]) -> None:
    """Runs a page's blocks and compares what they print with what the page says."""
    printed = ""
    for language, module, source in blocks(page):
        if language == "text":
            assert printed == source, page
            continue
        expected = PRINTED.findall(source)
        code = source.replace(LOCAL, uri)
        for name, own in databases.items():
            code = code.replace(f'["{name}"]', f'["{own}"]')
            code = code.replace(f'db_name="{name}"', f'db_name="{own}"')
        target = namespace
        if module:
            sys.modules[module] = types.ModuleType(module)
            target = sys.modules[module].__dict__
        with contextlib.redirect_stdout(io.StringIO()) as output:
            done = eval(compile(code, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), target)
            if inspect.iscoroutine(done):
                asyncio.run(done)
        if module:
            namespace.update(target)
        printed = output.getvalue()
        if expected:
            assert printed.splitlines() == expected, page


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_page_runs_as_it_stands(page: str, mongo_uri: str, databases: dict[str, str]) -> None:
    """A reader who pastes the page's blocks one after another sees what the page says."""
    namespace: dict[str, object] = {"__name__": "readme"}
    try:
        run(page, namespace, mongo_uri, databases)
    finally:
        sys.modules.pop("desk", None)
        close(namespace)


def close(namespace: dict[str, object]) -> None:
    """Closes the clients that a page leaves open, as the end of its process would."""
    for value in namespace.values():
        if isinstance(value, (MongoClient, AsyncIOMotorClient)):
            value.close()


@pytest.mark.parametrize("page", PIECES)
def test_pieces_of_code_run(
    page: str, mongo_uri: str, databases: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of a how-to page runs, given the graph, saver, client and URI that it speaks of."""
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "sixteen letters.")
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [("ai", "yes")]})
    builder.add_edge(START, "answer")
    client: MongoClient[dict[str, object]] = MongoClient(mongo_uri)
    saver = MongoSaver(client[databases["app"]]["checkpoints"])
    graph = builder.compile(checkpointer=saver)
    config: RunnableConfig = {"configurable": {"thread_id": "alice"}}
    graph.invoke({"messages": [("user", "hello")]}, config)
    namespace: dict[str, object] = {
        "__name__": "howto",
        "MongoSaver": MongoSaver,
        "builder": builder,
        "client": client,
        "config": config,
        "graph": graph,
        "saver": saver,
        "uri": mongo_uri,
    }
    try:
        run(page, namespace, mongo_uri, databases)
        for name, value in list(namespace.items()):
            if name.startswith("test_") and callable(value):
                value(mongo_uri)
    finally:
        client.close()
        close(namespace)


def test_the_format_page_names_every_field(
    mongo_uri: str, databases: dict[str, str], thread: str
) -> None:
    """docs/reference/format.md has each field of each document, also those of lists in them."""
    page = (ROOT / "docs/reference/format.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## (\S+)$", page, flags=re.MULTILINE)
    described = {
        name: set(re.findall(r"`(\w+)`", text))
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }
    with MongoClient(mongo_uri) as client:
        saver = MongoSaver(client[databases["test"]]["checkpoints"])
        config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        text = ["a" * 20_000]
        for version, tail in enumerate(["", "b", "b"]):
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"text": [*text, tail], "n": version // 2}
            checkpoint["channel_versions"] = {"text": str(version), "n": str(version)}
            config = saver.put(
                config,
                checkpoint,
                {"source": "loop", "run_id": "1", "parents": {"a": "b"}},
                {"text": str(version), "n": str(version)} if version < 2 else {},
            )
        config["configurable"]["run_id"] = "1"
        saver.put_writes(config, [("text", "c" * 40_000)], "task")
        for name in ("checkpoints", "checkpoints.blobs", "checkpoints.writes"):
            known = described[name] | described["checkpoints"]
            for document in client[databases["test"]][name].find({}, {"_id": 0, "search": 0}):
                inner = [entry for key in ("inline", "blobs") for entry in document.get(key, [])]
                assert set().union(document, *inner) - known == set(), name


def test_links_of_the_readme_lead_somewhere() -> None:
    """Every relative link in README.md and CONTRIBUTING.md names a file of the repository."""
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
        assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_pages_are_found() -> None:
    """The README and the how-to pages have code to run."""
    assert all(any(language == "python" for language, _, _ in blocks(page)) for page in PROGRAMS)
    assert len(PIECES) >= 5
