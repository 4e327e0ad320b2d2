"""Canonical JSON, the forms of a card, and published vectors of signatures."""

from __future__ import annotations

import json
import struct

import pytest

from parley.security.signing.canonical import NotCanonical, canonical, exact, received, stripped
from parley.security.signing.keys import decode
from tests.security.signing.cards import LATEST, members


def test_the_example_of_rfc_8785():
    """RFC 8785 §3.2.2 to §3.2.4."""
    given = (
        '{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
        '"string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/",'
        '"literals": [null, true, false]}'
    )
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(json.loads(given)) == expected.encode()


def test_members_are_sorted_as_utf_16():
    """RFC 8785 §3.2.3: an emoji is before U+FB33, whose code point is smaller."""
    given = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    order = ["Carriage", "One", "Control", "Latin", "Euro", "Emoji", "Hebrew"]
    text = canonical(given).decode()
    assert sorted(order, key=text.index) == order


NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "becbf647612f3696": "-0.0000033333333333333333",
}


@pytest.mark.parametrize("bits", NUMBERS)
def test_numbers_are_written_as_ecmascript_writes_them(bits):
    """RFC 8785 appendix B."""
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value) == NUMBERS[bits].encode()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 2**53, "\ud800", {"\udc00": 1}])
def test_what_has_no_canonical_form_is_refused(value):
    with pytest.raises(NotCanonical):
        canonical(value)


def test_depth_is_limited():
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(NotCanonical, match="too deeply"):
        canonical(value)


def test_signatures_are_in_no_form():
    card = {**members(LATEST), "signatures": [{"protected": "a", "signature": "b"}]}
    assert all("signatures" not in form(card) for form in (exact, received, stripped))


def test_members_of_a_wrong_kind_stay_as_they_are():
    given = {**members(LATEST), "skills": "none", "capabilities": [1], "securitySchemes": [7]}
    found = exact(given)
    assert (found["skills"], found["capabilities"]) == ("none", [1])
    assert found["securitySchemes"] == [7]


# -- published signature vectors: RFC 7515, RFC 8037, RFC 6979 -------------------------------------


# RFC 7515 appendix A.2 and A.3: both sign the same claims.
CLAIMS = (
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
)
EC = {
    "kty": "EC",
    "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    "d": "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI",
}
# RFC 8037 appendix A.


@pytest.mark.parametrize("text", ["a=", "a+b/", "AB", "é", "a b"])
def test_base64url_has_one_spelling(text):
    with pytest.raises(ValueError, match="base64url"):
        decode(text)
