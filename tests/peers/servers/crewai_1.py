"""A CrewAI agent with a scripted model, in the official SDK's server as its users deploy it."""

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}

import threading
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore
from crewai import Agent
from crewai.a2a import A2AServerConfig
from crewai.a2a.utils import task as running
from crewai.llms.base_llm import BaseLLM
from scripted import NAME, chunks, serve


class Scripted(BaseLLM):
    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        text = messages if isinstance(messages, str) else messages[-1]["content"]
        asked = text.partition("Current Task: ")[2].split()[:1]
        if asked == ["slow"]:
            threading.Event().wait()
        return "Final Answer: " + "".join(chunks(" ".join(asked)))


class Executor(AgentExecutor):
    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await running.execute(self.agent, context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await running.cancel(context, event_queue)


def app(host: str, port: int) -> Any:
    agent = Agent(
        role=NAME,
        goal="Follows a script",
        backstory="It is scripted",
        llm=Scripted(model="scripted"),
        a2a=A2AServerConfig(name=NAME, default_input_modes=["text/plain", "image/png"]),
    )
    handler = DefaultRequestHandler(agent_executor=Executor(agent), task_store=InMemoryTaskStore())
    card = agent.to_agent_card(f"http://{host}:{port}/")
    return A2AStarletteApplication(agent_card=card, http_handler=handler).build()


serve(app)
