"""Which of a card's interfaces to call, and with which credentials (specification §8.3.2)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import msgspec

from parley.client.errors import CardInvalid, NoCommonInterface, NoCommonVersion
from parley.client.http import place
from parley.model.cards import AgentCard, AgentInterface
from parley.model.schemes import APIKeySecurityScheme

logger = logging.getLogger(__name__)

SPOKEN: tuple[str, ...] = ("JSONRPC",)
"""The bindings that this client speaks, all in protocol version 1."""


USUAL_API_KEY = APIKeySecurityScheme(location="header", name="X-API-Key")


def choose(
    card: AgentCard, preferred: str | Sequence[str] = (), *, card_url: str = ""
) -> AgentInterface:
    """Return the interface to call: the first that is spoken, in the caller's order of bindings,
    else in the card's.

    A relative address is taken from where the card came from.

    Raises ``NoCommonInterface`` when the card offers nothing that is spoken, and ``CardInvalid``
    when the chosen interface has no usable address.
    """
    usable = [i for i in card.supported_interfaces if _is_spoken(i)]
    if not usable:
        bindings = {i.protocol_binding.upper() for i in card.supported_interfaces}
        kind = NoCommonVersion if bindings.intersection(SPOKEN) else NoCommonInterface
        raise kind(_nothing_in_common(card))
    order = [preferred] if isinstance(preferred, str) else list(preferred)
    for binding in order:
        wanted = [i for i in usable if i.protocol_binding.upper() == binding.upper()]
        if wanted:
            usable = wanted
            break
    chosen = usable[0]
    url = _absolute(chosen.url, card_url)
    if url is None:
        raise CardInvalid(
            f"the interface {chosen.protocol_binding} of {card.name!r} has the address "
            f"{chosen.url!r}; expected one of the form https://host/path"
        )
    binding, version = chosen.protocol_binding, chosen.protocol_version
    logger.info("%s: calling %s %s at %s", card.name, binding, version, place(url))
    return msgspec.structs.replace(chosen, url=url)


def _is_spoken(interface: AgentInterface) -> bool:
    major = interface.protocol_version.strip().partition(".")[0]
    return interface.protocol_binding.upper() in SPOKEN and major == "1"


def _absolute(url: str, card_url: str) -> str | None:
    try:
        whole = urljoin(card_url, url)
        parts = urlsplit(whole)
        return whole if parts.scheme in ("http", "https") and parts.hostname else None
    except ValueError:
        return None


def _nothing_in_common(card: AgentCard) -> str:
    offers = ", ".join(
        f"{i.protocol_binding} {i.protocol_version}".strip() for i in card.supported_interfaces
    )
    text = (
        f"{card.name!r} offers {offers or 'no interface'}; this client speaks "
        f"{', '.join(SPOKEN)} 1.0"
    )
    if any(i.protocol_version.startswith("0.") for i in card.supported_interfaces):
        text += " (protocol 0.3 is not spoken yet)"
    return text


def declares(card: AgentCard, uri: str) -> bool:
    """Whether the agent has the extension ``uri``."""
    return any(extension.uri == uri for extension in card.capabilities.extensions)


def credentials(
    card: AgentCard | None, *, bearer: str | None = None, api_key: str | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers and the query parameters that carry the credentials.

    An API key goes where the card's scheme wants it, in the header ``X-API-Key`` if none says so
    or the card is not known yet.
    """
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    if api_key:
        scheme = _api_key_scheme(card)
        match scheme.location:
            case "query":
                query[scheme.name] = api_key
            case "cookie":
                headers["Cookie"] = f"{scheme.name}={api_key}"
            case _:
                headers[scheme.name] = api_key
    return headers, query


def _api_key_scheme(card: AgentCard | None) -> APIKeySecurityScheme:
    if card is None:
        return USUAL_API_KEY
    required = [name for need in card.security_requirements for name in need.schemes]
    for name in (*required, *card.security_schemes):
        scheme = card.security_schemes.get(name)
        if scheme is not None and scheme.api_key_security_scheme is not None:
            return scheme.api_key_security_scheme
    return USUAL_API_KEY


def with_query(url: str, query: dict[str, str]) -> str:
    """Return ``url`` with further query parameters."""
    if not query:
        return url
    parts = urlsplit(url)
    joined = "&".join(filter(None, (parts.query, urlencode(query))))
    return urlunsplit(parts._replace(query=joined))
