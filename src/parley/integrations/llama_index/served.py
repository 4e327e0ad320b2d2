"""Agents, workflows and engines of LlamaIndex as Parley agents; A2A agents as their tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llama_index.core.agent.workflow import AgentOutput, AgentStream, AgentWorkflow, ToolCallResult
from llama_index.core.agent.workflow.base_agent import (
    DEFAULT_AGENT_DESCRIPTION,
    DEFAULT_AGENT_NAME,
    BaseWorkflowAgent,
)
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.tools import FunctionTool, ToolMetadata
from llama_index.core.workflow import (
    Context,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StopEvent,
    Workflow,
)
from workflows.errors import WorkflowRuntimeError, WorkflowTimeoutError

from parley.agent.agent import Agent
from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.conversations import ContextConversation, thread_id
from parley.integrations.llama_index.model_replies import REPLIES, heard
from parley.integrations.llama_index.workflow_run import RemoteCallEvent, WorkflowRun, call_id
from parley.integrations.serving import described, framework_agent
from parley.llm.model import Json
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, card_of, remote_skills
from parley.llm.run_output import RunOutput
from parley.model.bounded import Bounded
from parley.model.errors import an
from parley.model.parts import Part


def agent(
    thing: Workflow | BaseQueryEngine | Callable[[str], BaseChatEngine],
    *,
    name: str | None = None,
    description: str | None = None,
    memory: Callable[[str], Any] | None = None,
    **options: Any,
) -> Agent:
    """Return an agent of LlamaIndex as a Parley agent. ``options`` are options of ``Agent``.

    ``thing`` is a ``FunctionAgent`` or another agent, an ``AgentWorkflow``, a workflow, a query
    engine, or a function that makes a chat engine from the thread's id; a chat engine holds a
    conversation.

    An ``InputRequiredEvent`` asks the caller, and the answer becomes the awaited event. The
    workflow's context is the conversation of a ``contextId``, bounded. ``memory`` keeps an agent's
    conversation elsewhere: a function that returns a memory for the thread's id.

    Raises ``TypeError`` for an object that cannot be served, and ``ValueError`` without a name.
    """
    if isinstance(thing, BaseChatEngine):
        raise TypeError(
            "a chat engine holds one conversation, which all callers would share; give a function "
            "that creates it: llama_index.agent(lambda thread: index.as_chat_engine(), name=...)"
        )
    schemas: Json = {}
    tags: tuple[str, ...] = ()
    if isinstance(thing, Workflow):
        named, about, tags = _metadata(thing)
        if not isinstance(thing, AgentWorkflow | BaseWorkflowAgent):
            schemas = {
                "input_schema": _schema(thing.start_event_class, StartEvent),
                "output_schema": _schema(thing.stop_event_class, StopEvent),
            }
        elif (kind := _output_of(thing)) is not None:
            schemas = {"output_schema": kind.model_json_schema()}
        workflow, schema = thing, schemas.get("output_schema")

        async def run(turn: Turn, output: RunOutput) -> object:
            return await WorkflowRun(workflow, output, memory, schema).run()

    elif isinstance(thing, BaseQueryEngine):
        named, about = "", "Answers questions about documents."
        run = partial(query, thing)
    elif callable(thing):
        named, about = "", inspect.getdoc(thing) or ""
        run = partial(chat, thing)
    else:
        raise TypeError(
            "llama_index.agent serves an agent, a workflow, a query engine, or a function that "
            f"makes a chat engine, not {type(thing).__name__}"
        )
    if not (name := name or named):
        raise ValueError(f"the card needs a name=, which {an(type(thing).__name__)} does not have")

    async def counted(turn: Turn, output: RunOutput) -> object:
        with heard(output.requests, asks=isinstance(thing, Workflow)):
            return await run(turn, output)

    return framework_agent(
        counted,
        name=name,
        description=about if description is None else description,
        tags=tags,
        told=TOLD,
        **schemas,
        **options,
    )


TOLD = (
    (WorkflowTimeoutError, "", "The workflow did not finish in time (its timeout)."),
    (
        WorkflowRuntimeError,
        "Max iterations",
        "The agent reached its limit of rounds (max_iterations) without an answer.",
    ),
)


def _metadata(thing: Workflow) -> tuple[str, str, tuple[str, ...]]:
    """Return the name, the description and the tools of a workflow; never a system prompt."""
    if isinstance(thing, AgentWorkflow):
        members = list(thing.agents.values())
        said = "; ".join(f"{each.name}: {each.description}" for each in members)
        return members[0].name, f"Agents: {said}", tuple(each.name for each in members)
    if isinstance(thing, BaseWorkflowAgent):
        tools = [_tool(each) for each in thing.tools or ()]
        said = "" if thing.description == DEFAULT_AGENT_DESCRIPTION else thing.description
        named = type(thing).__name__ if thing.name == DEFAULT_AGENT_NAME else thing.name
        return named, described(said, named, tools), tuple(name for name, _ in tools)
    doc = type(thing).__dict__.get("__doc__") or ""
    return type(thing).__name__, inspect.cleandoc(doc), ()


def _schema(kind: Any, plain: Any) -> Json | None:
    """Return the JSON Schema of an event of an author's own class, ``None`` for a plain event."""
    return kind.model_json_schema() if kind is not plain and kind.model_fields else None


def _tool(tool: Any) -> tuple[str, object]:
    metadata = getattr(tool, "metadata", None)
    if metadata is None:
        return getattr(tool, "__name__", "tool"), (inspect.getdoc(tool) or "").partition("\n")[0]
    said = str(metadata.description)
    lines = [
        each for each in said.splitlines() if each and not each.startswith(f"{metadata.name}(")
    ]
    return metadata.get_name(), lines[0] if lines else ""


def _output_of(thing: Workflow) -> Any:
    return getattr(thing, "output_cls", None) or getattr(thing, "_output_cls", None)


KEY = "urn:parley:llama-index:chat"

MAX_SOURCES = 20
MAX_SOURCE_TEXT = 1000


async def query(engine: BaseQueryEngine, turn: Turn, output: RunOutput) -> None:
    """Query an engine with the text of the message."""
    await _show(await engine.aquery(turn.message.text), output)


async def chat(make: Callable[[str], BaseChatEngine], turn: Turn, output: RunOutput) -> None:
    """Send the text of the message to a chat engine, with the conversation of the context."""
    engine = make(thread_id(turn))
    conversation = ContextConversation(turn, KEY)
    history = [ChatMessage(**each) for each in await conversation.earlier()]
    text = await _show(await engine.astream_chat(turn.message.text, chat_history=history), output)
    await conversation.add(
        [{"role": "user", "content": turn.message.text}, {"role": "assistant", "content": text}]
    )


async def _show(response: Any, output: RunOutput) -> str:
    """Show an answer as it arrives, and its source passages."""
    text = ""
    stream = getattr(response, "async_response_gen", None)
    if stream is not None:
        async for delta in stream():
            text += delta
            await output.text(delta)
    else:
        text = str(response)
        await output.text(text)
    if sources := _sources_of(response):
        await output.data({"sources": sources}, name="sources")
    return text


def _sources_of(response: Any) -> list[Json]:
    """Return the source passages of an answer: text, score and file name."""
    found = []
    for each in (getattr(response, "source_nodes", None) or [])[:MAX_SOURCES]:
        source: Json = {"text": each.node.get_content()[:MAX_SOURCE_TEXT]}
        if each.score is not None:
            source["score"] = float(each.score)
        if name := each.node.metadata.get("file_name"):
            source["file"] = str(name)
        found.append(source)
    return found


async def tools(agent: Callee, **options: Any) -> list[FunctionTool]:
    """Return the skills of another agent as tools, with the schemas and descriptions of its card.

    They are for agents of workflows. Within a turn that ``llama_index.agent`` serves, the workflow
    is suspended during a call, which the turn makes once in the life of the task; the turn's caller
    answers questions of the remote agent. Elsewhere a question is an ``InputRequiredEvent``, and
    the ``HumanResponseEvent`` with the same ``task`` answers it.

    ``options`` are options of ``parley.connect``. Raises the errors of ``parley.connect``.
    """
    return [_remote_tool(each) for each in await remote_skills(agent, **options)]


class RemoteCallFailed(Exception):
    """A remote call failed; the model reads the reason."""


def _remote_tool(skill: RemoteSkill) -> Any:
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


async def called(ctx: Context, skill: RemoteSkill, arguments: Json) -> ToolResult:
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
"""The number of open questions this process keeps; the oldest are dropped."""

_ASKED: Bounded[str, RemoteQuestion] = Bounded(MAX_ASKED)
"""Open questions of calls outside of turns: for the answer a step runs again from its beginning."""


async def _outside(ctx: Context, skill: RemoteSkill, arguments: Json) -> ToolResult:
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

    Other agents hand off to it. It receives the newest user message, and its answer is the remote
    agent's answer. Questions are handled as in ``llama_index.tools``.

    ``options`` are options of ``parley.connect``. Raises the errors of ``parley.connect``.
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
    """A remote agent as a node: it has no local model and no tools, and makes no handoffs."""

    skill: Any = None

    async def take_step(
        self, ctx: Any, llm_input: list[ChatMessage], tools: Sequence[Any], memory: Any
    ) -> AgentOutput:
        """Call the remote agent."""
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
