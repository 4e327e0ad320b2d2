"""Where an agent is offered, as those who ask see it (specification §4.4.6, §8.3)."""

from __future__ import annotations

from starlette.types import Scope

from parley.model.cards import AgentInterface
from parley.server.address import server_address
from parley.server.endpoint import Interfaces

_OFFERED = (("JSONRPC", "1.0"),)


class Offer:
    """The addresses of one agent, on a server or behind proxies.

    ``url`` is the public address of the whole app, where requests do not tell it.
    """

    def __init__(self, prefix: str, *, url: str | None, trust_proxy: bool) -> None:
        self.url = url
        self._prefix = prefix
        self._trust_proxy = trust_proxy

    def address(self, scope: Scope) -> str:
        """Return the URL at which the agent takes JSON-RPC, as the caller sees it.

        Raises ``BadAddress``.
        """
        if self.url is not None:
            return self.url.rstrip("/") + self._prefix if self._prefix else self.url
        address = server_address(scope, trust_proxy=self._trust_proxy)
        if self._prefix:
            return address + self._prefix
        # Whoever mounts the app at a path redirects to that path with a slash: name it so.
        return f"{address}/" if address.count("/") > 2 else address

    def interfaces(self, scope: Scope) -> Interfaces:
        """Return the interfaces of the agent, the preferred first. Raises ``BadAddress``."""
        return interfaces_at(self.address(scope))


def interfaces_at(address: str) -> Interfaces:
    """Return the interfaces at an address that takes JSON-RPC, the preferred first."""
    return tuple(
        AgentInterface(
            url=address if binding == "JSONRPC" else address.rstrip("/"),
            protocol_binding=binding,
            protocol_version=version,
        )
        for binding, version in _OFFERED
    )
