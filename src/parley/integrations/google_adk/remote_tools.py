"""The skills of another agent as tools of ADK."""

from __future__ import annotations

from typing import Any

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.google_adk.interrupts import REMOTE_ANSWER
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills
from parley.model.parts import Part

ASKED = "parley:{}"
"""The key of the session's state under which a call keeps the task that asks."""


async def tools(agent: Callee, **options: Any) -> list[BaseTool]:
    """Return the skills of an agent, for ``LlmAgent(tools=await google_adk.tools(url))``.

    Names, descriptions and parameters are those of the card. A question of the agent is a tool
    confirmation of ADK: its hint is the question, its payload has the answer. Within a turn
    (``agent``) the caller of the turn is asked. ``options`` are those of ``parley.connect``, and it
    raises what that raises.
    """
    return [AdkSkillTool(skill) for skill in await remote_skills(agent, **options)]


class AdkSkillTool(BaseTool):
    """A skill of another agent as a tool."""

    def __init__(self, skill: RemoteSkill) -> None:
        super().__init__(name=skill.name, description=skill.description)
        self.skill = skill

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters_json_schema=dict(self.skill.parameters),
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Call the skill; or answer what its task has asked."""
        call_id = tool_context.function_call_id or ""
        asked = tool_context.state.get(ASKED.format(call_id))
        confirmation = tool_context.tool_confirmation
        try:
            if asked is None or confirmation is None:
                result = await self.skill.call(args, key=call_id, pass_questions=False)
            elif not confirmation.confirmed:
                return {"error": "The question of the agent was not answered."}
            else:
                given = confirmation.payload
                answer = given.get(REMOTE_ANSWER) if isinstance(given, dict) else given
                result = await self.skill.answer(
                    asked["task"], answer, key=f"{call_id}/{asked['questions']}"
                )
        except RemoteQuestion as question:
            number = (asked or {}).get("questions", 0) + 1
            tool_context.state[ASKED.format(call_id)] = {
                "task": question.task.id, "questions": number
            }  # fmt: skip
            payload: dict[str, Any] = {REMOTE_ANSWER: ""}
            if question.schema is not None:
                payload["schema"] = question.schema
            tool_context.request_confirmation(hint=question.text, payload=payload)
            return {"status": "asked", "question": question.text}
        if asked is not None:
            tool_context.state[ASKED.format(call_id)] = None
        return said(result)


def said(result: ToolResult) -> dict[str, Any]:
    """Return what a skill returned as the response of a function."""
    if result.is_error:
        return {"error": result.text}
    if result.data is not None:
        return result.data if isinstance(result.data, dict) else {"result": result.data}
    files = [_named(part) for part in result.parts if part.is_file]
    return {"result": result.text, "files": files} if files else {"result": result.text}


def _named(part: Part) -> dict[str, Any]:
    known = {"name": part.filename, "mediaType": part.media_type, "url": part.url}
    return {key: value for key, value in known.items() if value}
