"""Microsoft Agent Framework: agents and workflows as A2A agents, A2A agents as tools and agents."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple, get_args, get_type_hints

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
    TaskValue,
    replaced,
    thread_id,
)
from parley.integrations.serving import RememberedCalls, Run, described, fail_with, framework_agent
from parley.llm.current_turn import current_turn
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, card_of, remote_skills
from parley.llm.run_output import FILTERED, RunOutput
from parley.model.cards import AgentCard
from parley.model.parts import Message as A2AMessage
from parley.model.parts import Part
from parley.model.tasks import Task, TaskState, TaskStatus

SESSION = "agent_framework.context"
"""The key of the session in a context."""

MAX_MESSAGES = 200
"""How many messages of its history a session keeps."""


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
    """Return an agent, or what builds a workflow, as an A2A agent.

    ``thing`` is anything that the framework calls an agent (``SupportsAgentRun``), or a function
    without parameters that returns a ``Workflow``: a workflow has the state of its run, so each
    turn builds a new one.

    The session belongs to the context: it is kept in Parley's store, with the newest
    ``max_messages`` of its history and at most ``max_bytes`` of JSON; session ids that providers of
    the framework see differ from caller to caller. Tools with ``approval_mode="always_require"``,
    and requests of a workflow, ask the turn's caller. Replies of the model and results of tools are
    remembered in the task, so neither an answer nor a crash repeats them, unless ``remember_runs``
    is false. A workflow continues from its newest checkpoint, in which ``checkpoint_types`` are the
    author's own types (``module:name``). ``options`` are options of ``Agent``.

    Raises ``TypeError`` for anything else, and ``ValueError`` for an invalid option, or if
    ``checkpoint_types`` lacks a type that the workflow passes.
    """
    if isinstance(thing, Workflow | WorkflowAgent):
        raise TypeError(
            f"{type(thing).__name__} {thing.name!r} has the state of one run, and many callers "
            "would share it; give the function that builds it: agent(build_workflow)"
        )
    run: Run
    bounds = Bounds(max_messages, max_bytes)
    tags: tuple[str, ...] = ("agent-framework",)
    if hasattr(thing, "run"):
        run = _Runs(thing, bounds, remember=remember_runs)
        name = name or getattr(thing, "name", None) or type(thing).__name__
        if description is None:
            said = getattr(thing, "description", None)
            description = described(said, name, _tools_of(thing))
        modes = ("text/plain", "application/json", "image/*", "audio/*", "application/pdf")
        options.setdefault("input_modes", modes)
    else:
        build, types = partial(_built, thing), tuple(checkpoint_types)
        workflow = build() if callable(thing) else None
        if not isinstance(workflow, Workflow):
            raise TypeError(
                f"{type(thing).__name__} is no agent of the framework: give an Agent, another "
                "object with run(), or a function that returns a Workflow"
            )
        check_types(workflow, types)
        run = partial(run_workflow, build, bounds=bounds, types=types)
        name, tags = name or workflow.name or "workflow", (*tags, "workflow")
        description = description or workflow.description or ""
    return framework_agent(run, name=name, description=description, tags=tags, told=TOLD, **options)


def _built(build: Callable[[], Any]) -> Any:
    made = build()
    return made.workflow if isinstance(made, WorkflowAgent) else made


class _Runs:
    """Runs an agent for a turn."""

    def __init__(self, agent: Any, bounds: Bounds, *, remember: bool) -> None:
        self._agent = agent
        self._bounds = bounds
        takes = inspect.signature(agent.run).parameters
        self._remembers = remember and "middleware" in takes
        self._format = (getattr(agent, "default_options", None) or {}).get("response_format")

    async def __call__(self, turn: Turn, output: RunOutput) -> None:
        most = self._bounds.max_bytes
        kept = ContextState(turn, SESSION, max_bytes=most, shorten=self._bounds.shortened)
        before = await kept.read(step="session")
        if before:
            session = AgentSession.from_dict(before)
        else:
            session = self._agent.create_session(session_id=thread_id(turn))
        options: dict[str, Any] = {}
        if self._remembers:
            calls = RememberedCalls(turn)
            options["middleware"] = [
                RememberReplies(calls, output.requests),
                RememberResults(calls),
            ]
        message = await message_of(turn)
        asked = 0
        while True:
            shown = ShownUpdates(output, hidden=self._format is not None)
            response = await self._once(message, session, shown, options)
            if response.text.endswith(NO_ANSWER):
                turn.fail(
                    "The agent reached its most model requests without an answer "
                    "(max_iterations of its client's function_invocation_configuration)."
                )
            requests = response.user_input_requests
            if not requests:
                break
            await output.new_message()
            answers = []
            for request in requests:
                answers.append(await answer_to(turn, request, key=f"request-{asked}"))
                asked += 1
            message = Message("user", answers)
        if self._format is not None:
            await output.data(plain(response.value), schema=schema_of(self._format))
        await kept.write(before, session.to_dict())

    async def _once(
        self, message: Any, session: Any, shown: ShownUpdates, options: Mapping[str, Any]
    ) -> Any:
        stream = self._agent.run(message, stream=True, session=session, **options)
        if not hasattr(stream, "__aiter__"):
            stream = await stream
        updates = []
        async for update in stream:
            updates.append(update)
            await shown.update(update)
        await shown.flush()
        if hasattr(stream, "get_final_response"):
            return await stream.get_final_response()
        return AgentResponse.from_updates(updates)


TOLD = (
    (
        WorkflowConvergenceException,
        "",
        "The workflow reached its most rounds (max_iterations) without an end.",
    ),
    (AgentContentFilterException, "", FILTERED),
    (ChatClientContentFilterException, "", FILTERED),
)


def _tools_of(thing: Any) -> list[tuple[str, object]]:
    """Return the tools of an agent with their descriptions."""
    tools = (getattr(thing, "default_options", None) or {}).get("tools") or ()
    return [(tool.name, tool.description) for tool in tools if hasattr(tool, "name")]


class Bounds(NamedTuple):
    """How many messages, and how many bytes of JSON, the session of a context has at most."""

    max_messages: int
    max_bytes: int

    def shortened(self, session: dict[str, Any]) -> dict[str, Any]:
        """Return a session, as JSON, with the newest messages of its histories.

        They have three quarters of the bytes, and begin with a message of the user. The newest
        message of the user, with all messages after it, loses its files if it is too large alone,
        and goes if that does not help.
        """
        state = session.get("state")
        if not isinstance(state, dict):
            return session
        histories = {
            name: each["messages"]
            for name, each in state.items()
            if isinstance(each, dict) and isinstance(each.get("messages"), list)
        }
        room = self.max_bytes * 3 // 4 // max(1, len(histories))
        kept = {name: _newest(each, self.max_messages, room) for name, each in histories.items()}
        shorter = {name: {**state[name], "messages": messages} for name, messages in kept.items()}
        return {**session, "state": {**state, **shorter}}


def _newest(messages: Messages, most: int, room: int) -> Messages:
    kept = messages[max(0, len(messages) - most) :]
    if len(kept) < len(messages):
        kept = kept[_of_user(kept, 0) :]
    sizes = [len(msgspec.json.encode(each)) for each in kept]
    while kept and sum(sizes) > room:
        later = _of_user(kept, 1)
        if later == len(kept):  # these are the newest: without their files, or not at all
            bare = [replaced(each, _without_file) for each in kept]
            return bare if len(msgspec.json.encode(bare)) <= room else []
        kept, sizes = kept[later:], sizes[later:]
    return kept


def _of_user(messages: Messages, begin: int) -> int:
    """Return the number of the next message of the user, else how many messages there are."""
    for number in range(begin, len(messages)):
        if _is_said(messages[number]):
            return number
    return len(messages)


def _is_said(message: Any) -> bool:
    """Return whether the user says something, rather than approves a call."""
    if not isinstance(message, dict) or message.get("role") != "user":
        return False
    kinds = [each.get("type") for each in message.get("contents") or () if isinstance(each, dict)]
    return bool({"text", "data", "uri"}.intersection(kinds))


def _without_file(value: dict[str, Any]) -> dict[str, Any] | None:
    if value.get("type") not in ("data", "uri") or not str(value.get("uri", "")).startswith(
        "data:"
    ):
        return None
    return {"type": "text", "text": f"(a file of the type {value.get('media_type', 'unknown')})"}


CONVERSATION = "agent_framework.conversation"
"""The key of the messages of a context."""


async def run_workflow(
    build: Callable[[], Any],
    turn: Turn,
    output: RunOutput,
    *,
    bounds: Bounds,
    types: Iterable[str] = (),
) -> str | None:
    """Run a workflow until it has nothing more to do. Returns a further sentence.

    Each checkpoint is kept in the store. The caller answers requests of the workflow, which
    continues from the checkpoint that waits for it.
    """
    checkpoints = TaskCheckpoints(turn, types)
    conversation = ContextConversation(
        turn, CONVERSATION, max_messages=bounds.max_messages, max_bytes=bounds.max_bytes
    )
    history = await conversation.earlier()
    events = _Events(output)
    while True:
        checkpoint = await checkpoints.newest()
        workflow = build()
        options: dict[str, Any] = {"checkpoint_storage": checkpoints}
        if checkpoint is None:
            options["message"] = await _input(turn, workflow, history)
        else:
            options["checkpoint_id"] = checkpoint.checkpoint_id
            pending = checkpoint.pending_request_info_events
            if pending:
                options["responses"] = {
                    key: await _response(turn, pending[key], key) for key in sorted(pending)
                }
        requests = 0
        async for event in workflow.run(stream=True, **options):
            requests += event.type == "request_info"
            await events.show(event)
        if not requests:
            break
        await output.new_message()
    if not output.requests.has_said:
        return "The workflow ended without an output."
    if events.said:
        asked = {"role": "user", "text": turn.message.text}
        await conversation.add([asked, {"role": "assistant", "text": events.said}])
    return None


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
    """Ask the caller the request of a workflow, and return the answer in the type it wants."""
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


class _Events:
    """Shows the events of a workflow: executors as steps, its outputs as the answer."""

    def __init__(self, output: RunOutput) -> None:
        self.said = ""
        self._output = output
        self._shown = ShownUpdates(output)
        self._spoke = ""

    async def show(self, event: Any) -> None:
        """Show an event."""
        if event.type == "executor_invoked":
            await self._output.step(event.executor_id)
        elif event.type == "output":
            await self._said(event.executor_id or "", event.data)
        elif event.type in ("intermediate", "data"):
            await self._output.step(event.executor_id or "", _text(event.data))

    async def _said(self, executor: str, data: Any) -> None:
        if isinstance(data, AgentResponse):
            contents = [each for message in data.messages for each in message.contents]
        elif isinstance(data, AgentResponseUpdate | Message):
            contents = list(data.contents)
        elif isinstance(data, Content):
            contents = [data]
        elif isinstance(data, list) and data and isinstance(data[0], Message):
            contents = [each for message in data for each in message.contents]
        elif isinstance(data, str):
            contents = [Content.from_text(data)]
        else:
            await self._output.data(plain(data))
            return
        if self.said and self._spoke != executor:
            await self._say("\n\n")
        self._spoke = executor
        for content in contents:
            if content.type == "text":
                self.said += content.text or ""
            await self._shown.content(content)
        await self._shown.flush()

    async def _say(self, text: str) -> None:
        self.said += text
        await self._output.text(text)


def _text(data: Any) -> str:
    """Return the text of an intermediate output."""
    text = getattr(data, "text", data)
    return text if isinstance(text, str) else str(text)


TYPES = "agent(build_workflow, checkpoint_types={})"

UNREADABLE = (WorkflowCheckpointException, pickle.PicklingError, AttributeError, TypeError)
"""Errors of values that cannot be written to a checkpoint, or read from it."""


class TaskCheckpoints:
    """Keeps the newest checkpoint of one task.

    It has what runs of the framework use of its ``CheckpointStorage``: ``save`` and ``load``.
    ``types`` are the author's types in checkpoints, as ``module:name``; the framework reads no
    others but its own.
    """

    def __init__(self, turn: Turn, types: Iterable[str] = ()) -> None:
        self._turn = turn
        self._kept = TaskValue(turn, "agent_framework.checkpoint")
        self._types = frozenset(types)

    async def newest(self) -> Any | None:
        """Return the newest checkpoint, ``None`` if there is none."""
        kept = await self._kept.read()
        if kept is None:
            return None
        decoded = decode_checkpoint_value(kept, allowed_types=self._types)
        return WorkflowCheckpoint.from_dict(decoded)

    async def save(self, checkpoint: Any) -> str:
        """Keep a checkpoint in place of the one before. An unreadable checkpoint ends the task."""
        try:
            written = encode_checkpoint_value(checkpoint.to_dict())
            decode_checkpoint_value(written, allowed_types=self._types)
        except UNREADABLE as error:
            named = re.search(r"type '(\w[\w.]*:[^']+)'", str(error))
            known = sorted({*self._types, named[1]}) if named else []
            why = ValueError(f"{error}; give {TYPES.format(known)}") if known else error
            fail_with(self._turn, "A checkpoint of the workflow cannot be kept.", why)
        await self._kept.write(written)
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> Any:
        """Return the checkpoint with an id. Raises ``WorkflowCheckpointException``."""
        newest = await self.newest()
        if newest is None or newest.checkpoint_id != checkpoint_id:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return newest


def check_types(workflow: Any, types: Iterable[str]) -> None:
    """Raise ``ValueError`` if checkpoints may have types that cannot be read from them.

    These are types of messages, requests and responses of executors, and of their fields. What an
    executor keeps by itself is known when it is kept.
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
    """Return the author's types that executors of a workflow pass, and those of their fields."""
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
        with suppress(NameError, TypeError):  # of annotations that cannot be resolved
            pending += get_type_hints(kind).values()
    return found


QUESTIONS = "parley.questions"
"""The key of a session's state for tasks that wait for an answer."""


async def tools(agent: Callee, *, approval_mode: str | None = None, **options: Any) -> list[Any]:
    """Return the skills of an A2A agent as tools (``FunctionTool``), with the schemas of its card.

    In a turn of Parley they carry its deadline, trace and cancellation, and questions of the agent
    are asked of the turn's caller. Elsewhere a question is the tool's result; the next call in the
    same session answers it. ``approval_mode`` is that of the framework, ``options`` are options of
    ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    skills = await remote_skills(agent, **options)
    return [_tool(skill, approval_mode) for skill in skills]


def _tool(skill: RemoteSkill, approval_mode: str | None) -> Any:
    async def call(ctx: FunctionInvocationContext, **arguments: Any) -> Any:
        turn = current_turn()
        state = {} if ctx.session is None else ctx.session.state
        waiting = state.get(QUESTIONS, {}).pop(skill.name, None) if turn is None else None
        try:
            if waiting is not None:
                answer = arguments.get("message", arguments) if skill.takes_words else arguments
                return _contents(await skill.answer(_task(waiting), answer))
            return _contents(await skill.call(arguments))
        except RemoteQuestion as question:
            task = question.task
            ids = {"id": task.id, "context_id": task.context_id}
            state.setdefault(QUESTIONS, {})[skill.name] = ids
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


def _task(ids: dict[str, str]) -> Task:
    status = TaskStatus(state=TaskState.INPUT_REQUIRED)
    return Task(id=ids["id"], context_id=ids["context_id"], status=status)


def _contents(result: ToolResult) -> Any:
    if result.is_error:  # of an exception the framework tells the model nothing but that
        return f"Error: {result.text}"
    files = [part for part in result.parts if part.is_file]
    if not files:
        return result.text
    return [Content.from_text(result.text), *(_content_of(part) for part in files)]


def _content_of(part: Part) -> Any:
    media_type = part.media_type or "application/octet-stream"
    if isinstance(part.url, str):
        return Content.from_uri(part.url, media_type=media_type)
    return Content.from_data(bytes(part.raw), media_type)  # type: ignore[arg-type]


async def sub_agent(
    agent: Callee, *, name: str | None = None, description: str | None = None, **options: Any
) -> CalledAgent:
    """Return an A2A agent as an agent of the framework, to run, to orchestrate or ``as_tool()``.

    ``options`` are options of ``parley.connect``. Raises what that raises.
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
        options: dict[str, Any] | None = None,
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
        parts = _newest_parts(messages)
        known = {} if session is None else session.state.setdefault("parley", {})
        where = {} if current_turn() is not None else known
        answers = answer_of(
            self._agent,
            self._options,
            parts,
            task_id=where.pop("task_id", None),
            context_id=where.get("context_id"),
        )
        shown = False
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
        if part.is_file:
            content = _content_of(part)
        else:
            text = part.text if isinstance(part.text, str) else ToolResult(data=part.data).text
            content = Content.from_text(text)
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
