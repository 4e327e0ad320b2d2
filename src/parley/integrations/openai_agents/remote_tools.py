"""Skills of remote agents as tools of the SDK."""

from __future__ import annotations

import json
from typing import Any

import agents
import msgspec
from agents.tool_context import ToolContext

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.message_files import file_of
from parley.integrations.open_questions import PARAMETERS, OpenQuestions
from parley.integrations.openai_agents.turn_run import current_run
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills
from parley.model.parts import Part


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
    questions = OpenQuestions(skills[0].card.name)
    return [*(_tool(skill, questions) for skill in skills), _answering(questions)]


class RemoteInvocation:
    """Calls a remote skill for the SDK, or returns what the turn's run has called already."""

    def __init__(self, skill: RemoteSkill, questions: OpenQuestions) -> None:
        self.skill = skill
        self._questions = questions

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        """Return what the model reads of the call."""
        run = current_run()
        result = None if run is None else run.results.get(context.tool_call_id)
        if result is None:
            try:
                key = "" if run is None else run.call_key(f"{self.skill.name}:{arguments}")
                result = await self.skill.call(json.loads(arguments or "{}"), key=key)
            except RemoteQuestion as question:
                result = self._questions.ask(self.skill, question)
        return output_of(result)


def _answering(questions: OpenQuestions) -> agents.FunctionTool:
    async def answer(context: ToolContext[Any], arguments: str) -> Any:
        given = json.loads(arguments or "{}")
        return output_of(
            await questions.answer(str(given.get("task", "")), str(given.get("answer", "")))
        )

    return agents.FunctionTool(
        name=questions.tool_name,
        description=questions.description,
        params_json_schema=dict(PARAMETERS),
        on_invoke_tool=answer,
        is_enabled=lambda context, agent: bool(questions),
    )


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
    said += [msgspec.json.encode(part.data).decode() for part in result.parts if part.has_data]
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
    file = file_of(part, part.raw)
    if file.kind == "image":
        return agents.ToolOutputImage(image_url=file.data_url)
    if (text := file.text) is not None:
        return agents.ToolOutputText(text=text)
    return agents.ToolOutputFileContent(
        file_data=file.data_url, filename=file.filename or f"file.{file.subtype}"
    )
