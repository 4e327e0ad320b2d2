"""The non-blocking part of a turn, shared by ``Turn`` and ``BlockingTurn``."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from parley.agent.context import AgentContext
from parley.agent.files import base_url
from parley.agent.services import TurnServices
from parley.engine.content import accepts
from parley.engine.handoff import HandedConversation
from parley.engine.turn.attempt import Attempt, Failed, Rejected
from parley.extensions.call_chain import ChainBudget
from parley.model.parts import Message, Part
from parley.model.service import Caller, TraceContext
from parley.model.tasks import Task
from parley.observe import tracing

log = logging.getLogger("parley.agent")


class _TurnLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that adds the task of a turn to each line."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> Any:
        assert self.extra is not None
        kwargs["extra"] = {**self.extra, **(kwargs.get("extra") or {})}
        return f"task {self.extra['task_id']}: {msg}", kwargs


class TurnFacts:
    """The request, the caller and the task of one turn."""

    def __init__(self, attempt: Attempt, services: TurnServices) -> None:
        self._attempt = attempt
        self._services = services

    @property
    def _context(self) -> AgentContext:
        return self._services.contexts.of(self._attempt.runner)

    @property
    def base_url(self) -> str:
        """The agent's public address, without a trailing slash.

        It is the ``url`` of the server, else the address to which this turn's message was sent.
        Empty if neither is known: over gRPC, and in process.
        """
        return base_url(self._services, self._attempt)

    @property
    def state(self) -> Any:
        """The value of the agent's lifespan, which is entered before its turns run.

        Raises ``RuntimeError`` for an agent without one.
        """
        lifespan = self._services.lifespan
        if lifespan is None:
            raise RuntimeError(
                "turn.state is the value of the agent's lifespan, and this agent has none; "
                "give it one: Agent(..., lifespan=...)"
            )
        return lifespan.value

    @property
    def message(self) -> Message:
        """The message that began the task."""
        return self._attempt.request.message

    @property
    def latest(self) -> Message:
        """The message of this turn: the newest that a turn has received."""
        return self._attempt.latest

    @property
    def budget(self) -> ChainBudget | None:
        """The caller's budget for this turn and all its calls; ``None`` for no limit.

        A composition sets it for its parts. ``parley.extensions.Spent`` states the cost of an
        answer.
        """
        chain = self._attempt.request.chain
        return None if chain is None else chain.budget

    @property
    def text(self) -> str:
        """The text of the message that began the task."""
        return self.message.text

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the message that began the task."""
        return self.message.parts

    @property
    def data(self) -> Any:
        """The value of the first data part of that message, or ``None``."""
        for part in self.message.parts:
            if part.has_data:
                return part.data
        return None

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the request and its message. The message takes precedence."""
        return {**(self._attempt.request.metadata or {}), **(self.message.metadata or {})}

    @property
    def handoff(self) -> HandedConversation | None:
        """The handoff by which the conversation reached this agent with this message, if any.

        ``is_back``: this agent had handed it over, and the other agent returned it.
        """
        return self._attempt.handed or HandedConversation.of(self.message)

    @property
    def accepted_output_modes(self) -> tuple[str, ...]:
        """The media types that the caller accepts. Empty means any."""
        return self._attempt.request.accepted_output_modes

    def accepts(self, media_type: str) -> bool:
        """Return whether the caller accepts a media type, or a type of a range (``image/*``)."""
        modes = self.accepted_output_modes
        return not modes or accepts(modes, media_type)

    @property
    def skill_id(self) -> str:
        """The id of the skill that runs."""
        return self._attempt.request.skill.id

    @property
    def caller(self) -> Caller:
        """The sender of this turn's message, the same in every attempt, also after a restart.

        ``claims`` has the claims that ``Retention(claims=...)`` names. The messages that
        ``messages`` yields do not change it.
        """
        return self._attempt.request.caller

    @property
    def tenant(self) -> str:
        """The tenant that the request named."""
        return self._attempt.request.tenant

    @property
    def extensions(self) -> frozenset[str]:
        """The URIs of the active extensions."""
        return self._attempt.request.extensions

    @property
    def trace(self) -> TraceContext:
        """The trace and the baggage of this turn's message, the same in every attempt.

        It is falsy if the request had none. Send its ``headers`` with requests to other services
        that belong to the trace. With tracing they name the current span.
        """
        trace = self._attempt.request.trace
        return trace if tracing.tracer is None else tracing.position(trace)

    def span(self, name: str, **attributes: str | float) -> AbstractContextManager[object]:
        """Give a block a span below the turn's span; it does nothing without tracing.

        The spans of libraries in the block nest below it. An exception is its status.
        """
        return tracing.spanned(name, attributes=attributes)

    @property
    def task(self) -> Task | None:
        """The current task, ``None`` if there is none yet."""
        writer = self._attempt.runner.writer
        if writer is None:
            return None
        self._attempt.runner.show_task()  # the function may pass the id on from now on
        return writer.fold.task

    @property
    def task_id(self) -> str:
        """The id of the task, even before the task exists."""
        self._attempt.runner.show_task()  # the function may pass it on
        return self._attempt.runner.task_id

    @property
    def context_id(self) -> str:
        """The id of the context that the message belongs to."""
        return self._attempt.runner.context_id

    @property
    def number(self) -> int:
        """The number of this turn in its task, from 1."""
        return self._attempt.turn

    @property
    def attempt(self) -> int:
        """The number of this attempt at the turn, from 1."""
        return self._attempt.number

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the task to each line. Its records stay on the server.

        They also have ``task_id``, ``context_id`` and ``skill`` as attributes.
        """
        return _TurnLog(
            log, {"task_id": self.task_id, "context_id": self.context_id, "skill": self.skill_id}
        )

    def reject(self, why: object) -> NoReturn:
        """End the task as REJECTED: the agent rejects the request.

        This applies even if the function catches the raised exception; later output is ignored.
        """
        self._attempt.end_with(Rejected(str(why)))

    def fail(self, why: object) -> NoReturn:
        """End the task as FAILED, with a reason for the caller, as ``reject`` does."""
        self._attempt.end_with(Failed(str(why)))
