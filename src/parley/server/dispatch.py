"""Dispatches a request that a binding has parsed to the service that answers it.

Every binding calls it. It selects the agent, checks the request against the agent's card, and
makes the ``CallContext``. It knows no transport.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import msgspec

from parley.extensions.profile import active_uris, with_dependencies
from parley.model.cards import AgentCapabilities, AgentCard
from parley.model.errors import (
    ExtensionSupportRequiredError,
    FieldViolation,
    InvalidParamsError,
    MethodNotFoundError,
    OverloadedError,
    an,
)
from parley.model.extensions import Extension, ExtensionMethod, collect_extensions
from parley.model.operations import (
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Operation,
    SendMessageRequest,
)
from parley.model.parts import Message
from parley.model.service import (
    ANONYMOUS,
    NO_TRACE,
    CallContext,
    Caller,
    ItemStream,
    StreamItem,
    TraceContext,
)
from parley.model.struct import Timestamp
from parley.model.tasks import Task
from parley.security.authorization import Authorization, access_of
from parley.security.limits.agent_limits import AgentLimits, LimitGrant
from parley.server.endpoint import Endpoint, Interfaces
from parley.server.lifecycle import Lifecycle
from parley.server.limits import ConcurrencyLimiter
from parley.server.request_fields import check_caller, check_ids

# -- active extensions ------------------------------------------------------------------------

_NONE: frozenset[str] = frozenset()


class Extensions(msgspec.Struct, frozen=True):
    """The extensions that an agent declares, and the required ones.

    ``methods`` are the methods that they add, by name.
    """

    declared: tuple[Extension, ...]
    required: tuple[str, ...]
    methods: Mapping[str, ExtensionMethod[Any, Any]]

    @classmethod
    def of(cls, capabilities: AgentCapabilities, own: Iterable[Extension] = ()) -> Extensions:
        """Return the extensions of a card; ``own`` are those implemented on the server."""
        on_card = capabilities.extensions
        uris = {extension.uri for extension in on_card}
        declared = collect_extensions([*on_card, *(e for e in own if e.uri in uris)])
        required = [extension.uri for extension in on_card if extension.required]
        methods = {m.operation.name: m for extension in declared for m in extension.methods}
        return cls(declared, tuple(with_dependencies(required, declared)), methods)

    def negotiate(self, requested: Sequence[str]) -> frozenset[str]:
        """Return the active extensions: those requested that the agent declares (§4.6.3).

        An extension is active only if its dependencies are requested too. URIs must match exactly:
        no other version of an extension replaces the requested one.

        Raises ``ExtensionSupportRequiredError`` when a required extension, or a dependency of one,
        is not requested.
        """
        if not requested and not self.required:
            return _NONE
        missing = [uri for uri in self.required if uri not in requested]
        if missing:
            raise ExtensionSupportRequiredError(
                f"this agent is only spoken to with {', '.join(missing)}; name it in the header "
                "A2A-Extensions",
                metadata={"requiredExtensions": ",".join(missing)},
            )
        return frozenset(active_uris(self.declared, requested))

    def require(self, uri: str, active: frozenset[str]) -> None:
        """Raise ``ExtensionSupportRequiredError`` unless ``uri`` is active."""
        if uri in active:
            return
        needed = with_dependencies([uri], self.declared)
        message = (
            f"this method is part of the extension {uri}; name it in the header A2A-Extensions"
        )
        if len(needed) > 1:
            message += f", with what it depends on: {', '.join(needed[1:])}"
        raise ExtensionSupportRequiredError(
            message, metadata={"requiredExtensions": ",".join(needed)}
        )


# -- dispatch ---------------------------------------------------------------------------------


T = TypeVar("T")

_READ = (GetTaskRequest, ListTasksRequest)


class SeenAddresses(Protocol):
    """The addresses of an agent, as the sender of a request sees them."""

    def sender(self) -> str:
        """Return the IP address of the sender; empty if there is none."""

    def interfaces(self, tenant: str) -> Interfaces:
        """Return the interfaces of the agent of a tenant. Raises ``BadAddress``."""

    def vary_by_caller(self) -> None:
        """Note that the answer is for this caller only: no cache may give it to another."""

    def address(self, tenant: str) -> str:
        """Return the URL below which the agent of a tenant is; empty if nothing shows it."""


class BegunReply(Protocol):
    """The reply to a message whose turn has begun."""

    done: bool

    def on_change(self, watcher: Callable[[float | None], object]) -> None:
        """Call ``watcher`` once, from within the next change. It must not raise.

        Its argument is the end of the wait, by the clock of the event loop, if that is known.
        """
        ...


class BeginsMessages(Protocol):
    """A service that can begin to answer a message without waiting, and says where it cannot.

    ``reads_at_once``: to get and to list tasks waits for nothing.
    """

    @property
    def reads_at_once(self) -> bool:
        """Whether tasks are read without waiting."""
        ...

    def begin_message(self, request: SendMessageRequest, context: CallContext) -> BegunReply | None:
        """Begin to answer; return ``None`` where something is to be waited for."""
        ...

    def begun_reply(self, begun: Any, request: SendMessageRequest) -> Task | Message:
        """Return a reply that is there. Raises ``A2AError``."""
        ...

    async def reply_to(
        self,
        begun: Any,
        request: SendMessageRequest,
        context: CallContext,
        ends_at: float | None = None,
    ) -> Task | Message:
        """Wait for a reply, until ``ends_at`` if it was waited for before. Raises ``A2AError``."""
        ...


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The service parameters of a request, as the binding read them (specification §3.2.6).

    ``extensions`` are the URIs that the caller requests. ``tenant`` comes from the path.
    ``is_signed``: the request came with a signature of its caller, which was verified.
    ``takes_json``: the answer may have tasks as their JSON (``Codec.takes_json``).
    """

    version: str
    addresses: SeenAddresses
    caller: Caller = ANONYMOUS
    extensions: tuple[str, ...] = ()
    tenant: str = ""
    last_event_id: str | None = None
    trace: TraceContext = NO_TRACE
    reply_timeout: float | None = None
    deadline: Timestamp | None = None
    sender: str = ""
    is_signed: bool = False
    takes_json: bool = False


class ServiceCall(msgspec.Struct, frozen=True):
    """A request that is checked and ready for its agent's service.

    ``limiter`` bounds the requests that wait for a turn to end, where this is one. ``grant`` is the
    answer of the agent's limits, if it has any. ``takes_json``: tasks of the answer may be their
    JSON.
    """

    endpoint: Endpoint
    operation: Operation
    request: Any
    context: CallContext
    addresses: SeenAddresses
    limiter: ConcurrencyLimiter | None = None
    grant: LimitGrant | None = None
    takes_json: bool = False

    @property
    def service(self) -> Any:
        """What answers: the agent's service, or its like that leaves stored tasks as JSON."""
        service = self.endpoint.service
        return getattr(service, "in_json", service) if self.takes_json else service

    def answer(self) -> Awaitable[Any]:
        """Call the service and return its answer. Raises ``A2AError``."""
        if self.grant is not None and not self.grant.is_settled:
            return self._granted_answer(self.grant)
        authorization = self.endpoint.authorization
        if authorization is not None and authorization.policy is not None:
            return self._permitted_answer(authorization)
        return self._answer()

    async def _granted_answer(self, grant: LimitGrant) -> Any:
        await grant.settle()
        return await self.answer()

    async def _permitted_answer(self, authorization: Authorization) -> Any:
        await self._permit(authorization)
        return await self._answer()

    async def _permit(self, authorization: Authorization) -> None:
        """Ask the agent's policy, unless admission asks it, which knows the skill of a message."""
        if self.operation.extension or self.operation.request is not SendMessageRequest:
            context = self.context
            access = access_of(
                self.operation.name,
                self.request,
                context.caller,
                agent=self.endpoint.key,
                tenant=context.tenant,
            )
            await authorization.permit(access)

    def _answer(self) -> Awaitable[Any]:
        if self.limiter is not None:
            return self._blocking_answer(self.limiter)
        if self.operation.request is GetExtendedAgentCardRequest:
            return self._card()
        answer: Awaitable[Any] = getattr(self.service, self.operation.method)(
            self.request, self.context
        )
        return answer

    def begin(self) -> BegunReply | None:
        """Begin to answer, where nothing has to be waited for; else return ``None``.

        Nothing was done then, and ``answer`` does it all. ``end`` ends it. Raises ``A2AError``.
        """
        operation, authorization = self.operation, self.endpoint.authorization
        if (
            operation.request is not SendMessageRequest
            or operation.streaming
            or operation.extension
            or self.limiter is None
            or (self.grant is not None and not self.grant.is_settled)
            or (authorization is not None and authorization.policy is not None)
        ):
            return None
        begin = getattr(self.service, "begin_message", None)
        if begin is None:
            return None
        caller = (self.context.tenant, self.context.caller.owner)
        self.limiter.acquire(caller)
        begun: BegunReply | None = None
        try:
            begun = begin(self.request, self.context)
            return begun
        finally:
            if begun is None:
                self.limiter.release(caller)

    @property
    def is_read_at_once(self) -> bool:
        """Whether the answer is only read, and nothing has to be waited for."""
        authorization = self.endpoint.authorization
        return (
            self.operation.request in _READ
            and not self.operation.extension
            and (self.grant is None or self.grant.is_settled)
            and (authorization is None or authorization.policy is None)
            and getattr(self.endpoint.service, "reads_at_once", False)
        )

    def end(self) -> None:
        """End what ``begin`` began."""
        assert self.limiter is not None
        self.limiter.release((self.context.tenant, self.context.caller.owner))

    def begun_reply(self, begun: BegunReply) -> Any:
        """Return the reply of what ``begin`` began, once it is there. Raises ``A2AError``."""
        service = cast("BeginsMessages", self.service)
        return service.begun_reply(begun, self.request)

    async def later_reply(self, begun: BegunReply, ends_at: float | None = None) -> Any:
        """Wait for the reply of what ``begin`` began, and end it. Raises ``A2AError``.

        ``ends_at`` is the argument of the watcher of the reply.
        """
        service = cast("BeginsMessages", self.service)
        try:
            return await service.reply_to(begun, self.request, self.context, ends_at)
        finally:
            self.end()

    async def _blocking_answer(self, limiter: ConcurrencyLimiter) -> Any:
        caller = (self.context.tenant, self.context.caller.owner)
        limiter.acquire(caller)
        try:
            return await getattr(self.service, self.operation.method)(self.request, self.context)
        finally:
            limiter.release(caller)

    async def _card(self) -> AgentCard:
        assert self.endpoint.service is not None
        self.addresses.vary_by_caller()
        card = await self.endpoint.service.get_extended_agent_card(self.request, self.context)
        if not card.supported_interfaces:
            # The agent does not know its interfaces; the server does.
            interfaces = self.addresses.interfaces(self.context.tenant)
            if self.endpoint.interfaces is not None:
                interfaces = self.endpoint.interfaces.shown_to(interfaces, self.context.caller)
            if self.endpoint.files is not None:
                card = self.endpoint.files.declared(card, interfaces)
            card = msgspec.structs.replace(card, supported_interfaces=interfaces)
        signer = self.endpoint.signer
        return card if signer is None else signer.extended(card)

    def stream(self) -> AsyncIterator[StreamItem]:
        """Return the events of the service's answer; an ``ItemStream`` stays one."""
        items: AsyncIterator[StreamItem] = getattr(self.service, self.operation.method)(
            self.request, self.context
        )
        if isinstance(items, ItemStream):
            batches = self._checked_stream(items.batches)
            return items if batches is items.batches else ItemStream(batches)
        return self._checked_stream(cast("AsyncGenerator[StreamItem, None]", items))

    def _checked_stream(self, steps: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Return the steps of a stream, items or batches, within policy and limits."""
        authorization = self.endpoint.authorization
        if authorization is not None and authorization.policy is not None:
            steps = self._permitted_stream(authorization, steps)
        if self.grant is not None:
            steps = self._granted_stream(self.grant, steps)
        return steps

    async def _granted_stream(
        self, grant: LimitGrant, steps: AsyncGenerator[T, None]
    ) -> AsyncGenerator[T, None]:
        """Yield the events within the limits; the stream counts as open until it is closed."""
        async with aclosing(steps):
            if not grant.is_settled:
                await grant.settle()
            with grant.stream():
                async for step in steps:
                    yield step

    async def _permitted_stream(
        self, authorization: Authorization, steps: AsyncGenerator[T, None]
    ) -> AsyncGenerator[T, None]:
        await self._permit(authorization)
        async with aclosing(steps):
            async for step in steps:
                yield step


class MethodCall(ServiceCall, frozen=True, kw_only=True):
    """A call of an extension method."""

    handle: Callable[..., Awaitable[Any]]

    async def _answer(self) -> Any:
        answer = await self.handle(self.endpoint.service, self.request, self.context)
        if not isinstance(answer, self.operation.response):
            raise TypeError(f"{self.operation.name} answered with {an(type(answer).__name__)}")
        return answer


class Dispatcher:
    """Selects the agent that a request is for, and checks the request against the agent's card."""

    def __init__(
        self, endpoint: Endpoint, lifecycle: Lifecycle, limiter: ConcurrencyLimiter
    ) -> None:
        self._lifecycle = lifecycle
        self._limiter = limiter
        self._agent = _CheckedEndpoint(endpoint) if endpoint.service is not None else None
        self._tenants = {name: _CheckedEndpoint(each) for name, each in endpoint.tenants.items()}

    async def start(self) -> None:
        """Start the agents, if nothing has. Raises ``OverloadedError``."""
        if self._lifecycle.started:
            return
        try:
            await self._lifecycle.start_late()
        except Exception as error:  # the lifecycle has logged it
            raise OverloadedError("the server cannot start; its log says why") from error

    def call(
        self, operation: Operation, parameters: Parameters, read: Callable[[], Any]
    ) -> ServiceCall:
        """Return the call of a request, which ``read`` parses.

        Checks that need only the parameters run before ``read``. Raises ``A2AError``.
        """
        if self._lifecycle.draining and (operation.streaming or not operation.safe):
            raise OverloadedError("the server is shutting down", retry_after=1)
        if parameters.caller is not ANONYMOUS:
            check_caller(parameters.caller)
        tenant = parameters.tenant
        agent = extensions = grant = None
        if tenant or not self._tenants:
            agent = self._select(tenant)
            if agent.endpoint.limits is not None:
                grant = agent.begin(agent.endpoint.limits, operation, parameters)
                if tenant:
                    grant.of_tenant(tenant)
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
            agent = self._select(tenant)
            if agent.endpoint.limits is not None:
                grant = agent.begin(agent.endpoint.limits, operation, parameters)
            extensions = agent.check(operation, parameters)
        check_ids(request)
        if grant is not None and not parameters.tenant:
            grant.of_tenant(tenant)
        caller, authorization = parameters.caller, agent.endpoint.authorization
        if authorization is not None:
            caller = authorization.own_caller(caller)
            authorization.check(operation.name, caller)
        elif caller.granted:
            caller = ANONYMOUS  # whom only schemes of other agents at this address prove
        if agent.refuses_unsigned is not None and not parameters.is_signed:
            raise agent.refuses_unsigned()
        begins_turn = operation.request is SendMessageRequest
        context = CallContext(
            caller=caller,
            tenant=tenant,
            version=parameters.version,
            extensions=extensions,
            last_event_id=parameters.last_event_id,
            trace=parameters.trace,
            reply_timeout=parameters.reply_timeout,
            address="" if grant is None else grant.address,
            base_url=parameters.addresses.address(tenant) if begins_turn else "",
            deadline=parameters.deadline,
            sender=parameters.sender if parameters.sender and not caller.owner else "",
        )
        if operation.extension:
            return agent.method_call(operation, request, context, parameters.addresses, grant)
        limiter = self._limiter if _is_blocking(operation, request) else None
        return ServiceCall(
            agent.endpoint,
            operation,
            request,
            context,
            parameters.addresses,
            limiter,
            grant,
            parameters.takes_json,
        )

    def endpoint(self, tenant: str) -> Endpoint:
        """Return the endpoint of a tenant. Raises ``InvalidParamsError`` if there is none."""
        return self._select(tenant).endpoint

    def extension_method(self, name: str, tenant: str) -> Operation | None:
        """Return the extension method of this name, if the agent has one.

        Without a tenant, the methods of all agents at the address count.
        """
        agent = self._tenants.get(tenant, self._agent)
        agents = [agent] if agent is not None else []
        if not tenant:
            agents += self._tenants.values()
        found = (each.extensions.methods.get(name) for each in agents)
        return next((known.operation for known in found if known is not None), None)

    def _select(self, tenant: str) -> _CheckedEndpoint:
        agent = self._tenants.get(tenant, self._agent) if tenant else self._agent
        if agent is None:
            # The message must not reveal which tenants exist.
            raise _wrong_tenant(
                f"there is no tenant {tenant[:100]!r} here"
                if tenant
                else "several agents share this address: name the tenant that yours is"
            )
        return agent


def _is_blocking(operation: Operation, request: Any) -> bool:
    """Return whether the answer to a request waits for the end of a turn."""
    if operation.request is not SendMessageRequest or operation.streaming:
        return False
    configuration = request.configuration
    return configuration is None or not configuration.return_immediately


def _wrong_tenant(description: str) -> InvalidParamsError:
    return InvalidParamsError(
        f"tenant: {description}", violations=(FieldViolation("tenant", description),)
    )


class _CheckedEndpoint:
    """An endpoint with the capabilities and extensions of its card.

    The card is read at the first request: an author may add to the agent until then.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        bindings = endpoint.bindings
        self.refuses_unsigned = next((b.refuse for b in bindings if b.refuses_unsigned), None)

    @cached_property
    def capabilities(self) -> AgentCapabilities:
        assert self.endpoint.card is not None
        return self.endpoint.card(()).capabilities

    @cached_property
    def extensions(self) -> Extensions:
        return Extensions.of(self.capabilities, self.endpoint.extensions)

    def check(self, operation: Operation, parameters: Parameters) -> frozenset[str]:
        """Return the active extensions. Raises ``A2AError`` for what the card does not allow."""
        extensions = self.extensions.negotiate(parameters.extensions)
        if operation.extension:
            self.extensions.require(operation.extension, extensions)
        operation.check(self.capabilities)
        return extensions

    def begin(
        self, limits: AgentLimits, operation: Operation, parameters: Parameters
    ) -> LimitGrant:
        """Ask the limits of the agent. Raises ``LimitExceeded``."""
        caller, authorization = parameters.caller, self.endpoint.authorization
        if authorization is not None:
            caller = authorization.own_caller(caller)
        elif caller.granted:
            caller = ANONYMOUS
        return limits.begin(operation.name, caller, parameters.addresses)

    def method_call(
        self,
        operation: Operation,
        request: Any,
        context: CallContext,
        addresses: SeenAddresses,
        grant: LimitGrant | None,
    ) -> MethodCall:
        """Return the call of an extension method. Raises ``MethodNotFoundError``."""
        known: ExtensionMethod[Any, Any] | None = self.extensions.methods.get(operation.name)
        if known is None or known.operation.request is not operation.request:
            raise MethodNotFoundError(f"this agent has no method {operation.name}")
        return MethodCall(
            self.endpoint, operation, request, context, addresses, grant=grant, handle=known.handle
        )
