"""Hostile requests to the paths of HTTP+JSON, of either version: the server only rejects them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.faults.malformed import LIMIT, MESSAGE, WRONG, places
from tests.faults.test_hostile import answer_of, exchanged
from tests.kit.http import Response, ask, connection

pytestmark = pytest.mark.anyio

VERSIONS = ("1.0", "0.3")
PATHS = {"1.0": "/message:send", "0.3": "/v1/message:send"}
BODIES: dict[str, dict[str, Any]] = {
    "1.0": {"message": MESSAGE},
    "0.3": {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hello"}]}},
}
GOOD = {version: json.dumps(body).encode() for version, body in BODIES.items()}
MANY = ",".join(['{"text":""}'] * 1001)
FIELDS = {"1.0": "parts", "0.3": "content"}


@pytest.fixture(autouse=True)
def _goes_on(url: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check after every test that the server works in either version, and has logged no error."""
    yield
    for version in VERSIONS:
        task = answer_of(exchanged(url, posted(version, GOOD[version])))["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    records = [*caplog.get_records("call"), *caplog.records]
    assert [r.getMessage() for r in records if r.levelno >= logging.ERROR] == []


def head(version: str, *more: str, path: str = "", verb: str = "POST") -> bytes:
    """Return the head of a request, without the empty line after it."""
    lines = [
        f"{verb} {path or PATHS[version]} HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        "Content-Type: application/json",
        f"A2A-Version: {version}",
        *more,
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n"


def posted(version: str, body: bytes) -> bytes:
    return head(version, f"Content-Length: {len(body)}") + b"\r\n" + body


async def send(
    url: str, version: str, body: bytes, headers: dict[str, str] | None = None
) -> Response:
    given = {"Content-Type": "application/json", "A2A-Version": version, **(headers or {})}
    return await ask(url, "POST", PATHS[version], body, given)


def with_parts(version: str, parts: str) -> bytes:
    """Return a request with this JSON for the parts of its message."""
    message = {**BODIES[version]["message"], FIELDS[version]: "@"}
    return json.dumps({"message": message}).replace('"@"', parts).encode()


def malformed(version: str) -> dict[str, tuple[bytes, str]]:
    good = GOOD[version]
    return {
        "nothing": (b"", "message"),
        "words": (b"hello", "JSON"),
        "invalid UTF-8": (good.replace(b"hello", b"h\xffllo"), "UTF-8"),
        "overlong UTF-8": (good.replace(b"hello", b"\xc0\xaf"), "UTF-8"),
        "UTF-16": (good.decode().encode("utf-16"), "UTF-8"),
        "half a surrogate pair": (good.replace(b"hello", b"\\ud800"), "surrogate"),
        "cut off": (good[:-2], "ends too early"),
        "two requests": (good * 2, "JSON"),
        "a list": (b"[%b]" % good, "object"),
        "null": (b"null", "message"),
        "NaN": (with_parts(version, '[{"data":{"data":NaN}}]'), "JSON"),
        "a number too large": (with_parts(version, '[{"data":{"data":{"a":1e400}}}]'), "too large"),
        "nested too deeply": (with_parts(version, "[" * 150 + "]" * 150), "deep"),
        "nested beyond reason": (b"[" * 90_000 + b"]" * 90_000, "deep"),
        "no parts": (with_parts(version, "[]"), FIELDS[version]),
        "a part of nothing": (with_parts(version, "[{}]"), FIELDS[version]),
        "too many parts": (
            with_parts(version, f"[{MANY}]"), "1000 parts"
        ),
        "too many parts behind another member": (
            with_parts(version, f"[{MANY}]").replace(b'{"message":', b'{"params":5,"message":'),
            "1000 parts",
        ),
        "the agent's role": (good.replace(b"ROLE_USER", b"ROLE_AGENT"), "role"),
        "an unknown role": (good.replace(b"ROLE_USER", b"ROLE_KING"), "role"),
    }  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("what", malformed("1.0"))
async def test_a_malformed_body_is_told_what_is_wrong(url: str, version: str, what: str) -> None:
    body, words = malformed(version)[what]
    response = await send(url, version, body)
    assert response.status == 400, response.body
    assert words in response.body.decode(), response.body
    assert len(response.body) < 4000


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_wrong_value_in_any_field_is_taken_or_refused(url: str, version: str) -> None:
    statuses = set()
    async with connection(url) as http:
        for path in places(BODIES[version]):
            for wrong in WRONG:
                body = json.loads(GOOD[version])
                parent = body
                for key in path[:-1]:
                    parent = parent[key]
                parent[path[-1]] = wrong
                headers = {"Content-Type": "application/json", "A2A-Version": version}
                given = json.dumps(body).encode()
                answer = await http.ask("POST", PATHS[version], given, headers)
                assert answer.status in (200, 400), (path, wrong, answer)
                statuses.add(answer.status)
    assert 400 in statuses


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "\xff\xfe"}, 415),
        ({"A2A-Version": "99.0"}, 400),
        ({"A2A-Version": "1.0\xff"}, 400),
        ({"A2A-Version": "9" * 5000}, 400),
        ({"A2A-Extensions": "\xff, ,,urn:nobody"}, 200),
        ({"Accept": "\xff,,;q=x"}, 200),
        ({"Last-Event-ID": "\xff"}, 200),
        ({"X-Forwarded-Host": "evil.example/\\"}, 200),
    ],
)
async def test_strange_headers(
    url: str, version: str, headers: dict[str, str], status: int
) -> None:
    response = await send(url, version, GOOD[version], headers)
    assert response.status == status
    assert len(response.body) < 4000


NOBODY = (
    "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "..%5c..%5cx", "%2F", "%00", "a%00b", "%0d%0aX:%201",
    "%E2%80%AE", "'%3B--", "%25%32%65", "a" * 3000, ":", "%3Acancel", "a;b=c", "*",
)  # fmt: skip


@pytest.mark.parametrize("root", ["", "/v1", "/acme"])
@pytest.mark.parametrize("id", NOBODY)
async def test_an_id_that_is_a_path_or_worse_is_of_no_task(url: str, root: str, id: str) -> None:
    version = "0.3" if root == "/v1" else "1.0"
    headers = {"A2A-Version": version}
    for verb, path in (
        ("GET", f"/tasks/{id}"),
        ("POST", f"/tasks/{id}:cancel"),
        ("GET", f"/tasks/{id}:subscribe"),
        ("GET", f"/tasks/{id}/pushNotificationConfigs/{id}"),
    ):
        response = await ask(url, verb, root + path, b"", headers)
        assert response.status in (400, 404, 405), (verb, path, response)
        assert "x-y" not in response.headers
        assert b"root:" not in response.body
        json.loads(response.body)


@pytest.mark.parametrize(
    "path",
    ["/../message:send", "//message:send", "/v1/../../x", "/%2e%2e/%2e%2e", "/message%00:send",
     "/\xff", "/%ff%fe", "/" * 5000, "/v1" * 2000, "http://[::1", "?", "*", "/%", "/%zz"],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["GET", "POST", "DELETE", "PATCH", "TRACE", "PROPFIND"])
def test_a_strange_path_leads_nowhere(url: str, path: str, verb: str) -> None:
    body = GOOD["1.0"]
    request = head("1.0", f"Content-Length: {len(body)}", path=path, verb=verb) + b"\r\n" + body
    received = exchanged(url, request)
    if (verb, path) == ("GET", "?"):  # a page
        assert not received.startswith(b"HTTP/1.1 5")
    else:
        assert received.startswith(b"HTTP/1.1 4"), received[:200]


@pytest.mark.parametrize("version", VERSIONS)
async def test_bodies_that_are_too_large_are_refused_however_they_come(
    url: str, version: str
) -> None:
    headers = {"Content-Type": "application/json", "A2A-Version": version}
    async with connection(url) as http:
        await http.request("POST", PATHS[version], headers=headers, length=10**15)
        declared = await http.response()
    async with connection(url) as http:
        chunked = {**headers, "Transfer-Encoding": "chunked"}
        await http.request("POST", PATHS[version], headers=chunked)
        for _ in range(LIMIT // 20_000 + 1):
            await http.write(b"%x\r\n%b\r\n" % (20_000, b" " * 20_000))
        streamed = await http.response()
    for response in (declared, streamed):
        assert response.status == 413
        assert str(LIMIT) in response.body.decode()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "framing",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: -1",),
        ("Content-Length: +5",),
        ("Content-Length: 0x5",),
        ("Content-Length: 9" + "9" * 400,),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding : chunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    ],
)
def test_a_request_within_a_body_of_unclear_length_is_not_answered(
    url: str, version: str, framing: tuple[str, ...]
) -> None:
    inner = posted(version, GOOD[version]).replace(b"Connection: close\r\n", b"")
    outer = head(version, *framing).replace(b"Connection: close\r\n", b"")
    received = exchanged(url, outer + b"\r\n0\r\n\r\n" + inner, ends=True)
    assert b"HTTP/1.1 200" not in received, received
    # An unknown transfer coding means "not implemented" (RFC 9112 §6.1); no other request fails so.
    assert received.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")) or not received, received
    assert b"HTTP/1.1 500" not in received


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"5;" + b"x" * 90_000,
        b"f" * 40 + b"\r\n",
        b"5\r\nhel",
    ],
)
def test_chunks_of_no_sense_are_refused(url: str, version: str, body: bytes) -> None:
    request = head(version, "Transfer-Encoding: chunked") + b"\r\n" + body
    received = exchanged(url, request, ends=True)
    assert received == b"" or received.startswith(b"HTTP/1.1 4"), received


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "lines",
    [
        ("X: " + "x" * 200_000,),
        ("X: x",) * 20_000,
        ("X" * 200_000 + ": x",),
        ("X: a\0b",),
        ("X\0: a",),
    ],
)
def test_headers_without_measure_harm_nobody(
    url: str, version: str, lines: tuple[str, ...]
) -> None:
    body = GOOD[version]
    request = head(version, *lines, f"Content-Length: {len(body)}") + b"\r\n" + body
    received = exchanged(url, request, ends=True)
    assert received == b"" or received.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200"))


random_examples = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(st.binary(max_size=200), st.sampled_from(VERSIONS))
@example(b"", "0.3")
@random_examples
def test_random_bytes_are_no_body(url: str, body: bytes, version: str) -> None:
    received = exchanged(url, posted(version, body))
    assert received.startswith(b"HTTP/1.1 400"), received


@given(st.binary(max_size=60).filter(lambda path: not set(path) & set(b" \r\n\t\x0b\x0c")))
@random_examples
def test_random_bytes_are_no_path(url: str, path: bytes) -> None:
    request = head("1.0", path="/@", verb="POST").replace(b"/@", b"/tasks/" + path + b"/x")
    received = exchanged(url, request + b"\r\n", ends=True)
    assert received == b"" or received.startswith(b"HTTP/1.1 4"), received


@given(st.data(), st.sampled_from(VERSIONS))
@random_examples
def test_a_request_with_some_bytes_changed_is_answered(
    url: str, data: st.DataObject, version: str
) -> None:
    body = bytearray(GOOD[version])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        if data.draw(st.booleans()):
            body[place] = data.draw(st.integers(0, 255))
        else:
            del body[place : place + data.draw(st.integers(1, 10))]
        if not body:
            return
    received = exchanged(url, posted(version, bytes(body)))
    assert received.startswith((b"HTTP/1.1 200", b"HTTP/1.1 4")), received
