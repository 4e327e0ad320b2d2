"""Access to a server, and its restricted endpoints."""

from __future__ import annotations

import asyncio

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2

import parley
from parley import Agent, CardDetails, EnvelopeSettings, Rights
from parley.envelope.binding import EnvelopeBinding
from parley.model.errors import UnauthenticatedError
from parley.model.service import Caller
from parley.security import Bearer, MutualTls, anonymous
from parley.server.app import Settings
from parley.server.grpc.server import REFLECTION_SERVICES
from parley.server.run import AnonymousRefused, run, serving, warn_of_plain_text
from parley.server.settings import GrpcOptions, TlsOptions
from parley.server.sockets import listen
from parley.server.tls import ReloadingTls, asked_of_callers
from tests.kit.certificates import Authority
from tests.kit.scripted import app_of

pytestmark = pytest.mark.anyio


AUTHORITY = Authority()
token = Bearer(lambda token: None)
certificate = MutualTls()
forwarded = MutualTls(
    proxy_header="X-Forwarded-Client-Cert", trusted_proxies=["10.0.0.0/8"], name="forwarded"
)


async def echo(text: str) -> str:
    return text


def named(name="A", **options) -> Agent:
    agent = Agent(name, **options)
    agent.skill(echo)
    return agent


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_server_that_everyone_reaches_and_may_call_is_refused(host):
    with pytest.raises(AnonymousRefused, match=r"--allow-anonymous \(allow_anonymous=True\)"):
        run(app_of(), host=host, port=0)


KEY = {"owner": "shop", "kid": "k", "kty": "oct", "k": "A" * 43}
SIGNED = {"bindings": [EnvelopeBinding(keys=[KEY])]}


@pytest.mark.parametrize(
    ("agents", "options", "is_open"),
    [
        (named(), {}, True),
        (named(security=token), {}, False),
        (named(security=token), {"auth": False}, True),
        (named(), {"auth": token}, False),
        (named(security=token | anonymous), {}, True),
        (named(rights=Rights(operations={"CancelTask": token})), {}, True),
        ([named(security=token), named("B")], {}, True),
        ([named(security=token), named("B", security=certificate)], {}, False),
        (named(), {"caller": lambda scope: Caller()}, False),
        (
            named(card=CardDetails(envelope=EnvelopeSettings(data_classification="internal"))),
            SIGNED,
            False,
        ),
        (named(security=token), {"tenants": {"b": named("B")}}, True),
        (
            named(security=token | anonymous),
            {"settings": Settings(restrict={"agents": "authenticated"})},
            False,
        ),
        (named(), {"settings": Settings(restrict={"agents": ["10.0.0.0/8"]})}, True),
    ],
)
def test_an_app_is_open_unless_all_its_agents_require_credentials(agents, options, is_open):
    assert parley.asgi(agents, **options).is_open == is_open


# -- certificates of callers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agents", "asked"),
    [
        (named(), "required"),
        (named(security=token), "required"),
        (named(security=certificate), "required"),
        (named(security=certificate & token), "required"),
        (named(security=certificate | token), "optional"),
        (named(security=certificate | anonymous), "optional"),
        (named(security=forwarded), "optional"),
        ([named(security=certificate), named("B")], "optional"),
        (named(security=certificate, rights=Rights(operations={"GetTask": token})), "optional"),
        (named(rights=Rights(operations={"CancelTask": certificate})), "optional"),
    ],
)
def test_a_certificate_is_required_where_every_agent_requires_it(agents, asked):
    assert asked_of_callers(parley.asgi(agents).rules) == asked


# -- warnings ----------------------------------------------------------------------------------


def warned(caplog, app, *, host="0.0.0.0", grpc=None, tls=None) -> str:
    sockets = listen(host, 0)
    try:
        warn_of_plain_text(app, host, sockets, grpc, tls)
    finally:
        for each in sockets:
            each.close()
    return caplog.text


@pytest.mark.parametrize(
    ("options", "host", "is_warned"),
    [
        ({}, "0.0.0.0", True),
        ({}, "127.0.0.1", False),
        ({"url": "https://bank.example"}, "0.0.0.0", False),
        ({"settings": Settings(trust_proxy=True)}, "0.0.0.0", False),
    ],
)
def test_credentials_that_would_travel_unencrypted_are_warned_of(caplog, options, host, is_warned):
    app = parley.asgi(named(security=token), **options)
    assert ("would send them unencrypted" in warned(caplog, app, host=host)) == is_warned


def test_an_agent_without_credentials_is_warned_of_nothing(caplog):
    assert warned(caplog, parley.asgi(named())) == ""


def encrypted(tmp_path, callers, client_ca=True) -> ReloadingTls:
    cert, key = AUTHORITY.server().write(tmp_path, "server")
    authorities = AUTHORITY.write(tmp_path) if client_ca else None
    return ReloadingTls(TlsOptions(cert=cert, key=key, client_ca=authorities), callers)


def test_a_server_that_asks_for_no_certificates_is_warned_of(caplog, tmp_path):
    app = parley.asgi(named(security=certificate))
    assert "asks for none: name their authorities" in warned(caplog, app, host="127.0.0.1")
    caplog.clear()
    assert warned(caplog, app, tls=encrypted(tmp_path, "required")) == ""
    tls = encrypted(tmp_path, "required", client_ca=False)
    assert "asks for none" in warned(caplog, app, tls=tls)
    caplog.clear()
    app = parley.asgi(named(security=forwarded))
    assert warned(caplog, app, host="127.0.0.1") == ""


def test_certificates_that_are_optional_over_grpc_are_warned_of(caplog, tmp_path):
    app = parley.asgi(named(security=certificate | token))
    tls = encrypted(tmp_path, "optional")
    text = warned(caplog, app, tls=tls, grpc=GrpcOptions(port=0))
    assert "over gRPC a certificate cannot be optional" in text


# -- restricted endpoints (``Settings.restrict``) --------------------------------------------------


HERE, ELSEWHERE = ["127.0.0.0/8", "::1"], ["192.0.2.0/24"]
CARD = "/.well-known/agent-card.json"
PATHS = {
    "card": [CARD, "/.well-known/agent.json", f"{CARD}?tenant=acme", f"/acme{CARD}"],
    "docs": ["/openapi.json"],
    "page": ["/docs"],
    "health": ["/health/live", "/health/ready"],
}
TOKEN = {"authorization": "Bearer good"}
BROWSER = {"accept": "text/html,*/*;q=0.8"}

restrict_token = Bearer({"good": Caller(id="ada")}.get)
agent = Agent("Bank", security=restrict_token | anonymous)


@agent.skill
async def balance(text: str) -> str:
    return "42"


def restrict_app_of(restrict, **options):
    settings = Settings(restrict=restrict, **options.pop("settings", {}))
    agents = options.pop("agents", agent)
    return parley.asgi(agents, tenants={"acme": agent}, settings=settings, **options)


async def get(url, path, headers=None, method="GET"):
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, url + path, headers=BROWSER | (headers or {})) as answer,
    ):
        return answer.status, dict(answer.headers), await answer.text()


@pytest.mark.parametrize("name", PATHS)
async def test_an_endpoint_is_for_callers_with_credentials(name):
    async with serving(restrict_app_of({name: "authenticated"})) as url:
        for path in PATHS[name]:
            status, headers, text = await get(url, path)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert headers["Cache-Control"] == "no-store"
            assert "Bank" not in text
            status, headers, _ = await get(url, path, {"authorization": "Bearer bad"})
            assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer error="invalid_token"')
            status, headers, _ = await get(url, path, TOKEN)
            assert status == 200
            assert "public" not in headers["Cache-Control"]
            assert (await get(url, path, method="HEAD"))[0] == 401
        for other in set(PATHS) - {name}:
            for path in PATHS[other]:
                assert (await get(url, path))[0] == 200


@pytest.mark.parametrize("name", PATHS)
async def test_an_endpoint_is_for_some_addresses_and_elsewhere_nothing_is_there(name):
    async with serving(restrict_app_of({name: HERE})) as url:
        for path in PATHS[name]:
            status, headers, _ = await get(url, path)
            assert status == 200
            assert "public" not in headers["Cache-Control"]
    async with serving(restrict_app_of({name: ELSEWHERE})) as url:
        for path in PATHS[name]:
            for method in ("GET", "HEAD", "POST", "DELETE"):
                refused = await get(url, path, TOKEN, method)
                nothing = await get(url, f"/acme/no{path}", TOKEN, method)
                assert refused[0] == nothing[0] == 404
                assert "WWW-Authenticate" not in refused[1]
            text = (await get(url, path))[2]
            assert text.startswith('{"error":"nothing is at /')


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_agents_are_for_callers_with_credentials(binding):
    app = restrict_app_of({"agents": "authenticated"})
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        over_grpc = f"http://{app.grpc.beside(url)}"
        options = {"binding": binding, "retries": 0, "trust_origins": [over_grpc]}
        async with parley.connect(url, **options) as remote:
            with pytest.raises(UnauthenticatedError):
                await remote.send("what have I got?")
        async with parley.connect(url, bearer="good", **options) as remote:
            assert (await remote.send("what have I got?")).text == "42"


# -- addresses behind a proxy ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forwarded", "trust_proxy", "status"),
    [
        ("10.1.2.3", True, 200),
        ("[fd00::1]:4711", True, 200),
        ("10.1.2.3:4711", True, 200),
        ("203.0.113.9", True, 404),
        ("10.1.2.3, 203.0.113.9", True, 404),
        ("203.0.113.9, 10.1.2.3", True, 200),
        ("unknown", True, 404),
        ("", True, 404),
        (None, True, 404),
        ("10.1.2.3", False, 404),
        ("127.0.0.1", False, 404),
    ],
)
async def test_the_address_is_the_one_that_a_trusted_proxy_adds(forwarded, trust_proxy, status):
    app = restrict_app_of(
        {"health": ["10.0.0.0/8", "fd00::/8"]}, settings={"trust_proxy": trust_proxy}
    )
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    async with serving(app) as url:
        assert (await get(url, "/health/live", headers))[0] == status


async def test_each_header_that_a_proxy_adds_counts():
    app = restrict_app_of({"health": ["10.0.0.0/8"]}, settings={"trust_proxy": True})
    async with serving(app) as url, aiohttp.ClientSession() as http:
        headers = [("X-Forwarded-For", "10.1.2.3"), ("X-Forwarded-For", "203.0.113.9")]
        answer = await http.get(f"{url}/health/live", headers=headers)
        assert answer.status == 404


# -- gRPC --------------------------------------------------------------------------------------


async def grpc_status(target: str, method: str, metadata=(), data=b"") -> str:
    async with grpc.aio.insecure_channel(target) as channel:
        try:
            async with asyncio.timeout(30):
                # If a rejected stream still wrote a message, the status here would be "INTERNAL".
                call = channel.unary_stream(method)(data, metadata=metadata)
                async for _ in call:
                    return "OK"
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "nothing"


SERVICES = {
    "health": ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"],
    "docs": [f"/{service}/ServerReflectionInfo" for service in REFLECTION_SERVICES],
}


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize(
    ("restrict", "metadata", "status"),
    [
        ("authenticated", (), "UNAUTHENTICATED"),
        ("authenticated", (("authorization", "Bearer bad"),), "UNAUTHENTICATED"),
        ("authenticated", (("authorization", "Bearer good"),), "OK"),
        (HERE, (), "OK"),
        (ELSEWHERE, (("authorization", "Bearer good"),), "UNIMPLEMENTED"),
    ],
)
async def test_services_of_grpc_are_restricted_too(name, restrict, metadata, status):
    app = restrict_app_of({name: restrict})
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        target = app.grpc.beside(url)
        for method in SERVICES[name]:
            data = health_pb2.HealthCheckRequest().SerializeToString()
            assert await grpc_status(target, method, metadata, data) == status


# -- settings ----------------------------------------------------------------------------------


def test_credentials_need_something_that_verifies_them():
    open_agent = Agent("Open")
    open_agent.skill(balance)
    settings = Settings(restrict={"card": "authenticated"})
    with pytest.raises(ValueError, match="needs something to verify"):
        parley.asgi(open_agent, settings=settings)
    settings = Settings(restrict={"agents": "authenticated"})
    with pytest.raises(ValueError, match="needs something to verify"):
        parley.asgi(open_agent, settings=settings)
