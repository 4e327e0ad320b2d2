"""Rejected requests: the status, code and reason of each error, in each binding."""

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
from tests.kit.scripted_server import Exchange, card, scripted

pytestmark = pytest.mark.anyio


async def test_rule_07_every_wrong_field_is_named(wire):
    role = "user" if wire.is_old and not wire.is_proto else "ROLE_USER"
    answer = await wire.ask("SendMessage", {"message": {"role": role}})
    assert answer.reason == "INVALID_PARAMS"
    content = "message.content" if wire.is_proto else "message.parts"
    assert {"message.messageId", content} <= set(answer.fields)


# -- how the client reads the error tables of other servers -----------------------------------

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


async def caught(answer: Any, binding: str = "HTTP+JSON", version: str = "1.0") -> A2AError:
    """The error that a call raises for this scripted response."""
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
