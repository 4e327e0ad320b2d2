"""A caller of an agent in process, without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from parley.engine.executor import AgentExecutor
from parley.engine.service.service import AgentService
from parley.host.host import Host
from parley.model.operations import SendMessageConfiguration, SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, StreamItem
from parley.model.tasks import Task


class Talk:
    """A caller of one agent, in process."""

    def __init__(self, service: AgentService, host: Host) -> None:
        self.service = service
        self.host = host
        self.store = host.store
        self.context = CallContext()

    @property
    def executor(self) -> AgentExecutor:
        """The executor of the agent's turns."""
        return self.host.executors[self.service.agent.key]

    def request(self, said: str | Message, **options: Any) -> SendMessageRequest:
        """Return a request that sends this message."""
        configuration = {
            name: options.pop(name)
            for name in ("return_immediately", "history_length", "accepted_output_modes")
            if name in options
        }
        request_metadata = options.pop("request_metadata", None)
        message = (
            said
            if isinstance(said, Message)
            else Message(
                message_id=options.pop("message_id", uuid4().hex),
                role=Role.USER,
                parts=(Part(text=said),),
                **options,
            )
        )
        return SendMessageRequest(
            message=message,
            configuration=SendMessageConfiguration(**configuration) if configuration else None,
            metadata=request_metadata,
        )

    async def send(self, said: str | Message, **options: Any) -> Task | Message:
        context = options.pop("context", self.context)
        return await self.service.send_message(self.request(said, **options), context)

    async def task(self, said: str | Message, **options: Any) -> Task:
        """Send a message and return the reply, which is a task."""
        reply = await self.send(said, **options)
        assert reply.id, reply
        return reply

    def stream(self, said: str | Message, **options: Any) -> AsyncIterator[StreamItem]:
        """Send a message and return its stream."""
        context = options.pop("context", self.context)
        return self.service.send_streaming_message(self.request(said, **options), context)
