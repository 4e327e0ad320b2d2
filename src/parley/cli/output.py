"""The two streams: the payload goes to stdout, everything about the command to stderr.

No credential passes to stderr or into an error, whatever was said (``redaction``).
"""

from __future__ import annotations

import io
import sys
from typing import Any

import msgspec

from parley.cli.failures import Failure
from parley.cli.redaction import Redactor
from parley.cli.text import TextWriter, visible
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
        sys.stdout.write(encoded.decode() + "\n")
        sys.stdout.flush()

    def failure(self, failure: Failure) -> None:
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
        sys.stderr.write("".join(f"{kind}: {line}\n" for line in lines))
        sys.stderr.flush()


def prepare_streams() -> None:
    """Make both streams write UTF-8 everywhere, and never fail on a character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
