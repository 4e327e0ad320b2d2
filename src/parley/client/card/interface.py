"""Which of a card's interfaces to call (specification §8.3.2)."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec

from parley.client.bindings.binding import BINDINGS, canonical, is_spoken
from parley.client.bindings.http import HttpTransport, place
from parley.client.credentials import Credentials
from parley.client.errors import CardInvalid, NoCommonInterface, NoCommonVersion
from parley.client.origin import Origin
from parley.model.cards import AgentCard, AgentInterface
from parley.model.distribution import install_command
from parley.security.loopback import is_loopback
from parley.wire import versions

logger = logging.getLogger(__name__)


class Candidate(msgspec.Struct, frozen=True):
    """An interface that can be called, by its whole address, and the version to call it in.

    ``binding`` is its binding's name as the specification spells it. ``origin`` is what is
    connected to, where that is certain.
    """

    interface: AgentInterface
    binding: str
    version: str
    origin: Origin | None = None

    def __str__(self) -> str:
        return f"{self.binding} {self.version} at {place(self.interface.url)}"


class Choice(NamedTuple):
    """The interfaces to call, in order, and those that may not have the credentials at hand."""

    candidates: tuple[Candidate, ...]
    passed_over: tuple[Candidate, ...]


def candidates(
    card: AgentCard,
    binding: str | Sequence[str] = (),
    *,
    version: str = "",
    card_url: str = "",
) -> tuple[Candidate, ...]:
    """Return the interfaces that can be called, as ``choose`` does, without credentials."""
    return choose(card, binding, version=version, card_url=card_url).candidates


def choose(
    card: AgentCard,
    binding: str | Sequence[str] = (),
    *,
    version: str = "",
    card_url: str = "",
    credentials: Credentials | None = None,
    http: HttpTransport | None = None,
) -> Choice:
    """Return the interfaces that can be called, the one to call first of all at their head.

    The order is the card's. ``binding`` is the one binding to use, or several that are preferred
    in their order over all others; ``version`` the one version. A relative address is taken from
    where the card came from. Behind an encrypted interface no unencrypted one follows: who can
    break a connection must not get to read the next. Interfaces at origins that ``credentials``
    were not given for are passed over; ``http`` is what the others will be called with.

    Raises ``NoCommonInterface`` when nothing on the card is left, ``CardInvalid`` when none of what
    is has a usable address, and ``OriginNotTrusted`` when none of these may have the credentials.
    """
    only = canonical(binding) if isinstance(binding, str) and binding else ""
    preferred = [] if isinstance(binding, str) else [canonical(name) for name in binding]
    usable = [
        Candidate(offered, name, spoken)
        for offered in card.supported_interfaces
        if (name := canonical(offered.protocol_binding)) == (only or name)
        and is_spoken(name)
        # One that does not say its version has the one whose cards have interfaces like this.
        and (spoken := versions.supported_for(offered.protocol_version or versions.LATEST))
        is not None
        and spoken == (version or spoken)
    ]
    if not usable:
        raise _nothing_in_common(card, only, version)
    rank = {name: place for place, name in reversed(list(enumerate(preferred)))}
    usable.sort(key=lambda candidate: rank.get(candidate.binding, len(rank)))
    found: list[Candidate] = []
    passed_over: list[Candidate] = []
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
            msgspec.structs.replace(offered, url=url),
            candidate.binding,
            candidate.version,
            _origin(candidate.binding, url, http) if credentials else None,
        )
        if credentials and not credentials.may_go_to(whole.origin):
            logger.info("%.100s: passing over %s, whose origin is not trusted", card.name, whole)
            passed_over.append(whole)
        elif whole not in found and (not found or _is_plain(found[0]) or not _is_plain(whole)):
            found.append(whole)
    if credentials and passed_over and not found:
        raise credentials.refusal(card.name, [one.origin for one in passed_over if one.origin])
    if not found:
        first = usable[0].interface
        raise CardInvalid(
            f"the interface {first.protocol_binding} of {card.name!r} has the address "
            f"{first.url!r}; expected one of the form https://host/path"
            + (" or host:port" if usable[0].binding == "GRPC" else "")
        )
    return Choice(tuple(found), tuple(passed_over))


def _origin(binding: str, url: str, http: HttpTransport | None) -> Origin | None:
    try:
        if binding != "GRPC":
            return Origin.of(url)
        return Origin.of_grpc(
            url,
            insecure=http is not None and http.insecure,
            tls=http is not None and http.grpc_tls is not None,
        )
    except ValueError:
        return None


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
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _nothing_in_common(card: AgentCard, only: str, version: str) -> NoCommonInterface:
    offers = ", ".join(
        f"{i.protocol_binding} {i.protocol_version}".strip() for i in card.supported_interfaces
    )
    wanted = f"{only} {version}".strip()
    speaks = (
        f"{wanted} was asked for"
        if wanted
        else f"this client speaks {', '.join(filter(is_spoken, BINDINGS))} in "
        f"{' and '.join(versions.SUPPORTED_VERSIONS)}"
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
