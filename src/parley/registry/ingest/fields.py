"""The values that an entry is filtered by: those of the entry, and those of its card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from parley.client.bindings.binding import canonical
from parley.model.cards import AgentCard, SecurityScheme
from parley.model.catalog.entries import CatalogEntry, CatalogHost
from parley.wire.catalog.entries import write_entry

MAX_PATHS = 128
"""How many paths an entry has values for; those of its own members that are not known come last."""

MAX_VALUES = 128
MAX_VALUE = 256
MAX_PATH = 128
MAX_DEPTH = 4

CARD_SIGNERS = "card.signedBy"
MANIFEST_SIGNERS = "trustManifest.signedBy"
"""The thumbprints of the keys that a card and a manifest are pinned to."""

SOURCE = "source"

_OWN = (
    "identifier", "displayName", "type", "version", "updatedAt", "tags", "capabilities",
    "trustManifest",
)  # fmt: skip
_NEVER = ("data", "url", "description", "representativeQueries", "signature")
_DERIVED = ("card", "host", SOURCE)
"""Members that others may write, and whose paths are those of values that are found out here."""


def fields_of(
    entry: CatalogEntry,
    *,
    publisher: str,
    source: str,
    card: AgentCard | None = None,
    host: CatalogHost | None = None,
) -> dict[str, tuple[str, ...]]:
    """Return values by field path (ARD §7.1), bounded in number and length.

    Texts, numbers and truth values are values; a path leads through lists to those of all members.
    """
    found = _Values()
    found.add("publisher", [publisher])
    found.values[SOURCE] = (source,)  # whole: the entries of a source are found by it
    written = write_entry(entry)
    for name in _OWN:
        found.walk(name, written.get(name))
    if card is not None:
        _add_card(found, card)
    if host is not None:
        found.add("host.displayName", [host.display_name])
        found.add("host.identifier", [host.identifier])
    for name, value in written.items():
        # A name with dots is none of the paths that other members have.
        first, *rest = name.split(".")
        is_derived = first in _DERIVED or (rest and first in (*_OWN, "publisher"))
        is_derived = is_derived or (name == "publisher" and not isinstance(value, Mapping))
        if not is_derived and name not in _OWN and first not in _NEVER:
            found.walk(name, value)
    found.values.pop(MANIFEST_SIGNERS, None)  # a manifest may not say so itself
    return found.values


class _Values:
    """Values by path, within the limits."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[str, ...]] = {}

    def add(self, path: str, values: Iterable[str]) -> None:
        """Add values to a path, each once."""
        if len(path) > MAX_PATH or (path not in self.values and len(self.values) >= MAX_PATHS):
            return
        known = dict.fromkeys(self.values.get(path, ()))
        if len(known) >= MAX_VALUES:
            return
        for each in values:
            text = each.strip()[:MAX_VALUE]
            if text and len(known) < MAX_VALUES:
                known[text] = None
        if known:
            self.values[path] = tuple(known)

    def walk(self, path: str, value: Any, depth: int = 0) -> None:
        """Add what is in a JSON value, by paths below one."""
        if isinstance(value, bool):
            self.add(path, ["true" if value else "false"])
        elif isinstance(value, str):
            self.add(path, [value])
        elif isinstance(value, int | float):
            self.add(path, [msgspec.json.encode(value).decode()])
        elif depth < MAX_DEPTH and isinstance(value, Mapping):
            for name, each in list(value.items())[:MAX_VALUES]:
                if name not in _NEVER and isinstance(name, str):
                    self.walk(f"{path}.{name}", each, depth + 1)
        elif depth < MAX_DEPTH and isinstance(value, list | tuple):
            for each in value[:MAX_VALUES]:
                self.walk(path, each, depth + 1)


def _add_card(found: _Values, card: AgentCard) -> None:
    skills = card.skills[:MAX_VALUES]
    modes = [*card.default_input_modes, *card.default_output_modes]
    for skill in skills:
        modes += [*skill.input_modes, *skill.output_modes]
    found.add("card.name", [card.name])
    found.add("card.version", [card.version])
    found.add("card.skills.id", [skill.id for skill in skills])
    found.add("card.skills.name", [skill.name for skill in skills])
    found.add("card.skills.tags", [tag for skill in skills for tag in skill.tags])
    found.add("card.modes", modes)
    interfaces = card.supported_interfaces[:MAX_VALUES]
    found.add("card.bindings", [canonical(each.protocol_binding) for each in interfaces])
    found.add("card.versions", [each.protocol_version for each in interfaces])
    found.add(
        "card.securitySchemes",
        [name for each in card.security_schemes.values() for name in _kinds(each)],
    )
    abilities = card.capabilities
    found.add("card.extensions", [each.uri for each in abilities.extensions])
    found.add(
        "card.capabilities",
        [
            name
            for name, is_there in (
                ("streaming", abilities.streaming),
                ("pushNotifications", abilities.push_notifications),
                ("extendedAgentCard", abilities.extended_agent_card),
            )
            if is_there
        ],
    )
    if card.provider is not None:
        found.add("card.provider", [card.provider.organization])
        found.add("card.provider.url", [card.provider.url])


def _kinds(scheme: SecurityScheme) -> list[str]:
    """Return the kind of a scheme as 0.3 and OpenAPI call it, and that of HTTP authentication."""
    for field, kind in _KINDS.items():
        held = getattr(scheme, field, None)
        if held is not None:
            return [kind, held.scheme.lower()] if kind == "http" else [kind]
    return []


_KINDS = {
    "api_key_security_scheme": "apiKey",
    "http_auth_security_scheme": "http",
    "oauth2_security_scheme": "oauth2",
    "open_id_connect_security_scheme": "openIdConnect",
    "mtls_security_scheme": "mutualTLS",
}
