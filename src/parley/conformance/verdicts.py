"""Requirements with links to the specification, checks of servers, and their verdicts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

LATEST_TEXT = "https://a2a-protocol.org/v1.0.0/specification/"
OLD_TEXT = "https://a2a-protocol.org/v0.3.0/specification/"

_LATEST = {
    "3.1.1": "311-send-message",
    "3.1.2": "312-send-streaming-message",
    "3.1.3": "313-get-task",
    "3.1.4": "314-list-tasks",
    "3.1.5": "315-cancel-task",
    "3.1.6": "316-subscribe-to-task",
    "3.1.7": "317-create-push-notification-config",
    "3.1.9": "319-list-push-notification-configs",
    "3.1.10": "3110-delete-push-notification-config",
    "3.1.11": "3111-get-extended-agent-card",
    "3.2.2": "322-sendmessageconfiguration",
    "3.2.4": "324-history-length-semantics",
    "3.2.6": "326-service-parameters",
    "3.3.1": "331-idempotency",
    "3.3.2": "332-error-handling",
    "3.3.4": "334-capability-validation",
    "3.4.1": "341-context-identifier-semantics",
    "3.4.2": "342-task-identifier-semantics",
    "3.4.3": "343-multi-turn-conversation-patterns",
    "3.5.2": "352-streaming-event-delivery",
    "3.5.3": "353-push-notification-delivery",
    "3.6": "36-versioning",
    "3.6.1": "361-client-responsibilities",
    "3.6.2": "362-server-responsibilities",
    "3.7": "37-messages-and-artifacts",
    "4.1.1": "411-task",
    "4.1.3": "413-taskstate",
    "4.1.4": "414-message",
    "4.1.6": "416-part",
    "4.1.7": "417-artifact",
    "4.2.2": "422-taskartifactupdateevent",
    "4.4.1": "441-agentcard",
    "4.4.5": "445-agentskill",
    "4.4.6": "446-agentinterface",
    "4.6.1": "461-extension-declaration",
    "4.6.3": "463-extension-versioning-and-compatibility",
    "5.2": "52-protocol-selection-and-negotiation",
    "5.4": "54-error-code-mappings",
    "5.5": "55-json-field-naming-convention",
    "5.6.1": "561-timestamps",
    "5.7": "57-field-presence-and-optionality",
    "7.1": "71-protocol-security",
    "7.3": "73-client-authentication-process",
    "7.4": "74-server-authentication-responsibilities",
    "8.2": "82-discovery-mechanisms",
    "8.3.1": "831-supported-interfaces-declaration",
    "8.3.2": "832-client-protocol-selection",
    "8.6.1": "861-server-requirements",
    "9.1": "91-protocol-requirements",
    "9.3": "93-base-request-structure",
    "9.4.2": "942-sendstreamingmessage",
    "9.5": "95-error-handling",
    "10.6": "106-error-handling",
    "11.1": "111-protocol-requirements",
    "11.3": "113-url-patterns-and-http-methods",
    "11.6": "116-error-handling",
    "11.7": "117-streaming",
}
_OLD = {
    "3.2.2": "322-grpc-transport",
    "3.2.3": "323-httpjsonrest-transport",
    "3.3.1": "331-json-rpc-20-streaming",
    "3.3.2": "332-grpc-streaming",
    "3.3.3": "333-httpjsonrest-streaming",
    "3.5.3": "353-httpjsonrest-method-naming",
    "5.3": "53-recommended-location",
    "5.5": "55-agentcard-object-structure",
    "5.6.1": "561-main-url-and-preferred-transport",
    "6.1": "61-task-object",
    "6.3": "63-taskstate-enum",
    "6.4": "64-message-object",
    "6.5": "65-part-union-type",
    "7.1": "71-messagesend",
    "7.1.1": "711-messagesendparams-object",
    "7.2": "72-messagestream",
    "7.2.2": "722-taskstatusupdateevent-object",
    "7.3": "73-tasksget",
    "7.4": "74-taskscancel",
    "7.5": "75-taskspushnotificationconfigset",
    "7.8": "78-taskspushnotificationconfigdelete",
    "7.9": "79-tasksresubscribe",
    "6.7": "67-artifact-object",
    "6.11": "611-json-rpc-structures",
    "8.1": "81-standard-json-rpc-errors",
    "8.2": "82-a2a-specific-errors",
}
_SAME_IN_OLD = {
    "3.1.1": "7.1",
    "3.1.2": "7.2",
    "3.1.3": "7.3",
    "3.1.5": "7.4",
    "3.1.6": "7.9",
    "3.1.7": "7.5",
    "3.1.10": "7.8",
    "3.2.4": "7.3",
    "3.4.1": "6.1",
    "3.4.2": "6.1",
    "3.2.2": "7.1.1",
    "3.5.2": "7.2",
    "4.1.1": "6.1",
    "4.1.4": "6.4",
    "4.1.6": "6.5",
    "4.1.7": "6.7",
    "5.4": "8.2",
    "9.3": "6.11",
    "9.4.2": "3.3.1",
    "9.5": "8.1",
}
OLD_MARK = "0.3:"
"""The prefix of sections of version 0.3; sections without it belong to 1.0."""


def in_version(section: str, version: str) -> str:
    """Return the section of a version with the same rule, or the given section."""
    if version == "0.3" and section in _SAME_IN_OLD:
        return OLD_MARK + _SAME_IN_OLD[section]
    return section


def link(section: str) -> str:
    """Return the address of a section. Raises ``KeyError`` for an unknown section."""
    if section.startswith(OLD_MARK):
        return f"{OLD_TEXT}#{_OLD[section.removeprefix(OLD_MARK)]}"
    return f"{LATEST_TEXT}#{_LATEST[section]}"


def shown(section: str) -> str:
    """Return a section as reports name it."""
    if section.startswith(OLD_MARK):
        return f"0.3 §{section.removeprefix(OLD_MARK)}"
    return f"§{section}"


Level = Literal["MUST", "SHOULD", "MAY"]
Outcome = Literal["passed", "failed", "noted", "skipped"]
"""``noted`` is an unmet MAY: the specification leaves the behaviour to the server."""


class ConformanceViolation(Exception):
    """A requirement is not met; the text says what the server did, and what would be right."""


class NotApplicable(Exception):
    """A requirement cannot be tested here; the text says why, and how it could be."""


def fail_if(broken: object, what: str) -> None:
    """Raise ``ConformanceViolation`` if a requirement is broken."""
    if broken:
        raise ConformanceViolation(what)


class ConformanceRequirement(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement of the specification, as reports name it."""

    id: str
    level: Level
    section: str
    title: str

    @property
    def link(self) -> str:
        """The address of the section."""
        return link(self.section)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a requirement at one place: an interface, a scenario, or the card.

    ``reason`` is why it failed or was skipped; ``evidence`` the last exchange before a failure.
    """

    requirement: ConformanceRequirement
    where: str
    outcome: Outcome
    reason: str = ""
    evidence: str = ""

    @property
    def breaks(self) -> bool:
        """Return whether a MUST is not met."""
        return self.outcome == "failed" and self.requirement.level == "MUST"


def chosen(id: str, only: tuple[str, ...], skip: tuple[str, ...]) -> bool:
    """Return whether a check takes part. ``only`` and ``skip`` are ids or id prefixes."""
    wanted = not only or any(id.upper().startswith(each.upper()) for each in only)
    return wanted and not any(id.upper().startswith(each.upper()) for each in skip)


NEW = ("1.0",)
OLD = ("0.3",)
ALL_VERSIONS = ("1.0", "0.3")
RPC = ("JSONRPC",)
REST = ("HTTP+JSON",)
ALL_BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
OVER_HTTP = ("JSONRPC", "HTTP+JSON")

Run = Callable[[Any], Awaitable[None]]
Scope = Literal["card", "interface"]


class ServerCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A check of servers. ``run`` raises ``Violation`` or ``NotApplicable``, or returns.

    A check of the card receives a ``CardProbe``, once; a check of interfaces receives a ``Probe``
    for each interface that speaks one of ``bindings`` and ``versions``.
    """

    requirement: ConformanceRequirement
    run: Run
    scope: Scope = "interface"
    versions: tuple[str, ...] = ALL_VERSIONS
    bindings: tuple[str, ...] = ALL_BINDINGS


class Checks:
    """The checks of one module, in order."""

    def __init__(self, scope: Scope = "interface") -> None:
        self.all: list[ServerCheck] = []
        self._scope: Scope = scope

    def __call__(
        self,
        id: str,
        level: Level,
        section: str,
        title: str,
        *,
        versions: tuple[str, ...] = ALL_VERSIONS,
        bindings: tuple[str, ...] = ALL_BINDINGS,
    ) -> Callable[[Run], Run]:
        """Add the function below as a check."""

        def added(run: Run) -> Run:
            requirement = ConformanceRequirement(id=id, level=level, section=section, title=title)
            self.all.append(
                ServerCheck(
                    requirement=requirement,
                    run=run,
                    scope=self._scope,
                    versions=versions,
                    bindings=bindings,
                )
            )
            return run

        return added
