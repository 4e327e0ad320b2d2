"""The transport: what goes out with a request, trust, redirects, bounds, closing."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from parley.client import connect
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.errors import (
    AuthenticationRequired,
    CardInvalid,
    ClientError,
    ConnectionClosed,
    Disconnected,
    Timeout,
    UnexpectedStatus,
    Untrusted,
)
from parley.client.origin import is_same_server
from parley.client.retry import Retry, is_worth_repeating
from parley.model.backoff import seconds_of
from parley.model.errors import A2AError, ContentTypeNotSupportedError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.tasks import TaskState
from tests.kit.scripted_server import ARTIFACT, HI, Agent, Exchange, card, scripted, talk, task

pytestmark = pytest.mark.anyio


# A key and a certificate for localhost that nobody but these tests trusts.
CERTIFICATE = Path(__file__).parents[1] / "localhost.pem"


async def answer(exchange: Exchange) -> None:
    await exchange.json({"path": exchange.target})


@pytest.fixture
def tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    return context


async def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(tls) -> None:
    asyncio.get_running_loop().set_debug(False)  # or the server's side of it is an error too
    async with scripted(answer, tls=tls) as server:
        async with HttpTransport() as http:
            with pytest.raises(Untrusted, match=r"certificate of https://127.* is not trusted"):
                await http.get(server.url, {})
        with pytest.raises(Untrusted):
            await connect(server.url)
        assert server.exchanges == []


async def test_trust_is_given_by_an_authority_or_waived_in_so_many_words(tls, caplog) -> None:
    async with scripted(answer, tls=tls) as server:
        authority = ssl.create_default_context(cafile=str(CERTIFICATE))
        async with HttpTransport(tls=authority) as http:
            assert (await http.get(server.url, {})).status == 200
        assert "not verified" not in caplog.text
        async with HttpTransport(insecure=True) as http:
            assert (await http.get(server.url, {})).status == 200
        assert "not verified" in caplog.text


async def test_connections_are_kept_and_cookies_are_not() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.json({}, set_cookie="a=b")

    async with scripted(handler) as server, HttpTransport() as http:
        for _ in range(3):
            await http.send("POST", server.url, {}, b"{}")
        assert server.connections == 1
        assert all("cookie" not in exchange.headers for exchange in server.exchanges)


async def test_a_closed_transport_says_so_and_ends_what_is_under_way() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.path == "/slow":
            await exchange.never()
        await exchange.head(transfer_encoding="chunked")
        await exchange.chunk(b"a beginning")
        await exchange.never()

    async with scripted(handler) as server:
        http = HttpTransport()
        calls = [asyncio.create_task(http.get(server.url + path, {})) for path in ("/slow", "/")]
        await server.until_asked(2)
        await http.close()
        for call in calls:
            with pytest.raises(ConnectionClosed):
                await call
        with pytest.raises(ConnectionClosed):
            await http.get(server.url, {})
        await http.close()
        await server.until_idle()


async def test_what_is_not_http_is_a_broken_connection() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        exchange.hang_up()

    async with scripted(handler) as server, HttpTransport() as http:
        with pytest.raises(Disconnected):
            await http.get(server.url, {})


async def test_time_runs_out_in_the_headers_and_in_the_body() -> None:
    async def handler(exchange: Exchange) -> None:
        if exchange.path == "/body":
            await exchange.head(content_length="10")
        await exchange.never()

    async with scripted(handler) as server, HttpTransport() as http:
        for path in ("/headers", "/body"):
            with pytest.raises(Timeout):
                await http.get(server.url + path, {}, timeout=0.05)
        await server.until_idle()


async def test_wrong_headers_and_addresses_are_errors_of_the_client() -> None:
    async with HttpTransport() as http:
        with pytest.raises(ClientError):
            await http.get("http://", {})
        with pytest.raises(ClientError):
            await http.get("http://127.0.0.1:1", {"X-Bad": "a\r\nX-Injected: b"})


async def test_connections_can_be_shared_between_agents() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.json(card(f"http://{exchange.headers['host']}"))

    async with scripted(handler) as server, HttpTransport() as http:
        async with connect(server.url, http=http), connect(server.url + "/other", http=http):
            pass
        assert server.connections == 1
        assert (await http.get(server.url, {})).status == 200


def test_places_show_neither_queries_nor_credentials() -> None:
    assert redacted("https://me:secret@host:1/p/q?key=secret") == "https://host:1/p/q"
    assert redacted("http://[broken?key=secret") == "http://[broken"
    assert redacted("me:secret@agents.example:50051?key=a/b") == "agents.example:50051"
    assert redacted("agents.example:50051") == "agents.example:50051"
    assert redacted("//me:secret@host/p") == "host/p"
    assert redacted("/p?key=secret") == "/p"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 0 ", 0.0),
        ("Thu, 01 Oct 2026 00:01:00 GMT", 60.0),
        ("Wed, 30 Sep 2026 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("²", None),
    ],
)
def test_retry_after_is_read_in_both_forms(header: str | None, seconds: float | None) -> None:
    assert seconds_of(header, datetime(2026, 10, 1, tzinfo=UTC)) == seconds


def test_pauses_grow_to_their_limit_and_are_never_all_the_same() -> None:
    retry = Retry(first=0.1, limit=2.0)
    for nth, full in enumerate([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]):
        pauses = [retry.pause(nth) for _ in range(50)]
        assert full / 2 <= min(pauses) < max(pauses) <= full
    assert retry.pause(10_000) <= 2.0


def test_what_never_left_may_always_be_sent_again_unless_it_never_will() -> None:
    assert not is_worth_repeating(Untrusted(), safe=True)
    assert not is_worth_repeating(Disconnected(), safe=False)
    assert not is_worth_repeating(Timeout("late"), safe=True)


# -- where a card's address leads, and what goes there ---------------------------------------------


SECRETS = {"bearer": "the-bearer", "api_key": "the-key", "headers": {"X-Secret": "the-header"}}


def leads_to(*places: str):
    """Redirect to one place after the other; the last stays."""
    left = list(places)

    async def handler(exchange: Exchange) -> None:
        place = left.pop(0) if len(left) > 1 else left[0]
        await exchange.head(302, location=place, content_length="0")

    return handler


async def test_another_server_is_told_no_header_that_may_be_secret() -> None:
    async def theirs(exchange: Exchange) -> None:
        await exchange.json(card("http://agent.example"))

    async with (
        scripted(theirs) as there,
        scripted(leads_to(f"{there.url}/card.json")) as here,
        connect(f"{here.url}/card.json", **SECRETS, trust_origins=["http://agent.example"]),
    ):
        assert here.exchanges[0].headers["x-secret"] == "the-header"
        assert there.exchanges[0].headers["accept"] == "application/json"
        assert "the-" not in str([exchange.headers for exchange in there.exchanges])


async def test_credentials_are_for_the_server_that_was_named_not_for_one_that_it_leads_to() -> None:
    async def wants(exchange: Exchange) -> None:
        await exchange.body_of(b"who?", 401, www_authenticate="Bearer")

    async with scripted(wants) as there, scripted(leads_to(f"{there.url}/card.json")) as here:
        with pytest.raises(AuthenticationRequired, match=f"{there.url}/card.json wants"):
            await connect(f"{here.url}/card.json", **SECRETS)
        assert len(here.exchanges) == len(there.exchanges) == 1
        assert "the-" not in str([exchange.headers for exchange in there.exchanges])
        assert "authorization" not in here.exchanges[0].headers


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file:///etc/passwd", "redirects to 'file:///etc/passwd', which is no address"),
        ("ftp://host/card.json", "which is no address of the form https://host/path"),
        ("http://[broken", "which is no address"),
        ("https:///card.json", "which is no address"),
        ("/card.json", "redirects more than 3 times"),
    ],
)
async def test_a_redirect_to_nowhere_is_not_followed(place: str, words: str) -> None:
    async with scripted(leads_to(place)) as server:
        with pytest.raises(UnexpectedStatus, match=words) as caught:
            await connect(f"{server.url}/card.json")
        assert caught.value.status == 302
        assert len(server.exchanges) == (4 if place.startswith("/") else 1)


async def test_a_redirect_never_leaves_encryption() -> None:
    async def theirs(exchange: Exchange) -> None:
        await exchange.json(card("http://agent.example"))

    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(CERTIFICATE)
    ours = ssl.create_default_context(cafile=str(CERTIFICATE))
    async with (
        scripted(theirs) as there,
        scripted(leads_to(f"{there.url}/card.json"), tls=server_side) as here,
        HttpTransport(tls=ours) as http,
    ):
        with pytest.raises(UnexpectedStatus, match="which is not encrypted"):
            await http.get(f"{here.url}/card.json", {})
        assert there.exchanges == []


def test_the_same_server_is_its_name_and_port_and_its_encrypted_self() -> None:
    for one, other, same in (
        ("http://a/x", "http://a/y", True),
        ("http://a/x", "http://A:80/y", True),
        ("http://a/x", "https://a/x", True),
        ("https://a/x", "http://a/x", False),
        ("http://a:8080/x", "https://a/x", False),
        ("http://a/x", "http://b/x", False),
        ("http://a:1/x", "http://a:2/x", False),
    ):
        assert is_same_server(one, other) is same, (one, other)


@pytest.mark.parametrize("depth", [5_000, 100_000])
async def test_a_card_that_is_nested_without_end_is_no_card(depth: int) -> None:
    deep = b'{"name": ' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(CardInvalid, match="nested too deeply"):
        await connect(deep)


# -- what goes out with a request: its media type, its extensions, a caller's own headers ----------


ONE, TWO = "urn:example:one", "urn:example:two"


def rest_card(url: str, *extensions: str, version: str = "1.0") -> dict[str, Any]:
    offered = {"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": version}
    return {**card(url, *extensions), "supportedInterfaces": [offered]}


class PlainJson:
    """An agent that takes application/json alone, as the official Java one does."""

    def __init__(self, *, takes_nothing: bool = False) -> None:
        self.sent: list[tuple[str, str]] = []
        self.done = 0
        self._takes_nothing = takes_nothing

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.path.endswith(".json"):
            await exchange.json(rest_card(f"http://{exchange.headers['host']}"))
            return
        kind = exchange.headers.get("content-type", "")
        self.sent.append((exchange.path, kind))
        if exchange.body and (kind != "application/json" or self._takes_nothing):
            await exchange.body_of(b"", 415)
            return
        self.done += 1
        if exchange.path.endswith(":stream"):
            await exchange.stream(b'data: {"message": %b}\n\n' % b"".join(_hi()))
        elif exchange.method == "GET":
            await exchange.json(task())
        else:
            await exchange.json(HI)


def _hi() -> list[bytes]:
    return [b'{"messageId":"r","role":"ROLE_AGENT","parts":[{"text":"hi"}]}']


async def test_where_a2a_json_is_refused_plain_json_is_sent_once_and_from_then_on() -> None:
    agent = PlainJson()
    async with scripted(agent) as server, connect(server.url, retries=0) as remote:
        assert (await remote.send("go")).text == "hi"
        assert [kind for _, kind in agent.sent] == ["application/a2a+json", "application/json"]
        assert agent.done == 1
        assert (await remote.send("go")).text == "hi"
        assert [event.text async for event in remote.stream("go")] == ["hi"]
        assert (await remote.get("t-1")).state is TaskState.COMPLETED
        kinds = [kind for _, kind in agent.sent[2:]]
        assert kinds == ["application/json", "application/json", ""]
        # One connection does for all of it.
        assert server.connections == 1


async def test_a_stream_is_asked_for_again_as_plain_json() -> None:
    agent = PlainJson()
    async with scripted(agent) as server, connect(server.url, retries=0) as remote:
        assert [event.text async for event in remote.stream("go")] == ["hi"]
        assert [kind for _, kind in agent.sent] == ["application/a2a+json", "application/json"]
        assert agent.done == 1


async def test_a_server_that_takes_neither_is_asked_twice_and_believed() -> None:
    agent = PlainJson(takes_nothing=True)
    async with scripted(agent) as server, connect(server.url, retries=0) as remote:
        for _ in range(2):
            with pytest.raises(UnexpectedStatus, match="answered 415"):
                await remote.send("go")
        # It has not said that it takes plain JSON.
        assert [kind for _, kind in agent.sent] == ["application/a2a+json", "application/json"] * 2


async def test_a_refusal_of_the_content_is_the_agents_own() -> None:
    async def refuses(exchange: Exchange) -> None:
        if exchange.path.endswith(".json"):
            await exchange.json(rest_card(f"http://{exchange.headers['host']}"))
            return
        error = {"code": 415, "status": "INVALID_ARGUMENT", "message": "no pictures"}
        await exchange.json({"error": error}, 415)

    async with scripted(refuses) as server, connect(server.url, retries=0) as remote:
        with pytest.raises(ContentTypeNotSupportedError, match="no pictures"):
            await remote.send("go")


async def test_a_media_type_of_the_callers_own_is_not_changed() -> None:
    agent = PlainJson()
    headers = {"content-TYPE": "application/x-own+json"}
    async with scripted(agent) as server, connect(server.url, headers=headers, retries=0) as remote:
        with pytest.raises(UnexpectedStatus, match="answered 415"):
            await remote.send("go")
        assert [kind for _, kind in agent.sent] == ["application/x-own+json"]


# Extensions that a caller's header names


def named(exchange: Exchange, header: str = "a2a-extensions") -> list[str]:
    return [uri.strip() for uri in exchange.headers[header].split(",")]


@pytest.mark.parametrize("header", ["A2A-Extensions", "a2a-extensions", "X-A2A-EXTENSIONS"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_extensions_of_a_callers_header_are_added_to_ours(
    header: str, binding: str, version: str
) -> None:
    async def agent(exchange: Exchange) -> None:
        if exchange.path.endswith(".json"):
            url = f"http://{exchange.headers['host']}/a"
            offered = {"url": url, "protocolBinding": binding, "protocolVersion": version}
            extensions = [IDEMPOTENT_SEND, TWO]
            await exchange.json({**card(url, *extensions), "supportedInterfaces": [offered]})
        else:
            await exchange.json({"error": {"code": -32001, "message": "no"}}, 404)

    async with scripted(agent) as server:
        options: dict[str, Any] = {"headers": {header: f"{ONE} ,{TWO}, {ONE}"}, "retries": 0}
        async with connect(server.url, extensions=[TWO], **options) as remote:
            with pytest.raises((A2AError, UnexpectedStatus)):
                await remote.get("t")
        ours = "a2a-extensions" if version == "1.0" else "x-a2a-extensions"
        assert named(server.exchanges[-1], ours) == sorted([ONE, TWO, IDEMPOTENT_SEND])
        other = {"a2a-extensions", "x-a2a-extensions"} - {ours}
        assert not other & server.exchanges[-1].headers.keys()


async def test_an_extension_that_a_header_names_is_one_that_is_spoken() -> None:
    agent = Agent(HI, capabilities={"extensions": [{"uri": ONE, "required": True}]})
    async with (
        scripted(agent) as server,
        connect(server.url, headers={"A2A-Extensions": ONE}) as remote,
    ):
        assert (await remote.send("go")).text == "hi"


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"A2A-Version": "0.3"}, "use version="),
        ({"last-event-id": "3"}, "subscribe"),
        ({"Content-Length": "3"}, "counts the body itself"),
        ({"Connection": "close"}, "manages its connections"),
        ({"X-A": "1", "x-a": "2"}, "given twice"),
        ({"X-A": "1\r\nX-B: 2"}, "no request can carry"),
        ({"X-A": "\udc80"}, "no request can carry"),
        ({"X A": "1"}, "no request can carry"),
    ],
)
def test_a_header_that_would_not_go_out_as_given_is_refused(
    headers: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        connect("http://localhost:9", headers=headers)


async def test_headers_of_a_caller_go_out_beside_ours_once() -> None:
    agent = Agent(task(artifacts=[ARTIFACT]))
    headers = {"accept": "text/plain", "TraceParent": "00-1-2-01", "x-own": "1"}
    async with scripted(agent) as server, connect(server.url, headers=headers) as remote:
        await remote.get("t-1")
        sent = server.exchanges[-1].headers
        assert sent["accept"] == "application/json, text/plain"
        assert (sent["traceparent"], sent["x-own"]) == ("00-1-2-01", "1")


# Whose answer it is


async def answer_as(exchange: Exchange, id: Any, **more: Any) -> None:
    await exchange.json({"jsonrpc": "2.0", "id": id, **more})


@pytest.mark.parametrize(
    "members", [{"result": task()}, {"error": {"code": -32001, "message": ""}}]
)
async def test_an_answer_to_another_request_is_not_ours(members: dict[str, Any]) -> None:
    async def another(exchange: Exchange) -> None:
        await answer_as(exchange, 4711, **members)

    async with talk(Agent(another), retries=0) as (remote, _):
        with pytest.raises(A2AError, match="has the id 4711, and the request had 1") as raised:
            await remote.get("t-1")
        assert raised.value.reason == "INVALID_AGENT_RESPONSE"


@pytest.mark.parametrize("id", [None, "1", 1.0])
async def test_an_id_of_another_form_is_ours(id: Any) -> None:
    async def ours(exchange: Exchange) -> None:
        await answer_as(exchange, id, result=task())

    async with talk(Agent(ours), retries=0) as (remote, _):
        assert (await remote.get("t-1")).id == "t-1"


async def test_events_of_another_request_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async def mixed(exchange: Exchange) -> None:
        theirs = exchange.frame({"task": task("FAILED", "t-2")}).replace(b'"id": 1,', b'"id": 77,')
        assert b'"id": 77,' in theirs
        ours = exchange.frame({"task": task("WORKING")}) + exchange.frame({"task": task()})
        await exchange.stream(theirs + ours[:-1] + b"\n" + theirs)

    async with talk(Agent(mixed), retries=0) as (remote, _):
        events = [event async for event in remote.stream("go")]
        assert [event.id for event in events] == ["t-1", "t-1"]
    assert "the answer has the id 77, and the request had 1" in caplog.text


# Where a stream ends


FAILED = {"taskId": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_FAILED"}}


@pytest.mark.parametrize("last", [{"task": task()}, {"statusUpdate": FAILED}, HI])
async def test_nothing_that_follows_the_end_is_yielded(last: dict[str, Any]) -> None:
    async def babbling(exchange: Exchange) -> None:
        update = {"taskId": "t-1", "contextId": "c-1", "artifact": ARTIFACT}
        frames = [last, {"artifactUpdate": update}, {"task": task("WORKING")}]
        await exchange.stream(b"".join(map(exchange.frame, frames)))

    async with talk(Agent(babbling), retries=0) as (remote, server):
        assert len([event async for event in remote.stream("go")]) == 1
        items = remote.service.send_streaming_message(_request(), remote.context)
        assert len([item async for item in items]) == 1
        await remote.aclose()
        await server.until_idle()


def _request() -> Any:
    from parley.model.operations import SendMessageRequest
    from parley.model.parts import Message, Part, Role

    message = Message(message_id="m", role=Role.USER, parts=(Part(text="go"),))
    return SendMessageRequest(message=message)
