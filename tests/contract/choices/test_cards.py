"""The agent card: its address, its content and its format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import parley
from parley import Settings
from parley.client.card.interface import choose
from parley.client.card.resolver import read_card
from parley.model.cards import (
    AgentCard,
    AgentCardSignature,
    AgentInterface,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from parley.model.errors import PushNotificationNotSupportedError, UnsupportedOperationError
from parley.security.key_sets import KeySet, read_keys
from parley.security.signing.cards import verify
from parley.security.signing.keys import SigningKeys, new_key_set, write_key_set
from parley.server.app import create_app
from parley.server.endpoint import Endpoint
from parley.server.run import serving
from tests.contract.agents import STRICT, contract, plain, strict, who
from tests.contract.choices.conftest import placed
from tests.contract.choices.told import words_of
from tests.contract.choices.wire import Place, Wire
from tests.kit.http import ask, call, post
from tests.kit.scripted import Scripted as Service
from tests.kit.scripted import card_of
from tests.kit.scripted_server import Agent as Scripted
from tests.kit.scripted_server import card, scripted, talk
from tests.kit.scripted_server import task as task_json
from tests.kit.servers import WAYS

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"
OLD_MEMBERS = {"url", "preferredTransport", "protocolVersion", "additionalInterfaces"}


async def card_at(url: str, path: str = CARD, **headers: str) -> dict[str, Any]:
    response = await ask(url, "GET", path, b"", headers)
    assert response.status == 200
    made: dict[str, Any] = response.json
    return made


# -- rule 5 -----------------------------------------------------------------------------------


async def test_rule_5_a_card_is_signed_in_each_form_that_verifiers_read():
    keys = SigningKeys.parse(write_key_set(new_key_set(["ES256"], now=0)))
    settings = Settings(allowed_hosts=("*",))
    app = parley.asgi(plain, settings=settings, url="https://agents.example", signing_keys=keys)
    async with serving(app) as url:
        merged = (await ask(url, "GET", CARD)).body
    verdict = verify(merged, KeySet(read_keys(keys.published)))
    assert [each.form for each in verdict.signatures] == ["exact", "received"]  # stripped is exact


async def test_rule_5_a_card_with_signatures_of_its_own_is_served_as_the_card_of_1_0_alone():
    signature = AgentCardSignature(protected="e30", signature="c2ln")

    def signed(interfaces: tuple[AgentInterface, ...]) -> AgentCard:
        return msgspec.structs.replace(card_of()(interfaces), signatures=(signature,))

    async with serving(create_app({"": Endpoint(Service(), signed)})) as url:
        assert is_exact(await card_at(url))
        assert "signatures" in await card_at(url)
        assert "signatures" not in await card_at(url, **{"A2A-Version": "0.3"})


# -- rule 17 ----------------------------------------------------------------------------------


def guarded(interfaces: tuple[AgentInterface, ...]) -> AgentCard:
    """An agent whose card declares a bearer token with scopes."""
    bearer = HTTPAuthSecurityScheme(scheme="Bearer")
    return msgspec.structs.replace(
        card_of()(interfaces),
        security_schemes={"b": SecurityScheme(http_auth_security_scheme=bearer)},
        security_requirements=(SecurityRequirement(schemes={"b": StringList(list=("read",))}),),
    )


async def test_rule_17_security_is_said_as_each_version_says_it():
    new, old = [{"schemes": {"b": {"list": ["read"]}}}], [{"b": ["read"]}]
    async with serving(create_app({"": Endpoint(Service(), guarded)})) as url:
        exact = await card_at(url, **{"A2A-Version": "1.0"})
        assert exact["securityRequirements"] == new
        assert "security" not in exact
        older = await card_at(url, **{"A2A-Version": "0.3"})
        assert older["security"] == old
        assert "securityRequirements" not in older
        assert older["securitySchemes"] == {"b": {"type": "http", "scheme": "Bearer"}}
        merged = await card_at(url)
        assert (merged["securityRequirements"], merged["security"]) == (new, old)


@pytest.mark.parametrize("security", [[{"b": ["read"]}], [{"schemes": {"b": {"list": ["read"]}}}]])
def test_rule_17_the_client_reads_both_shapes_on_a_card_of_0_3(security):
    members = {"name": "A", "description": "A", "version": "1", "url": "http://a.example"}
    schemes = {"b": {"type": "http", "scheme": "Bearer"}}
    modes = {"defaultInputModes": [], "defaultOutputModes": []}
    given = {**members, **modes, "capabilities": {}, "skills": [], "securitySchemes": schemes}
    read = read_card(json.dumps({**given, "security": security}).encode(), "the card")
    (need,) = read.security_requirements
    assert need.schemes == {"b": StringList(list=("read",))}


# -- rule 18 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["", "1.0", "0.3"])
async def test_rule_18_grpc_is_on_no_card_where_it_is_left_off(version):
    settings = Settings(grpc_on_card=False)
    async with placed(parley.asgi(plain, drain=0.0, settings=settings)) as place:
        made = await card_at(place.url, **({"A2A-Version": version} if version else {}))
        assert made["name"]
        assert "GRPC" not in json.dumps(made)
        known = {**GRPC, "url": place.grpc}
        reference = card("", supportedInterfaces=[known])
        async with parley.connect(reference, retries=0) as remote:
            assert (await remote.send("hello")).text == "mhm"


GRPC = {"protocolBinding": "GRPC", "protocolVersion": "1.0"}


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/"])
async def test_rule_18_the_client_takes_an_address_with_and_without_a_scheme(place, form):
    interface = {**GRPC, "url": form.format(place.grpc)}
    reference = card("", supportedInterfaces=[interface])
    async with parley.connect(reference, retries=0) as remote:
        assert (await remote.send("say hello")).text == "hello"


# -- rule 26 ----------------------------------------------------------------------------------


async def test_rule_26_a_domain_with_several_agents_has_the_card_of_each_below_its_path():
    async with serving(parley.asgi({"/a": contract, "/b": plain}, drain=0.0)) as url:
        names = [(await card_at(url, f"{path}{CARD}"))["name"] for path in ("/a", "/b")]
    assert names == ["Contract agent", "Plain agent"]


# -- rule 41 ----------------------------------------------------------------------------------


def is_exact(made: dict[str, Any]) -> bool:
    return "supportedInterfaces" in made and not OLD_MEMBERS & made.keys()


async def test_rule_41_a_server_can_be_told_to_have_exact_cards_alone():
    async with serving(parley.asgi(contract, settings=Settings(card="1.0"), drain=0.0)) as url:
        assert is_exact(await card_at(url))
        assert (await card_at(url, **{"A2A-Version": "0.3"})).keys() >= OLD_MEMBERS


async def test_rule_41_the_client_takes_a_merged_card_for_one_of_1_0(place):
    merged = (await ask(place.url, "GET", CARD)).body
    offered = choose(read_card(merged, "the card")).candidates
    assert [(each.binding, each.version) for each in offered] == WAYS


async def test_webhooks_are_refused_where_the_card_does_not_declare_them(way):
    async with placed(parley.asgi(plain, drain=0.0)) as place:
        wire = Wire(place, *way)
        url = "https://hooks.example.com"
        config = "taskPushNotificationConfig"
        if wire.is_old:
            config = "pushNotification" if wire.is_proto else "pushNotificationConfig"
        refusals = [
            await wire.ask(
                "CreateTaskPushNotificationConfig", wire.webhook(url), task="t", config="c"
            ),
            await wire.ask("GetTaskPushNotificationConfig", task="t", config="c"),
            await wire.ask("ListTaskPushNotificationConfigs", task="t"),
            await wire.ask("DeleteTaskPushNotificationConfig", task="t", config="c"),
            await wire.send("hello", configuration={config: wire.config(url)}),
        ]
    assert {refusal.reason for refusal in refusals} == {"PUSH_NOTIFICATION_NOT_SUPPORTED"}
    # The error names the field as the request spells it.
    assert refusals[-1].message.endswith(f"leave out configuration.{config}")


PUSHES = ("Create", "Get", "List", "Delete")


async def test_what_needs_a_capability_is_named_as_its_version_has_it(way):
    in_json = {"Create": "set", "Get": "get", "List": "list", "Delete": "delete"}
    async with placed(parley.asgi(plain, drain=0.0)) as place:
        wire = Wire(place, *way)
        for verb in PUSHES:
            name = f"{verb}TaskPushNotificationConfig{'s' * (verb == 'List')}"
            given = [wire.webhook("https://a.example")] if verb == "Create" else []
            config = "" if verb == "List" else "c"
            answer = await wire.ask(name, *given, task="t", config=config)
            if wire.is_old:
                name = f"tasks/pushNotificationConfig/{in_json[verb]}"
                name = f"{verb}TaskPushNotificationConfig" if wire.is_proto else name
            assert answer.message.startswith(f"{name} needs capabilities.pushNotifications,")
        refused = await wire.ask("GetExtendedAgentCard")
    name, field = "GetExtendedAgentCard", "capabilities.extendedAgentCard"
    if wire.is_old:
        name = "GetAgentCard" if wire.is_proto else "agent/getAuthenticatedExtendedCard"
        field = "supportsAuthenticatedExtendedCard"
    assert refused.message.startswith(f"{name} needs {field},")
    assert refused.reason == "UNSUPPORTED_OPERATION"


async def test_a_required_extension_is_asked_for_or_nothing_is_done(way):
    async with placed(parley.asgi(strict, drain=0.0)) as place:
        wire = Wire(place, *way)
        refused = await wire.send("hello")
        assert refused.reason == "EXTENSION_SUPPORT_REQUIRED"
        assert STRICT in refused.message
        wire.headers["A2A-Extensions"] = f"urn:example:unknown:v9, {STRICT}"
        answer = await wire.send("hello")
        assert words_of(answer.result) == STRICT
        # The response echoes the active extensions and ignores unknown ones.
        header = "x-a2a-extensions" if wire.is_old else "a2a-extensions"
        assert answer.headers[header] == STRICT


async def test_the_client_does_not_ask_for_what_the_card_does_not_declare():
    capabilities = {"streaming": True, "pushNotifications": False, "extendedAgentCard": False}
    agent = Scripted({}, capabilities=capabilities)
    async with talk(agent) as (remote, server):
        with pytest.raises(PushNotificationNotSupportedError):
            await remote.push.create("t", "https://hooks.example.com")
        with pytest.raises(PushNotificationNotSupportedError):
            await remote.send("hello", push="https://hooks.example.com")
        with pytest.raises(UnsupportedOperationError):
            await remote.extended_card()
        assert server.calls == []


async def test_the_client_does_not_subscribe_where_the_card_does_not_declare_streams():
    agent = Scripted({}, capabilities={"streaming": False})
    async with talk(agent) as (remote, server):
        with pytest.raises(UnsupportedOperationError):
            [event async for event in remote.subscribe("t")]
        assert server.calls == []


NEW = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("GRPC", "1.0")]


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Place]:
    """The address of a server with three tenants; two tenants share an agent."""
    tenants = {"acme": contract, "globex": contract, "initech": plain}
    app = parley.asgi(tenants=tenants, caller=who, drain=0.0)
    async with placed(app) as place:
        yield place


class Tenant(Wire):
    """A caller that sends its tenant with every request."""

    name = ""

    def sending(self, said: Any, **more: Any) -> dict[str, Any]:
        return {**super().sending(said, **more), "tenant": self.name}

    async def ask(self, operation: str, members: Any = None, **more: Any) -> Any:
        return await super().ask(operation, {"tenant": self.name, **(members or {})}, **more)


@pytest.fixture(params=NEW, ids="-".join)
def tenant(request: pytest.FixtureRequest, shared: Place) -> Any:
    """A maker of callers for a tenant, in each binding of version 1.0."""

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
        assert "acme" not in refused.message  # the error must not disclose other tenants


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
    """A caller who names another caller's tenant still sees only their own tasks."""
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
