"""Who a server publishes as, and what an operator is told about it."""

from __future__ import annotations

import logging

import pytest

import parley
from parley import Agent
from parley.registry.served.catalog import Publication, log_publication, read_publication
from parley.server.run import serving


def test_options_count_before_the_environment():
    environ = {"PARLEY_PUBLISHER": "a.example", "PARLEY_NAMESPACE": "shop"}
    assert read_publication(None, environ=environ) == Publication.of("a.example", "shop")
    assert read_publication("b.example", environ=environ) == Publication.of("b.example", "shop")
    assert read_publication(None, "x", environ=environ) == Publication.of("a.example", "x")
    assert read_publication("", environ=environ) is None
    assert read_publication(None, environ={}) is None
    assert read_publication("a.example", environ={}) == Publication.of("a.example", "agent")


def test_a_namespace_of_the_environment_needs_no_publisher():
    assert read_publication(None, environ={"PARLEY_NAMESPACE": "shop"}) is None


def test_what_is_unlisted_may_be_read_once():
    publication = read_publication("a.example", None, iter(["/x/", "acme"]), environ={})
    assert publication is not None
    assert publication.unlisted == {"/x", "acme"}


@pytest.mark.parametrize(
    ("url", "is_told"),
    [
        (None, False),
        ("https://example.com", False),
        ("https://agents.example.com/all", False),
        ("https://notexample.com", True),
        ("https://example.com.evil.example", True),
    ],
)
def test_an_address_outside_of_the_domain_is_told(caplog, url, is_told):
    with caplog.at_level(logging.INFO, logger="parley.host"):
        log_publication(Publication.of("example.com"), url)
    assert any("not below that domain" in each.message for each in caplog.records) is is_told


def test_this_machine_is_below_its_own_domains(caplog):
    for url in ("http://localhost:9999", "http://127.0.0.1:9999"):
        log_publication(Publication.of("agent.localhost"), url)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://agents.example.com", "not encrypted"),
        (
            "https://agents.example.com/all/",
            "look for a catalog at https://agents.example.com/.well",
        ),
        ("https://agents.example.com/", ""),
        ("http://localhost:9999", ""),
    ],
)
def test_an_address_that_registries_do_not_look_at_is_told(caplog, url, words):
    with caplog.at_level(logging.INFO, logger="parley.host"):
        log_publication(Publication.of("example.com"), url)
    said = [each.message for each in caplog.records if "below that domain" not in each.message]
    assert len(said) == bool(words)
    assert all(words in each for each in said)


def test_the_tenants_that_a_catalog_names_are_told(caplog):
    with caplog.at_level(logging.INFO, logger="parley.host"):
        publication = Publication.of("example.com", unlisted=["globex"])
        log_publication(publication, None, ["globex", "acme"])
        log_publication(publication, None, ["globex"])
    (said,) = [each.message for each in caplog.records]
    assert "names the tenants acme;" in said


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
