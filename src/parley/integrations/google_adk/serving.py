"""``agent(...)``: agents of Google ADK, served."""

from __future__ import annotations

import re
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.workflow import BaseNode
from google.genai import types

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.conversations import MAX_BYTES
from parley.integrations.google_adk.content import content_of, parts_of
from parley.integrations.google_adk.interrupts import answer_to, open_calls
from parley.integrations.google_adk.sessions import MAX_EVENTS, ContextSessions
from parley.integrations.google_adk.shown_events import ModelReplies, ShownEvents, schema_of
from parley.integrations.google_adk.task_artifacts import TaskArtifacts
from parley.integrations.serving import framework_agent
from parley.integrations.threads import user_id
from parley.llm.run_output import CONTENT_FILTER, LENGTH, RunOutput

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

    The name and the description are those of the root agent, the skill's tags name its tools and
    sub-agents. The session has the id of the context, the user is its owner. ``sessions`` is a
    session service of ADK; without it sessions are kept with the contexts in the store of the
    tasks (``ContextSessions``), with about ``max_events`` events and at most ``max_bytes`` of JSON
    each; only tasks that complete are remembered. ``artifacts`` keeps files, which are shown to the
    caller; without it they are artifacts of the task. ``memory`` and ``credentials`` are services
    of ADK, and ``run_config`` holds for every run. The services of a ``Runner`` are used.

    Agents and workflows are made resumable, so a crash repeats no tool that returned; an app says
    so itself. What pauses ADK (tools that need confirmation, long-running tools, requests for
    input) asks the caller. ``options`` are those of ``framework_agent`` and ``Agent``.

    Raises ``TypeError`` for anything else, ``ValueError`` for an invalid option.
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
    keep = sessions or (partial(ContextSessions, max_events=max_events, max_bytes=max_bytes))
    runs = AdkRuns(app, app_name, keep, artifacts, memory, credentials, run_config)
    about = description if description is not None else str(getattr(thing, "description", "") or "")
    settings: dict[str, Any] = {"tags": ("google-adk", *_abilities(thing)), **options}
    output = getattr(thing, "output_schema", None)
    if output is not None:
        settings.setdefault("output_schema", schema_of(output))
    return framework_agent(
        runs.run,
        name=name or thing.name.replace("_", " "),
        description=about,
        told=_told,
        **settings,
    )


class AdkRuns:
    """Runs an app of ADK for turns."""

    def __init__(
        self,
        app: App,
        app_name: str,
        sessions: BaseSessionService | Callable[[Turn], BaseSessionService],
        artifacts: BaseArtifactService | None,
        memory: Any,
        credentials: Any,
        run_config: RunConfig | None,
    ) -> None:
        self._app = app
        self._app_name = app_name
        self._sessions = sessions
        self._artifacts = artifacts
        self._services = {"memory_service": memory, "credential_service": credentials}
        self._config = run_config or RunConfig(streaming_mode=StreamingMode.SSE)
        resumability = app.resumability_config
        self._is_resumable = resumability is not None and resumability.is_resumable

    async def run(self, turn: Turn, output: RunOutput) -> None:
        """Run the app until the task is done; ask the caller whenever it waits."""
        artifacts = self._artifacts or TaskArtifacts(turn)
        where = {
            "app_name": self._app_name,
            "user_id": user_id(turn),
            "session_id": turn.context_id,
        }
        sessions = self._sessions_for(turn)
        replies = ModelReplies(output.requests)
        runner = Runner(
            app=self._app.model_copy(update={"plugins": [replies, *self._app.plugins]}),
            app_name=self._app_name,
            session_service=sessions,
            artifact_service=artifacts,
            auto_create_session=True,
            **self._services,
        )
        async with AsyncExitStack() as exits:
            shown = ShownEvents(output, runner.agent, artifacts, where, exits)
            try:
                await self._advance(turn, runner, where, shown)
            except Exception as error:
                # A workflow of ADK fails without its cause, or where it words the cause.
                raise error from error.__cause__ or replies.failure
        if shown.error is not None and output.requests.ending not in (LENGTH, CONTENT_FILTER):
            turn.log.error("ADK: %s: %s", shown.error.error_code, shown.error.error_message)
            turn.fail(f"{shown.error.author} gave no answer ({shown.error.error_code})")
        if isinstance(sessions, ContextSessions):
            await sessions.finish()

    def _sessions_for(self, turn: Turn) -> BaseSessionService:
        sessions = self._sessions
        return sessions if isinstance(sessions, BaseSessionService) else sessions(turn)

    async def _advance(
        self, turn: Turn, runner: Runner, where: Mapping[str, str], shown: ShownEvents
    ) -> None:
        events = await self._events_of(turn, runner, where)
        if not events:
            content = await content_of(turn, turn.message)
            events = await self._run(turn, runner, where, shown, new_message=content)
        elif not open_calls(events) and not self._is_done(runner, events):
            resume: dict[str, Any] = {"invocation_id": events[0].invocation_id}
            if not self._is_resumable:
                resume["new_message"] = await content_of(turn, turn.message)
            events += await self._run(turn, runner, where, shown, **resume)
        elif turn.attempt > 1 or not open_calls(events):
            for event in _since_user(events):
                await shown.show(event, again=True)
        while calls := open_calls(events):
            said = shown.last_text or _text_of(_since_user(events))
            answers = [await answer_to(turn, call, said) for call in calls]
            content = types.Content(role="user", parts=answers)
            # What the user answered is in the session, and here so that it is not asked again.
            events.append(Event(author="user", content=content))
            events += await self._run(turn, runner, where, shown, new_message=content)

    async def _run(
        self, turn: Turn, runner: Runner, where: Mapping[str, str], shown: ShownEvents, **what: Any
    ) -> list[Event]:
        """Run ADK, show its events, and return the whole ones."""
        marked = {**(self._config.custom_metadata or {}), TASK: turn.task_id}
        config = self._config.model_copy(update={"custom_metadata": marked})
        events: list[Event] = []
        run: AsyncIterator[Event] = runner.run_async(
            user_id=where["user_id"], session_id=where["session_id"], run_config=config, **what
        )
        async with aclosing(run) as found:  # type: ignore[type-var]
            async for event in found:
                await shown.show(event)
                if not event.partial:
                    events.append(event)
        shown.check_whole()
        return events

    async def _events_of(self, turn: Turn, runner: Runner, where: Mapping[str, str]) -> list[Event]:
        """Return what the session has of this task."""
        if turn.number == 1 and turn.attempt == 1:
            return []
        session = await runner.session_service.get_session(**where)
        if session is None:
            return []
        return [e for e in session.events if (e.custom_metadata or {}).get(TASK) == turn.task_id]

    def _is_done(self, runner: Runner, events: list[Event]) -> bool:
        """Return whether the run had ended when its process did."""
        since = _since_user(events)
        if isinstance(runner.agent, LlmAgent):
            last = since[-1] if since else None
            said = [each for each in since if each.content is not None]
            ended = last is not None and (last.actions.end_of_agent or last.is_final_response())
            return bool(ended and said and said[-1].is_final_response())
        return any(e.actions.end_of_agent and e.author == runner.agent.name for e in since)


def _told(error: Exception) -> str:
    """Return what a caller may know of a run that the framework ended."""
    if isinstance(error, LlmCallsLimitExceededError):
        return "The agent asked its model more often than it may (RunConfig.max_llm_calls)."
    return ""


def _app(root: Any) -> App:
    """Return a resumable app of an agent or a workflow."""
    if not isinstance(root, BaseNode):
        raise TypeError(
            "agent takes an agent of ADK (LlmAgent, SequentialAgent, ...), a workflow, an App or a "
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
