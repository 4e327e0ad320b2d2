"""The publisher of a server, and the log lines about it for the operator."""

from __future__ import annotations

import logging

import pytest

import parley
from parley import Agent
from parley.registry.served.catalog import read_publication
from parley.server.run import serving


def test_what_is_unlisted_may_be_read_once():
    publication = read_publication("a.example", None, iter(["/x/", "acme"]), environ={})
    assert publication is not None
    assert publication.unlisted == {"/x", "acme"}


@pytest.mark.anyio
async def test_it_is_told_when_the_server_starts(caplog):
    agent = Agent("Echo")

    @agent.skill
    async def say(text: str) -> str:
        return text

    app = parley.asgi(agent, publisher="example.com", url="https://agents.example.org")
    assert not [each for each in caplog.records if "example.org" in each.message]
    with caplog.at_level(logging.INFO, logger="parley.host"):
        async with serving(app):
            pass
    assert [each for each in caplog.records if "agents.example.org" in each.message]
