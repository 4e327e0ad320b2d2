"""Push notification configurations in the stores: saved, replaced, moved, removed."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig
from parley.model.tasks import TaskState
from parley.store.protocols.errors import PushReplaced, TooManyPushes, UnknownTask
from parley.store.protocols.task_log import TaskQuery
from parley.store.protocols.webhooks import ATTEMPTS_KEPT, MAX_PUSHES, DeliveryAttempt, PushRecord
from parley.store.sql import migrations
from parley.store.sqlite.file import APPLICATION_ID
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import SCOPE, addition, chunk, creation, received, status

pytestmark = pytest.mark.anyio

URL = "https://example.com/hook"


def push(
    push_id: str = "", url: str = URL, revision: str = "r1", cursor: int = 0, token: str = ""
) -> PushRecord:
    return PushRecord(
        config=TaskPushNotificationConfig(id=push_id, url=url, token=token),
        version="1.0",
        revision=revision,
        cursor=cursor,
    )


def ids(pushes: object) -> list[str]:
    return [each.id for each in pushes]  # type: ignore[attr-defined]


async def test_what_is_kept_comes_back_whole_and_by_id(store: TaskStore) -> None:
    await store.append(creation("t", chunk("t", "x")))
    authentication = AuthenticationInfo(scheme="Bearer", credentials="secret")
    config = TaskPushNotificationConfig(
        id="b", url=URL, token="token", authentication=authentication
    )
    kept = await store.put_push("t", PushRecord(config=config, version="0.3", revision="r"))
    whole = PushRecord(
        config=config, version="0.3", revision="r", cursor=2, lease_owner=store.replica
    )
    assert kept == whole
    other = await store.put_push("t", push("a", revision="s"))
    assert other == replace(push("a", revision="s", cursor=2), lease_owner=store.replica)
    assert await store.pushes("t") == [other, kept]
    assert list(await store.pushes("other")) == []


async def test_a_task_that_is_not_there_has_no_configurations(store: TaskStore) -> None:
    with pytest.raises(UnknownTask):
        await store.put_push("t", push())
    await store.remove_push("t", "a")
    assert not await store.save_delivery("t", push("a"))


async def test_the_same_again_changes_nothing(store: TaskStore) -> None:
    await store.append(creation("t"))
    first = await store.put_push("t", push("a"))
    assert await store.put_push("t", push("a", revision="r2")) == first


async def test_one_without_an_id_replaces_that_of_its_url(store: TaskStore) -> None:
    await store.append(creation("t"))
    for revision, url in (("r1", URL), ("r2", URL), ("r3", URL + "2"), ("r4", URL + "2")):
        await store.put_push("t", push(url=url, revision=revision))
    assert ids(await store.pushes("t")) == ["default", "r3"]
    await store.put_push("t", push("a", URL + "3"))
    await store.put_push("t", push(url=URL + "3", revision="r5", token="new"))
    assert [p.config.token for p in await store.pushes("t") if p.id == "a"] == ["new"]


async def test_a_move_of_one_that_was_made_anew_is_forgotten(store: TaskStore) -> None:
    await store.append(creation("t"))
    old = await store.put_push("t", push("a"))
    new = await store.put_push("t", push("a", url=URL + "2", revision="r2"))
    assert not await store.save_delivery("t", replace(old, cursor=7))
    assert await store.pushes("t") == [new]
    await store.remove_push("t", "a")
    assert not await store.save_delivery("t", replace(new, cursor=7))
    assert list(await store.pushes("t")) == []


async def test_a_task_has_a_bounded_number_however_they_come(store: TaskStore) -> None:
    await store.append(creation("t"))
    puts = [store.put_push("t", push(f"{n:02}")) for n in range(MAX_PUSHES + 3)]
    done = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(each) for each in done[MAX_PUSHES:]] == [TooManyPushes] * 3
    assert len(await store.pushes("t")) == MAX_PUSHES
    await store.put_push("t", push("00", revision="again"))  # an existing configuration
    append = replace(addition("t", None, received("a")), pushes=(push("one more"),))
    with pytest.raises(TooManyPushes):
        await store.append(append)
    record = await store.load("t")
    assert record is not None
    assert record.waiting == 0  # the message was not accepted either


async def test_what_is_done_at_once_is_done_in_order(store: TaskStore) -> None:
    await store.append(creation("t"))
    await asyncio.gather(
        store.put_push("t", push("a")),
        store.remove_push("t", "a"),
        store.put_push("t", push(revision="r1", url=URL + "1")),
        store.put_push("t", push(revision="r2", url=URL + "2")),
        store.append(addition("t", 1, chunk("t", "x"))),
    )
    assert ids(await store.pushes("t")) == ["default", "r2"]


async def test_configurations_survive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    store = SqliteTaskStore(path)
    await store.open(lambda records: None)
    await store.append(creation("t"))
    kept = await store.put_push("t", push("a"))
    await store.close()
    again = SqliteTaskStore(path)
    await again.open(lambda records: None)
    try:
        assert await again.pushes("t") == [replace(kept, lease_owner="")]
        assert await again.claim_pushes(SCOPE.agent, 10) == [("t", False)]
        assert await again.pushes("t") == [replace(kept, lease_owner=again.replica)]
    finally:
        await again.close()


async def test_a_database_of_the_schema_before_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    old = sqlite3.connect(path)
    old.executescript(migrations("sqlite")[0].sql)
    old.executescript(
        "CREATE TABLE schema_versions "
        "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL);"
        "INSERT INTO schema_versions VALUES (1, 'logs', datetime('now'));"
        "INSERT INTO tasks VALUES (1, 't', 'agent', 'tenant', 'owner', 'context-t', "
        "'TASK_STATE_WORKING', 5, 1, 0, 1, 0, 0, 0, 1, NULL);"
    )
    payload = b'{"id":"t","contextId":"context-t","status":{"state":"TASK_STATE_WORKING"}}'
    old.execute("INSERT INTO log VALUES (1, 1, 0, 1, 'task', 5, ?)", (payload,))
    old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    old.commit()
    old.close()
    store = SqliteTaskStore(path)
    await store.open(lambda records: None)
    try:
        record = await store.load("t")
        assert record is not None
        assert (record.scope, record.task.state) == (SCOPE, TaskState.WORKING)
        assert (await store.put_push("t", push("a"))).cursor == 1
        assert await store.append(addition("t", 1, chunk("t", "x"))) == 2
        assert (await store.list(TaskQuery(scope=SCOPE))).total == 1
    finally:
        await store.close()


def test_a_record_shows_no_secrets() -> None:
    authentication = AuthenticationInfo(scheme="Bearer", credentials="secret-1")
    config = TaskPushNotificationConfig(
        id="a",
        url="https://user:secret-2@example.com/secret-3?key=secret-4",
        token="secret-5",
        authentication=authentication,
    )
    shown = repr(PushRecord(config=config, version="1.0", revision="r")) + str(authentication)
    assert "secret" not in shown
    assert "https://example.com/..." in shown
    assert "secret" not in repr(TaskPushNotificationConfig(url="http://[secret"))


def attempt(number: int, **given: object) -> DeliveryAttempt:
    return DeliveryAttempt(number=number, at=1000 + number, **given)  # type: ignore[arg-type]


async def test_a_history_has_the_last_attempts_and_no_more_rows(store: TaskStore) -> None:
    await store.append(creation("t", chunk("t", "x")))
    kept = await store.put_push("t", push("a"))
    assert list(await store.push_attempts("t", "a")) == []
    for n in range(1, ATTEMPTS_KEPT + 8):
        saved = replace(kept, attempts=n, note="waits")
        assert await store.save_delivery("t", saved, attempt(n, status=500, error="HTTP 500"))
    history = list(await store.push_attempts("t", "a"))
    assert [each.number for each in history] == list(range(ATTEMPTS_KEPT + 7, 7, -1))
    assert history[0] == attempt(ATTEMPTS_KEPT + 7, status=500, error="HTTP 500")
    [now] = await store.pushes("t")
    assert (now.attempts, now.note) == (ATTEMPTS_KEPT + 7, "waits")
    assert list(await store.push_attempts("t", "b")) == []
    assert list(await store.push_attempts("u", "a")) == []
    await store.remove_push("t", "a")
    assert list(await store.push_attempts("t", "a")) == []


async def test_a_save_that_changes_nothing_leaves_no_attempt(store: TaskStore) -> None:
    await store.append(creation("t", chunk("t", "x")))
    kept = await store.put_push("t", push("a"))
    assert not await store.save_delivery("t", replace(kept, revision="old"), attempt(1))
    assert list(await store.push_attempts("t", "a")) == []


async def test_a_change_of_a_revision_that_is_gone_changes_nothing(store: TaskStore) -> None:
    await store.append(creation("t", chunk("t", "x")))
    await store.put_push("t", push("a", revision="r1"))
    changed = push("a", token="new", revision="r2")
    changed = await store.put_push("t", replace(changed, replaces="r1"))
    assert (changed.revision, changed.replaces) == ("r2", "")
    late = replace(push("a", url=f"{URL}/old", revision="r4"), replaces="r0")
    with pytest.raises(PushReplaced):
        await store.put_push("t", late)
    assert await store.pushes("t") == [changed]
    await store.remove_push("t", "a")
    with pytest.raises(PushReplaced):
        await store.put_push("t", replace(late, replaces=changed.revision))
    assert list(await store.pushes("t")) == []


async def test_history_is_removed_with_its_task(store: TaskStore) -> None:
    await store.append(creation("t", status("t", TaskState.COMPLETED)))
    kept = await store.put_push("t", push("a"))
    await store.save_delivery("t", replace(kept, attempts=1), attempt(1))
    assert await store.prune(SCOPE.agent, 2**60, 10) == 1
    await store.append(creation("t", status("t", TaskState.COMPLETED)))
    await store.put_push("t", push("a"))
    assert list(await store.push_attempts("t", "a")) == []
