"""Bodies, media types and envelopes, to the byte."""

from __future__ import annotations

import json

import pytest

import parley
from tests.kit.http import JSON, ask, call, post
from tests.kit.scripted_server import HI, card, scripted
from tests.kit.scripted_server import Agent as Scripted
from tests.rules.conftest import only
from tests.rules.told import state_of

pytestmark = pytest.mark.anyio

SEND = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "say hello"}]}


# -- rule 13 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", ["application/a2a+json", "application/json; charset=utf-8"])
async def test_rule_13_both_media_types_are_taken_and_what_was_sent_is_answered(http, sent):
    headers = {"Content-Type": sent}
    answer = await http.ask("SendMessage", {"message": SEND}, headers=headers)
    answered = sent.partition(";")[0]
    assert (answer.status, answer.headers["content-type"]) == (200, answered)
    refused = await http.ask("CancelTask", task="nobody", headers=headers)
    assert (refused.status, refused.headers["content-type"]) == (404, answered)


async def test_rule_13_who_says_nothing_is_answered_with_the_protocols_own(http, url):
    for path, status in (("/tasks", 200), ("/tasks/nobody", 404)):
        answer = await ask(url, "GET", path, b"", http.headers)
        assert (answer.status, answer.headers["content-type"]) == (status, "application/a2a+json")


@pytest.mark.parametrize("answered", ["application/a2a+json", "application/json"])
async def test_rule_13_the_client_sends_its_own_and_takes_both(answered):
    async def agent(exchange):
        await exchange.body_of(json.dumps(HI).encode(), 200, content_type=answered)

    async with scripted(agent) as server:
        interface = {"url": server.url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
        reference = card(server.url, supportedInterfaces=[interface])
        async with parley.connect(reference, retries=0) as remote:
            assert (await remote.send("hello")).text == "hi"
    (exchange,) = server.exchanges
    assert exchange.headers["content-type"] == "application/a2a+json"
    assert {"application/a2a+json", "application/json"} <= {
        each.strip() for each in exchange.headers["accept"].split(",")
    }


# -- rule 30 ----------------------------------------------------------------------------------


@only(("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"))
async def test_rule_30_nothing_that_is_not_there_is_written_as_null(wire):
    task = await wire.task("work please")
    answers = [
        await wire.ask("GetTask", task=task["id"]),
        await wire.ask("GetTask", task="nobody"),
        await wire.send("say hello"),
        await wire.ask("GetExtendedAgentCard"),
        await wire.ask("ListTaskPushNotificationConfigs", task=task["id"]),
    ]
    for answer in answers:
        assert b"null" not in answer.body
    async with wire.streaming("whole please") as events:
        told = [event.value for event in await events.rest() if event.kind != "artifactUpdate"]
    assert "null" not in json.dumps(told)


async def test_rule_30_the_client_writes_no_null():
    async with scripted(Scripted(HI)) as server, parley.connect(server.url, retries=0) as remote:
        await remote.send("hello")
    assert b"null" not in server.exchanges[-1].body


# -- rule 37 ----------------------------------------------------------------------------------


async def test_rule_37_a_notification_is_done_and_not_answered(url, rpc):
    task = await rpc.task("ask please")
    for params in ({"id": task["id"]}, {"id": "nobody"}):
        response = await post(url, call("CancelTask", params, id=...), rpc.headers)
        assert (response.status, response.body) == (204, b"")
    assert state_of(await rpc.get(task["id"])) == "canceled"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"parts": [{"raw": "not base64!"}]}, "message.parts[0].raw"),
        ({"parts": []}, "message.parts"),
        ({"parts": [{}]}, "message.parts[0]"),
        ({"parts": [{"text": "a", "url": "b"}]}, "message.parts[0]"),
        ({"role": "ROLE_NOBODY"}, "message.role"),
        ({"messageId": 7}, "message.messageId"),
        ({"metadata": []}, "message.metadata"),
    ],
)
async def test_rule_37_what_is_no_message_is_refused_with_the_field_that_is_wrong(
    rpc, http, wrong, field
):
    for wire in (rpc, http):
        refused = await wire.ask("SendMessage", {"message": {**SEND, **wrong}})
        assert refused.reason == "INVALID_PARAMS"
        assert refused.code == (-32602 if wire is rpc else 400)
        assert refused.fields == (field,)


# -- rule 39 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/"])
async def test_rule_39_json_rpc_is_taken_with_and_without_a_slash_and_nobody_is_sent_on(path):
    from parley import asgi
    from parley.server.run import serving
    from tests.contract.agents import contract

    async with serving(asgi({"/here": contract}, drain=0.0)) as url:
        response = await ask(url, "POST", f"/here{path}", call(params={"message": SEND}), JSON)
    assert response.status == 200
    assert response.json["result"]["message"]["parts"] == [{"text": "hello"}]
