"""How candidates are asked: one, one of several, or all.

Balancing asks another candidate only if the first was not reached, or refused before it began:
two agents never work on the same message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast

import msgspec

from parley.envelope.answers import response
from parley.envelope.errors import (
    AgentUnavailable,
    DeadlineExceeded,
    TargetNotFound,
    envelope_error,
)
from parley.envelope.messages import (
    Envelope,
    EnvelopeError,
    MessageType,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    Source,
    Status,
    SubType,
)
from parley.envelope.server.directory import MessageContext
from parley.model.errors import A2AError, InternalError
from parley.model.struct import encode

# -- candidates -------------------------------------------------------------------------------
#
# Agents that a REQUEST may be passed on to, and what goes wrong on the way.


HIDDEN_CODES = frozenset(
    {
        "MESSAGE_OUTDATED",
        "PERMISSION_DENIED",
        "SIGNATURE_INVALID",
        "SIGNATURE_REQUIRED",
        "SOURCE_MISMATCH",
        "TARGET_NOT_FOUND",
        "UNAUTHENTICATED",
        "UNKNOWN_ACTION",
    }
)
"""Errors of agents that a caller may not call: in the answers of several, these are left out, so
that nobody learns who is there.
"""


class NotSent(Exception):
    """A candidate was not asked: another one may be."""


class NotForCaller(Exception):
    """A candidate is not for this caller: for it, there is no such agent."""


class AgentCandidate(Protocol):
    """An agent that may be asked. ``id`` and ``type`` are those of its card."""

    @property
    def id(self) -> str:
        """The id of the agent."""
        ...

    @property
    def in_flight(self) -> int:
        """How many requests were passed on to it, and are not answered."""
        ...

    def ask(self, request: Envelope, context: MessageContext) -> AsyncIterator[Envelope]:
        """Yield its answers.

        Raises ``NotSent`` and ``NotForCaller`` before the first, and ``A2AError``.
        """
        ...


def is_refused_early(answer: Envelope) -> bool:
    """Return whether an agent refused a request before it began anything."""
    payload = answer.payload
    return (
        isinstance(payload, ResponsePayload)
        and answer.message.type == MessageType.RESPONSE
        and payload.status == Status.ERROR
        and payload.error is not None
        and payload.error.code in ("OVERLOADED", "TOO_MANY_REQUESTS", "MAINTENANCE")
        and not payload.metadata.task_id
    )


# -- strategies -------------------------------------------------------------------------------


log = logging.getLogger("parley.envelope")

AT_ONCE = 8
"""How many agents of one broadcast are asked at the same time."""

WAITING = 64
SUMMARY_BYTES = 4 * 1024 * 1024
"""How many bytes of results the summary of a broadcast repeats; EVENTs had all of them."""

MARGIN = 0.25
"""How many seconds before the deadline a broadcast says what it has."""

MAX_TURNS = 10_000


class Turns:
    """Remembers which agents had a turn last, so that those with equally much to do take turns."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._count = 0

    def order(self, candidates: Sequence[AgentCandidate]) -> list[AgentCandidate]:
        """Return candidates: the one with the least to do first, then whose turn is longest ago."""
        return sorted(candidates, key=lambda each: (each.in_flight, self._last.get(each.id, 0)))

    def took(self, candidate: AgentCandidate) -> None:
        """Note that it is a candidate's turn."""
        self._count += 1
        self._last.pop(candidate.id, None)
        self._last[candidate.id] = self._count
        if len(self._last) > MAX_TURNS:
            del self._last[next(iter(self._last))]


async def ask_one(
    candidates: Sequence[AgentCandidate],
    request: Envelope,
    context: MessageContext,
    *,
    turns: Turns,
) -> AsyncIterator[Envelope]:
    """Yield the answers of the first candidate that takes the request: that with the least to do,
    and of several such each in turn. Raises ``A2AError``.
    """
    hides = not request.target.agent_id
    refusal: Envelope | None = None
    was_there = False
    for candidate in turns.order(candidates):
        turns.took(candidate)
        try:
            async with aclosing(_answers(candidate, request, context)) as answers:
                first = await anext(answers, None)
                if first is not None and is_refused_early(first):
                    refusal = refusal or named(first, candidate.id)
                    continue
                if first is not None and hides and _is_hidden(first):
                    continue
                if first is not None:
                    yield named(first, candidate.id)
                elif request.message.sub_type != SubType.NOTIFICATION:
                    raise InternalError("the agent ended without an answer")
                async for answer in answers:
                    yield named(answer, candidate.id)
            return
        except NotForCaller:
            continue
        except NotSent as error:
            was_there = True
            log.info("%s cannot be reached, another agent is asked: %s", candidate.id[:200], error)
    if refusal is not None:
        yield refusal
        return
    if was_there:
        raise AgentUnavailable("none of the agents can be reached now", retry_after=2.0)
    raise no_agent(request)


async def ask_all(
    candidates: Sequence[AgentCandidate],
    request: Envelope,
    context: MessageContext,
    *,
    source: Source,
) -> AsyncIterator[Envelope]:
    """Yield what each candidate answers as EVENTs, and a RESPONSE with the outcome of each.

    The RESPONSE of a query comes when all have answered, or the deadline is near; that of a
    command when all have accepted or refused, before their further EVENTs. Its status is
    ``success`` if one of them did, ``error`` if none did. Raises ``A2AError`` if there is nobody.
    """
    broadcast = _Broadcast(candidates, request, context, source)
    async with aclosing(cast("AsyncGenerator[Envelope, None]", broadcast.run())) as answers:
        async for answer in answers:
            yield answer


def no_agent(request: Envelope) -> TargetNotFound:
    """Return the error of a target that nobody is, or nobody whom the caller may ask."""
    target = request.target
    sought = [
        *([f"the id {target.agent_id[:100]!r}"] if target.agent_id else []),
        *([f"the type {target.agent_type[:100]!r}"] if target.agent_type else []),
    ]
    payload = request.payload
    action = payload.action[:100] if isinstance(payload, RequestPayload) else ""
    whom = " and ".join(sought) or f"the skill {action!r}"
    return TargetNotFound(f"there is no agent with {whom} that this caller may ask for {action!r}")


def named(answer: Envelope, agent: str) -> Envelope:
    """Return an answer that names who answered."""
    payload = answer.payload
    if not isinstance(payload, ResponsePayload):
        return answer
    metadata = msgspec.structs.replace(payload.metadata, agent_id=agent)
    return msgspec.structs.replace(
        answer, payload=msgspec.structs.replace(payload, metadata=metadata)
    )


async def _answers(
    candidate: AgentCandidate, request: Envelope, context: MessageContext
) -> AsyncGenerator[Envelope, None]:
    """Yield the answers of a candidate until the deadline. Raises ``DeadlineExceeded``."""
    asked = cast("AsyncGenerator[Envelope, None]", candidate.ask(request, context))
    async with aclosing(asked) as answers:
        while True:
            try:
                async with asyncio.timeout_at(context.deadline):
                    answer = await anext(answers, None)
            except TimeoutError:
                raise DeadlineExceeded("the agent did not answer within the timeout") from None
            if answer is None:
                return
            yield answer


def _is_hidden(answer: Envelope) -> bool:
    payload = answer.payload
    return (
        isinstance(payload, ResponsePayload)
        and payload.error is not None
        and payload.error.code in HIDDEN_CODES
    )


class _Mark(msgspec.Struct, frozen=True):
    """The outcome of a candidate is known; ``is_end``: nothing more comes from it."""

    number: int
    is_end: bool = False


class _Broadcast:
    """One message to several agents."""

    def __init__(
        self,
        candidates: Sequence[AgentCandidate],
        request: Envelope,
        context: MessageContext,
        source: Source,
    ) -> None:
        self._candidates = candidates
        self._request = request
        if context.deadline is not None:
            now = asyncio.get_running_loop().time()
            margin = min(MARGIN, max(0.0, context.deadline - now) / 5)
            context = msgspec.structs.replace(context, deadline=context.deadline - margin)
        self._context = context
        self._source = source
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._queue: asyncio.Queue[Envelope | _Mark] = asyncio.Queue(WAITING)
        self._outcomes: dict[int, dict[str, Any] | None] = {}
        self._room = SUMMARY_BYTES

    async def run(self) -> AsyncIterator[Envelope]:
        tasks = [asyncio.create_task(self._ask(n)) for n in range(len(self._candidates))]
        known: set[int] = set()
        running = len(tasks)
        try:
            while running:
                item = await self._queue.get()
                if isinstance(item, Envelope):
                    yield item
                    continue
                running -= item.is_end
                if item.number not in known:
                    known.add(item.number)
                    if len(known) == len(tasks):
                        yield self._summary()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, number: int) -> None:
        """Ask one candidate, and note its outcome."""
        candidate = self._candidates[number]
        try:
            async with self._turns:
                await self._pass_on(number, candidate)
        except (NotForCaller, NotSent) as error:
            unreachable = AgentUnavailable("the agent cannot be reached now")
            self._note(number, None if isinstance(error, NotForCaller) else _failed(unreachable))
        except A2AError as error:
            self._note(number, _failed(error))
        except Exception:
            log.exception("asking %s failed", ascii(candidate.id[:200]))
            self._note(number, _failed(InternalError("asking the agent failed")))
        await self._queue.put(_Mark(number, is_end=True))

    async def _pass_on(self, number: int, candidate: AgentCandidate) -> None:
        async with aclosing(_answers(candidate, self._request, self._context)) as answers:
            async for answer in answers:
                payload = answer.payload
                if not isinstance(payload, ResponsePayload):
                    continue
                is_response = answer.message.type == MessageType.RESPONSE
                if is_response:
                    if _is_hidden(answer):
                        raise NotForCaller
                    self._note(number, self._outcome(payload))
                    info = msgspec.structs.replace(answer.message, type=MessageType.EVENT)
                    answer = msgspec.structs.replace(answer, message=info)
                await self._queue.put(named(answer, candidate.id))
                if is_response:
                    await self._queue.put(_Mark(number))
        if number not in self._outcomes:
            is_silent = self._request.message.sub_type == SubType.NOTIFICATION
            words = "the agent ended without an answer"
            self._note(number, {"status": Status.ACCEPTED} if is_silent else _failed_with(words))

    def _note(self, number: int, outcome: dict[str, Any] | None) -> None:
        self._outcomes.setdefault(number, outcome)

    def _outcome(self, payload: ResponsePayload) -> dict[str, Any]:
        outcome: dict[str, Any] = {"status": payload.status}
        if payload.metadata.task_id:
            outcome["taskId"] = payload.metadata.task_id
        if payload.error is not None:
            outcome["error"] = msgspec.to_builtins(payload.error)
        if payload.results:
            size = len(encode(payload.results))
            if size <= self._room:
                self._room -= size
                outcome["results"] = list(payload.results)
            else:
                outcome["resultsOmitted"] = True
        return outcome

    def _summary(self) -> Envelope:
        """Return the RESPONSE. Raises ``TargetNotFound`` if nobody may be asked."""
        found = [
            {"agentId": self._candidates[number].id, **outcome}
            for number, outcome in sorted(self._outcomes.items())
            if outcome is not None
        ]
        if not found:
            raise no_agent(self._request)
        good = [each for each in found if each["status"] != Status.ERROR]
        failed = len(found) - len(good)
        error = None
        status = Status.SUCCESS
        if self._request.message.sub_type == SubType.COMMAND and good:
            status = Status.ACCEPTED
        if not good:
            status = Status.ERROR
            waits = [each["error"].get("retryAfter") for each in found]
            error = EnvelopeError(
                code="BROADCAST_FAILED",
                message=f"none of {failed} agents succeeded; results say why, agent by agent",
                retry_after=max(waits) if all(each is not None for each in waits) else None,
            )
        payload = ResponsePayload(
            status=status,
            results=tuple(found),
            metadata=ResponseMetadata(total_results=len(found)),
            error=error,
        )
        return response(self._request, payload, source=self._source)


def _failed(error: A2AError) -> dict[str, Any]:
    return {"status": Status.ERROR, "error": msgspec.to_builtins(envelope_error(error))}


def _failed_with(words: str) -> dict[str, Any]:
    return _failed(InternalError(words))
