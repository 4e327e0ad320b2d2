"""The same agents on the official SDK's own server (a2a-sdk), as its documentation builds one.

Runs in an environment of its own (see ``environments.py``).
Arguments: the port, reply|task|stream|talk|wait|ask|ticks, and ``memory:``, the path of a SQLite
file, or the URL of a PostgreSQL database: it is then a replica of a cluster
(``a2a.server.cluster``).
``pin=no`` lets it run on any core.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.cluster import DatabaseTaskEventStream, VersionedDatabaseTaskStore
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
)
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

sys.path.insert(0, str(Path(__file__).parents[1]))
from processes import pin


class Reply(AgentExecutor):
    """Answers directly."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(
            Message(
                message_id=f"reply-{context.message.message_id}",
                context_id=context.context_id,
                role=Role.ROLE_AGENT,
                parts=[Part(text=context.get_user_input())],
            )
        )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


async def begin(context: RequestContext, event_queue: EventQueue) -> TaskUpdater:
    await event_queue.enqueue_event(
        Task(
            id=context.task_id,
            context_id=context.context_id,
            status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
            history=[context.message],
        )
    )
    updater = TaskUpdater(event_queue, context.task_id, context.context_id)
    await updater.start_work()
    return updater


class Work(Reply):
    """Makes a task: submitted, working, an artifact, completed."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begin(context, event_queue)
        await updater.add_artifact([Part(text=context.get_user_input())], name="result")
        await updater.complete()


class Stream(Reply):
    """Streams as many chunks as it is asked for."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begin(context, event_queue)
        chunks = int(context.get_user_input())
        for number in range(chunks):
            await updater.add_artifact(
                [Part(text=f"chunk {number} ")],
                artifact_id="report",
                name="report",
                append=number > 0,
                last_chunk=number == chunks - 1,
            )
        await updater.complete()


class Talk(Reply):
    """Makes a task with twenty messages."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begin(context, event_queue)
        for number in range(1, 20):
            said = updater.new_agent_message([Part(text=f"message {number} of a conversation")])
            await updater.update_status(TaskState.TASK_STATE_WORKING, said)
        await updater.complete()


class Wait(Reply):
    """Works for ever."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await begin(context, event_queue)
        await asyncio.Event().wait()


class Ask(Reply):
    """Asks a question, and so parks its task."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begin(context, event_queue)
        await updater.requires_input()


class Ticks(Reply):
    """Says what the clock says, "COUNT MILLISECONDS" times and apart."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await begin(context, event_queue)
        count, apart = map(int, context.get_user_input().split())
        for _ in range(count):
            await asyncio.sleep(apart / 1000)
            said = updater.new_agent_message([Part(text=f"at {time.monotonic_ns()} ")])
            await updater.update_status(TaskState.TASK_STATE_WORKING, said)
        await updater.complete()


def stores(where: str) -> tuple[TaskStore, DatabaseTaskEventStream | None]:
    """Return the SDK's store in memory, on SQLite, or a cluster's with its stream of events."""
    if where == "memory:":
        return InMemoryTaskStore(), None
    if not where.startswith("postgresql:"):
        return DatabaseTaskStore(create_async_engine(f"sqlite+aiosqlite:///{where}")), None
    engine = create_async_engine(where.replace("postgresql:", "postgresql+asyncpg:", 1))
    return VersionedDatabaseTaskStore(engine), DatabaseTaskEventStream(engine)


EXECUTORS = {"reply": Reply, "task": Work, "stream": Stream, "talk": Talk, "wait": Wait, "ask": Ask}


def card_at(port: int) -> AgentCard:
    """Return the card of each of the agents."""
    return AgentCard(
        name="Benchmark",
        description="An agent to be measured",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(
                url=f"http://127.0.0.1:{port}/", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="work", name="work", description="works", tags=["work"])],
    )


def main(port: int, what: str, where: str) -> None:
    """Serve one of the agents."""
    card = card_at(port)
    tasks, events = stores(where)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if not isinstance(tasks, InMemoryTaskStore):
            await tasks.initialize()
        if events is not None:
            await events.initialize()
        yield

    executor = (EXECUTORS | {"ticks": Ticks})[what]()
    handler = DefaultRequestHandler(
        agent_executor=executor, task_store=tasks, agent_card=card, event_stream=events
    )
    app = Starlette(
        routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, rpc_url="/")],
        lifespan=lifespan,
    )
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    if "pin=no" not in sys.argv:
        pin(0)
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
