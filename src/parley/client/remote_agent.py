"""A remote agent in the caller's hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import msgspec
from msgspec import UNSET, UnsetType

from parley.client.bindings.http import HttpTransport
from parley.client.calls.last_words import Looks, with_last_words
from parley.client.calls.negotiation import Interfaces
from parley.client.calls.question import is_settled, still_asks, task_before
from parley.client.calls.service import RemoteService
from parley.client.calls.stream import EventStream, StreamReader, follow
from parley.client.calls.turns import turn
from parley.client.card.interface import declares
from parley.client.card.resolver import ResolvedCard
from parley.client.errors import ClientError, Timeout
from parley.client.extensions import Activation, call_method
from parley.client.message import Push, Sendable, compose
from parley.client.push import PushConfigs
from parley.client.retry import Retry
from parley.model.backoff import Backoff
from parley.model.cards import AgentCard, AgentInterface
from parley.model.encoding import encode
from parley.model.errors import UnsupportedOperationError
from parley.model.extensions import IDEMPOTENT_SEND, RESUMABLE_STREAMS, A, ExtensionMethod, Q
from parley.model.parts import Message, Part
from parley.model.requests import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.service import A2AService, CallContext
from parley.model.struct import Timestamp
from parley.model.tasks import Event, Task, TaskState, TaskStatusUpdateEvent
from parley.wire import versions


class RemoteAgent:
    """An agent somewhere else. Made by ``connect``; an async context manager.

    ``service`` is the agent as an ``A2AService``, to be called with ``context``; ``push`` manages
    its push notification configurations.

    Every method raises ``A2AError`` for what the agent refuses and ``ClientError`` when it could
    not be asked or heard; wrong arguments raise ``TypeError`` and ``ValueError``, an unreadable
    file ``OSError``. Cancelling a call gives up its connection, never the task.
    """

    def __init__(
        self,
        resolved: ResolvedCard,
        interfaces: Interfaces,
        context: CallContext,
        *,
        refetch: Callable[[], Awaitable[ResolvedCard]],
        retry: Retry,
        http: HttpTransport | None,
        activation: Activation,
        passed_over: Sequence[AgentInterface] = (),
    ) -> None:
        self.card_json: bytes = resolved.raw
        self.context = context
        self._remote = RemoteService(interfaces, resolved.card, retry)
        self.service = cast("A2AService", self._remote)
        self._interfaces = interfaces
        self._refetch = refetch
        self._retry = retry
        self._http = http
        self._activation = activation
        self._passed_over = tuple(passed_over)

    @property
    def card(self) -> AgentCard:
        """The agent's card: as it was found, or the extended one once it was asked for."""
        return self._remote.card

    @property
    def interface(self) -> AgentInterface:
        """The interface that is called: the first on the card that can be, or that worked."""
        return self._interfaces.current.interface

    @property
    def passed_over(self) -> tuple[AgentInterface, ...]:
        """The interfaces that are not called, as their origins may not have the credentials."""
        return self._passed_over

    @property
    def version(self) -> str:
        """The version of the protocol that is spoken, such as 1.0."""
        return self._interfaces.current.version

    @property
    def push(self) -> PushConfigs:
        """The webhooks that are told of tasks."""
        return PushConfigs(self.service, self.context)

    @property
    def _streams(self) -> bool:
        return bool(self.card.capabilities.streaming)

    @property
    def _numbered(self) -> bool:
        return declares(self.card, RESUMABLE_STREAMS)

    def _ends_stream(self, event: Event) -> bool:
        return versions.dialect(self.version).jsonrpc.ends_stream(event)

    @property
    def _repeatable(self) -> bool:
        return IDEMPOTENT_SEND in self.context.extensions and declares(self.card, IDEMPOTENT_SEND)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; streams under way end with ``ConnectionClosed``. Idempotent."""
        try:
            await self._interfaces.aclose()
        finally:
            if self._http is not None:
                await self._http.close()

    async def send(
        self,
        message: Sendable | None = None,
        *,
        context_id: str | None = None,
        task_id: str | None = None,
        task: Task | None = None,
        files: Sequence[str | Path | bytes | Part] = (),
        data: Any | UnsetType = UNSET,
        metadata: dict[str, Any] | None = None,
        message_metadata: dict[str, Any] | None = None,
        references: Sequence[str | Task] = (),
        accepted_output_modes: Sequence[str] = (),
        push: Push | None = None,
        history_length: int | None = None,
        return_immediately: bool = False,
        timeout: float | None = None,
    ) -> Task | Message:
        """Send a message and return the answer: a direct message, or the task when it has ended
        or waits for its caller.

        ``task`` is the task that the message belongs to: it is continued, or, when it has ended,
        referred to from a new one in the same context. ``metadata`` goes with the request, and
        ``message_metadata`` into the message, where the task's history keeps it. ``push`` has the
        task's events posted to an address. ``return_immediately`` takes the task as it stands at
        the start. ``timeout`` bounds the whole wait, which is else as long as the task.

        A message is sent again after a broken connection when the agent answers repeats once, and
        else only if it never left. Raises ``Timeout``, with the task's id if it is known.
        """
        request = await compose(
            message,
            context_id=context_id,
            task_id=task_id,
            task=task,
            files=files,
            data=data,
            metadata=metadata,
            message_metadata=message_metadata,
            references=references,
            accepted_output_modes=accepted_output_modes,
            push=push,
            history_length=history_length,
            return_immediately=return_immediately,
        )
        request = self._activation.ask(request)
        known = request.message.task_id
        try:
            async with asyncio.timeout(timeout):
                before = None
                if task is not None and task.id == known:
                    before = task
                elif known and not (return_immediately or self._numbered):
                    before = await task_before(
                        self.service, self.context, known, history_length=0, timeout=timeout
                    )
                answer = await self.service.send_message(request, self.context)
                if isinstance(answer, Message) or return_immediately:
                    return answer
                if is_settled(answer.state) and not still_asks(before, answer):
                    return answer
                if not answer.id:  # it cannot be asked for
                    return answer
                known = answer.id
                return await self._wait(known, None, history_length, before, for_ever=False)
        except TimeoutError:
            raise _late(timeout, known) from None

    def stream(
        self,
        message: Sendable | None = None,
        *,
        context_id: str | None = None,
        task_id: str | None = None,
        task: Task | None = None,
        files: Sequence[str | Path | bytes | Part] = (),
        data: Any | UnsetType = UNSET,
        metadata: dict[str, Any] | None = None,
        message_metadata: dict[str, Any] | None = None,
        references: Sequence[str | Task] = (),
        accepted_output_modes: Sequence[str] = (),
        push: Push | None = None,
        history_length: int | None = None,
    ) -> EventStream:
        """Send a message and iterate over what comes of it, until its turn ends.

        Yields a direct ``Message``, or the ``Task`` and then its status and artifact updates, each
        once and in order. A connection that breaks is made again: agents with resumable streams
        go on after the last event; for others the task is looked at and told as events, the steps
        between being lost if they left no trace in it. An agent that does not stream is polled.

        The iterator raises ``StreamCut`` when the agent cannot be found again.
        """
        composed = partial(
            compose,
            message,
            context_id=context_id,
            task_id=task_id,
            task=task,
            files=files,
            data=data,
            metadata=metadata,
            message_metadata=message_metadata,
            references=references,
            accepted_output_modes=accepted_output_modes,
            push=push,
            history_length=history_length,
        )

        async def make() -> SendMessageRequest:
            return self._activation.ask(await composed())

        reader = StreamReader(numbered=self._numbered)
        events = turn(
            self.service,
            self.context,
            make,
            reader,
            streams=self._streams,
            repeatable=self._repeatable,
            retry=self._retry,
        )
        return EventStream(events, reader)

    async def get(self, task_id: str, *, history_length: int | None = None) -> Task:
        """Return a task as it stands now, with the last ``history_length`` messages (all)."""
        request = GetTaskRequest(id=task_id, history_length=history_length)
        return await self.service.get_task(request, self.context)

    async def list(
        self,
        *,
        context_id: str = "",
        status: TaskState = TaskState.UNSPECIFIED,
        page_size: int | None = None,
        page_token: str = "",
        history_length: int | None = None,
        status_timestamp_after: Timestamp | None = None,
        include_artifacts: bool | None = None,
    ) -> ListTasksResponse:
        """Return one page of the caller's tasks, the last updated first."""
        request = ListTasksRequest(
            context_id=context_id,
            status=status,
            page_size=page_size,
            page_token=page_token,
            history_length=history_length,
            status_timestamp_after=status_timestamp_after,
            include_artifacts=include_artifacts,
        )
        return await self.service.list_tasks(request, self.context)

    async def tasks(
        self,
        *,
        context_id: str = "",
        status: TaskState = TaskState.UNSPECIFIED,
        page_size: int | None = None,
        history_length: int | None = None,
        status_timestamp_after: Timestamp | None = None,
        include_artifacts: bool | None = None,
    ) -> AsyncIterator[Task]:
        """Iterate over all of the caller's tasks, page after page."""
        token = ""
        while True:
            page = await self.list(
                context_id=context_id,
                status=status,
                page_size=page_size,
                page_token=token,
                history_length=history_length,
                status_timestamp_after=status_timestamp_after,
                include_artifacts=include_artifacts,
            )
            for task in page.tasks:
                yield task
            # An agent that answers with the token it was given would be asked for ever.
            if not page.next_page_token or page.next_page_token == token:
                return
            token = page.next_page_token

    async def cancel(self, task_id: str, *, metadata: dict[str, Any] | None = None) -> Task:
        """Cancel a task and return it as it stands then."""
        request = CancelTaskRequest(id=task_id, metadata=metadata)
        return await self.service.cancel_task(request, self.context)

    def subscribe(self, task_id: str, *, after: int | None = None) -> EventStream:
        """Iterate over the events of a task until it ends; cut streams are taken up again.

        Starts with the ``Task``; with ``after``, which needs an agent with resumable streams, it
        starts with the event of the next number, so 0 gives all of them. Without ``after`` a task
        that has ended is refused (``UnsupportedOperationError``).

        Raises ``ValueError`` for ``after`` where the agent does not number its events.
        """
        if after is not None and not self._numbered:
            raise ValueError(
                f"{self.card.name} does not number the events of its tasks; leave after out"
            )
        reader = StreamReader(
            numbered=self._numbered, ends=self._ends_stream, task_id=task_id, seq=after
        )
        context = msgspec.structs.replace(
            self.context, last_event_id=None if after is None else str(after)
        )
        request = SubscribeToTaskRequest(id=task_id)
        events = follow(
            self.service,
            self.context,
            reader,
            lambda: self.service.subscribe_to_task(request, context),
            retry=self._retry,
            repeatable=True,
            ends_with_turn=False,
        )
        return EventStream(events, reader)

    async def wait(
        self,
        task_id: str,
        *,
        poll: float | None = None,
        timeout: float | None = None,
        history_length: int | None = None,
    ) -> Task:
        """Return the task when it has ended or waits for its caller.

        Follows its stream where the agent streams, and else, or when ``poll`` is given, asks again
        and again: at first quickly, then every ``poll`` seconds (2).

        Raises ``Timeout`` after ``timeout`` seconds; the task goes on.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._wait(
                    task_id, poll, history_length, None, for_ever=timeout is not None
                )
        except TimeoutError:
            raise _late(timeout, task_id) from None

    async def _wait(
        self,
        task_id: str,
        poll: float | None,
        history_length: int | None,
        before: Task | None,
        *,
        for_ever: bool,
    ) -> Task:
        """Wait for a task, which stood as in ``before`` when a message continued it.

        One that stays in an unknown state is waited for no longer, unless ``for_ever``.
        """
        found = before
        interval = 2.0 if poll is None else poll
        backoff = Backoff(0.25, interval, factor=1.5)
        pauses = 0
        said: Message | None = None
        settled = 0
        looks = Looks()
        while True:
            task = await self.get(task_id, history_length=history_length)
            if is_settled(task.state):
                settled += 1
                if not still_asks(before, task, looks=settled):
                    return with_last_words(task, said, found)
            elif not for_ever and looks.are_enough(task):
                return with_last_words(task, said, found)
            else:
                before = None
                said = task.status.message or said
                if poll is None and self._streams:
                    ended, heard = await self._watch(task_id)
                    said = heard or said
                    if ended:
                        continue
            pauses += 1
            await asyncio.sleep(backoff.delay(pauses))

    async def _watch(self, task_id: str) -> tuple[bool, Message | None]:
        """Follow a task until it settles; whether that went well, and what was said last."""
        stream = self.subscribe(task_id)
        said: Message | None = None
        try:
            async with stream:
                async for event in stream:
                    if isinstance(event, Task | TaskStatusUpdateEvent):
                        said = event.status.message or said
                    if stream.is_settled:
                        return True, said
        except (UnsupportedOperationError, ClientError):
            return False, said
        return False, said

    async def call(self, method: ExtensionMethod[Q, A], request: Q) -> A:
        """Call a method that an extension of the agent adds, and return its answer."""
        return await call_method(self._remote, method, request, self.context)

    async def refresh_card(self) -> AgentCard:
        """Return the agent's card of now, fetched again unless HTTP caching says it still holds.

        The connection goes on with the card that it has.
        """
        return (await self._refetch()).card

    async def extended_card(self) -> AgentCard:
        """Return the card that the agent shows to authenticated callers, which replaces ``card``.

        What the agent can do is decided by it from then on (§3.1.11); the interface stays.
        """
        card: AgentCard = await self.service.get_extended_agent_card(
            GetExtendedAgentCardRequest(), self.context
        )
        self._remote.card, self.card_json = card, encode(card)
        return card


def _late(timeout: float | None, task_id: str) -> Timeout:
    what = f"task {task_id} did not end" if task_id else "there was no answer"
    return Timeout(f"{what} within {timeout:g} s" if timeout else what, task_id=task_id)
