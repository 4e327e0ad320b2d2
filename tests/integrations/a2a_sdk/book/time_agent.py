"""A time agent as in books about version 0.3.10 of the official SDK, with its own server."""

import asyncio
from datetime import datetime

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentSkill
from a2a.utils import new_agent_text_message


class TimeAgent:
    """Knows the time."""

    async def invoke(self, question: str) -> str:
        await asyncio.sleep(0.01)
        now = datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        if "几点" in question:
            return f"现在的时间是 {now}"
        return f"The current time is {now}"


class TimeAgentExecutor(AgentExecutor):
    """Has the time agent answer."""

    def __init__(self):
        self.agent = TimeAgent()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        result = await self.agent.invoke(context.get_user_input())
        await event_queue.enqueue_event(new_agent_text_message(result))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise Exception("cancel not supported")


skill = AgentSkill(
    id="current_time",
    name="Current time",
    description="Tells the current date and time",
    tags=["time", "date"],
    examples=["What time is it?", "现在几点?"],
)

agent_card = AgentCard(
    name="Time Agent",
    description="Tells what time it is",
    url="http://localhost:9999/",
    version="1.0.0",
    default_input_modes=["text"],
    default_output_modes=["text"],
    capabilities=AgentCapabilities(streaming=True),
    skills=[skill],
)


def main():
    handler = DefaultRequestHandler(
        agent_executor=TimeAgentExecutor(), task_store=InMemoryTaskStore()
    )
    app = A2AStarletteApplication(agent_card=agent_card, http_handler=handler)
    uvicorn.run(app.build(), host="127.0.0.1", port=9999)


if __name__ == "__main__":
    main()
