"""The same agent on Parley's server, with its questions and replies.

Prints its address, then serves until its standard input closes.
"""

import asyncio
import sys

import parley
from parley import Agent, Turn
from parley.server.run import serving
from parley.server.settings import grpc_options

agent = Agent("Official agent", description="An agent on Parley")


@agent.skill(replies="task")
async def draft(turn: Turn) -> None:
    """Writes a draft, asks, and goes on as the answer says."""
    await turn.step("draft", lambda: turn.artifact("draft. ", name="draft"))
    how, *words = (await turn.ask("which?")).text.split()[1:]
    match how:
        case "chunks":
            async with turn.stream("report") as out:
                for number in range(int(words[0])):
                    await out.write(f"chunk {number}. ")
                    await asyncio.sleep(float(words[1]))
        case "again":
            await turn.working("thinking")
            await turn.ask("and when?")
        case "said":
            await turn.working("that is it")
        case "failed":
            turn.fail("it did not work")


async def main() -> None:
    async with serving(parley.asgi(agent), grpc=grpc_options(0)) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
