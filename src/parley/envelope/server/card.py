"""The envelope card of an agent: from its A2A card, its settings, and where it is served."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

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
from parley.model.cards import AgentCard
from parley.model.struct import Timestamp
from parley.security.authorization import Authorization
from parley.security.limits.counters import short_key
from parley.security.limits.declaration import Rate
from parley.security.limits.usage import QuotaAsk, QuotaGrant
from parley.server.cards.advertised_interfaces import socket_url
from parley.store.protocols.errors import StoreError

log = logging.getLogger("parley.envelope")

NONE = "none"
"""Among the ``authMethods``: callers need no credentials."""

_KEPT = round(timedelta(days=3650).total_seconds() * 1000)


class CardAddresses(msgspec.Struct, frozen=True):
    """The address of an agent, and that of its server, without a slash at the end."""

    agent: str
    server: str


def make_card(
    card: AgentCard,
    settings: EnvelopeSettings,
    *,
    key: str,
    addresses: CardAddresses,
    authorization: Authorization | None = None,
    limits: Iterable[object] = (),
    has_docs: bool = False,
) -> EnvelopeCard:
    """Return the card that says what an A2A card does, and what the settings declare.

    It has no times.
    """
    own = addresses.agent + PATH
    made = envelope_card_of(card, agent_id=key)
    documentation = card.documentation_url or (f"{addresses.agent}/docs" if has_docs else "")
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
            primary=socket_url(own), backup=own, health_check=f"{addresses.server}/health/ready"
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
    if declared is None:
        return replace(capability, performance=None)
    performance = CardPerformance(
        average_response_time=declared.average_response_time,
        max_concurrent_requests=declared.max_concurrent_requests,
        reliability=declared.reliability,
    )
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
    """Return the strictest rate of one caller, of all operations and skills."""
    found = [settings.requests_per_minute] if settings.requests_per_minute is not None else []
    for each in limits:
        if isinstance(each, Rate) and each.period_ms == 60_000 and each.counts == "requests":
            applies = each.applies
            if applies.per == ("caller",) and not applies.operations and not applies.needs_skill:
                found.append(each.amount)
    return min(found, default=None)


class TimesStore(Protocol):
    """What the times of cards need of a store."""

    def now(self) -> int:
        """Return the time in ms."""
        ...

    async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        """Take from amounts."""
        ...


class CardTimes:
    """When an agent's card was first served, and when with the content that it has.

    All replicas of a store agree on that: the first one takes an amount of one in a slot of its
    time, and the others get none, and learn the slot.
    """

    def __init__(self, store: TimesStore) -> None:
        self._store = store
        self._known: dict[str, tuple[Timestamp, Timestamp]] = {}

    async def stamped(self, card: EnvelopeCard) -> EnvelopeCard:
        """Return a card with its times; without, if the store cannot tell them now."""
        key = card.agent_info.id
        # Addresses are those of a request: they are no content.
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
            if len(self._known) > 1000:
                self._known.clear()
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
                ends_at=now + _KEPT,
            )
            for names in ((key,), (key, digest))
        ]
        grants: Any = await self._store.take_quotas(asks)
        created, updated = (Timestamp.from_milliseconds(each.first) for each in grants)
        return created, max(created, updated)
