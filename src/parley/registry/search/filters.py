"""Filters of searches, orders of lists, and the fields of facets, converted for the index.

Any member of an entry can be used in filters, nested members by a path with dots, and so can the
values that the registry derives: ``publisher``, ``source``, ``host.*`` and ``card.*``. An unknown
path matches nothing, because entries may have any members. Long texts are not values; they are
searched by words.

The filter of a list (ARD Appendix A), such as ``type = 'x' AND createdAfter > '2026-01-01'``:

    expression = condition | NOT expression | expression AND expression | expression OR expression
               | "(" expression ")"
    condition  = path operator value {"," value} | path [NOT] IN "(" value {"," value} ")"
               | contains "(" path "," value ")"
    operator   = "=" | "!=" | "<" | "<=" | ">" | ">=" | ":"

``:`` and ``contains`` search for a part. Values are quoted, or unquoted if they have no spaces,
commas, parentheses or operators. Commas mean OR, also inside the quotes of a type or publisher.
``OR`` joins conditions of one field: the index supports no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from parley.model.errors import InvalidParamsError
from parley.registry.catalog.entries import (
    A2A_CARD,
    A2A_CARD_TYPES,
    CATALOG,
    MCP_CARD,
    REGISTRY_TYPES,
)
from parley.registry.catalog.searching import (
    MAX_FACETS,
    MAX_FILTERS,
    ExploreRequest,
    FacetRequest,
    QueryModel,
)
from parley.registry.records import ORDERS, Constraint, Operator, Order

# Field paths of entries for filters, facets and orders.

MAX_PATH = 128
MAX_DEPTH = 8
MAX_VALUES = 100
MAX_VALUE = 1_000

ALIASES = {
    "publisherId": "publisher",
    "mediaType": "type",
    "skills.id": "card.skills.id",
    "skills.name": "card.skills.name",
    "skills.tags": "card.skills.tags",
    "card.defaultInputModes": "card.modes",
    "card.defaultOutputModes": "card.modes",
    "card.skills.inputModes": "card.modes",
    "card.skills.outputModes": "card.modes",
    "card.supportedInterfaces.protocolBinding": "card.bindings",
    "card.supportedInterfaces.protocolVersion": "card.versions",
    "card.capabilities.extensions.uri": "card.extensions",
    "card.provider.organization": "card.provider",
}
"""Other names of paths: from Appendix A, and of values in an A2A card."""

REGISTRY_TIMES = ("registry.createdAt", "registry.updatedAt")
_OF_REGISTRY = ("registry.trust", "registry.marks", *REGISTRY_TIMES)
"""Findings of a registry that filters can use."""

SEARCHED = ("description", "representativeQueries", "data", "url")
"""Members that are searched by words, not used as values."""

_PATH = re.compile(r"[^\s.\x00-\x1f\x7f]+(?:\.[^\s.\x00-\x1f\x7f]+)*")
_SPACED = re.compile(r"[\w.-]+/[\w.-]+ \w+")
"""A media type whose plus sign was decoded as a space, as in the query of a URL."""

_SHORT_TYPES = {
    "a2a": A2A_CARD, "agent": A2A_CARD, "agents": A2A_CARD, "mcp": MCP_CARD,
    "catalog": CATALOG, "registry": REGISTRY_TYPES[0],
}  # fmt: skip


def checked_path(path: str) -> str:
    """Return the path for a name. Raises ``InvalidParamsError``."""
    if len(path) > MAX_PATH:
        raise InvalidParamsError(
            f"the field path {path[:40]!r}... is longer than {MAX_PATH} characters"
        )
    if not _PATH.fullmatch(path) or path.count(".") >= MAX_DEPTH:
        raise InvalidParamsError(
            f"{path!r} is not a field path; use names with dots between them, such as "
            f"trustManifest.attestations.type (at most {MAX_DEPTH} names)"
        )
    if path.partition(".")[0] in SEARCHED:
        raise InvalidParamsError(
            f"entries cannot be filtered by {path.partition('.')[0]!r}; search for its words with "
            "query.text, or filter by identifier, type, publisher, tags, capabilities, version, "
            "metadata.*, trustManifest.* or card.*"
        )
    if path.partition(".")[0] == "registry" and path not in _OF_REGISTRY:
        raise InvalidParamsError(
            f"entries cannot be filtered by {path!r}; of the registry's findings only "
            "registry.trust and "
            "registry.marks can be used"
        )
    return ALIASES.get(path, path)


def checked_values(path: str, values: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct values to compare with. Raises ``InvalidParamsError``.

    The successive names of an artifact type are equivalent.
    """
    found = dict.fromkeys(value.strip() for value in values)
    if not found or "" in found:
        raise InvalidParamsError(f"{path!r} has no value; give a value, or leave it out")
    if len(found) > MAX_VALUES:
        raise InvalidParamsError(
            f"{path!r} has {len(found)} values; at most {MAX_VALUES} are allowed"
        )
    if longest := next((value for value in found if len(value) > MAX_VALUE), None):
        raise InvalidParamsError(
            f"a value of {path!r} ({longest[:40]!r}...) is longer than {MAX_VALUE} characters"
        )
    if path == "type":
        found = dict.fromkeys(name for value in found for name in _names_of_type(value))
    return tuple(found)


def values_in(path: str, given: Any) -> tuple[str, ...]:
    """Return the values of a JSON filter: of a list or a single value, with numbers and booleans as
    texts. Raises ``InvalidParamsError``.
    """
    listed = given if isinstance(given, list | tuple) else [given]
    texts = []
    for each in listed:
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, bool | int | float):
            texts.append(msgspec.json.encode(each).decode())
        else:
            kind = "null" if each is None else "an object" if isinstance(each, dict) else "a list"
            raise InvalidParamsError(
                f"{path!r} is compared with {kind}; a value must be a text, a number or a boolean, "
                "or a list of them"
            )
    return tuple(texts)


def _names_of_type(value: str) -> tuple[str, ...]:
    if "/" not in value:
        meant = _SHORT_TYPES.get(value.lower())
        hint = f"did you mean {meant!r}?" if meant else f"a type is, for example, {A2A_CARD!r}"
        raise InvalidParamsError(f"{value[:80]!r} is not a media type; {hint}")
    if _SPACED.fullmatch(value):
        value = value.replace(" ", "+")
    for names in (A2A_CARD_TYPES, REGISTRY_TYPES):
        if value.lower() in names:
            return tuple(names)
    return (value,)


# The filter of a list (ARD Appendix A): ``type = 'x' AND createdAfter > '2026-01-01'``.

MAX_EXPRESSION = 4_000
MAX_NESTED = 32

EXAMPLE = "type = 'application/a2a-agent-card+json' AND updatedAfter > '2026-01-01'"

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<quoted>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<sign><=|>=|!=|<>|==|=|<|>|:|~)
    | (?P<mark>[(),])
    | (?P<bare>[^\s,()'"=<>!~:][^\s,()'"=<>!~]*)
    )""",
    re.VERBOSE,
)
_SIGNS: Mapping[str, Operator] = {
    "=": "eq", "==": "eq", "!=": "eq", "<>": "eq", ":": "contains", "~": "contains",
    ">": "gt", ">=": "ge", "<": "lt", "<=": "le",
}  # fmt: skip
_NEGATED = ("!=", "<>")
_CREATED, _UPDATED = "registry.createdAt", "registry.updatedAt"
_NAMES = {
    "name": "displayName",
    "createdAt": _CREATED, "created_at": _CREATED,
    "updatedAt": _UPDATED, "updated_at": _UPDATED,
}  # fmt: skip
_SINCE: Mapping[str, tuple[str, Mapping[str, Operator]]] = {
    "createdAfter": (_CREATED, {"eq": "gt", "gt": "gt", "ge": "ge"}),
    "updatedAfter": (_UPDATED, {"eq": "gt", "gt": "gt", "ge": "ge"}),
    "createdBefore": (_CREATED, {"eq": "lt", "lt": "lt", "le": "le"}),
    "updatedBefore": (_UPDATED, {"eq": "lt", "lt": "lt", "le": "le"}),
}
_SPLIT = ("type", "publisher", "identifier", "version", "tags", "capabilities")
"""Fields whose quoted values are split at commas, because their values contain none."""

_OPERATOR = {"eq": "=", "contains": ":", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}

Clause = tuple[Constraint, ...]
"""Constraints of which at least one must hold."""


class FilterToken(msgspec.Struct, frozen=True):
    """A token of an expression; ``at`` counts characters from 1.

    Its ``kind`` is ``quoted``, ``sign``, ``mark``, ``bare`` or ``end``.
    """

    kind: str
    text: str
    at: int

    def is_word(self, *words: str) -> bool:
        """Return whether it is one of some keywords."""
        return self.kind == "bare" and self.text.upper() in words

    def __str__(self) -> str:
        if self.kind == "end":
            return "at the end"
        return f"at character {self.at} ({self.text[:40]!r})"


def constraints_of_expression(text: str) -> tuple[Constraint, ...]:
    """Return the constraints of an expression, all of which must hold.

    Raises ``InvalidParamsError``.
    """
    if not text.strip():
        return ()
    if len(text) > MAX_EXPRESSION:
        raise InvalidParamsError(f"the filter is longer than {MAX_EXPRESSION} characters")
    parser = _Parser(_tokens(text))
    clauses = parser.expression(False, 0)
    if parser.token.kind != "end":
        raise _wrong(
            parser.token,
            "AND or OR is missing here (quote a value with spaces, and write + as %2B in a URL)",
        )
    found = tuple(dict.fromkeys(_merged(clause) for clause in clauses))
    if len(found) > MAX_FILTERS:
        raise InvalidParamsError(
            f"the filter has {len(found)} conditions; at most {MAX_FILTERS} are allowed"
        )
    return found


def _wrong(token: FilterToken, what: str) -> InvalidParamsError:
    return InvalidParamsError(f"the filter is invalid {token}: {what}; for example {EXAMPLE}")


def _tokens(text: str) -> list[FilterToken]:
    tokens = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            odd = text[at]
            what = "a quotation mark is not closed" if odd in "'\"" else f"{odd!r} has no meaning"
            raise _wrong(FilterToken("sign", text[at:], at + 1), what)
        piece = match[match.lastgroup]
        tokens.append(FilterToken(match.lastgroup, piece, match.start(match.lastgroup) + 1))
        at = match.end()
    tokens.append(FilterToken("end", "", end + 1))
    return tokens


class _Parser:
    """Parses tokens into clauses that must all hold; a negated part is parsed as its opposite."""

    def __init__(self, tokens: list[FilterToken]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def token(self) -> FilterToken:
        """The next token."""
        return self._tokens[self._at]

    def take(self) -> FilterToken:
        """Return the next token, and advance."""
        token = self.token
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def expression(self, negated: bool, depth: int) -> list[Clause]:
        """Parse conditions joined by ``OR``."""
        if depth > MAX_NESTED:
            raise _wrong(self.token, f"parentheses and NOT are nested deeper than {MAX_NESTED}")
        found = self._conjunction(negated, depth)
        while self.token.is_word("OR"):
            at = self.take()
            more = self._conjunction(negated, depth)
            found = [*found, *more] if negated else _either(found, more, at)
        return found

    def _conjunction(self, negated: bool, depth: int) -> list[Clause]:
        found = self._part(negated, depth)
        while self.token.is_word("AND"):
            at = self.take()
            more = self._part(negated, depth)
            found = _either(found, more, at) if negated else [*found, *more]
        return found

    def _part(self, negated: bool, depth: int) -> list[Clause]:
        if self.token.is_word("NOT"):
            self.take()
            if depth >= MAX_NESTED:
                raise _wrong(self.token, f"parentheses and NOT are nested deeper than {MAX_NESTED}")
            return self._part(not negated, depth + 1)
        if self.token.text == "(" and self.token.kind == "mark":
            self.take()
            found = self.expression(negated, depth + 1)
            self._expect(")")
            return found
        return [(self._condition(negated),)]

    def _expect(self, mark: str) -> None:
        if self.token.kind != "mark" or self.token.text != mark:
            raise _wrong(self.token, f"{mark!r} is missing")
        self.take()

    def _condition(self, negated: bool) -> Constraint:
        name = self.take()
        if name.kind != "bare" or name.is_word("AND", "OR", "IN"):
            raise _wrong(name, "a field is missing")
        if name.is_word("CONTAINS") and self.token.text == "(":
            self.take()
            name = self.take()
            self._expect(",")
            values = self._values()
            self._expect(")")
            return _constraint(name, "contains", values, negated)
        if self.token.is_word("NOT"):
            self.take()
            negated = not negated
            if not self.token.is_word("IN"):
                raise _wrong(self.token, "IN is missing after NOT")
        if self.token.is_word("IN"):
            self.take()
            self._expect("(")
            values = self._values()
            self._expect(")")
            return _constraint(name, "eq", values, negated)
        sign = self.take()
        if sign.kind != "sign":
            what = f"an operator is missing after {name.text[:80]!r}, one of {' '.join(_SIGNS)}"
            raise _wrong(sign, what + " (with a space before :)" * (":" in name.text))
        return _constraint(
            name, _SIGNS[sign.text], self._values(), negated is not (sign.text in _NEGATED)
        )

    def _values(self) -> list[FilterToken]:
        found = [self._value()]
        while self.token.kind == "mark" and self.token.text == ",":
            self.take()
            found.append(self._value())
        return found

    def _value(self) -> FilterToken:
        token = self.take()
        if token.kind not in ("quoted", "bare") or token.is_word("AND", "OR"):
            raise _wrong(token, "a value is missing")
        return token


def _constraint(
    name: FilterToken, operator: Operator, values: list[FilterToken], negated: bool
) -> Constraint:
    field = _NAMES.get(name.text, name.text)
    if field in _SINCE:
        field, operators = _SINCE[field]
        if operator not in operators:
            signs = " or ".join(_OPERATOR[each] for each in operators)
            raise _wrong(name, f"{name.text} can be compared with {signs} only")
        operator = operators[operator]
    field = checked_path(field)
    texts = []
    for value in values:
        text = value.text
        if value.kind == "quoted":
            quote, text = text[0], text[1:-1].replace(text[0] * 2, text[0])
            text = re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
            if not text.strip():
                raise _wrong(value, f"there is no text between the {quote}")
        texts += text.split(",") if field in _SPLIT and operator == "eq" else [text]
    if field in (_CREATED, _UPDATED):
        _check_times(name, operator, texts)
    checked = tuple(dict.fromkeys(texts))
    if operator == "eq" or field != "type":
        checked = checked_values(field, texts)
    return Constraint(field=field, values=checked, operator=operator, negated=negated)


def _check_times(name: FilterToken, operator: str, texts: list[str]) -> None:
    if operator not in ("gt", "ge", "lt", "le"):
        raise _wrong(name, f"{name.text} can be compared with <, <=, > or >= only")
    if len(texts) > 1:
        raise _wrong(name, f"{name.text} can be compared with one time only")
    try:
        datetime.fromisoformat(texts[0])
    except ValueError:
        raise _wrong(
            name, f"{texts[0][:40]!r} is not a time such as '2026-01-31' or '2026-01-31T12:00:00Z'"
        ) from None


def _either(one: list[Clause], other: list[Clause], at: FilterToken) -> list[Clause]:
    """Return clauses that hold if either list of clauses holds."""
    if len(one) * len(other) > MAX_FILTERS:
        raise _wrong(at, "it is too complex; fewer conditions may be joined by OR")
    found = []
    for mine in one:
        for more in other:
            clause = tuple(dict.fromkeys((*mine, *more)))
            _merged(clause, at)
            found.append(clause)
    return found


def _merged(clause: Clause, at: FilterToken | None = None) -> Constraint:
    """Return a clause as one constraint: its conditions have the same field and operator."""
    first = clause[0]
    if len(clause) == 1:
        return first
    where = at or FilterToken("end", "", 0)
    fields = tuple(dict.fromkeys(each.field for each in clause))
    if len(fields) > 1:
        raise _wrong(
            where,
            f"OR can join conditions of one field only, not of {fields[0]} and {fields[1]}; "
            "request two lists, or use AND",
        )
    if any(each.negated for each in clause):
        raise _wrong(where, f"OR cannot join conditions of {first.field} if some are negated")
    operators = tuple(dict.fromkeys(each.operator for each in clause))
    if len(operators) > 1:
        used = " and ".join(_OPERATOR[each] for each in operators)
        raise _wrong(
            where, f"OR can join conditions of one operator only, not {used} on {first.field}"
        )
    values = dict.fromkeys(value for each in clause for value in each.values)
    return msgspec.structs.replace(first, values=tuple(values))


__all__ = ["constraints_of", "constraints_of_expression", "facets_of", "order_of"]

MAX_BUCKETS = 1_000
MAX_ORDER_TEXT = 500

_ORDER_NAMES = {
    **{name.lower(): name for name in ORDERS},
    "name": "displayName",
    "display_name": "displayName",
    "created_at": "createdAt",
    "updated_at": "updatedAt",
    "publisherid": "publisher",
    "mediatype": "type",
}


def constraints_of(query: QueryModel) -> tuple[Constraint, ...]:
    """Return the filter of a query as constraints: any of the values of a path, for all paths (ARD
    §5.3.1).

    Raises ``InvalidParamsError``.
    """
    if len(query.filter) > MAX_FILTERS:
        raise InvalidParamsError(
            f"filter has {len(query.filter)} fields; at most {MAX_FILTERS} are allowed"
        )
    found = []
    for given, values in query.filter.items():
        path = query.path(given)
        field = checked_path(path)
        if field in REGISTRY_TIMES:
            raise InvalidParamsError(
                f"{path!r} is a comparison with a time; use it in GET /agents: createdAfter = "
                "'2026-01-31'"
            )
        found.append(Constraint(field=field, values=checked_values(field, values_in(path, values))))
    return tuple(found)


def facets_of(request: ExploreRequest) -> tuple[tuple[FacetRequest, str], ...]:
    """Return the requested facets, with their paths in the index. Raises ``InvalidParamsError``."""
    facets = request.facets
    if not facets:
        raise InvalidParamsError(
            'name the fields to count, such as {"facets": [{"field": "type"}]}'
        )
    if len(facets) > MAX_FACETS:
        raise InvalidParamsError(
            f"{len(facets)} facets are requested; at most {MAX_FACETS} are allowed"
        )
    if len({each.field for each in facets}) < len(facets):
        raise InvalidParamsError("a field is named twice in resultType.facets")
    found = []
    for facet in facets:
        if not 1 <= facet.limit <= MAX_BUCKETS:
            raise InvalidParamsError(
                f"the limit of the facet {facet.field[:80]!r} must be between 1 and "
                f"{MAX_BUCKETS}, not "
                f"{facet.limit}"
            )
        if facet.min_count < 1:
            raise InvalidParamsError(
                f"the minCount of the facet {facet.field[:80]!r} must be 1 or more, not "
                f"{facet.min_count}"
            )
        found.append((facet, checked_path(request.query.path(facet.field))))
    return tuple(found)


def order_of(text: str) -> tuple[Order, ...]:
    """Return the order of an ``orderBy`` text: comma-separated fields, each optionally with ``ASC``
    or ``DESC``. Raises ``InvalidParamsError``.
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
                f"lists cannot be ordered by {words[0][:80]!r}, only by {', '.join(ORDERS)}; for "
                "example updatedAt DESC, displayName"
            )
        if len(words) > 2 or (len(words) == 2 and words[1].upper() not in ("ASC", "DESC")):
            raise InvalidParamsError(
                f"{' '.join(words[1:])[:80]!r} in orderBy is not a direction; a field may be "
                "followed by "
                "ASC or DESC, and by a comma before the next field"
            )
        if field in found:
            raise InvalidParamsError(f"orderBy names {field} twice")
        found[field] = Order(field=field, descending=len(words) == 2 and words[1].upper() == "DESC")
    return tuple(found.values())
