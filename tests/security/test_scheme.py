"""Common behaviour of all security schemes, and tokens that are read as they were signed."""

from __future__ import annotations

import base64
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.errors import InvalidParamsError, UnauthenticatedError
from parley.model.service import ANONYMOUS, Caller
from parley.security import ApiKey, Basic, Bearer, Jwt, MutualTls, anonymous
from parley.security.api_keys import digest_of
from parley.security.authentication import Authenticator
from parley.security.authorization import Authorization
from parley.security.disclosure import listing_of
from parley.security.schemes.scheme import Proof, Scheme, caller_proved_by
from parley.security.sealing import MAX_TOKEN_LENGTH, TokenExpired, TokenInvalid, TokenSigner

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 513, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: ApiKey(name=name),
        lambda name: Basic({}, name=name),
        lambda name: Bearer(lambda token: None, name=name),
        lambda name: MutualTls(name=name),
        lambda name: Jwt(issuer="bank", audience="bank", keys=b"k" * 32, name=name),
    ],
)
def test_a_scheme_has_a_name_that_can_be_part_of_an_identity(
    make: Callable[[Any], object], name: Any
) -> None:
    with pytest.raises(ValueError, match="the name of a security scheme"):
        make(name)


def user_of(password: str) -> Basic:
    return Basic(lambda user, given: Caller(id=user) if given == password else None, name=password)


def key_of(key: str) -> ApiKey:
    return ApiKey(keys={digest_of(key): Caller(id="ada")}, name=key)


def request(name: bytes, value: bytes) -> dict[str, Any]:
    return {"type": "grpc", "headers": [(name, value)], "query_string": b"", "client": None}


async def identified(authenticator: Authenticator, asked: dict[str, Any]) -> Caller:
    found = authenticator(asked)
    return found if isinstance(found, Caller) else await found


def basic(password: bytes) -> bytes:
    return b"Basic " + base64.b64encode(b"ada:" + password)


@pytest.mark.parametrize(
    ("first", "second", "name", "value", "wrong"),
    [
        (user_of("a"), user_of("b"), b"authorization", basic(b"b"), basic(b"c")),
        (key_of("a"), key_of("b"), b"x-api-key", b"b", b"c"),
    ],
    ids=["basic", "key"],
)
async def test_one_of_the_schemes_that_read_a_credential_has_to_accept_it(
    first: Scheme, second: Scheme, name: bytes, value: bytes, wrong: bytes
) -> None:
    """Over gRPC the schemes of all agents are verified: the agent is known only later."""
    authenticator = Authenticator([first.security, second.security])
    caller = await identified(authenticator, request(name, value))
    assert (caller.id, caller.issuer, set(caller.granted)) == ("ada", "b", {second})
    with pytest.raises(UnauthenticatedError):
        await identified(authenticator, request(name, wrong))
    assert authenticator.failures.refused == 1


async def test_an_agent_knows_a_caller_by_its_own_schemes_alone() -> None:
    own = Bearer(lambda token: Caller(id="ada") if token == "both" else None)
    other = Bearer(lambda token: Caller(id="root", scopes=frozenset({"all"})))
    rules = Authorization(own | anonymous)
    authenticator = Authenticator([other.security, own.security])
    caller = await authenticator(request(b"authorization", b"Bearer both"))  # type: ignore[misc]
    assert (caller.id, caller.scopes) == ("root", {"all"})
    assert (rules.own_caller(caller).id, rules.own_caller(caller).scopes) == ("ada", frozenset())
    caller = await authenticator(request(b"authorization", b"Bearer other"))  # type: ignore[misc]
    assert rules.own_caller(caller) is ANONYMOUS


def test_two_credentials_of_different_people_prove_nobody() -> None:
    ada, bob = (Proof(Caller(id=id, authenticated=True)) for id in ("ada", "bob"))
    with pytest.raises(UnauthenticatedError):
        caller_proved_by({MutualTls(name="a"): ada, MutualTls(name="b"): bob})
    assert caller_proved_by({key_of("a"): ada, key_of("b"): bob}).id == "ada"  # one credential


def test_a_part_of_a_card_is_hidden_when_its_function_fails() -> None:
    def fails(caller: Caller) -> bool:
        raise InvalidParamsError("no")

    listings = [listing_of(listed, "it") for listed in (True, "extended", False, fails)]  # type: ignore[arg-type]
    assert [each.is_shown_to(ANONYMOUS) for each in listings] == [True, True, False, False]


# -- only a token exactly as signed is valid -------------------------------------------------------


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


@pytest.mark.slow
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


@pytest.mark.slow
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
    """A caller who cannot sign learns nothing, not even that the token has expired."""
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
