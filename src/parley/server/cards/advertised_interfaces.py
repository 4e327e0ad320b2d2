"""The interfaces on a card, with addresses that its reader can reach (specification §4.4.6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.types import Scope

from parley.model.cards import AgentInterface
from parley.server.address import (
    FORWARDED_ADDRESS,
    FORWARDED_SCHEME,
    AllowedHosts,
    BadAddress,
    server_address,
)
from parley.server.endpoint import Interfaces
from parley.wire import versions

GRPC = "GRPC"

# The headers that tell the address of a server.
_TELLING = frozenset(name.lower() for name in (b"Host", *FORWARDED_ADDRESS, *FORWARDED_SCHEME))
# The number of cached addresses, and the maximum size of the headers that determine one.
_MAX_CACHED = 256
_MAX_TELLING = 512

# In order of preference. Clients of 0.3 get an interface of their version first.
_BINDINGS = tuple(
    (binding, version)
    for version in versions.SUPPORTED_VERSIONS
    for binding in ("JSONRPC", "HTTP+JSON", GRPC)
)


class GrpcAddress:
    """The address of the gRPC server; ``port`` is ``None`` while it does not listen.

    ``address`` is the public address, if it differs.
    """

    def __init__(self, address: str = "") -> None:
        self.port: int | None = None
        self._address = address

    def beside(self, url: str) -> str:
        """Return the ``host:port`` for callers that reach the server at ``url``."""
        host = urlsplit(url).hostname or "localhost"
        return self._address or (f"[{host}]" if ":" in host else host) + f":{self.port}"


class AdvertisedInterfaces:
    """The addresses of one agent, on a server or behind proxies.

    ``url`` is the public address of the app; without it, the address is taken from requests.
    ``tenants`` have paths of their own below the address; the address itself is for ``tenant``.
    ``grpc`` is the address of gRPC, which has no paths: there, ``over_grpc`` is the tenant of the
    agent. ``added`` are the paths of further bindings, by their names on cards, for each tenant
    (``""`` for the agent itself).
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
        added: Mapping[str, Mapping[str, str]] = {},
    ) -> None:
        self.url = url
        self._added = added
        self._grpc = grpc or GrpcAddress()
        self._over_grpc = over_grpc
        self._prefix = prefix
        self._trust_proxy = trust_proxy
        self._hosts = hosts or AllowedHosts()
        self._tenants = frozenset(tenants)
        self._tenant = tenant
        self._addresses: dict[tuple[object, ...], str] = {}

    def address(self, scope: Scope) -> str:
        """Return the agent's URL for JSON-RPC, as the caller can reach it.

        Raises ``BadAddress``.
        """
        if self.url is not None:
            return self.url.rstrip("/") + self._prefix if self._prefix else self.url
        address = server_address(scope, trust_proxy=self._trust_proxy)
        if self._prefix:
            return address + self._prefix
        # Frameworks that mount an app at a path redirect to that path with a slash.
        return f"{address}/" if address.count("/") > 2 else address

    def server(self, scope: Scope) -> str:
        """Return the URL of the app, without a slash at the end. Raises ``BadAddress``."""
        return self.address(scope).rstrip("/").removesuffix(self._prefix)

    def agent_address(self, scope: Scope, tenant: str = "") -> str:
        """Return the base URL of the agent of a tenant, without a trailing slash.

        It is the URL that the sender of a request sees; empty if the request names no valid host.
        The result is cached, because every message needs it.
        """
        key: list[object] = [scope.get("scheme"), scope.get("root_path")]
        for name, value in scope["headers"]:
            if name in _TELLING:
                key += (name, value)
        key += scope.get("server") or ()
        extensions = scope.get("extensions")
        if extensions and "tls" in extensions:
            key.append("tls")
        found = tuple(key)
        address = self._addresses.get(found)
        if address is None:
            address = self._remember(found, scope)
        return f"{address}/{tenant}" if tenant and address and tenant in self._tenants else address

    def _remember(self, key: tuple[object, ...], scope: Scope) -> str:
        """Return the address that a request shows, and cache it unless the key is large."""
        try:
            address = self.address(scope).rstrip("/")
        except BadAddress:
            address = ""
        if sum(len(part) for part in key if isinstance(part, bytes)) <= _MAX_TELLING:
            if len(self._addresses) >= _MAX_CACHED:
                self._addresses.clear()
            self._addresses[key] = address
        return address

    @property
    def varies(self) -> tuple[bytes, ...]:
        """The request headers that ``address`` depends on, for ``Vary``."""
        if self.url is not None:
            return ()
        if self._trust_proxy:
            return (b"Host", *FORWARDED_ADDRESS)
        # Parley's own server ignores the forwarded scheme.
        return (b"Host",) if self._hosts.serves_itself else (b"Host", *FORWARDED_SCHEME)

    def interfaces(self, scope: Scope, tenant: str = "") -> Interfaces:
        """Return the interfaces of a tenant, in order of preference. Raises ``BadAddress``."""
        return self.interfaces_at(self.address(scope), tenant)

    def interfaces_at(self, address: str, tenant: str = "") -> Interfaces:
        """Return the interfaces of a tenant whose JSON-RPC address is ``address``."""
        grpc_tenant = "/".join(filter(None, (self._over_grpc, tenant)))
        added = self._added.get(tenant, {})
        if tenant == self._tenant:
            tenant = ""
        found = []
        for binding, version in _BINDINGS:
            if binding == GRPC:
                if self._grpc.port is not None and (
                    not grpc_tenant or version != versions.DEFAULT_VERSION
                ):
                    found.append(
                        AgentInterface(
                            url=self._grpc.beside(address),
                            protocol_binding=GRPC,
                            protocol_version=version,
                            tenant=grpc_tenant,
                        )
                    )
                continue
            url, named = address if binding == "JSONRPC" else address.rstrip("/"), tenant
            if tenant and version == versions.DEFAULT_VERSION:
                # 0.3 has no tenants: only a tenant with a path can be reached.
                if tenant not in self._tenants:
                    continue
                url, named = f"{url.rstrip('/')}/{tenant}", ""
            found.append(
                AgentInterface(
                    url=url, protocol_binding=binding, protocol_version=version, tenant=named
                )
            )
        if not tenant or tenant in self._tenants:
            # Last, since a client takes the first binding that it supports. With an HTTP scheme, as
            # some clients reject a card whose addresses have another origin.
            own = f"{address.rstrip('/')}/{tenant}" if tenant else address.rstrip("/")
            found += [
                AgentInterface(
                    url=own + path, protocol_binding=protocol, protocol_version=versions.LATEST
                )
                for protocol, path in added.items()
            ]
        return tuple(found)


def socket_url(url: str) -> str:
    """Return the WebSocket address for an HTTP address: ``wss`` for ``https``, ``ws`` for ``http``.

    The HTTP address accepts POST.
    """
    scheme, separator, rest = url.partition("://")
    return f"{'wss' if scheme == 'https' else 'ws'}{separator}{rest}"
