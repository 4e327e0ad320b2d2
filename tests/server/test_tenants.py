"""Several agents behind one address, distinguished by the tenant in requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

import parley
from parley import Agent, Turn
from parley.server.app import Endpoint, create_app
from parley.server.run import serving
from tests.kit.http import MESSAGE, ask, call, post
from tests.kit.scripted import Scripted, card_of, reply

pytestmark = pytest.mark.anyio


CARD = "/.well-known/agent-card.json"


def named(name, **options):
    """An agent that replies with its name and the tenant of the call."""

    async def answer(request, context):
        assert request.tenant == context.tenant
        return reply(f"{name} for {context.tenant!r}")

    async def extended(request, context):
        return card_of(f"{name}, extended")(())

    script = {"send_message": answer, "get_extended_agent_card": extended}
    return Endpoint(Scripted(**script), card_of(name, extended_agent_card=True), **options)


def text_of(response):
    return response.json["result"]["message"]["parts"][0]["text"]


@pytest.fixture(scope="module")
async def two():
    """A server with tenants only."""
    tenants = {"acme": named("Acme"), "globex": named("Globex")}
    async with serving(create_app({"": Endpoint(tenants=tenants)})) as url:
        yield url


@pytest.fixture(scope="module")
async def mixed():
    """An agent with tenants, and another agent."""
    tenants = {"acme": named("Acme")}
    app = create_app({"": named("Root", tenants=tenants, key="root-key"), "/x": named("X")})
    async with serving(app) as url:
        yield url


async def test_an_unknown_tenant_in_the_path_is_refused_in_http_json(two):
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    body = json.dumps({"message": MESSAGE}).encode()
    for path in ("/initech/message:send", "/message:send"):
        refused = await ask(two, "POST", path, body, headers)
        assert refused.status == 400
        assert "tenant" in refused.json["error"]["message"]
        assert b"globex" not in refused.body


# Cards


async def test_a_card_of_no_tenant_is_not_there(two):
    for path in (CARD, f"{CARD}?tenant=", f"{CARD}?tenant=initech", f"/initech{CARD}"):
        for method in ("GET", "HEAD"):
            answer = await ask(two, method, path)
            assert answer.status == 404, path
            assert b"globex" not in answer.body
    assert "initech" in (await ask(two, "GET", f"{CARD}?tenant=initech")).json["error"]


# Names


def test_a_path_is_an_agents_or_a_tenants():
    with pytest.raises(ValueError, match="/acme is the path of an agent and of a tenant"):
        create_app({"": Endpoint(tenants={"acme": named("x")}), "/acme": named("y")})
    with pytest.raises(ValueError, match="no agent"):
        create_app({"": Endpoint()})


# Assistants: every agent below one path, by name


async def test_an_unknown_assistant_is_said_to_be_unknown(mixed, two):
    for url in (mixed, two):
        for path in ("/a2a/initech", "/a2a/initech/message:send", f"{CARD}?assistant_id=initech"):
            answer = await ask(url, "GET", path)
            assert answer.status == 404
            assert answer.json["error"] == "there is no assistant 'initech' here"
            assert b"acme" not in answer.body
        answer = await post(url, call(id="q-1"), path="/a2a/initech")
        assert answer.status == 404
        assert answer.json["id"] == "q-1"
        assert "there is no assistant 'initech' here" in answer.error["message"]
        assert "acme" not in str(answer.json)


async def test_assistants_are_found_where_no_agent_is_at_the_root():
    app = create_app({"/time": named("Time", key="clock"), "/a/b": named("Below")})
    async with serving(app) as url:
        for id, name in (("time", "Time"), ("clock", "Time"), ("a-b", "Below")):
            card = await ask(url, "GET", f"{CARD}?assistant_id={id}")
            assert card.json["name"] == name
            assert text_of(await post(url, call(), path=f"/a2a/{id}")) == f"{name} for ''"
        # An agent's own page does not mention the others.
        assert (await ask(url, "GET", f"/time{CARD}?assistant_id=a-b")).status == 404


# -- an unknown tenant, with every way to name it (docs/guides/tenants.md) -----------------------


OLD_MESSAGE = {**MESSAGE, "role": "user", "kind": "message"}
OLD_MESSAGE["parts"] = [{"kind": "text", "text": "hi"}]
VERSIONS = {"1.0": ("SendMessage", MESSAGE), "0.3": ("message/send", OLD_MESSAGE)}


def agent(name: str) -> Agent:
    made = Agent(name, description="Tells its tenant", version="1.0.0")

    @made.skill
    def tell(turn: Turn) -> str:
        """Tells its tenant."""
        return f"{name} for {turn.tenant or 'nobody'}"

    return made


def requests(version: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """The requests with the tenant ``stranger``: a path and a body each."""
    method, message = VERSIONS[version]
    params: dict[str, Any] = {"message": message}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    stream = {"1.0": "SendStreamingMessage", "0.3": "message/stream"}[version]
    below = "/v1" if version == "0.3" else ""
    found = {
        "path of JSON-RPC": ("/stranger", rpc),
        "path with a slash": ("/stranger/", rpc),
        "stream of JSON-RPC": ("/stranger", {**rpc, "method": stream}),
        "path of HTTP+JSON": (f"/stranger{below}/message:send", params),
    }
    if version == "1.0":  # 0.3 has no field for it
        found["field"] = ("/", {**rpc, "params": {**params, "tenant": "stranger"}})
    return found


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_of_tenants_refuses_every_other(version: str) -> None:
    app = parley.asgi(tenants={"acme": agent("Acme")}, store="memory:")
    async with serving(app) as url:
        for way, (path, body) in requests(version).items():
            answer = await _post(url, path, body, version)
            assert b"there is no tenant 'stranger' here" in answer.body, way
            assert answer.status == (400 if "HTTP" in way else 200), way


async def _post(url: str, path: str, body: dict[str, Any], version: str) -> Any:
    headers = {"Content-Type": "application/json", "A2A-Version": version}
    return await ask(url, "POST", path, json.dumps(body).encode(), headers)
