"""Agents of Pydantic AI, served."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

sys.path.pop(0)  # this folder has a file of the framework's name
sys.path.append(os.path.dirname(__file__))

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    BinaryContent,
    CallDeferred,
    DeferredToolRequests,
    ModelRetry,
    RunContext,
    UsageLimits,
)
from serving import COMING_FROM, MODEL_URL, add, book, documented, serve, wait

import parley
from parley.integrations import pydantic_ai
from parley.integrations.pydantic_ai.serving import RemoteToolset

os.environ["OPENAI_BASE_URL"] = MODEL_URL
MODEL = "openai-chat:scripted-1"


provider = TracerProvider()
trace.set_tracer_provider(provider)
traced = Agent(MODEL, name="Traced")
traced.instrument = True


@traced.tool_plain
def position() -> str:
    """Return the current span: its kind of operation, and its trace."""
    span: Any = trace.get_current_span()
    operation = span.attributes["gen_ai.operation.name"]
    return f"{operation} {span.get_span_context().trace_id:032x}"


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    celsius: float


class Flight(BaseModel):
    """A flight."""

    number: str


class NoFlight(BaseModel):
    """There is none."""

    reason: str


@dataclass
class Desk:
    """What tools get: the caller's context."""

    context_id: str


helper = Agent(MODEL, name="Travel helper", description="Helps with travel", deps_type=Desk)
helper.tool_plain(add)
helper.tool_plain(requires_approval=True)(book)
helper.tool_plain(wait)


@helper.tool
def where(ctx: RunContext[Desk]) -> str:
    """Say in which context this is."""
    return ctx.deps.context_id


@helper.tool
def pay(ctx: RunContext[Desk], amount: int) -> str:
    """Pay an amount; more than ten has to be approved."""
    if amount > 10 and not ctx.tool_call_approved:
        raise ApprovalRequired
    return f"paid {amount}"


@helper.tool
def apply(ctx: RunContext[Desk], days: int) -> str:
    """Apply for leave; somebody decides later."""
    raise CallDeferred


@helper.tool
def which(ctx: RunContext[Desk], question: str) -> str:
    """Ask the user."""
    raise CallDeferred(kind="question")


checked = Agent(MODEL, name="Checked", output_type=[str, DeferredToolRequests])


@checked.output_validator
def loud(output: str) -> str:
    """Say it loud."""
    if "whisper" in output:
        raise ModelRetry("Say something else than whisper")
    return output.upper()


def picture(text: str) -> BinaryContent:
    """Draw a text."""
    return BinaryContent(text.encode(), media_type="image/png")


async def agents() -> dict:
    """Return the agents by the features that they have."""
    remote = os.environ["PARLEY_TEST_REMOTE"]
    caller = Agent(MODEL, name="Caller", toolsets=[await pydantic_ai.toolset(remote)])
    serving = {
        "agent": pydantic_ai.agent(helper, deps_of=lambda turn: Desk(turn.context_id)),
        "traced": pydantic_ai.agent(traced),
        "structured": pydantic_ai.agent(Agent(MODEL, name="Forecaster", output_type=Weather)),
        "caller": pydantic_ai.agent(caller),
        "checked": pydantic_ai.agent(checked),
        "painter": pydantic_ai.agent(Agent(MODEL, name="Painter", output_type=picture)),
        "limited": pydantic_ai.agent(
            Agent(MODEL, name="Limited", tools=[add]), usage_limits=UsageLimits(request_limit=1)
        ),
        "search": pydantic_ai.agent(
            Agent(MODEL, name="Search", output_type=Flight | NoFlight | str)
        ),
        "short": pydantic_ai.agent(Agent(MODEL, name="Short"), max_messages=2),
        "needs-deps": needs_deps(),
        "page": pydantic_ai.agent(documented("pydantic-ai", "pydantic_helper.py")["helper"]),
        "moved": documented(COMING_FROM, "pydantic_on_parley.py")["agent"],
        "outside": outside(remote),
    }
    return serving


def needs_deps() -> parley.Agent:
    """Return an agent that says why an agent that needs dependencies is not served without."""
    agent = parley.Agent("Needs deps")

    @agent.skill
    def why() -> str:
        """Say why."""
        try:
            pydantic_ai.agent(helper)
        except ValueError as error:
            return str(error)
        return "it is served"

    for each in (Agent(MODEL), Agent(MODEL, deps_type=Desk | None), Agent(MODEL, deps_type=object)):
        pydantic_ai.agent(each)  # None is what these take
    return agent


def outside(url: str) -> parley.Agent:
    """Return an agent that runs the page's caller as a program without Parley does."""
    page = documented("pydantic-ai", "pydantic_caller.py")
    agent = parley.Agent("Outside")

    @agent.skill
    async def call(said: str, answer: str) -> str:
        """Run the caller of the page outside of a turn."""
        return await _outside(page["ask"](url, said, answer))

    @agent.skill
    async def tell(said: str) -> str:
        """Ask an agent whose output cannot be a deferred call."""

        async def run() -> str:
            toolset: RemoteToolset = await pydantic_ai.toolset(url, defer_questions=False)
            return (await Agent(MODEL, toolsets=[toolset]).run(said)).output

        return await _outside(run())

    return agent


async def _outside(run: Coroutine[Any, Any, str]) -> str:
    """Run a coroutine in a thread, which knows of no turn."""
    with ThreadPoolExecutor(1) as pool:
        return await asyncio.wrap_future(pool.submit(asyncio.run, run))


serve(asyncio.run(agents()))
