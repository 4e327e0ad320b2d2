"""The ids of a framework's threads and users: of contexts, for their owner alone; of owners."""

from __future__ import annotations

import hashlib

from parley.agent.turn import Turn

ANONYMOUS = "anonymous"
"""The user of contexts without an owner."""


def thread_id(turn: Turn) -> str:
    """Return the id under which a framework keeps the conversation of this turn's context.

    Two owners may name the same ``contextId`` and mean different contexts, so the id of a context
    with an owner or a tenant ends with a point and a digest of them. Beside that it has letters,
    digits, ``-`` and ``_``, so no caller can name the thread of another.
    """
    scope = turn._attempt.runner.scope
    if not scope.owner and not scope.tenant and _is_plain(turn.context_id):
        return turn.context_id
    whole = (scope.agent, scope.tenant, scope.owner, turn.context_id)
    return _digested(turn.context_id if _is_plain(turn.context_id) else "context", whole)


def user_id(turn: Turn) -> str:
    """Return the id under which a framework keeps what belongs to the owner of this turn's context.

    Callers who share what they make are one user. It is ``anonymous`` without an owner, and no
    owner has that id. It has the characters that ``thread_id`` has.
    """
    scope = turn._attempt.runner.scope
    if not scope.owner and not scope.tenant:
        return ANONYMOUS
    if not scope.tenant and _is_plain(scope.owner) and scope.owner != ANONYMOUS:
        return scope.owner
    return _digested("user", (scope.tenant, scope.owner))


def _digested(name: str, whole: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\0".join(whole).encode()).hexdigest()
    return f"{name[:64]}.{digest[:32]}"


def _is_plain(text: str) -> bool:
    return bool(text) and len(text) <= 128 and text.replace("-", "").replace("_", "").isalnum()
