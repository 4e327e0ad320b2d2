"""``parley serve``: gRPC, signed messages, services, tenants, webhooks."""

from __future__ import annotations

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

import pytest

from parley.envelope.codec import write_message
from parley.envelope.signatures import EnvelopeKey, sign_message
from parley.security.signing.keys import encode
from tests.cli.commands.test_serve import AGENT as TENANTS_AGENT
from tests.kit.processes import Running, free_port
from tests.kit.services.postgres import PostgresServer
from tests.server.envelope.guarded import message

posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

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


def test_grpc_that_is_not_served_cannot_be_left_off_the_card(tmp_path, parley):
    (tmp_path / "echo.py").write_text(AGENT)
    ran = parley("serve", str(tmp_path / "echo.py"), "--no-grpc-on-card")
    assert ran.status == 2
    assert "--grpc-port" in ran.stderr


# -- ``parley serve --envelope-keys``: signed messages, also after the server was killed -----------


ENVELOPE_AGENT = """
from parley import Agent, CardDetails, EnvelopeSettings

agent = Agent("Clock", card=CardDetails(envelope=EnvelopeSettings(signed=True)))


@agent.skill
def now() -> str:
    return "12:00"
"""


@pytest.mark.slow
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
        codes.append(_answer(url, sent))  # the message names no target
        sent = write_message(sign_message(message("shop", target="clock"), key))
        codes.append(_answer(url, sent))
        server.process.kill()
    with Running(words, tmp_path) as server:
        url = re.search(r"address +(http://\S+)", server.until("Ctrl-C stops the server"))[1]
        codes.append(_answer(url, sent))
    assert codes == ["TARGET_NOT_FOUND", "success", "MESSAGE_REPLAYED"]


def _answer(url: str, body: bytes) -> str:
    """Return the code of an error, or the status of a success."""
    request = urllib.request.Request(f"{url}/envelope", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            payload = json.load(answer)["payload"]
    except urllib.error.HTTPError as error:
        payload = json.load(error)["payload"]
    return payload["error"]["code"] if "error" in payload else payload["status"]


# -- messages of ``parley serve`` about its services, and the secrets that they leave out ----------


LINE = re.compile(r"\d\d:\d\d:\d\d (DEBUG|INFO|WARNING) +[\w.]+: \S.*")


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
    [(), ("--bus", "none"), ("--role", "api"), ("--role", "worker"), ("--debug",)],
    ids=" ".join,
)
def test_its_log_is_for_people(
    serve: Callable[..., Running], postgres_url: str, options: tuple[str, ...]
) -> None:
    url = postgres_url.replace("parley@", "parley:hunter2@")
    with serve("--store", url, "--log-format", "text", *options) as server:
        said = server.until("Ctrl-C stops the server")
        assert "hunter2" not in said
        assert server.end(signal.SIGTERM) == 0
    for maintenance in (": new, with schema version", "are removed when they have ended"):
        assert (maintenance in server.stderr) == ("--debug" in options)
    check(server.stderr)


@pytest.mark.service
@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_a_bus_that_is_away_is_told_in_a_line_and_holds_up_nothing(
    serve: Callable[..., Running], postgres_url: str, scheme: str
) -> None:
    bus = f"{scheme}://parley:hunter2@127.0.0.1:{free_port()}/0"
    with serve("--store", postgres_url, "--bus", bus, "--log-format", "text") as server:
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


POSTGRES_AGENT = '''
from parley import Agent, Turn

agent = Agent("Mover")


@agent.skill
async def work(turn: Turn) -> str:
    """Works."""
    return "worked"
'''


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Running]:
    """Return a function that starts the command."""
    (tmp_path / "mover.py").write_text(POSTGRES_AGENT)
    return lambda *options: Running(["serve", "mover.py", "--port", "0", *options], tmp_path)


# -- ``parley serve --tenant``: agents behind one address ------------------------------------------


@pytest.fixture
def files(tmp_path):
    (tmp_path / "echo.py").write_text(TENANTS_AGENT)
    other = TENANTS_AGENT.replace("Echo agent", "Other agent").replace("ONCE", "TWICE")
    (tmp_path / "other.py").write_text(other)
    return tmp_path


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "there is nothing to serve"),
        (("--tenant", "echo.py"), "is not of the form NAME=TARGET"),
        (("--tenant", "=echo.py"), "is not of the form NAME=TARGET"),
        (("--tenant", "acme="), "is not of the form NAME=TARGET"),
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


# -- ``parley serve``: its requirements for webhooks -----------------------------------------------


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
