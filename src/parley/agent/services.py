"""What every turn of an agent shares. The host makes it; ``agent/invoke.py`` gives it to turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parley.agent.context import AgentContexts
from parley.client.connection import Connection, connect


@dataclass(slots=True)
class TurnServices:
    """The services that the turns of one agent use, besides their task: one per agent and host.

    ``connect`` makes the connections to other agents: that of the client, unless a test replaces
    it.
    """

    contexts: AgentContexts
    connect: Callable[..., Connection] = connect
