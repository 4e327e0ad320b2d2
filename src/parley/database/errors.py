"""The errors of a database."""

from __future__ import annotations

from parley.model.errors import StoreError as StoreError


class StoreUnavailable(StoreError):
    """The store cannot work now (disk full, locked, damaged, closed). The message has the
    reason."""
