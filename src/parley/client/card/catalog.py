"""Agent catalogs: lists of agents that some servers return instead of a card."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec

from parley.client.bindings.http import redacted
from parley.model.cards import AgentCard

MAX_NAMED_AGENTS = 20
"""The maximum number of agents in an error message."""

_LISTS = ("agents", "cards", "agentCards", "agent_cards")
_CARDS = ("card", "agentCard", "agent_card")
_CARD_ADDRESSES = (*_CARDS, "cardUrl", "card_url", "agentCardUrl", "agent_card_url")
_CARD_MEMBERS = ("skills", "capabilities", "supportedInterfaces")
MAX_LISTED = 1000


class ListedAgent(msgspec.Struct, frozen=True):
    """One agent of a catalog: its name, its address, and its card or the card's address.

    Fields that the catalog lacks are empty.
    """

    name: str = ""
    url: str = ""
    card_url: str = ""
    card: dict[str, Any] | None = None

    def __str__(self) -> str:
        where = redacted(self.url or self.card_url)
        return f"{self.name} at {where}" if self.name and where else self.name or where


def parse_catalog(body: bytes, where: str) -> tuple[ListedAgent, ...]:
    """Return the agents that a JSON document lists; empty if it is not a catalog.

    ``where`` is the address of the document, for relative addresses.
    """
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return ()
    if isinstance(value, dict):
        if any(name in value for name in _CARD_MEMBERS):
            return ()
        value = next((value[name] for name in _LISTS if isinstance(value.get(name), list)), None)
    if not isinstance(value, list):
        return ()
    found = [_entry(each, where) for each in value[:MAX_LISTED]]
    return tuple([each for each in found if each is not None])


def serves_address(card: AgentCard, url: str) -> bool:
    """Return whether a card has an interface at or below the path of ``url``, on any host."""
    path = urlsplit(url).path.rstrip("/")
    for interface in card.supported_interfaces:
        try:
            offered = urlsplit(interface.url).path.rstrip("/")
        except ValueError:
            continue
        if offered == path or offered.startswith(f"{path}/"):
            return True
    return False


def describe_agents(agents: Iterable[ListedAgent]) -> str:
    """Return a description of the agents of a catalog."""
    each = [str(agent)[:300] for agent in agents]
    more = f" and {len(each) - MAX_NAMED_AGENTS} more" if len(each) > MAX_NAMED_AGENTS else ""
    return ", ".join(each[:MAX_NAMED_AGENTS]) + more


def _entry(value: Any, where: str) -> ListedAgent | None:
    if isinstance(value, str):
        value = {"url": value}
    if not isinstance(value, dict):
        return None
    card = next((value[name] for name in _CARDS if isinstance(value.get(name), dict)), None)
    if card is None and any(name in value for name in _CARD_MEMBERS):
        card = value
    url = _address(_text(value, ("url",)) or _url_of(card), where)
    card_url = _address(_text(value, _CARD_ADDRESSES), where)
    if not (url or card_url or card):
        return None
    name = _text(value, ("name",)) or (_text(card, ("name",)) if card else "")
    return ListedAgent(name=name, url=url, card_url=card_url, card=card)


def _url_of(card: dict[str, Any] | None) -> str:
    """Return the address of a card's first interface."""
    interfaces = card.get("supportedInterfaces") if card else None
    if isinstance(interfaces, list) and interfaces and isinstance(interfaces[0], dict):
        return _text(interfaces[0], ("url",))
    return _text(card, ("url",)) if card else ""


def _text(value: dict[str, Any], names: Iterable[str]) -> str:
    return next((value[name] for name in names if isinstance(value.get(name), str)), "")


def _address(text: str, where: str) -> str:
    """Return an absolute HTTP address; empty for any other text."""
    try:
        url = urljoin(where, text) if text else ""
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in ("http", "https") and parts.hostname else ""
