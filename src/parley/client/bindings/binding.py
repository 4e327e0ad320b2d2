"""The client's bindings: their interface, their names on cards, and their classes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from parley.model.envelope.names import BINDING as ENVELOPE
from parley.model.operations import Operation, SendMessageRequest
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct


class Binding(Protocol):
    """Sends requests to one interface of an agent and returns the answers. One file each.

    The constructor takes the shared ``HttpTransport`` and the address of the interface, and the
    keywords ``dialect``, ``headers``, ``timeout``, ``idle``, ``numbered``, ``peer`` (the ``Server``
    header of the agent's card) and ``auth`` (the credentials). It does no I/O.
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
        """Close what the binding has beside the shared transport. Idempotent."""
        ...


BINDINGS: dict[str, tuple[str, str]] = {
    "JSONRPC": ("parley.client.bindings.jsonrpc", "JsonRpcClientBinding"),
    "HTTP+JSON": ("parley.client.bindings.http_json", "HttpJsonClientBinding"),
    "GRPC": ("parley.client.bindings.grpc", "GrpcClientBinding"),
    ENVELOPE: ("parley.client.envelope.binding", "EnvelopeClientBinding"),
}
"""Module and class of each binding by its name on cards (§4.4.6); imported when used."""

# Modules to be installed beside Parley itself.
_NEEDS = {"GRPC": ("grpc", "google.protobuf")}

_ALIASES = {
    "JSON-RPC": "JSONRPC",
    "HTTP": "HTTP+JSON",
    "HTTP-JSON": "HTTP+JSON",
    "HTTPJSON": "HTTP+JSON",
    "REST": "HTTP+JSON",
    "ENVELOPE": ENVELOPE,
    ENVELOPE.upper(): ENVELOPE,
}


def canonical(name: str) -> str:
    """Return a binding's name as cards spell it, from any case and any usual alias."""
    upper = name.strip().upper()
    return _ALIASES.get(upper, upper)


def check_binding(name: str) -> str:
    """Return the name of a binding as cards spell it. Raises ``ValueError`` for an unknown one."""
    known = canonical(name)
    if known not in BINDINGS:
        names = ", ".join("envelope" if each == ENVELOPE else each for each in BINDINGS)
        raise ValueError(f"{name!r} is no binding that is known here; there are {names}")
    return known


def is_last_choice(name: str) -> bool:
    """Return whether a binding is used only if it is asked for, or an agent has no other."""
    return name == ENVELOPE


def is_supported(name: str) -> bool:
    """Return whether this client can call a binding, given its name on a card."""
    return name in BINDINGS and all(_is_installed(module) for module in _NEEDS.get(name, ()))


def binding_class(name: str) -> type[Any]:
    """Return the class of a supported binding."""
    module, kind = BINDINGS[name]
    found: type[Any] = getattr(import_module(module), kind)
    return found


def waits_for_task(request: A2AStruct) -> bool:
    """Return whether the agent may answer only when a task has ended."""
    if not isinstance(request, SendMessageRequest):
        return False
    return request.configuration is None or not request.configuration.return_immediately


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not installed
        return False
