"""The records of a registry: entries, observations of agents, and sources."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

import msgspec


class EntryStanding(StrEnum):
    """The state of an entry. Only its owner and operators see an entry that is not ``LISTED``."""

    LISTED = "listed"
    PENDING = "pending"
    """Its card has not been fetched yet, or is unavailable for now."""
    HELD = "held"
    """A change needs the decision of an operator, such as a change of keys."""
    REJECTED = "rejected"
    """It is invalid, or claims another owner's identifier."""
    WITHDRAWN = "withdrawn"
    """Its source no longer has it, or its owner removed it."""
    SHADOWED = "shadowed"
    """It could be listed, but a stronger or older source lists the same identifier. The index sets
    this standing, and lists the entry when the other is gone.
    """


class Trust(StrEnum):
    """The proof of an entry and its card."""

    UNPROVED = "unproved"
    """Nothing is signed; the source belongs to the publisher's domain, or an operator added it."""
    VERIFIED = "verified"
    """A signature of the publisher covers the card, or the trust manifest."""
    FAILED = "failed"
    """It has an invalid signature."""


class AgentHealth(StrEnum):
    """The health of an agent, from its last probes."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """It answers, but some responses are errors or slow."""
    UNREACHABLE = "unreachable"


class Liveness(StrEnum):
    """The state of an agent by its heartbeats."""

    NONE = "none"
    ALIVE = "alive"
    SUSPECT = "suspect"
    GONE = "gone"


class Authority(StrEnum):
    """The reason why a source may speak for the publisher of an entry, the strongest first."""

    OPERATOR = "operator"
    """The operator of the registry imported it."""
    PROVED = "proved"
    """The publisher proved its domain by DNS or a well-known token, and published the entry."""
    DOMAIN = "domain"
    """The catalog was fetched over https from the publisher's domain or a subdomain."""
    NONE = "none"


AUTHORITIES = tuple(Authority)
"""From the strongest to the weakest."""


class EntryDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An entry for the index.

    ``entry`` is the catalog entry as JSON values. ``card`` is the fetched A2A card, and ``fields``
    are values by field path, for filters, facets and orders: of the entry (``tags``,
    ``trustManifest.attestations.type``, ``metadata.region``), the derived ``publisher``, and of the
    card (``card.skills.id``, ``card.skills.tags``, ``card.modes``, ``card.bindings``,
    ``card.versions``, ``card.securitySchemes``, ``card.extensions``, ``card.provider``). ``texts``
    are the searched texts by weight: ``A`` (name, queries), ``B`` (skills, tags, capabilities),
    ``C`` (descriptions), ``D`` (the rest). ``audience`` are the tokens of the callers who see it;
    empty for a public entry. ``marks`` are warnings about its texts (``instructions``), for
    programs that show them to a model.
    """

    identifier: str
    source: str
    publisher: str
    entry: Mapping[str, Any]
    version: str = ""
    type: str = ""
    url: str = ""
    authority: Authority = Authority.NONE
    standing: EntryStanding = EntryStanding.PENDING
    reason: str = ""
    trust: Trust = Trust.UNPROVED
    trust_reason: str = ""
    card: bytes | None = None
    card_digest: str = ""
    fields: Mapping[str, tuple[str, ...]] = {}
    texts: Mapping[str, str] = {}
    audience: tuple[str, ...] = ()
    owner: str = ""
    marks: tuple[str, ...] = ()


class ProbeSample(msgspec.Struct, frozen=True, array_like=True):
    """A probe: its time (ms), its outcome (see ``ProbeOutcome``), and its duration in ms."""

    at: int
    outcome: int
    latency: float


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of an agent. Times are in ms, rates between 0 and 1 over ``probes``.

    ``samples`` are the last probes, the oldest first; the other values are computed from them.
    """

    health: AgentHealth = AgentHealth.UNKNOWN
    reason: str = ""
    liveness: Liveness = Liveness.NONE
    last_beat: int | None = None
    probed_at: int | None = None
    probes: int = 0
    availability: float | None = None
    error_rate: float | None = None
    latency_p50: float | None = None
    latency_p95: float | None = None
    beat_details: Mapping[str, str] = {}
    """The details in the last heartbeat."""
    samples: tuple[ProbeSample, ...] = ()
    messaged_at: int | None = None
    """The time of the last message that the owner requested."""


class IndexedEntry(EntryDraft, frozen=True, kw_only=True):
    """An entry of the index. Times are in ms since 1970; ``key`` is internal to the index.

    ``change`` is the number of its last change, for followers of ``changes``.
    """

    key: int
    created_at: int
    updated_at: int
    seen_at: int
    revision: int = 1
    change: int = 0
    observed: Observed = Observed()

    @property
    def draft(self) -> EntryDraft:
        """The entry as a draft, with its current standing."""
        return EntryDraft(**{name: getattr(self, name) for name in EntryDraft.__struct_fields__})


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A result of a search. ``relevance`` is between 0 and 1, larger for a better match."""

    entry: IndexedEntry
    relevance: float


class CardVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a card. ``difference`` is from the previous version, by JSON pointer."""

    digest: str
    seen_at: int
    version: str = ""
    difference: tuple[Mapping[str, Any], ...] = ()
    card: bytes = b""


class SourceKind(StrEnum):
    """The kinds of sources."""

    CATALOG = "catalog"
    SITE = "site"
    """A domain or page whose catalogs are discovered: well-known, Agentmap, link, DNS."""
    PUSH = "push"
    FILE = "file"
    REGISTRY = "registry"
    """Another registry that searches are forwarded to."""


class SourceState(StrEnum):
    """The result of a source's last visit."""

    NEW = "new"
    OK = "ok"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    REFUSED = "refused"
    """It must not be visited: the egress guard, a depth limit, or a loop."""
    GONE = "gone"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a registry's entries, and the result of its last visit.

    ``found_by`` is the source that led here; ``depth`` the number of nested catalogs. Times are in
    ms.
    """

    url: str
    kind: SourceKind
    found_by: str = ""
    depth: int = 0
    etag: str = ""
    last_modified: str = ""
    state: SourceState = SourceState.NEW
    reason: str = ""
    failures: int = 0
    entries: int = 0
    fetched_at: int | None = None
    due_at: int = 0
    settings: Mapping[str, Any] = {}


class DomainClaim(msgspec.Struct, frozen=True):
    """A domain that a caller has proved, by ``dns`` or ``well-known``, until a time (ms)."""

    domain: str
    owner: str
    method: str
    token: str
    expires_at: int


# Selections of entries, and their order.

PUBLIC: tuple[str, ...] = ()
"""The tokens of an unauthenticated viewer, who sees public entries only."""


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """The caller's view: public entries, and entries with one of the ``tokens``; an operator
    (``sees_all``) sees all entries, of every standing.
    """

    tokens: tuple[str, ...] = PUBLIC
    sees_all: bool = False


Operator = Literal["eq", "contains", "gt", "ge", "lt", "le"]


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on the values of a field path: any of ``values`` matches by ``operator``.

    ``eq`` ignores case; ``contains`` searches for a part; ``gt``, ``ge``, ``lt`` and ``le`` compare
    numbers with numbers, times (ISO 8601) with times, and texts with texts. ``negated`` selects
    entries without such a value. ``registry.createdAt`` and ``registry.updatedAt`` are the times
    when the index received the entry and last changed it; they support comparisons only.
    """

    field: str
    values: tuple[str, ...]
    operator: Operator = "eq"
    negated: bool = False


class EntrySelection(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of entries: all constraints hold, and the viewer may see them."""

    viewer: Viewer = Viewer()
    constraints: tuple[Constraint, ...] = ()
    standings: tuple[EntryStanding, ...] = (EntryStanding.LISTED,)
    words: str = ""
    """A need in natural language; empty selects entries regardless of words."""
    keys: tuple[int, ...] | None = None
    """The keys of entries that another index found; ``None`` selects any."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A field to order by: ``displayName``, ``identifier``, ``publisher``, ``type``, ``version``,
    ``createdAt``, ``updatedAt``.
    """

    field: str
    descending: bool = False


COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}

ORDERS = {
    "displayName": "name",
    "identifier": "identifier",
    "publisher": "publisher",
    "type": "type",
    "version": "version",
    "createdAt": "created_at",
    "updatedAt": "updated_at",
}
"""The fields by which lists can be ordered, with their columns."""
