"""What never gets on a tape: credentials, wherever they stand in a request or an answer."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

HIDDEN = "[redacted]"
"""What stands for a secret. On a tape it matches anything."""

KEPT_OF_REQUESTS = frozenset(
    ("accept", "a2a-version", "a2a-extensions", "x-a2a-extensions", "content-type")
)
KEPT_OF_ANSWERS = frozenset(
    {
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
"""The headers that tapes have. All others may be secret, so they are left out."""

_OPEN_QUERY = frozenset(
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
    }
)
"""The query parameters that tapes have, in lower case and without underscores."""

_SECRET_MEMBERS = frozenset(
    {
        "accesstoken",
        "apikey",
        "assertion",
        "authorization",
        "bearertoken",
        "clientassertion",
        "clientsecret",
        "codeverifier",
        "cookie",
        "credentials",
        "devicecode",
        "idtoken",
        "jwt",
        "passwd",
        "password",
        "privatekey",
        "refreshtoken",
        "secret",
        "secretkey",
        "sessiontoken",
        "setcookie",
        "subjecttoken",
        "actortoken",
        "token",
        "xapikey",
    }
)
_OPEN_FORM = frozenset(("grant_type", "scope", "response_type", "token_type_hint", "audience"))
_PUSH_MEMBERS = frozenset(
    ("pushnotificationconfig", "taskpushnotificationconfig", "configs", "config")
)
_LOOKS_SECRET = re.compile(
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?-----END [A-Z ]{0,40}PRIVATE KEY-----"
    r"|\bsk-[A-Za-z0-9_-]{20,}|\b(?:gh[opsur]_|github_pat_|glpat-|hf_|npm_)[A-Za-z0-9_-]{20,}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[A-Za-z0-9_-]{35}",
    re.DOTALL,
)
_URL = re.compile(r"https?://[^\s\"'<>]+")
_SHORTEST = 6
"""Shorter values are not looked for in texts: they would be found in words."""


class Hiding:
    """Hides secrets in what goes on a tape, and remembers those that it sees.

    A secret of a header or a member is hidden wherever else it occurs. ``secrets`` are further
    values to hide.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: set[str] = set()
        for secret in secrets:
            self.learn(secret)

    def learn(self, secret: str) -> None:
        """Hide a value from now on."""
        if len(secret) >= _SHORTEST and secret != HIDDEN:
            self._known |= {secret, quote(secret, safe="")}

    def learn_headers(self, headers: Mapping[str, str], kept: frozenset[str]) -> None:
        """Remember the values of headers that may be secret."""
        for name, value in headers.items():
            low = name.lower()
            if low in kept or not _may_be_secret(low):
                continue
            self.learn(value)
            scheme, _, rest = value.partition(" ")
            self.learn(rest)
            if "cookie" in low:
                for pair in value.split(";"):
                    self.learn(pair.partition("=")[2].strip())
            if scheme.lower() == "basic":
                self._learn_basic(rest)

    def _learn_basic(self, encoded: str) -> None:
        try:
            pair = base64.b64decode(encoded).decode()
        except (binascii.Error, UnicodeDecodeError):
            return
        self.learn(pair)
        self.learn(pair.partition(":")[2])

    def headers(self, headers: Mapping[str, str], kept: frozenset[str]) -> dict[str, str]:
        """Return the headers that a tape has."""
        self.learn_headers(headers, kept)
        found = {name.lower(): value for name, value in headers.items() if name.lower() in kept}
        return {name: self.text(found[name]) for name in sorted(found)}

    def url(self, url: str) -> str:
        """Return an address without user, fragment and the values of unknown parameters."""
        try:
            parts = urlsplit(url)
        except ValueError:
            return HIDDEN
        if parts.password:
            self.learn(parts.password)
        pairs = []
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name.lower().replace("_", "") not in _OPEN_QUERY:
                self.learn(value)
                value = HIDDEN
            pairs.append((name, value))
        host = parts.netloc.rpartition("@")[2]
        query = urlencode(pairs, safe="[]")
        return self._without_known(urlunsplit((parts.scheme, host, parts.path, query, "")))

    def text(self, text: str) -> str:
        """Return a text without secrets that are known or look like one."""
        if "://" in text:
            text = _URL.sub(_without_credentials, text)
        return self._without_known(_LOOKS_SECRET.sub(HIDDEN, text))

    def json(self, value: Any, *, name: str = "", in_push: bool = False, open: bool = False) -> Any:
        """Return a JSON value without secrets."""
        low = name.lower().replace("_", "").replace("-", "")
        if isinstance(value, dict):
            in_push = in_push or low in _PUSH_MEMBERS
            open = open or low == "logprobs"
            return {
                self._without_known(key): self.json(each, name=key, in_push=in_push, open=open)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self.json(each, name=name, in_push=in_push, open=open) for each in value]
        if isinstance(value, str):
            if value and low in _SECRET_MEMBERS and not open:
                self.learn(value)
                return HIDDEN
            if in_push and low == "url":
                return self._webhook(value)
            return self.text(value)
        return value

    def form(self, body: str) -> str:
        """Return a form without the values of its fields, but for harmless ones."""
        pairs = []
        for name, value in parse_qsl(body, keep_blank_values=True):
            if name not in _OPEN_FORM:
                self.learn(value)
                value = HIDDEN
            pairs.append((name, value))
        return urlencode(pairs, safe="[]")

    def _webhook(self, url: str) -> str:
        """Return the origin of a webhook: its path is often what protects it."""
        try:
            parts = urlsplit(url)
        except ValueError:
            return HIDDEN
        if len(parts.path) > 1:
            self.learn(parts.path[1:])
        self.url(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{HIDDEN}"

    def _without_known(self, text: str) -> str:
        for secret in sorted(self._known, key=len, reverse=True):
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text


def _may_be_secret(name: str) -> bool:
    words = ("auth", "cookie", "key", "token", "secret", "password", "credential", "session")
    return any(word in name for word in words)


def _without_credentials(match: re.Match[str]) -> str:
    url = match[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    if "@" not in parts.netloc and not parts.query:
        return url
    pairs = [
        (name, HIDDEN if name.lower().replace("_", "") in _SECRET_QUERY else value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    if "@" not in parts.netloc and all(value != HIDDEN for _, value in pairs):
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, urlencode(pairs, safe="[]"), ""))


_SECRET_QUERY = _SECRET_MEMBERS | {"key", "auth", "sig", "signature", "code", "xamzsignature"}
