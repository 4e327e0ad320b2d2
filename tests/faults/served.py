"""The agents that the fault tests serve in a separate process: ``served.py PORT STORE``."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

from parley import Agent, Caller, Execution, Retention, Turn, serve

try:
    import resource
except ImportError:  # Windows
    resource = None

CHUNKS = 500

agent = Agent(
    "Served",
    execution=Execution(cancel_grace=0.5, max_attempts=100),
    retention=Retention(claims=["email"]),
)


@agent.skill
async def report(turn: Turn) -> AsyncIterator[str]:
    """Streams many chunks, slowly enough to be interrupted."""
    for n in range(CHUNKS):
        yield f"{n} "
        if n % 5 == 0:
            await asyncio.sleep(0.002)


@agent.skill(replies="task")
async def authorized(turn: Turn) -> str:
    """Needs a credential, and then takes its time."""
    credential = await turn.require_auth("May I?", scopes="mail.read")
    await turn.step("arrived", arrived)
    if turn.attempt < 2 and turn.text == "slow":
        await asyncio.sleep(3600)
    return f"{len(credential.token)} in attempt {turn.attempt}"


def arrived() -> bool:
    return True


@agent.skill(replies="task")
async def steps(turn: Turn) -> str:
    """Does several things once each, and says how often each was begun."""
    done = []
    for n in range(10):
        done.append(await turn.step(f"step-{n}", act, turn.task_id, n))
        await asyncio.sleep(0.005)
    return " ".join(done)


async def act(task_id: str, n: int) -> str:
    """Leave a trace outside the log, as a payment would."""
    with open(f"{sys.argv[2].removeprefix('sqlite:///')}.acts", "a") as acts:
        acts.write(f"{task_id} {n}\n")
    return str(n)


@agent.skill
async def chat(turn: Turn) -> str:
    """Asks three questions."""
    return " ".join([(await turn.ask(f"Question {n}?")).text for n in range(3)])


@agent.skill(invalid_input="ask")
async def stay(turn: Turn, city: str, nights: int) -> str:
    """Asks for the input that is missing, and then for a typed answer."""
    size = await turn.ask("Which room?", answer=Literal["small", "large"])
    return f"{city} {nights} {size}"


@agent.skill(replies="task")
async def confirm(turn: Turn) -> str:
    """Asks, and goes on only in a run that has the answer from the log."""
    answer = await turn.ask("Sure?")
    await turn.working(f"{answer.text} {answer.replayed}")
    if not answer.replayed:
        await asyncio.Event().wait()
    return f"{answer.text} {answer.replayed}"


@agent.skill(replies="message")
async def tally(turn: Turn) -> str:
    """Counts its calls."""
    return str(await turn.update("calls", lambda n: n + 1, default=0))


@agent.skill(replies="task")
async def numbered(turn: Turn) -> str:
    """Takes a number, once."""
    number = await turn.step("number", turn.update, "numbers", lambda n: n + 1, default=0)
    await turn.working(str(number))
    await asyncio.sleep(0.05)
    return str(number)


@agent.skill(replies="task")
async def forever(turn: Turn) -> str:
    """Never ends by itself."""
    await turn.working("waiting")
    await asyncio.Event().wait()
    return "never"


@agent.skill
async def flood(turn: Turn) -> AsyncIterator[str]:
    """Asks for the word, then streams "COUNT SIZE" chunks and characters as fast as it can."""
    await turn.ask("Ready?")
    count, size = map(int, turn.text.split())
    for n in range(count):
        yield f"{n} ".ljust(size, ".")


@agent.skill(replies="message")
async def memory(turn: Turn) -> str:
    """Says how many bytes of memory the process has had at most; 0 where that is not told."""
    if resource is None:
        return "0"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return str(peak if sys.platform == "darwin" else peak * 1024)


@agent.skill(replies="task")
async def copy(turn: Turn) -> Path:
    """Gives its file back, by way of the disk, and says the digest."""
    digest = hashlib.sha256()
    async with turn.files[0].open() as stream:
        async for chunk in stream:
            digest.update(chunk)
    await turn.artifact(digest.hexdigest(), name="digest")
    folder = Path(f"{sys.argv[2].removeprefix('sqlite:///')}.copies")
    folder.mkdir(exist_ok=True)
    return await turn.files[0].save(folder / turn.task_id)


@agent.skill(replies="message")
async def much(turn: Turn) -> str:
    """Says as many characters as it is told to."""
    return "x" * int(turn.text)


@agent.skill(replies="message")
async def disk(turn: Turn) -> str:
    """Lets no file of the process grow beyond so many bytes, as a full disk would; -1 lifts it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(turn.text), resource.RLIM_INFINITY))
    return "done"


@agent.skill(replies="task")
async def whose(turn: Turn) -> str:
    """Says whose each of its turns is, once it has been killed in each of them."""
    if turn.attempt == 1:
        await turn.working("kill me")
        await asyncio.Event().wait()
    caller = turn.caller
    said = f"{caller.id} {caller.issuer} {caller.authenticated} {caller.claims}"
    if turn.number == 1:
        await turn.ask(said)
    return said


@agent.skill(replies="task")
async def traced(turn: Turn) -> str:
    """Says what trace each of its turns belongs to, once it has been killed in each of them."""
    if turn.attempt == 1:
        await turn.working("kill me")
        await asyncio.Event().wait()
    said = f"{turn.trace.traceparent} {turn.trace.tracestate}"
    if turn.number == 1:
        await turn.ask(said)
    return said


def who(scope: dict[str, Any]) -> Caller:
    """Identify the caller by the headers; without ``x-user`` the caller is anonymous."""
    given = {name: value.decode() for name, value in scope["headers"]}
    if b"x-user" not in given:
        return Caller()
    claims: dict[str, object] = {"email": given[b"x-email"], "id_token": "hunter2"}
    return Caller(given[b"x-user"], True, claims, issuer="one")


if __name__ == "__main__":
    serve(
        agent,
        caller=who,
        port=int(sys.argv[1]),
        store=sys.argv[2],
        grpc_port=int(sys.argv[3]) if len(sys.argv) > 3 else None,
        drain=2.0,
        allow_private_webhooks=["127.0.0.1"],
    )
