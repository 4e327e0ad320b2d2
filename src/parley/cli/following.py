"""Following a task: its stream while there is one, and its state, asked again and again, after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parley.cli.calling import Call
from parley.client import ClientError, EventStream, RemoteAgent
from parley.client.errors import Disconnected, Timeout, UnexpectedStatus, Unreachable
from parley.client.interface import declares
from parley.client.last_words import Looks, with_last_words
from parley.client.message import compose
from parley.client.told import Told
from parley.log.fold import IllegalEvent
from parley.model.errors import A2AError, MethodNotFoundError, UnsupportedOperationError
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.parts import Message
from parley.model.tasks import Event, Task, TaskState

Each = Callable[[Event], None]

LONGEST_ROW = 5  # failures one after the other before an agent is given up
LONGEST_PAUSE = 30.0
QUIET = 5  # looks without news after which they become rarer


def is_settled(state: TaskState) -> bool:
    """Whether there is nothing to wait for: the task has ended, or waits for its caller.

    An unspecified state is neither (command-line specification, §9.1).
    """
    return state.is_terminal or state.is_interrupted


async def send_and_wait(call: Call, agent: RemoteAgent, message: Message) -> Task | Message:
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
        return with_last_words(task, told.task.last_words)
    except (ClientError, A2AError) as error:
        if not told.is_whole:
            raise
        call.output.debug(f"the task is shown as its stream told it, because {error}")
        return told.task


async def send_and_follow(
    call: Call, agent: RemoteAgent, message: Message, each: Each
) -> Task | Message:
    """Send ``message`` and tell ``each`` event of its turn; return what they add up to.

    The last event told is always the one that settles the task, or the direct message. A task that
    is larger than an answer may be comes back without its artifacts and history.
    """
    told = await _send_and_follow(call, agent, message, each)
    return told if isinstance(told, Message) else told.task


async def _send_and_follow(
    call: Call, agent: RemoteAgent, message: Message, each: Each
) -> Told | Message:
    if not agent.card.capabilities.streaming:
        call.output.note("the agent does not stream; its task is looked at again and again")
    settings = call.settings
    stream = agent.stream(message, metadata=settings.metadata, history_length=settings.history)
    try:
        return await _follow(call, agent, stream, each, continues=bool(message.task_id))
    except (MethodNotFoundError, UnsupportedOperationError) as error:
        if stream.state is not None:
            raise
        # The card promises streams that the agent does not have; nothing was begun.
        call.output.debug(f"the agent refuses to stream: {error}")
        answer = await _send_and_poll(call, agent, message)
        each(answer)
        return answer if isinstance(answer, Message) else Told(answer)


async def follow(call: Call, agent: RemoteAgent, stream: EventStream, each: Each) -> Task | Message:
    """Tell ``each`` event of ``stream`` until there is nothing to wait for.

    When the stream breaks off, the task is polled.
    """
    told = await _follow(call, agent, stream, each, continues=False)
    return told if isinstance(told, Message) else told.task


async def _follow(
    call: Call, agent: RemoteAgent, stream: EventStream, each: Each, *, continues: bool
) -> Told | Message:
    """Tell ``each`` event of ``stream`` until there is nothing to wait for.

    ``continues``: the task was there before, so that the Task which opens the stream may still
    show the question that was just answered.
    """
    told: Told | None = None
    opening = True
    cuts = 0
    while True:
        try:
            async with stream:
                async for event in stream:
                    if isinstance(event, Message):
                        each(event)
                        return event
                    told = _told(told, event)
                    call.met(stream.task_id, stream.context_id)
                    each(event)
                    stale = opening and continues and isinstance(event, Task)
                    opening, cuts = False, 0
                    if _is_over(stream.state, stale=stale):
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
    if told is not None and _is_over(stream.state, stale=False):
        return told
    task = await poll(call, agent, stream.task_id)
    each(task)
    return Told(task)


async def poll(call: Call, agent: RemoteAgent, task_id: str) -> Task:
    """Ask for the task every ``--poll-interval`` until there is nothing to wait for.

    A task in which nothing happens for long is asked for less often, down to a third.
    """
    interval = pause = call.settings.poll_interval
    before: Task | None = None
    said: Message | None = None
    looks = Looks()
    quiet = 0
    while True:
        task = await _get_patiently(call, agent, task_id)
        if is_settled(task.state) or looks.are_enough(task):
            return with_last_words(task, said)
        said = task.status.message or said
        quiet = quiet + 1 if task == before else 0
        before = task
        pause = min(pause * 1.2, 3 * interval) if quiet > QUIET else interval
        await asyncio.sleep(pause)


async def _get_patiently(call: Call, agent: RemoteAgent, task_id: str) -> Task:
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


async def _send_and_poll(call: Call, agent: RemoteAgent, message: Message) -> Task | Message:
    settings = call.settings
    request = await compose(message, metadata=settings.metadata, history_length=settings.history)
    answer = await agent.service.send_message(request, agent.context)
    if isinstance(answer, Message):
        return answer
    call.met(answer.id, answer.context_id)
    is_over = is_settled(answer.state) or not answer.id  # which cannot be asked for
    return answer if is_over else await poll(call, agent, answer.id)


def _told(told: Told | None, event: Event) -> Told | None:
    if isinstance(event, Task):
        return Told(event)
    if told is not None and not isinstance(event, Message):
        try:
            told.add(event)
        except IllegalEvent:
            return None  # the agent breaks the rules; how the task stands is for it to say
    return told


def _is_over(state: TaskState | None, *, stale: bool) -> bool:
    return state is not None and (state.is_terminal or (state.is_interrupted and not stale))


def ignore(event: Event) -> None:
    """Do nothing with an event."""
