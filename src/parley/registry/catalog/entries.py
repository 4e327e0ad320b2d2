"""Catalogs of agents and other artifacts: entries, their terms, identifiers (ARD 0.91 §4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

CATALOG = "application/ai-catalog+json"
"""The media type of a catalog; an entry of this type is a nested catalog."""

A2A_CARD = "application/a2a-agent-card+json"
MCP_CARD = "application/mcp-server-card+json"
REGISTRY = "application/ai-registry+json"
REGISTRY_TYPES = (REGISTRY, "application/ai-registry")
A2A_CARD_TYPES = (A2A_CARD, "application/agent-card+json")

CATALOG_PATH = "/.well-known/ard.json"
PREDECESSOR_PATH = "/.well-known/ai-catalog.json"
"""The path of ARD 0.9. Parley serves both paths, and reads this one if the 0.91 path is empty."""

CATALOG_PATHS = (CATALOG_PATH, PREDECESSOR_PATH)
RELATIONS = ("ard", "ai-catalog")
"""The link relations of a catalog: of ARD 0.91, and of 0.9."""

PUBLISHER_VARIABLE = "PARLEY_PUBLISHER"
"""The environment variable that names the domain of a catalog."""

MAX_NESTING = 4
"""The depth to which catalogs may be nested, as the AI Catalog recommends."""


class CatalogStruct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Base of catalog objects. Lists are tuples; fields that equal their defaults are
    not written.
    """


class ProvenanceLink(CatalogStruct, frozen=True, kw_only=True):
    """The origin of an artifact (ARD §4.5)."""

    relation: str
    source_id: str
    source_digest: str = ""


class TrustManifest(CatalogStruct, frozen=True, kw_only=True):
    """The identity behind an artifact, with its proofs (ARD §4.5).

    ``signature`` is a detached JWS (compact) over the canonical JSON (RFC 8785) of the manifest
    without the signature.
    """

    identity: str
    identity_type: str = ""
    trust_schema: Mapping[str, Any] = {}
    attestations: tuple[Mapping[str, Any], ...] = ()
    provenance: tuple[ProvenanceLink, ...] = ()
    signature: str = ""


class CatalogHost(CatalogStruct, frozen=True, kw_only=True):
    """The operator of a catalog (AI Catalog)."""

    display_name: str
    identifier: str = ""
    documentation_url: str = ""
    logo_url: str = ""
    trust_manifest: TrustManifest | None = None


class CatalogEntry(CatalogStruct, frozen=True, kw_only=True):
    """One artifact of a catalog (ARD §4.2): exactly one of ``url`` and ``data`` is set.

    ``more`` has the unknown members, unchanged; filters can use them, and they are written again.
    ``trust_document`` is the trust manifest as received, if Parley would write it differently: a
    signature covers all of it.
    """

    identifier: str
    display_name: str
    type: str
    url: str = ""
    data: Any = None
    description: str = ""
    tags: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    representative_queries: tuple[str, ...] = ()
    version: str = ""
    updated_at: str = ""
    metadata: Mapping[str, Any] = {}
    trust_manifest: TrustManifest | None = None
    trust_document: Mapping[str, Any] = {}
    more: Mapping[str, Any] = {}


class AICatalog(CatalogStruct, frozen=True, kw_only=True):
    """A catalog: what ``/.well-known/ard.json`` holds."""

    spec_version: str = msgspec.field(default="1.0")
    host: CatalogHost | None = None
    entries: tuple[CatalogEntry, ...] = ()


# The terms of an entry, which is a JSON-LD node (ARD §4.1). Contexts are never fetched: apart from
# the base context, the declarations at their addresses are unknown.

NAMESPACE = "https://agenticresourcediscovery.org/ns#"
MAX_TERMS = 64
MAX_IRI = 512

_CORE = {field.encode_name for field in msgspec.structs.fields(CatalogEntry)} - {"more"}


def context_of(given: Any) -> dict[str, str]:
    """Return the IRIs of the terms and prefixes that a ``@context`` declares, by their names."""
    found: dict[str, str] = {}
    for each in given if isinstance(given, list | tuple) else [given]:
        for name, value in each.items() if isinstance(each, Mapping) else ():
            iri = value.get("@id") if isinstance(value, Mapping) else value
            if isinstance(iri, str) and 0 < len(iri) <= MAX_IRI and len(found) < MAX_TERMS:
                found[str(name)] = iri
    return found


def term_of(path: str, context: Mapping[str, str]) -> str:
    """Return a term path in the form that two documents share: a core term, or a term with its IRI.

    The rest of the path after the first name stays. A name without a declaration stays.
    """
    first, dot, rest = path.partition(".")
    if first in _CORE:
        return path
    iri = context.get(first, "")
    if not iri and ":" in path:
        first, dot, rest = path, "", ""
        iri = path
    for _ in range(2):  # a term may be declared with a prefix
        prefix, colon, name = iri.partition(":")
        if colon and prefix in context and not name.startswith("//"):
            iri = context[prefix] + name
    if not iri and "@vocab" in context:
        iri = context["@vocab"] + first
    return (iri.removeprefix(NAMESPACE) or first) + dot + rest


def expanded(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an entry whose core terms have their plain names, whatever names its context gives
    them.
    """
    context = context_of(given.get("@context"))
    if not any(NAMESPACE in iri for iri in context.values()):
        return given
    named = {name: term_of(name, context) for name in given if name[:1] != "@"}
    core = {term: given[name] for name, term in named.items() if term in _CORE}
    rest = {name: value for name, value in given.items() if named.get(name) not in _CORE}
    return {**rest, **core}


MAX_URN = 512

_DOMAIN = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
)
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_NOT_A_SEGMENT = re.compile(r"[^a-z0-9._-]+")


class InvalidUrn(ValueError):
    """A text is not an identifier of a catalog entry. The message gives the reason."""


class AirUrn(msgspec.Struct, frozen=True):
    """The parts of an identifier (ARD Appendix C). ``publisher`` is a domain in lower case.

    Two identifiers are equal if their texts are: ``str`` writes the publisher in lower case, and
    the other segments unchanged.
    """

    publisher: str
    namespace: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> AirUrn:
        """Read an identifier. Raises ``InvalidUrn``."""
        if len(text) > MAX_URN:
            raise InvalidUrn(f"an identifier has at most {MAX_URN} characters")
        parts = text.split(":")
        scheme = [part.lower() for part in parts[:2]]
        if scheme == ["urn", "ai"]:
            raise InvalidUrn(
                f"{text[:80]!r} is not of the form urn:air:<publisher>:<namespace>:<name>: the "
                "prefix urn:ai: of early drafts is not a URN namespace; write urn:air:"
            )
        if len(parts) < 4 or scheme != ["urn", "air"]:
            raise InvalidUrn(
                f"{text[:80]!r} is not of the form urn:air:<publisher>:<namespace>:<name>"
            )
        publisher = domain(parts[2])
        for part in parts[3:]:
            if not _SEGMENT.fullmatch(part):
                raise InvalidUrn(
                    f"{part[:40]!r} in {text[:80]!r}: a segment may have letters, digits, '.', "
                    "'_', '-'"
                )
        return cls(publisher, tuple(parts[3:-1]), parts[-1])

    def __str__(self) -> str:
        return ":".join(("urn:air", self.publisher, *self.namespace, self.name))


def domain(text: str) -> str:
    """Return a publisher's domain in lower case. Raises ``InvalidUrn`` for any other text.

    A domain has at least two labels: ``localhost`` is not a domain, ``agent.localhost`` is for
    tests.
    """
    name = text.rstrip(".").lower()
    if not _DOMAIN.fullmatch(name) or re.fullmatch(r"[0-9.]+", name):
        raise InvalidUrn(
            f"{text[:80]!r} is not a domain name such as example.com; a publisher is a domain that "
            "it controls (agent.localhost on one machine)"
        )
    return name


def media_type(text: str) -> str:
    """Return a media type in lower case, without parameters."""
    return text.partition(";")[0].strip().lower()


def one_line(text: str, most: int) -> str:
    """Return an untrusted text on one line, cut to a length."""
    line = "".join(char if char.isprintable() else " " for char in text[: most + 1])
    return line if len(line) <= most else f"{line[: most - 3]}..."


def all_positive(limits: msgspec.Struct, *but: str) -> None:
    """Raise ``ValueError`` for a field that is 0 or negative."""
    for field in msgspec.structs.fields(limits):
        value = getattr(limits, field.name)
        if field.name not in but and value <= 0:
            raise ValueError(f"{field.name} must be more than 0, not {value}")


def segment(text: str) -> str:
    """Return a text as a segment of an identifier: ``Trip planner`` becomes ``trip-planner``."""
    return _NOT_A_SEGMENT.sub("-", text.lower()).strip("-.") or "agent"


def identifier_at(host: str, namespace: str, name: str) -> str:
    """Return an identifier for a name at a host, which need not be a domain."""
    try:
        publisher = domain(host)
    except InvalidUrn:
        publisher = f"{segment(host).replace('.', '-')}.localhost"
    return f"urn:air:{publisher}:{namespace}:{segment(name)}"


def is_within(host: str, publisher: str) -> bool:
    """Return whether a host belongs to a publisher: it is the publisher's domain or a subdomain."""
    name = host.rstrip(".").lower()
    return name == publisher or name.endswith(f".{publisher}")
