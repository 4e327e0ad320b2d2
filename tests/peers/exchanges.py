"""The exchanges of the interoperability matrix: what is asked for, and what has to come of it."""

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
"""What a peer's client is told to do in each exchange (see ``README.md``)."""


class Refused(Exception):
    """A caller was told that something went wrong: by an exception, or however its API says so."""


class Unexpected(Exception):
    """Something else came of an exchange than should have; says what."""


Perform = Callable[[Mapping[str, Any]], Awaitable[list[Any]]]
"""Does what a command says, and returns the items that came of it. Raises ``Refused``."""


async def play(exchange: str, perform: Perform, name: str, *, whole: bool = False) -> None:
    """Play one exchange against the agent of that name.

    ``whole`` is for peers that stream their answer in one chunk.

    Raises ``Unexpected`` where it does not come out as it should, and ``Refused`` for an error
    where none is due.
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
    """Return what somebody has in the end who does what the pieces say."""
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
