"""The connections to MCP servers that the turns of an agent share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from parley.agent.tools.mcp_server import McpServer, McpServerUnavailable, McpSessionLost, personal
from parley.model.distribution import install_command
from parley.security.egress import Egress

if TYPE_CHECKING:
    from parley.agent.tools.mcp_session import McpSession

log = logging.getLogger("parley.agent")

T = TypeVar("T")

MAX_SESSIONS = 64
"""How many connections are kept that no turn uses."""


class ServerUse:
    """A server in a turn, and its connection: another one, if that is lost."""

    def __init__(self, sessions: McpSessions, server: McpServer) -> None:
        self.server = server
        self.session: McpSession | None = None
        self._sessions = sessions
        self._opening = asyncio.Lock()

    async def run(self, work: Callable[[McpSession], Awaitable[T]]) -> T:
        """Run ``work`` with a connection, and once more with a new one if the session was lost.

        Raises ``McpServerUnavailable``, and what ``work`` raises.
        """
        try:
            return await self._run(work)
        except McpSessionLost as error:
            log.info("%s: a new one begins", error)
        try:
            return await self._run(work)
        except McpSessionLost as error:
            raise McpServerUnavailable(f"{error}, and the new one too") from None

    async def _run(self, work: Callable[[McpSession], Awaitable[T]]) -> T:
        async with self._opening:
            if self.session is None or self.session.retired:
                self.release()
                self.session = await self._sessions.acquire(self.server)
                await self.session.list_tools()
            session = self.session
            session.users += 1  # a lost session closes after its last call
        try:
            return await work(session)
        finally:
            self._sessions.release(session)

    def release(self) -> None:
        """Give the connection back. Idempotent."""
        session, self.session = self.session, None
        if session is not None:
            self._sessions.release(session)


class McpSessions:
    """Opens each connection once for all turns that name the same server.

    Addresses that are not their author's must be allowed by ``egress``. ``aclose`` closes all
    connections; the next turn opens new ones.
    """

    def __init__(self, egress: Egress | None = None) -> None:
        self.egress = egress
        self._kept: dict[Hashable, McpSession] = {}
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        self._closing: set[asyncio.Task[None]] = set()

    async def acquire(self, server: McpServer) -> McpSession:
        """Return a connection, to be given to ``release``. Raises ``McpServerUnavailable``.

        Raises ``ImportError`` that says how to install the package ``mcp``.
        """
        try:
            await asyncio.to_thread(import_module, "parley.agent.tools.mcp_calls")  # takes seconds
            from parley.agent.tools.mcp_session import McpSession
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "httpx2"):
                raise
            raise ImportError(
                f"turn.tools needs the package mcp: {install_command('mcp')}", name="mcp"
            ) from error
        lock = self._locks.setdefault(server.key, asyncio.Lock())
        async with lock:
            found = self._kept.get(server.key)
            if found is not None and found.retired:
                del self._kept[server.key]
                if not found.users:
                    self._drop(found)
                found = None
            if found is None:
                found = McpSession(server, self.egress)
                await found.open()
                self._kept[server.key] = found
            found.users += 1
        idle = [each for each in self._kept.values() if not each.users]
        for each in idle[: max(0, len(idle) - MAX_SESSIONS)]:
            self._drop(each)
        return found

    def release(self, session: McpSession) -> None:
        """Give a connection back."""
        session.users -= 1
        if not session.users and (session.retired or personal(session.server.auth)):
            self._drop(session)

    async def aclose(self) -> None:
        """Close all connections, those in use too."""
        for session in list(self._kept.values()):
            self._drop(session)
        if self._closing:
            await asyncio.wait(self._closing)

    def _drop(self, session: McpSession) -> None:
        if self._kept.get(session.server.key) is session:
            del self._kept[session.server.key]
        closing = asyncio.create_task(session.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
