"""``BoundAgent``: the client of another agent, bound to a turn by ``turn.connect``.

``BlockingAgent`` is the same for a turn in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

from msgspec import UnsetType
from msgspec.structs import replace

from parley.agent.remote.callees import (
    Callee,
    LocalAgent,
    LocalFiles,
    UsableAgent,
    address_of,
    card_of,
    not_used,
    referred,
)
from parley.agent.remote.connections import CANCEL_SECONDS, SharedConnection
from parley.agent.remote.exchange import (
    NO_TERMS,
    POLL_SECONDS,
    CallTerms,
    MessageExchange,
    Passing,
    RemoteLink,
    TurnCalls,
)
from parley.client.calls.service import RemoteService, Unopened, awaited
from parley.client.calls.stream_reader import EventStream
from parley.client.card.interface import declares
from parley.client.card.resolver import Reference
from parley.client.errors import ClientError, RemoteTaskFailed, Timeout
from parley.client.message import Push, Sendable, to_config
from parley.client.remote_agent import RemoteAgent
from parley.client.sync import SyncEventStream, SyncRemoteAgent
from parley.extensions.call_chain import CallChain, ChainBudget
from parley.extensions.questions import auth_request
from parley.model.errors import A2AError, TaskNotCancelableError
from parley.model.extensions import CALL_CHAIN
from parley.model.operations import SendMessageRequest, TaskPushNotificationConfig
from parley.model.parts import Message, Part
from parley.model.service import A2AService
from parley.model.tasks import Task, TaskState


class MessageOptions(TypedDict, total=False):
    """The options of ``RemoteAgent.send`` for the message."""

    context_id: str | None
    task_id: str | None
    task: Task | None
    files: Sequence[str | Path | bytes | Part]
    data: Any | UnsetType
    skill: str | None
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

    Calls are identified by ``key``, else by their order among the turn's calls of one agent.
    Deadline, hop count and trace travel with each message; the caller of the turn does not.
    Messages without a context go into one that belongs to the turn's own context and the ``key``.

    When the turn's task is canceled or fails, the tasks that it started at other agents are
    canceled, except for calls with ``cancel_remote=False``.

    Errors are ``RemoteAgent``'s. Unless the function catches them, they fail the task, with
    a message that does not quote them.
    """

    def __init__(
        self,
        agent: RemoteAgent,
        reference: Reference | UsableAgent,
        calls: TurnCalls,
        shared: SharedConnection,
    ) -> None:
        self._bound_to = (agent, reference)
        # It shares the connections of ``agent``, and has a card and a context of its own.
        vars(self).update(vars(agent))
        self._http = None
        self._remote = RemoteService(self._interfaces, agent.card, self._retry)
        self.service = cast("A2AService", self._remote)
        self._calls = calls
        self._address = address_of(reference)
        self._link = RemoteLink(self, self._address, card_of(reference, agent), calls, shared)
        self._chains = declares(agent.card, CALL_CHAIN)
        extensions = agent.context.extensions
        self.context = replace(
            agent.context,
            extensions=extensions | {CALL_CHAIN} if self._chains else extensions,
            trace=calls.trace(),
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
        shared, self._link.shared = self._link.shared, None
        self._calls.closed(self.release)
        if shared is not None:
            self._calls.connections.release(shared)

    def for_call(self, name: str) -> BoundAgent:
        """Return the agent as the call ``name`` of an earlier turn was made, else this one."""
        agent, reference = self._bound_to
        local, shared = self._calls.connections.local, self._link.shared
        if local is None or shared is None or not isinstance(agent, LocalAgent):
            return self
        client = local.caller_of(agent, self._calls.logged(name, self._address))
        return self if client is agent else BoundAgent(client, reference, self._calls, shared)

    # -- calls ---------------------------------------------------------------------------------

    @awaited
    async def send(
        self,
        message: Sendable | None = None,
        *,
        key: str | None = None,
        context_key: str | None = None,
        budget: ChainBudget | None = None,
        pass_questions: bool = False,
        progress: bool = False,
        artifacts: bool = False,
        cancel_remote: bool = True,
        return_immediately: bool = False,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Task | Message:
        """Send a message once in the life of the task, and return the answer.

        ``pass_questions`` passes the questions of the remote task (INPUT_REQUIRED, AUTH_REQUIRED)
        on to the caller and the answers back, and returns when the task has ended. ``progress``
        passes its status messages on to this task, ``artifacts`` its artifacts, chunk by chunk.
        With ``cancel_remote=False`` it is not canceled when this task is canceled or fails. Calls
        with one ``context_key``, by default ``key``, share a context of the other agent. ``budget``
        is what the other agent may spend, instead of what the caller of this turn has said. The
        other options belong to ``RemoteAgent.send``.
        """
        name = self._calls.begin(self._address, key)
        return await self.for_call(name).answer(
            name,
            message,
            context_key=(key or "") if context_key is None else context_key,
            pass_questions=pass_questions,
            progress=progress,
            artifacts=artifacts,
            cancel_remote=cancel_remote,
            return_immediately=return_immediately,
            timeout=timeout,
            terms=NO_TERMS if budget is None else CallTerms(budget=self._calls.left_of(budget)),
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
        began: float | None = None,
        terms: CallTerms = NO_TERMS,
        **options: Unpack[MessageOptions],
    ) -> Task | Message:
        """Send the message of a call whose name is known, and return the answer.

        ``began`` is when the call began, by the event loop, if that was not now. ``terms`` are
        those of a composition.
        """
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
        ) -> MessageExchange:
            passing = Passing(
                self._calls.attempt, name, progress=progress, artifacts=artifacts, asker=terms.asker
            )
            return MessageExchange(
                self._link,
                turn,
                lambda: self._request_for(message, context_key, options, terms),
                passing=passing if progress or artifacts else None,
                cancel=cancel_remote,
                context_key=context_key,
                push=_push_in(options),
                immediate=return_immediately,
                history_length=options.get("history_length"),
                replays=turn == name,
                follows=follows,
            )

        turn, questions = name, 0
        try:
            async with time_limit(timeout, began):
                answer = await exchange(name, message, options).run()
                while pass_questions and isinstance(answer, Task) and answer.state.is_interrupted:
                    questions += 1
                    turn = f"{name}/{questions}"
                    self._calls.attempt.begin_call(turn)
                    if auth_request(answer) is not None:  # it takes a credential, and no message
                        await self._wait_for_authorization(answer, turn, terms.asker)
                        left, said = True, []
                    else:
                        said = list((await self._calls.ask(answer, turn, terms.asker)).parts)
                        left = await self._has_gone_on(answer, turn)
                    answer = await exchange(
                        turn, said, _joining(answer, options), follows=answer if left else None
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
        exchange = MessageExchange(
            self._link,
            name,
            lambda: self._request_for(message, key or "", options),
            passing=None,
            cancel=cancel_remote,
            context_key=key or "",
            push=_push_in(options),
            immediate=False,
            history_length=options.get("history_length"),
            replays=True,
        )
        return EventStream(exchange.events(), exchange.reader)

    # -- seams of exchanges --------------------------------------------------------------------

    async def _has_gone_on(self, task: Task, turn: str) -> bool:
        """Return whether a task was authorised out of band (§7.6), and needs no message."""
        if task.state is not TaskState.AUTH_REQUIRED or self._calls.logged(turn, self._address):
            return False
        with self._calls.attempt.waits.busy():
            task = await self.get(task.id, history_length=0)
        return task.state is not TaskState.AUTH_REQUIRED

    async def _wait_for_authorization(self, task: Task, turn: str, asker: str) -> None:
        """Pass a request for a credential on, unchanged, and wait until the task continues.

        The credential goes to the agent that asks for it, not through this one.
        """
        calls = self._calls
        if calls.logged(turn, self._address) is not None:
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
        self,
        message: Sendable | None,
        context_key: str,
        options: MessageOptions,
        terms: CallTerms = NO_TERMS,
    ) -> SendMessageRequest:
        """Return the request to log and to send, without its webhook, which may have secrets."""
        options = {**options, "push": None}
        if not (options.get("context_id") or options.get("task_id") or options.get("task")):
            context_id = await self._calls.context_id(self._address, context_key)
            if context_id:
                options = {**options, "context_id": context_id}
        if self._chains:
            chain = CallChain.says(await self._calls.chain(terms))
            options = {**options, "metadata": {**(options.get("metadata") or {}), **chain}}
        request = self._activation.apply(await self._compose(message, **options))
        files = self._files
        return await files.lend(request) if isinstance(files, LocalFiles) else request


def time_limit(timeout: float | None, began: float | None = None) -> asyncio.Timeout:
    """Return a limit of ``timeout`` seconds from ``began`` on, by the event loop, else from now."""
    if timeout is None:
        return asyncio.timeout(None)
    return asyncio.timeout_at((began or asyncio.get_running_loop().time()) + timeout)


def _push_in(options: MessageOptions) -> TaskPushNotificationConfig | None:
    push = options.get("push")
    return None if push is None else to_config(push)


def _joining(task: Task, options: MessageOptions) -> MessageOptions:
    """Return the options of the message that answers a remote task's question."""
    kept: MessageOptions = {"task": task, "context_id": task.context_id or None}
    if "accepted_output_modes" in options:
        kept["accepted_output_modes"] = options["accepted_output_modes"]
    if "history_length" in options:
        kept["history_length"] = options["history_length"]
    return kept


log = logging.getLogger("parley.agent")


class TurnConnection(Unopened):
    """A connection to be opened: ``async with`` it, or ``await`` it.

    It is closed with the turn, if not before.
    """

    def __init__(self, calls: TurnCalls, agent: Callee, options: Mapping[str, Any]) -> None:
        self._calls = calls
        self._reference, of_registry = referred(agent)
        is_own = options.get("http") is not None or options.get("egress") is not None
        self._options = options if is_own else {**options, **of_registry}
        self._agent: BoundAgent | None = None

    def __await__(self) -> Generator[Any, None, BoundAgent]:
        return self._open().__await__()

    async def __aenter__(self) -> BoundAgent:
        self._agent = await self._open()
        return self._agent

    async def __aexit__(self, *error: object) -> None:
        if self._agent is not None:
            self._agent.release()

    async def _open(self) -> BoundAgent:
        calls, reference = self._calls, self._reference
        if isinstance(reference, UsableAgent):
            local = calls.connections.local
            if local is None:
                raise not_used(calls.agent_name, reference)
            client = local.of_turn(reference, calls.attempt, self._options)
            own = SharedConnection(client, ("", {}))  # not shared: it has the turn's caller
            own.users = 1
            return BoundAgent(client, reference, calls, own)
        with calls.attempt.waits.busy():  # another branch that sleeps does not hold up the call
            shared = await calls.connections.acquire(reference, self._options)
        agent = BoundAgent(shared.agent, reference, calls, shared)
        calls.opened(agent.release)
        return agent


async def delegate(
    calls: TurnCalls,
    agent: Callee | BoundAgent,
    message: Sendable | None,
    *,
    key: str | None,
    pass_questions: bool,
    progress: bool,
    artifacts: bool,
    cancel_remote: bool,
    timeout: float | None,
    terms: CallTerms = NO_TERMS,
    connection: Mapping[str, Any] = {},
    context_key: str | None = None,
    **options: Unpack[MessageOptions],
) -> Task | Message:
    """Delegate to another agent, and return its answer (``turn.delegate``).

    ``terms`` belong to a composition, ``connection`` has the options of the connection. When the
    seconds of the terms are over, the remote task is canceled. Calls with one ``context_key``, by
    default ``key``, share a context of the other agent.
    """
    began = asyncio.get_running_loop().time()
    if isinstance(agent, BoundAgent):
        name, opened = calls.begin(agent.address, key), agent
    else:  # the name depends on the order of the calls, so it is taken before anything is awaited
        address = address_of(referred(agent)[0])
        name = calls.begin(address, key)
        try:
            async with time_limit(timeout, began) as limit:
                opened = await TurnConnection(calls, agent, connection)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Timeout(f"no connection to {address} within {timeout:g} s") from None
    try:
        answer = await opened.for_call(name).answer(
            name,
            message,
            context_key=(key or "") if context_key is None else context_key,
            pass_questions=pass_questions,
            progress=progress,
            artifacts=artifacts,
            cancel_remote=cancel_remote,
            timeout=timeout,
            began=began,
            terms=terms,
            **options,
        )
    except Timeout as late:
        if terms.seconds is not None and late.task_id:
            await _cancel_late(opened.for_call(name), late.task_id)
        raise
    finally:
        if opened is not agent:
            opened.release()
    if isinstance(answer, Task) and answer.state in _FAILURES:
        raise RemoteTaskFailed(
            f"the task {answer.id} of {opened.card.name} {_FAILURES[answer.state]}: "
            f"{answer.text[:500]}",
            task=answer,
        )
    return answer


async def _cancel_late(agent: BoundAgent, task_id: str) -> None:
    """Cancel a remote task whose time is over. What fails is logged."""
    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            await agent.cancel(task_id)
    except TaskNotCancelableError:
        pass  # it has ended: it knew how long it had
    except (A2AError, ClientError, TimeoutError) as error:
        log.warning("the task %s of %s is not canceled: %s", task_id, agent.card.name, error)


_FAILURES = {
    TaskState.FAILED: "failed",
    TaskState.CANCELED: "was canceled",
    TaskState.REJECTED: "was rejected",
}


T = TypeVar("T")

Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the loop of the turn, and returns its result in the turn's thread."""


class TurnThread:
    """The thread of a turn, in the place of the blocking client's: the turn's loop runs calls."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait
        self.on_close: Any = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine."""
        return cast("T", self._wait(coroutine))

    _run = run

    def close(self) -> None:
        """Do nothing: the turn ends its thread."""


class BlockingAgent(SyncRemoteAgent):
    """``BoundAgent`` with blocking methods, for a function that runs in a thread.

    Concurrent calls from several threads need keys: their order is not certain.
    """

    def __init__(self, agent: BoundAgent, wait: Wait) -> None:
        super().__init__(cast("Any", TurnThread(wait)), agent)
        self._bound = agent

    def send(
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
        """Send a message once in the life of the task, and return the answer."""
        return self._run(
            self._bound.send(
                message,
                key=key,
                pass_questions=pass_questions,
                progress=progress,
                artifacts=artifacts,
                cancel_remote=cancel_remote,
                return_immediately=return_immediately,
                timeout=timeout,
                **options,
            )
        )

    def stream(
        self,
        message: Sendable | None = None,
        *,
        key: str | None = None,
        cancel_remote: bool = True,
        **options: Unpack[MessageOptions],
    ) -> SyncEventStream:
        """Send a message once in the life of the task, and iterate over the events of its turn."""
        stream = self._bound.stream(message, key=key, cancel_remote=cancel_remote, **options)
        return SyncEventStream(self, stream)

    @property
    def bound(self) -> BoundAgent:
        """The agent that ``turn.delegate`` takes."""
        return self._bound

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Give the connection back. Idempotent; the turn's end does it too."""
        self._run(self._bound.aclose())
