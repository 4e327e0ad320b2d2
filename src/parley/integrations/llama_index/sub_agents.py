"""A remote agent as an agent of an ``AgentWorkflow``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import AgentOutput, AgentStream, ToolCallResult
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.llms import ChatMessage, MockLLM

from parley.agent.remote.callees import Callee
from parley.host.connecting import connect
from parley.integrations.llama_index.remote_tools import RemoteCallFailed, called
from parley.llm.remote_skills import RemoteSkill


async def sub_agent(agent: Callee, **options: Any) -> RemoteAgentNode:
    """Return a remote agent as an agent of an ``AgentWorkflow``, with its card's description.

    Others hand over to it. It gets the newest message of the user, and its answer is the remote
    agent's. Questions go where those of ``llama_index.tools`` go.

    ``options`` are those of ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    async with connect(agent, **options) as remote:  # type: ignore[arg-type]
        card = remote.card
    first = card.skills[0]
    skill = RemoteSkill(agent, card, first, None, options, name=f"agent-{card.name}")
    node = RemoteAgentNode(
        name=card.name, description=card.description, llm=MockLLM(), can_handoff_to=[]
    )
    node.skill = skill
    return node


class RemoteAgentNode(BaseWorkflowAgent):  # type: ignore[misc]
    """A remote agent. It has no model here, no tools, and hands over to nobody."""

    skill: Any = None

    async def take_step(
        self, ctx: Any, llm_input: list[ChatMessage], tools: Sequence[Any], memory: Any
    ) -> AgentOutput:
        """Ask the remote agent."""
        said = [each.content or "" for each in llm_input if each.role == "user"]
        result = await called(ctx, self.skill, {"message": said[-1] if said else ""})
        if result.is_error:
            raise RemoteCallFailed(result.text)
        ctx.write_event_to_stream(
            AgentStream(delta=result.text, response=result.text, current_agent_name=self.name)
        )
        message = ChatMessage(role="assistant", content=result.text)
        return AgentOutput(response=message, current_agent_name=self.name)

    async def handle_tool_call_results(
        self, ctx: Any, results: list[ToolCallResult], memory: Any
    ) -> None:
        """Do nothing: it calls no tools."""

    async def finalize(self, ctx: Any, output: AgentOutput, memory: Any) -> AgentOutput:
        """Keep the answer in the memory of the workflow."""
        await memory.aput(output.response)
        return output
