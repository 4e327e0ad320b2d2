"""Agents of Pydantic AI served, and the skills of another agent as a toolset."""

from __future__ import annotations

import inspect
import mimetypes
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic_ai import RunContext, Tool, ToolReturn
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.exceptions import (
    CallDeferred,
    ToolFailed,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
)
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FilePart,
    FileUrl,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    UserContent,
    VideoUrl,
)
from pydantic_ai.output import TextOutput
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_core import to_jsonable_python

from parley.agent.agent import Agent
from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.extensions.questions import schema_part
from parley.integrations.answers import approval, json_text, said_in
from parley.integrations.conversations import ContextConversation, TaskValue
from parley.integrations.message_files import input_of
from parley.integrations.serving import described, framework_agent
from parley.llm.model import ModelUsage
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills
from parley.llm.run_output import RunOutput
from parley.model.parts import Message, Part

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
    need approval and calls that are deferred ask the caller. After a crash a run continues from its
    last step: the model does not repeat its replies, and only tools of the step that was
    interrupted are called again. ``options`` are options of ``framework_agent`` and ``Agent``.

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
            f"{getattr(thing.deps_type, '__name__', thing.deps_type)}, and its tools would get "
            "None: give deps=..., or "
            "deps_of=lambda turn: ... to make them for each turn"
        )
    make_deps = deps_of or (lambda turn: deps)
    runs = AgentRuns(thing, make_deps, usage_limits, tuple(toolsets), max_messages)
    tools = _tools(thing, toolsets)
    name = name or thing.name or "Agent"
    about = description
    if about is None:
        about = described(str(thing.description or ""), name, tools.items())
    settings: dict[str, Any] = {"tags": ("pydantic-ai", *tools), **options}
    if runs.schema is not None:
        settings.setdefault("output_schema", runs.schema)
    return framework_agent(runs.run, name=name, description=about, told=TOLD, **settings)


class AgentRuns:
    """Runs an agent of Pydantic AI for turns."""

    def __init__(
        self,
        thing: AbstractAgent[Any, Any],
        make_deps: Callable[[Turn], Any],
        usage_limits: UsageLimits | None,
        toolsets: tuple[AbstractToolset[Any], ...],
        max_messages: int,
    ) -> None:
        self._agent = thing
        self._make_deps = make_deps
        self._toolsets = toolsets
        self._max_messages = max_messages
        outputs = _outputs(thing.output_type)
        self._allows_text = any(each is str or isinstance(each, TextOutput) for each in outputs)
        self.schema: dict[str, Any] | None = (
            None if self._allows_text else dict(thing.output_json_schema())
        )
        self._options: dict[str, Any] = {"usage_limits": usage_limits}
        if toolsets:
            self._options["toolsets"] = toolsets
        if DeferredToolRequests not in outputs and not getattr(thing, "_output_validators", None):
            # Else the agent has to say itself that calls may be deferred.
            given = thing.output_type
            known = list(given) if isinstance(given, list | tuple) else [given]
            self._options["output_type"] = [*known, DeferredToolRequests]

    async def run(self, turn: Turn, output: RunOutput) -> None:
        """Run the agent until the task is done; ask the caller whenever a call is deferred."""
        kept = KeptConversation(turn, self._max_messages)
        await kept.load()
        shown = ShownRun(output, kept.usage, allows_text=self._allows_text)
        deps = self._make_deps(turn)
        if inspect.isawaitable(deps):
            deps = await deps
        prompt = None if kept.messages else await prompt_of(turn, turn.message)
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
        is_asked = False
        async with self._agent.iter(
            prompt,
            message_history=[*kept.earlier, *kept.messages],
            deferred_tool_results=results,
            conversation_id=conversation_id,
            deps=deps,
            usage=kept.usage,
            **self._options,
        ) as run:
            async for node in run:
                if self._agent.is_model_request_node(node):
                    new = run.all_messages()[len(kept.earlier) :]
                    if any(isinstance(each, ModelResponse) for each in new):
                        await kept.checkpoint([*run.all_messages(), node.request], run.usage)
                    await shown.output.new_message()
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


def _outputs(spec: Any) -> list[Any]:
    """Return the output types of a specification."""
    if isinstance(spec, list | tuple):
        return [each for one in spec for each in _outputs(one)]
    arguments = getattr(spec, "__args__", None)
    if arguments and type(spec).__name__ in ("UnionType", "_UnionGenericAlias", "Union"):
        return [each for one in arguments for each in _outputs(one)]
    return [spec]


def _tools(thing: AbstractAgent[Any, Any], more: Sequence[Any]) -> dict[str, str]:
    """Return the descriptions of the tools that are known before a run, by their names."""
    found: dict[str, str] = {}

    def look(toolset: Any) -> None:
        known = getattr(toolset, "tools", None)
        for name, tool in known.items() if isinstance(known, dict) else ():
            found.setdefault(name, str(getattr(tool, "description", "") or ""))

    for each in (*thing.toolsets, *more):
        each.apply(look)
    return found


TOLD = (
    (UsageLimitExceeded, "", "The run used more than it may (usage_limits): {}"),
    (UnexpectedModelBehavior, "", "The language model gave no answer that fits."),
)


HISTORY = "pydantic-ai"
RUN = "pydantic-ai-run"

_REQUESTS = TypeAdapter(DeferredToolRequests)


class KeptConversation:
    """The memory of a context: the messages of its tasks that ended, and the run of this task.

    It has the newest messages of the context, at most ``limit``, in whole tasks; the newest task is
    always kept. The run of a task is written before the model is asked again and before tools are
    called, so a further attempt continues from there. It is removed when the task ends.
    """

    def __init__(self, turn: Turn, limit: int) -> None:
        self.earlier: list[ModelMessage] = []
        self.messages: list[ModelMessage] = []
        """The messages of this task."""
        self.requests: DeferredToolRequests | None = None
        """What the run waits for."""
        self.pauses = 0
        """How often the run has paused."""
        self.usage = RunUsage()
        self._conversation = ContextConversation(
            turn, HISTORY, max_messages=limit, keeps_newest=True
        )
        self._run = TaskValue(turn, RUN)

    async def load(self) -> None:
        """Read what is kept."""
        written = await self._conversation.earlier()
        self.earlier = ModelMessagesTypeAdapter.validate_python(written)
        run = await self._run.read()
        if run is not None:
            self.messages = ModelMessagesTypeAdapter.validate_python(run["messages"])
            self.requests = (
                None if run["requests"] is None else _REQUESTS.validate_python(run["requests"])
            )
            self.usage = RunUsage(**run["usage"])
            self.pauses = run["pauses"]

    async def checkpoint(
        self,
        messages: list[ModelMessage],
        usage: RunUsage,
        requests: DeferredToolRequests | None = None,
    ) -> None:
        """Keep the run as it is now. ``messages`` are all of the context."""
        self.messages = messages[len(self.earlier) :]
        self.requests = requests
        if requests is not None:
            self.pauses += 1
        counted = ("requests", "tool_calls", "input_tokens", "output_tokens")
        run = {
            "messages": _written(self.messages),
            "requests": None if requests is None else _REQUESTS.dump_python(requests, mode="json"),
            "usage": {name: getattr(usage, name) for name in counted},
            "pauses": self.pauses,
        }
        await self._run.write(run)

    async def finish(self, messages: list[ModelMessage]) -> None:
        """Add the task to the memory of the context. A further attempt replaces it."""
        await self._conversation.add(_written(messages[len(self.earlier) :]))


def _written(messages: list[ModelMessage]) -> Any:
    return ModelMessagesTypeAdapter.dump_python(messages, mode="json")


async def results_of(
    turn: Turn, requests: DeferredToolRequests, toolsets: Sequence[AbstractToolset[Any]], pause: int
) -> DeferredToolResults:
    """Ask the caller for the results that a run needs, one call after the other, and return the
    results.

    ``pause`` is how often the run has paused: with the id of a call it identifies a question.
    """
    results = DeferredToolResults()
    for call in requests.approvals:
        decision = await approval(
            turn, call.tool_name, call.args_as_dict(), key=f"{pause}:{call.tool_call_id}"
        )
        allowed: bool | ToolDenied = decision.is_approved
        if not allowed and decision.reason:
            allowed = ToolDenied(decision.reason)
        results.approvals[call.tool_call_id] = allowed
    for call in requests.calls:
        metadata = requests.metadata.get(call.tool_call_id) or {}
        key = f"{pause}:{call.tool_call_id}"
        remote = metadata.get(ASKED)
        if isinstance(remote, Mapping):
            value = await _remote(turn, remote, toolsets, key)
        else:
            kind = requests.kind(call.tool_call_id)
            value = said_in(await turn.ask(_question(call, metadata, kind), key=key))
        results.calls[call.tool_call_id] = value
    return results


def _question(call: ToolCallPart, metadata: Mapping[str, Any], kind: str) -> list[Part]:
    arguments = call.args_as_dict()
    data = {"kind": kind, "tool": call.tool_name, "arguments": arguments}
    if metadata:
        data["metadata"] = dict(metadata)
    text = metadata.get("question")
    if not text and kind == "question":
        words = [each for each in arguments.values() if isinstance(each, str)]
        text = words[0] if len(words) == 1 else None
    shown = json_text(arguments)[:2000]
    text = text or f"The tool {call.tool_name} waits for its result. It was called with {shown}."
    return [Part(text=str(text)), Part(data=data, media_type="application/json")]


async def _remote(
    turn: Turn, asked: Mapping[str, Any], toolsets: Sequence[AbstractToolset[Any]], key: str
) -> Any:
    """Pass the questions of another agent on until its task ends, and return its result."""
    skill = next(
        (found[asked["skill"]] for found in remote_skills_in(toolsets, asked["address"])), None
    )
    if skill is None:
        raise LookupError(f"no toolset of the agent has the skill {asked['skill']!r} any more")
    task, text, schema, times = str(asked["task"]), str(asked["question"]), asked["schema"], 0
    while True:
        times += 1
        parts = [Part(text=text)] if schema is None else [Part(text=text), schema_part(schema)]
        answer = await turn.ask(parts, key=f"{key}:{times}")
        try:
            result = await skill.answer(task, said_in(answer), key=f"{key}:answer:{times}")
        except RemoteQuestion as question:
            task, text, schema = question.task.id, question.text, question.schema
        else:
            return returned(result)


def remote_skills_in(toolsets: Sequence[AbstractToolset[Any]], address: str) -> list[Any]:
    """Return the skills of the remote toolsets for an address, inside of others too."""
    found: list[Any] = []

    def look(each: AbstractToolset[Any]) -> None:
        if isinstance(each, RemoteToolset) and each.address == address:
            found.append(each.skills)

    for each in toolsets:
        each.apply(look)
    return found


class ShownRun:
    """Shows the events of a run. The text of the model is the answer only with ``allows_text``.

    ``counted`` is the usage of the run until then.
    """

    def __init__(self, output: RunOutput, counted: RunUsage, *, allows_text: bool) -> None:
        self.output = output
        self._counted = usage_of(counted)
        self._allows_text = allows_text

    def replied(self, response: ModelResponse, usage: RunUsage) -> None:
        """Note the usage of a request, with those of agents that tools asked, and how it ended."""
        details = response.provider_details or {}
        ending: str | None = response.finish_reason
        if details and "finish_reason" not in details and "refusal" not in details:
            ending = ""  # to the framework a stream that broke off has ended
        counted, self._counted = self._counted, usage_of(usage)
        self.output.requests.replied(
            self._counted - counted, ending=ending, refusal=str(details.get("refusal") or "")
        )

    async def show(self, event: Any) -> None:
        """Show an event."""
        if isinstance(event, PartStartEvent):
            if isinstance(event.part, TextPart):
                await self._say(event.part.content)
            elif isinstance(event.part, ThinkingPart):
                await self.output.thinking(event.part.content)
        elif isinstance(event, PartDeltaEvent):
            if isinstance(event.delta, TextPartDelta):
                await self._say(event.delta.content_delta)
            elif isinstance(event.delta, ThinkingPartDelta):
                await self.output.thinking(event.delta.content_delta or "")
        elif isinstance(event, PartEndEvent):
            if isinstance(event.part, FilePart):
                await self._show_file(event.part.content)
        elif isinstance(event, FunctionToolCallEvent):
            call = event.part
            await self.output.tool_called(
                call.tool_name, call.args_as_dict(), call_id=call.tool_call_id
            )
        elif isinstance(event, FunctionToolResultEvent):
            result = event.part
            await self.output.tool_returned(
                result.tool_name,
                to_jsonable_python(result.content, serialize_unknown=True, bytes_mode="base64"),
                call_id=result.tool_call_id,
                is_error=getattr(result, "outcome", "success") not in ("success", None),
            )

    async def show_output(self, value: Any, schema: dict[str, Any] | None) -> None:
        """Show the result of a run: text that was not streamed, files, data with its schema."""
        if isinstance(value, str) and schema is None:
            return await self.output.whole(value)  # an output function may have changed it
        if await self._show_file(value):
            return
        if value is not None:
            data = to_jsonable_python(value, serialize_unknown=True, bytes_mode="base64")
            await self.output.data(data, schema=schema)

    async def _say(self, text: str) -> None:
        if self._allows_text:
            await self.output.text(text)

    async def _show_file(self, value: Any) -> bool:
        file = file_of(value)
        if file is not None:
            await self.output.file(file)
        return file is not None


def schema_of(value: Any, declared: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the JSON Schema of an output: the schema of its class, else the declared schema."""
    if isinstance(value, str):
        return None
    if hasattr(value, "__pydantic_core_schema__") or hasattr(value, "__dataclass_fields__"):
        return TypeAdapter(type(value)).json_schema()
    return declared


def usage_of(usage: RunUsage) -> ModelUsage:
    """Return the usage of a run."""
    return ModelUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost=float(getattr(usage, "cost", None) or 0),
        requests=usage.requests,
    )


ASKED = "parley"
"""The member of a deferred call's metadata that says which task asks."""


async def toolset(agent: Callee, *, defer_questions: bool = True, **options: Any) -> RemoteToolset:
    """Return the skills of an agent, for ``Agent(toolsets=[await pydantic_ai.toolset(url)])``.

    Names, descriptions and parameters are those of the card. A question of the agent defers the
    call: the run ends with ``DeferredToolRequests``, which the agent needs among its output types;
    ``RemoteToolset.results`` answers. Within a turn (``agent``) the caller of the turn is asked.
    Without ``defer_questions`` the model gets the question as the result. ``options`` are options
    of ``parley.connect``, and it raises what that raises.
    """
    skills = await remote_skills(agent, **options)
    return RemoteToolset(skills, address=_address(agent), defer_questions=defer_questions)


class RemoteToolset(FunctionToolset[Any]):
    """Skills of another agent. ``skills`` has them by the names of their tools."""

    def __init__(
        self, skills: list[RemoteSkill], *, address: str = "", defer_questions: bool = True
    ) -> None:
        super().__init__([_tool(skill, address, defer_questions) for skill in skills])
        self.skills = {skill.name: skill for skill in skills}
        self.address = address

    async def results(
        self, requests: DeferredToolRequests, answers: Mapping[str, Any]
    ) -> DeferredToolResults:
        """Answer the questions of the agent, by the ids of the deferred calls.

        Returns what the next run takes as ``deferred_tool_results``. Raises ``RemoteQuestion`` if
        the agent asks again; answer that with ``RemoteSkill.answer``.
        """
        results = DeferredToolResults()
        for call in requests.calls:
            asked = (requests.metadata.get(call.tool_call_id) or {}).get(ASKED)
            if asked and asked["address"] == self.address and call.tool_call_id in answers:
                skill = self.skills[asked["skill"]]
                answered = await skill.answer(asked["task"], answers[call.tool_call_id])
                results.calls[call.tool_call_id] = returned(answered)
        return results


def _tool(skill: RemoteSkill, address: str, defer_questions: bool) -> Tool[Any]:
    async def call(ctx: RunContext[Any], **arguments: Any) -> Any:
        # The same in a further attempt at a turn, which begins with the same messages.
        key = f"{len(ctx.messages)}:{ctx.tool_call_id}"
        try:
            result = await skill.call(arguments, key=key, pass_questions=False)
        except RemoteQuestion as question:
            if not defer_questions:
                return f"{skill.card.name} asks: {question.text}"
            asked = {
                "address": address, "skill": skill.name,
                "task": question.task.id, "question": question.text, "schema": question.schema,
            }  # fmt: skip
            raise CallDeferred({ASKED: asked, "question": question.text}, kind="question") from None
        if result.is_error:
            raise ToolFailed(result.text)
        return returned(result)

    return Tool.from_schema(
        call, skill.name, skill.description, dict(skill.parameters), takes_ctx=True
    )


def returned(result: ToolResult) -> Any:
    """Return the result of a skill as the result of a tool, with its files as contents."""
    value = result.data if result.data is not None else result.text
    files = contents_of(result.parts)
    return ToolReturn(return_value=value, content=files) if files else value


def _address(agent: Callee) -> str:
    return agent if isinstance(agent, str) else str(getattr(agent, "name", "") or "")


async def prompt_of(turn: Turn, message: Message) -> str | list[UserContent]:
    """Return a message as a prompt; its files are read."""
    said: list[UserContent] = []
    for each in await input_of(turn, message):
        if isinstance(each, str):
            said.append(each)
        else:
            said.append(BinaryContent(data=each.content, media_type=each.media_type))
    if all(isinstance(each, str) for each in said):
        return "\n".join(str(each) for each in said)
    return said


def file_of(value: Any) -> Part | None:
    """Return a file of Pydantic AI as a part, ``None`` for anything else."""
    if isinstance(value, BinaryContent):
        name = f"file{mimetypes.guess_extension(value.media_type) or ''}"
        return Part(raw=value.data, media_type=value.media_type, filename=name)
    if isinstance(value, FileUrl) and value.url.startswith(("http://", "https://")):
        guessed = mimetypes.guess_type(value.url)[0]
        return Part(url=value.url, media_type=guessed or "")
    return None


def contents_of(parts: Sequence[Part]) -> list[UserContent]:
    """Return the files among parts as contents of Pydantic AI."""
    found: list[UserContent] = []
    kinds: dict[str, Any] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
    for part in parts:
        media_type = part.media_type or "application/octet-stream"
        if part.raw is not None:
            found.append(BinaryContent(data=part.raw, media_type=media_type))
        elif part.url is not None:
            kind = kinds.get(media_type.partition("/")[0], DocumentUrl)
            found.append(kind(url=part.url, media_type=media_type))
    return found


# -- serving ----------------------------------------------------------------------------------
