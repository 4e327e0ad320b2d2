"""Redaction of tapes: credentials are never written, wherever a request or response has them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

HIDDEN = "[redacted]"
"""The replacement of a secret. On a tape it matches any value."""

KEPT_HEADERS = frozenset(
    {
        "accept",
        "a2a-version",
        "a2a-extensions",
        "x-a2a-extensions",
        "content-type",
        "content-disposition",
        "cache-control",
        "etag",
        "last-modified",
        "retry-after",
        "allow",
        "location",
        "server",
    }
)
"""The headers that tapes keep. All others may be secret, so they are left out."""

_OPEN_PARAMETERS = frozenset(
    {
        "contextid",
        "status",
        "pagesize",
        "pagetoken",
        "historylength",
        "includeartifacts",
        "statustimestampafter",
        "lastupdatedafter",
        "tenant",
        "stream",
        "limit",
        "after",
        "granttype",
        "scope",
        "responsetype",
        "tokentypehint",
        "audience",
    }
)
"""The request parameters and form fields that tapes keep. Here and below, names are in lower case
with their words joined.
"""

_SECRET = re.compile(
    r"^(?:assertion|authorization|bearer|clientassertion|codeverifier|cookie|credentials|devicecode"
    r"|jwt|passwd|setcookie|token)$"
    r"|(?:access|actor|api|auth|bearer|id|refresh|security|session|subject)token$"
    r"|(?:access|api|private|secret|signing|subscription)key$"
    r"|(?:passphrase|password|secret)$"
)
"""The names of secret members, and of secret values in texts."""
_SECRET_PARAMETER = re.compile(r"^(?:key|auth|sig|signature|code|x(?:amz|goog)signature)$")
"""Further names of secrets, in addresses only."""
_SECRET_HEADER = re.compile("auth|cookie|key|token|secret|password|credential|session")
_HEADERS = re.compile("^(?:http|request|response)?headers?$")
_PUSH_CONFIGS = re.compile("pushnotification|^configs?$")
_NAMES = re.compile(
    r"^(?:properties|definitions|\$defs|securityschemes|security|securityrequirements|schemes)$"
)
"""Members whose value maps arbitrary names to schemas or descriptions, not names to values."""

_TOKEN = re.compile(
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?-----END [A-Z ]{0,40}PRIVATE KEY-----"
    r"|\bsk-[A-Za-z0-9_-]{20,}|\b(?:gh[opsur]_|github_pat_|glpat-|hf_|npm_)[A-Za-z0-9_-]{20,}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[A-Za-z0-9_-]{35}",
    re.DOTALL,
)
_USER = re.compile(r"(?<=://)([^/?#\s'\"<>]+)@")
_PAIR = re.compile(
    r"(?P<mark>[?&#]|(?<=[;\s])|^)(?P<name>[\w.~-]{1,80})=(?P<value>[^&;\s\"'<>#]+)", re.MULTILINE
)
_MEMBER = re.compile(
    r'(?P<mark>\\*)"(?P<name>[\w.-]{1,80})(?P=mark)"\s*:\s*'
    r'(?P=mark)"(?P<value>.*?)(?<!\\)(?P=mark)"',
    re.DOTALL,
)
"""A JSON member with a text value, inside a text or inside a text in a text."""
_SCHEME = re.compile(r"\b(Bearer|Basic)\s+([A-Za-z0-9._~+/-]{6,}=*)", re.IGNORECASE)
_COOKIE = re.compile(
    r"(?:^|[;,])\s*(?!(?:domain|path|expires|max-age|samesite)=)[^=;,\s]+=([^;,]*)", re.IGNORECASE
)
_MIN_SECRET_LENGTH = 6
"""The shortest secret that is searched for in texts: shorter values occur in ordinary words."""
_MIN_SECRET_NUMBER = 1000
"""The smallest number that counts as a secret."""


class TapeRedactor:
    """Redacts the secrets of a tape, and remembers every secret it meets.

    A secret from a header or a member is redacted wherever it occurs again. ``secrets`` are further
    values to redact.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: set[str] = set()
        for secret in secrets:
            self.learn(secret)

    def learn(self, secret: str, name: str = "") -> None:
        """Redact a value from now on, with its components: credentials after a scheme, cookies.

        ``name`` is the name of the header or member that holds the value.
        """
        parts = [secret, unquote(secret), secret.partition(" ")[2]]
        if secret[:6].lower() == "basic ":
            parts += _user_and_password(secret[6:])
        if "cookie" in name.lower():
            parts += [cookie.strip() for cookie in _COOKIE.findall(secret)]
        for part in parts:
            if len(part) >= _MIN_SECRET_LENGTH and HIDDEN not in part:
                self._known |= {part, quote(part, safe="")}

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that a tape keeps, and remember all other values as secrets."""
        kept = {}
        for name, value in sorted((name.lower(), value) for name, value in headers.items()):
            if name in KEPT_HEADERS:
                kept[name] = self.url(value) if name == "location" else self.text(value)
            elif _SECRET_HEADER.search(name):
                self.learn(value, name)
        return kept

    def url(self, url: str) -> str:
        """Return an address without user, fragment and the values of unknown parameters.

        Text that is no valid address is dropped entirely.
        """
        try:
            urlsplit(url)
        except ValueError:
            return HIDDEN
        address, mark, query = _USER.sub(self._user, url).partition("#")[0].partition("?")
        return self._without_known(address + mark) + self.form(query)

    def form(self, body: str) -> str:
        """Return a form or query string without its field values, except harmless ones."""
        pairs = []
        for name, value in parse_qsl(body, keep_blank_values=True):
            if _joined(name) not in _OPEN_PARAMETERS:
                self.learn(value)
                value = HIDDEN
            pairs.append((name, value))
        return self._without_known(urlencode(pairs, safe="[]"))

    def text(self, text: str) -> str:
        """Return a text without known secrets and without strings that look like secrets.

        A JSON text, such as the arguments of a tool, loses its secret members.
        """
        if text.lstrip()[:1] in ("{", "[", '"'):
            try:
                value = json.loads(text)
                hidden = self.json(value)
            except (ValueError, RecursionError):
                pass
            else:
                text = text if hidden == value else json.dumps(hidden, ensure_ascii=False)
        text = _USER.sub(self._user, text)
        for pattern in (_PAIR, _MEMBER):
            text = pattern.sub(self._value, text)
        text = _SCHEME.sub(self._credentials, text)
        return self._without_known(_TOKEN.sub(HIDDEN, text))

    def json(self, value: Any, name: str = "", *, is_secret: bool = False) -> Any:
        """Return a JSON value without secrets.

        ``name`` is the name of its member. A secret value keeps only its JSON structure.
        """
        low = _joined(name)
        if isinstance(value, dict):
            is_push = _PUSH_CONFIGS.search(low) or "taskId" in value
            return {
                self._without_known(key): self._webhook(each)
                if is_push and key == "url" and isinstance(each, str)
                else self.json(each, key, is_secret=is_secret or _is_secret(key, low, value))
                for key, each in value.items()
            }
        if isinstance(value, list):
            if _HEADERS.search(low) and len(value) == 2 and isinstance(value[0], str):
                header, given = value  # ["Authorization", "Bearer ..."]
                hides = is_secret or _SECRET_HEADER.search(header.lower()) is not None
                shown = self.json(header, is_secret=is_secret)
                return [shown, self.json(given, header, is_secret=hides)]
            return [self.json(each, name, is_secret=is_secret) for each in value]
        if not is_secret:
            return self.text(value) if isinstance(value, str) else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not value or not (
            isinstance(value, str) or (is_number and abs(value) >= _MIN_SECRET_NUMBER)
        ):
            return value
        self.learn(str(value), name)
        return HIDDEN

    def _webhook(self, url: str) -> str:
        """Return the origin of a webhook address: its path is often the secret."""
        if (shown := self.url(url)) == HIDDEN:
            return HIDDEN
        parts = urlsplit(shown)
        self.learn(parts.path[1:])
        return f"{parts.scheme}://{parts.netloc}/{HIDDEN}"

    # -- secrets inside texts -------------------------------------------------------------------

    def _user(self, match: re.Match[str]) -> str:
        user, _, password = match[1].partition(":")
        self.learn(password or user)
        return ""

    def _value(self, match: re.Match[str]) -> str:
        """Redact the value of a name that denotes a secret."""
        mark, name, value = match.group("mark", "name", "value")
        low = _joined(name)
        is_secret = _SECRET.search(low) or (
            mark in ("?", "&", "#") and _SECRET_PARAMETER.match(low)
        )
        if not value or not is_secret:
            return match[0]
        self.learn(value)
        start, end = (at - match.start() for at in match.span("value"))
        return f"{match[0][:start]}{HIDDEN}{match[0][end:]}"

    def _credentials(self, match: re.Match[str]) -> str:
        """Redact the text after an authentication scheme, unless it is an ordinary word."""
        scheme, value = match.groups()
        if scheme.lower() == "basic":
            is_secret = bool(_user_and_password(value))
        else:
            is_secret = len(value) > 7 and any(map(str.isdigit, value))
        if not is_secret:
            return match[0]
        self.learn(match[0])
        return match[0].removesuffix(value) + HIDDEN

    def _without_known(self, text: str) -> str:
        for secret in sorted(self._known, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text


def _user_and_password(encoded: str) -> list[str]:
    """Return decoded Basic credentials, and the password alone; an empty list if they are
    malformed.
    """
    try:
        pair = base64.b64decode(encoded).decode()
    except ValueError:
        return []
    return [pair, pair.partition(":")[2]] if ":" in pair else []


def _is_secret(name: str, container: str, beside: Mapping[str, Any]) -> bool:
    """Return whether a member is secret; ``container`` is the name of its parent member."""
    if _HEADERS.search(container) and _SECRET_HEADER.search(name.lower()):
        return True
    if name.lower() == "value":  # {"name": "Authorization", "value": "..."}
        name = str(beside.get("name", beside.get("key")))
    if _NAMES.search(container) or "logprob" in beside:
        return False
    return _SECRET.search(_joined(name)) is not None


def _joined(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
