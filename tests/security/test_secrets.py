"""Secrets: found in texts, redacted in logs, sealed; and hosts of this machine."""

from __future__ import annotations

import json

import pytest

from parley.security import ApiKey
from parley.security.exposed_secrets import exposed, kind_of, plain_urls, without_credentials
from parley.security.networks import is_loopback
from parley.security.sealing import SealBroken, Sealer, operator_key

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
RANDOM = "Zk3vQ9xT7mB2nL8wR5yU1pJ6"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "a private key"),
        ("-----BEGIN RSA PRIVATE KEY-----", "a private key"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "a private key"),
        (f"send {JWT} with it", "a JSON Web Token"),
        ("postgres://user:hunter2@db/agents", "a password in a URL"),
        ("https://:hunter2@example.com/", "a password in a URL"),
        ("https://example.com/rpc?api_key=12345", "a credential in the query of a URL"),
        ("https://example.com/a?b=1&token=x", "a credential in the query of a URL"),
        ("AKIAIOSFODNN7EXAMPLE", "an AWS access key"),
        ("ghp_" + "a1B2" * 9, "a GitHub token"),
        ("glpat-abcdefghij0123456789", "a GitLab token"),
        ("xoxb-1234567890-abcdef", "a Slack token"),
        ("AIza" + "Sy1_" * 8 + "abc", "a Google API key"),
        ("sk_live_" + "a1" * 12, "a Stripe key"),
        ("sk-ant-api03-" + "a1B2c3" * 4, "an API key"),
        ("hf_" + "aB3" * 11, "a Hugging Face token"),
        ("Authorization: Bearer abcdef0123456789abcdef", "credentials of HTTP"),
        ("password: hunter2hunter2", "a password or key"),
        ("set API_KEY=abc12345xyz first", "a password or key"),
    ],
)
def test_credentials_are_known_by_their_form(text, kind):
    assert kind_of(text) == kind


@pytest.mark.parametrize(
    "text", [RANDOM, f"the key is {RANDOM}.", "9f86d081884c7d659a2feaa0c55ad015"]
)
def test_random_values_count_where_authors_write_freely(text):
    assert kind_of(text, is_free=True) == "a random value, which may be a key"
    assert kind_of(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Books flights, and answers what the weather is like.",
        "Send a bearer token of your identity provider.",
        "Bearer authentication-is-required-here",
        "The password is never stored. Your API key: see the settings page.",
        "https://example.com/extensions/skill-schemas/v1",
        "https://user@example.com/",
        "a1b2c3d4-e5f6-4a7b-8c9d-0e1f2a3b4c5d",
        "urn:example:numbers:v1",
        "https://github.com/example-organization/AgentExtensions2026",
        "0000000000000000000000000000000000",
        "supercalifragilisticexpialidocious",
        "2026-11-22T23:59:59.000000+00:00",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ],
)
def test_ordinary_text_is_no_secret(text):
    assert kind_of(text, is_free=True) == ""


def test_places_are_named_and_secrets_are_not():
    card = {
        "name": "Bank",
        "description": f"Use {JWT}",
        "skills": [{"id": "a", "examples": ["hi", "password=hunter22x"]}],
        "supportedInterfaces": [{"url": "https://me:hunter2@bank.example/"}],
        "capabilities": {
            "extensions": [{"uri": "urn:x", "params": {"clientSecret": "abc", "n": [RANDOM]}}]
        },
        "securitySchemes": {"k": {"apiKeySecurityScheme": {"name": "x-token", "in": "header"}}},
        "signatures": [{"protected": JWT.partition(".")[0], "signature": RANDOM}],
    }
    found = dict(exposed(card))
    assert found == {
        "description": "a JSON Web Token",
        "skills[0].examples[1]": "a password or key",
        "supportedInterfaces[0].url": "a password in a URL",
        "capabilities.extensions[0].params.clientSecret": "the value of 'clientSecret'",
        "capabilities.extensions[0].params.n[0]": "a random value, which may be a key",
    }
    assert "hunter2" not in json.dumps(found)


def test_addresses_that_are_not_encrypted_are_found():
    card = {
        "url": "http://bank.example/",
        "supportedInterfaces": [
            {"url": "HTTP://bank.example:8080/rpc"},
            {"url": "http://localhost:9999"},
            {"url": "http://127.0.0.1:9999"},
            {"url": "https://bank.example"},
            {"url": "bank.example:50051"},
        ],
        "securitySchemes": {
            "o": {"flows": {"clientCredentials": {"tokenUrl": "http://id.example/token"}}}
        },
        "capabilities": {
            "extensions": [
                {"uri": "http://example.com/ext/v1", "params": {"url": "http://json-schema.org/x"}}
            ]
        },
    }
    assert [place for place, _ in plain_urls(card)] == [
        "url",
        "supportedInterfaces[0].url",
        "securitySchemes.o.flows.clientCredentials.tokenUrl",
    ]


def test_a_card_may_be_deeply_nested():
    value = "x"
    for _ in range(5000):
        value = [value]
    assert list(exposed(value)) == list(plain_urls(value)) == []


# -- credentials in addresses stay out of logs -----------------------------------------------------


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/tasks?pageSize=5", "/tasks?pageSize=5"),
        ("/?api_key=s3cret", "/?api_key=..."),
        ("/?a=1&X-Api-Key=s3cret&b=2", "/?a=1&X-Api-Key=...&b=2"),
        ("/?%61pi%5Fkey=s3cret", "/?%61pi%5Fkey=..."),
        ("/?a=1;access_token=s3cret;b", "/?a=1;access_token=...;b"),
        ("/?password=s3cret=x&password=s3cret", "/?password=...&password=..."),
        ("/?client_secret=s3cret#session=s3cret", "/?client_secret=...#session=..."),
        ("/?key=", "/?key="),
        ("/api_key=path", "/api_key=path"),
        ("1.1", "1.1"),
    ],
)
def test_parameters_that_sound_like_credentials_are_hidden(target: str, shown: str) -> None:
    assert without_credentials(target) == shown


def test_the_parameter_of_a_scheme_is_hidden_whatever_its_name() -> None:
    assert without_credentials("/?Shibboleth=s3cret") == "/?Shibboleth=s3cret"
    ApiKey("query", "shibboleth", keys={})
    assert without_credentials("/?Shibboleth=s3cret&%73hibboleth=s3cret") == (
        "/?Shibboleth=...&%73hibboleth=..."
    )


# -- sealing: only the same key, purpose and context opens a sealed secret -------------------------


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


def test_a_short_key_is_refused_with_a_way_to_make_one() -> None:
    with pytest.raises(ValueError, match="token_urlsafe"):
        operator_key("short")
    with pytest.raises(ValueError, match="at least 32"):
        Sealer(b"short")


# -- hosts that are reachable only from this machine -----------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost", "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"]
)
def test_this_machine_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "example.com", "localhost.example"]
)
def test_nothing_else_is(host: str) -> None:
    assert not is_loopback(host)
