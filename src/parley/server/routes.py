"""Maps paths to handlers: agents, their tenants, assistants, cards and pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Scope

from parley.security.sealing import AUTHORIZE, CALLBACKS, REDIRECT
from parley.server.added_bindings import BindingPlace, TenantBindings
from parley.server.address import AllowedHosts
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces, GrpcAddress
from parley.server.cards.catalog_link import CatalogLink, LinkedPage, ServedAgent
from parley.server.cards.discovery import (
    CARD_PATHS,
    PROTECTED_RESOURCE,
    CardChoice,
    CardPage,
    ProtectedResource,
    resource_metadata,
)
from parley.server.cards.index import ASSISTANTS, Index
from parley.server.cards.pages import (
    FORMER_PATH,
    OPENAPI_PATH,
    OpenApiPage,
    PeoplePage,
    WithPage,
    lead_to_page,
)
from parley.server.dispatch import Dispatcher
from parley.server.endpoint import AgentBinding, Endpoint
from parley.server.http.callbacks import (
    CallbackRoute,
    CredentialRoute,
    RedirectRoute,
    SignedAddresses,
)
from parley.server.http.exchange import Identify, ServedEndpoint
from parley.server.http.files import FilesBinding
from parley.server.http.http_json import HttpJsonBinding
from parley.server.http.jsonrpc import JsonRpcBinding
from parley.server.http.paths import OWN_SEGMENTS, TENANT_NAME, after_quoted_slash
from parley.server.http.refusals import Restricted, Unavailable
from parley.server.http.streams import Streams
from parley.server.lifecycle import Lifecycle
from parley.server.limits import ByteReservation, ConcurrencyLimiter, SocketLimits
from parley.server.restrictions import (
    Gate,
    InsideGate,
    Restriction,
    authenticated_only,
    caller_headers,
    read_restrictions,
)
from parley.server.settings import Settings
from parley.wire import versions

_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_OWN_PATHS = ("/health", "/.well-known")


class Routes:
    """The paths of a server, with their handlers.

    Most paths are fixed, so one look-up replaces a router. Everything below an agent's address is
    handled by its HTTP+JSON binding. A path that an operator chose takes precedence over a path
    derived from a name.

    ``agents`` has the served endpoint of each path, for bindings without paths; ``grpc`` is the
    address of the gRPC binding. ``revision`` is the number of added or replaced paths.
    """

    revision = 0

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        settings: Settings,
        identify: Identify | None,
        url: str | None,
        lifecycle: Lifecycle,
        streams: Streams,
        hosts: AllowedHosts,
        request_bytes: ByteReservation,
        sockets: SocketLimits,
        unavailable_message: str = "",
    ) -> None:
        self._settings = settings
        self._restrictions = read_restrictions(settings.restrict)
        self._request_bytes = request_bytes
        self._sockets = sockets
        self._identify = identify
        self._url = url
        self._lifecycle = lifecycle
        self._streams = streams
        self._hosts = hosts
        self._exact: dict[str, ASGIApp] = {}
        self._below: dict[str, ASGIApp] = {}
        self._longest = len(ASSISTANTS)
        self._assistants: dict[str, CardPage] = {}
        self._slash_paths: set[str] = set()
        self._advertised: list[AdvertisedInterfaces] = []
        self.served: list[ServedAgent] = []
        self._cards: set[str] = set()
        self._pages: list[PeoplePage] = []
        card_gate = self.gate("card")
        lists = None if card_gate is None else _listed_by(card_gate, self._restrictions["card"])
        self.server = AdvertisedInterfaces(
            "", url=url, trust_proxy=settings.trust_proxy, hosts=hosts
        )
        self._index = Index(self._advertised, settings, request_bytes, lists)
        self._fallback: ASGIApp = self._index
        if settings.page:
            page = PeoplePage(agents=self._paths_shown)
            self._pages.append(page)
            self._index.page = self.restricted("page", page, otherwise=self._index.answer)
        if unavailable_message and not endpoints:
            self._fallback = Unavailable(unavailable_message, settings, request_bytes)
        self.agents: dict[str, ServedEndpoint] = {}
        self._own_paths = frozenset(endpoints)
        self.grpc = GrpcAddress(settings.grpc_address)
        limiter = ConcurrencyLimiter(
            "senders wait", settings.max_blocking_requests, settings.caller_share
        )
        self._transfers = ConcurrencyLimiter(
            "files are uploaded or downloaded", settings.max_file_transfers, settings.caller_share
        )
        dispatchers = {
            prefix: Dispatcher(endpoint, lifecycle, limiter)
            for prefix, endpoint in endpoints.items()
        }
        # gRPC has no paths: each of several agents is the tenant named like its path.
        self._grpc_tenants = {
            dispatcher: prefix.strip("/") if len(endpoints) > 1 else ""
            for prefix, dispatcher in dispatchers.items()
        }
        # The domain's card path answers with the card of a sole agent, wherever that is.
        self._sole_card: ASGIApp | None = None
        for prefix, endpoint in endpoints.items():
            self._add_agent(prefix, endpoint, dispatchers[prefix], is_sole=len(endpoints) == 1)
        for prefix, endpoint in endpoints.items():
            for name, tenant in endpoint.tenants.items():
                self._add_assistant(name, tenant, dispatchers[prefix], tenant=name)
        for prefix, endpoint in endpoints.items():
            name = prefix.removeprefix(f"{ASSISTANTS}/").strip("/").replace("/", "-")
            for id in (name, endpoint.key):
                if id and endpoint.service is not None:
                    self._add_assistant(id, endpoint, dispatchers[prefix])
        self._below.setdefault(ASSISTANTS, self._fallback)
        choice = CardChoice(self._fallback, tenants={}, assistants=self._assistants)
        for path in CARD_PATHS:
            card = self._sole_card or self.restricted("card", choice)
            self._add_card(path, card)

    def find(self, path: str, raw_path: bytes = b"") -> ASGIApp:
        """Return the handler of a path, which was sent quoted as ``raw_path``.

        A quoted slash is part of a segment, not a separator.
        """
        whole = len(path) - (after_quoted_slash(raw_path) if b"%" in raw_path else 0)
        handler = self._exact.get(path)
        if handler is not None and (whole == len(path) or path in self._slash_paths):
            return handler
        handler = None
        path = path[: self._longest + 1]  # bounds the cost of a huge path
        while handler is None and path:
            path = path[: path.rfind("/")]
            handler = self._below.get(path)
        if handler is None or (whole <= len(path) and path not in self._slash_paths):
            return self._fallback  # perhaps the path to it has a quoted slash
        return handler

    def add(self, path: str, handler: ASGIApp) -> None:
        """Add the handler of a path, unless it has one."""
        self._exact.setdefault(path, handler)
        self.revision += 1

    def put(self, path: str, handler: ASGIApp, *, below: bool = False) -> None:
        """Set the handler of a path, and of all paths ``below`` it."""
        self._exact[path] = handler
        self.revision += 1
        if below:
            self._below[path] = handler
            self._longest = max(self._longest, len(path))

    def gate(self, name: str, endpoint: Endpoint | None = None) -> Gate | None:
        """Return the gate of an endpoint of the server, ``None`` if it is public.

        ``endpoint`` is the agent whose schemes callers use. Raises ``ValueError``.
        """
        restriction = self._restrictions.get(name)
        if restriction is None:
            return InsideGate() if name == "metrics" else None
        identify = (endpoint and endpoint.identify) or self._identify
        return Gate(restriction, identify, trust_proxy=self._settings.trust_proxy)

    def restricted(
        self,
        name: str,
        handler: ASGIApp,
        endpoint: Endpoint | None = None,
        *,
        otherwise: ASGIApp | None = None,
    ) -> ASGIApp:
        """Return a handler behind the restriction of the endpoint ``name`` (see ``gate``).

        Addresses that may not see it get ``otherwise``, by default as for an unknown path.
        """
        gate = self.gate(name, endpoint)
        if gate is None:
            return handler
        identify = (endpoint and endpoint.identify) or self._identify
        return Restricted(
            handler, gate, otherwise or self._fallback, varies=caller_headers(identify)
        )

    def _paths_shown(self, scope: Scope) -> list[str]:
        """Return the paths of the agents that the sender of a request sees."""
        if not self._index.lists(scope):
            return []
        return [each.path for each in self.served if each.endpoint.service is not None]

    def _for_callers(
        self, endpoint: Endpoint, jsonrpc: ASGIApp, below: ASGIApp
    ) -> tuple[ASGIApp, ASGIApp]:
        """Return the bindings of an agent behind the restriction of ``agents``.

        The bindings check credentials themselves, and write the error in their own format.
        """
        restriction = self._restrictions.get("agents")
        if restriction is None or restriction.is_authenticated:
            return jsonrpc, below
        return (
            self.restricted("agents", jsonrpc, endpoint),
            self.restricted("agents", below, endpoint),
        )

    def _add_agent(
        self, prefix: str, endpoint: Endpoint, dispatcher: Dispatcher, *, is_sole: bool
    ) -> None:
        """Add an agent at its address, and its tenants below it."""
        speakers = {"": endpoint, **endpoint.tenants}
        advertised = self._advertise(prefix, dispatcher, tenants=endpoint.tenants, added=speakers)
        metadata = self._add_metadata(prefix, endpoint, advertised)
        served = self._serve(advertised, dispatcher, endpoint, metadata)
        self.agents[prefix] = served
        cards = {
            name: CardPage(tenant, advertised, settings=self._settings, tenant=name)
            for name, tenant in endpoint.tenants.items()
        }
        own = None
        if endpoint.service is not None:
            self._advertised.append(advertised)
            own = CardPage(endpoint, advertised, settings=self._settings)
        card = CardChoice(own, tenants=cards, assistants={} if prefix else self._assistants)
        self.served.append(ServedAgent(prefix, endpoint, advertised))
        if is_sole and prefix:
            choice = CardChoice(own, tenants=cards, assistants=self._assistants)
            self._sole_card = self.restricted("card", choice, endpoint)
        extensions = [
            extension
            for each in (endpoint, *endpoint.tenants.values())
            for extension in each.extensions
        ]
        segments = prefix.split("/")[1:]
        below = self._with_files(
            HttpJsonBinding(served, segments, extensions), served, segments, endpoint
        )
        below = self._with_added(prefix, advertised, served, endpoint, below)
        jsonrpc, below = self._for_callers(endpoint, JsonRpcBinding(served), below)
        # The root has the cards of all agents: callers of any agent may see those.
        page_or_not = self.restricted("card", card, endpoint if prefix else None)
        if endpoint.service is not None:
            jsonrpc = self._add_pages(prefix, endpoint, advertised, jsonrpc)
        self._add_binding(prefix, jsonrpc, page_or_not, below)
        self._add_callbacks(prefix, endpoint, dispatcher)
        for name, page in cards.items():
            jsonrpc, _ = self._for_callers(endpoint, JsonRpcBinding(served, name), below)
            page_or_not = self.restricted("card", page, endpoint)
            tenant = endpoint.tenants[name]
            address = f"{prefix}/{name}"
            jsonrpc = self._add_pages(address, tenant, advertised, jsonrpc, tenant=name)
            self._add_binding(address, jsonrpc, page_or_not)
            self._add_added(address, advertised, served, tenant, endpoint, name, f"/{name}")
            self._add_callbacks(
                address, tenant, dispatcher, tenant=name, identify=endpoint.identify
            )

    def _add_assistant(
        self, id: str, endpoint: Endpoint, dispatcher: Dispatcher, *, tenant: str = ""
    ) -> None:
        if id in self._assistants:
            return
        prefix = f"{ASSISTANTS}/{id}"
        address = f"{ASSISTANTS}/{quote(id, safe='')}"
        advertised = self._advertise(address, dispatcher, tenant=tenant, added={tenant: endpoint})
        known = {*self._exact, *self._below}
        metadata = self._add_metadata(address, endpoint, advertised)
        served = self._serve(advertised, dispatcher, endpoint, metadata)
        page = CardPage(endpoint, advertised, settings=self._settings, tenant=tenant)
        self._assistants[id] = page
        # Relative to /a2a, a tenant's name is the tenant segment of the path.
        segments = (ASSISTANTS[1:],) if tenant else (ASSISTANTS[1:], id)
        below = self._with_files(
            HttpJsonBinding(served, segments, endpoint.extensions), served, segments, endpoint
        )
        jsonrpc, below = self._for_callers(endpoint, JsonRpcBinding(served, tenant), below)
        self._add_added(prefix, advertised, served, endpoint, endpoint, tenant)
        jsonrpc = self._add_pages(prefix, endpoint, advertised, jsonrpc)
        self._add_binding(prefix, jsonrpc, self.restricted("card", page, endpoint), below)
        self._add_callbacks(prefix, endpoint, dispatcher, tenant=tenant)
        if "/" in id:
            self._slash_paths |= (self._exact.keys() | self._below.keys()) - known

    def _with_added(
        self,
        prefix: str,
        advertised: AdvertisedInterfaces,
        served: ServedEndpoint,
        endpoint: Endpoint,
        below: ASGIApp,
    ) -> ASGIApp:
        """Add the further bindings of an agent; return the handler below its address."""
        if endpoint.service is None or not endpoint.bindings:
            return below
        self._add_added(prefix, advertised, served, endpoint, endpoint)

        def of_tenant(binding: AgentBinding, tenant: str) -> ASGIApp:
            place = self._place(advertised, served, endpoint, endpoint, tenant)
            return binding.handler(place)

        handlers = {each.path: partial(of_tenant, each) for each in endpoint.bindings}
        return TenantBindings(below, prefix.split("/")[1:], handlers, others=endpoint.tenants)

    def _add_added(
        self,
        address: str,
        advertised: AdvertisedInterfaces,
        served: ServedEndpoint,
        agent: Endpoint,
        endpoint: Endpoint,
        tenant: str = "",
        below: str = "",
    ) -> None:
        """Add the further bindings of an agent, at its address.

        The agent is ``endpoint``, or a tenant of it; ``below`` is its path below the address in
        ``advertised``.
        """
        for binding in agent.bindings:
            path = address + binding.path
            if path not in self._own_paths:
                place = self._place(advertised, served, agent, endpoint, tenant, below)
                self.add(path, binding.handler(place))
                for name, page in binding.pages(place).items():
                    self.add(path + name, page)

    def _place(
        self,
        advertised: AdvertisedInterfaces,
        served: ServedEndpoint,
        agent: Endpoint,
        endpoint: Endpoint,
        tenant: str,
        below: str = "",
    ) -> BindingPlace:
        return BindingPlace(
            served=served,
            agent=agent,
            advertised=advertised,
            tenant=tenant,
            below=below,
            gate=self.gate("agents", endpoint),
            elsewhere=self._fallback,
            restricted=lambda name, handler: self.restricted(name, handler, endpoint),
        )

    def _add_binding(
        self, address: str, jsonrpc: ASGIApp, card: ASGIApp, below: ASGIApp | None = None
    ) -> None:
        self.add(address or "/", jsonrpc)
        self.add(f"{address}/", jsonrpc)
        for path in CARD_PATHS:
            self._add_card(address + path, card)
        if below is not None:
            self._add_below(address, below)

    def _add_below(self, address: str, handler: ASGIApp) -> None:
        """Add the handler of all paths below an address, unless it has one."""
        self._below.setdefault(address, handler)
        self._longest = max(self._longest, len(address))

    def _with_files(
        self, below: ASGIApp, served: ServedEndpoint, segments: Iterable[str], endpoint: Endpoint
    ) -> ASGIApp:
        """Return the handler below an agent's address, including files if there are any."""
        if any(each.files is not None for each in (endpoint, *endpoint.tenants.values())):
            return FilesBinding(below, served, segments, self._transfers)
        return below

    def _add_pages(
        self,
        address: str,
        endpoint: Endpoint,
        advertised: AdvertisedInterfaces,
        jsonrpc: ASGIApp,
        *,
        tenant: str = "",
    ) -> ASGIApp:
        """Add the OpenAPI document of an agent; return the handler at its address, with its page.

        The page calls the agent over HTTP+JSON.
        """
        shown = endpoint.interfaces
        if shown is not None and not shown.is_public("HTTP+JSON", versions.LATEST):
            return jsonrpc  # the document describes addresses that the public card hides
        if self._settings.docs:
            document = OpenApiPage(endpoint, advertised, settings=self._settings, tenant=tenant)
            self.add(address + OPENAPI_PATH, self.restricted("docs", document, endpoint))
        if not self._settings.page:
            return jsonrpc
        assert endpoint.card is not None
        has_others = not address and len(self._own_paths) > 1
        agents = self._paths_shown if has_others else None
        page = PeoplePage(partial(endpoint.card, ()), agents)
        self._pages.append(page)
        leading = self.restricted("page", lead_to_page, endpoint)
        self.add(address + FORMER_PATH, leading)
        return WithPage(jsonrpc, self.restricted("page", page, endpoint, otherwise=jsonrpc))

    def _add_card(self, path: str, card: ASGIApp) -> None:
        self.add(path, card)
        self._cards.add(path)

    @property
    def cards_are_public(self) -> bool:
        """True if everyone may see cards, and therefore a catalog of them."""
        return "card" not in self._restrictions

    def publish(
        self, link: CatalogLink | None, pages: Mapping[str, tuple[ASGIApp, Endpoint | None]]
    ) -> None:
        """Add the pages of a catalog, and links to it (``App.publish``).

        The pages for people and the root link to it if cards are public.
        """
        for path, (page, owner) in pages.items():
            self.add(path, self.restricted("card", page, owner))
        if link is None:
            return
        linked = set(self._cards)
        if self.cards_are_public:
            linked |= {"/"}
            for page in self._pages:
                page.link = link
        for path in linked & self._exact.keys():
            self._exact[path] = LinkedPage(self._exact[path], link, path)
        self._index.catalog = self.server, link
        self.revision += 1

    def _add_metadata(
        self, path: str, endpoint: Endpoint, advertised: AdvertisedInterfaces
    ) -> ProtectedResource | None:
        """Add the metadata of agents that accept tokens of an issuer (RFC 9728)."""
        if endpoint.identify is None:
            return None

        def add(path: str, agents: Iterable[Endpoint], tenant: str) -> ProtectedResource | None:
            content = resource_metadata(agents)
            if content is None:
                return None
            page = ProtectedResource(
                path, advertised, content, settings=self._settings, tenant=tenant
            )
            self.add(PROTECTED_RESOURCE + unquote(path), page)
            return page

        for name, tenant in endpoint.tenants.items():
            add(f"{path}/{name}", [tenant], name)
        return add(path, [endpoint, *endpoint.tenants.values()], "")

    def _add_callbacks(
        self,
        address: str,
        endpoint: Endpoint,
        dispatcher: Dispatcher,
        *,
        tenant: str = "",
        identify: Identify | None = None,
    ) -> None:
        addresses = SignedAddresses(
            tenant=tenant,
            settings=self._settings,
            dispatcher=dispatcher,
            lifecycle=self._lifecycle,
            request_bytes=self._request_bytes,
        )
        if endpoint.callbacks is not None:
            callbacks = address + CALLBACKS
            route = CallbackRoute(endpoint.callbacks, callbacks, addresses)
            self._add_below(callbacks, self.restricted("callbacks", route))
        if endpoint.credentials is not None:
            identify = endpoint.identify or identify or self._identify
            credentials = CredentialRoute(
                endpoint.credentials, address + AUTHORIZE, addresses, identify=identify
            )
            self._add_below(address + AUTHORIZE, self.restricted("callbacks", credentials))
            redirect = RedirectRoute(endpoint.credentials, "", addresses)
            self.add(address + REDIRECT, self.restricted("callbacks", redirect))

    def _advertise(
        self,
        prefix: str,
        dispatcher: Dispatcher,
        *,
        tenants: Collection[str] = (),
        tenant: str = "",
        added: Mapping[str, Endpoint],
    ) -> AdvertisedInterfaces:
        return AdvertisedInterfaces(
            prefix,
            url=self._url,
            trust_proxy=self._settings.trust_proxy,
            hosts=self._hosts,
            tenants=tenants,
            tenant=tenant,
            grpc=self.grpc if self._settings.grpc_on_card else None,
            over_grpc=self._grpc_tenants[dispatcher],
            added={
                name: {each.protocol: each.path for each in agent.bindings}
                for name, agent in added.items()
            },
        )

    def _serve(
        self,
        advertised: AdvertisedInterfaces,
        dispatcher: Dispatcher,
        endpoint: Endpoint,
        metadata: ProtectedResource | None,
    ) -> ServedEndpoint:
        identify = endpoint.identify or self._identify
        varies = b", ".join((b"A2A-Version", *caller_headers(identify)))
        restriction = self._restrictions.get("agents")
        if restriction is not None and restriction.is_authenticated:
            identify = authenticated_only(identify)
        return ServedEndpoint(
            dispatcher=dispatcher,
            settings=self._settings,
            lifecycle=self._lifecycle,
            streams=self._streams,
            identify=identify,
            interfaces=advertised.interfaces,
            address=advertised.agent_address,
            request_bytes=self._request_bytes,
            sockets=self._sockets,
            resource_metadata=None if metadata is None else metadata.address,
            varies=varies,
        )


def _listed_by(gate: Gate, restriction: Restriction) -> Callable[[Scope], bool]:
    """Return a function that decides who sees the list of cards at paths without an agent."""
    return (lambda scope: False) if restriction.is_authenticated else gate.is_visible


def checked_endpoints(given: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    """Return endpoints by their paths, without a trailing slash.

    Raises ``ValueError`` for an invalid path or tenant.
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
        for other in endpoints:
            if endpoint.callbacks and f"{other}/".startswith(f"{prefix}{CALLBACKS}/"):
                raise ValueError(
                    f"the path {other!r} is where callbacks to the agent at {prefix or '/'} arrive"
                )
    return endpoints


def _prefix(path: str) -> str:
    prefix = path.rstrip("/")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise ValueError(f"an agent's path is one such as /time, or / for the root, not {path!r}")
    if any(prefix == own or prefix.startswith(f"{own}/") for own in _OWN_PATHS):
        raise ValueError(f"the path {path!r} is the server's own: {', '.join(_OWN_PATHS)}")
    return prefix


def _check_tenant(name: str) -> None:
    if not TENANT_NAME.fullmatch(name):
        raise ValueError(
            f"a tenant's name is letters, digits and . _ ~ - (not a dot first), not {name[:200]!r}"
        )
    if name.lower() in OWN_SEGMENTS:
        raise ValueError(f"a tenant cannot be named {name!r}: that is a path of the protocol")
