"""Skills of remote agents as tools of Strands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from strands.interrupt import InterruptException
from strands.types._events import ToolInterruptEvent, ToolResultEvent
from strands.types.tools import AgentTool, ToolContext, ToolSpec, ToolUse

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.strands.contents import blocks_of
from parley.integrations.strands.interrupts import REMOTE, current_run
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills


async def tools(agent: Callee, **options: Any) -> list[AgentTool]:
    """Return the skills of another agent as tools, with the schemas and descriptions of its card.

    Within a turn that ``strands.agent`` serves, a call interrupts the agent, and the turn makes it
    once in the life of the task; questions of the remote agent reach the turn's caller. Elsewhere a
    question interrupts the agent, and the response answers it.

    ``options`` are those of ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    return [RemoteTool(each) for each in await remote_skills(agent, **options)]


class RemoteTool(AgentTool):  # type: ignore[misc]
    """A remote skill as a tool."""

    def __init__(self, skill: RemoteSkill) -> None:
        super().__init__()
        self.skill = skill
        self._asked: dict[str, tuple[RemoteQuestion, int]] = {}

    @property
    def tool_name(self) -> str:
        """The name, from the id of the skill."""
        return self.skill.name

    @property
    def tool_type(self) -> str:
        """The kind of the tool."""
        return "a2a"

    @property
    def tool_spec(self) -> ToolSpec:
        """The description and the schema, from the card."""
        return {
            "name": self.skill.name,
            "description": self.skill.description,
            "inputSchema": {"json": dict(self.skill.parameters)},
        }

    async def stream(
        self, tool_use: ToolUse, invocation_state: dict[str, Any], **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Call the skill, and yield its result, or an interrupt."""
        context: Any = ToolContext(
            tool_use=tool_use, agent=invocation_state["agent"], invocation_state=invocation_state
        )
        try:
            run = current_run()
            if run is not None:
                call = {
                    "tool": self.tool_name,
                    "toolUseId": tool_use["toolUseId"],
                    "arguments": tool_use["input"],
                }
                context.interrupt(REMOTE, reason=call)
                result = run.results[tool_use["toolUseId"]]
            else:
                result = await self._outside(tool_use, context)
        except InterruptException as error:
            yield ToolInterruptEvent(tool_use, [error.interrupt])
            return
        yield ToolResultEvent(
            {
                "toolUseId": tool_use["toolUseId"],
                "status": "error" if result.is_error else "success",
                "content": blocks_of(result),
            }
        )

    async def _outside(self, tool_use: ToolUse, context: Any) -> ToolResult:
        """Call outside of a turn: questions interrupt the agent, and are kept in this process."""
        use_id = tool_use["toolUseId"]
        question, number = self._asked.pop(use_id, (None, 0))
        while True:
            try:
                if question is None:
                    return await self.skill.call(tool_use["input"])
                self._asked[use_id] = (question, number)
                answer = context.interrupt(f"question-{number}", reason=question.text)
                del self._asked[use_id]
                return await self.skill.answer(question.task, answer)
            except RemoteQuestion as asked:
                question, number = asked, number + 1
