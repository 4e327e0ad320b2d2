"""An agent that has handed a conversation over is killed: it stays handed over, and once only."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import parley
from parley import Agent, Execution, Task, TaskState, Turn
from parley.compose import handoff
from parley.server.run import serving
from tests.faults.conftest import Served
from tests.kit.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HANDING = Path(__file__).with_name("handing.py")


async def test_a_kill_loses_and_repeats_no_handoff(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    go = asyncio.Event()
    billing = Agent("Billing", execution=Execution(cancel_grace=0.2))

    @billing.skill(replies="task")
    async def bill(turn: Turn) -> object:
        """Waits, and hands back what is not about money."""
        if turn.number == 1:
            heard.append((turn.text, turn.handoff.note if turn.handoff else ""))
        await go.wait()
        return handoff(back=True) if turn.text == "weather" else f"Billing: {turn.text}"

    async with serving(parley.asgi(billing, drain=0.2)) as url:
        served = Served(tmp_path / "tasks.db", script=HANDING, args=[url])
        await served.start()
        try:
            async with parley.connect(served.url) as remote:
                first = await remote.send("money", return_immediately=True)
                assert isinstance(first, Task)
                await until(lambda: heard == [("money", "a note")])
                back = await remote.send(
                    "weather", context_id=first.context_id, return_immediately=True
                )
                assert isinstance(back, Task)
                await until(lambda: heard[-1] == ("weather", ""))
                await served.end()
                await served.start()
                go.set()
                assert (await remote.wait(first.id, timeout=30)).text == "Billing: money"
                done = await remote.wait(back.id, timeout=30)
                assert (done.state, done.text) == (TaskState.COMPLETED, "Reception: weather")
        finally:
            if served.process is not None and served.process.returncode is None:
                await served.end()
    assert [text for text, _ in heard] == ["money", "weather"]
