"""Unexpected exceptions: the log has the details, the caller a reference to them."""

from __future__ import annotations

import logging

from parley.model.errors import InternalError
from parley.model.ids import log_incident

_log = logging.getLogger("parley.server")


def log_unforeseen(doing: str) -> InternalError:
    """Log the exception being handled, with its traceback, and return what the caller may see."""
    reference = log_incident(_log, doing)
    return InternalError(
        f"the server failed; its log says why under the reference {reference}",
        metadata={"reference": reference},
    )
