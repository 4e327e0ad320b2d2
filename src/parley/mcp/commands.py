"""``parley mcp``: serves A2A agents to MCP hosts."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from parley.cli.command import Commands
from parley.cli.output.failures import INTERRUPTED, CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.streams import Output, log_to_stderr, print_line
from parley.cli.settings.options import (
    AGENT_OPTIONS,
    REGISTRY_OPTIONS,
    Agents,
    CommandOption,
    flags_of,
)
from parley.cli.settings.table import DEFAULT, CommandSettings
from parley.model.distribution import install_command
from parley.security.networks import is_loopback

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall
    from parley.mcp.bridge import McpBridge
    from parley.registry.client.found import FoundAgent
    from parley.registry.client.remote_registry import RemoteRegistry

KEY_VARIABLE = "PARLEY_MCP_KEY"
"""The variable with the secret that ties names of tasks to callers, shared by replicas."""

SHORTEST_KEY = 32
"""The shortest allowed secret, in characters."""

TOKEN_VARIABLE = "PARLEY_MCP_TOKEN"

_REGISTRY = "Registry"
_HTTP = "Over HTTP"

EXAMPLES = """\b
Examples:
  parley mcp serve http://127.0.0.1:9999
  parley mcp serve https://agents.example.com/travel --http
  parley mcp serve urn:air:example.com:agent:time --registry example.com
  parley mcp serve --registry https://registry.example.com --search "book a flight"

\b
A host such as Claude Desktop, VS Code or Cursor starts it by itself:
  {"mcpServers": {"travel": {"command": "parley",
    "args": ["mcp", "serve", "https://agents.example.com/travel"]}}}"""

COMMANDS = Commands("mcp", "Offer A2A agents to MCP hosts.")
register = COMMANDS.register


class McpServeOptions(msgspec.Struct, frozen=True):
    """The options of ``parley mcp serve``."""

    agents: Agents = ()
    search: Annotated[
        str,
        CommandOption(
            "Offer the skills of agents that the registry finds for this.", "TEXT", _REGISTRY
        ),
    ] = ""
    limit: Annotated[
        int,
        CommandOption("The most agents that --search offers.", "N", _REGISTRY, least=1, most=50),
    ] = 5
    name: Annotated[str, CommandOption("The name of the server.", "TEXT")] = "parley"
    call_time: Annotated[
        float,
        CommandOption(
            "The time limit of a call; after it the call returns the name of its task.",
            "TIME",
            default="50s",
        ),
    ] = 50.0
    http: Annotated[
        bool, CommandOption("Serve over HTTP, at /mcp, instead of stdio.", panel=_HTTP)
    ] = False
    host: Annotated[str, CommandOption("Address to listen on.", "HOST", _HTTP)] = "127.0.0.1"
    port: Annotated[
        int, CommandOption("Port to listen on; 0 selects a free port.", "PORT", _HTTP)
    ] = 9020
    url: Annotated[
        str, CommandOption("The public address, when a proxy in front hides it.", "URL", _HTTP)
    ] = ""
    allowed_host: Annotated[
        tuple[str, ...],
        CommandOption("A further host name that requests may use; repeatable.", "HOST", _HTTP),
    ] = ()
    allowed_origin: Annotated[
        tuple[str, ...],
        CommandOption("An origin whose pages may call it; repeatable.", "ORIGIN", _HTTP),
    ] = ()
    token: Annotated[
        tuple[str, ...],
        CommandOption(
            f"A token that callers must send; repeatable. Better in {TOKEN_VARIABLE}.",
            "TOKEN",
            _HTTP,
            variable=TOKEN_VARIABLE,
        ),
    ] = ()
    oidc: Annotated[
        str,
        CommandOption(
            "Callers use tokens of this OpenID Connect issuer; needs --url.", "ISSUER", _HTTP
        ),
    ] = ""
    audience: Annotated[
        str,
        CommandOption("The audience of these tokens.", "TEXT", _HTTP, default="--url with /mcp"),
    ] = ""
    tls_cert: Annotated[str, CommandOption("The certificate, to serve HTTPS.", "FILE", _HTTP)] = ""
    tls_key: Annotated[str, CommandOption("Its key.", "FILE", _HTTP)] = ""
    allow_anonymous: Annotated[
        bool,
        CommandOption("Allow calls without credentials, also from other machines.", panel=_HTTP),
    ] = False


@COMMANDS.add(
    "serve", *AGENT_OPTIONS, *REGISTRY_OPTIONS, "verbose", "debug", "config", epilog=EXAMPLES
)
def serve(settings: CommandSettings, output: Output, options: McpServeOptions) -> int:
    """Serve agents as an MCP server: skills are tools, agent cards are resources.

    Over stdio, for a host that starts it, or with --http for several hosts. Questions of agents go
    to the user of the host; a call that the host cancels is canceled. A registry is available
    through the tools find_agents and ask_agent.

    Credentials for the agents are --bearer, --api-key or a login (parley auth login). Over HTTP
    without --token and --oidc, the bearer token or API key (X-API-Key) of a caller goes to the
    agents named here instead, each time.
    """
    if not options.agents and settings.sources["agent_card"] != DEFAULT:
        options = msgspec.structs.replace(options, agents=(settings.agent_card,))
    if not options.agents and not settings.registry:
        raise UsageFailure(
            "name an agent, or a registry",
            hint='parley mcp serve URL, or parley mcp serve --registry URL --search "..."',
        )
    if options.search and not settings.registry:
        raise UsageFailure("--search needs --registry", hint="--registry URL")
    for each in flags_of(McpServeOptions):
        is_given = getattr(options, each.name) != each.default
        if is_given and each.option.panel == _HTTP and not options.http:
            if each.variable and each.variable in os.environ:
                continue
            raise UsageFailure(f"{each.flag} needs --http", hint="the same command with --http")
    if settings.credential_redirect is not None:
        redirect = settings.credential_redirect
        raise UsageFailure(str(redirect), hint=redirect.remedy)
    if not options.http and sys.stdin.isatty():
        output.note(
            "waits for an MCP host on standard input; stop with Ctrl-C. "
            "--http serves hosts that connect to it"
        )
    log_to_stderr("debug" if settings.debug else "warning", "text")
    try:
        import parley.mcp.http  # noqa: F401
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise CommandFailure(
            "PARLEY_ERR_NOT_INSTALLED",
            "parley mcp needs the package mcp",
            hint=install_command("mcp"),
        ) from error
    logging.getLogger("mcp").setLevel(logging.WARNING)

    from parley.cli.calls.agent_call import AgentCall

    call = AgentCall(settings, output)
    try:
        asyncio.run(_serve(call, options, _access(settings, options) if options.http else {}))
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _access(settings: CommandSettings, options: McpServeOptions) -> dict[str, Any]:
    """Return how a bridge over HTTP ties tasks to callers, and whose credentials it forwards."""
    verifies = bool(options.token or options.oidc)
    if not (verifies or options.allow_anonymous or is_loopback(options.host)):
        raise UsageFailure(
            f"everyone who can reach {options.host} could use these agents: require a token "
            "(--token) or tokens of an issuer (--oidc)",
            hint="the same command with --allow-anonymous",
        )
    if bool(options.tls_cert) != bool(options.tls_key):
        raise UsageFailure("--tls-cert and --tls-key belong together")
    key = os.environ.get(KEY_VARIABLE, "")
    if key and len(key) < SHORTEST_KEY:
        raise UsageFailure(f"{KEY_VARIABLE} must have at least {SHORTEST_KEY} characters")
    has_own = bool(settings.bearer or settings.api_key or settings.client_cert)
    return {"key": key.encode(), "carries": not (verifies or has_own)}


async def _serve(call: AgentCall, options: McpServeOptions, access: dict[str, Any]) -> None:
    from parley.cli.calls.agent_call import is_identifier
    from parley.client.errors import ClientError
    from parley.mcp.bridge import McpBridge, NoAgents
    from parley.registry.commands.registry_call import RegistryCall

    settings, output = call.settings, call.output
    async with AsyncExitStack() as stack:
        registry: RemoteRegistry | None = None
        found: list[FoundAgent] = []
        if settings.registry:
            asked = RegistryCall(settings, output)
            registry = await stack.enter_async_context(asked.opened())
            found = await asked.found(registry, options.search, options.limit)
        try:
            agents = [
                await call.look_up(each) if is_identifier(each) else each for each in options.agents
            ]
        except ClientError as error:
            raise call.failure(error) from error
        with wrong_usage():
            connecting = call.connect_options
            if access.get("carries"):
                connecting["auth"] = False
            bridge = McpBridge(
                *agents,
                registry=registry,
                found=found,
                name=options.name,
                wait=options.call_time,
                **access,
                **connecting,
            )
            stack.push_async_callback(bridge.aclose)
            try:
                problems = await bridge.load()
            except NoAgents as error:
                raise CommandFailure(
                    "A2ACLI_ERR_UNREACHABLE",
                    f"no agent can be offered: {error}",
                    hint="are the agents running, and are the addresses right?",
                ) from None
        for problem in problems:
            output.warn(f"an agent is left out until it answers: {problem}")
        if options.http:
            await _serve_http(bridge, options)
        else:
            await bridge.serve_stdio()


async def _serve_http(bridge: McpBridge, options: McpServeOptions) -> None:
    from parley.mcp.http import PATH, http_app, serve_http
    from parley.server.settings import tls_options
    from parley.server.sockets import ListenError

    with wrong_usage():
        app = http_app(
            bridge,
            host=options.host,
            url=options.url,
            allowed_hosts=options.allowed_host,
            allowed_origins=options.allowed_origin,
            tokens=options.token,
            oidc=options.oidc,
            audience=options.audience,
        )
        tls = tls_options(options.tls_cert or None, options.tls_key or None)

    def listening(address: str) -> None:
        print_line(f"{options.name}\n  MCP        {address}{PATH}\n\nCtrl-C stops it.")

    try:
        await serve_http(app, options.host, options.port, tls=tls, on_listening=listening)
    except ListenError as error:
        raise CommandFailure(
            "PARLEY_ERR_LISTEN", str(error), hint="--port 0 selects a free port"
        ) from error
