"""``McpServer``, an MCP server as a source of tools: ``turn.tools(McpServer(url))``.

The package ``mcp`` is imported when a turn opens the tools: ``parley.mcp.tool_calls``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, Unpack
from urllib.parse import urlsplit

from parley.agent.tools.tool import Tool, ToolsUnavailable
from parley.agent.turn import Turn
from parley.client.auth.credentials import Credential
from parley.client.bindings.request_auth import check_secret
from parley.model.distribution import install_command
from parley.security.egress import turn_egress
from parley.security.networks import is_loopback

if TYPE_CHECKING:
    import httpx2


TIMEOUT = 60.0
"""The time limit of a tool call, in seconds."""

MAX_TOOLS = 128
"""The most tools of one server in a turn."""

MAX_RESULT_BYTES = 4 * 1024 * 1024
"""The size limit of the result of a call, in bytes."""

MAX_SCHEMA_BYTES = 64 * 1024
"""The size limit of the schemas of one tool together, in bytes."""


class McpServerUnavailable(ToolsUnavailable):
    """An MCP server cannot be reached, does not answer, or offers unusable tools.

    Check its address or command; the message has the reason.
    """


class McpSessionLost(McpServerUnavailable):
    """An MCP server has lost the session, so it has not executed the request."""


class McpServerOptions(TypedDict, total=False):
    """The options that every MCP server has, at an address or as a program."""

    timeout: float
    tools: Collection[str] | None
    max_tools: int
    max_result_bytes: int
    max_schema_bytes: int
    repeats: bool
    legacy: bool


@dataclass(kw_only=True, eq=False, repr=False)
class McpServer:
    """An MCP server: at an address (streamable HTTP), or a program that communicates over stdio.

    ``auth`` is a bearer token, a credential of ``parley.client.auth`` or of a task, OAuth client
    credentials (``ClientCredentials``), or an ``httpx2.Auth`` such as the OAuth client of the
    package ``mcp``. ``timeout`` bounds each call, in seconds. ``tools`` names the offered tools;
    without it all are offered, at most ``max_tools``. A result may have up to ``max_result_bytes``.
    A tool whose JSON Schemas have more than ``max_schema_bytes`` is left out, with a warning in the
    log, or is an error if ``tools`` names it: models would get its schemas in each request.

    ``name`` is a prefix for tool names that two servers share. A call that a crash interrupted is
    not repeated, unless the tool is declared idempotent or read-only, or ``repeats`` is true.
    ``legacy`` uses the older protocol (2025-11-25), which some servers need for questions.

    A server that is named outside a turn is chosen by its author: its address may be private. The
    address of a server that is named during a turn must be allowed by the egress policy.
    ``command``, ``env`` and ``cwd`` are for a program: see ``stdio``.
    """

    extra: ClassVar[str] = "mcp"

    url: str = field(kw_only=False)
    name: str = ""
    auth: str | Credential | httpx2.Auth | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = TIMEOUT
    tools: Collection[str] | None = None
    max_tools: int = MAX_TOOLS
    max_result_bytes: int = MAX_RESULT_BYTES
    max_schema_bytes: int = MAX_SCHEMA_BYTES
    repeats: bool = False
    legacy: bool = False
    insecure: bool = False
    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None

    def __post_init__(self) -> None:
        self.headers, self.env = dict(self.headers or {}), dict(self.env or {})
        if not self.command:
            self._check_address()
        limits = self.max_tools, self.max_result_bytes, self.max_schema_bytes
        if self.timeout <= 0 or min(limits) < 1:
            raise ValueError(
                "timeout, max_tools, max_result_bytes and max_schema_bytes must be above 0"
            )
        if isinstance(self.tools, str):
            raise TypeError('tools= is a list of names: tools=["search"]')
        self.tools = None if self.tools is None else frozenset(self.tools)
        self.is_authors = turn_egress.get() is None

    def _check_address(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                "an MCP server needs an address such as https://host/mcp, not "
                f"{self.url[:200]!r}; a "
                'program needs McpServer.stdio("python", "server.py")'
            )
        if parts.username is not None or parts.password is not None:
            raise ValueError("give the credentials of an MCP server with auth=, not in its address")
        is_safe = parts.scheme == "https" or is_loopback(parts.hostname) or self.insecure
        if (self.auth is not None or self.headers) and not is_safe:
            raise ValueError(
                "credentials would be sent without encryption: use an https address; in a network "
                "that you trust, insecure=True"
            )
        if isinstance(self.auth, str):
            check_secret("the bearer token", self.auth)
        if not getattr(self.auth, "issuer", "unnamed"):
            raise ValueError(
                "an MCP server could name any issuer for the client's secret: name the right "
                "issuer, as in ClientCredentials(..., issuer='https://login.example.com')"
            )
        for header, value in self.headers.items():
            check_secret(f"the header {header}", value)
        self.name = self.name or parts.hostname

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        name: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **options: Unpack[McpServerOptions],
    ) -> McpServer:
        """Return a server that is a program, started once for all turns of the agent.

        It inherits only PATH, HOME and similar variables of this process's environment; ``env``
        adds to them. Its stderr goes to the stderr of this process. It ends with the agent's
        server.
        """
        if not command:
            raise ValueError('give the program: McpServer.stdio("python", "server.py")')
        own = Path(next((each for each in reversed(args) if not each.startswith("-")), command))
        return cls(
            "",
            name=name or own.stem,
            command=(command, *args),
            env=dict(env or {}),
            cwd=None if cwd is None else str(cwd),
            **options,
        )

    def __repr__(self) -> str:
        return f"McpServer({self.address!r})"

    @property
    def address(self) -> str:
        """The address, or the program, without possible secrets."""
        return self.url.partition("?")[0] if self.url else f"stdio:{self.command[0]}"

    @asynccontextmanager
    async def open_tools(self, turn: Turn, *, progress: bool = True) -> AsyncIterator[list[Tool]]:
        """Connect, and yield the tools. Raises ``McpServerUnavailable``.

        Raises ``ImportError``, with installation advice, without the package ``mcp``.
        """
        try:
            calling: Any = await asyncio.to_thread(
                import_module, "parley.mcp.tool_calls"
            )  # seconds
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "httpx2"):
                raise
            raise ImportError(
                f"turn.tools needs the package mcp: {install_command('mcp')}", name="mcp"
            ) from error
        async with calling.tools_of(self, turn, progress=progress) as tools:
            yield tools

    @property
    def key(self) -> Hashable:
        """The key by which servers share a connection."""
        return (
            self.url,
            self.command,
            frozenset(self.env.items()),
            self.cwd,
            self.auth if isinstance(self.auth, str) else id(self.auth) if self.auth else None,
            frozenset(self.headers.items()),
            self.max_result_bytes,
            self.max_schema_bytes,
            self.legacy,
            self.is_authors,
        )
