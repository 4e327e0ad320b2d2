"""Four agents: ``chain.py front PORT STORE COLLECTOR REST`` serves the first agent.

``rest``, at the address REST, serves the others.
The first calls the second over HTTP, which calls the third in its process, which calls the fourth.
"""

from __future__ import annotations

import asyncio
import sys

from parley import Agent, Turn, serve

part, port, store, collector, rest = sys.argv[1:]
rest = rest or f"http://127.0.0.1:{port}"

front, third, fourth = Agent("Front"), Agent("Third"), Agent("Fourth")
second = Agent("Second", uses=[third])


@front.skill(replies="task")
async def ask(turn: Turn) -> str:
    answer = await turn.delegate(f"{rest}/second", turn.text)
    await turn.working("asked")
    if turn.attempt == 1:
        await asyncio.sleep(3600)
    return answer.text


@second.skill
async def share(turn: Turn) -> str:
    return (await turn.delegate(third, turn.text)).text


@third.skill
async def pass_on(turn: Turn) -> str:
    return (await turn.delegate(f"{rest}/fourth", turn.text)).text


@fourth.skill
async def end(turn: Turn) -> str:
    with turn.span("the end"):
        return turn.text


agents = {"": front} if part == "front" else {"/second": second, "/fourth": fourth}
lease = 2 if part == "front" else None
serve(agents, port=int(port), store=store, otlp=collector, lease=lease, allow_private_agents=True)
