"""``HostDirectory``: who gets a message that is not simply for the agent at its address."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol, cast

import msgspec

from parley.envelope.messages import (
    OPERATION_PREFIX,
    Envelope,
    MessageType,
    RequestPayload,
    RoutingStrategy,
    Source,
)
from parley.envelope.routing.connected import ConnectedAgents
from parley.envelope.routing.hosted import HostedAgent
from parley.envelope.routing.strategies import AgentCandidate, Turns, ask_all, ask_one, no_agent
from parley.envelope.server.directory import MessageContext, with_deadline
from parley.envelope.server.plugins import REGISTRY_PREFIX
from parley.model.errors import FieldViolation, InvalidParamsError, TooManyRequestsError


class RoutingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How far one message may spread. Beyond it, the message is refused, and nobody is asked.

    ``agents`` may be asked by one broadcast; ``broadcasts_per_caller`` and ``broadcasts`` are how
    many may be under way. Raises ``ValueError`` for what is no whole number from 1.
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

    async def route(self, request: Envelope, context: MessageContext) -> AsyncIterator[Envelope]:
        """Yield the answers of others (``AgentDirectory``)."""
        context = with_deadline(request, context)
        candidates = await self._candidates(request, context)
        if not candidates:
            raise no_agent(request)
        if request.target.routing_strategy != RoutingStrategy.BROADCAST:
            one = ask_one(candidates, request, context, turns=self._turns)
            async with aclosing(cast("AsyncGenerator[Envelope, None]", one)) as answers:
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
            async with aclosing(cast("AsyncGenerator[Envelope, None]", everyone)) as answers:
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
