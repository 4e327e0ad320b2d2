"""Version 0.3 of the protocol, and the names that older texts use for the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.model.cards import AgentCard
from parley.model.encoding import encode
from parley.model.operations import Operation
from parley.model.tasks import Event, Task
from parley.wire.dialect import Dialect, GrpcCodec, HttpJsonCodec
from parley.wire.v1_0.jsonrpc import JsonRpc as _JsonRpc


class JsonRpc(_JsonRpc):
    """Nothing yet."""

    methods: Mapping[str, Operation] = {}
    names: Mapping[str, str] = {}


class _Dialect:
    version = "0.3"
    extensions_header = "x-a2a-extensions"
    jsonrpc = JsonRpc()

    @property
    def http_json(self) -> HttpJsonCodec:
        raise NotImplementedError

    def grpc(self) -> GrpcCodec:
        raise NotImplementedError

    def write_push(self, event: Event, task: Task) -> bytes:
        return encode(task)


DIALECT: Dialect = _Dialect()


def write_card(card: AgentCard) -> bytes:
    """Return a card as JSON of this version."""
    return encode(card)


def write_merged_card(card: AgentCard) -> bytes:
    """Return a card as JSON that callers of this version and of later ones can read."""
    return encode(card)


def read_card(members: dict[str, Any]) -> AgentCard:
    """Return the card that a JSON object holds. Raises ``A2AError``."""
    from parley.wire.v1_0.cards import read_card as read

    version = str(members.get("protocolVersion") or "0.3")
    offers = [(members.get("preferredTransport") or "JSONRPC", members.get("url"))]
    for more in members.get("additionalInterfaces") or ():
        offer = (more.get("transport"), more.get("url"))
        if offer not in offers:
            offers.append(offer)
    interfaces = [
        {"protocolBinding": binding, "url": url, "protocolVersion": version}
        for binding, url in offers
    ]
    return read({**members, "supportedInterfaces": interfaces})
