"""Microsoft Agent Framework: agents and workflows as A2A agents, A2A agents as tools and agents."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, suppress
from functools import partial, reduce
from operator import or_
from typing import Any, get_args, get_type_hints

import msgspec
from agent_framework import (
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    BaseAgent,
    Content,
    FunctionInvocationContext,
    FunctionTool,
    Message,
    ResponseStream,
    Workflow,
    WorkflowAgent,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowExecutor,
    normalize_messages,
)
from agent_framework._tools import _FUNCTION_INVOCATION_LIMIT_FALLBACK_TEXT as NO_ANSWER
from agent_framework._workflows._checkpoint_encoding import (
    decode_checkpoint_value,
    encode_checkpoint_value,
)
from agent_framework.exceptions import (
    AgentContentFilterException,
    ChatClientContentFilterException,
    WorkflowConvergenceException,
)

from parley.agent.agent import Agent
from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.agent_framework.replay import (
    PARLEY,
    RememberReplies,
    RememberResults,
    ShownUpdates,
    answer_to,
    file_of,
    message_of,
    plain,
    schema_of,
    yes_or_no,
)
from parley.integrations.answers import answer_of, fitting, said_in
from parley.integrations.conversations import (
    MAX_BYTES,
    ContextConversation,
    ContextState,
    Messages,
    replaced,
    thread_id,
)
from parley.integrations.serving import (
    FrameworkRun,
    RememberedCalls,
    RunOver,
    described,
    fail_with,
    framework_agent,
)
from parley.llm.current_turn import current_turn
from parley.llm.model import Json
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, card_of, remote_skills
from parley.llm.run_output import FILTERED, RunOutput
from parley.model.cards import AgentCard
from parley.model.parts import Message as A2AMessage
from parley.model.parts import Part
from parley.model.tasks import Task, TaskState

SESSION = "agent_framework.context"
"""The key of the session in a context."""

MAX_MESSAGES = 200
"""The number of messages of its history a session keeps."""


def agent(
    thing: Any,
    *,
    name: str | None = None,
    description: str | None = None,
    max_messages: int = MAX_MESSAGES,
    max_bytes: int = MAX_BYTES,
    remember_runs: bool = True,
    checkpoint_types: Iterable[str] = (),
    **options: Any,
) -> Agent:
    """Return an agent, or a function that builds a workflow, as an A2A agent.

    ``thing`` is any agent of the framework (``SupportsAgentRun``), or a function without parameters
    that returns a ``Workflow``: a workflow holds the state of its run, so each turn builds a new
    one.

    The session belongs to the context: it is kept in Parley's store, with the newest
    ``max_messages`` of its history and at most ``max_bytes`` of JSON; the session ids for the
    framework's providers differ from caller to caller. Tools with
    ``approval_mode="always_require"``, and requests of a workflow, ask the turn's caller. Replies
    of the model and results of tools are remembered in the task, so neither an answer nor a crash
    repeats them, unless ``remember_runs`` is false. A workflow continues from its newest
    checkpoint, in which ``checkpoint_types`` are the author's own types (``module:name``).
    ``options`` are options of ``Agent``.

    Raises ``TypeError`` for any other object, and ``ValueError`` for an invalid option, or if
    ``checkpoint_types`` lacks a type that the workflow passes.
    """
    if isinstance(thing, Workflow | WorkflowAgent):
        raise TypeError(
            f"{type(thing).__name__} {thing.name!r} holds the state of one run, and many callers "
            "would share it; give the function that builds it: agent(build_workflow)"
        )
    tags: tuple[str, ...] = ("agent-framework",)
    bounds = max_messages, max_bytes
    if hasattr(thing, "run"):
        remembers = remember_runs and "middleware" in inspect.signature(thing.run).parameters

        async def run(turn: Turn, output: RunOutput) -> object:
            await run_agent(thing, output, bounds, remembers=remembers)
            return None

        name = name or getattr(thing, "name", None) or type(thing).__name__
        if description is None:
            said = getattr(thing, "description", None)
            tools = (getattr(thing, "default_options", None) or {}).get("tools") or ()
            known = [(each.name, each.description) for each in tools if hasattr(each, "name")]
            description = described(said, name, known)
        modes = ("text/plain", "application/json", "image/*", "audio/*", "application/pdf")
        options.setdefault("input_modes", modes)
    else:

        def build() -> Any:
            made = thing()
            return made.workflow if isinstance(made, WorkflowAgent) else made

        async def run(turn: Turn, output: RunOutput) -> object:
            return await CheckpointRun(build, output, bounds, types).run()

        types = frozenset(checkpoint_types)
        workflow = build() if callable(thing) else None
        if not isinstance(workflow, Workflow):
            raise TypeError(
                f"{type(thing).__name__} is not an agent of the framework: give an Agent, another "
                "object with run(), or a function that returns a Workflow"
            )
        check_types(workflow, types)
        name, tags = name or workflow.name or "workflow", (*tags, "workflow")
        description = description or workflow.description or ""
    return framework_agent(run, name=name, description=description, tags=tags, told=TOLD, **options)


async def run_agent(
    agent: Any, output: RunOutput, bounds: tuple[int, int], *, remembers: bool
) -> None:
    """Run an agent for a turn, and ask the caller its requests."""
    turn = output.turn
    form = (getattr(agent, "default_options", None) or {}).get("response_format")
    shorten = partial(shortened, *bounds)
    kept = ContextState(turn, SESSION, max_bytes=bounds[1], shorten=shorten)
    before = await kept.read(step="session")
    if before:
        session = AgentSession.from_dict(before)
    else:
        session = agent.create_session(session_id=thread_id(turn))
    options: Json = {"session": session, "stream": True}
    if remembers:
        calls = RememberedCalls(turn)
        options["middleware"] = [RememberReplies(calls, output.requests), RememberResults(calls)]
    message, asked = await message_of(turn), 0
    while True:
        shown, updates = ShownUpdates(output, hidden=form is not None), []
        stream = agent.run(message, **options)
        if not hasattr(stream, "__aiter__"):
            stream = await stream
        async for update in stream:
            updates.append(update)
            for content in update.contents:
                await shown.content(content)
        await shown.flush()
        if hasattr(stream, "get_final_response"):
            response = await stream.get_final_response()
        else:
            response = AgentResponse.from_updates(updates)
        if response.text.endswith(NO_ANSWER):
            turn.fail(
                "The agent reached its limit of model requests without an answer "
                "(max_iterations of its client's function_invocation_configuration)."
            )
        if not (requests := response.user_input_requests):
            break
        await output.new_message()
        keys = [f"request-{asked + number}" for number in range(len(requests))]
        asked += len(requests)
        answers = [
            await answer_to(turn, request, key=key)
            for request, key in zip(requests, keys, strict=True)
        ]
        message = Message("user", answers)
    if form is not None:
        await output.data(plain(response.value), schema=schema_of(form))
    await kept.write(before, session.to_dict())


TOLD = (
    (
        WorkflowConvergenceException,
        "",
        "The workflow reached its limit of rounds (max_iterations) without an end.",
    ),
    (AgentContentFilterException, "", FILTERED),
    (ChatClientContentFilterException, "", FILTERED),
)


def shortened(max_messages: int, max_bytes: int, session: Json) -> Json:
    """Return a session, as JSON, with the newest messages of its histories.

    They get three quarters of the bytes, and begin with a user message. If the newest user message
    and the messages after it are too large, they lose their files, and are dropped if that is not
    enough.
    """
    state = session.get("state")
    if not isinstance(state, dict):
        return session
    histories = {
        name: each["messages"]
        for name, each in state.items()
        if isinstance(each, dict) and isinstance(each.get("messages"), list)
    }
    room = max_bytes * 3 // 4 // max(1, len(histories))
    kept = {name: _newest(each, max_messages, room) for name, each in histories.items()}
    shorter = {name: {**state[name], "messages": messages} for name, messages in kept.items()}
    return {**session, "state": {**state, **shorter}}


def _newest(messages: Messages, most: int, room: int) -> Messages:
    kept = messages[max(0, len(messages) - most) :]
    if len(kept) < len(messages):
        kept = kept[_of_user(kept, 0) :]
    sizes = [len(msgspec.json.encode(each)) for each in kept]
    while kept and sum(sizes) > room:
        later = _of_user(kept, 1)
        if later == len(kept):  # the newest messages: keep them without files, or drop them
            bare = [replaced(each, _without_file) for each in kept]
            return bare if len(msgspec.json.encode(bare)) <= room else []
        kept, sizes = kept[later:], sizes[later:]
    return kept


def _of_user(messages: Messages, begin: int) -> int:
    """Return the index of the next user message, or the length."""
    for number, message in enumerate(messages[begin:], begin):
        if isinstance(message, dict) and message.get("role") == "user":
            said = [each for each in message.get("contents") or () if isinstance(each, dict)]
            if {"text", "data", "uri"}.intersection(each.get("type") for each in said):
                return number
    return len(messages)


def _without_file(value: Json) -> Json | None:
    if value.get("type") not in ("data", "uri") or not str(value.get("uri", "")).startswith(
        "data:"
    ):
        return None
    return {"type": "text", "text": f"(a file of the type {value.get('media_type', 'unknown')})"}


TYPES = "agent(build_workflow, checkpoint_types={})"

UNREADABLE = (WorkflowCheckpointException, pickle.PicklingError, AttributeError, TypeError)
"""Errors of values that cannot be written to or read from a checkpoint."""


class CheckpointRun(FrameworkRun):
    """Runs a workflow for one turn, until it has nothing more to do.

    The caller answers its requests, and it continues from the waiting checkpoint. This class stores
    the newest checkpoint: it has the methods of the framework's ``CheckpointStorage`` that runs
    use, ``save`` and ``load``. ``types`` are the author's types in checkpoints, as ``module:name``;
    the framework reads only these and its own.
    """

    name = "agent_framework.checkpoint"

    def __init__(
        self,
        build: Callable[[], Any],
        output: RunOutput,
        bounds: tuple[int, int],
        types: frozenset[str],
    ) -> None:
        super().__init__(output)
        self._build = build
        self._types = types
        self._conversation = ContextConversation(
            self.turn, "agent_framework.conversation", max_messages=bounds[0], max_bytes=bounds[1]
        )
        self._shown = ShownUpdates(output)
        self._said = ""
        self._spoke = ""

    async def run(self) -> str | None:
        """Run until the end. Returns a closing sentence if there is no output."""
        await self.result({})
        if not self.requests.has_said:
            return "The workflow ended without an output."
        if self._said:
            asked = {"role": "user", "text": self.turn.message.text}
            await self._conversation.add([asked, {"role": "assistant", "text": self._said}])
        return None

    async def begin(self, given: Any) -> Any:
        """Read the conversation of the context."""
        self._history = await self._conversation.earlier()
        return given

    async def answers(self, kept: Json) -> Json:
        """Ask the requests for which the newest checkpoint waits."""
        checkpoint = self._checkpoint(kept)
        options: Json = {"checkpoint_id": checkpoint.checkpoint_id}
        if pending := checkpoint.pending_request_info_events:
            options["responses"] = {
                key: await _response(self.turn, pending[key], key) for key in sorted(pending)
            }
        return options

    async def go(self, given: Json) -> Json:
        """Run until a request. Raises ``RunOver`` at the end."""
        workflow, requests = self._build(), 0
        if not given:
            given = {"message": await _input(self.turn, workflow, self._history)}
        async for event in workflow.run(stream=True, checkpoint_storage=self, **given):
            requests += event.type == "request_info"
            await self._show(event)
        if not requests or self.kept is None:
            raise RunOver(None)
        await self.output.new_message()
        return self.kept

    def _checkpoint(self, kept: Json) -> Any:
        decoded = decode_checkpoint_value(kept.get("checkpoint", kept), allowed_types=self._types)
        return WorkflowCheckpoint.from_dict(decoded)

    async def save(self, checkpoint: Any) -> str:
        """Keep a checkpoint instead of the previous one. An unreadable checkpoint ends the task."""
        try:
            written = encode_checkpoint_value(checkpoint.to_dict())
            decode_checkpoint_value(written, allowed_types=self._types)
        except UNREADABLE as error:
            named = re.search(r"type '(\w[\w.]*:[^']+)'", str(error))
            known = sorted({*self._types, named[1]}) if named else []
            why = ValueError(f"{error}; give {TYPES.format(known)}") if known else error
            fail_with(self.turn, "A checkpoint of the workflow cannot be kept.", why)
        await self.keep({"checkpoint": written})
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> Any:
        """Return the checkpoint with an id. Raises ``WorkflowCheckpointException``."""
        newest = None if self.kept is None else self._checkpoint(self.kept)
        if newest is None or newest.checkpoint_id != checkpoint_id:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return newest

    # -- what is shown -------------------------------------------------------------------------

    async def _show(self, event: Any) -> None:
        """Show executors as steps, outputs of the workflow as the answer."""
        executor, data = event.executor_id or "", event.data
        if event.type == "executor_invoked":
            await self.output.step(executor)
        elif event.type == "output":
            await self._say(executor, data)
        elif event.type in ("intermediate", "data"):
            await self.output.step(executor, str(getattr(data, "text", data)))

    async def _say(self, executor: str, data: Any) -> None:
        if isinstance(data, AgentResponse):
            messages = data.messages
        elif isinstance(data, AgentResponseUpdate | Message):
            messages = [data]
        elif isinstance(data, Content | str):
            messages = [Message("assistant", [data])]
        elif isinstance(data, list) and data and isinstance(data[0], Message):
            messages = data
        else:
            await self.output.data(plain(data))
            return
        contents = [each for message in messages for each in message.contents]
        if self._said and self._spoke != executor:
            contents.insert(0, Content.from_text("\n\n"))
        self._spoke = executor
        for content in contents:
            if content.type == "text":
                self._said += content.text or ""
            await self._shown.content(content)
        await self._shown.flush()


async def _input(turn: Turn, workflow: Any, history: list[dict[str, str]]) -> Any:
    """Return the input of the first executor: messages, text, or a value of its type."""
    types = workflow.get_start_executor().input_types
    if list[Message] in types:
        earlier = [Message(each["role"], [each["text"]]) for each in history]
        return [*earlier, await message_of(turn)]
    if Message in types:
        return await message_of(turn)
    own = [each for each in types if not is_of_framework(each)]
    if not own or (turn.data is None and str in own):
        return turn.message.text
    return fitting(turn, reduce(or_, own), said_in(turn.message))


async def _response(turn: Turn, event: Any, key: str) -> Any:
    """Ask the caller the request of a workflow, and return the answer in the required type."""
    asked, kind = event.data, event.response_type
    if isinstance(asked, Content) and asked.user_input_request:
        return await answer_to(turn, asked, key=key)
    shown = asked if isinstance(asked, str) else plain(asked)
    if kind is bool:
        question = shown if isinstance(shown, str) else f"Do you agree to {shown}?"
        return await yes_or_no(turn, question, key=key)
    if kind is str or kind is None:
        return (await turn.ask(shown, key=key)).text
    return await turn.ask(shown, answer=kind, key=key)


def check_types(workflow: Any, types: Iterable[str]) -> None:
    """Raise ``ValueError`` if checkpoints may contain types that the framework cannot read.

    Checked are the types of messages, requests and responses of executors, and of their fields. An
    executor's own state is only known when it is kept.
    """
    known, lacking = frozenset(types), set()
    for kind in _types_of(workflow):
        try:
            decode_checkpoint_value(encode_checkpoint_value(kind), allowed_types=known)
        except UNREADABLE:
            lacking.add(f"{kind.__module__}:{kind.__qualname__}")
    if lacking:
        raise ValueError(
            f"checkpoints of the workflow {workflow.name!r} may have {', '.join(sorted(lacking))}, "
            f"which the framework does not read: give {TYPES.format(sorted(known | lacking))}"
        )


def is_of_framework(kind: Any) -> bool:
    """Return whether a type belongs to the framework."""
    return str(getattr(kind, "__module__", "")).startswith("agent_framework")


def _types_of(workflow: Any) -> set[Any]:
    """Return the author's types that executors of a workflow pass, and the types of
    their fields.
    """
    found: set[Any] = set()
    pending: list[Any] = []
    for each in workflow.get_executors_list():
        pending += [*each.input_types, *each.output_types]
        pending += [kind for pair in getattr(each, "_response_handlers", ()) for kind in pair]
        if isinstance(each, WorkflowExecutor):
            found |= _types_of(each.workflow)
    while pending:
        kind = pending.pop()
        pending += get_args(kind)
        is_known = not isinstance(kind, type) or is_of_framework(kind) or kind in found
        if is_known or kind.__module__.partition(".")[0] in sys.stdlib_module_names:
            continue
        if inspect.isabstract(kind) or getattr(kind, "_is_protocol", False):
            continue
        found.add(kind)
        with suppress(NameError, TypeError):  # unresolvable annotations
            pending += get_type_hints(kind).values()
    return found


QUESTIONS = "parley.questions"
"""The key of a session's state for tasks that wait for an answer."""


async def tools(agent: Callee, *, approval_mode: str | None = None, **options: Any) -> list[Any]:
    """Return the skills of an A2A agent as tools (``FunctionTool``), with the schemas of its card.

    In a turn of Parley they carry its deadline, trace and cancellation, and the turn's caller
    answers questions of the agent. Elsewhere a question is the tool's result; the next call in the
    same session answers it. ``approval_mode`` is the framework's option, ``options`` are options of
    ``parley.connect``. Raises the errors of ``parley.connect``.
    """

    def tool_of(skill: RemoteSkill) -> Any:
        async def call(ctx: FunctionInvocationContext, **arguments: Any) -> Any:
            state = {} if ctx.session is None else ctx.session.state
            known = {} if current_turn() is not None else state.setdefault(QUESTIONS, {})
            waiting = known.pop(skill.name, None)
            try:
                if waiting is not None:
                    answer = arguments.get("message", arguments) if skill.takes_words else arguments
                    return _contents(await skill.answer(waiting, answer))
                return _contents(await skill.call(arguments))
            except RemoteQuestion as question:
                known[skill.name] = question.task.id
                return (
                    f"{skill.card.name} asks: {question}\n"
                    "Call the tool again to answer; ask the user if you do not know."
                )

        return FunctionTool(
            name=skill.name,
            description=skill.description,
            input_model=dict(skill.parameters),
            func=call,
            approval_mode=approval_mode,
            additional_properties={PARLEY: True},
        )

    return [tool_of(skill) for skill in await remote_skills(agent, **options)]


def _contents(result: ToolResult) -> Any:
    if result.is_error:  # the framework hides the text of an exception from the model
        return f"Error: {result.text}"
    files = [part for part in result.parts if part.is_file]
    if not files:
        return result.text
    return [Content.from_text(result.text), *map(_content_of, files)]


def _content_of(part: Part) -> Any:
    media_type = part.media_type or "application/octet-stream"
    if isinstance(part.url, str):
        return Content.from_uri(part.url, media_type=media_type)
    return Content.from_data(bytes(part.raw), media_type)  # type: ignore[arg-type]


async def sub_agent(
    agent: Callee, *, name: str | None = None, description: str | None = None, **options: Any
) -> CalledAgent:
    """Return an A2A agent as an agent of the framework, to run, to orchestrate or ``as_tool()``.

    ``options`` are options of ``parley.connect``. Raises the errors of ``parley.connect``.
    """
    card = await card_of(agent, options)
    return CalledAgent(agent, card, name=name, description=description, options=options)


class CalledAgent(BaseAgent):  # type: ignore[misc]
    """An A2A agent as an agent of the framework.

    A session is a context of the remote agent. Within a turn of Parley the call is part of the
    turn: its deadline, trace and cancellation, its questions, its log. Elsewhere a question of the
    agent is its response, and the next run in the session answers it.
    """

    def __init__(
        self,
        agent: Callee,
        card: AgentCard,
        *,
        name: str | None = None,
        description: str | None = None,
        options: Json | None = None,
    ) -> None:
        super().__init__(
            name=name or card.name, description=description or card.description or card.name
        )
        self.card = card
        self._agent = agent
        self._options = dict(options or {})

    def run(
        self, messages: Any = None, *, stream: bool = False, session: Any = None, **_: Any
    ) -> Any:
        """Send the newest messages of the user, and return the response or its stream."""
        updates = self._updates(normalize_messages(messages), session)
        response = ResponseStream(updates, finalizer=AgentResponse.from_updates)
        return response if stream else response.get_final_response()

    async def _updates(self, messages: list[Any], session: Any) -> AsyncIterator[Any]:
        known = {} if session is None else session.state.setdefault("parley", {})
        where, shown = {} if current_turn() is not None else known, False
        answers = answer_of(
            self._agent,
            self._options,
            _newest_parts(messages),
            task_id=where.pop("task_id", None),
            context_id=where.get("context_id"),
        )
        async with aclosing(answers) as heard:
            async for each in heard:
                if not isinstance(each, str):
                    answer = each
                elif each:
                    shown = True
                    yield self._update(Part(text=each))
        where["context_id"] = answer.context_id
        if isinstance(answer, Task) and answer.state.is_interrupted:
            where["task_id"] = answer.id
            yield self._update(Part(text=RemoteQuestion(answer).text))
            return
        for part in _parts_of(answer):
            if part.text is None or not shown:
                yield self._update(part)

    def _update(self, part: Part) -> Any:
        text = part.text if isinstance(part.text, str) else ToolResult(data=part.data).text
        content = _content_of(part) if part.is_file else Content.from_text(text)
        return AgentResponseUpdate(contents=[content], role="assistant", author_name=self.name)


def _newest_parts(messages: list[Any]) -> list[Part]:
    """Return the messages after the newest message of an agent, as parts."""
    newest: list[Any] = []
    for message in reversed(messages):
        if str(message.role) == "assistant" and newest:
            break
        newest.insert(0, message)
    parts = []
    for message in newest:
        for content in message.contents:
            if content.type == "text":
                parts.append(Part(text=content.text))
            elif (file := file_of(content)) is not None:
                parts.append(file)
    return parts or [Part(text="")]


def _parts_of(answer: Task | A2AMessage) -> list[Part]:
    """Return the parts of an answer. Raises ``RuntimeError`` for a task without success."""
    if isinstance(answer, A2AMessage):
        return list(answer.parts)
    if answer.state is not TaskState.COMPLETED:
        raise RuntimeError(f"the remote task ended as {answer.state.name.lower()}: {answer.text}")
    parts = [part for artifact in answer.artifacts for part in artifact.parts]
    return parts or list(answer.status.message.parts if answer.status.message else ())
