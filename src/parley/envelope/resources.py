"""The documents that come with the protocol: its JSON Schema, and vectors for signatures."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def schema() -> bytes:
    """Return the JSON Schema (2020-12) of messages; ``#/$defs/card`` is that of cards."""
    return _read("schema.json")


@cache
def vectors() -> bytes:
    """Return signed messages with their keys and canonical forms, and messages to refuse."""
    return _read("vectors.json")


def _read(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()
