"""The plots of the documentation: one file each, SVG, the same bytes for the same results."""

from __future__ import annotations

import statistics
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bench.entries import ENTRIES
from bench.report import label

if TYPE_CHECKING:
    from pathlib import Path

# One colour per saver in every plot (a palette that colour-blind people can tell apart).
_COLOURS = {
    "mongosaver": "#0072b2",
    "official": "#d55e00",
    "postgres": "#009e73",
    "sqlite": "#cc79a7",
    "memory": "#999999",
    "raw": "#e6b800",
}
_SMOOTHED = 25


def draw(results: dict[str, Any], folder: Path) -> dict[str, str]:
    """Draws what the results have figures for.

    Args:
        results: The workloads' results.
        folder: Where the files go.

    Returns:
        The title of each plot, by file name.
    """
    matplotlib = import_module("matplotlib")
    matplotlib.use("Agg")
    settings = {
        "svg.hashsalt": "mongosaver",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "figure.figsize": (7.2, 4.0),
        "savefig.bbox": "tight",
    }
    drawn = {}
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(settings):
        pyplot = import_module("matplotlib.pyplot")
        for file_name, workload, title, plot in _PLOTS:
            if workload not in results:
                continue
            figure, axes = pyplot.subplots()
            plot(axes, results[workload])
            axes.set_title(title)
            figure.savefig(folder / file_name, metadata={"Date": None})
            pyplot.close(figure)
            drawn[file_name] = title
    return drawn


def _colour(name: str) -> str:
    return _COLOURS[ENTRIES[name].peer]


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0))


def _bytes(axes: Any, result: dict[str, Any]) -> None:
    for name, entry in result["entries"].items():
        looks = entry["milestones"]
        turns = [int(turn) for turn in looks]
        totals = [
            (look["logical"] if look["disk"] is None else look["disk"]) + (look["indexes"] or 0)
            for look in looks.values()
        ]
        axes.plot(
            turns, [each / 1e6 for each in totals], "o-", color=_colour(name), label=label(name)
        )
    axes.set(xlabel="turns", ylabel="MB on disk, with indexes", xscale="log", yscale="log")
    ticks = result["milestones"]
    axes.set_xticks(ticks, [f"{turn:,}" for turn in ticks], minor=False)
    axes.minorticks_off()
    _legend(axes)


def _turns(axes: Any, result: dict[str, Any]) -> None:
    for name, entry in result["entries"].items():
        times = entry["turns_ms"]
        window = min(_SMOOTHED, max(1, len(times) // 4))
        smooth = [statistics.median(times[i : i + window]) for i in range(len(times) - window + 1)]
        axes.plot(range(window, len(times) + 1), smooth, color=_colour(name), label=label(name))
    axes.set(xlabel="turn", ylabel=f"ms per turn, median of {_SMOOTHED} turns")
    axes.set_ylim(bottom=0)
    _legend(axes)


def _lengths(axes: Any, result: dict[str, Any]) -> None:
    names = list(next(iter(result.values())))
    for name in names:
        dashed = "--" if name.endswith("-async") or name in {"raw-serde", "official-again"} else "-"
        axes.plot(
            [int(length) for length in result],
            [entries[name]["median"] for entries in result.values()],
            "o" + dashed,
            color=_colour(name),
            label=label(name),
        )
    axes.set(xlabel="messages", ylabel="ms, median", xscale="log", yscale="log")
    axes.set_xticks([int(length) for length in result], [f"{int(each):,}" for each in result])
    axes.minorticks_off()
    _legend(axes)


def _cases(axes: Any, result: dict[str, Any]) -> None:
    cases = result["cases"]
    names = list(next(iter(cases.values())))
    height = 0.8 / max(1, len(names))
    for i, name in enumerate(names):
        multiples = [
            (each[name]["logical"] + (each[name]["indexes"] or 0)) / each[name]["state"]
            for each in cases.values()
        ]
        places = [row + i * height for row in range(len(cases))]
        axes.barh(places, multiples, height, color=_colour(name), label=label(name))
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(cases))], list(cases))
    axes.set(xscale="log", xlabel="bytes stored, multiple of the final state")
    axes.set_xlim(left=1)
    axes.invert_yaxis()
    _legend(axes)


def _walls(axes: Any, result: dict[str, Any]) -> None:
    entries = result["entries"]
    names = list(entries)
    best = [entries[name]["wall_s"]["best"] for name in names]
    rest = [entries[name]["wall_s"]["median"] - entries[name]["wall_s"]["best"] for name in names]
    colours = [_colour(name) for name in names]
    axes.barh([label(name) for name in names], best, color=colours)
    axes.barh([label(name) for name in names], rest, left=best, color=colours, alpha=0.4)
    axes.set(xlabel=f"seconds for {result['graphs']} graphs: best, and median in pale")
    axes.invert_yaxis()


_PLOTS = (
    ("growth-bytes.svg", "growth", "A chat that grows: bytes stored", _bytes),
    ("growth-time.svg", "growth", "A chat that grows: time per turn", _turns),
    ("put.svg", "put", "put", _lengths),
    ("get_tuple.svg", "get_tuple", "get_tuple", _lengths),
    ("concurrent.svg", "concurrent", "Graphs at once on one event loop", _walls),
    ("unfavourable.svg", "unfavourable", "Unfavourable cases", _cases),
)
