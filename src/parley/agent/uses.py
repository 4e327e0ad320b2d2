"""Agents that other agents of their process may call: ``Agent(uses=[...])``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, NoReturn, Self

from parley.engine.agent_options import GROUPS

_OF_SERVERS = frozenset(
    [
        "host",
        "port",
        "url",
        "store",
        "bus",
        "files",
        "tenants",
        "auth",
        "caller",
        "settings",
        "tls_cert",
        "tls_key",
        "grpc_port",
    ]
)
_SERVES = ": parley.serve(agent) serves an agent, parley.asgi(agent) makes it an ASGI app"
_CALLS = ": async with parley.connect(agent) as remote: await remote.send(...)"
_WAYS = {
    **dict.fromkeys(("run", "serve", "start", "listen", "app", "asgi"), _SERVES),
    **dict.fromkeys(("send", "stream", "call"), _CALLS),
}
"""Hints for names that users look for on an agent."""


class UsableAgent:
    """An agent that other agents of its process may call: name, key, and the agents that it
    uses."""

    name: str
    key: str
    uses: tuple[UsableAgent, ...] = ()

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **options: Any) -> Self:
            """Reject options of a server, and options outside of their group."""
            known = signature(cls.__init__).parameters
            for keyword, kind in GROUPS.items():
                for name in options.keys() & set(kind.__struct_fields__) - known.keys():
                    raise TypeError(
                        f"an agent takes no {name}: write {keyword}={kind.__name__}({name}=...)"
                    )
            for name in _OF_SERVERS & options.keys() - known.keys():
                raise TypeError(
                    f"an agent takes no {name}: its server does, parley.serve(agent, {name}=...)"
                )
            return super().__new__(cls)

        def __getattr__(self, name: str) -> NoReturn:
            how = _WAYS.get(name, "")
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{how}",
                name=name,
                obj=self,
            )


def checked_uses(
    name: str, uses: Iterable[UsableAgent], others: Iterable[object] = ()
) -> tuple[UsableAgent, ...]:
    """Return the agents that the agent ``name`` uses, with ``others`` of this process.

    Raises ``TypeError`` and ``ValueError``.
    """
    if isinstance(uses, UsableAgent):
        raise TypeError(f"uses is a list of agents: write uses=[{uses.key}]")
    found = tuple(uses)
    used = {id(each) for each in found}
    found += tuple(o for o in others if isinstance(o, UsableAgent) and id(o) not in used)
    for each in found:
        if not isinstance(each, UsableAgent):
            raise TypeError(
                f"uses has agents of this process, and {each!r} is none; an agent elsewhere needs "
                "no uses: give its address to turn.delegate"
            )
    keys = [each.key for each in found]
    for index, each in enumerate(found):
        if each.key in keys[:index]:
            raise ValueError(
                f"{name!r} uses two agents with the key {each.key!r}; give them different names, "
                "or different keys (Agent(..., key=...))"
            )
    return found


def with_used(agents: Iterable[UsableAgent]) -> list[UsableAgent]:
    """Return agents, and all agents that they use, each once: the given agents come first.

    Raises ``ValueError`` for agents that use each other in a circle, and for two with one key.
    """
    found: dict[int, UsableAgent] = {id(agent): agent for agent in agents}
    for agent in list(found.values()):
        _walk(agent, (), found)
    by_key: dict[str, UsableAgent] = {}
    for agent in found.values():
        other = by_key.setdefault(agent.key, agent)
        if other is not agent:
            raise ValueError(
                f"the agents {other.name!r} and {agent.name!r} have the same key {agent.key!r}, "
                "under which their tasks are kept; give them different names, or different keys "
                "(Agent(..., key=...))"
            )
    return list(found.values())


def _walk(agent: UsableAgent, above: Sequence[UsableAgent], found: dict[int, UsableAgent]) -> None:
    if any(each is agent for each in above):
        names = " uses ".join(repr(each.name) for each in (*above, agent))
        raise ValueError(f"{names}: agents must not use each other in a circle, take one out")
    for used in agent.uses:
        _walk(used, (*above, agent), found)
        found.setdefault(id(used), used)
