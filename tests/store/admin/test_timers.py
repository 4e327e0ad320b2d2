"""Sleeping tasks and events: an administrator lists, reschedules and completes them."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parley.host.store_urls import open_admin, open_store
from parley.store.admin.admin import Asleep, StoreAdmin
from parley.store.admin.transfer import TransferError, checked, export_to, import_into, lines_in
from parley.store.protocols.tables import NEVER, EventCompleted
from parley.store.task_store import TaskStore
from tests.kit.records import SCOPE, addition, creation, turn_started
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

AGENT = SCOPE.agent
LATER = 2**50


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Returns the address of a new store."""
    count = iter(range(9))
    if request.param == "sqlite":
        return lambda: f"sqlite:///{tmp_path}/{next(count)}.db"
    made: Callable[[], str] = request.getfixturevalue("postgres").new_url
    return made


async def filled(url: str) -> TaskStore:
    """A store with two sleeping tasks and two events."""
    store = open_store(url)
    await store.open(lambda records: None)
    for task_id, at, events in (("timer", LATER, ()), ("event", NEVER, ("a", "b"))):
        await store.append(creation(task_id))
        await store.append(
            addition(task_id, 1, turn_started(1), release=True, wakes_at=at, waits_for=events)
        )
    await store.complete_event(AGENT, "done", b'{"n":[1,null]}')
    await store.complete_event("other", "done", b"2")
    return store


def exported(admin: StoreAdmin, **options: str) -> bytes:
    file = io.BytesIO()
    with admin.reading() as source:
        export_to(source, file.write, by="a test", **options)
    return file.getvalue()


async def bring(url: str, file: bytes) -> None:
    """Import a file into a store."""
    for _ in checked(lines_in(io.BytesIO(file))):
        pass
    store = open_store(url)
    await store.open(lambda records: None)
    await import_into(store, lines_in(io.BytesIO(file)))
    await store.close()


async def test_sleeping_tasks_and_events_move_to_another_store(new_url: Callable[[], str]) -> None:
    first = new_url()
    store = await filled(first)
    secret = await store.secret("s")
    file = await asyncio.to_thread(exported, open_admin(first))
    await store.close()
    assert secret not in file
    second = new_url()
    await bring(second, file)
    await bring(second, file)  # existing data is left alone
    assert await asyncio.to_thread(exported, open_admin(second)) == file
    moved = open_store(second)
    await moved.open(lambda records: None)
    assert await moved.secret("s") != secret
    assert await moved.unclaimed() == {}
    assert await moved.next_wake([AGENT]) == LATER
    assert await moved.event(AGENT, "done") == b'{"n":[1,null]}'
    assert await moved.complete_event(AGENT, "b", b"1")
    assert [due.task_id for due in await moved.due_tasks(AGENT, 0, 9)] == ["event"]
    await moved.close()


async def test_a_task_that_comes_to_where_its_event_is_complete_is_due(
    new_url: Callable[[], str],
) -> None:
    first, second = new_url(), new_url()
    await (await filled(first)).close()
    file = await asyncio.to_thread(exported, open_admin(first))
    there = open_store(second)
    await there.open(lambda records: None)
    await there.complete_event(AGENT, "b", b"1")
    await there.close()
    await bring(second, file)
    there = open_store(second)
    await there.open(lambda records: None)
    assert [due.task_id for due in await there.due_tasks(AGENT, 0, 9)] == ["event"]
    await there.close()


async def test_events_are_exported_with_their_agent_and_with_no_tenant(
    new_url: Callable[[], str],
) -> None:
    url = new_url()
    await (await filled(url)).close()
    admin = open_admin(url)
    assert exported(admin).count(b'"is":"event"') == 2
    assert exported(admin, agent=AGENT).count(b'"is":"event"') == 1
    assert exported(admin, tenant=SCOPE.tenant).count(b'"is":"event"') == 0


async def test_the_status_says_what_sleeps(new_url: Callable[[], str]) -> None:
    url = new_url()
    store = await filled(url)
    survey = await asyncio.to_thread(open_admin(url).survey)
    assert survey.asleep == [Asleep(agent=AGENT, tasks=2, wakes_at=LATER)]
    assert (survey.work, survey.events) == ([], 2)
    assert list(await asyncio.to_thread(open_admin(url).agents)) == [AGENT, "other"]
    await store.close()


async def test_an_administrator_completes_an_event_in_a_store_that_is_used(
    new_url: Callable[[], str],
) -> None:
    url = new_url()
    store = await filled(url)
    heard: list[int] = []
    store.listen_timers(heard.append)
    complete = open_admin(url).complete_event
    assert await asyncio.to_thread(complete, AGENT, "a", b'{"b": 1, "a": 2}') is True
    assert await asyncio.to_thread(complete, AGENT, "a", b'{"a": 2, "b": 1}') is False
    with pytest.raises(EventCompleted, match="another value"):
        await asyncio.to_thread(complete, AGENT, "a", b"2")
    with pytest.raises(ValueError, match="key of an event"):
        await asyncio.to_thread(complete, AGENT, "", b"2")
    assert [due.task_id for due in await store.due_tasks(AGENT, 0, 9)] == ["event"]
    assert await store.event(AGENT, "a") == b'{"a":2,"b":1}'
    large = b'"' + b"v" * 262_000 + b'"'
    assert await asyncio.to_thread(complete, AGENT, "large", large) is True
    assert await store.event(AGENT, "large") == large
    if not store.is_shared:  # another process requires polling
        assert heard[0] == 0
    await store.close()


async def test_an_administrator_completes_an_event_in_a_store_that_nobody_uses(
    new_url: Callable[[], str],
) -> None:
    url = new_url()
    await (await filled(url)).close()
    complete = open_admin(url).complete_event
    assert complete(AGENT, "a", b"1") is True
    assert complete(AGENT, "a", b"1") is False
    with pytest.raises(EventCompleted):
        complete(AGENT, "a", b"2")
    store = open_store(url)
    await store.open(lambda records: None)
    assert [due.task_id for due in await store.due_tasks(AGENT, 0, 9)] == ["event"]
    await store.close()


@pytest.mark.slow
async def test_another_process_completes_an_event(new_url: Callable[[], str]) -> None:
    url = new_url()
    store = await filled(url)
    program = (
        "import sys; from parley.host.store_urls import open_admin; "
        "print(open_admin(sys.argv[1]).complete_event('agent', 'b', b'1'))"
    )
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program, url], capture_output=True, text=True
    )
    assert (ran.stdout, ran.stderr) == ("True\n", "")
    await until(lambda: _is_due(store))
    await store.close()


async def _is_due(store: TaskStore) -> bool:
    return bool(await store.due_tasks(AGENT, store.now(), 9))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (b'"turn_open":true', b'"turn_open":false', "it sleeps, and no turn is open"),
        (b'"waits_for":["a","b"]', b'"waits_for":["a",""]', "waits for events that cannot be"),
        (b'"waits_for":["a","b"]', b'"waits_for":["a","a"]', "waits for events that cannot be"),
        (b'"key":"done"', b'"key":""', "key of an event"),
    ],
)
async def test_a_file_with_a_sleep_that_makes_no_sense_is_refused(
    tmp_path: Path, before: bytes, after: bytes, words: str
) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    await (await filled(url)).close()
    file = exported(open_admin(url))
    with pytest.raises(TransferError, match=words):
        for _ in checked(lines_in(io.BytesIO(file.replace(before, after)))):
            pass


@pytest.mark.parametrize("name", ["", "a"])
async def test_the_events_of_a_sleep_are_named_once(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    await (await filled(url)).close()
    file = exported(open_admin(url)).replace(b'["a","b"]', f'["a","{name}"]'.encode())
    with pytest.raises(TransferError, match="waits for events that cannot be"):
        list(checked(lines_in(io.BytesIO(file))))
