"""A2A agents as tools and as nodes of graphs (``docs/frameworks/langgraph.md``).

A message is sent once; questions of the agent are interrupts of the graph.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
from parley.client.remote_agent import RemoteAgent
from parley.extensions.questions import question
from parley.host.connecting import connect
from parley.integrations.langgraph.contents import REMOTE, file_block, file_in, messages_in, text_of
from parley.llm.current_turn import current_turn
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills, result_of
from parley.model.parts import Message, Part
from parley.model.struct import decode, encode
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)

_CALL_ID: ContextVar[str] = ContextVar("parley_langgraph_tool_call", default="")

Words = Callable[[Any], Any]
"""Returns what to send to an agent, from the state of a graph."""

Update = Callable[[Any, ToolResult], Mapping[str, Any]]
"""Returns the update of a graph's state, from its state and an agent's answer."""


async def tools(agent: Callee, **options: Any) -> list[BaseTool]:
    """Return the skills of an A2A agent as LangChain tools, for a model or a ``ToolNode``.

    Names, descriptions and schemas come from its card. In a graph with a checkpointer a question of
    the agent is an interrupt, and the graph resumes with the answer; in a turn of Parley without a
    checkpointer the turn's caller answers. Elsewhere the question is the result. Statuses of the
    agent are written to the custom stream. ``options`` are options of ``parley.connect``, and it
    raises what that raises.
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
        raise NotImplementedError("an A2A agent is called with ainvoke, in an event loop")

    async def arun(self, tool_input: Any, *arguments: Any, **options: Any) -> Any:
        """Run the tool, and know the call's id meanwhile."""
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
    written to the custom stream. The agent's context is one for the graph's thread. Questions are
    interrupts, as with ``tools``.

    ``message`` returns the message to send, from the state; ``update`` returns the update of the
    state, from the state and the answer (``ToolResult``). ``skill`` is the id of the skill.
    ``options`` are options of ``parley.connect``.

    Raises in the graph what ``parley.connect`` raises, and ``RuntimeError`` for a task that fails.
    """
    address = agent.identifier if isinstance(agent, CatalogReference) else address_of(agent)

    async def remote_agent(state: Any) -> Mapping[str, Any]:
        place = NodePlace(name or "node")
        shown = _Shown(agent, options, name, place)

        async def send(content: Any, task_id: str, key: str) -> ToolResult:
            said: dict[str, Any] = {"metadata": {"skill": skill}} if skill else {}
            if task_id:
                said["task_id"] = task_id
            elif place.thread:
                said["context_id"] = str(uuid5(NAMESPACE_URL, f"{place.thread}\n{address}"))
            return await shown.send(content, key, said)

        content = (message or _newest)(state)
        result = await place.converse(name or address, content, send)
        if result.is_error:
            raise RuntimeError(f"the agent {name or address} failed: {result.text}")
        if update is not None:
            return update(state, result)
        return {"messages": [_answer(result, shown.name, shown.message_id)]}

    remote_agent.__name__ = tool_name(name or "remote_agent")
    return remote_agent


class _Shown:
    """Sends messages, and streams the answers as a model streams."""

    def __init__(
        self, agent: Callee, options: Mapping[str, Any], name: str, place: NodePlace
    ) -> None:
        self.name = name
        self.message_id: str | None = None
        self._agent = agent
        self._options = options
        self._place = place

    async def send(self, content: Any, key: str, said: dict[str, Any]) -> ToolResult:
        """Return the answer. Raises ``RemoteQuestion``."""
        turn = current_turn()
        if turn is None:
            async with connect(self._agent, **self._options) as remote:  # type: ignore[arg-type]
                return await self._streamed(remote, content, said)
        said["key"] = key or None
        async with turn.connect(self._agent, **self._options) as bound:
            if self._place.keeps_state:
                return await self._streamed(bound, content, said)
            self.name = self.name or bound.card.name
            answer = await bound.send(content, pass_questions=True, progress=True, **said)
            return result_of(answer)

    async def _streamed(
        self, remote: RemoteAgent, content: Any, options: Mapping[str, Any]
    ) -> ToolResult:
        self.name = self.name or remote.card.name
        outcome: list[Task | Message] = []

        async def words() -> AsyncIterator[str]:
            async with remote.stream(content, **options) as events:
                async for event in events:
                    if isinstance(event, Message):
                        outcome.append(event)
                        yield event.text
                    elif isinstance(event, TaskArtifactUpdateEvent):
                        yield event.artifact.text
                    else:
                        _show_status(event, self._place)
                task_id = events.task_id
            if not outcome:
                outcome.append(await remote.get(task_id))

        said = await _AgentModel(words=words, tags=[REMOTE]).ainvoke("")
        self.message_id = said.id
        return result_of(outcome[0])


def _show_status(event: Event, place: NodePlace) -> None:
    if isinstance(event, TaskStatusUpdateEvent) and event.status.state is TaskState.WORKING:
        message = event.status.message
        if message is not None and message.text:
            place.write(message.text)


class _AgentModel(BaseChatModel):  # type: ignore[misc]
    """Repeats the text of an agent, so that LangChain streams it as it streams a model."""

    words: Any = None

    @property
    def _llm_type(self) -> str:
        return "a2a-agent"

    def _generate(self, *arguments: Any, **options: Any) -> ChatResult:
        raise NotImplementedError("an A2A agent is called with ainvoke, in an event loop")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        text = "".join([each async for each in self.words()])
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(""))
        async for text in self.words():
            if text:
                yield ChatGenerationChunk(message=AIMessageChunk(text))


def _newest(state: Any) -> Any:
    """Return the newest message of a state that says something, as content of a message."""
    for message in reversed(messages_in(state)):
        blocks = message.content if isinstance(message.content, list) else []
        files = [part for block in blocks if (part := file_in(block)) is not None]
        if text := text_of(message):
            return [text, *files] if files else text
        if files:
            return files
    raise ValueError("the state has no message to send; say with message= what to send")


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
"""Sends content to a task, or begins one (""), under a key, and returns what it came to.

Raises ``RemoteQuestion``.
"""

_CHECKPOINTER = "__pregel_checkpointer"
_CALL = "__pregel_call"
# LangGraph names these only inside; without them a question cannot be kept, and is not asked here.


class NodePlace:
    """Where in a graph something runs: what identifies it, and whether it may interrupt."""

    def __init__(self, name: str = "") -> None:
        try:
            self._configurable: Mapping[str, Any] = get_config().get("configurable", {})
        except RuntimeError:  # outside of a graph
            self._configurable = {}
        self.keeps_state = bool(
            self._configurable.get(_CHECKPOINTER) and _CALL in self._configurable
        )
        space = str(self._configurable.get("checkpoint_ns", ""))
        # Without checkpoints a further run has other names, and calls are known by their order.
        self.key = f"langgraph:{space}:{name}" if self.keeps_state else ""
        self._name = name

    @property
    def thread(self) -> str:
        """The thread of the graph, empty without one."""
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
            outcome = await self._once(content, task_id, number, send)
            if isinstance(outcome, ToolResult):
                return outcome
            if not self.keeps_state:
                raise RemoteQuestion(outcome)
            asked = _asked(agent, outcome)
            content = sendable(interrupt(asked[0], response_schema=asked[1]))
            task_id, number = outcome.id, number + 1

    async def _once(self, content: Any, task_id: str, number: int, send: Send) -> ToolResult | Task:
        key = f"{self.key}:{number}" if self.key else ""

        async def exchange() -> dict[str, str]:
            try:
                return {"result": encode(await send(content, task_id, key)).decode()}
            except RemoteQuestion as asked:
                return {"question": encode(asked.task).decode()}

        if self.keeps_state:
            kept = await task(exchange, name=f"a2a:{self._name}:{number}")()
        else:
            kept = await exchange()
        if "question" in kept:
            return decode(kept["question"].encode(), Task)
        return decode(kept["result"].encode(), ToolResult)


def _asked(agent: str, waiting: Task) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return a question as the value of an interrupt, and the schema of its answer."""
    found = question(waiting)
    message = waiting.status.message
    value: dict[str, Any] = {
        "question": message.text if message is not None else "",
        "agent": agent,
        "task": waiting.id,
    }
    if waiting.state is TaskState.AUTH_REQUIRED:
        value["needs"] = "authorization"
    parts = () if message is None or found is not None else message.parts
    data = [part.data for part in parts if part.has_data]
    if data:
        value["data"] = data[0] if len(data) == 1 else data
    return value, None if found is None else dict(found.schema)


def sendable(content: Any) -> Any:
    """Return the answer to an interrupt as the content of a message."""
    return content if isinstance(content, str | Mapping) else Part(data=content)
