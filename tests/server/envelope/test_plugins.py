"""Handlers from operators, and agents' declarations, with every way to name an agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import parley
from parley import Agent, CardDetails, EnvelopeSettings, Rights
from parley.envelope.binding import EnvelopeBinding
from parley.envelope.messages import Envelope, RequestPayload
from parley.envelope.server.services import MessageContext
from parley.model.errors import PermissionDeniedError
from parley.model.service import Caller
from parley.security import ApiKey, anonymous
from parley.security.api_keys import digest_of
from tests.host.envelope.talking import post, posted, request, searching
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio


KEY = "key-of-ada-0123456789"


async def count(message: Envelope, context: MessageContext) -> Any:
    """Count what is in stock, as a caller wants it."""
    if isinstance(message.payload, RequestPayload) and message.payload.action != "stock.count":
        return NotImplemented
    assert isinstance(message.payload, RequestPayload)
    item = message.payload.parameters["item"]
    if item == "nothing":
        return None
    if item == "secret":
        raise RuntimeError("the password is hunter2")
    if item == "not yours":
        raise PermissionDeniedError(f"{message.source.agent_id} may not count this")
    if item == "cancelled":
        raise asyncio.CancelledError
    if item == "no json":
        return [object()]
    return [{"item": item, "count": 7}]


def code(found: dict[str, Any]) -> str:
    return str(found["payload"]["error"]["code"])


async def test_a_handler_needs_the_credentials_that_its_agent_needs() -> None:
    """A public operation lets everyone connect, and no more."""
    scheme = ApiKey(keys={digest_of(KEY): Caller(id="ada", authenticated=True)})
    shop = searching("shop", security=scheme, rights=Rights(operations={"GetTask": anonymous}))
    app = parley.asgi(shop, bindings=[EnvelopeBinding(handler=count)])
    ask = request("stock.count", {"item": "bolt"})
    other = {**ask, "message": {"type": "INVENTORY"}, "target": {}}
    async with under_uvicorn(app) as url:
        for message in (ask, other, request("registry.register", {})):
            assert code(await post(url, message)) == "UNAUTHENTICATED"
        found = await post(url, {**ask, "source": {"agentId": "ada"}}, {"X-API-Key": KEY})
        assert found["payload"]["results"] == [{"item": "bolt", "count": 7}]


# -- tenants: an agent's declarations apply, with every way to name the agent ----------------------


KEYS = [{"owner": "shop", "kid": "k", "kty": "oct", "k": "A" * 43}]


def greeting(name: str, envelope: EnvelopeSettings | bool) -> Agent:
    agent = Agent(name, key=name, card=CardDetails(envelope=envelope))

    @agent.skill
    async def hello() -> str:
        """Say hello."""
        return f"hello from {name}"

    return agent


@pytest.mark.parametrize("declared", ["signed", "restricted"])
def test_an_agent_that_takes_signed_messages_only_needs_keys_to_verify_them(declared: str) -> None:
    settings = EnvelopeSettings(signed=True)
    if declared == "restricted":
        settings = EnvelopeSettings(data_classification="restricted")
    for keys in (None, []):
        with pytest.raises(ValueError, match="has no key to verify them"):
            parley.asgi(
                greeting("strict", envelope=settings), bindings=[EnvelopeBinding(keys=keys)]
            )


@pytest.mark.parametrize(
    ("name", "code"), [("quiet", "METHOD_NOT_FOUND"), ("strict", "SIGNATURE_REQUIRED")]
)
async def test_the_agent_at_the_root_speaks_for_no_tenant(name: str, code: str) -> None:
    tenants = {
        "quiet": greeting("quiet", envelope=False),
        "strict": greeting("strict", envelope=EnvelopeSettings(signed=True)),
    }
    app = parley.asgi(searching("root"), tenants=tenants, bindings=[EnvelopeBinding(keys=KEYS)])
    async with under_uvicorn(app) as url:
        [found] = await posted(f"{url}/{name}", request("hello", {}))
        assert code in str(found)
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        for action, parameters in _operations(message):
            given = {**parameters, "tenant": name}
            [found] = await posted(url, request(f"a2a.{action}", given))
            error = found["payload"]["error"]
            assert error["message"] == f"tenant: there is no tenant {name!r} here"


async def test_an_agent_is_named_by_its_id_or_its_address() -> None:
    agents, tenants = {"/front": searching("front")}, {"acme": searching("shop")}
    app = parley.asgi(agents, tenants=tenants, url="https://agents.example.com")
    async with under_uvicorn(app) as url:
        for path, key in (("/front", "front"), ("/acme", "shop")):
            address = f"https://agents.example.com{path}"
            for name in (key, address, f"{address}/"):
                asked = request(target={"agentId": name})
                [found] = await posted(f"{url}{path}", asked, {"Host": "agents.example.com"})
                assert found["payload"]["status"] == "success", name


def _operations(message: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("SendMessage", {"message": message}),
        ("SendStreamingMessage", {"message": message}),
        ("ListTasks", {}),
        ("SubscribeToTask", {"id": "t1"}),
        ("GetExtendedAgentCard", {}),
    ]
