"""Cards of the envelope protocol: who an agent is, what it can do, where, and under what limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, to_builtins

from parley.envelope.declared import MAX_WINDOWS, MaintenanceWindow, check_window, window_of
from parley.envelope.messages import Count
from parley.envelope.syntax import MAX_DEPTH, parse
from parley.model.errors import A2AError, FieldViolation, InvalidParamsError, InvalidRequestError
from parley.model.ids import RIGHT_NAME, may_be_name
from parley.model.struct import A2AStruct, NonEmpty, Timestamp, encode
from parley.wire.json import protojson
from parley.wire.json.tolerance import logging_problems, report

MAX_CARD_BYTES = 1024 * 1024
MAX_CAPABILITIES = 1000

Share = Annotated[float, Meta(ge=0, le=1)]


class CardAgentInfo(A2AStruct, frozen=True, kw_only=True):
    """Who an agent is. ``id`` is the ``agentId`` of its messages."""

    id: NonEmpty
    name: str = ""
    type: str = ""
    version: str = ""
    description: str = ""
    vendor: str = ""
    license: str = ""


class CardPerformance(A2AStruct, frozen=True, kw_only=True):
    """How fast a capability is, in ms, how much it takes at once, and how often it succeeds."""

    average_response_time: Count | None = None
    max_concurrent_requests: Count | None = None
    reliability: Share | None = None


class MeasuredPerformance(A2AStruct, frozen=True, kw_only=True):
    """What was measured of a capability, of the last ``requests`` until ``measured_at``."""

    average_response_time: Count | None = None
    reliability: Share | None = None
    requests: Count | None = None
    measured_at: Timestamp | None = None


class CardCapability(A2AStruct, frozen=True, kw_only=True):
    """An action that the agent takes, by its ``name``, with the JSON Schemas of both ends.

    ``performance`` is what the author says, ``measured`` what the server has measured.
    """

    name: NonEmpty
    display_name: str = ""
    description: str = ""
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    performance: CardPerformance | None = None
    measured: MeasuredPerformance | None = None


class CardEndpoints(A2AStruct, frozen=True, kw_only=True):
    """Where the agent is: a WebSocket, an address for POST, and one that says whether it lives."""

    primary: str = ""
    backup: str = ""
    health_check: str = ""


class CardSecurity(A2AStruct, frozen=True, kw_only=True):
    """What callers need. ``auth_methods`` are such as ``bearer-token`` and ``mutual-tls``."""

    auth_methods: tuple[str, ...] = ()
    required_permissions: tuple[str, ...] = ()
    data_classification: str = ""


class CardRateLimits(A2AStruct, frozen=True, kw_only=True):
    """The limits of one caller."""

    requests_per_minute: Count | None = None
    concurrent_connections: Count | None = None


class CardAvailability(A2AStruct, frozen=True, kw_only=True):
    """When the agent works: ``schedule`` is text for people, the windows are enforced.

    A window is read from a text such as ``Sunday 02:00-04:00 UTC`` too.
    """

    schedule: str = ""
    maintenance_windows: tuple[MaintenanceWindow, ...] = ()


class CardConstraints(A2AStruct, frozen=True, kw_only=True):
    """The limits that hold for callers."""

    rate_limits: CardRateLimits | None = None
    availability: CardAvailability | None = None


class CardMetadata(A2AStruct, frozen=True, kw_only=True):
    """Facts about the card. ``documentation`` is an address."""

    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None
    tags: tuple[str, ...] = ()
    documentation: str = ""


class EnvelopeCard(A2AStruct, frozen=True, kw_only=True):
    """The card of an agent in the envelope protocol."""

    agent_info: CardAgentInfo
    capabilities: tuple[CardCapability, ...] = ()
    endpoints: CardEndpoints = CardEndpoints()
    security: CardSecurity = CardSecurity()
    constraints: CardConstraints = CardConstraints()
    metadata: CardMetadata = CardMetadata()

    def capability(self, name: str) -> CardCapability | None:
        """Return the capability of a name."""
        return next((each for each in self.capabilities if each.name == name), None)


def read_card(
    data: bytes | str | Mapping[str, Any], *, max_bytes: int = MAX_CARD_BYTES
) -> EnvelopeCard:
    """Read a card tolerantly: members that are unknown or wrong are left out, and logged.

    Raises ``A2AError`` that names what is wrong for what has no ``agentInfo.id``, and for what is
    too large or ambiguous.
    """
    if isinstance(data, Mapping):
        try:
            data = encode(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"the card is no JSON: {error}") from None
    elif isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    members = parse(data, max_depth=MAX_DEPTH, max_bytes=max_bytes, what="the card")
    if not isinstance(members, dict):
        raise InvalidRequestError("a card is a JSON object")
    info = members.get("agentInfo")
    id = info.get("id") if isinstance(info, dict) else None
    if not isinstance(id, str) or not id or not may_be_name(id):
        _refuse("agentInfo.id", f"required: the agent's id, with {RIGHT_NAME}")
    listed = members.get("capabilities")
    if isinstance(listed, list) and len(listed) > MAX_CAPABILITIES:
        _refuse("capabilities", f"at most {MAX_CAPABILITIES} are read")
    with logging_problems(f"the envelope card of {ascii(id)[:100]}"):
        try:
            windows = windows_of(members)
        except InvalidParamsError as error:
            report((each.field, each.description) for each in error.violations)
        else:
            if windows:
                constraints = members["constraints"]
                listed = [to_builtins(each) for each in windows]
                availability = {**constraints["availability"], "maintenanceWindows": listed}
                constraints = {**constraints, "availability": availability}
                members = {**members, "constraints": constraints}
        return protojson.read_answer(members, EnvelopeCard)


def windows_of(members: Mapping[str, Any]) -> tuple[MaintenanceWindow, ...]:
    """Return the maintenance windows of a card, which may be texts.

    Raises ``InvalidParamsError`` that names a window that cannot be enforced.
    """
    given: Any = members
    for name in ("constraints", "availability", "maintenanceWindows"):
        given = given.get(name) if isinstance(given, Mapping) else None
    if given is None:
        return ()
    where = "constraints.availability.maintenanceWindows"
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) > MAX_WINDOWS:
        _refuse(where, f"expected a list of at most {MAX_WINDOWS} windows")
    windows = []
    for number, each in enumerate(given):
        try:
            if isinstance(each, str):
                windows.append(window_of(each))
            else:
                windows.append(protojson.read(each, MaintenanceWindow))
                check_window(windows[-1])
        except (A2AError, ValueError) as error:
            _refuse(f"{where}[{number}]", str(error))
    return tuple(windows)


def write_card(card: EnvelopeCard) -> bytes:
    """Return a card as JSON. What has its default is left out."""
    return encode(card)


def _refuse(field: str, description: str) -> None:
    violation = FieldViolation(field, description)
    error: A2AError = InvalidParamsError(f"{field}: {description}", violations=(violation,))
    raise error
