"""The knowledge of a registry: entries, their observations, and their sources."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

import msgspec


class EntryStanding(StrEnum):
    """Whether an entry is found. All but ``LISTED`` are for its owner and the operator only."""

    LISTED = "listed"
    PENDING = "pending"
    """Its card has not been fetched yet, or the first fetch failed for now."""
    HELD = "held"
    """Something changed that must not change by itself: an operator decides."""
    REJECTED = "rejected"
    """It is wrong, or claims the things of others."""
    WITHDRAWN = "withdrawn"
    """Its source does not have it any more, or its owner removed it."""
    SHADOWED = "shadowed"
    """It could be listed, but a stronger or older source lists the same identifier. The index
    decides this, and lists it once that one is gone."""


class Trust(StrEnum):
    """The proof of an entry and its card."""

    UNPROVED = "unproved"
    """Nothing is signed; the source belongs to the publisher's domain, or an operator added it."""
    VERIFIED = "verified"
    """A signature of the publisher covers the card, or the trust manifest."""
    FAILED = "failed"
    """A signature is there, and does not hold."""


class AgentHealth(StrEnum):
    """The finding of the last probes of an agent."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """It answers, and some answers fail or come late."""
    UNREACHABLE = "unreachable"


class Liveness(StrEnum):
    """What heartbeats say of an agent that sends them."""

    NONE = "none"
    ALIVE = "alive"
    SUSPECT = "suspect"
    GONE = "gone"


class Authority(StrEnum):
    """Why a source may speak for the publisher of an entry; the first is the strongest."""

    OPERATOR = "operator"
    """The operator of the registry imported it."""
    PROVED = "proved"
    """The publisher proved its domain by DNS or a well-known token, and pushed it."""
    DOMAIN = "domain"
    """The catalog was fetched from the publisher's domain over https, or one below it."""
    NONE = "none"


AUTHORITIES = tuple(Authority)
"""From the strongest to the weakest."""


class EntryDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An entry to put into the index.

    ``entry`` is the catalog entry as JSON values. ``card`` is the A2A card as it was fetched, and
    ``fields`` are values by field path, for filters, facets and orders: those of the entry
    (``tags``, ``trustManifest.attestations.type``, ``metadata.region``), the derived ``publisher``,
    and those of the card (``card.skills.id``, ``card.skills.tags``, ``card.modes``,
    ``card.bindings``, ``card.versions``, ``card.securitySchemes``, ``card.extensions``,
    ``card.provider``). ``texts`` are what searches by words look at, by weight: ``A`` (name,
    queries), ``B`` (skills, tags, capabilities), ``C`` (descriptions), ``D`` (the rest).
    ``audience`` are the tokens of who sees it; empty for everybody. ``marks`` say what is strange
    in its texts (``instructions``), for programs that show them to a model.
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
    """One probe: when (ms), its outcome (see ``ProbeOutcome``), and how many ms it took."""

    at: int
    outcome: int
    latency: float


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of an agent. Times are in ms, rates between 0 and 1 over ``probes``.

    ``samples`` are the last probes, the oldest first, from which the rest is made.
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
    """What the last heartbeat said beside that it came."""
    samples: tuple[ProbeSample, ...] = ()
    messaged_at: int | None = None
    """When the agent was sent a message that its owner had asked for."""


class IndexedEntry(EntryDraft, frozen=True, kw_only=True):
    """An entry of the index. Times are in ms since 1970; ``key`` is of the index alone.

    ``change`` is the number of its last change, by which ``changes`` are followed.
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
        """The draft that it was put as, with its standing now."""
        return EntryDraft(**{name: getattr(self, name) for name in EntryDraft.__struct_fields__})


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A result of a search. ``relevance`` is between 0 and 1, larger for a better match."""

    entry: IndexedEntry
    relevance: float


class CardVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a card that was seen. ``difference`` is to the one before, by JSON pointer."""

    digest: str
    seen_at: int
    version: str = ""
    difference: tuple[Mapping[str, Any], ...] = ()
    card: bytes = b""


class SourceKind(StrEnum):
    """Where entries come from."""

    CATALOG = "catalog"
    SITE = "site"
    """A domain or page whose catalogs are looked for: well-known, Agentmap, link, DNS."""
    PUSH = "push"
    FILE = "file"
    REGISTRY = "registry"
    """Another registry that searches are forwarded to."""


class SourceState(StrEnum):
    """What the last visit of a source found."""

    NEW = "new"
    OK = "ok"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    REFUSED = "refused"
    """It must not be visited: the egress guard, a depth limit, a loop."""
    GONE = "gone"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A place that a registry reads entries from, and the state of the last visit.

    ``found_by`` is the source that led here; ``depth`` how many nested catalogs. Times are in ms.
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


# Which entries a caller asks for, and in which order.

PUBLIC: tuple[str, ...] = ()
"""The tokens of a viewer that proved nothing: sees entries without an audience."""


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks: entries without an audience, or with one of the ``tokens``; all of them for an
    operator (``sees_all``), who sees other standings than ``LISTED`` too.
    """

    tokens: tuple[str, ...] = PUBLIC
    sees_all: bool = False


Operator = Literal["eq", "contains", "gt", "ge", "lt", "le"]


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on the values of a field path: one of ``values``, by ``operator``.

    ``eq`` compares without regard to case; ``contains`` looks for a part; ``gt``, ``ge``, ``lt``
    and ``le`` compare numbers with numbers, times (ISO 8601) with times, and texts with texts.
    ``negated`` entries have no such value. ``registry.createdAt`` and ``registry.updatedAt`` are
    when the index got the entry, and when it last changed there; they can be compared only.
    """

    field: str
    values: tuple[str, ...]
    operator: Operator = "eq"
    negated: bool = False


class EntrySelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries: all constraints hold, and the viewer may see them."""

    viewer: Viewer = Viewer()
    constraints: tuple[Constraint, ...] = ()
    standings: tuple[EntryStanding, ...] = (EntryStanding.LISTED,)
    words: str = ""
    """A need in natural language; empty selects whatever it says."""
    keys: tuple[int, ...] | None = None
    """Only entries of these keys, which another index found; ``None`` for any."""


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
"""What lists can be ordered by, and the columns."""
