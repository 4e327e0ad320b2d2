"""Trusted and untrusted cards, and the reported reasons."""

from __future__ import annotations

import hashlib
import hmac

import msgspec
import pytest

from parley.security.key_sets import KeySet, read_keys
from parley.security.signing.canonical import canonical, exact, stripped
from parley.security.signing.cards import (
    MAX_VERIFIED_BYTES,
    CardUnverifiable,
    sign_card,
    signatures_of,
    verify,
)
from parley.security.signing.keys import SigningKeys, encode
from tests.security.signing.cards import LATEST, MERGED, OLD, keys_of, members, signature, signed
from tests.security.signing.key_sets import key_set, private_jwk

KEYS = keys_of()
KEY = KEYS.signers[0]


def trusted(keys: SigningKeys = KEYS) -> KeySet:
    return KeySet(read_keys(keys.published))


def reasons(card, keys=None, **options):
    verdict = verify(card, keys or trusted(), **options)
    assert not verdict.is_trusted
    assert verdict.members is None
    return [each.reason for each in verdict.signatures]


@pytest.mark.parametrize("alg", ["ES256", "RS256", "EdDSA"])
@pytest.mark.parametrize("card", [LATEST, MERGED, OLD], ids=["1.0", "merged", "0.3"])
def test_a_card_that_we_sign_is_trusted_as_a_whole(alg, card):
    keys = keys_of(alg)
    verdict = verify(sign_card(card, keys.signers, jku="https://a.example/jwks"), trusted(keys))
    assert verdict.is_trusted
    assert verdict.members == members(card)
    assert {each.jku for each in verdict.signatures} == {"https://a.example/jwks"}
    assert all(each.form for each in verdict.signatures)


def test_equal_forms_are_signed_once():
    card = members(LATEST)
    card = {
        **stripped(card),
        "description": "full",
        "skills": [{**card["skills"][0], "tags": ["t"]}],
    }
    assert exact(card) == stripped(card) == card
    assert (
        len(verify(sign_card(msgspec.json.encode(card), KEYS.signers), trusted()).signatures) == 1
    )


@pytest.mark.parametrize("form", [exact, stripped])
def test_a_signature_over_another_form_is_found_and_named(form):
    card = signed(members(MERGED), KEY, form(members(MERGED)))
    verdict = verify(card, trusted())
    assert verdict.form == form.__name__
    assert verdict.members == members(LATEST)


def test_a_card_without_signatures_is_not_trusted_and_says_so():
    for given in ({}, {"signatures": []}, {"signatures": None}):
        verdict = verify(msgspec.json.encode({**members(LATEST), **given}), trusted())
        assert not verdict.is_trusted
        assert str(verdict) == "the card has no signatures"


# -- attacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Other"},
        {"version": "2"},
        {"supportedInterfaces": []},
        {"securityRequirements": None, "securitySchemes": {}},
        {"provider": {"url": "https://evil.example", "organization": "Evil"}},
    ],
)
def test_a_changed_card_is_not_trusted(change):
    card = {**members(sign_card(MERGED, KEYS.signers)), **change}
    found = reasons(msgspec.json.encode(card))
    assert all("the card was changed" in reason for reason in found)


def test_members_that_are_wrapped_around_a_signed_card_are_not_among_the_trusted_ones():
    """A proxy points the 0.3 members to itself; the 1.0 members are unchanged and still signed."""
    card = members(sign_card(MERGED, KEYS.signers))
    card["url"] = "https://evil.example/"
    card["additionalInterfaces"] = [{"url": "https://evil.example/", "transport": "JSONRPC"}]
    card["securitySchemes"]["token"]["openIdConnectUrl"] = "https://evil.example/"
    card["supportedInterfaces"][0]["extra"] = "https://evil.example/"
    verdict = verify(msgspec.json.encode(card), trusted())
    assert verdict.form == "exact"
    assert verdict.members == members(LATEST)
    assert b"evil" not in msgspec.json.encode(verdict.members)


def test_a_member_that_is_there_twice_is_refused():
    card = sign_card(LATEST, KEYS.signers)
    for twice in (
        b'{"name":"Evil",' + card[1:],
        card[:-1] + b',"name":"Evil"}',
        card.replace(b'"protocolBinding"', b'"url":"https://evil.example","protocolBinding"'),
        card[:-1] + b',"signatures":[]}',
        card[:-1] + b',"na\\u006de":"Evil"}',
    ):
        with pytest.raises(CardUnverifiable, match="twice"):
            verify(twice, trusted())


def test_the_last_of_many_members_is_found_twice_in_one_pass():
    names = b",".join(b'"n%d":0' % number for number in range(120_000))
    with pytest.raises(CardUnverifiable, match="'n119999' twice"):  # all pairs would take minutes
        verify(b"{" + names + b',"n119999":0}', trusted())


def test_a_protected_header_with_a_member_twice_is_refused():
    protected = encode(b'{"alg":"ES256","kid":"other","kid":"%s"}' % KEY.kid.encode())
    data = f"{protected}.{encode(canonical(members(LATEST)))}".encode()
    card = {
        **members(LATEST),
        "signatures": [{"protected": protected, "signature": encode(KEY.sign(data))}],
    }
    assert "'kid' twice" in reasons(card)[0]


def test_a_card_signed_with_the_public_key_as_a_secret_is_not_trusted():
    """Key confusion: HMAC with a secret that is public."""
    from joserfc.jwk import import_key

    public = KEYS.published["keys"][0]
    for secret in (
        import_key(public).as_pem(private=False),
        msgspec.json.encode(public),
        public["x"].encode(),
    ):
        protected = encode(msgspec.json.encode({"alg": "HS256", "kid": KEY.kid, "typ": "JOSE"}))
        data = f"{protected}.{encode(canonical(members(LATEST)))}".encode()
        value = encode(hmac.digest(secret, data, hashlib.sha256))
        card = {**members(LATEST), "signatures": [{"protected": protected, "signature": value}]}
        assert "HS256 is not allowed" in reasons(card)[0]


@pytest.mark.parametrize("alg", ["none", "None", "HS256", "", "ES512", "es256", 7])
def test_an_algorithm_that_is_not_allowed_is_refused(alg):
    (found,) = reasons(signed(members(LATEST), KEY, alg=alg))
    assert "not allowed" in found or "alg of its protected header" in found


@pytest.mark.parametrize("alg", ["none", "HS256", "HS512", "A256KW"])
def test_an_allow_list_with_what_proves_nothing_is_refused(alg):
    with pytest.raises(ValueError, match="only who has a private key"):
        verify(LATEST, trusted(), [alg, "ES256"])
    with pytest.raises(ValueError, match="is empty"):
        verify(LATEST, trusted(), [])


def test_only_allowed_algorithms_count():
    card = sign_card(LATEST, KEYS.signers)
    assert "ES256 is not allowed: EdDSA" in reasons(card, algorithms=["EdDSA"])[0]


def test_a_key_verifies_only_its_own_kind_of_algorithm():
    rsa = keys_of("RS256", kid=KEY.kid)
    card = signed(members(LATEST), KEY)
    assert "is not one for ES256" in reasons(card, trusted(rsa))[0]


def test_a_signature_without_a_key_id_is_refused():
    assert "names no key" in reasons(signed(members(LATEST), KEY, kid=None))[0]
    assert "names no key" in reasons(signed(members(LATEST), KEY, kid=""))[0]


def test_a_key_that_is_not_trusted_counts_for_nothing():
    """An untrusted key with the id of a trusted key counts for nothing either."""
    other = keys_of().signers[0]
    assert "not among the trusted" in reasons(signed(members(LATEST), other))[0]
    assert "was changed" in reasons(signed(members(LATEST), other, kid=KEY.kid))[0]


def test_a_key_in_the_header_is_never_used():
    other = keys_of()
    header = {"jwk": other.published["keys"][0], "x5c": ["MII"], "kid": other.signers[0].kid}
    card = signed(members(LATEST), other.signers[0], **header)
    assert "not among the trusted" in reasons(card)[0]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"crit": ["exp"], "exp": 1}, "crit"),
        ({"crit": []}, "crit"),
        ({"b64": False}, "b64"),
        ({"typ": "at+jwt"}, "another type"),
        ({"typ": 5}, "another type"),
        ({"jku": ["https://a.example"]}, "jku of its protected header"),
        ({"jku": "https://a.example/" + "x" * 3000}, "jku of its protected header"),
        ({"x": "y" * 9000}, "too long"),
    ],
)
def test_a_header_that_is_not_understood_is_refused(header, reason):
    assert reason in reasons(signed(members(LATEST), KEY, **header))[0]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (7, "no object"),
        ({}, "not both texts"),
        ({"protected": "e30", "signature": 1}, "not both texts"),
        ({"protected": "e30", "signature": "x" * 3000}, "too long"),
        ({"protected": "e30=", "signature": "AA"}, "base64url"),
        ({"protected": "W10", "signature": "AA"}, "not a JSON object"),
        ({"protected": "e30", "signature": "AA"}, "not allowed"),
        ({"protected": encode(b"{" + b'"a":{' * 2000), "signature": "AA"}, ""),
    ],
)
def test_a_malformed_signature_is_refused_and_the_others_still_count(given, reason):
    good = signature(canonical(members(LATEST)), KEY)
    card = msgspec.json.encode({**members(LATEST), "signatures": [given, good]})
    verdict = verify(card, trusted())
    assert verdict.is_trusted
    assert reason in verdict.signatures[0].reason
    assert verdict.signatures[0].reason
    assert [each.number for each in verdict.verified] == [2]


def test_an_unprotected_header_cannot_repeat_the_protected_one():
    card = members(signed(members(LATEST), KEY))
    card["signatures"][0]["header"] = {"note": "fine"}
    assert verify(card, trusted()).is_trusted
    card["signatures"][0]["header"] = {"kid": "other"}
    assert "repeats kid" in reasons(card)[0]


def test_sizes_are_limited():
    with pytest.raises(CardUnverifiable, match="at most"):
        verify(LATEST + b" " * MAX_VERIFIED_BYTES, trusted())
    many = {**members(LATEST), "signatures": [{}] * 33}
    with pytest.raises(CardUnverifiable, match="33 signatures"):
        verify(many, trusted())
    with pytest.raises(CardUnverifiable, match="no list"):
        verify({**members(LATEST), "signatures": {}}, trusted())


@pytest.mark.parametrize(
    "card",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":NaN}',
        b'{"a":"\xff"}',
        b"{" + b'"a":{' * 100_000,
        b'{"a":' + b"1" * 5000 + b"}",
    ],
)
def test_what_is_no_card_cannot_be_verified(card):
    with pytest.raises(CardUnverifiable):
        verify(card, trusted())


@pytest.mark.parametrize("number", ["1e400", "9007199254740993", '"\\ud800"'])
def test_a_card_without_a_canonical_form_is_not_trusted(number):
    card = sign_card(LATEST, KEYS.signers)[:-1] + b',"x":%s}' % number.encode()
    verdict = verify(card, trusted())
    assert verdict.form == "exact"  # added members are unsigned, and not among the trusted members
    assert "x" not in verdict.members
    changed = msgspec.json.encode({**members(card[: card.rfind(b',"x"')] + b"}"), "name": "E"})
    found = reasons(changed[:-1] + b',"x":%s}' % number.encode())
    assert all("no canonical form" in reason for reason in found)


def test_a_card_that_is_nested_too_deeply_is_not_trusted():
    deep = {"a": 1}
    for _ in range(5000):
        deep = {"a": deep}
    card = members(sign_card(LATEST, KEYS.signers))
    card["capabilities"]["extensions"][0]["params"] = deep
    assert all("too deeply" in reason for reason in reasons(card))


@pytest.mark.parametrize("depth", [600, 900, 1500])
def test_a_card_that_is_nested_too_deeply_is_not_signed(depth):
    nested = b"[" * depth + b"1" + b"]" * depth
    extension = b'{"uri":"urn:deep","params":{"a":%s}}' % nested
    card = b'{"supportedInterfaces":[],"capabilities":{"extensions":[%s]}}' % extension
    with pytest.raises(ValueError, match="too deeply"):
        sign_card(card, KEYS.signers)


# -- keys --------------------------------------------------------------------------------------


def test_keys_may_depend_on_the_signature():
    asked = []

    def find(given):
        asked.append((given.kid, given.jku))
        return trusted() if given.jku == "https://a.example/jwks" else "its jku is not trusted"

    one = signed(members(LATEST), KEY, jku="https://evil.example")
    two = signature(canonical(members(LATEST)), KEY, jku="https://a.example/jwks")
    card = members(one)
    card["signatures"].append(two)
    verdict = verify(card, find)
    assert verdict.is_trusted
    assert verdict.signatures[0].reason == "its jku is not trusted"
    assert asked == [(KEY.kid, "https://evil.example"), (KEY.kid, "https://a.example/jwks")]
    assert [each.jku for each in signatures_of(card)] == [jku for _, jku in asked]


def test_a_card_stays_trusted_while_keys_rotate():
    old, new, next_ = (private_jwk(kid=kid) for kid in ("old", "new", "next"))
    before = SigningKeys.parse(key_set(old, {**new, "state": "next"}))
    after = SigningKeys.parse(
        key_set({**old, "state": "previous"}, new, {**next_, "state": "next"})
    )
    signed_before = sign_card(LATEST, before.signers)
    signed_after = sign_card(LATEST, after.signers)
    assert verify(signed_before, trusted(after)).is_trusted
    assert verify(signed_after, trusted(before)).is_trusted  # an attacker with the previous keys


def test_several_signatures_of_several_keys():
    both = keys_of("ES256", "EdDSA")
    card = sign_card(LATEST, both.signers)
    for key in both.published["keys"]:
        verdict = verify(card, KeySet(read_keys({"keys": [key]})))
        assert verdict.is_trusted
        assert {each.kid for each in verdict.verified} == {key["kid"]}


def test_signatures_that_a_card_has_are_kept():
    first, second = keys_of(), keys_of("EdDSA")
    card = sign_card(sign_card(LATEST, first.signers), second.signers)
    assert verify(card, trusted(first)).is_trusted
    assert verify(card, trusted(second)).is_trusted
    assert len(members(card)["signatures"]) == 4


def test_a_verdict_says_for_each_signature_what_became_of_it():
    other = keys_of().signers[0]
    card = members(signed(members(LATEST), other))
    card["signatures"].append(signature(canonical(members(LATEST)), KEY))
    lines = str(verify(card, trusted())).splitlines()
    assert f"signature 1 (ES256, key {other.kid}): the key" in lines[0]
    assert lines[1] == f"signature 2 (ES256, key {KEY.kid}): verified, the exact form is signed"
