"""Crews, agents and flows of CrewAI as A2A agents."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

from crewai import Agent as CrewAgent
from crewai import Crew, Flow
from crewai.core.providers.human_input import reset_provider, set_provider
from crewai.events.stream_context import add_stream_sink, reset_stream_sinks
from crewai.hooks.dispatch import InterceptionPoint, scoped_hooks
from openai import LengthFinishReasonError

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.engine.content import accepts
from parley.integrations.answers import text_in
from parley.integrations.conversations import ContextConversation
from parley.integrations.crewai.flows import run_flow
from parley.integrations.crewai.people import Approvals, Feedback
from parley.integrations.crewai.replay import ThreadedReplay
from parley.integrations.crewai.shown import RunEvents
from parley.integrations.crewai.threaded_run import ThreadedRun
from parley.integrations.message_files import InputFile, input_of
from parley.integrations.serving import described, framework_agent
from parley.llm.run_output import RunOutput

try:
    import crewai_files
except ImportError:
    crewai_files = None

TEXTS = ("text/plain", "text/*", "application/json", "application/xml", "application/yaml")
"""The media types of what is read as text."""

CONVERSATION = "crewai.messages"
"""The key of the messages of a context."""

MAX_MESSAGES = 50
"""How many messages of a conversation are kept."""


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

    Each turn runs a copy of its own, in a thread. The inputs of a crew are the data of the message;
    its text is the only placeholder that is left, or ``{message}``; the caller is asked for the
    others. ``{history}`` is the conversation so far. A flow gets the same as its inputs, and the
    state of the newest flow in the context.

    ``human_input=True``, feedback that a flow wants, and ``Flow.ask`` ask the turn's caller. Tools
    that ``approve`` names are called when the caller says yes. Replies of the model and results of
    tools are remembered in the task, so neither an answer nor a crash repeats them.
    ``response_format`` is a pydantic model for the output of an ``Agent``. ``options`` are those of
    Parley's ``Agent``.

    Raises ``TypeError`` for anything else, and ``ValueError`` for an invalid option.
    """
    if isinstance(thing, Flow):
        raise TypeError(
            f"{type(thing).__name__}() has the state of one run, and many callers would share it; "
            f"give its class: agent({type(thing).__name__})"
        )
    is_class = isinstance(thing, type)
    if not (issubclass(thing, Flow) if is_class else isinstance(thing, Crew | CrewAgent)):
        raise TypeError(
            f"{type(thing).__name__} is no part of CrewAI that can be served: give a Crew, an "
            "Agent, or a class of Flow"
        )
    runs = _Runs(thing, approve, response_format, max_messages)
    given_name, given_description = _described(thing)
    return framework_agent(
        runs,
        name=name or given_name,
        description=description or given_description,
        tags=("crewai",),
        input_modes=runs.input_modes,
        told=_told,
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
        run = ThreadedRun(turn)
        replay = ThreadedReplay(run, output.requests)
        shown = RunEvents(run, output, hidden=self._format is not None)
        conversation = ContextConversation(turn, CONVERSATION, max_messages=self._max_messages)
        history = await conversation.earlier(step="conversation")
        said = await input_of(turn, turn.message)
        given = [each for each in said if isinstance(each, str)]
        read = [each.text for each in said if isinstance(each, InputFile) and each.text]
        words = "\n".join(each for each in (turn.message.text, *read) if each)
        files = self._files(turn, said)
        with ExitStack() as stack:  # what the thread's copy of the context has
            stack.callback(reset_stream_sinks, add_stream_sink(shown))
            stack.callback(reset_provider, set_provider(Feedback(run)))
            hooks = {InterceptionPoint.PRE_TOOL_CALL: [Approvals(run, self._approve)]}
            stack.enter_context(scoped_hooks(hooks))
            if self._is_flow:
                inputs = {**_data_of(turn), "message": words}
                result = await run_flow(self._thing, run, inputs)
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
        text = await self._finish(result, output, shown)
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

    async def _inputs(
        self, turn: Turn, history: list[Any], words: str, given: list[str]
    ) -> dict[str, Any]:
        """Return the inputs of the crew: of the message, and what its caller is asked for."""
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

    def _files(self, turn: Turn, said: list[str | InputFile]) -> dict[str, Any] | None:
        """Return the files of a message as the framework's, by their names without suffix.

        Those that the models do not take reject the task: the framework would leave them out.
        """
        found: dict[str, Any] = {}
        files = [each for each in said if isinstance(each, InputFile) and each.text is None]
        for number, each in enumerate(files, 1):
            if not accepts(self.input_modes, each.media_type):
                turn.reject(
                    f"This agent takes no file of the type {each.media_type}. "
                    f"It takes {', '.join(self.input_modes)}."
                )
            name = each.filename.partition(".")[0] or f"file_{number}"
            source = crewai_files.FileBytes(data=each.content, filename=each.filename or None)
            found[f"{name}_{number}" if name in found else name] = crewai_files.File(source=source)
        return found or None

    async def _finish(self, result: Any, output: RunOutput, shown: RunEvents) -> str:
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
            await shown.finish(text)
        return text


def _data_of(turn: Turn) -> dict[str, Any]:
    return dict(turn.data) if isinstance(turn.data, dict) else {}


def _file_types(agents: list[Any]) -> list[str]:
    """Return the media types of files that the models of all these agents take."""
    taken = [
        crewai_files.get_supported_content_types(llm.provider, getattr(llm, "api", None))
        if getattr(llm, "supports_multimodal", bool)()
        else ()
        for llm in (each.llm for each in agents if crewai_files is not None)
    ]
    types = set.intersection(*map(set, taken or [()])) - {"text/"}
    return sorted(f"{each}*" if each.endswith("/") else each for each in types)


def _told(error: Exception) -> str:
    """Return what a caller may know of an error of the framework."""
    if isinstance(error, LengthFinishReasonError):
        return "The language model's reply reached its longest length, and has no whole value."
    is_empty = "Invalid response from LLM call - None or empty" in str(error)
    return "The language model answered with nothing." if is_empty else ""


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
    """Return what a tool does; the framework puts its name and arguments before that."""
    text = str(tool.description)
    _, found, rest = text.partition("Tool Description:")
    return rest if found else text
