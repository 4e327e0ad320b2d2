"""Calls of models and tools as steps of a task: how a further attempt finds them again."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from typing import Any

import msgspec

from parley.model.struct import valid_text

MAX_KEPT = 1 << 20
"""The most bytes of one reply or result that are remembered; a longer one is made again."""


class CallKeys:
    """Names calls by what they are asked, and by how often that was asked before in the run.

    It may be used from several threads.
    """

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def key(self, kind: str, asked: object) -> str:
        """Return the key of the next call of a kind that is asked this.

        What is no JSON counts as its text.
        """
        said = msgspec.json.encode(asked, enc_hook=str, order="deterministic")
        name = f"{kind}:{hashlib.sha256(said).hexdigest()[:24]}"
        with self._lock:
            self._times[name] += 1
            return f"{name}:{self._times[name]}"


def remembered(value: Any) -> Any:
    """Return a value as the JSON that a step keeps, ``None`` for one that is too long."""
    written = msgspec.json.encode(valid_text(value))
    return msgspec.json.decode(written) if len(written) <= MAX_KEPT else None


def json_value(result: Any) -> dict[str, Any] | None:
    """Return the result of a tool as ``{"value": ...}``, ``None`` if it has no JSON form."""
    try:
        return {"value": msgspec.json.decode(msgspec.json.encode(result))}
    except (TypeError, ValueError):
        return None
