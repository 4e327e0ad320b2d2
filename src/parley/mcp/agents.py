"""The agents of a bridge: cards, skills as tools with their schemas, connections."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mcp import MCPError, types

from parley.agent.remote.connections import Connections
from parley.agent.tools.tool import NAME_LENGTH, free_name, tool_name
from parley.client.errors import ClientError
from parley.client.remote_agent import RemoteAgent
from parley.host.connecting import connect
from parley.llm.remote_skills import RemoteSkill, skills_on
from parley.mcp.questions import object_schema
from parley.mcp.session import schema_problem
from parley.model.bounded import Bounded
from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.registry.client.found import FoundAgent

log = logging.getLogger("parley.mcp")

CARD_SECONDS = 300.0
"""After how many seconds the card of an agent is read again."""

MOST_TOOLS = 200
"""The most skills, of all agents, that become tools."""

MOST_FOUND = 256
"""The most agents from searches that can be called."""

LOAD_SECONDS = 20.0
"""How long an agent may take to answer with its card."""

WRAPPED_INPUT = "input"
"""The argument of a skill whose input is not an object."""

WRAPPED_RESULT = "result"
"""The member of a result that is not an object."""

MARK_LENGTH = 12
"""The number of characters of an address's digest that are part of a name: 60 bits."""


class AgentFailed(MCPError):
    """An agent cannot be called, or rejects the call: the text names it and the reason."""


class SkillTool:
    """A skill of an agent as an MCP tool."""

    def __init__(self, agent: BridgedAgent, skill: RemoteSkill, name: str) -> None:
        self.agent = agent
        self.skill = skill
        self.name = name
        self.input_schema, self._wraps_input = object_schema(skill.parameters, WRAPPED_INPUT)
        self.output_schema: dict[str, Any] | None = None
        self.wraps_result = False
        if skill.output_schema is not None:
            self.output_schema, self.wraps_result = object_schema(
                skill.output_schema, WRAPPED_RESULT
            )

    @property
    def described(self) -> types.Tool:
        """The tool in the form that hosts list."""
        return types.Tool(
            name=self.name,
            title=self.skill.skill.name or None,
            description=self.skill.description,
            input_schema=self.input_schema,
            output_schema=self.output_schema,
            annotations=types.ToolAnnotations(open_world_hint=True),
        )

    def message(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of ``RemoteAgent.stream`` for a call with these arguments."""
        options: dict[str, Any] = {"metadata": {"skill": self.skill.skill.id}}
        if self.skill.takes_words:
            return {**options, "message": str(arguments.get("message", ""))}
        value = arguments.get(WRAPPED_INPUT) if self._wraps_input else dict(arguments)
        return {**options, "data": value}


class BridgedAgent:
    """An agent of a bridge. ``is_found``: it comes from a search, so it gets no credentials.

    ``slug`` names it in tools, resources and handles, from its first card on. ``mark``
    distinguishes it from other agents of the same name.
    """

    def __init__(self, reference: Any, *, is_found: bool, slug: str = "") -> None:
        self.reference = reference
        self.is_found = is_found
        self.slug = slug
        self.mark = ""
        self.card: AgentCard | None = None
        self.read_at = float("-inf")

    @property
    def uri(self) -> str:
        """The address of its card as a resource."""
        return f"agent-card://{self.slug}"


class BridgedAgents:
    """The agents of a bridge. Named agents are connected with ``options`` of ``parley.connect``.

    Tool names include agent names, so that a host that trusts a tool never reaches another agent
    under its name. The name of a found agent always has the mark of its address, so other results
    do not change the name. Two agents of the operator with the same name have marks too. An agent
    keeps its name, whatever answers later.
    """

    def __init__(
        self, named: Sequence[Any], found: Sequence[FoundAgent], options: Mapping[str, Any]
    ) -> None:
        self._options = dict(options)
        self._connections = Connections(_open)
        self._listed = [BridgedAgent(each, is_found=False) for each in named]
        self._listed += [BridgedAgent(each, is_found=True) for each in found]
        self._asked: Bounded[str, BridgedAgent] = Bounded(MOST_FOUND)
        self._loading = asyncio.Lock()
        self._unusable: set[tuple[str, str]] = set()
        self.tools: dict[str, SkillTool] = {}
        self.reserved: frozenset[str] = frozenset()

    async def load(self) -> list[str]:
        """Read outdated cards, and return the problems.

        An agent that does not answer keeps its earlier card.
        """
        async with self._loading:
            now = asyncio.get_running_loop().time()
            old = [each for each in self._listed if now - each.read_at > CARD_SECONDS]
            problems = [each for each in await asyncio.gather(*map(self._read, old)) if each]
            self._name([each for each in self.all if not each.slug])
            if len(problems) < len(old) or not self.tools:
                self._name_tools()
            return problems

    async def _read(self, agent: BridgedAgent) -> str:
        """Read the card of an agent, and return the problem, or an empty string."""
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                async with connect(agent.reference, **self._options_for(agent)) as remote:
                    agent.card = remote.card
        except (A2AError, ClientError, ValueError, TimeoutError) as error:
            problem = str(error) or f"no answer within {LOAD_SECONDS:g} s"
            log.warning("an agent cannot be offered: %s", problem)
            return problem
        agent.read_at = asyncio.get_running_loop().time()
        return ""

    def _name(self, agents: Sequence[BridgedAgent]) -> None:
        """Name the agents that answered for the first time."""
        plain = {each: tool_name(_card(each).name.lower(), "skill")[:30] for each in agents}
        counts = Counter(plain[each] for each in agents if not each.is_found)
        for agent in agents:
            taken = {each.slug for each in self._listed}
            agent.mark = _mark(_address(agent.reference, _card(agent)))
            slug = plain[agent]
            if agent.is_found or counts[slug] > 1 or slug in taken:
                slug = f"{slug}_{agent.mark}"
            agent.slug = free_name(slug, taken)  # the same agent again

    def _name_tools(self) -> None:
        tools: dict[str, SkillTool] = {}
        only_named = sum(not each.is_found for each in self._listed) == 1
        agents = sorted(self.all, key=lambda each: each.is_found)
        offered = [
            (agent, skill)
            for agent in agents
            for skill in skills_on(agent.reference, _card(agent), {})
        ]
        for agent, skill in offered:
            is_alone = only_named and not agent.is_found
            wanted = skill.name if is_alone else tool_name(f"{agent.slug}_{skill.skill.id}")
            there = tools.get(wanted) or self.tools.get(wanted)
            if there is not None and there.agent is not agent:
                wanted = f"{wanted[: NAME_LENGTH - MARK_LENGTH - 1]}_{agent.mark}"
            name = free_name(wanted, tools.keys() | self.reserved)
            if len(tools) >= MOST_TOOLS:
                log.warning("there are more than %d skills; the rest are left out", MOST_TOOLS)
                break
            tool = SkillTool(agent, skill, name)
            if problem := schema_problem(tool.described):
                unusable = agent.slug, skill.skill.id
                if unusable not in self._unusable:
                    log.warning(
                        "%s of %s cannot be a tool: %s", skill.skill.id, agent.slug, problem
                    )
                self._unusable.add(unusable)
                continue
            tools[name] = tool
        self.tools = tools

    @property
    def all(self) -> list[BridgedAgent]:
        """The agents with a card."""
        return [each for each in self._listed if each.card is not None]

    def of(self, slug: str) -> BridgedAgent | None:
        """Return the agent with a slug."""
        return next((each for each in self.all if each.slug == slug), self._asked.get(slug))

    def asked(self, found: FoundAgent) -> BridgedAgent:
        """Return a found agent that can be called without being a tool."""
        slug = f"found-{hashlib.sha256(found.identifier.encode()).hexdigest()[:12]}"
        agent = self._asked[slug] = self._asked.get(slug) or BridgedAgent(
            found, is_found=True, slug=slug
        )
        return agent

    @asynccontextmanager
    async def connected(
        self, agent: BridgedAgent, credentials: Mapping[str, str]
    ) -> AsyncIterator[RemoteAgent]:
        """Connect to an agent, with the caller's credentials instead of the bridge's.

        Errors of the connection and of the agent become ``AgentFailed``.
        """
        options = self._options_for(agent)
        if credentials and not agent.is_found:
            options |= {"auth": False, "bearer": None, "api_key": None, **credentials}
        try:
            shared = await self._connections.acquire(agent.reference, options)
            try:
                yield shared.agent
            finally:
                self._connections.release(shared)
        except (A2AError, ClientError, ValueError) as error:  # such as nothing to send
            name = agent.card.name if agent.card else agent.slug
            raise AgentFailed(types.INTERNAL_ERROR, f"{name}: {error}") from error

    def _options_for(self, agent: BridgedAgent) -> dict[str, Any]:
        if agent.is_found:
            return {"auth": False, "trust": self._options.get("trust")}
        return dict(self._options)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connections.aclose()


def _card(agent: BridgedAgent) -> AgentCard:
    assert agent.card is not None
    return agent.card


def _address(reference: Any, card: AgentCard) -> str:
    """Return a text that distinguishes an agent from others of the same name."""
    if isinstance(reference, FoundAgent):
        return f"{reference.identifier} {reference.card_url}"
    if isinstance(reference, str):
        scheme, _, rest = reference.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"  # without the password
    return card.supported_interfaces[0].url if card.supported_interfaces else card.name


def _mark(address: str) -> str:
    digest = base64.b32encode(hashlib.sha256(address.encode()).digest()).decode()
    return digest[:MARK_LENGTH].lower()


async def _open(reference: Any, **options: Any) -> RemoteAgent:
    return await connect(reference, **options)
