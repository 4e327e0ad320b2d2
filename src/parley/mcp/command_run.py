"""Serving agents to hosts of MCP, for ``parley mcp serve``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from parley.cli.calls.agent_call import RETRY, AgentCall
from parley.cli.output.failures import INTERRUPTED, CommandFailure, UsageFailure
from parley.cli.output.streams import Output, print_line
from parley.cli.settings.table import CommandSettings
from parley.mcp.bridge import McpBridge, NoAgents
from parley.mcp.http import http_app, is_open, serve_http
from parley.registry.client.found import FoundAgent
from parley.registry.client.remote_registry import RemoteRegistry
from parley.registry.commands.registry_call import RegistryCall
from parley.server.sockets import ListenError

KEY_VARIABLE = "PARLEY_MCP_KEY"
"""Names the variable with the secret that ties names of tasks to callers, for many replicas."""

SHORTEST_KEY = 32
"""How many characters that secret has at least."""


class McpServing:
    """One run of ``parley mcp serve``."""

    def __init__(self, settings: CommandSettings, output: Output, agents: tuple[str, ...]) -> None:
        self._settings = settings
        self._output = output
        self._agents = agents
        self._call = AgentCall(settings, output)
        self._registry: RegistryCall | None = None
        self._search: tuple[str, int] = ("", 0)

    def find(self, registry: str, search: str, limit: int, *, bearer: str) -> None:
        """Offer a registry, and the agents that it finds."""
        if registry:
            self._registry = RegistryCall(self._settings, self._output, registry, bearer=bearer)
            self._search = (search, limit)

    def stdio(self, options: dict[str, Any]) -> int:
        """Serve one host over stdio."""

        async def serve(bridge: McpBridge) -> None:
            try:
                await bridge.serve_stdio()
            finally:
                await bridge.aclose()

        return self._run(options, serve)

    def http(
        self,
        options: dict[str, Any],
        *,
        host: str,
        port: int,
        tls: tuple[str | None, str | None],
        allow_anonymous: bool,
        **access: Any,
    ) -> int:
        """Serve many hosts over HTTP."""
        if is_open(host, access["tokens"], access["oidc"]) and not allow_anonymous:
            raise UsageFailure(
                f"everyone who can reach {host} could use these agents: require a token "
                "(--token) or tokens of an issuer (--oidc)",
                hint="the same command with --allow-anonymous",
            )
        if (tls[0] is None) != (tls[1] is None):
            raise UsageFailure("--tls-cert and --tls-key belong together")
        key = os.environ.get(KEY_VARIABLE, "")
        if key and len(key) < SHORTEST_KEY:
            raise UsageFailure(f"{KEY_VARIABLE} has at least {SHORTEST_KEY} characters")
        settings = self._settings
        has_own = bool(settings.bearer or settings.api_key or settings.client_cert)
        verifies = bool(access["tokens"] or access["oidc"])
        options |= {"key": key.encode(), "carries": not (verifies or has_own)}

        async def serve(bridge: McpBridge) -> None:
            try:
                app = http_app(bridge, host=host, **access)
            except ValueError as error:
                raise UsageFailure(str(error)) from None

            def listening(address: str) -> None:
                print_line(f"{options['name']}\n  MCP        {address}\n\nCtrl-C stops it.")

            try:
                await serve_http(app, host, port, cert=tls[0], key=tls[1], on_listening=listening)
            except ListenError as error:
                raise CommandFailure(
                    "PARLEY_ERR_LISTEN", str(error), hint="--port 0 takes a free port"
                ) from error

        return self._run(options, serve)

    def _run(self, options: dict[str, Any], serve: Callable[[McpBridge], Awaitable[None]]) -> int:
        settings = self._settings
        if settings.credential_redirect is not None:
            raise UsageFailure(
                str(settings.credential_redirect), hint=settings.credential_redirect.remedy
            )
        try:
            asyncio.run(self._serve(options, serve))
        except KeyboardInterrupt:
            return INTERRUPTED
        return 0

    async def _serve(
        self, options: dict[str, Any], serve: Callable[[McpBridge], Awaitable[None]]
    ) -> None:
        registry: RemoteRegistry | None = None
        found: list[FoundAgent] = []
        if self._registry is not None:
            registry = self._registry.opened()
            try:
                found = await self._registry.found(registry, *self._search)
            except BaseException:
                await registry.aclose()
                raise
        call, settings = self._call, self._settings
        carries = options.get("carries", False)
        try:
            bridge = McpBridge(
                *self._agents,
                registry=registry,
                found=found,
                **options,
                auth=None if call.uses_logins and not carries else False,
                headers=call.headers,
                bearer=settings.bearer,
                api_key=settings.api_key,
                binding=call.bindings,
                version=call.version,
                timeout=call.response_timeout,
                retries=RETRY,
                insecure=settings.insecure,
                trust_origins=settings.trust_origin,
                tls=call.tls,
                proxy=settings.proxy,
            )
            problems = await bridge.load()
        except ValueError as error:
            raise UsageFailure(str(error)) from None
        except NoAgents as error:
            raise CommandFailure(
                "A2ACLI_ERR_UNREACHABLE",
                f"no agent can be offered: {error}",
                hint="are the agents running, and the addresses right?",
            ) from None
        for problem in problems:
            self._output.warn(f"an agent is left out until it answers: {problem}")
        await serve(bridge)
