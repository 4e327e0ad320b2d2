"""The limits and the usage counters of a host's agents, started and stopped with the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from parley.engine.description import AgentDescription
from parley.engine.turn.usage import AgentMeter
from parley.extensions.usage import USAGE
from parley.host.options import ServerOptions
from parley.model.distribution import install_command
from parley.security.limits.agent_limits import AgentLimits, measures_turns
from parley.security.limits.counters import (
    Counters,
    DailyCounters,
    LocalCounters,
    RedisCounters,
    shared_by,
)
from parley.security.limits.declaration import Budget, Limit, Rate, SizeLimit, parse_limits
from parley.security.limits.usage import UsageMeter
from parley.store.task_store import TaskStore


class HostLimits:
    """The limits of each agent that has any, by the agent's key.

    The limits of the server (``options.limits``) apply to all agents together. A Redis bus counts
    rates for all replicas; otherwise the store counts. Usage is counted for all agents with
    ``options.usage``, and otherwise for agents with the usage extension or with a budget. With
    ``options.config``, ``declare`` may replace the limits of the server.

    Raises ``ValueError`` for a limit of a skill that no agent has.
    """

    def __init__(
        self, agents: Sequence[AgentDescription], store: TaskStore, options: ServerOptions
    ) -> None:
        methods = [
            method.operation.name
            for agent in agents
            for extension in agent.extensions
            for method in extension.methods
        ]
        self._parse = partial(_parsed, agents=agents, methods=methods)
        server, usage = self._parse(options.limits), options.usage
        changes = options.config is not None
        self._closes: dict[str, Callable[[], Awaitable[None]]] = {}
        self._begins: list[Callable[[], None]] = []
        self.usage: UsageMeter | None = None
        self.by_agent: dict[str, AgentLimits] = {}
        extended = {
            agent.key for agent in agents if any(each.uri == USAGE for each in agent.extensions)
        }
        asking = [
            agent
            for agent in agents
            if changes or server or usage or agent.limits or agent.key in extended
        ]
        if not asking:
            return
        kinds = {type(each) for each in server}.union(*[map(type, a.limits) for a in agents])
        meters_all = usage or Budget in kinds
        if meters_all or extended:
            self.usage = UsageMeter(store, store.now)
            self._begins.append(self.usage.start)
            self._closes["the count of usage"] = self.usage.close
        counts = Rate in kinds or (changes and find_spec("limits") is not None)
        counters, daily = self._counters(store, options.bus if counts else None)
        streams: Counter[str] = Counter()
        for agent in asking:
            self.by_agent[agent.key] = AgentLimits(
                agent.key,
                server=server,
                own=agent.limits,
                counters=counters,
                daily=daily,
                streams=streams,
                usage=self.usage if meters_all or agent.key in extended else None,
                now=store.now,
                changes=changes,
            )

    def declare(self, limits: Iterable[str]) -> None:
        """Replace the limits of the server, of a server with a file of settings.

        Raises ``ValueError`` for a limit that needs a restart, and for texts that are no limits.
        """
        server = self._parse(limits)
        agents = self.by_agent.values()
        metered, measured = all(a.usage for a in agents), all(a.measures_turns for a in agents)
        for limit in server:
            if measures_turns(limit) and not (metered if isinstance(limit, Budget) else measured):
                raise ValueError(
                    f"the limit {limit.text!r} needs a restart: turns are not measured now"
                )
        for each in agents:
            each.declare(server)

    def _counters(self, store: TaskStore, bus: object) -> tuple[Counters, Counters]:
        """Return the counters of rates, and the counters of messages and tasks per day."""
        local = LocalCounters(store.now)
        if not (store.is_shared or store.has_operators):
            return local, local
        daily = DailyCounters(store, store.now)
        self._closes["the counts of days"] = daily.close
        if not store.is_shared:
            return local, daily
        if (redis := redis_for_limits(bus)) is None:
            shares = shared_by(local, store.replicas)
            self._begins.append(shares.start)
            self._closes["the shares of limits"] = shares.stop
            return local, daily
        shared = RedisCounters(*redis, store.now)
        self._closes["the counts of limits in Redis"] = shared.close
        return shared, daily

    def meter(self, agent: str) -> AgentMeter | None:
        """Return the meter for the turns of an agent, ``None`` if nothing needs one."""
        limits = self.by_agent.get(agent)
        return None if limits is None or not limits.measures_turns else AgentMeter(limits)

    def start(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Start the counters. Return the functions that stop them, by their names in the log."""
        for begin in self._begins:
            begin()
        return self._closes


def redis_for_limits(bus: object) -> tuple[str, str] | None:
    """Return the Redis or Valkey server of a bus that can count limits: URL and key prefix.

    The URL has no options of the bus. Raises ``ValueError`` if a package is missing.
    """
    if not isinstance(bus, str) or urlsplit(bus).scheme not in ("redis", "rediss"):
        return None
    if find_spec("limits") is None:
        raise ValueError(f"limits in Redis need the package limits: {install_command('redis')}")
    parts = urlsplit(bus)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = query.pop("prefix", "parley:")
    return urlunsplit(parts._replace(query=urlencode(query))), f"{prefix}limits"


def _parsed(
    limits: Iterable[str], *, agents: Sequence[AgentDescription], methods: Iterable[str]
) -> tuple[Limit, ...]:
    server = parse_limits(limits, operations=methods)
    known = {skill for agent in agents for skill in agent.skills}
    for limit in server:
        for name in () if isinstance(limit, SizeLimit) else limit.applies.skills:
            if name not in known:
                raise ValueError(
                    f"the limit {limit.text!r} names the skill {name!r}, which no agent here "
                    f"has; there are {', '.join(sorted(known))}"
                )
    return server
