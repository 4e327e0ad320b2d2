"""The frameworks of the adapter suite: their environments, and what they do not have, and why."""

from __future__ import annotations

import os
from typing import NamedTuple

from tests.peers.environments import (
    AGENT_FRAMEWORK,
    BEEAI_ALONE,
    CREWAI,
    GOOGLE_ADK,
    LANGGRAPH,
    LLAMA_INDEX,
    OPENAI_AGENTS,
    PYDANTIC_AI,
    STRANDS,
    Peer,
)

FEATURES = (
    "stream", "tools", "approval", "memory", "two at once", "cancel", "structured", "files in",
    "failure", "usage", "crash", "refusal", "endings", "cut", "bound",
    "calls a skill", "passes questions",
)  # fmt: skip
"""What the suite asks of each: one test has the name of each."""


class Framework(NamedTuple):
    """A framework: its name, its environment, and the features without a test, with the reason.

    ``served/NAME.py`` serves its agents at ``/agent`` (text, tools ``add``, ``book``, which has to
    be approved, and ``wait``; the framework's own memory), and at ``/structured`` (output with a
    city and a temperature in celsius), and at ``/caller`` (its only tool is the skill of the agent
    at ``PARLEY_TEST_REMOTE``). With ``checkpoints`` a crash does not repeat tools that returned.
    With ``database`` the URL of a PostgreSQL database is in ``PARLEY_TEST_DATABASE``, empty where
    PostgreSQL is not installed.
    """

    name: str
    peer: Peer
    lacks: dict[str, str] = {}
    checkpoints: bool = False
    database: bool = False


FRAMEWORKS: dict[str, Framework] = {}


def framework(
    name: str, peer: Peer, *, checkpoints: bool = False, database: bool = False, **lacks: str
) -> None:
    """Add a framework. ``lacks`` names features with ``_`` for spaces."""
    reasons = {feature.replace("_", " "): reason for feature, reason in lacks.items()}
    assert set(reasons) <= set(FEATURES), reasons
    FRAMEWORKS[name] = Framework(name, peer, reasons, checkpoints, database)


framework("google_adk", GOOGLE_ADK, checkpoints=True)
framework("pydantic_ai", PYDANTIC_AI, checkpoints=True)
framework("langgraph", LANGGRAPH, checkpoints=True, database=True)
framework("openai_agents", OPENAI_AGENTS, checkpoints=True)
framework("strands", STRANDS, checkpoints=True)
framework("llama_index", LLAMA_INDEX, checkpoints=True)
framework("agent_framework", AGENT_FRAMEWORK, checkpoints=True)
framework("crewai", CREWAI, checkpoints=True)
framework("beeai", BEEAI_ALONE, checkpoints=True)


def asked() -> list[str]:
    """Return the names of the frameworks that this run asks: ``PARLEY_FRAMEWORKS``, or none.

    ``make frameworks`` asks all: each has an environment of its own, which takes its time.
    """
    named = os.environ.get("PARLEY_FRAMEWORKS", "")
    if named == "all":
        return sorted(FRAMEWORKS)
    return sorted(set(named.split(",")) & set(FRAMEWORKS))
