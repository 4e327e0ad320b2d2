"""What ``parley agents publish`` and its siblings read, and show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import CommandFailure
from parley.cli.output.streams import Output
from parley.client.registry.publishing import RegistryPublisher
from parley.registry.commands.documents import catalog_address, read_document

GOOD = ("listed", "shadowed")


async def catalog_at(call: AgentCall, reference: str) -> dict[str, Any]:
    """Return the catalog that a file or an address has. Raises ``CommandFailure``."""
    document = await read_document(call, reference)
    try:
        found = msgspec.json.decode(document.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise CommandFailure(
            "PARLEY_ERR_CATALOG",
            f"{document.where} is no catalog",
            hint="parley catalog check says what is wrong with it",
        )
    return found


async def bring_in(
    call: AgentCall,
    output: Output,
    publisher: RegistryPublisher,
    reference: str,
    *,
    vouches: bool,
    replace: bool,
) -> int:
    """Import a file's catalog, or add an address as a source; return the exit status."""
    if is_file(reference):
        catalog = await catalog_at(call, reference)
        name = "standard-input" if reference == "-" else Path(reference).name
        return show_report(output, await publisher.bring_in(name, catalog, replace=replace))
    url = catalog_address(reference)
    is_site = not reference.partition("?")[0].endswith(".json") and not vouches
    given = reference if is_site and "://" in reference else url
    if is_site and "://" not in reference:
        given = url.partition("/.well-known/")[0]
    source = await publisher.add_source(given, vouches=vouches)
    if output.is_json:
        output.document(source)
    output.note(f"{source.get('url', given)} is read from now on")
    return 0


def is_file(reference: str) -> bool:
    """Return whether a reference is a file, or standard input."""
    return reference == "-" or Path(reference).is_file()


def show_report(output: Output, report: Mapping[str, Any]) -> int:
    """Write what became of entries; return 1 if some were refused or rejected."""
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
            output.note(f"{report['withdrawn']} others are withdrawn")
        if any(each.get("standing") == "pending" for each in entries):
            output.note("pending: the registry could not read the card yet, and tries again")
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


def show_own(output: Output, answer: Mapping[str, Any]) -> None:
    """Write what a caller has published and proved."""
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
        output.note("nothing is published; parley agents publish does")


def show_challenge(output: Output, challenge: Mapping[str, Any]) -> None:
    """Write what has to be set to prove a domain."""
    if output.is_json:
        output.document(dict(challenge))
        return
    text = output.text
    text.block("DNS record", str(challenge.get("record")))
    document = msgspec.json.encode(challenge.get("document")).decode()
    text.block(f"Or a file at {challenge.get('url')}", document)
    text.field("Until", _moment(challenge.get("expiresAt")))
    output.note(
        "set one of them, make sure that it names the registry you mean, then: parley agents "
        f"prove {challenge.get('domain')} --check"
    )


def show_proof(output: Output, proof: Mapping[str, Any]) -> None:
    """Write that a domain is proved."""
    if output.is_json:
        output.document(dict(proof))
        return
    until = _moment(proof.get("expiresAt"))
    output.note(
        f"{proof.get('domain')} is proved by {proof.get('method')}, until {until}; leave it there: "
        "it is looked for every day"
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
