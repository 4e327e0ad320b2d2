"""``FoundAgent``: an entry that a search found, and how its agent is called."""

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
    """An agent that was found: ``parley.connect(found)`` calls it.

    ``entry`` is the catalog entry, ``score`` (0 to 100) how well it matches the need, which is no
    trust. ``source`` is the registry that indexed it. The texts are data of others. ``places`` are
    private hosts and networks that its address may lead to; ``is_near``: the registry is on this
    machine, so its agents may be too; ``is_own``: the caller's own catalog has it, so it may be
    anywhere. ``details`` are what Parley's registries say of an entry that is asked for alone: its
    card, the versions of that, what was measured.
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
        return "".join(sign if sign.isprintable() else "?" for sign in text)  # it may be printed

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
        """The card that is in the entry itself, as JSON values; ``None`` if it has an address."""
        data = self.entry.data
        return data if isinstance(data, Mapping) else None

    @property
    def marks(self) -> tuple[str, ...]:
        """What the registry finds strange in the texts, such as ``instructions``."""
        given = self.known.get("marks")
        listed = given if isinstance(given, list) else ()
        return tuple(each[:60] for each in listed[:16] if isinstance(each, str))

    @property
    def known(self) -> Mapping[str, Any]:
        """What the registry found out of it: ``trust``, ``health``, measurements, ``marks``.

        It is what that registry says. Registries of others have nothing here.
        """
        given = self.entry.more.get("registry")
        return given if isinstance(given, Mapping) else {}

    @property
    def via(self) -> str:
        """The registry that passed it on, if the one that was asked has it from another."""
        given = self.known.get("via")
        return given[:512] if isinstance(given, str) else ""

    @property
    def reference(self) -> Reference:
        """What ``parley.connect`` takes. Raises ``CardNotFound`` for an entry without an A2A card.

        The address is one of the web: a file or a program of this machine is never named by a
        registry.
        """
        if media_type(self.entry.type) not in A2A_CARD_TYPES:
            raise CardNotFound(
                f"{self.identifier} is of the type {self.entry.type[:100]!r}, and not an A2A agent "
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
                f"the address in the entry {self.identifier} has a user or a password; those are "
                "the caller's to give"
            )
        return url

    @property
    def egress(self) -> Egress | None:
        """The policy for calls: public addresses, and those of ``places``; ``None`` for any."""
        if self.is_own:
            return None
        near = LOOPBACK if self.is_near else ()
        return Egress().adding((*near, *self.places), option="find(allow_private=...)")
