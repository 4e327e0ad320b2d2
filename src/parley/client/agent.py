"""A remote agent in the caller's hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import UNSET, UnsetType

from parley.client.card import ResolvedCard
from parley.client.errors import ClientError, Timeout
from parley.client.http import HttpTransport
from parley.client.interface import declares
from parley.client.message import Sendable, compose, to_request
from parley.client.retry import Retry
from parley.client.stream import EventStream, Reader, Source, follow, poll
from parley.model.cards import AgentCard, AgentInterface
from parley.model.errors import UnsupportedOperationError
from parley.model.extensions import IDEMPOTENT_SEND, RESUMABLE_STREAMS
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
from parley.model.tasks import Event, Task, TaskState


class RemoteAgent:
    """An agent somewhere else. Made by ``connect``; an async context manager.

    ``card`` is its card, ``card_json`` the card's bytes as they were found, ``interface`` the
    interface that is called. ``service`` is the agent as an ``A2AService``, for the operations
    that have no method here, to be called with ``context``.

    Every method raises ``A2AError`` for what the agent refuses and ``ClientError`` when it could
    not be asked or heard; wrong arguments raise ``TypeError`` and ``ValueError``, an unreadable
    file ``OSError``. Cancelling a call gives up its connection, never the task.
    """

    def __init__(
        self,
        resolved: ResolvedCard,
        interface: AgentInterface,
        service: A2AService,
        context: CallContext,
        *,
        refetch: Callable[[], Awaitable[ResolvedCard]],
        retry: Retry,
        http: HttpTransport | None,
    ) -> None:
        self.card: AgentCard = resolved.card
        self.card_json: bytes = resolved.raw
        self.interface = interface
        self.service = service
        self.context = context
        self._refetch = refetch
        self._retry = retry
        self._http = http
        self._streams = bool(self.card.capabilities.streaming)
        self._numbered = declares(self.card, RESUMABLE_STREAMS)
        self._repeatable = IDEMPOTENT_SEND in context.extensions and declares(
            self.card, IDEMPOTENT_SEND
        )

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
        references: Sequence[str | Task] = (),
        accepted_output_modes: Sequence[str] = (),
        history_length: int | None = None,
        return_immediately: bool = False,
        timeout: float | None = None,
    ) -> Task | Message:
        """Send a message and return the answer: a direct message, or the task when it has ended
        or waits for its caller.

        ``task`` is the task that the message belongs to: it is continued, or, when it has ended,
        referred to from a new one in the same context. ``return_immediately`` takes the task as it
        stands at the start. ``timeout`` bounds the whole wait, which is else as long as the task.

        A message is sent again after a broken connection when the agent answers repeats once, and
        else only if it never left. Raises ``Timeout``, with the task's id if it is known.
        """
        composed = await compose(
            message,
            context_id=context_id,
            task_id=task_id,
            task=task,
            files=files,
            data=data,
            metadata=metadata,
            references=references,
        )
        request = to_request(
            composed,
            accepted_output_modes=accepted_output_modes,
            history_length=history_length,
            return_immediately=return_immediately,
        )
        known = composed.task_id
        try:
            async with asyncio.timeout(timeout):
                answer = await self.service.send_message(request, self.context)
                if isinstance(answer, Message) or return_immediately or _is_settled(answer):
                    return answer
                known = answer.id
                return await self.wait(known, history_length=history_length)
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
        references: Sequence[str | Task] = (),
        accepted_output_modes: Sequence[str] = (),
        history_length: int | None = None,
    ) -> EventStream:
        """Send a message and iterate over what comes of it, until its turn ends.

        Yields a direct ``Message``, or the ``Task`` and then its status and artifact updates, each
        once and in order. A connection that breaks is made again: agents with resumable streams
        go on after the last event; for others the task is looked at and told as events, the steps
        between being lost if they left no trace in it. An agent that does not stream is polled.

        The iterator raises ``StreamCut`` when the agent cannot be found again.
        """
        make = partial(
            compose,
            message,
            context_id=context_id,
            task_id=task_id,
            task=task,
            files=files,
            data=data,
            metadata=metadata,
            references=references,
        )
        ask = partial(
            to_request,
            accepted_output_modes=accepted_output_modes,
            history_length=history_length,
        )
        reader = Reader(numbered=self._numbered)
        return EventStream(self._answer(make, ask, reader), reader)

    async def _answer(
        self,
        make: Callable[[], Awaitable[Message]],
        ask: Callable[..., SendMessageRequest],
        reader: Reader,
    ) -> AsyncGenerator[Event, None]:
        message = await make()
        reader.continues = bool(message.task_id)
        if self._streams:
            request = ask(message)
            events = self._follow(
                lambda: self.service.send_streaming_message(request, self.context),
                reader,
                repeatable=self._repeatable,
                ends_with_turn=True,
            )
        else:
            # A task that is continued may not have begun its turn when it is returned at once.
            events = self._poll(ask(message, return_immediately=not reader.continues), reader)
        async with aclosing(events):
            async for event in events:
                yield event

    async def _poll(
        self, request: SendMessageRequest, reader: Reader
    ) -> AsyncGenerator[Event, None]:
        answer = await self.service.send_message(request, self.context)
        if isinstance(answer, Message):
            yield answer
            return
        for event in reader.look(answer):
            yield event
        if not _is_settled(answer):
            async with aclosing(poll(self.service, self.context, reader, self._retry)) as events:
                async for event in events:
                    yield event

    def _follow(
        self, source: Source, reader: Reader, *, repeatable: bool, ends_with_turn: bool
    ) -> AsyncGenerator[Event, None]:
        return follow(
            self.service,
            self.context,
            reader,
            source,
            retry=self._retry,
            repeatable=repeatable,
            ends_with_turn=ends_with_turn,
        )

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
        reader = Reader(numbered=self._numbered, task_id=task_id, seq=after)
        context = msgspec.structs.replace(
            self.context, last_event_id=None if after is None else str(after)
        )
        request = SubscribeToTaskRequest(id=task_id)
        events = self._follow(
            lambda: self.service.subscribe_to_task(request, context),
            reader,
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
                interval = 2.0 if poll is None else poll
                pause = min(0.25, interval)
                while True:
                    task = await self.get(task_id, history_length=history_length)
                    if _is_settled(task):
                        return task
                    if poll is None and self._streams and await self._watch(task_id):
                        continue
                    await asyncio.sleep(pause)
                    pause = min(interval, pause * 1.5)
        except TimeoutError:
            raise _late(timeout, task_id) from None

    async def _watch(self, task_id: str) -> bool:
        """Follow a task until it settles; whether that went well."""
        stream = self.subscribe(task_id)
        try:
            async with stream:
                async for _ in stream:
                    if stream.state is not None and _has_settled(stream.state):
                        return True
        except (UnsupportedOperationError, ClientError):
            return False
        return False

    async def refresh_card(self) -> AgentCard:
        """Return the agent's card of now, fetched again unless HTTP caching says it still holds.

        The connection goes on with the card that it was made with.
        """
        return (await self._refetch()).card

    async def extended_card(self) -> AgentCard:
        """Return the card that the agent shows to authenticated callers."""
        return await self.service.get_extended_agent_card(
            GetExtendedAgentCardRequest(), self.context
        )


def _is_settled(task: Task) -> bool:
    return _has_settled(task.state)


def _has_settled(state: TaskState) -> bool:
    return state.is_terminal or state.is_interrupted


def _late(timeout: float | None, task_id: str) -> Timeout:
    what = f"task {task_id} did not end" if task_id else "there was no answer"
    return Timeout(f"{what} within {timeout:g} s" if timeout else what, task_id=task_id)
