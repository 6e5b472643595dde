"""The peak memory of one operation, as the growth of the resident set.

It means something in a process that has done nothing larger before: what was freed earlier and not
given back would be used again without being seen. `ENVIRONMENT` makes a child give back at once.
"""

from __future__ import annotations

import contextlib
import gc
import re
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.timing import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
_STATUS = Path("/proc/self/status")


def peak(operation: Callable[[], Any], above: int | None = None) -> tuple[float, int]:
    """Milliseconds, and the bytes by which the resident set grew at its highest.

    Args:
        operation: What is measured.
        above: The resident set that it is compared with; by default that before the call.
    """
    before = resident() if above is None else above
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    taken = milliseconds(operation)
    return taken, max(0, _highest() - before)


def resident() -> int:
    """Bytes that the process holds now; where the system does not tell, those it ever held."""
    gc.collect()
    return _kilobytes("VmRSS") * 1024 if _STATUS.exists() else _highest()


def _highest() -> int:
    if _STATUS.exists():
        return _kilobytes("VmHWM") * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _kilobytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
