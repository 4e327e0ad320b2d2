"""Scenarios for clients: what the server does, what the client is to do, and how it is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from parley.testing.conformance.client_forms import (
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
from parley.testing.conformance.client_server import Answer, Received, Reply, Visit
from parley.testing.conformance.verdicts import Level, NotApplicable, Requirement, Violation

Action = Literal["send", "stream", "answer", "cancel"]
NEW = Forms()
OLD = Forms("0.3")
STORY = "one two three"
SAID = "All is well"

Serves = Callable[[Received, Visit], Reply]
Judges = Callable[[Visit], None]


class ClientScenario(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario. ``wants`` is a text that the client is to print, ``fails`` that it is to fail.

    ``runs`` is how often the client plays it; ``judges`` raises ``Violation``.
    """

    requirement: Requirement
    action: Action
    card: Callable[[Visit], dict[str, Any]]
    serves: Serves
    judges: tuple[Judges, ...] = ()
    wants: str = ""
    fails: bool = False
    runs: int = 1
    uses: str = "JSONRPC 1.0"

    def answer(self, visit: Visit) -> Answer:
        """Return what answers the requests of a visit."""

        def answers(visit: Visit, request: Received) -> Reply:
            if is_card(request):
                return card_reply(self.card(visit))
            return self.serves(request, visit)

        return answers


# -- how it is judged --------------------------------------------------------------------------


def asked(visit: Visit) -> None:
    """The client sends a message."""
    if not visit.requests:
        raise NotApplicable("the client was not run against this address")
    if not visit.sent:
        paths = ", ".join(f"{each.method} {each.path}" for each in visit.requests[:4])
        raise Violation(f"no message was sent; the client asked for {paths}")


def in_form(visit: Visit) -> None:
    """The message has the form of its version."""
    for each in visit.sent:
        message = each.message
        if not message.get("messageId"):
            raise Violation("the message has no messageId")
        if message.get("role") != "ROLE_USER":
            raise Violation(f"the role is {message.get('role')!r}, not 'ROLE_USER'")
        parts = message.get("parts")
        if not isinstance(parts, list) or not parts:
            raise Violation("the message has no parts")
        if not all(isinstance(p, dict) and {"text", "data", "raw", "url"} & p.keys() for p in parts):
            raise Violation("a part has none of text, data, raw and url")


def in_old_form(visit: Visit) -> None:
    """The message has the form of 0.3."""
    for each in visit.sent:
        message = each.message
        if message.get("role") != "user":
            raise Violation(f"the role is {message.get('role')!r}, not 'user' as 0.3 has it")
        parts = message.get("parts") or ()
        if not parts or any(part.get("kind") not in ("text", "file", "data") for part in parts):
            raise Violation("a part has no kind, which 0.3 asks for")


def in_camel_case(visit: Visit) -> None:
    """Members are in camelCase."""
    for each in visit.sent:
        names = [*each.params, *each.message, *each.params.get("configuration", {})]
        for name in names:
            if "_" in name:
                raise Violation(f"the member {name!r} is in snake_case")


def as_json_rpc(visit: Visit) -> None:
    """Calls are JSON-RPC 2.0."""
    for each in visit.sent:
        call = each.json
        if each.method != "POST":
            raise Violation(f"the call is a {each.method}, not a POST")
        kind = each.headers.get("content-type", "").partition(";")[0]
        if kind not in ("application/json", "application/a2a+json"):
            raise Violation(f"its Content-Type is {kind!r}, not application/json")
        if call.get("jsonrpc") != "2.0":
            raise Violation(f"jsonrpc is {call.get('jsonrpc')!r}, not '2.0'")
        if not isinstance(call.get("id"), str | int) or isinstance(call.get("id"), bool):
            raise Violation(f"the id is {call.get('id')!r}: the call waits for no answer")
        if not isinstance(call.get("params"), dict):
            raise Violation("params is no object")


def version_named(visit: Visit) -> None:
    """Every request but those for cards names the version."""
    for each in visit.requests:
        if each.operation == "card":
            continue
        version = each.headers.get("a2a-version") or ""
        if version.split(".")[:2] != ["1", "0"] and "A2A-Version=1.0" not in each.path:
            raise Violation(f"{each.operation or each.path} has A2A-Version {version!r}, not '1.0'")


def at_path(path: str) -> Judges:
    """Every call goes to one path."""

    def judge(visit: Visit) -> None:
        for each in visit.requests:
            if each.operation != "card" and not each.path.startswith(path):
                raise Violation(f"{each.method} {each.path} is not at {path}, where the card leads")

    return judge


def ids_differ(visit: Visit) -> None:
    """Different messages have different ids."""
    ids = [each.message.get("messageId") for each in visit.sent]
    if len(visit.outcomes) > 1 and len(set(ids)) < len(visit.outcomes):
        raise Violation(f"two messages have the same messageId: {ids}")


def not_streamed(visit: Visit) -> None:
    """No stream is asked for."""
    if visit.of("SendStreamingMessage"):
        raise Violation("SendStreamingMessage was called, and the card declares no streaming")


def followed(visit: Visit) -> None:
    """A task that goes on is followed."""
    if not visit.of("GetTask", "SubscribeToTask"):
        raise Violation("the task was still working, and nobody asked for it again")


def not_repeated(visit: Visit) -> None:
    """A message that may have arrived is not sent as a second one."""
    ids = {each.message.get("messageId") for each in visit.sent}
    if len(ids) > len(visit.outcomes or [0]):
        raise Violation(f"after the cut the message was sent again, as another one: {sorted(ids)}")


def within(most: int) -> Judges:
    """No flood of requests."""

    def judge(visit: Visit) -> None:
        if len(visit.sent) > most:
            raise Violation(f"the message was sent {len(visit.sent)} times")

    return judge


def waits(visit: Visit) -> None:
    """After 429 the client waits as long as it is told."""
    times = [each.at for each in visit.sent]
    if len(times) > 1 and times[1] - times[0] < 0.9:
        gap = times[1] - times[0]
        raise Violation(f"Retry-After was 1 second, and the next request came after {gap:.2f} s")


def continues(visit: Visit) -> None:
    """The answer to a question names the task."""
    if len(visit.sent) < 2:
        raise Violation("the question was not answered: there is one message")
    message = visit.sent[1].message
    if message.get("taskId") != TASK_ID:
        raise Violation(f"the answer has taskId {message.get('taskId')!r}, not that of the task")
    first = visit.sent[0].message.get("messageId")
    if message.get("messageId") == first:
        raise Violation("the answer has the messageId of the question's message")


def cancelled(visit: Visit) -> None:
    """The task is cancelled by its id."""
    calls = visit.of("CancelTask")
    if not calls:
        raise Violation("CancelTask was not called")
    id = calls[0].params.get("id")
    if id != TASK_ID and f"/tasks/{TASK_ID}:cancel" not in calls[0].path:
        raise Violation(f"CancelTask was called for {id!r}, not for {TASK_ID!r}")


def tenant_named(visit: Visit) -> None:
    """The tenant of the interface is in the request."""
    for each in visit.sent:
        if each.params.get("tenant") != "blue":
            raise Violation(f"tenant is {each.params.get('tenant')!r}, not 'blue' as on the card")


def nothing_sent(visit: Visit) -> None:
    """Nothing but the card is asked for."""
    if not visit.requests:
        raise NotApplicable("the client was not run against this address")
    if visit.sent:
        raise Violation("a message was sent to an agent without a card")


def extension_requested(visit: Visit) -> None:
    """A required extension is requested, or the agent left alone."""
    for each in visit.sent:
        if not each.headers.get("a2a-extensions"):
            raise Violation("the card requires an extension, and the message requests none")


# -- what the server does ----------------------------------------------------------------------


def _card(**options: Any) -> Callable[[Visit], dict[str, Any]]:
    return lambda visit: card(visit, **options)


def _plays(
    *,
    task: Callable[[Visit], dict[str, Any]] | None = None,
    value: Any = None,
    events: list[dict[str, Any]] | None = None,
    forms: Forms = NEW,
) -> Serves:
    """Answer messages with a value or events, and further operations as a server does."""
    now = forms.task("COMPLETED", text=STORY if events else SAID)
    answer = value if value is not None else forms.named("task", now)

    def serves(request: Received, visit: Visit) -> Reply:
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


def _says(reply: Callable[[Received], Reply]) -> Serves:
    return lambda request, visit: reply(request)


def _still_working(request: Received, visit: Visit) -> Reply:
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


def _cut(request: Received, visit: Visit) -> Reply:
    if request.operation == "SendStreamingMessage":
        return stream(request, NEW.story()[:3], cut=True)
    if request.operation == "SendMessage":
        return result(request, {"task": NEW.task("COMPLETED", text=STORY)})
    done = NEW.task("COMPLETED", text=STORY)
    if request.operation == "SubscribeToTask":
        return stream(request, [{"task": done}])
    return result(request, done)


def _asks(request: Received, visit: Visit) -> Reply:
    if request.operation not in ("SendMessage", "SendStreamingMessage"):
        waiting = NEW.task("INPUT_REQUIRED", said="Which colour?")
        answered = len(visit.sent) > 1
        return result(request, NEW.task("COMPLETED", text=SAID) if answered else waiting)
    now = NEW.task("INPUT_REQUIRED", said="Which colour?")
    if request.message.get("taskId") == TASK_ID:
        now = NEW.task("COMPLETED", text=SAID)
    if request.operation == "SendMessage":
        return result(request, {"task": now})
    return stream(request, [{"task": now}])


def _cancels(request: Received, visit: Visit) -> Reply:
    state = "CANCELED" if visit.of("CancelTask") else "WORKING"
    now = NEW.task(state)
    if request.operation == "SendMessage":
        return result(request, {"task": now})
    if request.operation in ("SendStreamingMessage", "SubscribeToTask"):
        return stream(request, [{"task": now}])
    return result(request, now)


def _odd_stream(request: Received, visit: Visit) -> Reply:
    """Comments, other line ends, data of several lines, and bytes cut in a character."""
    if request.operation != "SendStreamingMessage":
        return _plays(events=NEW.story())(request, visit)
    first, *rest = NEW.story()
    id = request.json.get("id")

    def said(event: dict[str, Any]) -> str:
        return json.dumps({"jsonrpc": "2.0", "id": id, "result": event}, ensure_ascii=False)

    lines = json.dumps({"jsonrpc": "2.0", "id": id, "result": first}, indent=1).split("\n")
    whole = b": a comment\n\n" + "".join(f"data: {line}\n" for line in lines).encode() + b"\n"
    whole += b": \r\n\r\nid: 7\r\nevent: message\r\n" + frame(said(NEW.updated("WORKING", "café")), "\r\n")  # noqa: E501
    whole += b"retry: 500\n\n" + b"".join(frame(said(event)) for event in rest[1:])
    at = whole.index("é".encode()) + 1
    pieces = (whole[:at], whole[at : at + 1], whole[at + 1 :])
    return Reply(headers=STREAM_HEADERS, pieces=pieces)


def _other_id(request: Received, visit: Visit) -> Reply:
    body = {"jsonrpc": "2.0", "id": "of-another-request", "result": {"message": NEW.message(SAID)}}
    return Reply(body=json.dumps(body).encode())


def _rich(value: dict[str, Any]) -> dict[str, Any]:
    """Return a value with members that no version has."""
    return {**value, "newMember": {"nested": [1, None]}, "another": True}


_UNKNOWN_INTERFACE = {
    "url": "https://agents.example/signals",
    "protocolBinding": "https://example.com/bindings/signals",
    "protocolVersion": "1.0",
}
_LATER_VERSION = {
    "url": "https://agents.example/later",
    "protocolBinding": "JSONRPC",
    "protocolVersion": "9.0",
}
_REQUIRED = {"extensions": [{"uri": "https://example.com/ext/needed", "required": True}]}
_TOO_MANY = Reply(status=429, headers=(("retry-after", "1"),))
_HTML = (("content-type", "text/html"),)


def _too_many(request: Received, visit: Visit) -> Reply:
    return _TOO_MANY if len(visit.sent) == 1 else _plays()(request, visit)


def _scenario(
    id: str,
    level: Level,
    section: str,
    title: str,
    action: Action,
    serves: Serves,
    *judges: Judges,
    members: Callable[[Visit], dict[str, Any]] | None = None,
    **options: Any,
) -> ClientScenario:
    return ClientScenario(
        requirement=Requirement(id=id, level=level, section=section, title=title),
        action=action,
        card=members or _card(),
        serves=serves,
        judges=judges or (asked,),
        **options,
    )


def _without_card(visit: Visit) -> Answer:
    return lambda visit, request: Reply(status=404, headers=_HTML, body=b"<p>Not here</p>")


_FAILED = NEW.named("task", NEW.task("FAILED", said="Out of paper"))
_PARTS = [{"data": {"a": 1}}, {"raw": "aGk=", "filename": "hi.txt"}, {"text": SAID},
          {"url": "https://files.example/a.png", "mediaType": "image/png"}]  # fmt: skip
_MIXED = NEW.named("task", NEW.task("COMPLETED", parts=_PARTS))
_DIRECT = {"message": NEW.message(SAID)}
_REST: dict[str, Any] = {"members": _card(binding="HTTP+JSON", path="/rest"), "uses": "HTTP+JSON 1.0"}  # noqa: E501
_OLD_RPC: dict[str, Any] = {"members": _card(version="0.3"), "uses": "JSONRPC 0.3"}

SCENARIOS: tuple[ClientScenario, ...] = (
    _scenario("CL-CARD-1", "MUST", "8.2", "The card is read, and the agent called where it says",
              "send", _plays(), asked, at_path("/deep/er/a2a"), members=_card(path="/deep/er/a2a"), wants=SAID),
    _scenario("CL-CARD-2", "MUST", "5.7", "A card with unknown members is used",
              "send", _plays(), members=lambda v: _rich(card(v)), wants=SAID),
    _scenario("CL-CARD-3", "MUST", "8.3.2", "An interface with an unknown binding is passed over",
              "send", _plays(), members=_card(before=(_UNKNOWN_INTERFACE,)), wants=SAID),
    _scenario("CL-CARD-4", "MUST", "8.3.2", "An interface with an unknown version is passed over",
              "send", _plays(), members=_card(before=(_LATER_VERSION,)), wants=SAID),
    _scenario("CL-CARD-5", "MUST", "8.2", "Without a card nothing is sent, and the client says so",
              "send", _plays(), nothing_sent, members=lambda v: {}, fails=True),
    _scenario("CL-MSG-1", "MUST", "4.1.4", "A message has an id, the user's role and parts",
              "send", _plays(), asked, in_form),
    _scenario("CL-MSG-2", "MUST", "5.5", "Members of requests are in camelCase",
              "send", _plays(), asked, in_camel_case),
    _scenario("CL-MSG-3", "MUST", "4.1.4", "Every message has an id of its own",
              "send", _plays(), asked, ids_differ, runs=2),
    _scenario("CL-MSG-4", "MUST", "3.1.1", "A direct message is an answer",
              "send", _plays(value=_DIRECT), wants=SAID),
    _scenario("CL-RPC-1", "MUST", "9.3", "Calls are JSON-RPC 2.0, with an id",
              "send", _plays(), asked, as_json_rpc),
    _scenario("CL-RPC-2", "MUST", "9.3", "The answer to another request is not taken",
              "send", _other_id, fails=True),
    _scenario("CL-VER-1", "MUST", "3.6.1", "Every request names its version (A2A-Version)",
              "send", _plays(), asked, version_named),
    _scenario("CL-VER-2", "MUST", "3.3.2", "A version that is refused is reported, not retried for ever",
              "send", _says(lambda r: error(r, -32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED", "version not supported")),
              asked, within(10), fails=True),
    _scenario("CL-TASK-1", "MUST", "4.1.7", "The artifact of a task is its result",
              "send", _plays(), wants=SAID),
    _scenario("CL-TASK-2", "SHOULD", "3.1.3", "A task that still works is followed to its end",
              "send", _still_working, asked, followed, wants=SAID),
    _scenario("CL-TASK-3", "SHOULD", "4.1.3", "A task that failed is reported with its reason",
              "send", _plays(value=_FAILED), wants="Out of paper"),
    _scenario("CL-TASK-4", "MUST", "5.7", "Unknown members of a task are ignored",
              "send", _plays(value={"task": _rich(NEW.task("COMPLETED", text=SAID))}), wants=SAID),
    _scenario("CL-TASK-5", "SHOULD", "4.1.7", "Parts of all kinds are taken",
              "send", _plays(value=_MIXED), wants=SAID),
    _scenario("CL-ERR-1", "MUST", "3.3.2", "An error of the agent is reported, and the call not repeated",
              "send", _says(lambda r: error(r, *NOT_FOUND)), asked, within(2), fails=True),
    _scenario("CL-ERR-2", "SHOULD", "9.5", "An error with an unknown code is reported",
              "send", _says(lambda r: error(r, -32999, 500, "INTERNAL", "SOMETHING_NEW", "something new")),
              asked, within(10), fails=True),
    _scenario("CL-ERR-3", "SHOULD", "3.3.2", "A gateway's page (503) is reported, after few attempts",
              "send", _says(lambda r: Reply(status=503, headers=_HTML, body=b"<h1>Busy</h1>")),
              asked, within(10), fails=True),
    _scenario("CL-ERR-4", "SHOULD", "3.3.2", "After 429 the client waits as Retry-After says, or gives up",
              "send", _too_many, asked, waits),
    _scenario("CL-ERR-5", "MUST", "9.3", "An answer that is no JSON is reported",
              "send", _says(lambda r: Reply(body=b"It works!", headers=_HTML)), asked, within(10), fails=True),
    _scenario("CL-AUTH-1", "MUST", "7.3", "A refusal for want of credentials (401) is reported, not repeated",
              "send", _says(lambda r: Reply(status=401, headers=(("www-authenticate", 'Bearer realm="a"'),))),
              asked, within(3), fails=True),
    _scenario("CL-EXT-1", "SHOULD", "4.6.1", "A required extension is requested, or the agent not called",
              "send", _says(lambda r: error(r, -32008, 400, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED", "extension needed")),
              extension_requested, members=_card(capabilities=_REQUIRED), fails=True),
    _scenario("CL-TENANT-1", "MUST", "4.4.6", "The tenant of an interface is in its requests",
              "send", _plays(), asked, tenant_named, members=_card(tenant="blue")),
    _scenario("CL-STREAM-1", "MUST", "3.1.2", "The chunks of a stream are put together",
              "stream", _plays(events=NEW.story()), wants=STORY),
    _scenario("CL-STREAM-2", "MUST", "9.4.2", "Streams are read in every form of server-sent events",
              "stream", _odd_stream, wants=STORY),
    _scenario("CL-STREAM-3", "MUST", "3.3.4", "Without declared streaming no stream is asked for",
              "stream", _plays(), asked, not_streamed, members=_card(streaming=False)),
    _scenario("CL-STREAM-4", "SHOULD", "3.1.6", "A stream that breaks off is taken up again",
              "stream", _cut, asked, followed, wants="three"),
    _scenario("CL-STREAM-5", "MUST", "3.3.1", "A stream that breaks off does not become a second message",
              "stream", _cut, asked, not_repeated),
    _scenario("CL-STREAM-6", "MUST", "3.3.2", "An error in the place of a stream is reported",
              "stream", _says(lambda r: error(r, *NOT_FOUND)), asked, within(3), fails=True),
    _scenario("CL-STREAM-7", "MUST", "3.1.2", "A stream of one message is an answer",
              "stream", _plays(value=_DIRECT), wants=SAID),
    _scenario("CL-TURN-1", "MUST", "3.4.3", "An answer to a question names its task",
              "answer", _asks, asked, continues),
    _scenario("CL-CANCEL-1", "MUST", "3.1.5", "A task is cancelled by its id",
              "cancel", _cancels, asked, cancelled),
    _scenario("CL-REST-1", "MUST", "11.3", "HTTP+JSON is called at its paths, below the interface's",
              "send", _plays(), asked, in_form, version_named, at_path("/rest/message:"), wants=SAID, **_REST),
    _scenario("CL-REST-2", "MUST", "11.7", "Streams of HTTP+JSON are read",
              "stream", _plays(events=NEW.story()), wants=STORY, **_REST),
    _scenario("CL-REST-3", "MUST", "11.6", "Errors of HTTP+JSON are reported",
              "send", _says(lambda r: error(r, *NOT_FOUND)), asked, within(3), fails=True, **_REST),
    _scenario("CL-OLD-1", "MUST", "0.3:6.4", "An agent of 0.3 gets messages of 0.3",
              "send", _plays(forms=OLD), asked, in_old_form, wants=SAID, **_OLD_RPC),
    _scenario("CL-OLD-2", "MUST", "0.3:7.2", "Streams of 0.3 are read",
              "stream", _plays(forms=OLD, events=OLD.story()), wants=STORY, **_OLD_RPC),
)  # fmt: skip
"""All scenarios for clients over HTTP, in the order of a run."""
