"""HTTP+JSON in version 1.0 (specification §11)."""

from __future__ import annotations

from typing import Any


class HttpJson:
    """Bodies, paths and query parameters of HTTP+JSON (``HttpJsonCodec``)."""

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError
