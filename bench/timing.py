"""Taking turns, and what is said of the samples.

The machine's state drifts (disk, caches, other processes), so no saver is measured in one go: each
round gives every saver a short block, in an order shuffled anew.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence


def take_turns(
    jobs: Mapping[str, Callable[[], Callable[[], Any]]],
    *,
    rounds: int,
    block: int,
    shuffle: random.Random,
) -> dict[str, list[float]]:
    """Times each job `rounds` x `block` times, in milliseconds.

    Args:
        jobs: By name, what prepares an operation and returns it; only the operation is timed.
        rounds: How often each job gets its turn.
        block: Operations timed per turn, after one that is not (it warms the processor's caches).
        shuffle: The source of the order.
    """
    samples: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name in shuffled(jobs, shuffle):
            gc.collect()
            timed = [milliseconds(jobs[name]()) for _ in range(block + 1)]
            samples[name] += timed[1:]
    return samples


def milliseconds(operation: Callable[[], Any]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    operation()
    return (time.perf_counter() - start) * 1000


def shuffled(names: Mapping[str, Any] | Sequence[str], shuffle: random.Random) -> list[str]:
    """The names in another order."""
    order = list(names)
    shuffle.shuffle(order)
    return order


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median, low percentile (what the operation costs when nothing disturbs it) and extremes."""
    ordered = sorted(samples)

    def percentile(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {
        "median": statistics.median(ordered),
        "p10": percentile(0.1),
        "p90": percentile(0.9),
        "best": ordered[0],
        "worst": ordered[-1],
        "samples": len(ordered),
    }
