"""Agents that registered over their sockets, and take requests there while these are open."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import msgspec

from parley.envelope.answers import error_response, message
from parley.envelope.declared import MaintenanceGate, MaintenanceWindow
from parley.envelope.errors import DeadlineExceeded, UnderMaintenance
from parley.envelope.messages import (
    Envelope,
    MessageType,
    RequestMetadata,
    RequestPayload,
    Source,
    SubType,
    Target,
)
from parley.envelope.routing.strategies import AgentCandidate, NotForCaller, NotSent
from parley.envelope.server.directory import MessageContext, SocketPeer
from parley.model.errors import TooManyRequestsError
from parley.model.ids import new_id

MAX_AGENTS = 10_000
MAX_PER_OWNER = 32

MAX_SILENCE = 600.0
"""How many seconds a request without a timeout waits for an agent's next message."""

UNPROVED = "\0"
"""The beginning of the owner of an agent without credentials; no caller's owner begins so. Its
socket follows."""

SHARING_SCOPE = "agents:serve"
"""With this scope an agent is chosen beside those of this server, for their skills and types."""


class ConnectedCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a connected agent says of itself, as far as it decides who asks it."""

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

    async def ask(self, request: Envelope, context: MessageContext) -> AsyncIterator[Envelope]:
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
        async with aclosing(cast("Any", asked)) as answers:
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
        """Remove the agents of a socket, or the one with this id; return their ids."""
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
