"""``FoundAgent``: an entry that a search found, with the address of its agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from parley.client.card.resolver import CatalogReference, ForeignCard, Reference
from parley.client.errors import CardNotFound
from parley.client.origin import Origin
from parley.registry.catalog.entries import A2A_CARD_TYPES, CatalogEntry, media_type
from parley.security.egress import LOOPBACK, Egress


class FoundAgent(CatalogReference, frozen=True, kw_only=True):
    """A found agent: ``parley.connect(found)`` calls it.

    ``entry`` is the catalog entry, ``score`` (0 to 100) how well it matches the need, which is not
    trust. ``source`` is the registry that indexed it. Its texts are untrusted. ``places`` are
    private hosts and networks to which its address may resolve; ``is_near``: the registry is on
    this machine, so its agents may be too; ``is_own``: it comes from the caller's own catalog, so
    any address is allowed. ``details`` are what Parley's registries return for a single entry: its
    card, earlier versions of the card, measurements.
    """

    entry: CatalogEntry
    score: int = 0
    source: str = ""
    places: tuple[str, ...] = ()
    is_near: bool = False
    is_own: bool = False
    details: Mapping[str, Any] = {}

    def __str__(self) -> str:
        text = f"{self.name} ({self.identifier}, {self.score})"
        return "".join(sign if sign.isprintable() else "?" for sign in text)  # safe to print

    @property
    def identifier(self) -> str:
        """The identifier of the entry."""
        return self.entry.identifier

    @property
    def name(self) -> str:
        """The name for people."""
        return self.entry.display_name

    @property
    def description(self) -> str:
        """The description."""
        return self.entry.description

    @property
    def card_url(self) -> str:
        """The address of the card, empty for a card that is in the entry itself."""
        return self.entry.url

    @property
    def card(self) -> Mapping[str, Any] | None:
        """The card inside the entry, as JSON values; ``None`` if the entry has the
        card's address.
        """
        data = self.entry.data
        return data if isinstance(data, Mapping) else None

    @property
    def marks(self) -> tuple[str, ...]:
        """The registry's warnings about the texts, such as ``instructions``."""
        given = self.known.get("marks")
        listed = given if isinstance(given, list) else ()
        return tuple(each[:60] for each in listed[:16] if isinstance(each, str))

    @property
    def known(self) -> Mapping[str, Any]:
        """The registry's findings: ``trust``, ``health``, measurements, ``marks``.

        These are claims of the registry. Other implementations' registries return nothing here.
        """
        given = self.entry.more.get("registry")
        return given if isinstance(given, Mapping) else {}

    @property
    def via(self) -> str:
        """The registry that forwarded the entry, if it came from another registry."""
        given = self.known.get("via")
        return given[:512] if isinstance(given, str) else ""

    @property
    def reference(self) -> Reference:
        """Return the argument for ``parley.connect``. Raises ``CardNotFound`` without an A2A card.

        The address is a web address: a registry never names a file or a program of this machine.
        """
        if media_type(self.entry.type) not in A2A_CARD_TYPES:
            raise CardNotFound(
                f"{self.identifier} is of the type {self.entry.type[:100]!r}, not an A2A agent "
                f"({A2A_CARD_TYPES[0]})"
            )
        if self.card is not None:
            return ForeignCard(self.card)
        url = self.card_url
        try:
            Origin.of(url)
            parts = urlsplit(url)
        except ValueError as error:
            raise CardNotFound(
                f"the entry {self.identifier} has no usable address: expected {error}"
            ) from None
        if parts.username is not None or parts.password is not None:
            raise CardNotFound(
                f"the address in the entry {self.identifier} has a user or a password; these "
                "must come from the caller"
            )
        return url

    @property
    def egress(self) -> Egress | None:
        """The egress policy for calls: public addresses and ``places``; ``None`` allows any
        address.
        """
        if self.is_own:
            return None
        near = LOOPBACK if self.is_near else ()
        return Egress().adding((*near, *self.places), option="find(allow_private=...)")
