"""A travel desk: an agent with tools and no model API.

The model is scripted, so that the demo runs anywhere and always the same; everything else is what
an agent in production has: a chat model with bound tools, one task for each tool call, an approval.
What the tools do to the outside world is written to a ledger, a file of one line per action. It
survives every process, and it alone tells whether something was done twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send, interrupt

PRICE = 420


@dataclass
class World:
    """What lies outside the graph: the ledger, and a hotel whose desk can be closed."""

    ledger: Path
    # None where the hotel is open. A closed one refuses once this is true, and not before: so the
    # order of two tasks that run at the same time is no matter of luck.
    hotel_refuses_when: Callable[[], bool] | None = None

    def note(self, action: str) -> None:
        """Add one line to the ledger, on disk before this returns."""
        with self.ledger.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {action}\n")
            file.flush()
            os.fsync(file.fileno())

    def done(self, action: str) -> list[int]:
        """Return the processes that did ``action``, one entry for each time it was done."""
        if not self.ledger.exists():
            return []
        lines = [line.split(" ", 1) for line in self.ledger.read_text("utf-8").splitlines()]
        return [int(pid) for pid, what in lines if what == action]


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until a condition is true, or for so long."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)


class OneCall(TypedDict):
    """What the task for one tool call gets."""

    call: ToolCall


def make_tools(world: World) -> dict[str, BaseTool]:
    """Return the desk's tools by name."""

    @tool
    def read_guide(city: str) -> str:
        """Return the travel guide of a city."""
        world.note(f"read_guide {city}")
        # Long enough that the message list outgrows the checkpoint document.
        walks = [f"Walk {n}: start at tram stop {n * 7}, leave by gate {n}." for n in range(1, 401)]
        return "\n".join([f"{city}: {len(walks)} walks.", *walks])

    @tool
    def book_flight(city: str) -> str:
        """Book a flight."""
        world.note("book_flight")
        return f"Flight to {city} booked."

    @tool
    def book_hotel(city: str) -> str:
        """Book a hotel."""
        world.note("book_hotel asked")
        if world.hotel_refuses_when is not None:
            wait_for(world.hotel_refuses_when)
            raise ConnectionError("the hotel does not answer")
        world.note("book_hotel")
        return f"Hotel in {city} booked."

    @tool
    def pay(amount: int) -> str:
        """Pay, once a person has agreed."""
        answer = interrupt(f"Pay {amount} euros?")
        if answer != "yes":
            return "Not paid."
        world.note("pay")
        return f"Paid {amount} euros."

    return {each.name: each for each in (read_guide, book_flight, book_hotel, pay)}


class ScriptedModel(BaseChatModel):
    """A chat model that decides by the last message alone.

    A fake model with a list of replies would count them in memory, and start from the first one in
    every new process. This one, like a real model, has nothing but the conversation.
    """

    on_call: Callable[[], None]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model itself: the script knows the tools."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.on_call()
        return ChatResult(generations=[ChatGeneration(message=_reply(messages[-1]))])


def _reply(last: BaseMessage) -> AIMessage:
    if isinstance(last, ToolMessage):
        if last.name == "read_guide":
            return AIMessage(f"The guide says: {str(last.content).splitlines()[0]}")
        if last.name == "pay":
            return AIMessage(f"{last.content} Have a good trip!")
        return _calls(("pay", {"amount": PRICE}))
    text = str(last.content)
    city = text.rstrip("?.").rsplit(" ", 1)[-1]
    if text.startswith("Book"):
        return _calls(("book_flight", {"city": city}), ("book_hotel", {"city": city}))
    return _calls(("read_guide", {"city": city}))


def _calls(*calls: tuple[str, dict[str, Any]]) -> AIMessage:
    return AIMessage(
        "",
        tool_calls=[
            {
                "name": name,
                "args": args,
                "id": f"{name}-{args.get('city', 'trip')}",
                "type": "tool_call",
            }
            for name, args in calls
        ],
    )


def build(
    checkpointer: BaseCheckpointSaver[Any], world: World
) -> CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]:
    """Return the compiled agent: the model calls tools until it has nothing more to call."""
    tools = make_tools(world)
    model = ScriptedModel(on_call=lambda: world.note("model")).bind_tools(list(tools.values()))

    def ask_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def use_tool(state: OneCall) -> dict[str, Any]:
        call = state["call"]
        return {"messages": [tools[call["name"]].invoke(call)]}

    def route(state: MessagesState) -> list[Send] | str:
        last = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        # One task for each call: when one fails, the others' results are kept.
        return [Send("tool", OneCall(call=call)) for call in calls] or END

    builder = StateGraph(MessagesState)
    builder.add_node("model", ask_model)
    builder.add_node("tool", use_tool)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route, ["tool", END])
    builder.add_edge("tool", "model")
    return builder.compile(checkpointer=checkpointer)


def short(message: BaseMessage) -> str:
    """Return a message in a few words."""
    if isinstance(message, AIMessage) and message.tool_calls:
        calls = (
            f"{call['name']}({', '.join(str(value) for value in call['args'].values())})"
            for call in message.tool_calls
        )
        return "model calls " + ", ".join(calls)
    who = {HumanMessage: "user", AIMessage: "model", ToolMessage: message.name}.get(type(message))
    first, _, rest = str(message.content).partition("\n")
    return f"{who or 'system'}: {first}" + (f" (+{len(rest) // 1024} KB)" if rest else "")
