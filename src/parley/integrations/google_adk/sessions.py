"""Sessions of ADK, kept with the contexts of the agent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from pydantic_core import to_jsonable_python

from parley.agent.turn import Turn

HEAD = "adk-session"
SEGMENT = "adk-events-{}"
SEGMENT_EVENTS = 20
"""How many events are written as one value."""

MAX_EVENTS = 500


class ContextSessions(BaseSessionService):
    """The session of a turn's context, kept in the store of the task with the context.

    So it survives restarts, other replicas continue it, and it is deleted with the context. It
    holds the newest events, about ``max_events``, from the beginning of a message on, and all of
    the state. State of the prefixes ``user:`` and ``app:`` belongs to the session, too: for state
    that sessions share, use another service of ADK.
    """

    def __init__(self, turn: Turn, *, max_events: int = MAX_EVENTS) -> None:
        self._turn = turn
        self._segments = max(2, 1 + max_events // SEGMENT_EVENTS)

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create the session of the context."""
        kept = to_jsonable_python(state or {}, serialize_unknown=True)
        head = {"state": kept, "first": 0, "last": 0, "updated": time.time()}
        await self._turn.remember(HEAD, head)
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
        head = await self._turn.recall(HEAD)
        if head is None:
            return None
        written: list[Any] = []
        for number in range(head["first"], head["last"] + 1):
            written += await self._turn.recall(SEGMENT.format(number), [])
        events = [Event.model_validate(each) for each in written]
        if head["first"]:
            events = _from_a_message(events)
        if config is not None and config.after_timestamp is not None:
            events = [each for each in events if each.timestamp >= config.after_timestamp]
        if config is not None and config.num_recent_events is not None:
            events = events[-config.num_recent_events :] if config.num_recent_events else []
        return Session(
            id=session_id,
            app_name=app_name,
            user_id=user_id,
            state=head["state"],
            events=events,
            last_update_time=head["updated"],
        )

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Return the session of the context, without its events."""
        head = await self._turn.recall(HEAD)
        if head is None:
            return ListSessionsResponse()
        known = Session(
            id=self._turn.context_id, app_name=app_name, user_id=user_id or "", state=head["state"]
        )
        return ListSessionsResponse(sessions=[known])

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete the session of the context."""
        head = await self._turn.recall(HEAD)
        if head is not None:
            for number in range(head["first"], head["last"] + 1):
                await self._turn.remember(SEGMENT.format(number), None)
            await self._turn.remember(HEAD, None)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event; it is durable before this returns. Partial events are not kept."""
        event = await super().append_event(session, event)
        if event.partial:
            return event
        written = event.model_dump(mode="json", by_alias=True, exclude_none=True)
        number = (await self._turn.recall(HEAD, {"last": 0}))["last"]
        while not await self._fits(number, written):
            number += 1
        delta = event.actions.state_delta if event.actions else {}
        forgotten = await self._keep_head(number, _kept_state(delta))
        for old in forgotten:
            await self._turn.remember(SEGMENT.format(old), None)
        session.last_update_time = event.timestamp
        return event

    async def _fits(self, number: int, written: Any) -> bool:
        """Append an event to a segment, unless that is full."""
        fits = False

        def append(events: list[Any]) -> list[Any]:
            nonlocal fits
            fits = len(events) < SEGMENT_EVENTS
            return [*events, written] if fits else events

        await self._turn.update(SEGMENT.format(number), append, [])
        return fits

    async def _keep_head(self, number: int, delta: Mapping[str, Any]) -> list[int]:
        """Write which segments there are and the state; return the segments to forget."""
        forgotten: list[int] = []

        def change(head: dict[str, Any]) -> dict[str, Any]:
            nonlocal forgotten
            last = max(head["last"], number)
            first = max(head["first"], last - self._segments + 1)
            forgotten = list(range(head["first"], first))
            state = {**head["state"], **delta}
            return {"state": state, "first": first, "last": last, "updated": time.time()}

        await self._turn.update(HEAD, change, {"state": {}, "first": 0, "last": 0, "updated": 0.0})
        return forgotten


def _kept_state(delta: Mapping[str, Any]) -> Any:
    kept = {key: value for key, value in delta.items() if not key.startswith(State.TEMP_PREFIX)}
    return to_jsonable_python(kept, serialize_unknown=True)


def _from_a_message(events: list[Event]) -> list[Event]:
    """Return the events from the first message of the user on: a call keeps its result."""
    for number, event in enumerate(events):
        if event.author == "user" and not event.get_function_responses():
            return events[number:]
    return events
