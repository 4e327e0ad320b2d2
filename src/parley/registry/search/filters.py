"""Filters of searches, orders of lists, and the fields of facets, as the index needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parley.model.catalog.searching import MAX_FACETS, MAX_FILTERS, FacetRequest
from parley.model.errors import InvalidParamsError
from parley.registry.index.selections import Constraint, Order
from parley.registry.search.expressions import constraints_of_expression
from parley.registry.search.paths import REGISTRY_TIMES, checked_path, checked_values, values_in

__all__ = ["constraints_of", "constraints_of_expression", "facets_of", "order_of", "read_filter"]

MAX_BUCKETS = 1_000
MAX_ORDER_TEXT = 500

ORDERED_BY = {
    "displayName": "displayName",
    "identifier": "identifier",
    "publisher": "publisher",
    "type": "type",
    "version": "version",
    "createdAt": "createdAt",
    "updatedAt": "updatedAt",
}
_ORDER_NAMES = {
    **{name.lower(): name for name in ORDERED_BY},
    "name": "displayName",
    "display_name": "displayName",
    "created_at": "createdAt",
    "updated_at": "updatedAt",
    "publisherid": "publisher",
    "mediatype": "type",
}


def read_filter(given: Any) -> Mapping[str, tuple[str, ...]]:
    """Read the ``filter`` of a query from JSON. Raises ``InvalidParamsError``."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidParamsError(
            'filter is an object of field paths and values, such as {"tags": ["finance"]}'
        )
    if len(given) > MAX_FILTERS:
        raise InvalidParamsError(f"filter has {len(given)} fields; at most {MAX_FILTERS} are read")
    return {str(path): values_in(str(path), values) for path, values in given.items()}


def constraints_of(filter: Mapping[str, Sequence[str]]) -> tuple[Constraint, ...]:
    """Return a filter as constraints: any of the values of a path, of all paths (ARD §7.1).

    Raises ``InvalidParamsError``.
    """
    if len(filter) > MAX_FILTERS:
        raise InvalidParamsError(f"filter has {len(filter)} fields; at most {MAX_FILTERS} are read")
    found = []
    for path, values in filter.items():
        field = checked_path(path)
        if field in REGISTRY_TIMES:
            raise InvalidParamsError(
                f"{path!r} is a time to compare with, as GET /agents does: createdAfter = "
                "'2026-01-31'"
            )
        listed = (values,) if isinstance(values, str) else values
        found.append(Constraint(field=field, values=checked_values(field, listed)))
    return tuple(found)


def facets_of(facets: Sequence[FacetRequest]) -> tuple[tuple[FacetRequest, str], ...]:
    """Return what is to be counted, with the paths of the index. Raises ``InvalidParamsError``."""
    if not facets:
        raise InvalidParamsError('name what to count, such as {"facets": [{"field": "type"}]}')
    if len(facets) > MAX_FACETS:
        raise InvalidParamsError(
            f"{len(facets)} facets are asked for; at most {MAX_FACETS} are counted"
        )
    found = []
    for facet in facets:
        if not 1 <= facet.limit <= MAX_BUCKETS:
            raise InvalidParamsError(
                f"the limit of the facet {facet.field[:80]!r} is between 1 and {MAX_BUCKETS}, not "
                f"{facet.limit}"
            )
        if facet.min_count < 1:
            raise InvalidParamsError(
                f"the minCount of the facet {facet.field[:80]!r} is 1 or more, not "
                f"{facet.min_count}"
            )
        found.append((facet, checked_path(facet.field)))
    return tuple(found)


def order_of(text: str) -> tuple[Order, ...]:
    """Return the order that ``orderBy`` names: fields with commas between them, each with ``ASC``
    or ``DESC`` if need be. Raises ``InvalidParamsError``.
    """
    if not text.strip():
        return ()
    if len(text) > MAX_ORDER_TEXT:
        raise InvalidParamsError(f"orderBy is longer than {MAX_ORDER_TEXT} characters")
    found: dict[str, Order] = {}
    for part in text.split(","):
        words = part.split()
        if not words:
            raise InvalidParamsError(
                f"orderBy {text!r} has a comma with no field after or before it"
            )
        field = _ORDER_NAMES.get(words[0].lower())
        if field is None:
            raise InvalidParamsError(
                f"lists are not ordered by {words[0][:80]!r}, but by {', '.join(ORDERED_BY)}; for "
                "example updatedAt DESC, displayName"
            )
        if len(words) > 2 or (len(words) == 2 and words[1].upper() not in ("ASC", "DESC")):
            raise InvalidParamsError(
                f"{' '.join(words[1:])[:80]!r} in orderBy is no direction; after a field stands "
                "ASC or DESC, and a comma before the next field"
            )
        if field in found:
            raise InvalidParamsError(f"orderBy names {field} twice")
        found[field] = Order(field=field, descending=len(words) == 2 and words[1].upper() == "DESC")
    return tuple(found.values())
