"""Answers of a caller as values and decisions; questions that are asked until one fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from parley.agent.turn import Turn
from parley.engine.typed.value_type import ValueType, read_text
from parley.engine.typed.violations import Mismatch
from parley.extensions.questions import schema_part
from parley.model.ids import new_id
from parley.model.parts import Message, Part, Role

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
    """Return the content of an answer: its data, else its text."""
    for part in answer.parts:
        if part.has_data:
            return part.data
    return answer.text


def text_in(answer: Message) -> str:
    """Return an answer as text: its text, else its data as JSON."""
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


MAX_SHOWN = 2000
"""How many characters of the arguments a question shows."""

ANSWER = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "description": "Whether the call may be made"},
        "reason": {"type": "string", "description": "Why not, for the model"},
    },
    "required": ["approve"],
}
"""The schema of an answer that is data."""

YES = frozenset(
    {"yes", "y", "yep", "ok", "okay", "sure", "approve", "approved", "allow", "allowed"}
    | {"true", "go", "1", "是", "好", "好的", "同意"}
)
NO = frozenset(
    {"no", "n", "nope", "reject", "rejected", "deny", "denied", "disallow", "refuse", "false"}
    | {"stop", "0", "不", "否", "不行"}
)
FILLING = frozenset(
    {"please", "thanks", "thank", "you", "ahead", "do", "it", "i", "agree", "course", "of"}
)


class ToolApproval(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of a caller about a tool call. ``reason`` is what a refusal said, if any."""

    is_approved: bool
    reason: str = ""


async def approval(turn: Turn, tool: str, arguments: object, *, key: str) -> ToolApproval:
    """Ask the caller whether a tool may be called; ask again until the answer says yes or no.

    ``key`` names the question in the turn. The task waits as INPUT_REQUIRED.
    """
    text = f"May the tool {tool} be called with {_shown(arguments)}? Answer yes or no."

    def question(problem: str) -> Message:
        parts = (Part(text=f"{problem} {text}".strip()), schema_part(ANSWER))
        return Message(message_id=new_id(), role=Role.AGENT, parts=parts)

    return await ask_until(turn, question, clear_decision_in, key=key)


def clear_decision_in(answer: Message) -> ToolApproval:
    """Return the decision that a message has. Raises ``DoesNotFit`` without one."""
    decision = decision_in(answer)
    if decision is None:
        raise DoesNotFit("That was neither yes nor no.")
    return decision


def decision_in(answer: Message) -> ToolApproval | None:
    """Return the decision that a message has, as data or in its words; ``None`` without one.

    A message that says both has none.
    """
    found = [decision for part in answer.parts if (decision := _of_data(part.data)) is not None]
    said = _of_words(answer.text.strip())
    found += [] if said is None else [said]
    return found[0] if len({each.is_approved for each in found}) == 1 else None


def _of_data(data: Any) -> ToolApproval | None:
    if isinstance(data, bool):
        return ToolApproval(is_approved=data)
    if isinstance(data, dict) and isinstance(data.get("approve"), bool):
        return ToolApproval(is_approved=data["approve"], reason=str(data.get("reason") or ""))
    return None


def _of_words(text: str) -> ToolApproval | None:
    words = [word.strip(".,!:;\"'").lower() for word in text.split()]
    words = [word for word in words if word]
    if not words:
        return None
    if words[0] in NO or words[:2] == ["do", "not"] or words[0] in ("don't", "never"):
        rest = text.split(maxsplit=1)[1:]
        return ToolApproval(is_approved=False, reason=rest[0] if words[0] in NO and rest else "")
    if words[0] in YES and all(word in YES or word in FILLING for word in words):
        return ToolApproval(is_approved=True)
    return None  # a yes with conditions is none


def _shown(arguments: Any) -> str:
    if not isinstance(arguments, str):
        try:
            arguments = msgspec.json.encode(arguments).decode()
        except (TypeError, ValueError):
            arguments = str(arguments)
    return arguments if len(arguments) <= MAX_SHOWN else f"{arguments[:MAX_SHOWN]}…"
