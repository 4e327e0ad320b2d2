"""Each kind of credentials is verified again on its open streams and sockets."""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable
from typing import Any

import pytest

from parley.model.errors import OverloadedError
from parley.model.service import Caller
from parley.security import ApiKey, Basic, Bearer, MutualTls
from parley.security.authentication import Authenticator
from parley.security.evidence import SchemeResources
from parley.security.failures import Failures
from parley.security.schemes.api_key import create_key
from parley.security.schemes.scheme import Scheme
from parley.server.http.open_credentials import (
    CredentialsExpired,
    CredentialWatch,
    OpenCredentials,
    open_credentials,
)
from parley.store.memory.store import MemoryTaskStore
from tests.kit.certificates import Authority
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

LET_IN = "Basic " + base64.b64encode(b"ada:secret").decode()


class World:
    """A server's clock, store and failures, and the credentials of one request to it."""

    def __init__(self) -> None:
        self.seconds = float(int(time.time()))
        self.store = MemoryTaskStore(clock=lambda: round(self.seconds * 1000))
        self.failures = Failures(2)

    def scope(self, headers: dict[str, str], **extensions: Any) -> dict[str, Any]:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        client = ("203.0.113.9", 1)
        return {
            "type": "http", "headers": raw, "query_string": b"", "client": client,
            "extensions": extensions,
        }  # fmt: skip

    async def opened(self, scheme: Scheme, scope: dict[str, Any]) -> OpenCredentials:
        resources = SchemeResources(
            store=self.store, now=lambda: self.seconds, failures=self.failures
        )
        await scheme.start(resources)
        identify = Authenticator([scheme.security], resources)
        caller = await done(identify(scope))
        found = open_credentials(identify, scope, caller)
        assert found is not None
        assert (await done(found.judge())).id == caller.id
        return found


async def done(found: Caller | Awaitable[Caller]) -> Caller:
    return found if isinstance(found, Caller) else await found


async def ended(credentials: OpenCredentials) -> str:
    with pytest.raises(CredentialsExpired) as refused:
        await done(credentials.judge())
    return refused.value.message


async def test_a_stored_key_ends_when_it_expires_and_when_it_is_revoked() -> None:
    world = World()
    await world.store.open(lambda records: None)
    key, _ = await create_key(world.store, owner="ada", expires_in=60)
    other, record = await create_key(world.store, owner="ada")
    scheme = ApiKey()
    expiring, revoked = [
        await world.opened(scheme, world.scope({"x-api-key": each})) for each in (key, other)
    ]
    world.seconds += 59
    assert (await done(expiring.judge())).id == "ada"
    world.seconds += 1
    assert "expired" in await ended(expiring)
    await world.store.end_api_key(record.id, revoked_at=world.store.now())
    assert "revoked" in await ended(revoked)


async def test_a_password_ends_when_it_is_changed() -> None:
    world, passwords = World(), {"ada": "secret"}
    scheme = Basic(
        lambda user, given: Caller(id=user) if passwords[user] == given else None, cache_seconds=30
    )
    opened = await world.opened(scheme, world.scope({"authorization": LET_IN}))
    passwords["ada"] = "another"
    world.seconds += 30
    await ended(opened)


async def test_a_certificate_ends_with_its_time() -> None:
    world = World()
    shop = Authority("Test authority").caller("shop", dns=("shop.example.org",))
    opened = await world.opened(MutualTls(), world.scope({}, tls={"client_cert_chain": [shop.pem]}))
    world.seconds += 1000 * 365 * 86400
    assert "expired" in await ended(opened)


async def test_failures_of_others_from_its_address_end_nothing_and_hide_nothing() -> None:
    world, valid = World(), {"token"}
    scheme = Bearer(lambda text: Caller(id="ada") if text in valid else None)
    opened = await world.opened(scheme, world.scope({"authorization": "Bearer token"}))
    for _ in range(3):
        world.failures.note(opened._scope)
    assert (await done(opened.judge())).id == "ada"
    valid.clear()
    await ended(opened)


@pytest.mark.slow
async def test_what_is_open_stays_open_while_it_cannot_be_judged() -> None:
    failures: list[Exception] = []
    told: list[CredentialsExpired] = []

    def judge(text: str) -> Caller | None:
        if failures:
            raise failures.pop()
        return Caller(id="ada")

    bearing = World().scope({"authorization": "Bearer token"})
    opened = await World().opened(Bearer(judge), bearing)
    failures += [OverloadedError("later"), ValueError("a bug")]
    watch = CredentialWatch()
    watch.add(opened, told.append)
    await until(lambda: not failures, 10)
    assert not told
    watch.remove(opened)
