"""The operations of A2A on a local agent."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated

import msgspec

from parley.agent.admission import (
    Admission,
    Repeated,
    check_history,
    invalid,
    not_found,
    owned,
)
from parley.agent.agent import Agent
from parley.agent.executor import AgentExecutor
from parley.agent.senders import ended
from parley.agent.ticket import Ticket
from parley.log.events import LoggedEvent
from parley.log.follow import Gap, TaskGone, follow
from parley.log.hints import LocalHints, Subscription
from parley.log.store import (
    Scope,
    StoreError,
    TaskEnded,
    TaskQuery,
    TaskRecord,
    TaskStore,
    UnknownTask,
)
from parley.model.cards import AgentCard
from parley.model.errors import (
    OverloadedError,
    PushNotificationNotSupportedError,
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

DEFAULT_PAGE = 50
LARGEST_PAGE = 100


# Tokens come from outside, and a store takes moments of 64 bits.
_Moment = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class PageToken(msgspec.Struct, array_like=True):
    """Where the next page begins: after a task, in a walk that began at a moment (ms)."""

    status_at: _Moment
    task_id: str
    not_after: _Moment


class AgentService:
    """Answers for one agent out of its log (``A2AService``).

    Callers see the tasks of their own scope only (agent, tenant, caller); another's task does not
    exist for them. No answer tells what is not yet durable.
    """

    def __init__(
        self, agent: Agent, *, executor: AgentExecutor, store: TaskStore, hints: LocalHints
    ) -> None:
        self._agent = agent
        self._executor = executor
        self._store = store
        self._hints = hints
        self._admission = Admission(agent, executor, store)

    # -- messages ------------------------------------------------------------------------------

    async def send_message(
        self, request: SendMessageRequest, context: CallContext
    ) -> Task | Message:
        """Answer a message with a task or a direct message (§3.1.1).

        Waits for the message's own turn to end, at most for the agent's ``wait_ceiling``, unless
        the caller wants an immediate return.
        """
        configuration = request.configuration
        immediate = configuration is not None and configuration.return_immediately
        history = configuration.history_length if configuration is not None else None
        try:
            admitted = await self._admission.admit(
                request, context, self._scope(context), logged=immediate
            )
        except StoreError as error:
            raise self._executor.unavailable(error) from error
        if isinstance(admitted, Repeated):
            reply = admitted.reply or await self._present(admitted.task_id)
            return _trimmed(reply, history)
        ticket = admitted.ticket
        if immediate and (ticket.entry or ticket.turn):
            await ticket.begun()
            if not ticket.done:
                return _trimmed(await self._present(ticket.task_id), history)
        if not ticket.done:
            await ticket.progress()  # all that most replies need
        if ticket.done or await ticket.answered(self._executor.options.wait_ceiling):
            return _trimmed(ticket.reply, history)
        return _trimmed(await self._present(ticket.task_id), history)

    async def send_streaming_message(
        self, request: SendMessageRequest, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Answer a message with a direct message, or the events of its turn (§3.1.2).

        Ends with the turn: at a terminal state, or when input is required.
        """
        try:
            admitted = await self._admission.admit(
                request, context, self._scope(context), logged=False
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
        # A new lane has not run yet, so this subscription misses nothing of the task.
        with self._hints.subscribe(ticket.task_id) as live:
            await ticket.begun()
            if not ticket.is_logged:
                yield StreamItem(ticket.reply)
                return
            new = live if admitted.is_new else None
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
        if not repeated.began:
            yield StreamItem(record.task, record.seq)
            after = record.seq
            if record.task.state is TaskState.INPUT_REQUIRED and not record.waiting:
                return
        async with aclosing(self._batches(repeated.task_id, after)) as batches:
            async for batch in batches:
                for event in batch:
                    yield _item(event)
                    is_news = event.seq > record.seq or not record.waiting
                    if (
                        event.seq >= record.seq
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
        record = await self._owned(request.id, self._scope(context))
        if context.last_event_id is not None:
            after = _place(context.last_event_id, record)
            async for item in self._follow(request.id, after):
                yield item
            return
        if record.task.state.is_terminal:
            raise UnsupportedOperationError(
                "the task has ended, so there is nothing to subscribe to; get it with GetTask, "
                "or replay its events with Last-Event-ID",
                metadata={"taskId": request.id},
            )
        yield StreamItem(record.task, record.seq)
        async for item in self._follow(request.id, record.seq):
            yield item

    async def _follow(
        self,
        task_id: str,
        after: int,
        ticket: Ticket | None = None,
        live: Subscription | None = None,
    ) -> AsyncIterator[StreamItem]:
        """Yield events after a number; with a ticket, up to the end of its turn."""
        async with aclosing(self._batches(task_id, after, live)) as batches:
            async for batch in batches:
                for record in batch:
                    yield _item(record)
                    if (
                        ticket is not None
                        and 0 < ticket.turn <= record.turn
                        and _state(record) is TaskState.INPUT_REQUIRED
                    ):
                        return
        if ticket is not None and ticket.entry and not ticket.turn:
            raise ended(task_id)

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
        record = await self._owned(request.id, self._scope(context))
        return _with_history(record.task, request.history_length)

    async def list_tasks(
        self, request: ListTasksRequest, context: CallContext
    ) -> ListTasksResponse:
        """Return a page of the caller's tasks, the last updated first (§3.1.4)."""
        check_history(request.history_length, "historyLength")
        size = DEFAULT_PAGE if request.page_size is None else request.page_size
        if not 1 <= size <= LARGEST_PAGE:
            invalid("pageSize", f"pageSize is between 1 and {LARGEST_PAGE}")
        token = _read_token(request.page_token) if request.page_token else None
        after = request.status_timestamp_after
        not_after = token.not_after if token else None
        try:
            page = await self._store.list(
                TaskQuery(
                    scope=self._scope(context),
                    context_id=request.context_id,
                    state=request.status,
                    status_after=after.milliseconds if after is not None else None,
                    before=(token.status_at, token.task_id) if token else None,
                    not_after=not_after,
                    limit=size,
                    artifacts=bool(request.include_artifacts),
                )
            )
        except StoreError as error:
            raise self._executor.unavailable(error) from error
        tasks = tuple(
            _with_history(
                task if request.include_artifacts else msgspec.structs.replace(task, artifacts=()),
                request.history_length,
            )
            for task in page.tasks
        )
        following = ""
        if page.more and page.tasks:
            last = page.tasks[-1]
            following = _write_token(
                PageToken(
                    _status_at(last),
                    last.id,
                    not_after if not_after is not None else _status_at(page.tasks[0]),
                )
            )
        return ListTasksResponse(
            tasks=tasks, next_page_token=following, page_size=size, total_size=page.total
        )

    async def cancel_task(self, request: CancelTaskRequest, context: CallContext) -> Task:
        """Cancel a task and return it, canceled (§3.1.5).

        A task that was canceled before is returned as it is; one that ended otherwise cannot be.
        """
        scope = self._scope(context)
        record = await self._owned(request.id, scope)
        if not record.task.state.is_terminal:
            try:
                await self._executor.cancel(
                    request.id,
                    scope=scope,
                    context_id=record.task.context_id,
                    turn=record.turn,
                )
            except (TaskEnded, UnknownTask):
                pass  # it ended by itself; how, is looked up below
            except StoreError as error:
                raise self._executor.unavailable(error) from error
            record = await self._owned(request.id, scope)
        if record.task.state is TaskState.CANCELED:
            return record.task
        if not record.task.state.is_terminal:
            raise OverloadedError(
                "the cancellation is noted, and the task will be canceled; ask again later",
                retry_after=1,
            )
        raise TaskNotCancelableError(
            f"the task ended as {record.task.state.value} and cannot be canceled",
            metadata={"taskId": request.id, "state": record.task.state.value},
        )

    async def _load(self, task_id: str) -> TaskRecord | None:
        try:
            return await self._store.load(task_id)
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    async def _owned(self, task_id: str, scope: Scope) -> TaskRecord:
        try:
            return await owned(self._store, task_id, scope)
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    def _scope(self, context: CallContext) -> Scope:
        return Scope(self._agent.key, context.tenant, context.caller.id)

    # -- what this agent does not have ---------------------------------------------------------

    async def create_task_push_notification_config(
        self, request: TaskPushNotificationConfig, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Refuse: this agent sends no push notifications (§3.1.7)."""
        raise PushNotificationNotSupportedError

    async def get_task_push_notification_config(
        self, request: GetTaskPushNotificationConfigRequest, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Refuse: this agent sends no push notifications (§3.1.8)."""
        raise PushNotificationNotSupportedError

    async def list_task_push_notification_configs(
        self, request: ListTaskPushNotificationConfigsRequest, context: CallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Refuse: this agent sends no push notifications (§3.1.9)."""
        raise PushNotificationNotSupportedError

    async def delete_task_push_notification_config(
        self, request: DeleteTaskPushNotificationConfigRequest, context: CallContext
    ) -> Empty:
        """Refuse: this agent sends no push notifications (§3.1.10)."""
        raise PushNotificationNotSupportedError

    async def get_extended_agent_card(
        self, request: GetExtendedAgentCardRequest, context: CallContext
    ) -> AgentCard:
        """Refuse: this agent has no extended card (§3.1.11)."""
        raise UnsupportedOperationError("this agent has no extended card")


def _with_history(task: Task, length: int | None) -> Task:
    if length is None or length >= len(task.history):
        return task
    history = task.history[-length:] if length else ()
    return msgspec.structs.replace(task, history=history)


def _trimmed(reply: Task | Message, length: int | None) -> Task | Message:
    if length is None or isinstance(reply, Message):
        return reply
    return _with_history(reply, length)


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


def _status_at(task: Task) -> int:
    return task.status.timestamp.milliseconds if task.status.timestamp is not None else 0


def _write_token(token: PageToken) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).rstrip(b"=").decode()


def _read_token(text: str) -> PageToken:
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(data, type=PageToken)
    except (ValueError, msgspec.DecodeError):
        invalid("pageToken", "a token from nextPageToken of the page before, unchanged")
