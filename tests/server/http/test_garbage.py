"""Nothing that a request held waits for the garbage collector, which a server lets come seldom."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Execution, Turn
from parley.server.run import serving
from tests.kit.http import ask
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

HEADERS = {"Content-Type": "application/json", "A2A-Version": "1.0"}

agent = Agent("Tidy", execution=Execution(cancel_grace=0.1))


@agent.skill
async def act(turn: Turn) -> object:
    """Does what it is told in one of the ways in which a turn can end."""
    match turn.text:
        case "artifact":
            await turn.artifact("x" * 1000)
        case "stream":
            async with turn.stream() as out:
                for _ in range(20):
                    await out.write("x" * 1000)
        case "raise":
            raise RuntimeError("no")
        case "raise later":
            await turn.working("soon")
            raise RuntimeError("no")
        case "fail":
            turn.fail("no")
        case "reject":
            turn.reject("no")
        case "ask":
            return (await turn.ask("And?")).text
        case "unusable":
            return object()
        case "wait":
            await turn.working("waiting")
            await asyncio.Event().wait()
    return "done"


@pytest.fixture
def collected(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """Says which objects of ours only the collector finds, since it was last asked."""
    gc.collect()
    gc.freeze()  # what earlier tests left need not be looked through each time
    gc.disable()

    def found() -> list[str]:
        caplog.clear()  # it keeps what was raised
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        ours = [type(each) for each in gc.garbage if type(each).__module__.startswith("parley.")]
        gc.garbage.clear()
        gc.collect()
        return sorted({f"{kind.__module__}.{kind.__qualname__}" for kind in ours})

    try:
        yield found
    finally:
        gc.enable()


KINDS = [
    "artifact", "stream", "raise", "raise later", "fail", "reject", "ask", "unusable", "wait",
    "directly", "no such task",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["send", "stream"])
async def test_a_request_leaves_no_cycles(
    kind: str, verb: str, tmp_path: Path, collected: Any
) -> None:
    app = parley.asgi(agent, store=f"sqlite:///{tmp_path / 'tasks.db'}")
    numbers = itertools.count()

    async with serving(app) as url:

        async def say(text: str, verb: str = verb, **options: Any) -> bytes:
            message = {"messageId": f"m{next(numbers)}", "role": "ROLE_USER"}
            message |= {"parts": [{"text": text}], **options}
            body = {"message": message, "configuration": {"returnImmediately": text == "wait"}}
            sent = json.dumps(body).encode()
            return (await ask(url, "POST", f"/message:{verb}", sent, HEADERS)).body

        async def do() -> None:
            if kind == "no such task":
                verb_and_path = (
                    ("GET", "/tasks/x") if verb == "send" else ("POST", "/tasks/x:subscribe")
                )
                assert (await ask(url, *verb_and_path, b"", HEADERS)).status == 404
            elif kind in ("ask", "wait"):
                task = json.loads(await say(kind, "send"))["task"]
                if kind == "ask":
                    await say("more", taskId=task["id"])
                else:
                    path = f"/tasks/{task['id']}:cancel"
                    assert (await ask(url, "POST", path, b"{}", HEADERS)).status == 200
            else:
                await say(kind)

        async def left() -> list[str]:
            for _ in range(3):
                await do()
            for _ in range(10):  # the ends of tasks that have answered
                await let_time_pass(0.01)
            return collected()

        await do()  # what is made once
        await asyncio.sleep(0)
        collected()
        # An earlier test's generator may be let go of here, and end as this loop runs, once.
        # What a request leaves, it leaves each time.
        first = await left()
        assert not first or await left() == [], first
