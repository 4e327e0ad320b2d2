"""The agent card: where it is, what it says, and in which form."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import parley
from parley import Settings
from parley.client.card.interface import choose
from parley.client.card.resolver import read_card
from parley.model.cards import (
    AgentCard,
    AgentCardSignature,
    AgentInterface,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from parley.security.key_sets import KeySet, read_keys
from parley.security.signing.cards import verify
from parley.security.signing.keys import SigningKeys, new_key_set, write_key_set
from parley.server.app import create_app
from parley.server.endpoint import Endpoint
from parley.server.run import serving
from tests.contract.agents import contract, plain
from tests.kit.http import ask
from tests.kit.scripted import Scripted as Service
from tests.kit.scripted import card_of
from tests.kit.scripted_server import card
from tests.kit.servers import WAYS
from tests.rules.conftest import placed
from tests.rules.wire import Wire

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"
OLD_MEMBERS = {"url", "preferredTransport", "protocolVersion", "additionalInterfaces"}


async def card_at(url: str, path: str = CARD, **headers: str) -> dict[str, Any]:
    response = await ask(url, "GET", path, b"", headers)
    assert response.status == 200
    made: dict[str, Any] = response.json
    return made


# -- rule 5 -----------------------------------------------------------------------------------


async def test_rule_5_a_card_is_signed_in_each_form_that_verifiers_read():
    keys = SigningKeys.parse(write_key_set(new_key_set(["ES256"], now=0)))
    settings = Settings(allowed_hosts=("*",))
    app = parley.asgi(plain, settings=settings, url="https://agents.example", signing_keys=keys)
    async with serving(app) as url:
        merged = (await ask(url, "GET", CARD)).body
    verdict = verify(merged, KeySet(read_keys(keys.published)))
    assert [each.form for each in verdict.signatures] == ["exact", "received"]  # stripped is exact


async def test_rule_5_a_card_with_signatures_of_its_own_is_served_as_the_card_of_1_0_alone():
    signature = AgentCardSignature(protected="e30", signature="c2ln")

    def signed(interfaces: tuple[AgentInterface, ...]) -> AgentCard:
        return msgspec.structs.replace(card_of()(interfaces), signatures=(signature,))

    async with serving(create_app({"": Endpoint(Service(), signed)})) as url:
        assert is_exact(await card_at(url))
        assert "signatures" in await card_at(url)
        assert "signatures" not in await card_at(url, **{"A2A-Version": "0.3"})


# -- rule 17 ----------------------------------------------------------------------------------


def guarded(interfaces: tuple[AgentInterface, ...]) -> AgentCard:
    """A card that asks for a bearer token with scopes."""
    bearer = HTTPAuthSecurityScheme(scheme="Bearer")
    return msgspec.structs.replace(
        card_of()(interfaces),
        security_schemes={"b": SecurityScheme(http_auth_security_scheme=bearer)},
        security_requirements=(SecurityRequirement(schemes={"b": StringList(list=("read",))}),),
    )


async def test_rule_17_security_is_said_as_each_version_says_it():
    new, old = [{"schemes": {"b": {"list": ["read"]}}}], [{"b": ["read"]}]
    async with serving(create_app({"": Endpoint(Service(), guarded)})) as url:
        exact = await card_at(url, **{"A2A-Version": "1.0"})
        assert exact["securityRequirements"] == new
        assert "security" not in exact
        older = await card_at(url, **{"A2A-Version": "0.3"})
        assert older["security"] == old
        assert "securityRequirements" not in older
        assert older["securitySchemes"] == {"b": {"type": "http", "scheme": "Bearer"}}
        merged = await card_at(url)
        assert (merged["securityRequirements"], merged["security"]) == (new, old)


@pytest.mark.parametrize("security", [[{"b": ["read"]}], [{"schemes": {"b": {"list": ["read"]}}}]])
def test_rule_17_the_client_reads_both_shapes_on_a_card_of_0_3(security):
    members = {"name": "A", "description": "A", "version": "1", "url": "http://a.example"}
    schemes = {"b": {"type": "http", "scheme": "Bearer"}}
    modes = {"defaultInputModes": [], "defaultOutputModes": []}
    given = {**members, **modes, "capabilities": {}, "skills": [], "securitySchemes": schemes}
    read = read_card(json.dumps({**given, "security": security}).encode(), "the card")
    (need,) = read.security_requirements
    assert need.schemes == {"b": StringList(list=("read",))}


# -- rule 18 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["", "1.0", "0.3"])
async def test_rule_18_grpc_is_on_no_card_where_it_is_left_off(version):
    settings = Settings(grpc_on_card=False)
    async with placed(parley.asgi(plain, drain=0.0, settings=settings)) as place:
        made = await card_at(place.url, **({"A2A-Version": version} if version else {}))
        assert made["name"]
        assert "GRPC" not in json.dumps(made)
        known = {**GRPC, "url": place.grpc}
        reference = card("", supportedInterfaces=[known])
        async with parley.connect(reference, retries=0) as remote:
            assert (await remote.send("hello")).text == "mhm"


GRPC = {"protocolBinding": "GRPC", "protocolVersion": "1.0"}


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/"])
async def test_rule_18_the_client_takes_an_address_with_and_without_a_scheme(place, form):
    interface = {**GRPC, "url": form.format(place.grpc)}
    reference = card("", supportedInterfaces=[interface])
    async with parley.connect(reference, retries=0) as remote:
        assert (await remote.send("say hello")).text == "hello"


# -- rule 25 ----------------------------------------------------------------------------------


async def test_rule_25_without_the_capability_an_extended_card_is_an_unsupported_operation(way):
    async with placed(parley.asgi(plain, drain=0.0)) as place:
        refused = await Wire(place, *way).ask("GetExtendedAgentCard")
    assert refused.reason == "UNSUPPORTED_OPERATION"


async def test_rule_25_with_the_capability_and_no_card_it_is_not_configured(wire):
    assert (await card_at(wire.place.url))["capabilities"]["extendedAgentCard"] is True
    refused = await wire.of("eve").ask("GetExtendedAgentCard")
    assert refused.reason == "EXTENDED_AGENT_CARD_NOT_CONFIGURED"
    shown = await wire.ask("GetExtendedAgentCard")
    assert "secret" in {skill["id"] for skill in shown.result["skills"]}


# -- rule 26 ----------------------------------------------------------------------------------


async def test_rule_26_the_card_is_at_both_well_known_paths(place):
    cards = [await card_at(place.url, path) for path in (CARD, "/.well-known/agent.json")]
    assert cards[0] == cards[1]
    offered = [
        (i["protocolBinding"], i["protocolVersion"]) for i in cards[0]["supportedInterfaces"]
    ]
    assert offered == [*WAYS, ("urn:parley:envelope:v1", "1.0")]


async def test_rule_26_a_domain_with_several_agents_has_the_card_of_each_below_its_path():
    async with serving(parley.asgi({"/a": contract, "/b": plain}, drain=0.0)) as url:
        names = [(await card_at(url, f"{path}{CARD}"))["name"] for path in ("/a", "/b")]
    assert names == ["Contract agent", "Plain agent"]


# -- rule 41 ----------------------------------------------------------------------------------


def is_exact(made: dict[str, Any]) -> bool:
    return "supportedInterfaces" in made and not OLD_MEMBERS & made.keys()


async def test_rule_41_a_card_is_merged_and_exact_for_who_names_1_0(place):
    merged = await card_at(place.url)
    assert OLD_MEMBERS | {"supportedInterfaces"} <= merged.keys()
    assert merged["preferredTransport"] == "JSONRPC"
    assert merged["protocolVersion"].startswith("0.3")
    assert merged["supportsAuthenticatedExtendedCard"] is True
    exact = await card_at(place.url, **{"A2A-Version": "1.0"})
    assert is_exact(exact)
    assert {**merged, **exact} == merged
    older = await card_at(place.url, **{"A2A-Version": "0.3"})
    assert "supportedInterfaces" not in older
    assert older.keys() >= OLD_MEMBERS


async def test_rule_41_a_server_can_be_told_to_have_exact_cards_alone():
    async with serving(parley.asgi(contract, settings=Settings(card="1.0"), drain=0.0)) as url:
        assert is_exact(await card_at(url))
        assert (await card_at(url, **{"A2A-Version": "0.3"})).keys() >= OLD_MEMBERS


async def test_rule_41_the_client_takes_a_merged_card_for_one_of_1_0(place):
    merged = (await ask(place.url, "GET", CARD)).body
    offered = choose(read_card(merged, "the card")).candidates
    assert [(each.binding, each.version) for each in offered] == WAYS
