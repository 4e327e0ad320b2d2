"""Which handler answers at which path: agents, their tenants, assistants."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from urllib.parse import quote

from starlette.types import ASGIApp

from parley.server.byte_budget import ByteReservation
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces, GrpcAddress
from parley.server.cards.discovery import CARD_PATHS, CardChoice, CardPage
from parley.server.cards.docs import DOCS_PATH, OPENAPI_PATH, OpenApiPage, docs
from parley.server.cards.index import ASSISTANTS, Index
from parley.server.concurrency_limiter import ConcurrencyLimiter
from parley.server.dispatch import Dispatcher
from parley.server.endpoint import Endpoint
from parley.server.hosts import Hosts
from parley.server.http.exchange import Identify, Surroundings
from parley.server.http.http_json import HttpJsonBinding
from parley.server.http.jsonrpc import JsonRpcBinding
from parley.server.http.paths import has_quoted_slash
from parley.server.http.streams import Streams
from parley.server.http.unavailable import Unavailable
from parley.server.lifecycle import Lifecycle
from parley.server.settings import Settings

_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_TENANT = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,127}")
_OWN_PATHS = ("/health", "/.well-known")
_OWN_SEGMENTS = frozenset(
    (
        "a2a",
        "agent",
        "card",
        "docs",
        "extendedagentcard",
        "health",
        "message",
        "openapi.json",
        "tasks",
        "v1",
    )
)


class Routes:
    """The paths of a server, with their handlers.

    Most paths are known as they are, so one look-up takes the place of a router. What lies below
    an agent's address is for its HTTP+JSON binding. A path that somebody chose counts before one
    that follows from a name.

    ``agents`` are what each path's agent is surrounded by, for bindings without paths; ``grpc``
    is where such a one listens.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        settings: Settings,
        identify: Identify | None,
        url: str | None,
        lifecycle: Lifecycle,
        streams: Streams,
        hosts: Hosts,
        held: ByteReservation,
        instead: str = "",
    ) -> None:
        self._settings = settings
        self._held = held
        self._identify = identify
        self._url = url
        self._lifecycle = lifecycle
        self._streams = streams
        self._hosts = hosts
        self._exact: dict[str, ASGIApp] = {}
        self._below: dict[str, ASGIApp] = {}
        self._longest = len(ASSISTANTS)
        self._assistants: dict[str, CardPage] = {}
        self._with_slash: set[str] = set()
        self._offers: list[AdvertisedInterfaces] = []
        self._nowhere: ASGIApp = Index(self._offers, settings, held)
        if instead and not endpoints:
            self._nowhere = Unavailable(instead, settings, held)
        self.agents: dict[str, Surroundings] = {}
        self.grpc = GrpcAddress(settings.grpc_address)
        waiting = ConcurrencyLimiter("senders wait", settings.max_waiting, settings.caller_share)
        dispatchers = {
            prefix: Dispatcher(endpoint, lifecycle, waiting)
            for prefix, endpoint in endpoints.items()
        }
        # Where there are no paths, one of several agents is the tenant of its path.
        self._over_grpc = {
            dispatcher: prefix.strip("/") if len(endpoints) > 1 else ""
            for prefix, dispatcher in dispatchers.items()
        }
        for prefix, endpoint in endpoints.items():
            self._add_agent(prefix, endpoint, dispatchers[prefix])
        for prefix, endpoint in endpoints.items():
            for name, tenant in endpoint.tenants.items():
                self._add_assistant(name, tenant, dispatchers[prefix], tenant=name)
        for prefix, endpoint in endpoints.items():
            name = prefix.removeprefix(f"{ASSISTANTS}/").strip("/").replace("/", "-")
            for id in (name, endpoint.key):
                if id and endpoint.service is not None:
                    self._add_assistant(id, endpoint, dispatchers[prefix])
        self._below.setdefault(ASSISTANTS, self._nowhere)
        for path in CARD_PATHS:
            self.add(path, CardChoice(self._nowhere, tenants={}, assistants=self._assistants))

    def find(self, path: str, sent: bytes = b"") -> ASGIApp:
        """Return the handler of a path, which was ``sent`` quoted.

        A slash that was quoted is part of a segment, and parts none.
        """
        handler = self._exact.get(path)
        if handler is not None:
            if b"%" not in sent or not has_quoted_slash(sent) or path in self._with_slash:
                return handler
            handler = None
        path = path[: self._longest + 1]  # so that a huge path costs no more than another
        while handler is None and path:
            path = path[: path.rfind("/")]
            handler = self._below.get(path)
        return handler or self._nowhere

    def add(self, path: str, handler: ASGIApp) -> None:
        """Have a path answered, unless it is already."""
        self._exact.setdefault(path, handler)

    def _add_agent(self, prefix: str, endpoint: Endpoint, dispatcher: Dispatcher) -> None:
        """Add an agent at its address, and its tenants below it."""
        offer = self._offer(prefix, dispatcher, tenants=endpoint.tenants)
        around = self.agents[prefix] = self._around(offer, dispatcher)
        cards = {
            name: CardPage(tenant, offer, settings=self._settings, tenant=name)
            for name, tenant in endpoint.tenants.items()
        }
        own = None
        if endpoint.service is not None:
            self._offers.append(offer)
            own = CardPage(endpoint, offer, settings=self._settings)
        card = CardChoice(own, tenants=cards, assistants={} if prefix else self._assistants)
        extensions = [
            extension
            for each in (endpoint, *endpoint.tenants.values())
            for extension in each.extensions
        ]
        below = HttpJsonBinding(around, prefix.split("/")[1:], extensions)
        self._place(prefix, JsonRpcBinding(around), card, below)
        if endpoint.service is not None:
            self._describe(prefix, endpoint, offer)
        for name, page in cards.items():
            self._place(f"{prefix}/{name}", JsonRpcBinding(around, name), page)
            self._describe(f"{prefix}/{name}", endpoint.tenants[name], offer, tenant=name)

    def _add_assistant(
        self, id: str, endpoint: Endpoint, dispatcher: Dispatcher, *, tenant: str = ""
    ) -> None:
        if id in self._assistants:
            return
        prefix = f"{ASSISTANTS}/{id}"
        offer = self._offer(f"{ASSISTANTS}/{quote(id, safe='')}", dispatcher, tenant=tenant)
        around = self._around(offer, dispatcher)
        page = CardPage(endpoint, offer, settings=self._settings, tenant=tenant)
        self._assistants[id] = page
        # Seen from above a tenant, its name is the tenant of the path.
        below = HttpJsonBinding(
            around, (ASSISTANTS[1:],) if tenant else (ASSISTANTS[1:], id), endpoint.extensions
        )
        known = set(self._exact)
        self._place(prefix, JsonRpcBinding(around, tenant), page, below)
        self._describe(prefix, endpoint, offer)
        if "/" in id:
            self._with_slash |= self._exact.keys() - known

    def _place(
        self, address: str, jsonrpc: ASGIApp, card: ASGIApp, below: ASGIApp | None = None
    ) -> None:
        self.add(address or "/", jsonrpc)
        self.add(f"{address}/", jsonrpc)
        for path in CARD_PATHS:
            self.add(address + path, card)
        if below is not None:
            self._below.setdefault(address, below)
            self._longest = max(self._longest, len(address))

    def _describe(
        self, address: str, endpoint: Endpoint, offer: AdvertisedInterfaces, *, tenant: str = ""
    ) -> None:
        if self._settings.docs:
            page = OpenApiPage(endpoint, offer, settings=self._settings, tenant=tenant)
            self.add(address + OPENAPI_PATH, page)
            self.add(address + DOCS_PATH, docs)

    def _offer(
        self,
        prefix: str,
        dispatcher: Dispatcher,
        *,
        tenants: Collection[str] = (),
        tenant: str = "",
    ) -> AdvertisedInterfaces:
        return AdvertisedInterfaces(
            prefix,
            url=self._url,
            trust_proxy=self._settings.trust_proxy,
            hosts=self._hosts,
            tenants=tenants,
            tenant=tenant,
            grpc=self.grpc if self._settings.grpc_on_card else None,
            over_grpc=self._over_grpc[dispatcher],
        )

    def _around(self, offer: AdvertisedInterfaces, dispatcher: Dispatcher) -> Surroundings:
        return Surroundings(
            dispatcher=dispatcher,
            settings=self._settings,
            lifecycle=self._lifecycle,
            streams=self._streams,
            identify=self._identify,
            interfaces=offer.interfaces,
            held=self._held,
        )


def checked(given: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    """Return endpoints by their paths, without a slash at the end.

    Raises ``ValueError`` for a path or a tenant that cannot be one.
    """
    endpoints = {_prefix(path): endpoint for path, endpoint in given.items()}
    if len(endpoints) < len(given):
        raise ValueError(f"two agents have the same path: {', '.join(map(repr, given))}")
    for prefix, endpoint in endpoints.items():
        if endpoint.service is None and not endpoint.tenants:
            raise ValueError(f"there is no agent at {prefix or '/'}")
        for name in endpoint.tenants:
            _check_tenant(name)
            if f"{prefix}/{name}" in endpoints:
                raise ValueError(f"{prefix}/{name} is the path of an agent and of a tenant")
    return endpoints


def _prefix(path: str) -> str:
    prefix = path.rstrip("/")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise ValueError(f"an agent's path is one such as /time, or / for the root, not {path!r}")
    if any(prefix == own or prefix.startswith(f"{own}/") for own in _OWN_PATHS):
        raise ValueError(f"the path {path!r} is the server's own: {', '.join(_OWN_PATHS)}")
    return prefix


def _check_tenant(name: str) -> None:
    if not _TENANT.fullmatch(name):
        raise ValueError(
            f"a tenant's name is letters, digits and . _ ~ - (not a dot first), not {name[:200]!r}"
        )
    if name.lower() in _OWN_SEGMENTS:
        raise ValueError(f"a tenant cannot be named {name!r}: that is a path of the protocol")
