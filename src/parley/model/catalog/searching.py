"""Requests to a registry, and its answers (ARD §7)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from parley.model.catalog.entries import CatalogStruct

MAX_PAGE = 100
MAX_QUERY_TEXT = 2_000
MAX_FILTERS = 32
MAX_FACETS = 16


class FederationMode(StrEnum):
    """Who asks other registries (ARD §8)."""

    AUTO = "auto"
    REFERRALS = "referrals"
    NONE = "none"


class QueryModel(CatalogStruct, frozen=True, kw_only=True):
    """A need in words, and constraints by field path; both must hold (ARD §7.1).

    The values of one path are alternatives.
    """

    text: str = ""
    filter: Mapping[str, tuple[str, ...]] = {}


class SearchRequest(CatalogStruct, frozen=True, kw_only=True):
    """``POST /search``."""

    query: QueryModel
    federation: FederationMode = FederationMode.AUTO
    page_size: int = 10
    page_token: str = ""


class SearchResult(CatalogStruct, frozen=True, kw_only=True):
    """An entry with its relevance (0 to 100), and the registry that indexed it.

    The entry is JSON (``wire.catalog`` reads and writes it); relevance is no trust.
    """

    entry: Mapping[str, Any]
    score: int
    source: str


class RegistryReferral(CatalogStruct, frozen=True, kw_only=True):
    """Another registry that the client may ask."""

    identifier: str
    display_name: str
    type: str
    url: str


class SearchResponse(CatalogStruct, frozen=True, kw_only=True):
    """The answer to ``POST /search``."""

    results: tuple[SearchResult, ...] = ()
    referrals: tuple[RegistryReferral, ...] = ()
    page_token: str = ""


class FacetRequest(CatalogStruct, frozen=True, kw_only=True):
    """A field path whose values are counted."""

    field: str
    limit: int = 20
    min_count: int = 1


class ExploreRequest(CatalogStruct, frozen=True, kw_only=True):
    """``POST /explore``."""

    query: QueryModel = QueryModel()
    facets: tuple[FacetRequest, ...] = ()


class FacetBucket(CatalogStruct, frozen=True, kw_only=True):
    """A value, and how many entries have it."""

    value: str
    count: int


class Facet(CatalogStruct, frozen=True, kw_only=True):
    """The values of a path; ``other_count`` is the number of entries in buckets left out."""

    buckets: tuple[FacetBucket, ...] = ()
    other_count: int = 0


class ListRequest(CatalogStruct, frozen=True, kw_only=True):
    """``GET /agents``: an expression to filter by, and fields to order by."""

    filter: str = ""
    order_by: str = ""
    page_size: int = 20
    page_token: str = ""


class ListResponse(CatalogStruct, frozen=True, kw_only=True):
    """The answer to ``GET /agents``; entries are JSON."""

    items: tuple[Mapping[str, Any], ...] = ()
    total: int = 0
    page_token: str = ""
