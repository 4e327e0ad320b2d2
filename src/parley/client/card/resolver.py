"""From a reference to an agent card (specification §8.2, §8.6)."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from parley.client.bindings.http import HttpTransport, Reply, is_same_server, place
from parley.client.card.catalog import MOST_NAMED, Listed, is_at, listed_in, named
from parley.client.credentials import Credentials
from parley.client.errors import (
    AuthenticationRequired,
    CardInvalid,
    CardNotFound,
    ClientError,
    ResponseTooLarge,
    UnexpectedStatus,
)
from parley.client.origin import Origin
from parley.client.retry import PASSING_STATUSES, Retry, repeat
from parley.model import encoding
from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.model.retry_after import seconds_of
from parley.security.loopback import is_loopback
from parley.wire import versions

logger = logging.getLogger(__name__)

_NOT_HERE = frozenset({200, 404, 405, 406, 410})
WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
MAX_CARD = 1024 * 1024
MAX_CACHED = 64

Reference = str | bytes | os.PathLike[str] | Mapping[str, Any] | AgentCard
"""An agent: the address of its host or its card, a card file, a card's JSON, or a card."""


class ResolvedCard(msgspec.Struct, frozen=True):
    """A card, its JSON as it was found, and the address that it came from (if it has one).

    ``server`` is what the server there calls itself. ``named`` is the origin of the address that
    the caller gave, from which redirects may have led elsewhere.
    """

    card: AgentCard
    raw: bytes
    url: str = ""
    server: str = ""
    named: Origin | None = None

    def bind(self, credentials: Credentials) -> Credentials:
        """Return the credentials as they were given for this card's agent.

        A card in the caller's own hands is the caller's word on where to call. One that was fetched
        is a server's, and the caller's is the address.
        """
        return credentials.bound_to(self.named) if self.url else credentials.bound_to_all()


class _Kept(msgspec.Struct):
    resolved: ResolvedCard
    etag: str
    last_modified: str
    fresh_until: float


class _NoCard(msgspec.Struct, frozen=True):
    """An answer that is no card: its HTTP status, and the agents that it lists."""

    status: int
    agents: tuple[Listed, ...]


class CardResolver:
    """Finds cards and remembers them as HTTP caching allows (RFC 9111), at most 64 of them.

    ``headers`` go with every request, ``credentials`` to the server of the address that is asked
    for (a token or a key only when it wants some).
    """

    def __init__(
        self,
        http: HttpTransport,
        *,
        headers: Mapping[str, str] | None = None,
        credentials: Credentials | None = None,
        timeout: float | None = 30.0,
        retry: Retry | None = None,
        max_size: int = MAX_CARD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = http
        self._credentials = credentials or Credentials()
        public = self._credentials.public
        self._headers = {"Accept": "application/json", **(headers or {}), **public}
        self._timeout = timeout
        self._retry = retry or Retry()
        self._max_size = max_size
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def resolve(self, reference: Reference) -> ResolvedCard:
        """Return the card that ``reference`` leads to.

        At an address without a path, a list of one agent leads to its card; at one with a path,
        the card of the domain counts if it names an interface there.

        Raises ``CardNotFound`` (nothing there, or several agents, which it names),
        ``CardInvalid`` (something else there), ``AuthenticationRequired``, and ``Unreachable`` and
        the like when the server cannot be asked.
        """
        if isinstance(reference, AgentCard):
            return ResolvedCard(reference, encoding.encode(reference))
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
        text = reference.strip()
        if "\0" in text or not _is_text(text):
            raise CardNotFound(f"{text[:100]!r} is neither an address nor a card file")
        if text.startswith("{"):
            raw = text.encode()
            return ResolvedCard(read_card(raw, "the given JSON"), raw)
        if re.match(r"https?://", text, re.IGNORECASE):
            return await self._from_url(text)
        if re.match(r"file:", text, re.IGNORECASE):
            from urllib.request import url2pathname  # pulls in much, and is seldom needed

            return await self._from_file(Path(url2pathname(urlsplit(text).path)))
        is_host = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d+)?(/\S*)?", text)
        is_file = _is_file(text)
        if _is_file_name(text) or (is_file and not is_host):
            return await self._from_file(Path(text))
        if is_host:
            address = f"{_scheme_for(is_host[1])}://{text}"
            if is_file:
                # Whoever made this folder must not decide where a host's name leads.
                raise CardNotFound(
                    f"{text!r} is a file here, and may be a host: give ./{text} or {address}"
                )
            return await self._from_url(address)
        shown = re.sub(r"^.*@", "...@", text)  # what precedes may be a password
        raise CardNotFound(f"{shown[:200]!r} is neither an address nor a card file")

    async def _from_file(self, path: Path) -> ResolvedCard:
        def read() -> bytes:
            with path.expanduser().open("rb") as file:
                return file.read(self._max_size + 1)

        try:
            raw = await asyncio.to_thread(read)
        except (OSError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error  # a NUL in its name, no such home
            shown = str(path)[:200]
            raise CardNotFound(f"the card file {shown} cannot be read: {reason}") from error
        if len(raw) > self._max_size:
            raise CardInvalid(f"{path} is larger than {self._max_size:,} bytes")
        return ResolvedCard(read_card(raw, str(path)), raw)

    async def _from_url(self, url: str) -> ResolvedCard:
        origin = self._named(url)
        found = await self._found_at(url, self._credentials.bound_to(origin))
        return msgspec.structs.replace(found, named=origin) if origin else found

    async def _found_at(self, url: str, credentials: Credentials) -> ResolvedCard:
        tried: list[str] = []
        not_a_card: CardInvalid | None = None
        agents: tuple[Listed, ...] = ()
        try:
            candidates, has_path = _candidates(url), bool(urlsplit(url).path.strip("/"))
        except ValueError as error:
            raise CardNotFound(f"{place(url)!r} is not an address: {error}") from None
        for candidate in candidates:
            try:
                found = await self._fetch(candidate, credentials)
            except CardInvalid as error:
                # Some sites answer every path with a page; the card may still be at the next.
                not_a_card = not_a_card or error
                continue
            if isinstance(found, ResolvedCard):
                return found
            tried.append(f"{place(candidate)} ({found.status})")
            agents = agents or found.agents
            if agents and not has_path:
                return await self._of_one(agents, url, credentials)
            if found.status not in _NOT_HERE:
                break
        else:
            if has_path and len(candidates) > 1:
                of_domain = await self._from_domain(url, credentials)
                if isinstance(of_domain, ResolvedCard):
                    return of_domain
                tried += of_domain
        if agents:
            raise CardNotFound(
                f"no agent card at {', '.join(tried)}; the agents there are {named(agents)}"
            )
        if not_a_card is not None:
            raise not_a_card
        raise CardNotFound(f"no agent card at {', '.join(tried)}")

    async def _from_domain(self, url: str, credentials: Credentials) -> ResolvedCard | list[str]:
        """Return the card at the domain's well-known address, if it is of who is at ``url``.

        Otherwise return what was tried. The card of another agent is not taken for this one's.
        """
        tried = []
        for path in WELL_KNOWN:
            candidate = urlunsplit(urlsplit(url)._replace(path=path, query="", fragment=""))
            try:
                found = await self._fetch(candidate, credentials)
            except ClientError:  # what is at the address itself is what its caller is told
                continue
            if isinstance(found, _NoCard):
                tried.append(f"{place(candidate)} ({found.status})")
            elif is_at(found.card, url):
                return found
            else:
                at = ", ".join(place(each.url) for each in found.card.supported_interfaces[:5])
                words = f"is that of {found.card.name[:100]!r} at {at}"
                return [*tried, f"{place(candidate)} (which {words})"]
        return tried

    async def _of_one(
        self, agents: tuple[Listed, ...], url: str, credentials: Credentials
    ) -> ResolvedCard:
        """Return the card of the one agent that is listed. Raises ``CardNotFound`` for several."""
        if len(agents) > 1:
            shown = [
                await self._with_name(agent, url, credentials) for agent in agents[:MOST_NAMED]
            ]
            raise CardNotFound(
                f"{place(url)} has {len(agents)} agents; connect to one of them: "
                f"{named([*shown, *agents[MOST_NAMED:]])}"
            )
        [agent] = agents
        if agent.card is not None:
            raw = msgspec.json.encode(agent.card)
            return ResolvedCard(read_card(raw, f"what {place(url)} lists"), raw, url)
        ways = [agent.card_url] if agent.card_url else _candidates(agent.url)
        if not is_same_server(url, ways[0]):
            raise CardNotFound(
                f"{place(url)} has no agent card, and refers to another server; connect to {agent}"
            )
        for way in ways:
            found = await self._fetch(way, credentials)
            if isinstance(found, ResolvedCard):
                return found
        raise CardNotFound(f"{place(url)} lists {agent}, where there is no agent card")

    async def _with_name(self, agent: Listed, url: str, credentials: Credentials) -> Listed:
        """Return an agent of a list with the name that its card has, if that is at hand."""
        if agent.name or not agent.card_url or not is_same_server(url, agent.card_url):
            return agent
        try:
            found = await self._fetch(agent.card_url, credentials)
        except ClientError:
            return agent
        if isinstance(found, _NoCard):
            return agent
        return msgspec.structs.replace(agent, name=found.card.name)

    def _named(self, url: str) -> Origin | None:
        """Return the origin of the caller's own address, where credentials are bound to it."""
        if not self._credentials:
            return None
        try:
            return Origin.of(url)
        except ValueError as error:
            raise CardNotFound(
                f"{place(url)!r} is no address to send credentials to; give {error}"
            ) from None

    async def _fetch(self, url: str, credentials: Credentials) -> ResolvedCard | _NoCard:
        kept = self._kept.get(url)
        if kept is not None and self._clock() < kept.fresh_until:
            self._kept.move_to_end(url)
            return kept.resolved
        reply = await self._get(url, kept, credentials)
        if reply.status == 304 and kept is not None:
            return self._keep(url, kept.resolved, reply, kept)
        if reply.status != 200:
            agents = listed_in(reply.body, reply.url) if reply.status in _NOT_HERE else ()
            return _NoCard(reply.status, agents)
        try:
            card = read_card(reply.body, place(url))
        except CardInvalid:
            agents = listed_in(reply.body, reply.url)
            if agents:
                return _NoCard(200, agents)
            raise
        resolved = ResolvedCard(card, reply.body, reply.url, reply.headers.get("server", ""))
        return self._keep(url, resolved, reply, None)

    async def _get(self, url: str, kept: _Kept | None, credentials: Credentials) -> Reply:
        headers = dict(self._headers)
        if kept is not None and kept.etag:
            headers["If-None-Match"] = kept.etag
        elif kept is not None and kept.last_modified:
            headers["If-Modified-Since"] = kept.last_modified

        async def get(asked: bool) -> Reply:
            try:
                reply = await self._http.get(
                    url,
                    headers,
                    attach=partial(credentials.to_card, asked=asked),
                    timeout=self._timeout,
                    limit=self._max_size,
                )
            except ResponseTooLarge as error:
                raise CardInvalid(str(error)) from None
            if reply.status in PASSING_STATUSES:
                raise UnexpectedStatus(
                    f"{place(url)} answered {reply.status}",
                    status=reply.status,
                    retry_after=seconds_of(reply.headers.get("retry-after")),
                )
            return reply

        async def ask(asked: bool) -> Reply:
            return await repeat(lambda: get(asked), self._retry, safe=True, name="the agent card")

        reply = await ask(asked=False)
        if reply.status == 401 and credentials.would_answer(reply.url):
            reply = await ask(asked=True)
        if reply.status in (401, 403):
            raise AuthenticationRequired(
                f"{place(reply.url)} wants credentials for the agent card"
                if reply.status == 401
                else f"{place(reply.url)} refuses to show the agent card",
                status=reply.status,
                challenge=reply.headers.get("www-authenticate", ""),
            )
        return reply

    def _keep(
        self, url: str, resolved: ResolvedCard, reply: Reply, before: _Kept | None
    ) -> ResolvedCard:
        control = reply.headers.get("cache-control", "").lower()
        self._kept.pop(url, None)
        if "no-store" in control:
            return resolved
        self._kept[url] = _Kept(
            resolved=resolved,
            etag=reply.headers.get("etag") or (before.etag if before else ""),
            last_modified=reply.headers.get("last-modified")
            or (before.last_modified if before else ""),
            fresh_until=self._clock() + _max_age(control, reply.headers.get("age", "")),
        )
        if len(self._kept) > MAX_CACHED:
            self._kept.popitem(last=False)
        return resolved


def _max_age(control: str, age: str) -> float:
    found = re.search(r"\bmax-age=\"?(\d{1,9})", control)
    if found is None or "no-cache" in control:
        return 0.0
    return max(0.0, float(found[1]) - (float(age[:10]) if age.isascii() and age.isdigit() else 0.0))


def _candidates(url: str) -> list[str]:
    parts = urlsplit(url)
    if parts.path.lower().endswith(".json"):
        return [url]
    base = parts.path.rstrip("/")
    return [*(urlunsplit(parts._replace(path=base + path)) for path in WELL_KNOWN), url]


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # no name that a file can have
        return False


def _is_file_name(text: str) -> bool:
    if text.startswith((".", "/", "~")) or "\\" in text:
        return True
    return text.lower().endswith(".json") and ":" not in text


def _is_text(text: str) -> bool:
    """Whether a text can be sent and looked up: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _scheme_for(host: str) -> str:
    name = host.strip("[]")
    return "http" if is_loopback(name) or name in ("0.0.0.0", "::") else "https"


def read_card(raw: bytes, where: str) -> AgentCard:
    """Return the card that ``raw`` holds; ``where`` names it in errors.

    Unknown members and security schemes of unknown kinds are passed over. A card of protocol 0.3
    is read as far as the two versions agree, with the interfaces that it implies.

    Raises ``CardInvalid`` that says what is wrong.
    """
    try:
        members = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CardInvalid(f"{where} is not JSON") from None
    except RecursionError:
        raise CardInvalid(f"{where} is nested too deeply to be an agent card") from None
    if not isinstance(members, dict):
        raise CardInvalid(f"{where} is JSON, but not an object, so not an agent card")
    try:
        return versions.read_card(members)
    except A2AError as error:
        raise CardInvalid(f"{where} is not an agent card: {error.message}") from error
    except RecursionError:
        raise CardInvalid(f"{where} is nested too deeply to be an agent card") from None
