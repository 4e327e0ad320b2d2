"""Callers of a registry: their audiences, their quotas, and the audit of their acts.

Everybody sees an entry without an audience. Else it has tokens, and a viewer with one of them sees
it, finds it, and counts it; for all others it is as if it were not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from parley.model.bounded import Bounded
from parley.model.errors import InvalidParamsError, TooManyRequestsError, an
from parley.model.ids import may_be_name
from parley.model.service import Caller
from parley.registry.catalog.entries import all_positive
from parley.registry.index.registry_index import RegistryIndex
from parley.security.limits.counters import Window
from parley.store.audit.trail import AuditEntry

# Refusals of a registry that A2A has no error for.


class NotFoundError(InvalidParamsError):
    """There is no such thing, or the caller may not know of it."""

    http_status = 404


class ConflictError(InvalidParamsError):
    """The state of things does not allow it."""

    http_status = 409


# Audiences: who sees an entry.

MAX_AUDIENCE = 100
PUBLIC = "public"
AUTHENTICATED = "authenticated"
"""All callers that proved who they are."""

FORMS = (
    "'public', 'authenticated', 'caller:ada', 'client:shop', 'scope:agents.read', or "
    '{"caller": "ada", "issuer": "https://login.example.com"} for a caller of another issuer'
)


def caller_token(owner: str) -> str:
    """Return the token that stands for one caller (``Caller.owner``)."""
    return f"caller:{owner}"


def scope_token(scope: str) -> str:
    """Return the token that stands for all callers with a scope."""
    return f"scope:{scope}"


def tokens_of(caller: Caller) -> tuple[str, ...]:
    """Return the tokens that a caller has; none without proof of who it is."""
    if not caller.authenticated or not caller.owner:
        return ()
    return (caller_token(caller.owner), AUTHENTICATED, *map(scope_token, sorted(caller.scopes)))


def read_audience(given: Iterable[str | Mapping[str, Any]], publisher: Caller) -> tuple[str, ...]:
    """Return the tokens of an audience as a publisher writes it; it is part of its own audience.

    ``caller:ada`` is the user ada of the publisher's own issuer, ``client:shop`` an application.
    Raises ``InvalidParamsError``.
    """
    if isinstance(given, str | Mapping):
        raise InvalidParamsError(f"an audience is a list; of {FORMS}")
    listed = list(given)
    if len(listed) > MAX_AUDIENCE:
        raise InvalidParamsError(f"an audience has at most {MAX_AUDIENCE} members: name a scope")
    tokens = [_token(each, publisher) for each in listed]
    if not tokens or PUBLIC in tokens:
        if len(tokens) > 1:
            raise InvalidParamsError("'public' is everybody: leave out the rest, or leave it out")
        return ()
    return tuple(dict.fromkeys((*tokens, caller_token(publisher.owner))))


def _token(given: str | Mapping[str, Any], publisher: Caller) -> str:
    if isinstance(given, Mapping):
        kind = "client" if "client" in given else "caller"
        name, issuer = given.get(kind), given.get("issuer", publisher.issuer)
        is_known = set(given) <= {kind, "issuer"}
        if not is_known or not _is_name(name) or not isinstance(issuer, str):
            raise _wrong(given)
        if issuer and not _is_name(issuer):
            raise _wrong(given)
        return _caller_token(kind, str(name), issuer)
    if given in (PUBLIC, AUTHENTICATED):
        return given
    kind, _, name = given.partition(":") if isinstance(given, str) else ("", "", "")
    if not _is_name(name):
        raise _wrong(given)
    if kind in ("caller", "client"):
        return _caller_token(kind, name, publisher.issuer)
    if kind == "scope" and " " not in name:
        return scope_token(name)
    raise _wrong(given)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= 200 and may_be_name(name)


def _wrong(given: Any) -> InvalidParamsError:
    return InvalidParamsError(f"{str(given)[:100]!r} is no audience: write {FORMS}")


def _caller_token(kind: str, name: str, issuer: str) -> str:
    client = name if kind == "client" else ""
    return caller_token(Caller(id=name, issuer=issuer, client=client, authenticated=True).owner)


# The audit of what callers and operators do to a registry's entries.

SYSTEM = Caller(id="registry", issuer="system")
"""Who acts when the registry does so by itself."""


class RegistryAudit:
    """Records acts as lines of the index's chain, before or as they are done."""

    def __init__(self, index: RegistryIndex) -> None:
        self._index = index

    async def record(
        self,
        caller: Caller,
        kind: str,
        subject: str,
        *,
        outcome: str = "done",
        address: str = "",
        **details: Any,
    ) -> None:
        """Append one act; durable when it returns. Raises ``StoreUnavailable``."""
        entry = AuditEntry(
            kind=kind,
            issuer=caller.issuer,
            actor=caller.id,
            client=caller.client,
            address=address,
            subject=subject,
            outcome=outcome,
            details=details,
        )
        await self._index.append_acts([entry])


# How much a caller may publish, prove and beat, so that none takes the share of others.

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
MAX_COUNTED = 20_000
"""How many callers and acts are counted at most; then those that were seen longest ago go."""

Act = Literal["publish", "withdraw", "challenge", "prove", "beat"]


class PublishingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a caller; rates are counted in one process. Sizes are in bytes, times in
    seconds.
    """

    entries: int = 1_000
    """The entries of a caller,"""
    withdrawn: int = 2_000
    """and those that it withdrew, as long as the index has them."""
    entries_at_once: int = 1_000
    document_bytes: int = 8 * 1024 * 1024
    domains: int = 50
    publishes_per_minute: int = 30
    publishes_at_once: int = 4
    """Catalogs of a caller that are read or wait for that."""
    withdrawals_per_minute: int = 120
    challenges_per_hour: int = 30
    proofs_per_minute: int = 10
    beats_per_minute: int = 2_000
    """Agents whose heartbeats a caller sends."""
    publish_seconds: float = 45.0
    """How long a push may read cards; the rest is read later, and listed then."""
    challenge_seconds: float = 24 * 3600.0
    """How long a token may take to be shown."""
    claim_seconds: float = 7 * 24 * 3600.0
    """How long a proof counts. It is looked for again every day before."""
    renewal_seconds: float = 24 * 3600.0
    refresh_seconds: float = 6 * 3600.0
    """How often the cards of pushed entries are read again."""

    def __post_init__(self) -> None:
        all_positive(self)
        if self.renewal_seconds * 2 > self.claim_seconds:
            raise ValueError(
                f"renewal_seconds ({self.renewal_seconds:g}) is at most half of claim_seconds "
                f"({self.claim_seconds:g}): a proof that cannot be seen once must not end a claim"
            )


class CallerRates:
    """Counts what callers do. ``clock`` returns seconds."""

    def __init__(
        self, limits: PublishingLimits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rates: dict[Act, tuple[int, int]] = {
            "publish": (limits.publishes_per_minute, MINUTE_MS),
            "withdraw": (limits.withdrawals_per_minute, MINUTE_MS),
            "challenge": (limits.challenges_per_hour, HOUR_MS),
            "prove": (limits.proofs_per_minute, MINUTE_MS),
            "beat": (limits.beats_per_minute, MINUTE_MS),
        }
        self._clock = clock
        self._windows: Bounded[tuple[str, Act], Window] = Bounded(MAX_COUNTED)

    def take(self, owner: str, act: Act, count: int = 1) -> None:
        """Count acts of a caller. Raises ``TooManyRequestsError``, and counts none of them then."""
        amount, period = self._rates[act]
        now = round(self._clock() * 1000)
        window = self._windows.use((owner, act)) or Window(period)
        self._windows[owner, act] = window
        given = window.take(now, amount, count)
        if given == count:
            return
        window.give_back(given)
        span = "minute" if period == MINUTE_MS else "hour"
        raise TooManyRequestsError(
            f"that is more than {amount:,} times '{act}' in {an(span)} for one caller; wait",
            retry_after=max(1.0, window.wait(now) / 1000),
        )
