"""Which version a request is of, and what older texts and older clients send."""

from __future__ import annotations

import json
from typing import Any

import pytest

import parley
from parley import Settings
from parley.wire import versions
from tests.contract.agents import contract
from tests.kit.http import ask, connection, data_of
from tests.rules.conftest import only, placed
from tests.rules.told import state_of
from tests.rules.wire import OLD_METHODS, PATHS, Wire

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}
NEW = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("GRPC", "1.0")]
OLD = [("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"), ("GRPC", "0.3")]


async def nowhere(wire: Wire, version: str | None, operation: str = "GetTask") -> Any:
    """The answer to a question for a task that there is not, in the name of a version."""
    if version is None:
        del wire.headers["A2A-Version"]
        return await wire.ask(operation, task="nobody")
    return await wire.ask(operation, task="nobody", headers={"A2A-Version": version})


# -- rule 14 ----------------------------------------------------------------------------------


@only(*OLD)
@pytest.mark.parametrize("version", [None, "", " ", "0.3", "0.3.0", "0.3.7"])
async def test_rule_14_what_names_no_version_is_of_0_3_and_the_patch_does_not_matter(wire, version):
    answer = await nowhere(wire, version)
    assert answer.reason == "TASK_NOT_FOUND"
    assert answer.headers["a2a-version"] == "0.3"


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
    # GET /tasks/{id} is answered as 0.3, because older texts print it with no version.
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
        # What is of 0.3 is still that.
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
        rpc = await ask(url, "POST", f"/{query}", call, {**JSON, **headers})
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


# -- clients that know nothing but an address -------------------------------------------------


async def test_json_rpc_of_0_3_is_answered_at_the_base_address_by_whoever_knows_nothing_else(url):
    """As the examples of older texts have it, byte for byte."""
    body = (
        b'{"jsonrpc":"2.0","id":"req-1","method":"message/send","params":{"message":{'
        b'"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text",'
        b'"text":"say hello"}]},"configuration":{"blocking":true}}}'
    )
    response = await ask(url, "POST", "/", body, JSON)
    assert response.status == 200
    result = response.json["result"]
    made = {"messageId": result["messageId"], "contextId": result["contextId"]}
    parts = [{"kind": "text", "text": "hello"}]
    assert result == {"kind": "message", "role": "agent", "parts": parts, **made}
    assert response.json == {"jsonrpc": "2.0", "id": "req-1", "result": result}


# -- names of older texts ---------------------------------------------------------------------


async def rpc_of(url: str, method: str, params: Any) -> Any:
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    response = await ask(url, "POST", "/", json.dumps(call).encode(), JSON)
    assert response.headers["a2a-version"] == "0.3"
    return response.json


def older(text: str, **more: Any) -> dict[str, Any]:
    """Parameters as older texts have them."""
    return {"message": {"role": "user", "parts": [{"type": "text", "text": text}]}, **more}


async def frames(url: str, verb: str, path: str, body: bytes) -> list[Any]:
    async with connection(url) as http:
        await http.request(verb, path, body, JSON)
        status, headers = await http.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        return [data_of(frame) async for frame in http.frames()]


async def test_post_tasks_cancel_and_get_tasks_subscribe_are_paths_of_0_3(url):
    task = (await rpc_of(url, "tasks/send", older("auth please")))["result"]
    async with connection(url) as http:
        await http.request("GET", f"/tasks/{task['id']}/subscribe")
        status, headers = await http.head()
        assert (status, headers["a2a-version"]) == (200, "0.3")
        assert data_of(await anext(http.frames()))["task"]["id"] == task["id"]
    response = await ask(url, "POST", f"/tasks/{task['id']}/cancel", b"", {})
    assert (response.status, response.headers["a2a-version"]) == (200, "0.3")
    assert state_of(response.json) == "canceled"


async def test_an_alias_is_of_no_other_version(url):
    for path in ("/tasks/send", "/tasks/t/cancel"):
        response = await ask(url, "POST", path, b"{}", {**JSON, "A2A-Version": "1.0"})
        assert response.json["code"] == -32009
    call = b'{"jsonrpc":"2.0","id":1,"method":"tasks/send","params":{}}'
    response = await ask(url, "POST", "/", call, {**JSON, "A2A-Version": "1.0"})
    assert response.error["code"] == -32601


def test_no_method_of_one_version_is_one_of_another():
    """So what a request asks for says which version it is of, where it says nothing else."""
    new, old = (versions.dialect(version).jsonrpc.methods for version in ("1.0", "0.3"))
    assert set(new) >= set(PATHS)
    assert set(old) >= {*OLD_METHODS.values(), "tasks/send", "tasks/sendSubscribe"}
    assert not set(new) & set(old)
