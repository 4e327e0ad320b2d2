"""An agent that is tried, and defects that are planted into its server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from parley import Agent, Turn
from parley.conformance.probe import ProbedTexts

TEXTS = ProbedTexts(task="task", ask="ask", slow="slow")
agent = Agent(name="Tried", description="Does what it is told")


@agent.skill(tags=["test"])
async def act(turn: Turn) -> Any:
    """Does what it is told."""
    match turn.text:
        case "Hello":
            return "Hello yourself"
        case "ask":
            return f"You said {(await turn.ask('What?')).text}"
        case "slow":
            await turn.working("At it")
            await asyncio.Event().wait()
    async with turn.stream(name="list") as out:
        for word in ("one ", "two"):
            await out.write(word)
    return None


Change = Callable[[bytes], bytes]


class Defect:
    """A middleware that changes what comes in, and what goes out.

    ``without`` is a header of requests that gets lost, or becomes ``instead``; ``headers`` are
    those of answers that become others.
    """

    def __init__(
        self,
        *,
        asked: Change = lambda body: body,
        said: Change = lambda body: body,
        without: str = "",
        instead: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        self._asked = asked
        self._said = said
        self._without = without
        self._instead = instead
        self._headers = headers or {}

    def __call__(self, app: Any) -> Any:
        """Return an app with the defect."""

        async def changed(
            scope: Any,
            receive: Callable[[], Awaitable[Any]],
            send: Callable[[Any], Awaitable[None]],
        ) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            scope = dict(scope)
            gone = (self._without.encode(), b"content-length")
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in gone]
            if self._instead:
                scope["headers"].append((self._without.encode(), self._instead.encode()))
            body, more = b"", True
            while more:
                piece = await receive()
                body += piece.get("body", b"")
                more = piece.get("more_body", False)
            body = self._asked(body)
            scope["headers"].append((b"content-length", str(len(body)).encode()))
            given = [{"type": "http.request", "body": body, "more_body": False}]

            async def received() -> Any:
                return given.pop() if given else await receive()

            async def sent(event: Any) -> None:
                if event["type"] == "http.response.start":
                    kept = [
                        (name, self._headers.get(name.decode(), value.decode()).encode())
                        for name, value in event["headers"]
                        if name != b"content-length"
                    ]
                    event = {**event, "headers": kept}
                elif event["type"] == "http.response.body":
                    piece = event.get("body", b"")
                    event = {**event, "body": self._said(piece)}
                await send(event)

            await app(scope, received, sent)

        return changed


def sub(pattern: str, by: str) -> Change:
    """Return a change of a text."""
    return lambda body: re.sub(pattern.encode(), by.encode(), body)


def members(change: Callable[[dict[str, Any]], None]) -> Change:
    """Return a change of a JSON object; other bodies stay."""

    def changed(body: bytes) -> bytes:
        try:
            value = json.loads(body)
        except ValueError:
            return body
        change(value)
        return json.dumps(value).encode()

    return changed


def without(*path: str) -> Change:
    """Return a change that takes a member out."""

    def change(value: Any) -> None:
        for name in path[:-1]:
            value = value.get(name) or {}
        value.pop(path[-1], None)

    return members(change)


DEFECTS: dict[str, Defect] = {
    "CARD-3": Defect(said=without("version")),
    "CARD-7": Defect(without="if-none-match"),
    "MSG-6": Defect(said=sub(r"-32004", "-32603")),
    "MSG-12": Defect(asked=sub(r'"someNewMember": .*?\}', '"parts": []')),
    "MSG-13": Defect(asked=sub(r'"historyLength":0,?', "")),
    "RPC-3": Defect(said=sub(r"-32601", "-32600")),
    "RPC-5": Defect(said=sub(r'"id":"a-text"', '"id":1')),
    "RPC-7": Defect(said=sub(r"a2a-protocol\.org", "example.com")),
    "TASK-2": Defect(said=sub(r"-32001", "-32602")),
    "TASK-6": Defect(said=sub(r'(\d\d:\d\d\.\d+)Z"', r'\1+00:00"')),
    "TASK-10": Defect(said=sub(r'"contextId"', '"context_id"')),
    "TASK-11": Defect(said=sub(r"TASK_STATE_COMPLETED", "completed")),
    "LIST-2": Defect(said=without("result", "totalSize")),
    "STREAM-4": Defect(headers={"content-type": "text/plain"}),
    "STREAM-6": Defect(said=sub(r'"statusUpdate":', '"message":{},"statusUpdate":')),
    "VER-1": Defect(without="a2a-version", instead="1.0"),
}
"""Defects by the check that has to find them."""
