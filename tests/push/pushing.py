"""In-process agents that send notifications to local webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from parley import Agent, CallContext, Caller, Message, Part, Role, Task, Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.model.operations import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from parley.push.delivery import RetryPolicy
from parley.security.egress import Egress
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.webhooks import PushRecord, PushState
from parley.store.task_store import TaskStore
from tests.kit.waiting import let_time_pass

QUICK = RetryPolicy(
    first_delay=0.01,
    longest_delay=0.02,
    first_refused_delay=0.01,
    longest_refused_delay=0.02,
    gives_up_after=0.1,
    gives_up_replies_after=0.1,
    timeout=5.0,
)
PATIENT = replace(QUICK, gives_up_after=60.0, gives_up_replies_after=60.0)


class Pushed:
    """A caller of one agent, with webhooks."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.store = host.store
        self.service = host.services[""]
        self.context = CallContext(caller=Caller(id="ada"))

    def request(self, said: str, push: Any = None, **options: Any) -> SendMessageRequest:
        configuration = SendMessageConfiguration(
            task_push_notification_config=config(push) if isinstance(push, str) else push,
            return_immediately=options.pop("return_immediately", False),
        )
        message = Message(
            message_id=uuid4().hex, role=Role.USER, parts=(Part(text=said),), **options
        )
        return SendMessageRequest(message=message, configuration=configuration)

    async def send(self, said: str, push: Any = None, **options: Any) -> Task | Message:
        context = options.pop("context", self.context)
        return await self.service.send_message(self.request(said, push, **options), context)

    async def task(self, said: str, push: Any = None, **options: Any) -> Task:
        reply = await self.send(said, push, **options)
        assert reply.id, reply
        return reply

    async def create(
        self, task_id: str, url: str, *, context: CallContext | None = None, **fields: Any
    ) -> TaskPushNotificationConfig:
        asked = TaskPushNotificationConfig(task_id=task_id, url=url, **fields)
        return await self.service.create_task_push_notification_config(
            asked, context or self.context
        )

    async def get(
        self, task_id: str, push_id: str, context: CallContext | None = None
    ) -> TaskPushNotificationConfig:
        asked = GetTaskPushNotificationConfigRequest(task_id=task_id, id=push_id)
        return await self.service.get_task_push_notification_config(asked, context or self.context)

    async def list(
        self, task_id: str, context: CallContext | None = None, **page: Any
    ) -> ListTaskPushNotificationConfigsResponse:
        asked = ListTaskPushNotificationConfigsRequest(task_id=task_id, **page)
        return await self.service.list_task_push_notification_configs(
            asked, context or self.context
        )

    async def delete(self, task_id: str, push_id: str, context: CallContext | None = None) -> None:
        asked = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=push_id)
        await self.service.delete_task_push_notification_config(asked, context or self.context)

    async def settled(self, task_id: str, state: PushState, push_id: str = "default") -> PushRecord:
        """Return a stored configuration once it has a given state."""
        async with asyncio.timeout(10):
            while True:
                for push in await self.store.pushes(task_id):
                    if push.id == push_id and push.state is state:
                        return push
                await let_time_pass(0.005)


def config(url: str, **fields: Any) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(url=url, **fields)


def of_version(context: CallContext, version: str) -> CallContext:
    return replace(context, version=version)


@asynccontextmanager
async def pushing(
    agent: Agent,
    store: TaskStore | None = None,
    *,
    allowed: Any = True,
    retry_policy: RetryPolicy = QUICK,
    drain: float = 0.0,
    **options: Any,
) -> AsyncIterator[Pushed]:
    """Run an agent within the context, with server options."""
    host = Host(
        placed(agent),
        store or MemoryTaskStore(),
        ServerOptions(drain=drain, egress=Egress.allowing(allowed), **options),
        retry_policy=retry_policy,
    )
    await host.start()
    try:
        yield Pushed(host)
    finally:
        await host.stop()


def gated() -> tuple[Agent, asyncio.Event]:
    """An agent that reports that it works, waits for a gate, and ends."""
    agent, gate = Agent("Gated"), asyncio.Event()

    @agent.skill(replies="task")
    async def wait(turn: Turn) -> str:
        await turn.working("waiting")
        await gate.wait()
        return "done"

    return agent, gate


def writer(chunks: int) -> Agent:
    """An agent that streams a number of chunks."""
    agent = Agent("Writer")

    @agent.skill
    async def write(turn: Turn) -> Any:
        for n in range(chunks):
            yield f"{n} "

    return agent
