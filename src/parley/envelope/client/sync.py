"""The blocking envelope client: the async one on a loop and a thread of its own."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self

from parley.client.sync import LoopThread, SyncIterator, SyncProxy
from parley.envelope.client.answers import EnvelopeAnswer, EnvelopeEvent
from parley.envelope.client.client import EnvelopeClient, HeartbeatAnswer


class SyncEnvelopeClient(SyncProxy[EnvelopeClient]):
    """An open connection for blocking calls: the methods are those of ``EnvelopeClient``."""

    def __init__(self, thread: LoopThread, target: EnvelopeClient) -> None:
        super().__init__(target, thread)
        thread.on_close = target.aclose
        self._close = weakref.finalize(self, thread.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def request(self, action: str, parameters: Any = None, **options: Any) -> EnvelopeAnswer:
        """Send a REQUEST and return its RESPONSE."""
        return self._run(self._target.request(action, parameters, **options))

    def stream(
        self, action: str, parameters: Any = None, **options: Any
    ) -> SyncIterator[EnvelopeEvent]:
        """Send a REQUEST and return its EVENTs, for a ``for`` loop."""

        async def opened() -> Any:
            return self._target.stream(action, parameters, **options)

        return SyncIterator(self, self._run(opened()))

    def notify(self, action: str, parameters: Any = None, **options: Any) -> None:
        """Send a REQUEST that nobody answers."""
        self._run(self._target.notify(action, parameters, **options))

    def heartbeat(self) -> HeartbeatAnswer:
        """Send a HEARTBEAT and return the one that answers it."""
        return self._run(self._target.heartbeat())

    def close(self) -> None:
        """Close the connection and end the thread behind it. Idempotent."""
        self._close()


def connect_in_thread(
    function: Callable[..., Awaitable[EnvelopeClient]], *args: Any, **options: Any
) -> SyncEnvelopeClient:
    """Connect on a thread of its own, by what ``function`` returns for these arguments."""
    thread = LoopThread()

    async def opened() -> EnvelopeClient:
        return await partial(function, *args, **options)()

    try:
        return SyncEnvelopeClient(thread, thread.run(opened()))
    except BaseException:
        thread.close()
        raise
