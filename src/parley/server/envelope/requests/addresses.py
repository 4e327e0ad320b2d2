"""The addresses of an agent, as the sender of a message sees them."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Scope

from parley.security.credentials.client_address import client_address
from parley.server.endpoint import Interfaces
from parley.server.http.exchange import ServedEndpoint


class SenderAddresses:
    """What the upgrade or the POST of a sender shows (``SeenAddresses`` of the dispatcher).

    ``scope`` is that of an HTTP request: for a socket that of the GET that asked for it.
    """

    __slots__ = ("_scope", "_served")

    def __init__(self, served: ServedEndpoint, scope: Scope) -> None:
        self._served = served
        self._scope = scope

    def sender(self) -> str:
        """Return the IP address of the sender; empty if there is none."""
        return client_address(self._scope, trust_proxy=self._served.settings.trust_proxy)

    def interfaces(self, tenant: str) -> Interfaces:
        """Return the interfaces of the agent of a tenant. Raises ``BadAddress``."""
        return self._served.interfaces(self._scope, tenant)

    def vary_by_caller(self) -> None:
        """Do nothing: no cache keeps messages."""

    def address(self, tenant: str) -> str:
        """Return the URL below which the agent of a tenant is."""
        return self._served.address(self._scope, tenant)


def header_values(scope: Scope, name: bytes) -> tuple[str, ...]:
    """Return the items of headers that are lists with commas."""
    found: Iterable[bytes] = (value for key, value in scope["headers"] if key == name)
    items = [item.strip() for value in found for item in value.decode("latin-1").split(",")]
    return tuple(item for item in items if item)
