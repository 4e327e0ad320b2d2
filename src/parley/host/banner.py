"""The text that a started server prints: addresses of its agents, and commands that work."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from parley.engine.routing import fits
from parley.engine.skill import Skill
from parley.host.program import DEFAULT_ADDRESS, invocation
from parley.model.parts import Message, Part, Role
from parley.model.typed.schema import REF

if TYPE_CHECKING:
    from parley.agent.agent import Agent

LINE_WIDTH = 78
"""The longest command that fits on one line of most terminals."""

_DEEPEST = 8
_FORMATS = {
    "date": "2027-03-14",
    "date-time": "2027-03-14T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "PT1H",
    "email": "ada@example.com",
    "uri": "https://example.com",
    "uuid": "0193e4a2-7b1c-7000-8000-0123456789ab",
}


def banner(
    agents: Mapping[str, Agent],
    address: str,
    store: str,
    tenants: Mapping[str, Agent] = {},
    *,
    grpc: str = "",
    role: str = "both",
    publishes: bool = False,
    page: bool = True,
) -> str:
    """Return the text for a started server: the agents' addresses, and commands to try.

    ``page``: each agent has a page for people at its own address.
    """
    durability = (
        "gone when the server stops" if store.startswith("memory:") else "kept between runs"
    )
    last = f"Tasks are {durability} ({store}). Ctrl-C stops the server."
    lines: list[str] = []
    if role == "worker":
        names = {agent.key: agent.name for agent in (*agents.values(), *tenants.values())}
        lines = [f"{name}: turns are run here" for name in names.values()]
        return "\n".join([*lines, f"  health   {address.rstrip('/')}/health/ready", "", last])
    titled = [(path, agent, agent.name) for path, agent in agents.items()]
    titled += [(f"/{name}", agent, f"{agent.name} for {name}") for name, agent in tenants.items()]
    for path, agent, title in titled:
        base = address.rstrip("/") + path
        lines += [
            title,
            f"  address  {base}",
            *([f"  page     {base}/"] if page else ()),
            f"  card     {base}/.well-known/agent-card.json",
            *_login_line(agent, base),
            f"  try      {try_command(agent, base)}",
            "",
        ]
    if publishes:
        lines += [f"The catalog is at {address.rstrip('/')}/.well-known/ard.json", ""]
    if grpc:
        lines += [f"gRPC is at {grpc}", ""]
    if role == "api":
        lines += ["Turns are run by other processes, with --role worker or both.", ""]
    return "\n".join([*lines, last])


def write_banner(text: str) -> None:
    """Write the text to stdout, with unprintable characters escaped, unless stdout is closed.

    The command line writes with ``cli/output/streams.py`` instead.
    """
    shown = (
        each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in f"{text}\n"
    )
    with suppress(OSError, ValueError, AttributeError):  # closed, or no such character
        sys.stdout.write("".join(shown))
        sys.stdout.flush()


def _login_line(agent: Agent, base: str) -> list[str]:
    """Return the line on how to log in to an agent that requires credentials."""
    if agent.security is None or agent.security.is_open:
        return []
    return [f"  login    {shlex.join(invocation())} auth login {base}"]


def try_command(agent: Agent, base: str) -> str:
    """Return a command that works: it sends an example of a skill, or a sample of its input.

    The command is on one line if possible. If no message fits a skill, the command shows the card.
    """
    begin = shlex.join(invocation())
    location = "" if base == DEFAULT_ADDRESS else f" -a {base}"
    seen = [skill for skill in agent.skills.values() if skill.listing.is_public]
    seen.sort(key=lambda skill: not skill.default)
    commands = []
    for skill in seen:
        named = f" --skill {shlex.quote(skill.id)}" if len(agent.skills) > 1 else ""
        for text in (*skill.examples, _sample_text(skill)):
            message = Message(message_id="1", role=Role.USER, parts=(Part(text=text),))
            if text and fits(message, skill, agent.input_modes):
                commands.append(f"{begin} send{location}{named} {_quoted(text)}")
    short = (command for command in commands if len(command) < LINE_WIDTH)
    return next(short, commands[0] if commands else f"{begin} card get{location}")


def _quoted(text: str) -> str:
    return f'"{text}"' if not set(text) & set('"\\$`!') else shlex.quote(text)


def _sample_text(skill: Skill) -> str:
    """Return a message for a skill: a sample of its input as JSON if the input is typed."""
    schema = None if skill.inputs is None else skill.inputs.schema
    if schema is None:
        return "Hello"
    return msgspec.json.encode(sample_of(schema, schema.get("$defs", {}))).decode()


def sample_of(schema: Any, defs: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a small value of a JSON Schema. Patterns and combinations of schemas are ignored."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return sample_of(defs.get(reference.removeprefix(REF)), defs, depth + 1)
    for given in (schema.get("examples"), schema.get("enum")):
        if given:
            return given[0]
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    for either in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf")):
        if either:
            return sample_of(either[0], defs, depth + 1)
    kinds = schema.get("type")
    match kinds[0] if isinstance(kinds, list) else kinds:
        case "object":
            properties = schema.get("properties", {})
            wanted = schema.get("required") or list(properties)[:1]
            return {name: sample_of(properties.get(name), defs, depth + 1) for name in wanted}
        case "array":
            items = [*schema.get("prefixItems", ())]
            items += [schema.get("items")] * (max(1, schema.get("minItems", 0)) - len(items))
            return [sample_of(item, defs, depth + 1) for item in items[:100]]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "string":
            text = _FORMATS.get(schema.get("format", ""), "text")
            return text.ljust(min(schema.get("minLength", 0), 1000), "x")[: schema.get("maxLength")]
    return None


def _number(schema: Mapping[str, Any]) -> int | float:
    """Return a number within the bounds of a schema, 1 if possible."""
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    step = schema.get("multipleOf", 1)
    tried: list[int | float] = [1, step]
    for bound in (each for each in (low, high) if math.isfinite(each)):
        nearest = math.floor(bound / step) * step
        tried += [bound, nearest, nearest + step, nearest - step]
    if math.isfinite(low + high):
        tried.append((low + high) / 2)
    whole = schema.get("type") == "integer"
    for each in tried:
        is_within = low <= each <= high and each not in (
            schema.get("exclusiveMinimum"),
            schema.get("exclusiveMaximum"),
        )
        if is_within and not (whole and each % 1) and not ("multipleOf" in schema and each % step):
            return int(each) if whole else each
    return 1
