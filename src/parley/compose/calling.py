"""``Calling``: calls of a composition's parts, the earlier tasks they know, and cancellation."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, cast

from msgspec.structs import replace

from parley.agent.remote.connections import cancel_calls
from parley.agent.remote.delegation import delegate
from parley.agent.remote.turn_calls import CallTerms, said_by
from parley.agent.turn import Turn
from parley.client.answer import Answer, ReturnType
from parley.client.errors import ClientError, RemoteTaskFailed, ResultMismatch, Timeout
from parley.client.message import Sendable, to_message
from parley.compose.outcome import (
    Budget,
    FailureReason,
    HandsOver,
    Outcome,
    PartFailed,
    PartFailure,
    Spending,
    answered,
    for_the_agent,
)
from parley.compose.parts import CompositionPart, PartLike, part
from parley.engine.content import to_parts
from parley.engine.handoff import Handoff
from parley.engine.turn.attempt import (
    CALL_PREFIX,
    Failed,
    NotAuthorized,
    Rejected,
    RemoteCall,
    calls_to_cancel,
)
from parley.extensions.usage import Spent, Usage, spent_on
from parley.model.errors import A2AError
from parley.model.ids import log_incident, new_id
from parley.model.parts import Artifact, Message, Role, tasks_named
from parley.model.struct import decode, encode
from parley.model.tasks import Task, TaskState
from parley.store.events import RecordKind, StepResult
from parley.store.protocols.errors import StoreError

log = logging.getLogger("parley.compose")

SHOWN_CHARACTERS = 2000
"""The longest text of a part's answer that is shown as progress."""

LEAST_SECONDS = 1.0
"""The minimum time of a call that a later attempt continues, even if its timeout has passed."""

ONE_CALL = Spent(calls=1)
"""The cost of a call whose agent reports no cost."""

Given = Sendable | Outcome
"""The input of a part: a message, or the outcome of an earlier call."""


class Calling:
    """The calls of a composition's parts in one attempt at a turn.

    Each call is in the task's log under its key: a later attempt does not repeat an answered or
    failed call. ``turn`` is the composing turn, ``name`` the composition's name. ``budget`` is the
    composition's own; the caller's budget applies too.
    """

    def __init__(
        self, turn: Turn, name: str, *, budget: Budget | None = None, shows_progress: bool = True
    ) -> None:
        self.turn = turn
        self.name = name
        self._shows_progress = shows_progress
        chain = turn._attempt.request.chain
        self.spending = Spending(budget, None if chain is None else chain.budget)
        self._reachable = Reachable(turn)

    async def call(
        self,
        given: PartLike,
        message: Given,
        *,
        key: str,
        timeout: float | None = None,
        share: int = 1,
        result: bool = False,
        context_key: str | None = None,
    ) -> Outcome:
        """Call a part once in the life of the task, and return its outcome.

        ``key`` identifies the call in the log and must be unique. ``timeout`` is a time limit in
        seconds, if it is shorter than the part's own. ``share`` is the number of calls that have
        not begun, including this one, among which the remaining budget is divided. With ``result``
        the artifacts of the part become artifacts of the composition as they arrive. Calls with the
        same ``context_key`` share a context of the part; by default each ``key`` has its own.

        Questions of the part are passed on to the composition's caller with the part's name. A
        failure is an outcome too. Raises ``ValueError`` for a key that was already used in this
        turn, and ``StoreError``.
        """
        called = given if isinstance(given, CompositionPart) else part(given)
        attempt = self.turn._attempt
        kept = attempt.step_result(_failure_key(key))
        if kept is not None:
            failed = _without_answer(called, decode(kept, PartFailure))
            self.spending.add(failed)
            return failed
        if called.function is not None:  # a function calls no agent, so it costs nothing
            return await self._step(called, message, key, _least(called.timeout, timeout))
        if self.spending.is_limited and (reason := self.spending.exhausted):
            return await self._failed(called, key, "budget", reason)
        aside = self.spending.set_aside(share)
        seconds = _least(called.timeout, timeout)
        outcome = Outcome(part=called.name, spent=ONE_CALL)
        try:
            late = "" if seconds is None else f"it did not answer within {seconds:g} s"
            if seconds is not None:
                seconds = await self._left(key, seconds)
            terms = CallTerms(
                asker=called.name,
                seconds=seconds,
                budget=for_the_agent(aside) if self.spending.is_limited else None,
            )
            outcome = await self._delegate(
                called, message, key, terms, result=result, context_key=context_key, late=late
            )
        finally:
            self.spending.account(aside, share, outcome)
        return outcome

    async def _left(self, key: str, seconds: float) -> float:
        """Return the remaining seconds of a call, whose start is in the log.

        The time starts again with each answer to a question of the part, since the caller took that
        time. A later attempt has at least ``LEAST_SECONDS``, to fetch an answer that has arrived.
        """
        attempt = self.turn._attempt
        now, until_key = attempt.runner.store.now(), self._until_key(key)
        kept = attempt.step_result(until_key)
        if kept is None:
            until = now + math.ceil(seconds * 1000)
            await attempt.keep_result(until_key, encode(until))
            return seconds
        return max(LEAST_SECONDS, (decode(kept, int) - now) / 1000)

    def _until_key(self, key: str) -> str:
        """Return the log key of the time when a call expires."""
        answers, number = self.turn._attempt.journal.answers, 0
        while f"call:{key}/{number + 1}" in answers:
            number += 1
        return f"until:{key}/{number}" if number else f"until:{key}"

    def _is_over(self, key: str) -> bool:
        """Return whether the time of a call is over. Its agent knows the deadline too."""
        kept = self.turn._attempt.journal.results.get(f"step:{self._until_key(key)}")
        return kept is not None and decode(kept, int) <= self.turn._attempt.runner.store.now()

    # -- agents --------------------------------------------------------------------------------

    async def _delegate(
        self,
        called: CompositionPart,
        message: Given,
        key: str,
        terms: CallTerms,
        *,
        result: bool,
        context_key: str | None,
        late: str,
    ) -> Outcome:
        calls = self.turn._remote_calls
        before = calls.logged(key, called.address)
        shows = result and not self.spending.is_limited
        try:
            request = None if before is not None else await self._request(called, message)
            answer = await delegate(
                calls,
                cast("Any", called.target),
                request,
                key=key,
                pass_questions=called.pass_questions,
                progress=self._shows_progress,
                artifacts=shows,
                cancel_remote=True,
                returns=called.returns,
                skill=called.skill or None,
                timeout=terms.seconds,
                terms=terms,
                connection=called.connection,
                context_key=context_key,
            )
        except RemoteTaskFailed as error:
            reason, spent = _STATES.get(error.task.state, "failed"), _spent_by(error.task)
            if reason != "rejected" and self._is_over(key):
                return await self._failed(called, key, "timeout", late, spent=spent)
            return await self._failed(called, key, reason, error.task.text[:500], spent=spent)
        except Timeout:
            return await self._failed(called, key, "timeout", late)
        except ResultMismatch as error:
            return await self._failed(called, key, "failed", str(error)[:500])
        except A2AError as error:
            if not error.is_remote:
                raise  # an error of this turn, not of the part
            text = error.message[:500]
            return await self._failed(called, key, "refused", text, code=error.reason)
        except (ClientError, OSError) as error:
            log.warning("%s: %s could not be called: %s", self.name, called.name, error)
            return await self._failed(called, key, "unreachable")
        self._reachable.add(answer.reply, called.address)
        if answer.state.is_interrupted:
            if (
                left := calls.logged(key, called.address)
            ) is not None:  # no answer will be sent to it
                await cancel_calls(calls.connections, self.turn.task_id, {key: left})
            spent = spent_on(answer) + ONE_CALL
            return await self._failed(called, key, "asks", answer.text[:500], spent=spent)
        is_shown = shows and bool(answer.artifacts)
        outcome = answered(called.name, answer, called.address, is_shown=is_shown)
        if not result and (before is None or not before.answered):
            await self._show(outcome)
        return outcome

    async def _request(self, called: CompositionPart, given: Given) -> Message:
        """Return a new message to a part, without references that the part cannot use."""
        message = given.as_message() if isinstance(given, Outcome) else given
        if not isinstance(message, Message):
            message = to_message(message)
        references = await self._reachable.by(called.address, message.reference_task_ids)
        metadata = {k: v for k, v in (message.metadata or {}).items() if k != "skill"}
        return Message(
            message_id=new_id(),
            role=Role.USER,
            parts=message.parts,
            metadata=metadata or None,
            reference_task_ids=references,
        )

    # -- functions -----------------------------------------------------------------------------

    async def _step(
        self, called: CompositionPart, given: Given, key: str, seconds: float | None
    ) -> Outcome:
        function = called.function
        assert function is not None
        message = given.as_message() if isinstance(given, Outcome) else given
        if not isinstance(message, Message):
            message = to_message(message)
        try:
            async with asyncio.timeout(seconds):
                value = await self.turn.step(key, _watched(function), message.text)
        except (Failed, Rejected, NotAuthorized) as error:
            reason: FailureReason = "failed" if isinstance(error, Failed) else "rejected"
            return await self._failed(called, key, reason, str(error))
        except TimeoutError:
            return await self._failed(called, key, "timeout")
        except (StoreError, A2AError, HandsOver):
            raise
        except Exception as error:  # the author's function: its failure is the part's failure
            task_id = self.turn.task_id
            what = f"task {task_id}: the part {called.name!r}"
            reference = log_incident(log, what, error, task_id=task_id)
            return await self._failed(called, key, "failed", f"it failed. Reference: {reference}")
        message = Message(message_id=new_id(), role=Role.AGENT, parts=to_parts(value))
        result = None if called.returns is None else ReturnType(called.returns, called.name)
        try:
            return answered(called.name, Answer(message, agent=called.name, result=result))
        except ResultMismatch as error:
            return await self._failed(called, key, "failed", str(error)[:500])

    # -- outcomes ------------------------------------------------------------------------------

    async def _failed(
        self,
        called: CompositionPart,
        key: str,
        reason: FailureReason,
        text: str = "",
        *,
        code: str = "",
        spent: Spent | None = None,
    ) -> Outcome:
        """Log a failure, so that a later attempt does not repeat the call, and return its
        outcome."""
        if spent is None:
            spent = Spent() if reason == "budget" or called.target is None else ONE_CALL
        failure = PartFailure(part=called.name, reason=reason, text=text, code=code, spent=spent)
        await self.turn._attempt.keep_result(_failure_key(key), encode(failure))
        return _without_answer(called, failure)

    async def _show(self, outcome: Outcome) -> None:
        """Show the answer of a part as progress of the composition."""
        text = outcome.text
        if not self._shows_progress or not text or len(text) > SHOWN_CHARACTERS:
            return
        attempt = self.turn._attempt
        message = said_by(outcome.part, attempt.message(text), None)
        writer = attempt.working()
        writer.status(TaskState.WORKING, message)
        await writer.drain()

    @property
    def cost(self) -> dict[str, Any] | None:
        """The cost of the calls, as metadata; ``None`` without a budget."""
        return Usage.says(self.spending.spent) if self.spending.is_limited else None

    async def result(self, value: object) -> object:
        """Return the result of the composing function from the outcome of its combinator.

        The artifacts of an outcome become artifacts of the composition. Raises ``PartFailed`` for a
        failure.
        """
        spent = self.spending.spent if self.spending.is_limited else None
        if isinstance(value, Outcome):
            value.required()
            artifacts = () if value.is_shown else value.artifacts
            if artifacts:
                await self._write(artifacts, spent)
                return None
            value = None if value.is_shown else [*value.parts] or None
        if spent is None or value is None:
            return value
        whole = Artifact(artifact_id="result", name=self.name, parts=to_parts(value))
        await self._write([whole], spent)
        return None

    async def _write(self, artifacts: Sequence[Artifact], spent: Spent | None) -> None:
        """Write the artifacts of the result. The last artifact carries the total cost."""
        attempt = self.turn._attempt
        for index, artifact in enumerate(artifacts):
            metadata: dict[str, Any] = dict(artifact.metadata or {})
            if spent is not None:
                metadata.pop(Usage.uri, None)  # included in the total
                if index == len(artifacts) - 1:
                    metadata |= Usage.says(spent)
            artifact = replace(
                artifact,
                artifact_id=attempt.next_artifact_id(),
                extensions=(),
                metadata=metadata or None,
            )
            writer = attempt.write_artifact(artifact, last=True)
            await writer.drain()


def _watched(function: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function that raises ``HandsOver`` if the given one returns a handoff."""
    called: Any
    if inspect.iscoroutinefunction(function):

        async def called(text: str) -> Any:
            return _kept(await function(text))
    else:

        def called(text: str) -> Any:
            return _kept(function(text))

    called.__annotations__ = {"return": _kept_type(function)}
    return wraps(function, assigned=("__name__", "__qualname__"), updated=())(called)


def _kept_type(function: Any) -> Any:
    """Return the type in which a function's result is read from the log."""
    try:
        kind = typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        return Any
    return Any if kind is object or Handoff in (kind, *typing.get_args(kind)) else kind


def _kept(value: Any) -> Any:
    if isinstance(value, Handoff):
        raise HandsOver(value)
    return value


def is_function(value: object) -> bool:
    """Return whether an object is an author's function, as combinators accept them."""
    return callable(value) and not inspect.isclass(value)


async def called_with(function: Any, *arguments: object) -> Any:
    """Return the result of an author's function, plain or async."""
    value = function(*arguments)
    return await value if inspect.isawaitable(value) else value


def failures_in(outcomes: Sequence[Outcome]) -> PartFailed:
    """Return the error of a composition that cannot answer without these parts."""
    return PartFailed(*[each.failure for each in outcomes if each.failure is not None])


def _failure_key(key: str) -> str:
    return f"part:{key}"


def _without_answer(called: CompositionPart, failure: PartFailure) -> Outcome:
    return Outcome(part=called.name, failure=failure, address=called.address, spent=failure.spent)


def _spent_by(task: Task) -> Spent:
    return spent_on(task) + ONE_CALL


def _least(*seconds: float | None) -> float | None:
    return min([each for each in seconds if each is not None], default=None)


_STATES: dict[TaskState, FailureReason] = {
    TaskState.FAILED: "failed",
    TaskState.REJECTED: "rejected",
    TaskState.CANCELED: "canceled",
}


MOST_RECORDS = 1000
"""The number of records of an earlier task that are searched for its calls."""

MOST_TASKS = 20
"""The maximum number of earlier tasks that are read, and of tasks that a message refers to."""


class Reachable:
    """The tasks at other agents that a composition knows, by the addresses of the agents.

    A caller refers to tasks of the composition. An agent only knows the task that the composition
    began there, so a message to the agent must refer to that task.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._address_of: dict[str, str] = {}
        self._earlier: dict[str, list[str]] | None = None
        self._reading = asyncio.Lock()

    def add(self, answer: Task | Message, address: str) -> None:
        """Record the task of an answer."""
        if isinstance(answer, Task):
            self._address_of[answer.id] = address

    async def by(self, address: str, task_ids: Sequence[str]) -> tuple[str, ...]:
        """Return the tasks of the agent at an address that correspond to a message's references."""
        found = [id for id in task_ids if self._address_of.get(id) == address]
        if any(id not in self._address_of for id in task_ids):
            async with self._reading:  # concurrent parts read it once
                found += (await self._began()).get(address, [])
        return tuple(dict.fromkeys(found))[-MOST_TASKS:]

    async def _began(self) -> dict[str, list[str]]:
        """Return the tasks that the composition's earlier tasks began, by the addresses of agents.

        The earlier tasks are those tasks of the same caller that the newest message refers to.
        """
        if self._earlier is None:
            found: dict[str, list[str]] = {}
            named = tasks_named(self._turn.latest)[-MOST_TASKS:]
            for task in await self._turn._context.tasks(named):
                store = self._turn._attempt.runner.store
                records = await store.private_records(
                    task.id, [RecordKind.REMEMBERED], limit=MOST_RECORDS
                )
                for record in records:
                    event = record.event
                    if isinstance(event, StepResult) and event.key.startswith(CALL_PREFIX):
                        call = decode(event.value, RemoteCall)
                        if call.task_id:
                            found.setdefault(call.address, []).append(call.task_id)
            self._earlier = found
        return self._earlier


async def stop(works: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks of this process, and wait until they have ended. Errors are dropped."""
    every = list(works)
    for work in every:
        work.cancel()
    if every:
        await asyncio.wait(every)
    for work in every:
        if not work.cancelled():
            work.exception()  # marks it as retrieved; the turn has ended and cannot report it


async def cancel_parts(calling: Calling, keys: Iterable[str] | None = None) -> None:
    """Cancel the tasks that calls began at other agents, by key, or all. Errors are logged.

    The log records the cancellation, so a later attempt does not repeat it.
    """
    attempt = calling.turn._attempt
    wanted = None if keys is None else tuple(keys)
    found = {
        name: call
        for name, call in calls_to_cancel(_calls(attempt.results or {})).items()
        if wanted is None or name in wanted or name.startswith(tuple(f"{k}/" for k in wanted))
    }
    if not found:
        return
    with attempt.waits.busy():
        connections = calling.turn._services.connections
        await cancel_calls(connections, calling.turn.task_id, found)
        for name, call in found.items():
            await attempt.log_call(name, replace(call, ended=True), durable=False)


def _calls(results: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if key.startswith(CALL_PREFIX)}
