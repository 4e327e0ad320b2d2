"""``parley top``: what servers do now, and why one cannot be read."""

import os
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from parley.cli.top import figures, read
from parley.client import connect_sync
from parley.observe import metrics
from tests.kit.processes import Running, free_port
from tests.kit.terminal import At

AGENT = """
from parley import Agent
agent = Agent("Desk")

@agent.skill
async def say(text: str) -> str:
    return text

@agent.skill
async def fail(text: str) -> str:
    raise RuntimeError(text)
"""


@pytest.fixture
def serve(tmp_path):
    """Return a function that starts a server, and returns its address."""
    (tmp_path / "desk.py").write_text(AGENT)
    started = []

    def start(*options):
        port = str(free_port())
        words = ["serve", "desk.py", "--port", port, "--store", "memory:", *options]
        started.append(Running(words, tmp_path))
        started[-1].until("Ctrl-C stops")
        return f"http://127.0.0.1:{port}"

    yield start
    for each in started:
        each.__exit__()


def test_figures_are_of_the_time_between_two_readings(monkeypatch):
    registry = CollectorRegistry()
    counts = metrics.Metrics(registry)
    counts.of("readers").set(3)
    counts.of("running", "desk").set(2)
    counts.of("webhooks", "failing").set(1)
    names = ("jsonrpc", "SendMessage", "desk")
    counts.of("requests", *names, "").observe(60)
    before = read(10, generate_latest(registry).decode())
    for _ in range(8):
        counts.of("requests", *names, "").observe(0.02)
    counts.of("requests", *names, "InternalError").observe(0.7)
    counts.of("requests", "jsonrpc", "SendStreamingMessage", "desk", "").observe(50)
    counts.of("turns", "desk", "say", "failed").observe(1)
    now = read(12, generate_latest(registry).decode())
    found = figures("here", before, now)
    (desk,) = found.agents
    assert (found.streams, found.failing_webhooks, desk.running) == (3, 1, 2)
    assert (desk.requests, desk.errors, desk.failed_turns) == (5, 0.5, 0.5)
    assert 0.01 < desk.p50 <= 0.025
    assert 0.5 < desk.p95 <= 1
    again = figures("here", now, before)  # fewer than before: a new process has counted them
    assert again.agents[0].requests == 1 / 0.001
    assert figures("here", now, now).agents[0].p50 is None


@pytest.mark.slow
def test_a_reading_of_a_server_and_the_reason_for_which_another_has_none(parley, serve):
    url, silent = serve("--metrics"), serve()
    closed = serve("--metrics", "--restrict", "metrics=10.0.0.0/8")
    is_over = threading.Event()

    def traffic():
        with connect_sync(url) as agent:
            while not is_over.is_set():
                agent.send("hello", skill="say")
                agent.send("hello", skill="fail")

    sender = threading.Thread(target=traffic)
    sender.start()
    ran = parley("top", url, "--once", "--interval", "500ms", "-o", "json")
    is_over.set()
    sender.join()
    (server,) = ran.document["servers"]
    (desk,) = server["agents"]
    assert desk["agent"] == "desk"
    assert desk["requests"] > desk["failedTurns"] > 0
    assert server["memory"] > 1_000_000
    ran = parley("top", url, silent, "--interval", "10ms")
    assert ran.status == 1
    assert "agent  req/s" in ran.stdout
    assert f"{silent}: error: {silent} has no /metrics" in ran.stdout
    for hidden in (silent, closed):
        ran = parley("top", hidden)
        assert (ran.status, ran.stdout) == (3, "")
        assert "serve it with --metrics" in ran.stderr
        assert "--restrict metrics=... leaves this machine out" in ran.stderr


def test_what_is_wrong_with_the_command_is_said(parley, monkeypatch):
    ran = parley("top", "ftp://x")
    assert (ran.status, "give an address of the form" in ran.stderr) == (2, True)
    ran = parley("top", "http://10.0.0.1", "--bearer", "secret-token")
    assert (ran.status, "no credentials are sent" in ran.stderr) == (2, True)
    assert "secret-token" not in ran.stderr
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    ran = parley("top", "http://127.0.0.1:1")
    assert (ran.status, "parley-a2a[metrics]" in ran.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="terminals as POSIX has them")
def test_the_view_in_a_terminal_changes_until_ctrl_c(serve, tmp_path):
    url = serve("--metrics")
    with At(["top", url, "--interval", "50ms"], tmp_path) as view:
        assert url in view.until("Ctrl-C ends")
        with connect_sync(url) as agent:
            agent.send("hello", skill="fail")
        while "\x1b[31mdesk" not in view.raw.decode():
            view.until("Ctrl-C ends")
        view.press("c")
        assert view.end() == 0
