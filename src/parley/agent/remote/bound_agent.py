"""``BoundAgent``: the client of another agent, bound to a turn (``turn.connect``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from msgspec import UnsetType
from msgspec.structs import replace

from parley.agent.remote.addresses import address_of, card_of
from parley.agent.remote.connections import SharedConnection
from parley.agent.remote.passing import Passing
from parley.agent.remote.turn_calls import IDENTIFY_SECONDS, TurnCalls
from parley.client.calls.event_stream import EventStream
from parley.client.calls.final_text import with_final_text
from parley.client.calls.service import RemoteService
from parley.client.calls.stream_reader import StreamReader
from parley.client.calls.turn_events import turn_events
from parley.client.card.interface import declares
from parley.client.card.resolver import Reference
from parley.client.errors import ConnectionClosed, Disconnected, Timeout, Unreachable
from parley.client.message import Push, Sendable, compose
from parley.client.remote_agent import RemoteAgent
from parley.engine.turn.remote_calls import RemoteCall
from parley.extensions.call_chain import CallChain
from parley.model.encoding import encode
from parley.model.errors import UnsupportedOperationError
from parley.model.extensions import CALL_CHAIN
from parley.model.parts import Message, Part
from parley.model.requests import SendMessageConfiguration, SendMessageRequest
from parley.model.service import A2AService
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)

LOGGED_BYTES = 1024 * 1024
"""How large an answer may be to be kept in the log; a larger task is fetched again."""


class MessageOptions(TypedDict, total=False):
    """The options of ``RemoteAgent.send`` that say what is sent."""

    context_id: str | None
    task_id: str | None
    task: Task | None
    files: Sequence[str | Path | bytes | Part]
    data: Any | UnsetType
    metadata: dict[str, Any] | None
    message_metadata: dict[str, Any] | None
    references: Sequence[str | Task]
    accepted_output_modes: Sequence[str]
    push: Push | None
    history_length: int | None


class BoundAgent(RemoteAgent):
    """Another agent, called by a turn: the ordinary client, whose messages are in the task's log.

    A message and its id are logged before they are sent, the remote task's id as soon as it is
    known, and the answer before it is returned. A further attempt at the turn, for the answer to a
    question or after a crash, gets the logged answer, or asks for it, instead of sending again. If
    a crash leaves open whether a message arrived, it is sent again with the same id: an agent with
    idempotent sends runs it once.

    Calls are identified by ``key``, else by their order among those of one agent in the turn.
    Deadline, hop count and trace travel with each message; the caller of the turn does not.
    Messages without a context go into one that belongs to the turn's own context and the ``key``.

    When the turn's task is canceled or fails, the tasks that it began elsewhere are canceled,
    except those of calls with ``cancel_remote=False``.

    Errors are those of ``RemoteAgent``. Unless the function catches them, they fail the task, with
    a message that does not quote them.
    """

    def __init__(
        self, agent: RemoteAgent, reference: Reference, calls: TurnCalls, shared: SharedConnection
    ) -> None:
        # It shares the connections of ``agent``, and has a card and a context of its own.
        vars(self).update(vars(agent))
        self._http = None
        self._remote = RemoteService(self._interfaces, agent.card, self._retry)
        self.service = cast("A2AService", self._remote)
        self._calls = calls
        self._shared: SharedConnection | None = shared
        self._address = address_of(reference)
        self._found_by = card_of(reference, agent)
        self._chains = declares(agent.card, CALL_CHAIN)
        trace = calls.trace()
        extensions = agent.context.extensions
        self.context = replace(
            agent.context,
            extensions=extensions | {CALL_CHAIN} if self._chains else extensions,
            traceparent=trace.traceparent,
            tracestate=trace.tracestate,
        )

    @property
    def address(self) -> str:
        """The name under which the log knows the agent."""
        return self._address

    async def aclose(self) -> None:
        """Give the connection back. Idempotent; the turn's end does it too."""
        self.release()

    def release(self) -> None:
        """Give the connection back. Idempotent."""
        shared, self._shared = self._shared, None
        if shared is not None:
            self._calls.connections.release(shared)

    # -- calls ---------------------------------------------------------------------------------

    async def send(
        self,
        message: Sendable | None = None,
        *,
        key: str | None = None,
        pass_questions: bool = False,
        progress: bool = False,
        artifacts: bool = False,
        cancel_remote: bool = True,
        return_immediately: bool = False,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Task | Message:
        """Send a message once in the life of the task, and return the answer.

        ``pass_questions`` asks the caller what the remote task asks (INPUT_REQUIRED,
        AUTH_REQUIRED), sends it the answer, and returns when it has ended. ``progress`` passes its
        status messages on to this task, ``artifacts`` its artifacts, chunk by chunk.
        ``cancel_remote=False`` lets it go on when this task is canceled or fails. The other options
        are those of ``RemoteAgent.send``.
        """
        name = self._calls.begin(self._address, key)
        return await self.answer(
            name,
            message,
            context_key=key or "",
            pass_questions=pass_questions,
            progress=progress,
            artifacts=artifacts,
            cancel_remote=cancel_remote,
            return_immediately=return_immediately,
            timeout=timeout,
            **options,
        )

    async def answer(
        self,
        name: str,
        message: Sendable | None,
        *,
        context_key: str = "",
        pass_questions: bool = False,
        progress: bool = False,
        artifacts: bool = False,
        cancel_remote: bool = True,
        return_immediately: bool = False,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Task | Message:
        """Send the message of a call whose name is known, and return the answer."""
        if pass_questions and return_immediately:
            raise ValueError(
                "pass_questions waits for the remote task, and return_immediately does not: "
                "give one of them"
            )

        def exchange(
            turn: str,
            message: Sendable | None,
            options: MessageOptions,
            *,
            follows: Task | None = None,
        ) -> Exchange:
            passing = Passing(self._calls.attempt, name, progress=progress, artifacts=artifacts)
            return Exchange(
                self,
                turn,
                lambda: self._compose(message, context_key, options),
                passing=passing if progress or artifacts else None,
                cancel=cancel_remote,
                context_key=context_key,
                immediate=return_immediately,
                history_length=options.get("history_length"),
                replays=turn == name,
                follows=follows,
            )

        turn, questions = name, 0
        try:
            async with asyncio.timeout(timeout):
                answer = await exchange(name, message, options).run()
                while pass_questions and isinstance(answer, Task) and answer.state.is_interrupted:
                    questions += 1
                    turn = f"{name}/{questions}"
                    said = await self._calls.ask(answer, turn)
                    left = await self._has_gone_on(answer, turn)
                    answer = await exchange(
                        turn,
                        list(said.parts),
                        _joining(answer, options),
                        follows=answer if left else None,
                    ).run()
                return answer
        except TimeoutError:
            if timeout is None:
                raise
            call = self._calls.logged(turn, self._address)
            raise Timeout(
                f"{self.card.name} did not answer within {timeout:g} s",
                task_id="" if call is None else call.task_id,
            ) from None

    def stream(
        self,
        message: Sendable | None = None,
        *,
        key: str | None = None,
        cancel_remote: bool = True,
        **options: Unpack[MessageOptions],
    ) -> EventStream:
        """Send a message once in the life of the task, and iterate over the events of its turn.

        A further attempt at the turn gets the events again if the agent numbers them, else the
        task as it is; of a call that is finished, the task or the message that was its answer.
        """
        name = self._calls.begin(self._address, key)
        exchange = Exchange(
            self,
            name,
            lambda: self._compose(message, key or "", options),
            passing=None,
            cancel=cancel_remote,
            context_key=key or "",
            immediate=False,
            history_length=options.get("history_length"),
            replays=True,
        )
        return EventStream(exchange.events(), exchange.reader)

    # -- what an exchange needs ----------------------------------------------------------------

    async def _has_gone_on(self, task: Task, turn: str) -> bool:
        """Return whether a task was authorised out of band (§7.6), and needs no message."""
        if task.state is not TaskState.AUTH_REQUIRED or self._calls.logged(turn, self._address):
            return False
        return (await self.get(task.id, history_length=0)).state is not TaskState.AUTH_REQUIRED

    async def _compose(
        self, message: Sendable | None, context_key: str, options: MessageOptions
    ) -> SendMessageRequest:
        """Return the request to log and to send."""
        if not (options.get("context_id") or options.get("task_id") or options.get("task")):
            context_id = await self._calls.context_id(self._address, context_key)
            if context_id:
                options = {**options, "context_id": context_id}
        if self._chains:
            chain = CallChain.says(await self._calls.chain())
            options = {**options, "metadata": {**(options.get("metadata") or {}), **chain}}
        return self._activation.apply(await compose(message, **options))


def _joining(task: Task, options: MessageOptions) -> MessageOptions:
    """Return the options of the message that answers a remote task's question."""
    kept: MessageOptions = {"task": task, "context_id": task.context_id or None}
    if "accepted_output_modes" in options:
        kept["accepted_output_modes"] = options["accepted_output_modes"]
    if "history_length" in options:
        kept["history_length"] = options["history_length"]
    return kept


class Exchange:
    """One message to another agent and its answer, once in the life of the task."""

    def __init__(
        self,
        agent: BoundAgent,
        name: str,
        compose: Callable[[], Awaitable[SendMessageRequest]],
        *,
        passing: Passing | None,
        cancel: bool,
        context_key: str,
        immediate: bool,
        history_length: int | None,
        replays: bool,
        follows: Task | None = None,
    ) -> None:
        self.reader = StreamReader(numbered=agent._numbered)
        self.answer: Task | Message | None = None
        self._agent = agent
        self._calls = agent._calls
        self._name = name
        self._compose = compose
        self._passing = passing
        self._cancel = cancel
        self._context_key = context_key
        self._immediate = immediate
        self._history_length = history_length
        self._replays = replays
        self._follows = follows
        self._said: Message | None = None
        self._known = asyncio.Event()

    async def run(self) -> Task | Message:
        """Return the answer. If that is cancelled, the remote task's id is still waited for."""
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
        assert self.answer is not None
        return self.answer

    async def _consume(self) -> None:
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of the answer, and log what has to be found again."""
        agent, calls = self._agent, self._calls
        if agent._shared is None:
            raise ConnectionClosed("this connection was closed; call turn.connect again")
        call = calls.logged(self._name, agent._address)
        is_new = call is None
        if call is None:
            call = await self._begin()
            await calls.log(self._name, call)
        elif call.answered:
            yield self.reader.deliver(await self._logged_answer(call))
            return
        calls.connections.note(calls.attempt.runner.task_id, self._name, agent._shared)
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
        except Unreachable:
            if agent._shared is not None:
                calls.connections.retire(agent._shared)
            raise
        finally:
            calls.identified(sending)
        if event is None:
            raise Disconnected(f"{agent.card.name} ended the answer before its first event")
        await self._finish(call, event)

    async def _begin(self) -> RemoteCall:
        """Return the record of a call that is about to be made."""
        agent, follows = self._agent, self._follows
        request = None if follows is not None else await self._compose()
        return RemoteCall(
            address=agent._address,
            card=agent._found_by,
            request=request,
            task_id=follows.id if follows is not None else _sent_ids(request)[0],
            context_id=follows.context_id if follows is not None else _sent_ids(request)[1],
            cancel=self._cancel,
        )

    async def _finish(self, call: RemoteCall, last: Event) -> None:
        """Log the answer."""
        if self.answer is None and self._immediate and isinstance(last, Task):
            self.answer = last
        elif self.answer is None:
            task = await self._agent.wait(call.task_id, history_length=self._history_length)
            self.answer = with_final_text(task, self._said, self.reader.before)
        answer = self.answer
        is_message = isinstance(answer, Message)
        fits = is_message or len(encode(answer)) <= LOGGED_BYTES
        await self._calls.log(
            self._name,
            replace(
                call,
                request=None,
                answered=True,
                message=answer if isinstance(answer, Message) else None,
                task=answer if isinstance(answer, Task) and fits else None,
                ended=isinstance(answer, Message) or answer.state.is_terminal,
            ),
        )

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
            await self._calls.keep_context(
                self._agent._address, self._context_key, event.context_id
            )
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
        if self._immediate:
            configuration = replace(
                request.configuration or SendMessageConfiguration(), return_immediately=True
            )
            request = replace(request, configuration=configuration)
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
        """Go on with a message to a remote task that may have got it, or not."""
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
        """Yield the events of a remote task from an earlier attempt: those that are left."""
        agent = self._agent
        if agent._streams and not self._immediate:
            after = 0 if replays and agent._numbered else None
            try:
                async with agent.subscribe(task_id, after=after) as stream:
                    async for event in stream:
                        yield self.reader.deliver(event)
                        if self.reader.is_settled:
                            return
            except UnsupportedOperationError:
                pass  # it has ended, and is not streamed any more
        if self._immediate:
            yield self.reader.deliver(await agent.get(task_id))
        else:
            yield self.reader.deliver(await agent.wait(task_id))


def _sent_ids(request: SendMessageRequest | None) -> tuple[str, str]:
    return (request.message.task_id, request.message.context_id) if request else ("", "")


def _task_id(event: Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent) -> str:
    return event.id if isinstance(event, Task) else event.task_id
