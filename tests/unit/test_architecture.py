"""The import direction, read from the source.

`saver, aio, cli -> drivers -> plans, migrations -> codec, segments, ops -> schema, errors`

Plans decide and drivers do. That holds only as long as no plan can reach a client, a clock, a
thread or chance, so what a pure module may import is a list of what is allowed, not of what is not.
ruff's banned-api table in pyproject.toml says the same while one types; here it is complete.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mongosaver

PACKAGE = Path(mongosaver.__file__).parent

# From the bottom up: a module imports from its own row or from those above it in this table.
LAYERS: list[set[str]] = [
    {"errors"},
    {"schema", "identifiers"},
    {"codec", "segments", "ops"},
    {"cache", "grouping"},
    {"plans", "migrations"},
    {"drivers"},
    {"_base"},
    {"saver", "aio"},
    {"__init__"},
    {"testing", "cli"},
]
# The cache has a lock, so it is no value; plans are handed one. Groups are the async driver's.
PURE = {"errors", "schema", "identifiers", "codec", "segments", "ops", "plans", "migrations"}

ALLOWED_IN_PURE = {
    "__future__",
    "base64",
    "binascii",
    "bisect",
    "bson",
    "collections",
    "contextlib",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "langchain_core.runnables",
    "langgraph.checkpoint",
    "logging",
    "math",
    "operator",
    "ormsgpack",
    "pymongo.ASCENDING",
    "pymongo.DESCENDING",
    "pymongo.IndexModel",
    "pymongo.InsertOne",
    "pymongo.ReplaceOne",
    "pymongo.UpdateOne",
    "pymongo.DeleteMany",
    "pymongo.DeleteOne",
    "pymongo.UpdateMany",
    "pymongo.errors",
    "pymongo.operations",
    "re",
    "struct",
    "types",
    "typing",
    "typing_extensions",
    "uuid",
}


def layer_of(module: str) -> int:
    """The row of a module, or of the package that it is in: `plans.read` is in `plans`."""
    top = module.split(".", maxsplit=1)[0]
    for row, names in enumerate(LAYERS):
        if top in names:
            return row
    raise AssertionError(f"mongosaver/{module} is in no layer: name it in LAYERS")


def imports(source: str, module: str) -> set[str]:
    """Every dotted name that a module imports, wherever the statement stands."""
    found: set[str] = set()
    package = ["mongosaver", *module.split(".")][:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            found.update(".".join([*base, alias.name]) for alias in node.names)
    return found


def violations(source: str, module: str) -> list[str]:
    """What a module imports against the rule; `module` is its name below `mongosaver`."""
    row, pure = layer_of(module), module.split(".", maxsplit=1)[0] in PURE
    wrong = []
    for name in sorted(imports(source, module)):
        if name == "mongosaver" or name.startswith("mongosaver."):
            inner = name.removeprefix("mongosaver").lstrip(".").split(".")[0] or "__init__"
            known = any(inner in names for names in LAYERS)
            # What is no module is a name that `mongosaver/__init__.py` offers.
            if layer_of(inner if known else "__init__") > row:
                wrong.append(name)
        elif pure and not any(
            name == allowed or name.startswith(f"{allowed}.") for allowed in ALLOWED_IN_PURE
        ):
            wrong.append(name)
    return wrong


def modules() -> dict[str, Path]:
    """The package's modules: dotted name below `mongosaver` -> file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if len(parts) > 1 and parts[-1] == "__init__":
            parts[-1:] = ["__init__"]
        found[".".join(parts)] = path
    return found


@pytest.mark.parametrize("module", modules())
def test_imports_point_one_way(module: str) -> None:
    """A module imports only from its own layer and those below, a pure one only what is allowed."""
    assert violations(modules()[module].read_text(encoding="utf-8"), module) == []


def private(source: str, module: str) -> list[str]:
    """Names with an underscore that a module takes from others of the package."""
    ours = {name for name in imports(source, module) if name.startswith("mongosaver.")}
    owners = {name.rpartition(".")[2] for name in ours}
    taken = {name for name in ours if name.rpartition(".")[2].startswith("_")}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(ast.Name(owner), name) if owner in owners:
                if name.startswith("_") and not name.endswith("__"):
                    taken.add(f"{owner}.{name}")
    return sorted(taken)


@pytest.mark.parametrize("module", modules())
def test_names_with_an_underscore_stay_at_home(module: str) -> None:
    """A module uses no name of another's that begins with an underscore."""
    assert private(modules()[module].read_text(encoding="utf-8"), module) == []


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("from mongosaver.segments import _key as address", ["mongosaver.segments._key"]),
        ("from mongosaver import codec\ncodec._parts(b'')", ["codec._parts"]),
        ("from ..segments import address", []),
        ("from mongosaver._base import runner", []),
    ],
)
def test_the_rule_sees_names_with_an_underscore(source: str, taken: list[str]) -> None:
    """Private names are found, whether imported or reached through their module."""
    assert private(source, "plans.verify") == taken


def test_no_module_imports_itself_by_way_of_others() -> None:
    """The modules' imports of each other form no circle."""
    files = modules()
    edges: dict[str, set[str]] = {}
    for module, path in files.items():
        names = imports(path.read_text(encoding="utf-8"), module)
        targets = {name.removeprefix("mongosaver.") for name in names}
        edges[module] = {
            other
            for other in files
            if other not in {module, "__init__"}
            and any(
                target == stem or target.startswith(f"{stem}.")
                for stem in [other.removesuffix(".__init__")]
                for target in targets
            )
        }

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        for other in edges[module]:
            visit(other, (*path, module))

    for module in files:
        visit(module, ())


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("plans.read", "import asyncio", ["asyncio"]),
        ("plans.read", "def f():\n    import threading", ["threading"]),
        ("plans.read", "from pymongo import MongoClient", ["pymongo.MongoClient"]),
        (
            "plans.read",
            "from pymongo.collection import Collection",
            ["pymongo.collection.Collection"],
        ),
        ("plans.read", "import pymongo", ["pymongo"]),
        ("plans.read", "from pymongo.errors import DuplicateKeyError", []),
        ("plans.read", "import bson\nfrom bson.binary import Binary", []),
        ("plans.read", "from mongosaver import drivers", ["mongosaver.drivers"]),
        ("plans.read", "from ..drivers import run", ["mongosaver.drivers.run"]),
        ("plans.read", "from .write import put", []),
        ("plans.read", "from mongosaver.codec import load", []),
        ("plans.read", "from mongosaver import MongoSaver", ["mongosaver.MongoSaver"]),
        ("codec", "from mongosaver.plans import read", ["mongosaver.plans.read"]),
        ("codec", "from . import plans", ["mongosaver.plans"]),
        ("schema", "from mongosaver.ops import Find", ["mongosaver.ops.Find"]),
        ("errors", "import time", ["time"]),
        ("drivers", "import asyncio, threading\nfrom mongosaver.plans import read", []),
        ("drivers", "from mongosaver.saver import MongoSaver", ["mongosaver.saver.MongoSaver"]),
        ("saver", "from mongosaver.drivers import run", []),
        (
            "saver",
            "from mongosaver.testing import mongo_server",
            ["mongosaver.testing.mongo_server"],
        ),
    ],
)
def test_the_rule_sees_what_it_forbids(module: str, source: str, wrong: list[str]) -> None:
    """Imports against the direction are found in whatever form they are written."""
    assert violations(source, module) == wrong
