"""Several agents behind one address, told apart by the tenant that requests name."""

from __future__ import annotations

import json
from typing import Any

import pytest

import parley
from parley import Agent, Turn, connect
from parley.client.bindings.binding import is_supported
from parley.model.errors import InvalidParamsError, TaskNotFoundError
from parley.server.app import Endpoint, create_app
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.http import MESSAGE, ask, call, connection, post
from tests.kit.scripted import Scripted, card_of, reply

pytestmark = pytest.mark.anyio


CARD = "/.well-known/agent-card.json"


def named(name, **options):
    """An agent whose replies are its name, and the tenant that it was called for."""

    async def answer(request, context):
        assert request.tenant == context.tenant
        return reply(f"{name} for {context.tenant!r}")

    async def extended(request, context):
        return card_of(f"{name}, extended")(())

    script = {"send_message": answer, "get_extended_agent_card": extended}
    return Endpoint(Scripted(**script), card_of(name, extended_agent_card=True), **options)


def text_of(response):
    return response.json["result"]["message"]["parts"][0]["text"]


def interfaces_of(card):
    """The interfaces of 1.0, as url and tenant."""
    return {
        (each["url"], each.get("tenant", ""))
        for each in card.json["supportedInterfaces"]
        if each["protocolVersion"] == "1.0"
    }


def to(tenant):
    return call(params={"message": MESSAGE, "tenant": tenant})


@pytest.fixture(scope="module")
async def two():
    """A server that has nothing but tenants."""
    tenants = {"acme": named("Acme"), "globex": named("Globex")}
    async with serving(create_app({"": Endpoint(tenants=tenants)})) as url:
        yield url


@pytest.fixture(scope="module")
async def mixed():
    """An agent that has tenants beside it, and another agent."""
    tenants = {"acme": named("Acme")}
    app = create_app({"": named("Root", tenants=tenants, key="root-key"), "/x": named("X")})
    async with serving(app) as url:
        yield url


async def test_a_request_goes_to_the_tenant_that_it_names(two):
    async with connection(two) as http:
        for tenant, agent in (("acme", "Acme"), ("globex", "Globex")):
            headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
            answer = await http.ask("POST", "/", to(tenant), headers)
            assert text_of(answer) == f"{agent} for '{tenant}'"


@pytest.mark.parametrize("path", ["/acme", "/acme/", "/a2a/acme", "/a2a/acme/"])
async def test_a_tenant_has_a_path_of_its_own(two, path):
    for body in (call(), to("acme")):
        assert text_of(await post(two, body, path=path)) == "Acme for 'acme'"


@pytest.mark.parametrize("path", ["/acme", "/a2a/acme"])
async def test_http_json_finds_the_tenant_in_the_path(two, path):
    headers = {"Content-Type": "application/a2a+json", "A2A-Version": "1.0"}
    body = json.dumps({"message": MESSAGE}).encode()
    answer = await ask(two, "POST", f"{path}/message:send", body, headers)
    assert answer.status == 200
    assert answer.json["message"]["parts"][0]["text"] == "Acme for 'acme'"


@pytest.mark.parametrize("path", ["/acme", "/a2a/acme"])
async def test_a_tenant_that_the_path_contradicts_is_refused(two, path):
    refused = (await post(two, to("globex"), path=path)).error
    assert refused["code"] == -32602
    assert "the path names the tenant 'acme'" in refused["message"]
    assert refused["data"][-1]["fieldViolations"][0]["field"] == "tenant"


@pytest.mark.parametrize("tenant", ["initech", "", "ACME", "acme/", "x" * 5000])
async def test_an_unknown_tenant_is_not_told_which_there_are(two, tenant):
    refused = (await post(two, to(tenant))).error
    assert refused["code"] == -32602
    assert "tenant" in refused["message"]
    assert "globex" not in str(refused)
    assert len(refused["message"]) < 300
    assert refused["data"][-1]["fieldViolations"][0]["field"] == "tenant"


async def test_an_unknown_tenant_in_the_path_is_refused_in_http_json(two):
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    body = json.dumps({"message": MESSAGE}).encode()
    for path in ("/initech/message:send", "/message:send"):
        refused = await ask(two, "POST", path, body, headers)
        assert refused.status == 400
        assert "tenant" in refused.json["error"]["message"]
        assert b"globex" not in refused.body


async def test_a_tenant_that_an_agent_does_not_have_is_its_own_business(mixed):
    assert text_of(await post(mixed, to("acme"))) == "Acme for 'acme'"
    assert text_of(await post(mixed, to("initech"))) == "Root for 'initech'"
    assert text_of(await post(mixed, call())) == "Root for ''"
    # Tenants are those of one address.
    assert text_of(await post(mixed, to("acme"), path="/x")) == "X for 'acme'"


async def test_capabilities_and_extensions_are_those_of_the_tenant():
    silent = Endpoint(Scripted(), card_of("Silent", streaming=False))
    app = create_app({"": Endpoint(tenants={"silent": silent, "loud": named("Loud")})})
    async with serving(app) as url:
        params = {"message": MESSAGE, "tenant": "silent"}
        refused = (await post(url, call("SendStreamingMessage", params))).error
        assert refused["code"] == -32004
        params["tenant"] = "loud"
        streamed = await post(url, call("SendStreamingMessage", params))
        assert streamed.headers["content-type"] == "text/event-stream"


# Cards


@pytest.mark.parametrize("path", [f"/acme{CARD}", "/acme/.well-known/agent.json"])
async def test_a_tenants_card_names_the_common_address_and_the_tenant(two, path):
    for at in (path, f"{path.removeprefix('/acme')}?tenant=acme"):
        card = await ask(two, "GET", at)
        assert card.status == 200
        assert card.json["name"] == "Acme"
        assert interfaces_of(card) == {(two, "acme")}


async def test_every_url_of_a_tenants_card_leads_to_the_tenant(two):
    card = await ask(two, "GET", f"/globex{CARD}")
    offered = card.json["supportedInterfaces"]
    for each in offered:
        assert each.get("tenant") == "globex" or each["url"] == f"{two}/globex", each
    # What a client of 0.3 reads names no tenant, so its address does.
    if "url" in card.json:
        assert card.json["url"] == f"{two}/globex"
        for each in card.json.get("additionalInterfaces", []):
            assert each["url"] == f"{two}/globex"


async def test_a_card_of_no_tenant_is_not_there(two):
    for path in (CARD, f"{CARD}?tenant=", f"{CARD}?tenant=initech", f"/initech{CARD}"):
        for method in ("GET", "HEAD"):
            answer = await ask(two, method, path)
            assert answer.status == 404, path
            assert b"globex" not in answer.body
    assert "initech" in (await ask(two, "GET", f"{CARD}?tenant=initech")).json["error"]


async def test_the_card_beside_tenants_is_that_of_the_agent_there(mixed):
    assert (await ask(mixed, "GET", CARD)).json["name"] == "Root"
    assert (await ask(mixed, "GET", f"{CARD}?tenant=acme")).json["name"] == "Acme"
    assert (await ask(mixed, "GET", f"{CARD}?tenant=other")).json["name"] == "Root"
    assert (await ask(mixed, "GET", f"/x{CARD}?tenant=acme")).json["name"] == "X"


async def test_the_extended_card_names_the_tenant_that_asked(two):
    for path, here in (("/", two), ("/globex", two)):
        body = call("GetExtendedAgentCard", {"tenant": "globex"})
        card = (await post(two, body, path=path)).json["result"]
        assert card["name"] == "Globex, extended"
        first = card["supportedInterfaces"][0]
        assert (first["url"], first["tenant"]) == (here, "globex")


async def test_tenants_keep_a_public_address_and_a_prefix():
    tenants = {"acme": named("Acme")}
    app = create_app({"/shop": Endpoint(tenants=tenants)}, url="https://agents.example/all")
    async with serving(app) as url:
        card = await ask(url, "GET", f"/shop/acme{CARD}")
        assert interfaces_of(card) == {("https://agents.example/all/shop", "acme")}
        card = await ask(url, "GET", f"{CARD}?assistant_id=acme")
        assert interfaces_of(card) == {("https://agents.example/all/a2a/acme", "")}
        for path in ("/shop/acme", "/a2a/acme"):
            assert text_of(await post(url, call(), path=path)) == "Acme for 'acme'"
        assert text_of(await post(url, to("acme"), path="/shop")) == "Acme for 'acme'"


# Names


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b",
        "..",
        ".well-known",
        "message:send",
        "a b",
        "ä",
        "x" * 200,
        "v1",
        "V1",
        "tasks",
        "health",
        "a2a",
        "docs",
        "openapi.json",
        "extendedAgentCard",
        "message",
        "card",
    ],
)
def test_a_tenant_has_a_name_that_can_be_a_path(name):
    with pytest.raises(ValueError, match="tenant"):
        create_app({"": Endpoint(tenants={name: named("x")})})


@pytest.mark.parametrize("name", ["acme", "Acme-2", "a.b_c~d", "0f8fad5b-d9cb-469f-a165"])
def test_what_names_a_tenant(name):
    create_app({"": Endpoint(tenants={name: named("x")})})


def test_a_path_is_an_agents_or_a_tenants():
    with pytest.raises(ValueError, match="/acme is the path of an agent and of a tenant"):
        create_app({"": Endpoint(tenants={"acme": named("x")}), "/acme": named("y")})
    with pytest.raises(ValueError, match="no agent"):
        create_app({"": Endpoint()})


# Assistants: every agent below one path, by a name


@pytest.mark.parametrize(
    ("id", "said"), [("acme", "Acme for 'acme'"), ("x", "X for ''"), ("root-key", "Root for ''")]
)
async def test_an_assistant_is_found_by_its_name(mixed, id, said):
    for path in (f"/a2a/{id}", f"/a2a/{id}/"):
        assert text_of(await post(mixed, call(), path=path)) == said
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    body = json.dumps({"message": MESSAGE}).encode()
    answer = await ask(mixed, "POST", f"/a2a/{id}/message:send", body, headers)
    assert answer.json["message"]["parts"][0]["text"] == said
    for path in (f"{CARD}?assistant_id={id}", f"/a2a/{id}{CARD}"):
        card = await ask(mixed, "GET", path)
        assert card.json["name"] == said.partition(" ")[0]
        assert interfaces_of(card) == {(f"{mixed}/a2a/{id}", "")}


async def test_the_extended_card_of_an_assistant_names_its_address(mixed):
    card = (await post(mixed, call("GetExtendedAgentCard"), path="/a2a/acme")).json["result"]
    assert card["name"] == "Acme, extended"
    first = card["supportedInterfaces"][0]
    assert (first["url"], first.get("tenant")) == (f"{mixed}/a2a/acme", None)


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
        # An agent's own page says nothing of the others.
        assert (await ask(url, "GET", f"/time{CARD}?assistant_id=a-b")).status == 404


async def test_a_path_that_was_chosen_counts_before_a_name():
    app = create_app({"/a2a/time": named("Time"), "/time": named("Other", key="key/of it")})
    async with serving(app) as url:
        assert text_of(await post(url, call(), path="/a2a/time")) == "Time for ''"
        card = await ask(url, "GET", f"{CARD}?assistant_id=key/of%20it")
        assert interfaces_of(card) == {(f"{url}/a2a/key%2Fof%20it", "")}
        assert text_of(await post(url, call(), path="/a2a/key%2Fof%20it")) == "Other for ''"


async def test_one_agent_at_the_root_is_an_assistant_too():
    async with serving(create_app({"": named("Only", key="only")})) as url:
        assert text_of(await post(url, call(), path="/a2a/only")) == "Only for ''"
        card = await ask(url, "GET", f"{CARD}?assistant_id=only")
        assert interfaces_of(card) == {(f"{url}/a2a/only", "")}
        assert (await ask(url, "GET", f"{CARD}?assistant_id=")).json["name"] == "Only"


async def test_a_task_is_looked_for_under_the_tenant():
    """What keeps tasks of tenants apart is the context: see tests/engine/test_tenants.py."""
    seen = []

    async def missing(request, context):
        seen.append((request.tenant, context.tenant))
        raise TaskNotFoundError("no such task")

    endpoint = Endpoint(Scripted(get_task=missing), card_of())
    async with serving(create_app({"": Endpoint(tenants={"acme": endpoint})})) as url:
        assert (await post(url, call("GetTask"), path="/acme")).error["code"] == -32001
        params = {"id": "t-1", "tenant": "acme"}
        assert (await post(url, call("GetTask", params))).error["code"] == -32001
    assert seen == [("acme", "acme")] * 2


# -- A tenant that a server does not know, named in every way (docs/guides/tenants.md) ---------


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
            card = json.loads(
                (await ask(url, "GET", TENANTS_CARD, b"", {"A2A-Version": "1.0"})).body
            )
            offered = card["supportedInterfaces"]
            for each in offered:
                each["tenant"] = "stranger"
            async with connect(card, binding="GRPC", version="1.0") as remote:
                if app is alone:
                    assert (await remote.send("hi")).text == "Alone for stranger"
                else:
                    with pytest.raises(InvalidParamsError, match="no tenant 'stranger'"):
                        await remote.send("hi")


TENANTS_CARD = "/.well-known/agent-card.json?tenant=acme"


async def _post(url: str, path: str, body: dict[str, Any], version: str) -> Any:
    headers = {"Content-Type": "application/json", "A2A-Version": version}
    return await ask(url, "POST", path, json.dumps(body).encode(), headers)
