"""Where cards say that gRPC is."""

from __future__ import annotations

import pytest

from parley.model.operations import GetExtendedAgentCardRequest
from parley.server.app import Endpoint, Settings, create_app
from parley.server.run import serving
from parley.server.settings import GrpcOptions, grpc_options
from tests.kit.grpc import rpc_to
from tests.kit.http import ask
from tests.kit.scripted import Scripted, app_of, card_of

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"


async def grpc_interfaces(url, path="", **headers):
    """Address, version and tenant of every gRPC interface on a card."""
    response = await ask(url, "GET", path + CARD, headers={"A2A-Version": "1.0", **headers})
    return [
        (each["url"], each["protocolVersion"], each.get("tenant", ""))
        for each in response.json["supportedInterfaces"]
        if each["protocolBinding"] == "GRPC"
    ]


async def test_a_card_names_grpc_only_where_it_is_served():
    async with serving(app_of()) as url:
        assert await grpc_interfaces(url) == []
    app = app_of()
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        port = app.grpc.port
        assert await grpc_interfaces(url, Host="localhost:9999") == [
            (f"localhost:{port}", "1.0", ""),
            (f"localhost:{port}", "0.3", ""),
        ]
        assert (await grpc_interfaces(url, Host="[::1]:9999"))[0][0] == f"[::1]:{port}"
    assert app.grpc.port is None


async def test_a_public_address_is_named_where_there_is_one():
    app = app_of(url="https://agents.example/all")
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        assert (await grpc_interfaces(url))[0][0] == f"agents.example:{app.grpc.port}"
    settings = Settings(grpc_address="grpc.example:443")
    async with serving(app_of(settings=settings), grpc=GrpcOptions(port=0)) as url:
        assert (await grpc_interfaces(url))[0][0] == "grpc.example:443"


@pytest.mark.parametrize("form", ["merged", "1.0"])
@pytest.mark.parametrize("named", [{}, {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}])
async def test_grpc_is_served_and_on_no_card_where_it_is_left_off(form, named):
    app = app_of(settings=Settings(grpc_on_card=False, card=form))
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        card = str((await ask(url, "GET", CARD, headers=named)).json)
        assert url in card
        assert f":{app.grpc.port}" not in card


@pytest.mark.parametrize("address", ["grpc.example", "grpc.example:", "a b:1", 1])
def test_an_address_without_a_port_is_none(address):
    with pytest.raises(ValueError, match="grpc_address takes host:port"):
        Settings(grpc_address=address)


async def test_one_of_several_agents_is_advertised_as_the_tenant_of_its_path():
    tenants = {"acme": Endpoint(Scripted(), card_of())}
    endpoints = {
        "/": Endpoint(Scripted(), card_of()),
        "/time": Endpoint(Scripted(), card_of(), tenants=tenants),
    }
    app = create_app(endpoints)
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        here = f"127.0.0.1:{app.grpc.port}"
        # Version 0.3 has no tenants, so it reaches the agent at the root alone.
        assert await grpc_interfaces(url) == [(here, "1.0", ""), (here, "0.3", "")]
        assert await grpc_interfaces(url, "/time") == [(here, "1.0", "time")]
        assert await grpc_interfaces(url, "/time/acme") == [(here, "1.0", "time/acme")]


async def test_an_agent_alone_is_advertised_without_a_tenant_and_its_tenants_by_their_names():
    tenants = {"acme": Endpoint(Scripted(), card_of())}
    app = create_app({"/time": Endpoint(Scripted(), card_of(), tenants=tenants)})
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        here = f"127.0.0.1:{app.grpc.port}"
        assert await grpc_interfaces(url, "/time") == [(here, "1.0", ""), (here, "0.3", "")]
        assert await grpc_interfaces(url, "/time/acme") == [(here, "1.0", "acme")]
        assert await grpc_interfaces(url, "/a2a/acme") == [(here, "1.0", "acme")]


async def test_the_extended_card_says_over_grpc_where_the_agent_is():
    async def extended(request, context):
        return card_of("Extended")(())

    service = Scripted(get_extended_agent_card=extended)
    app = app_of(service, card=card_of(extended_agent_card=True))
    async with rpc_to(app) as rpc:
        card = await rpc.ask("GetExtendedAgentCard", GetExtendedAgentCardRequest())
    found = {each.protocol_binding: each.url for each in card.supported_interfaces}
    assert card.name == "Extended"
    assert found["JSONRPC"].startswith("http://127.0.0.1:")
    assert found["GRPC"].startswith("127.0.0.1:")


def test_options_are_none_without_a_port():
    assert grpc_options(None, cert=None) is None
    assert grpc_options(0, host="::1") == GrpcOptions(port=0, host="::1")
    with pytest.raises(ValueError, match="cert, key alone do nothing"):
        grpc_options(None, cert="a", key="b", host=None)
