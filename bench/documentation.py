"""The generated part of `docs/benchmarks.md`: what is between two comments, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench import report

if TYPE_CHECKING:
    from pathlib import Path

    from bench.report import Table

BEGIN = "<!-- bench:start -->"
END = "<!-- bench:end -->"


def write(
    page: Path, meta: dict[str, Any], tables: list[Table], plots: dict[str, str], folder: str
) -> None:
    """Replaces the generated part of a page.

    Args:
        page: The Markdown file.
        meta: What was measured with.
        tables: All tables, in order.
        plots: The plots' titles by file name.
        folder: Where the plots are, seen from the page.
    """
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no line {BEGIN!r} with a line {END!r} after it: add both")
    facts = "\n".join(f"- {line}" for line in report.facts(meta))
    parts = [
        "## What was measured with",
        facts,
        "## Plots",
        *(f"![{title}]({folder}/{name})" for name, title in plots.items()),
        "## Tables",
        *(table.markdown() for table in tables),
    ]
    page.write_text(before + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + after, "utf-8")
