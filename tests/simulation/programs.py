"""The agents of a simulation: they run little programs from their messages.

A program is words: ``z30`` sleeps 0.3 s, ``w`` reports that it works, ``s`` does a step, ``c4``
streams an artifact of four chunks, ``a`` makes an artifact, ``q`` asks, ``l2`` reads two additional
messages, ``r`` rejects, ``f`` fails, ``x`` raises, ``u30`` ignores a cancellation for 0.3 s,
``n300`` makes the turn sleep for 3 s, ``e200`` waits for an event, which another process completes
about 2 s later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

from parley import CardDetails, Execution
from parley.agent.agent import Agent
from parley.agent.turn import Turn
from tests.simulation.loop import PROCESS
from tests.simulation.world import World

LIVE_SECONDS = 10.0

PATIENCE = 1000.0
"""Maximum duration of a request after the faults have ended: longer than any queue."""


def program_of(random: Random) -> str:
    """Draw a program."""
    words = []
    for _ in range(random.choice([0, 1, 2, 3, 5])):
        word = random.choice("zzzwsssccaaqqlunneee")
        if word == "z":
            word = f"z{random.choice([0, 1, 10, 50, 200])}"
        elif word == "c":
            word = f"c{random.choice([1, 2, 5, 30])}"
        elif word == "l":
            word = f"l{random.choice([1, 2])}"
        elif word == "n":
            word = f"n{random.choice([0, 50, 120, 300, 1000])}"
        elif word == "e":
            word = f"e{random.choice([0, 1, 20, 200, 900])}"
        elif word == "u":
            word = f"u{random.choice([5, 50, 300])}"
        words.append(word)
    if random.random() < 0.12:
        words.append(random.choice("rfx"))
    return " ".join(words)


def expected_artifacts(program: str) -> list[str | None]:
    """Return the texts of the artifacts of a finished task; ``None`` for an unknown task."""
    artifacts: list[str | None] = []
    for at, word in enumerate(program.split()):
        match word[0]:
            case "c":
                artifacts.append("".join(f"{i}." for i in range(int(word[1:]))))
            case "a":
                artifacts.append(f"made {at}")
            case "s":
                artifacts.append(f"step {at}")
            case "e":
                artifacts.append(f"event {at}")
            case "q" | "l":
                artifacts.append(None)
    artifacts.append("done")
    return artifacts


class Programs:
    """The agent of one replica, and the checks of its functions."""

    def __init__(
        self, world: World, checker: Any, complete: Callable[[str, str, str, float], None]
    ) -> None:
        self._world = world
        self._checker = checker
        self._complete = complete

    @property
    def options(self) -> dict[str, Any]:
        """The options of all agents of a replica."""
        plan = self._world.plan
        span = lambda seconds: None if seconds is None else timedelta(seconds=seconds)  # noqa: E731
        execution = Execution(
            direct_reply_timeout=plan.moment,
            blocking_timeout=2 * PATIENCE,
            turn_timeout=span(plan.turn_timeout),
            task_timeout=span(plan.task_timeout),
            cancel_grace=plan.cancel_grace,
            max_running=plan.max_running,
            max_queued=plan.max_queued,
            on_crash=plan.on_crash,
            max_attempts=plan.max_attempts,
        )
        return {"card": CardDetails(push_notifications=plan.has_webhooks), "execution": execution}

    def agent(self, name: str = "Programs") -> Agent:
        """Return an agent for one replica."""
        agent = Agent(name, **self.options)
        agent.skill(id="run", default=True)(self._run)
        agent.skill(id="task", replies="task")(self._run)
        agent.skill(id="reply", replies="message")(self._reply)
        return agent

    async def _reply(self, turn: Turn) -> str:
        await asyncio.sleep(0.02)
        return f"reply to {turn.text}"

    async def _run(self, turn: Turn) -> str:
        self._checker.runs(turn, PROCESS.get())
        for at, word in enumerate(turn.text.split()):
            await self._do(turn, at, word)
        return "done"

    async def _do(self, turn: Turn, at: int, word: str) -> None:
        number = int(word[1:] or 0)
        match word[0]:
            case "z":
                await asyncio.sleep(number / 100)
            case "w":
                await turn.working(f"at {at}")
            case "s":
                await turn.artifact(await turn.step(f"s{at}", self._step, turn, at))
            case "a":
                await turn.artifact(f"made {at}")
            case "c":
                async with turn.stream() as out:
                    for i in range(number):
                        await out.write(f"{i}.")
                        await asyncio.sleep(self._world.random.choice([0, 0, 0.001, 0.03]))
            case "n":
                await turn.sleep(number / 100, key=f"n{at}")
            case "e":
                key = f"{turn.task_id}:{at}"
                self._complete(turn._attempt.runner.scope.agent, key, f"event {at}", number / 100)
                await turn.artifact(await turn.wait_event(key))
            case "q":
                answer = await turn.ask(f"question {at}")
                await turn.artifact(f"answer {at} {answer.message_id}")
            case "l":
                await turn.artifact(f"passed {at} {await self._pass(turn, number)}")
            case "u":
                await self._unwilling(number / 100)
            case "r":
                turn.reject("not this")
            case "f":
                turn.fail("it went wrong")
            case "x":
                raise RuntimeError("a bug of the agent")

    async def _step(self, turn: Turn, at: int) -> str:
        self._checker.steps(turn, f"step:s{at}", PROCESS.get())
        await asyncio.sleep(self._world.random.choice([0, 0.01, 0.2]))
        return f"step {at}"

    async def _pass(self, turn: Turn, number: int) -> str:
        taken: list[str] = []
        try:
            async with asyncio.timeout(LIVE_SECONDS):
                async for message in turn.messages():
                    taken.append(message.message_id)
                    if len(taken) == number:
                        break
        except TimeoutError:
            self._checker.hears_nothing(turn)
            taken.append("timeout")
        return " ".join(taken)

    async def _unwilling(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            try:
                await asyncio.sleep(end - loop.time())
            except asyncio.CancelledError:
                self._world.trace("does not mind")
