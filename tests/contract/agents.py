"""Agents with a skill for each outcome; the first word of a message chooses the skill."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any
from urllib.parse import unquote

from parley import (
    AgentExtension,
    AgentSkill,
    Caller,
    CardDetails,
    Execution,
    Part,
    Retention,
    Task,
    Turn,
)
from parley.agent.agent import Agent
from parley.engine.routing import RoutedMessage
from parley.extensions import TaskSearch
from parley.model.errors import (
    A2AError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

STRICT = "urn:example:strict:v1"

gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""The event that ``hold`` waits for, by task id."""

contract = Agent(
    "Contract agent",
    description="Does what it is told, to show each outcome.",
    version="1.2.3",
    execution=Execution(blocking_timeout=5.0, cancel_grace=1.0),
)


@contract.router
def by_first_word(routed: RoutedMessage) -> str | None:
    word = routed.text.partition(" ")[0]
    return word if word in contract.skills else None


@contract.skill(replies="message", tags=["direct"], default=True)
async def say(turn: Turn) -> list[Part]:
    """Answers with a direct message: what it was told, part for part."""
    first, *others = turn.parts
    return [Part(text=(first.text or "").removeprefix("say ")), *others]


@contract.skill(replies="task")
async def work(turn: Turn) -> str:
    """Completes a task."""
    await turn.working("on it")
    return "done"


@contract.skill(replies="task")
async def fail(turn: Turn) -> None:
    """Fails a task."""
    turn.fail("it does not go")


@contract.skill(replies="task")
async def reject(turn: Turn) -> None:
    """Rejects a task."""
    turn.reject("not for me")


@contract.skill(replies="task")
async def crash(turn: Turn) -> None:
    """Raises what nobody may see."""
    raise RuntimeError("hunter2")


@contract.skill(replies="task")
async def whole(turn: Turn) -> None:
    """Makes an artifact of every kind of part, each whole."""
    await turn.artifact("some text", name="text", description="plain words")
    await turn.artifact({"key": "value", "count": 42, "deep": [1, 2.5, None, True]}, name="data")
    await turn.artifact(b"\x00\x01\xff", name="bytes.bin", media_type="application/octet-stream")
    url = Part(url="https://example.com/a.png", filename="a.png", media_type="image/png")
    await turn.artifact(url, name="url", metadata={"of": "the web"})


@contract.skill(replies="task")
async def chunks(turn: Turn) -> None:
    """Streams an artifact in three pieces."""
    async with turn.stream(name="report") as out:
        for piece in ("one ", "two ", "three"):
            await out.write(piece)


@contract.skill(replies="task")
async def parts(turn: Turn) -> None:
    """Streams a text in pieces, some of them empty, and parts."""
    async with turn.stream(name="answer", media_type="text/markdown") as out:
        for piece in ("", "one ", "", "two ", "three", ""):
            await out.write(piece)
    async with turn.stream(name="parts") as out:
        for each in (Part(text="one"), Part(text="two"), {"three": 3}, "", "four ", "five"):
            await out.write(each)


@contract.skill(replies="task")
async def ask(turn: Turn) -> str:
    """Asks, and goes on with the answer."""
    answer = await turn.ask("Which size?")
    return f"size {answer.text}"


@contract.skill(replies="task")
async def auth(turn: Turn) -> str:
    """Needs the caller's credentials, and goes on when they were given."""
    answer = await turn.require_auth("Log in at https://example.com")
    return f"thanks for {answer.text}"


@contract.skill(replies="task")
async def hold(turn: Turn) -> str:
    """Works until a test lets it go on."""
    await turn.working("holding")
    await gates[turn.task_id].wait()
    return "let go"


@contract.skill(replies="task")
async def show(turn: Turn) -> str:
    """Waits, and then says everything that can be said in a stream."""
    await gates[turn.task_id].wait()
    await turn.working("half way", metadata={"percent": 50})
    async with turn.stream(name="report", metadata={"by": "piece"}) as out:
        for piece in ("one ", "two ", "three"):
            await out.write(piece)
    await turn.artifact({"n": 1, "list": [None, 2.5, "x"]}, name="data", description="Numbers")
    await turn.artifact(b"\x00\xff", name="b.bin", media_type="application/octet-stream")
    size = await turn.ask("Which size?")
    return f"size {size.text}"


@contract.skill(replies="task", input_modes=["text/plain"])
async def words(turn: Turn) -> str:
    """Takes nothing but text."""
    return "words"


@contract.skill(replies="message", id="break")
async def break_(turn: Turn) -> str:
    """Raises what nobody may see, where there is no task yet."""
    raise RuntimeError("hunter2")


@contract.extended_card
def more(caller: Caller) -> dict[str, Any] | None:
    """Add a secret skill to the extended card of every authenticated caller except Eve."""
    if caller.id == "eve":
        return None
    secret = AgentSkill(id="secret", name="Secret", description="Hidden.", tags=("secret",))
    return {"description": f"Does what it is told, for {caller.id}.", "skills": [secret]}


def release(task: Task) -> None:
    """Let the ``hold`` skill of a task finish."""
    gates[task.id].set()


strict = Agent(
    "Strict agent",
    description="Wants an extension.",
    version="1.0.0",
    extensions=[AgentExtension(uri=STRICT, required=True)],
)


@strict.skill(tags=["strict"])
async def obey(turn: Turn) -> str:
    """Says which extensions are in force."""
    return ", ".join(sorted(turn.extensions & {STRICT}))


plain = Agent(
    "Plain agent",
    description="Declares nothing but streams.",
    version="1.0.0",
    card=CardDetails(push_notifications=False),
)


@plain.skill(tags=["plain"])
async def nod(turn: Turn) -> str:
    """Nods."""
    return "mhm"


private = Agent(
    "Private agent", retention=Retention(history=True, claims=["email"]), extensions=[TaskSearch()]
)


@private.skill(replies="task")
async def confide(turn: Turn) -> str:
    """Asks, then says who it speaks with, and what was said and kept in the conversation."""
    await turn.remember("said", f"{await turn.recall('said', '')}{turn.text};")
    await turn.ask("Go on?")
    said = [message.text for message in await turn.history() if message.text.startswith("secret")]
    known = turn.caller
    who = [known.id, known.issuer, str(known.authenticated), str(sorted(known.claims.items()))]
    return "|".join([*who, ",".join(said), await turn.recall("said")])


REFUSED: dict[str, A2AError] = {
    "nobody": UnauthenticatedError("say who you are"),
    "mallory": PermissionDeniedError("not you"),
    "crowd": OverloadedError("too many", retry_after=7),
}


NAMES = (b"x-user", b"x-client", b"x-issuer")


def who(scope: Any) -> Caller:
    """Identify callers by headers; reject some; a name that ends with "?" is not authenticated."""
    given = {name: unquote(value.decode()) for name, value in scope["headers"] if name in NAMES}
    user = given.get(b"x-user", "")
    if not user:
        return Caller()
    if user in REFUSED:
        raise REFUSED[user]
    is_known = not user.endswith("?")
    issuer = given.get(b"x-issuer", "")
    claims: dict[str, object] = {"email": f"{user}@{issuer}", "password": "hunter2"}
    client = given.get(b"x-client", "")
    return Caller(user.rstrip("?"), is_known, claims, issuer=issuer, client=client)
