"""The two streams: the payload goes to stdout, everything about the command to stderr.

No credential gets to stderr or into an error (``redaction``), and no control character to either
stream (``text``). All output and logs go through here, except the drawing of ``demo`` on a terminal
and the lines of ``store export``. The boundary of every command is here too: it turns an exception
into a report and an exit status.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TextIO, cast

import msgspec

from parley.cli.output.failures import BROKEN_PIPE, INTERRUPTED, CommandFailure, OutputLost
from parley.cli.output.redaction import Redactor
from parley.cli.output.text import TextWriter, cell, format_age, one_line, visible, visible_json
from parley.model.ids import REFERENCE_PREFIX
from parley.model.struct import encode
from parley.observe.logs import ContextFields
from parley.security.exposed_secrets import masked

_WIDTH = 80
"""The least width of a line, in columns."""

_WIDEST = 140

_COLORS = {
    "completed": "32", "replied": "32", "asked": "33", "needs authorization": "33",
    "canceled": "35", "rejected": "35", "failed": "31",
}  # fmt: skip
_LEVELS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}
_COLUMNS = ("parley.turns", "parley.access")
"""The loggers whose events are lines of columns."""

_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""The attributes of every record; the others are its fields."""
_NAMES = {
    "agent", "attempt", "context_id", "error", "event", "message_id", "operation", "reference",
    "skill", "span_id", "state", "system", "task_id", "trace_id",
}  # fmt: skip
"""The fields with names and ids, which have no secrets."""


class Output:
    """Writes results and diagnostics in the chosen format.

    A result is one JSON document, or one JSON object per line when streaming, or labelled text.
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
        self.text = TextWriter(sys.stdout.write, dims=draws())

    def document(self, value: Any) -> None:
        """Write one protocol object: alone and formatted, or on its own line."""
        self.json(encode(value))

    def json(self, encoded: bytes) -> None:
        """Write encoded JSON: formatted, or on its own line."""
        encoded = msgspec.json.format(encoded, indent=-1 if self.is_stream else 2)
        sys.stdout.write(visible_json(encoded.decode()) + "\n")
        sys.stdout.flush()

    def report(self, document: Any, *fields: tuple[str, object]) -> None:
        """Write a result: the document as JSON, or the fields as text."""
        if self.is_json:
            self.document(document)
            return
        for label, value in fields:
            self.text.field(label, value)

    def failure(self, failure: CommandFailure) -> None:
        """Report a failure: the error object on stdout for JSON, else lines on stderr."""
        if self.is_json:
            message, hint = self.redact(failure.message), self.redact(failure.hint or "")
            self.json(msgspec.json.encode(failure.envelope(message, hint or None)))
            return
        self.text.close()
        sys.stdout.flush()
        code = failure.code if failure.a2a_code is None else f"{failure.code} ({failure.a2a_code})"
        self._print("error", f"{failure.message} [{code}]")
        if failure.hint:
            self._print("hint", failure.hint)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._print("warning", text)

    def note(self, text: str) -> None:
        """Print a note."""
        self._print("note", text)

    def debug(self, text: str) -> None:
        """Print a debug line, if --debug is on."""
        if self.is_debug:
            self._print("debug", text)

    def _print(self, kind: str, text: str) -> None:
        lines = visible(self.redact(text)).splitlines() or [""]
        print_line("\n".join(f"{kind}: {line}" for line in lines), err=True)


def print_line(text: str, *, err: bool = False) -> None:
    """Print lines and flush, on stdout or (``err``) on stderr.

    Failures of stderr are ignored: a command works without it.
    """
    if not err:
        sys.stdout.write(f"{visible(text)}\n")
        sys.stdout.flush()
        return
    try:
        sys.stderr.write(f"{visible(text)}\n")
        sys.stderr.flush()
    except OSError:
        give_up(sys.stderr)


class Stdout:
    """Stdout, whose failures raise ``OutputLost``, except for a reader that has gone away."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text. Raises ``OutputLost``."""
        with _losses():
            return self.stream.write(text)

    def flush(self) -> None:
        """Write buffered text. Raises ``OutputLost``."""
        with _losses():
            self.stream.flush()


@contextlib.contextmanager
def _losses() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(error.strerror or type(error).__name__) from None


def give_up(stream: TextIO) -> None:
    """Abandon a stream: the interpreter must find nothing to flush at its exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def exit_status_of(output: Output, action: Callable[[], int | None]) -> int:
    """Run ``action`` and return its exit status, or the exit status of its failure."""
    try:
        status = action() or 0
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        give_up(sys.stdout)
        return BROKEN_PIPE
    except CommandFailure as failure:
        if failure.__cause__ is not None:
            output.debug(traceback.format_exc())
        return _report(output, failure)
    except Exception as error:
        output.debug(traceback.format_exc())
        return _report(
            output,
            CommandFailure(
                "A2ACLI_ERR_INTERNAL",
                f"parley failed: {type(error).__name__}: {error}",
                hint="the same command with --debug shows where; please report it",
            ),
        )


def leave_stdout() -> None:
    """Write buffered text, or drop it: the interpreter would report the failure again."""
    try:
        sys.stdout.flush()
    except (OutputLost, OSError):
        give_up(sys.stdout)


def _report(output: Output, failure: CommandFailure) -> int:
    if isinstance(failure, OutputLost):
        return _report_loss(output, failure)
    try:
        output.failure(failure)
    except BrokenPipeError:
        give_up(sys.stdout)
    except OutputLost as lost:
        _report_loss(output, lost)
        return _report_loss(output, failure)
    return failure.exit_status


def _report_loss(output: Output, failure: CommandFailure) -> int:
    """Report a failure on stderr, whatever the format: stdout cannot be written."""
    give_up(sys.stdout)
    Output(is_json=False, redact=output.redact).failure(failure)
    return failure.exit_status


class LogFormatter(logging.Formatter):
    """Formats one line per record; further lines are indented, so that no text can imitate a
    record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record and the indented rest of its message."""
        return visible(masked(super().formatMessage(record))).replace("\n", "\n  ")

    def formatException(self, ei: Any) -> str:
        """Return an indented traceback."""
        return textwrap.indent(visible(masked(super().formatException(ei))), "  ")

    def formatStack(self, stack_info: str) -> str:
        """Return the indented stack of a record."""
        return textwrap.indent(visible(super().formatStack(stack_info)), "  ")


class TextLines(LogFormatter):
    """Formats records for people: events of turns in columns, other records as one text."""

    def __init__(self, *, colors: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
        self._colors = colors

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record. A failure has further lines with all its names."""
        fields = vars(record)
        if (event := fields.get("event")) is None or record.name not in _COLUMNS:
            text = super().formatMessage(record)
            if (task_id := fields.get("task_id")) is not None and task_id not in text:
                text += f" (task {task_id})"
            return self._colored(text, _LEVELS.get(record.levelno, ""))
        more = max(0, min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDEST) - _WIDTH)
        doing = f"{event} {fields['to'].rpartition('//')[2]}" if "to" in fields else event
        if fields.get("attempt", 1) > 1:
            doing = f"{doing}, attempt {fields['attempt']}"
        width = 20 if record.name == "parley.turns" else 32
        line = " ".join(
            [
                record.asctime,
                cell(fields.get("skill", "-"), 11 + more // 3),
                cell(fields.get("task_id", "-")[:REFERENCE_PREFIX], REFERENCE_PREFIX),
                cell(fields.get("caller") or "anonymous", 12 + more // 3),
                self._colored(cell(doing, width + more // 3), _COLORS.get(event, "2")),
                _duration(fields.get("duration")),
            ]
        ).rstrip()
        if reference := fields.get("reference"):
            line += f"\n  reference {reference}"
            if task_id := fields.get("task_id"):
                line += f" of task {task_id}\n  context {one_line(fields['context_id'])}"
            line += f", skill {one_line(fields['skill'])}"
        return line

    def _colored(self, text: str, color: str) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if color and self._colors else text


class JsonLines(logging.Formatter):
    """Formats each record as a JSON object on one line: its time, level, logger, message, fields.

    A traceback is the field ``exception``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": masked(record.getMessage()),
        }
        found |= {
            name: _plain(value, masks=name not in _NAMES)
            for name, value in vars(record).items()
            if name not in _OWN and name not in found
        }
        if record.exc_info and record.exc_info[0] is not None:
            found["exception"] = masked(self.formatException(record.exc_info))
        if record.stack_info:
            found["stack"] = masked(record.stack_info)
        return visible_json(msgspec.json.encode(found).decode())


def _plain(value: Any, *, masks: bool = True) -> Any:
    """Return a field as JSON can have it, without secrets if ``masks``."""
    if not isinstance(value, str):
        if isinstance(value, dict):
            return {str(_plain(key)): _plain(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [_plain(each) for each in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        value = str(value)
    if not value.isascii():
        value = value.encode("utf-8", "backslashreplace").decode()
    return masked(value) if masks else value


def _duration(seconds: float | None) -> str:
    """Return a duration in seven columns."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:{'4.0f' if seconds >= 0.01 else '4.1f'}} ms"
    return f"{seconds:5.1f} s" if seconds < 60 else f"{format_age(round(seconds * 1000)):>7}"


def log_to_stderr(level: str, log_format: str = "", *, holds: bool = False) -> Callable[[], None]:
    """Log everything of the server and its agents to stderr.

    ``log_format`` is ``text`` or ``json``; the default is text on a terminal. With ``holds``
    records below WARNING wait for a call of the returned function, or for a warning.
    """
    from logging.handlers import MemoryHandler  # slow to import

    handler = logging.StreamHandler(sys.stderr)
    is_text = log_format == "text" or (not log_format and sys.stderr.isatty())
    handler.setFormatter(TextLines(colors=draws(sys.stderr)) if is_text else JsonLines())
    handler.addFilter(ContextFields())
    held = MemoryHandler(1000, logging.WARNING if holds else logging.NOTSET, handler)
    logging.basicConfig(level=level.upper(), handlers=[held])
    _quiet_clients(level)
    if is_text:  # people read them with parley audit
        logging.getLogger("parley.audit.lines").setLevel(logging.WARNING)

    def release() -> None:
        held.flushLevel = logging.NOTSET
        held.flush()

    return release


def set_log_level(level: str) -> None:
    """Log everything of this level, and above it."""
    logging.getLogger().setLevel(level.upper())
    _quiet_clients(level)


def _quiet_clients(level: str) -> None:
    for name in ("httpx", "httpx2"):  # these libraries log each request at level info
        logging.getLogger(name).setLevel(logging.NOTSET if level == "debug" else logging.WARNING)


def prepare_streams() -> None:
    """Make both streams write UTF-8 on every platform, and never fail on a character.

    A stream that the caller has closed accepts everything and discards it.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if not isinstance(sys.stdout, Stdout):
        sys.stdout = cast("TextIO", Stdout(sys.stdout))
    if logging.lastResort is not None:  # for libraries that log without a handler
        logging.lastResort.setFormatter(LogFormatter())


def log_python_errors() -> None:
    """Log Python's own output: warnings, and uncaught exceptions."""
    log = logging.getLogger("parley")

    def log_error(text: str, kind: Any, error: Any, trace: Any) -> None:
        if kind is not SystemExit:  # the normal end of a thread
            log.error(text, exc_info=(kind, error, trace))

    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, trace: log_error("parley failed", kind, error, trace)
    threading.excepthook = lambda args: log_error(
        "a thread failed", args.exc_type, args.exc_value, args.exc_traceback
    )
    sys.unraisablehook = lambda args: log_error(
        args.err_msg or "an exception was ignored",
        args.exc_type,
        args.exc_value,
        args.exc_traceback,
    )


def draws(stream: TextIO | None = None) -> bool:
    """Return whether a stream, by default stdout, is a terminal with styles and a cursor.

    See https://no-color.org.
    """
    stream = stream or sys.stdout
    return (
        stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") != "dumb"
    )
