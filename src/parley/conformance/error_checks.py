"""Checks of errors on the wire: the table of codes and statuses, and the envelopes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from parley.conformance.probe import MISSING_TASK, CallResult, Probe, WireExchange, members_of
from parley.conformance.verdicts import NEW, OLD, REST, RPC, Checks, NotApplicable, fail_if
from parley.model.errors import (
    ERROR_DOMAIN,
    A2AError,
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    ExtensionSupportRequiredError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from parley.model.parts import Part
from parley.wire.errors import ERROR_INFO, ERRORS_BY_STATUS

check = Checks()
PICTURE = Part(url="https://example.com/a", media_type="application/x-conformance")


async def _ended(probe: Probe) -> CallResult:
    return await probe.send(task=(await probe.finished()).id)


async def _unended(probe: Probe) -> CallResult:
    return await probe.call("CancelTask", id=(await probe.finished()).id)


Provoke = Callable[[Probe], Awaitable[CallResult]]
TABLE: tuple[tuple[type[A2AError], Provoke], ...] = (
    (TaskNotFoundError, lambda probe: probe.get(MISSING_TASK)),
    (TaskNotCancelableError, _unended),
    (
        PushNotificationNotSupportedError,
        lambda probe: probe.call("ListTaskPushNotificationConfigs", task_id=MISSING_TASK),
    ),
    (UnsupportedOperationError, _ended),
    (ContentTypeNotSupportedError, lambda probe: probe.send(part=PICTURE)),
    (ExtendedAgentCardNotConfiguredError, lambda probe: probe.call("GetExtendedAgentCard")),
    (ExtensionSupportRequiredError, lambda probe: probe.send(extensions=())),
    (VersionNotSupportedError, lambda probe: probe.get(MISSING_TASK, version="99.0")),
)
"""The errors of the protocol, each with the requests that provoke it."""

for _number, (_kind, _provoke) in enumerate(TABLE, 1):

    @check(
        *(f"ERR-{_number}", "MUST", "5.4", f"{_kind.__name__} has its code or status, and reason"),
        versions=NEW,
    )
    async def _(probe: Probe, kind: type[A2AError] = _kind, provoke: Provoke = _provoke) -> None:
        said = await provoke(probe)
        if not isinstance(said.error, kind):
            raise NotApplicable(f"no request provoked {kind.__name__} here")
        said.rejected_with(kind, why="with an error")
        if probe.binding == "GRPC":
            _over_grpc(said.error, kind)
        elif probe.binding == "HTTP+JSON":
            _over_http(said.wire, kind)


def _over_grpc(error: Exception, kind: type[A2AError]) -> None:
    from parley.wire.protobuf.errors import STATUS_KEY, has_reason

    call: Any = error.__cause__
    status = call.code().name
    known = {kind.grpc_status, "UNIMPLEMENTED"}  # some statuses of the table in 1.0.0
    fail_if(status not in known, f"the status is {status}, not {kind.grpc_status}")
    details = dict(call.trailing_metadata() or ()).get(STATUS_KEY)
    fail_if(not has_reason(details), f"the error has no {ERROR_INFO}")


def _over_http(wire: WireExchange | None, kind: type[A2AError]) -> None:
    assert wire is not None
    known = wire.status == kind.http_status or ERRORS_BY_STATUS.get(wire.status) is kind
    fail_if(not known, f"the status is {wire.status}, not {kind.http_status}")
    _error_info(_error(wire).get("details"), kind)


@check("RPC-1", "MUST", "9.5", "A body that is not JSON is rejected with -32700", bindings=RPC)
async def _(probe: Probe) -> None:
    _code(await probe.raw(b'{"jsonrpc": "2.0", "id": 1,'), -32700, "a body that is not JSON")


@check("RPC-11", "SHOULD", "9.5", "An empty body, invalid UTF-8 and NaN are -32700", bindings=RPC)
async def _(probe: Probe) -> None:
    call = b'{"jsonrpc": "2.0", "id": 1, "method": %b, "params": {"id": %b}}'
    for body in (b"", call % (b'"\xff"', b'"t"'), call % (b'"GetTask"', b"NaN")):
        _code(await probe.raw(body), -32700, f"the body {body!r}")


@check(
    "RPC-2", "MUST", "9.3", "A call that is not JSON-RPC 2.0 is rejected with -32600", bindings=RPC
)
async def _(probe: Probe) -> None:
    wire = await probe.rpc("GetTask", {"id": "x"}, jsonrpc="1.0")
    _code(wire, -32600, 'a call with "jsonrpc": "1.0"')
    for body in (b"{}", b'"x"'):
        _code(await probe.raw(body), -32600, "a JSON value that is not a call")


@check("RPC-3", "MUST", "9.5", "An unknown method is rejected with -32601", bindings=RPC)
async def _(probe: Probe) -> None:
    _code(await probe.rpc("NoSuchMethod", {}), -32601, "the method NoSuchMethod")


@check(
    "RPC-4", "MUST", "9.5", "Parameters of the wrong type are rejected with -32602", bindings=RPC
)
async def _(probe: Probe) -> None:
    said = await probe.get(MISSING_TASK, members={"id": {"not": "a text"}})
    assert said.wire is not None
    _code(said.wire, -32602, "an id that is not a string")


@check(
    "RPC-5", "MUST", "9.3", "A response has the id of its request, of the same type", bindings=RPC
)
async def _(probe: Probe) -> None:
    for id in ("a-text", 7):
        found = _response(await _numbered(probe, json.dumps(id))).get("id")
        fail_if(found != id, f"the request had the id {id!r}, the response has {found!r}")


@check("RPC-8", "MAY", "9.3", "The id is returned byte for byte", bindings=RPC)
async def _(probe: Probe) -> None:
    numbers = ("12345678901234567890123", "9007199254740993", "0")
    for id in (*numbers, "null", '"\\u00e4"', '"\u00e4"', '""'):
        body = (await _numbered(probe, id)).body.replace(b" ", b"")
        fail_if(b'"id":%b' % id.encode() not in body, f"the id {id} was not returned unchanged")


@check("RPC-9", "SHOULD", "9.1", "A notification is not answered", bindings=RPC)
async def _(probe: Probe) -> None:
    call = {"jsonrpc": "2.0", "method": _get_task(probe), "params": {"id": MISSING_TASK}}
    wire = await probe.raw(json.dumps(call).encode())
    fail_if(wire.body, "a call without an id was answered")


@check("RPC-10", "MAY", "9.3", "A batch is rejected with -32600", bindings=RPC)
async def _(probe: Probe) -> None:
    for body in (b"[]", b'[{"jsonrpc": "2.0", "id": 1, "method": "GetTask"}]'):
        _code(await probe.raw(body), -32600, "a batch")


@check(
    *("RPC-6", "MUST", "9.5", "An error has a code, a message and typed details"),
    versions=NEW,
    bindings=RPC,
)
async def _(probe: Probe) -> None:
    error = _error((await probe.get(MISSING_TASK)).wire)
    typed = isinstance(error.get("code"), int) and isinstance(error.get("message"), str)
    fail_if(not typed, "the error has no code or no message")
    data = error.get("data") or ()
    for item in data if isinstance(data, list | tuple) else [data]:
        untyped = not isinstance(item, dict) or "@type" not in item
        fail_if(untyped, "an object of error.data has no @type")


@check("RPC-7", "SHOULD", "9.5", "An error has an ErrorInfo", versions=NEW, bindings=RPC)
async def _(probe: Probe) -> None:
    error = _error((await probe.get(MISSING_TASK)).wire)
    _error_info(error.get("data"), TaskNotFoundError)


@check(
    *("REST-1", "MUST", "11.6", "An unknown task is 404, as an error of the protocol"),
    versions=NEW,
    bindings=REST,
)
async def _(probe: Probe) -> None:
    said = await probe.get(MISSING_TASK)
    said.rejected(why="of a task that does not exist")
    wire = said.wire
    fail_if(wire is None or wire.status != 404, f"the status is {wire and wire.status}, not 404")
    error = _error(wire)
    for name in ("code", "status", "message"):
        fail_if(name not in error, f"error.{name} is missing")
    fail_if(error["code"] != 404, f"error.code is {error['code']!r}, and the status 404")


@check("REST-3", "MUST", "11.6", "A body that is not JSON is 400", versions=NEW, bindings=REST)
async def _(probe: Probe) -> None:
    status = (await probe.raw(b'{"message": ', path="/message:send")).status
    fail_if(status != 400, f"the status is {status}, not 400")


@check("REST-4", "SHOULD", "11.1", "Responses have a JSON media type", bindings=REST)
async def _(probe: Probe) -> None:
    await _typed(probe, JSONS)


@check(
    "REST-5", "SHOULD", "11.1", "Both JSON media types are accepted", versions=NEW, bindings=REST
)
async def _(probe: Probe) -> None:
    for kind in (*JSONS, "application/json; charset=utf-8"):
        await _typed(probe, JSONS, **{"Content-Type": kind})


@check("REST-6", "MAY", "11.1", "The media type of Accept is used in the response", bindings=REST)
async def _(probe: Probe) -> None:
    for kind in JSONS[probe.is_old :]:
        await _typed(probe, (kind,), **{"Accept": kind, "Content-Type": kind})


@check(
    *("REST-7", "MAY", "11.1", "A request that accepts only streams is answered with plain JSON"),
    versions=NEW,
    bindings=REST,
)
async def _(probe: Probe) -> None:
    await _typed(probe, JSONS[1:], Accept="text/event-stream")


@check("REST-8", "MAY", "11.3", "A body may be empty if the path has all parameters", bindings=REST)
async def _(probe: Probe) -> None:
    path = f"{'/v1' * probe.is_old}/tasks/{{}}:cancel"
    for body in (b"{}", b"null", b"", None):
        wire = await probe.raw(body, path=path.format((await probe.running()).id))
        if body == b"{}" and wire.status != 200:
            raise NotApplicable("the agent did not cancel this task, as the specification allows")
        fail_if(wire.status != 200, f"the status for the body {body!r} is {wire.status}")


@check(
    *("REST-9", "MAY", "0.3:8.1", "An error of 0.3 has the members that clients read"),
    versions=OLD,
    bindings=REST,
)
async def _(probe: Probe) -> None:
    said = await probe.get(MISSING_TASK)
    found = members_of(said.wire and said.wire.json)
    lost = {"code", "message", "data", "type", "error"} - found.keys()
    fail_if(lost, f"the error lacks {sorted(lost)}")
    fail_if(found["type"] != "TaskNotFoundError", f"its type is {found['type']!r}")


JSONS = ("application/a2a+json", "application/json")


async def _typed(probe: Probe, kinds: tuple[str, ...], **headers: str) -> None:
    """Require that responses and errors have one of these media types."""
    sent = await probe.send(headers=headers)
    sent.given()
    for said in (sent, await probe.get(MISSING_TASK, headers=headers)):
        found = said.wire.media_type if said.wire is not None else ""
        fail_if(found not in kinds, f"the Content-Type of a response is {found!r}")


def _get_task(probe: Probe) -> str:
    return probe.dialect.jsonrpc.names["GetTask"]


async def _numbered(probe: Probe, id: str) -> WireExchange:
    """Return the response to a call whose id is the JSON text ``id``."""
    body = '{"jsonrpc":"2.0","id":%s,"method":"%s","params":{"id":"%s"}}'
    return await probe.raw((body % (id, _get_task(probe), MISSING_TASK)).encode())


def _response(wire: WireExchange) -> dict[str, Any]:
    otherwise = f"the response with status {wire.status} is not a JSON-RPC 2.0 response"
    answer = members_of(wire.json, otherwise)
    fail_if(answer.get("jsonrpc") != "2.0", otherwise)
    return answer


def _error(wire: WireExchange | None) -> dict[str, Any]:
    """Return the error in a response."""
    answer = members_of(wire and wire.json)
    return members_of(answer.get("error"), "the response has no error object")


def _code(wire: WireExchange, code: int, what: str) -> None:
    answer = _response(wire)
    fail_if("error" not in answer, f"{what} was answered with a result")
    found = _error(wire).get("code")
    fail_if(found != code, f"{what} was answered with {found}, not with {code}")


def _error_info(details: Any, kind: type[A2AError]) -> None:
    items = details if isinstance(details, list) else []
    infos = [e for e in items if isinstance(e, dict) and e.get("@type") == ERROR_INFO]
    fail_if(not infos, f"the error has no {ERROR_INFO}")
    for name, wanted in (("reason", kind.reason), ("domain", ERROR_DOMAIN)):
        found = infos[0].get(name)
        fail_if(found != wanted, f"the {name} is {found!r}, not {wanted!r}")
