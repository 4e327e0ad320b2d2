"""JSON-RPC requests over HTTP: valid, invalid, and subsequent ones."""

import pytest

from parley.model.errors import OverloadedError, PermissionDeniedError, UnauthenticatedError
from parley.model.service import Caller
from parley.server.app import Settings
from parley.server.run import serving
from tests.kit.http import JSON, ask, call, connection, post
from tests.kit.scripted import app_of

pytestmark = pytest.mark.anyio


async def test_a_notification_of_a_stream_is_begun_and_not_answered(url, service):
    response = await post(url, call("SendStreamingMessage", id=...))
    assert (response.status, response.body) == (204, b"")
    assert [asked.method for asked in service.asked] == ["send_streaming_message"]


async def test_a_notification_that_fails_is_not_answered_either(url):
    response = await post(url, call("NoSuchMethod", id=...))
    assert (response.status, response.body) == (204, b"")


async def test_the_context_says_who_asks_and_how(service):
    async def identify(scope):
        return Caller(id="alice", authenticated=True)

    async with serving(app_of(service, identify=identify)) as url:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await post(url, call("ListTasks", {"tenant": "acme"}), {"traceparent": trace})
    context = service.context
    assert context.caller == Caller(id="alice", authenticated=True)
    assert context.tenant == "acme"
    assert context.version == "1.0"
    assert context.trace.traceparent == trace
    assert context.last_event_id is None


# Errors of the service


@pytest.mark.parametrize(
    ("error", "status", "header"),
    [
        (UnauthenticatedError(), 401, ("www-authenticate", "Bearer")),
        (PermissionDeniedError(), 403, None),
        (OverloadedError(retry_after=2.5), 503, ("retry-after", "3")),
    ],
)
async def test_refusals_that_http_knows_have_its_status_too(error, status, header):
    def identify(scope):
        raise error

    async with serving(app_of(identify=identify)) as url:
        response = await post(url, call())
    assert response.status == status
    assert response.error["code"] == error.code
    if header is not None:
        assert response.headers[header[0]] == header[1]


# Malformed requests


async def test_nothing_redirects(url):
    card = "/.well-known/agent-card.json/"
    for path in ("/x/y", "/x/y/", "//", "/health", "/.well-known/", card):
        assert (await ask(url, "GET", path)).status == 404
        assert (await post(url, call(), path=path)).status in (404, 405)


# Size


async def test_a_body_that_says_it_is_too_large_is_not_read():
    app = app_of(settings=Settings(max_body_bytes=2000))
    async with serving(app) as url, connection(url) as http:
        await http.request("POST", "/", headers=JSON, length=2001)
        response = await http.response()
    assert response.status == 413
    assert response.error["code"] == -32600
    assert "2000 bytes" in response.error["message"]


def chunked(body, size):
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


CHUNKED = {**JSON, "Transfer-Encoding": "chunked"}


async def test_a_body_in_chunks_is_limited_while_it_is_read():
    app = app_of(settings=Settings(max_body_bytes=2000))
    async with serving(app) as url, connection(url) as http:
        await http.request("POST", "/", headers=CHUNKED)
        await http.write(b"7d0\r\n" + b" " * 2000 + b"\r\n" + b"a\r\n" + b" " * 10 + b"\r\n")
        # The server responds before the body ends.
        response = await http.response()
        assert (response.status, response.error["code"]) == (413, -32600)
        await http.write(b"0\r\n\r\n")
        assert "result" in (await http.ask("POST", "/", call(), JSON)).json


# Connections
