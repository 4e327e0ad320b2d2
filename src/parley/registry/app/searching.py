"""``POST /search``, ``POST /explore`` and ``GET /agents`` (ARD §7), with strict input checks; one
entry with all that a viewer may see; the web page, and the A2A agent.

The texts of entries come from strangers: the page shows them bounded and escaped, without links to
their addresses. The agent answers a need in words with catalog entries (ARD §5.3.6). Registration
over a socket needs the same permissions as publishing over REST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from html import escape
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta
from starlette.types import Scope

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.engine.agent_options import Execution
from parley.model.errors import InvalidParamsError, PermissionDeniedError
from parley.model.parts import Part
from parley.model.service import Caller
from parley.registry.app.routes import RestAnswer, RestRequest, operation, viewer_of
from parley.registry.catalog.entries import (
    MAX_URN,
    REGISTRY,
    AirUrn,
    CatalogEntry,
    CatalogStruct,
    InvalidUrn,
    one_line,
)
from parley.registry.catalog.searching import (
    ENTRY_SCHEMA,
    MAX_FACETS,
    MAX_OWN_TOKEN,
    MAX_PAGE,
    MAX_QUERY_TEXT,
    EntryPage,
    ExploreRequest,
    Facet,
    FacetRequest,
    FederationMode,
    ListRequest,
    QueryModel,
    RegistryReferral,
    SearchRequest,
    in_span,
)
from parley.registry.federation.federated import Federated
from parley.registry.federation.upstream import Hops, hops_of
from parley.registry.health.prober import Heartbeats
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.publishing.callers import NotFoundError
from parley.registry.publishing.pushing import EntryPublishing, PublishOptions
from parley.registry.records import (
    Authority,
    CardVersion,
    EntryStanding,
    IndexedEntry,
    Trust,
    Viewer,
)
from parley.registry.search.searcher import Searcher, answered, moment
from parley.registry.served.catalog import CatalogItem, manifest_of
from parley.registry.served.registration import outcome_of
from parley.server.dispatch import trace_of

LIST_AGE = 60
"""The time for which callers may cache a list, in seconds."""

MAX_EXPRESSION = 4_096


Result = Annotated[
    dict[str, Any],
    Meta(
        extra_json_schema=ENTRY_SCHEMA
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
    """The response to a search: entries with their scores, other registries, the next page."""

    results: list[Result]
    referrals: tuple[RegistryReferral, ...] = ()
    page_token: str = ""


class CountedFields(CatalogStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields whose values are counted."""

    facets: Annotated[
        tuple[FacetRequest, ...], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_FACETS})
    ]


class Exploration(CatalogStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /explore``: counts of field values over the entries that match a query."""

    query: QueryModel = QueryModel()
    result_type: CountedFields


class FacetCounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The response to an exploration."""

    result_type: Literal["facets"] = "facets"
    facets: Mapping[str, Facet]


class SearchOperations:
    """The operations that find entries. ``source`` is this registry's name in its results."""

    def __init__(self, federated: Federated, searcher: Searcher, *, source: str) -> None:
        self._federated = federated
        self.searcher = searcher
        self._source = source

    @operation("POST", "/search", what="the search")
    async def search_agents(self, request: RestRequest, body: SearchRequest) -> FoundEntries:
        """Search for a need.

        Entries that meet a need in words, the best first (ARD §7.2). The score says how well an
        entry matches, and nothing about trust.
        """
        _bounded("pageToken", body.page_token, MAX_OWN_TOKEN)
        search = self.found(body, request.viewer, request.base, hops_of(request.headers))
        return await in_span("server", body, search, trace_of(request.headers))

    async def found(
        self, asked: SearchRequest, viewer: Viewer, base: str, hops: Hops | None = None
    ) -> FoundEntries:
        """Return the response to a search. Raises ``InvalidParamsError``."""
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

    @operation("POST", "/explore", what="the exploration")
    async def explore_registry(self, request: RestRequest, body: Exploration) -> FacetCounts:
        """Count the values of fields.

        The field values of all entries that match the query, each with the number of entries that
        have it (ARD §7.3). No other registry is asked.
        """
        asked = ExploreRequest(query=body.query, facets=body.result_type.facets)
        return FacetCounts(facets=await self.searcher.explore(asked, request.viewer))

    @operation(
        "GET",
        "/agents",
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
            "pageSize": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 20},
            "pageToken": {"type": "string", "maxLength": MAX_OWN_TOKEN},
        },
        responses={304: "Nothing has changed since the ETag of If-None-Match."},
        max_age=LIST_AGE,
    )
    async def list_agents(self, request: RestRequest) -> EntryPage:
        """List entries.

        Entries in a given order, without ranking (ARD §7.4).
        """
        asked = ListRequest(
            filter=_bounded("filter", request.query.get("filter", ""), MAX_EXPRESSION),
            order_by=_bounded("orderBy", request.query.get("orderBy", ""), MAX_EXPRESSION),
            page_size=request.number("pageSize", 20, most=MAX_PAGE),
            page_token=_bounded("pageToken", request.query.get("pageToken", ""), MAX_OWN_TOKEN),
        )
        return await self.searcher.browse(asked, request.viewer)


def _bounded(name: str, text: str, most: int) -> str:
    if len(text) > most:
        raise InvalidParamsError(f"{name} has at most {most} characters")
    return text


# ``GET /agents/{identifier}``: everything that a viewer may see of one entry.

ENTRY_AGE = 30

VERSIONS = 20
"""The number of versions of a card shown, the newest first."""


class EntryOperations:
    """The operation that shows a single entry."""

    def __init__(self, index: RegistryIndex) -> None:
        self._index = index

    @operation(
        "GET",
        "/agents/{identifier}",
        path_parameters={
            "identifier": {
                "type": "string",
                "maxLength": MAX_URN,
                "description": "urn:air:<publisher>:<namespace>:<name>",
                "example": "urn:air:agent.localhost:agent:currency",
            }
        },
        responses={
            304: "Nothing has changed since the ETag of If-None-Match.",
            404: "There is no such entry, or this caller may not see it.",
        },
        max_age=ENTRY_AGE,
    )
    async def show_agent(self, request: RestRequest) -> KnownEntry:
        """Show one entry.

        The entry itself (ARD §5.3.4). `registry.details` has its card, earlier versions of the
        card, and measurements. Its owner and operators see the entry's state from every source,
        with the reasons.
        """
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
        # The versions belong to the listed entry, or else to the entry of the strongest source.
        if shown == listed:
            versions = await self._index.versions(identifier, VERSIONS)
            details.versions = [_version(each) for each in versions]
        details.entries = [described(each, insider=True, document=answered(each)) for each in own]
        entry = answered(shown)
        known = {**entry["registry"], "details": details}
        return cast("KnownEntry", {**entry, "registry": known})


def identifier_of(request: RestRequest) -> str:
    """Return the identifier in a path, in canonical form. Raises ``InvalidParamsError``."""
    try:
        return str(AirUrn.parse(request.path["identifier"]))
    except InvalidUrn as error:
        raise InvalidParamsError(str(error)) from None


def not_found(identifier: str) -> NotFoundError:
    """Return the error for a missing or hidden entry: the caller cannot tell the two apart."""
    return NotFoundError(f"there is no entry {identifier[:MAX_URN]} that you may see")


MEASURED = ("probes", "availability", "error_rate", "latency_p50", "latency_p95")
"""The measurements that are shown unchanged."""

Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class KnownHealth(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The measured health of an agent."""

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
    """A version of a card, with the difference to the previous version (JSON Patch)."""

    digest: str
    version: str
    seen_at: Moment
    difference: list[dict[str, Any]]


class EntryDetails(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The details of an entry. Its owner and operators also see its standing with the reason, and
    the entries of all sources.
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
    """An entry, with this registry's information about it."""

    registry: KnownMember


def described(
    entry: IndexedEntry, *, insider: bool, document: Mapping[str, Any] | None = None
) -> EntryDetails:
    """Return the details of an entry; an ``insider`` is its owner or an operator."""
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
            **{name: getattr(observed, name) for name in MEASURED},
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


def _version(version: CardVersion) -> KnownVersion:
    return KnownVersion(
        digest=version.digest,
        version=version.version,
        seen_at=moment(version.seen_at),
        difference=[dict(each) for each in version.difference],
    )


def _json(raw: bytes | None) -> Mapping[str, Any]:
    """Return a stored card as JSON values; it was validated before it was stored."""
    try:
        found = msgspec.json.decode(raw or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# The web page of a registry, and the registry's own entry for catalogs.

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
    """The web page at the root: the listed entries, and a search."""

    def __init__(self, name: str, searching: SearchOperations) -> None:
        self._name = name
        self._searching = searching

    @operation(
        "GET",
        "/",
        parameters={"q": {"type": "string", "maxLength": MAX_QUERY_TEXT}},
        is_documented=False,
    )
    async def show_page(self, request: RestRequest) -> RestAnswer:
        """Return the web page."""
        words = request.query.get("q", "").strip()
        if len(words) > MAX_QUERY_TEXT:
            raise InvalidParamsError(f"q has at most {MAX_QUERY_TEXT} characters")
        if words:
            asked = SearchRequest(
                query=QueryModel(text=words), federation=FederationMode.NONE, page_size=SHOWN
            )
            found = await self._searching.found(asked, request.viewer, request.base)
            entries: Sequence[Mapping[str, Any]] = found.results
            said = f"{len(entries)} for {words!r}, the best first" if entries else "nothing found"
        else:
            asked_for = ListRequest(page_size=SHOWN)
            listed = await self._searching.searcher.browse(asked_for, request.viewer)
            entries, total = listed.items, listed.total
            said = f"{total} entr{'y' if total == 1 else 'ies'}" if total else "no entries yet"
        page = _page(self._name, words, said, entries)
        return RestAnswer(body=page.encode(), media_type="text/html; charset=utf-8")


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
    """Return an untrusted text, bounded and escaped."""
    return escape(one_line(text, MAX_SHOWN_TEXT)) if isinstance(text, str) else ""


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


# The registry as an A2A agent: a need in words is answered with catalog entries (ARD §5.3.6).

PATH = "/a2a"
KEY = "find-agents"
FOUND = 5
SECONDS = 15.0
"""How long a search may take before its answer becomes a task."""


class _Asked(SearchRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data part that a caller may send with the words of the need, or instead of them."""

    query: QueryModel = QueryModel()
    page_size: int = FOUND


def finding_agent(
    name: str,
    searching: SearchOperations,
    running: Callable[[Agent], AbstractAsyncContextManager[Any]],
) -> Agent:
    """Return the agent. ``running`` is a context that is entered at its start and left
    at its stop.
    """
    agent = Agent(
        name,
        description="Finds agents by what they can do. Say what you need; the answer has a data "
        "part for each agent found, an entry of a catalog with the address of its card.",
        version="1.0.0",
        key=KEY,
        input_modes=("text/plain", "application/json"),
        output_modes=("application/json", "text/plain"),
        execution=Execution(direct_reply_timeout=SECONDS),
        lifespan=running,
    )

    @agent.skill(
        id=KEY,
        name="Find agents",
        description="Finds agents by what they can do: say what you need. A data part may have "
        "the filter of a search by REST.",
        tags=["registry", "discovery", "search"],
        examples=["find me an agent that converts currencies", "which agents can book a flight?"],
    )
    async def find_agents(turn: Turn) -> list[Part]:
        asked = _asked(turn)
        base = turn.base_url.removesuffix(PATH)
        try:
            found = await searching.found(asked, viewer_of(turn.caller), base)
        except InvalidParamsError as error:
            turn.reject(error.message)
        results = found.results
        said = {0: "No agent matches.", 1: "One agent matches."}
        words = said.get(len(results), f"{len(results)} agents match, the best first.")
        parts = [Part(text=words)]
        parts += [Part(data=each, media_type="application/json") for each in results]
        more = msgspec.to_builtins(found)
        del more["results"]
        if more:
            parts.append(Part(data=more, media_type="application/json"))
        return parts

    return agent


def _asked(turn: Turn) -> SearchRequest:
    """Return the search that a message requests."""
    given = _Asked()
    for part in turn.parts:
        if part.has_data:
            try:
                given = msgspec.convert(part.data, _Asked)
            except msgspec.ValidationError as error:
                turn.reject(f"the data part is not a search: {error}")
    words = " ".join(each for each in (turn.text.strip(), given.query.text.strip()) if each)
    if not words:
        turn.reject("say what you need, such as: find me an agent that converts currencies")
    if not 1 <= given.page_size <= MAX_PAGE:
        turn.reject(f"pageSize must be between 1 and {MAX_PAGE}")
    return msgspec.structs.replace(given, query=msgspec.structs.replace(given.query, text=words))


# Registration over the registry's sockets, with the same permissions as publishing over REST.


class IndexRegistrar:
    """Publishes registering agents in the index of this registry (``AgentRegistrar``)."""

    def __init__(self, publishing: EntryPublishing, heartbeats: Heartbeats) -> None:
        self._publishing = publishing
        self._heartbeats = heartbeats

    def identifier_of(self, agent_id: str, given: str) -> str:
        """Return the identifier that the agent supplies. Raises ``InvalidParamsError``."""
        if not given:
            raise InvalidParamsError(
                "an agent is listed under an identifier of a domain that its owner has proved: "
                "give "
                '"identifier": "urn:air:<your domain>:agent:<name>" next to "card"'
            )
        return given

    async def publish(
        self, entry: Mapping[str, Any], audience: Any, caller: Caller, address: str
    ) -> Mapping[str, Any]:
        """Publish an entry of the caller."""
        if audience is not None and not isinstance(audience, list):
            raise InvalidParamsError("audience must be a list, such as ['public']")
        options = PublishOptions(audience=None if audience is None else tuple(audience))
        catalog = {"specVersion": "1.0", "entries": [entry]}
        report = await self._publishing.publish(caller, catalog, options, address=address)
        return outcome_of(msgspec.to_builtins(report))

    async def withdraw(self, identifier: str, caller: Caller, address: str) -> None:
        """Withdraw an entry of the caller."""
        await self._publishing.withdraw(caller, identifier, address=address)

    async def beat(self, identifiers: Sequence[str], caller: Caller) -> Mapping[str, Any]:
        """Record that agents of the caller are alive."""
        answer = await self._heartbeats.beat(caller, identifiers)
        if not answer.alive:
            raise PermissionDeniedError("this caller has published none of these: register first")
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in msgspec.to_builtins(answer).items()
        }
