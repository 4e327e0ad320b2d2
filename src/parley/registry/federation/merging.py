"""Pages over the results of several registries: one list by score, each identifier once.

The token of a page says how far each registry's own pages were read, so nothing is kept here. It is
bound to what was asked and grants nothing: with one that was changed, a caller gets another part of
what it may see anyway.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec

from parley.model.errors import InvalidParamsError
from parley.registry.federation.checking import CheckedResult

PREFIX = "f."
MAX_TOKEN = 2_000
MAX_SEEN = 150
"""How many results of others a token remembers, to leave out what a third one lists again."""

OWN = "own"
_VERSION = 1
_DIGEST = 4


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """How far a registry was read: the token of its page, and how many results of it are used."""

    token: str = ""
    used: int = 0


class MergedPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a page begins. A registry without a cursor is read to its end. ``size`` is that of the
    pages that are asked for; ``seen`` has digests of identifiers.
    """

    size: int
    cursors: dict[str, Cursor]
    seen: bytes = b""


class _Token(msgspec.Struct, frozen=True, array_like=True):
    version: int
    asked: str
    place: MergedPlace


class SourcePage:
    """Results of one registry, the best first, and where its next page is."""

    def __init__(
        self, name: str, results: Sequence[CheckedResult], cursor: Cursor, more: str
    ) -> None:
        self.name = name
        self.results = results
        self.at = min(cursor.used, len(results))
        self._cursor = cursor
        self._more = more

    @property
    def head(self) -> CheckedResult | None:
        """The next result."""
        return self.results[self.at] if self.at < len(self.results) else None

    @property
    def cursor(self) -> Cursor | None:
        """Where to read on, ``None`` at the end."""
        if self.at < len(self.results):
            return Cursor(self._cursor.token, self.at)
        return Cursor(self._more) if self._more else None


def merged(
    pages: Sequence[SourcePage], size: int, seen: bytes, ranks: Mapping[str, int]
) -> tuple[list[CheckedResult], bytes]:
    """Return the best results of some pages, and the digests of all that were seen.

    Of one identifier, the result of the page counts that ``ranks`` has the lowest number for: who
    may speak for its publisher, then our own order.
    """
    known = {seen[at : at + _DIGEST] for at in range(0, len(seen), _DIGEST)}
    best: dict[str, tuple[int, int]] = {}
    for number, page in enumerate(pages):
        for each in page.results[page.at :]:
            rank = ranks.get(f"{each.place}:{each.publisher}", 1), number
            best[each.identifier] = min(rank, best.get(each.identifier, rank))
    found: list[CheckedResult] = []
    while len(found) < size:
        heads = [(page.head, number) for number, page in enumerate(pages)]
        waiting = [(-head.score, number) for head, number in heads if head is not None]
        if not waiting:
            break
        number = min(waiting)[1]
        head = pages[number].head
        assert head is not None
        pages[number].at += 1
        digest = _digest(head.identifier)
        if digest in known or best[head.identifier][1] != number:
            continue
        known.add(digest)
        if head.place:  # what this registry has itself counts from no other
            seen += digest
        found.append(head)
    return found, seen[-MAX_SEEN * _DIGEST :]


def write_token(asked: str, place: MergedPlace) -> str:
    """Return the token of a page; empty at the end of all registries."""
    if not place.cursors:
        return ""
    cursors = dict(place.cursors)
    while cursors:
        encoded = msgspec.msgpack.encode(
            _Token(_VERSION, asked, MergedPlace(place.size, cursors, place.seen))
        )
        token = PREFIX + base64.urlsafe_b64encode(encoded).decode().rstrip("=")
        if len(token) <= MAX_TOKEN:
            return token
        # The registry with the longest token ends here.
        del cursors[max(cursors, key=lambda name: len(cursors[name].token))]
    return ""


def read_token(token: str, asked: str) -> MergedPlace:
    """Return where the page of a token begins. Raises ``InvalidParamsError``."""
    wrong = InvalidParamsError(
        "pageToken is none of this registry's; send the one of the page before as it was, or none "
        "for the first page"
    )
    if len(token) > MAX_TOKEN or not token.isascii():
        raise wrong
    text = token.removeprefix(PREFIX)
    try:
        encoded = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        read = msgspec.msgpack.decode(encoded, type=_Token)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        raise wrong from None
    place = read.place
    is_sound = 1 <= place.size <= 100 and all(
        0 <= each.used <= 100 and len(each.token) < MAX_TOKEN for each in place.cursors.values()
    )
    if read.version != _VERSION or not is_sound or len(place.seen) > MAX_SEEN * _DIGEST:
        raise wrong
    if read.asked != asked:
        raise InvalidParamsError(
            "pageToken is of another question; ask for its next page with the same query and "
            "filter, or begin without a token"
        )
    return place


def _digest(identifier: str) -> bytes:
    return blake2b(identifier.encode(), digest_size=_DIGEST).digest()
