"""From a request that a binding has read to the service that answers it.

What all bindings have in common, and none decides for itself: which agent a request is for, what
that agent's card allows, and the context that goes with the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cached_property
from typing import Any

import msgspec

from parley.model.cards import AgentCapabilities, AgentCard
from parley.model.errors import (
    FieldViolation,
    InvalidParamsError,
    MethodNotFoundError,
    OverloadedError,
)
from parley.model.extensions import ExtensionMethod
from parley.model.operations import Operation
from parley.model.requests import GetExtendedAgentCardRequest, SendMessageRequest
from parley.model.service import ANONYMOUS, CallContext, Caller, StreamItem
from parley.server.active_extensions import Extensions
from parley.server.concurrency_limiter import ConcurrencyLimiter
from parley.server.endpoint import Endpoint, Interfaces
from parley.server.ids import check_caller, check_ids
from parley.server.lifecycle import Lifecycle


def _nowhere(tenant: str) -> Interfaces:
    return ()


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The service parameters of a request, as the binding found them (specification §3.2.6).

    ``extensions`` are the URIs that the caller names. ``tenant`` is that of the path, where the
    path has one. ``interfaces`` tells where the agent is offered to a tenant, as this caller sees
    it.
    """

    version: str
    caller: Caller = ANONYMOUS
    extensions: tuple[str, ...] = ()
    tenant: str = ""
    last_event_id: str | None = None
    traceparent: str = ""
    reply_timeout: float | None = None
    interfaces: Callable[[str], Interfaces] = _nowhere


class ServiceCall(msgspec.Struct, frozen=True):
    """A request on its way to an agent's service."""

    endpoint: Endpoint
    operation: Operation
    request: Any
    context: CallContext
    interfaces: Callable[[str], Interfaces]
    waiting: ConcurrencyLimiter | None = None

    def answer(self) -> Awaitable[Any]:
        """Return what the service answers. Raises ``A2AError``."""
        if self.waiting is not None:
            return self._reply(self.waiting)
        if self.operation.request is GetExtendedAgentCardRequest:
            return self._card()
        answer: Awaitable[Any] = getattr(self.endpoint.service, self.operation.method)(
            self.request, self.context
        )
        return answer

    async def _reply(self, waiting: ConcurrencyLimiter) -> Any:
        caller = (self.context.tenant, self.context.caller.owner)
        waiting.take(caller)
        try:
            return await getattr(self.endpoint.service, self.operation.method)(
                self.request, self.context
            )
        finally:
            waiting.give_back(caller)

    async def _card(self) -> AgentCard:
        assert self.endpoint.service is not None
        card = await self.endpoint.service.get_extended_agent_card(self.request, self.context)
        if card.supported_interfaces:
            return card
        # An agent does not know where it is offered; the server does.
        interfaces = self.interfaces(self.context.tenant)
        return msgspec.structs.replace(card, supported_interfaces=interfaces)

    def stream(self) -> AsyncIterator[StreamItem]:
        """Return the events that the service answers with."""
        items: AsyncIterator[StreamItem] = getattr(self.endpoint.service, self.operation.method)(
            self.request, self.context
        )
        return items


class MethodCall(ServiceCall, frozen=True, kw_only=True):
    """A call of a method that an extension adds."""

    handle: Callable[..., Awaitable[Any]]

    async def answer(self) -> Any:
        """Return what the method answers. Raises ``A2AError``."""
        answer = await self.handle(self.endpoint.service, self.request, self.context)
        if not isinstance(answer, self.operation.response):
            raise TypeError(f"{self.operation.name} answered with a {type(answer).__name__}")
        return answer


class Dispatcher:
    """Finds the agent that a request is for, and holds the request against its card."""

    def __init__(
        self, endpoint: Endpoint, lifecycle: Lifecycle, waiting: ConcurrencyLimiter
    ) -> None:
        self._lifecycle = lifecycle
        self._waiting = waiting
        self._agent = _Agent(endpoint) if endpoint.service is not None else None
        self._tenants = {name: _Agent(each) for name, each in endpoint.tenants.items()}

    async def start(self) -> None:
        """Start what is served, if nothing has. Raises ``OverloadedError``."""
        if self._lifecycle.started:
            return
        try:
            await self._lifecycle.start_late()
        except Exception as error:  # the lifecycle has logged it
            raise OverloadedError("the server cannot start; its log says why") from error

    def call(
        self, operation: Operation, parameters: Parameters, read: Callable[[], Any]
    ) -> ServiceCall:
        """Return the call that a request is; ``read`` returns the request itself.

        What can be refused without a look into it is refused before. Raises ``A2AError``.
        """
        if self._lifecycle.draining and (operation.streaming or not operation.safe):
            raise OverloadedError("the server is shutting down", retry_after=1)
        tenant = parameters.tenant
        agent = extensions = None
        if tenant or not self._tenants:
            agent = self._of(tenant)
            extensions = agent.check(operation, parameters)
        request = read()
        named: str = getattr(request, "tenant", "")  # methods of extensions may do without one
        if named != tenant:
            if not tenant:
                tenant = named
            elif not named:
                if hasattr(request, "tenant"):
                    request = msgspec.structs.replace(request, tenant=tenant)
            else:
                raise _wrong_tenant(f"the path names the tenant {tenant[:100]!r}")
        if agent is None or extensions is None:
            agent = self._of(tenant)
            extensions = agent.check(operation, parameters)
        check_ids(request)
        if parameters.caller is not ANONYMOUS:
            check_caller(parameters.caller)
        context = CallContext(
            caller=parameters.caller,
            tenant=tenant,
            version=parameters.version,
            extensions=extensions,
            last_event_id=parameters.last_event_id,
            traceparent=parameters.traceparent,
            reply_timeout=parameters.reply_timeout,
        )
        if operation.extension:
            return agent.method_call(operation, request, context)
        waiting = self._waiting if _waits(operation, request) else None
        return ServiceCall(
            agent.endpoint, operation, request, context, parameters.interfaces, waiting
        )

    def method(self, name: str, tenant: str) -> Operation | None:
        """Return the method of this name that an extension of the agent adds, if one does.

        Where the request alone knows its tenant, it is that of any agent at the address.
        """
        agent = self._tenants.get(tenant, self._agent)
        agents = [agent] if agent is not None else []
        if not tenant:
            agents += self._tenants.values()
        found = (each.extensions.methods.get(name) for each in agents)
        return next((known.operation for known in found if known is not None), None)

    def _of(self, tenant: str) -> _Agent:
        agent = self._tenants.get(tenant, self._agent) if tenant else self._agent
        if agent is None:
            # Which tenants there are is nobody else's business.
            raise _wrong_tenant(
                f"there is no tenant {tenant[:100]!r} here"
                if tenant
                else "several agents share this address: name the tenant that yours is"
            )
        return agent


def _waits(operation: Operation, request: Any) -> bool:
    """Whether a request is answered when a turn ends, however long that takes."""
    if operation.request is not SendMessageRequest or operation.streaming:
        return False
    configuration = request.configuration
    return configuration is None or not configuration.return_immediately


def _wrong_tenant(description: str) -> InvalidParamsError:
    return InvalidParamsError(
        f"tenant: {description}", violations=(FieldViolation("tenant", description),)
    )


class _Agent:
    """What is asked of an endpoint's card again and again.

    It is looked at when the first request comes: an author may add to an agent until then.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    @cached_property
    def capabilities(self) -> AgentCapabilities:
        assert self.endpoint.card is not None
        return self.endpoint.card(()).capabilities

    @cached_property
    def extensions(self) -> Extensions:
        return Extensions.of(self.capabilities, self.endpoint.extensions)

    def check(self, operation: Operation, parameters: Parameters) -> frozenset[str]:
        """Return the extensions in force. Raises ``A2AError`` for what the card does not allow."""
        extensions = self.extensions.negotiate(parameters.extensions)
        if operation.extension:
            self.extensions.require(operation.extension, extensions)
        operation.check(self.capabilities)
        return extensions

    def method_call(self, operation: Operation, request: Any, context: CallContext) -> MethodCall:
        """Return the call of a method that an extension adds. Raises ``MethodNotFoundError``."""
        known: ExtensionMethod[Any, Any] | None = self.extensions.methods.get(operation.name)
        if known is None or known.operation.request is not operation.request:
            raise MethodNotFoundError(f"this agent has no method {operation.name}")
        return MethodCall(self.endpoint, operation, request, context, _nowhere, handle=known.handle)
