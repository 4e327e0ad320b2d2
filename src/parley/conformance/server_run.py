"""A conformance run against a server: its card, then every interface that this machine can call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from parley.client.bindings.binding import canonical, is_supported
from parley.client.bindings.http import redacted
from parley.client.errors import ClientError
from parley.client.origin import Origin
from parley.conformance import card_checks, message_checks, other_checks, stream_checks, task_checks
from parley.conformance.card_checks import CardProbe
from parley.conformance.probe import LoggedTransport, Probe, ProbedTexts, WireExchange
from parley.conformance.report import ConformanceReport
from parley.conformance.verdicts import (
    ALL_BINDINGS,
    ConformanceRequirement,
    ConformanceViolation,
    NotApplicable,
    Outcome,
    ServerCheck,
    Verdict,
    chosen,
    in_version,
)
from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.wire import versions

CARD_PATH = "/.well-known/agent-card.json"
CHECKS: tuple[ServerCheck, ...] = (
    *card_checks.check.all,
    *message_checks.check.all,
    *task_checks.check.all,
    *stream_checks.check.all,
    *other_checks.check.all,
)
"""All checks of servers, in the order of a run."""

_REACHED = ConformanceRequirement(
    id="IFACE-1",
    level="MUST",
    section="8.3.1",
    title="The interfaces of the card are those that the agent has",
)


class CardNotRead(Exception):
    """There is no card to begin with."""


async def run_server(
    url: str,
    *,
    texts: ProbedTexts | None = None,
    headers: Mapping[str, str] | None = None,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    bindings: tuple[str, ...] = (),
    protocol_versions: tuple[str, ...] = (),
    patience: float = 15.0,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> ConformanceReport:
    """Try a server against the specification, and return what came of it.

    ``url`` is the agent's address, or that of its card. ``texts`` is what it is told. ``headers``
    go to the origin of ``url``, whatever the card says. ``only`` and ``skip`` choose checks by id,
    or how ids begin; ``bindings`` and ``protocol_versions`` choose interfaces.
    ``patience`` is how many seconds an answer may take. Raises ``CardNotRead`` where
    there is no agent card.
    """
    verdicts: list[Verdict] = []

    def add(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if on_verdict is not None:
            on_verdict(verdict)

    async with LoggedTransport() as http:
        probe = await _card(http, url, dict(headers or {}))
        for check in CHECKS:
            if check.scope == "card" and chosen(check.requirement.id, only, skip):
                add(await _tried(check, probe, "card", http))
        card = _read(probe.members)
        if card is None:
            return ConformanceReport(kind="server", subject=redacted(url), verdicts=tuple(verdicts))
        found: set[str] = set()
        for interface in card.supported_interfaces:
            binding = canonical(interface.protocol_binding)
            version = versions.supported_for(interface.protocol_version)
            if binding not in ALL_BINDINGS or version is None:
                continue
            if bindings and binding not in bindings:
                continue
            if protocol_versions and version not in protocol_versions:
                continue
            found |= {binding, version}
            is_there = _is_of(url, interface.url, binding)
            await _interface(
                *(http, card, interface, binding, version, add),
                headers=(headers or {}) if is_there else {},
                texts=texts or ProbedTexts(),
                patience=patience,
                choose=lambda id: chosen(id, only, skip),
            )
        for asked in (*bindings, *protocol_versions):
            if asked not in found:
                reason = "the card has no such interface"
                add(Verdict(requirement=_REACHED, where=asked, outcome="skipped", reason=reason))
    return ConformanceReport(kind="server", subject=redacted(url), verdicts=tuple(verdicts))


async def _interface(
    http: LoggedTransport,
    card: AgentCard,
    interface: Any,
    binding: str,
    version: str,
    add: Callable[[Verdict], None],
    *,
    headers: Mapping[str, str],
    texts: ProbedTexts,
    patience: float,
    choose: Callable[[str], bool],
) -> None:
    where = f"{binding} {version}"
    if not is_supported(binding):
        reason = "gRPC is not installed here: pip install 'parley-a2a[grpc]'"
        add(Verdict(requirement=_REACHED, where=where, outcome="skipped", reason=reason))
        return
    probe = Probe(
        *(http, card, interface, binding, version), headers=headers, texts=texts, patience=patience
    )
    try:
        if choose(_REACHED.id):
            reached = await _verdict(_REACHED, where, http, lambda: _reach(probe))
            add(reached)
            if reached.outcome == "failed":
                return
        for check in CHECKS:
            fits = version in check.versions and binding in check.bindings
            if check.scope == "interface" and fits and choose(check.requirement.id):
                add(await _tried(check, probe, where, http))
    finally:
        await probe.aclose()


def _is_of(url: str, interface: str, binding: str) -> bool:
    """Return whether an interface is where the run was sent to, so that it may have its headers."""
    try:
        given = Origin.of(url)
        if binding == "GRPC":
            return Origin.of_grpc(interface, insecure=True).host == given.host
        return Origin.of(interface) == given
    except ValueError:
        return False


async def _reach(probe: Probe) -> None:
    """Ask something that has no effect: any answer of the protocol will do."""
    said = await probe.get("is-anybody-there")
    if said.error is not None and not isinstance(said.error, A2AError):
        raise ConformanceViolation(
            f"{probe.interface.url} does not answer as its card says: {said.error}"
        )


async def _tried(check: ServerCheck, probe: Any, where: str, http: LoggedTransport) -> Verdict:
    version = getattr(probe, "version", "1.0")
    section = in_version(check.requirement.section, version)
    requirement = msgspec.structs.replace(check.requirement, section=section)
    return await _verdict(requirement, where, http, lambda: check.run(probe))


async def _verdict(
    requirement: ConformanceRequirement, where: str, http: LoggedTransport, run: Callable[[], Any]
) -> Verdict:
    http.last = None
    outcome: Outcome = "passed"
    reason = evidence = ""
    try:
        await run()
    except NotApplicable as error:
        outcome, reason = "skipped", str(error)
    except ConformanceViolation as error:
        outcome, reason = "failed", str(error)
    except (A2AError, ClientError) as error:
        outcome, reason = "failed", f"{type(error).__name__}: {error}"
    if outcome == "failed" and http.last is not None:
        evidence = str(http.last)
    return Verdict(
        requirement=requirement, where=where, outcome=outcome, reason=reason, evidence=evidence
    )


async def _card(http: LoggedTransport, url: str, headers: dict[str, str]) -> CardProbe:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CardNotRead(f"{url!r} is not an address of the form http://host:port")
    path = parts.path.rstrip("/")
    if path.endswith(".json"):
        places = [path]
    else:
        places = list(dict.fromkeys([f"{path}{CARD_PATH}", CARD_PATH]))
    first: WireExchange | None = None
    for place in places:
        address = parts._replace(path=place, fragment="").geturl()
        try:
            await http.send(
                "GET", address, {**headers, "Accept": "application/json"}, None, timeout=10
            )
        except ClientError as error:
            raise CardNotRead(f"there is no agent at {redacted(url)}: {error}") from None
        exchange = http.last
        assert exchange is not None
        first = first or exchange
        if exchange.status == 200 and isinstance(exchange.json, dict):
            members = exchange.json
            return CardProbe(
                http=http, url=address, headers=headers, exchange=exchange, members=members
            )
    assert first is not None
    raise CardNotRead(
        f"there is no agent card at {redacted(first.url)}: the answer is {first.status} "
        f"{first.media_type or 'without a content type'}"
    )


def _read(members: dict[str, Any]) -> AgentCard | None:
    try:
        return versions.read_card(json.loads(json.dumps(members)))
    except A2AError:
        return None  # what is wrong with it is in the verdicts on the card
