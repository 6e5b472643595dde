"""Tables: as text for the terminal and as Markdown for the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.entries import ENTRIES

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Table:
    """A table with a title and, below it, what must be known to read it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def text(self) -> str:
        """The table for a terminal."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        rule = ["-" * width for width in widths]
        body = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in [self.columns, rule, *self.rows]
        ]
        return "\n".join([self.title, "", *body, *(["", self.note] if self.note else [])])

    def markdown(self, level: int = 3) -> str:
        """The table for the documentation."""
        header = "| " + " | ".join(self.columns) + " |"
        rule = "| --- |" + " ---: |" * (len(self.columns) - 1)
        rows = ["| " + " | ".join(row) + " |" for row in self.rows]
        title = f"{'#' * level} {self.title}"
        return "\n".join([title, "", header, rule, *rows, *(["", self.note] if self.note else [])])


def label(name: str) -> str:
    """An entry's name in tables."""
    return ENTRIES[name].label


def number(value: float | None, digits: int = 3) -> str:
    """A figure with so many significant digits, a count as it is, a dash for none."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    whole = len(f"{abs(value):.0f}")
    return f"{value:,.{max(0, digits - whole)}f}"


def size(value: float | None) -> str:
    """Bytes, readable."""
    if value is None:
        return "-"
    for unit in ("B", "KB", "MB"):
        if abs(value) < 1000:
            return f"{number(value) if unit != 'B' else int(value)} {unit}"
        value = value / 1000
    return f"{number(value)} GB"


def ratio(value: float | None, base: float | None) -> float | None:
    """One figure as a multiple of another; none where either is missing."""
    if value is None or not base:
        return None
    return value / base


def facts(meta: dict[str, Any]) -> list[str]:
    """What was measured with, as lines."""
    lines = [f"{name}: {text}" for name, text in meta["about"].items()]
    lines.append(f"rounds: {meta['rounds']}" + (" (quick)" if meta["quick"] else ""))
    lines += [f"absent: {label(name)} ({why})" for name, why in meta["absent"].items()]
    return lines
