"""An agent that survives its processes: five of them, one thread, one MongoDB.

This is the conductor. It finds or starts a MongoDB, starts each step of `steps.py` as a process of
its own, kills the first one, and shows what they print. Its exit code is 0 when every claim held.
The graph is in `agent.py`.

    python examples/demo.py             on a MongoDB that is started for the demo
    MONGOSAVER_TEST_URI=mongodb://... python examples/demo.py --keep
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.database import Database

from mongosaver.testing import MongoServer, NoServerError, mongo_server

STEPS = Path(__file__).resolve().with_name("steps.py")
COLLECTIONS = ("checkpoints", "checkpoints.writes", "checkpoints.blobs")
LAST_WORDS = "-- ready to be killed --"
SECONDS_PER_PROCESS = 60
PLAIN = str.maketrans({"✓": "+", "✗": "x", "├": "|", "│": "|", "└": "`", "─": "-"})


class DoesNotHoldError(Exception):
    """A step of the demo does not hold; the message says which, and what was seen."""


class Conductor:
    """Starts the processes one after another and relays what they say."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = {**os.environ, **environment, "PYTHONIOENCODING": "utf-8"}
        self.claims = 0

    def say(self, line: str = "") -> None:
        """Print a line, in plain letters where the terminal has no others."""
        self.claims += line.lstrip().startswith("✓")
        try:
            line.encode(sys.stdout.encoding or "ascii")
        except UnicodeEncodeError:
            line = line.translate(PLAIN).encode("ascii", "replace").decode()
        print(line, flush=True)

    def run(self, name: str, title: str) -> None:
        """Run one step; kill it when it says that it is ready for that.

        Raises:
            DoesNotHoldError: The process ended in another way than it should have.
        """
        process = subprocess.Popen(
            [sys.executable, str(STEPS), name],
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=self.environment,
        )
        watchdog = threading.Timer(SECONDS_PER_PROCESS, process.kill)
        watchdog.start()
        killed = False
        try:
            self.say(f"\n{title} [process {process.pid}]")
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == LAST_WORDS:
                    process.kill()
                    killed = True
                else:
                    self.say(f"   {line.rstrip()}")
            code = process.wait()
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
        if name == "crash":
            how = "SIGKILL" if os.name == "posix" else "TerminateProcess"
            self.check(
                killed and (os.name != "posix" or code == -signal.SIGKILL),
                f"process {process.pid} is dead: killed by {how}, with no time to save anything",
                f"exit code {code}",
            )
        elif code != 0:
            raise DoesNotHoldError(f"the process {name!r} ended with exit code {code}")

    def check(self, holds: bool, claim: str, found: object) -> None:
        """Print a claim that holds; raise at one that does not."""
        if not holds:
            raise DoesNotHoldError(f"{claim}. Found: {found}")
        self.say(f"   ✓ {claim}")


def conduct(server: MongoServer, folder: Path, *, keep: bool, sabotage: str | None) -> None:
    """Run the demo in a database of its own, and drop that afterwards.

    Raises:
        DoesNotHoldError: A claim was false, or a process ended in another way than it should have.
    """
    started = time.monotonic()
    name = f"mongosaver_demo_{uuid.uuid4().hex[:8]}"
    conductor = Conductor(
        {
            # In the environment and not on the command line: a URI may hold a password.
            "DEMO_URI": server.uri,
            "DEMO_DATABASE": name,
            "DEMO_LEDGER": str(folder / "ledger"),
            "DEMO_LAST_WORDS": LAST_WORDS,
        }
    )
    conductor.say("One thread of a LangGraph agent, five processes, one MongoDB")
    conductor.say(f"{server}; database {name}")
    client: MongoClient[dict[str, Any]] = MongoClient(server.uri)
    try:
        run_steps(conductor, client[name], sabotage)
    finally:
        if keep and server.source == "environment":
            conductor.say(f"   The database {name} is kept.")
        else:
            client.drop_database(name)
        client.close()
    seconds = time.monotonic() - started
    conductor.say(f"\nAll {conductor.claims} claims hold ({seconds:.0f} seconds).")


def run_steps(
    conductor: Conductor, database: Database[dict[str, Any]], sabotage: str | None
) -> None:
    """Run the five processes one after another, then show what they left in the database."""
    conductor.run("crash", "1. A chat with a tool call; then two tasks, of which one fails")
    if sabotage:
        gone = database[sabotage].delete_many({}).deleted_count
        conductor.say(f"   sabotage: {gone} documents of {sabotage} are deleted")
    conductor.run("resume", "2. A second process resumes")
    conductor.run("approve", "3. A third process brings the answer of a person")
    conductor.run("travel", "4. Time travel")
    conductor.run("tree", "5. The history of the thread")
    conductor.say("\nStored")
    stored = {name: measure(database, name) for name in COLLECTIONS}
    for name, (documents, size) in stored.items():
        conductor.say(f"   {name:20}{documents:5} documents{size:10,} bytes")
    conductor.check(
        all(documents for documents, _ in stored.values()),
        "checkpoints, pending writes and blobs are in three collections",
        stored,
    )


def measure(database: Database[dict[str, Any]], name: str) -> tuple[int, int]:
    """Return how many documents a collection has, and their size in bytes before compression."""
    group = {"_id": None, "n": {"$sum": 1}, "bytes": {"$sum": {"$bsonSize": "$$ROOT"}}}
    for row in database[name].aggregate([{"$group": group}]):
        return row["n"], row["bytes"]
    return 0, 0


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(
        description="Run an agent over five processes on one MongoDB: that of MONGOSAVER_TEST_URI, "
        "or one started for the demo."
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the demo's database, for a look at it (on a server that outlives the demo)",
    )
    parser.add_argument(
        "--sabotage",
        choices=COLLECTIONS,
        help="delete what this collection holds after the crash, to see the demo fail",
    )
    args = parser.parse_args()
    try:
        with mongo_server() as server, tempfile.TemporaryDirectory() as folder:
            conduct(server, Path(folder), keep=args.keep, sabotage=args.sabotage)
    except DoesNotHoldError as error:
        print(f"\nThe demo does not hold: {error}", file=sys.stderr)
        return 1
    except NoServerError as error:
        print(f"The demo has no MongoDB: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
