"""Proofs that a caller controls a domain: a token in DNS, or at a well-known path.

The token is bound to one caller, one domain and one registry, and its text names the registry: the
owner of the domain can see which registry it is for.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from parley.model.concurrency import Periodic
from parley.model.errors import InvalidParamsError, PermissionDeniedError, TooManyRequestsError
from parley.model.service import Caller, caller_of
from parley.registry.catalog.entries import InvalidUrn
from parley.registry.catalog.entries import domain as read_domain
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.addresses import (
    DnsNames,
    DnsUnavailable,
    host_of,
    is_public_suffix,
    is_this_machine,
)
from parley.registry.ingest.fetching import PageUnavailable, WebFetcher
from parley.registry.publishing.callers import (
    SYSTEM,
    CallerRates,
    ConflictError,
    NotFoundError,
    PublishingLimits,
    RegistryAudit,
)
from parley.registry.records import DomainClaim
from parley.store.protocols.errors import StoreUnavailable

log = logging.getLogger("parley.registry")

LABEL = "_parley-registry"
PROOF_PATH = "/.well-known/parley-registry.json"
DNS, WELL_KNOWN = "dns", "well-known"
METHODS = (DNS, WELL_KNOWN)
RELEASED = "released"
"""The method of a claim that its owner has released, until no entry depends on it."""

MAX_DOCUMENT = 64 * 1024
LEASE = 120.0
POLL_SECONDS = 60.0
RENEWAL_CONCURRENCY = 8
FORGOTTEN_MS = 30 * 24 * 3600 * 1000
"""How long after its expiry a claim is still checked, and restored when the proof is
found again.
"""

_DOCUMENT = msgspec.json.Decoder(dict[str, Any])


Time = Annotated[int, msgspec.Meta(description="In ms since 1970.")]


class DomainChallenge(msgspec.Struct, frozen=True, rename="camel"):
    """The proof to publish: ``text`` as a TXT record, or in a document at an address."""

    domain: str
    text: str
    expires_at: Time
    record: str
    url: str
    document: dict[str, list[str]]


class ProvedDomain(msgspec.Struct, frozen=True, rename="camel"):
    """A proved domain, with its expiry (ms)."""

    domain: str
    method: str
    expires_at: Time


class DomainProofs:
    """Challenges, proofs, and their renewal.

    ``registry`` is the name in the published texts. Without ``names`` DNS is not used. ``ended``
    and ``came_back`` are called when the proof of a claim has expired, or is found again later.
    """

    def __init__(
        self,
        index: RegistryIndex,
        fetcher: WebFetcher,
        names: DnsNames | None = None,
        *,
        registry: str,
        limits: PublishingLimits | None = None,
        rates: CallerRates | None = None,
    ) -> None:
        if not registry or any(char in registry for char in " ;\"'") or not registry.isprintable():
            raise ValueError(f"{registry!r} is not the name of a registry: give its host")
        self._index = index
        self._fetcher = fetcher
        self._names = names
        self.registry = registry
        self.limits = limits or PublishingLimits()
        self._rates = rates or CallerRates(self.limits)
        self._audit = RegistryAudit(index)
        self._renewals = Periodic(
            "looking for proofs of domains",
            self.renew,
            POLL_SECONDS,
            log=log,
            expected=StoreUnavailable,
        )
        self.ended: Callable[[DomainClaim], Awaitable[object]] | None = None
        self.came_back: Callable[[DomainClaim], Awaitable[object]] | None = None

    async def start(self) -> None:
        """Start checking proofs before they expire. Idempotent."""
        self._renewals.start()

    async def stop(self) -> None:
        """Stop checking proofs. Idempotent."""
        await self._renewals.stop()

    async def challenge(
        self, caller: Caller, domain: str, *, origin: str = "", address: str = ""
    ) -> DomainChallenge:
        """Return a new token for a domain. It replaces earlier tokens.

        Raises ``A2AError``, ``StoreUnavailable``.
        """
        owner = owner_of(caller)
        name = checked_domain(domain)
        self._rates.take(owner, "challenge")
        await self._check_room(owner, name)
        text = f"parley-registry={secrets.token_urlsafe(32)}; registry={self.registry}"
        expires_at = self._index.now() + round(self.limits.challenge_seconds * 1000)
        url = self._address(name, origin)
        await self._audit.record(caller, "domain.challenged", name, address=address)
        await self._index.put_challenge(name, owner, text, expires_at)
        return DomainChallenge(
            domain=name,
            text=text,
            expires_at=expires_at,
            record=f'{LABEL}.{name}. 300 IN TXT "{text}"',
            url=url,
            document={"proofs": [text]},
        )

    async def prove(
        self, caller: Caller, domain: str, method: str = "", *, origin: str = "", address: str = ""
    ) -> ProvedDomain:
        """Look for the token of a challenge, in DNS and at the well-known path, or by one method.

        Raises ``A2AError`` with the findings, ``StoreUnavailable``.
        """
        owner = owner_of(caller)
        name = checked_domain(domain)
        if method not in ("", *METHODS):
            raise InvalidParamsError(
                f"there is no method {method[:40]!r}; the methods are {' and '.join(METHODS)}"
            )
        self._rates.take(owner, "prove")
        given = await self._index.challenge(name, owner)
        if given is None:
            raise NotFoundError(f"there is no challenge for {name}: request a challenge first")
        text, expires_at = given
        await self._check_room(owner, name)
        now = self._index.now()
        if now >= expires_at:
            raise ConflictError(
                f"the challenge for {name} has expired: request a new challenge, and publish its "
                "text"
            )
        found = ""
        notes: list[str] = []
        for each in (method,) if method else METHODS:
            note = await self._look(each, name, text, origin)
            if not note:
                found = each
                break
            notes.append(note)
        if not found:
            words = "; ".join(notes)
            await self._audit.record(
                caller, "domain.proved", name, outcome="refused", address=address, reason=words
            )
            raise PermissionDeniedError(f"{name} is not proved: {words}")
        kept = f"{found} {origin}" if found == WELL_KNOWN and origin else found
        until = now + round(self.limits.claim_seconds * 1000)
        claim = DomainClaim(name, owner, kept, text, until)
        await self._audit.record(
            caller, "domain.proved", name, address=address, method=found, until=claim.expires_at
        )
        await self._put(claim)
        if self.came_back is not None:
            await self.came_back(claim)
        # Last: after a crash before this line, the same proof restores the waiting entries.
        await self._index.remove_challenge(name, owner)
        return ProvedDomain(name, found, claim.expires_at)

    async def release(self, caller: Caller, domain: str, *, address: str = "") -> None:
        """Release a claim. The entries that depend on it are no longer listed.

        Raises ``A2AError``, ``StoreUnavailable``.
        """
        owner = owner_of(caller)
        name = checked_domain(domain)
        held = await self._index.claims(owner)
        if name not in held:
            raise NotFoundError(f"{name} is not proved by this caller")
        await self._audit.record(caller, "domain.released", name, address=address)
        now = self._index.now()
        claim = DomainClaim(name, owner, RELEASED, "", now)
        # First end the claim, so that a process after a crash finds the next step.
        due_at = now + round(LEASE * 1000)
        await self._index.put_claim(name, owner, RELEASED, now, due_at=due_at)
        await self._end(claim)

    async def _end(self, claim: DomainClaim) -> None:
        if self.ended is not None:
            await self.ended(claim)
        await self._index.remove_claim(claim.domain, claim.owner)

    async def _check_room(self, owner: str, name: str) -> None:
        held = await self._index.claims(owner)
        if name not in held and len(held) >= self.limits.domains:
            raise TooManyRequestsError(
                f"a caller may have at most {self.limits.domains} domains: release a domain first"
            )

    async def domains(self, caller: Caller) -> dict[str, int]:
        """Return the proved domains of a caller, with their expiry (ms)."""
        now = self._index.now()
        held = await self._index.claims(owner_of(caller))
        return {name: until for name, until in held.items() if until > now}

    async def renew(self) -> bool:
        """Check the proofs that are due; return whether there were any."""
        due = await self._index.claim_proofs(RENEWAL_CONCURRENCY, LEASE)
        if due:
            await asyncio.gather(*(self._renew(each) for each in due))
        return bool(due)

    async def _renew(self, claim: DomainClaim) -> None:
        if claim.method == RELEASED:
            await self._end(claim)
            return
        now = self._index.now()
        note = "it has no token to check: prove the domain again"
        if claim.token:
            method, _, origin = claim.method.partition(" ")
            note = await self._look(method, claim.domain, claim.token, origin)
        caller = caller_of(claim.owner)
        if not note:
            was_over = claim.expires_at <= now
            expires_at = now + round(self.limits.claim_seconds * 1000)
            renewed = msgspec.structs.replace(claim, expires_at=expires_at)
            await self._put(renewed)
            if was_over and self.came_back is not None:
                await self._audit.record(SYSTEM, "domain.renewed", claim.domain, owner=caller.id)
                await self.came_back(renewed)
            return
        retry = now + round(self.limits.renewal_seconds * 1000 / 4)
        if claim.expires_at > now:
            await self._index.schedule_proof(
                claim.domain, claim.owner, min(retry, claim.expires_at)
            )
            return
        if now - claim.expires_at < round(self.limits.renewal_seconds * 1000):
            log.warning("the proof of %s by %.80r has expired: %s", claim.domain, caller.id, note)
            await self._audit.record(
                SYSTEM, "domain.ended", claim.domain, owner=caller.id, reason=note
            )
        if self.ended is not None:
            await self.ended(claim)
        if now - claim.expires_at > FORGOTTEN_MS:
            await self._index.remove_claim(claim.domain, claim.owner)
        else:
            await self._index.schedule_proof(claim.domain, claim.owner, retry)

    async def _put(self, claim: DomainClaim) -> None:
        due_at = self._index.now() + round(self.limits.renewal_seconds * 1000)
        await self._index.put_claim(
            claim.domain,
            claim.owner,
            claim.method,
            claim.expires_at,
            token=claim.token,
            due_at=min(due_at, claim.expires_at),
        )

    async def _look(self, method: str, domain: str, text: str, origin: str) -> str:
        """Return why a text is not found; empty if it is found."""
        if method == DNS:
            return await self._in_dns(domain, text)
        return await self._in_document(domain, text, origin)

    async def _in_dns(self, domain: str, text: str) -> str:
        name = f"{LABEL}.{domain}"
        if self._names is None:
            return "this registry does not use DNS"
        try:
            shown = await self._names.texts(name, fresh=True)
        except DnsUnavailable as error:
            return str(error)
        if any(_is_same(each, text) for each in shown):
            return ""
        if not shown:
            return f"{name} has no TXT record"
        return f"no TXT record of {name} is the text of this caller's challenge"

    async def _in_document(self, domain: str, text: str, origin: str) -> str:
        url = self._address(domain, origin)
        try:
            answer = await self._fetcher.get(url, limit=MAX_DOCUMENT)
        except PageUnavailable as error:
            return str(error)
        if urlsplit(answer.url).netloc != urlsplit(url).netloc:
            return f"{url} redirects to {host_of(answer.url)}, and another host proves nothing"
        if answer.status != 200:
            return f"{url} answered {answer.status}"
        try:
            shown = _DOCUMENT.decode(answer.body).get("proofs")
        except (msgspec.DecodeError, RecursionError):
            shown = None
        if not isinstance(shown, list):
            return f'{url} has no list "proofs"'
        if any(isinstance(each, str) and _is_same(each, text) for each in shown[:1000]):
            return ""
        return f"{url} does not have the text of this caller's challenge"

    def _address(self, domain: str, origin: str) -> str:
        """Return the address of a domain's document. Raises ``InvalidParamsError``.

        Only a domain of this machine (``*.localhost``) may use another port, and http.
        """
        if not origin:
            return f"https://{domain}{PROOF_PATH}"
        parts = urlsplit(origin)
        is_local = domain.endswith(".localhost") and is_this_machine(host_of(origin))
        if not is_local or parts.path not in ("", "/") or parts.query or parts.scheme != "http":
            raise InvalidParamsError(
                f"the document of {domain} must be at https://{domain}{PROOF_PATH}; an origin can "
                "be "
                "given only for domains of this machine, such as http://127.0.0.1:8080 for "
                "agents.localhost"
            )
        return f"http://{parts.netloc}{PROOF_PATH}"


def owner_of(caller: Caller) -> str:
    """Return the owner id of a caller. Raises ``PermissionDeniedError`` without authentication."""
    if not caller.authenticated or not caller.owner:
        raise PermissionDeniedError("publishing needs an authenticated caller: send credentials")
    return caller.owner


def checked_domain(text: str) -> str:
    """Return a domain that a caller may prove. Raises ``InvalidParamsError``."""
    try:
        name = read_domain(text)
    except InvalidUrn as error:
        raise InvalidParamsError(str(error)) from None
    if is_public_suffix(name):
        raise InvalidParamsError(f"anyone can register names below {name}: prove a name below it")
    return name


def _is_same(shown: str, text: str) -> bool:
    return compare_digest(shown.strip().encode(), text.encode())
