"""Hosts that only this machine itself reaches."""

from __future__ import annotations

import pytest

from parley.security.networks import is_loopback


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
