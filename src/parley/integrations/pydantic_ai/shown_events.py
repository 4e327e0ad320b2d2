"""Events of a run of Pydantic AI as what a turn shows."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.messages import (
    FilePart,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from parley.integrations.pydantic_ai.content import file_of
from parley.llm.model import ModelUsage
from parley.llm.run_output import RunOutput


class ShownRun:
    """Shows the events of a run. Only with ``allows_text`` is what the model says the answer.

    ``counted`` is what the run had used before.
    """

    def __init__(self, output: RunOutput, counted: RunUsage, *, allows_text: bool) -> None:
        self.output = output
        self._counted = usage_of(counted)
        self._allows_text = allows_text
        self._said = ""

    async def begin_message(self) -> None:
        """Let the next message of the model be the answer."""
        self._said = ""
        await self.output.new_message()

    def replied(self, response: ModelResponse, usage: RunUsage) -> None:
        """Note what a request used, with those of agents that tools asked, and how it ended."""
        details = response.provider_details or {}
        ending: str | None = response.finish_reason
        if details and "finish_reason" not in details and "refusal" not in details:
            ending = ""  # the framework takes a stream that broke off for one that ended
        counted, self._counted = self._counted, usage_of(usage)
        self.output.requests.replied(
            self._counted - counted, ending=ending, refusal=str(details.get("refusal") or "")
        )

    async def show(self, event: Any) -> None:
        """Show an event."""
        if isinstance(event, PartStartEvent):
            if isinstance(event.part, TextPart):
                await self._say(event.part.content)
            elif isinstance(event.part, ThinkingPart):
                await self.output.thinking(event.part.content)
        elif isinstance(event, PartDeltaEvent):
            if isinstance(event.delta, TextPartDelta):
                await self._say(event.delta.content_delta)
            elif isinstance(event.delta, ThinkingPartDelta):
                await self.output.thinking(event.delta.content_delta or "")
        elif isinstance(event, PartEndEvent):
            if isinstance(event.part, FilePart):
                await self._show_file(event.part.content)
        elif isinstance(event, FunctionToolCallEvent):
            call = event.part
            await self.output.tool_called(
                call.tool_name, call.args_as_dict(), call_id=call.tool_call_id
            )
        elif isinstance(event, FunctionToolResultEvent):
            result = event.part
            await self.output.tool_returned(
                result.tool_name,
                to_jsonable_python(result.content, serialize_unknown=True, bytes_mode="base64"),
                call_id=result.tool_call_id,
                is_error=getattr(result, "outcome", "success") not in ("success", None),
            )

    async def show_output(self, value: Any, schema: dict[str, Any] | None) -> None:
        """Show what a run returned: text that was not streamed, files, data with its schema."""
        if isinstance(value, str) and schema is None:
            if value != self._said:  # an output function or a validator changed it
                await self.begin_message()
                await self.output.text(value)
            return
        if await self._show_file(value):
            return
        if value is not None:
            data = to_jsonable_python(value, serialize_unknown=True, bytes_mode="base64")
            await self.output.data(data, schema=schema)

    async def _say(self, text: str) -> None:
        if self._allows_text:
            self._said += text
            await self.output.text(text)

    async def _show_file(self, value: Any) -> bool:
        file = file_of(value)
        if file is not None:
            await self.output.file(file)
        return file is not None


def schema_of(value: Any, declared: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the JSON Schema of an output: that of its class, else the declared one."""
    if isinstance(value, str):
        return None
    if hasattr(value, "__pydantic_core_schema__") or hasattr(value, "__dataclass_fields__"):
        return TypeAdapter(type(value)).json_schema()
    return declared


def usage_of(usage: RunUsage) -> ModelUsage:
    """Return what a run used."""
    return ModelUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost=float(getattr(usage, "cost", None) or 0),
        requests=usage.requests,
    )
