"""Discovery: an issuer must match its document, which cannot redirect elsewhere."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from parley.model.errors import OverloadedError
from parley.security import ClientCredentialsOAuthFlow, Introspection, OAuth2, OpenIdConnect
from parley.security.egress import Egress
from parley.security.issuers import oauth_url, openid_url
from parley.security.outbound import RETRY_SECONDS, Fetcher, FetchFailed
from parley.security.schemes.scheme import CredentialsRefused
from parley.testing import Issuer
from tests.security.tokens import Clock, at, verified

pytestmark = pytest.mark.anyio

FLOW = ClientCredentialsOAuthFlow(token_url="https://id.example/token", scopes={"pay": "Pay"})
OTHER = "https://id.example"


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer(audience="bank") as issuer:
        yield issuer


@pytest.fixture
def clock() -> Clock:
    return Clock(time.time())


@pytest.mark.parametrize(
    ("issuer", "openid", "oauth"),
    [
        (
            "https://id.example",
            "https://id.example/.well-known/openid-configuration",
            "https://id.example/.well-known/oauth-authorization-server",
        ),
        (
            "https://id.example/realms/a/",
            "https://id.example/realms/a/.well-known/openid-configuration",
            "https://id.example/.well-known/oauth-authorization-server/realms/a",
        ),
    ],
)
def test_documents_have_their_places(issuer: str, openid: str, oauth: str) -> None:
    assert openid_url(issuer) == openid
    assert openid_url(openid) == openid
    assert oauth_url(issuer) == oauth


@pytest.mark.parametrize("said", ["https://evil.example", None, 7, ["x"]])
async def test_the_document_of_another_issuer_is_not_believed(
    issuer: Issuer, said: Any, clock: Clock
) -> None:
    issuer.lie("discovery", issuer=said)
    scheme = OpenIdConnect(issuer.url, audience="bank")
    await at(scheme, clock)
    with pytest.raises(OverloadedError):
        await verified(scheme, issuer.token("ada"))
    assert issuer.requests["jwks"] == 0
    issuer.recover()
    clock.now += RETRY_SECONDS + 1
    assert await verified(scheme, issuer.token("ada"))
    await scheme.close()


@pytest.mark.parametrize(
    "jwks_uri",
    [
        "http://id.example/jwks",
        "http://10.0.0.1/jwks",
        "https://10.0.0.1/jwks",
        "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:10.0.0.1]/jwks",
        "https://metadata.internal/jwks",
        "file:///etc/passwd",
        "https://user:password@id.example/jwks",
        "//id.example/jwks",
        "jwks",
        "",
        7,
    ],
)
async def test_a_document_does_not_lead_into_the_network(issuer: Issuer, jwks_uri: Any) -> None:
    issuer.lie("discovery", jwks_uri=jwks_uri)
    scheme = OpenIdConnect(issuer.url, audience="bank")
    with pytest.raises(OverloadedError):
        await verified(scheme, issuer.token("ada"))
    await scheme.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/jwks", "on this machine|not https"),
        ("http://localhost:1/jwks", "on this machine|not https"),
        ("https://127.0.0.1:1/jwks", "loopback address"),
        ("https://10.0.0.1/jwks", "private address"),
        ("https://169.254.169.254/", "link-local address"),
    ],
)
async def test_what_a_public_document_names_is_public(url: str, message: str) -> None:
    fetcher = Fetcher(Egress())
    with pytest.raises(FetchFailed, match=message):
        await fetcher.get(url, named_by=f"{OTHER}/.well-known/openid-configuration")
    await fetcher.close()


async def test_metadata_is_found_where_the_issuer_has_it(issuer: Issuer) -> None:
    scheme = OAuth2(FLOW, issuer=issuer.url, audience="bank")
    assert await verified(scheme, issuer.token("ada"))
    assert issuer.requests == {"metadata": 1, "jwks": 1}
    await scheme.close()
    issuer.requests.clear()
    issuer.fail("metadata", status=404)
    scheme = OAuth2(FLOW, issuer=issuer.url, audience="bank")
    assert await verified(scheme, issuer.token("ada"))
    assert issuer.requests == {"metadata": 1, "discovery": 1, "jwks": 1}
    await scheme.close()


async def test_a_metadata_address_replaces_the_well_known_ones(issuer: Issuer) -> None:
    url = f"{issuer.url}/.well-known/openid-configuration"
    scheme = OAuth2(FLOW, issuer=issuer.url, metadata_url=url, audience="bank")
    assert await verified(scheme, issuer.token("ada"))
    assert issuer.requests == {"discovery": 1, "jwks": 1}
    declared = scheme.declared().oauth2_security_scheme
    assert declared is not None
    assert declared.oauth2_metadata_url == url
    await scheme.close()


async def test_nothing_is_asked_before_the_first_token(issuer: Issuer, clock: Clock) -> None:
    scheme = OpenIdConnect(issuer.url, audience="bank")
    await at(scheme, clock)
    declared = scheme.declared().open_id_connect_security_scheme
    assert declared is not None
    assert declared.open_id_connect_url == f"{issuer.url}/.well-known/openid-configuration"
    with pytest.raises(CredentialsRefused):
        await verified(scheme, "no token")
    with pytest.raises(CredentialsRefused):
        await verified(scheme, issuer.token(issuer="https://evil.example"))
    assert not issuer.requests
    await scheme.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "issuer="),
        ({"issuer": "http://id.example"}, "https"),
        ({"issuer": OTHER, "metadata_url": "ftp://x"}, "https"),
        ({"issuer": OTHER, "jwks_url": "x"}, "https"),
        ({"issuer": OTHER, "audience": ""}, "audience="),
        ({"introspection": Introspection("a", "b")}, "issuer="),
        ({"introspection": Introspection("a", "b", OTHER), "keys": b"x" * 32}, "leave out"),
        ({"issuer": OTHER, "keys": b"x" * 32, "jwks_url": OTHER}, "not both"),
    ],
)
def test_what_could_not_be_verified_is_refused_at_once(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        OAuth2(FLOW, **{"audience": "bank", **options})


@pytest.mark.parametrize("url", ["http://id.example", "id.example", "", "https://", "https://a b"])
def test_an_issuer_has_an_https_address(url: str) -> None:
    with pytest.raises(ValueError, match="https address"):
        OpenIdConnect(url, audience="bank")


async def test_tokens_are_not_sent_to_a_private_address_that_a_document_names(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.lie("metadata", introspection_endpoint="https://10.0.0.1/introspect")
    asking = Introspection("service", "secret")
    scheme = OAuth2(FLOW, issuer=issuer.url, audience="bank", introspection=asking)
    with pytest.raises(OverloadedError):
        await verified(scheme, issuer.token("ada", opaque=True))
    assert "private address" in caplog.text
    await scheme.close()
