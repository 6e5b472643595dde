"""Conditions that several plans use: each names one thread by equality.

This file is pure: it imports only `identifiers` and `schema`, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mongosaver.identifiers import Address
from mongosaver.schema import Document


def checkpoint(at: Address) -> Document:
    """One checkpoint, or what belongs to it."""
    return {
        "thread_id": at.thread_id,
        "checkpoint_ns": at.checkpoint_ns,
        "checkpoint_id": at.checkpoint_id,
    }


def readable(at: Address) -> Document:
    """Checkpoints of one thread and namespace, without those that are marked as deleted."""
    return {"thread_id": at.thread_id, "checkpoint_ns": at.checkpoint_ns, "deleted_at": None}


def blobs(at: Address, keys: Sequence[bytes]) -> Document:
    """Blobs of one thread and namespace, by key."""
    return {
        "thread_id": at.thread_id,
        "checkpoint_ns": at.checkpoint_ns,
        "key": {"$in": list(keys)},
    }


def alive(now: datetime) -> Document:
    """Checkpoints that have not expired: what they need may be gone already, once they have."""
    return {"expires_at": {"$not": {"$lte": now}}}
