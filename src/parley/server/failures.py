"""Unexpected exceptions: the log has the details, the caller a reference to them."""

from __future__ import annotations

import logging
import secrets

from parley.model.errors import InternalError

_log = logging.getLogger("parley.server")


def log_unforeseen(doing: str) -> InternalError:
    """Log the exception being handled, with its traceback, and return what the caller may see."""
    reference = secrets.token_hex(6)
    _log.exception("%s failed (reference %s)", doing, reference)
    return InternalError(
        f"the server failed; its log says why under the reference {reference}",
        metadata={"reference": reference},
    )
