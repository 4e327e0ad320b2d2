"""``POST /search``, ``POST /explore`` and ``GET /agents`` (ARD §7), strict in what they accept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from parley.model.catalog.searching import (
    MAX_FACETS,
    MAX_FILTERS,
    MAX_PAGE,
    MAX_QUERY_TEXT,
    ExploreRequest,
    Facet,
    FacetRequest,
    FederationMode,
    ListRequest,
    ListResponse,
    QueryModel,
    SearchRequest,
    SearchResponse,
)
from parley.model.errors import InvalidParamsError
from parley.registry.app.operations import Operation, RestAnswer, RestRequest
from parley.registry.federation.hops import Hops, hops_of
from parley.registry.index.selections import Viewer
from parley.registry.search.filters import read_filter

LIST_AGE = 60
"""How long callers may keep a list, in seconds."""

MAX_TOKEN = 2_048
MAX_EXPRESSION = 4_096


class Searches(Protocol):
    """Answers searches, and asks other registries too."""

    async def search(
        self, request: SearchRequest, viewer: Viewer, hops: Hops | None = None
    ) -> SearchResponse:
        """Return a page of results. ``hops`` say how the search came from other registries."""
        ...


class Browses(Protocol):
    """Answers what is about the registry's own index alone."""

    async def explore(self, request: ExploreRequest, viewer: Viewer) -> Mapping[str, Facet]:
        """Return the values of fields with their counts."""
        ...

    async def browse(self, request: ListRequest, viewer: Viewer) -> ListResponse:
        """Return a page of entries in an order."""
        ...


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    pass


class _Query(_Strict, frozen=True, forbid_unknown_fields=True):
    text: str = ""
    filter: dict[str, Any] = {}


class _SearchQuery(_Strict, frozen=True, forbid_unknown_fields=True):
    text: str
    filter: dict[str, Any] = {}


class _Search(_Strict, frozen=True, forbid_unknown_fields=True, kw_only=True):
    query: _SearchQuery
    federation: FederationMode = FederationMode.AUTO
    page_size: int = 10
    page_token: str = ""


class _Facet(_Strict, frozen=True, forbid_unknown_fields=True, kw_only=True):
    field: str
    limit: int = 20
    min_count: int = 1


class _ResultType(_Strict, frozen=True, forbid_unknown_fields=True, kw_only=True):
    facets: list[_Facet]


class _Explore(_Strict, frozen=True, forbid_unknown_fields=True, kw_only=True):
    query: _Query = _Query()
    result_type: _ResultType


class SearchOperations:
    """The operations that find entries. ``source`` is what results of this registry have as it."""

    def __init__(self, searches: Searches, browses: Browses, *, source: str) -> None:
        self._searches = searches
        self._browses = browses
        self._source = source

    async def search(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /search``."""
        given = request.read(_Search, "the search")
        asked = SearchRequest(
            query=self._query(given.query.text, given.query.filter),
            federation=given.federation,
            page_size=given.page_size,
            page_token=_bounded("pageToken", given.page_token, MAX_TOKEN),
        )
        hops = hops_of(request.headers)
        return RestAnswer(body=await self.found(asked, request.viewer, request.base, hops))

    async def found(
        self, asked: SearchRequest, viewer: Viewer, base: str, hops: Hops | None = None
    ) -> dict[str, Any]:
        """Return the answer to a search, as JSON values. Raises ``InvalidParamsError``."""
        response = await self._searches.search(asked, viewer, hops)
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
        facets = tuple(
            FacetRequest(field=each.field, limit=each.limit, min_count=each.min_count)
            for each in given.result_type.facets
        )
        if len({each.field for each in facets}) < len(facets):
            raise InvalidParamsError("a field is named twice in resultType.facets")
        asked = ExploreRequest(
            query=self._query(given.query.text, given.query.filter), facets=facets
        )
        found = await self._browses.explore(asked, request.viewer)
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
        listed = await self._browses.browse(asked, viewer)
        body: dict[str, Any] = {"items": list(listed.items), "total": listed.total}
        if listed.page_token:
            body["pageToken"] = listed.page_token
        return body

    def _query(self, text: str, filter: dict[str, Any]) -> QueryModel:
        for path, values in filter.items():
            listed = values if isinstance(values, list) else [values]
            if not all(isinstance(each, str) for each in listed):
                raise InvalidParamsError(f"the values of the filter {path[:80]!r} are texts")
        return QueryModel(text=text, filter=read_filter(filter))

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
                request=_ref("SearchRequest"),
                response=_ref("SearchResponse"),
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
                request=_ref("ExploreRequest"),
                response=_ref("ExploreResponse"),
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
                response=_ref("ListResponse"),
                responses={304: "Nothing changed since the ETag of If-None-Match."},
                schemas=SCHEMAS,
            ),
        )


def _bounded(name: str, text: str, most: int) -> str:
    if len(text) > most:
        raise InvalidParamsError(f"{name} has at most {most} characters")
    return text


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


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
"""Those of ARD's OpenAPI document, with bounds. Entries of others are answered as they are, so
their schema is no stricter than what is indexed.
"""
