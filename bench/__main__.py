"""`python -m bench`: measures, prints tables, writes JSON, plots and a page of the docs."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import signal
import sys
import time
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Nothing that is measured is to be traced to a service.
for _name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
    os.environ[_name] = "false"

from bench import checks, documentation, plots, profiling, report  # noqa: E402
from bench.entries import PEERS  # noqa: E402
from bench.servers import Servers, start_servers  # noqa: E402
from bench.workloads import (  # noqa: E402
    Run,
    breakdown,
    commands,
    concurrent,
    delta,
    growth,
    history,
    large,
    operations,
    operators,
    retention,
    unfavourable,
)

if TYPE_CHECKING:
    from bench.report import Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "assets" / "bench"

ROUNDS = 12
QUICK_ROUNDS = 3
_MODULES = {
    module.NAME: module
    for module in (
        growth,
        breakdown,
        history,
        delta,
        commands,
        concurrent,
        large,
        retention,
        operators,
        unfavourable,
    )
}
# In the order of the report; put, put_writes and get_tuple share their threads.
WORKLOADS = (
    "growth",
    *operations.NAMES,
    "breakdown",
    "history",
    "delta",
    "commands",
    "concurrent",
    "large",
    "retention",
    "operators",
    "unfavourable",
)
_VERSIONS = (
    "mongosaver",
    "pymongo",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-mongodb",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "psycopg",
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark.

    Returns:
        The exit code: 1 where `--check` finds a promise that does not hold.
    """
    options = _options(arguments)
    # An end by a signal is an end like any other: the servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    if options.profile:
        return _profile(options)
    if options.shown is not None:
        data = json.loads(options.shown.read_text("utf-8"))
    else:
        data = _measure(options)
    told = _tables(data["results"])
    print("\n".join(report.facts(data["meta"])))
    for table in told:
        print(f"\n\n{table.text()}")
    code = 0
    if options.check:
        found = checks.checks(data["results"], quick=data["meta"]["quick"])
        data["checks"] = [each.data() for each in found]
        print(f"\n\n{checks.table(found).text()}")
        code = 0 if any(each.holds for each in found) else 1
        code = 1 if any(each.holds is False for each in found) else code
    if options.shown is None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
        print(f"\nwritten: {_shown(options.json)}", file=sys.stderr)
    if options.docs:
        _document(data, told)
    return code


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="about a minute: whether it works, not how fast it is"
    )
    parser.add_argument(
        "--only", metavar="NAMES", help=f"workloads, with commas: {', '.join(WORKLOADS)}"
    )
    parser.add_argument(
        "--peers", metavar="NAMES", help=f"with commas, or none: {', '.join(PEERS)}"
    )
    parser.add_argument("--rounds", type=int, help=f"turns of each saver (default {ROUNDS})")
    parser.add_argument("--seed", type=int, default=0, help="of the savers' order (default 0)")
    parser.add_argument(
        "--json",
        type=Path,
        help="where the results go (default bench/results/latest.json, partial.json for a run "
        "that is quick or leaves something out)",
    )
    parser.add_argument(
        "--docs",
        action=argparse.BooleanOptionalAction,
        help="write plots and docs/benchmarks.md (default: when nothing is left out)",
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the promises; exit code 1 if one fails"
    )
    parser.add_argument(
        "--from",
        dest="shown",
        type=Path,
        metavar="JSON",
        help="measure nothing, show these results",
    )
    parser.add_argument(
        "--no-install", action="store_true", help="do not install PostgreSQL where it is missing"
    )
    parser.add_argument(
        "--profile",
        action="append",
        metavar="OPERATION:LENGTH[:SAVER]",
        help="profile instead, such as put:1000 or list:200 or get_tuple:100:mongosaver-async",
    )
    options = parser.parse_args(arguments)
    options.only = _names(parser, "--only", options.only, WORKLOADS)
    options.peers = _names(parser, "--peers", options.peers, PEERS)
    whole = not options.quick and len(options.only) == len(WORKLOADS)
    whole = whole and len(options.peers) == len(PEERS)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.json = options.json or RESULTS / ("latest.json" if whole else "partial.json")
    if options.docs is None:
        options.docs = whole and options.shown is None
    return options


def _names(parser: argparse.ArgumentParser, option: str, given: str | None, known: Any) -> Any:
    if given is None:
        return tuple(known)
    names = [name for name in given.split(",") if name not in {"", "none"}]
    for name in names:
        if name not in known:
            parser.error(f"{option}: {name!r} is none of {', '.join(known)}")
    return tuple(name for name in known if name in names)


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    start = time.monotonic()
    with start_servers(
        mongodb=True, postgres="postgres" in options.peers, install=not options.no_install
    ) as servers:
        run = Run(
            servers,
            options.quick,
            options.rounds,
            frozenset(options.peers),
            random.Random(options.seed),
        )
        results: dict[str, Any] = {}
        timed = tuple(name for name in operations.NAMES if name in options.only)
        for name in options.only:
            if name in results:
                continue
            print(f"{name if name not in timed else ', '.join(timed)}:", file=sys.stderr)
            if name in timed:
                results.update(operations.measure(run, timed))
            else:
                results[name] = _MODULES[name].measure(run)
        return {
            "meta": {
                "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "about": _about(servers),
                "quick": options.quick,
                "rounds": options.rounds,
                "seed": options.seed,
                "peers": list(options.peers),
                "absent": run.absent,
                "seconds": round(time.monotonic() - start, 1),
            },
            "results": results,
        }


def _about(servers: Servers) -> dict[str, str]:
    versions = []
    for package in _VERSIONS:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        **servers.about,
        "packages": ", ".join(versions),
    }


def _tables(results: dict[str, Any]) -> list[Table]:
    told: list[Table] = []
    for name in WORKLOADS:
        if name not in results:
            continue
        if name in operations.NAMES:
            told += operations.tables({name: results[name]})
        else:
            told += _MODULES[name].tables(results[name])
    return told


def _document(data: dict[str, Any], told: list[Table]) -> None:
    try:
        drawn = plots.draw(data["results"], PLOTS)
    except ImportError as error:
        print(f"no plots: {error}", file=sys.stderr)
        drawn = {}
    folder = PLOTS.relative_to(PAGE.parent).as_posix()
    documentation.write(PAGE, data["meta"], told, drawn, folder)
    print(f"written: {_shown(PAGE)}, {len(drawn)} plots", file=sys.stderr)


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _profile(options: argparse.Namespace) -> int:
    names = [wanted.split(":")[2] for wanted in options.profile if wanted.count(":") >= 2]
    postgres = any(name.startswith("postgres") for name in names)
    with start_servers(mongodb=True, postgres=postgres, install=not options.no_install) as servers:
        for wanted in options.profile:
            try:
                print(profiling.profile(servers, wanted), end="\n\n")
            except ValueError as error:
                print(error, file=sys.stderr)
                return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
