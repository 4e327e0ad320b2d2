"""A probe of an agent: its card, and a request for an unknown task at each of its interfaces.

``GetTask`` with an unknown id changes nothing, costs nothing, and only an A2A agent answers it as
the protocol requires. Credentials are never sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec

from parley.client.bindings.http import HttpTransport
from parley.client.card.interface import Candidate, choose
from parley.client.card.resolver import CardResolver, ResolvedCard, read_card
from parley.client.connection import connect
from parley.client.errors import (
    AddressNotAllowed,
    AuthenticationRequired,
    CardInvalid,
    ClientError,
    NoCommonInterface,
    UnexpectedStatus,
)
from parley.client.retry import Retry
from parley.model.bounded import Bounded
from parley.model.errors import (
    A2AError,
    InternalError,
    InvalidAgentResponseError,
    JSONParseError,
    MethodNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    TaskNotFoundError,
    TooManyRequestsError,
    UnauthenticatedError,
    VersionNotSupportedError,
)
from parley.model.parts import Message
from parley.model.tasks import Task, TaskState
from parley.registry.catalog.entries import is_within, one_line
from parley.registry.health.settings import HealthSettings, ProbeFinding, ProbeOutcome
from parley.registry.ingest.addresses import domain_of, speaks_for
from parley.registry.publishing.pushing import MAX_PROBE_TEXT, PROBE
from parley.registry.records import Authority, IndexedEntry
from parley.security.egress import Egress

# Messages to agents whose owners requested them: only to those agents, on their publisher's hosts.

_BAD = frozenset({TaskState.FAILED, TaskState.REJECTED})


def probe_text(entry: IndexedEntry, candidate: Candidate) -> str:
    """Return the text of the message that an owner requested; empty without a request.

    The metadata of an entry is trusted if the entry belongs to its source's domain, or to a caller
    who proved the domain; an operator vouches for other entries. It applies to agents on the
    publisher's own hosts only: no entry can cause messages to other people's agents.
    """
    if entry.authority not in (Authority.PROVED, Authority.DOMAIN):
        return ""
    metadata = entry.entry.get("metadata")
    text = metadata.get(PROBE) if isinstance(metadata, dict) else None
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_PROBE_TEXT:
        return ""
    return text if _is_at_home(entry.publisher, candidate.interface.url) else ""


def _is_at_home(publisher: str, url: str) -> bool:
    host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
    domain = domain_of(f"https://[{host}]/" if ":" in host else f"https://{host}/")
    return is_within(host, publisher) or (domain == "localhost" and speaks_for(domain, publisher))


def failure_of(answer: Task | Message) -> str:
    """Return the fault of the response to a message; empty without a fault."""
    if isinstance(answer, Task) and answer.state in _BAD:
        return f"its task for the probe message is {answer.state.name.lower()}"
    return ""


# Limits for hosts that entries name as interfaces of agents, and that may belong to strangers.

MAX_HOSTS = 10_000


class ProbePostponed(Exception):
    """A host of a probe has too many running calls: the probe is postponed."""


class HostTurns:
    """Limits the calls of each host over all probes: ``most`` probes at a time, and a pause of
    ``seconds`` for each of their calls. ``clock`` returns seconds.
    """

    def __init__(
        self, most: int, seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._free_at: Bounded[str, float] = Bounded(MAX_HOSTS)

    def begin(self, hosts: Collection[str]) -> bool:
        """Return whether all hosts may be called now, each as often as it is given. If so, ``end``
        must follow.
        """
        calls, now = Counter(hosts), self._clock()
        for host in calls:
            if self._running[host] >= self._most or now < self._free_at.get(host, now):
                return False
        for host, count in calls.items():
            self._running[host] += 1
            self._free_at[host] = now + self._seconds * count
        return True

    def end(self, hosts: Collection[str]) -> None:
        """Record the end of the calls of hosts."""
        self._running.subtract(set(hosts))
        self._running = +self._running  # drops zeros


_NO_RETRY = Retry(calls=0, streams=0)
_VERSION_HEADERS = {"A2A-Version": "1.0"}
_WANTS_CREDENTIALS = (UnauthenticatedError, PermissionDeniedError, AuthenticationRequired)
_FAILS = (
    InternalError,
    OverloadedError,
    TooManyRequestsError,
    MethodNotFoundError,
    VersionNotSupportedError,
    JSONParseError,
)
"""Errors that show a fault of the agent."""


class InterfaceFinding(msgspec.Struct, frozen=True):
    """The outcome of the call of one interface."""

    outcome: ProbeOutcome
    reason: str = ""
    latency: float = 0.0
    retry_after: float | None = None


class AgentProbe:
    """Probes agents with Parley's client. ``egress`` judges every address.

    Close it in its event loop.
    """

    def __init__(
        self,
        egress: Egress,
        settings: HealthSettings | None = None,
        *,
        http: HttpTransport | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._settings = settings or HealthSettings()
        self._http = http or HttpTransport(
            egress=egress,
            connect_timeout=min(5.0, self._settings.request_seconds),
            max_response=self._settings.answer_bytes,
            bound_to_turns=False,
        )
        self._clock = clock
        self._turns = HostTurns(self._settings.per_host, self._settings.per_host_seconds)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._http.close()

    async def probe(self, entry: IndexedEntry, *, may_message: bool = False) -> ProbeFinding:
        """Probe the agent of an entry. With ``may_message`` it also sends the message that the
        owner requested, if any.

        Every fault is in the finding. Raises ``ProbePostponed`` if it would call a host other than
        the card's host that other probes are calling.
        """
        try:
            async with asyncio.timeout(self._settings.probe_seconds):
                return await self._probe(entry, may_message)
        except TimeoutError:
            seconds = self._settings.probe_seconds
            return ProbeFinding(
                outcome=ProbeOutcome.FAILED, reason=f"its probe took longer than {seconds:g} s"
            )

    async def _probe(self, entry: IndexedEntry, may_message: bool) -> ProbeFinding:
        notes: list[str] = []
        resolved, problem = await self._card(entry)
        if problem:
            notes.append(problem)
        if resolved is None:
            return ProbeFinding(outcome=ProbeOutcome.FAILED, reason="; ".join(notes))
        try:
            choice = choose(resolved.card, card_url=resolved.url, http=self._http)
        except NoCommonInterface:
            words = "none of its interfaces has a supported binding and version"
            return ProbeFinding(outcome=ProbeOutcome.ERRORS, reason="; ".join([*notes, words]))
        except (CardInvalid, ClientError) as error:
            return ProbeFinding(
                outcome=ProbeOutcome.FAILED, reason="; ".join([*notes, _line(error)])
            )
        candidates = choice.candidates[: self._settings.interfaces]
        # A card may name any host: many such cards must not direct many probes at one host.
        own = _host(host_of_agent(entry))
        hosts = [_host(each.interface.url) for each in candidates]
        others = [each for each in hosts if each != own]
        if not self._turns.begin(others):
            raise ProbePostponed
        try:
            found = await asyncio.gather(*(self._call(resolved, each) for each in candidates))
        finally:
            self._turns.end(others)
        answering = [each for each in found if each.outcome is not ProbeOutcome.FAILED]
        notes += [
            f"{_name(candidate)}: {each.reason}"
            for candidate, each in zip(candidates, found, strict=True)
            if each.reason
        ]
        reason = "; ".join(notes)
        waits = [each.retry_after for each in found if each.retry_after is not None]
        retry_after = max(waits, default=None)
        if not answering:
            return ProbeFinding(outcome=ProbeOutcome.FAILED, reason=reason, retry_after=retry_after)
        latency = min(each.latency for each in answering)
        outcome = min(each.outcome for each in found)
        if outcome is ProbeOutcome.FAILED or problem:
            outcome = ProbeOutcome.ERRORS
        messaged = False
        text = probe_text(entry, candidates[0]) if may_message else ""
        if text and outcome is ProbeOutcome.FINE:
            messaged = True
            if failure := await self._message(resolved, candidates[0], text):
                outcome, reason = ProbeOutcome.ERRORS, failure
        return ProbeFinding(
            outcome=outcome,
            reason=reason,
            latency=latency,
            retry_after=retry_after,
            messaged=messaged,
        )

    async def _card(self, entry: IndexedEntry) -> tuple[ResolvedCard | None, str]:
        """Return the current card, else the stored card; and the fault of the current card."""
        data: Any = entry.entry.get("data")
        try:
            if isinstance(data, Mapping):
                raw = msgspec.json.encode(data)
                return ResolvedCard(read_card(raw, "the inline card"), raw), ""
            resolver = CardResolver(
                self._http,
                headers=_VERSION_HEADERS,
                timeout=self._settings.request_seconds,
                retry=_NO_RETRY,
                max_size=self._settings.card_bytes,
            )
            return await resolver.resolve(entry.url), ""
        except AuthenticationRequired:
            problem = "its card requires credentials"
            known = self._known(entry)
            return known, "" if known is not None else problem
        except (ClientError, A2AError) as error:
            return self._known(entry), f"its card cannot be fetched: {_line(error)}"

    def _known(self, entry: IndexedEntry) -> ResolvedCard | None:
        if entry.card is None:
            return None
        try:
            return ResolvedCard(read_card(entry.card, "the known card"), entry.card, url=entry.url)
        except CardInvalid:
            return None

    async def _call(self, resolved: ResolvedCard, candidate: Candidate) -> InterfaceFinding:
        """Request an unknown task at one interface."""
        task_id = f"parley-probe-{uuid4().hex}"
        begun = self._clock()
        try:
            async with (
                asyncio.timeout(self._settings.request_seconds),
                self._connected(resolved, candidate) as agent,
            ):
                begun = self._clock()
                await agent.get(task_id, history_length=0)
        except TimeoutError:
            seconds = self._settings.request_seconds
            return InterfaceFinding(ProbeOutcome.FAILED, f"no answer within {seconds:g} s")
        except (A2AError, ClientError) as error:
            latency = max(0.0, (self._clock() - begun) * 1000)
            return finding_of(error, latency)
        latency = (self._clock() - begun) * 1000
        words = "it returned a task for an unknown id"
        return InterfaceFinding(ProbeOutcome.FINE, words, latency)

    async def _message(self, resolved: ResolvedCard, candidate: Candidate, text: str) -> str:
        """Send the message that the owner requested; return the fault of the response."""
        try:
            async with (
                asyncio.timeout(self._settings.request_seconds),
                self._connected(resolved, candidate) as agent,
            ):
                return failure_of((await agent.send(text)).reply)
        except TimeoutError:
            seconds = self._settings.request_seconds
            return f"no response to the probe message within {seconds:g} s"
        except (A2AError, ClientError) as error:
            return f"the response to the probe message is an error: {_line(error)}"

    def _connected(self, resolved: ResolvedCard, candidate: Candidate) -> Any:
        """Return a connection to one interface of a card, without any credentials."""
        card = msgspec.structs.replace(resolved.card, supported_interfaces=(candidate.interface,))
        return connect(
            card,
            auth=False,
            http=self._http,
            timeout=self._settings.request_seconds,
            retries=_NO_RETRY,
            idempotent=False,
        )


def host_of_agent(entry: IndexedEntry) -> str:
    """Return the host, with its port, that the probe of an entry calls first."""
    url = entry.url
    if not url:
        interfaces = entry.entry.get("data")
        listed = interfaces.get("supportedInterfaces") if isinstance(interfaces, dict) else None
        first = listed[0] if isinstance(listed, list) and listed else {}
        url = str(first.get("url", "")) if isinstance(first, dict) else ""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _host(text: str) -> str:
    """Return the host of an address, or of a host with its port; empty for other texts."""
    try:
        return urlsplit(text if "//" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""


def finding_of(error: A2AError | ClientError, latency: float) -> InterfaceFinding:
    """Return the finding that an error means for the interface."""
    if isinstance(error, _WANTS_CREDENTIALS):
        return InterfaceFinding(ProbeOutcome.GUARDED, "it wants credentials", latency)
    if isinstance(error, TaskNotFoundError):
        return InterfaceFinding(ProbeOutcome.FINE, "", latency)
    if isinstance(error, InvalidAgentResponseError) or (
        isinstance(error, A2AError) and not error.is_remote
    ):
        return InterfaceFinding(ProbeOutcome.FAILED, f"the response is not A2A: {_line(error)}")
    if isinstance(error, A2AError):
        if isinstance(error, _FAILS) or error.http_status >= 500:
            return InterfaceFinding(
                ProbeOutcome.ERRORS, _line(error), latency, retry_after=error.retry_after
            )
        return InterfaceFinding(ProbeOutcome.FINE, f"it answered: {_line(error)}", latency)
    words = {UnexpectedStatus: "the response is not A2A: ", AddressNotAllowed: "not called: "}
    said = next((text for kind, text in words.items() if isinstance(error, kind)), "")
    return InterfaceFinding(ProbeOutcome.FAILED, said + _line(error))


def _name(candidate: Candidate) -> str:
    return f"{candidate.binding} {candidate.version}"


def _line(error: Exception) -> str:
    """Return an error on one line, bounded: it may contain texts of the peer."""
    return one_line(str(error) or type(error).__name__, 200)
