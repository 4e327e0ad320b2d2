"""Answers of a caller as values, and questions that are asked until the answer fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from parley.agent.turn import Turn
from parley.engine.typed.value_type import ValueType, read_text
from parley.engine.typed.violations import Mismatch
from parley.model.parts import Message

R = TypeVar("R")


class DoesNotFit(Exception):
    """An answer does not fit its question; the text says what would, and is shown to the caller."""


def fitting(turn: Turn, kind: Any, said: Any) -> Any:
    """Return the input of a task as a value of a type: JSON data, or text that is such data.

    Input that does not fit ends the task as REJECTED, with the schema of what would.
    """
    wanted = ValueType(kind)
    try:
        return read_text(wanted, said) if isinstance(said, str) else wanted.read(said)
    except Mismatch as mismatch:
        schema = msgspec.json.encode(wanted.schema).decode()
        turn.reject(f"The input does not fit: {mismatch}. Send data that fits {schema}")


def said_in(answer: Message) -> Any:
    """Return what an answer says: its data, else its text."""
    for part in answer.parts:
        if part.has_data:
            return part.data
    return answer.text


def text_in(answer: Message) -> str:
    """Return what an answer says as text: its text, else its data as JSON."""
    data = [part.data for part in answer.parts if part.has_data]
    return answer.text or "\n".join(msgspec.json.encode(each).decode() for each in data)


async def ask_until(
    turn: Turn,
    question: Callable[[str], Any],
    read: Callable[[Message], R],
    *,
    key: str,
    problem: str = "",
) -> R:
    """Ask the caller until ``read`` can read the answer, and return what it read.

    ``question`` makes the question, of what was wrong with the answer before; that is ``problem``
    the first time. ``read`` raises ``DoesNotFit`` for an answer that does not fit. ``key`` names
    the question in the turn; further times have a number behind it.
    """
    times = 0
    while True:
        times += 1
        answer = await turn.ask(
            question(problem), key=key if times == 1 else f"{key}:again:{times}"
        )
        try:
            return read(answer)
        except DoesNotFit as error:
            problem = str(error)
