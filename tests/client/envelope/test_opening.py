"""From addresses and cards to connections, with a real server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

import parley
from parley import Agent, Caller, Turn
from parley.client import Tls
from parley.client.auth import Bearer
from parley.client.errors import AddressNotAllowed, NotEncrypted, Unreachable, Untrusted
from parley.envelope import EnvelopeFailed
from parley.model.errors import UnauthenticatedError
from parley.security import Bearer as BearerScheme
from parley.security.egress import Egress, turn_egress
from parley.server.run import serving
from tests.client.envelope.scripted import echo, scripted_agent

pytestmark = pytest.mark.anyio

agent = Agent("Clock", description="Tells the time")


@agent.skill
async def say(turn: Turn) -> str:
    """Says it again."""
    return turn.text


@agent.skill(replies="task")
async def guess(turn: Turn) -> str:
    """Asks once."""
    return f"{turn.text} {(await turn.ask('And?')).text}"


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with serving(parley.asgi(agent, drain=0.0)) as address:
        yield address


async def test_the_backup_is_used_while_the_primary_cannot_be_had() -> None:
    async with scripted_agent(echo) as backup:
        card = {
            "agentInfo": {"id": "a"},
            "endpoints": {"primary": "ws://127.0.0.1:9/envelope", "backup": backup.url},
        }
        async with parley.envelope.connect(card) as client:
            assert (await client.request("echo", 1)).result == 1
            assert (await client.request("echo", 2)).result == 2
        card["endpoints"]["backup"] = "http://127.0.0.1:9/envelope"  # type: ignore[index]
        with pytest.raises(Unreachable):
            await parley.envelope.connect(card)


async def test_credentials_go_to_their_origin_alone() -> None:
    async with scripted_agent(echo) as thief, scripted_agent(echo) as home:
        url = home.url
        found = {"agentInfo": {"id": "a"}, "endpoints": {"primary": url, "backup": thief.url}}
        async with _serving_card(found) as card_url:
            with pytest.raises(parley.ClientError, match="nothing was sent there"):
                await parley.envelope.connect(card_url, bearer="secret")
            async with parley.envelope.connect(
                card_url, bearer="secret", trust_origins=[url.removesuffix("/envelope")]
            ) as client:
                await client.request("echo")
    assert thief.upgrades == []
    assert home.upgrades[0]["Authorization"] == "Bearer secret"


def _serving_card(card: Any) -> Any:
    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        app = web.Application()

        async def get(_: web.Request) -> web.Response:
            return web.json_response(card)

        app.router.add_get("/envelope/card", get)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/envelope/card"
        await runner.cleanup()

    return serve()


async def test_the_source_is_what_the_credentials_are_for() -> None:
    def judge(token: str) -> Caller | None:
        return Caller(id=token) if token in ("ada", "eve") else None

    guarded = Agent("Guarded", security=BearerScheme(judge))

    @guarded.skill
    async def who(turn: Turn) -> str:
        """Says who asks."""
        return turn.caller.id

    async with serving(parley.asgi(guarded, drain=0.0)) as url:
        for options in (
            {"bearer": "ada"},
            {"auth": Bearer("ada")},
            {"headers": {"Authorization": "Bearer ada"}},
        ):
            for address in (url, f"{url}/envelope"):
                async with parley.envelope.connect(address, **options) as client:  # type: ignore[arg-type]
                    asked = [client.request("who", "?") for _ in range(5)]
                    answers = await asyncio.gather(*asked)
                    assert {answer.result["text"] for answer in answers} == {"ada"}
                    assert client.source.agent_id == "ada"
        async with parley.envelope.connect(url, bearer="ada", agent_id="eve") as client:
            with pytest.raises(EnvelopeFailed, match="SOURCE_MISMATCH"):
                await client.request("who", "?")
        for wrong in ({}, {"bearer": "mallory"}):
            with pytest.raises(UnauthenticatedError, match=r"are required|not accepted here"):
                await parley.envelope.connect(f"{url}/envelope", **wrong)  # type: ignore[arg-type]


async def test_the_binding_is_not_used_unless_it_is_asked_for_or_alone(url: str) -> None:
    async with parley.connect(url) as remote:
        assert remote.interface.protocol_binding == "JSONRPC"
        interfaces = [
            each for each in remote.card.supported_interfaces if "urn:" in each.protocol_binding
        ]
    async with parley.connect(url, binding="envelope") as remote:
        assert remote.interface.protocol_binding == "urn:parley:envelope:v1"
        assert str(await remote.send("hi")) == "hi"
    alone = msgspec.structs.replace(remote.card, supported_interfaces=tuple(interfaces))
    async with parley.connect(alone) as remote:
        assert remote.interface.protocol_binding == "urn:parley:envelope:v1"


async def test_an_egress_policy_holds_for_sockets_also_for_one_that_is_open(url: str) -> None:
    with pytest.raises(AddressNotAllowed, match="egress=Egress"):
        await parley.envelope.connect(f"{url}/envelope", egress=Egress())
    async with parley.envelope.connect(f"{url}/envelope") as client:
        assert (await client.request("say", "hello")).result == {"text": "hello"}
        before = turn_egress.set(Egress())  # as within a turn of a server with an egress policy
        try:
            with pytest.raises(AddressNotAllowed):
                await client.request("say", "hello")
        finally:
            turn_egress.reset(before)
        assert (await client.request("say", "hello")).result == {"text": "hello"}


async def test_over_tls_the_certificate_is_checked_and_without_it_nothing_secret_is_sent() -> None:
    certificate = Path(__file__).parents[1] / "localhost.pem"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with scripted_agent(echo, tls=context) as agent:
        url = agent.url.replace("https", "wss")
        async with parley.envelope.connect(url, tls=Tls(ca=certificate), bearer="x") as client:
            assert (await client.request("echo", 1)).result == 1
            assert client.uses_socket
        with pytest.raises(Untrusted):  # and the client does not fall back to HTTP
            await parley.envelope.connect(url, bearer="x")
        assert len(agent.upgrades) == 1
    with pytest.raises(NotEncrypted):
        await parley.envelope.connect("ws://agents.example.com/envelope", bearer="x")
