"""Agents that were found, as a table of 80 columns, and one entry as labelled text."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from parley.cli.output.text import TextWriter, one_line
from parley.client.registry.found import FoundAgent
from parley.model.catalog.entries import CatalogEntry

WIDTH = 80
_NAME = 24
_INDENT = 7
_VERSIONS = 5
_ZERO_WIDTH = ("Mn", "Me", "Cf")


def agent_table(agents: Sequence[FoundAgent]) -> list[str]:
    """Return the lines of a table: score, name and identifier, and below them what it does.

    An identifier is never cut, because it is copied; texts of others are cut, on one line, and have
    no character that a terminal obeys.
    """
    named = [fitted(each.name, _NAME) for each in agents]
    width = max((_columns(name) for name in named), default=0)
    width = max(width, len("name"))
    lines = [f"score  {'name'.ljust(width)}  identifier"]
    for each, name in zip(agents, named, strict=True):
        padded = name + " " * (width - _columns(name))
        lines.append(f"{each.score:5d}  {padded}  {one_line(each.identifier)}")
        if each.description.strip():
            lines.append(" " * _INDENT + fitted(each.description, WIDTH - _INDENT))
        known = " ".join(filter(None, (_state(each.known), _origin(each))))
        if known:
            lines.append(" " * _INDENT + fitted(known, WIDTH - _INDENT))
        if each.marks:
            said = ", ".join(each.marks)
            marked = f"! marked: {said} (its texts are not to be trusted)"
            lines.append(" " * _INDENT + fitted(marked, WIDTH - _INDENT))
    return lines


def write_entry_text(text: TextWriter, found: FoundAgent) -> None:
    """Write an entry with what the registry knows of it."""
    entry = found.entry
    text.field("Identifier", entry.identifier)
    text.field("Name", entry.display_name)
    if found.marks:
        text.field("Marked", f"{', '.join(found.marks)} (its texts are not to be trusted)")
    if entry.description:
        text.content("Description", entry.description)
    text.field("Type", entry.type)
    text.field("Address", entry.url or "in the entry")
    for label, value in _facts(entry):
        if value:
            text.field(label, value)
    for query in entry.representative_queries:
        text.field("Query", query)
    manifest = entry.trust_manifest
    if manifest is not None:
        signed = "signed" if manifest.signature else "not signed"
        text.field("Identity", f"{manifest.identity} ({signed}, not verified here)")
    if found.via:
        text.field("Via", found.via)
    for name, value in found.known.items():
        if name not in ("marks", "via") and isinstance(value, str | int | float):
            text.field(_label(name), value)
    _write_details(text, found.details, known=found.known)
    if found.source:
        text.field("Source", found.source)


def _write_details(
    text: TextWriter, details: Mapping[str, Any], *, known: Mapping[str, Any]
) -> None:
    """Write what a registry says beside an entry, as far as it is not said already."""
    for name, value in details.items():
        if isinstance(value, str | int | float) and name not in known and value != "":
            text.field(_label(name), value)
    health = details.get("health")
    for name, value in health.items() if isinstance(health, Mapping) else ():
        if isinstance(value, str | int | float) and name not in known:
            text.field(_label(name), f"{value} ms" if name.startswith("latency") else value)
    versions = details.get("versions")
    for each in versions[:_VERSIONS] if isinstance(versions, list) else ():
        if isinstance(each, Mapping):
            said = [each.get(name) for name in ("version", "seenAt", "digest")]
            text.field("Card version", " ".join(str(one)[:80] for one in said if one))


def fitted(text: str, width: int) -> str:
    """Return a text of others on one line, cut to a number of columns."""
    line = one_line(text[: 8 * width])
    if _columns(line) <= width:
        return line
    cut, used = "", 0
    for sign in line:
        used += _columns(sign)
        if used > width - 3:
            break
        cut += sign
    return f"{cut.rstrip()}..."


def _columns(text: str) -> int:
    """Return how many columns a terminal needs for a text."""
    return sum(
        0
        if unicodedata.category(sign) in _ZERO_WIDTH
        else 2
        if unicodedata.east_asian_width(sign) in "WF"
        else 1
        for sign in text
    )


def _state(known: Mapping[str, Any]) -> str:
    """Return what a registry says of an agent, in a few words."""
    trust, health = known.get("trust"), known.get("health")
    liveness = known.get("liveness")
    words = [each for each in (trust, health, liveness) if isinstance(each, str)]
    availability = known.get("availability")
    if isinstance(availability, int | float) and 0 <= availability <= 1:
        words.append(f"{availability:.1%} available")
    return ", ".join(word[:40] for word in words)


def _origin(found: FoundAgent) -> str:
    return f"via {found.via}" if found.via else ""


def _facts(entry: CatalogEntry) -> list[tuple[str, str]]:
    return [
        ("Version", entry.version),
        ("Updated", entry.updated_at),
        ("Tags", ", ".join(entry.tags)),
        ("Capabilities", ", ".join(entry.capabilities)),
    ]


def _label(name: str) -> str:
    """Return the name of a member as a label: ``latencyP50`` becomes ``Latency p50``."""
    words = "".join(f" {sign.lower()}" if sign.isupper() else sign for sign in str(name)[:60])
    return words.strip().capitalize()
