"""From a SQLite file to PostgreSQL, with everything that is under way."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from parley.store.sql import migrations
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
    """A webhook that keeps what it was told."""

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
        """What was told up to what holds ``words``."""
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


def events(url: str, task_id: str, after: str = "") -> list[tuple[str, str]]:
    """The events of a task's stream to its end, with their ids."""
    request = urllib.request.Request(
        url,
        json.dumps(
            {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
        ).encode(),
        {"content-type": "application/json", "a2a-version": "1.0", "accept": "text/event-stream"}
        | ({"last-event-id": after} if after else {}),
    )
    with urllib.request.urlopen(request, timeout=BOUND) as response:
        text = response.read().decode()
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "data" in fields:
            found.append((fields.get("id", ""), fields["data"]))
    return found


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
        # The webhook hears of what follows, and not again of what it was told.
        told = "".join(hooks.until("TASK_STATE_COMPLETED"))
        assert told.count("TASK_STATE_COMPLETED") == 1
        # What was answered before is answered still, and the answer arrives where it was asked.
        ran = parley("send", "-a", url, "--task-id", asked["id"], "the blue one")
        assert "took the blue one" in ran.stdout, ran.stderr
        ran = parley("store", "status", "--store", postgres_url)
        assert ran.field("Tasks of mover") == "2 completed"
        assert ran.field("Replicas") == "1"
        assert re.fullmatch(r"\w+, alive, last seen \w+ ago, owns 0 tasks", ran.field("Replica"))
        assert server.end(signal.SIGTERM) == 0


def test_a_stream_goes_on_where_it_was_before_the_move(parley, tmp_path, postgres_url):
    (tmp_path / "mover.py").write_text(AGENT)
    with served(tmp_path) as server:
        url = address(server.until("Ctrl-C stops the server"))
        ran = parley("send", "-a", url, "ask", "-o", "json")
        task_id = ran.document["task"]["id"]
        assert server.end(signal.SIGTERM) == 0
    parley("store", "export", "all.jsonl", "--store", "sqlite:///parley.db")
    parley("store", "import", "all.jsonl", "--store", postgres_url)
    with served(tmp_path, "--store", postgres_url) as server:
        url = address(server.until("Ctrl-C stops the server"))
        parley("send", "-a", url, "--task-id", task_id, "the red one")
        events_after = events(url, task_id, after="1")
        numbers = [int(id) for id, _ in events_after]
        assert numbers == list(range(2, numbers[-1] + 1))
        assert "took the red one" in "".join(data for _, data in events_after)
        assert server.end(signal.SIGTERM) == 0


def test_replicas_of_an_older_schema_are_told_to_migrate(parley, tmp_path, postgres_url):
    (tmp_path / "mover.py").write_text(AGENT)
    serve = ("serve", "mover.py", "--port", "0", "--store", postgres_url)
    ran = parley(*serve, "--no-migrate")
    assert ran.status == 1
    assert "parley store migrate" in ran.stderr
    assert parley("store", "migrate", "--check", "--store", postgres_url).status == 1
    ran = parley("store", "migrate", "--store", postgres_url)
    done = [line for line in ran.stdout.splitlines() if line.startswith("Done:")]
    assert done == [f"Done: {step.version} ({step.name})" for step in migrations("postgres")]
    assert parley("store", "migrate", "--check", "--store", postgres_url).status == 0
    with served(tmp_path, "--store", postgres_url, "--no-migrate") as server:
        server.until("Ctrl-C stops the server")
        assert server.end(signal.SIGTERM) == 0


def test_a_worker_runs_what_an_api_took_in(parley, tmp_path, postgres_url):
    (tmp_path / "mover.py").write_text(AGENT)
    for name in ("begin", "go"):
        (tmp_path / name).touch()
    share = ("--store", postgres_url, "--lease", "5s")
    with (
        served(tmp_path, *share, "--role", "api") as api,
        served(tmp_path, *share, "--role", "worker") as worker,
    ):
        said = api.until("Ctrl-C stops the server")
        assert "Turns are run by other processes" in said
        said = worker.until("Ctrl-C stops the server")
        assert "Mover: turns are run here" in said
        health = re.search(r"health +(http://\S+)", said)[1]
        with urllib.request.urlopen(health, timeout=BOUND) as response:
            assert response.status == 200
        ran = parley("send", "-a", address(api.stdout), "work")
        assert "worked" in ran.stdout, ran.stderr
        ran = parley("send", "-a", health.removesuffix("/health/ready"), "work")
        assert ran.status != 0
        assert api.end(signal.SIGTERM) == 0
        assert worker.end(signal.SIGTERM) == 0


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
