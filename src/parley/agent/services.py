"""What every turn of an agent shares. The host makes it; ``agent/invoke.py`` gives it to turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parley.agent.context import AgentContexts
from parley.engine.callbacks import Callbacks
from parley.agent.lifespan import Lifespan


@dataclass(slots=True)
class TurnServices:
    """The services that the turns of one agent use, besides their task: one per agent and host.

    ``callbacks`` makes addresses at which others complete events. ``address`` returns the agent's
    public address for a tenant, if one is configured.
    """

    contexts: AgentContexts
    callbacks: Callbacks
    address: Callable[[str], str] | None = None
    lifespan: Lifespan | None = None
