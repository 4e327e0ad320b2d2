"""Conversion of callers' answers to values and decisions, answers of remote agents,
open questions.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import msgspec

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult, failed, tool_name
from parley.agent.turn import Turn
from parley.client.message import Sendable
from parley.extensions.questions import schema_part
from parley.host.connecting import connect
from parley.llm.current_turn import current_turn
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, answered_by
from parley.model.bounded import Bounded
from parley.model.parts import Message, Part
from parley.model.tasks import Task, TaskArtifactUpdateEvent
from parley.model.typed.value_type import ValueType, read_text
from parley.model.typed.violations import Mismatch

R = TypeVar("R")


class DoesNotFit(Exception):
    """An answer does not match its question; the text says how to correct it, and is shown to the
    caller.
    """


def fitting(turn: Turn, kind: Any, said: Any) -> Any:
    """Return the input of a task as a value of a type: JSON data, or JSON text.

    Input that does not match ends the task as REJECTED, with the expected schema.
    """
    wanted = ValueType(kind)
    try:
        return read_text(wanted, said) if isinstance(said, str) else wanted.read(said)
    except Mismatch as mismatch:
        turn.reject(
            f"The input does not fit: {mismatch}. Send data that fits {json_text(wanted.schema)}"
        )


def said_in(answer: Message) -> Any:
    """Return the content of an answer: its data, else its text."""
    for part in answer.parts:
        if part.has_data:
            return part.data
    return answer.text


def json_text(value: object) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


def text_in(answer: Message) -> str:
    """Return an answer as text: its text, else its data as JSON."""
    data = [part.data for part in answer.parts if part.has_data]
    return answer.text or "\n".join(map(json_text, data))


async def ask_until(
    turn: Turn,
    question: Callable[[str], Any],
    read: Callable[[Message], R],
    *,
    key: str,
    problem: str = "",
) -> R:
    """Ask the caller until ``read`` accepts the answer, and return its value.

    ``question`` makes the question from the problem of the previous answer, at first ``problem``.
    ``read`` raises ``DoesNotFit`` for a wrong answer. ``key`` names the question in the turn;
    repeated questions have a number appended.
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


TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool,
    "integer": int, "number": (int, float),
}  # fmt: skip
"""The types of JSON Schema."""


def fitting_answer(schema: Mapping[str, Any], answer: Message, said: Any) -> Any:
    """Return an answer as a value of a schema's type, as far as its text can be read.

    ``said`` is the data of the answer, or its text. Raises ``DoesNotFit`` for a value of another
    type, or with missing members. The caller of this function checks the rest.
    """
    kind = str(schema.get("type") or "").lower()
    found = said
    if kind == "boolean" and (decision := decision_in(answer)) is not None:
        return decision.is_approved
    if kind != "string" and isinstance(said, str):
        with suppress(ValueError):
            found = json.loads(said)
    is_number = kind in ("integer", "number")
    if not isinstance(found, TYPES.get(kind, object)) or (is_number and isinstance(found, bool)):
        raise DoesNotFit(f"The answer must be of the type {kind}.")
    if "enum" in schema and found not in schema["enum"]:
        raise DoesNotFit(f"The answer must be one of {', '.join(map(str, schema['enum']))}.")
    needed = schema.get("required", ()) if isinstance(found, dict) else ()
    if absent := [name for name in needed if name not in found]:
        raise DoesNotFit(f"The answer lacks {', '.join(absent)}.")
    return found


MAX_SHOWN = 2000
"""The number of characters of the arguments a question shows."""

ANSWER = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "description": "Whether the call may be made"},
        "reason": {"type": "string", "description": "The reason for a rejection, for the model"},
    },
    "required": ["approve"],
}
"""The schema of an answer in the form of data."""

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
    """The decision of a caller about a tool call. ``reason`` is the text of a rejection, if any."""

    is_approved: bool
    reason: str = ""


async def approval(turn: Turn, tool: str, arguments: object, *, key: str) -> ToolApproval:
    """Ask the caller whether a tool may be called; repeat until the answer is yes or no.

    ``key`` names the question in the turn. The task waits as INPUT_REQUIRED.
    """
    text = f"May the tool {tool} be called with {_shown(arguments)}? Answer yes or no."

    def question(problem: str) -> list[Part]:
        return [Part(text=f"{problem} {text}".strip()), schema_part(ANSWER)]

    return await ask_until(turn, question, clear_decision_in, key=key)


def clear_decision_in(answer: Message) -> ToolApproval:
    """Return the decision in a message. Raises ``DoesNotFit`` without a decision."""
    decision = decision_in(answer)
    if decision is None:
        raise DoesNotFit("That was neither yes nor no.")
    return decision


def decision_in(answer: Message) -> ToolApproval | None:
    """Return the decision in a message, as data or in words; ``None`` without a decision.

    A message with both yes and no has no decision.
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
    return None  # a conditional yes is not a decision


def _shown(arguments: Any) -> str:
    if not isinstance(arguments, str):
        try:
            arguments = json_text(arguments)
        except (TypeError, ValueError):
            arguments = str(arguments)
    return arguments if len(arguments) <= MAX_SHOWN else f"{arguments[:MAX_SHOWN]}…"


async def answer_of(
    agent: Callee,
    options: Mapping[str, Any],
    said: Sendable,
    *,
    key: str = "",
    task_id: str | None = None,
    context_id: str | None = None,
) -> AsyncGenerator[str | Task | Message]:
    """Yield the text of an answer as it arrives, and finally the answer.

    Within a turn the message is sent once under its ``key``, questions reach the caller, the agent
    remembers the conversation of the turn's context, and only the answer is yielded. ``task_id``
    and ``context_id`` are for a message outside a turn. ``options`` are options of
    ``parley.connect``.
    """
    turn = current_turn()
    if turn is not None:
        async with turn.connect(agent, **options) as bound:
            answer = await bound.send(
                said, key=key or None, context_key="", pass_questions=True, progress=True
            )
            yield answer.reply
        return
    async with connect(agent, **options) as remote:  # type: ignore[arg-type]
        told = answered_by(remote, said, task_id=task_id, context_id=context_id)
        async with aclosing(told) as events:
            async for event in events:
                if isinstance(event, TaskArtifactUpdateEvent):
                    yield event.artifact.text
        yield event


MAX_QUESTIONS = 100
"""The number of open questions of an agent kept; the oldest are dropped."""

PARAMETERS = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "The id of the task that asks"},
        "answer": {"type": "string", "description": "What to answer"},
    },
    "required": ["task", "answer"],
    "additionalProperties": False,
}
"""The parameters of the tool that answers questions."""


class OpenQuestions:
    """The open questions of a remote agent to its skills' tools, by the tasks that ask.

    Conversations may share the tools: an answer must name the task of its question, and only the
    conversation that called the skill knows the task's id.
    """

    def __init__(self, agent_name: str) -> None:
        self.tool_name = tool_name(f"answer_{agent_name}")
        self.description = f"Answers a question of the agent {agent_name}."
        self._open: Bounded[str, tuple[RemoteSkill, RemoteQuestion]] = Bounded(MAX_QUESTIONS)

    def __bool__(self) -> bool:
        """Return whether a question is open."""
        return bool(self._open)

    def ask(self, skill: RemoteSkill, question: RemoteQuestion) -> ToolResult:
        """Return a question as the result of the call that caused it."""
        self._open[question.task.id] = (skill, question)
        text = (
            f"The agent asks: {question.text}\n"
            f"(The task {question.task.id} waits; answer it with the tool {self.tool_name}.)"
        )
        return ToolResult(parts=(Part(text=text),))

    async def answer(self, task_id: str, answer: str) -> ToolResult:
        """Answer a question, and return the result of the task, or its next question.

        An answer that fails, or is cancelled, may not have arrived: the question stays open.
        """
        skill, question = self._open.pop(task_id, (None, None))
        if skill is None or question is None:
            text = f"No task {task_id[:100]} waits for an answer: call the skill again."
            return failed(text)
        try:
            result = await skill.answer(question.task, answer)
        except RemoteQuestion as another:
            return self.ask(skill, another)
        except BaseException:
            self._open[task_id] = (skill, question)
            raise
        if result.is_error:
            self._open[task_id] = (skill, question)
        return result
