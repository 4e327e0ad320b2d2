"""The lines of a server's log: text with columns for people, JSON objects for programs.

The turns of agents (``parley.turns``) have one line of columns each, so that a terminal shows what
happens: time, skill, task, caller, event, duration. Untrusted text is escaped in both formats.
"""

from __future__ import annotations

import logging
import shutil
import textwrap
from datetime import UTC, datetime
from typing import Any

import msgspec

from parley.cli.output.text import cell, format_age, one_line, visible, visible_json
from parley.model.ids import REFERENCE_PREFIX

WIDTH = 80
"""The least width of a line, in columns."""

WIDEST = 140

_COLORS = {
    "completed": "32", "replied": "32", "asked": "33", "needs authorization": "33",
    "canceled": "35", "rejected": "35", "failed": "31",
}  # fmt: skip
_LEVELS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}
_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
"""The attributes of every record; the others are its fields."""


class LogFormatter(logging.Formatter):
    """Formats one line per record; further lines are indented, so that no text can imitate a
    record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record and the indented rest of its message."""
        return visible(super().formatMessage(record)).replace("\n", "\n  ")

    def formatException(self, ei: Any) -> str:
        """Return an indented traceback."""
        return textwrap.indent(visible(super().formatException(ei)), "  ")

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
        if (event := fields.get("event")) is None or record.name != "parley.turns":
            text = super().formatMessage(record)
            return self._colored(text, _LEVELS.get(record.levelno, ""))
        more = max(0, min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDEST) - WIDTH)
        doing = f"{event} {fields['to'].rpartition('//')[2]}" if "to" in fields else event
        if fields.get("attempt", 1) > 1:
            doing = f"{doing}, attempt {fields['attempt']}"
        line = " ".join(
            [
                record.asctime,
                cell(fields.get("skill", "-"), 11 + more // 3),
                cell(fields.get("task_id", "-")[:REFERENCE_PREFIX], REFERENCE_PREFIX),
                cell(fields["caller"] or "anonymous", 12 + more // 3),
                self._colored(cell(doing, 20 + more // 3), _COLORS.get(event, "2")),
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
            "message": record.getMessage(),
        }
        found |= {k: v for k, v in vars(record).items() if k not in _OWN and k not in found}
        if record.exc_info and record.exc_info[0] is not None:
            found["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            found["stack"] = record.stack_info
        return visible_json(msgspec.json.encode(_plain(found)).decode())


def _plain(value: Any) -> Any:
    """Return a field as JSON can have it."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def _duration(seconds: float | None) -> str:
    """Return a duration in seven columns."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:{'4.0f' if seconds >= 0.01 else '4.1f'}} ms"
    return f"{seconds:5.1f} s" if seconds < 60 else f"{format_age(round(seconds * 1000)):>7}"
