"""Negotiates the media type of an answer over HTTP+JSON (§11.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

JSON = b"application/json"

_ANY, _ANY_APPLICATION = b"*/*", b"application/*"


class _Preference(NamedTuple):
    """A caller's preference for a media type, from 0 to 1; ``named`` is no wildcard."""

    quality: float
    named: bool


def answered_with(own: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the media type of an answer: the binding's ``own`` or ``application/json``.

    Both describe the same body. The caller's preference decides (RFC 9110 §12.5.1); between equals
    the one that it names, and ``own`` if it names both. A caller that names neither gets the type
    that it sent, so one that knows only ``application/json`` can read every error. A caller that
    accepts neither, such as one that accepts only streams, gets ``application/json``.
    """
    if own == JSON:
        return own
    headers = list(headers)
    accept = b",".join([value for name, value in headers if name == b"accept"])
    if accept not in (b"", _ANY):
        qualities = _qualities(accept)
        own_preference, plain = _preference(own, qualities), _preference(JSON, qualities)
        if not (own_preference.quality or plain.quality) or own_preference < plain:
            return JSON
        if own_preference > plain or own_preference.named:
            return own
    sent = [base(value) for name, value in headers if name == b"content-type"]
    return JSON if JSON in sent else own


def base(media_type: bytes) -> bytes:
    """Return a media type without its parameters, in lower case."""
    return media_type.partition(b";")[0].strip().lower()


def _qualities(accept: bytes) -> dict[bytes, float]:
    """Return the quality of each media range in an Accept header (RFC 9110 §12.5.1)."""
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
    """Return a weight as a number; an invalid one counts as absent."""
    try:
        quality = float(text)
    except ValueError:
        return 1.0
    return quality if 0.0 <= quality <= 1.0 else 1.0


def _preference(media_type: bytes, qualities: Mapping[bytes, float]) -> _Preference:
    """Return the preference for a media type: its own range counts before the wildcards."""
    for media_range in (media_type, _ANY_APPLICATION, _ANY):
        if media_range in qualities:
            return _Preference(qualities[media_range], media_range == media_type)
    return _Preference(0.0, named=False)
