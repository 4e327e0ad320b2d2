"""The frameworks of the adapter suite: their environments, and missing features with reasons."""

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
"""The features that the suite tests: one test has the name of each."""


class Framework(NamedTuple):
    """A framework: its name, its environment, and the features without a test, with the reason.

    ``served/NAME.py`` serves its agents at three paths. ``/agent`` has text, the framework's own
    memory, and the tools ``add``, ``book`` (needs approval) and ``wait``. ``/structured`` outputs a
    city and a temperature in celsius. The only tool of ``/caller`` is the skill of the agent at
    ``PARLEY_TEST_REMOTE``. With ``checkpoints`` a crash does not repeat tools that returned. With
    ``database`` the URL of a PostgreSQL database is in ``PARLEY_TEST_DATABASE``, empty without
    PostgreSQL.
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
    """Return the names of the frameworks under test: ``PARLEY_FRAMEWORKS``, or none.

    ``make frameworks`` tests all; it is slow, as each has its own environment.
    """
    named = os.environ.get("PARLEY_FRAMEWORKS", "")
    if named == "all":
        return sorted(FRAMEWORKS)
    return sorted(set(named.split(",")) & set(FRAMEWORKS))
