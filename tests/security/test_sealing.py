"""Sealing: only the same key, purpose and context opens what was sealed."""

from __future__ import annotations

import pytest

from parley.security.sealing import SealBroken, Sealer, operator_key

KEY = b"k" * 32
SECRET = b"hush-0a1b2c"


def test_what_is_sealed_opens_again_and_never_looks_the_same() -> None:
    sealer = Sealer(KEY)
    first, second = (sealer.seal("a", SECRET, "task-1") for _ in range(2))
    assert first != second
    assert "hush" not in first
    assert Sealer(KEY).open("a", first, "task-1") == SECRET
    assert "k" * 8 not in repr(sealer)


@pytest.mark.parametrize(
    ("key", "purpose", "context"),
    [(b"q" * 32, "a", "task-1"), (KEY, "b", "task-1"), (KEY, "a", "task-2")],
)
def test_another_key_purpose_or_context_opens_nothing(
    key: bytes, purpose: str, context: str
) -> None:
    sealed = Sealer(KEY).seal("a", SECRET, "task-1")
    with pytest.raises(SealBroken):
        Sealer(key).open(purpose, sealed, context)


def test_each_changed_character_is_noticed() -> None:
    sealer = Sealer(KEY)
    sealed = sealer.seal("a", SECRET, "x")
    for at, char in enumerate(sealed):
        changed = sealed[:at] + ("A" if char != "A" else "B") + sealed[at + 1 :]
        with pytest.raises(SealBroken):
            sealer.open("a", changed, "x")
    for wrong in ("", "A", "=", "é", sealed + "A", sealed + "=", sealed[:-1], "A" * 300_000):
        with pytest.raises(SealBroken):
            sealer.open("a", wrong, "x")


def test_derived_bytes_belong_to_their_name() -> None:
    sealer = Sealer(KEY)
    assert sealer.derive("v", "one") == Sealer(KEY).derive("v", "one")
    assert sealer.derive("v", "one") != sealer.derive("v", "two")
    assert sealer.derive("v", "one") != sealer.derive("w", "one")


def test_a_short_key_is_refused_with_a_way_to_make_one() -> None:
    with pytest.raises(ValueError, match="token_urlsafe"):
        operator_key("short")
    with pytest.raises(ValueError, match="at least 32"):
        Sealer(b"short")
