"""Authorization: sources, signatures, targets and permissions, nonces, and attacks on them."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from msgspec.structs import replace

import parley
from parley import Agent
from parley.envelope.answers import response
from parley.envelope.binding import EnvelopeBinding
from parley.envelope.declared import EnvelopeSettings
from parley.envelope.messages import (
    MessageOutdated,
    MessageReplayed,
    ResponsePayload,
    SignatureInvalid,
    SignatureRequired,
    SourceMismatch,
    TargetNotFound,
)
from parley.envelope.server.guard import EnvelopeKeys, KnownCallers, sign_answer
from parley.envelope.signatures import EnvelopeKey, read_key, verify_signature
from parley.model.errors import (
    OverloadedError,
    PermissionDeniedError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from parley.model.service import ANONYMOUS, Caller
from parley.security.authorization import Authorization
from parley.security.failures import Failures
from parley.security.signing.keys import SigningKeys, new_key_set, write_key_set
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.errors import StoreUnavailable
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.tables import QUOTAS
from tests.server.envelope.guarded import (
    ADA,
    OTHERS,
    PRIVATE,
    SHARED,
    Clock,
    guard_of,
    message,
    received,
    security_of,
    signed,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock):
    store = MemoryTaskStore(clock=clock)
    await store.open(lambda records: None)
    yield store
    await store.close()


# -- source ------------------------------------------------------------------------------------


async def test_an_anonymous_caller_cannot_take_the_id_of_one_who_was_authenticated(store):
    known = KnownCallers()
    guard, other = guard_of(store, keys=None, known=known), guard_of(store, keys=None, known=known)
    guard.sender(ADA, "")
    for name in ("ada", "ada-app"):
        with pytest.raises(SourceMismatch):
            await other.admit(message(name), other.sender(ANONYMOUS, ""))
    assert await other.admit(message("visitor"), other.sender(ANONYMOUS, "")) is ANONYMOUS


async def test_an_anonymous_caller_cannot_take_the_id_of_one_who_has_credentials(store):
    async def is_registered(id: str) -> bool:
        return id == "eve"

    guard = guard_of(store, keys=None, known=KnownCallers(is_registered))
    with pytest.raises(SourceMismatch):
        await guard.admit(message("eve"), guard.sender(ANONYMOUS, ""))


async def test_the_ids_of_10_000_callers_are_remembered_and_no_more():
    known = KnownCallers()
    for number in range(10_001):
        known.note(Caller(id=f"c{number}", authenticated=True))
    assert not await known.has("c0")
    assert await known.has("c1")
    assert await known.has("c10000")


# -- signatures --------------------------------------------------------------------------------


async def test_where_signatures_are_required_a_stripped_one_is_refused(store):
    for settings in (
        EnvelopeSettings(signed=True),
        EnvelopeSettings(data_classification="restricted"),
    ):
        guard = guard_of(store, settings)
        stripped = replace(signed(store, SHARED), security=None)
        for caller in (ANONYMOUS, Caller(id="shop", authenticated=True)):
            with pytest.raises(SignatureRequired):
                await guard.admit(stripped, guard.sender(caller, ""))


async def test_a_signature_is_never_ignored(store):
    guard = guard_of(store, keys=None)
    with pytest.raises(SignatureInvalid, match="no keys"):
        await guard.admit(signed(store, SHARED), guard.sender(Caller(id="shop"), ""))


ALTERED = {
    "payload": {"action": "now", "parameters": {"zone": "CET"}},
    "target": {"agentId": "https://clock.example.com"},
    "messageId": "another",
    "timestamp": "2020-01-01T00:00:00Z",
    "message": {"type": "REQUEST", "priority": "urgent"},
    "invented": True,
}


@pytest.mark.parametrize("member", ALTERED)
async def test_no_member_can_be_altered(store, member):
    guard = guard_of(store)
    altered = received(signed(store, SHARED), **{member: ALTERED[member]})
    with pytest.raises(SignatureInvalid):
        await guard.admit(altered, guard.sender(ANONYMOUS, ""))


async def test_a_public_key_is_no_shared_secret(store):
    """The message names HMAC-SHA256, and is "signed" with the public key."""
    guard = guard_of(store)
    confused = EnvelopeKey(
        id="k2", owner="press", algorithm="HMAC-SHA256", material=PRIVATE.public.material
    )
    for claimed in ("HMAC-SHA256", ""):
        forged = signed(store, confused)
        forged = replace(forged, security=replace(security_of(forged), algorithm=claimed))
        with pytest.raises(SignatureInvalid):
            await guard.admit(forged, guard.sender(ANONYMOUS, ""))


async def test_a_message_is_admitted_once_however_it_comes_again(store, clock):
    first, second = guard_of(store), guard_of(store)
    sent = signed(store, SHARED)
    await first.admit(sent, first.sender(ANONYMOUS, ""))
    for guard in (first, second):
        with pytest.raises(MessageReplayed):
            await guard.admit(sent, guard.sender(ANONYMOUS, ""))
    clock.ms += 299_000
    with pytest.raises(MessageReplayed):
        await second.admit(sent, second.sender(ANONYMOUS, ""))
    clock.ms += 2_000
    with pytest.raises(MessageOutdated):
        await second.admit(sent, second.sender(ANONYMOUS, ""))
    # Nonces are pruned, but not before their messages expire.
    clock.ms += 700_000
    await second.admit(signed(store, SHARED), second.sender(ANONYMOUS, ""))
    assert len(store._shared.rows.scan(QUOTAS)) == 1
    with pytest.raises(MessageOutdated):
        await second.admit(sent, second.sender(ANONYMOUS, ""))


async def test_what_is_refused_burns_no_nonce(store):
    guard = guard_of(store)
    good = signed(store, SHARED)
    forged = received(good, invented=1)
    with pytest.raises(SignatureInvalid):
        await guard.admit(forged, guard.sender(ANONYMOUS, ""))
    await guard.admit(good, guard.sender(ANONYMOUS, ""))


async def test_without_nonces_no_signed_message_is_admitted(store, monkeypatch):
    guard = guard_of(store)

    async def fails(asks):
        raise StoreUnavailable("gone")

    monkeypatch.setattr(store, "take_quotas", fails)
    with pytest.raises(OverloadedError):
        await guard.admit(signed(store, SHARED), guard.sender(ANONYMOUS, ""))


async def test_guesses_are_counted_with_the_refused_credentials_of_an_address(store):
    guard = guard_of(store, failures=Failures(5))
    for _ in range(5):
        with pytest.raises(SignatureInvalid):
            await guard.admit(
                received(signed(store, SHARED), invented=1), guard.sender(ANONYMOUS, "192.0.2.1")
            )
    with pytest.raises(TooManyRequestsError):
        await guard.admit(signed(store, OTHERS), guard.sender(ANONYMOUS, "192.0.2.1"))
    await guard.admit(signed(store, SHARED), guard.sender(ANONYMOUS, "198.51.100.1"))


# -- targets -----------------------------------------------------------------------------------


async def test_a_message_for_another_agent_is_refused(store):
    guard = guard_of(store, keys=None)
    for target in ("", "clock", "https://clock.example.com/"):
        await guard.admit(message("visitor", target=target), guard.sender(ANONYMOUS, ""))
    with pytest.raises(TargetNotFound, match="'clock'"):
        await guard.admit(message("visitor", target="bank"), guard.sender(ANONYMOUS, ""))
    guard.is_reachable = lambda id: id == "bank"
    await guard.admit(message("visitor", target="bank"), guard.sender(ANONYMOUS, ""))


async def test_a_signed_message_names_its_target_so_that_nobody_passes_it_on(store):
    guard = guard_of(store)
    with pytest.raises(TargetNotFound, match="must name its target"):
        await guard.admit(
            signed(store, PRIVATE, message("press", target="")), guard.sender(ANONYMOUS, "")
        )


# -- permissions -------------------------------------------------------------------------------


async def test_permissions_are_needed_over_sockets_and_posts(store):
    rights = Authorization(permissions=("read",))
    guard = guard_of(store, authorization=rights, keys=None)
    reader = Caller(id="ada", authenticated=True, scopes=frozenset({"read", "more"}))
    for open_one in (guard.sender, lambda *who: guard.open_socket(*who).__enter__()):
        with pytest.raises(UnauthenticatedError):
            open_one(ANONYMOUS, "")
        with pytest.raises(PermissionDeniedError, match="scope read"):
            open_one(ADA, "")
        assert open_one(reader, "").caller is reader


async def test_a_signature_proves_who_but_grants_no_permission(store):
    internal = guard_of(store, authorization=Authorization(needs_identity=True))
    sender = internal.sender(ANONYMOUS, "")
    await internal.admit(signed(store, SHARED), sender)
    with pytest.raises(UnauthenticatedError):
        await internal.admit(message("visitor"), internal.sender(ANONYMOUS, ""))
    guard = guard_of(store, authorization=Authorization(permissions=("read",)))
    with pytest.raises(PermissionDeniedError):
        await guard.admit(signed(store, SHARED), guard.sender(ANONYMOUS, ""))


# -- sockets -----------------------------------------------------------------------------------


async def test_one_caller_takes_no_sockets_from_another(store):
    guard = guard_of(store, EnvelopeSettings(concurrent_connections=2), keys=None)
    eve = Caller(id="eve", authenticated=True)
    with guard.open_socket(ADA, "192.0.2.1"), guard.open_socket(ADA, "198.51.100.1"):
        with pytest.raises(TooManyRequestsError), guard.open_socket(ADA, "203.0.113.1"):
            pass
        with guard.open_socket(eve, "192.0.2.1"), guard.open_socket(ANONYMOUS, "192.0.2.1"):
            pass
    with guard.open_socket(ADA, "192.0.2.1"):
        pass
    with guard.open_socket(ANONYMOUS, "192.0.2.1"), guard.open_socket(ANONYMOUS, "192.0.2.1"):
        with pytest.raises(TooManyRequestsError), guard.open_socket(ANONYMOUS, "192.0.2.1"):
            pass
        with guard.open_socket(ANONYMOUS, "192.0.2.2"):
            pass


# -- answers -----------------------------------------------------------------------------------


async def test_answers_to_signed_messages_are_signed_by_the_server(store):
    keys = SigningKeys.parse(write_key_set(new_key_set(["ES256", "EdDSA"], 0)))
    guard = guard_of(store, signing_keys=keys)
    request = signed(store, SHARED)
    answer = response(request, ResponsePayload(status="success"), source=request.source)
    assert guard.sign(answer, message("visitor")).security is None
    assert guard_of(store).sign(answer, request).security is None
    sent = received(guard.sign(answer, request))
    key = next(key for key in keys.published["keys"] if key["alg"] == "EdDSA")
    verify_signature(sent, read_key(key, owner="clock"))


def clock_agent() -> Agent:
    agent = Agent("Clock")
    agent.skill(id="now")(lambda: "12:00")
    return agent


async def test_keys_that_their_owner_publishes_are_fetched(store):
    keys = SigningKeys.parse(write_key_set(new_key_set(["EdDSA"], 0)))
    async with serving(parley.asgi(clock_agent(), signing_keys=keys)) as url:
        published = EnvelopeKeys([{"owner": "bank", "jwks_uri": f"{url}/.well-known/jwks.json"}])
        try:
            key = keys.signers[0]
            found = await published.find("bank", key.kid)
            sent = received(sign_answer(message("bank"), key))
            verify_signature(sent, found)
            assert found.is_public
            assert await published.find("bank", "unknown") is None
            assert await published.find("shop", key.kid) is None
        finally:
            await published.close()


async def test_a_reload_reads_the_file_of_keys_at_once(tmp_path, caplog):
    def write(*owners: str) -> None:
        keys = [
            {
                "kty": "oct",
                "kid": "k1",
                "owner": owner,
                "k": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE",
            }
            for owner in owners
        ]
        path.write_text(json.dumps({"keys": keys}))
        path.chmod(0o600)

    path = tmp_path / "keys.json"
    write("shop")
    app = parley.asgi(clock_agent(), bindings=[EnvelopeBinding(keys=path)])
    with caplog.at_level(logging.INFO, "parley.server"):
        async with serving(app):
            write("shop", "press")
            await app.lifecycle.reload()
            await app.lifecycle.reload()
    said = [each.getMessage() for each in caplog.records if "reloaded" in each.getMessage()]
    assert said == ["reloaded: keys of press, shop", "reloaded: nothing has changed"]


# -- impersonation with data seen on the wire ------------------------------------------------------


@pytest.fixture
async def nonces():
    store = MemoryTaskStore(clock=Clock())
    await store.open(lambda records: None)
    yield store
    await store.close()


async def test_a_replayed_message_does_not_make_a_connection_its_signers(nonces):
    guard = guard_of(nonces)
    seen = signed(nonces, SHARED)
    await guard.admit(seen, guard.sender(ANONYMOUS, "192.0.2.1"))
    with guard.open_socket(ANONYMOUS, "192.0.2.66") as attacker:
        with pytest.raises(MessageReplayed):
            await guard.admit(seen, attacker)
        with pytest.raises(SignatureRequired):
            await guard.admit(message("shop"), attacker)


async def test_a_stranger_loses_an_id_once_somebody_proves_it(nonces):
    known = KnownCallers()
    guard = guard_of(nonces, known=known, keys=None)
    with guard.open_socket(ANONYMOUS, "192.0.2.66") as stranger:
        await guard.admit(message("ada"), stranger)
        await guard.admit(message("ada"), stranger)
        with guard.open_socket(ADA, "192.0.2.1") as ada:
            await guard.admit(message("ada"), ada)
            with pytest.raises(SourceMismatch):
                await guard.admit(message("ada"), stranger)
            await guard.admit(message("ada"), ada)


async def test_a_stranger_loses_an_id_once_its_owner_has_a_key(nonces, monkeypatch):
    guard = guard_of(nonces)
    owns = guard._signed.owns
    monkeypatch.setattr(guard._signed, "owns", lambda id: False)
    with guard.open_socket(ANONYMOUS, "192.0.2.66") as stranger:
        await guard.admit(message("shop"), stranger)
        monkeypatch.setattr(guard._signed, "owns", owns)
        with pytest.raises(SignatureRequired):
            await guard.admit(message("shop"), stranger)


# -- nonces in real stores: each message once, on every replica and after every restart ------------


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
