"""Measures the turns of one agent: seconds that they run, bytes that they write, tasks begun."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from parley.engine.turn.attempt import Attempt, Request
from parley.model.parts import Artifact
from parley.model.service import Caller
from parley.server.limits.rates import AgentLimits, TurnSizes


class AgentMeter:
    """Counts the turns of an agent, if usage is counted, and knows their limits."""

    def __init__(self, limits: AgentLimits) -> None:
        self._limits = limits

    def turn_sizes(self, skill: str) -> TurnSizes:
        """Return the limits of what a turn of a skill writes."""
        return self._limits.turn_sizes(skill)

    def wrote(self, request: Request, size: int) -> None:
        """Count bytes of output."""
        self._count("output_bytes", request, size)

    def began(self, request: Request) -> None:
        """Count a task."""
        self._count("tasks", request, 1)

    def measured(
        self, invoke: Callable[[Attempt], Awaitable[object]]
    ) -> Callable[[Attempt], Awaitable[object]]:
        """Return what calls the author's function, and counts how long it runs."""

        async def measured(attempt: Attempt) -> object:
            began = time.monotonic()
            runner, request = attempt.runner, attempt.request
            if attempt.turn == 1 and attempt.number == 1 and runner.writer is not None:
                self.began(request)  # of a task that is created later its writer counts it
            value: object = None
            try:
                value = await invoke(attempt)
                return value
            finally:
                self._count("run_ms", request, round((time.monotonic() - began) * 1000))
                if runner.writer is None:
                    self.wrote(request, _reply_size(value))

        return measured

    def _count(self, what: str, request: Request, amount: int) -> None:
        usage = self._limits.usage
        if usage is not None and amount:
            skill = request.skill.id
            usage.count(
                what, self._limits.agent, request.tenant, billed(request.caller), skill, amount
            )


def billed(caller: Caller) -> str:
    """Return whom usage counts for."""
    return caller.owner if caller.authenticated else ""


def _reply_size(value: Any) -> int:
    """Return the size of a direct reply in bytes, about; a task is made for an artifact."""
    if value is None or isinstance(value, Artifact):
        return 0
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, bytes):
        return len(value)
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError):
        return 0
