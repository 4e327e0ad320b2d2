"""Skills of remote agents as tools of LlamaIndex."""

from __future__ import annotations

from typing import Any

from llama_index.core.tools import FunctionTool, ToolMetadata
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.llama_index.model_replies import REPLIES
from parley.integrations.llama_index.questions import RemoteCallEvent, call_id
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills
from parley.model.parts import Part


async def tools(agent: Callee, **options: Any) -> list[FunctionTool]:
    """Return the skills of another agent as tools, with the schemas and descriptions of its card.

    They are for agents of workflows. Within a turn that ``llama_index.agent`` serves, the workflow
    stands still for a call, which the turn makes once in the life of the task; questions of the
    remote agent reach the turn's caller. Elsewhere a question is an ``InputRequiredEvent``, and the
    ``HumanResponseEvent`` with the same ``task`` answers it.

    ``options`` are those of ``parley.connect``. Raises what ``parley.connect`` raises.
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


_ASKED: dict[str, RemoteQuestion] = {}
"""Open questions of calls outside of turns: a step runs again from its top for the answer."""

MAX_ASKED = 1000


async def _outside(ctx: Context, skill: RemoteSkill, arguments: dict[str, Any]) -> ToolResult:
    call = call_id(skill.name, arguments)
    key = f"{id(ctx.store)}:{call}"
    question = _ASKED.get(key)
    try:
        if question is None:
            return await skill.call(arguments)
    except RemoteQuestion as asked:
        question = _ASKED[key] = asked
        while len(_ASKED) > MAX_ASKED:
            del _ASKED[next(iter(_ASKED))]
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
        del _ASKED[key]
        return result
