"""Agent cards rewritten to the proxy's address, and the operation of each request."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

from parley.model.operations import OPERATIONS
from parley.security.networks import is_loopback
from parley.wire.versions import SUPPORTED_VERSIONS, dialect

METHODS = {
    method: operation
    for version in SUPPORTED_VERSIONS
    for method, operation in dialect(version).jsonrpc.methods.items()
}
"""The operations by their JSON-RPC methods, of all versions."""

_PATHS = [
    (
        operation.verb,
        re.compile(".*" + re.sub(r"\\\{\w+\\\}", "[^/:]+", re.escape(operation.path)) + "$"),
        operation.name,
    )
    for operation in OPERATIONS
]
CARD = "card"
"""The operation of a request for an agent card at a well-known path."""


def operation_of(method: str, path: str, body: bytes) -> str:
    """Return the operation of a request by its name in 1.0, or an empty string."""
    path = path.partition("?")[0]
    if "/.well-known/agent" in path:
        return CARD
    if method == "POST":
        try:
            call = json.loads(body)
        except (ValueError, RecursionError):
            call = None
        if isinstance(call, dict) and "jsonrpc" in call:
            name = str(call.get("method", ""))
            return METHODS[name].name if name in METHODS else name
    for verb, pattern, name in _PATHS:
        if pattern.match(path) and (method == verb or name == "SubscribeToTask"):
            return name
    return ""


def rewrite_card(body: bytes, target: str, here: str) -> bytes:
    """Return a card with its interfaces at ``target`` moved to ``here``; other interfaces are
    removed.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return body
    card = document.get("result", document) if isinstance(document, dict) else None
    if not isinstance(card, dict):
        return body
    for name in ("supportedInterfaces", "additionalInterfaces"):
        if isinstance(card.get(name), list):
            moved = [_moved(each, target, here) for each in card[name]]
            card[name] = [each for each in moved if each is not None]
    if isinstance(card.get("url"), str):
        card["url"] = _address(card["url"], target, here) or card["url"]
    card.pop("signatures", None)  # they do not match the changed card
    return json.dumps(document).encode()


def _moved(interface: Any, target: str, here: str) -> Any:
    if not isinstance(interface, dict) or not isinstance(interface.get("url"), str):
        return interface
    address = _address(interface["url"], target, here)
    return None if address is None else {**interface, "url": address}


def _address(url: str, target: str, here: str) -> str | None:
    was, now = urlsplit(url), urlsplit(target)
    same_host = was.hostname == now.hostname or (
        is_loopback(was.hostname or "") and is_loopback(now.hostname or "")
    )
    if was.scheme not in ("http", "https") or not same_host or was.port != now.port:
        return None
    base = urlsplit(here)
    return was._replace(scheme=base.scheme, netloc=base.netloc).geturl()
