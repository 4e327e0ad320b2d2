"""When messages and artifacts were made (``docs/extensions/message-timestamps.md``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.extensions import Carrier, Extension
from parley.model.parts import Artifact, Message
from parley.model.requests import SendMessageRequest
from parley.model.service import CallContext
from parley.model.struct import Timestamp
from parley.model.tasks import TaskArtifactUpdateEvent

MESSAGE_TIMESTAMPS = "urn:parley:message-timestamps:v1"

V = TypeVar("V", Message, Artifact)


class MessageTimestamps(Extension):
    """Every message and every artifact says when it was made.

    The one who makes it says so. An agent stamps a caller's message that lacks its moment when it
    comes in, and refuses one whose moment is none.
    """

    uri = MESSAGE_TIMESTAMPS
    description = "Messages and artifacts carry the moment that they were made at."

    def __init__(
        self, *, clock: Callable[[], Timestamp] = Timestamp.now, required: bool = False
    ) -> None:
        super().__init__(required=required)
        self._clock = clock

    @classmethod
    def of(cls, carrier: Carrier) -> Timestamp | None:
        """Return the moment that a message or an artifact was made at, if it says so.

        Raises ``InvalidParamsError`` when what it says is no moment.
        """
        said = (carrier.metadata or {}).get(cls.uri)
        if said is None:
            return None
        text = said.get("timestamp") if isinstance(said, dict) else None
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
        """Return a moment as metadata."""
        return {cls.uri: {"timestamp": str(data)}}

    async def receive(
        self, request: SendMessageRequest, context: CallContext
    ) -> SendMessageRequest:
        """Check the moment of a caller's message; give it one if it has none."""
        return self.ask(request)

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Stamp a message that goes out."""
        return replace(request, message=self._stamped(request.message))

    def send(self, event: Any) -> Any:
        """Stamp what an agent says."""
        if isinstance(event, Message):
            return self._stamped(event)
        if isinstance(event, TaskArtifactUpdateEvent):
            if event.append and not event.last_chunk:
                return event  # the first chunk says when the artifact was begun, the last when done
            return replace(event, artifact=self._stamped(event.artifact))
        if event.status.message is None:
            return event
        message = self._stamped(event.status.message)
        return replace(event, status=replace(event.status, message=message))

    def _stamped(self, content: V) -> V:
        return content if self.of(content) is not None else self.put(content, self._clock())
