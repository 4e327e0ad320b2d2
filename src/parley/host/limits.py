"""The limits and the usage of a host's agents: what counts them, started and stopped with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from parley.engine.description import AgentDescription
from parley.engine.turn.usage import AgentMeter
from parley.extensions.usage import USAGE
from parley.host.options import ServerOptions
from parley.model.distribution import install_command
from parley.security.limits.agent_limits import AgentLimits, OpenStreams
from parley.security.limits.counters import Counters, LocalCounters, StoreCounters
from parley.security.limits.declaration import Budget, Limit, SizeLimit, parse_limits
from parley.security.limits.usage import UsageMeter
from parley.store.task_store import TaskStore


class HostLimits:
    """The limits of each agent that has any, by its key.

    Those of the server (``options.limits``) are for all agents together; a Redis bus counts rates
    for all replicas, in place of the store. Usage is counted for all agents (``options.usage``),
    for agents with the extension, and where there is a budget.

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
        server, usage = parse_limits(options.limits, operations=methods), options.usage
        redis = redis_for_limits(options.bus) if options.limits else None
        _check_skills(server, agents)
        self._closes: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        self.usage: UsageMeter | None = None
        self.by_agent: dict[str, AgentLimits] = {}
        asking = [
            agent for agent in agents if server or usage or agent.limits or _has_extension(agent)
        ]
        if not asking:
            return
        has_budget = any(
            isinstance(each, Budget) for each in (*server, *[e for a in agents for e in a.limits])
        )
        if usage or has_budget or any(map(_has_extension, asking)):
            self.usage = UsageMeter(store, store.now)
        counters, daily = self._counters(store, redis)
        streams = OpenStreams()
        for agent in asking:
            is_metered = usage or has_budget or _has_extension(agent)
            self.by_agent[agent.key] = AgentLimits(
                agent.key,
                server=server,
                own=agent.limits,
                counters=counters,
                daily=daily,
                streams=streams,
                usage=self.usage if is_metered else None,
                now=store.now,
            )

    def _counters(self, store: TaskStore, redis: str | None) -> tuple[Counters, Counters]:
        """Return what counts rates, and what counts the messages and tasks of a day."""
        local = LocalCounters(store.now)
        if not (store.is_shared or store.has_operators):
            return local, local
        stored = StoreCounters(store, store.now)
        self._closes.append(("the counts of limits", stored.close))
        if not store.is_shared:
            return local, stored
        if redis is None:
            return stored, stored
        from parley.security.limits.counters import RedisCounters

        shared = RedisCounters(*redis_parts(redis), store.now)
        self._closes.append(("the counts of limits in Redis", shared.close))
        return shared, stored

    def meter(self, agent: str) -> AgentMeter | None:
        """Return what measures the turns of an agent, ``None`` if nothing asks for it."""
        limits = self.by_agent.get(agent)
        if limits is None or not (limits.limits_turns or limits.usage is not None):
            return None
        return AgentMeter(limits)

    def start(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Start what counts; return what stops it, by what it is called in the log."""
        if self.usage is not None:
            self.usage.start()
            return {**dict(self._closes), "the count of usage": self.usage.close}
        return dict(self._closes)


def redis_for_limits(bus: object) -> str | None:
    """Return the URL of a bus if limits can be counted there: one Redis or Valkey server.

    Raises ``ValueError`` if a package is missing.
    """
    if not isinstance(bus, str) or urlsplit(bus).scheme not in ("redis", "rediss"):
        return None
    if find_spec("limits") is None:
        raise ValueError(f"limits in Redis need the package limits: {install_command('redis')}")
    return bus


def redis_parts(url: str) -> tuple[str, str]:
    """Return the URL without what is the bus's own, and the prefix of keys."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = query.pop("prefix", "parley:")
    return urlunsplit(parts._replace(query=urlencode(query))), f"{prefix}limits"


def _has_extension(agent: AgentDescription) -> bool:
    return any(each.uri == USAGE for each in agent.extensions)


def _check_skills(server: Iterable[Limit], agents: Sequence[AgentDescription]) -> None:
    known = {skill for agent in agents for skill in agent.skills}
    for limit in server:
        named = () if isinstance(limit, SizeLimit) else limit.applies.skills
        if unknown := [name for name in named if name not in known]:
            raise ValueError(
                f"the limit {limit.text!r} names the skill {unknown[0]!r}, which no agent here "
                f"has; there are {', '.join(sorted(known))}"
            )
