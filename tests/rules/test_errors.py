"""What is refused, with which status, code and reason, in each binding."""

from __future__ import annotations

from typing import Any

import pytest

import parley
from parley.model import errors
from parley.model.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from tests.contract.agents import plain, strict
from tests.kit.http import ask
from tests.kit.scripted_server import Exchange, card, scripted
from tests.rules.conftest import only, placed
from tests.rules.wire import Wire

pytestmark = pytest.mark.anyio

# The table of version 1.0.1: JSON-RPC, HTTP, gRPC.
TABLE = {
    "TASK_NOT_FOUND": (-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": (-32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": (-32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": (-32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": (-32005, 400, "INVALID_ARGUMENT"),
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": (-32007, 400, "FAILED_PRECONDITION"),
    "EXTENSION_SUPPORT_REQUIRED": (-32008, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": (-32009, 400, "FAILED_PRECONDITION"),
    "INVALID_PARAMS": (-32602, 400, "INVALID_ARGUMENT"),
    "INTERNAL_ERROR": (-32603, 500, "INTERNAL"),
}
GRPC_CODES = {"INVALID_ARGUMENT": 3, "NOT_FOUND": 5, "FAILED_PRECONDITION": 9, "INTERNAL": 13}


async def refusals(wire: Wire) -> dict[str, Any]:
    """A refusal of each kind that the agent of all tests can be brought to."""
    done = await wire.task("work please")
    picture = [{"text": "words please"}, {"url": "https://x.example/a", "mediaType": "image/png"}]
    headers = {"A2A-Version": "9.9"}
    return {
        "TASK_NOT_FOUND": await wire.ask("GetTask", task="nobody"),
        "TASK_NOT_CANCELABLE": await wire.ask("CancelTask", task=done["id"]),
        "UNSUPPORTED_OPERATION": await wire.send("more", taskId=done["id"]),
        "CONTENT_TYPE_NOT_SUPPORTED": await wire.send(picture),
        "EXTENDED_AGENT_CARD_NOT_CONFIGURED": await wire.of("eve").ask("GetExtendedAgentCard"),
        "VERSION_NOT_SUPPORTED": await wire.ask("GetTask", task="t", headers=headers),
        "INVALID_PARAMS": await wire.send("work", metadata={"skill": "nonsense"}),
        "INTERNAL_ERROR": await wire.send("break please"),
    }


async def test_rule_07_errors_have_the_codes_and_the_statuses_of_the_table(wire):
    found = await refusals(wire)
    async with placed(parley.asgi(plain, drain=0.0)) as place:
        webhook = wire.webhook("https://hooks.example.com")
        answer = await Wire(place, wire.binding, wire.version).ask(
            "CreateTaskPushNotificationConfig", webhook, task="t", config="c"
        )
        found["PUSH_NOTIFICATION_NOT_SUPPORTED"] = answer
    async with placed(parley.asgi(strict, drain=0.0)) as place:
        answer = await Wire(place, wire.binding, wire.version).send("hello")
        found["EXTENSION_SUPPORT_REQUIRED"] = answer
    assert found.keys() == TABLE.keys()
    for reason, (code, http, grpc) in TABLE.items():
        refusal = found[reason]
        assert (refusal.reason, bool(refusal.message)) == (reason, True)
        if wire.binding == "JSONRPC":
            assert (refusal.code, refusal.status) == (code, 200), reason
        elif wire.binding == "GRPC":
            assert (refusal.code, refusal.status) == (GRPC_CODES[grpc], grpc), reason
        else:
            assert refusal.status == http, reason
            assert refusal.code == (code if wire.is_old else http), reason


@only(("HTTP+JSON", "1.0"))
async def test_rule_07_over_http_json_an_error_is_a_status_with_details(wire):
    body = (await ask(wire.place.url, "GET", "/tasks/nobody", b"", wire.headers)).json
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "status", "message", "details"}
    assert (body["error"]["code"], body["error"]["status"]) == (404, "NOT_FOUND")
    (info,) = body["error"]["details"]
    assert info == {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "TASK_NOT_FOUND",
        "domain": "a2a-protocol.org",
        "metadata": {"taskId": "nobody"},
    }


async def test_rule_07_every_wrong_field_is_named(wire):
    role = "user" if wire.is_old and not wire.is_proto else "ROLE_USER"
    answer = await wire.ask("SendMessage", {"message": {"role": role}})
    assert answer.reason == "INVALID_PARAMS"
    content = "message.content" if wire.is_proto else "message.parts"
    assert {"message.messageId", content} <= set(answer.fields)


# -- what the client makes of the tables of others --------------------------------------------

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


async def caught(answer: Any, binding: str = "HTTP+JSON", version: str = "1.0") -> A2AError:
    """The error that a call raises whose answer is the scripted one."""
    async with scripted(answer) as server:
        interface = {"url": server.url, "protocolBinding": binding, "protocolVersion": version}
        reference = card(server.url, supportedInterfaces=[interface])
        async with parley.connect(reference, retries=0) as remote:
            with pytest.raises(A2AError) as error:
                await remote.get("t")
    return error.value


@pytest.mark.parametrize("kind", [e for e in errors.ERRORS if -32010 < e.code <= -32001])
async def test_rule_07_the_client_goes_by_the_reason_because_errors_share_a_status(kind):
    detail = {"@type": ERROR_INFO, "reason": kind.reason, "domain": "a2a-protocol.org"}

    async def answer(exchange: Exchange) -> None:
        error = {"code": 400, "status": "INVALID_ARGUMENT", "message": "no", "details": [detail]}
        await exchange.json({"error": error}, 400)

    assert type(await caught(answer)) is kind


PACKAGE = "org.a2aproject.sdk.compat03.spec."


@pytest.mark.parametrize("kind", [e for e in errors.ERRORS if -32010 < e.code <= -32001])
@pytest.mark.parametrize("form", ["Python and Go", "older Python", "Java", "older Java"])
async def test_rule_33_the_client_reads_each_form_of_an_error_over_http_json_of_0_3(kind, form):
    detail = {"@type": ERROR_INFO, "reason": kind.reason, "domain": "a2a-protocol.org"}
    status = {"code": 400, "status": "FAILED_PRECONDITION", "message": "no", "details": [detail]}
    body = {
        "Python and Go": {"error": status},
        "older Python": {"message": "no", "type": kind.__name__},
        "Java": {"message": "no", "error": f"{PACKAGE}{kind.__name__}_v0_3"},
        "older Java": {"message": "no", "error": f"io.a2a.spec.{kind.__name__}"},
    }[form]

    async def answer(exchange: Exchange) -> None:
        await exchange.json(body, 400)

    assert type(await caught(answer, version="0.3")) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (409, TaskNotCancelableError),
        (415, ContentTypeNotSupportedError),
        (501, UnsupportedOperationError),
        (404, TaskNotFoundError),
    ],
)
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_rule_07_the_client_takes_the_statuses_of_older_tables(status, kind, version):
    async def answer(exchange: Exchange) -> None:
        error = {"code": status, "status": "UNIMPLEMENTED", "message": "no"}
        await exchange.json({"error": error} if version == "1.0" else {"message": "no"}, status)

    assert type(await caught(answer, version=version)) is kind


@pytest.mark.parametrize(
    ("code", "kind"), [(-32001, TaskNotFoundError), (-32003, PushNotificationNotSupportedError)]
)
async def test_rule_07_the_client_goes_by_the_code_where_there_is_no_reason(code, kind):
    async def answer(exchange: Exchange) -> None:
        await exchange.error(code, "no")

    assert type(await caught(answer, "JSONRPC")) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [("UNIMPLEMENTED", UnsupportedOperationError), ("NOT_FOUND", TaskNotFoundError)],
)
async def test_rule_07_the_client_takes_statuses_of_grpc_without_details(status, kind):
    import grpc

    async def answer(data: bytes, context: Any) -> bytes:
        await context.abort(getattr(grpc.StatusCode, status), "no")
        raise AssertionError("to abort is to raise")

    methods = {"GetTask": grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("lf.a2a.v1.A2AService", methods),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        interface = {"url": f"127.0.0.1:{port}", "protocolBinding": "GRPC"}
        offered = [{**interface, "protocolVersion": "1.0"}]
        async with parley.connect(card("", supportedInterfaces=offered), retries=0) as remote:
            with pytest.raises(kind):
                await remote.get("t")
    finally:
        await server.stop(None)


# -- rule 33, the errors ----------------------------------------------------------------------


@only(("HTTP+JSON", "0.3"))
async def test_rule_33_an_error_over_http_json_of_0_3_has_the_forms_that_clients_look_for(wire):
    response = await ask(wire.place.url, "GET", "/v1/tasks/nobody", b"", wire.headers)
    assert response.status == 404
    assert response.json.keys() == {"code", "message", "data", "type", "error"}
    assert response.json["type"] == "TaskNotFoundError"
    assert response.json["error"] == {
        "code": 404,
        "status": "NOT_FOUND",
        "message": response.json["message"],
        "details": response.json["data"],
    }
    assert response.json["code"] == -32001
    assert response.json["data"][0]["reason"] == "TASK_NOT_FOUND"
