"""What comes of a walk: findings with what mends them, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from mongosaver.plans.shapes import At, Problem
from mongosaver.schema import Document

SETTLED: Final = timedelta(minutes=10)
"""What is younger may still be named by a checkpoint, or finished by whoever writes it."""

REMEDIES: Final = {
    "format": "Look who writes to this collection; give each saver, and each version of mongosaver"
    " that cannot read the others' format, a collection of its own.",
    "shape": "Restore the document from a backup, or delete the thread.",
    "missing": "Restore the blobs collection from a backup, resume from another checkpoint of the"
    " thread, or delete the thread.",
    "digest": "Restore the blob from a backup, resume from a checkpoint that does not need it, or"
    " delete the thread. Check the server's disk.",
    "key": "Restore the blob from a backup, resume from a checkpoint that does not need it, or"
    " delete the thread.",
    "size": "Restore the checkpoint from a backup, or resume from another one.",
    "lists": "Restore the checkpoint from a backup, or resume from another one.",
    "payload": "Restore the checkpoint from a backup, or resume from another one. If payloads are"
    " encrypted, look first whether the key is the right one.",
    "write": "Restore the writes collection from a backup, resume from another checkpoint, or"
    " delete the writes of this task, which then runs again.",
}
"""What mends each kind of finding."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong.

    Attributes:
        kind: One of `REMEDIES`: `format` and `shape` of a document; `missing`, `digest` and `key`
            of a blob; `size`, `lists` and `payload` of a checkpoint; `write`.
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: A checkpoint that is not whole because of it: the newest one.
        channel: The channel, if it is about a value.
        key: Key of the blob in hexadecimal digits; of a pending write, its task.
        text: What was found.
        remedy: What mends it.
        checkpoints: How many checkpoints are not whole because of it.
    """

    kind: str
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None
    channel: str | None
    key: str | None
    text: str
    remedy: str
    checkpoints: int = 1


@dataclass(slots=True)
class Report:
    """What a walk through threads has seen so far; it is filled as the walk goes on.

    Attributes:
        threads: Threads, also those of which only remains are left.
        checkpoints: Checkpoints that readers can see.
        writes: Documents of pending writes.
        blobs: Blobs that checkpoints need.
        bytes: Bytes of data that were read.
        wrong: How many findings there are.
        damaged: Checkpoints that are not whole because of them.
        findings: The first of them.
        orphan_blobs: Blobs that nobody names.
        orphan_writes: Documents of pending writes whose checkpoint does not exist.
        unfinished_writes: Parts of large pending writes that were never completed.
        stateless: Checkpoints that are no state: their thread was deleted under a running graph.
        marked: Checkpoints that are being removed, or from which a `DeltaChannel` is rebuilt.
        parents_gone: Whole checkpoints whose parent does not exist.
        half_copies: Threads that are a copy which broke off.
        recent: Blobs and writes that nobody names yet, and that may belong to what is being saved.
        expired: Checkpoints that have expired and were not removed yet.
        sealed: Payloads that could not be looked into (encrypted, or another serializer's).
        last_thread_id: The last thread that was looked at: what `after` takes to go on from here.
    """

    threads: int = 0
    checkpoints: int = 0
    writes: int = 0
    blobs: int = 0
    bytes: int = 0
    wrong: int = 0
    damaged: int = 0
    orphan_blobs: int = 0
    orphan_writes: int = 0
    unfinished_writes: int = 0
    stateless: int = 0
    marked: int = 0
    parents_gone: int = 0
    half_copies: int = 0
    recent: int = 0
    expired: int = 0
    sealed: int = 0
    findings: list[Finding] = field(default_factory=list)
    last_thread_id: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How to look.

    Attributes:
        data: Whether data is read; else only what names what, and whether it is there.
        opens: Whether encrypted payloads can be opened here.
        most: How many findings are kept; the others are counted.
        settled: What is older, and named by nobody, is an orphan.
    """

    data: bool = True
    opens: bool = True
    most: int = 100
    settled: timedelta = SETTLED


_OF_BLOBS: Final = frozenset({"format", "shape", "missing", "digest", "key"})


def tell(thread_id: str, report: Report, told: Sequence[At], most: int) -> None:
    """Make findings: one for each thing that is wrong, however many checkpoints need it."""
    groups: dict[tuple[Any, ...], list[Document]] = {}
    problems: dict[tuple[Any, ...], Problem] = {}
    for row, problem in told:
        about: tuple[Any, ...] = (row.get("checkpoint_ns"), problem.kind, problem.key)
        if not (problem.kind in _OF_BLOBS and isinstance(problem.key, bytes)):
            about = (*about, row.get("checkpoint_id"), problem.channel, problem.text)
        groups.setdefault(about, []).append(row)
        problems.setdefault(about, problem)
    for about, rows in groups.items():
        report.wrong += 1
        if len(report.findings) < most:
            problem = problems[about]
            key = problem.key.hex() if isinstance(problem.key, bytes) else problem.key
            newest = max(rows, key=lambda row: str(row.get("checkpoint_id")))
            finding = Finding(
                problem.kind,
                thread_id,
                str(about[0]),
                newest.get("checkpoint_id"),
                problem.channel,
                key,
                problem.text,
                REMEDIES[problem.kind],
                len({row.get("checkpoint_id") for row in rows}),
            )
            report.findings.append(finding)
