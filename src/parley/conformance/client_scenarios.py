"""Scenarios for clients: the server's replies, the client's action, and how the client
is judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from parley.conformance.client_forms import (
    NOT_FOUND,
    STREAM_HEADERS,
    TASK_ID,
    Forms,
    card,
    card_reply,
    error,
    frame,
    is_card,
    result,
    stream,
)
from parley.conformance.client_server import ReceivedCall, ScenarioReply, Visit
from parley.conformance.verdicts import (
    ConformanceRequirement,
    ConformanceViolation,
    Level,
    NotApplicable,
)
from parley.model.errors import TaskNotFoundError, an
from parley.wire import versions

Action = Literal["send", "stream", "answer", "cancel"]
NEW = Forms()
OLD = Forms("0.3")
OLD_PROTO = Forms("0.3", is_proto=True)
STORY = "one two three"
SAID = "All is well"

Serves = Callable[[ReceivedCall, Visit], ScenarioReply]
Judges = Callable[[Visit], None]


class ClientScenario(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario. ``wants`` is text that the client must print; with ``fails`` the client must
    fail.

    ``runs`` is how often the client plays it; ``judges`` raises ``ConformanceViolation``.
    """

    requirement: ConformanceRequirement
    action: Action
    card: Callable[[Visit], dict[str, Any]]
    serves: Serves
    judges: tuple[Judges, ...] = ()
    wants: str = ""
    fails: bool = False
    runs: int = 1
    uses: str = "JSONRPC 1.0"

    def answer(self, visit: Visit, request: ReceivedCall) -> ScenarioReply:
        """Answer a request."""
        if is_card(request):
            members = self.card(visit)
            return card_reply(members) if members else ScenarioReply(status=404)
        return self.serves(request, visit)


def asked(visit: Visit) -> None:
    """Require that the client sends a message."""
    if not visit.requests:
        raise NotApplicable("the client did not call this address")
    if not visit.sent:
        paths = ", ".join(f"{each.method} {each.path}" for each in visit.requests[:4])
        raise ConformanceViolation(f"no message was sent; the client requested {paths}")


def in_form(visit: Visit) -> None:
    """Require that the message has the form of its version."""
    for each in visit.sent:
        message = each.message
        if not message.get("messageId"):
            raise ConformanceViolation("the message has no messageId")
        if message.get("role") != "ROLE_USER":
            raise ConformanceViolation(f"the role is {message.get('role')!r}, not 'ROLE_USER'")
        parts = message.get("parts")
        if not isinstance(parts, list) or not parts:
            raise ConformanceViolation("the message has no parts")
        if not all(
            isinstance(p, dict) and {"text", "data", "raw", "url"} & p.keys() for p in parts
        ):
            raise ConformanceViolation("a part has none of text, data, raw and url")


def in_old_form(visit: Visit) -> None:
    """Require that the message has the form of 0.3."""
    for each in visit.sent:
        message = each.message
        if message.get("role") != "user":
            raise ConformanceViolation(f"the role is {message.get('role')!r}, not 'user' as in 0.3")
        parts = message.get("parts") or ()
        if not parts or any(part.get("kind") not in ("text", "file", "data") for part in parts):
            raise ConformanceViolation("a part has no kind, which 0.3 requires")


def in_old_http_form(visit: Visit) -> None:
    """Require a message form of 0.3 over HTTP+JSON: as in the protobuf definition, or as in the
    text.
    """
    for each in visit.sent:
        message = each.message
        if "content" not in message:
            if message.get("role") == "ROLE_USER":
                raise ConformanceViolation(
                    "the message has no content: parts with the role 'ROLE_USER' belong to 1.0"
                )
            in_old_form(visit)
            continue
        if message.get("role") != "ROLE_USER":
            raise ConformanceViolation(f"the role is {message.get('role')!r}, not 'ROLE_USER'")
        parts = message["content"]
        if not isinstance(parts, list) or not parts:
            raise ConformanceViolation("the message has no content")
        if not all(isinstance(p, dict) and {"text", "file", "data"} & p.keys() for p in parts):
            raise ConformanceViolation("a part has none of text, file and data")


def in_camel_case(visit: Visit) -> None:
    """Require that members are in camelCase."""
    for each in visit.sent:
        names = [*each.params, *each.message, *each.params.get("configuration", {})]
        for name in names:
            if "_" in name:
                raise ConformanceViolation(f"the member {name!r} is in snake_case")


def as_json_rpc(visit: Visit) -> None:
    """Require that calls are JSON-RPC 2.0."""
    for each in visit.sent:
        call = each.json
        if each.method != "POST":
            raise ConformanceViolation(f"the call is {an(each.method)}, not a POST")
        kind = each.headers.get("content-type", "").partition(";")[0]
        if kind not in ("application/json", "application/a2a+json"):
            raise ConformanceViolation(f"its Content-Type is {kind!r}, not application/json")
        if call.get("jsonrpc") != "2.0":
            raise ConformanceViolation(f"jsonrpc is {call.get('jsonrpc')!r}, not '2.0'")
        if not isinstance(call.get("id"), str | int) or isinstance(call.get("id"), bool):
            raise ConformanceViolation(f"the id is {call.get('id')!r}: the call is a notification")
        if not isinstance(call.get("params"), dict):
            raise ConformanceViolation("params is not an object")


def version_named(visit: Visit) -> None:
    """Require that every request except card requests names the version."""
    for each in visit.requests:
        if each.operation == "card":
            continue
        version = each.headers.get("a2a-version") or ""
        if version.split(".")[:2] != ["1", "0"] and "A2A-Version=1.0" not in each.path:
            raise ConformanceViolation(
                f"{each.operation or each.path} has A2A-Version {version!r}, not '1.0'"
            )


def at_path(path: str) -> Judges:
    """Require that every call goes to one path."""

    def judge(visit: Visit) -> None:
        for each in visit.requests:
            if each.operation != "card" and not each.path.startswith(path):
                raise ConformanceViolation(
                    f"{each.method} {each.path} is not at {path}, the address on the card"
                )

    return judge


def by_grpc(visit: Visit) -> None:
    """Require that every call uses gRPC."""
    for each in visit.requests:
        if each.operation != "card" and each.method != "GRPC":
            raise ConformanceViolation(
                f"{each.method} {each.path} is HTTP, but the card has a gRPC interface only"
            )


def ids_differ(visit: Visit) -> None:
    """Require that different messages have different ids."""
    ids = [each.message.get("messageId") for each in visit.sent]
    if len(visit.outcomes) > 1 and len(set(ids)) < len(visit.outcomes):
        raise ConformanceViolation(f"two messages have the same messageId: {ids}")


def not_streamed(visit: Visit) -> None:
    """Require that the client opens no stream."""
    if visit.of("SendStreamingMessage"):
        raise ConformanceViolation(
            "SendStreamingMessage was called, but the card declares no streaming"
        )


def followed(visit: Visit) -> None:
    """Require that the client follows a task that is still working."""
    if not visit.of("GetTask", "SubscribeToTask"):
        raise ConformanceViolation(
            "the task was still working, but the client did not ask for it again"
        )


def not_repeated(visit: Visit) -> None:
    """Require that a message that may have arrived is not sent again with a new id."""
    ids = {each.message.get("messageId") for each in visit.sent}
    if len(ids) > len(visit.outcomes or [0]):
        raise ConformanceViolation(
            f"after the cut the message was sent with a new messageId: {sorted(map(str, ids))}"
        )


def within(most: int) -> Judges:
    """Require that the client sends the message at most ``most`` times."""

    def judge(visit: Visit) -> None:
        if len(visit.sent) > most:
            raise ConformanceViolation(f"the message was sent {len(visit.sent)} times")

    return judge


def waits(visit: Visit) -> None:
    """Require that the client obeys Retry-After of a 429 response."""
    times = [each.at for each in visit.sent]
    if len(times) > 1 and times[1] - times[0] < 0.9:
        gap = times[1] - times[0]
        raise ConformanceViolation(
            f"Retry-After was 1 second, but the next request came after {gap:.2f} s"
        )


def continues(visit: Visit) -> None:
    """Require that the answer to a question names the task."""
    if len(visit.sent) < 2:
        raise ConformanceViolation(
            "the question was not answered: the client sent a single message"
        )
    message = visit.sent[1].message
    if message.get("taskId") != TASK_ID:
        raise ConformanceViolation(
            f"the answer has taskId {message.get('taskId')!r}, not the id of the task"
        )
    first = visit.sent[0].message.get("messageId")
    if message.get("messageId") == first:
        raise ConformanceViolation("the answer has the messageId of the question's message")


def cancelled(visit: Visit) -> None:
    """Require that the task is cancelled by its id."""
    calls = visit.of("CancelTask")
    if not calls:
        raise ConformanceViolation("CancelTask was not called")
    id = calls[0].params.get("id")
    if id != TASK_ID and f"/tasks/{TASK_ID}:cancel" not in calls[0].path:
        raise ConformanceViolation(f"CancelTask was called for {id!r}, not for {TASK_ID!r}")


def tenant_named(visit: Visit) -> None:
    """Require that requests have the tenant of the interface."""
    for each in visit.sent:
        if each.params.get("tenant") != "blue":
            raise ConformanceViolation(
                f"tenant is {each.params.get('tenant')!r}, not 'blue' as on the card"
            )


def nothing_sent(visit: Visit) -> None:
    """Require that nothing but the card is requested."""
    if not visit.requests:
        raise NotApplicable("the client did not call this address")
    if visit.sent:
        raise ConformanceViolation("a message was sent to an agent without a card")


def extension_requested(visit: Visit) -> None:
    """Require that a required extension is requested, or that the agent is not called."""
    for each in visit.sent:
        if not each.headers.get("a2a-extensions"):
            raise ConformanceViolation(
                "the card requires an extension, but the message requests none"
            )


def carded(**options: Any) -> Callable[[Visit], dict[str, Any]]:
    """Return the function that builds the card of a visit."""
    return lambda visit: card(visit, **options)


def plays(
    *,
    task: Callable[[Visit], dict[str, Any]] | None = None,
    value: Any = None,
    events: list[dict[str, Any]] | None = None,
    forms: Forms = NEW,
) -> Serves:
    """Return a server that answers messages with a value or events, and supports the other
    operations.
    """
    now = forms.task("COMPLETED", text=STORY if events else SAID)
    answer = value if value is not None else forms.named("task", now)

    def serves(request: ReceivedCall, visit: Visit) -> ScenarioReply:
        match request.operation:
            case "SendMessage":
                return result(request, answer)
            case "SendStreamingMessage":
                story = events if events is not None else [answer]
                return stream(request, story)
            case "GetTask":
                return result(request, task(visit) if task is not None else now)
            case "SubscribeToTask":
                done = task(visit) if task is not None else now
                return stream(request, [forms.named("task", done)])
        return error(request, *NOT_FOUND)

    return serves


def old_not_found(request: ReceivedCall) -> ScenarioReply:
    """Return TaskNotFound over HTTP+JSON of 0.3."""
    body = versions.dialect("0.3").http_json.write_error(TaskNotFoundError("no such task"))
    return ScenarioReply(status=404, body=body)


def over_old_grpc(visit: Visit) -> dict[str, Any]:
    """Return a card of 0.3 with one interface, over gRPC."""
    return card(visit, version="0.3", binding="GRPC", url=visit.grpc)


def over_grpc(visit: Visit) -> dict[str, Any]:
    """Return a card with one interface, over gRPC."""
    interface = {"url": visit.grpc, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    return {**card(visit), "supportedInterfaces": [interface]}


def says(reply: Callable[[ReceivedCall], ScenarioReply]) -> Serves:
    """Return a server that answers every request with ``reply``."""
    return lambda request, visit: reply(request)


def still_working(request: ReceivedCall, visit: Visit) -> ScenarioReply:
    """Return a task that keeps working, and completes at the second request for it."""
    working, done = NEW.task("WORKING"), NEW.task("COMPLETED", text=SAID)
    if request.operation in ("SendMessage", "SendStreamingMessage"):
        if request.operation == "SendMessage":
            return result(request, {"task": working})
        return stream(request, [{"task": working}])
    looks = len(visit.of("GetTask", "SubscribeToTask"))
    now = done if looks > 1 else working
    if request.operation == "SubscribeToTask":
        return stream(request, [{"task": now}, *([] if now is done else [{"task": done}])])
    return result(request, now)


def cuts(request: ReceivedCall, visit: Visit) -> ScenarioReply:
    """Break a stream off after three events."""
    if request.operation == "SendStreamingMessage":
        return stream(request, NEW.story()[:3], cut=True)
    if request.operation == "SendMessage":
        return result(request, {"task": NEW.task("COMPLETED", text=STORY)})
    done = NEW.task("COMPLETED", text=STORY)
    if request.operation == "SubscribeToTask":
        return stream(request, [{"task": done}])
    return result(request, done)


def asks(request: ReceivedCall, visit: Visit) -> ScenarioReply:
    """Ask a question, and accept any answer."""
    return _asks(request, visit, NEW)


def asks_old_http(request: ReceivedCall, visit: Visit) -> ScenarioReply:
    """Ask a question over HTTP+JSON of 0.3, and accept any answer."""
    return _asks(request, visit, OLD_PROTO)


def _asks(request: ReceivedCall, visit: Visit, forms: Forms) -> ScenarioReply:
    if request.operation not in ("SendMessage", "SendStreamingMessage"):
        waiting = forms.task("INPUT_REQUIRED", said="Which colour?")
        answered = len(visit.sent) > 1
        return result(request, forms.task("COMPLETED", text=SAID) if answered else waiting)
    now = forms.task("INPUT_REQUIRED", said="Which colour?")
    if request.message.get("taskId") == TASK_ID:
        now = forms.task("COMPLETED", text=SAID)
    if request.operation == "SendMessage":
        return result(request, {"task": now})
    return stream(request, [{"task": now}])


def cancels(request: ReceivedCall, visit: Visit) -> ScenarioReply:
    """Return a task that works until it is cancelled."""
    return _cancels(request, visit, "CANCELED")


def cancels_old_http(request: ReceivedCall, visit: Visit) -> ScenarioReply:
    """Return such a task over HTTP+JSON of 0.3, whose protobuf definition spells the state
    differently.
    """
    return _cancels(request, visit, "CANCELLED")


def _cancels(request: ReceivedCall, visit: Visit, word: str) -> ScenarioReply:
    now = NEW.task(word if visit.of("CancelTask") else "WORKING")
    if request.operation == "SendMessage":
        return result(request, {"task": now})
    if request.operation in ("SendStreamingMessage", "SubscribeToTask"):
        return stream(request, [{"task": now}])
    return result(request, now)


def odd_stream(request: ReceivedCall, visit: Visit) -> ScenarioReply:
    """Send a stream with comments, unusual line ends, multi-line data, and chunks that split a
    character.
    """
    if request.operation != "SendStreamingMessage":
        return plays(events=NEW.story())(request, visit)
    first, *rest = NEW.story()
    id = request.json.get("id")

    def said(event: dict[str, Any]) -> str:
        return json.dumps({"jsonrpc": "2.0", "id": id, "result": event}, ensure_ascii=False)

    lines = json.dumps({"jsonrpc": "2.0", "id": id, "result": first}, indent=1).split("\n")
    whole = b": a comment\n\n" + "".join(f"data: {line}\n" for line in lines).encode() + b"\n"
    whole += b": \r\n\r\nid: 7\r\nevent: message\r\n" + frame(
        said(NEW.updated("WORKING", "café")), "\r\n"
    )
    whole += b"retry: 500\n\n" + b"".join(frame(said(event)) for event in rest[1:])
    at = whole.index("é".encode()) + 1
    pieces = (whole[:at], whole[at : at + 1], whole[at + 1 :])
    return ScenarioReply(headers=STREAM_HEADERS, pieces=pieces)


def other_id(request: ReceivedCall, visit: Visit) -> ScenarioReply:
    """Answer with the JSON-RPC id of another request."""
    body = {"jsonrpc": "2.0", "id": "of-another-request", "result": {"message": NEW.message(SAID)}}
    return ScenarioReply(body=json.dumps(body).encode())


def rich(value: dict[str, Any]) -> dict[str, Any]:
    """Return a value with members that are in no version of the specification."""
    return {**value, "newMember": {"nested": [1, None]}, "another": True}


def scenario(
    id: str,
    level: Level,
    section: str,
    title: str,
    serves: Serves,
    *judges: Judges,
    action: Action = "send",
    members: Callable[[Visit], dict[str, Any]] | None = None,
    calls: bool = True,
    **options: Any,
) -> ClientScenario:
    """Return a row of the scenario table, by default with a card of one JSON-RPC interface.

    ``calls``: the client must send a message.
    """
    return ClientScenario(
        requirement=ConformanceRequirement(id=id, level=level, section=section, title=title),
        action=action,
        card=members or carded(),
        serves=serves,
        judges=(asked, *judges) if calls else judges,
        **options,
    )
