"""A move from a SQLite file to PostgreSQL keeps all unfinished work."""

from __future__ import annotations

import json
import re
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from tests.kit.processes import BOUND, Running

pytestmark = pytest.mark.service

AGENT = '''
import asyncio
from pathlib import Path

from parley import Agent, Retention, Turn

agent = Agent("Mover", retention=Retention(history=True))


@agent.skill
async def work(turn: Turn) -> str:
    """Works."""
    if turn.text == "ask":
        answer = await turn.ask("Which one?")
        return f"took {answer.text}"
    while not Path("begin").exists():
        await asyncio.sleep(0.05)
    for n in range(3):
        await turn.step(f"step {n}", lambda: n)
        await turn.artifact(f"piece {n}", name="pieces")
    while not Path("go").exists():
        await asyncio.sleep(0.05)
    return "worked"
'''


class Hooks:
    """A webhook receiver that keeps the delivered events."""

    def __init__(self) -> None:
        told: Queue[dict] = Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                told.put(json.loads(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self.told = told
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    def until(self, words: str) -> list[str]:
        """Return the deliveries up to the first that contains ``words``."""
        found: list[str] = []
        while not found or words not in found[-1]:
            found.append(json.dumps(self.told.get(timeout=BOUND)))
        return found


@pytest.fixture
def hooks():
    hooks = Hooks()
    yield hooks
    hooks.server.shutdown()
    hooks.server.server_close()


def served(folder: Path, *options: str) -> Running:
    arguments = ["serve", "mover.py", "--port", "0", "--allow-private-webhooks", *options]
    return Running(arguments, folder)


def address(said: str) -> str:
    return re.search(r"address +(http://\S+)", said)[1]


def test_tasks_streams_and_webhooks_go_on_after_the_move(parley, hooks, tmp_path, postgres_url):
    (tmp_path / "mover.py").write_text(AGENT)
    with served(tmp_path) as server:
        url = address(server.until("Ctrl-C stops the server"))
        asked = parley("send", "-a", url, "ask", "-o", "json").document["task"]
        ran = parley("send", "-a", url, "work", "--async", "-o", "json")
        working = ran.document["task"]["id"]
        made = parley("task", "push-config", "create", working, hooks.url, "-a", url)
        assert made.status == 0, made.stderr
        (tmp_path / "begin").touch()
        hooks.until("piece 2")
        server.end(signal.SIGKILL)  # in the middle of the turn
    before = parley("store", "status", "--store", "sqlite:///parley.db", "-o", "json").document
    assert before["work"][0]["tasks"] == 1

    assert parley("store", "export", "all.jsonl", "--store", "sqlite:///parley.db").status == 0
    ran = parley("store", "import", "all.jsonl", "--store", postgres_url)
    assert ran.status == 0, ran.stderr
    assert "2 tasks" in ran.field("Imported")
    ran = parley("store", "status", "--store", postgres_url)
    assert ran.field("Unclaimed").startswith("1 of mover")
    assert (ran.field("Webhooks"), ran.field("Replicas")) == ("1 active", "none")

    (tmp_path / "go").touch()
    with served(tmp_path, "--store", postgres_url, "--bus", "none") as server:
        url = address(server.until("Ctrl-C stops the server"))
        ran = parley("task", "get", working, "-a", url, "--wait", "--poll-interval", "50ms")
        assert ran.field("State") == "TASK_STATE_COMPLETED"
        # The webhook gets the later events.
        hooks.until("TASK_STATE_COMPLETED")
        # The question from before the move accepts its answer.
        ran = parley("send", "-a", url, "--task-id", asked["id"], "the blue one")
        assert "took the blue one" in ran.stdout, ran.stderr
        ran = parley("store", "status", "--store", postgres_url)
        assert ran.field("Tasks of mover") == "2 completed"
        assert ran.field("Replicas") == "1"
        assert re.fullmatch(r"\w+, alive, last seen \w+ ago, owns 0 tasks", ran.field("Replica"))
        assert server.end(signal.SIGTERM) == 0
    assert hooks.told.empty(), "an event after the completion"


def test_tasks_are_pruned_beside_replicas(parley, tmp_path, postgres_url):
    (tmp_path / "mover.py").write_text(AGENT)
    for name in ("begin", "go"):
        (tmp_path / name).touch()
    with served(tmp_path, "--store", postgres_url) as server:
        url = address(server.until("Ctrl-C stops the server"))
        assert parley("send", "-a", url, "work").status == 0
        prune = ("store", "prune", "--ended-before", "0s", "--store", postgres_url)
        assert parley(*prune, "--dry-run").field("Would remove").startswith("1 task, ")
        assert parley(*prune).field("Removed").startswith("1 task, ")
        assert parley("store", "status", "--store", postgres_url).field("Tasks") == "0"
        assert parley("send", "-a", url, "work").status == 0
        assert server.end(signal.SIGTERM) == 0
