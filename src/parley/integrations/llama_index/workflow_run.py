"""One turn of a workflow or an agent: input, runs, questions and answers, context as JSON."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

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

from parley.agent.turn import Turn
from parley.extensions.questions import schema_part
from parley.integrations.answers import DoesNotFit, ask_until, fitting
from parley.integrations.conversations import (
    ContextConversation,
    ContextState,
    fits_checkpoint,
    replaced,
    thread_id,
)
from parley.integrations.llama_index.model_replies import REPLIES
from parley.integrations.message_files import InputFile, input_of
from parley.integrations.serving import CallKeys, FrameworkRun, RunOver
from parley.llm.model import Json
from parley.llm.remote_skills import RemoteSkill
from parley.llm.run_output import RunOutput
from parley.model.parts import Message, Part
from parley.model.typed.value_type import ValueType, data_of

TEXTS = ("prefix", "message", "msg", "question", "prompt", "text")
"""The fields of an event that may hold its question in words, in order of precedence."""


class RemoteCallEvent(InputRequiredEvent):  # type: ignore[misc]
    """Suspends a workflow for a call of a remote skill, which the turn makes."""

    tool: str
    arguments: Json
    call: str


def call_id(tool: str, arguments: Json) -> str:
    """Return the identity of a call: equal calls have equal ids."""
    return CallKeys().key("call", [tool, arguments])


QUIET_SECONDS = 0.05
"""How long no event may come before a workflow counts as idle, if no step waits for an event."""


class WorkflowRun(FrameworkRun):
    """Runs a workflow for one turn.

    Its context is kept at a question and after each step, so a crash repeats only unfinished steps.
    At its end, its additions to the memory and its changes in the store are added to the context of
    the turn.
    """

    name = "llama-index"

    def __init__(
        self,
        workflow: Workflow,
        output: RunOutput,
        memory: Callable[[str], Any] | None,
        schema: Json | None,
    ) -> None:
        super().__init__(output)
        self._workflow: Any = workflow
        self._schema = schema
        self._memory = None if memory is None else memory(thread_id(self.turn))
        self._is_agent = isinstance(workflow, AgentWorkflow | BaseWorkflowAgent)
        agents = getattr(workflow, "agents", None)
        self._agents = [*agents.values()] if isinstance(agents, dict) else [workflow]
        llm = getattr(self._agents[0], "llm", None)
        self._serializer = ContextSerializer(llm, self._memory)
        self._conversation = ContextConversation(
            self.turn, "urn:parley:llama-index:messages", shorten=without_files
        )
        self._store = ContextState(self.turn, "urn:parley:llama-index:state")
        self._before: Json = {}
        self._answers: list[Any] = []
        self._asked: list[Json] = []
        self._speaker = ""

    async def run(self) -> str | None:
        """Run until there is a result, and show it. Returns a closing sentence if there is none."""
        result = await self.result()
        if self._memory is None:
            messages, state = parts_of(self._state_now())
            await self._conversation.finish(messages)
            await self._store.write(self._before, state)
        text, data, schema = _result_of(result)
        if data is not None:
            await self.output.data(data, schema=self._schema or schema)
        elif self._is_agent and self._schema is not None:
            self.turn.fail("The reply of the model could not be used.")
        elif text and not self.output.said:
            await self.output.text(text)
        elif not self._is_agent and not self.requests.has_said:
            return "The workflow ended without a result."
        return None

    # -- questions -----------------------------------------------------------------------------

    async def answers(self, kept: Json) -> list[Any]:
        """Return the events that answer. Equal remote calls are made once, different calls
        concurrently.
        """
        asked = kept["questions"]
        calls = {each["call"]: each["fields"] for each in asked if "call" in each}
        await asyncio.gather(*[self._called(call, **calls[call]) for call in calls])
        return [
            self._response(each["call"]) if "call" in each else await self._answer(each, index)
            for index, each in enumerate(asked)
        ]

    async def _called(self, call: str, tool: str, arguments: Json) -> None:
        tools = [each for agent in self._agents for each in (agent, *_tools_of(agent))]
        skills = [getattr(each, "skill", None) for each in tools]
        found = (each for each in skills if isinstance(each, RemoteSkill) and each.name == tool)
        await self.call(next(found, None), tool, arguments, call)

    def _response(self, call: str) -> Any:
        result = self.results[call]
        return HumanResponseEvent(response=result.text, is_error=result.is_error, call=call)

    async def _answer(self, asked: Json, index: int) -> Any:
        fields = asked["fields"]
        text = next((fields[name] for name in TEXTS if isinstance(fields.get(name), str)), "")
        given = {name: value for name, value in fields.items() if value != text}
        answers = [_class_of(each) for each in asked["answers"]]
        kinds = [each for each in answers if each.model_fields] or [HumanResponseEvent]
        shown = [Part(data=given, media_type="application/json")] if given else []
        if kinds != [HumanResponseEvent]:
            shown.append(schema_part(ValueType(reduce(or_, kinds)).schema))

        def read(answer: Message) -> Any:
            try:  # waiting steps compare fields of the question, so the answer repeats them
                values = given | _fields(kinds, given, answer)
                kind = min(kinds, key=lambda each: len(values.keys() - each.model_fields.keys()))
                return ValueType(kind).read(values)
            except ValueError as error:
                raise DoesNotFit(f"That does not fit: {error}.") from None

        return await ask_until(
            self.turn,
            lambda problem: [Part(text=f"{problem} {text or asked['name']}".strip()), *shown],
            read,
            key=f"{self.name}:{self.number}:{index}",
        )

    def _question(self, event: InputRequiredEvent, state: Json) -> Json:
        """Return a question with the classes of events that may answer it. It must be JSON."""
        if isinstance(event, RemoteCallEvent):
            fields = {"tool": event.tool, "arguments": event.arguments}
            return {"call": event.call, "fields": fields}
        fields = {**event.model_dump(mode="json"), **dict(event.items())}
        fields.pop("_data", None)
        steps = self._workflow._get_steps().values()
        taken = [kind for each in steps for kind in each._step_config.accepted_events]
        kinds = [each for each in taken if issubclass(each, HumanResponseEvent)]
        named = waiting_in(state) or [f"{each.__module__}.{each.__name__}" for each in kinds]
        return {"name": type(event).__name__, "fields": fields, "answers": named}

    # -- from one question to the next ---------------------------------------------------------

    async def begin(self, given: list[Any] | None) -> list[Any]:
        """Return the answers that the workflow has not received."""
        self.requests.end_as(self.kept["ending"] if self.kept else "")
        return given or []

    async def go(self, given: list[Any]) -> Json:
        """Run until the workflow asks, and return its context. Raises ``RunOver``."""
        self._answers, kept = given, self.kept
        self._asked = kept["questions"] if kept else []
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
                        return self._asking(pending)
                event, upcoming = await upcoming, None
                REPLIES.get().check()
                if event is None or isinstance(event, StopEvent):
                    break
                if isinstance(event, InputRequiredEvent):
                    pending.append(event)
                elif isinstance(event, WorkflowIdleEvent):
                    # The waiting steps have run up to their wait.
                    if not self._send() and pending:
                        return self._asking(pending)
                else:
                    await self._show(event)
                    state = getattr(event, "step_state", None)
                    if state is StepState.NOT_RUNNING and not self._answers:
                        await self._checkpoint()
            raise RunOver(await handler)
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.wait({upcoming})
            await events.aclose()
            if not handler.is_done():
                await handler.cancel_run()

    async def _started(self, kept: Json | None) -> Any:
        workflow, memory = self._workflow, self._memory
        if kept is not None:
            if memory is None:
                self._conversation.resume(kept["conversation"], parts_of(kept["context"])[0])
                self._before = kept["before"]
            self._context = self._read(kept["context"])
            return workflow.run(ctx=self._context)
        self._context = Context(workflow)
        if memory is None:
            messages, self._before = await self._conversation.earlier(), await self._store.read()
            if messages or self._before:
                state = self._state_now()
                state["state"] = written_state(messages, self._before, state["state"])
                self._context = self._read(state)
        if not self._is_agent:
            event = await start_event(self.turn, workflow.start_event_class)
            return workflow.run(ctx=self._context, start_event=event)
        more = {} if memory is None else {"memory": memory}
        return workflow.run(user_msg=await chat_message(self.turn), ctx=self._context, **more)

    def _send(self) -> bool:
        """Send the answers that the workflow has not received, and return whether there
        were any.
        """
        answers, self._answers = self._answers, []
        for each in answers:
            self._context.send_event(each)
        return bool(answers)

    # -- the state -----------------------------------------------------------------------------

    def _state_now(self) -> Json:
        state: Json = json.loads(json.dumps(self._context.to_dict(self._serializer)))
        return state

    def _read(self, state: Json) -> Context:
        return Context.from_dict(self._workflow, state, self._serializer)

    def _is_still(self) -> bool:
        """Return whether no step runs, and none is about to."""
        state = self._state_now()
        workers = state["workers"].values()
        return (
            bool(state["is_running"])
            and not state.get("deliveries")
            and not any(each["queue"] or each["in_progress"] for each in workers)
        )

    def _asking(self, pending: list[InputRequiredEvent]) -> Json:
        state = self._state_now()
        return self._kept_of(state, [self._question(each, state) for each in pending])

    async def _checkpoint(self) -> None:
        """Keep the context, and the question if a step still waits for the answer."""
        state = self._state_now()
        if state["is_running"] and fits_checkpoint(state):
            await self.keep(self._kept_of(state, self._asked if waiting_in(state) else []))

    def _kept_of(self, state: Json, questions: list[Json]) -> Json:
        kept = {"context": state, "ending": self.requests.ending, "questions": questions}
        if self._memory is None:
            kept["conversation"] = self._conversation.mark(parts_of(state)[0])
            kept["before"] = self._before
        return kept

    # -- what is shown -------------------------------------------------------------------------

    async def _show(self, event: Event) -> None:
        """Show tokens, tool calls, handoffs between agents, and the author's own events."""
        output, name = self.output, getattr(event, "current_agent_name", None)
        if isinstance(name, str) and name and name != self._speaker:
            if self._speaker:
                await output.new_message()
                await output.step(name)
            self._speaker = name
        if isinstance(event, AgentStream):
            if event.thinking_delta:
                await output.thinking(event.thinking_delta)
            await output.text(event.delta)
        elif isinstance(event, AgentInput):  # the model is asked, perhaps again
            await output.new_message()
        elif isinstance(event, ToolCall):
            await output.tool_called(event.tool_name, event.tool_kwargs, call_id=event.tool_id)
        elif isinstance(event, ToolCallResult):
            result = event.tool_output
            await output.tool_returned(
                event.tool_name, result.content, call_id=event.tool_id, is_error=result.is_error
            )
        elif not (
            isinstance(event, InternalDispatchEvent | StopEvent | InputRequiredEvent)
            or type(event).__module__.startswith(("llama_index.", "workflows."))
        ):
            await output.step(type(event).__name__, event.model_dump(mode="json"))


def _tools_of(agent: Any) -> Any:
    return getattr(agent, "tools", None) or ()


def _fields(kinds: list[Any], given: Json, answer: Message) -> Json:
    """Return the fields of an event from an answer: its data, or its text in the only matching
    field.

    ``response`` has it as well, if no class has such a field. Raises ``ValueError``.
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


def waiting_in(context: Json) -> list[str]:
    """Return the classes of the events that the steps of a run await."""
    return [
        each["waiting_for_event"]
        for worker in context["workers"].values()
        for each in worker["collected_waiters"]
        if each["resolved_event"] is None
    ]


def _class_of(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _result_of(result: Any) -> tuple[str, Any, Json | None]:
    """Return the text of a result, its data (``None`` without), and the schema of the data."""
    if isinstance(result, AgentOutput):
        return result.response.content or "", result.structured_response, None
    if isinstance(result, ChatMessage):
        result = result.content
    if isinstance(getattr(result, "source_nodes", None), list):
        result = str(result)
    if isinstance(result, BaseModel):
        schema = None if type(result) is StopEvent else type(result).model_json_schema()
        return "", result.model_dump(mode="json"), schema
    if isinstance(result, dict | list | int | float | bool):
        return "", TypeAdapter(Any).dump_python(result, mode="json", fallback=str), None
    return "" if result is None else str(result), None, None


MEMBER = "__parley_memory__"
MEMORY = f'{{"{MEMBER}":'

FILES = {"image": "(an image)", "audio": "(an audio recording)", "document": "(a document)"}


def parts_of(context: Json) -> tuple[list[Any], Json]:
    """Return the stored part of a context in JSON form: the messages of the agent's memory, and the
    rest of its store.
    """
    state = dict(context["state"])
    data = state.get("state_data")
    if isinstance(data, str):  # an object of the author's class
        return [], {**state, "state_data": json.loads(data)}
    values = {name: json.loads(value) for name, value in (data or {}).get("_data", {}).items()}
    messages: list[Any] = []
    if isinstance(memory := values.get("memory"), dict) and MEMBER in memory:
        messages = values.pop("memory")[MEMBER]
    return messages, {**state, "state_data": {"_data": values}}


def written_state(messages: list[Any], kept: Json, new: Json) -> Json:
    """Return the store of a context in the framework's format; ``new`` is the store of a new
    context.
    """
    state = {**new, **kept}
    data = state["state_data"]
    if not isinstance(data, dict) or set(data) != {"_data"}:
        return {**state, "state_data": json.dumps(data)}
    values = {name: json.dumps(value) for name, value in data["_data"].items()}
    if messages:
        values["memory"] = json.dumps({MEMBER: messages}, separators=(",", ":"))
    return {**state, "state_data": {"_data": values}}


def without_files(messages: list[Any]) -> list[Any]:
    """Return messages with placeholders instead of files."""

    def words(block: Json) -> Any | None:
        text = FILES.get(str(block.get("block_type")))
        return None if text is None else {"block_type": "text", "text": text}

    found: list[Any] = replaced(messages, words)
    return found


class ContextSerializer(JsonSerializer):  # type: ignore[misc]
    """Serializes the memory of an agent as its messages, everything else as the framework does.

    ``memory`` is the author's own memory, which stores its messages itself; without it they are
    loaded into a buffer within the limits of ``llm``.
    """

    def __init__(self, llm: Any, memory: BaseMemory | None) -> None:
        super().__init__()
        self._llm = llm
        self._memory = memory

    def serialize(self, value: Any) -> str:
        """Return a value as JSON text. Raises ``ValueError`` for a value without a JSON form."""
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
    if all(isinstance(each, str) for each in given):
        return "\n".join(map(str, given))
    return ChatMessage(role="user", blocks=[*map(_block, given)])


def _block(given: str | InputFile) -> Any:
    if isinstance(given, str):
        return TextBlock(text=given)
    kind = given.subtype
    if given.kind == "image":
        return ImageBlock(image=given.content, image_mimetype=given.media_type)
    if given.kind == "audio":
        return AudioBlock(audio=given.content, format={"mpeg": "mp3"}.get(kind, kind))
    title = given.filename or f"file.{kind}"
    return DocumentBlock(data=given.content, title=title, document_mimetype=given.media_type)


async def start_event(turn: Turn, kind: Any) -> Any:
    """Return the start event of a workflow's class, from the data of a message, or from its text.

    The text fills the first string field of the class without a value, else ``input``. A message
    that does not match ends the task as REJECTED.
    """
    message = turn.message
    values: Json = {}
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
