"""The handler that an operator adds: for types of messages and actions that no agent has.

It runs after the guard, with a timeout, few calls at a time. What it raises is logged, and the
sender gets an error without details.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from parley.envelope.messages import (
    Envelope,
    MessageType,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    Status,
)
from parley.envelope.server.directory import AgentDirectory, MessageContext
from parley.envelope.server.heartbeats import HeartbeatSettings, ServerLoad
from parley.envelope.server.measured import EnvelopeStatistics
from parley.model.errors import A2AError, InternalError, OverloadedError

log = logging.getLogger("parley.envelope")

EnvelopeHandler = Callable[[Envelope, MessageContext], Awaitable[Any]]
"""Answers a message: with a ``ResponsePayload``, a list of results, one JSON value, or ``None``.

``NotImplemented``: the message is none of its own, so it is unknown here.
"""

TIMEOUT = 30.0
AT_ONCE = 64
MAX_RESULT_BYTES = 4 * 1024 * 1024
REGISTRY_PREFIX = "registry."


class NotHandled(Exception):
    """The handler of the operator leaves a message alone: it returned ``NotImplemented``."""


class EnvelopeHandlers:
    """The handlers of a server: ``hook`` of the operator, and the server's own, by their actions.

    Each call ends after ``timeout`` seconds; at most ``at_once`` run at a time, and further ones
    are refused with ``retryAfter``. Raises ``TypeError`` for what is no async function of the
    message and its context.
    """

    def __init__(
        self,
        hook: EnvelopeHandler | None = None,
        *,
        timeout: float = TIMEOUT,
        at_once: int = AT_ONCE,
        own: Mapping[str, EnvelopeHandler] | None = None,
    ) -> None:
        of_object = getattr(type(hook), "__call__", None)  # noqa: B004 - its function is looked at
        is_async = inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(of_object)
        if hook is not None and not is_async:
            raise TypeError(
                "handler of EnvelopeBinding is an async function of a message and its context, "
                f"such as async def handle(message, context): ..., not {hook!r:.200}"
            )
        self.hook = hook
        self._timeout = timeout
        self._at_once = at_once
        self._own = dict(own or {})
        self._running = 0

    def of_server(self, request: Envelope) -> EnvelopeHandler | None:
        """Return the handler of the server for the action of a REQUEST."""
        payload = request.payload
        return self._own.get(payload.action) if isinstance(payload, RequestPayload) else None

    async def answer(
        self, handler: EnvelopeHandler, message: Envelope, context: MessageContext
    ) -> ResponsePayload | None:
        """Return the payload of the RESPONSE, ``None`` where none is sent.

        Raises ``A2AError``, and ``NotHandled`` for what the handler leaves alone.
        """
        if self._running >= self._at_once:
            raise OverloadedError("too many messages of this kind are under way", retry_after=1)
        self._running += 1
        try:
            async with asyncio.timeout(self._timeout) as timeout:
                given = await handler(message, context)
            return self._payload(given, message)
        except (A2AError, NotHandled):
            raise
        except TimeoutError:
            if not timeout.expired():
                raise _failed(message) from None
            log.error("the handler of %s took more than %g s", _named(message), self._timeout)
            raise InternalError("the handler of this message took too long") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _failed(message) from None  # something within the handler was cancelled
        except Exception:
            raise _failed(message) from None
        finally:
            self._running -= 1

    def _payload(self, given: Any, message: Envelope) -> ResponsePayload | None:
        if given is NotImplemented:
            raise NotHandled
        if given is None:
            if message.message.type != MessageType.REQUEST:
                return None
            return ResponsePayload(status=Status.SUCCESS)
        if isinstance(given, ResponsePayload):
            payload = given
        else:
            results = tuple(given) if isinstance(given, list | tuple) else (given,)
            payload = ResponsePayload(
                status=Status.SUCCESS,
                results=results,
                metadata=ResponseMetadata(total_results=len(results)),
            )
        size = len(msgspec.json.encode(payload))  # raises TypeError for what is no JSON
        if size > MAX_RESULT_BYTES:
            raise ValueError(f"the answer has {size:,} bytes, more than {MAX_RESULT_BYTES:,}")
        return payload


def _failed(message: Envelope) -> InternalError:
    log.exception("the handler of %s failed", _named(message))
    return InternalError("the handler of this message failed; the server's log says why")


def _named(message: Envelope) -> str:
    name = message.message.type
    if isinstance(message.payload, RequestPayload):
        name = message.payload.action
    return ascii(name[:100])


# -- services ---------------------------------------------------------------------------------
#
# What all envelope bindings of a server share.


class EnvelopeServices(msgspec.Struct, kw_only=True):
    """What the envelope bindings of a server share.

    ``handlers`` are those of the operator, with the server's own (``registry.register``).
    Without a ``directory`` messages are for the agent at the address alone.
    """

    handlers: EnvelopeHandlers = msgspec.field(default_factory=EnvelopeHandlers)
    directory: AgentDirectory | None = None
    statistics: EnvelopeStatistics = msgspec.field(default_factory=EnvelopeStatistics)
    heartbeats: HeartbeatSettings = HeartbeatSettings()
    load: ServerLoad = msgspec.field(default_factory=ServerLoad)
