"""REST operations for publishers, their agents and operators, in addition to the ARD draft.

Publishers prove domains and publish entries, agents send heartbeats; operators decide on entries,
import catalogs, choose sources and read the audit log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from parley.model.errors import InvalidParamsError, PermissionDeniedError
from parley.registry.app.routes import Needs, RestRequest, is_operator, operation
from parley.registry.catalog.entries import MAX_URN
from parley.registry.health.prober import MAX_BEATS, BeatAnswer, Heartbeats, Identifier
from parley.registry.index.registry_index import MAX_DETAIL, MAX_DETAILS
from parley.registry.publishing.callers import (
    DECIDED,
    MAX_AUDIENCE,
    MAX_REASON,
    OperatorDecisions,
    read_audience,
)
from parley.registry.publishing.proofs import (
    METHODS,
    DomainChallenge,
    DomainProofs,
    ProvedDomain,
    Time,
)
from parley.registry.publishing.pushing import (
    MAX_PROBE_TEXT,
    EntryPublishing,
    PublishOptions,
    PublishReport,
)
from parley.registry.records import EntryStanding, IndexedEntry

_Audience = list[str | dict[str, str]]

MAX_PAGE = 500

_TEXT = {"type": "string"}
_IDENTIFIER = {"type": "string", "maxLength": MAX_URN}
_FROM_ONE = {"type": "integer", "minimum": 1}
_LIMIT = {**_FROM_ONE, "maximum": MAX_PAGE}


class PublishBody(msgspec.Struct, forbid_unknown_fields=True):
    """A catalog to publish, or its entries."""

    catalog: Annotated[
        dict[str, Any] | None, Meta(description="A catalog. Give either this or entries.")
    ] = None
    entries: list[Annotated[Any, Meta(extra_json_schema={"type": "object"})]] | None = None
    audience: Annotated[
        _Audience | None,
        Meta(
            description="The audience of the entries: public, authenticated, caller:ID, "
            "scope:NAME, or an "
            "object with caller and issuer.",
            extra_json_schema={"maxItems": MAX_AUDIENCE},
        ),
    ] = None
    probe: Annotated[
        str | None,
        Meta(
            description="The text of a message with which the registry may probe the agents.",
            extra_json_schema={"maxLength": MAX_PROBE_TEXT},
        ),
    ] = None
    replace: Annotated[
        bool, Meta(description="Replace all entries of the caller; the others are withdrawn.")
    ] = False


class DomainProof(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a domain challenge."""

    domain: str
    method: Annotated[str, Meta(extra_json_schema={"enum": ["", *METHODS]})] = ""
    origin: Annotated[
        str, Meta(description="The address of the document, only for domains of this machine.")
    ] = ""


class HeartbeatBody(msgspec.Struct, forbid_unknown_fields=True):
    """The identifiers of the caller's agents that are alive."""

    identifiers: Annotated[
        list[Identifier], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_BEATS})
    ]
    details: Annotated[
        dict[str, Annotated[str, Meta(extra_json_schema={"maxLength": MAX_DETAIL})]],
        Meta(extra_json_schema={"maxProperties": MAX_DETAILS}),
    ] = {}


class PublishingRoutes:
    """The operations of publishers and their agents."""

    def __init__(
        self, publishing: EntryPublishing, proofs: DomainProofs, heartbeats: Heartbeats
    ) -> None:
        self._publishing = publishing
        self._proofs = proofs
        self._heartbeats = heartbeats

    @operation(
        "POST",
        "/publish",
        needs=Needs.CALLER,
        responses={403: "The caller has not proved the domain.", 429: "A quota is exhausted."},
        is_large=True,
    )
    async def publish_entries(self, request: RestRequest, body: PublishBody) -> PublishReport:
        """Publish entries.

        The caller must have proved the domains of the entries' publishers. The entries belong to
        the caller; publishing them again replaces them.
        """
        catalog, options = read_publish(body)
        return await self._publishing.publish(
            request.caller, catalog, options, address=request.address
        )

    @operation("GET", "/publish", needs=Needs.CALLER)
    async def list_published(self, request: RestRequest) -> OwnEntries:
        """List the caller's published entries and proved domains."""
        entries = await self._publishing.own(request.caller)
        domains = await self._proofs.domains(request.caller)
        own = [OwnDomain(domain=name, expires_at=end) for name, end in domains.items()]
        return OwnEntries([shown(each) for each in entries], own)

    @operation(
        "DELETE",
        "/entries/{identifier}",
        needs=Needs.CALLER,
        path_parameters={"identifier": _IDENTIFIER},
        responses={403: "Another caller published it.", 404: "There is no such entry."},
    )
    async def withdraw_entry(self, request: RestRequest) -> dict[str, int]:
        """Withdraw an entry of the caller."""
        count = await self._publishing.withdraw(
            request.caller,
            request.path["identifier"],
            is_operator=is_operator(request.caller),
            address=request.address,
        )
        return {"withdrawn": count}

    @operation(
        "POST",
        "/publish/challenges",
        needs=Needs.CALLER,
        what="the request for a challenge",
        responses={201: "A new challenge; it replaces any earlier challenge."},
    )
    async def challenge_domain(self, request: RestRequest, body: DomainProof) -> DomainChallenge:
        """Request a challenge for a domain.

        The response has the text to publish, as a TXT record or in a document.
        """
        return await self._proofs.challenge(
            request.caller, body.domain, origin=body.origin, address=request.address
        )

    @operation(
        "POST",
        "/publish/domains",
        needs=Needs.CALLER,
        what="the proof",
        responses={403: "The text was not found.", 404: "There is no challenge."},
    )
    async def prove_domain(self, request: RestRequest, body: DomainProof) -> ProvedDomain:
        """Prove a domain.

        The registry looks for the text of the challenge in DNS and in the document.
        """
        return await self._proofs.prove(
            request.caller, body.domain, body.method, origin=body.origin, address=request.address
        )

    @operation(
        "DELETE",
        "/publish/domains/{domain}",
        needs=Needs.CALLER,
        path_parameters={"domain": {"type": "string", "maxLength": 253}},
        responses={
            204: "The domain no longer belongs to the caller.",
            404: "The domain did not belong to the caller.",
        },
    )
    async def release_domain(self, request: RestRequest) -> None:
        """Release a domain."""
        await self._proofs.release(request.caller, request.path["domain"], address=request.address)

    @operation(
        "POST",
        "/heartbeats",
        needs=Needs.CALLER,
        what="the heartbeat",
        responses={403: "The caller has published none of these agents."},
    )
    async def send_heartbeat(self, request: RestRequest, body: HeartbeatBody) -> BeatAnswer:
        """Report that agents of the caller are alive.

        After two missed heartbeats an agent is suspect, after four it is gone. The response says
        when the next heartbeat is due.
        """
        found = await self._heartbeats.beat(request.caller, body.identifiers, body.details)
        if not found.alive:
            names = ", ".join(each[:200] for each in found.unknown[:5])
            raise PermissionDeniedError(f"this caller has published no {names}: publish it first")
        return found


def read_publish(given: PublishBody) -> tuple[Mapping[str, Any], PublishOptions]:
    """Return the catalog of a body, and its options. Raises ``InvalidParamsError``."""
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
    """Return an entry with the state that its owner and operators may see."""
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


class OwnDomain(msgspec.Struct, rename="camel"):
    """A domain that the caller has proved."""

    domain: str
    expires_at: Time


class OwnEntries(msgspec.Struct):
    """The caller's published entries and proved domains."""

    entries: list[dict[str, Any]]
    domains: list[OwnDomain]


# The operations of operators: decide on entries, import, choose sources, read the audit log.

WAITING = (EntryStanding.HELD, EntryStanding.REJECTED, EntryStanding.PENDING)
"""The standings that an operator sees by default."""


class EntryDecision(msgspec.Struct, forbid_unknown_fields=True):
    """An operator's decision on an entry."""

    standing: Annotated[EntryStanding, Meta(extra_json_schema={"enum": [*DECIDED]})]
    reason: Annotated[str, Meta(extra_json_schema={"maxLength": MAX_REASON})] = ""
    source: str = ""


class NewSource(msgspec.Struct, forbid_unknown_fields=True):
    """A site or a catalog to read."""

    url: str
    vouches: Annotated[
        bool, Meta(description="The operator vouches for the publishers of its entries.")
    ] = False
    audience: _Audience = []


class RefreshBody(msgspec.Struct, forbid_unknown_fields=True):
    """A source to read again now."""

    url: Annotated[str, Meta(description="The address of a source as listed, or its domain.")]


class OperatorRoutes:
    """The operations of operators. The audit log records every change."""

    def __init__(self, decisions: OperatorDecisions, publishing: EntryPublishing) -> None:
        self._decisions = decisions
        self._publishing = publishing

    @operation(
        "GET",
        "/operator/entries",
        needs=Needs.OPERATOR,
        is_open_here=True,
        parameters={"standing": _TEXT, "limit": _LIMIT, "offset": _FROM_ONE},
    )
    async def list_entries_for_operators(self, request: RestRequest) -> dict[str, list[Any]]:
        """List entries by standing, with the reasons."""
        names = [each for each in request.query.get("standing", "").split(",") if each]
        try:
            standings = tuple(EntryStanding(each) for each in names) or WAITING
        except ValueError:
            raise InvalidParamsError(
                f"standing is a comma-separated list of: {', '.join(EntryStanding)}"
            ) from None
        limit = request.number("limit", 100, most=MAX_PAGE)
        offset = request.number("offset", 1, most=1_000_000) - 1
        found = await self._decisions.entries(standings, limit, offset)
        return {"entries": [shown(each) for each in found]}

    @operation(
        "POST",
        "/operator/entries/{identifier}",
        needs=Needs.OPERATOR,
        what="the decision",
        path_parameters={"identifier": _IDENTIFIER},
        responses={404: "There is no such entry.", 409: "Several sources have this entry."},
    )
    async def decide_entry(self, request: RestRequest, body: EntryDecision) -> dict[str, Any]:
        """List, hold or reject an entry."""
        found = await self._decisions.decide(
            request.caller,
            request.path["identifier"],
            body.standing,
            body.reason,
            source=body.source,
            address=request.address,
        )
        return shown(found)

    @operation(
        "POST",
        "/operator/import/{name}",
        needs=Needs.OPERATOR,
        path_parameters={"name": {"type": "string", "maxLength": 500}},
        is_large=True,
    )
    async def import_entries(self, request: RestRequest, body: PublishBody) -> PublishReport:
        """Import a catalog that the operator vouches for."""
        catalog, options = read_publish(body)
        return await self._publishing.bring_in(
            request.caller, catalog, request.path["name"], options, address=request.address
        )

    @operation(
        "GET",
        "/operator/sources",
        needs=Needs.OPERATOR,
        is_open_here=True,
        parameters={"limit": {"type": "integer", "minimum": 1, "maximum": 10_000}},
    )
    async def list_sources(self, request: RestRequest) -> dict[str, list[Any]]:
        """List the sources, with the results of their last visits."""
        limit = request.number("limit", 1_000, most=10_000)
        return {"sources": [*await self._decisions.index.sources(limit=limit)]}

    @operation(
        "POST",
        "/operator/sources",
        needs=Needs.OPERATOR,
        what="the source",
        responses={201: "The source is read soon.", 409: "The source exists already."},
    )
    async def add_source(self, request: RestRequest, body: NewSource) -> dict[str, Any]:
        """Read a site or a catalog from now on."""
        source = await self._decisions.add_source(
            request.caller,
            body.url,
            vouches=body.vouches,
            audience=read_audience(body.audience, request.caller),
            address=request.address,
        )
        return msgspec.structs.asdict(source)

    @operation(
        "POST",
        "/operator/refresh",
        needs=Needs.OPERATOR,
        is_open_here=True,
        what="the source",
        responses={404: "There is none."},
    )
    async def refresh_source(self, request: RestRequest, body: RefreshBody) -> dict[str, list[Any]]:
        """Read a source again now, with the catalogs it leads to and all cards.

        Waits a while for the visits; a source with `refresh` in its settings is still being read.
        """
        found = await self._decisions.refresh(request.caller, body.url, address=request.address)
        return {"sources": [*found]}

    @operation(
        "DELETE",
        "/operator/sources",
        needs=Needs.OPERATOR,
        parameters={"url": _TEXT},
        responses={204: "It is gone.", 404: "There is none."},
    )
    async def remove_source(self, request: RestRequest) -> None:
        """Remove a source, and withdraw its entries."""
        url = request.query.get("url", "")
        if not url:
            raise InvalidParamsError("name the source: ?url=https://...")
        await self._decisions.remove_source(request.caller, url, address=request.address)

    @operation(
        "GET",
        "/operator/audit",
        needs=Needs.OPERATOR,
        parameters={
            "after": _FROM_ONE,
            "limit": _LIMIT,
            "kind": _TEXT,
            "actor": _TEXT,
            "subject": _TEXT,
        },
    )
    async def read_audit(self, request: RestRequest) -> dict[str, list[Any]]:
        """Read the audit log.

        Without `after` the last lines; with `after` the lines that follow it.
        """
        after = request.query.get("after")
        lines = await self._decisions.index.acts(
            after=0 if after is None else request.number("after", 1, most=10**9 - 1),
            limit=request.number("limit", 100, most=MAX_PAGE),
            kind=request.query.get("kind", ""),
            actor=request.query.get("actor", ""),
            subject=request.query.get("subject", ""),
            newest=after is None,
        )
        return {"lines": [*lines]}
