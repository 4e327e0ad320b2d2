"""A conformance run against a server: its card, then every interface that this machine can call."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from parley.client.auth.authorizer import Authorizer
from parley.client.auth.credentials import Credential, Credentials
from parley.client.bindings.binding import canonical, is_supported
from parley.client.bindings.http import redacted
from parley.client.card.resolver import CardResolver, Reference, ResolvedCard, first_origin
from parley.client.errors import CardInvalid, ClientError
from parley.client.origin import Origin
from parley.conformance import (
    card_checks,
    error_checks,
    message_checks,
    other_checks,
    stream_checks,
    task_checks,
)
from parley.conformance.card_checks import CardProbe
from parley.conformance.probe import LoggedTransport, Probe, ProbedTexts, named
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
from parley.model.distribution import install_command
from parley.model.errors import A2AError
from parley.wire import versions

CHECKS: tuple[ServerCheck, ...] = (
    *card_checks.check.all,
    *message_checks.check.all,
    *task_checks.check.all,
    *stream_checks.check.all,
    *error_checks.check.all,
    *other_checks.check.all,
)
"""All checks of servers, in the order of a run."""

_REACHED = ConformanceRequirement(
    id="IFACE-1",
    level="MUST",
    section="8.3.1",
    title="The agent answers at every interface of its card",
)


async def run_server(
    reference: Reference,
    *,
    texts: ProbedTexts | None = None,
    credentials: Credentials | None = None,
    auth: Sequence[Credential] | None = (),
    http: LoggedTransport | None = None,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    bindings: tuple[str, ...] = (),
    protocol_versions: tuple[str, ...] = (),
    patience: float = 15.0,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> ConformanceReport:
    """Test a server against the specification, and return the report.

    ``reference`` leads to the agent's card, as for ``connect``. ``texts`` are the messages to send.
    ``credentials`` go to the origin of the reference, whatever the card says, and so does ``auth``:
    with ``None`` it is the saved login for that origin. ``only`` and ``skip`` choose checks by id
    or id prefix; ``bindings`` and ``protocol_versions`` choose interfaces. ``patience`` is the time
    limit of a response, in seconds. Raises ``ClientError`` if there is no agent card.
    """
    verdicts: list[Verdict] = []

    def add(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if on_verdict is not None:
            on_verdict(verdict)

    async with AsyncExitStack() as stack:
        if http is None:
            http = await stack.enter_async_context(LoggedTransport())
        shown = redacted(reference) if isinstance(reference, str) else "the given card"
        authorizer = Authorizer(credentials or Credentials(), auth, http=http, address=shown)
        http.certificate_for = authorizer.may_see_certificate
        stack.push_async_callback(authorizer.aclose)
        resolved, card_probe = await _card(http, reference, authorizer, patience)
        for check in CHECKS:
            if check.scope == "card" and chosen(check.requirement.id, only, skip):
                add(await _tried(check, card_probe, "card", http))
        found: set[str] = set()
        for interface in resolved.card.supported_interfaces if resolved else ():
            binding = canonical(interface.protocol_binding)
            version = versions.supported_for(interface.protocol_version)
            if binding not in ALL_BINDINGS or version is None:
                continue
            if bindings and binding not in bindings:
                continue
            if protocol_versions and version not in protocol_versions:
                continue
            found |= {binding, version}
            where = f"{binding} {version}"
            origin, reason = _origin(interface.url, http), ""
            if not is_supported(binding):
                reason = f"gRPC is not installed here: {install_command('grpc')}"
            elif not authorizer.credentials.allows(origin):
                reason = (
                    f"the credentials are not for its origin; --trust-origin {origin} allows it"
                )
            if reason:
                add(Verdict(requirement=_REACHED, where=where, outcome="skipped", reason=reason))
                continue
            assert resolved is not None
            probe = Probe(
                *(http, resolved.card, interface, binding, version),
                texts=texts or ProbedTexts(),
                patience=patience,
                parameters=authorizer.credentials.agent_parameters(origin, resolved.card),
                auth=authorizer.at(origin),
            )
            await _interface(probe, http, add, lambda id: chosen(id, only, skip))
        for asked in (*bindings, *protocol_versions) if resolved else ():
            if asked not in found:
                reason = "the card has no such interface"
                add(Verdict(requirement=_REACHED, where=asked, outcome="skipped", reason=reason))
    return ConformanceReport(kind="server", subject=shown, verdicts=tuple(verdicts))


async def _card(
    http: LoggedTransport, reference: Reference, auth: Authorizer, patience: float
) -> tuple[ResolvedCard | None, CardProbe]:
    """Return the card, ``None`` if it cannot be read at all, and the subject of the
    card's checks.
    """
    resolver = CardResolver(http, credentials=auth.credentials, auth=auth, timeout=patience)
    resolved = None
    try:
        resolved = await resolver.resolve(reference)
        raw = resolved.raw
        origin = resolved.given_origin or first_origin(resolved.card)
        auth.for_card(resolved.bind(auth.credentials), lambda: resolved.card, origin)
        await auth.prepare()
    except CardInvalid as error:
        raw = error.raw
        if not raw:
            raise
    exchange = next((each for each in http.recent if each.body == raw), None)
    return resolved, CardProbe(http=http, exchange=exchange, members=json.loads(raw))


def _origin(url: str, http: LoggedTransport) -> Origin | None:
    try:
        return Origin.of_grpc(url, insecure=http.insecure)
    except ValueError:
        return None


async def _interface(
    probe: Probe,
    http: LoggedTransport,
    add: Callable[[Verdict], None],
    choose: Callable[[str], bool],
) -> None:
    where = probe.where
    try:
        if choose(_REACHED.id):
            reached = await _verdict(_REACHED, where, http, lambda: _reach(probe))
            add(reached)
            if reached.outcome == "failed":
                return
        for check in CHECKS:
            fits = probe.version in check.versions and probe.binding in check.bindings
            if check.scope == "interface" and fits and choose(check.requirement.id):
                add(await _tried(check, probe, where, http))
    finally:
        await probe.aclose()


async def _reach(probe: Probe) -> None:
    """Make a call without effect: any response of the protocol shows that the interface answers."""
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
    http.recent.clear()
    outcome: Outcome = "passed"
    reason = evidence = ""
    try:
        await run()
    except NotApplicable as error:
        outcome, reason = "skipped", str(error)
    except (ConformanceViolation, A2AError, ClientError) as error:
        is_ours = isinstance(error, ConformanceViolation)
        outcome = "noted" if requirement.level == "MAY" else "failed"
        reason = str(error) if is_ours else named(error)
    if outcome == "failed" and http.last is not None:
        evidence = str(http.last)
    return Verdict(
        requirement=requirement, where=where, outcome=outcome, reason=reason, evidence=evidence
    )
