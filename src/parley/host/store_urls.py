"""Open the store, the bus or the store administration that a URL names.

No error contains a password.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from parley.host.options import scheme_of, shown
from parley.model.distribution import install_command
from parley.store.bus.subscriptions import Bus
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.claims import Lease
from parley.store.task_store import TaskStore

if TYPE_CHECKING:
    from parley.store.admin.admin import StoreAdmin

STORES = (
    "memory:, sqlite:///path/to/tasks.db (four slashes for an absolute path), or "
    "postgresql://host/database"
)
BUSES = "redis://host:6379/0, postgresql://host/database, or none"

POSTGRES = ("postgresql", "postgres")
REDIS = (
    "redis",
    "rediss",
    "redis+unix",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)


def sqlite_path(url: str) -> Path | None:
    """Return the file that a SQLite URL names, ``None`` for another URL."""
    path = url.removeprefix("sqlite:///")
    return Path(path) if path != url and path else None


def open_store(
    url: str | TaskStore, lease: float | None = None, *, migrate: bool = True
) -> TaskStore:
    """Return the store of a URL: ``memory:``, ``sqlite:///path/to/tasks.db``, or
    ``postgresql://host/database``, which many replicas can share.

    After ``sqlite:///`` a path is relative to the working directory; a fourth slash makes it
    absolute. ``lease`` is the number of seconds that a replica without a heartbeat keeps its
    tasks. Without ``migrate``, opening a PostgreSQL store with an older schema fails. An open
    store is returned unchanged. Raises ``ValueError`` for anything else.
    """
    is_postgres = isinstance(url, str) and scheme_of(url) in POSTGRES
    if lease is not None and not is_postgres:
        what = shown(url) if isinstance(url, str) else "an open store"
        raise ValueError(
            f"lease={lease:g} needs a store that many replicas use, postgresql://..., not {what}"
        )
    if not migrate and not is_postgres:
        raise ValueError("only a postgresql:// store can be opened without migrating it")
    if not isinstance(url, str):
        return url
    if is_postgres:
        _need("psycopg", "postgres", "a PostgreSQL store")
        from parley.store.postgres.store import PostgresTaskStore

        terms = Lease() if lease is None else Lease(lease)
        return PostgresTaskStore(url, lease=terms, migrates=migrate)
    if url in ("memory:", "memory://"):
        return MemoryTaskStore()
    path = sqlite_path(url)
    if path is None:
        raise ValueError(f"{shown(url)!r} names no store; use {STORES}")
    from parley.store.sqlite.store import SqliteTaskStore

    return SqliteTaskStore(path)


def open_bus(url: str | Bus | None, store: str | TaskStore) -> Bus | None:
    """Return the bus of a URL, for a store of a URL. An open bus is returned unchanged.

    ``None`` stands for the database of a PostgreSQL store, and ``"none"`` for no bus: replicas
    then poll the store. Raises ``ValueError``.
    """
    if url is not None and not isinstance(url, str):
        return url
    if isinstance(store, str):
        is_shared = scheme_of(store) in POSTGRES
        what = shown(store)
    else:
        is_shared, what = store.is_shared, "this store"
    if url is None:
        url = store if isinstance(store, str) and is_shared else "none"
    elif not is_shared:
        raise ValueError(
            f"a bus connects replicas that share a store, and {what} is for one process alone; "
            "use a postgresql:// store, or leave the bus out"
        )
    if url == "none":
        return None
    scheme = scheme_of(url)
    if scheme in POSTGRES:
        _need("psycopg", "postgres", "a PostgreSQL bus")
        from parley.store.bus.postgres_bus import PostgresBus

        return PostgresBus(url)
    if scheme.partition("+")[0] in REDIS:
        _need("redis", "redis", "a Redis bus")
        from parley.store.bus.redis_bus import RedisBus

        return RedisBus(url)
    raise ValueError(f"{shown(url)!r} names no bus; use {BUSES}")


def _need(module: str, extra: str, what: str) -> None:
    if find_spec(module) is None:
        raise ValueError(f"{what} needs the package {module}: {install_command(extra)}")


def open_admin(url: str) -> StoreAdmin:
    """Return the administration of the store that a URL names. Raises ``ValueError``."""
    if scheme_of(url) in POSTGRES:
        _need("psycopg", "postgres", "a PostgreSQL store")
        from parley.store.admin.postgres import PostgresAdmin

        return PostgresAdmin(url)
    if url in ("memory:", "memory://"):
        raise ValueError(
            "only the process of a memory: store can see it; use the sqlite:/// or postgresql:// "
            "store of a server"
        )
    path = sqlite_path(url)
    if path is None:
        raise ValueError(
            f"{shown(url)!r} names no store; use sqlite:///path/to/tasks.db (four slashes for an "
            "absolute path), or postgresql://host/database"
        )
    from parley.store.admin.sqlite import SqliteAdmin

    return SqliteAdmin(path)
