"""Signed cards: which agents have them, and the extended card with its signatures."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from parley.model.cards import AgentCard, AgentCardSignature
from parley.model.operations import BY_NAME
from parley.security.signing.canonical import read_object
from parley.security.signing.cards import MAX_CARD_BYTES, CardSigner, payloads_of
from parley.server.endpoint import Endpoint
from parley.wire import versions

_EXTENDED = BY_NAME["GetExtendedAgentCard"]


class ServerCardSigner(CardSigner):
    """Signs the cards of a server, in every form in which it writes them."""

    def check(self, card: AgentCard) -> None:
        """Raise ``ValueError`` for a card that has no canonical form, which cannot be signed."""
        written = versions.write_card(card, versions.LATEST)
        payloads_of(read_object(written, limit=MAX_CARD_BYTES, what="the card"))

    def extended(self, card: AgentCard) -> AgentCard:
        """Return an extended card with signatures for all versions, whose answers differ.

        Over gRPC, signatures are verified over the JSON that a message has in 1.0.
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
    """Return endpoints, and those of their tenants, whose cards are signed.

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
