"""The bindings that the client speaks: what one is, which there are, and how one is made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from parley.model.operations import Operation
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct


class Binding(Protocol):
    """How requests get to the agent and answers back. One file each.

    A binding is made with the shared ``HttpTransport`` and the address of one interface, and with
    ``dialect``, ``headers`` (credentials among them), ``timeout``, ``idle``, ``numbered`` and
    ``peer`` (what the server of the agent's card calls itself) by name. Making one does no I/O.
    """

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return what the operation answers."""
        ...

    def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield what the operation streams; an async generator."""
        ...

    async def aclose(self) -> None:
        """Give up what the binding holds beside the shared transport. Idempotent."""
        ...


BINDINGS: dict[str, tuple[str, str]] = {
    "JSONRPC": ("parley.client.bindings.jsonrpc", "JsonRpcBinding"),
    "HTTP+JSON": ("parley.client.bindings.http_json", "HttpJsonBinding"),
    "GRPC": ("parley.client.bindings.grpc", "GrpcBinding"),
}
"""The bindings by the names that cards give them (§4.4.6), and where each is; loaded when used."""

# What has to be installed beside Parley itself.
_NEEDS = {"GRPC": ("grpc", "google.protobuf")}

_ALIASES = {
    "JSON-RPC": "JSONRPC",
    "HTTP": "HTTP+JSON",
    "HTTP-JSON": "HTTP+JSON",
    "HTTPJSON": "HTTP+JSON",
    "REST": "HTTP+JSON",
}


def canonical(name: str) -> str:
    """Return a binding's name as cards spell it; case and usual other names do not matter."""
    upper = name.strip().upper()
    return _ALIASES.get(upper, upper)


def is_spoken(name: str) -> bool:
    """Whether a binding, by its name on a card, can be called from here."""
    return name in BINDINGS and all(_is_installed(module) for module in _NEEDS.get(name, ()))


def home(name: str) -> type[Any]:
    """Return the class of a binding that is spoken."""
    module, kind = BINDINGS[name]
    found: type[Any] = getattr(import_module(module), kind)
    return found


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it would be in is not there
        return False
