"""Follows a task: through its stream, and by polling after that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from parley.cli.calls.agent_call import AgentCall
from parley.client import ClientError, EventStream, RemoteAgent
from parley.client.calls.follow import StallDetector
from parley.client.calls.stream_reader import (
    FoldedTask,
    diff,
    is_settled,
    shows_prior_question,
    snapshot_before,
    with_final_text,
)
from parley.client.card.interface import declares
from parley.client.errors import Disconnected, Timeout, UnexpectedStatus, Unreachable
from parley.client.message import compose
from parley.model.backoff import Backoff
from parley.model.errors import A2AError, MethodNotFoundError, UnsupportedOperationError
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.parts import Message
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.store.fold import IllegalEvent

OnEvent = Callable[[Event], None]

MAX_FAILURES = 5  # in a row
MAX_PAUSE = 30.0
MAX_UNCHANGED_POLLS = 5  # then the pauses grow


async def send_and_wait(call: AgentCall, agent: RemoteAgent, message: Message) -> Task | Message:
    """Send ``message`` and return the answer: a direct message, or the settled task.

    Prefers a stream, which names the task at once. An agent that does not stream, or whose stream
    breaks, is polled.
    """
    if not agent.card.capabilities.streaming:
        return await _send_and_poll(call, agent, message)
    answer = await _send_and_follow(call, agent, message, ignore)
    if isinstance(answer, Message):
        return answer
    try:
        task = await agent.get(answer.task.id, history_length=call.settings.history)
        return with_final_text(task, answer.task.final_message, call.before)
    except (ClientError, A2AError) as error:
        if not answer.is_whole:
            raise
        call.output.debug(f"the task is shown as its stream told it, because {error}")
        return answer.task


async def send_and_follow(
    call: AgentCall, agent: RemoteAgent, message: Message, on_event: OnEvent
) -> Task | Message:
    """Send ``message``, call ``on_event`` for the events of its turn, and return their fold.

    The last event is always the direct message or the one that settles the task. A task beyond the
    size limit of an answer comes back without its artifacts and history.
    """
    answer = await _send_and_follow(call, agent, message, on_event)
    return answer if isinstance(answer, Message) else answer.task


async def _send_and_follow(
    call: AgentCall, agent: RemoteAgent, message: Message, on_event: OnEvent
) -> FoldedTask | Message:
    if not agent.card.capabilities.streaming:
        call.output.note("the agent does not stream; its task is looked at again and again")
    settings = call.settings
    stream = agent.stream(
        message, skill=settings.skill, metadata=settings.metadata, history_length=settings.history
    )
    try:
        return await _follow(call, agent, stream, on_event)
    except (MethodNotFoundError, UnsupportedOperationError) as error:
        if stream.state is not None:
            raise
        # The card declares streaming but the agent refuses it; no task was started.
        call.output.debug(f"the agent refuses to stream: {error}")
        call.before = stream.before
        answer = await _send_and_poll(call, agent, message)
        on_event(answer)
        return answer if isinstance(answer, Message) else FoldedTask(answer)


async def follow(
    call: AgentCall, agent: RemoteAgent, stream: EventStream, on_event: OnEvent
) -> Task | Message:
    """Call ``on_event`` for the events of ``stream`` until the task is settled, and return it.

    If the stream breaks, the task is polled.
    """
    answer = await _follow(call, agent, stream, on_event)
    return answer if isinstance(answer, Message) else answer.task


async def _follow(
    call: AgentCall, agent: RemoteAgent, stream: EventStream, on_event: OnEvent
) -> FoldedTask | Message:
    folded: FoldedTask | None = None
    begun = False
    cuts = 0
    while True:
        try:
            async with stream:
                async for event in stream:
                    if isinstance(event, Message):
                        on_event(event)
                        return event
                    if not begun:
                        call.before = call.before or stream.before
                        folded = FoldedTask(call.before or _outline(stream))
                        begun = True
                    folded = _with_event(folded, event)
                    call.note_task(stream.task_id, stream.context_id)
                    on_event(event)
                    cuts = 0
                    if stream.is_settled:
                        break
            break
        except Disconnected as error:
            if not stream.task_id:
                raise
            cuts += 1
            lossless = stream.seq is not None and declares(agent.card, RESUMABLE_STREAMS)
            if not lossless or cuts > MAX_FAILURES:
                call.output.note(f"the stream broke off; polling instead ({error})")
                break
            call.output.note(f"the stream broke off; going on where it stopped ({error})")
            await _get_with_retry(call, agent, stream.task_id)
            stream = agent.subscribe(stream.task_id, after=stream.seq)
    if stream.is_settled:
        return folded or FoldedTask(await _get_with_retry(call, agent, stream.task_id))
    known = folded.task if folded is not None else None
    task = await poll(call, agent, stream.task_id, known=known)
    for event in _final_events(known if folded is not None and folded.is_whole else None, task):
        on_event(event)
    return FoldedTask(task)


def _final_events(known: Task | None, task: Task) -> list[Event]:
    """Return the events from ``known`` to the settled task; the last one has its status."""
    events = diff(known, task)
    if not events or isinstance(events[-1], TaskArtifactUpdateEvent):
        ids: dict[str, Any] = {"task_id": task.id, "context_id": task.context_id}
        events.append(TaskStatusUpdateEvent(**ids, status=task.status))
    return events


async def poll(
    call: AgentCall, agent: RemoteAgent, task_id: str, *, known: Task | None = None
) -> Task:
    """Poll the task every ``--poll-interval`` until it is settled, and return it.

    A task without changes is polled less often, down to a third. A continued task is not settled
    while it only shows its prior question, or the state ``known`` from an unfinished stream.
    """
    interval = call.settings.poll_interval
    backoff = Backoff(interval, 3 * interval, factor=1.2)
    before: Task | None = None
    last_message: Message | None = None
    stall = StallDetector()
    quiet = 0
    while True:
        task = await _get_with_retry(call, agent, task_id)
        quiet = quiet + 1 if task == before else 0
        is_prior = (shows_prior_question(old, task, polls=quiet) for old in (call.before, known))
        if is_settled(task.state):
            if not any(is_prior):
                return with_final_text(task, last_message, call.before)
        elif stall.is_stalled(task):
            return with_final_text(task, last_message, call.before)
        else:
            last_message = task.status.message or last_message
        before = task
        await asyncio.sleep(backoff.delay(1 + max(0, quiet - MAX_UNCHANGED_POLLS)))


async def _get_with_retry(call: AgentCall, agent: RemoteAgent, task_id: str) -> Task:
    """Return the task; retry while the agent is unreachable for a while."""
    backoff = Backoff(2 * call.settings.poll_interval, MAX_PAUSE)
    failures = 0
    while True:
        try:
            return await agent.get(task_id, history_length=call.settings.history)
        except ClientError as error:
            failures += 1
            is_transient = isinstance(
                error, Unreachable | Disconnected | Timeout | UnexpectedStatus
            )
            if not is_transient or failures > MAX_FAILURES:
                raise
            pause = backoff.delay(failures)
            call.output.note(f"{error}; trying again in {pause:g} s")
        await asyncio.sleep(pause)


async def _send_and_poll(call: AgentCall, agent: RemoteAgent, message: Message) -> Task | Message:
    settings = call.settings
    request = await compose(
        message,
        skill=settings.skill,
        card=agent.card,
        metadata=settings.metadata,
        history_length=settings.history,
    )
    await note_before(call, agent, message)
    answer = await agent.service.send_message(request, agent.context)
    if isinstance(answer, Message):
        return answer
    call.note_task(answer.id, answer.context_id)
    if is_settled(answer.state) and not shows_prior_question(call.before, answer):
        return answer
    if not answer.id:  # it cannot be polled
        return answer
    return await poll(call, agent, answer.id)


async def note_before(call: AgentCall, agent: RemoteAgent, message: Message) -> None:
    """Record the task that ``message`` is about to continue, if any."""
    if message.task_id and call.before is None:
        call.before = await snapshot_before(agent.service, agent.context, message.task_id)


def _outline(stream: EventStream) -> Task:
    """Return the known part of a task whose stream does not begin with the task."""
    status = TaskStatus(state=stream.state or TaskState.UNSPECIFIED)
    return Task(id=stream.task_id, context_id=stream.context_id, status=status)


def _with_event(folded: FoldedTask | None, event: Event) -> FoldedTask | None:
    if isinstance(event, Task):
        return FoldedTask(event)
    if folded is not None and not isinstance(event, Message):
        try:
            folded.add(event)
        except IllegalEvent:
            return None  # the agent breaks the rules; only it knows the task's state
    return folded


def ignore(event: Event) -> None:
    """Do nothing with an event."""
