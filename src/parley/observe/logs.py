"""Fields of log records: the task, context, message, caller and trace that a record belongs to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

current_facts: ContextVar[Callable[[], dict[str, Any]] | None] = ContextVar(
    "parley_facts", default=None
)
"""Returns the facts of the turn that runs in this context. They are asked for by records alone."""


class ContextFields(logging.Filter):
    """Adds fields to records of turns, of the author's own loggers too: a filter of a handler.

    They are ``task_id``, ``context_id``, ``message_id``, ``skill``, ``agent``, ``caller``, and
    ``trace_id`` and ``span_id``, as far as there are any. A field of the record itself stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept every record."""
        fields = vars(record)
        if (facts := current_facts.get()) is not None:
            for name, value in facts().items():
                fields.setdefault(name, value)
        if (api := sys.modules.get("opentelemetry.trace")) is not None:
            position = api.get_current_span().get_span_context()
            if position.is_valid:
                fields.setdefault("trace_id", f"{position.trace_id:032x}")
                fields.setdefault("span_id", f"{position.span_id:016x}")
        return True
