"""Remote agents for workflows: skills as tools, an agent as a node of ``AgentWorkflow``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import AgentOutput, AgentStream, ToolCallResult
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.tools import FunctionTool, ToolMetadata
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.llama_index.model_replies import REPLIES
from parley.integrations.llama_index.workflow_run import RemoteCallEvent, call_id
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, card_of, remote_skills
from parley.model.bounded import Bounded
from parley.model.parts import Part


async def tools(agent: Callee, **options: Any) -> list[FunctionTool]:
    """Return the skills of another agent as tools, with the schemas and descriptions of its card.

    They are for agents of workflows. Within a turn that ``llama_index.agent`` serves, the workflow
    stands still for a call, which the turn makes once in the life of the task; questions of the
    remote agent reach the turn's caller. Elsewhere a question is an ``InputRequiredEvent``, and the
    ``HumanResponseEvent`` with the same ``task`` answers it.

    ``options`` are options of ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    return [_tool(each) for each in await remote_skills(agent, **options)]


class RemoteCallFailed(Exception):
    """A remote call failed; the model reads why."""


def _tool(skill: RemoteSkill) -> Any:
    async def call(ctx: Context, **arguments: Any) -> str:
        result = await called(ctx, skill, arguments)
        if result.is_error:
            raise RemoteCallFailed(result.text)
        return result.text

    call.__annotations__["ctx"] = Context  # the class itself, which the framework looks for
    metadata: Any = ToolMetadata(name=skill.name, description=skill.description)
    metadata.get_parameters_dict = lambda: dict(skill.parameters)  # the schema of the card
    tool: Any = FunctionTool(async_fn=call, metadata=metadata)
    tool.skill = skill
    return tool


async def called(ctx: Context, skill: RemoteSkill, arguments: dict[str, Any]) -> ToolResult:
    """Call a skill in a step of a workflow: by the turn, or elsewhere directly."""
    if not REPLIES.get().asks:
        return await _outside(ctx, skill, arguments)
    call = call_id(skill.name, arguments)
    answer = await ctx.wait_for_event(
        HumanResponseEvent,
        waiter_event=RemoteCallEvent(tool=skill.name, arguments=arguments, call=call),
        requirements={"call": call},
        timeout=None,
    )
    return ToolResult(parts=(Part(text=answer.response),), is_error=answer.is_error)


MAX_ASKED = 1000
"""How many questions of this process wait for an answer; older ones are lost."""

_ASKED: Bounded[str, RemoteQuestion] = Bounded(MAX_ASKED)
"""Open questions of calls outside of turns: a step runs again from its top for the answer."""


async def _outside(ctx: Context, skill: RemoteSkill, arguments: dict[str, Any]) -> ToolResult:
    call = call_id(skill.name, arguments)
    key = f"{id(ctx.store)}:{call}"
    question = _ASKED.get(key)
    try:
        if question is None:
            return await skill.call(arguments)
    except RemoteQuestion as asked:
        question = _ASKED[key] = asked
    while True:
        task = question.task
        answer = await ctx.wait_for_event(
            HumanResponseEvent,
            waiter_event=InputRequiredEvent(prefix=question.text, task=task.id),
            requirements={"task": task.id},
            waiter_id=f"a2a-{task.id}-{task.status.timestamp}",
            timeout=None,
        )
        try:
            result = await skill.answer(task, str(answer.response))
        except RemoteQuestion as asked:
            question = _ASKED[key] = asked
            continue
        _ASKED.pop(key, None)
        return result


async def sub_agent(agent: Callee, **options: Any) -> RemoteAgentNode:
    """Return a remote agent as an agent of an ``AgentWorkflow``, with its card's description.

    Others hand over to it. It gets the newest message of the user, and its answer is the remote
    agent's. Questions go where those of ``llama_index.tools`` go.

    ``options`` are options of ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    card = await card_of(agent, options)
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
