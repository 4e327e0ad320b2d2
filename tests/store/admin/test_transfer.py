"""Export and import of a store: nothing is lost or invented."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parley.model.operations import TaskPushNotificationConfig
from parley.model.service import TraceContext
from parley.model.tasks import TaskState
from parley.store.admin import transfer
from parley.store.admin.admin import StoreAdmin
from parley.store.admin.postgres import PostgresAdmin
from parley.store.admin.sqlite import SqliteAdmin
from parley.store.admin.transfer import TransferError, checked, export_to, import_into, lines_in
from parley.store.events import CancelRequested, LoggedEvent, Scope, StoredCaller
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import TaskQuery
from parley.store.protocols.webhooks import PushRecord, PushState
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import (
    addition,
    chunk,
    creation,
    message,
    private_records,
    received,
    status,
    turn_started,
)
from tests.kit.services.postgres import running

CALLERS = [
    None,
    StoredCaller(id="owner", authenticated=True),
    StoredCaller(id='o"w\\ner', issuer="ü", authenticated=True, claims={"roles": ["a", 1, None]}),
]
TRACES = [
    None,
    TraceContext(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    TraceContext(
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", tracestate="a=1"
    ),
]
ADDRESSES = ["", "https://agent.example/a", "https://ünï.example"]
SCOPES = [Scope("one"), Scope("one", "tenant", "owner"), Scope("ünï", "", 'ü\x1fo"w\\n\ner')]
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def ignore(records: Sequence[LoggedEvent]) -> None:
    """Notify no one."""


plans = st.lists(
    st.fixed_dictionaries(
        {
            "scope": st.integers(0, 2),
            "steps": st.lists(
                st.one_of(
                    st.tuples(st.just("chunk"), TEXTS),
                    st.tuples(st.just("working"), TEXTS),
                    st.tuples(st.just("ask"), TEXTS),
                    st.tuples(st.just("receive"), TEXTS),
                    st.tuples(st.just("take"), TEXTS),
                    st.tuples(st.just("say"), TEXTS),
                    st.tuples(st.just("cancel"), st.just("")),
                ),
                max_size=8,
            ),
            "ends": st.sampled_from(["", "", "completed", "failed", "canceled"]),
            "released": st.booleans(),
            "asleep": st.sampled_from([(), ("k",), ("k", "ünï\n")]),
            "webhooks": st.integers(0, 2),
            "receipt": st.booleans(),
            "queue_key": st.integers(0, 1 << 40),
        }
    ),
    max_size=5,
)
kept = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), TEXTS, st.binary(max_size=9)))


async def fill(store: TaskStore, tasks: Sequence[dict[str, Any]], contexts: Sequence[Any]) -> None:
    """Fill a store according to the plans."""
    await store.open(ignore)
    try:
        for number, plan in enumerate(tasks):
            await _live(store, f"task-{number}", plan)
        for n, (scope, context, text, value) in enumerate(contexts):
            where = SCOPES[scope], f"context-{context}"
            await store.keep(*where, exchange=[message(text, f"{n}"), message("and back")])
            await store.set_value(*where, f"key {text}", value)
            if value:
                receipt = Receipt(f"reply-{n}", value, reply=b'{"a":1}')
                await store.keep(*where, receipt=receipt)
    finally:
        await store.close()


async def _live(store: TaskStore, task_id: str, plan: dict[str, Any]) -> None:
    receipt = Receipt(f"message-{task_id}", b"\0digest", task_id, 1)
    caller, trace = CALLERS[plan["scope"]], TRACES[plan["scope"]]
    await store.append(
        creation(
            task_id,
            turn_started(1, caller=caller, trace=trace),
            scope=SCOPES[plan["scope"]],
            base_url=ADDRESSES[plan["scope"]],
            receipts=[receipt] if plan["receipt"] else [],
            pushes=[webhook(n) for n in range(plan["webhooks"])],
        )
    )
    turn, head = 1, 1
    for what, text in plan["steps"]:
        if what == "chunk":
            head = await store.append(addition(task_id, head, chunk(task_id, text), turn=turn))
        elif what == "working":
            event = status(task_id, TaskState.WORKING, text, at=1_700_000_000_000 + head)
            head = await store.append(addition(task_id, head, event, turn=turn))
        elif what == "ask":
            event = status(task_id, TaskState.INPUT_REQUIRED, text)
            head = await store.append(addition(task_id, head, event, turn=turn, turn_open=False))
        elif what == "receive":
            await store.append(addition(task_id, None, received(text, caller, trace=trace)))
        elif what == "take":
            turn += 1
            begins = turn_started(turn, text, caller=caller, trace=trace)
            more = {"turn": turn, "turn_open": True, "taken": 1}
            head = await store.append(addition(task_id, head, begins, **more))
        elif what == "say":
            said = [message(text, f"{task_id}-{head}")]
            event = status(task_id, TaskState.WORKING)
            head = await store.append(addition(task_id, head, event, turn=turn, exchange=said))
        elif what == "cancel":
            await store.append(addition(task_id, None, CancelRequested(caller=caller)))
    if plan["ends"]:
        event = status(task_id, TaskState[plan["ends"].upper()], "the end")
        await store.append(addition(task_id, head, event, turn=turn, turn_open=False))
    elif plan["released"]:
        more = {"turn": turn, "release": True, "queue_key": plan["queue_key"]}
        if plan.get("asleep"):
            more |= {"wakes_at": plan["queue_key"], "waits_for": plan["asleep"]}
        await store.append(addition(task_id, head, turn_started(turn), **more))
    for push in await store.pushes(task_id):
        if plan["queue_key"] % 2:
            push = PushRecord(
                config=push.config,
                version=push.version,
                revision=push.revision,
                cursor=1,
                state=PushState.SUSPENDED,
                note="it is gone",
            )
            assert await store.save_delivery(task_id, push)


def webhook(n: int) -> PushRecord:
    config = TaskPushNotificationConfig(id=f"hook-{n}", url=f"https://{n}.example", token="t")
    return PushRecord(config=config, version="1.0", revision=f"revision-{n}")


def exported(admin: StoreAdmin) -> bytes:
    file = io.BytesIO()
    with admin.reading() as source:
        export_to(source, file.write, by="a test")
    return file.getvalue()


def imported(store: Any, file: bytes) -> transfer.Imported:
    for _ in checked(lines_in(io.BytesIO(file))):
        pass
    return asyncio.run(brought(store, lines_in(io.BytesIO(file))))


async def brought(store: Any, lines: Iterable[bytes]) -> transfer.Imported:
    """Import lines into a store."""
    await store.open(ignore)
    try:
        return await import_into(store, lines)
    finally:
        await store.close()


async def seen(store: TaskStore) -> dict[str, Any]:
    """Return all that users of a store see."""
    await store.open(ignore)
    try:
        found: dict[str, Any] = {}
        for scope in SCOPES:
            page = await store.list(TaskQuery(scope=scope, limit=100, artifacts=True))
            found[f"list {scope}"] = (page.total, page.tasks)
            for task in page.tasks:
                record = await store.load(task.id)
                assert record is not None
                found[task.id] = (
                    *(record.scope, record.task, record.seq, record.turn, record.turn_open),
                    *(record.waiting, record.cancel_requested, record.wakes_at, record.base_url),
                    [(e.seq, e.at, e.payload) for e in await store.events(task.id, 0, 1000)],
                    await private_records(store, task.id),
                    [(p.config, p.cursor, p.state, p.note) for p in await store.pushes(task.id)],
                    await store.receipt(scope, f"message-{task.id}"),
                )
            for context in range(4):
                name = f"context-{context}"
                found[f"{scope} {name}"] = await store.history(scope, name, 1000)
        found["work"] = dict(await store.unclaimed())
        found["claimed"] = [
            (claimed.task_id, claimed.queue_key)
            for agent in ("one", "ünï")
            for claimed in await store.claim_batch(agent, 100)
        ]
        return found
    finally:
        await store.close()


@pytest.mark.slow
@given(plans, kept)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_a_store_that_is_moved_is_the_same_store(tasks: Any, contexts: Any) -> None:
    with TemporaryDirectory() as folder:
        first, second = Path(folder, "first.db"), Path(folder, "second.db")
        asyncio.run(fill(SqliteTaskStore(first, synchronous="NORMAL"), tasks, contexts))
        file = exported(SqliteAdmin(first))
        done = imported(SqliteTaskStore(second), file)
        assert done.added.tasks == len(tasks)
        assert exported(SqliteAdmin(second)) == file
        assert asyncio.run(seen(SqliteTaskStore(second))) == asyncio.run(
            seen(SqliteTaskStore(first))
        )


@pytest.mark.service
@given(plans, kept)
@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_a_store_moves_to_postgresql_and_back(postgres: Any, tasks: Any, contexts: Any) -> None:
    url = postgres.new_url()
    with TemporaryDirectory() as folder:
        first, second = Path(folder, "first.db"), Path(folder, "second.db")
        asyncio.run(fill(SqliteTaskStore(first, synchronous="NORMAL"), tasks, contexts))
        file = exported(SqliteAdmin(first))
        imported(PostgresTaskStore(url), file)
        assert exported(PostgresAdmin(url)) == file
        imported(SqliteTaskStore(second), file)
        there = asyncio.run(seen(PostgresTaskStore(url)))
        assert there == asyncio.run(seen(SqliteTaskStore(second)))


@pytest.fixture
def file(tmp_path: Path) -> bytes:
    """An export of a store with data of every kind."""
    plan = {"scope": 1, "released": True, "webhooks": 1, "receipt": True, "queue_key": 7}
    steps = [("chunk", "a"), ("working", "b"), ("receive", "c"), ("chunk", "d" * 300)]
    tasks = [{**plan, "steps": steps, "ends": ends} for ends in ("", "completed")]
    path = tmp_path / "source.db"
    asyncio.run(fill(SqliteTaskStore(path), tasks, [(0, 1, "hi", b"v"), (1, 1, "ho", b"w")]))
    return exported(SqliteAdmin(path))


@pytest.mark.slow
def test_a_file_that_is_cut_anywhere_is_refused(file: bytes) -> None:
    for end in range(len(file)):
        with pytest.raises(TransferError):
            list(checked(lines_in(io.BytesIO(file[:end]))))


def test_a_file_without_one_of_its_lines_is_refused(file: bytes) -> None:
    lines = file.splitlines(keepends=True)
    for n in range(len(lines)):
        with pytest.raises(TransferError):
            list(checked([*lines[:n], *lines[n + 1 :]]))


def test_a_file_with_two_lines_changed_about_is_refused(file: bytes) -> None:
    lines = file.splitlines(keepends=True)
    for n in range(len(lines) - 1):
        with pytest.raises(TransferError):
            list(checked([*lines[:n], lines[n + 1], lines[n], *lines[n + 2 :]]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1: this is no export of a store"),
        (b"SQLite format 3\0\x10\0", "line 1: this is no export of a store"),
        (b"\xff\xfe\n", "line 1: this is no export of a store"),
        (b'{"a": 1}\n', "line 1: this is no export of a store"),
        (b"x" * 100_000, "line 1: this is no export of a store"),
        (b'{"is":"end","counts":{},"sha256":""}\n', "begins with its header"),
        (b'{"is":"parley-store","format":9,"by":"7.0"}\n', "format 9, written by Parley 7.0"),
        (b'{"is":"parley-store","format":1,"by":"1"}\n{"is":"joke"}\n', "line 2: this is no line"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(content: bytes, words: str) -> None:
    with pytest.raises(TransferError, match=words):
        list(checked(lines_in(io.BytesIO(content))))


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("task", {"state": "TASK_STATE_CANCELED"}, "leaves it in another state"),
        ("task", {"seq": 9}, "its last record is another"),
        ("task", {"ended_at": None}, "it ended, or did not"),
        ("task", {"waiting": 3}, "it ended, and work is left"),
        ("task", {"turn_open": True}, "it ended, and work is left"),
        ("task", {"cancel_requested": True}, "it was canceled"),
        ("task", {"context_id": "another"}, "its context is another"),
        ("task", {"epoch": 0}, "its numbers are from 1"),
        ("task", {"base_url": "\0"}, "its base_url has the character"),
        ("task", {"task_id": "other"}, "an event of task task-1 is not part of task other"),
        ("record", {"seq": 8}, "the record after"),
        ("record", {"kind": "task"}, r"record \(\d, 0\) is no task: Object contains"),
        ("webhook", {"cursor": 99}, "was notified up to event 99"),
        ("context", {"said": 1}, "one too many"),
        ("context", {"said": 4}, "messages of the context before this line are missing"),
    ],
)
def test_what_breaks_the_rules_of_a_log_is_refused(
    file: bytes, kind: str, change: dict[str, Any], words: str
) -> None:
    """Even when the last line matches the change."""
    lines = [json.loads(line) for line in file.splitlines()]
    found = [line for line in lines if line["is"] == kind]
    found[-1].update(change)
    with pytest.raises(TransferError, match=words):
        list(checked([json.dumps(line).encode() + b"\n" for line in lines]))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("task", "task task-[01] is in the file twice"),
        ("context", "context context-1 is in the file twice"),
        ("receipt", "the receipt for message .* is there twice"),
        ("value", "has two values 'key "),
    ],
)
def test_what_is_in_the_file_twice_is_refused(file: bytes, kind: str, words: str) -> None:
    parts: list[list[bytes]] = []  # each begins with the parent of the lines after it
    for line in file.splitlines(keepends=True):
        if json.loads(line)["is"] in ("said", "record", "webhook", *{"value"} - {kind}):
            parts[-1].append(line)
        else:
            parts.append([line])
    [*_, n] = [n for n, part in enumerate(parts) if json.loads(part[0])["is"] == kind]
    twice = [line for part in (*parts[: n + 1], *parts[n:]) for line in part]
    with pytest.raises(TransferError, match=words):
        list(checked(twice))


@pytest.mark.slow
def test_a_long_log_is_there_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {
        "scope": 0,
        "released": True,
        "webhooks": 2,
        "receipt": True,
        "queue_key": 7,
        "ends": "",
    }
    tasks = [{**plan, "steps": [("chunk", f"{n}") for n in range(50)]} for _ in range(3)]
    first = tmp_path / "first.db"
    asyncio.run(fill(SqliteTaskStore(first), tasks, []))
    file = exported(SqliteAdmin(first))
    monkeypatch.setattr(transfer, "BATCH_LINES", 7)
    second = tmp_path / "second.db"
    imported(SqliteTaskStore(second), file)
    assert exported(SqliteAdmin(second)) == file
    assert imported(SqliteTaskStore(second), file).added == transfer.Counts()


def test_a_full_disk_leaves_what_was_committed_and_nothing_half(
    file: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BATCH_LINES", 2)
    path = tmp_path / "target.db"
    admin = SqliteAdmin(path)

    async def fill_up() -> None:
        store = SqliteTaskStore(path)
        await store.open(ignore)
        assert store._file is not None
        connection = store._file.writer
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        try:
            await import_into(store, big(file))
        finally:
            await store.close()

    with pytest.raises(StoreUnavailable, match="the disk is full"):
        asyncio.run(fill_up())
    found = exported(admin)
    list(checked(lines_in(io.BytesIO(found))))
    imported(SqliteTaskStore(path), file)
    assert len(exported(admin)) >= len(found)


def big(file: bytes) -> list[bytes]:
    """The lines of a file, with a value that needs more pages than the database may have."""
    lines = file.splitlines(keepends=True)
    value = transfer.ContextValue(key="big", value=bytes(1 << 20))
    after = next(n for n, line in enumerate(lines) if b'"is":"value"' in line)
    return [*lines[:after], transfer.encode_line(value) + b"\n", *lines[after:]]


def test_an_export_is_of_one_moment_while_others_write(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "live.db"
        store = SqliteTaskStore(path)
        await store.open(ignore)
        head = await store.append(creation("t", turn_started(1), scope=SCOPES[0]))
        file = io.BytesIO()
        admin = SqliteAdmin(path)
        with admin.reading() as source:
            lines = source.lines()
            first = next(lines)
            for n in range(20):
                head = await store.append(addition("t", head, chunk("t", f"{n}")))
            await store.append(creation("later", scope=SCOPES[0]))
            rest = [first, *lines]
            assert [getattr(line, "task_id", "") for line in rest] == ["t", "", ""]
        with admin.reading() as source:
            counts = export_to(source, file.write, by="a test")
        assert (counts.tasks, counts.records) == (2, 23)
        await store.close()

    asyncio.run(run())


@pytest.mark.service
def test_postgresql_is_exported_as_of_one_moment_while_replicas_write(postgres_url: str) -> None:
    async def run() -> None:
        store = PostgresTaskStore(postgres_url)
        await store.open(ignore)
        head = await store.append(creation("t", turn_started(1), scope=SCOPES[0]))
        with PostgresAdmin(postgres_url).reading() as source:
            lines = source.lines()
            first = next(lines)
            await store.append(addition("t", head, chunk("t", "more")))
            await store.append(creation("later", scope=SCOPES[0]))
            assert len([first, *lines]) == 3
        await store.close()

    asyncio.run(run())


@pytest.mark.service
def test_what_is_imported_beside_replicas_is_adopted_by_them(
    file: bytes, postgres_url: str
) -> None:
    async def run() -> None:
        store = PostgresTaskStore(postgres_url)
        await store.open(ignore)
        await asyncio.to_thread(imported, PostgresTaskStore(postgres_url), file)
        assert dict(await store.unclaimed()) == {"one": 1}
        [claimed] = await store.claim_batch("one", 10)
        assert claimed.task_id == "task-0"
        record = await store.load("task-0")
        assert record is not None
        event = status("task-0", TaskState.COMPLETED)
        last = addition(
            "task-0", record.seq, event, epoch=claimed.epoch, turn=record.turn, turn_open=False
        )
        assert await store.append(last) == record.seq + 1
        page = await store.list(TaskQuery(scope=SCOPES[1], state=TaskState.COMPLETED))
        assert page.total == 2
        await store.close()

    asyncio.run(run())


@pytest.mark.service
def test_a_database_that_dies_spoils_nothing(file: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "BATCH_LINES", 2)
    lines = file.splitlines(keepends=True)

    with running() as server:
        admin = PostgresAdmin(server.url())

        def killed_after(count: int) -> Iterator[bytes]:
            for n, line in enumerate(lines):
                if n == count:
                    server.kill()
                yield line

        def new_store() -> PostgresTaskStore:
            return PostgresTaskStore(server.url(), timeout=1.0)

        for count in (4, 10, len(lines) - 3):
            with pytest.raises(StoreUnavailable, match="the database cannot be reached"):
                asyncio.run(brought(new_store(), killed_after(count)))
            server.start()
            found = exported(admin)
            assert set(found.splitlines()[:-1]) <= set(file.splitlines())
        imported(new_store(), file)
        assert exported(admin) == file

        def export_until_killed() -> None:
            with admin.reading() as source:
                found = source.lines()
                next(found)
                server.kill()
                list(found)

        with pytest.raises(StoreUnavailable, match="the database cannot be reached"):
            export_until_killed()
