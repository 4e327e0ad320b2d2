"""A token is read back as it was signed, and nothing else is."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.security.sealing import MAX_TOKEN_LENGTH, TokenExpired, TokenInvalid, TokenSigner

KEY = bytes(range(32))
SIGNER = TokenSigner(KEY)
IN_URLS = frozenset(string.ascii_letters + string.digits + "-_.")

texts = st.text(max_size=40)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
claims = st.dictionaries(texts, json, max_size=4)


@given(texts, claims, st.none() | st.integers(1, 2**40))
def test_a_token_gives_back_its_claims_until_it_expires(
    purpose: str, claims: dict[str, Any], expires_at: int | None
) -> None:
    token = SIGNER.sign(purpose, claims, expires_at)
    assert SIGNER.read(purpose, token, 0) == claims
    assert set(token) <= IN_URLS
    if expires_at is None:
        assert SIGNER.read(purpose, token, 2**60) == claims
    else:
        assert SIGNER.read(purpose, token, expires_at - 0.001) == claims
        for late in (expires_at, expires_at + 1, 2**60):
            with pytest.raises(TokenExpired):
                SIGNER.read(purpose, token, late)


def test_another_process_with_the_same_key_reads_it() -> None:
    assert TokenSigner(KEY).read("a", SIGNER.sign("a", {"x": 1}), 0) == {"x": 1}


@given(texts, texts)
def test_a_token_for_one_purpose_is_invalid_for_another(one: str, other: str) -> None:
    token = SIGNER.sign(one, {"x": 1})
    if one == other:
        assert SIGNER.read(other, token, 0) == {"x": 1}
    else:
        with pytest.raises(TokenInvalid):
            SIGNER.read(other, token, 0)


@given(st.binary(min_size=16, max_size=64).filter(lambda key: key != KEY))
def test_a_token_of_another_key_is_invalid(key: bytes) -> None:
    with pytest.raises(TokenInvalid):
        SIGNER.read("a", TokenSigner(key).sign("a", {"x": 1}), 0)


@given(st.data(), claims)
def test_a_changed_token_is_invalid_wherever_it_was_changed(
    data: st.DataObject, claims: dict[str, Any]
) -> None:
    token = SIGNER.sign("a", claims, 100)
    place = data.draw(st.integers(0, len(token) - 1))
    character = data.draw(st.characters())
    changed = token[:place] + character + token[place + 1 :]
    if changed != token:
        with pytest.raises(TokenInvalid):
            SIGNER.read("a", changed, 0)
    inserted = token[:place] + character + token[place:]
    with pytest.raises(TokenInvalid):
        SIGNER.read("a", inserted, 0)


def test_every_truncated_token_is_invalid() -> None:
    token = SIGNER.sign("a", {"x": [1, 2, 3]}, 100)
    for end in range(len(token)):
        with pytest.raises(TokenInvalid):
            SIGNER.read("a", token[:end], 0)


@given(st.text() | st.text(alphabet=sorted(IN_URLS)))
def test_what_is_no_token_is_invalid(text: str) -> None:
    with pytest.raises(TokenInvalid):
        SIGNER.read("a", text, 0)


def test_a_changed_token_is_invalid_also_when_it_is_expired() -> None:
    """Whoever cannot sign learns nothing, not even that a time is over."""
    token = SIGNER.sign("a", {}, 1)
    with pytest.raises(TokenExpired):
        SIGNER.read("a", token, 2)
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    with pytest.raises(TokenInvalid) as raised:
        SIGNER.read("a", changed, 2)
    assert not isinstance(raised.value, TokenExpired)


def test_another_spelling_of_a_signature_is_invalid() -> None:
    """Base64 has several spellings of the same bytes; a token has one."""
    token = SIGNER.sign("a", {})
    for changed in (token + "=", token + "\n", token[:-3] + "!" + token[-3:], token + "."):
        with pytest.raises(TokenInvalid):
            SIGNER.read("a", changed, 0)


def test_a_huge_token_is_neither_made_nor_looked_at() -> None:
    noise = "".join(chr(0x4E00 + (index * 7919) % 20000) for index in range(MAX_TOKEN_LENGTH))
    with pytest.raises(ValueError, match="at most 4096 characters"):
        SIGNER.sign("a", {"x": noise})
    with pytest.raises(TokenInvalid):
        SIGNER.read("a", "a" * 50_000_000, 0)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, float("nan"), float("inf"), object()])
def test_claims_that_are_not_json_are_refused(value: object) -> None:
    with pytest.raises(ValueError):
        SIGNER.sign("a", {"x": value})


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes, not 3"):
        TokenSigner(b"key")
