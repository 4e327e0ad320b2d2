"""Who asks: what a host can do, whose credentials it carries, and how it is told of progress."""

from __future__ import annotations

import hashlib
from typing import Any

from mcp import types
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

TASKS = "io.modelcontextprotocol/tasks"
"""The extension of MCP for long tasks."""

SHOWN_CHARACTERS = 2000
"""How many characters a notification of progress has."""

MOST_PROGRESS = 10_000
"""How many notifications of progress a call sends."""


class HostRequest:
    """A request of a host. ``carries``: its credentials go to the agents."""

    def __init__(self, context: ServerRequestContext[Any, Any], *, carries: bool) -> None:
        self._context = context
        self._progress = 0
        headers = getattr(context.request, "headers", None)
        self.credentials: dict[str, str] = {}
        if headers is not None and carries:
            kind, _, token = headers.get("authorization", "").strip().partition(" ")
            if kind.lower() == "bearer" and token.strip():
                self.credentials["bearer"] = token.strip()
            if key := headers.get("x-api-key", ""):
                self.credentials["api_key"] = key
        self.principal = None if headers is None else self._principal()

    def _principal(self) -> str:
        """Return who asks, as far as that is known: tasks are bound to it.

        Over stdio ``principal`` is ``None``: one host has the connection.
        """
        token = get_access_token()
        if token is not None:
            return repr(principal_components(token))
        if self.credentials:
            return hashlib.sha256(repr(sorted(self.credentials.items())).encode()).hexdigest()
        return ""

    @property
    def is_modern(self) -> bool:
        """Whether questions are results that the host answers by calling again."""
        return self._context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> types.ClientCapabilities | None:
        """What the host says that it can do."""
        return self._context.session.client_capabilities

    @property
    def takes_tasks(self) -> bool:
        """Whether a long call may return a task of the extension."""
        found = self.capabilities
        return self.is_modern and bool(found and found.extensions and TASKS in found.extensions)

    async def progress(self, text: str) -> None:
        """Tell the host how a call goes on, if it wants to know."""
        if self._progress < MOST_PROGRESS:
            self._progress += 1
            await self._context.session.report_progress(
                self._progress, None, text[:SHOWN_CHARACTERS]
            )

    async def elicit(
        self, params: types.ElicitRequestFormParams | types.ElicitRequestURLParams
    ) -> types.ElicitResult:
        """Ask the user in the middle of the call, as the older protocol does."""
        session, request_id = self._context.session, self._context.request_id
        if isinstance(params, types.ElicitRequestURLParams):
            return await session.elicit_url(
                params.message, params.url, params.elicitation_id or "", request_id
            )
        return await session.elicit_form(params.message, params.requested_schema, request_id)
