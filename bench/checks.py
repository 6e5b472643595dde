"""What the project has promised itself, compared with what was measured.

Never part of a test: it depends on the machine. A figure that was not measured is listed as such.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.entries import ENTRIES, OURS
from bench.report import Table, label, number, ratio
from bench.workloads import delta, growth, large

if TYPE_CHECKING:
    from collections.abc import Iterator

ALMOST_ALL = 1.05


@dataclass(frozen=True)
class Check:
    """A promise, the figure that was measured, and the limit that it must not exceed.

    Without a limit it is no promise: the figure is told, and nothing depends on it.
    """

    promise: str
    figure: float | None
    limit: float | None
    below: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether it holds; None where nothing was measured or promised."""
        if self.figure is None or self.limit is None:
            return None
        return self.figure < self.limit if self.below else self.figure <= self.limit

    def data(self) -> dict[str, Any]:
        """For the JSON."""
        return {**asdict(self), "holds": self.holds}


def checks(results: dict[str, Any], *, quick: bool) -> list[Check]:
    """Every promise, with what these results say of it.

    Args:
        results: The workloads' results.
        quick: Whether they are those of a quick run: its times are too few to be judged.
    """
    found: list[Check] = []
    for workload, judge in _JUDGES.items():
        judged = {} if quick and workload not in _COUNTED else results.get(workload, {})
        found += judge(judged)
    return found


def table(found: list[Check]) -> Table:
    """The promises as a table."""
    words = {True: "holds", False: "FAILS", None: "not measured"}
    return Table(
        "Promises",
        ("promise", "measured", "limit", ""),
        [
            [
                each.promise,
                number(each.figure),
                _limit(each),
                "no promise" if each.limit is None else words[each.holds],
            ]
            for each in found
        ],
    )


def _limit(check: Check) -> str:
    if check.limit is None:
        return "-"
    if check.below and not check.limit:
        return "that of the peer"
    return ("< " if check.below else "<= ") + number(check.limit)


def _growth(result: dict[str, Any]) -> Iterator[Check]:
    entries = result.get("entries", {})
    looks = entries.get("mongosaver", {}).get("milestones", {})
    logical, disk = growth.multiples(looks["500"]) if "500" in looks else (None, None)
    yield Check("500 turns: data and indexes, multiple of the state", logical, 12)
    yield Check("500 turns: disk and indexes, multiple of the state", disk, 5)
    for what in ("logical", "disk"):
        both = [_total(looks[turn], what) if turn in looks else None for turn in ("1000", "500")]
        yield Check(f"1,000 turns: {what}, multiple of 500 turns", ratio(*both), 2.3)
    slower = {
        name: ratio(growth.around(entry["turns_ms"], 500), growth.around(entry["turns_ms"], 50))
        for name, entry in entries.items()
    }
    peers = {name: each for name, each in slower.items() if ENTRIES[name].peer != OURS and each}
    for name in growth.SAVERS[1:]:
        limit = peers.get(name)
        figure = slower.get("mongosaver") if limit else None
        promise = f"turn 500 / turn 50: less than {label(name)}"
        yield Check(promise, figure, limit or 0, below=True)


def _total(look: dict[str, Any], what: str) -> float:
    return look[what] + look["indexes"]


def _operation(name: str, limits: dict[str, float]) -> Any:
    def judge(result: dict[str, Any]) -> Iterator[Check]:
        for length, limit in limits.items():
            entries = result.get(length, {})
            figure = ratio(_median(entries, "mongosaver"), _median(entries, "official"))
            yield Check(f"{name} at {int(length):,} messages: ratio to official", figure, limit)

    return judge


def _median(entries: dict[str, Any], name: str) -> float | None:
    return entries.get(name, {}).get("median")


def _history(result: dict[str, Any]) -> Iterator[Check]:
    entries = result.get("entries", {}) if result.get("checkpoints") == 200 else {}
    figure = ratio(_median(entries, "mongosaver"), _median(entries, "official"))
    yield Check("list of 200 checkpoints: ratio to official", figure, 0.65)


def _delta(result: dict[str, Any]) -> Iterator[Check]:
    cases = result.get("cases", {})
    for frequency in (delta.DEFAULT, delta.NEVER):
        updates = delta.UPDATES[-1]
        entries = cases.get(f"{updates} {frequency}", {}).get("entries", {})
        since = f"{updates % frequency:,} since one was stored"
        for peer in ("official", "postgres"):
            figure = ratio(_median(entries, "mongosaver"), _median(entries, peer))
            promise = f"DeltaChannel of {updates:,} updates, {since}: ratio to {label(peer)}"
            yield Check(promise, figure, None)


def _commands(result: dict[str, Any]) -> Iterator[Check]:
    entry = result.get("entries", {}).get("mongosaver", {})
    checkpoints = result.get("checkpoints")
    listed = entry.get(f"list of {checkpoints} checkpoints", {})
    stored = entry.get("thread", {}).get("stored")
    yield Check(
        "list: bytes received, multiple of what is stored for the thread",
        ratio(listed.get("received"), stored),
        ALMOST_ALL,
    )
    limits = {"put_writes": 1, "delete_thread": 4}
    for operation, limit in limits.items():
        sent = entry.get(operation, {}).get("commands")
        yield Check(f"{operation}: commands", None if sent is None else len(sent), limit)
    for operation in entry:
        if operation.startswith(("get_tuple", "put at")):
            limit = 1 if operation.startswith("get_tuple") or "none added" in operation else 3
            sent = entry[operation]["commands"]
            yield Check(f"{operation}: commands", len(sent), limit)


def _concurrent(result: dict[str, Any]) -> Iterator[Check]:
    entries = result.get("entries", {}) if result.get("graphs") == 100 else {}

    def wall(name: str) -> float | None:
        return _median({name: entries.get(name, {}).get("wall_s", {})}, name)

    def lag(name: str) -> float | None:
        return entries.get(name, {}).get("lag_ms", {}).get("largest_median")

    for peer in ("official", "postgres-async"):
        figure = ratio(wall("mongosaver-async"), wall(peer))
        yield Check(f"100 graphs: wall time, ratio to {label(peer)}", figure, 0.85)
    for peer in ("official", "postgres-async"):
        limit = lag(peer)
        figure = lag("mongosaver-async") if limit else None
        yield Check(
            f"100 graphs: largest lag, ms, less than {label(peer)}", figure, limit or 0, below=True
        )


def _large(result: dict[str, Any]) -> Iterator[Check]:
    entries = result.get("entries", {})
    for name in ("mongosaver", "mongosaver-async"):
        sizes = entries.get(name, {})
        taken = [size for size, each in sizes.items() if each.get("equal")]
        refused = len(sizes) - len(taken) if sizes else None
        yield Check(f"large values that {label(name)} does not give back", refused, 0)
        for what in ("put", "get"):
            multiples = [
                sizes[size][f"{what}_peak"] / (int(size) * large.MEGABYTE)
                for size in taken
                if int(size) >= 8
            ]
            figure = max(multiples, default=None)
            promise = f"{label(name)}: peak memory of a {what}, multiple of a value of 8 MB or more"
            yield Check(promise, figure, 4, below=True)


_COUNTED = ("commands", "large")
_JUDGES = {
    "growth": _growth,
    "put": _operation("put", {"10": 1.0, "100": 1.15, "1000": 0.75}),
    "put_writes": _operation("put_writes", {"10": 0.8, "100": 0.8, "1000": 0.8}),
    "get_tuple": _operation("get_tuple", {"10": 0.85, "100": 0.92, "1000": 0.95}),
    "history": _history,
    "delta": _delta,
    "commands": _commands,
    "concurrent": _concurrent,
    "large": _large,
}
