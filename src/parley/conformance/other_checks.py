"""Checks of errors on the wire, of push notifications, and of extended cards."""

from __future__ import annotations

import json
from typing import Any

from parley.client.errors import AuthenticationRequired
from parley.conformance.probe import MISSING_TASK, Probe, WireExchange
from parley.conformance.verdicts import Checks, ConformanceViolation, NotApplicable
from parley.model.errors import (
    A2AError,
    ExtendedAgentCardNotConfiguredError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.model.operations import (
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    TaskPushNotificationConfig,
)

check = Checks()
NEW = ("1.0",)
RPC = ("JSONRPC",)
REST = ("HTTP+JSON",)
WEBHOOK = "https://conformance.example/webhook"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


@check("RPC-1", "MUST", "9.5", "A body that is no JSON is refused with -32700", bindings=RPC)
async def _(probe: Probe) -> None:
    _code(await probe.post(b'{"jsonrpc": "2.0", "id": 1,'), -32700, "a body that is no JSON")


@check(
    "RPC-2", "MUST", "9.3", "A call that is not JSON-RPC 2.0 is refused with -32600", bindings=RPC
)
async def _(probe: Probe) -> None:
    call = {"jsonrpc": "1.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}
    _code(await probe.post(json.dumps(call).encode()), -32600, 'a call with "jsonrpc": "1.0"')


@check("RPC-3", "MUST", "9.5", "An unknown method is refused with -32601", bindings=RPC)
async def _(probe: Probe) -> None:
    _code(await probe.rpc("NoSuchMethod", {}), -32601, "the method NoSuchMethod")


@check("RPC-4", "MUST", "9.5", "Parameters of the wrong type are refused with -32602", bindings=RPC)
async def _(probe: Probe) -> None:
    method = "tasks/get" if probe.version == "0.3" else "GetTask"
    _code(await probe.rpc(method, {"id": {"not": "a text"}}), -32602, "an id that is no text")


@check(
    "RPC-5", "MUST", "9.3", "A response has the id of its request, of the same type", bindings=RPC
)
async def _(probe: Probe) -> None:
    method = "tasks/get" if probe.version == "0.3" else "GetTask"
    for id in ("a-text", 7):
        answer = _response(await probe.rpc(method, {"id": MISSING_TASK}, id=id))
        if answer.get("id") != id:
            raise ConformanceViolation(
                f"the request had the id {id!r}, the response has {answer.get('id')!r}"
            )


@check(
    "RPC-6",
    "MUST",
    "9.5",
    "An error has a code, a message and typed details",
    versions=NEW,
    bindings=RPC,
)
async def _(probe: Probe) -> None:
    answer = _response(await probe.rpc("GetTask", {"id": MISSING_TASK}))
    error = answer.get("error") or {}
    if not isinstance(error.get("code"), int) or not isinstance(error.get("message"), str):
        raise ConformanceViolation("the error has no code or no message")
    data = error.get("data")
    if data is None:
        return
    items = data if isinstance(data, list) else [data]
    for item in items:
        if not isinstance(item, dict) or "@type" not in item:
            raise ConformanceViolation("an object of error.data has no @type")


@check(
    "RPC-7",
    "SHOULD",
    "9.5",
    "An error carries ErrorInfo with its reason",
    versions=NEW,
    bindings=RPC,
)
async def _(probe: Probe) -> None:
    error = _response(await probe.rpc("GetTask", {"id": MISSING_TASK})).get("error") or {}
    _error_info(error.get("data"), "TASK_NOT_FOUND")


@check(
    "REST-1",
    "MUST",
    "11.6",
    "An unknown task is 404, as an error of the protocol",
    versions=NEW,
    bindings=REST,
)
async def _(probe: Probe) -> None:
    (await probe.get(MISSING_TASK)).refused(why="of a task that does not exist")
    wire = probe.http.last
    assert wire is not None
    if wire.status != 404:
        raise ConformanceViolation(f"the status is {wire.status}, not 404")
    error = (wire.json or {}).get("error") if isinstance(wire.json, dict) else None
    if not isinstance(error, dict):
        raise ConformanceViolation("the body has no error object")
    for name in ("code", "status", "message"):
        if name not in error:
            raise ConformanceViolation(f"error.{name} is missing")
    if error["code"] != 404:
        raise ConformanceViolation(f"error.code is {error['code']!r}, and the status 404")


@check(
    "REST-2",
    "MUST",
    "11.6",
    "An error carries ErrorInfo with its reason",
    versions=NEW,
    bindings=REST,
)
async def _(probe: Probe) -> None:
    (await probe.get(MISSING_TASK)).refused(why="of a task that does not exist")
    wire = probe.http.last
    body = wire.json if wire is not None else None
    error = body.get("error") if isinstance(body, dict) else None
    _error_info((error or {}).get("details"), "TASK_NOT_FOUND")


@check("REST-3", "MUST", "11.6", "A body that is no JSON is 400", versions=NEW, bindings=REST)
async def _(probe: Probe) -> None:
    tenant = f"/{probe.interface.tenant}" if probe.interface.tenant else ""
    wire = await probe.post(b'{"message": ', path=f"{tenant}/message:send")
    if wire.status != 400:
        raise ConformanceViolation(f"the status is {wire.status}, not 400")


@check(
    "REST-4",
    "SHOULD",
    "11.1",
    "Answers are application/a2a+json or application/json",
    bindings=REST,
)
async def _(probe: Probe) -> None:
    (await probe.send()).given()
    kind = probe.http.last.media_type if probe.http.last is not None else ""
    if kind not in ("application/a2a+json", "application/json"):
        raise ConformanceViolation(f"the Content-Type of an answer is {kind!r}")


@check("PUSH-1", "MUST", "3.3.4", "Push notifications that the card does not declare are refused")
async def _(probe: Probe) -> None:
    if probe.card.capabilities.push_notifications:
        raise NotApplicable("the card declares capabilities.pushNotifications")
    said = await _create(probe, MISSING_TASK)
    kinds = (PushNotificationNotSupportedError, UnsupportedOperationError)
    said.refused_with(*kinds[: 1 if probe.version == "1.0" else 2], why="to an agent without push")


@check("PUSH-2", "MUST", "3.1.7", "A configuration is kept, found and listed")
async def _(probe: Probe) -> None:
    id, made = await _made(probe)
    request = GetTaskPushNotificationConfigRequest(task_id=id, id=made.id)
    found = (await probe.call("GetTaskPushNotificationConfig", request)).given()
    if found.url != WEBHOOK:
        raise ConformanceViolation(f"the configuration was for {WEBHOOK}, and is for {found.url}")
    listing = ListTaskPushNotificationConfigsRequest(task_id=id)
    page = (await probe.call("ListTaskPushNotificationConfigs", listing)).given()
    configs = page.configs if hasattr(page, "configs") else page
    if made.id not in [each.id for each in configs]:
        raise ConformanceViolation(f"the list does not have the configuration {made.id!r}")


@check("PUSH-3", "MUST", "3.1.10", "A deleted configuration is gone, also when deleted twice")
async def _(probe: Probe) -> None:
    id, made = await _made(probe)
    request = DeleteTaskPushNotificationConfigRequest(task_id=id, id=made.id)
    (await probe.call("DeleteTaskPushNotificationConfig", request)).given()
    getting = GetTaskPushNotificationConfigRequest(task_id=id, id=made.id)
    (await probe.call("GetTaskPushNotificationConfig", getting)).refused(why="that was deleted")
    if probe.version == "1.0":
        (await probe.call("DeleteTaskPushNotificationConfig", request)).given()


@check("PUSH-4", "MUST", "3.1.7", "A configuration for an unknown task is refused as TaskNotFound")
async def _(probe: Probe) -> None:
    if not probe.card.capabilities.push_notifications:
        raise NotApplicable("the card does not declare capabilities.pushNotifications")
    said = await _create(probe, MISSING_TASK)
    said.refused_with(TaskNotFoundError, why="for a task that does not exist")


@check("EXT-1", "MUST", "3.1.11", "An extended card that is not declared is refused", versions=NEW)
async def _(probe: Probe) -> None:
    if probe.card.capabilities.extended_agent_card:
        raise NotApplicable("the card declares capabilities.extendedAgentCard")
    said = await probe.call("GetExtendedAgentCard", GetExtendedAgentCardRequest())
    said.refused_with(
        *(UnsupportedOperationError, ExtendedAgentCardNotConfiguredError),
        why="of an agent without one",
    )


@check(
    "EXT-2",
    "MUST",
    "3.1.11",
    "A declared extended card is served, to those who may see it",
    versions=NEW,
)
async def _(probe: Probe) -> None:
    if not probe.card.capabilities.extended_agent_card:
        raise NotApplicable("the card does not declare capabilities.extendedAgentCard")
    said = await probe.call("GetExtendedAgentCard", GetExtendedAgentCardRequest())
    allowed = (AuthenticationRequired, UnauthenticatedError, ExtendedAgentCardNotConfiguredError)
    if said.error is not None and not isinstance(said.error, allowed):
        said.given()


@check(
    "EXT-3", "MUST", "4.6.1", "A required extension that is not requested is refused", versions=NEW
)
async def _(probe: Probe) -> None:
    if not any(each.required for each in probe.card.capabilities.extensions):
        raise NotApplicable("the card requires no extension")
    (await probe.send()).refused(why="without the extension that the card requires")


async def _create(probe: Probe, task: str, id: str = "conformance") -> Any:
    config = TaskPushNotificationConfig(task_id=task, id=id, url=WEBHOOK)
    return await probe.call("CreateTaskPushNotificationConfig", config)


async def _made(probe: Probe) -> tuple[str, TaskPushNotificationConfig]:
    if not probe.card.capabilities.push_notifications:
        raise NotApplicable("the card does not declare capabilities.pushNotifications")
    task = await probe.finished()
    said = await _create(probe, task.id)
    if isinstance(said.error, A2AError) and WEBHOOK.split("/")[2] in str(said.error):
        raise NotApplicable(f"the agent takes no webhook at {WEBHOOK}: {said.error}")
    return task.id, said.given()


def _response(wire: WireExchange) -> dict[str, Any]:
    if not isinstance(wire.json, dict) or wire.json.get("jsonrpc") != "2.0":
        raise ConformanceViolation(f"the answer, {wire.status}, is not a JSON-RPC 2.0 response")
    return wire.json


def _code(wire: WireExchange, code: int, what: str) -> None:
    answer = _response(wire)
    if "error" not in answer:
        raise ConformanceViolation(f"{what} was answered with a result")
    found = answer["error"].get("code") if isinstance(answer["error"], dict) else None
    if found != code:
        raise ConformanceViolation(f"{what} was answered with {found}, not with {code}")


def _error_info(details: Any, reason: str) -> None:
    items = details if isinstance(details, list) else []
    infos = [e for e in items if isinstance(e, dict) and e.get("@type") == ERROR_INFO]
    if not infos:
        raise ConformanceViolation(f"the error has no {ERROR_INFO}")
    if infos[0].get("reason") != reason:
        raise ConformanceViolation(f"the reason is {infos[0].get('reason')!r}, not {reason!r}")
    if infos[0].get("domain") != "a2a-protocol.org":
        raise ConformanceViolation(
            f"the domain is {infos[0].get('domain')!r}, not 'a2a-protocol.org'"
        )
