"""``agent(...)``: agents of Google ADK served, their events shown, their requests counted."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from importlib.util import find_spec
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.workflow import BaseNode
from google.genai import types
from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic_core import to_jsonable_python

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.conversations import MAX_BYTES, user_id
from parley.integrations.google_adk.interrupts import (
    answer_to,
    content_of,
    file_of,
    open_calls,
    parts_of,
)
from parley.integrations.google_adk.sessions import MAX_EVENTS, ContextSessions, TaskArtifacts
from parley.integrations.litellm_streams import HEARD, HeardReply, listen
from parley.integrations.serving import framework_agent
from parley.llm.model import Json, ModelUsage
from parley.llm.run_output import CONTENT_FILTER, LENGTH, ModelRequests, RunOutput

TASK = "parleyTask"
"""The custom metadata of the events of a task."""


def agent(
    root: BaseNode | App | Runner,
    *,
    name: str | None = None,
    description: str | None = None,
    sessions: BaseSessionService | None = None,
    max_events: int = MAX_EVENTS,
    max_bytes: int = MAX_BYTES,
    artifacts: BaseArtifactService | None = None,
    memory: Any = None,
    credentials: Any = None,
    run_config: RunConfig | None = None,
    **options: Any,
) -> Agent:
    """Return an agent that runs an agent of ADK: an ``LlmAgent`` or any other, a workflow, an app.

    The name and the description come from the root agent, the skill's tags name its tools and
    sub-agents. The session has the id of the context, the user is its owner. ``sessions`` is a
    session service of ADK; without it sessions are kept with the contexts in the store of the tasks
    (``ContextSessions``), with about ``max_events`` events and at most ``max_bytes`` of JSON each;
    only completed tasks are remembered. ``artifacts`` keeps files, which are shown to the caller;
    without it they are artifacts of the task. ``memory`` and ``credentials`` are services of ADK,
    and ``run_config`` applies to every run. The services of a ``Runner`` are used.

    Agents and workflows are made resumable, so a crash repeats no completed tool; an app sets this
    itself. Pauses of ADK (tools that need confirmation, long-running tools, requests for input) ask
    the caller. ``options`` are options of ``framework_agent`` and ``Agent``.

    Raises ``TypeError`` for any other object, ``ValueError`` for an invalid option.
    """
    if isinstance(root, Runner):
        sessions = sessions or root.session_service
        artifacts = artifacts or root.artifact_service
        memory, credentials = memory or root.memory_service, credentials or root.credential_service
        app, app_name = root.app, root.app_name
    else:
        app = root if isinstance(root, App) else _app(root)
        app_name = app.name
    thing = app.root_agent
    assert thing is not None
    services = {"app_name": app_name, "memory_service": memory, "credential_service": credentials}
    config = run_config or RunConfig(streaming_mode=StreamingMode.SSE)

    async def run(turn: Turn, output: RunOutput) -> None:
        kept = sessions or ContextSessions(turn, max_events=max_events, max_bytes=max_bytes)
        files = artifacts or TaskArtifacts(turn)
        own = {**services, "session_service": kept, "artifact_service": files}
        await AdkRun(app, own, config, output).run()

    about = description if description is not None else str(getattr(thing, "description", "") or "")
    settings: Json = {"tags": ("google-adk", *_abilities(thing)), **options}
    output = getattr(thing, "output_schema", None)
    if output is not None:
        settings.setdefault("output_schema", schema_of(output))
    return framework_agent(
        run, name=name or thing.name.replace("_", " "), description=about, told=TOLD, **settings
    )


class AdkRun:
    """Runs an app of ADK for a turn, and shows its events. ``services`` are the runner's services.

    The text of the last message is the answer, the rest progress. Each agent of a ``ParallelAgent``
    writes an artifact of its own name, because they run concurrently. The text of an agent with an
    output schema is data. Of the state, progress shows only agents' outputs under an
    ``output_key``: tools keep other values there, such as credentials.
    """

    def __init__(self, app: App, services: Json, config: RunConfig, output: RunOutput) -> None:
        turn = self._turn = output.turn
        self._output = output
        self._services = services
        self._where = {
            "app_name": services["app_name"],
            "user_id": user_id(turn),
            "session_id": turn.context_id,
        }
        marked = {**(config.custom_metadata or {}), TASK: turn.task_id}
        self._config = config.model_copy(update={"custom_metadata": marked})
        self._replies = ModelReplies(output.requests)
        app = app.model_copy(update={"plugins": [self._replies, *app.plugins]})
        self._runner = Runner(app=app, auto_create_session=True, **services)
        resumability = app.resumability_config
        self._is_resumable = resumability is not None and resumability.is_resumable
        self._root: Any = self._runner.agent
        agents = list(agents_in(self._root))
        self._parallel = {each.name for each, is_parallel in agents if is_parallel}
        # The keys of the state for the agents' outputs.
        self._output_keys = {getattr(each, "output_key", None) for each, _ in agents}
        self._branches: dict[str, RunOutput] = {}
        self._streamed: dict[str, bool] = {}
        self._begun: dict[str, bool] = {}
        self._author = self._last_text = ""
        self._error: Event | None = None

    async def run(self) -> None:
        """Run the app until the task is done; ask the caller whenever it waits."""
        turn, sessions = self._turn, self._services["session_service"]
        async with AsyncExitStack() as self._exits:
            try:
                await self._advance(turn)
            except Exception as error:
                # A workflow of ADK hides the cause of its failure, or rewords it.
                raise error from error.__cause__ or self._replies.failure
        failed, ending = self._error, self._output.requests.ending
        if failed is not None and ending not in (LENGTH, CONTENT_FILTER):
            turn.log.error("ADK: %s: %s", failed.error_code, failed.error_message)
            turn.fail(f"{failed.author} failed without an answer ({failed.error_code})")
        if isinstance(sessions, ContextSessions):
            await sessions.finish()

    async def _advance(self, turn: Turn) -> None:
        events = await self._events_of(turn)
        if not events:
            events = await self._run(new_message=await content_of(turn, turn.message))
        elif not open_calls(events) and not self._is_done(events):
            resume: Json = {"invocation_id": events[0].invocation_id}
            if not self._is_resumable:
                resume["new_message"] = await content_of(turn, turn.message)
            events += await self._run(**resume)
        elif turn.attempt > 1 or not open_calls(events):
            for event in _since_user(events):
                await self._show(event, again=True)
        while calls := open_calls(events):
            said = self._last_text or _text_of(_since_user(events))
            answers = [await answer_to(turn, call, said) for call in calls]
            content = types.Content(role="user", parts=answers)
            # The answer is in the session, and appended here so that no question is repeated.
            events.append(Event(author="user", content=content))
            events += await self._run(new_message=content)

    async def _run(self, **what: Any) -> list[Event]:
        """Run ADK, show its events, and return the complete events."""
        user, session = self._where["user_id"], self._where["session_id"]
        events: list[Event] = []
        run: AsyncIterator[Event] = self._runner.run_async(
            user_id=user, session_id=session, run_config=self._config, **what
        )
        async with aclosing(run) as found:  # type: ignore[type-var]
            async for event in found:
                await self._show(event)
                if not event.partial:
                    events.append(event)
        if self._error is None and any(self._streamed.values()):
            # Pieces of a reply were shown that was never completed: it was interrupted.
            self._output.requests.replied(None, ending="")
        return events

    async def _events_of(self, turn: Turn) -> list[Event]:
        """Return the events of this task in the session."""
        if turn.number == 1 and turn.attempt == 1:
            return []
        session = await self._runner.session_service.get_session(**self._where)
        found = [] if session is None else session.events
        return [e for e in found if (e.custom_metadata or {}).get(TASK) == turn.task_id]

    def _is_done(self, events: list[Event]) -> bool:
        """Return whether the run had ended when its process died."""
        root, since = self._root, _since_user(events)
        if isinstance(root, LlmAgent):
            last = since[-1] if since else None
            said = [each for each in since if each.content is not None]
            ended = last is not None and (last.actions.end_of_agent or last.is_final_response())
            return bool(ended and said and said[-1].is_final_response())
        return any(e.actions.end_of_agent and e.author == root.name for e in since)

    # -- what is shown -------------------------------------------------------------------------

    async def _show(self, event: Event, *, again: bool = False) -> None:
        """Show an event; ``again``: it is from before a crash, and its progress was
        shown already.
        """
        author = event.author
        if author == "user":
            return
        if event.error_code:
            self._error = event
        elif event.content is not None and event.content.parts and not event.partial:
            self._error = None
        output = self._output
        if author in self._parallel:
            if author not in self._branches:
                branch = RunOutput(self._turn, artifact=author, requests=output.requests)
                self._branches[author] = await self._exits.enter_async_context(branch)
            output = self._branches[author]
        if not again:
            await self._show_step(event)
        await self._show_content(output, event, again=again)
        await self._show_files(event)

    async def _show_step(self, event: Event) -> None:
        if event.author != self._author:
            self._author = event.author
            await self._output.step(event.author)
        changed = event.actions.state_delta if event.actions else {}
        delta = {key: value for key, value in changed.items() if key in self._output_keys}
        if delta and not event.partial:
            await self._output.step("state", to_jsonable_python(delta, serialize_unknown=True))

    async def _show_content(self, output: RunOutput, event: Event, *, again: bool) -> None:
        author, parts = event.author, (event.content.parts or ()) if event.content else ()
        for part in parts:
            call, response = part.function_call, part.function_response
            if part.thought and part.text:
                if not again and (event.partial or not self._streamed.get(author)):
                    await output.thinking(part.text)
            elif part.text:
                await self._say(output, event, part.text)
            elif call is not None and not event.partial and not again:
                name, is_long = call.name or "", call.id in (event.long_running_tool_ids or ())
                if not (is_long and name.startswith("adk_")):  # otherwise the caller is asked
                    await output.tool_called(name, dict(call.args or {}), call_id=call.id or "")
            elif response is not None and not again:
                value = response.response
                is_error = isinstance(value, dict) and "error" in value
                if isinstance(value, dict) and set(value) == {"result"}:
                    value = value["result"]
                result = to_jsonable_python(value, serialize_unknown=True)
                await output.tool_returned(
                    response.name or "", result, call_id=response.id or "", is_error=is_error
                )
            elif not event.partial and (file := file_of(part)) is not None:
                await output.file(file)
        if event.partial:
            self._streamed[author] = True
            return
        if event.output is not None:
            await self._show_result(output, event)
        if event.content is not None:
            self._streamed[author] = False
        if any(part.text for part in parts):
            self._begun[author] = False

    async def _say(self, output: RunOutput, event: Event, text: str) -> None:
        is_tree = isinstance(self._root, BaseAgent)
        agent = self._root.find_agent(event.author) if is_tree else None
        if (schema := getattr(agent, "output_schema", None)) is not None:
            if not event.partial and event.is_final_response():
                try:
                    value = json.loads(text)
                except ValueError:
                    await output.text(text)
                    return
                self._last_text = text
                await output.data(value, schema=schema_of(schema))
            return
        if event.partial or not self._streamed.get(event.author):
            if not self._begun.get(event.author):
                self._begun[event.author] = True
                await output.new_message()
            await output.text(text)
        if not event.partial:
            self._last_text = text

    async def _show_files(self, event: Event) -> None:
        artifacts = self._services["artifact_service"]
        if isinstance(artifacts, TaskArtifacts) or not event.actions:
            return  # already artifacts of the task
        for name, version in event.actions.artifact_delta.items():
            loaded = await artifacts.load_artifact(filename=name, version=version, **self._where)
            file = None if loaded is None else file_of(loaded, name)
            if file is not None:
                await self._turn.artifact(file, name=name, artifact_id=name)

    async def _show_result(self, output: RunOutput, event: Event) -> None:
        """Show an output of the root, not of an intermediate node."""
        info, result = event.node_info, event.output
        if all("/" in path for path in (info.path, *(info.output_for or ()))):
            return
        value = to_jsonable_python(result, serialize_unknown=True)
        if isinstance(value, str):
            if value != self._last_text:
                self._last_text = value
                await output.new_message()
                await output.text(value)
            return
        kind = getattr(self._root, "output_schema", None)
        if kind is None and isinstance(result, BaseModel):
            kind = type(result)
        await output.data(value, schema=None if kind is None else schema_of(kind))


TOLD = (
    (
        LlmCallsLimitExceededError,
        "",
        "The agent exceeded its limit of model calls (RunConfig.max_llm_calls).",
    ),
)


def _app(root: Any) -> App:
    """Return a resumable app of an agent or a workflow."""
    if not isinstance(root, BaseNode):
        raise TypeError(
            "agent() takes an agent of ADK (LlmAgent, SequentialAgent, ...), a workflow, an App "
            "or a "
            f"Runner, not {root!r:.200}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ADK calls resumability experimental
        resumability = ResumabilityConfig(is_resumable=True)
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", root.name)
    if not name[:1].isalpha() or name == "user":
        name = f"app_{name}"
    return App(name=name, root_agent=root, resumability_config=resumability)


def _since_user(events: list[Event]) -> list[Event]:
    """Return the events after the newest message of the user."""
    for number in range(len(events) - 1, -1, -1):
        if events[number].author == "user":
            return events[number + 1 :]
    return events


def _text_of(events: list[Event]) -> str:
    """Return the last text of events."""
    for event in reversed(events):
        if text := "".join(part.text or "" for part in parts_of(event.content)):
            return text
    return ""


def _abilities(thing: Any) -> tuple[str, ...]:
    """Return the names of an agent's tools and sub-agents."""
    names: list[str] = []
    tools = list(getattr(thing, "tools", None) or ())
    for each in (*tools, *(getattr(thing, "sub_agents", None) or ())):
        found = getattr(each, "name", None) or getattr(each, "__name__", None)
        if isinstance(found, str) and found not in names:
            names.append(found)
    return tuple(names)


LITELLM = "google.adk.models.lite_llm"
"""The module of ADK that calls models through LiteLLM."""

REFUSAL = "[[REFUSAL]]: "
"""The prefix of a refusal in a text from ADK's model for the chat completions API."""


class ModelReplies(BasePlugin):
    """Records the replies of models in a run, also in agents that are tools.

    ``failure`` is the error of the newest request, if it failed.
    """

    def __init__(self, requests: ModelRequests) -> None:
        super().__init__(name="parley")
        self.failure: Exception | None = None
        self._requests = requests

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        """Record the refusal and finish reason that LiteLLM leaves out of the reply."""
        module: Any = sys.modules.get(LITELLM)
        if module is not None and find_spec("litellm"):
            module._ensure_litellm_imported()  # otherwise it is loaded only after the first request
            listen(module)
        HEARD.set(HeardReply())
        self.failure = None

    async def on_model_error_callback(
        self, *, callback_context: Any, llm_request: Any, error: Exception
    ) -> None:
        """Record why a request failed; LiteLLM fails for a stream without its end."""
        self.failure = error
        self._requests.failures.append(error)
        if (HEARD.get() or HeardReply()).ending == "":
            self._requests.replied(None, ending="")

    async def after_model_callback(
        self, *, callback_context: Any, llm_response: LlmResponse
    ) -> None:
        """Record the usage of a request, and the finish reason of its reply."""
        if llm_response.partial:
            return
        used = llm_response.usage_metadata or types.GenerateContentResponseUsageMetadata()
        usage = ModelUsage(
            input_tokens=used.prompt_token_count or 0,
            output_tokens=(used.candidates_token_count or 0) + (used.thoughts_token_count or 0),
        )
        reason, heard = llm_response.finish_reason, HEARD.get() or HeardReply()
        ending = "" if heard.ending == "" else None if reason is None else reason.value
        texts = [part.text or "" for part in parts_of(llm_response.content)]
        refused = [text.partition(REFUSAL)[2] for text in texts if REFUSAL in text]
        self._requests.replied(usage, ending=ending, refusal="".join(refused) or heard.refusal)


def schema_of(kind: Any) -> Json | None:
    """Return the JSON Schema of a type that ADK accepts as an output schema."""
    if isinstance(kind, dict):
        return kind
    if isinstance(kind, types.Schema):
        written = kind.json_schema.model_dump(mode="json", exclude_none=True, by_alias=True)
        return {key: value for key, value in written.items() if value is not None}
    try:
        return TypeAdapter(kind).json_schema()
    except PydanticUserError:  # a type that pydantic cannot describe has no schema to show
        return None


def agents_in(root: Any, *, parallel: bool = False) -> Iterator[tuple[Any, bool]]:
    """Yield an agent and its sub-agents, and whether they are below a ``ParallelAgent``."""
    yield root, parallel
    for each in getattr(root, "sub_agents", None) or ():
        yield from agents_in(each, parallel=parallel or isinstance(root, ParallelAgent))
