"""The operations of A2A on a local agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from parley.agent.agent import Agent
from parley.engine.executor import AgentExecutor
from parley.engine.replies.reply_handle import ReplyHandle
from parley.engine.replies.waiters import ended
from parley.engine.service.admission import (
    Admission,
    Repeated,
    check_history,
    invalid,
    not_found,
    owned,
)
from parley.engine.service.extended_card import check_caller
from parley.engine.service.pagination import page_of_tasks, with_history
from parley.engine.service.push_configs import PushConfigs
from parley.model.cards import AgentCard
from parley.model.errors import (
    OverloadedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from parley.model.parts import Message
from parley.model.push import TaskPushNotificationConfig
from parley.model.requests import (
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
)
from parley.model.service import CallContext, StreamItem
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent
from parley.store.bus.subscriptions import LocalHints, Subscription
from parley.store.events import LoggedEvent
from parley.store.follow import Gap, TaskGone, follow
from parley.store.task_store import (
    Scope,
    StoreError,
    TaskEnded,
    TaskRecord,
    TaskStore,
    UnknownTask,
)
from parley.wire import versions


class AgentService:
    """Answers for one agent out of its log (``A2AService``).

    Callers see the tasks of their own scope only (agent, tenant, caller); another's task does not
    exist for them. No answer tells what is not yet durable. ``authenticates``: callers are told
    apart, and what is not for everybody is for those who are known.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        executor: AgentExecutor,
        store: TaskStore,
        hints: LocalHints,
        authenticates: bool = False,
    ) -> None:
        self._agent = agent
        self._executor = executor
        self._store = store
        self._hints = hints
        self._authenticates = authenticates
        self._admission = Admission(agent, executor, store)
        self._pushes = PushConfigs(executor, store, enabled=agent.push_notifications)

    # -- messages ------------------------------------------------------------------------------

    async def send_message(
        self, request: SendMessageRequest, context: CallContext
    ) -> Task | Message:
        """Answer a message with a task or a direct message (§3.1.1).

        Waits for the message's own turn to end, at most for the agent's ``blocking_timeout`` and
        the reply timeout of the caller, unless the caller wants an immediate return.
        """
        configuration = request.configuration
        immediate = configuration is not None and configuration.return_immediately
        history = _history(request)
        try:
            admitted = await self._admission.admit(
                request, context, self._scope(context), logged=immediate
            )
        except StoreError as error:
            raise self._executor.unavailable(error) from error
        ticket = admitted.ticket
        if ticket is None:
            assert isinstance(admitted, Repeated)
            assert admitted.reply is not None
            return _trimmed(admitted.reply, history)
        if immediate and (ticket.entry or ticket.turn):
            await ticket.begun()
            if not ticket.done:
                return _trimmed(await self._present(ticket.task_id), history)
        if not ticket.is_settled:
            await ticket.progress()  # all that most replies need
        ceiling = self._executor.options.blocking_timeout
        if context.reply_timeout is not None:
            ceiling = min(ceiling, context.reply_timeout)
        if ticket.done or await ticket.answered(ceiling):
            return _trimmed(ticket.reply, history)
        return _trimmed(await self._executor.elsewhere.as_it_stands(ticket), history)

    def send_streaming_message(
        self, request: SendMessageRequest, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Answer a message with a direct message, or the events of its turn (§3.1.2).

        Ends with the turn: at a terminal state, or when input is required, unless the agent has
        ``stream_until_terminal``. A task among the events has as much history as asked for.
        """
        items, history = self._stream(request, context), _history(request)
        return items if history is None else _shortened(items, history)

    async def _stream(
        self, request: SendMessageRequest, context: CallContext
    ) -> AsyncGenerator[StreamItem, None]:
        """Yield the events that answer a message, tasks with all of their history."""
        try:
            admitted = await self._admission.admit(
                request, context, self._scope(context), shown=True
            )
        except StoreError as error:
            raise self._executor.unavailable(error) from error
        if isinstance(admitted, Repeated):
            async for item in self._repeat(admitted):
                yield item
            return
        ticket = admitted.ticket
        if ticket.found is not None:
            # From before the message: so nothing of its own turn is missed, however quick it is.
            yield StreamItem(ticket.found.task, ticket.found.seq)
            async for item in self._follow(ticket.task_id, ticket.found.seq, ticket):
                yield item
            return
        # A new lane has not run yet, so this subscription misses nothing of the task; one that
        # stands in line may be in the log.
        with self._hints.subscribe(ticket.task_id) as live:
            await ticket.begun()
            new = live if admitted.is_new and not ticket.is_elsewhere else None
            if not ticket.is_logged:
                if isinstance(ticket.reply, Message):
                    yield StreamItem(ticket.reply)
                    return
                new = None  # the store said that it failed, and has the task all the same
            async for item in self._follow(ticket.task_id, 0, ticket, new):
                yield item

    async def _present(self, task_id: str) -> Task:
        record = await self._load(task_id)
        if record is None:
            raise not_found(task_id)
        return record.task

    async def _repeat(self, repeated: Repeated) -> AsyncIterator[StreamItem]:
        """Stream what came of a message that was answered before.

        All of its task's events if it began the task, else the task as it stands and what follows.
        """
        if repeated.reply is not None:
            yield StreamItem(repeated.reply)
            return
        record = await self._load(repeated.task_id)
        if record is None:
            raise not_found(repeated.task_id)
        after = 0
        ends = not self._agent.options.stream_until_terminal
        if not repeated.began:
            yield StreamItem(record.task, record.seq)
            after = record.seq
            asks = record.task.state is TaskState.INPUT_REQUIRED
            if ends and asks and not record.waiting:
                return
        async with aclosing(self._batches(repeated.task_id, after)) as batches:
            async for batch in batches:
                for event in batch:
                    yield _item(event)
                    is_news = event.seq > record.seq or not record.waiting
                    if (
                        ends
                        and event.seq >= record.seq
                        and is_news
                        and _state(event) is TaskState.INPUT_REQUIRED
                    ):
                        return

    # -- streams -------------------------------------------------------------------------------

    async def subscribe_to_task(
        self, request: SubscribeToTaskRequest, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Follow a task to its end: first the task, then its events (§3.1.6).

        With ``last_event_id`` it begins with the event after that number instead, and a task that
        has ended is replayed from there.
        """
        scope = self._scope(context)
        record = await self._owned(request.id, scope)
        if context.last_event_id is not None:
            after = _place(context.last_event_id, record)
            async for item in self._follow(request.id, after):
                yield item
            return
        if record.task.state.is_terminal:
            raise UnsupportedOperationError(
                "the task has ended, so there is nothing to subscribe to; get the task, "
                "or replay its events with Last-Event-ID",
                metadata={"taskId": request.id},
            )
        record = await self._owned(request.id, scope, history=None, artifacts=True)
        yield StreamItem(record.task, record.seq)
        async for item in self._follow(request.id, record.seq):
            yield item

    async def _follow(
        self,
        task_id: str,
        after: int,
        ticket: ReplyHandle | None = None,
        live: Subscription | None = None,
    ) -> AsyncIterator[StreamItem]:
        """Yield events after a number; with a ticket, up to the end of its turn."""
        ending = None if self._agent.options.stream_until_terminal else ticket
        async with aclosing(self._batches(task_id, after, live)) as batches:
            async for batch in batches:
                for record in batch:
                    yield _item(record)
                    if (
                        ending is not None
                        and _state(record) is TaskState.INPUT_REQUIRED
                        and 0 < await self._turn_of(ending) <= record.turn
                    ):
                        return
        if ticket is not None and ticket.entry and not await self._turn_of(ticket):
            raise ended(task_id)

    async def _turn_of(self, ticket: ReplyHandle) -> int:
        try:
            return ticket.turn or await self._executor.elsewhere.turn_of(ticket)
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    async def _batches(
        self, task_id: str, after: int, live: Subscription | None = None
    ) -> AsyncGenerator[Sequence[LoggedEvent], None]:
        try:
            async with aclosing(
                follow(self._store, self._hints, task_id, after, live=live)
            ) as batches:
                async for batch in batches:
                    yield batch
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
        """Return a task with as much of its history as asked for (§3.1.3)."""
        check_history(request.history_length, "historyLength")
        record = await self._owned(
            request.id, self._scope(context), history=request.history_length, artifacts=True
        )
        return record.task

    async def list_tasks(
        self, request: ListTasksRequest, context: CallContext
    ) -> ListTasksResponse:
        """Return a page of the caller's tasks, the last updated first (§3.1.4)."""
        try:
            return await page_of_tasks(self._store, request, self._scope(context))
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    async def cancel_task(self, request: CancelTaskRequest, context: CallContext) -> Task:
        """Cancel a task and return it, canceled (§3.1.5).

        A task that was canceled before is returned as it is, in versions that have that (0.3 has
        not); one that ended otherwise cannot be canceled.
        """
        scope = self._scope(context)
        dialect = versions.dialect(context.version)
        record = await self._owned(request.id, scope)
        may_be_canceled = dialect.repeats_cancel or record.task.state is not TaskState.CANCELED
        if not record.task.state.is_terminal:
            try:
                await self._executor.cancel(request.id, turn=record.turn, caller=context.caller)
            except (TaskEnded, UnknownTask):
                pass  # it ended by itself; how, is looked up below
            except StoreError as error:
                raise self._executor.unavailable(error) from error
            record = await self._owned(request.id, scope)
        if record.task.state is TaskState.CANCELED and may_be_canceled:
            return (await self._owned(request.id, scope, history=None, artifacts=True)).task
        if not record.task.state.is_terminal:
            raise OverloadedError(
                "the cancellation is noted, and the task will be canceled; ask again later",
                retry_after=1,
            )
        state = dialect.state_name(record.task.state)
        raise TaskNotCancelableError(
            f"the task ended as {state} and cannot be canceled",
            metadata={"taskId": request.id, "state": state},
        )

    async def _load(self, task_id: str) -> TaskRecord | None:
        try:
            return await self._store.load(task_id)
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    async def _owned(
        self, task_id: str, scope: Scope, *, history: int | None = 0, artifacts: bool = False
    ) -> TaskRecord:
        try:
            return await owned(self._store, task_id, scope, history=history, artifacts=artifacts)
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    def _scope(self, context: CallContext) -> Scope:
        return Scope(self._agent.key, context.tenant, context.caller.owner)

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

    # -- the card for known callers ------------------------------------------------------------

    async def get_extended_agent_card(
        self, request: GetExtendedAgentCardRequest, context: CallContext
    ) -> AgentCard:
        """Return the card for the caller, without interfaces: a server knows them (§3.1.11)."""
        cards = self._agent.extended_cards
        check_caller(cards, context.caller, authenticates=self._authenticates)
        assert cards is not None
        return await cards.of(self._agent.card(()), context.caller, self._executor.in_thread)


def _trimmed(reply: Task | Message, length: int | None) -> Task | Message:
    if length is None or isinstance(reply, Message):
        return reply
    return with_history(reply, length)


def _history(request: SendMessageRequest) -> int | None:
    """Return how many messages of a task its caller wants to see; ``None`` for all."""
    configuration = request.configuration
    return configuration.history_length if configuration is not None else None


async def _shortened(
    items: AsyncGenerator[StreamItem, None], length: int
) -> AsyncGenerator[StreamItem, None]:
    """Yield the events of a stream; a task with so many of its last messages (§3.2.4)."""
    async with aclosing(items):
        async for item in items:
            task = item.event
            if isinstance(task, Task) and length < len(task.history):
                item = StreamItem(with_history(task, length), item.seq)
            yield item


def _place(last_event_id: str, record: TaskRecord) -> int:
    """Return the number that a caller's Last-Event-ID names."""
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 16):
        invalid("Last-Event-ID", "the number of the last event received, or 0 for all of them")
    after = int(last_event_id)
    if after > record.seq:
        invalid("Last-Event-ID", f"the task's last event is {record.seq}")
    return after


def _item(record: LoggedEvent) -> StreamItem:
    return StreamItem(record.event, record.seq, record.payload)  # type: ignore[arg-type]


def _state(record: LoggedEvent) -> TaskState | None:
    event = record.event
    return event.status.state if isinstance(event, TaskStatusUpdateEvent | Task) else None
