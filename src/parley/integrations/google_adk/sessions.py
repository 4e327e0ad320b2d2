"""Sessions of ADK, kept with the contexts of the agent, and its files as artifacts of tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from google.adk.artifacts.base_artifact_service import (
    ArtifactVersion,
    BaseArtifactService,
    ensure_part,
)
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from google.genai import types
from pydantic_core import to_jsonable_python

from parley.agent.turn import Turn
from parley.integrations.conversations import (
    MAX_BYTES,
    ContextConversation,
    ContextState,
    Messages,
    TaskValue,
    replaced,
)
from parley.integrations.google_adk.interrupts import file_of
from parley.llm.model import Json
from parley.model.parts import Artifact, Part

EVENTS = "adk-events"
STATE = "adk-state"
RUN = "adk-run"
SEGMENT = "adk-run-{}"
SEGMENT_EVENTS = 20
SEGMENT_BYTES = 64_000
"""The number of events, and the approximate number of bytes, of a run that are written as one
value.
"""

MAX_EVENTS = 500

OWN = "parley:"
"""The prefix of state keys of this package's tools and sub-agents."""


class ContextSessions(BaseSessionService):
    """The session of a turn's context, stored with the context in the store of the task.

    So it survives restarts, other replicas continue it, and it is deleted with the context. It
    holds the events of completed tasks, about the newest ``max_events`` and at most ``max_bytes``
    of JSON, in whole tasks, and the events of the turn's own task, which ``finish`` adds. Other
    tasks leave no events, and concurrent tasks do not see each other's open calls. A task that is
    too large loses its files. State is kept in the same way, up to ``max_bytes``; state with the
    prefixes ``user:`` and ``app:`` belongs to the session too: for state that sessions share, use
    another service of ADK.
    """

    def __init__(
        self, turn: Turn, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._turn = turn
        self._conversation = ContextConversation(
            turn, EVENTS, max_messages=max_events, max_bytes=max_bytes, shorten=_without_files
        )
        self._state = ContextState(turn, STATE, max_bytes=max_bytes)
        self._run = TaskValue(turn, RUN)
        self._writing = asyncio.Lock()
        self._head: Json | None = None
        self._segments: list[list[Any]] = []
        self._room = 0

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: Json | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create the session of the context."""
        kept = await self._change_state(_kept_state(state or {}))
        return Session(
            id=session_id or self._turn.context_id, app_name=app_name, user_id=user_id, state=kept
        )

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Return the session, ``None`` before the first message."""
        head = await self._load()
        earlier = await self._conversation.earlier()
        written = [*earlier, *(each for segment in self._segments for each in segment)]
        state = {**await self._state.read(), **head["changed"]}
        if not written and not state:
            return None
        events = [Event.model_validate(each) for each in written]
        updated = events[-1].timestamp if events else time.time()
        if config is not None and config.after_timestamp is not None:
            events = [each for each in events if each.timestamp >= config.after_timestamp]
        if config is not None and config.num_recent_events is not None:
            events = events[-config.num_recent_events :] if config.num_recent_events else []
        return Session(
            id=session_id,
            app_name=app_name,
            user_id=user_id,
            state=state,
            events=events,
            last_update_time=updated,
        )

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Return the session of the context, without its events."""
        known = await self.get_session(
            app_name=app_name, user_id=user_id or "", session_id=self._turn.context_id
        )
        if known is None:
            return ListSessionsResponse()
        return ListSessionsResponse(sessions=[known.model_copy(update={"events": []})])

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete the session of the context, with this task's additions."""
        await self._load()
        for number in range(len(self._segments)):
            await self._segment(number).remove()
        await self._run.remove()
        self._head, self._segments = None, []
        await self._turn.remember(EVENTS, None)
        await self._turn.remember(STATE, None)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event; it is durable before this returns. Partial events are not kept."""
        event = await super().append_event(session, event)
        if event.partial:
            return event
        written = event.model_dump(mode="json", by_alias=True, exclude_none=True)
        delta = _kept_state(event.actions.state_delta if event.actions else {})
        if delta:  # values that are None are left out above
            written["actions"]["stateDelta"] = delta
        async with self._writing:
            await self._add(written)
        await self._change_state(delta)
        session.last_update_time = event.timestamp
        return event

    async def finish(self) -> None:
        """Add the task's events and its changes of the state to the session.

        A further attempt at the task replaces them.
        """
        head = await self._load()
        await self._conversation.add(each for segment in self._segments for each in segment)
        changed = {
            name: value
            for name, value in head["changed"].items()
            if value is not None or not name.startswith(OWN)  # the key of an answered question
        }
        if head["changed"]:
            await self._state.write(head["before"], changed)

    # -- data of the task -------------------------------------------------------------------------

    async def _load(self) -> Json:
        """Return the head of the run, without its events; the first call reads them."""
        async with self._writing:
            return await self._loaded()

    async def _loaded(self) -> Json:
        if self._head is None:
            head = await self._run.read() or {"segments": 0, "before": {}, "changed": {}}
            self._segments = [
                await self._segment(number).read() or [] for number in range(head["segments"])
            ]
            # An event is written before its state changes: a crash in between leaves the changes to
            # apply here.
            for event in (each for segment in self._segments for each in segment):
                if delta := event.get("actions", {}).get("stateDelta"):
                    _note(head, await self._state.read(), delta)
            self._head = head
        return self._head

    def _segment(self, number: int) -> TaskValue:
        return TaskValue(self._turn, SEGMENT.format(number))

    async def _add(self, event: Any) -> None:
        head = await self._loaded()
        size = len(msgspec.json.encode(event))
        if not self._segments or self._room < size or len(self._segments[-1]) >= SEGMENT_EVENTS:
            self._segments.append([])
            self._room = SEGMENT_BYTES
            head["segments"] = len(self._segments)
            await self._run.write(head)
        self._room -= size
        self._segments[-1].append(event)
        await self._segment(len(self._segments) - 1).write(self._segments[-1])

    async def _change_state(self, delta: Mapping[str, Any]) -> Json:
        """Store changes of the state, and return the state."""
        async with self._writing:
            head, state = await self._loaded(), await self._state.read()
            if delta:
                _note(head, state, delta)
                await self._run.write(head)
            return {**state, **head["changed"]}


def _note(head: Json, state: Mapping[str, Any], delta: Mapping[str, Any]) -> None:
    """Add changes to the previous state to the head of a run."""
    known = {name: state[name] for name in delta if name in state and name not in head["changed"]}
    head["before"] = {**known, **head["before"]}
    head["changed"] = {**head["changed"], **delta}


def _kept_state(delta: Mapping[str, Any]) -> Any:
    kept = {key: value for key, value in delta.items() if not key.startswith(State.TEMP_PREFIX)}
    return to_jsonable_python(kept, serialize_unknown=True)


def _without_files(events: Messages) -> Messages:
    def text(value: Json) -> Any | None:
        blob = value.get("inlineData")
        if not isinstance(blob, dict):
            return None
        return {"text": f"(a file of the type {blob.get('mimeType', 'unknown')})"}

    return [replaced(each, text) for each in events]


VERSION = "adkVersion"


class TaskArtifacts(BaseArtifactService):
    """Keeps files as artifacts of the turn's task, by their names.

    Saving a file again replaces the artifact: the newest version is kept, with its number. Files of
    earlier tasks of the context can be loaded too.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._saved: dict[str, Artifact] = {}

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | Json,
        session_id: str | None = None,
        custom_metadata: Json | None = None,
    ) -> int:
        """Write a file as an artifact, and return its version, from 0."""
        part = file_of(ensure_part(artifact), filename)
        if part is None:
            raise ValueError(f"{filename} has no bytes, no text and no http address to keep")
        found = await self._found(filename)
        version = 0 if found is None else _version(found) + 1
        written = Artifact(
            artifact_id=filename,
            name=filename,
            parts=(part,),
            metadata={**(custom_metadata or {}), VERSION: version},
        )
        await self._turn.artifact(
            list(written.parts), name=filename, artifact_id=filename, metadata=written.metadata
        )
        self._saved[filename] = written
        return version

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """Return a file, ``None`` if the name or version is unknown."""
        found = await self._found(filename, version)
        if found is None:
            return None
        part = found.parts[0]
        if not part.is_file:
            return types.Part(text=part.text or "")
        content = await self._turn.file(part).read()
        media_type = part.media_type or "application/octet-stream"
        return types.Part(inline_data=types.Blob(data=content, mime_type=media_type))

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """Return the names of the files of the context."""
        return sorted(await self._all())

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Do nothing: shown files stay in the task."""

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the number of the stored version."""
        found = await self._found(filename)
        return [] if found is None else [_version(found)]

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return the stored version."""
        found = await self._found(filename)
        return [] if found is None else [_described(found)]

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return the facts about a version."""
        found = await self._found(filename, version)
        return None if found is None else _described(found)

    async def _found(self, filename: str, version: int | None = None) -> Artifact | None:
        found = (await self._all()).get(filename)
        if found is None or version not in (None, _version(found)):
            return None
        return found

    async def _all(self) -> dict[str, Artifact]:
        """Return the files of the context by their names, files of this task first."""
        found: dict[str, Artifact] = {}
        task = self._turn.task
        others = await self._turn.other_tasks()
        for each in (*reversed(others), *(() if task is None else (task,))):
            for artifact in each.artifacts:
                if VERSION in (artifact.metadata or {}) and artifact.parts:
                    found[artifact.name] = artifact
        return {**found, **self._saved}


def _version(artifact: Artifact) -> int:
    return int((artifact.metadata or {}).get(VERSION, 0))


def _described(artifact: Artifact) -> ArtifactVersion:
    part: Part = artifact.parts[0]
    metadata = {key: each for key, each in (artifact.metadata or {}).items() if key != VERSION}
    return ArtifactVersion(
        version=_version(artifact),
        canonical_uri=part.url or f"artifact://{artifact.name}",
        custom_metadata=metadata,
        mime_type=part.media_type or None,
    )
