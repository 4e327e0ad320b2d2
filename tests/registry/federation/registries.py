"""Real registries on loopback, and scripted upstream registries."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from parley.registry.app.registry import Registry
from parley.registry.federation.federated import Federated
from parley.registry.federation.upstream import Upstream
from parley.registry.index.sqlite import SqliteRegistryIndex
from parley.registry.search.searcher import Searcher
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import until
from tests.registry.index.making import draft

A2A = "application/a2a-agent-card+json"


def entry(identifier: str, name: str, **more: Any) -> dict[str, Any]:
    """A catalog entry with an inline card."""
    host = identifier.split(":")[2]
    card = {
        "name": name,
        "description": more.get("description", name),
        "version": "1.0.0",
        "supportedInterfaces": [
            {"url": f"https://{host}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": name, "description": name, "tags": ["t"]}],
    }
    found = {"identifier": identifier, "displayName": name, "type": A2A, "data": card}
    return {**found, **more}


def result(identifier: str, name: str, score: Any = 80, **more: Any) -> dict[str, Any]:
    """A result in the form of another registry."""
    host = identifier.split(":")[2]
    return {
        "identifier": identifier,
        "displayName": name,
        "type": A2A,
        "url": f"https://{host}/card.json",
        "score": score,
        "source": "https://far.example/",
        **more,
    }


class Counted:
    """An app that counts its search requests."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.searches = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/search":
            self.searches += 1
        await self.app(scope, receive, send)


@asynccontextmanager
async def registries(
    folder: Path,
    catalogs: Sequence[Sequence[Mapping[str, Any]]],
    upstreams: Mapping[int, Sequence[int]],
) -> AsyncIterator[tuple[list[str], list[Counted]]]:
    """Run registries with their own entries; numbers name the registries that each one queries."""
    async with AsyncExitStack() as stack:
        sockets = []
        for _ in catalogs:
            sock = stack.enter_context(socket.socket(proto=socket.IPPROTO_TCP))
            sock.bind(("127.0.0.1", 0))
            sockets.append(sock)
        urls = [f"http://127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
        apps: list[Counted] = []
        for number, entries in enumerate(catalogs):
            file = folder / f"catalog-{number}.json"
            file.write_text(json.dumps({"specVersion": "1.0", "entries": list(entries)}))
            registry = Registry(
                f"sqlite:///{folder}/registry-{number}.db",
                address=urls[number],
                entries=[file],
                upstreams=[
                    Upstream(url=urls[other], speaks_for=("*",))
                    for other in upstreams.get(number, ())
                ],
            )
            registry.federated._seconds = 10.0  # a slow machine is not a slow registry
            app = Counted(registry.app)
            apps.append(app)
            await stack.enter_async_context(under_uvicorn(app, sock=sockets[number]))
            count = len(entries)

            async def is_read(registry: Registry = registry, count: int = count) -> bool:
                from parley.registry.records import EntrySelection

                return await registry.index.count(EntrySelection()) == count

            await until(is_read, 20)
        yield urls, apps


@asynccontextmanager
async def federated(
    upstreams: Sequence[Upstream | str],
    *,
    own: Sequence[Any] = (),
    source: str = "https://own.example/",
    **options: Any,
) -> AsyncIterator[Federated]:
    """A federated searcher over an in-memory index."""
    index = SqliteRegistryIndex()
    await index.open()
    await index.put([each if not isinstance(each, str) else draft(each, each) for each in own])
    made = Federated(
        Searcher(index, source=source),
        [each if isinstance(each, Upstream) else Upstream(url=each) for each in upstreams],
        index=index,
        source=source,
        **options,
    )
    try:
        yield made
    finally:
        await made.aclose()
        await index.close()
