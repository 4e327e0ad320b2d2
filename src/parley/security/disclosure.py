"""Selective disclosure: the callers who see a skill or an interface on the cards of an agent."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Literal, Self

import msgspec

from parley.model.cards import AgentInterface
from parley.model.errors import InternalError, an, author_code
from parley.model.service import Caller

log = logging.getLogger("parley.security")

Listed = bool | Literal["extended"] | Callable[[Caller], bool]
"""The audience of a part of a card: everyone (``True``), the callers of the extended card
(``"extended"``), the callers of the extended card for whom a function returns ``True``, or no
caller (``False``)."""

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")


def _everyone(caller: Caller) -> bool:
    return True


class Listing(msgspec.Struct, frozen=True):
    """The audience of a part of a card.

    A public part is on all cards. Another part is only on the extended cards of the callers that
    ``allows`` accepts, and on no card without ``allows``.
    """

    is_public: bool = True
    allows: Callable[[Caller], bool] | None = None

    @property
    def is_extended(self) -> bool:
        """True if extended cards may show more than the public card."""
        return not self.is_public and self.allows is not None

    def is_shown_to(self, caller: Caller) -> bool:
        """Return whether a caller's extended card shows the part. If the function fails, it does
        not."""
        if self.is_public or self.allows is None:
            return self.is_public
        what = "a function of listed=, so the card does not show the part,"
        with suppress(InternalError), author_code(log, what, "", passes=()):
            allowed: object = self.allows(caller)
            if allowed is not True and allowed is not False:
                raise TypeError(f"listed= returns True or False, not {an(type(allowed).__name__)}")
            return allowed
        return False


PUBLIC = Listing()


def listing_of(listed: Listed, what: str) -> Listing:
    """Return the listing of an author's setting.

    Raises ``TypeError`` and ``ValueError`` for an invalid setting.
    """
    if isinstance(listed, bool):
        return PUBLIC if listed else Listing(is_public=False)
    if listed == "extended":
        return Listing(is_public=False, allows=_everyone)
    if isinstance(listed, str):
        raise ValueError(
            f"{what} is True (all callers see it), 'extended' (callers of the extended card see "
            f"it), False (no caller sees it), or a function of the caller; not {listed!r}"
        )
    call = listed if inspect.isroutine(listed) else getattr(listed, "__call__", None)  # noqa: B004
    is_slow = inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)
    if not callable(listed) or isinstance(listed, type) or is_slow:
        raise TypeError(
            f"{what} is True, 'extended', False, or a plain function (def) of the caller that "
            f"returns a bool; not {listed!r}"
        )
    return Listing(is_public=False, allows=listed)


class InterfaceListings:
    """The audiences of an agent's interfaces, by binding, or by binding and version.

    For ``{"GRPC": "extended", "JSONRPC 0.3": False}``: an entry with a version takes precedence.
    The settings hide addresses from cards, but do not close them. Raises ``TypeError`` and
    ``ValueError``.
    """

    @classmethod
    def of(cls, given: Mapping[str, Listed] | None, versions: Iterable[str]) -> Self | None:
        """Return the listings, ``None`` if there are none.

        Raises ``ValueError`` if no interface would be public, and the errors of the class.
        """
        if not given:
            return None
        known = tuple(versions)
        listings = cls(given, known)
        for version in known:
            if listings.is_public("JSONRPC", version) or listings.is_public("HTTP+JSON", version):
                return listings
        raise ValueError(
            "listed_interfaces hides JSONRPC and HTTP+JSON from the public card, which has at "
            "least one interface: leave one of them listed, in one version"
        )

    def __init__(self, given: Mapping[str, Listed], versions: Collection[str]) -> None:
        self._listings: dict[str, Listing] = {}
        for name, listed in given.items():
            binding, space, version = str(name).partition(" ")
            is_known = binding in BINDINGS or ":" in binding
            if not is_known or (space and version not in versions):
                raise ValueError(
                    "listed_interfaces takes bindings, with a version or without, such as "
                    f"'GRPC' or 'JSONRPC 0.3'; not {name!r} (bindings: {', '.join(BINDINGS)}, "
                    f"or the URI of another; versions: {', '.join(versions)})"
                )
            self._listings[str(name)] = listing_of(listed, f"listed_interfaces of {name!r}")

    @property
    def added(self) -> set[str]:
        """The bindings that the settings name by URI."""
        return {name.partition(" ")[0] for name in self._listings if ":" in name}

    @property
    def is_extended(self) -> bool:
        """True if extended cards may show more interfaces than the public card."""
        return any(each.is_extended for each in self._listings.values())

    def is_public(self, binding: str, version: str) -> bool:
        """Return whether the public card shows the interfaces of a binding and version."""
        return self._of(binding, version).is_public

    def public(self, interfaces: tuple[AgentInterface, ...]) -> tuple[AgentInterface, ...]:
        """Return the interfaces of the public card."""
        return tuple(
            each
            for each in interfaces
            if self.is_public(each.protocol_binding, each.protocol_version)
        )

    def shown_to(
        self, interfaces: tuple[AgentInterface, ...], caller: Caller
    ) -> tuple[AgentInterface, ...]:
        """Return the interfaces of the extended card of a caller."""
        return tuple(
            each
            for each in interfaces
            if self._of(each.protocol_binding, each.protocol_version).is_shown_to(caller)
        )

    def _of(self, binding: str, version: str) -> Listing:
        found = self._listings.get(f"{binding} {version}")
        return found or self._listings.get(binding, PUBLIC)
