"""``parley conformance``: test any server or client against the specification."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from parley.cli.command import Commands
from parley.cli.output.failures import FAILED, UsageFailure, wrong_usage
from parley.cli.output.streams import Output, print_line
from parley.cli.settings.options import SOURCES_HELP, CommandOption
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall
    from parley.conformance.client_scenarios import ClientScenario
    from parley.conformance.client_server import Visit
    from parley.conformance.report import ConformanceReport
    from parley.conformance.verdicts import Verdict

SUFFIXES = {".txt": "text", ".json": "json", ".md": "markdown", ".html": "html"}

EXITS = """\b
Exit status:
  0  every tested MUST is met            1  a MUST is not met, or nothing was tested
  2  wrong usage                         3  no agent there"""
SERVER_EXAMPLES = """\b
Examples:
  parley conformance server http://127.0.0.1:9999
  parley conformance server https://agents.example.com --task "Book a room" --slow "Plan a trip"
  parley conformance server http://127.0.0.1:9999 --only STREAM --skip STREAM-8 --verbose
  parley conformance server http://127.0.0.1:9999 --report report.html"""
CLIENT_EXAMPLES = """\b
Examples:
  parley conformance client --run "parley send -a {url} {text}"
  parley conformance client --run "node my-client.js {url} {action} {text}" --report report.md
  parley conformance client                      serve until Ctrl-C, then judge

\b
The client's work for each {action}; without an answer it must exit with 1 or more:
  send    send {text}, wait for the end of the task, print the agent's text
  stream  send {text} with streaming, print the agent's text
  answer  send {text}, answer the agent's question with Blue, print its text
  cancel  send {text} without waiting for the end of the task, and cancel the task"""
COMMANDS = Commands("conformance", "Test a server or a client against the specification.")
register = COMMANDS.register
OPTIONS = (
    "agent_card", "svc_param", "insecure", "ca_file", "client_cert", "client_key", "proxy",
    "bearer", "api_key", "trust_origin", "registry", "timeout", "output", "verbose", "debug",
    "config",
)  # fmt: skip


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The options that choose requirements, and the report."""

    only: Annotated[
        tuple[str, ...],
        CommandOption("Only these ids or id prefixes, such as STREAM; repeatable.", "ID", "Checks"),
    ] = ()
    skip: Annotated[
        tuple[str, ...],
        CommandOption("Without these ids or id prefixes; repeatable.", "ID", "Checks"),
    ] = ()
    binding: Annotated[
        tuple[str, ...],
        CommandOption("Only JSONRPC, HTTP+JSON or GRPC; repeatable.", "NAME", "Checks"),
    ] = ()
    protocol_version: Annotated[
        tuple[str, ...], CommandOption("Only this version of A2A; repeatable.", "1.0|0.3", "Checks")
    ] = ()
    strict: Annotated[bool, CommandOption("A SHOULD counts as a MUST.", panel="Report")] = False
    report: Annotated[
        str, CommandOption("Write the report: .json, .md, .html or .txt.", "FILE", "Report")
    ] = ""

    @property
    def choice(self) -> dict[str, Any]:
        """The options that choose requirements, as arguments of a run. Raises ``UsageFailure``."""
        from parley.client.bindings.binding import canonical
        from parley.conformance.verdicts import ALL_BINDINGS, ALL_VERSIONS

        bindings = tuple(map(canonical, self.binding))
        for flag, given, known in (
            ("--binding", bindings, ALL_BINDINGS),
            ("--protocol-version", self.protocol_version, ALL_VERSIONS),
        ):
            for each in given:
                if each not in known:
                    raise UsageFailure(f"{flag} {each} is unknown; choose from {', '.join(known)}")
        if self.report and Path(self.report).suffix.lower() not in SUFFIXES:
            raise UsageFailure(f"--report: {self.report} ends in none of {', '.join(SUFFIXES)}")
        return {
            "only": self.only,
            "skip": self.skip,
            "bindings": bindings,
            "protocol_versions": self.protocol_version,
        }


class ServerTrial(Trial, frozen=True, kw_only=True):
    """The options of ``parley conformance server``."""

    text: Annotated[str, CommandOption("Any message.", "TEXT", "Messages")] = "Hello"
    task: Annotated[
        str,
        CommandOption("A message that starts a task, which ends by itself.", "TEXT", "Messages"),
    ] = ""
    ask: Annotated[
        str, CommandOption("A message that makes the agent ask a question.", "TEXT", "Messages")
    ] = ""
    slow: Annotated[
        str, CommandOption("A message that takes the agent some seconds.", "TEXT", "Messages")
    ] = ""
    patience: Annotated[
        float, CommandOption("How long an answer may take.", "TIME", "Waiting", default="15s")
    ] = 15.0


class ClientTrial(Trial, frozen=True, kw_only=True):
    """The options of ``parley conformance client``."""

    run: Annotated[
        str, CommandOption("Run this for each scenario; {url} is the address.", "COMMAND", "Client")
    ] = ""
    patience: Annotated[
        float, CommandOption("How long one run may take.", "TIME", "Waiting", default="30s")
    ] = 30.0


@COMMANDS.add("server", *OPTIONS, epilog=f"{SERVER_EXAMPLES}\n\n{EXITS}\n\n{SOURCES_HELP}")
async def server(call: AgentCall, options: ServerTrial) -> int:
    """Test a server against the specification: its card, and every interface on it.

    Sends messages to the agent, in every binding and version that it declares, and requests
    resources that do not exist. Give texts with a known outcome: without them, requirements that
    need a task, a question or long work are skipped unless ``--text`` happens to cause it.
    """
    from parley.client.auth.credentials import Credentials
    from parley.conformance.probe import LoggedTransport, ProbedTexts
    from parley.conformance.server_run import run_server

    shown: set[str] = set()
    settings, output, choice = call.settings, call.output, options.choice

    def tried(verdict: Verdict) -> None:
        if verdict.where not in shown and sys.stderr.isatty():  # an interface may take minutes
            output.note(f"testing {verdict.where}")
        shown.add(verdict.where)

    with wrong_usage():
        reference, credentials = Credentials.from_reference(
            call.reference,
            headers=call.headers,
            bearer=settings.bearer,
            api_key=settings.api_key,
            trust_origins=settings.trust_origin,
            insecure=settings.insecure,
        )
        transport = LoggedTransport(**call.http_options)
    async with transport as http:
        made = await run_server(
            reference,
            texts=ProbedTexts(
                text=options.text, task=options.task, ask=options.ask, slow=options.slow
            ),
            credentials=credentials,
            auth=None if call.uses_logins else (),
            http=http,
            patience=options.patience,
            on_verdict=tried,
            **choice,
        )
    return _finish(output, made, options, verbose=settings.verbose)


@COMMANDS.add("client", "output", "verbose", "debug", epilog=f"{CLIENT_EXAMPLES}\n\n{EXITS}")
def client(settings: CommandSettings, output: Output, options: ClientTrial) -> int:
    """Test a client against the specification: it plays scenarios with a scripted server.

    Serves an agent for each scenario on this machine, with behaviour that the specification allows:
    answers, streams, interrupted streams, rejections. With --run the client is started for each
    scenario, and its requests, output and exit status are judged. Without --run the addresses are
    printed with the client's instructions; Ctrl-C ends the run, and the requests are judged.
    """
    from parley.conformance.client_run import CommandDriver, run_client, watch_client

    choice, run, patience = options.choice, options.run, options.patience
    if run:
        try:
            driver = CommandDriver(run, patience=patience)
        except ValueError as error:
            raise UsageFailure(f"--run: {error}") from None
        trying = run_client(driver, subject=run, patience=2 * patience, **choice)
    else:
        trying = watch_client(lambda pairs: _watch(output, pairs), **choice)
    return _finish(output, asyncio.run(trying), options, verbose=settings.verbose)


async def _watch(output: Output, pairs: list[tuple[ClientScenario, Visit]]) -> None:
    """Show the addresses, and wait for Ctrl-C."""
    from parley.conformance.client_run import TO_DO

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows, where Ctrl-C raises KeyboardInterrupt
            loop.add_signal_handler(number, ended.set)
    for scenario, visit in pairs:
        times = " (twice)" if scenario.runs > 1 else ""
        line = f"{visit.url}  {scenario.requirement.id}: {TO_DO[scenario.action]}{times}"
        print_line(line, err=output.is_json)
    output.note("run the client against each address; Ctrl-C ends the run and judges its requests")
    await ended.wait()


def _finish(output: Output, made: ConformanceReport, options: Trial, *, verbose: bool) -> int:
    if not made.verdicts:
        raise UsageFailure(
            "nothing was tested: no requirement matches these options",
            hint="--only and --skip take ids or id prefixes, such as CARD-1 or STREAM",
        )
    if options.report:
        path = Path(options.report)
        format: Any = SUFFIXES[path.suffix.lower()]
        try:
            path.write_text(output.redact(made.written(format)) + "\n", "utf-8")
        except OSError as error:
            why = error.strerror
            raise UsageFailure(f"--report: {path} cannot be written: {why}") from None
    if output.is_json:
        output.json(output.redact(made.written("json")).encode())
    else:
        print_line(output.redact(made.written("text") if verbose else made.brief()))
    is_met = made.conforms and not (options.strict and made.failed)
    return 0 if is_met else FAILED
