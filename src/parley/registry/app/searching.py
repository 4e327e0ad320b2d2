"""``POST /search``, ``POST /explore`` and ``GET /agents`` (ARD §7), strict in what they accept; one
entry with all that a viewer may know of it; and the page for people.

What the page shows of entries was written by others: it is bounded and escaped, without links to
their places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.types import Scope

from parley.model.errors import InvalidParamsError
from parley.registry.app.routes import Operation, RestAnswer, RestRequest, ref
from parley.registry.catalog.entries import (
    MAX_URN,
    REGISTRY,
    AirUrn,
    CatalogEntry,
    CatalogStruct,
    InvalidUrn,
)
from parley.registry.catalog.searching import (
    MAX_FACETS,
    MAX_OWN_TOKEN,
    MAX_PAGE,
    MAX_QUERY_TEXT,
    ExploreRequest,
    Facet,
    FacetRequest,
    FederationMode,
    ListRequest,
    QueryModel,
    RegistryReferral,
    SearchRequest,
)
from parley.registry.federation.federated import Federated
from parley.registry.federation.upstream import Hops, hops_of
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.selections import Viewer
from parley.registry.publishing.callers import NotFoundError
from parley.registry.records import Authority, CardVersion, EntryStanding, IndexedEntry, Trust
from parley.registry.search.searcher import Searcher, answered
from parley.registry.served.catalog import CatalogItem, manifest_of

LIST_AGE = 60
"""How long callers may keep a list, in seconds."""

MAX_EXPRESSION = 4_096


Entry = Annotated[dict[str, Any], Meta(extra_json_schema=ref("CatalogEntry"))]
"""An entry as it was published. Its member ``registry`` has what this registry found out."""

Result = Annotated[
    dict[str, Any],
    Meta(
        extra_json_schema=ref("CatalogEntry")
        | {
            "required": ["score", "source"],
            "properties": {
                "score": {"type": "integer", "minimum": 0, "maximum": 100},
                "source": {"type": "string", "description": "The registry that indexed the entry."},
            },
        }
    ),
]


class FoundEntries(CatalogStruct, frozen=True, kw_only=True):
    """The answer to a search: entries with their scores, other registries, the next page."""

    results: list[Result]
    referrals: tuple[RegistryReferral, ...] = ()
    page_token: str = ""


class CountedFields(CatalogStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is counted."""

    facets: Annotated[
        tuple[FacetRequest, ...], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_FACETS})
    ]


class Exploration(CatalogStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /explore``: the fields whose values are counted, of the entries of a query."""

    query: QueryModel = QueryModel()
    result_type: CountedFields


class FacetCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to an exploration."""

    result_type: Literal["facets"] = "facets"
    facets: Mapping[str, Facet]


class EntryPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A page of a list, and how many entries it has in all."""

    items: list[Entry]
    total: int
    page_token: str = ""


class SearchOperations:
    """The operations that find entries. ``source`` is what results of this registry have as it."""

    def __init__(self, federated: Federated, searcher: Searcher, *, source: str) -> None:
        self._federated = federated
        self._searcher = searcher
        self._source = source

    async def search(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /search``."""
        asked = request.read(SearchRequest, "the search")
        _bounded("pageToken", asked.page_token, MAX_OWN_TOKEN)
        hops = hops_of(request.headers)
        return RestAnswer(body=await self.found(asked, request.viewer, request.base, hops))

    async def found(
        self, asked: SearchRequest, viewer: Viewer, base: str, hops: Hops | None = None
    ) -> FoundEntries:
        """Return the answer to a search. Raises ``InvalidParamsError``."""
        response = await self._federated.search(asked, viewer, hops)
        results = [
            {
                **each.entry,
                "score": each.score,
                "source": f"{base}/" if each.source == self._source else each.source,
            }
            for each in response.results
        ]
        return FoundEntries(
            results=results, referrals=response.referrals, page_token=response.page_token
        )

    async def explore(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /explore``."""
        given = request.read(Exploration, "the exploration")
        asked = ExploreRequest(query=given.query, facets=given.result_type.facets)
        return RestAnswer(
            body=FacetCounts(facets=await self._searcher.explore(asked, request.viewer))
        )

    async def browse(self, request: RestRequest) -> RestAnswer:
        """Answer ``GET /agents``."""
        asked = ListRequest(
            filter=_bounded("filter", request.query.get("filter", ""), MAX_EXPRESSION),
            order_by=_bounded("orderBy", request.query.get("orderBy", ""), MAX_EXPRESSION),
            page_size=request.number("pageSize", 20, most=MAX_PAGE),
            page_token=_bounded("pageToken", request.query.get("pageToken", ""), MAX_OWN_TOKEN),
        )
        return RestAnswer(body=await self.listed(asked, request.viewer), max_age=LIST_AGE)

    async def listed(self, asked: ListRequest, viewer: Viewer) -> EntryPage:
        """Return a list. Raises ``InvalidParamsError``."""
        found = await self._searcher.browse(asked, viewer)
        return EntryPage(
            items=[*map(dict, found.items)], total=found.total, page_token=found.page_token
        )

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The rows of the table."""
        return (
            Operation(
                name="searchAgents",
                method="POST",
                path="/search",
                handler=self.search,
                summary="Search for a need",
                description="Entries that meet a need in words, the best first (ARD §7.2). The "
                "score says how well an entry matches, and nothing about trust.",
                request=SearchRequest,
                response=FoundEntries,
            ),
            Operation(
                name="exploreRegistry",
                method="POST",
                path="/explore",
                handler=self.explore,
                summary="Count the values of fields",
                description="The values of fields over all entries that a search with the same "
                "query matches, with how many have them (ARD §7.3). It asks no other registry.",
                request=Exploration,
                response=FacetCounts,
            ),
            Operation(
                name="listAgents",
                method="GET",
                path="/agents",
                handler=self.browse,
                summary="List entries",
                description="Entries in an order, without ranking (ARD §7.4).",
                parameters={
                    "filter": {
                        "type": "string",
                        "maxLength": MAX_EXPRESSION,
                        "description": "An expression, such as type = 'application/a2a-agent-card"
                        "+json' AND tags = 'finance'",
                    },
                    "orderBy": {
                        "type": "string",
                        "maxLength": MAX_EXPRESSION,
                        "description": "A field and a direction, such as updatedAt DESC",
                    },
                    "pageSize": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": MAX_PAGE,
                        "default": 20,
                    },
                    "pageToken": {"type": "string", "maxLength": MAX_OWN_TOKEN},
                },
                response=EntryPage,
                responses={304: "Nothing changed since the ETag of If-None-Match."},
            ),
        )


def _bounded(name: str, text: str, most: int) -> str:
    if len(text) > most:
        raise InvalidParamsError(f"{name} has at most {most} characters")
    return text


# ``GET /agents/{identifier}``: all that a viewer may know of one entry.

ENTRY_AGE = 30

VERSIONS = 20
"""How many versions of a card are shown, the newest first."""


class EntryOperations:
    """The knowledge of one entry."""

    def __init__(self, index: RegistryIndex) -> None:
        self._index = index

    async def show(self, request: RestRequest) -> RestAnswer:
        """Answer ``GET /agents/{identifier}``."""
        identifier = identifier_of(request)
        viewer, owner = request.viewer, request.caller.owner if request.caller.authenticated else ""
        listed = await self._index.entry(identifier, viewer)
        own: list[IndexedEntry] = []
        if viewer.sees_all or owner:
            every = await self._index.entries_of(identifier)
            own = [each for each in every if viewer.sees_all or each.owner == owner]
        shown = listed or (own[0] if own else None)
        if shown is None:
            raise not_found(identifier)
        if request.path["identifier"] not in (identifier, shown.entry.get("identifier")):
            raise not_found(request.path["identifier"])
        details = described(shown, insider=shown in own)
        # Versions are of the listed entry, or of the strongest.
        if shown == listed:
            versions = await self._index.versions(identifier, VERSIONS)
            details.versions = [_version(each) for each in versions]
        details.entries = [described(each, insider=True, document=answered(each)) for each in own]
        entry = answered(shown)
        known = {**entry["registry"], "details": details}
        return RestAnswer(body={**entry, "registry": known}, max_age=ENTRY_AGE)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The rows of the table."""
        return (
            Operation(
                name="showAgent",
                method="GET",
                path="/agents/{identifier}",
                handler=self.show,
                summary="Show one entry",
                description="The entry itself (ARD §5.3.4). `registry.details` has its card, the "
                "versions of that, and what was measured. Its owner and operators see the state of "
                "it from every source, with the reasons.",
                path_parameters={"identifier": IDENTIFIER},
                response=KnownEntry,
                responses={
                    304: "Nothing changed since the ETag of If-None-Match.",
                    404: "There is no such entry, or it is not for this caller.",
                },
            ),
        )


IDENTIFIER = {
    "type": "string",
    "maxLength": MAX_URN,
    "description": "urn:air:<publisher>:<namespace>:<name>",
    "example": "urn:air:agent.localhost:agent:currency",
}


def identifier_of(request: RestRequest) -> str:
    """Return the identifier in a path, in its one form. Raises ``InvalidParamsError``."""
    try:
        return str(AirUrn.parse(request.path["identifier"]))
    except InvalidUrn as error:
        raise InvalidParamsError(str(error)) from None


def not_found(identifier: str) -> NotFoundError:
    """Return the error for an entry that is missing or not for the caller: both look the same."""
    return NotFoundError(f"there is no entry {identifier[:MAX_URN]} for you here")


Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class KnownHealth(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What was measured of an agent."""

    health: str
    liveness: str
    probes: int
    availability: float | None = None
    error_rate: float | None = None
    latency_p50: float | None = None
    latency_p95: float | None = None
    probed_at: Moment | None = None
    last_beat: Moment | None = None
    reason: str = ""
    beat: Mapping[str, str] = {}


class KnownVersion(msgspec.Struct, kw_only=True, rename="camel"):
    """A version of a card, with the difference to the one before (JSON Patch)."""

    digest: str
    version: str
    seen_at: Moment
    difference: list[dict[str, Any]]


class EntryDetails(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What is known of an entry. Its owner and operators see its standing with the reason, and the
    entries of all sources.
    """

    entry: Mapping[str, Any] = {}
    publisher: str
    authority: Authority
    trust: Trust
    revision: int
    created_at: Moment
    updated_at: Moment
    health: KnownHealth
    trust_reason: str = ""
    marks: tuple[str, ...] = ()
    card_digest: str = ""
    card: Mapping[str, Any] = {}
    versions: list[KnownVersion] = []
    key: int | None = None
    standing: EntryStanding | None = None
    reason: str | None = None
    source: str | None = None
    owner: str | None = None
    audience: list[str] | None = None
    seen_at: Moment | None = None
    entries: list[EntryDetails] = []


class KnownMember(msgspec.Struct):
    """The member ``registry`` of an entry."""

    details: EntryDetails


class KnownEntry(CatalogEntry, frozen=True, kw_only=True):
    """An entry, and what this registry knows of it."""

    registry: KnownMember


def described(
    entry: IndexedEntry, *, insider: bool, document: Mapping[str, Any] | None = None
) -> EntryDetails:
    """Return what is known of an entry; an ``insider`` is its owner, or an operator."""
    observed = entry.observed
    found = EntryDetails(
        entry=document or {},
        publisher=entry.publisher,
        authority=entry.authority,
        trust=entry.trust,
        revision=entry.revision,
        created_at=moment(entry.created_at),
        updated_at=moment(entry.updated_at),
        health=KnownHealth(
            health=observed.health.value,
            liveness=observed.liveness.value,
            probes=observed.probes,
            availability=observed.availability,
            error_rate=observed.error_rate,
            latency_p50=observed.latency_p50,
            latency_p95=observed.latency_p95,
            probed_at=None if observed.probed_at is None else moment(observed.probed_at),
            last_beat=None if observed.last_beat is None else moment(observed.last_beat),
            reason=observed.reason if insider else "",
            beat=observed.beat_details if insider else {},
        ),
        trust_reason=entry.trust_reason,
        marks=entry.marks,
        card_digest=entry.card_digest,
        card=_json(entry.card),
    )
    if insider:
        found.key, found.standing, found.reason = entry.key, entry.standing, entry.reason
        found.source, found.seen_at = entry.source, moment(entry.seen_at)
        found.owner = entry.owner.replace("\x1f", " ")
        found.audience = [each.replace("\x1f", " ") for each in entry.audience]
    return found


def moment(ms: int) -> str:
    """Return a time as text (ISO 8601)."""
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _version(version: CardVersion) -> KnownVersion:
    return KnownVersion(
        digest=version.digest,
        version=version.version,
        seen_at=moment(version.seen_at),
        difference=[dict(each) for each in version.difference],
    )


def _json(raw: bytes | None) -> Mapping[str, Any]:
    """Return a card as JSON values; it was read before it was stored."""
    try:
        found = msgspec.json.decode(raw or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# The page of a registry for people, and its own entry for catalogs.

SHOWN = 20
MAX_SHOWN_TEXT = 400

_STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#1c2127, #e3e7ec);
  --quiet: light-dark(#5a6470, #98a2ae); --paper: light-dark(#ffffff, #14171a);
  --panel: light-dark(#f6f7f9, #1b1f24); --line: light-dark(#dce1e7, #30373f);
  --link: light-dark(#0b57b7, #82b6ff); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
.page { max-width: 52rem; margin: 0 auto; padding: 2rem 1.25rem 5rem; }
h1 { margin: 0 0 .5rem; font-size: 1.9rem; line-height: 1.2; }
h2 { margin: 0; font-size: 1.05rem; }
p, h1, h2, code { overflow-wrap: anywhere; }
p { margin: .3rem 0; }
a { color: var(--link); }
code { font-family: ui-monospace, Menlo, monospace; font-size: .86rem; }
.quiet { color: var(--quiet); font-size: .9rem; }
form { display: flex; gap: .5rem; margin: 1.25rem 0; }
input { flex: 1; min-width: 0; }
input, button { padding: .45rem .7rem; border: 1px solid var(--line); border-radius: 6px;
  background: var(--panel); color: inherit; font: inherit; }
ol { margin: 0; padding: 0; list-style: none; }
li { margin: .75rem 0; padding: .9rem 1rem; background: var(--panel); border: 1px solid var(--line);
  border-radius: 8px; }
"""


class RegistryPage:
    """The page at the root: what is listed, and a search."""

    def __init__(self, name: str, searching: SearchOperations) -> None:
        self._name = name
        self._searching = searching

    async def show(self, request: RestRequest) -> RestAnswer:
        """Answer ``GET /``."""
        words = request.query.get("q", "").strip()
        if len(words) > MAX_QUERY_TEXT:
            raise InvalidParamsError(f"q has at most {MAX_QUERY_TEXT} characters")
        if words:
            asked = SearchRequest(
                query=QueryModel(text=words), federation=FederationMode.NONE, page_size=SHOWN
            )
            found = await self._searching.found(asked, request.viewer, request.base)
            entries = found.results
            said = f"{len(entries)} for {words!r}, the best first" if entries else "nothing found"
        else:
            listed = await self._searching.listed(ListRequest(page_size=SHOWN), request.viewer)
            entries, total = listed.items, listed.total
            said = f"{total} entr{'y' if total == 1 else 'ies'}" if total else "no entries yet"
        page = _page(self._name, words, said, entries)
        return RestAnswer(body=page.encode(), media_type="text/html; charset=utf-8")

    @property
    def operation(self) -> Operation:
        """The row of the table."""
        return Operation(
            name="showPage",
            method="GET",
            path="/",
            handler=self.show,
            summary="The page for people",
            parameters={"q": {"type": "string", "maxLength": MAX_QUERY_TEXT}},
            is_documented=False,
        )


def _page(name: str, words: str, said: str, entries: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(_item(each) for each in entries)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)}</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body><div class="page">
<h1>{escape(name)}</h1>
<p class="quiet">A registry of agents: <a href="openapi.json">its interface</a>,
<a href="a2a/.well-known/agent-card.json">its agent</a>.</p>
<form method="get" role="search"><input name="q" aria-label="What do you need?"
placeholder="What do you need?" value="{escape(words)}" maxlength="{MAX_QUERY_TEXT}">
<button>Search</button></form>
<p class="quiet">{escape(said)}</p>
<ol>
{listed}
</ol>
</div></body></html>
"""


def _item(entry: Mapping[str, Any]) -> str:
    known = entry.get("registry", {})
    facts = [
        str(entry.get("type", "")),
        *(f"{known[each]}" for each in ("trust", "health") if each in known),
    ]
    if "score" in entry:
        facts.insert(0, f"score {entry['score']}")
    identifier = str(entry.get("identifier", ""))
    return (
        f"<li><h2>{_shown(entry.get('displayName'))}</h2>"
        f"<p>{_shown(entry.get('description'))}</p>"
        f'<p class="quiet">{_shown(" · ".join(facts))}</p>'
        f'<p><a href="agents/{escape(identifier)}"><code>{escape(identifier)}</code></a></p></li>'
    )


def _shown(text: Any) -> str:
    """Return a text of others, bounded and escaped."""
    given = text if isinstance(text, str) else ""
    line = "".join(char if char.isprintable() else " " for char in given)
    return escape(line if len(line) <= MAX_SHOWN_TEXT else f"{line[:MAX_SHOWN_TEXT]}…")


class RegistryItem(CatalogItem, frozen=True):
    """The entry of the registry itself, in its own catalog."""

    name: str = ""

    def entry(self, scope: Scope, publisher: str) -> CatalogEntry:
        """Return the entry, with the address that the caller can reach. Raises ``BadAddress``."""
        return CatalogEntry(
            identifier=self.identifier,
            display_name=self.name,
            type=REGISTRY,
            url=self.advertised.address(scope).rstrip("/") + "/",
            description="Finds agents by what they can do.",
            tags=("registry", "search", "discovery"),
            representative_queries=(
                "find me an agent that converts currencies",
                "which agents can book a flight?",
            ),
            trust_manifest=manifest_of(self.identifier, publisher),
            more={"mediaType": REGISTRY},
        )
