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
from strands import Snapshot
from strands.agent.agent_result import AgentResult
from strands.agent.state import AgentState
from strands.handlers.callback_handler import PrintingCallbackHandler, null_callback_handler
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, Status
from strands.telemetry.metrics import EventLoopMetrics
from strands.tools._tool_helpers import generate_missing_tool_result_content
from strands.types.exceptions import MaxTokensReachedException
from strands.types.session import decode_bytes_values, encode_bytes_values

from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.answers import said_in
from parley.integrations.conversations import (
    ContextConversation,
    ContextState,
    fits_checkpoint,
    replaced,
)
from parley.integrations.message_files import InputFile, file_of, input_of
from parley.integrations.serving import FrameworkRun, RunOver
from parley.llm.model import Json
from parley.llm.run_output import RunOutput
from parley.model.errors import an
from parley.model.parts import Part

FORMATS = {
    "image/png": "image/png", "image/jpeg": "image/jpeg", "image/jpg": "image/jpeg",
    "image/gif": "image/gif", "image/webp": "image/webp",
    "video/mp4": "video/mp4", "video/quicktime": "video/mov", "video/webm": "video/webm",
    "video/x-matroska": "video/mkv", "video/mpeg": "video/mpeg",
    "application/pdf": "document/pdf", "text/csv": "document/csv", "text/html": "document/html",
    "text/markdown": "document/md", "application/msword": "document/doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "document/docx",
    "application/vnd.ms-excel": "document/xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "document/xlsx",
}  # fmt: skip
"""The kinds of content blocks with their formats, by the media types of files."""

KINDS = ("image", "document", "video")


async def prompt_of(turn: Turn) -> list[Json]:
    """Return a turn's message as content blocks. A file without a suitable block
    rejects the turn.
    """
    blocks = []
    for each in await input_of(turn, turn.message, reads_texts=False):
        block = _block(each) if isinstance(each, InputFile) else {"text": each}
        if block is None:
            assert isinstance(each, InputFile)
            turn.reject(f"Files of the type {each.media_type} cannot be read by this agent.")
        blocks.append(block)
    return blocks


def _block(file: InputFile) -> Json | None:
    kind, _, form = FORMATS.get(f"{file.kind}/{file.subtype}", "").partition("/")
    if not kind:
        return None if file.text is None else {"text": file.text}
    block: Json = {"format": form, "source": {"bytes": file.content}}
    if kind == "document":
        name = re.sub(r"[^A-Za-z0-9 ()\[\]-]+", "-", file.filename.rpartition(".")[0])
        block["name"] = name or kind
    return {kind: block}


def written(value: Any) -> Any:
    """Return a state as JSON, with bytes encoded as Strands does."""
    return msgspec.json.decode(msgspec.json.encode(encode_bytes_values(value)))


def without_files(messages: list[Any]) -> list[Any]:
    """Return messages with placeholders instead of files."""

    def words(block: Json) -> Any | None:
        for kind in KINDS:
            if isinstance(block.get(kind), dict) and "source" in block[kind]:
                return {"text": f"(there was a file: {kind})"}
        return None

    found: list[Any] = replaced(messages, words)
    return found


def blocks_of(result: ToolResult) -> list[Json]:
    """Return the result of a remote skill as the content of a tool result."""
    blocks: list[Json] = []
    for part in result.parts:
        if part.text is not None:
            blocks.append({"text": part.text})
        elif part.has_data:
            blocks.append({"json": part.data})
        elif part.raw is not None:
            file = file_of(part, part.raw)
            blocks.append(_block(file) or {"text": f"(a file: {part.filename or file.media_type})"})
        else:
            blocks.append({"text": f"(a file: {part.url})"})
    return blocks or [{"text": "(nothing)"}]


def file_in(block: Json) -> Part | None:
    """Return the file in a block of a tool result, ``None`` for other blocks."""
    for kind in KINDS:
        held = block.get(kind)
        if isinstance(held, dict) and isinstance(raw := held.get("source", {}).get("bytes"), bytes):
            ending = str(held.get("format", ""))
            media_type, wanted = f"{kind}/{ending}", f"{kind}/{ending}"
            if kind == "document":
                types = (each for each, found in FORMATS.items() if found == wanted)
                media_type = next(types, "text/plain")
            name = f"{held.get('name') or kind}.{ending}"
            return Part(raw=raw, media_type=media_type, filename=name)
    return None


REMOTE = "parley:remote-call"
"""The name of an interrupt for a call of a remote skill, which the turn makes."""


class StrandsRun(FrameworkRun):
    """The run of an agent, a graph or a swarm in a turn: its interrupts are questions.

    ``ended`` is the exception with which a model request ended the run: Strands itself would
    continue without the failed tool or node. Of concurrent nodes only steps and tools are shown,
    not their text.
    """

    name = "strands"

    def __init__(self, thing: Any, output: RunOutput, state: Json) -> None:
        super().__init__(output)
        self.ended: BaseException | None = None
        self._thing = thing
        self._invocation = state
        self._hidden = getattr(thing, "_default_structured_output_model", None)
        self._nodes: set[str] = set()

    def check(self) -> None:
        """Raise the end of the run."""
        if self.ended is not None:
            raise self.ended

    async def answers(self, kept: Json) -> Any:
        """Return the prompt that resumes: the response to each interrupt.

        Remote calls are made concurrently; questions are asked one after another.
        """
        interrupts, found = kept["interrupts"], []
        tools: Json = {}
        for each in agents_in(self._thing):
            tools |= each.tool_registry.registry
        remote = [each["reason"] for each in interrupts if each["name"] == REMOTE]
        skills = [getattr(tools.get(each["tool"]), "skill", None) for each in remote]
        await asyncio.gather(
            *[self.call(skill, **each) for skill, each in zip(skills, remote, strict=True)]
        )
        for each in interrupts:
            response = "done" if each["name"] == REMOTE else await self._ask(each)
            found.append({"interruptResponse": {"interruptId": each["id"], "response": response}})
        return found

    async def _ask(self, interrupt: Json) -> Any:
        reason = interrupt["reason"]
        asked: Any = reason or interrupt["name"]
        if reason is not None and not isinstance(reason, str):
            text = f"{interrupt['name']}: {json.dumps(reason, ensure_ascii=False)}"
            asked = [Part(text=text), Part(data=reason, media_type="application/json")]
        answer = await self.turn.ask(asked, key=f"{self.name}:{self.number}:{interrupt['id']}")
        said = said_in(answer)
        return answer.text if said is None else said

    # -- what is shown -------------------------------------------------------------------------

    async def show(self, event: Json) -> None:
        """Show an event of an agent, a graph or a swarm, if it is of interest."""
        output, kind = self.output, event.get("type")
        if kind == "multiagent_node_start":
            self._nodes.add(event["node_id"])
            await output.new_message()
            await output.step(event["node_id"])
        elif kind == "multiagent_node_stop":
            self._nodes.discard(event["node_id"])
        elif kind == "multiagent_node_stream":
            await self.show(event["event"])
        elif "messageStart" in event.get("event", {}):
            if output.said and len(self._nodes) < 2:  # earlier text is not the answer
                await output.new_message()
        elif isinstance(text := event.get("data"), str):
            if len(self._nodes) < 2:
                await output.text(text)
        elif isinstance(thought := event.get("reasoningText"), str):
            await output.thinking(thought)
        elif isinstance(message := event.get("message"), dict):
            for block in message.get("content", []):
                await self._show_block(block)
        elif kind == "tool_stream":
            streamed = event.get("tool_stream_event", {})
            if isinstance(data := streamed.get("data"), str | int | float | dict):
                await output.step(streamed.get("tool_use", {}).get("name", ""), data)

    async def _show_block(self, block: Json) -> None:
        use, result, output = block.get("toolUse"), block.get("toolResult"), self.output
        if use and use["name"] != getattr(self._hidden, "__name__", None):
            await output.tool_called(use["name"], use["input"], call_id=use["toolUseId"])
        elif result is not None:
            content, call_id = result.get("content", []), result["toolUseId"]
            for each in content:
                if (part := file_in(each)) is not None:
                    await output.file(part)
            if call_id in output.called:
                values = [each.get("text", each.get("json", "(a file)")) for each in content]
                shown = values[0] if len(values) == 1 else values
                is_error = result.get("status") == "error"
                await output.tool_returned("", shown, call_id=call_id, is_error=is_error)


def unanswered(interrupts: Any) -> list[Json]:
    """Return interrupts as JSON. Raises ``TypeError`` for a reason that is not JSON."""
    found = []
    for each in interrupts or ():
        try:
            json.dumps(each.reason)
        except (TypeError, ValueError):
            raise TypeError(
                f"the reason of the interrupt {each.name!r} is {an(type(each.reason).__name__)}, "
                "which is not JSON; the caller receives the reason"
            ) from None
        found.append({"id": each.id, "name": each.name, "reason": each.reason})
    return found


def check_copied(thing: strands.Agent) -> None:
    """Raise ``TypeError`` for an agent that cannot be copied for each turn."""
    if thing._session_manager is not None:
        raise TypeError(
            "this agent has a session manager, so all callers would share one conversation; give a "
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
    """Return an agent with the same model, tools, hooks and plugins, and its own state."""
    new = copy.copy(thing)
    new.messages = copy.deepcopy(thing.messages)
    new.state = AgentState(copy.deepcopy(thing.state.get()))
    new.conversation_manager = copy.copy(thing.conversation_manager)
    new.event_loop_metrics = EventLoopMetrics()
    new.tool_registry = copy.copy(thing.tool_registry)
    new.tool_registry.registry = dict(thing.tool_registry.registry)
    new.tool_registry.dynamic_tools = dict(thing.tool_registry.dynamic_tools)
    new.tool_registry._tool_providers = []  # the original agent owns their lifetime
    new.tool_caller = type(thing.tool_caller)(new)
    new._interrupt_state = type(thing._interrupt_state)()
    new._concurrency = type(thing._concurrency)(thing._concurrency.mode)
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


class AgentRun(StrandsRun):
    """Runs an agent for one turn. The agent belongs to this turn only.

    At its end, its new messages and changes of its state are added to the context. A session
    manager stores the agent's state itself, message by message.
    """

    def __init__(self, thing: strands.Agent, output: RunOutput, state: Json) -> None:
        super().__init__(thing, output, state)
        self._session: UserSession | None = None
        if thing._session_manager is not None:
            self._session = UserSession(thing, self.turn.task_id)
        thing._checkpointing = self._session is None
        self._conversation = ContextConversation(
            self.turn,
            "urn:parley:strands:messages",
            shorten=without_files,
            first=written(thing.messages),
        )
        self._store = ContextState(self.turn, "urn:parley:strands:state")
        self._before: Json = {}

    async def run(self) -> None:
        """Run until the agent has answered, and show it."""
        prompt: Any = await prompt_of(self.turn)
        if self._session is not None:
            prompt = self._session.prompt(prompt)
        result = await self.result(prompt)
        text = "".join(block.get("text", "") for block in result.message.get("content", []))
        if result.stop_reason == "guardrail_intervened":
            self.turn.reject(text or "A guardrail rejected this.")
        if result.stop_reason == "cancelled":
            self.turn.fail("The run was cancelled by the agent itself.")
        if self._session is None:
            snapshot = self._snapshot()
            await self._conversation.finish(snapshot["data"]["messages"])
            await self._store.write(self._before, _state_in(snapshot))
        if (value := result.structured_output) is not None:
            schema = type(value).model_json_schema()
            await self.output.data(value.model_dump(mode="json"), schema=schema)
        elif not self.output.said and result.stop_reason != "max_tokens":
            await self.output.text(text)

    async def begin(self, given: Any) -> Any:
        """Load the newest snapshot of this task, or else the messages and state of the context."""
        if self._session is not None:
            return given if self.kept else await self._session.taken_up(given, None)
        if self.kept is not None:
            snapshot = self.kept["snapshot"]
            self._conversation.resume(self.kept["conversation"], snapshot["data"]["messages"])
            self._before = self.kept["before"]
        else:
            snapshot = self._snapshot()
            self._before = {**_state_in(snapshot), **await self._store.read()}
            messages = await self._conversation.earlier()
            snapshot = {**snapshot, "data": {**self._before, "messages": messages}}
        self._thing.load_snapshot(Snapshot.from_dict(decode_bytes_values(snapshot)))
        return given

    async def answers(self, kept: Json) -> Any:
        """Return the responses to interrupts, or the prompt that resumes the run after a round of
        calls.
        """
        if kept["interrupts"]:
            found = await super().answers(kept)
            return found if self._session is None else await self._session.taken_up(found, kept)
        return {"checkpointResume": {"checkpoint": kept["checkpoint"]}}

    async def go(self, given: Any) -> Json:
        """Run until the state must be kept, and return it. Raises ``RunOver`` at the end."""
        if isinstance(given, dict) and "interrupts" in given:
            return given
        while True:
            result = await self._result(given)
            interrupts = unanswered(result.interrupts) if result.stop_reason == "interrupt" else []
            if result.checkpoint is None and not interrupts:
                raise RunOver(result)
            checkpoint = None if result.checkpoint is None else result.checkpoint.to_dict()
            now: Json = {"checkpoint": checkpoint, "interrupts": interrupts}
            if self._session is not None:
                return {**now, "pending": written(self._thing._interrupt_state.to_dict())}
            snapshot = self._snapshot()
            is_done = checkpoint is not None and checkpoint["position"] == "after_tools"
            if interrupts or (is_done and fits_checkpoint(snapshot)):
                mark = self._conversation.mark(snapshot["data"]["messages"])
                return {**now, "snapshot": snapshot, "conversation": mark, "before": self._before}
            given = {"checkpointResume": {"checkpoint": checkpoint}}

    async def _result(self, prompt: Any) -> Any:
        result: Any = None
        try:
            events = self._thing.stream_async(prompt, invocation_state=self._invocation)
            async with aclosing(events) as stream:
                async for event in stream:
                    if isinstance(found := event.get("result"), AgentResult):
                        result = found
                    else:
                        await self.show(event)
        except MaxTokensReachedException:  # the message has its maximum length
            message, metrics = self._thing.messages[-1], self._thing.event_loop_metrics
            return AgentResult("max_tokens", message, metrics, {})
        return result

    def _snapshot(self) -> Any:
        return written(self._thing.take_snapshot(preset="session").to_dict())


def _state_in(snapshot: Any) -> Json:
    """Return the state that tasks of a context share, in addition to the messages."""
    apart = ("messages", "interrupt_state")
    return {name: value for name, value in snapshot["data"].items() if name not in apart}


TASK = "parley-"
"""The prefix of the tracking ids of prompts; the id of the task follows."""


class UserSession:
    """The position of a task in the session of its thread."""

    def __init__(self, agent: strands.Agent, task_id: str) -> None:
        self._agent = agent
        self._id = f"{TASK}{task_id}"
        self._begins: list[Any] = []

    def prompt(self, blocks: Any) -> list[Any]:
        """Return a prompt as a message marked with this task."""
        self._begins = [{"role": "user", "content": blocks, "tracking_id": self._id}]
        return self._begins

    async def taken_up(self, prompt: Any, kept: Json | None) -> Any:
        """Return the prompt with which an attempt continues the task in the session.

        ``prompt`` begins the task, or answers its interrupts in ``kept``.
        """
        state = self._agent._interrupt_state
        if kept is not None:
            return await self._answered(prompt, kept["pending"])
        begun = self._last(self._id)
        if state.activated and begun is not None and self._waits_after(begun):
            waiting = [each for each in state.interrupts.values() if each.response is None]
            return {"interrupts": unanswered(waiting), "pending": written(state.to_dict())}
        if state.activated:  # another task waits or left this interrupt; its own context has it
            state.deactivate()
        return prompt if begun is None else None

    async def _answered(self, prompt: Any, pending: Any) -> Any:
        state = self._agent._interrupt_state
        ids = {each["interruptResponse"]["interruptId"] for each in prompt}
        if state.activated and ids <= set(state.interrupts):
            return prompt
        message = (pending.get("pending_tool_execution") or {}).get("assistant_message")
        if message is not None and self._is_settled(message):
            return None  # the answer was used before a crash
        await self._come_last(None if message is None else decode_bytes_values(message))
        self._agent._interrupt_state = type(state).from_dict(decode_bytes_values(pending))
        return prompt

    async def _come_last(self, message: Any) -> None:
        """Repeat the waiting message of the task after the messages of other tasks.

        A session that has lost the message receives it again too.
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
        """Return whether calls of tools have results other than placeholders."""
        at, messages = self._last(message.get("tracking_id")), self._agent.messages
        if at is None or at + 1 >= len(messages):
            return False
        calls = _calls_in(message)
        found = [each for each in messages[at + 1]["content"] if "toolResult" in each]
        ids = {each["toolResult"]["toolUseId"] for each in found}
        return ids == set(calls) and found != generate_missing_tool_result_content(calls)

    def _waits_after(self, begun: int) -> bool:
        """Return whether the message at this position caused the session's interrupt."""
        others = self._agent.messages[begun + 1 :]
        return not any(str(each.get("tracking_id", "")).startswith(TASK) for each in others)

    def _last(self, tracking_id: str | None) -> int | None:
        messages = self._agent.messages
        found = [n for n, each in enumerate(messages) if each.get("tracking_id") == tracking_id]
        return found[-1] if found and tracking_id else None


def _calls_in(message: Any) -> list[str]:
    return [each["toolUse"]["toolUseId"] for each in message["content"] if "toolUse" in each]


class GraphRun(StrandsRun):
    """Runs a graph or a swarm for one turn; it belongs to this turn only.

    Its state is kept at an interrupt and after each node, so a crash repeats only unfinished nodes.
    """

    async def run(self) -> None:
        """Run until all nodes have ended, and show the results of the last nodes."""
        prompt: Any = await prompt_of(self.turn)
        if len(prompt) == 1 and "text" in prompt[0]:
            prompt = prompt[0]["text"]
        self._prompt = prompt
        result = await self.result(prompt)
        if result.status is Status.FAILED:
            for each in result.results.values():
                if isinstance(each.result, Exception):
                    raise each.result
            self.turn.fail("The run reached its limit of nodes, handoffs or time.")
        text = "\n".join(str(result.results[name]).strip() for name in self._last(result))
        await self.output.whole(text)

    async def begin(self, given: Any) -> Any:
        """Load the state after the newest node, or at the newest interrupt."""
        if self.kept is not None:
            self._thing.deserialize_state(decode_bytes_values(self.kept["state"]))
        return given

    async def answers(self, kept: Json) -> Any:
        """Return the responses to interrupts; before any interrupt, the prompt."""
        return await super().answers(kept) if kept["interrupts"] else self._prompt

    async def go(self, given: Any) -> Json:
        """Run until nodes ask, and return the state. Raises ``RunOver`` at the end."""
        result: Any = None
        asked = [] if self.kept is None else self.kept["interrupts"]
        async with aclosing(self._thing.stream_async(given, self._invocation)) as events:
            async for event in events:
                self.check()
                if isinstance(found := event.get("result"), MultiAgentResult):
                    result = found
                    continue
                await self.show(event)
                if event.get("type") == "multiagent_node_stop":
                    await self.keep(self._state_with(asked))
        if result.status is not Status.INTERRUPTED:
            raise RunOver(result)
        return self._state_with(unanswered(result.interrupts))

    def _state_with(self, interrupts: list[Json]) -> Json:
        return {"state": written(self._thing.serialize_state()), "interrupts": interrupts}

    def _last(self, result: Any) -> list[str]:
        """Return the ids of the nodes whose results are the answer: the nodes without
        successors.
        """
        order = getattr(result, "execution_order", None) or getattr(result, "node_history", [])
        names = [each.node_id for each in order]
        followed = {each.from_node.node_id for each in getattr(self._thing, "edges", ())}
        ends = [name for name in dict.fromkeys(names) if name not in followed]
        chosen = ends if followed and ends else names[-1:]
        return [name for name in chosen if name in result.results]
