"""Agents that are the parts of tested compositions."""

from __future__ import annotations

import asyncio
from typing import Any

from parley import Agent, Execution, Turn
from parley.compose import Spent
from parley.extensions.usage import Usage


class Worker:
    """An agent that acts as its message says, and counts its actions.

    ``wait`` waits until ``go``, ``ask`` asks, ``fail`` and ``reject`` end the task so; with
    ``tokens`` each answer reports this cost.
    """

    def __init__(self, name: str, *, does: str = "", tokens: int = 0, **options: Any) -> None:
        self.name = name
        self.does = does
        self.began: list[str] = []
        self.ended: list[str] = []
        self.turns: list[Turn] = []
        self.go = asyncio.Event()
        self.agent = Agent(name, execution=Execution(cancel_grace=0.2), **options)

        @self.agent.skill(id=f"do-{self.agent.key}")
        async def work(turn: Turn) -> Any:
            """Works."""
            self.turns.append(turn)
            if turn.number == 1 and turn.attempt == 1:
                self.began.append(turn.text)
            todo = self.does or turn.text
            answer = ""
            try:
                if "ask" in todo:
                    answer = f" {(await turn.ask('Which day?')).text}"
                if "wait" in todo:
                    await turn.working("at it")
                    await self.go.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
            if "fail" in todo:
                turn.fail("no luck")
            if "reject" in todo:
                turn.reject("not me")
            said = f"{name}({turn.text}{answer})"
            if tokens:
                await turn.artifact(said, metadata=Usage.says(Spent(tokens=tokens)))
                return None
            return said
