"""Dispatches a parsed request to the service that answers it.

Every binding calls it. It selects the agent, checks the request against the agent's card, and makes
the ``CallContext``. It is independent of transports.
"""

from __future__ import annotations

import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from functools import cached_property
from types import CoroutineType
from typing import Any, Protocol, TypeVar, cast

import msgspec

from parley.extensions.profile import active_uris, with_dependencies
from parley.model.cards import AgentCapabilities, AgentCard
from parley.model.concurrency import Done, outcome_of
from parley.model.errors import (
    ExtensionSupportRequiredError,
    FieldViolation,
    InvalidParamsError,
    MethodNotFoundError,
    OverloadedError,
    UnauthenticatedError,
    an,
)
from parley.model.extensions import Extension, ExtensionMethod, collect_extensions
from parley.model.ids import RIGHT_ID, RIGHT_NAME, may_be_id, may_be_name
from parley.model.operations import (
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Operation,
    SendMessageRequest,
)
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
from parley.security.authorization import access_of
from parley.security.limits.agent_limits import AgentLimits, LimitGrant
from parley.server.endpoint import Endpoint, Interfaces
from parley.server.lifecycle import Lifecycle
from parley.server.limits import ConcurrencyLimiter
from parley.server.observed import ObservedRequest, is_observed

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
        """Return the extensions of a card; ``own`` are the extensions implemented on the server."""
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
                f"this agent requires the extensions {', '.join(missing)}; name them in the header "
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
            message += f", with its dependencies: {', '.join(needed[1:])}"
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
        """Record that the answer is for this caller only, so that no cache gives it to another."""

    def address(self, tenant: str) -> str:
        """Return the base URL of the agent of a tenant; empty if it is unknown."""


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The service parameters of a request, as read by the binding (specification §3.2.6).

    ``extensions`` are the URIs that the caller requests. ``tenant`` comes from the path.
    ``is_signed``: the request had a verified signature of its caller. ``takes_json``: the answer
    may have tasks as JSON (``Codec.takes_json``). ``system`` is the binding's name for operators.
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
    system: str = ""


CallStep = Callable[["ServiceCall"], Awaitable[None] | None]
"""A check of every call of an agent, before its service.

It returns an awaitable, or ``None`` if it is done, and raises ``A2AError`` to reject the call.
"""


class ServiceCall(msgspec.Struct):
    """A checked request, ready for its agent's service.

    ``steps`` run before the service. ``limiter`` bounds the requests that wait for the end of a
    turn; for such a request ``_waiter`` has a slot until ``_done`` receives the outcome. ``grant``
    is the permission of the agent's limits, if it has any. ``takes_json``: tasks in the answer may
    be JSON. ``observed`` is the observation of the request, if anything observes it.
    """

    endpoint: Endpoint
    operation: Operation
    request: Any
    context: CallContext
    addresses: SeenAddresses
    steps: Sequence[CallStep] = ()
    limiter: ConcurrencyLimiter | None = None
    grant: LimitGrant | None = None
    takes_json: bool = False
    observed: ObservedRequest | None = None
    _done: Done | None = None
    _waiter: tuple[str, str] = ("", "")

    async def answer(self) -> Any:
        """Return the answer of the service: of a streaming operation, its items.

        Raises ``A2AError``.
        """
        return await outcome_of(self.begin)

    def begin(self, done: Done) -> None:
        """Run the steps, and call the service.

        ``done`` receives the answer, its error, or the coroutine of the answer. Raises
        ``A2AError``.
        """
        if (observed := self.observed) is not None:
            done = observed.around(done)
        try:
            for at, step in enumerate(self.steps, 1):
                if (pending := step(self)) is not None:
                    done(self._ask_later(pending, at))
                    return
            self._ask(done)
        except BaseException as error:
            if observed is not None:
                observed.end(error)
            raise

    async def _ask_later(self, pending: Awaitable[None], at: int) -> Any:
        await pending
        for step in self.steps[at:]:
            if (later := step(self)) is not None:
                await later
        return await outcome_of(self._ask)

    def _ask(self, done: Done) -> None:
        operation, service = self.operation, self.endpoint.service
        if self.takes_json:
            service = getattr(service, "in_json", service)
        kind = operation.request
        if operation.streaming:
            done(self._stream(service))
        elif kind is SendMessageRequest:
            self._send(service, done)
        elif kind is GetExtendedAgentCardRequest:
            done(self._card())
        elif kind in _READ and getattr(service, "reads_at_once", False):
            done(self._read(service))
        else:
            done(getattr(service, operation.method)(self.request, self.context))

    def _read(self, service: Any) -> Any:
        """Return an answer that is available at once, or the coroutine of the answer."""
        read = getattr(service, self.operation.method)
        reading = read(self.request, self.context)
        try:
            reading.send(None)
        except StopIteration as ended:
            return ended.value
        reading.close()
        return read(self.request, self.context)

    def _send(self, service: Any, done: Done) -> None:
        """Send a message; if its reply is waited for, within the number of such requests."""
        context, limiter = self.context, self.limiter
        if limiter is not None:
            self._waiter = (context.tenant, context.caller.owner)
            limiter.acquire(self._waiter)
            self._done, done = done, self._conclude
        try:
            if hasattr(service, "begin_message"):
                service.begin_message(self.request, context, done)
            else:
                done(service.send_message(self.request, context))
        except BaseException:
            if limiter is not None and self._done is not None:
                limiter.release(self._waiter)
            raise

    def _conclude(self, outcome: Any) -> None:
        """Release the slot of a message, whose outcome is an answer or the coroutine of one."""
        done, limiter, self._done = self._done, self.limiter, None
        assert done is not None
        assert limiter is not None
        if type(outcome) is CoroutineType:
            outcome = _bounded(limiter, self._waiter, outcome)
        else:
            limiter.release(self._waiter)
        done(outcome)

    async def _card(self) -> AgentCard:
        assert self.endpoint.service is not None
        self.addresses.vary_by_caller()
        card = await self.endpoint.service.get_extended_agent_card(self.request, self.context)
        if not card.supported_interfaces:
            # Only the server knows the interfaces of an agent.
            interfaces = self.addresses.interfaces(self.context.tenant)
            if self.endpoint.interfaces is not None:
                interfaces = self.endpoint.interfaces.shown_to(interfaces, self.context.caller)
            if self.endpoint.files is not None:
                card = self.endpoint.files.declared(card, interfaces)
            card = msgspec.structs.replace(card, supported_interfaces=interfaces)
        signer = self.endpoint.signer
        return card if signer is None else signer.extended(card)

    def _stream(self, service: Any) -> AsyncIterator[StreamItem]:
        """Return the items of the service's answer; an ``ItemStream`` is returned unchanged."""
        items = getattr(service, self.operation.method)(self.request, self.context)
        if self.grant is None:
            return cast("AsyncIterator[StreamItem]", items)
        if isinstance(items, ItemStream):
            return ItemStream(_counted(self.grant, items.batches))
        return _counted(self.grant, items)


async def _bounded(
    limiter: ConcurrencyLimiter, caller: tuple[str, str], answer: Awaitable[Any]
) -> Any:
    try:
        return await answer
    finally:
        limiter.release(caller)


async def _counted(grant: LimitGrant, steps: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the steps of a stream, which counts as open until it is closed."""
    async with aclosing(steps):
        with grant.stream():
            async for step in steps:
                yield step


class MethodCall(ServiceCall, kw_only=True):
    """A call of an extension method."""

    handle: Callable[..., Awaitable[Any]]

    def _ask(self, done: Done) -> None:
        done(self._handled())

    async def _handled(self) -> Any:
        answer = await self.handle(self.endpoint.service, self.request, self.context)
        if not isinstance(answer, self.operation.response):
            raise TypeError(f"{self.operation.name} answered with {an(type(answer).__name__)}")
        return answer


def _settle_limits(call: ServiceCall) -> Awaitable[None] | None:
    grant = call.grant
    return None if grant is None or grant.is_settled else grant.settle()


def _ask_policy(call: ServiceCall) -> Awaitable[None] | None:
    """Call the agent's policy, except for messages: admission calls it when the skill is known."""
    rules, operation, context = call.endpoint.authorization, call.operation, call.context
    assert rules is not None
    if operation.request is SendMessageRequest and not operation.extension:
        return None
    access = access_of(
        operation.name, call.request, context.caller, agent=call.endpoint.key, tenant=context.tenant
    )
    return rules.permit(access)


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
        observed = None
        if is_observed():
            observed = ObservedRequest(
                operation, parameters.system, parameters.version, parameters.trace
            )
        try:
            if operation.streaming or not operation.safe:
                self._lifecycle.check_takes_work()
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
            named: str = getattr(request, "tenant", "")  # methods of extensions may have no tenant
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
                caller = ANONYMOUS  # proved only by schemes of other agents at this address
            if agent.refuses_unsigned is not None and not parameters.is_signed:
                raise agent.refuses_unsigned()
            begins_turn = operation.request is SendMessageRequest
            context = CallContext(
                caller=caller,
                tenant=tenant,
                version=parameters.version,
                extensions=extensions,
                last_event_id=parameters.last_event_id,
                trace=parameters.trace if observed is None else observed.position,
                observed=observed,
                reply_timeout=parameters.reply_timeout,
                address="" if grant is None else grant.address,
                base_url=parameters.addresses.address(tenant) if begins_turn else "",
                deadline=parameters.deadline,
                sender=parameters.sender if parameters.sender and not caller.owner else "",
            )
            if observed is not None:
                observed.known(agent.endpoint.key, request, context)
            if operation.extension:
                return agent.method_call(
                    operation, request, context, parameters.addresses, grant, observed
                )
            limiter = None
            if begins_turn and not operation.streaming:
                configuration = request.configuration
                if configuration is None or not configuration.return_immediately:
                    limiter = self._limiter
            return ServiceCall(
                agent.endpoint,
                operation,
                request,
                context,
                parameters.addresses,
                agent.steps,
                limiter,
                grant,
                parameters.takes_json,
                observed,
            )
        except BaseException as error:
            if observed is not None:
                observed.end(error)
            raise

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
                else "several agents share this address: name the tenant of the agent"
            )
        return agent


def _wrong_tenant(description: str) -> InvalidParamsError:
    return InvalidParamsError(
        f"tenant: {description}", violations=(FieldViolation("tenant", description),)
    )


class _CheckedEndpoint:
    """An endpoint with the capabilities and extensions of its card, and the steps of its calls.

    The card is read at the first request: until then an author may add to the agent.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        bindings = endpoint.bindings
        self.refuses_unsigned = next((b.refuse for b in bindings if b.refuses_unsigned), None)
        self.steps: list[CallStep] = []
        if endpoint.limits is not None:
            self.steps.append(_settle_limits)
        if endpoint.authorization is not None and endpoint.authorization.policy is not None:
            self.steps.append(_ask_policy)

    @cached_property
    def capabilities(self) -> AgentCapabilities:
        assert self.endpoint.card is not None
        return self.endpoint.card(()).capabilities

    @cached_property
    def extensions(self) -> Extensions:
        return Extensions.of(self.capabilities, self.endpoint.extensions)

    def check(self, operation: Operation, parameters: Parameters) -> frozenset[str]:
        """Return the active extensions. Raises ``A2AError`` if the card does not allow the
        request."""
        extensions = self.extensions.negotiate(parameters.extensions)
        if operation.extension:
            self.extensions.require(operation.extension, extensions)
        if operation.capability:
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
        return limits.begin(operation.name, caller, parameters.addresses.sender)

    def method_call(
        self,
        operation: Operation,
        request: Any,
        context: CallContext,
        addresses: SeenAddresses,
        grant: LimitGrant | None,
        observed: ObservedRequest | None,
    ) -> MethodCall:
        """Return the call of an extension method. Raises ``MethodNotFoundError``."""
        known: ExtensionMethod[Any, Any] | None = self.extensions.methods.get(operation.name)
        if known is None or known.operation.request is not operation.request:
            raise MethodNotFoundError(f"this agent has no method {operation.name}")
        return MethodCall(
            self.endpoint, operation, request, context, addresses, self.steps, grant=grant,
            observed=observed, handle=known.handle,
        )  # fmt: skip


# -- request fields ---------------------------------------------------------------------------

_REQUEST_IDS = (
    ("id", "id"),
    ("task_id", "taskId"),
    ("context_id", "contextId"),
    ("tenant", "tenant"),
)
_MESSAGE_IDS = (
    ("message_id", "message.messageId"),
    ("context_id", "message.contextId"),
    ("task_id", "message.taskId"),
)

MAX_ACTORS = 32
"""The maximum number of actors of a caller, which are stored with each of its messages."""

MAX_SCOPE_CHARACTERS = 16 * 1024
"""The maximum length of all scopes of a caller, which are stored too."""


def check_ids(request: Any) -> None:
    """Raise ``InvalidParamsError`` for ids that no store could keep.

    Requests of extensions are checked too where their fields have the same names.
    """
    if type(request) is SendMessageRequest:
        message = request.message
        ids = request.tenant + message.message_id + message.context_id + message.task_id
        if not message.reference_task_ids and may_be_id(ids):
            return  # checked together, as the common case is that all are valid
    elif type(request) is GetTaskRequest and may_be_id(request.tenant + request.id):
        return
    violations = tuple([FieldViolation(field, RIGHT_ID) for field in _invalid_fields(request)])
    if violations:
        fields = ", ".join([violation.field for violation in violations])
        raise InvalidParamsError(f"{fields}: an id has {RIGHT_ID}", violations=violations)


def check_caller(caller: Caller) -> None:
    """Raise ``UnauthenticatedError`` for a caller whose id or issuer is ambiguous or invalid."""
    if not may_be_name(caller.id):
        raise UnauthenticatedError(f"the id of the caller has {RIGHT_NAME}")
    if caller.client or caller.actors or caller.scopes:
        _check_client(caller)
    if not caller.issuer:
        return
    if not may_be_name(caller.issuer):
        raise UnauthenticatedError(f"the issuer of the caller's id has {RIGHT_NAME}")
    if not caller.id:
        raise UnauthenticatedError("the caller has an issuer but no id")


def _check_client(caller: Caller) -> None:
    if caller.client and not caller.id:
        raise UnauthenticatedError(
            "the caller has a client and no id: without a user, the client's id is the id"
        )
    if not may_be_name(caller.client) or not all(may_be_name(each) for each in caller.actors):
        raise UnauthenticatedError(f"the client and the actors of a caller have {RIGHT_NAME}")
    if len(caller.actors) > MAX_ACTORS:
        raise UnauthenticatedError(f"a caller has at most {MAX_ACTORS} actors")
    size = sum(len(scope) + 1 for scope in caller.scopes)
    if size > MAX_SCOPE_CHARACTERS:
        raise UnauthenticatedError(
            f"the scopes of a caller have at most {MAX_SCOPE_CHARACTERS} characters"
        )


def _invalid_fields(request: Any) -> Iterator[str]:
    for name, field in _REQUEST_IDS:
        value = getattr(request, name, "")
        if value and isinstance(value, str) and not may_be_id(value):
            yield field
    if not isinstance(request, SendMessageRequest):
        return
    message = request.message
    for name, field in _MESSAGE_IDS:
        if not may_be_id(getattr(message, name)):
            yield field
    for n, task_id in enumerate(message.reference_task_ids):
        if not may_be_id(task_id):
            yield f"message.referenceTaskIds[{n}]"
            break  # there may be a million parts


# -- the trace (W3C Trace Context and Baggage) ------------------------------------------------

MAX_TRACEPARENT = 256
"""The maximum length of an accepted ``traceparent``. Version 00 has 55 characters."""

MAX_TRACESTATE = 512
"""The maximum length of ``tracestate``. Members of a longer one are dropped."""

MAX_MEMBERS = 32
LONG_MEMBER = 128

_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace_id>[0-9a-f]{32})-(?P<parent_id>[0-9a-f]{16})-[0-9a-f]{2}"
    r"(?P<more>-[\x21-\x7e]*)?"
)
_KEY = r"(?:[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}|[a-z][a-z0-9_\-*/]{0,255})"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(f"({_KEY})={_VALUE}")

MAX_BAGGAGE = 8192
"""The maximum length of accepted baggage."""

MAX_BAGGAGE_MEMBERS = 64

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_OCTETS = r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
_BAGGAGE = re.compile(
    rf"{_TOKEN}[ \t]*=[ \t]*{_OCTETS}(?:[ \t]*;[ \t]*{_TOKEN}(?:[ \t]*=[ \t]*{_OCTETS})?)*"
)


def read_trace(
    parents: Sequence[str], states: Sequence[str] = (), baggage: Sequence[str] = ()
) -> TraceContext:
    """Return the trace in the ``traceparent``, ``tracestate`` and ``baggage`` headers of a request.

    An invalid ``traceparent``, or more than one, is ignored. An invalid ``tracestate`` is dropped,
    and so is baggage that is invalid or too long; several headers form one list.
    """
    carried = _baggage(baggage) if baggage else ""
    if len(parents) != 1 or not _is_traceparent(parents[0].strip(" \t")):
        return TraceContext(baggage=carried) if carried else NO_TRACE
    return TraceContext(
        traceparent=parents[0].strip(" \t"), tracestate=_tracestate(states), baggage=carried
    )


def trace_of(headers: Mapping[str, str]) -> TraceContext:
    """Return the trace in headers, each given once, with names in lower case."""
    names = ("traceparent", "tracestate", "baggage")
    return read_trace(*[[headers[name]] if name in headers else [] for name in names])


def _baggage(headers: Sequence[str]) -> str:
    text = ",".join(headers)
    if len(text) > MAX_BAGGAGE:
        return ""
    members = [member.strip(" \t") for member in text.split(",")]
    is_valid = len(members) <= MAX_BAGGAGE_MEMBERS and all(map(_BAGGAGE.fullmatch, members))
    return ",".join(members) if is_valid else ""


def _is_traceparent(text: str) -> bool:
    if len(text) > MAX_TRACEPARENT or (found := _TRACEPARENT.fullmatch(text)) is None:
        return False
    if found["version"] == "ff" or (found["version"] == "00" and found["more"] is not None):
        return False
    return found["trace_id"].strip("0") != "" and found["parent_id"].strip("0") != ""


def _tracestate(headers: Sequence[str]) -> str:
    """Return the members of a valid list, shortened at the end to fit; empty if it is invalid."""
    if sum(map(len, headers)) > 64 * MAX_TRACESTATE:
        return ""
    members = [member.strip(" \t") for header in headers for member in header.split(",")]
    members = [member for member in members if member]
    if len(members) > MAX_MEMBERS:
        return ""
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {each[1] for each in found if each is not None}
    if len(keys) < len(members):  # a member is invalid, or a key is duplicated
        return ""
    if len(",".join(members)) > MAX_TRACESTATE:  # drop long members first, then the last
        members = [member for member in members if len(member) <= LONG_MEMBER]
    while len(text := ",".join(members)) > MAX_TRACESTATE:
        members.pop()
    return text
