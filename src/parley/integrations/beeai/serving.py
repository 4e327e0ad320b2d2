"""Agents and workflows of BeeAI as A2A agents."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from beeai_framework.agents import AgentError, BaseAgent
from beeai_framework.agents.react import ReActAgent
from beeai_framework.agents.requirement import RequirementAgent
from beeai_framework.agents.requirement.requirements import ask_permission
from beeai_framework.backend import ChatModel
from beeai_framework.runnable import Runnable
from beeai_framework.workflows import Workflow
from beeai_framework.workflows.agent import AgentWorkflow, AgentWorkflowInput

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.answers import fitting
from parley.integrations.approvals import approval
from parley.integrations.beeai.messages import message_of, plain, read, without_files, written
from parley.integrations.beeai.requests import RUN
from parley.integrations.beeai.shown import EmittedEvents
from parley.integrations.conversations import ContextConversation
from parley.integrations.remembered_calls import CallKeys
from parley.integrations.serving import described, framework_agent
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
    given_name, given_description = _about(thing)
    return framework_agent(
        _Runs(thing, response_format, max_messages),
        name=name or given_name,
        description=description or given_description,
        tags=("beeai",),
        input_modes=("text/plain", "application/json", "image/*", "application/pdf"),
        told=_told,
        **options,
    )


def _told(error: Exception) -> str:
    """Return what a caller may know of an error of the framework."""
    if isinstance(error, AgentError) and error.message.endswith("iterations."):
        return "The agent reached its most steps (max_iterations) without an answer."
    return ""


class _Runs:
    """Runs an agent or a workflow for a turn."""

    def __init__(self, thing: Any, response_format: Any, max_messages: int) -> None:
        self._thing = thing
        self._format = response_format
        self._max_messages = max_messages

    async def __call__(self, turn: Turn, output: RunOutput) -> object:
        speaks = self._format is None and isinstance(self._thing, RequirementAgent | ChatModel)
        shown = EmittedEvents(output, speaks=speaks)
        token = RUN.set(shown.requests)
        try:
            if isinstance(self._thing, Workflow):
                await self._workflow(turn, output, shown)
            elif isinstance(self._thing, AgentWorkflow):
                await self._agents(turn, shown)
            else:
                await self._run(turn, output, shown)
        finally:
            RUN.reset(token)
        return None

    async def _run(self, turn: Turn, output: RunOutput, shown: EmittedEvents) -> None:
        conversation = ContextConversation(
            turn, MEMORY, max_messages=self._max_messages, shorten=without_files
        )
        kept = await conversation.earlier(step="memory")
        message = await message_of(turn)
        options: dict[str, Any] = {}
        if isinstance(self._thing, BaseAgent):
            running = await _copied(self._thing, turn, kept)
            options["max_iterations"] = 0  # max_model_calls bounds the run
            if self._format is not None:
                options["expected_output"] = self._format
            given = [message]
        else:
            running, given = self._thing, [*read(kept), message]
        result = await running.run(given, **options).observe(shown.listen)
        if self._format is None:
            await shown.show(result.last_message.text)
        else:
            schema = getattr(self._format, "model_json_schema", lambda: None)()
            await output.data(plain(result.output_structured), schema=schema)
        if isinstance(running, BaseAgent):
            await conversation.finish(written(running.memory.messages))
        else:
            await conversation.add(written([message, *result.output]))

    async def _workflow(self, turn: Turn, output: RunOutput, shown: EmittedEvents) -> None:
        workflow = self._thing
        data = turn.data
        if not isinstance(data, dict):
            texts = [
                name
                for name, field in workflow.schema.model_fields.items()
                if field.is_required() and field.annotation is str
            ]
            data = {texts[0]: turn.message.text} if len(texts) == 1 else data
        state = fitting(turn, workflow.schema, data)
        result = await workflow.run(state).observe(shown.listen)
        await output.data(plain(result.state), schema=workflow.schema.model_json_schema())

    async def _agents(self, turn: Turn, shown: EmittedEvents) -> None:
        asked = AgentWorkflowInput(prompt=turn.message.text)
        result = await self._thing.run([asked]).observe(shown.listen)
        await shown.show(str(result.result.final_answer))


async def _copied(agent: Any, turn: Turn, kept: list[dict[str, Any]]) -> Any:
    """Return a copy of an agent for one turn, with its own memory, which asks its caller."""
    copied = copy.copy(agent)
    copied.__dict__.pop("emitter", None)  # made for the copy when it runs
    memory = await agent.memory.clone()
    if kept:
        memory.reset()
        await memory.add_many(read(kept))
    if isinstance(agent, ReActAgent):
        used = {"memory": memory, "tools": _without_answers(agent._input.tools)}
        copied._input = agent._input.model_copy(update=used)
        return copied
    copied.memory = memory
    if isinstance(agent, RequirementAgent):
        copied._tools = _without_answers(agent._tools)
        copied._requirements = _asking(turn, agent._requirements)
    return copied


def _without_answers(tools: Any) -> list[Any]:
    """Return tools but those that answer agents: within a turn its caller is asked."""
    return [each for each in tools if not getattr(each, "answers", False)]


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


def _asking(turn: Turn, requirements: list[Any]) -> list[Any]:
    """Return requirements for one turn, whose caller is asked where the terminal would be.

    Choices that one caller made are not another's.
    """
    keys = CallKeys()

    async def ask(tool: Any, given: dict[str, Any]) -> bool:
        key = keys.key("permission", tool.name)
        decision = await approval(turn, tool.name, plain(given.get("input", given)), key=key)
        return decision.is_approved

    copies = [copy.copy(each) for each in requirements]
    for each in copies:
        if isinstance(each, ask_permission.AskPermissionRequirement):
            each._state = {}
            if each._handler is ask_permission._default_handler:
                each._handler = ask
    return copies


def _about(thing: Any) -> tuple[str, str]:
    """Return the name and the description of an agent or a workflow."""
    if isinstance(thing, BaseAgent):
        meta = thing.meta
        tools = [(each.name, each.description) for each in _without_answers(meta.tools)]
        return meta.name, described(meta.description.strip(), meta.name, tools)
    if isinstance(thing, Workflow | AgentWorkflow):
        workflow = thing.workflow if isinstance(thing, AgentWorkflow) else thing
        steps = ", ".join(str(each) for each in workflow.step_names)
        return str(workflow.name), f"A workflow of the steps {steps}."
    return type(thing).__name__, (type(thing).__doc__ or "").strip()
