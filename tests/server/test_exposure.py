"""Who reaches a server: refused or warned of at the start."""

from __future__ import annotations

import logging

import pytest

import parley
from parley import Agent, CardDetails, EnvelopeSettings, Rights
from parley.envelope.binding import EnvelopeBinding
from parley.model.service import Caller
from parley.security import Bearer, MutualTls, anonymous
from parley.server.app import Settings
from parley.server.run import AnonymousRefused, run, warn_of_plain_text
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


def test_grpc_that_everyone_reaches_is_refused_too():
    with pytest.raises(AnonymousRefused, match=r"reach 0\.0\.0\.0"):
        run(app_of(), port=0, grpc=GrpcOptions(port=0, host="0.0.0.0"))


def test_serve_names_the_flag():
    with pytest.raises(SystemExit, match="allow_anonymous=True"):
        parley.serve(named(), host="0.0.0.0", port=0, store="memory:")


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


@pytest.mark.parametrize(
    ("url", "security", "is_warned"),
    [
        ("http://bank.example", token, True),
        ("http://192.0.2.7:9999", token, True),
        ("https://bank.example", token, False),
        ("http://localhost:9999", token, False),
        ("http://[::1]:9999", token, False),
        ("http://bank.example", None, False),
    ],
)
async def test_a_card_with_security_and_a_plain_public_url_is_warned_of(
    caplog, url, security, is_warned
):
    app = parley.asgi(named(security=security), url=url)
    with caplog.at_level(logging.WARNING, "parley.host"):
        async with app.lifespan():
            pass
    assert ("requires credentials and names http" in caplog.text) == is_warned
