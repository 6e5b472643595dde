"""What is stored in the benchmark: messages, threads and graphs, the same for every saver.

A message is about 765 bytes of msgpack, as a chat of ordinary answers has them, and its text
compresses about as English does (words of a fixed vocabulary, the frequent ones more often).
Everything comes from seeded generators: each saver gets the same values.
"""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.entries import Session

TEXT_BYTES = 570
# What LangGraph 1.x writes as a checkpoint's `v`; older ones are migrated when they are read.
FORMAT = 4


def _vocabulary(size: int) -> list[str]:
    draw = random.Random(1)
    syllables = [a + b for a in "bcdfglmnprst" for b in ("a", "e", "i", "o", "u", "en", "er")]
    return ["".join(draw.choices(syllables, k=draw.choice((1, 2, 2, 3)))) for _ in range(size)]


_WORDS = _vocabulary(2000)
_FREQUENCIES = [1 / (rank + 3) for rank in range(len(_WORDS))]


class Writer:
    """Writes messages and texts; two writers with one seed write the same."""

    def __init__(self, seed: int = 0) -> None:
        self.draw = random.Random(seed)
        self.written = 0

    def text(self, size: int = TEXT_BYTES) -> str:
        """A text of exactly `size` characters, one byte each."""
        words = self.draw.choices(_WORDS, _FREQUENCIES, k=size // 3)
        text = " ".join(words)
        while len(text) < size:
            text += " " + text
        return text[:size]

    def message(self) -> AnyMessage:
        """The next message of a chat: a human's, then the model's, and so on."""
        kind = (HumanMessage, AIMessage)[self.written % 2]
        self.written += 1
        return kind(self.text(), id=str(uuid.UUID(int=self.draw.getrandbits(128), version=4)))


def payload_bytes(value: Any) -> int:
    """How many bytes the standard serializer makes of a value."""
    return len(JsonPlusSerializer().dumps_typed(value)[1])


def config_of(thread_id: str, checkpoint_id: str | None = None) -> dict[str, Any]:
    """The config of a thread's latest checkpoint, or of one checkpoint."""
    configurable = {"thread_id": thread_id, "checkpoint_ns": ""}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


# ------------------------------------------------------------------ a thread without its graph


class Chat:
    """A thread that is written as LangGraph writes a chat, put by put, without running a graph.

    So that a saver's operation can be timed alone, and at a given length: `sibling` puts go on the
    same parent again and again (as regenerating the last answer does), and the thread stays as long
    as it is.
    """

    def __init__(self, session: Session, thread_id: str, seed: int = 0) -> None:
        self.session = session
        self.thread_id = thread_id
        self.writer = Writer(seed)
        self.messages: list[AnyMessage] = []
        self.tip: str | None = None
        self.version = session.next_version(None)

    def grow_to(self, length: int) -> None:
        """Puts one checkpoint per message until the thread is so long."""
        while len(self.messages) < length:
            self.messages.append(self.writer.message())
            operation, self.tip, self.version = self.put(self.messages)
            operation()

    def sibling(self) -> Callable[[], Any]:
        """The put of one message more on the tip; the thread itself stays as it is."""
        return self.put([*self.messages, self.writer.message()])[0]

    def unchanged(self) -> Callable[[], Any]:
        """The put of a step that left the messages alone."""
        return self.put(self.messages, grown=False)[0]

    def put(
        self, messages: Sequence[AnyMessage], *, grown: bool = True
    ) -> tuple[Callable[[], Any], str, Any]:
        """The put of a checkpoint on the tip, its id and its version of the messages."""
        next_version = self.session.next_version(self.version)
        version = next_version if grown else self.version
        checkpoint = empty_checkpoint()
        checkpoint["v"] = FORMAT
        checkpoint["id"] = str(uuid6())
        checkpoint["channel_values"] = {"messages": list(messages), "branch:to:agent": None}
        checkpoint["channel_versions"] = {
            "__start__": version,
            "messages": version,
            "branch:to:agent": next_version,
        }
        checkpoint["versions_seen"] = {
            "__input__": {},
            "__start__": {"__start__": version},
            "agent": {"branch:to:agent": next_version},
        }
        new = {"branch:to:agent": next_version}
        if grown:
            new["messages"] = version
        operation = self.session.put(
            config_of(self.thread_id, self.tip),
            checkpoint,
            {"source": "loop", "step": len(self.messages), "parents": {}},
            new,
        )
        return operation, checkpoint["id"], version

    def writes(self, checkpoint_id: str | None = None) -> Callable[[], Any]:
        """The put_writes of a task that answered, by default on a checkpoint of its own."""
        return self.session.put_writes(
            config_of(self.thread_id, checkpoint_id or str(uuid6())),
            [("messages", [self.writer.message()]), ("branch:to:agent", None)],
            str(uuid.UUID(int=self.writer.draw.getrandbits(128), version=4)),
        )

    def latest(self) -> Callable[[], Any]:
        """The get_tuple of the latest checkpoint."""
        return self.session.get_tuple(config_of(self.thread_id))


# --------------------------------------------------------------------------------------- graphs


class ChatState(TypedDict):
    """The state of a chat."""

    messages: Annotated[list[AnyMessage], add_messages]


def chat_graph(saver: Any, writer: Writer) -> Any:
    """A chat: three checkpoints a turn, as any graph of one agent node has them."""

    def answer(state: ChatState) -> dict[str, Any]:  # noqa: ARG001
        return {"messages": [writer.message()]}

    async def answer_async(state: ChatState) -> dict[str, Any]:
        return answer(state)

    builder = StateGraph(ChatState)
    builder.add_node("agent", RunnableLambda(answer, answer_async))
    builder.add_edge(START, "agent")
    builder.add_edge("agent", END)
    return builder.compile(checkpointer=saver)


def chat_turn(session: Session, graph: Any, thread_id: str, writer: Writer) -> Callable[[], Any]:
    """One turn of the chat: a question goes in, an answer comes out."""
    return session.invoke(graph, {"messages": [writer.message()]}, config_of(thread_id))


def steps_graph(saver: Any, steps: int) -> Any:
    """A graph of so many nodes in a row, each of which adds a message."""
    writer = Writer(7)

    def node(message: AnyMessage) -> Any:
        async def add(state: ChatState) -> dict[str, Any]:  # noqa: ARG001
            return {"messages": [message]}

        return add

    builder = StateGraph(ChatState)
    names = [f"step_{number}" for number in range(steps)]
    for name in names:
        builder.add_node(name, node(writer.message()))
    for before, after in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(before, after)
    return builder.compile(checkpointer=saver)
