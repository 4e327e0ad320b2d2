"""``parley serve``: gRPC, signed messages, services, tenants, webhooks."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import secrets
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest

from parley.envelope.codec import write_message
from parley.envelope.signatures import EnvelopeKey, sign_message
from parley.model.operations import BY_NAME, SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.security.signing.keys import encode
from parley.wire import versions
from tests.cli.commands.test_serve import AGENT as TENANTS_AGENT
from tests.kit.processes import Running, free_port
from tests.kit.services.postgres import PostgresServer
from tests.server.envelope.guarded import message

posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

OLD = ("url", "preferredTransport", "additionalInterfaces", "protocolVersion")
"""What a card says of its interfaces for 0.3."""

AGENT = '''
import asyncio
from parley import Agent, Turn

agent = Agent("Echo agent", description="Says it again", version="1.0.0")


@agent.skill
async def echo(turn: Turn) -> str:
    """Says it again, or never."""
    if turn.text == "never":
        print("never", flush=True)
        await asyncio.Event().wait()
    return "ONCE " + turn.text
'''


@pytest.fixture
def serving(tmp_path):
    (tmp_path / "echo.py").write_text(AGENT)
    words = ["serve", "echo.py", "--port", "0", "--grpc-port", "0", "--store", "memory:"]
    return Running(words, tmp_path)


@posix
def test_an_agent_is_served_over_grpc_too(serving, parley):
    with serving as server:
        said = server.until("Ctrl-C stops the server")
        url = re.search(r"address +(http://\S+)", said)[1]
        assert re.search(r"gRPC is at 127\.0\.0\.1:\d+", said)
        ran = parley("send", "-a", url, "--transport", "GRPC", "hello")
        assert ran.field("Text") == "ONCE hello"
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.stderr


@posix
def test_grpc_is_left_off_the_card_and_served_all_the_same(tmp_path, parley):
    (tmp_path / "echo.py").write_text(AGENT)
    words = ["serve", "echo.py", "--port", "0", "--grpc-port", "0", "--store", "memory:"]
    with Running([*words, "--no-grpc-on-card"], tmp_path) as server:
        said = server.until("Ctrl-C stops the server")
        url = re.search(r"address +(http://\S+)", said)[1]
        there = re.search(r"gRPC is at (127\.0\.0\.1:\d+)", said)[1]
        with urlopen(f"{url}/.well-known/agent-card.json", timeout=10) as answer:
            card = json.load(answer)
        bindings = [each["protocolBinding"] for each in card["supportedInterfaces"]]
        assert {*bindings} == {"HTTP+JSON", "JSONRPC", "urn:parley:envelope:v1"}
        interface = {"url": there, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
        card |= {"supportedInterfaces": [interface]}
        kept = {name: card[name] for name in card if name not in OLD}
        (tmp_path / "card.json").write_text(json.dumps(kept))
        ran = parley("send", "-a", str(tmp_path / "card.json"), "hello")
        assert ran.field("Text") == "ONCE hello"


def test_grpc_that_is_not_served_cannot_be_left_off_the_card(tmp_path, parley):
    (tmp_path / "echo.py").write_text(AGENT)
    ran = parley("serve", str(tmp_path / "echo.py"), "--no-grpc-on-card")
    assert ran.status == 2
    assert "--grpc-port" in ran.stderr


@posix
def test_a_second_signal_does_not_wait_for_calls(serving):
    async def call(target):
        codec = versions.dialect("1.0").grpc()
        message = Message(message_id="m", role=Role.USER, parts=(Part(text="never"),))
        data = codec.write_request(BY_NAME["SendMessage"], SendMessageRequest(message=message))
        async with grpc.aio.insecure_channel(target) as channel:
            rpc = channel.unary_unary(f"/{codec.service}/SendMessage")
            waiting = asyncio.ensure_future(rpc(data, metadata=(("a2a-version", "1.0"),)))
            await asyncio.to_thread(server.until, "never")
            health = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"").__aiter__()
            assert await anext(health) == b"\x08\x01"
            server.process.send_signal(signal.SIGTERM)
            assert await anext(health) == b"\x08\x02"  # NOT_SERVING
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError):
                await asyncio.wait_for(waiting, 9)  # ten seconds are what the first signal gives

    with serving as server:
        said = server.until("Ctrl-C stops the server")
        asyncio.run(call(re.search(r"gRPC is at (\S+)", said)[1]))


def test_options_for_grpc_without_its_port_are_refused(parley, tmp_path):
    (tmp_path / "echo.py").write_text(AGENT)
    ran = parley("serve", str(tmp_path / "echo.py"), "--grpc-cert", "cert.pem")
    assert ran.status == 2
    assert "gRPC needs a port" in ran.stderr


# -- ``parley serve --envelope-keys``: signed messages, also after the server was killed -----------


ENVELOPE_AGENT = """
from parley import Agent, CardDetails, EnvelopeSettings

agent = Agent("Clock", card=CardDetails(envelope=EnvelopeSettings(signed=True)))


@agent.skill
def now() -> str:
    return "12:00"
"""


def test_a_killed_server_forgets_no_message_that_it_admitted(tmp_path):
    key = EnvelopeKey(
        id="k1", owner="shop", algorithm="HMAC-SHA256", material=secrets.token_bytes(32)
    )
    (tmp_path / "clock.py").write_text(ENVELOPE_AGENT)
    path = tmp_path / "keys.json"
    jwk = {"owner": "shop", "kid": "k1", "kty": "oct", "k": encode(key.material)}
    path.write_text(json.dumps({"keys": [jwk]}))
    path.chmod(0o600)
    sent = write_message(sign_message(message("shop", target=""), key))
    words = ["serve", "clock.py", "--port", "0", "--store", "sqlite:///tasks.db"]
    words += ["--envelope-keys", "keys.json"]
    codes = []
    with Running(words, tmp_path) as server:
        url = re.search(r"address +(http://\S+)", server.until("Ctrl-C stops the server"))[1]
        codes.append(_answer(url, sent))  # it names no target
        sent = write_message(sign_message(message("shop", target="clock"), key))
        codes.append(_answer(url, sent))
        server.process.kill()
    with Running(words, tmp_path) as server:
        url = re.search(r"address +(http://\S+)", server.until("Ctrl-C stops the server"))[1]
        codes.append(_answer(url, sent))
    assert codes == ["TARGET_NOT_FOUND", "success", "MESSAGE_REPLAYED"]


def _answer(url: str, body: bytes) -> str:
    """Return the code of an error, or the status."""
    request = urllib.request.Request(f"{url}/envelope", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            payload = json.load(answer)["payload"]
    except urllib.error.HTTPError as error:
        payload = json.load(error)["payload"]
    return payload["error"]["code"] if "error" in payload else payload["status"]


# -- what ``parley serve`` says about the services that it uses, and never says --------------------


POSTGRES_AGENT = '''
from parley import Agent, Turn

agent = Agent("Mover")


@agent.skill
async def work(turn: Turn) -> str:
    """Works."""
    return "worked"
'''
LINE = re.compile(r"\d\d:\d\d:\d\d (DEBUG|INFO|WARNING) +[\w.]+: \S.*")


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Running]:
    """Starts the command."""
    (tmp_path / "mover.py").write_text(POSTGRES_AGENT)
    return lambda *options: Running(["serve", "mover.py", "--port", "0", *options], tmp_path)


def check(said: str) -> None:
    """See that a log is for people, and keeps secrets."""
    assert "hunter2" not in said
    assert "Traceback" not in said
    assert "<Address" not in said
    for line in said.splitlines():
        assert LINE.fullmatch(line), line


@pytest.mark.service
@pytest.mark.parametrize(
    "options",
    [(), ("--bus", "none"), ("--role", "api"), ("--role", "worker"), ("--log-level", "debug")],
    ids=" ".join,
)
def test_its_log_is_for_people(
    serve: Callable[..., Running], postgres_url: str, options: tuple[str, ...]
) -> None:
    url = postgres_url.replace("parley@", "parley:hunter2@")
    with serve("--store", url, *options) as server:
        said = server.until("Ctrl-C stops the server")
        assert "hunter2" not in said
        assert server.end(signal.SIGTERM) == 0
    assert ": new, with schema version" in server.stderr
    check(server.stderr)


@pytest.mark.service
@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_a_bus_that_is_away_is_told_in_a_line_and_holds_up_nothing(
    serve: Callable[..., Running], postgres_url: str, scheme: str
) -> None:
    bus = f"{scheme}://parley:hunter2@127.0.0.1:{free_port()}/0"
    with serve("--store", postgres_url, "--bus", bus) as server:
        server.until("Ctrl-C stops the server")
        server.until("does not work, wake-up notifications are late until it does")
        assert server.end(signal.SIGTERM) == 0
    check(server.stderr)


@pytest.mark.service
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("127.0.0.1:{port}/none", "there is no such database; create it"),
        ("127.0.0.1:{free}/postgres", "the database cannot be reached"),
        ("nowhere.invalid/postgres", "the database cannot be reached"),
    ],
)
def test_a_store_that_cannot_be_had_is_told_in_a_line(
    serve: Callable[..., Running], postgres: PostgresServer, place: str, words: str
) -> None:
    place = place.format(port=postgres.port, free=free_port())
    with serve("--store", f"postgresql://parley:hunter2@{place}") as server:
        assert server.end() == 1
    assert server.stdout == ""
    [line] = server.stderr.splitlines()
    assert line.startswith("error: the store cannot be used: postgresql://")
    assert words in line
    assert "hunter2" not in line


# -- ``parley serve --tenant``: agents behind one address ------------------------------------------


@pytest.fixture
def files(tmp_path):
    (tmp_path / "echo.py").write_text(TENANTS_AGENT)
    other = TENANTS_AGENT.replace("Echo agent", "Other agent").replace("ONCE", "TWICE")
    (tmp_path / "other.py").write_text(other)
    return tmp_path


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_tenants_are_served_at_one_address(files, parley):
    tenants = ["--tenant", "acme=echo.py", "--tenant", "globex=echo:agent", "--tenant=o=other.py"]
    with Running(["serve", *tenants, "--port", "0", "--store", "memory:"], files) as server:
        said = server.until("Ctrl-C stops the server")
        base = re.search(r"address +(http://\S+)/acme", said)[1]
        assert "Echo agent for acme" in said
        assert f"card     {base}/globex/.well-known/agent-card.json" in said
        for tenant, reply in (("acme", "ONCE hi"), ("globex", "ONCE hi"), ("o", "TWICE hi")):
            assert parley("send", "-a", f"{base}/{tenant}", "hi").field("Text") == reply
            assert parley("send", "-a", f"{base}/a2a/{tenant}", "hi").field("Text") == reply
        parley("send", "-a", f"{base}/acme", "hi", "--async")
        counts = [
            len(parley("task", "list", "-a", f"{base}/{name}", "-o", "json").document["tasks"])
            for name in ("acme", "globex", "o")
        ]
        assert counts == [1, 0, 0]
        assert server.end(signal.SIGINT) == 0


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_an_agent_and_tenants_beside_it(files, parley):
    targets = ["echo.py", "--tenant", "o=other.py", "--port", "0", "--store", "memory:"]
    with Running(["serve", *targets], files) as server:
        base = re.search(r"address +(http://\S+)", server.until("Ctrl-C stops the server"))[1]
        assert parley("send", "-a", base, "hi").field("Text") == "ONCE hi"
        assert parley("send", "-a", f"{base}/o", "hi").field("Text") == "TWICE hi"
        assert server.end(signal.SIGINT) == 0


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "there is nothing to serve"),
        (("--tenant", "echo.py"), "not the name of a tenant and its agent"),
        (("--tenant", "=echo.py"), "not the name of a tenant and its agent"),
        (("--tenant", "acme="), "not the name of a tenant and its agent"),
        (("--tenant", "a=echo.py", "--tenant", "a=other.py"), "'a' is given twice"),
        (("--tenant", "tasks=echo.py"), "a tenant cannot be named 'tasks'"),
        (("--tenant", "a/b=echo.py"), "a tenant's name is letters"),
        (("/a=echo.py", "--tenant", "a=echo.py"), "/a is the path of an agent and of a tenant"),
        (("--tenant", "a=gone.py"), "there is no file gone.py"),
    ],
)
def test_wrong_tenants_are_said_in_a_line(files, parley, flags, words):
    ran = parley("serve", "--store", "memory:", "--port", "0", *flags)
    assert (ran.status, ran.stdout) == (2, "")
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


# -- ``parley serve``: what it asks of webhooks ----------------------------------------------------


WEBHOOKS_AGENT = """
from parley import Agent

agent = Agent("Echo")


@agent.skill(replies="task")
async def echo(text: str) -> str:
    return text
"""


@pytest.fixture
def hook():
    """A webhook that notes whether what comes is a challenge."""
    arrived = queue.Queue()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self):
            arrived.put(self.headers.get("A2A-Webhook-Challenge"))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", arrived
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize(
    ("flags", "environment", "first"),
    [
        ((), {}, None),
        ((), {"PARLEY_WEBHOOK_CHALLENGE": "1"}, "v1"),
        (("--reload", "--webhook-challenge"), {}, "v1"),
    ],
)
def test_a_webhook_is_challenged_where_the_operator_asks_for_it(
    tmp_path, hook, flags, environment, first
):
    if "--reload" in flags:
        pytest.importorskip("watchfiles")
    (tmp_path / "echo.py").write_text(WEBHOOKS_AGENT)
    url, arrived = hook
    words = ["serve", "echo.py", "--port", "0", "--store", "memory:", "--allow-private-webhooks"]
    with Running([*words, *flags], tmp_path, **environment) as server:
        said = server.until("Ctrl-C stops the server")
        address = re.search(r"address +(\S+)", said)[1]
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        configuration = {"taskPushNotificationConfig": {"url": url}}
        request = urllib.request.Request(
            f"{address.rstrip('/')}/message:send",
            json.dumps({"message": message, "configuration": configuration}).encode(),
            {"Content-Type": "application/json", "A2A-Version": "1.0"},
        )
        urllib.request.urlopen(request, timeout=15).close()
        assert arrived.get(timeout=15) == first
        assert server.end(signal.SIGTERM) == 0
