"""The runs of one turn: input, checkpoints, questions, events, and the output."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import agents
import msgspec
from agents.agent_output import AgentOutputSchemaBase
from agents.exceptions import ModelTimeoutError
from agents.items import ToolApprovalItem
from agents.result import RunResultStreaming
from agents.run_state import RunState
from agents.stream_events import StreamEvent
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from parley.agent.turn import Turn
from parley.integrations.answers import approval
from parley.integrations.conversations import (
    ContextConversation,
    fits_checkpoint,
    replaced,
    thread_id,
)
from parley.integrations.message_files import InputFile, input_of, part_of_data_url
from parley.integrations.serving import FrameworkRun, RunOver
from parley.llm.model import Json
from parley.llm.remote_skills import RemoteSkill
from parley.llm.run_output import RunOutput
from parley.model.parts import Part
from parley.model.typed.value_type import ValueType

SETTLED = "urn:parley:openai-agents:session"
"""The key of the number of settled items in the session."""

HAS_IT = "urn:parley:openai-agents:agent"
"""The key of the name of the agent that has the conversation, in a context."""

_THINKING = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")


class TurnRun(FrameworkRun):
    """Runs an agent for one turn.

    A run stops after each round of tool calls, and before a call that needs approval; the next run
    continues from its state, also in a later attempt. A call of a remote skill stops the run too
    and is made here, so that the state is kept before a question. All runs have the same context,
    which is kept with the state if it is data.

    Text is held back while a guardrail may still reject it: until the input guardrails have passed,
    and for an agent with output guardrails until the end. Structured output is not shown as text.
    """

    name = "openai-agents"

    def __init__(
        self,
        thing: agents.Agent[Any],
        output: RunOutput,
        *,
        session: Callable[[str], Any] | None,
        context: Callable[[Turn], Any] | None,
        config: agents.RunConfig | None,
        refusal: Callable[[Exception], str] | None,
        **runner: Any,
    ) -> None:
        super().__init__(output)
        turn = self.turn
        self._agent = self._begins = thing
        self._session: Any = None if session is None else session(thread_id(turn))
        self._context = None if context is None else context(turn)
        config = config or agents.RunConfig(workflow_name=thing.name, group_id=thread_id(turn))
        if session is not None and config.session_input_callback is None:
            config = dataclasses.replace(config, session_input_callback=in_pairs)
        self._config = config
        self._runner = {"session": self._session, "run_config": config, **runner}
        self._refusal = refusal
        self._conversation = ContextConversation(
            turn, "urn:parley:openai-agents:messages", max_bytes=MAX_BYTES, shorten=short
        )
        self._has_said = False
        self._speaker = ""
        self._held: list[str] = []

    async def run(self) -> None:
        """Run until there is an output, and show it."""
        item = await input_item(self.turn)
        result = await self.result([item])
        if self._session is None:
            made = [each for each in result.new_items if not isinstance(each, ToolApprovalItem)]
            await self._conversation.add([item, *(each.to_input_item() for each in made)])
        await self._settled()
        if result.last_agent is not self._begins:
            await self.turn.remember(HAS_IT, result.last_agent.name)
        final = result.final_output
        if is_text(result.last_agent) or isinstance(final, str):
            await self._release()
            if not self._has_said and final is not None:
                await self.output.text(final if isinstance(final, str) else str(json_of(final)))
        elif final is not None:
            await self.output.data(json_of(final), schema=schema_of(result.last_agent))

    # -- from one checkpoint to the next -------------------------------------------------------

    async def begin(self, given: Any) -> Any:
        """Begin with the conversation of the context, or cut the session back to the state."""
        name, kept = await self.turn.recall(HAS_IT, ""), self.kept
        known = (each for each in reachable(self._agent) if each.name == name)
        self._begins = next(known, self._agent)
        if self._session is not None:
            length = await self.turn.step(f"{self.name}:session", self._session_length)
            await self._drop_later_than(length if kept is None else kept["length"])
        elif kept is None:
            return [*await self._conversation.earlier(), *given]
        return given

    async def go(self, given: Any) -> Json:
        """Run until a round of tools is done, or calls wait. Raises ``RunOver`` at the end."""
        while True:
            result = await self._followed(given)
            given = result.to_state()
            state = given.to_json(context_serializer=lambda _: {})
            if state.get("current_step") is None:
                raise RunOver(result)
            context, state["context"]["context"] = result.context_wrapper.context, None
            kept = {"state": state, "context": encoded(context)}
            if result.interruptions or fits_checkpoint(kept):
                self._state_now = given
                return {**kept, "length": await self._settled()}

    async def _followed(self, given: Any) -> RunResultStreaming:
        """Run and show events, until a round of tool calls is done, or the end."""
        context = None if isinstance(given, RunState) else self._context
        result = agents.Runner.run_streamed(self._begins, given, context=context, **self._runner)
        try:
            async for event in result.stream_events():
                if await self._show(event, result):
                    result.cancel(mode="after_turn")
        except Exception as error:
            self._reject_tripped(error)
            raise
        finally:
            if not result.is_complete:
                result.cancel()
            if (loop := result.run_loop_task) is not None and not loop.done():
                await asyncio.wait({loop})
        return result

    # -- questions -----------------------------------------------------------------------------

    async def answers(self, kept: Json) -> RunState[Any]:
        """Have the caller approve or reject waiting calls, and make remote calls."""
        state = self._state_now
        if state is None:
            self._context = decoded(kept["context"], self._context)
            state = await RunState.from_json(
                self._agent, kept["state"], context_override=self._context
            )
        waiting = state.get_interruptions()
        skills = [_skill_of(each) for each in waiting]
        pairs = zip(waiting, skills, strict=True)
        await asyncio.gather(*[self._called(item, skill) for item, skill in pairs if skill])
        for number, (item, skill) in enumerate(zip(waiting, skills, strict=True)):
            if skill is not None:
                state.approve(item)
                continue
            asked = item.name or "of the model", item.arguments or "no arguments"
            key = f"{self.name}:{self.number}:{number}"
            decision = await approval(self.turn, *asked, key=key)
            if decision.is_approved:
                state.approve(item)
            else:
                state.reject(item, rejection_message=decision.reason or None)
        return state

    _state_now: RunState[Any] | None = None
    """The state at which the run of this attempt has stopped."""

    async def _called(self, item: ToolApprovalItem, skill: RemoteSkill) -> None:
        try:
            arguments = json.loads(item.arguments or "{}")
        except ValueError:
            arguments = {"message": item.arguments}
        await self.call(skill, skill.name, arguments, str(item.call_id))

    def _reject_tripped(self, error: Exception) -> None:
        """End the turn as REJECTED for a tripwire of a guardrail; do nothing for other errors."""
        for kind, what in _TRIPWIRES.items():
            if isinstance(error, kind):
                guardrail = getattr(error, "guardrail_result", error).guardrail
                self.turn.log.warning("%s", error)
                why = f"The guardrail {guardrail.get_name()} rejects {what}."
                self.turn.reject(why if self._refusal is None else self._refusal(error))

    # -- the session ---------------------------------------------------------------------------

    async def _session_length(self) -> int:
        return len(await self._session.get_items())

    async def _settled(self) -> int:
        """Record the current length of the session, at a question or at the end, and return it."""
        if self._session is None:
            return 0
        length = await self._session_length()
        await self.turn.remember(SETTLED, length)
        return length

    async def _drop_later_than(self, length: int) -> None:
        """Remove a crashed attempt's additions to the session after the checkpoint.

        Later messages of other tasks of the context stay.
        """
        settled = await self.turn.recall(SETTLED, 0)
        for _ in range(await self._session_length() - max(length, settled)):
            await self._session.pop_item()

    # -- what is shown -------------------------------------------------------------------------

    async def _show(self, event: StreamEvent, result: RunResultStreaming) -> bool:
        """Show an event. Return whether it completes a round of tool calls, or a handoff."""
        output = self.output
        if event.type == "raw_response_event":
            data = event.data
            if data.type == "response.output_text.delta" and is_text(result.current_agent):
                self._held.append(data.delta)
                if not self._is_guarded(result):
                    await self._release()
            elif data.type in _THINKING:
                await output.thinking(data.delta)
        elif event.type == "agent_updated_stream_event":
            if self._speaker and self._speaker != event.new_agent.name:
                await self._forget_text()
                await output.step(event.new_agent.name)
            self._speaker = event.new_agent.name
        elif event.name == "tool_called":
            await self._forget_text()
            await self._show_call(event.item)
        elif event.name in ("tool_output", "handoff_occured"):
            if event.name == "tool_output":
                await self._show_result(event.item)
            return True
        return False

    def _is_guarded(self, result: RunResultStreaming) -> bool:
        current, of_all = result.current_agent, self._config
        if current.output_guardrails or of_all.output_guardrails:
            return True
        of_input = [*current.input_guardrails, *(of_all.input_guardrails or ())]
        return len(result.input_guardrail_results) < len(of_input) and not self.output.called

    async def _release(self) -> None:
        """Show the text that was held back: no guardrail has rejected it."""
        text, self._held = "".join(self._held), []
        if text:
            self._has_said = True
            await self.output.text(text)

    async def _forget_text(self) -> None:
        self._held.clear()
        self._has_said = False
        await self.output.new_message()

    async def _show_call(self, item: Any) -> None:
        raw = _raw(item)
        name, call_id = item.tool_name or raw["type"], item.call_id or ""
        if call_id in self.output.called:
            return
        given = raw.get("arguments") or ""
        with suppress(TypeError, ValueError):
            given = json.loads(given)
        await self.output.tool_called(name, given, call_id=call_id)
        if raw["type"] == "image_generation_call":
            made = f"data:image/png;base64,{raw.get('result') or ''}"
            if (part := part_of_data_url(made, "image.png")) is not None:
                await self.output.file(part)

    async def _show_result(self, item: Any) -> None:
        shown = item.output
        made = _raw(item).get("output")  # the form of files that the model reads
        if isinstance(made, list):
            for each in made:
                if (part := _file(each)) is not None:
                    await self.output.file(part)
            texts = [each.get("text", "(a file)") for each in made]
            shown = texts[0] if len(texts) == 1 else texts
        await self.output.tool_returned("", shown, call_id=item.call_id or "")


def reachable(thing: agents.Agent[Any]) -> Iterator[agents.Agent[Any]]:
    """Yield an agent and the agents that it hands off to, each once."""
    seen: set[int] = set()
    todo: list[Any] = [thing]
    while todo:
        each = todo.pop(0)
        if isinstance(each, agents.Handoff):
            each = each._agent_ref and each._agent_ref()
        if isinstance(each, agents.Agent) and id(each) not in seen:
            seen.add(id(each))
            yield each
            todo += each.handoffs


def _skill_of(item: ToolApprovalItem) -> RemoteSkill | None:
    """Return the remote skill of a waiting call, ``None`` for other tools."""
    tools = [each for each in item.agent.tools if each.name == item.name]
    skills = [getattr(getattr(each, "on_invoke_tool", None), "skill", None) for each in tools]
    return next((each for each in skills if isinstance(each, RemoteSkill)), None)


MAX_BYTES = 500_000
"""The size limit of a conversation, in bytes of JSON; above it, the oldest turns are dropped, or
else the files of the newest turn.
"""


def short(items: list[Any]) -> list[Any]:
    """Return items without files; if that is not enough, only their messages."""
    items = [replaced(each, _without_file) for each in items]
    if len(msgspec.json.encode(items)) <= MAX_BYTES:
        return items
    return [each for each in items if each.get("type", "message") == "message"]


def in_pairs(history: list[Any], new: list[Any]) -> list[Any]:
    """Return the input of a run, with each tool result right after its call, as models require.

    Another task of the context may have added to the session while a call waited for an answer.
    """
    results = {
        each["call_id"]: each
        for each in history
        if isinstance(each, dict) and each.get("type") == "function_call_output"
    }
    said: list[Any] = []
    for each in history:
        kind = each.get("type") if isinstance(each, dict) else None
        if kind == "function_call_output" and each["call_id"] not in results:
            continue
        said.append(each)
        if kind == "function_call" and each.get("call_id") in results:
            said.append(results.pop(each["call_id"]))
    return [*said, *new]


def _without_file(value: Json) -> Json | None:
    kind = str(value.get("type"))
    if kind not in ("input_image", "input_file", "input_audio"):
        return None
    return {"type": "input_text", "text": f"(there was a file: {kind.removeprefix('input_')})"}


def _raw(item: Any) -> Json:
    return item.raw_item if isinstance(item.raw_item, dict) else vars(item.raw_item)


def _file(made: Json) -> Part | None:
    """Return the file in a part of a tool's result, ``None`` for other parts."""
    if made.get("type") == "input_image":
        return part_of_data_url(made.get("image_url", ""), "image")
    given = made.get("file_data") or made.get("file_url", "")
    if "file_data" in made and not given.startswith("data:"):
        given = f"data:application/octet-stream;base64,{given}"
    return part_of_data_url(given, made.get("filename", "file"))


async def input_item(turn: Turn) -> Json:
    """Return the message of a turn as a user item: text, images, audio and other files."""
    said = await input_of(turn, turn.message)
    if all(isinstance(each, str) for each in said):
        return {"role": "user", "content": "\n".join(map(str, said))}
    return {"role": "user", "content": [*map(_content, said)]}


def _content(given: str | InputFile) -> Json:
    if isinstance(given, str):
        return {"type": "input_text", "text": given}
    if given.kind == "image":
        return {"type": "input_image", "image_url": given.data_url, "detail": "auto"}
    if given.kind == "audio":
        kind = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}.get(given.subtype, given.subtype)
        return {"type": "input_audio", "input_audio": {"data": given.base64, "format": kind}}
    return {
        "type": "input_file",
        "file_data": given.data_url,
        "filename": given.filename or f"file.{given.subtype}",
    }


_ERRORS = (TypeError, ValueError, RecursionError)


def encoded(context: Any) -> Any:
    """Return a context as JSON, ``None`` if it does not survive a round trip."""
    try:
        kind = ValueType(type(context))
        value = kind.dump(context)
        return value if kind.read(value) == context else None
    except _ERRORS:
        return None


def decoded(value: Any, made: Any) -> Any:
    """Return the context in JSON, or ``made`` if the JSON is of another type."""
    try:
        return ValueType(type(made)).read(value)
    except _ERRORS:
        return made


def is_text(thing: agents.Agent[Any]) -> bool:
    """Return whether an agent's output is plain text."""
    kind = thing.output_type
    if isinstance(kind, AgentOutputSchemaBase):
        return bool(kind.is_plain_text())
    return kind is None or kind is str


def schema_of(thing: agents.Agent[Any]) -> Json | None:
    """Return the JSON Schema of an agent's output, ``None`` for text and for types without one."""
    if is_text(thing):
        return None
    kind = thing.output_type
    try:
        if isinstance(kind, agents.AgentOutputSchema):
            kind = kind.output_type
        elif isinstance(kind, AgentOutputSchemaBase):
            return dict(kind.json_schema())
        return TypeAdapter(kind).json_schema()
    except PydanticUserError:
        return None


def json_of(value: Any) -> Any:
    """Return an output as a JSON value."""
    return TypeAdapter(Any).dump_python(value, mode="json", fallback=str)


_TRIPWIRES = {
    agents.InputGuardrailTripwireTriggered: "the request",
    agents.OutputGuardrailTripwireTriggered: "the answer",
    agents.ToolInputGuardrailTripwireTriggered: "a call of a tool",
    agents.ToolOutputGuardrailTripwireTriggered: "a call of a tool",
}


TOLD = (
    (
        agents.MaxTurnsExceeded,
        "",
        "The agent reached its limit of model requests (max_turns) without an answer.",
    ),
    (ModelTimeoutError, "", "The language model did not answer in time; try again later."),
    (agents.ModelBehaviorError, "", "The reply of the language model could not be used."),
)
