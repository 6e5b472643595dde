"""Scenes: a thread with a past, one operation on it, and what must hold when it was interrupted."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pymongo.errors import PyMongoError

from tests.contract.samples import checkpoint, config, id_of, metadata
from tests.faces import Face, Sent, SyncFace

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig


@dataclass
class Scene:
    """A thread with two checkpoints on which one operation is carried out.

    Attributes:
        face: The victim.
        thread: The thread.
        known: The values that each checkpoint must have, by its id.
        new: The id of the checkpoint that the operation is about.
        values: The values that it gets.
    """

    face: Face
    thread: str = field(default_factory=lambda: f"thread {uuid.uuid4()}")
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    new: str = "3"
    values: dict[str, Any] = field(
        default_factory=lambda: {"chat": chat(190), "note": "third", "file": b"new" * 9_000}
    )

    def __post_init__(self) -> None:
        # The past is written by another saver: the victim's remembers nothing.
        past = self.past()
        for number, values in enumerate(({"chat": chat(100)}, {"chat": chat(130), "note": "2"}), 1):
            self._put(past, str(number), values)
            self.known[str(number)] = values

    def prepare(self) -> None:
        """Sets up, except where the operation itself is to do so."""
        self.face.setup()

    def past(self) -> Face:
        """A saver on a client that nothing happens to."""
        plain = SyncFace.__new__(SyncFace)
        plain.stage = self.face.stage
        plain.collection = self.face.collection
        plain.native = self.face.collection
        plain.saver = SyncFace.saver_type(plain.native)
        return plain

    def at(self, checkpoint_id: str | None = None) -> RunnableConfig:
        """The config of a checkpoint of the thread."""
        return config(self.thread, "", checkpoint_id)

    def _put(self, face: Face, checkpoint_id: str, values: dict[str, Any]) -> None:
        versions = {name: f"{int(checkpoint_id):032}.{name}" for name in values}
        parent = str(int(checkpoint_id) - 1) if int(checkpoint_id) > 1 else None
        made = checkpoint(values, versions, checkpoint_id=checkpoint_id)
        face.put(self.at(parent), made, metadata(step=int(checkpoint_id)), versions)

    def act(self) -> None:
        """Carries out the operation by the victim."""
        self._put(self.face, self.new, self.values)

    def check(self, *, done: bool) -> None:
        """Asserts that all is whole, and that the new checkpoint is there if that is certain."""
        found = {
            id_of(row): row.checkpoint["channel_values"] for row in self.past().list(self.at())
        }
        latest = self.past().get_tuple(self.at())
        assert latest is not None
        assert latest.checkpoint["channel_values"] == found[max(found)]
        expected = {**self.known, self.new: self.values}
        assert found == {key: expected[key] for key in found}
        assert self.known.keys() <= found.keys()
        assert self.new in found or not done

    def finish(self) -> None:
        """Carries the operation out again, and asserts that it is as if nothing had happened."""
        self.act()
        self.check(done=True)
        assert self.face.collection.count_documents({"thread_id": self.thread}) == 3


def chat(length: int) -> list[str]:
    """Returns a list that is stored in several segments, from some 70 items on."""
    return [f"message {number} " * 20 for number in range(length)]


class FirstPut(Scene):
    """A checkpoint is put by a saver that has to set up before."""

    def prepare(self) -> None:
        """The first put sets up."""


class PutAgain(Scene):
    """The newest checkpoint is put again, with other values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.new = "2"

    def check(self, *, done: bool) -> None:
        """As above; the checkpoint has either its old values or the new ones."""
        found = self.past().list(self.at())
        assert [id_of(row) for row in found] == ["2", "1"]
        newest, first = (row.checkpoint["channel_values"] for row in found)
        assert first == self.known["1"]
        assert newest == self.values or (not done and newest == self.known["2"])

    def finish(self) -> None:
        """As above, with two checkpoints."""
        self.act()
        self.check(done=True)
        assert self.face.collection.count_documents({"thread_id": self.thread}) == 2


class PutWrites(Scene):
    """Writes of a task: ordinary ones, where `special` also an interrupt that has a value."""

    special = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.special:
            self.past().put_writes(self.at("2"), [("__interrupt__", "old")], "task")

    def writes(self) -> list[tuple[str, Any]]:
        """What the task writes."""
        return [
            ("a", "x" * 20_000),
            *([("__interrupt__", "new")] if self.special else []),
            ("b", 2),
        ]

    def act(self) -> None:
        """Writes."""
        self.face.put_writes(self.at("2"), self.writes(), "task")

    def check(self, *, done: bool) -> None:
        """The checkpoint is whole, with some of the writes, or with all if that is certain."""
        found = self.past().get_tuple(self.at())
        assert found is not None
        assert found.checkpoint["channel_values"] == self.known["2"]
        pending = [(channel, value) for _, channel, value in found.pending_writes or ()]
        old = [("__interrupt__", "old")] if self.special else []
        assert all(write in [*self.writes(), *old] for write in pending)
        assert not done or sorted(map(repr, pending)) == sorted(map(repr, self.writes()))

    def finish(self) -> None:
        """Written again, each slot is one document."""
        self.act()
        self.check(done=True)
        slots = self.face.sibling(".writes").count_documents({"thread_id": self.thread})
        assert slots == len(self.writes())


class PutSpecialWrites(PutWrites):
    """Writes with one for a special slot."""

    special = True


class DeleteThread(Scene):
    """The thread is deleted."""

    def act(self) -> None:
        """Deletes."""
        self.face.delete_thread(self.thread)

    def check(self, *, done: bool) -> None:
        """What is still listed is whole."""
        found = {
            id_of(row): row.checkpoint["channel_values"] for row in self.past().list(self.at())
        }
        assert found == {key: self.known[key] for key in found}
        assert not done or not found

    def finish(self) -> None:
        """Deleted again, nothing of the thread is left anywhere."""
        self.act()
        for suffix in ("", ".writes", ".blobs"):
            assert self.face.sibling(suffix).count_documents({"thread_id": self.thread}) == 0


class Read(Scene):
    """The thread is read and listed by a saver that remembers nothing."""

    def act(self) -> None:
        """Reads."""
        found = self.face.get_tuple(self.at())
        assert found is not None
        assert found.checkpoint["channel_values"] == self.known["2"]
        rows = self.face.list(self.at())
        values = {id_of(row): row.checkpoint["channel_values"] for row in rows}
        assert values == self.known

    def check(self, *, done: bool) -> None:
        """Reading changes nothing."""

    def finish(self) -> None:
        """Reads again."""
        self.act()


SCENES = [Scene, FirstPut, PutAgain, PutWrites, PutSpecialWrites, DeleteThread, Read]


def undisturbed(scene: type[Scene], face: Face) -> list[Sent]:
    """Returns the commands of an operation that nothing happens to."""
    played = scene(face.another())
    played.prepare()
    with face.commands.recorded() as sent:
        played.act()
    assert sent
    played.check(done=True)
    played.finish()
    return sent


def interrupted(scene: Scene) -> BaseException | None:
    """Carries out an operation to which something happens, and checks the state that it leaves."""
    try:
        scene.act()
    except PyMongoError as error:
        scene.check(done=False)
        return error
    scene.check(done=True)
    return None
