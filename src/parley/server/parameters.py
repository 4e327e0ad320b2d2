"""Service parameters of the HTTP bindings: version and extensions (specification §3.2.6, §3.6)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

import msgspec

from parley.model.cards import AgentCapabilities
from parley.model.errors import ExtensionSupportRequiredError, VersionNotSupportedError

SERVED_VERSION = "1.0"

# Major.Minor counts; a patch number is forgiven and must not matter (§3.6).
_VERSION = re.compile(r"(\d{1,4}\.\d{1,4})(?:\.\S*)?")
_NONE: frozenset[str] = frozenset()


def negotiate_version(header: bytes | None, query: bytes, missing: str) -> str:
    """Return the version that the request is to be read by.

    The header counts before the query parameter of the same name; a request with neither, or an
    empty one, is of version ``missing``.

    Raises ``VersionNotSupportedError``.
    """
    if header == b"1.0":
        return SERVED_VERSION
    asked = (header or b"").decode("latin-1").strip()
    if not asked and query:
        for name, value in parse_qsl(query.decode("latin-1")):
            if name.lower() == "a2a-version":
                asked = value.strip()
    match = _VERSION.fullmatch(asked or missing)
    if match is not None and match[1] == SERVED_VERSION:
        return SERVED_VERSION
    if asked:
        words = f"version {asked[:40]!r} of the protocol is not spoken here"
    else:
        words = f"a request without A2A-Version is of version {missing}, which is not spoken here"
    raise VersionNotSupportedError(
        f"{words}; send the header A2A-Version: {SERVED_VERSION}",
        metadata={"requestedVersion": asked[:40] or missing, "supportedVersions": SERVED_VERSION},
    )


class Extensions(msgspec.Struct, frozen=True):
    """The extensions that an agent declares, and those of them that callers must ask for."""

    declared: frozenset[str]
    required: tuple[str, ...]

    @classmethod
    def of(cls, capabilities: AgentCapabilities) -> Extensions:
        """Return the extensions of a card."""
        return cls(
            frozenset(extension.uri for extension in capabilities.extensions),
            tuple(extension.uri for extension in capabilities.extensions if extension.required),
        )

    def negotiate(self, headers: Sequence[bytes]) -> frozenset[str]:
        """Return the extensions in force: those asked for that the agent has (§4.6.3).

        Raises ``ExtensionSupportRequiredError`` when one that the agent requires is not asked for.
        """
        if not headers and not self.required:
            return _NONE
        asked = {uri.strip() for header in headers for uri in header.decode("latin-1").split(",")}
        missing = [uri for uri in self.required if uri not in asked]
        if missing:
            raise ExtensionSupportRequiredError(
                f"this agent is only spoken to with {', '.join(missing)}; name it in the header "
                "A2A-Extensions",
                metadata={"requiredExtensions": ",".join(missing)},
            )
        return self.declared & asked
