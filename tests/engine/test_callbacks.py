"""Callback addresses: their permissions, holders and lifetimes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from parley.engine.authorizations import Callbacks
from parley.security.sealing import TokenInvalid
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.kit.waiting import Clock

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
BASE = "https://agents.example/shop"


@pytest.fixture
def clock() -> Clock:
    return Clock(1_700_000_000_500)


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[MemoryTaskStore]:
    store = MemoryTaskStore(clock=clock)
    await store.open(lambda records: None)
    yield store
    await store.close()


async def token_of(callbacks: Callbacks, key: str = "payment:42", **options: Any) -> str:
    given = {"tenant": "", "expires": HOUR, **options}
    address = await callbacks.address(BASE, key, **given)
    before, _, token = address.rpartition("/")
    assert before == f"{BASE}/callbacks"
    return token


async def test_at_the_address_of_a_tenant_it_is_of_that_tenant(store: MemoryTaskStore) -> None:
    shop = Callbacks(store, "shop")
    token = await token_of(shop, tenant="acme")
    assert await shop.event_of(token, "acme") == await shop.event_of(token, "") == "payment:42"
    with pytest.raises(TokenInvalid):
        await shop.event_of(token, "globex")


async def test_another_replica_reads_it_and_another_store_does_not() -> None:
    logs = MemoryLogs()
    one, two, other = MemoryTaskStore(logs=logs), MemoryTaskStore(logs=logs), MemoryTaskStore()
    for store in (one, two, other):
        await store.open(lambda records: None)
    token = await token_of(Callbacks(one, "shop"))
    assert await Callbacks(two, "shop").event_of(token, "") == "payment:42"
    with pytest.raises(TokenInvalid):
        await Callbacks(other, "shop").event_of(token, "")
    for store in (one, two, other):
        await store.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": ""}, "the key of an event"),
        ({"key": "x" * 513}, "the key of an event"),
        ({"key": "a\0b"}, "the key of an event"),
        ({"key": 42}, "the key of an event"),
        ({"expires": timedelta(0)}, "positive timedelta"),
        ({"expires": timedelta(days=-1)}, "positive timedelta"),
        ({"expires": timedelta(days=400)}, "up to 366 days"),
        ({"expires": 3600}, "positive timedelta"),
        ({"base": ""}, "url="),
    ],
)
async def test_misuse_is_refused_with_what_would_be_right(
    store: MemoryTaskStore, options: dict[str, Any], words: str
) -> None:
    given = {"base": BASE, "key": "k", "tenant": "", "expires": HOUR, **options}
    base, key = given.pop("base"), given.pop("key")
    with pytest.raises(ValueError, match=words):
        await Callbacks(store, "shop").address(base, key, **given)
