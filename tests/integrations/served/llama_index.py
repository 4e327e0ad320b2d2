"""Agents, workflows and engines of LlamaIndex, in the shapes of its tutorials."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import serving

sys.path.pop(0)  # this file has the framework's name

from llama_index.core import Document, SummaryIndex
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms import ChatMessage, CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import (
    Context,
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StopEvent,
    Workflow,
    step,
)
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

import parley
from parley.integrations import llama_index


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    celsius: float


llm = OpenAILike(
    model="scripted-1",
    api_base=serving.MODEL_URL,
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    max_retries=0,
)


async def book(ctx: Context, city: str) -> str:
    """Book a room in a city."""
    answer = await ctx.wait_for_event(
        HumanResponseEvent,
        waiter_id=f"book {city}",
        waiter_event=InputRequiredEvent(prefix=f"May I book a room in {city}?", city=city),
        requirements={"city": city},
    )
    return serving.book(city) if answer.response == "yes" else "The caller said no."


book.__annotations__["ctx"] = Context
add = FunctionTool.from_defaults(serving.add)
wait = FunctionTool.from_defaults(async_fn=serving.wait)
assistant = FunctionAgent(
    name="Assistant",
    description="Adds, books, waits.",
    system_prompt="You are a helpful assistant.",
    tools=[add, book, wait],
    llm=llm,
)
forecaster = FunctionAgent(name="Forecaster", llm=llm, output_cls=Weather)


def team(second):
    first = FunctionAgent(name="front", description="Greets", llm=llm, can_handoff_to=[second.name])
    return AgentWorkflow(agents=[first, second], root_agent="front")


class Trip(StartEvent):
    city: str
    days: int = 5


class Planned(StopEvent):
    city: str
    hotel: str


class Halfway(Event):
    city: str


class Chosen(HumanResponseEvent):
    hotel: str = ""


class Planner(Workflow):
    """Plans a trip."""

    @step
    async def begin(self, ctx: Context, ev: Trip) -> InputRequiredEvent:
        serving.note("begin", ev.city)
        await ctx.store.set("city", ev.city)
        ctx.write_event_to_stream(Halfway(city=ev.city))
        return InputRequiredEvent(prefix=f"Which hotel in {ev.city} for {ev.days} days?")

    @step
    async def choose(self, ctx: Context, ev: Chosen) -> Planned:
        return Planned(city=await ctx.store.get("city"), hotel=ev.hotel or ev.response)


class Nights(HumanResponseEvent):
    nights: int


class Room(HumanResponseEvent):
    floor: str
    beds: int


class Renter(Workflow):
    """Asks for one field, then for two."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> InputRequiredEvent:
        return InputRequiredEvent(prefix="How many nights?")

    @step
    async def stay(self, ctx: Context, ev: Nights) -> StopEvent:
        room = await ctx.wait_for_event(
            Room, waiter_event=InputRequiredEvent(prefix=f"Which room for {ev.nights + 1} days?")
        )
        return StopEvent(result=f"{ev.nights} nights, floor {room.floor}, {room.beds} beds")


class Diary(Workflow):
    """Keeps a diary in the store of its context."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> InputRequiredEvent:
        return InputRequiredEvent(prefix="When?", city=ev.input)

    @step
    async def write(self, ctx: Context, ev: HumanResponseEvent) -> StopEvent:
        days = [*await ctx.store.get("days", default=[]), f"{ev.city} on {ev.response}"]
        await ctx.store.set("days", days)
        return StopEvent(result=", ".join(days))


class Relay(CustomLLM):
    """A model of the author's own, which says nothing of its usage."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="relay")

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=f"relayed {prompt}")

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        yield self.complete(prompt)


class Asker(Workflow):
    """Asks models itself, in each of the ways that there are."""

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        said = ChatMessage(content=ev.input)
        replies = await asyncio.gather(
            llm.acomplete(ev.input),
            llm.achat([said]),
            asyncio.to_thread(llm.complete, ev.input),
            llm.as_structured_llm(Weather).achat([said]),
            Relay().achat([said]),
        )
        async for each in await llm.astream_chat([said]):
            last = str(each.message.content)
        return StopEvent(result="; ".join([last, *map(str, replies)]))


class Silent(Workflow):
    """Asks a model, and has no result."""

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        await llm.acomplete(ev.input)
        return StopEvent()


def chat_engine(thread: str) -> SimpleChatEngine:
    """Chats."""
    return SimpleChatEngine.from_defaults(llm=llm)


plain = parley.Agent("Plain", description="Runs LlamaIndex by itself, without the adapter")


@plain.skill
async def run(message: str) -> str:
    handler = caller.run(user_msg=message)
    async for event in handler.stream_events():
        if isinstance(event, InputRequiredEvent):
            handler.ctx.send_event(HumanResponseEvent(response="Rome", task=event.task))
    return str(await handler)


def query_engine():
    """An index over a document; the whole of it is read."""
    text = "Parley was begun in a cold spring."
    index = SummaryIndex.from_documents([Document(text=text, metadata={"file_name": "a.txt"})])
    return index.as_query_engine(llm=llm)


async def remotes():
    url = os.environ["PARLEY_TEST_REMOTE"]
    return await llama_index.tools(url), await llama_index.sub_agent(url)


if __name__ == "__main__":
    tools, remote = asyncio.run(remotes())
    caller = FunctionAgent(name="Caller", tools=tools, llm=llm)
    back = FunctionAgent(name="back", description="Knows", llm=llm)
    serving.serve(
        {
            "agent": llama_index.agent(assistant, key="agent"),
            "structured": llama_index.agent(forecaster),
            "caller": llama_index.agent(caller),
            "team": llama_index.agent(team(back), name="Team"),
            "remote-team": llama_index.agent(team(remote), name="Remote team"),
            "planner": llama_index.agent(Planner(timeout=60)),
            "renter": llama_index.agent(Renter(timeout=60)),
            "asker": llama_index.agent(Asker(timeout=60)),
            "silent": llama_index.agent(Silent(timeout=60)),
            "diary": llama_index.agent(Diary(timeout=60)),
            "chat": llama_index.agent(chat_engine, name="Chat"),
            "query": llama_index.agent(query_engine(), name="Documents"),
            "page": serving.documented("llama-index", "assistant.py")["served"],
            "plain": plain,
        }
    )
