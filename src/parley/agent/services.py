"""The services that the turns of an agent share. The host makes them.

``agent/invoke.py`` gives them to turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from parley.agent.context import AgentContexts
from parley.agent.issuers import TurnIssuers
from parley.agent.lifespan import Lifespan
from parley.agent.remote.connections import Connections
from parley.agent.remote_files import RemoteFiles
from parley.agent.tools.mcp_sessions import McpSessions
from parley.client.connection import Connection, connect
from parley.client.remote_agent import RemoteAgent
from parley.engine.authorizations import Authorizations, Callbacks
from parley.engine.handoff import Handoffs
from parley.files.turn_files import TurnFiles
from parley.security.authorization import Authorization
from parley.security.egress import Egress

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
    addresses. ``authorization`` has the policy that ``turn.authorize`` asks. ``egress`` is the
    policy for all that the client dials while an agent's function runs. ``name`` is the agent's,
    ``handoffs`` says whom it may hand conversations to. ``mcp`` are the connections to MCP servers.
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
    egress: Egress | None = None
    name: str = "agent"
    handoffs: Handoffs | None = None
    connections: Connections = field(init=False)
    issuers: TurnIssuers = field(init=False)
    mcp: McpSessions = field(init=False)

    def __post_init__(self) -> None:
        self.connections = Connections(self._open, self.egress, self.name)
        self.issuers = TurnIssuers(self.egress)
        self.mcp = McpSessions(self.egress)

    def allow(self, places: Iterable[str]) -> None:
        """Let the client dial more, before the first turn."""
        if self.egress is not None:
            self.egress = self.egress.adding(places)
            self.connections.egress = self.issuers.egress = self.mcp.egress = self.egress

    async def _open(self, *args: Any, **options: Any) -> RemoteAgent:
        return await self.connect(*args, **options)
