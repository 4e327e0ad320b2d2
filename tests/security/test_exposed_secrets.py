"""Secrets in text that everyone may read."""

from __future__ import annotations

import json

import pytest

from parley.security.exposed_secrets import exposed, kind_of, plain_urls

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
