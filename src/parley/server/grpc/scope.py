"""A gRPC call as an ASGI scope of the type ``grpc``: what identifies its caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.types import Scope

from parley.server.grpc.limits import address_of


class HttpServer(NamedTuple):
    """The HTTP server beside gRPC: its scheme, and its host and port."""

    scheme: str
    address: tuple[str, int]


def scope_of(context: Any, path: str, server: HttpServer) -> Scope:
    """Return the scope of a call of the method at ``path``."""
    headers = [
        (name.encode(), value.encode() if isinstance(value, str) else value)
        for name, value in context.invocation_metadata() or ()
    ]
    scope: Scope = {
        "type": "grpc",
        "http_version": "2",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": address_of(context.peer()),
        "server": server.address,
        "extensions": {},
    }
    authentication = context.auth_context()
    if authentication.get("transport_security_type") == [b"ssl"]:
        scope["scheme"] = "https"
        chain = authentication.get("x509_pem_cert", ())
        scope["extensions"]["tls"] = {
            "client_cert_chain": [pem.decode() for pem in chain],
            "client_cert_name": _name(authentication),
        }
    return scope


def _name(authentication: Mapping[str, Any]) -> str | None:
    names = authentication.get("x509_common_name") or ()
    return f"CN={names[0].decode()}" if names else None
