"""Another registry that searches are passed on to: its settings, its connection, its circuit.

A header bounds the way of a search from registry to registry, and shows loops:
``Parley-Registry-Path: query=<id>; left=<hops>; ms=<time>; path=<ids of registries>``.
Registries of others neither read nor send it; ``federated.RunningQueries`` is for those.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import msgspec

from parley.client.auth.authorizer import Authorizer, credentials_of
from parley.client.auth.credentials import Credentials
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.errors import AuthenticationRequired, ClientError
from parley.client.origin import Origin
from parley.client.retry import Retry
from parley.model.errors import InvalidParamsError
from parley.registry.catalog.entries import REGISTRY, InvalidUrn, domain, is_within, segment
from parley.registry.catalog.searching import ListedResult, RegistryReferral, SearchRequest
from parley.registry.client.places import RegistryRefused, base_of
from parley.registry.client.rest import RestRegistry
from parley.security.networks import is_loopback

# The way of a search from registry to registry: a header that bounds it and shows loops.

HEADER = "Parley-Registry-Path"
MAX_HOPS = 4
MAX_PATH = 64
"""How many registries a path names at most; a search that has passed so many is not passed on."""

MAX_SECONDS = 10.0
MARGIN = 0.8
"""The part of the time left that another registry gets; the rest is for its answer's way back."""

_ID = re.compile(r"[0-9a-f]{12}")
_QUERY = re.compile(r"[0-9a-f]{16}")
_FORM = f"{HEADER} has the form query=<16 hex>; left=<hops>; ms=<time>; path=<12 hex>.<12 hex>"


class Hops(msgspec.Struct, frozen=True, kw_only=True):
    """How a search came here. ``path`` has the registries that have it or are asked by another one.

    ``left`` is how often it may be passed on, ``seconds`` the time for all of it.
    """

    query: str
    path: tuple[str, ...] = ()
    left: int = 0
    seconds: float = 0.0

    @classmethod
    def begin(cls, left: int, seconds: float) -> Hops:
        """Return the hops of a search that comes from a client."""
        return cls(query=secrets.token_hex(8), left=left, seconds=seconds)

    def onward(self, asked: tuple[str, ...], seconds: float) -> Hops:
        """Return the hops of a search that is passed on. ``asked`` are this registry and those that
        it asks itself, but for the one that gets them.
        """
        path = tuple(dict.fromkeys((*self.path, *asked)))
        left = self.left - 1 if len(path) < MAX_PATH else 0
        return Hops(
            query=self.query, path=path[:MAX_PATH], left=max(left, 0), seconds=seconds * MARGIN
        )

    def header(self) -> dict[str, str]:
        """Return the header of a request."""
        fields = [f"query={self.query}", f"left={self.left}", f"ms={int(self.seconds * 1000)}"]
        if self.path:
            fields.append(f"path={'.'.join(self.path)}")
        return {HEADER: "; ".join(fields)}


def hops_of(headers: Mapping[str, str]) -> Hops | None:
    """Return the hops in the headers of a request (names in lower case), ``None`` without any.

    Raises ``InvalidParamsError`` for a header that is malformed.
    """
    text = headers.get(HEADER.lower())
    if text is None:
        return None
    if len(text) > MAX_PATH * 13 + 200:
        raise InvalidParamsError(f"{HEADER} is longer than {MAX_PATH} registries need")
    fields = dict(part.strip().partition("=")[::2] for part in text.split(";"))
    path = tuple(filter(None, fields.get("path", "").split(".")))
    left, ms = fields.get("left", ""), fields.get("ms", "")
    is_sound = (
        _QUERY.fullmatch(fields.get("query", ""))
        and len(path) <= MAX_PATH
        and all(map(_ID.fullmatch, path))
        and all(each.isascii() and each.isdigit() and len(each) < 9 for each in (left, ms))
    )
    if not is_sound:
        raise InvalidParamsError(_FORM)
    return Hops(
        query=fields["query"],
        path=path,
        left=min(int(left), MAX_HOPS),
        seconds=min(int(ms) / 1000, MAX_SECONDS),
    )


def registry_id(url: str) -> str:
    """Return the id of a registry: a digest of its address, the same for all who ask it there."""
    with suppress(ValueError):  # the source of a registry may be any text
        url = base_of(url)
    return hashlib.sha256(url.lower().encode()).hexdigest()[:12]


_log = logging.getLogger("parley.registry")

MAX_UPSTREAMS = 16
MAX_ANSWER = 2 * 1024 * 1024
UPSTREAM_CONCURRENCY = 32
"""How many searches one registry answers for this one at a time; more go without it."""

FAILURES = 3
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0
"""A registry that failed so often in a row is left alone for so many seconds, then longer."""

EVERY = "*"


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a registry to ask. ``url`` is its address.

    ``speaks_for`` are domains whose entries are taken from it even where this registry has entries
    of theirs (``("*",)`` for all); its own domain is one of them. ``auth`` are credentials for it.
    ``seconds`` is its time limit, within that of the search.
    """

    url: str
    name: str = ""
    identifier: str = ""
    speaks_for: tuple[str, ...] = ()
    auth: Any = None
    seconds: float = 2.0


class CircuitState(StrEnum):
    """Whether an upstream registry is asked."""

    CLOSED = "closed"
    """It is asked."""
    OPEN = "open"
    """It failed too often, and is left alone for a while."""
    HALF_OPEN = "half-open"
    """One search tries it again."""


class UpstreamState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an upstream registry, for the operator.

    ``refused`` counts results that did not count, by reason.
    """

    url: str
    name: str
    circuit: CircuitState
    reason: str = ""
    asked: int = 0
    failed: int = 0
    skipped: int = 0
    refused: dict[str, int] = {}


class UpstreamPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of an upstream registry, as it was read, and the token of the next."""

    results: tuple[ListedResult, ...] = ()
    token: str = ""


class UpstreamRegistry:
    """An upstream registry with its connection. Raises ``ValueError`` for settings that are wrong.

    It may be anywhere: the operator names it. Nothing else is dialled: redirects are not followed.
    """

    def __init__(
        self, settings: Upstream, http: HttpTransport, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if settings.seconds <= 0:
            raise ValueError(f"the time limit of an upstream registry is above 0: {settings.url}")
        base, credentials = Credentials.from_reference(settings.url)
        self.base = base_of(str(base))
        self.url = redacted(self.base)
        self.origin = Origin.of(self.base)
        if self.origin.scheme != "https" and not is_loopback(self.origin.host):
            raise ValueError(
                f"the upstream registry {self.url} is not encrypted; it has an https address, "
                "unless it is on this machine"
            )
        self.settings = settings
        self.id = registry_id(self.base)
        self.name = settings.name or self.origin.host
        self.speaks_for = tuple(
            EVERY if each == EVERY else domain(each) for each in settings.speaks_for
        )
        self.is_near = is_loopback(self.origin.host)
        # Logins of this process's user are for people, not for searches of others.
        given = credentials_of(False if settings.auth is None else settings.auth)
        auth = Authorizer(credentials, given, http=http, address=self.url)
        auth.for_origin(self.origin)
        self._auth = auth
        self._rest = RestRegistry(
            self.base,
            http,
            auth,
            timeout=settings.seconds,
            retry=Retry(calls=0, streams=0),
            limit=MAX_ANSWER,
        )
        self._clock = clock
        self._running = 0
        self._strikes = 0
        self._pauses = 0
        self._paused_until = 0.0
        self._is_trying = False
        self._reason = ""
        self._asked = self._failed = self._skipped = 0
        self.refused: Counter[str] = Counter()

    @property
    def referral(self) -> RegistryReferral:
        """Its referral for clients."""
        return RegistryReferral(
            identifier=self.settings.identifier or _identifier(self.base),
            display_name=self.name,
            type=REGISTRY,
            url=f"{self.url}search",
        )

    @property
    def state(self) -> UpstreamState:
        """Its state, for the operator."""
        return UpstreamState(
            url=self.url,
            name=self.name,
            circuit=self._circuit(),
            reason=self._reason,
            asked=self._asked,
            failed=self._failed,
            skipped=self._skipped,
            refused=dict(self.refused),
        )

    def may_speak_for(self, publisher: str) -> bool:
        """Return whether it may list entries of a publisher that this registry knows itself."""
        is_own = is_within(self.origin.host, publisher) and self.origin.scheme == "https"
        return is_own or EVERY in self.speaks_for or publisher in self.speaks_for

    def take(self) -> bool:
        """Return whether it is asked now; then it must be given back by ``release``."""
        circuit = self._circuit()
        is_free = circuit is CircuitState.CLOSED or (
            circuit is CircuitState.HALF_OPEN and not self._is_trying
        )
        if not is_free or self._running >= UPSTREAM_CONCURRENCY:
            self._skipped += 1
            return False
        self._is_trying = circuit is CircuitState.HALF_OPEN
        self._running += 1
        return True

    async def ask(self, request: SearchRequest, hops: Hops) -> UpstreamPage | None:
        """Return a page; ``None`` if there is none, which the state says why.

        A page token comes from a caller, who may have made it up: what it causes does not open the
        circuit.
        """
        self._asked += 1
        counts = not request.page_token
        try:
            answer = await self._rest.search(request, headers=hops.header())
        except RegistryRefused as error:
            is_failure = error.status >= 429
            self._note(str(error), is_failure=is_failure, counts=counts, wait=error.retry_after)
            return None
        except AuthenticationRequired as error:
            self._note(str(error), is_failure=True, counts=counts)
            return None
        except ClientError as error:
            self._note(str(error), is_failure=True, counts=counts)
            return None
        self._strikes = self._pauses = 0
        self._paused_until = 0.0
        self._reason = ""
        self.refused["not an entry"] += len(answer.rejected)
        self.refused += Counter()  # drops zeros
        return UpstreamPage(results=answer.results, token=answer.page_token)

    def release(self, *, is_late: bool = False) -> None:
        """Note that a search is over; ``is_late``: it did not answer in time."""
        if is_late:
            self._note("it did not answer in time", is_failure=True)
        self._running -= 1
        self._is_trying = False

    def count(self, refused: Mapping[str, int]) -> None:
        """Count what did not count of an answer, for the operator."""
        self.refused.update(refused)

    async def aclose(self) -> None:
        """Close the connections to its issuers. Idempotent."""
        await self._auth.aclose()

    def _circuit(self) -> CircuitState:
        if not self._paused_until:
            return CircuitState.CLOSED
        now = self._clock()
        return CircuitState.OPEN if now < self._paused_until else CircuitState.HALF_OPEN

    def _note(
        self, reason: str, *, is_failure: bool, counts: bool = True, wait: float | None = None
    ) -> None:
        self._failed += 1
        self._reason = reason[:500]
        if not is_failure:  # it answers; it only does not take this search
            self._strikes, self._paused_until = 0, 0.0
            return
        if not counts:
            return
        self._strikes += 1
        if self._strikes < FAILURES and wait is None and not self._is_trying:
            return
        pause = min(FIRST_PAUSE * 2**self._pauses, LONGEST_PAUSE)
        if wait is not None:
            pause = min(max(wait, 1.0), LONGEST_PAUSE)
        self._pauses = min(self._pauses + 1, 10)
        self._paused_until = self._clock() + pause
        _log.warning("the registry %s is not asked for %.0f s: %s", self.url, pause, self._reason)


def _identifier(base: str) -> str:
    parts = urlsplit(base)
    host = parts.hostname or ""
    name = segment(parts.path.strip("/") or str(parts.port or "registry"))
    try:
        return f"urn:air:{domain(host)}:registry:{name}"
    except InvalidUrn:
        return f"urn:air:{segment(host).replace('.', '-')}.localhost:registry:{name}"
