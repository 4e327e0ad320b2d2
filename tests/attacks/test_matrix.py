"""Every scheme, over every binding and version, with every wrong credential.

Each operation is rejected with a challenge, and no code of the agent runs.
"""

from __future__ import annotations

from typing import Any

import aiohttp
import grpc
import pytest

from parley.client.remote_agent import RemoteAgent
from parley.extensions import SEARCH, SearchTasksRequest, TaskSearch
from parley.model.errors import A2AError, UnauthenticatedError
from parley.testing import Issuer
from tests.attacks.conftest import Vault
from tests.attacks.guards import GUARDS
from tests.contract.conftest import Speech, reach
from tests.contract.test_credentials import REQUESTS
from tests.contract.test_errors import refused
from tests.kit.http import JSON, connection
from tests.kit.servers import grpc_of

pytestmark = pytest.mark.anyio

CASES = [(name, wrong) for name, guard in GUARDS.items() for wrong in guard.refused]
GET_TASK = {
    "1.0": ("/lf.a2a.v1.A2AService/GetTask", b"\x12\x03any"),
    "0.3": ("/a2a.v1.A2AService/GetTask", b"\x0a\x09tasks/any"),
}
FILES = (("POST", "/files"), ("GET", "/files/any"), ("HEAD", "/files/any"))


def offered(speech: Speech) -> dict[str, Any]:
    """Return a request for each operation of a version."""
    return {
        name: request
        for name, request in REQUESTS.items()
        if not (speech.is_old and name == "ListTasks")
    }


async def challenged(url: str, headers: Any, speech: Speech) -> tuple[Any, str]:
    """Return the status and the challenges of the response to a request with these headers."""
    if speech.binding == "GRPC":
        target = (await grpc_of(url))[0]
        method, request = GET_TASK[speech.version]
        async with grpc.aio.insecure_channel(target.split("//")[-1]) as channel:
            metadata = [*headers.items(), ("a2a-version", speech.version)]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(method)(request, metadata=metadata, timeout=10)
            trailing = caught.value.trailing_metadata() or ()
            told = [str(value) for name, value in trailing if name == "www-authenticate"]
            return caught.value.code(), ", ".join(told)
    headers = {**headers, "A2A-Version": speech.version}
    async with aiohttp.ClientSession(headers=headers) as http:
        if speech.binding == "JSONRPC":
            method = "tasks/get" if speech.is_old else "GetTask"
            call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "any"}}
            asked = http.post(url, json=call)
        else:
            asked = http.get(f"{url}{'/v1' if speech.is_old else ''}/tasks/any")
        async with asked as answer:
            return answer.status, ", ".join(answer.headers.getall("www-authenticate", ()))


@pytest.mark.parametrize(("name", "wrong"), CASES, ids=str)
async def test_wrong_credentials_reach_nothing(
    vaults: dict[str, Vault], issuer: Issuer, speech: Speech, name: str, wrong: str
) -> None:
    url, counts = vaults[name]
    headers = GUARDS[name].refused[wrong](issuer)
    before = counts.runs
    status, challenges = await challenged(url, headers, speech)
    assert status == (grpc.StatusCode.UNAUTHENTICATED if speech.binding == "GRPC" else 401)
    assert GUARDS[name].challenge in challenges
    async with reach([url], speech, headers=headers, extensions=[TaskSearch()]) as remote:
        for operation, request in offered(speech).items():
            error = await refused(remote, operation, request)
            assert isinstance(error, UnauthenticatedError), operation
        await search_is_refused(remote, speech)
    assert counts.runs == before


async def search_is_refused(remote: RemoteAgent, speech: Speech) -> None:
    """Check that the search extension's method is rejected, where the binding has one."""
    if not speech.is_old and speech.binding != "GRPC":
        with pytest.raises(A2AError) as caught:
            await remote.call(SEARCH, SearchTasksRequest())
        assert isinstance(caught.value, UnauthenticatedError)


@pytest.mark.parametrize(("name", "wrong"), CASES, ids=str)
async def test_wrong_credentials_reach_no_files(
    vaults: dict[str, Vault], issuer: Issuer, name: str, wrong: str
) -> None:
    url, counts = vaults[name]
    before = counts.runs
    async with aiohttp.ClientSession(headers=GUARDS[name].refused[wrong](issuer)) as http:
        for verb, path in FILES:
            async with http.request(verb, url + path, json={"size": 9}) as answer:
                assert answer.status == 401, (verb, path)
                assert GUARDS[name].challenge in ", ".join(
                    answer.headers.getall("www-authenticate", ())
                )
    assert counts.runs == before


@pytest.mark.parametrize("name", GUARDS)
async def test_the_right_credentials_are_let_in(
    vaults: dict[str, Vault], issuer: Issuer, speech: Speech, name: str
) -> None:
    url, counts = vaults[name]
    before = counts.runs
    async with reach([url], speech, headers=GUARDS[name].valid(issuer)) as remote:
        assert (await remote.send("hi")).text == "ada: hi"
    assert counts.runs > before


@pytest.mark.parametrize("path", ["/", "/message:send", "/v1/message:send", "/files"])
async def test_the_body_of_a_stranger_is_not_read(vaults: dict[str, Vault], path: str) -> None:
    """The response arrives although the client sends none of the announced bytes."""
    async with connection(vaults["openid"].url) as http:
        await http.request("POST", path, headers=JSON, length=10_000)
        answer = await http.response()
    assert answer.status == 401
    assert "Bearer" in answer.headers["www-authenticate"]
