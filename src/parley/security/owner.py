"""Owner policies: the owners of tasks, contexts, webhooks, receipts and files.

An agent's policy computes the owner's key from a caller, in this one place. Only requests with the
same key see the objects stored under it.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

from parley.model.errors import PermissionDeniedError, UnauthenticatedError, author_code
from parley.model.ids import RIGHT_NAME, may_be_name
from parley.model.service import Caller, group_key

log = logging.getLogger("parley.security")

LONGEST_KEY = 1024
"""In bytes of UTF-8. A longer key is stored as a digest."""

ANONYMOUS_REFUSED = (
    "this agent keeps tasks for groups of callers, so callers must be known; send credentials"
)


class OwnerPolicy(ABC):
    """Decides which owner the objects of a caller belong to. ``key_of`` returns the owner's key.

    Only the policies of this module are allowed: a key of another form could collide with a foreign
    key. Keys of different policies differ, and so do keys of callers of different issuers, unless
    the policy is made for all issuers.
    """

    @abstractmethod
    def key_of(self, caller: Caller) -> str:
        """Return the key of the owner of a caller's objects.

        Raises ``PermissionDeniedError``, ``UnauthenticatedError``.
        """


class _CallerPolicy(OwnerPolicy):
    def __repr__(self) -> str:
        return "'caller'"

    def key_of(self, caller: Caller) -> str:
        return caller.owner


class _TenantPolicy(OwnerPolicy):
    def __repr__(self) -> str:
        return "'tenant'"

    def key_of(self, caller: Caller) -> str:
        return _TENANT  # every storage scope includes the tenant


_TENANT = group_key("tenant")

PER_CALLER: OwnerPolicy = _CallerPolicy()
PER_TENANT: OwnerPolicy = _TenantPolicy()


class _GroupPolicy(OwnerPolicy):
    """Ownership by groups of authenticated callers."""

    kind = ""

    def __init__(self, *, across_issuers: bool) -> None:
        self._across_issuers = across_issuers

    def key_of(self, caller: Caller) -> str:
        if not caller.id:
            raise UnauthenticatedError(ANONYMOUS_REFUSED)
        name = self._group(caller)
        issuer = ("all",) if self._across_issuers else ("of", caller.issuer)
        # The claims of an unauthenticated caller never give access to objects of others.
        proof = "authenticated" if caller.authenticated else "unauthenticated"
        key = group_key(*self._namespace, proof, *issuer, name)
        if len(key) * 4 > LONGEST_KEY and len(key.encode()) > LONGEST_KEY:
            return group_key("digest", hashlib.sha256(key.encode()).hexdigest())
        return key

    @property
    def _namespace(self) -> tuple[str, ...]:
        return (self.kind,)

    @abstractmethod
    def _group(self, caller: Caller) -> str:
        """Return the name of a caller's group."""


class Claim(_GroupPolicy):
    """Ownership by all callers with the same value of a claim. See ``claim``."""

    kind = "claim"

    def __init__(self, name: str, *, across_issuers: bool = False) -> None:
        if not isinstance(name, str) or not name or not may_be_name(name):
            raise ValueError(f"claim takes the name of a claim, such as 'org', not {name!r}")
        super().__init__(across_issuers=across_issuers)
        self.name = name

    def __repr__(self) -> str:
        return f"claim({self.name!r})"

    @property
    def _namespace(self) -> tuple[str, ...]:
        return (self.kind, self.name)

    def _group(self, caller: Caller) -> str:
        value = caller.claims.get(self.name)
        if isinstance(value, (list, tuple)) and len(value) == 1:
            value = value[0]
        if isinstance(value, (list, tuple)) and value:
            raise _refused(
                f"the claim {self.name!r} of your credentials has {len(value)} values, and tasks "
                "here belong to a single value; get credentials with one value"
            )
        if value is None or value == "" or value == () or value == []:
            raise _refused(
                f"tasks here belong to the value of the claim {self.name!r}, and your credentials "
                "have none"
            )
        if type(value) is int and abs(value) < 2**63:
            return str(value)
        if not isinstance(value, str) or not may_be_name(value):
            raise _refused(
                f"the claim {self.name!r} of your credentials is not the name of a group, which is "
                f"text of {RIGHT_NAME}"
            )
        return value


class OwnerFunction(_GroupPolicy):
    """Ownership by the name that a function computes from the caller. See ``owner_function``."""

    kind = "function"

    def __init__(
        self, function: Callable[[Caller], str | None], *, across_issuers: bool = False
    ) -> None:
        if not callable(function):
            raise TypeError(f"owner_function takes a function of a Caller, not {function!r}")
        if _is_async(function):
            raise TypeError(
                "the function of an owner policy is a plain def: it is called for every request "
                "and computes a name from the caller; look things up where the caller is "
                "identified, and put them into its claims"
            )
        super().__init__(across_issuers=across_issuers)
        self._function = function

    def __repr__(self) -> str:
        return f"owner_function({getattr(self._function, '__name__', self._function)!s})"

    def _group(self, caller: Caller) -> str:
        words = "the server cannot find out who owns this; its log says why under"
        with author_code(log, "the owner policy of an agent", words, PermissionDeniedError):
            name: Any = self._function(caller)
            if name is None or name == "":
                raise _refused("tasks here belong to groups of callers, and you are in no group")
            if not isinstance(name, str) or not may_be_name(name):
                kind = type(name).__name__
                raise TypeError(f"an owner policy returns text of {RIGHT_NAME}, not this {kind}")
        return name


def claim(name: str, *, across_issuers: bool = False) -> OwnerPolicy:
    """Return the policy under which callers with the same value of a claim share their objects.

    The claim is text or a whole number. Anonymous callers, and callers without the claim or with
    several values, are rejected. "acme" from two issuers is two owners, unless ``across_issuers``.
    """
    return Claim(name, across_issuers=across_issuers)


def owner_function(
    function: Callable[[Caller], str | None], *, across_issuers: bool = False
) -> OwnerPolicy:
    """Return the policy under which callers share their objects if a function names the same owner.

    The function is plain, and called on the event loop for every request. It returns a name, or
    ``None`` for a caller who may own nothing. It is not called for anonymous callers. "acme" from
    two issuers is two owners, unless ``across_issuers``.
    """
    return OwnerFunction(function, across_issuers=across_issuers)


Owner = Literal["caller", "tenant"] | OwnerPolicy | Callable[[Caller], str | None]
"""The option ``owner`` of an agent."""


def owner_policy(given: Any) -> OwnerPolicy:
    """Return the policy for the option ``owner`` of an agent. Raises ``ValueError``."""
    if isinstance(given, _CallerPolicy | _TenantPolicy | _GroupPolicy):
        return given
    if given == "caller":
        return PER_CALLER
    if given == "tenant":
        return PER_TENANT
    if callable(given) and given not in (claim, owner_function) and not isinstance(given, type):
        return OwnerFunction(given)
    raise ValueError(
        f"owner is 'caller', 'tenant', claim('org') or a function of a Caller, not {given!r}; "
        "claim is in parley.security"
    )


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _refused(sentence: str) -> PermissionDeniedError:
    return PermissionDeniedError(sentence)
