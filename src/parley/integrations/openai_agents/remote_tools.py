"""Skills of remote agents as tools of the SDK."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import agents
import msgspec
from agents.tool_context import ToolContext

from parley.agent.remote.uses import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.message_files import InputFile
from parley.integrations.openai_agents.turn_run import current_run
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills, tool_name
from parley.model.parts import Part

MAX_QUESTIONS = 100
"""How many questions of remote tasks wait for an answer, outside of turns; older ones are lost."""


async def tools(agent: Callee, **options: Any) -> list[agents.FunctionTool]:
    """Return the skills of another agent as tools, with the schemas and descriptions of its card.

    Within a turn that ``openai_agents.agent`` serves, a call is made once in the life of the task,
    and questions of the agent reach the turn's caller. Elsewhere a question is the result of the
    call, and one more tool answers it; the model is offered that while a question waits.

    ``options`` are those of ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    skills = await remote_skills(agent, **options)
    if not skills:
        return []
    questions = OpenQuestions(tool_name(f"answer_{skills[0].card.name}"))
    found = [_tool(skill, questions) for skill in skills]
    return [*found, questions.tool(skills[0].card.name)]


class OpenQuestions:
    """Questions of remote tasks that were called outside of a turn."""

    def __init__(self, answer_name: str) -> None:
        self._name = answer_name
        self._open: OrderedDict[str, tuple[RemoteSkill, RemoteQuestion]] = OrderedDict()

    def ask(self, skill: RemoteSkill, question: RemoteQuestion) -> str:
        """Return a question as the model reads it."""
        self._open[question.task.id] = (skill, question)
        while len(self._open) > MAX_QUESTIONS:
            self._open.popitem(last=False)
        return (
            f"The agent asks: {question.text}\n"
            f"(The task {question.task.id} waits; answer it with the tool {self._name}.)"
        )

    def tool(self, of: str) -> agents.FunctionTool:
        """Return the tool that answers."""
        words = {
            "task": {"type": "string", "description": "The id of the task that asks"},
            "answer": {"type": "string", "description": "What to answer"},
        }
        return agents.FunctionTool(
            name=self._name,
            description=f"Answers a question of the agent {of}.",
            params_json_schema={
                "type": "object",
                "properties": words,
                "required": list(words),
                "additionalProperties": False,
            },
            on_invoke_tool=self._answer,
            is_enabled=lambda context, agent: bool(self._open),
        )

    async def _answer(self, context: ToolContext[Any], arguments: str) -> Any:
        given = json.loads(arguments or "{}")
        skill, question = self._open.pop(str(given.get("task", "")), (None, None))
        if skill is None or question is None:
            return f"No such task waits. Those that do: {', '.join(self._open) or 'none'}."
        try:
            return output_of(await skill.answer(question.task, str(given.get("answer", ""))))
        except RemoteQuestion as another:
            return self.ask(skill, another)


class RemoteInvocation:
    """Calls a remote skill for the SDK, or returns what the turn's run has called already."""

    def __init__(self, skill: RemoteSkill, questions: OpenQuestions) -> None:
        self.skill = skill
        self._questions = questions

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        """Return what the model reads of the call."""
        run = current_run()
        result = None if run is None else run.result(context.tool_call_id)
        if result is None:
            try:
                result = await self.skill.call(
                    json.loads(arguments or "{}"), key="" if run is None else run.call_key()
                )
            except RemoteQuestion as question:
                return self._questions.ask(self.skill, question)
        return output_of(result)


def _tool(skill: RemoteSkill, questions: OpenQuestions) -> agents.FunctionTool:
    async def stops_the_run(context: object, arguments: object, call_id: str) -> bool:
        # A run of a turn stands still for the call, so that a question finds its state kept.
        return current_run() is not None

    return agents.FunctionTool(
        name=skill.name,
        description=skill.description,
        params_json_schema=dict(skill.parameters),
        on_invoke_tool=RemoteInvocation(skill, questions),
        strict_json_schema=False,
        needs_approval=stops_the_run,
    )


def output_of(result: ToolResult) -> Any:
    """Return a result as the SDK gives it to the model: text, and images and files beside it."""
    files = [found for part in result.parts if (found := _file(part)) is not None]
    said = [part.text for part in result.parts if part.text]
    said += [
        msgspec.json.encode(part.data).decode()
        for part in result.parts
        if part.data is not msgspec.UNSET
    ]
    text = "\n".join(said)
    if result.is_error:
        text = f"Error: {text}"
    return text if not files else [agents.ToolOutputText(text=text or "(files)"), *files]


def _file(part: Part) -> Any:
    if part.url is not None:
        if part.media_type.startswith("image/"):
            return agents.ToolOutputImage(image_url=part.url)
        return agents.ToolOutputFileContent(file_url=part.url, filename=part.filename or None)
    if part.raw is None:
        return None
    media_type = part.media_type or "application/octet-stream"
    file = InputFile(content=part.raw, media_type=media_type, filename=part.filename)
    if file.kind == "image":
        return agents.ToolOutputImage(image_url=file.data_url)
    if (text := file.text) is not None:
        return agents.ToolOutputText(text=text)
    return agents.ToolOutputFileContent(
        file_data=file.data_url, filename=file.filename or f"file.{file.subtype}"
    )
