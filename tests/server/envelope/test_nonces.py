"""Nonces in real stores: one message, once, on every replica and after every restart."""

from __future__ import annotations

import asyncio

import pytest

from parley.envelope.messages import MessageReplayed
from parley.envelope.server.guard import Nonces
from parley.model.service import ANONYMOUS
from parley.security.limits.counters import SLACK_MS
from parley.store.postgres.store import PostgresTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from tests.server.envelope.guarded import SHARED, Clock, guard_of, signed

pytestmark = pytest.mark.anyio


async def test_a_restart_forgets_no_nonce(tmp_path):
    store = SqliteTaskStore(tmp_path / "tasks.db")
    await store.open(lambda records: None)
    sent = signed(store, SHARED)
    guard = guard_of(store)
    await guard.admit(sent, guard.sender(ANONYMOUS, ""))
    await store.close()
    again = SqliteTaskStore(tmp_path / "tasks.db")
    await again.open(lambda records: None)
    try:
        guard = guard_of(again)
        with pytest.raises(MessageReplayed):
            await guard.admit(sent, guard.sender(ANONYMOUS, ""))
    finally:
        await again.close()


@pytest.mark.service
async def test_of_many_replicas_that_get_a_message_at_once_one_admits_it(postgres_url):
    stores = [PostgresTaskStore(postgres_url) for _ in range(2)]
    for store in stores:
        await store.open(lambda records: None)
    try:
        sent = signed(stores[0], SHARED)
        guards = [guard_of(store) for store in stores] * 4
        admitted = await asyncio.gather(
            *[guard.admit(sent, guard.sender(ANONYMOUS, "")) for guard in guards],
            return_exceptions=True,
        )
        refused = [each for each in admitted if isinstance(each, MessageReplayed)]
        assert len(refused) == len(guards) - 1
    finally:
        for store in stores:
            await store.close()


async def test_what_is_over_is_removed_from_the_store(tmp_path):
    clock = Clock()
    store = SqliteTaskStore(tmp_path / "tasks.db", clock=clock)
    await store.open(lambda records: None)
    try:
        nonces = Nonces(store)
        await nonces.take("shop", "a-first-nonce", clock.ms + 300_000)
        clock.ms += 300_000 + SLACK_MS - 1
        with pytest.raises(MessageReplayed):
            await nonces.take("shop", "a-first-nonce", clock.ms)
        clock.ms += 700_000
        await nonces.take("shop", "another-nonce", clock.ms)  # and the first one is pruned
        await nonces.take("shop", "a-first-nonce", clock.ms)
    finally:
        await store.close()
