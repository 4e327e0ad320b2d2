"""Agents made of agents.

    from parley.compose import parallel, sequence

    report = parallel(statistics, trends, anomalies, combine=write_report, name="Report")
    answer = sequence(find_intent, "https://kb.example.com", write_answer, name="Support")

Each is an agent: ``parley.serve(report)`` serves it, and it can be a part of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.model.distribution import loaded_when_used

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
    "parley.compose.calling": "Calling",
    "parley.compose.composition": "Composition",
    "parley.compose.concurrent": "broadcast map_reduce parallel quorum",
    "parley.compose.drawing": "Edge",
    "parley.compose.outcome": "Budget Outcome PartFailed PartFailure",
    "parley.compose.parts": "CompositionPart part",
    "parley.compose.sequential": "fallback may_pass retry route sequence",
    "parley.engine.handoff": "HandedConversation Handoff Handoffs handoff",
    "parley.extensions.usage": "Spent",
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

__getattr__, __dir__ = loaded_when_used(__name__, _HOMES)
