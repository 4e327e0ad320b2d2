"""From a request that a binding has read to the service that answers it.

What all bindings have in common, and none decides for itself: which agent a request is for, what
that agent's card allows, and the context that goes with the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import cached_property
from typing import Any

import msgspec

from parley.model.cards import AgentCapabilities
from parley.model.errors import FieldViolation, InvalidParamsError, OverloadedError
from parley.model.operations import Operation
from parley.model.requests import GetExtendedAgentCardRequest
from parley.model.service import ANONYMOUS, CallContext, Caller, StreamItem
from parley.server.endpoint import Endpoint, Interfaces
from parley.server.lifecycle import Lifecycle
from parley.server.parameters import Extensions


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The service parameters of a request, as the binding found them (specification §3.2.6).

    ``extensions`` are the URIs that the caller names. ``tenant`` is that of the path, where the
    path has one. ``interfaces`` tells where the agent is offered, as this caller sees it.
    """

    version: str
    caller: Caller = ANONYMOUS
    extensions: tuple[str, ...] = ()
    tenant: str = ""
    last_event_id: str | None = None
    traceparent: str = ""
    interfaces: Callable[[], Interfaces] = tuple


class Call(msgspec.Struct, frozen=True):
    """A request on its way to an agent's service."""

    endpoint: Endpoint
    operation: Operation
    request: Any
    context: CallContext
    interfaces: Callable[[], Interfaces]

    async def answer(self) -> Any:
        """Return what the service answers. Raises ``A2AError``."""
        answer = await getattr(self.endpoint.service, self.operation.method)(
            self.request, self.context
        )
        is_card = self.operation.request is GetExtendedAgentCardRequest
        if is_card and not answer.supported_interfaces:
            # An agent does not know where it is offered; the server does.
            answer = msgspec.structs.replace(answer, supported_interfaces=self.interfaces())
        return answer

    def stream(self) -> AsyncIterator[StreamItem]:
        """Return the events that the service answers with."""
        items: AsyncIterator[StreamItem] = getattr(self.endpoint.service, self.operation.method)(
            self.request, self.context
        )
        return items


class Dispatcher:
    """Finds the agent that a request is for, and holds the request against its card.

    ``check`` says early what needs no look into the request; ``call`` says the rest.
    """

    def __init__(self, endpoint: Endpoint, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._agent = _Agent(endpoint)
        self._tenants = {name: _Agent(each) for name, each in endpoint.tenants.items()}

    async def start(self) -> None:
        """Start what is served, if nothing has. Raises ``OverloadedError``."""
        if self._lifecycle.started:
            return
        try:
            await self._lifecycle.start_late()
        except Exception as error:  # the lifecycle has logged it
            raise OverloadedError("the server cannot start; its log says why") from error

    def check(self, operation: Operation, parameters: Parameters) -> None:
        """Refuse what can be refused before the request is read. Raises ``A2AError``."""
        if self._lifecycle.draining and (operation.streaming or not operation.safe):
            raise OverloadedError("the server is shutting down", retry_after=1)
        if parameters.tenant or not self._tenants:
            self._of(parameters.tenant).check(operation, parameters)

    def call(self, operation: Operation, request: Any, parameters: Parameters) -> Call:
        """Return the call that a request is. Raises ``A2AError`` for what the agent refuses."""
        tenant: str = request.tenant
        if parameters.tenant and tenant != parameters.tenant:
            if tenant:
                description = f"the path names the tenant {parameters.tenant[:100]!r}"
                raise InvalidParamsError(
                    f"tenant: {description}", violations=(FieldViolation("tenant", description),)
                )
            tenant = parameters.tenant
            request = msgspec.structs.replace(request, tenant=tenant)
        agent = self._of(tenant)
        context = CallContext(
            caller=parameters.caller,
            tenant=tenant,
            version=parameters.version,
            extensions=agent.check(operation, parameters),
            last_event_id=parameters.last_event_id,
            traceparent=parameters.traceparent,
        )
        return Call(agent.endpoint, operation, request, context, parameters.interfaces)

    def _of(self, tenant: str) -> _Agent:
        return self._tenants.get(tenant, self._agent) if tenant else self._agent


class _Agent:
    """What is asked of an endpoint's card again and again.

    It is looked at when the first request comes: an author may add to an agent until then.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    @cached_property
    def capabilities(self) -> AgentCapabilities:
        return self.endpoint.card(()).capabilities

    @cached_property
    def extensions(self) -> Extensions:
        return Extensions.of(self.capabilities)

    def check(self, operation: Operation, parameters: Parameters) -> frozenset[str]:
        """Return the extensions in force. Raises ``A2AError`` for what the card does not allow."""
        extensions = self.extensions.negotiate(parameters.extensions)
        operation.check(self.capabilities)
        return extensions
