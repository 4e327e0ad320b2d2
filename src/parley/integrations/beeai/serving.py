"""Agents and workflows of BeeAI as A2A agents."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Iterable
from typing import Any

from beeai_framework.agents import BaseAgent
from beeai_framework.agents.react import ReActAgent
from beeai_framework.agents.requirement import RequirementAgent
from beeai_framework.agents.requirement.requirements import ask_permission
from beeai_framework.runnable import Runnable
from beeai_framework.workflows import Workflow
from beeai_framework.workflows.agent import AgentWorkflow, AgentWorkflowInput

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.approvals import approval
from parley.integrations.beeai.calling import BeeAnswerTool
from parley.integrations.beeai.messages import message_of, newest, read, written
from parley.integrations.beeai.replay import RunReplay
from parley.integrations.beeai.shown import EmittedEvents
from parley.integrations.serving import framework_agent
from parley.llm.run_output import RunOutput

MEMORY = "beeai.memory"
"""The key of the messages of a context."""

MAX_MESSAGES = 200
"""How many messages of its memory a context keeps."""


def agent(
    thing: Any,
    *,
    name: str | None = None,
    description: str | None = None,
    response_format: Any = None,
    max_messages: int = MAX_MESSAGES,
    **options: Any,
) -> Agent:
    """Return an agent, another ``Runnable``, or a workflow of BeeAI as an A2A agent.

    Each turn runs a copy of its own. The memory of an agent belongs to the context: its newest
    ``max_messages`` are kept in Parley's store. ``AskPermissionRequirement`` without a handler asks
    the turn's caller, and never the terminal. Replies of the model and results of tools are
    remembered in the task, so neither an answer nor a crash repeats them. ``response_format``, a
    pydantic model, is the ``expected_output`` of an agent; its output is a data part. A workflow
    gets the data of the message as its state, and returns its state. ``options`` are those of
    Parley's ``Agent``.

    Raises ``TypeError`` for anything else, and ``ValueError`` for an invalid option, and for an
    ``AgentWorkflow`` whose agents ask for permission at the terminal.
    """
    if not isinstance(thing, Runnable | Workflow | AgentWorkflow):
        raise TypeError(
            f"{type(thing).__name__} is no part of BeeAI that can be served: give an agent, "
            "another Runnable, a Workflow or an AgentWorkflow"
        )
    if isinstance(thing, AgentWorkflow):
        _check_permissions(thing)
    given_name, given_description = _described(thing)
    return framework_agent(
        _Runs(thing, response_format, max_messages),
        name=name or given_name,
        description=description or given_description,
        tags=("beeai",),
        input_modes=("text/plain", "application/json", "image/*", "application/pdf"),
        **options,
    )


class _Runs:
    """Runs an agent or a workflow for a turn."""

    def __init__(self, thing: Any, response_format: Any, max_messages: int) -> None:
        self._thing = thing
        self._format = response_format
        self._max_messages = max_messages

    async def __call__(self, turn: Turn, output: RunOutput) -> object:
        replay = RunReplay(turn)
        is_quiet = self._format is not None or not isinstance(self._thing, RequirementAgent)
        shown = EmittedEvents(output, replay, is_quiet=is_quiet)
        try:
            if isinstance(self._thing, Workflow):
                await self._workflow(turn, output, shown)
            elif isinstance(self._thing, AgentWorkflow):
                await self._agents(turn, shown)
            else:
                await self._run(turn, output, shown)
        finally:
            replay.close()
        return None

    async def _run(self, turn: Turn, output: RunOutput, shown: EmittedEvents) -> None:
        kept = await turn.step("memory", turn.recall, MEMORY) or []
        message = await message_of(turn)
        options: dict[str, Any] = {}
        if isinstance(self._thing, BaseAgent):
            running = await _copied(self._thing, turn, kept)
            if self._format is not None:
                options["expected_output"] = self._format
            given = [message]
        else:
            running, given = self._thing, [*read(kept), message]
        result = await running.run(given, **options).observe(shown.listen)
        text = result.last_message.text
        if self._format is None:
            await shown.finish(text)
        else:
            value = result.output_structured
            schema = None
            if hasattr(self._format, "model_json_schema"):
                schema = self._format.model_json_schema()
            await output.data(_plain(value), schema=schema)
        messages = (
            written(running.memory.messages)
            if isinstance(running, BaseAgent)
            else [*kept, *written([message, *result.output])]
        )
        await self._remember(turn, kept, messages)

    async def _remember(
        self, turn: Turn, kept: list[dict[str, Any]], messages: list[dict[str, Any]]
    ) -> None:
        """Keep the messages of a task; those that other tasks added meanwhile stay, too.

        ``kept`` is what there was when the task began. A memory that forgets replaces all.
        """
        before = [_untagged(each) for each in kept]
        grows = [_untagged(each) for each in messages[: len(kept)]] == before
        own = messages[len(kept) :] if grows else messages
        tagged = [{**each, "task": turn.task_id} for each in own]

        def added(now: list[dict[str, Any]]) -> list[dict[str, Any]]:
            others = [each for each in now if grows and each["task"] != turn.task_id]
            return newest([*others, *tagged], self._max_messages)

        await turn.update(MEMORY, added, [])

    async def _workflow(self, turn: Turn, output: RunOutput, shown: EmittedEvents) -> None:
        workflow = self._thing
        data = turn.data
        if not isinstance(data, dict):
            texts = [
                name
                for name, field in workflow.schema.model_fields.items()
                if field.is_required() and field.annotation is str
            ]
            if len(texts) != 1:
                turn.reject(
                    "This workflow begins with data. Send a data part that fits "
                    f"{workflow.schema.model_json_schema()}"
                )
            data = {texts[0]: turn.message.text}
        try:
            state = workflow.schema(**data)
        except ValueError as error:
            turn.reject(f"The data does not fit this workflow: {error}")
        result = await workflow.run(state).observe(shown.listen)
        await output.data(_plain(result.state), schema=workflow.schema.model_json_schema())

    async def _agents(self, turn: Turn, shown: EmittedEvents) -> None:
        given = [AgentWorkflowInput(prompt=turn.message.text)]
        result = await self._thing.run(given).observe(shown.listen)
        await shown.finish(str(result.result.final_answer))


async def _copied(agent: Any, turn: Turn, kept: list[dict[str, Any]]) -> Any:
    """Return a copy of an agent for one turn, with its own memory, which asks its caller."""
    copied = copy.copy(agent)
    copied.__dict__.pop("emitter", None)  # made for the copy when it runs
    memory = await agent.memory.clone()
    if kept:
        memory.reset()
        await memory.add_many(read(kept))
    if isinstance(agent, ReActAgent):
        used = {"memory": memory, "stream": True, "tools": _without_answers(agent._input.tools)}
        copied._input = agent._input.model_copy(update=used)
        copied._input.llm = _streaming(agent._input.llm)
        return copied
    copied.memory = memory
    if isinstance(agent, RequirementAgent):
        copied._llm = _streaming(agent._llm)
        copied._tools = _without_answers(agent._tools)
        asks = _Permissions(turn)
        copied._requirements = [asks.of(each) for each in agent._requirements]
    return copied


def _without_answers(tools: Iterable[Any]) -> list[Any]:
    """Return tools but those that answer agents: within a turn its caller is asked."""
    return [each for each in tools if not isinstance(each, BeeAnswerTool)]


def _streaming(llm: Any) -> Any:
    """Return a copy of a model that streams."""
    copied = copy.copy(llm)
    copied.__dict__.pop("emitter", None)
    copied.parameters = llm.parameters.model_copy(update={"stream": True})
    return copied


def _check_permissions(workflow: AgentWorkflow) -> None:
    """Raise ``ValueError`` for an agent of a workflow that asks at the terminal of the server.

    A workflow makes its agents itself, so they get no requirement of one turn.
    """
    for step in workflow.workflow.steps.values():
        make = inspect.getclosurevars(step.handler).nonlocals.get("create_agent")
        captured = {} if make is None else inspect.getclosurevars(make).nonlocals
        inner: Any = captured.get("instance")
        for each in getattr(inner, "_requirements", None) or ():
            if not isinstance(each, ask_permission.AskPermissionRequirement):
                continue
            if each._handler is ask_permission._default_handler or each._remember_choices:
                raise ValueError(
                    f"the agent {inner.meta.name} of this workflow asks for permission at the "
                    "terminal, or remembers the choice of one caller for all: give "
                    "AskPermissionRequirement(handler=...), which may ask current_turn(), and no "
                    "remember_choices; or serve the agent by itself"
                )


class _Permissions:
    """Asks the turn's caller where the framework would ask at the terminal."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._times: Counter[str] = Counter()

    def of(self, requirement: Any) -> Any:
        """Return a requirement for one turn. Choices that one caller made are not another's."""
        copied = copy.copy(requirement)
        if isinstance(requirement, ask_permission.AskPermissionRequirement):
            copied._state = {}
            if requirement._handler is ask_permission._default_handler:
                copied._handler = self._ask
        return copied

    async def _ask(self, tool: Any, given: dict[str, Any]) -> bool:
        self._times[tool.name] += 1
        key = f"permission:{tool.name}:{self._times[tool.name]}"
        decision = await approval(self._turn, tool.name, _plain(given.get("input", given)), key=key)
        return decision.is_approved


def _untagged(message: dict[str, Any]) -> dict[str, Any]:
    return {"role": message["role"], "content": message["content"]}


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _described(thing: Any) -> tuple[str, str]:
    """Return the name and the description of an agent or a workflow."""
    if isinstance(thing, BaseAgent):
        meta = thing.meta
        tools = [
            f"- {each.name}: {each.description.strip()}" for each in _without_answers(meta.tools)
        ]
        text = "\n".join([meta.description, "", "Tools:", *tools]) if tools else meta.description
        return meta.name, text.strip()
    if isinstance(thing, Workflow | AgentWorkflow):
        workflow = thing.workflow if isinstance(thing, AgentWorkflow) else thing
        steps = ", ".join(str(each) for each in workflow.step_names)
        return str(workflow.name), f"A workflow of the steps {steps}."
    return type(thing).__name__, (type(thing).__doc__ or "").strip()
