"""What a composition adds to a call: who is called, until when, and how much may be spent."""

from __future__ import annotations

import msgspec

from parley.extensions.call_chain import ChainBudget


class CallTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one call, besides those of the turn that makes it.

    ``asker`` is the name of who is called: questions and progress that are passed on say it.
    ``seconds`` is how long the other agent has, which its chain of calls says; its task is canceled
    then. ``budget`` is what it may spend.
    """

    asker: str = ""
    seconds: float | None = None
    budget: ChainBudget | None = None


NO_TERMS = CallTerms()
