"""What operators do over REST: decide on entries, import, choose sources, read the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.model.errors import InvalidParamsError
from parley.registry.app.operations import Needs, Operation, RestAnswer, RestRequest
from parley.registry.app.publishing_routes import SCHEMAS as PUBLISHING
from parley.registry.app.publishing_routes import read_publish, shown
from parley.registry.publishing.audience import read_audience
from parley.registry.publishing.decisions import DECIDED, OperatorDecisions
from parley.registry.publishing.pushing import EntryPublishing
from parley.registry.records import EntryStanding

MAX_PAGE = 500
WAITING = (EntryStanding.HELD, EntryStanding.REJECTED, EntryStanding.PENDING)
"""The standings that an operator looks at, unless others are named."""


class _Decision(msgspec.Struct, forbid_unknown_fields=True):
    standing: EntryStanding
    reason: str = ""
    source: str = ""


class _NewSource(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    vouches: bool = False
    audience: list[str | dict[str, str]] = []


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
        given = request.read(_Decision, "the decision")
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
        given = request.read(_NewSource, "the source")
        audience = read_audience(given.audience, request.caller)
        source = await self._decisions.add_source(
            request.caller,
            given.url,
            vouches=given.vouches,
            audience=audience,
            address=request.address,
        )
        return RestAnswer(body=msgspec.to_builtins(source), status=201)

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
        listed = {"type": "object", "additionalProperties": {"type": "array"}}
        return (
            Operation(
                name="listEntriesForOperators",
                method="GET",
                path="/operator/entries",
                handler=self.entries,
                needs=Needs.OPERATOR,
                summary="Entries by standing, with the reasons",
                parameters={
                    "standing": text,
                    "limit": limit,
                    "offset": {"type": "integer", "minimum": 1},
                },
                response=listed,
                schemas=SCHEMAS,
            ),
            Operation(
                name="decideEntry",
                method="POST",
                path="/operator/entries/{identifier}",
                handler=self.decide,
                needs=Needs.OPERATOR,
                summary="List, hold or reject an entry",
                path_parameters={"identifier": {"type": "string", "maxLength": 512}},
                request=_ref("Decision"),
                response={"type": "object"},
                responses={404: "There is none.", 409: "Several sources have it."},
                schemas=SCHEMAS,
            ),
            Operation(
                name="importEntries",
                method="POST",
                path="/operator/import/{name}",
                handler=self.bring_in,
                needs=Needs.OPERATOR,
                summary="Import a catalog that the operator vouches for",
                path_parameters={"name": {"type": "string", "maxLength": 500}},
                request=_ref("Publish"),
                response=_ref("PublishReport"),
                schemas=SCHEMAS,
                max_body=self._publishing.limits.document_bytes,
            ),
            Operation(
                name="listSources",
                method="GET",
                path="/operator/sources",
                handler=self.sources,
                needs=Needs.OPERATOR,
                summary="What is read, and what the last visits found",
                parameters={"limit": {"type": "integer", "minimum": 1, "maximum": 10_000}},
                response=listed,
                schemas=SCHEMAS,
            ),
            Operation(
                name="addSource",
                method="POST",
                path="/operator/sources",
                handler=self.add_source,
                needs=Needs.OPERATOR,
                summary="Read a site or a catalog from now on",
                request=_ref("NewSource"),
                response={"type": "object"},
                responses={201: "It is read soon.", 409: "It is read already."},
                schemas=SCHEMAS,
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
                schemas=SCHEMAS,
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
                schemas=SCHEMAS,
            ),
        )


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: Mapping[str, Any] = {
    **PUBLISHING,
    "Decision": {
        "type": "object",
        "required": ["standing"],
        "properties": {
            "standing": {"type": "string", "enum": [each.value for each in DECIDED]},
            "reason": {"type": "string", "maxLength": 500},
            "source": {"type": "string"},
        },
        "additionalProperties": False,
    },
    "NewSource": {
        "type": "object",
        "required": ["url"],
        "properties": {
            "url": {"type": "string"},
            "vouches": {
                "type": "boolean",
                "default": False,
                "description": "The operator answers for the publishers of its entries.",
            },
            "audience": {"type": "array", "items": {}},
        },
        "additionalProperties": False,
    },
}
