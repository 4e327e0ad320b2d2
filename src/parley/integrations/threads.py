"""The id of a framework's thread or session: that of the context, for its owner alone."""

from __future__ import annotations

import hashlib

from parley.agent.turn import Turn


def thread_id(turn: Turn) -> str:
    """Return the id under which a framework keeps the conversation of this turn's context.

    Two owners may name the same ``contextId`` and mean different contexts, so the id of a context
    with an owner or a tenant ends with a point and a digest of them. Beside that it has letters,
    digits, ``-`` and ``_``, so no caller can name the thread of another.
    """
    scope = turn._attempt.runner.scope
    if not scope.owner and not scope.tenant and _is_plain(turn.context_id):
        return turn.context_id
    whole = "\n".join((scope.agent, scope.tenant, scope.owner, turn.context_id))
    digest = hashlib.sha256(whole.encode()).hexdigest()
    name = turn.context_id[:64] if _is_plain(turn.context_id) else "context"
    return f"{name}.{digest[:32]}"


def _is_plain(text: str) -> bool:
    return bool(text) and len(text) <= 128 and text.replace("-", "").replace("_", "").isalnum()
