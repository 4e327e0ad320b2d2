"""Credentials in addresses do not get into logs."""

from __future__ import annotations

import logging

import pytest

from parley.security import ApiKey
from parley.security.exposed_secrets import without_credentials
from parley.server.log import HideTokens

LINE = '%s - "%s %s HTTP/%s" %d'


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


def test_the_access_log_shows_no_keys() -> None:
    args = ("127.0.0.1:5", "GET", "/tasks?api_key=s3cret&pageSize=1", "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 1, LINE, args, None)
    assert HideTokens().filter(record)
    assert record.getMessage() == '127.0.0.1:5 - "GET /tasks?api_key=...&pageSize=1 HTTP/1.1" 200'
