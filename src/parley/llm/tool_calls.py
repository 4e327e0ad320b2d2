"""The tools of a model: their sources, and the concurrent calls of one reply.

Each call is made once in the life of a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import msgspec

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import (
    Tool,
    ToolResult,
    ToolSource,
    call_once,
    failed,
    in_span,
    source_name,
)
from parley.agent.turn import Turn
from parley.agent.uses import UsableAgent
from parley.client.card.resolver import CatalogReference
from parley.engine.turn.attempt import TOOL_PREFIX
from parley.llm.conversation import shortened
from parley.llm.current_turn import current_turn
from parley.llm.function_tools import FunctionTool
from parley.llm.model import Json, ModelToolCall
from parley.llm.remote_skills import RemoteSkill, skills_on
from parley.llm.run_output import RunOutput
from parley.llm.token_budget import TokenSpending
from parley.model.cards import AgentCard
from parley.model.distribution import install_command
from parley.model.parts import Part

MAX_QUESTION = 2000
"""The number of characters of a model's question that reach its caller."""


class AgentSkills:
    """The skills of another agent as tools: all on its card, or the skills with the given ids.

    ``agent`` is an address, a card, a result of ``parley.find``, or an ``Agent`` of this process.
    ``options`` are options of ``parley.connect``, such as ``auth``.
    """

    def __init__(self, agent: Callee, *, skills: Iterable[str] = (), **options: Any) -> None:
        self.agent = agent
        self._only = tuple(skills)
        self._options = options

    @property
    def name(self) -> str:
        """The agent's address without credentials, or its name."""
        agent = self.agent
        if isinstance(agent, str):
            return agent.rpartition("@")[2]  # an address may have a password
        return str(getattr(agent, "name", type(agent).__name__))

    @asynccontextmanager
    async def open_tools(self, turn: Turn) -> AsyncIterator[Sequence[Tool]]:
        """Read the agent's card, and yield its skills. Raises the errors of ``turn.connect``."""
        async with turn.connect(self.agent, **self._options) as remote:
            card = remote.card
            yield skills_on(self.agent, card, self._options, self._only)


class AskUser:
    """The tool with which a model asks the turn's caller: the task is INPUT_REQUIRED meanwhile."""

    name = "ask_user"
    remembers_calls = True
    description = (
        "Ask the user a question, and wait for the answer. Use it only for what you need and "
        "cannot find out otherwise."
    )
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"question": {"type": "string", "description": "The question, in full"}},
        "required": ["question"],
    }

    async def call(self, arguments: Mapping[str, Any], *, key: str) -> ToolResult:
        """Ask, and return the answer."""
        question = arguments.get("question")
        if not isinstance(question, str) or not question.strip():
            return failed("question must be the text of the question")
        turn = current_turn()
        if turn is None:
            return failed("there is no caller to ask here")
        answer = await turn.ask(question[:MAX_QUESTION], key=key)
        return ToolResult(parts=tuple(answer.parts) or (Part(text=""),))


ToolLike = Any
"""A function, an agent or its address, an MCP server, a ``Tool``, a ``ToolSource``, a list."""


def sorted_out(given: Iterable[ToolLike]) -> list[Tool | ToolSource]:
    """Return the author's tools as tools and sources of tools.

    Raises ``TypeError`` for any other object.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"tools must be a list: write tools=[{given!r}]")
    found: list[Tool | ToolSource] = []
    for each in given:
        if isinstance(each, list | tuple):
            found += sorted_out(each)
        elif isinstance(each, str | AgentCard | UsableAgent | CatalogReference):
            found.append(AgentSkills(each))
        elif isinstance(each, ToolSource) or is_tool(each):
            found.append(each)
        elif callable(each):
            found.append(FunctionTool(each))
        else:
            raise TypeError(
                "a tool must be a function, an agent or its address, an MCP server, or an object "
                "with "
                f"name, description, parameters and call, not {each!r}"
            )
    return found


def check_installed(tools: Iterable[Tool | ToolSource]) -> None:
    """Raise ``ImportError`` if a tool needs a package that is not installed."""
    for each in tools:
        package = getattr(each, "extra", "")
        if package and find_spec(package) is None:
            raise ImportError(
                f"the tools of {source_name(each)} need the package {package}: "
                f"{install_command(package)}",
                name=package,
            )


def is_tool(value: object) -> bool:
    """Return whether a value has the members of a ``Tool``."""
    names = ("name", "description", "parameters", "call")
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def agents_in(tools: Iterable[Tool | ToolSource]) -> list[UsableAgent]:
    """Return the agents of this process among some tools."""
    found = [getattr(each, "agent", None) for each in tools]
    return [agent for agent in found if isinstance(agent, UsableAgent)]


MAX_RESULT = 20_000
"""The number of characters of a tool's result a model gets."""

MAX_CALLS = 32
"""The number of tools a model may call in one reply; further calls get the advice to call later."""

OWN_STEPS_SECONDS = 60.0
"""The time for which a question waits for concurrent functions, which would otherwise be called
again.
"""


class ToolCalls:
    """Calls the tools of one run."""

    def __init__(
        self, turn: Turn, tools: Mapping[str, Tool], output: RunOutput, spending: TokenSpending
    ) -> None:
        self._spending = spending
        self._turn = turn
        self._tools = tools
        self._output = output
        self._running: dict[asyncio.Task[Any] | None, asyncio.Event] = {}
        turn._attempt.before_question += (self._before_question,)

    @property
    def offered(self) -> list[Json]:
        """The tools as a request names them."""
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                },
            }
            for name, tool in self._tools.items()
        ]

    async def all(self, calls: Sequence[ModelToolCall], key: str, *, is_new: bool) -> list[Json]:
        """Call tools concurrently, and return the messages with their results, in order.

        ``is_new``: the reply with the calls is new, so the calls are shown.
        """
        if is_new:
            for call in calls[:MAX_CALLS]:
                shown = _arguments(call)
                await self._output.tool_called(
                    call.name, call.arguments if shown is None else shown, call_id=call.id
                )
        tasks: list[asyncio.Task[ToolResult]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number, call in enumerate(calls[:MAX_CALLS]):
                    tasks.append(group.create_task(self._one(call, f"{key}.{number}")))
                    if self._is_alone(call):
                        self._note(tasks[-1])
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        results = [task.result() for task in tasks]
        results += [
            failed(f"only {MAX_CALLS} tools are called at once; call this one again")
            for _ in calls[MAX_CALLS:]
        ]
        messages = []
        for call, result in zip(calls, results, strict=True):
            self._output.requests.spent += result.spent
            for part in result.parts:
                if part.is_file:
                    await self._output.file(part)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said(result)})
        return messages

    async def _one(self, call: ModelToolCall, key: str) -> ToolResult:
        tool, arguments = self._tools.get(call.name), _arguments(call)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            result, is_known = failed(f"there is no tool {call.name!r}; the tools: {known}"), False
        elif arguments is None:
            wanted = msgspec.json.encode(tool.parameters).decode()[:2000]
            sent = call.arguments[:200]
            why = (
                f"the arguments are not a JSON object: {sent}\nSend an object that matches {wanted}"
            )
            result, is_known = failed(why), False
        else:
            is_known = self._is_remembered(key)
            result = await self._called(tool, arguments, key, call.id)
        if not is_known:
            shown = result.text if result.text else result.data
            await self._output.tool_returned(
                call.name, shown, call_id=call.id, is_error=result.is_error
            )
        return result

    async def _called(
        self, tool: Tool, arguments: Mapping[str, Any], key: str, call_id: str
    ) -> ToolResult:
        if isinstance(tool, RemoteSkill):
            left = self._spending.for_others(self._output.requests.total)
            called = tool.call(arguments, key=key, budget=left)
            return await in_span(called, tool.name, arguments, call_id)
        return await call_once(self._turn, tool, arguments, key=key, call_id=call_id)

    def _is_alone(self, call: ModelToolCall) -> bool:
        """Return whether a tool asks no questions itself, so that questions of others can wait for
        it.
        """
        tool = self._tools.get(call.name)
        is_asker = isinstance(tool, RemoteSkill | AskUser)
        return not is_asker and not (isinstance(tool, FunctionTool) and tool.takes_turn)

    def _note(self, task: asyncio.Task[Any]) -> None:
        """Make questions wait for a task."""
        over = self._running[task] = asyncio.Event()

        def ended(task: asyncio.Task[Any]) -> None:
            self._running.pop(task, None)
            over.set()

        task.add_done_callback(ended)

    def _is_remembered(self, key: str) -> bool:
        attempt = self._turn._attempt
        results = attempt.results or {}
        if f"step:{key}" in results or f"step:{key}:result" in results:
            return True
        if (record := results.get(f"{TOOL_PREFIX}{key}")) is not None:
            return bool(msgspec.json.decode(record).get("state") == "returned")
        call = attempt.logged_call(key)
        return call is not None and call.answered

    async def _before_question(self) -> None:
        """Wait for running tools: a question would cancel them, and they would be called again."""
        own = self._running.pop(asyncio.current_task(), None)
        if own is not None:
            own.set()  # tools with questions do not wait for each other
        if others := [asyncio.ensure_future(over.wait()) for over in self._running.values()]:
            with self._turn._attempt.waits.busy():
                await asyncio.wait(others, timeout=OWN_STEPS_SECONDS)
            for each in others:
                each.cancel()


def _arguments(call: ModelToolCall) -> Json | None:
    """Return the arguments of a call, ``None`` if they are not a JSON object."""
    try:
        found = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    if found is None:
        return {}
    return found if isinstance(found, dict) else None


def has_right_arguments(call: ModelToolCall) -> bool:
    """Return whether the arguments of a call are a JSON object."""
    return _arguments(call) is not None


def _is_json_of(text: str, data: Any) -> bool:
    """Return whether a text is the JSON form of the data, as with tools of MCP servers."""
    try:
        return bool(msgspec.json.decode(text) == data)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return False


def said(result: ToolResult) -> str:
    """Return a result in the form that the model receives."""
    words = [result.text] if result.text else []
    has_text = any(isinstance(part.text, str) and part.text for part in result.parts)
    if has_text and result.data is not None and not _is_json_of(result.text, result.data):
        words.append(msgspec.json.encode(result.data).decode())
    for part in result.parts:
        if part.is_file:
            kind = part.media_type or "unknown type"
            words.append(
                f"[the file {part.filename or 'without a name'} ({kind}) went to the user]"
            )
    text = "\n".join(words) or "nothing"
    return shortened(f"Error: {text}" if result.is_error else text, MAX_RESULT)
