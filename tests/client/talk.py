"""A scripted agent that answers call by call, and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from parley.client import RemoteAgent, connect
from parley.client.retry import Retry
from tests.client.scripted_server import Exchange, ScriptedServer, card, scripted

AT_ONCE = Retry(calls=3, streams=6, first=0.0, limit=0.0)
ARTIFACT = {"artifactId": "a", "parts": [{"text": "noted"}]}
HI = {"message": {"messageId": "r", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}


def task(state: str = "COMPLETED", id: str = "t-1", **more: Any) -> dict[str, Any]:
    return {"id": id, "contextId": "c-1", "status": {"state": f"TASK_STATE_{state}"}, **more}


class Agent:
    """Answers the n-th call with the n-th of ``answers``, and the last one from then on."""

    def __init__(self, *answers: Any, **card_members: Any) -> None:
        self.answers = list(answers)
        self.extensions: tuple[str, ...] = ()
        self.card_members = card_members

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "GET":
            value = card(f"http://{exchange.headers['host']}", *self.extensions)
            await exchange.json({**value, **self.card_members})
            return
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            await answer(exchange)
        else:
            await exchange.result(answer)


def status(code: int, body: bytes = b"<html>", **headers: str):
    async def answer(exchange: Exchange) -> None:
        await exchange.body_of(body, code, **{"content_type": "text/html", **headers})

    return answer


def error(code: int, message: str, http: int = 200, **headers: str):
    async def answer(exchange: Exchange) -> None:
        await exchange.error(code, message, http, **headers)

    return answer


async def hang_up(exchange: Exchange) -> None:
    exchange.hang_up()


async def reset(exchange: Exchange) -> None:
    exchange.reset()


async def never(exchange: Exchange) -> None:
    await exchange.never()


@asynccontextmanager
async def talk(agent: Agent, **options: Any) -> AsyncIterator[tuple[RemoteAgent, ScriptedServer]]:
    """A scripted agent and a connection to it."""
    async with scripted(agent) as server:
        # With a short time for calls, the card is given, or fetching it might take too long.
        reference = card(server.url) if "timeout" in options else server.url
        async with connect(reference, **{"retries": AT_ONCE, **options}) as remote:
            yield remote, server
