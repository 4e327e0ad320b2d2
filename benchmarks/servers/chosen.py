"""The measured agents, served with one of a user's choices.

Arguments: the port, reply|task, the choice, and where files may be written.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from pathlib import Path
from typing import Any

import parley
from parley import Agent, Caller, Turn
from parley.security import ApiKey, Bearer

sys.path.insert(0, str(Path(__file__).parents[1]))
from processes import pin

ADA = Caller("ada", authenticated=True)
KEY = "a-key-that-only-the-benchmark-knows"
HASHES = {hashlib.sha256(KEY.encode()).hexdigest(): ADA}
MANY = "100000000/hour per caller"


async def ada(scope: object) -> Caller:
    """Return who calls, at once."""
    return ADA


async def judge(token: str) -> Caller | None:
    """Return whose token it is."""
    return HASHES.get(hashlib.sha256(token.encode()).hexdigest())


class Passing:
    """An ASGI middleware that does nothing."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass everything on."""
        await self._app(scope, receive, send)


OPTIONS: dict[str, dict[str, Any]] = {
    "caller": {"caller": ada},
    "key": {"auth": ApiKey(keys=HASHES)},
    "bearer": {"auth": Bearer(judge)},
    "limit": {"caller": ada, "limits": (MANY,)},
    "usage": {"caller": ada, "usage": True},
    "middleware": {"middleware": (Passing,)},
}
"""What ``parley.asgi`` is told, by choice."""


async def reply(turn: Turn) -> str:
    """Answers directly."""
    return turn.text


async def task(turn: Turn) -> None:
    """Makes a task: submitted, working, an artifact, completed."""
    await turn.working()
    await turn.artifact(turn.text, name="result")


def main(port: int, does: str, choice: str, place: Path) -> None:
    """Serve one of the agents."""
    agent = Agent(name="Benchmark", description="An agent to be measured", version="1.0.0")
    if does == "reply":
        agent.skill(tags=["work"])(reply)
    else:
        agent.skill(tags=["work"], replies="task")(task)
    options: dict[str, Any] = {"store": "memory:", **OPTIONS.get(choice, {})}
    if "://" in choice:
        options["store"] = choice
    elif choice in ("FULL", "NORMAL"):
        from parley.store.sqlite.store import SqliteTaskStore

        options["store"] = SqliteTaskStore(str(place / f"{choice}.db"), synchronous=choice)
    if choice in ("uvicorn", "mounted"):
        under_uvicorn(parley.asgi(agent, **options), port, mounted=choice == "mounted")
    elif choice == "log":
        from parley.server.run import run

        logging.basicConfig(level=logging.INFO)
        run(parley.asgi(agent, **options), port=port, access_log=True)
    elif choice == "grpc":
        parley.serve(agent, port=port, grpc_port=0, **options)
    elif choice == "tls":
        cert, key = place / "server.pem", place / "server.key"
        parley.serve(agent, port=port, tls_cert=cert, tls_key=key, **options)
    else:
        parley.serve(agent, port=port, **options)


def under_uvicorn(app: Any, port: int, *, mounted: bool) -> None:
    """Serve the app with another ASGI server, alone or within a Starlette app."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount

    if mounted:
        # Starlette does not run the lifespan of what is mounted.
        app = Starlette(routes=[Mount("/", app)], lifespan=lambda _, inner=app: inner.lifespan())
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    pin(0)
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4]))
