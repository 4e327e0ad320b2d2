"""Who answers a REQUEST: the agent at the address, another one, or a handler of the operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

from parley.envelope.answers import error_response, response
from parley.envelope.errors import TargetNotFound, UnknownAction, UnknownMessageType
from parley.envelope.messages import Envelope, MessageType, ResponseMetadata, Source
from parley.envelope.server.directory import MessageContext
from parley.envelope.server.plugins import EnvelopeHandler
from parley.envelope.server.requests.calls import Calls, in_terms_of_messages
from parley.envelope.server.requests.replies import Replies
from parley.envelope.server.services import EnvelopeServices
from parley.model.errors import A2AError
from parley.security.rates.exceeded import fields_of
from parley.server.dispatch import ServiceCall
from parley.server.failures import log_unforeseen
from parley.server.limits.rates import standings_of


class Answering:
    """Answers the messages to one agent, or to one tenant of an endpoint.

    ``source`` is the agent, as its answers name it.
    """

    def __init__(self, calls: Calls, services: EnvelopeServices, source: Source) -> None:
        self.calls = calls
        self.source = source
        self._services = services

    def is_own(self, request: Envelope, context: MessageContext) -> bool:
        """Return whether the agent at the address is asked, and nobody else."""
        directory = self._services.directory
        try:
            return directory is None or not directory.is_for_others(request, context)
        except A2AError:
            return False

    def has_handler(self, message: Envelope) -> bool:
        """Return whether the operator gave a handler for a message, besides the one for all."""
        return self._services.handlers.find(message, is_known=True) is not None

    def is_quick(self, request: Envelope) -> bool:
        """Return whether a REQUEST waits for no turn, and has no EVENTs."""
        try:
            operation, is_skill = self.calls.operation_of(request)
        except A2AError:
            return True
        return not (is_skill or operation.streaming or operation.name == "SendMessage")

    async def answers(
        self, request: Envelope, context: MessageContext
    ) -> AsyncGenerator[Envelope, None]:
        """Yield the RESPONSE and the EVENTs of a REQUEST; whatever fails is a RESPONSE too."""
        try:
            answers = self.tried(request, context)
            async with aclosing(answers):
                async for answer in answers:
                    yield answer
        except A2AError as error:
            yield self.refusal(request, error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not this request, but something within the service was cancelled.
            yield error_response(request, log_unforeseen("a REQUEST"), source=self.source)
        except Exception:
            yield error_response(request, log_unforeseen("a REQUEST"), source=self.source)

    def refusal(self, request: Envelope | str, error: A2AError) -> Envelope:
        """Return the RESPONSE of an error, with what is left of limits."""
        limits = dict(fields_of(standings_of(error)))
        metadata = ResponseMetadata(rate_limits=limits)
        return error_response(request, error, source=self.source, metadata=metadata)

    async def of_unknown_type(self, message: Envelope, context: MessageContext) -> Envelope | None:
        """Return the answer to a message of a type that the protocol does not have.

        Raises ``A2AError``.
        """
        handler = self._services.handlers.find(message, is_known=False)
        if handler is None:
            known = ", ".join(MessageType)
            raise UnknownMessageType(
                f"there is no message type {message.message.type[:60]!r}; there are {known}"
            )
        return await self._handled(handler, message, context)

    async def tried(
        self,
        request: Envelope,
        context: MessageContext,
        on_call: Callable[[ServiceCall], None] | None = None,
    ) -> AsyncGenerator[Envelope, None]:
        """Yield the answers to a REQUEST; ``on_call`` gets the call of the agent, if it is one.

        Raises ``A2AError`` for what fails before the first.
        """
        directory, handlers = self._services.directory, self._services.handlers
        if directory is None:
            self._check_target(request)
        elif directory.is_for_others(request, context):
            self._check_rights(request, context)
            routed = cast("AsyncGenerator[Envelope, None]", directory.route(request, context))
            async with aclosing(routed):
                async for answer in routed:
                    yield answer
            return
        handler = handlers.find(request, is_known=True)
        if handler is None:
            try:
                own = self._own(request, context, on_call)
                async with aclosing(own):
                    async for answer in own:
                        yield answer
                return
            except UnknownAction:
                handler = handlers.find(request, is_known=False)
                if handler is None:
                    raise
        handled = await self._handled(handler, request, context)
        if handled is not None:
            yield handled

    async def _own(
        self,
        request: Envelope,
        context: MessageContext,
        on_call: Callable[[ServiceCall], None] | None,
    ) -> AsyncGenerator[Envelope, None]:
        try:
            exchanged = self.calls.begin(request, context)
        except A2AError as error:
            raise in_terms_of_messages(error, request) from None
        if on_call is not None:
            on_call(exchanged.call)
        replies = Replies(exchanged, self.source).all()
        async with aclosing(replies):
            async for answer in replies:
                yield answer

    async def _handled(
        self, handler: EnvelopeHandler, message: Envelope, context: MessageContext
    ) -> Envelope | None:
        self._check_rights(message, context)
        await self.calls.count(context)
        payload = await self._services.handlers.answer(handler, message, context)
        return None if payload is None else response(message, payload, source=self.source)

    def _check_rights(self, message: Envelope, context: MessageContext) -> None:
        """Refuse what the agent itself does not answer to a caller without the agent's credentials.

        One of its operations may need none: that lets its caller connect, and no more. Raises
        ``A2AError``.
        """
        rights = self.calls.agent.authorization
        if rights is not None:
            action = getattr(message.payload, "action", "") or message.message.type
            rights.check(action, rights.own_caller(context.caller))

    def _check_target(self, request: Envelope) -> None:
        """Raise ``TargetNotFound`` for a message to another agent: none is known here."""
        target: Any = request.target
        if target.agent_id not in ("", self.source.agent_id) or target.agent_type not in (
            "",
            self.source.agent_type,
        ):
            raise TargetNotFound(
                "no agent here is like the target of the message; leave it out to call the agent "
                "at this address"
            )
