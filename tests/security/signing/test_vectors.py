"""Published vectors of signatures: RFC 7515, RFC 8037, RFC 6979."""

from __future__ import annotations

import base64

import pytest

from parley.security.key_sets import read_keys
from parley.security.signing.keys import decode, read_key

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
EC_SIGNATURE = (
    "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
)
# RFC 8037 appendix A.
ED = {
    "kty": "OKP",
    "crv": "Ed25519",
    "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
}
ED_INPUT = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"
ED_SIGNATURE = (
    "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
)


def test_es256_of_rfc_7515():
    (key,) = read_keys({"keys": [EC]})
    data = f"eyJhbGciOiJFUzI1NiJ9.{CLAIMS}".encode()
    assert key.verifies("ES256", data, decode(EC_SIGNATURE))
    assert not key.verifies("ES256", data + b"x", decode(EC_SIGNATURE))
    assert key.verifies("ES256", data, read_key(EC).sign(data))


def test_eddsa_of_rfc_8037():
    assert read_key(ED).sign(ED_INPUT) == decode(ED_SIGNATURE)
    (key,) = read_keys({"keys": [ED]})
    assert key.verifies("EdDSA", ED_INPUT, decode(ED_SIGNATURE))


def test_es256_is_deterministic_as_rfc_6979_says():
    """RFC 6979 appendix A.2.5: all replicas write the same card."""
    numbers = {
        "x": "60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6",
        "y": "7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299",
        "d": "C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721",
    }
    text = {
        name: base64.urlsafe_b64encode(bytes.fromhex(value)).rstrip(b"=").decode()
        for name, value in numbers.items()
    }
    expected = (
        "EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716"
        "F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8"
    )
    key = read_key({"kty": "EC", "crv": "P-256", **text})
    try:
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        ECDSA(SHA256(), deterministic_signing=True)
    except Exception as error:
        pytest.skip(f"not with this library: {error}")
    assert key.sign(b"sample") == bytes.fromhex(expected)


@pytest.mark.parametrize("text", ["a=", "a+b/", "AB", "é", "a b"])
def test_base64url_has_one_spelling(text):
    with pytest.raises(ValueError, match="base64url"):
        decode(text)
