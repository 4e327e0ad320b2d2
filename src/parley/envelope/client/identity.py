"""Who a client says to be, the key that proves it, and the key of the agent that it calls."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from parley.client.errors import ClientError
from parley.envelope import answers
from parley.envelope.errors import DeadlineExceeded
from parley.envelope.messages import (
    Envelope,
    RequestMetadata,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    Source,
    Status,
    SubType,
)
from parley.model.errors import A2AError, InternalError, MethodNotFoundError, OverloadedError
from parley.model.ids import RIGHT_NAME, may_be_name, new_id

if TYPE_CHECKING:
    from parley.envelope.signatures import EnvelopeKey


class NotFromAgent(ClientError):
    """An answer is not signed with the agent's key. It is not used."""


class EnvelopeTooLarge(ClientError):
    """The message is larger than this side sends. Nothing was sent."""


class EnvelopeIdentity:
    """The source of messages, and the keys: ``key`` signs them, ``agent_key`` verifies answers.

    ``is_given``: the user chose the source. Without that, an agent that knows the caller may say
    what its credentials are for.
    """

    def __init__(
        self,
        source: Source,
        *,
        key: EnvelopeKey | None = None,
        agent_key: EnvelopeKey | None = None,
        is_given: bool = True,
    ) -> None:
        self.source = source
        self._is_given = is_given or key is not None
        self.target_id = ""
        """The id of the agent, which signed messages name as their target."""
        self._key = key
        self._agent_key = agent_key

    @classmethod
    def of(
        cls,
        agent_id: str = "",
        agent_type: str = "",
        *,
        key: EnvelopeKey | None = None,
        agent_key: EnvelopeKey | None = None,
    ) -> EnvelopeIdentity:
        """Return an identity; the owner of the key is its id, else one by chance.

        Raises ``ValueError`` for an id that is not the owner of the key, and for what is no id.
        """
        if key is not None and agent_id not in ("", key.owner):
            raise ValueError(
                f"the key is that of {key.owner!r}, so agent_id is that too, or left out"
            )
        instance = new_id()
        id = agent_id or (key.owner if key is not None else f"client-{instance}")
        for name, value in (("agent_id", id), ("agent_type", agent_type)):
            if not isinstance(value, str) or not may_be_name(value):
                raise ValueError(f"{name} is {RIGHT_NAME}, not {value!r:.80}")
        source = Source(agent_id=id, agent_type=agent_type or "client", instance_id=instance)
        return cls(source, key=key, agent_key=agent_key, is_given=bool(agent_id))

    @property
    def signs(self) -> bool:
        """Whether messages are signed."""
        return self._key is not None

    def rename(self, agent_id: str) -> bool:
        """Take the id that the credentials are for, unless the user chose one."""
        if self._is_given or agent_id == self.source.agent_id or not may_be_name(agent_id):
            return False
        self.source = msgspec.structs.replace(self.source, agent_id=agent_id)
        return True

    def write(self, message: Envelope, limit: int) -> bytes:
        """Return a message as it is sent: signed for this one time, if there is a key.

        Raises ``EnvelopeTooLarge``, and ``ValueError`` for what JSON cannot say.
        """
        from parley.envelope.codec import write_message

        if self._key is not None:
            is_open = not (message.target.agent_id or message.target.agent_type)
            if is_open and self.target_id:
                target = msgspec.structs.replace(message.target, agent_id=self.target_id)
                message = msgspec.structs.replace(message, target=target)
            from parley.envelope.signatures import sign_message
            from parley.model.struct import Timestamp

            message = sign_message(message, self._key, now=Timestamp.now())
        data = write_message(message)
        if len(data) > limit:
            raise EnvelopeTooLarge(
                f"the message has {len(data):,} bytes; this side sends at most {limit:,}: send "
                "large content as a file by reference"
            )
        return data

    def check(self, message: Envelope) -> None:
        """Check the signature of a message, if the key of the agent is known.

        Raises ``NotFromAgent``.
        """
        if self._agent_key is None:
            return
        from parley.envelope.errors import SignatureInvalid
        from parley.envelope.signatures import verify_signature

        if message.security is None:
            raise NotFromAgent("an answer is not signed, and the agent's key was given: not used")
        try:
            verify_signature(message, self._agent_key)
        except SignatureInvalid as error:
            raise NotFromAgent(f"an answer is not signed by the agent's key: {error}") from None


# -- inbound ----------------------------------------------------------------------------------
#
# REQUESTs that the other side sends over this side's socket, and their answers.


logger = logging.getLogger(__name__)

MAX_AT_ONCE = 64
"""How many REQUESTs are handled at a time; further ones are refused with ``retryAfter``."""

MAX_KEPT = 256
"""How many answers are kept for a REQUEST that comes again."""

RequestHandler = Callable[["IncomingRequest"], Any]
"""Answers a REQUEST: with a list of results, one JSON value, or ``None`` for no result. An async
generator sends what it yields as EVENTs, and ends with success."""

Send = Callable[[Envelope], Awaitable[None]]


class IncomingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A REQUEST to this side. ``message`` is the whole message."""

    action: str
    parameters: Any
    metadata: RequestMetadata
    message: Envelope

    @property
    def sender(self) -> str:
        """Who says to have sent it. The agent at the other end of the connection vouches for it."""
        return self.message.source.agent_id


class InboundRequests:
    """Handles each REQUEST until it has an answer, and keeps that for when the REQUEST comes again,
    over this connection or another.
    """

    def __init__(self, identity: EnvelopeIdentity) -> None:
        self._identity = identity
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._kept: OrderedDict[str, Envelope] = OrderedDict()
        self._send: Send | None = None
        self.handler: RequestHandler | None = None

    def take(self, request: Envelope, send: Send) -> None:
        """Handle a REQUEST, and answer it over the connection that is open then."""
        self._send = send
        if self.handler is None or not isinstance(request.payload, RequestPayload):
            words = "this side takes no REQUESTs"
            self._start("", self._reply(request, MethodNotFoundError(words)))
            return
        id = request.message_id
        if id in self._tasks:
            return
        if (kept := self._kept.get(id)) is not None:
            self._start("", self._reply(request, kept))
        elif len(self._tasks) >= MAX_AT_ONCE:
            if len(self._tasks) < 2 * MAX_AT_ONCE:
                words = "too many requests are under way; try again later"
                self._start("", self._reply(request, OverloadedError(words, retry_after=1.0)))
        else:
            self._start(id, self._handle(request, request.payload, self.handler))

    def _start(self, id: str, work: Any) -> None:
        task = asyncio.create_task(work, name="envelope-request")
        key = id or f"\x00{id_of(task)}"
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _handle(
        self, request: Envelope, payload: RequestPayload, handler: RequestHandler
    ) -> None:
        timeout = payload.metadata.timeout
        is_silent = request.message.sub_type == SubType.NOTIFICATION
        try:
            async with asyncio.timeout(None if timeout is None else timeout / 1000):
                answer: Envelope | A2AError = await self._answer(request, payload, handler)
        except TimeoutError:
            answer = DeadlineExceeded("the timeout of the request was over before its answer")
        except A2AError as error:
            answer = error
        except ClientError as error:
            logger.warning("the answer to a REQUEST was not sent: %s", error)
            return
        except Exception:
            logger.exception("the handler of %.100r failed", payload.action)
            answer = InternalError("the handler of this message failed")
        if not is_silent:
            await self._reply(request, answer)

    async def _answer(
        self, request: Envelope, payload: RequestPayload, handler: RequestHandler
    ) -> Envelope:
        source, is_command = self._identity.source, request.message.sub_type == SubType.COMMAND
        given = handler(
            IncomingRequest(
                action=payload.action,
                parameters=payload.parameters,
                metadata=payload.metadata,
                message=request,
            )
        )
        if is_command:
            accepted = ResponsePayload(status=Status.ACCEPTED)
            await self._transmit(answers.response(request, accepted, source=source))
        number = 0
        if inspect.isasyncgen(given):
            async with aclosing(given):  # also when the connection breaks between two items
                async for item in given:
                    number += 1
                    part = ResponsePayload(
                        status=Status.PARTIAL,
                        results=(item,),
                        metadata=ResponseMetadata(sequence=number),
                    )
                    await self._transmit(answers.event(request, part, source=source))
            given = None
        elif inspect.isawaitable(given):
            given = await given
        if isinstance(given, ResponsePayload):
            last = given
        else:
            results: Sequence[Any] = (
                () if given is None else given if isinstance(given, list | tuple) else (given,)
            )
            last = ResponsePayload(
                status=Status.SUCCESS,
                results=tuple(results),
                metadata=ResponseMetadata(total_results=len(results)),
            )
        make = answers.event if is_command else answers.response
        return make(request, last, source=source)

    async def _reply(self, request: Envelope, answer: Envelope | A2AError) -> None:
        if isinstance(answer, A2AError):
            answer = answers.error_response(request, answer, source=self._identity.source)
        else:
            self._kept[request.message_id] = answer
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        try:
            await self._transmit(answer)
        except ClientError as error:
            logger.warning("the answer to a REQUEST was not sent: %s", error)

    async def _transmit(self, message: Envelope) -> None:
        assert self._send is not None
        await self._send(message)

    async def close(self) -> None:
        """End what is under way. Idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def id_of(task: asyncio.Task[None]) -> int:
    """Return a number of a task that no other running one has."""
    return id(task)
