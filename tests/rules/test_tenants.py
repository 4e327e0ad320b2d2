"""Tenants: where a request goes, and what nobody else sees of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import parley
from tests.contract.agents import contract, plain, who
from tests.kit.http import ask, call, post
from tests.kit.scripted_server import card, scripted
from tests.kit.scripted_server import task as task_json
from tests.rules.conftest import placed
from tests.rules.told import words_of
from tests.rules.wire import Place, Wire

pytestmark = pytest.mark.anyio

NEW = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("GRPC", "1.0")]


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Place]:
    """The address that two agents of three tenants share."""
    tenants = {"acme": contract, "globex": contract, "initech": plain}
    app = parley.asgi(tenants=tenants, caller=who, drain=0.0)
    async with placed(app) as place:
        yield place


class Tenant(Wire):
    """A caller that names a tenant in everything that it asks for."""

    name = ""

    def sending(self, said: Any, **more: Any) -> dict[str, Any]:
        return {**super().sending(said, **more), "tenant": self.name}

    async def ask(self, operation: str, members: Any = None, **more: Any) -> Any:
        return await super().ask(operation, {"tenant": self.name, **(members or {})}, **more)


@pytest.fixture(params=NEW, ids="-".join)
def tenant(request: pytest.FixtureRequest, shared: Place) -> Any:
    """What makes callers of tenants, in each binding of the version that has tenants."""

    def of(name: str) -> Tenant:
        wire = Tenant(shared, *request.param)
        wire.name = name
        return wire

    return of


async def test_rule_15_a_request_goes_where_its_tenant_says(tenant):
    assert words_of((await tenant("acme").send("say hello")).result) == "hello"
    assert words_of((await tenant("initech").send("say hello")).result) == "mhm"
    for name in ("", "nobody"):
        refused = await tenant(name).send("say hello")
        assert refused.reason == "INVALID_PARAMS"
        assert refused.fields == ("tenant",)
        assert "acme" not in refused.message  # which there are is nobody's business


async def test_rule_15_tenants_see_nothing_of_each_other_though_one_agent_works_for_both(tenant):
    acme, globex = tenant("acme"), tenant("globex")
    task = await acme.task("ask please", contextId="shared")
    for asked in (
        globex.ask("GetTask", task=task["id"]),
        globex.ask("CancelTask", task=task["id"]),
        globex.send("large", taskId=task["id"]),
        globex.ask("ListTaskPushNotificationConfigs", task=task["id"]),
    ):
        assert (await asked).reason == "TASK_NOT_FOUND"
    listed = await globex.ask("ListTasks", {"contextId": "shared"})
    assert task["id"] not in str(listed.result)
    listed = await acme.ask("ListTasks", {"contextId": "shared"})
    assert task["id"] in str(listed.result)


async def test_rule_15_a_tenant_is_not_a_permission(tenant):
    """Who names somebody else's tenant finds nothing there but what is their own."""
    acme = tenant("acme")
    task = await acme.task("ask please")
    acme.headers["x-user"] = "eve"
    assert (await acme.ask("GetTask", task=task["id"])).reason == "TASK_NOT_FOUND"


async def test_rule_15_the_client_sends_the_tenant_of_the_interface_that_it_calls():
    seen = []

    async def agent(exchange):
        seen.append((exchange.target, exchange.body and exchange.call["params"].get("tenant")))
        await exchange.json(
            {"jsonrpc": "2.0", "id": exchange.call["id"], "result": task_json()}
            if exchange.body
            else task_json()
        )

    async with scripted(agent) as server:
        for binding in ("JSONRPC", "HTTP+JSON"):
            interface = {"url": server.url, "protocolBinding": binding, "protocolVersion": "1.0"}
            offered = [{**interface, "tenant": "acme"}]
            reference = card("", supportedInterfaces=offered)
            async with parley.connect(reference, retries=0) as remote:
                await remote.get("t-1")
    assert seen == [("/", "acme"), ("/acme/tasks/t-1", b"")]


async def test_agents_are_found_by_an_assistants_id(shared):
    response = await ask(shared.url, "GET", "/.well-known/agent-card.json?assistant_id=initech")
    assert response.json["name"] == "Plain agent"
    (first, *_) = response.json["supportedInterfaces"]
    assert first["url"].endswith("/a2a/initech")
    answer = await post(shared.url, call(), path="/a2a/initech")
    assert words_of(answer.json["result"]["message"]) == "mhm"
    missing = await ask(shared.url, "GET", "/.well-known/agent-card.json?assistant_id=nobody")
    assert missing.status == 404
