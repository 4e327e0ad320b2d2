"""A server is killed and restarted while a client of the envelope protocol reads a stream."""

from __future__ import annotations

import pytest

import parley
from parley.envelope import LinkSettings
from parley.model.backoff import Backoff
from tests.faults.conftest import Served
from tests.faults.served import CHUNKS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_a_stream_goes_on_over_the_death_of_its_server(served: Served) -> None:
    settings = LinkSettings(backoff=Backoff(0.05, 0.2), retries=200)
    words, numbers, killed = [], [], False
    async with (
        parley.envelope.connect(f"{served.url}/envelope", settings=settings) as client,
        client.stream("report", "go", sub_type="command", timeout=60) as stream,
    ):
        async for event in stream:
            if event.sequence is not None:
                numbers.append(event.sequence)
            for result in event.results:
                update = result.get("artifactUpdate") if isinstance(result, dict) else None
                for part in update["artifact"]["parts"] if update else ():
                    words += part["text"].split()
            if len(words) > 50 and not killed:
                killed = True
                await served.end()
                await served.start()
        assert event.is_final
        assert event.status == "success"
        reconnects = client.connection.reconnects
    assert reconnects >= 1
    assert len(numbers) == len(set(numbers))
    # A repeated turn streams its artifact from the beginning and replaces the earlier content.
    assert [int(word) for word in words[-CHUNKS:]] == list(range(CHUNKS))
