"""The client's bindings: their interface, their names on cards, and their classes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Protocol

from parley.model.operations import Operation, SendMessageRequest
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct


class Binding(Protocol):
    """Sends requests to one interface of an agent and returns the answers.

    The constructor takes the shared ``HttpTransport`` and the address of the interface, and the
    keywords ``dialect``, ``headers``, ``timeout``, ``idle``, ``numbered``, ``peer`` (the ``Server``
    header of the agent's card) and ``auth`` (the credentials). It does no I/O.
    """

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return the operation's result."""
        ...

    def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield the events of the operation; an async generator."""
        ...

    async def aclose(self) -> None:
        """Close the binding's own connections. Idempotent."""
        ...


BINDINGS: dict[str, tuple[str, str]] = {
    "JSONRPC": ("parley.client.bindings.jsonrpc", "JsonRpcClientBinding"),
    "HTTP+JSON": ("parley.client.bindings.http_json", "HttpJsonClientBinding"),
    "GRPC": ("parley.client.bindings.grpc", "GrpcClientBinding"),
}
"""Module and class of each binding by its name on cards (§4.4.6); imported on first use."""

# Modules of packages that must be installed in addition to Parley.
_NEEDS = {"GRPC": ("grpc", "google.protobuf")}

_ALIASES = {
    "JSON-RPC": "JSONRPC",
    "HTTP": "HTTP+JSON",
    "HTTP-JSON": "HTTP+JSON",
    "HTTPJSON": "HTTP+JSON",
    "REST": "HTTP+JSON",
}


ENTRY_POINTS = "parley.client_bindings"
"""The entry point group of packages that add bindings (docs/guides/extend-parley.md).

Each entry point is a class, registered under the binding's name on cards (a URI) and a short name.
"""


def canonical(name: str) -> str:
    """Return a binding's name as on cards, from any case and any common alias."""
    given = name.strip()
    if ":" in given:
        return given
    upper = given.upper()
    known = _ALIASES.get(upper, upper)
    if known not in BINDINGS and (short := _added().get(given.lower())) is not None:
        return next(name for name, each in _added().items() if each.value == short.value)
    return known


def check_binding(name: str) -> str:
    """Return the name of a binding as on cards. Raises ``ValueError`` for an unknown binding."""
    known = canonical(name)
    if known not in BINDINGS and known not in _added():
        names = ", ".join([*BINDINGS, *(each for each in _added() if ":" not in each)])
        raise ValueError(f"{name!r} is not a known binding; there are {names}")
    return known


def is_added(name: str) -> bool:
    """Return whether a package adds the binding with this name on cards."""
    return ":" in name and name in _added()


def is_supported(name: str) -> bool:
    """Return whether this client itself implements the binding with this name on cards."""
    return name in BINDINGS and all(_is_installed(module) for module in _NEEDS.get(name, ()))


def binding_class(name: str) -> type[Any]:
    """Return the class of a binding that is supported or added."""
    if name not in BINDINGS:
        return _added()[name].load()  # type: ignore[no-any-return]
    module, kind = BINDINGS[name]
    found: type[Any] = getattr(import_module(module), kind)
    return found


@cache
def _added() -> dict[str, EntryPoint]:
    """Return the bindings that packages add, with the names on cards first."""
    found = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
    return dict(sorted(found.items(), key=lambda item: ":" not in item[0]))


def waits_for_task(request: A2AStruct) -> bool:
    """Return whether the agent may answer only after a task has ended."""
    if not isinstance(request, SendMessageRequest):
        return False
    return request.configuration is None or not request.configuration.return_immediately


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not installed
        return False
