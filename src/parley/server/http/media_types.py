"""Which media type an answer over HTTP+JSON has, by what its caller accepts and sent (§11.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

JSON = b"application/json"

_ANY, _ANY_APPLICATION = b"*/*", b"application/*"


class _Wish(NamedTuple):
    """How much a caller wants a media type, from 0 to 1, and whether it names it."""

    quality: float
    named: bool


def answered_with(own: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the media type to answer a request with, by a binding whose ``own`` one is given.

    Both media types name the same body. The one that the caller prefers wins (RFC 9110 §12.5.1);
    of two that it wants alike the one that it names, and ``own`` if it names both. A caller that
    names neither gets what it sent, so one that knows only ``application/json`` reads every error.
    A caller that accepts neither, such as one that asks for a stream alone, gets
    ``application/json``, which every client reads.
    """
    if own == JSON:
        return own
    headers = list(headers)
    accept = b",".join([value for name, value in headers if name == b"accept"])
    if accept not in (b"", _ANY):
        qualities = _qualities(accept)
        ours, plain = _wish(own, qualities), _wish(JSON, qualities)
        if not (ours.quality or plain.quality) or ours < plain:
            return JSON
        if ours > plain or ours.named:
            return own
    sent = [base(value) for name, value in headers if name == b"content-type"]
    return JSON if JSON in sent else own


def base(media_type: bytes) -> bytes:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(b";")[0].strip().lower()


def _qualities(accept: bytes) -> dict[bytes, float]:
    """Return what an Accept header wants of each media range (RFC 9110 §12.5.1)."""
    qualities: dict[bytes, float] = {}
    for each in accept.split(b","):
        quality = 1.0
        for parameter in each.split(b";")[1:]:
            name, _, value = parameter.partition(b"=")
            if name.strip().lower() == b"q":
                quality = _quality(value)
        media_range = base(each)
        qualities[media_range] = max(quality, qualities.get(media_range, 0.0))
    return qualities


def _quality(text: bytes) -> float:
    """Return the number that a weight is; one that is none counts as left out."""
    try:
        quality = float(text)
    except ValueError:
        return 1.0
    return quality if 0.0 <= quality <= 1.0 else 1.0


def _wish(media_type: bytes, qualities: Mapping[bytes, float]) -> _Wish:
    """Return how much a media type is wanted: what is said of it counts before what of others."""
    for media_range in (media_type, _ANY_APPLICATION, _ANY):
        if media_range in qualities:
            return _Wish(qualities[media_range], media_range == media_type)
    return _Wish(0.0, named=False)
