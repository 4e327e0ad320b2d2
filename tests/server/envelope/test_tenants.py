"""Tenants: what one agent declares holds, however the agent is named."""

from __future__ import annotations

from typing import Any

import pytest

import parley
from parley import Agent, CardDetails, EnvelopeSettings
from parley.envelope.binding import EnvelopeBinding
from tests.host.envelope.talking import posted, request, searching
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio

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
