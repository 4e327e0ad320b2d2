"""The versions of the protocol that are spoken (specification §3.6).

The one place that knows which there are. Codecs of a version are loaded when it is first spoken.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, cast

from parley.model.cards import AgentCard
from parley.model.errors import FieldViolation, VersionNotSupportedError
from parley.wire.dialect import Dialect
from parley.wire.json import protojson
from parley.wire.json.tolerance import noted

LATEST = "1.0"
SUPPORTED_VERSIONS = (LATEST, "0.3")
DEFAULT_VERSION = "0.3"
"""What a request that names no version, or an empty one, is of (§3.6.2)."""

EXTENSIONS_HEADERS = ("a2a-extensions", "x-a2a-extensions")
"""The headers that name extensions, in any version, in lower case."""

_HOMES = {LATEST: "parley.wire.v1_0", "0.3": "parley.wire.v0_3"}

# Major.Minor counts; a patch number is forgiven and must not matter (§3.6).
_VERSION = re.compile(r"(\d{1,4}\.\d{1,4})(?:\.\S*)?")

_loaded: dict[str, Dialect] = {}


def dialect(version: str) -> Dialect:
    """Return the dialect of one of the versions in ``SUPPORTED_VERSIONS``. Raises ``KeyError``
    for others.
    """
    known = _loaded.get(version)
    if known is None:
        known = cast("Dialect", import_module(_HOMES[version]).DIALECT)
        _loaded[version] = known
    return known


def asked(version: str) -> str:
    """Return the version that a caller names, as one of ``SUPPORTED_VERSIONS``; empty stays empty.

    Raises ``VersionNotSupportedError`` that names what is spoken.
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


def of_interface(version: str) -> str | None:
    """Return the one of ``SUPPORTED_VERSIONS`` in which to call an interface of a
    ``protocolVersion``, if any.

    An interface of a later 1.x is called in 1.0, of which it is a superset.
    """
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        return LATEST if version.strip() == "1" else None
    if match[1] in SUPPORTED_VERSIONS:
        return match[1]
    return LATEST if match[1].startswith("1.") else None


def write_card(card: AgentCard, version: str = "") -> bytes:
    """Return a card as JSON: for one version, or without one for all of them in one document."""
    home = import_module(_HOMES[version] if version == LATEST else _HOMES["0.3"])
    write = home.write_card if version else home.write_merged_card
    return cast("bytes", write(card))


def read_card(members: dict[str, Any]) -> AgentCard:
    """Return the card that a JSON object holds, of whichever version, or of several at once.

    A card names the agent, and says where it is. What else is wrong with it is left out, with a
    warning in the log: unknown members, security schemes that cannot be read.
    Raises ``A2AError`` that names what is wrong.
    """
    places = members.get("supportedInterfaces", members.get("supported_interfaces"))
    wrong = []
    if not members.get("name") or not isinstance(members["name"], str):
        wrong.append(FieldViolation("name", "expected the name of the agent"))
    if not isinstance(places, list) and not isinstance(members.get("url"), str):
        name = "url" if places is None else "supportedInterfaces"
        words = "expected the address of the agent" if places is None else "expected a list"
        wrong.append(FieldViolation(name, words))
    if wrong:
        protojson.refuse(wrong)
    is_latest = "supportedInterfaces" in members and "url" not in members
    home = import_module(_HOMES[LATEST if is_latest else DEFAULT_VERSION])
    with noted("the agent card"):
        return cast("AgentCard", home.read_card(members))
