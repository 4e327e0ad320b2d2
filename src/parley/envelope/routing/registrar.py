"""Publishes agents that register over sockets in the registry of a server, by REST.

The server's credentials prove its domain, so it chooses the names: an agent is listed below the
server's own ones, under the id that it is authenticated as, and no other name is passed on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from parley.client.errors import ClientError
from parley.client.registry.errors import RegistryRefused
from parley.client.registry.publishing import RegistryPublisher
from parley.client.registry.remote_registry import RemoteRegistry
from parley.envelope.errors import AgentUnavailable
from parley.envelope.server.directory import MessageContext
from parley.model.catalog.urn import AirUrn
from parley.model.errors import (
    A2AError,
    InvalidParamsError,
    PermissionDeniedError,
    TooManyRequestsError,
)

T = TypeVar("T")

NAMESPACE = "connected"
TIMEOUT = 30.0
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_OWN_NAME = re.compile(r"(?!.*-[0-9a-f]{12}$)[a-z0-9._-]{1,100}")
"""An id that is a name as it is: in lower case, and unlike a name with a hash."""


class RestRegistrar:
    """Publishes in a registry with the credentials that the environment has for it."""

    def __init__(self, registry: str, publisher: str) -> None:
        self._registry = registry
        self._publisher = publisher

    def identifier_of(self, agent_id: str, given: str) -> str:
        """Return the identifier of an agent (``AgentRegistrar``)."""
        name = _NOT_A_NAME.sub("-", agent_id)
        if not _OWN_NAME.fullmatch(agent_id):  # two ids never have one name, in any case
            name = f"{name[:80]}-{hashlib.sha256(agent_id.encode()).hexdigest()[:12]}"
        own = str(AirUrn(self._publisher, (NAMESPACE,), name))
        if given and given.casefold() != own.casefold():
            raise PermissionDeniedError(
                f"through this server the agent is {own}: leave out the identifier, or publish "
                "another name in the registry itself"
            )
        return own

    async def publish(
        self, entry: Mapping[str, Any], audience: Any, context: MessageContext
    ) -> Mapping[str, Any]:
        """Publish an entry (``AgentRegistrar``)."""
        if audience is not None:
            raise InvalidParamsError(
                "the audience of an entry is its publisher's to decide, and that is this server"
            )
        catalog = {"specVersion": "1.0", "entries": [entry]}
        report = await self._call(lambda publisher: publisher.publish(catalog))
        return outcome_of(report)

    async def withdraw(self, identifier: str, context: MessageContext) -> None:
        """Withdraw an entry (``AgentRegistrar``)."""
        for own in context.caller.id, context.caller.client:
            if own and self.identifier_of(own, "").casefold() == identifier.casefold():
                await self._call(lambda publisher: publisher.withdraw(identifier))
                return
        raise PermissionDeniedError(f"{identifier[:200]!r} is not this agent's")

    async def beat(self, identifiers: Sequence[str], context: MessageContext) -> Mapping[str, Any]:
        """Note that agents are alive (``AgentRegistrar``)."""
        own = {
            self.identifier_of(each, "").casefold()
            for each in (context.caller.id, context.caller.client)
            if each
        }
        if strange := [each for each in identifiers if each.casefold() not in own]:
            raise PermissionDeniedError(f"{strange[0][:200]!r} is not this agent's")
        return await self._call(lambda publisher: publisher.beat(identifiers))

    async def _call(self, call: Callable[[RegistryPublisher], Awaitable[T]]) -> T:
        try:
            async with RemoteRegistry(self._registry, timeout=TIMEOUT, retries=0) as remote:
                return await call(RegistryPublisher(remote))
        except RegistryRefused as error:
            raise _refusal(error) from error
        except (ClientError, ValueError) as error:
            raise AgentUnavailable(
                "the registry cannot be reached now; register again later", retry_after=30
            ) from error


def outcome_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what became of the only entry of a report. Raises ``PermissionDeniedError``."""
    for each in report.get("refused") or ():
        raise PermissionDeniedError(f"the registry refuses it: {str(each.get('reason'))[:500]}")
    entries: Sequence[Mapping[str, Any]] = report.get("entries") or ({},)
    return {
        name: str(entries[0][name])[:1000]
        for name in ("identifier", "standing", "reason")
        if entries[0].get(name)
    }


def _refusal(error: RegistryRefused) -> A2AError:
    words = "".join(char if char.isprintable() else " " for char in str(error))[:500]
    if error.status == 429:
        return TooManyRequestsError(words, retry_after=error.retry_after or 30)
    if error.status in (401, 403):
        return PermissionDeniedError(words)
    if error.status >= 500:
        return AgentUnavailable(words, retry_after=error.retry_after or 30)
    return InvalidParamsError(words)
