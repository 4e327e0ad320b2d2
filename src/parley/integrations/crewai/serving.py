"""Crews, agents and flows of CrewAI as A2A agents.

Replies of the model and results of tools are steps of the task: a turn is re-run from its beginning
for every answer and after a crash, and a further attempt reads them from the log.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

import msgspec
from crewai import Agent as CrewAgent
from crewai import Crew, Flow
from crewai.core.providers.human_input import reset_provider, set_provider
from crewai.events.stream_context import add_stream_sink, reset_stream_sinks
from crewai.flow.async_feedback import ConsoleProvider, HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.flow_config import flow_config
from crewai.flow.persistence.base import FlowPersistence
from crewai.hooks.dispatch import InterceptionPoint, scoped_hooks
from crewai.tools import BaseTool
from openai import LengthFinishReasonError
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, create_model

from parley.agent.agent import Agent
from parley.agent.remote.callees import Callee
from parley.agent.turn import Turn
from parley.engine.content import accepts
from parley.integrations.answers import text_in
from parley.integrations.conversations import ContextConversation, ContextState
from parley.integrations.crewai.threaded_run import (
    Approvals,
    Asker,
    Feedback,
    RunEvents,
    ThreadedRun,
)
from parley.integrations.message_files import InputFile, input_of
from parley.integrations.serving import (
    RememberedCalls,
    RunOver,
    described,
    framework_agent,
    json_value,
)
from parley.llm.model import Json
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills
from parley.llm.run_output import RunOutput, current_run

try:
    import crewai_files
except ImportError:
    crewai_files = None

TEXTS = ("text/plain", "text/*", "application/json", "application/xml", "application/yaml")
"""The media types of files that are read as text."""

CONVERSATION = "crewai.messages"
"""The key of the messages of a context."""

MAX_MESSAGES = 50
"""The number of messages of a conversation kept."""


def agent(
    thing: Any,
    *,
    name: str | None = None,
    description: str | None = None,
    approve: Collection[str] = (),
    response_format: Any = None,
    max_messages: int = MAX_MESSAGES,
    **options: Any,
) -> Agent:
    """Return a ``Crew``, an ``Agent`` or a class of ``Flow`` as an A2A agent.

    Each turn runs its own copy, in a thread. The inputs of a crew are the data of the message; its
    text fills the only remaining placeholder, or ``{message}``; the caller is asked for the others.
    ``{history}`` is the conversation so far. A flow receives the same inputs, and the state of the
    newest flow in the context.

    ``human_input=True``, feedback that a flow requests, and ``Flow.ask`` ask the turn's caller.
    Tools named in ``approve`` are called only with the caller's approval. Replies of the model and
    results of tools are remembered in the task, so neither an answer nor a crash repeats them.
    ``response_format`` is a pydantic model for the output of an ``Agent``. ``options`` are options
    of Parley's ``Agent``.

    Raises ``TypeError`` for any other object, and ``ValueError`` for an invalid option.
    """
    if isinstance(thing, Flow):
        raise TypeError(
            f"{type(thing).__name__}() holds the state of one run, and many callers would share "
            "it; "
            f"give its class: agent({type(thing).__name__})"
        )
    is_class = isinstance(thing, type)
    if not (issubclass(thing, Flow) if is_class else isinstance(thing, Crew | CrewAgent)):
        raise TypeError(
            f"{type(thing).__name__} cannot be served: give a Crew, an Agent, or a class of Flow"
        )
    runs = _Runs(thing, approve, response_format, max_messages)
    given_name, given_description = _described(thing)
    return framework_agent(
        runs,
        name=name or given_name,
        description=description or given_description,
        tags=("crewai",),
        input_modes=runs.input_modes,
        told=TOLD,
        **options,
    )


class _Runs:
    """Runs a crew, an agent or a flow for a turn."""

    def __init__(
        self, thing: Any, approve: Collection[str], response_format: Any, max_messages: int
    ) -> None:
        self._thing = thing
        self._approve = approve
        self._max_messages = max_messages
        self._is_flow = isinstance(thing, type)
        self._format = response_format
        if isinstance(thing, Crew) and thing.tasks:
            last = thing.tasks[-1]
            self._format = last.output_pydantic or last.output_json
        agents = [] if self._is_flow else getattr(thing, "agents", [thing])
        self.input_modes = (*TEXTS, *_file_types(agents))

    async def __call__(self, turn: Turn, output: RunOutput) -> object:
        said = await input_of(turn, turn.message, reads_texts=False)
        given = [each for each in said if isinstance(each, str)]
        read = [each.text for each in said if isinstance(each, InputFile) and each.text]
        words = "\n".join(each for each in (turn.message.text, *read) if each)
        if self._is_flow:
            run: ThreadedRun = FlowRun(output, self._thing, {**_data_of(turn), "message": words})
        else:
            run = ThreadedRun(output)
        replay, shown = ThreadedReplay(run), RunEvents(run, hidden=self._format is not None)
        conversation = ContextConversation(turn, CONVERSATION, max_messages=self._max_messages)
        history = await conversation.earlier(step="conversation")
        files = self._files(turn, said)
        with ExitStack() as stack:  # managers for the thread's copy of the context
            stack.callback(reset_stream_sinks, add_stream_sink(shown))
            stack.callback(reset_provider, set_provider(Feedback(run)))
            hooks = {InterceptionPoint.PRE_TOOL_CALL: [Approvals(run, self._approve)]}
            stack.enter_context(scoped_hooks(hooks))
            if isinstance(run, FlowRun):
                result = await run.whole()
            elif isinstance(self._thing, Crew):
                inputs = await self._inputs(turn, history, words, given)
                crew = self._prepared(replay)
                result = await run.run(lambda: crew.kickoff(inputs, files))
            else:
                one = self._thing.copy()
                replay.prepare(one)
                messages = [*history, {"role": "user", "content": "\n".join([*given, *read])}]
                result = await run.run(
                    lambda: one.kickoff(messages, self._format, input_files=files)
                )
        text = await self._finish(result, output)
        await conversation.add(
            [{"role": "user", "content": turn.message.text}, {"role": "assistant", "content": text}]
        )
        if self._is_flow and not output.requests.has_said:
            await output.text("The flow has ended without a result.")
        return None

    def _prepared(self, replay: ThreadedReplay) -> Any:
        """Return a copy of the crew for this turn."""
        crew = self._thing.copy()
        for each in (*crew.agents, *([crew.manager_agent] if crew.manager_agent else [])):
            replay.prepare(each)
        if hasattr(crew.manager_llm, "call"):
            crew.manager_llm = replay.model(crew.manager_llm)
        return crew

    async def _inputs(self, turn: Turn, history: list[Any], words: str, given: list[str]) -> Json:
        """Return the inputs of the crew: from the message, and from questions to its caller."""
        wanted, inputs = sorted(self._thing.fetch_inputs()), _data_of(turn)
        if "history" in wanted:
            lines = [f"{each['role']}: {each['content']}" for each in history]
            inputs.setdefault("history", "\n".join(lines))
        inputs.setdefault("message", words or "\n".join(given))
        missing = [each for each in wanted if each not in inputs]
        if len(missing) == 1 and "message" not in wanted and words:
            inputs[missing.pop()] = words
        for each in missing:
            question = f"What is the {each.replace('_', ' ')}?"
            inputs[each] = text_in(await turn.ask(question, key=f"input:{each}"))
        return inputs

    def _files(self, turn: Turn, said: list[str | InputFile]) -> Json | None:
        """Return the files of a message as the framework's files, by their names without suffix.

        Files that the models do not accept reject the task: the framework would ignore them.
        """
        found: Json = {}
        files = [each for each in said if isinstance(each, InputFile) and each.text is None]
        for number, each in enumerate(files, 1):
            if not accepts(self.input_modes, each.media_type):
                turn.reject(
                    f"This agent accepts no files of the type {each.media_type}. "
                    f"It accepts {', '.join(self.input_modes)}."
                )
            name = each.filename.partition(".")[0] or f"file_{number}"
            source = crewai_files.FileBytes(data=each.content, filename=each.filename or None)
            found[f"{name}_{number}" if name in found else name] = crewai_files.File(source=source)
        return found or None

    async def _finish(self, result: Any, output: RunOutput) -> str:
        """Show a result, and return its text."""
        value = getattr(result, "pydantic", None) or getattr(result, "json_dict", None)
        if value is None and not hasattr(result, "raw") and not isinstance(result, str):
            value = result
        text = str(getattr(result, "raw", result if isinstance(result, str) else ""))
        if value is not None:
            is_model = hasattr(value, "model_dump")
            kind = type(value) if is_model else self._format
            schema = getattr(kind, "model_json_schema", lambda: None)()
            value = value.model_dump(mode="json") if is_model else value
            await output.data(value, schema=schema)
        else:
            await output.whole(text)
        return text


def _data_of(turn: Turn) -> Json:
    return dict(turn.data) if isinstance(turn.data, dict) else {}


def _file_types(agents: list[Any]) -> list[str]:
    """Return the media types of files that the models of all these agents accept."""
    taken = [
        crewai_files.get_supported_content_types(llm.provider, getattr(llm, "api", None))
        if getattr(llm, "supports_multimodal", bool)()
        else ()
        for llm in (each.llm for each in agents if crewai_files is not None)
    ]
    types = set.intersection(*map(set, taken or [()])) - {"text/"}
    return sorted(f"{each}*" if each.endswith("/") else each for each in types)


TOLD = (
    (
        LengthFinishReasonError,
        "",
        "The language model's reply reached its maximum length, so its value is incomplete.",
    ),
    (
        Exception,
        "Invalid response from LLM call - None or empty",
        "The language model's answer was empty.",
    ),
)


def _described(thing: Any) -> tuple[str, str]:
    """Return the name and the description of a crew, an agent or a class of flow."""
    if isinstance(thing, CrewAgent):
        tools = [(tool.name, _about(tool)) for tool in thing.tools or ()]
        name = thing.role.strip()
        return name, described(thing.goal.strip(), name, tools)
    if isinstance(thing, Crew):
        tasks = [
            f"- {task.name or task.description.strip().splitlines()[0]}" for task in thing.tasks
        ]
        roles = ", ".join(each.role.strip() for each in thing.agents)
        text = f"A crew of {roles}." if roles else ""
        return thing.name or "crew", "\n".join([text, "", "Tasks:", *tasks]).strip()
    doc = (thing.__doc__ or "").strip()
    return thing.__name__, "" if doc == (Flow.__doc__ or "").strip() else doc


def _about(tool: Any) -> str:
    """Return the description of a tool, without the name and arguments that the
    framework prepends.
    """
    text = str(tool.description)
    _, found, rest = text.partition("Tool Description:")
    return rest if found else text


STATE = "crewai.flow-state"
"""The key of the state that the flows of a context share."""


class FlowRun(ThreadedRun):
    """Runs a flow until it ends; a method that requests feedback asks the caller, and then
    continues.

    While the caller is asked, the framework's own record of the pause is kept: no completed method
    runs again for the answer. A flow begins with the state of completed flows, and keeps its own
    changes.
    """

    name = "crewai.pause"

    def __init__(self, output: RunOutput, kind: type[Any], inputs: Json) -> None:
        super().__init__(output)
        self._kind, self._inputs = kind, inputs
        self._memory = _State()
        self._shared = ContextState(self.turn, STATE)

    async def whole(self) -> Any:
        """Run until the end, and return the result."""
        result, newest = await self.result(), self._memory.newest
        if newest is not None:
            changed = {name: value for name, value in newest.items() if name != "id"}
            await self._shared.write(self._earlier, changed)
        return result

    async def begin(self, given: Any) -> Any:
        """Read the state of earlier flows."""
        self._earlier = await self._shared.read(step="flow")
        return given

    async def answers(self, kept: Json) -> str:
        """Ask for the feedback for which the flow waits."""
        context, self._memory.pending = kept["context"], kept
        output, choices = context.get("method_output"), context.get("emit")
        text = "" if output is None else f"{getattr(output, 'raw', output)}\n\n"
        which = f" ({', '.join(choices)})" if choices else ""
        question = f"{text}{context['message']}{which}"
        return text_in(await self.turn.ask(question, key=f"feedback:{self.number}"))

    async def go(self, given: str | None) -> Json:
        """Run until feedback is requested. Raises ``RunOver`` at the end."""
        result = await self.run(functools.partial(self._played, given))
        if isinstance(result, HumanFeedbackPending):
            return self._memory.pending
        raise RunOver(result)

    def _played(self, feedback: str | None) -> Any:
        memory = self._memory
        if self.kept is not None:
            flow = self._kind.from_pending(self.kept["id"], memory)
            play = functools.partial(flow.resume, feedback)
        else:
            flow = self._kind()
            flow.persistence = memory
            for name, value in _fitting(flow.state, self._earlier).items():
                if isinstance(flow.state, dict):
                    flow.state[name] = value
                else:
                    setattr(flow.state, name, value)
            play = functools.partial(flow.kickoff, inputs=_fitting(flow.state, self._inputs))
        flow.input_provider = Asker(self)
        result = play()
        memory.save_state("", "", flow.state)
        return result


def _fitting(state: Any, inputs: Json) -> Json:
    """Return the inputs that a typed state has fields for; all inputs for an untyped state."""
    fields = getattr(type(state), "model_fields", None)
    if fields is None or type(state).model_config.get("extra") == "allow":
        return inputs
    return {name: value for name, value in inputs.items() if name in fields}


class _State(FlowPersistence):  # type: ignore[misc]
    """The framework's persistence for one task: in memory; ``run_flow`` puts it into the store."""

    pending: Json = {}
    newest: Json | None = None

    def init_db(self) -> None:
        """Do nothing: no setup is needed."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        """Keep the state after a method, and at the end of a run."""
        self.newest = _plain(state_data)

    def load_state(self, flow_uuid: str) -> Json | None:
        """Return the newest state."""
        return self.newest

    def save_pending_feedback(self, flow_uuid: str, context: Any, state_data: Any) -> None:
        """Keep the state of a flow that waits, and its question."""
        self.newest = _plain(state_data)
        self.pending = {"id": flow_uuid, "context": context.to_dict(), "state": self.newest}

    def load_pending_feedback(self, flow_uuid: str) -> Any:
        """Return the state of a flow that waits, and its question."""
        context = PendingFeedbackContext.from_dict(self.pending["context"])
        return self.pending["state"], context

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Forget the question of the flow."""
        self.pending = {}


def _plain(state: Any) -> Any:
    if hasattr(state, "model_dump"):
        return state.model_dump(mode="json")
    return {str(name): value for name, value in dict(state).items()}


class _InRuns:
    """Pauses flows in turns of Parley, and leaves other flows to the configured provider."""

    def __init__(self, configured: Any) -> None:
        self._configured = configured

    def request_feedback(self, context: Any, flow: Any) -> Any:
        """Pause the flow of a turn."""
        if current_run(ThreadedRun) is not None:
            raise HumanFeedbackPending(context=context)
        return self._configured.request_feedback(context, flow)


flow_config.hitl_provider = _InRuns(flow_config.hitl_provider or ConsoleProvider())


class ThreadedReplay:
    """Remembers calls of models and tools in the task of a run, from its thread."""

    def __init__(self, run: ThreadedRun) -> None:
        self._run = run
        self._calls = RememberedCalls(run.turn)

    def prepare(self, agent: Any) -> None:
        """Make the model and the tools of an agent remembered; this run has its own copy of the
        agent.
        """
        agent.tools = [self.tool(tool) for tool in agent.tools or ()]
        if hasattr(agent.llm, "call"):
            agent.llm = self.model(agent.llm)

    def model(self, llm: Any) -> Any:
        """Return a model whose replies are remembered, streamed if it can."""
        copied, requests = (
            llm.model_copy() if hasattr(llm, "model_copy") else llm,
            self._run.requests,
        )
        inner = copied.call

        @functools.wraps(inner)
        def call(messages: Any, *args: Any, **options: Any) -> Any:
            kind = options.get("response_model") or (args[5] if len(args) > 5 else None)
            asked = [_identity(messages), getattr(kind, "__name__", "")]

            def read(kept: Json) -> Any:
                requests.end_as(kept["ending"])
                return _read(kept, kind)

            return self._once(
                "model",
                asked,
                lambda: inner(messages, *args, **options),
                lambda reply: _written(reply, requests.ending),
                read,
            )

        copied.__dict__["call"] = call
        if "stream" in type(copied).model_fields:
            copied.stream = True
        return copied

    def tool(self, tool: Any) -> Any:
        """Return a tool whose results are remembered; its coroutines run in Parley's event loop."""
        if not hasattr(tool, "model_copy"):
            return tool
        if is_remote := isinstance(tool, CrewRemoteTool):
            tool = tool.in_turn()  # the turn remembers its calls itself
        copied = tool.model_copy()
        name = "func" if callable(getattr(tool, "func", None)) else "_run"
        inner = getattr(tool, name)

        @functools.wraps(inner)
        def call(*args: Any, **arguments: Any) -> Any:
            def use() -> Any:
                result = inner(*args, **arguments)
                return self._run.wait(result) if inspect.iscoroutine(result) else result

            if is_remote:
                return use()
            asked = [tool.name, _identity([args, arguments])]
            return self._once("tool", asked, use, json_value, lambda kept: kept["value"])

        copied.__dict__[name] = call
        return copied

    def _once(
        self,
        kind: str,
        asked: object,
        make: Callable[[], Any],
        written: Callable[[Any], Json | None],
        read: Callable[[Json], Any],
    ) -> Any:
        """Return the remembered result of a call, or make the call, and remember the result."""

        async def recall() -> tuple[str, Any]:
            return self._calls.recall(kind, asked)

        key, kept = self._run.wait(recall())
        if kept is not None and kept is not msgspec.UNSET:
            return read(kept)
        value = make()
        if kept is msgspec.UNSET:
            self._run.wait(self._calls.keep(key, written(value)))
        return value


def _written(reply: Any, ending: str) -> Json | None:
    """Return the reply of a model as JSON, ``None`` if it has no JSON form."""
    found: Json | None = None
    if isinstance(reply, str):
        found = {"text": reply}
    elif hasattr(reply, "model_dump"):
        found = {"model": reply.model_dump(mode="json")}
    elif isinstance(reply, list) and all(calls := [_call(each) for each in reply]):
        found = {"calls": calls}
    return found and {**found, "ending": ending}


def _call(call: Any) -> Json | None:
    """Return a tool call in the shape of the chat completions API."""
    if isinstance(call, dict) and "function" in call:
        return dict(call)
    if (function := getattr(call, "function", None)) is None:
        return None
    about = {"name": function.name, "arguments": function.arguments}
    return {"id": call.id, "type": "function", "function": about}


def _read(kept: Json, kind: Any) -> Any:
    if "model" in kept:
        return kind.model_validate(kept["model"]) if kind is not None else kept["model"]
    return kept["calls"] if "calls" in kept else kept["text"]


def _identity(value: Any) -> bytes:
    """Return a value as JSON, with type names instead of values without a JSON form."""
    return msgspec.json.encode(value, enc_hook=lambda other: type(other).__name__)


async def tools(agent: Callee, **options: Any) -> list[Any]:
    """Return the skills of an A2A agent as tools, with the schemas of its card.

    Give them to an agent or a task of the framework, or to a coworker to whom others delegate. In a
    turn of Parley they carry its deadline, trace and cancellation, and the turn's caller answers
    questions of the remote agent. Elsewhere a question is the tool's result, with the id of the
    waiting task; a call with that id answers it. ``options`` are options of ``parley.connect``.
    Raises the errors of ``parley.connect``.
    """
    return [CrewRemoteTool.of(skill) for skill in await remote_skills(agent, **options)]


class CrewRemoteTool(BaseTool):  # type: ignore[misc]
    """A skill of an A2A agent as a tool of the framework."""

    _skill: Any = PrivateAttr(default=None)
    _task_field: str = PrivateAttr(default="")

    @classmethod
    def of(cls, skill: RemoteSkill, *, in_turn: bool = False) -> CrewRemoteTool:
        """Return a skill as a tool; in a turn, its caller answers the questions of the agent."""
        properties = skill.parameters.get("properties", {})
        field = "" if in_turn else next(each for each in TASK_FIELDS if each not in properties)
        tool = cls(
            name=skill.name,
            description=skill.description,
            args_schema=_model_of(skill, field),
            cache_function=lambda *_: False,
        )
        tool._skill, tool._task_field = skill, field
        return tool

    def in_turn(self) -> CrewRemoteTool:
        """Return the tool for the turn of a task, with the schema of the card only."""
        return CrewRemoteTool.of(self._skill, in_turn=True)

    def _run(self, **arguments: Any) -> str:
        run = current_run(ThreadedRun)
        if run is not None:
            return run.wait(self._arun(**arguments))
        return asyncio.run(self._arun(**arguments))

    async def _arun(self, **given: Any) -> str:
        arguments = {name: value for name, value in given.items() if value is not None}
        skill: RemoteSkill = self._skill
        waiting = arguments.pop(self._task_field, None) if self._task_field else None
        try:
            if waiting:
                said = arguments.get("message", "") if skill.takes_words else arguments
                result = await skill.answer(str(waiting), said)
            else:
                result = await skill.call(arguments)
        except RemoteQuestion as question:
            return (
                f"{skill.card.name} asks: {question}\nThe task {question.task.id} waits. "
                f"To answer, call the tool again with that {self._task_field}."
            )
        if result.is_error:
            raise RuntimeError(result.text)
        return result.text


KINDS: Json = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": Json,
}


TASK_FIELDS = ("task", "waiting_task", "a2a_waiting_task_id")
"""Names for the parameter that identifies the question that a call answers."""


def _model_of(skill: RemoteSkill, task_field: str) -> type[BaseModel]:
    """Return the parameters of a skill as the pydantic model that the framework requires.

    It has an additional field ``task_field``.
    """
    schema = skill.parameters
    required = set(schema.get("required", ()))
    fields: Json = {}
    for name, about in schema.get("properties", {}).items():
        kind = KINDS.get(about.get("type", ""), Any)
        default = ... if name in required else about.get("default")
        field = Field(default, description=about.get("description", name))
        fields[name] = (kind if name in required else kind | None, field)
    if task_field:
        about = "The id of the task whose question this answers; none for a new request"
        fields[task_field] = (str | None, Field(None, description=about))
    config = ConfigDict(extra="allow" if schema.get("additionalProperties") else "ignore")
    return create_model(f"{skill.name}_arguments", __config__=config, **fields)
