"""What bindings ask about credentials: what a request carries, and what to do when it is refused.

``client/auth`` answers. A binding asks once for each request and once after a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit, urlunsplit

from parley.model.struct import A2AStruct


class RequestParameters(NamedTuple):
    """The headers and query parameters of a request that carry credentials."""

    headers: dict[str, str]
    query: dict[str, str]

    def __repr__(self) -> str:
        return f"RequestParameters({', '.join((*self.headers, *self.query))})"

    def add_to(self, url: str) -> str:
        """Return an interface's address with the query parameters.

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
    """A server's refusal of a request: 401 or 403, and its challenges (``WWW-Authenticate``)."""

    status: int
    challenge: str = ""


def refusal_in(status: int, headers: Mapping[str, str]) -> Refusal:
    """Return a refusal with the challenges in headers."""
    return Refusal(status, headers.get("www-authenticate", ""))


class RequestAuth(Protocol):
    """The credentials of requests to one interface."""

    async def parameters(self, request: A2AStruct | None) -> RequestParameters:
        """Return what a request carries. ``None`` stands for one that is no operation."""
        ...

    async def answer(
        self, refusal: Refusal, request: A2AStruct | None, sent: RequestParameters
    ) -> bool:
        """Return whether there are other credentials now, for one more attempt."""
        ...

    def advice(self, refusal: Refusal) -> str:
        """Return what would give the credentials that a server asks for, empty if unknown."""
        ...
