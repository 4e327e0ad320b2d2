"""The envelope card of an agent: from its A2A card, its settings, and where it is served."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from msgspec.structs import asdict, replace
from starlette.types import Receive, Scope, Send

from parley.envelope.cards import (
    BEARER,
    OAUTH2,
    OPENID_CONNECT,
    CardAvailability,
    CardCapability,
    CardConstraints,
    CardEndpoints,
    CardMetadata,
    CardPerformance,
    CardRateLimits,
    CardSecurity,
    EnvelopeCard,
    auth_method_of,
    envelope_card_of,
    write_card,
)
from parley.envelope.declared import EnvelopeSettings
from parley.envelope.messages import PATH
from parley.model.bounded import Bounded
from parley.model.cards import AgentCard
from parley.model.errors import ExtendedAgentCardNotConfiguredError, PermissionDeniedError
from parley.model.operations import BY_NAME, GetExtendedAgentCardRequest
from parley.model.service import ANONYMOUS, Caller
from parley.model.struct import Timestamp
from parley.security.authorization import Authorization
from parley.security.limits.counters import short_key
from parley.security.limits.declaration import Rate
from parley.security.limits.usage import QuotaAsk, QuotaGrant
from parley.server.added_bindings import BindingPlace, SeenFromScope
from parley.server.cards.advertised_interfaces import socket_url
from parley.server.cards.discovery import CardFile, card_file, reply_with_file
from parley.server.dispatch import Parameters
from parley.server.http.responses import JSON, NO_STORE, refuses_method, reply_with_message
from parley.server.log import failure_of
from parley.store.protocols.errors import StoreError
from parley.wire import versions

log = logging.getLogger("parley.envelope")

NONE = "none"
"""The value of ``authMethods`` for no credentials."""

_TIMES_KEPT_MS = round(timedelta(days=3650).total_seconds() * 1000)


def make_card(
    card: AgentCard,
    settings: EnvelopeSettings,
    *,
    key: str,
    address: str,
    server: str,
    authorization: Authorization | None = None,
    limits: Iterable[object] = (),
    has_page: bool = False,
) -> EnvelopeCard:
    """Return the envelope card of an A2A card and the settings, without times.

    ``address`` is the agent's, ``server`` its server's, both without a slash at the end.
    """
    own = address + PATH
    made = envelope_card_of(card, agent_id=key)
    documentation = card.documentation_url or (f"{address}/" if has_page else "")
    tags = settings.tags or tuple(dict.fromkeys(tag for each in card.skills for tag in each.tags))
    return replace(
        made,
        agent_info=replace(
            made.agent_info,
            type=settings.agent_type,
            vendor=settings.vendor or made.agent_info.vendor,
            license=settings.license,
        ),
        capabilities=tuple(_with_performance(each, settings) for each in made.capabilities),
        endpoints=CardEndpoints(
            primary=socket_url(own), backup=own, health_check=f"{server}/health/ready"
        ),
        security=CardSecurity(
            auth_methods=_methods(card, authorization),
            required_permissions=settings.required_permissions,
            data_classification=settings.data_classification,
        ),
        constraints=CardConstraints(
            rate_limits=CardRateLimits(
                requests_per_minute=_per_minute(settings, limits),
                concurrent_connections=settings.concurrent_connections,
            ),
            availability=CardAvailability(
                schedule=settings.schedule, maintenance_windows=settings.maintenance_windows
            ),
        ),
        metadata=CardMetadata(tags=tags, documentation=documentation),
    )


def _with_performance(capability: CardCapability, settings: EnvelopeSettings) -> CardCapability:
    declared = settings.performance.get(capability.name)
    performance = None if declared is None else CardPerformance(**asdict(declared))
    return replace(capability, performance=performance)


def _methods(card: AgentCard, authorization: Authorization | None) -> tuple[str, ...]:
    """Return the ways to prove who one is; tokens of OAuth and OpenID Connect are bearer tokens."""
    names = [auth_method_of(scheme) for scheme in card.security_schemes.values()]
    found = dict.fromkeys(BEARER if name in (OAUTH2, OPENID_CONNECT) else name for name in names)
    required = None if authorization is None else authorization.security
    needs = authorization is not None and authorization.needs_identity
    if not needs and (required is None or required.is_open):
        found[NONE] = None
    return tuple(found)


def _per_minute(settings: EnvelopeSettings, limits: Iterable[object]) -> int | None:
    """Return the strictest rate limit of one caller, of all operations and skills."""
    found = [settings.requests_per_minute] if settings.requests_per_minute is not None else []
    for each in limits:
        if isinstance(each, Rate) and each.period_ms == 60_000 and each.counts == "requests":
            applies = each.applies
            if applies.per == ("caller",) and not applies.operations and not applies.needs_skill:
                found.append(each.amount)
    return min(found, default=None)


class TimesStore(Protocol):
    """The part of a store that the times of cards need."""

    def now(self) -> int:
        """Return the time in ms."""
        ...

    async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        """Take from amounts."""
        ...


class CardTimes:
    """The times at which an agent's card was first served, and with its current content.

    All replicas of a store agree on them: the first replica stores an amount of 1 in a slot of its
    time; the others fail to, and read the slot.
    """

    def __init__(self, store: TimesStore) -> None:
        self._store = store
        self._known: Bounded[str, tuple[Timestamp, Timestamp]] = Bounded(1000)

    async def stamped(self, card: EnvelopeCard) -> EnvelopeCard:
        """Return a card with its times; without, if the store cannot tell them now."""
        key = card.agent_info.id
        # Addresses come from a request: they are not part of the content.
        bare = replace(card.metadata, documentation="")
        content = write_card(replace(card, endpoints=CardEndpoints(), metadata=bare))
        digest = hashlib.sha256(content).hexdigest()
        times = self._known.get(f"{key} {digest}")
        if times is None:
            try:
                times = await self._times(key, digest)
            except StoreError as error:
                log.warning("the times of a card are not known: %s", error)
                return card
            self._known[f"{key} {digest}"] = times
        created, updated = times
        metadata = replace(card.metadata, created_at=created, updated_at=updated)
        return replace(card, metadata=metadata)

    async def _times(self, key: str, digest: str) -> tuple[Timestamp, Timestamp]:
        now = self._store.now()
        asks = [
            QuotaAsk(
                key=short_key("envelope card", *names),
                slot=now,
                oldest=0,
                amount=1,
                wanted=1,
                ends_at=now + _TIMES_KEPT_MS,
            )
            for names in ((key,), (key, digest))
        ]
        grants: Any = await self._store.take_quotas(asks)
        created, updated = (Timestamp.from_milliseconds(each.first) for each in grants)
        return created, max(created, updated)


@cache
def schema() -> bytes:
    """Return the JSON Schema (2020-12) of messages; ``#/$defs/card`` is the schema of cards."""
    return _read("schema.json")


@cache
def vectors() -> bytes:
    """Return signed messages with their keys and canonical forms, and messages that must be
    rejected.
    """
    return _read("vectors.json")


def _read(name: str) -> bytes:
    return files("parley.envelope").joinpath(name).read_bytes()


_MAX_FILES = 64
_SCHEMA_AGE = 3600


class EnvelopeCardPage:
    """Serves the envelope card of an agent, or of a tenant.

    ``dataClassification`` decides who may see it: of a public agent all, else callers who prove who
    they are, with the permissions that all callers need. Callers who get an extended card over A2A
    see its skills here too. The card of one caller is kept for no other: where cards may differ,
    responses are private.
    """

    def __init__(self, place: BindingPlace, settings: EnvelopeSettings, times: CardTimes) -> None:
        assert place.agent.card is not None
        self._card = place.agent.card
        self._times = times
        self._place = place
        self._served = place.served
        self._endpoint = place.agent
        self._settings = settings
        self._advertised = place.advertised
        self._files: Bounded[str, CardFile] = Bounded(_MAX_FILES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD, including conditional requests."""
        if await refuses_method(scope, send, "an envelope card supports GET only"):
            return
        try:
            caller = await self._caller(scope)
            file = await self._file(scope, caller)
        except Exception as error:
            failure = failure_of(error, "making an envelope card")
            headers = [NO_STORE, *self._vary(), *self._served.error_headers(failure, scope)]
            await reply_with_message(scope, send, failure.http_status, failure.message, headers)
            return
        kind = b"private" if self._differs else b"public"
        cached = b"%s, max-age=%d" % (kind, self._served.settings.card_max_age)
        await reply_with_file(scope, send, file, JSON, (b"cache-control", cached), *self._vary())

    @property
    def _differs(self) -> bool:
        """Return whether the card depends on the caller."""
        return self._settings.data_classification != "public" or self._has_extended

    @property
    def _has_extended(self) -> bool:
        return bool(self._card(()).capabilities.extended_agent_card)

    def _vary(self) -> list[tuple[bytes, bytes]]:
        names = [*self._advertised.varies]
        if self._differs and self._served.varies:
            names.insert(0, self._served.varies)
        return [(b"vary", b", ".join(names))] if names else []

    async def _caller(self, scope: Scope) -> Caller:
        """Return the caller, if that matters. Raises ``A2AError`` for others."""
        if not self._differs:
            return ANONYMOUS
        authorization = self._endpoint.authorization
        await self._served.dispatcher.start()
        caller = await self._place.caller(scope)
        if authorization is None:
            return ANONYMOUS if caller.granted else caller
        caller = authorization.own_caller(caller)
        if self._settings.data_classification != "public":
            authorization.check_identity(caller)
        return caller

    async def _file(self, scope: Scope, caller: Caller) -> CardFile:
        """Return the card of a caller. What all callers see is kept for each address."""
        address, now = self._advertised.address(scope), time.time()
        if caller.authenticated and self._has_extended:
            extended = await self._extended(scope, caller)
            return card_file(await self._written(scope, extended), now, None)
        file = self._files.get(address)
        if file is None or now - file.made >= self._served.settings.card_max_age:
            file = card_file(await self._written(scope, None), now, file)
        self._files[address] = file
        return file

    async def _written(self, scope: Scope, card: AgentCard | None) -> bytes:
        endpoint = self._endpoint
        await self._served.dispatcher.start()
        made = make_card(
            card or self._card(()),
            self._settings,
            key=endpoint.key,
            address=self._advertised.address(scope).rstrip("/") + self._place.below,
            server=self._advertised.server(scope),
            authorization=endpoint.authorization,
            limits=() if endpoint.limits is None else endpoint.limits.declared,
            has_page=self._served.settings.page,
        )
        return write_card(await self._times.stamped(made))

    async def _extended(self, scope: Scope, caller: Caller) -> AgentCard | None:
        """Return the extended card of a caller, or ``None``."""
        tenant, dispatcher = self._place.tenant, self._served.dispatcher
        parameters = Parameters(
            version=versions.LATEST,
            addresses=SeenFromScope(self._served, scope),
            caller=caller,
            tenant=tenant,
            is_signed=True,  # a GET cannot be: credentials and permissions were checked
        )
        request = GetExtendedAgentCardRequest(tenant=tenant)
        try:
            await dispatcher.start()
            call = dispatcher.call(BY_NAME["GetExtendedAgentCard"], parameters, lambda: request)
            found: AgentCard = await call.answer()
        except (ExtendedAgentCardNotConfiguredError, PermissionDeniedError):
            return None
        return found


class SchemaPage:
    """Serves the JSON Schema of messages and cards."""

    _schema: CardFile | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD, including conditional requests."""
        if await refuses_method(scope, send, "a schema supports GET only"):
            return
        if self._schema is None:
            self._schema = card_file(schema(), time.time(), None)
        cached = (b"cache-control", b"public, max-age=%d" % _SCHEMA_AGE)
        kind = (b"content-type", b"application/schema+json")
        await reply_with_file(scope, send, self._schema, kind, cached)
