"""The benchmark runs, says what it could not compare with, and fails where a promise fails.

No figure is judged here: figures depend on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PEERS = ("langgraph.checkpoint.mongodb", "langgraph.checkpoint.sqlite", "psycopg", "psycopg_pool")


def bench(*arguments: str, uri: str = "", hidden: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run the benchmark in a process that cannot import the hidden modules."""
    script = (
        "import runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({hidden!r}))\n"
        f"sys.argv[1:] = {list(arguments)!r}\n"
        "runpy.run_module('bench', run_name='__main__', alter_sys=True)\n"
    )
    environment = {**os.environ, **({"MONGOSAVER_TEST_URI": uri} if uri else {})}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_a_quick_run_measures_and_names_the_absent_peers(mongo_uri: str, tmp_path: Path) -> None:
    """A run without any peer measures mongosaver, and tables and JSON name each absent saver."""
    path = tmp_path / "results.json"

    code, output = bench(
        "--quick", "--only=commands,put", "--rounds=1", "--no-install", f"--json={path}",
        uri=mongo_uri, hidden=PEERS,
    )  # fmt: skip

    assert code == 0
    data = json.loads(path.read_text("utf-8"))
    absent = {"official", "official-again", "postgres", "postgres-async", "sqlite"}
    assert set(data["meta"]["absent"]) == absent
    assert output.count("absent: ") == len(absent)
    assert set(data["results"]) == {"commands", "put"}
    measured = data["results"]["put"]["10"]
    assert {"mongosaver", "mongosaver-async", "memory", "raw"} <= set(measured)
    assert all(each["median"] > 0 for each in measured.values())
    counted = data["results"]["commands"]["entries"]["mongosaver"]
    assert counted["put_writes"]["commands"] == ["insert"]
    assert counted["put_writes"]["sent"] > 765


def test_the_exit_code_tells_whether_the_promises_hold(tmp_path: Path) -> None:
    """`--check` exits with 1 exactly where a figure is above its limit, and lists it."""
    path = tmp_path / "results.json"
    meta = {"about": {}, "rounds": 1, "quick": False, "absent": {}}

    outcomes = []
    for median in (0.9, 2.0):
        entries = {
            name: {"median": value, "p10": value}
            for name, value in (("mongosaver", median), ("official", 1.0))
        }
        results = {"put": {"10": entries}}
        path.write_text(json.dumps({"meta": meta, "results": results}), "utf-8")
        code, output = bench("--from", str(path), "--check")
        outcomes.append((code, "FAILS" in output))

    assert outcomes == [(0, False), (1, True)]
