"""Creation times of messages and artifacts.

``docs/reference/extensions/message-timestamps.md`` is the specification.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.extensions import Carrier, Extension
from parley.model.operations import SendMessageRequest
from parley.model.parts import Artifact, Message
from parley.model.service import CallContext
from parley.model.struct import Timestamp
from parley.model.tasks import Replied, TaskArtifactUpdateEvent

MESSAGE_TIMESTAMPS = "urn:parley:message-timestamps:v1"

V = TypeVar("V", Message, Artifact)


class MessageTimestamps(Extension):
    """Every message and every artifact carries its creation time, set by its creator.

    An agent sets the time of a message that arrives without one, and rejects an invalid time.
    """

    uri = MESSAGE_TIMESTAMPS
    description = "Messages and artifacts carry their creation time."

    def __init__(
        self, *, clock: Callable[[], Timestamp] = Timestamp.now, required: bool = False
    ) -> None:
        super().__init__(required=required)
        self._clock = clock

    @classmethod
    def of(cls, carrier: Carrier | Replied) -> Timestamp | None:
        """Return the creation time of a message or an artifact, if it has one.

        Raises ``InvalidParamsError`` for an invalid time.
        """
        value = cls.value_in(carrier)
        if value is None:
            return None
        text = value.get("timestamp") if isinstance(value, dict) else None
        try:
            return Timestamp.parse(text if isinstance(text, str) else "")
        except ValueError:
            path = f"metadata.{cls.uri}.timestamp"
            description = "expected a timestamp such as 2026-01-31T12:00:00.000Z"
            raise InvalidParamsError(
                f"{path}: {description}", violations=(FieldViolation(path, description),)
            ) from None

    @classmethod
    def says(cls, data: Timestamp) -> dict[str, Any]:
        """Return a creation time as metadata."""
        return {cls.uri: {"timestamp": str(data)}}

    async def receive(
        self, request: SendMessageRequest, context: CallContext
    ) -> SendMessageRequest:
        """Check the creation time of a caller's message, or set it if it is missing."""
        return self.ask(request)

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Set the creation time of a message to an agent."""
        return replace(request, message=self._timestamped(request.message))

    def send(self, event: Any) -> Any:
        """Set the creation time of the messages and artifacts that an agent sends."""
        if isinstance(event, Message):
            return self._timestamped(event)
        if isinstance(event, TaskArtifactUpdateEvent):
            if event.append and not event.last_chunk:
                return event  # the first chunk has the time; the last chunk ends the artifact
            return replace(event, artifact=self._timestamped(event.artifact))
        if event.status.message is None:
            return event
        message = self._timestamped(event.status.message)
        return replace(event, status=replace(event.status, message=message))

    def _timestamped(self, content: V) -> V:
        return content if self.of(content) is not None else self.put(content, self._clock())
