"""An inbox remembers what was handled, and gives a lane to one holder at a time."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from parley.store.inbox import inbox_of
from parley.store.inbox.inbox import Inbox, InboxAnswer, InboxFailed, MemoryInbox
from tests.polling import let_time_pass, until

pytestmark = pytest.mark.anyio

KINDS = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service)]


@pytest.fixture(params=KINDS)
async def two(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Inbox, Inbox]]:
    """Two replicas' inboxes; in memory they are one."""
    if request.param == "memory":
        one: Inbox = MemoryInbox()
        both = (one, one)
    else:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path}/inbox.db"
        else:
            url = request.getfixturevalue("postgres_url")
        both = (inbox_of(url), inbox_of(url))
    async with AsyncExitStack() as stack:
        await asyncio.gather(*[each.open() for each in both])
        for each in both:
            stack.push_async_callback(each.close)
        yield both


async def test_an_id_is_new_once_and_a_lane_is_held_by_one(two: tuple[Inbox, Inbox]) -> None:
    one, other = two
    assert await one.admit("a/1", "a", "one", 30) is InboxAnswer.NEW
    assert await other.admit("a/1", "a", "other", 30) is InboxAnswer.BUSY
    assert await other.admit("a/2", "a", "other", 30) is InboxAnswer.BUSY
    assert await other.admit("b/1", "b", "other", 30) is InboxAnswer.NEW
    assert await one.admit("a/2", "a", "one", 30) is InboxAnswer.NEW
    await one.finish("a/1", "a", "one", keep=60, last=False)
    assert await other.admit("a/1", "a", "other", 30) is InboxAnswer.HANDLED
    assert await other.admit("a/2", "a", "other", 30) is InboxAnswer.BUSY
    await one.finish("a/2", "a", "one", keep=60, last=True)
    assert await other.admit("a/2", "a", "other", 30) is InboxAnswer.HANDLED
    assert await other.admit("a/3", "a", "other", 30) is InboxAnswer.NEW
    # An id that was handled takes no lane.
    await other.finish("a/3", "a", "other", keep=60, last=True)
    assert await one.admit("a/3", "a", "one", 30) is InboxAnswer.HANDLED
    assert await other.admit("a/4", "a", "other", 30) is InboxAnswer.NEW


async def test_who_died_holds_a_lane_until_the_lease_ends(two: tuple[Inbox, Inbox]) -> None:
    one, other = two
    assert await one.admit("a/1", "a", "one", 0.2) is InboxAnswer.NEW
    assert await one.admit("b/1", "b", "one", 0.2) is InboxAnswer.NEW
    await one.renew(["b"], "one", 60)
    await one.renew([], "one", 60)

    async def is_free() -> bool:
        return await other.admit("a/1", "a", "other", 30) is InboxAnswer.NEW

    await until(is_free, 10)
    assert await other.admit("b/1", "b", "other", 30) is InboxAnswer.BUSY
    # Who lost it neither renews nor releases it.
    await one.renew(["a"], "one", 60)
    await one.release("a", "one")
    await one.finish("", "a", "one", keep=60, last=True)
    assert await one.admit("a/2", "a", "one", 30) is InboxAnswer.BUSY
    await one.release("b", "one")
    assert await other.admit("b/1", "b", "other", 30) is InboxAnswer.NEW


async def test_what_was_handled_is_forgotten_in_time(two: tuple[Inbox, Inbox]) -> None:
    one, other = two
    await one.finish("a/1", "a", "one", keep=0.2, last=True)
    await one.finish("a/2", "a", "one", keep=600, last=True)
    assert await other.admit("a/1", "a", "other", 1) is InboxAnswer.HANDLED
    await let_time_pass(0.3)
    assert await other.admit("a/1", "a", "other", 1) is InboxAnswer.NEW
    assert await other.admit("a/2", "a", "other", 1) is InboxAnswer.HANDLED


async def test_of_many_that_ask_at_once_one_gets_the_lane(two: tuple[Inbox, Inbox]) -> None:
    asked = [two[n % 2].admit("a/1", "a", f"holder {n % 2}", 30) for n in range(20)]
    given = await asyncio.gather(*asked)
    winners = {n % 2 for n, each in enumerate(given) if each is InboxAnswer.NEW}
    assert len(winners) == 1
    assert set(given) == {InboxAnswer.NEW, InboxAnswer.BUSY}


async def test_what_has_no_id_is_always_new(two: tuple[Inbox, Inbox]) -> None:
    one, _ = two
    for _ in range(2):
        assert await one.admit("", "a", "one", 30) is InboxAnswer.NEW
        await one.finish("", "a", "one", keep=60, last=True)


async def test_memory_is_bounded_by_number_and_by_time() -> None:
    now = [0.0]
    inbox = MemoryInbox(max_ids=10, clock=lambda: now[0])
    for n in range(100):
        await inbox.finish(f"a/{n}", "a", "one", keep=60, last=True)
    assert len(inbox) == 10
    assert await inbox.admit("a/0", "a", "one", 1) is InboxAnswer.NEW
    assert await inbox.admit("a/99", "a", "one", 1) is InboxAnswer.HANDLED
    now[0] = 61.0
    await inbox.finish("b", "b", "one", keep=60, last=True)
    assert len(inbox) == 1
    with pytest.raises(ValueError, match="1 or more"):
        MemoryInbox(max_ids=0)


async def test_files_are_private_and_what_expired_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    inbox: Any = inbox_of(f"sqlite:///{path}")
    await inbox.open()
    for n in range(100):
        await inbox.finish(f"a/{n}", "a", "one", keep=0.001, last=True)
    await let_time_pass(0.01)
    inbox._pruned_at -= 1000
    await inbox.finish("last", "a", "one", keep=60, last=True)
    connection = inbox._connection
    count = await inbox._run(
        lambda: connection.execute("SELECT count(*) FROM inbox_handled").fetchone()[0]
    )
    assert count == 1
    await inbox.close()
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_it_is_remembered_over_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/inbox.db"
    first = inbox_of(url)
    await first.finish("a/1", "a", "one", keep=60, last=True)
    await first.close()
    second = inbox_of(url)
    assert await second.admit("a/1", "a", "two", 1) is InboxAnswer.HANDLED
    await second.close()


async def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(InboxFailed, match="cannot be opened"):
        await inbox_of(f"sqlite:///{tmp_path}/missing/inbox.db").open()


def test_an_inbox_is_named_by_a_url_and_no_error_shows_a_password() -> None:
    assert isinstance(inbox_of("memory:"), MemoryInbox)
    for url in ("mysql://u:s3cret@host/x", "s3cret", "redis://:s3cret@a", "sqlite:///"):
        with pytest.raises(ValueError) as refused:
            inbox_of(url)
        assert "s3cret" not in str(refused.value).replace("of the kind 's3cret'", "")
    assert "s3cret" not in repr(inbox_of("postgresql://u:s3cret@host/0"))
