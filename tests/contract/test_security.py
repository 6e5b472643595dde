"""Contract, "Identifiers and security": what reaches the server, is stored, and is printed."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pymongo.errors import ServerSelectionTimeoutError

from tests.contract.samples import (
    LARGE,
    Line,
    checkpoint,
    config,
    id_of,
    ids,
    metadata,
    values_of,
    writes_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langchain_core.runnables import RunnableConfig

    from tests.faces import Face, Sent

KEY = b"sixteen byte key"


@dataclass
class Custom:
    """A type that a strict serializer does not know."""

    x: int


class Tagging:
    """A serializer that counts its calls and marks what it wrote with its name."""

    def __init__(self, name: str) -> None:
        self.name, self.inner = name, JsonPlusSerializer()
        self.dumped: list[Any] = []

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        """Returns the type, marked, and the bytes, backwards."""
        self.dumped.append(value)
        kind, data = self.inner.dumps_typed(value)
        return f"{self.name}:{kind}", data[::-1]

    def loads_typed(self, payload: tuple[str, bytes]) -> Any:
        """Returns the value again."""
        kind, data = payload
        return self.inner.loads_typed((kind.partition(":")[2], data[::-1]))


def operators(value: Any) -> Iterator[str]:
    """Yields every key with a dollar, and every pattern, that a server would act on."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$literal":
                continue
            if key.startswith("$"):
                yield key
            yield from operators(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from operators(inner)
    elif isinstance(value, (re.Pattern, bson.Regex, bson.Code)):
        yield repr(value)


def conditions(sent: list[Sent]) -> list[Any]:
    """Returns the parts of commands that hold conditions, without what is only stored."""
    parts: list[Any] = []
    for one in sent:
        command = one.command
        parts += [command.get("filter"), command.get("pipeline"), command.get("sort")]
        parts += [update["q"] for update in command.get("updates", [])]
        parts += [deletion["q"] for deletion in command.get("deletes", [])]
    return parts


ATTACKS: list[dict[str, Any]] = [
    {"source": {"$ne": "x"}},
    {"source": {"$regex": ".*"}},
    {"source": {"$not": {"$in": ["x"]}}},
    {"source": re.compile(".*")},
    {"source": bson.Regex(".*")},
    {"source": bson.Code("return true")},
    {"$where": "return true"},
    {"$nor": [{"source": "x"}]},
    {"$jsonSchema": {}},
    {"$comment": "hi"},
    {"$expr": {"$function": {"body": "return true", "args": [], "lang": "js"}}},
    {"search.source": "loop"},
    {"source.": "loop"},
    {"source": "loop", "$nor": [{}]},
]


def test_filters_never_become_operators(mongo_face: Face, thread: str) -> None:
    """A filter that looks like an operator finds nothing, and is not sent as one."""
    Line(mongo_face, thread).put({"a": 1}, metadata=metadata())
    with mongo_face.commands.recorded() as plain:
        assert len(mongo_face.list(config(thread), filter={"source": "loop", "step": 1})) == 1
    usual = set(operators(conditions(plain)))
    for attack in ATTACKS:
        for where in (config(thread), None):
            with mongo_face.commands.recorded() as sent:
                assert mongo_face.list(where, filter=attack) == []
            assert set(operators(conditions(sent))) <= usual | {"$or", "$and"}


def test_data_never_become_operators(mongo_face: Face, thread: str) -> None:
    """Keys with dollars in state, writes, metadata and ids are stored as what they are."""
    bad: dict[str, Any] = {"$set": {"format": 9}, "$where": "true", "$rename": {"a": "b"}}
    line = Line(mongo_face, "$" + thread, "$ns")
    line.put({"$set": 1}, metadata=metadata(**bad), checkpoint_id="$id")
    with mongo_face.commands.recorded() as sent:
        at = line.put({**bad, "large": LARGE}, metadata=metadata(**bad), checkpoint_id="$id2")
        mongo_face.put_writes(at, [("$set", bad), ("__resume__", bad)], "$unset", "$inc")
        found = mongo_face.get_tuple(at)
        mongo_face.list(config(line.thread))
        mongo_face.list(None)
    assert set(operators(conditions(sent))).isdisjoint({"$where", "$rename", "$unset", "$inc"})
    assert found is not None
    assert found.checkpoint["channel_values"] == {**bad, "large": LARGE}
    assert found.metadata == metadata(**bad)
    assert found.pending_writes == [("$unset", "__resume__", bad), ("$unset", "$set", bad)]
    assert {d["format"] for d in mongo_face.collection.find()} == {1}
    line.check()


def test_serializer_is_read_at_each_call(face: Face, thread: str) -> None:
    """A `serde` that is replaced after construction is used from then on, for everything."""
    first, second = Tagging("first"), Tagging("second")
    face.saver.serde = first
    line = Line(face, thread)
    at = line.put({"a": [1], "large": LARGE})
    face.put_writes(at, [("x", 1)], "task")
    assert writes_of(face, at) == [("task", "x", 1)]
    before = len(first.dumped)
    assert before >= 4
    face.saver.serde = second
    line.put({"a": [2]})
    line.check()
    assert len(first.dumped) == before
    assert second.dumped


def test_metadata_go_through_the_serializer(face: Face, thread: str) -> None:
    """Metadata are written by `serde` as state is."""
    tagging = Tagging("tag")
    face.saver.serde = tagging
    Line(face, thread).put({"a": 1}, metadata=metadata(user="ada"))
    assert any(isinstance(d, dict) and d.get("user") == "ada" for d in tagging.dumped)


def test_payloads_are_the_serializers_own(mongo_face: Face, thread: str) -> None:
    """What is stored carries the type tag of a custom serializer, whatever it is."""
    mongo_face.saver.serde = Tagging("tag")
    at = Line(mongo_face, thread).put({"a": [1], "large": LARGE, "none": None})
    mongo_face.put_writes(at, [("x", [1])], "task")
    checkpoint_ = mongo_face.collection.find_one() or {}
    write = mongo_face.sibling(".writes").find_one() or {}
    blobs = list(mongo_face.sibling(".blobs").find())
    types = [checkpoint_["type"], checkpoint_["metadata_type"], write["type"]]
    assert {*types, *(blob["type"] for blob in blobs)} == {"tag:msgpack"}
    assert values_of(mongo_face, at) == {"a": [1], "large": LARGE, "none": None}


def strict() -> JsonPlusSerializer:
    """Returns a serializer that makes no objects of unknown types."""
    return JsonPlusSerializer(allowed_msgpack_modules=None)


def test_with_allowlist_is_a_copy_with_another_serializer(face: Face, thread: str) -> None:
    """The clone reads and writes the same threads; the original stays as strict as it was."""
    face.saver.serde = strict()
    allowed = face.another()
    allowed.saver = face.saver.with_allowlist([(Custom.__module__, "Custom")])
    assert allowed.saver is not face.saver
    assert type(allowed.saver) is type(face.saver)
    line = Line(face, thread)
    at = line.put({"custom": Custom(1), "large": [Custom(2), LARGE]})
    face.put_writes(at, [("x", Custom(3))], "task")
    assert values_of(allowed, at) == {"custom": Custom(1), "large": [Custom(2), LARGE]}
    assert writes_of(allowed, at) == [("task", "x", Custom(3))]
    assert values_of(face, at) == {"custom": {"x": 1}, "large": [{"x": 2}, LARGE]}
    line.face = allowed
    line.put({"custom": Custom(4)})
    line.check(allowed)


def test_with_allowlist_of_a_serializer_that_allows_all_is_itself(face: Face) -> None:
    """Where nothing changes LangGraph gets the saver itself."""
    face.saver.serde = JsonPlusSerializer(allowed_msgpack_modules=True)
    assert face.saver.with_allowlist([("a", "B")]) is face.saver


def test_with_allowlist_keeps_encrypting(mongo_face: Face, thread: str) -> None:
    """The clone of a saver with an encrypting serializer encrypts as well."""
    mongo_face.saver.serde = EncryptedSerializer.from_pycryptodome_aes(strict(), key=KEY)
    mongo_face.saver = mongo_face.saver.with_allowlist([(Custom.__module__, "Custom")])
    line = Line(mongo_face, thread)
    line.put({"custom": Custom(1), "text": "plaintext of the state"})
    line.check()
    assert b"plaintext" not in everything_stored(mongo_face)


def test_setup_is_shared_by_clones(mongo_face: Face, thread: str) -> None:
    """A clone does not make the indexes a second time."""
    mongo_face.saver.serde = strict()
    Line(mongo_face, thread).put({"a": 1})
    mongo_face.saver = mongo_face.saver.with_allowlist([("a", "B")])
    with mongo_face.commands.recorded() as sent:
        Line(mongo_face, thread + "2").put({"a": 1})
    assert [command.name for command in sent] == ["insert"]


def test_nothing_is_pickled(face: Face, thread: str) -> None:
    """By default the serializer has no pickle to fall back to, and reads none."""
    assert isinstance(face.saver.serde, JsonPlusSerializer)
    assert face.saver.serde.pickle_fallback is False
    with pytest.raises(TypeError):
        Line(face, thread).put({"a": lambda: None})


def everything_stored(face: Face) -> bytes:
    """Returns the raw BSON of every document in every collection of the face."""
    raw = face.collection.database.get_collection
    options: Any = bson.CodecOptions(document_class=RawBSONDocument)
    names = face.collection.database.list_collection_names(
        filter={"name": {"$regex": "^" + re.escape(face.collection.name)}}
    )
    assert len(names) >= 3
    return b"".join(
        document.raw for name in names for document in raw(name, codec_options=options).find()
    )


@pytest.fixture
def encrypted(mongo_face: Face) -> Face:
    """A face whose saver encrypts."""
    return mongo_face.another(serde=EncryptedSerializer.from_pycryptodome_aes(key=KEY))


def fill_with_secrets(face: Face, thread: str) -> RunnableConfig:
    """Puts the word `secret` into everything that is content and not an identifier."""
    line = Line(face, thread)
    secret = metadata(user="secret user", deep={"secret key": ["secret"]}, secret_list=["secret"])
    line.put({"text": "secret text", "large": ["secret", LARGE]}, metadata=secret)
    line.put({"large": ["secret", LARGE, "secret too"], "n": 1}, metadata=secret)
    at = line.put({"map": {"secret key": "secret value"}}, metadata=secret)
    face.put_writes(
        at,
        [("x", "secret write"), ("y", ["secret", LARGE]), ("__interrupt__", "secret question")],
        "task",
    )
    line.check()
    return at


def test_secrets_would_be_seen(mongo_face: Face, thread: str) -> None:
    """Without encryption the words are found: the search of the next tests can find something."""
    fill_with_secrets(mongo_face, thread)
    stored = everything_stored(mongo_face)
    for secret in (b"secret text", b"secret too", b"secret value", b"secret write", b"secret user"):
        assert secret in stored


def test_encrypting_serializer_leaves_no_plaintext(encrypted: Face, thread: str) -> None:
    """State, writes and metadata are in no collection as plain text; reading gives them back."""
    at = fill_with_secrets(encrypted, thread)
    stored = everything_stored(encrypted).replace(b"secret_list", b"")
    assert b"secret" not in stored
    assert b"large large" not in stored
    found = encrypted.get_tuple(at)
    assert found is not None
    assert found.checkpoint["channel_values"]["map"] == {"secret key": "secret value"}
    assert found.pending_writes is not None
    assert [value for _, _, value in found.pending_writes] == [
        "secret question",
        "secret write",
        ["secret", LARGE],
    ]


def test_encrypted_metadata_are_searchable_by_a_few_keys_only(encrypted: Face, thread: str) -> None:
    """With encryption `search` holds source, step and run_id, and nothing else."""
    at: RunnableConfig = {**config(thread), "metadata": {"run_id": "run", "user": "secret user"}}
    encrypted.put(at, checkpoint(), metadata(other="secret"), {})
    document = encrypted.collection.find_one()
    assert document is not None
    assert document["search"] == {"source": "loop", "step": 1, "run_id": "run"}


def test_filters_work_on_encrypted_metadata(encrypted: Face, thread: str) -> None:
    """What MongoDB cannot see is compared in Python all the same."""
    for n in range(4):
        given = metadata(step=n, user=f"user {n % 2}", tags={"n": [n]})
        encrypted.put(config(thread), checkpoint(checkpoint_id=f"id {n}"), given, {})
    samples: list[tuple[dict[str, Any], list[str]]] = [
        ({"user": "user 1"}, ["id 3", "id 1"]),
        ({"user": "user 0", "step": 2}, ["id 2"]),
        ({"tags": {"n": [3]}}, ["id 3"]),
        ({"source": "loop", "step": 1.0}, ["id 1"]),
        ({"user": None}, []),
        ({"nobody": None}, ["id 3", "id 2", "id 1", "id 0"]),
        ({"user": {"$ne": 1}}, []),
    ]
    found = [(given, ids(encrypted.list(config(thread), filter=given))) for given, _ in samples]
    assert found == samples
    assert ids(encrypted.list(None, filter={"user": "user 1"}, limit=1)) == ["id 3"]


def test_encryption_may_begin_later(mongo_face: Face, thread: str) -> None:
    """A thread that was begun in plain text goes on encrypted, and all of it reads."""
    line = Line(mongo_face, thread)
    line.put({"list": [LARGE], "a": 1})
    mongo_face.saver.serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    line.put({"list": [LARGE, "secret"]})
    line.put({"a": "secret"})
    for reader in (mongo_face, mongo_face.another(serde=mongo_face.saver.serde)):
        line.check(reader)
    assert b"secret" not in everything_stored(mongo_face)


def test_another_key_reads_nothing(encrypted: Face, thread: str) -> None:
    """With another key reading is an error of the cipher, not another state."""
    fill_with_secrets(encrypted, thread)
    other = encrypted.another(serde=EncryptedSerializer.from_pycryptodome_aes(key=KEY[::-1]))
    with pytest.raises(ValueError, match="MAC"):
        other.get_tuple(config(thread))


def test_nothing_prints_or_logs_payloads(
    mongo_face: Face,
    thread: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Saver and package print nothing, and log no content of state, writes or metadata."""
    with caplog.at_level(logging.DEBUG, logger="mongosaver"):
        fill_with_secrets(mongo_face, thread)
        mongo_face.list(None, filter={"user": "secret user"})
        mongo_face.delete_thread(thread)
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("mongosaver")]
    assert "secret" not in "".join(ours) + repr(mongo_face.saver) + str(mongo_face.saver)
    printed = capfd.readouterr()
    assert "secret" not in printed.out + printed.err


def test_nothing_prints_or_logs_a_password(
    mongo_face: Face, lost_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A URI's password is in no text of the saver, nor in the error of a server that is away."""
    away = mongo_face.another()
    away.saver = mongo_face.saver_type(lost_client["db"]["checkpoints"])
    with (
        caplog.at_level(logging.DEBUG, logger="mongosaver"),
        pytest.raises(ServerSelectionTimeoutError) as error,
    ):
        away.get_tuple(config("t"))
    texts = [repr(away.saver), str(away.saver), str(error.value), caplog.text]
    assert "hunter2" not in "".join(texts)


def test_ids_of_another_thread_lead_nowhere(face: Face, thread: str) -> None:
    """A checkpoint's id together with another thread's id finds nothing."""
    at = Line(face, thread).put({"a": "of the first"})
    Line(face, thread + "2").put({"a": "of the second"})
    stolen = config(thread + "2", "", id_of(at))
    assert face.get_tuple(stolen) is None
    assert face.list(stolen) == []
