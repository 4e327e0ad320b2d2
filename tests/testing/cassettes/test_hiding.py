"""Secrets are hidden wherever they stand, and what is none stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parley.testing.cassettes.hiding import HIDDEN, Hiding

SECRET = "xK93-secret"


@pytest.mark.parametrize(
    "address",
    [
        f"https://files.example.com/a?X-Amz-Signature={SECRET}&part=2",
        f"https://files.example.com/a?part=2&X-Amz-Security-Token={SECRET}",
        f"https://files.example.com/a?X-Goog-Signature={SECRET}&part=2",
        f"https://api.example.com/a?api-key={SECRET}&part=2",
        f"https://app.example.com/back#access_token={SECRET}&part=2",
    ],
)
def test_addresses_in_texts_have_no_credentials(address: str) -> None:
    hidden = Hiding().text(f"see {address} there")
    assert SECRET not in hidden
    assert "part=2" in hidden
    assert hidden.startswith(f"see {address[:20]}")


@pytest.mark.parametrize(
    "name",
    [
        "authToken",
        "X-Auth-Token",
        "bearer",
        "aws_secret_access_key",
        "userPassword",
        "webhookSecret",
    ],
)
def test_members_that_hold_credentials_are_hidden(name: str) -> None:
    assert Hiding().json({name: SECRET, "nextPageToken": "p2"}) == {
        name: HIDDEN,
        "nextPageToken": "p2",
    }


def test_arguments_of_tools_are_json_in_a_text() -> None:
    hiding = Hiding()
    given: dict[str, Any] = {"arguments": json.dumps({"user": "ann", "password": SECRET})}
    hidden = hiding.json(given)
    assert json.loads(hidden["arguments"]) == {"user": "ann", "password": HIDDEN}
    plain = {"arguments": '{ "user" :"ann" }', "text": "{not JSON"}
    assert hiding.json(plain) == plain


def test_cookies_are_hidden_and_not_what_says_how_they_are_used() -> None:
    hiding = Hiding()
    cookies = f"sid={SECRET}; Domain=example.com; SameSite=Strict, other={SECRET}2; Path=/agents"
    hiding.learn_headers({"Set-Cookie": cookies}, frozenset())
    said = "Strict rules at example.com/agents"
    assert hiding.text(said) == said
    assert hiding.text(f"{SECRET} {SECRET}2") == f"{HIDDEN} {HIDDEN}"
