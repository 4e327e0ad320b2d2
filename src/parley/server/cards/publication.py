"""Who publishes the agents of a server, and by which identifiers they are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from parley.model.catalog.urn import AirUrn, InvalidUrn, domain, segment
from parley.server.cards.index import ASSISTANTS

NAMESPACE = "agent"
"""The namespace of identifiers, unless the operator names another."""

CATALOG_NAME = "catalog"
"""The name of a tenant's catalog, in the namespace of the tenant."""


class Publication(msgspec.Struct, frozen=True):
    """The operator's decision to publish a catalog.

    ``publisher`` is a domain that the operator controls, and the root of all identifiers.
    ``unlisted`` are the paths of agents and the tenants that the catalog leaves out.
    """

    publisher: str
    namespace: tuple[str, ...] = (NAMESPACE,)
    unlisted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, publisher: str, namespace: str = NAMESPACE, unlisted: Iterable[str] = ()) -> Self:
        """Return a publication. Raises ``ValueError`` for what is no domain and no namespace."""
        if not isinstance(publisher, str):
            raise ValueError(f"publisher= is a domain such as example.com, not {publisher!r}")
        try:
            found = domain(publisher)
        except InvalidUrn as error:
            raise ValueError(f"publisher= cannot be used: {error}") from None
        words = (
            "namespace= is made of letters, digits, '.', '_' and '-', with ':' between its parts, "
            f"such as agent or finance:trading; not {namespace!r}"
        )
        if not isinstance(namespace, str):
            raise ValueError(words)
        try:
            parts = AirUrn.parse(f"urn:air:{found}:{namespace}:name").namespace
        except InvalidUrn:
            raise ValueError(words) from None
        if isinstance(unlisted, str):
            raise ValueError(f"unlisted= is a list of paths and tenants, not the text {unlisted!r}")
        names = frozenset(each.rstrip("/") if each[:1] == "/" else each for each in unlisted)
        return cls(found, parts, names)

    def agent(self, path: str, key: str, tenant: str = "") -> str:
        """Return the identifier of an agent: by its path, at the root by its key."""
        return self._identifier(agent_name(path, key), tenant)

    def catalog(self, tenant: str) -> str:
        """Return the identifier of the catalog of a tenant."""
        return self._identifier(CATALOG_NAME, tenant)

    def _identifier(self, name: str, tenant: str) -> str:
        below = (segment(tenant),) if tenant else ()
        return str(AirUrn(self.publisher, (*self.namespace, *below), name))


def agent_name(path: str, key: str) -> str:
    """Return the last segment of an agent's identifier."""
    return segment(path.removeprefix(f"{ASSISTANTS}/").strip("/").replace("/", "-") or key)


def checked_identifiers(given: Iterable[tuple[str, str]]) -> None:
    """Raise ``ValueError`` if two agents have one identifier. ``given`` has it and the place."""
    places: dict[str, str] = {}
    for identifier, place in given:
        other = places.setdefault(identifier, place)
        if other != place:
            raise ValueError(
                f"{other} and {place} would both be published as {identifier}: give them other "
                "paths, tenants or keys (Agent(..., key=...)), or leave one out (unlisted=)"
            )
