"""Bodies, media types and envelopes, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

import parley
from parley import Settings
from parley.wire import versions
from tests.contract.agents import contract
from tests.contract.choices.conftest import only, placed
from tests.contract.choices.wire import OLD_METHODS, PATHS, Wire
from tests.kit.http import JSON, ask, call
from tests.kit.scripted_server import HI, card, scripted
from tests.kit.scripted_server import Agent as Scripted

pytestmark = pytest.mark.anyio

SEND = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "say hello"}]}


# -- rule 13 ----------------------------------------------------------------------------------


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


async def test_rule_30_the_client_writes_no_null():
    async with scripted(Scripted(HI)) as server, parley.connect(server.url, retries=0) as remote:
        await remote.send("hello")
    assert b"null" not in server.exchanges[-1].body


# -- rule 37 ----------------------------------------------------------------------------------


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


UNVERSIONED = {"Content-Type": "application/json"}
NEW = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("GRPC", "1.0")]


async def nowhere(wire: Wire, version: str | None, operation: str = "GetTask") -> Any:
    """Return the response to a request for an unknown task, sent with this version."""
    if version is None:
        del wire.headers["A2A-Version"]
        return await wire.ask(operation, task="nobody")
    return await wire.ask(operation, task="nobody", headers={"A2A-Version": version})


# -- rule 14 ----------------------------------------------------------------------------------


@only(*NEW)
@pytest.mark.parametrize("version", ["1.0", "1.0.1", " 1.0 "])
async def test_rule_14_a_version_is_major_and_minor_and_is_echoed(wire, version):
    answer = await nowhere(wire, version)
    assert answer.reason == "TASK_NOT_FOUND"
    assert answer.headers["a2a-version"] == "1.0"


@only(*NEW)
@pytest.mark.parametrize("version", [None, ""])
async def test_rule_14_what_only_1_0_has_is_refused_without_a_version_with_what_to_send(
    wire, version
):
    # The server reads GET /tasks/{id} as 0.3, because older texts print it without a version.
    answer = await nowhere(wire, version, "CancelTask")
    assert answer.reason == "VERSION_NOT_SUPPORTED"
    assert answer.metadata == {"requestedVersion": "0.3", "supportedVersions": "1.0, 0.3"}
    key = "a2a-version: 1.0" if wire.binding == "GRPC" else "A2A-Version: 1.0"
    assert key in answer.message
    if wire.binding == "JSONRPC":
        assert answer.code == -32009


@pytest.mark.parametrize("way", NEW, ids="-".join)
async def test_rule_14_a_setting_serves_it_as_1_0_instead(way):
    settings = Settings(missing_version="1.0")
    async with placed(parley.asgi(contract, settings=settings, drain=0.0)) as place:
        answer = await nowhere(Wire(place, *way), None)
        assert answer.reason == "TASK_NOT_FOUND"
        assert answer.headers["a2a-version"] == "1.0"
        # Requests of 0.3 are still served as 0.3.
        older = await nowhere(Wire(place, way[0], "0.3"), None)
        assert older.headers["a2a-version"] == "0.3"


@pytest.mark.parametrize("version", ["0.2", "1.1", "2.0", "99.0", "1", "nonsense", "1.0-beta"])
async def test_rule_14_a_version_that_is_not_spoken_is_refused_naming_those_that_are(wire, version):
    answer = await nowhere(wire, version)
    assert answer.reason == "VERSION_NOT_SUPPORTED"
    assert answer.metadata == {"requestedVersion": version, "supportedVersions": "1.0, 0.3"}
    assert "1.0, 0.3" in answer.message
    status = {"JSONRPC": 200, "HTTP+JSON": 400, "GRPC": "FAILED_PRECONDITION"}
    assert answer.status == status[wire.binding]


@pytest.mark.parametrize("name", ["A2A-Version", "a2a-version"])
async def test_rule_14_the_version_can_be_a_query_parameter_and_the_header_counts_before_it(
    url, name
):
    call = b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"nobody"}}'

    async def reasons(version: str, headers: dict[str, str]) -> list[str]:
        query = f"?{name}={version}"
        rpc = await ask(url, "POST", f"/{query}", call, {**UNVERSIONED, **headers})
        http = await ask(url, "GET", f"/tasks/nobody{query}", b"", headers)
        return [rpc.reason, http.json["error"]["details"][0]["reason"]]

    assert await reasons("1.0", {}) == ["TASK_NOT_FOUND"] * 2
    assert await reasons("9.0", {}) == ["VERSION_NOT_SUPPORTED"] * 2
    assert await reasons("9.0", {"A2A-Version": "1.0"}) == ["TASK_NOT_FOUND"] * 2


@only(("GRPC", "1.0"), ("GRPC", "0.3"))
async def test_rule_14_over_grpc_the_service_and_the_metadata_name_the_same_version(wire):
    answer = await nowhere(wire, "0.3" if wire.version == "1.0" else "1.0")
    assert answer.reason == "VERSION_NOT_SUPPORTED"
    assert f"a2a-version: {wire.version}" in answer.message


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_rule_14_the_client_names_its_version_with_every_request(place, version):
    seen: list[str] = []

    def heard(scope: Any) -> parley.Caller:
        seen.extend(v.decode() for n, v in scope["headers"] if n == b"a2a-version")
        return parley.Caller()

    async with placed(parley.asgi(contract, caller=heard, drain=0.0)) as place:
        for binding in ("JSONRPC", "HTTP+JSON", "GRPC"):
            async with parley.connect(place.url, binding=binding, version=version) as remote:
                await remote.send("say hello")
    assert seen == [version] * 3


# -- clients that know only the server's base address -----------------------------------------


async def test_json_rpc_of_0_3_is_answered_at_the_base_address_by_whoever_knows_nothing_else(url):
    """The request is a copy of the examples in older texts."""
    body = (
        b'{"jsonrpc":"2.0","id":"req-1","method":"message/send","params":{"message":{'
        b'"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text",'
        b'"text":"say hello"}]},"configuration":{"blocking":true}}}'
    )
    response = await ask(url, "POST", "/", body, UNVERSIONED)
    assert response.status == 200
    result = response.json["result"]
    made = {"messageId": result["messageId"], "contextId": result["contextId"]}
    parts = [{"kind": "text", "text": "hello"}]
    assert result == {"kind": "message", "role": "agent", "parts": parts, **made}
    assert response.json == {"jsonrpc": "2.0", "id": "req-1", "result": result}


# -- names of older texts ---------------------------------------------------------------------


def older(text: str, **more: Any) -> dict[str, Any]:
    """Parameters as older texts print them."""
    return {"message": {"role": "user", "parts": [{"type": "text", "text": text}]}, **more}


def test_no_method_of_one_version_is_one_of_another():
    """The method name alone therefore tells the version of a request."""
    new, old = (versions.dialect(version).jsonrpc.methods for version in ("1.0", "0.3"))
    assert set(new) >= set(PATHS)
    assert set(old) >= {*OLD_METHODS.values(), "tasks/send", "tasks/sendSubscribe"}
    assert not set(new) & set(old)
