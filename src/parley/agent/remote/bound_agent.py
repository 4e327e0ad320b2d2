"""``BoundAgent``: the client of another agent, bound to a turn by ``turn.connect``.

A ``MessageExchange`` is one message and its answer, executed once in the life of the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, ClassVar, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from parley.agent.remote.callees import LocalAgent, LocalFiles, address_of, card_of
from parley.agent.remote.connections import SharedConnection
from parley.agent.remote.turn_calls import (
    IDENTIFY_SECONDS,
    NO_TERMS,
    CallOptions,
    CallTerms,
    Passing,
    TurnCalls,
)
from parley.agent.uses import UsableAgent
from parley.client.answer import Answer
from parley.client.calls.follow import turn_events
from parley.client.calls.service import RemoteService, awaited
from parley.client.calls.stream_reader import EventStream, StreamReader, with_final_text
from parley.client.card.interface import declares
from parley.client.card.resolver import Reference
from parley.client.errors import ConnectionClosed, Disconnected, Timeout, Unreachable
from parley.client.message import MessageOptions, Sendable, to_config
from parley.client.remote_agent import RemoteAgent
from parley.engine.caller import record_of
from parley.engine.turn.attempt import RemoteCall, TurnOver
from parley.extensions.call_chain import CallChain, ChainBudget
from parley.extensions.questions import auth_request
from parley.model.errors import (
    A2AError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from parley.model.extensions import CALL_CHAIN
from parley.model.operations import SendMessageConfiguration, SendMessageRequest
from parley.model.parts import Message
from parley.model.service import A2AService
from parley.model.struct import encode
from parley.model.tasks import Event, Task, TaskState, TaskStatusUpdateEvent
from parley.wire import versions

R = TypeVar("R")


class TurnCallOptions(MessageOptions, total=False):
    """The options of a message within a turn.

    ``key`` identifies the call, by default its order among the calls of the agent.
    ``pass_questions`` passes questions of the remote task (INPUT_REQUIRED, AUTH_REQUIRED) to the
    caller and the answers back, and returns when the task has ended. ``progress`` passes its status
    messages on to this task, ``artifacts`` its artifacts, chunk by chunk. With
    ``cancel_remote=False`` it is not canceled when this task is canceled or fails. Calls with the
    same ``context_key`` (by default ``key``) share a context of the other agent. ``budget`` limits
    the other agent's cost, replacing the budget of this turn's caller.
    """

    key: str | None
    context_key: str | None
    budget: ChainBudget | None
    pass_questions: bool
    progress: bool
    artifacts: bool
    cancel_remote: bool
    return_immediately: bool


def split_options(
    calls: TurnCalls, options: TurnCallOptions, terms: CallTerms = NO_TERMS
) -> tuple[CallOptions, MessageOptions]:
    """Return the options of a call, and the options of its message."""
    message: dict[str, Any] = dict(options)
    call = {name: message.pop(name) for name in CallOptions.__struct_fields__ if name in message}
    key, budget = message.pop("key", None), message.pop("budget", None)
    if call.get("context_key") is None:
        call["context_key"] = key or ""
    if budget is not None:
        terms = CallTerms(budget=calls.left_of(budget))
    return CallOptions(terms=terms, **call), cast("MessageOptions", message)


class BoundAgent(RemoteAgent):
    """The client of another agent for a turn, with its messages in the task's log.

    A message and its id are logged before they are sent, the remote task's id as soon as it is
    known, and the answer before it is returned. A later attempt at the turn, after an answer to a
    question or a crash, gets the logged answer, or asks for it, and does not send again. If a crash
    leaves open whether a message arrived, it is sent again with the same id: an agent with
    idempotent sends runs it once.

    Calls are identified by ``key``, else by their order among the turn's calls of one agent.
    Deadline, hop count and trace are sent with each message; the caller of the turn is not.
    Messages without a context use one that belongs to the turn's own context and the ``key``.

    When the turn's task is canceled or fails, the tasks that it started at other agents are
    canceled, except for calls with ``cancel_remote=False``.

    The functions of ``skill`` pass questions on to the caller. Errors are ``RemoteAgent``'s. Unless
    the function catches them, they fail the task, with a message that does not quote them.
    """

    _skill_options: ClassVar[dict[str, Any]] = {"pass_questions": True}

    def __init__(
        self,
        agent: RemoteAgent,
        reference: Reference | UsableAgent,
        calls: TurnCalls,
        shared: SharedConnection,
    ) -> None:
        self._bound_to = (agent, reference)
        # It shares the connections of ``agent``, but has its own card and context.
        vars(self).update(vars(agent))
        self._http = None
        self._remote = RemoteService(self._interfaces, agent.card, self._retry)
        self.service = cast("A2AService", self._remote)
        self._calls = calls
        self.address = address_of(reference)
        self._shared: SharedConnection | None = shared
        self._logged_card = card_of(reference, agent)
        self._chains = declares(agent.card, CALL_CHAIN)
        extensions = agent.context.extensions
        self.context = replace(
            agent.context,
            extensions=extensions | {CALL_CHAIN} if self._chains else extensions,
            trace=calls.trace(),
        )

    async def aclose(self) -> None:
        """Release the connection. Idempotent; the end of the turn does it too."""
        self.release()

    def release(self) -> None:
        """Release the connection. Idempotent."""
        shared, self._shared = self._shared, None
        self._calls.closed(self.release)
        if shared is not None:
            self._calls.connections.release(shared)

    def for_call(self, name: str) -> BoundAgent:
        """Return the agent for the call ``name``: as an earlier turn called it, else this one."""
        agent, reference = self._bound_to
        local, shared = self._calls.connections.local, self._shared
        if local is None or shared is None or not isinstance(agent, LocalAgent):
            return self
        client = local.caller_of(agent, self._calls.logged(name, self.address))
        return self if client is agent else BoundAgent(client, reference, self._calls, shared)

    # -- calls ---------------------------------------------------------------------------------

    @overload
    async def send(
        self,
        message: Sendable | None = None,
        *,
        returns: type[R],
        timeout: float | None = None,
        **options: Unpack[TurnCallOptions],
    ) -> Answer[R]: ...

    @overload
    async def send(
        self,
        message: Sendable | None = None,
        *,
        returns: object = None,
        timeout: float | None = None,
        **options: Unpack[TurnCallOptions],
    ) -> Answer[Any]: ...

    @awaited
    async def send(
        self,
        message: Sendable | None = None,
        *,
        returns: Any = None,
        timeout: float | None = None,
        **options: Unpack[TurnCallOptions],
    ) -> Answer[Any]:
        """Send a message once in the life of the task, and return the answer.

        The ``options`` are ``TurnCallOptions``. ``returns`` and ``timeout`` have the meaning that
        they have for ``RemoteAgent.send``.
        """
        result = self._result_type(returns, options.get("skill"))
        name = self._calls.begin(self.address, options.get("key"))
        call, said = split_options(self._calls, options)
        return self._answer(
            await self.for_call(name).reply(name, message, said, call, timeout=timeout), result
        )

    async def reply(
        self,
        name: str,
        message: Sendable | None,
        options: MessageOptions,
        call: CallOptions,
        *,
        timeout: float | None = None,
        began: float | None = None,
    ) -> Task | Message:
        """Send the message of a call with a known name, and return the answer.

        ``began`` is the start of the call by the event loop's clock, if it was earlier.
        """
        if call.pass_questions and call.return_immediately:
            raise ValueError(
                "pass_questions waits for the remote task, and return_immediately does not: "
                "give either"
            )
        asker = call.terms.asker
        turn, questions = name, 0
        try:
            async with time_limit(timeout, began):
                answer = await MessageExchange(self, name, message, options, call).run()
                while (
                    call.pass_questions and isinstance(answer, Task) and answer.state.is_interrupted
                ):
                    questions += 1
                    turn = f"{name}/{questions}"
                    self._calls.attempt.begin_call(turn)
                    if auth_request(answer) is not None:  # it accepts a credential, not a message
                        await self._wait_for_authorization(answer, turn, asker)
                        left, said = True, []
                    else:
                        said = list((await self._calls.ask(answer, turn, asker)).parts)
                        left = await self._has_gone_on(answer, turn)
                    answer = await MessageExchange(
                        self,
                        turn,
                        said,
                        _joining(answer, options),
                        call,
                        joins=answer,
                        follows=left,
                    ).run()
                return answer
        except TimeoutError:
            if timeout is None:
                raise
            logged = self._calls.logged(turn, self.address)
            raise Timeout(
                f"{self.card.name} did not answer within {timeout:g} s",
                task_id="" if logged is None else logged.task_id,
            ) from None

    def stream(
        self, message: Sendable | None = None, **options: Unpack[TurnCallOptions]
    ) -> EventStream:
        """Send a message once in the life of the task, and iterate over the events of its turn.

        A later attempt at the turn gets the events again if the agent numbers them, else the
        current task; for a finished call, the task or message that was its answer.
        """
        name = self._calls.begin(self.address, options.get("key"))
        call, said = split_options(self._calls, options)
        if call.pass_questions:
            raise ValueError("a stream passes no questions on: send does, or answer them yourself")
        exchange = MessageExchange(self, name, message, said, call)
        return EventStream(exchange.events(), exchange.reader)

    # -- seams of exchanges --------------------------------------------------------------------

    async def _has_gone_on(self, task: Task, turn: str) -> bool:
        """Return whether an out-of-band authorization (§7.6) has made a task continue."""
        if task.state is not TaskState.AUTH_REQUIRED or self._calls.logged(turn, self.address):
            return False
        with self._calls.attempt.waits.busy():
            task = await self.get(task.id, history_length=0)
        return task.state is not TaskState.AUTH_REQUIRED

    async def _wait_for_authorization(self, task: Task, turn: str, asker: str) -> None:
        """Pass a request for a credential on, unchanged, and wait until the task continues.

        The credential is sent directly to the agent that asks for it.
        """
        calls = self._calls
        if calls.logged(turn, self.address) is not None:
            return
        with calls.attempt.waits.busy():
            waited = 0
            while (await self.get(task.id, history_length=0)).state is TaskState.AUTH_REQUIRED:
                if not waited:
                    await calls.show(task, asker)
                waited += 1
                await asyncio.sleep(min(POLL_SECONDS, 0.1 * waited))
            calls.shown()

    async def _request_for(
        self, message: Sendable | None, options: MessageOptions, call: CallOptions
    ) -> SendMessageRequest:
        """Return the request to log and to send; the webhook, which may have secrets, is left
        out."""
        options = {**options, "push": None}
        if not (options.get("context_id") or options.get("task_id") or options.get("task")):
            context_id = await self._calls.context_id(self.address, call.context_key)
            if context_id:
                options = {**options, "context_id": context_id}
        if self._chains:
            chain = CallChain.says(await self._calls.chain(call.terms))
            options = {**options, "metadata": {**(options.get("metadata") or {}), **chain}}
        request = self._activation.apply(await self._compose(message, **options))
        files = self._files
        return await files.lend(request) if isinstance(files, LocalFiles) else request


POLL_SECONDS = 2.0
"""The polling interval for a task whose events cannot be requested again."""

LOGGED_BYTES = 1024 * 1024
"""The maximum size of a logged answer; a larger task is fetched again."""


class MessageExchange:
    """A message to another agent and its answer, executed once in the life of the task.

    ``joins`` is the remote task whose question the message answers; with ``follows`` that task
    needs no message, and continues by itself.
    """

    def __init__(
        self,
        agent: BoundAgent,
        name: str,
        message: Sendable | None,
        options: MessageOptions,
        call: CallOptions,
        *,
        joins: Task | None = None,
        follows: bool = False,
    ) -> None:
        self.reader = StreamReader(numbered=agent._numbered)
        self.answer: Task | Message | None = None
        self._agent = agent
        self._name = name
        self._message = message
        self._options = options
        self._call = call
        self._joins = joins
        self._follows = follows
        push = options.get("push")
        self._push = None if push is None else to_config(push)
        self._history_length = options.get("history_length")
        self._known = asyncio.Event()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Call the agent, and yield the events of its answer.

        Logs everything that a later attempt at the turn needs in order not to call again.
        """
        agent, calls, name = self._agent, self._agent._calls, self._name
        attempt, connections = calls.attempt, calls.connections
        if agent._shared is None:
            raise ConnectionClosed("this connection was closed; call turn.connect again")

        # Look for a record in the journal.
        call = calls.logged(name, agent.address)
        if call is not None and call.answered:
            answer = call.message or call.task  # a large task is not in the log
            if answer is None:
                answer = await agent.get(call.task_id, history_length=self._history_length)
            self.answer = answer
            yield self.reader.deliver(answer)
            return

        # If there is none, log the call before its message is sent.
        is_new = call is None
        with attempt.waits.busy():
            if call is None:
                call = await self._begun()
            if is_new or call.ended:  # an ended call was rejected, and is sent again
                call = replace(call, ended=False)
                await attempt.log_call(name, call)
        connections.note(attempt.runner.task_id, name, agent._shared)

        # Send it, unless an earlier attempt did, and follow its task.
        sending = calls.sending()
        event: Event | None = None
        said: Message | None = None
        passes = self._call.progress or self._call.artifacts
        passing = Passing(attempt, name, self._call) if passes else None
        try:
            if call.request is None:
                source = self._followed(call.task_id, replays=self._joins is None)
            elif is_new or not call.task_id or await self._is_lost(call.task_id, call.request):
                source = self._sent(call.request)
            else:
                source = self._followed(call.task_id, replays=False)
            async with aclosing(source) as events:
                async for event in events:
                    call = await self._identified(call, event)
                    calls.identified(sending)
                    self._known.set()
                    if passing is not None:
                        await passing.pass_on(event)
                    if isinstance(event, Message):
                        self.answer = event
                    elif isinstance(event, Task | TaskStatusUpdateEvent):
                        said = event.status.message or said
                    yield event
                    if self.answer is not None or self._call.return_immediately:
                        break
                    if self.reader.is_settled:
                        break
        except (A2AError, Unreachable) as error:
            if isinstance(error, Unreachable) and agent._shared is not None:
                connections.retire(agent._shared)
            if not call.task_id:  # rejected or not sent: there is nothing to cancel
                await attempt.log_call(name, replace(call, ended=True), durable=False)
                connections.forget(attempt.runner.task_id, name)
            raise
        finally:
            calls.identified(sending)
        if event is None:
            raise Disconnected(f"{agent.card.name} ended the answer before its first event")

        # Log the answer.
        if self.answer is None and self._call.return_immediately and isinstance(event, Task):
            self.answer = event
        elif self.answer is None:
            task = await agent._settled(call.task_id, history_length=self._history_length)
            self.answer = with_final_text(task, said, self.reader.before)
        call = _answered(call, self.answer)
        await attempt.log_call(name, call)
        if call.ended:
            connections.forget(attempt.runner.task_id, name)

    async def _begun(self) -> RemoteCall:
        """Return the record of a call that will be made."""
        agent, request = self._agent, None
        ids = self._joins if self._follows else None
        task_id, context_id = (ids.id, ids.context_id) if ids is not None else ("", "")
        if ids is None:
            request = await agent._request_for(self._message, self._options, self._call)
            task_id, context_id = request.message.task_id, request.message.context_id
        return RemoteCall(
            address=agent.address,
            card=agent._logged_card,
            request=request,
            task_id=task_id,
            context_id=context_id,
            cancel=self._call.cancel_remote,
            caller=record_of(agent.context.caller),
            tenant=agent.context.tenant,
        )

    async def _identified(self, call: RemoteCall, event: Event) -> RemoteCall:
        """Log the remote task's id once it is known, and remember its context."""
        agent, before = self._agent, call.context_id
        if isinstance(event, Message):
            task_id = call.task_id
        else:
            task_id = event.id if isinstance(event, Task) else event.task_id
        if task_id != call.task_id:
            call = replace(call, request=None, task_id=task_id, context_id=event.context_id)
            await agent._calls.attempt.log_call(self._name, call, durable=False)
        elif not isinstance(event, Message):
            return call
        if event.context_id and event.context_id != before:
            key = self._call.context_key
            await agent._calls.keep_context(agent.address, key, event.context_id)
        return call

    async def _is_lost(self, task_id: str, request: SendMessageRequest) -> bool:
        """Return whether to send a message again to a task that may not have received it."""
        if self._agent._repeatable:
            return True
        task = await self._agent.get(task_id)
        sent = request.message.message_id
        has_message = any(message.message_id == sent for message in task.history)
        return task.state.is_interrupted and not has_message

    async def _sent(self, request: SendMessageRequest) -> AsyncGenerator[Event, None]:
        """Send the message, and yield the events of its turn."""
        agent, immediate = self._agent, self._call.return_immediately
        if immediate or self._push is not None:
            configuration = replace(
                request.configuration or SendMessageConfiguration(),
                return_immediately=immediate,
                task_push_notification_config=self._push,
            )
            request = replace(request, configuration=configuration)
        if immediate:
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

    async def _followed(self, task_id: str, *, replays: bool) -> AsyncGenerator[Event, None]:
        """Yield the remaining events of a remote task from an earlier attempt."""
        agent = self._agent
        if self._call.return_immediately:
            yield self.reader.deliver(await agent.get(task_id))
            return
        after = 0 if replays and agent._numbered else None
        # Agents of an older version may update the task for each reader, and the broken connection
        # may still count as a reader.
        is_alone = agent._numbered or agent.version == versions.LATEST
        if is_alone and agent._streams and (after == 0 or not await self._has_ended(task_id)):
            try:
                async with agent.subscribe(task_id, after=after) as stream:
                    async for event in stream:
                        yield self.reader.deliver(event)
                        if self.reader.is_settled:
                            return
            except (UnsupportedOperationError, InvalidParamsError, TaskNotFoundError):
                pass  # it has ended meanwhile: agents report this differently
        yield self.reader.deliver(
            await agent._settled(task_id, poll=None if is_alone else POLL_SECONDS)
        )

    async def _has_ended(self, task_id: str) -> bool:
        return (await self._agent.get(task_id, history_length=0)).state.is_terminal

    async def run(self) -> Task | Message:
        """Return the answer. After a cancellation, the remote task's id is still waited for.

        The turn stays awake during the call, even if another branch sleeps, so that questions of
        the agent are not delayed. If the turn ends meanwhile, for example with a question of
        another branch, the call is cancelled: the next attempt waits for the answer.
        """
        attempt = self._agent._calls.attempt
        was_over = attempt.finished
        with attempt.waits.busy():
            try:
                await self._shielded()
            except TurnOver:
                if was_over:
                    raise
                raise asyncio.CancelledError from None
        assert self.answer is not None
        return self.answer

    async def _shielded(self) -> None:
        work = asyncio.create_task(self._consume())
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if not (self._known.is_set() or self._agent._calls.attempt.finished):
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
                work.exception()  # marks it as retrieved: the call may be cancelled

    async def _consume(self) -> None:
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass


def _answered(call: RemoteCall, answer: Task | Message) -> RemoteCall:
    """Return the record of a call with its answer."""
    call = replace(call, request=None, answered=True)
    if isinstance(answer, Message):
        return replace(call, message=answer, ended=True)
    fits = len(encode(answer)) <= LOGGED_BYTES
    return replace(call, task=answer if fits else None, ended=answer.state.is_terminal)


def time_limit(timeout: float | None, began: float | None = None) -> asyncio.Timeout:
    """Return a limit of ``timeout`` seconds from ``began`` (loop time) on, by default from now."""
    if timeout is None:
        return asyncio.timeout(None)
    return asyncio.timeout_at((began or asyncio.get_running_loop().time()) + timeout)


def _joining(task: Task, options: MessageOptions) -> MessageOptions:
    """Return the options of the message that answers a remote task's question."""
    kept: MessageOptions = {"task": task, "context_id": task.context_id or None}
    if "accepted_output_modes" in options:
        kept["accepted_output_modes"] = options["accepted_output_modes"]
    if "history_length" in options:
        kept["history_length"] = options["history_length"]
    return kept
