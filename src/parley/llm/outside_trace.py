"""The trace of a program that is not served by Parley, for its calls of agents."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def with_trace(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``parley.connect`` with the headers of the current span.

    It is that of OpenTelemetry, where the program uses it; headers that are given take precedence.
    """
    propagate = sys.modules.get("opentelemetry.propagate")
    found: dict[str, str] = {}
    if propagate is not None:
        propagate.inject(found)
    if not found:
        return dict(options)
    return {**options, "headers": {**found, **(options.get("headers") or {})}}
