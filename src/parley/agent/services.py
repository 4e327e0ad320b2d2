"""What every turn of an agent shares. The host makes it; ``agent/invoke.py`` gives it to turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parley.agent.context import AgentContexts
from parley.agent.remote_files import RemoteFiles
from parley.files.turn_files import TurnFiles

INLINE_BYTES = 1024 * 1024
"""The size up to which a file is part of a message, unless the server says otherwise."""


@dataclass(slots=True)
class TurnServices:
    """The services that the turns of one agent use, besides their task: one per agent and host.

    ``address`` returns the agent's public address for a tenant, if one is configured. ``files``
    keeps files by reference, ``None`` on a server without a place for them. A file of more than
    ``inline_bytes`` becomes a reference by itself. ``remote_files`` fetches files from elsewhere.
    """

    contexts: AgentContexts
    address: Callable[[str], str] | None = None
    files: TurnFiles | None = None
    inline_bytes: int = INLINE_BYTES
    remote_files: RemoteFiles = field(default_factory=RemoteFiles)
