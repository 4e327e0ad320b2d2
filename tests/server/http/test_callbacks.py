"""Callbacks: a POST to a signed address completes an event; other addresses reveal nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from parley.security.sealing import TokenExpired, TokenInvalid
from parley.server.app import App, Endpoint, Settings, create_app
from parley.server.log import log_access
from parley.server.run import serving
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import MAX_EVENT_BYTES, EventCompleted
from tests.kit.http import Response, ask
from tests.kit.scripted import Scripted, card_of

pytestmark = pytest.mark.anyio


JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Receiver:
    """Accepts the token "good", and completes the given events."""

    def __init__(self) -> None:
        self.completed: list[tuple[str, bytes]] = []
        self.asked: list[tuple[str, str]] = []
        self.failure: Exception | None = None

    async def event_of(self, token: str, tenant: str) -> str:
        self.asked.append((token, tenant))
        if token == "old":
            raise TokenExpired
        if token != "good":
            raise TokenInvalid
        return "payment:42"

    async def complete(self, key: str, value: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        self.completed.append((key, value))


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def endpoint(receiver: Receiver | None, **options: Any) -> Endpoint:
    return Endpoint(Scripted(), card_of(), callbacks=receiver, **options)


@pytest.fixture
async def url(receiver: Receiver) -> AsyncIterator[str]:
    settings = Settings(max_depth=10)
    async with serving(create_app({"": endpoint(receiver)}, settings=settings)) as url:
        yield url


async def make(url: str, body: bytes = b"", headers: Any = None, token: str = "good") -> Response:
    return await ask(url, "POST", f"/callbacks/{token}", body, headers)


@pytest.mark.parametrize(
    ("body", "headers", "value"),
    [
        (b'{"paid": true, "amount": 9.5}', JSON, b'{"amount":9.5,"paid":true}'),
        (b' [1, "two", null] ', JSON, b'[1,"two",null]'),
        (b"7", {"Content-Type": "Application/JSON; charset=utf-8"}, b"7"),
        (b"7", {"Content-Type": "application/vnd.bank+json"}, b"7"),
        (b"7", {}, b"7"),
        (b"", {}, b"null"),
        (b"", JSON, b"null"),
        (b"", {"Content-Type": "text/plain"}, b"null"),
        (b"id=tr_42&state=paid+up&x=&n=1&n=2", FORM,
         b'{"id":"tr_42","n":["1","2"],"state":"paid up","x":""}'),
        ("\u00e9\u4e2d".join('""').encode(), JSON, '"é中"'.encode()),
    ],
)  # fmt: skip
async def test_the_body_is_the_value(
    url: str, receiver: Receiver, body: bytes, headers: dict[str, str], value: bytes
) -> None:
    answer = await make(url, body, headers)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["cache-control"] == "no-store"
    assert receiver.completed == [("payment:42", value)]


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b'{"paid": tru', JSON, 400, "JSON"),
        (b"\xff", JSON, 400, "JSON"),
        (b'"\\ud800"', JSON, 400, "JSON"),
        (b"1e999", JSON, 400, "JSON"),
        (b"[" * 11 + b"]" * 11, JSON, 400, "10 levels"),
        (b"[" * 100_000, JSON, 400, "10 levels"),
        (b"x=%ff", FORM, 400, "form"),
        (b"&".join([b"x=1"] * 1001), FORM, 400, "1000 fields"),
        (b"<paid/>", {"Content-Type": "application/xml"}, 415, "application/xml"),
        (b"paid", {"Content-Type": "text/plain"}, 415, "application/json"),
        (b'"' + b"x" * MAX_EVENT_BYTES + b'"', JSON, 413, f"{MAX_EVENT_BYTES} bytes"),
    ],
)
async def test_a_body_that_is_no_value_is_refused(
    url: str, receiver: Receiver, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    answer = await make(url, body, headers)
    assert answer.status == status
    assert words in answer.json["error"]
    assert receiver.completed == []


@pytest.mark.parametrize(
    "token", ["bad", "", "good/", "good/more", "x/good", "a" * 7000, "%2e", "g%6fod%00"]
)
async def test_what_is_no_token_is_answered_as_if_nothing_were_there(
    url: str, receiver: Receiver, token: str
) -> None:
    answer = await make(url, b"1", JSON, token)
    other = await make(url, b"1", JSON, "unknown")
    assert (answer.status, answer.body) == (other.status, other.body) == (404, other.body)
    assert receiver.completed == []


async def test_the_token_is_looked_at_before_the_body(url: str) -> None:
    assert (await make(url, b"no json", JSON, "bad")).status == 404
    assert (await make(url, b"no json", JSON, "old")).status == 410


async def test_another_value_for_the_same_event_is_a_conflict(url: str, receiver: Receiver) -> None:
    receiver.failure = EventCompleted("agent", "payment:42")
    answer = await make(url, b"2", JSON)
    assert answer.status == 409
    assert "the first one counts" in answer.json["error"]


async def test_a_store_that_is_down_is_a_reason_to_call_again(
    url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.failure = StoreUnavailable("the disk of db.internal is full")
    answer = await make(url)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "db.internal" not in answer.body.decode()
    assert "db.internal" in caplog.text
    assert "good" not in caplog.text


async def test_a_request_for_another_host_is_refused_as_everywhere(receiver: Receiver) -> None:
    settings = Settings(allowed_hosts=("agents.example",))
    async with serving(create_app({"": endpoint(receiver)}, settings=settings)) as url:
        assert (await make(url, headers={"Host": "evil.example"})).status == 421
        assert (await make(url, headers={"Host": "agents.example"})).status == 204
    assert len(receiver.completed) == 1


async def test_the_first_request_starts_a_mounted_app(receiver: Receiver) -> None:
    started = []

    async def start() -> None:
        started.append(1)

    app = create_app({"": endpoint(receiver)}, startup=start)
    async with serving(Starlette(routes=[Mount("/agents", app=app)])) as url:
        assert (await ask(url, "POST", "/agents/callbacks/good")).status == 204
    assert started == [1]


def several(**receivers: Receiver) -> App:
    tenants = {"acme": endpoint(receivers["acme"]), "bare": endpoint(None)}
    return create_app(
        {
            "": endpoint(receivers["root"], tenants=tenants, key="root"),
            "/x/y": endpoint(receivers["x"], key="x/z"),
        }
    )


async def test_an_agent_without_callbacks_has_no_such_address() -> None:
    receivers = {name: Receiver() for name in ("root", "acme", "x")}
    async with serving(several(**receivers)) as url:
        assert (await ask(url, "POST", "/bare/callbacks/good")).status == 404
    assert not any(receiver.asked for receiver in receivers.values())


async def test_a_token_is_never_logged(
    url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert (await make(url, b"1", JSON)).status == 204
    assert (await make(url, b"x", JSON)).status == 400
    assert (await make(url, token="tok3n")).status == 404
    assert "good" not in caplog.text
    assert "tok3n" not in caplog.text


async def test_a_value_that_grows_beyond_the_limit_as_the_store_keeps_it_is_refused(
    url: str, receiver: Receiver
) -> None:
    body = b"[" + b",".join([b"1e9"] * 60_000) + b"]"
    assert len(body) < MAX_EVENT_BYTES
    assert (await make(url, body, JSON)).status == 413
    assert receiver.completed == []


def test_the_access_log_has_no_tokens(caplog: pytest.LogCaptureFixture) -> None:
    log_access()
    logger = logging.getLogger("uvicorn.access")
    line = '%s - "%s %s HTTP/%s" %d'
    logger.info(line, "127.0.0.1:5", "POST", "/a2a/shop/callbacks/tok3n.sig?x=1", "1.1", 204)
    logger.info(line, "127.0.0.1:5", "GET", "/tasks/t-1", "1.1", 200)
    logger.info(
        line, "127.0.0.1:5", "GET", "/shop/callbacks/oauth?code=c0de&state=st4te", "1.1", 200
    )
    logger.info(line, "127.0.0.1:5", "POST", "/shop/callbacks/authorize/t0ken", "1.1", 204)
    assert "/shop/callbacks/oauth?..." in caplog.text
    assert not [text for text in ("c0de", "st4te", "t0ken") if text in caplog.text]
    assert "/a2a/shop/callbacks/...?x=1" in caplog.text
    assert "tok3n" not in caplog.text
    assert "/tasks/t-1" in caplog.text
