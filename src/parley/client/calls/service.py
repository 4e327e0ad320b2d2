"""A remote agent as an ``A2AService``: the operations of the table, over one binding.

Each call is checked against the card, sent over the binding, retried, and gets missing ids filled
in. ``RemoteAgent`` calls this.
"""

from __future__ import annotations

import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from parley.client.bindings.binding import Binding
from parley.client.card.interface import Candidate, declares
from parley.client.errors import ClientError, UnexpectedStatus, Unreachable, Untrusted
from parley.client.retry import Retry, repeat
from parley.model.cards import AgentCard
from parley.model.errors import (
    A2AError,
    ExtensionSupportRequiredError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import (
    OPERATIONS,
    CancelTaskRequest,
    GetTaskRequest,
    Operation,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Message
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from parley.observe import tracing
from parley.wire import versions

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# -- unopened ---------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")


class Unopened:
    """A connection that is not open yet. It has no methods of the agent."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"a connection has no {name!r} before it is open: write "
                f"`async with ... as agent`, and use agent.{name}",
                name=name,
                obj=self,
            )


class PendingCall(Coroutine[Any, Any, T]):
    """The coroutine of a call, with a clear error if it is used like the answer."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], name: str) -> None:
        self._coroutine = coroutine
        self._name = name

    def __await__(self) -> Generator[Any, None, T]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        """Resume the call."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the call."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End the call."""
        self._coroutine.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith(("cr_", "__")):
                return getattr(self._coroutine, name)
            raise AttributeError(
                f"{self._name}() was not awaited: write (await agent.{self._name}(...)).{name}",
                name=name,
                obj=self,
            )


def awaited(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a method's coroutine explain the missing ``await`` if it is used like the answer."""

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
        return PendingCall(method(*args, **options), method.__name__)

    return call


# -- service ----------------------------------------------------------------------------------

logger = logging.getLogger(__name__)


class RemoteService:
    """One method for every operation of the table, named as in ``A2AService``.

    Each call is checked against ``card`` (§3.3.4), which a later card may replace. Operations that
    change nothing are retried after transient errors, and so are messages if ``context`` requests
    idempotent sends and the agent supports them. ``follow`` resumes streams, this class does not.

    Methods raise ``A2AError`` for the agent's errors (``is_remote``), ``ClientError`` for a failed
    call.
    """

    def __init__(self, binding: Binding, card: AgentCard, retry: Retry) -> None:
        self.card = card
        self._binding = binding
        self._retry = retry

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Call an operation with a single answer."""
        self._check(operation, request, context)
        span, context = self._begin_span(operation, request, context)
        if span is None:
            return await self._call(operation, request, context)
        facts: dict[str, Any] = {}
        with tracing.ending(span, facts), tracing.current(span):
            answer = await self._call(operation, request, context)
            tracing.identify(answer, facts)
            return answer

    async def _call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        idempotent = (
            IDEMPOTENT_SEND in context.extensions
            and isinstance(request, SendMessageRequest)
            and declares(self.card, IDEMPOTENT_SEND)
        )
        try:
            answer = await repeat(
                lambda: self._binding.call(operation, request, context),
                self._retry,
                safe=operation.safe or idempotent,
                await_restart=idempotent,
                name=operation.name,
            )
        except A2AError as error:
            error.is_remote = True
            raise
        return with_ids(answer, *ids_in(request))

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Call an operation that answers with events.

        A direct message or a terminal state ends the stream; later events are dropped.
        """
        self._check(operation, request, context)
        span, context = self._begin_span(operation, request, context)
        task_id, context_id = ids_in(request)
        is_over = False
        facts: dict[str, Any] = {}
        items = self._binding.stream(operation, request, context)
        try:
            with tracing.ending(span, facts):
                async with aclosing(cast("AsyncGenerator[StreamItem, None]", items)) as open_items:
                    async for item in open_items:
                        if is_over:
                            logger.warning("task %.100r: events after its end are ignored", task_id)
                            return
                        event = with_ids(item.event, task_id, context_id)
                        if isinstance(event, Message):
                            is_over = True
                        elif isinstance(event, TaskArtifactUpdateEvent):
                            task_id, context_id = event.task_id, event.context_id
                        else:
                            task_id = event.id if isinstance(event, Task) else event.task_id
                            context_id, is_over = event.context_id, event.status.state.is_terminal
                        if span is not None:
                            tracing.identify(event, facts)
                        yield item if event is item.event else item._replace(event=event)
        except A2AError as error:
            error.is_remote = True
            raise

    def _begin_span(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> tuple[Span | None, CallContext]:
        """Return the span of a call, ``None`` without tracing, and the context to send."""
        if tracing.tracer is None:
            span, trace = None, tracing.position(context.trace)
        else:
            name = operation.name
            attributes = {"rpc.method": name, "gen_ai.agent.name": self.card.name}
            if isinstance(request, SendMessageRequest):
                name = f"invoke_agent {self.card.name}"
                attributes["gen_ai.operation.name"] = "invoke_agent"
            if (candidate := getattr(self._binding, "current", None)) is not None:
                url = candidate.interface.url
                host = urlsplit(url if "//" in url else f"//{url}").netloc.rpartition("@")[2]
                attributes["server.address"] = host
                attributes["rpc.system.name"] = _SYSTEMS.get(candidate.binding, "")
            task_id, context_id = ids_in(request)
            attributes |= {"a2a.task.id": task_id} if task_id else {}
            attributes |= {"gen_ai.conversation.id": context_id} if context_id else {}
            span, trace = tracing.outgoing(name, context.trace, attributes)
        if trace is context.trace:
            return span, context
        return span, msgspec.structs.replace(context, trace=trace)

    def _check(self, operation: Operation, request: A2AStruct, context: CallContext) -> None:
        """Raise the error that the agent would return according to its card (§3.3.4)."""
        capabilities = self.card.capabilities
        operation.check(capabilities)
        sent = request.configuration if isinstance(request, SendMessageRequest) else None
        if sent and sent.task_push_notification_config and not capabilities.push_notifications:
            raise PushNotificationNotSupportedError(
                f"the card of {self.card.name} does not declare capabilities.pushNotifications; "
                "send the message without a webhook"
            )
        missing = [
            extension.uri
            for extension in capabilities.extensions
            if extension.required and extension.uri not in context.extensions
        ]
        if missing:
            raise ExtensionSupportRequiredError(
                f"{self.card.name} requires the extensions {', '.join(missing)}; "
                "connect with extensions=[...] if you implement them",
                metadata={"requiredExtensions": ",".join(missing)},
            )
        uri = operation.extension
        if uri and not declares(self.card, uri):
            raise UnsupportedOperationError(
                f"{operation.name} needs the extension {uri}, which the card of "
                f"{self.card.name} does not declare",
                metadata={"operation": operation.name, "extension": uri},
            )


def ids_in(request: A2AStruct) -> tuple[str, str]:
    """Return the task id and the context id of a request; empty for none."""
    if isinstance(request, SendMessageRequest):
        return request.message.task_id, request.message.context_id
    if isinstance(request, GetTaskRequest | CancelTaskRequest | SubscribeToTaskRequest):
        return request.id, ""
    return getattr(request, "task_id", ""), ""


def with_ids(answer: Any, task_id: str, context_id: str) -> Any:
    """Return an answer or an event with missing ids filled in, if they are known."""
    missing = {}
    for name in _IDS.get(type(answer), ()):
        if not getattr(answer, name):
            id = context_id if name == "context_id" else task_id
            if id:
                missing[name] = id
    return msgspec.structs.replace(answer, **missing) if missing else answer


_SYSTEMS = {
    "JSONRPC": "jsonrpc",
    "HTTP+JSON": "http_json",
    "GRPC": "grpc",
    "LOCAL": "local",
    "urn:parley:envelope:v1": "envelope",
}

_IDS: dict[type, tuple[str, ...]] = {
    Task: ("id", "context_id"),
    TaskStatusUpdateEvent: ("task_id", "context_id"),
    TaskArtifactUpdateEvent: ("task_id", "context_id"),
    Message: ("context_id",),
    TaskPushNotificationConfig: ("task_id",),
}


def _method(operation: Operation) -> Callable[..., Awaitable[Any] | AsyncIterator[StreamItem]]:
    if operation.streaming:

        def stream(
            self: RemoteService, request: A2AStruct, context: CallContext
        ) -> AsyncIterator[StreamItem]:
            return self.stream(operation, request, context)

        return stream

    def call(
        self: RemoteService, request: A2AStruct, context: CallContext
    ) -> Coroutine[Any, Any, Any]:
        return self.call(operation, request, context)

    return call


for _operation in OPERATIONS:
    setattr(RemoteService, _operation.method, _method(_operation))


# -- failover ---------------------------------------------------------------------------------

# Statuses that show that the request was not processed as a protocol request.
_NOTHING_THERE = frozenset({404, 405})


class FailoverBinding:
    """A ``Binding`` over all ``candidates``, which calls one of them: ``current``.

    It tries the next candidate when the request certainly did not reach the agent: no connection,
    no protocol endpoint at the address, or a rejected version. A server that cannot be reached is
    tried only once per call, with its first interface: its other interfaces are unreachable too.
    The interface that works becomes ``current``. Requests carry the tenant of their interface.

    A change is logged, as a warning if the new version is older.
    """

    def __init__(
        self, candidates: Sequence[Candidate], make: Callable[[Candidate], Binding], *, name: str
    ) -> None:
        self.current = candidates[0]
        self._candidates = candidates
        self._make = make
        self._bindings: dict[Candidate, Binding] = {}
        self._name = name
        logger.info("%s: calling %s", name, self.current)

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return the operation's result."""
        refusals: list[A2AError | ClientError] = []
        for candidate, binding in self._in_order(refusals):
            try:
                answer = await binding.call(operation, _with_tenant(request, candidate), context)
            except (A2AError, ClientError) as error:
                if _is_undelivered(error):
                    refusals.append(error)
                    continue
                if _is_agents_answer(error):
                    self._use(candidate, refusals)
                raise
            self._use(candidate, refusals)
            return answer
        raise _combined(refusals)

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield the events of the operation."""
        refusals: list[A2AError | ClientError] = []
        for candidate, binding in self._in_order(refusals):
            items = binding.stream(operation, _with_tenant(request, candidate), context)
            begun = False
            try:
                async with aclosing(cast("AsyncGenerator[StreamItem, None]", items)) as open_items:
                    async for item in open_items:
                        if not begun:
                            begun = True
                            self._use(candidate, refusals)
                        yield item
            except (A2AError, ClientError) as error:
                if not begun and _is_undelivered(error):
                    refusals.append(error)
                    continue
                if not begun and _is_agents_answer(error):
                    self._use(candidate, refusals)
                raise
            return
        raise _combined(refusals)

    async def aclose(self) -> None:
        """Close every binding that was used. Idempotent."""
        async with AsyncExitStack() as stack:
            for binding in self._bindings.values():
                stack.push_async_callback(binding.aclose)

    def _in_order(self, refusals: Sequence[Exception]) -> Iterator[tuple[Candidate, Binding]]:
        """Yield the current interface and then the others, each with its binding.

        The caller adds the error of a failed interface to ``refusals`` before it asks for the next.
        """
        first = self.current
        unreachable: set[tuple[bool, str, str]] = set()
        for candidate in (first, *(other for other in self._candidates if other is not first)):
            if unreachable and _server_of(candidate) in unreachable:
                continue
            if candidate is not first:
                logger.info("%s: trying %s", self._name, candidate)
            yield candidate, self._binding_of(candidate)
            if refusals and isinstance(refusals[-1], Unreachable):
                unreachable.add(_server_of(candidate))

    def _binding_of(self, candidate: Candidate) -> Binding:
        binding = self._bindings.get(candidate)
        if binding is None:
            binding = self._bindings[candidate] = self._make(candidate)
        return binding

    def _use(self, candidate: Candidate, refusals: Sequence[Exception]) -> None:
        if not refusals or candidate is self.current:
            return
        before, self.current = self.current, candidate
        older = versions.SUPPORTED_VERSIONS.index(
            candidate.version
        ) > versions.SUPPORTED_VERSIONS.index(before.version)
        logger.log(
            logging.WARNING if older else logging.INFO,
            "%s: calling %s from now on (%s)",
            self._name,
            candidate,
            "; ".join(str(refusal) for refusal in refusals),
        )


def _server_of(candidate: Candidate) -> tuple[bool, str, str]:
    """Return the server to connect to; gRPC and HTTP use different connections."""
    url = candidate.interface.url
    parts = urlsplit(url if "//" in url else f"//{url}")
    return candidate.binding == "GRPC", parts.scheme, parts.netloc


def _with_tenant(request: A2AStruct, candidate: Candidate) -> A2AStruct:
    tenant = candidate.interface.tenant
    # A request of an extension may have no tenant field.
    if getattr(request, "tenant", tenant) == tenant:
        return request
    return msgspec.structs.replace(request, tenant=tenant)


def _is_undelivered(error: Exception) -> bool:
    """Return whether the agent certainly did not get the request, and cannot at this address."""
    if isinstance(error, UnexpectedStatus):
        return error.status in _NOTHING_THERE
    return isinstance(error, Unreachable | VersionNotSupportedError)


def _is_agents_answer(error: Exception) -> bool:
    """Return whether the agent sent this error. The client raises some errors of versions
    itself."""
    return isinstance(error, A2AError) and not isinstance(error, UnsupportedOperationError)


def _combined(refusals: Sequence[A2AError | ClientError]) -> Exception:
    """Return one error for the errors of all interfaces."""
    answers = [refusal for refusal in refusals if not isinstance(refusal, Unreachable)]
    if answers or len(refusals) == 1:
        return (answers or refusals)[0]
    kind = Untrusted if all(isinstance(r, Untrusted) for r in refusals) else Unreachable
    return kind("; ".join(dict.fromkeys(str(refusal) for refusal in refusals)))
