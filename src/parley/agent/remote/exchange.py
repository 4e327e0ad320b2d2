"""The messages of one turn to other agents, and their answers, once in the life of a task.

Progress and artifacts of a remote task are passed on to the turn's own task; messages that are
passed on name their speaker.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.agent.remote.connections import Connections, SharedConnection
from parley.client.calls.follow import turn_events
from parley.client.calls.stream_reader import StreamReader, with_final_text
from parley.client.errors import ConnectionClosed, Disconnected, Unreachable
from parley.client.remote_agent import RemoteAgent
from parley.engine.caller import chain_id, record_of
from parley.engine.turn.attempt import Answer, Attempt, RemoteCall, TurnOver
from parley.extensions.call_chain import MAX_PATH, Chain, ChainBudget
from parley.model.errors import (
    A2AError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from parley.model.ids import new_id
from parley.model.operations import (
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import TraceContext
from parley.model.struct import Timestamp, encode
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from parley.store.fold import CONTINUES
from parley.wire import versions


class CallTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one call, besides the terms of its turn.

    ``asker`` is the name of who is called: questions and progress that are passed on say it.
    ``seconds`` is how long the other agent has, which its chain of calls says; its task is canceled
    then. ``budget`` bounds its cost.
    """

    asker: str = ""
    seconds: float | None = None
    budget: ChainBudget | None = None


NO_TERMS = CallTerms()


IDENTIFY_SECONDS = 2.0
"""How long a turn that ends waits for the ids of the remote tasks that it has just started."""


class TurnCalls:
    """The calls of one attempt: their names, connections and contexts. The first makes it."""

    def __init__(self, attempt: Attempt, connections: Connections) -> None:
        self.attempt = attempt
        self.connections = connections
        self.agent_name = connections.agent_name
        self._own_id = ""
        self._begun = 0
        self._counts: Counter[str] = Counter()
        self._unidentified: dict[asyncio.Event, AbstractContextManager[None]] = {}
        self._open: set[Callable[[], None]] = set()
        attempt.on_end += (self._close,)
        attempt.before_question += (self._identify,)

    # -- connections ---------------------------------------------------------------------------

    def opened(self, close: Callable[[], None]) -> None:
        """Note how to close a connection of this turn, which ends it at the latest."""
        self._open.add(close)

    def closed(self, close: Callable[[], None]) -> None:
        """Drop the note of a connection that was closed. Idempotent."""
        self._open.discard(close)

    def _close(self) -> None:
        for close in list(self._open):
            close()

    # -- names and records ---------------------------------------------------------------------

    def begin(self, address: str, key: str | None) -> str:
        """Return the name of a call in the log: its key, or its number among the agent's calls.

        Raises ``ValueError`` for a key that this turn has used.
        """
        self._begun += 1
        if key is None:
            self._counts[address] += 1
            key = f"{address}#{self._counts[address]}"
        elif not key:
            raise ValueError("the key of a call is empty; leave it out to identify it by its order")
        self.attempt.begin_call(key)
        return key

    def logged(self, name: str, address: str) -> RemoteCall | None:
        """Return a call's record in the log. Raises ``ValueError`` if it went to another agent."""
        found = self.attempt.logged_call(name)
        if found is not None and found.address != address:
            raise ValueError(
                f"the call {name!r} went to {found.address} in an earlier attempt, and now goes to "
                f"{address}; a key names one call, so that its answer can be found again"
            )
        return found

    async def log(self, name: str, call: RemoteCall, *, durable: bool = True) -> None:
        """Log a call, and wait until that is durable, if asked to."""
        await self.attempt.log_call(name, call, durable=durable)

    # -- calls that the log cannot find again yet ----------------------------------------------

    def sending(self) -> asyncio.Event:
        """Return an event to be set when the task of a message that is sent now is known.

        The turn stays awake until then.
        """
        event, awake = asyncio.Event(), self.attempt.waits.busy()
        awake.__enter__()
        self._unidentified[event] = awake
        return event

    def identified(self, event: asyncio.Event) -> None:
        """The task of a message is known, or there will be none."""
        event.set()
        if (awake := self._unidentified.pop(event, None)) is not None:
            awake.__exit__(None, None, None)

    async def _identify(self) -> None:
        """Wait for the tasks of messages that are being sent: the turn's next run has to find them.

        Gives up after ``IDENTIFY_SECONDS``.
        """
        if not self._unidentified:
            return
        waits = [asyncio.ensure_future(event.wait()) for event in self._unidentified]
        try:
            with self.attempt.waits.busy():
                await asyncio.wait(waits, timeout=IDENTIFY_SECONDS)
        finally:
            for wait in waits:
                wait.cancel()

    # -- what travels with a message -----------------------------------------------------------

    async def chain(self, terms: CallTerms = NO_TERMS) -> Chain:
        """Return the chain of calls that a message from this turn belongs to."""
        runner, inbound = self.attempt.runner, self.attempt.request.chain or Chain()
        if not self._own_id:
            self._own_id = await chain_id(runner.store, runner.scope.agent)
        at = runner.deadline_at
        if terms.seconds is not None:
            own = runner.store.now() + int(terms.seconds * 1000)
            at = own if at is None else min(at, own)
        return Chain(
            hops=inbound.hops + 1,
            deadline=None if at is None else Timestamp.from_milliseconds(at),
            path=(*inbound.path, self._own_id)[-MAX_PATH:],
            budget=terms.budget or self.left_of(inbound.budget),
        )

    def left_of(self, budget: ChainBudget | None) -> ChainBudget | None:
        """Return the rest of a caller's budget: this counts the calls of the turn alone."""
        if budget is None or budget.calls is None:
            return budget
        return replace(budget, calls=max(0, budget.calls - self._begun))

    def trace(self) -> TraceContext:
        """Return the trace of a connection: a child of the turn's; none if the turn has none."""
        trace = self.attempt.request.trace
        if not trace:
            return trace
        version, trace_id, _, *rest = trace.traceparent.split("-")
        return replace(
            trace, traceparent="-".join([version, trace_id, secrets.token_hex(8), *rest])
        )

    # -- contexts ------------------------------------------------------------------------------

    async def context_id(self, address: str, key: str) -> str:
        """Return the remote context of this turn's context; empty if there is none yet."""
        runner = self.attempt.runner
        found = await runner.store.get_value(
            runner.scope, runner.context_id, _context_key(address, key)
        )
        return "" if found is None else found.decode()

    async def keep_context(self, address: str, key: str, context_id: str) -> None:
        """Remember the remote context of this turn's context, unless another call was first."""
        runner = self.attempt.runner
        await runner.store.compare_and_set(
            runner.scope, runner.context_id, _context_key(address, key), None, context_id.encode()
        )

    # -- questions -----------------------------------------------------------------------------

    async def ask(self, task: Task, name: str, asker: str = "") -> Answer:
        """Ask the caller a remote task's question, and return the answer, in this turn or a later.

        The parts are passed on unchanged, unless an ``asker`` is named: then they say who asks.
        """
        return await self.attempt.ask(task.state, self._passed_on(task, asker), f"call:{name}")

    async def show(self, task: Task, asker: str = "") -> None:
        """Show the caller the need of a remote task, and reply; the turn continues."""
        writer = self.attempt.working()
        writer.status(task.state, self.attempt.message(self._passed_on(task, asker)))
        await writer.flush()
        self.attempt.runner.reply()

    def shown(self) -> None:
        """The remote task has what it needs: this one works again, if it said otherwise."""
        writer = self.attempt.working()
        if writer.fold.state is TaskState.AUTH_REQUIRED:
            writer.status(TaskState.WORKING)

    def _passed_on(self, task: Task, asker: str) -> Message:
        question = task.status.message
        active = self.attempt.request.extensions
        passed_on = Message(
            message_id=new_id(),
            role=Role.AGENT,
            parts=question.parts if question is not None else (Part(text="What do you want?"),),
            extensions=tuple(u for u in question.extensions if u in active) if question else (),
        )
        return said_by(asker, passed_on, question.metadata if question else None)


def _context_key(address: str, key: str) -> str:
    digest = hashlib.sha256(f"{address}\n{key}".encode()).hexdigest()
    return f"urn:parley:remote-context:{digest[:32]}"


POLL_SECONDS = 2.0
"""How often an agent is asked for a task whose events it may not be asked for again."""

LOGGED_BYTES = 1024 * 1024
"""How large an answer may be to be kept in the log; a larger task is fetched again."""


@dataclass(slots=True)
class RemoteLink:
    """An agent as a turn calls it: its client, its name in the log, its card if that is needed to
    find it again, the turn's calls, and the connection while it is open.
    """

    agent: RemoteAgent
    address: str
    card: dict[str, Any] | None
    calls: TurnCalls
    shared: SharedConnection | None


class MessageExchange:
    """One message to another agent and its answer, once in the life of the task."""

    def __init__(
        self,
        link: RemoteLink,
        name: str,
        compose: Callable[[], Awaitable[SendMessageRequest]],
        *,
        passing: Passing | None,
        cancel: bool,
        context_key: str,
        push: TaskPushNotificationConfig | None,
        immediate: bool,
        history_length: int | None,
        replays: bool,
        follows: Task | None = None,
    ) -> None:
        self.reader = StreamReader(numbered=link.agent._numbered)
        self.answer: Task | Message | None = None
        self._link = link
        self._agent = link.agent
        self._calls = link.calls
        self._name = name
        self._compose = compose
        self._passing = passing
        self._cancel = cancel
        self._context_key = context_key
        self._push = push
        self._immediate = immediate
        self._history_length = history_length
        self._replays = replays
        self._follows = follows
        self._said: Message | None = None
        self._known = asyncio.Event()

    async def run(self) -> Task | Message:
        """Return the answer. If that is cancelled, the remote task's id is still waited for.

        The turn stays awake meanwhile, also if another branch of it sleeps: what the agent asks
        must not wait until that wakes up. A turn that ends meanwhile, as it does with a question
        beside the call, cancels it: the next attempt waits for the answer.
        """
        attempt = self._calls.attempt
        was_over = attempt.finished
        with attempt.waits.busy():
            try:
                return await self._run()
            except TurnOver:
                if was_over:
                    raise
                raise asyncio.CancelledError from None

    async def _run(self) -> Task | Message:
        work = asyncio.create_task(self._consume())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if not (self._known.is_set() or self._calls.attempt.finished):
                waits = {asyncio.ensure_future(self._known.wait()), work}
                await asyncio.wait(
                    waits, timeout=IDENTIFY_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
            raise
        finally:
            self._known.set()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            if not work.cancelled():
                work.exception()  # marks it as seen: the call may be cancelled
        assert self.answer is not None
        return self.answer

    async def _consume(self) -> None:
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of the answer, and log the facts that a further attempt needs."""
        agent, calls, link = self._agent, self._calls, self._link
        if link.shared is None:
            raise ConnectionClosed("this connection was closed; call turn.connect again")
        call = calls.logged(self._name, link.address)
        is_new = call is None
        if call is not None and call.answered:
            yield self.reader.deliver(await self._logged_answer(call))
            return
        with calls.attempt.waits.busy():
            if call is None:
                call = await self._begin()
                await calls.log(self._name, call)
            elif call.ended:  # it was refused, and is sent again
                call = replace(call, ended=False)
                await calls.log(self._name, call)
        task_id = calls.attempt.runner.task_id
        calls.connections.note(task_id, self._name, link.shared)
        sending = calls.sending()
        event: Event | None = None
        try:
            async with aclosing(self._source(call, is_new=is_new)) as events:
                async for event in events:
                    call = await self._identify(call, event)
                    calls.identified(sending)
                    self._known.set()
                    if self._passing is not None:
                        await self._passing.pass_on(event)
                    if isinstance(event, Message):
                        self.answer = event
                    elif isinstance(event, Task | TaskStatusUpdateEvent):
                        self._said = event.status.message or self._said
                    yield event
                    if self.answer is not None or self._immediate or self.reader.is_settled:
                        break
        except (A2AError, Unreachable) as error:
            if isinstance(error, Unreachable) and link.shared is not None:
                calls.connections.retire(link.shared)
            if not call.task_id:  # refused, or not sent: there is nothing to cancel
                await calls.log(self._name, replace(call, ended=True), durable=False)
                calls.connections.forget(task_id, self._name)
            raise
        finally:
            calls.identified(sending)
        if event is None:
            raise Disconnected(f"{agent.card.name} ended the answer before its first event")
        await self._finish(call, event)

    async def _begin(self) -> RemoteCall:
        """Return the record of a call that is about to be made."""
        link, follows = self._link, self._follows
        request = None if follows is not None else await self._compose()
        return RemoteCall(
            address=link.address,
            card=link.card,
            request=request,
            task_id=follows.id if follows is not None else _sent_ids(request)[0],
            context_id=follows.context_id if follows is not None else _sent_ids(request)[1],
            cancel=self._cancel,
            caller=record_of(self._agent.context.caller),
            tenant=self._agent.context.tenant,
        )

    async def _finish(self, call: RemoteCall, last: Event) -> None:
        """Log the answer."""
        if self.answer is None and self._immediate and isinstance(last, Task):
            self.answer = last
        elif self.answer is None:
            task = await self._agent.wait(call.task_id, history_length=self._history_length)
            self.answer = with_final_text(task, self._said, self.reader.before)
        answer, calls = self.answer, self._calls
        call = replace(call, request=None, answered=True)
        if isinstance(answer, Message):
            call = replace(call, message=answer, ended=True)
        else:
            fits = len(encode(answer)) <= LOGGED_BYTES
            call = replace(call, task=answer if fits else None, ended=answer.state.is_terminal)
        await calls.log(self._name, call)
        if call.ended:
            calls.connections.forget(calls.attempt.runner.task_id, self._name)

    async def _logged_answer(self, call: RemoteCall) -> Event:
        """Return the answer that the log has, or that it left out for its size."""
        answer = call.message or call.task
        if answer is None:
            answer = await self._agent.get(call.task_id, history_length=self._history_length)
        self.answer = answer
        return answer

    async def _identify(self, call: RemoteCall, event: Event) -> RemoteCall:
        """Log the remote task's id once it is known, and remember its context."""
        before = call.context_id
        task_id = call.task_id if isinstance(event, Message) else _task_id(event)
        if task_id != call.task_id:
            call = replace(call, request=None, task_id=task_id, context_id=event.context_id)
            await self._calls.log(self._name, call, durable=False)
        elif not isinstance(event, Message):
            return call
        if event.context_id and event.context_id != before:
            await self._calls.keep_context(self._link.address, self._context_key, event.context_id)
        return call

    # -- where the events come from ------------------------------------------------------------

    def _source(self, call: RemoteCall, *, is_new: bool) -> AsyncGenerator[Event, None]:
        if call.request is not None and (is_new or not call.task_id):
            return self._sent(call)
        if call.request is None:
            return self._followed(call.task_id, replays=self._replays)
        return self._continued(call)

    async def _sent(self, call: RemoteCall) -> AsyncGenerator[Event, None]:
        """Send the message, and yield the events of its turn."""
        agent, request = self._agent, call.request
        assert request is not None
        if self._immediate or self._push is not None:
            configuration = replace(
                request.configuration or SendMessageConfiguration(),
                return_immediately=self._immediate,
                task_push_notification_config=self._push,
            )
            request = replace(request, configuration=configuration)
        if self._immediate:
            yield self.reader.deliver(await agent.service.send_message(request, agent.context))
            return

        async def composed() -> SendMessageRequest:
            return request

        events = turn_events(
            agent.service,
            agent.context,
            composed,
            self.reader,
            streams=agent._streams,
            repeatable=agent._repeatable,
            retry=agent._retry,
        )
        async with aclosing(events):
            async for event in events:
                yield event

    async def _continued(self, call: RemoteCall) -> AsyncGenerator[Event, None]:
        """Continue with a message to a remote task that may have got it, or not."""
        assert call.request is not None
        send = self._agent._repeatable
        if not send:
            task = await self._agent.get(call.task_id)
            sent = call.request.message.message_id
            has_message = any(message.message_id == sent for message in task.history)
            send = task.state.is_interrupted and not has_message
        async with aclosing(
            self._sent(call) if send else self._followed(call.task_id, replays=False)
        ) as events:
            async for event in events:
                yield event

    async def _followed(self, task_id: str, *, replays: bool) -> AsyncGenerator[Event, None]:
        """Yield the events of a remote task from an earlier attempt, as far as they are left."""
        agent = self._agent
        if self._immediate:
            yield self.reader.deliver(await agent.get(task_id))
            return
        after = 0 if replays and agent._numbered else None
        # An agent of an older version may add to its task once for each of its readers, and the
        # connection that broke may be one still.
        is_alone = agent._numbered or agent.version == versions.LATEST
        if is_alone and agent._streams and (after == 0 or not await self._has_ended(task_id)):
            try:
                async with agent.subscribe(task_id, after=after) as stream:
                    async for event in stream:
                        yield self.reader.deliver(event)
                        if self.reader.is_settled:
                            return
            except (UnsupportedOperationError, InvalidParamsError, TaskNotFoundError):
                pass  # it has ended meanwhile: agents differ in how they say so
        yield self.reader.deliver(
            await agent.wait(task_id, poll=None if is_alone else POLL_SECONDS)
        )

    async def _has_ended(self, task_id: str) -> bool:
        return (await self._agent.get(task_id, history_length=0)).state.is_terminal


def _sent_ids(request: SendMessageRequest | None) -> tuple[str, str]:
    return (request.message.task_id, request.message.context_id) if request else ("", "")


def _task_id(event: Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent) -> str:
    return event.id if isinstance(event, Task) else event.task_id


class Passing:
    """Passes on the events of one call. Artifacts get ids of this task: a re-run replaces them."""

    def __init__(
        self, attempt: Attempt, name: str, *, progress: bool, artifacts: bool, asker: str = ""
    ) -> None:
        self._asker = asker
        self._attempt = attempt
        self._name = name
        self._progress = progress
        self._artifacts = artifacts

    async def pass_on(self, event: Event) -> None:
        """Write an event to the turn's own task, if it is one to be passed on."""
        if isinstance(event, Message):
            return
        if isinstance(event, TaskArtifactUpdateEvent):
            if self._artifacts:
                continues = event.append and CONTINUES in (event.metadata or {})
                await self._write(
                    event.artifact, append=event.append, last=event.last_chunk, continues=continues
                )
            return
        if isinstance(event, Task) and self._artifacts:
            for artifact in event.artifacts:
                await self._write(artifact, append=False, last=event.state.is_terminal)
        message = event.status.message
        if self._progress and message is not None and event.status.state is TaskState.WORKING:
            writer = self._attempt.writer()
            said = self._attempt.message(list(message.parts))
            writer.status(TaskState.WORKING, said_by(self._asker, said, message.metadata))
            await writer.drain()

    async def _write(
        self, artifact: Artifact, *, append: bool, last: bool, continues: bool = False
    ) -> None:
        digest = hashlib.sha256(f"{self._name}\n{artifact.artifact_id}".encode()).hexdigest()
        own_id = f"{self._attempt.runner.task_id[-12:]}-{digest[:12]}"
        artifact = replace(artifact, artifact_id=own_id, extensions=())
        writer = self._attempt.write_artifact(
            artifact, append=append, last=last, continues=continues
        )
        await writer.drain()


SPEAKER = "urn:parley:part"
"""The metadata key with the names of the parts that a message comes from, the outermost first."""


def said_by(name: str, message: Message, metadata: dict[str, Any] | None) -> Message:
    """Return a message that says who says it; the same message without a name.

    ``metadata`` is the message's as it came: it may have come through other parts.
    """
    if not name:
        return message
    inner = (metadata or {}).get(SPEAKER)
    names = [name, *(str(each) for each in inner)] if isinstance(inner, list) else [name]
    parts = list(message.parts)
    for index, part in enumerate(parts):
        if part.text is not None:
            parts[index] = replace(part, text=f"{name}: {part.text}")
            break
    return replace(
        message, parts=tuple(parts), metadata={**(message.metadata or {}), SPEAKER: names[:16]}
    )
