"""Detection of secrets in cards, and redaction of secrets in logs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote_plus

from parley.security.networks import is_plain_public

# -- redaction --------------------------------------------------------------------------------

HIDDEN = "..."

_CREDENTIAL = re.compile(
    r"key|token|secret|passw|pwd|auth|credential|signature|session|assertion|^(sig|code|state)$"
)

_hidden: set[str] = set()


def hide_parameter(name: str) -> None:
    """Redact the values of a query parameter from now on. The name ignores case."""
    _hidden.add(name.lower())


def without_credentials(target: str) -> str:
    """Return a path or URL with the values of credential parameters removed.

    These are the parameters from which schemes read keys, and all with names of credentials.
    """
    path, mark, query = target.partition("?")
    if not mark:
        return target
    return path + mark + "".join([_hide(part) for part in re.split("([&;#])", query)])


def _hide(pair: str) -> str:
    name, equals, value = pair.partition("=")
    decoded = unquote_plus(name).strip().lower()
    is_hidden = decoded in _hidden or _CREDENTIAL.search(decoded) is not None
    return f"{name}={HIDDEN}" if equals and value and is_hidden else pair


def masked(text: str) -> str:
    """Return a text of a log without the secrets in it: known ones, and texts that look so."""
    if text in _harmless:
        return text
    found = re.sub("|".join(map(re.escape, _known)), HIDDEN, text) if _known else text
    found = _MASKED.sub(_mask, found)
    if found == text and len(text) <= _MAX_HARMLESS:
        if len(_harmless) >= _MOST_HARMLESS:
            _harmless.clear()
        _harmless.add(text)
    return found


def _mask(found: re.Match[str]) -> str:
    kind = next(kind for kind, name in zip(_KINDS, _NAMES, strict=True) if found[name])[0]
    return f"[hidden: {kind}]"


_known: list[str] = []
_MIN_SECRET = 6

_MAX_HARMLESS = 64  # characters
_MOST_HARMLESS = 1000
_harmless: set[str] = set()
"""Short texts without a secret: most fields of records repeat, and a search costs 0.4 us a letter.
"""


def hide_secrets(values: Iterable[str]) -> None:
    """Mask these secrets from now on; a value shorter than six characters is no secret."""
    found = {*_known, *(value for value in values if len(value) >= _MIN_SECRET)}
    _known[:] = sorted(found, key=len, reverse=True)
    _harmless.clear()


# -- exposed secrets --------------------------------------------------------------------------

_KINDS = (
    ("a private key", r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY-----"),
    ("a JSON Web Token", r"\beyJ[A-Za-z0-9_-]{8,500}\.eyJ[A-Za-z0-9_-]{8}"),
    ("a password in a URL", r"\w://[^\s/?#@:]{0,500}:[^\s/?#@]{1,500}@"),
    (
        "a credential in the query of a URL",
        r"[?&](?:access_token|api[_-]?key|auth|client_secret|key|password|secret|sig|token)="
        # Words that describe authentication (none, required, bearer ...) are not secrets.
        r"(?!(?:none|null|no|off|false|true|yes|on|required|optional|basic|bearer|oauth2?)(?:[&\s#]|$))"
        r"[^&\s#]",
    ),
    ("an AWS access key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("a GitHub token", r"\b(?:gh[opsur]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})"),
    ("a GitLab token", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("a Slack token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("a Google API key", r"\bAIza[A-Za-z0-9_-]{35}"),
    ("a Stripe key", r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    ("an API key", r"\bsk-[A-Za-z0-9_-]{20,}"),
    ("a Hugging Face token", r"\bhf_[A-Za-z0-9]{30,}"),
    ("a package registry token", r"\b(?:npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,})"),
    ("credentials of HTTP", r"\b(?:[Bb]earer|[Bb]asic)\s+(?=\S{0,200}\d)[A-Za-z0-9+/_.~-]{16}"),
    (
        "a password or key",
        r"(?i)\b(?:password|passwd|secret|api[_-]?key|access[_-]?token)\s*[:=]\s*[\"']?"
        r"(?=[^\s\"']{0,200}\d)[^\s\"'<>{}]{8}",
    ),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)
_NAMES = tuple(f"k{n}" for n in range(len(_KINDS)))
_MASKED = re.compile(
    "|".join(
        f"(?P<{name}>(?{'i' if pattern.startswith('(?i)') else ''}:{pattern.removeprefix('(?i)')})"
        + (r"(?s:.*?)(?:-----END[^-]*-----|\Z))" if "BEGIN" in pattern else r"[^\s\"'<>&,;)]*)")
        for name, (_, pattern) in zip(_NAMES, _KINDS, strict=True)
    )
)

_SECRET_MEMBERS = {
    *("accesstoken", "apikey", "bearertoken", "clientsecret", "password", "passwd"),
    *("privatekey", "refreshtoken", "secret", "secretkey", "token"),
}
_URL = re.compile(r"\w://\S+")
_RANDOM = re.compile(r"[A-Za-z0-9+/_=-]{24,}")
_HEX = re.compile(r"[0-9a-fA-F]{32,}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RANDOM_BITS = 4.2
_HEX_BITS = 3.2
_MAX_DEPTH = 100

_FREE_TEXT = frozenset(("description", "examples", "params"))
"""Card members with free text, where random characters may be a secret."""

_FOR_PEOPLE = frozenset(("params", "provider", "documentationUrl", "iconUrl"))
"""Card members whose URLs are for people, not for clients."""

_PUBLIC = frozenset(("signatures",))
"""Card members that look random but are public."""


def exposed(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and the kind of each secret in a JSON value, never the secret itself.

    Paths have the form ``skills[0].description``.
    """
    for path, names, text in _texts(value):
        if not text or not _PUBLIC.isdisjoint(names):
            continue
        name, is_free = names[-1] if names else "", not _FREE_TEXT.isdisjoint(names)
        if is_free and re.sub(r"[_-]", "", name).lower() in _SECRET_MEMBERS:
            yield path, f"the value of {name!r}"
        elif kind := kind_of(text, is_free=is_free):
            yield path, kind


def plain_urls(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the path and the URL of each place where a card sends credentials over plain http.

    URLs of this machine do not count. URLs are the members ``url`` and members that end with
    ``Url``. Identifier URIs, and the URLs of the provider, the documentation and the icon, are
    ignored.
    """
    for path, names, text in _texts(value):
        is_member = names and not path.endswith("]") and _FOR_PEOPLE.isdisjoint(names)
        if (
            is_member
            and (names[-1] == "url" or names[-1].endswith("Url"))
            and is_plain_public(text)
        ):
            yield path, text


def kind_of(text: str, *, is_free: bool = False) -> str:
    """Return the kind of secret in a text, empty if the text seems to have none.

    With ``is_free``, random characters count as a secret.
    """
    for kind, pattern in _PATTERNS:
        if pattern.search(text):
            return kind
    return "a random value, which may be a key" if is_free and _is_random(text) else ""


def _texts(
    value: Any, path: str = "", names: tuple[str, ...] = (), depth: int = 0
) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield the texts in a JSON value, with their paths and the names of enclosing members."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            where = f"{path}.{key}" if path else str(key)
            yield from _texts(item, where, (*names, str(key)), depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]", names, depth + 1)
    elif isinstance(value, str):
        yield path, names, value


def _is_random(text: str) -> bool:
    """Return whether a text has a long run of characters as in no language."""
    text = _URL.sub(lambda url: url[0].replace("/", " "), _UUID.sub("", text))
    for found in _RANDOM.findall(text):
        if _HEX.fullmatch(found):
            if _bits(found) > _HEX_BITS:
                return True
        elif (
            any(map(str.isdigit, found))
            and any(map(str.isupper, found))
            and any(map(str.islower, found))
            and _bits(found) > _RANDOM_BITS
        ):
            return True
    return False


def _bits(text: str) -> float:
    """Return the entropy of a text in bits per character."""
    total = len(text)
    return -sum(n / total * math.log2(n / total) for n in Counter(text).values())
