"""Runs of Strands in a turn: contents, interrupts as questions, agents, sessions, graphs."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import threading
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import strands
from strands.agent._concurrency import _ConcurrencyController
from strands.agent.agent_result import AgentResult
from strands.agent.state import AgentState
from strands.handlers.callback_handler import PrintingCallbackHandler, null_callback_handler
from strands.interrupt import _InterruptState
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, Status
from strands.telemetry.metrics import EventLoopMetrics
from strands.tools._caller import _ToolCaller
from strands.tools._tool_helpers import generate_missing_tool_result_content
from strands.types._snapshot import Snapshot
from strands.types.exceptions import MaxTokensReachedException
from strands.types.session import decode_bytes_values, encode_bytes_values

from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.answers import said_in
from parley.integrations.conversations import (
    ContextConversation,
    ContextState,
    TaskValue,
    fits_checkpoint,
    replaced,
)
from parley.integrations.message_files import InputFile, file_of, input_of
from parley.integrations.serving import CallKeys, RunOver, result_of_steps
from parley.llm.remote_skills import RemoteSkill
from parley.llm.run_output import RunOutput
from parley.model.errors import an
from parley.model.parts import Part

IMAGES = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "gif": "gif", "webp": "webp"}
VIDEOS = {"mp4": "mp4", "quicktime": "mov", "webm": "webm", "x-matroska": "mkv", "mpeg": "mpeg"}
DOCUMENTS = {
    "application/pdf": "pdf",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}


async def prompt_of(turn: Turn) -> list[dict[str, Any]]:
    """Return a turn's message as content blocks. A file that no block can hold rejects the turn."""
    blocks = []
    for each in await input_of(turn, turn.message, reads_texts=False):
        block = {"text": each} if isinstance(each, str) else _block(each)
        if block is None:
            assert isinstance(each, InputFile)
            turn.reject(f"Files of the type {each.media_type} cannot be read by this agent.")
        blocks.append(block)
    return blocks


def _block(file: InputFile) -> dict[str, Any] | None:
    source = {"bytes": file.content}
    media_type = file.media_type.partition(";")[0].strip()
    if file.kind == "image" and file.subtype in IMAGES:
        return {"image": {"format": IMAGES[file.subtype], "source": source}}
    if file.kind == "video" and file.subtype in VIDEOS:
        return {"video": {"format": VIDEOS[file.subtype], "source": source}}
    if media_type in DOCUMENTS:
        name = re.sub(r"[^A-Za-z0-9 ()\[\]-]+", "-", file.filename.rpartition(".")[0]) or "document"
        return {"document": {"format": DOCUMENTS[media_type], "name": name, "source": source}}
    return None if file.text is None else {"text": file.text}


def written(value: Any) -> Any:
    """Return a state as JSON, with bytes as Strands writes them."""
    return msgspec.json.decode(msgspec.json.encode(encode_bytes_values(value)))


def without_files(messages: list[Any]) -> list[Any]:
    """Return messages with words in place of files."""

    def words(block: dict[str, Any]) -> Any | None:
        for kind in ("image", "document", "video"):
            if isinstance(block.get(kind), dict) and "source" in block[kind]:
                return {"text": f"(there was a file: {kind})"}
        return None

    found: list[Any] = replaced(messages, words)
    return found


def blocks_of(result: ToolResult) -> list[dict[str, Any]]:
    """Return the result of a remote skill as the content of a tool result."""
    blocks: list[dict[str, Any]] = []
    for part in result.parts:
        if part.text is not None:
            blocks.append({"text": part.text})
        elif part.has_data:
            blocks.append({"json": part.data})
        elif part.raw is not None:
            file = file_of(part, part.raw)
            blocks.append(_block(file) or {"text": f"(a file: {part.filename or file.media_type})"})
        elif part.url is not None:
            blocks.append({"text": f"(a file: {part.url})"})
    return blocks or [{"text": "(nothing)"}]


def file_in(block: dict[str, Any]) -> Part | None:
    """Return the file that a block of a tool result has, ``None`` without one."""
    for kind in ("image", "video", "document"):
        held = block.get(kind)
        if isinstance(held, dict) and isinstance(raw := held.get("source", {}).get("bytes"), bytes):
            ending = str(held.get("format", ""))
            types = {value: key for key, value in DOCUMENTS.items()}
            media_type = types.get(ending, "text/plain") if kind == "document" else ""
            name = str(held.get("name") or kind)
            return Part(
                raw=raw, media_type=media_type or f"{kind}/{ending}", filename=f"{name}.{ending}"
            )
    return None


def shown(content: list[Any]) -> Any:
    """Return the content of a tool result as progress shows it."""
    values = [each["text"] if "text" in each else each.get("json", "(a file)") for each in content]
    return values[0] if len(values) == 1 else values


class StrandsDisplay:
    """Shows events of an agent, a graph or a swarm.

    Of nodes that run at the same time only steps and tools are shown, not their text.
    """

    def __init__(self, output: RunOutput, hidden: set[str]) -> None:
        self._output = output
        self._hidden = hidden
        self._called: dict[str, str] = {}
        self._nodes: set[str] = set()

    async def show(self, event: dict[str, Any]) -> None:
        """Show an event, or nothing of it."""
        kind = event.get("type")
        if kind == "multiagent_node_start":
            self._nodes.add(event["node_id"])
            await self._output.new_message()
            await self._output.step(event["node_id"])
        elif kind == "multiagent_node_stop":
            self._nodes.discard(event["node_id"])
        elif kind == "multiagent_node_stream":
            await self.show(event["event"])
        elif "messageStart" in event.get("event", {}):
            if self._output.said and len(self._nodes) < 2:  # earlier text is not the answer
                await self._output.new_message()
        elif isinstance(text := event.get("data"), str):
            if len(self._nodes) < 2:
                await self._output.text(text)
        elif isinstance(thought := event.get("reasoningText"), str):
            await self._output.thinking(thought)
        elif isinstance(message := event.get("message"), dict):
            await self._message(message)
        elif kind == "tool_stream":
            streamed = event.get("tool_stream_event", {})
            if isinstance(data := streamed.get("data"), str | int | float | dict):
                await self._output.step(streamed.get("tool_use", {}).get("name", ""), data)

    async def _message(self, message: dict[str, Any]) -> None:
        for block in message.get("content", []):
            if (use := block.get("toolUse")) and use["name"] not in self._hidden:
                self._called[use["toolUseId"]] = use["name"]
                await self._output.tool_called(use["name"], use["input"], call_id=use["toolUseId"])
            elif (result := block.get("toolResult")) is not None:
                await self._returned(result)

    async def _returned(self, result: dict[str, Any]) -> None:
        call_id, content = result["toolUseId"], result.get("content", [])
        for block in content:
            if (part := file_in(block)) is not None:
                await self._output.file(part)
        if name := self._called.get(call_id, ""):
            is_error = result.get("status") == "error"
            await self._output.tool_returned(
                name, shown(content), call_id=call_id, is_error=is_error
            )


REMOTE = "parley:remote-call"
"""The name of an interrupt that is a call of a remote skill, which the turn makes."""


STEP = "strands"


class StrandsRun:
    """The run of an agent, a graph or a swarm in a turn: its interrupts are questions.

    ``results`` has the results of remote calls, by tool use. ``ended`` is the exception with which
    a request to a model ended the run: Strands continues without a tool or a node that ends so.
    """

    def __init__(self, thing: Any, output: RunOutput, state: dict[str, Any]) -> None:
        self.results: dict[str, ToolResult] = {}
        self.requests = output.requests
        self.ended: BaseException | None = None
        self._thing = thing
        self._turn = output.turn
        self._output = output
        self._state = state
        model = getattr(thing, "_default_structured_output_model", None)
        self._display = StrandsDisplay(output, set() if model is None else {model.__name__})
        self._keys = CallKeys()
        output.run = self

    def call_key(self, said: str) -> str:
        """Return a key for a call of a remote node: by its text, and how often it was said."""
        return self._keys.key(STEP, said)

    def check(self) -> None:
        """Raise the end of the run."""
        if self.ended is not None:
            raise self.ended

    async def answers(self, kept: dict[str, Any], number: int) -> Any:
        """Return the prompt that resumes: the response to each interrupt.

        Remote calls are made at the same time; questions are asked one after the other.
        """
        interrupts = kept["interrupts"]
        if not interrupts:
            return {"checkpointResume": {"checkpoint": kept["checkpoint"]}}
        remote = [each for each in interrupts if each["name"] == REMOTE]
        await asyncio.gather(*[self._call(each) for each in remote])
        found = []
        for each in interrupts:
            response = "done" if each["name"] == REMOTE else await self._ask(each)
            found.append({"interruptResponse": {"interruptId": each["id"], "response": response}})
        return found

    async def _ask(self, interrupt: dict[str, Any]) -> Any:
        reason = interrupt.get("reason")
        if isinstance(reason, str) and reason:
            asked: Any = reason
        elif reason is None:
            asked = interrupt["name"]
        else:
            text = f"{interrupt['name']}: {json.dumps(reason, ensure_ascii=False)}"
            asked = [Part(text=text), Part(data=reason, media_type="application/json")]
        answer = await self._turn.ask(asked, key=f"{STEP}:{interrupt['id']}")
        said = said_in(answer)
        return answer.text if said is None else said

    async def _call(self, interrupt: dict[str, Any]) -> None:
        call = interrupt["reason"]
        skill = self._skill(call["tool"])
        result = await skill.call(call["arguments"], key=f"{STEP}:{interrupt['id']}")
        self.results[call["toolUseId"]] = result

    def _skill(self, tool: str) -> RemoteSkill:
        for each in agents_in(self._thing):
            skill = getattr(each.tool_registry.registry.get(tool), "skill", None)
            if isinstance(skill, RemoteSkill):
                return skill
        raise LookupError(f"the tool {tool!r}, which a call waits for, is no remote skill any more")


def unanswered(interrupts: Any) -> list[dict[str, Any]]:
    """Return interrupts as JSON. Raises ``TypeError`` for a reason that is no JSON."""
    found = []
    for each in interrupts or ():
        try:
            json.dumps(each.reason)
        except (TypeError, ValueError):
            raise TypeError(
                f"the reason of the interrupt {each.name!r} is {an(type(each.reason).__name__)}, "
                "which is no JSON; it is sent to the caller"
            ) from None
        found.append({"id": each.id, "name": each.name, "reason": each.reason})
    return found


def check_copied(thing: strands.Agent) -> None:
    """Raise ``TypeError`` for an agent that cannot be copied for each turn."""
    if thing._session_manager is not None:
        raise TypeError(
            "this agent has a session manager, so all callers would have one conversation; give a "
            "function that makes the agent of a thread: "
            "strands.agent(lambda thread: Agent(..., session_manager=...(session_id=thread)), "
            "name=...)"
        )
    if thing._background_tasks is not None:
        raise TypeError(
            "this agent runs background tasks, which belong to one conversation; give a function "
            "that makes the agent of a thread: strands.agent(lambda thread: Agent(...), name=...)"
        )


def copy_of(thing: strands.Agent) -> strands.Agent:
    """Return an agent with the same model, tools, hooks and plugins, and a state of its own."""
    new = copy.copy(thing)
    new.messages = copy.deepcopy(thing.messages)
    new.state = AgentState(copy.deepcopy(thing.state.get()))
    new.conversation_manager = copy.copy(thing.conversation_manager)
    new.event_loop_metrics = EventLoopMetrics()
    new.tool_registry = copy.copy(thing.tool_registry)
    new.tool_registry.registry = dict(thing.tool_registry.registry)
    new.tool_registry.dynamic_tools = dict(thing.tool_registry.dynamic_tools)
    new.tool_registry._tool_providers = []  # they end with the agent that was given
    new.tool_caller = _ToolCaller(new)
    new._interrupt_state = _InterruptState()
    new._concurrency = _ConcurrencyController(thing._concurrency.mode)
    new._cancel_signal = threading.Event()
    new._model_state = copy.deepcopy(thing._model_state)
    return new


def agents_in(thing: Any) -> Iterator[strands.Agent]:
    """Yield an agent, or the agents in the nodes of a graph or a swarm."""
    if isinstance(thing, strands.Agent):
        yield thing
    elif isinstance(thing, MultiAgentBase):
        for node in getattr(thing, "nodes", {}).values():
            yield from agents_in(node.executor)


def silenced(thing: Any) -> Any:
    """Return an agent, graph or swarm whose agents print nothing."""
    for each in agents_in(thing):
        if isinstance(each.callback_handler, PrintingCallbackHandler):
            each.callback_handler = null_callback_handler
    return thing


MESSAGES = "urn:parley:strands:messages"
STATE = "urn:parley:strands:state"


class AgentRun(StrandsRun):
    """Runs an agent for one turn. The agent is this turn's own.

    When it has ended, its new messages and changes of its state are added to the context.
    """

    def __init__(self, thing: strands.Agent, output: RunOutput, state: dict[str, Any]) -> None:
        super().__init__(thing, output, state)
        self._agent = thing
        # A session manager keeps the agent's state by itself, message by message.
        self._session: UserSession | None = None
        if thing._session_manager is not None:
            self._session = UserSession(thing, self._turn.task_id)
        thing._checkpointing = self._session is None
        first = written(thing.messages)
        self._conversation = ContextConversation(
            self._turn, MESSAGES, shorten=without_files, first=first
        )
        self._store = ContextState(self._turn, STATE)
        self._before: dict[str, Any] = {}

    async def run(self) -> None:
        """Run until the agent has answered, and show it."""
        prompt: Any = await prompt_of(self._turn)
        if self._session is not None:
            prompt = self._session.prompt(prompt)
        await self._finish(await result_of_steps(self._turn, STEP, self, prompt))

    async def begin(self, given: Any, kept: dict[str, Any] | None, number: int) -> Any:
        """Load the newest snapshot of this task, or else the messages and state of the context."""
        if self._session is not None:
            return await self._session.taken_up(given, kept)
        if kept is not None:
            snapshot = kept["snapshot"]
            self._conversation.resume(kept["conversation"], snapshot["data"]["messages"])
            self._before = kept["before"]
        else:
            snapshot = self._snapshot()
            state = {**_state_in(snapshot), **await self._store.read()}
            self._before = state
            messages = await self._conversation.earlier()
            snapshot = {**snapshot, "data": {**state, "messages": messages}}
        self._agent.load_snapshot(Snapshot.from_dict(decode_bytes_values(snapshot)))
        return given

    async def go(self, given: Any, number: int) -> dict[str, Any]:
        """Run until the state is to be kept, and return it. Raises ``RunOver`` at the end."""
        if isinstance(given, dict) and "interrupts" in given:
            return given
        while True:
            result = await self._result(given)
            interrupts = unanswered(result.interrupts) if result.stop_reason == "interrupt" else []
            if result.checkpoint is None and not interrupts:
                raise RunOver(result)
            checkpoint = None if result.checkpoint is None else result.checkpoint.to_dict()
            now: dict[str, Any] = {"checkpoint": checkpoint, "interrupts": interrupts}
            snapshot = None if self._session is not None else self._snapshot()
            is_done = checkpoint is not None and checkpoint["position"] == "after_tools"
            if interrupts or (is_done and fits_checkpoint(snapshot)):
                if snapshot is None:
                    return {**now, "pending": written(self._agent._interrupt_state.to_dict())}
                mark = self._conversation.mark(snapshot["data"]["messages"])
                return {**now, "snapshot": snapshot, "conversation": mark, "before": self._before}
            given = {"checkpointResume": {"checkpoint": checkpoint}}

    async def _result(self, prompt: Any) -> AgentResult:
        result: AgentResult | None = None
        try:
            events = self._agent.stream_async(prompt, invocation_state=self._state)
            async with aclosing(events) as stream:
                async for event in stream:
                    if isinstance(found := event.get("result"), AgentResult):
                        result = found
                    else:
                        await self._display.show(event)
        except MaxTokensReachedException:  # the message is as long as it may be
            message = self._agent.messages[-1]
            return AgentResult("max_tokens", message, self._agent.event_loop_metrics, {})
        assert result is not None
        return result

    def _snapshot(self) -> Any:
        return written(self._agent.take_snapshot(preset="session").to_dict())

    async def _finish(self, result: AgentResult) -> None:
        text = "".join(block.get("text", "") for block in result.message.get("content", []))
        if result.stop_reason == "guardrail_intervened":
            self._turn.reject(text or "A guardrail refuses this.")
        if result.stop_reason == "cancelled":
            self._turn.fail("The run was cancelled by the agent itself.")
        if self._session is None:
            snapshot = self._snapshot()
            await self._conversation.finish(snapshot["data"]["messages"])
            await self._store.write(self._before, _state_in(snapshot))
        if result.structured_output is not None:
            value = result.structured_output
            await self._output.data(
                value.model_dump(mode="json"), schema=type(value).model_json_schema()
            )
        elif not self._output.said and result.stop_reason != "max_tokens":
            await self._output.text(text)


def _state_in(snapshot: Any) -> dict[str, Any]:
    """Return what tasks of a context share beside the messages."""
    apart = ("messages", "interrupt_state")
    return {name: value for name, value in snapshot["data"].items() if name not in apart}


TASK = "parley-"
"""Begins the tracking ids of prompts; the id of the task follows."""


class UserSession:
    """The place of a task in the session of its thread."""

    def __init__(self, agent: strands.Agent, task_id: str) -> None:
        self._agent = agent
        self._id = f"{TASK}{task_id}"
        self._begins: list[Any] = []

    def prompt(self, blocks: Any) -> list[Any]:
        """Return a prompt as a message that is known as this task's."""
        self._begins = [{"role": "user", "content": blocks, "tracking_id": self._id}]
        return self._begins

    async def taken_up(self, prompt: Any, kept: dict[str, Any] | None) -> Any:
        """Return how an attempt continues the task in the session.

        ``prompt`` begins the task, or answers the interrupts that ``kept`` has of its log.
        """
        state = self._agent._interrupt_state
        if kept is not None and "interruptResponse" in prompt[0]:
            return await self._answered(prompt, kept["pending"])
        begun = self._last(self._id)
        if begun is None:
            if state.activated:  # another task waits, or left it; its log has it
                state.deactivate()
            return prompt
        if state.activated and self._waits_after(begun):
            waiting = [each for each in state.interrupts.values() if each.response is None]
            pending = state.to_dict()
            return {"interrupts": unanswered(waiting), "pending": pending}
        if state.activated:
            state.deactivate()
        return None

    async def _answered(self, prompt: Any, pending: Any) -> Any:
        state = self._agent._interrupt_state
        ids = {each["interruptResponse"]["interruptId"] for each in prompt}
        if state.activated and ids <= set(state.interrupts):
            return prompt
        message = (pending.get("pending_tool_execution") or {}).get("assistant_message")
        if message is not None and self._is_settled(message):
            return None  # the answer was taken before a crash
        await self._come_last(None if message is None else decode_bytes_values(message))
        self._agent._interrupt_state = _InterruptState.from_dict(decode_bytes_values(pending))
        return prompt

    async def _come_last(self, message: Any) -> None:
        """Say the waiting message of the task again, after the messages of other tasks.

        The same is said in a session that has lost it.
        """
        messages = self._agent.messages
        newest = messages[-1] if messages else {"content": []}
        if message is None or newest.get("tracking_id") == message.get("tracking_id"):
            return
        if waiting := _calls_in(newest):
            results = generate_missing_tool_result_content(waiting)
            await self._agent._append_messages({"role": "user", "content": results})
        begun = self._last(self._id)
        again: Any = self._begins[0]
        if begun is not None:
            again = {"role": "user", "content": messages[begun]["content"]}
        await self._agent._append_messages(again)
        await self._agent._append_messages(message)

    def _is_settled(self, message: Any) -> bool:
        """Return whether calls of tools have results, other than that there are none."""
        at, messages = self._last(message.get("tracking_id")), self._agent.messages
        if at is None or at + 1 >= len(messages):
            return False
        calls = _calls_in(message)
        found = [each for each in messages[at + 1]["content"] if "toolResult" in each]
        ids = {each["toolResult"]["toolUseId"] for each in found}
        return ids == set(calls) and found != generate_missing_tool_result_content(calls)

    def _waits_after(self, begun: int) -> bool:
        """Return whether the message at this place has the interrupt of the session."""
        others = self._agent.messages[begun + 1 :]
        return not any(str(each.get("tracking_id", "")).startswith(TASK) for each in others)

    def _last(self, tracking_id: str | None) -> int | None:
        messages = self._agent.messages
        found = [n for n, each in enumerate(messages) if each.get("tracking_id") == tracking_id]
        return found[-1] if found and tracking_id else None


def _calls_in(message: Any) -> list[str]:
    return [each["toolUse"]["toolUseId"] for each in message["content"] if "toolUse" in each]


class GraphRun(StrandsRun):
    """Runs a graph or a swarm for one turn. It is this turn's own.

    Its state at an interrupt is a step of the task. Its state after each node is kept in the
    context until the task ends, so a crash repeats the nodes that had not ended.
    """

    async def run(self) -> None:
        """Run until all nodes have ended, and show what the last ones said."""
        self._nodes = TaskValue(self._turn, "urn:parley:strands:graph")
        prompt: Any = await prompt_of(self._turn)
        if len(prompt) == 1 and "text" in prompt[0]:
            prompt = prompt[0]["text"]
        await self._finish(await result_of_steps(self._turn, f"{STEP}-graph", self, prompt))

    async def begin(self, given: Any, kept: dict[str, Any] | None, number: int) -> Any:
        """Load the state after the newest node, or else at the newest interrupt."""
        newest = await self._nodes.read()
        if newest is None or newest["number"] != number:
            newest = kept
        if newest is not None:
            self._thing.deserialize_state(decode_bytes_values(newest["state"]))
        return given

    async def go(self, given: Any, number: int) -> dict[str, Any]:
        """Run until nodes ask, and return the state. Raises ``RunOver`` at the end."""
        result = await self._result(given, number)
        if result.status is not Status.INTERRUPTED:
            raise RunOver(result)
        return {**self._kept(number), "interrupts": unanswered(result.interrupts)}

    def _kept(self, number: int) -> dict[str, Any]:
        return {"number": number, "state": written(self._thing.serialize_state())}

    async def _result(self, prompt: Any, number: int) -> MultiAgentResult:
        result: MultiAgentResult | None = None
        async with aclosing(self._thing.stream_async(prompt, self._state)) as events:
            async for event in events:
                self.check()
                if isinstance(found := event.get("result"), MultiAgentResult):
                    result = found
                    continue
                await self._display.show(event)
                if event.get("type") == "multiagent_node_stop":
                    await self._nodes.write(self._kept(number))
        assert result is not None
        return result

    async def _finish(self, result: MultiAgentResult) -> None:
        if result.status is Status.FAILED:
            for each in result.results.values():
                if isinstance(each.result, Exception):
                    raise each.result
            self._turn.fail("The run reached its limit of nodes, handoffs or time.")
        text = "\n".join(str(result.results[name]).strip() for name in self._last(result))
        await self._output.whole(text)

    def _last(self, result: Any) -> list[str]:
        """Return the ids of the nodes whose results are the answer: those that none follows."""
        order = getattr(result, "execution_order", None) or getattr(result, "node_history", [])
        names = [each.node_id for each in order]
        followed = {each.from_node.node_id for each in getattr(self._thing, "edges", ())}
        ends = [name for name in dict.fromkeys(names) if name not in followed]
        chosen = ends if followed and ends else names[-1:]
        return [name for name in chosen if name in result.results]
