"""Filters what an agent says before it is logged: by the accepted output modes of the caller, and
by the active extensions.
"""

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

log = logging.getLogger("parley.engine")

E = TypeVar("E", Message, TaskStatusUpdateEvent, TaskArtifactUpdateEvent)


class OutputFilter:
    """Filters everything that one turn says, once, before it is logged.

    Parts get the form that the caller accepts, if they have one; other parts are sent unchanged,
    with a warning in the server's log, because ``acceptedOutputModes`` is a wish (§3.2.2).
    Then the active extensions process the event.
    """

    def __init__(self, profile: Profile | None, modes: tuple[str, ...]) -> None:
        self._profile = profile
        self._modes = modes
        self._warned = False

    def send(self, event: E) -> E:
        """Return the event to log. Raises ``A2AError`` for one that must not be sent."""
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


class OutputFilters:
    """Makes the output filters of an agent's turns."""

    def __init__(self, extensions: Iterable[Extension], in_thread: InThread) -> None:
        self.profiles = Profiles(extensions, in_thread)

    def of(self, extensions: frozenset[str], modes: tuple[str, ...]) -> OutputFilter | None:
        """Return the filter of a turn, ``None`` if there is nothing to filter."""
        profile = self.profiles.of(extensions)
        return OutputFilter(profile, modes) if profile is not None or modes else None


def active(metadata: Mapping[str, Any] | None, extensions: frozenset[str]) -> dict[str, Any]:
    """Return the members of ``metadata`` that belong to active extensions."""
    return {
        key: value
        for key, value in (metadata or {}).items()
        if any(key == uri or key.startswith(f"{uri}/") for uri in extensions)
    }
