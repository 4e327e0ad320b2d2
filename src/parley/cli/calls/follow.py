"""Following a task: its stream while there is one, and its state, asked again and again, after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from parley.cli.calls.agent_call import AgentCall
from parley.client import ClientError, EventStream, RemoteAgent
from parley.client.calls.diff import diff
from parley.client.calls.final_text import with_final_text
from parley.client.calls.folded_task import FoldedTask
from parley.client.calls.poll import StallDetector
from parley.client.calls.prior_question import is_settled, shows_prior_question, snapshot_before
from parley.client.card.interface import declares
from parley.client.errors import Disconnected, Timeout, UnexpectedStatus, Unreachable
from parley.client.message import compose
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

Each = Callable[[Event], None]

LONGEST_ROW = 5  # failures one after the other before an agent is given up
LONGEST_PAUSE = 30.0
QUIET = 5  # looks without news after which they become rarer


async def send_and_wait(call: AgentCall, agent: RemoteAgent, message: Message) -> Task | Message:
    """Send ``message`` and return what it was answered with when there is nothing to wait for.

    Streams are preferred, because they name the task at once; an agent without them, or whose
    stream breaks off, is polled.
    """
    if not agent.card.capabilities.streaming:
        return await _send_and_poll(call, agent, message)
    told = await _send_and_follow(call, agent, message, ignore)
    if isinstance(told, Message):
        return told
    try:
        task = await agent.get(told.task.id, history_length=call.settings.history)
        return with_final_text(task, told.task.final_message, call.before)
    except (ClientError, A2AError) as error:
        if not told.is_whole:
            raise
        call.output.debug(f"the task is shown as its stream told it, because {error}")
        return told.task


async def send_and_follow(
    call: AgentCall, agent: RemoteAgent, message: Message, each: Each
) -> Task | Message:
    """Send ``message`` and tell ``each`` event of its turn; return what they add up to.

    The last event told is always the one that settles the task, or the direct message. A task that
    is larger than an answer may be comes back without its artifacts and history.
    """
    told = await _send_and_follow(call, agent, message, each)
    return told if isinstance(told, Message) else told.task


async def _send_and_follow(
    call: AgentCall, agent: RemoteAgent, message: Message, each: Each
) -> FoldedTask | Message:
    if not agent.card.capabilities.streaming:
        call.output.note("the agent does not stream; its task is looked at again and again")
    settings = call.settings
    stream = agent.stream(message, metadata=settings.metadata, history_length=settings.history)
    try:
        return await _follow(call, agent, stream, each)
    except (MethodNotFoundError, UnsupportedOperationError) as error:
        if stream.state is not None:
            raise
        # The card promises streams that the agent does not have; nothing was begun.
        call.output.debug(f"the agent refuses to stream: {error}")
        call.before = stream.before
        answer = await _send_and_poll(call, agent, message)
        each(answer)
        return answer if isinstance(answer, Message) else FoldedTask(answer)


async def follow(
    call: AgentCall, agent: RemoteAgent, stream: EventStream, each: Each
) -> Task | Message:
    """Tell ``each`` event of ``stream`` until there is nothing to wait for.

    When the stream breaks off, the task is polled.
    """
    told = await _follow(call, agent, stream, each)
    return told if isinstance(told, Message) else told.task


async def _follow(
    call: AgentCall, agent: RemoteAgent, stream: EventStream, each: Each
) -> FoldedTask | Message:
    """Tell ``each`` event of ``stream`` until there is nothing to wait for."""
    told: FoldedTask | None = None
    begun = False
    cuts = 0
    while True:
        try:
            async with stream:
                async for event in stream:
                    if isinstance(event, Message):
                        each(event)
                        return event
                    if not begun:
                        call.before = call.before or stream.before
                        told = FoldedTask(call.before or _outline(stream))
                        begun = True
                    told = _told(told, event)
                    call.met(stream.task_id, stream.context_id)
                    each(event)
                    cuts = 0
                    if stream.is_settled:
                        break
            break
        except Disconnected as error:
            if not stream.task_id:
                raise
            cuts += 1
            lossless = stream.seq is not None and declares(agent.card, RESUMABLE_STREAMS)
            if not lossless or cuts > LONGEST_ROW:
                call.output.note(f"the stream broke off; polling instead ({error})")
                break
            call.output.note(f"the stream broke off; going on where it stopped ({error})")
            await _get_patiently(call, agent, stream.task_id)
            stream = agent.subscribe(stream.task_id, after=stream.seq)
    if stream.is_settled:
        return told or FoldedTask(await _get_patiently(call, agent, stream.task_id))
    known = told.task if told is not None else None
    task = await poll(call, agent, stream.task_id, known=known)
    for event in _rest(known if told is not None and told.is_whole else None, task):
        each(event)
    return FoldedTask(task)


def _rest(known: Task | None, task: Task) -> list[Event]:
    """Return the events that tell a task that is settled to somebody who knows it as ``known``."""
    events = diff(known, task)
    if not events or isinstance(events[-1], TaskArtifactUpdateEvent):
        ids: dict[str, Any] = {"task_id": task.id, "context_id": task.context_id}
        events.append(TaskStatusUpdateEvent(**ids, status=task.status))
    return events


async def poll(
    call: AgentCall, agent: RemoteAgent, task_id: str, *, known: Task | None = None
) -> Task:
    """Ask for the task every ``--poll-interval`` until there is nothing to wait for.

    A task in which nothing happens for long is asked for less often, down to a third. One that a
    message continued is not settled while it only shows what it asked before, or what is ``known``
    from a stream that was not over.
    """
    interval = pause = call.settings.poll_interval
    before: Task | None = None
    said: Message | None = None
    stall = StallDetector()
    quiet = 0
    while True:
        task = await _get_patiently(call, agent, task_id)
        quiet = quiet + 1 if task == before else 0
        asks = (shows_prior_question(old, task, polls=quiet) for old in (call.before, known))
        if is_settled(task.state):
            if not any(asks):
                return with_final_text(task, said, call.before)
        elif stall.is_stalled(task):
            return with_final_text(task, said, call.before)
        else:
            said = task.status.message or said
        before = task
        pause = min(pause * 1.2, 3 * interval) if quiet > QUIET else interval
        await asyncio.sleep(pause)


async def _get_patiently(call: AgentCall, agent: RemoteAgent, task_id: str) -> Task:
    """Return the task from an agent that was there before, and may be away for a while."""
    failures = 0
    while True:
        try:
            return await agent.get(task_id, history_length=call.settings.history)
        except ClientError as error:
            failures += 1
            passing = isinstance(error, Unreachable | Disconnected | Timeout | UnexpectedStatus)
            if not passing or failures > LONGEST_ROW:
                raise
            pause = min(call.settings.poll_interval * 2**failures, LONGEST_PAUSE)
            call.output.note(f"{error}; trying again in {pause:g} s")
        await asyncio.sleep(pause)


async def _send_and_poll(call: AgentCall, agent: RemoteAgent, message: Message) -> Task | Message:
    settings = call.settings
    request = await compose(message, metadata=settings.metadata, history_length=settings.history)
    await look_before(call, agent, message)
    answer = await agent.service.send_message(request, agent.context)
    if isinstance(answer, Message):
        return answer
    call.met(answer.id, answer.context_id)
    if is_settled(answer.state) and not shows_prior_question(call.before, answer):
        return answer
    if not answer.id:  # it cannot be asked for
        return answer
    return await poll(call, agent, answer.id)


async def look_before(call: AgentCall, agent: RemoteAgent, message: Message) -> None:
    """Note how the task stands that ``message`` is to continue, if it does one."""
    if message.task_id and call.before is None:
        call.before = await snapshot_before(agent.service, agent.context, message.task_id)


def _outline(stream: EventStream) -> Task:
    """Return what is known of a task whose stream begins with anything but the task."""
    status = TaskStatus(state=stream.state or TaskState.UNSPECIFIED)
    return Task(id=stream.task_id, context_id=stream.context_id, status=status)


def _told(told: FoldedTask | None, event: Event) -> FoldedTask | None:
    if isinstance(event, Task):
        return FoldedTask(event)
    if told is not None and not isinstance(event, Message):
        try:
            told.add(event)
        except IllegalEvent:
            return None  # the agent breaks the rules; how the task stands is for it to say
    return told


def ignore(event: Event) -> None:
    """Do nothing with an event."""
