"""Entries are made of what public cards say, within bounds."""

from __future__ import annotations

from parley.model.cards import AgentCapabilities, AgentCard, AgentSkill
from parley.registry.served.catalog import agent_entry

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
