"""Fields of log records: the task, context, message, caller and trace that a record belongs to."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from typing import Any, Protocol
from weakref import ReferenceType


class HasFacts(Protocol):
    """A turn that can say what names it in a log."""

    def facts(self) -> dict[str, Any]:
        """Return the fields of records."""


running: ContextVar[ReferenceType[HasFacts] | None] = ContextVar("parley_running", default=None)
"""The turn that runs in this context; weakly, since the turn keeps its context too."""


are_wanted = False
"""True once a handler has the fields: until then no turn records itself, which costs 3 %."""


class ContextFields(logging.Filter):
    """Adds fields to records of turns, of the author's own loggers too: a filter of a handler.

    They are ``task_id``, ``context_id``, ``message_id``, ``skill``, ``agent``, ``caller``, and
    ``trace_id`` and ``span_id``, as far as there are any. A field of the record itself stays.
    """

    def __init__(self) -> None:
        global are_wanted
        super().__init__()
        are_wanted = True

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept every record."""
        fields = vars(record)
        reference = running.get()
        if reference is not None and (turn := reference()) is not None:
            for name, value in turn.facts().items():
                fields.setdefault(name, value)
        if (api := sys.modules.get("opentelemetry.trace")) is not None:
            position = api.get_current_span().get_span_context()
            if position.is_valid:
                fields.setdefault("trace_id", f"{position.trace_id:032x}")
                fields.setdefault("span_id", f"{position.span_id:016x}")
        return True
