"""Documents at well-known paths: agent cards, public keys, protected resource metadata.

Agent cards: specification §8.2, §8.6. Keys that verify cards and webhooks: RFC 7517. The issuers
whose tokens an agent accepts: RFC 9728.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import parse_qsl

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.bounded import Bounded
from parley.model.cards import AgentCard, AgentCardSignature
from parley.model.operations import BY_NAME
from parley.security.authorization import Authorization
from parley.security.signing.canonical import read_object
from parley.security.signing.cards import MAX_CARD_BYTES, CardSigner, payloads_of
from parley.security.signing.keys import SigningKeys
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.endpoint import Endpoint
from parley.server.http.responses import (
    JSON,
    answering_errors,
    refuses_method,
    reply,
    reply_with_message,
    reply_without_body,
)
from parley.server.settings import Settings
from parley.wire import versions

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")

_MAX_FILES = 64
_Header = tuple[bytes, bytes]
_ETAG = re.compile(r'"[^"]*"')


class CardFile(msgspec.Struct, frozen=True):
    """An encoded card and its validators. ``modified`` and ``made`` are seconds since 1970.

    ``revision`` is the revision of the signing keys.
    """

    body: bytes
    etag: str
    modified: int
    made: float
    revision: int = 0


class CardPage:
    """Serves the card of an agent, or of a tenant.

    A caller that names a version gets the card of that version; other callers get one for all
    versions (``Settings.card``). The card is made for each address of the agent, and signed if the
    server signs cards. It is made again when it is older than caches may keep it, and when the keys
    change. Because addresses come from headers, only the last 64 cards are cached.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        advertised: AdvertisedInterfaces,
        *,
        settings: Settings,
        tenant: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        assert endpoint.card is not None
        self._card = endpoint.card
        self._signer = endpoint.signer
        self._advertised = advertised
        self._tenant = tenant
        self._settings = settings
        self._clock = clock
        self._files: Bounded[tuple[str, str], CardFile] = Bounded(_MAX_FILES)
        self._cached = (b"cache-control", b"public, max-age=%d" % settings.card_max_age)

    @answering_errors("making an agent card")
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD, including conditional requests."""
        words = "an agent card is read with GET; send requests to the address on the card"
        if await refuses_method(scope, send, words):
            return
        file = self._file(self._advertised.address(scope), self._version(scope))
        varies = b", ".join((b"A2A-Version", *self._advertised.varies))
        await reply_with_file(scope, send, file, JSON, self._cached, (b"vary", varies))

    def _version(self, scope: Scope) -> str:
        """Return the version of the card to write, empty for a merged one.

        An unsupported version counts as none: the card lists the supported ones.
        """
        named = dict(scope["headers"]).get(b"a2a-version", b"").decode("latin-1")
        named = named.strip() or _query(scope).get("a2a-version", "")
        known = versions.supported_for(named) if named else None
        return known or ("" if self._settings.card == "merged" else self._settings.card)

    def _file(self, address: str, version: str) -> CardFile:
        now = self._clock()
        file = self._files.get((address, version))
        revision = 0 if self._signer is None else self._signer.revision
        if (
            file is None
            or now - file.made >= self._settings.card_max_age
            or file.revision != revision
        ):
            card = self._card(self._advertised.interfaces_at(address, self._tenant))
            body = _write(card, version)
            if self._signer is not None:
                body = self._signer.sign(body)
            file = card_file(body, now, file, revision)
        self._files[address, version] = file
        return file


class CardChoice:
    """Serves the cards of several agents at one path, selected by the query.

    ``?tenant=`` and ``?assistant_id=`` select; ``own``, if set, is the default, and serves unknown
    tenants.
    """

    def __init__(
        self,
        own: ASGIApp | None,
        *,
        tenants: Mapping[str, CardPage],
        assistants: Mapping[str, CardPage],
    ) -> None:
        self._own = own
        self._tenants = tenants
        self._assistants = assistants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the chosen card, or with 404."""
        query = _query(scope) if scope["query_string"] else {}
        page, words = self._own, "several agents share this address: add ?tenant= and yours"
        if "assistant_id" in query:
            page, words = (
                self._assistants.get(query["assistant_id"]),
                no_assistant(query["assistant_id"]),
            )
        elif "tenant" in query:
            page = self._tenants.get(query["tenant"], self._own)
            words = f"there is no tenant {query['tenant'][:100]!r} here"
        if page is None:
            await reply_with_message(scope, send, 404, words)
        else:
            await page(scope, receive, send)


def no_assistant(id: str) -> str:
    """Return the error text for an unknown assistant."""
    return f"there is no assistant {id[:100]!r} here"


def _query(scope: Scope) -> dict[str, str]:
    return {
        name.lower(): value.strip()
        for name, value in parse_qsl(scope["query_string"].decode("latin-1"))
    }


def _write(card: AgentCard, version: str) -> bytes:
    """Encode a card for one version, or for all.

    Existing signatures on a card belong to its form of 1.0: that card is never merged, and other
    versions do not get them.
    """
    if card.signatures:
        if version in ("", versions.LATEST):
            return versions.write_card(card, versions.LATEST)
        card = msgspec.structs.replace(card, signatures=())
    return versions.write_card(card, version)


def card_file(body: bytes, now: float, before: CardFile | None, revision: int = 0) -> CardFile:
    """Return a body with its validators; an unchanged body keeps them."""
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    modified = before.modified if before is not None and before.etag == etag else int(now)
    return CardFile(body, etag, modified, now, revision)


def validators(file: CardFile) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that conditional requests repeat."""
    return (
        (b"etag", file.etag.encode()),
        (b"last-modified", formatdate(file.modified, usegmt=True).encode()),
    )


def is_fresh(scope: Scope, file: CardFile) -> bool:
    """Return whether the client already has this card (RFC 9110 §13)."""
    known = [value for name, value in scope["headers"] if name == b"if-none-match"]
    if known:
        tags = b",".join(known).decode("latin-1")
        return tags.strip() == "*" or file.etag in _ETAG.findall(tags)
    for name, value in scope["headers"]:
        if name == b"if-modified-since":
            try:
                return parsedate_to_datetime(value.decode("latin-1")).timestamp() >= file.modified
            except (ValueError, OverflowError):
                return False
    return False


async def reply_with_file(
    scope: Scope, send: Send, file: CardFile, media_type: _Header, *headers: _Header
) -> None:
    """Answer GET and HEAD with a file, or with 304 if the client has it."""
    sent = [*headers, *validators(file)]
    if is_fresh(scope, file):
        await reply_without_body(send, 304, sent)
        return
    sent += [media_type, (b"content-length", b"%d" % len(file.body))]
    await send({"type": "http.response.start", "status": 200, "headers": sent})
    body = file.body if scope["method"] == "GET" else b""
    await send({"type": "http.response.body", "body": body})


# -- public keys ------------------------------------------------------------------------------

MAX_AGE = 300
"""The time that caches may keep the keys, in seconds. Next keys are published long before use."""

_CACHED = (b"cache-control", b"public, max-age=%d" % MAX_AGE)
_KEY_SET = (b"content-type", b"application/jwk-set+json")


class KeySetPage:
    """Serves the public JWK Set of a server: current, previous and next keys."""

    def __init__(self, keys: SigningKeys, *, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._clock = clock
        self._file: CardFile | None = None

    @answering_errors("publishing keys")
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD, including conditional requests."""
        if await refuses_method(scope, send, "public keys are read with GET"):
            return
        body = msgspec.json.encode(self._keys.published)
        self._file = card_file(body, self._clock(), self._file)
        await reply_with_file(scope, send, self._file, _KEY_SET, _CACHED)


# -- protected resource metadata --------------------------------------------------------------

PROTECTED_RESOURCE = "/.well-known/oauth-protected-resource"
"""Where the metadata of an agent is: its path follows."""


class ProtectedResource:
    """Serves the metadata of one agent, or of a tenant, and names its address in challenges."""

    def __init__(
        self,
        path: str,
        advertised: AdvertisedInterfaces,
        content: dict[str, list[str]],
        *,
        settings: Settings,
        tenant: str = "",
    ) -> None:
        self._path = path
        self._tenant = f"/{tenant}" if tenant else ""
        self._advertised = advertised
        self._content = content
        self._cached = (b"cache-control", b"public, max-age=%d" % settings.card_max_age)

    @answering_errors("making metadata")
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD."""
        if await refuses_method(scope, send, "metadata is read with GET"):
            return
        address = self._advertised.address(scope).rstrip("/") + self._tenant
        headers = [self._cached]
        if varies := self._advertised.varies:
            headers.append((b"vary", b", ".join(varies)))
        if scope["method"] == "HEAD":
            await reply_without_body(send, 200, headers)
        else:
            body = msgspec.json.encode({"resource": address, **self._content})
            await reply(send, 200, body, headers)

    def address(self, scope: Scope) -> str:
        """Return the address of the metadata for the sender of a request.

        Empty if the request names no valid host.
        """
        agent = self._advertised.agent_address(scope) + self._tenant
        if not agent.endswith(self._path):
            return ""
        return f"{agent.removesuffix(self._path)}{PROTECTED_RESOURCE}{self._path}"


def resource_metadata(agents: Iterable[Endpoint]) -> dict[str, list[str]] | None:
    """Return the metadata of agents' schemes, ``None`` if they accept tokens of no issuer."""
    authorizations = [each.authorization for each in agents if each.authorization is not None]
    servers = list(dict.fromkeys(_servers(authorizations)))
    if not servers:
        return None
    content = {"authorization_servers": servers, "bearer_methods_supported": ["header"]}
    if scopes := sorted(set(_scopes(authorizations))):
        content["scopes_supported"] = scopes
    return content


def _servers(authorizations: Iterable[Authorization]) -> Iterable[str]:
    for authorization in authorizations:
        for security in authorization.securities:
            for scheme in security.schemes:
                yield from scheme.authorization_servers


def _scopes(authorizations: Iterable[Authorization]) -> Iterable[str]:
    for authorization in authorizations:
        for security in authorization.listed_securities:
            for alternative in security.alternatives:
                for each in alternative:
                    if each.scheme.authorization_servers:
                        yield from (*each.scopes, *each.scheme.scopes)


# -- signatures -------------------------------------------------------------------------------

_EXTENDED = BY_NAME["GetExtendedAgentCard"]


class ServerCardSigner(CardSigner):
    """Signs the cards of a server, in every form in which they are sent."""

    def check(self, card: AgentCard) -> None:
        """Raise ``ValueError`` for a card that has no canonical form, which cannot be signed."""
        written = versions.write_card(card, versions.LATEST)
        payloads_of(read_object(written, limit=MAX_CARD_BYTES, what="the card"))

    def extended(self, card: AgentCard) -> AgentCard:
        """Return an extended card with signatures for all versions, whose JSON differs.

        Over gRPC, clients verify signatures over the JSON form of the message in 1.0.
        """
        written = [
            versions.dialect(version).http_json.write_result(_EXTENDED, card)
            for version in versions.SUPPORTED_VERSIONS
        ]
        written.append(versions.write_card(card, versions.DEFAULT_VERSION))
        added = (
            AgentCardSignature(protected=each["protected"], signature=each["signature"])
            for each in self.signatures(*written)
        )
        return msgspec.structs.replace(card, signatures=(*card.signatures, *added))


def signed_endpoints(
    endpoints: Mapping[str, Endpoint], signer: ServerCardSigner
) -> dict[str, Endpoint]:
    """Return endpoints with signed cards, including their tenants.

    Raises ``ValueError`` for a card that cannot be signed, with the reason.
    """
    return {path: _signed_endpoint(each, signer) for path, each in endpoints.items()}


def _signed_endpoint(endpoint: Endpoint, signer: ServerCardSigner) -> Endpoint:
    if endpoint.card is not None:
        card = endpoint.card(())
        try:
            signer.check(card)
        except ValueError as error:
            raise ValueError(
                f"the card of {card.name} cannot be signed, because it {error}: change the "
                "parameters of its extensions, or serve it without signing_keys="
            ) from None
    tenants = signed_endpoints(endpoint.tenants, signer)
    return msgspec.structs.replace(endpoint, tenants=tenants, signer=signer)
