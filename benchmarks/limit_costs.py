"""Measure what limits cost a request: the app is called without a network, in rounds.

    python benchmarks/limit_costs.py [--redis redis://...] [--postgres postgresql://...]

Prints the time of a request (a direct reply over JSON-RPC), its ratio to an agent without limits,
and the CPU time of this process: the best of interleaved rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import AsyncExitStack
from typing import Any

import parley
from parley import Agent, Caller

ROUNDS, REQUESTS = 9, 400
MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
BODY = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": MESSAGE}}
).encode()
SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "path": "/",
    "raw_path": b"/",
    "query_string": b"",
    "root_path": "",
    "headers": [
        (b"host", b"127.0.0.1"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(BODY)).encode()),
        (b"a2a-version", b"1.0"),
    ],
    "client": ("127.0.0.1", 5000),
    "server": ("127.0.0.1", 9999),
}
MANY = "100000000/hour"


def app_of(limits: tuple[str, ...] = (), **options: Any) -> Any:
    """Return an app with a skill that replies at once."""
    agent = Agent("Echo")

    @agent.skill(replies="message")
    async def echo() -> str:
        return "hi"

    return parley.asgi(agent, limits=limits, caller=ada, **options)


def ada(scope: object) -> Caller:
    return Caller("ada", authenticated=True)


async def request(app: Any) -> None:
    """Make one request. Raises ``AssertionError`` unless it is answered."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message

    await app(dict(SCOPE), receive, send)


async def measured(app: Any) -> tuple[float, float]:
    """Return the time of a request, and its CPU time, in µs."""
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(REQUESTS):
        await request(app)
    times = time.perf_counter() - began, time.process_time() - cpu
    return times[0] / REQUESTS * 1e6, times[1] / REQUESTS * 1e6


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", default="")
    parser.add_argument("--postgres", default="")
    given = parser.parse_args()
    sqlite = f"sqlite:///{tempfile.mkdtemp()}/tasks.db"
    cases: dict[str, dict[str, Any]] = {
        "no limits": {},
        "a rate per caller": {"limits": (f"{MANY} per caller",)},
        "three rates": {
            "limits": tuple(f"{MANY} per {key}" for key in ("caller", "address", "operation"))
        },
        "a limit of message bytes": {"limits": ("message 1 MB",)},
        "usage": {"usage": True},
        "a rate, usage and a budget": {
            "limits": (f"{MANY} per caller", "9000 GB output/day per caller")
        },
        "messages of a day, in SQLite": {
            "limits": ("100000000 messages/day per caller",),
            "store": sqlite,
        },
    }
    if given.postgres:
        cases["messages of a day, in PostgreSQL"] = {
            "limits": ("100000000 messages/day per caller",),
            "store": given.postgres,
        }
    if given.redis and given.postgres:
        cases["a rate in Redis"] = {
            "limits": (f"{MANY} per caller",),
            "store": given.postgres,
            "bus": given.redis,
        }
    apps = {name: app_of(**options) for name, options in cases.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    async with AsyncExitStack() as stack:
        for app in apps.values():
            await stack.enter_async_context(app.lifespan())
            await measured(app)
        for _ in range(ROUNDS):
            for name, app in apps.items():
                times[name].append(await measured(app))
    base = min(times["no limits"])[0]
    for name, found in times.items():
        took, cpu = min(found)[0], min(each[1] for each in found)
        print(f"{name:32} {took:8.1f} µs  {took / base:5.2f}x  {cpu:8.1f} µs CPU")


if __name__ == "__main__":
    asyncio.run(main())
