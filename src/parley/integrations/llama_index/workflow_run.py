"""One turn of a workflow or an agent: input, runs, questions and answers, context as JSON."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from functools import reduce
from operator import or_
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
from llama_index.core.workflow import (
    Context,
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StopEvent,
    Workflow,
)
from pydantic import BaseModel, TypeAdapter
from workflows.context import JsonSerializer
from workflows.events import InternalDispatchEvent, StepState, WorkflowIdleEvent
from workflows.handler import WorkflowHandler

from parley.agent.turn import Turn
from parley.engine.typed.value_type import ValueType, data_of
from parley.extensions.questions import schema_part
from parley.integrations.answers import DoesNotFit, ask_until, fitting
from parley.integrations.conversations import (
    ContextConversation,
    ContextState,
    TaskValue,
    fits_checkpoint,
    replaced,
    thread_id,
)
from parley.integrations.llama_index.model_replies import REPLIES
from parley.integrations.message_files import InputFile, input_of
from parley.integrations.serving import CallKeys, RunOver, result_of_steps
from parley.llm.remote_skills import RemoteSkill
from parley.llm.run_output import RunOutput
from parley.model.parts import Message, Part

TEXTS = ("prefix", "message", "msg", "question", "prompt", "text")
"""The fields of an event that may have its question in words; the first one counts."""


class RemoteCallEvent(InputRequiredEvent):  # type: ignore[misc]
    """A workflow stands still for a call of a remote skill, which the turn makes."""

    tool: str
    arguments: dict[str, Any]
    call: str


class Questions:
    """Answers the questions of one turn."""

    def __init__(self, turn: Turn, workflow: Workflow) -> None:
        self._skills = remote_in(workflow)
        self._turn = turn

    async def answers(self, asked: list[dict[str, Any]], number: int) -> list[Any]:
        """Return the events that answer. Equal remote calls are made once, others at once."""
        calls = {each["call"]: each["fields"] for each in asked if "call" in each}
        made = await asyncio.gather(*[self._call(calls[each], each, number) for each in calls])
        results = dict(zip(calls, made, strict=True))
        return [
            results.get(each.get("call")) or await self._ask(each, f"llama-index:{number}:{index}")
            for index, each in enumerate(asked)
        ]

    async def _ask(self, asked: dict[str, Any], key: str) -> Any:
        fields = asked["fields"]
        text = next((fields[name] for name in TEXTS if isinstance(fields.get(name), str)), "")
        given = {name: value for name, value in fields.items() if value != text}
        answers = [_class_of(each) for each in asked["answers"]]
        kinds = [each for each in answers if each.model_fields] or [HumanResponseEvent]
        shown = [Part(data=given, media_type="application/json")] if given else []
        if kinds != [HumanResponseEvent]:
            shown.append(schema_part(ValueType(reduce(or_, kinds)).schema))

        def read(answer: Message) -> Any:
            try:  # steps that wait compare fields of the question, so they come back
                values = given | _fields(kinds, given, answer)
                kind = min(kinds, key=lambda each: len(values.keys() - each.model_fields.keys()))
                return ValueType(kind).read(values)
            except ValueError as error:
                raise DoesNotFit(f"That does not fit: {error}.") from None

        return await ask_until(
            self._turn,
            lambda problem: [Part(text=f"{problem} {text or asked['name']}".strip()), *shown],
            read,
            key=key,
        )

    async def _call(self, fields: dict[str, Any], call: str, number: int) -> Any:
        skill = self._skills.get(fields["tool"])
        if skill is None:
            raise LookupError(f"the tool {fields['tool']!r} is no remote skill any more")
        result = await skill.call(fields["arguments"], key=f"llama-index:{number}:{call}")
        return HumanResponseEvent(response=result.text, is_error=result.is_error, call=call)


def _fields(kinds: list[Any], given: dict[str, Any], answer: Message) -> dict[str, Any]:
    """Return the fields of an event that an answer has, as data or for its only fitting field.

    ``response`` has it, too, if no class has such a field. Raises ``ValueError``.
    """
    data = data_of(answer)
    said = answer.text or data
    fields = {name: each for kind in kinds for name, each in kind.model_fields.items()}
    rest = {} if "response" in fields else {"response": said}
    if isinstance(data, dict):
        return {**rest, **data}
    free = {name: each for name, each in fields.items() if name not in given}
    needed = [name for name, each in free.items() if each.is_required()]
    names = needed or [name for name, each in free.items() if each.annotation is str] or [*free]
    if "response" in names or not names:
        return {"response": said}
    if len(names) > 1:
        raise ValueError(f"send data with {', '.join(names)}")
    return {**rest, names[0]: said}


def described(event: InputRequiredEvent, workflow: Workflow, context: Any) -> dict[str, Any]:
    """Return a question with the classes of events that may answer it.

    ``context`` is that of the run, as JSON. A step of the turn keeps the question, so the fields
    have to be JSON.
    """
    if isinstance(event, RemoteCallEvent):
        fields = {"tool": event.tool, "arguments": event.arguments}
        return {"call": event.call, "fields": fields}
    fields = {**event.model_dump(mode="json"), **dict(event.items())}
    fields.pop("_data", None)
    steps = workflow._get_steps().values()
    taken = [kind for each in steps for kind in each._step_config.accepted_events]
    kinds = [each for each in taken if issubclass(each, HumanResponseEvent)]
    named = waiting_in(context) or [f"{each.__module__}.{each.__name__}" for each in kinds]
    return {"name": type(event).__name__, "fields": fields, "answers": named}


def waiting_in(context: dict[str, Any]) -> list[str]:
    """Return the classes of the events that the steps of a run wait for."""
    return [
        each["waiting_for_event"]
        for worker in context["workers"].values()
        for each in worker["collected_waiters"]
        if each["resolved_event"] is None
    ]


def remote_in(workflow: Workflow) -> dict[str, RemoteSkill]:
    """Return the remote skills that agents of a workflow call, by the names of their tools."""
    found: dict[str, RemoteSkill] = {}
    for agent in agents_of(workflow):
        for tool in [agent, *(getattr(agent, "tools", None) or ())]:
            skill = getattr(tool, "skill", None)
            if isinstance(skill, RemoteSkill):
                found[skill.name] = skill
    return found


def agents_of(workflow: Any) -> list[Any]:
    """Return the agents of a workflow, or the workflow itself."""
    agents = getattr(workflow, "agents", None)
    return [*agents.values()] if isinstance(agents, dict) else [workflow]


def call_id(tool: str, arguments: dict[str, Any]) -> str:
    """Return what identifies a call: equal calls have equal ids."""
    return CallKeys().key("call", [tool, arguments])


def _class_of(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


# -- workflow run -----------------------------------------------------------------------------


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
        self._kept: dict[str, Any] | None = None
        self._context: Any = None

    async def run(self) -> str | None:
        """Run until there is a result, and show it. Returns a further sentence."""
        return await self._finish(await result_of_steps(self._turn, STEP, self))

    async def answers(self, kept: dict[str, Any], number: int) -> list[Any]:
        """Return the events that answer, for a run from the state that asks."""
        self._kept = kept
        return await self._questions.answers(kept["questions"], number)

    # -- from one question to the next ---------------------------------------------------------

    async def begin(
        self, given: list[Any] | None, kept: dict[str, Any] | None, number: int
    ) -> list[Any]:
        """Continue from the state of the newest step, without answers that it has had."""
        self._kept, answers = kept, given or []
        newest = await self._checkpoints.read()
        if newest is not None and newest["number"] == number:
            self._kept = newest
            if not waiting_in(newest["context"]):
                answers = []
        self._output.requests.end_as(self._kept["ending"] if self._kept else "")
        return answers

    async def go(self, given: list[Any], number: int) -> dict[str, Any]:
        """Run until the workflow asks, and return its context. Raises ``RunOver``."""
        self._answers, kept = given, self._kept
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
        return {**self._state_kept(state), "questions": questions}

    async def _checkpoint(self, number: int) -> None:
        state = self._state()
        if state["is_running"] and fits_checkpoint(state):
            await self._checkpoints.write({**self._state_kept(state), "number": number})

    def _state_kept(self, state: dict[str, Any]) -> dict[str, Any]:
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
    """Return messages with words in place of files."""

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
