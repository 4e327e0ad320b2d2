"""Who answers a REQUEST: the agent at the address, another one, or a handler of the operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeVar, cast

import msgspec

from parley.envelope.answers import (
    error_response,
    event,
    response,
    results_of,
    status_of,
    write_operation_result,
    write_stream_event,
)
from parley.envelope.errors import (
    DeadlineExceeded,
    TargetNotFound,
    UnknownAction,
    UnknownMessageType,
    envelope_error,
    task_error,
)
from parley.envelope.messages import (
    Envelope,
    EnvelopeError,
    MessageType,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    Source,
    Status,
)
from parley.envelope.server.calls import Calls, Exchanged, in_terms_of_messages
from parley.envelope.server.directory import MessageContext
from parley.envelope.server.plugins import EnvelopeHandler, EnvelopeServices, NotHandled
from parley.model.errors import A2AError
from parley.model.operations import (
    GetTaskRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.parts import Message
from parley.model.service import StreamItem
from parley.model.tasks import Event, Task, TaskState, TaskStatusUpdateEvent
from parley.security.limits.agent_limits import fields_of, standings_of
from parley.server.dispatch import ServiceCall
from parley.server.log import log_unforeseen

# -- replies ----------------------------------------------------------------------------------
#
# From what an agent answers to RESPONSEs and EVENTs.
#
# A query gets one RESPONSE, with EVENTs before it where its operation streams. A command gets a
# RESPONSE ``accepted`` once its task is in the log, then EVENTs, of which the last has the final
# status. The number of an EVENT is that of the event in the task's log.


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

    async def all(self) -> AsyncGenerator[Envelope, None]:
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

    # -- one answer ----------------------------------------------------------------------------

    async def _single(self) -> AsyncGenerator[Envelope, None]:
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
        items = _closable(self._service.subscribe_to_task(request, context))
        async with aclosing(items):
            async for item in items:
                state = _state_of(item.event)
                if state is not None and (state.is_terminal or state.is_interrupted):
                    return

    # -- EVENTs --------------------------------------------------------------------------------

    async def _streamed(self) -> AsyncGenerator[Envelope, None]:
        asked = self._asked
        is_over = False
        items = self._items()
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

    async def _direct(self, item: StreamItem) -> AsyncGenerator[Envelope, None]:
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

    def _items(self) -> AsyncGenerator[StreamItem, None]:
        after = self._asked.payload.metadata.after
        if after is None or self._call.operation.request is not SendMessageRequest:
            return _closable(self._call.stream())
        return self._resumed(after)

    async def _resumed(self, after: int) -> AsyncGenerator[StreamItem, None]:
        """Yield the events of a message that was sent before, after a number."""
        items = _closable(self._call.stream())
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
                    # What came until the task was as it is now.
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
        events = _closable(self._service.subscribe_to_task(request, self._call.context))
        async with aclosing(events):
            async for item in events:
                yield item
                if item.seq is None or item.seq >= last:
                    return

    def _ends(self, happened: Event) -> bool:
        """Return whether an event is the last of the exchange.

        A stream of an operation may go on after a question; that of a skill does not.
        """
        state = _state_of(happened)
        if state is None:
            return False
        is_update = isinstance(happened, TaskStatusUpdateEvent)
        return state.is_terminal or (self._is_skill and is_update and state.is_interrupted)

    # -- the parts of an answer ----------------------------------------------------------------

    def _see(self, happened: Event) -> None:
        """Note the task of an event, and its state."""
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

    # -- the agent -----------------------------------------------------------------------------

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


def _closable(items: Any) -> AsyncGenerator[StreamItem, None]:
    return cast("AsyncGenerator[StreamItem, None]", items)


# -- answering --------------------------------------------------------------------------------


class Answering:
    """Answers the messages to one agent, or to one tenant of an endpoint.

    ``source`` is the agent, as its answers name it.
    """

    def __init__(self, calls: Calls, services: EnvelopeServices, source: Source) -> None:
        self.calls = calls
        self.source = source
        self._services = services

    def is_for_hook(self, message: Envelope) -> bool:
        """Return whether an EVENT says something to the operator's handler, if there is one."""
        is_event = message.message.type == MessageType.EVENT
        hook = self._services.handlers.hook
        return is_event and isinstance(message.payload, RequestPayload) and hook is not None

    def is_quick(self, request: Envelope) -> bool:
        """Return whether a REQUEST waits for no turn, and has no EVENTs."""
        try:
            operation, is_skill = self.calls.operation_of(request)
        except A2AError:
            return True
        return not (is_skill or operation.streaming or operation.name == "SendMessage")

    async def answers(
        self, request: Envelope, context: MessageContext
    ) -> AsyncGenerator[Envelope, None]:
        """Yield the RESPONSE and the EVENTs of a REQUEST; whatever fails is a RESPONSE too."""
        try:
            answers = self.tried(request, context)
            async with aclosing(answers):
                async for answer in answers:
                    yield answer
        except A2AError as error:
            yield self.refusal(request, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not this request, but something within the service was cancelled.
            yield error_response(request, log_unforeseen("a REQUEST"), source=self.source)
        except Exception:
            yield error_response(request, log_unforeseen("a REQUEST"), source=self.source)

    def refusal(self, request: Envelope | str, error: A2AError) -> Envelope:
        """Return the RESPONSE of an error, with what is left of limits."""
        limits = dict(fields_of(standings_of(error)))
        metadata = ResponseMetadata(rate_limits=limits)
        return error_response(request, error, source=self.source, metadata=metadata)

    async def of_unknown_type(self, message: Envelope, context: MessageContext) -> Envelope | None:
        """Return the answer to a message of a type that the protocol does not have.

        Raises ``A2AError``.
        """
        handler = self._services.handlers.hook
        if handler is not None:
            with suppress(NotHandled):
                return await self._handled(handler, message, context)
        known = ", ".join(MessageType)
        raise UnknownMessageType(
            f"there is no message type {message.message.type[:60]!r}; there are {known}"
        )

    async def tried(
        self,
        request: Envelope,
        context: MessageContext,
        on_call: Callable[[ServiceCall], None] | None = None,
    ) -> AsyncGenerator[Envelope, None]:
        """Yield the answers to a REQUEST; ``on_call`` gets the call of the agent, if it is one.

        Raises ``A2AError`` for what fails before the first.
        """
        directory, handlers = self._services.directory, self._services.handlers
        if directory is None:
            self._check_target(request)
        elif directory.is_for_others(request, context):
            self._check_rights(request, context)
            routed = cast("AsyncGenerator[Envelope, None]", directory.route(request, context))
            async with aclosing(routed):
                async for answer in routed:
                    yield answer
            return
        handler = handlers.of_server(request)
        if handler is None:
            try:
                own = self._own(request, context, on_call)
                async with aclosing(own):
                    async for answer in own:
                        yield answer
                return
            except UnknownAction as error:
                if (handler := handlers.hook) is None:
                    raise
                self._check_rights(request, context)
                try:  # the call has counted against the rates of its caller
                    payload = await handlers.answer(handler, request, context)
                except NotHandled:
                    raise error from None
                if payload is not None:
                    yield response(request, payload, source=self.source)
                return
        handled = await self._handled(handler, request, context)
        if handled is not None:
            yield handled

    async def _own(
        self,
        request: Envelope,
        context: MessageContext,
        on_call: Callable[[ServiceCall], None] | None,
    ) -> AsyncGenerator[Envelope, None]:
        try:
            exchanged = self.calls.begin(request, context)
        except A2AError as error:
            raise in_terms_of_messages(error, request) from None
        if on_call is not None:
            on_call(exchanged.call)
        replies = Replies(exchanged, self.source).all()
        async with aclosing(replies):
            async for answer in replies:
                yield answer

    async def _handled(
        self, handler: EnvelopeHandler, message: Envelope, context: MessageContext
    ) -> Envelope | None:
        self._check_rights(message, context)
        await self.calls.count(context)
        payload = await self._services.handlers.answer(handler, message, context)
        return None if payload is None else response(message, payload, source=self.source)

    def _check_rights(self, message: Envelope, context: MessageContext) -> None:
        """Refuse what the agent itself does not answer to a caller without the agent's credentials.

        One of its operations may need none: that lets its caller connect, and no more. Raises
        ``A2AError``.
        """
        rights = self.calls.agent.authorization
        if rights is not None:
            action = getattr(message.payload, "action", "") or message.message.type
            rights.check(action, rights.own_caller(context.caller))

    def _check_target(self, request: Envelope) -> None:
        """Raise ``TargetNotFound`` for a message to another agent: none is known here."""
        target: Any = request.target
        if target.agent_id not in ("", self.source.agent_id) or target.agent_type not in (
            "",
            self.source.agent_type,
        ):
            raise TargetNotFound(
                "no agent here is like the target of the message; leave it out to call the agent "
                "at this address"
            )
