"""``GET /agents/{identifier}``: all that a viewer may know of one entry."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from parley.model.catalog.urn import MAX_URN, AirUrn, InvalidUrn
from parley.model.errors import InvalidParamsError
from parley.registry.app.operations import Operation, RestAnswer, RestRequest
from parley.registry.app.searching import SCHEMAS
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import CardVersion, IndexedEntry, Observed
from parley.registry.refusals import NotFound
from parley.registry.search.results import answered

ENTRY_AGE = 30

VERSIONS = 20
"""How many versions of a card are shown, the newest first."""


class EntryOperations:
    """What is known of one entry."""

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
        # Versions are those of the entry that is listed, or of the strongest.
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


def not_found(identifier: str) -> NotFound:
    """Return the error for what is not there, or is not for the caller: both look the same."""
    return NotFound(f"there is no entry {identifier[:MAX_URN]} for you here")


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
