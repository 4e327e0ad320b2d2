"""Checks of messages: what an agent does with them, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

from parley.conformance.probe import MISSING_TASK, Probe, WireExchange
from parley.conformance.verdicts import OVER_HTTP, Checks, ConformanceViolation, NotApplicable
from parley.model.errors import (
    InvalidAgentResponseError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
    an,
)
from parley.model.parts import Message, Role
from parley.model.tasks import Task, TaskState

check = Checks()
NEW = ("1.0",)
OLD = ("0.3",)


@check("MSG-1", "MUST", "3.1.1", "A message is answered with a task or a message")
async def _(probe: Probe) -> None:
    value = (await probe.send()).given()
    if not isinstance(value, Task | Message):
        raise ConformanceViolation(f"the answer is {an(type(value).__name__)}")


@check("MSG-2", "MUST", "4.1.1", "A task has an id, a context and a state")
async def _(probe: Probe) -> None:
    task = await probe.finished()
    if not task.id:
        raise ConformanceViolation("the task has no id")
    if not task.context_id:
        raise ConformanceViolation("the task has no contextId")
    if task.state is TaskState.UNSPECIFIED:
        raise ConformanceViolation("the task has no state that the specification knows")


@check("MSG-3", "MUST", "3.4.1", "The context that the agent made is in its answer")
async def _(probe: Probe) -> None:
    value = (await probe.send()).given()
    if not value.context_id:
        raise ConformanceViolation("neither the task nor the message has a contextId")


@check("MSG-4", "MUST", "3.4.1", "A given context is kept or refused, never replaced")
async def _(probe: Probe) -> None:
    first = (await probe.send()).given()
    said = await probe.send(context=first.context_id)
    if said.error is None and said.value.context_id != first.context_id:
        raise ConformanceViolation(
            f"the contextId {first.context_id!r} became {said.value.context_id!r} in the answer"
        )


@check("MSG-5", "MUST", "3.4.2", "A message for an unknown task is refused as TaskNotFound")
async def _(probe: Probe) -> None:
    said = await probe.send(task=MISSING_TASK)
    said.refused_with(TaskNotFoundError, why="for a task that does not exist")


@check("MSG-6", "MUST", "3.1.1", "A message for an ended task is refused", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    said = await probe.send(task=task.id, context=task.context_id)
    said.refused_with(UnsupportedOperationError, why="for a task that has ended")


@check("MSG-7", "MUST", "3.4.3", "A task of another context than the given one is refused")
async def _(probe: Probe) -> None:
    task = await probe.asking()
    said = await probe.send(task=task.id, context="another-context")
    said.refused(why="with the contextId of another context than the task's")


@check("MSG-8", "MUST", "4.1.4", "Messages of the agent have its role, an id and parts")
async def _(probe: Probe) -> None:
    value = (await probe.send()).given()
    said = value if isinstance(value, Message) else value.status.message
    if said is None:
        raise NotApplicable("the agent said nothing")
    if said.role is not Role.AGENT:
        raise ConformanceViolation(f"the role is {said.role}, not that of an agent")
    if not said.message_id:
        raise ConformanceViolation("the message has no messageId")
    if not said.parts:
        raise ConformanceViolation("the message has no parts")


@check("MSG-9", "MUST", "4.1.4", "A message without parts is refused", bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    await _refused(probe, {"parts": []}, "parts is empty")


@check("MSG-10", "MUST", "4.1.4", "A message without messageId is refused", bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    await _refused(probe, {"messageId": None}, "messageId is missing")


@check("MSG-11", "MUST", "4.1.4", "Parts that are no list are refused", bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    await _refused(probe, {"parts": "Hello"}, "parts is a text")


@check("MSG-12", "SHOULD", "5.7", "Unknown members are ignored", versions=NEW, bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    exchange = await _raw_send(probe, {"someNewMember": {"of": "a later version"}})
    if _error(probe, exchange) is not None:
        raise ConformanceViolation("a message with a member that nobody knows was refused")


@check("MSG-13", "MUST", "3.2.4", "With historyLength 0 the answer has no history", versions=NEW)
async def _(probe: Probe) -> None:
    await probe.finished()
    value = (await probe.send(probe.texts.task or probe.texts.text, history=0)).given()
    if isinstance(value, Task) and value.history:
        raise ConformanceViolation(f"the task has {len(value.history)} messages of history")


@check("MSG-14", "MUST", "3.4.3", "An answer to a question continues its task")
async def _(probe: Probe) -> None:
    task = await probe.asking()
    value = (await probe.send("Here it is", task=task.id)).given()
    if not isinstance(value, Task) or value.id != task.id:
        raise ConformanceViolation(f"the answer is not the task {task.id!r}")
    if value.context_id != task.context_id:
        raise ConformanceViolation(f"the contextId changed to {value.context_id!r}")


@check("MSG-15", "MUST", "3.4.2", "Every new task has an id of its own")
async def _(probe: Probe) -> None:
    first = await probe.finished()
    value = (await probe.send(probe.texts.task or probe.texts.text)).given()
    if isinstance(value, Task) and value.id == first.id:
        raise ConformanceViolation(f"two messages without a task got the same one, {first.id!r}")


@check(
    "MSG-16",
    "MUST",
    "3.2.2",
    "A message is answered when its task has ended or waits",
    versions=NEW,
)
async def _(probe: Probe) -> None:
    value = (await probe.send(probe.texts.task or probe.texts.text)).given()
    if not isinstance(value, Task):
        raise NotApplicable("the agent answers directly")
    if not (value.state.is_terminal or value.state.is_interrupted):
        raise ConformanceViolation(
            f"the task is {value.state}, and nothing asked for an answer at once"
        )


@check("MSG-17", "MUST", "3.2.2", "With returnImmediately the answer does not wait", versions=NEW)
async def _(probe: Probe) -> None:
    if not probe.texts.slow:
        raise NotApplicable("--slow names a text that the agent works on for some seconds")
    value = (await probe.send(probe.texts.slow, at_once=True)).given()
    if isinstance(value, Task) and value.state.is_terminal:
        raise ConformanceViolation(f"the answer came when the task was {value.state} already")


@check(
    "VER-1",
    "MUST",
    "3.6.2",
    "An unknown version is refused as VersionNotSupported",
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    exchange = await _raw_send(probe, {}, headers={"A2A-Version": "99.0"})
    error = _error(probe, exchange)
    if error is None:
        raise ConformanceViolation("a request with A2A-Version: 99.0 was served")
    if not isinstance(error, VersionNotSupportedError):
        raise ConformanceViolation(
            f"A2A-Version: 99.0 was answered with {error}, not with VersionNotSupportedError "
            "(-32009)"
        )


@check(
    "VER-2",
    "MUST",
    "3.6.2",
    "A request without a version is one of 0.3",
    versions=NEW,
    bindings=("JSONRPC",),
)
async def _(probe: Probe) -> None:
    exchange = await _raw_send(probe, {}, headers={"A2A-Version": ""})
    answer = exchange.json
    result = answer.get("result") if isinstance(answer, dict) else None
    if isinstance(result, dict) and ("task" in result or "message" in result):
        raise ConformanceViolation(
            "SendMessage without A2A-Version, which means 0.3, was served in the form of 1.0"
        )


async def _refused(probe: Probe, members: dict[str, Any], what: str) -> None:
    exchange = await _raw_send(probe, members)
    error = _error(probe, exchange)
    if error is None:
        raise ConformanceViolation(f"a message whose {what} was accepted")
    if probe.binding == "HTTP+JSON" and exchange.status == 400:
        return  # the status is all that this binding asks for
    if not isinstance(error, InvalidParamsError):
        raise ConformanceViolation(
            f"a message whose {what} was answered with {error}, not with InvalidParams"
        )


async def _raw_send(
    probe: Probe, members: dict[str, Any], headers: dict[str, str] | None = None
) -> WireExchange:
    """Send a message whose members are replaced; ``None`` takes one out."""
    if probe.version == "0.3" and probe.binding != "JSONRPC":
        raise NotApplicable("tried over JSON-RPC for this version")
    whole = probe.message()
    message: dict[str, Any] = {"messageId": whole.message.message_id}
    text = whole.message.parts[0].text
    if probe.version == "0.3":
        parts = [{"kind": "text", "text": text}]
        message |= {"kind": "message", "role": "user", "parts": parts}
    else:
        message |= {"role": "ROLE_USER", "parts": [{"text": text}]}
    message |= members
    message = {name: value for name, value in message.items() if value is not None}
    params: dict[str, Any] = {"message": message}
    if probe.interface.tenant:
        params["tenant"] = probe.interface.tenant
    if probe.binding == "JSONRPC":
        method = "message/send" if probe.version == "0.3" else "SendMessage"
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await probe.post(json.dumps(call).encode(), headers=headers or {})
    tenant = f"/{probe.interface.tenant}" if probe.interface.tenant else ""
    body = json.dumps(params).encode()
    return await probe.post(body, path=f"{tenant}/message:send", headers=headers or {})


def _error(probe: Probe, exchange: WireExchange) -> Exception | None:
    """Return the error of a raw answer, ``None`` for a success."""
    answer = exchange.json
    if probe.binding == "JSONRPC":
        if not isinstance(answer, dict):
            raise ConformanceViolation(f"the answer, {exchange.status}, is not a JSON-RPC response")
        if "error" not in answer:
            return None
        return probe.dialect.jsonrpc.read_error(json.dumps(answer["error"]).encode())
    if 200 <= exchange.status < 300:
        return None
    try:
        return probe.dialect.http_json.read_error(exchange.status, exchange.body)
    except InvalidAgentResponseError as error:
        raise ConformanceViolation(
            f"the answer, {exchange.status}, is no error of the protocol"
        ) from error
