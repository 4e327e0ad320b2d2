"""From URLs to stores and buses, and what is said of those that are none."""

from __future__ import annotations

import pytest

import parley
from parley import Agent, Turn
from parley.host import store_urls
from parley.host.options import shown
from parley.host.store_urls import open_admin, open_bus, open_store
from parley.store.bus.postgres_bus import PostgresBus
from parley.store.bus.redis_bus import RedisBus
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.sqlite.store import SqliteTaskStore

POSTGRES = "postgresql://ada:secret@db.example/tasks"
REDIS = "redis://:secret@cache.example:6379/0"


def test_a_url_names_a_store():
    assert isinstance(open_store("memory:"), MemoryTaskStore)
    assert isinstance(open_store("sqlite:///tasks.db"), SqliteTaskStore)
    assert isinstance(open_store(POSTGRES), PostgresTaskStore)
    assert isinstance(open_store(POSTGRES.replace("postgresql", "postgres"), 5), PostgresTaskStore)
    store = MemoryTaskStore()
    assert open_store(store) is store


@pytest.mark.parametrize(
    ("url", "lease", "migrate", "words"),
    [
        ("mysql://ada:secret@x", None, True, "'mysql://ada@x' names no store; use memory:, sqlite"),
        ("sqlite://tasks.db", None, True, "names no store"),
        ("sqlite:///", None, True, "names no store"),
        ("", None, True, "names no store"),
        ("sqlite:///a.db", 5, True, "lease=5 needs a store that many replicas use.*not sqlite"),
        (MemoryTaskStore(), 5, True, "not a store that was made before"),
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
