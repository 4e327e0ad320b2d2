"""What an operator says about the envelope protocol of a server, and the parts made of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from parley.model.errors import an
from parley.server.envelope.heartbeats import HeartbeatSettings
from parley.server.envelope.plugins import TIMEOUT, EnvelopeHandler, EnvelopeHandlers

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from parley.host.envelope.directory import RoutingLimits
    from parley.host.envelope.guards import EnvelopeGuards
    from parley.host.envelope.registration import (
        AgentRegistrar,
        RegistrationSettings,
        SocketRegistrations,
    )
    from parley.host.envelope.remote import RegistryAgents
    from parley.security.egress import Egress
    from parley.server.endpoint import Endpoint
    from parley.server.envelope.services import EnvelopeServices

log = logging.getLogger("parley.envelope")


class EnvelopeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a server about the envelope protocol; ``None`` stands for the defaults.

    ``heartbeats`` says how connections are watched, ``registration`` who may register over a
    socket, ``routing`` how far a message spreads. A handler ends after ``handler_timeout`` seconds.
    ``registrar`` is where agents that register are published, in place of the registry.
    """

    heartbeats: HeartbeatSettings | None = None
    registration: RegistrationSettings | None = None
    routing: RoutingLimits | None = None
    handler_timeout: float = TIMEOUT
    registrar: AgentRegistrar | None = None


class EnvelopeParts(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a server, its handlers, and the registry that it publishes in."""

    options: EnvelopeOptions = EnvelopeOptions()
    handlers: Mapping[str, EnvelopeHandler] = {}
    fallback: EnvelopeHandler | None = None
    registry: str = ""
    publisher: str = ""
    url: str = ""


class HostEnvelope:
    """The parts of a server that its envelope bindings share.

    They are made when the first message comes. ``endpoints`` are the agents of the server by path,
    ``guards`` makes theirs. ``app`` returns what serves them, ``egress`` where calls of other
    agents may go.
    """

    def __init__(
        self,
        parts: EnvelopeParts,
        endpoints: Mapping[str, Endpoint],
        guards: EnvelopeGuards | None = None,
        *,
        app: Callable[[], ASGIApp],
        egress: Callable[[], Egress | None],
    ) -> None:
        self._parts = parts
        self._endpoints = endpoints
        if guards is not None:
            guards.is_reachable = self._is_reachable
        self._app = app
        self._egress = egress
        self._services: EnvelopeServices | None = None
        self._registrations: SocketRegistrations | None = None
        self._remote: RegistryAgents | None = None
        self._skills_checked = not parts.handlers

    def check_skills(self) -> None:
        """Raise ``ValueError`` for a handler in the place of a skill."""
        if self._skills_checked:
            return
        self._skills_checked = True
        skills = {
            skill.id
            for endpoint in self._endpoints.values()
            for each in (endpoint, *endpoint.tenants.values())
            if each.card is not None
            for skill in each.card(()).skills
        }
        EnvelopeHandlers(self._parts.handlers).check_skills(skills)

    @property
    def services(self) -> EnvelopeServices:
        """What the bindings share; the first access makes it."""
        if self._services is None:
            self._services = self._made()
        return self._services

    def _made(self) -> EnvelopeServices:
        from parley.host.envelope.connected import ConnectedAgents
        from parley.host.envelope.directory import HostDirectory
        from parley.host.envelope.hosted import hosted_agents
        from parley.host.envelope.registration import SocketRegistrations
        from parley.server.envelope.services import EnvelopeServices

        parts, options = self._parts, self._parts.options
        hosted = hosted_agents(self._endpoints, self._app)
        connected = ConnectedAgents()
        registrar = options.registrar
        if registrar is None and parts.registry and parts.publisher:
            from parley.host.envelope.registrar import RestRegistrar

            registrar = RestRegistrar(parts.registry, parts.publisher)
        if parts.registry:
            from parley.agent.remote.connections import Connections
            from parley.host.envelope.remote import RegistryAgents

            self._remote = RegistryAgents(
                parts.registry,
                Connections(egress=self._egress()),
                own=parts.url,
                chain_id=parts.publisher,
            )
        self._registrations = SocketRegistrations(
            connected,
            registrar,
            options.registration,
            own_ids=[name for each in hosted for name in each.names],
        )
        directory = HostDirectory(lambda: hosted, connected, self._remote, limits=options.routing)
        return EnvelopeServices(
            handlers=EnvelopeHandlers(
                parts.handlers,
                parts.fallback,
                own=self._registrations.handlers,
                timeout=options.handler_timeout,
            ),
            directory=directory,
            heartbeats=options.heartbeats or HeartbeatSettings(),
        )

    def _is_reachable(self, agent_id: str) -> bool:
        assert self.services.directory is not None
        return self.services.directory.knows(agent_id)

    async def close(self) -> None:
        """End what is under way, and log what was counted."""
        services = self._services
        if services is None:
            return
        if self._registrations is not None:
            await self._registrations.aclose()
        if self._remote is not None:
            await self._remote.aclose()
        counts = services.statistics.counts()
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


def read_parts(
    options: EnvelopeOptions | None,
    *,
    handlers: Mapping[str, EnvelopeHandler] = {},
    fallback: EnvelopeHandler | None = None,
    registry: str | None = None,
    publisher: str = "",
    url: str | None = None,
) -> EnvelopeParts:
    """Return what a server has. Raises ``ValueError`` and ``TypeError`` for what makes no sense."""
    if options is None:
        options = EnvelopeOptions()
    elif not isinstance(options, EnvelopeOptions):
        raise TypeError(
            f"envelope_options is a parley.envelope.EnvelopeOptions(...), not {options!r:.200}"
        )
    else:
        _check_kinds(options)
    if not isinstance(handlers, Mapping):
        raise TypeError(
            "envelope_handlers is a mapping of message types and actions to async functions, such "
            f"as {{'stock.count': count}}, not {handlers!r:.200}"
        )
    EnvelopeHandlers(handlers, fallback, timeout=options.handler_timeout)
    return EnvelopeParts(
        options=options,
        handlers=dict(handlers),
        fallback=fallback,
        registry=registry or "",
        publisher=publisher,
        url=url or "",
    )


def _check_kinds(options: EnvelopeOptions) -> None:
    from parley.host.envelope.directory import RoutingLimits
    from parley.host.envelope.registration import RegistrationSettings

    kinds: dict[str, type] = {
        "heartbeats": HeartbeatSettings,
        "registration": RegistrationSettings,
        "routing": RoutingLimits,
    }
    for name, kind in kinds.items():
        given = getattr(options, name)
        if given is not None and not isinstance(given, kind):
            raise TypeError(
                f"{name} of envelope_options is {an(kind.__name__)}(...), not {given!r:.200}"
            )
    timeout: object = options.handler_timeout
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(
            "handler_timeout of envelope_options is a number of seconds above 0, not "
            f"{timeout!r:.100}"
        )
    registrar = options.registrar
    if registrar is not None and not callable(getattr(registrar, "identifier_of", None)):
        raise TypeError(
            "registrar of envelope_options publishes agents (AgentRegistrar), as "
            f"{registrar!r:.200} does not"
        )
