"""What every test shares."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextvars import Context
from typing import Any

import pytest
from hypothesis import settings

from tests.kit.services.postgres import postgres as postgres
from tests.kit.services.postgres import postgres_url as postgres_url
from tests.kit.services.redis import redis as redis
from tests.kit.services.s3 import s3 as s3

# Servers that run as another user are forked; what gRPC does to a fork may end it before it begins.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A shell without job control starts what runs in the background with SIGINT ignored. Servers that
# tests start would inherit that, and tests that press Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow moment of the machine is no failure.
settings.register_profile("parley", deadline=None)
settings.load_profile("parley")

NOTHING_IS_SKIPPED = bool(os.environ.get("CI") or os.environ.get("PARLEY_NO_SKIP"))


class _TestLoop(asyncio.SelectorEventLoop):
    """The loop of one test, which has nothing to tell once it is closed.

    All loops of a process share one poller of grpc.aio. What is left of a call that a test
    cancelled completes whenever it does, and is handed to the loop that began the call by the loop
    of whichever test runs then: that test would fail because an earlier one's loop is closed.
    """

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self.is_closed():
            handle = asyncio.Handle(callback, args, self, context)
            handle.cancel()
            return handle
        return super().call_soon_threadsafe(callback, *args, context=context)


class _TestLoops(asyncio.DefaultEventLoopPolicy):
    """Makes the loops that tests start beside their own, as the synchronous client does, alike."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _TestLoop()


asyncio.set_event_loop_policy(_TestLoops())


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": _TestLoop}


def pytest_xdist_auto_num_workers() -> int:
    """Run two more tests at a time than there are processors: many wait for other processes."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_finish() -> None:
    """Keep the tests themselves from the garbage collector: each full collection would visit them.

    Twenty thousand tests are half a million objects, which take 0.4 s each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def own_garbage() -> Iterator[None]:
    """Collect what the tests of a module leave: it fails the last of them, and none of another.

    What is in use then is not visited again: each collection costs what its module has made.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail what would be skipped because a peer or a service is missing, where none may be."""
    report = yield
    needy = item.get_closest_marker("peer") or item.get_closest_marker("service")
    if report.skipped and needy and NOTHING_IS_SKIPPED:
        report.outcome = "failed"
        report.longrepr = f"skipped, where nothing may be: {report.longrepr}"
    return report
