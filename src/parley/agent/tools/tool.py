"""Tools that models can choose and call by name, and sources of tools."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import msgspec

from parley.extensions.usage import Spent
from parley.model.parts import Part
from parley.observe import tracing


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool: parts for people and models, and a JSON value if it has one.

    ``is_error``: the call failed, and the parts have the reason. ``spent`` is the cost of the call,
    if known.
    """

    parts: tuple[Part, ...] = ()
    data: Any = None
    is_error: bool = False
    spent: Spent = Spent()

    @property
    def ok(self) -> bool:
        """True unless the call failed."""
        return not self.is_error

    @property
    def files(self) -> tuple[Part, ...]:
        """The parts that are files."""
        return tuple([part for part in self.parts if part.is_file])

    @property
    def text(self) -> str:
        """The text of its parts, or its data as JSON if there is none."""
        text = "\n".join(part.text for part in self.parts if isinstance(part.text, str))
        if text or self.data is None:
            return text
        return msgspec.json.encode(self.data).decode()


def failed(why: str) -> ToolResult:
    """Return the result of a call that failed."""
    return ToolResult(parts=(Part(text=why),), is_error=True)


class Tool(Protocol):
    """A function that can be called by name. ``parameters`` is the JSON Schema of its arguments."""

    @property
    def name(self) -> str:
        """The name for calls: letters, digits, ``_`` and ``-``, at most 64."""
        ...

    @property
    def description(self) -> str:
        """Its purpose, for the model that chooses."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of its arguments, an object."""
        ...

    async def call(self, arguments: Mapping[str, Any], *, key: str) -> ToolResult:
        """Call the tool. ``key`` identifies the call within its turn, so that it is executed once.

        Raises errors that fail the turn; an error for the model is a result with ``is_error``. A
        tool with ``remembers_calls = True`` finds the result of an earlier attempt itself.
        """
        ...


class ToolsUnavailable(Exception):
    """A source has no tools now. A model gets a note, and answers without them."""


@runtime_checkable
class ToolSource(Protocol):
    """A source of tools for turns, such as a connection: ``turn.tools(source)``.

    ``name``, if set, becomes the prefix of tool names that occur in two sources. ``extra`` is the
    extra of Parley that the source needs. Turns share resources made by ``turn.shared``.
    """

    def open_tools(self, turn: Any) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Open the tools for a ``Turn``, and close them with the block.

        Raises ``ToolsUnavailable``.
        """
        ...


def source_name(source: object) -> str:
    """Return the name of a source, by default the name of its class."""
    return str(getattr(source, "name", "") or type(source).__name__)


_NO_OPTIONS: Mapping[str, Any] = {}


async def call_once(
    turn: Any,
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    key: str,
    call_id: str = "",
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> ToolResult:
    """Call a tool once in the life of the task: later attempts get the result from the log."""

    async def call_tool() -> ToolResult:
        called = tool.call(arguments, key=key, **options)
        return await in_span(called, tool.name, arguments, call_id)

    if getattr(tool, "remembers_calls", False):
        return await call_tool()
    result: ToolResult = await turn.step(f"{key}:result", call_tool)
    return result


async def in_span(
    called: Awaitable[ToolResult], name: str, arguments: Mapping[str, Any], call_id: str
) -> ToolResult:
    """Return the result of a call of a tool, which has a span if there is tracing."""
    if tracing.tracer is None:
        return await called
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    if call_id:
        attributes["gen_ai.tool.call.id"] = call_id
    if tracing.records_content:
        attributes["gen_ai.tool.call.arguments"] = msgspec.json.encode(arguments).decode()
    with tracing.spanned(f"execute_tool {name}", attributes=attributes) as span:
        result = await called
        if span is not None and result.is_error:
            span.set_attribute("error.type", "tool_error")
        if span is not None and tracing.records_content:
            span.set_attribute("gen_ai.tool.call.result", result.text or str(result.data))
        return result


NAME_LENGTH = 64
"""The maximum length of a tool's name, set by models."""


def tool_name(text: str, default: str = "tool") -> str:
    """Return a text as the name of a tool: letters, digits, ``_`` and ``-``, at most 64."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:NAME_LENGTH] or default


def free_name(name: str, taken: Container[str]) -> str:
    """Return a name, with a number if it is in use."""
    chosen, number = name, 1
    while chosen in taken:
        number += 1
        chosen = f"{name[: NAME_LENGTH - 4]}_{number}"
    return chosen
