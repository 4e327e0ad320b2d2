"""Agents made of agents.

    from parley.compose import parallel, sequence

    report = parallel(statistics, trends, anomalies, combine=write_report, name="Report")
    answer = sequence(find_intent, "https://kb.example.com", write_answer, name="Support")

Each is an agent: ``parley.serve(report)`` serves it, and it can be a part of another.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parley.compose.calling import Calling
    from parley.compose.composition import Composition
    from parley.compose.concurrent import broadcast, map_reduce, parallel, quorum
    from parley.compose.drawing import Edge
    from parley.compose.outcome import Budget, Outcome, PartFailed, PartFailure
    from parley.compose.parts import CompositionPart, part
    from parley.compose.sequential import fallback, may_pass, retry, route, sequence
    from parley.engine.handoff import HandedConversation, Handoff, Handoffs, handoff
    from parley.extensions.usage import Spent

_HOMES = {
    "Budget": "parley.compose.outcome",
    "Calling": "parley.compose.calling",
    "Composition": "parley.compose.composition",
    "CompositionPart": "parley.compose.parts",
    "Edge": "parley.compose.drawing",
    "HandedConversation": "parley.engine.handoff",
    "Handoff": "parley.engine.handoff",
    "Handoffs": "parley.engine.handoff",
    "Outcome": "parley.compose.outcome",
    "PartFailed": "parley.compose.outcome",
    "PartFailure": "parley.compose.outcome",
    "Spent": "parley.extensions.usage",
    "broadcast": "parley.compose.concurrent",
    "fallback": "parley.compose.sequential",
    "handoff": "parley.engine.handoff",
    "map_reduce": "parley.compose.concurrent",
    "may_pass": "parley.compose.sequential",
    "parallel": "parley.compose.concurrent",
    "part": "parley.compose.parts",
    "quorum": "parley.compose.concurrent",
    "retry": "parley.compose.sequential",
    "route": "parley.compose.sequential",
    "sequence": "parley.compose.sequential",
}

__all__ = [
    "Budget",
    "Calling",
    "Composition",
    "CompositionPart",
    "Edge",
    "HandedConversation",
    "Handoff",
    "Handoffs",
    "Outcome",
    "PartFailed",
    "PartFailure",
    "Spent",
    "broadcast",
    "fallback",
    "handoff",
    "map_reduce",
    "may_pass",
    "parallel",
    "part",
    "quorum",
    "retry",
    "route",
    "sequence",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'parley.compose' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
