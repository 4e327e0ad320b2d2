"""Agents of the OpenAI Agents SDK, in the shapes of its tutorials."""

from __future__ import annotations

import asyncio
import dataclasses
import os

import agents
import msgspec
import serving
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from openai import AsyncOpenAI
from openai.types import responses
from pydantic import BaseModel

from parley import Agent
from parley.integrations import openai_agents


class Weather(BaseModel):
    city: str
    celsius: float


model = OpenAIChatCompletionsModel("scripted-1", AsyncOpenAI(max_retries=0))
add = agents.function_tool(serving.add)
book = agents.function_tool(serving.book, needs_approval=True)
wait = agents.function_tool(serving.wait)
agents.set_tracing_disabled(True)


@agents.function_tool
def draw() -> agents.ToolOutputImage:
    """Draw a picture."""
    return agents.ToolOutputImage(image_url="data:image/png;base64,iVBORw0KGgo=")


@agents.input_guardrail
async def polite(context, agent, given):
    text = given if isinstance(given, str) else str(given[-1]["content"])
    return agents.GuardrailFunctionOutput(output_info=None, tripwire_triggered="damn" in text)


@agents.output_guardrail
async def discreet(context, agent, output):
    return agents.GuardrailFunctionOutput(None, tripwire_triggered="secret" in output)


assistant = agents.Agent(
    name="Assistant",
    handoff_description="Adds, books, waits.",
    instructions="You are a helpful assistant.",
    tools=[add, book, wait, draw],
    model=model,
)
forecaster = agents.Agent(name="Forecaster", model=model, output_type=Weather)
guarded = agents.Agent(
    name="Guarded", model=model, input_guardrails=[polite], output_guardrails=[discreet]
)


class Responses(agents.Model):
    """A model of the Responses API: its reply is longer than it may be."""

    get_response = None

    async def stream_response(self, *given, **options):
        said = responses.ResponseOutputText(type="output_text", text="It", annotations=[])
        message = responses.ResponseOutputMessage(
            id="1", type="message", role="assistant", status="incomplete", content=[said]
        )
        yield responses.ResponseTextDeltaEvent.construct(
            type="response.output_text.delta", delta="It"
        )
        reply = responses.Response.construct(
            id="2",
            status="incomplete",
            incomplete_details=responses.response.IncompleteDetails(reason="max_output_tokens"),
            output=[message],
            usage=responses.ResponseUsage.construct(input_tokens=3, output_tokens=4),
        )
        yield responses.ResponseIncompleteEvent(
            type="response.incomplete", response=reply, sequence_number=2
        )


checker = agents.Agent(name="Checker", model=model)


@agents.input_guardrail
async def checked(context, agent, given):
    answer = await agents.Runner.run(checker, "count")
    return agents.GuardrailFunctionOutput(answer.final_output, tripwire_triggered=False)


counter = agents.Agent(name="Counter", model=model).as_tool("counter", "Counts")
expert = agents.Agent(name="Expert", handoff_description="Knows sums", tools=[add], model=model)
triage = agents.Agent(name="Triage", handoffs=[agents.handoff(expert)], model=model)


class Model(BaseModel):
    asked: int = 0


@dataclasses.dataclass
class Data:
    asked: int = 0


class Struct(msgspec.Struct):
    asked: int = 0


class Opaque:
    asked = 0


CONTEXTS = {
    "dict": lambda turn: {"asked": 0},
    "pydantic": lambda turn: Model(),
    "dataclass": lambda turn: Data(),
    "msgspec": lambda turn: Struct(),
    "opaque": lambda turn: Opaque(),
    "turn": lambda turn: {"turn": turn, "asked": 0},
}


def counting(context, agent):
    """Return instructions that say how often this context has seen a request."""
    state = context.context
    if isinstance(state, dict):
        state["asked"] += 1
        return f"asked {state['asked']}"
    state.asked += 1
    return f"asked {state.asked}"


careful = agents.Agent(name="Careful", instructions=counting, tools=[add, book], model=model)


@agents.function_tool(name_override="draw")
def draw_all() -> list:
    """Draw a picture and a text, as plain data."""
    return [
        {"type": "image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "file", "file_data": "aGVsbG8=", "filename": "hello.bin"},
        {"type": "text", "text": "drawn"},
    ]


@agents.function_tool(name_override="draw")
def flood() -> str:
    """Draw with letters."""
    return "x" * 600_000


plain = Agent("Plain", description="Runs the SDK by itself, without the adapter")


@plain.skill
async def run(message: str) -> str:
    return str((await agents.Runner.run(caller, message)).final_output)


async def callers():
    url = os.environ["PARLEY_TEST_REMOTE"]
    tools = await openai_agents.tools(url)
    caller = agents.Agent(name="Caller", tools=tools, model=model)
    return caller, await openai_agents.sub_agent(url)


if __name__ == "__main__":
    caller, remote = asyncio.run(callers())
    serving.serve(
        {
            "agent": openai_agents.agent(assistant, key="agent"),
            "structured": openai_agents.agent(forecaster),
            "caller": openai_agents.agent(caller),
            "guarded": openai_agents.agent(guarded),
            "page": serving.documented("openai-agents", "assistant.py")["served"],
            "plain": plain,
            "long": openai_agents.agent(
                agents.Agent(name="Long", tools=[flood], model=model), max_turns=None
            ),
            "triage": openai_agents.agent(triage),
            "boss": openai_agents.agent(
                agents.Agent(name="Boss", tools=[counter], input_guardrails=[checked], model=model)
            ),
            **{
                f"context-{name}": openai_agents.agent(careful, name=name, context=make)
                for name, make in CONTEXTS.items()
            },
            "drawer": openai_agents.agent(
                agents.Agent(name="Draws", tools=[draw_all], model=model), name="Drawer"
            ),
            "responses": openai_agents.agent(agents.Agent(name="Responses", model=Responses())),
            "frontdesk": openai_agents.agent(
                agents.Agent(name="Frontdesk", handoffs=[remote], model=model)
            ),
            "sqlite": openai_agents.agent(
                assistant,
                name="With a session",
                session=lambda thread: agents.SQLiteSession(
                    thread, str(serving.FILES / "sessions.db")
                ),
            ),
        }
    )
