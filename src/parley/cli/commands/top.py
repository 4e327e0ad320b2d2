"""``parley top``: what servers do now, in the terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec

from parley.cli.calls.agent_call import AgentCall
from parley.cli.command import Commands
from parley.cli.commands.store import format_size
from parley.cli.output.failures import CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.streams import Output, draws
from parley.cli.output.text import aligned, one_line
from parley.cli.settings.options import Agents, CommandOption
from parley.cli.top import AgentFigures, Reading, ServerFigures, figures, read
from parley.client.bindings.http import HttpTransport
from parley.client.errors import ClientError, NotEncrypted
from parley.client.origin import Origin
from parley.model.distribution import install_command
from parley.server.app import METRICS_PATH

EXAMPLES = """\b
Examples:
  parley top
  parley top https://a.example.com https://b.example.com
  parley top --once -o json"""

READ_SECONDS = 5.0
WIDTH = 100
COLUMNS = ("agent", "req/s", "err/s", "fail/s", "p50", "p95", "running", "waiting", "oldest")
"""``err`` counts requests with errors, ``fail`` failed turns; ``oldest`` is the queue's age."""

COMMANDS = Commands()


class TopOptions(msgspec.Struct, frozen=True):
    """The options of ``parley top``."""

    agents: Agents = ()
    once: Annotated[bool, CommandOption("Print the figures once, as text or JSON.")] = False
    interval: Annotated[
        float, CommandOption("The time between two readings.", "TIME", default="2s")
    ] = 2.0


@COMMANDS.add(
    "top", "agent_card", "svc_param", "insecure", "ca_file", "client_cert", "client_key", "proxy",
    "bearer", "api_key", "output", "debug", "config", epilog=EXAMPLES,
)  # fmt: skip
async def top(call: AgentCall, options: TopOptions) -> int:
    """Show what servers do now: requests, errors, latency, turns, queue, streams, webhooks.

    Reads /metrics of each server, which parley serve --metrics answers. Rates are of the time
    between two readings. Without a terminal, and for JSON, it prints them once.
    """
    try:
        import prometheus_client.parser  # noqa: F401
    except ModuleNotFoundError:
        raise UsageFailure(
            "parley top needs its extra", hint=f"install it with: {install_command('metrics')}"
        ) from None
    watch = _Watch(call, options.agents or (call.settings.agent_card,))
    is_once = options.once or call.output.is_json or not draws()
    try:
        async with call.http() as http:
            await watch.read(http)
            await asyncio.sleep(options.interval)
            if is_once:
                return _print(call.output, await watch.read(http))
            await _draw(watch, http, options.interval)
    except asyncio.CancelledError:  # Ctrl-C ends the view
        if is_once:
            raise
    return 0


class _Watch:
    """Servers with their last readings."""

    def __init__(self, call: AgentCall, servers: Sequence[str]) -> None:
        self._call = call
        with wrong_usage():
            self._servers = {str(Origin.parse(each)): Reading() for each in servers}
        credentials, settings = call.headers, call.settings
        if settings.bearer:
            credentials["Authorization"] = f"Bearer {settings.bearer}"
        if settings.api_key:
            credentials["X-API-Key"] = settings.api_key
        self._headers = {"Accept": "text/plain"} | credentials
        open_to_all = [each for each in self._servers if Origin.of(each).is_plaintext]
        if credentials and open_to_all and not settings.insecure:
            raise self._call.failure(NotEncrypted(f"no credentials are sent to {open_to_all[0]}"))

    async def read(self, http: HttpTransport) -> list[ServerFigures]:
        """Read all servers. Raises ``CommandFailure`` if the only one cannot be read at first."""
        return await asyncio.gather(*(self._read(http, each) for each in self._servers))

    async def _read(self, http: HttpTransport, server: str) -> ServerFigures:
        before = self._servers[server]
        try:
            self._servers[server] = now = await self._reading(http, server)
        except CommandFailure as failure:
            if len(self._servers) == 1 and not before.at:
                raise
            return ServerFigures(server=server, error=f"{failure.message}; {failure.hint}")
        return figures(server, before, now)

    async def _reading(self, http: HttpTransport, server: str) -> Reading:
        try:
            reply = await http.send(
                "GET", server + METRICS_PATH, self._headers, None, timeout=READ_SECONDS
            )
        except ClientError as error:
            raise self._call.failure(error) from error
        if reply.status in (401, 403):
            raise CommandFailure(
                "A2ACLI_ERR_CREDENTIALS_MISSING",
                f"{server} shows its metrics to authenticated callers only",
                hint="set A2ACLI_BEARER or A2ACLI_API_KEY",
                a2a_code=reply.status,
            )
        if reply.status != 200:
            raise CommandFailure(
                "A2ACLI_ERR_UNREACHABLE",
                f"{server} has no {METRICS_PATH} for this machine",
                hint="serve it with --metrics, or PARLEY_METRICS=1; if it has them, --restrict "
                "metrics=... leaves this machine out",
                a2a_code=reply.status,
            )
        try:
            return read(time.monotonic(), reply.body.decode("utf-8", "replace"))
        except (ValueError, KeyError) as error:
            raise CommandFailure("A2ACLI_ERR_INTERNAL", f"{server}: {error}") from error


def _print(output: Output, servers: Sequence[ServerFigures]) -> int:
    if output.is_json:
        output.json(msgspec.json.encode({"servers": servers}))
    for each in () if output.is_json else servers:
        output.text.content(each.server, "\n".join(line for line, _ in _lines(each)))
    return int(any(each.error for each in servers))


async def _draw(watch: _Watch, http: HttpTransport, interval: float) -> None:
    """Draw the figures again and again."""
    from rich.live import Live

    from parley.cli.output.rich_answer import TextConsole, styled

    with Live(console=TextConsole(WIDTH), auto_refresh=False) as live:
        while True:
            pieces: list[tuple[str, str]] = []
            for each in await watch.read(http):
                pieces += [(f"{each.server}\n", "bold cyan")]
                pieces += [(f"{line}\n", style) for line, style in _lines(each)]
            live.update(styled(*pieces, ("Ctrl-C ends", "dim")), refresh=True)
            await asyncio.sleep(interval)


def _lines(server: ServerFigures) -> list[tuple[str, str]]:
    """Return the lines about a server with their styles: a failing agent is red."""
    if server.error:
        return [(f"error: {server.error}", "red")]
    process = (
        f"streams {server.streams}  webhooks failing {server.failing_webhooks}  "
        f"loop lag {_time(server.loop_lag)}  memory {format_size(server.memory)}"
    )
    table = aligned([COLUMNS, *map(_cells, server.agents)], left=1)
    styles = ["red" if a.failed_turns else "yellow" * bool(a.waiting) for a in server.agents]
    process_style = "red" if server.failing_webhooks else ""
    return list(zip([process, *table], [process_style, "dim", *styles], strict=True))


def _cells(agent: AgentFigures) -> list[str]:
    rates = (agent.requests, agent.errors, agent.failed_turns)
    times = (agent.p50, agent.p95, agent.queue_age or None)
    p50, p95, oldest = map(_time, times)
    turns = (str(agent.running), str(agent.waiting), oldest)
    return [one_line(agent.agent), *(f"{rate:.1f}" for rate in rates), p50, p95, *turns]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g}ms" if seconds < 1 else f"{seconds:.4g}s"
