"""Verification of the cards of one connection: fetches key sets, and keeps signed members."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from parley.client.bindings.http import REDIRECTS, HttpTransport, NamedTransports, redacted
from parley.client.card.resolver import ResolvedCard, read_card
from parley.client.card.trust import CardCheck, CardTrust, printable
from parley.client.errors import AddressNotAllowed, CardInvalid, CardNotTrusted, ClientError
from parley.client.origin import Origin
from parley.model.cards import AgentCard
from parley.model.operations import GetExtendedAgentCardRequest, Operation
from parley.security.egress import Egress
from parley.security.key_sets import KeySet, read_keys
from parley.security.networks import is_loopback
from parley.security.outbound import MAX_BYTES, TIMEOUT, FetchFailed, max_age
from parley.wire import versions

if TYPE_CHECKING:
    from parley.security.signing.cards import CardSignature

# -- key sets ---------------------------------------------------------------------------------

MAX_URL = 2048


class KeySetClient:
    """Fetches key sets for the cards of one agent, without credentials and redirects.

    ``http`` fetched the card, so it may call the card's ``own`` origin. Other origins are called if
    ``egress`` allows their addresses.
    """

    def __init__(self, http: HttpTransport, egress: Egress) -> None:
        self._egress = egress
        self._transports = NamedTransports(http)

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        await self._transports.aclose()

    async def fetch(self, url: str, own: Origin | None) -> tuple[KeySet, float | None]:
        """Return the key set at an address, and the seconds that it may be kept.

        Raises ``FetchFailed``.
        """
        transport, shown = self._transport_for(url, own), redacted(url)
        headers = {"Accept": "application/jwk-set+json, application/json"}
        try:
            async with transport.open("GET", url, headers, None, timeout=TIMEOUT) as answer:
                if answer.status in REDIRECTS:
                    raise FetchFailed(
                        f"its key set {shown} redirects, and redirects are not followed"
                    )
                if answer.status != 200:
                    raise FetchFailed(f"its key set {shown} answered {answer.status}")
                body = await answer.read(MAX_BYTES)
                control = answer.headers.get("cache-control", "")
        except AddressNotAllowed as error:
            said = str(error).partition(", which is not allowed")[0]
            raise FetchFailed(
                f"its key set {said}; to allow it: CardTrust(allow_private=[...])"
            ) from None
        except ClientError as error:
            raise FetchFailed(f"its key set cannot be fetched: {error}") from None
        try:
            content = msgspec.json.decode(body)
            keys = read_keys(content if isinstance(content, dict) else {})
        except (ValueError, RecursionError, FetchFailed) as error:
            said = str(error) if isinstance(error, FetchFailed) else "it is not JSON"
            raise FetchFailed(f"{shown} is no key set: {said}") from None
        return KeySet(keys), max_age(control)

    def _transport_for(self, url: str, own: Origin | None) -> HttpTransport:
        http = self._transports.over_network(url)
        if http is self._transports.own and own is not None and own.covers(Origin.of(url)):
            return http
        return self._transports.guarded(http, self._egress)


def checked_jku(url: str, own: Origin | None, trusted: tuple[Origin, ...]) -> str:
    """Return the reason why keys at an address are not trusted, empty if they are."""
    if not url:
        return "it names no key set (jku), and its key is not pinned"
    if len(url) > MAX_URL:
        return "the address of its key set is too long"
    try:
        origin, parts = Origin.of(url), urlsplit(url)
    except ValueError as error:
        return f"the address of its key set is not {error}"
    if parts.username is not None or parts.password is not None or parts.fragment:
        return f"the address of its key set has a name, a password or a fragment: {redacted(url)}"
    if origin.scheme != "https" and not is_loopback(origin.host):
        return f"its key set {redacted(url)} is not encrypted; it has an https address"
    if own is not None and own.covers(origin):
        return ""
    if any(each.covers(origin) for each in trusted):
        return ""
    whose = f"the card's is {own}" if own is not None else "the card was not fetched from any"
    return (
        f"its key set is at another origin, {origin} ({whose}); if you trust that one: "
        f"CardTrust(origins=[{str(origin)!r}])"
    )


# -- raw card ---------------------------------------------------------------------------------

_MAX_KEPT = 4


class _KeepingCodec:
    """A codec that stores the JSON of extended cards before it decodes them."""

    def __init__(self, codec: Any, kept: list[bytes]) -> None:
        self._codec = codec
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def read_result(self, operation: Operation, data: Any) -> Any:
        """Return the operation's result."""
        if operation.request is GetExtendedAgentCardRequest:
            self._kept[:] = [*self._kept[-_MAX_KEPT:], bytes(data)]
        return self._codec.read_result(operation, data)


def keep_raw_card(binding: Any, kept: list[bytes]) -> None:
    """Let a JSON binding append the extended cards that it receives to ``kept``.

    gRPC has no JSON: there a card is verified in the JSON form of its members.
    """
    codec = getattr(binding, "codec", None)
    if codec is not None:
        binding.codec = _KeepingCodec(codec, kept)


# -- verification -----------------------------------------------------------------------------

logger = logging.getLogger(__name__)

MAX_KEY_SETS = 4
"""The maximum number of key sets fetched for one card, whose author chooses the addresses."""

_EXTENDED = "extended card"
_LARGE = 128 * 1024


class CardVerifier:
    """Verifies cards by a ``CardTrust``; without one, cards are returned unchanged.

    ``http`` is the transport that fetches the cards.
    """

    def __init__(self, trust: CardTrust | None, http: HttpTransport) -> None:
        self.trust = trust
        self._http = http
        self._client: KeySetClient | None = None

    async def aclose(self) -> None:
        """Close the connections to key servers. Idempotent."""
        if self._client is not None:
            await self._client.aclose()

    async def is_trusted(self, resolved: ResolvedCard, *, kind: str) -> bool:
        """Return whether a card has a trusted signature."""
        assert self.trust is not None
        check, _ = await self._check(self.trust, resolved, kind)
        return check.is_trusted

    async def verify(self, resolved: ResolvedCard, *, kind: str = "card") -> ResolvedCard:
        """Return a card with the verdict on it.

        A trusted card keeps only its signed members: a proxy may have added others. Raises
        ``CardNotTrusted``.
        """
        trust = self.trust
        if trust is None:
            return resolved
        check, members = await self._check(trust, resolved, kind)
        if not check.is_trusted:
            self._refuse(trust, resolved, check, kind)
            return msgspec.structs.replace(resolved, check=check)
        assert members is not None
        where = redacted(resolved.url) or f"the signed {kind}"
        try:
            card = read_card(msgspec.json.encode(members), where)
        except CardInvalid as error:
            raise CardInvalid(f"the signed members are not a complete card: {error}") from None
        card = msgspec.structs.replace(card, signatures=resolved.card.signatures)
        return msgspec.structs.replace(resolved, card=card, check=check)

    async def _check(
        self, trust: CardTrust, resolved: ResolvedCard, kind: str
    ) -> tuple[CardCheck, dict[str, object] | None]:
        from parley.security.signing.cards import CardUnverifiable, signatures_of, verify

        address = f"{resolved.url} {kind}"
        try:
            signatures = signatures_of(resolved.raw, trust.algorithms)
            own = resolved.given_origin if resolved.url else None
            asked: dict[str, bool] = {}
            keys = {each.number: await self._keys(trust, each, own, asked) for each in signatures}
            work = partial(
                verify, resolved.raw, lambda signature: keys[signature.number], trust.algorithms
            )
            large = len(resolved.raw) > _LARGE
            verdict = await asyncio.to_thread(work) if large else work()
        except CardUnverifiable as error:
            return CardCheck("not trusted", str(error)), None
        if verdict.is_trusted:
            trust.remember(address, verdict.verified[0].kid)
            return CardCheck("trusted", verdict=verdict), verdict.members
        if verdict.signatures:
            reason = "no signature of the card is by a trusted key"
            return CardCheck("not trusted", reason, verdict), None
        before = trust.signed_before(address)
        reason = "the card has no signature"
        if before is not None:
            reason += (
                f"; it was signed before, by the key {before}: its signature may have been removed"
            )
        return CardCheck("not signed", reason, verdict), None

    async def _keys(
        self, trust: CardTrust, signature: CardSignature, own: Origin | None, asked: dict[str, bool]
    ) -> KeySet | str:
        """Return the trusted keys for a signature, or the reason why there are none.

        ``asked`` are the addresses of the key sets fetched for this card so far, and whether the
        fetch succeeded.
        """
        if signature.problem:
            return signature.problem
        try:
            pinned = trust.pinned
        except ValueError as error:
            return str(error)
        if pinned is not None:
            return pinned
        if self._http.is_unverified and not trust.is_pinned:
            return "servers are not verified (insecure), so published keys prove nothing: pin keys"
        if wrong := checked_jku(signature.jku, own, trust.origins):
            return wrong
        jku = signature.jku
        if jku not in asked and len(asked) == MAX_KEY_SETS:
            return f"the card names more than {MAX_KEY_SETS} key sets, and no more are fetched"
        looks_again = not asked.setdefault(jku, False)
        if self._client is None:
            self._client = KeySetClient(self._http, trust.egress)
        client = self._client

        async def fetch() -> tuple[KeySet, float | None]:
            asked[jku] = True
            return await client.fetch(jku, own)

        try:
            found = await trust.key_sets.find(jku, signature.kid, fetch, looks_again=looks_again)
        except FetchFailed as error:
            return str(error)
        accepted = [key for key in found.keys if trust.accepts(key)]
        if found.has(signature.kid) and not any(key.kid == signature.kid for key in accepted):
            return f"the key {signature.kid[:80]} has another thumbprint than the pinned ones"
        return KeySet(accepted)

    def _refuse(
        self, trust: CardTrust, resolved: ResolvedCard, check: CardCheck, kind: str
    ) -> None:
        """Raise ``CardNotTrusted`` if a trusted signature is required; else log the verdict."""
        where = f" at {redacted(resolved.url)}" if resolved.url else ""
        name = f"the {kind} of {resolved.card.name[:100]!r}{where}"
        if trust.required:
            raise CardNotTrusted(f"{name} is not trusted: {_why(check)}", verdict=check.verdict)
        was_signed = check.state == "not trusted" or "signed before" in check.reason
        level = logging.WARNING if was_signed else logging.INFO
        logger.log(level, "%s is not trusted: %s", name, _why(check))


class ConnectionCards:
    """The cards of one connection: its first card, and extended cards.

    ``received`` is the JSON of extended cards as received, if signatures are verified.
    """

    def __init__(self, resolved: ResolvedCard, verifier: CardVerifier) -> None:
        self._resolved = resolved
        self._verifier = verifier
        self.received: list[bytes] = []

    def keep_received(self, binding: object) -> None:
        """Let a binding append the JSON of extended cards to ``received``, if it is needed."""
        if self._verifier.trust is not None:
            keep_raw_card(binding, self.received)

    async def aclose(self) -> None:
        """Close the connections to key servers. Idempotent."""
        await self._verifier.aclose()

    async def verify_extended(
        self, card: AgentCard, raw: bytes, version: str
    ) -> tuple[AgentCard, CardCheck]:
        """Return an extended card, whose JSON of version 1.0 is ``raw``, and the verdict on it.

        Raises ``CardNotTrusted``.
        """
        if self._verifier.trust is None:
            return card, self._resolved.check
        # gRPC has no JSON that could be signed: try the JSON forms of the protocol versions.
        first, *others = self.received[-1:] or [raw, versions.write_card(card, version)]
        found = msgspec.structs.replace(self._resolved, card=card, raw=first)
        for other in others:
            if await self._verifier.is_trusted(found, kind=_EXTENDED):
                break
            found = msgspec.structs.replace(found, raw=other)
        verified = await self._verifier.verify(found, kind=_EXTENDED)
        return verified.card, verified.check


def _why(check: CardCheck) -> str:
    """Return the reason why a card is not trusted, with each signature. Cards choose some text."""
    signatures = check.verdict.signatures if check.verdict is not None else ()
    return printable("; ".join((check.reason, *map(str, signatures))))
