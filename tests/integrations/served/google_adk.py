"""Agents of Google ADK, served."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps import App
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes, OAuth2Auth
from google.adk.auth.auth_schemes import OpenIdConnectWithConfig
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events import Event
from google.adk.events.event_actions import EventActions
from google.adk.events.request_input import RequestInput
from google.adk.models.apigee_llm import ApigeeLlm
from google.adk.models.lite_llm import LiteLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.models.registry import LLMRegistry
from google.adk.runners import InMemoryRunner, Runner
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext, exit_loop
from google.adk.workflow import Workflow
from google.genai import types
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel
from serving import COMING_FROM, FILES, MODEL_URL, add, book, documented, serve, wait

from parley import Agent, Turn
from parley.integrations import google_adk
from parley.integrations.google_adk.sessions import ContextSessions


class Endpoint(ApigeeLlm):
    """The OpenAI-compatible endpoint, for every model named Gemini.

    Usage comes after the last chunk, which ADK's own class leaves out.
    """

    def __init__(self, *, model: str) -> None:
        super().__init__(model="apigee/openai/scripted-1", proxy_url=MODEL_URL)

    @classmethod
    def supported_models(cls) -> list[str]:
        return ["gemini-.*"]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        whole, usage = None, None
        async for response in super().generate_content_async(llm_request, stream):
            usage = response.usage_metadata or usage
            if not response.partial:
                whole = response
            elif response.content is not None:
                yield response
        if whole is not None:
            whole.usage_metadata = usage
            yield whole


LLMRegistry.register(Endpoint)
MODEL = "gemini-2.5-flash"


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    celsius: float


class Greeter(BaseAgent):
    """An agent without a model."""

    async def _run_async_impl(self, ctx):
        said = types.Content(role="model", parts=[types.Part(text="Hello from a custom agent.")])
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=said)


def apply(days: int) -> dict:
    """Apply for leave; somebody decides later."""
    return {"status": "pending", "days": days}


async def draw(tool_context: ToolContext) -> str:
    """Draw a picture."""
    picture = types.Part(inline_data=types.Blob(data=b"pixels", mime_type="image/png"))
    version = await tool_context.save_artifact("picture.png", picture)
    return f"drawn {version}"


LOGIN = AuthConfig(
    auth_scheme=OpenIdConnectWithConfig(
        authorization_endpoint="https://login.test/authorize",
        token_endpoint="https://login.test/token",
        scopes=["files"],
    ),
    raw_auth_credential=AuthCredential(
        auth_type=AuthCredentialTypes.OPEN_ID_CONNECT,
        oauth2=OAuth2Auth(client_id="app", client_secret="the-client-secret"),
    ),
)


def read_files(tool_context: ToolContext) -> dict:
    """Read the user's files, who has to log in for that."""
    if tool_context.get_auth_response(LOGIN) is None:
        tool_context.request_credential(LOGIN)
    return {"status": "pending"}


def pay(tool_context: ToolContext, amount: int) -> dict:
    """Pay an amount; the one who approves may lower it."""
    confirmation = tool_context.tool_confirmation
    if confirmation is None:
        tool_context.request_confirmation(hint="How much may be paid?", payload={"amount": amount})
        return {"status": "waits"}
    if not confirmation.confirmed:
        return {"error": "not approved"}
    return {"paid": confirmation.payload["amount"]}


def which_city(node_input: object):
    """Ask which city."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    yield RequestInput(message="Which city?", response_schema=schema)


def plan(node_input: dict) -> dict:
    """Plan a trip."""
    return {"to": node_input["city"]}


def leave(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
    """Leave the loop in its second round, without the model."""
    rounds = callback_context.state.get("rounds", 0) + 1
    callback_context.state["rounds"] = rounds
    if rounds < 2:
        return None
    call = types.Part(function_call=types.FunctionCall(name="exit_loop", args={}))
    return LlmResponse(content=types.Content(role="model", parts=[call]))


def named(name: str, **options: object) -> LlmAgent:
    """Return an agent of that name."""
    return LlmAgent(name=name, model=MODEL, description=f"The agent {name}", **options)


class Cut:
    """A turn whose context takes so many writes, and then no more."""

    def __init__(self, turn: Turn, writes: int) -> None:
        self._turn = turn
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    async def remember(self, key: str, value: Any) -> None:
        if self._writes == 0:
            raise ConnectionAbortedError
        self._writes -= 1
        await self._turn.remember(key, value)


torn = Agent("Torn")


@torn.skill(replies="task")
async def tear(turn: Turn, writes: int) -> dict:
    """Append an event that changes the state, cut off after so many writes; return what is kept."""
    actions = EventActions(state_delta={"seats": 2, "window": None})
    event = Event(author="user", invocation_id="i", actions=actions)
    names = {"app_name": "torn", "user_id": "me"}
    try:
        sessions = ContextSessions(Cut(turn, writes))
        await sessions.append_event(Session(id="s", **names), event)
    except ConnectionAbortedError:
        pass
    kept = await ContextSessions(turn).get_session(session_id="s", **names)
    return {} if kept is None else {"events": len(kept.events), "state": kept.state}


async def agents() -> dict:
    """Return the agents by the features that they have."""
    remote = os.environ["PARLEY_TEST_REMOTE"]
    tools = [
        add,
        FunctionTool(book, require_confirmation=True),
        wait,
        LongRunningFunctionTool(apply),
        draw,
        pay,
        read_files,
    ]
    things = {
        "agent": LlmAgent(
            name="travel_helper", model=MODEL, description="Helps with travel", tools=tools
        ),
        "litellm": LlmAgent(
            name="lite", model=LiteLlm("openai/scripted-1", api_base=MODEL_URL, api_key="none")
        ),
        "structured": named("forecaster", output_schema=Weather),
        "caller": named("caller", tools=await google_adk.tools(remote)),
        "parent": named("parent", sub_agents=[await google_adk.sub_agent(remote, name="remote")]),
        "sequence": SequentialAgent(
            name="sequence", sub_agents=[named("first", tools=[add]), named("second")]
        ),
        "parallel": ParallelAgent(name="parallel", sub_agents=[named("left"), named("right")]),
        "loop": LoopAgent(name="loop", sub_agents=[named("again")], max_iterations=2),
        "pipeline": SequentialAgent(
            name="pipeline",
            sub_agents=[
                named("writer", output_key="draft"),
                LoopAgent(
                    name="refinement",
                    max_iterations=3,
                    sub_agents=[
                        named(
                            "critic",
                            instruction="Improve: {draft}",
                            before_model_callback=leave,
                            tools=[exit_loop],
                        )
                    ],
                ),
            ],
        ),
        "workflow": Workflow(name="trip", edges=[("START", which_city), (which_city, plan)]),
        "custom": Greeter(name="greeter", description="Greets"),
    }
    served = {name: google_adk.agent(thing) for name, thing in things.items()}
    kept = SqliteSessionService(str(FILES / "sessions.db"))
    served["kept"] = google_adk.agent(named("kept"), sessions=kept)
    served["app"] = google_adk.agent(App(name="plain", root_agent=named("plain", tools=[add])))
    services = Runner(
        app_name="runner", agent=named("ran"), session_service=kept, artifact_service=None
    )
    served["runner"] = google_adk.agent(services)
    rounds = LoopAgent(name="rounds", sub_agents=[named("round")], max_iterations=8)
    served["short"] = google_adk.agent(rounds, max_events=20)
    served["small"] = google_adk.agent(named("small"), max_bytes=20_000)
    served["page"] = google_adk.agent(documented("google-adk", "adk_helper.py")["helper"])
    served["moved"] = documented(COMING_FROM, "adk_on_parley.py")["agent"]
    served["outside"] = outside(remote)
    served["torn"] = torn
    return served


def outside(url: str) -> Agent:
    """Return an agent that runs the page's callers as programs without Parley do."""
    page = documented("google-adk", "adk_caller.py")
    agent = Agent("Outside")

    async def run(kind: str, said: str, answer: str) -> str:
        with trace.get_tracer("outside", tracer_provider=TracerProvider()).start_as_current_span(
            "run"
        ) as span:
            found = await ask(kind, said, answer)
        return f"{found}\n{span.get_span_context().trace_id:032x}"

    async def ask(kind: str, said: str, answer: str) -> str:
        runner = InMemoryRunner(await page[kind](url), app_name="outside")
        session = await runner.session_service.create_session(app_name="outside", user_id="me")
        parts, text = [types.Part(text=said)], []
        while parts:
            message, parts = types.Content(role="user", parts=parts), []
            async for event in runner.run_async(
                user_id="me", session_id=session.id, new_message=message
            ):
                for call in event.get_function_calls():
                    if call.id in event.long_running_tool_ids:
                        text.append(str(call.args))
                        response = {"result": answer}
                        if "toolConfirmation" in call.args:
                            response = {"confirmed": True, "payload": {"parleyAnswer": answer}}
                        told = types.FunctionResponse(id=call.id, name=call.name, response=response)
                        parts.append(types.Part(function_response=told))
                if event.content and not event.partial:
                    text += [part.text for part in event.content.parts if part.text]
        return "\n".join(text)

    @agent.skill
    async def call(kind: str, said: str, answer: str) -> str:
        """Run a caller of the page outside of a turn."""
        return await _outside(run(kind, said, answer))

    return agent


async def _outside(run: Coroutine[Any, Any, str]) -> str:
    """Run a coroutine in a thread, which knows of no turn."""
    with ThreadPoolExecutor(1) as pool:
        return await asyncio.wrap_future(pool.submit(asyncio.run, run))


serve(asyncio.run(agents()))
