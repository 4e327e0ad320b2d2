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
    from parley.compose.combinators.broadcast import broadcast
    from parley.compose.combinators.fallback import fallback
    from parley.compose.combinators.map_reduce import map_reduce
    from parley.compose.combinators.parallel import parallel
    from parley.compose.combinators.quorum import quorum
    from parley.compose.combinators.retry import may_pass, retry
    from parley.compose.combinators.route import route
    from parley.compose.combinators.sequence import sequence
    from parley.compose.composition import Composition
    from parley.compose.drawing import Edge
    from parley.compose.outcome import Outcome, PartFailed, PartFailure
    from parley.compose.parts import CompositionPart, part
    from parley.compose.spending import Budget
    from parley.engine.handoff import HandedConversation, Handoff, Handoffs, handoff
    from parley.extensions.spent import Spent

_HOMES = {
    "Budget": "parley.compose.spending",
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
    "Spent": "parley.extensions.spent",
    "broadcast": "parley.compose.combinators.broadcast",
    "fallback": "parley.compose.combinators.fallback",
    "handoff": "parley.engine.handoff",
    "map_reduce": "parley.compose.combinators.map_reduce",
    "may_pass": "parley.compose.combinators.retry",
    "parallel": "parley.compose.combinators.parallel",
    "part": "parley.compose.parts",
    "quorum": "parley.compose.combinators.quorum",
    "retry": "parley.compose.combinators.retry",
    "route": "parley.compose.combinators.route",
    "sequence": "parley.compose.combinators.sequence",
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
