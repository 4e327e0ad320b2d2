"""``EnvelopeClient``: what a user does with an agent by the envelope protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

import msgspec

from parley.client.bindings.request_auth import join_items, list_items
from parley.client.errors import Timeout, timeout_error
from parley.envelope.answers import message
from parley.envelope.client.answers import (
    AnswerEnd,
    EnvelopeAnswer,
    EnvelopeEvent,
    EnvelopeFailed,
    answer_of,
    event_of,
    is_broadcast,
    request_in,
)
from parley.envelope.client.connection import EnvelopeConnection
from parley.envelope.client.identity import RequestHandler
from parley.envelope.errors import envelope_error
from parley.envelope.messages import (
    OPERATION_PREFIX,
    Envelope,
    MessageType,
    Priority,
    RequestMetadata,
    RequestPayload,
    ResponsePayload,
    RoutingStrategy,
    Source,
    SubType,
    Target,
)
from parley.model.errors import A2AError, InvalidAgentResponseError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import BY_NAME

if TYPE_CHECKING:
    from parley.envelope.cards import EnvelopeCard

REGISTER = "registry.register"
"""The action that registers an agent with the server at the other end."""


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The HEARTBEAT that answered one: what it says, and how long it took, in seconds."""

    payload: dict[str, Any]
    round_trip: float


class EnvelopeStream(AsyncIterator[EnvelopeEvent]):
    """The events of one request, for an ``async for`` loop. Close it if you leave early.

    ``task_id`` and ``context_id`` are known from the first event on that has them.
    """

    def __init__(
        self, answers: AsyncGenerator[Envelope], request: Envelope, timeout: float | None
    ) -> None:
        self._answers = answers
        self._end = AnswerEnd(request)
        self._is_broadcast = is_broadcast(request)
        self._timeout = timeout
        self._ends = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self.task_id = ""
        self.context_id = ""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EnvelopeEvent:
        """Return the next event. Raises ``EnvelopeFailed``, ``Timeout``, ``ClientError``."""
        try:
            async with asyncio.timeout_at(self._ends) as limit:
                answer = await anext(self._answers)
        except TimeoutError:
            await self.aclose()
            if not limit.expired():
                raise
            raise timeout_error(self._timeout, self.task_id) from None
        if isinstance(answer.payload, ResponsePayload):
            self.task_id = answer.payload.metadata.task_id or self.task_id
            self.context_id = answer.payload.metadata.context_id or self.context_id
        of_one = self._is_broadcast and answer.message.type == MessageType.EVENT
        return event_of(answer, is_final=self._end.is_last(answer), of_one=of_one)

    async def aclose(self) -> None:
        """Stop reading; the task goes on. Idempotent."""
        await self._answers.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class EnvelopeClient:
    """An open connection to an agent by the envelope protocol (``parley.envelope.connect``).

    Requests survive connections: an unanswered one is sent again, with the same ``messageId``, and
    a stream goes on after its last event.
    """

    def __init__(
        self,
        connection: EnvelopeConnection,
        *,
        card: EnvelopeCard | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.connection = connection
        self.card = card
        self._on_close = on_close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    @property
    def source(self) -> Source:
        """Who this side says to be."""
        return self.connection.identity.source

    @property
    def uses_socket(self) -> bool:
        """Whether messages go over a WebSocket now, and not by HTTP."""
        return self.connection.uses_socket

    async def request(
        self,
        action: str,
        parameters: Any = None,
        *,
        sub_type: str = SubType.QUERY,
        priority: str = Priority.NORMAL,
        timeout: float | None = None,
        context_id: str = "",
        task_id: str = "",
        target: str | Target = "",
        message_id: str = "",
        service_parameters: Mapping[str, str] | None = None,
    ) -> EnvelopeAnswer:
        """Send a REQUEST and return its RESPONSE: the results of a query, or that a command began.

        ``action`` is the id of a skill, or an operation of A2A (``a2a.GetTask``). ``timeout`` is in
        seconds, for all of it: the agent is told what is left. ``task_id`` and ``context_id`` go on
        with a task or a conversation. ``target`` is the id of another agent that the server knows,
        or a ``Target``. The same ``message_id`` again gets the same task.

        Raises ``EnvelopeFailed`` for an error of the agent, ``Timeout``, and ``ClientError``.
        """
        _check_sub_type(sub_type, SubType.QUERY, SubType.COMMAND)
        given = self._request(
            action,
            parameters,
            RequestMetadata(
                context_id=context_id,
                task_id=task_id,
                service_parameters=dict(service_parameters or {}),
            ),
            sub_type=sub_type,
            priority=priority,
            target=target,
            message_id=message_id,
        )
        ends = None if timeout is None else asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(ends) as limit:
                async with aclosing(self._ask(given, ends)) as answers:
                    async for answer in answers:
                        if answer.message.type == MessageType.RESPONSE:
                            return answer_of(answer)
        except TimeoutError:
            if not limit.expired():
                raise
            raise timeout_error(timeout, task_id) from None
        raise Timeout("the agent sent no answer")

    def stream(
        self,
        action: str,
        parameters: Any = None,
        *,
        sub_type: str = SubType.QUERY,
        priority: str = Priority.NORMAL,
        timeout: float | None = None,
        context_id: str = "",
        task_id: str = "",
        target: str | Target = "",
        message_id: str = "",
        after: int | None = None,
        service_parameters: Mapping[str, str] | None = None,
    ) -> EnvelopeStream:
        """Send a REQUEST and return its EVENTs as they come, the last one is final.

        The final event of a query is its RESPONSE, with all results; a command begins with one
        that says ``accepted``. ``after`` goes on after an event with this number, of the same
        ``message_id``. The other options are those of ``request``.
        """
        _check_sub_type(sub_type, SubType.QUERY, SubType.COMMAND)
        given = self._request(
            action,
            parameters,
            RequestMetadata(
                stream=sub_type == SubType.QUERY,
                context_id=context_id,
                task_id=task_id,
                after=after,
                service_parameters=dict(service_parameters or {}),
            ),
            sub_type=sub_type,
            priority=priority,
            target=target,
            message_id=message_id,
        )
        ends = None if timeout is None else asyncio.get_running_loop().time() + timeout
        return EnvelopeStream(self._ask(given, ends), given, timeout)

    async def notify(
        self,
        action: str,
        parameters: Any = None,
        *,
        priority: str = Priority.NORMAL,
        context_id: str = "",
        task_id: str = "",
        target: str | Target = "",
        message_id: str = "",
    ) -> None:
        """Send a REQUEST that nobody answers. Raises ``ClientError`` if it could not be sent."""
        given = self._request(
            action,
            parameters,
            RequestMetadata(context_id=context_id, task_id=task_id),
            sub_type=SubType.NOTIFICATION,
            priority=priority,
            target=target,
            message_id=message_id,
        )
        async with aclosing(self._ask(given, None)) as answers:
            async for answer in answers:  # by HTTP a refusal has an answer
                answer_of(answer)

    async def heartbeat(self, payload: Mapping[str, Any] | None = None) -> HeartbeatAnswer:
        """Send a HEARTBEAT and return the one that answers it. Raises ``ClientError``."""
        clock = asyncio.get_running_loop().time
        began = clock()
        answer = await self.connection.heartbeat(dict(payload or {}))
        return HeartbeatAnswer(
            payload={} if answer is None else _members(answer), round_trip=clock() - began
        )

    # -- as an agent of its own ----------------------------------------------------------------

    async def register(self, card: EnvelopeCard | Mapping[str, Any]) -> EnvelopeAnswer:
        """Register an agent with the server at the other end, under this side's id.

        It is registered again after every reconnect, and the WebSocket is kept open. With
        ``on_request`` before, REQUESTs to the agent come over this connection. Raises
        ``EnvelopeFailed`` for a card that is refused.
        """
        from parley.envelope.cards import EnvelopeCard, write_card

        members = msgspec.json.decode(write_card(card)) if isinstance(card, EnvelopeCard) else card
        accepts = self.connection.inbound.handler is not None
        parameters = {"card": dict(members), "acceptsRequests": accepts}
        answer = await self.request(REGISTER, parameters)

        def greeting() -> Envelope:
            return self._request(REGISTER, parameters, RequestMetadata())

        self.connection.greet_with(REGISTER, greeting)
        self.connection.keep()
        return answer

    def on_request(self, handler: RequestHandler) -> RequestHandler:
        """Answer the REQUESTs that come over this connection; usable as a decorator.

        The handler is a function of an ``IncomingRequest``. It returns results (a list, or one JSON
        value), and raises ``A2AError`` for a refusal; an async generator sends what it yields as
        EVENTs. A REQUEST that comes again gets its first answer, unless that was a failure. At most
        64 are handled at a time. The WebSocket is kept open.
        """
        self.connection.inbound.handler = handler
        self.connection.keep()
        return handler

    def messages(self) -> AsyncIterator[Envelope]:
        """Return what comes by itself: EVENTs that answer nothing, HEARTBEATs, REQUESTs.

        The WebSocket is kept open. Of more than 1,000 unread messages, or 16 MiB, the oldest are
        dropped.
        """
        self.connection.keep()
        return self.connection.messages()

    async def aclose(self) -> None:
        """Close the connection; what is under way fails with ``ConnectionClosed``. Idempotent."""
        on_close, self._on_close = self._on_close, None
        try:
            await self.connection.close()
        finally:
            if on_close is not None:
                await on_close()

    # -- the message ---------------------------------------------------------------------------

    async def _ask(self, request: Envelope, deadline: float | None) -> AsyncGenerator[Envelope]:
        answers = self.connection.ask(request, deadline=deadline, repeats=may_repeat(request))
        async with aclosing(answers):
            try:
                async for answer in answers:
                    yield answer
            except InvalidAgentResponseError:
                raise
            except A2AError as error:  # the answer to the handshake
                raise EnvelopeFailed(envelope_error(error)) from None

    def _request(
        self,
        action: str,
        parameters: Any,
        metadata: RequestMetadata,
        *,
        sub_type: str = SubType.QUERY,
        priority: str = Priority.NORMAL,
        target: str | Target = "",
        message_id: str = "",
    ) -> Envelope:
        if priority not in tuple(Priority):
            raise ValueError(f"priority is one of {', '.join(Priority)}, not {priority!r:.60}")
        if isinstance(target, str):
            target = Target(agent_id=target)
        elif target.routing_strategy not in tuple(RoutingStrategy):
            known = ", ".join(RoutingStrategy)
            raise ValueError(
                f"routing_strategy is one of {known}, not {target.routing_strategy!r:.60}"
            )
        if action in _SENDS:  # the agent answers a repeated message once
            metadata = _with_extension(metadata, IDEMPOTENT_SEND)
        return message(
            MessageType.REQUEST,
            RequestPayload(
                action=action,
                parameters={} if parameters is None else parameters,
                metadata=metadata,
            ),
            source=self.source,
            target=target,
            sub_type=sub_type,
            priority=priority,
            message_id=message_id,
        )


def may_repeat(request: Envelope) -> bool:
    """Return whether a request may be sent again though it may have been processed.

    The same message to a skill gets the same task. Of operations, those that change nothing and
    messages are repeated.
    """
    action = request_in(request).action
    if not action.startswith(OPERATION_PREFIX) or action in _SENDS:
        return True
    operation = BY_NAME.get(action.removeprefix(OPERATION_PREFIX))
    return operation is not None and operation.safe


_SENDS = frozenset(f"{OPERATION_PREFIX}{name}" for name in ("SendMessage", "SendStreamingMessage"))


def _with_extension(metadata: RequestMetadata, uri: str) -> RequestMetadata:
    given = dict(metadata.service_parameters)
    name = next((each for each in given if each.lower() == "a2a-extensions"), "A2A-Extensions")
    given[name] = join_items(list_items(given.get(name, "")), (uri,))
    return msgspec.structs.replace(metadata, service_parameters=given)


def _check_sub_type(sub_type: str, *known: str) -> None:
    if sub_type not in known:
        raise ValueError(
            f"sub_type is {' or '.join(known)} here, not {sub_type!r:.60}; notifications are sent "
            "with notify"
        )


def _members(answer: Envelope) -> dict[str, Any]:
    if not isinstance(answer.payload, msgspec.Raw):
        return {}
    members = msgspec.json.decode(answer.payload)
    return members if isinstance(members, dict) else {}
