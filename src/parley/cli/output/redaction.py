"""Redaction of credentials in all output except the agent's own answer.

Nothing disables it: neither --debug nor --verbose (command-line specification, §12.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

HIDDEN = "[redacted]"

# Headers of the protocol itself are not secret, and useful in a log.
_PUBLIC_HEADERS = frozenset(
    {
        "a2a-version",
        "a2a-extensions",
        "accept",
        "accept-encoding",
        "cache-control",
        "content-length",
        "content-type",
        "date",
        "etag",
        "host",
        "if-none-match",
        "last-event-id",
        "server",
        "transfer-encoding",
        "user-agent",
    }
)
_USER_INFO = re.compile(r"(?<=://)[^/\s@'\"]+@")
# A shorter value is not secret: redacting the "1" of "x-debug: 1" would hide every 1.
_MIN_SECRET = 4


class Redactor:
    """Replaces known secrets in any text, also in their quoted forms."""

    def __init__(
        self, credentials: Iterable[str | None] = (), parameters: Iterable[str] = ()
    ) -> None:
        values = {value for value in credentials if value}
        for parameter in parameters:
            value = parameter.partition(":")[2].strip()
            words = {value, *value.split(" ")}
            values |= {word for word in words if len(word) >= _MIN_SECRET}
        forms = {form for value in values for form in _forms(value)}
        # The longest first: a shorter secret inside a longer one must not leave the rest visible.
        pattern = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        self._secrets = re.compile(pattern) if pattern else None

    def __call__(self, text: str) -> str:
        """Return ``text`` without the secrets."""
        if self._secrets is not None:
            text = self._secrets.sub(HIDDEN, text)
        return _USER_INFO.sub(f"{HIDDEN}@", text)

    def header(self, name: str, value: str) -> str:
        """Return a header for display; only the protocol's own headers show their value."""
        return f"{name}: {self(value) if name.lower() in _PUBLIC_HEADERS else HIDDEN}"


def without_user(address: str) -> str:
    """Return an address without its user and password."""
    return _USER_INFO.sub("", address)


def _forms(value: str) -> set[str]:
    quoted = json.dumps(value)[1:-1]
    raw = json.dumps(value, ensure_ascii=False)[1:-1]
    return {value, quoted, raw, quote(value, safe=""), quote_plus(value)}
