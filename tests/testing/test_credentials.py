"""``parley.testing.client`` with agents that require credentials: every feature, every scheme."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from parley import Agent, Caller, CardDetails, EnvelopeSettings, Rights, Turn, security
from parley.model.cards import HTTPAuthSecurityScheme, SecurityScheme
from parley.model.errors import PermissionDeniedError, TaskNotFoundError, UnauthenticatedError
from parley.security import ApiKey, Basic, Bearer, Jwt, MutualTls, OAuth2, OpenIdConnect, Scheme
from parley.security.evidence import Evidence
from parley.testing import TestedAgent, client, completed, input_required, message, working

pytestmark = pytest.mark.anyio

ISSUER = "https://issuer.example"


class Handshake(Scheme):
    """A scheme of the author's own."""

    name = "handshake"

    def declared(self) -> SecurityScheme:
        return SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Handshake"))

    def is_presented(self, evidence: Evidence) -> bool:
        return any(scheme == "handshake" for scheme, _ in evidence.authorization)

    def verify(self, evidence: Evidence) -> Any:
        raise AssertionError("no test shows such credentials")


def _oauth2() -> OAuth2:
    flow = security.ClientCredentialsOAuthFlow(
        token_url=f"{ISSUER}/token", scopes={"read": "Read", "pay": "Pay"}
    )
    return OAuth2(flow, audience="bank", issuer=ISSUER)


SCHEMES: dict[str, Callable[[], Scheme]] = {
    "ApiKey": ApiKey,
    "Basic": lambda: Basic({}),
    "Bearer": lambda: Bearer(lambda token: None),
    "Jwt": lambda: Jwt(issuer=ISSUER, audience="bank", jwks_url=f"{ISSUER}/jwks"),
    "MutualTls": MutualTls,
    "OAuth2": _oauth2,
    "OpenIdConnect": lambda: OpenIdConnect(ISSUER, audience="bank"),
    "Scheme": Handshake,
}


def _agent(**options: Any) -> Agent:
    """Return an agent whose skill uses the tested features."""
    agent = Agent("Bank", **options)

    @agent.skill(default=True)
    async def work(turn: Turn) -> object:
        if turn.text == "who":
            return f"{turn.caller.id} {sorted(turn.caller.scopes)}"
        if turn.text == "file":
            await turn.artifact(b"x" * 2_000_000, name="large")
            return "kept"
        if turn.text == "event":
            return await turn.wait_event("paid")
        if turn.text == "ask":
            return f"You said {await turn.ask('What?')}"
        await turn.working("begun")
        await asyncio.sleep(60)
        return f"attempt {turn.attempt}"

    return agent


def _on_a_skill(needs: Any) -> Agent:
    agent = _agent()

    @agent.skill(security=needs)
    async def pay(turn: Turn) -> str:
        return "paid"

    return agent


REQUIREMENTS: dict[str, Callable[[], Agent]] = {
    **{name: lambda make=make: _agent(security=make()) for name, make in SCHEMES.items()},
    **{
        f"{name} on a skill": lambda make=make: _on_a_skill(make())
        for name, make in SCHEMES.items()
    },
    "two together": lambda: _agent(security=ApiKey() & MutualTls()),
    "one of two": lambda: _agent(security=ApiKey() | _oauth2()),
    "anonymous too": lambda: _agent(security=ApiKey() | security.anonymous),
    "one with scopes": lambda: _agent(security=_oauth2().with_scopes("read", "pay")),
    "an operation": lambda: _agent(rights=Rights(operations={"CancelTask": Basic({})})),
    "permissions": lambda: _agent(
        security=ApiKey(),
        card=CardDetails(envelope=EnvelopeSettings(required_permissions=("read",))),
    ),
    "internal data": lambda: _agent(
        card=CardDetails(envelope=EnvelopeSettings(data_classification="internal"))
    ),
}


async def _as_caller(remote: TestedAgent) -> None:
    task = await remote.send("ask")
    with pytest.raises(TaskNotFoundError):
        await remote.as_caller("bob").get(task.id)
    assert (await remote.as_caller("bob").send("who")).text.startswith("bob")


async def _webhooks(remote: TestedAgent) -> None:
    task = await remote.send("ask", push=remote.webhook)
    await remote.settle()
    assert remote.webhooks.accepted[-1] == input_required("What?")
    assert await remote.send("Yes", task=task) == completed("You said Yes")


async def _crash(remote: TestedAgent) -> None:
    sending = asyncio.create_task(remote.send("work"))
    await remote.settle()
    await remote.crash()
    await remote.advance(timedelta(minutes=2))
    assert await sending == completed("attempt 2")


async def _time(remote: TestedAgent) -> None:
    events = []
    async for event in remote.stream("work"):
        events.append(event)
        if event == working("begun"):
            await remote.advance(60)
    assert events[-1] == completed()
    begun = remote.time.now
    await remote.time.advance(1)
    assert remote.time.now > begun


async def _complete(remote: TestedAgent) -> None:
    task = await remote.send("event", return_immediately=True)
    assert await remote.complete("paid", "10 EUR")
    assert task.id
    assert await remote.get(task.id) == completed("10 EUR")
    assert remote.store.unavailable_reason == ""


async def _files(remote: TestedAgent) -> None:
    task = await remote.send("file")
    assert task.id
    url = task.artifacts[0].parts[0].url
    assert url is not None
    answer = await remote.http.send("GET", url, {}, None)
    assert len(answer.body) == 2_000_000
    with TemporaryDirectory() as folder:
        [path] = await remote.download(task.artifacts[0], folder)
        assert path.stat().st_size == 2_000_000
    part = await remote.upload(b"y" * 100_000)
    assert await remote.read(part) == b"y" * 100_000


FEATURES: dict[str, Callable[[TestedAgent], Awaitable[None]]] = {
    "as_caller": _as_caller,
    "webhooks webhook settle": _webhooks,
    "crash": _crash,
    "time advance": _time,
    "complete store": _complete,
    "http": _files,
}


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("requirement", REQUIREMENTS)
async def test_every_feature_works_with_every_scheme(requirement: str, feature: str) -> None:
    async with client(REQUIREMENTS[requirement]()) as remote:
        await FEATURES[feature](remote)


async def test_no_scheme_and_no_feature_is_left_out() -> None:
    kinds = {
        name
        for name, kind in vars(security).items()
        if inspect.isclass(kind) and issubclass(kind, Scheme)
    }
    assert kinds == set(SCHEMES)
    members = {name for name in vars(TestedAgent) if not name.startswith("_")} - {"aclose"}
    assert members == set(" ".join(FEATURES).split())


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "envelope"])
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_anonymous_caller_is_refused_as_in_production(scheme: str, binding: str) -> None:
    agent = _agent(security=SCHEMES[scheme]())
    async with client(agent, caller=None, binding=binding) as remote:
        with pytest.raises(UnauthenticatedError):
            await remote.send("who")
        assert (await remote.as_caller("ann").send("who")).text == "ann []"
    async with client(_on_a_skill(SCHEMES[scheme]()), caller=None, binding=binding) as remote:
        assert (await remote.send("who")).text == " []"
        with pytest.raises(UnauthenticatedError):
            await remote.send("x", metadata={"skill": "pay"})


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "envelope"])
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_scopes_are_enforced(scheme: str, binding: str) -> None:
    agent = _on_a_skill(SCHEMES[scheme]().with_scopes("pay"))
    async with client(agent, caller="ann", scopes=["read"], binding=binding) as remote:
        assert (await remote.send("who")).text == "ann ['read']"
        with pytest.raises(PermissionDeniedError, match="pay"):
            await remote.send("x", metadata={"skill": "pay"})
        paying = remote.as_caller("ann", scopes=["read", "pay"])
        assert await paying.send("x", metadata={"skill": "pay"}) == message("paid")
        with pytest.raises(PermissionDeniedError):
            await remote.as_caller(Caller("ann", True)).send("x", metadata={"skill": "pay"})
        with pytest.raises(UnauthenticatedError):
            await remote.as_caller(None).send("x", metadata={"skill": "pay"})
    async with client(agent, binding=binding) as remote:  # holds the credentials for the agent
        assert await remote.send("x", metadata={"skill": "pay"}) == message("paid")


async def test_credentials_of_the_test_are_verified_as_in_production() -> None:
    key = hashlib.sha256(b"ann-key").hexdigest()
    agent = _agent(security=ApiKey(keys={key: Caller("ann", scopes=frozenset({"read"}))}))
    async with client(agent, headers={"X-API-Key": "ann-key"}) as remote:
        assert (await remote.send("who")).text == "ann ['read']"
        assert (await remote.as_caller("bob").send("who")).text == "bob []"
    async with client(agent, headers={"X-API-Key": "another"}) as remote:
        with pytest.raises(UnauthenticatedError):
            await remote.send("who")


async def test_arguments_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="anonymous caller has no scopes"):
        client(_agent(), caller=None, scopes=["pay"])
    with pytest.raises(ValueError, match="its own scopes"):
        client(_agent(), caller=Caller("ann", True), scopes=["pay"])
    with pytest.raises(ValueError, match=r"such as \['pay'\]"):
        client(_agent(), caller="ann", scopes="pay")
    with pytest.raises(ValueError, match="caller=None"):
        client(_agent(), caller="")
    with pytest.raises(ValueError, match="identify would never be called"):
        await client(_agent(security=ApiKey()), identify=lambda scope: Caller("ann", True))
