"""Which hosts a request may name: a page elsewhere cannot call a server on this machine."""

import json
import socket

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from parley.model.errors import TaskNotFoundError
from parley.server.address import AllowedHosts, HostNotAllowed
from parley.server.app import Endpoint, Settings, create_app
from parley.server.run import serving
from tests.kit.http import JSON, MESSAGE, ask, call, connection, post
from tests.kit.scripted import Scripted, app_of, card_of

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"
EVIL = {"Host": "evil.example"}
REST = {**JSON, "Content-Type": "application/a2a+json"}
SEND = json.dumps({"message": MESSAGE}).encode()

PATHS = [
    ("GET", "/.well-known/agent-card.json"),
    ("GET", "/.well-known/agent.json"),
    ("GET", "/acme/.well-known/agent-card.json"),
    ("GET", "/a2a/acme/.well-known/agent-card.json"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/"),
    ("POST", "/"),
    ("POST", "/acme"),
    ("POST", "/message:send"),
    ("POST", "/message:stream"),
    ("GET", "/tasks"),
    ("GET", "/tasks/t-1"),
    ("POST", "/tasks/t-1:cancel"),
    ("DELETE", "/tasks/t-1/pushNotificationConfigs/p-1"),
    ("GET", "/extendedAgentCard"),
    ("POST", "/v1/message:send"),
    ("GET", "/nowhere/at/all"),
    ("GET", "/a2a/nobody"),
    ("OPTIONS", "/"),
    ("HEAD", "/.well-known/agent-card.json"),
]


def body_for(path):
    return SEND if "message:" in path else call()


async def status_of(url, host, path=CARD, **headers):
    return (await ask(url, "GET", path, b"", {"Host": host, **headers})).status


@pytest.fixture(scope="module")
async def local():
    """A server on a loopback address, which asks who calls, and pages of others may call."""
    service = Scripted()
    tenants = {"acme": Endpoint(Scripted(), card_of("Acme"))}
    endpoint = Endpoint(service, card_of(), tenants=tenants)
    settings = Settings(cors_origins=("*",))
    async with serving(create_app({"": endpoint}, settings=settings)) as url:
        yield service, url


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_a_request_for_a_host_elsewhere_is_refused_at_every_path(local, method, path):
    service, url = local
    service.forget()
    for host in ("evil.example", "evil.example:9999", "127.0.0.1.evil.example", "localhost.evil"):
        headers = {**REST, "Host": host}
        body = body_for(path) if method == "POST" else b""
        response = await ask(url, method, path, body, headers)
        assert response.status == 421
        assert response.headers["cache-control"] == "no-store"
        if method != "HEAD":
            assert b"allowed_hosts" in response.body
            assert host.encode() in response.body
    assert service.asked == []


async def test_a_refusal_has_the_form_that_its_client_reads(local):
    _, url = local
    rpc = await post(url, call(), EVIL)
    assert (rpc.status, rpc.json["id"], rpc.error["code"]) == (421, None, -32600)
    assert "allowed_hosts" in rpc.error["message"]
    older = await ask(url, "POST", "/", call("message/send"), {**JSON, **EVIL, "A2A-Version": ""})
    assert (older.status, older.error["code"]) == (421, -32600)
    rest = await ask(url, "POST", "/message:send", SEND, {**REST, **EVIL})
    assert rest.headers["content-type"] == "application/a2a+json"
    assert rest.error["code"] == rest.status == 421
    assert "allowed_hosts" in rest.error["message"]
    card = await ask(url, "GET", CARD, b"", EVIL)
    assert "allowed_hosts" in card.json["error"]


async def test_a_refused_request_may_not_be_asked_for_by_pages_elsewhere(local):
    _, url = local
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    response = await ask(url, "OPTIONS", "/", b"", {**EVIL, **preflight})
    assert response.status == 421
    assert "access-control-allow-origin" not in response.headers
    assert (await ask(url, "OPTIONS", "/", b"", preflight)).status == 200


async def test_the_body_of_a_refused_request_is_not_waited_for(local):
    async with connection(local[1]) as http:
        await http.request("POST", "/", b"", {**JSON, **EVIL}, length=1_000_000)
        assert (await http.response()).status == 421


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


@pytest.mark.parametrize(
    "host",
    [
        socket.gethostname(),
        "127.0.0.1.nip.io",
        "0.0.0.0",
        "192.168.1.1",
        "[::]",
        "[fe80::1]",
        "sub.localhost",
        "127.0.0.01",
        "2130706433",
    ],
)
async def test_a_server_on_loopback_answers_to_no_other_name(local, host):
    assert await status_of(local[1], host) == 421


async def test_a_request_without_a_host_is_answered(local):
    async with connection(local[1]) as http:
        await http.write(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert (await http.response()).status == 200


@pytest.mark.parametrize("hosts", [("localhost", "evil.example"), ("evil.example", "localhost")])
async def test_every_host_of_a_request_counts(local, hosts):
    async with connection(local[1]) as http:
        lines = "".join(f"Host: {host}\r\n" for host in hosts)
        await http.write(f"GET {CARD} HTTP/1.1\r\n{lines}\r\n".encode())
        assert (await http.response()).status == 400  # one Host, or none is meant
    # Another server may pass both on.
    scope = {"headers": [(b"host", host.encode()) for host in hosts], "server": ("127.0.0.1", 80)}
    with pytest.raises(HostNotAllowed):
        AllowedHosts().check(scope)


async def test_the_host_of_the_public_address_is_answered_to():
    async with serving(app_of(url="https://Agents.example:8443/time")) as url:
        for host in ("agents.example", "agents.example:8443", "AGENTS.example:1", "localhost"):
            assert await status_of(url, host) == 200
        for host in ("evil.example", "x.agents.example", "agents.example.evil.example"):
            assert await status_of(url, host) == 421
    async with serving(app_of(url="http://[2001:DB8:0::1]:9999/")) as url:
        assert await status_of(url, "[2001:db8::1]") == 200


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


async def test_all_hosts_can_be_allowed():
    async with serving(app_of(settings=Settings(allowed_hosts=("*",)))) as url:
        assert "result" in (await post(url, call(), EVIL)).json


# Other addresses than loopback


async def test_a_server_for_everyone_answers_to_every_host_unless_told_which():
    async with serving(app_of(), host="0.0.0.0") as url:
        assert await status_of(url, "agents.internal") == 200
    async with serving(app_of(url="https://agents.example"), host="0.0.0.0") as url:
        assert await status_of(url, "agents.internal") == 200
    settings = Settings(allowed_hosts=("agents.example",))
    async with serving(app_of(settings=settings), host="0.0.0.0") as url:
        assert await status_of(url, "agents.example") == 200
        assert await status_of(url, "agents.internal") == 421
        # Health checks ask at an address of the machine.
        assert await status_of(url, "127.0.0.1:9999", "/health/ready") == 200
        assert await status_of(url, "localhost:9999", "/health/ready") == 200
        assert await status_of(url, "192.0.2.7:9999", "/health/ready") == 421


def asked(hosts, host, server=("127.0.0.1", 9999), **headers):
    """Whether a request over a connection to a local address is answered."""
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


def test_what_was_answered_at_one_address_is_refused_at_another():
    hosts = AllowedHosts()
    assert asked(hosts, "agents.internal", ("10.0.0.7", 80))
    assert not asked(hosts, "agents.internal", ("127.0.0.1", 80))
    hosts = AllowedHosts(("a.example",))
    assert asked(hosts, "10.0.0.7:80", ("10.0.0.7", 80))
    assert asked(hosts, "[fe80::1]:80", ("fe80::1", 80))
    assert not asked(hosts, "10.0.0.7:80", ("10.0.0.8", 80))
    assert not asked(hosts, "localhost", ("10.0.0.7", 80))


def test_the_name_that_a_server_was_bound_to_is_its_own():
    hosts = AllowedHosts()
    assert not asked(hosts, "my-machine:9999")
    hosts.listens("My-Machine", ["127.0.1.1"])
    assert asked(hosts, "my-machine:9999")
    assert not asked(hosts, "evil.example")
    hosts.listens("both.example", ["127.0.0.1", "10.0.0.7"])
    assert asked(hosts, "evil.example")


def test_decisions_are_kept_for_a_bounded_number_of_hosts():
    hosts = AllowedHosts(("*.a.example",))
    for number in range(5000):
        assert asked(hosts, f"h{number}.a.example")
        assert not asked(hosts, f"h{number}.b.example")
    assert 0 < len(hosts._admitted) <= 1024
    assert not asked(hosts, "h1.b.example")


# Proxies


async def test_a_trusted_proxy_is_told_what_to_send():
    async with serving(app_of(settings=Settings(trust_proxy=True))) as url:
        refused = await ask(url, "GET", CARD, headers={"Host": "public.example"})
        assert "X-Forwarded-Host" in refused.json["error"]
    async with serving(app_of()) as url:
        refused = await ask(url, "GET", CARD, headers={"Host": "public.example"})
        assert "trust_proxy" in refused.json["error"]


async def test_a_proxy_that_is_trusted_may_pass_on_any_host():
    async with serving(app_of(settings=Settings(trust_proxy=True))) as url:
        for forwarded in ("X-Forwarded-Host", "X-Forwarded-For", "X-Forwarded-Proto"):
            value = "http" if forwarded.endswith("Proto") else "public.example"
            assert await status_of(url, "public.example", **{forwarded: value}) == 200
        assert await status_of(url, "evil.example") == 421
        assert await status_of(url, "evil.example", Forwarded="host=evil.example") == 421
    async with serving(app_of()) as url:
        headers = {"X-Forwarded-Host": "localhost", "X-Forwarded-For": "127.0.0.1"}
        assert await status_of(url, "evil.example", **headers) == 421


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


# Apps in other apps


async def test_an_app_that_is_mounted_in_another_is_no_less_strict():
    app = app_of(Scripted(get_task=_nothing))
    outer = Starlette(routes=[Mount("/agents", app=app)], lifespan=app.lifespan)
    async with serving(outer) as url:
        assert await status_of(url, "evil.example", f"/agents{CARD}") == 421
        assert (await post(url, call(), EVIL, path="/agents/")).status == 421
        assert await status_of(url, "localhost", f"/agents{CARD}") == 200


async def _nothing(request, context):
    raise TaskNotFoundError


@pytest.mark.parametrize("server", [("testserver", 80), ("test", None), None])
async def test_tests_that_call_an_app_without_a_connection_name_any_host(server):
    sent = []

    async def receive():
        return {"type": "http.request", "body": call(), "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"agents.example"),
            (b"content-type", b"application/json"),
            (b"a2a-version", b"1.0"),
        ],
        "server": server,
    }
    await app_of()(scope, receive, send)
    assert sent[0]["status"] == 200
