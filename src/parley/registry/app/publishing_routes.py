"""Publishing over REST, an addition to the draft: proofs of domains, and pushed entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.model.errors import InvalidParamsError
from parley.registry.app.operations import Needs, Operation, RestAnswer, RestRequest
from parley.registry.app.viewers import is_operator
from parley.registry.publishing.proofs import DomainProofs
from parley.registry.publishing.pushing import EntryPublishing, PublishOptions
from parley.registry.records import IndexedEntry


class _Publish(msgspec.Struct, forbid_unknown_fields=True):
    catalog: dict[str, Any] | None = None
    entries: list[Any] | None = None
    audience: list[str | dict[str, str]] | None = None
    probe: str | None = None
    replace: bool = False


class _Domain(msgspec.Struct, forbid_unknown_fields=True):
    domain: str
    method: str = ""
    origin: str = ""


class PublishingRoutes:
    """The operations of publishers."""

    def __init__(self, publishing: EntryPublishing, proofs: DomainProofs) -> None:
        self._publishing = publishing
        self._proofs = proofs

    async def publish(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /publish``."""
        catalog, options = read_publish(request)
        report = await self._publishing.publish(
            request.caller, catalog, options, address=request.address
        )
        return RestAnswer(body=report)

    async def withdraw(self, request: RestRequest) -> RestAnswer:
        """Answer ``DELETE /entries/{identifier}``."""
        count = await self._publishing.withdraw(
            request.caller,
            request.path["identifier"],
            is_operator=is_operator(request.caller),
            address=request.address,
        )
        return RestAnswer(body={"withdrawn": count})

    async def own(self, request: RestRequest) -> RestAnswer:
        """Answer ``GET /publish``."""
        entries = await self._publishing.own(request.caller)
        domains = await self._proofs.domains(request.caller)
        return RestAnswer(
            body={
                "entries": [shown(each) for each in entries],
                "domains": [{"domain": name, "expiresAt": end} for name, end in domains.items()],
            }
        )

    async def challenge(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /publish/challenges``."""
        given = request.read(_Domain, "the request for a challenge")
        found = await self._proofs.challenge(
            request.caller, given.domain, origin=given.origin, address=request.address
        )
        return RestAnswer(body=found, status=201)

    async def prove(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /publish/domains``."""
        given = request.read(_Domain, "the proof")
        found = await self._proofs.prove(
            request.caller, given.domain, given.method, origin=given.origin, address=request.address
        )
        return RestAnswer(body=found)

    async def release(self, request: RestRequest) -> RestAnswer:
        """Answer ``DELETE /publish/domains/{domain}``."""
        await self._proofs.release(request.caller, request.path["domain"], address=request.address)
        return RestAnswer(status=204)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The rows of the table."""
        return (
            Operation(
                name="publishEntries",
                method="POST",
                path="/publish",
                handler=self.publish,
                needs=Needs.CALLER,
                summary="Publish entries",
                description="Entries of publishers whose domains the caller has proved. They are "
                "the caller's own; publishing them again replaces them.",
                request=_ref("Publish"),
                response=_ref("PublishReport"),
                responses={403: "The domain is not proved.", 429: "A quota is used up."},
                schemas=SCHEMAS,
                max_body=self._publishing.limits.document_bytes,
            ),
            Operation(
                name="listPublished",
                method="GET",
                path="/publish",
                handler=self.own,
                needs=Needs.CALLER,
                summary="What the caller has published and proved",
                response=_ref("OwnEntries"),
                schemas=SCHEMAS,
            ),
            Operation(
                name="withdrawEntry",
                method="DELETE",
                path="/entries/{identifier}",
                handler=self.withdraw,
                needs=Needs.CALLER,
                summary="Withdraw an entry of the caller",
                path_parameters={"identifier": {"type": "string", "maxLength": 512}},
                response={"type": "object", "properties": {"withdrawn": {"type": "integer"}}},
                responses={403: "Another caller published it.", 404: "There is none."},
                schemas=SCHEMAS,
            ),
            Operation(
                name="challengeDomain",
                method="POST",
                path="/publish/challenges",
                handler=self.challenge,
                needs=Needs.CALLER,
                summary="Ask for what proves a domain",
                description="The answer has the text to show, as a TXT record or in a document.",
                request=_ref("DomainProof"),
                response=_ref("DomainChallenge"),
                responses={201: "A new challenge; one that was given before counts no more."},
                schemas=SCHEMAS,
            ),
            Operation(
                name="proveDomain",
                method="POST",
                path="/publish/domains",
                handler=self.prove,
                needs=Needs.CALLER,
                summary="Prove a domain",
                description="Looks for the text of the challenge in DNS and in the document.",
                request=_ref("DomainProof"),
                response=_ref("ProvedDomain"),
                responses={403: "The text is not there.", 404: "There is no challenge."},
                schemas=SCHEMAS,
            ),
            Operation(
                name="releaseDomain",
                method="DELETE",
                path="/publish/domains/{domain}",
                handler=self.release,
                needs=Needs.CALLER,
                summary="Give a domain up",
                path_parameters={"domain": {"type": "string", "maxLength": 253}},
                responses={204: "It is no longer the caller's.", 404: "It was not."},
                schemas=SCHEMAS,
            ),
        )


def read_publish(request: RestRequest) -> tuple[Mapping[str, Any], PublishOptions]:
    """Return the catalog of a body and the options beside it. Raises ``InvalidParamsError``."""
    given = request.read(_Publish, "the body")
    if (given.catalog is None) == (given.entries is None):
        raise InvalidParamsError('the body has either "catalog" or "entries"')
    catalog = given.catalog
    if catalog is None:
        catalog = {"specVersion": "1.0", "entries": given.entries}
    options = PublishOptions(
        audience=None if given.audience is None else tuple(given.audience),
        probe=given.probe,
        replace=given.replace,
    )
    return catalog, options


def shown(entry: IndexedEntry) -> dict[str, Any]:
    """Return an entry with all that its owner or an operator may know of its state."""
    observed = entry.observed
    return {
        "identifier": entry.identifier,
        "displayName": entry.entry.get("displayName", ""),
        "type": entry.type,
        "url": entry.url,
        "source": entry.source,
        "authority": entry.authority.value,
        "standing": entry.standing.value,
        "reason": entry.reason,
        "trust": entry.trust.value,
        "trustReason": entry.trust_reason,
        "marks": list(entry.marks),
        "audience": [each.replace("\x1f", " ") for each in entry.audience],
        "revision": entry.revision,
        "updatedAt": entry.updated_at,
        "health": observed.health.value,
        "healthReason": observed.reason,
        "liveness": observed.liveness.value,
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT = {"type": "string"}
_TIME = {"type": "integer", "description": "In ms since 1970."}
_PUBLISHED = {
    "type": "object",
    "required": ["identifier", "standing"],
    "properties": {
        "identifier": _TEXT,
        "standing": _TEXT,
        "reason": _TEXT,
        "trust": _TEXT,
        "revision": {"type": "integer"},
        "changed": {"type": "boolean"},
    },
}

SCHEMAS: Mapping[str, Any] = {
    "Publish": {
        "type": "object",
        "properties": {
            "catalog": {"type": "object", "description": "A catalog, or entries:"},
            "entries": {"type": "array", "items": {"type": "object"}},
            "audience": {
                "type": "array",
                "maxItems": 100,
                "description": "Who sees the entries: public, authenticated, caller:ID, "
                "scope:NAME, or an object with caller and issuer.",
                "items": {
                    "oneOf": [_TEXT, {"type": "object", "additionalProperties": {"type": "string"}}]
                },
            },
            "probe": {
                "type": "string",
                "maxLength": 200,
                "description": "The text of a message that the agents may be probed with.",
            },
            "replace": {
                "type": "boolean",
                "default": False,
                "description": "These are all entries of the caller; withdraw the others.",
            },
        },
        "additionalProperties": False,
    },
    "PublishReport": {
        "type": "object",
        "required": ["entries", "refused", "withdrawn"],
        "properties": {
            "entries": {"type": "array", "items": _PUBLISHED},
            "refused": {"type": "array", "items": _PUBLISHED},
            "withdrawn": {"type": "integer"},
        },
    },
    "OwnEntries": {
        "type": "object",
        "required": ["entries", "domains"],
        "properties": {
            "entries": {"type": "array", "items": {"type": "object"}},
            "domains": {
                "type": "array",
                "items": {"type": "object", "properties": {"domain": _TEXT, "expiresAt": _TIME}},
            },
        },
    },
    "DomainProof": {
        "type": "object",
        "required": ["domain"],
        "properties": {
            "domain": _TEXT,
            "method": {"type": "string", "enum": ["", "dns", "well-known"]},
            "origin": {
                "type": "string",
                "description": "Where the document is, for domains of this machine alone.",
            },
        },
        "additionalProperties": False,
    },
    "DomainChallenge": {
        "type": "object",
        "properties": {
            "domain": _TEXT,
            "text": _TEXT,
            "expiresAt": _TIME,
            "record": _TEXT,
            "url": _TEXT,
            "document": {"type": "object"},
        },
    },
    "ProvedDomain": {
        "type": "object",
        "properties": {"domain": _TEXT, "method": _TEXT, "expiresAt": _TIME},
    },
}
