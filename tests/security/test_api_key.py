"""API keys: in the server's store, and in an author's own storage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from parley.model.errors import OverloadedError
from parley.model.service import Caller
from parley.security import ApiKey
from parley.security.api_keys import (
    MAX_LABEL,
    STORE_SECRET,
    _checksum,
    digest_of,
    is_issued,
    new_key,
)
from parley.security.evidence import Evidence, SchemeResources
from parley.security.schemes.api_key import create_key
from parley.security.schemes.scheme import CredentialsRefused, Proof
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.errors import StoreUnavailable
from tests.kit.waiting import Clock, until

pytestmark = pytest.mark.anyio

ADA = Caller(id="ada", scopes=frozenset({"read"}))


class CountingStore(MemoryTaskStore):
    """A store that counts key lookups."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked = 0
        self.is_down = False
        self.gate: asyncio.Event | None = None

    async def api_key(self, id: str) -> Any:
        self.asked += 1
        if self.is_down:
            raise StoreUnavailable("the database is away")
        found = await super().api_key(id)
        if self.gate is not None:
            await self.gate.wait()
        return found


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000_000)


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[CountingStore]:
    store = CountingStore(clock=clock)
    await store.open(lambda records: None)
    yield store
    await store.close()


def resources_of(store: Any) -> SchemeResources:
    return SchemeResources(store=store, now=lambda: store.now() / 1000)


def evidence(store: Any, *keys: str, query: str = "", **headers: str) -> Evidence:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    pairs += [(b"x-api-key", key.encode("latin-1")) for key in keys]
    scope = {"client": ("1.2.3.4", 5), "headers": pairs, "query_string": query.encode()}
    return Evidence(scope, None if store is None else resources_of(store))


async def proved(scheme: ApiKey, shown: Evidence) -> Proof:
    proof = scheme.verify(shown)
    return proof if isinstance(proof, Proof) else await proof


async def refusal(scheme: ApiKey, shown: Evidence) -> str:
    with pytest.raises(CredentialsRefused) as caught:
        await proved(scheme, shown)
    return caught.value.reason


# -- the form of a key ----------------------------------------------------------------------------


def test_a_typing_error_is_noticed_everywhere_in_a_key() -> None:
    key, _ = new_key(b"s" * 32, owner="ada", now=1)
    for at in range(7, len(key)):
        if key[at] == "_":
            continue
        wrong = key[:at] + ("b" if key[at] == "a" else "a") + key[at + 1 :]
        assert not is_issued(wrong, b"s" * 32)
    for wrong in (key[:-1], key + "a", key.upper(), key.replace("parley", "Parley"), " " + key):
        assert not is_issued(wrong, b"s" * 32)
    assert not is_issued(key, b"other" * 8)


# -- keys in the store ----------------------------------------------------------------------------


async def test_a_key_of_the_store_proves_its_owner_with_its_scopes(store: CountingStore) -> None:
    scheme = ApiKey()
    key, record = await create_key(store, owner="ada", scopes=["read"], label="laptop")
    proof = await proved(scheme, evidence(store, key))
    assert proof.scopes == {"read"}
    caller = proof.caller
    assert (caller.id, caller.issuer, caller.authenticated) == ("ada", "apiKey", True)
    assert caller.claims == {"key": record.id, "label": "laptop"}


async def test_several_keys_of_an_owner_are_valid_at_once(store: CountingStore) -> None:
    scheme = ApiKey()
    owners = set()
    for _ in range(3):
        key, _ = await create_key(store, owner="ada")
        owners.add((await proved(scheme, evidence(store, key))).caller.owner)
    assert len(owners) == 1


async def test_a_verified_key_costs_no_query_for_a_few_seconds(
    store: CountingStore, clock: Clock
) -> None:
    scheme = ApiKey(cache_seconds=5)
    key, _ = await create_key(store, owner="ada")
    for _ in range(10):
        await proved(scheme, evidence(store, key))
    assert store.asked == 1
    clock.now += 4999
    assert isinstance(scheme.verify(evidence(store, key)), Proof)
    clock.now += 1
    await proved(scheme, evidence(store, key))
    assert store.asked == 2
    clock.now -= 60_000  # a clock set back keeps nothing alive
    await proved(scheme, evidence(store, key))
    assert store.asked == 3


async def test_requests_at_once_ask_once(store: CountingStore) -> None:
    scheme = ApiKey()
    key, _ = await create_key(store, owner="ada")
    await asyncio.gather(*[proved(scheme, evidence(store, key)) for _ in range(20)])
    assert store.asked == 1


async def test_who_waits_for_a_look_up_that_is_cancelled_makes_one(store: CountingStore) -> None:
    scheme = ApiKey()
    key, _ = await create_key(store, owner="ada")
    store.gate = asyncio.Event()
    first = asyncio.ensure_future(proved(scheme, evidence(store, key)))
    await until(lambda: store.asked == 1)
    second = asyncio.ensure_future(proved(scheme, evidence(store, key)))
    await asyncio.sleep(0)
    first.cancel()
    await until(lambda: store.asked == 2)
    store.gate.set()
    assert (await second).caller.id == "ada"


async def test_a_flood_of_made_up_keys_costs_no_query(store: CountingStore) -> None:
    scheme = ApiKey()
    await create_key(store, owner="ada")
    for n in range(200):
        made_up, _ = new_key(n.to_bytes(32), owner="eve", now=1)
        assert await refusal(scheme, evidence(store, made_up)) == "an unknown API key"
    assert store.asked == 0


async def test_an_issued_id_with_another_secret_is_refused_and_costs_one_query(
    store: CountingStore,
) -> None:
    scheme = ApiKey()
    key, record = await create_key(store, owner="ada")
    secret = await store.secret(STORE_SECRET)
    for _ in range(50):
        other, _ = new_key(secret, owner="eve", now=1)
        text = f"parley_{record.id}_{other.split('_')[2][:43]}"
        reason = await refusal(scheme, evidence(store, text + _checksum(text)))
        assert reason == f"a wrong secret for the API key {record.id}"
        assert other.split("_")[2][:20] not in reason
    assert store.asked == 1
    assert (await proved(scheme, evidence(store, key))).caller.id == "ada"


async def test_a_key_revoked_by_this_process_stops_at_once(
    store: CountingStore, clock: Clock
) -> None:
    scheme = ApiKey(cache_seconds=300)
    key, record = await create_key(store, owner="ada")
    await proved(scheme, evidence(store, key))
    await store.end_api_key(record.id, revoked_at=store.now())
    reason = await refusal(scheme, evidence(store, key))
    assert reason == f"the revoked API key {record.id}"


async def test_a_look_up_under_way_does_not_outlive_a_revocation(store: CountingStore) -> None:
    scheme = ApiKey(cache_seconds=300)
    key, record = await create_key(store, owner="ada")
    store.gate = asyncio.Event()
    under_way = asyncio.ensure_future(proved(scheme, evidence(store, key)))
    await until(lambda: store.asked == 1)
    await store.end_api_key(record.id, revoked_at=store.now())
    store.gate.set()
    await under_way  # it was looked up before
    assert "revoked" in await refusal(scheme, evidence(store, key))


async def test_a_key_expires_to_the_second_however_long_it_is_cached(
    store: CountingStore, clock: Clock
) -> None:
    scheme = ApiKey(cache_seconds=300)
    key, record = await create_key(store, owner="ada", expires_in=10)
    await proved(scheme, evidence(store, key))
    clock.now += 9_999
    await proved(scheme, evidence(store, key))
    clock.now += 1
    assert await refusal(scheme, evidence(store, key)) == f"the expired API key {record.id}"
    assert store.asked == 1


async def test_a_store_that_is_away_is_an_overload_and_nobodys_failure(
    store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    scheme = ApiKey()
    key, _ = await create_key(store, owner="ada")
    store.is_down = True
    with pytest.raises(OverloadedError, match="cannot be verified now"):
        await proved(scheme, evidence(store, key))
    assert key not in caplog.text
    store.is_down = False
    assert (await proved(scheme, evidence(store, key))).caller.id == "ada"


async def test_a_store_in_memory_is_warned_about(
    store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await ApiKey().start(resources_of(store))
    assert "in memory" in caplog.text
    caplog.clear()
    await ApiKey(keys={}).start(resources_of(store))
    assert caplog.text == ""


# -- location of a key ---------------------------------------------------------------------------


async def test_keys_come_in_a_header_a_query_parameter_or_a_cookie() -> None:
    keys = {digest_of("k 1"): ADA}
    header = ApiKey("header", "X-Key", keys=keys)
    query = ApiKey("query", "api_key", keys=keys)
    cookie = ApiKey("cookie", "sid", keys={digest_of("k1"): ADA})
    shown = evidence(None, query="a=1&api_key=k+1", cookie="x=y; sid=k1", **{"x-key": "k 1"})
    for scheme in (header, query, cookie):
        assert scheme.is_presented(shown)
        assert (await proved(scheme, shown)).caller.id == "ada"
        assert not scheme.is_presented(evidence(None, query="x=1", cookie="SID=k1"))
    assert header.declared().api_key_security_scheme.location == "header"  # type: ignore[union-attr]
    assert query.challenge() == 'ApiKey in="query", name="api_key"'


async def test_a_cookie_that_a_page_of_another_site_sends_counts_for_nothing() -> None:
    scheme = ApiKey("cookie", "sid", keys={digest_of("k1"): ADA})
    for site, counts in (("cross-site", False), ("same-origin", True), ("none", True)):
        shown = evidence(None, cookie="sid=k1", **{"sec-fetch-site": site})
        assert scheme.is_presented(shown) is counts


@pytest.mark.parametrize(
    "shown",
    [
        evidence(None, "one", "two"),
        evidence(None, "right", "right"),
        evidence(None, ""),
        evidence(None, "x" * 5000),
        evidence(None, "w\xf6rd"),
    ],
)
async def test_what_is_not_one_key_is_refused(shown: Evidence) -> None:
    scheme = ApiKey(keys={digest_of("right"): ADA})
    assert scheme.is_presented(shown)
    await refusal(scheme, shown)


async def test_a_text_that_is_no_key_claims_no_id_and_costs_no_query(store: CountingStore) -> None:
    shown = evidence(store, "no key", query="k=")
    assert ApiKey().claimed(shown) == ""
    assert await refusal(ApiKey(), shown) == "a malformed API key"
    assert store.asked == 0
    assert ApiKey("query", "k").is_presented(shown)
    assert ApiKey().challenge(error="e", scopes=["a", "b"]) == (
        'ApiKey in="header", name="X-API-Key", error="e", scope="a b"'
    )


async def test_an_owner_is_known_by_its_keys_and_a_label_has_a_bound(store: CountingStore) -> None:
    await create_key(store, owner="ada", label="x" * MAX_LABEL)
    with pytest.raises(ValueError, match="a label has"):
        await create_key(store, owner="bob", label="x" * (MAX_LABEL + 1))
    known = [await ApiKey().knows(id, resources_of(store)) for id in ("ada", "bob")]
    assert known == [True, False]


async def test_no_part_of_a_refused_key_is_in_the_reason(store: CountingStore) -> None:
    for scheme in (ApiKey(), ApiKey(keys={}), ApiKey(keys={}.get)):
        with pytest.raises(CredentialsRefused) as caught:
            await proved(scheme, evidence(store, "s3cret-value"))
        assert "s3cret" not in caught.value.reason + caught.value.description


# -- keys in an author's own storage --------------------------------------------------------------


async def test_a_function_may_be_asynchronous() -> None:
    async def find(digest: str) -> Caller | None:
        await asyncio.sleep(0)
        return ADA if digest == digest_of("right") else None

    for function in (find, lambda digest: find(digest)):
        scheme = ApiKey(keys=function)
        assert (await proved(scheme, evidence(None, "right"))).caller.id == "ada"
        await refusal(scheme, evidence(None, "wrong"))


# -- allowed arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ApiKey("body"), "'header', a 'query' or a 'cookie'"),  # type: ignore[arg-type]
        (lambda: ApiKey(key_name="a b"), "key_name has"),
        (lambda: ApiKey(key_name=""), "key_name has"),
        (lambda: ApiKey(key_name="Authorization"), "Bearer"),
        (lambda: ApiKey("header", "cookie"), "a form of its own"),
        (lambda: ApiKey(keys={"secret": ADA}), "hashes, not keys"),
        (lambda: ApiKey(keys={digest_of("k"): "ada"}), "a Caller"),  # type: ignore[dict-item]
        (lambda: ApiKey(keys=["k"]), "a mapping from SHA-256"),  # type: ignore[arg-type]
        (lambda: ApiKey(cache_seconds=-1), "cache_seconds"),
        (lambda: ApiKey(cache_seconds=301), "cache_seconds"),
    ],
)
def test_a_mistake_is_refused_with_what_would_be_right(make: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        make()
    assert "'secret'" not in str(caught.value)
