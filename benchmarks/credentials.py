"""Measure what verifying an API key and Basic costs a request, beside a request without.

    python benchmarks/credentials.py

The app is called in this process, without a network: a GetTask over JSON-RPC, to an agent that
requires nothing and to agents that require credentials, which are verified and cached. Rounds are
interleaved, so that what else the machine does hits all alike; the figures are CPU time, the best
of many rounds.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
from time import process_time_ns
from typing import Any

import parley
from parley import Agent
from parley.security import ApiKey, Basic, Bearer, create_key
from parley.server.app import App
from parley.store.memory import MemoryTaskStore

ROUNDS = 30 if "--quick" not in sys.argv else 2
REQUESTS = 300 if "--quick" not in sys.argv else 10
TARGET_US = 20.0

BODY = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}).encode()
HEADERS = [
    (b"host", b"127.0.0.1:9999"),
    (b"user-agent", b"benchmark"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"content-type", b"application/json"),
    (b"a2a-version", b"1.0"),
    (b"content-length", str(len(BODY)).encode()),
]


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "root_path": "",
        "query_string": b"",
        "headers": [*HEADERS, *headers],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 9999),
    }


def app_of(store: MemoryTaskStore, security: Any = None) -> App:
    agent = Agent("Measured", security=security)

    @agent.skill
    async def nothing(text: str) -> str:
        return text

    return parley.asgi(agent, store=store)


async def request(app: App, given: dict[str, Any]) -> bytes:
    answer = b""
    has_body = False

    async def receive() -> dict[str, Any]:
        nonlocal has_body
        if has_body:
            await asyncio.Event().wait()
        has_body = True
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal answer
        answer += message.get("body", b"")

    await app(dict(given), receive, send)  # type: ignore[arg-type]
    return answer


async def requests(app: App, given: dict[str, Any]) -> float:
    began = process_time_ns()
    for _ in range(REQUESTS):
        await request(app, given)
    return (process_time_ns() - began) / REQUESTS / 1000


async def checks(app: App, given: dict[str, Any]) -> float:
    """Return what the check alone costs, without the rest of a request."""
    identify: Any = app.identify
    began = process_time_ns()
    for _ in range(REQUESTS):
        identified = identify(given)
        if not isinstance(identified, parley.Caller):
            await identified
    return (process_time_ns() - began) / REQUESTS / 1000


async def main() -> None:
    logging.disable()
    store = MemoryTaskStore()
    plain = app_of(store)
    apps = {
        "API key of the store": app_of(MemoryTaskStore(), ApiKey()),
        "Basic, cached": app_of(
            MemoryTaskStore(), Basic({"ada": Basic.hash("right")}, cache_seconds=300)
        ),
        "Bearer, a function": app_of(
            MemoryTaskStore(), Bearer(lambda token: parley.Caller(id="ada"))
        ),
    }
    async with plain.lifespan():
        for app in apps.values():
            await app.lifecycle.start()
        keyed: Any = apps["API key of the store"].identify
        key, _ = await create_key(keyed.resources.store, owner="ada", scopes=["read"])
        basic = base64.b64encode(b"ada:right")
        shown = {
            "API key of the store": scope((b"x-api-key", key.encode())),
            "Basic, cached": scope((b"authorization", b"Basic " + basic)),
            "Bearer, a function": scope((b"authorization", b"Bearer token")),
        }
        for name, app in apps.items():
            assert b"TASK_NOT_FOUND" in await request(app, shown[name]), name
        assert b"TASK_NOT_FOUND" in await request(plain, scope())
        without = [await requests(plain, scope())]
        total = {name: [await requests(app, shown[name])] for name, app in apps.items()}
        alone = {name: [await checks(app, shown[name])] for name, app in apps.items()}
        for _ in range(ROUNDS):
            without.append(await requests(plain, scope()))
            for name, app in apps.items():
                total[name].append(await requests(app, shown[name]))
                alone[name].append(await checks(app, shown[name]))
        print(f"{'':24}{'check':>9}{'request':>9}  CPU microseconds")
        print(f"{'no credentials':24}{'':>9}{min(without):9.1f}")
        for name in apps:
            print(f"{name:24}{min(alone[name]):9.1f}{min(total[name]):9.1f}")
        print(f"the mark for an API key is {TARGET_US:g} for the check")
        for app in apps.values():
            await app.lifecycle.stop()


if __name__ == "__main__":
    asyncio.run(main())
