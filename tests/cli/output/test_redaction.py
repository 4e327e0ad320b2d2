"""Credentials stay out of diagnostics."""

import json
from urllib.parse import quote

from parley.cli.output.redaction import HIDDEN, Redactor


def test_a_secret_is_hidden_in_every_way_of_writing_it():
    secret = 'to"ken é/+='
    redact = Redactor([secret, None])
    for written in (
        secret,
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        quote(secret, safe=""),
        f"https://host/?key={quote(secret, safe='')}&x=1",
    ):
        shown = redact(f"before {written} after")
        assert "ken" not in shown
        assert HIDDEN in shown
        assert shown.startswith("before")


def test_the_credential_in_a_service_parameter_is_hidden_with_and_without_its_scheme():
    redact = Redactor((), ["Authorization: Bearer s3cret-token", "x-debug: 1"])
    assert redact("s3cret-token") == HIDDEN
    assert "s3cret" not in redact("Bearer s3cret-token")
    assert redact("1 of 11") == "1 of 11"


def test_headers_show_only_what_the_protocol_itself_sends():
    redact = Redactor(["key-1"])
    assert redact.header("A2A-Version", "1.0") == "A2A-Version: 1.0"
    assert redact.header("X-Any", "else") == f"X-Any: {HIDDEN}"
    assert redact.header("Authorization", "Bearer x") == f"Authorization: {HIDDEN}"


def test_a_password_in_an_address_is_hidden():
    assert Redactor()("http://me:word@host/x") == f"http://{HIDDEN}@host/x"


def test_a_secret_inside_another_leaves_nothing_behind():
    assert Redactor(["abc", "abcdef"])("abcdef") == HIDDEN
