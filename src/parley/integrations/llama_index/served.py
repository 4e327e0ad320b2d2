"""Agents, workflows and engines of LlamaIndex as Parley agents: the card, and what runs a turn."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow
from llama_index.core.agent.workflow.base_agent import (
    DEFAULT_AGENT_DESCRIPTION,
    DEFAULT_AGENT_NAME,
    BaseWorkflowAgent,
)
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.workflow import StartEvent, StopEvent, Workflow
from workflows.errors import WorkflowRuntimeError, WorkflowTimeoutError

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.conversations import ContextConversation, thread_id
from parley.integrations.llama_index.model_replies import heard
from parley.integrations.llama_index.workflow_run import WorkflowRun
from parley.integrations.serving import described, framework_agent
from parley.llm.run_output import RunOutput
from parley.model.errors import an


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
    engine, or a function of the thread's id that makes a chat engine, which holds a conversation.

    An ``InputRequiredEvent`` asks the caller, and the answer is the event that waits for it. The
    workflow's context is the conversation of a ``contextId``, bounded. ``memory`` keeps that of an
    agent elsewhere: a function of the thread's id that returns a memory.

    Raises ``TypeError`` for what cannot be served so, and ``ValueError`` without a name.
    """
    if isinstance(thing, BaseChatEngine):
        raise TypeError(
            "a chat engine holds one conversation, which all callers would share; give a function "
            "that makes one: llama_index.agent(lambda thread: index.as_chat_engine(), name=...)"
        )
    schemas: dict[str, Any] = {}
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
            return await WorkflowRun(workflow, turn, output, memory, schema).run()

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
    (WorkflowTimeoutError, "", "The workflow did not come to an end in time (its timeout)."),
    (
        WorkflowRuntimeError,
        "Max iterations",
        "The agent reached its most rounds (max_iterations) without an answer.",
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


def _schema(kind: Any, plain: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of an event of an author's own class, ``None`` of a plain one."""
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
    """Ask a query engine the text of the message."""
    await _show(await engine.aquery(turn.message.text), output)


async def chat(make: Callable[[str], BaseChatEngine], turn: Turn, output: RunOutput) -> None:
    """Say the text of the message to a chat engine, with the conversation of the context."""
    engine = make(thread_id(turn))
    conversation = ContextConversation(turn, KEY)
    history = [ChatMessage(**each) for each in await conversation.earlier()]
    text = await _show(await engine.astream_chat(turn.message.text, chat_history=history), output)
    await conversation.add(
        [{"role": "user", "content": turn.message.text}, {"role": "assistant", "content": text}]
    )


async def _show(response: Any, output: RunOutput) -> str:
    """Show an answer as it comes, and the passages that it rests on."""
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


def _sources_of(response: Any) -> list[dict[str, Any]]:
    """Return the passages that an answer rests on: text, score and file name."""
    found = []
    for each in (getattr(response, "source_nodes", None) or [])[:MAX_SOURCES]:
        source: dict[str, Any] = {"text": each.node.get_content()[:MAX_SOURCE_TEXT]}
        if each.score is not None:
            source["score"] = float(each.score)
        if name := each.node.metadata.get("file_name"):
            source["file"] = str(name)
        found.append(source)
    return found
