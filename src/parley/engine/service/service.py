"""The A2A operations on a local agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from copy import copy
from functools import cached_property, partial
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.engine.description import AgentDescription, check_caller, extended
from parley.engine.executor import AgentExecutor
from parley.engine.replies import ReplyHandle, ReplyWait, ended
from parley.engine.routing import HiddenSkills
from parley.engine.service.admission import (
    Admission,
    IdempotentAdmission,
    IncomingMessage,
    Repeated,
    skill_at_work,
)
from parley.engine.service.checks import check_history, invalid, not_found, page_of_tasks
from parley.engine.service.push_configs import PushConfigs
from parley.engine.turn.usage import usage_report
from parley.extensions.push_delivery import (
    GetPushHistoryRequest,
    GetPushHistoryResponse,
    PushOptionsResponse,
    SetPushOptionsRequest,
)
from parley.extensions.usage import UsageResponse
from parley.files.turn_files import TurnFiles
from parley.model.cards import AgentCard
from parley.model.concurrency import Done, outcome_of
from parley.model.errors import (
    A2AError,
    OverloadedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.operations import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    Empty,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Message
from parley.model.service import Batches, CallContext, ItemStream, StreamItem
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent
from parley.security.limits.agent_limits import AgentLimits
from parley.store.bus.subscriptions import LocalHints, Subscription
from parley.store.events import LoggedEvent, RecordKind, Scope
from parley.store.follow import Gap, TaskGone, follow
from parley.store.protocols.errors import StoreError, TaskEnded, UnknownTask
from parley.store.protocols.task_log import TaskRecord
from parley.store.snapshot import StoredTask
from parley.store.task_store import TaskStore
from parley.wire import versions


class AgentService:
    """The ``A2AService`` of one agent. Every answer is read from the log, so it is durable.

    Callers see only the tasks of their scope (agent, tenant, owner). ``in_json`` is for bindings
    that write the store's JSON unchanged. ``authenticates``: the server identifies callers, and the
    extended card is for authenticated callers. ``keeps_addresses``: turns get the address to which
    their message was sent, because none is configured. ``files`` stores the files that messages
    name by reference. ``limits`` are the agent's.
    """

    def __init__(
        self,
        agent: AgentDescription,
        *,
        executor: AgentExecutor,
        store: TaskStore,
        hints: LocalHints,
        authenticates: bool = False,
        keeps_addresses: bool = True,
        files: TurnFiles | None = None,
        limits: AgentLimits | None = None,
    ) -> None:
        self.agent = agent
        self.limits = limits
        self._executor = executor
        self._store = store
        self._hints = hints
        self._shown: Callable[[StoredTask], Task] = StoredTask.task
        self._authenticates = authenticates
        self._numbers_events = RESUMABLE_STREAMS in (e.uri for e in agent.extensions)
        self._hidden = HiddenSkills.of(agent, authenticates=authenticates)
        admission = Admission(
            agent,
            executor,
            store,
            keeps_addresses=keeps_addresses,
            files=files,
            hidden=self._hidden,
            limits=limits if limits is not None and limits.limits_messages else None,
        )
        self._admission = IdempotentAdmission(admission, store, executor.remote_replies)
        self._pushes = PushConfigs(
            executor,
            store,
            enabled=agent.push_notifications,
            default_events=agent.execution.push_events,
        )

    @cached_property
    def in_json(self) -> AgentService:
        """The same service, but tasks from the store stay JSON: ``msgspec.Raw``.

        For codecs that write these unchanged (``Codec.takes_json``).
        """
        service = copy(self)
        service._shown = _as_json
        return service

    # -- messages ------------------------------------------------------------------------------

    async def send_message(
        self, request: SendMessageRequest, context: CallContext
    ) -> Task | Message:
        """Answer a message with a task or a direct message (§3.1.1), as ``begin_message`` does."""
        reply: Task | Message = await outcome_of(partial(self.begin_message, request, context))
        return reply

    def begin_message(self, request: SendMessageRequest, context: CallContext, done: Done) -> None:
        """Answer a message: ``done`` receives the reply, its error, or the coroutine of the reply.

        The reply is available when the message's turn ends, after at most the agent's
        ``blocking_timeout`` and the caller's timeout, unless the caller wants an immediate return.
        Raises ``A2AError`` for a rejected message.
        """
        configuration = request.configuration
        immediate = configuration is not None and configuration.return_immediately
        m = IncomingMessage(request, context, self._scope(context), immediate)
        try:
            admitted = self._admission.admit(m)
        except StoreError as error:
            raise self._executor.unavailable(error) from error
        if isinstance(admitted, ReplyHandle) and not immediate:
            length = None if configuration is None else configuration.history_length
            self._wait_for_reply(admitted, context, length, done)
        else:
            done(self._reply_later(m, admitted))

    async def _reply_later(
        self,
        m: IncomingMessage,
        admitted: ReplyHandle | Coroutine[Any, Any, ReplyHandle | Repeated],
    ) -> Task | Message:
        """Return the reply to a message whose admission must be awaited, or its task."""
        context, length = m.context, _history_length(m.request)
        configuration = m.request.configuration
        try:
            found = admitted if isinstance(admitted, ReplyHandle) else await admitted
        except StoreError as error:
            raise self._executor.unavailable(error) from error
        del m
        if isinstance(found, Repeated) and found.reply is not None:
            return found.reply
        handle = found.handle if isinstance(found, Repeated) else found
        assert handle is not None
        immediate = configuration is not None and configuration.return_immediately
        if immediate and (handle.entry or handle.turn):
            await handle.logged()
            if not handle.done:
                return self._shown((await self._present(handle.task_id, length)).stored)
        reply: Task | Message = await outcome_of(
            partial(self._wait_for_reply, handle, context, length)
        )
        return reply

    def _wait_for_reply(
        self, handle: ReplyHandle, context: CallContext, length: int | None, done: Done
    ) -> None:
        timeout, executor = context.reply_timeout, self._executor
        if timeout is not None and timeout >= executor.options.blocking_timeout:
            timeout = None
        ReplyWait(handle, executor.blocking_timer, self._reply_is_there, timeout, length, done)

    def _reply_is_there(self, wait: ReplyWait) -> None:
        length, done = wait.history_length, wait.done
        assert done is not None
        if not wait.handle.done:
            done(self._find_reply(wait, length))
            return
        try:
            reply = self._reply(wait.handle, length)
        except A2AError as error:
            done(error)
        else:
            done(reply)

    async def _find_reply(self, wait: ReplyWait, length: int | None) -> Task | Message:
        """Return a reply from another process, or the task after the timeout."""
        if await wait.find():
            return self._reply(wait.handle, length)
        current = await self._executor.remote_replies.current_task(wait.handle, length)
        return self._shown(current)

    @property
    def reads_at_once(self) -> bool:
        """True if ``get_task`` and ``list_tasks`` need no I/O: the store is in memory."""
        return self._store.reads_at_once

    def _reply(self, handle: ReplyHandle, length: int | None) -> Task | Message:
        """Return an available reply. Raises the ``A2AError`` of a rejected message."""
        reply = handle.stored_reply
        if isinstance(reply, StoredTask):
            reply = self._shown(reply) if length is None else reply.task()
        return reply if length is None else _with_history(reply, length)

    def send_streaming_message(
        self, request: SendMessageRequest, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Answer a message with a direct message, or with the events of its turn (§3.1.2).

        The stream ends with the turn: at a terminal state, or when input is required, unless the
        agent has ``stream_until_terminal``. Tasks have as much history as requested.
        """
        batches, length = self._stream(request, context), _history_length(request)
        if length is not None:
            batches = _with_histories(batches, length)
        return ItemStream(batches if self._numbers_events else _without_numbers(batches))

    async def _stream(self, request: SendMessageRequest, context: CallContext) -> Batches:
        """Yield the events that answer a message; tasks have all of their history."""
        m = IncomingMessage(request, context, self._scope(context), with_task=True)
        try:
            admitted = self._admission.admit(m)
            handle = admitted if isinstance(admitted, ReplyHandle) else await admitted
        except StoreError as error:
            raise self._executor.unavailable(error) from error
        if isinstance(handle, Repeated):
            async with aclosing(self._repeat(handle, _history_length(request))) as batches:
                async for batch in batches:
                    yield batch
            return
        is_new = not m.may_be_logged
        del request, context, admitted, m  # free them: the turn may take hours
        if handle.found is not None:
            # The task before the message, so that no event of its turn is missed.
            yield (self._first_item(handle.found),)
            async with aclosing(self._follow(handle.task_id, handle.found.seq, handle)) as batches:
                async for batch in batches:
                    yield batch
            return
        # A new task runner has written nothing yet, so this subscription misses no event; an
        # enqueued task may already be in the log.
        with self._hints.subscribe(handle.task_id) as live:
            await handle.logged()
            new = live if is_new and handle.delegate is None else None
            if not handle.is_logged:
                if isinstance(handle.reply, Message):
                    yield (StreamItem(handle.reply),)
                    return
                new = None  # the store reported a failure, but has the task
            async with aclosing(self._follow(handle.task_id, 0, handle, new)) as batches:
                async for batch in batches:
                    yield batch

    async def _present(self, task_id: str, length: int | None) -> TaskRecord:
        """Return a task with ``length`` of its last messages."""
        return await self._owned(task_id, None, history=length, artifacts=True)

    def _first_item(self, record: TaskRecord) -> StreamItem:
        """Return the first item of a stream that begins with the current task."""
        return StreamItem(self._shown(record.stored), record.seq)

    async def _repeat(self, repeated: Repeated, length: int | None) -> Batches:
        """Stream the answer of a message that was admitted before.

        A message that began its task gets all its events; another message gets the task and its
        next events.
        """
        if repeated.reply is not None:
            yield (StreamItem(repeated.reply),)
            return
        record = await self._present(repeated.task_id, length)
        after = 0
        ends = not self.agent.execution.stream_until_terminal
        if not repeated.began:
            yield (self._first_item(record),)
            after = record.seq
            asks = record.state is TaskState.INPUT_REQUIRED
            if ends and asks and not record.waiting:
                return
        async with aclosing(self._questions(repeated.task_id, after)) as batches:
            async for batch, question in batches:
                yield batch
                if question is None or not ends or question.seq < record.seq:
                    continue
                if question.seq > record.seq or not record.waiting:
                    return

    # -- streams -------------------------------------------------------------------------------

    def subscribe_to_task(
        self, request: SubscribeToTaskRequest, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Follow a task to its end: first the task, then its events (§3.1.6).

        With ``last_event_id`` the stream begins with the next event instead, and a task that has
        ended is replayed from there; an agent without resumable streams ignores it.
        """
        if self._numbers_events:
            return ItemStream(self._subscribe(request, context))
        context = replace(context, last_event_id=None)
        return ItemStream(_without_numbers(self._subscribe(request, context)))

    async def _subscribe(self, request: SubscribeToTaskRequest, context: CallContext) -> Batches:
        scope = self._scope(context)
        record = await self._owned(request.id, scope)
        if context.last_event_id is not None:
            after = _event_number(context.last_event_id, record)
        elif record.state.is_terminal:
            raise UnsupportedOperationError(
                "the task has ended, so there is nothing to subscribe to; get the task"
                + (", or replay its events with Last-Event-ID" if self._numbers_events else ""),
                metadata={"taskId": request.id},
            )
        else:
            record = await self._owned(request.id, scope, history=None, artifacts=True)
            yield (self._first_item(record),)
            after = record.seq
        async with aclosing(self._follow(request.id, after)) as batches:
            async for batch in batches:
                yield batch

    async def _follow(
        self,
        task_id: str,
        after: int,
        handle: ReplyHandle | None = None,
        live: Subscription | None = None,
    ) -> Batches:
        """Yield the events after a number; with a handle, up to the end of its turn."""
        until = None if self.agent.execution.stream_until_terminal else handle
        async with aclosing(self._questions(task_id, after, live)) as batches:
            async for batch, question in batches:
                yield batch
                if (
                    until is not None
                    and question is not None
                    and 0 < await self._turn_of(until) <= question.turn
                ):
                    return
        if handle is not None and handle.entry and not await self._turn_of(handle):
            raise ended(task_id)

    async def _turn_of(self, handle: ReplyHandle) -> int:
        try:
            return handle.turn or await self._executor.remote_replies.turn_of(handle)
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    async def _questions(
        self, task_id: str, after: int, live: Subscription | None = None
    ) -> AsyncGenerator[tuple[Sequence[StreamItem], LoggedEvent | None], None]:
        """Yield batches of events after a number, each with the question that ends the batch, if
        any.

        A stream may end with a question, so no event that follows a question is in its batch.
        """
        try:
            async with aclosing(
                follow(self._store, self._hints, task_id, after, live=live)
            ) as batches:
                async for batch in batches:
                    begin = 0
                    for n, record in enumerate(batch, 1):
                        if record.kind is not RecordKind.ARTIFACT and _asks(record):
                            yield _items(batch[begin:n]), record
                            begin = n
                    if begin < len(batch):
                        yield _items(batch[begin:] if begin else batch), None
        except TaskGone:
            raise not_found(task_id) from None
        except Gap as gap:
            raise TaskNotFoundError(
                f"the events after {after} are no longer kept", metadata={"taskId": task_id}
            ) from gap
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    # -- tasks ---------------------------------------------------------------------------------

    async def get_task(self, request: GetTaskRequest, context: CallContext) -> Task:
        """Return a task with as much of its history as requested (§3.1.3)."""
        check_history(request.history_length, "historyLength")
        record = await self._owned(
            request.id, self._scope(context), history=request.history_length, artifacts=True
        )
        return self._shown(record.stored)

    async def list_tasks(
        self, request: ListTasksRequest, context: CallContext
    ) -> ListTasksResponse:
        """Return a page of the caller's tasks, the last updated first (§3.1.4)."""
        try:
            return await page_of_tasks(self._store, request, self._scope(context), self._shown)
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    async def cancel_task(self, request: CancelTaskRequest, context: CallContext) -> Task:
        """Cancel a task and return it, canceled (§3.1.5).

        A canceled task is returned unchanged, except over 0.3, where that is an error. A task that
        ended in another state cannot be canceled.
        """
        scope = self._scope(context)
        dialect = versions.dialect(context.version)
        record = await self._owned(request.id, scope)
        authorization = self.agent.authorization
        if authorization is not None and authorization.skills:
            authorization.check_skill(await self._skill_id(record), context.caller)
        may_be_canceled = dialect.repeats_cancel or record.state is not TaskState.CANCELED
        if not record.state.is_terminal:
            try:
                await self._executor.cancel(request.id, turn=record.turn, caller=context.caller)
            except (TaskEnded, UnknownTask):
                pass  # it has ended otherwise: its state is read below
            except StoreError as error:
                raise self._executor.unavailable(error) from error
            record = await self._owned(request.id, scope)
        if record.state is TaskState.CANCELED and may_be_canceled:
            record = await self._owned(request.id, scope, history=None, artifacts=True)
            return self._shown(record.stored)
        if not record.state.is_terminal:
            raise OverloadedError(
                "the cancellation is recorded, and the task will be canceled; ask again later",
                retry_after=1,
            )
        state = dialect.state_name(record.state)
        raise TaskNotCancelableError(
            f"the task ended as {state} and cannot be canceled",
            metadata={"taskId": request.id, "state": state},
        )

    async def _skill_id(self, record: TaskRecord) -> str:
        try:
            return (await skill_at_work(self.agent, self._store, record)).id
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    async def _owned(
        self, task_id: str, scope: Scope | None, *, history: int | None = 0, artifacts: bool = False
    ) -> TaskRecord:
        """Return a task, of this scope if one is given. Raises ``A2AError``."""
        load = self._store.load
        try:
            record = await load(task_id, scope=scope, history=history, artifacts=artifacts)
        except StoreError as error:
            raise self._executor.unavailable(error) from error
        if record is None:
            raise not_found(task_id)
        return record

    def _scope(self, context: CallContext) -> Scope:
        """Return the scope of a request's tasks. Raises ``A2AError`` for a caller without a
        scope."""
        return Scope(self.agent.key, context.tenant, self.agent.owner.key_of(context.caller))

    # -- push notification configurations ------------------------------------------------------

    async def create_task_push_notification_config(
        self, request: TaskPushNotificationConfig, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Add a webhook to a task, or replace one (§3.1.7)."""
        return await self._pushes.create(request, context, self._scope(context))

    async def get_task_push_notification_config(
        self, request: GetTaskPushNotificationConfigRequest, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Return a webhook of a task (§3.1.8)."""
        return await self._pushes.get(request, context, self._scope(context))

    async def list_task_push_notification_configs(
        self, request: ListTaskPushNotificationConfigsRequest, context: CallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return a page of the webhooks of a task (§3.1.9)."""
        return await self._pushes.list(request, context, self._scope(context))

    async def delete_task_push_notification_config(
        self, request: DeleteTaskPushNotificationConfigRequest, context: CallContext
    ) -> Empty:
        """Remove a webhook (§3.1.10)."""
        return await self._pushes.delete(request, context, self._scope(context))

    # -- extension: push delivery --------------------------------------------------------------

    async def set_push_options(
        self, request: SetPushOptionsRequest, context: CallContext
    ) -> PushOptionsResponse:
        """Set the events that a webhook receives."""
        return await self._pushes.set_options(request, context, self._scope(context))

    async def get_push_history(
        self, request: GetPushHistoryRequest, context: CallContext
    ) -> GetPushHistoryResponse:
        """Return the deliveries to the webhooks of a task."""
        return await self._pushes.history(request, self._scope(context))

    # -- usage ---------------------------------------------------------------------------------

    async def usage_of(self, context: CallContext, days: int) -> UsageResponse:
        """Return a caller's usage, and its limits (``extensions/usage.py``)."""
        try:
            return await usage_report(self.agent.key, self.limits, context, days, self._store.now())
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    # -- the extended card ---------------------------------------------------------------------

    async def get_extended_agent_card(
        self, request: GetExtendedAgentCardRequest, context: CallContext
    ) -> AgentCard:
        """Return the caller's card, without interfaces: the server adds them (§3.1.11)."""
        caller, card = context.caller, self.agent.card
        cards = self.agent.extended_cards
        has_card = bool(card.capabilities.extended_agent_card)
        check_caller(caller, has_card=has_card, authenticates=self._authenticates)
        own = card if self._hidden is None else self._hidden.card_for(caller)
        if cards is None:
            return extended(own, {})
        return await cards.of(card, caller, self._executor.in_thread, own=own)


def _as_json(stored: StoredTask) -> Task:
    """Return the JSON of a task, typed as a task."""
    return msgspec.Raw(stored.json())  # type: ignore[return-value]


def _history_length(request: SendMessageRequest) -> int | None:
    """Return the number of messages that the caller requests; ``None`` for all."""
    configuration = request.configuration
    return configuration.history_length if configuration is not None else None


def _with_history(reply: Task | Message, length: int) -> Task | Message:
    """Return a reply; a task with ``length`` of its last messages (§3.2.4)."""
    if isinstance(reply, Message) or length >= len(reply.history):
        return reply
    return replace(reply, history=reply.history[-length:] if length else ())


async def _with_histories(batches: Batches, length: int) -> Batches:
    """Yield the items of a stream; a task with ``length`` of its last messages (§3.2.4)."""
    async with aclosing(batches):
        async for batch in batches:
            yield [
                StreamItem(_with_history(item.event, length), item.seq)
                if isinstance(item.event, Task) and length < len(item.event.history)
                else item
                for item in batch
            ]


async def _without_numbers(batches: Batches) -> Batches:
    """Yield the items of a stream without numbers, for an agent without resumable streams."""
    async with aclosing(batches):
        async for batch in batches:
            yield [StreamItem(item.event, json=item.json) for item in batch]


def _event_number(last_event_id: str, record: TaskRecord) -> int:
    """Return the event number in a caller's Last-Event-ID. Raises ``InvalidParamsError``."""
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 16):
        raise invalid(
            "Last-Event-ID", "the number of the last event received, or 0 for all of them"
        )
    number = int(last_event_id)
    if number > record.seq:
        raise invalid("Last-Event-ID", f"the task's last event is {record.seq}")
    return number


def _items(records: Sequence[LoggedEvent]) -> list[StreamItem]:
    return [
        StreamItem(record.event, record.seq, record.payload)  # type: ignore[arg-type]
        for record in records
    ]


def _asks(record: LoggedEvent) -> bool:
    """Return whether an event is a public record of input-required."""
    event = record.event
    return (
        isinstance(event, TaskStatusUpdateEvent | Task)
        and event.status.state is TaskState.INPUT_REQUIRED
    )
