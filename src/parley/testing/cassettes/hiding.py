"""What never gets on a tape: credentials, wherever they stand in a request or an answer."""

from __future__ import annotations

import base64
import binascii
import json
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
        "assertion",
        "authorization",
        "bearer",
        "clientassertion",
        "codeverifier",
        "cookie",
        "credentials",
        "devicecode",
        "jwt",
        "passwd",
        "setcookie",
        "token",
    }
)
_SECRET_ENDS = (
    "accesskey",
    "accesstoken",
    "actortoken",
    "apikey",
    "apitoken",
    "authtoken",
    "bearertoken",
    "idtoken",
    "passphrase",
    "password",
    "privatekey",
    "refreshtoken",
    "secret",
    "secretkey",
    "securitytoken",
    "sessiontoken",
    "signingkey",
    "subjecttoken",
    "subscriptionkey",
)
"""The ends of names of members that hold secrets; names are in lower case, words joined."""
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
_COOKIES = re.compile(r"=([^;]*)")
_SET_COOKIES = re.compile(r"(?:^|,)\s*[^=;,\s]+=([^;,]*)")
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
                for cookie in (_SET_COOKIES if low == "set-cookie" else _COOKIES).findall(value):
                    self.learn(cookie.strip())
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
            if _joined(name) not in _OPEN_QUERY:
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
        low = _joined(name)
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
            if value and _is_secret(low) and not open:
                self.learn(value)
                return HIDDEN
            if in_push and low == "url":
                return self._webhook(value)
            return self.text(self._json_text(value))
        return value

    def _json_text(self, text: str) -> str:
        """Return a text that may be JSON, as arguments of tools are, without secret members."""
        if text[:1] not in ("{", "["):
            return text
        try:
            value = json.loads(text)
            hidden = self.json(value)
        except (ValueError, RecursionError):
            return text
        return text if hidden == value else json.dumps(hidden, ensure_ascii=False)

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
    query, fragment = _without_secret_values(parts.query), parts.fragment
    if "=" in fragment:
        fragment = _without_secret_values(fragment)
    host = parts.netloc.rpartition("@")[2]
    if (host, query, fragment) == (parts.netloc, parts.query, parts.fragment):
        return url
    return urlunsplit((parts.scheme, host, parts.path, query, fragment))


def _without_secret_values(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    kept = [(n, HIDDEN if _is_secret(_joined(n), _SECRET_QUERY) else value) for n, value in pairs]
    return query if kept == pairs else urlencode(kept, safe="[]")


def _joined(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _is_secret(name: str, whole: frozenset[str] = _SECRET_MEMBERS) -> bool:
    return name in whole or name.endswith(_SECRET_ENDS)


_SECRET_QUERY = _SECRET_MEMBERS | {
    "key", "auth", "sig", "signature", "code", "xamzsignature", "xgoogsignature"
}  # fmt: skip
