"""The envelope protocol as a binding of a server: its options, and the parts that its agents share.

What answers is loaded with the first request: a server without such requests does without.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley import envelope
from parley.engine.description import AgentDescription
from parley.envelope.declared import HANDLER_TIMEOUT, KEYS_VARIABLE, EnvelopeSettings
from parley.envelope.messages import BINDING, PATH
from parley.host.bindings import ServerParts
from parley.model.errors import A2AError, an
from parley.server.added_bindings import BindingPlace
from parley.server.app import App, Endpoint
from parley.store.protocols.errors import StoreError

if TYPE_CHECKING:
    from parley.envelope.registration import RegistrationSettings, SocketRegistrations
    from parley.envelope.routing import RegistryAgents, RoutingLimits
    from parley.envelope.server.guard import (
        EnvelopeGuard,
        EnvelopeKeys,
        GivenKeys,
        KnownCallers,
        Nonces,
    )
    from parley.envelope.server.queue import RequestQueue
    from parley.envelope.server.services import (
        EnvelopeHandler,
        EnvelopeServices,
        EnvelopeStatistics,
        HeartbeatSettings,
    )
    from parley.registry.served.binding import ServerCatalog


class LoadedHandler:
    """A handler that ``load`` makes at the first request."""

    takes_sockets = True

    def __init__(self, load: Callable[[], ASGIApp]) -> None:
        self._load = load

    @cached_property
    def _app(self) -> ASGIApp:
        return self._load()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._app(scope, receive, send)


class LoadedPage(LoadedHandler):
    """The same for a page, which accepts no WebSocket."""

    takes_sockets = False


class AgentEnvelope:
    """The envelope protocol of one agent (``AgentBinding``)."""

    protocol = BINDING
    path = PATH

    def __init__(
        self, server: ServerEnvelope, agent: AgentDescription, settings: EnvelopeSettings
    ) -> None:
        self.server = server
        self.settings = settings
        self._agent = agent

    @cached_property
    def guard(self) -> EnvelopeGuard:
        """The guard of messages to the agent."""
        return self.server.guard_of(self._agent, self.settings)

    def handler(self, place: BindingPlace) -> ASGIApp:
        """Return the app that receives messages at an address of the agent."""

        def endpoint() -> ASGIApp:
            from parley.envelope.server.conversation import EnvelopeEndpoint

            server = self.server
            return EnvelopeEndpoint(
                place, self.settings, server.services, server.requests, self.guard
            )

        return LoadedHandler(endpoint)

    def pages(self, place: BindingPlace) -> Mapping[str, ASGIApp]:
        """Return the envelope card, and the schema of messages."""

        def card() -> ASGIApp:
            from parley.envelope.server.card import CardTimes, EnvelopeCardPage

            return EnvelopeCardPage(place, self.settings, CardTimes(self.server.store))

        page = place.restricted("card", LoadedPage(card))
        return {"/card": page, "/schema.json": self.server.schema_page}

    @property
    def refuses_unsigned(self) -> bool:
        """Return whether the agent's data is restricted, so that unsigned messages are rejected."""
        return self.settings.data_classification == "restricted"

    def refuse(self) -> A2AError:
        """Return the error for a request that is not signed."""
        from parley.envelope.messages import SignatureRequired

        return SignatureRequired(
            "the data of this agent is restricted, so it takes signed messages of the envelope "
            "protocol alone: its card has their address (urn:parley:envelope:v1)"
        )


log = logging.getLogger("parley.envelope")


class EnvelopeBinding(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope protocol of a server: ``parley.asgi(agent, bindings=[EnvelopeBinding(...)])``.

    ``keys`` are the keys of the agents that sign messages: a file (``parley keys share``), by
    default the file in ``PARLEY_ENVELOPE_KEYS``, or a list; the same for all replicas. ``handler``
    is an async function of a message and its context, for messages without another handler; its
    calls are limited to ``handler_timeout`` seconds. ``docs/guides/envelope/operate.md`` describes
    both. ``heartbeats`` are the settings of connection checks,
    ``registration`` the permissions to register over a socket, ``routing`` the limits of forwarding
    (``docs/guides/envelope/routing.md``).

    ``max_requests`` bounds concurrent requests, ``max_requests_per_socket`` the requests of one
    WebSocket, and ``max_requests_waiting`` the waiting requests of one caller.

    Raises ``ValueError`` and ``TypeError`` for invalid values.
    """

    keys: GivenKeys | None = None
    handler: EnvelopeHandler | None = None
    heartbeats: HeartbeatSettings | None = None
    registration: RegistrationSettings | None = None
    routing: RoutingLimits | None = None
    handler_timeout: float = HANDLER_TIMEOUT
    max_requests: int = 10_000
    max_requests_per_socket: int = 64
    max_requests_waiting: int = 256

    @property
    def name(self) -> str:
        """The name of the binding on a server."""
        return "envelope"

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_requests_per_socket", "max_requests_waiting"):
            value, least = getattr(self, name), int(name != "max_requests_waiting")
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(
                    f"{name} of EnvelopeBinding is a whole number of at least {least}, not "
                    f"{value!r}"
                )
        timeout: object = self.handler_timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise ValueError(
                "handler_timeout of EnvelopeBinding is a number of seconds above 0, not "
                f"{timeout!r:.100}"
            )
        if self.handler is not None:
            from parley.envelope.server.services import EnvelopeHandlers

            EnvelopeHandlers(self.handler)
        for name, kind in (
            ("heartbeats", "HeartbeatSettings"),
            ("registration", "RegistrationSettings"),
            ("routing", "RoutingLimits"),
        ):
            given = getattr(self, name)
            if given is not None and not isinstance(given, getattr(envelope, kind)):
                raise TypeError(f"{name} of EnvelopeBinding is {an(kind)}(...), not {given!r:.200}")

    def bind(self, parts: ServerParts) -> ServerEnvelope:
        """Return the binding of one server.

        Raises ``ValueError`` for keys that cannot be used, and for an agent whose demands no caller
        could meet.
        """
        return ServerEnvelope(self, parts)


class ServerEnvelope:
    """The envelope protocol of one server (``BoundBinding``).

    Its bindings share ``services``: handlers, directory and measurements. They are made at the
    first use.
    """

    def __init__(self, binding: EnvelopeBinding, parts: ServerParts) -> None:
        self._binding = binding
        self._parts = parts
        self.store = parts.store
        self._keys = _read_keys(binding.keys)
        self._endpoints: Mapping[str, Endpoint] = {}
        self._app: App | None = None
        self._services: EnvelopeServices | None = None
        self._registrations: SocketRegistrations | None = None
        self._remote: RegistryAgents | None = None
        self._agents: dict[str, AgentEnvelope] = {}
        self.schema_page = LoadedPage(_schema_page)
        for agent in parts.agents.values():
            if (settings := settings_of(agent)) is not None:
                has_keys = self._keys is not None and bool(self._keys.owners)
                _check_identifiable(agent, settings, identifies=parts.identifies, has_keys=has_keys)
                self._agents[agent.key] = AgentEnvelope(self, agent, settings)

    @property
    def record(self) -> Mapping[str, Any]:
        """The facts for the audit: the owners of keys."""
        return {"envelope_keys": [] if self._keys is None else sorted(self._keys.owners)}

    def of(self, agent: AgentDescription) -> AgentEnvelope | None:
        """Return the binding of an agent, ``None`` if the agent does not support the protocol."""
        return self._agents.get(agent.key)

    def serve(self, app: App, endpoints: Mapping[str, Endpoint]) -> None:
        """Set the app that serves it, with its agents by path."""
        self._app = app
        self._endpoints = endpoints
        if self._keys is not None:
            app.lifecycle.on_reload(self._keys.reload)

    async def start(self) -> None:
        """Prepare to fetch keys that senders publish."""
        if self._keys is not None:
            resources = self._parts.resources
            self._keys.start(egress=resources.egress, now=resources.now)

    async def close(self) -> None:
        """Stop background work, and log the counters."""
        if self._services is not None:
            if self._registrations is not None:
                await self._registrations.aclose()
            if self._remote is not None:
                await self._remote.aclose()
            _log_counts(self._services.statistics)
        if self._keys is not None:
            await self._keys.close()

    @cached_property
    def requests(self) -> RequestQueue:
        """The queue of all requests."""
        from parley.envelope.server.queue import QueueLimits, RequestQueue

        binding = self._binding
        limits = QueueLimits(
            total=binding.max_requests,
            in_flight=binding.max_requests_per_socket,
            waiting=binding.max_requests_waiting,
            share=self._parts.settings.caller_share,
        )
        return RequestQueue(limits)

    @property
    def services(self) -> EnvelopeServices:
        """The parts that the bindings of all agents share."""
        if self._services is None:
            self._services = self._made()
        return self._services

    def _made(self) -> EnvelopeServices:
        from parley.envelope.registration import SocketRegistrations
        from parley.envelope.routing import ConnectedAgents, HostDirectory, HostedAgent
        from parley.envelope.server.services import (
            EnvelopeHandlers,
            EnvelopeServices,
            HeartbeatSettings,
            ServerLoad,
        )

        binding, parts, app = self._binding, self._parts, self._app
        assert app is not None
        # Agents of tenants are not among them: messages to all agents reveal no tenant.
        hosted = tuple(
            HostedAgent(path, endpoint, agent.settings, agent.guard.names, app)
            for path, endpoint in self._endpoints.items()
            if endpoint.service is not None
            and (agent := self._agents.get(endpoint.key)) is not None
        )
        connected = ConnectedAgents()
        catalog: ServerCatalog = app.bindings["catalog"]
        if catalog.registry:
            from parley.agent.remote.connections import Connections
            from parley.envelope.routing import RegistryAgents

            self._remote = RegistryAgents(
                catalog.registry,
                Connections(egress=parts.egress()),
                own=parts.url or "",
                chain_id=catalog.publisher,
            )
        self._registrations = SocketRegistrations(
            connected,
            catalog.registrar,
            binding.registration,
            own_ids=[name for each in hosted for name in each.names],
        )
        directory = HostDirectory(lambda: hosted, connected, self._remote, limits=binding.routing)
        return EnvelopeServices(
            handlers=EnvelopeHandlers(
                binding.handler, own=self._registrations.handlers, timeout=binding.handler_timeout
            ),
            directory=directory,
            heartbeats=binding.heartbeats or HeartbeatSettings(),
            load=ServerLoad(
                load=lambda: self.requests.load, is_draining=lambda: app.lifecycle.draining
            ),
        )

    def is_reachable(self, agent_id: str) -> bool:
        """Return whether messages may name another agent."""
        assert self.services.directory is not None
        return self.services.directory.knows(agent_id)

    @cached_property
    def _shared_guards(self) -> tuple[KnownCallers, Nonces]:
        """The state that the guards of all agents share."""
        from parley.envelope.server.guard import KnownCallers, Nonces

        return KnownCallers(self._is_registered), Nonces(self.store)

    def guard_of(self, agent: AgentDescription, settings: EnvelopeSettings) -> EnvelopeGuard:
        """Return the guard of messages to an agent."""
        from parley.envelope.server.guard import EnvelopeGuard, SignedMessages

        parts = self._parts
        known, nonces = self._shared_guards
        window = round(settings.signature_window * 1000)
        addresses = [
            parts.url.rstrip("/") + path
            for path, each in parts.agents.items()
            if parts.url is not None and each.key == agent.key
        ]
        return EnvelopeGuard(
            settings,
            names=(agent.key, *addresses),
            signed=SignedMessages(self._keys, nonces, window=window, now=parts.store.now),
            authorization=agent.authorization,
            known=known,
            failures=parts.resources.failures,
            signing_keys=parts.signing_keys,
            is_reachable=self.is_reachable,
        )

    async def _is_registered(self, id: str) -> bool:
        """Return whether an id has credentials with this server; true if the check fails."""
        authenticator = self._parts.authenticator
        for scheme in () if authenticator is None else authenticator.schemes:
            try:
                if await scheme.knows(id, self._parts.resources):
                    return True
            except StoreError as error:
                log.warning("cannot check whether %s knows a caller: %s", scheme.name, error)
                return True
        return False


def _schema_page() -> ASGIApp:
    from parley.envelope.server.card import SchemaPage

    return SchemaPage()


def settings_of(agent: AgentDescription) -> EnvelopeSettings | None:
    """Return the settings of an agent, ``None`` for an agent without the protocol."""
    if isinstance(agent.envelope, EnvelopeSettings):
        return agent.envelope
    return EnvelopeSettings() if agent.envelope is True else None


def _read_keys(given: GivenKeys | None) -> EnvelopeKeys | None:
    if given is None and not os.environ.get(KEYS_VARIABLE):
        return None
    from parley.envelope.server.guard import EnvelopeKeys

    return EnvelopeKeys.load(given)


def _check_identifiable(
    agent: AgentDescription, settings: EnvelopeSettings, *, identifies: bool, has_keys: bool
) -> None:
    """Raise ``ValueError`` for requirements that no caller could meet."""
    rights = agent.authorization
    verifies = identifies or (rights is not None and bool(rights.securities))
    if settings.needs_signatures and not has_keys:
        why = "signed=True" if settings.signed else "data_classification='restricted'"
        raise ValueError(
            f"the agent {agent.name!r} takes signed messages only ({why}), and this server has no "
            "key to verify them: give EnvelopeBinding(keys=...), --envelope-keys or "
            f"{KEYS_VARIABLE} (`parley keys share` makes a file)"
        )
    if settings.required_permissions and not verifies:
        raise ValueError(
            f"the agent {agent.name!r} has required_permissions "
            f"({', '.join(settings.required_permissions)}), and nothing tells the scopes of "
            "callers: declare Agent(security=...), or give auth= or caller="
        )
    if settings.needs_identity and not (verifies or has_keys):
        raise ValueError(
            f"the data of the agent {agent.name!r} is {settings.data_classification}, and nothing "
            "tells who calls: declare Agent(security=...), or give auth=, caller= or "
            "EnvelopeBinding(keys=...)"
        )


def _log_counts(statistics: EnvelopeStatistics) -> None:
    counts = statistics.counts()
    if counts.messages:
        log.info(
            "envelope messages: %d in (%d bytes), %d answered (%d bytes), %d retries, "
            "%d heartbeats, %d errors, the slowest took %d ms",
            counts.messages,
            counts.bytes_in,
            counts.answers,
            counts.bytes_out,
            counts.retries,
            counts.heartbeats,
            sum(counts.by_error.values()),
            counts.slowest_ms,
        )
