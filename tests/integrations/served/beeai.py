"""Agents and workflows of BeeAI, in the shapes of its tutorials."""

from __future__ import annotations

import asyncio
import os

from beeai_framework.adapters.openai import OpenAIChatModel
from beeai_framework.agents.react import ReActAgent
from beeai_framework.agents.requirement import RequirementAgent
from beeai_framework.agents.requirement.requirements.ask_permission import AskPermissionRequirement
from beeai_framework.memory import UnconstrainedMemory
from beeai_framework.tools import tool
from beeai_framework.workflows import Workflow
from beeai_framework.workflows.agent import AgentWorkflow
from pydantic import BaseModel
from serving import MODEL_URL, add, book, page, serve, wait

import parley
from parley.integrations import beeai
from parley.llm.current_turn import current_turn

MODEL = OpenAIChatModel("gpt-4o", base_url=MODEL_URL, api_key="none")


class Weather(BaseModel):
    """The weather somewhere."""

    city: str
    celsius: float


def agent(name, tools=(), **options):
    return RequirementAgent(
        llm=MODEL, name=name, description=f"The {name}", tools=list(tools), **options
    )


booking = tool(book)
assistant = agent(
    "assistant",
    [tool(add), booking, tool(wait)],
    requirements=[AskPermissionRequirement([booking])],
    final_answer_as_tool=False,
)


class Trip(BaseModel):
    """A trip that is planned."""

    city: str
    days: int = 0


async def ask_days(trip: Trip) -> str:
    turn = current_turn()
    trip.days = await turn.ask(f"How many days in {trip.city}?", answer=int)
    return Workflow.END


trips = Workflow(schema=Trip, name="trips")
trips.add_step("days", ask_days)

asks = parley.Agent("Asks", description="Says why a workflow that asks is not served")


@asks.skill
def why() -> str:
    """Say why."""
    team = AgentWorkflow(name="team")
    team.add_agent(assistant)
    try:
        beeai.agent(team)
    except ValueError as error:
        return str(error)
    return "it is served"


on_page = page("beeai")
remote = os.environ["PARLEY_TEST_REMOTE"]
shared = asyncio.run(beeai.tools(remote))
caller = agent("caller", shared, final_answer_as_tool=False)
plain = parley.Agent("Plain", description="Runs the framework by itself, with tools for all")


@plain.skill
async def run(message: str) -> str:
    result = await agent("caller", shared, final_answer_as_tool=False).run(message)
    return str(result.last_message.text)


choices = {"required", "none", "single", "auto"}
speaker = RequirementAgent(
    llm=OpenAIChatModel("gpt-4o", base_url=MODEL_URL, api_key="none", tool_choice_support=choices),
    name="speaker",
    description="Ends with a call of a tool",
)
team = AgentWorkflow(name="team")
team.add_agent(name="adder", role="Adds", llm=MODEL, tools=[tool(add)], final_answer_as_tool=False)
react = ReActAgent(llm=MODEL, tools=[tool(add)], memory=UnconstrainedMemory())
serve(
    {
        "agent": beeai.agent(assistant),
        "structured": beeai.agent(agent("forecaster"), response_format=Weather),
        "caller": beeai.agent(caller),
        "plain": plain,
        "asks": asks,
        "speaker": beeai.agent(speaker),
        "clerk": beeai.agent(
            agent("clerk", [tool(add)])
        ),  # its model cannot be made to call a tool
        "team": beeai.agent(team),
        "react": beeai.agent(react, name="react"),
        "workflow": beeai.agent(trips),
        "page": on_page["served"],
        "page-caller": asyncio.run(on_page["asker"](remote)),
    }
)
