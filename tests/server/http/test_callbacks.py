"""Callbacks: a POST to a signed address completes an event; other addresses reveal nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from parley.model.service import Caller
from parley.security.sealing import TokenExpired, TokenInvalid
from parley.server.app import App, Endpoint, Settings, create_app
from parley.server.log import log_access
from parley.server.run import serving
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import MAX_EVENT_BYTES, EventCompleted
from tests.kit.http import Response, ask, call, connection, post
from tests.kit.scripted import Scripted, card_of

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Receiver:
    """Takes the token "good", and completes what it is told to."""

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


async def test_a_value_that_grows_beyond_the_limit_as_the_store_keeps_it_is_refused(
    url: str, receiver: Receiver
) -> None:
    body = b"[" + b",".join([b"1e9"] * 60_000) + b"]"
    assert len(body) < MAX_EVENT_BYTES
    assert (await make(url, body, JSON)).status == 413
    assert receiver.completed == []


async def test_a_body_without_an_end_is_cut_at_the_limit(url: str, receiver: Receiver) -> None:
    async with connection(url) as http:
        await http.request(
            "POST", "/callbacks/good", headers={**JSON, "Transfer-Encoding": "chunked"}
        )
        piece = b"%x\r\n%s\r\n" % (65536, b"1" * 65536)
        for _ in range(1 + MAX_EVENT_BYTES // 65536):
            await http.write(piece)
        assert (await http.response()).status == 413
    assert receiver.completed == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("token", ["good", "old", "bad"])
async def test_only_a_post_calls_back(
    url: str, receiver: Receiver, method: str, token: str
) -> None:
    """What opens an address to look at it, a mail reader or a chat, completes nothing."""
    answer = await ask(url, method, f"/callbacks/{token}")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert receiver.asked == receiver.completed == []


async def test_options_says_what_is_allowed_and_lets_no_page_call(url: str) -> None:
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = await ask(url, "OPTIONS", "/callbacks/good", headers=headers)
    assert (answer.status, answer.headers["allow"]) == (204, "POST")
    assert not [name for name in answer.headers if name.startswith("access-control")]


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


async def test_an_expired_address_says_so(url: str, receiver: Receiver) -> None:
    answer = await make(url, token="old")
    assert (answer.status, answer.json) == (410, {"error": "this callback address has expired"})


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


async def test_a_failure_has_a_reference_and_no_details(
    url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.failure = KeyError("secret")
    answer = await make(url)
    assert answer.status == 500
    assert "secret" not in answer.body.decode()
    assert "reference" in answer.json["error"]
    receiver.failure = None
    assert (await make(url)).status == 204
    assert "KeyError" in caplog.text


async def test_it_needs_no_other_authentication(receiver: Receiver) -> None:
    def nobody(scope: Any) -> Caller:
        raise PermissionError("who are you?")

    async with serving(create_app({"": endpoint(receiver)}, identify=nobody)) as url:
        assert "error" in (await post(url, call())).json
        assert (await make(url, b"1", JSON)).status == 204
    assert receiver.completed == [("payment:42", b"1")]


async def test_a_request_for_another_host_is_refused_as_everywhere(receiver: Receiver) -> None:
    settings = Settings(allowed_hosts=("agents.example",))
    async with serving(create_app({"": endpoint(receiver)}, settings=settings)) as url:
        assert (await make(url, headers={"Host": "evil.example"})).status == 421
        assert (await make(url, headers={"Host": "agents.example"})).status == 204
    assert len(receiver.completed) == 1


async def test_a_server_that_drains_has_it_called_again(receiver: Receiver) -> None:
    app = create_app({"": endpoint(receiver)})
    async with serving(app) as url:
        app.lifecycle.draining = True
        answer = await make(url)
        app.lifecycle.draining = False
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert (await make(url)).status == 204


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


@pytest.mark.parametrize("mount", ["", "/agents"])
@pytest.mark.parametrize(
    ("path", "agent", "tenant"),
    [
        ("", "root", ""),
        ("/acme", "acme", "acme"),
        ("/x/y", "x", ""),
        ("/a2a/root", "root", ""),
        ("/a2a/acme", "acme", "acme"),
        ("/a2a/x-y", "x", ""),
        ("/a2a/x%2Fz", "x", ""),
    ],
)
async def test_each_address_of_an_agent_receives_its_callbacks(
    mount: str, path: str, agent: str, tenant: str
) -> None:
    receivers = {name: Receiver() for name in ("root", "acme", "x")}
    app = several(**receivers)
    served: Any = app
    if mount:
        served = Starlette(routes=[Mount(mount, app=app)], lifespan=app.lifespan)
    long = "a" * 3000
    async with serving(served) as url:
        for token, status in (("good", 204), (long, 404)):
            assert (await ask(url, "POST", f"{mount}{path}/callbacks/{token}")).status == status
    asked = {name: receiver.asked for name, receiver in receivers.items() if receiver.asked}
    assert asked == {agent: [("good", tenant), (long, tenant)]}


async def test_an_agent_without_callbacks_has_no_such_address() -> None:
    receivers = {name: Receiver() for name in ("root", "acme", "x")}
    async with serving(several(**receivers)) as url:
        assert (await ask(url, "POST", "/bare/callbacks/good")).status == 404
    assert not any(receiver.asked for receiver in receivers.values())


def test_no_agent_and_no_tenant_stands_where_callbacks_arrive(receiver: Receiver) -> None:
    with pytest.raises(ValueError, match="'/callbacks' is where callbacks to the agent at / arriv"):
        create_app({"": endpoint(receiver), "/callbacks": endpoint(receiver)})
    with pytest.raises(ValueError, match="'/x/callbacks/y' is where callbacks"):
        create_app({"/x": endpoint(receiver), "/x/callbacks/y": endpoint(receiver)})
    with pytest.raises(ValueError, match="a path of the protocol"):
        create_app({"": endpoint(receiver, tenants={"Callbacks": endpoint(receiver)})})
    create_app({"/x": endpoint(receiver), "/callbacks": endpoint(receiver)})


async def test_a_token_is_never_logged(
    url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert (await make(url, b"1", JSON)).status == 204
    assert (await make(url, b"x", JSON)).status == 400
    assert (await make(url, token="tok3n")).status == 404
    assert "good" not in caplog.text
    assert "tok3n" not in caplog.text


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
