"""Who reaches a server, and what they could read or do: checked and logged at the start."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable

from parley.security.networks import is_loopback
from parley.server.app import App
from parley.server.grpc.options import GrpcOptions
from parley.server.sockets import ListenError
from parley.server.tls.demand import lacks_certificates
from parley.server.tls.reloading import ReloadingTls

_log = logging.getLogger("parley.server")


class AnonymousRefused(ListenError):
    """Everyone could call the agents of this server, from other machines too."""


def check_exposure(
    app: App,
    host: str,
    sockets: Iterable[socket.socket],
    grpc: GrpcOptions | None,
    *,
    allow_anonymous: bool,
) -> None:
    """Refuse to let everyone on the network call agents, unless that is allowed.

    Raises ``AnonymousRefused``.
    """
    if not app.is_open:
        return
    exposed = [] if all(is_loopback(each.getsockname()[0]) for each in sockets) else [host]
    if grpc is not None and grpc.host is not None and not is_loopback(grpc.host):
        exposed.append(grpc.host)
    if not exposed:
        return
    where = exposed[0] or "all addresses"
    if not allow_anonymous:
        raise AnonymousRefused(
            f"everyone who can reach {where} could call these agents, because they require no "
            "credentials: declare some (Agent(..., security=...)), identify callers (caller=), or "
            "allow it with --allow-anonymous (allow_anonymous=True)"
        )
    _log.warning("everyone who can reach %s can call these agents: nobody is identified", where)


def warn_of_plain_text(
    app: App,
    host: str,
    sockets: Iterable[socket.socket],
    grpc: GrpcOptions | None,
    tls: ReloadingTls | None,
) -> None:
    """Warn of credentials that would travel unencrypted, and of certificates never asked for."""
    if not any(each is not None and each.securities for each in app.rules):
        return
    is_public = not all(is_loopback(each.getsockname()[0]) for each in sockets)
    if tls is None and is_public and app.url is None and not app.settings.trust_proxy:
        _log.warning(
            "the agents require credentials, and their cards name http:// on %s: callers would "
            "send them unencrypted; give a certificate and its key (tls_cert, tls_key), or the "
            "https:// address of the proxy in front (url)",
            host or "all addresses",
        )
    asks = tls is not None and tls.callers != "none"
    asks_over_grpc = grpc is not None and grpc.client_ca is not None
    for scheme in lacks_certificates(app.rules):
        if not asks and not asks_over_grpc:
            _log.warning(
                "%r needs client certificates, and this server asks for none: name their "
                "authorities (tls_client_ca), or the proxy that verifies them (proxy_header=)",
                scheme,
            )
        elif (
            tls is not None
            and tls.callers == "optional"
            and grpc is not None
            and not asks_over_grpc
        ):
            _log.warning(
                "over gRPC a certificate cannot be optional, so %r cannot be used there; to "
                "require one of all callers, give grpc_cert, grpc_key and grpc_client_ca",
                scheme,
            )
