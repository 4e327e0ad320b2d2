"""Page tokens: opaque, and bound to what was asked.

A token says where the next page begins. It grants nothing: with one that was changed, a caller gets
another part of what it may see anyway.
"""

from __future__ import annotations

import base64
import binascii
import math
from hashlib import blake2b
from typing import Any

import msgspec

from parley.model.errors import InvalidParamsError

MAX_TOKEN = 300
MAX_OFFSET = 10_000_000
_VERSION = 1


class PagePlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a page begins. ``best`` is the relevance of the first result of all, ``score`` the last
    score of the page before.
    """

    offset: int = 0
    best: float = 0.0
    score: int = 100


class _Token(msgspec.Struct, frozen=True, array_like=True):
    version: int
    asked: str
    place: PagePlace


def asked_digest(*asked: Any) -> str:
    """Return what a token is bound to: a digest of what was asked."""
    encoded = msgspec.json.encode(asked, order="deterministic")
    return blake2b(encoded, digest_size=9).hexdigest()


def page_token(asked: str, place: PagePlace) -> str:
    """Return the token of a page."""
    encoded = msgspec.msgpack.encode(_Token(_VERSION, asked, place))
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def place_in(token: str, asked: str) -> PagePlace:
    """Return where the page of a token begins; without a token, the first. Raises
    ``InvalidParamsError``.
    """
    if not token:
        return PagePlace()
    wrong = InvalidParamsError(
        "pageToken is none of this registry's; send the one of the page before as it was, or none "
        "for the first page"
    )
    if len(token) > MAX_TOKEN or not token.isascii():
        raise wrong
    try:
        encoded = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        read = msgspec.msgpack.decode(encoded, type=_Token)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        raise wrong from None
    place = read.place
    is_sound = 0 <= place.offset <= MAX_OFFSET and 0 <= place.score <= 100
    if read.version != _VERSION or not is_sound or not math.isfinite(place.best):
        raise wrong
    if read.asked != asked:
        raise InvalidParamsError(
            "pageToken is of another question; ask for its next page with the same query, filter "
            "and order, or begin without a token"
        )
    return place
