"""Entries are made of what public cards say, within bounds."""

from __future__ import annotations

import msgspec
import pytest

from parley.model.cards import AgentCapabilities, AgentCard, AgentProvider, AgentSkill
from parley.registry.served.catalog import Publication, agent_entry, agent_name, host_of, queries_of

URN, URL = "urn:air:example.com:agent:time", "https://example.com/.well-known/agent-card.json"


def skill(name="tell", description="", examples=(), tags=()):
    return AgentSkill(
        id=name, name=name, description=description, tags=tuple(tags), examples=tuple(examples)
    )


def card(*skills, **options):
    return AgentCard(
        **{
            "name": "Time",
            "description": "Tells the time.",
            "supported_interfaces": (),
            "version": "1",
            "capabilities": AgentCapabilities(),
            "default_input_modes": (),
            "default_output_modes": (),
            "skills": skills,
            **options,
        }
    )


@pytest.mark.parametrize(
    ("skills", "queries"),
    [
        # One of each skill before the second of any, five at most.
        (
            [skill("a", examples="ABCD"), skill("b", examples="xy"), skill("c", examples="1")],
            ("A", "x", "1", "B", "y"),
        ),
        # The same twice is one; so is another case.
        ([skill(examples=["Now?", " now? ", "Then?"])], ("Now?", "Then?")),
        # Lines become one, and what is too long is no query.
        ([skill(examples=["a\n b", "x" * 301, "", "c"])], ("a b", "c")),
        # One example is too few: a description helps out, then a name.
        ([skill("t", "Tells it. In words.", ["Now?"])], ("Now?", "Tells it.")),
        ([skill("tell", "", ["Now?"])], ("Now?", "tell")),
        ([skill("tell", "Tells the time")], ("Tells the time", "tell")),
        ([skill("a", "Does a."), skill("b", "Does b."), skill("c", "C.")], ("Does a.", "Does b.")),
        # Where there are not two, there are none.
        ([skill("tell", "Tell")], ()),
        ([], ()),
    ],
)
def test_queries_are_two_to_five_examples(skills, queries):
    assert queries_of(skills) == queries


def test_labels_are_bounded_and_told_once():
    many = [f"tag-{number}" for number in range(500)]
    entry = agent_entry(
        card(skill("a", tags=["x", "x", " "]), skill("b", tags=many)), URN, URL, "e.org"
    )
    assert entry.tags[:2] == ("x", "tag-0")
    assert len(entry.tags) == 64
    assert entry.capabilities == ("a", "b")


def test_a_long_description_is_cut():
    entry = agent_entry(card(description="word " * 5_000), URN, URL, "example.com")
    assert len(entry.description) <= 2_000
    assert entry.description.endswith("word…")


def test_what_a_card_does_not_say_is_left_out():
    written = msgspec.to_builtins(agent_entry(card(description="", version=""), URN, URL, "e.org"))
    for name in ("description", "version", "tags", "capabilities", "representativeQueries"):
        assert name not in written


def test_the_host_is_the_provider_of_all_cards_or_the_domain():
    acme = AgentProvider(url="https://acme.example", organization="Acme")
    globex = AgentProvider(url="https://globex.example", organization="Globex")
    one, other = card(provider=acme), card(provider=globex)
    assert host_of([one, one], "example.com").display_name == "Acme"
    assert host_of([one, other], "example.com").display_name == "example.com"
    assert host_of([one, card()], "example.com").display_name == "example.com"
    assert host_of([one], "example.com").identifier == "example.com"


@pytest.mark.parametrize(
    ("path", "key", "name"),
    [
        ("", "time-agent", "time-agent"),
        ("/time", "time-agent", "time"),
        ("/shop/clerk", "x", "shop-clerk"),
        ("/a2a/time", "x", "time"),
        ("/Time~Zone", "x", "time-zone"),
        ("", "", "agent"),
    ],
)
def test_an_agent_is_named_by_its_path_or_its_key(path, key, name):
    assert agent_name(path, key) == name


def test_identifiers_are_below_the_namespace():
    publication = Publication.of("Example.COM.", "finance:Trading")
    assert publication.agent("/time", "x") == "urn:air:example.com:finance:Trading:time"
    assert publication.agent("", "shop", "Acme") == "urn:air:example.com:finance:Trading:acme:shop"
    assert publication.catalog("acme") == "urn:air:example.com:finance:Trading:acme:catalog"
