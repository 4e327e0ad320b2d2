"""What every turn of an agent shares. The host makes it; ``agent/invoke.py`` gives it to turns."""

from __future__ import annotations

from dataclasses import dataclass

from parley.agent.context import AgentContexts
from parley.agent.lifespan import Lifespan


@dataclass(slots=True)
class TurnServices:
    """The services that the turns of one agent use, besides their task: one per agent and host."""

    contexts: AgentContexts
    lifespan: Lifespan | None = None
