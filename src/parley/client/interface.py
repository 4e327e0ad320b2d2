"""Which of a card's interfaces to call, and with which credentials (specification §8.3.2)."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import msgspec

from parley.client.binding import BINDINGS, canonical, is_spoken
from parley.client.errors import CardInvalid, NoCommonInterface, NoCommonVersion
from parley.client.http import place
from parley.model.cards import AgentCard, AgentInterface
from parley.model.distribution import install_command
from parley.model.schemes import APIKeySecurityScheme
from parley.wire import versions

logger = logging.getLogger(__name__)

USUAL_API_KEY = APIKeySecurityScheme(location="header", name="X-API-Key")


class Candidate(msgspec.Struct, frozen=True):
    """An interface that can be called, by its whole address, and the version to call it in.

    ``binding`` is its binding's name as the specification spells it.
    """

    interface: AgentInterface
    binding: str
    version: str

    def __str__(self) -> str:
        return f"{self.binding} {self.version} at {place(self.interface.url)}"


def candidates(
    card: AgentCard,
    binding: str | Sequence[str] = (),
    *,
    version: str = "",
    card_url: str = "",
) -> tuple[Candidate, ...]:
    """Return the interfaces that can be called, the one to call first of all at their head.

    The order is the card's. ``binding`` is the one binding to use, or several that are preferred
    in their order over all others; ``version`` the one version. A relative address is taken from
    where the card came from. Behind an encrypted interface no unencrypted one follows: who can
    break a connection must not get to read the next.

    Raises ``NoCommonInterface`` when nothing on the card is left, and ``CardInvalid`` when none of
    what is has a usable address.
    """
    only = canonical(binding) if isinstance(binding, str) and binding else ""
    preferred = [] if isinstance(binding, str) else [canonical(name) for name in binding]
    usable = [
        Candidate(offered, name, spoken)
        for offered in card.supported_interfaces
        if (name := canonical(offered.protocol_binding)) == (only or name)
        and is_spoken(name)
        # One that does not say its version has the one whose cards have interfaces like this.
        and (spoken := versions.of_interface(offered.protocol_version or versions.LATEST))
        is not None
        and spoken == (version or spoken)
    ]
    if not usable:
        raise _nothing_in_common(card, only, version)
    rank = {name: place for place, name in reversed(list(enumerate(preferred)))}
    usable.sort(key=lambda candidate: rank.get(candidate.binding, len(rank)))
    found: list[Candidate] = []
    for candidate in usable:
        offered = candidate.interface
        url = _address(candidate.binding, offered.url, card_url)
        if url is None:
            logger.warning(
                "the card %.100r: %.200r is no address of %s",
                card.name,
                offered.url,
                candidate.binding,
            )
            continue
        whole = Candidate(
            msgspec.structs.replace(offered, url=url), candidate.binding, candidate.version
        )
        if whole not in found and (not found or _is_plain(found[0]) or not _is_plain(whole)):
            found.append(whole)
    if not found:
        first = usable[0].interface
        raise CardInvalid(
            f"the interface {first.protocol_binding} of {card.name!r} has the address "
            f"{first.url!r}; expected one of the form https://host/path"
            + (" or host:port" if usable[0].binding == "GRPC" else "")
        )
    return tuple(found)


def _address(binding: str, url: str, card_url: str) -> str | None:
    try:
        if binding == "GRPC" and re.fullmatch(r"[^\s/?#]+:[0-9]+", url):
            return url if urlsplit(f"//{url}").port else None
        whole = urljoin(card_url, url)
        parts = urlsplit(whole)
        # Asking for a port that is none raises.
        is_usable = url and parts.scheme in ("http", "https") and parts.hostname
        return whole if is_usable and parts.port != 0 else None
    except ValueError:
        return None


def _is_plain(candidate: Candidate) -> bool:
    """Whether what is sent to an interface can be read on the way."""
    parts = urlsplit(candidate.interface.url)
    return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")


def _nothing_in_common(card: AgentCard, only: str, version: str) -> NoCommonInterface:
    offers = ", ".join(
        f"{i.protocol_binding} {i.protocol_version}".strip() for i in card.supported_interfaces
    )
    wanted = f"{only} {version}".strip()
    speaks = (
        f"{wanted} was asked for"
        if wanted
        else f"this client speaks {', '.join(filter(is_spoken, BINDINGS))} in "
        f"{' and '.join(versions.SPOKEN)}"
    )
    text = f"{card.name!r} offers {offers or 'no interface'}; {speaks}"
    offered = {canonical(i.protocol_binding) for i in card.supported_interfaces}
    missing = offered.intersection(BINDINGS).intersection([only] if only else BINDINGS)
    if missing and not any(is_spoken(name) for name in missing):
        text += f" (gRPC has to be installed: {install_command('grpc')})"
    other_version = any(is_spoken(name) for name in missing)
    return NoCommonVersion(text) if other_version else NoCommonInterface(text)


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
