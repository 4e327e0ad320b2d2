"""Secrets are redacted on cassettes, also in conversations with models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from parley.testing import NotOnTape, model_cassette
from parley.testing.model_endpoint import ModelEndpoint
from parley.testing.redaction import HIDDEN, TapeRedactor

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
    hidden = TapeRedactor().text(f"see {address} there")
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
    assert TapeRedactor().json({name: SECRET, "nextPageToken": "p2"}) == {
        name: HIDDEN,
        "nextPageToken": "p2",
    }


@pytest.mark.parametrize(
    "value",
    [
        {"credentials": {"kind": {"value": SECRET}}},
        {"secret": [{"a": SECRET}, SECRET]},
        {"request": {"headers": {"Proxy-Authorization": f"Bearer {SECRET}"}}},
        {"headers": {"X-Session-Id": SECRET, "accept": "a/b"}},
        {"headers": [["X-Session-Id", SECRET], ["accept", "a/b"]]},
        {"headers": [{"name": "Authorization", "value": f"Basic {SECRET}"}]},
        {"call": {"method": "GET", "url": f"postgresql://ann:{SECRET}@db.example/x"}},
        {"url": f"wss://{SECRET}@host.example/x?y=1"},
        {"body": json.dumps(json.dumps({"deep": [{"password": SECRET}]}))},
        {"body": f'  {{"password": "{SECRET}"}}'},
        {"body": f'Called with {{"a": 1, "password" : "{SECRET}"}} and'},
        {"body": 'It said {\\"token\\": \\"' + SECRET + '\\"}.'},
        {"body": f"user=ann&client_secret={SECRET}"},
        {"path": f"/back?state=1&access_token={SECRET}#x"},
        {"text": f"Authorization: Bearer {SECRET}"},
    ],
    ids=[
        "object", "list", "header", "header of a session", "pairs", "named values", "userinfo",
        "user alone", "text in a text", "blank before", "within a text", "escaped", "form", "path",
        "scheme",
    ],
)  # fmt: skip
def test_secrets_are_hidden_in_nested_data_and_wherever_they_stand_again(value: Any) -> None:
    redactor = TapeRedactor()
    hidden = redactor.json(value)
    assert SECRET not in json.dumps(hidden)
    assert HIDDEN in json.dumps(hidden) or "@" not in json.dumps(hidden)
    assert redactor.text(f"again {SECRET} there") == f"again {HIDDEN} there"
    assert TapeRedactor().json(hidden) == hidden


@pytest.mark.parametrize(
    "value",
    [
        {"params": {"taskId": "t1", "url": f"https://a.example/{SECRET}?x=1"}},
        {"configs": [{"url": f"https://a.example/{SECRET}"}]},
        {"config": {"url": f"https://a.example/{SECRET}"}},
        {"pushNotification": {"url": f"https://user@a.example/{SECRET}"}},
    ],
)
def test_of_a_webhook_only_its_origin_is_kept(value: Any) -> None:
    hidden = json.dumps(TapeRedactor().json(value))
    assert f'"https://a.example/{HIDDEN}"' in hidden
    assert SECRET not in hidden


def test_nothing_is_kept_of_what_is_no_address() -> None:
    broken, redactor = f"https://[a.example/{SECRET}", TapeRedactor()
    assert redactor.url(broken) == HIDDEN
    assert redactor.headers({"Location": broken}) == {"location": HIDDEN}
    assert redactor.json({"config": {"url": broken}}) == {"config": {"url": HIDDEN}}


def test_tokens_of_a_text_are_no_secrets() -> None:
    piece = {"token": "Hello there", "logprob": -0.1, "top_logprobs": []}
    answer = {"choices": [{"text": "Hello there", "logprobs": {"content": [piece]}}]}
    assert TapeRedactor().json(answer) == answer


def test_a_number_that_is_a_password_is_hidden() -> None:
    assert TapeRedactor().json({"password": 93471234, "tokens": 93471234, "secret": True}) == {
        "password": HIDDEN,
        "tokens": 93471234,
        "secret": True,
    }


def test_names_that_a_card_or_a_schema_has_for_secrets_are_none() -> None:
    plain = {
        "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "securityRequirements": [{"schemes": {"apiKey": {"list": ["read"]}}}],
        "security": [{"token": ["write"]}],
        "input": {"type": "object", "properties": {"password": {"type": "string"}}},
        "usage": {"total_tokens": 123456},
        "text": "Basic authentication, or bearer tokens: see https://example.com/a?b=c&page=2",
    }
    assert TapeRedactor().json(plain) == plain


# -- model conversations on cassettes: the real client of OpenAI, a recording, a replay ------------


KEY = "sk-" + "very-secret-key-of-mine"


def ask(url: str, text: str = "Hello") -> tuple[str, list[str]]:
    """Call a model twice: for a complete response and for a stream."""
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        said = [{"role": "user", "content": text}]
        whole = client.chat.completions.create(model="m", messages=said)  # type: ignore[call-overload]
        stream = client.chat.completions.create(model="m", messages=said, stream=True)  # type: ignore[call-overload]
        pieces = [c.choices[0].delta.content or "" for c in stream if c.choices]
        return whole.choices[0].message.content, pieces


@pytest.mark.slow
def test_a_model_is_asked_once_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with ModelEndpoint(lambda request: f"You said: {request.said}") as real:
        with model_cassette(path, endpoint=real.url, api_key=KEY) as model:
            assert not model.is_replaying
            first = ask(model.url)
        assert len(real.requests) == 2
    assert first[0] == "You said: Hello"
    assert "".join(first[1]) == "You said: Hello"
    assert KEY not in path.read_text()
    with model_cassette(path) as model:
        assert model.is_replaying
        assert ask(model.url) == first


@pytest.mark.slow
def test_a_call_that_is_not_on_the_tape_is_refused_and_raised(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with pytest.raises(ValueError, match="name the model's endpoint"):
        model_cassette(path)
    with (
        ModelEndpoint(lambda request: "Yes") as real,
        model_cassette(path, endpoint=real.url) as model,
    ):
        ask(model.url)
    with (
        pytest.raises(NotOnTape, match=r"'Hello' on the tape, 'Bye' in the request"),
        model_cassette(path) as model,
        pytest.raises(openai.BadRequestError, match="is not on the tape"),
    ):
        ask(model.url, "Bye")
