"""Verifies the cards of one connection: looks the keys up, and keeps what is signed."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from parley.client.bindings.http import HttpTransport, redacted
from parley.client.card.key_sets import KeySetClient, checked_jku
from parley.client.card.resolver import ResolvedCard, read_card
from parley.client.card.trust import CardCheck, CardTrust, printable
from parley.client.errors import CardInvalid, CardNotTrusted
from parley.client.origin import Origin
from parley.model.cards import AgentCard
from parley.model.operations import GetExtendedAgentCardRequest, Operation
from parley.security.key_sets import KeySet
from parley.security.outbound import FetchFailed
from parley.wire import versions

if TYPE_CHECKING:
    from parley.security.signing.card_verification import CardSignature

# -- raw card ---------------------------------------------------------------------------------
#
# Keeps extended cards as they were received: signatures are of the JSON, not of its meaning.


_MAX_KEPT = 4


class _KeepingCodec:
    """A codec that notes the JSON of extended cards before it reads them."""

    def __init__(self, codec: Any, kept: list[bytes]) -> None:
        self._codec = codec
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def read_result(self, operation: Operation, data: Any) -> Any:
        """Return what the operation answers."""
        if operation.request is GetExtendedAgentCardRequest:
            self._kept[:] = [*self._kept[-_MAX_KEPT:], bytes(data)]
        return self._codec.read_result(operation, data)


def keep_raw_card(binding: Any, kept: list[bytes]) -> None:
    """Have a binding of JSON add the extended cards that it receives to ``kept``.

    gRPC has no JSON: there a card is verified in the form that its members have.
    """
    codec = getattr(binding, "codec", None)
    if codec is not None:
        binding.codec = _KeepingCodec(codec, kept)


# -- verification -----------------------------------------------------------------------------


logger = logging.getLogger(__name__)

MAX_KEY_SETS = 4
"""How many key sets are asked for one card, each once: others choose their addresses."""

_EXTENDED = "extended card"
_LARGE = 128 * 1024


class CardVerifier:
    """Verifies cards as a ``CardTrust`` says; without one it leaves them as they are.

    ``http`` is what fetches the cards.
    """

    def __init__(self, trust: CardTrust | None, http: HttpTransport) -> None:
        self.trust = trust
        self._http = http
        self._client: KeySetClient | None = None

    async def aclose(self) -> None:
        """Close the connections to servers of keys. Idempotent."""
        if self._client is not None:
            await self._client.aclose()

    async def is_trusted(self, resolved: ResolvedCard, *, kind: str) -> bool:
        """Return whether a card has a trusted signature."""
        assert self.trust is not None
        check, _ = await self._check(self.trust, resolved, kind)
        return check.is_trusted

    async def verify(self, resolved: ResolvedCard, *, kind: str = "card") -> ResolvedCard:
        """Return a card with what is found out about it.

        Of a card that is trusted, only the signed members are kept: a proxy may have added others.
        Raises ``CardNotTrusted``.
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
            raise CardInvalid(f"what is signed of it is not enough: {error}") from None
        card = msgspec.structs.replace(card, signatures=resolved.card.signatures)
        return msgspec.structs.replace(resolved, card=card, check=check)

    async def _check(
        self, trust: CardTrust, resolved: ResolvedCard, kind: str
    ) -> tuple[CardCheck, dict[str, object] | None]:
        from parley.security.signing.card_verification import (
            CardUnverifiable,
            signatures_of,
            verify,
        )

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
            reason += f"; it was signed before, by the key {before}: somebody may have removed it"
        return CardCheck("not signed", reason, verdict), None

    async def _keys(
        self, trust: CardTrust, signature: CardSignature, own: Origin | None, asked: dict[str, bool]
    ) -> KeySet | str:
        """Return the trusted keys for a signature, or why there are none.

        ``asked`` are the addresses of the key sets that the card led to so far, and whether they
        were fetched for it.
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
            return f"the card names more than {MAX_KEY_SETS} key sets, and no more are asked for"
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
            return f"the key {signature.kid[:80]} has another thumbprint than those that are pinned"
        return KeySet(accepted)

    def _refuse(
        self, trust: CardTrust, resolved: ResolvedCard, check: CardCheck, kind: str
    ) -> None:
        """Raise ``CardNotTrusted`` if a trusted signature is required; else log what is found."""
        where = f" at {redacted(resolved.url)}" if resolved.url else ""
        name = f"the {kind} of {resolved.card.name[:100]!r}{where}"
        if trust.required:
            raise CardNotTrusted(f"{name} is not trusted: {_why(check)}", verdict=check.verdict)
        was_signed = check.state == "not trusted" or "signed before" in check.reason
        level = logging.WARNING if was_signed else logging.INFO
        logger.log(level, "%s is not trusted: %s", name, _why(check))


class ConnectionCards:
    """The cards of one connection: the one that it was opened with, and extended ones.

    ``received`` is the JSON of extended cards as it came, if signatures are verified.
    """

    def __init__(self, resolved: ResolvedCard, verifier: CardVerifier) -> None:
        self._resolved = resolved
        self._verifier = verifier
        self.received: list[bytes] = []

    def keep_received(self, binding: object) -> None:
        """Have a binding add the JSON of extended cards to ``received``, if it is needed."""
        if self._verifier.trust is not None:
            keep_raw_card(binding, self.received)

    async def aclose(self) -> None:
        """Close the connections to servers of keys. Idempotent."""
        await self._verifier.aclose()

    async def verify_extended(
        self, card: AgentCard, raw: bytes, version: str
    ) -> tuple[AgentCard, CardCheck]:
        """Return an extended card, of which ``raw`` is the JSON of 1.0, and what is found out.

        Raises ``CardNotTrusted``.
        """
        if self._verifier.trust is None:
            return card, self._resolved.check
        # gRPC has no JSON that could be signed: there it is what one of the versions writes.
        first, *others = self.received[-1:] or [raw, versions.write_card(card, version)]
        found = msgspec.structs.replace(self._resolved, card=card, raw=first)
        for other in others:
            if await self._verifier.is_trusted(found, kind=_EXTENDED):
                break
            found = msgspec.structs.replace(found, raw=other)
        verified = await self._verifier.verify(found, kind=_EXTENDED)
        return verified.card, verified.check


def _why(check: CardCheck) -> str:
    """Return why a card is not trusted, with each signature. Cards choose some of the words."""
    signatures = check.verdict.signatures if check.verdict is not None else ()
    return printable("; ".join((check.reason, *map(str, signatures))))
