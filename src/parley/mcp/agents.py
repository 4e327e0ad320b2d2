"""The agents that a bridge offers: cards, skills as tools with their schemas, connections."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mcp import types

from parley.agent.remote.connections import Connections
from parley.agent.tools.tool import NAME_LENGTH, free_name, tool_name
from parley.client.errors import ClientError
from parley.client.remote_agent import RemoteAgent
from parley.extensions.declared import schemas_on
from parley.host.connecting import connect
from parley.llm.remote_skills import RemoteSkill
from parley.mcp.session import schema_problem
from parley.model.bounded import Bounded
from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.registry.client.found import FoundAgent

log = logging.getLogger("parley.mcp")

CARD_SECONDS = 300.0
"""After how many seconds the card of an agent is read again."""

MOST_TOOLS = 200
"""How many skills of all agents are tools."""

MOST_FOUND = 256
"""How many agents that searches found can be asked."""

LOAD_SECONDS = 20.0
"""How long an agent may take to answer with its card."""

MARK_LENGTH = 12
"""How many characters of the digest of an address are part of a name: 60 bits."""


class SkillTool:
    """A skill of an agent as a tool of MCP."""

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
        """The tool as hosts list it."""
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
    """An agent of a bridge. ``is_found``: a search found it, so it gets no credentials.

    ``slug`` names it in tools, resources and handles. ``mark`` tells it from others of its name.
    """

    def __init__(self, reference: Any, slug: str, *, is_found: bool, mark: str = "") -> None:
        self.reference = reference
        self.slug = slug
        self.mark = mark
        self.is_found = is_found
        self.card: AgentCard | None = None
        self.read_at = float("-inf")

    @property
    def uri(self) -> str:
        """The address of its card as a resource."""
        return f"agent-card://{self.slug}"


class BridgedAgents:
    """The agents of a bridge. Named agents are connected with ``options`` of ``parley.connect``.

    Tools are named after agents so that a host that trusts a tool never reaches another agent by
    its name. The name of an agent that a search found always has the mark of its address, so other
    results do not change the name. Two agents of the operator with one name have marks too. A name
    stays with its agent, whatever answers later.
    """

    def __init__(
        self, named: Sequence[Any], found: Sequence[FoundAgent], options: Mapping[str, Any]
    ) -> None:
        self._options = dict(options)
        self._connections = Connections(_open)
        self._named = [(each, False) for each in named] + [(each, True) for each in found]
        self._agents: dict[str, BridgedAgent] = {}
        self._asked: Bounded[str, BridgedAgent] = Bounded(MOST_FOUND)
        self._cards: dict[int, BridgedAgent] = {}
        self._loading = asyncio.Lock()
        self._unusable: set[tuple[str, str]] = set()
        self.tools: dict[str, SkillTool] = {}

    async def load(self, *, reserved: frozenset[str] = frozenset()) -> dict[int, str]:
        """Read the cards that are old; return the problems, by the place of the agent.

        An agent that does not answer keeps the card that it had.
        """
        async with self._loading:
            now = asyncio.get_running_loop().time()
            old = [
                place
                for place in range(len(self._named))
                if place not in self._cards or now - self._cards[place].read_at > CARD_SECONDS
            ]
            read = await asyncio.gather(*(self._read(each) for each in old))
            results = dict(zip(old, read, strict=True))
            problems = {place: card for place, card in results.items() if isinstance(card, str)}
            cards = {place: card for place, card in results.items() if not isinstance(card, str)}
            self._add({place: card for place, card in cards.items() if place not in self._cards})
            for place, card in cards.items():
                agent = self._cards[place]
                agent.card, agent.read_at = card, now
            if len(problems) < len(old) or not self.tools:
                self._name_tools(reserved)
            return problems

    async def _read(self, place: int) -> AgentCard | str:
        reference, is_found = self._named[place]
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                options = {"auth": False} if is_found else self._options
                async with connect(reference, **options) as remote:
                    return remote.card
        except (A2AError, ClientError, ValueError, TimeoutError) as error:
            problem = str(error) or f"no answer within {LOAD_SECONDS:g} s"
            log.warning("an agent cannot be offered: %s", problem)
            return problem

    def _add(self, cards: Mapping[int, AgentCard]) -> None:
        """Name the agents that answered for the first time."""
        plain = {place: tool_name(card.name.lower(), "skill")[:30] for place, card in cards.items()}
        counts = Counter(plain[place] for place in cards if not self._named[place][1])
        for place, card in cards.items():
            reference, is_found = self._named[place]
            slug, mark = plain[place], _mark(_address(reference, card))
            if is_found or counts[slug] > 1 or slug in self._agents:
                slug = f"{slug}_{mark}"
            slug = free_name(slug, self._agents)  # one agent, twice
            agent = BridgedAgent(reference, slug, is_found=is_found, mark=mark)
            self._agents[slug] = self._cards[place] = agent

    def _name_tools(self, reserved: frozenset[str]) -> None:
        tools: dict[str, SkillTool] = {}
        only_named = sum(not is_found for _, is_found in self._named) == 1
        for agent in sorted(self._cards.values(), key=lambda each: each.is_found):
            assert agent.card is not None
            is_alone = only_named and not agent.is_found
            schemas = schemas_on(agent.card)
            for skill in agent.card.skills:
                wanted = (
                    tool_name(skill.id, "skill")
                    if is_alone
                    else tool_name(f"{agent.slug}_{skill.id}")
                )
                there = tools.get(wanted) or self.tools.get(wanted)
                if there is not None and there.agent is not agent:
                    wanted = f"{wanted[: NAME_LENGTH - MARK_LENGTH - 1]}_{agent.mark}"
                name = free_name(wanted, tools.keys() | reserved)
                if len(tools) >= MOST_TOOLS:
                    log.warning("there are more than %d skills; the rest is no tool", MOST_TOOLS)
                    self.tools = tools
                    return
                remote = RemoteSkill(
                    agent.reference, agent.card, skill, schemas.get(skill.id), {}, name=name
                )
                tool = SkillTool(agent, remote, name)
                if problem := schema_problem(tool.described):
                    if (agent.slug, skill.id) not in self._unusable:
                        log.warning("%s of %s is no tool: %s", skill.id, agent.slug, problem)
                    self._unusable.add((agent.slug, skill.id))
                    continue
                tools[name] = tool
        self.tools = tools

    @property
    def all(self) -> list[BridgedAgent]:
        """The agents whose cards were read."""
        return [self._cards[place] for place in sorted(self._cards)]

    def of(self, slug: str) -> BridgedAgent | None:
        """Return the agent of a slug."""
        return self._agents.get(slug) or self._asked.get(slug)

    def asked(self, found: FoundAgent) -> BridgedAgent:
        """Return an agent that a search found, to be asked without being a tool."""
        slug = f"found-{hashlib.sha256(found.identifier.encode()).hexdigest()[:12]}"
        agent = self._asked[slug] = self._asked.get(slug) or BridgedAgent(
            found, slug, is_found=True
        )
        return agent

    @asynccontextmanager
    async def connected(
        self, agent: BridgedAgent, credentials: Mapping[str, str]
    ) -> AsyncIterator[RemoteAgent]:
        """Connect to an agent, with the caller's credentials in place of the bridge's."""
        options: dict[str, Any] = {"auth": False} if agent.is_found else dict(self._options)
        if credentials and not agent.is_found:
            options |= {"auth": False, "bearer": None, "api_key": None, **credentials}
        shared = await self._connections.acquire(agent.reference, options)
        try:
            yield shared.agent
        finally:
            self._connections.release(shared)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connections.aclose()


def _address(reference: Any, card: AgentCard) -> str:
    """Return a text that tells an agent from another agent of its name."""
    if isinstance(reference, FoundAgent):
        return f"{reference.identifier} {reference.card_url}"
    if isinstance(reference, str):
        scheme, _, rest = reference.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"  # a password may change
    return card.supported_interfaces[0].url if card.supported_interfaces else card.name


def _mark(address: str) -> str:
    digest = base64.b32encode(hashlib.sha256(address.encode()).digest()).decode()
    return digest[:MARK_LENGTH].lower()


async def _open(reference: Any, **options: Any) -> RemoteAgent:
    return await connect(reference, **options)


# -- schemas: objects, in tools and in forms --------------------------------------------------


WRAPPED_INPUT = "input"
"""The argument of a skill whose input is no object."""

WRAPPED_RESULT = "result"
"""The member of a result that is no object."""

WRAPPED_ANSWER = "answer"
"""The field of a form whose answer is no object, or a text."""

_PRIMITIVES = frozenset({"string", "number", "integer", "boolean"})
_KEPT = frozenset(
    {
        "type", "title", "description", "minLength", "maxLength", "format", "minimum", "maximum",
        "enum", "enumNames", "oneOf", "default", "items", "minItems", "maxItems", "pattern",
    }
)  # fmt: skip


def object_schema(schema: Mapping[str, Any], wrapped: str) -> tuple[dict[str, Any], bool]:
    """Return the schema as an object's, and whether the value had to become a member of it."""
    root = _resolved(schema)
    if root.get("type") == "object":
        return root, False
    definitions = root.pop("$defs", None)
    found: dict[str, Any] = {"type": "object", "properties": {wrapped: root}, "required": [wrapped]}
    if definitions:
        found["$defs"] = definitions
    return found, True


def form_schema(schema: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """Return the form for an answer of this schema, and how its fields are the answer.

    Forms have flat fields: text, numbers, yes or no, choices. ``fields``: they are the answer;
    ``value``: the only field is; ``json``: its text is the answer as JSON; ``text``: as it stands.
    """
    if schema is None:
        return _one_field({"type": "string", "title": "Answer"}), "text"
    root = _resolved(schema)
    properties = root.get("properties")
    if root.get("type") == "object" and isinstance(properties, dict) and properties:
        fields = {name: _field(each, root) for name, each in properties.items()}
        if all(fields.values()):
            required = [name for name in root.get("required", ()) if name in fields]
            return {"type": "object", "properties": fields, "required": required}, "fields"
    elif (field := _field(root, root)) is not None:
        return _one_field(field), "value"
    asked = {"type": "string", "title": "Answer", "description": "JSON that fits the question"}
    return _one_field(asked), "json"


def _one_field(field: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {WRAPPED_ANSWER: dict(field)},
        "required": [WRAPPED_ANSWER],
    }


def _field(schema: Any, root: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a field of a form, ``None`` if forms have no such field."""
    if not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        schema = _resolved({**schema, "$defs": root.get("$defs", {})})
    kind = schema.get("type")
    choices = schema.get("enum")
    if kind is None and isinstance(choices, list):
        kind = "string" if all(isinstance(each, str) for each in choices) else None
    if kind == "array":
        items = schema.get("items")
        if not (isinstance(items, dict) and ("enum" in items or "anyOf" in items)):
            return None
    elif kind not in _PRIMITIVES:
        return None
    kept = {name: value for name, value in schema.items() if name in _KEPT}
    return {**kept, "type": kind}


def _resolved(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose root is not a reference to one of its definitions."""
    root, definitions = dict(schema), schema.get("$defs")
    for _ in range(8):
        reference = root.get("$ref")
        if not isinstance(reference, str) or not isinstance(definitions, dict):
            break
        named = definitions.get(reference.removeprefix("#/$defs/"))
        if not isinstance(named, dict):
            break
        root = {**named, **{k: v for k, v in root.items() if k not in ("$ref", "$defs")}}
        root["$defs"] = definitions
    return root
