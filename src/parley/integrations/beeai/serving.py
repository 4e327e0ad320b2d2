"""Agents and workflows of BeeAI as A2A agents: requests, remembered replies, events.

A turn is re-run from its beginning for every answer and after a crash. Listeners of the framework
can supply the output of a run when it begins, so a further attempt takes replies and results from
the task's log: no model request and no completed tool call is repeated.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any

import msgspec
from beeai_framework.agents import AgentError, BaseAgent
from beeai_framework.agents.react import ReActAgent
from beeai_framework.agents.requirement import RequirementAgent
from beeai_framework.agents.requirement.requirements import ask_permission
from beeai_framework.agents.requirement.utils._tool import FinalAnswerTool
from beeai_framework.backend import (
    AssistantMessage,
    ChatModel,
    ChatModelOutput,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from beeai_framework.backend.message import (
    MessageFileContent,
    MessageImageContent,
    MessageReasoningContent,
    MessageTextContent,
)
from beeai_framework.context import RunContext
from beeai_framework.emitter import Emitter, EmitterOptions
from beeai_framework.runnable import Runnable
from beeai_framework.tools import JSONToolOutput, StringToolOutput, Tool, ToolError
from beeai_framework.utils.models import JSONSchemaModel
from beeai_framework.workflows import Workflow
from beeai_framework.workflows.agent import AgentWorkflow, AgentWorkflowInput

from parley.agent.agent import Agent
from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.answers import PARAMETERS, OpenQuestions, approval, fitting
from parley.integrations.conversations import ContextConversation
from parley.integrations.litellm_streams import HEARD, HeardReply, listen
from parley.integrations.message_files import input_of
from parley.integrations.serving import (
    CallKeys,
    RememberedCalls,
    described,
    framework_agent,
    json_value,
)
from parley.llm.model import Json, ModelUsage
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills
from parley.llm.run_output import CONTENT_FILTER, LENGTH, RunOutput, current_run

MEMORY = "beeai.memory"
"""The key of the messages of a context."""

MAX_MESSAGES = 200
"""The number of messages of its memory a context keeps."""


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

    Each turn runs its own copy. The memory of an agent belongs to the context: its newest
    ``max_messages`` are kept in Parley's store. ``AskPermissionRequirement`` without a handler asks
    the turn's caller, and never the terminal. Replies of the model and results of tools are
    remembered in the task, so neither an answer nor a crash repeats them. ``response_format``, a
    pydantic model, is the ``expected_output`` of an agent; its output is a data part. A workflow
    receives the data of the message as its state, and returns its state. ``options`` are options of
    Parley's ``Agent``.

    Raises ``TypeError`` for any other object, and ``ValueError`` for an invalid option, and for an
    ``AgentWorkflow`` whose agents ask for permission at the terminal.
    """
    if not isinstance(thing, Runnable | Workflow | AgentWorkflow):
        raise TypeError(
            f"{type(thing).__name__} cannot be served: give an agent of BeeAI, "
            "another Runnable, a Workflow or an AgentWorkflow"
        )
    if isinstance(thing, AgentWorkflow):
        _check_permissions(thing)
    given_name, given_description = _about(thing)
    return framework_agent(
        partial(_run, thing, response_format, max_messages),
        name=name or given_name,
        description=description or given_description,
        tags=("beeai",),
        input_modes=("text/plain", "application/json", "image/*", "application/pdf"),
        told=TOLD,
        **options,
    )


TOLD = (
    (
        AgentError,
        "iterations.",
        "The agent reached its limit of steps (max_iterations) without an answer.",
    ),
)


async def _run(thing: Any, form: Any, max_messages: int, turn: Turn, output: RunOutput) -> None:
    """Run an agent or a workflow for a turn."""
    speaks = form is None and isinstance(thing, RequirementAgent | ChatModel)
    shown = EmittedEvents(output, speaks=speaks)
    if isinstance(thing, Workflow):
        state = fitting(turn, thing.schema, _state_in(turn, thing.schema))
        result = await thing.run(state).observe(shown.listen)
        await output.data(plain(result.state), schema=thing.schema.model_json_schema())
        return
    if isinstance(thing, AgentWorkflow):
        asked = AgentWorkflowInput(prompt=turn.message.text)
        result = await thing.run([asked]).observe(shown.listen)
        await shown.show(str(result.result.final_answer))
        return
    conversation = ContextConversation(
        turn, MEMORY, max_messages=max_messages, shorten=without_files
    )
    kept = await conversation.earlier(step="memory")
    message, running, options = await message_of(turn), thing, {}
    given = [message]
    if isinstance(thing, BaseAgent):
        running = await _copied(thing, turn, kept)
        options["max_iterations"] = 0  # max_model_calls bounds the run
        if form is not None:
            options["expected_output"] = form
    else:
        given = [*read(kept), message]
    result = await running.run(given, **options).observe(shown.listen)
    if form is None:
        await shown.show(result.last_message.text)
    else:
        schema = getattr(form, "model_json_schema", lambda: None)()
        await output.data(plain(result.output_structured), schema=schema)
    if isinstance(running, BaseAgent):
        await conversation.finish(written(running.memory.messages))
    else:
        await conversation.add(written([message, *result.output]))


def _state_in(turn: Turn, schema: Any) -> Any:
    """Return the data of a message, or its text as the only text field that a workflow requires."""
    if isinstance(turn.data, dict):
        return turn.data
    fields = schema.model_fields.items()
    texts = [name for name, each in fields if each.is_required() and each.annotation is str]
    return {texts[0]: turn.message.text} if len(texts) == 1 else turn.data


async def _copied(agent: Any, turn: Turn, kept: list[Json]) -> Any:
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
    """Return tools without the tools that answer remote agents: in a turn its caller answers."""
    return [each for each in tools if not getattr(each, "answers", False)]


def _check_permissions(workflow: AgentWorkflow) -> None:
    """Raise ``ValueError`` for an agent of a workflow that asks at the terminal of the server.

    A workflow creates its agents itself, so a turn cannot give them requirements.
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
                    "terminal, or remembers a caller's choice for all callers: give "
                    "AskPermissionRequirement(handler=...), which may ask current_turn(), and no "
                    "remember_choices; or serve the agent separately"
                )


def _asking(turn: Turn, requirements: list[Any]) -> list[Any]:
    """Return requirements for one turn that ask its caller instead of the terminal.

    Choices of one caller do not apply to another.
    """
    keys = CallKeys()

    async def ask(tool: Any, given: Json) -> bool:
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


NESTED = EmitterOptions(is_blocking=True, persistent=True, match_nested=True)


class EmittedEvents:
    """Shows the events of a run and remembers its parts; listen with ``Run.observe(shown.listen)``.

    With ``speaks`` tokens of the model are the answer; with ReAct, or a schema, they are not.
    Models inside tools and nested agents do not contribute text. Runs of models and tools are steps
    of the task, so that a further attempt supplies their outputs.
    """

    def __init__(self, output: RunOutput, *, speaks: bool) -> None:
        self._output, self._requests = output, output.requests
        self._calls = RememberedCalls(output.turn)
        self._open: dict[str, str] = {}
        self._speaks = speaks
        self._root = ""
        self._text = ""
        self._is_protocol = False
        output.run = self

    def listen(self, emitter: Emitter) -> None:
        """Listen to a run, and to all nested runs."""
        emitter.on(lambda event: True, self._event, NESTED)

    async def show(self, whole: str) -> None:
        """Show the complete answer, after any streamed part of it."""
        said = self._output.said
        if said and whole.startswith(said):
            await self._output.text(whole[len(said) :])
        else:
            await self._output.whole(whole)

    async def _begin(self) -> None:
        self._text = ""
        await self._output.new_message()

    async def _event(self, data: Any, meta: Any) -> None:
        creator, trace = meta.creator, meta.trace
        is_own = trace is not None and trace.run_id == self._root
        if isinstance(creator, RunContext):
            await self._run(creator, data, meta)
        elif isinstance(creator, ChatModel) and meta.name == "start":
            data.input.stream = True  # so that its requests are counted
            self._is_protocol = data.input.response_format is not None
        elif isinstance(creator, ChatModel) and meta.name == "new_token":
            if is_own or trace.parent_run_id == self._root:
                await self._token(data.value)
        elif meta.name == "final_answer" and is_own and self._speaks:
            await self.show(data.output)
        elif meta.name == "partial_update" and hasattr(data, "update") and is_own:
            await self._partial(data.update)
        elif isinstance(creator, Workflow) and meta.name == "start":
            await self._output.step(str(data.step))

    async def _run(self, run: Any, data: Any, meta: Any) -> None:
        instance = run.instance
        is_tool = isinstance(instance, Tool) and not isinstance(instance, FinalAnswerTool)
        if meta.name == "start":
            if self._root:  # events reach only the enclosing run
                run.emitter.on(lambda e: e.trace.parent_run_id == run.run_id, self._event, NESTED)
            self._root = self._root or run.run_id
            if isinstance(instance, ChatModel):
                watch(instance)
            elif is_tool:
                await self._begin()
                await self._output.tool_called(instance.name, plain(data.input.get("input")))
            self._recall(run.run_id, instance, data)
        elif meta.name == "success":
            if (key := self._open.pop(run.run_id, None)) is not None:
                await self._calls.keep(key, _written(data.output))
            if is_tool:
                await self._output.tool_returned(instance.name, str(data.output))
        elif meta.name == "error" and is_tool:
            await self._output.tool_returned(instance.name, "it failed", is_error=True)

    def _recall(self, run_id: str, instance: Any, data: Any) -> None:
        """Supply the output of a run if it is remembered, else remember its output."""
        asked = _asked(instance, data.input)
        if asked is None:
            return
        key, kept = self._calls.recall(*asked)
        if kept is msgspec.UNSET:
            self._open[run_id] = key
        elif kept is not None:
            data.output = _read(kept)
            if "messages" in kept:
                self._requests.end_as(kept["finish_reason"])

    async def streamed(self, chunks: AsyncIterator[Any], run: Any) -> AsyncIterator[Any]:
        """Yield the chunks of a reply, and count it when it is complete.

        The framework may make several requests in one run of a model; the newest reply is used.
        """
        heard = HeardReply()
        HEARD.set(heard)
        if self._root in (run.run_id, run.parent_id):
            await self._begin()
        reply = ChatModelOutput(output=[])
        try:
            with self._requests.asking():
                async for chunk in chunks:
                    reply.merge(chunk)
                    yield chunk
        except Exception:
            if reply.output:
                self._requests.replied(None, ending="")
            raise
        used = reply.usage
        usage = ModelUsage(
            input_tokens=used.prompt_tokens,
            output_tokens=used.completion_tokens,
            cost=reply.cost.total_cost_usd,
        )
        self._requests.replied(usage, ending=reply.finish_reason, refusal=heard.refusal)
        says = reply.get_text_content() or reply.get_tool_calls()
        if not says and (reply.is_empty() or self._requests.ending in (LENGTH, CONTENT_FILTER)):
            self._requests.check_said()  # the framework fails, or asks again, without the reason

    async def _token(self, chunk: Any) -> None:
        for message in chunk.output:
            for part in message.get_by_type(MessageReasoningContent):
                await self._output.thinking(part.text)
        if self._speaks and not self._is_protocol:
            self._text += chunk.get_text_content()
            # Text after a brace may be the arguments of a call, which the framework parses.
            await self.show(self._text.partition("{")[0])

    async def _partial(self, update: Any) -> None:
        if update.key == "final_answer":
            await self._output.text(str(update.value))
        elif update.key == "thought":
            await self._output.thinking(str(update.value))


LITELLM = "beeai_framework.adapters.litellm.chat"
"""The module of the framework that calls models through LiteLLM."""


def watch(llm: ChatModel) -> None:
    """Wrap a model so that runs count its requests; outside of runs it works as before.

    The framework has no event for a request: the method that each model implements is wrapped.
    """
    if LITELLM in sys.modules:
        listen(sys.modules[LITELLM])
    if "_create_stream" in vars(llm):
        return
    create_stream = llm._create_stream

    def watched(asked: Any, run: Any) -> AsyncIterator[Any]:
        chunks, shown = create_stream(asked, run), current_run(EmittedEvents)
        return chunks if shown is None else shown.streamed(chunks, run)

    vars(llm)["_create_stream"] = watched


WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]+(Z|[+-]\d\d:\d\d)?")
"""A time: prompts of the framework contain the time of a message, which differs in each attempt."""


def _asked(instance: Any, given: Json) -> tuple[str, Any] | None:
    """Return the kind and the input of a run, ``None`` for a run that is not remembered."""
    if isinstance(instance, ChatModel):
        messages = written(given.get("input") or [])
        return "model", WHEN.sub("", msgspec.json.encode(messages).decode())
    # The turn remembers the calls of remote skills itself.
    if isinstance(instance, Tool) and not isinstance(instance, FinalAnswerTool | BeeRemoteTool):
        return "tool", [instance.name, plain(given.get("input"))]
    return None


def _written(output: Any) -> Json | None:
    """Return an output as JSON, ``None`` if it does not survive a round trip."""
    if isinstance(output, ChatModelOutput) and output.output_structured is None:
        return {"messages": written(output.output), "finish_reason": output.finish_reason}
    if type(output) is StringToolOutput:
        return {"text": output.result}
    return json_value(output.result) if type(output) is JSONToolOutput else None


def _read(kept: Json) -> Any:
    if "messages" in kept:
        return ChatModelOutput(output=read(kept["messages"]), finish_reason=kept["finish_reason"])
    return StringToolOutput(kept["text"]) if "text" in kept else JSONToolOutput(kept["value"])


KINDS: Json = {
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
    "system": SystemMessage,
}


async def message_of(turn: Turn) -> Any:
    """Return the message that began the task as a user message of the framework."""
    content: list[Any] = []
    for each in await input_of(turn, turn.message):
        if isinstance(each, str):
            content.append(MessageTextContent(text=each))
        elif each.kind == "image":
            content.append(MessageImageContent(image_url={"url": each.data_url}))
        else:
            content.append(
                MessageFileContent(
                    file_data=each.data_url, filename=each.filename or None, format=each.media_type
                )
            )
    return UserMessage(content)


def written(messages: Iterable[Any]) -> list[Json]:
    """Return messages as JSON, without system messages."""
    return [
        {"role": str(message.role), "content": [_content(part) for part in message.content]}
        for message in messages
        if str(message.role) in KINDS and not isinstance(message, SystemMessage)
    ]


def read(messages: Iterable[Json]) -> list[Any]:
    """Return messages that ``written`` wrote."""
    return [KINDS[each["role"]](each["content"]) for each in messages]


def without_files(messages: list[Json]) -> list[Json]:
    """Return messages from ``written`` without their files."""
    files = ("image_url", "file")
    return [
        {**each, "content": [part for part in each["content"] if part["type"] not in files]}
        for each in messages
    ]


def plain(value: Any) -> Any:
    """Return a value as JSON, if it is a pydantic model."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _content(part: Any) -> Any:
    if isinstance(part, MessageFileContent):  # its dump leaves the file out
        names = ("file_id", "file_data", "filename", "format")
        given = {name: getattr(part, name) for name in names}
        return {"type": "file", **{name: value for name, value in given.items() if value}}
    return msgspec.json.decode(msgspec.json.encode(plain(part), enc_hook=str))


async def tools(agent: Callee, **options: Any) -> list[Any]:
    """Return the skills of an A2A agent as tools, with the schemas of its card.

    In a turn of Parley they carry its deadline, trace and cancellation, and the turn's caller
    answers questions of the remote agent. Elsewhere a question is the tool's result, and an
    additional tool answers it. ``options`` are options of ``parley.connect``. Raises the errors of
    ``parley.connect``.
    """
    skills = await remote_skills(agent, **options)
    if not skills:
        return []
    questions = OpenQuestions(skills[0].card.name)

    def tool_of(skill: RemoteSkill) -> BeeRemoteTool:
        async def call(arguments: Json) -> ToolResult:
            try:
                return await skill.call(arguments)
            except RemoteQuestion as question:
                return questions.ask(skill, question)

        return BeeRemoteTool(skill.name, skill.description, skill.parameters, call)

    async def answer(given: Json) -> ToolResult:
        return await questions.answer(str(given["task"]), str(given["answer"]))

    about = (questions.tool_name, questions.description, PARAMETERS)
    return [*map(tool_of, skills), BeeRemoteTool(*about, answer, answers=True)]


class BeeRemoteTool(Tool[Any, Any, Any]):  # type: ignore[misc]
    """A skill of an A2A agent as a tool of the framework, or the tool that ``answers`` its
    questions.
    """

    name = description = ""  # abstract properties of the framework, set for each tool

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        call: Callable[[Json], Awaitable[ToolResult]],
        *,
        answers: bool = False,
    ) -> None:
        super().__init__()
        self.name, self.description, self.answers = name, description, answers
        self._parameters, self._call = parameters, call

    @cached_property
    def input_schema(self) -> Any:
        """The parameters of the skill."""
        return JSONSchemaModel.create(self.name, dict(self._parameters))

    def _create_emitter(self) -> Any:
        return Emitter.root().child(namespace=["tool", "a2a"], creator=self)

    async def _run(self, input: Any, options: Any, context: RunContext) -> Any:
        result = await self._call(input.model_dump(mode="json", exclude_none=True))
        if result.is_error:
            raise ToolError(result.text)
        if result.data is not None and not any(part.text for part in result.parts):
            return JSONToolOutput(result.data)
        return StringToolOutput(result.text)

    async def clone(self) -> BeeRemoteTool:
        """Return the same tool."""
        about = self.name, self.description, self._parameters, self._call
        return BeeRemoteTool(*about, answers=self.answers)
