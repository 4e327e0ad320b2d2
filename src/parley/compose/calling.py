"""``Calling``: calls of parts, the earlier tasks that a part may know, and the end of calls."""

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
from parley.client.errors import ClientError, RemoteTaskFailed, Timeout
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
"""How long the text of a part's answer may be to be shown as progress."""

LEAST_SECONDS = 1.0
"""How long a call that is found again may take at least, whatever its time was."""

ONE_CALL = Spent(calls=1)
"""The cost of a call whose agent says nothing."""

Given = Sendable | Outcome
"""The input of a part: a message, or the outcome of an earlier call."""


class Calling:
    """The calls of a composition's parts in one attempt at a turn.

    Each call is in the task's log under its key: an answered or failed call is not tried
    again by a further attempt. ``turn`` is the composing turn, ``name`` the composition's.
    ``budget`` is its own; its caller's holds too.
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
        """Call a part once in the life of the task, and return what became of it.

        ``key`` names the call in the log; use each once. ``timeout`` is how many seconds the part
        has, if that is less than its own. ``share`` is how many calls that have not begun yet,
        with this one, share what is left of the budget. With ``result`` the artifacts of the part
        are those of the composition, as they come. Calls with one ``context_key`` share the context
        of the part; by default each ``key`` has its own.

        Questions of the part are asked of the composition's caller, and say who asks. A failure is
        an outcome too. Raises ``ValueError`` for a key that this turn has used, and ``StoreError``.
        """
        called = given if isinstance(given, CompositionPart) else part(given)
        attempt = self.turn._attempt
        kept = attempt.step_result(_failure_key(key))
        if kept is not None:
            failed = _without_answer(called, decode(kept, PartFailure))
            self.spending.add(failed)
            return failed
        if called.function is not None:  # it calls nobody, so it costs nothing
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
        """Return how many seconds a call has left: it began when the log says.

        They begin again with each answer to a question of the part: its caller took that time. A
        further attempt has ``LEAST_SECONDS`` at least, to ask for an answer that has come.
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
        """Return under which key the log has when the time of a call is over."""
        answers, number = self.turn._attempt.journal.answers, 0
        while f"call:{key}/{number + 1}" in answers:
            number += 1
        return f"until:{key}/{number}" if number else f"until:{key}"

    def _is_over(self, key: str) -> bool:
        """Return whether the time of a call is over, which its agent knows too."""
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
        except A2AError as error:
            if not error.is_remote:
                raise  # it is about this turn, not about the part
            text = error.message[:500]
            return await self._failed(called, key, "refused", text, code=error.reason)
        except (ClientError, OSError) as error:
            log.warning("%s: %s could not be called: %s", self.name, called.name, error)
            return await self._failed(called, key, "unreachable")
        self._reachable.add(answer, called.address)
        if isinstance(answer, Task) and answer.state.is_interrupted:
            if (left := calls.logged(key, called.address)) is not None:  # nobody will answer it
                await cancel_calls(calls.connections, self.turn.task_id, {key: left})
            spent = _spent_by(answer)
            return await self._failed(called, key, "asks", answer.text[:500], spent=spent)
        is_shown = shows and isinstance(answer, Task) and bool(answer.artifacts)
        outcome = answered(called.name, answer, called.address, is_shown=is_shown)
        if not result and (before is None or not before.answered):
            await self._show(outcome)
        return outcome

    async def _request(self, called: CompositionPart, given: Given) -> Message:
        """Return a new message to a part, without references that it could not use."""
        message = given.message() if isinstance(given, Outcome) else given
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
        message = given.message() if isinstance(given, Outcome) else given
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
        except Exception as error:  # the function is the author's: its failure is the part's
            what = f"task {self.turn.task_id}: the part {called.name!r}"
            reference = log_incident(log, what, error)
            return await self._failed(called, key, "failed", f"it failed. Reference: {reference}")
        answer = Message(message_id=new_id(), role=Role.AGENT, parts=to_parts(value))
        return answered(called.name, answer)

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
        """Log a failure, so that a further attempt does not try again, and return it."""
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
        """Return the result of the composing function for the outcome of its combinator.

        An outcome's artifacts become the composition's. Raises ``PartFailed`` for a failure.
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
        """Write the artifacts of the result, the last one with the cost of all of it."""
        attempt = self.turn._attempt
        for index, artifact in enumerate(artifacts):
            metadata: dict[str, Any] = dict(artifact.metadata or {})
            if spent is not None:
                metadata.pop(Usage.uri, None)  # it is part of the sum
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
    """Return a function that raises ``HandsOver`` where another one returns a handoff."""
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
    """Return the type that a function's result is read back from the log as."""
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
    """Return whether something is a function of an author, as combinators take them."""
    return callable(value) and not inspect.isclass(value)


async def called_with(function: Any, *arguments: object) -> Any:
    """Return what an author's function returns, plain or async."""
    value = function(*arguments)
    return await value if inspect.isawaitable(value) else value


def failures_in(outcomes: Sequence[Outcome]) -> PartFailed:
    """Return the error of a composition that has no answer without these parts."""
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
"""How many records of an earlier task are read for the calls that it made."""

MOST_TASKS = 20
"""How many earlier tasks are read, and how many of its own a part is referred to: the last ones."""


class Reachable:
    """The tasks of parts that a composition knows, by the addresses of their agents.

    A caller refers to tasks of the composition. What these began at an agent is what that agent
    knows, so a message to it refers to that task.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._address_of: dict[str, str] = {}
        self._earlier: dict[str, list[str]] | None = None
        self._reading = asyncio.Lock()

    def add(self, answer: Task | Message, address: str) -> None:
        """Note whose task an answer is."""
        if isinstance(answer, Task):
            self._address_of[answer.id] = address

    async def by(self, address: str, task_ids: Sequence[str]) -> tuple[str, ...]:
        """Return what of the tasks that a message refers to the agent at an address knows."""
        found = [id for id in task_ids if self._address_of.get(id) == address]
        if any(id not in self._address_of for id in task_ids):
            async with self._reading:  # parts at the same time read it once
                found += (await self._began()).get(address, [])
        return tuple(dict.fromkeys(found))[-MOST_TASKS:]

    async def _began(self) -> dict[str, list[str]]:
        """Return the tasks that the composition's earlier tasks began, by their agents' addresses.

        These are the tasks that the newest message refers to, and its caller owns.
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
    """Cancel tasks of this process, and wait until they have ended. Their errors are dropped."""
    every = list(works)
    for work in every:
        work.cancel()
    if every:
        await asyncio.wait(every)
    for work in every:
        if not work.cancelled():
            work.exception()  # marks it as seen: a turn that has ended lets nothing more be said


async def cancel_parts(calling: Calling, keys: Iterable[str] | None = None) -> None:
    """Cancel what calls began at other agents, by their keys, else all. What fails is logged.

    The log then has that they need nothing more, so a further attempt does not cancel them again.
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
