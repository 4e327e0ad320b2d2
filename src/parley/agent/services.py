"""What every turn of an agent shares. The host makes it; ``agent/invoke.py`` gives it to turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parley.agent.context import AgentContexts


@dataclass(slots=True)
class TurnServices:
    """The services that the turns of one agent use, besides their task: one per agent and host.

    ``address`` returns the agent's public address for a tenant, if one is configured.
    """

    contexts: AgentContexts
    address: Callable[[str], str] | None = None
