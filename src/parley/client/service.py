"""A remote agent as an ``A2AService``: the operations of the table, over one binding."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol, cast

import msgspec

from parley.client.retry import Retry, repeat
from parley.model.cards import AgentCapabilities
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import OPERATIONS, Operation
from parley.model.requests import SendMessageRequest
from parley.model.service import A2AService, CallContext, StreamItem
from parley.model.struct import A2AStruct


class Binding(Protocol):
    """How requests get to the agent and answers back. One file each."""

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return what the operation answers."""
        ...

    def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield what the operation streams; an async generator."""
        ...


class RemoteService:
    """Gives every operation of the table a method, as ``A2AService`` names it.

    Each call is checked against the card (§3.3.4) and carries the interface's tenant (§8.3.2).
    Operations that change nothing are repeated when a try fails for a passing reason, and so are
    messages when ``context`` asks for idempotent sends and the agent has them (``idempotent``).
    Streams are given as they come; ``client.stream`` is what takes them up again.

    Beside ``A2AError`` (what the agent says) methods raise ``ClientError`` (when it could not be
    asked).
    """

    def __init__(
        self,
        binding: Binding,
        *,
        tenant: str,
        capabilities: AgentCapabilities,
        retry: Retry,
        idempotent: bool,
    ) -> None:
        self._binding = binding
        self._tenant = tenant
        self._capabilities = capabilities
        self._retry = retry
        self._idempotent = idempotent

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Do an operation that answers once."""
        operation.check(self._capabilities)
        request = self._addressed(request)
        once = (
            self._idempotent
            and IDEMPOTENT_SEND in context.extensions
            and isinstance(request, SendMessageRequest)
        )
        return await repeat(
            lambda: self._binding.call(operation, request, context),
            self._retry,
            safe=operation.safe or once,
            patient=once,
            name=operation.name,
        )

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Do an operation that answers with events."""
        operation.check(self._capabilities)
        items = self._binding.stream(operation, self._addressed(request), context)
        async with aclosing(cast("AsyncGenerator[StreamItem, None]", items)) as open_items:
            async for item in open_items:
                yield item

    def _addressed(self, request: A2AStruct) -> A2AStruct:
        return msgspec.structs.replace(request, tenant=self._tenant)


def remote_service(
    binding: Binding,
    *,
    tenant: str,
    capabilities: AgentCapabilities,
    retry: Retry,
    idempotent: bool,
) -> A2AService:
    """Return the agent behind ``binding`` as the interface that everything else calls."""
    service = RemoteService(
        binding, tenant=tenant, capabilities=capabilities, retry=retry, idempotent=idempotent
    )
    return cast("A2AService", service)


def _method(operation: Operation) -> Callable[..., Awaitable[Any] | AsyncIterator[StreamItem]]:
    if operation.streaming:

        def stream(
            self: RemoteService, request: A2AStruct, context: CallContext
        ) -> AsyncIterator[StreamItem]:
            return self.stream(operation, request, context)

        return stream

    async def call(self: RemoteService, request: A2AStruct, context: CallContext) -> Any:
        return await self.call(operation, request, context)

    return call


for _operation in OPERATIONS:
    setattr(RemoteService, _operation.method, _method(_operation))
