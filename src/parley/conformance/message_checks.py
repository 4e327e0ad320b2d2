"""Checks of messages: the agent's responses to messages, and the messages that it must reject."""

from __future__ import annotations

from typing import Any

from parley.conformance.probe import GONE, MISSING_TASK, Probe
from parley.conformance.verdicts import (
    ALL_VERSIONS,
    NEW,
    OLD,
    OVER_HTTP,
    REST,
    Checks,
    ConformanceViolation,
    Level,
    NotApplicable,
    fail_if,
)
from parley.model.errors import (
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
    an,
)
from parley.model.parts import Message, Role
from parley.model.tasks import Task, TaskState

check = Checks()


@check("MSG-1", "MUST", "3.1.1", "A message is answered with a task or a message")
async def _(probe: Probe) -> None:
    value = (await probe.send()).given()
    fail_if(not isinstance(value, Task | Message), f"the response is {an(type(value).__name__)}")


@check("MSG-2", "MUST", "4.1.1", "A task has an id, a context and a state")
async def _(probe: Probe) -> None:
    task = await probe.finished()
    fail_if(not task.id, "the task has no id")
    fail_if(not task.context_id, "the task has no contextId")
    unknown = task.state is TaskState.UNSPECIFIED
    fail_if(unknown, "the task has no state that the specification knows")


@check("MSG-3", "MUST", "3.4.1", "The response has the contextId that the agent generated")
async def _(probe: Probe) -> None:
    value = (await probe.send()).given()
    fail_if(not value.context_id, "neither the task nor the message has a contextId")


@check("MSG-4", "MUST", "3.4.1", "A given contextId is kept or rejected, never replaced")
async def _(probe: Probe) -> None:
    first = (await probe.send()).given()
    said = await probe.send(context=first.context_id)
    if said.error is None and said.value.context_id != first.context_id:
        raise ConformanceViolation(
            f"the contextId {first.context_id!r} became {said.value.context_id!r} in the response"
        )


@check("MSG-5", "MUST", "3.4.2", "A message for an unknown task is rejected with TaskNotFound")
async def _(probe: Probe) -> None:
    said = await probe.send(task=MISSING_TASK)
    said.rejected_with(TaskNotFoundError, why="for a task that does not exist")


@check("MSG-6", "MUST", "3.1.1", "A message for an ended task is rejected", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    said = await probe.send(task=task.id, context=task.context_id)
    said.rejected_with(UnsupportedOperationError, why="for a task that has ended")


@check("MSG-7", "MUST", "3.4.3", "A message whose contextId is not its task's is rejected")
async def _(probe: Probe) -> None:
    task = await probe.asking()
    said = await probe.send(task=task.id, context="another-context")
    said.rejected(why="with a contextId other than the task's")
    state = (await probe.get(task.id)).given().state
    fail_if(state is not task.state, f"the task is {state} after a rejected message")


@check("MSG-8", "MUST", "4.1.4", "Messages of the agent have the agent's role, an id and parts")
async def _(probe: Probe) -> None:
    value = (await probe.send()).given()
    said = value if isinstance(value, Message) else value.status.message
    if said is None:
        raise NotApplicable("the agent sent no message")
    fail_if(said.role is not Role.AGENT, f"the role is {said.role}, not the agent's role")
    fail_if(not said.message_id, "the message has no messageId")
    fail_if(not said.parts, "the message has no parts")


INVALID_MESSAGES: tuple[tuple[str, Level, str, tuple[str, ...], dict[str, Any], str], ...] = (
    ("MSG-9", "MUST", "4.1.4", ALL_VERSIONS, {"parts": []}, "has no parts"),
    ("MSG-10", "MUST", "4.1.4", ALL_VERSIONS, {"messageId": GONE}, "has no messageId"),
    ("MSG-11", "MUST", "4.1.4", ALL_VERSIONS, {"parts": "Hello"}, "has a string as its parts"),
    ("MSG-18", "MUST", "5.5", NEW, {"messageId": 7}, "has a number as its messageId"),
    ("MSG-19", "MUST", "5.5", NEW, {"metadata": []}, "has a list as its metadata"),
    ("MSG-20", "SHOULD", "4.1.6", NEW, {"parts": [{}]}, "has a part without content"),
    (
        "MSG-21",
        "MUST",
        "4.1.6",
        NEW,
        {"parts.0.url": "https://a.example"},
        "has a part with two contents",
    ),
    (
        "MSG-22",
        "SHOULD",
        "4.1.6",
        NEW,
        {"parts": [{"raw": "no base64!"}]},
        "has invalid base64 as raw",
    ),
    ("MSG-23", "SHOULD", "4.1.4", NEW, {"role": "ROLE_NOBODY"}, "has an unknown role"),
)
"""Invalid messages: id, level, section, versions, the invalid members, and a description."""

for _id, _level, _section, _versions, _members, _what in INVALID_MESSAGES:

    @check(
        *(_id, _level, _section, f"A message that {_what} is rejected"),
        versions=_versions,
        bindings=OVER_HTTP,
    )
    async def _(probe: Probe, members: dict[str, Any] = _members, what: str = _what) -> None:
        altered = {
            f"message.{name.replace('parts', probe.parts)}": value
            for name, value in members.items()
        }
        said = await probe.send(members=altered)
        if said.wire is not None and (probe.binding, said.wire.status) == ("HTTP+JSON", 400):
            return  # this binding requires the status only
        said.rejected_with(InvalidParamsError, why=f"of a message that {what}")


@check("MSG-24", "SHOULD", "9.1", "Numbers that are not JSON are rejected", bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    said = await probe.send(members={"message.metadata": {"n": float("nan")}})
    said.rejected(why="of a message with NaN in its metadata")


@check("MSG-25", "SHOULD", "9.5", "The error names the invalid fields", bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    wanted = {f"message.{probe.parts}", "message.messageId"}
    said = await probe.send(members=dict.fromkeys(wanted, GONE))
    error = said.rejected_with(InvalidParamsError, why="of a message without an id and parts")
    named = {each.field for each in error.violations}
    plain = [{each.replace("_", "").lower() for each in some} for some in (named, wanted)]
    fail_if(not plain[0] >= plain[1], f"the error names {sorted(named)}, not {sorted(wanted)}")


@check("MSG-12", "SHOULD", "5.7", "Unknown members are ignored", versions=NEW, bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    new = {"of": "a later version"}
    for place in ("", "message.", "message.parts.0.", "configuration."):
        said = await probe.send(members={f"{place}someNewMember": new})
        fail_if(said.error, f"a request with the unknown {place}someNewMember was rejected")


@check("MSG-26", "MAY", "5.5", "Members may have their protobuf names", bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    members = {"message.messageId": GONE, "message.message_id": "spelled-otherwise"}
    said = await probe.send(members=members | {"message.context_id": "spelled"})
    fail_if(said.given().context_id != "spelled", "the context_id of the message was ignored")
    if not probe.is_old:
        task = await probe.task(members={"configuration": {"history_length": 0}})
        fail_if(task.history, "the history_length of the configuration was ignored")


@check("MSG-13", "MUST", "3.2.4", "With historyLength 0 the response has no history", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.task(history=0)
    fail_if(task.history, f"the task has {len(task.history)} messages of history")


@check("MSG-14", "MUST", "3.4.3", "An answer to a question continues its task")
async def _(probe: Probe) -> None:
    task = await probe.asking()
    value = (await probe.send("Here it is", task=task.id)).given()
    other = not isinstance(value, Task) or value.id != task.id
    fail_if(other, f"the response is not the task {task.id!r}")
    changed = value.context_id != task.context_id
    fail_if(changed, f"the contextId changed to {value.context_id!r}")


@check("MSG-15", "MUST", "3.4.2", "Every new task has a unique id")
async def _(probe: Probe) -> None:
    first = await probe.finished()
    same = (await probe.task()).id == first.id
    fail_if(same, f"two messages without a taskId got the same task, {first.id!r}")


@check(
    "MSG-16",
    "MUST",
    "3.2.2",
    "The response to a message comes when its task has ended or is interrupted",
)
async def _(probe: Probe) -> None:
    _waited(await probe.task())


@check(
    *("MSG-27", "MUST", "3.2.2", "Without returnImmediately the response waits as well"),
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    for configuration in (GONE, {}):
        _waited(await probe.task(members={"configuration": configuration}))


@check(
    *("MSG-33", "SHOULD", "5.7", "The member blocking of 0.3 is ignored"),
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    _waited(await probe.task(members={"configuration": {"blocking": False}}))


@check(
    "MSG-28",
    "MAY",
    "0.3:7.1.1",
    "With blocking of 0.3 the response waits",
    versions=OLD,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    _waited(await probe.task(members={"configuration": GONE}))


@check("MSG-17", "MUST", "3.2.2", "With returnImmediately the response does not wait")
async def _(probe: Probe) -> None:
    await _at_once(probe, at_once=True)


@check(
    *("MSG-29", "MAY", "0.3:7.1.1", "A configuration without blocking does not wait"),
    versions=OLD,
    bindings=REST,
)
async def _(probe: Probe) -> None:
    await _at_once(probe, members={"configuration": {}})


@check("MSG-30", "MAY", "3.4.1", "The caller may choose a new contextId")
async def _(probe: Probe) -> None:
    value = (await probe.send(context="a-context-of-the-caller")).given()
    fail_if(value.context_id != "a-context-of-the-caller", "the contextId is different")


@check(
    "MSG-31", "MAY", "3.3.1", "A message with the messageId of an earlier message is a new message"
)
async def _(probe: Probe) -> None:
    ids = {(await probe.task(id="the-same-message")).id for _ in range(2)}
    fail_if(len(ids) < 2, "the earlier task was returned")


@check("MSG-32", "MAY", "3.7", "The history has every question and answer once")
async def _(probe: Probe) -> None:
    task = await probe.asking()
    (await probe.send("Here it is", task=task.id)).given()
    found = (await probe.get(task.id)).given()
    said = [each.message_id for each in found.history]
    fail_if(len(set(said)) < len(said), "a message is in the history twice")
    texts = [part.text for each in found.history for part in each.parts]
    fail_if("Here it is" not in texts, "the answer to the question is not in the history")
    question = task.status.message
    lost = question is not None and question.message_id not in said
    fail_if(lost, "the question is not in the history")


@check("EXT-4", "SHOULD", "4.6.3", "An extension that the agent does not know is ignored")
async def _(probe: Probe) -> None:
    (await probe.send(extensions=("urn:example:unknown:v9", *probe.required))).given()


@check(*("EXT-5", "MAY", "4.6.1", "The response names the active extensions"), bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    declared = {each.uri for each in probe.card.capabilities.extensions}
    if not declared:
        raise NotApplicable("the card declares no extension")
    wire = (await probe.send(extensions=tuple(declared))).wire
    name = probe.dialect.extensions_header
    fail_if(wire is None or not wire.headers.get(name), f"the response has no header {name}")


@check("VER-1", "MUST", "3.6.2", "Unknown versions are VersionNotSupported", versions=NEW)
async def _(probe: Probe) -> None:
    for version in ("99.0", "0.2", "nonsense"):
        said = await probe.send(version=version)
        said.rejected_with(VersionNotSupportedError, why=f"with A2A-Version: {version}")


@check(
    *("VER-2", "MUST", "3.6.2", "A request without a version is a request of 0.3"),
    versions=NEW,
    bindings=("JSONRPC", "GRPC"),
)
async def _(probe: Probe) -> None:
    said = await probe.send(version="")
    fail_if(
        said.error is None,
        "SendMessage without A2A-Version, which means 0.3, was served in the form of 1.0",
    )


@check("VER-3", "MUST", "3.6.2", "A request of 0.3 may leave out its version", versions=OLD)
async def _(probe: Probe) -> None:
    (await probe.send(version="")).given()


@check("VER-4", "MUST", "3.6", "The patch number of a version is ignored")
async def _(probe: Probe) -> None:
    (await probe.send(version=f"{probe.version}.7")).given()


@check(
    *("VER-5", "MAY", "3.6.1", "The version may be a query parameter"),
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    (await probe.send(version="", query="A2A-Version=1.0")).given()
    said = await probe.send(query="A2A-Version=99.0")
    fail_if(said.error, "the query parameter took precedence over the header")


@check("VER-6", "MAY", "3.3.2", "The error for an unknown version names the supported versions")
async def _(probe: Probe) -> None:
    said = str((await probe.send(version="99.0")).rejected(why="with A2A-Version: 99.0"))
    fail_if(probe.version not in said, f"it says {said!r}")


@check("VER-7", "MAY", "3.6.2", "The response names its version", bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    wire = (await probe.send()).wire
    named = wire.headers.get("a2a-version") if wire is not None else None
    fail_if(named != probe.version, f"the header A2A-Version of the response is {named!r}")


def _waited(task: Task) -> None:
    waits = task.state.is_terminal or task.state.is_interrupted
    fail_if(
        not waits, f"the task is {task.state}, although the request did not set returnImmediately"
    )


async def _at_once(probe: Probe, **options: Any) -> None:
    if not probe.texts.slow:
        raise NotApplicable("give --slow a text that takes the agent some seconds")
    value = (await probe.send(probe.texts.slow, **options)).given()
    ended = isinstance(value, Task) and value.state.is_terminal
    fail_if(ended, "the response came after the task had ended")
