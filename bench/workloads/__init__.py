"""The workloads: what is measured, one module each.

A workload has a name, measures (`measure`, which returns plain data for the JSON) and tells
(`tables`, made from that data alone, so that an old result can be shown again).
"""

from __future__ import annotations

import contextlib
import random
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bench.entries import ENTRIES, OURS, Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.entries import Session
    from bench.report import Table
    from bench.servers import Servers


@dataclass
class Run:
    """What a workload needs to know of the run it is part of."""

    servers: Servers
    quick: bool
    rounds: int
    peers: frozenset[str]
    shuffle: random.Random = field(default_factory=lambda: random.Random(0))
    absent: dict[str, str] = field(default_factory=dict)

    def names(self, wanted: Sequence[str]) -> list[str]:
        """The entries of a workload that can be measured; the others are noted as absent."""
        present = []
        for name in wanted:
            entry = ENTRIES[name]
            if entry.peer != OURS and entry.peer not in self.peers:
                continue
            why = entry.absence(self.servers)
            if why is None:
                present.append(name)
            else:
                self.absent[name] = why
        return present

    @contextlib.contextmanager
    def sessions(
        self, wanted: Sequence[str], purpose: str, *, counted: bool = False
    ) -> Iterator[dict[str, Session]]:
        """Opens every entry that can be measured, each on a database of its own."""
        with contextlib.ExitStack() as stack:
            yield {
                name: stack.enter_context(
                    ENTRIES[name].session(self.servers, purpose, Recorder() if counted else None)
                )
                for name in self.names(wanted)
            }

    def say(self, text: str) -> None:
        """A line of progress, apart from the result."""
        print(f"  {text}", file=sys.stderr, flush=True)


class Workload(Protocol):
    """What a module of this package offers."""

    NAME: str

    def measure(self, run: Run) -> dict[str, Any]:
        """Measures, and returns plain data."""

    def tables(self, result: dict[str, Any]) -> list[Table]:
        """Tells what was measured."""
