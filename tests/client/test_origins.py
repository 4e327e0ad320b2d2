"""Credentials are sent only to the origin that they were given for."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yarl
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from parley.client import connect, connect_sync
from parley.client.auth.credentials import Credentials
from parley.client.bindings.binding import is_supported
from parley.client.bindings.http import HttpTransport
from parley.client.card.resolver import read_card
from parley.client.errors import (
    AuthenticationRequired,
    CardNotFound,
    OriginNotTrusted,
    UnexpectedStatus,
)
from parley.client.origin import Origin
from parley.model.cards import APIKeySecurityScheme, SecurityScheme
from parley.model.service import ANONYMOUS
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.client.bindings.test_http import CERTIFICATE
from tests.kit.scripted import app_of, card_of
from tests.kit.scripted_server import HI, Agent, Exchange, card, scripted, task

pytestmark = pytest.mark.anyio

SECRET = "the-secret"
FOR_IT = [APIKeySecurityScheme(location=where, name="key") for where in ("query", "cookie")]


# -- the table of allowed origins -----------------------------------------------------------------


class Away:
    """A Parley agent on all bindings: its card, and each call's headers and query."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.url = ""
        self.card = b""

    def identify(self, scope: Any) -> Any:
        self.calls.append(str((scope["headers"], scope.get("query_string"))))
        return ANONYMOUS

    def offering(self, binding: str, version: str) -> dict[str, Any]:
        """Return the agent's card with only one interface."""
        members = json.loads(self.card)
        members["supportedInterfaces"] = [
            offer
            for offer in members["supportedInterfaces"]
            if (offer["protocolBinding"], offer["protocolVersion"]) == (binding, version)
        ]
        assert len(members["supportedInterfaces"]) == 1
        return members


@asynccontextmanager
async def away(scheme: APIKeySecurityScheme | None = None) -> AsyncIterator[Away]:
    there, plain = Away(), card_of()
    schemes = {"s": SecurityScheme(api_key_security_scheme=scheme)} if scheme else {}
    app = app_of(
        card=lambda interfaces: replace(plain(interfaces), security_schemes=schemes),
        identify=there.identify,
    )
    grpc = GrpcOptions(port=0) if is_supported("GRPC") else None
    async with serving(app, grpc=grpc) as there.url:
        async with connect(there.url) as agent:
            there.card = agent.card_json
        there.calls.clear()
        yield there


GIVEN: dict[str, tuple[dict[str, Any], APIKeySecurityScheme | None]] = {
    "a bearer token": ({"bearer": SECRET}, None),
    "a key in a header": ({"api_key": SECRET}, None),
    "a key in the query": ({"api_key": SECRET}, FOR_IT[0]),
    "a key in a cookie": ({"api_key": SECRET}, FOR_IT[1]),
    "a header": ({"headers": {"X-Team": SECRET}}, None),
}
GOES, REFUSED = True, False
# How the caller names the agent, and whether its interface at another origin gets credentials.
TABLE = {
    "its own address": GOES,
    "a card elsewhere": REFUSED,
    "a card elsewhere, its origin allowed": GOES,
    "a card elsewhere, another origin allowed": REFUSED,
    "an address elsewhere that redirects to its card": REFUSED,
    "its card in hand": GOES,
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_where_credentials_go(binding: str, version: str, given: str) -> None:
    if not is_supported(binding):
        pytest.skip(f"{binding} is not installed")
    options, scheme = GIVEN[given]
    options = {**options, "binding": binding, "version": version, "retries": 0}
    async with away(scheme) as there:
        offer = there.offering(binding, version)
        url = offer["supportedInterfaces"][0]["url"]

        async def elsewhere(exchange: Exchange) -> None:
            if exchange.path == "/led-away.json":
                place = f"{there.url}/.well-known/agent-card.json"
                await exchange.head(302, location=place, content_length="0")
            else:
                await exchange.json(offer)

        async with scripted(elsewhere) as here:
            for way, expected in TABLE.items():
                there.calls.clear()
                reference: Any = f"{here.url}/card.json"
                more: dict[str, Any] = {}
                match way:
                    case "its own address":
                        reference = there.url
                        # The gRPC port is another origin.
                        expected = REFUSED if binding == "GRPC" else expected
                    case "a card elsewhere, its origin allowed":
                        more = {"trust_origins": [url.rstrip("/")]}
                    case "a card elsewhere, another origin allowed":
                        more = {"trust_origins": ["http://127.0.0.1:1", "agent.example"]}
                    case "an address elsewhere that redirects to its card":
                        reference = f"{here.url}/led-away.json"
                    case "its card in hand":
                        reference = offer
                if expected is GOES:
                    async with connect(reference, **options, **more) as agent:
                        await agent.get("t-1")
                        stream = agent.subscribe("t-1")
                        assert (await anext(stream)).id == "t-1"
                        await stream.aclose()
                    assert len(there.calls) == 2, way
                    assert all(SECRET in call for call in there.calls), way
                else:
                    with pytest.raises(OriginNotTrusted) as caught:
                        await connect(reference, **options, **more)
                    assert there.calls == [], way
                    (origin,) = caught.value.origins
                    assert origin == url.rstrip("/") or origin == f"http://{url}", way
                    assert f"trust_origins=['{origin}']" in str(caught.value)
                    assert SECRET not in str(caught.value)
                    # The fix in the error message works.
                    async with connect(reference, **options, trust_origins=[origin]) as agent:
                        await agent.get("t-1")
                    assert SECRET in there.calls[-1], way


async def test_without_credentials_an_interface_is_called_wherever_it_is() -> None:
    async with away() as there:

        async def elsewhere(exchange: Exchange) -> None:
            await exchange.json(there.card)

        async with scripted(elsewhere) as here:
            for headers in (
                {},
                {"A2A-Extensions": "urn:example:1", "accept": "application/json"},
                {"X-A2A-Extensions": "urn:example:1"},
            ):
                async with connect(here.url, headers=headers) as agent:
                    await agent.get("t-1")
                assert len(there.calls) == 1
                there.calls.clear()


async def test_an_interface_at_the_trusted_origin_is_taken_in_place_of_one_that_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "parley.client")

    async def never(exchange: Exchange) -> None:
        raise AssertionError("asked")

    async def handler(exchange: Exchange) -> None:
        if exchange.method == "POST":
            await exchange.body_of(b"", 404)
            return
        offer = card(f"http://{exchange.headers['host']}")
        own = offer["supportedInterfaces"][0]
        offer["supportedInterfaces"] = [
            {**own, "url": f"{there.url}/before"},
            own,
            {**own, "url": f"{there.url}/after"},
        ]
        await exchange.json(offer)

    async with scripted(never) as there, scripted(handler) as here:
        async with connect(here.url, bearer=SECRET, binding=["JSONRPC"], retries=0) as agent:
            assert agent.interface.url == f"{here.url}/rpc"
            assert [one.url for one in agent.skipped_interfaces] == [
                f"{there.url}/before",
                f"{there.url}/after",
            ]
            assert f"skipping JSONRPC 1.0 at {there.url}/before" in caplog.text
            # Interfaces elsewhere are not tried when the agent's own interface fails.
            with pytest.raises(UnexpectedStatus, match="answered 404"):
                await agent.get("t-1")
        async with connect(here.url, retries=0) as agent:
            assert agent.skipped_interfaces == ()
            assert agent.interface.url == f"{there.url}/before"

        def blocking() -> int:
            with connect_sync(here.url, bearer=SECRET) as agent:
                return len(agent.skipped_interfaces)

        assert await asyncio.to_thread(blocking) == 2


# -- cards, redirects, and the addresses in them --------------------------------------------------


def headers_of(server: Any) -> str:
    return str([(exchange.target, exchange.headers) for exchange in server.exchanges])


async def test_a_redirect_takes_credentials_only_to_an_origin_that_is_trusted() -> None:
    async def theirs(exchange: Exchange) -> None:
        if exchange.headers.get("authorization"):
            await exchange.json(card(there.url))
        else:
            await exchange.body_of(b"who?", 401, www_authenticate="Bearer")

    async def ours(exchange: Exchange) -> None:
        await exchange.head(302, location=f"{there.url}/card.json", content_length="0")

    given = {"bearer": SECRET, "headers": {"X-Team": SECRET}}
    async with scripted(theirs) as there, scripted(ours) as here:
        with pytest.raises(AuthenticationRequired):
            await connect(f"{here.url}/card.json", **given)
        assert SECRET not in headers_of(there)
        async with connect(f"{here.url}/card.json", **given, trust_origins=[there.url]):
            assert there.exchanges[-1].headers["x-team"] == SECRET
            assert there.exchanges[-1].headers["authorization"] == f"Bearer {SECRET}"


async def test_who_was_led_away_and_back_brings_nothing() -> None:
    async def theirs(exchange: Exchange) -> None:
        await exchange.head(302, location=f"{here.url}/pay.json", content_length="0")

    async def ours(exchange: Exchange) -> None:
        if exchange.path == "/pay.json":
            await exchange.json(card(here.url))
        else:
            await exchange.head(302, location=f"{there.url}/x.json", content_length="0")

    async with (
        scripted(theirs) as there,
        scripted(ours) as here,
        connect(f"{here.url}/card.json", headers={"X-Team": SECRET}),
    ):
        sent = [exchange.headers.get("x-team") for exchange in here.exchanges]
        assert sent == [SECRET, None]


async def test_a_call_follows_no_redirect() -> None:
    async def theirs(exchange: Exchange) -> None:
        raise AssertionError("asked")

    async def ours(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(card(here.url))
        else:
            await exchange.head(307, location=f"{there.url}/rpc", content_length="0")

    async with (
        scripted(theirs) as there,
        scripted(ours) as here,
        connect(here.url, bearer=SECRET, retries=0) as agent,
    ):
        with pytest.raises(UnexpectedStatus, match="points to"):
            await agent.get("t-1")
        with pytest.raises(UnexpectedStatus, match="points to"):
            await anext(agent.stream("hi"))


async def test_a_relative_interface_is_where_the_card_came_from() -> None:
    async def theirs(exchange: Exchange) -> None:
        if exchange.method == "GET":
            offer = card("")
            offer["supportedInterfaces"][0]["url"] = "/rpc"
            await exchange.json(offer)
        else:
            await exchange.result(task())

    async def ours(exchange: Exchange) -> None:
        await exchange.head(302, location=f"{there.url}/card.json", content_length="0")

    async with scripted(theirs) as there, scripted(ours) as here:
        with pytest.raises(OriginNotTrusted):
            await connect(f"{here.url}/card.json", bearer=SECRET)
        async with connect(f"{there.url}/card.json", bearer=SECRET) as agent:
            await agent.get("t-1")
        assert there.exchanges[-1].headers["authorization"] == f"Bearer {SECRET}"


async def test_what_a_later_card_names_is_neither_called_nor_fetched() -> None:
    async def theirs(exchange: Exchange) -> None:
        raise AssertionError("asked")

    def offered() -> dict[str, Any]:
        offer = card(there.url if moved else here.url)
        offer["capabilities"]["extendedAgentCard"] = True
        offer["documentationUrl"] = f"{there.url}/docs"
        offer["iconUrl"] = f"{there.url}/icon"
        protected = base64.urlsafe_b64encode(
            json.dumps({"alg": "ES256", "kid": "k", "jku": f"{there.url}/jwks"}).encode()
        ).decode()
        offer["signatures"] = [{"protected": protected.rstrip("="), "signature": "AA"}]
        return offer

    async def ours(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(offered())
        elif exchange.call["method"] == "GetExtendedAgentCard":
            await exchange.result(offered())
        else:
            await exchange.result(task())

    moved = False
    async with scripted(theirs) as there, scripted(ours) as here:
        async with connect(here.url, bearer=SECRET) as agent:
            moved = True
            assert (await agent.refresh_card()).supported_interfaces[0].url == f"{there.url}/rpc"
            await agent.extended_card()
            assert agent.card.supported_interfaces[0].url == f"{there.url}/rpc"
            await agent.get("t-1")
            assert agent.interface.url == f"{here.url}/rpc"
        with pytest.raises(OriginNotTrusted):
            await connect(here.url, bearer=SECRET)


async def test_cookies_stay_where_they_were_set_and_with_whom_they_were_given() -> None:
    async def agent(exchange: Exchange) -> None:
        if exchange.method == "GET":
            offer = card(f"http://{exchange.headers['host']}")
            scheme = {"location": "cookie", "name": "session"}
            offer["securitySchemes"] = {"s": {"apiKeySecurityScheme": scheme}}
            await exchange.json(offer, set_cookie="tracked=1; Path=/")
        else:
            await exchange.result(task(), set_cookie="tracked=2; Path=/")

    async with scripted(agent) as one, scripted(agent) as other, HttpTransport() as http:
        async with connect(one.url, http=http, api_key=SECRET) as remote:
            await remote.get("t-1")
            await remote.get("t-1")
        async with connect(other.url, http=http) as remote:
            await remote.get("t-1")
        assert one.exchanges[-1].headers["cookie"] == f"session={SECRET}"
        assert "cookie" not in headers_of(other)


async def test_a_user_and_a_password_in_the_address_are_credentials_for_its_origin() -> None:
    async def ours(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(card(there.url if leads_away else here.url))
        else:
            await exchange.result(HI)

    async def theirs(exchange: Exchange) -> None:
        raise AssertionError("asked")

    leads_away = False
    basic = "Basic " + base64.b64encode(b"me:p@ss").decode()
    async with scripted(theirs) as there, scripted(ours) as here:
        address = here.url.replace("://", "://me:p%40ss@")
        async with connect(address) as agent:
            await agent.send("hi")
            assert "p%40ss" not in agent.interface.url
        assert [e.headers["authorization"] for e in here.exchanges] == [basic, basic]
        leads_away = True
        with pytest.raises(OriginNotTrusted) as caught:
            await connect(address)
        assert "p%40ss" not in str(caught.value)
        for other in ({"bearer": "b"}, {"headers": {"authorization": "x"}}):
            with pytest.raises(ValueError, match="user and a password") as wrong:
                connect(address, **other)
            assert "p%40ss" not in str(wrong.value)


async def test_a_user_in_a_cards_address_gives_way_to_the_callers_own_token() -> None:
    async with scripted(lambda exchange: exchange.result(task())) as server:
        offer = card(server.url.replace("://", "://card:its-own@"))
        async with connect(offer, bearer=SECRET) as agent:
            await agent.get("t-1")
        assert server.exchanges[-1].headers["authorization"] == f"Bearer {SECRET}"


async def test_a_header_of_the_same_name_is_sent_once() -> None:
    async with scripted(lambda exchange: exchange.result(task())) as server:
        given = {"bearer": SECRET, "headers": {"authorization": "Bearer older"}}
        async with connect(card(server.url), **given) as agent:
            await agent.get("t-1")
        assert server.exchanges[-1].headers["authorization"] == f"Bearer {SECRET}"


async def test_the_same_host_without_encryption_is_another_origin() -> None:
    async def plain(exchange: Exchange) -> None:
        raise AssertionError("asked")

    async def safe(exchange: Exchange) -> None:
        await exchange.json(card(there.url))

    asyncio.get_running_loop().set_debug(False)
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(CERTIFICATE)
    async with scripted(plain) as there, scripted(safe, tls=server_side) as here:
        for options in ({"insecure": True}, {"http": HttpTransport(tls=_trusting())}):
            with pytest.raises(OriginNotTrusted, match=there.url):
                await connect(here.url, api_key=SECRET, **options)
            for http in options.values():
                if isinstance(http, HttpTransport):
                    await http.close()


async def test_no_password_is_taken_from_a_file_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / ".netrc"
    file.write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    file.chmod(0o600)
    monkeypatch.setenv("NETRC", str(file))
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with scripted(Agent(task())) as server, HttpTransport(trust_env=True) as http:
        async with connect(server.url, http=http) as agent:
            await agent.get("t-1")
        assert [e.headers for e in server.exchanges if "authorization" in e.headers] == []
        # Hosts in ``no_proxy`` are called without a proxy.
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with connect(server.url, http=http) as agent:
            await agent.get("t-1")


def _trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


async def test_a_proxy_gets_its_own_credentials_and_the_agent_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def proxy(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json(card("http://agent.example"))
        else:
            await exchange.result(task())

    async with scripted(proxy) as server:
        monkeypatch.setenv("http_proxy", server.url.replace("://", "://me:for-the-proxy@"))
        async with (
            HttpTransport(trust_env=True) as http,
            connect("http://agent.example", http=http, bearer=SECRET, insecure=True) as agent,
        ):
            await agent.get("t-1")
        sent = server.exchanges[-1].headers
        assert sent["authorization"] == f"Bearer {SECRET}"
        assert sent["proxy-authorization"].startswith("Basic ")
        # A proxy from the environment is used only if the caller allows it.
        count = len(server.exchanges)
        async with scripted(Agent(task())) as direct, connect(direct.url, bearer=SECRET) as agent:
            await agent.get("t-1")
            assert direct.exchanges[-1].headers["authorization"] == f"Bearer {SECRET}"
        assert len(server.exchanges) == count


async def test_a_host_is_no_file_though_the_folder_holds_one_of_that_name(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(exchange: Exchange) -> None:
        raise AssertionError("asked")

    monkeypatch.chdir(tmp_path)
    async with scripted(never) as server:
        for name in ("agents.example.com", "localhost"):
            (tmp_path / name).write_text(json.dumps(card(server.url)))
            with pytest.raises(CardNotFound, match=rf"give \./{name} or https?://{name}"):
                await connect(name, bearer=SECRET)
            async with connect(f"./{name}", bearer=SECRET) as agent:
                assert agent.interface.url == f"{server.url}/rpc"


async def test_no_reference_that_is_refused_shows_its_password() -> None:
    for reference in ("me:the-secret@host", "http://me:the-secret@[broken"):
        with pytest.raises(CardNotFound) as caught:
            await connect(reference, bearer="b" if "//" not in reference else None)
        assert SECRET not in str(caught.value)


# -- origins --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://a/x", "http://A:80/y?z", True),
        ("https://a./x", "https://a:443", True),
        ("https://bücher.example", "https://xn--bcher-kva.example:443/", True),
        ("http://[::1]:1", "http://[0:0:0:0:0:0:0:1]:1/", True),
        ("http://me:pw@a/", "http://a/", True),
        ("http://a", "https://a", True),  # an upgrade to TLS
        ("https://a", "http://a", False),
        ("http://a:8080", "https://a:8080", False),
        ("http://a:8080", "https://a", False),
        ("http://a:1", "http://a:2", False),
        ("http://a", "http://b.a", False),
        ("http://b.a", "http://a", False),
        ("http://a", "http://a.b", False),
        ("http://a@b", "http://a", False),
        ("http://localhost:1", "http://127.0.0.1:1", True),
        ("http://localhost:1", "http://[::1]:1", True),
        ("http://localhost:1", "http://127.0.0.1:2", False),
        ("http://127.0.0.1:1", "http://localhost:1", False),
        ("http://127.0.0.1:1", "http://127.0.0.2:1", False),
    ],
)
def test_an_origin_is_scheme_host_and_port(one: str, other: str, same: bool) -> None:
    assert Origin.of(one).covers(Origin.of(other)) is same
    given = Credentials(bearer="b", trust_origins=[str(Origin.of(one))])
    assert given.allows(Origin.of(other)) is same


@pytest.mark.parametrize(
    "address",
    [
        "http://a.example\\@b.example/",
        "http://a.example\t.b/",
        "http://a b/",
        "http://a%2eb/",
        "http://127.1/",
        "http://[::1/",
        "http://a:x/",
        "ftp://a/",
        "/rpc",
        "http://",
    ],
)
async def test_an_address_that_may_be_read_in_two_ways_gets_nothing(address: str) -> None:
    with pytest.raises(ValueError):
        Origin.of(address)
    everything = Credentials(headers={"X": "x"}, bearer=SECRET).for_origin(Origin.of("http://b"))
    assert everything.card_headers(address, challenged=True) == {}
    with pytest.raises(OriginNotTrusted):
        everything.agent_parameters(None, read_card(encode_card(), "the card"))


def encode_card() -> bytes:
    return json.dumps(card("http://a")).encode()


@pytest.mark.slow
@given(st.lists(st.sampled_from([*"ab1.@:/?#[]%\\\t ;&=-_", "::1", "ü", "①", "Σ", "xn--"])))
@example(["b", "Σ"])
@example(list("a\\@b"))
@example(list("a#@b"))
@example(["①", ".", "a"])
@example(list("a%2eb"))
def test_what_is_connected_to_is_what_the_origin_says(pieces: list[str]) -> None:
    url = "http://" + "".join(pieces)
    try:
        origin = Origin.of(url)
        there = yarl.URL(url)  # the address that requests use
    except ValueError:
        return
    host = (there.raw_host or "").removesuffix(".")
    assert (there.scheme, there.port) == (origin.scheme, origin.port)
    assert host.lower() == origin.host


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("https://A.example", "https://a.example"),
        ("https://a.example:443/", "https://a.example"),
        ("http://a.example:8080", "http://a.example:8080"),
        ("a.example:50051", "https://a.example:50051"),
        ("localhost:50051", "http://localhost:50051"),
        ("[::1]:50051", "http://[::1]:50051"),
        (" a.example ", "https://a.example"),
    ],
)
def test_an_origin_is_written_as_people_write_it(written: str, read: str) -> None:
    assert str(Origin.parse(written)) == read


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("https://a/path", "more than an origin; give only scheme, host and port: https://a"),
        ("https://me:the-secret@a", "more than an origin"),
        ("https://a?key=the-secret", "more than an origin"),
        ("*", "is no origin"),
        ("https://*.example.com", "is no origin"),
        ("", "is no origin"),
        ("ftp://a", "is no origin; give an address of the form https://host"),
        ("a:99999", "is no origin"),
    ],
)
def test_what_is_no_origin_is_refused_when_it_is_given(written: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("*", r"\*")) as caught:
        connect("http://a", trust_origins=["https://b", written])
    assert SECRET not in str(caught.value)


def test_one_origin_is_still_a_list() -> None:
    with pytest.raises(ValueError, match=r"\['https://b'\]"):
        connect("http://a", trust_origins="https://b")


@pytest.mark.parametrize(
    ("url", "options", "origin"),
    [
        ("a.example:50051", {}, "https://a.example:50051"),
        ("a.example:50051", {"insecure": True}, "http://a.example:50051"),
        ("a.example:50051", {"insecure": True, "tls": True}, "https://a.example:50051"),
        ("127.0.0.1:50051", {}, "http://127.0.0.1:50051"),
        ("127.0.0.1:50051", {"tls": True}, "https://127.0.0.1:50051"),
        ("http://a.example:50051", {}, "http://a.example:50051"),
        ("https://a.example", {}, "https://a.example"),
        ("a.example:443", {}, "https://a.example"),
    ],
)
def test_the_origin_of_grpc_says_whether_it_is_encrypted(
    url: str, options: dict[str, bool], origin: str
) -> None:
    assert str(Origin.of_grpc(url, **options)) == origin
    if is_supported("GRPC"):
        from parley.client.bindings.grpc import GrpcTarget

        target = GrpcTarget.of(url, insecure=options.get("insecure", False))
        secure = target.secure or options.get("tls", False)
        assert (origin.startswith("https"), target.address.rpartition(":")[0]) == (
            secure,
            Origin.of(origin).host,
        )


def test_nothing_shows_what_is_secret() -> None:
    given = Credentials(headers={"X-Team": SECRET}, bearer=SECRET, api_key=SECRET)
    refusal = given.for_origin(Origin.of("http://a")).refusal("Agent", [Origin.of("http://b")])
    assert SECRET not in f"{given!r} {given} {refusal}"
    assert "the bearer token and the API key and the header X-Team were" in str(refusal)


@pytest.mark.parametrize("name", ["bearer", "api_key"])
def test_a_secret_that_no_request_can_carry_is_refused_and_not_shown(name: str) -> None:
    for value in (f"{SECRET}\n", f"{SECRET}\x00", f"{SECRET}\udc80"):
        with pytest.raises(ValueError, match="no request can carry the") as told:
            connect("http://a", **{name: value})  # type: ignore[arg-type]
        assert SECRET not in str(told.value)
    with pytest.raises(TypeError, match="is a text, unlike a bytes"):
        connect("http://a", **{name: SECRET.encode()})  # type: ignore[arg-type]
