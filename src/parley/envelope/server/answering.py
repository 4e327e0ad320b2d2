"""The answers to REQUESTs: by the agent at the address, another agent, or an operator's handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from starlette.types import Scope

from parley.envelope.answers import (
    Answers,
    event,
    operation_of,
    read_operation,
    response,
    results_of,
    status_of,
    write_operation_result,
    write_stream_event,
)
from parley.envelope.messages import (
    OPERATION_PREFIX,
    DeadlineExceeded,
    Envelope,
    EnvelopeError,
    MessageIdReused,
    MessageType,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    Source,
    Status,
    SubType,
    UnknownAction,
    UnknownMessageType,
    envelope_error,
    task_error,
)
from parley.envelope.server.services import EnvelopeServices, MessageContext, NotHandled
from parley.extensions.declared import schemas_on
from parley.model.cards import AgentCard
from parley.model.errors import (
    A2AError,
    FieldViolation,
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from parley.model.extensions import CALL_CHAIN, IDEMPOTENT_SEND
from parley.model.operations import (
    BY_NAME,
    SKILL_KEY,
    GetTaskRequest,
    ListTasksResponse,
    Operation,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import StreamItem
from parley.model.struct import Timestamp
from parley.model.tasks import Event, Task, TaskState, TaskStatusUpdateEvent
from parley.security.limits.agent_limits import fields_of, standings_of
from parley.server.added_bindings import SeenFromScope
from parley.server.dispatch import Parameters, ServiceCall, trace_of
from parley.server.endpoint import Endpoint, Interfaces
from parley.server.http.exchange import ServedEndpoint
from parley.wire import versions

SEND = BY_NAME["SendMessage"]
STREAM = BY_NAME["SendStreamingMessage"]
_ALWAYS = (CALL_CHAIN,)
_OF_SKILLS = (IDEMPOTENT_SEND, *_ALWAYS)
_CLOCKS_DIFFER = 0.005
_LONGEST = timedelta(days=366)
_OF_MESSAGES = ("message.", "metadata.", "configuration.", "payload.")


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """A REQUEST that is answered by a call.

    ``is_skill``: its action is a skill, not an operation. ``began`` and ``ends`` are times of the
    event loop; ``ends`` is ``None`` without a timeout.
    """

    request: Envelope
    call: ServiceCall
    is_skill: bool
    began: float
    ends: float | None = None

    @property
    def payload(self) -> RequestPayload:
        """The payload of the request."""
        return payload_of(self.request)

    @property
    def is_command(self) -> bool:
        """Return whether a RESPONSE ``accepted`` comes first, and the end is an EVENT."""
        return self.request.message.sub_type == SubType.COMMAND

    @property
    def is_late(self) -> bool:
        """Return whether the timeout is over, also by the clock of the turn, which has whole ms."""
        now = asyncio.get_running_loop().time()
        return self.ends is not None and now >= self.ends - _CLOCKS_DIFFER


class Calls:
    """Makes calls of one agent, or of one tenant of an endpoint, out of REQUESTs.

    ``agent`` is that one, whose guard admits the messages: other agents behind the same address
    have bindings of their own. Its public card is read at the first message.
    """

    def __init__(self, served: ServedEndpoint, agent: Endpoint, tenant: str = "") -> None:
        self._served = served
        self.agent = agent
        self._tenant = tenant
        self._card: Callable[[Interfaces], AgentCard] | None = agent.card

    @cached_property
    def skills(self) -> frozenset[str]:
        """The skills on the public card."""
        skills = () if self._card is None else self._card(()).skills
        return frozenset(skill.id for skill in skills)

    @cached_property
    def _of_text(self) -> frozenset[str]:
        """The skills that take messages as they are, without a schema."""
        schemas = {} if self._card is None else schemas_on(self._card(()))
        typed = {id for id, schema in schemas.items() if schema.input is not None}
        return self.skills - typed

    def operation_of(self, request: Envelope) -> tuple[Operation, bool]:
        """Return the operation that a REQUEST is for, and whether its action is a skill.

        Raises ``UnknownAction`` for an operation that neither A2A nor an extension has.
        """
        payload = payload_of(request)
        action = payload.action
        if not action.startswith(OPERATION_PREFIX):
            # A command is answered while the turn runs, so it needs the events.
            streams = payload.metadata.stream or request.message.sub_type == SubType.COMMAND
            is_silent = request.message.sub_type == SubType.NOTIFICATION
            return (STREAM if streams and not is_silent else SEND), True
        name = action.removeprefix(OPERATION_PREFIX)
        known = self._served.dispatcher.extension_method(name, self._tenant)
        operation = known or operation_of(action)
        assert operation is not None
        if operation is SEND and request.message.sub_type == SubType.COMMAND:
            operation = STREAM
        if operation is STREAM and request.message.sub_type == SubType.NOTIFICATION:
            operation = SEND
        return operation, False

    async def count(self, context: MessageContext) -> None:
        """Count a message that is not a call of the agent against the rate limits of its caller.

        It counts as SendMessage does. Raises ``LimitExceeded``.
        """
        limits = self.agent.limits
        if limits is None:
            return
        caller, rights = context.caller, self.agent.authorization
        if rights is not None:
            caller = rights.own_caller(caller)
        addresses = SeenFromScope(self._served, context.scope)
        grant = limits.begin(SEND.name, caller, addresses.sender)
        grant.of_tenant(self._tenant)
        if not grant.is_settled:
            await grant.settle()

    def begin(self, request: Envelope, context: MessageContext) -> Exchanged:
        """Return the call that a REQUEST asks for. Raises ``A2AError``."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        payload = payload_of(request)
        metadata = payload.metadata
        operation, is_skill = self.operation_of(request)
        if metadata.stream and not operation.streaming:
            self._refuse_stream(request, operation)
        if metadata.after is not None and not operation.streaming:
            raise _invalid(
                "payload.metadata.after",
                "continues with EVENTs: request them with metadata.stream or the subType command, "
                "or "
                f"with the action {OPERATION_PREFIX}SubscribeToTask",
            )
        ends, deadline = _ends(metadata.timeout, began, context.deadline)
        given = {name.lower(): value for name, value in metadata.service_parameters.items()}
        _check_version(given)
        is_silent = request.message.sub_type == SubType.NOTIFICATION
        reply_timeout = 0.0 if is_silent else None if ends is None else max(0.0, ends - began)
        parameters = Parameters(
            version=versions.LATEST,
            caller=context.caller,
            extensions=self._extensions(given, context, is_skill=is_skill),
            tenant=self._tenant,
            last_event_id=None if metadata.after is None else str(metadata.after),
            trace=trace_of(given) or context.trace,
            reply_timeout=reply_timeout,
            deadline=deadline,
            sender=request.source.agent_id,
            is_signed=context.is_signed,
            addresses=SeenFromScope(self._served, context.scope),
            system="envelope",
        )

        def read() -> Any:
            if is_skill:
                return _message(request, takes_text=payload.action in self._of_text)
            return self._read(operation, payload)

        call = self._served.dispatcher.call(operation, parameters, read)
        if call.observed is not None and call.observed.facts is not None:
            call.observed.facts["correlation_id"] = request.message.correlation_id
        return Exchanged(request=request, call=call, is_skill=is_skill, began=began, ends=ends)

    def _read(self, operation: Operation, payload: RequestPayload) -> Any:
        """Return the request of an operation. Raises ``A2AError``."""
        request = read_operation(operation, payload.parameters)
        tenant = getattr(request, "tenant", "")  # methods of extensions may do without one
        if tenant and self._served.dispatcher.endpoint(tenant).key != self.agent.key:
            raise _invalid("tenant", f"there is no tenant {tenant[:100]!r} here")
        return request

    def _refuse_stream(self, request: Envelope, operation: Operation) -> None:
        if request.message.sub_type == SubType.NOTIFICATION:
            raise _invalid("payload.metadata.stream", "a notification gets no EVENTs: leave it out")
        raise _invalid(
            "payload.metadata.stream",
            f"{OPERATION_PREFIX}{operation.name} has one answer, and no EVENTs: leave it out",
        )

    def _extensions(
        self, given: Mapping[str, str], context: MessageContext, *, is_skill: bool
    ) -> tuple[str, ...]:
        names = [item.strip() for item in given.get("a2a-extensions", "").split(",")]
        asked = header_values(context.scope, b"a2a-extensions")
        # The id of an operation's message is A2A's: it is asked for as over other bindings.
        ours = _OF_SKILLS if is_skill else _ALWAYS
        return tuple(dict.fromkeys([*ours, *asked, *[name for name in names if name]]))


def payload_of(request: Envelope) -> RequestPayload:
    """Return the payload of a REQUEST. Raises ``InvalidRequestError`` for another one."""
    if not isinstance(request.payload, RequestPayload):
        raise InvalidRequestError("the payload of a REQUEST has an action")
    return request.payload


def in_terms_of_messages(error: A2AError, request: Envelope) -> A2AError:
    """Return the error of a skill's message in terms of its REQUEST: its action, its parameters."""
    if error.is_remote or not isinstance(error, InvalidParamsError):
        problem = error.metadata.get("problem")
        if problem == "deadline" and isinstance(error, UnsupportedOperationError):
            return DeadlineExceeded("the timeout of the request was over before it began")
        return error
    fields = {violation.field for violation in error.violations}
    if f"message.metadata.{SKILL_KEY}" in fields:
        action = payload_of(request).action[:100]
        return UnknownAction(
            f"there is no action {action!r}: {error.message}; operations of A2A begin with "
            f"{OPERATION_PREFIX!r}"
        )
    if "message.messageId" in fields and "another message" in error.message:
        return MessageIdReused(
            "this messageId was used for another message; a repeated message has the same action, "
            "parameters, contextId and taskId, a new one an id of its own",
            violations=(FieldViolation("messageId", "an id that no other message has"),),
        )
    renamed = tuple(
        FieldViolation(_renamed(violation.field), violation.description)
        for violation in error.violations
    )
    changed = type(error)(error.message, metadata=error.metadata, violations=renamed)
    changed.retry_after, changed.details = error.retry_after, error.details
    return changed


def _renamed(field: str) -> str:
    """Return the path of a field of a message in its REQUEST; others are parameters."""
    if field in ("message.contextId", "message.taskId"):
        return f"payload.metadata.{field.removeprefix('message.')}"
    if field == "message.messageId":
        return "messageId"
    if field == "Last-Event-ID":
        return "payload.metadata.after"
    if field == "tenant" or field.startswith(_OF_MESSAGES):
        return field
    separator = "" if not field or field.startswith("[") else "."
    return f"payload.parameters{separator}{field}"


def _message(request: Envelope, *, takes_text: bool) -> SendMessageRequest:
    """Return the message that the action of a skill is: one data part.

    A text is a text part, and so is ``{"text": ...}`` for a skill without a schema.
    """
    payload = payload_of(request)
    parameters, metadata = payload.parameters, payload.metadata
    text = parameters
    if takes_text and isinstance(parameters, dict) and parameters.keys() == {"text"}:
        text = parameters["text"]
    part = Part(text=text) if isinstance(text, str) else Part(data=parameters)
    return SendMessageRequest(
        message=Message(
            message_id=request.message_id,
            context_id=metadata.context_id,
            task_id=metadata.task_id,
            role=Role.USER,
            parts=(part,),
        ),
        metadata={SKILL_KEY: payload.action},
    )


def _ends(
    timeout: int | None, began: float, deadline: float | None
) -> tuple[float | None, Timestamp | None]:
    """Return when a request ends, as a time of the event loop and as a timestamp."""
    ends = deadline
    if timeout is not None:
        given = began + min(timeout / 1000, _LONGEST.total_seconds())
        ends = given if ends is None else min(ends, given)
    if ends is None:
        return None, None
    return ends, Timestamp.of(Timestamp.now() + timedelta(seconds=ends - began))


def _check_version(given: Mapping[str, str]) -> None:
    """Raise ``VersionNotSupportedError`` for service parameters of another version of A2A."""
    named = given.get("a2a-version", "").strip()
    if named and versions.requested(named) != versions.LATEST:
        raise VersionNotSupportedError(
            f"operations over the envelope protocol belong to A2A {versions.LATEST}",
            metadata={"requestedVersion": named[:40], "supportedVersions": versions.LATEST},
        )


def _invalid(field: str, description: str) -> InvalidParamsError:
    return InvalidParamsError(
        f"{field}: {description}", violations=(FieldViolation(field, description),)
    )


def header_values(scope: Scope, name: bytes) -> tuple[str, ...]:
    """Return the items of headers that are lists with commas."""
    found: Iterable[bytes] = (value for key, value in scope["headers"] if key == name)
    items = [item.strip() for value in found for item in value.decode("latin-1").split(",")]
    return tuple(item for item in items if item)


T = TypeVar("T")


class Replies:
    """The answers to one REQUEST. ``source`` is the agent that gives them."""

    def __init__(self, exchanged: Exchanged, source: Source) -> None:
        self._asked = exchanged
        self._call = exchanged.call
        self._source = source
        self._task_id = self._context_id = ""
        self._state: TaskState | None = None
        self._is_accepted = False

    async def all(self) -> Answers:
        """Yield the answers. Raises ``A2AError`` for what fails before the first."""
        begun = False
        answers = self._streamed() if self._call.operation.streaming else self._single()
        try:
            async with aclosing(answers):
                async for answer in answers:
                    begun = True
                    yield answer
        except A2AError as error:
            failure = in_terms_of_messages(error, self._asked.request) if self._is_skill else error
            if not begun and not self._task_id:
                raise failure from None
            payload = ResponsePayload(
                status=Status.ERROR, error=envelope_error(failure), metadata=self._metadata()
            )
            if self._is_accepted:
                yield event(self._asked.request, payload, source=self._source)
            else:
                yield self._response(payload)

    @property
    def _is_skill(self) -> bool:
        return self._asked.is_skill

    async def _single(self) -> Answers:
        call = self._call
        sends = call.operation.request is SendMessageRequest
        if sends:  # it waits no longer than its ``reply_timeout``
            answer = await call.answer()
        else:
            answer = await self._in_time(call.answer())
        if isinstance(answer, Task):
            self._see(answer)
            if sends and not self._wants_no_end:
                answer = await self._ended(answer)
        elif isinstance(answer, Message):
            self._context_id = answer.context_id
        if self._is_skill:
            yield self._response(self._outcome(answer))
            return
        total = answer.total_size if isinstance(answer, ListTasksResponse) else 1
        payload = ResponsePayload(
            status=Status.SUCCESS,
            results=(write_operation_result(call.operation, answer),),
            metadata=self._metadata(total),
        )
        yield self._response(payload)

    @property
    def _wants_no_end(self) -> bool:
        configuration = self._call.request.configuration
        is_immediate = configuration is not None and configuration.return_immediately
        return is_immediate or self._call.context.reply_timeout == 0.0

    async def _ended(self, task: Task) -> Task:
        """Return a task once its turn has ended, within the timeout of the REQUEST.

        Without a timeout it is returned as it is: the agent limits how long a sender waits.
        """
        asked = self._asked
        if asked.ends is None or status_of(task) is not Status.ACCEPTED:
            return task
        if not asked.is_late:
            await self._in_time(self._turn_end(task.id))
            task = await self._task()
        if status_of(task) is Status.ACCEPTED:
            raise _late()
        return task

    async def _turn_end(self, task_id: str) -> None:
        request = SubscribeToTaskRequest(tenant=self._call.context.tenant, id=task_id)
        context = msgspec.structs.replace(self._call.context, last_event_id=None)
        items = self._service.subscribe_to_task(request, context)
        async with aclosing(items):
            async for item in items:
                state = _state_of(item.event)
                if state is not None and (state.is_terminal or state.is_interrupted):
                    return

    async def _streamed(self) -> Answers:
        asked = self._asked
        is_over = False
        items = await self._items()
        async with aclosing(items):
            while not is_over:
                try:
                    item = await self._in_time(anext(items))
                except StopAsyncIteration:
                    break
                if isinstance(item.event, Message):
                    async for answer in self._direct(item):
                        yield answer
                    return
                self._see(item.event)
                if asked.is_command and not self._is_accepted:
                    yield self._accepted()
                is_over = self._ends(item.event)
                yield self._event(item, is_last=is_over and asked.is_command)
        if not asked.is_command:
            yield self._response(await self._end())
        elif not is_over:
            if not self._is_accepted:
                yield self._accepted()
            task = await self._task()
            payload = self._outcome(task)
            payload = msgspec.structs.replace(payload, results=())
            yield event(asked.request, payload, source=self._source)

    async def _direct(self, item: StreamItem) -> Answers:
        """Yield the answers that are a direct reply: it has no task, and so no further EVENTs."""
        assert isinstance(item.event, Message)
        self._context_id = item.event.context_id
        if self._is_skill:
            yield self._response(self._outcome(item.event))
            return
        results: tuple[Any, ...] = (write_stream_event(item),)
        if not self._asked.is_command:
            yield self._event(item, is_last=False)
            results = ()
        payload = ResponsePayload(
            status=Status.SUCCESS, results=results, metadata=self._metadata(len(results))
        )
        yield self._response(payload)

    async def _end(self) -> ResponsePayload:
        """Return the last answer to a query whose EVENTs have ended."""
        if self._is_skill:
            return self._outcome(await self._task())
        return ResponsePayload(status=Status.SUCCESS, metadata=self._metadata(0))

    async def _items(self) -> AsyncGenerator[StreamItem, None]:
        after = self._asked.payload.metadata.after
        items: Any = await self._call.answer()
        if after is None or self._call.operation.request is not SendMessageRequest:
            return items  # type: ignore[no-any-return]
        return self._resumed(items, after)

    async def _resumed(self, items: Any, after: int) -> AsyncGenerator[StreamItem, None]:
        """Yield the events of a repeated message, after a number."""
        async with aclosing(items):
            first = await anext(items, None)
            if first is None:
                return
            if first.seq is None:
                yield first
            else:
                self._see(first.event)
                joined = bool(self._call.request.message.task_id)
                if first.seq > after and joined:
                    # The events until the task was as it is now.
                    async for item in self._between(after, first.seq):
                        yield item
                elif first.seq > after:
                    yield first
            async for item in items:
                if item.seq is None or item.seq > after:
                    yield item
                else:
                    self._see(item.event)

    async def _between(self, after: int, last: int) -> AsyncGenerator[StreamItem, None]:
        request = SubscribeToTaskRequest(tenant=self._call.context.tenant, id=self._task_id)
        events = self._service.subscribe_to_task(request, self._call.context)
        async with aclosing(events):
            async for item in events:
                yield item
                if item.seq is None or item.seq >= last:
                    return

    def _ends(self, happened: Event) -> bool:
        """Return whether an event is the last of the exchange.

        A stream of an operation may continue after a question; a skill's does not.
        """
        state = _state_of(happened)
        if state is None:
            return False
        is_update = isinstance(happened, TaskStatusUpdateEvent)
        return state.is_terminal or (self._is_skill and is_update and state.is_interrupted)

    def _see(self, happened: Event) -> None:
        """Record the task of an event, and its state."""
        if isinstance(happened, Message):
            return
        self._task_id = happened.id if isinstance(happened, Task) else happened.task_id
        self._context_id = happened.context_id
        self._state = _state_of(happened) or self._state

    def _accepted(self) -> Envelope:
        self._is_accepted = True
        return self._response(ResponsePayload(status=Status.ACCEPTED, metadata=self._metadata(0)))

    def _event(self, item: StreamItem, *, is_last: bool) -> Envelope:
        metadata = ResponseMetadata(
            sequence=item.seq,
            task_id=self._task_id,
            context_id=self._context_id,
            state=str(self._state) if self._state is not None else "",
        )
        payload = ResponsePayload(
            status=Status.PARTIAL, results=(write_stream_event(item),), metadata=metadata
        )
        if is_last:
            assert isinstance(item.event, Task | TaskStatusUpdateEvent)
            whole = Task(id=self._task_id, context_id=self._context_id, status=item.event.status)
            took = msgspec.structs.replace(metadata, processing_time=self._took())
            payload = msgspec.structs.replace(
                payload, status=status_of(whole), error=self._failure(whole), metadata=took
            )
        return event(self._asked.request, payload, source=self._source)

    def _outcome(self, answer: Task | Message) -> ResponsePayload:
        """Return the end of a skill's turn."""
        results = results_of(answer)
        status, error = Status.SUCCESS, None
        if isinstance(answer, Task):
            self._see(answer)
            status, error = status_of(answer), self._failure(answer)
        return ResponsePayload(
            status=status, results=results, error=error, metadata=self._metadata(len(results))
        )

    def _failure(self, task: Task) -> EnvelopeError | None:
        if task.state is TaskState.FAILED and self._asked.is_late:
            return envelope_error(_late())
        return task_error(task)

    def _metadata(self, total: int | None = None) -> ResponseMetadata:
        return ResponseMetadata(
            processing_time=self._took(),
            total_results=total,
            task_id=self._task_id,
            context_id=self._context_id,
            state=str(self._state) if self._state is not None else "",
            rate_limits={} if self._call.grant is None else dict(self._call.grant.fields),
        )

    def _took(self) -> int:
        return round((asyncio.get_running_loop().time() - self._asked.began) * 1000)

    def _response(self, payload: ResponsePayload) -> Envelope:
        return response(self._asked.request, payload, source=self._source)

    @property
    def _service(self) -> Any:
        return self._call.endpoint.service

    async def _task(self) -> Task:
        """Return the task as it is now. Who may send a message may see what became of it."""
        request = GetTaskRequest(tenant=self._call.context.tenant, id=self._task_id)
        task: Task = await self._service.get_task(request, self._call.context)
        return task

    async def _in_time(self, work: Awaitable[T]) -> T:
        """Await something within the timeout. Raises ``DeadlineExceeded``."""
        if self._asked.ends is None:
            return await work
        try:
            async with asyncio.timeout_at(self._asked.ends) as limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise _late() from None
            raise


def _late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the timeout of the request is over; its task, if there is one, ends too"
    )


def _state_of(happened: Event) -> TaskState | None:
    if isinstance(happened, Task | TaskStatusUpdateEvent):
        return happened.status.state
    return None


class Answering:
    """Answers the messages to one agent, or to one tenant of an endpoint.

    ``source`` is the agent, as its answers name it.
    """

    def __init__(self, calls: Calls, services: EnvelopeServices, source: Source) -> None:
        self.calls = calls
        self.source = source
        self._services = services

    def is_for_hook(self, message: Envelope) -> bool:
        """Return whether an EVENT is for the operator's handler, if there is one."""
        is_event = message.message.type == MessageType.EVENT
        hook = self._services.handlers.hook
        return is_event and isinstance(message.payload, RequestPayload) and hook is not None

    def is_quick(self, request: Envelope) -> bool:
        """Return whether a message is a REQUEST that waits for no turn, and has no EVENTs."""
        if request.message.type != MessageType.REQUEST:
            return False
        try:
            operation, is_skill = self.calls.operation_of(request)
        except A2AError:
            return True
        return not (is_skill or operation.streaming or operation.name == "SendMessage")

    def limits_in(self, error: A2AError) -> ResponseMetadata:
        """Return the limits of the caller that an error names."""
        return ResponseMetadata(rate_limits=dict(fields_of(standings_of(error))))

    async def answers(
        self,
        request: Envelope,
        context: MessageContext,
        on_call: Callable[[ServiceCall], None] | None = None,
    ) -> Answers:
        """Yield the answers to a message; ``on_call`` gets the call of the agent, if it is one.

        Other agents, registrations and the agent come before the handler of the operator. Raises
        ``A2AError`` for what fails before the first.
        """
        directory, handlers = self._services.directory, self._services.handlers
        handler, is_counted = handlers.hook, False
        unknown: A2AError = UnknownMessageType(
            f"there is no message type {request.message.type[:60]!r}; there are "
            f"{', '.join(MessageType)}"
        )
        is_request = request.message.type == MessageType.REQUEST
        if is_request and directory.is_for_others(request, context):
            self._check_rights(request, context)
            async with aclosing(directory.route(request, context)) as routed:
                async for answer in routed:
                    yield answer
            return
        own = handlers.of_server(request) if is_request else None
        if is_request and own is None:
            try:
                async with aclosing(self._own(request, context, on_call)) as answers:
                    async for answer in answers:
                        yield answer
                return
            except UnknownAction as error:
                unknown, is_counted = error, True  # against the rates of its caller
        handler = own or handler
        if handler is None:
            raise unknown
        self._check_rights(request, context)
        if not is_counted:
            await self.calls.count(context)
        try:
            payload = await handlers.answer(handler, request, context)
        except NotHandled:
            raise unknown from None
        if payload is not None:
            yield response(request, payload, source=self.source)

    async def _own(
        self,
        request: Envelope,
        context: MessageContext,
        on_call: Callable[[ServiceCall], None] | None,
    ) -> Answers:
        try:
            exchanged = self.calls.begin(request, context)
        except A2AError as error:
            raise in_terms_of_messages(error, request) from None
        if on_call is not None:
            on_call(exchanged.call)
        async with aclosing(Replies(exchanged, self.source).all()) as replies:
            async for answer in replies:
                yield answer

    def _check_rights(self, message: Envelope, context: MessageContext) -> None:
        """Reject messages for other agents, and for handlers, without the agent's credentials.

        An operation of the agent may need none: it only lets its caller connect. Raises
        ``A2AError``.
        """
        rights = self.calls.agent.authorization
        if rights is not None:
            action = getattr(message.payload, "action", "") or message.message.type
            rights.check(action, rights.own_caller(context.caller))
