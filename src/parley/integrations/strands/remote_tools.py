"""Remote agents for Strands: skills as tools, an agent as a node of a graph."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from strands.agent.agent_result import AgentResult
from strands.agent.base import AgentBase
from strands.interrupt import InterruptException
from strands.telemetry.metrics import EventLoopMetrics
from strands.types._events import ToolInterruptEvent, ToolResultEvent
from strands.types.tools import AgentTool, ToolContext, ToolSpec, ToolUse

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.answers import answer_of
from parley.integrations.strands.runs import REMOTE, StrandsRun, blocks_of
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, card_of, remote_skills, result_of
from parley.llm.run_output import current_run
from parley.model.cards import AgentCard


async def tools(agent: Callee, **options: Any) -> list[AgentTool]:
    """Return the skills of another agent as tools, with the schemas and descriptions of its card.

    Within a turn that ``strands.agent`` serves, a call interrupts the agent, and the turn makes it
    once in the life of the task; questions of the remote agent reach the turn's caller. Elsewhere a
    question interrupts the agent, and the response answers it.

    ``options`` are options of ``parley.connect``. Raises what ``parley.connect`` raises.
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
            run = current_run(StrandsRun)
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


async def sub_agent(agent: Callee, **options: Any) -> RemoteNode:
    """Return a remote agent as an agent of Strands, with the name and description of its card.

    Use it as a node of a graph. Within a turn that ``strands.agent`` serves, its questions reach
    the turn's caller; elsewhere a question raises ``RemoteQuestion``.

    ``options`` are options of ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    return RemoteNode(agent, await card_of(agent, options), options)


class RemoteNode(AgentBase):  # type: ignore[misc]
    """A remote agent. Each call is a message to it; it remembers what its own context has."""

    def __init__(self, agent: Callee, card: AgentCard, options: Mapping[str, Any]) -> None:
        self.name = card.name
        self.description = card.description
        self._agent = agent
        self._options = dict(options)

    def __call__(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Refuse: a remote agent is asked asynchronously. Raises ``RuntimeError``."""
        raise RuntimeError("await remote.invoke_async(...): a remote agent is not called in a loop")

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Ask the remote agent, and return its answer."""
        result: AgentResult | None = None
        async for event in self.stream_async(prompt, **kwargs):
            result = event.get("result", result)
        assert result is not None
        return result

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield the text of the answer as it comes, and the result at the end."""
        said, run = _text(prompt), current_run(StrandsRun)
        key, streamed = "" if run is None else run.call_key(said), ""
        async with aclosing(answer_of(self._agent, self._options, said, key=key)) as heard:
            async for each in heard:
                if isinstance(each, str):
                    streamed += each
                    yield {"data": each}
                else:
                    result = result_of(each)
        if not streamed:
            yield {"data": result.text}
        if result.is_error:
            raise RuntimeError(f"{self.name}: {result.text}")
        yield {
            "result": AgentResult(
                stop_reason="end_turn",
                message={"role": "assistant", "content": [{"text": result.text}]},
                metrics=EventLoopMetrics(),
                state={},
            )
        }


def _text(prompt: Any) -> str:
    """Return what a prompt says: a string, content blocks, or the last of some messages."""
    if isinstance(prompt, str):
        return prompt
    blocks = list(prompt or ())
    if blocks and isinstance(blocks[-1], dict) and "content" in blocks[-1]:
        blocks = blocks[-1]["content"]
    return "\n".join(each["text"] for each in blocks if isinstance(each, dict) and "text" in each)
