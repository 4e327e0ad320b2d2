"""Authorisation: the rights of callers, decided in one place for all bindings.

The dispatcher asks when it knows the tenant and the operation, and admission asks when it knows the
skill of a message. No other part decides.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any

import msgspec

from parley.model.errors import PermissionDeniedError, UnauthenticatedError, an, author_code
from parley.model.service import Caller
from parley.security.schemes.scheme import Granted, Security, caller_proved_by

log = logging.getLogger("parley.security")

MISSING = "credentials are required; the agent's card says which (securityRequirements)"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """A request for access.

    ``operation`` is an operation of the specification or a method of an extension. ``skill`` is set
    for messages, ``task_id`` if the request names a task. Streaming messages are ``SendMessage``
    too. Files are ``UploadFile`` and ``DownloadFile``, with the file's id as ``resource``. For
    ``turn.authorize``, ``action`` and ``resource`` are the agent author's own, and ``operation`` is
    empty.
    """

    caller: Caller
    agent: str
    tenant: str = ""
    operation: str = ""
    skill: str = ""
    task_id: str = ""
    context_id: str = ""
    action: str = ""
    resource: str = ""


Policy = Callable[[Access], bool | Awaitable[bool]]
"""Returns ``True`` if an access is allowed, else ``False``.

A plain function runs in a thread of the server. An exception denies the access: the caller gets an
error with a reference, and the log has the traceback. An ``A2AError`` is sent to the caller
unchanged.
"""

UPLOAD_FILE = "UploadFile"
DOWNLOAD_FILE = "DownloadFile"
FILE_OPERATIONS = (UPLOAD_FILE, DOWNLOAD_FILE)
"""The ``operation`` of file requests in policies and requirements. They are no operations of
A2A."""


class Authorization:
    """The rules of one agent: its requirement, requirements of skills and operations, and a policy.

    The requirement of an operation replaces the requirement of the agent; the requirement of a
    skill is added. Errors do not name skills that are ``hidden``. Independently of the other rules,
    every caller needs the ``permissions`` (scopes), and needs an identity if ``needs_identity`` is
    set.
    """

    def __init__(
        self,
        security: Security | None = None,
        *,
        skills: Mapping[str, Security] = {},
        operations: Mapping[str, Security] = {},
        policy: Policy | None = None,
        hidden: Collection[str] = (),
        permissions: Collection[str] = (),
        needs_identity: bool = False,
    ) -> None:
        self.permissions = frozenset(permissions)
        self.needs_identity = needs_identity or bool(self.permissions)
        self.hidden = frozenset(hidden)
        self.security = security
        self.skills = dict(skills)
        self.operations = dict(operations)
        self.policy = policy
        self._schemes = frozenset(own for each in self.securities for own in each.schemes)

    @property
    def securities(self) -> tuple[Security, ...]:
        """All requirements, the agent's own first."""
        own = () if self.security is None else (self.security,)
        return (*own, *self.operations.values(), *self.skills.values())

    @property
    def listed_securities(self) -> tuple[Security, ...]:
        """The requirements that everyone may see: requirements of hidden skills are not
        included."""
        own = () if self.security is None else (self.security,)
        skills = (each for id, each in self.skills.items() if id not in self.hidden)
        return (*own, *self.operations.values(), *skills)

    @property
    def all_scopes(self) -> frozenset[str]:
        """All scopes that the rules require."""
        needs = [each for own in self.securities for way in own.alternatives for each in way]
        return self.permissions.union(*[each.scopes for each in needs])

    def with_policy(self, policy: Policy | None) -> Authorization:
        """Return the same rules with this policy."""
        found = copy(self)
        found.policy = policy
        return found

    def with_security(self, security: Security | None) -> Authorization:
        """Return rules with this as their only requirement."""
        return Authorization(
            security,
            policy=self.policy,
            permissions=self.permissions,
            needs_identity=self.needs_identity,
        )

    def own_caller(self, caller: Caller) -> Caller:
        """Return the caller as far as the agent's own schemes prove it.

        At an address that agents share, the schemes of all of them are verified. Credentials for
        one agent prove nothing to another.
        """
        granted = caller.granted
        if not isinstance(granted, Granted) or granted.keys() <= self._schemes:
            return caller
        proofs = granted.proofs.items()
        return caller_proved_by({own: proof for own, proof in proofs if own in self._schemes})

    def check(self, operation: str, caller: Caller) -> None:
        """Reject an operation whose requirements the caller does not meet.

        Raises ``UnauthenticatedError``, ``PermissionDeniedError``.
        """
        security = self.operations.get(operation, self.security)
        if security is not None and not security.is_met(caller):
            raise refusal(security, caller, f"the operation {operation}")
        if self.needs_identity:
            self.check_identity(caller)

    def check_identity(self, caller: Caller) -> None:
        """Reject a caller without identity, or without the permissions that every caller needs.

        Raises ``UnauthenticatedError``, ``PermissionDeniedError``.
        """
        if not self.needs_identity:
            return
        schemes = dict.fromkeys(scheme for each in self.securities for scheme in each.schemes)
        if not caller.authenticated:
            challenges = filter(None, (scheme.challenge() for scheme in schemes))
            raise UnauthenticatedError(MISSING, challenges=tuple(dict.fromkeys(challenges)))
        lacking = sorted(self.permissions - caller.scopes)
        if not lacking:
            return
        held = [scheme for scheme in schemes if scheme in caller.granted]
        found = (each.challenge(error="insufficient_scope", scopes=lacking) for each in held)
        raise PermissionDeniedError(
            f"this agent needs the scope{'s' * (len(lacking) > 1)} {' '.join(lacking)}",
            challenges=tuple(dict.fromkeys(filter(None, found))),
            metadata={"requiredScopes": " ".join(lacking)},
        )

    def check_skill(self, skill: str, caller: Caller) -> None:
        """Reject a skill whose requirements the caller does not meet. Raises as ``check`` does."""
        security = self.skills.get(skill)
        if security is not None and not security.is_met(caller):
            what = "this task" if skill in self.hidden else f"the skill {skill!r}"
            raise refusal(security, caller, what)

    async def permit(self, access: Access) -> None:
        """Call the policy.

        Raises ``PermissionDeniedError``, and ``InternalError`` if the policy fails.
        """
        if self.policy is not None and not await decision(self.policy, access):
            raise PermissionDeniedError("the server's policy does not allow this")


def checked_policy(policy: Policy) -> Policy:
    """Return a policy. Raises ``TypeError`` if it is no function or its parameters do not fit."""
    call = policy if inspect.isroutine(policy) else getattr(policy, "__call__", None)  # noqa: B004
    yields = inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call)
    if not callable(policy) or isinstance(policy, type) or yields:
        raise TypeError(f"policy is a function of an Access that returns a bool, not {policy!r}")
    return policy


async def decision(policy: Policy, access: Access) -> bool:
    """Return the decision of a policy.

    Raises ``InternalError`` if the policy raises, or returns another value than ``True`` or
    ``False``.
    """
    words = "the server's policy could not decide; its log says why under"
    with author_code(log, "the policy of an agent", words):
        allowed: Any = policy(access)
        if inspect.isawaitable(allowed):
            allowed = await allowed
        if allowed is not True and allowed is not False:
            raise TypeError(f"a policy returns True or False, not {an(type(allowed).__name__)}")
    return allowed is True


def all_of(policies: Sequence[Policy]) -> Policy | None:
    """Return a policy that allows an access if all policies do, ``None`` if there are none."""
    if len(policies) < 2:
        return policies[0] if policies else None

    async def allowed_by_all(access: Access) -> bool:
        for policy in policies:
            if not await decision(policy, access):
                return False
        return True

    return allowed_by_all


def refusal(
    security: Security, caller: Caller, what: str
) -> UnauthenticatedError | PermissionDeniedError:
    """Return the error for an unmet requirement."""
    lacking = security.missing_scopes(caller)
    if lacking is None:
        challenges = (scheme.challenge() for scheme in security.schemes)
        return UnauthenticatedError(MISSING, challenges=tuple(filter(None, challenges)))
    challenges = (
        each.scheme.challenge(error="insufficient_scope", scopes=each.scopes)
        for needs in security.alternatives
        for each in needs
        if each.scheme in caller.granted
    )
    return PermissionDeniedError(
        f"{what} needs the scope{'s' * (len(lacking) > 1)} {' '.join(lacking)}",
        challenges=tuple(dict.fromkeys(filter(None, challenges))),
        metadata={"requiredScopes": " ".join(lacking)},
    )


def access_of(
    operation: str, request: Any, caller: Caller, *, agent: str, tenant: str, skill: str = ""
) -> Access:
    """Return the access that a request needs."""
    message = getattr(request, "message", None)
    named = message if message is not None else request
    task_id = getattr(named, "task_id", "") or getattr(request, "id", "")
    return Access(
        caller=caller,
        agent=agent,
        tenant=tenant,
        operation=operation,
        skill=skill,
        task_id=task_id if isinstance(task_id, str) else "",
        context_id=getattr(named, "context_id", "") or "",
    )
