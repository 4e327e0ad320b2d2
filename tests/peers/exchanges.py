"""The exchanges of the interoperability matrix: the requests, and the expected results."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .interop_agent import CHUNKS

CARD, MESSAGE, STREAM = "card", "message", "stream"
QUESTION, REFUSAL, FILE, CANCEL = "question", "refusal", "file", "cancel"

EXCHANGES = {
    CARD: "the card is found",
    MESSAGE: "a message is answered",
    STREAM: "an answer is streamed: several chunks, in order, to the end",
    QUESTION: "a question (input-required) is answered in the same task",
    REFUSAL: "a refusal is seen as an error",
    FILE: "a file is sent",
    CANCEL: "a running task is canceled",
}

PICTURE = base64.b64decode("iVBORw0KGgo=")
REPORT = "".join(f"chunk {n}. " for n in range(CHUNKS))
WANTED = {
    CARD: {"do": CARD},
    MESSAGE: {"do": MESSAGE, "texts": ["hello"]},
    STREAM: {"do": STREAM, "texts": [f"report {CHUNKS} 0.02"]},
    QUESTION: {"do": QUESTION, "texts": ["book a flight", "Paris"]},
    REFUSAL: {"do": REFUSAL, "texts": ["refuse"]},
    FILE: {
        "do": FILE,
        "texts": ["file"],
        "file": {
            "bytes": base64.b64encode(PICTURE).decode(),
            "media_type": "image/png",
            "name": "dot.png",
        },
    },
    CANCEL: {"do": CANCEL, "texts": ["slow"]},
}
"""The command for a peer's client in each exchange (see ``README.md``)."""


class Refused(Exception):
    """An error that the caller received, as an exception or in its API's own form."""


class Unexpected(Exception):
    """The exchange had another result, which the message describes."""


Perform = Callable[[Mapping[str, Any]], Awaitable[list[Any]]]
"""Performs a command, and returns the resulting items. Raises ``Refused``."""


async def play(exchange: str, perform: Perform, name: str, *, whole: bool = False) -> None:
    """Play one exchange against the agent with that name.

    ``whole`` is for peers that stream their answer in one chunk.

    Raises ``Unexpected`` for a wrong result, and ``Refused`` for an unexpected error.
    """
    command = WANTED[exchange]
    if exchange == REFUSAL:
        try:
            items = await perform(command)
        except Refused:
            return
        raise Unexpected(f"no error, but {_short(items)}")
    items = await perform(command)
    texts = [item.get("text") or "" for item in items]
    states = [_state(item.get("state")) for item in items]
    if exchange == CARD:
        _hold([item["name"] for item in items] == [name], items)
    elif exchange == MESSAGE:
        _hold([text.strip() for text in texts] == ["hello yourself"], items)
    elif exchange == STREAM:
        _hold(_folded(items).strip() == REPORT.strip(), items)
        _hold(whole or sum(map(bool, texts)) > 1, items)
    elif exchange == QUESTION:
        _hold(len(items) == 2 and "where to?" in texts[0] and "booked: Paris" in texts[1], items)
        _hold(states[0] in ("", "input-required") and states[1] in ("", "completed"), items)
    elif exchange == FILE:
        _hold(f"{len(PICTURE)} bytes of image/png" in texts[-1], items)
    else:
        _hold(states[-1:] == ["canceled"], items)


def _folded(items: list[Any]) -> str:
    """Return the final text after all pieces are applied."""
    text = ""
    for item in items:
        text = item["text"] if item.get("replaces") else text + (item.get("text") or "")
    return text


def _hold(condition: bool, items: list[Any]) -> None:
    if not condition:
        raise Unexpected(_short(items))


def _short(items: list[Any]) -> str:
    said = str(items)
    return said if len(said) < 300 else f"{said[:300]}..."


def _state(said: str | None) -> str:
    return (said or "").lower().removeprefix("task_state_").replace("_", "-")
