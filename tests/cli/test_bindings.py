"""The commands over every binding and in every version, against a Parley agent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import parley
from parley import Agent, Turn
from parley.client.bindings.binding import is_supported
from parley.server.run import serving
from parley.server.settings import GrpcOptions

agent = Agent("Served", description="Tells a little", version="1.0.0")


@agent.skill(replies="task")
async def tell(turn: Turn) -> str:
    """Tells something."""
    return f"told: {turn.text}"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of an agent that is served in a thread."""
    addresses: list[str] = []
    ready, over = threading.Event(), threading.Event()
    grpc = GrpcOptions(port=0) if is_supported("GRPC") else None

    async def serve() -> None:
        async with serving(parley.asgi(agent, store="memory:"), grpc=grpc) as address:
            addresses.append(address)
            ready.set()
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as pool:
        serves = pool.submit(asyncio.run, serve())
        serves.add_done_callback(lambda _: ready.set())
        assert ready.wait(10)
        try:
            yield addresses[0]
        finally:
            over.set()
            serves.result(10)


def needed(binding: str) -> None:
    if not is_supported(binding):
        pytest.skip(f"{binding} is not installed")


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
def test_a_binding_is_chosen_and_the_outcome_is_the_same(parley, served, binding, version):
    """A2ACLI_TX_004"""
    _check(parley, served, binding, version)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
def test_grpc_is_a_binding_like_the_others(parley, served, version):
    """A2ACLI_TX_005"""
    needed("GRPC")
    _check(parley, served, "GRPC", version)


def _check(parley, served, binding, version):
    flags = ("-a", served, "--transport", binding.lower(), "--a2a-version", version)
    ran = parley("send", "hello", *flags, "--verbose", "--metadata", '{"skill": "tell"}')
    assert ran.status == 0, ran.stderr
    assert f"calling {binding} {version}" in ran.stderr
    assert "Text: told: hello\n" in ran.stdout
    task = ran.field("Task")
    shown = parley("task", "get", task, *flags, "-o", "json").document
    assert (shown["id"], shown["status"]["state"]) == (task, "TASK_STATE_COMPLETED")
    lines = parley("send", "again", *flags, "-o", "json", "--stream").lines
    assert lines[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    ran = parley("task", "cancel", task, *flags, "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "TaskNotCancelableError")
    ran = parley("task", "get", "no-such-task", *flags, "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "TaskNotFoundError")
