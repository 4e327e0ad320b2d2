"""The supported versions of the protocol, and their dialects (specification §3.6).

No other module knows which versions there are. A version's codecs are loaded at its first use.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, cast

from parley.model.cards import AgentCard
from parley.model.errors import FieldViolation, VersionNotSupportedError
from parley.model.struct import A2AStruct
from parley.wire.dialect import Dialect
from parley.wire.json import protojson
from parley.wire.json.tolerance import logging_problems

LATEST = "1.0"
SUPPORTED_VERSIONS = (LATEST, "0.3")
DEFAULT_VERSION = "0.3"
"""The version of a request that names none (§3.6.2)."""

EXTENSIONS_HEADERS = ("a2a-extensions", "x-a2a-extensions")
"""The headers that name extensions, in any version, in lower case."""

_PACKAGES = {LATEST: "parley.wire.v1_0", "0.3": "parley.wire.v0_3"}

# Only Major.Minor counts; a patch number is ignored (§3.6).
_VERSION = re.compile(r"(\d{1,4}\.\d{1,4})(?:\.\S*)?")

_loaded: dict[str, Dialect] = {}


def dialect(version: str) -> Dialect:
    """Return the dialect of one of ``SUPPORTED_VERSIONS``. Raises ``KeyError`` for others."""
    known = _loaded.get(version)
    if known is None:
        known = cast("Dialect", import_module(_PACKAGES[version]).DIALECT)
        _loaded[version] = known
    return known


def requested(version: str) -> str:
    """Return the version that a caller requests, as one of ``SUPPORTED_VERSIONS``, or empty.

    Raises ``VersionNotSupportedError`` that names the supported ones.
    """
    version = version.strip()
    if version in ("", LATEST):
        return version
    match = _VERSION.fullmatch(version)
    if match is not None and match[1] in SUPPORTED_VERSIONS:
        return match[1]
    raise VersionNotSupportedError(
        f"version {version[:40]!r} of the protocol is not spoken here; "
        f"send the header A2A-Version with one of {', '.join(SUPPORTED_VERSIONS)}",
        metadata={
            "requestedVersion": version[:40],
            "supportedVersions": ", ".join(SUPPORTED_VERSIONS),
        },
    )


def supported_for(version: str) -> str | None:
    """Return the supported version that fits a ``protocolVersion`` or a version header, if any.

    A later 1.x is served and called in 1.0, of which it is a superset, and 0.2, whose methods have
    the same names and members, in 0.3. Those of 0.1 are others.
    """
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        return LATEST if version.strip() == "1" else None
    if match[1] in SUPPORTED_VERSIONS:
        return match[1]
    if match[1] == "0.2":
        return "0.3"
    return LATEST if match[1].startswith("1.") else None


def write_card(card: AgentCard, version: str = "") -> bytes:
    """Write a card as JSON of a version, or, without one, as one document for all versions."""
    package = import_module(_PACKAGES[version] if version == LATEST else _PACKAGES["0.3"])
    write = package.write_card if version else package.write_merged_card
    return cast("bytes", write(card))


def card_schema(version: str) -> type[A2AStruct]:
    """Return the type whose members are those of a card of a version."""
    return (
        AgentCard if version == LATEST else import_module(f"{_PACKAGES[version]}.card_schema").Card
    )


def read_card(members: dict[str, Any]) -> AgentCard:
    """Read a card from a JSON object, of any version or of several at once.

    A card must name the agent and its address. Other members that are wrong are left out, with a
    warning in the log. Raises ``A2AError`` that names what is wrong.
    """
    interfaces = members.get("supportedInterfaces", members.get("supported_interfaces"))
    wrong = []
    if not members.get("name") or not isinstance(members["name"], str):
        wrong.append(FieldViolation("name", "expected the name of the agent"))
    if not isinstance(interfaces, list) and not isinstance(members.get("url"), str):
        name = "url" if interfaces is None else "supportedInterfaces"
        words = "expected the address of the agent" if interfaces is None else "expected a list"
        wrong.append(FieldViolation(name, words))
    if wrong:
        protojson.refuse(wrong)
    is_latest = "supportedInterfaces" in members and "url" not in members
    package = import_module(_PACKAGES[LATEST if is_latest else DEFAULT_VERSION])
    with logging_problems("the agent card"):
        return cast("AgentCard", package.read_card(members))
