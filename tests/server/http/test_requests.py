"""JSON-RPC requests over HTTP: the good, the bad, and those after them."""

import asyncio
import json
import logging

import pytest

from parley.model.errors import (
    OverloadedError,
    PermissionDeniedError,
    TaskNotFoundError,
    UnauthenticatedError,
)
from parley.model.service import Caller
from parley.server.app import Settings
from parley.server.run import serving
from tests.kit.http import JSON, MESSAGE, ask, call, connection, post
from tests.kit.scripted import Scripted, app_of, card_of

pytestmark = pytest.mark.anyio


async def test_a_message_is_answered_with_the_reply_of_the_service(url, service):
    response = await post(url, call("SendMessage"))
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["a2a-version"] == "1.0"
    assert response.json["id"] == 1
    assert response.json["result"]["message"]["parts"] == [{"text": "It is noon."}]
    assert service.asked[0].request.message.text == "What time is it?"


async def test_a_task_is_answered_under_its_own_name(url):
    assert (await post(url, call("GetTask"))).json["result"]["id"] == "t-1"
    page = (await post(url, call("ListTasks", {"pageSize": 5}))).json["result"]
    assert page["tasks"][0]["id"] == "t-1"
    assert page["nextPageToken"] == ""


async def test_parameters_may_be_missing_where_none_are_needed(url, service):
    response = await post(url, b'{"jsonrpc":"2.0","id":1,"method":"ListTasks"}')
    assert "result" in response.json
    assert service.asked[0].request.context_id == ""


async def test_an_empty_result_is_an_empty_object(service):
    async with serving(app_of(service, card=card_of(push_notifications=True))) as url:
        body = call("DeleteTaskPushNotificationConfig", {"taskId": "t-1", "id": "p-1"})
        assert (await post(url, body)).json["result"] == {}


@pytest.mark.parametrize("id", ["text", "", 0, -3, 2**63 + 1, "12345678901234567890", None])
async def test_the_id_is_echoed_as_it_came(url, id):
    assert (await post(url, call(id=id))).json["id"] == id


async def test_a_notification_is_executed_and_not_answered(url, service):
    response = await post(url, call(id=...))
    assert (response.status, response.body) == (204, b"")
    assert [asked.method for asked in service.asked] == ["send_message"]


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


async def test_a_caller_may_be_named_without_waiting(service):
    async with serving(app_of(service, identify=lambda scope: Caller(id="bob"))) as url:
        await post(url, call())
    assert service.context.caller.id == "bob"


# Errors of the service


async def test_an_error_of_the_service_is_told_with_its_details(url, service):
    async def lost(request, context):
        raise TaskNotFoundError("there is no task t-1", metadata={"taskId": "t-1"})

    service.script["get_task"] = lost
    response = await post(url, call("GetTask"))
    assert response.status == 200
    assert response.error["code"] == -32001
    assert response.error["message"] == "there is no task t-1"
    assert response.error["data"][0] == {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "TASK_NOT_FOUND",
        "domain": "a2a-protocol.org",
        "metadata": {"taskId": "t-1"},
    }


async def test_an_exception_is_logged_and_told_only_by_its_reference(url, service, caplog):
    async def broken(request, context):
        raise RuntimeError("the password is hunter2")

    service.script["get_task"] = broken
    with caplog.at_level(logging.ERROR, "parley.server"):
        response = await post(url, call("GetTask"))
    assert response.error["code"] == -32603
    assert b"hunter2" not in response.body
    reference = response.error["data"][0]["metadata"]["reference"]
    assert reference in response.error["message"]
    record = next(record for record in caplog.records if reference in record.getMessage())
    assert "hunter2" in str(record.exc_info)


async def test_an_answer_that_cannot_be_written_is_an_internal_error(url, service, caplog):
    async def garbage(request, context):
        return object()

    service.script["get_task"] = garbage
    response = await post(url, call("GetTask"))
    assert response.error["code"] == -32603


async def test_a_service_that_cancels_itself_is_an_internal_error(url, service, caplog):
    async def gives_up(request, context):
        raise asyncio.CancelledError

    service.script["get_task"] = gives_up
    assert (await post(url, call("GetTask"))).error["code"] == -32603
    assert "GetTask failed" in caplog.text


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


async def test_an_overloaded_service_answers_503(url, service):
    async def full(request, context):
        raise OverloadedError("all is busy", retry_after=7)

    service.script["send_message"] = full
    response = await post(url, call())
    assert response.status == 503
    assert response.headers["retry-after"] == "7"
    assert response.error["code"] == -32012


# What is malformed


def say(message):
    return call("SendMessage", {"message": message})


TRUNCATED = call()[:-10]
DEEP = (
    b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":' + b"[" * 5000 + b"]" * 5000 + b"}"
)
MALFORMED = {
    "nothing": (b" ", -32700),
    "truncated JSON": (TRUNCATED, -32700),
    "not JSON": (b"hello", -32700),
    "invalid UTF-8": (call().replace(b"What", b"\xff\xfe"), -32700),
    "NaN": (call().replace(b'"ROLE_USER"', b"NaN"), -32700),
    "an array": (b"[]", -32600),
    "a batch": (b"[" + call() + b"]", -32600),
    "a string": (b'"SendMessage"', -32600),
    "null": (b"null", -32600),
    "no jsonrpc": (b'{"id":1,"method":"SendMessage"}', -32600),
    "jsonrpc 1.0": (call().replace(b'"2.0"', b'"1.0"'), -32600),
    "no method": (b'{"jsonrpc":"2.0","id":1,"params":{}}', -32600),
    "a method that is a number": (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
    "an id that is an object": (call(id={"a": 1}), -32600),
    "an id that is a list": (call(id=[1]), -32600),
    "an unknown method": (call("MakeCoffee"), -32601),
    "a 0.3 method": (call("message/send", {"message": MESSAGE}), -32601),
    "no parameters": (b'{"jsonrpc":"2.0","id":1,"method":"SendMessage"}', -32602),
    "parameters by position": (
        b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":[1]}',
        -32602,
    ),
    "parameters that are text": (
        b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":"x"}',
        -32602,
    ),
    "no message id": (say({"role": "ROLE_USER", "parts": [{"text": "x"}]}), -32602),
    "no parts": (say({**MESSAGE, "parts": []}), -32602),
    "an empty part": (say({**MESSAGE, "parts": [{}]}), -32602),
    "a part of two kinds": (say({**MESSAGE, "parts": [{"text": "a", "url": "b"}]}), -32602),
    "text that is a number": (say({**MESSAGE, "parts": [{"text": 5}]}), -32602),
    "bytes that are not base64": (say({**MESSAGE, "parts": [{"raw": "%%%"}]}), -32602),
    "an unknown role": (say({**MESSAGE, "role": "ROLE_KING"}), -32602),
    "a task without an id": (call("GetTask", {"historyLength": 1}), -32602),
    "deep nesting": (DEEP, None),
    "nesting that is a little too deep": (
        say({**MESSAGE, "metadata": {"x": json.loads("[" * 110 + "]" * 110)}}),
        None,
    ),
    "too many parts": (say({**MESSAGE, "parts": [{"text": "x"}] * 1001}), -32602),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_request_is_refused_with_its_code(url, service, what):
    body, code = MALFORMED[what]
    async with connection(url) as http:
        response = await http.ask("POST", "/", body, JSON)
        assert response.status == 200
        assert response.error["code"] in ([code] if code else [-32600, -32602])
        assert response.json["jsonrpc"] == "2.0"
        assert len(response.error["message"]) > 10
        assert service.asked == []
        # The server goes on, on the same connection.
        assert "result" in (await http.ask("POST", "/", call(), JSON)).json


async def test_a_refusal_has_the_id_of_the_request_where_it_can_be_read(url):
    assert (await post(url, call("MakeCoffee", id="x-1"))).json["id"] == "x-1"
    assert (await post(url, b'{"jsonrpc":"1.0","id":7,"method":"GetTask"}')).json["id"] == 7
    assert (await post(url, TRUNCATED)).json["id"] is None
    assert (await post(url, call(id={"a": 1}))).json["id"] is None


async def test_an_unknown_method_is_told_the_ones_there_are(url):
    message = (await post(url, call("MakeCoffee"))).error["message"]
    assert "MakeCoffee" in message
    assert "SendMessage" in message
    assert "SubscribeToTask" in message


async def test_a_method_of_0_3_is_told_the_version_that_is_spoken(url):
    message = (await post(url, call("message/send", {"message": MESSAGE}))).error["message"]
    assert "0.3" in message


async def test_a_field_that_is_wrong_is_named(url):
    body = say({**MESSAGE, "parts": [{"text": 5}]})
    error = (await post(url, body)).error
    assert "parts" in json.dumps(error["data"])


@pytest.mark.parametrize(
    "given", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonl", "a;b;c"]
)
async def test_another_content_type_is_refused(url, service, given):
    response = await post(url, call(), {"Content-Type": given})
    assert response.status == 415
    assert response.error["code"] == -32005
    assert "application/json" in response.error["message"]
    assert service.asked == []


async def test_no_content_type_is_refused(url):
    response = await ask(url, "POST", "/", call(), {"A2A-Version": "1.0"})
    assert (response.status, response.error["code"]) == (415, -32005)


@pytest.mark.parametrize(
    "given",
    [
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/a2a+json",
        "application/a2a+json;charset=UTF-8",
    ],
)
async def test_json_is_taken_under_its_names(url, given):
    assert "result" in (await post(url, call(), {"Content-Type": given})).json


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_another_http_method_is_told_what_is_here(url, method):
    response = await ask(url, method, "/")
    assert response.status == 405
    assert response.headers["allow"] == "POST"
    assert "JSON-RPC" in response.json["error"]


async def test_head_and_options_have_no_body(url):
    assert (await ask(url, "HEAD", "/")).status == 405
    response = await ask(url, "OPTIONS", "/")
    assert (response.status, response.headers["allow"]) == (204, "POST")


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


async def test_a_body_of_exactly_the_limit_is_taken():
    body = call()
    async with serving(app_of(settings=Settings(max_body_bytes=2000))) as url:
        assert "result" in (await post(url, body + b" " * (2000 - len(body)))).json
        assert (await post(url, body + b" " * (2001 - len(body)))).status == 413


def chunked(body, size):
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


CHUNKED = {**JSON, "Transfer-Encoding": "chunked"}


async def test_a_body_in_chunks_is_taken(url):
    async with connection(url) as http:
        for size in (1, 7, 1000):
            await http.request("POST", "/", headers=CHUNKED)
            await http.write(chunked(call(), size))
            assert "result" in (await http.response()).json


async def test_a_body_in_chunks_is_limited_while_it_is_read():
    app = app_of(settings=Settings(max_body_bytes=2000))
    async with serving(app) as url, connection(url) as http:
        await http.request("POST", "/", headers=CHUNKED)
        await http.write(b"7d0\r\n" + b" " * 2000 + b"\r\n" + b"a\r\n" + b" " * 10 + b"\r\n")
        # Answered although the body has no end yet.
        response = await http.response()
        assert (response.status, response.error["code"]) == (413, -32600)
        await http.write(b"0\r\n\r\n")
        assert "result" in (await http.ask("POST", "/", call(), JSON)).json


async def test_a_client_that_goes_in_the_middle_of_its_body_leaves_no_trace(url, service, caplog):
    with caplog.at_level(logging.INFO):
        async with connection(url) as http:
            await http.request("POST", "/", call()[:50], JSON, length=500)
        async with connection(url) as http:
            await http.request("POST", "/", headers=CHUNKED)
            await http.write(b"5\r\nhello\r\n")
        assert "result" in (await post(url, call())).json
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert len(service.asked) == 1


# Connections


async def test_requests_follow_each_other_on_one_connection(url):
    async with connection(url) as http:
        for number in range(5):
            assert (await http.ask("POST", "/", call(id=number), JSON)).json["id"] == number
            assert (await http.ask("POST", "/", b"{", JSON)).error["code"] == -32700
            assert (await http.ask("GET", "/nowhere")).status == 404
            assert (await http.ask("POST", "/", b"x", {"Content-Type": "x/y"})).status == 415


async def test_pipelined_requests_are_answered_in_their_order(url, service):
    async with connection(url) as http:
        for number, method in enumerate(["SendMessage", "MakeCoffee", "GetTask", "SendMessage"]):
            body = call(method, id=number)
            await http.request("POST", "/", body, JSON)
        answers = [(await http.response()).json for _ in range(4)]
    assert [answer["id"] for answer in answers] == [0, 1, 2, 3]
    assert ["error" in answer for answer in answers] == [False, True, False, False]


async def test_requests_on_different_connections_do_not_wait_for_each_other(url, service):
    gate = asyncio.Event()

    async def slow(request, context):
        await gate.wait()
        return await Scripted().get_task(request, context)

    service.script["get_task"] = slow
    waiting = asyncio.create_task(post(url, call("GetTask")))
    assert "result" in (await post(url, call())).json
    assert not waiting.done()
    gate.set()
    assert "result" in (await waiting).json
