"""The services that the turns of an agent share. The host makes them.

``agent/invoke.py`` gives them to turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from parley.agent.context import AgentContexts
from parley.agent.issuers import TurnIssuers
from parley.agent.lifespan import Lifespan
from parley.agent.remote.connections import Connections
from parley.agent.remote_files import RemoteFiles
from parley.client.connection import Connection, connect
from parley.client.remote_agent import RemoteAgent
from parley.engine.authorizations import Authorizations
from parley.engine.callbacks import Callbacks
from parley.files.turn_files import TurnFiles
from parley.security.authorization import Authorization

INLINE_BYTES = 1024 * 1024
"""The size up to which a file is part of a message, unless the server says otherwise."""


@dataclass(slots=True)
class TurnServices:
    """The services that the turns of one agent use, besides their task: one per agent and host.

    ``callbacks`` makes addresses at which others complete events, ``authorizations`` those for
    credentials. ``address`` returns the agent's
    public address for a tenant, if one is configured. ``connect`` makes the connections to other
    agents: that of the client, unless a test replaces it. ``connections`` shares them.
    ``files`` keeps files by reference, ``None`` on a server without a place for them. A file
    of more than ``inline_bytes`` becomes a reference. ``remote_files`` fetches files from other
    addresses. ``authorization`` has the policy that ``turn.authorize`` asks.
    """

    contexts: AgentContexts
    callbacks: Callbacks
    authorizations: Authorizations
    address: Callable[[str], str] | None = None
    lifespan: Lifespan | None = None
    files: TurnFiles | None = None
    inline_bytes: int = INLINE_BYTES
    remote_files: RemoteFiles = field(default_factory=RemoteFiles)
    authorization: Authorization | None = None
    connect: Callable[..., Connection] = connect
    connections: Connections = field(init=False)
    issuers: TurnIssuers = field(default_factory=TurnIssuers)

    def __post_init__(self) -> None:
        self.connections = Connections(self._open)

    async def _open(self, *args: Any, **options: Any) -> RemoteAgent:
        return await self.connect(*args, **options)
