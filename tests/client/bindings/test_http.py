"""The HTTP transport: request headers, trust, redirects, limits, closing."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from parley.client import connect
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.errors import (
    AuthenticationRequired,
    Disconnected,
    Timeout,
    UnexpectedStatus,
    Untrusted,
)
from parley.client.retry import is_worth_repeating
from parley.model.errors import A2AError
from parley.model.extensions import IDEMPOTENT_SEND
from tests.kit.scripted_server import HI, Agent, Exchange, card, scripted, talk, task

pytestmark = pytest.mark.anyio


# A certificate and key for localhost, trusted by these tests only.
CERTIFICATE = Path(__file__).parents[1] / "localhost.pem"


async def answer(exchange: Exchange) -> None:
    await exchange.json({"path": exchange.target})


@pytest.fixture
def tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    return context


async def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(tls) -> None:
    asyncio.get_running_loop().set_debug(False)  # debug mode reports the server's side as an error
    async with scripted(answer, tls=tls) as server:
        async with HttpTransport() as http:
            with pytest.raises(Untrusted, match=r"certificate of https://127.* is not trusted"):
                await http.get(server.url, {})
        with pytest.raises(Untrusted):
            await connect(server.url)
        assert server.exchanges == []


def test_places_show_neither_queries_nor_credentials() -> None:
    assert redacted("https://me:secret@host:1/p/q?key=secret") == "https://host:1/p/q"
    assert redacted("http://[broken?key=secret") == "http://[broken"
    assert redacted("me:secret@agents.example:50051?key=a/b") == "agents.example:50051"
    assert redacted("agents.example:50051") == "agents.example:50051"
    assert redacted("//me:secret@host/p") == "host/p"
    assert redacted("/p?key=secret") == "/p"


def test_what_never_left_may_always_be_sent_again_unless_it_never_will() -> None:
    assert not is_worth_repeating(Untrusted(), safe=True)
    assert not is_worth_repeating(Disconnected(), safe=False)
    assert not is_worth_repeating(Timeout("late"), safe=True)


# -- redirects of a card's address, and the credentials that follow them ---------------------------


SECRETS = {"bearer": "the-bearer", "api_key": "the-key", "headers": {"X-Secret": "the-header"}}


def leads_to(*places: str):
    """Redirect to each place in order; the last place repeats."""
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


# -- request headers: media type, extensions, a caller's own headers -------------------------------


ONE, TWO = "urn:example:one", "urn:example:two"


def rest_card(url: str, *extensions: str, version: str = "1.0") -> dict[str, Any]:
    offered = {"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": version}
    return {**card(url, *extensions), "supportedInterfaces": [offered]}


class PlainJson:
    """An agent that accepts only application/json, as the official Java server does."""

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


async def test_a_stream_is_asked_for_again_as_plain_json() -> None:
    agent = PlainJson()
    async with scripted(agent) as server, connect(server.url, retries=0) as remote:
        assert [event.text async for event in remote.stream("go")] == ["hi"]
        assert [kind for _, kind in agent.sent] == ["application/a2a+json", "application/json"]
        assert agent.done == 1


# Extensions in a caller's own header


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


# Matching an answer to its request


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


# The end of a stream


FAILED = {"taskId": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_FAILED"}}
