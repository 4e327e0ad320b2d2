"""Hostile requests to a real server: it reports the error, and then works normally."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import logging
import random
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.faults.malformed import FULL, GOOD, LIMIT, MALFORMED, MESSAGE, WRONG, places
from tests.kit.http import JSON, WAIT, Response, ask, call, connection, post
from tests.kit.waiting import block_thread

pytestmark = pytest.mark.anyio

OPEN = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED")


@pytest.fixture(autouse=True)
def _goes_on(url: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check after every test that the server works, has no open task, and has logged no error."""
    yield
    task = answer_of(exchanged(url, posted(GOOD)))["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    deadline = time.monotonic() + 5
    while any(total(url, state) for state in OPEN):  # tasks without a waiting sender end, too
        assert time.monotonic() < deadline
        block_thread(0.01)
    records = [*caplog.get_records("call"), *caplog.records]
    assert [r.getMessage() for r in records if r.levelno >= logging.ERROR] == []


def total(url: str, state: str) -> int:
    """Return the number of tasks in a state."""
    listed = answer_of(exchanged(url, posted(call("ListTasks", {"status": state}))))["result"]
    return int(listed["totalSize"])


def exchanged(url: str, request: bytes, *, ends: bool = False) -> bytes:
    """Send bytes, and the end of the stream if ``ends``; return the whole response."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=WAIT) as sock:
        received = b""
        try:
            sock.sendall(request)
            if ends:
                with contextlib.suppress(OSError):  # the server may have closed it already
                    sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                received += piece
        except ConnectionError:  # the server closed the connection
            pass
    return received


def posted(body: bytes) -> bytes:
    """Return an HTTP request that posts a body."""
    head = "".join(f"{name}: {value}\r\n" for name, value in JSON.items())
    return f"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}".encode() + (
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )


def answer_of(received: bytes) -> Any:
    """Return the JSON of a response."""
    return json.loads(received.partition(b"\r\n\r\n")[2])


async def send(url: str, message: Any, **more: Any) -> Response:
    return await post(url, call("SendMessage", {"message": message, **more}))


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_request_is_told_what_is_wrong(url: str, what: str) -> None:
    body, code, words = MALFORMED[what]
    response = await post(url, body)
    assert response.status == 200
    assert response.error["code"] == code, response.error
    assert words in response.error["message"]
    assert response.json["id"] in (1, None)
    assert len(response.body) < 4000


@pytest.mark.parametrize(
    "token", ["?", "AAAA", "W10", "[1,2,3]", '[1,"t"]', f'[{2**70},"t",1]', f'[1,"t",{-(2**70)}]']
)
async def test_a_page_token_that_was_made_up_is_refused(url: str, token: str) -> None:
    if token.startswith("["):
        token = base64.urlsafe_b64encode(token.encode()).decode()
    response = await post(url, call("ListTasks", {"pageToken": token}))
    assert response.error["code"] == -32602
    assert "pageToken" in response.error["message"]


@pytest.mark.parametrize("method", FULL)
async def test_a_wrong_value_in_any_field_is_taken_or_refused_by_its_name(
    url: str, method: str
) -> None:
    unspoiled = (await post(url, call(method, FULL[method]))).json
    assert unspoiled.get("error", {"code": 0})["code"] in (0, -32001)
    codes = set()
    async with connection(url) as http:
        for path in places(FULL[method]):
            for wrong in WRONG:
                params = copy.deepcopy(FULL[method])
                parent = params
                for key in path[:-1]:
                    parent = parent[key]
                parent[path[-1]] = wrong
                answer = (await http.ask("POST", "/", call(method, params), JSON)).json
                code = answer.get("error", {}).get("code", 0)
                # An unknown accepted output mode counts as a mode that the agent does not produce.
                accepts = (-32005,) * ("acceptedOutputModes" in path)
                assert code in (0, -32602, -32001, *accepts), (path, wrong, answer)
                codes.add(code)
                if code == -32602:
                    named = [str(key) for key in path if isinstance(key, str)][-1]
                    assert named in json.dumps(answer["error"]), (path, wrong, answer)
    assert -32602 in codes


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, 2**64, -(2**63), 10**40])
async def test_numbers_that_javascript_does_not_have_are_kept(url: str, number: int) -> None:
    body = call("SendMessage", {"message": {**MESSAGE, "parts": [{"data": number}]}}, id=number)
    answer = (await post(url, body)).json
    assert answer["id"] == number
    assert answer["result"]["task"]["artifacts"][0]["parts"] == [{"data": number}]


async def test_members_that_come_twice_and_members_that_nobody_knows_do_no_harm(url: str) -> None:
    twice = GOOD.replace(b'"id": 1', b'"id": 1, "id": 2').replace(
        b'"role": "ROLE_USER"', b'"role": "ROLE_AGENT", "role": "ROLE_USER", "crown": true'
    )
    answer = (await post(url, twice)).json
    assert answer["id"] == 2
    assert answer["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_context_of_strange_characters_is_one_of_its_own(url: str) -> None:
    names = ["a\x01b", "a", "a\x7f", "'; DROP TABLE tasks; --", "%", "\u202e\U0001f4a9", "x" * 512]
    for name in names:
        task = (await send(url, {**MESSAGE, "contextId": name})).json["result"]["task"]
        assert task["contextId"] == name
        listed = (await post(url, call("ListTasks", {"contextId": name}))).json["result"]
        assert [found["id"] for found in listed["tasks"]] == [task["id"]]


async def test_a_task_is_not_found_in_another_context_and_not_spoken_to_after_its_end(
    url: str,
) -> None:
    asking = {**MESSAGE, "metadata": {"skill": "ask_back"}}
    parked = (await send(url, asking)).json["result"]["task"]
    other = await send(url, {**MESSAGE, "taskId": parked["id"], "contextId": "another"})
    assert other.error["code"] == -32602
    assert "contextId" in other.error["message"]
    done = (await send(url, {**MESSAGE, "taskId": parked["id"]})).json["result"]["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    for method in ("SendMessage", "SendStreamingMessage"):
        late = await post(url, call(method, {"message": {**MESSAGE, "taskId": parked["id"]}}))
        assert (late.error["code"], late.reason) == (-32004, "UNSUPPORTED_OPERATION")
        assert "ended" in late.error["message"]
    assert (await post(url, call("CancelTask", {"id": done["id"]}))).error["code"] == -32002
    assert (await post(url, call("SubscribeToTask", {"id": done["id"]}))).error["code"] == -32004


async def test_notifications_are_not_answered_whether_good_or_bad(url: str) -> None:
    for body in (
        call("SendMessage", {"message": {**MESSAGE, "contextId": "told"}}, id=...),
        call("SendMessage", {"message": 5}, id=...),
        call("Frobnicate", {}, id=...),
    ):
        response = await post(url, body)
        assert (response.status, response.body) == (204, b"")
    told = (await post(url, call("ListTasks", {"contextId": "told"}))).json["result"]
    assert told["totalSize"] == 1


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "text/plain"}, 415, -32005),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415, -32005),
        ({"Content-Type": "\xff\xfe"}, 415, -32005),
        ({"A2A-Version": "99.0"}, 200, -32009),
        ({"A2A-Version": "1.0\xff"}, 200, -32009),
        ({"A2A-Version": "9" * 5000}, 200, -32009),
        ({"A2A-Extensions": "\xff, ,,urn:nobody"}, 200, 0),
        ({"traceparent": "00-\xff"}, 200, 0),
        ({"Last-Event-ID": "\xff"}, 200, 0),
        ({"X-Forwarded-Host": "evil.example/\\"}, 200, 0),
    ],
)
async def test_strange_headers(url: str, headers: dict[str, str], status: int, code: int) -> None:
    response = await post(url, GOOD, headers)
    assert response.status == status
    assert response.json.get("error", {"code": 0})["code"] == code


@pytest.mark.parametrize("place", ["-1", "x", "1.0", "", "\xb2", "99", "9" * 50, "0x1", "1 2"])
async def test_a_place_in_a_stream_that_cannot_be_is_refused(url: str, place: str) -> None:
    task = (await send(url, MESSAGE)).json["result"]["task"]
    response = await post(
        url, call("SubscribeToTask", {"id": task["id"]}), {"Last-Event-ID": place}
    )
    assert response.error["code"] == -32602
    assert "Last-Event-ID" in response.error["message"]


async def test_bodies_that_are_too_large_are_refused_however_they_come(url: str) -> None:
    async with connection(url) as http:
        await http.request("POST", "/", headers=JSON, length=10**15)
        declared = await http.response()
    async with connection(url) as http:
        await http.request("POST", "/", headers={**JSON, "Transfer-Encoding": "chunked"})
        for _ in range(LIMIT // 20_000 + 1):
            await http.write(b"%x\r\n%b\r\n" % (20_000, b" " * 20_000))
        chunked = await http.response()
    for response in (declared, chunked):
        assert (response.status, response.error["code"]) == (413, -32600)
        assert str(LIMIT) in response.error["message"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "TRACE"])
async def test_other_methods_of_http_are_told_what_is_here(url: str, method: str) -> None:
    response = await ask(url, method, "/", headers=JSON)
    assert response.status == 405
    assert response.headers["allow"] == "POST"


async def test_requests_that_never_end_hold_up_nobody(url: str) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    partial = [b"", b"P", head[:30], head, head + b"Content-Length: 500\r\n\r\n{",
               head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel"]  # fmt: skip
    async with AsyncExitStack() as stack:
        stuck = [await stack.enter_async_context(connection(url)) for _ in range(120)]
        for n, http in enumerate(stuck):
            await http.write(partial[n % len(partial)])
        for n in range(20):
            assert "result" in (await send(url, MESSAGE)).json
            for http in stuck[1::6]:  # a byte at a time
                if n + 1 < 20:
                    await http.write(head[n + 1 : n + 2])
        for http in stuck[::2]:
            http.writer.transport.abort()


async def test_readers_that_vanish_in_the_middle_of_an_answer_do_no_harm(url: str) -> None:
    large = {**MESSAGE, "parts": [{"text": "x" * 150_000}]}
    chance = random.Random(3)
    for method in ("SendMessage", "SendStreamingMessage") * 10:
        async with connection(url) as http:
            await http.request("POST", "/", call(method, {"message": large}), JSON)
            if chance.random() < 0.7:
                await asyncio.wait_for(http.reader.read(chance.randint(1, 5000)), WAIT)
            http.writer.transport.abort()


random_examples = settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(st.binary(max_size=300))
@example(b"\x16\x03\x01\x02\x00\x01\x00")  # TLS
@example(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
@example(b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n")
@example(b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
@example(b"GET http://[::1 HTTP/1.1\r\n\r\n")
@random_examples
def test_random_bytes_are_no_request(url: str, sent: bytes) -> None:
    received = exchanged(url, sent, ends=True)
    assert received == b"" or received.startswith(b"HTTP/1.1 4")


@given(st.binary(max_size=200))
@random_examples
def test_random_bytes_are_no_body(url: str, body: bytes) -> None:
    received = exchanged(url, posted(body))
    assert answer_of(received)["error"]["code"] in (-32700, -32600)


@given(st.data())
@random_examples
def test_a_request_with_some_bytes_changed_is_answered(url: str, data: st.DataObject) -> None:
    body = bytearray(call("SendMessage", FULL["SendMessage"]))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        if data.draw(st.booleans()):
            body[place] = data.draw(st.integers(0, 255))
        else:
            del body[place : place + data.draw(st.integers(1, 30))]
    received = exchanged(url, posted(bytes(body)))
    if not received.startswith(b"HTTP/1.1 204"):
        error = answer_of(received).get("error", {"code": 0})
        assert error["code"] in (0, -32700, -32600, -32601, -32602, -32001, -32004, -32005), error
