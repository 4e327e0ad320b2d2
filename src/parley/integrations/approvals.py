"""Approval of tool calls by the caller of a turn: the question, and what counts as an answer."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.agent.turn import Turn
from parley.extensions.questions import schema_part
from parley.integrations.answers import DoesNotFit, ask_until
from parley.model.ids import new_id
from parley.model.parts import Message, Part, Role

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
