"""Secrets, API keys, usage and amounts of limits had tables of their own once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from parley.database.postgres.connection import Address
from parley.database.postgres.database import PostgresSchema
from parley.database.sql import Migration, SqlFiles
from parley.database.sqlite.file import SqliteFile, SqliteSchema
from parley.security.api_keys import ApiKeyRecord
from parley.security.limits.usage import QuotaAsk, QuotaGrant, UsageQuery, UsageRow, usage_key
from parley.store.audit.trail import AuditEntry, AuditFilter, line_columns, lines_after
from parley.store.postgres.schema import SCHEMA as POSTGRES
from parley.store.postgres.store import PostgresTaskStore
from parley.store.sqlite.file import APPLICATION_ID
from parley.store.sqlite.file import SCHEMA as SQLITE
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.waiting import block_thread

pytestmark = pytest.mark.anyio

BEFORE = {"sqlite": 10, "postgres": 8}
ROWS = 30_000
LATER = 2**42
TODAY = int(time.time()) // 86_400
KEYS = [
    ApiKeyRecord(id="k1", digest="1" * 64, owner="ada", scopes=("read", "write"), created_at=1),
    ApiKeyRecord(id="k2", digest="2" * 64, owner="bob", label="é", created_at=2, expires_at=LATER),
]
USAGE = [
    UsageRow(day=TODAY + n % 7, agent="a", tenant='"\x1f\\é', caller=f"c{n:06}", run_ms=n)
    for n in range(ROWS)
]
ASK = QuotaAsk(key="q", slot=7, oldest=5, amount=10, wanted=0, ends_at=LATER)
TABLES: dict[str, Sequence[tuple[Any, ...]]] = {
    "secrets (name, value)": [("s", b"\x00" * 32)],
    "api_keys (id, digest, owner, label, scopes, created_at, expires_at, revoked_at)": [
        (*(k.id, k.digest, k.owner, k.label, " ".join(k.scopes)), k.created_at, k.expires_at, None)
        for k in KEYS
    ],
    "usage (day, agent, tenant, caller, skill, requests, refusals, messages, tasks, output_bytes, "
    "run_ms)": [(*usage_key(each), 0, 0, 0, 0, 0, each.run_ms) for each in USAGE],
    "quota_slots (name, slot, taken, ends_at)": [("q", 6, 3, LATER), ("q", 7, 4, LATER)],
}


class FilesOfBefore(SqlFiles):
    """The migrations that there were."""

    def migrations(self, folder: str) -> list[Migration]:
        return [each for each in super().migrations(folder) if each.version <= BEFORE[folder]]


FILES = FilesOfBefore("parley.store.sql")


async def holds(store: TaskStore) -> None:
    await store.open(lambda records: None)
    try:
        assert await store.secret("s") == b"\x00" * 32
        assert list(await store.api_keys()) == KEYS
        total = await store.sum_usage(UsageQuery())
        assert total.run_ms == sum(each.run_ms for each in USAGE)
        found = await store.usage(UsageQuery(since=TODAY + 6, limit=3))
        assert list(found) == [each for each in USAGE if each.day == TODAY + 6][:3]
        assert await store.take_quotas([ASK]) == [QuotaGrant(0, 7, 6)]
        first, *_ = await store.read_audit(AuditFilter())  # a migration that ended is one more
        assert first.kind == "key.created"
    finally:
        await store.close()


def migration(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "parley.cli", "store", "migrate", "--store", url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def kill_often(url: str) -> None:
    """Migrate, and SIGKILL that, wherever it is by then."""
    for wait in (0.3, 0.34, 0.38, 0.42, 0.46, 0.5, 0.6, 0.7, 0.9, 1.2):
        process = migration(url)
        block_thread(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()


async def test_a_sqlite_store_of_before_has_its_small_tables_after_kills(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    schema = SqliteSchema(APPLICATION_ID, FILES, SQLITE.steps)
    SqliteFile(path, schema, synchronous="FULL", readers=0).close()
    with sqlite3.connect(path) as connection:
        for table, rows in TABLES.items():
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        line = audit_line()
        names, marks = ", ".join(line), ", ".join("?" * len(line))
        connection.execute(f"INSERT INTO audit ({names}) VALUES ({marks})", [*line.values()])
    connection.close()
    kill_often(f"sqlite:///{path}")
    await holds(SqliteTaskStore(path))


@pytest.mark.service
async def test_a_postgres_store_of_before_has_its_small_tables_after_kills(
    postgres_url: str,
) -> None:
    address = Address.of(postgres_url)
    PostgresSchema(FILES, POSTGRES._steps).migrate(address)
    with psycopg.connect(address.conninfo) as connection, connection.cursor() as cursor:
        for table, rows in TABLES.items():
            with cursor.copy(f"COPY {address.schema}.{table} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        line = audit_line()
        names, marks = ", ".join(line), ", ".join(["%s"] * len(line))
        cursor.execute(
            f"INSERT INTO {address.schema}.audit ({names}) VALUES ({marks})", [*line.values()]
        )
    kill_often(postgres_url)
    await holds(PostgresTaskStore(postgres_url))


def audit_line() -> dict[str, Any]:
    [line] = lines_after(None, [AuditEntry(kind="key.created", at=1)], 1)
    return line_columns(line)
