"""Agents that other agents of the same process use: they share the store and have no address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from parley.agent.agent import Agent
from parley.agent.files import FileAccess, base_url, referred
from parley.agent.services import TurnServices
from parley.agent.uses import with_used
from parley.engine.authorizations import Authorizations, CallbackClaim, Callbacks
from parley.engine.executor import AgentExecutor
from parley.engine.service.service import AgentService
from parley.engine.turn.attempt import Attempt
from parley.model.parts import Part
from parley.security.sealing import TokenExpired, TokenInvalid
from parley.server.endpoint import CallbackReceiver, CredentialReceiver

if TYPE_CHECKING:
    from parley.agent.remote.callees import LocalService
    from parley.client.files.stream import FileStream


def hosted(agents: Iterable[Agent]) -> list[Agent]:
    """Return agents and the agents that they use, each once. See ``with_used`` for errors.

    An agent of several tenants is listed once.
    """
    return cast("list[Agent]", with_used(agents))


def guests_of(
    agents: Mapping[str, Agent], tenants: Mapping[str, Agent]
) -> dict[str, tuple[str, ...]]:
    """Return the guests of each served agent: agents whose callbacks arrive at its address, by key.

    The guests are the agents that it uses, directly or through others, and that are not served
    themselves.
    """
    served = {agent.key: agent for agent in (*agents.values(), *tenants.values())}
    return {
        key: tuple(used.key for used in with_used([agent]) if used.key not in served)
        for key, agent in served.items()
    }


def agent_addresses(
    url: str, agents: Mapping[str, Agent], tenants: Mapping[str, Agent]
) -> Callable[[str, str], str]:
    """Return a function that gives the public address of an agent by its key and a tenant.

    ``url`` is the common base address; ``agents`` are by path, ``tenants`` by tenant name. An
    agent without an address has the address of the first agent that uses it.
    """
    base = url.rstrip("/")
    guests = guests_of(agents, tenants)
    by_tenant = {
        (key, name): f"{base}/{name}"
        for name, agent in tenants.items()
        for key in (agent.key, *guests[agent.key])
    }
    by_path = {
        key: base + path
        for path, agent in reversed([*agents.items()])
        for key in (agent.key, *guests[agent.key])
    }

    def address(key: str, tenant: str) -> str:
        return by_tenant.get((key, tenant)) or by_path.get(key, base)

    return address


class Receivers:
    """The receivers of callbacks and credentials at the address of an agent, for it and its guests.

    ``callbacks`` and ``credentials`` are by the key of their agent. ``keys`` are the agents at
    this address: the served agent first, then its ``guests``.
    """

    def __init__(
        self,
        callbacks: Mapping[str, Callbacks],
        credentials: Mapping[str, Authorizations],
        keys: Sequence[str],
    ) -> None:
        own, *guests = keys
        self.guests = tuple(guests)
        self.callbacks: CallbackReceiver = callbacks[own]
        self.credentials: CredentialReceiver = credentials[own]
        if len(keys) > 1:
            self.callbacks = _CallbacksOfSeveral([callbacks[key] for key in keys])
            self.credentials = _CredentialsOfSeveral({key: credentials[key] for key in keys})


class _CallbacksOfSeveral:
    """A ``CallbackReceiver`` for several agents, selected by the key of the event."""

    def __init__(self, receivers: Sequence[Callbacks]) -> None:
        self._receivers = receivers

    async def event_of(self, token: str, tenant: str) -> str:
        for index, receiver in enumerate(self._receivers):
            try:
                return f"{index} {await receiver.event_of(token, tenant)}"
            except TokenExpired:
                raise
            except TokenInvalid:
                continue
        raise TokenInvalid

    async def complete(self, key: str, value: bytes) -> None:
        index, _, event = key.partition(" ")
        await self._receivers[int(index)].complete(event, value)


class _CredentialsOfSeveral:
    """A ``CredentialReceiver`` for several agents, selected by the task of the claim."""

    def __init__(self, receivers: Mapping[str, Authorizations]) -> None:
        self._receivers = receivers

    async def claim_of(self, token: str, tenant: str, *, redirected: bool = False) -> CallbackClaim:
        for receiver in self._receivers.values():
            try:
                return await receiver.claim_of(token, tenant, redirected=redirected)
            except TokenExpired:
                raise
            except TokenInvalid:
                continue
        raise TokenInvalid

    async def receive(
        self, claim: CallbackClaim, given: object, *, redirected: bool = False
    ) -> None:
        await self._receivers[claim.agent].receive(claim, given, redirected=redirected)


def connect_local(
    agents: Sequence[Agent],
    services: Mapping[str, AgentService],
    executors: Mapping[str, AgentExecutor],
    turns: Sequence[TurnServices],
) -> None:
    """Let the turns of agents call the agents that they use.

    ``services`` and ``executors`` are by the agent's key; ``turns`` are in the order of ``agents``.
    """
    for agent, of_turns in zip(agents, turns, strict=True):
        if not agent.uses:
            continue
        from parley.agent.remote.callees import LocalAgents

        used = {each.key: _local(each, services, executors) for each in agent.uses}
        of_turns.connections.local = LocalAgents(
            agent.name,
            used,
            base_url=partial(base_url, of_turns),
            keep=partial(referred, of_turns),
            opened=partial(_opened, of_turns),
            lent=partial(_lent, of_turns),
        )


def _local(
    agent: object, services: Mapping[str, AgentService], executors: Mapping[str, AgentExecutor]
) -> LocalService:
    from parley.agent.remote.callees import LocalService

    assert isinstance(agent, Agent)
    service, executor = services[agent.key], executors[agent.key]
    described = service.agent
    return LocalService(
        agent=agent,
        service=service,
        card=described.card,
        owner=described.owner,
        authorization=described.authorization,
        is_ending=lambda: executor.closing,
        note_cancel=executor.note_cancel,
    )


def _opened(services: TurnServices, attempt: Attempt, part: Part) -> FileStream:
    return FileAccess(services, attempt.runner.scope).open(part)


async def _lent(services: TurnServices, attempt: Attempt, part: Part) -> Part:
    files, scope = services.files, attempt.runner.scope
    return part if files is None else await files.lent(part, tenant=scope.tenant, owner=scope.owner)
