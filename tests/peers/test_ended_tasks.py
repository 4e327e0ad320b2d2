"""Our client at official servers, when a stream is cut and the task ends meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from parley.client import connect
from parley.conformance import faults
from parley.model.tasks import TaskState
from parley.testing import FaultProxy

from .test_client_against_official_server import states_of

pytestmark = pytest.mark.anyio

WAYS = [
    (peer, binding, version)
    for peer, versions in {
        "python-1.3": ("1.0", "0.3"),
        "python-0.3": ("0.3",),
        "python-0.3.26": ("0.3",),
    }.items()
    for version in versions
    for binding in ("JSONRPC", "HTTP+JSON")
]


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
async def test_the_end_comes_once_however_the_stream_is_cut(
    way: tuple[str, str, str], official_servers: Callable[[str], str]
) -> None:
    peer, binding, version = way
    async with (
        asyncio.timeout(20),
        FaultProxy(official_servers(peer)) as proxy,
        connect(proxy.url, binding=binding, version=version) as agent,
    ):
        for frames in range(1, 5):
            proxy.fault(faults.cut(after_frames=frames), on="SendStreamingMessage")
            events = [event async for event in agent.stream("report 3 0.01")]
            assert states_of(events)[0] == "SUBMITTED"
            assert states_of(events).count("COMPLETED") == 1
            assert states_of(events)[-1] == "COMPLETED"
        proxy.clear()
        proxy.fault(faults.cut(after_frames=1), on="SubscribeToTask", times=None)
        started = await agent.send("report 5 0.05", return_immediately=True)
        assert (await agent.wait(started.id)).state is TaskState.COMPLETED
