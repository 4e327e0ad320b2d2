"""Forwards REQUESTs to other agents: to a named agent, to any of several, or to all.

Candidates are agents of this server, agents that registered over their sockets, and agents of a
registry. Balancing tries another candidate only if the first was unreachable, or rejected the
request before it began: two agents never work on the same message.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from msgspec.structs import replace
from starlette.types import ASGIApp

from parley.agent.remote.callees import referred
from parley.agent.remote.connections import Connections
from parley.client.card.interface import declares
from parley.client.errors import (
    AddressNotAllowed,
    AuthenticationRequired,
    ClientError,
    Disconnected,
    Timeout,
    Unreachable,
)
from parley.envelope.answers import Answers, error_response, event, message, pieces_in, response
from parley.envelope.codec import UnreadableEnvelope, read_message, write_message
from parley.envelope.declared import EnvelopeSettings, MaintenanceGate, MaintenanceWindow
from parley.envelope.messages import (
    BINDING,
    OPERATION_PREFIX,
    PATH,
    AgentUnavailable,
    DeadlineExceeded,
    Envelope,
    EnvelopeError,
    MessageType,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    RoutingStrategy,
    Source,
    Status,
    SubType,
    Target,
    TargetNotFound,
    UnderMaintenance,
    envelope_error,
)
from parley.envelope.server.answering import SEND, STREAM, Exchanged, Replies, payload_of
from parley.envelope.server.services import (
    REGISTRY_PREFIX,
    ROUTED,
    MessageContext,
    PassedOnMessage,
    SocketPeer,
    with_deadline,
)
from parley.extensions.call_chain import CallChain, Chain
from parley.host.in_process import InProcessExchange, InProcessResponse
from parley.model.bounded import Bounded
from parley.model.cards import AgentInterface
from parley.model.errors import (
    A2AError,
    FieldViolation,
    InternalError,
    InvalidParamsError,
    TooManyRequestsError,
)
from parley.model.extensions import CALL_CHAIN
from parley.model.ids import new_id
from parley.model.operations import SKILL_KEY, SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, Caller, StreamItem
from parley.model.struct import Timestamp, encode
from parley.server.endpoint import Endpoint
from parley.wire.versions import LATEST

if TYPE_CHECKING:
    from parley.client.remote_agent import RemoteAgent
    from parley.registry.client.found import FoundAgent

log = logging.getLogger("parley.envelope")

HIDDEN_CODES = frozenset(
    {
        "MESSAGE_OUTDATED",
        "PERMISSION_DENIED",
        "SIGNATURE_INVALID",
        "SIGNATURE_REQUIRED",
        "SOURCE_MISMATCH",
        "TARGET_NOT_FOUND",
        "UNAUTHENTICATED",
        "UNKNOWN_ACTION",
    }
)
"""Errors of agents that a caller may not call: in the answers of several, these are left out, so
that they do not reveal who is there.
"""

REFUSED_EARLY = frozenset({"OVERLOADED", "TOO_MANY_REQUESTS", "MAINTENANCE"})
"""Errors of agents that began nothing, if no task is named: another agent may be tried."""

BROADCAST_CONCURRENCY = 8
"""The number of agents of one broadcast that are called at the same time."""

BROADCAST_BACKLOG = 64
SUMMARY_BYTES = 4 * 1024 * 1024
"""The size limit of results in the summary of a broadcast, in bytes; EVENTs had all of them."""

MARGIN = 0.25
"""The time before the deadline at which a broadcast sends its summary, in seconds."""

MAX_TURNS = 10_000


class NotSent(Exception):
    """A candidate was not asked: another one may be."""


class NotForCaller(Exception):
    """A candidate is hidden from this caller."""


class AgentCandidate(Protocol):
    """An agent that may be asked. ``in_flight`` requests to it are not answered yet.

    ``ask`` yields its answers. It raises ``NotSent`` and ``NotForCaller`` before the first, and
    ``A2AError``.
    """

    @property
    def id(self) -> str:  # noqa: D102
        ...

    @property
    def in_flight(self) -> int:  # noqa: D102
        ...

    def ask(self, request: Envelope, context: MessageContext) -> Answers:  # noqa: D102
        ...


class Turns:
    """Remembers which agents were used last, so that equally busy agents take turns."""

    def __init__(self) -> None:
        self._last: Bounded[str, int] = Bounded(MAX_TURNS)
        self._count = 0

    def order(self, candidates: Sequence[AgentCandidate]) -> list[AgentCandidate]:
        """Return candidates: the least busy first, then by the time since the last turn."""
        return sorted(candidates, key=lambda each: (each.in_flight, self._last.get(each.id, 0)))

    def took(self, candidate: AgentCandidate) -> None:
        """Record that a candidate was used."""
        self._count += 1
        self._last[candidate.id] = self._count


async def ask_one(
    candidates: Sequence[AgentCandidate],
    request: Envelope,
    context: MessageContext,
    *,
    turns: Turns,
) -> Answers:
    """Yield the answers of the first candidate that accepts the request: the least busy, and
    equally busy candidates in turn. Raises ``A2AError``.
    """
    refusal: Envelope | None = None
    was_there = False
    for candidate in turns.order(candidates):
        turns.took(candidate)
        try:
            async with aclosing(_answers_in_time(candidate, request, context)) as answers:
                first = await anext(answers, None)
                code = "" if first is None else _error_code(first)
                if first is not None and code in REFUSED_EARLY and not _has_task(first):
                    refusal = refusal or first
                    continue
                if code in HIDDEN_CODES and not request.target.agent_id:
                    continue
                if first is not None:
                    yield first
                elif request.message.sub_type != SubType.NOTIFICATION:
                    raise InternalError("the agent ended without an answer")
                async for answer in answers:
                    yield answer
            return
        except NotForCaller:
            continue
        except NotSent as error:
            was_there = True
            log.info("%s cannot be reached, another agent is asked: %s", candidate.id[:200], error)
    if refusal is not None:
        yield refusal
        return
    if was_there:
        raise AgentUnavailable("none of the agents can be reached now", retry_after=2.0)
    raise no_agent(request)


def no_agent(request: Envelope) -> TargetNotFound:
    """Return the error of a target without an agent that the caller may ask."""
    target = request.target
    sought = [
        *([f"the id {target.agent_id[:100]!r}"] if target.agent_id else []),
        *([f"the type {target.agent_type[:100]!r}"] if target.agent_type else []),
    ]
    payload = request.payload
    action = payload.action[:100] if isinstance(payload, RequestPayload) else ""
    whom = " and ".join(sought) or f"the skill {action!r}"
    return TargetNotFound(f"there is no agent with {whom} that this caller may ask for {action!r}")


async def _answers_in_time(
    candidate: AgentCandidate, request: Envelope, context: MessageContext
) -> Answers:
    """Yield the answers of a candidate until the deadline; they name who answered.

    Raises ``DeadlineExceeded``.
    """
    async with aclosing(candidate.ask(request, context)) as answers:
        while True:
            try:
                async with asyncio.timeout_at(context.deadline):
                    answer = await anext(answers, None)
            except TimeoutError:
                raise DeadlineExceeded("the agent did not answer within the timeout") from None
            if answer is None:
                return
            if isinstance(answer.payload, ResponsePayload):
                metadata = replace(answer.payload.metadata, agent_id=candidate.id)
                answer = replace(answer, payload=replace(answer.payload, metadata=metadata))
            yield answer


def _error_code(answer: Envelope) -> str:
    error = getattr(answer.payload, "error", None)
    return error.code if isinstance(error, EnvelopeError) else ""


def _has_task(answer: Envelope) -> bool:
    return isinstance(answer.payload, ResponsePayload) and bool(answer.payload.metadata.task_id)


def _failure(candidate: AgentCandidate, error: Exception) -> A2AError:
    """Return the error of a candidate in a broadcast; the log has an unforeseen one."""
    if isinstance(error, NotSent):
        return AgentUnavailable("the agent cannot be reached now")
    if isinstance(error, A2AError):
        return error
    log.error("asking %s failed", ascii(candidate.id[:200]), exc_info=error)
    return InternalError("asking the agent failed")


_Outcome = dict[str, Any]


class _Broadcast:
    """A message to several agents.

    ``run`` yields the RESPONSE of each agent as an EVENT, with EVENTs before it if a query requests
    them. When all have answered, or the deadline is near, the summary RESPONSE follows. Further
    EVENTs of agents that accepted a command come after it. No agent's answers are read ahead.
    """

    _KNOWN, _END = object(), object()

    def __init__(
        self,
        candidates: Sequence[AgentCandidate],
        request: Envelope,
        context: MessageContext,
        source: Source,
    ) -> None:
        self._candidates = candidates
        self._request = request
        if context.deadline is not None:
            now = asyncio.get_running_loop().time()
            margin = min(MARGIN, max(0.0, context.deadline - now) / 5)
            context = replace(context, deadline=context.deadline - margin)
        self._context = context
        self._source = source
        self._turns = asyncio.Semaphore(BROADCAST_CONCURRENCY)
        self._queue: asyncio.Queue[Any] = asyncio.Queue(BROADCAST_BACKLOG)
        self._outcomes: list[_Outcome | None] = [None] * len(candidates)
        self._is_summed_up = asyncio.Event()
        self._room = SUMMARY_BYTES

    async def run(self) -> Answers:
        """Yield the answers. Raises ``TargetNotFound`` if no agent may be asked."""
        tasks = [asyncio.create_task(self._ask(n)) for n in range(len(self._candidates))]
        goes_on = self._request.message.sub_type == SubType.COMMAND
        known = ended = 0
        try:
            while ended < len(tasks) and (goes_on or known < len(tasks)):
                item = await self._queue.get()
                if item is self._KNOWN:
                    known += 1
                    if goes_on and known == len(tasks):
                        yield self._summary()
                        self._is_summed_up.set()
                elif item is self._END:
                    ended += 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not goes_on:
            yield self._summary()

    async def _ask(self, number: int) -> None:
        """Call one candidate; forward its answers, and record its outcome."""
        candidate = self._candidates[number]
        asked = _answers_in_time(candidate, self._request, self._context)
        async with aclosing(asked) as answers:
            async with self._turns:
                self._outcomes[number] = await self._first(candidate, answers)
            await self._queue.put(self._KNOWN)
            await self._is_summed_up.wait()
            try:
                async for answer in answers:
                    await self._queue.put(answer)
            except Exception as error:  # after it had accepted the command
                task_id = (self._outcomes[number] or {}).get("taskId", "")
                failed = ResponsePayload(
                    status=Status.ERROR,
                    error=envelope_error(_failure(candidate, error)),
                    metadata=ResponseMetadata(agent_id=candidate.id, task_id=task_id),
                )
                await self._queue.put(event(self._request, failed, source=self._source))
        await self._queue.put(self._END)

    async def _first(self, candidate: AgentCandidate, answers: Answers) -> _Outcome | None:
        """Forward the answers of a candidate, up to its RESPONSE, and return its outcome.

        It is ``None`` for a candidate that is hidden from the caller.
        """
        try:
            async for answer in answers:
                payload = answer.payload
                if not isinstance(payload, ResponsePayload):
                    continue
                if answer.message.type != MessageType.RESPONSE:
                    await self._queue.put(answer)
                    continue
                if _error_code(answer) in HIDDEN_CODES:
                    return None
                info = replace(answer.message, type=MessageType.EVENT)
                await self._queue.put(replace(answer, message=info))
                return self._outcome(payload)
            if self._request.message.sub_type == SubType.NOTIFICATION:
                return {"status": Status.ACCEPTED}
            failure: A2AError = InternalError("the agent ended without an answer")
        except NotForCaller:
            return None
        except Exception as error:
            failure = _failure(candidate, error)
        return {"status": Status.ERROR, "error": msgspec.to_builtins(envelope_error(failure))}

    def _outcome(self, payload: ResponsePayload) -> _Outcome:
        outcome: _Outcome = {"status": payload.status}
        if payload.metadata.task_id:
            outcome["taskId"] = payload.metadata.task_id
        if payload.error is not None:
            outcome["error"] = msgspec.to_builtins(payload.error)
        if payload.results:
            size = len(encode(payload.results))
            if size <= self._room:
                self._room -= size
                outcome["results"] = list(payload.results)
            else:
                outcome["resultsOmitted"] = True
        return outcome

    def _summary(self) -> Envelope:
        """Return the RESPONSE. Raises ``TargetNotFound`` if no agent may be asked."""
        found = [
            {"agentId": candidate.id, **outcome}
            for candidate, outcome in zip(self._candidates, self._outcomes, strict=True)
            if outcome is not None
        ]
        if not found:
            raise no_agent(self._request)
        status, error = Status.SUCCESS, None
        if all(each["status"] == Status.ERROR for each in found):
            status = Status.ERROR
            waits = [each["error"].get("retryAfter") for each in found]
            error = EnvelopeError(
                code="BROADCAST_FAILED",
                message=f"none of {len(found)} agents succeeded; results say why, agent by agent",
                retry_after=max(waits) if all(each is not None for each in waits) else None,
            )
        elif self._request.message.sub_type == SubType.COMMAND:
            status = Status.ACCEPTED
        payload = ResponsePayload(
            status=status,
            results=tuple(found),
            metadata=ResponseMetadata(total_results=len(found)),
            error=error,
        )
        return response(self._request, payload, source=self._source)


# -- agents that registered over their sockets -------------------------------------------------

MAX_AGENTS = 10_000
MAX_PER_OWNER = 32

MAX_SILENCE = 600.0
"""How many seconds a request without a timeout waits for an agent's next message."""

UNPROVED = "\0"
"""The beginning of the owner of an agent without credentials; no caller's owner begins so. Its
socket follows."""

SHARING_SCOPE = "agents:serve"
"""The scope with which an agent is a candidate next to this server's agents, for skills
and types.
"""


class ConnectedCard(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a connected agent's card that decide who asks it."""

    id: str
    type: str = "agent"
    skills: frozenset[str] = frozenset()
    permissions: frozenset[str] = frozenset()
    classification: str = "public"
    at_once: int = 64
    windows: tuple[MaintenanceWindow, ...] = ()


class ConnectedAgent:
    """An agent at the other end of a socket. ``instance`` is the process that it claims to be."""

    def __init__(
        self, card: ConnectedCard, peer: SocketPeer, owner: str, *, shares: bool, instance: str = ""
    ) -> None:
        self.card = card
        self.id = card.id
        self.peer = peer
        self.owner = owner
        self.shares = shares
        self.instance = instance
        self._source = Source(agent_id=card.id, agent_type=card.type)
        self._maintenance = MaintenanceGate(card.windows, lambda: time.time_ns() // 1_000_000)

    @property
    def in_flight(self) -> int:
        """The number of its unanswered requests."""
        return self.peer.in_flight

    def is_open_to(self, context: MessageContext) -> bool:
        """Return whether its card lets a caller ask it."""
        kind, caller = self.card.classification, context.caller
        if not self.card.permissions <= caller.scopes:
            return False
        is_proved = caller.authenticated and (kind != "restricted" or context.is_signed)
        return kind == "public" or is_proved

    async def ask(self, request: Envelope, context: MessageContext) -> Answers:
        """Send the request over the socket and yield the answers (``AgentCandidate``).

        The agent gets it for itself alone, without the caller's signature. Its answers are of the
        id that it proved.
        """
        if not self.is_open_to(context):
            raise NotForCaller
        try:
            self._maintenance.check()
        except UnderMaintenance as error:
            yield error_response(request, error, source=self._source)
            return
        if not self.peer.is_open:
            raise NotSent("its connection has ended")
        if self.peer.in_flight >= self.card.at_once:
            raise NotSent("it has reached its limit of requests")
        payload, info = payload_of(request), request.message
        if (left := _seconds_left(context)) is not None:
            timeout = max(1, round(left * 1000))
            payload = replace(payload, metadata=replace(payload.metadata, timeout=timeout))
        sent = message(
            MessageType.REQUEST,
            payload,
            source=request.source,
            target=Target(agent_id=self.id, agent_type=self.card.type),
            sub_type=info.sub_type,
            priority=info.priority,
            message_id=passed_on_id(request, context),
        )
        asked = self.peer.ask(sent)
        async with aclosing(asked) as answers:
            while True:
                try:
                    async with asyncio.timeout(MAX_SILENCE):
                        answer = await anext(answers, None)
                except TimeoutError:
                    raise DeadlineExceeded("the agent has not answered for long") from None
                if answer is None:
                    return
                make = event if answer.message.type == MessageType.EVENT else response
                made = make(request, cast("Any", answer.payload), source=self._source)
                yield replace(made, further=answer.further)


class ConnectedAgents:
    """The agents of all sockets of this process."""

    def __init__(self) -> None:
        self._agents: dict[tuple[SocketPeer, str], ConnectedAgent] = {}

    def add(self, agent: ConnectedAgent) -> None:
        """Add an agent. It replaces the same id on the same socket, or of the same instance, which
        has reconnected after its other socket died.

        It is removed when the socket closes. Raises ``TooManyRequestsError``.
        """
        key, agents = (agent.peer, agent.id), self._agents
        same = agent.id, agent.owner, agent.instance
        for known, each in list(agents.items()):
            if agent.instance and (each.id, each.owner, each.instance) == same and known != key:
                del agents[known]
        if key not in agents:
            own = sum(each.owner == agent.owner for each in agents.values())
            if own >= MAX_PER_OWNER or len(agents) >= MAX_AGENTS:
                raise TooManyRequestsError(
                    f"at most {MAX_PER_OWNER} connections of one caller take requests",
                    retry_after=60,
                )
            agent.peer.on_close(partial(self.remove, *key))
        if agent.peer.is_open:
            agents[key] = agent

    def remove(self, peer: SocketPeer, id: str) -> None:
        """Remove the agent of a socket."""
        self._agents.pop((peer, id), None)

    def owner_of(self, id: str) -> str | None:
        """Return the owner of a connected id."""
        return next((each.owner for each in self._agents.values() if each.id == id), None)

    def remove_strangers(self, id: str) -> None:
        """Remove agents that use an id without authentication, after another agent has
        proved it.
        """
        for key, agent in list(self._agents.items()):
            if agent.id == id and agent.owner.startswith(UNPROVED):
                del self._agents[key]

    def matching(
        self, *, id: str, type: str, action: str, context: MessageContext, with_hosted: bool
    ) -> Sequence[AgentCandidate]:
        """Return the agents with an id, of a type, with a skill; empty texts match any.

        Next to agents of this server (``with_hosted``) only agents with the sharing scope are
        chosen.
        """
        return [
            each
            for each in self._agents.values()
            if id in ("", each.id)
            and type in ("", each.card.type)
            and (not action or action in each.card.skills)
            and (each.shares or not with_hosted)
            and each.is_open_to(context)
        ]


def passed_on_id(request: Envelope, context: MessageContext) -> str:
    """Return the id of a message for the agent that it is passed on to.

    Ids of different callers never meet; an authenticated caller's retry has the same id.
    """
    if not context.caller.authenticated:
        return new_id()
    parts = context.caller.owner, request.source.agent_id, request.message_id
    return hashlib.sha256("\x1e".join(parts).encode()).hexdigest()[:32]


def _seconds_left(context: MessageContext) -> float | None:
    """Return the time until the deadline."""
    if context.deadline is None:
        return None
    return max(0.001, context.deadline - asyncio.get_running_loop().time())


# -- agents of this server ---------------------------------------------------------------------

MAX_ANSWER = 32 * 1024 * 1024

_INTERFACE = AgentInterface(url="", protocol_binding=BINDING, protocol_version=LATEST)
_OF_UPGRADES = (b"connection", b"upgrade", b"content-", b"transfer-", b"sec-websocket-", b"accept")
_HEADERS = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
]


class HostedAgent:
    """An agent of this server that speaks the protocol, at a path. ``names`` are its ids."""

    def __init__(
        self,
        path: str,
        endpoint: Endpoint,
        settings: EnvelopeSettings,
        names: Collection[str],
        app: ASGIApp,
    ) -> None:
        self.path = path
        self.endpoint = endpoint
        self.id = endpoint.key
        self.type = settings.agent_type
        self.names = frozenset((endpoint.key, *names))
        self._settings = settings
        self.in_flight = 0
        self._app = app

    def has(self, action: str) -> bool:
        """Return whether its public card has a skill; every agent has the operations of A2A."""
        if action.startswith(OPERATION_PREFIX):
            return True
        card = self.endpoint.card
        return card is not None and any(each.id == action for each in card(()).skills)

    def is_open_to(self, caller: Caller) -> bool:
        """Return whether a caller's authentication, without a signature, is enough here.

        Credentials that the agent does not know are not tried on it: they would count as rejected.
        """
        shown = self.endpoint.interfaces
        if shown is not None and not (
            shown.is_public(BINDING, LATEST)
            or (caller.authenticated and shown.shown_to((_INTERFACE,), caller))
        ):
            return False  # no card tells this caller that it speaks the protocol
        rules = self.endpoint.authorization
        if self._settings.needs_signatures:
            return False
        if rules is None:
            return True
        try:
            rules.check_identity(caller)
        except A2AError:
            return False
        return rules.security is None or rules.security.is_open or rules.security.is_met(caller)

    async def ask(self, request: Envelope, context: MessageContext) -> Answers:
        """Yield the answers (``AgentCandidate``). Closing it closes the connection."""
        # A signature is over the members as they came.
        body = write_message(request) if request.received is None else encode(request.received)
        exchange = InProcessExchange(body)
        asking = asyncio.create_task(self._run(exchange, context))
        self.in_flight += 1
        try:
            await exchange.head()
            status = exchange.status
            answer = InProcessResponse(
                exchange, self.path, limit=MAX_ANSWER, deadline=None, idle=None
            )
            is_answered = status < 300
            async with aclosing(pieces_in(answer, MAX_ANSWER)) as pieces:
                async for piece in pieces:
                    is_answered = True
                    try:
                        yield read_message(piece)
                    except UnreadableEnvelope:  # of the server or a middleware, and of no agent
                        is_answered = False
                        break
            if not is_answered and status < 500:
                raise NotForCaller
            if not is_answered:
                raise InternalError("the server could not ask the agent")
        except ClientError as error:
            raise InternalError("the server could not ask the agent") from error
        finally:
            self.in_flight -= 1
            exchange.close()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _run(self, exchange: InProcessExchange, context: MessageContext) -> None:
        """Serve a POST with the headers of the original message."""
        given: Mapping[str, Any] = context.scope
        whole = str(given.get("root_path", "")) + self.path + PATH
        scheme = {"ws": "http", "wss": "https"}.get(given.get("scheme", ""), given.get("scheme"))
        kept = [each for each in given["headers"] if not each[0].startswith(_OF_UPGRADES)]
        scope = {
            **{name: value for name, value in given.items() if name != "subprotocols"},
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": scheme or "http",
            "path": whole,
            "raw_path": whole.encode(),
            "headers": [*kept, *_HEADERS],
            ROUTED: PassedOnMessage(nonce_is_used=context.is_signed, peer=context.peer),
        }
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:  # of a middleware: servers log those
            if not (isinstance(error, OSError) and exchange.is_over):  # its reader has left
                log.exception("asking %r failed", self.id)
        finally:
            exchange.fail(Disconnected("the agent did not answer to the end"))


# -- agents of a registry ----------------------------------------------------------------------

FRESH_SECONDS = 30.0
SEARCH_SECONDS = 5.0
MAX_FOUND = 16
MAX_SEARCHES = 256


class RegistryAgents:
    """Finds agents in the registry of a server, and calls them.

    The registry is asked without credentials: entries that are not for everyone stay hidden. What
    it answers counts for half a minute. ``own`` is the address of this server, whose agents are
    known already. ``chain_id`` names this server in call chains.
    """

    def __init__(
        self, registry: str, connections: Connections, *, own: str = "", chain_id: str = ""
    ) -> None:
        self._registry = registry
        self._own = own.rstrip("/")
        self.connections = connections
        self.chain_id = chain_id
        self.in_flight: Counter[str] = Counter()
        self._found: Bounded[tuple[str, str, str], tuple[float, tuple[RegisteredAgent, ...]]]
        self._found = Bounded(MAX_SEARCHES)
        self._searches = asyncio.Semaphore(4)

    async def find(self, *, type: str, action: str, id: str) -> Sequence[AgentCandidate]:
        """Return the registered agents of a type, with a skill, or with an id; empty texts count
        as any. For an unreachable registry, its last answer counts.
        """
        key, now = (type, action, id), asyncio.get_running_loop().time()
        known = self._found.get(key)
        if known is None or known[0] < now:
            found = await self._search(type, action, id)
            if found is None:
                found = () if known is None else known[1]
            self._found[key] = known = now + FRESH_SECONDS, found
        return known[1]

    async def _search(self, type: str, action: str, id: str) -> tuple[RegisteredAgent, ...] | None:
        from parley.registry.client.places import AgentNotFound
        from parley.registry.client.remote_registry import RemoteRegistry

        given = {"capabilities": action, "metadata.agentType": type}
        filter = {name: value for name, value in given.items() if value}
        try:
            async with (
                self._searches,
                asyncio.timeout(SEARCH_SECONDS),
                RemoteRegistry(
                    self._registry, auth=False, timeout=SEARCH_SECONDS, retries=0
                ) as registry,
            ):
                if id:
                    found = [await registry.agent(id)] if id.startswith("urn:air:") else []
                else:
                    need = " ".join(filter.values()).replace("-", " ").replace("_", " ")
                    found = await registry.find(need, filter=filter, limit=MAX_FOUND)
        except AgentNotFound:
            return ()
        except (ClientError, TimeoutError, ValueError) as error:
            log.warning("the registry %s cannot be asked for agents: %s", self._registry, error)
            return None
        own = f"{self._own}/" if self._own else "\0"
        return tuple(
            RegisteredAgent(each, self) for each in found if not f"{each.card_url}/".startswith(own)
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self.connections.aclose()


class RegisteredAgent:
    """An agent that a registry lists. Its ``id`` is the identifier of its entry."""

    def __init__(self, found: FoundAgent, agents: RegistryAgents) -> None:
        self._found = found
        self._agents = agents
        self.id = found.identifier

    @property
    def in_flight(self) -> int:
        """The number of unanswered requests of this process."""
        return self._agents.in_flight[self.id]

    async def ask(self, request: Envelope, context: MessageContext) -> Answers:
        """Call the agent and yield its answers (``AgentCandidate``).

        Only new work is passed on: the agent knows this server alone, and would mix the tasks of
        callers.
        """
        payload = payload_of(request)
        metadata = payload.metadata
        is_operation = payload.action.startswith(OPERATION_PREFIX)
        if is_operation or metadata.task_id or metadata.context_id or metadata.after is not None:
            raise InvalidParamsError(
                f"{self.id} is on another server, and only new work is passed on to it: for its "
                "tasks and conversations, connect to the agent itself"
            )
        counts, connections = self._agents.in_flight, self._agents.connections
        counts[self.id] += 1
        try:
            try:
                reference, options = referred(self._found)
                shared = await connections.acquire(cast("Any", reference), options)
            except ClientError as error:
                raise NotSent(str(error)) from error
            try:
                call = _RemoteCall(shared.agent, request, context, self._agents.chain_id)
                exchanged = Exchanged(
                    request=request,
                    call=cast("Any", call),
                    is_skill=True,
                    began=asyncio.get_running_loop().time(),
                    ends=context.deadline,
                )
                async with aclosing(Replies(exchanged, Source(agent_id=self.id)).all()) as answers:
                    async for answer in answers:
                        yield answer
            except Unreachable as error:
                connections.retire(shared)
                raise NotSent(str(error)) from error
            except (AuthenticationRequired, AddressNotAllowed) as error:
                raise NotForCaller from error
            except Timeout as error:
                words = "the agent did not answer within the timeout"
                raise DeadlineExceeded(words) from error
            except ClientError as error:
                log.warning("calling %s failed: %s", ascii(self.id[:200]), error)
                words = "the connection to the agent broke; it may have done what was asked"
                raise AgentUnavailable(words, retry_after=2.0) from error
            finally:
                connections.release(shared)
        finally:
            counts[self.id] -= 1
            if not counts[self.id]:
                del counts[self.id]


class _RemoteCall:
    """A REQUEST as a call of a remote agent (``ServiceCall``, as far as ``Replies`` needs it).

    It belongs to the trace of the message, and carries its chain.
    """

    grant = None

    def __init__(
        self, agent: RemoteAgent, request: Envelope, context: MessageContext, chain_id: str
    ) -> None:
        payload, sub_type = payload_of(request), request.message.sub_type
        is_silent = sub_type == SubType.NOTIFICATION
        streams = payload.metadata.stream or sub_type == SubType.COMMAND
        self.operation = STREAM if streams and not is_silent else SEND
        self.context = CallContext(reply_timeout=0.0 if is_silent else None)
        self.left = _seconds_left(context)
        ends = None
        if self.left is not None:
            ends = Timestamp.of(Timestamp.now() + timedelta(seconds=self.left))
        chain = Chain(hops=1, deadline=ends, path=(chain_id,) if chain_id else ())
        text = payload.parameters if isinstance(payload.parameters, str) else None
        self.request = SendMessageRequest(
            message=Message(
                message_id=passed_on_id(request, context),
                role=Role.USER,
                parts=(Part(data=payload.parameters) if text is None else Part(text=text),),
            ),
            metadata={SKILL_KEY: payload.action, **CallChain.says(chain)},
        )
        self.endpoint = self
        extensions = agent.context.extensions
        if declares(agent.card, CALL_CHAIN):
            extensions |= {CALL_CHAIN}
        self._agent = copy.copy(agent)
        self._agent.context = replace(agent.context, extensions=extensions, trace=context.trace)

    @property
    def service(self) -> _RemoteCall:
        """The service for the tasks of the call."""
        return self

    async def get_task(self, request: Any, context: object) -> Any:
        """Return a task as it is now."""
        return await self._agent.get(request.id)

    async def answer(self) -> Any:
        """Return the answer, or the events. Raises ``A2AError``, ``ClientError``."""
        sent, metadata = self.request.message, self.request.metadata
        if self.operation is STREAM:
            return self._events()
        answer = await self._agent.send(
            sent,
            metadata=metadata,
            return_immediately=self.context.reply_timeout == 0.0,
            timeout=self.left,
        )
        return answer.reply

    async def _events(self) -> AsyncIterator[StreamItem]:
        """Yield the events, without numbers: no reader resumes the stream of another server."""
        sent, metadata = self.request.message, self.request.metadata
        async with self._agent.stream(sent, metadata=metadata) as events:
            async for each in events:
                yield StreamItem(each)


# -- all of them -------------------------------------------------------------------------------


class RoutingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of forwarding one message. Above them the message is rejected without calling any
    agent.

    ``agents`` is the limit of one broadcast; ``broadcasts_per_caller`` and ``broadcasts`` are
    limits of concurrent broadcasts. Raises ``ValueError`` for a value below 1.
    """

    agents: int = 32
    broadcasts_per_caller: int = 4
    broadcasts: int = 64

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} of routing is a whole number from 1, not {value!r}")


class HostDirectory:
    """Knows the agents of this server, of its sockets and of a registry (``AgentDirectory``).

    ``hosted`` returns the agents of this server.
    """

    def __init__(
        self,
        hosted: Callable[[], Sequence[HostedAgent]],
        connected: ConnectedAgents,
        remote: RegistryAgents | None = None,
        *,
        limits: RoutingLimits | None = None,
    ) -> None:
        self._hosted = hosted
        self._connected = connected
        self._remote = remote
        self._limits = limits or RoutingLimits()
        self._broadcasts: Counter[str] = Counter()
        self._turns = Turns()

    def is_for_others(self, request: Envelope, context: MessageContext) -> bool:
        """Return whether others are asked (``AgentDirectory``)."""
        payload, target = request.payload, request.target
        if (
            context.is_routed
            or request.message.type != MessageType.REQUEST
            or not isinstance(payload, RequestPayload)
            or payload.action.startswith(REGISTRY_PREFIX)
        ):
            return False
        if target.routing_strategy != RoutingStrategy.DIRECT:
            _check_spread(request, payload)
            return True
        own = self._own(context)
        if target.agent_id:
            names = {context.agent, context.tenant, *context.names, *(own.names if own else ())}
            return target.agent_id.rstrip("/") not in names - {""}
        if target.agent_type and own is not None and target.agent_type != own.type:
            raise no_agent(request)
        return False

    def knows(self, agent_id: str) -> bool:
        """Return whether messages may name an agent: only asking a registry tells of the others."""
        if any(agent_id in each.names for each in self._hosted()):
            return True
        is_elsewhere = self._remote is not None and agent_id.startswith("urn:air:")
        return is_elsewhere or self._connected.owner_of(agent_id) is not None

    async def route(self, request: Envelope, context: MessageContext) -> Answers:
        """Yield the answers of others (``AgentDirectory``)."""
        context = with_deadline(request, context)
        candidates = await self._candidates(request, context)
        if not candidates:
            raise no_agent(request)
        is_broadcast = request.target.routing_strategy == RoutingStrategy.BROADCAST
        caller = context.caller.owner or context.address
        if is_broadcast:
            self._begin_broadcast(caller, len(candidates))
            own = self._own(context)
            source = Source(
                agent_id=context.agent or "server", agent_type="" if own is None else own.type
            )
            asked = _Broadcast(candidates, request, context, source).run()
        else:
            asked = ask_one(candidates, request, context, turns=self._turns)
        try:
            async with aclosing(asked) as answers:
                async for answer in answers:
                    yield answer
        finally:
            if is_broadcast:
                self._broadcasts[caller] -= 1
                self._broadcasts += Counter()  # drops callers without a broadcast

    def _begin_broadcast(self, caller: str, size: int) -> None:
        limits, under_way = self._limits, self._broadcasts
        if size > limits.agents:
            raise InvalidParamsError(
                f"more than {limits.agents} agents would be asked: name their agentType, or "
                "a skill that fewer have",
                violations=(FieldViolation("target", "fewer agents"),),
            )
        is_full = under_way.total() >= limits.broadcasts
        if is_full or under_way.get(caller, 0) >= limits.broadcasts_per_caller:
            raise TooManyRequestsError("too many broadcasts are under way", retry_after=1)
        under_way[caller] += 1

    async def _candidates(self, request: Envelope, context: MessageContext) -> list[AgentCandidate]:
        """Return who may be asked, each of an id once unless it has several connections."""
        target, action = request.target, payload_of(request).action
        hosted = [
            each
            for each in self._hosted()
            if (not target.agent_id or target.agent_id in each.names)
            and target.agent_type in ("", each.type)
            and (
                target.agent_id
                or (each.has(action) and (context.is_signed or each.is_open_to(context.caller)))
            )
        ]
        found: list[AgentCandidate] = list(hosted)
        found += self._connected.matching(
            id=target.agent_id,
            type=target.agent_type,
            action="" if target.agent_id else action,
            context=context,
            with_hosted=bool(hosted),
        )
        skill = "" if target.agent_id or action.startswith(OPERATION_PREFIX) else action
        is_found = bool(target.agent_id and found)
        if (
            self._remote is not None
            and not is_found
            and (target.agent_id or target.agent_type or skill)
        ):
            known = {each.id for each in found}
            listed = await self._remote.find(
                type=target.agent_type, action=skill, id=target.agent_id
            )
            found += [each for each in listed if each.id not in known]
        return found

    def _own(self, context: MessageContext) -> HostedAgent | None:
        return next((each for each in self._hosted() if each.id == context.agent), None)


def _check_spread(request: Envelope, payload: RequestPayload) -> None:
    """Reject options that cannot apply to several agents. Raises ``InvalidParamsError``."""
    target, metadata = request.target, payload.metadata
    strategy = target.routing_strategy
    problem = ""
    if metadata.task_id or metadata.context_id:
        problem = (
            f"a task and a conversation belong to one agent: name it in target.agentId, without "
            f"routingStrategy {strategy!r} (metadata.agentId of its answer has the id)"
        )
    elif payload.action.startswith(OPERATION_PREFIX):
        if strategy == RoutingStrategy.LOAD_BALANCE:
            problem = (
                f"the action {payload.action!r} is about the tasks of one agent: name it in "
                "target.agentId, or ask all of a type (broadcast)"
            )
        elif not target.agent_type and not target.agent_id:
            problem = "every agent has the operations of A2A: name the target.agentType of some"
    if problem:
        raise InvalidParamsError(
            problem, violations=(FieldViolation("target.routingStrategy", problem),)
        )
