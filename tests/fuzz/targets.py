"""Every decoder that reads what others send, with inputs to begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from parley.wire import versions
from tests.fuzz import (
    answered,
    asked,
    catalogs,
    connected,
    crawled,
    deliveries,
    enveloped,
    searched,
    secured,
    served,
    signed,
    sockets,
    tokens,
)

REGRESSIONS = Path(__file__).parent / "regressions"


class Target(NamedTuple):
    """A function that takes any bytes, and raises when a promise is broken.

    ``form`` is that of the inputs, as ``mutation.Mutator`` has it.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    form: str = "line and json"


TARGETS: dict[str, Target] = {
    "envelope": Target(asked.envelope, asked.envelope_seeds, "json"),
    "json": Target(asked.any_json, asked.any_json_seeds),
    "limits": Target(asked.limits, asked.envelope_seeds, "json"),
    "page-tokens": Target(asked.page_tokens, asked.page_token_seeds, "text"),
    "callbacks": Target(asked.callbacks, asked.callback_seeds),
    "connections": Target(connected.connections, connected.connection_seeds, "text"),
    "server": Target(served.server, served.server_seeds),
    "responses": Target(answered.responses, answered.response_seeds, "json"),
    "refusals": Target(answered.refusals, answered.refusal_seeds),
    "statuses": Target(answered.statuses, answered.status_seeds, "line and protobuf"),
    "events": Target(answered.events, answered.event_seeds, "text"),
    "cards": Target(answered.cards, answered.card_seeds, "json"),
    "certificates": Target(secured.certificates, secured.certificate_seeds, "text"),
    "secrets": Target(secured.secrets, secured.secret_seeds, "text"),
    "tokens": Target(tokens.tokens, tokens.token_seeds, "text"),
    "claims": Target(tokens.claims, tokens.claims_seeds, "json"),
    "key-sets": Target(tokens.key_sets, tokens.key_set_seeds, "json"),
    "notifications": Target(deliveries.bodies, deliveries.body_seeds, "json"),
    "proofs": Target(deliveries.proofs, deliveries.proof_seeds, "text"),
    "signed-cards": Target(signed.signed_cards, signed.signed_card_seeds, "json"),
    "catalogs": Target(catalogs.checked, catalogs.catalog_seeds, "json"),
    "entries": Target(crawled.examined, crawled.examined_seeds, "json"),
    "robots": Target(crawled.robots, crawled.robots_seeds, "text"),
    "links": Target(crawled.links, crawled.link_seeds, "text"),
    "expressions": Target(searched.expressions, searched.expression_seeds, "text"),
    "filters": Target(searched.filters, searched.filter_seeds, "json"),
    "search-pages": Target(searched.places, searched.place_seeds, "text"),
    "marks": Target(searched.texts, searched.text_seeds, "text"),
    "entry-texts": Target(searched.described, searched.described_seeds, "json"),
    "sockets": Target(sockets.sockets, sockets.socket_seeds, "line and protobuf"),
    "envelope-messages": Target(enveloped.messages, enveloped.message_seeds, "json"),
    "envelope-cards": Target(enveloped.cards, enveloped.card_seeds, "json"),
    "headers": Target(answered.headers, answered.header_seeds, "line and text"),
}
for _version in versions.SUPPORTED_VERSIONS:
    TARGETS[f"params-{_version}"] = Target(asked.params(_version), asked.params_seeds(_version))
    TARGETS[f"http-json-{_version}"] = Target(asked.http_json, asked.http_json_seeds(_version))
    TARGETS[f"protobuf-{_version}"] = Target(
        asked.protobuf(_version), asked.protobuf_seeds(_version), "line and protobuf"
    )
for _name in answered.CODECS:
    _form = "line and protobuf" if _name.startswith("protobuf") else "line and json"
    TARGETS[f"answers-{_name.replace(' ', '-').replace('_', '-')}"] = Target(
        answered.answers(_name), answered.answer_seeds(_name), _form
    )


def regressions(name: str) -> list[Path]:
    """Return the inputs that once broke a promise of a target."""
    return sorted((REGRESSIONS / name).glob("*"))
