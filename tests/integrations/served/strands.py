"""Agents of Strands, in the shapes of its tutorials."""

from __future__ import annotations

import asyncio
import os
import sys

import serving

sys.path.pop(0)  # this file has the framework's name

from pydantic import BaseModel
from strands import Agent, ToolContext, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.models.openai import OpenAIModel
from strands.multiagent import GraphBuilder, Swarm
from strands.session.file_session_manager import FileSessionManager

import parley
from parley.integrations import strands


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    celsius: float


def model():
    client = {"api_key": "none", "base_url": serving.MODEL_URL, "max_retries": 0}
    return OpenAIModel(client_args=client, model_id="scripted-1")


@tool(context=True)
def book(city: str, tool_context: ToolContext) -> str:
    """Book a room in a city."""
    answer = tool_context.interrupt("book", reason={"question": "May I book?", "city": city})
    return serving.book(city) if str(answer).lower() == "yes" else "The caller said no."


@tool
def draw() -> dict:
    """Draw a picture."""
    image = {"format": "png", "source": {"bytes": bytes.fromhex("89504e470d0a1a0a")}}
    return {"status": "success", "content": [{"image": image}]}


add, wait = tool(serving.add), tool(serving.wait)
assistant = Agent(
    name="Assistant",
    description="Adds, books, waits.",
    system_prompt="You are a helpful assistant.",
    model=model(),
    tools=[add, book, wait, draw],
    conversation_manager=SlidingWindowConversationManager(window_size=400),
)
forecaster = Agent(name="Forecaster", model=model(), structured_output_model=Weather)


@tool
def counter(said: str) -> str:
    """Ask an agent that counts."""
    return str(Agent(model=model(), callback_handler=None)(said))


@tool
async def blocker(said: str) -> str:
    """Ask an agent that counts, while the event loop waits."""
    return str(Agent(model=model(), callback_handler=None)(said))


def with_a_session(thread: str) -> Agent:
    """Keeps its sessions in files."""
    manager = FileSessionManager(session_id=thread, storage_dir=str(serving.FILES / "sessions"))
    return Agent(model=model(), tools=[add, book], session_manager=manager)


def graph(thread: str):
    """Researches, then writes."""
    builder = GraphBuilder()
    builder.add_node(Agent(name="researcher", model=model(), tools=[add]), "researcher")
    builder.add_node(Agent(name="writer", model=model(), tools=[book]), "writer")
    builder.add_edge("researcher", "writer")
    return builder.build()


def swarm(thread: str):
    """Two agents that hand over to each other."""
    return Swarm([Agent(name="front", model=model()), Agent(name="back", model=model())])


def remote_graph(thread: str):
    """Asks a remote agent, then repeats what it said."""
    builder = GraphBuilder()
    builder.add_node(remote, "remote")
    builder.add_node(Agent(name="writer", model=model()), "writer")
    builder.add_edge("remote", "writer")
    return builder.build()


plain = parley.Agent("Plain", description="Runs Strands by itself, without the adapter")


@plain.skill
async def run(message: str) -> str:
    agent = Agent(model=model(), tools=tools, callback_handler=None)
    result = await agent.invoke_async(message)
    answers = [
        {"interruptResponse": {"interruptId": each.id, "response": "Rome"}}
        for each in result.interrupts or ()
    ]
    return str(await agent.invoke_async(answers))


async def remotes():
    url = os.environ["PARLEY_TEST_REMOTE"]
    return await strands.tools(url), await strands.sub_agent(url)


if __name__ == "__main__":
    tools, remote = asyncio.run(remotes())
    serving.serve(
        {
            "agent": strands.agent(assistant, key="agent"),
            "structured": strands.agent(forecaster),
            "caller": strands.agent(Agent(name="Caller", model=model(), tools=tools)),
            "boss": strands.agent(Agent(model=model(), tools=[counter, blocker]), name="Boss"),
            "session": strands.agent(with_a_session, name="With a session"),
            "graph": strands.agent(graph, name="Graph"),
            "swarm": strands.agent(swarm, name="Swarm"),
            "remote-graph": strands.agent(remote_graph, name="Remote graph"),
            "page": serving.documented("strands", "assistant.py")["served"],
            "plain": plain,
        }
    )
