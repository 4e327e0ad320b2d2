"""Cards of agents on the command line: fetching and validating them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from msgspec import inspect

from parley.cli.calls.agent_call import RETRY, AgentCall
from parley.cli.output.failures import wrong_usage
from parley.cli.output.redaction import without_user
from parley.client.auth.authorizer import Authorizer
from parley.client.auth.credentials import Credentials
from parley.client.bindings.http import HttpTransport
from parley.client.card.resolver import CardResolver, ResolvedCard
from parley.client.card.trust import CardTrust
from parley.client.card.verification import CardVerifier
from parley.model.errors import A2AError
from parley.security.exposed_secrets import exposed, plain_urls
from parley.wire import versions
from parley.wire.json import protojson
from parley.wire.json.problems import MAX_PROBLEMS


async def fetch_card(
    call: AgentCall, trust: CardTrust | None
) -> tuple[ResolvedCard, Credentials, HttpTransport]:
    """Return the verified card of ``--agent-card``, with the credentials and transport that fetched
    it.
    """
    settings = call.settings
    with wrong_usage():
        reference, credentials = Credentials.from_reference(
            call.reference,
            headers=call.headers,
            bearer=settings.bearer,
            api_key=settings.api_key,
            trust_origins=settings.trust_origin,
            insecure=settings.insecure,
        )
    async with call.http() as http:
        auth = Authorizer(
            credentials,
            None if call.uses_logins else (),
            http=http,
            address=without_user(call.address),
        )
        http.certificate_for = auth.may_see_certificate
        resolver = CardResolver(
            http, credentials=credentials, auth=auth, timeout=call.response_timeout, retry=RETRY
        )
        verifier = CardVerifier(trust, http)
        try:
            resolved = await verifier.verify(await resolver.resolve(reference))
        finally:
            await verifier.aclose()
            await auth.aclose()
    return resolved, credentials, http


Fault = tuple[str, str]


def exposures(raw: bytes) -> list[str]:
    """Return secrets in a card, and its unencrypted addresses."""
    members = json.loads(raw)
    found = [
        f"{path}: this looks like {kind}, and cards are public: remove it, and revoke it "
        "if it is valid"
        for path, kind in exposed(members)
    ]
    return found + [
        f"{path}: http://{urlsplit(url).hostname} is not encrypted, which exposes the credentials "
        "that are sent there: use https://"
        for path, url in plain_urls(members)
    ]


def problems(raw: bytes) -> list[str]:
    """Return all problems of a card, with the paths of its members; an empty list for a valid card.

    A card is valid if it has the required members of its version. A card with members of both
    versions is checked against both. Unknown members are allowed.
    """
    members = json.loads(raw)
    is_latest = "supportedInterfaces" in members or "supported_interfaces" in members
    is_old = "url" in members and str(members.get("protocolVersion", "0")).startswith("0")
    found: dict[Fault, None] = {}
    if is_latest or not is_old:
        found |= dict.fromkeys(_of_latest(members))
    if is_old:
        found |= dict.fromkeys(_of_0_3(members))
    found |= dict.fromkeys(_of_both(members))
    return [f"{path}: {text}" if path else text for path, text in found]


def _of_latest(members: dict[str, Any]) -> Iterator[Fault]:
    yield from _of_schema(members, versions.LATEST)
    interfaces = members.get("supportedInterfaces", members.get("supported_interfaces"))
    if interfaces == []:
        yield "supportedInterfaces", "the list is missing or empty, so the agent cannot be called"
    for path, each in _objects(interfaces, "supportedInterfaces"):
        binding = each.get("protocolBinding", each.get("protocol_binding"))
        yield from _of_address(f"{path}.url", each.get("url"), binding)
    if "url" not in members:
        for path, secured in _secured(members):
            if "security" in secured:
                yield f"{path}security", "in version 1.0 this is securityRequirements"


def _of_0_3(members: dict[str, Any]) -> Iterator[Fault]:
    yield from _of_schema(members, "0.3")
    yield from _of_address("url", members.get("url"), members.get("preferredTransport", "JSONRPC"))
    for path, each in _objects(members.get("additionalInterfaces"), "additionalInterfaces"):
        yield from _of_address(f"{path}.url", each.get("url"), each.get("transport"))


def _of_both(members: dict[str, Any]) -> Iterator[Fault]:
    ids: list[Any] = []
    for path, skill in _objects(members.get("skills"), "skills"):
        if skill.get("id") and skill["id"] in ids:
            yield f"{path}.id", f"{skill['id']!r} is the id of another skill"
        ids.append(skill.get("id"))
    schemes = members.get("securitySchemes")
    declared = schemes if isinstance(schemes, dict) else {}
    for path, secured in _secured(members):
        for name in ("securityRequirements", "security"):
            for place, need in _objects(secured.get(name), path + name):
                named = need.get("schemes") if "schemes" in need else need
                for each in named if isinstance(named, dict) else ():
                    if each not in declared:
                        yield place, f"{each!r} is not among the securitySchemes"


def _of_schema(members: dict[str, Any], version: str) -> Iterator[Fault]:
    """Yield the invalid and the missing members."""
    kind = versions.card_schema(version)
    wrong: list[Fault] = []
    try:
        protojson.read(members, kind)
    except A2AError as error:
        wrong = [(each.field, each.description) for each in error.violations]
    yield from wrong
    if len(wrong) >= MAX_PROBLEMS:
        yield "", f"only the first {MAX_PROBLEMS} problems are listed: correct them and check again"
    known = {path for path, _ in wrong}
    for path in _missing(inspect.type_info(kind), members, ""):
        if path not in known:
            yield path, "required, but missing"


def _missing(info: inspect.Type, value: Any, path: str) -> Iterator[str]:
    """Yield missing required members, including members that ProtoJSON writers omit when empty."""
    match info:
        case inspect.StructType() if isinstance(value, dict):
            for field in info.fields:
                name = field.encode_name if field.encode_name in value else field.name
                held = value.get(name)
                where = f"{path}.{field.encode_name}".lstrip(".")
                if held is not None:
                    yield from _missing(field.type, held, where)
                elif field.required:
                    yield where
        case inspect.UnionType(types=types):
            for each in types:
                yield from _missing(each, value, path)
        case inspect.VarTupleType(item_type=item) if isinstance(value, list):
            for index, each in enumerate(value):
                yield from _missing(item, each, f"{path}[{index}]")
        case inspect.DictType(value_type=item) if isinstance(value, dict):
            for name, each in value.items():
                yield from _missing(item, each, f"{path}.{name}")


def _of_address(path: str, url: Any, binding: Any) -> Iterator[Fault]:
    if not isinstance(url, str) or not url:
        return  # the schema reports it
    try:
        parts = urlsplit(url)
        is_absolute = bool(parts.scheme and parts.hostname)
    except ValueError:
        parts, is_absolute = urlsplit(""), False
    binding = str(binding).upper()
    if binding in ("JSONRPC", "HTTP+JSON"):
        is_absolute = is_absolute and parts.scheme in ("http", "https")
    if binding != "GRPC" and not is_absolute:
        yield path, f"{url!r} is not absolute"


def _secured(members: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the card and its skills, which may have security requirements, with their path
    prefixes.
    """
    yield "", members
    for path, skill in _objects(members.get("skills"), "skills"):
        yield f"{path}.", skill


def _objects(items: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict):
            yield f"{path}[{index}]", item
