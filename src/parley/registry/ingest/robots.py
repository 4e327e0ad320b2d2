"""robots.txt (RFC 9309): what a site asks crawlers not to read, and its ``Agentmap`` lines."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

import msgspec

from parley.registry.ingest.limits import AGENT_NAME

MAX_RULES = 5_000
MAX_AGENTMAPS = 32
_MAX_PATTERN = 1024

_Rule = tuple[bool, str]
"""Whether a rule allows, and its pattern."""


class Robots(msgspec.Struct, frozen=True):
    """What a robots.txt says. ``own`` are the rules for our name, ``None`` if it has no group."""

    own: tuple[_Rule, ...] | None = None
    others: tuple[_Rule, ...] = ()
    agentmaps: tuple[str, ...] = ()

    def allows_page(self, url: str) -> bool:
        """Return whether a page may be read, by the rules for our name, or those for everybody."""
        return _allows(self.others if self.own is None else self.own, url)

    def allows_catalog(self, url: str) -> bool:
        """Return whether a catalog may be read: who publishes one means it for registries, so only
        rules for our name count.
        """
        return _allows(self.own or (), url)


NO_PAGES = Robots(others=((False, "/"),))
"""What counts while a robots.txt cannot be had (RFC 9309 §2.3.1.4)."""


def read_robots(body: bytes) -> Robots:
    """Return what a robots.txt says. What is not understood is left out."""
    groups: dict[str, list[_Rule]] = {}  # of the names that count here, and of no others
    agentmaps: list[str] = []
    names: list[str] = []
    in_rules, count = False, 0
    for line in body.decode("utf-8", "replace").lstrip("\ufeff").splitlines():
        name, separator, value = line.partition("#")[0].partition(":")
        name, value = name.strip().lower(), value.strip()
        if not separator:
            continue
        if name == "agentmap":
            # The value has a ':' of its own; a '#' in it would be a fragment.
            if value and len(agentmaps) < MAX_AGENTMAPS:
                agentmaps.append(value)
        elif name == "user-agent":
            names = [] if in_rules else names
            in_rules = False
            agent = value.lower().partition("/")[0].strip()
            if agent in (AGENT_NAME, "*") and agent not in names:
                names.append(agent)
                groups.setdefault(agent, [])
        elif name in ("allow", "disallow"):
            in_rules = True
            count += 1
            if value and count <= MAX_RULES and len(value) <= _MAX_PATTERN:
                for each in names:
                    groups[each].append((name == "allow", value))
    own = groups.get(AGENT_NAME)
    return Robots(None if own is None else tuple(own), tuple(groups.get("*", ())), tuple(agentmaps))


def _allows(rules: tuple[_Rule, ...], url: str) -> bool:
    """Return whether rules allow an address: the longest pattern wins, and allowing a draw."""
    parts = urlsplit(url)
    path = unquote(parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    best, allowed = -1, True
    for allows, pattern in rules:
        is_better = len(pattern) > best or (len(pattern) == best and allows)
        if is_better and _matches(unquote(pattern), path):
            best, allowed = len(pattern), allows
    return allowed


def _matches(pattern: str, path: str) -> bool:
    """Return whether a pattern (``*`` for anything, ``$`` for the end) matches a path.

    Parts are looked for from left to right: no pattern takes more than linear time each.
    """
    is_whole = pattern.endswith("$")
    first, *rest = re.split(r"\*+", pattern.removesuffix("$"))
    if not path.startswith(first):
        return False
    at = len(first)
    if not rest:
        return not is_whole or at == len(path)
    *middle, last = rest
    for part in middle:
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    if is_whole:
        return path.endswith(last) and len(path) - len(last) >= at
    return path.find(last, at) >= 0
