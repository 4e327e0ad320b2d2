"""Envelope messages by HTTP POST, where no WebSocket can be had: EVENTs come as SSE."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator

from parley.client.bindings.http import HttpTransport, OpenResponse
from parley.client.bindings.http_binding import EVENT_STREAM, media_type_of
from parley.client.bindings.request_auth import refusal_in
from parley.client.errors import Disconnected, UnexpectedStatus
from parley.envelope.client.answers import AnswerEnd, SeenIds
from parley.envelope.client.identity import EnvelopeIdentity
from parley.envelope.client.settings import LinkEndpoint, LinkSettings
from parley.envelope.codec import UnreadableEnvelope, read_message
from parley.envelope.messages import Envelope, MessageType, SubType
from parley.model.backoff import seconds_of
from parley.model.errors import InvalidAgentResponseError
from parley.wire.sse import SseParser

logger = logging.getLogger(__name__)


class PostLink:
    """Sends each message in a request of its own."""

    def __init__(
        self,
        http: HttpTransport,
        endpoint: LinkEndpoint,
        identity: EnvelopeIdentity,
        settings: LinkSettings,
    ) -> None:
        self._http = http
        self._endpoint = endpoint
        self._identity = identity
        self._settings = settings

    async def exchange(self, request: Envelope) -> AsyncGenerator[Envelope]:
        """Send a message and yield its answers. Raises ``Disconnected`` if the last is missing."""
        body = self._identity.write(request, self._settings.max_message)
        logger.debug("> POST %s %.4000r", self._endpoint, body)
        async with self._endpoint.post(self._http, body, self._settings) as response:
            if response.status == 200 and media_type_of(response.headers) == EVENT_STREAM:
                end = AnswerEnd(request)
                async for answer in self._events(response):
                    yield answer
                    if end.is_last(answer):
                        return
                raise Disconnected(f"the stream of {self._endpoint} ended before its last message")
            body = await response.read(self._settings.max_message)
            logger.debug("< %d %.4000r", response.status, body)
            if not body.strip() and 200 <= response.status < 300:
                if request.message.sub_type == SubType.NOTIFICATION or (
                    request.message.type != MessageType.REQUEST
                ):
                    return
                raise InvalidAgentResponseError(
                    f"{self._endpoint} answered {response.status} without a message"
                )
            yield self._answer(response, body)

    async def _events(self, response: OpenResponse) -> AsyncGenerator[Envelope]:
        parser, seen = SseParser(self._settings.max_message), SeenIds()
        async for chunk in response.chunks():
            for _, _, data in parser.feed(chunk):
                if data:
                    logger.debug("< %.4000r", data)
                    answer = self._read(data)
                    if seen.is_new(answer.message_id):
                        yield answer

    def _answer(self, response: OpenResponse, body: bytes) -> Envelope:
        """Return the message of a response. Raises what a response without one means."""
        refusal = refusal_in(response.status, response.headers)
        try:
            return self._read(body)
        except InvalidAgentResponseError:
            if response.status in (401, 403):
                raise self._endpoint.refused(refusal) from None
            if 200 <= response.status < 300:
                raise
        raise UnexpectedStatus(
            f"{self._endpoint} answered {response.status}, and no message of the protocol",
            status=response.status,
            retry_after=seconds_of(response.headers.get("retry-after")),
        )

    def _read(self, data: bytes) -> Envelope:
        try:
            answer = read_message(data, max_bytes=self._settings.max_message)
        except UnreadableEnvelope as wrong:
            raise InvalidAgentResponseError(
                f"{self._endpoint} sends what is no message of the protocol: {wrong.error.message}"
            ) from None
        self._identity.check(answer)
        return answer
