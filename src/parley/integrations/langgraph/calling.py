"""A2A agents as tools and as nodes of graphs (``docs/guides/frameworks/langgraph.md``).

A message is sent once; questions of the agent are interrupts of the graph.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool, ToolException
from langgraph.config import get_config, get_stream_writer
from langgraph.func import task
from langgraph.types import interrupt

from parley.agent.remote.callees import Callee, address_of
from parley.agent.tools.tool import ToolResult, tool_name
from parley.client.card.resolver import CatalogReference
from parley.extensions.questions import question
from parley.host.connecting import connect
from parley.integrations.langgraph.contents import REMOTE, file_block, file_in, messages_in, text_of
from parley.llm.current_turn import current_turn
from parley.llm.model import Json
from parley.llm.remote_skills import (
    RemoteQuestion,
    RemoteSkill,
    answered_by,
    progress_in,
    remote_skills,
    result_of,
)
from parley.model.parts import Message, Part
from parley.model.struct import decode, encode
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState

_CALL_ID: ContextVar[str] = ContextVar("parley_langgraph_tool_call", default="")

Words = Callable[[Any], Any]
"""Returns the content to send to an agent, from the state of a graph."""

Update = Callable[[Any, ToolResult], Mapping[str, Any]]
"""Returns the update of a graph's state, from its state and an agent's answer."""


async def tools(agent: Callee, **options: Any) -> list[BaseTool]:
    """Return the skills of an A2A agent as LangChain tools, for a model or a ``ToolNode``.

    Names, descriptions and schemas come from its card. In a graph with a checkpointer a question of
    the agent is an interrupt, and the graph resumes with the answer; in a turn of Parley without a
    checkpointer the turn's caller answers. Elsewhere the question is the result. Statuses of the
    agent are written to the custom stream. ``options`` are options of ``parley.connect``. Raises
    the errors of ``parley.connect``.
    """
    return [LangChainSkill.of(skill) for skill in await remote_skills(agent, **options)]


class LangChainSkill(BaseTool):  # type: ignore[misc]
    """A skill of an A2A agent as a tool."""

    response_format: str = "content_and_artifact"
    handle_tool_error: bool = True
    skill: Any = None

    @classmethod
    def of(cls, skill: RemoteSkill) -> LangChainSkill:
        """Return a skill as a tool."""
        return cls(
            name=skill.name,
            description=skill.description,
            args_schema=dict(skill.parameters),
            skill=skill,
        )

    def _run(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError("call an A2A agent with ainvoke, in an event loop")

    async def arun(self, tool_input: Any, *arguments: Any, **options: Any) -> Any:
        """Run the tool, with the call's id in the context."""
        token = _CALL_ID.set(options.get("tool_call_id") or "")
        try:
            return await super().arun(tool_input, *arguments, **options)
        finally:
            _CALL_ID.reset(token)

    async def _arun(self, run_manager: Any = None, **given: Any) -> tuple[str, list[Part]]:
        skill: RemoteSkill = self.skill
        place = NodePlace(f"{skill.name}:{_CALL_ID.get()}")
        passes_on = not place.keeps_state and current_turn() is not None

        async def progress(text: str) -> None:
            place.write(text)

        async def send(content: Any, task_id: str, key: str) -> ToolResult:
            if task_id:
                return await skill.answer(task_id, content, key=key, on_progress=progress)
            return await skill.call(given, key=key, on_progress=progress, pass_questions=passes_on)

        try:
            result = await place.converse(skill.card.name, given, send)
        except RemoteQuestion as asked:
            return f"{skill.card.name} asks: {asked.text}", []
        if result.is_error:
            raise ToolException(result.text)
        return result.text, [part for part in result.parts if part.is_file]


def node(
    agent: Callee,
    *,
    name: str = "",
    skill: str = "",
    message: Words | None = None,
    update: Update | None = None,
    **options: Any,
) -> Callable[[Any], Awaitable[Mapping[str, Any]]]:
    """Return an A2A agent as a node: ``graph.add_node("weather", langgraph.node(url))``.

    It sends the newest message of the state, and adds the agent's answer to ``messages``, under
    ``name``, by default the name on its card. Tokens are streamed like a model's, statuses are
    written to the custom stream. A thread of the graph has one context at the agent. Questions are
    interrupts, as with ``tools``.

    ``message`` returns the message to send, from the state; ``update`` returns the update of the
    state, from the state and the answer (``ToolResult``). ``skill`` is the id of the skill.
    ``options`` are options of ``parley.connect``.

    Raises in the graph the errors of ``parley.connect``, and ``RuntimeError`` for a task that
    fails.
    """
    address = agent.identifier if isinstance(agent, CatalogReference) else address_of(agent)

    async def remote_agent(state: Any) -> Mapping[str, Any]:
        place, title, message_id = NodePlace(name or "node"), name, None

        async def send(content: Any, task_id: str, key: str) -> ToolResult:
            nonlocal title, message_id
            said: Json = {"metadata": {"skill": skill}} if skill else {}
            if task_id:
                said["task_id"] = task_id
            elif place.thread:
                said["context_id"] = str(uuid5(NAMESPACE_URL, f"{place.thread}\n{address}"))
            if (turn := current_turn()) is None:
                remotes: Any = connect(agent, **options)  # type: ignore[arg-type]
            else:
                remotes, said["key"] = turn.connect(agent, **options), key or None
            async with remotes as remote:
                title = title or remote.card.name
                if turn is not None and not place.keeps_state:
                    answer = await remote.send(content, pass_questions=True, progress=True, **said)
                    return result_of(answer)
                shown = _AgentModel(events=answered_by(remote, content, **said), tags=[REMOTE])
                shown.write = place.write
                message_id = (await shown.ainvoke("")).id
                return result_of(shown.newest)

        content = (message or _newest)(state)
        result = await place.converse(name or address, content, send)
        if result.is_error:
            raise RuntimeError(f"the agent {name or address} failed: {result.text}")
        if update is not None:
            return update(state, result)
        return {"messages": [_answer(result, title, message_id)]}

    remote_agent.__name__ = tool_name(name or "remote_agent")
    return remote_agent


class _AgentModel(BaseChatModel):  # type: ignore[misc]
    """Repeats the text of an agent, so that LangChain streams it like a model's text.

    ``newest`` is the newest of its ``events``, finally the answer; its statuses are written.
    """

    events: Any = None
    newest: Any = None
    write: Any = None

    @property
    def _llm_type(self) -> str:
        return "a2a-agent"

    def _generate(self, *arguments: Any, **options: Any) -> ChatResult:
        raise NotImplementedError("call an A2A agent with ainvoke, in an event loop")

    async def _words(self) -> AsyncIterator[str]:
        async with aclosing(self.events) as events:
            async for event in events:
                self.newest = event
                if isinstance(event, Message):
                    yield event.text
                elif isinstance(event, TaskArtifactUpdateEvent):
                    yield event.artifact.text
                elif text := progress_in(event):
                    self.write(text)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        text = "".join([each async for each in self._words()])
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(""))
        async for text in self._words():
            if text:
                yield ChatGenerationChunk(message=AIMessageChunk(text))


def _newest(state: Any) -> Any:
    """Return the newest non-empty message of a state, as content of a message."""
    for message in reversed(messages_in(state)):
        blocks = message.content if isinstance(message.content, list) else []
        files = [part for block in blocks if (part := file_in(block)) is not None]
        if text := text_of(message):
            return [text, *files] if files else text
        if files:
            return files
    raise ValueError("the state has no message to send; give message=")


def _answer(result: ToolResult, name: str, message_id: str | None) -> AIMessage:
    """Return an answer as a message: its text, its files as blocks, its data as metadata."""
    files = []
    for part in result.parts:
        if part.raw is not None:
            media_type = part.media_type or "application/octet-stream"
            block = file_block(base64.b64encode(part.raw).decode(), media_type, part.filename)
            files.append({**block, "filename": part.filename})
    content: Any = [{"type": "text", "text": result.text}, *files] if files else result.text
    metadata = {} if result.data is None else {"data": result.data}
    return AIMessage(content, name=name, id=message_id, response_metadata=metadata)


Send = Callable[[Any, str, str], Awaitable[ToolResult]]
"""Sends content to a task, or begins a task (""), under a key, and returns the result.

Raises ``RemoteQuestion``.
"""

_CHECKPOINTER = "__pregel_checkpointer"
_CALL = "__pregel_call"
# LangGraph exposes these only internally; without them a question cannot be kept, so none is asked.


class NodePlace:
    """The position of running code in a graph: its identity, and whether it may interrupt."""

    def __init__(self, name: str = "") -> None:
        try:
            self._configurable: Mapping[str, Any] = get_config().get("configurable", {})
        except RuntimeError:  # outside of a graph
            self._configurable = {}
        self.keeps_state = bool(
            self._configurable.get(_CHECKPOINTER) and _CALL in self._configurable
        )
        space = str(self._configurable.get("checkpoint_ns", ""))
        # Without checkpoints a re-run has other names, and calls are identified by their order.
        self.key = f"langgraph:{space}:{name}" if self.keeps_state else ""
        self._name = name

    @property
    def thread(self) -> str:
        """The thread of the graph, or an empty string."""
        return str(self._configurable.get("thread_id", ""))

    def write(self, text: str) -> None:
        """Write to the custom stream of the graph, if it runs in one."""
        if self._configurable.get(_CALL) is not None:
            get_stream_writer()(text)

    async def converse(self, agent: str, content: Any, send: Send) -> ToolResult:
        """Send content, and answers to the questions of the agent, until its task has ended.

        Each exchange is kept in the checkpoint, so a node that runs again, for an answer or after a
        crash, does not send again. Without a checkpointer a question raises ``RemoteQuestion``.
        """
        task_id, number = "", 0
        while True:

            async def exchange(
                content: Any = content, task_id: str = task_id, number: int = number
            ) -> dict[str, str]:
                try:
                    found = await send(content, task_id, f"{self.key}:{number}" if self.key else "")
                except RemoteQuestion as asked:
                    return {"question": encode(asked.task).decode()}
                return {"result": encode(found).decode()}

            if self.keeps_state:
                kept = await task(exchange, name=f"a2a:{self._name}:{number}")()
            else:
                kept = await exchange()
            if "result" in kept:
                return decode(kept["result"].encode(), ToolResult)
            waiting = decode(kept["question"].encode(), Task)
            if not self.keeps_state:
                raise RemoteQuestion(waiting)
            value, schema = _asked(agent, waiting)
            answer = interrupt(value, response_schema=schema)
            content = answer if isinstance(answer, str | Mapping) else Part(data=answer)
            task_id, number = waiting.id, number + 1


def _asked(agent: str, waiting: Task) -> tuple[Json, Json | None]:
    """Return a question as the value of an interrupt, and the schema of its answer."""
    found, message = question(waiting), waiting.status.message
    text = message.text if message is not None else ""
    value: Json = {"question": text, "agent": agent, "task": waiting.id}
    if waiting.state is TaskState.AUTH_REQUIRED:
        value["needs"] = "authorization"
    parts = () if message is None or found is not None else message.parts
    if data := [part.data for part in parts if part.has_data]:
        value["data"] = data[0] if len(data) == 1 else data
    return value, None if found is None else dict(found.schema)
