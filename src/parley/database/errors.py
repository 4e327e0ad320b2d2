"""The errors of everything that is kept in a database."""

from __future__ import annotations


class StoreError(Exception):
    """The store did nothing of the request, unless the message says that this is unknown
    (``StoreUnavailable`` of a database that did not answer in time).
    """


class StoreUnavailable(StoreError):
    """The store cannot work now (disk full, locked, damaged, closed). The message says why."""
