"""Allowed hosts of requests: a foreign page cannot call a server on this machine."""

import pytest

from parley.server.address import AllowedHosts, HostNotAllowed
from parley.server.app import Endpoint, Settings, create_app
from parley.server.run import serving
from tests.kit.http import ask, call, connection, post
from tests.kit.scripted import Scripted, app_of, card_of

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"


async def status_of(url, host, path=CARD, **headers):
    return (await ask(url, "GET", path, b"", {"Host": host, **headers})).status


@pytest.fixture(scope="module")
async def local():
    """A server on a loopback address, with authentication and CORS."""
    service = Scripted()
    tenants = {"acme": Endpoint(Scripted(), card_of("Acme"))}
    endpoint = Endpoint(service, card_of(), tenants=tenants)
    settings = Settings(cors_origins=("*",))
    async with serving(create_app({"": endpoint}, settings=settings)) as url:
        yield service, url


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:1",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:65535",
        "127.8.9.10",
        "[::1]:8080",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
    ],
)
async def test_a_server_on_loopback_answers_to_its_own_names_at_any_port(local, host):
    assert await status_of(local[1], host) == 200
    assert "result" in (await post(local[1], call(), {"Host": host})).json


async def test_a_request_without_a_host_is_answered(local):
    async with connection(local[1]) as http:
        await http.write(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert (await http.response()).status == 200


ALLOWED = ("a.example", "*.b.example", "c.example:8443", "d.example:443", "[2001:DB8::1]:80")


async def test_hosts_that_are_allowed_are_answered_to_and_no_others():
    async with serving(app_of(settings=Settings(allowed_hosts=ALLOWED))) as url:
        for host in (
            "a.example",
            "A.Example.",
            "a.example:7",
            "x.b.example",
            "x.y.b.example:7",
            "c.example:8443",
            "d.example:443",
            "d.example",
            "[2001:db8::1]",
            "[2001:db8:0::1]:80",
            "127.0.0.1",
        ):
            assert await status_of(url, host) == 200, host
        for host in (
            "x.a.example",
            "b.example",
            "xb.example",
            "c.example",
            "c.example:443",
            "d.example:8443",
            "[2001:db8::1]:81",
            "a.example.evil.example",
        ):
            assert await status_of(url, host) == 421, host


# Other addresses than loopback


def asked(hosts, host, server=("127.0.0.1", 9999), **headers):
    """Whether a server accepts a request over a connection to a local address."""
    given = {"host": host, **headers}
    scope = {"headers": [(k.lower().encode(), v.encode()) for k, v in given.items()]}
    try:
        hosts.check(scope if server is ... else {**scope, "server": server})
    except HostNotAllowed:
        return False
    return True


def test_a_server_that_runs_the_app_tells_by_each_connection_where_it_listens():
    for address in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost"):
        assert not asked(AllowedHosts(), "evil.example", (address, 80)), address
        assert asked(AllowedHosts(), "localhost", [address, 80]), address
    for server in (("10.0.0.7", 80), ("testserver", 80), ("/run/a.sock", None), None, ...):
        assert asked(AllowedHosts(), "evil.example", server), server
        assert not asked(AllowedHosts(ALLOWED), "evil.example", server), server


@pytest.mark.slow
def test_decisions_are_kept_for_a_bounded_number_of_hosts():
    hosts = AllowedHosts(("*.a.example",))
    for number in range(5000):
        assert asked(hosts, f"h{number}.a.example")
        assert not asked(hosts, f"h{number}.b.example")
    assert 0 < len(hosts._admitted) <= 1024
    assert not asked(hosts, "h1.b.example")


# Proxies


# Apps in other apps


async def test_with_hosts_that_are_allowed_a_trusted_proxy_passes_on_those_alone():
    settings = Settings(trust_proxy=True, allowed_hosts=("public.example",))
    async with serving(app_of(settings=settings)) as url:
        for host, forwarded, status in (
            ("127.0.0.1:9999", "public.example", 200),
            ("127.0.0.1:9999", "public.example, inner", 200),
            ("public.example", "public.example:443", 200),
            ("127.0.0.1:9999", "evil.example", 421),
            ("evil.example", "public.example", 421),
            ("127.0.0.1:9999", "a b", 400),
        ):
            headers = {"X-Forwarded-Host": forwarded}
            assert await status_of(url, host, **headers) == status, (host, forwarded)
