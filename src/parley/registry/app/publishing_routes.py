"""What publishers, their agents and operators do over REST, an addition to the draft.

Publishers prove domains and push entries, agents send heartbeats; operators decide on entries,
import, choose sources and read the audit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from parley.model.errors import InvalidParamsError, PermissionDeniedError
from parley.registry.app.routes import Needs, Operation, RestAnswer, RestRequest, is_operator
from parley.registry.health.prober import MAX_BEATS, BeatAnswer, Heartbeats, Identifier
from parley.registry.index.registry_index import MAX_DETAIL, MAX_DETAILS
from parley.registry.publishing.callers import MAX_AUDIENCE, read_audience
from parley.registry.publishing.decisions import DECIDED, MAX_REASON, OperatorDecisions
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


class PublishBody(msgspec.Struct, forbid_unknown_fields=True):
    """A catalog to publish, or its entries."""

    catalog: Annotated[
        dict[str, Any] | None, Meta(description="A catalog; or its entries alone.")
    ] = None
    entries: list[Annotated[Any, Meta(extra_json_schema={"type": "object"})]] | None = None
    audience: Annotated[
        _Audience | None,
        Meta(
            description="Who sees the entries: public, authenticated, caller:ID, scope:NAME, or an "
            "object with caller and issuer.",
            extra_json_schema={"maxItems": MAX_AUDIENCE},
        ),
    ] = None
    probe: Annotated[
        str | None,
        Meta(
            description="The text of a message that the agents may be probed with.",
            extra_json_schema={"maxLength": MAX_PROBE_TEXT},
        ),
    ] = None
    replace: Annotated[
        bool, Meta(description="These are all entries of the caller; withdraw the others.")
    ] = False


class DomainProof(msgspec.Struct, forbid_unknown_fields=True):
    """A domain that the caller proves."""

    domain: str
    method: Annotated[str, Meta(extra_json_schema={"enum": ["", *METHODS]})] = ""
    origin: Annotated[
        str, Meta(description="Where the document is, for domains of this machine alone.")
    ] = ""


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
        own = [OwnDomain(domain=name, expires_at=end) for name, end in domains.items()]
        return RestAnswer(body=OwnEntries([shown(each) for each in entries], own))

    async def challenge(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /publish/challenges``."""
        given = request.read(DomainProof, "the request for a challenge")
        found = await self._proofs.challenge(
            request.caller, given.domain, origin=given.origin, address=request.address
        )
        return RestAnswer(body=found, status=201)

    async def prove(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /publish/domains``."""
        given = request.read(DomainProof, "the proof")
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
                request=PublishBody,
                response=PublishReport,
                responses={403: "The domain is not proved.", 429: "A quota is used up."},
                max_body=self._publishing.limits.document_bytes,
            ),
            Operation(
                name="listPublished",
                method="GET",
                path="/publish",
                handler=self.own,
                needs=Needs.CALLER,
                summary="What the caller has published and proved",
                response=OwnEntries,
            ),
            Operation(
                name="withdrawEntry",
                method="DELETE",
                path="/entries/{identifier}",
                handler=self.withdraw,
                needs=Needs.CALLER,
                summary="Withdraw an entry of the caller",
                path_parameters={"identifier": {"type": "string", "maxLength": 512}},
                response=dict[str, int],
                responses={403: "Another caller published it.", 404: "There is none."},
            ),
            Operation(
                name="challengeDomain",
                method="POST",
                path="/publish/challenges",
                handler=self.challenge,
                needs=Needs.CALLER,
                summary="Ask for what proves a domain",
                description="The answer has the text to show, as a TXT record or in a document.",
                request=DomainProof,
                response=DomainChallenge,
                responses={201: "A new challenge; one that was given before counts no more."},
            ),
            Operation(
                name="proveDomain",
                method="POST",
                path="/publish/domains",
                handler=self.prove,
                needs=Needs.CALLER,
                summary="Prove a domain",
                description="Looks for the text of the challenge in DNS and in the document.",
                request=DomainProof,
                response=ProvedDomain,
                responses={403: "The text is not there.", 404: "There is no challenge."},
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
            ),
        )


def read_publish(request: RestRequest) -> tuple[Mapping[str, Any], PublishOptions]:
    """Return the catalog of a body and the options beside it. Raises ``InvalidParamsError``."""
    given = request.read(PublishBody, "the body")
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


class OwnDomain(msgspec.Struct, rename="camel"):
    """A domain that the caller has proved."""

    domain: str
    expires_at: Time


class OwnEntries(msgspec.Struct):
    """What the caller has published and proved."""

    entries: list[dict[str, Any]]
    domains: list[OwnDomain]


# What operators do over REST: decide on entries, import, choose sources, read the audit.

MAX_PAGE = 500
WAITING = (EntryStanding.HELD, EntryStanding.REJECTED, EntryStanding.PENDING)
"""The standings that an operator looks at, unless others are named."""


class EntryDecision(msgspec.Struct, forbid_unknown_fields=True):
    """An operator's decision on an entry."""

    standing: Annotated[EntryStanding, Meta(extra_json_schema={"enum": [*DECIDED]})]
    reason: Annotated[str, Meta(extra_json_schema={"maxLength": MAX_REASON})] = ""
    source: str = ""


class NewSource(msgspec.Struct, forbid_unknown_fields=True):
    """A site or a catalog to read."""

    url: str
    vouches: Annotated[
        bool, Meta(description="The operator answers for the publishers of its entries.")
    ] = False
    audience: _Audience = []


class RefreshBody(msgspec.Struct, forbid_unknown_fields=True):
    """A source to read again now."""

    url: Annotated[str, Meta(description="A source, as it is listed; or its domain.")]


class OperatorRoutes:
    """The operations of operators. Each act is in the audit."""

    def __init__(self, decisions: OperatorDecisions, publishing: EntryPublishing) -> None:
        self._decisions = decisions
        self._publishing = publishing

    async def entries(self, request: RestRequest) -> RestAnswer:
        """Answer ``GET /operator/entries``."""
        names = [each for each in request.query.get("standing", "").split(",") if each]
        try:
            standings = tuple(EntryStanding(each) for each in names) or WAITING
        except ValueError:
            raise InvalidParamsError(
                f"standing is one or more of {', '.join(EntryStanding)}, with commas"
            ) from None
        limit = request.number("limit", 100, most=MAX_PAGE)
        offset = request.number("offset", 1, most=1_000_000) - 1
        found = await self._decisions.entries(standings, limit, offset)
        return RestAnswer(body={"entries": [shown(each) for each in found]})

    async def decide(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /operator/entries/{identifier}``."""
        given = request.read(EntryDecision, "the decision")
        found = await self._decisions.decide(
            request.caller,
            request.path["identifier"],
            given.standing,
            given.reason,
            source=given.source,
            address=request.address,
        )
        return RestAnswer(body=shown(found))

    async def bring_in(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /operator/import/{name}``."""
        catalog, options = read_publish(request)
        report = await self._publishing.bring_in(
            request.caller, catalog, request.path["name"], options, address=request.address
        )
        return RestAnswer(body=report)

    async def sources(self, request: RestRequest) -> RestAnswer:
        """Answer ``GET /operator/sources``."""
        found = await self._decisions.sources(request.number("limit", 1_000, most=10_000))
        return RestAnswer(body={"sources": [msgspec.to_builtins(each) for each in found]})

    async def add_source(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /operator/sources``."""
        given = request.read(NewSource, "the source")
        audience = read_audience(given.audience, request.caller)
        source = await self._decisions.add_source(
            request.caller,
            given.url,
            vouches=given.vouches,
            audience=audience,
            address=request.address,
        )
        return RestAnswer(body=msgspec.to_builtins(source), status=201)

    async def refresh(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /operator/refresh``."""
        given = request.read(RefreshBody, "the source")
        found = await self._decisions.refresh(request.caller, given.url, address=request.address)
        return RestAnswer(body={"sources": [msgspec.to_builtins(each) for each in found]})

    async def remove_source(self, request: RestRequest) -> RestAnswer:
        """Answer ``DELETE /operator/sources``."""
        url = request.query.get("url", "")
        if not url:
            raise InvalidParamsError("name the source: ?url=https://...")
        await self._decisions.remove_source(request.caller, url, address=request.address)
        return RestAnswer(status=204)

    async def acts(self, request: RestRequest) -> RestAnswer:
        """Answer ``GET /operator/audit``."""
        after = request.query.get("after")
        lines = await self._decisions.acts(
            after=0 if after is None else request.number("after", 1, most=10**9 - 1),
            limit=request.number("limit", 100, most=MAX_PAGE),
            kind=request.query.get("kind", ""),
            actor=request.query.get("actor", ""),
            subject=request.query.get("subject", ""),
            newest=after is None,
        )
        return RestAnswer(body={"lines": [msgspec.to_builtins(each) for each in lines]})

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The rows of the table."""
        text = {"type": "string"}
        limit = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}
        listed = dict[str, list[Any]]
        return (
            Operation(
                name="listEntriesForOperators",
                method="GET",
                path="/operator/entries",
                handler=self.entries,
                needs=Needs.OPERATOR,
                is_open_here=True,
                summary="Entries by standing, with the reasons",
                parameters={
                    "standing": text,
                    "limit": limit,
                    "offset": {"type": "integer", "minimum": 1},
                },
                response=listed,
            ),
            Operation(
                name="decideEntry",
                method="POST",
                path="/operator/entries/{identifier}",
                handler=self.decide,
                needs=Needs.OPERATOR,
                summary="List, hold or reject an entry",
                path_parameters={"identifier": {"type": "string", "maxLength": 512}},
                request=EntryDecision,
                response=dict[str, Any],
                responses={404: "There is none.", 409: "Several sources have it."},
            ),
            Operation(
                name="importEntries",
                method="POST",
                path="/operator/import/{name}",
                handler=self.bring_in,
                needs=Needs.OPERATOR,
                summary="Import a catalog that the operator vouches for",
                path_parameters={"name": {"type": "string", "maxLength": 500}},
                request=PublishBody,
                response=PublishReport,
                max_body=self._publishing.limits.document_bytes,
            ),
            Operation(
                name="listSources",
                method="GET",
                path="/operator/sources",
                handler=self.sources,
                needs=Needs.OPERATOR,
                is_open_here=True,
                summary="What is read, and what the last visits found",
                parameters={"limit": {"type": "integer", "minimum": 1, "maximum": 10_000}},
                response=listed,
            ),
            Operation(
                name="addSource",
                method="POST",
                path="/operator/sources",
                handler=self.add_source,
                needs=Needs.OPERATOR,
                summary="Read a site or a catalog from now on",
                request=NewSource,
                response=dict[str, Any],
                responses={201: "It is read soon.", 409: "It is read already."},
            ),
            Operation(
                name="refreshSource",
                method="POST",
                path="/operator/refresh",
                handler=self.refresh,
                needs=Needs.OPERATOR,
                is_open_here=True,
                summary="Read a source again now, and what it leads to, with all cards",
                description="Waits a while for the visits; a source with `refresh` in its settings "
                "is still being read.",
                request=RefreshBody,
                response=listed,
                responses={404: "There is none."},
            ),
            Operation(
                name="removeSource",
                method="DELETE",
                path="/operator/sources",
                handler=self.remove_source,
                needs=Needs.OPERATOR,
                summary="Read a source no more, and withdraw its entries",
                parameters={"url": text},
                responses={204: "It is gone.", 404: "There is none."},
            ),
            Operation(
                name="readAudit",
                method="GET",
                path="/operator/audit",
                handler=self.acts,
                needs=Needs.OPERATOR,
                summary="Who did what: the lines of the audit",
                description="Without `after` the last lines; with it those that follow.",
                parameters={
                    "after": {"type": "integer", "minimum": 1},
                    "limit": limit,
                    "kind": text,
                    "actor": text,
                    "subject": text,
                },
                response=listed,
            ),
        )


# Heartbeats over REST.


class HeartbeatBody(msgspec.Struct, forbid_unknown_fields=True):
    """Agents of the caller that are alive."""

    identifiers: Annotated[
        list[Identifier], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_BEATS})
    ]
    details: Annotated[
        dict[str, Annotated[str, Meta(extra_json_schema={"maxLength": MAX_DETAIL})]],
        Meta(extra_json_schema={"maxProperties": MAX_DETAILS}),
    ] = {}


class HeartbeatRoutes:
    """The operation that agents say with that they are alive."""

    def __init__(self, heartbeats: Heartbeats) -> None:
        self._heartbeats = heartbeats

    async def beat(self, request: RestRequest) -> RestAnswer:
        """Answer ``POST /heartbeats``."""
        given = request.read(HeartbeatBody, "the heartbeat")
        found = await self._heartbeats.beat(request.caller, given.identifiers, given.details)
        if not found.alive:
            names = ", ".join(each[:200] for each in found.unknown[:5])
            raise PermissionDeniedError(f"this caller has published no {names}: publish it first")
        return RestAnswer(body=found)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The rows of the table."""
        return (
            Operation(
                name="sendHeartbeat",
                method="POST",
                path="/heartbeats",
                handler=self.beat,
                needs=Needs.CALLER,
                summary="Say that agents of the caller are alive",
                description="After two missed heartbeats an agent is suspect, after four gone. The "
                "answer says when the next one is wanted.",
                request=HeartbeatBody,
                response=BeatAnswer,
                responses={403: "The caller has published none of them."},
            ),
        )
