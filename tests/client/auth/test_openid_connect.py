"""The two lines of the server and a login of the client: OpenID Connect from end to end."""

from __future__ import annotations

import pytest

import parley
from parley import Agent, Turn
from parley.client import auth
from parley.client.auth.logins import Logins, SignIn, pick_scheme, sign_in
from parley.client.bindings.binding import is_supported
from parley.client.bindings.http import HttpTransport
from parley.client.origin import Origin
from parley.security import OpenIdConnect
from parley.testing import Issuer
from tests.client.auth.declared import served
from tests.kit.servers import grpc_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_protected_agent_is_called_after_one_login(binding: str, version: str) -> None:
    if not is_supported(binding):
        pytest.skip(f"{binding} is not installed")
    async with Issuer(audience="bank", device_interval=0) as issuer:
        agent = Agent("Bank", security=OpenIdConnect(issuer.url, audience="bank"))

        @agent.skill
        async def balance(turn: Turn) -> str:
            return f"{turn.caller.id}: 42"

        async with served(agent) as url:
            trusted = await grpc_of(url)
            async with parley.connect(url) as remote:
                flow, scheme, scopes = pick_scheme(remote.card, "device-code")
            async with HttpTransport() as http:
                kept = await sign_in(
                    SignIn(flow=flow, scheme=scheme, scopes=scopes),
                    Origin.of(url),
                    address=url,
                    http=http,
                    prompt=lambda prompt: issuer.approve(prompt.code, user="grace"),
                )
            Logins().put(kept)
            ways = {"binding": binding, "version": version, "trust_origins": trusted}
            async with parley.connect(url, **ways) as remote:
                assert (await remote.send("how much")).text == "grace: 42"
                assert [event async for event in remote.stream("how much")]
            given = auth.ClientCredentials("service", "secret")
            async with parley.connect(url, auth=given, **ways) as remote:
                assert (await remote.send("how much")).text == "service: 42"
