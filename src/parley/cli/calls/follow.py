"""Follows a task: through its stream, by polling after the stream breaks; and reports
the result.
"""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Callable, Sequence
from typing import Any

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import UsageFailure
from parley.cli.output.rendering import (
    EventWriter,
    write_history,
    write_message,
    write_metadata,
    write_page,
    write_task,
)
from parley.client import ClientError, EventStream, RemoteAgent
from parley.client.authorizing import kind_of
from parley.client.calls.follow import StallDetector
from parley.client.calls.stream_reader import (
    FoldedTask,
    diff,
    is_settled,
    new_output,
    shows_prior_question,
    snapshot_before,
    with_final_text,
)
from parley.client.card.interface import declares
from parley.client.errors import Disconnected, Timeout, UnexpectedStatus, Unreachable
from parley.client.message import compose
from parley.extensions.questions import AuthRequest, Question, auth_request, question
from parley.model.backoff import Backoff
from parley.model.errors import A2AError, MethodNotFoundError, UnsupportedOperationError
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.operations import ListTasksResponse, SendMessageResponse, StreamResponse
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

MAX_PROPERTIES = 6
"""The number of properties of an answer the suggested command contains."""

_OUTCOMES = {
    TaskState.FAILED: "failed",
    TaskState.REJECTED: "was rejected",
    TaskState.CANCELED: "was canceled",
    TaskState.INPUT_REQUIRED: "needs input",
    TaskState.AUTH_REQUIRED: "needs authorization",
}


class Report:
    """Writes the results of one command in the chosen format."""

    def __init__(self, call: AgentCall) -> None:
        self._call = call
        self._output = call.output
        self._settings = call.settings
        self._events = EventWriter(
            call.output.text, sys.stdout.flush, verbose=call.settings.verbose
        )

    def answer(self, answer: Task | Message) -> None:
        """Report the answer to a message."""
        if self._output.is_json:
            self._output.document(SendMessageResponse.of(answer))
        elif isinstance(answer, Message):
            write_message(self._output.text, answer, verbose=self._settings.verbose)
        else:
            self._write_task(answer)
        self.next_step(answer)

    def task(self, task: Task) -> None:
        """Report a requested task."""
        if self._output.is_json:
            self._output.document(task)
        else:
            self._write_task(task)
        self.next_step(task)

    def page(self, page: ListTasksResponse, filters: Sequence[str]) -> None:
        """Report a page of tasks; when streaming, one task per line.

        ``filters`` are the flags for the next page.
        """
        if self._output.is_json and self._output.is_stream:
            for task in page.tasks:
                self._output.document(task)
        elif self._output.is_json:
            self._output.document(page)
        else:
            write_page(self._output.text, page, verbose=self._settings.verbose)
        if page.next_page_token:
            flags = (*filters, "--page-token", page.next_page_token)
            self._write_next(self._call.command("task list", *flags))

    def event(self, event: Event) -> None:
        """Report an event of a stream."""
        if self._output.is_json:
            self._output.document(StreamResponse.of(event))
        else:
            self._events.event(event, before=self._call.before)

    def sent(self, message: Message) -> None:
        """Show the sent message, if verbose."""
        if self._settings.verbose and not self._output.is_json:
            write_message(self._output.text, message, verbose=True, label="Sent")
            write_metadata(self._output.text, self._settings.metadata)
            self._output.text.gap()

    def _write_task(self, task: Task) -> None:
        write, verbose = self._output.text, self._settings.verbose
        before = self._call.before
        new = task if before is None else new_output(before, task)
        write_task(write, new, verbose=verbose)
        old = {artifact.artifact_id for artifact in task.artifacts}
        old -= {artifact.artifact_id for artifact in new.artifacts}
        if old:
            what = "one artifact is" if len(old) == 1 else f"{len(old)} artifacts are"
            shows = self._call.command("task get")
            self._output.note(
                f"{what} from earlier turns and not shown; to see everything: {shows}"
            )
        if verbose or self._settings.history:
            write_history(write, task.history, verbose=verbose)

    def next_step(self, answer: Task | Message) -> None:
        """Report an outcome other than success on stderr, and print the next command."""
        command = self._call.command
        if isinstance(answer, Task):
            self._call.task_id = answer.id
            self._warn(answer.id, answer.status)
            if (request := auth_request(answer)) is not None:
                if request.authorization_url:
                    self._output.warn(f"log in at {request.authorization_url}")
                else:
                    self._write_next(command("task authorize"))
                return
            if answer.state.is_interrupted:
                asked = question(answer)
                reply = "<reply>" if asked is None else _data_reply(asked)
                self._write_next(command("send", "--task-id", answer.id, reply))
                return
            if not answer.state.is_terminal:
                self._write_next(command("task get --wait"))
                return
        if answer.context_id and not self._output.is_json:
            self._write_next(command("send", "--context-id", answer.context_id, "<message>"))

    def _warn(self, task_id: str, status: TaskStatus) -> None:
        outcome = _OUTCOMES.get(status.state)
        if outcome is None:
            return
        text = status.message.text if status.message else ""
        is_said = status.state.is_interrupted and not self._output.is_json  # a question, on stdout
        detail = f": {text}" if text and not is_said else ""
        self._output.warn(f"task {task_id} {outcome} ({status.state.value}){detail}")

    def _write_next(self, command: str) -> None:
        if self._output.is_json:
            self._output.note(f"next: {command}")
        else:
            self._output.text.field("Next", self._output.redact(command))


def _data_reply(asked: Question) -> str:
    """Return the text of an answer to a question with a schema: JSON with its properties.

    Only plain names are safe in a command that people copy.
    """
    properties = asked.schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return "<reply>"
    if not all(name.isascii() and name.isidentifier() and len(name) < 50 for name in properties):
        return "<reply as JSON>"
    names = [f'"{name}": ...' for name in list(properties)[:MAX_PROPERTIES]]
    if len(properties) > MAX_PROPERTIES:
        names.append("...")
    return "{" + ", ".join(names) + "}"


_NAMES = {"token": "the token", "api_key": "the API key", "basic": "USER:PASSWORD"}


def describe(call: AgentCall, request: AuthRequest) -> None:
    """Print on standard error which credential is needed, until when, and where it is sent."""
    output = call.output
    scopes = f", with the scopes {' '.join(request.scopes)}" if request.scopes else ""
    until = f", until {request.expires_at}" if request.expires_at is not None else ""
    if request.authorization_url:
        output.warn(f"the task continues after a login{until} at: {request.authorization_url}")
    else:
        output.note(f"the task needs {_NAMES[kind_of(request)]}{scopes}{until}")
        if request.text:
            output.note(request.text)


async def credential_for(request: AuthRequest) -> Any:
    """Return the typed or piped credential. Raises ``UsageFailure`` for empty input."""
    kind = kind_of(request)
    if sys.stdin.isatty():
        typed = await asyncio.to_thread(getpass.getpass, f"{_NAMES[kind].capitalize()}: ")
    else:
        typed = await asyncio.to_thread(sys.stdin.read)
    typed = typed.strip("\r\n")
    user, colon, password = typed.partition(":")
    if not typed or (kind == "basic" and not colon):
        raise UsageFailure(f"{_NAMES[kind]} is read from standard input, and there is none")
    return (user, password) if kind == "basic" else typed


OnEvent = Callable[[Event], None]

MAX_FAILURES = 5  # in succession
MAX_PAUSE = 30.0
MAX_UNCHANGED_POLLS = 5  # after these the pauses grow


async def send_and_wait(call: AgentCall, agent: RemoteAgent, message: Message) -> Task | Message:
    """Send ``message`` and return the answer: a direct message, or the settled task.

    Prefers a stream, which names the task at once. If the agent does not stream, or the stream
    breaks, the task is polled.
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
        call.output.debug(f"the task is shown from its stream, because {error}")
        return answer.task


async def send_and_follow(
    call: AgentCall, agent: RemoteAgent, message: Message, on_event: OnEvent
) -> Task | Message:
    """Send ``message``, call ``on_event`` for the events of its turn, and return their fold.

    The last event is always the direct message or the event that settles the task. A task beyond
    the size limit of a response comes back without its artifacts and history.
    """
    answer = await _send_and_follow(call, agent, message, on_event)
    return answer if isinstance(answer, Message) else answer.task


async def _send_and_follow(
    call: AgentCall, agent: RemoteAgent, message: Message, on_event: OnEvent
) -> FoldedTask | Message:
    if not agent.card.capabilities.streaming:
        call.output.note("the agent does not stream; polling its task")
    settings = call.settings
    stream = agent.stream(
        message, skill=settings.skill, metadata=settings.metadata, history_length=settings.history
    )
    try:
        return await _follow(call, agent, stream, on_event)
    except (MethodNotFoundError, UnsupportedOperationError) as error:
        if stream.state is not None:
            raise
        # The card declares streaming but the agent rejects it; no task was started.
        call.output.debug(f"the agent rejects streaming: {error}")
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
            call.output.note(f"the stream broke off; resuming after the last event ({error})")
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

    An unchanged task is polled less often, down to a third. A continued task is not settled while
    it only shows its prior question, or the state ``known`` from an unfinished stream.
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
    """Return the task; retry while the agent is temporarily unreachable."""
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
            return None  # the agent violates the protocol; the task's state is unknown
    return folded


def ignore(event: Event) -> None:
    """Do nothing with an event."""
