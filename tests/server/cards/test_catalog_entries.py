"""Entries are made from public cards, within bounds."""

from __future__ import annotations

from parley.model.cards import AgentCapabilities, AgentCard, AgentProvider, AgentSkill
from parley.registry.served.catalog import agent_entry, host_of

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


def test_labels_are_bounded_and_told_once():
    many = [f"tag-{number}" for number in range(500)]
    entry = agent_entry(
        card(skill("a", tags=["x", "x", " "]), skill("b", tags=many)), URN, URL, "e.org"
    )
    assert entry.tags[:2] == ("x", "tag-0")
    assert len(entry.tags) == 64
    assert entry.capabilities == ("a", "b")


def test_the_host_is_the_provider_of_all_cards_or_the_domain():
    acme = AgentProvider(url="https://acme.example", organization="Acme")
    globex = AgentProvider(url="https://globex.example", organization="Globex")
    one, other = card(provider=acme), card(provider=globex)
    assert host_of([one, one], "example.com").display_name == "Acme"
    assert host_of([one, other], "example.com").display_name == "example.com"
    assert host_of([one, card()], "example.com").display_name == "example.com"
    assert host_of([one], "example.com").identifier == "example.com"
