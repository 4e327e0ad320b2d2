"""What reads certificates from proxies, and what looks for secrets in cards."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from urllib.parse import quote

from parley.security import MutualTls
from parley.security.evidence import Evidence
from parley.security.exposed_secrets import kind_of
from parley.security.schemes.scheme import CredentialsRefused
from tests.kit.certificates import Authority, Pair

XFCC, CLIENT_CERT = b"x-forwarded-client-cert", b"client-cert"

SCHEMES = {
    name: MutualTls(proxy_header=name.decode(), trusted_proxies=["10.0.0.0/8"])
    for name in (XFCC, CLIENT_CERT)
}


@cache
def _pair() -> Pair:
    return Authority().caller("ada", uris=("spiffe://example.org/ada",), dns=("ada.example",))


def certificates(data: bytes) -> None:
    """A header names a caller that can own tasks, or is refused."""
    for name, scheme in SCHEMES.items():
        scope = {"headers": [(name, data)], "client": ("10.0.0.1", 1), "query_string": b""}
        try:
            caller = scheme.verify(Evidence(scope)).caller
        except CredentialsRefused as refused:
            assert len(refused.description) < 200
        else:
            assert caller.authenticated
            assert caller.id
            assert caller.issuer
            assert "\x1f" not in caller.owner.removesuffix("\x1f").partition("\x1f")[2]


def certificate_seeds() -> Iterable[bytes]:
    pair = _pair()
    yield b":" + b64encode(pair.der) + b":"
    yield f'By=a;Hash={pair.fingerprint};Cert="{quote(pair.pem)}"'.encode()
    yield b'Subject="CN=a\\\\, b,O=\\"c\\"";URI=spiffe://a/b;DNS=a.example,URI=urn:x:y'
    yield f"Hash={pair.fingerprint};Subject=CN=a".encode()


def secrets(data: bytes) -> None:
    """Any text is looked through."""
    text = data.decode("utf-8", "replace")
    assert isinstance(kind_of(text, is_free=True), str)


def secret_seeds() -> Iterable[bytes]:
    yield b"https://me:secret@example.com/?token=abc Bearer abcdef0123456789abcdef"
    yield b"password=hunter2hunter2 eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc"
    yield b"-----BEGIN RSA PRIVATE KEY----- 9f86d081884c7d659a2feaa0c55ad015"
