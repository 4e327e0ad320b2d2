"""Plain functions as tools: their schema from types and docstring, each call made once."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from parley.agent.blocking_turn import BlockingTurn
from parley.agent.tools.tool import ToolResult, failed, tool_name
from parley.agent.turn import Turn
from parley.engine.content import to_parts
from parley.engine.skill import form_of
from parley.engine.turn.attempt import NotAuthorized, TurnOver
from parley.engine.typed.function import result_of, tool_inputs
from parley.llm.current_turn import current_turn
from parley.model.parts import Part
from parley.model.typed.violations import Mismatch

log = logging.getLogger("parley.llm")

NO_PARAMETERS = {"type": "object", "properties": {}}
"""The schema of a tool without parameters."""


class ToolFailed(Exception):
    """Raised by a tool's function: the model gets the text, and may continue differently.

    The model also gets the text of a ``ValueError``. The text of other exceptions is only in the
    log; the model only sees that the tool failed.
    """


class FunctionTool:
    """A function as a ``Tool``.

    The schema comes from the types of its parameters, their descriptions from ``Annotated`` types
    or from the docstring (``Args:``, ``:param x:``, or NumPy's form). A plain ``def`` runs in a
    thread. A parameter of the type ``Turn`` (in a plain ``def`` ``BlockingTurn``) receives the
    turn. The result may be any result of a skill: text, data, a ``Part``, a list of them.

    Within a turn a call is a step: it is made once in the life of the task.

    Raises ``TypeError`` for a function that a model cannot call.
    """

    remembers_calls = True

    def __init__(
        self, function: Callable[..., Any], *, name: str = "", description: str = ""
    ) -> None:
        if not callable(function):
            raise TypeError(f"a tool must be a function, not {function!r}")
        self._form = form_of(function)
        own = getattr(function, "__name__", type(function).__name__)
        if self._form.streams:
            raise TypeError(f"the tool {own!r} yields; return the whole result instead")
        self.function = function
        self.name = tool_name(name or own, "skill")
        summary, about = read_docstring(inspect.getdoc(function) or "")
        self.description = description or summary or own.replace("_", " ")
        self._inputs = tool_inputs(function, (Turn, BlockingTurn))
        self.parameters: Mapping[str, Any] = _described(self._inputs.schema or NO_PARAMETERS, about)
        try:
            self._result = result_of(function)
        except TypeError:  # the type is only informative: the returned value is what matters
            self._result = None

    def __repr__(self) -> str:
        return f"FunctionTool({self.name!r})"

    @property
    def takes_turn(self) -> bool:
        """Return whether the function receives the turn, and so may ask its caller."""
        return self._inputs.takes_turn

    async def call(self, arguments: Mapping[str, Any], *, key: str = "") -> ToolResult:
        """Call the function. An exception is a result with an error."""
        turn = current_turn()
        if turn is None or not key:
            return await self._call(arguments, turn)
        result: ToolResult = await turn.step(key, self._call, arguments, turn)
        return result

    async def _call(self, arguments: Mapping[str, Any], turn: Turn | None) -> ToolResult:
        try:
            values = self._inputs.read_data(dict(arguments)) if self._inputs.fields else {}
        except Mismatch as mismatch:
            return failed(f"these arguments do not fit: {mismatch}")
        filled: Any = turn
        if self._inputs.takes_turn and turn is None:
            raise RuntimeError(f"the tool {self.name!r} needs a turn, and there is none here")
        if turn is not None and self._inputs.takes_turn and self._form.in_thread:
            filled = BlockingTurn(turn)
        by_position, by_name = self._inputs.arguments(values, filled, "")
        try:
            value = await self._done(partial(self.function, *by_position, **by_name), turn)
            return self._as_result(value)
        except (NotAuthorized, TurnOver):
            raise
        except ToolFailed as error:
            return failed(str(error))
        except Exception as error:
            if type(error) is ValueError:
                return failed(str(error))
            logger = log if turn is None else turn.log
            logger.exception("the tool %s failed", self.name)
            return failed(f"the tool failed ({type(error).__name__}); the reason is in its log")

    async def _done(self, function: Callable[[], Any], turn: Turn | None) -> Any:
        if not self._form.in_thread:
            return await function()
        if turn is None:
            value = await asyncio.to_thread(function)
        else:
            value = await turn._attempt.runner.in_thread(function)
        return await value if inspect.isawaitable(value) else value

    def _as_result(self, value: Any) -> ToolResult:
        if value is None:
            return ToolResult(parts=(Part(text="done"),))
        if isinstance(value, ToolResult):
            return value
        if self._result is not None:
            data = self._result.dump(value)
            if isinstance(data, str):
                return ToolResult(parts=(Part(text=data),))
            return ToolResult(data=data)
        parts = to_parts(value)
        if len(parts) == 1 and parts[0].has_data:
            return ToolResult(data=parts[0].data)
        return ToolResult(parts=parts)


# -- docstrings --------------------------------------------------------------------------------

_SECTION = re.compile(
    r"^(args|arguments|parameters|params|returns?|raises|yields|examples?|notes?)\s*:?\s*$",
    re.IGNORECASE,
)
_SPHINX = re.compile(r"^:(param|parameter|arg)\s+(?:[\w.\[\]| ]+\s)?\*{0,2}(\w+)\s*:\s*(.*)$")
_GOOGLE = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(r"^(\w+)\s*(?::.*)?$")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the descriptions of a function and of its parameters from a docstring."""
    summary: list[str] = []
    about: dict[str, list[str]] = {}
    section, name, indent = "", "", 0
    lines = text.splitlines()
    is_numpy = any(len(each.strip()) >= 3 and set(each.strip()) == {"-"} for each in lines)
    for number, line in enumerate(lines):
        words, depth = line.strip(), len(line) - len(line.lstrip())
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        is_underlined = len(following) >= 3 and set(following) == {"-"}
        if (found := _SECTION.match(words)) and (words.endswith(":") or is_underlined):
            section, name = found[1].lower(), ""
            indent = 0 if is_underlined else -1
        elif set(words) == {"-"} and len(words) >= 3:
            continue
        elif found := _SPHINX.match(words):
            section, name, indent = "sphinx", found[2], depth
            about[name] = [found[3]]
        elif words.startswith(":") and section in ("", "sphinx"):
            section, name = "sphinx", ""
        elif not section:
            summary.append(line)
        elif not words:
            name = "" if section == "sphinx" else name
        elif section in ("args", "arguments", "parameters", "params"):
            if indent == -1:
                indent = depth
            pattern = _NUMPY if is_numpy else _GOOGLE
            if depth == indent and (found := pattern.match(words)):
                name = found[1]
                about[name] = [found[2]] if pattern is _GOOGLE else []
            elif name:
                about[name].append(words)
        elif section == "sphinx" and name and depth > indent:
            about[name].append(words)
    kept = {key: " ".join(filter(None, value)) for key, value in about.items()}
    return "\n".join(summary).strip(), {key: value for key, value in kept.items() if value}


def _described(schema: Mapping[str, Any], about: Mapping[str, str]) -> dict[str, Any]:
    properties = {
        name: {"description": about[name], **each} if name in about else each
        for name, each in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties}
