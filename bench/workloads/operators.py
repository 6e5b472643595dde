"""A million checkpoints: migrated while a graph writes, then listed and counted by the command.

The collection is that of a running system: its keys are there, and a graph saves to it all the
time. What the migration adds are the indexes of the later migrations, as for a version that brings
them. The graph's saver has checked the schema before; each of its turns is timed, before the
migration and during it, and an error of it ends the measurement.

Threads are clones of one real thread: its checkpoint documents with other ids. Their blobs are
left out, because neither a migration of `checkpoints` nor the readers look at them.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from bson import ObjectId
from langgraph.graph import START, StateGraph
from pymongo import MongoClient, monitoring

from bench.report import Table, number
from mongosaver import MongoSaver
from mongosaver.schema import Name

if TYPE_CHECKING:
    from pymongo.collection import Collection

    from bench.workloads import Run

NAME = "operators"
DATABASE, COLLECTION = "bench_operators", "checkpoints"
CHECKPOINTS, QUICK_CHECKPOINTS = 1_000_000, 20_000
PER_THREAD, LONG_THREAD = 100, 10_000
LATER = 3
"""The first migration that the measured run has to apply."""
READERS = (
    ("threads", "--limit", "20"),
    ("history", "long", "--limit", "20"),
    ("stats",),
    ("check",),
)


class State(TypedDict):
    """A chat that grows."""

    messages: Annotated[list[str], lambda old, new: [*old, *new]]


def measure(run: Run) -> dict[str, Any]:
    """Fills the collection, migrates it, and asks the command's readers."""
    if run.servers.mongodb is None:
        return {}
    checkpoints = QUICK_CHECKPOINTS if run.quick else CHECKPOINTS
    with MongoClient[Any](run.servers.mongodb) as client:
        collection = client[DATABASE][COLLECTION]
        client.drop_database(DATABASE)
        try:
            MongoSaver(collection).setup()
            run.say(f"{checkpoints:,} checkpoints")
            running, template = _Running(collection), _template(collection)
            _undo(collection)
            _fill(collection, template, checkpoints)
            result = _migrated(run, collection, running)
            result["readers"] = [_asked(run, *reader) for reader in READERS]
            return {"checkpoints": checkpoints, **result}
        finally:
            client.drop_database(DATABASE)


def _fill(collection: Collection[Any], template: list[dict[str, Any]], checkpoints: int) -> None:
    threads = itertools.chain(
        [("long", min(LONG_THREAD, checkpoints))],
        ((f"thread {n:06}", PER_THREAD) for n in itertools.count()),
    )
    left, batch = checkpoints, []
    now = template[0]["created_at"]
    for at, (thread, length) in enumerate(threads):
        for n in range(min(length, left)):
            document = dict(template[n % len(template)])
            parent = f"{at:08x}-{n - 1:08}" if n else None
            document |= {
                "_id": ObjectId(),
                "thread_id": thread,
                "checkpoint_id": f"{at:08x}-{n:08}",
            }
            document |= {"parent_checkpoint_id": parent, "created_at": now + timedelta(seconds=at)}
            batch.append(document)
        left -= min(length, left)
        if len(batch) >= 5_000 or not left:
            collection.insert_many(batch, ordered=False)
            batch = []
        if not left:
            return


def _template(collection: Collection[Any]) -> list[dict[str, Any]]:
    """Checkpoint documents of a real graph."""
    graph = _graph(MongoSaver(collection, auto_setup=False))
    config: Any = {"configurable": {"thread_id": "template"}}
    for turn in range(20):
        graph.invoke({"messages": [f"question {turn} " * 9]}, config)
    documents = list(collection.find({"thread_id": "template"}).sort("checkpoint_id", 1))
    MongoSaver(collection, auto_setup=False).delete_thread("template")
    return documents


def _graph(saver: MongoSaver) -> Any:
    builder = StateGraph(State)
    builder.add_node("answer", lambda _: {"messages": ["an answer of some length " * 9]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def _undo(collection: Collection[Any]) -> None:
    """Takes away what the later migrations have made, and their record."""
    for name in Name:
        real = collection.database[collection.name + name.value]
        if name is Name.MIGRATIONS:
            real.delete_many({"_id": {"$gte": LATER}})
            continue
        kept = {"_id_", *_keys(real)}
        for index in [each["name"] for each in real.list_indexes() if each["name"] not in kept]:
            real.drop_index(index)


def _keys(collection: Collection[Any]) -> list[str]:
    return [each["name"] for each in collection.list_indexes() if each.get("unique")]


class _Running(threading.Thread):
    """A graph that saves all the time, with a saver that has checked the schema before."""

    def __init__(self, collection: Collection[Any]) -> None:
        super().__init__(daemon=True)
        self.graph = _graph(MongoSaver(collection, auto_setup=False))
        self.graph.invoke({"messages": ["first"]}, {"configurable": {"thread_id": "running"}})
        self.turns: list[tuple[float, float]] = []
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        for turn in itertools.count():
            config = {"configurable": {"thread_id": f"running {turn // 20}"}}
            start = time.perf_counter()
            try:
                self.graph.invoke({"messages": [f"question {turn}"]}, config)
            except BaseException as error:  # noqa: BLE001 - it is what is being looked for
                self.error = error
                return
            self.turns.append((start, time.perf_counter() - start))
            if self.ended.wait(0.01):
                return


def _migrated(run: Run, collection: Collection[Any], running: _Running) -> dict[str, Any]:
    running.start()
    time.sleep(1 if run.quick else 5)
    run.say("mongosaver migrate, while a graph writes")
    begin = time.perf_counter()
    command = _command(run, "migrate")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    end = time.perf_counter()
    running.ended.set()
    running.join()
    if running.error is not None:
        raise RuntimeError("the graph failed beside the migration") from running.error
    if done.returncode:
        raise RuntimeError(f"mongosaver migrate: {done.stderr}")
    before = [taken for start, taken in running.turns if start < begin]
    during = [taken for start, taken in running.turns if begin <= start < end]
    recorded = collection.database[f"{collection.name}.migrations"].find({"_id": {"$type": "int"}})
    return {
        "seconds": end - begin,
        "told": [line for line in done.stderr.splitlines() if line.strip()],
        "shares": [int(each) for each in re.findall(r"(\d+) ?%", done.stderr)],
        "migrations": [
            {"number": each["_id"], "name": each["name"], "milliseconds": each["milliseconds"]}
            for each in recorded
            if each["_id"] >= LATER
        ],
        "turns": {"before": _summary(before), "during": _summary(during)},
    }


def _summary(turns: list[float]) -> dict[str, float]:
    return {
        "turns": len(turns),
        "median": statistics.median(turns) * 1000 if turns else 0.0,
        "longest": max(turns, default=0.0) * 1000,
    }


def _command(run: Run, *arguments: str) -> list[str]:
    where = ["--uri", str(run.servers.mongodb), "--db", DATABASE, "--collection", COLLECTION]
    return [sys.executable, "-m", "mongosaver.cli", *arguments, *where]


def _environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}


class _Counting(monitoring.CommandListener):
    """Counts what is sent."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Nothing to note."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Nothing to note."""


def _asked(run: Run, *arguments: str) -> dict[str, Any]:
    """Seconds of one reader in a process of its own, and how many commands it sent."""
    run.say(f"mongosaver {' '.join(arguments)}")
    start = time.perf_counter()
    subprocess.run(
        _command(run, *arguments), check=True, env=_environment(), stdout=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - start
    counted = subprocess.run(
        [sys.executable, "-m", "bench.workloads.operators", *_command(run, *arguments)[3:]],
        check=True,
        env=_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    return {
        "command": f"mongosaver {' '.join(arguments)}",
        "seconds": seconds,
        "commands": json.loads(counted.stdout.splitlines()[-1]),
    }


def tables(result: dict[str, Any]) -> list[Table]:
    """The migration, what the graph felt of it, and the readers."""
    if not result:
        return []
    size = f"{result['checkpoints']:,} checkpoints"
    steps = [
        [f"{each['number']} {each['name']}", number(each["milliseconds"] / 1000)]
        for each in result["migrations"]
    ]
    turns = [
        [when, number(each["turns"]), number(each["median"]), number(each["longest"])]
        for when, each in result["turns"].items()
    ]
    readers = [
        [each["command"], number(each["seconds"]), number(each["commands"])]
        for each in result["readers"]
    ]
    return [
        Table(
            f"`mongosaver migrate` on {size}",
            ("migration", "seconds"),
            [*steps, ["the command as a whole", number(result["seconds"])]],
            f"It told {len(result['told'])} lines of progress meanwhile.",
        ),
        Table(
            "A graph beside the migration",
            ("when", "turns", "median, ms", "longest, ms"),
            turns,
            "A turn is one `invoke` of a graph of one node. None failed.",
        ),
        Table(
            f"The command's readers on {size}",
            ("command", "seconds", "commands sent"),
            readers,
            "Seconds of the process as a whole, with its start.",
        ),
    ]


def _main(arguments: list[str]) -> None:
    """Runs the command in this process and prints how many commands it sent."""
    from mongosaver.cli import main  # noqa: PLC0415 - the listener has to be there first

    listener = _Counting()
    monitoring.register(listener)
    try:
        main(arguments)
    except SystemExit as end:
        if end.code:
            raise
    unasked = {"hello", "endSessions", "ping", "buildInfo"}
    print()
    print(len([name for name in listener.names if name not in unasked]))


if __name__ == "__main__":
    _main(sys.argv[1:])
