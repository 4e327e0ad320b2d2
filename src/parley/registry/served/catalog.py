"""The catalog of a server's agents, at its well-known paths (ARD §4, §5.1), with its options."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import formatdate
from functools import partial
from itertools import zip_longest
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from starlette.types import Receive, Scope, Send

from parley.model.bounded import Bounded
from parley.model.cards import AgentCard, AgentSkill
from parley.registry.catalog.entries import (
    A2A_CARD,
    CATALOG,
    CATALOG_PATH,
    CATALOG_PATHS,
    PUBLISHER_VARIABLE,
    RELATIONS,
    AICatalog,
    AirUrn,
    CatalogEntry,
    CatalogHost,
    InvalidUrn,
    ProvenanceLink,
    TrustManifest,
    domain,
    is_within,
    segment,
)
from parley.registry.catalog.reading import write_catalog
from parley.security.networks import is_loopback, is_plain_public
from parley.security.signing.canonical import canonical
from parley.security.signing.cards import JWKS_PATH
from parley.security.signing.keys import SigningKey, SigningKeys
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.catalog_link import ServedAgent
from parley.server.cards.discovery import CARD_PATHS, CardFile, is_fresh
from parley.server.cards.index import ASSISTANTS
from parley.server.endpoint import Endpoint
from parley.server.http.responses import answering_errors, refuses_method, reply_without_body
from parley.server.settings import Settings

MIN_QUERIES, MAX_QUERIES = 2, 5
MAX_QUERY = 300
"""The most characters of a query; a longer example is not used as a query."""

MAX_LABELS = 64
"""The most tags, and the most capabilities, of an entry."""

MAX_DESCRIPTION = 2_000

ROBOTS_PATH = "/robots.txt"
RELATION = " ".join(RELATIONS)

_SENTENCE = re.compile(r"(.+?[.!?])(?:\s|$)", re.DOTALL)
_SPACES = re.compile(r"\s+")


def agent_entry(
    card: AgentCard, identifier: str, url: str, publisher: str, *, agent_type: str = ""
) -> CatalogEntry:
    """Return the entry of an agent whose public card is at ``url``. Its time is not set yet.

    ``agent_type`` is the type that the agent declares, by which messages are routed.
    """
    return CatalogEntry(
        identifier=identifier,
        display_name=card.name,
        type=A2A_CARD,
        url=url,
        description=_cut(card.description, MAX_DESCRIPTION),
        tags=_labels(tag for skill in card.skills for tag in skill.tags),
        capabilities=_labels(skill.id for skill in card.skills),
        representative_queries=queries_of(card.skills, card),
        version=card.version,
        metadata={"agentType": agent_type} if agent_type else {},
        trust_manifest=manifest_of(identifier, publisher),
        more={"mediaType": A2A_CARD},
    )


def tenant_entry(
    tenant: str, card: AgentCard, identifier: str, url: str, publisher: str
) -> CatalogEntry:
    """Return the entry of the catalog of a tenant, at ``url``."""
    return CatalogEntry(
        identifier=identifier,
        display_name=tenant,
        type=CATALOG,
        url=url,
        description=f"The agents of {tenant}: {card.name}.",
        representative_queries=queries_of(card.skills, card),
        trust_manifest=manifest_of(identifier, publisher),
        more={"mediaType": CATALOG},
    )


def manifest_of(identifier: str, publisher: str) -> TrustManifest:
    """Return the trust manifest of an entry, without a signature.

    ARD requires an identity in the publisher's domain, the AI Catalog an identity equal to the
    entry's identifier. The identity is the domain, because registries use ARD; ``provenance`` names
    the entry, so that a signature applies to this entry only.
    """
    return TrustManifest(
        identity=f"https://{publisher}",
        identity_type="https",
        provenance=(ProvenanceLink(relation="publishedFrom", source_id=identifier),),
    )


def host_of(cards: Iterable[AgentCard], publisher: str) -> CatalogHost:
    """Return the operator of the catalog: the provider that all cards name, else the domain."""
    names = {card.provider.organization if card.provider else "" for card in cards}
    name = names.pop() if len(names) == 1 else ""
    return CatalogHost(display_name=name or publisher, identifier=publisher)


def queries_of(skills: Iterable[AgentSkill], card: AgentCard | None = None) -> tuple[str, ...]:
    """Return two to five queries that the skills answer, or none if there is only one.

    Examples come first, one of each skill before the second of any. If there are not enough, the
    first sentences of descriptions are added, then names, then texts of the agent's ``card``.
    """
    skills = tuple(skills)
    found = _queries(_in_turn(skill.examples for skill in skills))[:MAX_QUERIES]
    own = () if card is None else (_first_sentence(card.description), card.name)
    described = [_first_sentence(skill.description) for skill in skills]
    for others in (described, [skill.name for skill in skills], own):
        if len(found) < MIN_QUERIES:
            found = _queries((*found, *others))[:MIN_QUERIES]
    return found if len(found) >= MIN_QUERIES else ()


def _in_turn(lists: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in zip_longest(*lists, fillvalue=""):
        yield from row


def _queries(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts on one line each, without overlong, empty and duplicate texts."""
    found: dict[str, str] = {}
    for text in texts:
        line = _SPACES.sub(" ", text).strip()
        if 0 < len(line) <= MAX_QUERY:
            found.setdefault(line.casefold(), line)
    return tuple(found.values())


def _first_sentence(text: str) -> str:
    found = _SENTENCE.match(text.strip())
    return found[1] if found else text


def _labels(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text.strip()))[:MAX_LABELS]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


_MAX_FILES = 64


class CatalogItem(msgspec.Struct, frozen=True):
    """An entry of a catalog: an agent, or the catalog of a tenant (``is_catalog``).

    ``card`` returns the public card of the agent. ``path`` is the path of the entry's document,
    below the address of ``advertised``. ``agent_type`` is the type that the agent declares, if any.
    """

    identifier: str
    card: Callable[[], AgentCard]
    advertised: AdvertisedInterfaces
    path: str = ""
    tenant: str = ""
    is_catalog: bool = False
    agent_type: str = ""

    def entry(self, scope: Scope, publisher: str) -> CatalogEntry:
        """Return the entry, with the address that the caller can reach. Raises ``BadAddress``."""
        address = self.advertised.address(scope).rstrip("/") + self.path
        if self.is_catalog:
            url = address + CATALOG_PATH
            return tenant_entry(self.tenant, self.card(), self.identifier, url, publisher)
        url = address + CARD_PATHS[0]
        return agent_entry(self.card(), self.identifier, url, publisher, agent_type=self.agent_type)


class CatalogPage:
    """Serves the catalog of a server, or of one of its tenants.

    Like a card, it is generated for each address of the server that a client uses, cached for the
    last 64 addresses, and regenerated when its cache lifetime ends and when the keys change.
    ``advertised`` is the source of the address. The ETag is weak: it is the same after restarts and
    on all replicas, whose times and signatures may differ.
    """

    def __init__(
        self,
        items: Sequence[CatalogItem],
        advertised: AdvertisedInterfaces,
        *,
        publisher: str,
        settings: Settings,
        signer: ManifestSigner | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._items = items
        self._advertised = advertised
        self._publisher = publisher
        self._max_age = settings.card_max_age
        self._signer = signer
        self._clock = clock
        self._since = int(clock())
        self._files: Bounded[str, CardFile] = Bounded(_MAX_FILES)

    @answering_errors("making a catalog")
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD, including conditional requests."""
        if await refuses_method(scope, send, "a catalog supports GET only"):
            return
        file = self._file(scope)
        headers = [
            (b"cache-control", b"public, max-age=%d" % self._max_age),
            (b"etag", b"W/" + file.etag.encode()),
            (b"last-modified", formatdate(file.modified, usegmt=True).encode()),
        ]
        if varies := self._advertised.varies:
            headers.append((b"vary", b", ".join(varies)))
        if is_fresh(scope, file):
            await reply_without_body(send, 304, headers)
            return
        await _send(scope, send, file.body, CATALOG.encode(), headers)

    def document(self) -> bytes:
        """Return the catalog of a server with a configured address."""
        return self._file({}).body

    def _file(self, scope: Scope) -> CardFile:
        address = self._advertised.address(scope)
        now = self._clock()
        file = self._files.get(address)
        revision = 0 if self._signer is None else self._signer.revision
        if file is None or now - file.made >= self._max_age or file.revision != revision:
            file = self._make(scope, now, file, revision)
        self._files[address] = file
        return file

    def _make(self, scope: Scope, now: float, before: CardFile | None, revision: int) -> CardFile:
        cards = [item.card() for item in self._items]
        catalog = AICatalog(
            host=host_of(cards, self._publisher),
            entries=tuple([item.entry(scope, self._publisher) for item in self._items]),
        )
        kid = "" if self._signer is None else self._signer.key.kid
        content = hashlib.sha256(write_catalog(catalog) + kid.encode()).hexdigest()
        etag = f'"{content[:32]}"'
        if before is not None and before.etag == etag:
            return msgspec.structs.replace(before, made=now, revision=revision)
        modified = self._since if before is None else int(now)
        written = [self._finished(entry, modified) for entry in catalog.entries]
        catalog = msgspec.structs.replace(catalog, entries=tuple(written))
        return CardFile(write_catalog(catalog), etag, modified, now, revision)

    def _finished(self, entry: CatalogEntry, modified: int) -> CatalogEntry:
        """Return an entry with its time, and with a signature if the server has keys."""
        manifest = entry.trust_manifest
        if self._signer is not None and manifest is not None:
            manifest = self._signer.sign(manifest)
        time_of = datetime.fromtimestamp(modified, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return msgspec.structs.replace(entry, trust_manifest=manifest, updated_at=time_of)


class RobotsPage:
    """Serves a ``robots.txt`` that allows everything and names the catalog."""

    def __init__(self, advertised: AdvertisedInterfaces, settings: Settings) -> None:
        self._advertised = advertised
        self._cached = (b"cache-control", b"public, max-age=%d" % settings.card_max_age)

    @answering_errors("making robots.txt")
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD."""
        if await refuses_method(scope, send, "robots.txt supports GET only"):
            return
        address = self._advertised.address(scope).rstrip("/")
        body = f"User-agent: *\nDisallow:\n\nAgentmap: {address}{CATALOG_PATH}\n".encode()
        headers = [self._cached]
        if varies := self._advertised.varies:
            headers.append((b"vary", b", ".join(varies)))
        await _send(scope, send, body, b"text/plain; charset=utf-8", headers)


async def _send(
    scope: Scope, send: Send, body: bytes, kind: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    length = b"%d" % len(body)
    headers = [*headers, (b"content-type", kind), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    body = body if scope["method"] == "GET" else b""
    await send({"type": "http.response.body", "body": body})


def signed_form(manifest: TrustManifest) -> bytes:
    """Return the signed form of a manifest: its canonical JSON (RFC 8785) without the signature."""
    members: dict[str, Any] = msgspec.to_builtins(manifest)
    members.pop("signature", None)
    return canonical(members)


MAX_SIGNED = 10_000


class ManifestSigner:
    """Signs manifests with the first current signing key, each once.

    Signatures are cached, because a manifest is the same in the catalogs of all addresses, and
    requests choose the addresses.

    ``url`` is the configured public address of the server: then a signature names the address of
    the public keys (``jku``). Without it, clients find the keys at the identity's domain.
    """

    def __init__(self, keys: SigningKeys, url: str | None) -> None:
        self._keys = keys
        self._header = {"typ": "JOSE"}
        if url is not None:
            self._header["jku"] = url.rstrip("/") + JWKS_PATH
        self._kept: dict[bytes, str] = {}
        self._kept_of = 0

    @property
    def revision(self) -> int:
        """A number that changes with the keys."""
        return self._keys.revision

    @property
    def key(self) -> SigningKey:
        """The current signing key."""
        return self._keys.signers[0]

    def sign(self, manifest: TrustManifest) -> TrustManifest:
        """Return the manifest with a detached JWS over the rest of it."""
        revision, payload = self.revision, signed_form(manifest)
        if revision != self._kept_of or len(self._kept) >= MAX_SIGNED:
            self._kept, self._kept_of = {}, revision
        signature = self._kept.get(payload)
        if signature is None:
            signature = self._kept[payload] = self.key.jws(self._header, payload, detached=True)
        return msgspec.structs.replace(manifest, signature=signature)


NAMESPACE = "agent"
"""The namespace of identifiers, unless the operator names another."""

CATALOG_NAME = "catalog"
"""The name of a tenant's catalog, in the namespace of the tenant."""


class Publication(msgspec.Struct, frozen=True):
    """The operator's settings for publishing a catalog.

    ``publisher`` is a domain that the operator controls, and the root of all identifiers.
    ``unlisted`` are the paths of agents, and the tenants, that the catalog leaves out.
    """

    publisher: str
    namespace: tuple[str, ...] = (NAMESPACE,)
    unlisted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, publisher: str, namespace: str = NAMESPACE, unlisted: Iterable[str] = ()) -> Self:
        """Return a publication. Raises ``ValueError`` for an invalid domain or namespace."""
        if not isinstance(publisher, str):
            raise ValueError(f"publisher= must be a domain such as example.com, not {publisher!r}")
        try:
            found = domain(publisher)
        except InvalidUrn as error:
            raise ValueError(f"publisher= cannot be used: {error}") from None
        words = (
            "namespace= may have letters, digits, '.', '_' and '-', with ':' between its parts, "
            f"such as agent or finance:trading; not {namespace!r}"
        )
        if not isinstance(namespace, str):
            raise ValueError(words)
        try:
            parts = AirUrn.parse(f"urn:air:{found}:{namespace}:name").namespace
        except InvalidUrn:
            raise ValueError(words) from None
        if isinstance(unlisted, str):
            raise ValueError(
                f"unlisted= must be a list of paths and tenants, not the text {unlisted!r}"
            )
        names = frozenset(each.rstrip("/") if each[:1] == "/" else each for each in unlisted)
        return cls(found, parts, names)

    def agent(self, path: str, key: str, tenant: str = "") -> str:
        """Return the identifier of an agent: by its path; at the root path by its key."""
        return self._identifier(agent_name(path, key), tenant)

    def catalog(self, tenant: str) -> str:
        """Return the identifier of the catalog of a tenant."""
        return self._identifier(CATALOG_NAME, tenant)

    def _identifier(self, name: str, tenant: str) -> str:
        below = (segment(tenant),) if tenant else ()
        return str(AirUrn(self.publisher, (*self.namespace, *below), name))


def agent_name(path: str, key: str) -> str:
    """Return the last segment of an agent's identifier."""
    return segment(path.removeprefix(f"{ASSISTANTS}/").strip("/").replace("/", "-") or key)


def checked_identifiers(given: Iterable[tuple[str, str]]) -> None:
    """Raise ``ValueError`` if two agents have one identifier. ``given`` are identifiers with
    places.
    """
    places: dict[str, str] = {}
    for identifier, place in given:
        other = places.setdefault(identifier, place)
        if other != place:
            raise ValueError(
                f"{other} and {place} would both be published as {identifier}: give them other "
                "paths, tenants or keys (Agent(..., key=...)), or exclude one of them (unlisted=)"
            )


def catalog_pages(
    publication: Publication,
    served: Iterable[ServedAgent],
    advertised: AdvertisedInterfaces,
    *,
    settings: Settings,
    signer: ManifestSigner | None = None,
) -> dict[str, tuple[CatalogPage, Endpoint | None]]:
    """Return the pages by path, each with the endpoint whose callers may see it.

    The catalog of all agents has no endpoint. ``advertised`` is the source of the server's address.

    Raises ``ValueError`` if two agents would have one identifier, if ``unlisted`` names an unknown
    path or tenant, and if it excludes all agents.
    """
    served = tuple(served)
    _check_unlisted(publication, served)
    page = partial(CatalogPage, publisher=publication.publisher, settings=settings, signer=signer)
    items: list[CatalogItem] = []
    pages: dict[str, tuple[CatalogPage, Endpoint | None]] = {}
    places: list[tuple[str, str]] = []
    for each in served:
        endpoint = each.endpoint
        if endpoint.service is not None and each.path not in publication.unlisted:
            identifier = publication.agent(each.path, endpoint.key)
            places.append((identifier, f"the agent at {each.place}"))
            kind = endpoint.agent_type
            items.append(
                CatalogItem(identifier, _card_of(endpoint), each.advertised, agent_type=kind)
            )
        for name, tenant in endpoint.tenants.items():
            if name in publication.unlisted:
                continue
            path, card = f"/{name}", _card_of(tenant)
            where = f"{name} of {each.place}" if each.path else name
            own = CatalogItem(
                publication.agent("", tenant.key, name),
                card,
                each.advertised,
                path=path,
                agent_type=tenant.agent_type,
            )
            nested = CatalogItem(
                publication.catalog(name),
                card,
                each.advertised,
                path=path,
                tenant=name,
                is_catalog=True,
            )
            places += [
                (own.identifier, f"the agent of the tenant {where}"),
                (nested.identifier, f"the catalog of the tenant {where}"),
            ]
            items.append(nested)
            below = page([own], advertised)
            pages |= {each.path + path + end: (below, endpoint) for end in CATALOG_PATHS}
    checked_identifiers(places)
    if not items:
        raise ValueError(
            "unlisted= excludes all agents from the catalog: list an agent, or leave out publisher="
        )
    whole = page(items, advertised)
    return pages | {path: (whole, None) for path in CATALOG_PATHS}


def _card_of(endpoint: Endpoint) -> Callable[[], AgentCard]:
    assert endpoint.card is not None
    return partial(endpoint.card, ())


def _check_unlisted(publication: Publication, served: Iterable[ServedAgent]) -> None:
    known = {each.path for each in served if each.endpoint.service is not None}
    known.update(name for each in served for name in each.endpoint.tenants)
    if unknown := publication.unlisted - known:
        names = ", ".join(sorted(repr(name or "/") for name in unknown))
        raise ValueError(
            f"unlisted= names {names}, which is neither an agent's path nor a tenant; known are "
            f"{', '.join(sorted(name or '/' for name in known))}"
        )


log = logging.getLogger("parley.host")

NAMESPACE_VARIABLE = "PARLEY_NAMESPACE"


def read_publication(
    publisher: str | None,
    namespace: str | None = None,
    unlisted: Iterable[str] = (),
    *,
    environ: Mapping[str, str] = os.environ,
) -> Publication | None:
    """Return the publication of a server, ``None`` if it publishes nothing.

    An option that is ``None`` is read from the environment. Raises ``ValueError`` for an invalid
    domain or namespace, and for options that need a publisher.
    """
    unlisted = unlisted if isinstance(unlisted, str) else tuple(unlisted)
    domain = environ.get(PUBLISHER_VARIABLE, "") if publisher is None else publisher
    if domain == "":
        given = [*(["namespace"] if namespace else []), *(["unlisted"] if unlisted else [])]
        if given:
            raise ValueError(
                f"{given[0]}= concerns the catalog of a server, which is published only with "
                "publisher= (a domain such as example.com)"
            )
        return None
    if namespace is None:
        namespace = environ.get(NAMESPACE_VARIABLE) or NAMESPACE
    return Publication.of(domain, namespace, unlisted)


def log_publication(publication: Publication, url: str | None, tenants: Iterable[str] = ()) -> None:
    """Log the tenants that a catalog names, and warn of an address that registries do not trust."""
    listed = sorted(set(tenants) - publication.unlisted)
    if listed:
        log.info(
            "the catalog names the tenants %s; unlisted= (--unlisted) excludes a tenant",
            ", ".join(listed),
        )
    parts = urlsplit(url or "")
    host = parts.hostname
    if url is not None and is_plain_public(url):
        log.warning(
            "the catalog is at %s, which is not encrypted: registries do not trust it, and list "
            "none of its agents; give an https:// address (url)",
            url,
        )
    if parts.path.strip("/"):
        log.warning(
            "registries look for a catalog at %s://%s%s, but it is below %s: let the proxy forward "
            "that path, or set the DNS records that parley catalog dns --url %s prints",
            parts.scheme,
            parts.netloc.rpartition("@")[2],
            CATALOG_PATH,
            parts.path,
            url,
        )
    is_here = is_loopback(host or "") and publication.publisher.endswith(".localhost")
    if host and not is_here and not is_within(host, publication.publisher):
        log.warning(
            "the agents are published under %s, but the catalog is at %s, which is not below "
            "that domain: registries that read it there do not list them; serve it below the "
            "domain (url), or prove the domain to the registry and publish the agents there",
            publication.publisher,
            host,
        )
