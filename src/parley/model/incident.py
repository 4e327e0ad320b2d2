"""Incidents: failures whose details stay in the log, under a reference that the caller gets."""

from __future__ import annotations

import logging

from parley.model.uuid7 import new_id

INCIDENT_KEY = "urn:parley:incident:v1"
"""The metadata key of a failed task's message that has the ``reference`` and the ``skill``."""


def log_incident(log: logging.Logger, what: str, error: BaseException | None = None) -> str:
    """Log that ``what`` failed, with the traceback, and return the reference.

    The traceback is that of ``error``, or of the exception that is being handled.
    """
    reference = new_id()[-12:]
    log.error("%s failed (reference %s)", what, reference, exc_info=error or True)
    return reference
