"""The choice among a card's interfaces (specification §8.3.2)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec

from parley.client.auth.credentials import Credentials
from parley.client.bindings.binding import BINDINGS, canonical, is_added, is_supported
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.errors import CardInvalid, ClientError, NoCommonInterface, NoCommonVersion
from parley.client.origin import Origin, http_address
from parley.model.cards import AgentCard, AgentInterface
from parley.model.distribution import install_command
from parley.security.networks import is_loopback
from parley.wire import versions

logger = logging.getLogger(__name__)

ADDED_SCHEMES = ("http", "https", "ws", "wss")
"""The schemes of addresses of bindings that packages add."""


class Candidate(msgspec.Struct, frozen=True):
    """A usable interface with its absolute address and protocol version.

    ``binding`` is the binding's name in the specification. ``origin`` is the origin to connect to,
    if it is certain.
    """

    interface: AgentInterface
    binding: str
    version: str
    origin: Origin | None = None

    def __str__(self) -> str:
        return f"{self.binding} {self.version} at {redacted(self.interface.url)}"


class Choice(NamedTuple):
    """The interfaces to call, in order, and the interfaces that may not get the credentials."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[Candidate, ...]


def choose(
    card: AgentCard,
    binding: str | Sequence[str] = (),
    *,
    version: str = "",
    card_url: str = "",
    credentials: Credentials | None = None,
    http: HttpTransport | None = None,
) -> Choice:
    """Return the usable interfaces in the order to try them.

    The order is the card's. A binding that a package adds is used only if it is requested or has no
    alternative. ``binding`` is the only binding to use, or a list of preferred ones; ``version`` is
    the only version to use. A relative address is resolved against the card's. After an encrypted
    interface no unencrypted one is tried: an attacker who can break a connection must not get to
    read the next. Interfaces at origins that may not get the ``credentials`` are skipped. ``http``
    is the transport of the calls.

    Raises ``NoCommonInterface`` if no interface is usable, ``CardInvalid`` if none has a binding or
    no usable one has a valid address, and ``OriginNotTrusted`` if none may get the credentials.
    """
    only = canonical(binding) if isinstance(binding, str) and binding else ""
    preferred = [] if isinstance(binding, str) else [canonical(name) for name in binding]
    asked = {only, *preferred}

    def usable_with(is_known: Callable[[str], bool]) -> list[Candidate]:
        return [
            Candidate(offered, name, known)
            for offered in card.supported_interfaces
            if (name := canonical(offered.protocol_binding)) == (only or name)
            and is_known(name)
            # An interface without a version belongs to the latest version, whose cards allow that.
            and (known := versions.supported_for(offered.protocol_version or versions.LATEST))
            is not None
            and known == (version or known)
        ]

    usable = usable_with(
        lambda name: is_supported(name) or (name in asked and is_added(name))
    ) or usable_with(is_added)
    if not usable:
        raise _no_common_interface(card, only, version)
    rank = {name: index for index, name in reversed(list(enumerate(preferred)))}
    usable.sort(key=lambda candidate: rank.get(candidate.binding, len(rank)))
    found: list[Candidate] = []
    skipped: list[Candidate] = []
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
        resolved = Candidate(
            msgspec.structs.replace(offered, url=url),
            candidate.binding,
            candidate.version,
            _origin(candidate.binding, url, http) if credentials is not None else None,
        )
        if credentials and not credentials.allows(resolved.origin):
            logger.info("%.100s: skipping %s, whose origin is not trusted", card.name, resolved)
            skipped.append(resolved)
        elif resolved not in found and (
            not found or _is_plain(found[0]) or not _is_plain(resolved)
        ):
            found.append(resolved)
    if credentials and skipped and not found:
        raise credentials.refusal(card.name, [one.origin for one in skipped if one.origin])
    if not found:
        first = usable[0].interface
        raise CardInvalid(
            f"the interface {first.protocol_binding} of {card.name!r} has the address "
            f"{first.url!r}; expected one of the form https://host/path"
            + (" or host:port" if usable[0].binding == "GRPC" else "")
        )
    return Choice(tuple(found), tuple(skipped))


def _origin(binding: str, url: str, http: HttpTransport | None) -> Origin | None:
    try:
        if binding != "GRPC":
            return Origin.of(http_address(url))
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
        # ``port`` raises for an invalid port.
        schemes = ("http", "https") if binding in BINDINGS else ADDED_SCHEMES
        is_usable = url and parts.scheme in schemes and parts.hostname
        return http_address(whole) if is_usable and parts.port != 0 else None
    except ValueError:
        return None


def _is_plain(candidate: Candidate) -> bool:
    """Return whether the network can read requests to an interface."""
    parts = urlsplit(candidate.interface.url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _no_common_interface(card: AgentCard, only: str, version: str) -> ClientError:
    offers = ", ".join(
        f"{i.protocol_binding} {i.protocol_version}".strip() for i in card.supported_interfaces
    )
    wanted = f"{only} {version}".strip()
    speaks = (
        f"{wanted} was requested"
        if wanted
        else f"this client supports {', '.join(filter(is_supported, BINDINGS))} in "
        f"{' and '.join(versions.SUPPORTED_VERSIONS)}"
    )
    text = f"{card.name!r} offers {offers or 'no interface'}; {speaks}"
    nameless = [i.url for i in card.supported_interfaces if not i.protocol_binding]
    if nameless:
        text = (
            f"{card.name!r} names no protocolBinding for {', '.join(map(redacted, nameless))}: "
            "expected JSONRPC, HTTP+JSON or GRPC ('transport' is its name in cards of 0.3)"
        )
        if len(nameless) == len(card.supported_interfaces):
            return CardInvalid(text)
    offered = {canonical(i.protocol_binding) for i in card.supported_interfaces}
    missing = offered.intersection(BINDINGS).intersection([only] if only else BINDINGS)
    if missing and not any(is_supported(name) for name in missing):
        text += f" (gRPC has to be installed: {install_command('grpc')})"
    if not any(is_supported(name) for name in missing):
        return NoCommonInterface(text)
    found = {
        versions.supported_for(i.protocol_version)
        for i in card.supported_interfaces
        if canonical(i.protocol_binding) in missing
    }
    return NoCommonVersion(
        text, versions=tuple(each for each in versions.SUPPORTED_VERSIONS if each in found)
    )


def declares(card: AgentCard, uri: str) -> bool:
    """Return whether the card declares the extension ``uri``."""
    return any(extension.uri == uri for extension in card.capabilities.extensions)
