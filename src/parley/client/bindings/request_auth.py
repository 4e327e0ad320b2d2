"""Headers and credentials of requests, as used by bindings.

``client/auth`` implements credentials. A binding asks for them before each request, and once after
a 401.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit, urlunsplit

from parley.model.errors import an
from parley.model.struct import A2AStruct

# -- headers ----------------------------------------------------------------------------------

# Headers that only the client may set, with advice for each.
_RESERVED = {
    "a2a-version": "use version=",
    "last-event-id": "use subscribe(task_id, after=)",
    "content-length": "the client counts the body itself",
    "transfer-encoding": "the client frames the body itself",
    "connection": "the client manages its connections itself",
    "upgrade": "the client manages its connections itself",
}
_EXTENSIONS = frozenset({"a2a-extensions", "x-a2a-extensions"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_INVALID_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def split_headers(headers: Mapping[str, str] | None) -> tuple[dict[str, str], list[str]]:
    """Return a caller's headers without the extensions header, and the extension URIs in it.

    Accepts the header names of both protocol versions; the interface decides which one is sent.
    Raises ``ValueError`` for a header that only the client may set or that no request can carry,
    and ``TypeError`` for a header that is not text.
    """
    others: dict[str, str] = {}
    uris: list[str] = []
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"a header has a name and a value of text, unlike {name!r:.60}")
        lower = name.lower()
        if not _NAME.fullmatch(name) or not _is_valid_value(value):
            raise ValueError(f"no request can carry the header {name!r:.60} with such a value")
        if lower in _RESERVED:
            raise ValueError(f"the header {name} cannot be given: {_RESERVED[lower]}")
        if lower in _EXTENSIONS:
            uris += list_items(value)
        elif any(lower == other.lower() for other in others):
            raise ValueError(f"the header {name} is given twice")
        else:
            others[name] = value
    return others, list(dict.fromkeys(uris))


def check_secret(what: str, value: str | None) -> None:
    """Raise ``TypeError`` or ``ValueError`` for a secret that no header can carry."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{what} is a text, unlike {an(type(value).__name__)}")
    if value and not _is_valid_value(value):
        raise ValueError(
            f"no request can carry {what}: it has a control character, such as a line's end"
        )


def _is_valid_value(value: str) -> bool:
    """Return whether a header can carry a value without surrogates and control characters."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return not _INVALID_VALUE.search(value)


def list_items(value: str) -> list[str]:
    """Return the distinct items of a list header."""
    return list(dict.fromkeys(filter(None, (item.strip() for item in value.split(",")))))


def header_value(headers: Mapping[str, str], name: str) -> str:
    """Return a header's value by its lower-case name; empty if it is missing."""
    return next((value for each, value in headers.items() if each.lower() == name), "")


def override(headers: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return a caller's headers, overridden by ``ours``."""
    names = {name.lower() for name in ours}
    return {**{name: each for name, each in headers.items() if name.lower() not in names}, **ours}


def join_items(*lists: Iterable[str]) -> str:
    """Return a list header's value from several lists, each item once, in order."""
    return ", ".join(dict.fromkeys(item for each in lists for item in each if item))


# -- request auth -----------------------------------------------------------------------------


class RequestParameters(NamedTuple):
    """The headers and query parameters of a request that carry credentials."""

    headers: dict[str, str]
    query: dict[str, str]

    def __repr__(self) -> str:
        return f"RequestParameters({', '.join((*self.headers, *self.query))})"

    def add_to(self, url: str) -> str:
        """Return an interface's address with the query parameters added.

        An ``Authorization`` header replaces a user and a password in the address.
        """
        if not self.headers and not self.query:
            return url
        parts = urlsplit(url)
        if "authorization" in map(str.lower, self.headers) and "://" in url:
            parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        elif not self.query:
            return url
        join_items = "&".join(filter(None, (parts.query, urlencode(self.query))))
        return urlunsplit(parts._replace(query=join_items))


NOTHING = RequestParameters({}, {})
"""No credentials."""


class Refusal(NamedTuple):
    """A server's rejection of credentials: 401 or 403, with its challenges
    (``WWW-Authenticate``)."""

    status: int
    challenge: str = ""


def refusal_in(status: int, headers: Mapping[str, str]) -> Refusal:
    """Return the rejection with the challenges in these headers."""
    return Refusal(status, headers.get("www-authenticate", ""))


class RequestAuth(NamedTuple):
    """The credentials of requests to one interface.

    ``parameters`` returns the credentials for a request (``None``: a request that is not an
    operation). ``answer`` returns whether new credentials are available after a rejection.
    ``advice`` describes how to get the credentials that a server asks for, empty if unknown.
    """

    parameters: Callable[[A2AStruct | None], Awaitable[RequestParameters]]
    answer: Callable[[Refusal, A2AStruct | None, RequestParameters], Awaitable[bool]]
    advice: Callable[[Refusal], str]
