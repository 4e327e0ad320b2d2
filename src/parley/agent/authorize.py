"""An author's own rules: ``turn.authorize`` asks the agent's policy, and logs what it decides."""

from __future__ import annotations

import hashlib
import logging

from parley.agent.services import TurnServices
from parley.engine.caller import record_of
from parley.engine.turn.attempt import Attempt, Decision, NotAuthorized
from parley.security.authorization import Access, Policy, decision

log = logging.getLogger("parley.agent")

MOST_CHARACTERS = 2048
"""The most characters of an action, a resource or a key: they are logged."""


async def authorize(
    services: TurnServices, attempt: Attempt, action: str, resource: str, key: str | None
) -> None:
    """Return if the caller of a turn may do something. Raises ``NotAuthorized``."""
    rights = services.authorization
    policy = None if rights is None else rights.policy
    if policy is None:
        raise RuntimeError(
            "turn.authorize asks the agent's policy, and this agent has none; give it one: "
            "Agent(..., policy=...), a function of an Access that returns True or False"
        )
    _check("action", action)
    _check("resource", resource, may_be_empty=True)
    if key is not None:
        _check("key", key)
    name = _name(action, resource, key)
    logged = attempt.logged_decision(name)
    if logged is None:
        with attempt.waits.busy():
            logged = await _decide(policy, attempt, action, resource, name)
    if not logged.allowed:
        raise NotAuthorized(action, resource)


async def _decide(
    policy: Policy, attempt: Attempt, action: str, resource: str, name: str
) -> Decision:
    """Return the decision of the policy, which is logged with the turn's task."""
    request, runner = attempt.request, attempt.runner
    access = Access(
        caller=request.caller,
        agent=runner.scope.agent,
        tenant=request.tenant,
        skill=request.skill.id,
        task_id=runner.task_id,
        context_id=runner.context_id,
        action=action,
        resource=resource,
    )
    allowed = await decision(policy, access)
    made = attempt.logged_decision(name)
    if made is not None:  # another branch of the function was faster
        return made
    made = Decision(
        action=action, resource=resource, allowed=allowed, caller=record_of(request.caller)
    )
    if request.skill.replies == "message":  # there is no task, and no further attempt
        log.info("%s: %r", "allowed" if allowed else "not allowed", action)
    else:
        await attempt.log_decision(name, made)
    return made


def _name(action: str, resource: str, key: str | None) -> str:
    """Return what a decision is found by in its turn."""
    digest = hashlib.sha256()
    for part in (action, resource, "" if key is None else key, "key" * (key is not None)):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:32]


def _check(what: str, value: object, *, may_be_empty: bool = False) -> None:
    """Refuse what is no text for the log."""
    if not isinstance(value, str):
        raise TypeError(f"the {what} is text, such as 'read', not {value!r:.100}")
    if not value and not may_be_empty:
        raise ValueError(f"the {what} is empty; name what is to be done, such as 'read'")
    if len(value) > MOST_CHARACTERS:
        raise ValueError(f"the {what} has {len(value)} characters, and may have {MOST_CHARACTERS}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the {what} is no valid text: it has half a surrogate pair") from None
