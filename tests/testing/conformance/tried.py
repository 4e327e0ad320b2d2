"""The agent under test, and defects planted in its server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from parley import Agent, AgentExtension, Caller, CardDetails, Turn
from parley.conformance.error_checks import TABLE
from parley.conformance.probe import ProbedTexts

TEXTS = ProbedTexts(task="task", ask="ask", slow="slow")
agent = Agent(name="Tried", description="Does what it is told")


@agent.extended_card
def nothing_more(caller: Caller) -> None:
    """Have an extended card, but for nobody."""


@agent.skill(tags=["test"], input_modes=["text/plain"])
async def act(turn: Turn) -> Any:
    """Does what it is told."""
    match turn.text:
        case "Hello":
            return "Hello yourself"
        case "ask":
            return f"You said {(await turn.ask('What?')).text}"
        case "slow":
            await turn.working("At it")
            await asyncio.Event().wait()
    async with turn.stream(name="list") as out:
        for word in ("one ", "two"):
            await out.write(word)
    return None


limited = Agent(
    name="Limited",
    description="Has no streams and no webhooks, and requires an extension",
    card=CardDetails(streaming=False, push_notifications=False),
    extensions=[AgentExtension(uri="urn:example:strict:v1", required=True)],
)
limited.skill(tags=["test"], input_modes=["text/plain"])(act)

AGENTS: dict[str, dict[str, Any]] = {
    "agent": {"agents": agent},
    "limited": {"agents": limited},
    "tenant": {"tenants": {"acme": agent}},
}
CARD_OF = {"agent": "", "limited": "", "tenant": "/.well-known/agent-card.json?assistant_id=acme"}

Change = Callable[[bytes], bytes]


class Defect:
    """A middleware that changes requests and responses.

    It changes requests that match ``when``, a pattern of the verb, the address, the headers and the
    body, starting with the ``nth``. ``without`` is a request header that is removed, or replaced by
    ``instead``; ``headers`` and ``status`` replace the response's; a response that ``hangs`` does
    not end. ``place`` is the tested interface, ``of`` the server: with an agent, with limits, or
    with a tenant.
    """

    def __init__(
        self,
        when: str = "",
        *,
        asked: Change = lambda body: body,
        said: Change = lambda body: body,
        without: str = "",
        instead: str = "",
        headers: dict[str, str] | None = None,
        status: int = 0,
        nth: int = 1,
        hangs: bool = False,
        place: str = "JSONRPC 1.0",
        of: str = "agent",
    ) -> None:
        self.place = place
        self.of = of
        self._when = re.compile(when, re.DOTALL)
        self._nth = nth
        self._hangs = hangs
        self._status = status
        self._asked = asked
        self._said = said
        self._without = without
        self._instead = instead
        self._headers = headers or {}
        self._met = 0

    def _matches(self, scope: Any, body: bytes) -> bool:
        heads = "".join(f"{n.decode()}: {v.decode()}\n" for n, v in scope["headers"])
        address = f"{scope['method']} {scope['path']}?{scope['query_string'].decode()}\n"
        if self._when.search(f"{address}{heads}\n{body.decode('utf-8', 'replace')}"):
            self._met += 1
            return self._met >= self._nth
        return False

    def __call__(self, app: Any) -> Any:
        """Return an app with the defect."""

        async def changed(
            scope: Any,
            receive: Callable[[], Awaitable[Any]],
            send: Callable[[Any], Awaitable[None]],
        ) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            body, more = b"", True
            while more:
                piece = await receive()
                body += piece.get("body", b"")
                more = piece.get("more_body", False)
            given = [{"type": "http.request", "body": body, "more_body": False}]

            async def received() -> Any:
                return given.pop() if given else await receive()

            if not self._matches(scope, body):
                await app(scope, received, send)
                return
            scope = dict(scope)
            gone = (self._without.encode(), b"content-length")
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in gone]
            if self._instead:
                scope["headers"].append((self._without.encode(), self._instead.encode()))
            body = self._asked(body)
            scope["headers"].append((b"content-length", str(len(body)).encode()))
            given = [{"type": "http.request", "body": body, "more_body": False}]

            async def sent(event: Any) -> None:
                if event["type"] == "http.response.start":
                    kept = [
                        (name, self._headers.get(name.decode(), value.decode()).encode())
                        for name, value in event["headers"]
                        if name != b"content-length"
                    ]
                    event = {**event, "headers": kept, "status": self._status or event["status"]}
                elif event["type"] == "http.response.body":
                    event = {**event, "body": self._said(event.get("body", b""))}
                    if self._hangs and not event.get("more_body"):
                        await asyncio.Event().wait()
                await send(event)

            await app(scope, received, sent)

        return changed


def sub(pattern: str, by: str) -> Change:
    """Return a text substitution."""
    return lambda body: re.sub(pattern.encode(), by.encode(), body)


def members(change: Callable[[dict[str, Any]], None]) -> Change:
    """Return a change of a JSON object; other bodies stay."""

    def changed(body: bytes) -> bytes:
        try:
            value = json.loads(body)
        except ValueError:
            return body
        change(value)
        return json.dumps(value).encode()

    return changed


def without(*path: str) -> Change:
    """Return a change that removes a member."""

    def change(value: Any) -> None:
        for name in path[:-1]:
            value = value.get(name) or {}
        value.pop(path[-1], None)

    return members(change)


def served(body: bytes) -> bytes:
    """Return a message in place of the JSON-RPC response."""
    message = {"messageId": "m", "role": "ROLE_AGENT", "contextId": "c", "parts": [{"text": "-"}]}
    id = json.loads(body)["id"]
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": {"message": message}}).encode()


def broken(body: bytes) -> bytes:
    """Return an error in place of the JSON-RPC response."""
    error = {"code": -32603, "message": "it broke"}
    return json.dumps({"jsonrpc": "2.0", "id": json.loads(body)["id"], "error": error}).encode()


def framed(body: bytes) -> bytes:
    """Return a response as a stream's event."""
    return b"data: " + body + b"\n\n"


STREAM = {"content-type": "text/event-stream"}


def updated(**new: Any) -> Change:
    """Return a change that adds members to an object."""
    return members(lambda value: value.update(new))


REST, OLD, OLD_REST, CARD = "HTTP+JSON 1.0", "JSONRPC 0.3", "HTTP+JSON 0.3", "card"
ERR_SERVERS = ["agent", "agent", "limited", *["agent"] * 3, "limited", "agent"]
CASES: list[tuple[str, Defect]] = [
    ("CARD-3", Defect(said=without("version"), place=CARD)),
    ("CARD-7", Defect(without="if-none-match", place=CARD)),
    ("CARD-12", Defect("agent.json", said=without("name"), place=CARD)),
    ("CARD-13", Defect("a2a-version: 1.0", said=updated(url="http://a.example"), place=CARD)),
    ("CARD-14", Defect(said=sub(r'"url":"127', r'"url":"http://127'), place=CARD)),
    ("CARD-15", Defect(said=updated(securityRequirements=[{"b": ["read"]}]), place=CARD)),
    ("MSG-6", Defect(said=sub(r"-32004", "-32603"))),
    ("MSG-7", Defect("another-context", said=served)),
    ("MSG-7", Defect("GetTask", said=sub("INPUT_REQUIRED", "COMPLETED"))),
    ("MSG-12", Defect(asked=sub(r'"someNewMember": .*?\}', '"parts": []'))),
    ("MSG-13", Defect(asked=sub(r'"historyLength":0,?', ""))),
    ("MSG-16", Defect(said=sub('"completed"', '"working"'), place=OLD)),
    ("MSG-17", Defect(said=sub('"(submitted|working)"', '"completed"'), place=OLD)),
    ("MSG-18", Defect('"messageId": 7', said=served)),
    ("MSG-19", Defect(r'"metadata": \[\]', said=served)),
    ("MSG-20", Defect(r'"parts": \[\{\}\]', said=served)),
    ("MSG-21", Defect("a.example", said=served)),
    ("MSG-22", Defect("no base64", said=served)),
    ("MSG-23", Defect("ROLE_NOBODY", said=served)),
    ("MSG-24", Defect("NaN", said=served)),
    ("MSG-25", Defect(said=sub("message.messageId", "message"))),
    ("MSG-26", Defect("message_id", said=broken)),
    ("MSG-27", Defect(said=sub("COMPLETED", "WORKING"))),
    ("MSG-33", Defect('"blocking"', said=sub("COMPLETED", "WORKING"))),
    ("MSG-28", Defect(said=sub('"completed"', '"working"'), place=OLD)),
    ("MSG-29", Defect(said=sub("(SUBMITTED|WORKING)", "COMPLETED"), place=OLD_REST)),
    ("MSG-30", Defect(said=sub("a-context-of-the-caller", "another"))),
    ("MSG-31", Defect(said=sub(r'"task":\{"id":"[^"]*"', '"task":{"id":"the-same"'))),
    ("MSG-32", Defect("GetTask", said=sub("Here it is", "Nothing"))),
    ("VER-1", Defect(without="a2a-version", instead="1.0")),
    ("VER-2", Defect(without="a2a-version", instead="1.0")),
    ("VER-3", Defect("a2a-version: \n", said=broken, place=OLD)),
    ("VER-4", Defect("a2a-version: 1.0.7", said=broken)),
    ("VER-5", Defect("A2A-Version=1.0", said=broken)),
    ("VER-6", Defect(said=sub("1.0, 0.3", "none"))),
    ("VER-7", Defect(headers={"a2a-version": "9.0"})),
    ("RPC-3", Defect(said=sub(r"-32601", "-32600"))),
    ("RPC-5", Defect(said=sub(r'"id":"a-text"', '"id":1'))),
    ("RPC-7", Defect(said=sub(r"a2a-protocol\.org", "example.com"))),
    ("RPC-8", Defect(said=sub("12345678901234567890123", "1.2345678901234568e22"))),
    ("RPC-9", Defect(said=lambda body: body or b"{}", status=200)),
    ("RPC-10", Defect(r'\[\{"jsonrpc"', said=sub("-32600", "-32700"))),
    ("RPC-11", Defect(said=sub("-32700", "-32603"))),
    ("REST-5", Defect("content-type: application/a2a", status=415, place=REST)),
    ("REST-6", Defect(headers={"content-type": "application/json"}, place=REST)),
    ("REST-7", Defect(headers={"content-type": "application/a2a+json"}, place=REST)),
    ("REST-8", Defect(":cancel", nth=3, status=400, place=REST)),
    ("REST-9", Defect(said=without("type"), place=OLD_REST)),
    ("TASK-2", Defect(said=sub(r"-32001", "-32602"))),
    ("TASK-3", Defect(asked=sub('"historyLength":[01]', '"historyLength":9'))),
    ("TASK-6", Defect(said=sub(r'(\d\d:\d\d\.\d+)Z"', r'\1+00:00"'))),
    ("TASK-10", Defect(said=sub(r'"contextId"', '"context_id"'))),
    ("TASK-11", Defect(said=sub(r"TASK_STATE_COMPLETED", "completed"))),
    ("TASK-12", Defect("CancelTask", nth=2, said=broken)),
    ("TASK-13", Defect("tasks/cancel", nth=2, said=served, place=OLD)),
    ("TASK-14", Defect("GetTask", said=sub('"contextId"', '"metadata":null,"contextId"'))),
    ("LIST-2", Defect(said=without("result", "totalSize"))),
    ("LIST-10", Defect(asked=sub('"includeArtifacts":true', '"includeArtifacts":false'))),
    ("LIST-11", Defect('"pageSize":0', said=broken)),
    ("LIST-12", Defect(said=sub(r'"totalSize":\d+', '"totalSize":7'))),
    ("LIST-13", Defect("ListTasks", nth=2, asked=sub(r'"pageToken":"[^"]*"', '"pageToken":""'))),
    ("LIST-14", Defect("ListTasks", asked=sub(r',?"historyLength":\d', ""))),
    ("LIST-15", Defect(asked=sub(r'"statusTimestampAfter":"2', '"statusTimestampAfter":"3'))),
    ("LIST-16", Defect("UNSPECIFIED", said=broken)),
    ("STREAM-3", Defect(said=sub(r'(statusUpdate":\{"taskId":)"[^"]*"', r'\1"another"'))),
    ("STREAM-3", Defect(said=sub(r'(statusUpdate":.*?"contextId":)"[^"]*"', r'\1""'))),
    ("STREAM-4", Defect(headers={"content-type": "text/plain"})),
    ("STREAM-6", Defect(said=sub(r'"statusUpdate":', '"message":{},"statusUpdate":'))),
    ("STREAM-13", Defect("SendStreamingMessage", said=served)),
    ("STREAM-14", Defect("SendStreamingMessage", said=served)),
    ("STREAM-15", Defect("no-such-task", said=framed, headers=STREAM)),
    ("STREAM-16", Defect("SendStreaming", asked=sub(r',?"historyLength":\d', ""))),
    ("STREAM-17", Defect("SendStreaming", said=sub("INPUT_REQUIRED", "WORKING"))),
    ("STREAM-18", Defect("SubscribeToTask", said=sub("COMPLETED", "WORKING"))),
    ("STREAM-19", Defect("SubscribeToTask", nth=2, said=sub("You said", "He said"))),
    ("STREAM-20", Defect("SubscribeToTask", said=sub(r"data: .*Update.*", ": lost"))),
    ("STREAM-21", Defect("GET .*:subscribe", status=405, place=REST)),
    ("OLD-3", Defect(said=sub('"final":false', '"final":true'), place=OLD)),
    ("OLD-4", Defect("tasks/resubscribe", hangs=True, place=OLD)),
    ("OLD-6", Defect("resubscribe", said=sub("data: .*", ": lost"), hangs=True, place=OLD)),
    ("OLD-5", Defect(said=sub('"final":true', '"final":false'), place=OLD)),
    ("PUSH-1", Defect("PushNotification", said=served, of="limited")),
    ("PUSH-5", Defect(said=sub('"Bearer"', '"Bearer","credentials":"told"'))),
    ("PUSH-6", Defect("nonsense", said=broken)),
    ("PUSH-7", Defect("DELETE", said=updated(deleted=True), place=REST)),
    ("PUSH-8", Defect('"parent"', status=400, place=OLD_REST)),
    ("EXT-3", Defect(said=sub("-32008", "-32603"), of="limited")),
    ("EXT-4", Defect("urn:example:unknown", said=broken)),
    ("EXT-5", Defect(headers={"a2a-extensions": ""})),
    ("MODE-1", Defect("x-conformance", said=sub("text/plain", "some"))),
    ("MODE-2", Defect(asked=sub(r'"acceptedOutputModes":\[[^]]*\],?', ""))),
    ("TENANT-1", Defect("no-such-tenant", said=broken, of="tenant")),
    ("TENANT-2", Defect(asked=sub("no-such-tenant", ""), place=REST, of="tenant")),
    ("OLDER-1", Defect('"tasks/send"', said=broken, place=OLD)),
    ("OLDER-2", Defect("sendSubscribe", said=sub('"final":true', '"final":false'), place=OLD)),
    ("OLDER-3", Defect("tasks/subscribe", said=broken, place=OLD)),
    ("OLDER-4", Defect("tasks/list", said=broken, place=OLD)),
    ("OLDER-5", Defect(r"GET /v1/tasks\?", said=updated(tasks=[]), place=OLD_REST)),
    ("OLDER-6", Defect(r"/tasks/send\?", status=404, place=OLD_REST)),
    ("OLDER-7", Defect("sendStream", said=sub("data: .*", ": lost"), place=OLD_REST)),
    ("OLDER-8", Defect("/cancel", status=404, place=OLD_REST)),
    ("OLDER-9", Defect('"tasks/send"', said=served)),
    *(
        (f"ERR-{number}", Defect(said=sub(str(kind.code), "-32099"), of=of))
        for number, ((kind, _), of) in enumerate(zip(TABLE, ERR_SERVERS, strict=True), 1)
    ),
    ("ERR-1", Defect("GET /tasks/", status=400, place=REST)),
    ("ERR-1", Defect("GET /tasks/", said=sub("a2a-protocol.org", "example.com"), place=REST)),
]  # fmt: skip
"""Requirements, each with a defect that its check must detect."""
DEFECTS = dict(CASES)
