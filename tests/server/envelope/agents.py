"""The agent of the envelope tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from parley import Agent, Execution, Turn


class Gates:
    """Gates and counters of tests: nothing here depends on time."""

    def __init__(self) -> None:
        self.open: dict[str, asyncio.Event] = {}
        self.began: list[str] = []
        self.calls: Counter[str] = Counter()

    def of(self, name: str) -> asyncio.Event:
        """The gate with this name."""
        return self.open.setdefault(name, asyncio.Event())


def knowledge_base(gates: Gates, **options: Any) -> Agent:
    """An agent with a skill of each kind."""
    agent = Agent("Knowledge base", execution=Execution(cancel_grace=0.2), **options)

    @agent.skill
    async def search(query: str, max_results: int = 3) -> list[dict[str, Any]]:
        """Finds articles."""
        gates.calls[query] += 1
        return [{"title": f"{query} {n}", "confidence": 0.9} for n in range(max_results)]

    @agent.skill(replies="task")
    async def gated(turn: Turn, name: str, number: int = 0) -> str:
        """Waits until its gate opens."""
        gates.calls[name] += 1
        gates.began.append(name)
        await gates.of(name).wait()
        return f"through {name}"

    @agent.skill
    async def report(turn: Turn, name: str, chunks: int = 4) -> AsyncIterator[str]:
        """Streams chunks, the second half after its gate has opened."""
        gates.calls[name] += 1
        for n in range(chunks):
            if n == chunks // 2:
                await gates.of(name).wait()
            yield f"{n} "

    @agent.skill
    async def trip(turn: Turn) -> str:
        """Asks where to."""
        answer = await turn.ask("Where to?")
        return f"to {answer.text or answer.data}"

    @agent.skill(replies="task")
    async def fails(turn: Turn) -> str:
        """Fails."""
        raise RuntimeError("no such article")

    return agent
