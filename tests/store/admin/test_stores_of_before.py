"""Stores, exports and tables of earlier versions are opened with their contents intact."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from parley.database.postgres.connection import Address
from parley.database.postgres.database import PostgresSchema
from parley.database.sql import Migration, SqlFiles
from parley.database.sqlite.file import SqliteFile, SqliteSchema
from parley.model.struct import encode
from parley.model.tasks import TaskState
from parley.security.api_keys import ApiKeyRecord
from parley.security.limits.usage import QuotaAsk, QuotaGrant, UsageQuery, UsageRow, usage_key
from parley.store.admin.sqlite import SqliteAdmin
from parley.store.admin.transfer import export_to
from parley.store.audit.trail import AuditEntry, AuditFilter, line_columns, lines_after
from parley.store.events import RecordKind, Scope
from parley.store.fold import fold
from parley.store.postgres.schema import SCHEMA as POSTGRES
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.task_log import TaskQuery
from parley.store.sqlite.file import APPLICATION_ID
from parley.store.sqlite.file import SCHEMA as SQLITE
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import addition, all_events, status
from tests.kit.services.postgres import PostgresServer
from tests.kit.waiting import block_thread, let_time_pass

pytestmark = pytest.mark.anyio


KEPT = Path(__file__).parents[2] / "data" / "stores"


def unpacked(name: str) -> bytes:
    return gzip.decompress((KEPT / name).read_bytes())


def sqlite_of_before(folder: Path) -> Path:
    with tarfile.open(KEPT / "sqlite-3.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "tasks.db"


@pytest.fixture
def postgres_of_before(postgres: PostgresServer) -> str:
    """A database with the first version of the schema, and its data."""
    url = postgres.new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    postgres.execute(unpacked("postgres-1.sql.gz").decode(), name)
    return f"{url}{'&' if '?' in url else '?'}schema=kept"


@asynccontextmanager
async def opened(store: TaskStore) -> AsyncIterator[TaskStore]:
    await store.open(lambda records: None)
    try:
        yield store
    finally:
        await store.close()


async def holds(store: TaskStore, expected: dict[str, Any]) -> None:
    """Check that a store has these tasks, for every kind of read."""
    for task_id, wanted in expected.items():
        record = await store.load(task_id)
        assert record is not None
        assert json.loads(encode(record.task)) == wanted["task"]
        assert [record.scope.agent, record.scope.tenant, record.scope.owner] == wanted["scope"]
        assert record.base_url == ""
        known = (record.seq, record.turn, record.turn_open, record.waiting)
        assert known == tuple(wanted[name] for name in ("seq", "turn", "turnOpen", "waiting"))
        counts = {}
        for kind in (RecordKind.RECEIVED, RecordKind.TURN, RecordKind.REMEMBERED):
            counts[kind.value] = len(await store.private_records(task_id, [kind]))
        named = {"received": "received", "turn": "turns", "remembered": "remembered"}
        assert counts == {kind: wanted[name] for kind, name in named.items()}
        assert len(await store.waiting_messages(task_id, limit=999)) == wanted["waiting"]
        turns = await store.private_records(task_id, [RecordKind.TURN])
        log = sorted([*await all_events(store, task_id), *turns], key=lambda r: (r.seq, r.sub))
        assert fold([record.event for record in log]) == record.task
        bare = await store.load(task_id, history=1, artifacts=False)
        assert bare is not None
        assert bare.task.artifacts == ()
        assert bare.task.history == record.task.history[-1:]
        assert bare.task.status == record.task.status
    for scope in {tuple(wanted["scope"]) for wanted in expected.values()}:
        page = await store.list(TaskQuery(scope=Scope(*scope), artifacts=True, limit=100))
        found = {task.id: json.loads(encode(task)) for task in page.tasks}
        assert found == {
            task_id: wanted["task"]
            for task_id, wanted in expected.items()
            if tuple(wanted["scope"]) == scope
        }
        assert (page.total, page.more) == (len(found), False)


async def goes_on(store: TaskStore, expected: dict[str, Any]) -> None:
    """Check that unfinished tasks are claimed, and can be appended to."""
    [agent] = {wanted["scope"][0] for wanted in expected.values()}
    unfinished = [task_id for task_id, wanted in expected.items() if wanted["turnOpen"]]
    claimed = await store.claim_batch(agent, 99)
    assert [each.task_id for each in claimed] == unfinished
    for each in claimed:
        before = await store.load(each.task_id)
        assert before is not None
        end = status(each.task_id, TaskState.COMPLETED, "done", at=2_000_000_000_000)
        await store.append(addition(each.task_id, before.seq, end, epoch=each.epoch))
        after = await store.load(each.task_id)
        assert after is not None
        assert after.task == fold([end], before.task)
    [watched] = [
        task_id
        for task_id in expected
        if await store.pushes(task_id)  # the task with a webhook
    ]
    assert [task_id for task_id, _ in await store.claim_pushes(agent, 9)] == [watched]


async def test_a_sqlite_store_of_before_is_opened(tmp_path: Path) -> None:
    expected = json.loads(unpacked("sqlite-3.json.gz"))
    path = sqlite_of_before(tmp_path)
    for _ in range(2):  # migrated data is left alone
        async with opened(SqliteTaskStore(path)) as store:
            await holds(store, expected)
    lines: list[bytes] = []
    with SqliteAdmin(path).reading() as source:
        export_to(source, lines.append, by="0.1.0")
    assert b"".join(lines) == export_without_leases(unpacked("export-1.jsonl.gz"), lines)
    async with opened(SqliteTaskStore(path)) as store:
        await goes_on(store, expected)


def export_without_leases(before: bytes, lines: list[bytes]) -> bytes:
    """Return an old export with the new epochs, and so a new hash, after the store was opened."""
    now = {}
    for line in lines:
        read = json.loads(line)
        if read["is"] == "task":
            now[read["task_id"]] = read["epoch"]
    written = []
    for line in before.splitlines(keepends=True):
        read = json.loads(line)
        if read["is"] == "task":
            epoch = f'"epoch":{read["epoch"]}'.encode()
            line = line.replace(epoch, f'"epoch":{now[read["task_id"]]}'.encode())
        written.append(line if read["is"] != "end" else lines[-1])
    return b"".join(written)


@pytest.mark.service
async def test_a_postgres_store_of_before_is_opened(postgres_of_before: str) -> None:
    expected = json.loads(unpacked("postgres-1.json.gz"))
    for _ in range(2):
        async with opened(PostgresTaskStore(postgres_of_before)) as store:
            await holds(store, expected)
    # The replica that wrote it is dead and never returns: its tasks are free.
    async with opened(PostgresTaskStore(postgres_of_before)) as store:
        [agent] = {wanted["scope"][0] for wanted in expected.values()}
        async with asyncio.timeout(60):
            while not (await store.unclaimed()).get(agent):
                await let_time_pass(0.05)
        await goes_on(store, expected)


@pytest.mark.service
async def test_an_old_replica_neither_writes_nor_reads_what_it_does_not_know(
    postgres: PostgresServer, postgres_of_before: str
) -> None:
    """The old replica's writes would lack the task's stored form."""
    name = postgres_of_before.partition("?")[0].rpartition("/")[2]
    async with opened(PostgresTaskStore(postgres_of_before)):
        pass
    for column_or_table in ("told FROM kept.replicas", "body FROM kept.snapshots"):
        with pytest.raises(Exception, match="does not exist"):
            postgres.execute(f"SELECT {column_or_table}", name)
    assert postgres.execute("SELECT max(oldest) FROM kept.schema_versions", name) == [(9,)]


@pytest.mark.slow
async def test_a_migration_that_is_killed_is_done_by_the_next(tmp_path: Path) -> None:
    """SIGKILL at several moments: the store is unchanged or migrated, and never in between."""
    expected = json.loads(unpacked("sqlite-3.json.gz"))
    path = sqlite_of_before(tmp_path)
    command = [
        sys.executable,
        "-m",
        "parley.cli",
        "store",
        "migrate",
        "--store",
        f"sqlite:///{path}",
    ]
    for wait in (0.1, 0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        block_thread(wait)  # at any point of its progress
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    async with opened(SqliteTaskStore(path)) as store:
        await holds(store, expected)


# -- secrets, API keys, usage and amounts of limits, which once had their own tables ---------------


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
    """The earlier migrations."""

    def migrations(self, folder: str) -> list[Migration]:
        return [each for each in super().migrations(folder) if each.version <= BEFORE[folder]]


FILES = FilesOfBefore("parley.store.sql")


async def holds_small_tables(store: TaskStore) -> None:
    await store.open(lambda records: None)
    try:
        assert await store.secret("s") == b"\x00" * 32
        assert list(await store.api_keys()) == KEYS
        total = await store.sum_usage(UsageQuery())
        assert total.run_ms == sum(each.run_ms for each in USAGE)
        found = await store.usage(UsageQuery(since=TODAY + 6, limit=3))
        assert list(found) == [each for each in USAGE if each.day == TODAY + 6][:3]
        assert await store.take_quotas([ASK]) == [QuotaGrant(0, 7, 6)]
        first, *_ = await store.read_audit(AuditFilter())  # a finished migration counts as one more
        assert first.kind == "key.created"
    finally:
        await store.close()


def migration(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "parley.cli", "store", "migrate", "--store", url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def kill_often(url: str) -> None:
    """Migrate, and SIGKILL the process at arbitrary points."""
    for wait in (0.3, 0.34, 0.38, 0.42, 0.46, 0.5, 0.6, 0.7, 0.9, 1.2):
        process = migration(url)
        block_thread(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
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
    await holds_small_tables(SqliteTaskStore(path))


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
    await holds_small_tables(PostgresTaskStore(postgres_url))


def audit_line() -> dict[str, Any]:
    [line] = lines_after(None, [AuditEntry(kind="key.created", at=1)], 1)
    return line_columns(line)
