"""Checks of push notifications, extended cards, extensions, output modes, tenants, older names."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from parley.client.errors import AuthenticationRequired
from parley.conformance.error_checks import PICTURE
from parley.conformance.probe import MISSING_TASK, Probe, members_of
from parley.conformance.verdicts import (
    NEW,
    OLD,
    OVER_HTTP,
    REST,
    RPC,
    Checks,
    NotApplicable,
    fail_if,
)
from parley.model.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig
from parley.wire.sse import SseParser

check = Checks()
WEBHOOK = "https://conformance.example/webhook"
SECRET = "secret-of-the-conformance-run"
CREATE, GET, LIST, DELETE = (
    f"{verb}TaskPushNotificationConfig{'s' * (verb == 'List')}"
    for verb in ("Create", "Get", "List", "Delete")
)
UNDECLARED = "the card does not declare capabilities."


@check("PUSH-1", "MUST", "3.3.4", "Push operations are rejected unless the card declares them")
async def _(probe: Probe) -> None:
    if probe.card.capabilities.push_notifications:
        raise NotApplicable("the card declares capabilities.pushNotifications")
    kinds = (PushNotificationNotSupportedError, UnsupportedOperationError)[: 1 + probe.is_old]
    for operation in (CREATE, GET, LIST, DELETE):
        said = await _push(probe, operation, MISSING_TASK)
        said.rejected_with(*kinds, why="to an agent without push")


@check("PUSH-2", "MUST", "3.1.7", "A configuration is stored, found and listed")
async def _(probe: Probe) -> None:
    made = await _made(probe)
    found = (await _push(probe, GET, made.task_id, made.id)).given()
    fail_if(found.url != WEBHOOK, f"the configuration for {WEBHOOK} has the URL {found.url}")
    for size in (0, 10):
        ids = [each.id for each in await _listed(probe, made.task_id, page_size=size)]
        fail_if(made.id not in ids, f"the list does not have the configuration {made.id!r}")


@check("PUSH-3", "MUST", "3.1.10", "A deleted configuration is gone; a second deletion succeeds")
async def _(probe: Probe) -> None:
    made = await _made(probe)
    (await _push(probe, DELETE, made.task_id, made.id)).given()
    (await _push(probe, GET, made.task_id, made.id)).rejected(why="that was deleted")
    if not probe.is_old:
        (await _push(probe, DELETE, made.task_id, made.id)).given()


@check(
    "PUSH-4", "MUST", "3.1.7", "Configurations of an unknown task are rejected with TaskNotFound"
)
async def _(probe: Probe) -> None:
    _pushes(probe)
    for operation in (CREATE, GET, LIST):
        said = await _push(probe, operation, MISSING_TASK)
        said.rejected_with(TaskNotFoundError, why="for a task that does not exist")


@check("PUSH-5", "MAY", "3.1.7", "The credentials of a configuration are not returned")
async def _(probe: Probe) -> None:
    made = await _made(probe)
    found = (await _push(probe, GET, made.task_id, made.id)).given()
    for each in (made, found, *await _listed(probe, made.task_id)):
        told = each.authentication and each.authentication.credentials
        fail_if(told, "the response contains the credentials")


@check("PUSH-6", "MAY", "3.1.7", "A configuration without an HTTP URL is rejected")
async def _(probe: Probe) -> None:
    _pushes(probe)
    said = await _push(probe, CREATE, (await probe.finished()).id, url="nonsense")
    said.rejected_with(InvalidParamsError, why="with the URL 'nonsense'")


@check("PUSH-7", "MAY", "11.3", "A deletion is answered with an empty object", bindings=REST)
async def _(probe: Probe) -> None:
    made = await _made(probe)
    wire = (await _push(probe, DELETE, made.task_id, made.id)).wire
    found = (wire.status, wire.json) if wire is not None else None
    fail_if(found != (200, {}), f"the response is {found}")


@check(
    *("PUSH-8", "MAY", "0.3:7.5", "A configuration may be the body or a member of it"),
    versions=OLD,
    bindings=REST,
)
async def _(probe: Probe) -> None:
    inner = {"pushNotificationConfig": {"id": "inner", "url": WEBHOOK}}
    task = (await _made(probe)).task_id
    path = f"/v1/tasks/{task}/pushNotificationConfigs"
    config = {"name": f"tasks/{task}/pushNotificationConfigs/inner", **inner}
    whole = {"parent": f"tasks/{task}", "configId": "inner", "config": config}
    for body in (inner, whole):
        wire = await probe.raw(json.dumps(body).encode(), path=path)
        fail_if(wire.status != 200, f"the status is {wire.status}")
        ids = [each.id for each in await _listed(probe, task)]
        fail_if("inner" not in ids, "the list does not have the configuration")


@check(
    "EXT-1", "MUST", "3.1.11", "A request for an undeclared extended card is rejected", versions=NEW
)
async def _(probe: Probe) -> None:
    if probe.card.capabilities.extended_agent_card:
        raise NotApplicable("the card declares capabilities.extendedAgentCard")
    said = await probe.call("GetExtendedAgentCard")
    kinds = (UnsupportedOperationError, ExtendedAgentCardNotConfiguredError)
    said.rejected_with(*kinds, why="of an agent without one")


@check("EXT-2", "MUST", "3.1.11", "A declared extended card is served to permitted callers")
async def _(probe: Probe) -> None:
    if not probe.card.capabilities.extended_agent_card:
        raise NotApplicable(f"{UNDECLARED}extendedAgentCard")
    said = await probe.call("GetExtendedAgentCard")
    allowed = (AuthenticationRequired, UnauthenticatedError, ExtendedAgentCardNotConfiguredError)
    if not isinstance(said.error, allowed):
        said.given()


@check("EXT-3", "MUST", "4.6.1", "A request without a required extension is rejected", versions=NEW)
async def _(probe: Probe) -> None:
    if not probe.required:
        raise NotApplicable("the card requires no extension")
    said = await probe.send(extensions=())
    said.rejected_with(ExtensionSupportRequiredError, why="without a required extension")
    (await probe.send()).given()


@check(
    "MODE-1", "MAY", "3.1.1", "Unsupported content is rejected, and the error names supported modes"
)
async def _(probe: Probe) -> None:
    said = await probe.send(part=PICTURE)
    if said.error is None:
        raise NotApplicable("the agent accepts any content")
    error = said.rejected_with(ContentTypeNotSupportedError, why=f"of {PICTURE.media_type}")
    modes = probe.card.default_input_modes
    fail_if(not any(mode in str(error) for mode in modes), f"it says {str(error)!r}")


@check(
    "MODE-2", "MAY", "3.2.2", "A request that accepts none of the agent's output modes is rejected"
)
async def _(probe: Probe) -> None:
    said = await probe.send(probe.task_text, modes=("application/x-conformance",))
    said.rejected_with(ContentTypeNotSupportedError, why="for application/x-conformance")
    for mode in probe.card.default_output_modes:
        (await probe.send(probe.task_text, modes=(f"{mode.partition('/')[0]}/*",))).given()


@check(
    *("TENANT-1", "MAY", "4.4.6", "An unknown tenant is rejected"),
    versions=NEW,
    bindings=("JSONRPC", "GRPC"),
)
async def _(probe: Probe) -> None:
    _tenants(probe)
    said = await probe.call("GetTask", id=MISSING_TASK, tenant="no-such-tenant")
    said.rejected_with(InvalidParamsError, why="of a tenant that does not exist")


@check(
    *("TENANT-2", "MAY", "4.4.6", "A body that names another tenant than the path is rejected"),
    versions=NEW,
    bindings=REST,
)
async def _(probe: Probe) -> None:
    _tenants(probe)
    said = await probe.send(members={"tenant": "no-such-tenant"})
    said.rejected_with(InvalidParamsError, why="whose body names another tenant")


def _tenants(probe: Probe) -> None:
    if not any(each.tenant for each in probe.card.supported_interfaces):
        raise NotApplicable("the card names no tenant")


# -- requests of clients before 0.3 -----------------------------------------------------------


def _older(probe: Probe, text: str = "", **more: Any) -> dict[str, Any]:
    """Return parameters in the form of the specification before 0.3."""
    parts = [{"type": "text", "text": text or probe.task_text}]
    return {"message": {"role": "user", "parts": parts}, **more}


@check("OLDER-1", "MAY", "0.3:7.1", "tasks/send is message/send", versions=OLD, bindings=RPC)
async def _(probe: Probe) -> None:
    task = await _sent(probe, sessionId="a-session")
    fail_if(task.get("contextId") != "a-session", "the sessionId is not the contextId")
    asked = await probe.asking()
    done = await _sent(probe, "Here it is", id=asked.id)
    fail_if(done.get("id") != asked.id, "the id is not the id of the task")


@check(
    "OLDER-2", "MAY", "0.3:7.2", "tasks/sendSubscribe is message/stream", versions=OLD, bindings=RPC
)
async def _(probe: Probe) -> None:
    probe.need_streams()
    events = _events((await probe.rpc("tasks/sendSubscribe", _older(probe), UNSAID)).body)
    fail_if(
        not events or events[-1]["result"].get("final") is not True,
        "the response is not a stream with a final event",
    )


@check("OLDER-3", "MAY", "0.3:7.9", "tasks/subscribe resubscribes", versions=OLD, bindings=RPC)
async def _(probe: Probe) -> None:
    task = await probe.asking()
    (await probe.subscribe(task.id, events=1, members={"/method": "tasks/subscribe"})).given()


@check("OLDER-4", "MAY", "0.3:7.3", "tasks/list lists tasks", versions=OLD, bindings=RPC)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    for size in (0, 10):
        params = {"contextId": task.context_id, "pageSize": size}
        page = ((await probe.rpc("tasks/list", params, UNSAID)).json or {}).get("result") or {}
        found = [(each.get("kind"), each.get("id")) for each in page.get("tasks", ())]
        fail_if(("task", task.id) not in found, "the task is not in the list")


@check("OLDER-5", "MAY", "0.3:3.5.3", "GET /v1/tasks lists tasks", versions=OLD, bindings=REST)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    wire = await probe.raw(None, verb="GET", path=f"/v1/tasks?contextId={task.context_id}")
    ids = [each.get("id") for each in (wire.json or {}).get("tasks", ())]
    fail_if(task.id not in ids, "the task is not in the list")


@check("OLDER-6", "MAY", "0.3:3.5.3", "POST /tasks/send sends", versions=OLD, bindings=REST)
async def _(probe: Probe) -> None:
    wire = await probe.raw(json.dumps(_older(probe)).encode(), path="/tasks/send", headers=UNSAID)
    fail_if(wire.status != 200, f"the status is {wire.status}")


@check("OLDER-7", "MAY", "0.3:3.5.3", "POST /tasks/sendStream streams", versions=OLD, bindings=REST)
async def _(probe: Probe) -> None:
    probe.need_streams()
    body = json.dumps(_older(probe)).encode()
    events = _events((await probe.raw(body, path="/tasks/sendStream", headers=UNSAID)).body)
    final = events and events[-1].get("statusUpdate", {}).get("final")
    fail_if(final is not True, "the response is not a stream with a final event")


@check(
    "OLDER-8", "MAY", "0.3:3.5.3", "POST /tasks/{id}/cancel cancels", versions=OLD, bindings=REST
)
async def _(probe: Probe) -> None:
    path = f"/tasks/{(await probe.running()).id}/cancel"
    status = (await probe.raw(b"", path=path, headers=UNSAID)).status
    fail_if(status != 200, f"the status is {status}")


@check(
    "OLDER-9",
    "MAY",
    "3.6.2",
    "Method names before 0.3 work in 0.3 only",
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    if probe.binding == "JSONRPC":
        error = (await probe.rpc("tasks/send", _older(probe))).json
        fail_if("error" not in error, "tasks/send was served as 1.0")
    else:
        status = (await probe.raw(b"{}", path="/tasks/send")).status
        fail_if(status < 400, "POST /tasks/send was served as 1.0")


UNSAID = {"A2A-Version": ""}


async def _sent(probe: Probe, text: str = "", **more: Any) -> dict[str, Any]:
    """Return the task in the response to tasks/send."""
    answer = await probe.rpc("tasks/send", _older(probe, text, **more), UNSAID)
    return members_of((answer.json or {}).get("result"), "the response has no result")


def _events(body: bytes) -> list[Any]:
    return [json.loads(data) for _, _, data in SseParser().feed(body) if data]


def _pushes(probe: Probe) -> None:
    if not probe.card.capabilities.push_notifications:
        raise NotApplicable(f"{UNDECLARED}pushNotifications")


async def _push(
    probe: Probe, operation: str, task: str, id: str = "conformance", url: str = WEBHOOK
) -> Any:
    """Call an operation on a push configuration."""
    fields: dict[str, Any] = {"task_id": task}
    if operation != LIST:
        fields["id"] = id
    if operation == CREATE:
        proof = AuthenticationInfo(scheme="Bearer", credentials=SECRET)
        fields |= {"url": url, "authentication": proof}
    return await probe.call(operation, **fields)


async def _listed(
    probe: Probe, task: str, **options: Any
) -> tuple[TaskPushNotificationConfig, ...]:
    page = (await probe.call(LIST, task_id=task, **options)).given()
    return tuple(getattr(page, "configs", page))


async def _made(probe: Probe) -> TaskPushNotificationConfig:
    _pushes(probe)
    task = await probe.finished()
    said = await _push(probe, CREATE, task.id)
    if isinstance(said.error, A2AError) and WEBHOOK.split("/")[2] in str(said.error):
        raise NotApplicable(f"the agent accepts no webhook at {WEBHOOK}: {said.error}")
    made: TaskPushNotificationConfig = said.given()
    return msgspec.structs.replace(made, task_id=task.id)
