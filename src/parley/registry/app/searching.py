"""``POST /search``, ``POST /explore`` and ``GET /agents`` (ARD §7), strict in what they accept; one
entry with all that a viewer may know of it; and the page for people.

What the page shows of entries was written by others: it is bounded and escaped, without links to
their places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import msgspec
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
    MAX_FILTERS,
    MAX_PAGE,
    MAX_QUERY_TEXT,
    ExploreRequest,
    FacetRequest,
    FederationMode,
    ListRequest,
    QueryModel,
    SearchRequest,
)
from parley.registry.federation.federated import Federated
from parley.registry.federation.upstream import Hops, hops_of
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.selections import Viewer
from parley.registry.publishing.callers import NotFoundError
from parley.registry.records import CardVersion, IndexedEntry, Observed
from parley.registry.search.filters import read_filter
from parley.registry.search.searcher import Searcher, answered
from parley.registry.served.catalog import CatalogItem, manifest_of

LIST_AGE = 60
"""How long callers may keep a list, in seconds."""

MAX_TOKEN = 2_048
MAX_EXPRESSION = 4_096


class _SearchQuery(QueryModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str
    filter: dict[str, Any] = {}


class _Search(SearchRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: _SearchQuery


class _FacetQuery(QueryModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    filter: dict[str, Any] = {}


class _Facet(FacetRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _ResultType(CatalogStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    facets: tuple[_Facet, ...]


class _Explore(CatalogStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: _FacetQuery = _FacetQuery()
    result_type: _ResultType


class SearchOperations:
    """The operations that find entries. ``source`` is what results of this registry have as it."""

    def __init__(self, federated: Federated, searcher: Searcher, *, source: str) -> None:
        self._federated = federated
        self._searcher = searcher
        self._source = source

    async def search(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /search``."""
        given = request.read(_Search, "the search")
        asked = msgspec.structs.replace(given, query=_query(given.query))
        _bounded("pageToken", given.page_token, MAX_TOKEN)
        hops = hops_of(request.headers)
        return RestAnswer(body=await self.found(asked, request.viewer, request.base, hops))

    async def found(
        self, asked: SearchRequest, viewer: Viewer, base: str, hops: Hops | None = None
    ) -> dict[str, Any]:
        """Return the answer to a search, as JSON values. Raises ``InvalidParamsError``."""
        response = await self._federated.search(asked, viewer, hops)
        results = [
            {
                **each.entry,
                "score": each.score,
                "source": f"{base}/" if each.source == self._source else each.source,
            }
            for each in response.results
        ]
        body: dict[str, Any] = {"results": results}
        if response.referrals:
            body["referrals"] = msgspec.to_builtins(response.referrals)
        if response.page_token:
            body["pageToken"] = response.page_token
        return body

    async def explore(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /explore``."""
        given = request.read(_Explore, "the exploration")
        facets = given.result_type.facets
        if len({each.field for each in facets}) < len(facets):
            raise InvalidParamsError("a field is named twice in resultType.facets")
        asked = ExploreRequest(query=_query(given.query), facets=facets)
        found = await self._searcher.explore(asked, request.viewer)
        counted = {
            field: {
                "buckets": [{"value": each.value, "count": each.count} for each in facet.buckets],
                "otherCount": facet.other_count,
            }
            for field, facet in found.items()
        }
        return RestAnswer(body={"resultType": "facets", "facets": counted})

    async def browse(self, request: RestRequest) -> RestAnswer:
        """Answer ``GET /agents``."""
        asked = ListRequest(
            filter=_bounded("filter", request.query.get("filter", ""), MAX_EXPRESSION),
            order_by=_bounded("orderBy", request.query.get("orderBy", ""), MAX_EXPRESSION),
            page_size=request.number("pageSize", 20, most=MAX_PAGE),
            page_token=_bounded("pageToken", request.query.get("pageToken", ""), MAX_TOKEN),
        )
        return RestAnswer(body=await self.listed(asked, request.viewer), max_age=LIST_AGE)

    async def listed(self, asked: ListRequest, viewer: Viewer) -> dict[str, Any]:
        """Return a list as JSON values. Raises ``InvalidParamsError``."""
        listed = await self._searcher.browse(asked, viewer)
        body: dict[str, Any] = {"items": list(listed.items), "total": listed.total}
        if listed.page_token:
            body["pageToken"] = listed.page_token
        return body

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
                request=ref("SearchRequest"),
                response=ref("SearchResponse"),
                schemas=SCHEMAS,
            ),
            Operation(
                name="exploreRegistry",
                method="POST",
                path="/explore",
                handler=self.explore,
                summary="Count the values of fields",
                description="The values of fields over all entries that a search with the same "
                "query matches, with how many have them (ARD §7.3). It asks no other registry.",
                request=ref("ExploreRequest"),
                response=ref("ExploreResponse"),
                schemas=SCHEMAS,
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
                    "pageToken": {"type": "string", "maxLength": MAX_TOKEN},
                },
                response=ref("ListResponse"),
                responses={304: "Nothing changed since the ETag of If-None-Match."},
                schemas=SCHEMAS,
            ),
        )


def _query(given: QueryModel) -> QueryModel:
    """Return a query with its filter as it is read from JSON, where a value may stand alone."""
    for path, values in given.filter.items():
        listed = values if isinstance(values, list) else [values]
        if not all(isinstance(each, str) for each in listed):
            raise InvalidParamsError(f"the values of the filter {path[:80]!r} are texts")
    return QueryModel(text=given.text, filter=read_filter(given.filter))


def _bounded(name: str, text: str, most: int) -> str:
    if len(text) > most:
        raise InvalidParamsError(f"{name} has at most {most} characters")
    return text


_FILTER = {
    "type": "object",
    "maxProperties": MAX_FILTERS,
    "description": "Field paths with their values: one of the values of each path must match.",
    "additionalProperties": {
        "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    },
}

_TEXT = {"type": "string", "maxLength": MAX_QUERY_TEXT}

SCHEMAS: Mapping[str, Any] = {
    "CatalogEntry": {
        "type": "object",
        "description": "An entry of a catalog (ARD §4.2), as it was published. The member "
        "`registry` is what this registry found out about it.",
        "required": ["identifier", "displayName", "type"],
        "properties": {
            "identifier": {
                "type": "string",
                "pattern": "^urn:air:[a-zA-Z0-9.-]+(:[a-zA-Z0-9._-]+)+$",
            },
            "displayName": {"type": "string"},
            "type": {"type": "string"},
            "url": {"type": "string"},
            "data": {"type": "object"},
            "description": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "capabilities": {"type": "array", "items": {"type": "string"}},
            "representativeQueries": {"type": "array", "items": {"type": "string"}},
            "version": {"type": "string"},
            "updatedAt": {"type": "string"},
            "metadata": {"type": "object"},
            "trustManifest": {"type": "object"},
            "registry": {"type": "object"},
        },
    },
    "QueryModel": {
        "type": "object",
        "properties": {"text": _TEXT, "filter": _FILTER},
        "additionalProperties": False,
    },
    "SearchRequest": {
        "type": "object",
        "required": ["query"],
        "properties": {
            "query": {
                "type": "object",
                "required": ["text"],
                "properties": {"text": {**_TEXT, "minLength": 1}, "filter": _FILTER},
                "additionalProperties": False,
            },
            "federation": {"type": "string", "enum": [*FederationMode], "default": "auto"},
            "pageSize": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 10},
            "pageToken": {"type": "string", "maxLength": MAX_TOKEN},
        },
        "additionalProperties": False,
    },
    "SearchResultItem": {
        "allOf": [{"$ref": "#/components/schemas/CatalogEntry"}],
        "type": "object",
        "required": ["score", "source"],
        "properties": {
            "score": {"type": "integer", "minimum": 0, "maximum": 100},
            "source": {"type": "string", "description": "The registry that indexed the entry."},
        },
    },
    "RegistryReferral": {
        "type": "object",
        "required": ["identifier", "displayName", "type", "url"],
        "properties": {
            "identifier": {"type": "string"},
            "displayName": {"type": "string"},
            "type": {"type": "string"},
            "url": {"type": "string"},
        },
    },
    "SearchResponse": {
        "type": "object",
        "required": ["results"],
        "properties": {
            "results": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/SearchResultItem"},
            },
            "referrals": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/RegistryReferral"},
            },
            "pageToken": {"type": "string"},
        },
        "additionalProperties": False,
    },
    "ExploreRequest": {
        "type": "object",
        "required": ["resultType"],
        "properties": {
            "query": {"$ref": "#/components/schemas/QueryModel"},
            "resultType": {
                "type": "object",
                "required": ["facets"],
                "properties": {
                    "facets": {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": MAX_FACETS,
                        "items": {
                            "type": "object",
                            "required": ["field"],
                            "properties": {
                                "field": {"type": "string", "minLength": 1},
                                "limit": {"type": "integer", "minimum": 1, "default": 20},
                                "minCount": {"type": "integer", "minimum": 1, "default": 1},
                            },
                            "additionalProperties": False,
                        },
                    }
                },
                "additionalProperties": False,
            },
        },
        "additionalProperties": False,
    },
    "ExploreResponse": {
        "type": "object",
        "required": ["resultType", "facets"],
        "properties": {
            "resultType": {"type": "string", "enum": ["facets"]},
            "facets": {
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "required": ["buckets"],
                    "properties": {
                        "buckets": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["value", "count"],
                                "properties": {
                                    "value": {"type": "string"},
                                    "count": {"type": "integer"},
                                },
                            },
                        },
                        "otherCount": {"type": "integer"},
                    },
                },
            },
        },
        "additionalProperties": False,
    },
    "ListResponse": {
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/CatalogEntry"}},
            "total": {"type": "integer"},
            "pageToken": {"type": "string"},
        },
    },
}
"""ARD's schemas, with bounds. Entries of others are answered as they are, so
their schema is no stricter than the index.
"""


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
        body = described(shown, insider=shown in own)
        # Versions are of the listed entry, or of the strongest.
        if shown == listed:
            versions = await self._index.versions(identifier, VERSIONS)
            body["versions"] = [_version(each) for each in versions]
        if own:
            body["entries"] = [described(each, insider=True) for each in own]
        return RestAnswer(body=body, max_age=ENTRY_AGE)

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
                description="An entry with its card, the versions of that, and what was measured. "
                "Its owner and operators see the state of it from every source, with the reasons.",
                path_parameters={"identifier": IDENTIFIER},
                response={"$ref": "#/components/schemas/KnownEntry"},
                responses={
                    304: "Nothing changed since the ETag of If-None-Match.",
                    404: "There is no such entry, or it is not for this caller.",
                },
                schemas={**SCHEMAS, **OWN_SCHEMAS},
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


def described(entry: IndexedEntry, *, insider: bool) -> dict[str, Any]:
    """Return what is known of an entry as JSON values.

    An ``insider`` (its owner, an operator) sees its standing with the reason, and its source.
    """
    found: dict[str, Any] = {
        "entry": answered(entry),
        "publisher": entry.publisher,
        "authority": entry.authority.value,
        "trust": entry.trust.value,
        "revision": entry.revision,
        "createdAt": moment(entry.created_at),
        "updatedAt": moment(entry.updated_at),
        "health": _health(entry.observed, insider=insider),
    }
    if entry.trust_reason:
        found["trustReason"] = entry.trust_reason
    if entry.marks:
        found["marks"] = list(entry.marks)
    if entry.card_digest:
        found["cardDigest"] = entry.card_digest
    if (card := _json(entry.card)) is not None:
        found["card"] = card
    if insider:
        found |= {
            "key": entry.key,
            "standing": entry.standing.value,
            "reason": entry.reason,
            "source": entry.source,
            "owner": entry.owner.replace("\x1f", " "),
            "audience": [each.replace("\x1f", " ") for each in entry.audience],
            "seenAt": moment(entry.seen_at),
        }
    return found


def moment(ms: int) -> str:
    """Return a time as text (ISO 8601)."""
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _health(observed: Observed, *, insider: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "health": observed.health.value,
        "liveness": observed.liveness.value,
        "probes": observed.probes,
    }
    measured = {
        "availability": observed.availability,
        "errorRate": observed.error_rate,
        "latencyP50": observed.latency_p50,
        "latencyP95": observed.latency_p95,
        "probedAt": None if observed.probed_at is None else moment(observed.probed_at),
        "lastBeat": None if observed.last_beat is None else moment(observed.last_beat),
    }
    found |= {name: value for name, value in measured.items() if value is not None}
    if insider and observed.reason:
        found["reason"] = observed.reason
    if insider and observed.beat_details:
        found["beat"] = dict(observed.beat_details)
    return found


def _version(version: CardVersion) -> dict[str, Any]:
    return {
        "digest": version.digest,
        "version": version.version,
        "seenAt": moment(version.seen_at),
        "difference": [dict(each) for each in version.difference],
    }


def _json(raw: bytes | None) -> Mapping[str, Any] | None:
    """Return a card as JSON values; it was read before it was stored."""
    if not raw:
        return None
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


OWN_SCHEMAS: Mapping[str, Any] = {
    "KnownEntry": {
        "type": "object",
        "required": ["entry", "publisher", "authority", "trust", "health"],
        "properties": {
            "entry": {"$ref": "#/components/schemas/CatalogEntry"},
            "publisher": {"type": "string"},
            "authority": {"type": "string", "enum": ["operator", "proved", "domain", "none"]},
            "trust": {"type": "string", "enum": ["unproved", "verified", "failed"]},
            "trustReason": {"type": "string"},
            "marks": {"type": "array", "items": {"type": "string"}},
            "card": {"type": "object"},
            "cardDigest": {"type": "string"},
            "revision": {"type": "integer"},
            "createdAt": {"type": "string", "format": "date-time"},
            "updatedAt": {"type": "string", "format": "date-time"},
            "health": {
                "type": "object",
                "required": ["health", "liveness", "probes"],
                "properties": {
                    "health": {"type": "string"},
                    "liveness": {"type": "string"},
                    "probes": {"type": "integer"},
                    "availability": {"type": "number"},
                    "errorRate": {"type": "number"},
                    "latencyP50": {"type": "number"},
                    "latencyP95": {"type": "number"},
                    "probedAt": {"type": "string", "format": "date-time"},
                    "lastBeat": {"type": "string", "format": "date-time"},
                    "reason": {"type": "string"},
                    "beat": {"type": "object"},
                },
            },
            "versions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "digest": {"type": "string"},
                        "version": {"type": "string"},
                        "seenAt": {"type": "string", "format": "date-time"},
                        "difference": {"type": "array", "items": {"type": "object"}},
                    },
                },
            },
            "key": {"type": "integer"},
            "standing": {"type": "string"},
            "reason": {"type": "string"},
            "source": {"type": "string"},
            "owner": {"type": "string"},
            "audience": {"type": "array", "items": {"type": "string"}},
            "seenAt": {"type": "string", "format": "date-time"},
            "entries": {"type": "array", "items": {"$ref": "#/components/schemas/KnownEntry"}},
        },
    }
}


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
            entries = found["results"]
            said = f"{len(entries)} for {words!r}, the best first" if entries else "nothing found"
        else:
            body = await self._searching.listed(ListRequest(page_size=SHOWN), request.viewer)
            entries = body["items"]
            total = body["total"]
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
