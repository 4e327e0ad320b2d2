"""What a card declares is what can be done, on both sides of the line."""

from __future__ import annotations

import pytest

import parley
from parley.model.errors import PushNotificationNotSupportedError, UnsupportedOperationError
from parley.server.app import create_app
from parley.server.endpoint import Endpoint
from tests.contract.agents import STRICT, plain, strict
from tests.kit.scripted import Scripted as Service
from tests.kit.scripted import card_of
from tests.kit.scripted_server import Agent as Scripted
from tests.kit.scripted_server import talk
from tests.rules.conftest import placed
from tests.rules.told import words_of
from tests.rules.wire import Wire

pytestmark = pytest.mark.anyio


async def test_streams_are_refused_where_the_card_does_not_declare_them(way):
    card = card_of(streaming=False)
    service = Service()
    async with placed(create_app({"": Endpoint(service, card)})) as place:
        wire = Wire(place, *way)
        for stream in (wire.streaming("hello"), wire.subscribing("t-1")):
            async with stream as events:
                assert events.refusal is not None
                assert events.refusal.reason == "UNSUPPORTED_OPERATION"
    assert service.asked == []


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
    # What to leave out has the name that it has in the request.
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
        # Those in force are echoed; what is unknown is passed over.
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


async def test_what_content_is_supported_is_said_when_some_is_not(wire):
    picture = [{"text": "words please"}, {"url": "https://x.example/a", "mediaType": "image/png"}]
    refused = await wire.send(picture)
    assert refused.reason == "CONTENT_TYPE_NOT_SUPPORTED"
    assert refused.metadata == {"mediaType": "image/png", "supported": "text/plain"}
    parts = "message.content" if wire.is_proto else "message.parts"
    assert refused.message.startswith(f"{parts}[1] is image/png; ")
    assert "text/plain" in refused.message


async def test_what_is_given_is_said_when_the_caller_takes_none_of_it(wire):
    wanted = {"acceptedOutputModes": ["image/png", "video/*"]}
    refused = await wire.send("work please", configuration=wanted)
    assert refused.reason == "CONTENT_TYPE_NOT_SUPPORTED"
    assert refused.metadata == {"supported": "text/plain"}
    taken = await wire.send("work please", configuration={"acceptedOutputModes": ["text/*"]})
    assert not taken.is_refused
