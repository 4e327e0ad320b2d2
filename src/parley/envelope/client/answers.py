"""Answers of the envelope protocol, as callers get them, and why there is none."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from parley.envelope.messages import (
    Envelope,
    EnvelopeError,
    MessageType,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    RoutingStrategy,
    Status,
    SubType,
    Violation,
)
from parley.model.errors import A2AError

# -- numbering --------------------------------------------------------------------------------
#
# Which messages were taken already: by their ids, and EVENTs by their numbers.


MAX_IDS = 4096
MAX_NUMBERS = 1024


class SeenIds:
    """The last ids of messages that were taken, so that each is taken once."""

    def __init__(self, limit: int = MAX_IDS) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def is_new(self, id: str) -> bool:
        """Note an id; return whether it was not known."""
        if id in self._ids:
            self._ids.move_to_end(id)
            return False
        self._ids[id] = None
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)
        return True

    def forget(self, id: str) -> None:
        """Take an id as new again."""
        self._ids.pop(id, None)


class EventNumbers:
    """The numbers of the EVENTs of one stream that were taken.

    Each EVENT is taken once, also one that another overtook. ``after`` is the number up to which
    there is no gap, where a cut stream goes on: nothing behind it was missed. Of more than
    ``limit`` numbers beyond a gap, the gap is given up.
    """

    def __init__(self, after: int | None = None, limit: int = MAX_NUMBERS) -> None:
        self.after = after
        self._first = after
        self._limit = limit
        self._beyond: set[int] = set()

    def is_new(self, number: int) -> bool:
        """Note a number; return whether it was not taken yet."""
        if self.after is None:
            self.after = self._first = number
            return True
        if self._first is not None and number < self._first:
            # Later ones overtook the beginning of the stream.
            self._beyond.update(range(self._first, self.after + 1)[-self._limit :])
            self._first = self.after = number
            self._go_on()
            return True
        if number <= self.after or number in self._beyond:
            return False
        self._beyond.add(number)
        if len(self._beyond) > self._limit:
            self.after = min(self._beyond)
        self._go_on()
        return True

    def _go_on(self) -> None:
        assert self.after is not None
        self._beyond.discard(self.after)
        while self.after + 1 in self._beyond:
            self.after += 1
            self._beyond.discard(self.after)


# -- answers ----------------------------------------------------------------------------------


MORE_TO_COME = frozenset({Status.PARTIAL, Status.ACCEPTED})
"""The statuses of an EVENT that is not the last one."""


class EnvelopeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a REQUEST.

    ``status`` is ``success``, ``accepted``, ``input-required`` or ``auth-required``; to answer a
    question, send a further request with ``task_id``. ``message`` is the whole message.
    """

    results: tuple[Any, ...]
    status: str
    metadata: ResponseMetadata
    message: Envelope

    @property
    def result(self) -> Any:
        """The only result. Raises ``ValueError`` if there is none, or more than one."""
        if len(self.results) != 1:
            raise ValueError(f"the answer has {len(self.results)} results; see results")
        return self.results[0]

    @property
    def task_id(self) -> str:
        """The task of the request, empty if it has none."""
        return self.metadata.task_id

    @property
    def context_id(self) -> str:
        """The conversation of the request, empty if it has none."""
        return self.metadata.context_id


class EnvelopeEvent(EnvelopeAnswer, frozen=True, kw_only=True):
    """One message of a stream: an EVENT, or the RESPONSE that accepts a command or ends a query.

    ``is_final``: nothing follows. ``error`` is why one agent of a broadcast failed; any other
    failure is raised.
    """

    is_final: bool

    @property
    def error(self) -> EnvelopeError | None:
        """Why the agent ``metadata.agent_id`` of a broadcast failed, if it did."""
        payload = self.message.payload
        return payload.error if isinstance(payload, ResponsePayload) else None

    @property
    def sequence(self) -> int | None:
        """The number of the event in its task's log, if it has one."""
        return self.metadata.sequence


class EnvelopeFailed(Exception):
    """The agent answered with an error.

    ``code`` is its reason, such as ``TASK_NOT_FOUND``; ``retry_after`` is in seconds;
    ``violations`` are the members of the request that are wrong; ``details`` are its typed
    details. ``task_id`` is the task's that failed, if there is one.
    """

    def __init__(
        self, error: EnvelopeError, *, task_id: str = "", answer: Envelope | None = None
    ) -> None:
        self.error = error
        self.code: str = error.code
        self.message = error.message
        self.retry_after = None if error.retry_after is None else error.retry_after / 1000
        self.violations: tuple[Violation, ...] = error.violations
        self.task_id = task_id
        self.answer = answer
        super().__init__(f"{error.code}: {error.message}" if error.message else error.code)

    @property
    def a2a_error(self) -> A2AError:
        """The same as an error of A2A."""
        from parley.envelope.errors import a2a_error

        return a2a_error(self.error)


class AnswerEnd:
    """Finds the last answer to one request.

    A command that is broadcast has ended when each agent that accepted it has.
    """

    def __init__(self, request: Envelope) -> None:
        self._is_command = request.message.sub_type == SubType.COMMAND
        self._is_broadcast = is_broadcast(request)
        self._ended: set[str] = set()
        self._accepted: frozenset[str] | None = None

    def is_last(self, answer: Envelope) -> bool:
        """Note an answer; return whether no further one follows."""
        payload = answer.payload
        is_response = answer.message.type == MessageType.RESPONSE
        if not isinstance(payload, ResponsePayload):
            return is_response
        if not self._is_command:
            return is_response
        if not self._is_broadcast:
            return payload.status not in MORE_TO_COME
        if is_response:
            if payload.status != Status.ACCEPTED:
                return True
            self._accepted = frozenset(_who_accepted(payload))
        elif payload.status not in MORE_TO_COME and len(self._ended) < MAX_AGENTS:
            self._ended.add(payload.metadata.agent_id)
        return self._accepted is not None and self._accepted <= self._ended


MAX_AGENTS = 1024
"""How many agents of one broadcast are told apart."""


def is_broadcast(request: Envelope) -> bool:
    """Return whether several agents may answer a request."""
    return request.target.routing_strategy == RoutingStrategy.BROADCAST


def _who_accepted(summary: ResponsePayload) -> Iterator[str]:
    for outcome in summary.results:
        if isinstance(outcome, dict) and outcome.get("status") == Status.ACCEPTED:
            agent = outcome.get("agentId")
            if isinstance(agent, str):
                yield agent


def payload_of(answer: Envelope) -> ResponsePayload:
    """Return the payload of an answer. Raises ``EnvelopeFailed`` for an error."""
    payload = answer.payload
    if not isinstance(payload, ResponsePayload):
        raise EnvelopeFailed(
            EnvelopeError(code="INVALID_AGENT_RESPONSE", message="the answer has no payload"),
            answer=answer,
        )
    if payload.status == Status.ERROR or payload.error is not None:
        error = payload.error or EnvelopeError(code="INTERNAL_ERROR")
        raise EnvelopeFailed(error, task_id=payload.metadata.task_id, answer=answer)
    return payload


def answer_of(answer: Envelope) -> EnvelopeAnswer:
    """Return an answer for its caller. Raises ``EnvelopeFailed`` for an error."""
    payload = payload_of(answer)
    return EnvelopeAnswer(
        results=payload.results, status=payload.status, metadata=payload.metadata, message=answer
    )


def event_of(answer: Envelope, *, is_final: bool, of_one: bool = False) -> EnvelopeEvent:
    """Return a message of a stream for its caller.

    Raises ``EnvelopeFailed`` for an error, but not for that of one agent of a broadcast.
    """
    payload = answer.payload
    if not (of_one and isinstance(payload, ResponsePayload)):
        payload = payload_of(answer)
    return EnvelopeEvent(
        results=payload.results,
        status=payload.status,
        metadata=payload.metadata,
        message=answer,
        is_final=is_final,
    )


def request_in(message: Envelope) -> RequestPayload:
    """Return the payload of a REQUEST. Raises ``TypeError`` for another message."""
    if not isinstance(message.payload, RequestPayload):
        raise TypeError(f"a REQUEST has an action, unlike this {message.message.type}")
    return message.payload
