"""Agents of Microsoft Agent Framework, in the shapes of its tutorials."""

from __future__ import annotations

import asyncio
import os
import sys

sys.path.pop(0)  # this folder has a file of the framework's name
sys.path.append(os.path.dirname(__file__))

from agent_framework import (
    Agent,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Executor,
    ResponseStream,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
    tool,
)
from agent_framework.openai import OpenAIChatCompletionClient
from pydantic import BaseModel
from serving import MODEL_URL, add, book, note, page, serve, wait

from parley.integrations import agent_framework


class Weather(BaseModel):
    """The weather somewhere."""

    city: str
    celsius: float


def client():
    return OpenAIChatCompletionClient(model="scripted-1", base_url=MODEL_URL, api_key="none")


class Echo(ChatMiddlewareLayer, BaseChatClient):
    """A client of the author's own, which says no finish reason."""

    def _inner_get_response(self, *, messages, stream, options, **more):
        async def updates():
            note("echo", "asked")
            said = Content.from_text("Hello!")
            yield ChatResponseUpdate(role="assistant", contents=[said])

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates)


class Plain(BaseChatClient):
    """A client of the author's own without layers, whose replies say what they used."""

    async def _inner_get_response(self, *, messages, stream, options, **more):
        used = Content.from_usage({"input_token_count": 7, "output_token_count": 3})

        async def updates():
            said = Content.from_text("Hello!")
            yield ChatResponseUpdate(role="assistant", contents=[said, used])

        made = ResponseStream(updates(), finalizer=ChatResponse.from_updates)
        return made if stream else await made.get_final_response()


class PlainStream(Plain):
    """The same, whose streams are there at once."""

    def _inner_get_response(self, **given):
        made = super()._inner_get_response(**given)
        return ResponseStream.from_awaitable(made) if given["stream"] else made


assistant = Agent(
    client(),
    name="assistant",
    description="Adds and books",
    instructions="You are a helpful assistant.",
    tools=[add, tool(book, approval_mode="always_require"), wait],
)
structured = Agent(
    client(),
    name="forecaster",
    description="Tells the weather",
    default_options={"response_format": Weather},
)


class Draft(Executor):
    """Writes a draft and asks whether it may go out."""

    @handler
    async def draft(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.request_info(f"May I send {text!r}?", bool)

    @response_handler
    async def sent(self, asked: str, may: bool, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output("sent" if may else "thrown away")


def workflow():
    return WorkflowBuilder(start_executor=Draft(id="draft"), name="letters").build()


class Plan(BaseModel):
    """A plan for a trip."""

    city: str


class Thing:
    """What an executor keeps by itself."""


class Planner(Executor):
    """Takes a plan of the author's own, and keeps more."""

    @handler
    async def plan(self, plan: Plan, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(plan.city)

    async def on_checkpoint_save(self):
        return {"thing": Thing()}


class Teller(Executor):
    """Tells where a plan leads."""

    @handler
    async def tell(self, city: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"to {city}")


def plans():
    planner = Planner(id="planner")
    return (
        WorkflowBuilder(start_executor=planner, name="plans")
        .add_edge(planner, Teller(id="teller"))
        .build()
    )


def writers():
    first, second = (Agent(client(), name=each) for each in ("first", "second"))
    return WorkflowBuilder(start_executor=first, name="writers").add_edge(first, second).build()


class Asked:
    """An agent of the author's own, which asks a client without a stream."""

    name = "asked"

    def create_session(self, *, session_id=None):
        return AgentSession(session_id=session_id)

    async def run(self, messages=None, *, stream=False, session=None):
        reply = await Plain().get_response([messages])

        async def updates():
            yield AgentResponseUpdate(contents=reply.messages[0].contents, role="assistant")

        return ResponseStream(updates(), finalizer=AgentResponse.from_updates)


counter = Agent(client(), name="counter", description="Counts")
leader = Agent(client(), name="leader", tools=[counter.as_tool(name="counter", arg_name="task")])
try:
    agent_framework.agent(plans)
except ValueError as error:
    note("types", str(error))


async def main():
    remote = os.environ["PARLEY_TEST_REMOTE"]
    return (
        Agent(client(), name="caller", tools=await agent_framework.tools(remote)),
        await agent_framework.sub_agent(remote),
    )


caller, forwarder = asyncio.run(main())
on_page = page("agent-framework")
serve(
    {
        "agent": agent_framework.agent(assistant),
        "small": agent_framework.agent(assistant, name="small", max_bytes=20_000),
        "structured": agent_framework.agent(structured),
        "caller": agent_framework.agent(caller),
        "forwarder": agent_framework.agent(forwarder),
        "workflow": agent_framework.agent(workflow),
        "echo": agent_framework.agent(Agent(Echo(), name="echo")),
        "plain": agent_framework.agent(Agent(PlainStream(), name="plain")),
        "layerless": agent_framework.agent(Asked()),
        "writers": agent_framework.agent(writers),
        "leader": agent_framework.agent(leader),
        "plans": agent_framework.agent(plans, checkpoint_types=["__main__:Plan"]),
        "things": agent_framework.agent(
            plans, name="things", checkpoint_types=["__main__:Plan", "__main__:Thing"]
        ),
        "page": on_page["served"],
        "page-caller": asyncio.run(on_page["concierge"](os.environ["PARLEY_TEST_REMOTE"])),
    }
)
