"""The two streams: the payload goes to stdout, everything about the command to stderr.

No credential passes to stderr or into an error, whatever was said (``redaction``). Nothing passes
to either that a terminal would obey (``text``): whatever the command prints or logs goes through
here, except for what ``demo`` draws on a terminal and the lines of ``store export``.
"""

from __future__ import annotations

import io
import logging
import sys
import textwrap
import threading
from typing import Any

import msgspec

from parley.cli.output.failures import CommandFailure
from parley.cli.output.redaction import Redactor
from parley.cli.output.text import TextWriter, visible, visible_json
from parley.model.encoding import encode


class Output:
    """Writes results and diagnostics in the format that was asked for.

    A result is one JSON document, or one JSON object a line when streaming, or labelled text.
    """

    def __init__(
        self,
        *,
        is_json: bool,
        is_stream: bool = False,
        debug: bool = False,
        redact: Redactor | None = None,
    ) -> None:
        self.is_json = is_json
        self.is_stream = is_stream
        self.is_debug = debug
        self.redact = redact or Redactor()
        self.text = TextWriter(sys.stdout.write)

    def document(self, value: Any) -> None:
        """Write one protocol object: alone and formatted, or on a line of its own."""
        self.json(encode(value))

    def json(self, encoded: bytes) -> None:
        """Write JSON that is encoded already: formatted, or on a line of its own."""
        encoded = msgspec.json.format(encoded, indent=-1 if self.is_stream else 2)
        sys.stdout.write(visible_json(encoded.decode()) + "\n")
        sys.stdout.flush()

    def failure(self, failure: CommandFailure) -> None:
        """Report a failure: the error object on stdout for JSON, else lines on stderr."""
        if self.is_json:
            message, hint = self.redact(failure.message), self.redact(failure.hint or "")
            self.json(msgspec.json.encode(failure.envelope(message, hint or None)))
            return
        self.text.close()
        sys.stdout.flush()
        code = failure.code if failure.a2a_code is None else f"{failure.code} ({failure.a2a_code})"
        self._say("error", f"{failure.message} [{code}]")
        if failure.hint:
            self._say("hint", failure.hint)

    def warn(self, text: str) -> None:
        """Say something that the user should know."""
        self._say("warning", text)

    def note(self, text: str) -> None:
        """Say something that helps to go on."""
        self._say("note", text)

    def debug(self, text: str) -> None:
        """Say how the command works, if that was asked for."""
        if self.is_debug:
            self._say("debug", text)

    def _say(self, kind: str, text: str) -> None:
        lines = visible(self.redact(text)).splitlines() or [""]
        say("\n".join(f"{kind}: {line}" for line in lines), aside=True)


def say(text: str, *, aside: bool = False) -> None:
    """Print lines at once, on stdout or ``aside`` on stderr."""
    stream = sys.stderr if aside else sys.stdout
    stream.write(f"{visible(text)}\n")
    stream.flush()


class LogFormatter(logging.Formatter):
    """One line for each record; what has more goes on further in, and looks like no other."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line, and those that its message has beyond it."""
        return visible(super().formatMessage(record)).replace("\n", "\n  ")

    def formatException(self, ei: Any) -> str:
        """Return a traceback."""
        return textwrap.indent(visible(super().formatException(ei)), "  ")

    def formatStack(self, stack_info: str) -> str:
        """Return where a record was made."""
        return textwrap.indent(visible(super().formatStack(stack_info)), "  ")


def log_to_stderr(level: str) -> None:
    """Have everything that the server and its agents say logged, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        LogFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])


def prepare_streams() -> None:
    """Make both streams write UTF-8 everywhere, and never fail on a character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if logging.lastResort is not None:  # what is logged where nobody listens, by any library
        logging.lastResort.setFormatter(LogFormatter())


def listen_to_python() -> None:
    """Have logged what Python itself says beside the program: warnings, and what nobody caught."""
    log = logging.getLogger("parley")

    def told(what: str, kind: Any, error: Any, trace: Any) -> None:
        if kind is not SystemExit:  # with which a thread ends itself
            log.error(what, exc_info=(kind, error, trace))

    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, trace: told("parley failed", kind, error, trace)
    threading.excepthook = lambda args: told(
        "a thread failed", args.exc_type, args.exc_value, args.exc_traceback
    )
    sys.unraisablehook = lambda args: told(
        args.err_msg or "an exception was passed over",
        args.exc_type,
        args.exc_value,
        args.exc_traceback,
    )
