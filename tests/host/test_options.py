"""The options of a server, URLs of stores, and log lines at startup."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Retention, Settings, Turn
from parley.host import store_urls
from parley.host.host import removed_after, several_workers
from parley.host.options import AppKeywords, ServeKeywords, ServerOptions, options_of, shown
from parley.host.store_urls import open_admin, open_bus, open_store
from parley.security import ApiKey
from parley.security.egress import Egress
from parley.store.bus.postgres_bus import PostgresBus
from parley.store.bus.redis_bus import RedisBus
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.house.sizes import ROOT


def test_keywords_are_the_options_and_each_is_documented() -> None:
    fields = set(ServerOptions.__struct_fields__)
    assert fields == set(ServeKeywords.__annotations__) | set(AppKeywords.__annotations__)
    assert fields == set(options_of(ServerOptions))
    assert all(option.help for option in options_of(ServerOptions).values())


def test_an_iterator_is_read_once() -> None:
    options = ServerOptions(limits=iter(["60/minute"]), allow_private_files=iter(["10.0.0.1"]))  # type: ignore[arg-type]
    assert (options.limits, options.allow_private_files) == (("60/minute",), ("10.0.0.1",))


def test_unknown_and_contradicting_options_are_refused() -> None:
    agent = Agent("Plain")
    with pytest.raises(TypeError, match="stores"):
        parley.asgi(agent, stores="memory:")  # type: ignore[call-arg]
    for name, value in {"port": 8000, "tls_cert": "cert.pem", "allow_anonymous": True}.items():
        with pytest.raises(TypeError, match=f"asgi takes no {name}: give it to parley.serve"):
            parley.asgi(agent, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="but not both"):
        parley.asgi(agent, caller=lambda scope: parley.Caller(id="ada"), auth=ApiKey())
    with pytest.raises(ValueError, match="'both', 'api' or 'worker'"):
        parley.asgi(agent, role="all")  # type: ignore[arg-type]


def test_the_record_for_the_audit_has_no_secret() -> None:
    record = ServerOptions(
        store="postgresql://ada:hunter2@db/tasks",
        bus="redis://:hunter2@bus",
        secret_key="hunter2" * 8,
        policy=lambda access: True,
        egress=Egress.of(deny=["*.example.net"]),
        tenants={"acme": Agent("Shop")},
        limits=("60/minute",),
        settings=Settings(max_parts=7),
    ).record()
    assert "hunter2" not in str(record)
    assert record["secret_key"] is record["policy"] is True
    assert record["caller"] is record["url"] is None
    assert record["tenants"] == ["acme"]
    assert record["limits"] == ["60/minute"]
    assert record["settings"]["max_parts"] == 7
    assert "*.example.net" in record["egress"]
    assert set(record) == set(AppKeywords.__annotations__)


# -- from URLs to stores and buses, and the errors for invalid URLs --------------------------------


POSTGRES = "postgresql://ada:secret@db.example/tasks"
REDIS = "redis://:secret@cache.example:6379/0"


@pytest.mark.parametrize(
    ("url", "lease", "migrate", "words"),
    [
        ("mysql://ada:secret@x", None, True, "'mysql://ada@x' names no store; use memory:, sqlite"),
        ("sqlite://tasks.db", None, True, "names no store"),
        ("sqlite:///", None, True, "names no store"),
        ("", None, True, "names no store"),
        ("sqlite:///a.db", 5, True, "lease=5 needs a store that many replicas use.*not sqlite"),
        (MemoryTaskStore(), 5, True, "not an open store"),
        (POSTGRES, 0.1, True, "a lease is 0.5 to 3600 seconds"),
        ("memory:", None, False, "only a postgresql:// store"),
        ("postgresql://ada:secret@[/x", None, True, "is not a URL that libpq knows"),
        (f"{POSTGRES}?schema=No", None, True, "a schema's name"),
    ],
)
def test_what_is_no_store_is_refused(url, lease, migrate, words):
    with pytest.raises(ValueError, match=words) as refused:
        open_store(url, lease, migrate=migrate)
    assert "secret" not in str(refused.value)


def test_a_url_names_a_bus():
    assert isinstance(open_bus(None, POSTGRES), PostgresBus)
    assert isinstance(open_bus(POSTGRES, POSTGRES), PostgresBus)
    assert isinstance(open_bus(REDIS, POSTGRES), RedisBus)
    assert isinstance(open_bus("redis+cluster://a:1,b:2", POSTGRES), RedisBus)
    assert open_bus("none", POSTGRES) is None
    assert open_bus(None, "memory:") is None
    assert open_bus(None, MemoryTaskStore(logs=MemoryLogs())) is None
    assert isinstance(open_bus(REDIS, MemoryTaskStore(logs=MemoryLogs())), RedisBus)


@pytest.mark.parametrize(
    ("url", "store", "words"),
    [
        (REDIS, "sqlite:///a.db", "sqlite:///a.db is for one process alone"),
        ("none", "memory:", "memory: is for one process alone"),
        (REDIS, MemoryTaskStore(), "this store is for one process alone"),
        ("amqp://ada:secret@x", POSTGRES, "'amqp://ada@x' names no bus; use redis://"),
        ("", POSTGRES, "names no bus"),
        ("redis+moon://x", POSTGRES, "redis"),
    ],
)
def test_what_is_no_bus_is_refused(url, store, words):
    with pytest.raises(ValueError, match=words) as refused:
        open_bus(url, store)
    assert "secret" not in str(refused.value)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(store_urls, "find_spec", lambda name: None)
    for use in (open_store, open_admin):
        with pytest.raises(ValueError, match=r'pip install "parley-a2a\[postgres\]"'):
            use(POSTGRES)
    with pytest.raises(ValueError, match=r'pip install "parley-a2a\[redis\]"'):
        open_bus(REDIS, POSTGRES)


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        (POSTGRES, "postgresql://ada@db.example/tasks"),
        ("postgresql://db/x?user=ada&password=secret", "postgresql://db/x?user=ada&password=..."),
        (REDIS, "redis://@cache.example:6379/0"),
        ("sqlite:////var/lib/tasks.db", "sqlite:////var/lib/tasks.db"),
        ("memory:", "memory:"),
        ("postgresql://ada:secret@[/x", "postgresql:..."),
    ],
)
def test_a_url_is_shown_without_its_password(url, seen):
    assert shown(url) == seen


agent = Agent("Somebody")


@agent.skill
async def say(turn: Turn) -> str:
    """Says it."""
    return turn.text


def test_an_app_is_made_for_a_fleet():
    app = parley.asgi(agent, store=POSTGRES, bus=REDIS, role="api", lease=5, migrate=False)
    assert len(app.agents) == 1
    app = parley.asgi(agent, store=POSTGRES, bus="none", role="worker")
    assert not app.agents


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"role": "api"}, "needs a store that other processes use too"),
        ({"role": "worker", "store": "sqlite:///a.db"}, "needs a store that other processes use"),
        ({"role": "boss", "store": POSTGRES}, "role is 'both', 'api' or 'worker', not 'boss'"),
        ({"bus": REDIS}, "memory: is for one process alone"),
        ({"lease": 5.0}, "needs a store that many replicas use"),
    ],
)
def test_what_makes_no_sense_in_one_process_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        parley.asgi(agent, **options)


# -- log lines at startup: once each, and only where they are true ---------------------------------


APP = """
import logging

import parley
from parley import Agent

agent = Agent("Echo")

@agent.skill
async def say(text: str) -> str:
    return text

app = parley.asgi(agent, store="{store}")
logging.basicConfig(level="INFO", format="%(name)s: %(message)s")
"""


def echo(**options: Any) -> Agent:
    agent = Agent(options.pop("name", "Echo"), **options)

    @agent.skill
    async def say(turn: Turn) -> str:
        return turn.text

    return agent


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Run ``uvicorn`` with options until all of its workers serve; return the output."""
    running: list[subprocess.Popen[str]] = []

    def serve(*options: str, store: str = "memory:", workers: int = 1, **more: str) -> list[str]:
        (tmp_path / "served_here.py").write_text(APP.format(store=store))
        command = [sys.executable, "-m", "uvicorn", "served_here:app", "--port", "0", *options]
        paths = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
        environ = {k: v for k, v in os.environ.items() if k != "WEB_CONCURRENCY"}
        server = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**environ, "PYTHONPATH": paths, **more},
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(server)
        assert server.stderr is not None
        lines = []
        for line in server.stderr:
            lines.append(line)
            workers -= "startup complete" in line
            if not workers:
                break
        return lines

    yield serve
    for server in running:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        assert server.stderr is not None
        server.stderr.close()


def said(lines: Sequence[str], what: str) -> list[str]:
    return [line for line in lines if what in line]


@pytest.mark.parametrize(
    ("argv", "environ", "expected"),
    [
        (["-w", "4"], {}, "gunicorn has 4"),
        (["-w4"], {}, "gunicorn has 4"),
        (["--workers=3", "app:app"], {}, "gunicorn has 3"),
        ([], {"WEB_CONCURRENCY": "2"}, "gunicorn has 2"),
        ([], {"GUNICORN_CMD_ARGS": "--bind=:80 --workers 5"}, "gunicorn has 5"),
        (["-w", "1"], {"WEB_CONCURRENCY": "4"}, ""),
        (["app:app"], {}, ""),
    ],
)
def test_gunicorns_workers_are_counted_as_it_was_told(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], environ: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["gunicorn", *argv])
    assert several_workers({"SERVER_SOFTWARE": "gunicorn/23.0.0", **environ}) == expected
    assert several_workers(environ) == ""  # without gunicorn, the variables do not count


def test_agents_that_keep_their_tasks_for_other_times_are_named() -> None:
    day, hours = timedelta(days=1), timedelta(hours=36)
    agents = [
        echo(retention=Retention(tasks=hours)),
        echo(name="Time", retention=Retention(tasks=day)),
        echo(name="A", retention=Retention(tasks=None)),
    ]
    assert re.match(r"for 1 day \(Time\), 1 day, 12:00:00 \(Echo\); ", removed_after(agents))
    assert removed_after([echo(retention=Retention(tasks=None))]) == ""
