"""``parley conformance``: servers and clients of anybody, tried against the specification."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from parley.cli.output.failures import FAILED, CommandFailure, UsageFailure
from parley.cli.output.redaction import Redactor
from parley.cli.output.streams import Output, print_line
from parley.cli.settings.options import settings_command, text_option
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.conformance.client_scenarios import ClientScenario
    from parley.conformance.client_server import Visit
    from parley.conformance.report import ConformanceReport
    from parley.conformance.verdicts import Verdict

SUFFIXES = {".txt": "text", ".json": "json", ".md": "markdown", ".html": "html"}
BINDINGS = {"JSONRPC": "JSONRPC", "HTTP+JSON": "HTTP+JSON", "REST": "HTTP+JSON", "GRPC": "GRPC"}
VERSIONS = ("1.0", "0.3")

EXITS = """\b
Exit status:
  0  every MUST that was tried is met    1  one is not, or nothing was tried
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
What the client does for each {action}; where it gets no answer, it exits with 1 or more:
  send    send {text}, wait for the end of the task, print the agent's text
  stream  send {text} with streaming, print the agent's text
  answer  send {text}, answer the agent's question with Blue, print its text
  cancel  send {text} without waiting for the end of the task, and cancel the task"""
CHECKS = "Checks"
REPORT = "ConformanceReport"


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    about = "Try a server or a client against the specification."
    app.add_typer(group, name="conformance", help=about)

    @group.callback()
    def top() -> None:
        """Try a server or a client of anybody against the specification."""

    _register_server(group)
    _register_client(group)


def _listed(flag: str, metavar: str, text: str) -> list[str]:
    option: list[str] = typer.Option(
        [], flag, metavar=metavar, help=text, rich_help_panel=CHECKS, show_default=False
    )
    return option


ONLY = _listed("--only", "ID", "Only these, by id or how ids begin, such as STREAM; repeatable.")
SKIP = _listed("--skip", "ID", "All but these; repeatable.")
BINDING = _listed("--binding", "NAME", "Only JSONRPC, HTTP+JSON or GRPC; repeatable.")
VERSION = _listed("--protocol-version", "1.0|0.3", "Only this version of A2A; repeatable.")


REPORT_FILE = text_option(REPORT, "--report", "FILE", "Write it: .json, .md, .html or .txt.")
STRICT: bool = typer.Option(
    False, "--strict", help="SHOULD counts as MUST.", rich_help_panel=REPORT
)


def _register_server(group: typer.Typer) -> None:
    @settings_command(
        group, "server", "output", "verbose", "debug", epilog=f"{SERVER_EXAMPLES}\n\n{EXITS}"
    )
    def server(
        settings: CommandSettings,
        output: Output,
        url: str = typer.Argument(metavar="URL", help="The agent's address, or its card's."),
        text: str = typer.Option("Hello", "--text", metavar="TEXT", help="A message for it."),
        task: str = text_option(
            "Messages", "--task", "TEXT", "A message that makes a task, which ends by itself."
        ),
        ask: str = text_option("Messages", "--ask", "TEXT", "A message that makes it ask back."),
        slow: str = text_option(
            "Messages", "--slow", "TEXT", "A message that it works on for some seconds."
        ),
        bearer: str = text_option(
            "Messages", "--bearer", "TOKEN", "A token for it.", "PARLEY_CONFORMANCE_BEARER"
        ),
        patience: float = typer.Option(
            15.0, "--patience", metavar="SECONDS", min=0.1, help="How long an answer may take."
        ),
        only: list[str] = ONLY,
        skip: list[str] = SKIP,
        binding: list[str] = BINDING,
        protocol_version: list[str] = VERSION,
        strict: bool = STRICT,
        report: str = REPORT_FILE,
    ) -> int:
        """Try a server against the specification: its card, and every interface on it.

        Sends messages to the agent, in every binding and version that it declares, and asks for
        what does not exist. Tell it texts whose outcome is known: without them, what needs a task,
        a question or long work is skipped if the agent does not happen to do that.
        """
        output.redact = Redactor((bearer,))
        _check_report(report)
        from parley.conformance.probe import ProbedTexts
        from parley.conformance.server_run import CardNotRead, run_server

        shown: set[str] = set()

        def tried(verdict: Verdict) -> None:
            if verdict.where not in shown and sys.stderr.isatty():  # it may take minutes
                output.note(f"trying {verdict.where}")
            shown.add(verdict.where)

        async def run() -> ConformanceReport:
            return await run_server(
                url,
                texts=ProbedTexts(text=text, task=task, ask=ask, slow=slow),
                headers={"Authorization": f"Bearer {bearer}"} if bearer else None,
                only=tuple(only),
                skip=tuple(skip),
                bindings=_known_bindings(binding),
                protocol_versions=_known_versions(protocol_version),
                patience=patience,
                on_verdict=tried,
            )

        try:
            made = _run(run())
        except CardNotRead as error:
            raise CommandFailure(
                "A2ACLI_ERR_CARD_NOT_FOUND",
                str(error),
                hint="a server is tried from its agent card on",
            ) from error
        return _finish(output, made, report, verbose=settings.verbose, strict=strict)


def _register_client(group: typer.Typer) -> None:
    @settings_command(
        group, "client", "output", "verbose", "debug", epilog=f"{CLIENT_EXAMPLES}\n\n{EXITS}"
    )
    def client(
        settings: CommandSettings,
        output: Output,
        run: str = text_option(
            "Client", "--run", "COMMAND", "Run this for each scenario; {url} is the address."
        ),
        patience: float = typer.Option(
            30.0, "--patience", metavar="SECONDS", min=0.1, help="How long one run may take."
        ),
        only: list[str] = ONLY,
        skip: list[str] = SKIP,
        binding: list[str] = BINDING,
        protocol_version: list[str] = VERSION,
        strict: bool = STRICT,
        report: str = REPORT_FILE,
    ) -> int:
        """Try a client against the specification: it plays scenarios with a scripted server.

        Serves an agent for each scenario on this machine, which does what servers do, and may do:
        answers, streams, breaks off, refuses. With --run the client is started for each, and what
        it sends, prints and exits with is judged. Without, the addresses are printed with what the
        client is to do; Ctrl-C ends, and what it sent is judged.
        """
        _check_report(report)
        from parley.conformance.client_run import CommandDriver, run_client, watch_client

        choice: dict[str, Any] = {
            "only": tuple(only),
            "skip": tuple(skip),
            "bindings": _known_bindings(binding),
            "protocol_versions": _known_versions(protocol_version),
        }
        if run:
            try:
                driver = CommandDriver(run, patience=patience)
            except ValueError as error:
                raise UsageFailure(f"--run: {error}") from None
            made = _run(run_client(driver, subject=run, patience=2 * patience, **choice))
        else:
            made = _run(watch_client(lambda pairs: _watch(output, pairs), **choice))
        return _finish(output, made, report, verbose=settings.verbose, strict=strict)


async def _watch(output: Output, pairs: list[tuple[ClientScenario, Visit]]) -> None:
    """Show the addresses, and wait for Ctrl-C."""
    import asyncio

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
    output.note("run the client against each address; Ctrl-C ends, and judges what it did")
    await ended.wait()


def _run(running: Coroutine[Any, Any, ConformanceReport]) -> ConformanceReport:
    import asyncio

    return asyncio.run(running)


def _finish(
    output: Output, made: ConformanceReport, file: str, *, verbose: bool, strict: bool
) -> int:
    if not made.verdicts:
        raise UsageFailure(
            "nothing was tried: no requirement fits these options",
            hint="--only and --skip take ids, or how they begin, such as CARD-1 or STREAM",
        )
    if file:
        path = Path(file)
        try:
            text = made.written(_format_of(path))  # type: ignore[arg-type]
            path.write_text(output.redact(text) + "\n", "utf-8")
        except OSError as error:
            raise UsageFailure(f"--report: {path} cannot be written: {error.strerror}") from None
    if output.is_json:
        output.json(output.redact(made.written("json")).encode())
    else:
        print_line(output.redact(made.written("text") if verbose else made.brief()))
    is_met = made.conforms and not (strict and made.failed)
    return 0 if is_met else FAILED


def _check_report(file: str) -> None:
    if file:
        _format_of(Path(file))


def _format_of(path: Path) -> str:
    if path.suffix.lower() not in SUFFIXES:
        raise UsageFailure(f"--report: {path.name} ends in none of {', '.join(SUFFIXES)}")
    return SUFFIXES[path.suffix.lower()]


def _known_bindings(given: list[str]) -> tuple[str, ...]:
    return _known("--binding", given, BINDINGS.get, tuple(BINDINGS))


def _known_versions(given: list[str]) -> tuple[str, ...]:
    return _known("--protocol-version", given, lambda n: n if n in VERSIONS else None, VERSIONS)


def _known(
    flag: str, given: list[str], find: Callable[[str], str | None], all: tuple[str, ...]
) -> tuple[str, ...]:
    found = []
    for each in given:
        known = find(each.upper())
        if known is None:
            raise UsageFailure(f"{flag} {each}: it is one of {', '.join(all)}")
        found.append(known)
    return tuple(found)
