"""How many requests of a skill run at once in this process: ``DeclaredPerformance``."""

from __future__ import annotations

import asyncio
import math
from typing import Self

from parley.engine.replies.reply_handle import ReplyHandle
from parley.model.envelope.declared import DeclaredPerformance, EnvelopeSettings
from parley.model.errors import OverloadedError


class SkillSlots:
    """Slots of the skills whose author says how many requests they serve at once.

    A message has a slot from its admission until the reply of its turn: the task has ended, or asks
    for something. A turn that another process runs has none here.
    """

    def __init__(self, performance: dict[str, DeclaredPerformance]) -> None:
        self._performance = performance
        self._taken = dict.fromkeys(performance, 0)

    @classmethod
    def of(cls, settings: EnvelopeSettings | None) -> Self | None:
        """Return the slots of an agent, ``None`` if no skill has a number of them."""
        if settings is None:
            return None
        limited = {
            skill: each
            for skill, each in settings.performance.items()
            if each.max_concurrent_requests is not None
        }
        return cls(limited) if limited else None

    def check(self, skill: str) -> None:
        """Refuse a message if all slots of its skill are taken. Raises ``OverloadedError``."""
        declared = self._performance.get(skill)
        if declared is None or declared.max_concurrent_requests is None:
            return
        if self._taken[skill] >= declared.max_concurrent_requests:
            raise OverloadedError(
                f"the skill {skill!r} serves {declared.max_concurrent_requests} "
                f"request{'s' * (declared.max_concurrent_requests > 1)} at once, and has them; "
                "send this again later",
                retry_after=max(1, math.ceil((declared.average_response_time or 0) / 1000)),
            )

    def hold(self, skill: str, handle: ReplyHandle) -> None:
        """Take a slot until a message has its reply."""
        if skill not in self._taken or handle.is_settled:
            return
        self._taken[skill] += 1

        def changed(_: asyncio.Future[None] | None) -> None:
            if handle.is_settled:
                self._taken[skill] -= 1
            else:
                handle.changed().add_done_callback(changed)

        changed(None)
