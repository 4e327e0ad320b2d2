"""Who gets a REQUEST besides the agent at its address: one agent, one of several, or all.

Candidates are agents of this server, agents that registered over their sockets, and agents of a
registry. Balancing asks another candidate only if the first was not reached, or refused before it
began: two agents never work on the same message.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec.structs import replace
from starlette.types import ASGIApp
from starlette.types import Message as AsgiMessage

from parley.agent.remote.callees import referred
from parley.agent.remote.connections import Connections
from parley.agent.uses import UsableAgent
from parley.client.card.interface import declares
from parley.client.errors import (
    AddressNotAllowed,
    AuthenticationRequired,
    ClientError,
    Timeout,
    Unreachable,
)
from parley.envelope.answers import (
    Answers,
    error_response,
    event,
    message,
    response,
    results_of,
    status_of,
    write_stream_event,
)
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
    RequestMetadata,
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
    task_error,
)
from parley.envelope.server.services import (
    REGISTRY_PREFIX,
    ROUTED,
    MessageContext,
    PassedOnMessage,
    SocketPeer,
    with_deadline,
)
from parley.extensions.call_chain import CallChain, Chain
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
from parley.model.parts import Message, Part, Role
from parley.model.service import Caller, StreamItem
from parley.model.struct import Timestamp, encode
from parley.model.tasks import Task
from parley.server.endpoint import Endpoint
from parley.wire.sse import SseParser
from parley.wire.versions import LATEST

if TYPE_CHECKING:
    from parley.client.remote_agent import RemoteAgent
    from parley.registry.client.found import FoundAgent


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


class NotSent(Exception):
    """A candidate was not asked: another one may be."""


class NotForCaller(Exception):
    """A candidate is not for this caller: for it, there is no such agent."""


class AgentCandidate(Protocol):
    """An agent that may be asked. ``id`` and ``type`` stand on its card."""

    @property
    def id(self) -> str:
        """The id of the agent."""
        ...

    @property
    def in_flight(self) -> int:
        """How many requests were passed on to it, and are not answered."""
        ...

    def ask(self, request: Envelope, context: MessageContext) -> Answers:
        """Yield its answers.

        Raises ``NotSent`` and ``NotForCaller`` before the first, and ``A2AError``.
        """
        ...


def is_refused_early(answer: Envelope) -> bool:
    """Return whether an agent refused a request before it began anything."""
    payload = answer.payload
    return (
        isinstance(payload, ResponsePayload)
        and answer.message.type == MessageType.RESPONSE
        and payload.status == Status.ERROR
        and payload.error is not None
        and payload.error.code in ("OVERLOADED", "TOO_MANY_REQUESTS", "MAINTENANCE")
        and not payload.metadata.task_id
    )


log = logging.getLogger("parley.envelope")

BROADCAST_CONCURRENCY = 8
"""How many agents of one broadcast are asked at the same time."""

BROADCAST_BACKLOG = 64
SUMMARY_BYTES = 4 * 1024 * 1024
"""How many bytes of results the summary of a broadcast repeats; EVENTs had all of them."""

MARGIN = 0.25
"""How many seconds before the deadline a broadcast sends its summary."""

MAX_TURNS = 10_000


class Turns:
    """Remembers which agents had a turn last, so that equally busy ones take turns."""

    def __init__(self) -> None:
        self._last: Bounded[str, int] = Bounded(MAX_TURNS)
        self._count = 0

    def order(self, candidates: Sequence[AgentCandidate]) -> list[AgentCandidate]:
        """Return candidates: the least busy first, then by the time since the last turn."""
        return sorted(candidates, key=lambda each: (each.in_flight, self._last.get(each.id, 0)))

    def took(self, candidate: AgentCandidate) -> None:
        """Note that it is a candidate's turn."""
        self._count += 1
        self._last[candidate.id] = self._count


async def ask_one(
    candidates: Sequence[AgentCandidate],
    request: Envelope,
    context: MessageContext,
    *,
    turns: Turns,
) -> Answers:
    """Yield the answers of the first candidate that takes the request: that with the least to do,
    and of several such each in turn. Raises ``A2AError``.
    """
    hides = not request.target.agent_id
    refusal: Envelope | None = None
    was_there = False
    for candidate in turns.order(candidates):
        turns.took(candidate)
        try:
            async with aclosing(_answers_in_time(candidate, request, context)) as answers:
                first = await anext(answers, None)
                if first is not None and is_refused_early(first):
                    refusal = refusal or named(first, candidate.id)
                    continue
                if first is not None and hides and _is_hidden(first):
                    continue
                if first is not None:
                    yield named(first, candidate.id)
                elif request.message.sub_type != SubType.NOTIFICATION:
                    raise InternalError("the agent ended without an answer")
                async for answer in answers:
                    yield named(answer, candidate.id)
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


async def ask_all(
    candidates: Sequence[AgentCandidate],
    request: Envelope,
    context: MessageContext,
    *,
    source: Source,
) -> Answers:
    """Yield what each candidate answers as EVENTs, and a RESPONSE with the outcome of each.

    The RESPONSE of a query comes when all have answered, or the deadline is near; that of a
    command when all have accepted or refused, before their further EVENTs. Its status is
    ``success`` if one of them did, ``error`` if none did. Raises ``A2AError`` if there is nobody.
    """
    broadcast = _Broadcast(candidates, request, context, source)
    async with aclosing(broadcast.run()) as answers:
        async for answer in answers:
            yield answer


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


def named(answer: Envelope, agent: str) -> Envelope:
    """Return an answer that names who answered."""
    payload = answer.payload
    if not isinstance(payload, ResponsePayload):
        return answer
    metadata = msgspec.structs.replace(payload.metadata, agent_id=agent)
    return msgspec.structs.replace(
        answer, payload=msgspec.structs.replace(payload, metadata=metadata)
    )


async def _answers_in_time(
    candidate: AgentCandidate, request: Envelope, context: MessageContext
) -> Answers:
    """Yield the answers of a candidate until the deadline. Raises ``DeadlineExceeded``."""
    async with aclosing(candidate.ask(request, context)) as answers:
        while True:
            try:
                async with asyncio.timeout_at(context.deadline):
                    answer = await anext(answers, None)
            except TimeoutError:
                raise DeadlineExceeded("the agent did not answer within the timeout") from None
            if answer is None:
                return
            yield answer


def _is_hidden(answer: Envelope) -> bool:
    payload = answer.payload
    return (
        isinstance(payload, ResponsePayload)
        and payload.error is not None
        and payload.error.code in HIDDEN_CODES
    )


class _Mark(msgspec.Struct, frozen=True):
    """The outcome of a candidate is known; ``is_end``: nothing more comes from it."""

    number: int
    is_end: bool = False


class _Broadcast:
    """One message to several agents."""

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
            context = msgspec.structs.replace(context, deadline=context.deadline - margin)
        self._context = context
        self._source = source
        self._turns = asyncio.Semaphore(BROADCAST_CONCURRENCY)
        self._queue: asyncio.Queue[Envelope | _Mark] = asyncio.Queue(BROADCAST_BACKLOG)
        self._outcomes: dict[int, dict[str, Any] | None] = {}
        self._room = SUMMARY_BYTES

    async def run(self) -> Answers:
        tasks = [asyncio.create_task(self._ask(n)) for n in range(len(self._candidates))]
        known: set[int] = set()
        running = len(tasks)
        try:
            while running:
                item = await self._queue.get()
                if isinstance(item, Envelope):
                    yield item
                    continue
                running -= item.is_end
                if item.number not in known:
                    known.add(item.number)
                    if len(known) == len(tasks):
                        yield self._summary()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, number: int) -> None:
        """Ask one candidate, and note its outcome."""
        candidate = self._candidates[number]
        try:
            async with self._turns:
                await self._pass_on(number, candidate)
        except (NotForCaller, NotSent) as error:
            unreachable = AgentUnavailable("the agent cannot be reached now")
            self._note(number, None if isinstance(error, NotForCaller) else _failed(unreachable))
        except A2AError as error:
            self._note(number, _failed(error))
        except Exception:
            log.exception("asking %s failed", ascii(candidate.id[:200]))
            self._note(number, _failed(InternalError("asking the agent failed")))
        await self._queue.put(_Mark(number, is_end=True))

    async def _pass_on(self, number: int, candidate: AgentCandidate) -> None:
        async with aclosing(_answers_in_time(candidate, self._request, self._context)) as answers:
            async for answer in answers:
                payload = answer.payload
                if not isinstance(payload, ResponsePayload):
                    continue
                is_response = answer.message.type == MessageType.RESPONSE
                if is_response:
                    if _is_hidden(answer):
                        raise NotForCaller
                    self._note(number, self._outcome(payload))
                    info = msgspec.structs.replace(answer.message, type=MessageType.EVENT)
                    answer = msgspec.structs.replace(answer, message=info)
                await self._queue.put(named(answer, candidate.id))
                if is_response:
                    await self._queue.put(_Mark(number))
        if number not in self._outcomes:
            is_silent = self._request.message.sub_type == SubType.NOTIFICATION
            words = "the agent ended without an answer"
            self._note(number, {"status": Status.ACCEPTED} if is_silent else _failed_with(words))

    def _note(self, number: int, outcome: dict[str, Any] | None) -> None:
        self._outcomes.setdefault(number, outcome)

    def _outcome(self, payload: ResponsePayload) -> dict[str, Any]:
        outcome: dict[str, Any] = {"status": payload.status}
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
            {"agentId": self._candidates[number].id, **outcome}
            for number, outcome in sorted(self._outcomes.items())
            if outcome is not None
        ]
        if not found:
            raise no_agent(self._request)
        good = [each for each in found if each["status"] != Status.ERROR]
        failed = len(found) - len(good)
        error = None
        status = Status.SUCCESS
        if self._request.message.sub_type == SubType.COMMAND and good:
            status = Status.ACCEPTED
        if not good:
            status = Status.ERROR
            waits = [each["error"].get("retryAfter") for each in found]
            error = EnvelopeError(
                code="BROADCAST_FAILED",
                message=f"none of {failed} agents succeeded; results say why, agent by agent",
                retry_after=max(waits) if all(each is not None for each in waits) else None,
            )
        payload = ResponsePayload(
            status=status,
            results=tuple(found),
            metadata=ResponseMetadata(total_results=len(found)),
            error=error,
        )
        return response(self._request, payload, source=self._source)


def _failed(error: A2AError) -> dict[str, Any]:
    return {"status": Status.ERROR, "error": msgspec.to_builtins(envelope_error(error))}


def _failed_with(words: str) -> dict[str, Any]:
    return _failed(InternalError(words))


MAX_AGENTS = 10_000
MAX_PER_OWNER = 32

MAX_SILENCE = 600.0
"""How many seconds a request without a timeout waits for an agent's next message."""

UNPROVED = "\0"
"""The beginning of the owner of an agent without credentials; no caller's owner begins so. Its
socket follows."""

SHARING_SCOPE = "agents:serve"
"""With this scope an agent is chosen beside agents of this server, for their skills and types."""


class ConnectedCard(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a connected agent's card that decide who asks it."""

    id: str
    type: str = "agent"
    name: str = ""
    description: str = ""
    version: str = ""
    skills: frozenset[str] = frozenset()
    permissions: frozenset[str] = frozenset()
    classification: str = "public"
    at_once: int = 64
    windows: tuple[MaintenanceWindow, ...] = ()


class ConnectedAgent:
    """An agent at the other end of a socket. ``instance`` is the process that it says to be."""

    def __init__(
        self, card: ConnectedCard, peer: SocketPeer, owner: str, *, shares: bool, instance: str = ""
    ) -> None:
        self.card = card
        self.peer = peer
        self.owner = owner
        self.shares = shares
        self.instance = instance
        self._maintenance = MaintenanceGate(card.windows, lambda: time.time_ns() // 1_000_000)

    @property
    def id(self) -> str:
        """The id that it is authenticated as."""
        return self.card.id

    @property
    def in_flight(self) -> int:
        """How many requests it has to answer."""
        return self.peer.in_flight

    def is_open_to(self, context: MessageContext) -> bool:
        """Return whether its card lets a caller ask it."""
        card, caller = self.card, context.caller
        if not card.permissions <= caller.scopes:
            return False
        if card.classification == "public":
            return True
        if not caller.authenticated:
            return False
        return card.classification != "restricted" or context.is_signed

    async def ask(self, request: Envelope, context: MessageContext) -> Answers:
        """Send the request over the socket and yield the answers (``AgentCandidate``)."""
        if not self.is_open_to(context):
            raise NotForCaller
        try:
            self._maintenance.check()
        except UnderMaintenance as error:
            source = Source(agent_id=self.id, agent_type=self.card.type)
            yield error_response(request, error, source=source)
            return
        if not self.peer.is_open:
            raise NotSent("its connection has ended")
        if self.peer.in_flight >= self.card.at_once:
            raise NotSent("it has as many requests as it takes")
        sent = self._request(request, context)
        is_command = request.message.sub_type == SubType.COMMAND
        asked = self.peer.ask(sent, awaits_events=is_command)
        async with aclosing(asked) as answers:
            while True:
                try:
                    async with asyncio.timeout(MAX_SILENCE):
                        answer = await anext(answers, None)
                except TimeoutError:
                    raise DeadlineExceeded("the agent has not answered for long") from None
                if answer is None:
                    return
                yield self._answer(answer, request)

    def _request(self, request: Envelope, context: MessageContext) -> Envelope:
        """Return the request as the agent gets it: for it alone, without the caller's signature."""
        payload = request.payload
        assert isinstance(payload, RequestPayload)
        metadata = msgspec.structs.replace(
            payload.metadata, timeout=_left(payload.metadata, context)
        )
        return message(
            MessageType.REQUEST,
            msgspec.structs.replace(payload, metadata=metadata),
            source=request.source,
            target=Target(agent_id=self.id, agent_type=self.card.type),
            sub_type=request.message.sub_type,
            priority=request.message.priority,
            message_id=passed_on_id(request, context),
        )

    def _answer(self, answer: Envelope, request: Envelope) -> Envelope:
        """Return an answer for the caller: from the agent under the id that it proved."""
        made = message(
            answer.message.type,
            answer.payload,
            source=Source(agent_id=self.id, agent_type=self.card.type),
            target=Target(agent_id=request.source.agent_id, agent_type=request.source.agent_type),
            sub_type=request.message.sub_type,
            priority=request.message.priority,
            correlation_id=request.message_id,
        )
        return msgspec.structs.replace(made, further=answer.further)


class ConnectedAgents:
    """The agents of all sockets of this process."""

    def __init__(self) -> None:
        self._agents: dict[tuple[SocketPeer, str], ConnectedAgent] = {}

    def __len__(self) -> int:
        return len(self._agents)

    def add(self, agent: ConnectedAgent) -> None:
        """Add an agent, in place of one with the same id on the same socket, or of the same
        instance: it has connected again, and the other socket is dead.

        It leaves when the socket closes. Raises ``TooManyRequestsError``.
        """
        if agent.instance:
            for known, each in list(self._agents.items()):
                is_same = (each.id, each.owner) == (agent.id, agent.owner)
                if is_same and each.instance == agent.instance and each.peer is not agent.peer:
                    del self._agents[known]
        key = agent.peer, agent.id
        if key not in self._agents:
            own = sum(each.owner == agent.owner for each in self._agents.values())
            if own >= MAX_PER_OWNER or len(self._agents) >= MAX_AGENTS:
                raise TooManyRequestsError(
                    f"at most {MAX_PER_OWNER} connections of one caller take requests",
                    retry_after=60,
                )
            agent.peer.on_close(partial(self._leave, key))
        if agent.peer.is_open:
            self._agents[key] = agent

    def _leave(self, key: tuple[SocketPeer, str]) -> None:
        self._agents.pop(key, None)

    def remove(self, peer: SocketPeer, id: str = "") -> tuple[str, ...]:
        """Remove the agents of a socket, or its agent of an id; return their ids."""
        gone = [key for key in self._agents if key[0] is peer and (not id or key[1] == id)]
        for key in gone:
            del self._agents[key]
        return tuple(key[1] for key in gone)

    def of(self, peer: SocketPeer) -> tuple[str, ...]:
        """Return the ids of the agents of a socket."""
        return tuple(id for each, id in self._agents if each is peer)

    def owner_of(self, id: str) -> str | None:
        """Return the owner of an id that is connected."""
        return next((each.owner for each in self._agents.values() if each.id == id), None)

    def remove_strangers(self, id: str) -> None:
        """Remove agents that took an id without proof: somebody has proved it."""
        for key, agent in list(self._agents.items()):
            if agent.id == id and agent.owner.startswith(UNPROVED):
                del self._agents[key]

    def matching(
        self, *, id: str, type: str, action: str, context: MessageContext, with_hosted: bool
    ) -> Sequence[AgentCandidate]:
        """Return the agents with an id, of a type, with a skill; empty texts count as any.

        Beside agents of this server (``with_hosted``) only those are chosen that may share their
        work.
        """
        return [
            each
            for each in self._agents.values()
            if (not id or each.id == id)
            and (not type or each.card.type == type)
            and (not action or action in each.card.skills)
            and (not with_hosted or each.shares)
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


def _left(metadata: RequestMetadata, context: MessageContext) -> int | None:
    """Return how many ms are left until the deadline."""
    if context.deadline is None:
        return metadata.timeout
    return max(1, round((context.deadline - asyncio.get_running_loop().time()) * 1000))


log = logging.getLogger("parley.envelope")

MAX_ANSWER = 32 * 1024 * 1024
ANSWER_BACKLOG = 64
"""How many pieces of an answer wait to be read: more are not produced."""

_INTERFACE = AgentInterface(url="", protocol_binding=BINDING, protocol_version=LATEST)
_OF_UPGRADES = (b"connection", b"upgrade", b"content-", b"transfer-", b"sec-websocket-", b"accept")


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
        self.names = frozenset((endpoint.key, *names))
        self._settings = settings
        self.in_flight = 0
        self._app = app

    @property
    def id(self) -> str:
        """The id on its card."""
        return self.endpoint.key

    @property
    def type(self) -> str:
        """The type on its card."""
        return self._settings.agent_type

    def has(self, action: str) -> bool:
        """Return whether its public card has a skill; every agent has the operations of A2A."""
        if action.startswith(OPERATION_PREFIX):
            return True
        card = self.endpoint.card
        return card is not None and any(each.id == action for each in card(()).skills)

    def is_open_to(self, caller: Caller) -> bool:
        """Return whether a caller's proof, without a signature, is enough here.

        Credentials that the agent does not know are not tried on it: they would count as refused.
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
        if rules.security is None:
            return True
        return rules.security.is_open or rules.security.is_met(caller)

    async def ask(self, request: Envelope, context: MessageContext) -> Answers:
        """Yield the answers (``AgentCandidate``). Closing it closes the connection."""
        self.in_flight += 1
        exchange = _Exchange(_scope(self.path, context), _body(request))
        asking = asyncio.create_task(exchange.run(self._app))
        try:
            async for answer in exchange.answers():
                yield answer
        finally:
            self.in_flight -= 1
            exchange.leave()
            asking.cancel()
            [failure] = await asyncio.gather(asking, return_exceptions=True)
            if isinstance(failure, Exception):  # of a middleware: servers log those
                log.error("asking %r failed", self.id, exc_info=failure)


def _body(request: Envelope) -> bytes:
    # A signature is over the members as they came.
    return write_message(request) if request.received is None else encode(request.received)


def _scope(path: str, context: MessageContext) -> dict[str, Any]:
    """Return the scope of a POST from where a message came, with the same headers."""
    given: Mapping[str, Any] = context.scope
    root = str(given.get("root_path", ""))
    headers = [
        (name, value) for name, value in given["headers"] if not name.startswith(_OF_UPGRADES)
    ]
    headers += [
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
    ]
    scheme = {"ws": "http", "wss": "https"}.get(given.get("scheme", ""), given.get("scheme"))
    whole = root + path + PATH
    scope = {name: value for name, value in given.items() if name != "subprotocols"}
    return {
        **scope,
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": scheme or "http",
        "path": whole,
        "raw_path": whole.encode(),
        "headers": headers,
        ROUTED: PassedOnMessage(nonce_is_used=context.is_signed, peer=context.peer),
    }


class _Exchange:
    """One POST to an app of this process, with its answer as it is made."""

    def __init__(self, scope: dict[str, Any], body: bytes) -> None:
        self._scope = scope
        self._body: bytes | None = body
        self._pieces: asyncio.Queue[AsgiMessage | None] = asyncio.Queue(ANSWER_BACKLOG)
        self._left = asyncio.Event()

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self._receive, self._send)
        finally:
            if not self._left.is_set():
                await self._pieces.put(None)

    def leave(self) -> None:
        """Hang up: the reader has gone."""
        self._left.set()
        while not self._pieces.empty():
            self._pieces.get_nowait()

    async def _receive(self) -> AsgiMessage:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: AsgiMessage) -> None:
        if not self._left.is_set():
            await self._pieces.put(message)

    async def answers(self) -> Answers:
        """Yield the messages of the answer. Raises ``NotForCaller``, ``InternalError``."""
        status, media_type = 0, b""
        parser, body = SseParser(), bytearray()
        while (piece := await self._pieces.get()) is not None:
            if piece["type"] == "http.response.start":
                status = piece["status"]
                media_type = dict(piece.get("headers", ())).get(b"content-type", b"")
                continue
            data: bytes = piece.get("body", b"")
            if media_type.startswith(b"text/event-stream"):
                for each in parser.feed(data):
                    yield _message_of(each.data)
                continue
            body += data
            if len(body) > MAX_ANSWER:
                raise InternalError("the answer of the agent is too large")
        if body and media_type.startswith(b"application/json"):
            try:
                answer = read_message(bytes(body))
            except UnreadableEnvelope:  # of the server or a middleware, and of no agent
                if status >= 500:
                    raise InternalError("the server could not ask the agent") from None
                raise NotForCaller from None
            yield answer
        elif status == 0 or status >= 500:
            raise InternalError("the server could not ask the agent")
        elif body or status >= 300:
            raise NotForCaller


def _message_of(data: bytes) -> Envelope:
    try:
        return read_message(data)
    except UnreadableEnvelope as error:
        raise InternalError("the answer of the agent is no message") from error


log = logging.getLogger("parley.envelope")

FRESH_SECONDS = 30.0
SEARCH_SECONDS = 5.0
MAX_FOUND = 16
MAX_SEARCHES = 256
SKILL_KEY = "skill"


class RegistryAgents:
    """Finds agents in the registry of a server (``FindsAgents``), and calls them.

    The registry is asked without credentials: entries that are not for everyone stay hidden. What
    it answers counts for half a minute. ``own`` is the address of this server, whose agents are
    known already. ``chain_id`` names this server in call chains.
    """

    def __init__(
        self, registry: str, connections: Connections, *, own: str = "", chain_id: str = ""
    ) -> None:
        self._registry = registry
        self._connections = connections
        self._own = own.rstrip("/")
        self._chain_id = chain_id
        self._found: Bounded[tuple[str, str, str], tuple[float, tuple[RegisteredAgent, ...]]]
        self._found = Bounded(MAX_SEARCHES)
        self._in_flight: dict[str, int] = {}
        self._searches = asyncio.Semaphore(4)

    async def find(self, *, type: str, action: str, id: str) -> Sequence[AgentCandidate]:
        """Return the agents in the registry (``FindsAgents``)."""
        key = type, action, id
        now = asyncio.get_running_loop().time()
        known = self._found.get(key)
        if known is None or known[0] < now:
            found = await self._search(type, action, id)
            if found is None:  # it is away: the last answer counts a little longer
                found = () if known is None else known[1]
            self._found[key] = known = now + FRESH_SECONDS, found
        return known[1]

    async def _search(self, type: str, action: str, id: str) -> tuple[RegisteredAgent, ...] | None:
        from parley.registry.client.places import AgentNotFound
        from parley.registry.client.remote_registry import RemoteRegistry

        filter = {
            **({"capabilities": action} if action else {}),
            **({"metadata.agentType": type} if type else {}),
        }
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
        return tuple(RegisteredAgent(each, self) for each in found if not self._is_own(each))

    def _is_own(self, found: FoundAgent) -> bool:
        return bool(self._own) and f"{found.card_url}/".startswith(f"{self._own}/")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connections.aclose()


class RegisteredAgent:
    """An agent that a registry lists."""

    def __init__(self, found: FoundAgent, agents: RegistryAgents) -> None:
        self._found = found
        self._agents = agents

    @property
    def id(self) -> str:
        """The identifier of its entry."""
        return self._found.identifier

    @property
    def in_flight(self) -> int:
        """How many requests this process waits for."""
        return self._agents._in_flight.get(self.id, 0)

    async def ask(self, request: Envelope, context: MessageContext) -> Answers:
        """Call the agent and yield its answers (``AgentCandidate``)."""
        payload = request.payload
        assert isinstance(payload, RequestPayload)
        self._check(payload)
        counts, connections = self._agents._in_flight, self._agents._connections
        counts[self.id] = counts.get(self.id, 0) + 1
        try:
            try:
                reference, options = referred(self._found)
                assert not isinstance(reference, UsableAgent)  # it was found at a registry
                shared = await connections.acquire(reference, options)
            except ClientError as error:
                raise NotSent(str(error)) from error
            try:
                agent = _with_context(shared.agent, context)
                async for answer in self._asked(agent, request, payload, context):
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

    def _check(self, payload: RequestPayload) -> None:
        """Refuse what would mix the tasks of callers: the agent knows this server alone."""
        metadata = payload.metadata
        is_operation = payload.action.startswith(OPERATION_PREFIX)
        if is_operation or metadata.task_id or metadata.context_id or metadata.after is not None:
            raise InvalidParamsError(
                f"{self.id} is on another server, and only new work is passed on to it: for its "
                "tasks and conversations, connect to the agent itself"
            )

    async def _asked(
        self,
        agent: RemoteAgent,
        request: Envelope,
        payload: RequestPayload,
        context: MessageContext,
    ) -> Answers:
        source = Source(agent_id=self.id)
        parameters = payload.parameters
        is_text = isinstance(parameters, str)
        message = Message(
            message_id=passed_on_id(request, context),
            role=Role.USER,
            parts=(Part(text=parameters) if is_text else Part(data=parameters),),
        )
        left = None
        if context.deadline is not None:
            left = max(0.001, context.deadline - asyncio.get_running_loop().time())
        metadata = {SKILL_KEY: payload.action, **CallChain.says(self._chain(left))}
        sub_type = request.message.sub_type
        if sub_type == SubType.NOTIFICATION:
            await agent.send(message, metadata=metadata, return_immediately=True, timeout=left)
            return
        is_command = sub_type == SubType.COMMAND
        if not is_command and not payload.metadata.stream:
            reply = await agent.send(message, metadata=metadata, timeout=left)
            yield response(request, _payload_of(reply), source=source)
            return
        answer: Task | Message | None = None
        async with agent.stream(message, metadata=metadata) as events:
            async for each in events:
                if isinstance(each, Message):
                    answer = each
                    break
                if is_command and answer is None and isinstance(each, Task):
                    answer = each
                    accepted = ResponseMetadata(task_id=each.id, context_id=each.context_id)
                    yield response(
                        request,
                        ResponsePayload(status=Status.ACCEPTED, metadata=accepted),
                        source=source,
                    )
                known = ResponseMetadata(task_id=events.task_id, context_id=events.context_id)
                results = (write_stream_event(StreamItem(each)),)
                part = ResponsePayload(status=Status.PARTIAL, results=results, metadata=known)
                yield event(request, part, source=source)
        last: Any = response
        if is_command and not isinstance(answer, Message):
            last = event
        if not isinstance(answer, Message):
            answer = await agent.get(events.task_id)
        yield last(request, _payload_of(answer), source=source)

    def _chain(self, left: float | None) -> Chain:
        deadline = None
        if left is not None:
            deadline = Timestamp.of(Timestamp.now() + timedelta(seconds=left))
        path = (self._agents._chain_id,) if self._agents._chain_id else ()
        return Chain(hops=1, deadline=deadline, path=path)


def _with_context(agent: RemoteAgent, context: MessageContext) -> RemoteAgent:
    """Return a connection whose calls belong to the trace of a message, and say their chain."""
    found = copy.copy(agent)
    extensions = agent.context.extensions
    if declares(agent.card, CALL_CHAIN):
        extensions |= {CALL_CHAIN}
    found.context = replace(agent.context, extensions=extensions, trace=context.trace)
    return found


def _payload_of(answer: Task | Message) -> ResponsePayload:
    results = results_of(answer)
    if isinstance(answer, Message):
        return ResponsePayload(
            status=Status.SUCCESS,
            results=results,
            metadata=ResponseMetadata(total_results=len(results), context_id=answer.context_id),
        )
    return ResponsePayload(
        status=status_of(answer),
        results=results,
        metadata=ResponseMetadata(
            total_results=len(results),
            task_id=answer.id,
            context_id=answer.context_id,
            state=answer.state.value,
        ),
        error=task_error(answer),
    )


class RoutingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How far one message may spread. Beyond it, the message is refused, and no agent is asked.

    ``agents`` may be asked by one broadcast; ``broadcasts_per_caller`` and ``broadcasts`` are how
    many may be under way. Raises ``ValueError`` for a value below 1.
    """

    agents: int = 32
    broadcasts_per_caller: int = 4
    broadcasts: int = 64

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} of routing is a whole number from 1, not {value!r}")


class FindsAgents(Protocol):
    """Finds agents elsewhere, in a registry."""

    async def find(self, *, type: str, action: str, id: str) -> Sequence[AgentCandidate]:
        """Return the registered agents of a type, with a skill, or with an id; empty texts count
        as any. An unreachable registry has none.
        """
        ...


class HostDirectory:
    """Knows the agents of this server, those that registered over their sockets, and those of a
    registry. ``hosted`` returns the first.
    """

    def __init__(
        self,
        hosted: Callable[[], Sequence[HostedAgent]],
        connected: ConnectedAgents,
        remote: FindsAgents | None = None,
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
        if not target.agent_id:
            own = self._own(context) if target.agent_type else None
            if own is not None and target.agent_type != own.type:
                raise no_agent(request)
            return False
        return target.agent_id.rstrip("/") not in self._own_names(context)

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
        if request.target.routing_strategy != RoutingStrategy.BROADCAST:
            one = ask_one(candidates, request, context, turns=self._turns)
            async with aclosing(one) as answers:
                async for answer in answers:
                    yield answer
            return
        if len(candidates) > self._limits.agents:
            raise InvalidParamsError(
                f"more than {self._limits.agents} agents would be asked: name their agentType, or "
                "a skill that fewer have",
                violations=(FieldViolation("target", "fewer agents"),),
            )
        caller = context.caller.owner or context.address
        self._begin(caller)
        try:
            everyone = ask_all(candidates, request, context, source=self._source(context))
            async with aclosing(everyone) as answers:
                async for answer in answers:
                    yield answer
        finally:
            self._broadcasts[caller] -= 1
            if not self._broadcasts[caller]:
                del self._broadcasts[caller]

    def _begin(self, caller: str) -> None:
        limits = self._limits
        if (
            self._broadcasts[caller] >= limits.broadcasts_per_caller
            or self._broadcasts.total() >= limits.broadcasts
        ):
            if not self._broadcasts[caller]:
                del self._broadcasts[caller]
            raise TooManyRequestsError("too many broadcasts are under way", retry_after=1)
        self._broadcasts[caller] += 1

    async def _candidates(self, request: Envelope, context: MessageContext) -> list[AgentCandidate]:
        """Return who may be asked, each of an id once unless it has several connections."""
        payload, target = request.payload, request.target
        assert isinstance(payload, RequestPayload)
        action = payload.action
        by_skill = not target.agent_id and not target.agent_type
        hosted = [
            each
            for each in self._hosted()
            if (not target.agent_id or target.agent_id in each.names)
            and (not target.agent_type or target.agent_type == each.type)
            and (target.agent_id or (each.has(action) and self._is_open(each, context)))
        ]
        found: list[AgentCandidate] = list(hosted)
        found += self._connected.matching(
            id=target.agent_id,
            type=target.agent_type,
            action="" if target.agent_id else action,
            context=context,
            with_hosted=bool(hosted),
        )
        if self._remote is not None and not (target.agent_id and found):
            skill = "" if target.agent_id or action.startswith(OPERATION_PREFIX) else action
            if target.agent_id or target.agent_type or (by_skill and skill):
                known = {each.id for each in found}
                found += [
                    each
                    for each in await self._remote.find(
                        type=target.agent_type, action=skill, id=target.agent_id
                    )
                    if each.id not in known
                ]
        return found

    def _is_open(self, agent: HostedAgent, context: MessageContext) -> bool:
        return context.is_signed or agent.is_open_to(context.caller)

    def _own(self, context: MessageContext) -> HostedAgent | None:
        return next((each for each in self._hosted() if each.endpoint.key == context.agent), None)

    def _own_names(self, context: MessageContext) -> tuple[str, ...]:
        own = self._own(context)
        names = (context.agent, context.tenant, *context.names, *(() if own is None else own.names))
        return tuple(filter(None, names))

    def _source(self, context: MessageContext) -> Source:
        own = self._own(context)
        return Source(
            agent_id=context.agent or "server", agent_type="" if own is None else own.type
        )


def _check_spread(request: Envelope, payload: RequestPayload) -> None:
    """Refuse what makes no sense for several agents. Raises ``InvalidParamsError``."""
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
