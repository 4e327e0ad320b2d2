"""Registries and agents on real local servers, and requests to them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import parley
from parley import Agent
from parley.model.service import Caller
from parley.registry.app.registry import Registry
from parley.registry.records import Authority, EntryDraft, EntrySelection, EntryStanding, Viewer
from parley.security import ApiKey
from parley.security.api_keys import digest_of
from parley.server.run import serving
from tests.kit.http import Response, ask
from tests.kit.waiting import until

PUBLISHER = "agent.localhost"
A2A = "application/a2a-agent-card+json"
JSON = {"Content-Type": "application/json"}

KEYS = {name: f"key-of-{name}-0123456789" for name in ("ada", "bob", "root")}
SCHEME = ApiKey(
    keys={
        digest_of(key): Caller(
            id=name,
            authenticated=True,
            scopes=frozenset({"registry:operate"} if name == "root" else {f"team-{name}"}),
        )
        for name, key in KEYS.items()
    }
)


def owner(name: str) -> str:
    """Return the owner of the entries published with a key."""
    return Caller(id=name, issuer="apiKey", authenticated=True).owner


def key(name: str) -> dict[str, str]:
    """Return the authentication header of a key."""
    return {"X-API-Key": KEYS[name]}


def currency() -> Agent:
    agent = Agent("Currency agent", description="Converts currencies.", version="1.0.0")

    @agent.skill(tags=["money"], examples=["Convert 100 USD to EUR", "What is 5 CHF in JPY?"])
    async def convert(text: str) -> str:
        """Converts an amount of money between currencies."""
        return "42 EUR"

    return agent


def boats() -> Agent:
    agent = Agent("Boat agent", description="Rents sailing boats.", version="2.0.0")

    @agent.skill(tags=["sailing"], examples=["Rent a boat in Split"])
    async def rent(text: str) -> str:
        """Rents a boat for a week."""
        return "A boat."

    return agent


@asynccontextmanager
async def agents() -> AsyncIterator[str]:
    """Serve two agents with their catalog; yield the address."""
    app = parley.asgi({"/currency": currency(), "/boats": boats()}, publisher=PUBLISHER)
    async with serving(app) as url:
        yield url


class Served(NamedTuple):
    registry: Registry
    url: str

    async def get(self, path: str, headers: Mapping[str, str] = {}) -> Response:
        return await ask(self.url, "GET", path, b"", headers)

    async def post(self, path: str, body: Any, headers: Mapping[str, str] = {}) -> Response:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await ask(self.url, "POST", path, raw, {**JSON, **headers})

    async def delete(self, path: str, headers: Mapping[str, str] = {}) -> Response:
        return await ask(self.url, "DELETE", path, b"", headers)

    async def search(self, text: str, headers: Mapping[str, str] = {}, **more: Any) -> Any:
        answer = await self.post("/search", {"query": {"text": text}, **more}, headers)
        assert answer.status == 200, answer.body
        return answer.json

    async def names(self, text: str, headers: Mapping[str, str] = {}) -> list[str]:
        found = await self.search(text, headers)
        return [each["displayName"] for each in found["results"]]


@asynccontextmanager
async def served(index: Any = "memory:", **options: Any) -> AsyncIterator[Served]:
    """Serve a registry."""
    registry = Registry(index, **options)
    async with serving(registry.app) as url:
        yield Served(registry, url)


@asynccontextmanager
async def filled(**options: Any) -> AsyncIterator[Served]:
    """Serve a registry that has crawled the catalog of two agents, and probed both."""
    async with agents() as there, served(sources=[there], **options) as here:
        await until(lambda: _has(here, 2))
        await until(lambda: _are_probed(here))  # else an answer changes between two requests
        yield here


async def _has(here: Served, count: int) -> bool:
    selection = await here.registry.index.sources()
    return sum(each.entries for each in selection) >= count


async def _are_probed(here: Served) -> bool:
    selection = EntrySelection(viewer=Viewer(sees_all=True))
    entries = await here.registry.index.browse(selection, (), 10, 0)
    return all(each.observed.probed_at is not None for each in entries)


def draft(name: str, **more: Any) -> EntryDraft:
    """Return a draft of an entry."""
    identifier = f"urn:air:{PUBLISHER}:agent:{name}"
    url = f"https://{PUBLISHER}/{name}.json"
    entry = {"identifier": identifier, "displayName": name, "type": A2A, "url": url}
    return EntryDraft(
        **{
            "identifier": identifier,
            "source": "https://source.localhost/catalog.json",
            "publisher": PUBLISHER,
            "entry": {**entry, **more.pop("entry", {})},
            "type": A2A,
            "url": url,
            "authority": Authority.OPERATOR,
            "standing": EntryStanding.LISTED,
            "texts": {"A": name},
            "fields": {"publisher": (PUBLISHER,), "type": (A2A,)},
            **more,
        }
    )
