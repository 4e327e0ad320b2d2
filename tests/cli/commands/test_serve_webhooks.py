"""``parley serve``: what it asks of webhooks."""

import json
import os
import queue
import re
import signal
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.kit.processes import Running

AGENT = """
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
    (tmp_path / "echo.py").write_text(AGENT)
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
