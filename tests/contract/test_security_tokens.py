"""Tokens of issuers, valid and invalid, over every binding and version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import parley
from parley import Agent, Part, Turn
from parley.client.remote_agent import RemoteAgent
from parley.model.errors import OverloadedError, PermissionDeniedError, UnauthenticatedError
from parley.model.operations import GetTaskRequest
from parley.model.service import Caller
from parley.security import (
    Bearer,
    ClientCredentialsOAuthFlow,
    DeviceCodeOAuthFlow,
    Introspection,
    OAuth2,
    OpenIdConnect,
    Scheme,
    Security,
)
from parley.testing import Issuer
from tests.contract.conftest import Serve, Speech, reach
from tests.contract.test_errors import refused, saying
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

WRONG: dict[str, dict[str, Any]] = {
    "expired": {"expires_in": -100},
    "not yet valid": {"skew": 3600},
    "wrong audience": {"audience": "hotel"},
    "wrong issuer": {"issuer": "https://evil.example"},
    "wrong key": {"forged": True},
    "unknown key": {"header": {"kid": "unknown"}},
    "alg none": {"alg": "none"},
    "key confusion": {"alg": "HS256"},
    "critical header": {"header": {"crit": ["exp"]}},
    "no end": {"claims": {"exp": None}},
    "ID token": {"typ": "JWT", "claims": {"nonce": "n"}},
    "malformed": {"payload": b"no JSON"},
}


def agent_of(name: str, security: Scheme | Security | None) -> Agent:
    agent = Agent(name, security=security)

    @agent.skill(replies="task")
    async def whoami(turn: Turn) -> str:
        caller = turn.caller
        return f"{caller.id} by {caller.client} of {'/'.join(sorted(caller.scopes))}"

    return agent


@pytest.fixture(scope="session")
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer(audience="bank") as issuer:
        yield issuer


@pytest.fixture(scope="session")
async def other() -> AsyncIterator[Issuer]:
    async with Issuer(audience="bank") as issuer:
        yield issuer


@pytest.fixture(scope="session")
async def addresses(serve: Serve, issuer: Issuer) -> Sequence[str]:
    bank = agent_of("Bank", OpenIdConnect(issuer.url, audience="bank"))
    return await serve(partial(parley.asgi, bank), caller=None)


@pytest.fixture(scope="session")
async def of_several(serve: Serve, issuer: Issuer, other: Issuer) -> Sequence[str]:
    """The addresses of an agent that accepts two issuers, the second by introspection."""
    asked = Introspection("service", "secret", f"{other.url}/introspect")
    client = ClientCredentialsOAuthFlow(token_url=f"{other.url}/token", scopes={"pay": "Pay"})
    oauth2 = OAuth2(client, issuer=other.url, audience="bank", introspection=asked)
    bank = agent_of("Bank", OpenIdConnect(issuer.url, audience="bank") | oauth2.with_scopes("pay"))
    return await serve(partial(parley.asgi, bank), caller=None)


@asynccontextmanager
async def bearing(
    addresses: Sequence[str], speech: Speech, token: str, **options: Any
) -> AsyncIterator[RemoteAgent]:
    headers = {"authorization": f"Bearer {token}"}
    async with reach(addresses, speech, headers=headers, **options) as remote:
        yield remote


async def test_the_card_names_the_discovery_document(
    addresses: Sequence[str], speech: Speech, issuer: Issuer
) -> None:
    async with bearing(addresses, speech, issuer.token()) as remote:
        scheme = remote.card.security_schemes["openid"].open_id_connect_security_scheme
    assert scheme is not None
    assert scheme.open_id_connect_url == f"{issuer.url}/.well-known/openid-configuration"


async def test_the_token_says_who_calls(
    addresses: Sequence[str], speech: Speech, issuer: Issuer
) -> None:
    token = issuer.token("ada", client="shop", scope="read pay")
    async with bearing(addresses, speech, token) as remote:
        assert (await remote.send("who am I")).text == "ada by shop of pay/read"


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_token_is_refused(
    addresses: Sequence[str], speech: Speech, issuer: Issuer, wrong: str
) -> None:
    async with bearing(addresses, speech, issuer.token("ada", **WRONG[wrong])) as remote:
        for name, request in (
            ("SendMessage", saying(Part(text="hi"))),
            ("SendStreamingMessage", saying(Part(text="hi"))),
            ("GetTask", GetTaskRequest(id="any")),
        ):
            assert type(await refused(remote, name, request)) is UnauthenticatedError


async def test_a_rotated_key_is_found(
    addresses: Sequence[str], speech: Speech, issuer: Issuer
) -> None:
    async with bearing(addresses, speech, issuer.token("ada", alg="EdDSA")) as remote:
        assert (await remote.send("who am I")).text.startswith("ada")


async def test_tokens_of_two_issuers_are_accepted(
    of_several: Sequence[str], speech: Speech, issuer: Issuer, other: Issuer
) -> None:
    for token, text in (
        (issuer.token("ada"), "ada by app of "),
        (other.token("bob", scope="pay", opaque=True), "bob by app of pay"),
        (other.token("bob", scope="pay"), "bob by app of pay"),
    ):
        async with bearing(of_several, speech, token) as remote:
            assert (await remote.send("who am I")).text == text
    for token, kind in (
        (other.token("bob", forged=True), UnauthenticatedError),
        (other.token("bob", audience="hotel", opaque=True), UnauthenticatedError),
        (other.token("bob", scope="read", opaque=True), PermissionDeniedError),
    ):
        async with bearing(of_several, speech, token) as remote:
            error = await refused(remote, "SendMessage", saying(Part(text="hi")))
            assert type(error) is kind


@pytest.mark.slow
async def test_an_issuer_that_does_not_answer_refuses_nobody(
    of_several: Sequence[str], speech: Speech, other: Issuer
) -> None:
    async with bearing(of_several, speech, other.token(scope="pay", opaque=True)) as remote:
        other.fail("introspect")
        try:
            error = await refused(remote, "SendMessage", saying(Part(text="hi")))
        finally:
            other.recover()
        assert isinstance(error, OverloadedError)
        assert error.retry_after

        async def is_back() -> bool:
            try:
                return (await remote.send("who am I")).text == "ada by app of pay"
            except OverloadedError:
                return False

        await until(is_back)


@pytest.fixture(scope="session")
async def of_many(serve: Serve, issuer: Issuer) -> Sequence[str]:
    """The addresses of two agents with different audiences."""
    flow = DeviceCodeOAuthFlow(
        device_authorization_url=f"{issuer.url}/device_authorization",
        token_url=f"{issuer.url}/token",
        scopes={},
    )
    bank = agent_of("Bank", OpenIdConnect(issuer.url, audience="bank"))
    hotel = agent_of("Hotel", OAuth2(flow, issuer=issuer.url, audience="hotel"))
    return await serve(partial(parley.asgi, {"/bank": bank, "/hotel": hotel}), caller=None)


async def test_a_token_for_one_agent_is_none_for_another(
    of_many: Sequence[str], speech: Speech, issuer: Issuer
) -> None:
    """gRPC learns the agent only after it checks the credentials, and still rejects the token."""
    if speech.way == ("GRPC", "0.3"):
        return  # gRPC of 0.3 cannot name an agent
    token = issuer.token("ada", audience="bank", scope="pay")
    async with bearing(of_many, speech, token, path="/bank") as remote:
        assert (await remote.send("who am I")).text == "ada by app of pay"
    async with bearing(of_many, speech, token, path="/hotel") as remote:
        error = await refused(remote, "SendMessage", saying(Part(text="hi")))
        assert type(error) is UnauthenticatedError


@pytest.fixture(scope="session")
async def of_two_judges(serve: Serve) -> Sequence[str]:
    """The addresses of agents whose schemes map the same token to different callers."""
    bank = agent_of("Bank", Bearer(lambda token: Caller(id="root", scopes=frozenset({"all"}))))
    hotel = agent_of("Hotel", Bearer(lambda token: Caller(id="ada", scopes=frozenset({"stay"}))))
    agents = {"/bank": bank, "/hotel": hotel, "/park": agent_of("Park", None)}
    return await serve(partial(parley.asgi, agents), caller=None)


async def test_the_schemes_of_another_agent_say_nothing_about_a_caller(
    of_two_judges: Sequence[str], speech: Speech
) -> None:
    if speech.way == ("GRPC", "0.3"):
        return  # gRPC of 0.3 cannot name an agent
    said = {"/bank": "root by  of all", "/hotel": "ada by  of stay", "/park": " by  of "}
    for path, words in said.items():
        async with bearing(of_two_judges, speech, "any", path=path) as remote:
            assert (await remote.send("who am I")).text == words


async def test_a_refusal_says_what_the_scheme_of_the_token_says(
    of_several: Sequence[str], speech: Speech, issuer: Issuer, other: Issuer
) -> None:
    for token, words in (
        (issuer.token(expires_in=-100), "expired"),
        (other.token(expires_in=-100), "not active"),
    ):
        async with bearing(of_several, speech, token) as remote:
            error = await refused(remote, "SendMessage", saying(Part(text="hi")))
        assert words in error.message
