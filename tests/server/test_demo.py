"""The demo, run as a user runs it: it holds on this server, and it fails when it should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pymongo import MongoClient

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"

ESSENTIAL = [
    "✓ a chat with a tool call",
    "✓ two tasks in one super-step: one finished, one failed",
    "is dead: killed by",
    "book_flight: Flight to Lisbon booked.   (already in the database)",
    "waits for a person: Pay 420 euros?",
    "✓ the finished task was not run again: one flight, booked by the killed process",
    "✓ paid once, by this process",
    "✓ only what comes after that checkpoint ran again",
    "✓ the fork went its own way",
    "✓ the old branches are intact",
    "✓ one fork of three branches",
    "✓ checkpoints, pending writes and blobs are in three collections",
]


def demo(mongo_uri: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demo from a folder that has nothing to do with it."""
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        cwd=folder,
        env={**os.environ, "MONGOSAVER_TEST_URI": mongo_uri, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )


def database_of(run: subprocess.CompletedProcess[str]) -> str:
    """Return the name of the database that a run of the demo used."""
    found = re.search(r"mongosaver_demo_\w+", run.stdout)
    assert found is not None, run.stdout + run.stderr
    return found[0]


def test_demo_holds(mongo_uri: str, tmp_path: Path) -> None:
    """The demo shows its steps in order, in five processes, exits 0, and has stored its tree."""
    run = demo(mongo_uri, tmp_path, "--keep")
    assert run.returncode == 0, run.stdout + run.stderr
    seen = [run.stdout.find(line) for line in ESSENTIAL]
    assert -1 not in seen, ESSENTIAL[seen.index(-1)]
    assert seen == sorted(seen)
    assert len(set(re.findall(r"\[process (\d+)\]", run.stdout))) == 5
    assert re.search(r"All \d+ claims hold", run.stdout.splitlines()[-1])
    with MongoClient[dict[str, object]](mongo_uri) as client:
        database = client[database_of(run)]
        tree = run.stdout.split("what it added\n")[1].split("   ✓ one tree")[0].splitlines()
        assert database["checkpoints"].count_documents({"thread_id": "trip-1"}) == len(tree)
        client.drop_database(database.name)


@pytest.mark.parametrize("collection", ["checkpoints", "checkpoints.writes", "checkpoints.blobs"])
def test_demo_fails_when_a_step_does_not_hold(
    mongo_uri: str, tmp_path: Path, collection: str
) -> None:
    """A demo whose documents vanish between two processes says so, exits 1 and cleans up."""
    run = demo(mongo_uri, tmp_path, "--sabotage", collection)
    assert run.returncode == 1, run.stdout + run.stderr
    assert f"documents of {collection} are deleted" in run.stdout
    assert "sabotage: 0 documents" not in run.stdout
    assert "✗ does not hold" in run.stdout
    assert "The demo does not hold: the process 'resume' ended with exit code 1" in run.stderr
    assert "3. A third process" not in run.stdout
    with MongoClient[dict[str, object]](mongo_uri) as client:
        assert database_of(run) not in client.list_database_names()
