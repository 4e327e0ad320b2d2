"""The way of a search from registry to registry: a header that bounds it and shows loops.

``Parley-Registry-Path: query=<id>; left=<hops>; ms=<time>; path=<ids of registries>``. Registries
of others neither read nor send it; ``queries.RunningQueries`` is for those.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from parley.client.registry.places import base_of
from parley.model.errors import InvalidParamsError

HEADER = "Parley-Registry-Path"
MAX_HOPS = 4
MAX_PATH = 64
"""How many registries a path names at most; a search that has passed so many is not passed on."""

MAX_SECONDS = 10.0
MARGIN = 0.8
"""The part of the time left that another registry gets; the rest is for its answer's way back."""

_ID = re.compile(r"[0-9a-f]{12}")
_QUERY = re.compile(r"[0-9a-f]{16}")
_FORM = f"{HEADER} has the form query=<16 hex>; left=<hops>; ms=<time>; path=<12 hex>.<12 hex>"


class Hops(msgspec.Struct, frozen=True, kw_only=True):
    """How a search came here. ``path`` has the registries that have it or are asked by another one.

    ``left`` is how often it may be passed on, ``seconds`` the time for all of it.
    """

    query: str
    path: tuple[str, ...] = ()
    left: int = 0
    seconds: float = 0.0

    @classmethod
    def begin(cls, left: int, seconds: float) -> Hops:
        """Return the hops of a search that comes from a client."""
        return cls(query=secrets.token_hex(8), left=left, seconds=seconds)

    def onward(self, asked: tuple[str, ...], seconds: float) -> Hops:
        """Return the hops of a search that is passed on. ``asked`` are this registry and those that
        it asks itself, but for the one that gets them.
        """
        path = tuple(dict.fromkeys((*self.path, *asked)))
        left = self.left - 1 if len(path) < MAX_PATH else 0
        return Hops(
            query=self.query, path=path[:MAX_PATH], left=max(left, 0), seconds=seconds * MARGIN
        )

    def header(self) -> dict[str, str]:
        """Return the header of a request."""
        fields = [f"query={self.query}", f"left={self.left}", f"ms={int(self.seconds * 1000)}"]
        if self.path:
            fields.append(f"path={'.'.join(self.path)}")
        return {HEADER: "; ".join(fields)}


def hops_of(headers: Mapping[str, str]) -> Hops | None:
    """Return the hops in the headers of a request (names in lower case), ``None`` without any.

    Raises ``InvalidParamsError`` for a header that is malformed.
    """
    text = headers.get(HEADER.lower())
    if text is None:
        return None
    if len(text) > MAX_PATH * 13 + 200:
        raise InvalidParamsError(f"{HEADER} is longer than {MAX_PATH} registries need")
    fields = dict(part.strip().partition("=")[::2] for part in text.split(";"))
    path = tuple(filter(None, fields.get("path", "").split(".")))
    left, ms = fields.get("left", ""), fields.get("ms", "")
    is_sound = (
        _QUERY.fullmatch(fields.get("query", ""))
        and len(path) <= MAX_PATH
        and all(map(_ID.fullmatch, path))
        and all(each.isascii() and each.isdigit() and len(each) < 9 for each in (left, ms))
    )
    if not is_sound:
        raise InvalidParamsError(_FORM)
    return Hops(
        query=fields["query"],
        path=path,
        left=min(int(left), MAX_HOPS),
        seconds=min(int(ms) / 1000, MAX_SECONDS),
    )


def registry_id(url: str) -> str:
    """Return the id of a registry: a digest of its address, the same for all who ask it there."""
    with suppress(ValueError):  # the source of a registry may be any text
        url = base_of(url)
    return hashlib.sha256(url.lower().encode()).hexdigest()[:12]
