"""Push notification configurations in the stores: kept, replaced, moved, removed."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from parley.model.operations import AuthenticationInfo, PushOptions, TaskPushNotificationConfig
from parley.model.tasks import TaskState
from parley.store.protocols.errors import (
    PushReplaced,
    StoreError,
    TaskEnded,
    TooManyPushes,
    UnknownTask,
)
from parley.store.protocols.task_log import TaskQuery
from parley.store.protocols.webhooks import (
    ATTEMPTS_KEPT,
    MAX_PUSHES,
    DeliveryAttempt,
    PushRecord,
    PushState,
)
from parley.store.sql import migrations
from parley.store.sqlite.file import APPLICATION_ID
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import SCOPE, addition, chunk, creation, received, status
from tests.kit.waiting import Clock

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


async def test_a_configuration_begins_after_the_last_event(store: TaskStore) -> None:
    await store.append(creation("t", chunk("t", "x")))
    assert (await store.put_push("t", push("a"))).cursor == 2


async def test_one_that_comes_with_a_task_begins_with_its_first_event(store: TaskStore) -> None:
    await store.append(replace(creation("t", chunk("t", "x")), pushes=(push(),)))
    [kept] = await store.pushes("t")
    assert (kept.id, kept.cursor, kept.state) == ("default", 0, PushState.ACTIVE)


async def test_one_that_comes_with_a_task_that_is_over_is_still_to_be_told(
    store: TaskStore,
) -> None:
    end = status("t", TaskState.COMPLETED)
    await store.append(replace(creation("t", end), pushes=(push(),)))
    [kept] = await store.pushes("t")
    assert (kept.cursor, kept.state) == (0, PushState.ACTIVE)


async def test_one_that_comes_with_a_message_begins_after_the_last_event(store: TaskStore) -> None:
    await store.append(creation("t", chunk("t", "x")))
    append = addition("t", None, received("a"))
    await store.append(replace(append, pushes=(push(),)))
    [kept] = await store.pushes("t")
    assert kept.cursor == 2


async def test_one_of_a_task_that_is_over_has_nothing_to_do(store: TaskStore) -> None:
    await store.append(creation("t", status("t", TaskState.COMPLETED)))
    kept = await store.put_push("t", push("a"))
    assert (kept.cursor, kept.state) == (2, PushState.DONE)


async def test_a_task_that_is_not_there_has_no_configurations(store: TaskStore) -> None:
    with pytest.raises(UnknownTask):
        await store.put_push("t", push())
    await store.remove_push("t", "a")
    assert not await store.save_delivery("t", push("a"))


async def test_the_same_id_replaces_and_goes_on_where_the_one_before_stood(
    store: TaskStore,
) -> None:
    await store.append(creation("t"))
    first = await store.put_push("t", push("a"))
    await store.append(addition("t", 1, chunk("t", "x"), chunk("t", "y")))
    assert await store.save_delivery("t", replace(first, cursor=2))
    other = push("a", url="https://example.com/other", revision="r2")
    kept = await store.put_push("t", other)
    assert kept == replace(other, cursor=2, lease_owner=store.replica)
    assert await store.pushes("t") == [kept]


async def test_the_same_again_changes_nothing(store: TaskStore) -> None:
    await store.append(creation("t"))
    first = await store.put_push("t", push("a"))
    assert await store.put_push("t", push("a", revision="r2")) == first


async def test_a_parked_one_is_active_again_when_it_is_made_anew(store: TaskStore) -> None:
    await store.append(creation("t", chunk("t", "x")))
    first = await store.put_push("t", push("a"))
    await store.save_delivery("t", replace(first, state=PushState.SUSPENDED, note="HTTP 404"))
    [parked] = await store.pushes("t")
    assert (parked.state, parked.note) == (PushState.SUSPENDED, "HTTP 404")
    again = await store.put_push("t", push("a", revision="r2"))
    assert (again.state, again.note, again.revision) == (PushState.ACTIVE, "", "r2")
    assert again.lease_owner == store.replica


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


async def test_removing_is_idempotent(store: TaskStore) -> None:
    await store.append(creation("t"))
    await store.put_push("t", push("a"))
    for _ in range(2):
        await store.remove_push("t", "a")
    assert list(await store.pushes("t")) == []


async def test_a_store_says_which_webhooks_are_told_from_here(store: TaskStore) -> None:
    for n in range(10):
        await store.append(creation(f"t{n}"))
        for m in range(3):
            await store.put_push(f"t{n}", push(f"p{m}", revision=f"{n}.{m}"))
    await store.save_delivery("t0", replace(push("p0", revision="0.0"), state=PushState.SUSPENDED))
    await store.remove_push("t0", "p1")
    whole = await store.active_pushes([SCOPE.agent], 0, 100)
    assert (whole.has_unclaimed, whole.next, len(whole.claimed)) == (False, 0, 28)
    assert ("t0", "0.2") in whole.claimed
    first = await store.active_pushes([SCOPE.agent], 0, 25)
    second = await store.active_pushes([SCOPE.agent], first.next, 25)
    assert (len(first.claimed), second.next) == (25, 0)
    assert {*first.claimed, *second.claimed} == set(whole.claimed)


async def test_a_task_has_a_bounded_number_however_they_come(store: TaskStore) -> None:
    await store.append(creation("t"))
    puts = [store.put_push("t", push(f"{n:02}")) for n in range(MAX_PUSHES + 3)]
    done = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(each) for each in done[MAX_PUSHES:]] == [TooManyPushes] * 3
    assert len(await store.pushes("t")) == MAX_PUSHES
    await store.put_push("t", push("00", revision="again"))  # one that is there already
    append = replace(addition("t", None, received("a")), pushes=(push("one more"),))
    with pytest.raises(TooManyPushes):
        await store.append(append)
    record = await store.load("t")
    assert record is not None
    assert record.waiting == 0  # the message was not taken either


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


async def test_an_append_that_fails_keeps_no_configuration(store: TaskStore) -> None:
    await store.append(creation("t", status("t", TaskState.COMPLETED)))
    with pytest.raises(TaskEnded):
        await store.append(replace(addition("t", None, received("a")), pushes=(push(),)))
    with pytest.raises(StoreError):
        await store.append(replace(creation("t"), pushes=(push(),)))
    assert list(await store.pushes("t")) == []


async def test_pruning_a_task_removes_its_configurations(store: TaskStore, clock: Clock) -> None:
    for name in ("old", "new"):
        await store.append(creation(name))
        await store.put_push(name, push("a"))
    await store.append(addition("old", 1, status("old", TaskState.COMPLETED)))
    clock.now += 1000
    assert await store.prune(SCOPE.agent, clock.now, 10) == 1
    assert list(await store.pushes("old")) == []
    assert ids(await store.pushes("new")) == ["a"]


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


async def test_a_replacement_keeps_options_and_what_its_receiver_confirmed(
    store: TaskStore,
) -> None:
    await store.append(creation("t", chunk("t", "x")))
    options = PushOptions(events="significant")
    first = await store.put_push("t", replace(push("a"), options=options))
    assert first.options == options
    await store.save_delivery("t", replace(first, confirmed=True, attempts=3))
    again = await store.put_push("t", replace(push("a", revision="r2"), version="0.3"))
    assert (again.options, again.confirmed, again.attempts) == (options, True, 3)
    assert await store.pushes("t") == [again]
    other = replace(push("a", token="new", revision="r3"), options=PushOptions(events="all"))
    other = await store.put_push("t", other)
    assert (other.options, other.confirmed) == (PushOptions(events="all"), False)
    assert await store.pushes("t") == [other]
    await store.save_delivery("t", replace(other, confirmed=True))
    moved = push("a", url=f"{URL}/other", token="new", revision="r4")
    assert not (await store.put_push("t", moved)).confirmed


async def test_history_is_removed_with_its_task(store: TaskStore) -> None:
    await store.append(creation("t", status("t", TaskState.COMPLETED)))
    kept = await store.put_push("t", push("a"))
    await store.save_delivery("t", replace(kept, attempts=1), attempt(1))
    assert await store.prune(SCOPE.agent, 2**60, 10) == 1
    await store.append(creation("t", status("t", TaskState.COMPLETED)))
    await store.put_push("t", push("a"))
    assert list(await store.push_attempts("t", "a")) == []
