"""The id of a framework's thread or session: that of the context, for its owner alone."""

from __future__ import annotations

import hashlib

from parley.agent.turn import Turn


def thread_id(turn: Turn) -> str:
    """Return the id under which a framework keeps the conversation of this turn's context.

    Two owners may name the same ``contextId`` and mean different contexts, so the id of a context
    with an owner or a tenant ends with a digest of them. It has letters, digits, ``-`` and ``_``.
    """
    scope = turn._attempt.runner.scope
    if not scope.owner and not scope.tenant and _is_plain(turn.context_id):
        return turn.context_id
    whole = "\n".join((scope.agent, scope.tenant, scope.owner, turn.context_id))
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return f"{turn.context_id[:64]}-{digest[:32]}" if _is_plain(turn.context_id) else digest[:48]


def _is_plain(text: str) -> bool:
    return bool(text) and len(text) <= 128 and text.replace("-", "").replace("_", "").isalnum()
