"""What every turn of an agent shares. The host makes it; ``agent/invoke.py`` gives it to turns."""

from __future__ import annotations

from dataclasses import dataclass

from parley.agent.context import AgentContexts
from parley.files.turn_files import TurnFiles


@dataclass(slots=True)
class TurnServices:
    """The services that the turns of one agent use, besides their task: one per agent and host.

    ``files`` keeps files by reference, ``None`` on a server without a place for them.
    """

    contexts: AgentContexts
    files: TurnFiles | None = None
