"""Verify and gc on a real server: damage of each kind, healthy histories, interruptions, races.

What is damaged is damaged by hand, behind the savers' backs. What must be whole was written by
savers, in random histories and by operations that broke off at each of their commands.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from bson import ObjectId

from mongosaver import IncompleteCheckpoint, codec
from mongosaver.ops import Find, Insert, Merge, UpdateMany
from mongosaver.plans import copy, delete, gc, pages, prune, runs, write
from mongosaver.plans.verify import values, walk
from mongosaver.plans.verify.report import SETTLED, Options, Report
from mongosaver.schema import Name
from tests.contract.samples import Line, checkpoint, config, metadata
from tests.contract.trees import Tree
from tests.faces import ON_MONGODB
from tests.server.faults import failing
from tests.server.scenes import SCENES, Scene, interrupted, undisturbed
from tests.server.test_deletion_races import (
    Choices,
    Put,
    Stepped,
    Thread,
    big,
    explore,
    interleave,
    is_full,
    surroundings,
)

if TYPE_CHECKING:
    from mongosaver.ops import Plan
    from tests.faces import Face, Stage

HOUR = timedelta(hours=1)
NOW = gc.Rule(timedelta(0))
"""Takes everything that nobody needs, whatever its age."""

Document = dict[str, Any]


@pytest.fixture
def site(stage: Stage) -> Iterator[Face]:
    """A saver on a collection of its own."""
    made = ON_MONGODB["sync"](stage, f"health_{uuid.uuid4().hex[:12]}")
    made.setup()
    yield made
    made.drop()


def run(face: Face, plan: Plan[Any]) -> Any:
    """Runs a plan by a saver's own driver."""
    return face.saver._driver.run(plan)  # type: ignore[attr-defined]


def verified(face: Face, **options: Any) -> Report:
    """Looks at all threads."""
    report = Report()
    chosen = Options(**{"settled": timedelta(0), **options})
    while page := run(face, pages.threads(report.last_thread_id)):
        for thread_id in page:
            run(face, walk.thread(surroundings(face), thread_id, report, chosen))
    return report


def collected(face: Face, rule: gc.Rule = NOW) -> gc.Collected:
    """Tidies all threads up."""
    done = gc.Collected()
    while page := run(face, pages.threads(done.last_thread_id)):
        for thread_id in page:
            run(face, gc.thread(surroundings(face), thread_id, done, rule))
    return done


def stored(face: Face, *, without: tuple[str, ...] = ()) -> dict[str, list[Document]]:
    """All documents, as they are."""
    found = {}
    for suffix in ("", ".writes", ".blobs"):
        rows = face.sibling(suffix).find({}, dict.fromkeys(without, 0) or None).sort("_id", 1)
        found[suffix] = list(rows)
    return found


def counts(face: Face) -> list[int]:
    """How many documents there are in each collection."""
    return [len(rows) for rows in stored(face).values()]


def is_clean(report: Report) -> bool:
    """Whether there is neither damage nor anything left over."""
    names = ("wrong", "orphan_blobs", "orphan_writes", "unfinished_writes", "stateless", "marked")
    rest = ("parents_gone", "half_copies", "recent", "expired", "sealed")
    return not any(getattr(report, name) for name in (*names, *rest))


def back(face: Face, by: timedelta = HOUR) -> None:
    """Makes all documents older."""
    for suffix in ("", ".writes", ".blobs"):
        collection = face.sibling(suffix)
        for name in ("created_at", "touched_at", "deleted_at"):
            collection.update_many(
                {name: {"$exists": True}},
                [{"$set": {name: {"$subtract": [f"${name}", int(by.total_seconds() * 1000)]}}}],
            )
        for row in list(collection.find({})):
            # An _id cannot be changed, so the document is stored anew.
            made = row["_id"].generation_time - by
            collection.delete_one({"_id": row["_id"]})
            unique = ObjectId.from_datetime(made).binary[:4] + row["_id"].binary[4:]
            collection.insert_one({**row, "_id": ObjectId(unique)})


def chat(length: int, at: int = 0) -> list[str]:
    """A list that is stored in several segments."""
    return [f"message {at + number} " * 20 for number in range(length)]


def grown(face: Face, thread: str = "thread", steps: int = 30) -> Line:
    """A line of checkpoints with values of each kind, and pending writes of each kind."""
    line = Line(face, thread)
    for step in range(steps):
        values: dict[str, Any] = {"chat": chat(100 + 9 * step), "step": step}
        if step % 7 == 0:
            values["file"] = big(step)
        if step % 5 == 0:
            values["small"] = "s" * 300 + str(step)
        if step % 4 == 0:
            values["map"] = {f"key {n}": "v" * 90 for n in range(200 + step)}
        at = line.put(values)
    face.put_writes(at, [("chat", ["next"]), ("file", "f" * 100_000), ("n", 1)], "task 1")
    face.put_writes(at, [("__interrupt__", "i" * 50_000)], "task 2")
    face.put_writes(line.at(2), [("chat", "w" * 9_000_000)], "task 3")
    return line


# --- what is whole -----------------------------------------------------------------------------


def test_whole_thread_has_no_finding_and_nothing_goes(site: Face) -> None:
    """Values in segments, tails and documents, and writes in parts, are found to be right."""
    grown(site)
    grown(site, "thread 2", 3)
    site.saver.copy_thread("thread", "copy")
    before = stored(site)
    assert any("d" in entry for row in before[""] for entry in row["blobs"])
    report = verified(site)
    assert is_clean(report), report
    assert report.threads == 3
    assert report.checkpoints == len(before[""])
    assert report.blobs == len(before[".blobs"])
    assert report.writes == len(before[".writes"])
    assert is_clean(verified(site, data=False))
    done = collected(site)
    assert (done.threads, done.changed, done.left) == (3, 0, {})
    assert stored(site) == before


def test_small_pages_and_batches_see_the_same(
    site: Face, healthy: Callable[[Face], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little is read at a time, the same is found, and the same goes."""
    place = healthy(site)
    bit_in_first_segment(place)
    site.sibling(".blobs").delete_many({"thread_id": "other", "channel": "file"})
    orphan_writes(site, Thread(site, "thread"))
    for name in ("chat", "map"):
        key = place.entry(name)["k"]
        site.sibling(".blobs").insert_one(
            {**place.blob(key), "_id": 1 + len(name), "key": key[::-1]}
        )
    documents = stored(site)
    expected, gone = verified(site), collected(site)
    after = normal(stored(site))
    assert expected.wrong > 1
    assert expected.orphan_blobs == gone.blobs > 0
    refill(site, documents)
    for module, name, size in (
        (pages, "LOADED", 3),
        (pages, "BATCH", 4),
        (pages, "BYTES", 10_000),
        (values, "OFF_LOOP", 10_000),
        (walk, "PATIENCE", 0),
    ):
        monkeypatch.setattr(module, name, size)
    again = verified(site)
    for each in (expected, again):
        each.findings.sort(key=repr)
        each.bytes = 0
    assert again == expected
    assert collected(site) == gone
    assert normal(stored(site)) == after


def test_random_histories_are_whole(site: Face) -> None:
    """Forks, puts on any parent, edits and writes leave nothing that is wrong or needless."""
    for seed in range(6):
        chance = random.Random(seed)
        lines = [Line(site, f"thread {seed}", ns) for ns in ("", "inner", "call:1")]
        for line in lines:
            line.put({"chat": chat(60), "n": 0, "file": big(seed)})
        for step in range(40):
            line = chance.choice(lines)
            before = line.values["chat"]
            edits = [
                [*before, *chat(chance.randrange(1, 40), step)],
                before[: chance.randrange(len(before) + 1)],
                before[chance.randrange(3) :],
                [*before[:-5], "edited", *before[-4:]],
                ["new"] * chance.randrange(300),
            ]
            values: dict[str, Any] = {"chat": chance.choice(edits), "n": step}
            if chance.random() < 0.2:
                values["file"] = big(step)
            gone = [name for name in ("file",) if name in line.values and chance.random() < 0.1]
            at = line.put(values, emptied=[name for name in gone if name not in values])
            if chance.random() < 0.3:
                size = chance.choice([10, 1_000, 100_000])
                site.put_writes(at, [("chat", ["w" * size]), ("n", size)], f"task {step}")
            if chance.random() < 0.1:
                lines.append(line.fork())
            if chance.random() < 0.1:
                site = site.another()
                for each in lines:
                    each.face = site
        if seed % 2:
            site.saver.prune([f"thread {seed}"], keep_last=3)
    before_all = stored(site)
    report = verified(site)
    assert is_clean(report), report
    assert collected(site).changed == 0
    assert stored(site) == before_all


def test_threads_with_delta_channels_are_whole(site: Face) -> None:
    """After pruning, hidden ancestors are counted and kept, and the state stays what it was."""
    tree = Tree(site, "delta", delta=("d", "e"))
    for step in range(12):
        wrote = {"d": step, "e": step}
        tree.put({"a": step}, wrote=wrote, snapshots={0: "de", 4: "d", 8: "e"}.get(step, ""))
    site.saver.prune(["delta"])
    before = stored(site)
    assert any(row.get("deleted_at") for row in before[""])
    report = verified(site)
    assert report.marked > 0
    assert is_clean(replace_counts(report, marked=0)), report
    collected(site)
    assert stored(site) == before


def replace_counts(report: Report, **values: int) -> Report:
    """A report with other counts."""
    return replace(report, **values)


# --- damage ------------------------------------------------------------------------------------


@dataclass
class Place:
    """A thread with the parts of it that are damaged.

    Attributes:
        site: The saver.
        line: Its checkpoints.
    """

    site: Face
    line: Line

    @property
    def newest(self) -> Document:
        """The newest checkpoint's document."""
        found = self.site.collection.find_one({"checkpoint_id": self.line.ids[-1]})
        assert found
        return found

    def entry(self, channel: str) -> Document:
        """What the newest checkpoint says of a value."""
        return next(e for e in self.newest["blobs"] if e["c"] == channel)

    def blob(self, key: bytes) -> Document:
        """A blob."""
        found = self.site.sibling(".blobs").find_one({"key": key})
        assert found
        return found

    def head(self, channel: str = "chat") -> Document:
        """The blob of a value of the newest checkpoint."""
        return self.blob(self.entry(channel)["k"])

    def set_blob(self, at: bytes, **fields: Any) -> str:
        """Changes a blob; its key as a finding has it."""
        done = self.site.sibling(".blobs").update_one({"key": at}, {"$set": fields})
        assert done.modified_count == 1
        return at.hex()

    def set_newest(self, **fields: Any) -> None:
        """Changes the newest checkpoint's document."""
        where = {"checkpoint_id": self.line.ids[-1]}
        done = self.site.collection.update_one(where, {"$set": fields})
        assert done.modified_count == 1

    def drop_blob(self, key: bytes) -> str:
        """Deletes a blob."""
        assert self.site.sibling(".blobs").delete_one({"key": key}).deleted_count == 1
        return key.hex()


def flipped(data: bytes, at: int = -1) -> bytes:
    """Bytes with one bit turned."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


Expected = tuple[str, str | None, str | None]
"""Kind, channel and key of a finding."""


def middle_segment_gone(place: Place) -> Expected:
    """A segment in the middle of a chain is deleted."""
    return "missing", "chat", place.drop_blob(place.head()["chain"][1])


def head_gone(place: Place) -> Expected:
    """A value's own blob is deleted."""
    return "missing", "chat", place.drop_blob(place.head()["key"])


def bit_in_first_segment(place: Place) -> Expected:
    """A bit of a segment is turned that others follow."""
    key = place.head()["chain"][0]
    return "digest", "chat", place.set_blob(key, data=flipped(place.blob(key)["data"], 100))


def bit_in_head(place: Place) -> Expected:
    """A bit of a value's own bytes is turned."""
    head = place.head("file")
    return "digest", "file", place.set_blob(head["key"], data=flipped(head["data"]))


def cut_off(place: Place) -> Expected:
    """A segment is cut off."""
    key = place.head()["chain"][-1]
    return "digest", "chat", place.set_blob(key, data=place.blob(key)["data"][:-1])


def no_data(place: Place) -> Expected:
    """A blob has lost its data."""
    key = place.head()["key"]
    place.site.sibling(".blobs").update_one({"key": key}, {"$unset": {"data": 1}})
    return "missing", "chat", key.hex()


def other_header(place: Place) -> Expected:
    """A value has another header."""
    head = place.head()
    return "key", "chat", place.set_blob(head["key"], head=flipped(head["head"]))


def other_digest(place: Place) -> Expected:
    """A segment has another digest."""
    key = place.head()["chain"][0]
    return "key", "chat", place.set_blob(key, digest=flipped(place.blob(key)["digest"]))


def other_version(place: Place) -> Expected:
    """A value says that it is another version."""
    return "key", "file", place.set_blob(place.head("file")["key"], version="other")


def chain_in_other_order(place: Place) -> Expected:
    """A chain names its segments in another order."""
    head = place.head()
    one, two, *rest = head["chain"]
    return "key", "chat", place.set_blob(head["key"], chain=[two, one, *rest])


def swapped_entries(place: Place) -> Expected:
    """A checkpoint names one channel's blob for the other."""
    blobs = place.newest["blobs"]
    chat_, file = place.entry("chat")["k"], place.entry("file")["k"]
    other = {"chat": file, "file": chat_}
    place.set_newest(blobs=[{**e, "k": other.get(e["c"], e["k"])} for e in blobs])
    return "lists", "chat", file.hex()


def older_version(place: Place) -> Expected:
    """A checkpoint names a former version of a value, and its size."""
    old = place.site.collection.find_one({"checkpoint_id": place.line.ids[0]})
    assert old
    entry = next(e for e in old["blobs"] if e["c"] == "file")
    size = place.entry("file")["size"]
    blobs = [entry if e["c"] == "file" else e for e in place.newest["blobs"]]
    place.set_newest(blobs=blobs, bytes=place.newest["bytes"] - size + entry["size"])
    return "lists", "file", entry["k"].hex()


def segment_as_value(place: Place) -> Expected:
    """A checkpoint names a segment as a value."""
    key = place.head()["chain"][0]
    blobs = [{**e, "k": key} if e["c"] == "chat" else e for e in place.newest["blobs"]]
    place.set_newest(blobs=blobs)
    return "key", "chat", key.hex()


def other_size(place: Place) -> Expected:
    """A checkpoint says another size of a value."""
    blobs = [{**e, "size": e["size"] + (e["c"] == "file")} for e in place.newest["blobs"]]
    place.set_newest(blobs=blobs, bytes=place.newest["bytes"] + 1)
    return "size", "file", place.entry("file")["k"].hex()


def other_bytes(place: Place) -> Expected:
    """A checkpoint says another size of it all."""
    place.set_newest(bytes=place.newest["bytes"] + 1)
    return "size", None, None


def payload_cut_off(place: Place) -> Expected:
    """A checkpoint's payload is cut off."""
    newest = place.newest
    place.set_newest(checkpoint=newest["checkpoint"][:-1], bytes=newest["bytes"] - 1)
    return "payload", None, None


def other_payload(place: Place) -> Expected:
    """A checkpoint has another one's payload."""
    old = place.site.collection.find_one({"checkpoint_id": place.line.ids[-2]})
    assert old
    newest = place.newest
    size = len(old["checkpoint"]) - len(newest["checkpoint"])
    versions = "values of the same versions"
    assert versions
    place.set_newest(checkpoint=old["checkpoint"], bytes=newest["bytes"] + size)
    return "payload", None, None


def other_metadata(place: Place) -> Expected:
    """What is searched in is not what the metadata says."""
    place.set_newest(**{"search.source": "other"})
    return "lists", None, None


def inline_damaged(place: Place) -> Expected:
    """A small value does not load."""
    inline = [{**e, "d": b"\xc1"} if e["c"] == "step" else e for e in place.newest["inline"]]
    assert len(next(e for e in place.newest["inline"] if e["c"] == "step")["d"]) == 1
    place.set_newest(inline=inline)
    return "payload", "step", None


def tail_damaged(place: Place) -> Expected:
    """What a value has added is not what its header says."""
    with_tail = next(
        row
        for row in place.site.collection.find({"blobs.d": {"$exists": True}})
        if row["checkpoint_id"] != place.line.ids[-1]
    )
    entry = next(e for e in with_tail["blobs"] if "d" in e and len(e["d"]) > 100)
    assert entry["d"][:1] == b"\xd9"  # a text, of which the length follows
    damaged = {**entry, "d": b"\xda" + entry["d"][1:]}
    blobs = [damaged if e is entry else e for e in with_tail["blobs"]]
    place.site.collection.update_one({"_id": with_tail["_id"]}, {"$set": {"blobs": blobs}})
    return "payload", entry["c"], entry["k"].hex()


def two_values(place: Place) -> Expected:
    """A channel has two values."""
    place.set_newest(inline=[*place.newest["inline"], {"c": "chat", "t": "null", "d": b""}])
    return "lists", "chat", None


def no_format(place: Place) -> Expected:
    """A document has no format."""
    where = {"checkpoint_id": place.line.ids[-1]}
    place.site.collection.update_one(where, {"$unset": {"format": 1}})
    return "format", None, None


def later_format(place: Place) -> Expected:
    """A blob has a later format."""
    key = place.head("file")["key"]
    return "format", "file", place.set_blob(key, format=2)


def no_list(place: Place) -> Expected:
    """A document has lost a field."""
    where = {"checkpoint_id": place.line.ids[-1]}
    place.site.collection.update_one(where, {"$unset": {"inline": 1}})
    return "shape", None, None


def part_gone(place: Place) -> Expected:
    """A part of a large pending write is deleted."""
    writes = place.site.sibling(".writes")
    first = writes.find_one({"task_id": "task 3", "part": 0})
    assert first
    writes.delete_one({"task_id": "task 3", "part": first["parts"][1]})
    return "write", "chat", "task 3"


def bit_in_part(place: Place) -> Expected:
    """A bit of a part of a large pending write is turned."""
    writes = place.site.sibling(".writes")
    part = writes.find_one({"task_id": "task 3", "part": {"$ne": 0}})
    assert part
    writes.update_one({"_id": part["_id"]}, {"$set": {"data": flipped(part["data"])}})
    return "write", "chat", "task 3"


def write_cut_off(place: Place) -> Expected:
    """A small pending write is cut off."""
    where = {"task_id": "task 1", "channel": "chat", "part": 0}
    place.site.sibling(".writes").update_one(where, {"$set": {"data": b"\x92\x01"}})
    return "write", "chat", "task 1"


def chain_of_texts(place: Place) -> Expected:
    """A chain names what is no key."""
    head = place.head()
    return "shape", "chat", place.set_blob(head["key"], chain=["text", *head["chain"]])


def odd_version(place: Place) -> Expected:
    """A value's version is none."""
    return "key", "file", place.set_blob(place.head("file")["key"], version=["1"])


def no_metadata(place: Place) -> Expected:
    """The metadata is text."""
    place.set_newest(metadata="text")
    return "shape", None, None


def empty_payload(place: Place) -> Expected:
    """The payload is nothing."""
    newest = place.newest
    place.set_newest(checkpoint=b"\xc0", bytes=newest["bytes"] - len(newest["checkpoint"]) + 1)
    return "payload", None, None


def empty_metadata(place: Place) -> Expected:
    """The metadata is nothing."""
    newest = place.newest
    place.set_newest(metadata=b"\xc0", bytes=newest["bytes"] - len(newest["metadata"]) + 1)
    return "payload", None, None


def damaged_metadata(place: Place) -> Expected:
    """The metadata does not load."""
    newest = place.newest
    place.set_newest(metadata=b"\xc1", bytes=newest["bytes"] - len(newest["metadata"]) + 1)
    return "payload", None, None


def inline_without_value(place: Place) -> Expected:
    """A small value is not there."""
    inline = [{"c": e["c"]} if e["c"] == "step" else e for e in place.newest["inline"]]
    place.set_newest(inline=inline, bytes=place.newest["bytes"] - 1)
    return "shape", "step", None


def half_tail(place: Place) -> Expected:
    """A value has a header of its own, and nothing that goes with it."""
    blobs = [{**e, "h": b"\x90"} if e["c"] == "file" else e for e in place.newest["blobs"]]
    place.set_newest(blobs=blobs)
    return "shape", "file", place.entry("file")["k"].hex()


def tail_of_other_size(place: Place) -> Expected:
    """A value with a tail says another size."""
    tail = {"h": b"\xda\x9c\x40", "d": b"more"}
    newest = place.newest
    blobs = [{**e, **tail} if e["c"] == "file" else e for e in newest["blobs"]]
    place.set_newest(blobs=blobs, bytes=newest["bytes"] + 4)
    return "size", "file", place.entry("file")["k"].hex()


def write_without_channel(place: Place) -> Expected:
    """A pending write has lost its channel."""
    where = {"task_id": "task 1", "idx": 0, "part": 0}
    place.site.sibling(".writes").update_one(where, {"$unset": {"channel": 1}})
    return "shape", None, "task 1"


def write_without_data(place: Place) -> Expected:
    """A pending write has lost its data."""
    where = {"task_id": "task 1", "channel": "n"}
    place.site.sibling(".writes").update_one(where, {"$unset": {"data": 1}})
    return "write", "n", "task 1"


def part_without_data(place: Place) -> Expected:
    """A part of a pending write has lost its data."""
    where = {"task_id": "task 3", "part": {"$ne": 0}}
    place.site.sibling(".writes").update_one(where, {"$unset": {"data": 1}})
    return "write", "chat", "task 3"


OF_DATA = [
    no_metadata,
    empty_payload,
    empty_metadata,
    damaged_metadata,
    inline_without_value,
    half_tail,
    tail_of_other_size,
    write_without_data,
    part_without_data,
    bit_in_first_segment,
    bit_in_head,
    cut_off,
    no_data,
    other_bytes,
    older_version,
    payload_cut_off,
    other_payload,
    other_metadata,
    inline_damaged,
    tail_damaged,
    bit_in_part,
    write_cut_off,
]
OF_NAMES = [
    chain_of_texts,
    odd_version,
    write_without_channel,
    middle_segment_gone,
    head_gone,
    other_header,
    other_digest,
    other_version,
    chain_in_other_order,
    swapped_entries,
    segment_as_value,
    other_size,
    two_values,
    no_format,
    later_format,
    no_list,
    part_gone,
]


@pytest.fixture(scope="module")
def healthy(stage: Stage) -> Iterator[Callable[[Face], Place]]:
    """Puts the documents of one and the same thread into a collection, and of another one."""
    origin = ON_MONGODB["sync"](stage, f"healthy_{uuid.uuid4().hex[:12]}")
    origin.setup()
    line = grown(origin)
    grown(origin, "other", 5)
    documents = stored(origin)
    origin.drop()

    def fill(site: Face) -> Place:
        for suffix, rows in documents.items():
            site.sibling(suffix).insert_many(rows)
        return Place(site, line)

    return fill


@pytest.mark.parametrize("damage", [*OF_DATA, *OF_NAMES], ids=lambda each: each.__name__)
def test_damage_is_found_and_named(
    site: Face, healthy: Callable[[Face], Place], damage: Callable[[Place], Expected]
) -> None:
    """Each kind of damage is found, once, where it is; without data only what names tell."""
    place = healthy(site)
    kind, channel, key = damage(place)
    report = verified(site)
    found = [each for each in report.findings if each.kind == kind and each.key == key]
    assert found, report.findings
    others = [each for each in report.findings if each not in found]
    assert len(found) == 1, report.findings
    assert len(others) <= (damage in SEVERAL), others
    assert (found[0].thread_id, found[0].channel) == ("thread", channel)
    assert found[0].checkpoint_id in place.line.ids
    assert found[0].text
    assert found[0].remedy
    assert report.wrong == len(report.findings)
    blind = verified(site, data=False)
    assert {each.kind for each in blind.findings} == (set() if damage in OF_DATA else {kind})


SEVERAL = [swapped_entries, other_payload]
"""What is two things at once: both channels, a payload's id and the versions it names."""


@pytest.mark.parametrize("damage", [middle_segment_gone, head_gone], ids=lambda each: each.__name__)
def test_all_checkpoints_that_cannot_be_read_are_counted(
    site: Face, healthy: Callable[[Face], Place], damage: Callable[[Place], Expected]
) -> None:
    """Of one missing blob there is one finding, with as many checkpoints as readers fail on."""
    place = healthy(site)
    damage(place)
    failing = 0
    for checkpoint_id in place.line.ids:
        try:
            site.another().get_tuple(config("thread", "", checkpoint_id))
        except IncompleteCheckpoint:
            failing += 1
    report = verified(site)
    assert report.damaged == report.findings[0].checkpoints == failing > 0


def test_writes_that_lack_a_part_of_their_key_are_found(
    site: Face, healthy: Callable[[Face], Place]
) -> None:
    """A pending write that nobody can find is named, and gc does not touch it."""
    healthy(site)
    site.sibling(".writes").update_one({"task_id": "task 3", "part": 0}, {"$set": {"idx": "0"}})
    report = verified(site)
    assert [each.kind for each in report.findings] == ["shape"]
    before = stored(site)
    collected(site)
    assert stored(site) == before


def test_checkpoint_without_an_id_is_found(site: Face, healthy: Callable[[Face], Place]) -> None:
    """A document whose key is none is named like others."""
    place = healthy(site)
    where = {"checkpoint_id": place.line.ids[0]}
    site.collection.update_one(where, {"$set": {"checkpoint_id": None}})
    report = verified(site)
    assert [each.kind for each in report.findings] == ["shape"]
    assert report.findings[0].checkpoint_id is None


def test_write_whose_first_document_is_missing_may_still_come(
    site: Face, healthy: Callable[[Face], Place]
) -> None:
    """Parts without their first document are counted and stay: the task may run again."""
    healthy(site)
    site.sibling(".writes").delete_one({"task_id": "task 3", "part": 0})
    report = verified(site)
    assert (report.wrong, report.unfinished_writes) == (0, 2)
    before = stored(site)
    collected(site)
    assert stored(site) == before


def test_expired_checkpoints_need_not_be_whole(
    site: Face, healthy: Callable[[Face], Place]
) -> None:
    """What has expired is counted; MongoDB removes it in no order, and gc leaves that to it."""
    place = healthy(site)
    past = datetime.now(timezone.utc) - HOUR
    site.collection.update_many({}, {"$set": {"expires_at": past}})
    middle_segment_gone(place)
    report = verified(site)
    assert (report.wrong, report.expired, report.checkpoints) == (0, 35, 0)
    before = stored(site)
    collected(site)
    assert stored(site) == before


def test_swapped_keys_are_found(site: Face, healthy: Callable[[Face], Place]) -> None:
    """Two blobs with each other's keys are both found, or what needs them is."""
    place = healthy(site)
    one, two = place.head()["chain"][:2]
    spare = b"\0" * 16
    for old, new in ((one, spare), (two, one), (spare, two)):
        place.set_blob(old, key=new)
    for report in (verified(site), verified(site, data=False)):
        assert {each.kind for each in report.findings} == {"key"}
        assert report.findings[0].key in (one.hex(), two.hex())


def test_findings_are_counted_beyond_those_kept(
    site: Face, healthy: Callable[[Face], Place]
) -> None:
    """However many there are, no more are kept than wanted, and all are counted."""
    healthy(site)
    site.collection.update_many({}, {"$inc": {"bytes": 1}})
    report = verified(site, most=3)
    assert len(report.findings) == 3
    assert report.wrong == report.damaged == 35


# --- leftovers ---------------------------------------------------------------------------------


def fresh(site: Face, name: str = "thread") -> Thread:
    """A thread of three checkpoints with writes on the last one."""
    thread = Thread(site, name)
    thread.put(Put(warm=True, in_transaction=True, parent=None))
    for _ in range(2):
        at = thread.put(Put(warm=True, in_transaction=True))
    site.put_writes(at, [("messages", big(9)), ("step", 9)], "task")
    return thread


def begun(site: Face, name: str = "thread") -> Thread:
    """The same, an hour old."""
    thread = fresh(site, name)
    back(site)
    return thread


def putting(site: Face, thread: Thread, put: Put) -> Stepped:
    """Returns the plan of a put."""
    thread.face = site
    return thread.putting(put)


def orphan_blobs(site: Face, thread: Thread) -> dict[str, int]:
    """A put that broke off before its checkpoint."""
    plan = putting(site, thread, Put(warm=True, in_transaction=False))
    while plan.op is not None and getattr(plan.op, "collection", None) != Name.CHECKPOINTS:
        plan.step()
    plan.crash()
    return {"orphan_blobs": 2}


def orphan_writes(site: Face, thread: Thread) -> dict[str, int]:
    """Pending writes, small and large, of a checkpoint that never came."""
    at = config(thread.id, "", "never")
    site.put_writes(at, [("a", 1), ("b", "b" * 50_000)], "task")
    return {"orphan_writes": 3}


def dangling_mark(site: Face, thread: Thread) -> dict[str, int]:
    """A removal that broke off after its marks."""
    plan = Stepped(site, prune.prune(surroundings(site), [thread.id]))
    while not isinstance(plan.op, UpdateMany):
        plan.step()
    plan.step()
    plan.crash()
    return {"marked": 2}


def stateless(site: Face, thread: Thread) -> dict[str, int]:
    """Checkpoints of a graph whose thread was deleted under it, with writes."""
    other = begun(site, "deleted")
    run(site, delete.delete_thread(surroundings(site.another()), other.id))
    other.face = site
    for _ in range(2):
        at = other.put(Put(warm=True, in_transaction=True))
    site.put_writes(at, [("a", 1)], "task")
    return {"stateless": 2, "parents_gone": 1}


def half_deleted(site: Face, thread: Thread) -> dict[str, int]:
    """A deletion that broke off after the checkpoints."""
    fresh(site, "deleted")
    site.collection.delete_many({"thread_id": "deleted"})
    return {"orphan_blobs": 8, "orphan_writes": 2}


def half_copied(site: Face, thread: Thread) -> dict[str, int]:
    """A copy that broke off between two checkpoints."""
    run(site, copy.copy_thread(surroundings(site), thread.id, "copy"))
    newest = site.collection.find_one({"thread_id": "copy"}, sort=[("checkpoint_id", -1)])
    assert newest
    site.collection.delete_one({"_id": newest["_id"]})
    return {"half_copies": 1, "orphan_writes": 2, "orphan_blobs": 2}


def parts_of_the_loser(site: Face, thread: Thread) -> dict[str, int]:
    """Parts of a large write that came too late for its slot."""
    at = config(thread.id, "", thread.order[-1])
    site.put_writes(at, [("messages", big(7, 50_000))], "task")
    return {"unfinished_writes": 1}


LEFTOVERS = [
    orphan_blobs,
    orphan_writes,
    dangling_mark,
    stateless,
    half_deleted,
    half_copied,
    parts_of_the_loser,
]

leftovers = pytest.mark.parametrize("leave", LEFTOVERS, ids=lambda each: each.__name__)


@leftovers
def test_leftovers_are_counted_and_removed(
    site: Face, leave: Callable[[Face, Thread], dict[str, int]]
) -> None:
    """Leftovers are nothing wrong; once they are old they are removed, and nothing else is."""
    thread = begun(site)
    clean = stored(site)
    if leave is dangling_mark:
        before = clean
        site.saver.prune([thread.id])
        clean = stored(site)
        refill(site, before)
    expected = leave(site, thread)
    full = stored(site)

    assert verified(site, settled=SETTLED).wrong == 0
    assert collected(site, gc.rule(timedelta(minutes=10))).changed == 0
    assert stored(site) == full

    back(site, by=2 * HOUR)
    report = verified(site, settled=SETTLED)
    assert report.wrong == 0, report.findings
    assert {name: getattr(report, name) for name in expected} == expected
    assert is_clean(replace(report, **dict.fromkeys(expected, 0))), report
    before = stored(site)
    counted = collected(site, gc.rule(HOUR, dry_run=True))
    assert stored(site) == before
    done = collected(site, gc.rule(HOUR))
    assert replace(counted, changed=1) == replace(done, changed=1)
    assert done.changed == 1
    assert normal(stored(site)) == normal(clean)
    assert is_clean(verified(site))


def refill(site: Face, documents: dict[str, list[Document]]) -> None:
    """Puts documents back as they were."""
    site.empty()
    for suffix, rows in documents.items():
        if rows:
            site.sibling(suffix).insert_many(rows)


def normal(documents: dict[str, list[Document]]) -> list[list[str]]:
    """Documents without what differs from one run to the next."""
    changing = {"_id", "created_at", "touched_at", "deleted_at"}
    return [
        sorted(repr(sorted((k, v) for k, v in row.items() if k not in changing)) for row in rows)
        for rows in documents.values()
    ]


@pytest.mark.parametrize("field", ["created_at", "touched_at"])
def test_blob_that_was_needed_a_short_time_ago_stays(site: Face, field: str) -> None:
    """A blob that nobody names is left alone while either of its dates is young."""
    thread = begun(site)
    orphan_blobs(site, thread)
    back(site)
    recent = datetime.now(timezone.utc) - timedelta(minutes=20)
    named = [key for row in stored(site)[""] for key in codec.blob_keys(row)]
    where = {"key": {"$nin": named}, "channel": "messages"}
    site.sibling(".blobs").update_many(where, {"$set": {field: recent}})
    before = counts(site)
    assert collected(site, gc.rule(timedelta(minutes=30))).blobs == 0
    assert counts(site) == before
    assert collected(site, gc.rule(timedelta(minutes=10))).blobs == 2


def test_damaged_thread_keeps_what_a_restored_value_would_need(
    site: Face, healthy: Callable[[Face], Place]
) -> None:
    """Where a value's own blob is missing its segments stay, and the thread is named."""
    place = healthy(site)
    head_gone(place)
    before = stored(site)
    done = collected(site)
    assert "verify" in done.left["thread"]
    assert stored(site) == before


@pytest.mark.parametrize("damage", [no_format, no_list], ids=lambda each: each.__name__)
def test_thread_that_is_not_understood_is_left_alone(
    site: Face, healthy: Callable[[Face], Place], damage: Callable[[Place], Expected]
) -> None:
    """Foreign and incomplete documents are not guessed at; other threads are tidied up."""
    place = healthy(site)
    damage(place)
    site.sibling(".blobs").delete_many({"thread_id": "other"})
    before = stored(site)
    done = collected(site)
    assert list(done.left) == ["thread", "other"] or list(done.left) == ["other", "thread"]
    assert stored(site)[""] == before[""]
    assert stored(site)[".blobs"] == before[".blobs"]


def test_complete_copy_stays_when_its_source_goes_on(site: Face) -> None:
    """A copy is not taken for one that broke off because its source has newer checkpoints."""
    thread = begun(site)
    run(site, copy.copy_thread(surroundings(site), thread.id, "copy"))
    for _ in range(3):
        thread.put(Put(warm=True, in_transaction=True))
    back(site, by=3 * HOUR)
    before = stored(site)
    assert verified(site).half_copies == 0
    assert collected(site).changed == 0
    run(site, prune.prune(surroundings(site), [thread.id]))
    assert collected(site).changed == 0
    assert [row for row in stored(site)[""] if row["thread_id"] == "copy"] == [
        row for row in before[""] if row["thread_id"] == "copy"
    ]


def test_copy_that_was_gone_on_with_stays(site: Face) -> None:
    """A copy that broke off and was used nevertheless is a thread like others."""
    thread = begun(site)
    half_copied(site, thread)
    row = site.another().get_tuple(config("copy"))
    assert row is not None
    made = checkpoint({"step": 9}, {"step": "9"})
    site.put(row.config, made, metadata(), {"step": "9"})
    back(site, by=3 * HOUR)
    assert verified(site).half_copies == 0
    collected(site)
    found = site.another().get_tuple(config("copy"))
    assert found is not None
    assert found.parent_config == row.config
    assert is_clean(verified(site))


def test_walk_finds_threads_of_which_only_remains_are_left(
    site: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are found once and in order, in whichever collection they have documents."""
    monkeypatch.setattr(pages, "WINDOW", 7)
    for number in range(12):
        name = f"thread {number:02}"
        line = Line(site, name)
        for _ in range(1 + number % 3):
            at = line.put({"chat": chat(100)})
        site.put_writes(at, [("a", 1), ("b", 2)], "task")
        for suffix, kept in (("", number % 2), (".writes", number % 3), (".blobs", number % 4)):
            if not kept:
                site.sibling(suffix).delete_many({"thread_id": name})
    expected = sorted({row["thread_id"] for rows in stored(site).values() for row in rows})
    found: list[str] = []
    while page := run(site, pages.threads(found[-1] if found else None)):
        found += page
    assert found == expected


# --- what broke off ----------------------------------------------------------------------------

every_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)


@every_scene
@pytest.mark.parametrize("how", [{"errorCode": 8000}, {"closeConnection": True}], ids=str)
def test_operation_that_fails_at_a_command_leaves_nothing_wrong(
    site: Face, scene: type[Scene], how: dict[str, Any]
) -> None:
    """After a failure at each command nothing is wrong, and gc leaves what was before or after."""
    prepared = scene(site.another())
    before = normal(stored(site, without=("thread_id",)))
    prepared.prepare()
    prepared.act()
    collected(site)
    after = normal(stored(site, without=("thread_id",)))
    site.empty()
    sent = undisturbed(scene, site)
    for name, collection in dict.fromkeys((each.name, each.collection) for each in sent):
        site.empty()
        played = scene(site.another())
        played.prepare()
        where = {"namespace": f"{site.stage.database}.{collection}"} if collection else {}
        with failing(site.stage.plain, [name], **where, **how) as hits:
            interrupted(played)
        assert hits.count == 1
        report = verified(site)
        assert report.wrong == 0, (name, collection, report.findings)
        collected(site)
        assert is_clean(verified(site))
        assert normal(stored(site, without=("thread_id",))) in (before, after), (name, collection)


def pruning(site: Face, thread: Thread) -> Stepped:
    """Prunes the thread."""
    other = site.another()
    return Stepped(other, prune.prune(surroundings(other), [thread.id]))


def deleting(site: Face, thread: Thread) -> Stepped:
    """Deletes the thread."""
    other = site.another()
    return Stepped(other, delete.delete_thread(surroundings(other), thread.id))


def deleting_run(site: Face, thread: Thread) -> Stepped:
    """Deletes the run of the newest checkpoint."""
    other = site.another()
    return Stepped(other, runs.delete_for_runs(surroundings(other), ["run"]))


def copying(site: Face, thread: Thread) -> Stepped:
    """Copies the thread."""
    other = site.another()
    return Stepped(other, copy.copy_thread(surroundings(other), thread.id, "copy"))


def copying_by_pages(site: Face, thread: Thread) -> Stepped:
    """Copies the thread as on a server that has no `$merge`."""
    plan = copying(site, thread)
    plan.face.saver._shared.read_by_finds = True  # type: ignore[attr-defined]
    plan.plan.close()
    at = surroundings(plan.face)
    return Stepped(plan.face, copy.copy_thread(at, thread.id, "copy"))


def tidying(site: Face, thread: Thread) -> Stepped:
    """Tidies up after each kind of leftover."""
    orphan_blobs(site, thread)
    orphan_writes(site, thread)
    parts_of_the_loser(site, thread)
    dangling_mark(site, thread)
    other = site.another()
    return Stepped(other, gc.thread(surroundings(other), thread.id, gc.Collected(), NOW))


OPERATIONS = [pruning, deleting, deleting_run, copying, copying_by_pages, tidying]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__)
def test_operation_that_ends_early_is_tidied_up(
    site: Face, operation: Callable[[Face, Thread], Stepped]
) -> None:
    """Wherever it ends nothing is wrong, and gc leaves what was before, or is after it."""
    thread = begun(site)
    of_run = {"checkpoint_id": thread.order[-1]}
    site.collection.update_one(of_run, {"$set": {"run_id": "run"}})
    documents = stored(site)
    before = normal(documents)
    operation(site, thread).finish()
    after = normal(stored(site))
    steps = 0
    while True:
        refill(site, documents)
        # What a put before has added was emptied away.
        known = replace(thread, order=thread.order[:3])
        plan = operation(site, known)
        for _ in range(steps):
            if not plan.done:
                plan.step()
        is_over = plan.done
        plan.crash()
        report = verified(site)
        assert report.wrong == 0, report.findings
        collected(site)
        assert is_clean(verified(site)), verified(site)
        assert normal(stored(site)) in (before, after), steps
        if is_over:
            assert steps > 2
            break
        steps += 1


def test_rest_of_a_deleted_run_goes_when_that_is_repeated(site: Face) -> None:
    """Writes of a run on others' checkpoints are not gc's to judge; repeating removes them."""
    thread = begun(site)
    where = {"checkpoint_id": thread.order[-1]}
    site.collection.update_one(where, {"$set": {"run_id": "run"}})
    at = config(thread.id, "", thread.order[0])
    at["configurable"]["run_id"] = "run"
    site.put_writes(at, [("__resume__", "yes")], "task")
    plan = deleting_run(site, thread)
    plan.step()
    plan.crash()
    assert collected(site).checkpoints == 1
    assert site.sibling(".writes").count_documents({"run_id": "run"}) == 1
    site.saver.delete_for_runs(["run"])
    assert site.sibling(".writes").count_documents({"run_id": "run"}) == 0
    assert is_clean(verified(site))


# --- beside running graphs ---------------------------------------------------------------------


def tidied(site: Face, thread: Thread, age: timedelta = HOUR) -> Stepped:
    """Returns the plan that tidies a thread up, by another saver."""
    other = site.another()
    plan = gc.thread(surroundings(other), thread.id, gc.Collected(), gc.rule(age))
    return Stepped(other, plan)


PUTS = [
    Put(warm=True, in_transaction=True),
    Put(warm=True, in_transaction=False),
    Put(warm=False, in_transaction=False),
    Put(warm=True, in_transaction=False, parent=-2),
    Put(warm=True, in_transaction=False, parent=None, ns="inner"),
    Put(warm=True, in_transaction=False, adds=800),
]


@pytest.mark.parametrize("put", PUTS, ids=str)
def test_put_that_finds_an_orphan_and_gc_in_every_order(site: Face, put: Put) -> None:
    """A put that is repeated long after it broke off reads whole, whatever gc removes meanwhile."""
    thread = begun(site)
    thread.face = site if put.warm else site.another()
    thread.face.saver._driver.bound.refuses_transactions = not put.in_transaction  # type: ignore[attr-defined]
    at, made, new = thread.next(put)

    def again() -> Stepped:
        face = thread.face
        return Stepped(face, write.put(surroundings(face), at, made, metadata(), new))

    before = stored(site)
    refuses, thread.face.saver._driver.bound.refuses_transactions = (  # type: ignore[attr-defined]
        thread.face.saver._driver.bound.refuses_transactions,  # type: ignore[attr-defined]
        True,
    )
    first = again()
    while getattr(first.op, "collection", None) != Name.CHECKPOINTS or not isinstance(
        first.op, Insert
    ):
        first.step()
    first.crash()
    thread.face.saver._driver.bound.refuses_transactions = refuses  # type: ignore[attr-defined]
    back(site, by=2 * HOUR)
    left = stored(site)
    assert (len(left[".blobs"]) > len(before[".blobs"])) == (put.adds > 10_000)

    def play(choices: Choices) -> None:
        refill(site, left)
        interleave([again(), tidied(site, thread)], choices)
        reader = site.another()
        row = reader.get_tuple(config(thread.id, put.ns, made["id"]))
        assert row is not None
        assert is_full(thread, row)
        assert verified(site).wrong == 0
        collected(site, gc.rule(HOUR))
        again_ = site.another().get_tuple(config(thread.id, put.ns, made["id"]))
        assert again_ is not None
        assert is_full(thread, again_)

    assert explore(play) > 1


def test_put_beside_gc_of_its_siblings_in_every_order(site: Face) -> None:
    """What a graph puts while leftovers of the same thread are removed is whole."""
    thread = begun(site)
    for leave in (orphan_blobs, orphan_writes, parts_of_the_loser):
        leave(site, thread)
    thread.order.pop()
    back(site, by=2 * HOUR)
    left = stored(site)
    order = list(thread.order)

    def play(choices: Choices) -> None:
        refill(site, left)
        thread.order[:] = order
        put = putting(site, thread, Put(warm=True, in_transaction=False))
        interleave([put, tidied(site, thread)], choices)
        row = site.another().get_tuple(config(thread.id))
        assert row is not None
        assert is_full(thread, row)
        assert row.config["configurable"]["checkpoint_id"] == thread.order[-1]
        assert is_clean(verified(site))

    assert explore(play) > 1


def test_put_on_a_checkpoint_that_is_no_state_beside_gc(site: Face) -> None:
    """A graph that goes on after its thread was deleted reads whole or nothing, never a hole.

    In 60 of the orders.
    """
    thread = begun(site)
    run(site, delete.delete_thread(surroundings(site.another()), thread.id))
    thread.face = site
    thread.put(Put(warm=True, in_transaction=True))
    back(site, by=2 * HOUR)
    left, order = stored(site), list(thread.order)
    chance = random.Random("no state")
    for _ in range(60):
        refill(site, left)
        thread.order[:] = order
        plans = [putting(site, thread, Put(warm=True, in_transaction=False)), tidied(site, thread)]
        while alive := [plan for plan in plans if not plan.done]:
            chance.choice(alive).step()
        for at in (config(thread.id), config(thread.id, "", thread.order[-1])):
            row = site.another().get_tuple(at)
            assert row is None or is_full(thread, row)
        assert verified(site).wrong == 0


@pytest.mark.parametrize(
    "operation", [pruning, deleting, copying, copying_by_pages], ids=lambda each: each.__name__
)
def test_operation_and_gc_in_many_orders(
    site: Face, operation: Callable[[Face, Thread], Stepped]
) -> None:
    """In 25 of their orders, gc beside an operation changes nothing of its result."""
    thread = begun(site)
    for leave in (orphan_blobs, orphan_writes):
        leave(site, thread)
    thread.order.pop()
    back(site, by=2 * HOUR)
    left = stored(site)
    operation(site, thread).finish()
    # What was needless in the source is young in the copy.
    back(site, by=2 * HOUR)
    collected(site, gc.rule(HOUR))
    after = normal(stored(site))
    chance = random.Random(operation.__name__)
    for _ in range(25):
        refill(site, left)
        plans = [operation(site, thread), tidied(site, thread)]
        plans.append(tidied(site, replace(thread, id="copy")))
        while alive := [plan for plan in plans if not plan.done]:
            chance.choice(alive).step()
        assert verified(site).wrong == 0
        back(site, by=2 * HOUR)
        collected(site, gc.rule(HOUR))
        assert normal(stored(site)) == after


@pytest.mark.parametrize("operation", [copying, copying_by_pages], ids=lambda each: each.__name__)
def test_old_half_of_a_copy_is_completed_beside_gc(
    site: Face, operation: Callable[[Face, Thread], Stepped]
) -> None:
    """In 40 of their orders: what the first try has left is either gone or in use again."""
    thread = begun(site)
    first = operation(site, thread)
    while not (isinstance(first.op, (Merge, Find)) and first.op.collection is Name.WRITES):
        first.step()
    first.crash()
    back(site, by=2 * HOUR)
    left = stored(site)
    chance = random.Random(operation.__name__)
    for _ in range(40):
        refill(site, left)
        plans = [operation(site, thread), tidied(site, replace(thread, id="copy"))]
        while alive := [plan for plan in plans if not plan.done]:
            chance.choice(alive).step()
        assert verified(site).wrong == 0
        rows = site.another().list(config("copy"))
        assert len(rows) == len(thread.order)
        assert all(is_full(thread, row) for row in rows)


@pytest.mark.parametrize("operation", [copying, copying_by_pages], ids=lambda each: each.__name__)
def test_copy_that_lasts_longer_than_the_age_is_left_alone(
    site: Face, operation: Callable[[Face, Thread], Stepped]
) -> None:
    """Its documents say when it began; that they have just come saves it, at each of its steps."""
    thread = begun(site)
    documents = stored(site)
    operation(site, thread).finish()
    after = normal(stored(site))
    began = datetime.now(timezone.utc) - 2 * HOUR
    steps, is_over = 0, False
    while not is_over:
        refill(site, documents)
        plan = operation(site, thread)
        for _ in range(steps):
            if not plan.done:
                plan.step()
        is_over = plan.done
        for suffix in ("", ".writes", ".blobs"):
            collection = site.sibling(suffix)
            collection.update_many({"thread_id": "copy"}, {"$set": {"created_at": began}})
        assert collected(site, gc.rule(HOUR)).changed == 0
        if not is_over:
            plan.finish()
        assert normal(stored(site)) == after
        assert is_clean(verified(site))
        steps += 1
    assert steps > 5


def test_two_gcs_in_many_orders(site: Face) -> None:
    """Two that tidy up one thread at a time leave what one leaves."""
    thread = begun(site)
    for leave in (orphan_blobs, orphan_writes, parts_of_the_loser, dangling_mark, stateless):
        leave(site, thread)
    back(site, by=2 * HOUR)
    left = stored(site)
    collected(site, gc.rule(HOUR))
    after = normal(stored(site))
    chance = random.Random("two")
    for _ in range(25):
        refill(site, left)
        plans = [tidied(site, replace(thread, id=name)) for name in (thread.id, "deleted") * 2]
        while alive := [plan for plan in plans if not plan.done]:
            chance.choice(alive).step()
        assert normal(stored(site)) == after


@pytest.mark.parametrize(
    "operation",
    [pruning, deleting, deleting_run, copying, tidying],
    ids=lambda each: each.__name__,
)
def test_verify_beside_an_operation_in_many_orders(
    site: Face, operation: Callable[[Face, Thread], Stepped]
) -> None:
    """In 25 of their orders nothing that an operation does meanwhile is taken for damage."""
    thread = begun(site)
    site.collection.update_one({"checkpoint_id": thread.order[-1]}, {"$set": {"run_id": "run"}})
    left = stored(site)
    chance = random.Random(operation.__name__)
    for _ in range(25):
        refill(site, left)
        put = Put(warm=True, in_transaction=False)
        thread.order[3:] = []
        plans = [operation(site, replace(thread, order=list(thread.order)))]
        plans.append(putting(site, thread, put))
        report = Report()
        for name in (thread.id, "copy"):
            plan = walk.thread(surroundings(site), name, report, Options())
            plans.append(Stepped(site.another(), plan))
        while alive := [plan for plan in plans if not plan.done]:
            chance.choice(alive).step()
        assert report.wrong == 0, report.findings
        # A deletion makes orphans of what it has yet to delete.
        assert operation is deleting or report.orphan_blobs == report.orphan_writes == 0


def test_thread_that_began_again_keeps_its_state(site: Face) -> None:
    """What a late graph left under the same id goes, and the new line stays whole."""
    thread = fresh(site)
    run(site, delete.delete_thread(surroundings(site.another()), thread.id))
    for _ in range(2):
        thread.put(Put(warm=True, in_transaction=True))
    thread.face = site.another()
    thread.put(Put(warm=False, in_transaction=True, parent=None))
    at = thread.put(Put(warm=True, in_transaction=True))
    site.put_writes(at, [("messages", big(7, 50_000))], "task")
    back(site, by=2 * HOUR)
    assert verified(site).stateless == 2
    done = collected(site, gc.rule(HOUR))
    assert (done.checkpoints, done.writes) == (2, 0)
    assert is_clean(verified(site))
    rows = site.another().list(config(thread.id))
    assert [row.config["configurable"]["checkpoint_id"] for row in rows] == thread.order[:-3:-1]
    assert all(is_full(thread, row) for row in rows)
