"""Where an agent is offered, as those who ask see it (specification §4.4.6, §8.3)."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.types import Scope

from parley.model.cards import AgentInterface
from parley.server.address import FORWARDED_ADDRESS, FORWARDED_SCHEME, server_address
from parley.server.endpoint import Interfaces
from parley.server.hosts import AllowedHosts
from parley.wire import versions

GRPC = "GRPC"

# In order of preference. Clients of 0.3 take the first of their version for the main one.
_OFFERED = tuple(
    (binding, version)
    for version in versions.SUPPORTED_VERSIONS
    for binding in ("JSONRPC", "HTTP+JSON", GRPC)
)


class GrpcAddress:
    """Where gRPC is listened to: nowhere while ``port`` is ``None``.

    ``address`` is the public one, where that is another.
    """

    def __init__(self, address: str = "") -> None:
        self.port: int | None = None
        self._address = address

    def beside(self, url: str) -> str:
        """Return the ``host:port`` for those who reach the server at ``url``."""
        host = urlsplit(url).hostname or "localhost"
        return self._address or (f"[{host}]" if ":" in host else host) + f":{self.port}"


class AdvertisedInterfaces:
    """The addresses of one agent, on a server or behind proxies.

    ``url`` is the public address of the whole app, where requests do not tell it. ``tenants`` are
    those that have paths of their own below the address; ``tenant`` is the one that the address
    itself stands for. ``grpc`` is where gRPC is listened to, ``over_grpc`` the tenant that stands
    for the agent there, where there are no paths.
    """

    def __init__(
        self,
        prefix: str,
        *,
        url: str | None,
        trust_proxy: bool,
        hosts: AllowedHosts | None = None,
        tenants: Collection[str] = (),
        tenant: str = "",
        grpc: GrpcAddress | None = None,
        over_grpc: str = "",
    ) -> None:
        self.url = url
        self._grpc = grpc or GrpcAddress()
        self._over_grpc = over_grpc
        self._prefix = prefix
        self._trust_proxy = trust_proxy
        self._hosts = hosts or AllowedHosts()
        self._tenants = frozenset(tenants)
        self._tenant = tenant

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

    @property
    def varies(self) -> tuple[bytes, ...]:
        """The headers of a request that ``address`` depends on, for ``Vary``."""
        if self.url is not None:
            return ()
        if self._trust_proxy:
            return (b"Host", *FORWARDED_ADDRESS)
        # A server of this package has no scheme but its own.
        return (b"Host",) if self._hosts.serves_itself else (b"Host", *FORWARDED_SCHEME)

    def interfaces(self, scope: Scope, tenant: str = "") -> Interfaces:
        """Return the interfaces for a tenant, the preferred first. Raises ``BadAddress``."""
        return self.interfaces_at(self.address(scope), tenant)

    def interfaces_at(self, address: str, tenant: str = "") -> Interfaces:
        """Return the interfaces for a tenant at an address that takes JSON-RPC."""
        whole = "/".join(filter(None, (self._over_grpc, tenant)))
        if tenant == self._tenant:
            tenant = ""
        found = []
        for binding, version in _OFFERED:
            if binding == GRPC:
                if self._grpc.port is not None and (
                    not whole or version != versions.DEFAULT_VERSION
                ):
                    found.append(
                        AgentInterface(
                            url=self._grpc.beside(address),
                            protocol_binding=GRPC,
                            protocol_version=version,
                            tenant=whole,
                        )
                    )
                continue
            url, named = address if binding == "JSONRPC" else address.rstrip("/"), tenant
            if tenant and version == versions.DEFAULT_VERSION:
                # Nothing of 0.3 names a tenant: theirs is a path of its own, if it has one.
                if tenant not in self._tenants:
                    continue
                url, named = f"{url.rstrip('/')}/{tenant}", ""
            found.append(
                AgentInterface(
                    url=url, protocol_binding=binding, protocol_version=version, tenant=named
                )
            )
        return tuple(found)
