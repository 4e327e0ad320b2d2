"""``agent(...)``: agents of Pydantic AI, served."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, get_args

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelResponse
from pydantic_ai.output import TextOutput
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.usage import UsageLimits

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.pydantic_ai.content import prompt_of
from parley.integrations.pydantic_ai.conversation import KeptConversation
from parley.integrations.pydantic_ai.deferred import results_of
from parley.integrations.pydantic_ai.shown_events import ShownRun, schema_of
from parley.integrations.serving import described, framework_agent
from parley.llm.run_output import RunOutput

MAX_MESSAGES = 200


def agent(
    thing: AbstractAgent[Any, Any],
    *,
    name: str | None = None,
    description: str | None = None,
    deps: Any = None,
    deps_of: Callable[[Turn], Any] | None = None,
    usage_limits: UsageLimits | None = None,
    toolsets: Sequence[AbstractToolset[Any]] = (),
    max_messages: int = MAX_MESSAGES,
    **options: Any,
) -> Agent:
    """Return an agent that runs an agent of Pydantic AI.

    Name, description and output schema are the agent's; its instructions are not shown. ``deps``
    are what its tools get, or ``deps_of`` returns them for a turn (plain or ``async``).
    ``usage_limits`` hold for each task, ``toolsets`` are added to the agent's.

    The context remembers the messages of its tasks that ended, up to ``max_messages``. Tools that
    need approval and calls that are deferred ask the caller. After a crash a run goes on from its
    last step: the model is not asked again for what it said, and only tools of the step that was
    interrupted are called again. ``options`` are those of ``framework_agent`` and ``Agent``.

    Raises ``TypeError`` for anything but an agent, ``ValueError`` for an invalid option, and for an
    agent with a ``deps_type`` that gets no dependencies.
    """
    if not isinstance(thing, AbstractAgent):
        raise TypeError(f"agent takes an Agent of pydantic_ai, not {thing!r:.200}")
    if deps is not None and deps_of is not None:
        raise ValueError("deps are a value, deps_of returns them: give one of them")
    if deps is None and deps_of is None and _needs_deps(thing.deps_type):
        raise ValueError(
            f"the agent {thing.name or 'without a name'} has deps_type="
            f"{_name_of(thing.deps_type)}, and its tools would get None: give deps=..., or "
            "deps_of=lambda turn: ... to make them for each turn"
        )
    runs = AgentRuns(thing, deps, deps_of, usage_limits, tuple(toolsets), max_messages)
    tools = _tools(thing, toolsets)
    name = name or thing.name or "Agent"
    about = description
    if about is None:
        about = described(str(thing.description or ""), name, tools.items())
    settings: dict[str, Any] = {"tags": ("pydantic-ai", *tools), **options}
    if runs.schema is not None:
        settings.setdefault("output_schema", runs.schema)
    return framework_agent(runs.run, name=name, description=about, told=_told, **settings)


class AgentRuns:
    """Runs an agent of Pydantic AI for turns."""

    def __init__(
        self,
        thing: AbstractAgent[Any, Any],
        deps: Any,
        deps_of: Callable[[Turn], Any] | None,
        usage_limits: UsageLimits | None,
        toolsets: tuple[AbstractToolset[Any], ...],
        max_messages: int,
    ) -> None:
        self._agent = thing
        self._deps = deps
        self._deps_of = deps_of
        self._limits = usage_limits
        self._toolsets = toolsets
        self._max_messages = max_messages
        outputs = _outputs(thing.output_type)
        self._allows_text = any(each is str or isinstance(each, TextOutput) for each in outputs)
        self.schema: dict[str, Any] | None = (
            None if self._allows_text else dict(thing.output_json_schema())
        )
        self._output_type: Any = None
        if DeferredToolRequests not in outputs and not getattr(thing, "_output_validators", None):
            # Else the agent has to say itself that calls may be deferred.
            given = thing.output_type
            known = list(given) if isinstance(given, list | tuple) else [given]
            self._output_type = [*known, DeferredToolRequests]

    async def run(self, turn: Turn, output: RunOutput) -> None:
        """Run the agent until the task is done; ask the caller whenever a call is deferred."""
        kept = KeptConversation(turn, self._max_messages)
        await kept.load()
        shown = ShownRun(output, kept.usage, allows_text=self._allows_text)
        deps = self._deps if self._deps_of is None else self._deps_of(turn)
        if inspect.isawaitable(deps):
            deps = await deps
        prompt = None if kept.has_begun else await prompt_of(turn, turn.message)
        while True:
            results = None
            if kept.requests is not None:
                toolsets = (*self._agent.toolsets, *self._toolsets)
                results = await results_of(turn, kept.requests, toolsets, kept.pauses)
            found = await self._run(shown, kept, prompt, deps, results, turn.context_id)
            prompt = None
            if not isinstance(found.output, DeferredToolRequests):
                break
            await kept.checkpoint(found.all_messages(), found.usage, found.output)
        await shown.show_output(found.output, schema_of(found.output, self.schema))
        await kept.finish(found.all_messages())

    async def _run(
        self,
        shown: ShownRun,
        kept: KeptConversation,
        prompt: Any,
        deps: Any,
        results: Any,
        conversation_id: str,
    ) -> Any:
        """Run the agent once, show its events, keep its steps, and return its result."""
        options: dict[str, Any] = {}
        if self._output_type is not None:
            options["output_type"] = self._output_type
        if self._toolsets:
            options["toolsets"] = self._toolsets
        is_asked = False
        async with self._agent.iter(
            prompt,
            message_history=[*kept.earlier, *kept.messages],
            deferred_tool_results=results,
            conversation_id=conversation_id,
            deps=deps,
            usage=kept.usage,
            usage_limits=self._limits,
            **options,
        ) as run:
            async for node in run:
                if self._agent.is_model_request_node(node):
                    if any(isinstance(each, ModelResponse) for each in _new(run, kept)):
                        await kept.checkpoint([*run.all_messages(), node.request], run.usage)
                    await shown.begin_message()
                    with shown.output.requests.asking():
                        async with node.stream(run.ctx) as events:
                            async for event in events:
                                await shown.show(event)
                    is_asked = True
                elif self._agent.is_call_tools_node(node):
                    if is_asked:  # else the response is of the run before the pause
                        shown.replied(node.model_response, run.usage)
                    if node.model_response.tool_calls and results is None:
                        await kept.checkpoint(run.all_messages(), run.usage)
                    results = None
                    async with node.stream(run.ctx) as called:
                        async for event in called:
                            await shown.show(event)
        return run.result


def _needs_deps(kind: Any) -> bool:
    """Return whether ``None`` is no value of a type of dependencies."""
    return kind not in (NoneType, None, Any, object) and NoneType not in get_args(kind)


def _name_of(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def _new(run: Any, kept: KeptConversation) -> list[Any]:
    return list(run.all_messages()[len(kept.earlier) :])


def _outputs(spec: Any) -> list[Any]:
    """Return the output types of a specification."""
    if isinstance(spec, list | tuple):
        return [each for one in spec for each in _outputs(one)]
    arguments = getattr(spec, "__args__", None)
    if arguments and type(spec).__name__ in ("UnionType", "_UnionGenericAlias", "Union"):
        return [each for one in arguments for each in _outputs(one)]
    return [spec]


def _tools(thing: AbstractAgent[Any, Any], more: Sequence[Any]) -> dict[str, str]:
    """Return what the tools that are known before a run do, by their names."""
    found: dict[str, str] = {}

    def look(toolset: Any) -> None:
        known = getattr(toolset, "tools", None)
        for name, tool in known.items() if isinstance(known, dict) else ():
            found.setdefault(name, str(getattr(tool, "description", "") or ""))

    for each in (*thing.toolsets, *more):
        each.apply(look)
    return found


def _told(error: Exception) -> str:
    """Return what a caller may know of a run that the framework ended."""
    if isinstance(error, UsageLimitExceeded):
        return f"The run used more than it may (usage_limits): {error}"
    if isinstance(error, UnexpectedModelBehavior):
        return "The language model gave no answer that fits."
    return ""
