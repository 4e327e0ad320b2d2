"""Checks of an agent's card."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from parley.client.bindings.binding import canonical, is_supported
from parley.conformance.probe import LoggedTransport, WireExchange, members_of
from parley.conformance.verdicts import (
    ALL_BINDINGS,
    ALL_VERSIONS,
    Checks,
    ConformanceViolation,
    NotApplicable,
    fail_if,
)
from parley.model.errors import an
from parley.security.exposed_secrets import exposed, plain_urls

check = Checks("card")


class CardProbe(msgspec.Struct, kw_only=True):
    """A card in its received form: its members, and the HTTP exchange if it was fetched."""

    http: LoggedTransport
    members: dict[str, Any]
    exchange: WireExchange | None = None

    @property
    def fetched(self) -> WireExchange:
        """The exchange. Raises ``NotApplicable`` for a card that was not fetched."""
        if self.exchange is None:
            raise NotApplicable("the card was given as a document, not fetched")
        return self.exchange

    @property
    def is_latest(self) -> bool:
        """Return whether the card has the members of 1.0."""
        return "supportedInterfaces" in self.members


@check("CARD-1", "MUST", "8.2", "The card is at the well-known path, with status 200")
async def _(probe: CardProbe) -> None:
    fail_if(not probe.fetched or not probe.members, "the answer is not a JSON object")


@check("CARD-2", "SHOULD", "8.2", "The card is sent as JSON")
async def _(probe: CardProbe) -> None:
    kind = probe.fetched.media_type
    if not (kind.endswith("/json") or kind.endswith("+json")):
        raise ConformanceViolation(
            f"its Content-Type is {kind or 'missing'!r}, not application/json"
        )


@check("CARD-3", "MUST", "4.4.1", "The card has every required member, of the right type")
async def _(probe: CardProbe) -> None:
    wanted: dict[str, type] = {
        "name": str,
        "description": str,
        "version": str,
        "capabilities": dict,
        "defaultInputModes": list,
        "defaultOutputModes": list,
        "skills": list,
    }
    if probe.is_latest:
        wanted["supportedInterfaces"] = list
    else:
        wanted["url"] = str
    for name, kind in wanted.items():
        fail_if(name not in probe.members, f"{name} is missing")
        if not isinstance(probe.members[name], kind):
            was = type(probe.members[name]).__name__
            raise ConformanceViolation(f"{name} is {an(was)}, not {an(kind.__name__)}")


@check("CARD-4", "MUST", "4.4.6", "Every interface has a URL, a binding and a version")
async def _(probe: CardProbe) -> None:
    if not probe.is_latest:
        raise NotApplicable("the card is a card of 0.3")
    interfaces = probe.members["supportedInterfaces"]
    fail_if(not interfaces, "supportedInterfaces is empty: the agent cannot be called")
    for index, each in enumerate(interfaces):
        for name in ("url", "protocolBinding", "protocolVersion"):
            if not isinstance(each, dict) or not isinstance(each.get(name), str) or not each[name]:
                raise ConformanceViolation(f"supportedInterfaces[{index}].{name} is missing")
        is_http = each["protocolBinding"] in ("JSONRPC", "HTTP+JSON")
        if is_http and urlsplit(each["url"]).scheme not in ("http", "https"):
            raise ConformanceViolation(
                f"supportedInterfaces[{index}].url {each['url']!r} is not absolute"
            )


@check("CARD-5", "MUST", "4.4.5", "Every skill has an id, a name, a description and tags")
async def _(probe: CardProbe) -> None:
    seen = set()
    for index, skill in enumerate(probe.members.get("skills") or ()):
        for name in ("id", "name", "description"):
            if not isinstance(skill.get(name), str) or not skill[name]:
                raise ConformanceViolation(f"skills[{index}].{name} is missing")
        fail_if(not isinstance(skill.get("tags"), list), f"skills[{index}].tags is missing")
        if skill["id"] in seen:
            raise ConformanceViolation(
                f"skills[{index}].id {skill['id']!r} is the id of another skill"
            )
        seen.add(skill["id"])


@check("CARD-6", "SHOULD", "8.6.1", "The card says how long it may be cached (Cache-Control)")
async def _(probe: CardProbe) -> None:
    if "max-age" not in probe.fetched.headers.get("cache-control", ""):
        raise ConformanceViolation("the answer has no Cache-Control with a max-age")


@check("CARD-7", "SHOULD", "8.6.1", "The card has an ETag, and an unchanged card is 304")
async def _(probe: CardProbe) -> None:
    tag = probe.fetched.headers.get("etag", "")
    fail_if(not tag, "the answer has no ETag")
    reply = await probe.http.send(
        "GET", probe.fetched.url, {**probe.fetched.asked, "If-None-Match": tag}, None, timeout=10
    )
    if reply.status != 304:
        raise ConformanceViolation(
            f"with If-None-Match: {tag} the status is {reply.status}, not 304"
        )


@check("CARD-8", "MUST", "4.4.1", "Every security requirement names a scheme of the card")
async def _(probe: CardProbe) -> None:
    schemes = probe.members.get("securitySchemes") or {}
    needs = probe.members.get("securityRequirements") or probe.members.get("security") or ()
    for need in needs:
        named = need.get("schemes", need) if isinstance(need, dict) else {}
        for name in named:
            fail_if(name not in schemes, f"{name!r} is not among the securitySchemes")


@check("CARD-9", "SHOULD", "7.1", "The card has no secrets and no unencrypted addresses")
async def _(probe: CardProbe) -> None:
    for path, kind in exposed(probe.members):
        raise ConformanceViolation(f"{path} looks like {kind}, and a card is public")
    for path, url in plain_urls(probe.members):
        raise ConformanceViolation(f"{path}: http://{urlsplit(url).hostname} is not encrypted")


@check("CARD-10", "MUST", "8.3.1", "Core bindings are named as in the specification")
async def _(probe: CardProbe) -> None:
    interfaces = [
        *(probe.members.get("supportedInterfaces") or ()),
        *(probe.members.get("additionalInterfaces") or ()),
    ]
    for each in interfaces:
        name = each.get("protocolBinding", each.get("transport", ""))
        if name not in ALL_BINDINGS and is_supported(canonical(name)) and ":" not in name:
            raise ConformanceViolation(f"{name!r} should be {canonical(name)!r}")


@check("CARD-11", "MUST", "0.3:5.6.1", "A card of 0.3 names its version and a known transport")
async def _(probe: CardProbe) -> None:
    if "url" not in probe.members:
        raise NotApplicable("the card has no members of 0.3")
    if not str(probe.members.get("protocolVersion", "")).startswith("0."):
        raise ConformanceViolation(
            f"protocolVersion is {probe.members.get('protocolVersion')!r}, not a version of 0.3"
        )
    preferred = probe.members.get("preferredTransport", "JSONRPC")
    fail_if(preferred not in ALL_BINDINGS, f"preferredTransport is {preferred!r}")


@check("CARD-12", "MAY", "8.2", "The card is also at the path of versions before 0.3")
async def _(probe: CardProbe) -> None:
    url = probe.fetched.url
    if not url.endswith("/agent-card.json"):
        raise NotApplicable("the card is not at the well-known path")
    older = await _asked(probe, url.replace("/agent-card.json", "/agent.json"))
    fail_if(older != probe.members, "agent.json is not the same card")


@check("CARD-13", "MAY", "4.4.1", "A request that names a version gets that version's card only")
async def _(probe: CardProbe) -> None:
    if not probe.is_latest or "url" not in probe.members:
        raise NotApplicable("the card does not have the members of both versions")
    new, old = [await _asked(probe, probe.fetched.url, v) for v in ALL_VERSIONS]
    mixed = OLD_MEMBERS & new.keys() or "supportedInterfaces" not in new
    fail_if(mixed, "the card for 1.0 lacks members of 1.0, or has members of 0.3")
    mixed = "supportedInterfaces" in old or "url" not in old
    fail_if(mixed, "the card for 0.3 lacks members of 0.3, or has members of 1.0")


@check("CARD-14", "MAY", "4.4.6", "The address of a gRPC interface is host:port")
async def _(probe: CardProbe) -> None:
    for each in probe.members.get("supportedInterfaces") or ():
        is_url = each.get("protocolBinding") == "GRPC" and "/" in each.get("url", "")
        fail_if(is_url, f"it is {each['url']!r}")


@check("CARD-15", "MUST", "4.4.1", "Security requirements have the form of their version")
async def _(probe: CardProbe) -> None:
    for need in probe.members.get("securityRequirements") or ():
        schemes = need.get("schemes") if need else {}  # empty: no credentials are required
        lists = isinstance(schemes, dict) and all("list" in v or not v for v in schemes.values())
        fail_if(not lists, f"the requirement {need} does not have the form of 1.0")
    for need in probe.members.get("security") or () if "url" in probe.members else ():
        lists = all(isinstance(scopes, list) for scopes in need.values())
        fail_if(not lists, f"the requirement {need} does not have the form of 0.3")


OLD_MEMBERS = {"url", "preferredTransport", "protocolVersion", "additionalInterfaces"}


async def _asked(probe: CardProbe, url: str, version: str = "") -> dict[str, Any]:
    """Return the card at an address, requested in a version."""
    named = {"A2A-Version": version} if version else {}
    await probe.http.send("GET", url, {**probe.fetched.asked, **named}, None, timeout=10)
    return members_of(probe.http.last and probe.http.last.json)
