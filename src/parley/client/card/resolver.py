"""Resolves a reference to an agent card, with an HTTP cache (specification §8.2, §8.6)."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from parley.client.auth.authorizer import Authorizer, parse_challenges
from parley.client.auth.credentials import Credentials
from parley.client.bindings.http import HttpTransport, Reply, redacted
from parley.client.bindings.request_auth import Refusal, override
from parley.client.card.catalog import (
    MAX_NAMED_AGENTS,
    ListedAgent,
    describe_agents,
    parse_catalog,
    serves_address,
)
from parley.client.card.trust import NOT_VERIFIED, CardCheck
from parley.client.errors import (
    AuthenticationRequired,
    CardInvalid,
    CardNotFound,
    ClientError,
    ResponseTooLarge,
    UnexpectedStatus,
)
from parley.client.origin import Origin, is_same_server
from parley.client.retry import TRANSIENT_STATUSES, Retry, repeat
from parley.model import struct
from parley.model.backoff import seconds_of
from parley.model.bounded import Bounded
from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.security.egress import Egress
from parley.security.networks import is_loopback
from parley.wire import versions
from parley.wire.json.syntax import without_bom

logger = logging.getLogger(__name__)

_NO_CARD_STATUSES = frozenset({200, 404, 405, 406, 410})
WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
MAX_CARD = 1024 * 1024
MAX_CACHED = 64


class ForeignCard(msgspec.Struct, frozen=True):
    """A card from a third party, such as a registry, as JSON values.

    The caller does not vouch for it: credentials are sent to the origin of its first interface
    only.
    """

    card: Mapping[str, Any]


class CatalogReference(msgspec.Struct, frozen=True, kw_only=True):
    """An agent in a catalog, such as a ``FoundAgent``, with its reference and egress policy."""

    @property
    def identifier(self) -> str:
        """The identifier in the catalog."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The display name."""
        raise NotImplementedError

    @property
    def reference(self) -> Reference:
        """The address or the card. Raises ``CardNotFound`` for an entry without an A2A card."""
        raise NotImplementedError

    @property
    def egress(self) -> Egress | None:
        """The addresses that may be called, ``None`` for any."""
        raise NotImplementedError


Reference = str | bytes | os.PathLike[str] | Mapping[str, Any] | AgentCard | ForeignCard
"""A reference to an agent: an address of its host or card, a card file, JSON, or a card."""


class ResolvedCard(msgspec.Struct, frozen=True):
    """A card, its original JSON, and the address from which it was fetched, if any.

    ``server`` is the ``Server`` header of that response. ``given_origin`` is the origin of the
    caller's address; redirects may have led to another. ``check`` is the verdict about its
    signatures. ``is_foreign``: a third party gave the card, without an address.
    """

    card: AgentCard
    raw: bytes
    url: str = ""
    server: str = ""
    given_origin: Origin | None = None
    check: CardCheck = NOT_VERIFIED
    is_foreign: bool = False

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "raw", without_bom(self.raw))

    def bind(self, credentials: Credentials) -> Credentials:
        """Return the credentials, limited to the origins that the caller gave them for.

        The caller vouches for a card that it passes itself. For a fetched card the caller vouches
        only for the address, for a third party's card only for the first interface.
        """
        if self.url or self.is_foreign:
            return credentials.for_origin(self.given_origin)
        return credentials.for_any_origin()


def first_origin(card: AgentCard) -> Origin | None:
    """Return the origin of a card's first interface with an HTTP address."""
    for interface in card.supported_interfaces:
        try:
            return Origin.of(interface.url)
        except ValueError:
            continue
    return None


class _CachedCard(msgspec.Struct):
    resolved: ResolvedCard
    etag: str
    last_modified: str
    fresh_until: float


class _NoCard(msgspec.Struct, frozen=True):
    """A response that is not a card: its HTTP status, and the agents if it is a catalog."""

    status: int
    agents: tuple[ListedAgent, ...]


class CardResolver:
    """Finds cards, and caches up to 64 of them by the rules of HTTP caching (RFC 9111).

    ``headers`` are sent with every request. ``credentials`` and the credentials of ``auth`` are
    sent only to the server of the reference, and, except for headers, only if it asks for them.
    ``requests`` counts requests.
    """

    def __init__(
        self,
        http: HttpTransport,
        *,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        auth: Authorizer | None = None,
        timeout: float | None = 30.0,
        retry: Retry | None = None,
        max_size: int = MAX_CARD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = http
        self._credentials = credentials or Credentials()
        self._auth = auth
        public = self._credentials.public
        self._headers = {"Accept": "application/json", **(headers or {}), **public}
        self._timeout = timeout
        self._retry = retry or Retry()
        self._max_size = max_size
        self._clock = clock
        self._cache: Bounded[str, _CachedCard] = Bounded(MAX_CACHED)
        self.requests = 0

    def forget(self) -> None:
        """Drop the cached cards, so that they are fetched again."""
        self._cache.clear()

    async def resolve(self, reference: Reference) -> ResolvedCard:
        """Return the card of ``reference``.

        For an address without a path, a catalog with one agent leads to its card. For an address
        with a path, the domain's card is used if it has an interface there.

        Raises ``CardNotFound`` (no card, or several agents, which the error lists), ``CardInvalid``
        (not a card), ``AuthenticationRequired``, and the errors of ``HttpTransport``.
        """
        if isinstance(reference, AgentCard):
            return ResolvedCard(reference, struct.encode(reference))
        if isinstance(reference, ForeignCard):
            own = await self.resolve(reference.card)
            first = first_origin(own.card)
            return msgspec.structs.replace(own, given_origin=first, is_foreign=True)
        if isinstance(reference, Mapping):
            try:
                raw = msgspec.json.encode(dict(reference))
            except RecursionError:
                raise CardInvalid(
                    "the given card is nested too deeply to be an agent card"
                ) from None
            return ResolvedCard(read_card(raw, "the given card"), raw)
        if isinstance(reference, bytes):
            return ResolvedCard(read_card(reference, "the given JSON"), reference)
        if isinstance(reference, os.PathLike):
            return await self._from_file(Path(reference))
        text = reference.removeprefix("\ufeff").strip()
        if "\0" in text or not _is_text(text):
            raise CardNotFound(f"{text[:100]!r} is neither an address nor a card file")
        if text.startswith("{"):
            raw = text.encode()
            return ResolvedCard(read_card(raw, "the given JSON"), raw)
        if re.match(r"https?://", text, re.IGNORECASE):
            return await self._from_url(text)
        if re.match(r"file:", text, re.IGNORECASE):
            from urllib.request import url2pathname  # slow to import, rarely needed

            return await self._from_file(Path(url2pathname(urlsplit(text).path)))
        is_host = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d+)?(/\S*)?", text)
        is_file = _is_file(text)
        if _is_file_name(text) or (is_file and not is_host):
            return await self._from_file(Path(text))
        if is_host:
            address = f"{_scheme_for(is_host[1])}://{text}"
            if is_file:
                # A file in the current folder must not shadow a host.
                raise CardNotFound(
                    f"{text!r} is a file here, and may be a host: give ./{text} or {address}"
                )
            return await self._from_url(address)
        shown = re.sub(r"^.*@", "...@", text)  # the part before @ may be a password
        raise CardNotFound(f"{shown[:200]!r} is neither an address nor a card file")

    async def _from_file(self, path: Path) -> ResolvedCard:
        def read() -> bytes:
            with path.expanduser().open("rb") as file:
                return file.read(self._max_size + 1)

        try:
            raw = await asyncio.to_thread(read)
        except (OSError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error  # such as a NUL in the name
            shown = str(path)[:200]
            raise CardNotFound(f"the card file {shown} cannot be read: {reason}") from error
        if len(raw) > self._max_size:
            raise CardInvalid(f"{path} is larger than {self._max_size:,} bytes")
        return ResolvedCard(read_card(raw, str(path)), raw)

    async def _from_url(self, url: str) -> ResolvedCard:
        origin = self._origin_of(url)
        if self._auth is not None:
            self._auth.for_origin(origin)
        found = await self._find(url, self._credentials.for_origin(origin))
        return msgspec.structs.replace(found, given_origin=origin) if origin else found

    async def _find(self, url: str, credentials: Credentials) -> ResolvedCard:
        tried: list[str] = []
        not_a_card: CardInvalid | None = None
        agents: tuple[ListedAgent, ...] = ()
        try:
            candidates, has_path = _candidate_urls(url), bool(urlsplit(url).path.strip("/"))
        except ValueError as error:
            raise CardNotFound(f"{redacted(url)!r} is not an address: {error}") from None
        for candidate in candidates:
            try:
                found = await self._fetch(candidate, credentials)
            except CardInvalid as error:
                # Some sites answer every path with a page; the card may be at the next address.
                not_a_card = not_a_card or error
                continue
            if isinstance(found, ResolvedCard):
                return found
            tried.append(f"{redacted(candidate)} ({found.status})")
            agents = agents or found.agents
            if agents and not has_path:
                return await self._from_catalog(agents, url, credentials)
            if found.status not in _NO_CARD_STATUSES:
                break
        else:
            if has_path and len(candidates) > 1:
                of_domain = await self._from_domain(url, credentials)
                if isinstance(of_domain, ResolvedCard):
                    return of_domain
                tried += of_domain
        if agents:
            raise CardNotFound(
                f"no agent card at {', '.join(tried)}; "
                f"the agents there are {describe_agents(agents)}"
            )
        if not_a_card is not None:
            raise not_a_card
        raise CardNotFound(f"no agent card at {', '.join(tried)}")

    async def _from_domain(self, url: str, credentials: Credentials) -> ResolvedCard | list[str]:
        """Return the card at the domain's well-known address, if it belongs to ``url``.

        Otherwise return the addresses tried. The card of another agent is ignored.
        """
        tried = []
        for path in WELL_KNOWN:
            candidate = urlunsplit(urlsplit(url)._replace(path=path, query="", fragment=""))
            try:
                found = await self._fetch(candidate, credentials)
            except ClientError:  # the caller gets the error for its own address instead
                continue
            if isinstance(found, _NoCard):
                tried.append(f"{redacted(candidate)} ({found.status})")
            elif serves_address(found.card, url):
                return found
            else:
                offered = [redacted(each.url) for each in found.card.supported_interfaces]
                urls = ", ".join(list(dict.fromkeys(offered))[:5])
                words = f"is that of {found.card.name[:100]!r} at {urls}"
                return [*tried, f"{redacted(candidate)} (which {words})"]
        return tried

    async def _from_catalog(
        self, agents: tuple[ListedAgent, ...], url: str, credentials: Credentials
    ) -> ResolvedCard:
        """Return the card of a catalog's only agent. Raises ``CardNotFound`` for several agents."""
        if len(agents) > 1:
            shown = [
                await self._with_name(agent, url, credentials)
                for agent in agents[:MAX_NAMED_AGENTS]
            ]
            raise CardNotFound(
                f"{redacted(url)} has {len(agents)} agents; connect to one of them: "
                f"{describe_agents([*shown, *agents[MAX_NAMED_AGENTS:]])}"
            )
        [agent] = agents
        if agent.card is not None:
            raw = msgspec.json.encode(agent.card)
            return ResolvedCard(read_card(raw, f"what {redacted(url)} lists"), raw, url)
        urls = [agent.card_url] if agent.card_url else _candidate_urls(agent.url)
        if not is_same_server(url, urls[0]):
            raise CardNotFound(
                f"{redacted(url)} has no agent card, and names an agent on another server; "
                f"connect to {agent}"
            )
        for card_url in urls:
            found = await self._fetch(card_url, credentials)
            if isinstance(found, ResolvedCard):
                return found
        raise CardNotFound(f"{redacted(url)} lists {agent}, where there is no agent card")

    async def _with_name(
        self, agent: ListedAgent, url: str, credentials: Credentials
    ) -> ListedAgent:
        """Return an agent of a catalog with the name from its card, if the same server has it."""
        if agent.name or not agent.card_url or not is_same_server(url, agent.card_url):
            return agent
        try:
            found = await self._fetch(agent.card_url, credentials)
        except ClientError:
            return agent
        if isinstance(found, _NoCard):
            return agent
        return msgspec.structs.replace(agent, name=found.card.name)

    def _origin_of(self, url: str) -> Origin | None:
        """Return the origin of the caller's address; ``None`` if no credentials are sent there."""
        if not self._credentials and self._auth is None:
            return None
        try:
            return Origin.of(url)
        except ValueError as error:
            if not self._credentials:
                return None
            raise CardNotFound(
                f"{redacted(url)!r} is not an address to send credentials to; give {error}"
            ) from None

    async def _fetch(self, url: str, credentials: Credentials) -> ResolvedCard | _NoCard:
        cached = self._cache.get(url)
        if cached is not None and self._clock() < cached.fresh_until:
            self._cache[url] = cached
            return cached.resolved
        reply = await self._get(url, cached, credentials)
        if reply.status == 304 and cached is not None:
            return self._store(url, cached.resolved, reply, cached)
        if reply.status != 200:
            agents = (
                parse_catalog(reply.body, reply.url) if reply.status in _NO_CARD_STATUSES else ()
            )
            return _NoCard(reply.status, agents)
        try:
            card = read_card(reply.body, redacted(url))
        except CardInvalid:
            agents = parse_catalog(reply.body, reply.url)
            if agents:
                return _NoCard(200, agents)
            raise
        resolved = ResolvedCard(card, reply.body, reply.url, reply.headers.get("server", ""))
        return self._store(url, resolved, reply, None)

    async def _get(self, url: str, cached: _CachedCard | None, credentials: Credentials) -> Reply:
        self.requests += 1
        headers = dict(self._headers)
        if cached is not None and cached.etag:
            headers["If-None-Match"] = cached.etag
        elif cached is not None and cached.last_modified:
            headers["If-Modified-Since"] = cached.last_modified

        given: dict[str, str] = {}

        def attach(challenged: bool, where: str) -> dict[str, str]:
            found = credentials.card_headers(where, challenged=challenged)
            if given and self._auth is not None and self._auth.allows(where):
                return override(found, given)
            return found

        async def get(challenged: bool) -> Reply:
            try:
                reply = await self._http.get(
                    url,
                    headers,
                    attach=partial(attach, challenged),
                    timeout=self._timeout,
                    limit=self._max_size,
                )
            except ResponseTooLarge as error:
                raise CardInvalid(str(error)) from None
            if reply.status in TRANSIENT_STATUSES:
                raise UnexpectedStatus(
                    f"{redacted(url)} answered {reply.status}",
                    status=reply.status,
                    retry_after=seconds_of(reply.headers.get("retry-after")),
                )
            return reply

        async def get_with_retry(challenged: bool) -> Reply:
            return await repeat(
                lambda: get(challenged), self._retry, safe=True, name="the agent card"
            )

        reply = await get_with_retry(challenged=False)
        challenges = parse_challenges(reply.headers.get("www-authenticate", ""))
        credentials = credentials.for_challenge({each.scheme for each in challenges})
        if reply.status == 401 and credentials.answers_challenge(reply.url):
            reply = await get_with_retry(challenged=True)
        elif reply.status == 401 and self._auth is not None:
            refusal = Refusal(401, reply.headers.get("www-authenticate", ""))
            given.update(await self._auth.card_parameters(refusal, reply.url))
            if given:
                reply = await get_with_retry(challenged=True)
        if reply.status in (401, 403):
            raise AuthenticationRequired(
                f"{redacted(reply.url)} wants credentials for the agent card"
                if reply.status == 401
                else f"{redacted(reply.url)} rejects the request for the agent card",
                status=reply.status,
                challenge=reply.headers.get("www-authenticate", ""),
            )
        return reply

    def _store(
        self, url: str, resolved: ResolvedCard, reply: Reply, before: _CachedCard | None
    ) -> ResolvedCard:
        control = reply.headers.get("cache-control", "").lower()
        self._cache.pop(url, None)
        if "no-store" in control:
            return resolved
        self._cache[url] = _CachedCard(
            resolved=resolved,
            etag=reply.headers.get("etag") or (before.etag if before else ""),
            last_modified=reply.headers.get("last-modified")
            or (before.last_modified if before else ""),
            fresh_until=self._clock() + _max_age(control, reply.headers.get("age", "")),
        )
        return resolved


def _max_age(control: str, age: str) -> float:
    found = re.search(r"\bmax-age=\"?(\d{1,9})", control)
    if found is None or "no-cache" in control:
        return 0.0
    return max(0.0, float(found[1]) - (float(age[:10]) if age.isascii() and age.isdigit() else 0.0))


def _candidate_urls(url: str) -> list[str]:
    parts = urlsplit(url)
    if parts.path.lower().endswith(".json"):
        return [url]
    base = parts.path.rstrip("/")
    return [*(urlunsplit(parts._replace(path=base + path)) for path in WELL_KNOWN), url]


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # not a valid file name
        return False


def _is_file_name(text: str) -> bool:
    if text.startswith((".", "/", "~")) or "\\" in text:
        return True
    return text.lower().endswith(".json") and ":" not in text


def _is_text(text: str) -> bool:
    """Return whether a text is valid Unicode, without lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _scheme_for(host: str) -> str:
    name = host.strip("[]")
    return "http" if is_loopback(name) or name in ("0.0.0.0", "::") else "https"


def read_card(raw: bytes, where: str) -> AgentCard:
    """Return the card in ``raw``. Errors call it ``where``.

    Unknown members and security schemes of unknown kinds are ignored. A 0.3 card is converted to
    1.0 as far as possible, including the interfaces that it implies.

    Raises ``CardInvalid`` with the reason.
    """
    try:
        members = msgspec.json.decode(without_bom(raw))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CardInvalid(f"{where} is not JSON") from None
    except RecursionError:
        raise CardInvalid(f"{where} is nested too deeply to be an agent card") from None
    if not isinstance(members, dict):
        raise CardInvalid(f"{where} is JSON, but not an object, so not an agent card")
    try:
        return versions.read_card(members)
    except A2AError as error:
        faults = [f"{each.field}: {each.description}" for each in error.violations]
        why = "; ".join(faults) or error.message
        raise CardInvalid(f"{where} is not an agent card: {why}", raw=raw) from error
    except RecursionError:
        raise CardInvalid(f"{where} is nested too deeply to be an agent card") from None
