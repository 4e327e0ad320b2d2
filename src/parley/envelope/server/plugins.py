"""Handlers that an operator adds: for types of messages and actions that no agent has.

They run after the guard, with a timeout, few at a time. What they raise is logged, and the sender
gets an error without details.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import msgspec

from parley.envelope.messages import (
    OPERATION_PREFIX,
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
"""Answers a message: with a ``ResponsePayload``, a list of results, one JSON value, or ``None``."""

TIMEOUT = 30.0
AT_ONCE = 64
MAX_RESULT_BYTES = 4 * 1024 * 1024
REGISTRY_PREFIX = "registry."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


class EnvelopeHandlers:
    """The handlers of a server, by type of message or by action.

    ``fallback`` gets every type and action that nobody knows. Each call ends after ``timeout``
    seconds; at most ``at_once`` run at a time, and further ones are refused with ``retryAfter``.

    Raises ``ValueError`` for a name that is the protocol's own, ``TypeError`` for what is no async
    function of the message and its context.
    """

    def __init__(
        self,
        handlers: Mapping[str, EnvelopeHandler] | None = None,
        fallback: EnvelopeHandler | None = None,
        *,
        timeout: float = TIMEOUT,
        at_once: int = AT_ONCE,
        own: Mapping[str, EnvelopeHandler] | None = None,
    ) -> None:
        self._handlers = dict(handlers or {})
        for name, handler in self._handlers.items():
            _check_name(name)
            _check_handler(handler, f"the handler of {name!r}")
        if fallback is not None:
            _check_handler(fallback, "fallback of EnvelopeBinding")
        self._fallback = fallback
        self._timeout = timeout
        self._at_once = at_once
        self._own = dict(own or {})
        self._running = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The types and actions that the operator has handlers for."""
        return tuple(self._handlers)

    def check_skills(self, skills: Collection[str]) -> None:
        """Raise ``ValueError`` for a handler of an action that is a skill."""
        for name in self._handlers:
            if name in skills:
                raise ValueError(
                    f"handlers of EnvelopeBinding has a handler of {name!r}, which is a skill of "
                    "an agent here: the skill would never be called; give the action another name"
                )

    def find(self, message: Envelope, *, is_known: bool) -> EnvelopeHandler | None:
        """Return the handler of a message; ``is_known``: the agent knows its type and action.

        An EVENT of a client is for the handler of its action, and for no other.
        """
        name = message.message.type
        if name in _TYPES:
            if not isinstance(message.payload, RequestPayload):
                return None
            if name == MessageType.EVENT:
                return self._handlers.get(message.payload.action)
            if name != MessageType.REQUEST:
                return None
            name = message.payload.action
        own = self._own.get(name) or self._handlers.get(name)
        return own or (None if is_known else self._fallback)

    async def answer(
        self, handler: EnvelopeHandler, message: Envelope, context: MessageContext
    ) -> ResponsePayload | None:
        """Return the payload of the RESPONSE, ``None`` where none is sent. Raises ``A2AError``."""
        if self._running >= self._at_once:
            raise OverloadedError("too many messages of this kind are under way", retry_after=1)
        self._running += 1
        try:
            async with asyncio.timeout(self._timeout) as timeout:
                given = await handler(message, context)
            return self._payload(given, message)
        except A2AError:
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


_TYPES = frozenset(MessageType)


def _failed(message: Envelope) -> InternalError:
    log.exception("the handler of %s failed", _named(message))
    return InternalError("the handler of this message failed; the server's log says why")


def _named(message: Envelope) -> str:
    name = message.message.type
    if isinstance(message.payload, RequestPayload):
        name = message.payload.action
    return ascii(name[:100])


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            "handlers of EnvelopeBinding has types of messages and actions such as 'INVENTORY' or "
            f"'stock.count', not {name!r:.200}"
        )
    if name in _TYPES:
        known = ", ".join(_TYPES)
        raise ValueError(f"{name!r} is a type of the protocol's own ({known}): choose another")
    if name.startswith((OPERATION_PREFIX, REGISTRY_PREFIX)):
        raise ValueError(
            f"{name!r}: actions that begin with {OPERATION_PREFIX!r} or {REGISTRY_PREFIX!r} are "
            "the protocol's own; give the action another name"
        )


def _check_handler(handler: object, what: str) -> None:
    of_object = getattr(type(handler), "__call__", None)  # noqa: B004 - its function is looked at
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(of_object)
    if not callable(handler) or not is_async:
        raise TypeError(
            f"{what} is an async function of a message and its context, such as "
            f"async def handle(message, context): ..., not {handler!r:.200}"
        )


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
