"""``parley.connect``: a client for agents on the network and for agents of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from parley.client.bindings.binding import canonical
from parley.client.card.resolver import CatalogReference, ForeignCard, Reference
from parley.client.connection import Connection
from parley.client.connection import connect as connect_to
from parley.client.sync import SYNC_DOC, SyncRemoteAgent, in_thread
from parley.model.cards import AgentCard

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from parley.agent.agent import Agent

P = ParamSpec("P")
C = TypeVar("C", covariant=True)

ADDRESS = "https://agent.test"
"""The address of an agent of this process: hosts below ``.test`` do not exist (RFC 6761)."""


def _connect(agent: Any, /, *, path: str = "", **options: Any) -> Connection:
    reference = reference_of(agent, options)
    return connect_to(reference, path=path, **options)


def reference_of(agent: Any, options: dict[str, Any]) -> Any:
    """Return the reference to an agent of any kind, and add to the options of its connection.

    An agent or an app of this process gets an address, and a transport that calls it. Raises
    ``TypeError`` for any other object.
    """
    if isinstance(agent, CatalogReference):
        if options.get("egress") is None and options.get("http") is None:
            options["egress"] = agent.egress  # a registry named the address
        return agent.reference
    if isinstance(agent, str | bytes | os.PathLike | Mapping | AgentCard | ForeignCard):
        return agent
    # Imported here: calls over the network do not need the server's modules.
    from parley.agent.agent import Agent
    from parley.host.app import asgi
    from parley.host.in_process import InProcessTransport, Site
    from parley.server.app import App

    if isinstance(agent, Agent):
        # Its memory store ends with it, and only this process calls it.
        agent = asgi(agent, drain=0, allow_private_agents=True, publisher="", otlp="none")
    if not callable(agent):
        raise TypeError(
            "connect takes an address, a card, an agent, a result of parley.find, or an ASGI app "
            f"such as parley.asgi(agent), not {agent!r}"
        )
    refuse_for_local(options)
    address = (agent.url if isinstance(agent, App) else None) or ADDRESS
    site = Site(agent)
    http = InProcessTransport({address: site}, other=site)
    http.closes_with_agent = True
    options["http"] = http
    return address


def refuse_for_local(options: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for options that do not apply to an agent of this process."""
    binding = options.get("binding", ())
    if "GRPC" in map(canonical, [binding] if isinstance(binding, str) else binding):
        raise ValueError(
            "an agent of this process is called over JSON-RPC or HTTP+JSON; gRPC needs a socket: "
            "serve the agent, and connect to its address"
        )
    if options.get("http") is not None:
        raise ValueError(
            "http= is for agents on the network; leave it out for an agent or app of this process"
        )


def _connect_sync(*args: Any, **options: Any) -> SyncRemoteAgent:
    return in_thread(_connect, *args, **options)


def _for_all(
    function: Callable[Concatenate[Reference, P], Any], run: Callable[..., C], doc: str | None
) -> Callable[Concatenate[Reference | CatalogReference | Agent | ASGIApp, P], C]:
    """Return ``run`` with the signature of ``function``."""

    @wraps(function)
    def call(agent: Any, /, *args: Any, **options: Any) -> C:
        return run(agent, *args, **options)

    call.__name__ = call.__qualname__ = run.__name__.removeprefix("_")
    call.__doc__ = doc
    return call


connect = _for_all(connect_to, _connect, connect_to.__doc__)
connect_sync = _for_all(connect_to, _connect_sync, SYNC_DOC)
