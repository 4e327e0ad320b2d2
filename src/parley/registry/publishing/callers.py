"""Callers of a registry: their audiences, their quotas, the audit log of their actions, and the
decisions of operators on entries and sources.

An entry without an audience is public. Otherwise its audience is a set of tokens, and only a viewer
with one of the tokens can see, find and count the entry; for others it does not exist.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from parley.model.bounded import Bounded
from parley.model.errors import InvalidParamsError, TooManyRequestsError, an
from parley.model.ids import may_be_name
from parley.model.service import Caller
from parley.registry.catalog.entries import all_positive
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.addresses import (
    AUTHORITY,
    SCHEMES,
    PlainHosts,
    UnfitAddress,
    checked_address,
)
from parley.registry.ingest.crawler import REFRESH
from parley.registry.ingest.reading import one_form
from parley.registry.ingest.sites import MAX_KNOWN, remove_source, root_of
from parley.registry.records import (
    Authority,
    EntrySelection,
    EntryStanding,
    IndexedEntry,
    Order,
    Source,
    SourceKind,
    Viewer,
)
from parley.security.limits.counters import Window
from parley.store.audit.trail import AuditEntry

# Errors of a registry without an equivalent in A2A.


class NotFoundError(InvalidParamsError):
    """The object does not exist, or the caller may not know of it."""

    http_status = 404


class ConflictError(InvalidParamsError):
    """The current state does not allow the operation."""

    http_status = 409


# Audiences: the callers who can see an entry.

MAX_AUDIENCE = 100
PUBLIC = "public"
AUTHENTICATED = "authenticated"
"""All authenticated callers."""

FORMS = (
    "'public', 'authenticated', 'caller:ada', 'client:shop', 'scope:agents.read', or "
    '{"caller": "ada", "issuer": "https://login.example.com"} for a caller of another issuer'
)


def caller_token(owner: str) -> str:
    """Return the token of a single caller (``Caller.owner``)."""
    return f"caller:{owner}"


def scope_token(scope: str) -> str:
    """Return the token of all callers with a scope."""
    return f"scope:{scope}"


def tokens_of(caller: Caller) -> tuple[str, ...]:
    """Return the tokens of a caller; none for an unauthenticated caller."""
    if not caller.authenticated or not caller.owner:
        return ()
    return (caller_token(caller.owner), AUTHENTICATED, *map(scope_token, sorted(caller.scopes)))


def read_audience(given: Iterable[str | Mapping[str, Any]], publisher: Caller) -> tuple[str, ...]:
    """Return the tokens of an audience in a publisher's notation; the publisher is always included.

    ``caller:ada`` is the user ada of the publisher's own issuer, ``client:shop`` an application.
    Raises ``InvalidParamsError``.
    """
    if isinstance(given, str | Mapping):
        raise InvalidParamsError(f"an audience must be a list of {FORMS}")
    listed = list(given)
    if len(listed) > MAX_AUDIENCE:
        raise InvalidParamsError(
            f"an audience may have at most {MAX_AUDIENCE} members: use a scope"
        )
    tokens = [_token(each, publisher) for each in listed]
    if not tokens or PUBLIC in tokens:
        if len(tokens) > 1:
            raise InvalidParamsError(
                "'public' includes every caller: use it alone, or leave it out"
            )
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
    return InvalidParamsError(f"{str(given)[:100]!r} is not an audience: use {FORMS}")


def _caller_token(kind: str, name: str, issuer: str) -> str:
    client = name if kind == "client" else ""
    return caller_token(Caller(id=name, issuer=issuer, client=client, authenticated=True).owner)


# The audit log of actions of callers and operators on a registry's entries.

SYSTEM = Caller(id="registry", issuer="system")
"""The actor of the registry's own actions."""


class RegistryAudit:
    """Records actions as lines of the index's hash chain, before or while they are done."""

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
        """Append one action; durable on return. Raises ``StoreUnavailable``."""
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


# The limits for publishing, proofs and heartbeats of one caller, so that others get their share.

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
MAX_COUNTED = 20_000
"""The most counters of callers and actions; the least recently used are dropped."""

Act = Literal["publish", "withdraw", "challenge", "prove", "beat"]


class PublishingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a caller; rates are counted per process. Sizes are in bytes, times
    in seconds.
    """

    entries: int = 1_000
    """The most entries of a caller."""
    withdrawn: int = 2_000
    """The most entries that a caller has withdrawn and the index still has."""
    entries_at_once: int = 1_000
    document_bytes: int = 8 * 1024 * 1024
    domains: int = 50
    publishes_per_minute: int = 30
    publishes_at_once: int = 4
    """The most catalogs of a caller that are read or wait to be read."""
    withdrawals_per_minute: int = 120
    challenges_per_hour: int = 30
    proofs_per_minute: int = 10
    beats_per_minute: int = 2_000
    """The most agents in a caller's heartbeats of a minute."""
    publish_seconds: float = 45.0
    """The time for which a publication may read cards; the rest is read later, and listed then."""
    challenge_seconds: float = 24 * 3600.0
    """The time for which a challenge is valid."""
    claim_seconds: float = 7 * 24 * 3600.0
    """The time for which a proof is valid. It is checked again every day before it expires."""
    renewal_seconds: float = 24 * 3600.0
    refresh_seconds: float = 6 * 3600.0
    """How often the cards of published entries are read again."""

    def __post_init__(self) -> None:
        all_positive(self)
        if self.renewal_seconds * 2 > self.claim_seconds:
            raise ValueError(
                f"renewal_seconds ({self.renewal_seconds:g}) must be at most half of claim_seconds "
                f"({self.claim_seconds:g}): a single failed check must not end a claim"
            )


class CallerRates:
    """Counts the actions of callers. ``clock`` returns seconds."""

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
        """Count actions of a caller. Raises ``TooManyRequestsError`` without counting them."""
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


DECIDED = (EntryStanding.LISTED, EntryStanding.HELD, EntryStanding.REJECTED)
"""The standings that an operator can set."""

MAX_REASON = 500
REFRESH_SECONDS = 20.0
REFRESH_POLL = 0.1
"""The time for which a refresh waits for the visits, and the polling interval, in seconds."""


class OperatorDecisions:
    """Carries out an operator's decisions, and records each decision before it takes effect."""

    def __init__(
        self,
        index: RegistryIndex,
        *,
        plain: PlainHosts | None = None,
        begin_due: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.index = index
        self._audit = RegistryAudit(index)
        self._plain = plain
        self._begin_due = begin_due

    async def entries(
        self, standings: Sequence[EntryStanding], limit: int, offset: int = 0
    ) -> list[IndexedEntry]:
        """Return entries with some standings, the most recently changed first."""
        selection = EntrySelection(viewer=Viewer(sees_all=True), standings=tuple(standings))
        order = (Order(field="updatedAt", descending=True),)
        return await self.index.browse(selection, order, limit, offset)

    async def decide(
        self,
        caller: Caller,
        identifier: str,
        standing: EntryStanding,
        reason: str = "",
        *,
        source: str = "",
        address: str = "",
    ) -> IndexedEntry:
        """Set the standing of an entry; return it. ``source`` selects one of several sources.

        Raises ``A2AError``, ``StoreUnavailable``.
        """
        if standing not in DECIDED:
            raise InvalidParamsError(f"an operator can set {', '.join(DECIDED)}, not {standing}")
        reason = " ".join(reason.split())
        if len(reason) > MAX_REASON or not reason.isprintable():
            raise InvalidParamsError(
                f"a reason may have at most {MAX_REASON} characters on one line"
            )
        if standing is EntryStanding.REJECTED and not reason:
            raise InvalidParamsError("give a reason: the owner of the entry reads it")
        name = one_form(identifier)
        there = [
            each
            for each in await self.index.entries_of(name)
            if (not source or each.source == source)
            and (source or each.standing is not EntryStanding.WITHDRAWN)
        ]
        if not there:
            raise NotFoundError(
                f"there is no entry {name[:200]!r}" + f" of {source[:200]}" * bool(source)
            )
        if len(there) > 1:
            sources = ", ".join(each.source[:200] for each in there)
            raise ConflictError(f"several sources have {name[:200]}: name one of {sources}")
        [entry] = there
        await self._audit.record(
            caller,
            "entry.decided",
            name,
            address=address,
            source=entry.source,
            standing=standing.value,
            before=entry.standing.value,
            reason=reason,
        )
        try:
            await self.index.decide(entry.key, standing, reason, caller.id)
        except ValueError as error:
            raise ConflictError(str(error)) from None
        found = await self.index.entries_of(name)
        return next((each for each in found if each.key == entry.key), entry)

    async def add_source(
        self,
        caller: Caller,
        url: str,
        *,
        vouches: bool = False,
        audience: tuple[str, ...] = (),
        address: str = "",
    ) -> Source:
        """Add a site or a catalog that is read regularly; return it.

        With ``vouches`` the operator vouches for the publishers of its entries, whatever their
        domains. Raises ``A2AError``, ``StoreUnavailable``.
        """
        try:
            checked = checked_address(url, plain=self._plain)
        except UnfitAddress as error:
            raise InvalidParamsError(str(error)) from None
        is_file = checked.partition("?")[0].endswith(".json")
        if vouches and not is_file:
            raise InvalidParamsError(
                "vouching applies to one catalog: give the address of its .json document"
            )
        settings: dict[str, object] = {}
        if vouches:
            settings[AUTHORITY] = Authority.OPERATOR.value
        if audience:
            settings["audience"] = list(audience)
        source = Source(
            url=checked, kind=SourceKind.CATALOG if is_file else SourceKind.SITE, settings=settings
        )
        await self._audit.record(
            caller, "source.added", checked[:500], address=address, vouches=vouches
        )
        if not await self.index.add_sources([source]):
            before = await self.index.source(checked)
            if before is not None and not before.found_by:
                raise ConflictError(f"{checked[:200]} is a source already")
            if before is not None and "audience" in before.settings and not audience:
                kept = {**settings, "audience": before.settings["audience"]}
                source = msgspec.structs.replace(source, settings=kept)
            await self.index.change_source(source)  # a source that another site led to
        return source

    async def refresh(self, caller: Caller, url: str, *, address: str = "") -> list[Source]:
        """Read a source, and the sources it led to, again now with all cards; return them.

        Waits a while for the visits: a source whose visit is not over has ``refresh`` in its
        settings. Raises ``A2AError``, ``StoreUnavailable``.
        """
        named = await self._named(url)
        await self._audit.record(caller, "source.refreshed", named.url[:500], address=address)
        for each in await self._led_to(named):
            settings = {**each.settings, REFRESH: True}
            again = msgspec.structs.replace(
                each, etag="", last_modified="", due_at=0, settings=settings
            )
            await self.index.change_source(again)
        if self._begin_due is not None:
            await self._begin_due()
        found: list[Source] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_SECONDS):
                while True:
                    found = await self._led_to(named)
                    if all(each.fetched_at and REFRESH not in each.settings for each in found):
                        break
                    await asyncio.sleep(REFRESH_POLL)
        return found

    async def _named(self, url: str) -> Source:
        """Return the source with an address or a domain."""
        given = url.strip()
        host = given.partition("/")[0]
        forms = [given, f"{given}/"] if "://" in given or given[:1] == "/" else []
        forms = forms or [f"{scheme}://{given}" + "/" * (host == given) for scheme in SCHEMES]
        for each in forms:
            with suppress(UnfitAddress):
                if source := await self.index.source(checked_address(each, plain=self._plain)):
                    return source
        with suppress(RuntimeError, ValueError):  # not a path of this machine
            for name in (given, _file_address(given)):
                if source := await self.index.source(name):
                    return source
        raise NotFoundError(f"there is no source {url[:200]!r}; parley agents import adds a source")

    async def _led_to(self, named: Source) -> list[Source]:
        """Return a source in its current state, with the sources it led to."""
        every = await self.index.sources(limit=MAX_KNOWN)
        root = {named.url}
        return [each for each in every if each.url in root or root_of(each) in root]

    async def remove_source(self, caller: Caller, url: str, *, address: str = "") -> None:
        """Remove a source and the sources that only it led to, and withdraw their entries.

        Raises ``A2AError``, ``StoreUnavailable``.
        """
        await self._audit.record(caller, "source.removed", url[:500], address=address)
        if not await remove_source(self.index, url):
            raise NotFoundError(f"there is no source {url[:200]!r}")


def _file_address(path: str) -> str:
    return Path(path).expanduser().absolute().as_uri()


def file_source(path: str | Path) -> Source:
    """Return the source of a catalog file, for which the operator of the registry vouches.

    It is read again when the file changes. Raises ``ValueError`` for a file without a catalog.
    """
    from parley.registry.catalog.reading import InvalidCatalog
    from parley.registry.ingest.fetching import IngestLimits
    from parley.registry.ingest.reading import read_whole

    found = Path(path).expanduser().absolute()
    limits = IngestLimits()
    try:
        with found.open("rb") as file:
            body = file.read(limits.catalog_bytes + 1)
    except OSError as error:
        raise ValueError(f"the entries of {found} cannot be read: {error.strerror}") from None
    if len(body) > limits.catalog_bytes:
        raise ValueError(f"{found} is larger than {limits.catalog_bytes:,} bytes")
    try:
        reading = read_whole(body, limits, depth=0, at_most=limits.entries_per_catalog)
    except InvalidCatalog as error:
        raise ValueError(
            f'{found} is not a catalog: {error}; a catalog is {{"entries": [...]}}, as in '
            "/.well-known/ard.json"
        ) from None
    if reading.rejected:
        first = reading.rejected[0]
        name = first.identifier[:200] or "an entry"
        raise ValueError(f"{found}: {name} is invalid: {first.reason}")
    return Source(url=found.as_uri(), kind=SourceKind.FILE)
