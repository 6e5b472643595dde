"""What segments cost, without a server: stored bytes as a multiple of the final value.

Each pattern of change is a sequence of list values, every one planned on the one before it by the
package's own `mongosaver.segments`. Messages are random bytes: what is counted is what is handed to
the database, before its compression.

    python bench/simulate_segments.py --steps 1500 --message 765
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from time import perf_counter

from mongosaver.segments import Stored, plan

Values = Iterator[Sequence[bytes]]
Make = Callable[[], bytes]


@dataclass(frozen=True)
class Result:
    """Figures of one pattern; times are medians of the last tenth of the steps."""

    pattern: str
    final_bytes: int
    multiple: float
    whole_values_multiple: float
    chain_longest: int
    chain_mean: float
    blobs_per_step: float
    plan_ms: float
    hash_ms: float


def append(steps: int, make: Make, _rng: random.Random) -> Values:
    """One message more at each step."""
    messages: list[bytes] = []
    for _ in range(steps):
        messages.append(make())
        yield messages


def regenerate_last(steps: int, make: Make, rng: random.Random) -> Values:
    """One message more at each step, and at every other step the last one is made anew first."""
    for index, messages in enumerate(append(steps, make, rng)):
        yield messages
        if index % 2:
            assert isinstance(messages, list)
            messages[-1] = make()
            yield messages


def edit_within(last: int | None) -> Callable[[int, Make, random.Random], Values]:
    """One message more at each step, then one of the `last` ones (None: any) is replaced."""

    def values(steps: int, make: Make, rng: random.Random) -> Values:
        for messages in append(steps, make, rng):
            yield messages
            assert isinstance(messages, list)
            messages[-rng.randint(1, min(last or len(messages), len(messages)))] = make()
            yield messages

    return values


def window(steps: int, make: Make, rng: random.Random) -> Values:
    """One message more at each step, of which the last 50 are kept."""
    for messages in append(steps, make, rng):
        yield messages[-50:]


def payload_of(messages: Sequence[bytes]) -> bytes:
    """A msgpack array of items that are msgpack already."""
    count = len(messages)
    if count < 16:
        header = bytes([0x90 | count])
    elif count < 1 << 16:
        header = b"\xdc" + count.to_bytes(2, "big")
    else:
        header = b"\xdd" + count.to_bytes(4, "big")
    return b"".join((header, *messages))


def median(values: Sequence[float]) -> float:
    """The middle value, or the higher of the two."""
    return sorted(values)[len(values) // 2]


def simulate(pattern: str, values: Iterable[Sequence[bytes]]) -> Result:
    """Plan one value after another and count what would be stored."""
    base: Stored | None = None
    payload = b""
    total = whole = blobs = 0
    chains: list[int] = []
    plan_times: list[float] = []
    hash_times: list[float] = []
    for version, messages in enumerate(values):
        payload = payload_of(messages)
        started = perf_counter()
        pieces, base = plan("messages", version, "msgpack", payload, base)
        planned = perf_counter()
        blake2b(payload, digest_size=16).digest()
        hash_times.append(perf_counter() - planned)
        plan_times.append(planned - started)
        total += sum(len(piece.head) + len(piece.data) for piece in pieces)
        whole += len(payload)
        blobs += len(pieces)
        chains.append(len(base.segments))
    tail = max(1, len(chains) // 10)
    return Result(
        pattern=pattern,
        final_bytes=len(payload),
        multiple=total / len(payload),
        whole_values_multiple=whole / len(payload),
        chain_longest=max(chains),
        chain_mean=sum(chains) / len(chains),
        blobs_per_step=blobs / len(chains),
        plan_ms=1e3 * median(plan_times[-tail:]),
        hash_ms=1e3 * median(hash_times[-tail:]),
    )


def results(steps: int, message: int, seed: int) -> Iterator[Result]:
    """All patterns, one after the other."""

    def item(rng: random.Random, size: int) -> bytes:
        size = max(4, size)
        return b"\xc5" + (size - 3).to_bytes(2, "big") + rng.randbytes(size - 3)

    patterns: list[tuple[str, Callable[[int, Make, random.Random], Values], bool]] = [
        ("append", append, False),
        ("append, varied sizes", append, True),
        ("regenerate the last", regenerate_last, False),
        ("append, edit one of the last 10", edit_within(10), False),
        ("append, edit one of the last 50", edit_within(50), False),
        ("append, edit anywhere", edit_within(None), False),
        ("sliding window of 50", window, False),
    ]
    for name, values, varied in patterns:
        rng = random.Random(seed)

        def make(rng: random.Random = rng, varied: bool = varied) -> bytes:
            # Log-normal, as texts are: most are short, a few are many times the mean.
            factor = rng.lognormvariate(-0.72, 1.2) if varied else 1.0
            return item(rng, min(60_000, round(message * factor)))

        yield simulate(name, values(steps, make, rng))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1500, help="values in a row (default 1500)")
    parser.add_argument("--message", type=int, default=765, help="mean bytes (default 765)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    if not arguments.json:
        print(
            f"{'':32} {'multiple':>8} {'whole':>8} {'chain max':>9} {'mean':>5}"
            f" {'blobs':>5} {'plan ms':>8} {'hash ms':>8}"
        )
    for result in results(arguments.steps, arguments.message, arguments.seed):
        if arguments.json:
            print(json.dumps(asdict(result)), flush=True)
            continue
        print(
            f"{result.pattern:32} {result.multiple:8.2f} {result.whole_values_multiple:8.0f}"
            f" {result.chain_longest:9} {result.chain_mean:5.1f} {result.blobs_per_step:5.2f}"
            f" {result.plan_ms:8.3f} {result.hash_ms:8.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
