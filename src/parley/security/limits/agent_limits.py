"""The limits of an agent, checked once for each call of any binding and once for each message.

The dispatcher checks before it reads a request (``begin``), knowing the operation, the caller and
the address. It checks the tenant as soon as that is known (``LimitGrant.of_tenant``), and admission
checks the skill (``AgentLimits.admit``). Callers see limits in the error, and in the fields of
draft-ietf-httpapi-ratelimit-headers: ``RateLimit-Policy`` has the policies, ``RateLimit`` the
remaining amounts and the seconds until more is free.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_network
from typing import Any, NamedTuple

import msgspec

from parley.model.errors import FieldViolation, InvalidParamsError, TooManyRequestsError
from parley.model.ids import RIGHT_ID, may_be_id
from parley.model.operations import SendMessageRequest
from parley.model.service import CallContext, Caller
from parley.model.struct import encode
from parley.security.limits.counters import Counters, Taken, short_key
from parley.security.limits.declaration import (
    DAY_MS,
    Applies,
    Budget,
    Limit,
    Rate,
    SizeLimit,
    StreamLimit,
)
from parley.security.limits.usage import UsageMeter
from parley.security.networks import is_among, network_of

QUOTA_FAILURE = "type.googleapis.com/google.rpc.QuotaFailure"

Fields = list[tuple[str, str]]
"""Headers or metadata: names in lower case, and values."""


class Standing(NamedTuple):
    """One limit's state for a caller: ``reset`` and ``period`` (0 for streams) are in seconds."""

    name: str
    amount: int
    period: int
    remaining: int
    reset: float


class LimitExceeded(TooManyRequestsError):
    """A limit is reached. ``standings`` are the states of the request's limits, if known."""

    standings: Sequence[Standing] = ()


class MessageTooLarge(InvalidParamsError):
    """A message is larger than the agent accepts."""

    http_status = 413


def exceeded(text: str, standing: Standing, *, what: str = "") -> LimitExceeded:
    """Return the error for a limit. ``text`` is the declaration of the limit."""
    seconds = max(1, math.ceil(standing.reset))
    soon = f"wait {seconds} second{'' if seconds == 1 else 's'}"
    message = f"the limit of {text} is reached{what}; {soon} and send this again"
    error = LimitExceeded(
        message,
        metadata={"limit": text, "policy": standing.name, "remaining": str(standing.remaining)},
        details=(
            {
                "@type": QUOTA_FAILURE,
                "violations": [{"subject": standing.name, "description": f"limit: {text}"}],
            },
        ),
        retry_after=seconds,
    )
    error.standings = (standing,)
    return error


def fields_of(standings: Iterable[Standing]) -> Fields:
    """Return ``RateLimit-Policy`` and ``RateLimit``, or nothing without a limit."""
    policies, states = [], []
    for each in standings:
        window = f";w={each.period}" if each.period else ""
        policies.append(f'"{each.name}";q={each.amount}{window}')
        reset = f";t={max(0, math.ceil(each.reset))}" if each.period else ""
        states.append(f'"{each.name}";r={max(0, each.remaining)}{reset}')
    if not policies:
        return []
    return [("ratelimit-policy", ", ".join(policies)), ("ratelimit", ", ".join(states))]


_AS_SENT = {"SendStreamingMessage": "SendMessage"}
"""Limits of the operation on the right apply to the operation on the left too."""


class Asking(msgspec.Struct, frozen=True):
    """A request to be counted: its caller, and the operation."""

    caller: Caller
    tenant: str
    address: str
    operation: str
    skill: str = ""

    @property
    def billed(self) -> str:
        """The caller in usage and budgets; empty if the caller is not authenticated."""
        return self.caller.owner if self.caller.authenticated else ""

    def key(self, applies: Applies) -> tuple[str, ...]:
        """Return the key by which a limit counts this request.

        Unauthenticated callers are counted by address, since they can invent ids.
        """
        return tuple([f"{name}={self._value(name)}" for name in applies.per])

    def _value(self, name: str) -> str:
        if name == "caller":
            return self.billed or f"@{network_of(self.address)}"
        if name == "address":
            return network_of(self.address)
        if name == "operation":
            return _AS_SENT.get(self.operation, self.operation)
        return self.skill if name == "skill" else self.tenant

    def is_exempt(self, applies: Applies) -> bool:
        """Return whether a limit does not apply. Ids and roles must be authenticated to count."""
        for each in applies.exempt:
            if each.kind == "address":
                if is_among(self.address, (ip_network(each.value),)):
                    return True
            elif self.caller.authenticated:
                kind = "client" if self.caller.is_application else "caller"
                if each.kind == kind and each.value in _names(self.caller):
                    return True
                if each.kind == "scope" and each.value in self.caller.scopes:
                    return True
                if each.kind == "role" and each.value in _roles(self.caller):
                    return True
        return False


class _Scoped(msgspec.Struct, frozen=True):
    """A limit of an agent, or of the server (``scope`` is empty), with its counter."""

    limit: Any
    scope: str
    counters: Any = None

    def key(self, asking: Asking) -> str:
        limit = self.limit
        return short_key(self.scope, limit.name, limit.text, *asking.key(limit.applies))


class LimitGrant:
    """The permission for a call, with the limits that remain to be checked.

    ``of_tenant`` is called as soon as the tenant is known, and ``settle`` is awaited before the
    call is answered. ``fields`` are for the response.
    """

    __slots__ = ("_asking", "_limits", "_of_tenants", "_pending", "_standings", "_taken")

    def __init__(
        self, limits: AgentLimits, asking: Asking, of_tenants: Sequence[_Scoped] = ()
    ) -> None:
        self._limits = limits
        self._asking = asking
        self._of_tenants = of_tenants
        self._standings: list[Standing] = []
        self._taken: list[tuple[_Scoped, str]] = []
        self._pending: list[tuple[_Scoped, str]] = []

    def of_tenant(self, tenant: str) -> None:
        """Count the request for its tenant. Raises ``InvalidParamsError``, ``LimitExceeded``."""
        if tenant:
            if not may_be_id(tenant):
                violations = (FieldViolation("tenant", RIGHT_ID),)
                raise InvalidParamsError(f"tenant: an id has {RIGHT_ID}", violations=violations)
            self._asking = msgspec.structs.replace(self._asking, tenant=tenant)
        self._limits.requested(self._asking)
        for scoped in self._of_tenants:
            self.take(scoped)

    def take(self, scoped: _Scoped) -> None:
        """Count the call for a rate, now or in ``settle``. Exempt callers are not counted.

        Raises ``LimitExceeded``.
        """
        applies = scoped.limit.applies
        if applies.exempt and self._asking.is_exempt(applies):
            return
        key = scoped.key(self._asking)
        taken = scoped.counters.try_take(key, scoped.limit)
        if taken is None:
            self._pending.append((scoped, key))
        else:
            self._note(scoped, key, taken)

    @property
    def address(self) -> str:
        """The address of the sender."""
        return self._asking.address

    @property
    def is_settled(self) -> bool:
        """True if no limit remains to be awaited."""
        return not self._pending

    async def settle(self) -> None:
        """Count the call for the rates that need I/O. Raises ``LimitExceeded``."""
        pending, self._pending = self._pending, []
        for scoped, key in pending:
            self._note(scoped, key, await scoped.counters.take(key, scoped.limit))

    def _note(self, scoped: _Scoped, key: str, taken: Taken) -> None:
        rate = scoped.limit
        standing = Standing(
            rate.name, rate.amount, rate.period_ms // 1000, taken.remaining, taken.reset
        )
        self._standings.append(standing)
        if taken.allowed:
            self._taken.append((scoped, key))
            return
        for other, its_key in self._taken:
            other.counters.give_back(its_key, other.limit)
        self._limits.refused(self._asking)
        error = exceeded(rate.text, standing)
        error.standings = self._standings
        raise error

    @property
    def fields(self) -> Fields:
        """The headers, or metadata, of the response."""
        return fields_of(self._standings)

    def stream(self) -> Any:
        """Return the context manager that counts an open stream of the call."""
        return self._limits.stream(self._asking)


class Sizes(msgspec.Struct, frozen=True):
    """The limits on a message for a skill and on the output of its turn; ``None`` is unlimited."""

    message: SizeLimit | None = None
    parts: SizeLimit | None = None
    artifact: SizeLimit | None = None
    task: SizeLimit | None = None
    history: SizeLimit | None = None


class AgentLimits:
    """The limits of one agent, and of its server.

    ``server`` and ``own`` are limits; limits of skills are part of ``own``. ``counters`` count
    rates, ``daily`` counts the messages and tasks of a day. ``usage`` is the meter, if anything
    needs one. ``declared`` has all limits; with ``changes``, ``declare`` may replace the server's.
    """

    def __init__(
        self,
        agent: str,
        *,
        server: Sequence[Limit],
        own: Sequence[Limit],
        counters: Counters,
        daily: Counters,
        streams: Counter[str],
        usage: UsageMeter | None,
        now: Any,
        changes: bool = False,
    ) -> None:
        self.agent = agent
        self.usage = usage
        self._now = now
        self._open = streams
        self._own = own
        self._counters = counters, daily
        self._changes = changes
        self.declare(server)
        self.measures_turns = usage is not None or any(map(measures_turns, self.declared))

    def declare(self, server: Sequence[Limit]) -> None:
        """Set the limits of the server. Unchanged limits keep their counts."""
        agent, own, (counters, daily) = self.agent, self._own, self._counters
        every = [("", each) for each in server] + [(agent, each) for each in own]
        self.declared = tuple([each for _, each in every])
        rates = [
            _Scoped(each, scope, daily if each.is_daily else counters)
            for scope, each in every
            if isinstance(each, Rate)
        ]
        self._early: list[_Scoped] = []
        self._late: list[_Scoped] = []
        for each in rates:
            is_early = each.limit.counts == "requests" and not each.limit.applies.needs_skill
            (self._early if is_early else self._late).append(each)
        self._streams = [
            _Scoped(each, scope) for scope, each in every if isinstance(each, StreamLimit)
        ]
        self._budgets = [_Scoped(each, scope) for scope, each in every if isinstance(each, Budget)]
        self._sizes = [each for _, each in every if isinstance(each, SizeLimit)]
        self._by_operation: dict[str, tuple[list[_Scoped], list[_Scoped]]] = {}
        self._sizes_of: dict[str, Sizes] = {}

    @property
    def limits_messages(self) -> bool:
        """True if admission has any limit to check."""
        sized = any(each.what in ("message", "parts") for each in self._sizes)
        counted = self._late or self._budgets or self.usage is not None
        return bool(self._changes or sized or counted)

    # -- the dispatcher ------------------------------------------------------------------------

    def begin(self, operation: str, caller: Caller, sender: Callable[[], str]) -> LimitGrant:
        """Count a call before it is read; its tenant is unknown then. Raises ``LimitExceeded``.

        ``sender`` returns the address of the sender; empty if there is none (unix sockets).
        """
        asking = Asking(caller, "", sender(), operation)
        rates, of_tenants = self._by_operation.get(operation) or self._rates(operation)
        grant = LimitGrant(self, asking, of_tenants)
        try:
            for scoped in rates:
                grant.take(scoped)
        except LimitExceeded:
            self.requested(asking)
            raise
        return grant

    def _rates(self, operation: str) -> tuple[list[_Scoped], list[_Scoped]]:
        """Return the rates to check before a call of an operation is read, and the rates for
        later."""
        names = {operation, _AS_SENT.get(operation)}
        found: tuple[list[_Scoped], list[_Scoped]] = ([], [])
        for each in self._early:
            applies = each.limit.applies
            if not applies.operations or not names.isdisjoint(applies.operations):
                found["tenant" in applies.per].append(each)
        self._by_operation[operation] = found
        return found

    def requested(self, asking: Asking) -> None:
        """Count a request."""
        if self.usage is not None:
            self.usage.count("requests", self.agent, asking.tenant, asking.billed)

    def refused(self, asking: Asking) -> None:
        """Count a rejected request."""
        if self.usage is not None:
            self.usage.count("refusals", self.agent, asking.tenant, asking.billed, asking.skill)

    @contextmanager
    def stream(self, asking: Asking) -> Iterator[None]:
        """Count an open stream while the context lasts. Raises ``LimitExceeded``."""
        held: list[str] = []
        try:
            for scoped in self._streams:
                if asking.is_exempt(scoped.limit.applies):
                    continue
                key = scoped.key(asking)
                if self._open[key] >= scoped.limit.amount:
                    self.refused(asking)
                    standing = Standing(scoped.limit.name, scoped.limit.amount, 0, 0, 1.0)
                    raise exceeded(scoped.limit.text, standing, what=": close another stream")
                self._open[key] += 1
                held.append(key)
            yield
        finally:
            for key in held:
                self._open[key] -= 1
                if not self._open[key]:
                    del self._open[key]

    # -- admission -----------------------------------------------------------------------------

    def admit(
        self, request: SendMessageRequest, context: CallContext, skill: str, *, begins: bool
    ) -> Awaitable[None] | None:
        """Count a message whose skill is known, before it is stored.

        The returned awaitable, if any, counts the part that needs I/O. ``begins`` is true for a
        message that names no task. Raises ``LimitExceeded`` and ``MessageTooLarge``.
        """
        asking = self._asking(request, context, skill)
        if self._budgets:
            return self._admit_within_budgets(asking, begins)
        grant = self._take_late(asking, begins)
        if not grant.is_settled:
            return self._settle(asking, grant)
        self._admitted(asking)
        return None

    async def _admit_within_budgets(self, asking: Asking, begins: bool) -> None:
        for scoped in self._budgets:
            if not asking.is_exempt(scoped.limit.applies):
                await self._check_budget(scoped, asking)
        await self._settle(asking, self._take_late(asking, begins))

    async def _settle(self, asking: Asking, grant: LimitGrant) -> None:
        if not grant.is_settled:
            await grant.settle()
        self._admitted(asking)

    def _asking(self, request: SendMessageRequest, context: CallContext, skill: str) -> Asking:
        """Return the request to count, if its message is small enough. Raises
        ``MessageTooLarge``."""
        asking = Asking(context.caller, context.tenant, context.address, "SendMessage", skill)
        if self._sizes:
            self._check_size(request, asking)
        return asking

    def _take_late(self, asking: Asking, begins: bool) -> LimitGrant:
        """Count a message for the rates of messages, as far as possible without I/O."""
        grant = LimitGrant(self, asking)
        for scoped in self._late:
            rate = scoped.limit
            skills = rate.applies.skills
            if skills and asking.skill not in skills:
                continue
            if rate.counts == "tasks" and not begins:
                continue
            grant.take(scoped)
        return grant

    def _admitted(self, asking: Asking) -> None:
        """Count a message."""
        if self.usage is not None:
            self.usage.count("messages", self.agent, asking.tenant, asking.billed, asking.skill)

    async def _check_budget(self, scoped: _Scoped, asking: Asking) -> None:
        budget: Budget = scoped.limit
        left, reset = await self._left_of(scoped, asking)
        if left <= 0:
            self.refused(asking)
            standing = Standing(budget.name, budget.amount, DAY_MS // 1000, 0, reset)
            is_shared = "caller" in budget.applies.per and not asking.billed
            what = " by all callers without proof of who they are" if is_shared else ""
            raise exceeded(budget.text, standing, what=what)

    async def _left_of(self, scoped: _Scoped, asking: Asking) -> tuple[int, float]:
        """Return the remaining amount of a budget, and the seconds until it is full again."""
        budget: Budget = scoped.limit
        assert self.usage is not None
        per, now = budget.applies.per, self._now()
        whose = (
            now // DAY_MS,
            scoped.scope or None,
            asking.tenant if "tenant" in per else None,
            asking.billed if "caller" in per else None,
        )
        used = await self.usage.used("output_bytes" if budget.what == "output" else "run_ms", whose)
        return budget.amount - used, (DAY_MS - now % DAY_MS) / 1000

    def _check_size(self, request: SendMessageRequest, asking: Asking) -> None:
        sizes = self.sizes(asking.skill)
        size, parts = sizes.message, sizes.parts
        if parts is not None and len(request.message.parts) > parts.amount:
            self._too_large(asking, parts, "message.parts", f"{len(request.message.parts)} parts")
        if size is not None and (found := len(encode(request.message))) > size.amount:
            self._too_large(asking, size, "message", f"{found} bytes as JSON")

    def _too_large(self, asking: Asking, limit: SizeLimit, field: str, found: str) -> None:
        self.refused(asking)
        description = f"it has {found}, which is more than the limit of {limit.text}"
        raise MessageTooLarge(
            f"{field}: {description}",
            metadata={"limit": limit.text},
            violations=(FieldViolation(field, description),),
        )

    def sizes(self, skill: str) -> Sizes:
        """Return the smallest size limits for a skill."""
        found = self._sizes_of.get(skill)
        if found is None:
            own = [each for each in self._sizes if not each.skills or skill in each.skills]
            own.sort(key=lambda each: -each.amount)
            found = self._sizes_of[skill] = Sizes(**{each.what: each for each in own})
        return found

    # -- reports -------------------------------------------------------------------------------

    async def report(self, context: CallContext) -> list[tuple[Limit, int | None, float | None]]:
        """Return the limits of a caller, each with the remaining amount and the seconds until
        more."""
        asking = Asking(context.caller, context.tenant, context.address, "")
        found: list[tuple[Limit, int | None, float | None]] = []
        for scoped in (*self._early, *self._late):
            applies = scoped.limit.applies
            if asking.is_exempt(applies):
                continue
            taken = None
            if "operation" not in applies.per and "skill" not in applies.per:
                taken = await scoped.counters.peek(scoped.key(asking), scoped.limit)
            found.append((scoped.limit, taken and max(0, taken.remaining), taken and taken.reset))
        for scoped in self._streams:
            if not asking.is_exempt(scoped.limit.applies):
                left = scoped.limit.amount - self._open[scoped.key(asking)]
                found.append((scoped.limit, max(0, left), None))
        for scoped in self._budgets:
            if not asking.is_exempt(scoped.limit.applies):
                left, reset = await self._left_of(scoped, asking)
                found.append((scoped.limit, max(0, left), reset))
        return [*found, *[(each, None, None) for each in self._sizes]]


def measures_turns(limit: Limit) -> bool:
    """Return whether turns must be measured for a limit."""
    is_output = isinstance(limit, SizeLimit) and limit.what in ("artifact", "task", "history")
    return is_output or isinstance(limit, Budget)


def standings_of(error: Exception) -> Sequence[Standing]:
    """Return the limit states in an error."""
    return error.standings if isinstance(error, LimitExceeded) else ()


def _names(caller: Caller) -> tuple[str, ...]:
    """Return the names of a caller: ``ISSUER:ID``, and its id unless that looks like the former.

    A caller without issuer has only its id.
    """
    if not caller.issuer:
        return (caller.id,)
    full = f"{caller.issuer}:{caller.id}"
    return (full,) if ":" in caller.id else (full, caller.id)


def _roles(caller: Caller) -> set[str]:
    found: set[str] = set()
    for name in ("role", "roles", "groups"):
        value = caller.claims.get(name)
        if isinstance(value, str):
            found.update(value.split())
        elif isinstance(value, list | tuple):
            found.update([each for each in value if isinstance(each, str)])
    return found
