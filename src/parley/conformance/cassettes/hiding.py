"""What never gets on a tape: credentials, wherever they stand in a request or an answer."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

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
_NAMES = frozenset(
    (
        "properties",
        "definitions",
        "$defs",
        "securityschemes",
        "security",
        "securityrequirements",
        "schemes",
    )
)
"""Members whose own members are names that somebody chose, and not those of values."""
_HEADERS = frozenset(("headers", "header", "httpheaders", "requestheaders", "responseheaders"))
_MEMBER = re.compile(r'(\\*)"([\w.-]{1,80})\1"(\s*:\s*)\1"(.*?)(?<!\\)\1"', re.DOTALL)
"""A member with a text, in JSON that is part of a text, or of a text in a text."""
_PAIR = re.compile(r"(?:(?<=[?&;\s])|^)([\w.~-]{1,80})=([^&;\s\"'<>#]+)", re.MULTILINE)
_SCHEME = re.compile(r"\b(Bearer|Basic)(\s+)([A-Za-z0-9._~+/-]{6,}=*)", re.IGNORECASE)
_LEAST_NUMBER = 1000
"""A smaller number is no secret."""
_COOKIES = re.compile(r"=([^;]*)")
_SET_COOKIES = re.compile(r"(?:^|,)\s*[^=;,\s]+=([^;,]*)")
_URL = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")
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
            if low not in kept and _may_be_secret(low):
                self._learn_header(low, value)

    def _learn_header(self, name: str, value: str) -> None:
        """Remember the value of a header, and what it is made of."""
        self.learn(value)
        scheme, _, rest = value.partition(" ")
        if "cookie" in name:
            cookies = _SET_COOKIES if name.replace("-", "") == "setcookie" else _COOKIES
            for cookie in cookies.findall(value):
                self.learn(cookie.strip())
        self.learn(rest)
        if scheme.lower() == "basic":
            self._learn_basic(rest)

    def _learn_basic(self, encoded: str) -> bool:
        """Remember user and password of Basic credentials, and return whether it is such."""
        try:
            pair = base64.b64decode(encoded).decode()
        except (binascii.Error, UnicodeDecodeError):
            return False
        self.learn(pair)
        self.learn(pair.partition(":")[2])
        return ":" in pair

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
        self._learn_user(parts)
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
            text = _URL.sub(self._without_credentials, text)
        if "=" in text:
            text = _PAIR.sub(self._pair, text)
        if '"' in text:
            text = _MEMBER.sub(self._member, text)
        text = _SCHEME.sub(self._scheme, text)
        return self._without_known(_LOOKS_SECRET.sub(HIDDEN, text))

    def json(self, value: Any, *, name: str = "", in_push: bool = False, open: bool = False) -> Any:
        """Return a JSON value without secrets."""
        low = _joined(name)
        if isinstance(value, dict):
            return self._object(value, low, in_push=in_push, open=open)
        if isinstance(value, list):
            if low in _HEADERS:
                value = [self._header_pair(each) for each in value]
            return [self.json(each, name=name, in_push=in_push, open=open) for each in value]
        if isinstance(value, str):
            if value and _is_secret(low) and not open:
                return self._all_hidden(value, low)
            if in_push and low == "url":
                return self._webhook(value)
            return self.text(self._json_text(value))
        return self._all_hidden(value, low) if _is_secret(low) and not open else value

    def _object(
        self, value: dict[str, Any], low: str, *, in_push: bool, open: bool
    ) -> dict[str, Any]:
        in_push = in_push or low in _PUSH_MEMBERS
        open = open or low == "logprobs"
        hidden: dict[str, Any] = {}
        for key, each in value.items():
            shown, joined = self._without_known(key), _joined(key)
            is_secret = _is_secret(joined) or (low in _HEADERS and _may_be_secret(key.lower()))
            if joined == "value":  # {"name": "Authorization", "value": "..."}
                named = value.get("name", value.get("key"))
                is_secret = isinstance(named, str) and _is_secret(_joined(named))
            if is_secret and low in _NAMES:
                hidden[shown] = self.json(each, in_push=in_push, open=open)
            elif is_secret and not open:
                hidden[shown] = self._all_hidden(each, key)
            else:
                hidden[shown] = self.json(each, name=key, in_push=in_push, open=open)
        return hidden

    def _all_hidden(self, value: Any, name: str) -> Any:
        """Return the value of a member that is secret: nothing of it is kept but its form."""
        if isinstance(value, dict):
            return {key: self._all_hidden(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [self._all_hidden(each, name) for each in value]
        if isinstance(value, str) and value:
            self._learn_header(name.lower(), value)
            return HIDDEN
        if isinstance(value, int | float) and not isinstance(value, bool):
            if abs(value) < _LEAST_NUMBER:
                return value
            self.learn(str(value))
            return HIDDEN
        return value

    def _header_pair(self, pair: Any) -> Any:
        """Return a header that is a list of its name and its value."""
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str) for x in pair):
            name, value = pair
            if _may_be_secret(name.lower()):
                return [name, self._all_hidden(value, name)]
        return pair

    def _json_text(self, text: str) -> str:
        """Return a text that may be JSON, as arguments of tools are, without secret members."""
        if text.lstrip()[:1] not in ("{", "[", '"'):
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

    # -- what stands in a text -----------------------------------------------------------------

    def _learn_user(self, parts: SplitResult) -> None:
        for each in (parts.password, None if parts.password else parts.username):
            self.learn(each or "")
            self.learn(unquote(each or ""))

    def _without_credentials(self, match: re.Match[str]) -> str:
        url = match[0]
        try:
            parts = urlsplit(url)
            self._learn_user(parts)
        except ValueError:
            return HIDDEN
        query, fragment = self._without_secret_values(parts.query), parts.fragment
        if "=" in fragment:
            fragment = self._without_secret_values(fragment)
        host = parts.netloc.rpartition("@")[2]
        if (host, query, fragment) == (parts.netloc, parts.query, parts.fragment):
            return url
        return urlunsplit((parts.scheme, host, parts.path, query, fragment))

    def _without_secret_values(self, query: str) -> str:
        kept, pairs = [], parse_qsl(query, keep_blank_values=True)
        for name, value in pairs:
            is_secret = _is_secret(_joined(name), _SECRET_QUERY)
            if is_secret:
                self.learn(value)
            kept.append((name, HIDDEN if is_secret else value))
        return query if kept == pairs else urlencode(kept, safe="[]")

    def _pair(self, match: re.Match[str]) -> str:
        name, value = match.groups()
        if not _is_secret(_joined(name)) or value == HIDDEN:
            return match[0]
        self.learn(value)
        self.learn(unquote(value))
        return f"{name}={HIDDEN}"

    def _member(self, match: re.Match[str]) -> str:
        escape, name, between, value = match.groups()
        if not value or not _is_secret(_joined(name)):
            return match[0]
        self.learn(value)
        return f'{escape}"{name}{escape}"{between}{escape}"{HIDDEN}{escape}"'

    def _scheme(self, match: re.Match[str]) -> str:
        scheme, between, value = match.groups()
        if scheme.lower() == "basic":
            is_secret = self._learn_basic(value)
        else:
            is_secret = len(value) > 7 and any(sign.isdigit() for sign in value)
        if not is_secret:
            return match[0]
        self.learn(value)
        return f"{scheme}{between}{HIDDEN}"

    def _without_known(self, text: str) -> str:
        for secret in sorted(self._known, key=len, reverse=True):
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text


def _may_be_secret(name: str) -> bool:
    words = ("auth", "cookie", "key", "token", "secret", "password", "credential", "session")
    return any(word in name for word in words)


def _joined(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _is_secret(name: str, whole: frozenset[str] = _SECRET_MEMBERS) -> bool:
    return name in whole or name.endswith(_SECRET_ENDS)


_SECRET_QUERY = _SECRET_MEMBERS | {
    "key", "auth", "sig", "signature", "code", "xamzsignature", "xgoogsignature"
}  # fmt: skip
