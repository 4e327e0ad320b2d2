"""From a card to a token: sent over every binding, cached, renewed, never requested in a loop."""

from __future__ import annotations

import asyncio
import logging
import shlex
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

import parley
from parley import Agent
from parley.client import auth
from parley.client.auth.credentials import MAX_ALTERNATIVES, alternatives
from parley.client.auth.logins import KeptLogin, Logins
from parley.client.bindings.binding import is_supported
from parley.client.errors import AuthenticationRequired
from parley.model.cards import (
    AgentCapabilities,
    AgentCard,
    AgentSkill,
    SecurityRequirement,
    StringList,
)
from parley.model.errors import PermissionDeniedError, UnauthenticatedError
from parley.testing import Issuer
from tests.client.auth.declared import Tokens, bank, oauth, openid, served
from tests.kit.scripted_server import Exchange, card, scripted, task
from tests.kit.servers import WAYS, grpc_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer(audience="bank") as issuer:
        yield issuer


def service(**options: Any) -> auth.ClientCredentials:
    return auth.ClientCredentials("service", "secret", **options)


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_a_token_is_got_once_and_renewed_after_a_refusal(
    issuer: Issuer, binding: str, version: str
) -> None:
    if not is_supported(binding):
        pytest.skip(f"{binding} is not installed")
    tokens = Tokens(issuer, openid(issuer))
    async with served(bank(tokens)) as url:
        trusted = await grpc_of(url)
        options: dict[str, Any] = {"binding": binding, "version": version, "trust_origins": trusted}
        async with parley.connect(url, auth=service(), **options) as agent:
            assert (await agent.send("how much")).text == "service: 42"
            assert [event async for event in agent.stream("how much")]
            assert issuer.requests["token"] == 1
            # The agent rejects the token, although the token has not expired.
            tokens.refused = set(tokens.seen)
            assert (await agent.send("how much")).text == "service: 42"
            assert issuer.requests["token"] == 2
            tokens.refused = set(tokens.seen)
            assert [event async for event in agent.stream("how much")]
            assert issuer.requests["token"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_what_does_not_help_is_tried_once(issuer: Issuer, binding: str, version: str) -> None:
    if not is_supported(binding):
        pytest.skip(f"{binding} is not installed")
    tokens = Tokens(issuer, openid(issuer))
    async with served(bank(tokens)) as url:
        trusted = await grpc_of(url)
        given = service(audience="another agent")
        options: dict[str, Any] = {"binding": binding, "version": version, "trust_origins": trusted}
        async with parley.connect(url, auth=given, **options) as agent:
            for _ in range(2):
                before = issuer.requests["token"]
                with pytest.raises(UnauthenticatedError):
                    await agent.send("how much")
                assert issuer.requests["token"] - before <= 2
            with pytest.raises(UnauthenticatedError):
                [event async for event in agent.stream("how much")]
    assert len(tokens.seen) == 6


async def test_a_skill_gets_its_scopes_before_it_is_called(issuer: Issuer) -> None:
    tokens = Tokens(issuer, oauth(issuer, "client_credentials"))
    async with (
        served(bank(tokens, needs=["read"])) as url,
        parley.connect(url, auth=service()) as agent,
    ):
        assert (await agent.send("how much")).text == "service: 42"
        paying = await agent.send("now", metadata={"skill": "pay"})
        assert paying.state.name == "INPUT_REQUIRED"
    assert len(tokens.seen) == 2
    assert issuer.requests["token"] == 2


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_a_step_up_challenge_is_answered_once(
    issuer: Issuer, binding: str, version: str
) -> None:
    """A card does not list the scopes of an operation: only the rejection names them."""
    if not is_supported(binding):
        pytest.skip(f"{binding} is not installed")
    tokens = Tokens(issuer, openid(issuer))
    async with served(bank(tokens)) as url:
        trusted = await grpc_of(url)
        options: dict[str, Any] = {"binding": binding, "version": version, "trust_origins": trusted}
        async with parley.connect(url, auth=service(), **options) as agent:
            asked = await agent.send("now", metadata={"skill": "pay"})
            canceled = await agent.cancel(asked.id)
            assert canceled.state.name == "CANCELED"
            seen, asked_for = len(tokens.seen), issuer.requests["token"]
            # Later calls send the wider token at once.
            again = await agent.send("now", metadata={"skill": "pay"})
            await agent.cancel(again.id)
            assert len(tokens.seen) == seen + 2
            assert issuer.requests["token"] <= asked_for + 1


@pytest.mark.slow
async def test_scopes_that_no_token_gets_are_asked_for_once_a_call(issuer: Issuer) -> None:
    tokens = Tokens(issuer, openid(issuer))
    async with (
        served(bank(tokens)) as url,
        parley.connect(url, auth=auth.Bearer(issuer.token(scope=""))) as agent,
    ):
        with pytest.raises(PermissionDeniedError):
            await agent.send("now", metadata={"skill": "pay"})
    assert len(tokens.seen) == 1


async def test_a_token_is_renewed_before_it_expires(issuer: Issuer) -> None:
    tokens = Tokens(issuer, openid(issuer))
    now = 0.0
    given = service()
    given._now = lambda: issuer.now() + now
    async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
        await agent.send("hi")
        now = issuer.lifetime * 0.5
        await agent.send("hi")
        assert issuer.requests["token"] == 1
        now = issuer.lifetime * 0.95  # valid, but not for long
        await agent.send("hi")
        assert issuer.requests["token"] == 2
    assert not tokens.refused


# -- the choice of a flow and a credential --------------------------------------------------------


def declaring(url: str, schemes: dict[str, Any], *requirements: dict[str, Any]) -> dict[str, Any]:
    return card(
        url,
        securitySchemes=schemes,
        securityRequirements=[
            {"schemes": {name: {"list": scopes} for name, scopes in each.items()}}
            for each in requirements
        ],
    )


KEY = {"apiKeySecurityScheme": {"location": "query", "name": "k"}}
COOKIE = {"apiKeySecurityScheme": {"location": "cookie", "name": "c"}}
BASIC = {"httpAuthSecurityScheme": {"scheme": "Basic"}}
BEARER = {"httpAuthSecurityScheme": {"scheme": "Bearer"}}
SCHEMES = {"key": KEY, "cookie": COOKIE, "basic": BASIC, "bearer": BEARER}


async def sent_to(given: Any, *requirements: dict[str, Any]) -> Exchange:
    async def agent(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(declaring(server.url, SCHEMES, *requirements))
        else:
            await exchange.result(task())

    async with scripted(agent) as server, parley.connect(server.url, auth=given) as remote:
        await remote.get("t-1")
        return server.exchanges[-1]


async def test_the_first_alternative_counts_that_can_be_satisfied() -> None:
    alternatives = [{"bearer": []}, {"key": [], "basic": []}, {"basic": []}]
    sent = await sent_to([auth.Basic("ada", "pw"), auth.ApiKey("k1")], *alternatives)
    assert sent.target.endswith("?k=k1")
    assert sent.headers["authorization"] == "Basic YWRhOnB3"
    sent = await sent_to(auth.Basic("ada", "pw"), *alternatives)
    assert "k1" not in sent.target
    assert sent.headers["authorization"] == "Basic YWRhOnB3"
    sent = await sent_to([auth.ApiKey("k1"), auth.Bearer("t")], *alternatives)
    assert sent.headers["authorization"] == "Bearer t"
    assert "?" not in sent.target
    sent = await sent_to(auth.ApiKey("k1"), {"cookie": []})
    assert sent.headers["cookie"] == "c=k1"


async def test_credentials_that_are_given_are_sent_where_they_are_welcome_too() -> None:
    assert "authorization" in (await sent_to(auth.Bearer("t"), {}, {"bearer": []})).headers
    assert "authorization" not in (await sent_to(None, {}, {"bearer": []})).headers


async def test_credentials_of_the_wrong_kind_are_refused_with_the_right_ones() -> None:
    with pytest.raises(AuthenticationRequired) as caught:
        await sent_to(auth.ApiKey("k-secret"), {"bearer": ["read"]}, {"basic": []})
    said = str(caught.value)
    assert "HTTP Bearer with the scopes read or HTTP Basic" in said
    assert "auth=Bearer(...) or Basic(...)" in said
    assert "parley auth login http://127.0.0.1" in said
    assert "k-secret" not in said


async def test_the_command_that_a_refusal_advises_runs_nothing_of_the_agents() -> None:
    async def refusing(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(declaring(server.url, SCHEMES, {"bearer": []}))
        else:
            asked = 'Bearer error="insufficient_scope", scope="pay;id $(id) a:b/c.d"'
            await exchange.json({}, 403, www_authenticate=asked)

    async with scripted(refusing) as server:
        login = KeptLogin(
            origin=server.url,
            kind="token",
            access_token="t",
            token_url=f"{server.url}/token",
            obtained_at=0.0,
        )
        Logins().put(login)
        async with parley.connect(server.url) as remote:
            with pytest.raises(AuthenticationRequired) as caught:
                await remote.get("t-1")
    command = str(caught.value).partition("log in again: ")[2]
    assert shlex.split(command) == [
        *("parley", "auth", "login", server.url),
        *("--scope", "pay;id", "--scope", "$(id)", "--scope", "a:b/c.d"),
    ]
    assert "'pay;id'" in command


async def test_an_address_with_a_user_is_called_with_the_credential_alone() -> None:
    async def agent(exchange: Exchange) -> None:
        if exchange.method == "GET":
            mine = server.url.replace("://", "://eve:pw@")
            await exchange.json(declaring(mine, SCHEMES, {"bearer": []}))
        else:
            await exchange.result(task())

    async with (
        scripted(agent) as server,
        parley.connect(server.url, auth=auth.Bearer("t")) as remote,
    ):
        await remote.get("t-1")
        assert server.exchanges[-1].headers["authorization"] == "Bearer t"


def test_a_card_with_many_alternatives_is_not_multiplied_out() -> None:
    many = [
        SecurityRequirement(schemes={f"s{number}": StringList(list=[])}) for number in range(3000)
    ]
    skill = AgentSkill(
        id="pay", name="", description="", tags=(), security_requirements=tuple(many)
    )
    huge = AgentCard(
        name="huge",
        description="",
        version="1",
        supported_interfaces=(),
        capabilities=AgentCapabilities(),
        default_input_modes=(),
        default_output_modes=(),
        security_requirements=tuple(many),
        skills=(skill,),
    )
    tracemalloc.start()
    try:
        assert len(alternatives(huge, "pay")) == MAX_ALTERNATIVES
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "wrong", [{"auth": "token"}, {"auth": [1]}, {"auth": auth.Bearer("t"), "bearer": "t"}]
)
def test_what_is_no_credential_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        parley.connect("http://localhost", **wrong)


# -- secrets --------------------------------------------------------------------------------------


async def test_secrets_are_in_no_log_and_no_repr(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "parley.client")
    caplog.set_level(logging.DEBUG, "aiohttp")
    tokens = Tokens(issuer, openid(issuer))
    given = auth.ClientCredentials("service", "secret", scopes="read")
    async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
        await agent.send("hi")
    objects: list[Any] = [given, auth.Bearer("t0ken"), auth.ApiKey("k3y"), auth.Basic("a", "pw0")]
    shown = caplog.text + "".join(map(repr, [*objects, *given._cache.all()]))
    for secret in (*tokens.seen, "t0ken", "k3y", "pw0", "c2VydmljZTpzZWNyZXQ"):
        assert secret not in shown


@pytest.mark.slow
async def test_an_issuer_that_echoes_a_secret_does_not_get_it_into_the_error(
    issuer: Issuer,
) -> None:
    tokens = Tokens(issuer, openid(issuer))
    echo = b'{"error": "invalid_client", "error_description": "hunter2hunter2 is wrong"}'
    issuer.fail("token", status=401, body=echo, headers={"content-type": "application/json"})
    given = auth.ClientCredentials("service", "hunter2hunter2")
    async with served(bank(tokens)) as url, parley.connect(url, auth=given) as agent:
        with pytest.raises(auth.TokenRefused) as caught:
            await agent.send("hi")
    assert "invalid_client" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert not tokens.seen


# -- cards that challenge, and files --------------------------------------------------------------


async def test_a_card_that_challenges_gets_a_token_of_an_issuer_that_the_user_names(
    issuer: Issuer,
) -> None:
    async def closed(exchange: Exchange) -> None:
        if "authorization" not in exchange.headers:
            await exchange.json({}, 401, www_authenticate="Bearer")
        elif exchange.method == "GET":
            await exchange.json(declaring(server.url, SCHEMES, {"bearer": []}))
        else:
            await exchange.result(task())

    async with scripted(closed) as server:
        with pytest.raises(AuthenticationRequired):
            await parley.connect(server.url, auth=service())
        async with parley.connect(server.url, auth=service(issuer=issuer.url)) as remote:
            await remote.get("t-1")
    assert issuer.requests["token"] == 1


@pytest.mark.slow
async def test_an_agent_of_this_process_is_called_with_a_token(issuer: Issuer) -> None:
    agent: Agent = bank(Tokens(issuer, openid(issuer)))
    async with parley.connect(agent, auth=service()) as remote:
        assert (await remote.send("hi")).text == "service: 42"


async def test_concurrent_calls_wait_for_one_token(issuer: Issuer) -> None:
    tokens = Tokens(issuer, openid(issuer))
    async with served(bank(tokens)) as url:
        given = service()
        async with parley.connect(url, auth=given) as one, parley.connect(url, auth=given) as other:
            await asyncio.gather(*(agent.send("hi") for agent in (one, other) for _ in range(5)))
    assert issuer.requests["token"] == 1


async def test_two_agents_never_get_the_same_token(issuer: Issuer) -> None:
    one, other = Tokens(issuer, openid(issuer)), Tokens(issuer, openid(issuer))
    given = service()
    async with served(bank(one)) as first, served(bank(other)) as second:
        for url in (first, second):
            async with parley.connect(url, auth=given) as agent:
                await agent.send("hi")
    assert not set(one.seen) & set(other.seen)
