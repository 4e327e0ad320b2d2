"""Requests to a registry and its responses (ARD §5.3), as the client writes and reads them.

Responses may lack members, have scores of another type, and list invalid entries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Self, TypeVar

import msgspec
from msgspec import Meta

from parley.model.service import TraceContext
from parley.observe import tracing
from parley.registry.catalog.entries import (
    REGISTRY,
    REGISTRY_TYPES,
    AirUrn,
    CatalogEntry,
    CatalogStruct,
    InvalidUrn,
    context_of,
    term_of,
)
from parley.registry.catalog.reading import InvalidEntry, RejectedEntry, read_entry

S = TypeVar("S")

MAX_PAGE = 100
MAX_QUERY_TEXT = 2_000
MAX_FILTERS = 32
MAX_FACETS = 16
MAX_OWN_TOKEN = 2_048
"""The length limit of a page token from this registry."""


class FederationMode(StrEnum):
    """How other registries are included in a search (ARD §5.4)."""

    AUTO = "auto"
    REFERRALS = "referrals"
    NONE = "none"


_FILTER = {
    "maxProperties": MAX_FILTERS,
    "additionalProperties": {
        "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    },
}


class QueryModel(CatalogStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A need in words, and constraints by field path; both must match (ARD §5.3.1).

    The values of one path, a text or a tuple of texts, are alternatives. ``context`` declares the
    prefixes in the paths.
    """

    text: Annotated[str, Meta(extra_json_schema={"maxLength": MAX_QUERY_TEXT})] = ""
    filter: Annotated[
        Mapping[str, Any],
        Meta(
            description="Field paths with their values: for each path, at least one value must "
            "match.",
            extra_json_schema=_FILTER,
        ),
    ] = {}
    context: Annotated[
        Any,
        Meta(
            description="Declares the prefixes in the paths of the filter (JSON-LD); addresses of "
            "contexts are not fetched.",
            extra_json_schema={"type": ["object", "array", "string", "null"]},
        ),
    ] = msgspec.field(default=None, name="@context")

    def path(self, given: str) -> str:
        """Return the path in entries for a path of the query."""
        return term_of(given, context_of(self.context))


class SearchRequest(CatalogStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /search``."""

    query: QueryModel
    federation: FederationMode = FederationMode.AUTO
    page_size: Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": MAX_PAGE})] = 10
    page_token: Annotated[str, Meta(extra_json_schema={"maxLength": MAX_OWN_TOKEN})] = ""


async def in_span(
    kind: tracing.Kind,
    request: SearchRequest,
    search: Coroutine[Any, Any, S],
    parent: TraceContext | None = None,
) -> S:
    """Return the response to a search, which has a span if there is tracing.

    The need is an attribute only where content is recorded.
    """
    attributes = {"parley.federation": request.federation.value}
    if tracing.records_content:
        attributes["parley.query"] = request.query.text
    with tracing.spanned("search", kind, attributes, parent) as span:
        response = await search
        if span is not None:
            span.set_attribute("parley.results", len(getattr(response, "results", ())))
        return response


class SearchResult(CatalogStruct, frozen=True, kw_only=True):
    """An entry with its relevance (0 to 100), and the registry that indexed it.

    The entry is JSON (``registry.catalog.reading`` reads and writes it); relevance is not trust.
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
    """The response to ``POST /search``."""

    results: tuple[SearchResult, ...] = ()
    referrals: tuple[RegistryReferral, ...] = ()
    page_token: str = ""


_AT_LEAST_ONE = Meta(extra_json_schema={"minimum": 1})


class FacetRequest(CatalogStruct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field path whose values are counted."""

    field: Annotated[str, Meta(extra_json_schema={"minLength": 1})]
    limit: Annotated[int, _AT_LEAST_ONE] = 20
    min_count: Annotated[int, _AT_LEAST_ONE] = 1


class ExploreRequest(CatalogStruct, frozen=True, kw_only=True):
    """``POST /explore``."""

    query: QueryModel = QueryModel()
    facets: tuple[FacetRequest, ...] = ()


class FacetBucket(CatalogStruct, frozen=True, kw_only=True):
    """A value, and the number of entries that have it."""

    value: str
    count: int


class Facet(CatalogStruct, frozen=True, kw_only=True):
    """The values of a path; ``other_count`` is the number of entries in omitted buckets."""

    buckets: tuple[FacetBucket, ...]
    other_count: int

    @classmethod
    def of(cls, counts: Iterable[tuple[str, int]], others: int) -> Self:
        """Return a facet from values with their counts."""
        buckets = tuple([FacetBucket(value=value, count=count) for value, count in counts])
        return cls(buckets=buckets, other_count=others)


class ListRequest(CatalogStruct, frozen=True, kw_only=True):
    """``GET /agents``: an expression to filter by, and fields to order by."""

    filter: str = ""
    order_by: str = ""
    page_size: int = 20
    page_token: str = ""


ENTRY_SCHEMA = {"$ref": "#/components/schemas/CatalogEntry"}


class EntryPage(CatalogStruct, frozen=True, kw_only=True):
    """The response to ``GET /agents``: a page of a list, and the number of all its entries."""

    items: list[Annotated[Mapping[str, Any], Meta(extra_json_schema=ENTRY_SCHEMA)]]
    total: int
    page_token: str = ""


T = TypeVar("T")

MAX_REFERRALS = 50
MAX_TOKEN = 4_096
"""The length limit of a page token from another registry."""

MAX_MESSAGE = 500
MAX_DEPTH = 32
"""The depth to which the JSON of a response may be nested."""


_CODE = re.compile(r"[A-Za-z0-9_.-]{1,60}")


class InvalidAnswer(ValueError):
    """A response is not from a registry. The message says what is wrong."""


class ListedResult(CatalogStruct, frozen=True, kw_only=True):
    """A result from a registry: ``score`` is the registry's claim, ``None`` without a score.

    A registry may send only the identifier (ARD §5.3.2): then ``is_partial`` is set, and the entry
    is requested by its identifier.
    """

    entry: CatalogEntry
    document: Mapping[str, Any]
    score: float | None = None
    source: str = ""
    is_partial: bool = False


class SearchAnswer(CatalogStruct, frozen=True, kw_only=True):
    """The response to a search, without invalid entries."""

    results: tuple[ListedResult, ...] = ()
    referrals: tuple[RegistryReferral, ...] = ()
    page_token: str = ""
    rejected: tuple[RejectedEntry, ...] = ()


class BrowseAnswer(CatalogStruct, frozen=True, kw_only=True):
    """The response to a list request, without invalid entries."""

    entries: tuple[CatalogEntry, ...] = ()
    total: int | None = None
    page_token: str = ""
    rejected: tuple[RejectedEntry, ...] = ()


def write_search(request: SearchRequest) -> bytes:
    """Return the body of ``POST /search``."""
    document: dict[str, Any] = {
        "query": _query(request.query),
        "federation": request.federation.value,
        "pageSize": request.page_size,
    }
    if request.page_token:
        document["pageToken"] = request.page_token
    return msgspec.json.encode(document)


def write_explore(request: ExploreRequest) -> bytes:
    """Return the body of ``POST /explore``."""
    facets = [
        {"field": each.field, "limit": each.limit, "minCount": each.min_count}
        for each in request.facets
    ]
    document = {"query": _query(request.query), "resultType": {"facets": facets}}
    return msgspec.json.encode(document)


def _query(query: QueryModel) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if query.context is not None:
        written["@context"] = query.context
    if query.text:
        written["text"] = query.text
    if query.filter:
        written["filter"] = {
            path: [values] if isinstance(values, str) else list(values)
            for path, values in query.filter.items()
        }
    return written


def read_search(body: bytes, *, max_results: int) -> SearchAnswer:
    """Read the response to a search. Raises ``InvalidAnswer``.

    Results beyond ``max_results`` are rejected as one.
    """
    document = _object(body)
    results, rejected = _read_all(document, ("results", "items"), max_results, _result)
    return SearchAnswer(
        results=results,
        referrals=tuple(_referrals(document.get("referrals"))),
        page_token=_token(document),
        rejected=rejected,
    )


def read_explore(body: bytes) -> dict[str, Facet]:
    """Read the response to an exploration. Raises ``InvalidAnswer``."""
    facets = _object(body).get("facets")
    if not isinstance(facets, Mapping):
        raise InvalidAnswer("a response to an exploration must have an object facets")
    return {str(name): _facet(each) for name, each in facets.items() if isinstance(each, Mapping)}


def read_list(body: bytes, *, max_items: int) -> BrowseAnswer:
    """Read the response to a list request. Raises ``InvalidAnswer``."""
    document = _object(body)
    names = ("items", "results", "agents")
    entries, rejected = _read_all(document, names, max_items, read_entry)
    total = document.get("total")
    return BrowseAnswer(
        entries=entries,
        total=total if isinstance(total, int) and total >= 0 else None,
        page_token=_token(document),
        rejected=rejected,
    )


def read_one(body: bytes) -> tuple[CatalogEntry, Mapping[str, Any]]:
    """Read a single entry, and the details that Parley's registries add. Raises ``InvalidAnswer``.

    ARD 0.91 returns the entry itself, with the details in ``registry.details``; before, the entry
    was a member ``entry`` of the response.
    """
    document = _object(body)
    inner = document.get("entry")
    try:
        entry = read_entry(inner if isinstance(inner, Mapping) else document)
    except InvalidEntry as error:
        raise InvalidAnswer(str(error)) from None
    if isinstance(inner, Mapping):
        return entry, {n: v for n, v in document.items() if n != "entry"}
    own = document.get("registry")
    details = own.get("details") if isinstance(own, Mapping) else None
    if not isinstance(own, Mapping) or not isinstance(details, Mapping):
        return entry, {}
    known = {name: value for name, value in own.items() if name != "details"}
    return msgspec.structs.replace(entry, more={**entry.more, "registry": known}), details


def read_error(body: bytes) -> tuple[str, str]:
    """Return the code and the message of an error; empty for any other document."""
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return "", ""
    if isinstance(document, Mapping) and isinstance(document.get("error"), Mapping):
        document = document["error"]
    if not isinstance(document, Mapping):
        return "", ""
    code = _first(document, ("errorCode", "code", "status", "error"))
    message = _first(document, ("message", "detail", "error_description"))
    return code if _CODE.fullmatch(code) else "", _line(message)


def _line(text: str) -> str:
    """Return an untrusted text on one line, for errors, logs and terminals."""
    cut = " ".join(text[: 2 * MAX_MESSAGE].split())[:MAX_MESSAGE]
    return "".join(sign if sign.isprintable() else "?" for sign in cut)


def clamped(score: float | None) -> int:
    """Return a claimed score limited to 0 to 100; a missing score is 0."""
    return 0 if score is None else round(min(max(score, 0.0), 100.0))


def _result(given: Any) -> ListedResult:
    """Return a result, whole or partial. Raises ``InvalidEntry``."""
    if isinstance(given, Mapping) and isinstance(given.get("entry"), Mapping):
        given = {**given["entry"], **{n: given[n] for n in ("score", "source") if n in given}}
    try:
        entry = read_entry(given)
    except InvalidEntry:
        if (partial := _partial(given)) is not None:
            return partial
        raise
    score, source = given.get("score"), given.get("source")
    more = {name: each for name, each in entry.more.items() if name not in ("score", "source")}
    return ListedResult(
        entry=msgspec.structs.replace(entry, more=more),
        document={name: each for name, each in given.items() if name not in ("score", "source")},
        score=_number(score),
        source=source if isinstance(source, str) and len(source) <= MAX_TOKEN else "",
    )


def _partial(given: Any) -> ListedResult | None:
    """Return a result that has only an identifier, ``None`` if it has more or none."""
    if not isinstance(given, Mapping):
        return None
    identifier, score, source = (given.get(name) for name in ("identifier", "score", "source"))
    lacks = not all(given.get(name) for name in ("displayName", "type"))
    lacks = lacks or not (given.get("url") or given.get("data"))
    try:
        urn = AirUrn.parse(identifier) if lacks and isinstance(identifier, str) else None
    except InvalidUrn:
        urn = None
    if urn is None:
        return None
    return ListedResult(
        entry=CatalogEntry(identifier=str(identifier), display_name=urn.name, type=""),
        document=given,
        score=_number(score),
        source=source if isinstance(source, str) and len(source) <= MAX_TOKEN else "",
        is_partial=True,
    )


def _number(given: Any) -> float | None:
    """Return a finite number; ``None`` for any other value."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    try:
        number = float(given)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _referrals(given: Any) -> Iterable[RegistryReferral]:
    for each in given[:MAX_REFERRALS] if isinstance(given, list) else ():
        if not isinstance(each, Mapping):
            continue
        url = each.get("url")
        kind = each.get("type") or each.get("mediaType") or REGISTRY
        if isinstance(url, str) and url and kind in REGISTRY_TYPES:
            identifier, name = each.get("identifier"), each.get("displayName")
            yield RegistryReferral(
                identifier=identifier[:MAX_MESSAGE] if isinstance(identifier, str) else "",
                display_name=name[:MAX_MESSAGE] if isinstance(name, str) else "",
                type=kind,
                url=url[:MAX_TOKEN],
            )


def _facet(given: Mapping[str, Any]) -> Facet:
    buckets = given.get("buckets")
    read = [
        FacetBucket(value=str(each["value"]), count=_count(each.get("count")))
        for each in (buckets if isinstance(buckets, list) else ())
        if isinstance(each, Mapping) and isinstance(each.get("value"), str | int | float)
    ]
    return Facet(buckets=tuple(read), other_count=_count(given.get("otherCount")))


def _count(given: Any) -> int:
    return given if isinstance(given, int) and given > 0 else 0


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        raise InvalidAnswer("the response is not JSON") from None
    if not isinstance(document, Mapping):
        raise InvalidAnswer("the response is not a JSON object")
    if _is_deeper(document, MAX_DEPTH):
        raise InvalidAnswer(f"the response is nested more than {MAX_DEPTH} levels deep")
    return document


def _is_deeper(value: Any, levels: int) -> bool:
    level: list[Any] = [value]
    for _ in range(levels):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
        level = inner
        if not level:
            return False
    return any(isinstance(each, Mapping | list) for each in level)


def _read_all(
    document: Mapping[str, Any], names: tuple[str, ...], most: int, read: Callable[[Any], T]
) -> tuple[tuple[T, ...], tuple[RejectedEntry, ...]]:
    """Return the valid items of a list, and the rejected items: all beyond ``most`` as one.

    Raises ``InvalidAnswer`` for a response without a list of these names.
    """
    listed = next((document[n] for n in names if isinstance(document.get(n), list)), None)
    if listed is None:
        raise InvalidAnswer(f"the response has no list of {names[0]}")
    found: list[T] = []
    rejected: list[RejectedEntry] = []
    for each in listed[:most]:
        try:
            found.append(read(each))
        except InvalidEntry as error:
            named = each.get("identifier") if isinstance(each, Mapping) else ""
            name = named[:512] if isinstance(named, str) else ""
            rejected.append(RejectedEntry(identifier=name, reason=str(error)))
    if len(listed) > most:
        more = f"{len(listed) - most} entries beyond the {most} requested are not read"
        rejected.append(RejectedEntry(identifier="", reason=more))
    return tuple(found), tuple(rejected)


def _token(document: Mapping[str, Any]) -> str:
    """Return the token of the next page; an overlong token ends the pages."""
    token = _first(document, ("pageToken", "nextPageToken"))
    return token if len(token) <= MAX_TOKEN else ""


def _first(document: Mapping[str, Any], names: Iterable[str]) -> str:
    return next((document[name] for name in names if isinstance(document.get(name), str)), "")
