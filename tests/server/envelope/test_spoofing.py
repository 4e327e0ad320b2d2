"""Attempts to be somebody else with what was seen on the wire."""

from __future__ import annotations

import pytest
from msgspec import Raw
from msgspec.structs import replace

from parley.envelope.messages import (
    MessageReplayed,
    SignatureRequired,
    SourceMismatch,
    TargetNotFound,
)
from parley.envelope.server.guard import KnownCallers
from parley.model.service import ANONYMOUS
from parley.store.memory import MemoryTaskStore
from tests.server.envelope.guarded import ADA, SHARED, Clock, guard_of, message, signed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store():
    store = MemoryTaskStore(clock=Clock())
    await store.open(lambda records: None)
    yield store
    await store.close()


async def test_a_replayed_message_does_not_make_a_connection_its_signers(store):
    guard = guard_of(store)
    seen = signed(store, SHARED)
    await guard.admit(seen, guard.sender(ANONYMOUS, "192.0.2.1"))
    with guard.open_socket(ANONYMOUS, "192.0.2.66") as attacker:
        with pytest.raises(MessageReplayed):
            await guard.admit(seen, attacker)
        with pytest.raises(SignatureRequired):
            await guard.admit(message("shop"), attacker)


async def test_a_message_to_another_agent_does_not_make_a_connection_its_signers(store):
    guard = guard_of(store)
    elsewhere = signed(store, SHARED, message("shop", target="another"))
    with guard.open_socket(ANONYMOUS, "192.0.2.66") as attacker:
        with pytest.raises(TargetNotFound):
            await guard.admit(elsewhere, attacker)
        with pytest.raises(SignatureRequired):
            await guard.admit(message("shop"), attacker)


async def test_a_signed_message_of_any_type_cannot_be_passed_on_to_another_agent(store):
    guard = guard_of(store, is_reachable=lambda id: True)
    for target in ("", "another"):
        sent = message("shop", target=target)
        sent = replace(sent, message=replace(sent.message, type="INVENTORY"), payload=Raw(b"{}"))
        with pytest.raises(TargetNotFound):
            await guard.admit(signed(store, SHARED, sent), guard.sender(ANONYMOUS, ""))


async def test_a_stranger_loses_an_id_once_somebody_proves_it(store):
    known = KnownCallers()
    guard = guard_of(store, known=known, keys=None)
    with guard.open_socket(ANONYMOUS, "192.0.2.66") as stranger:
        await guard.admit(message("ada"), stranger)
        await guard.admit(message("ada"), stranger)
        with guard.open_socket(ADA, "192.0.2.1") as ada:
            await guard.admit(message("ada"), ada)
            with pytest.raises(SourceMismatch):
                await guard.admit(message("ada"), stranger)
            await guard.admit(message("ada"), ada)


async def test_a_stranger_loses_an_id_once_its_owner_has_a_key(store, monkeypatch):
    guard = guard_of(store)
    owns = guard._signed.owns
    monkeypatch.setattr(guard._signed, "owns", lambda id: False)
    with guard.open_socket(ANONYMOUS, "192.0.2.66") as stranger:
        await guard.admit(message("shop"), stranger)
        monkeypatch.setattr(guard._signed, "owns", owns)
        with pytest.raises(SignatureRequired):
            await guard.admit(message("shop"), stranger)
