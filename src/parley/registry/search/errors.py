"""``InvalidSearch``: what a search, exploration or list asks for cannot be."""

from __future__ import annotations


class InvalidSearch(ValueError):
    """A request is wrong (400, ``INVALID_ARGUMENT``). The message says what would be right."""
