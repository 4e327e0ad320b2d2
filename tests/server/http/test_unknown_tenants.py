"""A tenant that a server does not know, named in every way (docs/guides/tenants.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest

import parley
from parley import Agent, Turn, connect
from parley.client.bindings.binding import is_supported
from parley.model.errors import InvalidParamsError
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.http import MESSAGE, ask

pytestmark = pytest.mark.anyio

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
    """The requests that name the tenant ``stranger``: a path and a body each."""
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
async def test_an_agent_without_tenants_serves_every_tenant(version: str) -> None:
    for app, name in (
        (parley.asgi(agent("Alone"), store="memory:"), "Alone"),
        (parley.asgi(agent("Beside"), tenants={"acme": agent("Acme")}, store="memory:"), "Beside"),
    ):
        async with serving(app) as url:
            for way, (path, body) in requests(version).items():
                answer = await _post(url, path, body, version)
                assert answer.status == 200, way
                assert f"{name} for stranger".encode() in answer.body, way
                assert (b'"jsonrpc"' in answer.body) == ("HTTP" not in way), way


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_of_tenants_refuses_every_other(version: str) -> None:
    app = parley.asgi(tenants={"acme": agent("Acme")}, store="memory:")
    async with serving(app) as url:
        for way, (path, body) in requests(version).items():
            answer = await _post(url, path, body, version)
            assert b"there is no tenant 'stranger' here" in answer.body, way
            assert answer.status == (400 if "HTTP" in way else 200), way


async def test_a_path_that_names_no_tenant_stays_unknown() -> None:
    method, message = VERSIONS["1.0"]
    rpc = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
    async with serving(parley.asgi(agent("Alone"), store="memory:")) as url:
        for path, body in (("/stranger", {}), ("/v1", rpc), ("/one/two", rpc), ("/.x", rpc)):
            assert (await _post(url, path, body, "1.0")).status == 404, path


async def test_over_grpc_it_is_the_same() -> None:
    if not is_supported("GRPC"):
        pytest.skip("GRPC is not installed")
    alone = parley.asgi(agent("Alone"), store="memory:")
    many = parley.asgi(tenants={"acme": agent("Acme")}, store="memory:")
    for app in (alone, many):
        async with serving(app, grpc=GrpcOptions(port=0)) as url:
            card = json.loads((await ask(url, "GET", CARD, b"", {"A2A-Version": "1.0"})).body)
            offered = card["supportedInterfaces"]
            for each in offered:
                each["tenant"] = "stranger"
            async with connect(card, binding="GRPC", version="1.0") as remote:
                if app is alone:
                    assert (await remote.send("hi")).text == "Alone for stranger"
                else:
                    with pytest.raises(InvalidParamsError, match="no tenant 'stranger'"):
                        await remote.send("hi")


CARD = "/.well-known/agent-card.json?tenant=acme"


async def _post(url: str, path: str, body: dict[str, Any], version: str) -> Any:
    headers = {"Content-Type": "application/json", "A2A-Version": version}
    return await ask(url, "POST", path, json.dumps(body).encode(), headers)
