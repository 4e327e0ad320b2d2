"""Proofs of domains are kept for each caller."""

from __future__ import annotations

import pytest

from parley.registry.index.registry_index import CHALLENGE_KEPT_MS as KEPT_MS
from parley.registry.index.registry_index import RegistryIndex
from tests.registry.index.conftest import Clock

pytestmark = pytest.mark.anyio


async def test_a_challenge_is_of_one_caller_and_the_newest_counts(
    index: RegistryIndex, clock: Clock
) -> None:
    await index.put_challenge("example.com", "me", "t1", clock.now + 1)
    await index.put_challenge("example.com", "me", "t2", clock.now + 2)
    assert await index.challenge("example.com", "me") == ("t2", clock.now + 2)
    assert await index.challenge("example.com", "you") is None
    assert await index.challenge("other.example", "me") is None


async def test_challenges_that_ended_long_ago_are_removed(
    index: RegistryIndex, clock: Clock
) -> None:
    end = clock.now + 1
    await index.put_challenge("example.com", "me", "t", end)
    clock.now = end + KEPT_MS
    await index.put_challenge("other.example", "you", "t", clock.now)
    assert await index.challenge("example.com", "me") == ("t", end), "to say that it ended"
    clock.now += 1
    await index.put_challenge("other.example", "you", "t", clock.now)
    assert await index.challenge("example.com", "me") is None


async def test_claims_are_those_of_a_caller(index: RegistryIndex) -> None:
    await index.put_claim("b.example", "me", "dns", 5)
    await index.put_claim("a.example", "me", "well-known", 6)
    await index.put_claim("a.example", "you", "dns", 7)
    await index.put_claim("b.example", "me", "well-known", 8)
    assert await index.claims("me") == {"a.example": 6, "b.example": 8}
    assert await index.claims("you") == {"a.example": 7}
    assert await index.claims("\x00'; --") == {}
