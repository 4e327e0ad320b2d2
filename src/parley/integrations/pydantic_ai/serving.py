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
from parley.integrations.conversations import ContextConversation
from parley.integrations.message_files import input_of
from parley.integrations.serving import FrameworkRun, RunOver, described, framework_agent
from parley.llm.model import Json, ModelUsage
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
    are the dependencies of its tools, or ``deps_of`` returns them for a turn (plain or ``async``).
    ``usage_limits`` apply to each task, ``toolsets`` are added to the agent's.

    The context remembers the messages of its ended tasks, up to ``max_messages``. Tools that need
    approval and deferred calls ask the caller. After a crash a run continues from its last step:
    the model does not repeat its replies, and only tools of the interrupted step are called again.
    ``options`` are options of ``framework_agent`` and ``Agent``.

    Raises ``TypeError`` for any other object, ``ValueError`` for an invalid option, and for an
    agent with a ``deps_type`` but without dependencies.
    """
    if not isinstance(thing, AbstractAgent):
        raise TypeError(f"agent() takes an Agent of pydantic_ai, not {thing!r:.200}")
    if deps is not None and deps_of is not None:
        raise ValueError("give either deps (a value) or deps_of (a function)")
    if deps is None and deps_of is None and _needs_deps(thing.deps_type):
        raise ValueError(
            f"the agent {thing.name or 'without a name'} has deps_type="
            f"{getattr(thing.deps_type, '__name__', thing.deps_type)}, and its tools would get "
            "None: give deps=..., or "
            "deps_of=lambda turn: ... to make them for each turn"
        )
    outputs = _outputs(thing.output_type)
    allows_text = any(each is str or isinstance(each, TextOutput) for each in outputs)
    schema = None if allows_text else dict(thing.output_json_schema())
    iter_options: Json = {"usage_limits": usage_limits}
    if toolsets:
        iter_options["toolsets"] = toolsets
    if DeferredToolRequests not in outputs and not getattr(thing, "_output_validators", None):
        # Otherwise the author would have to declare that calls may be deferred.
        given = thing.output_type
        known = list(given) if isinstance(given, list | tuple) else [given]
        iter_options["output_type"] = [*known, DeferredToolRequests]

    async def run(turn: Turn, output: RunOutput) -> None:
        made = deps if deps_of is None else deps_of(turn)
        if inspect.isawaitable(made):
            made = await made
        options = {**iter_options, "deps": made, "conversation_id": turn.context_id}
        every = (*thing.toolsets, *toolsets)
        await PydanticRun(thing, output, every, options, schema, max_messages).run()

    tools = _tools([*thing.toolsets, *toolsets])
    name = name or thing.name or "Agent"
    if description is None:
        description = described(str(thing.description or ""), name, tools.items())
    settings: Json = {"tags": ("pydantic-ai", *tools), **options}
    if schema is not None:
        settings.setdefault("output_schema", schema)
    return framework_agent(run, name=name, description=description, told=TOLD, **settings)


class PydanticRun(FrameworkRun):
    """Runs an agent of Pydantic AI for a turn.

    The run is kept before each model request, before tools are called, and when it waits for
    results of calls. ``toolsets`` are the toolsets of the run, ``schema`` is the schema of a
    non-text output, ``options`` are options of ``iter``.
    """

    name = "pydantic-ai-run"

    def __init__(
        self,
        thing: AbstractAgent[Any, Any],
        output: RunOutput,
        toolsets: Sequence[AbstractToolset[Any]],
        options: Json,
        schema: Json | None,
        max_messages: int,
    ) -> None:
        super().__init__(output)
        self._agent = thing
        self._toolsets = toolsets
        self._options = options
        self._schema = schema
        self._conversation = ContextConversation(
            self.turn, "pydantic-ai", max_messages=max_messages, keeps_newest=True
        )
        self._earlier: list[ModelMessage] = []
        self._usage = RunUsage()

    async def run(self) -> None:
        """Run the agent until the task is done, and show its output."""
        found = await self.result()
        await self._show_output(found.output)
        await self._conversation.add(self._own(found))

    async def begin(self, given: Any) -> Any:
        """Read the messages of the context, and the usage of the task."""
        self._earlier = _MESSAGES.validate_python(await self._conversation.earlier())
        if self.kept is not None:
            self._usage = RunUsage(**self.kept["usage"])
        self._counted = usage_of(self._usage)
        return given

    async def go(self, results: DeferredToolResults | None) -> Json:
        """Run the agent, show its events, and keep its steps, until it waits or ends."""
        is_asked, agent, output = False, self._agent, self.output
        messages = [] if self.kept is None else _MESSAGES.validate_python(self.kept["messages"])
        async with agent.iter(
            None if messages else await prompt_of(self.turn, self.turn.message),
            message_history=[*self._earlier, *messages],
            deferred_tool_results=results,
            usage=self._usage,
            **self._options,
        ) as run:
            async for node in run:
                if agent.is_model_request_node(node):
                    new = run.all_messages()[len(self._earlier) :]
                    if any(isinstance(each, ModelResponse) for each in new):
                        await self.keep(self._state_of(run, node.request))
                    await output.new_message()
                    with self.requests.asking():
                        async with node.stream(run.ctx) as events:
                            async for event in events:
                                await self._show(event)
                    is_asked = True
                elif agent.is_call_tools_node(node):
                    if is_asked:  # otherwise the response is from the run before the pause
                        self._replied(node.model_response, run.usage)
                    if node.model_response.tool_calls and results is None:
                        await self.keep(self._state_of(run))
                    results = None
                    async with node.stream(run.ctx) as called:
                        async for event in called:
                            await self._show(event)
        found = run.result
        assert found is not None
        if not isinstance(found.output, DeferredToolRequests):
            raise RunOver(found)
        return {
            **self._state_of(found),
            "requests": _REQUESTS.dump_python(found.output, mode="json"),
        }

    def _own(self, run: Any, *more: ModelMessage) -> Any:
        """Return the messages of this task as JSON."""
        messages = [*run.all_messages()[len(self._earlier) :], *more]
        return _MESSAGES.dump_python(messages, mode="json")

    def _state_of(self, run: Any, *more: ModelMessage) -> Json:
        counted = ("requests", "tool_calls", "input_tokens", "output_tokens")
        usage = {name: getattr(run.usage, name) for name in counted}
        return {"messages": self._own(run, *more), "usage": usage, "requests": None}

    # -- questions -----------------------------------------------------------------------------

    async def answers(self, kept: Json) -> DeferredToolResults | None:
        """Ask the caller for the results that a run needs, one call after another."""
        if kept["requests"] is None:
            return None
        requests, results = _REQUESTS.validate_python(kept["requests"]), DeferredToolResults()
        for call in (*requests.approvals, *requests.calls):
            tool, arguments = call.tool_name, call.args_as_dict()
            key = f"{self.number}:{call.tool_call_id}"
            if call in requests.approvals:
                decision = await approval(self.turn, tool, arguments, key=key)
                is_denied = decision.reason and not decision.is_approved
                allowed = ToolDenied(decision.reason) if is_denied else decision.is_approved
                results.approvals[call.tool_call_id] = allowed
                continue
            metadata = requests.metadata.get(call.tool_call_id) or {}
            if isinstance(remote := metadata.get(ASKED), Mapping):
                value = await self._remote(remote, key)
            else:
                kind = requests.kind(call.tool_call_id)
                question = _question(tool, arguments, metadata, kind)
                value = said_in(await self.turn.ask(question, key=key))
            results.calls[call.tool_call_id] = value
        return results

    async def _remote(self, asked: Mapping[str, Any], key: str) -> Any:
        """Forward the questions of another agent until its task ends, and return its result."""
        found: list[RemoteSkill] = []

        def look(each: AbstractToolset[Any]) -> None:
            if isinstance(each, RemoteToolset) and each.address == asked["address"]:
                found.append(each.skills[asked["skill"]])

        for each in self._toolsets:  # including nested toolsets
            each.apply(look)
        if not found:
            raise LookupError(f"no toolset of the agent has the skill {asked['skill']!r} now")
        task, text, schema, times = str(asked["task"]), str(asked["question"]), asked["schema"], 0
        while True:
            times += 1
            parts = [Part(text=text)] if schema is None else [Part(text=text), schema_part(schema)]
            answer = await self.turn.ask(parts, key=f"{key}:{times}")
            try:
                result = await found[0].answer(task, said_in(answer), key=f"{key}:answer:{times}")
            except RemoteQuestion as question:
                task, text, schema = question.task.id, question.text, question.schema
            else:
                return returned(result)

    # -- what is shown -------------------------------------------------------------------------

    def _replied(self, response: ModelResponse, usage: RunUsage) -> None:
        """Record the usage of a request, including agents inside tools, and its finish reason."""
        details = response.provider_details or {}
        ending: str | None = response.finish_reason
        if details and "finish_reason" not in details and "refusal" not in details:
            ending = ""  # the framework treats an interrupted stream as complete
        counted, self._counted = self._counted, usage_of(usage)
        self.requests.replied(
            self._counted - counted, ending=ending, refusal=str(details.get("refusal") or "")
        )

    async def _show(self, event: Any) -> None:
        output = self.output
        match event:
            case PartStartEvent(part=TextPart(content=text)):
                await self._say(text)
            case PartStartEvent(part=ThinkingPart(content=text)):
                await output.thinking(text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                await self._say(text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)):
                await output.thinking(text or "")
            case PartEndEvent(part=FilePart(content=content)):
                await self._show_file(content)
            case FunctionToolCallEvent(part=call):
                await output.tool_called(
                    call.tool_name, call.args_as_dict(), call_id=call.tool_call_id
                )
            case FunctionToolResultEvent(part=result):
                await output.tool_returned(
                    result.tool_name,
                    _json_of(result.content),
                    call_id=result.tool_call_id,
                    is_error=getattr(result, "outcome", "success") not in ("success", None),
                )

    async def _show_output(self, value: Any) -> None:
        """Show the result of a run: text that was not streamed, files, data with its schema."""
        schema = self._schema
        if hasattr(value, "__pydantic_core_schema__") or hasattr(value, "__dataclass_fields__"):
            schema = TypeAdapter(type(value)).json_schema()
        if isinstance(value, str):
            await self.output.whole(value)  # an output function may have changed it
        elif not await self._show_file(value) and value is not None:
            await self.output.data(_json_of(value), schema=schema)

    async def _say(self, text: str) -> None:
        """Show text of the model, which is the answer only if the output may be text."""
        if self._schema is None:
            await self.output.text(text)

    async def _show_file(self, value: Any) -> bool:
        file = file_of(value)
        if file is not None:
            await self.output.file(file)
        return file is not None


_REQUESTS = TypeAdapter(DeferredToolRequests)
_MESSAGES = ModelMessagesTypeAdapter


def _json_of(value: Any) -> Any:
    return to_jsonable_python(value, serialize_unknown=True, bytes_mode="base64")


def _needs_deps(kind: Any) -> bool:
    """Return whether ``None`` is not a valid value of a type of dependencies."""
    return kind not in (NoneType, None, Any, object) and NoneType not in get_args(kind)


def _outputs(spec: Any) -> list[Any]:
    """Return the output types of a specification."""
    if isinstance(spec, list | tuple):
        return [each for one in spec for each in _outputs(one)]
    arguments = getattr(spec, "__args__", None)
    if arguments and type(spec).__name__ in ("UnionType", "_UnionGenericAlias", "Union"):
        return [each for one in arguments for each in _outputs(one)]
    return [spec]


def _tools(toolsets: Sequence[Any]) -> dict[str, str]:
    """Return the descriptions of the tools that are known before a run, by their names."""
    found: dict[str, str] = {}

    def look(toolset: Any) -> None:
        known = getattr(toolset, "tools", None)
        for name, tool in known.items() if isinstance(known, dict) else ():
            found.setdefault(name, str(getattr(tool, "description", "") or ""))

    for each in toolsets:
        each.apply(look)
    return found


TOLD = (
    (UsageLimitExceeded, "", "The run exceeded its usage limits (usage_limits): {}"),
    (UnexpectedModelBehavior, "", "The language model gave no valid answer."),
)


def _question(tool: str, arguments: Json, metadata: Mapping[str, Any], kind: str) -> list[Part]:
    data = {"kind": kind, "tool": tool, "arguments": arguments}
    if metadata:
        data["metadata"] = dict(metadata)
    text = metadata.get("question")
    if not text and kind == "question":
        words = [each for each in arguments.values() if isinstance(each, str)]
        text = words[0] if len(words) == 1 else None
    shown = json_text(arguments)[:2000]
    text = text or f"The tool {tool} waits for its result. It was called with {shown}."
    return [Part(text=str(text)), Part(data=data, media_type="application/json")]


def usage_of(usage: RunUsage) -> ModelUsage:
    """Return the usage of a run."""
    return ModelUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cost=float(getattr(usage, "cost", None) or 0),
        requests=usage.requests,
    )


ASKED = "parley"
"""The member of a deferred call's metadata that names the asking task."""


async def toolset(agent: Callee, *, defer_questions: bool = True, **options: Any) -> RemoteToolset:
    """Return the skills of an agent, for ``Agent(toolsets=[await pydantic_ai.toolset(url)])``.

    Names, descriptions and parameters come from the card. A question of the agent defers the call:
    the run ends with ``DeferredToolRequests``, which the agent needs among its output types;
    ``RemoteToolset.results`` answers. Within a turn (``agent``) the caller of the turn is asked.
    Without ``defer_questions`` the model gets the question as the result. ``options`` are options
    of ``parley.connect``. Raises the errors of ``parley.connect``.
    """
    skills = await remote_skills(agent, **options)
    address = agent if isinstance(agent, str) else str(getattr(agent, "name", "") or "")
    return RemoteToolset(skills, address=address, defer_questions=defer_questions)


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

        Returns the ``deferred_tool_results`` for the next run. Raises ``RemoteQuestion`` if the
        agent asks again; answer it with ``RemoteSkill.answer``.
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
        # Equal in each attempt at a turn, which begins with the same messages.
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


async def prompt_of(turn: Turn, message: Message) -> str | list[UserContent]:
    """Return a message as a prompt; its files are read."""
    said = await input_of(turn, message)
    if all(isinstance(each, str) for each in said):
        return "\n".join(map(str, said))
    return [
        each
        if isinstance(each, str)
        else BinaryContent(data=each.content, media_type=each.media_type)
        for each in said
    ]


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
    kinds: Json = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
    for part in parts:
        media_type = part.media_type or "application/octet-stream"
        if part.raw is not None:
            found.append(BinaryContent(data=part.raw, media_type=media_type))
        elif part.url is not None:
            kind = kinds.get(media_type.partition("/")[0], DocumentUrl)
            found.append(kind(url=part.url, media_type=media_type))
    return found
