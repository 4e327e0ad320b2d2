"""Keeping credentials out of everything that is not the agent's own answer.

Nothing turns this off: neither --debug nor --verbose (command-line specification, §12.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

HIDDEN = "[redacted]"

# What the protocol itself sends is no secret, and worth reading in a log.
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
# A parameter such as "x-debug: 1" would blot out every 1; what is this short guards nothing.
_SHORTEST = 4


class Redactor:
    """Replaces known secrets, however they are written, in any text."""

    def __init__(
        self, credentials: Iterable[str | None] = (), parameters: Iterable[str] = ()
    ) -> None:
        values = {value for value in credentials if value}
        for parameter in parameters:
            value = parameter.partition(":")[2].strip()
            pieces = {value, *value.split(" ")}
            values |= {piece for piece in pieces if len(piece) >= _SHORTEST}
        forms = {form for value in values for form in _forms(value)}
        # The longest first, so that no secret is left half shown by a shorter one inside it.
        pattern = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        self._secrets = re.compile(pattern) if pattern else None

    def __call__(self, text: str) -> str:
        """Return ``text`` without the secrets."""
        if self._secrets is not None:
            text = self._secrets.sub(HIDDEN, text)
        return _USER_INFO.sub(f"{HIDDEN}@", text)

    def header(self, name: str, value: str) -> str:
        """Return a header as it may be shown: only the protocol's own have their value shown."""
        return f"{name}: {self(value) if name.lower() in _PUBLIC_HEADERS else HIDDEN}"


def without_user(address: str) -> str:
    """Return an address without a user and a password in it."""
    return _USER_INFO.sub("", address)


def _forms(value: str) -> set[str]:
    quoted = json.dumps(value)[1:-1]
    raw = json.dumps(value, ensure_ascii=False)[1:-1]
    return {value, quoted, raw, quote(value, safe=""), quote_plus(value)}
