"""Reads, writes and checks catalogs (ARD 0.91 §4, and the forms of ARD 0.9 and the AI Catalog).

Published catalogs have ``mediaType`` (AI Catalog) or ``type`` (ARD), and unknown members. An
invalid entry is left out with the reason; the rest of its catalog stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from parley.model.errors import an
from parley.registry.catalog.entries import (
    A2A_CARD_TYPES,
    CATALOG,
    MAX_NESTING,
    MCP_CARD,
    REGISTRY_TYPES,
    AICatalog,
    AirUrn,
    CatalogEntry,
    CatalogHost,
    CatalogStruct,
    InvalidUrn,
    domain,
    expanded,
    is_within,
)

MAX_TEXT = 4_096
"""The length limit of a text of an entry; longer texts are cut."""

MAX_LIST = 64
"""The number of tags, capabilities and queries of an entry read."""

_OWN = ("data", "trust_document", "more")
_NAMES = {
    field.encode_name for field in msgspec.structs.fields(CatalogEntry) if field.name not in _OWN
} | {"data", "mediaType"}


class InvalidCatalog(ValueError):
    """A document is not a catalog. The message says what is wrong."""


class InvalidEntry(ValueError):
    """An entry is invalid. The message says what is wrong."""


class RejectedEntry(CatalogStruct, frozen=True, kw_only=True):
    """An entry that was left out. ``identifier`` is its own, else its path: ``entries[3]``."""

    identifier: str
    reason: str


class ReadCatalog(CatalogStruct, frozen=True, kw_only=True):
    """A catalog without its invalid entries."""

    catalog: AICatalog
    rejected: tuple[RejectedEntry, ...] = ()


def read_catalog(body: bytes | Mapping[str, Any], *, max_entries: int = 10_000) -> ReadCatalog:
    """Read a catalog from JSON. Raises ``InvalidCatalog``.

    Entries beyond ``max_entries`` are rejected as one.
    """
    document = _object(body, "a catalog")
    version = document.get("specVersion", "1.0")  # ARD 0.91 reads only the entries
    listed = document.get("entries")
    if not isinstance(listed, list):
        raise InvalidCatalog("a catalog must have a list of entries")
    entries: list[CatalogEntry] = []
    rejected: list[RejectedEntry] = []
    for number, each in enumerate(listed[:max_entries]):
        try:
            entries.append(read_entry(each))
        except InvalidEntry as error:
            named = each.get("identifier") if isinstance(each, Mapping) else ""
            named = named[:MAX_TEXT].strip() if isinstance(named, str) else ""
            named = named or f"entries[{number}]"
            rejected.append(RejectedEntry(identifier=named, reason=str(error)))
    if len(listed) > max_entries:
        more = f"{len(listed) - max_entries} entries beyond the first {max_entries} are not read"
        rejected.append(RejectedEntry(identifier="", reason=more))
    host = document.get("host")
    try:
        read_host = None if host is None else msgspec.convert(host, CatalogHost)
    except msgspec.ValidationError:
        read_host = None  # informational: entries are valid without it
    catalog = AICatalog(
        spec_version=version if isinstance(version, str) else "1.0",
        host=read_host,
        entries=tuple(entries),
    )
    return ReadCatalog(catalog=catalog, rejected=tuple(rejected))


def read_entry(given: Any) -> CatalogEntry:
    """Return an entry from JSON values. Raises ``InvalidEntry``."""
    if not isinstance(given, Mapping):
        raise InvalidEntry("an entry must be a JSON object")
    given = expanded(given)
    fields: dict[str, Any] = {name: given[name] for name in _NAMES - {"mediaType"} if name in given}
    fields.setdefault("type", given.get("mediaType", ""))
    for name in ("identifier", "displayName", "type"):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            raise InvalidEntry(f"an entry must have {an(name)}, a string")
        if len(fields[name]) > MAX_TEXT:
            raise InvalidEntry(f"the {name} of an entry is at most {MAX_TEXT} characters long")
    has_data = fields.get("data") is not None
    if has_data == bool(fields.get("url")):
        raise InvalidEntry("an entry must have either a url or data")
    for name in ("tags", "capabilities", "representativeQueries"):
        if isinstance(fields.get(name), list):
            fields[name] = [
                each[:MAX_TEXT] if isinstance(each, str) else each for each in fields[name]
            ][:MAX_LIST]
    if isinstance(fields.get("description"), str):
        fields["description"] = fields["description"][:MAX_TEXT]
    trust = fields.get("trustManifest")
    try:
        entry = msgspec.convert(fields, CatalogEntry)
    except msgspec.ValidationError as error:
        raise InvalidEntry(f"an entry is invalid: {error}") from None
    more = {name: given[name] for name in given if name not in _NAMES}
    is_same = msgspec.to_builtins(entry.trust_manifest) == trust
    document = trust if isinstance(trust, Mapping) and not is_same else {}
    return msgspec.structs.replace(entry, more=more, trust_document=document)


def write_entry(entry: CatalogEntry) -> dict[str, Any]:
    """Return an entry as JSON values, with its unknown members."""
    written: dict[str, Any] = msgspec.to_builtins(entry)
    for name in ("more", "trustDocument"):
        written.pop(name, None)
    if entry.trust_document:
        written["trustManifest"] = dict(entry.trust_document)
    return {**entry.more, **written}


def write_catalog(catalog: AICatalog) -> bytes:
    """Return a catalog as JSON."""
    document: dict[str, Any] = {"specVersion": catalog.spec_version}
    if catalog.host is not None:
        document["host"] = msgspec.to_builtins(catalog.host)
    document["entries"] = [write_entry(entry) for entry in catalog.entries]
    return msgspec.json.encode(document)


def _object(body: bytes | Mapping[str, Any], what: str) -> Mapping[str, Any]:
    document = body
    if isinstance(body, bytes):
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise InvalidCatalog(f"{what} must be a JSON object; this is not JSON") from None
    if not isinstance(document, Mapping):
        raise InvalidCatalog(f"{what} must be a JSON object")
    return document


MAX_PROBLEMS = 200
"""The most problems of a catalog that are reported."""

MAX_ENTRIES = 10_000

KNOWN_TYPES = (
    CATALOG,
    *A2A_CARD_TYPES,
    MCP_CARD,
    *REGISTRY_TYPES,
    "application/agent-skills+zip",
    "application/agent-skills+gzip",
    'text/markdown; profile="urn:air:agent-skills"',
)

_TIME = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt ]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)"
    r"(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
)
_DETACHED = re.compile(r"[A-Za-z0-9_-]+\.\.[A-Za-z0-9_-]+")


class CatalogProblem(msgspec.Struct, frozen=True):
    """A problem of a catalog: its path, and how to correct it."""

    where: str
    what: str
    is_error: bool = True

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


def catalog_problems(document: Any) -> list[CatalogProblem]:
    """Return the problems of a catalog, given as JSON values; an empty list for a valid catalog."""
    found: list[CatalogProblem] = []
    for problem in _catalog(document, "", 1):
        found.append(problem)
        if len(found) >= MAX_PROBLEMS:
            found.append(CatalogProblem("", f"there are more than {MAX_PROBLEMS} problems"))
            break
    return found


def problems_of(body: bytes) -> list[CatalogProblem]:
    """Return the problems of a catalog, given as JSON. Raises ``InvalidCatalog`` for other bytes.

    A duplicate member is an error: two parsers would read the document differently.
    """
    import json

    twice: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                twice.append(name)
            found[name] = value
        return found

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        msgspec.json.decode(
            body
        )  # rejects what other parsers cannot read, such as half of a surrogate pair
        document = json.loads(body, object_pairs_hook=members, parse_constant=refuse)
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise InvalidCatalog("a catalog must be a JSON object; this is not JSON") from None
    found = [
        CatalogProblem("", f"the member {name[:80]!r} occurs twice in one object")
        for name in twice[:10]
    ]
    return found + catalog_problems(document)


def _catalog(given: Any, where: str, depth: int) -> Iterator[CatalogProblem]:
    if not isinstance(given, Mapping):
        yield CatalogProblem(where, f"a catalog must be a JSON object, not {_kind(given)}")
        return
    yield from _members(given, _CATALOG, where)
    yield from map(_warning, _of_the_predecessor(given, where))
    entries = given.get("entries")
    if not isinstance(entries, list):
        return
    if not entries:
        yield CatalogProblem(
            _at(where, "entries"), "the list is empty: nothing is published", False
        )
    if len(entries) > MAX_ENTRIES:
        words = f"registries may read at most {MAX_ENTRIES}: split them into nested catalogs"
        yield CatalogProblem(_at(where, "entries"), words, False)
    seen: set[tuple[str, str]] = set()
    for number, entry in enumerate(entries[:MAX_ENTRIES]):
        place = f"{_at(where, 'entries')}[{number}]"
        yield from _entry(entry, place, depth)
        if isinstance(entry, Mapping):
            key = (str(entry.get("identifier")), str(entry.get("version", "")))
            if key in seen and entry.get("identifier"):
                words = f"{key[0][:200]} occurs twice" + (f" in version {key[1]}" * bool(key[1]))
                yield CatalogProblem(place, words)
            seen.add(key)


def _of_the_predecessor(given: Mapping[str, Any], where: str) -> Iterator[CatalogProblem]:
    """Yield the problems for readers of ARD 0.9 outside the entries; readers of 0.91
    ignore them.
    """
    yield from _members(given, _AROUND, where)
    version = given.get("specVersion")
    if isinstance(version, str) and version != "1.0":
        yield CatalogProblem(_at(where, "specVersion"), f'it must be "1.0", not {version[:40]!r}')
    if "collections" in given:
        words = "nest catalogs as entries; collections are not read"
        yield CatalogProblem(_at(where, "collections"), words)
    if isinstance(given.get("host"), Mapping):
        yield from _members(given["host"], _HOST, _at(where, "host"))
        yield from _trust(given["host"], "", _at(where, "host"))


def _warning(problem: CatalogProblem) -> CatalogProblem:
    return msgspec.structs.replace(problem, is_error=False)


def _entry(given: Any, where: str, depth: int) -> Iterator[CatalogProblem]:
    if not isinstance(given, Mapping):
        yield CatalogProblem(where, f"an entry must be a JSON object, not {_kind(given)}")
        return
    given = expanded(given)
    yield from _members(given, _ENTRY, where)
    publisher = ""
    if isinstance(given.get("identifier"), str):
        try:
            publisher = AirUrn.parse(given["identifier"]).publisher
            if not given["identifier"].startswith("urn:air:"):
                words = "it must begin with urn:air: in lower case"
                yield CatalogProblem(_at(where, "identifier"), words)
        except InvalidUrn as error:
            yield CatalogProblem(_at(where, "identifier"), str(error))
    for name in ("displayName", "type"):
        if isinstance(given.get(name), str) and len(given[name]) > MAX_TEXT:
            words = f"it may have at most {MAX_TEXT} characters, not {len(given[name])}"
            yield CatalogProblem(_at(where, name), words)
    yield from _type(given, where)
    if ("url" in given) == ("data" in given):
        both = "both" if "url" in given else "none of them"
        yield CatalogProblem(
            where, f"an entry must have either a url or data; this entry has {both}"
        )
    if isinstance(given.get("url"), str) and not _is_web(given["url"]):
        words = f"{given['url'][:200]!r} is not an https:// or http:// address"
        yield CatalogProblem(_at(where, "url"), words)
    queries = given.get("representativeQueries")
    if isinstance(queries, list) and not 2 <= len(queries) <= 5:
        words = f"there must be two to five, not {len(queries)}"
        yield CatalogProblem(_at(where, "representativeQueries"), words, False)
    if not queries:
        words = "no representativeQueries: two to five of them make the agent easier to find"
        yield CatalogProblem(where, words, False)
    if isinstance(given.get("metadata"), Mapping):
        for name, value in given["metadata"].items():
            if isinstance(value, list | dict):
                words = f"it must be a string, a number, true, false or null, not {_kind(value)}"
                yield CatalogProblem(_at(where, f"metadata.{name[:80]}"), words)
    yield from _trust(given, publisher, where)
    if given.get("type") == CATALOG and "data" in given:
        if depth >= MAX_NESTING:
            words = (
                f"catalogs are nested more than {MAX_NESTING} deep, which registries do not read"
            )
            yield CatalogProblem(_at(where, "data"), words)
        else:
            yield from _catalog(given["data"], _at(where, "data"), depth + 1)


def _type(given: Mapping[str, Any], where: str) -> Iterator[CatalogProblem]:
    kind = given.get("type")
    if "type" not in given and isinstance(given.get("mediaType"), str):
        words = "ARD calls the media type of an entry type; mediaType alone is not enough"
        yield CatalogProblem(where, words)
    elif isinstance(kind, str) and kind not in KNOWN_TYPES:
        words = f"{kind[:100]!r} is not among the known types: {', '.join(KNOWN_TYPES[:5])}, ..."
        yield CatalogProblem(_at(where, "type"), words, False)
    if isinstance(kind, str) and given.get("mediaType", kind) != kind:
        words = f"it is {kind[:100]!r}, but mediaType differs"
        yield CatalogProblem(_at(where, "type"), words, False)


def _trust(given: Mapping[str, Any], publisher: str, where: str) -> Iterator[CatalogProblem]:
    manifest = given.get("trustManifest")
    if not isinstance(manifest, Mapping):
        return
    where = _at(where, "trustManifest")
    yield from _members(manifest, _TRUST, where)
    for name, members in (("attestations", _ATTESTATION), ("provenance", _PROVENANCE)):
        listed = manifest.get(name)
        for number, each in enumerate(listed if isinstance(listed, list) else ()):
            place = f"{_at(where, name)}[{number}]"
            if isinstance(each, Mapping):
                yield from _members(each, members, place)
            else:
                yield CatalogProblem(place, f"it must be a JSON object, not {_kind(each)}")
    if isinstance(manifest.get("trustSchema"), Mapping):
        yield from _members(manifest["trustSchema"], _SCHEMA, _at(where, "trustSchema"))
    identity = manifest.get("identity")
    if publisher and isinstance(identity, str) and not _is_aligned(identity, publisher):
        words = (
            f"{identity[:200]!r} is not of the publisher's domain, {publisher}: registries do not "
            f"trust it (https://{publisher} and did:web:{publisher} are)"
        )
        yield CatalogProblem(_at(where, "identity"), words)
    signature = manifest.get("signature")
    if isinstance(signature, str) and not _DETACHED.fullmatch(signature):
        words = "a signature must be a detached JWS in compact form: header..signature"
        yield CatalogProblem(_at(where, "signature"), words)


def identity_domain(identity: str) -> str:
    """Return the domain in an identity: of a URL, a SPIFFE ID, did:web, dns:, an identifier, or a
    plain domain; ``localhost`` for this machine, empty for an identity without a domain.
    """
    text = identity.strip()
    scheme, colon, rest = text.partition(":")
    try:
        match scheme.lower() if colon else "":
            case "urn":
                return AirUrn.parse(text).publisher
            case "did":
                method, _, name = rest.partition(":")
                host = unquote(name.partition("#")[0].split(":")[0]).partition(":")[0]
                host = host if method == "web" else ""
            case "dns":
                host = rest.strip("/")
            case "https" | "http" | "spiffe":
                host = urlsplit(text).hostname or ""
            case "":
                host = text
            case _:
                return ""
        return host.lower() if host.lower() == "localhost" else domain(host)
    except ValueError:  # also for an invalid identifier or domain
        return ""


def _is_aligned(identity: str, publisher: str) -> bool:
    return is_within(identity_domain(identity), publisher)


class _Rule(msgspec.Struct, frozen=True):
    """The description of a member's valid values, and the test for them."""

    words: str
    holds: Callable[[Any], bool]
    is_required: bool = False


def _is_time(value: Any) -> bool:
    return isinstance(value, str) and _TIME.fullmatch(value) is not None


def _is_web(value: Any) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except (ValueError, AttributeError, TypeError):
        return False


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_TEXT = _Rule("a text", _is(str))
_NAME = _Rule(
    "a text that is not empty",
    lambda value: isinstance(value, str) and bool(value.strip()),
    is_required=True,
)
_NEEDED = _Rule("a text", _is(str), is_required=True)
_TEXTS = _Rule("a list of texts", _is_list_of_texts)
_OBJECT = _Rule("a JSON object", _is(dict))
_OBJECTS = _Rule("a list of JSON objects", _is(list))

_CATALOG = {"entries": _Rule("a list of entries", _is(list), is_required=True)}
_AROUND = {"specVersion": _NEEDED, "host": _OBJECT}
_HOST = {
    "displayName": _NAME,
    "identifier": _TEXT,
    "documentationUrl": _TEXT,
    "logoUrl": _TEXT,
    "trustManifest": _OBJECT,
}
_ENTRY = {
    "@context": _Rule("an address, an object or a list", _is(str, list, dict)),
    "@id": _TEXT,
    "identifier": _NEEDED,
    "displayName": _NAME,
    "type": _NAME,
    "url": _TEXT,
    "data": _OBJECT,
    "description": _TEXT,
    "tags": _TEXTS,
    "capabilities": _TEXTS,
    "representativeQueries": _TEXTS,
    "version": _TEXT,
    "updatedAt": _Rule("a time such as 2026-11-23T05:00:00Z", _is_time),
    "metadata": _OBJECT,
    "trustManifest": _OBJECT,
}
_TRUST = {
    "identity": _NAME,
    "identityType": _TEXT,
    "trustSchema": _OBJECT,
    "attestations": _OBJECTS,
    "provenance": _OBJECTS,
    "signature": _TEXT,
}
_SCHEMA = {
    "identifier": _TEXT,
    "version": _TEXT,
    "governanceUri": _TEXT,
    "verificationMethods": _TEXTS,
}
_ATTESTATION = {"type": _NEEDED, "uri": _NEEDED, "mediaType": _TEXT, "digest": _TEXT}
_PROVENANCE = {"relation": _NEEDED, "sourceId": _NEEDED, "sourceDigest": _TEXT}


def _members(
    given: Mapping[str, Any], rules: Mapping[str, _Rule], where: str
) -> Iterator[CatalogProblem]:
    """Yield the missing members, and members of the wrong type; unknown members are allowed."""
    for name, rule in rules.items():
        if name not in given:
            if rule.is_required and not (name == "type" and "mediaType" in given):
                yield CatalogProblem(where, f"{name} is missing: {rule.words}")
        elif not rule.holds(given[name]):
            yield CatalogProblem(_at(where, name), f"{rule.words}, not {_kind(given[name])}")


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value[:60])
        case int() | float():
            return "a number"
        case list():
            return "a list of something else" if value else "an empty list"
    return "an object"
