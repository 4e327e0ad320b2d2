"""What an agent says, on its way into the log: fitted to what its caller wants and asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from parley.engine.content import fitted
from parley.extensions.profile import InThread, Profile, Profiles
from parley.model.extensions import Extension
from parley.model.parts import Message, Part
from parley.model.tasks import TaskArtifactUpdateEvent, TaskStatusUpdateEvent

log = logging.getLogger("parley.agent")

E = TypeVar("E", Message, TaskStatusUpdateEvent, TaskArtifactUpdateEvent)


class OutputFilter:
    """Where everything passes that one turn says, once, before it is logged.

    Parts are given the form that the caller accepts, where they have one; what has none is sent as
    it is, with a warning in the server's log, because ``acceptedOutputModes`` is a wish (§3.2.2).
    Then the extensions in force have their say.
    """

    def __init__(self, profile: Profile | None, modes: tuple[str, ...]) -> None:
        self._profile = profile
        self._modes = modes
        self._warned = False

    def send(self, event: E) -> E:
        """Return the event as it is to be logged. Raises ``A2AError`` for what may not be said."""
        if self._modes:
            event = self._fit(event)
        return event if self._profile is None else self._profile.send(event)

    def _fit(self, event: Any) -> Any:
        if isinstance(event, TaskArtifactUpdateEvent):
            parts = self._parts(event.artifact.parts)
            if parts is event.artifact.parts:
                return event
            return replace(event, artifact=replace(event.artifact, parts=parts))
        if isinstance(event, Message):
            parts = self._parts(event.parts)
            return event if parts is event.parts else replace(event, parts=parts)
        message = event.status.message
        if message is None:
            return event
        parts, _ = fitted(message.parts, self._modes)
        if parts is message.parts:
            return event
        return replace(event, status=replace(event.status, message=replace(message, parts=parts)))

    def _parts(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        parts, unwanted = fitted(parts, self._modes)
        if unwanted and not self._warned:
            self._warned = True
            accepted = ", ".join(self._modes)[:200]
            log.warning("the caller accepts %r, and gets %s", accepted, unwanted)
        return parts


class Outlet:
    """The extensions of one agent, and the way out for each of its turns."""

    def __init__(self, extensions: Iterable[Extension], in_thread: InThread) -> None:
        self.profiles = Profiles(extensions, in_thread)

    def of(self, extensions: frozenset[str], modes: tuple[str, ...]) -> OutputFilter | None:
        """Return the way out for a turn, ``None`` where nothing is to be done."""
        profile = self.profiles.of(extensions)
        return OutputFilter(profile, modes) if profile is not None or modes else None


def active(said: Mapping[str, Any] | None, extensions: frozenset[str]) -> dict[str, Any]:
    """Return what ``said`` says for extensions that are in force."""
    return {
        key: value
        for key, value in (said or {}).items()
        if any(key == uri or key.startswith(f"{uri}/") for uri in extensions)
    }
