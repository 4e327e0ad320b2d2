"""One turn of a workflow or an agent: input, runs between questions, context as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from llama_index.core.agent.workflow import (
    AgentInput,
    AgentOutput,
    AgentStream,
    AgentWorkflow,
    ToolCall,
    ToolCallResult,
)
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.llms import AudioBlock, ChatMessage, DocumentBlock, ImageBlock, TextBlock
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer
from llama_index.core.workflow import Context, Event, InputRequiredEvent, StopEvent, Workflow
from pydantic import BaseModel, TypeAdapter
from workflows.context import JsonSerializer
from workflows.events import InternalDispatchEvent, StepState, WorkflowIdleEvent
from workflows.handler import WorkflowHandler

from parley.agent.turn import Turn
from parley.integrations.answers import fitting
from parley.integrations.conversations import (
    CHECKPOINT_BYTES,
    ContextConversation,
    ContextState,
    TaskValue,
    replaced,
    thread_id,
)
from parley.integrations.llama_index.model_replies import REPLIES
from parley.integrations.llama_index.questions import Questions, agents_of, described, waiting_in
from parley.integrations.message_files import InputFile, input_of
from parley.integrations.serving import RunOver, result_of_steps
from parley.llm.run_output import RunOutput

STEP = "llama-index"
MESSAGES = "urn:parley:llama-index:messages"
STATE = "urn:parley:llama-index:state"
CHECKPOINT = "urn:parley:llama-index:checkpoint"


QUIET_SECONDS = 0.05
"""For how long no event comes of a workflow that stands still, and waits for none in a step."""


class WorkflowRun:
    """Runs a workflow for one turn.

    Its context at a question is a step of the task. Its context after each step is kept until the
    task ends, so a crash repeats the steps that had not ended. When it has ended, its additions to
    the memory and its changes in the store are added to the context.
    """

    def __init__(
        self,
        workflow: Workflow,
        turn: Turn,
        output: RunOutput,
        memory: Callable[[str], Any] | None,
        schema: dict[str, Any] | None,
    ) -> None:
        self._workflow = workflow
        self._turn = turn
        self._output = output
        self._schema = schema
        self._display = _Display(output)
        self._questions = Questions(turn, workflow)
        self._memory = None if memory is None else memory(thread_id(turn))
        self._is_agent = isinstance(workflow, AgentWorkflow | BaseWorkflowAgent)
        self._serializer = ContextSerializer(
            getattr(agents_of(workflow)[0], "llm", None), self._memory
        )
        self._checkpoints = TaskValue(turn, CHECKPOINT)
        self._conversation = ContextConversation(turn, MESSAGES, shorten=without_files)
        self._store = ContextState(turn, STATE)
        self._before: dict[str, Any] = {}
        self._answers: list[Any] = []
        self._is_live = False
        self._context: Any = None

    async def run(self) -> str | None:
        """Run until there is a result, and show it. Returns a further sentence."""
        return await self._finish(await result_of_steps(self._turn, STEP, self._go, self._answered))

    async def _answered(self, kept: dict[str, Any], number: int) -> list[Any]:
        return await self._questions.answers(kept["questions"], number)

    # -- from one question to the next ---------------------------------------------------------

    async def _go(
        self, answers: list[Any] | None, kept: dict[str, Any] | None, number: int
    ) -> dict[str, Any]:
        """Run until the workflow asks, and return its context. Raises ``RunOver``."""
        self._answers = answers or []
        if not self._is_live:
            self._is_live = True
            newest = await self._checkpoints.read()
            if newest is not None and newest["number"] == number:
                kept = newest
                if not waiting_in(kept["context"]):
                    self._answers = []  # the checkpoint has had them
            self._output.requests.end_as(kept["ending"] if kept else "")
        handler = await self._started(kept)
        pending: list[InputRequiredEvent] = []
        events = handler.stream_events(expose_internal=True)
        upcoming: asyncio.Task[Any] | None = None
        try:
            if kept is None or not waiting_in(kept["context"]):
                self._send()
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(events, None))
                if (pending or self._answers) and self._is_still():
                    # Steps that wait without requirements do not run again.
                    done, _ = await asyncio.wait({upcoming}, timeout=QUIET_SECONDS)
                    if not done and not self._send():
                        return self._asked(pending)
                event, upcoming = await upcoming, None
                REPLIES.get().check()
                if event is None or isinstance(event, StopEvent):
                    break
                if isinstance(event, InputRequiredEvent):
                    pending.append(event)
                elif isinstance(event, WorkflowIdleEvent):
                    # The steps that wait have run up to where they wait.
                    if not self._send() and pending:
                        return self._asked(pending)
                else:
                    await self._display.show(event)
                    state = getattr(event, "step_state", None)
                    if state is StepState.NOT_RUNNING and not self._answers:
                        await self._checkpoint(number)
            raise RunOver(await handler)
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.wait({upcoming})
            await events.aclose()
            if not handler.is_done():
                await handler.cancel_run()

    async def _started(self, kept: dict[str, Any] | None) -> WorkflowHandler:
        workflow: Any = self._workflow
        if kept is not None:
            if self._memory is None:
                self._conversation.resume(kept["conversation"], parts_of(kept["context"]).messages)
                self._before = kept["before"]
            self._context = self._read(kept["context"])
            return workflow.run(ctx=self._context)
        self._context = await self._first_context()
        if not self._is_agent:
            event = await start_event(self._turn, workflow.start_event_class)
            return workflow.run(ctx=self._context, start_event=event)
        message = await chat_message(self._turn)
        more = {} if self._memory is None else {"memory": self._memory}
        return workflow.run(user_msg=message, ctx=self._context, **more)

    async def _first_context(self) -> Context:
        """Return a context with the state that ended tasks have left."""
        self._context = new = Context(self._workflow)
        if self._memory is not None:
            return new
        messages = await self._conversation.earlier()
        self._before = await self._store.read()
        if not messages and not self._before:
            return new
        state = self._state()
        state["state"] = written_state(Kept(messages, self._before), state["state"])
        return self._read(state)

    def _send(self) -> bool:
        """Send the answers that the workflow has not had, and return whether there were any."""
        answers, self._answers = self._answers, []
        for each in answers:
            self._context.send_event(each)
        return bool(answers)

    # -- the state -----------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(json.dumps(self._context.to_dict(self._serializer)))
        return state

    def _read(self, state: dict[str, Any]) -> Context:
        return Context.from_dict(self._workflow, state, self._serializer)

    def _is_still(self) -> bool:
        """Return whether no step runs, and none is about to."""
        state = self._state()
        workers = state["workers"].values()
        return (
            bool(state["is_running"])
            and not state.get("deliveries")
            and not any(each["queue"] or each["in_progress"] for each in workers)
        )

    def _asked(self, pending: list[InputRequiredEvent]) -> dict[str, Any]:
        state = self._state()
        questions = [described(each, self._workflow, state) for each in pending]
        return {**self._kept(state), "questions": questions}

    async def _checkpoint(self, number: int) -> None:
        state = self._state()
        if state["is_running"] and len(msgspec.json.encode(state)) <= CHECKPOINT_BYTES:
            kept = {**self._kept(state), "number": number}
            await self._checkpoints.write(kept)

    def _kept(self, state: dict[str, Any]) -> dict[str, Any]:
        kept = {"context": state, "ending": self._output.requests.ending}
        if self._memory is None:
            kept["conversation"] = self._conversation.mark(parts_of(state).messages)
            kept["before"] = self._before
        return kept

    # -- the end -------------------------------------------------------------------------------

    async def _finish(self, result: Any) -> str | None:
        if self._memory is None:
            kept = parts_of(self._state())
            await self._conversation.finish(kept.messages)
            await self._store.write(self._before, kept.state)
        text, data, schema = _result_of(result)
        if data is None and self._is_agent and self._schema is not None:
            self._turn.fail("The reply of the model could not be used.")
        if data is not None:
            await self._output.data(data, schema=self._schema or schema)
        elif text and not self._output.said:
            await self._output.text(text)
        elif not self._is_agent and not self._output.requests.has_said:
            return "The workflow ended without a result."
        return None


def _result_of(result: Any) -> tuple[str, Any, dict[str, Any] | None]:
    """Return the text of a result, its data (``None`` without), and the schema of the data."""
    if isinstance(result, AgentOutput):
        return result.response.content or "", result.structured_response, None
    if isinstance(result, ChatMessage):
        result = result.content
    if isinstance(getattr(result, "source_nodes", None), list):
        result = str(result)
    if result is None or isinstance(result, str):
        return result or "", None, None
    if isinstance(result, BaseModel):
        schema = None if type(result) is StopEvent else type(result).model_json_schema()
        return "", result.model_dump(mode="json"), schema
    if isinstance(result, dict | list | int | float | bool):
        return "", TypeAdapter(Any).dump_python(result, mode="json", fallback=str), None
    return str(result), None, None


class _Display:
    """Shows events: tokens, tool calls, agents that take over, events of the author's own."""

    def __init__(self, output: RunOutput) -> None:
        self._output = output
        self._agent = ""

    async def show(self, event: Event) -> None:
        """Show an event, or nothing of it."""
        name = getattr(event, "current_agent_name", None)
        if isinstance(name, str) and name and name != self._agent:
            if self._agent:
                await self._output.new_message()
                await self._output.step(name)
            self._agent = name
        if isinstance(event, AgentStream):
            if event.thinking_delta:
                await self._output.thinking(event.thinking_delta)
            await self._output.text(event.delta)
        elif isinstance(event, AgentInput):  # the model is asked, perhaps again
            await self._output.new_message()
        elif isinstance(event, ToolCall):
            await self._output.tool_called(
                event.tool_name, event.tool_kwargs, call_id=event.tool_id
            )
        elif isinstance(event, ToolCallResult):
            result = event.tool_output
            await self._output.tool_returned(
                event.tool_name, result.content, call_id=event.tool_id, is_error=result.is_error
            )
        elif _is_own(event):
            await self._output.step(type(event).__name__, event.model_dump(mode="json"))


def _is_own(event: Event) -> bool:
    """Return whether an event is of the author's own: not one of the framework."""
    if isinstance(event, InternalDispatchEvent | StopEvent | InputRequiredEvent):
        return False
    return not type(event).__module__.startswith(("llama_index.", "workflows."))


MEMBER = "__parley_memory__"
MEMORY = f'{{"{MEMBER}":'

FILES = {"image": "(an image)", "audio": "(an audio recording)", "document": "(a document)"}


class Kept(NamedTuple):
    """The kept part of a context: the messages of the agent's memory, and the rest of its store."""

    messages: list[Any]
    state: dict[str, Any]


def parts_of(context: dict[str, Any]) -> Kept:
    """Return the kept part of a context, which is given as JSON."""
    state = dict(context["state"])
    data = state.get("state_data")
    if isinstance(data, str):  # of a class of the author's
        return Kept([], {**state, "state_data": json.loads(data)})
    values = {name: json.loads(value) for name, value in (data or {}).get("_data", {}).items()}
    messages: list[Any] = []
    if isinstance(memory := values.get("memory"), dict) and MEMBER in memory:
        messages = values.pop("memory")[MEMBER]
    return Kept(messages, {**state, "state_data": {"_data": values}})


def written_state(kept: Kept, new: dict[str, Any]) -> dict[str, Any]:
    """Return the store of a context as the framework reads it; ``new`` is that of a new context."""
    state = {**new, **kept.state}
    data = state["state_data"]
    if not isinstance(data, dict) or set(data) != {"_data"}:
        return {**state, "state_data": json.dumps(data)}
    values = {name: json.dumps(value) for name, value in data["_data"].items()}
    if kept.messages:
        values["memory"] = json.dumps({MEMBER: kept.messages}, separators=(",", ":"))
    return {**state, "state_data": {"_data": values}}


def without_files(messages: list[Any]) -> list[Any]:
    """Return messages in which files are words that say what was there."""

    def words(block: dict[str, Any]) -> Any | None:
        text = FILES.get(str(block.get("block_type")))
        return None if text is None else {"block_type": "text", "text": text}

    found: list[Any] = replaced(messages, words)
    return found


class ContextSerializer(JsonSerializer):  # type: ignore[misc]
    """Writes the memory of an agent as its messages, all else as the framework does.

    ``memory`` is that of the author, which keeps its messages by itself; without it they are read
    into a buffer within the limits of ``llm``.
    """

    def __init__(self, llm: Any, memory: BaseMemory | None) -> None:
        super().__init__()
        self._llm = llm
        self._memory = memory

    def serialize(self, value: Any) -> str:
        """Return a value as JSON text. Raises ``ValueError`` for one that has no JSON form."""
        if not isinstance(value, BaseMemory):
            return str(super().serialize(value))
        kept = self._memory is not None
        messages = [] if kept else [each.model_dump(mode="json") for each in value.get_all()]
        return f"{MEMORY}{msgspec.json.encode(messages).decode()}}}"

    def deserialize(self, value: str) -> Any:
        """Return the value of JSON text."""
        if not (isinstance(value, str) and value.startswith(MEMORY)):
            return super().deserialize(value)
        if self._memory is not None:
            return self._memory
        said = msgspec.json.decode(value)[MEMBER]
        messages = [ChatMessage.model_validate(each) for each in said]
        return ChatMemoryBuffer.from_defaults(chat_history=messages, llm=self._llm)


async def chat_message(turn: Turn) -> str | ChatMessage:
    """Return the message that began the task as text, or as a chat message if it has files."""
    given = await input_of(turn, turn.message)
    blocks = [TextBlock(text=each) if isinstance(each, str) else _block(each) for each in given]
    if all(isinstance(each, TextBlock) for each in blocks):
        return "\n".join(each.text for each in blocks)
    return ChatMessage(role="user", blocks=blocks)


def _block(file: InputFile) -> Any:
    if file.kind == "image":
        return ImageBlock(image=file.content, image_mimetype=file.media_type)
    if file.kind == "audio":
        return AudioBlock(
            audio=file.content, format={"mpeg": "mp3"}.get(file.subtype, file.subtype)
        )
    return DocumentBlock(
        data=file.content,
        title=file.filename or f"file.{file.subtype}",
        document_mimetype=file.media_type,
    )


async def start_event(turn: Turn, kind: Any) -> Any:
    """Return the start event of the class that a workflow takes: the data of a message, its text.

    The text is the first field of the class that takes a string and has no value yet, else
    ``input``. A message that does not fit ends the task as REJECTED.
    """
    message = turn.message
    values: dict[str, Any] = {}
    for part in message.parts:
        if isinstance(part.data, dict):
            values |= part.data
    if message.text:
        free = [name for name, each in kind.model_fields.items() if each.annotation is str]
        name = next((each for each in free if each not in values), "input")
        values.setdefault(name, message.text)
    given = await input_of(turn, message, reads_texts=False)
    if files := [each for each in given if isinstance(each, InputFile)]:
        values.setdefault("files", [msgspec.to_builtins(each) for each in files])
    return fitting(turn, kind, values)
