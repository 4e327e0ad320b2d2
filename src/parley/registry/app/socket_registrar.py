"""Registration over sockets of the registry itself: with the rights of publishing over REST."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from parley.host.envelope.registrar import outcome_of
from parley.model.errors import InvalidParamsError, PermissionDeniedError, TooManyRequestsError
from parley.registry.health.heartbeats import Heartbeats
from parley.registry.publishing.pushing import EntryPublishing, PublishOptions
from parley.server.envelope.directory import MessageContext
from parley.store.protocols.errors import StoreUnavailable
from parley.wire.envelope.errors import AgentUnavailable


class IndexRegistrar:
    """Publishes what agents register in the index of this registry (``AgentRegistrar``)."""

    def __init__(self, publishing: EntryPublishing, heartbeats: Heartbeats) -> None:
        self._publishing = publishing
        self._heartbeats = heartbeats

    def identifier_of(self, agent_id: str, given: str) -> str:
        """Return the identifier that the agent gives. Raises ``InvalidParamsError``."""
        if not given:
            raise InvalidParamsError(
                "an agent is listed under an identifier of a domain that it has proved: give "
                '"identifier": "urn:air:<your domain>:agent:<name>" beside "card"'
            )
        return given

    async def publish(
        self, entry: Mapping[str, Any], audience: Any, context: MessageContext
    ) -> Mapping[str, Any]:
        """Publish an entry of the caller's."""
        if audience is not None and not isinstance(audience, list):
            raise InvalidParamsError("audience is a list, such as ['public']")
        options = PublishOptions(audience=None if audience is None else tuple(audience))
        catalog = {"specVersion": "1.0", "entries": [entry]}
        with _refusals():
            report = await self._publishing.publish(
                context.caller, catalog, options, address=context.address
            )
        return outcome_of(msgspec.to_builtins(report))

    async def withdraw(self, identifier: str, context: MessageContext) -> None:
        """Withdraw an entry of the caller's."""
        with _refusals():
            await self._publishing.withdraw(context.caller, identifier, address=context.address)

    async def beat(self, identifiers: Sequence[str], context: MessageContext) -> Mapping[str, Any]:
        """Note that agents of the caller are alive."""
        with _refusals():
            answer = await self._heartbeats.beat(context.caller, identifiers)
        if not answer.alive:
            raise PermissionDeniedError("this caller has published none of these: register first")
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in msgspec.to_builtins(answer).items()
        }


@contextmanager
def _refusals() -> Iterator[None]:
    """Say when to try again, where a refusal does not."""
    try:
        yield
    except TooManyRequestsError as error:
        error.retry_after = error.retry_after or 5
        raise
    except StoreUnavailable as error:
        raise AgentUnavailable("the registry cannot keep anything now", retry_after=5) from error
