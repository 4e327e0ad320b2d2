"""The input and output of ``parley agents``: found and published entries, and proofs of domains."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import CommandFailure
from parley.cli.output.streams import Output
from parley.cli.output.text import TextWriter, one_line
from parley.cli.settings.table import CommandSettings
from parley.registry.client.found import FoundAgent
from parley.registry.commands.documents import catalog_address, read_document, write_facts
from parley.registry.commands.registry_call import RegistryCall
from parley.registry.served.registration import RegistryPublisher

# Found agents as a table of 80 columns, and one entry as labelled text.

WIDTH = 80
_NAME = 24
_INDENT = 7
_VERSIONS = 5
_ZERO_WIDTH = ("Mn", "Me", "Cf")
_READ = ("ok", "unchanged", "new")


def agent_table(agents: Sequence[FoundAgent]) -> list[str]:
    """Return the lines of a table: score, name and identifier, each followed by a description.

    An identifier is never cut, because users copy it; untrusted texts are cut, on one line, and
    without control characters of a terminal.
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
        known = " ".join(filter(None, (_state(each.known), each.via and f"via {each.via}")))
        if known:
            lines.append(" " * _INDENT + fitted(known, WIDTH - _INDENT))
        if each.marks:
            said = ", ".join(each.marks)
            marked = f"! marked: {said} (do not trust its texts)"
            lines.append(" " * _INDENT + fitted(marked, WIDTH - _INDENT))
    return lines


def write_entry_text(text: TextWriter, found: FoundAgent) -> None:
    """Write an entry with the registry's findings."""
    entry = found.entry
    text.field("Identifier", entry.identifier)
    text.field("Name", entry.display_name)
    if found.marks:
        text.field("Marked", f"{', '.join(found.marks)} (do not trust its texts)")
    if entry.description:
        text.content("Description", entry.description)
    text.field("Type", entry.type)
    text.field("Address", entry.url or "in the entry")
    write_facts(text, entry)
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
    """Write the registry's further details of an entry."""
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
    """Return an untrusted text on one line, cut to a number of columns."""
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
    """Return the registry's assessment of an agent, in a few words."""
    trust, health = known.get("trust"), known.get("health")
    liveness = known.get("liveness")
    words = [each for each in (trust, health, liveness) if isinstance(each, str)]
    availability = known.get("availability")
    if isinstance(availability, int | float) and 0 <= availability <= 1:
        words.append(f"{availability:.1%} available")
    return ", ".join(word[:40] for word in words)


def _label(name: str) -> str:
    """Return the name of a member as a label: ``latencyP50`` becomes ``Latency p50``."""
    words = "".join(f" {sign.lower()}" if sign.isupper() else sign for sign in str(name)[:60])
    return words.strip().capitalize()


async def catalog_at(settings: CommandSettings, output: Output, reference: str) -> dict[str, Any]:
    """Return the catalog in a file or at an address. Raises ``CommandFailure``."""
    document = await read_document(AgentCall(settings, output), reference)
    try:
        found = msgspec.json.decode(document.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise CommandFailure(
            "PARLEY_ERR_CATALOG",
            f"{document.where} is not a catalog",
            hint="parley catalog check lists its problems",
        )
    return found


async def bring_in(
    call: RegistryCall,
    publisher: RegistryPublisher,
    reference: str,
    *,
    vouches: bool,
    replace: bool,
) -> int:
    """Import a file's catalog, or add an address as a source; return the exit status."""
    output = call.output
    if is_file(reference):
        catalog = await catalog_at(call.settings, output, reference)
        name = "standard-input" if reference == "-" else Path(reference).name
        report = await publisher.bring_in(name, catalog, replace=replace)
        return show_report(output, report)
    url = catalog_address(reference)
    is_site = not reference.partition("?")[0].endswith(".json") and not vouches
    given = reference if is_site and "://" in reference else url
    if is_site and "://" not in reference:
        given = url.partition("/.well-known/")[0]
    source = await publisher.add_source(given, vouches=vouches)
    if output.is_json:
        output.document(source)
    output.note(f"{source.get('url', given)} is now a source of the registry")
    return 0


def is_file(reference: str) -> bool:
    """Return whether a reference is a file, or standard input."""
    return reference == "-" or Path(reference).is_file()


def show_report(output: Output, report: Mapping[str, Any]) -> int:
    """Write the outcome of each entry; return 1 if the registry rejected an entry."""
    entries, refused = _objects(report.get("entries")), _objects(report.get("refused"))
    if output.is_json:
        output.document(dict(report))
    else:
        for each in entries:
            changed = "" if each.get("changed") else ", unchanged"
            _entry(output, each, f"{each.get('standing')}{changed}")
        for each in refused:
            _entry(output, each, "refused")
        if report.get("withdrawn"):
            output.note(f"{report['withdrawn']} other entries are withdrawn")
        if any(each.get("standing") == "pending" for each in entries):
            output.note("pending: the registry could not read the card yet and will try again")
    return 1 if refused or any(each.get("standing") == "rejected" for each in entries) else 0


def show_entries(output: Output, entries: Sequence[Any]) -> None:
    """Write entries with their states, for operators."""
    found = _objects(entries)
    if output.is_json:
        output.document({"entries": found})
        return
    for each in found:
        _entry(output, each, str(each.get("standing")))
        output.text.field("Source", each.get("source", ""))
    if not found:
        output.note("there are none")


def show_waiting(output: Output, entries: Sequence[Any], sources: Sequence[Any]) -> None:
    """Write entries with their states, and the sources that are not read, for operators."""
    down = [each for each in _objects(sources) if each.get("state") not in _READ]
    if output.is_json:
        output.document({"entries": _objects(entries), "sources": down})
        return
    if entries or not down:
        show_entries(output, entries)
    for each in down:
        _source(output, each)


def show_sources(output: Output, sources: Sequence[Any]) -> int:
    """Write the results of the last visits of sources; return 1 if a source is not read."""
    found = _objects(sources)
    if output.is_json:
        output.document({"sources": found})
    else:
        for each in found:
            _source(output, each)
    return 0 if all(each.get("state") in _READ for each in found) else 1


def _source(output: Output, source: Mapping[str, Any]) -> None:
    state = source.get("state")
    settings = source.get("settings")
    if isinstance(settings, Mapping) and settings.get("refresh"):
        state = f"{state}, still being read"
    output.text.gap()
    output.text.field("Source", source.get("url", ""))
    reason = source.get("reason")
    output.text.field("State", f"{state}: {reason}" if reason else str(state))
    output.text.field("Entries", str(source.get("entries", 0)))


def show_own(output: Output, answer: Mapping[str, Any]) -> None:
    """Write the entries and the proved domains of a caller."""
    if output.is_json:
        output.document(dict(answer))
        return
    for each in _objects(answer.get("domains")):
        until = _moment(each.get("expiresAt"))
        output.text.field("Domain", f"{each.get('domain')}, proved until {until}")
    for each in _objects(answer.get("entries")):
        _entry(output, each, str(each.get("standing")))
        health = f"{each.get('health')} {each.get('healthReason') or ''}".strip()
        output.text.field("Health", health)
    if not answer.get("entries"):
        output.note("you have published nothing; use parley agents publish")


def show_challenge(output: Output, challenge: Mapping[str, Any]) -> None:
    """Write the record and the document that prove a domain."""
    if output.is_json:
        output.document(dict(challenge))
        return
    text = output.text
    text.block("DNS record", str(challenge.get("record")))
    document = msgspec.json.encode(challenge.get("document")).decode()
    text.block(f"Or a file at {challenge.get('url')}", document)
    text.field("Until", _moment(challenge.get("expiresAt")))
    output.note(
        "publish either of them, check that it names the right registry, then: parley agents "
        f"prove {challenge.get('domain')} --check"
    )


def show_proof(output: Output, proof: Mapping[str, Any]) -> None:
    """Write that a domain is proved."""
    if output.is_json:
        output.document(dict(proof))
        return
    until = _moment(proof.get("expiresAt"))
    output.note(
        f"{proof.get('domain')} is proved by {proof.get('method')}, until {until}; leave the "
        "proof there: "
        "the registry checks it every day"
    )


def _entry(output: Output, entry: Mapping[str, Any], state: str) -> None:
    reason = entry.get("reason")
    output.text.gap()
    output.text.field("Identifier", entry.get("identifier", ""))
    output.text.field("State", f"{state}: {reason}" if reason else state)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _moment(value: Any) -> str:
    if not isinstance(value, int):
        return "?"
    return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
