"""JWTs: only tokens from the issuer for this agent are accepted."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from joserfc.jwk import OctKey, RSAKey

from parley.conformance.signing_keys import new_key, signed
from parley.model.errors import UnauthenticatedError
from parley.model.service import caller_of
from parley.security import Jwt, OpenIdConnect
from parley.security.authentication import Authenticator
from parley.security.schemes import oauth
from parley.security.schemes.scheme import CredentialsRefused, Scheme
from parley.testing import Issuer
from tests.security.tokens import Clock, at, bearing, verified

pytestmark = pytest.mark.anyio

ISSUER = "https://id.example"
KEY = new_key("ES256")
PUBLIC = KEY.as_dict(private=False)
SECRET = b"s" * 32


@pytest.fixture(scope="module")
def issuer() -> Any:
    with Issuer(audience="bank") as issuer:
        yield issuer


@pytest.fixture
async def scheme(issuer: Issuer) -> AsyncIterator[OpenIdConnect]:
    scheme = OpenIdConnect(issuer.url, audience="bank")
    yield scheme
    await scheme.close()


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    made = {"iss": ISSUER, "aud": "bank", "sub": "ada", "iat": now, "exp": now + 300} | changes
    return {name: value for name, value in made.items() if value is not None}


def made(*, header: dict[str, Any] | None = None, **changes: Any) -> str:
    head = {"alg": "ES256", "kid": KEY.kid, "typ": "at+jwt"} | (header or {})
    return signed({k: v for k, v in head.items() if v is not None}, claims(**changes), KEY)


def by_keys(**options: Any) -> Jwt:
    return Jwt(**{"issuer": ISSUER, "audience": "bank", "keys": PUBLIC, **options})


async def refusal(scheme: Scheme, token: str, **options: Any) -> str:
    with pytest.raises(CredentialsRefused) as caught:
        await verified(scheme, token, **options)
    assert token not in caught.value.reason + caught.value.description
    return caught.value.reason


# -- claims of a token ---------------------------------------------------------------------------


async def test_a_token_proves_user_application_and_scopes(
    issuer: Issuer, scheme: OpenIdConnect
) -> None:
    token = issuer.token("ada", client="shop", scope="read pay", claims={"email": "ada@x.example"})
    proof = await verified(scheme, token)
    caller = proof.caller
    assert (caller.id, caller.client, caller.issuer) == ("ada", "shop", issuer.url)
    assert caller.authenticated
    assert proof.scopes == caller.scopes == {"read", "pay"}
    assert caller.claims["email"] == "ada@x.example"


async def test_actors_are_who_acts_for_the_user(issuer: Issuer, scheme: OpenIdConnect) -> None:
    acting = {"sub": "travel", "act": {"sub": "hotel"}}
    proof = await verified(scheme, issuer.token(claims={"act": acting}))
    assert proof.caller.actors == ("travel", "hotel")
    for _ in range(20):
        acting = {"sub": "x", "act": acting}
    assert await refusal(scheme, issuer.token(claims={"act": acting})) == "too many actors"
    for wrong in ("travel", {}, {"sub": 7}, ["x"]):
        await refusal(scheme, issuer.token(claims={"act": wrong}))


@pytest.mark.parametrize(
    ("given", "scopes"),
    [
        ({"scope": "a b"}, {"a", "b"}),
        ({"scp": ["a", "b"]}, {"a", "b"}),
        ({"scp": "a b"}, {"a", "b"}),
        ({"scope": "a", "scp": ["b"]}, {"a", "b"}),
        ({"scp": [*map(str, range(500))]}, {*map(str, range(500))}),
        ({}, set()),
    ],
)
async def test_scopes_are_a_text_or_a_list(given: dict[str, Any], scopes: set[str]) -> None:
    assert (await verified(by_keys(), made(**given))).scopes == scopes


@pytest.mark.parametrize(
    ("given", "client"), [({"azp": "shop"}, "shop"), ({"client_id": "shop"}, "shop"), ({}, "")]
)
async def test_the_application_is_azp_or_client_id(given: dict[str, Any], client: str) -> None:
    assert (await verified(by_keys(), made(**given))).caller.client == client


@pytest.mark.parametrize(
    "given", [{"sub": None, "client_id": "ada"}, {"sub": None, "azp": "ada"}, {"client_id": "ada"}]
)
async def test_an_application_is_not_the_user_with_its_id(
    issuer: Issuer, scheme: OpenIdConnect, given: dict[str, Any]
) -> None:
    user = (await verified(scheme, issuer.token("ada", client="shop"))).caller
    application = (await verified(scheme, issuer.token("ada", client="", claims=given))).caller
    assert application.id == user.id
    assert application.is_application
    assert application.owner != user.owner
    assert caller_of(application.owner).is_application
    assert not caller_of(user.owner).is_application


@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"])
async def test_every_asymmetric_algorithm_is_accepted(
    issuer: Issuer, scheme: OpenIdConnect, alg: str
) -> None:
    assert (await verified(scheme, issuer.token("ada", alg=alg))).caller.id == "ada"


# -- attacks on the signature --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"alg": "none"}, "a signature algorithm that is not accepted"),
        ({"alg": "HS256"}, "a signature algorithm that is not accepted"),
        ({"forged": True}, "a wrong signature"),
        ({"forged": True, "alg": "RS256"}, "a wrong signature"),
        ({"header": {"kid": "unknown"}}, "an unknown signing key"),
        ({"header": {"kid": 7}}, "a malformed key id"),
        ({"header": {"crit": ["exp"]}}, "a JWT with critical headers"),
        ({"header": {"crit": []}}, "a JWT with critical headers"),
        ({"header": {"b64": False}}, "a JWT with critical headers"),
        ({"issuer": "https://evil.example"}, "a token of another issuer"),
        ({"claims": {"iss": None}}, "a token of another issuer"),
        ({"claims": {"iss": ["a"]}}, "a token of another issuer"),
        ({"audience": "hotel"}, "a token for another audience"),
        ({"audience": ["hotel", "shop"]}, "a token for another audience"),
        ({"claims": {"aud": None}}, "a token without an audience"),
        ({"claims": {"aud": {"bank": True}}}, "a token without an audience"),
        ({"expires_in": -61}, "an expired token"),
        ({"claims": {"exp": None}}, "a token without an expiry"),
        ({"claims": {"exp": "9999999999"}}, "a malformed exp"),
        ({"claims": {"exp": True}}, "a malformed exp"),
        ({"claims": {"exp": 1e300}}, "a malformed exp"),
        ({"skew": 120}, "a token that is not valid yet"),
        ({"claims": {"nbf": 9999999999}}, "a token that is not valid yet"),
        ({"claims": {"sub": None, "client_id": None}}, "a token without a subject"),
        ({"claims": {"sub": 7}}, "a malformed sub"),
        ({"claims": {"sub": "a\x1fb"}}, "a malformed sub"),
        ({"claims": {"sub": "a" * 600}}, "a malformed sub"),
        ({"claims": {"scope": 7}}, "malformed scopes"),
        ({"claims": {"scp": ["a", 7]}}, "malformed scopes"),
        ({"claims": {"scp": [*map(str, range(501))]}}, "too many scopes"),
        ({"typ": "id_token+jwt"}, "a JWT that is no access token"),
        ({"typ": "logout+jwt"}, "a JWT that is no access token"),
        ({"claims": {"cnf": {"jkt": "x"}}}, "a token that is bound to a key"),
        ({"payload": b"[]"}, "a JWT whose parts are not JSON objects"),
        ({"payload": b"x"}, "a JWT whose parts are not JSON, or have a member twice"),
    ],
)
async def test_a_wrong_token_is_refused(
    issuer: Issuer, scheme: OpenIdConnect, wrong: dict[str, Any], reason: str
) -> None:
    assert await refusal(scheme, issuer.token("ada", **wrong)) == reason


@pytest.mark.parametrize("header", ["jwk", "jku", "x5u", "x5c"])
async def test_a_key_that_the_token_brings_along_is_not_used(
    issuer: Issuer, scheme: OpenIdConnect, header: str
) -> None:
    key = new_key("ES256")
    brought: Any = {"jwk": key.as_dict(private=False), "x5c": ["MIIB"]}.get(header, f"{issuer.url}")
    head = {"alg": "ES256", "kid": key.kid, "typ": "at+jwt", header: brought}
    token = signed(head, claims(iss=issuer.url), key)
    assert await refusal(scheme, token) == "an unknown signing key"


async def test_a_public_key_is_never_a_secret() -> None:
    """The attacker may use any form of the key as the secret."""
    scheme = by_keys()
    head = {"alg": "HS256", "kid": KEY.kid, "typ": "at+jwt"}
    forms = [KEY.as_pem(private=False), KEY.as_der(private=False), json.dumps(PUBLIC).encode()]
    for secret in forms:
        assert "algorithm" in await refusal(scheme, signed(head, claims(), secret))


async def test_a_key_verifies_its_own_algorithms_only() -> None:
    key = new_key("RS256")
    jwk = {**key.as_dict(private=False), "alg": "RS256"}
    scheme = by_keys(keys=jwk)
    good = signed({"alg": "RS256", "kid": key.kid}, claims(), key)
    assert await verified(scheme, good)
    other = signed({"alg": "PS256", "kid": key.kid}, claims(), RSAKey.import_key(_bare(key)))
    assert await refusal(scheme, other) == "an unknown signing key"


def _bare(key: Any) -> Any:
    return {name: value for name, value in key.as_dict(private=True).items() if name != "alg"}


async def test_fewer_algorithms_can_be_pinned() -> None:
    scheme = by_keys(algorithms=["RS256"])
    assert "algorithm" in await refusal(scheme, made())


async def test_a_token_without_a_key_id_needs_a_key_without_choice() -> None:
    assert await verified(by_keys(), made(header={"kid": None}))
    several = [PUBLIC, new_key("ES256").as_dict(private=False)]
    scheme = by_keys(keys=several)
    assert await refusal(scheme, made(header={"kid": None})) == "an unknown signing key"


# -- attacks on the form -------------------------------------------------------------------------


def part(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "head",
    [
        '{"alg":"none","alg":"ES256"}',
        '{"alg":"ES256","kid":"a","kid":"b"}',
        '{"alg":["ES256"]}',
        '{"typ":"at+jwt"}',
        '{"alg":"None"}',
        '{"alg":"nOnE"}',
        '{"alg":""}',
        '{"alg":"ES256","typ":7}',
        "[" * 3000,
        '{"alg":NaN}',
        "",
        '"ES256"',
        b"\xff\xfe{\x00}\x00",
        '{"alg":"ES256","x":"\\ud800"}',
    ],
)
async def test_a_malformed_header_is_refused(head: str | bytes) -> None:
    _, body, signature = made().split(".")
    await refusal(by_keys(), f"{part(head)}.{body}.{signature}")


async def test_a_member_that_is_there_twice_is_refused() -> None:
    body = json.dumps(claims())[:-1] + ',"sub":"root"}'
    token = signed({"alg": "ES256", "kid": KEY.kid}, body.encode(), KEY)
    assert "twice" in await refusal(by_keys(), token)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("added", ["=", "==", "A", "!", "%3D", "\u00e9"])
async def test_a_token_has_one_spelling(place: int, added: str) -> None:
    parts = made().split(".")
    parts[place] += added
    await refusal(by_keys(), ".".join(parts))


async def test_unused_bits_of_a_signature_are_zero() -> None:
    token = made()
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = token[:-1] + letters[letters.index(token[-1]) ^ 1]
    assert base64.urlsafe_b64decode(other.split(".")[2] + "==") == base64.urlsafe_b64decode(
        token.split(".")[2] + "=="
    )
    await refusal(by_keys(), other)


@pytest.mark.parametrize(
    "token",
    ["x", "a.b", "a.b.c.d", "a.b.c.d.e", "..", "a..c", ".", "eyJ.eyJ.x", "." * 5000, "A" * 20_000],
)
async def test_what_is_no_jwt_is_refused(token: str) -> None:
    await refusal(by_keys(), token)


async def test_each_changed_character_is_noticed() -> None:
    token = made()
    scheme = by_keys()
    for place in range(0, len(token), 7):
        other = "A" if token[place] != "A" else "B"
        await refusal(scheme, token[:place] + other + token[place + 1 :])


@pytest.mark.parametrize("tokens", [(), ("", "")])
async def test_one_token_is_sent(tokens: tuple[str, ...]) -> None:
    with pytest.raises(CredentialsRefused):
        by_keys().verify(bearing(*tokens))
    with pytest.raises(CredentialsRefused, match="several"):
        by_keys().verify(bearing(made(), made()))


# -- ID tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signs",
    [
        {"nonce": "n"},
        {"at_hash": "h"},
        {"typ": "ID"},
        {"azp": "bank"},
        {"aud": ["bank"], "azp": "bank"},
    ],
)
async def test_an_id_token_is_no_access_token(signs: dict[str, Any]) -> None:
    token = made(header={"typ": "JWT"}, **signs)
    assert await refusal(by_keys(), token) == "an ID token in place of an access token"
    assert await verified(by_keys(accept_id_tokens=True), token)


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt", None])
async def test_access_tokens_have_one_of_two_types(typ: str | None) -> None:
    assert await verified(by_keys(), made(header={"typ": typ}, scope="read", azp="bank"))


# -- certificates --------------------------------------------------------------------------------


async def test_a_token_can_be_bound_to_a_certificate() -> None:
    pem = ssl.DER_cert_to_PEM_cert(b"a certificate")
    thumbprint = part(hashlib.sha256(b"a certificate").digest())
    token = made(cnf={"x5t#S256": thumbprint})
    scheme = by_keys()
    assert await verified(scheme, token, certificates=(pem,))
    other = ssl.DER_cert_to_PEM_cert(b"another one")
    for certificates in ((), (other,), (other, pem), ("broken",)):
        for asked in (scheme, by_keys()):  # with a cached token, and without
            assert "another certificate" in await refusal(asked, token, certificates=certificates)


# -- time and the cache --------------------------------------------------------------------------


async def test_leeway_bridges_clocks(issuer: Issuer) -> None:
    strict = OpenIdConnect(issuer.url, audience="bank", leeway=0)
    lenient = OpenIdConnect(issuer.url, audience="bank", leeway=30)
    for token in (issuer.token(expires_in=-10), issuer.token(skew=20)):
        await refusal(strict, token)
        assert await verified(lenient, token)
    await strict.close()
    await lenient.close()


async def test_a_cached_token_ends_with_its_time() -> None:
    clock = Clock(time.time())
    scheme = by_keys(leeway=0)
    await at(scheme, clock)
    token = made(exp=int(clock.now) + 100)
    await verified(scheme, token)
    assert not inspect.isawaitable(scheme.verify(bearing(token)))  # known by its hash
    clock.now += 101
    assert await refusal(scheme, token) == "an expired token"


async def test_a_verified_token_is_verified_again_after_a_while() -> None:
    clock = Clock(time.time())
    scheme = by_keys()
    await at(scheme, clock)
    token = made(exp=int(clock.now) + 3600)
    await verified(scheme, token)
    clock.now += 299
    assert not inspect.isawaitable(scheme.verify(bearing(token)))
    clock.now += 2
    again = scheme.verify(bearing(token))
    assert inspect.isawaitable(again)
    await again


async def test_refused_tokens_are_not_cached() -> None:
    scheme = by_keys()
    for _ in range(3):
        await refusal(scheme, made(aud="hotel"))
    assert len(scheme._verified) == 0


async def test_the_last_tokens_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "MAX_VERIFIED", 3)
    scheme = by_keys()
    made_ = [made(sub=f"user {number}") for number in range(5)]
    for token in made_:
        await verified(scheme, token)
        await verified(scheme, made_[0])
    assert len(scheme._verified) == 3
    assert not inspect.isawaitable(scheme.verify(bearing(made_[0])))  # the most recent use
    await verified(scheme, made_[1])


# -- keys of an operator -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        PUBLIC,
        [PUBLIC],
        {"keys": [PUBLIC]},
        KEY.as_pem(private=False),
        KEY.as_pem(private=False).decode(),
        KEY.as_dict(private=True),
    ],
)
async def test_keys_are_jwks_sets_and_pem(keys: Any) -> None:
    assert await verified(by_keys(keys=keys), made())


async def test_a_secret_verifies_hmac_and_nothing_else() -> None:
    scheme = by_keys(keys=SECRET)
    assert await verified(scheme, signed({"alg": "HS256"}, claims(), SECRET))
    assert await verified(scheme, signed({"alg": "HS512"}, claims(), SECRET))
    assert "algorithm" in await refusal(scheme, made())
    assert "algorithm" in await refusal(scheme, signed({"alg": "none"}, claims(), b""))
    named = OctKey.import_key(SECRET).as_dict(private=True)
    one = by_keys(keys={**named, "alg": "HS256"})
    assert "key" in await refusal(one, signed({"alg": "HS512"}, claims(), SECRET))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"issuer": ""}, "issuer="),
        ({"audience": ""}, "audience="),
        ({"audience": []}, "audience="),
        ({"keys": None}, "jwks_url="),
        ({"jwks_url": "https://id.example/jwks"}, "jwks_url="),
        ({"keys": None, "jwks_url": "http://id.example/jwks"}, "https"),
        ({"keys": None, "jwks_url": "file:///etc/passwd"}, "https"),
        ({"keys": None, "jwks_url": "https://a:b@id.example/"}, "password"),
        ({"keys": [PUBLIC, SECRET]}, "public keys or secrets"),
        ({"keys": b"short"}, "at least 32 bytes"),
        ({"keys": []}, "no key"),
        ({"keys": 7}, "a key is"),
        ({"keys": {"kty": "RSA", "n": "AQAB", "e": "AQAB"}}, "no public key"),
        ({"keys": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"}, "PEM"),
        ({"algorithms": ["none"]}, "'none' is not"),
        ({"algorithms": ["HS256"]}, "'HS256' is not"),
        ({"algorithms": "ES256"}, "a list"),
        ({"algorithms": []}, "algorithms="),
        ({"keys": SECRET, "algorithms": ["ES256"]}, "'ES256' is not"),
        ({"leeway": -1}, "leeway="),
        ({"leeway": 1e9}, "leeway="),
        ({"name": ""}, "name"),
    ],
)
def test_what_could_not_be_safe_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        by_keys(**options)
    assert "ssss" not in str(caught.value)


def test_a_secret_does_not_show() -> None:
    scheme = by_keys(keys=b"hunter2-" * 4)
    assert "hunter2" not in repr(scheme) + repr(vars(scheme)) + repr(vars(scheme._verifier))


def test_a_small_rsa_key_is_refused() -> None:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    weak = rsa.generate_private_key(65537, 1024).public_key()
    pem = weak.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(ValueError, match="2048"):
        by_keys(keys=pem)


async def test_a_token_that_several_schemes_refuse_is_one_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, other = by_keys(), by_keys(issuer="https://x.example")
    noted: list[str] = []
    for schemes in (own | other, other | own):
        authenticator = Authenticator([schemes])
        monkeypatch.setattr(
            authenticator.failures, "note", lambda *args, reason, **options: noted.append(reason)
        )
        with pytest.raises(UnauthenticatedError, match="expired"):
            await authenticator(bearing(made(exp=1)).scope)  # type: ignore[misc]
    assert noted == ["an expired token"] * 2


async def test_a_token_for_somebody_else_is_foreign() -> None:
    found = []
    for token in ("opaque", made(iss="https://x.example"), made(aud="hotel"), made(exp=1)):
        with pytest.raises(CredentialsRefused) as caught:
            await verified(by_keys(), token)
        found.append(caught.value.is_foreign)
    assert found == [True, True, True, False]
